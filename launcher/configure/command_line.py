"""The words of the command line: Hydra's flags and overrides, and hints for what is neither."""

from __future__ import annotations

import argparse
import re
import shlex
from dataclasses import dataclass
from typing import NoReturn

from launcher.processes.errors import SettingsError, closest

USAGE = """\
torchrun --nproc-per-node=N -m launcher [key=value ...]
python -m launcher [key=value ...]           (also the command: evenshard)
... -m key=value,value ...                   a sweep: a job for each combination of values
python -m launcher inspect RUN_DIR           what a run folder holds, and where its run would continue
python -m launcher report RUN_DIR            writes report.html anew, also of a run that was killed or goes on"""
INSPECT, REPORT = "inspect", "report"


HYDRA_SETTINGS = (
    "hydra.run.dir",
    "hydra.job.chdir",
    "hydra.job.name",
    "hydra.searchpath",
    "hydra.sweep.",
    "hydra.sweeper",
    "hydra/sweeper",
)


@dataclass(frozen=True)
class CommandLine:
    """What the user typed, sorted.

    Attributes:
        overrides: Hydra overrides such as ``optimizer.lr=0.1``.
        config_name: the primary config.
        config_dir: a folder of the user's own configs, searched after the shipped ones.
        show: ``job``, ``hydra`` or ``all`` to print the composed config and stop.
        resolve: print it with interpolations resolved.
        help: print the help and stop.
        version: print the versions and stop.
        inspect: the run folder to tell about.
        report: the run folder to write a report of.
        multirun: whether this is a sweep.
        job: the file with the settings of a job, for a process that a sweep started.
    """

    overrides: tuple[str, ...]
    config_name: str = "config"
    config_dir: str | None = None
    show: str | None = None
    resolve: bool = False
    help: bool = False
    version: bool = False
    inspect: str | None = None
    report: str | None = None
    multirun: bool = False
    job: str | None = None

    @property
    def notes(self) -> list[str]:
        """What the user should know about overrides that change nothing here."""
        names = [name_of(text) for text in self.overrides]
        idle = [n for n in names if n.startswith(("hydra.", "hydra/")) and not n.startswith(HYDRA_SETTINGS)]
        lone = [name for name in names if name.startswith("sweep.") and not self.multirun]
        alone = [name for name in names if name == "hydra.run.dir" and self.multirun]
        return [
            *(f"{name} changes nothing: the launcher keeps its own logs and folders" for name in idle),
            *(f"{name} changes nothing: it is for sweeps, with -m" for name in lone),
            *(f"{name} changes nothing: a sweep has hydra.sweep.dir" for name in alone),
        ]


def name_of(override: str) -> str:
    """``optimizer.lr`` of ``+optimizer.lr=0.1``."""
    return override.lstrip("+~").partition("=")[0]


def command_of(line: CommandLine, ranks: int = 1) -> str:
    """The command whose words ``parse`` sorted, quoted for a shell; flags that print something and stop are left out.

    Args:
        line: what the user typed.
        ranks: that torchrun is to start, where ``line`` says nothing about ``launch.processes``.

    >>> command_of(CommandLine(("optimizer.lr=0.1", "vars={note: a b}"), config_dir="mine"), ranks=2)
    "torchrun --nproc-per-node=2 -m launcher --config-dir=mine optimizer.lr=0.1 'vars={note: a b}'"
    """
    starts_its_own = any(text.lstrip("+").startswith(("launch.processes=", "launch.nodes=")) for text in line.overrides)
    start = ["python"] if ranks == 1 or starts_its_own else ["torchrun", f"--nproc-per-node={ranks}"]
    name = [] if line.config_name == "config" else [f"--config-name={line.config_name}"]
    folder = [] if line.config_dir is None else [f"--config-dir={line.config_dir}"]
    many = ["-m"] if line.multirun else []
    return shlex.join([*start, "-m", "launcher", *many, *folder, *name, *map(without_password, line.overrides)])


def without_password(text: str) -> str:
    """``text`` as it may be kept and shown: passwords in URLs are left out.

    >>> without_password("hydra.sweeper.storage=postgresql://me:secret@host/db")
    'hydra.sweeper.storage=postgresql://me:***@host/db'
    >>> without_password("vars.db=mysql://me:p@ss@host/db?password=secret&ssl=1")
    'vars.db=mysql://me:***@host/db?password=***&ssl=1'
    """
    text = re.sub(r"(\w://[^\s/:@]*:)[^\s/]+@", r"\1***@", text)
    return re.sub(r"([?&](?:password|passwd|pwd)=)[^\s&'\"]+", r"\1***", text, flags=re.IGNORECASE)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message}; see --help")


def _parser() -> _Parser:
    parser = _Parser(prog="launcher", add_help=False, allow_abbrev=False)
    parser.add_argument("--help", "-h", action="store_true")
    parser.add_argument("--version", action="store_true")
    parser.add_argument("--cfg", "-c", choices=["job", "hydra", "all"])
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("--multirun", "-m", action="store_true")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--config-name", "-cn", default="config")
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("overrides", nargs="*")
    return parser


def parse(arguments: list[str]) -> CommandLine:
    """Sort the words of the command line.

    Raises:
        SettingsError: for a flag that does not exist, with the closest that does.
    """
    parser = _parser()
    found, unknown = parser.parse_known_intermixed_args(arguments)
    for word in unknown:
        _refuse_flag(word, parser)
    if found.overrides[:1] == [INSPECT]:
        return CommandLine((), inspect=_run_folder_of(found.overrides))
    if found.overrides[:1] == [REPORT]:
        return CommandLine((), report=_run_folder_of(found.overrides))
    return CommandLine(
        overrides=tuple(found.overrides),
        config_name=found.config_name,
        config_dir=found.config_dir,
        show=found.cfg,
        resolve=found.resolve,
        help=found.help,
        version=found.version,
        multirun=found.multirun,
        job=found.job,
    )


def _run_folder_of(words: list[str]) -> str:
    command, *folders = words
    if len(folders) != 1:
        raise SettingsError(f"{command} takes one run folder, and {len(folders)} are given: {command} RUN_DIR")
    return folders[0]


def _refuse_flag(word: str, parser: argparse.ArgumentParser) -> NoReturn:
    name = word.split("=", maxsplit=1)[0]
    if name.replace("_", "-") == "--local-rank":
        raise SettingsError(
            f"{word}: ranks are read from the environment; start with torchrun instead of torch.distributed.launch"
        )
    flags = [flag for action in parser._actions for flag in action.option_strings]  # noqa: SLF001 - no public list exists
    hint = closest(name, flags, 0.75) or "; settings are given without dashes, as in optimizer.lr=0.1"
    raise SettingsError(f"unknown flag {name}{hint}")
