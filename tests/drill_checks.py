"""What must hold after every drill, whatever was broken: the run ended well, and nothing was lost, doubled or told.

A run is replayed in this process with the replies lost that the deployed run did not accept. Seeds go by site and round,
so both must end in the same bits: a site that trained from another version than the acknowledged one, or an update that
entered twice, would show.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flwr.app import Error, Message

import tests.running as running
from tests.deployed import Cluster, rounds_of, summary_of
from tests.faulty_site import SECRET

# how Flower and we count a reply that never came
ABSENT = frozenset({"deadline", "offline", "node-unavailable", "expired", "reply-lost"})
# what no two runs share, or what a replay may have otherwise
OWN_KEYS = ("out", "state-dir", "resume", "deadline")


def settled(cluster: Cluster, folder: Path, dropped: Iterable[str], back: Iterable[str] | None = None) -> str:
    """Check it all; returns a line for the table.

    ``dropped`` are the reasons for which replies may have been dropped; ``back`` the sites that must have been accepted
    in the last round, all of them by default.
    """
    records = rounds_of(folder)
    counted = summary_of(folder)["dropped"]
    assert [record["round"] for record in records] == list(range(1, len(records) + 1)), "a round is missing"
    assert set(counted) <= set(dropped), f"dropped for other reasons than expected: {counted}"
    assert not any(record["void"] for record in records), "a round was void"
    back = set(cluster.sites if back is None else back)
    assert back <= set(records[-1]["accepted"]), f"not back in the last round: {back - set(records[-1]['accepted'])}"
    _same_as_replayed(cluster, folder, records, back)
    _told_nothing(cluster, folder)
    return ", ".join(f"{reason} {count}" for reason, count in sorted(counted.items())) or "no reply dropped"


def _same_as_replayed(cluster: Cluster, folder: Path, records: list[dict[str, Any]], back: set[str]) -> None:
    again = replay(folder, records, cluster.root / f"replay-{folder.name}")
    ours, theirs = (running.Ran(where, {}).state["tensors"] for where in (folder, again))
    assert len(ours) > 10 and ours == theirs, "the server's final state is not that of the replay"
    for name in sorted(back):
        here, there = cluster.state_dir(name) / folder.name / name, again / "clients" / folder.name / name
        last = f"v{records[-1]['round']}.safetensors"
        assert running.contents(here / last) == running.contents(there / last), f"{name} keeps another state than in the replay"


def replay(folder: Path, records: list[dict[str, Any]], out: Path) -> Path:
    """The same run in this process, where a reply that was not accepted is lost."""
    accepted = {record["round"]: set(record["accepted"]) for record in records}

    def hook(message: Message, reply: Callable[[], Message]) -> Message:
        kind, client, number = running.about(message)
        if kind == "train" and client not in accepted[number]:
            return Message(Error(4, "lost"), reply_to=message)
        return reply()

    config = json.loads((folder / "run.json").read_text())
    settings = {key: value for key, value in config.items() if key not in (*OWN_KEYS, "method")}
    return running.run(out, config["method"], hook, **settings).folder


def _told_nothing(cluster: Cluster, folder: Path) -> None:
    """No path of a site, and nothing planted there, in what the server keeps as text."""
    texts = {"server.log": cluster.told("server"), "the run's log": cluster.app_log(folder),
             **{name: (folder / name).read_text() for name in ("rounds.jsonl", "summary.json")}}
    for name, text in texts.items():
        for hidden in (SECRET, Path(SECRET).name, *(str(cluster.state_dir(site)) for site in cluster.sites)):
            assert hidden not in text, f"{name} on the server holds {hidden}"


def wait_for(condition: Callable[[], bool], what: str, patience: float = 120.0) -> float:
    """Seconds until ``condition`` holds."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < patience, f"never happened: {what}"
        time.sleep(0.1)
    return time.monotonic() - began


def drops(text: str) -> list[str]:
    """The server's lines about replies that it dropped."""
    return [line for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines() if "dropped the reply of" in line]
