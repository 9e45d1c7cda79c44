"""A launcher whose jobs are a formula, and the sweeper on it."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import optuna
from hydra.core.override_parser.overrides_parser import OverridesParser

from launcher.processes.errors import SettingsError
from launcher.sweep.jobs import DONE, FINISHED, PRUNED, RUNNING, Job, Record
from launcher.sweep.optuna_sweeper import OptunaSweeper


class CrashError(BaseException):
    """The process is gone."""


def values_of(overrides):
    return {o.key_or_group: o.value() for o in OverridesParser.create().parse_overrides(list(overrides))}


def parabola(values, _):
    return (values["x"] - 2) ** 2


def always(_):
    return True


def finishes(_):
    return FINISHED


@dataclass
class FormulaLauncher:
    """What the sweeper knows of the launcher; like the engine, it writes down what it knows before it tells.

    Attributes:
        sweep_dir: of the sweep.
        formula: (values, step) -> value of the metric.
        metric: ``sweep.metric``.
        parallel: jobs at a time.
        steps: after which each job is evaluated.
        crash_after: events (a job is given out, evaluated, written down, told) before the process is gone.
        legal: whether values compose.
        ends_as: number -> state of a job at its end.
        ledger: the records of jobs that are over, by number; outlives a crash.
        started: the jobs that ran, in order.
        events: so far.
        most_at_a_time: jobs that ran at the same time.
        plans: whether jobs are shown and none is run.
    """

    sweep_dir: Path
    formula: Callable = parabola
    metric: str | None = "-loss"
    parallel: int = 1
    steps: tuple = (10,)
    crash_after: float = float("inf")
    legal: Callable = always
    ends_as: Callable = finishes
    ledger: dict = field(default_factory=dict)
    started: list = field(default_factory=list)
    events: int = 0
    most_at_a_time: int = 0
    plans: bool = False

    def compose(self, number, overrides):
        if not self.legal(values_of(overrides)):
            raise SettingsError(f"{' '.join(overrides)} cannot be")
        return Job(number, tuple(overrides), None, self.sweep_dir / str(number))

    def event(self):
        self.events += 1
        if self.events > self.crash_after:
            raise CrashError

    def run(self, source):
        if self.plans:
            self.started = list(iter(source.ask, None))
            return []
        running = []
        while True:
            while len(running) < self.parallel and (job := source.ask()) is not None:
                self.event()
                record = self.ledger.get(job.number)
                if record is not None and record.state in DONE:
                    source.tell(record)
                else:
                    self.started.append(job)
                    running.append(self.job(job, source))
            self.most_at_a_time = max(self.most_at_a_time, len(running))
            if not running:
                return [self.ledger[number] for number in sorted(self.ledger)]
            running = [one for one in running if next(one)]

    def job(self, job, source):
        """The life of a job; each evaluation is a turn, and the last one gives False."""
        record = Record(job.number, job.overrides, str(job.number), RUNNING)
        job.run_dir.mkdir(parents=True, exist_ok=True)
        with (job.run_dir / "metrics.jsonl").open("w") as file:
            for step in self.steps:
                value = self.formula(values_of(job.overrides), step)
                file.write(json.dumps({"step": step, "test/loss": value}) + "\n")
                file.write(json.dumps({"step": step + 3, "train/loss": 1.0}) + '\n{"step": 1, "test/lo')
                file.flush()
                file.seek(file.tell() - len('{"step": 1, "test/lo'))
                record = replace(record, step=step + 3, metrics={"test/loss": value, "train/loss": 1.0})
                self.event()
                if source.prunes(record):
                    self.end(source, replace(record, state=PRUNED))
                    yield False
                yield True
        state = self.ends_as(job.number)
        self.end(source, replace(record, state=state, value=value if state == FINISHED else None))
        yield False

    def end(self, source, record):
        self.ledger[record.number] = record
        self.event()
        source.tell(record)
        self.event()


def sweep(launcher, *arguments, **settings):
    """Run a sweep to its end, or to where it crashes."""
    sweeper = OptunaSweeper(**settings)
    sweeper.launcher = launcher
    return sweeper.sweep(list(arguments))


def trials(sweep_dir):
    """What the journal of a sweep holds."""
    backend = optuna.storages.journal.JournalFileBackend(str(sweep_dir / "study.journal"))
    study = optuna.load_study(study_name="sweep", storage=optuna.storages.JournalStorage(backend))
    return study.get_trials()
