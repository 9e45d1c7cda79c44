"""Which micro-batch fits: `mode=tune`, Lightning's batch size finder and Accelerate's, on one model and one limit.

    python tests/benchmarks/tune.py [--mib 1024] [--start 4096]

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
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ROOT = Path(__file__).resolve().parents[2]
MOST_PROBES = 8
FEATURES, WIDTH, ROWS, CLASSES = 16, 2**18, 8192, 10
OURS, LIGHTNING, ACCELERATE, TRAIN = "ours", "lightning", "accelerate", "train"
NEEDS = {OURS: "launcher", LIGHTNING: "lightning", ACCELERATE: "accelerate"}
STEPS = 3


def net() -> nn.Module:
    """A model that takes about 2 MiB for each row."""
    return nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))


def rows(n: int = ROWS) -> TensorDataset:
    """Rows to train on."""
    stream = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(n, FEATURES, generator=stream), torch.randint(CLASSES, (n,), generator=stream))


def leave(mib: int) -> None:
    """Let this process take so much more address space."""
    most = psutil.Process().memory_info().vms + mib * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def train(size: int, steps: int) -> None:
    """Take some steps by hand."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batches = iter(DataLoader(rows(size * steps), size))
    for inputs, target in batches:
        nn.functional.cross_entropy(model(inputs), target).backward()
        optimizer.step()
        optimizer.zero_grad()


def tune_ours(mib: int, _start: int) -> dict[str, Any]:
    """`mode=tune`, in a folder that is thrown away."""
    from launcher.cli import main  # noqa: PLC0415 - each contender imports its own

    nodes = [
        "++data.train={_target_: tune.rows}",
        "data.test=null",
        "++model={_target_: tune.net}",
        "metrics=none",
        "scheduler=none",
        f"batch.global_size={ROWS}",
        "batch.min_per_device=2",
    ]
    with tempfile.TemporaryDirectory() as folder:
        leave(mib)
        began = time.perf_counter()
        status = main(["mode=tune", *nodes, f"hydra.run.dir={folder}/run"])
        seconds = time.perf_counter() - began
        if status:
            raise SystemExit(status)
        found = json.loads((Path(folder) / "run" / "tune.json").read_text(encoding="utf-8"))
    ran = found["fits"] in [probe["rows"] for probe in found["probes"] if probe["fits"]]
    return {"sizes": len(found["probes"]), "seconds": seconds, "answer": found["fits"], "ran": ran}


def tune_lightning(mib: int, _start: int) -> dict[str, Any]:
    """`Tuner.scale_batch_size` with halving, which trains three steps with each size."""
    from lightning import LightningModule, Trainer  # noqa: PLC0415 - each contender imports its own
    from lightning.pytorch.tuner import Tuner  # noqa: PLC0415

    tried: list[int] = []

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.batch_size = net(), 2

        def training_step(self, batch: Any, number: int) -> Any:
            if number == STEPS - 1:
                tried.append(len(batch[0]))
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def train_dataloader(self) -> DataLoader[Any]:
            sizes.append(self.batch_size)
            return DataLoader(rows(), self.batch_size)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)

    sizes: list[int] = []
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    module = Module()
    leave(mib)
    began = time.perf_counter()
    answer = Tuner(trainer).scale_batch_size(module, mode="binsearch", steps_per_trial=STEPS, max_trials=40)
    seconds = time.perf_counter() - began
    return {"sizes": len(dict.fromkeys(sizes)), "seconds": seconds, "answer": answer, "ran": answer in tried}


def tune_accelerate(mib: int, start: int) -> dict[str, Any]:
    """`find_executable_batch_size` around three steps."""
    from accelerate.utils import find_executable_batch_size  # noqa: PLC0415 - each contender imports its own

    sizes: list[int] = []

    @find_executable_batch_size(starting_batch_size=start)  # type: ignore[untyped-decorator]
    def run(batch_size: int) -> int:
        sizes.append(batch_size)
        train(batch_size, STEPS)
        return batch_size

    leave(mib)
    began = time.perf_counter()
    answer = run()
    return {"sizes": len(sizes), "seconds": time.perf_counter() - began, "answer": answer, "ran": True}


FINDERS = {OURS: tune_ours, LIGHTNING: tune_lightning, ACCELERATE: tune_accelerate}


def in_a_process(*words: object) -> subprocess.CompletedProcess[str]:
    """This program again, with other words."""
    path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    environment = {**os.environ, "PYTHONPATH": path, "GOMP_SPINCOUNT": "1000"}
    command = [sys.executable, __file__, *map(str, words)]
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def trains(size: int, mib: int) -> bool:
    """Whether ten steps with micro-batches of a size stay within the limit."""
    return in_a_process("--contender", TRAIN, "--mib", mib, "--start", size).returncode == 0


def contend(name: str, mib: int, start: int) -> None:
    """What a process of a contender does."""
    warnings.simplefilter("ignore")
    if name == TRAIN:
        train(1, 1)
        leave(mib)
        train(start, 10)
        return
    print("\n" + json.dumps(FINDERS[name](mib, start)), flush=True)
    os._exit(0)


def main() -> int:
    """Let each find its size, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024, help="address space beyond what the imports take")
    parser.add_argument("--start", type=int, default=4096, help="where Accelerate's finder begins")
    parser.add_argument("--contender", choices=[*FINDERS, TRAIN], help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.contender:
        contend(asked.contender, asked.mib, asked.start)
        return 0
    bad = False
    for name in FINDERS:
        if not importlib.util.find_spec(NEEDS[name]) and name != OURS:
            print(f"{name:<12}left out: {NEEDS[name]} is not installed")
            continue
        ended = in_a_process("--contender", name, "--mib", asked.mib, "--start", asked.start)
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
