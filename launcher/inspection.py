"""What a run folder holds, and where its run would continue; nothing in it is touched."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from launcher.checkpoints import store
from launcher.checkpoints.generation import BEST, FILES, Facts, read_facts
from launcher.configure.given import Given
from launcher.configure.run_folder import CONFIG, LOCK
from launcher.configure.schema import RunConfig
from launcher.files import holder_of
from launcher.observe.status import NAME as STATUS
from launcher.observe.status import Status, read_status
from launcher.processes.errors import SettingsError
from launcher.sweep.order import NAME as ORDER
from samplers.words import counted

SHOWN = 16
"""Letters of a digest that are shown."""


@dataclass(frozen=True)
class Found:
    """A generation as it is found.

    Attributes:
        folder: of the generation.
        size: bytes of all files in it.
        facts: what is plain to read about it; None where it cannot be read.
        problem: what is wrong with it; None: it is whole.
    """

    folder: Path
    size: int
    facts: Facts | None
    problem: str | None

    def __str__(self) -> str:
        """One line."""
        words = [self.folder.name, store.megabytes(self.size)]
        if self.facts is not None:
            rows, ranks = counted(self.facts.rows, "row", ","), counted(self.facts.world_size, "rank")
            words += [f"epoch {self.facts.epoch + 1}", rows, ranks]
        best = self.facts.best if self.facts is not None and self.facts.is_best else None
        if best:
            words.append(f"best {best['metric'].lstrip('-')} {best['value']:.4f}")
        return "  ".join([*words, self.problem or "whole"])


def inspect_text(run_dir: Path) -> str:
    """What is found in a run folder, also in that of a run that is going on.

    Raises:
        SettingsError: where it is none.
    """
    root = run_dir / store.FOLDER
    found = [look_at(folder) for folder in store.generations(root) if folder.exists()]
    if not (found or (run_dir / CONFIG).exists() or (run_dir / STATUS).exists()):
        if (run_dir / ORDER).exists():
            return f"run folder       {run_dir}\nstate            not begun: it waits for its turn"
        raise SettingsError(
            f"{run_dir} is no run folder: it has neither {CONFIG} nor {STATUS} nor {store.FOLDER}/step_*"
        )
    status, whole = read_status(run_dir), [each for each in found if each.problem is None]
    return "\n".join(
        [
            f"run folder       {run_dir}",
            f"state            {_state(status, holder_of(run_dir / LOCK))}",
            f"settings         {_settings(whole)}",
            f"ranks            {_ranks(status, found)}",
            f"checkpoints      {len(whole)} whole of {len(found)}",
            *(f"  {each}" for each in found),
            *(f"  {part.name}  unfinished" for part in sorted(root.glob(f"{store.PART}*"))),
            *_best(run_dir, whole),
            f"continues        {_continues(run_dir, status, found, whole)}",
        ]
    )


def look_at(folder: Path) -> Found:
    """Read all of a generation."""
    facts, problem = None, None
    try:
        store.check_whole(folder, FILES)
        facts = read_facts(str(folder), folder)
    except (store.DamagedError, store.NewerError, SettingsError) as error:
        problem = f"not whole: {error}"
    size = sum(path.stat().st_size for path in folder.glob("*") if path.is_file())
    return Found(folder, size, facts, problem)


def _state(status: Status, holder: str | None) -> str:
    where = f"step {status.step}, epoch {status.epoch + 1}, {counted(status.rows, 'row', ',')}"
    if holder is not None:
        return f"{status.state} at {where}; {holder} works in it"
    if status.state == "running":
        return f"killed after {where}: it says that it is running, and no process works in it"
    why = f": {status.error['type']}: {status.error['message']}" if status.error else ""
    kept = f"; the last checkpoint was not kept: {status.checkpoint_error}" if status.checkpoint_error else ""
    return f"{status.state} at {where}{why}{kept}"


def _settings(whole: list[Found]) -> str:
    """The digests of the settings with which checkpoints were kept, the newest first."""
    kept = [each.facts.settings for each in whole if each.facts]
    digests = dict.fromkeys(RunConfig.from_json(json.dumps(settings)).digest[:SHOWN] for settings in kept)
    return f"digest {', before that '.join(digests)}" if digests else "unknown: no checkpoint tells"


def _ranks(status: Status, found: list[Found]) -> str:
    before = dict.fromkeys(each.facts.world_size for each in found if each.facts)
    others = [str(size) for size in before if size != status.world_size]
    return f"{status.world_size}{f', before that {chr(44).join(others)}' if others else ''}"


def _best(run_dir: Path, whole: list[Found]) -> list[str]:
    """How the best evaluation is named, where it is kept."""
    folders = [each.folder.name for each in whole if each.facts and each.facts.is_best]
    return [f"best             {folders[0]}: checkpoint.load={run_dir / BEST}"] if folders else []


def _continues(run_dir: Path, status: Status, found: list[Found], whole: list[Found]) -> str:
    """Where the run continues, and how."""
    given = Given.kept_in(run_dir)
    if given and "mode=evaluate" in given.line.overrides:
        return "nowhere: it evaluated, and trained nothing"
    if given and "mode=tune" in given.line.overrides:
        return "nowhere: it tried micro-batch sizes, and trained nothing"
    how = (
        f"\n  {given.continuing(run_dir, status.world_size)}"
        if given
        else f" give its settings and hydra.run.dir={run_dir}"
    )
    if not found:
        return f"from the beginning, as no checkpoint was kept:{how}"
    if not whole:
        return "nowhere: no checkpoint is whole"
    newest = whole[0].folder
    over = status.state in ("finished", "stopped") and newest == store.folder_of(newest.parent, status.step)
    more = "; it is over, unless more is asked for, as by trainer.epochs" if over else ""
    return f"from {newest.name}, on any number of ranks{more}:{how}"
