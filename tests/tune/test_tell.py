"""What is told of a tuning, and what is left of it in the run folder."""

import json
import logging
from dataclasses import replace

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from launcher.tune.examine import Examined
from launcher.tune.noise_scale import NoiseScale
from launcher.tune.tell import settings_of, tell
from tests.tune.made import DIGITS, NOISY, SURE

EXAMINED = Examined(NoiseScale(400, 300, 600, None, 8, 100), ("features.4", 0.5), 0.1)


@pytest.fixture
def told(tmp_path, caplog):
    """Tells of a tuning; gives what it says."""

    def of(tuning, run=DIGITS, ranks=2, examined=EXAMINED):
        with caplog.at_level(logging.INFO):
            tell(tuning, run, tmp_path, torch.device("cpu"), ranks, examined)
        return [(record.getMessage(), getattr(record, "file_only", False)) for record in caplog.records]

    return of


def test_the_console_gets_table_answer_advice_and_what_to_type(told, tmp_path):
    table, answer, advice, recommended = told(replace(SURE, train_rows=1437))
    assert not any(hidden for _, hidden in (table, answer, advice, recommended))
    assert table[0].startswith("rows   memory")
    assert "fast enough      300 rows" in answer[0]
    assert "2 devices  2 x 64 rows (as here)" in advice[0]
    assert "noise scale      400 rows (300 to 600)" in advice[0]
    assert "warning: features.4 sees the fewest values per channel: 32" not in advice[0]
    assert "features.4 sees the fewest values per channel: 32 (0.5 per row)" in advice[0]
    assert recommended[0].splitlines() == [
        "recommended      batch.max_per_device=300",
        "                 or in a config",
        "                   batch:",
        "                     max_per_device: 300",
    ]
    assert {path.name for path in tmp_path.iterdir()} == {"tune.json", "tune.png", "tensorboard"}


def test_files_for_machines(told, tmp_path):
    told(replace(SURE, train_rows=1437))
    found = json.loads((tmp_path / "tune.json").read_text())
    assert found["about"] == {"device": "cpu", "ranks": 2, "precision": "fp32", "torch": torch.__version__}
    assert found["train_rows"] == 1437
    assert found["advice"]["noise_scale"]["rows"] == 400
    assert found["advice"]["smallest_map"] == {
        "layer": "features.4",
        "values_per_row": 0.5,
        "rows": 64,
        "values": 32,
        "error": pytest.approx(0.254, abs=1e-3),
        "few": False,
    }
    events = EventAccumulator(str(tmp_path / "tensorboard" / "tune")).Reload()
    assert events.Images("tune")[0].encoded_image_string == (tmp_path / "tune.png").read_bytes()
    speeds = {point.step: point.value for point in events.Scalars("tune/rows_per_s")}
    assert speeds == {probe.rows: pytest.approx(probe.rows_per_s) for probe in SURE.probes if probe.fits}
    assert {point.step for point in events.Scalars("tune/peak_bytes")} == {16, 300, 400, 401}


def test_a_run_that_finds_its_size_keeps_the_advice_in_its_log(told, tmp_path):
    _, _, (advice, hidden), _ = told(replace(SURE, train_rows=1437), examined=None)
    assert hidden
    assert "noise scale" not in advice
    assert json.loads((tmp_path / "tune.json").read_text())["advice"]["noise_scale"] is None


def test_without_the_number_of_rows_there_is_no_advice(told, tmp_path):
    assert len(told(NOISY)) == 3
    assert json.loads((tmp_path / "tune.json").read_text())["advice"] is None


def test_the_settings_that_bear_on_the_batch():
    settings = settings_of(DIGITS, 1437, 2)
    assert (settings.global_size, settings.devices, settings.lr, settings.batchnorm) == (128, 2, 0.1, "local")
    exact = settings_of(replace(DIGITS, batch=replace(DIGITS.batch, exact=True)), 1437, 2)
    assert (exact.batchnorm, exact.shard_rows) == ("shard", 32)
