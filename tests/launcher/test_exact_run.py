"""Whole runs in exact mode: the same bits on any number of ranks, with whatever a job may contain."""

import pytest

from launcher.observe.meter import MEASURED
from tests.launcher.command import TINY, Line, in_turn, launch

DIGITS = ("batch.global_size=256", "trainer.epochs=3", "trainer.log_every=1", "launch.threads_per_rank=1")
EXACT = ("batch.exact=true", "batch.shard_rows=32")
WORLDS = (1, 2, 3, 5, 8)

# 6 shards, one of 3 rows and five of 2; after two steps of an epoch 12 rows are left, 2 for each shard.
SMALL = (
    *TINY,
    "batch.exact=true",
    "batch.global_size=13",
    "batch.shard_rows=2",
    "batch.min_per_device=2",
    "data.evaluate_batch=3",
    "model._target_=tests.launcher.parts.regularised",
    "~model.in_features",
    "~model.out_features",
    "optimizer=adamw",
    "optimizer.lr=0.01",
    "trainer.clip_norm=0.5",
)
AUGMENTED = ("data.train._target_=tests.launcher.parts.Augmented", "data.train.n=38")
STEPS = {"drop": 4, "pad": 6, "spread": 6, "carry": 5}
"""Of two epochs."""


def run(folder, world_size, *words):
    done = launch(folder, world_size, *words)
    assert done.status == 0, done.error
    return done


def runs(folder, *several):
    """Each of these command lines on one process, from one start."""
    done = in_turn(*(Line(folder / str(number), words) for number, words in enumerate(several)))
    assert [each.status for each in done] == [0] * len(several), [each.error for each in done]
    return done


def measured(done):
    """What metrics.jsonl says, without speeds."""
    speed = ("train/rows_per_s", *MEASURED)
    return [{k: v for k, v in line.items() if not k.startswith(speed)} for line in done.metrics]


def assert_same(found, one):
    assert found.state["weights_sha256"] == one.state["weights_sha256"]
    assert measured(found) == measured(one)
    assert found.state["rows"] == one.state["rows"]


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The default job on one process."""
    return run(tmp_path_factory.mktemp("digits"), 1, *DIGITS, *EXACT)


@pytest.mark.parametrize("ranks", WORLDS[1:])
def test_the_default_job_has_the_same_bits_on_any_number_of_ranks(tmp_path, digits, ranks):
    found = run(tmp_path, ranks, *DIGITS, *EXACT)
    assert found.state["world_size"] == ranks
    assert_same(found, digits)
    assert len(found.values("train/loss")) == 15
    assert len(found.values("test/loss")) == 3
    assert found.values("test/accuracy")[-1] > 0.5


def test_in_fast_mode_every_number_of_ranks_has_other_bits(tmp_path):
    """Without BatchNorm, so that nothing but the order of additions differs: stock DistributedDataParallel."""
    words = (*DIGITS, "model.batchnorm=false")
    found = [run(tmp_path / str(ranks), ranks, *words) for ranks in (1, 2, 3)]
    assert len({done.state["weights_sha256"] for done in found}) == 3
    for done in found[1:]:
        assert done.values("train/loss") == pytest.approx(found[0].values("train/loss"), rel=1e-4)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The small job with everything on one process, by tail."""
    lines = {tail: (*SMALL, *AUGMENTED, f"batch.tail={tail}") for tail in STEPS}
    return dict(zip(lines, runs(tmp_path_factory.mktemp("small"), *lines.values()), strict=True))


@pytest.mark.parametrize("tail", STEPS)
@pytest.mark.parametrize(("ranks", "workers"), [(3, 2), (5, 0)])
def test_dropout_augmentation_clipping_and_adamw_with_every_tail_and_workers(tmp_path, small, tail, ranks, workers):
    found = run(tmp_path, ranks, *SMALL, *AUGMENTED, f"batch.tail={tail}", f"data.workers={workers}")
    assert found.state["step"] == STEPS[tail]
    assert_same(found, small[tail])


def test_what_is_augmented_dropped_and_seeded_enters_the_bits(tmp_path, small):
    """Else the tests above would show nothing."""
    one = small["drop"]
    others = runs(
        tmp_path,
        (*SMALL, "data.train.n=38"),
        (*SMALL, *AUGMENTED, "+model.dropout=0"),
        (*SMALL, *AUGMENTED, "trainer.clip_norm=null"),
        (*SMALL, *AUGMENTED, "seed=1"),
        (*SMALL, *AUGMENTED, "batch.shard_rows=3", "batch.min_per_device=3"),
    )
    assert len({done.state["weights_sha256"] for done in (one, *others)}) == 6


def test_workers_and_micro_batches_do_not_enter_on_one_process(tmp_path, small):
    same = (
        ("data.workers=2",),
        ("batch.max_per_device=3",),
        ("batch.max_per_device=13",),
        ("trainer.evaluate_every=0", "trainer.log_every=3"),
    )
    for found in runs(tmp_path, *((*SMALL, *AUGMENTED, "batch.tail=carry", *words) for words in same)):
        assert found.state["weights_sha256"] == small["carry"].state["weights_sha256"]


def test_more_ranks_than_shards_idle_and_the_note_names_shards(tmp_path, small):
    found = run(tmp_path, 8, *SMALL, *AUGMENTED, "batch.tail=spread")
    assert found.state["world_size"] == 6
    assert_same(found, small["spread"])
    assert found.output.count("devices idle") == 1
    assert (
        "2 of 8 devices idle: batch.global_size=13 feeds 6 devices with batch.shard_rows=2 rows each, and there are 8; "
        "raise batch.global_size to 16, lower batch.shard_rows"
    ) in found.log(0)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_formats_of_16_bits(tmp_path, precision):
    words = (*SMALL, *AUGMENTED, f"trainer.precision={precision}")
    (one,) = runs(tmp_path / "one", words)
    for ranks in (3, 5):
        assert_same(run(tmp_path / str(ranks), ranks, *words), one)


@pytest.mark.parametrize("clip", ["null", "0.1"])
def test_an_overflow_in_one_shard_leaves_the_step_out_on_every_rank(tmp_path, clip):
    words = (
        *(word for word in SMALL if not word.startswith(("model._target_", "trainer.clip_norm"))),
        *("data=numbered", "data.train.n=39", "model._target_=tests.launcher.parts.Overflows"),
        *("trainer.precision=fp16", f"trainer.clip_norm={clip}", "optimizer=sgd", "optimizer.lr=0.001"),
    )
    left_out = "a gradient overflowed; step left out, loss scale "
    (one,) = runs(tmp_path / "one", words)
    assert one.output.count(left_out) == 2
    for ranks in (3, 5):
        found = run(tmp_path / str(ranks), ranks, *words)
        assert_same(found, one)
        assert [found.log(rank).count(left_out) for rank in range(ranks)] == [2] * ranks


def test_evaluation_of_kept_weights_has_the_same_bits(tmp_path, digits):
    words = ("mode=evaluate", "batch.exact=true", f"checkpoint.load={digits.run_dir}", "data.evaluate_batch=50")
    one, *more = (run(tmp_path / str(ranks), ranks, *words) for ranks in (1, 3, 5))
    assert one.values("test/rows") == [360]
    assert one.values("test/loss") == pytest.approx(digits.values("test/loss")[-1:], rel=1e-6)
    for found in more:
        assert_same(found, one)


NOTES = [
    (("batch.shard_rows=4",), "batch.shard_rows=4 has no effect without batch.exact=true or batchnorm=shard"),
    (
        ("batch.exact=true", "+ddp.static_graph=true", "+ddp.bucket_cap_mb=1"),
        "ddp.static_graph, ddp.bucket_cap_mb: no effect with batch.exact=true, which does without Distributed",
    ),
    (("batchnorm=shard",), "batchnorm=shard has no effect: the model has no BatchNorm layers"),
    (("batchnorm=sync",), "batchnorm=sync has no effect: the model has no BatchNorm layers"),
]


@pytest.mark.parametrize(("words", "note"), NOTES, ids=[words[-1] for words, _ in NOTES])
def test_a_setting_without_effect_is_said_once(tmp_path, words, note):
    found = run(tmp_path, 2, *TINY, *words, "trainer.max_steps=1")
    assert found.output.count(note) == 1
    assert [found.log(rank).count(note) for rank in (0, 1)] == [1, 0]


def test_nothing_is_said_where_everything_has_an_effect(tmp_path):
    found = run(tmp_path, 2, *SMALL, "batchnorm=shard", "trainer.max_steps=1")
    assert "no effect" not in found.output
    assert "WARNING" not in found.log(0)


PLANS = [
    (
        ("batch.exact=true", "batch.global_size=256"),
        4,
        [
            "global batch     256 rows = 4 ranks x 64 rows",
            "micro-batches    2 per step on every rank, 32 rows each",
            "shards           8 x 32 rows: 1, 2, 4 or 8 devices divide them evenly",
            "  rank 3         32 + 32 rows",
        ],
    ),
    (
        ("batch.exact=true", "batch.global_size=256"),
        3,
        [
            "micro-batches    2 or 3 per step, by rank, 32 rows each",
            "shards           8 x 32 rows: 1, 2, 4 or 8 devices divide them evenly",
            "                 3 devices take 3, 3, 2: a step lasts as long as 3 shards, 12.5 % more than an even split",
            "  rank 0         32 + 32 + 32 rows",
            "  rank 2         32 + 32 rows",
        ],
    ),
    (
        ("batchnorm=shard", "batch.global_size=100", "launch.threads_per_rank=1"),
        2,
        [
            "shards           3 x 33 to 34 rows: 1 or 3 devices divide them evenly",
            "                 2 devices take 2, 1: a step lasts as long as 2 shards, 33.3 % more than an even split",
            "  rank 0         67 rows",
        ],
    ),
]


@pytest.mark.parametrize(("words", "ranks", "lines"), PLANS)
def test_the_plan_shows_the_shards_and_one_thread(tmp_path, words, ranks, lines):
    (found,) = runs(tmp_path, ("mode=plan", f"launch.processes={ranks}", *words))
    printed = found.output.splitlines()
    assert [line for line in lines if line not in printed] == []
    why = " (batch.exact=true; more with launch.threads_per_rank)" if "batch.exact=true" in words else ""
    assert f"devices          {ranks} on cpu, 1 thread each{why}" in printed
    assert found.run_dirs == []
