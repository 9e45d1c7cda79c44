"""The settings of sweeps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from launcher.processes.errors import at_least, one_of

ON_FAILURE = ("continue", "stop")


@dataclass
class SweepConfig:
    """Many runs from one command, with ``-m``.

    Attributes:
        parallel: jobs at a time, each on devices of its own; null: on CUDA as many as find devices, on the CPU one.
        metric: what a job is judged by: accuracy where the highest is best, -loss where the lowest is. null: nothing.
        job_timeout_s: seconds after which a job is stopped, and counts as failed; null: never.
        on_failure: continue with the other jobs; stop starting jobs after the first that failed, or after so many.
        resume: whether a sweep whose folder holds one already, of the same jobs, goes on with those that are missing.
    """

    parallel: int | None = None
    metric: str | None = None
    job_timeout_s: float | None = None
    on_failure: Any = "continue"
    resume: bool = True

    def __post_init__(self) -> None:
        """Check every setting by itself."""
        at_least("sweep.parallel", self.parallel, 1)
        at_least("sweep.job_timeout_s", self.job_timeout_s, 1)
        if type(self.on_failure) is not int:
            one_of("sweep.on_failure", self.on_failure, ON_FAILURE)
        else:
            at_least("sweep.on_failure", self.on_failure, 1)

    @property
    def most_failures(self) -> float:
        """How many jobs may fail before no more are started."""
        return {"continue": math.inf, "stop": 1.0}.get(self.on_failure) or float(self.on_failure)
