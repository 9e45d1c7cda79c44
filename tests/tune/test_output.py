"""Table, picture and file of a tuning."""

import importlib.util
import io
import json
from dataclasses import replace

import matplotlib as mpl
import pytest
from PIL import Image
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from launcher.observe.tensorboard import TensorBoard
from launcher.tune.advice import Settings, advise
from launcher.tune.picture import draw, figure_of, picture
from launcher.tune.record import record
from launcher.tune.table import answer, plain, table
from tests.tune.made import NOISY, SURE, UNTIMED


def test_the_table():
    assert plain(SURE) == [
        "rows   memory  of limit     step  spread  rows/s  evaluation",
        "  16  1.0 GiB      25 %  10.1 ms   2.0 %   1,584      1.0 ms",
        " 300  2.5 GiB      62 %  77.0 ms   1.3 %   3,896      1.0 ms  recommended, fast enough",
        " 400  3.0 GiB      75 %   101 ms   2.0 %   3,960      1.0 ms  largest that fits",
        " 401  4.0 GiB     100 %                                       does not fit: rank 1: out of memory",
    ]


def test_the_answer():
    assert answer(SURE) == [
        "fits             400 rows, limited by memory; one row more does not fit",
        "                 4.0 GiB are available on the device with the least",
        "fast enough      300 rows: 3,896 rows/s, 98 % of the best",
        "noise            steps of one size differ by 2.0 % at most; load 0.25 for each usable core",
    ]


@pytest.mark.parametrize("limit", ["memory", "tune.max_rows=500"])
def test_what_was_not_tried_may_fit(limit):
    assert answer(replace(SURE, exact=False, limited_by=limit))[0] == (
        f"fits             400 rows, limited by {limit}; whether a few more fit was not tried"
    )


def test_with_noise_no_size_is_called_fast_enough():
    assert answer(NOISY) == [
        "fits             64 rows, and more is ruled out: data.train has 64 rows",
        "                 4.0 GiB are available on the device with the least",
        "fast enough      not known: steps of 64 rows differ by 83 %",
        "noise            steps of one size differ by 100 % at most; load 3.50 for each usable core",
    ]
    assert not any("fast enough" in line for line in plain(NOISY))
    assert "too noisy to say which size is fast enough" in [text.get_text() for text in figure_of(NOISY).axes[0].texts]


@pytest.mark.parametrize("width", [100, 140])
def test_a_terminal_gets_a_table_with_all_of_it(width):
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system="truecolor")
    console.print(table(SURE))
    found = console.file.getvalue()
    assert "\x1b[" in found
    assert all(word in found for word in ("1,584", "3,960", "recommended"))


def points(axes):
    """What is drawn as a point or cross, not as a line."""
    return [tuple(point) for line in axes.lines if line.get_linestyle() == "None" for point in line.get_xydata()]


def test_the_picture_shows_each_size_and_the_marks():
    above, below = figure_of(SURE).axes
    assert (above.get_xscale(), below.get_xscale()) == ("log", "log")
    marks = {
        drawn.get_label(): tuple(drawn.get_offsets()[0]) for drawn in above.collections if drawn.get_label()[0] != "_"
    }
    assert list(marks) == ["largest that fits: 400 rows", "fast enough: 300 rows", "recommended: 300 rows"]
    assert marks["recommended: 300 rows"] == (300, pytest.approx(300 / 0.077))
    assert points(below) == [(16, 1), (300, 2.5), (400, 3), (401, 4)]
    assert [text.get_text() for text in below.texts] == ["available: 4.0 GiB"]
    assert above.get_title(loc="left") == "steps of one size differ by 2.0 % at most; load 0.25 for each usable core"
    bars = [bar for drawn in above.collections if hasattr(drawn, "get_segments") for bar in drawn.get_segments()]
    assert bars[0][:, 1].tolist() == [pytest.approx(16 / 0.0102), pytest.approx(16 / 0.01)]


@pytest.mark.parametrize("tuning", [SURE, NOISY, UNTIMED])
def test_the_file(tuning, tmp_path):
    before = dict(mpl.rcParams)
    assert draw(picture(tuning), tmp_path / "tune.png") is None
    with Image.open(tmp_path / "tune.png") as image:
        assert image.size == (864, 720)
    assert dict(mpl.rcParams) == before


def test_without_matplotlib_a_line_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr("launcher.tune.picture.find_spec", lambda name: importlib.util.find_spec("no_" + name))
    assert draw(picture(SURE), tmp_path / "tune.png") == (
        "tune.png is not drawn: matplotlib is not installed: pip install 'evenshard[demo]'"
    )
    assert not list(tmp_path.iterdir())


def test_tensorboard_gets_the_picture(tmp_path):
    board = TensorBoard(tmp_path, part="tune")
    png = picture(SURE)
    board.image("tune", png)
    board.write()
    events = EventAccumulator(str(tmp_path / "tensorboard" / "tune")).Reload()
    (found,) = events.Images("tune")
    assert (found.width, found.height, found.encoded_image_string) == (864, 720, png)


def test_the_record():
    settings = Settings(n=1437, global_size=1024, devices=2, lr=0.1)
    found = json.loads(json.dumps(record(SURE, advise(settings, 300), {"device": "cpu"})))
    assert (found["version"], found["recommended"], found["fits"], found["fast_enough"]) == (1, 300, 400, 300)
    assert (found["override"], found["yaml"]) == ("batch.max_per_device=300", "batch:\n  max_per_device: 300\n")
    assert [probe["rows"] for probe in found["probes"]] == [16, 400, 401, 300]
    assert found["probes"][3]["rows_per_s"] == pytest.approx(300 / 0.077)
    assert found["probes"][2]["why_not"].startswith("rank 1: ")
    assert [split["devices"] for split in found["advice"]["splits"]] == [1, 2, 4, 8, 16, 32, 64]
    assert found["advice"]["changes"][0]["ema_decay"] == pytest.approx(0.9995, abs=1e-6)
    assert found["about"] == {"device": "cpu"}
