"""Windows of steps that are recorded."""

import gzip
import json

import pytest
import torch

from launcher.configure.profile import ProfileConfig
from launcher.observe.profile import WindowProfiler, Windows, activities, bound, longest
from launcher.processes.errors import SettingsError
from tests.launcher.command import TINY, Line, in_turn

CPU = torch.device("cpu")


def events(trace):
    return json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]


def names(folder):
    return sorted(path.name for path in folder.glob("*"))


def test_windows_of_real_runs(tmp_path):
    whole, short, silent = in_turn(
        Line(tmp_path / "whole", (*TINY, "trainer.epochs=5", "profile=on", "profile.shapes=true")),
        Line(tmp_path / "short", (*TINY, "profile=on", "profile.repeat=1")),
        Line(tmp_path / "silent", TINY),
    )
    assert whole.status == short.status == silent.status == 0, whole.error + short.error
    trace = whole.run_dir / "trace"
    windows = ["rank_0_steps_3_to_5", "rank_0_steps_8_to_10"]
    assert names(trace) == [f"{window}{end}" for window in windows for end in (".json.gz", ".txt")]
    for window in windows:
        steps = [e for e in events(trace / f"{window}.json.gz") if str(e.get("name")).startswith("ProfilerStep")]
        assert len(steps) == 3
        table = (trace / f"{window}.txt").read_text()
        assert "aten::" in table
        assert "Input Shapes" in table
        assert table.count("\n") < 30
    assert f"profile: 2 windows in {trace}\n" in whole.output
    assert names(short.run_dir / "trace") == [
        "rank_0_steps_3_to_4_unfinished.json.gz",
        "rank_0_steps_3_to_4_unfinished.txt",
    ]
    assert (
        "warning: profile: 0 of 1 window closed: the run did 4 steps, and profile.repeat=1 x (profile.wait=1 + "
        "profile.warmup=1 + profile.active=3) are 5\n"
    ) in short.output
    assert not (silent.run_dir / "trace").exists()
    assert whole.error == short.error == ""


def windows(**changes):
    options = {"activities": activities(CPU)}
    return Windows(
        **{"wait": 0, "warmup": 1, "active": 1, "repeat": 1, "options": options, "most_bytes": 10**6, **changes}
    )


def test_a_run_that_fails_amid_a_window_keeps_what_was_recorded(tmp_path, caplog):
    profiler = WindowProfiler(tmp_path / "trace", 2, windows(active=3), first=40)

    def train():
        with profiler.running():
            profiler.step()
            profiler.step()
            torch.ones(3).exp()
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        train()
    assert names(tmp_path / "trace") == [
        "rank_2_steps_42_to_42_unfinished.json.gz",
        "rank_2_steps_42_to_42_unfinished.txt",
    ]
    assert "0 of 1 window closed: the run did 2 steps, and" in caplog.text


def test_a_folder_that_cannot_be_written_ends_nothing(tmp_path, caplog):
    (tmp_path / "trace").write_text("in the way")
    profiler = WindowProfiler(tmp_path / "trace", 0, windows())
    with profiler.running():
        profiler.step()
        profiler.step()
    assert "profile: " in caplog.text
    assert "cannot be written: File exists" in caplog.text


def test_a_trace_that_is_too_large_loses_its_shortest_events(tmp_path):
    made = [{"ph": "M", "name": "process_name"}, *({"ph": "X", "dur": n, "name": f"{n:x}" * 9} for n in range(5000))]
    trace = tmp_path / "t.json.gz"
    trace.write_bytes(gzip.compress(json.dumps({"schemaVersion": 1, "traceEvents": made}).encode()))
    size = trace.stat().st_size
    assert bound(trace, size) == 0
    assert events(trace) == made
    left_out = bound(trace, 10_000)
    assert trace.stat().st_size <= 10_000
    assert events(trace) == longest(made, 5001 - left_out)
    assert events(trace)[0]["ph"] == "M"
    assert json.loads(gzip.decompress(trace.read_bytes()))["schemaVersion"] == 1


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"active": 0}, "profile.active=0"),
        ({"repeat": 0}, "profile.repeat=0"),
        ({"wait": -1}, "profile.wait=-1"),
        ({"warmup": 0}, "profile.warmup=0"),
        ({"most_mb": 0}, "profile.most_mb=0"),
        ({"ranks": "second"}, "profile.ranks=second"),
    ],
)
def test_wrong_settings_are_named(setting, message):
    with pytest.raises(SettingsError, match=message):
        ProfileConfig(**setting)
