"""Weights in a file that others read."""

import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from launcher.checkpoints import export, store
from launcher.checkpoints.export import export_weights
from tests.launcher.command import Line, in_turn, launch
from tests.launcher.survivor import SURVIVOR, contents


def test_the_weights_of_the_end_are_exported_also_when_that_is_asked_for_later(tmp_path):
    words = (*SURVIVOR, "checkpoint.export=safetensors")
    whole, _, later = in_turn(
        Line(tmp_path / "whole", words), Line(tmp_path / "later", SURVIVOR), Line(tmp_path / "later", words)
    )
    assert f"weights for others: {whole.run_dir}/model.safetensors\n" in whole.output
    kept = store.read(whole.run_dir / "checkpoints" / "step_00000006", "model.pt")
    (tmp_path / "model.pt").write_bytes(kept)
    wanted = torch.load(tmp_path / "model.pt", weights_only=True)
    found = load_file(whole.run_dir / "model.safetensors")
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], value) for name, value in wanted.items())
    assert "nothing is left to do" in later.output
    assert contents(later.run_dir)["model.safetensors"] == contents(whole.run_dir)["model.safetensors"]


def test_an_exported_file_is_loaded(tmp_path):
    place = f"{tmp_path}/first/run/model.safetensors"
    load = ("mode=evaluate", f"checkpoint.load={place}")
    words = (*SURVIVOR, "checkpoint.export=safetensors")
    run, loaded, without, damaged = in_turn(
        Line(tmp_path / "first", words),
        Line(tmp_path / "loaded", (*SURVIVOR, *load)),
        Line(tmp_path / "without", (*SURVIVOR, *load), without_the_package),
        Line(tmp_path / "damaged", (*SURVIVOR, *load), lambda: (with_the_package(), Path(place).write_bytes(b"x"))),
    )
    assert loaded.state["weights_sha256"] == run.state["weights_sha256"]
    remedy = "needs the package safetensors: pip install 'evenshard[export]'"
    assert without.error == f"error: checkpoint.load={place} {remedy}\n"
    assert damaged.error.startswith(f"error: checkpoint.load={place}: cannot be read: ")
    assert (loaded.status, without.status, damaged.status) == (0, 2, 2)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)
        self.last.weight = self.first.weight
        self.images = nn.Conv2d(2, 2, 3).to(memory_format=torch.channels_last)
        self.register_buffer("count", torch.tensor(3))

    def get_extra_state(self):
        return {"seen": 1}

    def set_extra_state(self, state):
        pass


def test_tied_and_oddly_laid_out_tensors_are_written_plainly(tmp_path, caplog):
    model = Tied()
    found = load_file(export_weights(model, tmp_path))
    state = {name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    assert found.keys() == state.keys()
    for name, value in state.items():
        assert torch.equal(found[name], value)
        assert found[name].is_contiguous()
    assert caplog.messages == ["model.safetensors holds tensors alone, and not _extra_state"]
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    save_file(found, tmp_path / "again.safetensors")


def test_a_wrong_export_is_refused_before_training(tmp_path):
    wrong = launch(tmp_path / "wrong", 1, *SURVIVOR, "checkpoint.export=onnx")
    assert wrong.error == "error: checkpoint.export=onnx is not one of null, safetensors\n"
    without = launch(tmp_path / "without", 1, *SURVIVOR, "checkpoint.export=safetensors", before=without_the_package)
    assert without.status == 2
    assert without.error == (
        "error: checkpoint.export=safetensors needs the package safetensors: pip install 'evenshard[export]'\n"
    )
    assert without.state["step"] == 0


def with_the_package():
    export.find_spec = find_spec


def without_the_package():
    export.find_spec = lambda name: None if name == "safetensors" else sys.modules[name].__spec__
