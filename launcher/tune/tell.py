"""What is told of the micro-batch that fits and pays: some lines, and ``tune.json``."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path

from launcher.configure.schema import RunConfig
from launcher.files import replace_file
from launcher.observe.status import to_json
from launcher.tune.result import Tuning
from launcher.tune.words import in_bytes
from samplers.words import counted

log = logging.getLogger(__name__)

NAME = "tune.json"
VERSION = 1


def tell(tuning: Tuning, run: RunConfig, run_dir: Path) -> None:
    """On rank 0: log the answer, and keep it in the run folder.

    Args:
        tuning: the answer.
        run: the settings that it was found for.
        run_dir: the run folder.
    """
    replace_file(run_dir / NAME, to_json({"version": VERSION, **asdict(tuning)}) + "\n")
    more = "" if tuning.exact else "; whether a few more fit was not tried"
    log.info("fits             %s, limited by %s%s", counted(tuning.fits, "row", ","), tuning.limited_by, more)
    log.info("memory           %s for each device", in_bytes(tuning.available_bytes))
    enough = f"{run.tune.fast_enough:.0%} of the most rows per second"
    if tuning.fast_enough is None:
        log.info("fast enough      not known: %s", tuning.noise)
    else:
        log.info("fast enough      %s and more have %s", counted(tuning.fast_enough, "row", ","), enough)
    log.info("recommended      batch.max_per_device=%d", tuning.recommended)
