"""TensorBoard scalars and images without TensorFlow or torch: TensorBoard's own records, 0.3 s to import.

Its ``EventFileWriter`` writes in a thread of its own, which learns of a full disk later than its caller does and outlives a run that
failed; here every event is in the file before the call returns, and nothing stays open. The event that opens a file names the first step
to come, so that TensorBoard hides what an interrupted run had written beyond the round it is resumed from.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class ScalarLog:
    """Appends named numbers to an event file in ``folder``; ``first_step`` is the first still to come."""

    def __init__(self, folder: Path, first_step: int) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        # protobuf makes these classes at import, where no type checker sees them
        self._event: Any = vars(event_pb2)["Event"]
        self._summary: Any = vars(summary_pb2)["Summary"]
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard knows a file by "tfevents" and reads those of a folder in the order of their names
        now = time.time_ns()
        name = f"events.out.tfevents.{now // 10**9:010d}.{now % 10**9:09d}"
        self._file, self._writer = folder / name, RecordWriter
        self._add(file_version="brain.Event:2")
        self._add(session_log=vars(event_pb2)["SessionLog"](status="START"), step=first_step)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Add one event with all ``scalars`` at ``step`` and bring it to disk."""
        values = [self._summary.Value(tag=tag, simple_value=float(number)) for tag, number in scalars.items()]
        self._add(summary=self._summary(value=values), step=step)

    def image(self, step: int, tag: str, png: bytes) -> None:
        """Add a picture at ``step`` and bring it to disk."""
        width, height = struct.unpack(">II", png[16:24])  # of the header that opens every PNG
        shown = self._summary.Image(height=height, width=width, colorspace=3, encoded_image_string=png)
        self._add(summary=self._summary(value=[self._summary.Value(tag=tag, image=shown)]), step=step)

    def _add(self, **event: Any) -> None:
        with self._file.open("ab") as records:
            self._writer(records).write(self._event(wall_time=time.time(), **event).SerializeToString())
