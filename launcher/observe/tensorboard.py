"""Scalars, pictures and hyperparameters for TensorBoard."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from launcher.observe.growing import Growing

VERSION = "brain.Event:2"
PNG_SIZE = slice(16, 24)
"""Where a PNG file says how wide and high it is."""
RGBA = 4


class TensorBoard:
    """Writes to ``tensorboard/`` of the run folder; TensorBoard is imported with the first value.

    Its own writer writes from a thread, which ends where the disk is full once; here values wait for room.

    Args:
        run_dir: the run folder.
        purge: the step from which on earlier points, of a run that was interrupted, no longer count; None: they all do.
        part: shown beside the run, under this name; empty: as the run.
    """

    def __init__(self, run_dir: Path, purge: int | None = None, part: str = "") -> None:
        self._purge = purge
        self._folder = run_dir / "tensorboard" / part
        self._file: Growing | None = None

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """One point of each curve, to be written."""
        from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415 - slow to import, not needed to start

        points = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._put(step=step, summary=Summary(value=points))

    def image(self, name: str, png: bytes, step: int = 0) -> None:
        """A picture, the content of a PNG file, to be written."""
        from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415 - as above

        width, height = struct.unpack(">II", png[PNG_SIZE])
        image = Summary.Image(encoded_image_string=png, colorspace=RGBA, width=width, height=height)
        self._put(step=step, summary=Summary(value=[Summary.Value(tag=name, image=image)]))

    def hparams(self, settings: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        """The settings of the run beside its metrics, whose values are the last points of their curves, to be written.

        The writer's own ``add_hparams`` would add a point at step 0 to each curve, which hides the others.
        """
        from torch.utils.tensorboard.summary import hparams  # noqa: PLC0415 - likewise

        for summary in hparams(flat(settings), dict(metrics)):  # type: ignore[no-untyped-call]
            self._put(summary=summary)

    def write(self) -> None:
        """Write what was told.

        Raises:
            OSError: where it has to wait.
        """
        if self._file is not None:
            self._file.write()

    def _put(self, **event: Any) -> None:
        if self._file is None:
            self._file = self._opened()
        self._file.put(_record(**event))

    def _opened(self) -> Growing:
        """A new file, which begins with the format and with what it does to the points of those before it."""
        from tensorboard.compat.proto.event_pb2 import SessionLog  # noqa: PLC0415 - as above

        number = len(list(self._folder.glob("events.*")))  # beside another of the same second and process
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{number}"
        file = Growing(self._folder / name)
        file.put(_record(file_version=VERSION))
        if self._purge is not None:
            file.put(_record(step=self._purge, file_version=VERSION))
            file.put(_record(step=self._purge, session_log=SessionLog(status=SessionLog.START)))
        return file


def _record(**event: Any) -> bytes:
    """An event of now, as it stands in TensorBoard's files."""
    from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415 - as above
    from tensorboard.summary.writer.record_writer import RecordWriter  # noqa: PLC0415 - as above

    buffer = BytesIO()
    RecordWriter(buffer).write(Event(wall_time=time.time(), **event).SerializeToString())
    return buffer.getvalue()


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, bool | str | float]:
    """Nested settings as dotted names; what TensorBoard cannot show becomes text."""
    found: dict[str, bool | str | float] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found.update(flat(value, f"{prefix}{key}."))
        elif value is not None:
            found[prefix + key] = value if isinstance(value, bool | int | float | str) else str(value)
    return found
