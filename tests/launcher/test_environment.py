"""Which process this is, from torchrun's variables, from Slurm's, or from neither."""

import os

import pytest

from launcher.processes.environment import LAUNCHER, Rank, take_launcher
from launcher.processes.errors import SettingsError

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29400",
}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "6",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_JOB_ID": "100",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3)",
    "SLURM_STEP_NODELIST": "gpu[03-05]",
}


def without(variables, *names):
    return {name: value for name, value in variables.items() if name not in names}


RANKS = {
    "python": ({}, Rank()),
    "torchrun": (TORCHRUN, Rank(5, 8, 1, 4, "node0", 29400, "torchrun", 0)),
    "torchrun, restarted": (
        {**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "2"},
        Rank(5, 8, 1, 4, "node0", 29400, "torchrun", 2, restarts=2),
    ),
    "torchrun inside Slurm": ({**SLURM, **TORCHRUN}, Rank(5, 8, 1, 4, "node0", 29400, "torchrun", 0)),
    "one node by hand": (
        without(TORCHRUN, "LOCAL_WORLD_SIZE"),
        Rank(5, 8, 1, 8, "node0", 29400, "torchrun", 0),
    ),
    "srun": (SLURM, Rank(3, 6, 1, 2, "gpu03", 20_700, "slurm", 0)),
    "srun, requeued, own address": (
        {**SLURM, "SLURM_RESTART_COUNT": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "5000"},
        Rank(3, 6, 1, 2, "10.0.0.1", 5000, "slurm", 1),
    ),
    "srun, uneven nodes": (
        {**SLURM, "SLURM_NTASKS": "7", "SLURM_NODEID": "2", "SLURM_STEP_TASKS_PER_NODE": "3(x2),1"},
        Rank(3, 7, 1, 1, "gpu03", 20_700, "slurm", 0),
    ),
    "srun, plain host names": (
        {**SLURM, "SLURM_STEP_NODELIST": "alpha,beta"},
        Rank(3, 6, 1, 2, "alpha", 20_700, "slurm", 0),
    ),
    "srun on one node": (
        {**SLURM, "SLURM_STEP_NUM_NODES": "1", "SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": "6"},
        Rank(3, 6, 1, 6, "127.0.0.1", 20_700, "slurm", 0),
    ),
    "srun of one task": ({**SLURM, "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, Rank()),
    "inside an sbatch script": (without(SLURM, "SLURM_STEP_ID"), Rank()),
}


@pytest.mark.parametrize("name", RANKS)
def test_the_rank_is_read_from_the_environment(name):
    variables, rank = RANKS[name]
    assert Rank.from_environment({"PATH": "/bin", **variables}) == rank


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (without(TORCHRUN, "WORLD_SIZE"), "the environment variable WORLD_SIZE is not set; start several processes"),
        (without(TORCHRUN, "RANK"), "the environment variable RANK is not set; start several processes with torchrun"),
        (without(TORCHRUN, "MASTER_ADDR"), "the environment variable MASTER_ADDR is not set"),
        ({**TORCHRUN, "RANK": "x"}, "the environment variable RANK='x' is not a whole number"),
        ({**TORCHRUN, "RANK": "8"}, "RANK=8 is outside 0 <= RANK < WORLD_SIZE=8; start ranks with torchrun"),
        ({**TORCHRUN, "RANK": "-1"}, "RANK=-1 is outside 0 <= RANK < WORLD_SIZE=8"),
        (without(SLURM, "SLURM_LOCALID"), "the environment variable SLURM_LOCALID is not set"),
        (without(SLURM, "SLURM_STEP_NODELIST"), "the environment variable SLURM_JOB_NODELIST is not set"),
    ],
)
def test_variables_that_are_incomplete_or_no_numbers_are_refused(variables, message):
    with pytest.raises(SettingsError) as caught:
        Rank.from_environment(variables)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("name", ["srun", "torchrun"])
def test_several_nodes_are_told_from_one(name):
    assert not RANKS[name][1].one_node
    assert RANKS["srun on one node"][1].one_node


def test_the_launcher_of_a_rank_is_not_that_of_what_the_rank_starts():
    environment = {LAUNCHER: "7", "PATH": "/bin"}
    assert take_launcher(environment) == 7
    assert environment == {"PATH": "/bin"}
    assert take_launcher(environment) == os.getppid()
