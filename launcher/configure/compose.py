"""Compose the settings of a run, once, on rank 0; name the closest key for a typo."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, get_type_hints

from hydra import compose, initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from launcher.configure.command_line import CommandLine
from launcher.configure.explain import explain, no_such_key
from launcher.configure.schema import RESUME_WORDS, RunConfig, known_keys
from launcher.processes.errors import SettingsError, first_line

PACKAGE = Path(__file__).resolve().parent.parent
PATHS = ("data.root", "checkpoint.load", "checkpoint.resume", "launch.log_dir")
FindFolder: TypeAlias = Callable[[DictConfig], Path]
COMPOSING = (HydraException, OmegaConfBaseException, YAMLError, ValueError, AssertionError, AttributeError)


@dataclass(frozen=True)
class Composed:
    """What the command line and the configs amount to.

    Attributes:
        run: the settings, typed, resolved and checked.
        run_dir: the run folder as ``hydra.run.dir`` gives it, absolute.
        run_dir_is_new: whether ``hydra.run.dir`` holds the time, so that every run has a folder of its own.
        chdir: whether ``hydra.job.chdir`` asks to work inside the run folder.
    """

    run: RunConfig
    run_dir: Path
    run_dir_is_new: bool
    chdir: bool


def config_dir() -> Path:
    """The folder of the shipped configs: inside the installed package, or beside it in a clone."""
    inside = PACKAGE / "conf"
    return inside if inside.is_dir() else PACKAGE.parent / "conf"


@contextmanager
def configs_of(line: CommandLine) -> Iterator[None]:
    """Hydra, for the length of the block, finds the shipped configs and those of the user."""
    ConfigStore.instance().store("schema", RunConfig)
    with initialize_config_dir(str(config_dir()), job_name="evenshard", version_base="1.3"):
        if line.config_dir:
            _add_config_dir(line.config_dir)
        yield


@contextmanager
def _in_hydras_words(line: CommandLine) -> Iterator[None]:
    try:
        yield
    except COMPOSING as error:
        raise SettingsError(explain(line, error, _folders(line))) from error


def _run_dir(config: DictConfig) -> Path:
    return Path(config.hydra.run.dir).absolute()


def compose_run(line: CommandLine, folder: Path | None = None) -> Composed:
    """Compose, resolve and check the settings.

    Args:
        line: what the user typed.
        folder: the run folder, where it is known to be another than ``hydra.run.dir``; what
            ``${hydra:runtime.output_dir}`` stands for.

    Raises:
        SettingsError: for whatever is wrong with them, in the words of the config.
    """
    return _composed(line, lambda config: folder or _run_dir(config))


def compose_job(line: CommandLine, number: int, sweep_dir: Path) -> Composed:
    """Compose, resolve and check the settings of a job of a sweep, whose run folder lies in ``sweep_dir``.

    Args:
        line: what the user would have typed for this job alone.
        number: of the job; what ``${hydra:job.num}`` stands for.
        sweep_dir: the folder of the sweep.

    Raises:
        SettingsError: for whatever is wrong with them, in the words of the config.
    """

    def find_folder(config: DictConfig) -> Path:
        config.hydra.job.num, config.hydra.job.id = number, str(number)
        config.hydra.sweep.dir = str(sweep_dir)
        return Path(os.path.normpath(sweep_dir / str(config.hydra.sweep.subdir)))

    return _composed(line, find_folder)


def _composed(line: CommandLine, find_folder: FindFolder) -> Composed:
    config = compose_config(line, find_folder)
    template = _raw(config, "hydra.run.dir")
    with _in_plain_words():
        run_dir, chdir = Path(config.hydra.runtime.output_dir), bool(config.hydra.job.chdir)
        run = OmegaConf.to_object(_without_hydra(config))
    if not isinstance(run, RunConfig):
        raise SettingsError(
            f"--config-name={line.config_name} lacks the settings of config.yaml: add `- config` to its defaults"
        )
    return Composed(RunConfig.from_json(run.to_json()), run_dir, "${now:" in template, chdir)


def compose_config(line: CommandLine, find_folder: FindFolder = _run_dir) -> DictConfig:
    """Compose the configs, with every key known and every path absolute; interpolations stay."""
    with configs_of(line), _in_hydras_words(line):
        config = compose(line.config_name, list(line.overrides), return_hydra_config=True)
    unknown = next(_unknown_keys(config), None)
    if unknown:
        raise SettingsError(no_such_key(unknown, known_keys()))
    with _in_plain_words():
        _fill_in(config, find_folder)
    return config


def sweeper_config(line: CommandLine) -> tuple[DictConfig, ConfigLoader]:
    """The config that Hydra makes its sweeper of, and what loads the configs that its jobs are made of.

    Raises:
        SettingsError: for whatever is wrong with it.
    """
    with configs_of(line), _in_hydras_words(line):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None  # noqa: S101 - it has just started
        config = hydra.compose_config(line.config_name, list(line.overrides), RunMode.MULTIRUN, from_shell=False)
        return config, hydra.config_loader


def without_swept(line: CommandLine) -> CommandLine:
    """The command line without the overrides that have several values."""
    parsed = OverridesParser.create().parse_overrides(list(line.overrides))
    kept = [text for text, override in zip(line.overrides, parsed, strict=True) if not override.is_sweep_override()]
    return replace(line, overrides=tuple(kept))


def show_config(line: CommandLine) -> str:
    """The composed config as YAML, for ``--cfg``; of a sweep what its jobs share."""
    config = compose_config(without_swept(line) if line.multirun else line)
    with _in_plain_words():
        part = {"job": _without_hydra(config), "hydra": config.hydra, "all": config}[line.show or "job"]
        return OmegaConf.to_yaml(part, resolve=line.resolve)


def config_groups(own: str | None = None) -> dict[str, list[str]]:
    """The choices, shipped and in a folder of one's own: group -> names."""
    groups: dict[str, list[str]] = {}
    for folder in (config_dir(), *([Path(own)] if own else [])):
        for file in sorted(folder.glob("*/*.yaml")):
            groups.setdefault(file.parent.name, []).append(file.stem)
    return groups


def _add_config_dir(folder: str) -> None:
    path = Path(folder).absolute()
    if not path.is_dir():
        raise SettingsError(f"--config-dir={folder}: there is no folder {path}")
    for file in sorted(path.rglob("*.yaml")):
        if (config_dir() / file.relative_to(path)).exists():
            raise SettingsError(
                f"--config-dir={folder}: {file.relative_to(path)} is a shipped config too: rename yours"
            )
    loader = GlobalHydra.instance().config_loader()
    search_path = loader.get_search_path()
    search_path.append("command-line", f"file://{path}", anchor=SearchPathQuery("main", None))
    loader.repository.initialize_sources(search_path)  # type: ignore[attr-defined] # it was read when Hydra started


def _without_hydra(config: DictConfig) -> DictConfig:
    plain = config.copy()
    with open_dict(plain):
        del plain["hydra"]
    return plain


def _raw(config: DictConfig, key: str) -> str:
    """The text behind ``key`` before interpolation."""
    parent, name = key.rsplit(".", 1)
    return str(OmegaConf.to_container(OmegaConf.select(config, parent), resolve=False)[name])  # type: ignore[call-overload,index]


def _fill_in(config: DictConfig, find_folder: FindFolder) -> None:
    """Let ``${hydra:...}`` stand for what Hydra knows; take relative paths as seen from where the command is given."""
    with open_dict(config):
        config.hydra.runtime.output_dir = str(find_folder(config))
    HydraConfig.instance().set_config(config)
    for key in PATHS:
        value = OmegaConf.select(config, key)
        if value and not (key == "checkpoint.resume" and value in RESUME_WORDS):
            OmegaConf.update(config, key, str(Path(value).expanduser().absolute()))


def _folders(line: CommandLine) -> str:
    return " and ".join(str(folder) for folder in (config_dir(), line.config_dir) if folder)


@contextmanager
def _in_plain_words() -> Iterator[None]:
    try:
        yield
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None)
        raise SettingsError(f"{key or 'config'}: {first_line(error)}") from error


def _unknown_keys(config: DictConfig, cls: Any = RunConfig, prefix: str = "") -> Iterator[str]:
    """Keys of ``config`` that the schema does not have; an override behind ``+`` gets past Hydra's own check."""
    types = get_type_hints(cls)
    for key in config:
        name = str(key)
        if not prefix and name == "hydra":
            continue
        if name not in types:
            yield prefix + name
        elif is_dataclass(types[name]) and isinstance(config._get_node(name), DictConfig):  # noqa: SLF001 - no resolving
            yield from _unknown_keys(config[name], types[name], f"{prefix}{name}.")
