"""A plan refuses what the run would refuse, in the same words, and leaves everything as it is."""

import shlex
from pathlib import Path

import pytest

from launcher.configure.command_line import parse
from launcher.configure.compose import compose_run
from launcher.plan import plan_here
from launcher.processes.environment import Rank
from launcher.processes.errors import SettingsError
from tests.launcher.command import TINY, Line, in_turn
from tests.launcher.test_resume_settings import in_use

BY_BOTH = {
    "launch.device=cuda": "launch.device=cuda: this node shows no CUDA device; set launch.device=cpu",
    "launch.backend=nccl": "launch.backend=nccl needs CUDA devices, and this run has none",
    "launch.max_restarts=1": "launch.max_restarts=1 is for ranks that launch.processes starts; set launch.processes",
    "checkpoint.resume=nowhere": "checkpoint.resume=HERE/nowhere: there is no such folder",
    "checkpoint.load=nowhere": "checkpoint.load=HERE/nowhere: there is no such file or folder",
    "hydra.run.dir=file": "hydra.run.dir=HERE/file is a file; give a folder",
    "hydra.run.dir=file/run": "hydra.run.dir=HERE/file/run cannot be used: Not a directory",
    "hydra.run.dir=USED checkpoint.resume=never": "hydra.run.dir=USED holds a run already; nothing is overwritten: ",
    "hydra.run.dir=USED seed=1": "checkpoint.resume=auto: USED/checkpoints/step_00000002: a run with another seed: ",
    "checkpoint.resume=USED batch.tail=pad": "checkpoint.resume=USED: a run with other rows: batch.tail is drop there",
    "model.in_features=5": "model, loss and data.train do not fit together: RuntimeError: ",
    "data.seeded_rows=true": "data.seeded_rows=true: InMemory of data.train reads whole batches",
    "+data.order._target_=samplers.Weighted": "data.order: samplers.Weighted: missing a required argument: 'weights'",
    "+ddp.static_grap=true": "ddp.static_grap: DistributedDataParallel takes no such argument; did you mean ",
    "batch.exact=true model=normalised model._target_=tests.launcher.parts.synchronised": (
        "batch.exact=true: layer 1 is a SyncBatchNorm, whose statistics are those of all ranks' rows; set batchnorm="
    ),
    "batch.exact=true model=normalised model._target_=tests.launcher.parts.Expanded": (
        "batch.exact=true: buffer scale is expanded, and several of its numbers share one place in memory"
    ),
    "batchnorm=shard model=normalised model._target_=tests.launcher.parts.own_forward": (
        "batchnorm=shard: layer 0 is of class OwnForward, whose forward is its own"
    ),
}


def test_a_plan_refuses_what_the_run_refuses_and_leaves_nothing(tmp_path):
    used = tmp_path / "used" / "run"
    first, *ended = in_turn(
        Line(used.parent, (*TINY, "trainer.epochs=1")),
        *(
            Line(tmp_path / name, (*TINY, *shlex.split(words.replace("USED", str(used))), f"mode={name}"), touch)
            for words in BY_BOTH
            for name in ("plan", "train")
        ),
    )
    assert first.status == 0, first.error
    for (words, message), plan, run in zip(BY_BOTH.items(), ended[::2], ended[1::2], strict=True):
        assert (plan.status, run.status) == (2, 2), words
        assert plan.error.replace("/plan", "") == run.error.replace("/train", "")
        assert plan.error.startswith(f"error: {message}".replace("HERE", f"{tmp_path}/plan").replace("USED", str(used)))
    assert {path.name for path in (tmp_path / "plan").iterdir()} == {"file", "stdout_0", "stderr_0"}


def touch():
    Path("file").touch()


def plan(*words, ranks=1):
    composed = compose_run(parse([*TINY, *words]))
    rank = Rank(world_size=ranks, local_world_size=ranks)
    return plan_here(composed.run, rank, composed.run_dir, composed.run_dir_is_new, [])


def test_a_plan_refuses_what_several_ranks_would(tmp_path):
    folder = f"hydra.run.dir={tmp_path}/run"
    for model, message in (
        ("synchronised", "batchnorm=local: layer 1 is a SyncBatchNorm, which torch has for CUDA devices alone"),
        ("OfWords", "model: layer words has sparse=true, with which DistributedDataParallel halves gradients of other"),
    ):
        words = ("model=normalised", f"model._target_=tests.launcher.parts.{model}", folder)
        assert plan(*words).endswith("nothing was written")
        with pytest.raises(SettingsError, match=message):
            plan(*words, ranks=2)


def test_a_plan_says_where_the_run_continues_and_refuses_a_folder_in_use(tmp_path):
    (done,) = in_turn(Line(tmp_path, (*TINY, "trainer.epochs=1")))
    assert done.status == 0
    more = (*TINY, "trainer.epochs=3", "mode=plan")
    told, held = in_turn(Line(tmp_path, more), Line(tmp_path, more, lambda: in_use(tmp_path / "run")))
    assert told.output.startswith(
        f"note: continues from {tmp_path}/run/checkpoints/step_00000002: step 2, epoch 1, 24 rows\n"
        "note: with other settings: trainer.epochs 1 -> 3\n"
    )
    assert held.error.startswith(f"error: hydra.run.dir={tmp_path}/run is in use by process ")
