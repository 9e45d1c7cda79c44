"""BatchNorm by shard is plain BatchNorm on each shard; over ranks it is plain BatchNorm on all their rows."""

import copy
import io
import pickle

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.swa_utils import AveragedModel

from launcher.processes.errors import SettingsError
from launcher.testing import simulate
from launcher.training.batchnorm import convert_batchnorm
from launcher.training.buffers import combine_buffers, running_statistics
from launcher.training.shard_batchnorm import ShardLayout, join_shards, split_shards
from launcher.training.wrap import wrap

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SHAPES = {
    "rows": (nn.BatchNorm1d, (3,)),
    "length": (nn.BatchNorm1d, (3, 5)),
    "image": (nn.BatchNorm2d, (3, 4, 5)),
    "volume": (nn.BatchNorm3d, (3, 2, 3, 2)),
    "any": (nn.SyncBatchNorm, (3, 4, 5)),
}
OPTIONS = [{}, {"momentum": None}, {"momentum": 0.0}, {"affine": False}, {"track_running_stats": False}, {"eps": 0.1}]


class WithForward(nn.BatchNorm2d):
    def forward(self, rows):
        return super().forward(rows).relu()


class WithDefaults(nn.BatchNorm2d):
    def __init__(self, channels):
        super().__init__(channels, eps=1e-3, momentum=0.03)

    def channels(self):
        return self.num_features


class Network(nn.Module):
    def __init__(self, channels=3):
        super().__init__()
        first = nn.BatchNorm2d(channels)
        self.features = nn.Sequential(nn.Conv2d(2, channels, 3), first, nn.ReLU(), nn.Conv2d(channels, channels, 1))
        self.again = first
        self.head = nn.Sequential(nn.Flatten(), nn.LazyLinear(4), nn.BatchNorm1d(4))

    def forward(self, rows):
        return self.head(self.again(self.features(rows)))


def random(*shape, dtype=torch.float64, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype) * 3 + 2


def layer_of(kind, dtype=torch.float64, **options):
    layer = kind(3, **options).to(dtype)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(random(3, dtype=dtype, seed=5))
        for buffer in running_statistics(layer):
            buffer.copy_(random(3, dtype=dtype, seed=6).abs())
    return layer


def plain_of(kind):
    """SyncBatchNorm stands for BatchNorm of any number of dimensions, but runs on no CPU."""
    return nn.BatchNorm2d if kind is nn.SyncBatchNorm else kind


def by_shard(layer, rows, count):
    assert convert_batchnorm(layer, "shard", CPU, ShardLayout(rows, count)) == 1
    return layer


def gradients(layer, rows, normal):
    """Of a sum in which every value has a weight of its own."""
    (normal * random(*normal.shape, dtype=normal.dtype, seed=7)).sum().backward()
    return [rows.grad, *(parameter.grad for parameter in layer.parameters())]


def one_shard_after_the_other(layer, rows, count):
    """Plain BatchNorm from the same running statistics for each shard; their average by rows stays."""
    normal, before = torch.empty_like(rows), [buffer.clone() for buffer in running_statistics(layer)]
    moved = [torch.zeros_like(buffer) for buffer in before]
    tracked = layer.num_batches_tracked
    for shard in range(count):
        for buffer, value in zip(running_statistics(layer), before, strict=True):
            buffer.data = value.clone()
        layer.num_batches_tracked = None if tracked is None else tracked.clone()
        normal[shard::count] = layer(rows[shard::count])
        moved = [
            total + value * len(rows[shard::count]) / len(rows)
            for total, value in zip(moved, running_statistics(layer), strict=True)
        ]
    for buffer, value in zip(running_statistics(layer), moved, strict=True):
        buffer.data = value
    return normal


@pytest.mark.parametrize(
    ("rows", "count", "pieces"),
    [
        (4, 1, [[[0], [1], [2], [3]]]),
        (4, 2, [[[0, 1], [2, 3]]]),
        (6, 3, [[[0, 1, 2], [3, 4, 5]]]),
        (5, 2, [[[0], [2], [4]], [[1], [3]]]),
        (8, 3, [[[0, 1], [3, 4], [6, 7]], [[2], [5]]]),
        (4, 3, [[[0], [3]], [[1, 2]]]),
    ],
)
def test_row_i_belongs_to_shard_i_modulo_the_shards(rows, count, pieces):
    split = split_shards(torch.arange(rows), count)
    assert [piece.tolist() for piece in split] == pieces
    assert join_shards(split).tolist() == list(range(rows))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(("rows", "count"), [(12, 3), (11, 3), (13, 4), (8, 2)])
@pytest.mark.parametrize("name", SHAPES)
def test_a_shard_is_normalised_as_if_it_were_alone(name, rows, count, options):
    kind, shape = SHAPES[name]
    layer, plain = by_shard(layer_of(kind, **options), rows, count), layer_of(plain_of(kind), **options)
    for forward in range(2):
        inputs = [random(rows, *shape, seed=forward).requires_grad_() for _ in range(2)]
        found, right = layer(inputs[0]), one_shard_after_the_other(plain, inputs[1], count)
        torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-12)
        for mine, its in zip(gradients(layer, inputs[0], found), gradients(plain, inputs[1], right), strict=True):
            torch.testing.assert_close(mine, its, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(layer.state_dict(), plain.state_dict(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(layer.eval()(inputs[0]), plain.eval()(inputs[1]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("rows", "count"), [(12, 3), (14, 4)])
def test_a_shard_has_the_same_bits_whichever_shards_are_beside_it(rows, count, channels_last):
    order = torch.channels_last if channels_last else torch.contiguous_format
    inputs = random(rows, 3, 7, 5, dtype=torch.float32).contiguous(memory_format=order)
    layer, plain = (layer_of(nn.BatchNorm2d, torch.float32) for _ in range(2))
    found = by_shard(layer, rows, count)(inputs)
    assert found.is_contiguous(memory_format=order)
    for shard in range(count):
        assert torch.equal(found[shard::count], plain(inputs[shard::count].contiguous(memory_format=order)))


@pytest.mark.parametrize(("order", "shape"), [(torch.channels_last, (3, 4, 5)), (torch.channels_last_3d, (3, 2, 3, 2))])
@pytest.mark.parametrize(("rows", "count"), [(12, 3), (11, 3)])
def test_the_memory_format_changes_nothing_and_stays(rows, count, order, shape):
    kind = nn.BatchNorm2d if len(shape) == 3 else nn.BatchNorm3d
    layers = [by_shard(layer_of(kind), rows, count) for _ in range(2)]
    inputs = [random(rows, *shape), random(rows, *shape).contiguous(memory_format=order)]
    outputs = [layer(x.requires_grad_()) for layer, x in zip(layers, inputs, strict=True)]
    assert outputs[1].is_contiguous(memory_format=order)
    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(*(gradients(*each) for each in zip(layers, inputs, outputs, strict=True)))
    torch.testing.assert_close(*(layer.state_dict() for layer in layers))


@pytest.mark.parametrize(("rows", "count"), [(6, 3), (5, 2)])
@pytest.mark.parametrize("channels_last", [False, True])
def test_gradients_by_shard_are_those_of_finite_differences(rows, count, channels_last):
    layer = by_shard(layer_of(nn.BatchNorm2d, track_running_stats=False), rows, count)
    inputs = random(rows, 3, 2, 2)
    if channels_last:
        inputs = inputs.contiguous(memory_format=torch.channels_last)

    def normalise(x, weight, bias):
        return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, x)

    arguments = (inputs, layer.weight.detach().clone(), layer.bias.detach().clone())
    assert torch.autograd.gradcheck(normalise, tuple(value.requires_grad_() for value in arguments))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rows_of_16_bits_keep_their_type_and_statistics_of_32(dtype):
    layer = by_shard(nn.BatchNorm2d(3), 9, 2)
    inputs = random(9, 3, 4, 4)
    found = layer(inputs.to(dtype))
    assert found.dtype == dtype
    right = one_shard_after_the_other(nn.BatchNorm2d(3).double(), inputs, 2)
    torch.testing.assert_close(found.double(), right, rtol=0.02, atol=0.05)
    assert layer.running_mean.dtype == torch.float32


def test_one_shard_evaluation_and_a_frozen_layer_are_plain():
    layer, plain, rows = by_shard(layer_of(nn.BatchNorm1d), 8, 1), layer_of(nn.BatchNorm1d), random(7, 3)
    assert torch.equal(layer(rows), plain(rows))
    layer.shards.count = 2
    assert torch.equal(layer.eval()(rows), plain.eval()(rows))
    torch.testing.assert_close(layer.state_dict(), plain.state_dict(), rtol=0, atol=0)


def test_a_layer_that_does_not_see_the_rows_is_named():
    model = nn.Sequential(nn.Flatten(0, 1), nn.BatchNorm1d(3))
    convert_batchnorm(model, "shard", CPU, ShardLayout(rows=4, count=2))
    message = (
        r"batchnorm=shard: layer 1 gets \(8, 3\) where the micro-batch has 4 rows in 2 shards: .*"
        "use batchnorm=local or batchnorm=sync, or batch.exact=true"
    )
    with pytest.raises(SettingsError, match=message):
        model(random(4, 2, 3, dtype=torch.float32))
    assert int(model[1].num_batches_tracked) == 0


def test_too_few_values_and_dimensions_are_torchs_own_errors():
    layer = by_shard(nn.BatchNorm1d(3), 2, 2)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        layer(random(2, 3, dtype=torch.float32))
    with pytest.raises(ValueError, match="expected 2D or 3D input"):
        layer(random(2, 3, 4, 4, dtype=torch.float32))


def network():
    model = Network()
    model(torch.zeros(2, 2, 4, 4))
    return model


@pytest.mark.parametrize(("how", "count"), [("local", 0), ("shard", 2), ("sync", 2)])
def test_conversion_leaves_the_model_as_it_is(how, count):
    model, seen = network(), []
    layer, state, ids = model.again, copy.deepcopy(model.state_dict()), [id(p) for p in model.parameters()]
    layer.register_forward_hook(lambda module, *_: seen.append(type(module).__name__))
    assert convert_batchnorm(model, how, CPU, ShardLayout(4, 2)) == count
    assert model.features[1] is model.again is layer
    assert isinstance(layer, nn.BatchNorm2d)
    assert isinstance(model.head[2], nn.BatchNorm1d)
    assert list(model.state_dict()) == list(state)
    assert [id(p) for p in model.parameters()] == ids
    torch.testing.assert_close(model.state_dict(), state, rtol=0, atol=0)
    model(random(4, 2, 4, 4, dtype=torch.float32))
    assert seen == [{"local": "BatchNorm2d", "shard": "ShardBatchNorm2d", "sync": "SyncBatchNorm2d"}[how]] * 2
    assert len(running_statistics(model)) == 4
    plain = network()
    plain.load_state_dict(model.state_dict())
    rows = random(3, 2, 4, 4, dtype=torch.float32)
    assert torch.equal(plain.eval()(rows), model.eval()(rows))


@pytest.mark.parametrize("how", ["shard", "sync"])
def test_copies_read_what_the_step_sets_and_pickles_are_free_of_it(how):
    model, shards, file = network(), ShardLayout(), io.BytesIO()
    convert_batchnorm(model, how, CPU, shards)
    shards.rows, shards.count = 6, 2
    rows, other_rows = random(6, 2, 4, 4, dtype=torch.float32), random(7, 2, 4, 4, dtype=torch.float32)
    torch.save(model, file)
    file.seek(0)
    loaded = [pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)]
    copies = [copy.deepcopy(model), AveragedModel(model).module]
    expected = model(rows)
    for other in copies:
        assert type(other.again) is type(model.again)
        assert other.again is other.features[1] is not model.again
        assert torch.equal(other(rows), expected)
    for other in loaded:
        assert type(other.again) is type(model.again)
        torch.testing.assert_close(other(other_rows), network_like(other)(other_rows))


def network_like(model):
    plain = network()
    plain.load_state_dict(model.state_dict())
    return plain


def test_a_class_that_only_adds_to_torchs_stays_what_it_is():
    model = nn.Sequential(WithDefaults(3))
    assert convert_batchnorm(model, "shard", CPU, ShardLayout(8, 2)) == 1
    assert isinstance(model[0], WithDefaults)
    assert (model[0].eps, model[0].momentum, model[0].channels()) == (1e-3, 0.03, 3)
    assert "ShardWithDefaults(3, eps=0.001" in repr(copy.deepcopy(model))


def test_other_layers_are_left_alone():
    model = nn.Sequential(nn.InstanceNorm2d(3, track_running_stats=True), nn.GroupNorm(1, 3), nn.LayerNorm(3))
    types = [type(layer) for layer in model]
    assert [convert_batchnorm(model, how, CPU, ShardLayout()) for how in ("local", "shard", "sync")] == [0, 0, 0]
    assert [type(layer) for layer in model] == types


@pytest.mark.parametrize("how", ["shard", "sync"])
@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (
            WithForward(3),
            "layer 1.0 is of class WithForward, whose forward is its own; use torch.nn.BatchNorm2d or batchnorm=local",
        ),
        (
            nn.LazyBatchNorm1d(),
            r"layer 1.0 is a LazyBatchNorm1d that has not seen its first rows; give it num_features .* or call",
        ),
    ],
)
def test_a_layer_that_cannot_be_converted_is_named_and_none_is_converted(how, layer, message):
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Sequential(layer))
    with pytest.raises(SettingsError, match=f"^batchnorm={how}: {message}"):
        convert_batchnorm(model, how, CPU, ShardLayout())
    assert type(model[0]) is nn.BatchNorm2d
    assert convert_batchnorm(model, "local", CPU, ShardLayout()) == 0


def test_a_forward_that_was_put_on_the_layer_is_its_own():
    layer = nn.BatchNorm1d(3)
    layer.forward = lambda rows: rows
    with pytest.raises(SettingsError, match="batchnorm=shard: layer model is of class BatchNorm1d, whose forward"):
        convert_batchnorm(layer, "shard", CPU, ShardLayout())


def test_an_unknown_word_is_refused():
    with pytest.raises(SettingsError, match="batchnorm=shards is not one of local, shard, sync; did you mean 'shard'"):
        convert_batchnorm(nn.BatchNorm1d(3), "shards", CPU, ShardLayout())


def test_on_cuda_sync_is_torchs_own():
    model = nn.Sequential(nn.BatchNorm1d(3), WithDefaults(3), nn.SyncBatchNorm(3))
    theirs = model[2]
    assert convert_batchnorm(model, "sync", CUDA, ShardLayout()) == 3
    assert all(isinstance(layer, nn.SyncBatchNorm) for layer in model)
    assert type(theirs) is nn.SyncBatchNorm
    assert isinstance(model[1], WithDefaults)
    assert [layer.process_group for layer in model] == [None] * 3
    again = pickle.loads(pickle.dumps(model))
    assert [type(layer) for layer in again] == [type(layer) for layer in model]


@pytest.mark.parametrize("kind", [nn.BatchNorm2d, nn.SyncBatchNorm])
def test_a_converted_layer_can_be_converted_again(kind):
    layer, rows = kind(3), random(4, 3, 2, 2, dtype=torch.float32)
    for how in ("sync", "shard", "shard", "sync"):
        assert convert_batchnorm(layer, how, CPU, ShardLayout(4, 2)) == 1
    torch.testing.assert_close(layer(rows), nn.BatchNorm2d(3)(rows))


SHARES = {2: [5, 2], 3: [1, 4, 2], 4: [3, 3, 2, 1]}
SYNC_CASES = [
    (name, options, channels_last)
    for name in SHAPES
    for options in OPTIONS
    for channels_last in ((False, True) if name == "image" else (False,))
]


def share(values, ranks, rank):
    start = sum(SHARES[ranks][:rank])
    return values[start : start + SHARES[ranks][rank]]


def over_ranks(ranks, dtype):
    """On a rank, for every case: output and gradient of its rows, gradients of the parameters, state."""
    rank, found = dist.get_rank(), []
    for name, options, channels_last in SYNC_CASES:
        kind, shape = SHAPES[name]
        layer, total = layer_of(kind, dtype, **options), sum(SHARES[ranks])
        assert convert_batchnorm(layer, "sync", CPU, ShardLayout(total, 2)) == 1
        weights = random(total, *shape, dtype=dtype, seed=7)
        for forward in range(2):
            rows = share(random(total, *shape, dtype=dtype, seed=forward), ranks, rank)
            if channels_last:
                rows = rows.contiguous(memory_format=torch.channels_last)
            normal = layer(rows.requires_grad_())
            layer.zero_grad()
            (normal * share(weights, ranks, rank)).sum().backward()
        if channels_last:
            assert normal.is_contiguous(memory_format=torch.channels_last)
        parameters = [parameter.grad for parameter in layer.parameters()]
        found.append((normal.detach(), rows.grad, parameters, layer.state_dict()))
    return found


def on_one(name, options, dtype, total):
    """The same with plain BatchNorm and all rows."""
    kind, shape = SHAPES[name]
    layer = layer_of(plain_of(kind), dtype, **options)
    for forward in range(2):
        rows = random(total, *shape, dtype=dtype, seed=forward).requires_grad_()
        normal = layer(rows)
        layer.zero_grad()
        (normal * random(total, *shape, dtype=dtype, seed=7)).sum().backward()
    return normal.detach(), rows.grad, [p.grad for p in layer.parameters()], layer.state_dict()


@pytest.mark.parametrize(
    ("ranks", "dtype"), [(2, torch.float64), (3, torch.float64), (4, torch.float64), (3, torch.float32)]
)
def test_over_ranks_is_plain_batchnorm_on_all_rows(ranks, dtype):
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    found = simulate(ranks, over_ranks, ranks, dtype)
    for number, (name, options, _) in enumerate(SYNC_CASES):
        normal, of_rows, of_parameters, state = on_one(name, options, dtype, sum(SHARES[ranks]))
        outputs, row_gradients, parameter_gradients, states = zip(*(rank[number] for rank in found), strict=True)

        def close(mine, its, case=(name, options)):
            torch.testing.assert_close(mine, its, rtol=tolerance, atol=tolerance * 10, msg=lambda m: f"{case}: {m}")

        close(torch.cat(outputs), normal)
        close(torch.cat(row_gradients), of_rows)
        close([sum(parts) for parts in zip(*parameter_gradients, strict=True)], of_parameters)
        for each in states:
            close(dict(each), dict(state))
            torch.testing.assert_close(dict(each), dict(states[0]), rtol=0, atol=0)


def test_over_ranks_a_mean_far_from_zero_costs_no_digits_and_16_bits_are_summed_in_32():
    def train():
        rank = dist.get_rank()
        found = []
        for offset, dtype in ((1e4, torch.float32), (0.0, torch.bfloat16), (0.0, torch.float16)):
            layer = nn.BatchNorm2d(3, momentum=1.0)
            convert_batchnorm(layer, "sync", CPU, ShardLayout())
            rows = share(random(9, 3, 8, 8, dtype=torch.float32) + offset, 4, rank).to(dtype).requires_grad_()
            normal = layer(rows)
            normal.float().square().sum().backward()
            found.append((normal.dtype, rows.grad.dtype, layer.running_mean - offset, layer.running_var))
        return found

    rows = random(9, 3, 8, 8)
    variance, mean = torch.var_mean(rows, (0, 2, 3))
    for found in simulate(4, train):
        for (of_rows, of_gradient, its_mean, its_variance), dtype, tolerance in zip(
            found, (torch.float32, torch.bfloat16, torch.float16), (2e-3, 5e-3, 1e-3), strict=True
        ):
            assert of_rows == of_gradient == dtype
            assert its_variance.dtype == torch.float32
            torch.testing.assert_close(its_mean.double(), mean, rtol=tolerance, atol=tolerance)
            torch.testing.assert_close(its_variance.double(), variance, rtol=tolerance, atol=0)


def test_over_ranks_corners():
    def corners():
        rank = dist.get_rank()
        layer = nn.BatchNorm1d(3)
        convert_batchnorm(layer, "sync", CPU, ShardLayout())
        empty = layer(random(rank and 4, 3, dtype=torch.float32))
        messages = []
        for rows in (random(rank, 3, dtype=torch.float32), random(2, 3, 4, 4, dtype=torch.float32)):
            with pytest.raises(ValueError, match=r"value per channel|expected 2D") as error:
                layer(rows)
            messages.append(str(error.value))
        half = [dist.new_group([number]) for number in range(2)][rank]
        grouped = nn.SyncBatchNorm(3, process_group=half)
        convert_batchnorm(grouped, "sync", CPU, ShardLayout())
        rows = random(3 + rank, 3, 2, dtype=torch.float32)
        alone = torch.allclose(grouped(rows), nn.BatchNorm1d(3)(rows), atol=1e-6)
        layer.eval()
        evaluated = [layer(random(2, 3, dtype=torch.float32)) for _ in range(rank)]  # not a collective
        return len(empty), layer.running_mean, messages, alone, len(evaluated)

    mean = 0.1 * random(4, 3, dtype=torch.float32).mean(0)
    for rank, (rows, running, messages, alone, evaluated) in enumerate(simulate(2, corners)):
        assert (rows, alone, evaluated) == (4 * rank, True, rank)
        torch.testing.assert_close(running, mean)
        assert messages[0] == "1 value per channel on all ranks together: training BatchNorm needs more than 1"
        assert messages[1] == "expected 2D or 3D input (got 4D input)"


def test_models_train_under_distributed_data_parallel():
    def train(how):
        rank, shards = dist.get_rank(), ShardLayout()
        torch.manual_seed(3)
        model = network().double()
        convert_batchnorm(model, how, CPU, shards)
        wrapped, optimizer = wrap(model, False, {}, CPU), torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            rows = random(12, 2, 4, 4, seed=step)[rank :: dist.get_world_size()]
            shards.rows, shards.count = len(rows), 6 // dist.get_world_size()
            (wrapped(rows) ** 3).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        combine_buffers(model, 1 / dist.get_world_size())
        return model.state_dict()

    for how in ("shard", "sync"):
        one, *more = (simulate(ranks, train, how)[0] for ranks in (1, 2, 3))
        for state in more:
            torch.testing.assert_close(state, one, rtol=1e-10, atol=1e-10)
