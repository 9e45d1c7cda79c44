"""BatchNorm layers that take their statistics in another way, and else stay of the class that they were."""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class ConvertedBatchNorm(_BatchNorm):
    """A layer with a class that ``converted_class`` made.

    Attributes:
        made_of: how it takes its statistics, and the class that it had, of which it is still an instance.
    """

    made_of: ClassVar[tuple[type[Any], type[Any]]]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """A class that was made cannot be found by its name: pickle what it was made of."""
        reduced = super().__reduce_ex__(protocol)
        return (_blank, self.made_of, *reduced[2:])

    def tracked(self) -> list[Tensor]:
        """The running mean and variance that a forward in training moves, or none."""
        running = (self.running_mean, self.running_var) if self.track_running_stats else ()
        return [buffer for buffer in running if buffer is not None]

    def next_momentum(self) -> float:
        """Count one more forward, and say what part of the running statistics it makes up."""
        if self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                return 1.0 / float(self.num_batches_tracked)
        return self.momentum or 0.0


@cache
def converted_class(way: type[Any], kind: type[Any]) -> type[ConvertedBatchNorm]:
    """The class that does as ``way`` and else is a ``kind``: ShardBatchNorm2d of ShardBatchNorm and BatchNorm2d."""
    name = way.__name__.removesuffix("BatchNorm") + kind.__name__
    return type(name, (way, kind), {"__module__": __name__, "__doc__": way.__doc__, "made_of": (way, kind)})


def _blank(way: type[Any], kind: type[Any]) -> ConvertedBatchNorm:
    made = converted_class(way, kind)  # type: ignore[arg-type]  # a class is hashable
    return made.__new__(made)


class AnyBatchNorm(_BatchNorm):
    """BatchNorm of any number of dimensions, as SyncBatchNorm is, which not every device has."""

    _check_input_dim = nn.SyncBatchNorm._check_input_dim  # noqa: SLF001 - the same check
