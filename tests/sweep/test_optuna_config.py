"""``hydra/sweeper=optuna`` composes, and Hydra makes the sweeper of it."""

from pathlib import Path

import pytest
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext
from omegaconf import OmegaConf

from launcher.configure.command_line import parse
from launcher.configure.compose import compose_config, config_dir
from launcher.processes.errors import SettingsError
from launcher.sweep.optuna_sweeper import OptunaSweeper
from launcher.sweep.plugin import MODULE, register
from launcher.sweep.study import Sampling, build_pruner
from tests.sweep.searching import FormulaLauncher

FOLDER = config_dir() / "hydra" / "sweeper"
SAMPLERS = sorted(path.stem for path in (FOLDER / "sampler").glob("*.yaml"))
PRUNERS = sorted(path.stem for path in (FOLDER / "pruner").glob("*.yaml"))


class Shipped(Launcher):
    """Stands where the launcher of the package stands."""

    __module__ = MODULE

    def __init__(self, place):
        self.plans, self.formula = False, FormulaLauncher(Path(place))

    def setup(self, **_):
        pass

    def launch(self, *_):
        raise AssertionError


def made(*words, place="."):
    """The sweeper as Hydra makes it."""
    node = compose_config(parse(["hydra/sweeper=optuna", *words])).hydra.sweeper
    register(OptunaSweeper, Shipped)
    launcher = {"_target_": "hydra_plugins.evenshard.Shipped", "place": str(place)}
    config = OmegaConf.create({"hydra": {"sweeper": OmegaConf.to_container(node, resolve=False), "launcher": launcher}})
    return Plugins.instance().instantiate_sweeper(
        hydra_context=HydraContext(config_loader=None, callbacks=None), task_function=print, config=config
    )


def test_what_is_said_nowhere_else_is_shipped():
    search = made().search
    assert (search.direction, search.n_trials, search.seed, search.storage, search.study_name) == (
        None,
        20,
        0,
        None,
        None,
    )
    assert search.params == {}
    assert search.sampler["_target_"] == "optuna.samplers.TPESampler"
    assert search.pruner == {"_target_": "optuna.pruners.NopPruner"}


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_each_shipped_sampler_is_built(sampler):
    search = made(f"hydra/sweeper/sampler={sampler}", "hydra.sweeper.seed=7").search
    assert search.sampler["seed"] == 7
    assert Sampling(search.sampler, search.seed).sampler(0)


@pytest.mark.parametrize("pruner", PRUNERS)
def test_each_shipped_pruner_is_built(pruner):
    assert build_pruner(made(f"hydra/sweeper/pruner={pruner}").search.pruner)


def test_the_command_line_reaches_the_sweeper():
    search = made(
        "hydra.sweeper.n_trials=3",
        "hydra.sweeper.sampler.n_startup_trials=1",
        "hydra.sweeper.sampler.seed=5",
        "hydra/sweeper/pruner=median",
        "hydra.sweeper.pruner.n_warmup_steps=100",
        "hydra.sweeper.storage='sqlite:///a.db'",
        "+hydra.sweeper.params.optimizer.lr='tag(log, interval(1e-3, 1))'",
    ).search
    assert search.n_trials == 3
    assert (search.sampler["n_startup_trials"], search.sampler["seed"]) == (1, 5)
    assert search.pruner["n_warmup_steps"] == 100
    assert search.storage == "sqlite:///a.db"
    assert search.params == {"optimizer": {"lr": "tag(log, interval(1e-3, 1))"}}


def test_a_config_of_ones_own_may_hold_the_search(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "search.yaml").write_text(
        "# @package _global_\n"
        "defaults:\n  - override /hydra/sweeper: optuna\n"
        "hydra:\n  sweeper:\n    n_trials: 7\n    params:\n      optimizer.lr: interval(0.1, 1)\n      seed: 1,2\n"
    )
    config = compose_config(parse([f"--config-dir={tmp_path}", "experiment=search"]))
    search = OptunaSweeper(**{k: v for k, v in config.hydra.sweeper.items() if not k.startswith("_")}).search
    assert search.n_trials == 7
    assert search.params == {"optimizer.lr": "interval(0.1, 1)", "seed": "1,2"}


def test_a_setting_that_there_is_not_is_named():
    with pytest.raises(
        SettingsError, match=r"^hydra.sweeper.n_jobs is no setting of hydra/sweeper=optuna: set sweep.paral"
    ):
        made("+hydra.sweeper.n_jobs=2").sweep(["x=interval(0,1)"])


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "hydra.sweeper.n_trial=3",
            "there is no setting hydra.sweeper.n_trial; --cfg hydra shows those that there are",
        ),
        (
            "hydra/sweeper/sampler=cma",
            "hydra/sweeper/sampler=cma: there is no such choice; hydra/sweeper/sampler can be",
        ),
        ("hydra/sweeper=opt", "hydra/sweeper=opt: there is no such choice; did you mean 'optuna'?"),
    ],
)
def test_a_misspelled_setting_is_told_in_the_words_of_the_config(word, message):
    with pytest.raises(SettingsError) as found:
        compose_config(parse(["hydra/sweeper=optuna", word]))
    assert str(found.value).startswith(message)


def test_the_sweeper_that_hydra_made_sweeps(tmp_path):
    sweeper = made("hydra.sweeper.n_trials=2", place=tmp_path)
    sweeper.launcher = sweeper.launcher.formula
    assert len(sweeper.sweep(["x=interval(0,1)"])) == 2
