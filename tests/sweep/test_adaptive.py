"""The adaptive sweep: each trial counts once, the best is found, and an interruption changes nothing."""

import pickle
import sys
from types import SimpleNamespace

import pytest
import yaml

from launcher.processes.errors import SettingsError
from launcher.sweep.adaptive import PATIENCE
from launcher.sweep.curve import evaluations
from launcher.sweep.jobs import FAILED, FINISHED, PREEMPTED, PRUNED, STOPPED, Record
from launcher.sweep.journal import JOURNAL
from tests.sweep.searching import CrashError, FormulaLauncher, sweep, trials, values_of

X = "x=interval(-5,5)"
SAMPLERS = "optuna.samplers."
RANDOM = {"_target_": f"{SAMPLERS}RandomSampler"}
MEDIAN = {"_target_": "optuna.pruners.MedianPruner", "n_startup_trials": 2}


@pytest.fixture(autouse=True)
def _soft_disk(monkeypatch):
    """No machine crashes here; Optuna flushes its journal for every value."""
    monkeypatch.setattr("os.fsync", lambda _: None)


def states(sweep_dir):
    return [trial.state.name for trial in trials(sweep_dir)]


def drawn(launcher):
    return [job.overrides for job in launcher.started]


def test_the_best_is_found(tmp_path):
    launcher = FormulaLauncher(tmp_path)
    records = sweep(launcher, X, "kind=choice('a,b',c)", "seed=3", n_trials=30)
    assert [record.number for record in records] == list(range(30))
    assert {record.state for record in records} == {FINISHED}
    best = min(records, key=lambda record: record.value)
    assert best.value < 0.05
    found = yaml.safe_load((tmp_path / "optimization_results.yaml").read_text())
    assert found == {
        "name": "optuna",
        "best_job": best.number,
        "best_params": {name: value for name, value in values_of(best.overrides).items() if name != "seed"},
        "best_value": best.value,
    }
    assert [trial.value for trial in trials(tmp_path)] == [record.value for record in records]
    assert all(job.overrides[2] == "seed=3" for job in launcher.started)


def test_the_highest_may_be_the_best(tmp_path):
    records = sweep(
        FormulaLauncher(tmp_path, metric="accuracy", formula=lambda v, _: -((v["x"] - 2) ** 2)), X, n_trials=30
    )
    assert max(record.value for record in records) > -0.05


@pytest.mark.parametrize(
    ("sampler", "more"),
    [
        ("TPESampler", {"n_startup_trials": 2}),
        ("RandomSampler", {}),
        ("NSGAIISampler", {}),
        ("QMCSampler", {"scramble": True}),
    ],
)
def test_a_seed_draws_the_same_trials_again(tmp_path, sampler, more):
    settings = {"n_trials": 5, "sampler": {"_target_": SAMPLERS + sampler, **more}}
    launchers = [FormulaLauncher(tmp_path / name) for name in "abc"]
    sweep(launchers[0], X, "y=0,1,2,3,4,5", **settings)
    sweep(launchers[1], "y=0,1,2,3,4,5", X, **settings)
    sweep(launchers[2], X, "y=0,1,2,3,4,5", **settings, seed=1)
    first, again, other = ([dict(values_of(o)) for o in drawn(launcher)] for launcher in launchers)
    assert first == again
    assert all(a != b for a, b in zip(first, other, strict=True))
    assert len({values["x"] for values in first}) == 5
    assert len({values["y"] for values in first}) > 1


def test_a_crash_anywhere_changes_nothing(tmp_path):
    whole = FormulaLauncher(tmp_path / "whole")
    settings = {"n_trials": 3, "sampler": {"_target_": f"{SAMPLERS}TPESampler", "n_startup_trials": 1}}
    sweep(whole, X, **settings)
    assert whole.events == 12
    for crash_after in range(whole.events):
        folder = tmp_path / str(crash_after)
        before = FormulaLauncher(folder, crash_after=crash_after)
        with pytest.raises(CrashError):
            sweep(before, X, **settings)
        after = FormulaLauncher(folder, ledger=dict(before.ledger))
        assert len(sweep(after, X, **settings)) == 3
        assert states(folder) == ["COMPLETE"] * 3
        assert [trial.value for trial in trials(folder)] == [trial.value for trial in trials(tmp_path / "whole")]
        assert drawn(after) == [o for number, o in enumerate(drawn(whole)) if number not in before.ledger]


def test_a_crash_while_the_study_is_written_loses_no_trial(tmp_path):
    sweep(FormulaLauncher(tmp_path / "whole"), X, "y=a,b", n_trials=2)
    lines = (tmp_path / "whole" / JOURNAL).read_bytes().splitlines(keepends=True)
    for count in range(len(lines)):
        folder = tmp_path / str(count)
        folder.mkdir()
        (folder / JOURNAL).write_bytes(b"".join(lines[:count]) + lines[count][:-5])
        records = sweep(FormulaLauncher(folder), X, "y=a,b", n_trials=2)
        assert states(folder) == ["COMPLETE"] * 2
        finished_before = sum(b'"op_code":6' in line for line in lines[:count])
        assert len(records) == 2 - finished_before
        assert len({trial.params["x"] for trial in trials(folder)}) == 2


def test_jobs_run_side_by_side_and_each_is_told_once(tmp_path):
    launcher = FormulaLauncher(tmp_path, parallel=4, steps=(1, 2))
    records = sweep(launcher, X, n_trials=10)
    assert launcher.most_at_a_time == 4
    assert [record.number for record in records] == list(range(10))
    assert states(tmp_path) == ["COMPLETE"] * 10
    assert len({job.overrides for job in launcher.started}) == 10


def test_all_jobs_that_ran_side_by_side_are_given_out_again(tmp_path):
    before = FormulaLauncher(tmp_path, parallel=3, crash_after=7)
    with pytest.raises(CrashError):
        sweep(before, X, n_trials=6)
    unfinished = [job for job in before.started if states(tmp_path)[job.number] == "RUNNING"]
    assert len(unfinished) > 1
    after = FormulaLauncher(tmp_path, parallel=3)
    sweep(after, X, n_trials=6)
    assert [(job.number, job.overrides) for job in after.started[: len(unfinished)]] == [
        (job.number, job.overrides) for job in unfinished
    ]
    assert states(tmp_path) == ["COMPLETE"] * 6


def test_a_sweep_that_is_over_may_get_more_trials(tmp_path):
    sweep(FormulaLauncher(tmp_path), X, n_trials=3)
    again = FormulaLauncher(tmp_path)
    assert sweep(again, X, n_trials=3) == []
    sweep(again, X, n_trials=5)
    assert [job.number for job in again.started] == [3, 4]


def test_what_has_no_value_counts_as_a_trial_that_failed_and_what_failed_runs_again(tmp_path, caplog):
    ends = [FINISHED, FAILED, STOPPED, FINISHED]
    launcher = FormulaLauncher(tmp_path, ends_as=lambda number: ends[number])
    sweep(launcher, X, n_trials=4)
    assert states(tmp_path) == ["COMPLETE", "RUNNING", "FAIL", "COMPLETE"]
    assert "job 2 ended with sweep.metric=-loss no number: its trial counts as failed" in caplog.text
    assert len(launcher.started) == 4
    again = FormulaLauncher(tmp_path, ledger=launcher.ledger)
    sweep(again, X, n_trials=4)
    assert [(job.number, job.overrides) for job in again.started] == [(1, launcher.started[1].overrides)]
    assert states(tmp_path) == ["COMPLETE", "COMPLETE", "FAIL", "COMPLETE"]


def test_a_disk_without_room_for_the_best_trial_ends_nothing(tmp_path, caplog):
    (tmp_path / "optimization_results.yaml").mkdir()
    assert len(sweep(FormulaLauncher(tmp_path), X, n_trials=2)) == 2
    assert "optimization_results.yaml cannot be written to" in caplog.text
    assert not list(tmp_path.glob(".optimization*"))


def test_what_was_preempted_is_given_out_again_another_time(tmp_path):
    sweep(FormulaLauncher(tmp_path, ends_as=lambda _: PREEMPTED), X, n_trials=2)
    assert states(tmp_path) == ["RUNNING"] * 2
    again = FormulaLauncher(tmp_path)
    sweep(again, X, n_trials=2)
    assert [job.number for job in again.started] == [0, 1]
    assert states(tmp_path) == ["COMPLETE"] * 2


def test_what_cannot_be_composed_is_said_and_the_next_is_drawn(tmp_path, caplog):
    launcher = FormulaLauncher(tmp_path, legal=lambda values: values["x"] > 0)
    records = sweep(launcher, X, n_trials=8)
    refused = [number for number, state in enumerate(states(tmp_path)) if state == "FAIL"]
    assert refused
    assert [record.number for record in records] == [n for n in range(8) if n not in refused]
    assert f"trial {refused[0]} is not started, and counts as failed: x=-" in caplog.text


def test_where_no_trial_can_be_composed_the_settings_are_wrong(tmp_path, caplog):
    launcher = FormulaLauncher(tmp_path, legal=lambda _: False)
    with pytest.raises(SettingsError, match=r"^x=\S+ cannot be$"):
        sweep(launcher, X, n_trials=100)
    assert not launcher.started
    assert not caplog.text
    assert states(tmp_path) == ["RUNNING"] * PATIENCE
    again = FormulaLauncher(tmp_path)
    sweep(again, X, n_trials=PATIENCE + 1)
    assert [job.number for job in again.started] == list(range(PATIENCE + 1))


def test_few_trials_that_cannot_be_composed_are_wrong_settings_too(tmp_path):
    with pytest.raises(SettingsError, match=r"^x=\S+ cannot be$"):
        sweep(FormulaLauncher(tmp_path, legal=lambda _: False), X, n_trials=2)


def slowly_better(values, step):
    return parabola_at(values["x"], step)


def parabola_at(x, step):
    return (x - 2) ** 2 + 10 / step


def test_what_is_worse_than_the_others_is_pruned_by_its_evaluations(tmp_path):
    launcher = FormulaLauncher(tmp_path, formula=slowly_better, steps=(10, 20, 30))
    records = sweep(launcher, X, n_trials=12, sampler=RANDOM, pruner=MEDIAN)
    pruned = [record for record in records if record.state == PRUNED]
    assert pruned
    assert all(record.value is None and record.step < 33 for record in pruned)
    for record, trial in zip(records, trials(tmp_path), strict=True):
        x = values_of(record.overrides)["x"]
        steps = [step for step in (10, 20, 30) if step <= record.step]
        assert trial.intermediate_values == {step: pytest.approx(parabola_at(x, step)) for step in steps}
        assert trial.state.name == ("PRUNED" if record in pruned else "COMPLETE")
    best = min(record.value for record in records if record not in pruned)
    assert best == min(parabola_at(values_of(record.overrides)["x"], 30) for record in records)


def test_nothing_is_pruned_where_nobody_asks(tmp_path):
    records = sweep(FormulaLauncher(tmp_path, formula=slowly_better, steps=(10, 20)), X, n_trials=8, sampler=RANDOM)
    assert {record.state for record in records} == {FINISHED}
    assert not any(trial.intermediate_values for trial in trials(tmp_path))


def test_a_pruner_knows_the_evaluations_from_before_a_crash(tmp_path):
    settings = {"n_trials": 6, "sampler": RANDOM, "pruner": MEDIAN}
    made = {"formula": slowly_better, "steps": (10, 20)}
    whole = FormulaLauncher(tmp_path / "whole", **made)
    assert PRUNED in {record.state for record in sweep(whole, X, **settings)}
    for crash_after in range(1, whole.events, 7):
        folder = tmp_path / str(crash_after)
        before = FormulaLauncher(folder, crash_after=crash_after, **made)
        with pytest.raises(CrashError):
            sweep(before, X, **settings)
        records = sweep(FormulaLauncher(folder, ledger=before.ledger, **made), X, **settings)
        assert records == list(whole.ledger.values())
        assert [t.intermediate_values for t in trials(folder)] == [
            t.intermediate_values for t in trials(whole.sweep_dir)
        ]


def test_evaluations_are_read_with_the_steps_they_were_made_at(tmp_path):
    assert evaluations(tmp_path, "accuracy") == []
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 5, "train/loss": 1.0}\n{"step": 7, "test/accuracy": 0.5, "test/loss": null}\nbroken "test/loss"\n'
        '{"step": 9, "test/accuracy": 0.75, "test/loss": 2}\n{"step": 11, "test/accuracy": 0.8'
    )
    assert evaluations(tmp_path, "test/accuracy") == [(7, 0.5), (9, 0.75)]
    steps, values = zip(*evaluations(tmp_path, "-loss"), strict=True)
    assert steps == (7, 9)
    assert str(values) == "(nan, 2.0)"


def test_a_grid_tries_each_combination_once(tmp_path):
    grid = {"_target_": f"{SAMPLERS}BruteForceSampler"}
    launcher = FormulaLauncher(tmp_path, parallel=3)
    sweep(launcher, "x=range(3)", "y=a,b", sampler=grid)
    assert sorted(drawn(launcher)) == [(f"x={x}", f"y={y}") for x in range(3) for y in "ab"]
    assert sweep(FormulaLauncher(tmp_path), "x=range(3)", "y=a,b", sampler=grid) == []
    with pytest.raises(SettingsError) as found:
        sweep(FormulaLauncher(tmp_path / "endless"), X, "y=a,b", sampler=grid)
    assert str(found.value) == (
        "hydra.sweeper.sampler: each combination cannot be tried, since x is any number from -5.0 to 5.0; write "
        "range(...) or choice(...), or set another hydra/sweeper/sampler"
    )


def test_a_study_may_be_kept_in_a_database(tmp_path):
    place = {"storage": f"sqlite:///{tmp_path}/study.db"}
    before = FormulaLauncher(tmp_path / "sweep", crash_after=6)
    with pytest.raises(CrashError):
        sweep(before, X, **place, n_trials=2)
    after = FormulaLauncher(tmp_path / "sweep", ledger=before.ledger)
    records = sweep(after, X, **place, n_trials=2)
    assert [record.number for record in records] == [0, 1]
    assert not (tmp_path / "sweep" / JOURNAL).exists()
    other = FormulaLauncher(tmp_path / "other")
    assert len(sweep(other, X, **place, n_trials=1)) == 1
    sweep(other, X, **place, n_trials=1, study_name="mine")
    with pytest.raises(SettingsError, match="the study mine is one of another search: there "):
        sweep(other, "z=interval(0,1)", **place, n_trials=1, study_name="mine")


def test_nothing_that_is_read_is_unpickled(tmp_path, monkeypatch):
    with pytest.raises(CrashError):
        sweep(FormulaLauncher(tmp_path, crash_after=6), X, n_trials=4)
    for name in ("loads", "load", "Unpickler"):
        monkeypatch.setattr(pickle, name, lambda *_: pytest.fail("unpickled"))
    assert sweep(FormulaLauncher(tmp_path), X, n_trials=4)


def test_what_would_be_done_is_told_without_doing_it(tmp_path, capsys):
    planned, done = (FormulaLauncher(tmp_path / "sweep", plans=plans) for plans in (True, False))
    for launcher in (planned, done):
        assert not (tmp_path / "sweep").exists()
        sweep(launcher, X, "seed=1", params={"y": "tag(log,interval(1,9))"}, n_trials=2)
    assert capsys.readouterr().out == (
        "up to 2 jobs, drawn by TPESampler as the sweep goes, to minimize loss\n"
        "  x: -5.0 to 5.0\n"
        "  y: 1.0 to 9.0 (log)\n"
        "the first of them:\n"
    )
    assert drawn(planned) == drawn(done)[:1]


WRONG = [
    ([], {}, {}, "hydra/sweeper=optuna: nothing is searched; "),
    (["x=interval(3,1)"], {}, {}, "x=interval(3,1): the lower bound 3.0 is above the upper bound 1.0"),
    (
        ["x=1"],
        {"params": {"x": "1,2"}},
        {},
        "x is searched and given twice: hydra.sweeper.params.x=1,2 and x=1; leave one",
    ),
    (
        [X],
        {},
        {"metric": None},
        "hydra/sweeper=optuna needs a metric: sweep.metric=accuracy for the highest accuracy, or",
    ),
    (
        [X],
        {"direction": "maximize"},
        {},
        "hydra.sweeper.direction=maximize contradicts sweep.metric=-loss, which says minimize: leave the direction ",
    ),
    (
        [X],
        {"direction": "minimize"},
        {"metric": "accuracy"},
        "which says maximize: leave the direction out, or set sweep.metric=-accuracy",
    ),
    (
        [X],
        {"direction": "minimise"},
        {},
        "hydra.sweeper.direction=minimise is not one of maximize, minimize; did you mean",
    ),
    (
        [X],
        {"direction": ["minimize", "maximize"]},
        {},
        "hydra.sweeper.direction=['minimize', 'maximize'] is not one of",
    ),
    ([X], {"n_trials": 0}, {}, "hydra.sweeper.n_trials=0 is no number of trials: the least is 1"),
    ([X], {"n_trials": "ten"}, {}, "hydra.sweeper.n_trials=ten is no number of trials: the least is 1"),
    ([X], {"seed": "a"}, {}, "hydra.sweeper.seed=a is no whole number"),
    (
        [X],
        {"storage": "study.db"},
        {},
        "hydra.sweeper.storage=study.db is no URL: write sqlite:///FILE, or null for a file",
    ),
    (
        [X],
        {"storage": "no://me:secret@x/y"},
        {},
        "hydra.sweeper.storage=no://...@x/y cannot be used: NoSuchModuleError: Can",
    ),
    ([X], {"sampler": "tpe"}, {}, "hydra.sweeper.sampler=tpe is no node with a _target_"),
    ([X], {"sampler": {}}, {}, "hydra.sweeper.sampler has no _target_"),
    (
        [X],
        {"sampler": {"_target_": f"{SAMPLERS}TPSampler"}},
        {},
        "hydra.sweeper.sampler._target_=optuna.samplers.TPSampler:",
    ),
    (
        [X],
        {"sampler": {**RANDOM, "sead": 1}},
        {},
        "hydra.sweeper.sampler.sead: optuna.samplers.RandomSampler takes no argum",
    ),
    (
        [X],
        {"sampler": {"_target_": "builtins.dict"}},
        {},
        "hydra.sweeper.sampler: builtins.dict is no optuna.samplers.BaseS",
    ),
    (
        [X],
        {"pruner": {"_target_": "builtins.dict"}},
        {},
        "hydra.sweeper.pruner: builtins.dict is no optuna.pruners.BasePru",
    ),
    ([X], {"pruner": None}, {}, "hydra.sweeper.pruner=None is no node with a _target_"),
    (
        [X],
        {"sampler": {"_target_": f"{SAMPLERS}CmaEsSampler"}},
        {},
        "hydra.sweeper.sampler: CmaEsSampler keeps its state as a pickle, which is code, in the study; set hydra/",
    ),
    (
        [X],
        {"sampler": {"_target_": f"{SAMPLERS}GridSampler", "search_space": {}}},
        {},
        "hydra.sweeper.sampler: GridSampler has a search space of its own; set hydra/sweeper/sampler=grid",
    ),
    ([X], {"n_jobs": 2}, {}, "hydra.sweeper.n_jobs is no setting of hydra/sweeper=optuna: set sweep.parallel"),
    ([X], {"n_trial": 2}, {}, "hydra.sweeper.n_trial is no setting of hydra/sweeper=optuna; did you mean 'n_trials'?"),
]


@pytest.mark.parametrize(("arguments", "settings", "launcher", "message"), WRONG, ids=range(len(WRONG)))
def test_what_cannot_be_is_named_and_nothing_is_started(tmp_path, arguments, settings, launcher, message):
    made = FormulaLauncher(tmp_path / "sweep", **launcher)
    with pytest.raises(SettingsError) as found:
        sweep(made, *arguments, **settings)
    assert message in str(found.value)
    assert not made.started
    assert not (tmp_path / "sweep").exists()


def test_the_study_of_another_search_is_refused(tmp_path):
    sweep(FormulaLauncher(tmp_path), X, n_trials=1)
    with pytest.raises(SettingsError) as found:
        sweep(FormulaLauncher(tmp_path, metric="accuracy"), "x=interval(0,5)")
    assert str(found.value) == (
        'the study sweep is one of another search: there {"sweep.metric": "-loss", "x": "-5.0 to 5.0"}, here '
        '{"sweep.metric": "accuracy", "x": "0.0 to 5.0"}; give another hydra.sweeper.study_name, or another '
        "hydra.sweep.dir"
    )


def test_a_journal_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / JOURNAL).write_text("no journal\nat all\n")
    with pytest.raises(
        SettingsError, match=f"^hydra.sweep.dir={tmp_path}: study.journal there cannot be used: JSONDecode"
    ):
        sweep(FormulaLauncher(tmp_path), X)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (None, "hydra/sweeper=optuna needs the package optuna: pip install 'evenshard\\[sweep\\]'"),
        (
            SimpleNamespace(__version__="2.10.1"),
            "needs optuna 5, there is optuna 2.10.1: pip install 'evenshard\\[sweep\\]'",
        ),
    ],
)
def test_the_package_is_named_where_it_is_missing_or_old(tmp_path, monkeypatch, module, message):
    monkeypatch.setitem(sys.modules, "optuna", module)
    with pytest.raises(SettingsError, match=message):
        sweep(FormulaLauncher(tmp_path / "sweep"), X)
    assert not (tmp_path / "sweep").exists()


def test_a_record_of_a_job_that_nobody_asked_for_changes_nothing(tmp_path):
    class Talkative(FormulaLauncher):
        def run(self, source):
            records = super().run(source)
            for record in [*records, Record(99, (), "99", FINISHED)]:
                source.tell(record)
                assert not source.prunes(record)
            return records

    sweep(Talkative(tmp_path), X, n_trials=2)
    assert states(tmp_path) == ["COMPLETE"] * 2
