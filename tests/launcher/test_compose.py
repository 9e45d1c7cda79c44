"""Every shipped config composes, passes the schema and survives the way to the other ranks."""

import itertools

import pytest

from launcher.configure.command_line import parse
from launcher.configure.compose import compose_run, config_dir, config_groups, show_config
from launcher.configure.run_folder import to_yaml
from launcher.configure.schema import RunConfig, known_keys
from launcher.instructions import Instructions
from launcher.processes.errors import SettingsError

CHOICES = [f"{group}={name}" for group, names in config_groups().items() for name in names]


def compose(*words):
    return compose_run(parse([*words]))


def test_the_groups_are_those_of_the_folder():
    assert {f"{path.parent.name}={path.stem}" for path in config_dir().glob("*/*.yaml")} == set(CHOICES)
    assert len(CHOICES) >= 14


@pytest.mark.parametrize("choice", CHOICES)
def test_each_shipped_config_passes_the_schema(choice):
    words = (choice, "++vars.size=32", "++vars.download=false") if "cifar" in choice else (choice,)
    run = compose(*words).run
    assert isinstance(run, RunConfig)
    assert RunConfig.from_json(run.to_json()) == run
    assert "${" not in to_yaml(run)


def test_all_pairs_of_optimizer_and_scheduler_compose():
    groups = config_groups()
    for optimizer, scheduler in itertools.product(groups["optimizer"], groups["scheduler"]):
        run = compose(f"optimizer={optimizer}", f"scheduler={scheduler}", "optimizer.lr=0.25").run
        assert run.optimizer["lr"] == 0.25
        assert run.scheduler.get("max_lr", 0.25) == 0.25


def test_paths_are_absolute_as_seen_from_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    composed = compose("data.root=my/data", "checkpoint.load='~/old'", "hydra.run.dir=out/a")
    assert composed.run.data.root == f"{tmp_path}/my/data"
    assert composed.run.checkpoint.load == "/home/me/old"
    assert composed.run_dir == tmp_path / "out" / "a"


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (("vars={a:1}",), None),
        (("+vars.a=1",), 1),
        (("+vars.a='x=1, (y) ü'",), "x=1, (y) ü"),
        (("+vars.a=[1,two,{three:3}]",), [1, "two", {"three": 3}]),
        (("+vars.b=7", "+vars.a=${vars.b}"), 7),
        (("+vars.a=null",), None),
    ],
)
def test_values_of_ones_own_go_under_vars(words, value):
    if value is None and words[0] == "vars={a:1}":
        with pytest.raises(SettingsError, match=r"vars.a is not in the chosen config; to add it: \+vars.a=\.\.\."):
            compose(*words)
    else:
        assert compose(*words).run.vars["a"] == value


def test_a_config_of_ones_own_may_be_the_primary_one(tmp_path):
    (tmp_path / "mine.yaml").write_text("defaults:\n  - config\n  - _self_\nseed: 7\n")
    assert compose(f"--config-dir={tmp_path}", "--config-name=mine").run.seed == 7


def test_a_primary_config_without_the_schema_is_refused(tmp_path):
    (tmp_path / "mine.yaml").write_text("seed: 7\n")
    with pytest.raises(SettingsError, match="--config-name=mine lacks the settings of config"):
        compose(f"--config-dir={tmp_path}", "--config-name=mine")


def test_what_is_shown_is_what_is_composed():
    shown = show_config(parse(["--cfg", "job", "--resolve", "batch.global_size=64"]))
    assert "  global_size: 64\n" in shown
    assert "hydra:" not in shown


def test_every_key_of_the_schema_is_known_in_dotted_form():
    keys = known_keys()
    assert {"batch", "batch.global_size", "trainer.stop_when", "launch.processes", "vars"} <= set(keys)
    assert len(keys) == len(set(keys))


def test_settings_with_another_digest_are_refused():
    run = compose("batch.global_size=64").run
    assert Instructions(run=run.to_json(), digest=run.digest).settings() == run
    with pytest.raises(SettingsError, match=f"their SHA-256 is {run.digest} here, 0{{64}} there; use the same v"):
        Instructions(run=run.to_json(), digest="0" * 64).settings()
