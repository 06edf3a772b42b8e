"""Every kind of damaged data (the table of ``tests/damaged_data.py``): told at home before a run, and harmless in one."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from flwr.app import ArrayRecord, Context, Message, RecordDict

from client_app.main import app
from deploy.cli import main
from deploy.inprocess import InProcessGrid
from deploy.run_log import logged
from deploy.virtual_nodes import FIRST_NODE
from server_app.main import serve
from server_app.roster import CannotStart
from tests import damaged_data
from tests.damaged_data import FOLDER, KINDS, SECRETS, Damage, npz
from tests.running import SMALL, forget

SITES = ("ward-a", "ward-b")
by_kind = pytest.mark.parametrize("damage", KINDS, ids=lambda damage: damage.name)


class Sites(InProcessGrid):
    """Two sites with data of their own, as on separate machines: what their app logs goes to their own logs."""

    def __init__(self, run_config: Mapping[str, Any], data: Mapping[str, str], state: Path) -> None:
        super().__init__(run_config, len(data))
        self.data, self.state = list(data.items()), state
        self.seen: list[tuple[Message, Message]] = []
        self.own = _Kept()

    def _answer(self, message: Message) -> Message:
        site, uri = self.data[message.metadata.dst_node_id - FIRST_NODE]
        context = Context(1, message.metadata.dst_node_id, {"site": site, "data": uri, "state-dir": str(self.state / site)}, RecordDict(),
                          dict(self._run_config))
        root = logging.getLogger()
        servers, root.handlers[:] = list(root.handlers), [self.own]
        try:
            reply = app(message, context)
        finally:
            root.handlers[:] = servers
        self.seen.append((message, reply))
        return reply


class _Kept(logging.Handler):
    """A site's own log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(logging.Formatter("%(levelname)s %(message)s").format(record))


def texts(message: Message) -> Iterator[str]:
    """All that a message says in words, and its tensors' bytes as if they were words."""
    if message.has_error():
        yield message.error.reason or ""
        return
    for name, record in message.content.items():
        yield name
        items: Any = record.items()
        for key, value in items:
            yield f"{key} = {'' if isinstance(record, ArrayRecord) else value}"
            yield value.data.decode("latin-1") if isinstance(record, ArrayRecord) else ""


def words(damage: Damage, partner: str) -> list[str]:
    """The arguments of ``fedhearth data check`` for this kind."""
    agreed = [*damage.words, partner] if damage.words == ("--expect",) else list(damage.words)
    return [*(word for key, value in damage.settings.items() for word in ("-c", f"{key}={value}")), *agreed]


@by_kind
def test_the_check_names_it(damage: Damage, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home, other = tmp_path / FOLDER, tmp_path / "other"
    home.mkdir()
    other.mkdir()
    partner = (damage.partner or npz())(other)
    assert main(["data", "check", damage.make(home), *words(damage, partner)]) == damage.code
    told = capsys.readouterr()
    assert not [piece for piece in damage.says if piece not in told.out], told.out
    assert "Traceback" not in told.out + told.err
    assert ("STOP" in told.out) == bool(damage.code)


@by_kind
def test_a_run_ends_before_round_1_or_counts_it(damage: Damage, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home, other, out = tmp_path / FOLDER, tmp_path / "other", tmp_path / "run"
    for folder in (home, other, out):
        folder.mkdir()
    data = {"ward-a": (damage.partner or npz())(other), "ward-b": damage.make(home)}
    config = {**SMALL, "dataset": "digits", "clients": 2, "rounds": 1, "method": "fedper", "quorum": 1.0, "out": str(out),
              **damage.settings}
    grid, summary, failure = Sites(config, data, tmp_path / "state"), {}, ""
    forget()
    with logged(out / "run.log"), patch("server_app.report.page", lambda found: ""), \
            patch("server_app.report.write_split_png", lambda split, path: None):
        try:
            summary = serve(grid, Context(1, 1, {}, RecordDict(), config), engine="inprocess")
        except CannotStart as error:
            failure = str(error)
    asked = [message.metadata.message_type for message, _ in grid.seen]
    if damage.told:
        assert damage.told in failure and "ward-b" in failure
        assert any(line.startswith(("ERROR", "WARNING")) for line in grid.own.lines) or "clients differ in" in failure
        assert set(asked) == {"query.hello"}
    else:
        assert not failure and summary["dropped"] == {} and asked.count("train") == 2
        assert summary["data_warnings"] == {kind: ["ward-b"] for kind in damage.warned}
        assert any(line.startswith("WARNING") for line in grid.own.lines)
    said = [*(text for _, reply in grid.seen for text in texts(reply)), failure, (out / "run.log").read_text(), *capsys.readouterr(),
            *(path.read_text() for path in out.glob("*.json")), *(path.read_text() for path in out.glob("*.csv"))]
    assert not [(secret, text[:200]) for text in said for secret in SECRETS if secret in text]


@pytest.mark.parametrize(("kind", "word"), [("test-is-train", "9 of 9 test images"), ("twin-names", "'kq-naevus' = 'Kq-Naevus '"),
                                            ("cut-archive", "kq-patient-17.npz"), ("cut-jpeg", "kq-patient-17-03.jpg"),
                                            ("failing-loader", "kq-melanoma = 91377")])
def test_what_stays_at_home_is_in_the_sites_own_log(kind: str, word: str, tmp_path: Path) -> None:
    """The counterpart, without which the scan above would prove nothing: the words are there for the person at the site."""
    damage = next(damage for damage in KINDS if damage.name == kind)
    uri = damage.make(tmp_path)
    config = {**SMALL, "dataset": "digits", "clients": 1, **damage.settings, "out": str(tmp_path)}
    grid = Sites(config, {"ward-b": uri}, tmp_path / "state")
    forget()
    with pytest.raises(CannotStart):
        serve(grid, Context(1, 1, {}, RecordDict(), config), engine="inprocess")
    assert any(word in line for line in grid.own.lines)


def test_the_table_lists_every_kind() -> None:
    listed = [line.split()[0] for line in (damaged_data.__doc__ or "").splitlines() if "  " in line and not line.startswith("=")]
    assert listed[1:] == [damage.name for damage in KINDS] and len(KINDS) >= 20
