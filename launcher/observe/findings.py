"""What a run's measurements say in plain words, each with the number behind it and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.observe.story import Story
from samplers.words import counted

MUCH_DATA, MUCH_MOVING, MUCH_WAITING, MUCH_EVALUATION, MUCH_SAVING, MUCH_OPTIMIZER = 0.1, 0.1, 0.2, 0.3, 0.05, 0.25
UNEVEN = 0.1
BUSY, IDLE = 0.95, 0.5
TOO_SHORT_S = 5.0
"""In less, what comes once, such as first steps, hides the rest."""


def findings(story: Story) -> list[str]:
    """What stands out, the gravest first; never empty."""
    found = [*_ending(story), *_loss(story), *_time(story), *_device(story), *_recorded(story)]
    return found or [_nothing(story)]


def _ending(story: Story) -> Iterator[str]:
    status = story.status
    if status.state == "failed" and status.error:
        error = status.error
        first = str(error.get("message", "")).split("\n", 1)[0]
        yield f"The run failed after step {status.step}: rank {error.get('rank')}: {error.get('type')}: {first}"
    if status.state == "preempted":
        yield f"The run was preempted after step {status.step}; the same hydra.run.dir continues it."
    if status.checkpoint_error:
        yield f"The last checkpoint was not kept: {status.checkpoint_error}"


def _loss(story: Story) -> Iterator[str]:
    lost = [line["step"] for line in story.lines if line.get("train/loss", 0.0) is None]
    if lost:
        yield f"train/loss is no number from step {lost[0]} on: nothing was learned after that; lower optimizer.lr."
    skipped = story.last("train/skipped")
    if skipped:
        steps = counted(int(skipped), "step")
        yield f"{steps} left out, as their gradients were not finite: lower optimizer.lr or set trainer.clip_norm."


def _time(story: Story) -> Iterator[str]:
    shares = story.shares()
    if not shares:
        observed = story.setting("trainer.observe", True)
        every = story.setting("trainer.log_every", 10)
        why = (
            f"the run ended before its first line (trainer.log_every={every})" if observed else "trainer.observe=false"
        )
        yield f"Where the time went is not known: {why}."
        return
    measured = sum(story.seconds().values())
    if measured < TOO_SHORT_S:
        yield f"Only {measured:.2f} s were measured, too little to advise on: first steps hide the rest."
        return
    if shares["data"] >= MUCH_DATA:
        yield _data(story, shares["data"])
    if shares["to_device"] >= MUCH_MOVING:
        yield f"{shares['to_device']:.0%} moving rows to the device: smaller ones help, as uint8 does."
    if shares["communication"] >= MUCH_WAITING:
        ranks = counted(story.status.world_size, "rank")
        yield (
            f"{shares['communication']:.0%} waiting for other ranks, of {ranks}: give each more to compute (a larger "
            "batch.global_size or fewer ranks); where one rank is slower than the others, the others wait for it."
        )
    if shares["evaluation"] >= MUCH_EVALUATION:
        every, rows = story.setting("trainer.evaluate_every", 1), story.setting("data.evaluate_batch", 256)
        yield (
            f"{shares['evaluation']:.0%} evaluating: raise trainer.evaluate_every (now {every}) or "
            f"data.evaluate_batch (now {rows})."
        )
    if shares["checkpoint"] >= MUCH_SAVING:
        every = story.setting("checkpoint.every_steps", "null")
        background = story.setting("checkpoint.background", True)
        remedy = f"raise checkpoint.every_steps (now {every})" if background else "set checkpoint.background=true"
        yield f"{shares['checkpoint']:.0%} waiting for checkpoints: {remedy}."
    if shares["optimizer"] >= MUCH_OPTIMIZER:
        yield (
            f"{shares['optimizer']:.0%} in the optimizer: a larger batch.global_size needs fewer steps, and "
            "optimizer.fused=true makes torch's own quicker."
        )


def _data(story: Story, share: float) -> str:
    workers, use = story.setting("data.workers", 0), story.mean("cpu/use")
    most = story.mean("time/data_most")
    uneven = f" ({most:.0%} on the rank that waits most)" if most is not None and most - share >= UNEVEN else ""
    said = f"{share:.0%} waiting for data{uneven}: "
    if use is not None and use >= BUSY and workers:
        cores = story.last("cpu/usable_cores") or 0
        return f"{said}the {cores:.0f} usable cores are busy for {use:.0%} already; make reading a row cheaper."
    return f"{said}raise data.workers (now {workers})."


def _device(story: Story) -> Iterator[str]:
    busy = story.mean("gpu/sm")
    if busy is not None and busy < IDLE:
        yield (
            f"The GPU's multiprocessors are busy for {busy:.0%}: raise batch.max_per_device (mode=tune finds what "
            "fits and pays) or batch.global_size."
        )
    kernels = story.mean("gpu/kernel_busy")
    if kernels is not None and kernels < BUSY:
        yield (
            f"No kernel at all runs for {1 - kernels:.0%} of the time; how much of the GPU the others take, this card "
            "does not tell."
        )
    retries = story.last("memory/allocator_retries")
    if retries:
        yield (
            f"The allocator ran out of memory {counted(int(retries), 'time')} before it found room: lower "
            "batch.max_per_device."
        )
    used = story.mean("speed/flop_utilisation")
    if used is not None and used > 1:
        yield f"{used:.0%} of the device's peak cannot be: the model computes less than was counted."
    elif used is not None:
        yield f"The model makes use of {used:.0%} of the device's peak in this number format."


def _recorded(story: Story) -> Iterator[str]:
    for name in story.tables:
        if name.endswith("_unfinished"):
            yield f"The recorded window trace/{name} did not close: the run ended too early for profile.*."


def _nothing(story: Story) -> str:
    share = story.shares()["forward_backward"]
    return f"Nothing stands out: {share:.0%} of the time goes into forward and backward."
