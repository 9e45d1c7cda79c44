"""The commands of the README, as they stand there, in the order in which they stand there."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```bash\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
LINES = [line for block in BLOCKS for line in block.splitlines()]
COMMANDS = [line for line in LINES if line.startswith(("torchrun", "python -m launcher"))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One folder for all commands, since some use what others left."""
    return tmp_path_factory.mktemp("reader")


def command(line, folder):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error::UserWarning"}
    words = shlex.split(line, comments=True)
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("line", COMMANDS)
def test_the_command_works(line, folder):
    ended = command(line, folder)
    assert ended.returncode == 0, ended.stderr
    if line == "torchrun --nproc-per-node=2 -m launcher":
        assert float(re.findall(r"test/accuracy ([\d.]+)", ended.stdout)[-1]) >= 0.97


PACKAGE = """
import torch

class Net(torch.nn.Linear):
    def __init__(self, width):
        super().__init__(width, 3)

class Images(torch.utils.data.TensorDataset):
    def __init__(self, split):
        rows = 96 if split == "train" else 7
        super().__init__(torch.rand(rows, 64), torch.zeros(rows, dtype=torch.int64))
"""


def test_the_configs_of_ones_own_work(folder):
    (folder / "my_package.py").write_text(PACKAGE, encoding="utf-8")
    for text in re.findall(r"^```yaml\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL):
        path = folder / re.search(r"mine/\S+\.yaml", text)[0]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    line = next(line for line in README.splitlines() if line.endswith("batch.global_size=96"))
    ended = command(line, folder)
    assert ended.returncode == 0, ended.stderr
    assert "global batch     96 rows = 3 ranks x 32 rows" in ended.stdout


def test_there_are_commands():
    assert len(COMMANDS) >= 6


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)]+)\)", README))
def test_links_lead_somewhere(link):
    assert (ROOT / link).exists()
