"""Whatever is wrong with the settings is told once, in the words of the config, and ends with exit status 2."""

import shlex

import pytest

from tests.launcher.command import TINY, Line, in_turn, launch

WRONG = [
    ("optimzer.lr=1", "there is no setting optimzer.lr; did you mean 'optimizer.lr'?"),
    ("optimizer.lrr=1", "optimizer.lrr is not in the chosen config; did you mean 'optimizer.lr'?"),
    ("+modle=x", "there is no setting modle; did you mean 'model'?"),
    ("+trainer.epoch=3", "there is no setting trainer.epoch; did you mean 'trainer.epochs'?"),
    ("+colour=red", "there is no setting colour; values of your own go under vars"),
    ("batch.global_size=abc", "batch.global_size=abc: Value 'abc' of type 'str' could not be converted to Integer"),
    ("batch.global_size=null", "batch.global_size=null: "),
    ("batch.tail=dorp", "batch.tail=dorp is not one of drop, pad, spread, carry; did you mean 'drop'?"),
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
    ("mode=tarin", "mode=tarin is not one of train, evaluate, plan, tune, inspect; did you mean 'train'?"),
    ("mode=evaluate", "mode=evaluate needs checkpoint.load=PATH: a run folder or a file of weights"),
    ("launch.processes=5", "launch.processes=5, but torchrun started 2 on this node; leave launch.processes out"),
    (
        "launch.max_restarts=2",
        (
            "launch.max_restarts=2 is for ranks that launch.processes starts, and torchrun started these; leave it "
            "out, and give torchrun --max-restarts=2"
        ),
    ),
    ("launch.max_restarts=-1", "launch.max_restarts=-1 is too small: the least is 0"),
    ("seed=${vars.nothing}", "seed: "),
    ("--local_rank=0", "--local_rank=0: ranks are read from the environment; start with torchrun"),
    ("--local-rank=1", "--local-rank=1: ranks are read from the environment; start with torchrun"),
    ("--hepl", "unknown flag --hepl; did you mean '--help'?"),
    ("--epochs=3", "unknown flag --epochs; settings are given without dashes, as in optimizer.lr=0.1"),
    ("--cfg=jbo", "argument --cfg/-c: invalid choice: 'jbo'"),
    ("--config-dir=nowhere", "--config-dir=nowhere: there is no folder "),
    ("--config-name=nothing", "--config-name=nothing: there is no config nothing.yaml in "),
    ("batch.too_many_devices=error batch.min_per_device=12", "batch.global_size=12 feeds 1 device with "),
    ("batch.max_per_device=5 batch.min_per_device=5", "batch.max_per_device=5 cuts a share of 6 rows into 2"),
    ("batch.min_per_device=13", "batch.global_size=12 is smaller than batch.min_per_device=13"),
    ("batch.shard_rows=0", "batch.shard_rows=0 is too small: the least is 1"),
    (
        "batch.exact=true batch.shard_rows=2 batch.min_per_device=3",
        (
            "batch.shard_rows=2 makes shards smaller than batch.min_per_device=3, and a shard can be a micro-batch by "
            "itself: raise batch.shard_rows or lower batch.min_per_device"
        ),
    ),
    (
        "batchnorm=shard batch.shard_rows=13",
        (
            "batch.shard_rows=13 is larger than batch.global_size=12: not even one shard gets its rows; lower "
            "batch.shard_rows or raise batch.global_size"
        ),
    ),
    (
        "batch.exact=true batch.shard_rows=5 batch.max_per_device=5",
        (
            "batch.max_per_device=5 is smaller than a shard: batch.global_size=12 in 2 shards of batch.shard_rows=5 or "
            "more gives shards of 6 rows, and a shard is never cut; raise batch.max_per_device to 6 or lower "
            "batch.shard_rows"
        ),
    ),
    (
        "batchnorm=sync batch.exact=true",
        (
            "batchnorm=sync needs the rows of all devices at once, and batch.exact=true takes one shard at a time; set "
            "batchnorm=shard"
        ),
    ),
    (
        "batchnorm=sync batch.max_per_device=3",
        (
            "batchnorm=sync needs the whole global batch at once, and batch.max_per_device=3 cuts the shares of 2 "
            "devices into 2 micro-batches; raise batch.max_per_device or set batchnorm=shard"
        ),
    ),
    (
        "batch.exact=true batch.too_many_devices=grow",
        (
            "batch.too_many_devices=grow lets the global batch depend on the number of devices, and with "
            "batch.exact=true nothing may; set batch.too_many_devices=idle or error"
        ),
    ),
    ("batchnorm=shards", "batchnorm=shards is not one of local, shard, sync; did you mean 'shard'?"),
    (
        "batch.exact=true batch.shard_rows=12 batch.too_many_devices=error",
        (
            "batch.global_size=12 feeds 1 device with batch.shard_rows=12 rows each, and there are 2; raise "
            "batch.global_size to 24, lower batch.shard_rows or start 1 process"
        ),
    ),
]


def told(place, several):
    """Each of these command lines on two ranks, by its words."""
    lines = {
        words: Line(place / str(number), (*TINY, *shlex.split(words))) for number, (words, _) in enumerate(several)
    }
    return dict(zip(lines, in_turn(*lines.values(), world_size=2), strict=True))


@pytest.fixture(scope="module")
def wrong(tmp_path_factory):
    return told(tmp_path_factory.mktemp("wrong"), WRONG)


@pytest.mark.parametrize(("words", "message"), WRONG, ids=[words for words, _ in WRONG])
def test_a_wrong_setting_is_told_once_before_anything_is_made(wrong, words, message):
    done = wrong[words]
    assert done.status == 2
    assert done.error.startswith(f"error: {message}")
    assert done.error.count("\n") == 1
    assert (done.output, done.run_dirs) == ("", [])


# What shows only when the parts are built or meet the first rows, on all ranks at once.
UNFIT = [
    ("model._target_=tests.launcher.parts.Nothing", "model._target_=tests.launcher.parts.Nothing: "),
    ("model._target_=nobody.Net", "model._target_=nobody.Net: "),
    ("model.in_features=5", "model, loss and data.train do not fit together: RuntimeError: "),
    (
        "+model.depth=3",
        (
            "model.depth: torch.nn.Linear takes no argument 'depth'; it takes in_features, out_features, bias, device, "
            "dtype. If it comes from the config of another _target_, remove it with ~model.depth"
        ),
    ),
    ("~model.in_features", "model: torch.nn.Linear: missing a required argument: 'in_features'"),
    ("model._target_=collections.Counter", "model: collections.Counter gives Counter, not a torch.nn.Module"),
    (
        "model._target_=torch.nn.ReLU ~model.in_features ~model.out_features",
        "model: torch.nn.ReLU has no parameters",
    ),
    ("optimizer={_target_:torch.nn.ReLU}", "optimizer.lr: torch.nn.ReLU takes no argument 'lr'; it takes inplace"),
    (
        "optimizer._target_=collections.Counter",
        "optimizer: collections.Counter gives Counter, not a torch.optim.",
    ),
    ("optimizer.lr=-1", "optimizer: torch.optim.SGD refuses: ValueError: Invalid learning rate: -1"),
    ("loss.reduction=mean", "loss.reduction=mean: the loop weights the rows itself; set loss.reduction=none"),
    (
        "loss._target_=tests.launcher.parts.mean_loss ~loss.reduction ~loss.label_smoothing",
        "loss gives () float32 for 2 rows",
    ),
    (
        "metrics.accuracy._target_=torch.numel",
        "model, loss and data.test do not fit together: TypeError: numel()",
    ),
    ("+scheduler._target_=torch.optim.lr_scheduler.LinearLR +scheduler.steps=3", "scheduler.steps: "),
    ("data.train.n=0", "data.train: tests.launcher.parts.rows has no rows"),
    (
        "data.train._target_=torch.nn.ReLU ~data.train.n",
        "data.train: torch.nn.ReLU gives ReLU, which has no length",
    ),
    ("data.train.n=7", "batch.global_size=12 with batch.tail='drop' leaves no whole global batch in n=7 rows"),
    (
        "'trainer.stop_when=\"acuracy > 1\"'",
        "trainer.stop_when='acuracy > 1': acuracy is not evaluated; did you mean 'acc",
    ),
    ("trainer.stop_when=soon", "trainer.stop_when='soon': 'soon' is no condition; write e.g. "),
    ("+ddp.static_grap=true", "ddp.static_grap: DistributedDataParallel takes no such argument; did you mean "),
    ("checkpoint.load=nowhere", "checkpoint.load="),
    ("launch.device=cuda", "launch.device=cuda: "),
    (
        "data.seeded_rows=true",
        (
            "data.seeded_rows=true: InMemory of data.train reads whole batches (__getitems__ and collate_fn), and no "
            "row of them can have a random stream of its own; let it read single rows"
        ),
    ),
    (
        "batch.exact=true data.train._target_=tests.launcher.parts.AugmentedAtOnce",
        (
            "batch.exact=true: data.train draws random numbers that depend on who reads which rows, in collate_fn or "
            "where it reads several rows at once; draw in __getitem__, where each row has random streams of its own"
        ),
    ),
    (
        "batch.exact=true data.train._target_=tests.launcher.parts.Augmented data.seeded_rows=false",
        "batch.exact=true: data.train draws random numbers that depend on who reads which rows, in collate_fn or ",
    ),
    (
        "batch.exact=true data.train._target_=tests.launcher.parts.MixedUp",
        "batch.exact=true: data.train draws random numbers that depend on who reads which rows, in collate_fn or ",
    ),
    (
        "batch.exact=true data.test._target_=tests.launcher.parts.OwnGenerator",
        (
            "batch.exact=true: data.test gives other rows when it is read again: with a generator of its own, or a "
            "state; draw from the global streams of python, numpy or torch, which are seeded for each row"
        ),
    ),
    (
        "batch.exact=true model=normalised model._target_=tests.launcher.parts.Limited",
        "batch.exact=true: layer words has max_norm=0.5, with which every forward changes its weight; leave max_norm ",
    ),
    (
        "batch.exact=true model=normalised model._target_=tests.launcher.parts.Lerped",
        (
            "batch.exact=true: forward or backward changes parameter teacher.weight (as max_norm of an embedding or a "
            "moving average of weights does), once for each shard of a device; change it in after_step(model) of the "
            "task, keep it as a buffer, or set batch.exact=false"
        ),
    ),
    (
        "batch.exact=true model=normalised model._target_=tests.launcher.parts.MomentumByData",
        "batch.exact=true: forward or backward changes parameter teacher.weight (as max_norm of an embedding or a ",
    ),
    (
        "batch.exact=true model=normalised model._target_=tests.launcher.parts.Filled",
        "batch.exact=true: buffer mean was None and is filled in a step; register it with a value, or set batch.exact",
    ),
    (
        "model=normalised model._target_=tests.launcher.parts.OfWords",
        "model: layer words has sparse=true, with which DistributedDataParallel halves gradients of other ",
    ),
    (
        "model._target_=tests.launcher.parts.PartlyUnused",
        (
            "model: the loss does not depend on idle.0.weight, idle.0.bias, idle.1.weight and 1 more, whose gradients "
            "DistributedDataParallel waits for; set +ddp.find_unused_parameters=true, use them, or set their "
        ),
    ),
    (
        "batch.exact=true model=normalised model._target_=tests.launcher.parts.Expanded",
        (
            "batch.exact=true: buffer scale is expanded, and several of its numbers share one place in memory; "
            "register its .clone(), or set batch.exact=false"
        ),
    ),
    (
        "batchnorm=shard model=normalised model._target_=tests.launcher.parts.own_forward",
        (
            "batchnorm=shard: layer 0 is of class OwnForward, whose forward is its own; use torch.nn.BatchNorm1d or "
            "batchnorm=local"
        ),
    ),
    (
        "batchnorm=sync model=normalised model._target_=tests.launcher.parts.own_forward",
        "batchnorm=sync: layer 0 is of class OwnForward, whose forward is its own; use torch.nn.BatchNorm1d or ",
    ),
    (
        "batch.exact=true model=normalised model._target_=tests.launcher.parts.synchronised",
        "batch.exact=true: layer 1 is a SyncBatchNorm, whose statistics are those of all ranks' rows; set batch",
    ),
    (
        "model=normalised model._target_=tests.launcher.parts.synchronised",
        (
            "batchnorm=local: layer 1 is a SyncBatchNorm, which torch has for CUDA devices alone; set batchnorm=sync, "
            "which computes the same on the CPU"
        ),
    ),
    (
        "batch.exact=true model=normalised model._target_=tests.launcher.parts.OfWords",
        "batch.exact=true: parameter words.weight gets a sparse gradient, and only dense ones are added in tree order",
    ),
    (
        "batch.exact=true model=normalised model._target_=tests.launcher.keeping.drops_by_itself",
        "batch.exact=true: the output of layer 1 (OwnDropout) is another when the same rows are put through again, so ",
    ),
]


@pytest.fixture(scope="module")
def unfit(tmp_path_factory):
    return told(tmp_path_factory.mktemp("unfit"), UNFIT)


@pytest.mark.parametrize(("words", "message"), UNFIT, ids=[words for words, _ in UNFIT])
def test_parts_that_do_not_fit_are_told_once_before_training(unfit, words, message):
    done = unfit[words]
    assert done.status == 2
    assert done.error.startswith(f"error: {message}")
    assert "Traceback" not in done.error
    assert done.error.count("error: ") == 1
    assert done.state["state"] == "failed"
    assert done.state["error"]["type"] == "SettingsError"
    assert done.error == f"error: {done.state['error']['message']}\n"


def test_an_operation_that_cannot_be_exact_is_told_once_with_the_place_of_the_traceback(tmp_path):
    done = launch(
        tmp_path,
        2,
        *TINY,
        "batch.exact=true",
        "model._target_=tests.launcher.parts.Undetermined",
        "~model.in_features",
        "~model.out_features",
    )
    assert done.status == 2
    message, place = done.error.splitlines()
    assert message.startswith(
        "error: batch.exact=true: put_ gives other bits each time, and torch has no other way to compute it here ("
    )
    assert message.endswith("; use another operation, or set batch.exact=false")
    assert place.strip().startswith(f"the traceback is in {done.run_dir}/rank_")
    assert "in forward" in done.log(0) + done.log(1)
