"""Compose the settings of a run, once, on rank 0; name the closest key for a typo."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from hydra import compose, initialize_config_dir
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from launcher.configure.command_line import CommandLine
from launcher.configure.schema import RunConfig, known_keys
from launcher.processes.errors import SettingsError, closest

PACKAGE = Path(__file__).resolve().parent.parent
PATHS = ("data.root", "checkpoint.load")
PARTS = ("model", "task", "loss", "optimizer", "scheduler", "metrics", "data.train", "data.order", "data.test")
FREE = (*PARTS, "ddp", "vars")


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
    config = compose_config(line)
    with _in_plain_words():
        run_dir, template = Path(config.hydra.run.dir).absolute(), _raw(config, "hydra.run.dir")
        chdir = bool(config.hydra.job.chdir)
        with open_dict(config):
            config.hydra.runtime.output_dir = str(folder or run_dir)
        HydraConfig.instance().set_config(config)
        with open_dict(config):
            del config["hydra"]
        run = OmegaConf.to_object(config)
    if not isinstance(run, RunConfig):
        raise SettingsError(
            f"--config-name={line.config_name} lacks the settings of config.yaml: add `- config` to its defaults"
        )
    return Composed(RunConfig.from_json(run.to_json()), run_dir, "${now:" in template, chdir)


def compose_config(line: CommandLine) -> DictConfig:
    """Compose the configs, with every key known and every path absolute; interpolations stay."""
    ConfigStore.instance().store("schema", RunConfig)
    with initialize_config_dir(str(config_dir()), job_name="evenshard", version_base="1.3"):
        if line.config_dir:
            _add_config_dir(line.config_dir)
        try:
            config = compose(line.config_name, list(line.overrides), return_hydra_config=True)
        except (HydraException, OmegaConfBaseException, ValueError, AssertionError, AttributeError) as error:
            raise SettingsError(_explain(line, error)) from error
    unknown = next(_unknown_keys(config), None)
    if unknown:
        raise SettingsError(_no_such_key(unknown, known_keys()))
    _make_paths_absolute(config)
    return config


def show_config(line: CommandLine) -> str:
    """The composed config as YAML, for ``--cfg``."""
    config = compose_config(line)
    with _in_plain_words():
        part = {"job": _without_hydra(config), "hydra": config.hydra, "all": config}[line.show or "job"]
        return OmegaConf.to_yaml(part, resolve=line.resolve)


def to_yaml(run: RunConfig) -> str:
    """The settings as YAML, the form in which the run folder keeps them."""
    return OmegaConf.to_yaml(OmegaConf.create(asdict(run)))


def config_groups() -> dict[str, list[str]]:
    """The shipped choices: group -> names."""
    groups = sorted(p for p in config_dir().iterdir() if p.is_dir() and not p.name.startswith("_"))
    return {g.name: sorted(f.stem for f in g.glob("*.yaml")) for g in groups}


def _add_config_dir(folder: str) -> None:
    path = Path(folder).absolute()
    if not path.is_dir():
        raise SettingsError(f"--config-dir={folder}: there is no folder {path}")
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


def _make_paths_absolute(config: DictConfig) -> None:
    """Take relative paths as seen from where the command was given, wherever the run works later."""
    for key in PATHS:
        value = OmegaConf.select(config, key)
        if value:
            OmegaConf.update(config, key, str(Path(value).expanduser().absolute()))


@contextmanager
def _in_plain_words() -> Iterator[None]:
    try:
        yield
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None)
        raise SettingsError(f"{key or 'config'}: {_first_line(error)}") from error


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


def _no_such_key(key: str, known: list[str]) -> str:
    parent = key.rpartition(".")[0]
    siblings = [k.rpartition(".")[2] for k in known if parent and k.rpartition(".")[0] == parent]
    rest = f"; {parent} has {', '.join(siblings)}" if siblings else "; values of your own go under vars"
    return f"there is no setting {key}{closest(key, known) or rest}"


def _explain(line: CommandLine, error: Exception) -> str:
    """What is wrong with the command line, from Hydra's error and the override that caused it."""
    if isinstance(error, HydraException) and error.__cause__ is not None:
        cause: BaseException = error.__cause__
    else:
        cause = error
    match = re.match(r"Could not override '(.*)'", str(error))
    if match:
        inner = str(getattr(cause, "full_key", ""))
        return _explain_key(line, inner if _within(inner, match[1]) else match[1])
    if isinstance(error, MissingConfigException) and error.missing_cfg_file == line.config_name:
        places = f"{config_dir()}{f' and {line.config_dir}' if line.config_dir else ''}"
        return f"--config-name={line.config_name}: there is no config {line.config_name}.yaml in {places}"
    merging = re.match(r"Error merging override (.*)", str(error))
    if merging:
        return f"{merging[1]}: {_first_line(cause)}"
    missing = re.match(r"In '.*': Could not find '(.*?)/(.*)'", str(error))
    if missing:
        return _explain_choice(missing[1], missing[2], str(error))
    return str(error).strip()


def _explain_key(line: CommandLine, key: str) -> str:
    """Why ``key`` cannot be overridden: it is misspelled, or the chosen config does not have it yet."""
    present = [k for k in (*known_keys(), *_keys_without(line, key)) if not _within(key, k)]
    addable = any(_within(key, free) for free in FREE)
    hint = closest(key, present)
    if not addable:
        return _no_such_key(key, present)
    return f"{key} is not in the chosen config{hint}{' Or' if hint else ';'} to add it: +{key}=..."


def _within(key: str, section: str) -> bool:
    return key.startswith(f"{section}.")


def _keys_without(line: CommandLine, key: str) -> list[str]:
    """Every key, in dotted form, of the config that is composed when the override of ``key`` is left out."""
    kept = [text for text in line.overrides if not text.lstrip("+~").startswith(key)]
    try:
        config = compose(line.config_name, kept)
    except Exception:  # noqa: BLE001 - another override is wrong too; this hint is a courtesy
        return []
    return list(_dotted(OmegaConf.to_container(config, resolve=False)))


def _dotted(node: Any, prefix: str = "") -> Iterator[str]:
    for key, value in node.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{key}.")


def _explain_choice(group: str, choice: str, text: str) -> str:
    options = [o.strip() for o in re.findall(r"^\t(.+)$", text, flags=re.MULTILINE) if "provider=" not in o]
    return f"{group}={choice}: there is no such choice{closest(choice, options)}; {group} can be {', '.join(options)}"


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0]


def check_syntax(overrides: tuple[str, ...]) -> None:
    """Refuse an override that cannot be read.

    Raises:
        SettingsError: with the override as it was typed.
    """
    for text in overrides:
        if "=" not in text and not text.startswith("~"):
            raise SettingsError(f"{text!r} is not a setting: write key=value")
        try:
            OverridesParser.create().parse_override(text)
        except HydraException as error:
            raise SettingsError(
                f"{text!r} cannot be read: {_first_line(error)}; quote values with special characters: 'key=\"value\"'"
            ) from error
