"""What is wrong with a command line, in the words of the user's config."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hydra import compose
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException
from omegaconf import OmegaConf

from launcher.configure.command_line import CommandLine, name_of
from launcher.configure.schema import known_keys
from launcher.processes.errors import SettingsError, closest, first_line

PARTS = ("model", "task", "loss", "optimizer", "scheduler", "metrics", "data.train", "data.order", "data.test")
FREE = (*PARTS, "ddp", "vars", "launch.rdzv_conf", "launch.slurm.extra")
HEADER = "; the first line of a config in experiment/ must be `# @package _global_`"


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
                f"{text!r} cannot be read: {first_line(error)}; quote values with special characters: 'key=\"value\"'"
            ) from error


def explain(line: CommandLine, error: Exception, folders: str) -> str:
    """Put Hydra's error into words; ``folders`` are those that hold configs."""
    wrapped = isinstance(error, HydraException) and error.__cause__ is not None
    cause: BaseException = error.__cause__ if wrapped and error.__cause__ else error
    if isinstance(error, MissingConfigException) and error.missing_cfg_file == line.config_name:
        return f"--config-name={line.config_name}: there is no config {line.config_name}.yaml in {folders}"
    found = _of_override(line, str(error), cause) or _of_file(str(error), cause)
    return found or " ".join(str(error).split())


def _of_override(line: CommandLine, text: str, cause: BaseException) -> str | None:
    """What is wrong with an override, where that is the matter."""
    inner = str(getattr(cause, "full_key", ""))
    if match := re.match(r"Could not override '(.*)'", text):
        return _explain_key(line, inner if _within(inner, match[1]) else match[1])
    if match := re.match(r"Error merging override (.*)", text):
        return f"{match[1]}: {first_line(cause)}"
    if text.startswith("Ambiguous value"):
        ways = "give one value, a list as key=[a,b], or quote it: key='a,b'; to sweep over the values add -m"
        return f"{text.splitlines()[0]}; {ways}"
    if match := re.match(r"Sweep parameters '(.*?)=(.*)' requires --multirun", text):
        return f"{match[1]}={match[2]} has many values: to sweep over them add -m"
    return None


def _of_file(text: str, cause: BaseException) -> str | None:
    """What is wrong with a config file, or with the choice of one, where that is the matter."""
    key = str(getattr(cause, "full_key", ""))
    if key and re.search(r"Key '.*' not in ", str(cause)):
        return no_such_key(key, known_keys()) + (HEADER if key == "experiment" else "")
    if match := re.match(r"In '.*': Could not find '((?:hydra/(?:sweeper/)?)?.*?)/(.*)'", text):
        return _explain_choice(match[1], match[2], text)
    return None


def no_such_key(key: str, known: list[str]) -> str:
    """Say that ``key`` is not a setting, and which is the closest."""
    parent = key.rpartition(".")[0]
    if _within(key, "hydra"):
        return f"there is no setting {key}; --cfg hydra shows those that there are"
    siblings = [k.rpartition(".")[2] for k in known if parent and k.rpartition(".")[0] == parent]
    rest = f"; {parent} has {', '.join(siblings)}" if siblings else "; values of your own go under vars"
    same_name = [k for k in known if k.rpartition(".")[2] == key]
    hint = f"; did you mean {same_name[0]!r}?" if same_name else closest(key, known)
    return f"there is no setting {key}{hint or rest}"


def _explain_key(line: CommandLine, key: str) -> str:
    """Why ``key`` cannot be overridden: it is misspelled, or the chosen config does not have it yet."""
    present = [k for k in (*known_keys(), *_keys_without(line, key)) if not _within(key, k)]
    addable = any(_within(key, free) for free in FREE)
    if not addable:
        return no_such_key(key, present)
    parent, _, name = key.rpartition(".")
    siblings = [k.rpartition(".")[2] for k in present if k.rpartition(".")[0] == parent]
    hint = closest(name, siblings).replace("'", f"'{parent}.", 1)
    return f"{key} is not in the chosen config{hint}{' Or' if hint else ';'} to add it: +{key}=..."


def _within(key: str, section: str) -> bool:
    return key.startswith(f"{section}.")


def _keys_without(line: CommandLine, key: str) -> list[str]:
    """Every key, in dotted form, of the config that is composed when the override of ``key`` is left out."""
    kept = [text for text in line.overrides if not name_of(text).startswith(key)]
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
