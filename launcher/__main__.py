"""``python -m launcher``, ``torchrun -m launcher`` and the command ``evenshard``."""

import os
import sys


def main() -> int:
    """Run the command; returns the exit status."""
    # Read when torch is loaded: OpenMP threads that spin for long starve each other on a busy machine, and a
    # thousand turns cost a quiet one nothing.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    from launcher.cli import main as command  # noqa: PLC0415 - loads torch

    return command()


if __name__ == "__main__":
    sys.exit(main())
