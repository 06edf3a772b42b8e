"""TensorBoard scalars and images without TensorFlow or torch: TensorBoard's own event writer, 0.3 s to import.

The event that opens a file names the first step to come, so that TensorBoard hides what an interrupted run
had written beyond the round it is resumed from.
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
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        # protobuf makes these classes at import, where no type checker sees them
        self._event: Any = vars(event_pb2)["Event"]
        self._summary: Any = vars(summary_pb2)["Summary"]
        self._writer = EventFileWriter(str(folder))
        start = vars(event_pb2)["SessionLog"](status="START")
        self._writer.add_event(self._event(session_log=start, step=first_step, wall_time=time.time()))

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Add one event with all ``scalars`` at ``step`` and bring it to disk."""
        values = [self._summary.Value(tag=tag, simple_value=float(number)) for tag, number in scalars.items()]
        event = self._event(summary=self._summary(value=values), step=step, wall_time=time.time())
        self._writer.add_event(event)
        self._writer.flush()

    def image(self, step: int, tag: str, png: bytes) -> None:
        """Add a picture at ``step`` and bring it to disk."""
        width, height = struct.unpack(">II", png[16:24])  # of the header that opens every PNG
        shown = self._summary.Image(height=height, width=width, colorspace=3, encoded_image_string=png)
        value = self._summary.Value(tag=tag, image=shown)
        self._writer.add_event(self._event(summary=self._summary(value=[value]), step=step, wall_time=time.time()))
        self._writer.flush()

    def close(self) -> None:
        """End the writer's thread."""
        self._writer.close()
