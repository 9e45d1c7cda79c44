"""What a sweep found, as numbers, as a CSV file and in words."""

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.sweep.carried import write_results
from launcher.sweep.jobs import FAILED, FINISHED, PREEMPTED, PRUNED, RUNNING, STOPPED, WAITING, Record
from launcher.sweep.ledger import Definition, Ledger
from launcher.sweep.parameters import apart, parameters, value_of, varying
from launcher.sweep.results import best, ranked, summary, to_csv
from launcher.sweep.words import cut
from tests.sweep.records import failed, finished, record


@pytest.mark.parametrize(
    ("overrides", "right"),
    [
        ((), {}),
        (("optimizer.lr=0.10", "seed=1"), {"optimizer.lr": "0.10", "seed": "1"}),
        (("+vars.a=1", "++vars.b=2"), {"vars.a": "1", "vars.b": "2"}),
        (("vars.text='a=b,c=d'",), {"vars.text": "'a=b,c=d'"}),
        (("vars.map={a:1,b:'='}", "vars.list=[1,2]"), {"vars.map": "{a:1,b:'='}", "vars.list": "[1,2]"}),
        (("~scheduler", "~vars.a=3"), {"scheduler": "~", "vars.a": "~"}),
        (("vars.empty=", "optimizer@vars.second=adamw"), {"vars.empty": "", "optimizer@vars.second": "adamw"}),
        (("seed=1", "seed=2"), {"seed": "2"}),
    ],
)
def test_parameters(overrides, right):
    assert parameters(Record(0, overrides, "0")) == right


@pytest.mark.parametrize(
    ("jobs", "right"),
    [
        ([], []),
        (["lr=0.1 seed=1"], ["lr", "seed"]),
        (["lr=0.1 seed=1", "lr=0.1 seed=2"], ["seed"]),
        (["lr=0.1 seed=1", "seed=1 lr=0.1"], []),
        (["lr=0.1", "lr=0.1 +vars.a=1", "lr=0.1"], ["vars.a"]),
        (["b=1 a=1", "b=2 a=2", "b=1 a=2 c=3"], ["b", "a", "c"]),
        (["scheduler=cosine", "~scheduler"], ["scheduler"]),
    ],
)
def test_the_keys_that_differ(jobs, right):
    assert varying([record(number, words) for number, words in enumerate(jobs)]) == right


def test_what_sets_a_job_apart():
    assert apart(record(0, "lr=0.1 seed=1 ~scheduler"), ["scheduler", "lr", "width"]) == "~scheduler lr=0.1"


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("0.1", 0.1),
        ("16", 16),
        ("-1e-3", -1e-3),
        ("True", True),
        ("null", None),
        ("", ""),
        ("'a, \"b\"'", 'a, "b"'),
        ("'1'", "1"),
        ("{a:1}", {"a": 1}),
        ("adamw", "adamw"),
        ("${oc.env:HOME}", "${oc.env:HOME}"),
        ("1,2", "1,2"),
        ("schön", "schön"),
        ("a=b", "a=b"),
    ],
)
def test_values_are_those_that_hydra_reads_or_the_text(text, right):
    assert value_of(text) == right
    assert type(value_of(text)) is type(right)


def values(*pairs):
    return [record(number, state=state, value=value) for number, (state, value) in enumerate(pairs)]


@pytest.mark.parametrize(
    ("metric", "jobs", "right"),
    [
        ("accuracy", values((FINISHED, 0.5), (FINISHED, 0.9), (STOPPED, 0.7)), [1, 2, 0]),
        ("-loss", values((FINISHED, 0.5), (FINISHED, 0.9), (STOPPED, -0.7)), [2, 0, 1]),
        ("-test/loss", values((FINISHED, 0.5), (FINISHED, 0.4)), [1, 0]),
        ("accuracy", values((FINISHED, 0.5), (FINISHED, 0.5)), [0, 1]),
        ("-loss", values((FINISHED, 0.5), (FINISHED, 0.5)), [0, 1]),
        ("accuracy", values((FINISHED, math.nan), (FINISHED, 0.1), (FINISHED, None)), [1]),
        ("-loss", values((FINISHED, math.nan), (FINISHED, -math.inf), (FINISHED, None), (FINISHED, 1.0)), [3]),
        ("accuracy", values((FAILED, 0.9), (PRUNED, 0.9), (PREEMPTED, 0.9), (RUNNING, 0.9), (WAITING, None)), []),
        ("accuracy", [], []),
        (None, values((FINISHED, 0.5)), []),
    ],
)
def test_the_best_jobs_come_first(metric, jobs, right):
    assert [job.number for job in ranked(jobs, metric)] == right
    assert best(jobs, metric) == (jobs[right[0]] if right else None)


def test_a_line_for_each_job():
    jobs = [
        finished(0, "optimizer.lr=0.10 model='a,b'", 0.98),
        failed(1, "optimizer.lr=1e-3", cause='rank 1: ValueError: no "x", no y', seconds=1.23456, attempts=2),
        record(2, "+vars.a=${b} optimizer.lr=3"),
    ]
    metrics, ends = "train/loss,train/lr,test/loss,test/accuracy,test/rows", "value,seconds,attempts,cause,folder"
    assert to_csv(jobs).split("\n") == [
        f"number,state,optimizer.lr,model,vars.a,{metrics},{ends}",
        '0,finished,0.10,"a,b",,0.25,0.1,0.5,0.98,7,0.98,2.1,1,,0',
        '1,failed,1e-3,,,,,,,,,1.235,2,"rank 1: ValueError: no ""x"", no y",1',
        "2,waiting,3,,${b},,,,,,,0.0,0,,2",
        "",
    ]


def test_no_jobs_are_a_head_alone():
    assert to_csv([]) == "number,state,value,seconds,attempts,cause,folder\n"


LETTERS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)


@given(st.lists(st.tuples(LETTERS, LETTERS, st.floats(allow_nan=False)), min_size=1, max_size=4))
def test_what_is_written_is_what_is_read(jobs):
    records = [
        Record(number, (f"text={text}",), f"{cause}/{number}", FAILED, metrics={"test/loss": loss}, cause=cause)
        for number, (text, cause, loss) in enumerate(jobs)
    ]
    lines = list(csv.DictReader(io.StringIO(to_csv(records), newline=""), strict=True))
    texts = [str(value_of(text)) if isinstance(value_of(text), str) else text for text, _, _ in jobs]
    assert [line["text"] for line in lines] == texts
    assert [(line["cause"], float(line["test/loss"])) for line in lines] == [(cause, loss) for _, cause, loss in jobs]
    assert [line["folder"] for line in lines] == [each.folder for each in records]


JOBS = [
    finished(0, "optimizer.lr=0.1 model.width=16 trainer.epochs=2", 0.91, 0.3),
    finished(1, "optimizer.lr=0.1 model.width=32 trainer.epochs=2", 0.98333, 0.05, seconds=125, state=STOPPED),
    failed(2, "optimizer.lr=1 model.width=16 trainer.epochs=2", step=12),
    failed(3, "optimizer.lr=1 model.width=32 trainer.epochs=2"),
]


def test_the_words_at_the_end():
    command = "python -m launcher optimizer.lr=0.1 model.width=32 trainer.epochs=2"
    assert summary(JOBS, "accuracy", command, Path("multirun/1")).split("\n") == [
        "sweep            4 jobs: 1 finished, 1 stopped, 2 failed; folder multirun/1",
        "job   lr  width  state     step  test/accuracy  test/loss  train/loss      time  devices",
        "  1  0.1     32  stopped     40         0.9833     0.0500      0.0250  2:05 min  0,1",
        "  0  0.1     16  finished    40         0.9100     0.3000      0.1500     2.1 s  0,1",
        "  2    1     16  failed      12",
        "  3    1     32  failed",
        "failed           jobs 2,3: rank 0 was killed by SIGSEGV; see multirun/1/2/console.log",
        "best             job 1: accuracy 0.9833 with optimizer.lr=0.1 model.width=32",
        "repeat it with   python -m launcher optimizer.lr=0.1 model.width=32 trainer.epochs=2",
    ]


def test_the_words_at_the_end_on_a_narrow_terminal():
    assert summary(JOBS, "-loss", None, width=40).split("\n") == [
        "sweep            4 jobs: 1 finished, 1 stopped, 2 failed; folder .",
        "job   lr  width  state     test/loss",
        "  0  0.1     16  finished     0.3000",
        "  1  0.1     32  stopped      0.0500",
        "  2    1     16  failed",
        "  3    1     32  failed",
        "failed           jobs 2,3: rank 0 was killed by SIGSEGV; see 2/console.log",
        "best             job 0: loss 0.9100 with optimizer.lr=0.1 model.width=16",
    ]


def test_a_long_sweep_is_told_in_short():
    jobs = [finished(number, f"seed={number}", number / 100) for number in range(50)]
    jobs += [failed(number, f"seed={number}", cause=f"cause {number % 12}") for number in range(50, 98)]
    lines = summary(jobs, "accuracy", None).split("\n")
    assert lines[0] == "sweep            98 jobs: 50 finished, 48 failed; folder ."
    assert [line.split()[0] for line in lines[2:22]] == [str(number) for number in range(49, 29, -1)]
    assert lines[22] == "and 78 more: see results.csv"
    assert lines[23] == "failed           jobs 50,62,74,86: cause 2; see 50/console.log"
    assert lines[33:] == [
        "failed           8 more, of other causes: see results.csv",
        "best             job 49: accuracy 0.4900 with seed=49",
    ]


@pytest.mark.parametrize(
    ("jobs", "metric", "right"),
    [
        (JOBS, None, "unknown: sweep.metric is null; set e.g. sweep.metric=accuracy or sweep.metric=-loss"),
        (JOBS[2:], "-loss", "none: no job came to its end with a value of loss"),
        (JOBS[:1], "accuracy", "job 0: accuracy 0.9100 with optimizer.lr=0.1 model.width=16 trainer.epochs=2"),
        ([finished(5, "", 0.5)], "accuracy", "job 5: accuracy 0.5000"),
    ],
)
def test_the_word_about_the_best(jobs, metric, right):
    assert summary(jobs, metric, None).split("\n")[-1] == f"best             {right}"


@pytest.mark.parametrize(
    ("text", "width", "right"),
    [("abcdefghij", 10, "abcdefghij"), ("abcdefghij", 9, "abc...hij"), ("漢字漢字漢字", 9, "漢 ... 字"), ("ab", 0, "")],
)
def test_texts_are_cut_in_the_middle(text, width, right):
    assert cut(text, width) == right


def test_what_cannot_be_written_is_said_and_the_rest_is(tmp_path):
    records = [finished(0, "lr=0.1", 0.9), replace(finished(1, "lr=0.2", 0.8), folder="x" * 300)]
    ledger = Ledger(tmp_path, Definition((), {}, None), records)
    (tmp_path / "results.csv").mkdir()
    lacks = write_results(ledger, "finished", None)
    assert [text.partition(" cannot")[0] for text in lacks] == ["results.csv", "the HPARAMS page"]
    assert json.loads((tmp_path / "sweep.json").read_text())["state"] == "finished"
    assert [path.name for path in tmp_path.glob(".*")] == []
