"""What a run folder holds is told without touching it."""

import os
import shlex
import shutil
import time
from pathlib import Path

import pytest

from launcher.configure.command_line import CommandLine, command_of, parse
from launcher.configure.compose import compose_run
from launcher.configure.given import NAME, Given, quoted
from launcher.files import holder_of, lock
from launcher.inspection import inspect_text
from tests.launcher.command import CONFIGS, Line, in_turn, launch
from tests.launcher.disks import FullDisk
from tests.launcher.survivor import SURVIVOR, back_to, contents


def lines(text):
    return [" ".join(line.split()) for line in text.splitlines()]


def test_a_run_folder_is_told_about_and_left_as_it_is(tmp_path):
    def spoil():
        (tmp_path / "run" / "checkpoints" / "step_00000006" / "model.pt").write_bytes(b"")
        (tmp_path / "run" / "checkpoints" / ".part_00000007_1").mkdir()
        shutil.copytree(tmp_path / "run", tmp_path / "before")

    words = (*SURVIVOR, "checkpoint.keep=2", "checkpoint.keep_best=-loss", "optimizer.lr=0.5")
    trained, word, mode = in_turn(
        Line(tmp_path, words), Line(tmp_path, ("inspect", "run"), spoil), Line(tmp_path, (*words, "mode=inspect"))
    )
    run, root = tmp_path / "run", tmp_path / "run" / "checkpoints"
    assert trained.status == 0, trained.error
    assert (word.status, mode.status) == (0, 0), word.error
    assert word.output == mode.output
    told = lines(word.output)
    settings = told.pop(2)
    assert settings.startswith("settings digest ")
    assert len(settings.split()[-1]) == 16
    assert told[:6] == [
        f"run folder {run}",
        "state finished at step 6, epoch 2, 48 rows",
        "ranks 1",
        "checkpoints 2 whole of 3",
        f"step_00000006 0.0 MB not whole: {root}/step_00000006/model.pt: 0 bytes, 3153 were written",
        "step_00000005 0.0 MB epoch 2 40 rows 1 rank whole",
    ]
    assert told[6].startswith("step_00000003 0.0 MB epoch 1 24 rows 1 rank best loss ")
    assert told[7:] == [
        ".part_00000007_1 unfinished",
        f"best step_00000003: checkpoint.load={run}/best",
        "continues from step_00000005, on any number of ranks:",
        f"cd {tmp_path} && python -m launcher --config-dir={CONFIGS} {shlex.join(words[1:])} hydra.run.dir={run}",
    ]
    assert contents(tmp_path / "run") == contents(tmp_path / "before")


def test_how_a_run_ended(tmp_path):
    def killed():
        back_to(2, tmp_path / "whole", tmp_path / "killed")
        status = tmp_path / "killed" / "run" / "status.json"
        status.write_text(status.read_text().replace("finished", "running"))

    whole, full, before = in_turn(
        Line(tmp_path / "whole", SURVIVOR),
        Line(tmp_path / "full", SURVIVOR, FullDisk()),
        Line(tmp_path / "before", (*SURVIVOR, "data.train.n=0"), killed),
    )
    assert (whole.status, full.status, before.status) == (0, 2, 2)
    told = {done: lines(inspect_text(tmp_path / done / "run")) for done in ("whole", "full", "before", "killed")}
    assert told["whole"][-2].endswith("; it is over, unless more is asked for, as by trainer.epochs:")
    assert told["full"][1].startswith("state failed at step 4, epoch 2, 32 rows: SettingsError: ")
    assert "; the last checkpoint was not kept: No space left on device: " in told["full"][1]
    command = command_of(parse([*SURVIVOR, "data.train.n=0"]))
    assert told["before"][2:] == [
        "settings unknown: no checkpoint tells",
        "ranks 1",
        "checkpoints 0 whole of 0",
        "continues from the beginning, as no checkpoint was kept:",
        f"cd {tmp_path}/before && {command} hydra.run.dir={tmp_path}/before/run",
    ]
    assert told["killed"][1] == (
        "state killed after step 6, epoch 2, 48 rows: it says that it is running, and no process works in it"
    )
    assert told["killed"][-2] == "continues from step_00000002, on any number of ranks:"


def test_the_command_that_is_told_continues_the_run(tmp_path):
    folder = tmp_path / "it's a=1, b"
    words = (
        *SURVIVOR,
        "trainer.max_steps=2",
        "checkpoint.resume=never",
        "+vars.note='two ${seed} words'",
        f"hydra.run.dir={quoted(str(folder / 'run'))}",
    )
    first, refused = in_turn(Line(tmp_path, words), Line(tmp_path, (*words, "seed=1")))
    assert (first.status, refused.status) == (0, 2)
    told = inspect_text(folder / "run").splitlines()[-1]
    place, command = told.strip().split(" && ")
    program, again = shlex.split(command)[:3], shlex.split(command)[3:]
    assert shlex.split(place) == ["cd", str(tmp_path)]
    assert program == ["python", "-m", "launcher"]
    (more,) = in_turn(Line(tmp_path, (*again, "trainer.max_steps=3")))
    assert more.status == 0, more.error
    assert "resumed from " in more.output
    assert (more.state["step"], more.run_dir) == (3, folder / "run")
    *_, asked, _ = shlex.split(inspect_text(folder / "run").splitlines()[-1])
    assert asked == "trainer.max_steps=3"
    evaluated = Given(str(tmp_path), CommandLine(("mode=evaluate",))).to_json()
    (folder / "run" / NAME).write_text(evaluated)
    assert inspect_text(folder / "run").endswith("continues        nowhere: it evaluated, and trained nothing")


def test_no_password_is_kept_or_shown(tmp_path):
    line = CommandLine(("hydra.sweeper.storage=mysql://me:secret@host/db", "vars.a=b:c@d"))
    (tmp_path / NAME).write_text(Given("/", line).to_json())
    kept = Given.kept_in(tmp_path)
    assert kept.line.overrides == ("hydra.sweeper.storage=mysql://me:***@host/db", "vars.a=b:c@d")
    assert "secret" not in command_of(line)


@pytest.mark.parametrize(
    "kept",
    [
        "{",
        "[]",
        '{"folder": "/", "config_name": "config", "config_dir": null, "overrides": [1]}',
        '{"folder": "/", "config_name": "config", "config_dir": null, "overrides": ["vars.a=\\u001b[2J"]}',
        '{"folder": 3, "config_name": "config", "config_dir": null, "overrides": []}',
    ],
)
def test_a_command_that_cannot_be_printed_is_passed_over(tmp_path, kept):
    (tmp_path / "status.json").write_text("{}")
    (tmp_path / NAME).write_text(kept)
    assert inspect_text(tmp_path).endswith(f"kept: give its settings and hydra.run.dir={tmp_path}")


@pytest.mark.parametrize(
    "name",
    ["a=1,b=2 (x)", "it's", 'q"uo"te', "back\\slash", "end\\", 'b\\"q', "null", "ünï ✓", "~a:b@c"],
)
def test_any_text_is_read_by_hydra_as_it_stands(name):
    assert compose_run(parse([f"hydra.run.dir={quoted('/' + name)}"])).run_dir == Path("/") / name


def test_a_run_that_goes_on_is_told_of_and_not_disturbed(tmp_path):
    def hold(path, reader):
        with lock(path):
            os.read(reader, 1)

    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        hold(tmp_path / ".lock", reader)
        os._exit(0)
    (tmp_path / "status.json").write_text('{"step": 3}')
    while holder_of(tmp_path / ".lock") is None:
        time.sleep(0.01)
    assert lines(inspect_text(tmp_path))[1].startswith(f"state running at step 3, epoch 1, 0 rows; process {child} on ")
    os.write(writer, b".")
    os.waitpid(child, 0)
    assert holder_of(tmp_path / ".lock") is None


def test_other_folders_are_refused(tmp_path):
    (tmp_path / "run").mkdir()
    several = launch(tmp_path, 2, "inspect", "run")
    assert several.status == 2
    assert several.error == (
        f"error: {tmp_path}/run is no run folder: it has neither config.yaml nor status.json nor checkpoints/step_*\n"
    )
    none, two = in_turn(Line(tmp_path, ("inspect",)), Line(tmp_path, ("inspect", "a", "b")))
    assert none.error == "error: inspect takes one run folder, and 0 are given: inspect RUN_DIR\n"
    assert two.error == "error: inspect takes one run folder, and 2 are given: inspect RUN_DIR\n"
    assert parse(["inspect", "a"]).inspect == "a"
    assert list((tmp_path / "run").iterdir()) == []
