"""The command as its users see it: one run, one folder, one word on the console, whatever the number of ranks."""

import random
import re
import shlex
import time

import pytest

from launcher.cli import main
from tests.launcher.command import TINY, launch

WRONG = [
    ("optimzer.lr=1", "there is no setting optimzer.lr; did you mean 'optimizer.lr'?"),
    ("optimizer.lrr=1", "optimizer.lrr is not in the chosen config; did you mean 'optimizer.lr'?"),
    ("+modle=x", "there is no setting modle; did you mean 'model'?"),
    ("+trainer.epoch=3", "there is no setting trainer.epoch; did you mean 'trainer.epochs'?"),
    ("+colour=red", "there is no setting colour; values of your own go under vars"),
    ("batch.global_size=abc", "batch.global_size=abc: Value 'abc' of type 'str' could not be converted to Integer"),
    ("batch.global_size=null", "batch.global_size=null: "),
    ("batch.tail=dorp", "batch.tail=dorp is not one of drop, pad; did you mean 'drop'?"),
    ("batch.global_size=0", "batch.global_size=0 is too small: the least is 1"),
    ("batch.pad_weight=2", "batch.pad_weight=2 is neither 0 nor 1"),
    ("trainer.precision=fp8", "trainer.precision=fp8 is not one of fp32, bf16, fp16"),
    ("trainer.clip_norm=0", "trainer.clip_norm=0.0 is not above 0; null turns clipping off"),
    ("model=smal_conv", "model=smal_conv: there is no such choice; did you mean 'small_conv'?"),
    ("experiment=nope", "experiment=nope: there is no such choice"),
    ("~model", "model has no _target_: choose one of conf/model/"),
    ("model={depth:3}", "model.depth is not in the chosen config; to add it: +model.depth=..."),
    ("optimizer.lr", "'optimizer.lr' is not a setting: write key=value"),
    ("optimizer.lr=[1", "'optimizer.lr=[1' cannot be read: "),
    ("mode=tarin", "mode=tarin is not one of train, evaluate, plan; did you mean 'train'?"),
    ("mode=evaluate", "mode=evaluate needs checkpoint.load=PATH: a run folder or a file of weights"),
    ("launch.processes=5", "launch.processes=5, but torchrun started 2 on this node; leave launch.processes out"),
    ("seed=${vars.nothing}", "seed: "),
    ("--local_rank=0", "--local_rank=0: ranks are read from the environment; start with torchrun"),
    ("--local-rank=1", "--local-rank=1: ranks are read from the environment; start with torchrun"),
    ("--hepl", "unknown flag --hepl; did you mean '--help'?"),
    ("--epochs=3", "unknown flag --epochs; settings are given without dashes: epochs=3"),
    ("--cfg=jbo", "argument --cfg/-c: invalid choice: 'jbo'"),
    ("--multirun", "--multirun: sweeps are not part of this version"),
    ("--config-dir=nowhere", "--config-dir=nowhere: there is no folder "),
    ("--config-name=nothing", "--config-name=nothing: there is no config nothing.yaml in "),
    ("batch.too_many_devices=error batch.min_per_device=12", "batch.global_size=12 feeds 1 devices with "),
    ("batch.max_per_device=5 batch.min_per_device=5", "batch.max_per_device=5 cuts a share of 6 rows into 2"),
    ("batch.min_per_device=13", "batch.global_size=12 is smaller than batch.min_per_device=13"),
]


@pytest.mark.parametrize(("words", "message"), WRONG, ids=[words for words, _ in WRONG])
def test_a_wrong_setting_is_told_once_before_anything_is_made(tmp_path, words, message):
    done = launch(tmp_path, 2, *TINY, *shlex.split(words))
    assert done.status == 2
    assert done.error.startswith(f"error: {message}")
    assert done.error.count("\n") == 1
    assert (done.output, done.run_dirs) == ("", [])


# What shows only when the parts are built or meet the first rows, on all ranks at once.
UNFIT = [
    ("model._target_=tests.launcher.parts.Nothing", "model._target_=tests.launcher.parts.Nothing: "),
    ("model._target_=nobody.Net", "model._target_=nobody.Net: "),
    ("model.in_features=5", "model, loss and data.train do not fit together: RuntimeError: "),
    ("+model.depth=3", "model.depth: torch.nn.Linear takes no argument 'depth'; it takes in_features, out_features"),
    ("~model.in_features", "model: torch.nn.Linear: missing a required argument: 'in_features'"),
    ("model._target_=collections.Counter", "model: collections.Counter gives Counter, not a torch.nn.Module"),
    ("model._target_=torch.nn.ReLU ~model.in_features ~model.out_features", "model: torch.nn.ReLU has no parameters that learn"),
    ("optimizer={_target_:torch.nn.ReLU}", "optimizer.lr: torch.nn.ReLU takes no argument 'lr'; it takes inplace"),
    ("optimizer._target_=collections.Counter", "optimizer: collections.Counter gives Counter, not a torch.optim.Optimizer"),
    ("optimizer.lr=-1", "optimizer: torch.optim.SGD refuses: ValueError: Invalid learning rate: -1"),
    ("loss.reduction=mean", "loss.reduction=mean: the loop weights the rows itself; set loss.reduction=none"),
    ("loss._target_=tests.launcher.parts.mean_loss ~loss.reduction ~loss.label_smoothing", "loss gives shape () for 2 rows, one value per row is needed"),
    ("metrics.accuracy._target_=torch.numel", "metrics.accuracy refuses: TypeError: numel() takes"),
    ("+scheduler._target_=torch.optim.lr_scheduler.LinearLR +scheduler.steps=3", "scheduler.steps: "),
    ("data.train.n=0", "data.train: tests.launcher.parts.rows has no rows"),
    ("data.train._target_=torch.nn.ReLU ~data.train.n", "data.train: torch.nn.ReLU gives ReLU, which has no length or no index"),
    ("data.train.n=7", "batch.global_size=12 with batch.tail='drop' leaves no whole global batch in n=7 rows"),
    ("'trainer.stop_when=\"acuracy > 1\"'", "trainer.stop_when='acuracy > 1': acuracy is not evaluated; did you mean 'accuracy'?"),
    ("trainer.stop_when=soon", "trainer.stop_when='soon': 'soon' is no condition; write e.g. "),
    ("+ddp.static_grap=true", "ddp.static_grap: DistributedDataParallel takes no such argument; did you mean "),
    ("checkpoint.load=nowhere", "checkpoint.load="),
    ("launch.device=cuda", "launch.device=cuda: "),
]


@pytest.mark.parametrize(("words", "message"), UNFIT, ids=[words for words, _ in UNFIT])
def test_parts_that_do_not_fit_are_told_once_before_training(tmp_path, words, message):
    done = launch(tmp_path, 2, *TINY, *shlex.split(words))
    assert done.status == 2
    assert done.error.startswith(f"error: {message}")
    assert "Traceback" not in done.error
    assert done.error.count("error: ") == 1
    assert done.state["state"] == "failed"
    assert done.state["error"]["type"] == "SettingsError"
    assert done.error == f"error: {done.state['error']['message']}\n"


def test_ranks_that_compose_at_different_times_work_in_one_folder(tmp_path):
    done = launch(
        tmp_path,
        3,
        *TINY,
        "hydra.run.dir=outputs/${now:%H-%M-%S}/${now:%f}",
        before=lambda: time.sleep(random.uniform(0, 1.2)),  # noqa: S311
    )
    assert done.status == 0, done.error
    assert {path.name for path in done.run_dir.glob("rank_*.log")} == {"rank_0.log", "rank_1.log", "rank_2.log"}
    assert done.state["state"] == "finished"


def test_two_runs_in_the_same_second_have_two_folders(tmp_path):
    day = "hydra.run.dir=outputs/${now:%Y}/run"
    first, second = (launch(tmp_path, 1, *TINY, "trainer.max_steps=1", day) for _ in range(2))
    assert (first.status, second.status) == (0, 0)
    year = time.strftime("%Y")
    assert [str(path.relative_to(tmp_path)) for path in second.run_dirs] == [
        f"outputs/{year}/run",
        f"outputs/{year}/run_1",
    ]


def test_a_folder_that_the_user_named_is_not_overwritten(tmp_path):
    launch(tmp_path, 1, *TINY, "trainer.max_steps=1")
    before = (tmp_path / "run" / "status.json").read_text()
    again = launch(tmp_path, 2, *TINY)
    assert again.status == 2
    assert again.error == (
        f"error: hydra.run.dir={tmp_path}/run holds a run already; nothing is overwritten: give another folder\n"
    )
    assert (tmp_path / "run" / "status.json").read_text() == before


def test_a_run_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    done = launch(tmp_path, 2, *TINY, "hydra.run.dir=file/run")
    assert done.status == 2
    assert done.error == f"error: hydra.run.dir={tmp_path}/file/run cannot be made: Not a directory\n"


def test_an_interpolated_time_is_one_value_on_all_ranks(tmp_path):
    done = launch(tmp_path, 4, *TINY, "trainer.max_steps=1", "model=noted", "model.stamp=${now:%f}")
    assert done.status == 0, done.error
    stamps = [re.search(r"stamp (\d+)", done.log(rank))[1] for rank in range(4)]
    assert stamps == [stamps[0]] * 4
    assert f"'{stamps[0]}'" in (done.run_dir / "config.yaml").read_text()


@pytest.mark.parametrize("name", ["a=1,b=2 (x)", "two words", "ünï-çode ✓", "it's", "100%"])
def test_any_folder_name_works(tmp_path, name):
    done = launch(tmp_path, 2, *TINY, "trainer.max_steps=1", f'hydra.run.dir="out/{name}"')
    assert done.status == 0, done.error
    assert done.run_dir == tmp_path / "out" / name
    assert f"run folder       {tmp_path}/out/{name}\n" in done.output


@pytest.mark.parametrize("chdir", [True, False])
def test_relative_paths_are_seen_from_where_the_command_was_given(tmp_path, chdir):
    model = ("model=noted", "model.stamp=${data.root}")
    done = launch(tmp_path, 2, *TINY, "trainer.max_steps=1", f"hydra.job.chdir={chdir}", "data.root=my/data", *model)
    assert done.status == 0, done.error
    place = done.run_dir if chdir else tmp_path
    for rank in range(2):
        assert f"stamp {tmp_path}/my/data in {place}\n" in done.log(rank)
    load = launch(tmp_path / "run", 1, *TINY, "mode=evaluate", "checkpoint.load=.", f"hydra.job.chdir={chdir}", *model)
    assert load.status == 0, load.error


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
        f"run folder       {tmp_path}/run\n"
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--help", "  batch.tail=drop                           what becomes of the incomplete global batch"),
        ("-h", "  model       resnet18, small_conv"),
        ("--cfg=job", "  global_size: 128"),
        ("--cfg=hydra", "  dir: outputs/${now:%Y-%m-%d}/${now:%H-%M-%S}"),
        ("--cfg=job --resolve optimizer.lr=0.5 scheduler=one_cycle", "  max_lr: 0.5"),
        ("--cfg=job optimizer.lr=0.5 scheduler=one_cycle", "  max_lr: ${optimizer.lr}"),
        ("mode=plan", "global batch     128 rows = 3 ranks x 42 to 43 rows"),
        ("mode=plan", "mode=plan: nothing was started, nothing was written"),
    ],
)
def test_answers_are_printed_once_and_nothing_is_made(tmp_path, words, line):
    done = launch(tmp_path, 3, *shlex.split(words), *([] if "mode" in words else ["hydra.run.dir=outputs/${now:%Y-%m-%d}/${now:%H-%M-%S}"]))
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
        f"run folder       {tmp_path}/run\n"
        "mode=plan: nothing was started, nothing was written\n"
    )


def test_an_error_on_one_rank_ends_all_and_is_shown_once(tmp_path):
    done = launch(tmp_path, 3, *TINY, "model._target_=tests.launcher.parts.FailsOnRankOne")
    assert done.statuses == [1, 1, 1]
    assert done.error.count("Traceback") == 1
    assert done.error.endswith("ValueError: rank 1 has had enough\nerror: rank 1: ValueError: rank 1 has had enough\n")
    assert done.errors[1] == done.error
    assert done.state["state"] == "failed"
    assert done.state["error"] == {"rank": 1, "type": "ValueError", "message": "rank 1 has had enough"}
    assert "ValueError: rank 1 has had enough" in done.log(1)


def test_of_two_errors_the_earlier_is_the_cause(tmp_path):
    done = launch(tmp_path, 2, *TINY, "model._target_=tests.launcher.parts.FailsInTurn")
    assert done.statuses == [1, 1]
    assert done.errors[0] == ""
    assert done.errors[1].endswith("error: rank 1: ValueError: the cause\n")
    assert done.state["error"] == {"rank": 1, "type": "ValueError", "message": "the cause"}
    assert "KeyError: 'a consequence'" in done.log(0)


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


@pytest.mark.parametrize(
    "words",
    ["optimzer.lr=1", "model.in_features=5", "model._target_=tests.launcher.parts.FailsAlways"],
    ids=["composed", "built", "own code"],
)
def test_an_error_that_every_restart_meets_again_is_told_once(tmp_path, words):
    done = launch(tmp_path, 2, *TINY, words, times=3)
    assert done.status in (1, 2)
    assert done.error.count("error: ") == 1


def test_a_restart_works_in_the_same_folder_with_the_same_settings(tmp_path):
    done = launch(tmp_path, 2, *TINY, "hydra.run.dir=outputs/${now:%f}", times=2)
    assert done.status == 0, done.error
    assert done.state["restarts"] == 1
    assert [line["step"] for line in done.metrics if "train/loss" in line] == [1, 2, 3, 4]


def test_a_process_without_its_variables_is_told_what_is_missing(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert main([]) == 2
    assert capsys.readouterr().err == (
        "error: the environment variable WORLD_SIZE is not set; start several processes with torchrun or srun\n"
    )
