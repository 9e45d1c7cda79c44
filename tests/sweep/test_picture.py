"""The picture of a sweep."""

import importlib.util

import matplotlib as mpl
import pytest
from PIL import Image

from launcher.sweep.jobs import FINISHED, PRUNED, RUNNING, STOPPED
from launcher.sweep.picture import Axis, figure_of, picture
from tests.sweep.records import failed, record

KEYS = ["optimizer.lr", "model.width", "optimizer", "batch.exact", "seed", "a", "b", "c", "d"]


def job(number, words, value, state=FINISHED):
    return record(number, words, state, value=value)


JOBS = [
    job(0, "lr=0.001 width=16 kind=sgd", 0.8),
    job(1, "lr=1.0 width=32 kind=adamw", 0.9, STOPPED),
    job(2, "lr=0.1 width=64 kind='[b]$x$漢'", 0.95, PRUNED),
    failed(3, "lr=0.01 width=64 kind=sgd"),
    job(4, "lr=0.03 width=64 ~kind", float("inf")),
]


@pytest.mark.parametrize(
    ("texts", "places", "marks", "logarithmic"),
    [
        (["1", "2", "4"], [1, 2, 4], ["1", "2", "4"], True),
        (["1", "2", "3", "2"], [1, 2, 3, 2], ["1", "2", "3"], False),
        (["16", "16"], [16, 16], ["16"], False),
        (["0", "0.1"], [0, 0.1], ["0", "0.1"], False),
        (["-1", "1000"], [-1, 1000], ["-1", "1000"], False),
        (["1e-4", "1"], [1e-4, 1], ["0.0001", "1"], True),
        (["1", "1.001", "2"], [1, 1.001, 2], [], False),
        ([str(number) for number in range(1, 10)], list(range(1, 10)), [], False),
        (["true", "false", "true"], [0, 1, 0], ["true", "false"], False),
        (["1", "auto", "2"], [0, 1, 2], ["1", "auto", "2"], False),
        (["1", "inf"], [0, 1], ["1", "inf"], False),
        (["'a,b'", "[1,2]"], [0, 1], ["'a,b'", "[1,2]"], False),
    ],
)
def test_where_jobs_stand(texts, places, marks, logarithmic):
    axis = Axis.of(texts)
    assert (list(axis.places), list(axis.marks.values()), axis.logarithmic) == (places, marks, logarithmic)


def points(axes):
    """Pruned jobs, ended ones, those without a value and the best one, each as drawn."""
    return [[tuple(point) for point in drawn.get_offsets().tolist()] for drawn in axes.collections]


def test_a_panel_for_each_parameter_shows_every_job():
    lr, width, kind = figure_of(JOBS, "accuracy").axes
    assert points(lr) == [[(0.1, 0.95)], [(0.001, 0.8), (1.0, 0.9)], [(0.01, 0.04), (0.03, 0.04)], [(1.0, 0.9)]]
    assert points(kind) == [[(2, 0.95)], [(0, 0.8), (1, 0.9)], [(0, 0.04), (3, 0.04)], [(1, 0.9)]]
    assert [axes.get_xlabel() for axes in (lr, width, kind)] == ["lr", "width", "kind"]
    assert [axes.get_ylabel() for axes in (lr, width, kind)] == ["accuracy", "", ""]
    assert [axes.get_xscale() for axes in (lr, width, kind)] == ["log", "log", "linear"]
    assert [text.get_text() for text in kind.get_xticklabels()] == ["sgd", "adamw", "[b]$x$漢", "~"]
    assert lr.figure.get_suptitle() == "job 1 is best of 5: accuracy 0.9000; 2 without a value (x)"


def test_values_that_span_decades_stand_on_a_logarithmic_axis():
    assert figure_of([job(0, "a=1", 1e-4), job(1, "a=2", 1.0)], "-loss").axes[0].get_yscale() == "log"
    assert figure_of([job(0, "a=1", 0.0), job(1, "a=2", 1e3)], "-loss").axes[0].get_yscale() == "linear"


@pytest.mark.parametrize(
    ("count", "grid"), [(1, (1, 1)), (2, (1, 2)), (4, (1, 4)), (5, (2, 3)), (8, (2, 4)), (9, (3, 3))]
)
def test_panels_stand_in_rows(count, grid):
    jobs = [job(n, " ".join(f"{key}={n}" for key in KEYS[:count]), n / 2) for n in range(3)]
    figure = figure_of(jobs, "accuracy")
    assert len(figure.axes) == count
    assert figure.axes[0].get_gridspec().get_geometry() == grid
    assert all(3 <= size <= 14 for size in figure.get_size_inches())


@pytest.mark.parametrize("jobs", [[], [failed(0)], [job(0, "", 0.5)], [job(0, "a=1", 0.5), job(1, "a=1", 0.6)]])
def test_without_parameters_the_metric_is_drawn_along_the_jobs(jobs):
    (axes,) = figure_of(jobs, "accuracy").axes
    assert axes.get_xlabel() == "job"
    assert sum(map(len, points(axes)[:3])) == len(jobs)


def test_the_file(tmp_path):
    before = dict(mpl.rcParams)
    assert picture([*JOBS, job(5, "lr=1", None, RUNNING)], "accuracy", tmp_path / "metric.png") is None
    with Image.open(tmp_path / "metric.png") as image:
        assert image.size == (1152, 408)
        assert len(image.convert("RGB").getcolors(100_000)) > 10
    assert dict(mpl.rcParams) == before


def test_without_matplotlib_a_line_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr("launcher.sweep.picture.find_spec", lambda name: importlib.util.find_spec("no_" + name))
    assert picture(JOBS, "accuracy", tmp_path / "metric.png") == (
        "metric.png is not drawn: matplotlib is not installed: pip install 'evenshard[demo]'"
    )
    assert not list(tmp_path.iterdir())
