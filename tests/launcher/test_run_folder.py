"""One run, one folder: for all ranks, and never that of another run."""

import random
import time
from contextlib import ExitStack
from functools import partial

import pytest
from torch import nn

from launcher.checkpoints.load import load_weights
from launcher.configure.run_folder import check_run_folder, claim_run_folder
from launcher.processes.errors import SettingsError
from tests.launcher.command import TINY, Line, in_turn, launch


def test_ranks_that_compose_at_different_times_work_in_one_folder(tmp_path):
    done = launch(
        tmp_path,
        3,
        *TINY,
        "hydra.run.dir=outputs/${now:%H-%M-%S}/${now:%f}",
        before=lambda: time.sleep(random.uniform(0, 1.2)),
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
    again = launch(tmp_path, 2, *TINY, "checkpoint.resume=never")
    assert again.status == 2
    assert again.error == (
        f"error: hydra.run.dir={tmp_path}/run holds a run already; nothing is overwritten: give another folder, or "
        "continue that run with checkpoint.resume=auto\n"
    )
    assert (tmp_path / "run" / "status.json").read_text() == before


def test_a_run_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    done = launch(tmp_path, 2, *TINY, "hydra.run.dir=file/run")
    assert done.status == 2
    assert done.error == f"error: hydra.run.dir={tmp_path}/file/run cannot be used: Not a directory\n"
    (itself,) = in_turn(Line(tmp_path, (*TINY, "hydra.run.dir=file")))
    assert itself.error == f"error: hydra.run.dir={tmp_path}/file is a file; give a folder\n"


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


def test_a_name_that_no_folder_can_have_and_a_link_that_leads_nowhere_are_told(tmp_path):
    long, link = tmp_path / ("a" * 300), tmp_path / "link"
    link.symlink_to("nowhere")
    for check in (check_run_folder, partial(claim_run_folder, held=ExitStack())):
        with pytest.raises(SettingsError, match="cannot be used: File name too long"):
            check(long, always_new=False, continues=True)
        with pytest.raises(SettingsError, match="link is a link to nowhere, which is not there"):
            check(link / "run", always_new=False, continues=True)
    with pytest.raises(SettingsError, match=r"checkpoint\.load=.* cannot be read: File name too long"):
        load_weights(nn.Linear(1, 1), str(long))
