"""A run, and tunings of it that were never measured."""

from launcher.configure.schema import DataConfig, RunConfig
from launcher.tune.result import Probe, Tuning

GIB = 2**30


def probe(rows, *step_ms, gib=1.0):
    return Probe(rows, fits=True, peak_bytes=int(gib * GIB), step_s=tuple(ms / 1e3 for ms in step_ms), evaluate_s=0.001)


SURE = Tuning(
    probes=(
        probe(16, 10, 10.1, 10.2, gib=1),
        probe(400, 100, 101, 102, gib=3),
        Probe(401, fits=False, why_not="rank 1: out of memory", peak_bytes=4 * GIB),
        probe(300, 77, 77, 78, gib=2.5),
    ),
    fits=400,
    limited_by="memory",
    exact=True,
    fast_enough=300,
    noise=None,
    recommended=300,
    available_bytes=4 * GIB,
    load=0.25,
)
NOISY = Tuning(
    probes=(probe(16, 10, 20, 30), probe(64, 40, 60, 90)),
    fits=64,
    limited_by="data.train has 64 rows",
    exact=True,
    fast_enough=None,
    noise="steps of 64 rows differ by 83 %",
    recommended=64,
    available_bytes=4 * GIB,
    load=3.5,
)
UNTIMED = Tuning((Probe(16, fits=True),), 16, "tune.max_rows=16", True, None, "no step was timed", 16, 0, 0.0)


def run(**settings):
    def node(target, **arguments):
        return {"_target_": target, **arguments}

    return RunConfig(
        data=DataConfig(train=node("launcher.data.digits.digits", train=True), test=None),
        model=node("launcher.models.small_conv.SmallConvNet", width=8, **settings),
        task=node("launcher.training.task.Supervised"),
        loss=node("torch.nn.CrossEntropyLoss"),
        optimizer=node("torch.optim.SGD", lr=0.1),
    )


DIGITS = run()
