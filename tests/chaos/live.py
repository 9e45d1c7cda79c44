"""A run from one start of the command to its end, and what can be done to it meanwhile."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from launcher.processes.signals import lives
from tests.chaos.job import START
from tests.chaos.ledger import Ledger, Line
from tests.chaos.schedule import Start

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = (
    "batch.exact=true",
    "batch.global_size=160",
    "batch.shard_rows=32",
    "batch.tail=spread",
    "data.train._target_=tests.chaos.job.numbered_digits",
    "task._target_=tests.chaos.job.Numbered",
    "model.dropout=0.2",
    "optimizer=adamw",
    "optimizer._target_=tests.chaos.job.Telling",
    "trainer.epochs=1000000",
    "trainer.evaluate_every=5",
    "checkpoint.keep=3",
)
"""Five shards, so that 2, 3 and 4 ranks have uneven shares; each row is in one step of an epoch."""
GONE_S = 10.0
"""Seconds within which nothing may be left of a run whose launcher is gone."""
END_S = 120.0
"""Seconds after which a run that does not end, or does not go on, hangs; a busy machine needs many for its imports."""


@dataclass(frozen=True)
class Job:
    """What is run.

    Attributes:
        run_dir: the run folder.
        steps: of the whole run.
        every_steps: the most steps that a fault may cost.
        ledger: listens.
    """

    run_dir: Path
    steps: int
    every_steps: int
    ledger: Ledger

    def command(self, start: Start) -> list[str]:
        """What one would type."""
        words = (
            *SETTINGS,
            f"trainer.max_steps={self.steps}",
            f"checkpoint.every_steps={self.every_steps}",
            f"checkpoint.on_error={'warn' if start.warns else 'stop'}",
            f"hydra.run.dir='{self.run_dir}'",
        )
        if not start.by_torchrun:
            own = (f"launch.processes={start.world}", f"launch.max_restarts={start.restarts}")
            return [sys.executable, "-m", "launcher", *words, *own]
        flags = (f"--nproc-per-node={start.world}", f"--max-restarts={start.restarts}")
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", *flags, "-m", "launcher", *words]

    def status(self) -> dict[str, Any]:
        """What ``status.json`` says."""
        with suppress(FileNotFoundError):
            return json.loads((self.run_dir / "status.json").read_text(encoding="utf-8"))
        return {}


class Live:
    """The processes of one start.

    Args:
        job: what is run.
        number: of the start, counted from 0.
        start: how.
        log: the file for what they print.
    """

    def __init__(self, job: Job, number: int, start: Start, log: Path) -> None:
        self.job, self.number, self.start, self.log = job, number, start, log
        self._seen: set[int] = set()
        variables = {**os.environ, "PYTHONPATH": str(ROOT), START: str(number), **job.ledger.variables()}
        self.process = subprocess.Popen(
            job.command(start), cwd=job.run_dir.parent, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        threading.Thread(target=self._copy, daemon=True).start()

    def _copy(self) -> None:
        """Write down what they print; a full disk does not close a pipe."""
        with self.log.open("wb", buffering=0) as file, self.process.stdout as pipe:
            file.writelines(pipe)

    @property
    def lines(self) -> list[Line]:
        """What its ranks told."""
        return self.job.ledger.of(self.number)

    @property
    def attempt(self) -> int:
        """The newest of which a rank told; -1: none did."""
        return max((line.attempt for line in self.lines), default=-1)

    @property
    def is_over(self) -> bool:
        """Whether its launcher is gone."""
        return self.process.poll() is not None

    @property
    def last_step(self) -> int:
        """The newest step that any rank took; 0: none was."""
        return max((line.step for line in self.lines if line.attempt == self.attempt), default=0)

    def ranks(self) -> list[int]:
        """The processes of the ranks, by rank, as far as they told of a step of the newest attempt."""
        found = {line.rank: line.process for line in self.lines if line.attempt == self.attempt}
        return [found[rank] for rank in sorted(found)]

    def reaches(self, step: int) -> bool:
        """Wait until all ranks train and ``step`` is reached; whether that happened before the end."""

        def there() -> bool:
            return self.is_over or (len(self.ranks()) == self.start.world and self.last_step >= step)

        been = (-1, -1)
        while (self.attempt, self.last_step) > been:  # it goes on
            been = (self.attempt, self.last_step)
            if self.job.ledger.wait_for(there, END_S):
                return not self.is_over
        raise HangError(f"no step after {self.last_step} for {END_S:.0f} s")

    def ends_or_restarts(self) -> bool:
        """Wait until the launcher is gone, or torchrun has started the ranks anew; whether it is gone."""
        attempt = self.attempt
        if not self.job.ledger.wait_for(lambda: self.is_over or self.attempt > attempt, END_S):
            raise HangError(f"neither over nor started anew after {END_S:.0f} s")
        return self.is_over

    def processes(self) -> list[int]:
        """The launcher, and the ranks that have told of a step."""
        return [self.process.pid, *(rank for rank in self.ranks() if rank != self.process.pid)]

    def children(self) -> list[int]:
        """All processes under the launcher, as they are now."""
        with suppress(psutil.Error):
            self._seen.update(child.pid for child in psutil.Process(self.process.pid).children(recursive=True))
        self._seen.update(line.process for line in self.lines)
        self._seen.discard(self.process.pid)
        return [child for child in self._seen if lives(child)]

    def send(self, process: int, number: int) -> None:
        """Send a signal to one of its processes, if that is still there."""
        self.children()
        with suppress(ProcessLookupError):
            os.kill(process, number)

    def limit_files(self, size: int) -> None:
        """Let no file of its processes grow beyond ``size`` bytes; -1 takes the limit away."""
        for process in [self.process.pid, *self.children()]:
            with suppress(ProcessLookupError):
                resource.prlimit(process, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def left_after(self, patience_s: float = GONE_S) -> tuple[list[int], float]:
        """Its processes that are left so long after the launcher is gone, and the seconds until all were gone."""
        began = time.monotonic()
        while (left := self.children()) and time.monotonic() < began + patience_s:
            time.sleep(0.02)
        return left, time.monotonic() - began

    def kill(self) -> None:
        """Leave nothing of it."""
        for process in [*self.children(), self.process.pid]:
            self.send(process, signal.SIGKILL)
        self.process.wait()


class HangError(Exception):
    """A run that neither goes on nor ends."""
