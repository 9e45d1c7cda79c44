"""sweep.json: jobs keep their numbers, and another sweep is refused with the difference."""

import json
from contextlib import ExitStack

import pytest
import torch.distributed as dist

from launcher.processes.errors import SettingsError
from launcher.sweep.folder import claim
from launcher.sweep.jobs import FINISHED, RUNNING, Record
from launcher.sweep.ledger import Definition, Ledger, key_of
from tests.sweep.fakes import job_of

BASIC = {"_target_": "basic"}


def definition(*overrides, sweeper=BASIC, metric=None):
    return Definition.of(overrides, sweeper, metric)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (["a=0.1", "b=x"], ["b=x", "a=0.10"], True),
        (["a=1", "a=2"], ["a=2"], True),
        (["+a=[1, 2]"], ["a=[1,2]"], True),
        (["a='x,y=z'"], ['a="x,y=z"'], True),
        (["a='ü'"], ['a="ü"'], True),
        (["a=1"], ["a='1'"], False),
        (["a=1"], ["a=1.0"], False),
        (["a=null"], ["~a"], False),
        (["model=big"], ["model=small"], False),
    ],
)
def test_jobs_are_known_by_their_effective_overrides(one, other, same):
    assert (key_of(one) == key_of(other)) is same


def test_a_sweep_is_found_again_with_its_jobs(tmp_path):
    ledger = Ledger.open(tmp_path, definition("a=1,2", "sweep.parallel=2"))
    for number in range(2):
        ledger.of(job_of(tmp_path, number, f"a={number}"))
    ledger.note(Record(0, ("a=0",), "0", FINISHED, value=0.5))
    ledger.note(Record(1, ("a=1",), "1", RUNNING, devices=("0",)))
    ledger.write("running")
    found = Ledger.open(tmp_path, definition("sweep.parallel=1", "a=1,2", "launch.processes=3")).records
    assert [(record.state, record.value) for record in found] == [("finished", 0.5), ("waiting", None)]


@pytest.mark.parametrize(
    ("now", "difference"),
    [
        (definition("a=1,2,3", "b=1"), "a=1,2 there; a=1,2,3 here"),
        (definition("a=1,2"), "b=1 there"),
        (definition("a=1,2", "b=1", metric="accuracy"), "sweep.metric=None there; sweep.metric=accuracy here"),
        (
            definition("a=1,2", "b=1", sweeper={"_target_": "other"}),
            'hydra.sweeper._target_="basic" there; hydra.sweeper._target_="other" here',
        ),
    ],
)
def test_another_sweep_is_refused_with_the_difference(tmp_path, now, difference):
    Ledger.open(tmp_path, definition("a=1,2", "b=1")).write("running")
    with pytest.raises(SettingsError) as refusal:
        Ledger.open(tmp_path, now)
    assert str(refusal.value) == (
        f"hydra.sweep.dir={tmp_path} holds another sweep: {difference}; give the overrides of that sweep, or another "
        "folder"
    )


NEWER = {"version": 2, "definition": {"overrides": [], "sweeper": BASIC, "metric": None}, "jobs": []}
OTHERS = ["", "[]", "{}", "no json", json.dumps({"version": 1, "definition": {}, "jobs": [{}]}), json.dumps(NEWER)]


@pytest.mark.parametrize("content", OTHERS)
def test_a_file_that_is_something_else_is_refused(tmp_path, content):
    (tmp_path / "sweep.json").write_text(content)
    with pytest.raises(SettingsError, match=r"sweep\.json there is not that of a sweep of this version"):
        Ledger.open(tmp_path, definition())
    assert (tmp_path / "sweep.json").read_text() == content


def test_a_number_stays_with_its_job(tmp_path):
    ledger = Ledger.open(tmp_path, definition())
    for number, words in enumerate([("a=1",), ("a=2",)]):
        ledger.of(job_of(tmp_path, number, *words))
    assert ledger.number_for(["a=1"], 0) == 0
    assert ledger.number_for(["a=3"], 0) == 2
    assert ledger.number_for(["a=3"], 7) == 7


def test_two_new_jobs_get_two_numbers(tmp_path):
    ledger = Ledger.open(tmp_path, definition())
    for number, words in enumerate([("a=1",), ("a=2",)]):
        ledger.of(job_of(tmp_path, number, *words))
    assert [ledger.number_for([f"a={value}"], 0) for value in (3, 4, 3, 1)] == [2, 3, 2, 0]


def test_a_folder_goes_only_with_the_sweep_that_made_it(tmp_path):
    path = tmp_path / "of" / "sweeps"
    with ExitStack() as first:
        claim(path, False, first, dist.HashStore())
        assert path.exists()
        (path / "kept").touch()
    assert path.exists()
    (path / "kept").unlink()
    with ExitStack() as second:
        claim(path, False, second, dist.HashStore())
    assert not path.exists()
    assert (tmp_path / "of").exists()


def test_a_job_keeps_its_folder(tmp_path):
    ledger = Ledger.open(tmp_path, definition())
    ledger.of(job_of(tmp_path, 3))
    ledger.check_folder(job_of(tmp_path, 3))
    ledger.check_folder(job_of(tmp_path / "other", 4))
    with pytest.raises(SettingsError) as refusal:
        ledger.check_folder(job_of(tmp_path / "other", 3))
    assert str(refusal.value) == (
        f"hydra.sweep.subdir gives job 3 the folder other/3, and it has 3 in {tmp_path}/sweep.json; give "
        "hydra.sweep.subdir as before, or another hydra.sweep.dir"
    )


def test_a_folder_is_that_of_the_first_job_in_it(tmp_path):
    ledger = Ledger.open(tmp_path, definition())
    ledger.note(Record(0, ("a=0",), "x", FINISHED))
    ledger.note(Record(1, ("a=0.0",), "x", FINISHED, same_as=0))
    assert ledger.owners() == {tmp_path / "x": (0, key_of(["a=0"]))}
