"""How many threads each rank computes with: usable cores by the ranks of the node, unless somebody says otherwise."""

import os
import re

import pytest

from launcher.processes.environment import Rank
from launcher.processes.threads import threads_per_rank, usable_cores, users_own_threads
from tests.launcher.command import CONFIGS, launch


@pytest.mark.parametrize(
    ("ranks", "asked", "users_own", "cores", "threads"),
    [
        (1, None, None, 8, 8),
        (2, None, None, 8, 4),
        (3, None, None, 8, 2),
        (16, None, None, 8, 1),
        (2, None, "3", 8, 3),
        (2, 5, "3", 8, 5),
        (2, None, "0", 8, 4),
        (2, None, "4,2", 8, 4),
        (2, None, "", 8, 4),
    ],
)
def test_the_number_of_threads(ranks, asked, users_own, cores, threads):
    assert threads_per_rank(Rank(0, ranks, 0, ranks), asked, users_own, cores) == threads


@pytest.mark.parametrize(
    ("ranks", "asked", "users_own", "threads"),
    [(1, None, None, 1), (3, None, None, 1), (3, 4, None, 4), (3, None, "2", 1), (3, 5, "2", 5), (3, None, "0", 1)],
)
def test_in_exact_mode_it_does_not_depend_on_the_ranks(ranks, asked, users_own, threads):
    assert threads_per_rank(Rank(0, ranks, 0, ranks), asked, users_own, 8, exact=True) == threads


def test_in_exact_mode_the_variable_has_no_effect_and_that_is_said(tmp_path):
    words = (f"--config-dir={CONFIGS}", "experiment=tiny", "launch.threads_per_rank=null", "batch.exact=true")
    variables = {"TORCHELASTIC_RUN_ID": "", "OMP_NUM_THREADS": "2"}
    done = launch(tmp_path, 2, *words, "model=noted", "trainer.max_steps=1", environment=variables)
    assert done.status == 0, done.error
    assert "1 thread each\n" in done.output
    assert re.search(r"threads (\d)", done.log(0))[1] == "1"


def test_without_torchrun_the_variable_is_the_users():
    assert users_own_threads(Rank(), {"OMP_NUM_THREADS": "3"}) == "3"
    assert users_own_threads(Rank(started_by="slurm"), {"OMP_NUM_THREADS": "3"}) == "3"
    assert users_own_threads(Rank(), {}) is None


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs affinity masks")
def test_an_affinity_mask_counts(tmp_path):
    core = min(os.sched_getaffinity(0))

    def bind():
        os.sched_setaffinity(0, {core})
        assert usable_cores() == 1

    words = (f"--config-dir={CONFIGS}", "experiment=tiny", "launch.threads_per_rank=null", "trainer.max_steps=1")
    done = launch(tmp_path, 1, *words, before=bind)
    assert done.status == 0, done.error
    assert "devices          1 rank on cpu, 1 thread each\n" in done.output


def test_the_setting_wins(tmp_path):
    words = (f"--config-dir={CONFIGS}", "experiment=tiny", "launch.threads_per_rank=3", "model=noted")
    done = launch(tmp_path, 2, *words, "model.stamp=x", "trainer.max_steps=1")
    assert "devices          2 ranks on cpu, 3 threads each\n" in done.output
    assert [re.search(r"threads (\d)", done.log(rank))[1] for rank in range(2)] == ["3", "3"]
