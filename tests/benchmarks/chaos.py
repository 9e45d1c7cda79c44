"""Disturb a run of the digits job in exact mode until it is over, and compare it with one that was left alone.

    python tests/benchmarks/chaos.py [--faults 60] [--ranks 5] [--seed 0] [--minutes 5] [--out outputs/chaos]

A fault is one of SIGKILL, SIGTERM, SIGUSR1, SIGSTOP and SIGCONT, a disk that is full, a bit that is flipped in the
newest checkpoint, or that deleted; it hits a rank or the launcher, while the run trains, starts, or is down. Whenever
the run has ended it is started again with the same folder, on 1 to --ranks ranks, by torchrun or by the command itself.
What comes at which step is drawn from the seed; how far a run gets before a signal reaches it is not.

At the end the weights and metrics must be those of the run that was left alone, each row must have been trained on once
in each epoch, by the ledger of the ranks, steps that were done again with the same rows. No fault may cost more than
`every_steps` steps, not even while a checkpoint is being written. Signals that ask for the end may cost none; a disk
that is full may cost more under `checkpoint.on_error=warn`, which asks for that. Nothing of a run may be left ten
seconds after its launcher is gone.

60 faults take about 5 minutes on two quiet cores; after --minutes no more come, and the run goes on to its end. The
tests run a short version (tests/launcher/test_chaos.py). The exit status is 1 where anything does not hold.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from launcher.data.digits import digits
from tests.chaos.disturb import Disturbed, time_next_steps
from tests.chaos.ledger import Ledger
from tests.chaos.live import Job
from tests.chaos.report import Outcome, disagreements, table
from tests.chaos.schedule import Fault, Start, draw_faults, draw_starts

EVERY_STEPS = 5
GAP = (6, 30)
REST = 40
"""Steps after the last fault: a disk that is full then must have room again before the end."""


def run(
    folder: Path, steps: int, faults: list[Fault], starts: Iterator[Start], seconds: float = math.inf
) -> tuple[Disturbed, Outcome]:
    """A run from its first start to its end, with ``faults`` in its first ``seconds``."""
    folder.mkdir(parents=True)
    began = time.monotonic()
    with closing(Ledger(folder / "ledger.jsonl")) as ledger:
        job = Job(folder / "run", steps, EVERY_STEPS, ledger)
        run = Disturbed(job, faults, starts, began + seconds, lambda text: print(text, flush=True))
        run.run()
        time_next_steps(run)
        return run, Outcome(job.run_dir, ledger.lines, run.worlds, time.monotonic() - began)


def main(arguments: list[str] | None = None) -> int:
    """Run both and print; returns 1 where something does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--ranks", type=int, default=5, help="at most")
    parser.add_argument("--seed", type=int, default=0, help="of what comes when")
    parser.add_argument("--minutes", type=float, default=5.0, help="after which no more faults come")
    parser.add_argument("--out", type=Path, default=Path("outputs/chaos"), help="where runs and logs go")
    chosen = parser.parse_args(arguments)
    out = chosen.out.absolute()
    shutil.rmtree(out, ignore_errors=True)
    faults = draw_faults(chosen.seed, chosen.faults, GAP)
    steps = faults[-1].step + REST
    print(f"seed {chosen.seed}: {len(faults)} faults, {steps} steps, a checkpoint every {EVERY_STEPS}")
    _, alone = run(out / "undisturbed", steps, [], iter([Start(2, by_torchrun=False, restarts=0, warns=False)] * 4))
    starts = draw_starts(chosen.seed, chosen.ranks)
    disturbed, found = run(out / "disturbed", steps, faults, starts, 60 * chosen.minutes)
    problems = disturbed.problems + disagreements(found, alone, steps, len(digits()))
    print(f"\n{table(disturbed.hits)}\n")
    print(f"{len(disturbed.hits)} faults in {found.seconds:.0f} s, {len(found.worlds)} starts on {found.worlds} ranks")
    print(f"share of undisturbed speed: {alone.seconds / found.seconds:.0%} ({alone.seconds:.0f} s left alone)")
    print(f"weights: {found.digest}, undisturbed {alone.digest}")
    for problem in problems:
        print(f"PROBLEM: {problem}")
    print(f"{len(problems)} problems" if problems else "holds: the same weights, metrics and rows; nothing left behind")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
