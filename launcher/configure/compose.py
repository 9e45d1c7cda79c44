"""Compose the settings of a run, once, on rank 0; name the closest key for a typo."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from hydra import compose, initialize_config_dir
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from launcher.configure.command_line import CommandLine
from launcher.configure.explain import explain, no_such_key
from launcher.configure.schema import RESUME_WORDS, RunConfig, known_keys
from launcher.processes.errors import SettingsError, first_line

PACKAGE = Path(__file__).resolve().parent.parent
PATHS = ("data.root", "checkpoint.load", "checkpoint.resume", "launch.log_dir")
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


def compose_run(line: CommandLine, folder: Path | None = None) -> Composed:
    """Compose, resolve and check the settings.

    Args:
        line: what the user typed.
        folder: the run folder, where it is known to be another than ``hydra.run.dir``; what
            ``${hydra:runtime.output_dir}`` stands for.

    Raises:
        SettingsError: for whatever is wrong with them, in the words of the config.
    """
    config = compose_config(line, folder)
    template = _raw(config, "hydra.run.dir")
    with _in_plain_words():
        run_dir, chdir = Path(config.hydra.run.dir).absolute(), bool(config.hydra.job.chdir)
        run = OmegaConf.to_object(_without_hydra(config))
    if not isinstance(run, RunConfig):
        raise SettingsError(
            f"--config-name={line.config_name} lacks the settings of config.yaml: add `- config` to its defaults"
        )
    return Composed(RunConfig.from_json(run.to_json()), run_dir, "${now:" in template, chdir)


def compose_config(line: CommandLine, folder: Path | None = None) -> DictConfig:
    """Compose the configs, with every key known and every path absolute; interpolations stay."""
    ConfigStore.instance().store("schema", RunConfig)
    with initialize_config_dir(str(config_dir()), job_name="evenshard", version_base="1.3"):
        if line.config_dir:
            _add_config_dir(line.config_dir)
        try:
            config = compose(line.config_name, list(line.overrides), return_hydra_config=True)
        except COMPOSING as error:
            raise SettingsError(explain(line, error, _folders(line))) from error
    unknown = next(_unknown_keys(config), None)
    if unknown:
        raise SettingsError(no_such_key(unknown, known_keys()))
    with _in_plain_words():
        _fill_in(config, folder)
    return config


def show_config(line: CommandLine) -> str:
    """The composed config as YAML, for ``--cfg``."""
    config = compose_config(line)
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


def _fill_in(config: DictConfig, folder: Path | None) -> None:
    """Let ``${hydra:...}`` stand for what Hydra knows; take relative paths as seen from where the command is given."""
    with open_dict(config):
        config.hydra.runtime.output_dir = str(folder or Path(config.hydra.run.dir).absolute())
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
