"""What the user sees of a sweep while it goes."""

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from launcher.sweep.changes import About, changes
from launcher.sweep.jobs import FAILED, FINISHED, PREEMPTED, PRUNED, RUNNING, WAITING, View
from launcher.sweep.view import console_of, picture_of, view_of, worth_seeing
from launcher.sweep.words import progress
from tests.sweep.records import failed, finished, record, running

ABOUT = About(total=3, metric="accuracy", root=Path("multirun/1"))
WAIT = [record(0, "lr=0.1 seed=1"), record(1, "lr=0.2 seed=1"), record(2, "lr='[bold]' seed=1")]
RUN = running(1, "lr=0.2 seed=1", devices=("0", "1"))
END = finished(0, "lr=0.1 seed=1", 0.98, 0.05)


@pytest.mark.parametrize(
    ("before", "after", "right"),
    [
        (None, WAIT, []),
        (WAIT, WAIT, []),
        (WAIT, [WAIT[0], RUN, WAIT[2]], ["job 1 started on cores 0,1: lr=0.2"]),
        ([], [RUN], ["job 1 started on cores 0,1: lr=0.2 seed=1"]),
        (WAIT, [*WAIT[:2], running(2, "lr='[bold]' seed=1")], ["job 2 started: lr='[bold]'"]),
        ([running(0, "a=1")], [running(0, "a=1", step=7, metrics={"test/loss": 1.0})], []),
        (
            [running(0, "a=1")],
            [running(0, "a=1", attempts=2, devices=("0", "1", "2", "5"))],
            ["job 0 started again, attempt 2 on cores 0-2,5"],
        ),
        ([running(0, "a=1")], [END], ["job 0 finished after 2.1 s: accuracy 0.9800, loss 0.0500"]),
        (
            WAIT[:1],
            [END],
            [
                "job 0 started on cores 0,1: lr=0.1 seed=1",
                "job 0 finished after 2.1 s: accuracy 0.9800, loss 0.0500",
            ],
        ),
        ([RUN], [failed(1)], ["job 1 failed: rank 0 was killed by SIGSEGV; see multirun/1/1/console.log"]),
        ([RUN], [failed(1, cause="a\nb")], ["job 1 failed: a\\nb; see multirun/1/1/console.log"]),
        (WAIT[:1], [failed(0, attempts=0, cause="no")], ["job 0 failed: no; see multirun/1/0/console.log"]),
        (
            [running(0, "")],
            [finished(0, "", 0.5, state=PRUNED, seconds=3725)],
            ["job 0 pruned after 1:02:05 h: accuracy 0.5000, loss 0.5000"],
        ),
        (
            [running(0, "")],
            [record(0, "", PREEMPTED, step=7, attempts=1)],
            ["job 0 preempted after step 7"],
        ),
        (
            [record(1)],
            [record(1, "", FINISHED, same_as=0, metrics={"test/accuracy": 0.5})],
            ["job 1 has the results of job 0: accuracy 0.5000"],
        ),
        (None, [END, WAIT[1], WAIT[2]], ["1 of 3 done already"]),
        (
            None,
            [END, failed(1, attempts=0), WAIT[2]],
            ["1 of 3 done already"],
        ),
        (None, [failed(0, attempts=2), record(1, state=PREEMPTED, attempts=1)], []),
        (
            [failed(0, "a=1")],
            [failed(0, "a=1", cause="no", attempts=2)],
            ["job 0 started again, attempt 2", "job 0 failed: no; see multirun/1/0/console.log"],
        ),
    ],
)
def test_a_line_for_each_thing_that_happened(before, after, right):
    assert changes(before, after, ABOUT) == right


def test_devices_are_called_as_the_sweep_calls_them():
    line = "job 1 started on GPUs 0,1: lr=0.2 seed=1"
    assert changes([], [RUN], About(None, devices="GPUs")) == [line]


@pytest.mark.parametrize(
    ("records", "total", "right"),
    [
        ([], 40, "0 of 40 done"),
        ([], None, "0 done"),
        ([*WAIT, RUN], 40, "0 of 40 done, 1 running"),
        ([END, finished(3, "", 0.1, state=PRUNED), failed(1), RUN, RUN], 40, "2 of 40 done, 1 failed, 2 running"),
        ([END, record(1, state=PREEMPTED)], None, "1 done, 1 preempted"),
        ([END, END], 1, "2 of 2 done"),
    ],
)
def test_how_far_a_sweep_is(records, total, right):
    assert progress(records, total) == right


def drawn(records, about=ABOUT, width=100, height=25):
    console = Console(width=width, height=height, file=StringIO())
    console.print(picture_of(records, about, console))
    return console.file.getvalue().splitlines()


def test_the_table():
    assert drawn([END, RUN, WAIT[2]]) == [
        "job  lr      state     step  test/accuracy  test/loss  train/loss   time  devices",
        "  0  0.1     finished    40         0.9800     0.0500      0.0250  2.1 s  0,1",
        "  1  0.2     running                                                      0,1",
        "  2  [bold]  waiting",
        "1 of 3 done, 1 running; best so far: job 0, accuracy 0.9800",
    ]


def test_without_a_metric_none_is_the_best():
    assert drawn([END, failed(1, "lr=3")], About(None)) == [
        "job   lr  seed  state     step  test/loss  test/accuracy  train/loss   time  devices",
        "  0  0.1     1  finished    40     0.0500         0.9800      0.0250  2.1 s  0,1",
        "  1    3        failed",
        "1 done, 1 failed",
    ]


def test_nothing_is_known_yet():
    assert drawn([]) == ["job  state  step  test/accuracy  time  devices", "0 of 3 done"]


LONG = [
    finished(n, f"data.train.root=/data/{'x' * 40}/{n} model.name=漢字\N{COMBINING ACUTE ACCENT}{n}", 0.5)
    for n in (0, 1)
]


@pytest.mark.parametrize(
    ("width", "right"),
    [
        (
            100,
            [
                "job  root          name   state     step  test/accuracy  test/loss  train/loss   time  devices",
                "  0  /data...xx/0  漢字́0  finished    40         0.5000     0.5000      0.2500  2.1 s  0,1",
            ],
        ),
        (
            60,
            [
                "job  root          name   state     test/accuracy  test/loss",
                "  0  /data...xx/0  漢字́0  finished         0.5000     0.5000",
            ],
        ),
        (40, ["job  root      state     test/accuracy", "  0  /da.../0  finished         0.5000"]),
        (28, ["job  state     test/accuracy", "  0  finished         0.5000"]),
    ],
)
def test_where_there_is_less_room_what_matters_stays(width, right):
    assert drawn(LONG, width=width)[:2] == right


def test_no_line_is_wider_than_the_terminal():
    for width in (1, 5, 20, 33, 50, 80):
        console = Console(width=width, height=25, file=StringIO())
        console.print(picture_of(LONG, ABOUT, console))
        assert all(console.measure(line).maximum <= width for line in console.file.getvalue().splitlines())


def test_a_hundred_jobs_show_those_that_matter():
    jobs = [finished(number, f"seed={number}", number / 100) for number in range(60)]
    jobs[3] = failed(3, "seed=3")
    jobs += [running(60, "seed=60"), running(61, "seed=61")]
    jobs += [record(number, f"seed={number}") for number in range(62, 100)]
    assert [each.number for each in worth_seeing(jobs, 5)] == [3, 58, 59, 60, 61]
    lines = drawn(jobs, About(100, "accuracy"), height=11)
    assert [line.split()[0] for line in lines] == ["job", "3", "58", "59", "60", "61", "and", "59"]
    assert lines[-2:] == [
        "and 95 more: 57 finished, 38 waiting",
        "59 of 100 done, 1 failed, 2 running; best so far: job 59, accuracy 0.5900",
    ]


@pytest.mark.parametrize(
    ("states", "most", "right"),
    [
        ((WAITING, WAITING), 2, [0, 1]),
        ((WAITING, WAITING, WAITING), 2, []),
        ((FINISHED, FINISHED, WAITING), 2, [0, 1]),
        ((FAILED, WAITING, WAITING), 2, [0]),
        ((FINISHED, FINISHED, FINISHED), 2, [1, 2]),
        ((FAILED, FINISHED, RUNNING), 2, [0, 2]),
        ((RUNNING, RUNNING, RUNNING), 2, [1, 2]),
        ((PREEMPTED, FINISHED), 9, [0, 1]),
    ],
)
def test_which_jobs_are_shown(states, most, right):
    records = [record(number, "", state) for number, state in enumerate(states)]
    assert [each.number for each in worth_seeing(records, most)] == right


def shown_on(console, pictures, about=ABOUT):
    """What stays on a console after a sweep that looked like this, a quarter of a second apart."""
    times = iter(range(1000))
    with view_of(console, about, clock=lambda: next(times)) as view:
        told: View = view
        for records in pictures:
            told.show(records)
        told.say("[bold]that is all[/bold] :smile: {}")
    return console.file.getvalue()


def test_without_a_terminal_there_are_plain_lines():
    console = Console(file=StringIO(), width=30)
    assert shown_on(console, [WAIT, WAIT, [END, RUN, WAIT[2]], [END, failed(1), WAIT[2]]]).split("\n") == [
        "job 0 started on cores 0,1: lr=0.1",
        "job 0 finished after 2.1 s: accuracy 0.9800, loss 0.0500",
        "job 1 started on cores 0,1: lr=0.2",
        "job 1 failed: rank 0 was killed by SIGSEGV; see multirun/1/1/console.log",
        "[bold]that is all[/bold] :smile: {}",
        "",
    ]


class Ascii(StringIO):
    encoding = "ascii"


def test_a_console_of_few_letters_gets_their_numbers():
    found = shown_on(Console(file=Ascii(), force_terminal=True), [[], [running(0, "a=schön"), record(1, "a=x")]])
    assert found.split("\n")[0] == "job 0 started: a=sch\\xf6n"


def test_on_a_terminal_a_table_lives_and_failures_stay():
    console = Console(file=StringIO(), width=100, height=25, force_terminal=True, color_system=None)
    found = shown_on(console, [WAIT, [END, RUN, WAIT[2]], [END, failed(1, "lr=0.2"), WAIT[2]]])
    assert "[bold]  waiting" in found
    assert found.count("0 of 3 done") == 1
    assert found.count("job 1 failed: rank 0 was killed by SIGSEGV; see multirun/1/1/console.log\n") == 1
    assert "[bold]that is all[/bold] :smile: {}\n" in found
    assert found.endswith("\x1b[2K")  # the table is gone


def test_on_a_terminal_failures_of_before_are_in_the_table_alone():
    console = Console(file=StringIO(), width=100, height=25, force_terminal=True, color_system=None)
    assert "job 1 failed" not in shown_on(console, [[END, failed(1, "lr=0.2"), WAIT[2]]])


def test_the_table_is_drawn_only_where_something_changed_and_time_has_passed():
    console, now = Console(file=StringIO(), width=100, height=25, force_terminal=True), [0.0]
    later = [END, *WAIT[1:]]
    with view_of(console, ABOUT, clock=lambda: now[0]) as view:
        for seconds, records, draws in [
            (0.0, WAIT, True),
            (1.0, list(WAIT), False),
            (1.1, later, True),
            (1.2, WAIT, False),
            (1.3, WAIT, False),
            (1.4, WAIT, True),
            (9.0, later, True),
            (10.0, list(later), False),
        ]:
            now[0], before = seconds, len(console.file.getvalue())
            view.show(records)
            assert (len(console.file.getvalue()) > before) is draws, seconds


class Left(StringIO):
    """A stream whose reader is gone."""

    def write(self, _text=""):
        raise BrokenPipeError(32, "Broken pipe")

    flush = write


@pytest.mark.parametrize("stream", [Left(), None])
def test_where_nobody_reads_the_sweep_goes_on(stream):
    with view_of(console_of(stream), ABOUT) as view:
        view.show([running(0, "a=1")])
        view.say("a line")


def test_a_console_is_that_of_its_stream():
    stream = StringIO()
    with view_of(console_of(stream), ABOUT) as view:
        view.say("a line")
    assert stream.getvalue() == "a line\n"
