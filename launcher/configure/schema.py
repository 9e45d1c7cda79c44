"""The settings of a run: plain dataclasses, each of which checks itself.

A node with a ``_target_`` (model, loss, optimizer, ...) names a class or function of anybody's and its arguments.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from hashlib import sha256
from typing import Any, TypeAlias, get_type_hints

from launcher.configure.launch import LaunchConfig
from launcher.configure.profile import ProfileConfig
from launcher.configure.sweep import SweepConfig
from launcher.configure.tune import TuneConfig
from launcher.processes.errors import SettingsError, one_of
from launcher.processes.errors import at_least as _at_least
from samplers import TAILS

Node: TypeAlias = dict[str, Any]

MODES = ("train", "evaluate", "plan", "tune", "inspect")
AUTO = "auto"
TOO_MANY_DEVICES = ("idle", "error", "grow")
LR_RULES = ("none", "linear", "sqrt")
BATCHNORM = ("local", "shard", "sync")
ON_NONFINITE = ("stop", "skip")
PRECISIONS = ("fp32", "bf16", "fp16")
RESUME_WORDS = ("auto", "never")
ON_ERROR = ("stop", "warn")
EXPORTS = ("safetensors",)

SHARD_ROWS = 32
"""Rows of a shard where nothing is said: from here on, smaller micro-batches cost time."""


@dataclass
class BatchConfig:
    """The global batch, and how it is spread.

    Attributes:
        global_size: rows of one optimizer step over all ranks.
        min_per_device: the fewest rows that a device ever takes at once in training.
        max_per_device: the most rows that a device takes at once; more are accumulated. auto: what fits and pays, found
            before training as by mode=tune, and kept with the run. null: no limit.
        tail: what becomes of the incomplete global batch at the end of an epoch: drop, pad, spread (a smaller last
            step) or carry (it opens the next epoch).
        pad_weight: 0 or 1, the weight of padded rows in loss and metrics.
        too_many_devices: idle, error or grow, for devices beyond global_size // min_per_device, or beyond
            the number of shards.
        lr_rule: none, linear or sqrt, how optimizer.lr follows a global batch that grew.
        exact: whether the weights are the same bits on any number of devices; the global batch is then computed shard
            by shard and added up in one fixed order.
        shard_rows: fewest rows of a shard, a piece of the global batch that does not depend on the number of devices;
            where batch.exact=true or batchnorm=shard. null: 32, or what global_size and min_per_device allow.
    """

    global_size: int = 128
    min_per_device: int = 16
    max_per_device: Any = None
    tail: str = "drop"
    pad_weight: int = 0
    too_many_devices: str = "idle"
    lr_rule: str = "none"
    exact: bool = False
    shard_rows: int | None = None

    def __post_init__(self) -> None:
        """Check every setting by itself."""
        _at_least("batch.global_size", self.global_size, 1)
        _at_least("batch.min_per_device", self.min_per_device, 1)
        if self.max_per_device not in (None, AUTO) and type(self.max_per_device) is not int:
            raise SettingsError(f"batch.max_per_device={self.max_per_device} is no number of rows; or set auto or null")
        _at_least("batch.max_per_device", self.most_at_once, 1)
        _at_least("batch.shard_rows", self.shard_rows, 1)
        one_of("batch.tail", self.tail, TAILS)
        one_of("batch.too_many_devices", self.too_many_devices, TOO_MANY_DEVICES)
        one_of("batch.lr_rule", self.lr_rule, LR_RULES)
        if self.pad_weight not in (0, 1):
            raise SettingsError(f"batch.pad_weight={self.pad_weight} is neither 0 nor 1")
        if self.pad_weight and self.tail != "pad":
            raise SettingsError(
                f"batch.pad_weight=1 has no rows to weigh with batch.tail={self.tail}; set batch.tail=pad"
            )
        if self.lr_rule != "none" and self.too_many_devices != "grow":
            raise SettingsError(
                f"batch.lr_rule={self.lr_rule} follows a global batch that grows; set batch.too_many_devices=grow"
            )

    @property
    def most_at_once(self) -> int | None:
        """The most rows that a device takes at once, as far as that is known; None: no limit, or found later."""
        return None if self.max_per_device == AUTO else self.max_per_device


@dataclass
class DataConfig:
    """The rows.

    Attributes:
        train: ``_target_`` node of the dataset to train on.
        order: ``_target_`` node of the order of rows in an epoch, such as samplers.Weighted; its parameters n, seed
            and dataset are filled in. Empty: shuffled.
        test: ``_target_`` node of the dataset to evaluate on; null: no evaluation.
        root: folder of datasets on disk, relative to where the command was given.
        workers: loader processes per rank; 0: rows are read in the rank itself.
        seeded_rows: whether the random streams are seeded for each row of data.train, so that augmentation depends on
            neither devices nor workers; null: with batch.exact=true.
        evaluate_batch: rows that a device takes at once in evaluation.
    """

    train: Node = field(default_factory=dict)
    order: Node = field(default_factory=dict)
    test: Node | None = field(default_factory=dict)
    root: str = "data"
    workers: int = 0
    seeded_rows: bool | None = None
    evaluate_batch: int = 256

    def __post_init__(self) -> None:
        """Check every setting by itself."""
        _at_least("data.workers", self.workers, 0)
        _at_least("data.evaluate_batch", self.evaluate_batch, 1)


@dataclass
class TrainerConfig:
    """The loop.

    Attributes:
        epochs: whole passes over the training rows.
        max_steps: stop after so many steps, if that comes first.
        precision: fp32, bf16 or fp16 (with loss scaling).
        compile: false, true, or the name of a torch.compile backend.
        channels_last: whether images and convolutions lie in channels-last memory order; null: where it pays, on CPUs
            and with 16-bit formats.
        clip_norm: largest norm of the gradient; null: no clipping.
        on_nonfinite: stop or skip, what happens at a step whose losses or gradient are infinite or not a number.
        max_skipped: steps that skip leaves out in a row before the run stops.
        evaluate_every: epochs between evaluations; 0: at the end only.
        log_every: steps between two lines of metrics.jsonl and TensorBoard; train/loss is the mean since the last, and
            on the console the mean since the last evaluation.
        stop_when: stop once an evaluation fulfils it, e.g. "accuracy >= 0.99 and loss <= 0.1".
        patience: stop after so many evaluations in a row that are no better than the best before them, by the metric of
            checkpoint.keep_best, else by the lowest loss. null: never.
        observe: whether each line of metrics tells where the time since the last went, and of memory and devices.
    """

    epochs: int = 15
    max_steps: int | None = None
    precision: str = "fp32"
    compile: Any = False
    channels_last: bool | None = None
    clip_norm: float | None = None
    on_nonfinite: str = "stop"
    max_skipped: int = 10
    evaluate_every: int = 1
    log_every: int = 10
    stop_when: str | None = None
    patience: int | None = None
    observe: bool = True

    def __post_init__(self) -> None:
        """Check every setting by itself."""
        _at_least("trainer.epochs", self.epochs, 1)
        _at_least("trainer.max_steps", self.max_steps, 1)
        _at_least("trainer.evaluate_every", self.evaluate_every, 0)
        _at_least("trainer.log_every", self.log_every, 1)
        one_of("trainer.precision", self.precision, PRECISIONS)
        one_of("trainer.on_nonfinite", self.on_nonfinite, ON_NONFINITE)
        _at_least("trainer.max_skipped", self.max_skipped, 1)
        _at_least("trainer.patience", self.patience, 1)
        if self.patience is not None and self.evaluate_every == 0:
            raise SettingsError(
                f"trainer.patience={self.patience} waits for evaluations, and trainer.evaluate_every=0 has one at the "
                "end only; set trainer.evaluate_every=1"
            )
        if not isinstance(self.compile, bool | str):
            raise SettingsError(f"trainer.compile={self.compile} is neither true, false nor the name of a backend")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise SettingsError(f"trainer.clip_norm={self.clip_norm} is not above 0; null turns clipping off")


@dataclass
class CheckpointConfig:
    """What is kept.

    Attributes:
        every_steps: the most steps that a failure costs: a checkpoint after so many steps, and, with background, one
            more halfway, which makes way for the next; auto: so often that saving and what a failure loses cost the
            least time together (Young's interval); null: one at the end, and those of every_seconds.
        every_seconds: seconds between checkpoints, instead of auto or beside a number of steps; null: as every_steps
            says.
        expected_failure_s: seconds after which something fails, on average, for every_steps=auto.
        keep: how many of them stay; older ones are removed when a new one is whole.
        keep_best: the metric by whose best evaluation one more stays, which RUN_DIR/best names: accuracy where the
            highest is best, -loss where the lowest is. null: none.
        background: whether they are written while training goes on, one at a time; false: training waits.
        on_error: stop or warn, where one cannot be written, as on a full disk. At the end of a run it is an error.
        export: safetensors, for weights that others can read, in model.safetensors of the run folder: written at the
            end, also of a run that is over and asked for them later. null: none.
        resume: auto (continue in the run folder, after a restart or where hydra.run.dir names one that was used),
            never, or a run folder, RUN_DIR/best, its checkpoints/ or one of those, to continue from in a run folder
            of its own.
        load: weights to start from: a run folder (its newest checkpoint), RUN_DIR/best (that of keep_best), a folder
            of checkpoints/, or a file that torch.save or safetensors wrote.
    """

    every_steps: Any = "auto"
    every_seconds: float | None = None
    expected_failure_s: float = 14_400.0
    keep: int = 2
    keep_best: str | None = None
    background: bool = True
    on_error: str = "stop"
    export: str | None = None
    resume: str = "auto"
    load: str | None = None

    def __post_init__(self) -> None:
        """Check every setting by itself."""
        if self.every_steps not in (None, "auto") and type(self.every_steps) is not int:
            raise SettingsError(f"checkpoint.every_steps={self.every_steps} is no number of steps; or set auto or null")
        _at_least("checkpoint.every_steps", self.keep_every, 1)
        _at_least("checkpoint.every_seconds", self.every_seconds, 0.1)
        _at_least("checkpoint.expected_failure_s", self.expected_failure_s, 1)
        _at_least("checkpoint.keep", self.keep, 1)
        one_of("checkpoint.on_error", self.on_error, ON_ERROR)
        one_of("checkpoint.export", self.export or "null", ("null", *EXPORTS))
        if not self.resume:
            raise SettingsError("checkpoint.resume is empty; set auto, never or a path")
        if self.load and self.resume not in RESUME_WORDS:
            raise SettingsError(
                f"checkpoint.load={self.load} and checkpoint.resume={self.resume} both give weights; leave one out"
            )

    @property
    def keep_every(self) -> int | None:
        """Steps between checkpoints; None where they do not depend on a number of steps."""
        return None if self.every_steps == "auto" else self.every_steps

    @property
    def by_cost(self) -> bool:
        """Whether the time between checkpoints follows from what they cost."""
        return self.every_steps == "auto" and self.every_seconds is None


@dataclass
class RunConfig:
    """All settings of one run, resolved.

    Attributes:
        mode: train, evaluate, plan (what would happen), tune (which micro-batch fits and pays), or inspect (what
            hydra.run.dir holds).
        seed: of the initial weights, the order of rows and every random stream.
        batch: the global batch.
        batchnorm: whose statistics BatchNorm layers take: local (of a micro-batch), shard (of batch.shard_rows rows
            each, whatever the devices) or sync (of the whole global batch).
        data: the rows.
        model: ``_target_`` node of a torch.nn.Module.
        task: ``_target_`` node; its arguments ``loss`` and ``model`` are filled with what was built, where it has them.
        loss: ``_target_`` node of a function or module (prediction, target) -> one value per row.
        optimizer: ``_target_`` node; the model's parameters are its first argument.
        scheduler: ``_target_`` node, stepped once per step; the optimizer is its first argument. Empty: none.
        metrics: name -> ``_target_`` node of a function (prediction, target) -> one value per row.
        trainer: the loop.
        checkpoint: what is kept.
        launch: the processes.
        profile: windows of steps of which all that is computed is recorded.
        sweep: many runs from one command.
        tune: which micro-batch fits and pays.
        ddp: arguments passed on to DistributedDataParallel.
        vars: values of the user's own, for interpolation.
    """

    mode: str = "train"
    seed: int = 0
    batch: BatchConfig = field(default_factory=BatchConfig)
    batchnorm: str = "local"
    data: DataConfig = field(default_factory=DataConfig)
    model: Node = field(default_factory=dict)
    task: Node = field(default_factory=dict)
    loss: Node = field(default_factory=dict)
    optimizer: Node = field(default_factory=dict)
    scheduler: Node = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    profile: ProfileConfig = field(default_factory=ProfileConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    tune: TuneConfig = field(default_factory=TuneConfig)
    ddp: Node = field(default_factory=dict)
    vars: Node = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check what several sections must agree on."""
        one_of("mode", self.mode, MODES)
        one_of("batchnorm", self.batchnorm, BATCHNORM)
        self._check_exact()
        for name in ("model", "task") if self.mode == "evaluate" else ("model", "task", "optimizer"):
            if "_target_" not in getattr(self, name):
                raise SettingsError(
                    f"{name} has no _target_: choose one of conf/{name}/, e.g. {name}=NAME, or give {name}._target_"
                )
        for name, node in self.metrics.items():
            if name in ("loss", "rows"):
                raise SettingsError(f"metrics.{name}: the loop reports {name} itself; give the metric another name")
            if not isinstance(node, dict):
                raise SettingsError(f"metrics.{name}={node} is no _target_ node; remove it with ~metrics.{name}")
        split = "test" if self.mode == "evaluate" else "train"
        if "_target_" not in (getattr(self.data, split) or {}):
            raise SettingsError(
                f"data.{split} has no _target_: mode={self.mode} needs rows to {self.mode} on; choose data=NAME"
            )
        if self.mode == "evaluate" and self.checkpoint.resume not in RESUME_WORDS:
            raise SettingsError(
                f"mode=evaluate takes its weights from checkpoint.load, not from "
                f"checkpoint.resume={self.checkpoint.resume}"
            )
        self._check_tune()
        if self.mode == "evaluate" and not self.checkpoint.load:
            raise SettingsError("mode=evaluate needs checkpoint.load=PATH: a run folder or a file of weights")

    def _check_tune(self) -> None:
        if self.mode == "tune" and self.batch.exact:
            raise SettingsError(
                "mode=tune finds batch.max_per_device, which has no effect with batch.exact=true: one shard is taken "
                "at a time, and batch.shard_rows says how many rows that is; set batch.exact=false"
            )
        most, least = self.tune.max_rows, self.batch.min_per_device
        if most is not None and most < least:
            raise SettingsError(
                f"tune.max_rows={most} is smaller than batch.min_per_device={least}: no size is left to try; raise "
                "tune.max_rows or lower batch.min_per_device"
            )

    def _check_exact(self) -> None:
        if self.batch.exact and self.batch.too_many_devices == "grow":
            raise SettingsError(
                "batch.too_many_devices=grow lets the global batch depend on the number of devices, and with "
                "batch.exact=true nothing may; set batch.too_many_devices=idle or error"
            )
        if self.batchnorm == "sync" and self.batch.exact:
            raise SettingsError(
                "batchnorm=sync needs the rows of all devices at once, and batch.exact=true takes one shard at a time; "
                "set batchnorm=shard"
            )

    def to_json(self) -> str:
        """The settings as JSON, the form in which they travel between ranks; the order of keys is kept.

        Raises:
            SettingsError: for a key that is not a text, or a value that JSON does not know.
        """
        values = asdict(self)
        _check_plain(values)
        return json.dumps(values)

    @classmethod
    def from_json(cls, text: str) -> RunConfig:
        """The settings that ``to_json`` wrote."""
        run: RunConfig = _from_plain(cls, json.loads(text))
        return run

    @property
    def shard_rows(self) -> int | None:
        """Rows of a shard; None where shards are not in force."""
        if not self.batch.exact and self.batchnorm != "shard":
            return None
        return self.batch.shard_rows or max(self.batch.min_per_device, min(SHARD_ROWS, self.batch.global_size))

    @property
    def seeds_rows(self) -> bool:
        """Whether each row of ``data.train`` is read with random streams of its own."""
        return self.batch.exact if self.data.seeded_rows is None else self.data.seeded_rows

    @property
    def digest(self) -> str:
        """SHA-256 of the settings."""
        return sha256(self.to_json().encode()).hexdigest()


def _check_plain(value: Any, key: str = "") -> None:
    if isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(name, str):
                raise SettingsError(f"{key}: the key {name!r} is not a text; quote it")
            _check_plain(item, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            _check_plain(item, f"{key}[{place}]")
    elif value is not None and not isinstance(value, bool | int | float | str):
        raise SettingsError(f"{key}={value!r} is of type {type(value).__name__}: use text, numbers, lists and mappings")


def _from_plain(cls: Any, values: dict[str, Any]) -> Any:
    """Build dataclass ``cls`` from nested dictionaries."""
    types = get_type_hints(cls)
    return cls(**{name: _from_plain(types[name], v) if is_dataclass(types[name]) else v for name, v in values.items()})


def known_keys(cls: Any = RunConfig, prefix: str = "") -> list[str]:
    """Every key of the schema in dotted form, sections before their members."""
    keys: list[str] = []
    for name, kind in ((f.name, get_type_hints(cls)[f.name]) for f in fields(cls)):
        keys.append(prefix + name)
        if is_dataclass(kind):
            keys += known_keys(kind, f"{prefix}{name}.")
    return keys
