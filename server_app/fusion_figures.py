"""What a report shows of FedIA's gate and patches: three numbers a client, about its own test images.

Weights by class and pictures of kept patches stay with the clients (``fed-ia.pictures``).
"""

from __future__ import annotations

from statistics import mean

from server_app.sections import percent, section, table_of
from server_app.summary import Findings

COLUMNS = (("gate_weight", "mean weight of the local branch"), ("gate_spread", "how far weights differ by image"),
           ("patch_overlap", "kept patches that two classes share"))


def fusion_section(found: Findings) -> str:
    """The closing figures by client, and their means, as HTML; "" for a run without a fusion gate."""
    told = found.summary.get("fusion")
    if not told:
        return ""
    columns = [(key, words) for key, words in COLUMNS if told.get(key)]
    clients = sorted({client for key, _ in columns for client in told[key]})
    body = [["mean", *(shown(key, mean(told[key].values())) for key, _ in columns)]]
    body += [[client, *(shown(key, told[key].get(client)) for key, _ in columns)] for client in clients]
    words = ("<p>Of the model each client ends up with, on its own test images. 0.5 is where a gate starts; a spread near 0 means that it "
             "ignores the image. Which patches are kept, each client can see for itself: <code>fed-ia.pictures</code> draws some beside "
             "its personal model.</p>")
    return section("Fusion of local and global text features", words + table_of(["", *(name for _, name in columns)], body, "tall"))


def shown(key: str, value: float | None) -> str:
    """A weight or a spread with three digits, a share in per cent."""
    return "–" if value is None else percent(value) if key == "patch_overlap" else f"{value:.3f}"
