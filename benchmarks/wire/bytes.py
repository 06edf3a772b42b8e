"""Bytes a client sends in a round of HDC-FL with a full ResNet-18, counted on the wire and compared with the summary.

    python benchmarks/wire/bytes.py [--out bytes.json]

Two clients with a few digits each, one round, both descriptor and head signal. The bar: the encoder's bytes plus at most
2 KiB, and ``summary.json`` says what was counted.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

from deploy.inprocess import InProcessGrid
from server_app.main import serve

KIB = 1024


class Counting(InProcessGrid):
    """Counts every byte of every record of the training replies."""

    up = 0

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        for reply in super().pull_messages(message_ids):
            if reply.has_content() and reply.metadata.message_type == "train":
                for record in reply.content.values():
                    self.up += sum(len(v.data) if isinstance(v, Array) else 8 for v in record.values())
                    self.up += 0 if isinstance(record, ArrayRecord) else sum(map(len, record))
            yield reply


def measure(signal: str, travel: str) -> dict[str, float | str]:
    """One run; bytes of one client and round."""
    with tempfile.TemporaryDirectory() as out:
        config = {"method": "hdc-fl", "hdc-fl.signal": signal, "model": "resnet18", "clients": 2, "rounds": 1, "epochs": 1, "batch": 500,
                  "out": out, "state-dir": f"{out}/clients", "run-id": "bytes", "wire-dtype": travel, "score-every": 2,
                  "score-adapted": "never", "bn": "average"}
        grid = Counting(config, 2)
        summary = serve(grid, Context(1, 1, {}, RecordDict(), config), "inprocess")
    # weights for grey images, and running means and variances
    encoder = (11_167_680 + 9_600) * (4 if travel == "float32" else 2)
    slots = {f"slot {name}": count / 2 for name, count in summary["bytes"]["by_slot"]["up"].items()}
    return {"signal": signal, "wire-dtype": travel, "encoder": encoder, "counted": grid.up / 2,
            "beyond_encoder": grid.up / 2 - encoder, "summary": summary["bytes"]["up_per_client_round"], **slots}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    rows = [measure("descriptor", "float32"), measure("head", "float32"), measure("descriptor", "float16")]
    print(json.dumps(rows, indent=1))
    if a.out:
        a.out.write_text(json.dumps(rows, indent=1))
    if any(r["counted"] != r["summary"] for r in rows) or float(rows[0]["beyond_encoder"]) > 2 * KIB:
        sys.exit("over the bar")


if __name__ == "__main__":
    main()
