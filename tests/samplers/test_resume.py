"""A state speaks of finished rows; loaded anywhere, every row is trained on exactly as often as without a stop."""

import copy
import json
from itertools import islice

import pytest
from torch.utils.data import DataLoader

from samplers import FixedGlobalBatchSampler, Sequential, Shuffled
from samplers.contract import global_batches


def world(source, global_size, world_size, **settings):
    settings = {"min_per_device": 1, **settings}
    return [FixedGlobalBatchSampler(source, global_size, rank, world_size, **settings) for rank in range(world_size)]


def resumed(state, *arguments, **settings):
    samplers = world(*arguments, **settings)
    for sampler in samplers:
        sampler.load_state_dict(json.loads(json.dumps(state)))
    return samplers


def real(samplers):
    return [batch.real for batch in global_batches(samplers)]


def test_the_state_is_small_and_readable():
    sampler = world(12, 4, 1, seed=5)[0]
    assert sampler.state_dict(8) == {
        "version": 1,
        "epoch": 0,
        "rows": 8,
        "carried": 0,
        "n": 12,
        "order": {"order": "Shuffled", "n": 12, "seed": 5},
        "global_size": 4,
        "tail": "drop",
    }


def test_epoch_3_of_12_rows_stopped_after_4():
    before = world(12, 4, 2)
    for sampler in before:
        sampler.set_epoch(3)
    whole, following = real(before), real(before)
    before[0].set_epoch(3)
    after = resumed(before[0].state_dict(4), 12, 4, 2)
    assert [sampler.epoch for sampler in after] == [3, 3]
    assert real(after) == whole[1:]
    assert real(after) == following


def test_one_rank_stops_and_two_continue():
    state = world(Sequential(16), 4, 1)[0].state_dict(4)
    assert [list(sampler) for sampler in resumed(state, Sequential(16), 4, 2)] == [
        [[4, 6], [8, 10], [12, 14]],
        [[5, 7], [9, 11], [13, 15]],
    ]


def test_four_ranks_stop_after_16_of_24_and_two_continue():
    before = world(24, 8, 4)
    done = [row for batch in real(before)[:2] for row in batch]
    before[3].set_epoch(0)
    rest = [row for batch in real(resumed(before[3].state_dict(16), 24, 8, 2)) for row in batch]
    assert sorted(done + rest) == list(range(24))


def test_epochs_after_a_resumed_one_are_whole():
    plain = world(20, 4, 1)
    epochs = [real(plain) for _ in range(5)]
    plain[0].set_epoch(2)
    after = resumed(plain[0].state_dict(12), 20, 4, 3)
    assert real(after) == epochs[2][3:]
    assert real(after) == epochs[3]
    assert real(after) == epochs[4]


@pytest.mark.parametrize(
    ("tail", "done"), [("drop", 8), ("drop", 10), ("pad", 10), ("pad", 12), ("spread", 10), ("carry", 8)]
)
def test_the_end_of_an_epoch_is_the_start_of_the_next(tail, done):
    before = world(10, 4, 1, tail=tail)
    real(before)
    state = before[0].state_dict(done)
    assert (state["epoch"], state["rows"]) == (1, 0)
    assert real(resumed(state, 10, 4, 2, tail=tail)) == real(before)


@pytest.mark.usefixtures("collected")
def test_a_loader_that_draws_ahead_does_not_move_the_state():
    data = list(range(48))
    sampler = world(data, 8, 1)[0]
    loader = DataLoader(data, batch_sampler=sampler, num_workers=2, prefetch_factor=2)
    first = [batch.tolist() for batch in islice(loader, 3)]
    state = sampler.state_dict(24)
    assert (state["epoch"], state["rows"]) == (0, 24)
    rest = list(resumed(state, data, 8, 1)[0])
    assert sorted(row for rows in first + rest for row in rows) == data


def test_a_loader_that_has_drawn_everything_does_not_move_the_state():
    sampler = world(12, 4, 1)[0]
    list(sampler)
    assert sampler.state_dict(4)["rows"] == 4
    assert sampler.state_dict(4)["epoch"] == 0


def test_without_rows_done_the_steps_that_were_drawn_whole_count():
    sampler = world(22, 4, 1, max_per_device=2)[0]
    found = [sampler.state_dict()]
    for _ in sampler:
        found.append(sampler.state_dict())  # noqa: PERF401 - the state of each moment
    assert [(state["epoch"], state["rows"]) for state in found] == [
        *[(0, rows) for rows in (0, 0, 4, 4, 8, 8, 12, 12, 16, 16)],
        (1, 0),
    ]


def test_steps_count_from_the_start_of_the_epoch():
    sampler = resumed(world(16, 4, 1)[0].state_dict(8), 16, 4, 1)[0]
    assert len(sampler) == 2
    assert [sampler.share(place).step for place in range(2)] == [2, 3]


def test_len_of_a_resumed_pass_and_after_it():
    sampler = resumed(world(16, 4, 1)[0].state_dict(8), 16, 4, 1)[0]
    assert (len(sampler), len(list(sampler))) == (2, 2)
    assert (len(sampler), len(list(sampler))) == (4, 4)


def test_set_epoch_keeps_the_position_of_its_own_epoch_only():
    state = world(16, 4, 1)[0].state_dict(8)
    sampler = resumed(state, 16, 4, 1)[0]
    sampler.set_epoch(0)
    assert len(sampler) == 2
    sampler.set_epoch(1)
    assert len(sampler) == 4
    sampler.set_epoch(0)
    assert len(sampler) == 4


def test_a_resumed_pass_that_is_abandoned_is_repeated_from_its_start():
    sampler = resumed(world(16, 4, 1)[0].state_dict(4), 16, 4, 1)[0]
    first = next(iter(sampler))
    assert next(iter(sampler)) == first


@pytest.mark.usefixtures("collected")
@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_chosen_again_after_its_resumed_pass_was_abandoned_keeps_its_position(workers):
    data = list(range(24))
    sampler = resumed(world(data, 4, 1)[0].state_dict(12), data, 4, 1)[0]
    loader = DataLoader(data, batch_sampler=sampler, num_workers=workers, prefetch_factor=4 if workers else None)
    first = next(iter(loader)).tolist()
    sampler.set_epoch(0)
    assert len(loader) == 3
    assert [rows.tolist() for rows in loader][0] == first  # noqa: RUF015 - the whole pass must be drawn


@pytest.mark.parametrize("say", [lambda sampler: sampler.share(1), lambda sampler: sampler.state_dict(16)])
def test_an_epoch_chosen_again_once_training_is_through_with_it_starts_at_its_beginning(say):
    sampler = resumed(world(16, 4, 1)[0].state_dict(8), 16, 4, 1)[0]
    list(sampler)
    say(sampler)
    sampler.set_epoch(0)
    assert len(list(sampler)) == 4


@pytest.mark.usefixtures("collected")
@pytest.mark.parametrize("persistent", [False, True])
def test_len_does_not_change_while_a_resumed_pass_is_iterated_over(persistent):
    data = list(range(24))
    sampler = resumed(world(data, 4, 1)[0].state_dict(12), data, 4, 1)[0]
    loader = DataLoader(data, batch_sampler=sampler, num_workers=2, persistent_workers=persistent)
    assert [len(loader) for _ in loader] == [3, 3, 3]
    assert len(list(loader)) == len(loader) == 6


def test_a_changed_global_size_with_carry_and_epoch_0_again_is_a_fresh_start():
    fresh = world(22, 6, 1, tail="carry")[0]
    after = world(22, 6, 1, tail="carry", allow_global_size_change=True)[0]
    after.load_state_dict(world(22, 4, 1, tail="carry")[0].state_dict(4))
    for epoch in (3, 0):
        after.set_epoch(epoch)
    assert [list(after) for _ in range(3)] == [list(fresh) for _ in range(3)]


@pytest.mark.parametrize("done", [-4, 3, 9, 100, 2.0, True])
def test_rows_done_must_lie_between_steps(done):
    with pytest.raises(ValueError, match=f"rows_done={done}"):
        world(10, 4, 1)[0].state_dict(done)


def test_rows_done_count_from_the_start_of_the_epoch():
    sampler = resumed(world(16, 4, 1)[0].state_dict(8), 16, 4, 1)[0]
    with pytest.raises(
        ValueError, match=r"rows_done=4 is no place .* starts at 8 rows, takes global_size=4 .* ends at 16"
    ):
        sampler.state_dict(4)
    assert sampler.state_dict(12)["rows"] == 12


@pytest.mark.parametrize(
    ("source", "size", "settings", "message"),
    [
        (Shuffled(17, 1), 4, {}, r"n: state 16, this sampler 17; order: .*'n': 16.*'n': 17"),
        (Shuffled(16, 2), 4, {}, r"order: state \{.*'seed': 1\}, this sampler \{.*'seed': 2\}"),
        (Sequential(16), 4, {}, r"'Shuffled'.*'Sequential'"),
        (Shuffled(16, 1), 8, {}, r"global_size: state 4, this sampler 8\).*allow_global_size_change=True"),
        (Shuffled(16, 1), 4, {"tail": "pad"}, r"tail: state 'drop', this sampler 'pad'"),
    ],
)
def test_a_state_of_another_sampler_is_refused_with_both_sides(source, size, settings, message):
    state = world(Shuffled(16, 1), 4, 1)[0].state_dict(8)
    with pytest.raises(ValueError, match=message):
        world(source, size, 1, **settings)[0].load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "state has version=2, this sampler reads version=1"),
        ({"rows": 17}, r"state\['rows'\]=17 exceeds the 16 rows"),
        ({"rows": -1}, r"state\['rows'\]=-1 is too small"),
        ({"epoch": "0"}, r"state\['epoch'\]='0' is of type str"),
        ({"carried": None}, r"state\['carried'\]=None"),
        ({"carried": 1}, r"state\['carried'\]=1 is too large: tail='drop', epoch=0 and n=16 allow 0; the state is"),
        ({"epoch": 10**30}, r"state\['epoch'\]=1000000000000000000000000000000 is too large"),
    ],
)
def test_a_damaged_state_is_refused(change, message):
    sampler = world(16, 4, 1)[0]
    state = {**sampler.state_dict(8), **change}
    with pytest.raises(ValueError, match=message):
        sampler.load_state_dict(state)


@pytest.mark.parametrize(("epoch", "carried"), [(0, 1), (1, 10), (1, 10**9)])
def test_carried_rows_that_no_epoch_can_lend_are_refused(epoch, carried):
    sampler = world(10, 4, 1, tail="carry")[0]
    with pytest.raises(ValueError, match=rf"state\['carried'\]={carried} is too large"):
        sampler.load_state_dict({**sampler.state_dict(0), "epoch": epoch, "carried": carried})


def test_something_else_is_no_state():
    with pytest.raises(TypeError, match="state=3 is no mapping"):
        world(16, 4, 1)[0].load_state_dict(3)


@pytest.mark.parametrize("by_constructor", [True, False])
def test_a_changed_global_size_continues_by_rows(by_constructor):
    state = world(Sequential(24), 4, 1)[0].state_dict(12)
    after = world(Sequential(24), 5, 1, allow_global_size_change=by_constructor)[0]
    after.load_state_dict(state, **({} if by_constructor else {"allow_global_size_change": True}))
    assert list(after) == [[12, 13, 14, 15, 16], [17, 18, 19, 20, 21]]
    assert after.epoch == 0
    assert next(iter(after)) == [0, 1, 2, 3, 4]


def test_a_state_after_a_changed_global_size_can_be_loaded_again():
    state = world(Sequential(24), 4, 1)[0].state_dict(12)
    after = world(Sequential(24), 5, 1, allow_global_size_change=True)[0]
    after.load_state_dict(state)
    again = resumed(after.state_dict(17), Sequential(24), 5, 1)[0]
    assert list(again) == [[17, 18, 19, 20, 21]]


def test_a_changed_global_size_may_leave_no_step_in_the_epoch():
    state = world(Sequential(24), 4, 1)[0].state_dict(20)
    after = world(Sequential(24), 8, 1, allow_global_size_change=True)[0]
    after.load_state_dict(state)
    assert after.epoch == 1
    assert len(list(after)) == 3


def test_a_changed_global_size_with_carry_loses_no_row():
    before = world(Sequential(10), 4, 1, tail="carry")[0]
    trained = [row for _ in range(2) for rows in before for row in rows][:16]
    state = before.state_dict(8)
    after = world(Sequential(10), 3, 1, tail="carry", allow_global_size_change=True)[0]
    after.load_state_dict(state)
    later = [row for _ in range(3) for rows in after for row in rows]
    wanted = [row for _ in range(9) for row in range(10)]
    assert trained + later == wanted[: len(trained) + len(later)]
    assert len(later) > 20


def test_a_state_outlives_the_sampler_that_wrote_it():
    sampler = world(16, 4, 1)[0]
    state = sampler.state_dict(4)
    kept = copy.deepcopy(state)
    list(sampler)
    assert state == kept
