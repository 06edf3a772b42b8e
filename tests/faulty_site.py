"""A site that misbehaves on demand: a data loader of the site's own, which reads what to do from the site's state directory.

``faults.json`` there says by round what the site does: ``{"2": "nan", "3": "pause-before 20"}``. The client app itself
comes from the server and is honest, so the loader, which runs in the same process, replaces its last step. ``refused-*``
leave the client's own guard on, everything else but a pause takes it off: only the server can then notice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, RecordDict

import client_app.boundary as boundary
import client_app.main as app
from client_app.data.client_data import ClientData
from client_app.data.simulated import client_data, plan_of
from client_app.learner import Reply
from client_app.node import Node
from strategies.config import RunConfig
from strategies.wire import encode

SECRET = "/srv/secret/patient-4711.png"


def load(node: Node, seed: int) -> ClientData:
    """The same part of the digits as an honest site has."""
    arm(node.state_dir)
    return client_data(plan_of(RunConfig(partition="iid", clients=node.count, seed=seed), node.count), node.index)


def plan(state_dir: Path, faults: dict[int, str]) -> None:
    """From now on, the site does ``faults``, by round."""
    state_dir.mkdir(parents=True, exist_ok=True)
    fresh = state_dir / "faults.json.new"
    fresh.write_text(json.dumps({str(number): fault for number, fault in faults.items()}))
    fresh.replace(state_dir / "faults.json")


def at(state_dir: Path, number: int) -> Path:
    """Exists once the site pauses in round ``number``."""
    return state_dir / f"paused-{number}"


def arm(state_dir: Path) -> None:
    """Let the client process we are in obey the plan."""
    inbound, seal = app.inbound, app.seal
    now: list[int] = [0]

    def noting(message: Any, *rest: Any) -> Any:
        slots, rnd = inbound(message, *rest)
        now[0] = 0 if rnd.closing else rnd.number
        _pause("pause-before", state_dir, now[0])
        return slots, rnd

    def faulty(reply: Reply, wire: Any, parts: Any, direction: Any = "up") -> RecordDict:
        _pause("pause-after", state_dir, now[0])
        fault = _planned(state_dir, now[0])
        if fault in FAULTS:
            boundary._check_again = lambda *arguments: None  # type: ignore[assignment]
            content = seal(reply, wire, parts, direction)
            FAULTS[fault](content)
            return content
        if fault == "refused-nan":
            nan = {name: np.full_like(tensor, np.nan) for name, tensor in reply.slots["encoder"].items()}
            reply = Reply({**reply.slots, "encoder": nan}, reply.metrics)
        if fault == "raise-raw":
            boundary.describe = lambda fault, who="": f"could not read {SECRET}"  # type: ignore[assignment]
        if fault.startswith("raise"):
            raise FileNotFoundError(2, "No such file or directory", SECRET)
        return seal(reply, wire, parts, direction)

    app.inbound, app.seal = noting, faulty  # type: ignore[assignment]


def _planned(state_dir: Path, number: int) -> str:
    path = state_dir / "faults.json"
    return json.loads(path.read_text()).get(str(number), "") if path.exists() else ""


def _pause(when: str, state_dir: Path, number: int) -> None:
    fault, _, seconds = _planned(state_dir, number).partition(" ")
    if fault == when:
        at(state_dir, number).touch()
        time.sleep(float(seconds))


def _with_largest(content: RecordDict, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Change the largest array of the encoder, however the encoder travels."""
    record = content.array_records["encoder"]
    name = max(record, key=lambda n: len(record[n].data))
    record[name] = encode(change(record[name].numpy()))


def _foreign(content: RecordDict) -> None:
    content["head"] = ArrayRecord({"weight": encode(np.zeros((10, 8), np.float32)), "bias": encode(np.zeros(10, np.float32))})


FAULTS: dict[str, Callable[[RecordDict], None]] = {
    "nan": lambda content: _with_largest(content, lambda t: np.full_like(t, np.nan)),
    "shape": lambda content: _with_largest(content, lambda t: t[None]),
    "size": lambda content: _with_largest(content, lambda t: np.tile(t, (10,) + (1,) * (t.ndim - 1))),
    "other-slot": _foreign,
}
