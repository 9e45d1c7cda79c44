"""ResNet-18 on CIFAR-10, from files in the format of its authors that the test writes."""

import io
import pickle
import struct
from typing import ClassVar

import numpy as np
import pytest
import torch
import torchvision

from launcher.data.cifar10 import MEAN, STD, cifar10
from launcher.models.resnet import resnet18
from tests.launcher.command import launch

TRAIN_ROWS, TEST_ROWS = 64, 6
FEW = (
    "experiment=resnet18_cifar10",
    "data.workers=0",
    "batch.global_size=4",
    "batch.min_per_device=2",
    "trainer.max_steps=2",
    "launch.threads_per_rank=1",
)


class Python2Pickler(pickle._Pickler):
    """Writes bytes as Python 2 wrote its strings, which is how the published files were made."""

    def save_bytes(self, value):
        short = len(value) < 256
        size = bytes([len(value)]) if short else struct.pack("<i", len(value))
        self.write((pickle.SHORT_BINSTRING if short else pickle.BINSTRING) + size + value)

    dispatch: ClassVar = {**pickle._Pickler.dispatch, bytes: save_bytes}


def write(path, value):
    content = io.BytesIO()
    Python2Pickler(content, protocol=2).dump(value)
    path.write_bytes(content.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"))


def rows_of(number, count):
    generator = np.random.default_rng(number)
    return {
        b"batch_label": f"batch {number}".encode(),
        b"labels": generator.integers(0, 10, count).tolist(),
        b"data": generator.integers(0, 256, (count, 3072), dtype=np.uint8),
        b"filenames": [f"image_{i}.png".encode() for i in range(count)],
    }


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    for number in range(1, 6):
        write(folder / f"data_batch_{number}", rows_of(number, TRAIN_ROWS))
    write(folder / "test_batch", rows_of(6, TEST_ROWS))
    names = b"airplane automobile bird cat deer dog frog horse ship truck".split()
    write(folder / "batches.meta", {b"num_cases_per_batch": TRAIN_ROWS, b"label_names": names, b"num_vis": 3072})
    return root


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "resnet18.pth"
    torch.manual_seed(0)
    torch.save(torchvision.models.resnet18().state_dict(), path)
    return path


def test_the_files_become_normalised_images_and_classes(root):
    dataset = cifar10(str(root), train=True)
    assert len(dataset) == 5 * TRAIN_ROWS
    image, label = dataset[TRAIN_ROWS]
    written = rows_of(2, TRAIN_ROWS)
    expected = torch.from_numpy(written[b"data"][0]).view(3, 32, 32) / 255
    assert label == written[b"labels"][0]
    torch.testing.assert_close(image * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None], expected)


def test_augmentation_and_size_keep_the_shape(root):
    assert cifar10(str(root), size=40, augment=True)[0][0].shape == (3, 40, 40)


@pytest.mark.parametrize("world_size", [1, 2])
def test_two_steps_at_32_pixels(tmp_path, root, world_size):
    done = launch(tmp_path, world_size, *FEW, f"data.root={root}")
    assert done.status == 0, done.error
    assert (done.state["state"], done.state["step"], done.state["world_size"]) == ("finished", 2, world_size)
    assert done.values("test/rows") == [TEST_ROWS]
    assert np.isfinite(done.values("test/loss")).all()
    assert "WARNING" not in done.log(0)


def test_steps_at_224_pixels_with_workers(tmp_path, root):
    words = ("vars.size=224", "model.small_images=false", "data.workers=1")
    done = launch(tmp_path, 2, *FEW, *words, f"data.root={root}")
    assert done.status == 0, done.error
    assert done.state["rows"] == 8
    assert done.values("test/rows") == [TEST_ROWS]


def parts_that_differ(state, given):
    learned = [name for name in given if name.endswith(("weight", "bias"))]
    return {name.split(".")[0] for name in learned if not torch.equal(state[name], given[name])}


@pytest.mark.parametrize(("small_images", "parts"), [(True, {"conv1", "fc"}), (False, {"fc"})])
def test_weights_are_taken_where_they_fit(weights, small_images, parts):
    model = resnet18(10, str(weights), small_images=small_images)
    assert parts_that_differ(model.state_dict(), torch.load(weights, weights_only=True)) == parts


def test_training_starts_from_local_weights(tmp_path, root, weights):
    done = launch(tmp_path, 1, *FEW, f"data.root={root}", f"model.weights={weights}", "optimizer.lr=0")
    assert done.status == 0, done.error
    saved = torch.load(done.run_dir / "checkpoints/step_00000002/model.pt", weights_only=True)
    assert parts_that_differ(saved, torch.load(weights, weights_only=True)) == {"conv1", "fc"}


def test_without_data_the_message_says_where_to_put_it(tmp_path):
    done = launch(tmp_path, 2, *FEW, "data.root=nothing/here")
    assert done.status == 2
    folder = tmp_path / "nothing/here"
    assert f"no CIFAR-10 in data.root={folder}: unpack cifar-10-python.tar.gz so that" in done.error
    assert f"{folder}/cifar-10-batches-py/data_batch_1 exists" in done.error
    assert "vars.download=true" in done.error
    assert "Traceback" not in done.output + done.error


def test_without_weights_the_message_says_what_to_give(tmp_path, root):
    done = launch(tmp_path, 2, *FEW, f"data.root={root}", "model.weights=here.pth")
    assert done.status == 2, done.error
    assert done.error.startswith("error: model: launcher.models.resnet.resnet18 refuses: ValueError: weights=here.pth")
    assert "there is no such file; give a state dict of torchvision's resnet18, `download` or null" in done.error
    assert done.error.count("here.pth") == 1


def test_weights_that_cannot_be_used_are_named(tmp_path):
    unreadable, other = tmp_path / "unreadable.pth", tmp_path / "other.pth"
    unreadable.write_bytes(b"no weights")
    torch.save(torch.nn.Linear(2, 2).state_dict(), other)
    with pytest.raises(ValueError, match=r"weights=.*/unreadable.pth: cannot be read as a state dict"):
        resnet18(weights=str(unreadable))
    with pytest.raises(ValueError, match=r"weights=.*/other.pth: holds other names than a state dict"):
        resnet18(weights=str(other))
