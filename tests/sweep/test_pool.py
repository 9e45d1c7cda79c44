"""Devices of jobs: disjoint, of this machine, and no more than there are."""

import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from launcher.processes.errors import SettingsError
from launcher.sweep.pool import Devices, Pool


@given(st.integers(1, 8), st.integers(1, 8), st.lists(st.one_of(st.integers(1, 8), st.none()), max_size=40))
def test_no_device_is_held_twice(devices, jobs, steps):
    pool, held = Pool([str(n) for n in range(devices)], jobs), []
    for step in steps:  # a number takes so many; None gives back what was taken first
        if step is None and held:
            pool.give_back(held.pop(0))
        elif step is not None and (taken := pool.take(step)) is not None:
            assert len(taken) == step
            held.append(taken)
        names = [name for taken in held for name in taken]
        assert len(names) == len(set(names)) <= devices
        assert len(held) <= jobs


def test_the_first_devices_are_taken_first():
    pool = Pool("abcd")
    first, second = pool.take(1), pool.take(2)
    assert (first, second, pool.take(2)) == (("a",), ("b", "c"), None)
    pool.give_back(first)
    assert pool.take(2) == ("a", "d")


@pytest.mark.parametrize(
    ("shown", "count", "expected"),
    [("", 2, ("0", "1")), ("3,1", 2, ("3", "1")), ("GPU-8a,MIG-2b", 2, ("GPU-8a", "MIG-2b"))],
)
def test_cuda_devices_keep_the_names_that_the_user_gave_them(monkeypatch, shown, count, expected):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert Devices.here("auto", {"CUDA_VISIBLE_DEVICES": shown}) == Devices("cuda", expected)


def test_without_cuda_the_devices_are_the_cores_that_may_be_used(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert Devices.here("auto", {}) == Devices("cpu", tuple(map(str, sorted(os.sched_getaffinity(0)))))
    assert Devices.here("cuda", {}) == Devices("cuda", ())


@pytest.mark.parametrize(
    ("kind", "count", "asked", "processes", "parallel", "each"),
    [
        ("cuda", 4, None, 2, 2, 2),
        ("cuda", 5, None, 2, 2, 2),
        ("cuda", 4, 1, 2, 1, 2),
        ("cpu", 4, None, 2, 1, 4),
        ("cpu", 4, 2, 8, 2, 2),
        ("cpu", 5, 2, 1, 2, 2),
    ],
)
def test_so_many_jobs_run_at_a_time(kind, count, asked, processes, parallel, each):
    devices = Devices(kind, tuple(map(str, range(count))))
    assert devices.parallel(asked, processes) == parallel
    assert devices.for_job(processes, parallel) == each


@pytest.mark.parametrize(
    ("kind", "asked", "processes", "message"),
    [
        ("cuda", None, 3, "launch.processes=3 needs 3 CUDA devices, and there are 2; start fewer"),
        ("cuda", 2, 2, "sweep.parallel=2 is too much: 2 jobs of 2 processes need 4 CUDA devices, and there are 2; "),
        ("cpu", 3, 1, "sweep.parallel=3 is too much: 3 jobs need a core each, and there are 2; the most is 2"),
    ],
)
def test_too_much_is_refused_by_name(kind, asked, processes, message):
    with pytest.raises(SettingsError) as refusal:
        Devices(kind, ("0", "1")).parallel(asked, processes)
    assert str(refusal.value).startswith(message)
