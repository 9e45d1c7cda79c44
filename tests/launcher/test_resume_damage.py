"""What is kept may be damaged, forged or something else: the newest whole checkpoint counts, and nothing is run."""

import io
import json
import os
import pickle
import shutil
from functools import partial
from hashlib import sha256

import torch

from launcher.checkpoints import store
from tests.launcher.command import Line, in_turn
from tests.launcher.survivor import SURVIVOR, back_to, facts, forge, lines_without_speed


def flip(path, place=0.5):
    content = bytearray(path.read_bytes())
    content[int(len(content) * place)] ^= 1
    path.write_bytes(content)


def truncate(path, part):
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])


def empty(folder):
    shutil.rmtree(folder)
    folder.mkdir()


def each_of(names, spoil):
    return {f"{name}: {word}": partial(do, name=name) for name in names for word, do in spoil.items()}


SPOILING = {
    "emptied": lambda folder, name: (folder / name).write_bytes(b""),
    "cut at 10 %": lambda folder, name: truncate(folder / name, 0.1),
    "cut at 50 %": lambda folder, name: truncate(folder / name, 0.5),
    "cut at 99.9 %": lambda folder, name: truncate(folder / name, 0.999),
    "a bit flipped": lambda folder, name: flip(folder / name),
    "lost": lambda folder, name: (folder / name).unlink(),
}

DAMAGES = {
    **each_of(("model.pt", "training.pt", "run.json", "manifest.json"), SPOILING),
    "an empty folder": empty,
}


def test_a_damaged_checkpoint_is_passed_over_with_a_word(tmp_path):
    def spoiled(damage, folder):
        back_to(4, tmp_path / "whole", folder)
        damage(folder / "run" / "checkpoints" / "step_00000004")

    folders = {name: tmp_path / str(number) for number, name in enumerate(DAMAGES)}
    whole, *continued = in_turn(
        Line(tmp_path / "whole", SURVIVOR),
        *(Line(folder, SURVIVOR, partial(spoiled, DAMAGES[name], folder)) for name, folder in folders.items()),
    )
    for name, done in zip(DAMAGES, continued, strict=True):
        assert done.status == 0, (name, done.error)
        assert done.state["weights_sha256"] == whole.state["weights_sha256"], name
        assert lines_without_speed(done) == lines_without_speed(whole), name
        damaged, older = (done.run_dir / "checkpoints" / f"step_0000000{step}" for step in (4, 3))
        assert f"warning: a checkpoint is passed over for an older one: {damaged}" in done.output, name
        assert f"resumed from     {older}: step 3," in done.output, name


def test_where_no_checkpoint_is_whole_each_is_told_and_nothing_deleted(tmp_path):
    def spoiled():
        back_to(2, tmp_path / "whole", tmp_path / "spoiled")
        root = tmp_path / "spoiled" / "run" / "checkpoints"
        (root / "step_00000001" / "model.pt").unlink()
        truncate(root / "step_00000002" / "training.pt", 0.5)

    done = in_turn(Line(tmp_path / "whole", SURVIVOR), Line(tmp_path / "spoiled", SURVIVOR, spoiled))[1]
    root = done.run_dir / "checkpoints"
    assert done.status == 2
    assert done.error.startswith(
        f"error: checkpoint.resume=auto: {root}: no whole checkpoint: {root}/step_00000002/training.pt: "
    )
    assert f"; {root}/step_00000001: FileNotFoundError: " in done.error
    assert done.error.count("\n") == 1
    assert sorted(path.name for path in root.iterdir()) == ["step_00000001", "step_00000002"]


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


def saved(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def newer_manifest(folder):
    entries = json.loads((folder / "manifest.json").read_text())
    del entries["sha256"]
    entries["version"] = 2
    digest = sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps({**entries, "sha256": digest}))


def without_training(folder):
    for generation in store.generations(folder.parent):
        store.save(folder.parent, int(generation.name[5:]), {"model.pt": store.read(generation, "model.pt")})


FOREIGN = {
    "a pickled object": (
        lambda folder: forge(folder, training_pt=saved({"optimizer": Bomb()})),
        "training.pt: cannot be read: it is damaged, or holds more ",
    ),
    "a pickle": (
        lambda folder: forge(folder, model_pt=pickle.dumps(Bomb())),
        "model.pt: cannot be read: it is damaged, or holds more ",
    ),
    "a list": (lambda folder: forge(folder, model_pt=saved([1])), "holds list, not a state dict of tensors"),
    "a text": (lambda folder: forge(folder, training_pt=b"text"), "training.pt: cannot be read: "),
    "no optimizer": (lambda folder: forge(folder, training_pt=saved({})), "its state does not fit SGD and the sched"),
    "no facts": (lambda folder: forge(folder, run_json=b"{}"), "run.json cannot be read: KeyError: 'version'"),
    "newer facts": (
        lambda folder: forge(folder, run_json=facts(folder, version=2)),
        "run.json has format version 2, this version of evenshard reads up to 1",
    ),
    "newer position": (
        lambda folder: forge(folder, run_json=facts(folder, sampler={"n": 26, "version": 2})),
        "state has version=2, this sampler reads version=1",
    ),
    "a newer manifest": (newer_manifest, "has format version 2, this version of evenshard reads up to 1"),
    "weights alone": (without_training, "no whole checkpoint: "),
}


def test_what_is_no_checkpoint_of_this_version_is_refused(tmp_path):
    def forged(change, folder):
        back_to(2, tmp_path / "whole", folder)
        change(folder / "run" / "checkpoints" / "step_00000002")

    folders = {name: tmp_path / str(number) for number, name in enumerate(FOREIGN)}
    whole, *found = in_turn(
        Line(tmp_path / "whole", SURVIVOR),
        *(Line(folder, SURVIVOR, partial(forged, FOREIGN[name][0], folder)) for name, folder in folders.items()),
    )
    for name, done in zip(FOREIGN, found, strict=True):
        assert done.status == 2, name
        assert done.error.startswith(f"error: checkpoint.resume=auto: {done.run_dir}/checkpoints"), done.error
        assert FOREIGN[name][1] in done.error
        assert done.error.count("\n") == 1
        assert not (done.run_dir / "exploded").exists()
        assert done.metrics == whole.metrics


PATHS = {
    "nowhere": "there is no such folder",
    "file": "is a file; checkpoint.load takes files of weights",
    "empty": "nothing is kept there; give a run folder, its checkpoints/, or one of those",
}


def test_paths_that_lead_to_no_checkpoint(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    found = in_turn(*(Line(tmp_path, (*SURVIVOR, f"checkpoint.resume={path}")) for path in PATHS))
    for path, done in zip(PATHS, found, strict=True):
        assert done.status == 2
        assert done.error == f"error: checkpoint.resume={tmp_path}/{path}: {PATHS[path]}\n"
