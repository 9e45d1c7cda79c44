"""What is kept, and how it is spoiled."""

from __future__ import annotations

import shutil
from pathlib import Path

from launcher.checkpoints import store
from launcher.checkpoints.generation import FILES
from tests.chaos.schedule import DELETE, Fault


def step_of(folder: Path) -> int:
    """The step of a generation."""
    return int(folder.name.removeprefix(store.GENERATION))


def whole(root: Path) -> list[Path]:
    """The generations that are whole, newest first."""
    return [folder for folder in store.generations(root) if is_whole(folder)]


def is_whole(folder: Path) -> bool:
    """Whether all of a generation is what was written."""
    try:
        store.check_whole(folder, FILES)
    except store.DamagedError:
        return False
    return True


def newest(root: Path) -> int:
    """The step of the newest whole generation; 0: there is none."""
    return max(map(step_of, whole(root)), default=0)


def spoil(root: Path, fault: Fault) -> int | None:
    """Do to the newest whole generation what ``fault`` says; its step, or None where it is the only one, and left."""
    found = whole(root)
    if len(found) <= 1:
        return None
    if fault.kind == DELETE:
        shutil.rmtree(found[0], ignore_errors=True)  # the run may be about to remove it itself
    else:
        _flip(found[0], fault.place)
    return step_of(found[0])


def _flip(folder: Path, place: float) -> None:
    """Flip one bit of the files of a generation, of all bits the one at ``place``."""
    files = sorted(folder.iterdir())
    bit = int(place * 8 * sum(file.stat().st_size for file in files))
    for file in files:
        size = file.stat().st_size
        if bit < 8 * size:
            content = bytearray(file.read_bytes())
            content[bit // 8] ^= 1 << bit % 8
            file.write_bytes(content)
            return
        bit -= 8 * size
