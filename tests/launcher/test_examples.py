"""The commands of the examples' READMEs, as they stand there, on a copy of the examples."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
FENCED = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
OWN_PROJECT = (ROOT / "examples" / "own_project" / "README.md").read_text("utf-8")
BLOCKS = [
    pytest.param(block, id=f"{readme.parent.name}-{number}")
    for readme in sorted(ROOT.glob("examples/*/README.md"))
    for number, block in enumerate(FENCED.findall(readme.read_text("utf-8")), 1)
]


def shapes(text):
    """Lines without their numbers and paths."""
    return {re.sub(r"\S*/outputs/\S*| *[\d.,]+", "#", line) for line in text.splitlines()}


@pytest.mark.parametrize("block", BLOCKS)
def test_the_commands_work(block, tmp_path):
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("outputs", "__pycache__"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error::UserWarning"}
    environment["CUDA_VISIBLE_DEVICES"] = ""
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    if "experiment=ranking\n" in block:
        assert "stopped after" in ended.stdout
        assert float(re.findall(r"test/in_order ([\d.]+)", ended.stdout)[-1]) >= 0.96
        assert shapes(OWN_PROJECT.split("```\n")[2]) - shapes("...") <= shapes(ended.stdout)


def test_there_are_examples():
    assert BLOCKS
