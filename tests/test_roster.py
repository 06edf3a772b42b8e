"""Who takes part: by name, whatever nodes they have, and refused before round 1 if they do not fit together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from flwr.app import Context, Error, Message, RecordDict

import server_app.roster as roster_module
from deploy.inprocess import InProcessGrid
from deploy.virtual_nodes import FIRST_NODE
from server_app.roster import Hello, Roster
from server_app.rounds import RunFailed
from tests.flower_cases import app_of, hello

Says = Callable[[int], RecordDict | Error]


class Town(InProcessGrid):
    """A grid whose nodes come and go. ``says`` is what a node answers; a silent one answers nothing."""

    def __init__(self, nodes: Iterable[int], says: Says, silent: Iterable[int] = ()) -> None:
        super().__init__({}, 1000, app=app_of(greet=self._greet))
        self.nodes, self.says, self.silent = list(nodes), says, set(silent)
        self.greeted: list[int] = []

    def get_node_ids(self) -> Iterable[int]:
        return [FIRST_NODE + n for n in self.nodes]

    def _greet(self, message: Message, context: Context) -> Message:
        node = message.metadata.dst_node_id - FIRST_NODE
        self.greeted.append(node)
        return Message(self.says(node), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        if self._queue and self._queue[0].metadata.dst_node_id - FIRST_NODE in self.silent:
            return []
        return super().pull_messages(message_ids)


def named(**changed: Any) -> Says:
    return lambda node: hello(f"site-{node}", **changed)


def gathered(town: Town, expected: int, fraction: float = 1.0, seed: int = 0) -> Roster:
    made = Roster(seed, fraction)
    made.gather(town, expected, wait=10.0, deadline=10.0)
    return made


def test_sites_go_by_name_in_sorted_order() -> None:
    made = gathered(Town([7, 3, 5], named()), 3)
    assert made.names() == ("site-3", "site-5", "site-7") == made.sample(1)
    assert [made.node_id(name) for name in made.names()] == [FIRST_NODE + 3, FIRST_NODE + 5, FIRST_NODE + 7]
    assert made.hellos["site-3"] == Hello("site-3", 10, "ab12", (1, 8, 8), "cd34")
    assert made.node_id("site-9") is None


def test_a_draw_depends_on_seed_and_round_alone() -> None:
    one = gathered(Town(range(10), named()), 10, fraction=0.4)
    # other nodes, in another order, for the same sites
    two = gathered(Town(range(109, 99, -1), lambda node: hello(f"site-{(node * 3) % 10}")), 10, fraction=0.4)
    other = gathered(Town(range(10), named()), 10, fraction=0.4, seed=1)
    draws = [one.sample(n) for n in range(1, 21)]
    assert draws == [two.sample(n) for n in range(1, 21)] and draws != [other.sample(n) for n in range(1, 21)]
    assert all(len(set(d)) == 4 and list(d) == sorted(d) for d in draws)
    assert len(set(draws)) > 15 and set().union(*draws) == set(one.names())


@pytest.mark.parametrize(("fraction", "count"), [(0.01, 1), (0.1, 1), (0.3, 3), (0.31, 4), (1.0, 10)])
def test_how_many_are_drawn(fraction: float, count: int) -> None:
    assert len(gathered(Town(range(10), named()), 10, fraction).sample(1)) == count


def test_two_nodes_of_one_name_are_refused() -> None:
    with pytest.raises(RunFailed, match="two nodes call themselves 'ward'"):
        gathered(Town([1, 2], lambda node: hello("ward")), 2)


def test_names_that_some_disks_confuse_are_refused() -> None:
    with pytest.raises(RunFailed, match="'Ward' and 'ward' differ in upper and lower case only"):
        gathered(Town([1, 2], lambda node: hello("Ward" if node == 1 else "ward")), 2)


@pytest.mark.parametrize(("changed", "said"), [
    ({"classes": 7}, "number of classes: site-1 says 10, site-2 says 7"),
    ({"class-digest": "ff"}, "class names: site-1 says ab12, site-2 says ff"),
    ({"input-shape": "3x8x8"}, r"image shape: site-1 says \(1, 8, 8\), site-2 says \(3, 8, 8\)"),
    ({"weights-digest": "ff"}, r"weights of their frozen backbone: site-1 says cd, site-2 says ff.*\(FH-034\)"),
])
def test_clients_that_need_another_model_are_named(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(RunFailed, match=said):
        gathered(Town([1, 2], lambda node: hello(f"site-{node}", **({"weights-digest": "cd"} | changed if node == 2 else
                                                                    {"weights-digest": "cd"}))), 2)


@pytest.mark.parametrize(("answer", "said"), [
    (Error(2, "fedhearth:DataError: expected at least 2 classes: got 1"), "a client cannot take part: expected at least 2 classes: got 1"),
    (Error(8, "/secret"), "a client cannot take part: Flower says client-crashed"),
    (hello("_prototype-0"), "the 'site' of a hello is not of its form"),
    (hello("a", **{"input-shape": "8"}), "the 'input-shape' of a hello is not of its form"),
    (RecordDict(), "a hello carries one record"),
])
def test_a_client_that_cannot_take_part_ends_the_run_before_it_begins(answer: Any, said: str) -> None:
    with pytest.raises(RunFailed, match=said) as failed:
        gathered(Town([1, 2], lambda node: answer if node == 2 else hello("site-1")), 2)
    assert "secret" not in str(failed.value)


def test_too_few_clients_are_waited_for_and_then_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster_module, "POLL", 0.001)
    with pytest.raises(RunFailed, match=r"expected 3 clients, only 2 said hello within 0.05 s: site-1, site-2\. Start the others"):
        Roster(0, 1.0).gather(Town([1, 2], named()), 3, wait=0.05, deadline=5.0)


def test_those_that_come_while_waiting_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    town = Town([1], named())
    monkeypatch.setattr(roster_module.time, "sleep", lambda seconds: town.nodes.append(2))
    assert gathered(town, 2).names() == ("site-1", "site-2") and town.greeted == [1, 2]


def test_who_comes_late_is_greeted_and_who_leaves_is_offline() -> None:
    town = Town([1, 2], named())
    made = gathered(town, 2)
    town.nodes = [2, 3]
    made.refresh(town, 5.0)
    assert made.names() == ("site-1", "site-2", "site-3") and town.greeted == [1, 2, 3]
    assert [made.node_id(n) for n in made.names()] == [None, FIRST_NODE + 2, FIRST_NODE + 3]
    made.refresh(town, 5.0)
    assert town.greeted == [1, 2, 3]
    # back under its own node id, after its heart-beat was lost for a while
    town.nodes = [1, 2, 3]
    made.refresh(town, 5.0)
    assert made.node_id("site-1") == FIRST_NODE + 1


@pytest.mark.parametrize("old_still_listed", [True, False])
def test_a_site_that_restarts_keeps_its_place_under_a_new_node(old_still_listed: bool, caplog: pytest.LogCaptureFixture) -> None:
    town = Town([1, 2], lambda node: hello(f"site-{node % 10}"))
    made = gathered(town, 2)
    town.nodes = [1, 2, 11] if old_still_listed else [2, 11]
    with caplog.at_level(logging.WARNING):
        made.refresh(town, 5.0)
    # a second node of the name waits: it may be the site after a restart, or somebody else
    assert made.node_id("site-1") == FIRST_NODE + (1 if old_still_listed else 11)
    assert ("a second node calls itself site-1" in caplog.text) == old_still_listed
    town.nodes = [2, 11]
    made.refresh(town, 5.0)
    assert made.names() == ("site-1", "site-2") and made.node_id("site-1") == FIRST_NODE + 11
    assert town.greeted == [1, 2, 11]


def test_a_node_that_leaves_before_it_answers_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster_module, "POLL", 0.001)
    answers: list[RecordDict | Error] = [Error(5, "gone"), Error(3, "expired"), hello("site-2")]
    town = Town([1, 2], lambda node: answers.pop(0) if node == 2 else hello("site-1"))
    assert gathered(town, 2).names() == ("site-1", "site-2") and town.greeted == [1, 2, 2, 2]


@pytest.mark.parametrize("late", [
    hello("site-3", classes=7), hello("site-2", classes=7), hello("SITE-1"), hello("a b"), RecordDict(),
    Error(2, "fedhearth:DataError: damaged"),
])
def test_a_late_node_that_does_not_fit_never_ends_the_run(late: Any, caplog: pytest.LogCaptureFixture) -> None:
    town = Town([1, 2], lambda node: late if node == 3 else hello(f"site-{node}"))
    made = gathered(town, 2)
    town.nodes = [1, 2, 3]
    with caplog.at_level(logging.WARNING):
        made.refresh(town, 5.0)
        made.refresh(town, 5.0)
    assert made.names() == ("site-1", "site-2") and made.node_id("site-2") == FIRST_NODE + 2
    assert town.greeted == [1, 2, 3] and "is left out" in caplog.text


def test_a_silent_late_node_is_waited_for_once() -> None:
    town = Town([1], named(), silent=[2])
    made = gathered(town, 1)
    town.nodes = [1, 2]
    made.refresh(town, 0.05)
    assert len(town._queue) == 1
    made.refresh(town, 0.05)
    assert len(town._queue) == 1 and made.names() == ("site-1",)
