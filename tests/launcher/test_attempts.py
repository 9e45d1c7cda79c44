"""Ranks of several nodes belong to one attempt, although their agents count restarts differently."""

import os
from dataclasses import replace

import torch.distributed as dist

from launcher import cli
from launcher.instructions import ORDERS, REMEMBERED, Instructions, remembered
from launcher.processes.attempts import agreed
from launcher.processes.environment import Rank
from tests.launcher.command import TINY, launch


def rank_of_nodes(rank, **more):
    given = {"local_world_size": 1, **more}
    return Rank(rank=rank, world_size=2, started_by="torchrun", store_outlives_ranks=True, **given)


def test_rank_zero_counts_and_tells_who_asks_and_who_does_not_hear_it_any_more():
    store = dist.HashStore()
    first, _ = agreed(rank_of_nodes(0), store)
    store.set(f"attempt/asked/{store.add('attempt/asked', 1)}", "one that died before it was told")
    store.add("attempt/asked", 1)  # one that died before it said its name
    second, attempt = agreed(rank_of_nodes(0), store)
    assert (first.attempt, second.attempt) == (0, 1)
    store.set(f"attempt/asked/{store.add('attempt/asked', 1)}", "a newcomer")
    attempt.answer()
    assert store.get("attempt/a newcomer") == store.get("attempt/one that died before it was told") == b"1"
    store.set("attempt/asked/2", "a slow one")
    attempt.answer()
    assert store.get("attempt/a slow one") == b"1"


def test_on_one_node_its_agent_counts_until_there_were_several():
    store = dist.HashStore()
    alone = rank_of_nodes(0, attempt=3, local_world_size=2)
    assert agreed(alone, store) == (alone, None)
    assert agreed(replace(alone, rank=1), store) == (replace(alone, rank=1), None)
    assert agreed(rank_of_nodes(0), store)[0].attempt == 1
    assert agreed(alone, store)[0].attempt == 2


def test_who_was_stopped_for_other_nodes_to_take_part_was_not_preempted():
    store, run = dist.HashStore(), Instructions(run_dir="run")
    assert remembered(Rank(), store) is None
    store.set(ORDERS, run.to_json())
    store.set(REMEMBERED, Instructions(exit_status=75).to_json())
    assert remembered(Rank(), store) == run
    assert remembered(Rank(restarts=1), store).exit_status == 75


def test_ranks_whose_agents_count_differently_run_together(tmp_path):
    def counted():
        number = int(os.environ["RANK"])
        cli.agreed = lambda rank, store: agreed(replace(rank, attempt=number), store)

    done = launch(tmp_path, 3, *TINY, "trainer.max_steps=1", environment={"LOCAL_WORLD_SIZE": "1"}, before=counted)
    assert done.status == 0, done.error
    assert (done.state["state"], done.state["restarts"]) == ("finished", 0)
