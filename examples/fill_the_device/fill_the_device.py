"""Profile and train ResNet-18 with one row at a time, find a better micro-batch, train with that; compare.

    python examples/fill_the_device/fill_the_device.py

prints rows per second before and after, with the same global batch and so the same training.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SETTINGS = (
    f"--config-dir={HERE / 'conf'}",
    "model=resnet18",
    "model.small_images=true",
    "data=cifar_shaped",
    "batch.global_size=32",
    "batch.min_per_device=1",
    "trainer.log_every=1",
    "checkpoint.every_steps=null",
)
STEPS = 3
OPERATORS = 4
"""That are shown of a profile."""
PROFILE = (
    "profile=on",
    "profile.wait=0",
    "profile.active=1",
    "profile.repeat=1",
    "trainer.max_steps=2",
    "batch.global_size=8",
)


def main() -> None:
    """Profile, run, tune, run; compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("outputs/fill_the_device"), help="where the runs go")
    out = parser.parse_args().out.absolute()
    shutil.rmtree(out, ignore_errors=True)
    launch(out / "profile", *PROFILE, "batch.max_per_device=1")
    print("".join(table(out / "profile")))
    launch(out / "before", f"trainer.max_steps={STEPS}", "batch.max_per_device=1")
    launch(out / "tune", "mode=tune", "tune.max_rows=32", "tune.max_probes=5")
    answer = json.loads((out / "tune" / "tune.json").read_text())
    launch(out / "after", f"trainer.max_steps={STEPS}", answer["override"])
    print("\nrows at once    rows per second    training loss")
    for name, rows in (("before", 1), ("after", answer["recommended"])):
        print(f"{rows:<16}{speed(out / name):<19.1f}{' '.join(f'{loss:.4f}' for loss in losses(out / name))}")
    print(f"\n{speed(out / 'after') / speed(out / 'before'):.1f} times as fast; picture: {out / 'tune' / 'tune.png'}")


def launch(folder: Path, *settings: str) -> None:
    """What one would type in the folder of this file; what it prints is shown as it comes."""
    words = [sys.executable, "-m", "launcher", *SETTINGS, *settings, f"hydra.run.dir='{folder}'"]
    print(f"\n$ {folder.name}: {' '.join(settings)}", flush=True)
    subprocess.run(words, check=True, cwd=HERE)


def table(run: Path) -> list[str]:
    """The operators that took the most time in the window that was recorded."""
    (found,) = (run / "trace").glob("*.txt")
    return found.read_text().splitlines(keepends=True)[: 3 + OPERATORS]


def metrics(folder: Path, name: str) -> list[float]:
    """The values of one metric over the steps of a run."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line[name] for line in lines if name in line]


def speed(folder: Path) -> float:
    """Rows per second of a run; its first step, which warms up, is left out."""
    found = metrics(folder, "train/rows_per_s")[1:]
    return len(found) / sum(1 / value for value in found)


def losses(folder: Path) -> list[float]:
    """The loss of each step."""
    return metrics(folder, "train/loss")


if __name__ == "__main__":
    main()
