"""The rows that ship: in memory, the digits, and CIFAR-10 in the files of its authors."""

import pickle

import numpy as np
import pytest
import torch

from launcher.data.cifar10 import cifar10
from launcher.data.digits import digits
from launcher.data.loaders import loader
from launcher.data.memory import InMemory
from launcher.models.resnet import resnet18
from tests.launcher.command import launch


def test_a_batch_in_memory_is_fetched_at_once():
    rows = InMemory(torch.arange(10), torch.arange(10) * 2)
    assert len(rows) == 10
    assert rows[3] == (torch.tensor(3), torch.tensor(6))
    inputs, target = rows.__getitems__([4, 0, 4])
    assert (inputs.tolist(), target.tolist()) == ([4, 0, 4], [8, 0, 8])


@pytest.mark.parametrize(("tensors", "found"), [((3, 4), r"\[3, 4\]"), ((), r"\[\]")])
def test_tensors_of_different_length_are_refused(tensors, found):
    with pytest.raises(ValueError, match=f"tensors have {found} rows: give one or more of the same length"):
        InMemory(*(torch.zeros(n) for n in tensors))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_gives_the_chosen_rows_and_leaves_the_callers_random_state(workers):
    before = torch.get_rng_state()
    batches = loader(InMemory(torch.arange(6)), [[5, 1], [2]], workers, torch.device("cpu"), seed=0)
    assert [batch[0].tolist() for batch in batches] == [[5, 1], [2]]
    assert torch.equal(torch.get_rng_state(), before)


def test_the_digits_are_split_once_and_for_all():
    train, test = digits(), digits(train=False)
    assert (len(train), len(test)) == (1437, 360)
    images, classes = train.tensors
    assert (images.shape, images.dtype, classes.dtype) == ((1437, 1, 8, 8), torch.float32, torch.int64)
    assert (float(images.min()), float(images.max())) == (0, 1)
    assert len(torch.unique(torch.cat([train.tensors[0], test.tensors[0]]).flatten(1), dim=0)) == 1797
    assert test.tensors[1][:5].tolist() == digits(train=False).tensors[1][:5].tolist()


@pytest.fixture(scope="module")
def cifar(tmp_path_factory):
    """CIFAR-10 with few rows, in its real file format."""
    root = tmp_path_factory.mktemp("data")
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    stream = np.random.default_rng(0)
    for name, rows in (*((f"data_batch_{number}", 8) for number in range(1, 6)), ("test_batch", 6)):
        content = {
            b"data": stream.integers(0, 256, (rows, 3072), dtype=np.uint8),
            b"labels": [int(label) for label in stream.integers(0, 10, rows)],
        }
        (folder / name).write_bytes(pickle.dumps({key.decode(): value for key, value in content.items()}))
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names}))
    return root


@pytest.mark.parametrize("size", [32, 48])
def test_cifar10_is_read_from_its_files(cifar, size):
    train, test = cifar10(str(cifar), size=size, augment=True), cifar10(str(cifar), train=False, size=size)
    assert (len(train), len(test)) == (40, 6)
    image, label = test[0]
    assert (image.shape, image.dtype) == ((3, size, size), torch.float32)
    assert 0 <= label < 10


def test_cifar10_that_is_missing_tells_where_to_put_it(tmp_path):
    done = launch(tmp_path, 2, "experiment=resnet18_cifar10", "data.root=elsewhere")
    assert done.status == 2
    assert f"no CIFAR-10 in data.root={tmp_path}/elsewhere: unpack cifar-10-python.tar.gz so that" in done.error
    assert "vars.download=true" in done.error
    assert "Traceback" not in done.error


def test_resnet18_trains_on_cifar10(tmp_path, cifar):
    words = ("batch.global_size=8", "batch.min_per_device=2", "trainer.max_steps=1", "data.workers=0")
    done = launch(tmp_path, 2, "experiment=resnet18_cifar10", f"data.root={cifar}", "vars.size=16", *words)
    assert done.status == 0, done.error
    assert done.values("test/rows") == [6]


def test_weights_of_ones_own_are_taken_but_for_layers_of_another_shape(tmp_path):
    torch.manual_seed(0)
    torch.save(resnet18(classes=1000).state_dict(), tmp_path / "weights.pt")
    kept = torch.load(tmp_path / "weights.pt", weights_only=True)
    found = resnet18(classes=10, weights=str(tmp_path / "weights.pt"), small_images=True).state_dict()
    assert torch.equal(found["layer1.0.conv1.weight"], kept["layer1.0.conv1.weight"])
    assert found["fc.weight"].shape == (10, 512)
    assert found["conv1.weight"].shape == (64, 3, 3, 3)


def test_weights_that_are_missing_are_named():
    with pytest.raises(ValueError, match=r"^weights=none\.pt: there is no such file; give a state dict"):
        resnet18(weights="none.pt")
