"""The settings of the profiler."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.processes.errors import at_least, one_of

WHOSE = ("first", "all")


@dataclass
class ProfileConfig:
    """What is profiled: windows of steps, for which all that CPU and device compute is recorded in RUN_DIR/trace/.

    Attributes:
        enabled: whether anything is; profile=on turns it on.
        wait: steps before each window that are not recorded.
        warmup: steps after that, one or more, which are recorded and left out, as beginning to record takes time.
        active: steps of a window.
        repeat: windows.
        shapes: whether operators of different shapes are told apart.
        memory: whether memory is recorded too.
        stacks: whether the lines of code are recorded too.
        ranks: first or all, whose steps are recorded.
        most_mb: megabytes of a compressed trace; where it would be larger, its shortest events are left out.
    """

    enabled: bool = False
    wait: int = 1
    warmup: int = 1
    active: int = 3
    repeat: int = 2
    shapes: bool = False
    memory: bool = False
    stacks: bool = False
    ranks: str = "first"
    most_mb: float = 20.0

    def __post_init__(self) -> None:
        """Check every setting by itself."""
        at_least("profile.wait", self.wait, 0)
        at_least("profile.warmup", self.warmup, 1)
        at_least("profile.active", self.active, 1)
        at_least("profile.repeat", self.repeat, 1)
        at_least("profile.most_mb", self.most_mb, 0.01)
        one_of("profile.ranks", self.ranks, WHOSE)
