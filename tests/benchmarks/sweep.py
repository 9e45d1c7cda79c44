"""What a sweep costs: its jobs against a shell loop that gives one torchrun command after the other.

    python tests/benchmarks/sweep.py [--jobs 8] [--rounds 3] [--processes 2]

A job trains a linear layer for one step, on two processes: nearly all of its time goes into starting and ending it.
In each round the shell loop, the sweep one job at a time, the same under torchrun, and the sweep two jobs at a time
run the same jobs, each round in another order. The numbers are medians over the rounds of seconds per job, the start
and the end of the sweep itself included. The exit status is 1 where a job of a sweep in sequence takes more than half
a second more than one of the loop, or where two at a time end fewer than 1.5 x the jobs per minute although there are
cores for them.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
MOST_MORE_S = 0.5
LEAST_RATIO = 1.5
JOB = (f"--config-dir={ROOT / 'tests/launcher/conf'}", "experiment=tiny", "trainer.max_steps=1")
PYTHON = shlex.quote(sys.executable)

LOOP, SEQUENCE, UNDER_TORCHRUN, TWO = (
    "shell loop of torchrun",
    "sweep, one at a time",
    "sweep under torchrun",
    "sweep, two at a time",
)


def run(command: list[str], folder: Path) -> float:
    """Seconds that a command takes in a folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    began = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{shlex.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return time.perf_counter() - began


def contenders(jobs: int, processes: int) -> dict[str, list[str]]:
    """The commands to compare, by name."""
    seeds = f"seed=range({jobs})"
    torchrun = ["-m", "torch.distributed.run", f"--nproc-per-node={processes}", "-m", "launcher"]
    one = f"{PYTHON} {shlex.join([*torchrun, *JOB])} seed=$seed"
    python = [sys.executable, "-m", "launcher", "-m", *JOB, f"launch.processes={processes}", seeds]
    return {
        LOOP: ["sh", "-ec", f"for seed in $(seq 0 {jobs - 1}); do {one}; done"],
        SEQUENCE: python,
        UNDER_TORCHRUN: [sys.executable, *torchrun, "-m", *JOB, seeds],
        TWO: [*python, "sweep.parallel=2"],
    }


def measure(commands: dict[str, list[str]], rounds: int, timed: Callable[[list[str], Path], float]) -> dict[str, float]:
    """Median seconds of each command; each round begins with another one."""
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    names = list(commands)
    for turn in range(rounds):
        for name in [*names[turn % len(names) :], *names[: turn % len(names)]]:
            with tempfile.TemporaryDirectory() as folder:
                seconds[name].append(timed(commands[name], Path(folder)))
    return {name: median(found) for name, found in seconds.items()}


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    commands = contenders(asked.jobs, asked.processes)
    if cores < 2:
        del commands[TWO]
    found = {name: seconds / asked.jobs for name, seconds in measure(commands, asked.rounds, run).items()}
    print(f"{asked.jobs} jobs of {asked.processes} processes on {cores} cores, load {os.getloadavg()[0]:.1f}")
    for name, seconds in found.items():
        print(f"  {name:<24}{seconds:6.2f} s per job  {60 / seconds:6.1f} jobs per minute")
    more = found[SEQUENCE] - found[LOOP]
    ratio = found[LOOP] / found[TWO] if TWO in found else float("nan")
    enough = cores >= 2 * asked.processes
    least = f"at least {LEAST_RATIO}" if enough else f"at least {LEAST_RATIO} on {2 * asked.processes} cores"
    print(f"one at a time: {more:+.2f} s per job beside the loop (at most {MOST_MORE_S})")
    print(f"two at a time: {ratio:.2f} x its jobs per minute ({least})")
    return int(more > MOST_MORE_S or (enough and ratio < LEAST_RATIO))


if __name__ == "__main__":
    sys.exit(main())
