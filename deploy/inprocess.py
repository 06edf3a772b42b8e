"""Flower's Grid in one process: no Ray, no network. The fast way on one machine, and what tests use.

The grid calls the ClientApp itself, with the same messages and the same node config that Flower's simulation would
inject. With one worker a client runs when its reply is asked for; with more, worker processes run clients side by
side. The order in which replies are folded is the round loop's, so the numbers do not depend on the workers.
"""

from __future__ import annotations

import importlib
import logging
import signal
import time
from collections import deque
from collections.abc import Iterable, Mapping
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from flwr.app import Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from deploy.fork_server import context
from deploy.shared_records import Lending, post
from deploy.virtual_nodes import POLL, RUN_ID, VirtualNodes, answer, expired

SERVER_NODE = 1
OWN_APP = "client_app.main:app"
TRAINS = ("train", "train.default")
DIED = 8  # Flower's code for a client whose process crashed


class InProcessGrid(VirtualNodes):
    """A grid of ``clients`` virtual nodes.

    Parameters
    ----------
    app : the ClientApp, or where to load it from (``module:attribute``), which worker processes need.
    run_config : what every client's context carries; its ``cohort`` says how many clients are answered together where they train.
    clients : number of virtual nodes, each one partition.
    workers : processes; 1 runs everything in this one.
    """

    def __init__(self, run_config: Mapping[str, Any], clients: int, workers: int = 1,
                 app: ClientApp | str = OWN_APP) -> None:
        if clients < 1 or workers < 1:
            raise ValueError(f"clients and workers must be 1 or more, got {clients} and {workers}")
        self._together = min(int(run_config.get("cohort", 1)), clients)
        if self._together > 1 and workers > 1:
            raise ValueError("a cohort is trained in one process; use workers = 1 with it")
        if not isinstance(app, str) and workers > 1:
            raise ValueError("an app object cannot be sent to worker processes; use workers = 1 with it, or name it as module:attribute")
        identify()
        super().__init__(clients)
        self.window = 2 * workers if workers > 1 else self._together
        self._run_config, self._app = dict(run_config), app
        self._lending = Lending() if workers > 1 else None
        self._workers = [Worker(self._run_config, clients, str(app), number, self._lending.folder)
                         for number in range(workers)] if self._lending else []
        self._cohort: Any = None
        self._ready: deque[Message] = deque()
        self._run: Any = None

    def set_run(self, run: Any) -> None:
        self._run = run

    @property
    def run(self) -> Any:
        return self._run

    def get_nodes(self) -> Iterable[Any]:
        raise NotImplementedError("the in-process engine has node ids only")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replies that are ready. One worker: the next client, or cohort of clients, runs now. More: waits until one of them is done."""
        if self._ready:
            return self._handed_out(message_ids)
        if overdue := self._overdue():
            return overdue
        if self._queue and not self._workers:
            self._ready.extend(self._answer_next())
            return self._handed_out(message_ids)
        self._feed()
        busy = {worker.connection: worker for worker in self._workers if worker.busy}
        if not busy:
            time.sleep(POLL)
            return []
        replies = [busy[connection].collect() for connection in wait(list(busy), timeout=POLL)]  # type: ignore[index]
        self._feed()
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        left, replies, start = set(self.push_messages(messages)), [], time.monotonic()
        while left and (timeout is None or time.monotonic() < start + timeout):
            for reply in self.pull_messages(left):
                if reply.metadata.reply_to_message_id in left:  # else to one that an earlier call no longer waited for
                    left.discard(reply.metadata.reply_to_message_id)
                    replies.append(reply)
        return replies

    def close(self) -> None:
        """End the worker processes, those at work too. The grid is of no use afterwards."""
        for worker in self._workers:
            worker.connection.close()
        for worker in self._workers:
            worker.close()
        self._workers.clear()
        self._queue.clear()
        self._ready.clear()
        if self._lending:
            self._lending.close()

    def __enter__(self) -> InProcessGrid:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def _answer(self, message: Message) -> Message:
        if isinstance(self._app, str):
            self._app = load(self._app)
        return answer(self._app, message, self._run_config, self.clients)

    def _answer_next(self) -> list[Message]:
        """The reply to the next message; where it is one of training, those to as many like it as a cohort has seats for."""
        group = [self._queue.popleft()]
        while len(group) < self._together and self._queue and goes_with(self._queue[0], group):
            group.append(self._queue.popleft())
        if len(group) == 1:
            return [self._answer(group[0])]
        if self._cohort is None:
            from client_app.cohort import Cohort
            from client_app.cohort_fit import fit_together

            self._cohort = Cohort(self._together, fit_together)
        return self._cohort.run([partial(self._answer, message) for message in group])

    def _handed_out(self, message_ids: Iterable[str]) -> list[Message]:
        """As many replies as were asked for: whoever asks in portions would else wait for what it has been given already."""
        count = min(len(self._ready), max(1, len(list(message_ids))))
        return [self._ready.popleft() for _ in range(count)]

    def _accept(self, message: Message) -> None:
        if self._lending:
            self._lending.lend(message)

    def _feed(self) -> None:
        for worker in self._workers:
            if self._queue and not worker.busy and not expired(self._queue[0]):
                worker.give(self._queue.popleft())


def load(reference: str) -> ClientApp:
    """The ClientApp that ``module:attribute`` names."""
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)


def goes_with(message: Message, group: list[Message]) -> bool:
    """Whether ``message`` can be answered together with ``group``: all train, each another client."""
    kinds = {m.metadata.message_type for m in (message, *group)}
    others = {m.metadata.dst_node_id for m in group}
    return kinds <= set(TRAINS) and message.metadata.dst_node_id not in others and not expired(message)


def identify() -> None:
    """Outside Flower's own processes nobody tells ``Message`` which task it belongs to."""
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = RUN_ID, 1, SERVER_NODE


class Worker:
    """One process that answers one message at a time. If it dies, its message gets an error reply and it is replaced."""

    def __init__(self, run_config: Mapping[str, Any], clients: int, app: str, number: int, folder: str) -> None:
        self._arguments = (dict(run_config), clients, app, number, folder)
        self._message: Message | None = None
        self._start()

    @property
    def busy(self) -> bool:
        return self._message is not None

    def give(self, message: Message) -> None:
        try:
            self.connection.send(message)
        except OSError:  # it died while it had nothing to do
            self.close()
            self._start()
            self.connection.send(message)
        # the content may be a whole model: only what an error reply needs is kept
        self._message = Message(metadata=message.metadata, content=RecordDict())  # type: ignore[call-overload]

    def collect(self) -> Message:
        asked, self._message = self._message, None
        try:
            return self.connection.recv()
        except (EOFError, OSError):  # OSError: it died half-way through its reply
            self.close()
            self._start()
            assert asked is not None
            return Message(Error(DIED, "fedhearth:WorkerDied: a worker process died while it trained this client"), reply_to=asked)

    def close(self) -> None:
        """End the process: it ends by itself if it waits for work, else by force, since nobody wants its reply."""
        self.connection.close()
        self._process.join(timeout=0 if self.busy else 0.2)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()

    def _start(self) -> None:
        starts = context()  # never a fork of this process: torch's threads would not survive it
        self.connection, theirs = starts.Pipe()
        self._process = starts.Process(target=work, args=(theirs, *self._arguments), daemon=True)
        self._process.start()
        theirs.close()


def work(connection: Connection, run_config: Mapping[str, Any], clients: int, app: str, number: int, folder: str) -> None:
    """The loop of worker ``number``: a message in, its reply out, until the other end closes. ``folder``: for large replies."""
    # Ctrl-C reaches the whole group of processes; the server's end decides what becomes of its workers
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    identify()
    if out := run_config.get("out"):
        # several processes append whole lines; the terminal belongs to the server's end
        logging.basicConfig(filename=Path(str(out), "run.log"), encoding="utf-8", level=logging.WARNING, force=True,
                            format="%(asctime)s %(levelname)s %(name)s [%(process)d]: %(message)s")
    loaded = load(app)
    if app == OWN_APP:  # another need not know torch
        from client_app.device import take_gpu

        take_gpu(number, str(run_config.get("device", "auto")))
    while True:
        try:
            message = connection.recv()
            connection.send(post(answer(loaded, message, run_config, clients), folder))
            del message  # it may be a whole model
        except (EOFError, OSError):  # the other end is gone
            return
