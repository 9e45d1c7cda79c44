"""A run that is disturbed in every way ends with the weights, metrics and rows of one that was left alone.

A short version of tests/benchmarks/chaos.py, which disturbs it longer.
"""

from tests.benchmarks import chaos
from tests.chaos.schedule import KINDS, draw_faults

FAULTS, RANKS, SEED = len(KINDS), 3, 2


def test_a_run_that_is_disturbed_in_every_way_ends_as_if_it_were_left_alone(tmp_path, capfd):
    numbers = (f"--faults={FAULTS}", f"--ranks={RANKS}", f"--seed={SEED}", "--minutes=5")
    status = chaos.main([*numbers, f"--out={tmp_path / 'chaos'}"])
    told = capfd.readouterr().out
    assert status == 0, told
    assert f"\nall {FAULTS:>17}" in told


def test_what_comes_when_is_drawn_from_the_seed():
    faults = draw_faults(SEED, FAULTS, (6, 30))
    assert faults == draw_faults(SEED, FAULTS, (6, 30)) != draw_faults(SEED + 1, FAULTS, (6, 30))
    assert {fault.kind for fault in faults} == set(KINDS)
