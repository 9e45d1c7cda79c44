"""What drawing costs: this package beside DistributedSampler, torchdata and Accelerate, in one run.

Run `python tests/benchmarks/samplers.py` from the root of the repository; `--peers 1e6 1e7 1e8` adds the size at which
the others take gigabytes and minutes. Every measurement has a process of its own. The exit status is 1 where a floor
does not hold: a first batch and a resume within 20 ms and 10 MB at n = 1e9, at most the cost per index of
DistributedSampler at n = 1e6, and a first batch in a world of 4,096 ranks at the price of a world of 2.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

BATCH, WORLD = 64, 2
RESUME = 0.9


@dataclass(frozen=True)
class Cost:
    """Seconds to the first batch and to the first after a resume at 90 %, ns per index, and MB that both need."""

    first_s: float
    resume_s: float
    index_ns: float
    memory_mb: float


def fixed(n: int, world: int = WORLD) -> tuple[Any, Callable[[Any, int], Iterator[list[int]]]]:
    """This package's sampler, and how it is resumed after some batches."""
    from samplers import FixedGlobalBatchSampler  # noqa: PLC0415 - its memory is counted

    def resume(sampler: Any, batches: int) -> Iterator[list[int]]:
        sampler.load_state_dict(sampler.state_dict(batches * BATCH * world))
        return iter(sampler)

    return FixedGlobalBatchSampler(n, BATCH * world, 0, world, seed=1), resume


def distributed(n: int) -> tuple[Any, Callable[[Any, int], Iterator[list[int]]]]:
    """DistributedSampler and BatchSampler, resumed by drawing and throwing away."""
    from torch.utils.data import BatchSampler, DistributedSampler  # noqa: PLC0415

    sampler: Any = DistributedSampler(range(n), WORLD, 0, seed=1)  # type: ignore[arg-type]
    return BatchSampler(sampler, BATCH, drop_last=True), lambda made, batches: islice(made, batches, None)


def torchdata(n: int) -> tuple[Any, Callable[[Any, int], Iterator[list[int]]]]:
    """StatefulDistributedSampler, resumed by its state."""
    from torch.utils.data import BatchSampler  # noqa: PLC0415
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler  # noqa: PLC0415

    sampler = StatefulDistributedSampler(range(n), WORLD, 0, seed=1)

    def resume(made: Any, batches: int) -> Iterator[list[int]]:
        sampler.load_state_dict({"yielded": batches * BATCH})
        return iter(made)

    return BatchSampler(sampler, BATCH, drop_last=True), resume


def accelerate(n: int) -> tuple[Any, Callable[[Any, int], Iterator[list[int]]]]:
    """Accelerate's seeded sampler and shards of batches, resumed by skipping batches."""
    from accelerate.data_loader import BatchSamplerShard, SeedableRandomSampler, SkipBatchSampler  # noqa: PLC0415
    from torch.utils.data import BatchSampler  # noqa: PLC0415

    sampler = SeedableRandomSampler(data_source=range(n), data_seed=1)
    shard = BatchSamplerShard(BatchSampler(sampler, BATCH, drop_last=True), WORLD, 0)
    return shard, lambda made, batches: iter(SkipBatchSampler(made, skip_batches=batches))


KINDS = {"samplers": fixed, "DistributedSampler": distributed, "torchdata": torchdata, "accelerate": accelerate}


def measure(kind: str, n: int) -> Cost:
    """Measure one sampler at one size in this process."""
    import torch.utils.data  # noqa: F401, PLC0415 - everyone needs it, no one is charged for it

    KINDS[kind](1_000)
    next(iter(KINDS[kind](1_000)[0]))
    before = peak_mb(reset=True)
    start = time.perf_counter()
    sampler, resume = KINDS[kind](n)
    next(iter(sampler))
    first = time.perf_counter()
    sampler, resume = KINDS[kind](n)
    next(resume(sampler, int(n * RESUME) // (BATCH * WORLD)))
    resumed = time.perf_counter()
    memory = peak_mb() - before
    return Cost(first - start, resumed - first, cost_per_index(kind, n), memory)


def cost_per_index(kind: str, n: int) -> float:
    """Nanoseconds per index over at most the first 4 million of an epoch; the best of three at small sizes."""
    best = float("inf")
    for _ in range(3 if n <= 10**6 else 1):
        sampler, _ = KINDS[kind](n)
        start = time.perf_counter()
        count = sum(len(rows) for rows in islice(sampler, 4_000_000 // BATCH))
        best = min(best, (time.perf_counter() - start) / count * 1e9)
    return best


def peak_mb(*, reset: bool = False) -> float:
    """The most memory this process has had, in MB; since now where `reset` and the system can."""
    status = Path("/proc/self/status")
    if reset and status.exists():
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    if status.exists():
        line = next(line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2


def first_batch_by_world() -> dict[int, float]:
    """Milliseconds to the first batch of one rank at n = 1e9, the median of many, taken in turn."""
    worlds = (2, 4_096)
    times: dict[int, list[float]] = {world: [] for world in worlds}
    for _ in range(51):
        for world in worlds:
            start = time.perf_counter()
            next(iter(fixed(10**9, world)[0]))
            times[world].append(time.perf_counter() - start)
    return {world: sorted(found)[len(found) // 2] * 1e3 for world, found in times.items()}


def in_a_process(kind: str, n: int) -> Cost:
    """Measure in a fresh process."""
    command = [sys.executable, __file__, "--measure", kind, str(n)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Cost(**json.loads(done.stdout))


def show(kind: str, n: int, cost: Cost) -> None:
    """Print one line of the table."""
    print(
        f"{kind:<20} {n:>8.0e} {cost.first_s * 1e3:>12.2f} {cost.resume_s * 1e3:>12.2f} {cost.index_ns:>9.1f} "
        f"{cost.memory_mb:>10.1f}",
        flush=True,
    )


def compare(peers: list[int], own: list[int]) -> bool:
    """Print the table and the ratios; return whether the floors hold."""
    print(f"{'':<20} {'n':>8} {'first ms':>12} {'resume ms':>12} {'ns/index':>9} {'extra MB':>10}")
    costs: dict[tuple[str, int], Cost] = {}
    for n in sorted({*peers, *own}):
        for kind in KINDS if n in peers else ["samplers"]:
            costs[kind, n] = in_a_process(kind, n)
            show(kind, n, costs[kind, n])
    for n in peers:
        mine, theirs = costs["samplers", n], costs["DistributedSampler", n]
        print(
            f"n = {n:.0e}, DistributedSampler / samplers: first batch {theirs.first_s / mine.first_s:.0f} x, resume "
            f"{theirs.resume_s / mine.resume_s:.0f} x, per index {theirs.index_ns / mine.index_ns:.2f} x"
        )
    worlds = first_batch_by_world()
    ratio = worlds[4_096] / worlds[2]
    print(f"first batch in a world of 2: {worlds[2]:.3f} ms, of 4,096: {worlds[4_096]:.3f} ms, ratio {ratio:.2f}")
    large = costs["samplers", 10**9]
    return (
        large.first_s < 0.02
        and large.resume_s < 0.02
        and large.memory_mb < 10
        and costs["samplers", peers[0]].index_ns <= costs["DistributedSampler", peers[0]].index_ns
        and ratio < 1.5
    )


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--peers", nargs="+", type=float, default=[1e6, 1e7], help="sizes at which the others are measured"
    )
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        kind, n = options.measure
        print(json.dumps(asdict(measure(kind, int(n)))))
        return 0
    holds = compare([int(n) for n in options.peers], [10**9, 10**12])
    print("every floor holds" if holds else "a floor does not hold")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    sys.exit(main())
