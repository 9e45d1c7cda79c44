"""The settings of ``mode=tune`` and of ``batch.max_per_device=auto``."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.processes.errors import SettingsError, at_least

MOST_PROBES = 8
LEAST_PROBES = 3
"""Two for a line through memory, and one for where it leads."""


@dataclass
class TuneConfig:
    """Which micro-batch fits and pays, found by trying.

    Attributes:
        max_rows: the largest micro-batch that is tried; null: the rows of data.train.
        max_probes: how many sizes are tried at most, 3 to 8.
        timeout_s: seconds that trying one size may take; sizes that would take longer are not tried.
        fast_enough: the part of the most rows per second, above 0 and below 1, that the smallest micro-batch that is
            fast enough has.
    """

    max_rows: int | None = None
    max_probes: int = MOST_PROBES
    timeout_s: float = 600.0
    fast_enough: float = 0.95

    def __post_init__(self) -> None:
        """Check every setting by itself."""
        at_least("tune.max_rows", self.max_rows, 1)
        at_least("tune.max_probes", self.max_probes, LEAST_PROBES)
        if self.max_probes > MOST_PROBES:
            raise SettingsError(f"tune.max_probes={self.max_probes} is too large: the most is {MOST_PROBES}")
        at_least("tune.timeout_s", self.timeout_s, 1)
        if not 0 < self.fast_enough < 1:
            raise SettingsError(f"tune.fast_enough={self.fast_enough} is not between 0 and 1; 0.95 is usual")
