"""Which micro-batch fits: `mode=tune`, Lightning's batch size finder and Accelerate's, on one model and one limit.

    python tests/benchmarks/tune.py [--mib 1024] [--start 4096] [--only ours accelerate]

Each contender gets a process of its own, which after its imports may take so many MiB of address space more. Said of
each: how many sizes it tried, how long that took from there on, its answer, and whether it ever ran that size; then,
each in a further process, whether training takes ten steps with the answer, and with one row more. Lightning's doubles
from 2 and then halves what is left; Accelerate's begins at --start and shrinks. Contenders that are not installed are
left out (`pip install '.[bench]'` brings them). The exit status is 1 where ours tried more than 8 sizes, did not run
its answer, or gave one with which training runs out of memory.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST_PROBES = 8
CONTENDERS = ROOT / "tests/benchmarks/contenders"
OURS, TRAIN = "ours", "train"
FINDERS = {OURS: "launcher", "lightning": "lightning", "accelerate": "accelerate"}
"""Each with the package that it needs."""


def in_a_process(*words: object) -> subprocess.CompletedProcess[str]:
    """A contender, or training by hand, with one thread: OpenMP ends a process that finds no memory for another."""
    path = os.pathsep.join([str(ROOT), str(CONTENDERS)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(CONTENDERS / "find_batch.py"), *map(str, words)]
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def trains(size: int, mib: int) -> bool:
    """Whether ten steps with micro-batches of a size stay within the limit."""
    return in_a_process(TRAIN, mib, size).returncode == 0


def main() -> int:
    """Let each find its size, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024, help="address space beyond what the imports take")
    parser.add_argument("--start", type=int, default=4096, help="where Accelerate's finder begins")
    parser.add_argument("--only", nargs="+", choices=list(FINDERS), default=list(FINDERS), help="these alone")
    asked = parser.parse_args()
    bad = False
    sys.path.insert(0, str(ROOT))
    for name, needs in ((name, FINDERS[name]) for name in asked.only):
        if not importlib.util.find_spec(needs):
            print(f"{name:<12}left out: {needs} is not installed")
            continue
        ended = in_a_process(name, asked.mib, asked.start)
        if ended.returncode:
            print(f"{name:<12}failed: {(ended.stderr or ended.stdout).strip().splitlines()[-1]}")
            bad = bad or name == OURS
            continue
        found = json.loads(ended.stdout.strip().splitlines()[-1])
        holds, more = trains(found["answer"], asked.mib), trains(found["answer"] + 1, asked.mib)
        print(
            f"{name:<12}{found['sizes']:3} sizes, {found['seconds']:6.1f} s, answer {found['answer']:5} rows, "
            f"{'ran' if found['ran'] else 'never ran'}; ten steps with it {'fit' if holds else 'DO NOT FIT'}, with one "
            f"row more {'fit too' if more else 'do not'}",
            flush=True,
        )
        bad = bad or (name == OURS and not (holds and found["ran"] and found["sizes"] <= MOST_PROBES))
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
