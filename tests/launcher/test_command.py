"""The command as its users see it: one run, one folder, one word on the console, whatever the number of ranks."""

import re
import shlex

import pytest

from launcher.cli import main
from tests.launcher.command import TINY, launch


def test_an_interpolated_time_is_one_value_on_all_ranks(tmp_path):
    done = launch(tmp_path, 4, *TINY, "trainer.max_steps=1", "model=noted", "model.stamp=${now:%f}")
    assert done.status == 0, done.error
    stamps = [re.search(r"stamp (\d+)", done.log(rank))[1] for rank in range(4)]
    assert stamps == [stamps[0]] * 4
    assert f"'{stamps[0]}'" in (done.run_dir / "config.yaml").read_text()


def test_a_log_line_is_once_on_the_console_and_once_in_each_file(tmp_path):
    done = launch(tmp_path, 3, *TINY, "trainer.max_steps=1", "model=noted", "model.stamp=marker")
    assert (done.output + done.error).count("stamp marker") == 1
    assert [done.log(rank).count("stamp marker") for rank in range(3)] == [1, 1, 1]


def test_only_rank_zero_speaks(tmp_path):
    done = launch(tmp_path, 3, *TINY)
    assert done.status == 0
    assert done.outputs[1:] == ["", ""]
    assert done.error == ""
    assert not re.search("WARNING|ERROR", "".join(done.log(rank) for rank in range(3)))


def test_the_start_shows_the_plan_with_its_arithmetic(tmp_path):
    done = launch(tmp_path, 3, *TINY, "batch.global_size=10", "batch.max_per_device=2")
    assert done.output.startswith(
        "global batch     10 rows = 3 ranks x 3 to 4 rows\n"
        "micro-batches    2 per step on every rank, 1 to 2 rows each\n"
        "epoch            26 rows = 2 x 10 + 6: 2 steps\n"
        "tail             drop: rows left out of every epoch: 6\n"
        "devices          3 ranks on cpu, 1 thread each\n"
        "checkpoints      after 10 s, then as often as costs least, the newest 2 stay, written beside training\n"
        f"run folder       {tmp_path}/run\n"
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--help", "  batch.tail=drop                           what becomes of the incomplete global batch"),
        ("-h", "  model       resnet18, small_conv"),
        ("--cfg=job", "  global_size: 128"),
        ("--cfg=hydra", "  dir: outputs/${now:%Y}"),
        ("--cfg=job --resolve optimizer.lr=0.5 scheduler=one_cycle", "  max_lr: 0.5"),
        ("--cfg=job optimizer.lr=0.5 scheduler=one_cycle", "  max_lr: ${optimizer.lr}"),
        ("mode=plan", "global batch     128 rows = 3 ranks x 42 to 43 rows"),
        ("mode=plan", "mode=plan: nothing was started, nothing was written"),
    ],
)
def test_answers_are_printed_once_and_nothing_is_made(tmp_path, words, line):
    done = launch(
        tmp_path,
        3,
        *shlex.split(words),
        "hydra.run.dir=outputs/${now:%Y}",
    )
    assert done.status == 0, done.error
    assert [text.startswith(line) for text in done.output.splitlines()].count(True) == 1, done.output
    assert done.outputs[1:] == ["", ""]
    assert done.error == ""
    assert {path.name[:3] for path in tmp_path.iterdir()} == {"std"}


def test_the_plan_shows_each_rank_and_the_steps_of_the_run(tmp_path):
    done = launch(tmp_path, 4, *TINY, "mode=plan", "batch.global_size=10", "batch.max_per_device=2", "batch.tail=pad")
    assert done.output == (
        "global batch     10 rows = 4 ranks x 2 to 3 rows\n"
        "micro-batches    2 per step on every rank, 1 to 2 rows each\n"
        "epoch            26 rows = 2 x 10 + 6: 3 steps\n"
        "tail             pad: the last step has 6 rows and repeats 4 from the start of the order\n"
        "  rank 0         2 + 1 rows\n"
        "  rank 1         2 + 1 rows\n"
        "  rank 2         1 + 1 rows\n"
        "  rank 3         1 + 1 rows\n"
        "run              2 epochs, 6 steps\n"
        "devices          4 on cpu, 1 thread each\n"
        "checkpoints      after 10 s, then as often as costs least, the newest 2 stay, written beside training\n"
        f"run folder       {tmp_path}/run\n"
        "mode=plan: nothing was started, nothing was written\n"
    )


def test_seven_rows_on_two_ranks(tmp_path):
    done = launch(
        tmp_path, 2, *TINY, "data.train.n=7", "data.test.n=7", "batch.global_size=4", "trainer.max_steps=null"
    )
    assert done.status == 0, done.error
    assert done.values("test/rows") == [7, 7]
    assert done.state["rows"] == 8


def test_seven_rows_on_two_ranks_padded(tmp_path):
    done = launch(tmp_path, 2, *TINY, "data.train.n=7", "data.test.n=7", "batch.global_size=4", "batch.tail=pad")
    assert done.status == 0, done.error
    assert done.values("test/rows") == [7, 7]
    assert (done.state["step"], done.state["rows"]) == (4, 14)


def test_a_restart_works_in_the_same_folder_with_the_same_settings(tmp_path):
    model = ("model._target_=tests.launcher.parts.FailsOnce", "~model.in_features", "~model.out_features")
    done = launch(tmp_path, 2, *TINY, "trainer.epochs=4", "hydra.run.dir=outputs/${now:%f}", *model, times=2)
    assert done.status == 0, done.error
    assert done.state["restarts"] == 1
    assert [line["step"] for line in done.metrics if "train/loss" in line] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_process_without_its_variables_is_told_what_is_missing(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert main([]) == 2
    assert capsys.readouterr().err == (
        "error: the environment variable WORLD_SIZE is not set; start several processes with torchrun or srun\n"
    )
