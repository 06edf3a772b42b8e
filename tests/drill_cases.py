"""The fault drills, one function each: break a deployment of three sites, and look whether what must hold holds.

A drill is a function of a cluster that is whole when it begins and when it ends; it returns what it saw, or raises
``AssertionError``. After its own claims, each checks ``drill_checks.settled``.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.deployed import SPARE, Cluster, rounds_of, summary_of
from tests.drill_checks import ABSENT, drops, settled, wait_for
from tests.faulty_site import at, plan
from tests.multihost import SERVER
from tests.running import contents

# seconds; FEDHEARTH_DRILL_DEADLINE is for a machine that is busy with other things
DEADLINE = int(os.environ.get("FEDHEARTH_DRILL_DEADLINE", "25"))
LOADER = ("--data", "tests.faulty_site:load")
FAULTY = "client-002"
# Flower takes a site that was killed for online for up to a minute; after this long it no longer does
GONE = 75.0
# a round without its missing site takes some three seconds, and the run must still be there when the site is back
ROUNDS_LEFT = 40
KILLED = "its ServerApp or the SuperLink was killed"


@contextmanager
def faulty(cluster: Cluster, faults: Mapping[int, str]) -> Iterator[Path]:
    """The last site misbehaves as planned, by round; its state directory."""
    folder = cluster.state_dir(FAULTY)
    for old in folder.glob("paused-*"):
        old.unlink()
    plan(folder, dict(faults))
    if FAULTY in cluster.running:
        cluster.stop(FAULTY)
    cluster.connect(FAULTY, *LOADER)
    try:
        yield folder
    finally:
        plan(folder, {})


def site_killed_back_at_once(cluster: Cluster) -> str:
    """SIGKILL of a site that has stored its round and not sent it; started again at once."""
    return _killed(cluster, "at-once", "pause-after 60", away=0.0)


def site_killed_back_later(cluster: Cluster) -> str:
    """SIGKILL of a site in mid-train; started again once the server has given it up."""
    return _killed(cluster, "later", "pause-before 60", away=GONE)


def _killed(cluster: Cluster, run: str, fault: str, away: float) -> str:
    with faulty(cluster, {2: fault}) as folder:
        out = cluster.submit(run, rounds=ROUNDS_LEFT, deadline=DEADLINE)
        wait_for(lambda: at(folder, 2).exists(), "the site reached round 2")
        cluster.kill(FAULTY)
        heard, killed = cluster.heard(FAULTY), time.monotonic()
        time.sleep(away)
        cluster.start_site(FAULTY, *LOADER)
        cluster.until(FAULTY, f"{FAULTY} is connected", heard)
        back = time.monotonic() - killed
        assert cluster.finished(run) == 0, cluster.told(f"submit-{run}")[-2000:]
    _ended_in_time(out, 2)
    return f"connected again {back:.0f} s after the kill; {settled(cluster, out, ABSENT)}"


def link_cut(cluster: Cluster) -> str:
    """The link to a site is cut for 90 s in mid-train, then healed."""
    assert cluster.network is not None
    with faulty(cluster, {2: "pause-after 5"}) as folder:
        out = cluster.submit("cut", rounds=ROUNDS_LEFT, deadline=DEADLINE)
        wait_for(lambda: at(folder, 2).exists(), "the site reached round 2")
        cluster.network.cut(FAULTY)
        time.sleep(90)
        cluster.network.heal(FAULTY)
        healed, done = time.monotonic(), len(rounds_of(out))
        wait_for(lambda: any(FAULTY in r["accepted"] for r in rounds_of(out)[done:]), "the site takes part again")
        back = time.monotonic() - healed
        assert cluster.finished("cut") == 0, cluster.told("submit-cut")[-2000:]
    _ended_in_time(out, 2)
    return f"takes part again {back:.0f} s after the healing; {settled(cluster, out, ABSENT)}"


def slow_site(cluster: Cluster) -> str:
    """A site that needs longer than the deadline, three rounds in a row; then it is quick again."""
    with faulty(cluster, dict.fromkeys((2, 3, 4), f"pause-after {DEADLINE + 4}")):
        out = cluster.submit("slow", rounds=8, deadline=DEADLINE)
        assert cluster.finished("slow") == 0, cluster.told("submit-slow")[-2000:]
    records = rounds_of(out)
    assert all(FAULTY not in record["accepted"] for record in records[1:4]), "a late reply was accepted"
    _ended_in_time(out, 2)
    return settled(cluster, out, ABSENT)


def server_app_killed(cluster: Cluster) -> str:
    """SIGKILL of the ServerApp in mid-round; then ``submit --resume``."""
    with faulty(cluster, {2: "pause-after 4"}) as folder:
        out = cluster.submit("app", rounds=4, deadline=4 * DEADLINE)
        wait_for(lambda: at(folder, 2).exists(), "the site reached round 2")
        server_app(cluster).kill()
        early = cluster.asked("submit", "--resume", str(out))
        assert early.returncode == 2 and "is still writing to" in early.stderr, early.stdout + early.stderr
        assert cluster.finished("app") == 1 and KILLED in cluster.told("submit-app"), cluster.told("submit-app")[-2000:]
        _resume(cluster, out)
    return settled(cluster, out, ())


def super_link_killed(cluster: Cluster) -> str:
    """SIGKILL of the SuperLink and all it started, in mid-round; started again; then ``submit --resume``."""
    with faulty(cluster, {2: "pause-after 4"}) as folder:
        out = cluster.submit("link", rounds=4, deadline=4 * DEADLINE)
        wait_for(lambda: at(folder, 2).exists(), "the site reached round 2")
        cluster.kill(SERVER)
        killed = time.monotonic()
        cluster.start_server()
        assert cluster.finished("link") == 1 and KILLED in cluster.told("submit-link"), cluster.told("submit-link")[-2000:]
        seconds = time.monotonic() - killed
        assert set(cluster.sites) <= cluster.online(), "a site did not come back by itself"
        _resume(cluster, out)
    return f"run given up by Flower {seconds:.0f} s after the kill; {settled(cluster, out, ())}"


def bad_replies(cluster: Cluster) -> str:
    """NaN, wrong shape, ten times the size, another method's tensors, and errors with a path: one a round."""
    faults = ("nan", "shape", "size", "other-slot", "raise", "raise-raw", "refused-nan")
    reasons = {"non-finite", "shape", "size", "unknown-slot", "FileNotFoundError", "client-raised", "WireViolation"}
    with faulty(cluster, dict(enumerate(faults, 1))):
        out = cluster.submit("bad", rounds=8, deadline=3 * DEADLINE)
        assert cluster.finished("bad") == 0, cluster.told("submit-bad")[-2000:]
    assert summary_of(out)["dropped"] == dict.fromkeys(reasons, 1), summary_of(out)["dropped"]
    assert len(drops(cluster.app_log(out))) == len(faults), "the server's log says nothing of the drops"
    return settled(cluster, out, reasons)


def disk_full(cluster: Cluster) -> str:
    """A site's state lies on a disk of 1 MiB, which fills up during the run and is freed later."""
    with small_disk(cluster, cluster.state_dir(FAULTY) / "disk") as disk, faulty(cluster, {}):
        out = cluster.submit("disk", rounds=16, deadline=3 * DEADLINE)
        cluster.until_round(out, 1)
        filler = fill(disk)
        wait_for(lambda: any("StoreFull" in record["dropped"] for record in rounds_of(out)), "the site reported its disk")
        last = max(r["round"] for r in rounds_of(out) if FAULTY in r["accepted"])
        assert contents(disk / FAULTY / f"v{last}.safetensors")["tensors"], "the last good version is gone"
        filler.unlink()
        assert cluster.finished("disk") == 0, cluster.told("submit-disk")[-2000:]
        return settled(cluster, out, {"StoreFull"})


def same_name(cluster: Cluster) -> str:
    """A second SuperNode says the name of a connected site, from another host: with a key of its own, and with the same."""
    name, words = cluster.sites[0], ("--partition", f"0/{len(cluster.sites)}", "--state-dir", "state-rival")
    rivals = {"rival": SPARE, "twin": name}
    cluster.start("rival", "stranger", *cluster.site_words(name, *words, "--key", f"certs/sites/{SPARE}"))
    cluster.until("rival", "is connected")
    cluster.submit("twice", rounds=1, deadline=DEADLINE)
    assert cluster.finished("twice") == 1
    assert f"two nodes call themselves {name!r}" in cluster.told("submit-twice"), cluster.told("submit-twice")[-2000:]
    cluster.stop("rival")
    out = cluster.submit("once", rounds=20, deadline=3 * DEADLINE)
    cluster.until_round(out, 1)
    heard = cluster.heard("rival")
    for who, key in rivals.items():
        cluster.start(who, "stranger", *cluster.site_words(name, *words, "--state-dir", f"state-{who}", "--key", f"certs/sites/{key}"))
    cluster.until("rival", "is connected", heard)
    cluster.until("twin", "another SuperNode uses this key")
    assert cluster.finished("once") == 0, cluster.told("submit-once")[-2000:]
    for who in rivals:
        cluster.stop(who)
    assert f"a second node calls itself {name}" in cluster.app_log(out), cluster.app_log(out)[-2000:]
    return settled(cluster, out, ())


@contextmanager
def small_disk(cluster: Cluster, where: Path) -> Iterator[Path]:
    """A disk of 1 MiB, mounted while the site is down: its host copies the mounts when a process is started there."""
    cluster.stop(FAULTY)
    where.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "fedhearth-drill", str(where)], check=True)
    try:
        yield where
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True)


def fill(disk: Path) -> Path:
    """A file that takes all the room."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return filler


def server_app(cluster: Cluster) -> psutil.Process:
    """The process of the run that is going on."""
    family = psutil.Process(cluster.running[SERVER].pid).children(recursive=True)
    return next(member for member in family if any(word.endswith("flwr-serverapp") for word in member.cmdline()))


def _resume(cluster: Cluster, out: Path) -> None:
    done = cluster.asked("submit", "--resume", str(out), "--quiet")
    assert done.returncode == 0, done.stdout + done.stderr


def _ended_in_time(out: Path, number: int) -> None:
    """Round ``number`` ended by quorum, at its deadline and not long after."""
    seconds = rounds_of(out)[number - 1]["seconds"]
    assert FAULTY not in rounds_of(out)[number - 1]["accepted"] and seconds < DEADLINE + 5, f"round {number} took {seconds:.1f} s"


DRILLS: dict[str, Callable[[Cluster], str]] = {drill.__name__: drill for drill in (
    site_killed_back_at_once, site_killed_back_later, link_cut, slow_site, server_app_killed, super_link_killed, bad_replies,
    disk_full, same_name)}
