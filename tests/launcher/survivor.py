"""A small run that is stopped and continued: six steps, of which each is kept, and a ledger of the rows."""

import json
import shutil

from launcher.checkpoints import store
from launcher.observe.meter import MEASURED
from tests.launcher.command import CONFIGS

SURVIVOR = (f"--config-dir={CONFIGS}", "experiment=survivor")


def back_to(step, source, folder):
    """A copy of the run of ``source`` as if it had been killed right before its next checkpoint after ``step``."""
    shutil.copytree(source / "run", folder / "run")
    for generation in store.generations(folder / "run" / "checkpoints"):
        if int(generation.name[5:]) > step:
            shutil.rmtree(generation)
    for ledger in (folder / "run").glob("ledger_*"):
        ledger.unlink()


def lines_without_speed(done):
    speed = ("train/rows_per_s", *MEASURED)
    return [{name: value for name, value in line.items() if not name.startswith(speed)} for line in done.metrics]


def ledger(folder, ranks):
    """The rows of each step, over all ranks."""
    parts = [(folder / "run" / f"ledger_{rank}").read_text().splitlines() for rank in range(ranks)]
    return [sorted(int(row) for part in step for row in part.split()) for step in zip(*parts, strict=True)]


def contents(folder):
    """All files of a run folder but for logs."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".log" and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def forge(folder, **files):
    """Put other files into a generation that is whole."""
    content = {name: store.read(folder, name) for name in ("model.pt", "training.pt", "run.json")}
    changed = {name.replace("_", "."): content for name, content in files.items()}
    store.save(folder.parent, int(folder.name[5:]), {**content, **changed})


def facts(folder, **changes):
    """What is plain to read about a generation, with changes."""
    return json.dumps({**json.loads((folder / "run.json").read_text()), **changes}).encode()
