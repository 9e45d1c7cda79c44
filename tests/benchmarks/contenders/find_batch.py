"""The contenders of `tune.py`: one of them, or training by hand, in this process, within a limit of memory.

python find_batch.py NAME MIB START
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FEATURES, WIDTH, ROWS, CLASSES = 16, 2**18, 8192, 10
OURS, LIGHTNING, ACCELERATE, TRAIN = "ours", "lightning", "accelerate", "train"
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

    import_module("launcher.configure.compose")  # the limit counts from after the imports

    settings = (
        "data=wide",
        "model=wide",
        "metrics=none",
        "scheduler=none",
        f"batch.global_size={ROWS}",
        "batch.min_per_device=2",
    )
    with tempfile.TemporaryDirectory() as folder:
        configs = {"data": "train: {_target_: find_batch.rows}\ntest: null\n", "model": "_target_: find_batch.net\n"}
        for group, text in configs.items():
            path = Path(folder) / "conf" / group / "wide.yaml"
            path.parent.mkdir(parents=True)
            path.write_text(text, encoding="utf-8")
        leave(mib)
        began = time.perf_counter()
        status = main([f"--config-dir={folder}/conf", "mode=tune", *settings, f"hydra.run.dir={folder}/run"])
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


if __name__ == "__main__":
    contend(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
