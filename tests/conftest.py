"""The tests hear and send signals as from a terminal, also where they were started in the background of a shell."""

import signal


def pytest_sessionstart():
    """A shell lets what it starts in the background ignore SIGINT, and whatever that starts would, too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
