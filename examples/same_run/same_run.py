"""Train the same run on 1 and 3 processes, and moved from 5 to 2 to 1 in mid-epoch; compare what comes out.

    python examples/same_run/same_run.py

prints the SHA-256 of the weights side by side and draws the loss curves into one picture.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
from matplotlib.figure import Figure

WORLDS = (1, 3)
MOVES = ((5, 4), (2, 11), (1, None))
"""Processes, and the step at which they are killed; an epoch has 5 steps."""

SETTINGS = (
    "batch.global_size=256",
    "model.dropout=0.2",
    "optimizer=adamw",
    "optimizer.lr=0.003",
    "trainer.epochs=3",
    "trainer.log_every=1",
    "launch.threads_per_rank=1",
)
EXACT = ("batch.exact=true", "batch.shard_rows=32")


def main() -> None:
    """Run, compare, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("outputs/same_run"), help="where runs and picture go")
    out = parser.parse_args().out.absolute()
    shutil.rmtree(out, ignore_errors=True)
    exact = {f"{world}": train(out / f"exact_{world}", world, *EXACT) for world in WORLDS}
    exact[" -> ".join(str(world) for world, _ in MOVES)] = move(out / "exact_moved")
    fast = {f"{world}": train(out / f"fast_{world}", world) for world in WORLDS}
    print("\nprocesses    SHA-256 of the weights, exact mode    fast mode")
    for name, run in exact.items():
        other = digest(fast[name])[:20] if name in fast else "-"
        print(f"{name:<13}{digest(run)[:20]:<38}{other}")
    print(f"\ndifferent weights: {distinct(exact)} in exact mode, {distinct(fast)} in fast mode")
    print(f"picture: {draw(exact, out / 'loss.png')}")
    if distinct(exact) != 1:
        sys.exit("exact mode gave different weights")


def train(folder: Path, world: int, *settings: str) -> Path:
    """Train to the end on ``world`` processes."""
    subprocess.run(command(folder, world, *settings), check=True, stdout=subprocess.DEVNULL)
    print(f"{folder.name:<12} {world} process{'es' * (world > 1)}, done")
    return folder


def move(folder: Path) -> Path:
    """Train on one number of processes after another; each but the last is killed in the middle of an epoch."""
    for world, step in MOVES:
        if step is None:
            return train(folder, world, *EXACT, "checkpoint.every_steps=1")
        with subprocess.Popen(
            command(folder, world, *EXACT, "checkpoint.every_steps=1"), stdout=subprocess.DEVNULL, text=True
        ) as process:
            wait_for(folder / "checkpoints" / f"step_{step:08d}", process)
            kill(process)
        print(f"{folder.name:<12} {world} processes, killed at step {newest(folder)}")
    return folder


def command(folder: Path, world: int, *settings: str) -> list[str]:
    """What one would type."""
    here = [f"launch.processes={world}", f"hydra.run.dir='{folder}'"]
    return [sys.executable, "-m", "launcher", *here, *SETTINGS, *settings]


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    """Until ``path`` is there."""
    while not path.exists():
        if process.poll() is not None:
            sys.exit(f"the run ended before it kept {path}")
        time.sleep(0.002)


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL to the launcher and to every rank, as when a machine goes down."""
    for victim in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
        victim.kill()


def newest(folder: Path) -> int:
    """The step of the newest checkpoint."""
    return max(int(path.name.removeprefix("step_")) for path in (folder / "checkpoints").glob("step_*"))


def digest(run: Path) -> str:
    """SHA-256 over all weights of a run, as its status.json has it."""
    return str(json.loads((run / "status.json").read_text())["weights_sha256"])


def distinct(runs: dict[str, Path]) -> int:
    """How many different weights came out."""
    return len({digest(run) for run in runs.values()})


def draw(runs: dict[str, Path], path: Path) -> Path:
    """The training loss of all runs over steps; later curves are thinner, so that those below can be seen."""
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.subplots()
    for number, (name, run) in enumerate(runs.items()):
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        points = [(line["step"], line["train/loss"]) for line in lines if "train/loss" in line]
        width = 2.0 * (len(runs) - number)
        axes.plot(
            *zip(*points, strict=True),
            linewidth=width,
            label=f"{name} process" + "es" * (name != "1"),
            solid_capstyle="round",
        )
    axes.set(xlabel="step", ylabel="training loss", title="One run, on any number of processes")
    axes.legend(frameon=False)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
    return path


if __name__ == "__main__":
    main()
