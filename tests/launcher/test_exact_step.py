"""A step in tree order: the gradient of the whole global batch, and the same bits whoever computes which shard."""

import copy
import random
from itertools import chain

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from launcher.processes.errors import SettingsError
from launcher.testing import simulate
from launcher.training import exact, shard_gradients
from launcher.training.compute import Compute, exactly
from launcher.training.exact_step import InTreeOrder
from launcher.training.shard_gradients import buckets, dense_strides
from launcher.training.step import Stepper
from launcher.training.task import Supervised
from samplers import BatchPlan, FixedGlobalBatchSampler, Sequential, Share

CPU = torch.device("cpu")
TASK = Supervised(nn.CrossEntropyLoss(reduction="none"))
RANKS = (1, 2, 3, 5)
SIZE, SHARDS, STEPS, FEATURES, CLASSES = 22, 7, 3, 18, 3
STRIKING = 5
"""A row of the first global batch that is unlike all others; it lies in the shard of the same number."""


def inputs_and_targets(dtype=torch.float64):
    stream = torch.Generator().manual_seed(1)
    inputs = torch.randn(STEPS * SIZE, FEATURES, generator=stream, dtype=torch.float64)
    inputs[STRIKING, 0] = 9
    return inputs.to(dtype), torch.randint(CLASSES, (STEPS * SIZE,), generator=stream)


class Plain(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(FEATURES, 7), nn.Tanh(), nn.Linear(7, CLASSES))


class Partial(nn.Module):
    """Of its layers one is never used, one for the striking row alone, and one does not learn."""

    def __init__(self):
        super().__init__()
        self.base, self.sometimes, self.never, self.frozen = (nn.Linear(FEATURES, CLASSES) for _ in range(4))
        self.frozen.requires_grad_(False)

    def forward(self, rows):
        striking = rows[:, :1] > 5
        outputs = self.base(rows) + self.frozen(rows)
        return outputs + striking * self.sometimes(rows) if striking.any() else outputs


class Tied(nn.Module):
    """One weight in two layers, and one layer used twice."""

    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(FEATURES, FEATURES)
        self.decode = nn.Linear(FEATURES, FEATURES)
        self.decode.weight = self.encode.weight
        self.twice = nn.Linear(FEATURES, FEATURES)
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, rows):
        return self.head(self.decode(self.twice(self.twice(self.encode(rows)).tanh()).tanh()))


class Shapes(nn.Module):
    """Parameters of no dimension, of a single number, turned, and channels last."""

    def __init__(self):
        super().__init__()
        self.scale, self.offset = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.zeros(1, 1))
        self.convolution = nn.Conv2d(2, 4, 2).to(memory_format=torch.channels_last)
        self.turned = nn.Parameter(torch.randn(CLASSES, 16).t())

    def forward(self, rows):
        images = rows.view(-1, 2, 3, 3).contiguous(memory_format=torch.channels_last)
        return self.convolution(images).flatten(1).tanh() @ self.turned * self.scale + self.offset


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant=False, times=1):
        super().__init__()
        self.first, self.block, self.head = nn.Linear(FEATURES, 7), nn.Linear(7, 7), nn.Linear(7, CLASSES)
        self.use_reentrant, self.times = use_reentrant, times

    def forward(self, rows):
        rows = self.first(rows).tanh()
        for _ in range(self.times):
            rows = checkpoint(lambda x: self.block(x).tanh(), rows, use_reentrant=self.use_reentrant)
        return self.head(rows)


class Looked(nn.Module):
    """A table of which a shard uses some rows only."""

    def __init__(self, sparse=False):
        super().__init__()
        self.table, self.head = nn.Embedding(40, 6, sparse=sparse), nn.Linear(6, CLASSES)

    def forward(self, rows):
        return self.head(self.table((rows[:, 0].abs() * 1000).long() % 40))


class Formats(nn.Module):
    """Layers of 32 bits between layers of 64."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(FEATURES, 7), nn.Linear(7, CLASSES)
        self.middle = nn.Linear(7, 7)

    def double(self):
        self.first.double(), self.head.double()
        return self

    def forward(self, rows):
        return self.head(self.middle(self.first(rows).float()).tanh().double())


class Normalised(nn.Sequential):
    """BatchNorm in two momenta, and a buffer of another kind."""

    def __init__(self):
        super().__init__(
            nn.Linear(FEATURES, 7),
            nn.BatchNorm1d(7, momentum=0.3),
            nn.Tanh(),
            nn.BatchNorm1d(7, momentum=None),
            nn.Linear(7, CLASSES),
        )


MODELS = [Plain, Partial, Tied, Shapes, Checkpointed, Looked, Formats, Normalised]
WAYS = [(1 << 20, 1 << 18, None), (10, 0, None), (1 << 20, 60, 0.05)]
"""Numbers in a bucket, numbers up to which vectors travel whole, largest norm of the gradient."""


def micro_batches(ranks, rank, dtype=torch.float64):
    """The shards of a rank with their rows, step by step."""
    plan = BatchPlan(SIZE, ranks, 1, -(-SIZE // SHARDS), SIZE // SHARDS)
    settings = {"min_per_device": 1, "max_per_device": plan.max_per_device, "shard_rows": plan.shard_rows}
    sampler = FixedGlobalBatchSampler(Sequential(STEPS * SIZE), SIZE, rank, ranks, **settings)
    steps, (inputs, targets) = [[] for _ in range(STEPS)], inputs_and_targets(dtype)
    for number, indices in enumerate(sampler):
        share = sampler.share(number)
        steps[share.step].append(((inputs[indices], targets[indices]), share))
    return [plan.shard_range(r) for r in range(ranks)], steps


def train(make, ranks, way=WAYS[0], dtype=torch.float64, precision="fp32"):
    """On a rank: the gradients of each step, the sums of losses, and the state at the end."""
    rank, (shard_gradients.BUCKET, exact.WHOLE, clip_norm) = dist.get_rank(), way
    torch.manual_seed(rank)  # ranks begin with different weights
    model = make().double() if dtype == torch.float64 else make().to(dtype)
    ranges, steps = micro_batches(ranks, rank, dtype)
    reduction = InTreeOrder(model, 0, ranges, rank)
    optimizer = optimizer_of(model)
    compute = Compute.of(precision, CPU)
    stepper = Stepper(model, TASK, optimizer, None, compute, reduction, clip_norm)
    gradients, losses = noted(model, optimizer), []
    for number, step in enumerate(steps):
        stepper.begin(number)
        losses.append(stepper.step(step)[0])
    return gradients, torch.stack(losses), copy.deepcopy(model.state_dict())


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def noted(model, optimizer):
    """A list that gets the gradients of each step, by name."""
    seen = []
    optimizer.register_step_pre_hook(
        lambda *_: seen.append({n: p.grad if p.grad is None else p.grad.clone() for n, p in model.named_parameters()})
    )
    return seen


def expected(make, clip_norm=None):
    """The same by autograd alone: one process, no hooks, each shard from the buffers of the step's beginning."""
    torch.manual_seed(0)
    model = make().double()
    optimizer = optimizer_of(model)
    gradients, losses = noted(model, optimizer), []
    inputs, targets = inputs_and_targets()
    for step in range(STEPS):
        total, moved = 0, []
        for shard in range(SHARDS):
            mine = slice(step * SIZE + shard, (step + 1) * SIZE, SHARDS)
            buffers = {name: value.clone() for name, value in model.named_buffers()}
            outputs = functional_call(model, buffers, inputs[mine])
            total = total + nn.functional.cross_entropy(outputs, targets[mine], reduction="sum")
            moved.append((len(targets[mine]), buffers))
        optimizer.zero_grad()
        (total / SIZE).backward()
        if clip_norm:
            nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
        losses.append(total.detach())
        for name, buffer in model.named_buffers():
            buffer.copy_(sum(rows * buffers[name].double() for rows, buffers in moved) / SIZE)
    return gradients, torch.stack(losses), model.state_dict()


def whole(make):
    """With all rows in one forward, for models whose rows do not see each other."""
    torch.manual_seed(0)
    model, (inputs, targets) = make().double(), inputs_and_targets()
    nn.functional.cross_entropy(model(inputs[:SIZE]), targets[:SIZE]).backward()
    return {name: p.grad for name, p in model.named_parameters()}


@pytest.fixture(scope="module")
def worlds():
    """What each rank of each world makes of every model, in every way."""

    def every(ranks):
        return {(make, way): train(make, ranks, way) for make in MODELS for way in WAYS}

    return {ranks: simulate(ranks, every, ranks) for ranks in RANKS}


def assert_same_gradients(found, right, **tolerance):
    assert [name for name, gradient in found.items() if gradient is None] == [
        name for name, gradient in right.items() if gradient is None
    ]
    for name, gradient in found.items():
        if gradient is not None:
            torch.testing.assert_close(gradient, right[name], **tolerance, msg=lambda m, n=name: f"{n}: {m}")


def assert_same_state(found, right):
    assert list(found) == list(right)
    assert [name for name in found if not torch.equal(found[name], right[name])] == []


def assert_same_bits(found, right):
    for mine, its in zip(found, right, strict=True):
        assert [name for name in its if (mine[name] is None) != (its[name] is None)] == []
        assert [name for name in its if its[name] is not None and not torch.equal(mine[name], its[name])] == []


@pytest.mark.parametrize("make", MODELS)
def test_a_step_is_that_of_autograd(worlds, make):
    digits = {"rtol": 1e-5, "atol": 1e-6} if make is Formats else {"rtol": 1e-12, "atol": 1e-14}
    for way in WAYS:
        gradients, losses, state = expected(make, clip_norm=way[2])
        mine, its_losses, its_state = worlds[1][0][make, way]
        torch.testing.assert_close(its_losses, losses, **digits)
        for step, right in zip(mine, gradients, strict=True):
            assert_same_gradients(step, right, **digits)
        torch.testing.assert_close(dict(its_state), dict(state), **digits)


@pytest.mark.parametrize("make", [model for model in MODELS if model not in (Normalised, Formats)])
def test_where_rows_do_not_see_each_other_it_is_that_of_all_rows_at_once(worlds, make):
    first, *_ = worlds[1][0][make, WAYS[0]][0]
    assert_same_gradients(first, whole(make), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("make", MODELS)
def test_every_world_has_the_same_bits_and_buckets_do_not_enter(worlds, make):
    for way in WAYS:
        one = worlds[1][0][make, next(first for first in WAYS if first[2] == way[2])]
        for ranks in RANKS:
            found = [rank[make, way] for rank in worlds[ranks]]
            assert torch.equal(sum(losses for _, losses, _ in found), one[1])
            for gradients, _, state in found:
                assert_same_bits(gradients, one[0])
                assert_same_state(state, one[2])


def test_without_a_gradient_in_any_shard_a_parameter_stays_where_it_is(worlds):
    """In the first step one shard has gradients of ``sometimes``, afterwards none has."""
    torch.manual_seed(0)
    initial = Partial().double().state_dict()
    for ranks in RANKS:
        for rank in worlds[ranks]:
            gradients, _, state = rank[Partial, WAYS[0]]
            assert [step["sometimes.weight"] is None for step in gradients] == [False, True, True]
            assert [step["never.weight"] is None for step in gradients] == [True] * STEPS
            assert [step["frozen.weight"] is None for step in gradients] == [True] * STEPS
            for name in ("never.weight", "never.bias", "frozen.weight", "frozen.bias"):
                assert torch.equal(state[name], initial[name])
            assert not torch.equal(state["sometimes.weight"], initial["sometimes.weight"])


def test_batchnorm_counts_a_step_once(worlds):
    for ranks in RANKS:
        for rank in worlds[ranks]:
            _, _, state = rank[Normalised, WAYS[0]]
            assert [int(state[f"{layer}.num_batches_tracked"]) for layer in (1, 3)] == [STEPS, STEPS]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_16_bits_are_added_in_32(dtype):
    def first(ranks):
        return train(Plain, ranks, (10, 0, None), dtype)[0][0]

    (one,) = simulate(1, first, 1)
    gradients = [gradients_of(shard, dtype) for shard in range(SHARDS)]
    for name, found in one.items():
        total = tree([each[name].float() for each in gradients]).to(dtype) * (16 / SIZE)
        assert found.dtype == dtype
        assert torch.equal(found, total.to(dtype))
    rounded = {name: tree([each[name] for each in gradients]) * (16 / SIZE) for name in one}
    assert not all(torch.equal(rounded[name].to(dtype), one[name]) for name in one)
    for ranks in (2, 3, 5):
        for found in simulate(ranks, first, ranks):
            assert_same_bits([found], [one])


def gradients_of(shard, dtype):
    """Of the summed loss of a shard of the first step, over 16: the power of two nearest to 22."""
    torch.manual_seed(0)
    model, (inputs, targets) = Plain().to(dtype), inputs_and_targets(dtype)
    rows = slice(shard, SIZE, SHARDS)
    losses = nn.functional.cross_entropy(model(inputs[rows]), targets[rows], reduction="none")
    (losses.float().sum() / 16).backward()
    return {name: p.grad for name, p in model.named_parameters()}


def tree(values):
    """Of seven values."""
    a, b, c, d, e, f, g = values
    return ((a + b) + (c + d)) + ((e + f) + g)


class Noisy(nn.Linear):
    """Draws from every stream, and remembers."""

    def __init__(self):
        super().__init__(FEATURES, CLASSES)
        self.drawn = []

    def forward(self, rows):
        dropped = nn.functional.dropout(torch.ones(64, dtype=rows.dtype), 0.5)
        self.drawn.append((tuple(dropped.tolist()), random.random(), np.random.rand()))  # noqa: NPY002
        return super().forward(rows * dropped[:FEATURES])


def test_a_shard_draws_the_same_whoever_computes_it():
    def draw(ranks):
        model = Noisy()
        _, _, state = train(lambda: model, ranks)
        return model.drawn, state

    (one, state), *_ = simulate(1, draw, 1)
    assert all(len(set(stream)) == STEPS * SHARDS for stream in zip(*one, strict=True))
    for ranks in RANKS[1:]:
        found = simulate(ranks, draw, ranks)
        for _, theirs in found:
            assert_same_state(theirs, state)
        steps = [chain(*(of_step(drawn, step) for drawn, _ in found)) for step in range(STEPS)]
        assert list(chain(*steps)) == one


def of_step(drawn, step):
    each = len(drawn) // STEPS
    return drawn[step * each : (step + 1) * each]


def test_the_same_shard_draws_otherwise_in_another_run():
    def masks(seed):
        ranges, steps = micro_batches(1, 0)
        model = Noisy().double()
        reduction = InTreeOrder(model, seed, ranges, 0)
        Stepper(model, TASK, optimizer_of(model), None, Compute.of("fp32", CPU), reduction).step(steps[0])
        return model.drawn

    assert masks(3) == masks(3)
    assert not set(masks(3)) & set(masks(4))


@pytest.mark.parametrize("clip_norm", [None, 0.05])
def test_an_overflow_in_one_shard_leaves_the_step_out_on_every_rank(clip_norm):
    def run(ranks):
        gradients, _, state = train(Striking, ranks, (10, 0, clip_norm), torch.float32, "fp16")
        return len(gradients), state

    torch.manual_seed(0)
    initial = Striking().state_dict()
    ((steps, one),) = simulate(1, run, 1)
    assert steps == STEPS - 1
    assert not torch.equal(one["weight"], initial["weight"])
    for ranks in RANKS[1:]:
        for found in simulate(ranks, run, ranks):
            assert found[0] == STEPS - 1
            assert_same_state(found[1], one)


class Striking(nn.Linear):
    """The gradient of the striking row is too large for float16 once it is scaled."""

    def __init__(self):
        super().__init__(FEATURES, CLASSES)
        with torch.no_grad():
            self.weight[:, 0] = 0  # so that the loss does not depend on it yet

    def forward(self, rows):
        return super().forward(torch.where(rows == 9, rows * 100, rows))


class Counting(nn.Linear):
    """Buffers of other kinds: a count, a flag, a mask that stays, one that is replaced, and one that is not kept."""

    def __init__(self):
        super().__init__(FEATURES, CLASSES)
        self.register_buffer("count", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("trained", torch.tensor(False))
        self.register_buffer("mask", torch.tensor([0.0, float("-inf"), float("inf"), -0.5]))
        self.register_buffer("mean", torch.zeros(FEATURES))
        self.register_buffer("largest", torch.tensor(0.0), persistent=False)
        self.register_buffer("none", None)

    def forward(self, rows):
        self.count += 2
        self.trained.fill_(True)
        self.mean = self.mean * 0.9 + rows.detach().mean(0) * 0.1
        self.largest = torch.maximum(self.largest, rows.detach().max())
        return super().forward(rows)


def test_other_buffers_move_by_the_average_of_the_shards():
    def run(ranks):
        model = Counting()
        train(lambda: model, ranks)
        return dict(model.named_buffers())

    mean, largest, (inputs, _) = torch.zeros(FEATURES), torch.tensor(0.0), inputs_and_targets()
    mean, largest = mean.double(), largest.double()
    for step in range(STEPS):
        rows = inputs[step * SIZE : (step + 1) * SIZE]
        mean = mean * 0.9 + rows.mean(0) * 0.1
        of_shards = [torch.maximum(largest, rows[s::SHARDS].max()) * len(rows[s::SHARDS]) for s in range(SHARDS)]
        largest = sum(of_shards) / SIZE
    (one,) = simulate(1, run, 1)
    assert one["count"].tolist() == [2 * STEPS] * 2
    assert bool(one["trained"])
    assert one["mask"].tolist() == [0.0, float("-inf"), float("inf"), -0.5]
    torch.testing.assert_close(one["mean"], mean, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(one["largest"], largest, rtol=1e-12, atol=0)
    for ranks in (3, 5):
        for found in simulate(ranks, run, ranks):
            assert_same_state(found, one)


class Uneven(Counting):
    def forward(self, rows):
        self.count += len(rows)
        return super().forward(rows)


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_count_that_shards_move_differently_is_refused_by_name(ranks):
    message = r"batch.exact=true: buffer count \(int64\) changes by different amounts in the shards of one step, and wh"
    with pytest.raises(SettingsError, match=message):
        simulate(ranks, train, Uneven, ranks)


class LayerDrop(nn.Linear):
    """Leaves its second layer out now and then."""

    def __init__(self):
        super().__init__(FEATURES, CLASSES)
        self.norm, self.calls = nn.BatchNorm1d(FEATURES), 0

    def forward(self, rows):
        self.calls += 1
        return super().forward(self.norm(rows) if self.calls % 2 else rows)


def test_a_layer_that_only_some_shards_use_is_refused_by_name():
    message = r"^batch.exact=true: layer norm is used in some shards of a step and left out in others, as by LayerDrop"
    with pytest.raises(SettingsError, match=message):
        simulate(1, train, LayerDrop, 1)


# What cannot be made exact, by name.
class Complex(nn.Linear):
    def __init__(self):
        super().__init__(FEATURES, CLASSES)
        self.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64))


class ComplexBuffer(nn.Linear):
    def __init__(self):
        super().__init__(FEATURES, CLASSES)
        self.register_buffer("phase", torch.ones(2, dtype=torch.complex64))

    def forward(self, rows):
        self.phase += 1
        return super().forward(rows)


REFUSED = [
    (Complex, "batch.exact=true: parameter phase is torch.complex64, and only real numbers are added in tree order"),
    (
        lambda: nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.Sequential(nn.SyncBatchNorm(CLASSES))),
        "batch.exact=true: layer 1.0 is a SyncBatchNorm, whose statistics are those of all ranks' rows; set batchnorm=",
    ),
]


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=["parameter", "layer"])
def test_what_cannot_be_made_exact_is_refused_by_name(make, message):
    with pytest.raises(SettingsError) as caught:
        InTreeOrder(make(), 0, [range(SHARDS)], 0)
    assert str(caught.value).startswith(message)


def test_a_complex_buffer_is_refused_once_it_moves():
    with pytest.raises(SettingsError, match=r"^batch.exact=true: buffer phase is complex and moves, and only real"):
        simulate(1, train, ComplexBuffer, 1)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_sparse_gradient_is_refused_by_name(ranks):
    with pytest.raises(SettingsError) as caught:
        simulate(ranks, train, lambda: Looked(sparse=True), ranks)
    assert str(caught.value) == (
        "batch.exact=true: parameter table.weight gets a sparse gradient, and only dense ones are added in tree order; "
        "set sparse=False in its layer, or batch.exact=false"
    )


def test_reentrant_checkpointing_that_reaches_a_parameter_twice_is_refused_by_name():
    with pytest.raises(SettingsError) as caught:
        simulate(3, train, lambda: Checkpointed(use_reentrant=True, times=2), 3, (10, 0, None))
    assert str(caught.value) == (
        "batch.exact=true: backward reaches parameter block.bias more than once, as reentrant activation checkpointing "
        "does; use torch.utils.checkpoint with use_reentrant=False"
    )


def test_reentrant_checkpointing_that_reaches_each_parameter_once_is_the_same(worlds):
    for found in simulate(3, train, lambda: Checkpointed(use_reentrant=True), 3):
        assert_same_bits(found[0], worlds[1][0][Checkpointed, WAYS[0]][0])


OF_TORCH = (
    "cumsum_cuda_kernel does not have a deterministic implementation, but you set "
    "'torch.use_deterministic_algorithms(True)'. You can turn off determinism just for this operation, or you can use "
    "the 'warn_only=True' option."
)


def test_an_operation_that_torch_cannot_make_deterministic_is_a_matter_of_settings():
    def refused(text):
        with exactly():
            raise RuntimeError(text)

    with pytest.raises(
        SettingsError, match=r"^batch.exact=true: cumsum_cuda_kernel gives other bits each time, and torch has"
    ):
        simulate(1, refused, OF_TORCH + "\nmore")
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes"):
        simulate(1, refused, "mat1 and mat2 shapes cannot be multiplied, be it deterministic or not")


# How gradients are packed.
@pytest.mark.parametrize(
    ("sizes", "room", "names"),
    [
        ([4, 4, 4], 12, ["abc"]),
        ([4, 4, 4], 8, ["ab", "c"]),
        ([4, 4, 4], 1, ["a", "b", "c"]),
        ([1, 20, 1, 1], 8, ["a", "b", "cd"]),
        ([20, 20], 8, ["a", "b"]),
    ],
)
def test_parameters_fill_buckets_in_their_order(monkeypatch, sizes, room, names):
    monkeypatch.setattr(shard_gradients, "BUCKET", room)
    parameters = [(name, nn.Parameter(torch.zeros(size))) for name, size in zip("abcd", sizes, strict=False)]
    assert ["".join(name for name, _ in bucket.parameters) for bucket in buckets(parameters)] == names


def test_a_bucket_holds_one_kind_of_numbers():
    kinds = {"a": torch.float32, "b": torch.bfloat16, "c": torch.float64, "d": torch.float16}
    found = buckets([(name, nn.Parameter(torch.zeros(2, dtype=kind))) for name, kind in kinds.items()])
    assert [("".join(name for name, _ in bucket.parameters), bucket.dtype) for bucket in found] == [
        ("ab", torch.float32),
        ("c", torch.float64),
        ("d", torch.float32),
    ]


LAYOUTS = {
    "scalar": torch.zeros(()),
    "plain": torch.zeros(2, 3),
    "transposed": torch.zeros(2, 3).t(),
    "images": torch.empty(2, 3, 4, 5, memory_format=torch.channels_last),
    "one channel": torch.empty(16, 1, 3, 3, memory_format=torch.channels_last),
    "one pixel": torch.empty(4, 5, 1, 1, memory_format=torch.channels_last),
    "turned": torch.zeros(2, 3, 4, 5, 6).permute(4, 1, 3, 0, 2),
    "bias of ten": torch.zeros(10),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_strides_of_a_tensor_that_fills_its_memory(name):
    assert dense_strides(LAYOUTS[name]) == LAYOUTS[name].stride()


def test_a_tensor_with_gaps_or_overlaps_gets_strides_of_its_own():
    assert dense_strides(torch.zeros(1, 3).expand(2, 3)) == (3, 1)
    assert dense_strides(torch.zeros(4, 6)[:, ::2]) == (3, 1)


def test_gradients_lie_as_their_parameters_and_alike_in_every_world():
    def layouts():
        rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        plan = BatchPlan(4, world, 1, 1, 1)
        model = nn.ParameterDict({name: nn.Parameter(value.clone()) for name, value in LAYOUTS.items()})
        reduction = InTreeOrder(model, 0, [plan.shard_range(r) for r in range(world)], rank)
        held = list(plan.shard_range(rank))
        for shard in held:
            share = Share(0, 1, 1, 4, shard == held[-1], range(shard, shard + 1))
            with reduction.micro_batch(share) as note:
                loss = sum((p * (shard + 1.0)).sum() for p in model.values())
                loss.backward()
                note(loss.detach())
        reduction.finish()
        grads = {name: p.grad for name, p in model.items()}
        assert all((g == 10).all() and g.data_ptr() % 64 == 0 for g in grads.values())
        return {name: (g.stride(), g.storage_offset()) for name, g in grads.items()}

    alone = layouts()
    assert {name: stride for name, (stride, _) in alone.items()} == {n: v.stride() for n, v in LAYOUTS.items()}
    assert simulate(3, layouts) == [alone] * 3
