"""When the process that launched a run is gone, however it went, the processes of the run end by themselves."""

import sys

import psutil

from launcher.processes.signals import lives
from tests.launcher.test_signals import ENDLESS, check_preempted, trains, wait_for
from tests.launcher.test_torchrun import start, torchrun

WORDS = (*ENDLESS, "hydra.run.dir=run", "data.workers=1")


def descendants(process):
    return [child.pid for child in psutil.Process(process.pid).children(recursive=True)]


def test_killed_launchers_leave_nothing_behind_but_a_checkpoint_not_even_a_stopped_rank(tmp_path):
    launchers = {
        "torchrun": start(tmp_path / "torchrun", torchrun(*WORDS, ranks=1)),
        "own": start(tmp_path / "own", [sys.executable, "-m", "launcher", *WORDS, "launch.processes=2"]),
    }
    left = []
    for name, process in launchers.items():
        ranks = 2 if name == "own" else 1
        wait_for(lambda run_dir=tmp_path / name / "run", ranks=ranks: trains(run_dir, ranks))
        found = descendants(process)
        assert len(found) >= 2 * ranks, "ranks with a loader worker each"
        left += found
        if name == "own":
            next(rank for rank in map(psutil.Process, found) if rank.environ().get("RANK") == "1").suspend()
        process.kill()
        process.wait()
    wait_for(lambda: not any(lives(process) for process in left))
    for process in launchers.values():
        assert "error" not in process.communicate()[1]
    check_preempted(tmp_path / "torchrun" / "run", 1)
