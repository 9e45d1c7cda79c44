"""The command on real ranks, with what it prints and leaves behind."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from launcher import cli, ending
from launcher.testing import simulate

CONFIGS = Path(__file__).parent / "conf"
LEAST_PATIENCE_S, LINE_S = 120.0, 5.0
TINY = (f"--config-dir={CONFIGS}", "experiment=tiny")


@dataclass(frozen=True)
class Launched:
    """A command that is over: exit status and console of each rank, and the folder it was given in."""

    folder: Path
    statuses: list[int]
    outputs: list[str]
    errors: list[str]

    @property
    def status(self):
        """The exit status, if it is the same on all ranks."""
        assert len(set(self.statuses)) == 1, f"exit statuses differ: {self.statuses}\n{self.output}{self.error}"
        return self.statuses[0]

    @property
    def output(self):
        return "".join(self.outputs)

    @property
    def error(self):
        return "".join(self.errors)

    @property
    def run_dir(self):
        """The run folder, if there is exactly one."""
        (found,) = self.run_dirs
        return found

    @property
    def run_dirs(self):
        return sorted(path.parent for path in self.folder.rglob("config.yaml"))

    @property
    def state(self):
        """What status.json says."""
        return json.loads((self.run_dir / "status.json").read_text())

    @property
    def metrics(self):
        """The lines of metrics.jsonl."""
        return [json.loads(line) for line in (self.run_dir / "metrics.jsonl").read_text().splitlines()]

    def values(self, name):
        """The values of one metric over time."""
        return [line[name] for line in self.metrics if name in line]

    def log(self, rank):
        return (self.run_dir / f"rank_{rank}.log").read_text()


def launch(folder, world_size, *words, environment=None, before=None, times=1):
    """Run the command in ``folder`` on ``world_size`` ranks, which find the variables of torchrun.

    Args:
        folder: where the command is given; the run folder is ``run`` in it unless the words say otherwise.
        world_size: ranks.
        words: the command line.
        environment: further variables.
        before: called on every rank first.
        times: how often an agent starts the ranks; each start but the first is a restart.
    """
    folder.mkdir(parents=True, exist_ok=True)
    line = placed(words)

    def command():
        rank = os.environ.get("RANK", "0")
        os.chdir(folder)
        _redirect(1, folder / f"stdout_{rank}"), _redirect(2, folder / f"stderr_{rank}")
        ending.SECOND_S = 0.0  # it is for torchrun's table
        if before is not None:
            before()
        statuses = []
        for attempt in range(times):
            os.environ["TORCHELASTIC_RESTART_COUNT"] = str(attempt)
            statuses.append(cli.main(line))
            if dist.is_initialized():
                dist.destroy_process_group()
        return statuses

    statuses = simulate(world_size, command, environment=environment, process_group=False)
    outputs = [(folder / f"stdout_{rank}").read_text() for rank in range(world_size)]
    errors = [(folder / f"stderr_{rank}").read_text() for rank in range(world_size)]
    return Launched(folder, [last for *_, last in statuses], outputs, errors)


@dataclass(frozen=True)
class Line:
    """A command line for ``in_turn``, given in ``folder`` after ``before`` was called there."""

    folder: Path
    words: tuple[str, ...]
    before: Callable[[], object] | None = None


def in_turn(*lines, world_size=1):
    """Run command lines one after the other in the same processes; the cheapest way to run many.

    The run folder is ``run`` in that of the line.

    Args:
        lines: the command lines.
        world_size: ranks; a single process is no rank of anything.
    """
    stores = [dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in lines]
    ports = [str(store.port) for store in stores]

    def commands():
        rank = os.environ.get("RANK", "0")
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE") if world_size == 1 else ():
            del os.environ[name]
        return [command(line, rank, port) for line, port in zip(lines, ports, strict=True)]

    def command(line, rank, port):
        line.folder.mkdir(parents=True, exist_ok=True)
        os.chdir(line.folder)
        os.environ["MASTER_PORT"] = port
        printed = line.folder / f"stdout_{rank}", line.folder / f"stderr_{rank}"
        _redirect(1, printed[0]), _redirect(2, printed[1])
        ending.SECOND_S = 0.0
        if line.before is not None:
            line.before()
        status = cli.main(placed(line.words))
        if dist.is_initialized():
            dist.destroy_process_group()
        return status, *(path.read_text() for path in printed)

    patience_s = max(LEAST_PATIENCE_S, LINE_S * len(lines))
    ended = simulate(world_size, commands, timeout_s=patience_s, process_group=False)
    return [
        Launched(line.folder, *map(list, zip(*by_rank, strict=True)))
        for line, *by_rank in zip(lines, *ended, strict=True)
    ]


def placed(words):
    """The words with a run folder, where they are those of a run and name none."""
    named = {"inspect", "report", "--job"}.intersection(words[:1]) or any(
        word.startswith("hydra.run.dir=") for word in words
    )
    return [*words] if named else [*words, "hydra.run.dir=run"]


def _redirect(descriptor, path):
    (sys.stdout if descriptor == 1 else sys.stderr).flush()
    with path.open("wb") as file:
        os.dup2(file.fileno(), descriptor)
