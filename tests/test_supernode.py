"""Both sides of a deployment without Flower running: what is told to it, what is refused, how a site is kept alive."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from flwr.common.config import parse_config_args

import deploy.supernode as supernode
from client_app.node import open_node
from deploy.certs import Certs, make
from deploy.cli import main
from deploy.flower_command import FlowerCommand, end
from deploy.reach import look
from deploy.state_dir import open_to_others, private_directory
from deploy.superlink import check_exposure, superlink_command
from deploy.supernode import Supervision, environment, node_config
from strategies.config import ConfigError, RunConfig


def options(**changed: Any) -> argparse.Namespace:
    given = {"site": "ward-a", "state_dir": Path("/state"), "data": "", "device": "", "partition": None, "threads": 1,
             "module_path": Path("/site"), **changed}
    return argparse.Namespace(**given)


def test_what_a_site_says_arrives_in_the_app() -> None:
    told = node_config(options(data="npz:/my data/a=b #1.npz", device="cpu"))
    found = parse_config_args([told])
    assert found == {"site": "ward-a", "state-dir": "/state", "data": "npz:/my data/a=b #1.npz", "device": "cpu"}
    node = open_node(found, RunConfig(clients=3))
    assert (node.name, node.data, node.state_dir, node.device, node.simulated) == (
        "ward-a", "npz:/my data/a=b #1.npz", Path("/state"), "cpu", False)


def test_a_site_can_be_a_part_of_a_data_set() -> None:
    node = open_node(parse_config_args([node_config(options(site="client-001", partition="1/3"))]), RunConfig(clients=3))
    assert (node.name, node.index, node.count, node.simulated) == ("client-001", 1, 3, False)


@pytest.mark.parametrize(("changed", "said"), [
    ({"site": "ward a"}, "a site name must be"), ({"site": "../up"}, "a site name must be"),
    ({"data": 'npz:/a"b'}, "--data must not contain quotes"), ({"state_dir": Path("/it's")}, "--state-dir must not contain quotes"),
    ({"partition": "3/3"}, "--partition expects I/N"), ({"partition": "1"}, "--partition expects I/N"),
    ({"partition": "a/b"}, "--partition expects I/N"),
])
def test_what_flowers_notation_cannot_carry_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        node_config(options(**changed))


def test_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = parse_config_args([node_config(options(state_dir=Path("state"), data="npz:data.npz"))])
    assert found["state-dir"] == str(tmp_path / "state") and found["data"] == f"npz:{tmp_path / 'data.npz'}"
    assert parse_config_args([node_config(options(data="loader:load"))])["data"] == "loader:load"


@pytest.mark.parametrize(("device", "told", "visible"), [
    ("", None, None), ("cpu", "cpu", ""), ("cuda", "cuda", None), ("cuda:1", "cuda:0", "1"),
])
def test_a_site_sees_its_own_gpu_only(device: str, told: str | None, visible: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert parse_config_args([node_config(options(device=device))]).get("device") == told
    assert environment(options(device=device)).get("CUDA_VISIBLE_DEVICES") == visible


def test_visible_devices_of_the_user_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert "CUDA_VISIBLE_DEVICES" not in environment(options(device="cuda:1"))
    assert parse_config_args([node_config(options(device="cuda:1"))])["device"] == "cuda:1"


def test_a_sites_own_modules_are_found_and_threads_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/else", "/site"]))
    found = environment(options(threads=3))
    assert found["PYTHONPATH"] == os.pathsep.join(["/site", "/else"]) and found["OMP_NUM_THREADS"] == "3"
    with pytest.raises(ConfigError, match="--threads"):
        environment(options(threads=0))


def test_the_command_shown_is_the_command_run(tmp_path: Path) -> None:
    code = "import os, sys; print(os.environ['SAID'], sys.argv[1:])"
    command = FlowerCommand((sys.executable, "-c", code, "--a", "two words", "--b", "it's"), {"SAID": "a $b"})
    by_shell = subprocess.run(["sh", "-c", command.shown()], capture_output=True, text=True, check=True).stdout
    child = command.start(stdout=subprocess.PIPE)
    assert child.communicate()[0].decode() == by_shell == """a $b ['--a', 'two words', '--b', "it's"]\n"""


def test_one_that_does_not_listen_is_killed_with_all_it_started() -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    parent = ("import signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
              f"subprocess.run([sys.executable, '-c', {deaf!r}])")
    child = FlowerCommand((sys.executable, "-c", parent)).start(stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == b"up\n"
    end(child, grace=0.2)
    assert child.returncode == -signal.SIGKILL and child.stdout.read() == b""
    child.stdout.close()


# what a SuperNode says, in the order of its lives; a life that ends with 0 asks for the end of it all
def lives(*said: str) -> Iterator[FlowerCommand]:
    for text in said:
        yield FlowerCommand((sys.executable, "-c", f"print({text!r}); raise SystemExit(1)"))


def supervised(monkeypatch: pytest.MonkeyPatch, *said: str) -> list[float]:
    """Live through ``said``; the delays between the lives."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    watch, waited, commands = Supervision("ward-a", "127.0.0.1:1", None, os.open(os.devnull, os.O_RDONLY)), [], lives(*said)
    flag = watch._stop.wait

    def wait(seconds: float) -> bool:
        if seconds < 1:
            return flag(0.01)
        waited.append(seconds)
        if len(waited) == len(said):
            os.kill(os.getpid(), signal.SIGTERM)
        return flag(0)

    monkeypatch.setattr(watch._stop, "wait", wait)
    try:
        assert watch.run(lambda: next(commands)) == 0
    finally:
        os.close(watch._lock)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return waited


def test_a_site_is_started_again_with_growing_patience(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    refused = "[code: 2004] Failed to activate SuperNode."
    assert supervised(monkeypatch, *[refused] * 5) == [5.0, 10.0, 20.0, 20.0, 20.0]
    told = capsys.readouterr().out
    # once a minute is enough
    assert told.count("the server does not let this site in") == 1 and told.count("it is started again in") == 5
    assert told.endswith("fedhearth: stopped\n")


def test_patience_is_new_after_a_site_was_connected(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    refused = "[code: 2004] Failed to activate SuperNode."
    assert supervised(monkeypatch, refused, refused, "INFO : SuperNode ID: 7", refused) == [5.0, 10.0, 5.0, 10.0]
    told = capsys.readouterr().out
    assert "ward-a is connected" in told and "still counts this site as online from before" in told


def test_delays_are_bounded() -> None:
    assert list(islice(supernode._delays(), 6)) == [5.0, 10.0, 20.0, 20.0, 20.0, 20.0]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def answer(listener: socket.socket, certs: Certs | None) -> str:
    """The address of a server that takes one connection, with TLS or (without ``certs``) in plain text."""

    def serve() -> None:
        with suppress(OSError), listener.accept()[0] as plain:
            if certs is None:
                plain.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                return
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certs.server, certs.server_key)
            context.wrap_socket(plain, server_side=True).close()

    threading.Thread(target=serve, daemon=True).start()
    return f"127.0.0.1:{listener.getsockname()[1]}"


def test_why_there_is_no_answer(tmp_path: Path, listener: socket.socket) -> None:
    make(tmp_path / "ours", [], [])
    make(tmp_path / "theirs", [], [])
    ours, theirs = Certs(tmp_path / "ours"), Certs(tmp_path / "theirs")
    assert look(answer(listener, ours), ours.ca).reached
    other = look(answer(listener, theirs), ours.ca)
    assert other.hopeless and "not to be trusted with this ca.crt" in other.text
    plain = look(answer(listener, None), ours.ca)
    assert plain.hopeless and "not in TLS" in plain.text
    insecure = look(answer(listener, ours), None)
    assert insecure.hopeless and "refuses plain text; leave --insecure out" in insecure.text
    assert look(answer(listener, None), None).reached
    none = look(answer(listener, ours), tmp_path / "nowhere.crt")
    assert none.hopeless and "is missing or no certificate" in none.text


def test_why_nobody_is_there(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = f"127.0.0.1:{gone.getsockname()[1]}"
    found = look(address, None)
    assert not found.reached and not found.hopeless and f"nothing listens at {address}" in found.text
    with pytest.raises(ValueError, match="HOST:PORT"):
        look("127.0.0.1", None)


@pytest.mark.parametrize("fleet", ["0.0.0.0:9092", "192.0.2.7:9092", "[::]:9092", "fl.example.org:9092"])
def test_no_protection_where_others_can_come_needs_two_words(fleet: str) -> None:
    with pytest.raises(ConfigError, match="nothing is encrypted.*--i-know-anyone-can-join"):
        check_exposure(fleet, insecure=True, known=False)
    check_exposure(fleet, insecure=True, known=True)
    check_exposure(fleet, insecure=False, known=False)


@pytest.mark.parametrize("fleet", ["127.0.0.1:9092", "localhost:9092", "[::1]:9092", "127.1.2.3:1"])
def test_no_protection_is_allowed_on_this_machine(fleet: str) -> None:
    check_exposure(fleet, insecure=True, known=False)


@pytest.mark.parametrize("fleet", ["9092", "host", ":9092", "host:", "host:99999"])
def test_a_fleet_address_has_both_parts(fleet: str) -> None:
    with pytest.raises(ConfigError, match="ADDRESS:PORT"):
        check_exposure(fleet, insecure=False, known=False)


def test_the_server_is_secure_and_controlled_from_this_machine_alone(tmp_path: Path) -> None:
    make(tmp_path / "certs", [], [])
    words = " ".join(superlink_command(Certs(tmp_path / "certs"), tmp_path / "state", "0.0.0.0:9092", 8000, insecure=False).words)
    assert "--enable-supernode-auth" in words and "--host 127.0.0.1 --port 8000" in words and "--insecure" not in words
    assert "--disable-runtime-dependency-installation" in words and f"--database {tmp_path / 'state' / 'link.db'}" in words
    with pytest.raises(ConfigError, match="make it with fedhearth certs"):
        superlink_command(Certs(tmp_path / "none"), tmp_path / "state", "0.0.0.0:9092", 8000, insecure=False)


@pytest.mark.skipif(os.name == "nt", reason="modes mean nothing there")
def test_a_state_directory_is_made_for_its_user_and_one_that_is_there_is_judged(tmp_path: Path) -> None:
    made = private_directory(tmp_path / "sites" / "north")
    assert stat.S_IMODE(made.stat().st_mode) == 0o700 and open_to_others(made) == ""
    made.chmod(0o750)
    assert stat.S_IMODE(private_directory(made).stat().st_mode) == 0o750, "whoever made it may have meant it"
    assert "can be read by others (mode 0750)" in open_to_others(made) and open_to_others(made).endswith(f"chmod 700 {made}")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot make the state directory .*file/state: Not a directory"):
        private_directory(tmp_path / "file" / "state")


@pytest.mark.parametrize(("words", "said"), [
    (["supernode", "--superlink", "127.0.0.1:1", "--site", "a", "--state-dir", "s"], "--ca: certs/ca.crt does not exist"),
    (["supernode", "--superlink", "127.0.0.1", "--site", "a", "--state-dir", "s", "--insecure"], "expected HOST:PORT"),
    (["superlink", "--insecure"], "--i-know-anyone-can-join"),
    (["superlink"], "certs/ca.crt does not exist"),
    (["status"], "certs/ca.crt does not exist"),
    (["status", "--insecure", "--link", "127.0.0.1:1"], "no SuperLink answers at 127.0.0.1:1"),
])
def test_what_cannot_start_says_why_and_ends_with_2(words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert said in capsys.readouterr().err
