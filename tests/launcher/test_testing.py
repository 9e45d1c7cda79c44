import multiprocessing
import os

import pytest
import torch
import torch.distributed as dist

from launcher.testing import RankError, simulate


def gather(word):
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, f"{word}{dist.get_rank()}")
    return values


@pytest.mark.parametrize("world_size", [1, 3, 5])
def test_every_rank_gives_its_value(world_size):
    names = [f"r{rank}" for rank in range(world_size)]
    assert simulate(world_size, gather, "r") == [names] * world_size


def test_a_function_from_inside_a_test_works():
    base = 40
    assert simulate(2, lambda: base + dist.get_rank()) == [40, 41]


def test_a_rank_starts_processes_as_any_process_does():
    assert simulate(1, multiprocessing.get_start_method) == [multiprocessing.get_start_method()]


def test_the_first_error_is_raised_while_others_wait_in_a_collective():
    def fail():
        if dist.get_rank() == 1:
            raise KeyError("lost")
        dist.all_reduce(torch.zeros(1))

    with pytest.raises(KeyError, match="lost") as caught:
        simulate(3, fail)
    assert "rank 1" in str(caught.value.__cause__)


def test_a_rank_that_dies_is_named():
    with pytest.raises(RankError, match="rank 2 ended with exit status 7, without a word"):
        simulate(3, lambda: os._exit(7) if os.environ["RANK"] == "2" else None, process_group=False)


def test_ranks_that_hang_are_named():
    def hang():
        while os.environ["RANK"] == "0":
            pass

    with pytest.raises(TimeoutError, match="rank 0 of 2 ranks did not end in time"):
        simulate(2, hang, timeout_s=3, process_group=False)


def test_an_error_that_cannot_be_pickled_keeps_its_text():
    class OddError(Exception):
        def __reduce__(self):
            raise TypeError("no")

    def fail():
        raise OddError("odd")

    with pytest.raises(RankError, match="OddError: odd"):
        simulate(2, fail)


def test_a_world_without_ranks_is_refused():
    with pytest.raises(ValueError, match="world_size=0 is too small"):
        simulate(0, gather, "r")


def test_the_environment_is_that_of_torchrun():
    def look():
        return os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["EXTRA"]

    assert simulate(2, look, environment={"EXTRA": "e"}) == [("0", "2", "e"), ("1", "2", "e")]
