"""The digits job on 2 ranks, by hand, with Accelerate, Fabric and Lightning, and ours: speed and time to first step.

    python tests/benchmarks/training.py [--rounds 5] [--epochs 30] [--only ours handwritten]

Every contender trains the same model on the same rows with the same optimizer, scheduler and global batch, and says
the loss every 10 steps; ours also writes its usual metrics, TensorBoard and status. They take turns, and the table
shows medians. Steps are timed inside, on rank 0, an epoch at a time after the first two; a run's figure is that of its
quicker epochs (the lower quartile), since what else the machine does only ever adds. The first step is timed from the
command, and compared by the quickest round for the same reason.
Contenders that are not installed are left out (`pip install '.[bench]'` brings them).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles

HERE = Path(__file__).resolve().parent
CONTENDERS = HERE / "contenders"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
STEPS_PER_EPOCH = 11
WARM_UP_EPOCHS = 2
OURS, REFERENCE = "ours", "handwritten"
LATEST_FIRST_STEP_S = 1.0


@dataclass(frozen=True)
class Contender:
    """One way to run the job.

    Attributes:
        name: in the table.
        program: what torchrun starts.
        needs: the package that it is written for.
        floor: how many times its steps per second ours must reach.
    """

    name: str
    program: tuple[str, ...]
    needs: str
    floor: float | None = None


@dataclass(frozen=True)
class Result:
    """One run: steps per second in its quicker epochs, seconds from the command to the end of the first step."""

    steps_per_s: float
    first_step_s: float


def script(name: str, needs: str, floor: float) -> Contender:
    """A contender with a script of its own."""
    return Contender(name, (str(CONTENDERS / f"{name}.py"),), needs, floor)


ALL = (
    Contender(OURS, ("-m", "launcher"), "launcher"),
    script(REFERENCE, "torch", 1.15),
    script("accelerate_loop", "accelerate", 1.25),
    script("fabric_loop", "lightning", 1.25),
    script("lightning_trainer", "lightning", 1.3),
)


def run(contender: Contender, epochs: int, folder: Path) -> Result:
    """Run a contender once, in an empty folder."""
    settings = (
        f"trainer.epochs={epochs}",
        "trainer.evaluate_every=0",
        "optimizer._target_=digits_job.TimedSGD",
        f"hydra.run.dir={folder / 'run'}",
    )
    command = [*TORCHRUN, *contender.program, *(settings if contender.name == OURS else ())]
    times = folder / "times.json"
    path = os.pathsep.join([str(HERE.parent.parent), str(CONTENDERS)])
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "PYTHONDONTWRITEBYTECODE": "",  # compiled once, as on a machine where the job runs often
        "BENCHMARK_EPOCHS": str(epochs),
        "BENCHMARK_TIMES": str(times),
    }
    start = time.time()
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if not times.exists():  # a rank that aborts while gloo is taken down has done its steps
        raise SystemExit(f"{contender.name} failed:\n{ended.stdout}\n{ended.stderr}")
    done = json.loads(times.read_text(encoding="utf-8"))
    ends = done[WARM_UP_EPOCHS * STEPS_PER_EPOCH - 1 :: STEPS_PER_EPOCH]
    epochs_s = [end - begin for begin, end in pairwise(ends)]
    return Result(STEPS_PER_EPOCH / quantiles(epochs_s, n=4)[0], done[0] - start)


def measure(contenders: list[Contender], rounds: int, epochs: int) -> dict[str, list[Result]]:
    """Let the contenders take turns, each round in another order."""
    results: dict[str, list[Result]] = {contender.name: [] for contender in contenders}
    for number in range(rounds):
        turn = number % len(contenders)
        for contender in contenders[turn:] + contenders[:turn]:
            with tempfile.TemporaryDirectory() as folder:
                result = run(contender, epochs, Path(folder))
            results[contender.name].append(result)
            print(
                f"round {number + 1}/{rounds}  {contender.name:<18}"
                f"{result.steps_per_s:7.1f} steps/s, first step after {result.first_step_s:.2f} s",
                flush=True,
            )
    return results


def spread(values: list[float]) -> str:
    """Median, least and most."""
    return f"{median(values):8.2f} {min(values):8.2f} {max(values):8.2f}"


def speed_ratio(results: dict[str, list[Result]], name: str) -> float:
    """Steps per second of ours over those of a contender: the median of the rounds' ratios."""
    pairs = zip(results[OURS], results[name], strict=True)
    return median(ours.steps_per_s / other.steps_per_s for ours, other in pairs)


def delay(results: dict[str, list[Result]], name: str) -> float:
    """Seconds that the first step of ours comes after that of a contender, each in its quickest round."""
    ours, other = (min(run.first_step_s for run in results[who]) for who in (OURS, name))
    return ours - other


def print_table(contenders: list[Contender], results: dict[str, list[Result]]) -> None:
    """A line for each contender: both figures as median, least and most, and ours against it."""
    print(f"\n{'':<18} {'steps/s':>8} {'min':>8} {'max':>8} {'1st step':>10} {'min':>8} {'max':>8}   ours against it")
    for contender in contenders:
        runs = results[contender.name]
        line = (
            f"{contender.name:<18} {spread([r.steps_per_s for r in runs])}   {spread([r.first_step_s for r in runs])}"
        )
        if contender.name != OURS and OURS in results:
            ratio, later = speed_ratio(results, contender.name), delay(results, contender.name)
            line += f"   {ratio:.2f} x the steps/s, first step {later:+.2f} s"
        print(line)


def floors_hold(contenders: list[Contender], results: dict[str, list[Result]]) -> bool:
    """Print each floor that was measured, and whether it holds; True where all do."""
    checks = [
        (f"steps/s >= {c.floor} x {c.name}", speed_ratio(results, c.name) >= c.floor)
        for c in contenders
        if c.floor is not None and OURS in results
    ]
    if OURS in results and REFERENCE in results:
        late = delay(results, REFERENCE)
        checks.append((f"first step <= {LATEST_FIRST_STEP_S} s after {REFERENCE}", late <= LATEST_FIRST_STEP_S))
    for text, holds in checks:
        print(f"{'holds ' if holds else 'MISSED'}  {text}")
    return all(holds for _, holds in checks)


def installed(contenders: list[Contender]) -> list[Contender]:
    """Those that can run here; names the others."""
    found = [c for c in contenders if importlib.util.find_spec(c.needs)]
    for missing in (c for c in contenders if c not in found):
        print(f"left out: {missing.name} ({missing.needs} is not installed)")
    return found


def main() -> int:
    """Measure and print; returns 1 where a floor is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=30, help="of 11 steps; the first two are not timed; at least 5")
    parser.add_argument("--only", nargs="+", choices=[c.name for c in ALL], help="these contenders alone")
    chosen = parser.parse_args()
    sys.path.insert(0, str(HERE.parent.parent))
    contenders = installed([c for c in ALL if chosen.only is None or c.name in chosen.only])
    results = measure(contenders, chosen.rounds, chosen.epochs)
    print_table(contenders, results)
    return 0 if floors_hold(contenders, results) else 1


if __name__ == "__main__":
    sys.exit(main())
