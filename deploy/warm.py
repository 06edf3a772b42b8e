"""Client processes that start warm: one process imports torch once, and every message gets a fork of it.

Flower starts ``flwr-clientapp`` anew for every message, and about three CPU seconds of imports with it, more than many
rounds of training take. So a site puts a small script of that name first on the PATH of its SuperNode. It hands its
words, environment and output over to a process that has imported everything slow and nothing of any run; that forks,
and the fork runs Flower's own command with those words. Nothing is shared between messages: every message still has a
process of its own, with the app's code loaded anew.

The script waits for its fork, and the fork ends when the script does, so that killing one kills both. Where no warm
process answers, the script runs Flower's command itself: slower, otherwise the same. POSIX only.
"""

from __future__ import annotations

import array
import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

COMMAND = "flwr-clientapp"
# what a client imports for any method, and what a model of torchvision's blocks adds
IMPORTS = ("flwr.supernode.cli", "numpy", "torch", "torch.optim.swa_utils", "torch.optim.sgd", "safetensors.numpy", "filelock",
           "sklearn.random_projection", "torchvision.models")
LONGEST = 1 << 20
# A script of its own, since it has to start in no time: only modules that Python has loaded anyway, or nearly.
SCRIPT = """#!{python} -SE
import array, json, os, socket, sys
try:
    line = socket.socket(socket.AF_UNIX)
    line.connect({address!r})
    words = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
    line.sendmsg([len(words).to_bytes(4, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [1, 2]))])
    line.sendall(words)
    started = line.recv(1)
except OSError:
    started = b""
if started:
    code = line.recv(1)
    sys.exit(code[0] if code else 1)
os.execv({real!r}, [{real!r}, *sys.argv[1:]])
"""


class WarmClients:
    """The warm process of one site, for as long as this is open. ``scripts`` goes first on the SuperNode's PATH."""

    def __init__(self, folder: Path, real: str, settings: Mapping[str, str]) -> None:
        self.scripts = folder / "bin"
        # the path of a socket may have about a hundred characters, a site's state directory more
        self._address = f"\0fedhearth-{os.getpid()}-{os.urandom(8).hex()}" if sys.platform == "linux" else str(folder / "warm")
        self._real, self._settings = real, dict(settings)
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> WarmClients:
        self.scripts.mkdir(parents=True, exist_ok=True)
        script = self.scripts / COMMAND
        script.write_text(SCRIPT.format(python=sys.executable, address=self._address, real=self._real), encoding="utf-8")
        script.chmod(0o700)
        words = [sys.executable, "-P", __file__, self._address.replace("\0", "@")]
        # its standard input closes when we end, however that happens, and with it the process ends
        self._child = subprocess.Popen(words, env={**os.environ, **self._settings}, stdin=subprocess.PIPE, start_new_session=True)
        return self

    def __exit__(self, *failure: object) -> None:
        assert self._child is not None and self._child.stdin is not None
        self._child.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(5)
        self._child.kill()
        self._child.wait()


def usable() -> bool:
    """Whether this platform can fork, pass descriptors and name its peers."""
    return hasattr(os, "fork") and hasattr(socket, "SCM_RIGHTS") and sys.platform == "linux"


def serve(address: str) -> None:
    """Import, then fork for every script that calls, until standard input closes."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address.replace("@", "\0", 1))
    listener.listen(16)
    for name in IMPORTS:
        with suppress(Exception):  # what is missing here is missing for the app too, which will say so
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks: they report by themselves
    while True:
        ready, _, _ = select.select([listener, 0], [], [])
        if 0 in ready and not os.read(0, 1024):
            return
        if listener in ready:
            caller, _ = listener.accept()
            if _same_user(caller) and os.fork() == 0:
                listener.close()
                _become(caller)
            caller.close()


def _same_user(caller: socket.socket) -> bool:
    credentials = array.array("i", caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return credentials[1] == os.getuid()


def _become(caller: socket.socket) -> None:
    """In the fork: what the caller would have been. Never returns."""
    code = 1
    try:
        (words, environment, folder), outputs = _told(caller)
        caller.sendall(b"+")  # from here on the script must not run the command itself too
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for ours, theirs in zip((1, 2), outputs, strict=True):
            os.dup2(theirs, ours)
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        for path in reversed(environment.get("PYTHONPATH", "").split(os.pathsep)):
            if path and path not in sys.path:
                sys.path.insert(0, path)
        sys.argv = [COMMAND, *words]
        random.seed()
        threading.Thread(target=_end_with, args=(caller,), daemon=True).start()
        code = _run()
    finally:
        with suppress(OSError):
            caller.sendall(bytes([code & 255]))
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(code)


def _run() -> int:
    from flwr.supernode.cli import flwr_clientapp

    try:
        flwr_clientapp()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


def _told(caller: socket.socket) -> tuple[tuple[list[str], dict[str, str], str], list[int]]:
    """The caller's words, environment and folder, and its standard output and error."""
    head, passed, _, _ = caller.recvmsg(4, socket.CMSG_SPACE(2 * array.array("i").itemsize))
    outputs = array.array("i")
    for _, _, data in passed:
        outputs.frombytes(data[:len(data) - len(data) % outputs.itemsize])
    size, parts = int.from_bytes(head, "big"), []
    if size > LONGEST or len(outputs) != 2:
        raise ValueError("not the script's greeting")
    while size > 0:
        parts.append(caller.recv(size))
        if not parts[-1]:
            raise ValueError("the script ended before it had said what to run")
        size -= len(parts[-1])
    words: Any = json.loads(b"".join(parts))
    return (words[0], words[1], words[2]), list(outputs)


def _end_with(caller: socket.socket) -> None:
    """The script says nothing more; its end closes the line."""
    with suppress(OSError):
        while caller.recv(64):
            pass
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    serve(sys.argv[1])
