"""The tests hear and send signals as from a terminal, however they were started."""

import signal

HOW_THEY_ARE = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}


def pytest_sessionstart():
    """What a shell starts in the background ignores SIGINT, what ``nohup`` starts SIGHUP, and so would all ranks."""
    for number, handler in HOW_THEY_ARE.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
