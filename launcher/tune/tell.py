"""What is told of the micro-batch that fits and pays: a table, advice, ``tune.json``, a picture, TensorBoard."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from launcher.configure.devices import plan_of
from launcher.configure.schema import RunConfig
from launcher.files import replace_file
from launcher.observe.logs import CONSOLE
from launcher.observe.status import to_json
from launcher.observe.tensorboard import TensorBoard
from launcher.tune.advice import Advice, Settings, advise, rows_of_statistics
from launcher.tune.advice_words import in_words, labelled
from launcher.tune.batchnorm_map import SmallestMap
from launcher.tune.examine import Examined
from launcher.tune.picture import draw, picture
from launcher.tune.plan_sizes import with_size
from launcher.tune.record import NAME, override, record, snippet
from launcher.tune.result import Tuning
from launcher.tune.table import WIDTH, answer, plain, table

log = logging.getLogger(__name__)

PICTURE = "tune.png"
PART = "tune"
"""What TensorBoard shows beside the run."""


def tell(
    tuning: Tuning,
    run: RunConfig,
    run_dir: Path,
    device: torch.device,
    ranks: int,
    examined: Examined | None = None,
) -> None:
    """On rank 0: show the answer and keep it in the run folder.

    Args:
        tuning: the answer.
        run: the settings that it was found for.
        run_dir: the run folder.
        device: of this rank.
        ranks: that train.
        examined: what was found beside the probes; None: nothing was looked for.
    """
    advice = advice_of(tuning, run, ranks, examined)
    _show_table(tuning)
    log.info("%s", "\n".join(answer(tuning)))
    if advice is not None:  # who asked for a run, and not for advice, finds it in the log
        log.info("%s", "\n".join(in_words(advice)), extra={"file_only": examined is None})
    log.info("%s", "\n".join(recommendation(tuning.recommended)))
    replace_file(run_dir / NAME, to_json(record(tuning, advice, about(run, device, ranks))) + "\n")
    png = picture(tuning)
    lacks = draw(png, run_dir / PICTURE)
    if lacks:
        log.warning("%s", lacks)
    _to_tensorboard(tuning, png, run_dir)


def advice_of(tuning: Tuning, run: RunConfig, ranks: int, examined: Examined | None) -> Advice | None:
    """What follows for the global batch; None where the rows of data.train are not known."""
    if tuning.train_rows is None:
        return None
    settings = settings_of(run, tuning.train_rows, ranks)
    advice = advise(settings, tuning.recommended)
    if examined is None:
        return advice
    found = examined.smallest_map
    rows = rows_of_statistics(settings, tuning.recommended)
    smallest = None if found is None else SmallestMap(*found, rows)
    return replace(advice, noise_scale=examined.noise_scale, smallest_map=smallest, momentum=examined.momentum)


def settings_of(run: RunConfig, n: int, ranks: int) -> Settings:
    """What of the settings bears on the batch."""
    plan, lr = plan_of(with_size(run, None), ranks), run.optimizer.get("lr")
    return Settings(
        n=n,
        global_size=plan.global_size,
        min_per_device=plan.min_per_device,
        shard_rows=plan.shard_rows,
        tail=run.batch.tail,
        devices=ranks,
        batchnorm="shard" if run.batch.exact else run.batchnorm,
        lr=float(lr) if isinstance(lr, int | float) else None,
    )


def about(run: RunConfig, device: torch.device, ranks: int) -> dict[str, Any]:
    """Where it was measured."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {"device": name, "ranks": ranks, "precision": run.trainer.precision, "torch": torch.__version__}


def recommendation(rows: int) -> list[str]:
    """The answer as one types it, and as one pastes it."""
    lines = [override(rows), "or in a config", *(f"  {line}" for line in snippet(rows).splitlines())]
    return labelled("recommended", lines)


def _show_table(tuning: Tuning) -> None:
    """In colour where the console is a wide terminal; in plain lines in the log, and elsewhere."""
    on_screen = CONSOLE.is_terminal and CONSOLE.width >= WIDTH
    if on_screen:
        CONSOLE.print(table(tuning))
    log.info("%s", "\n".join(plain(tuning)), extra={"file_only": on_screen})


def _to_tensorboard(tuning: Tuning, png: bytes | None, run_dir: Path) -> None:
    """The picture, and curves whose steps are rows of a micro-batch."""
    board = TensorBoard(run_dir, part=PART)
    if png is not None:
        board.image("tune", png)
    for probe in tuning.probes:
        values = {"rows_per_s": probe.rows_per_s if probe.fits else None, "peak_bytes": probe.peak_bytes}
        board.scalars({f"tune/{name}": value for name, value in values.items() if value is not None}, probe.rows)
    with suppress(OSError):  # a picture of what tune.json keeps
        board.write()
