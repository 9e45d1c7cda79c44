"""What rank 0 tells about a run while it runs; the other ranks tell nothing."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from launcher.files import DISK, replace_file
from launcher.observe.growing import Growing
from launcher.observe.logs import CONSOLE
from launcher.observe.status import Status, to_json, write_last, write_status
from launcher.observe.tensorboard import TensorBoard
from launcher.processes.errors import SettingsError
from samplers.words import counted

log = logging.getLogger(__name__)
METRICS = "metrics.jsonl"
FLOPS = "speed/flop_utilisation"
SPEED_AND_SIZE = ("train/rows_per_s", "train/lr", "test/rows")


@dataclass(frozen=True)
class Done:
    """How far a run is.

    Attributes:
        step: optimizer steps done.
        epoch: the epoch that the last step belongs to, counted from 0.
        rows: rows trained on so far, over all ranks.
    """

    step: int = 0
    epoch: int = 0
    rows: int = 0


class Observer:
    """Tells nothing; what all ranks but rank 0 use.

    Attributes:
        metrics: the last value of each.
    """

    metrics: Mapping[str, float] = {}

    def began(self, about: Mapping[str, str]) -> None:
        """The run begins, or continues; ``about`` are files of the run folder that tell what it is."""

    def flush(self) -> None:
        """What was told is on the disk."""

    def reached(self, done: Done) -> None:
        """A step is done."""

    def trained(
        self, done: Done, rows: int, values: Mapping[str, float], measured: Mapping[str, float] | None = None
    ) -> None:
        """A line of training metrics; the loss is the mean over so many rows, ``measured`` is told as it is named."""

    def evaluated(self, done: Done, results: Mapping[str, float]) -> None:
        """The results of an evaluation."""

    def kept(self, step: int, error: str | None) -> None:
        """The checkpoint of ``step`` was kept, or not: ``error`` tells why."""

    def ended(self, state: str, done: Done, weights_sha256: str | None, settings: Mapping[str, Any]) -> None:
        """The end of the run."""

    def preempted(self, done: Done, by: str) -> None:
        """The run stops for now; everything is kept."""

    def progress(self) -> AbstractContextManager[Any]:
        """Shows a progress bar for the length of the block."""
        return nullcontext()


class RunObserver(Observer):
    """Writes metrics.jsonl, TensorBoard and status.json, and shows progress on the console.

    Args:
        run_dir: the run folder.
        status: the status at the start; lines of later steps, of a run that was interrupted, do not count any more.
        last_step: the step at which the run ends, unless a rule stops it before; 0: nothing is trained.
        epochs: how many there will be.
        evaluates: whether there will be evaluations; without them the console shows the training metrics.
    """

    def __init__(
        self, run_dir: Path, status: Status, last_step: int = 0, epochs: int = 0, evaluates: bool = True
    ) -> None:
        self._evaluates = evaluates
        self._warned = self._marvels = False
        self._lacks_room = False
        self._lines = Growing(run_dir / METRICS)
        self._done = Done(status.step, status.epoch, status.rows)
        self._run_dir = run_dir
        self._status = status
        self._last_step = last_step
        self._epochs = epochs
        self._tensorboard = TensorBoard(run_dir, purge=status.step + 1 if status.step else 0)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=CONSOLE,
            transient=True,
            refresh_per_second=2,
            disable=not CONSOLE.is_terminal,
        )
        self._task = self._bar.add_task("steps", total=last_step, completed=status.step)
        self._since = (time.perf_counter(), status.rows)
        self._losses: list[tuple[float, int]] = []
        self._measured: list[Mapping[str, float]] = []

    @property
    def metrics(self) -> Mapping[str, float]:  # type: ignore[override]
        """The last value of each."""
        return self._status.metrics

    def began(self, about: Mapping[str, str]) -> None:
        """The run begins, or continues: nothing is left of steps that will be done again."""
        with self._must_be_written():
            for name, content in about.items():
                replace_file(self._run_dir / name, content)
            cut_after(self._run_dir / METRICS, self._status.step)
            write_status(self._run_dir, self._status)

    def flush(self) -> None:
        """What was told is on the disk; another thread may ask for it.

        Raises:
            OSError: where it cannot be written.
        """
        with suppress(OSError):  # a picture of what is kept here
            self._tensorboard.write()
        self._lines.write()
        if (self._run_dir / METRICS).exists():
            DISK.sync(self._run_dir / METRICS)
            DISK.sync(self._run_dir)

    @contextmanager
    def progress(self) -> Iterator[None]:
        """Shows a progress bar where the console is a terminal; what was seen is on the disk however it ends."""
        try:
            with self._bar:
                yield
        finally:
            with suppress(OSError):  # what ended the run matters more
                self._move(self._done)
                self._tensorboard.write()

    def reached(self, done: Done) -> None:
        """A step is done; told when there is something to tell."""
        self._done = done

    def trained(
        self, done: Done, rows: int, values: Mapping[str, float], measured: Mapping[str, float] | None = None
    ) -> None:
        """A line of training metrics, with rows per second since the last, and what was ``measured`` since then."""
        self._losses.append((values["loss"], rows))
        now = time.perf_counter()
        before, rows_before = self._since
        self._since = (now, done.rows)
        speed = (done.rows - rows_before) / (now - before)
        told = {**{f"train/{k}": v for k, v in values.items()}, "train/rows_per_s": speed}
        self._measured.append(measured or {})
        self._record(done, told, measured or {})
        if not math.isfinite(values["loss"]) and not self._warned:
            self._warned = True
            log.warning("train/loss is %s at step %d: nothing is learned from here on", values["loss"], done.step)
        self._check_flops((measured or {}).get(FLOPS, 0.0))
        if not self._evaluates:
            log.info("%s", self._line(done, {}))
        self._bar.update(self._task, completed=done.step, description=f"epoch {done.epoch + 1}/{self._epochs}")

    def _check_flops(self, utilisation: float) -> None:
        """Say once that more is computed than the device can."""
        if utilisation > 1 and not self._marvels:
            self._marvels = True
            log.warning(
                "%s is %.0f %%, which cannot be: the model computes less than was counted", FLOPS, 100 * utilisation
            )

    def evaluated(self, done: Done, results: Mapping[str, float]) -> None:
        """The results of an evaluation, as a line on the console too, with the mean loss of training since the last."""
        values = {f"test/{name}": value for name, value in results.items()}
        self._record(done, values)
        losses, self._losses = self._losses, []
        mean = sum(loss * rows for loss, rows in losses) / max(1, sum(rows for _, rows in losses))
        log.info("%s", self._line(done, {"train/loss": mean} if losses else {}))
        self._since = (time.perf_counter(), done.rows)

    def kept(self, step: int, error: str | None) -> None:
        """A checkpoint was kept, or not, as status.json tells from now on."""
        newest = self._status.checkpoint_step if error else step
        self._status = replace(self._status, checkpoint_step=newest, checkpoint_error=error)
        with suppress(OSError):  # the disk may be full; what is said about the checkpoint matters more
            self._move(self._done)

    def ended(self, state: str, done: Done, weights_sha256: str | None, settings: Mapping[str, Any]) -> None:
        """The end: status.json tells how, TensorBoard gets settings and results side by side."""
        self._status = replace(self._status, state=state, weights_sha256=weights_sha256)
        with self._must_be_written():
            self._lines.write()
            self._move(done)
        if settings:
            results = {name: v for name, v in self._status.metrics.items() if name not in SPEED_AND_SIZE}
            self._tensorboard.hparams(settings, results)
        with suppress(OSError):
            self._tensorboard.write()
        rows = f" after {counted(done.step, 'step')} and {counted(done.rows, 'row', ',')}" if done.step else ""
        log.info("%s%s; run folder %s", state, rows, self._run_dir)

    def preempted(self, done: Done, by: str) -> None:
        """The run stops for now: status.json says so, and the console how it goes on."""
        self._status = replace(self._status, state="preempted")
        with suppress(OSError):  # the checkpoint counts
            self._move(done, write_last)
            self._tensorboard.write()
        log.info(
            "preempted by %s after step %d; continue with the same hydra.run.dir: %s", by, done.step, self._run_dir
        )

    def _line(self, done: Done, means: Mapping[str, float]) -> str:
        """Where the run is, and the last value of each metric, or a mean that takes its place."""
        metrics = {**self._status.metrics, **means}
        speed, _ = metrics.pop("train/rows_per_s", None), metrics.pop("train/lr", None)
        rows = int(metrics.pop("test/rows", 0))
        words = [f"{name} {value:.4f}" for name, value in metrics.items()]
        if not self._last_step:
            return "  ".join([*words, f"({counted(rows, 'row', ',')})"])
        epoch = f"epoch {done.epoch + 1:{len(str(self._epochs))}}/{self._epochs}"
        step = f"step {done.step:{len(str(self._last_step))}}/{self._last_step}"
        return "  ".join([epoch, step, *words, *([f"{speed:,.0f} rows/s"] if speed else []), *self._waited()])

    def _waited(self) -> list[str]:
        """The share of time spent waiting for data since the last line on the console, in words."""
        measured, self._measured = [line for line in self._measured if "time/data" in line], []
        seconds = sum(line["time/interval_s"] for line in measured)
        waited = sum(line["time/data"] * line["time/interval_s"] for line in measured)
        return [f"data {waited / seconds:.0%}"] if seconds else []

    def _record(self, done: Done, values: dict[str, float], measured: Mapping[str, float] | None = None) -> None:
        all_values = {**values, **(measured or {})}
        line = {"step": done.step, "epoch": done.epoch, "rows": done.rows, **all_values}
        self._status = replace(self._status, metrics={**self._status.metrics, **values})
        self._lines.put(f"{to_json(line)}\n".encode())
        self._tensorboard.scalars({name: v for name, v in all_values.items() if name != "test/rows"}, done.step)
        try:
            self._lines.write()
            self._tensorboard.write()
            self._move(done)
        except OSError as error:
            self._wait_for_room(error)
        else:
            self._lacks_room = False

    def _wait_for_room(self, error: OSError) -> None:
        """Say once that something cannot be written now; a checkpoint is not kept before it could be."""
        if not self._lacks_room:
            log.warning("%s cannot be written: %s; it is tried again", self._run_dir, error.strerror or error)
        self._lacks_room = True

    @contextmanager
    def _must_be_written(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SettingsError(
                f"hydra.run.dir={self._run_dir} cannot be written: {error.strerror or error}; make room, and give the "
                "same hydra.run.dir again"
            ) from error

    def _move(self, done: Done, write: Callable[[Path, Status], None] = write_status) -> None:
        self._status = replace(self._status, step=done.step, epoch=done.epoch, rows=done.rows)
        write(self._run_dir, self._status)


def cut_after(path: Path, step: int) -> None:
    """Cut a file of metrics after the lines of ``step``, also behind a line that is not whole; step 0 has none."""
    if not path.exists():
        return
    size = 0
    for line in path.read_bytes().splitlines(keepends=True):
        if not 0 < _step_of(line) <= step:
            break
        size += len(line)
    os.truncate(path, size)


def _step_of(line: bytes) -> int:
    """The step of a line of metrics; 0 where it is not whole."""
    try:
        return int(json.loads(line)["step"]) if line.endswith(b"\n") else 0
    except (ValueError, KeyError, TypeError):
        return 0
