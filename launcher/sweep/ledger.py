"""``sweep.json``: which jobs a sweep has, and what became of each, so that it can go on after any end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

from launcher.configure.command_line import name_of
from launcher.files import below, replace_durably
from launcher.observe.status import to_json
from launcher.processes.errors import SettingsError
from launcher.sweep.jobs import RUNNING, WAITING, Job, Record

NAME = "sweep.json"
VERSION = 1
NOT_COMPARED = ("sweep.", "launch.", "hydra.")
"""Overrides that say how a sweep is carried out, not which jobs it has."""

HOW_MUCH = ("n_trials", "n_jobs", "max_batch_size", "storage")
"""Settings of sweepers that say the same: a search may go on for longer. A storage may hold a password."""


@dataclass(frozen=True)
class Definition:
    """What a sweep searches, by which it is known again.

    Attributes:
        overrides: of the command line, in order, but for those that only say how it is carried out.
        sweeper: Hydra's sweeper and its settings.
        metric: ``sweep.metric``.
    """

    overrides: tuple[str, ...]
    sweeper: Mapping[str, Any]
    metric: str | None

    @classmethod
    def of(cls, overrides: Iterable[str], sweeper: Mapping[str, Any], metric: str | None) -> Definition:
        """That of a command line."""
        kept = [text for text in overrides if not name_of(text).startswith(NOT_COMPARED)]
        settings = {name: value for name, value in sweeper.items() if name not in HOW_MUCH}
        return cls(tuple(sorted(kept)), json.loads(json.dumps(settings)), metric)

    def lines(self) -> list[str]:
        """One line for each thing that it says."""
        settings = [f"hydra.sweeper.{name}={json.dumps(value)}" for name, value in self.sweeper.items()]
        return [*self.overrides, *settings, f"sweep.metric={self.metric}"]


def key_of(overrides: Sequence[str]) -> str:
    """What a job is known by: its effective overrides, in any order and any spelling of their values.

    >>> key_of(["b=x", "+a=0.10", "b=y"]) == key_of(["b='y'", "a=0.1"])
    True
    """
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    values = {o.key_or_group: ["~"] if o.is_delete() else o.value() for o in parsed}
    return json.dumps(values, sort_keys=True, default=str)


class Ledger:
    """The jobs of a sweep, in a file that is rewritten in one move whenever one begins or ends.

    Args:
        sweep_dir: where the file lies.
        definition: of the sweep.
        records: of jobs that are known already.
    """

    def __init__(self, sweep_dir: Path, definition: Definition, records: Iterable[Record] = ()) -> None:
        self.sweep_dir = sweep_dir
        self._definition = definition
        self._records = {record.number: record for record in records}
        self._keys = {number: key_of(record.overrides) for number, record in self._records.items()}

    @classmethod
    def open(cls, sweep_dir: Path, definition: Definition) -> Ledger:
        """That of a folder, new or known.

        Raises:
            SettingsError: where the folder holds another sweep, with the difference, or a file that cannot be read.
        """
        file = sweep_dir / NAME
        if not file.exists():
            return cls(sweep_dir, definition)
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            found = {content["version"]: content}[VERSION]
            before = Definition(**{**found["definition"], "overrides": tuple(found["definition"]["overrides"])})
            records = [_record(job) for job in found["jobs"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SettingsError(
                f"hydra.sweep.dir={sweep_dir}: {NAME} there is not that of a sweep of this version; give another folder"
            ) from error
        _compare(before, definition, sweep_dir)
        return cls(sweep_dir, definition, records)

    @property
    def records(self) -> list[Record]:
        """The jobs by number."""
        return [self._records[number] for number in sorted(self._records)]

    def number_for(self, overrides: Sequence[str], wanted: int) -> int:
        """The number of a job: the one that is ``wanted``, or the next that is free where another job has that."""
        key = key_of(overrides)
        while self._keys.setdefault(wanted, key) != key:
            wanted += 1
        return wanted

    def twin_of(self, job: Job) -> Record | None:
        """The job before this one that has the same effective overrides."""
        key = key_of(job.overrides)
        found = [number for number, other in self._keys.items() if other == key and number < job.number]
        return self._records.get(min(found)) if found else None

    def of(self, job: Job) -> Record:
        """What is known of a job; that it waits, where nothing is."""
        if job.number not in self._records:
            self.note(Record(job.number, job.overrides, self._folder_of(job)))
        return self._records[job.number]

    def owners(self) -> dict[Path, tuple[int, str]]:
        """Number and effective overrides of the first job in each run folder."""
        found: dict[Path, tuple[int, str]] = {}
        for record in self.records:
            found.setdefault(self.sweep_dir / record.folder, (record.number, self._keys[record.number]))
        return found

    def check_folder(self, job: Job) -> None:
        """Refuse a job that an earlier start of the sweep left in another folder.

        Raises:
            SettingsError: with both.
        """
        record, folder = self._records.get(job.number), self._folder_of(job)
        if record and record.same_as is None and record.folder != folder:
            raise SettingsError(
                f"hydra.sweep.subdir gives job {job.number} the folder {folder}, and it has {record.folder} in "
                f"{self.sweep_dir / NAME}; give hydra.sweep.subdir as before, or another hydra.sweep.dir"
            )

    def _folder_of(self, job: Job) -> str:
        return str(below(job.run_dir, self.sweep_dir))

    def note(self, record: Record) -> None:
        """Take down how a job stands; not in the file yet."""
        if record.number not in self._keys:
            self._keys[record.number] = key_of(record.overrides)
        self._records[record.number] = record

    def write(self, state: str) -> None:
        """Rewrite the file.

        Args:
            state: of the sweep: running, finished, failed or preempted.
        """
        content = {
            "version": VERSION,
            "state": state,
            "definition": asdict(self._definition),
            "jobs": [asdict(record) for record in self.records],
        }
        replace_durably(self.sweep_dir / NAME, (to_json(content) + "\n").encode())


def _record(job: dict[str, Any]) -> Record:
    """What is known from before: a job that was running is not any more."""
    lists = {name: tuple(job[name]) for name in ("overrides", "devices")}
    return Record(**{**job, **lists, "state": WAITING if job["state"] == RUNNING else job["state"]})


def _compare(before: Definition, now: Definition, sweep_dir: Path) -> None:
    there, here = before.lines(), now.lines()
    differ = [
        *(f"{text} there" for text in there if text not in here),
        *(f"{text} here" for text in here if text not in there),
    ]
    if differ:
        raise SettingsError(
            f"hydra.sweep.dir={sweep_dir} holds another sweep: {'; '.join(differ)}; give the overrides of that sweep, "
            "or another folder"
        )
