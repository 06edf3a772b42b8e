"""Faults in a deployment: the two that matter most, short and on loopback, and all drills of ``tests/drill_cases.py``.

The drills (marked ``drill``: ``make test-deploy``) need root and take minutes, since Flower takes a killed site for
online for up to one; the short ones run wherever Flower's SuperNode does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.deployed import Cluster, deployed, rounds_of
from tests.drill_cases import DRILLS, LOADER, server_app
from tests.drill_checks import ABSENT, settled, wait_for
from tests.drills import judge, whole_cluster
from tests.faulty_site import at, plan
from tests.multihost import why_not

NO_NETWORK = why_not()
SECONDS = 20


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two sites on loopback; the second one pauses when told to."""
    with deployed(tmp_path_factory.mktemp("pair"), 2, faulty=LOADER) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with whole_cluster(tmp_path_factory.mktemp("drills")) as cluster:
        yield cluster


@pytest.mark.drill
@pytest.mark.skipif(os.name == "nt", reason="Flower's SuperNode needs POSIX signals")
def test_a_server_app_killed_in_mid_round_resumes_as_if_nothing_had_happened(pair: Cluster) -> None:
    site = pair.state_dir(pair.sites[1])
    plan(site, {2: "pause-after 3"})
    out = pair.submit("app", rounds=2, deadline=120)
    wait_for(at(site, 2).exists, "the site reached round 2")
    server_app(pair).kill()
    stopped = pair.asked("stop")  # or Flower notices by itself, after a minute
    assert stopped.returncode == 0 and f"--resume {out}" in stopped.stdout, stopped.stdout + stopped.stderr
    assert pair.finished("app") == 1 and "somebody stopped it" in pair.told("submit-app"), pair.told("submit-app")[-2000:]
    plan(site, {})
    resumed = pair.asked("submit", "--resume", str(out))
    assert resumed.returncode == 0 and "round 2/2" in resumed.stdout and "round 1/2" not in resumed.stdout, resumed.stdout + resumed.stderr
    assert settled(pair, out, ()) == "no reply dropped"


@pytest.mark.drill
@pytest.mark.skipif(os.name == "nt", reason="Flower's SuperNode needs POSIX signals")
def test_a_site_killed_in_mid_train_holds_nobody_up(pair: Cluster) -> None:
    """Comes last: the site stays away, since Flower lets it in again after a minute only (the drills wait for it)."""
    first, second = pair.sites
    site = pair.state_dir(second)
    plan(site, {1: "pause-before 60"})
    out = pair.submit("site", rounds=1, deadline=SECONDS)
    wait_for(at(site, 1).exists, "the site trains")
    pair.kill(second)
    pair.until_round(out, 1)
    (record,) = rounds_of(out)
    assert record["accepted"] == [first] and not record["void"]
    assert set(record["dropped"]) <= ABSENT and sum(record["dropped"].values()) == 1
    assert SECONDS <= record["seconds"] < SECONDS + 5
    # what is left of it is a closing evaluation, which would wait for that site once more
    assert pair.asked("stop").returncode == 0 and pair.finished("site") == 1


@pytest.mark.drill
@pytest.mark.skipif(bool(NO_NETWORK), reason=NO_NETWORK)
@pytest.mark.parametrize("name", DRILLS)
def test_drill(name: str, whole: Cluster) -> None:
    verdict = judge(name, whole)
    assert verdict.held, verdict.note
