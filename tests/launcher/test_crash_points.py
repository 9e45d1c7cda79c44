"""A save that is killed at any operation, or whose machine loses its current there, leaves a whole generation."""

import os
import shutil
import signal
from dataclasses import dataclass
from functools import partial

import pytest

from launcher.checkpoints import store
from launcher.checkpoints.generation import FILES, choose
from launcher.files import DISK, Disk
from launcher.testing import RankError
from tests.launcher.command import Line, in_turn, launch
from tests.launcher.disks import Counting, Full, Killing, Volatile, build
from tests.launcher.survivor import SURVIVOR, lines_without_speed


def content(word):
    return {name: f"{name} {word}".encode() * 9 for name in FILES}


@dataclass(frozen=True)
class Case:
    """A save, with what was there before.

    Attributes:
        step: that is saved.
        keep: how many stay.
        before: the steps that were kept before.
        damaged: those of them that are not whole.
        best: the step that stays beside them.
        left: the steps at the end.
    """

    step: int
    keep: int
    before: tuple[int, ...] = ()
    damaged: tuple[int, ...] = ()
    best: int | None = None
    left: tuple[int, ...] = ()

    def prepare(self, run):
        run.mkdir()
        for step in self.before:
            folder = store.save(run / "checkpoints", step, content(f"old {step}"))
            if step in self.damaged:
                (folder / FILES[0]).unlink()
        return run / "checkpoints"

    def save(self, root, disk):
        """What the writer does with the disk; returns how many operations it takes until the save is over."""
        store.save(root, self.step, content("new"), disk)
        saved = getattr(disk, "count", 0)
        store.prune(root, self.step, self.keep, self.best, disk=disk)
        return saved

    @property
    def names_left(self):
        return [f"step_{step:08d}" for step in self.left]

    @property
    def newest_before(self):
        return max((step for step in self.before if step not in self.damaged), default=None)


CASES = {
    "the first": Case(1, keep=2, left=(1,)),
    "the next": Case(3, keep=2, before=(1, 2), left=(2, 3)),
    "the only one": Case(2, keep=1, before=(1,), left=(2,)),
    "over itself": Case(3, keep=2, before=(1, 2, 3), left=(2, 3)),
    "over the only one": Case(3, keep=1, before=(3,), left=(3,)),
    "behind damaged ones": Case(3, keep=2, before=(2, 3, 4, 5), damaged=(3, 4, 5), left=(2, 3)),
    "beside the best": Case(4, keep=1, before=(1, 2, 3), best=1, left=(1, 4)),
}


def check(case, root, saved):
    """There is a whole generation, that of before or the new one; once the save was over, the new one."""
    store.sweep(root)
    assert not list(root.glob(".*"))
    found = choose("checkpoint.resume=auto", root).folder if root.exists() else None
    if found is None:
        assert case.newest_before is None
        assert not saved
        return
    held = {name: store.read(found, name) for name in FILES}
    old = (f"step_{case.newest_before:08d}", content(f"old {case.newest_before}")) if case.newest_before else None
    assert (found.name, held) in [(f"step_{case.step:08d}", content("new")), *([] if saved else [old])]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_save_that_ends_after_any_operation(tmp_path, case):
    root = case.prepare(tmp_path / "run")
    volatile = Volatile(tmp_path)
    saved = case.save(root, volatile)
    assert sorted(path.name for path in root.iterdir()) == case.names_left
    assert len(volatile.outcomes) == volatile.count + 1 >= 15
    for operations, outcomes in enumerate(volatile.outcomes):
        for ending, tree in outcomes.items():
            found = tmp_path / f"{operations} {ending}"
            build(tree, found)
            check(case, found / "run" / "checkpoints", operations >= saved)


def test_a_writer_that_is_killed_before_after_or_within_any_operation(tmp_path):
    case = CASES["over itself"]
    root = case.prepare(tmp_path / "before")
    shutil.copytree(root.parent, tmp_path / "done")
    counting = Counting()
    saved = case.save(tmp_path / "done" / "checkpoints", counting)
    writes = [number for number, name in enumerate(counting.names) if name == "write"]
    for number, halfway in [*((n, False) for n in range(counting.count)), *((n, True) for n in writes)]:
        run = tmp_path / f"{number} {halfway}"
        shutil.copytree(root.parent, run)
        assert ending_of(partial(case.save, run / "checkpoints", Killing(number, halfway))) == signal.SIGKILL
        check(case, run / "checkpoints", number >= saved)
        case.save(run / "checkpoints", DISK)
        assert sorted(path.name for path in (run / "checkpoints").iterdir()) == case.names_left


def ending_of(work):
    """The signal that ends a process which does the work."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return os.WTERMSIG(os.waitpid(child, 0)[1])


def test_a_save_that_finds_no_room_at_any_operation_leaves_what_was_there(tmp_path):
    case = CASES["over itself"]
    root = case.prepare(tmp_path / "run")
    shutil.copytree(root.parent, tmp_path / "done")
    counting = Counting()
    store.save(tmp_path / "done" / "checkpoints", case.step, content("new"), counting)
    needing_room = [n for n, name in enumerate(counting.names) if name in ("write", "make_folder", "sync")]
    for number in needing_room:
        run = tmp_path / str(number)
        shutil.copytree(root.parent, run)
        with pytest.raises(OSError, match="No space left on device"):
            store.save(run / "checkpoints", case.step, content("new"), Full(number))
        check(case, run / "checkpoints", saved=False)
    assert len(needing_room) >= 10


def test_a_save_that_would_not_fit_is_not_begun(tmp_path):
    counting = Full(99, free=5 << 20)
    with pytest.raises(OSError, match=r"no space: 5\.5 MB are needed, 5\.2 MB are free"):
        store.save(tmp_path, 1, {"a": bytes(4 << 20)}, counting)
    assert counting.names == []
    store.save(tmp_path, 1, {"a": bytes(3 << 20)}, counting)


KILLED_AT = [("write", 9), ("move", 4), ("delete", 3)]
"""In the third generation, before its second file; before the fourth has its name; while the first is removed."""


def test_a_run_that_is_killed_while_it_saves_ends_as_if_it_were_not(tmp_path):
    words = (*SURVIVOR, "checkpoint.keep=2")
    for name, number in KILLED_AT:
        with pytest.raises(RankError, match="rank 0 was killed by SIGKILL"):
            launch(tmp_path / name, 1, *words, before=partial(kill_at, name, number))
    whole, *again = in_turn(*(Line(tmp_path / name, words) for name in ("whole", *(name for name, _ in KILLED_AT))))
    for done, steps in zip(again, (2, 3, 3), strict=True):
        assert f"checkpoints/step_0000000{steps}: step {steps}, " in done.output, done.error
        assert lines_without_speed(done) == lines_without_speed(whole)
        assert done.state["weights_sha256"] == whole.state["weights_sha256"]


def kill_at(name, number):
    """Let this process be killed after so many operations of this name, before the next."""
    left, does = iter(range(number)), getattr(Disk, name)

    def operation(self, *arguments):
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return does(self, *arguments)

    setattr(Disk, name, operation)
