"""The package as it is installed: from its wheel, in any folder, beside a stranger's configs."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from launcher.configure.compose import config_groups

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("launcher", "samplers", "conf", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The wheel, built from a copy of the sources and unpacked."""
    source, place = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    for name in SOURCES:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif path.exists():
            shutil.copy(path, source)
    if not (source / "README.md").exists():
        (source / "README.md").write_text("")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(place), str(source)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    (wheel,) = place.glob("evenshard-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    return place


@pytest.fixture
def stranger(tmp_path):
    """A working directory with a package ``conf`` of somebody else's."""
    (tmp_path / "conf" / "model").mkdir(parents=True)
    for name in ("__init__.py", "model/__init__.py"):
        (tmp_path / "conf" / name).write_text("")
    (tmp_path / "conf" / "config.yaml").write_text("stranger: true\n")
    (tmp_path / "conf" / "model" / "small_conv.yaml").write_text("stranger: true\n")
    return tmp_path


def run(installed, folder, *words):
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_every_package_and_config(installed):
    found = {str(path.relative_to(installed)) for path in installed.rglob("*") if path.suffix in (".py", ".yaml")}
    sources = {
        *(path.relative_to(ROOT) for name in ("launcher", "samplers") for path in (ROOT / name).rglob("*.py")),
        *(Path("launcher", path.relative_to(ROOT)) for path in (ROOT / "conf").rglob("*.yaml")),
    }
    assert found == {str(path) for path in sources}
    assert (installed / "launcher" / "py.typed").exists()
    (points,) = installed.glob("*.dist-info/entry_points.txt")
    assert "evenshard = launcher.__main__:main" in points.read_text()


IN_ONE_PROCESS = """
import json, sys

import samplers
loaded = [[name for name in ("hydra", "omegaconf", "launcher") if name in sys.modules]]
import launcher.cli
foreign = ("launcher.configure.compose", "torchvision", "sklearn", "tensorboard")
loaded.append([name for name in foreign if name in sys.modules])
from launcher.configure.compose import config_groups
print(json.dumps([loaded, config_groups()]))
launcher.cli.main(["--cfg", "job"])
"""


def test_what_an_import_does_not_load_and_configs_that_are_found_beside_a_strangers(installed, stranger):
    told, shown = run(installed, stranger, "-c", IN_ONE_PROCESS).split("\n", 1)
    assert json.loads(told) == [[[], []], config_groups()]
    assert "stranger" not in shown
    assert "_target_: launcher.models.small_conv.SmallConvNet\n" in shown


def test_it_plans_there(installed, stranger):
    plan = run(installed, stranger, "-m", "launcher", "mode=plan")
    assert plan.startswith("global batch     128 rows = 1 rank")
    assert f"run folder       {stranger}/outputs/" in plan
    assert sorted(path.name for path in stranger.iterdir()) == ["conf"]
