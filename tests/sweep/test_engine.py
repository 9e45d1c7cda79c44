"""The jobs of a sweep: when they start, on which devices, what becomes of them; without processes."""

import json
from itertools import count
from types import SimpleNamespace

import pytest

from launcher.files import DISK
from launcher.observe.status import Status, read_status
from launcher.processes.signals import Terminated, Wish
from launcher.sweep import engine
from launcher.sweep.halt import GONE, LauncherGoneError
from launcher.sweep.outcome import cause_of, last_words, printed
from launcher.sweep.plugin import Listed
from launcher.sweep.pool import Pool
from tests.sweep.fakes import FakeCrew, after, engine_of, job_of


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(engine, "LOOK_S", 0.0)
    monkeypatch.setattr(engine, "STATUS_S", 0.0)


def crew_of(scripts, parallel=1, devices="ab", per_job=1):
    return FakeCrew(Pool(devices, parallel), per_job, dict(enumerate(scripts)), parallel)


def states(swept):
    return [record.state for record in swept.ledger.records]


def test_a_slot_that_is_free_is_filled_at_once(tmp_path):
    crew = crew_of([[after(50)], [after(10)], [after(10)], [after(10)]], parallel=2)
    swept = engine_of(tmp_path, crew)
    swept.run(Listed(job_of(tmp_path, n) for n in range(4)))
    assert states(swept) == ["finished"] * 4
    assert swept.view.shown <= 52  # 5, 1, 1, 1 on two slots: as long as the longest


def test_sets_of_devices_never_overlap(tmp_path):
    crew = crew_of([[after(1 + (7 * n) % 5)] for n in range(20)], parallel=2, devices="abcd", per_job=2)
    engine_of(tmp_path, crew).run(Listed(job_of(tmp_path, n) for n in range(20)))
    assert len(crew.history) == 20
    for held in crew.history:
        names = [name for devices in held.values() for name in devices]
        assert len(names) == len(set(names)) == 2 * len(held)
    assert max(len(held) for held in crew.history) == 2


def test_a_job_that_fails_is_named_and_the_others_go_on(tmp_path):
    crew = crew_of([[after(2)], [after(2, status=-11, state="running")], [after(2)]])
    swept = engine_of(tmp_path, crew)
    swept.run(Listed(job_of(tmp_path, n) for n in range(3)))
    assert states(swept) == ["finished", "failed", "finished"]
    assert swept.ledger.records[1].cause == "rank 0 was killed by SIGSEGV"


@pytest.mark.parametrize("most", [1, 2])
def test_so_many_failures_end_a_sweep(tmp_path, most):
    crew = crew_of([[after(1, status=1, state="running")]] * 4)
    swept = engine_of(tmp_path, crew, most_failures=most)
    swept.run(Listed(job_of(tmp_path, n) for n in range(4)))
    assert len(crew.started) == most
    assert states(swept) == ["failed"] * most + ["waiting"] * (len(states(swept)) - most)


def test_restarts_are_for_jobs_that_may_have_them(tmp_path):
    failing, ending = after(1, status=1, state="running"), after(1)
    crew = crew_of([[failing, failing, ending], [failing, ending], [after(1, status=2, state="running"), ending]])
    swept = engine_of(tmp_path, crew)
    swept.run(Listed([job_of(tmp_path, 0, max_restarts=2), job_of(tmp_path, 1), job_of(tmp_path, 2, max_restarts=1)]))
    assert crew.started == [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0)]
    assert states(swept) == ["finished", "failed", "failed"]
    assert [record.attempts for record in swept.ledger.records] == [3, 1, 1]


def test_a_job_that_runs_too_long_is_ended(tmp_path, monkeypatch):
    seconds = count()
    clock = SimpleNamespace(monotonic=lambda: next(seconds), sleep=lambda _: None)
    monkeypatch.setattr(engine, "time", clock)
    crew = crew_of([[after(10**9)], [after(1)]])
    swept = engine_of(tmp_path, crew, timeout_s=20)
    swept.run(Listed(job_of(tmp_path, n) for n in range(2)))
    assert states(swept) == ["failed", "finished"]
    assert swept.ledger.records[0].cause == "ran past sweep.job_timeout_s=20"


def test_jobs_of_the_same_settings_run_once(tmp_path):
    crew = crew_of([[after(3, metrics={"test/accuracy": 0.5})]] * 4, parallel=2)
    swept = engine_of(tmp_path, crew, metric="accuracy")
    overrides = [("a=0.1", "b=1"), ("b=1", "a=0.10"), ("a=0.2", "b=1"), ("a=0.2", "+b=1")]
    swept.run(Listed(job_of(tmp_path, n, *words) for n, words in enumerate(overrides)))
    assert crew.started == [(0, 0), (2, 0)]
    assert [record.same_as for record in swept.ledger.records] == [None, 0, None, 2]
    assert [record.value for record in swept.ledger.records] == [0.5] * 4
    assert swept.view.said[0] == "job 1 has the settings of job 0, whose results it takes"


@pytest.mark.parametrize(
    ("metrics", "value"), [({"test/accuracy": 0.5}, 0.5), ({}, None), ({"test/accuracy": None}, None)]
)
def test_the_value_of_a_job_is_the_last_of_its_metric(tmp_path, metrics, value):
    swept = engine_of(tmp_path, crew_of([[after(1, metrics=metrics)]]), metric="accuracy")
    swept.run(Listed([job_of(tmp_path, 0)]))
    assert swept.ledger.records[0].value == value


def test_a_sweep_that_goes_on_runs_what_is_missing(tmp_path):
    first = engine_of(tmp_path, crew_of([[after(1)], [after(1, status=1, state="running")], [after(1)]]))
    first.run(Listed(job_of(tmp_path, n) for n in range(2)))
    crew = crew_of([[after(1)]] * 4)
    second = engine_of(tmp_path, crew)
    second.run(Listed(job_of(tmp_path, n) for n in range(4)))
    assert crew.started == [(1, 0), (2, 0), (3, 0)]
    assert states(second) == ["finished"] * 4


def test_the_file_holds_every_job_at_every_moment(tmp_path):
    found = []

    class Looking(Listed):
        def tell(self, _record):
            found.append(json.loads((tmp_path / "sweep.json").read_text())["jobs"])

    engine_of(tmp_path, crew_of([[after(1)]] * 3)).run(Looking(job_of(tmp_path, n) for n in range(3)))
    assert [[job["state"] for job in jobs] for jobs in found] == [["finished"] * n for n in (1, 2, 3)]


@pytest.mark.parametrize("kind", ["deaf", "lost"])
def test_a_job_that_does_not_end_when_asked_is_killed_once(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(engine, "GRACE_S", 0.02)
    monkeypatch.setattr(engine, "LOST_S", 0.02)
    teams = []
    crew = crew_of([[after(10**9, **{kind: True})], [after(1)]])
    start = crew.start
    crew.start = lambda *words: teams.append(start(*words)) or teams[-1]
    swept = engine_of(tmp_path, crew, timeout_s=0.02)
    swept.run(Listed(job_of(tmp_path, n) for n in range(2)))
    assert states(swept) == ["failed", "finished"]
    assert teams[0].told == [15, 9]
    cause = "ran past sweep.job_timeout_s=0.02; it was killed, since it did not end by itself"
    assert swept.ledger.records[0].cause == cause


@pytest.mark.parametrize("wish", [None, Wish("SIGINT", 0)])
def test_a_job_that_was_killed_leaves_its_end_in_its_status(tmp_path, monkeypatch, wish):
    monkeypatch.setattr(engine, "GRACE_S", 0.02)
    swept = engine_of(tmp_path, crew_of([[after(10**9, deaf=True)]]), timeout_s=None if wish else 0.02)
    crew, start = swept.crew, swept.crew.start

    def start_and_end(*words):
        swept.signals = SimpleNamespace(wish=wish)
        return start(*words)

    crew.start = start_and_end
    swept.run(Listed([job_of(tmp_path, 0)]))
    record, status = swept.ledger.records[0], read_status(tmp_path / "0")
    assert (status.state, record.state) == (("preempted",) * 2 if wish else ("failed",) * 2)
    assert (status.error or {}).get("message", "") == ("" if wish else record.cause)


def test_what_is_stopped_at_once_can_go_on(tmp_path):
    crew = crew_of([[after(1)], [after(10**9)], [after(10**9)]], parallel=2)
    swept = engine_of(tmp_path, crew)

    def stop(_records):
        if states(swept) == ["finished", "running", "running"]:
            raise Terminated

    for number in range(3):
        (tmp_path / str(number)).mkdir()
    swept.view.show = stop
    with pytest.raises(Terminated):
        swept.run(Listed(job_of(tmp_path, n) for n in range(3)))
    content = json.loads((tmp_path / "sweep.json").read_text())
    assert content["state"] == "preempted"
    assert [job["state"] for job in content["jobs"]] == ["finished", "preempted", "preempted"]
    assert read_status(tmp_path / "1").state == read_status(tmp_path / "2").state == "preempted"
    assert not crew.held


@pytest.mark.parametrize("said", ['{"state": "finished"}', '{"error": {"type": "ValueError", "message": "of before"}}'])
def test_what_was_said_before_a_job_started_is_not_its_end(tmp_path, said):
    crew = crew_of([[after(1, status=2, silent=True)], [after(1, silent=True)]])
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "status.json").write_text(said if number == 0 else '{"state": "finished"}')
    swept = engine_of(tmp_path, crew)
    swept.run(Listed(job_of(tmp_path, n) for n in range(2)))
    assert [(record.state, record.cause) for record in swept.ledger.records] == [
        ("failed", "rank 0 ended with exit status 2 and no word"),
        ("finished", ""),  # it had nothing more to do
    ]


def test_a_job_whose_ranks_cannot_be_started_fails_alone(tmp_path):
    crew = crew_of([[after(1)]] * 2)
    swept = engine_of(tmp_path, crew)

    def order(job):
        if job.number == 0:
            raise OSError(36, "File name too long")
        return job.run_dir

    swept.order = order
    swept.run(Listed(job_of(tmp_path, n) for n in range(2)))
    assert states(swept) == ["failed", "finished"]
    assert swept.ledger.records[0].cause == "it could not be started: [Errno 36] File name too long"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), OSError(122, "Disk quota exceeded")])
def test_where_no_job_can_be_started_for_lack_of_room_the_others_wait(tmp_path, error):
    told, crew = [], crew_of([[after(1)]] * 4)
    swept = engine_of(tmp_path, crew)
    source = Listed(job_of(tmp_path, n) for n in range(4))
    source.tell = told.append

    def order(job):
        if job.number == 1:
            raise error
        return job.run_dir

    swept.order = order
    swept.run(source)
    assert states(swept) == ["finished", "waiting"]
    assert swept.ledger.records[1].attempts == 0
    assert [record.number for record in told] == [0]
    said = f"{tmp_path / '1'} cannot be written ({error.strerror}): no more jobs are started"
    assert swept.view.said == [f"{said}; once there is room, the same command goes on"]


def test_without_its_launcher_a_sweep_starts_no_more_jobs(tmp_path):
    crew = crew_of([[after(1)]] * 3)
    swept, start = engine_of(tmp_path, crew), crew.start

    def start_or_not(job, *words):
        if job.number == 1:
            raise LauncherGoneError
        return start(job, *words)

    crew.start = start_or_not
    swept.run(Listed(job_of(tmp_path, n) for n in range(3)))
    assert states(swept) == ["finished", "waiting"]
    assert swept.view.said == [GONE]


@pytest.mark.parametrize("broken", ["ask", "tell", "prunes"])
def test_a_search_that_cannot_write_is_left_alone(tmp_path, broken):
    heard, crew = [], crew_of([[after(3, metrics={"test/loss": 1.0})]] * 3)
    source = Listed(job_of(tmp_path, n) for n in range(3))

    def full(*_):
        heard.append(broken)
        raise OSError(28, "No space left on device")

    setattr(source, broken, full)
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "status.json").write_text('{"metrics": {"test/loss": 1.0}}')
    swept = engine_of(tmp_path, crew)
    swept.run(source)
    assert heard == [broken]
    assert states(swept) == ([] if broken == "ask" else ["finished"])
    assert len(swept.view.said) == 1
    assert swept.view.said[0].startswith(f"{tmp_path} cannot be written (No space left on device): no more jobs")


def test_what_is_not_written_down_is_not_told(tmp_path, monkeypatch):
    swept, told = engine_of(tmp_path, crew_of([[after(1)]])), []

    def full(_state):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(swept.ledger, "write", full)
    source = Listed([job_of(tmp_path, 0)])
    source.tell = told.append
    swept.run(source)
    assert told == []


def test_what_could_not_be_written_down_is_told_once_it_is(tmp_path, monkeypatch):
    swept, told = engine_of(tmp_path, crew_of([[after(1)], [after(1)]])), []
    write = swept.ledger.write

    def full_for_a_while(state):
        if [record.state for record in swept.ledger.records] == ["finished"]:
            raise OSError(28, "No space left on device")
        write(state)

    monkeypatch.setattr(swept.ledger, "write", full_for_a_while)
    source = Listed(job_of(tmp_path, number) for number in range(2))
    source.tell = told.append
    swept.run(source)
    assert [(record.number, record.state) for record in told] == [(0, "finished"), (1, "finished")]


def test_a_full_disk_is_said_once_and_ends_no_job(tmp_path, monkeypatch):
    swept = engine_of(tmp_path, crew_of([[after(1)]] * 3))

    def full(_state):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(swept.ledger, "write", full)
    swept.run(Listed(job_of(tmp_path, n) for n in range(3)))
    assert states(swept) == ["finished"] * 3
    assert [text for text in swept.view.said if "cannot be written" in text] == [
        "the sweep's file cannot be written: [Errno 28] No space left on device; what is over now may run once more"
    ]


def test_the_twin_of_a_failed_job_is_no_failure_of_its_own(tmp_path):
    crew = crew_of([[after(1, status=1, state="running")], [after(1)], [after(1)]])
    swept = engine_of(tmp_path, crew, most_failures=2)
    swept.run(Listed([job_of(tmp_path, 0, "a=1"), job_of(tmp_path, 1, "a=1"), job_of(tmp_path, 2, "a=2")]))
    assert states(swept) == ["failed", "failed", "finished"]


class Pruning(Listed):
    def prunes(self, record):
        return record.metrics.get("test/accuracy") == 0.1


def test_a_job_that_is_not_worth_it_is_ended(tmp_path):
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "status.json").write_text(json.dumps({"metrics": {"test/accuracy": 0.1}}))
    swept = engine_of(tmp_path, crew_of([[after(10**9, metrics={"test/accuracy": 0.1})]]), metric="accuracy")
    swept.run(Pruning([job_of(tmp_path, 0)]))
    assert [(record.state, record.value) for record in swept.ledger.records] == [("pruned", 0.1)]


@pytest.mark.parametrize(
    ("error", "statuses", "killed", "cause"),
    [
        (None, {0: -11}, 0, "rank 0 was killed by SIGSEGV"),
        (None, {0: -9}, 0, "rank 0 was killed by SIGKILL"),
        (None, {0: -9}, 1, "rank 0 was killed by SIGKILL: the system ran out of memory"),
        (None, {0: 3}, 0, "rank 0 ended with exit status 3"),
        (None, {0: 2}, 0, "rank 0 ended with exit status 2 and no word"),
        (
            None,
            {1: 255},
            0,
            "the process that ranks are forked from was killed, or rank 1 ended with exit status 255",
        ),
        ((0, "MemoryError", ""), {0: 1}, 0, "rank 0: MemoryError"),
        (None, {0: 0}, 0, "its processes ended before the run did"),
        ((1, "ValueError", "first\nsecond"), {0: 1, 1: 1}, 0, "rank 1: ValueError: first"),
        ((1, "RankLost", "is gone"), {0: 1, 1: -11}, 0, "rank 1 was killed by SIGSEGV"),
        ((1, "RankLost", "is gone"), {0: 1}, 0, "rank 1: RankLost: is gone"),
        ((1, "RankSilent", "is silent"), {0: 1, 1: -9}, 0, "rank 1: RankSilent: is silent"),
    ],
)
def test_the_cause_is_what_ended_first(error, statuses, killed, cause):
    status = Status(error=dict(zip(("rank", "type", "message"), error, strict=True)) if error else None)
    failed = [(rank, code) for rank, code in statuses.items() if code]
    assert cause_of(status, statuses, failed[0] if failed else None, killed) == cause


def test_the_last_words_of_a_job_are_the_last_error_that_this_start_printed(tmp_path, monkeypatch):
    console = tmp_path / "console.log"
    assert (printed(tmp_path), last_words(tmp_path, 0)) == (0, "")
    console.write_text("error: of before\n")
    before = printed(tmp_path)
    assert last_words(tmp_path, before) == ""
    monkeypatch.setattr(DISK, "free", lambda _: 0)
    assert last_words(tmp_path, before) == f"it ended without a word, and {tmp_path} has no room left"
    console.write_text("error: of before\nerror: seed=x is none\nerror: seed=y is none\n       the rest\n")
    assert last_words(tmp_path, before) == "seed=y is none"
    assert cause_of(Status(), {0: 2}, (0, 2), 0, "seed=y is none") == "seed=y is none"
