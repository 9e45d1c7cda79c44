"""``mode=plan``: what a run would be, without starting it."""

from __future__ import annotations

import sys
from pathlib import Path

from launcher.configure.devices import in_config_words, plan_of
from launcher.configure.parts import build_dataset
from launcher.configure.schema import RunConfig
from launcher.processes.errors import SettingsError


def plan_text(run: RunConfig, world_size: int, run_dir: Path, notes: list[str]) -> str:
    """Batch plan, ranks, rows and folder as text; the training rows are opened to count them.

    Raises:
        SettingsError: where the rows cannot be opened or make no step.
    """
    dataset = build_dataset(run, "train")
    plan = plan_of(run.batch, world_size)
    try:
        report = plan.report(len(dataset), run.batch.tail)  # type: ignore[arg-type]
    except ValueError as error:
        raise SettingsError(in_config_words(str(error))) from error
    steps = min(run.trainer.max_steps or sys.maxsize, report.steps(run.trainer.epochs))
    shares = [f"  rank {rank}         {_rows(plan.micro_batches(rank))}" for rank in range(min(plan.active, 16))]
    more = [f"  ... and {plan.active - len(shares)} more"] if plan.active > len(shares) else []
    return "\n".join(
        [
            *(f"note: {note}" for note in notes),
            str(report),
            *shares,
            *more,
            f"run              {run.trainer.epochs} epochs, {steps} steps",
            f"run folder       {run_dir}",
            "mode=plan: nothing was started, nothing was written",
        ]
    )


def _rows(sizes: tuple[int, ...]) -> str:
    return " + ".join(map(str, sizes)) + " rows"
