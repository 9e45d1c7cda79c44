"""What follows from a micro-batch size for the global batch."""

from dataclasses import replace

import pytest

from launcher.tune.advice import (
    Settings,
    advise,
    change,
    device_counts,
    in_usual_range,
    rescaled,
    rows_of_statistics,
    steps_worth,
)
from launcher.tune.advice_words import in_words
from launcher.tune.batchnorm_map import SmallestMap
from launcher.tune.noise_scale import NoiseScale, unknown

DIGITS = Settings(n=1437, global_size=128, devices=2, lr=0.05)


def lines(advice, label):
    """The lines below a label."""
    found, inside = [], False
    for line in in_words(advice):
        inside = line.startswith(label) or (inside and line.startswith(" "))
        found += [line[17:]] if inside else []
    return found


def test_the_split_is_the_plans():
    splits = advise(DIGITS, 40).splits
    assert [split.devices for split in splits] == [1, 2, 4, 8]
    assert [split.report.micro_batches_per_step for split in splits] == [4, 2, 1, 1]
    assert [split.report.largest_micro_batch for split in splits] == [32, 32, 32, 16]
    assert all(split.report.rows_dropped == 29 for split in splits)


def test_a_split_that_the_plan_refuses_says_why():
    (refused,) = [split for split in advise(replace(DIGITS, devices=3), 20).splits if split.report is None]
    assert refused.devices == 3
    assert refused.refused.startswith("max_per_device=20 cuts a share of 42 rows into 3 micro-batches")
    assert lines(advise(replace(DIGITS, devices=3), 20), "devices")[3] == (
        "3 devices  refused: max_per_device=20 cuts a share of 42 rows into 3 micro-batches, the smallest of 14 rows, "
        "below min_per_device=16"
    )


@pytest.mark.parametrize(
    ("global_size", "least", "devices", "counts"),
    [(128, 16, 1, [1, 2, 4, 8]), (128, 16, 12, [1, 2, 4, 8, 12]), (1024, 32, 1, [1, 2, 4, 8, 16, 32])],
)
def test_numbers_of_devices(global_size, least, devices, counts):
    settings = Settings(n=5000, global_size=global_size, min_per_device=least, devices=devices)
    assert device_counts(settings) == counts


def test_what_goes_with_another_global_batch():
    half, twice, four, eight = advise(DIGITS, 64).changes
    assert [each.global_size for each in (half, twice, four, eight)] == [64, 256, 512, 1024]
    assert (twice.lr_linear, twice.lr_sqrt) == (pytest.approx(0.1), pytest.approx(0.05 * 2**0.5))
    assert (half.lr_linear, half.warm_up_steps, half.steps_per_epoch) == (pytest.approx(0.025), 0, 22)
    assert (twice.warm_up_steps, twice.steps_per_epoch) == (25, 5)
    assert all(each.lr_linear is None for each in advise(replace(DIGITS, lr=None), 64).changes)


@pytest.mark.parametrize(
    ("batchnorm", "max_per_device", "factor"),
    [
        ("local", 64, 1),  # a micro-batch stays 64 rows
        ("local", 512, 2),  # it is as large as the share
        ("shard", 64, 2),  # once per step
    ],
)
def test_how_far_apart_running_statistics_move(batchnorm, max_per_device, factor):
    settings = replace(DIGITS, batchnorm=batchnorm, shard_rows=32 if batchnorm == "shard" else None)
    assert change(settings, max_per_device, 256).update_factor == factor


def test_moving_averages_follow_the_rows_as_before():
    twice = rescaled(0.1, 2)
    value = once = 0.0
    for _ in range(10):
        value += twice * (1 - value)
        once += 0.1 * (1 - once)
        once += 0.1 * (1 - once)
    assert value == pytest.approx(once)
    assert rescaled(rescaled(0.01, 8), 1 / 8) == pytest.approx(0.01)


@pytest.mark.parametrize(("rows", "place"), [(31, "below"), (32, "within"), (512, "within"), (513, "above")])
def test_where_the_literature_lies(rows, place):
    assert in_usual_range(rows) == place
    assert lines(advise(replace(DIGITS, global_size=rows), 64), "literature")[0] == (
        f"{rows} rows lie {place} the 32 to 512 of usual small-batch training (Keskar et al. 2017)"
    )


def test_what_more_rows_are_worth():
    assert steps_worth(128, 128) == pytest.approx(4 / 3)
    assert steps_worth(1e12, 128, 8) == pytest.approx(8)


@pytest.mark.parametrize(
    ("batchnorm", "rows"), [("local", 32), ("shard", 42), ("sync", 128)]
)  # 128 // 40 = 3 shards of 42 or 43 rows
def test_rows_that_statistics_are_taken_over(batchnorm, rows):
    shard = 40 if batchnorm == "shard" else None
    assert rows_of_statistics(replace(DIGITS, batchnorm=batchnorm, shard_rows=shard), 50) == rows


@pytest.mark.parametrize(
    ("n", "tail", "text"),
    [
        (1437, "drop", "29 rows of 1,437 (2.0 %) are left out of every epoch (batch.tail=drop)"),
        (1437, "pad", "29 rows of 1,437 (2.0 %) are filled up with repeated rows (batch.tail=pad)"),
        (1437, "spread", "29 rows of 1,437 (2.0 %) are left out of every epoch (batch.tail=spread)"),
        (1476, "spread", "68 rows of 1,476 (4.6 %) make a smaller last step (batch.tail=spread)"),
        (1437, "carry", "29 rows of 1,437 (2.0 %) open the next epoch (batch.tail=carry)"),
        (1280, "drop", "none: 1,280 rows are 10 whole global batches"),
    ],
)
def test_the_tail(n, tail, text):
    assert lines(advise(replace(DIGITS, n=n, tail=tail), 64), "tail") == [text]


@pytest.mark.parametrize(
    ("batchnorm", "rows", "words"),
    [
        ("local", 64, ["bn sees the fewest values per channel: 64 (1 per row), its variance is known to 18 %"]),
        (
            "local",
            16,
            [
                "warning: bn sees the fewest values per channel: 16 (1 per row): its variance is known to 37 % only;",
                "raise batch.min_per_device, or take batchnorm=sync (statistics of the whole global batch)",
            ],
        ),
        (
            "shard",
            1,
            [
                "warning: bn sees the fewest values per channel: 1 (1 per row): its variance is not known at all;",
                "raise batch.shard_rows, or take batchnorm=sync (statistics of the whole global batch)",
            ],
        ),
    ],
)
def test_few_values_for_batchnorm_are_said(batchnorm, rows, words):
    advice = replace(advise(replace(DIGITS, batchnorm=batchnorm), 64), smallest_map=SmallestMap("bn", 1, rows))
    assert lines(advice, "BatchNorm") == words


def test_the_noise_scale_in_words():
    advice = advise(DIGITS, 64)
    assert lines(replace(advice, noise_scale=NoiseScale(1280, 900, 2000, None, 16, 64)), "noise scale") == [
        "1,280 rows (900 to 2,000), from 16 micro-batches of 64 rows at the weights that the run starts from;",
        "there a step of 256 rows is worth 1.83 of 128 rows, and more as the loss falls (McCandlish et al. 2018)",
    ]
    assert lines(replace(advice, noise_scale=unknown("too few rows", 2, 8)), "noise scale") == [
        "not known: too few rows"
    ]
    assert not lines(advice, "noise scale")


def test_another_batch_in_words():
    advice = replace(advise(replace(DIGITS, devices=1), 128), momentum=0.1)
    assert lines(advice, "another batch")[:3] == [
        "global_size  steps/epoch  lr linear  lr sqrt   warm-up  EMA 0.999  BatchNorm 0.1",
        "         64           22      0.025   0.0354         -     0.9995         0.0513",
        "        256            5        0.1   0.0707  25 steps      0.998            0.1",
    ]
    assert all(len(line) <= 120 for line in in_words(advice))
