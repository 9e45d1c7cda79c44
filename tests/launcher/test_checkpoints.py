"""What is kept is whole or not there, and what is loaded is never run."""

import hashlib
import os
import pickle
import shutil
import struct

import pytest
import torch
from torch import nn

from launcher.checkpoints import store
from launcher.checkpoints.load import load_weights
from launcher.checkpoints.state import WEIGHTS, weights_sha256, weights_to_bytes
from launcher.processes.errors import SettingsError
from tests.launcher.command import TINY, launch


def model(seed=0, features=3):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(features, 2), nn.BatchNorm1d(2))


def save_weights(root, step, kept):
    return store.save(root, step, {WEIGHTS: weights_to_bytes(kept)})


def test_a_generation_is_read_as_it_was_written(tmp_path):
    folder = store.save(tmp_path / "checkpoints", 120, {"a": b"alpha", "b": b""})
    assert folder == tmp_path / "checkpoints" / "step_00000120"
    assert (store.read(folder, "a"), store.read(folder, "b")) == (b"alpha", b"")
    assert list((tmp_path / "checkpoints").iterdir()) == [folder]


def test_generations_come_newest_first_and_a_step_that_is_kept_again_is_replaced(tmp_path):
    for step in (9, 100, 20, 20):
        store.save(tmp_path, step, {"a": str(step).encode()})
    assert [folder.name for folder in store.generations(tmp_path)] == [
        "step_00000100",
        "step_00000020",
        "step_00000009",
    ]


@pytest.mark.parametrize(
    ("step", "keep", "left"),
    [(30, 2, [20, 30]), (30, 1, [30]), (30, 9, [10, 20, 30]), (20, 2, [10, 20]), (10, 2, [10])],
)
def test_old_generations_are_removed_and_those_that_the_run_went_back_behind(tmp_path, step, keep, left):
    for kept in (10, 20, 30):
        store.save(tmp_path, kept, {})
    store.prune(tmp_path, step, keep)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step_{kept:08d}" for kept in left]


def test_one_that_makes_way_stays_while_it_is_the_newest_or_the_best_and_a_copy_by_another_name_is_left_alone(tmp_path):
    found = []
    (tmp_path / "step_00000010.copy").mkdir()
    for step in (5, 10, 15, 20, 25, 30):
        store.save(tmp_path, step, {})
        store.prune(tmp_path, step, 2, 15, makes_way=lambda step: step % 10 == 5)
        found.append([int(path.name[5:]) for path in store.generations(tmp_path)])
    assert found == [[5], [10], [15, 10], [20, 15, 10], [25, 20, 15], [30, 20, 15]]
    assert (tmp_path / "step_00000010.copy").exists()


def test_what_dead_writers_left_is_swept(tmp_path):
    whole = store.save(tmp_path, 10, {"a": b"alpha"})
    (tmp_path / ".part_00000020_123").mkdir()
    (tmp_path / ".part_00000020_123" / "a").write_bytes(b"al")
    store.sweep(tmp_path)
    store.sweep(tmp_path / "nothing")
    assert list(tmp_path.iterdir()) == [whole]


def test_a_path_may_mean_a_run_folder_its_checkpoints_or_one_of_them(tmp_path):
    run = tmp_path / "step_by_step"
    found = [store.save(run / "checkpoints", step, {}) for step in (2, 1)]
    assert store.candidates(run) == store.candidates(run / "checkpoints") == found
    assert store.candidates(found[1]) == [found[1]]
    (found[1] / "manifest.json").unlink()
    assert store.candidates(found[1]) == [found[1]]
    assert store.candidates(tmp_path / "nothing") == []


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


DAMAGES = {
    "a flipped bit": (lambda folder: flip(folder / "model.pt"), "the content is not what was written"),
    "a lost byte": (lambda folder: truncate(folder / "model.pt"), r"bytes, \d+ were written"),
    "a lost file": (lambda folder: (folder / "model.pt").unlink(), "FileNotFoundError"),
    "a lost manifest": (lambda folder: (folder / "manifest.json").unlink(), "FileNotFoundError"),
    "half a manifest": (lambda folder: truncate(folder / "manifest.json"), "JSONDecodeError"),
    "another manifest": (lambda folder: (folder / "manifest.json").write_text("[]"), "TypeError"),
    "an empty manifest": (lambda folder: (folder / "manifest.json").write_text("{}"), "KeyError"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_generation_is_passed_over_for_an_older_one(tmp_path, damage):
    spoil, message = DAMAGES[damage]
    old, new = model(1), model(2)
    save_weights(tmp_path / "checkpoints", 10, old)
    spoil(save_weights(tmp_path / "checkpoints", 20, new))
    found = model(3)
    assert load_weights(found, str(tmp_path)).endswith("step_00000010")
    assert weights_sha256(found) == weights_sha256(old)
    shutil.rmtree(tmp_path / "checkpoints" / "step_00000010")
    with pytest.raises(SettingsError, match=f"checkpoint.load={tmp_path}: no whole checkpoint: .*{message}"):
        load_weights(found, str(tmp_path))


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


def foreign(folder):
    """Files that are no weights of the linear model, and what is said about each."""
    torch.save({"weight": torch.zeros(3, 5), "bias": torch.zeros(3)}, folder / "shape.pt")
    torch.save({"weight": torch.zeros(3, 4), "scale": torch.zeros(3)}, folder / "names.pt")
    torch.save([torch.zeros(3)], folder / "list.pt")
    torch.save({"weight": Bomb()}, folder / "bomb.pt")
    (folder / "pickle.pt").write_bytes(pickle.dumps(Bomb()))
    (folder / "text.pt").write_text("no weights")
    (folder / "empty.pt").write_bytes(b"")
    (folder / "folder.pt").mkdir()
    torch.save({"weight": torch.zeros(3, 4), "bias": torch.zeros(3)}, folder / "cut.pt")
    truncate(folder / "cut.pt")


FOREIGN = {
    "shape": "weights of another model: weight is (3, 5) there, (3, 4) here",
    "names": "weights of another model: it lacks bias; the model lacks scale",
    "list": "holds list, not a state dict of tensors",
    "bomb": "cannot be read: ",
    "pickle": "cannot be read: ",
    "text": "cannot be read: ",
    "empty": "cannot be read: ",
    "cut": "cannot be read: ",
    "folder": "no whole checkpoint: nothing is kept there",
    "missing": "there is no such file or folder",
}


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("mode", ["evaluate", "train"])
def test_what_is_no_weights_of_this_model_is_refused(tmp_path, mode, name):
    foreign(tmp_path)
    done = launch(tmp_path, 2, *TINY, f"mode={mode}", f"checkpoint.load={name}.pt")
    assert done.status == 2
    assert done.error.startswith(f"error: checkpoint.load={tmp_path}/{name}.pt: {FOREIGN[name]}")
    assert done.error.count("\n") == 1
    assert not (tmp_path / "exploded").exists()


def test_training_starts_from_the_weights_that_are_loaded(tmp_path):
    torch.save({"weight": torch.ones(3, 4), "bias": torch.zeros(3)}, tmp_path / "ones.pt")
    done = launch(tmp_path, 2, *TINY, "checkpoint.load=ones.pt", "trainer.max_steps=1", "optimizer.lr=0")
    kept = nn.Linear(4, 3)
    load_weights(kept, str(done.run_dir))
    assert torch.equal(kept.weight, torch.ones(3, 4))
    assert f"weights from {tmp_path}/ones.pt\n" in done.output


def test_the_digest_is_over_names_types_shapes_and_little_endian_bytes():
    layer = nn.BatchNorm1d(2)
    layer.running_mean.copy_(torch.tensor([0.5, -3.0]))
    layer.num_batches_tracked.fill_(258)
    digest = hashlib.sha256()
    for name, kind, shape, content in (
        ("bias", "torch.float32", "(2,)", struct.pack("<2f", 0, 0)),
        ("num_batches_tracked", "torch.int64", "()", struct.pack("<q", 258)),
        ("running_mean", "torch.float32", "(2,)", struct.pack("<2f", 0.5, -3)),
        ("running_var", "torch.float32", "(2,)", struct.pack("<2f", 1, 1)),
        ("weight", "torch.float32", "(2,)", struct.pack("<2f", 1, 1)),
    ):
        digest.update(f"{name} {kind} {shape}".encode())
        digest.update(content)
    assert weights_sha256(layer) == digest.hexdigest()


def test_the_digest_tells_models_apart_and_knows_any_number_format():
    assert weights_sha256(model(1)) != weights_sha256(model(2))
    assert weights_sha256(model(1).bfloat16()) != weights_sha256(model(1))
    assert weights_sha256(model(1)) == weights_sha256(model(1))
