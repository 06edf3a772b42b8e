"""A test network on one machine: Linux network namespaces with addresses of their own, joined by a bridge.

The bridge lies in the server's namespace, so the machine's own network is not touched: nothing is left when the
namespaces are gone, and several networks with the same addresses can exist side by side. Needs root and iproute2.
"""

from __future__ import annotations

import atexit
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import psutil

SERVER = "server"
SERVER_ADDRESS = "10.77.0.1"
FIRST_SITE = 11


class NoNetwork(RuntimeError):
    """This machine cannot make such a network. The text says why."""


def why_not() -> str:
    """What this machine lacks, "" if nothing."""
    if not sys.platform.startswith("linux"):
        return "network namespaces exist on Linux only"
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    if shutil.which("ip") is None:
        return "the command ip is missing (on Debian: apt-get install iproute2)"
    try:
        Network(()).close()
    except NoNetwork as fault:
        return str(fault)
    return ""


class Network:
    """A server and hosts, by name; the first host has the address 10.77.0.11, the next 10.77.0.12, and so on."""

    def __init__(self, hosts: Sequence[str]) -> None:
        _remove_orphans()
        mark = f"{os.getpid()}-{secrets.token_hex(2)}"
        self.addresses = {SERVER: SERVER_ADDRESS, **{name: f"10.77.0.{FIRST_SITE + i}" for i, name in enumerate(hosts)}}
        self._spaces = {name: f"fh{mark}-{i}" for i, name in enumerate(self.addresses)}
        self._ports = {name: f"port{i}" for i, name in enumerate(self.addresses)}
        atexit.register(self.close)
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        for space in self._spaces.values():
            _ip("netns", "add", space)
            _ip("-n", space, "link", "set", "lo", "up")
        server = self._spaces[SERVER]
        _ip("-n", server, "link", "add", "bridge", "type", "bridge", "forward_delay", "0")
        _ip("-n", server, "addr", "add", f"{SERVER_ADDRESS}/24", "dev", "bridge")
        _ip("-n", server, "link", "set", "bridge", "up")
        for name, address in self.addresses.items():
            if name != SERVER:
                self._join(server, self._spaces[name], self._ports[name], address)

    def _join(self, server: str, space: str, port: str, address: str) -> None:
        _ip("-n", server, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("-n", server, "link", "set", port, "master", "bridge", "up")
        _ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", space, "link", "set", "eth0", "up")

    def inside(self, host: str) -> tuple[str, ...]:
        """The words before a command that make it run on ``host``; the process id stays the command's."""
        return ("ip", "netns", "exec", self._spaces[host])

    def cut(self, host: str) -> None:
        """Nothing passes between ``host`` and the others any more; nobody is told."""
        _ip("-n", self._spaces[SERVER], "link", "set", self._ports[host], "nomaster")

    def heal(self, host: str) -> None:
        """As before ``cut``."""
        _ip("-n", self._spaces[SERVER], "link", "set", self._ports[host], "master", "bridge")

    def close(self) -> None:
        """End what still runs on the hosts, and remove them."""
        atexit.unregister(self.close)
        for space in self._spaces.values():
            _remove(space)


def _remove_orphans() -> None:
    """Hosts whose maker was killed before it could remove them; the name says whose they are."""
    for line in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout.splitlines():
        found = re.match(r"(fh(\d+)-[0-9a-f]{4}-\d+)\b", line)
        if found and not psutil.pid_exists(int(found[2])):
            _remove(found[1])


def _remove(space: str) -> None:
    for _ in range(20):
        left = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True).stdout.split()
        if not left:
            break
        for pid in left:
            _kill(int(pid))
        time.sleep(0.1)
    subprocess.run(["ip", "netns", "delete", space], capture_output=True)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise NoNetwork(f"this machine makes no network namespaces: ip {' '.join(words)}: {done.stderr.strip()}")
