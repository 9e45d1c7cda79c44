"""``python -m launcher``, ``torchrun -m launcher`` and the command ``evenshard``."""

import atexit
import os
import sys
from contextlib import suppress
from typing import NoReturn

from launcher.processes.early import end_on_signals
from launcher.processes.environment import take_launcher


def main() -> NoReturn:
    """Run the command and end the process with its exit status."""
    end_on_signals()
    launcher = take_launcher(os.environ)  # it may be gone before torch is loaded
    # Read when torch is loaded: OpenMP threads that spin for long starve each other on a busy machine, and a
    # thousand turns cost a quiet one nothing.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    from launcher.cli import main as command  # noqa: PLC0415 - loads torch
    from launcher.processes.signals import kill_workers  # noqa: PLC0415

    status = command(launcher=launcher)
    kill_workers()
    # Threads of the process group may outlive it, and abort a run that is over when the interpreter takes them down.
    atexit._run_exitfuncs()  # noqa: SLF001 - what the interpreter would do
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, AttributeError):  # nobody reads any more, or it was closed before Python began
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
