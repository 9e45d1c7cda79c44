"""Records to look at."""

from launcher.sweep.jobs import FAILED, FINISHED, RUNNING, WAITING, Record


def record(number, words="", state=WAITING, **known):
    return Record(number, tuple(words.split()), str(number), state, **known)


def finished(number, words, accuracy, loss=0.5, seconds=2.1, state=FINISHED):
    metrics = {"train/loss": loss / 2, "train/lr": 0.1, "test/loss": loss, "test/accuracy": accuracy, "test/rows": 7}
    known = {"step": 40, "attempts": 1, "devices": ("0", "1"), "seconds": seconds}
    return record(number, words, state, metrics=metrics, value=accuracy, **known)


def running(number, words, step=0, metrics=None, **known):
    return record(number, words, RUNNING, step=step, metrics=metrics or {}, **{"attempts": 1, **known})


def failed(number, words="", cause="rank 0 was killed by SIGSEGV", **known):
    return record(number, words, FAILED, cause=cause, **{"attempts": 1, **known})
