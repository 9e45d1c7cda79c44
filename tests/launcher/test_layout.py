"""Imports point one way, and what a rank is is read in one place."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [path.relative_to(ROOT) for package in ("launcher", "samplers") for path in (ROOT / package).rglob("*.py")]


def imported(path):
    """Every module that a file imports, at its top or inside a function."""
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def files_that_import(package):
    return {
        str(path)
        for path in SOURCES
        if any(name == package or name.startswith(f"{package}.") for name in imported(path))
    }


@pytest.mark.parametrize("package", ["hydra", "omegaconf"])
def test_only_the_configuration_and_sweeps_know_hydra(package):
    found = files_that_import(package)
    assert found
    assert all(name.startswith(("launcher/configure/", "launcher/sweep/")) for name in found)


def test_samplers_know_nothing_of_the_launcher():
    assert not [name for name in files_that_import("launcher") if name.startswith("samplers/")]


def test_only_the_entry_imports_the_command():
    assert files_that_import("launcher.cli") == {"launcher/__main__.py"}


def test_rank_variables_are_read_in_one_place():
    pattern = re.compile(r"""["'](RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|SLURM_\w+)["']""")
    found = {str(path) for path in SOURCES if pattern.search((ROOT / path).read_text())}
    assert found - {"launcher/testing.py", "samplers/ranks.py"} == {"launcher/processes/environment.py"}


def test_only_the_run_assembles_one_and_only_the_command_runs_it():
    assert files_that_import("launcher.assemble") == {"launcher/run.py"}
    assert files_that_import("launcher.run") == {"launcher/cli.py"}
