"""Streams: disjoint parts, equal numbers of micro-batches, an end that is agreed on, resume by rows."""

import json
from itertools import islice

import pytest
from torch import distributed
from torch.utils.data import IterableDataset

from launcher.testing import simulate
from samplers import FixedGlobalBatchStream


class Count(IterableDataset):
    def __init__(self, stop):
        self.stop = stop

    def __iter__(self):
        return iter(range(self.stop))


class Shifted(IterableDataset):
    """Another order every epoch."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter([(row + 5 * self.epoch) % 24 for row in range(24)])


def parts(*lengths):
    """Part p holds the rows 100 * p, 100 * p + 1, ..."""
    return [range(100 * part, 100 * part + length) for part, length in enumerate(lengths)]


def stream(source, global_size, rank=0, world_size=1, **settings):
    return FixedGlobalBatchStream(
        source, global_size, rank, world_size, collate_fn=list, **{"min_per_device": 1, **settings}
    )


def one_pass(source, global_size, state=None, take=None, **settings):
    """This rank's micro-batches with their shares, in a process group or alone."""
    group = distributed.is_initialized()
    rank, size = (distributed.get_rank(), distributed.get_world_size()) if group else (0, 1)
    loader = stream(source, global_size, rank, size, **settings)
    if state is not None:
        loader.load_state_dict(json.loads(json.dumps(state)))
    return [(rows, loader.share(place)) for place, rows in enumerate(islice(loader, take))]


def run(world_size, *arguments, **settings):
    """Real rows of each step over all ranks of a world, and the sizes of all micro-batches."""
    call = lambda: one_pass(*arguments, **settings)  # noqa: E731 - it travels to other processes
    ranks = [call()] if world_size == 1 else simulate(world_size, call)
    assert len({len(micro_batches) for micro_batches in ranks}) == 1
    steps = {}
    for micro_batches in ranks:
        for rows, share in micro_batches:
            assert len(rows) == share.rows >= 1
            steps.setdefault(share.step, []).extend(rows[: share.real_rows])
            assert share.global_rows <= arguments[1]
    totals = {share.step: share.global_rows for micro_batches in ranks for _, share in micro_batches}
    assert totals == {step: len(rows) for step, rows in steps.items()}
    return [sorted(rows) for _, rows in sorted(steps.items())]


@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_one_dataset_has_the_same_global_batches_in_every_world(tail):
    expected = [list(range(at, min(at + 10, 47))) for at in range(0, 47 if tail == "pad" else 40, 10)]
    for world_size in (1, 2, 3):
        assert run(world_size, Count(47), 10, tail=tail) == expected


def test_parts_have_the_same_global_batches_in_every_world():
    source = parts(9, 9, 9, 9, 9, 9)
    expected = run(1, source, 8)
    assert expected[0] == sorted([0, 100, 200, 300, 400, 500, 1, 101])
    assert len(expected) == 6
    for world_size in (2, 3):
        assert run(world_size, source, 8, max_per_device=2) == expected


@pytest.mark.parametrize("lengths", [(30, 2, 30, 30), (1, 40, 1, 1), (0, 9, 9, 9), (9, 9, 9, 8), (0, 5, 0, 5)])
@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_whatever_the_length_of_each_part_all_ranks_end_together(lengths, tail):
    source = parts(*lengths)
    everything = sorted(row for part in source for row in part)
    if tail == "drop" and min(lengths) * 4 < 4:
        with pytest.raises(
            ValueError, match="global_size=4 with tail='drop' leaves no whole global batch in the stream"
        ):
            simulate(2, lambda: one_pass(source, 4, tail=tail))
        return
    expected = run(1, source, 4, tail=tail)
    assert run(2, source, 4, tail=tail) == expected
    rows = sorted(row for step in expected for row in step)
    assert rows == (everything if tail == "pad" else [row for row in everything if row % 100 < min(lengths)])


def test_ranks_that_differ_are_told_so():
    def both():
        rank = distributed.get_rank()
        return list(stream(Count(40), 8, rank, 2, max_per_device=[None, 2][rank]))

    with pytest.raises(ValueError, match=r"the samplers of the ranks differ .*'max_per_device'"):
        simulate(2, both)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.usefixtures("collected")
def test_workers_read_disjoint_parts():
    for source in (Count(47), parts(9, 12, 9, 9)):
        expected = run(1, source, 8)
        for workers in (1, 3):
            assert run(1, source, 8, workers=workers) == expected
    assert run(2, parts(9, 12, 9, 9), 8, workers=2) == run(1, parts(9, 12, 9, 9), 8)


@pytest.mark.parametrize("tail", ["drop", "pad"])
@pytest.mark.parametrize("source", [Count(47), parts(12, 9, 14, 12)])
@pytest.mark.usefixtures("collected")
def test_every_stop_continues_in_any_world_with_any_workers(source, tail):
    whole = run(1, source, 8, tail=tail)
    loader = stream(source, 8, tail=tail, max_per_device=4)
    list(loader)
    for stop in range(len(whole)):
        state = loader.state_dict(8 * stop)
        assert run(1, source, 8, state, tail=tail, workers=stop % 3) == whole[stop:]
    assert run(2, source, 8, loader.state_dict(16), tail=tail) == whole[2:]
    assert loader.state_dict(8 * len(whole))["epoch"] == 1


def test_epochs_move_on_and_the_dataset_is_told():
    loader = stream(Shifted(), 8)
    first, second = list(loader), list(loader)
    assert loader.epoch == 1
    assert first[0] == list(range(8))
    assert second[0] == list(range(5, 13))
    loader.set_epoch(0)
    assert list(loader) == first
    loader.set_epoch(0)
    assert next(iter(loader)) == next(iter(loader)) == first[0]


def test_a_state_from_the_very_end_continues_with_the_next_epoch():
    loader = stream(Shifted(), 8)
    drawn = list(islice(loader, 3))
    assert len(drawn) == 3
    state = loader.state_dict(24)
    after = stream(Shifted(), 8)
    after.load_state_dict(state)
    assert next(iter(after)) == list(range(5, 13))
    assert after.epoch == 1


def test_a_loop_that_chooses_epochs_trains_none_twice_after_a_state_from_the_very_end():
    loader = stream(Shifted(), 8)
    list(islice(loader, 3))
    state = loader.state_dict(24)
    after = stream(Shifted(), 8)
    after.load_state_dict(state)
    epochs = []
    for epoch in range(after.epoch, 3):
        after.set_epoch(epoch)
        epochs += [after.epoch for _ in after]
    assert epochs == [1, 1, 1, 2, 2, 2]


def test_epochs_after_a_resumed_one_are_whole():
    loader = stream(Shifted(), 8)
    list(loader)
    after = stream(Shifted(), 8)
    after.load_state_dict(loader.state_dict(16))
    assert [len(list(after)) for _ in range(3)] == [1, 3, 3]


def test_a_changed_global_size_continues_by_rows():
    loader = stream(Count(40), 8)
    list(loader)
    after = stream(Count(40), 5, allow_global_size_change=True)
    after.load_state_dict(loader.state_dict(16))
    assert next(iter(after)) == [16, 17, 18, 19, 20]


def test_padded_rows_come_last_and_do_not_count():
    found = one_pass(Count(10), 8, tail="pad", max_per_device=4)
    assert [rows for rows, _ in found] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1], [2, 3, 4, 5]]
    assert [(share.step, share.real_rows, share.global_rows) for _, share in found] == [
        (0, 4, 8),
        (0, 4, 8),
        (1, 2, 2),
        (1, 0, 2),
    ]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: stream(parts(*[9] * 8), 4, 0, 3),
            "source has 8 parts, which world_size=3 ranks cannot share evenly: .* as 9",
        ),
        (lambda: stream([], 4), "source has 0 parts"),
        (lambda: stream(8, 4), "source=int is no stream"),
        (lambda: stream([1, 2], 2), r"source\[0\]=1 cannot be read row by row: give an iterable for each part"),
        (lambda: stream(["a", "b"], 2), r"source\[0\]='a' cannot be read"),
        (lambda: stream([iter([1])], 1), r"source\[0\]=list_iterator is an iterator, which can be read only once"),
        (
            lambda: FixedGlobalBatchStream(Count(8), 4, 0, 1, min_per_device=1, collate_fn=None),
            "collate_fn=None cannot be called: leave it out",
        ),
        (lambda: stream(Count(8), 4, loader_options=5), "loader_options=5 is no mapping"),
        (
            lambda: stream(Count(8), 4, workers=1, loader_options={"batch_size": 3}),
            "loader_options has batch_size=3, which the stream sets by itself: leave it out",
        ),
        (
            lambda: stream(Count(8), 4, workers=1, loader_options={"speed": 3}),
            "loader_options has speed=3, which no DataLoader takes",
        ),
        (
            lambda: stream(Count(8), 4, loader_options={"timeout": 3}),
            r"loader_options=\{'timeout': 3\} have no effect with workers=0: set workers",
        ),
        (lambda: stream(Count(8), 4, tail="spread"), "tail='spread': a stream has no known end, so it must be 'drop'"),
        (lambda: stream(Count(8), 4, workers=-1), "workers=-1 is too small"),
        (lambda: stream(Count(8), 4, min_per_device=5), "global_size=4 is smaller than min_per_device=5"),
        (lambda: next(iter(stream(Count(8), 4, 0, 2))), "world_size=2 ranks must agree .* the process group has 0"),
        (lambda: list(stream(Count(3), 4)), "leaves no whole global batch in the stream"),
        (lambda: stream(Count(8), 4).state_dict(4), "rows_done=4 is no place .* was drawn up to 0"),
        (lambda: stream(Count(8), 4).set_epoch(-1), "epoch=-1 is too small"),
        (lambda: stream(Count(8), 4).load_state_dict(stream(Count(8), 2).state_dict(0)), "global_size: state 2, this"),
    ],
)
def test_wrong_settings(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_share_that_was_not_drawn_is_an_index_error():
    loader = stream(Count(8), 4)
    with pytest.raises(IndexError, match="micro_batch=0 was not drawn in the pass of epoch 0, nor was any other"):
        loader.share(0)
    next(iter(loader))
    with pytest.raises(IndexError, match="micro_batch=1 was not drawn in the pass of epoch 0: it must be from 0 to 0"):
        loader.share(1)


def test_workers_that_find_no_part_are_said(caplog):
    stream(parts(8, 8), 4, workers=5)
    assert "workers=5 exceeds the 2 parts of each rank" in caplog.text


def test_options_reach_the_workers():
    loader = stream(parts(8, 8), 4, workers=1, loader_options={"prefetch_factor": 1})
    assert len(list(loader)) == 4


@pytest.mark.parametrize(
    ("source", "tail", "rows", "there"),
    [
        (Count(20), "drop", 24, 20),
        (Count(20), "drop", 10**6, 20),
        (Count(20), "pad", 24, 20),
        (Count(18), "drop", 20, 18),
        (parts(5, 6), "drop", 12, 10),
        (parts(5, 6), "pad", 16, 12),
        (parts(0, 6), "pad", 16, 12),
    ],
)
@pytest.mark.usefixtures("collected")
def test_a_state_beyond_the_end_of_the_stream_is_refused(source, tail, rows, there):
    state = {**stream(source, 4, tail=tail).state_dict(0), "rows": rows}
    message = rf"state\['rows'\]={rows} lies beyond the end of the stream, which has {there} rows in epoch 0"
    for workers in (0, 2) if tail == "pad" and rows == 16 else (0,):
        with pytest.raises(ValueError, match=message):
            run(1, source, 4, state, tail=tail, workers=workers)


def test_a_state_beyond_the_end_is_refused_on_every_rank():
    for source, tail, rows in ((parts(5, 6), "drop", 12), (parts(5, 6), "pad", 16)):
        state = {**stream(source, 4, tail=tail).state_dict(0), "rows": rows}

        def refused(source=source, tail=tail, state=state):
            with pytest.raises(ValueError, match="lies beyond the end of the stream"):
                one_pass(source, 4, state, tail=tail)

        simulate(2, refused)


@pytest.mark.parametrize(
    ("source", "tail", "rows"),
    [(Count(20), "drop", 20), (Count(18), "pad", 20), (Count(22), "drop", 20), (parts(5, 6), "pad", 12)],
)
def test_a_state_at_the_very_end_is_accepted(source, tail, rows):
    state = {**stream(source, 4, tail=tail).state_dict(0), "rows": rows}
    for world_size in (1, 2) if rows == 12 else (1,):
        assert run(world_size, source, 4, state, tail=tail) == run(1, source, 4, tail=tail)
