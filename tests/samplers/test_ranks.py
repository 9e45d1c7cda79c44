import subprocess
import sys

import pytest
from torch import distributed

from samplers import ExactlyOnceSampler, FixedGlobalBatchSampler
from samplers.ranks import resolve_ranks


@pytest.mark.parametrize(
    ("rank", "world_size", "message"),
    [
        (0, None, "rank=0 and world_size=None: one is given without the other"),
        (None, 2, "rank=None and world_size=2: one is given without the other"),
        (0, 0, "world_size=0 is too small: it must be at least 1"),
        (2, 2, "rank=2 lies outside world_size=2: it must be from 0 to 1"),
        (-1, 2, "rank=-1 is too small: it must be at least 0; give a rank from 0 to 1"),
        (0.0, 2, "rank=0.0 is of type float"),
        (0, True, "world_size=True is a bool"),
    ],
)
def test_wrong_ranks(rank, world_size, message):
    with pytest.raises(ValueError, match=message):
        resolve_ranks(rank, world_size)


@pytest.mark.parametrize("value", ["", "1", None])
def test_one_process_is_rank_0_of_1(monkeypatch, value):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if value is not None:
        monkeypatch.setenv("WORLD_SIZE", value)
    assert resolve_ranks(None, None) == (0, 1)


@pytest.mark.parametrize("make", [lambda: FixedGlobalBatchSampler(64, 32), lambda: ExactlyOnceSampler(64)])
def test_several_processes_without_a_group_are_an_error(monkeypatch, make):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="environment says WORLD_SIZE=2, but no process group exists"):
        make()


def test_ranks_come_from_the_process_group(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        assert resolve_ranks(None, None) == (0, 1)
    finally:
        distributed.destroy_process_group()


def test_importing_brings_in_neither_the_launcher_nor_hydra():
    program = (
        "import sys, samplers; "
        "print(sorted(name for name in sys.modules if name.split('.')[0] in {'hydra', 'omegaconf', 'launcher'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert done.stderr == ""
