"""``report.html``: findings with their numbers, and one page that needs nothing beside it."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from launcher.observe.charts import chart, marks, thinned
from launcher.observe.clock import PARTS
from launcher.observe.findings import findings
from launcher.observe.report import page, write_report
from launcher.observe.status import Status
from launcher.observe.story import Story
from tests.launcher.command import TINY, Line, in_turn

EMPTY_TAGS = {"meta", "line", "circle", "polyline", "img"}
PNG = b"\x89PNG\r\n"


def line(step, seconds=10.0, /, **values):
    """A line of metrics; shares that are not given are those of ``other``."""
    told = {name.replace("_", "/", 1): value for name, value in values.items()}
    left = 1 - sum(value for name, value in told.items() if name.removeprefix("time/") in PARTS)
    shares = {f"time/{part}": 0.0 for part in PARTS} | {"time/other": left}
    return {"step": step, "train/loss": 1.0, "time/interval_s": seconds, **shares, **told}


def story(*lines, **more):
    return Story(Path("/runs/one"), lines=lines, **more)


class Tags(HTMLParser):
    """The tags of a page, which must be closed in their order, and its words."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.words = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in EMPTY_TAGS:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.words.append(data)


def read(text):
    """The words of a page; nothing in it leads out of it, and nothing in it runs."""
    tags = Tags(text)
    for tag, attributes in tags.tags:
        assert tag not in {"script", "link", "iframe", "object", "a"}
        assert not [name for name in attributes if name.startswith("on") or name in {"href", "srcset"}]
        assert attributes.get("src", "data:").startswith("data:")
    assert "url(" not in text
    assert "@import" not in text
    return " ".join(tags.words)


def test_shares_are_those_of_the_whole_time():
    told = story(
        line(1, 3.0, time_data=0.5), line(2, 1.0, time_data=0.1), rest={"time/interval_s": 4.0, "time/evaluation": 1.0}
    )
    assert told.seconds()["data"] == pytest.approx(1.6)
    assert told.shares()["data"] == pytest.approx(0.2)
    assert told.shares()["evaluation"] == pytest.approx(0.5)
    assert sum(told.shares().values()) == pytest.approx(1)
    assert told.mean("time/data") == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"time_data": 0.31}, "31% waiting for data: raise data.workers (now 0)."),
        (
            {"time_data": 0.31, "time_data_most": 0.6},
            "31% waiting for data (60% on the rank that waits most): raise data.workers (now 0).",
        ),
        (
            {"time_evaluation": 0.4},
            "40% evaluating: raise trainer.evaluate_every (now 1) or data.evaluate_batch (now 256).",
        ),
        ({"time_checkpoint": 0.06}, "6% waiting for checkpoints: raise checkpoint.every_steps (now null)."),
        ({"time_communication": 0.25}, "25% waiting for other ranks, of 1 rank: give each more to compute "),
        ({"time_optimizer": 0.26}, "26% in the optimizer: "),
        ({"time_to_device": 0.11}, "11% moving rows to the device: "),
        ({"gpu_sm": 0.2}, "The GPU's multiprocessors are busy for 20%: raise batch.max_per_device"),
        ({"gpu_kernel_busy": 0.7}, "No kernel at all runs for 30% of the time; "),
        ({"memory_allocator_retries": 2}, "The allocator ran out of memory 2 times before it found room: "),
        ({"speed_flop_utilisation": 0.42}, "The model makes use of 42% of the device's peak"),
        ({"speed_flop_utilisation": 1.42}, "142% of the device's peak cannot be: "),
        ({"train_loss": None}, "train/loss is no number from step 7 on: "),
        ({"train_skipped": 3}, "3 steps left out, as their gradients were not finite: "),
        ({"time_forward_backward": 0.83, "time_data": 0.09}, "Nothing stands out: 83% of the time goes into forward"),
    ],
)
def test_findings_have_their_numbers(values, said):
    (found,) = findings(story(line(7, **values)))
    assert found.startswith(said)


def test_findings_know_the_settings_and_that_all_cores_are_busy():
    settings = {"data": {"workers": 3}, "checkpoint": {"background": False}}
    busy = line(7, time_data=0.5, time_checkpoint=0.2, cpu_use=0.97, cpu_usable_cores=4.0)
    assert findings(story(busy, settings=settings)) == [
        "50% waiting for data: the 4 usable cores are busy for 97% already; make reading a row cheaper.",
        "20% waiting for checkpoints: set checkpoint.background=true.",
    ]


def test_findings_tell_how_a_run_ended():
    failed = Status("failed", step=3, error={"rank": 1, "type": "ValueError", "message": "no\nmore"})
    told = findings(story(status=failed, tables={"rank_0_steps_3_to_4_unfinished": ""}))
    assert told[0] == "The run failed after step 3: rank 1: ValueError: no"
    assert told[1] == "Where the time went is not known: the run ended before its first line (trainer.log_every=10)."
    assert told[2].startswith("The recorded window trace/rank_0_steps_3_to_4_unfinished did not close")
    silent = story(status=Status("preempted", step=3), settings={"trainer": {"observe": False}})
    assert "is not known: trainer.observe=false." in findings(silent)[1]


def test_whatever_is_shown_is_escaped():
    evil = "<script>alert(1)</script>&"
    error = {"rank": 0, "type": evil, "message": evil}
    told = Story(
        Path("/runs") / evil.replace("/", ""),
        Status(evil, metrics={f"test/{evil}": 1.0}, error=error),
        {"vars": {evil: evil}},
        [line(1, **{f"test_{evil}": 2.0})],
        plan=evil,
        tables={evil: evil},
        picture=PNG,
    )
    assert read(page(told)).count(evil) >= 5


@pytest.mark.parametrize(
    "more", [{}, {"tables": {"rank_0_steps_3_to_5": "aten::mm"}, "picture": PNG, "plan": "128 rows"}]
)
def test_a_page_of_any_run_is_whole(more):
    for lines in (
        (),
        (line(1),),
        (line(1), line(2, train_loss=None, gpu_sm=0.4)),
        ({"step": 1, "test/loss": 0.5, "test/rows": 9},),
    ):
        words = read(page(story(*lines, **more)))
        assert ("aten::mm" in words) is bool(more)
        assert ("Curves" in words) is bool(lines)


def test_charts_of_one_point_of_equal_values_and_of_none():
    assert "<circle" in chart({"a": [(1, 2.0)]})
    assert chart({"a": [(1, 2.0), (9, 2.0)]}).count("<polyline") == 1
    assert chart({"a": [(1, float("nan"))], "b": []}) == ""
    places = re.findall(r'points="([^"]+)"', chart({"a": [(0, 0.0), (10, 1.0)]}))[0].split()
    (left, bottom), (right, top) = (map(float, place.split(",")) for place in places)
    assert left < right
    assert top < bottom
    assert len(thinned([(step, 0.0) for step in range(10_000)])) == 400
    assert all(low <= mark <= high for low, high in [(-3, 5), (1e-9, 2e-9), (1e12, 3e12)] for mark in marks(low, high))


def test_lines_that_are_broken_are_left_out(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "train/loss": 2}\nnull\n{"step"\n[]\n{"train/loss": 1}\n{"step": 2'
    )
    (tmp_path / "config.yaml").write_text("a: [")
    told = Story.read(tmp_path)
    assert list(told.lines) == [{"step": 1, "train/loss": 2}]
    assert told.settings == {}
    assert write_report(tmp_path) == tmp_path / "report.html"


def test_a_report_that_cannot_be_written_is_said(tmp_path, caplog):
    assert write_report(tmp_path / "nowhere") is None
    assert "report.html is not written: FileNotFoundError" in caplog.text


def test_reports_of_real_runs(tmp_path):
    failing = ("model._target_=tests.launcher.slow.FailsInStepThree", "trainer.epochs=2")
    one, failed, silent, again, nowhere = in_turn(
        Line(tmp_path / "one", (*TINY, "trainer.max_steps=1", "trainer.log_every=50")),
        Line(tmp_path / "failed", (*TINY, *failing, "trainer.log_every=50")),
        Line(tmp_path / "silent", (*TINY, "trainer.observe=false")),
        Line(tmp_path / "again", ("report", "../failed/run")),
        Line(tmp_path / "nowhere", ("report", ".")),
    )
    assert (one.status, failed.status, silent.status) == (0, 1, 0), one.error + silent.error
    words = {each.folder.name: read((each.run_dir / "report.html").read_text()) for each in (one, failed, silent)}
    assert "finished" in words["one"]
    assert "1 step" in words["one"]
    assert "forward_backward" in words["one"]
    assert "12 rows = 1 rank x 12 rows" in words["one"]
    assert "s were measured, too little to advise on" in words["one"]
    evaluated = re.search(r"evaluation ([\d.]+)%", words["one"])
    assert float(evaluated[1]) > 0
    assert "The run failed after step 2: rank 0: ValueError: step three" in words["failed"]
    assert "config.yaml" in words["failed"]
    assert "is not known: trainer.observe=false." in words["silent"]
    assert (again.status, again.error) == (0, "")
    assert again.output.startswith("report           ")
    assert again.output.endswith("failed/run/report.html\n")
    assert nowhere.status == 2
    assert nowhere.error == f"error: {tmp_path / 'nowhere'} is no run folder: it has no status.json\n"
