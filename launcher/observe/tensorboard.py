"""Scalars and hyperparameters for TensorBoard."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

log = logging.getLogger(__name__)


class TensorBoard:
    """Writes to ``tensorboard/`` of the run folder; TensorBoard is imported with the first value.

    Where the disk is full, its curves have a gap: they are a picture of what is kept elsewhere.

    Args:
        run_dir: the run folder.
        purge: the step from which on earlier points, of a run that was interrupted, no longer count; None: they all do.
    """

    def __init__(self, run_dir: Path, purge: int | None = None) -> None:
        self._purge = purge
        self._folder = run_dir / "tensorboard"
        self._writer: SummaryWriter | None = None

    @property
    def writer(self) -> SummaryWriter:
        """The writer, opened when it is first asked for."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - slow to import, not needed to start

            self._writer = SummaryWriter(str(self._folder), purge_step=self._purge)
        return self._writer

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """One point of each curve."""
        with self._gap():
            for name, value in values.items():
                self.writer.add_scalar(name, value, step)

    def hparams(self, settings: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        """The settings of the run beside its metrics, whose values are the last points of their curves.

        The writer's own ``add_hparams`` would add a point at step 0 to each curve, which hides the others.
        """
        from torch.utils.tensorboard.summary import hparams  # noqa: PLC0415 - as above

        with self._gap():
            for summary in hparams(flat(settings), dict(metrics)):  # type: ignore[no-untyped-call]
                self.writer.file_writer.add_summary(summary)  # type: ignore[attr-defined]

    def flush(self) -> None:
        """Put what is written so far on the disk."""
        if self._writer is not None:
            with self._gap():
                self._writer.flush()

    def close(self) -> None:
        """Flush what is written."""
        if self._writer is not None:
            with self._gap():
                self._writer.close()

    @contextmanager
    def _gap(self) -> Iterator[None]:
        """Where the system refuses to write, the writer is done for, and the next value opens another."""
        try:
            yield
        except OSError as error:
            log.warning("%s cannot be written: %s; its curves have a gap", self._folder, error.strerror or error)
            self._writer = self._purge = None


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, bool | str | float]:
    """Nested settings as dotted names; what TensorBoard cannot show becomes text."""
    found: dict[str, bool | str | float] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found.update(flat(value, f"{prefix}{key}."))
        elif value is not None:
            found[prefix + key] = value if isinstance(value, bool | int | float | str) else str(value)
    return found
