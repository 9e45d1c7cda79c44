"""``--help``: usage, the choices of each config group, and every setting with its default and meaning."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from inspect import getdoc
from typing import Any, get_type_hints

from launcher.configure.command_line import USAGE
from launcher.configure.compose import config_groups
from launcher.configure.schema import RunConfig

FLAGS = """\
  --help, -h            this text
  --cfg job|hydra|all   print the composed config and stop; --resolve fills interpolations in
  --version             versions of evenshard and torch
  --config-dir DIR      a folder with configs of your own
  --config-name NAME    the primary config (config)"""
WIDTH = 42


def help_text(config_dir: str | None = None) -> str:
    """The whole text; ``config_dir`` is a folder of the user's own configs."""
    groups = [f"  {name:<12}{', '.join(choices)}" for name, choices in config_groups(config_dir).items()]
    return "\n".join(
        [
            "The same training run on any number of devices.",
            f"\n{USAGE}",
            f"\nFlags\n{FLAGS}",
            "\nChoices (group=choice)",
            *groups,
            "\nThe settings of the chosen model, optimizer, ... (such as optimizer.lr) are shown by --cfg job.",
            "\nSettings (key=value; keys that a config does not have yet: +key=value)",
            *settings_text(RunConfig),
        ]
    )


def settings_text(cls: Any, prefix: str = "") -> list[str]:
    """A line for each setting of ``cls``: name, default and meaning."""
    lines: list[str] = []
    types, meanings = get_type_hints(cls), _meanings(cls)
    values = cls.__new__(cls)
    for member in fields(cls):
        kind = types[member.name]
        if is_dataclass(kind):
            lines += settings_text(kind, f"{prefix}{member.name}.")
        else:
            default = getattr(values, member.name, "")
            shown = f"{prefix}{member.name}" + ("" if default == "" else f"={_yaml(default)}")
            lines.append(f"  {shown:<{WIDTH}}{meanings.get(member.name, '')}")
    return lines


def _meanings(cls: Any) -> dict[str, str]:
    """The entries of the section ``Attributes:`` of a docstring, each in one line."""
    section = (getdoc(cls) or "").partition("Attributes:")[2]
    entries = re.findall(r"^    (\w+): (.*(?:\n {8,}.*)*)", section, flags=re.MULTILINE)
    return {name: re.sub(r"\s+", " ", text).replace("``", "") for name, text in entries}


def _yaml(value: object) -> str:
    words = {"None": "null", "True": "true", "False": "false"}
    return words.get(str(value), str(value))
