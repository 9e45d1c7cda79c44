"""Which size is tried next, on made-up devices: the exact boundary, the knee, and only sizes that ran."""

import itertools
import math
import random

import pytest

from launcher.processes.errors import SettingsError
from launcher.tune.result import Probe
from launcher.tune.search import Bounds, fitting_rows
from launcher.tune.steer import Steer

MIB = 2**20


def device(limit, seconds=lambda rows: 0.01 + 0.001 * rows, base=90 * MIB, row=3 * MIB, memory=None):
    """A made-up device on which exactly ``limit`` rows fit: its memory, and what a probe of some rows gives there."""
    memory = memory or (lambda rows: base + rows * row)
    available = (memory(limit) + memory(limit + 1)) // 2 if limit else memory(1) - 1

    def probe(rows):
        if memory(rows) > available:
            return Probe(rows, fits=False, why_not="rank 0 ran out of memory")
        return Probe(rows, fits=True, peak_bytes=memory(rows), step_s=tuple(seconds(rows) for _ in range(4)))

    return available, probe


def tuned(limit, bounds, sizes=(1,), target=0.95, patience_s=math.inf, **more):
    available, probe = device(limit, **more)
    steer, probes = Steer(bounds, sizes, target, patience_s, "tune.timeout_s=9"), []
    while (rows := steer.next_size(probes, available)) is not None:
        assert bounds.least <= rows <= bounds.cap
        assert rows not in {each.rows for each in probes}
        probes.append(probe(rows))
        assert len(probes) <= bounds.most_probes
    tuning = steer.answer(probes, available, load=0.0)
    ran = {each.rows for each in probes if each.fits}
    assert {tuning.fits, tuning.recommended, tuning.fast_enough or tuning.fits} <= ran
    return tuning


LIMITS = [*range(1, 41), 64, 100, 1000, 4095, 4096]


@pytest.mark.parametrize("least", [1, 2, 16])
@pytest.mark.parametrize("cap", [3, 40, 41, 4096])
def test_the_boundary_is_exact_within_eight_probes(least, cap):
    if cap < least:
        return
    for limit in (limit for limit in LIMITS if limit >= least):
        found = tuned(limit, Bounds(least, cap, f"tune.max_rows={cap}"))
        assert (found.fits, found.exact) == (min(limit, cap), True)
        assert found.limited_by == ("memory" if limit < cap else f"tune.max_rows={cap}")


def test_few_probes_are_enough_where_memory_is_a_line():
    assert [p.rows for p in tuned(733, Bounds(16, 4096, "")).probes[:4]] == [16, 32, 733, 734]
    assert max(len(tuned(limit, Bounds(1, 4096, "")).probes) for limit in LIMITS) <= 8


@pytest.mark.parametrize("limit", [700, 5000])
def test_the_fewest_probes_still_go_where_the_line_leads(limit):
    found = tuned(limit, Bounds(16, 4096, "", most_probes=3), sizes=(32, 64))
    assert [p.rows for p in found.probes] == [16, 32, min(limit, 4096)]
    assert (found.fits, found.exact) == (min(limit, 4096), limit > 4096)


def test_memory_that_is_no_line_still_gives_what_ran():
    blocks = [lambda rows, b=b: -(-(90 * MIB + rows * 3 * MIB) // b) * b for b in (2 * MIB, 20 * MIB, 64 * MIB)]
    bends = [lambda rows, p=p: int(50 * MIB + MIB * rows**p) for p in (0.8, 1.2, 1.5)]
    jumps = [lambda rows: (90 + 3 * rows + (500 if rows > 100 else 0)) * MIB]
    for memory, limit in itertools.product([*blocks, *bends, *jumps], LIMITS):
        found = tuned(limit, Bounds(1, 4096, "the cap"), memory=memory)
        sizes = [p.rows for p in found.probes]
        assert found.fits == max(p.rows for p in found.probes if p.fits)
        assert found.exact == (found.fits == 4096 or found.fits + 1 in sizes)


def test_a_device_that_tells_nothing_of_memory_is_halved():
    def tell_nothing(probe):
        return Probe(probe.rows, probe.fits, probe.why_not, None, probe.step_s)

    available, probe = device(3)
    steer, probes = Steer(Bounds(1, 4096, ""), (1,)), []
    while (rows := steer.next_size(probes, available)) is not None:
        probes.append(tell_nothing(probe(rows)))
    assert steer.answer(probes, available, 0.0).fits == 3


def test_where_nothing_fits_the_bytes_are_named():
    with pytest.raises(SettingsError) as raised:
        tuned(0, Bounds(1, 40, ""))
    assert str(raised.value).startswith(
        "batch.min_per_device=1: not even a micro-batch of 1 row fits: what it took is not known before rank 0 ran "
        "out of memory, and there are 93.0 MiB; lower batch.min_per_device"
    )


@pytest.mark.parametrize("fixed", [0.0, 0.001, 0.02, 0.3])
@pytest.mark.parametrize("limit", [40, 500, 4000])
def test_the_knee_of_affine_step_times_lies_within_one_tested_size(fixed, limit):
    def seconds(rows):
        return fixed + 0.001 * rows

    found = tuned(limit, Bounds(1, 4096, ""), seconds=seconds)
    best = limit / seconds(limit)
    knee = next(rows for rows in range(1, limit + 1) if rows / seconds(rows) >= 0.95 * best)
    slower = max((p.rows for p in found.probes if p.rows < found.fast_enough), default=0)
    assert slower < knee <= found.fast_enough <= max(1.3 * knee, knee + 1)


def test_the_knee_of_a_roof_lies_within_one_tested_size():
    for full in (8, 30, 200):
        found = tuned(2000, Bounds(1, 4096, ""), seconds=lambda rows, full=full: max(full, rows) * 0.001)
        slower = max((p.rows for p in found.probes if p.rows < found.fast_enough), default=0)
        assert slower < math.ceil(0.95 * full) <= found.fast_enough < found.fits


@pytest.mark.parametrize(("share", "told"), [(0.01, True), (0.6, False)])
def test_noise_decides_whether_a_knee_is_claimed(share, told):
    for seed in range(20):
        stream = random.Random(seed)
        found = tuned(
            500,
            Bounds(1, 4096, ""),
            seconds=lambda rows, s=stream: (0.02 + 0.001 * rows) * (1 + share * s.uniform(-1, 1)),
        )
        assert (found.fast_enough is not None) == told
        assert (found.noise is None) == told
        if not told:
            assert "equal steps differ too much, those of " in found.noise
            assert "5 % decide" in found.noise


def test_what_would_take_too_long_is_not_tried():
    found = tuned(4000, Bounds(16, 4096, ""), seconds=lambda rows: 0.01 * rows, patience_s=5.0)
    assert (found.fits, found.limited_by) == (500, "tune.timeout_s=9")
    assert max(p.rows for p in found.probes) == 500


@pytest.mark.parametrize(
    ("sizes", "limit", "recommended"),
    [
        ((16, 22, 32, 64), 500, 64),  # the knee, at 190 rows, lies beyond a share: the smallest size that is as fast
        ((16, 17, 26, 64), 40, 26),  # only a third of a share fits
        ((100, 134, 200, 400), 500, 200),  # half of a share is the smallest that is fast enough
    ],
)
def test_what_is_recommended_can_be_cut_from_a_share(sizes, limit, recommended):
    found = tuned(limit, Bounds(16, 4096, ""), sizes=sizes, seconds=lambda rows: 0.01 + 0.001 * rows)
    cut = max(size for size in sizes if size <= found.recommended)
    assert cut == recommended


def test_a_share_that_cannot_be_cut_into_what_fits_is_named():
    with pytest.raises(SettingsError, match="of a share of 65 rows no micro-batches can be cut that fit: they would"):
        tuned(40, Bounds(16, 4096, ""), sizes=(65,))


def test_the_line_goes_through_sizes_far_apart():
    probes = [Probe(rows, fits=True, peak_bytes=100 + 10 * rows) for rows in (1, 2, 50, 51)]
    assert fitting_rows(probes, 1100) == 100
    assert fitting_rows(probes[:1], 1100) == 10
    assert fitting_rows([], 1100) is None
