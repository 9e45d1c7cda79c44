"""Jobs without processes: a crew whose jobs take so many looks, and sources and views that remember."""

import json
from dataclasses import dataclass, field, replace

from launcher.configure.schema import RunConfig
from launcher.sweep.engine import Engine
from launcher.sweep.jobs import Job
from launcher.sweep.ledger import Definition, Ledger
from launcher.sweep.pool import Pool

NODE = {"_target_": "x"}


def run_config(**sections):
    plain = {"model": NODE, "task": NODE, "optimizer": NODE, "data": {"train": NODE}, **sections}
    return RunConfig.from_json(json.dumps(plain))


@dataclass
class FakeTeam:
    """Ends after ``looks`` looks with the given status of rank 0; writes ``state`` to status.json then.

    One that is deaf ends on SIGKILL only; of one that is lost nobody says how it ended; one that is silent writes none.
    """

    crew: "FakeCrew"
    job: Job
    looks: int
    status: int = 0
    state: str = "finished"
    metrics: dict = field(default_factory=dict)
    deaf: bool = False
    lost: bool = False
    silent: bool = False
    told: list = field(default_factory=list)

    def statuses(self):
        self.looks -= 1
        if self.lost:
            return {}
        if 15 in self.told and not self.deaf:
            self.status, self.state, self.looks = 75, "preempted", 0
        if 9 in self.told:
            self.status, self.state, self.looks = -9, "running", 0
        if self.looks > 0:
            return {}
        if not self.silent:
            self._leave_status()
        return dict.fromkeys(range(self.job.world_size), self.status)

    def _leave_status(self):
        self.job.run_dir.mkdir(parents=True, exist_ok=True)
        content = {"state": self.state, "metrics": self.metrics}
        (self.job.run_dir / "status.json").write_text(json.dumps(content))

    def tell(self, number):
        self.told.append(number)

    def close(self):
        self.crew.held.pop(self.job.number, None)


@dataclass
class FakeCrew:
    """A pool of devices, some of which each job holds for as long as its script says.

    Attributes:
        pool: of devices.
        per_job: devices of a job.
        scripts: number of a job -> arguments of its teams, one after the other.
        held: the devices that jobs hold now; history: those at each start.
    """

    pool: Pool
    per_job: int
    scripts: dict
    parallel: int = 1
    held: dict = field(default_factory=dict)
    history: list = field(default_factory=list)
    started: list = field(default_factory=list)

    def check(self, world_size):
        pass

    def take(self, _job):
        return self.pool.take(self.per_job)

    def give_back(self, devices):
        self.pool.give_back(devices)

    def start(self, job, _order, devices, attempt):
        self.started.append((job.number, attempt))
        self.held[job.number] = devices
        self.history.append(dict(self.held))
        scripts = self.scripts[job.number]
        return FakeTeam(self, job, **scripts[min(attempt, len(scripts) - 1)])


class Remembering:
    """A view that remembers what it was told."""

    def __init__(self):
        self.said, self.shown = [], 0

    def show(self, _records):
        self.shown += 1

    def say(self, text):
        self.said.append(text)


class NoSignals:
    wish = None


def job_of(folder, number, *overrides, world_size=1, **launch):
    return Job(
        number, overrides or (f"seed={number}",), run_config(launch=launch), folder / str(number), world_size=world_size
    )


def engine_of(folder, crew, **settings):
    ledger = Ledger.open(folder, Definition((), {}, None))
    return Engine(crew, ledger, NoSignals(), lambda job: job.run_dir, view=Remembering(), **settings)


def after(looks, **ending):
    return {"looks": looks, **ending}


def changed(record, **values):
    return replace(record, **values)
