"""What happens where a loss or a gradient is not finite: ``trainer.on_nonfinite``; and weights are never kept then."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

from launcher.processes.errors import PlainError

log = logging.getLogger(__name__)

MOST_OVERFLOWS = 40
"""Steps in a row that loss scaling may leave out; each halves the scale, which begins at 2**16."""


class NonFiniteError(PlainError):
    """A loss, a gradient or a weight is infinite or not a number, and training on would be in vain."""


@dataclass
class FiniteSteps:
    """Lets the optimizer step where all gradients are finite.

    Gradients are looked at after they were reduced, so that all ranks see and decide the same; one number is read from
    the device for it. Those of a loss that is not finite are not, since the step sees to that.

    Attributes:
        skips: whether other steps are left out; else they are an error.
        most_in_a_row: steps left out one after the other, before that is an error too.
        where: names the step and its rows.
        skipped: steps left out so far.
        in_a_row: of them, those since the last step that was taken.
    """

    skips: bool = False
    most_in_a_row: int = 0
    where: Callable[[], str] = field(default=lambda: "a step")
    skipped: int = 0
    in_a_row: int = 0

    def state_dict(self) -> dict[str, int]:
        """The counts."""
        return {"skipped": self.skipped, "in_a_row": self.in_a_row}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on counting from ``state``."""
        self.skipped, self.in_a_row = state["skipped"], state["in_a_row"]

    def allow(self, model: nn.Module, losses: Sequence[Tensor]) -> bool:
        """Whether the optimizer may step.

        Args:
            model: with the gradients of the global batch.
            losses: of this rank's micro-batches.

        Raises:
            NonFiniteError: on every rank, where it may not and that is not to be passed over.
        """
        if gradients_are_finite(model):
            self.in_a_row = 0
            return True
        self.skipped, self.in_a_row = self.skipped + 1, self.in_a_row + 1
        found = f"the gradient of {self.where()} is not finite; {_of_ranks(losses)}"
        if not self.skips:
            raise NonFiniteError(f"{found}; trainer.on_nonfinite=skip leaves such steps out")
        if self.in_a_row > self.most_in_a_row:
            raise NonFiniteError(
                f"{found}; {self.in_a_row} steps in a row were left out, and trainer.max_skipped={self.most_in_a_row}"
            )
        log.warning("step left out: %s", found)
        return False

    def scaled(self, taken: bool) -> None:
        """Count a step that loss scaling took or left out, which it decides alike on all ranks.

        Raises:
            NonFiniteError: on every rank, where it leaves out more than can be put down to the scale.
        """
        self.in_a_row = 0 if taken else self.in_a_row + 1
        if self.in_a_row > MOST_OVERFLOWS:
            raise NonFiniteError(
                f"the gradient of {self.where()} is not finite, nor are those of the {MOST_OVERFLOWS} steps before it, "
                "however small trainer.precision=fp16 scales the loss: it is not finite itself; look at those rows, or "
                "set trainer.precision=bf16"
            )


def gradients_are_finite(model: nn.Module) -> bool:
    """Whether no gradient holds an infinity or something that is not a number."""
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for gradient in (p.grad for p in model.parameters() if p.grad is not None):
        dense = gradient.coalesce().values() if gradient.is_sparse else gradient
        dense = torch.view_as_real(dense) if dense.is_complex() else dense
        kinds.setdefault((dense.device, dense.dtype), []).append(dense)
    return all(_are_finite(gradients, device) for (device, _), gradients in kinds.items())


def check_weights(model: nn.Module, newest: Callable[[], str | None]) -> None:
    """Refuse to keep weights that are not finite: nothing good comes of them any more.

    Args:
        model: not wrapped; its weights are the same on all ranks.
        newest: gives the checkpoint that was kept last.

    Raises:
        NonFiniteError: on every rank, naming the first such parameter.
    """
    bad = next((name for name, p in model.named_parameters() if p.requires_grad and not p.isfinite().all()), None)
    if bad is not None:
        found = newest()
        kept = f"the newest checkpoint is {found}" if found else "there is no checkpoint"
        raise NonFiniteError(
            f"the weights are not finite any more, first of all in {bad}, although the gradients were: they are not "
            f"kept, and {kept}; lower optimizer.lr or set trainer.clip_norm"
        )


def _are_finite(gradients: list[Tensor], device: torch.device) -> bool:
    """The same for gradients of one kind, by what torch's GradScaler uses, here with a scale of one."""
    found = torch.zeros(1, device=device)
    torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, torch.ones(1, device=device))
    return not bool(found)


def _of_ranks(losses: Sequence[Tensor]) -> str:
    """Whose losses are not finite; a collective."""
    mine = bool(torch.stack(list(losses)).isfinite().all())
    everyone = [mine]
    if dist.is_initialized():
        everyone = [mine] * dist.get_world_size()
        dist.all_gather_object(everyone, mine)
    bad = [str(rank) for rank, finite in enumerate(everyone) if not finite]
    return f"nor are losses on rank{'s' * (len(bad) > 1)} {', '.join(bad)}" if bad else "all losses are"
