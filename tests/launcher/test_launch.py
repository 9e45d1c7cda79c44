"""What the settings of launch amount to: ranks that a process starts, refusals by name, and launches side by side."""

import sys

import pytest
import torch

from launcher.configure.launch import LaunchConfig
from launcher.configure.start import first_rank, launch_of, starts_ranks
from launcher.processes.environment import Rank
from launcher.processes.errors import SettingsError
from tests.launcher.command import Line, in_turn
from tests.launcher.test_torchrun import OWN_RULE, SHORT, end, start

ALONE = Rank()
MEET = {"nodes": 2, "rdzv_endpoint": "node0:29400"}
PROCESSES = (1, 1, 2, 1)
STATIC = {**MEET, "rdzv_backend": "static"}


def by(starter, **rank):
    return Rank(**{"rank": 0, "world_size": 2, "local_world_size": 2, "started_by": starter, **rank})


@pytest.fixture
def four_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)


@pytest.fixture
def no_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


REFUSED = {
    "no number of processes": ({"processes": "four"}, "launch.processes=four is no number of processes; or set auto"),
    "no processes": ({"processes": 0}, "launch.processes=0 is too small: the least is 1"),
    "yes is no number": ({"processes": True}, "launch.processes=True is no number of processes"),
    "no nodes": ({"nodes": 0}, "launch.nodes=0 is neither a number of nodes nor a range MIN:MAX with 1 <= MIN <= MAX"),
    "nodes the wrong way round": ({"nodes": "3:2"}, "launch.nodes=3:2 is neither a number of nodes nor a range"),
    "nodes that are no number": ({"nodes": "2:x"}, "launch.nodes=2:x is neither a number of nodes nor a range"),
    "nowhere to meet": ({"nodes": 2}, "launch.nodes=2 needs launch.rdzv_endpoint=HOST:PORT, where the nodes meet"),
    "no port": ({"nodes": 2, "rdzv_endpoint": "a:b"}, "launch.rdzv_endpoint=a:b is not of the form HOST:PORT with 0 <"),
    "a port that is none": ({"nodes": 2, "rdzv_endpoint": "a:0"}, "launch.rdzv_endpoint=a:0 is not of the form HOST:"),
    "one node meets nobody": (
        {"rdzv_endpoint": "node0:29400"},
        "launch.rdzv_endpoint=node0:29400 is for several nodes, and launch.nodes=1 is one; leave it out or set",
    ),
    "one node has no number": ({"node_rank": 0}, "launch.node_rank=0 is for several nodes, and launch.nodes=1 is one"),
    "one node needs no address": ({"local_addr": "10.0.0.1"}, "launch.local_addr=10.0.0.1 is for several nodes, and"),
    "one node has no conf": ({"rdzv_conf": {"is_host": 1}}, "launch.rdzv_conf={'is_host': 1} is for several nodes"),
    "one node from one to one": ({"nodes": "1:1", "rdzv_id": "a"}, "launch.rdzv_id=a is for several nodes, and launch"),
    "an unknown backend": ({**MEET, "rdzv_backend": "c10"}, "launch.rdzv_backend=c10 is not one of c10d, static, etcd"),
    "static without a number": (STATIC, "launch.node_rank is missing: launch.rdzv_backend=static needs it on each of"),
    "static beyond the nodes": ({**STATIC, "node_rank": 2}, "launch.node_rank 2 is outside 0 .. 1: launch.rdzv_back"),
    "static without a port": (
        {**STATIC, "rdzv_endpoint": "node0", "node_rank": 0},
        "launch.rdzv_endpoint=node0 is not of the form HOST:PORT",
    ),
    "static with a range": (
        {**STATIC, "nodes": "1:2", "node_rank": 0},
        "launch.rdzv_backend=static must know how many nodes come, and launch.nodes=1:2 is a range; set one number or",
    ),
    "a number that c10d gives": (
        {**MEET, "node_rank": 1},
        "launch.node_rank=1 is for launch.rdzv_backend=static; c10d numbers the nodes itself",
    ),
    "a conf that torch would not read": (
        {**MEET, "rdzv_conf": {"join_timout": 5}},
        "launch.rdzv_conf.join_timout: launch.rdzv_backend=c10d has join_timeout, ",
    ),
    "a conf that is no value": (
        {**MEET, "rdzv_conf": {"join_timeout": [5]}},
        "launch.rdzv_conf.join_timeout=[5] is no text or number",
    ),
    "no such stream": ({"redirects": 4, "log_dir": "logs"}, "launch.redirects=4 is none of 0 (nothing), 1 (stdout), 2"),
    "streams without a folder": ({"tee": 3}, "launch.tee=3 needs a folder for what ranks print; set launch.log_dir"),
    "a folder that stays empty": ({"log_dir": "logs", "tee": 0}, "launch.log_dir=logs would stay empty with launch.re"),
    "looking all the time": ({"monitor_interval_s": 0.0}, "launch.monitor_interval_s=0.0 is too small: the least is"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_contradictions_are_refused_by_name(name):
    settings, message = REFUSED[name]
    with pytest.raises(SettingsError) as caught:
        LaunchConfig(**settings)
    assert str(caught.value).startswith(message)


UNSTARTED = {
    "restarts of a single process": (
        ALONE,
        {"max_restarts": 1},
        "launch.max_restarts=1 is for ranks that launch.proce",
    ),
    "a folder for a single process": (
        ALONE,
        {"log_dir": "logs"},
        "launch.log_dir=logs is for ranks that launch.process",
    ),
    "nodes under torchrun": (
        by("torchrun"),
        MEET,
        (
            "launch.nodes=2 is for ranks that launch.processes starts, and torchrun started these; leave it out, and "
            "give torchrun --nnodes=2"
        ),
    ),
    "a folder under Slurm": (
        by("slurm"),
        {"log_dir": "logs"},
        "launch.log_dir=logs is for ranks that launch.processes starts, and slurm started these; leave it out",
    ),
    "more processes than devices": (
        ALONE,
        {"processes": 5},
        (
            "launch.processes=5 needs 5 CUDA devices, and this node shows 4; set launch.processes=auto for one per "
            "device, or launch.device=cpu"
        ),
    ),
}


@pytest.mark.usefixtures("four_devices")
@pytest.mark.parametrize("name", UNSTARTED)
def test_what_nobody_would_do_is_refused(name):
    rank, settings, message = UNSTARTED[name]
    with pytest.raises(SettingsError) as caught:
        starts_ranks(LaunchConfig(**settings), rank)
    assert str(caught.value).startswith(message)


@pytest.mark.usefixtures("no_devices")
def test_cuda_devices_that_are_asked_for_must_be_there():
    with pytest.raises(
        SettingsError, match=r"^launch\.device=cuda: this node shows no CUDA device; set launch\.device=cpu"
    ):
        starts_ranks(LaunchConfig(processes=2, device="cuda"), ALONE)
    assert starts_ranks(LaunchConfig(processes=2), ALONE)


@pytest.mark.usefixtures("four_devices")
@pytest.mark.parametrize(
    ("settings", "rank", "ranks", "here", "starts"),
    [
        ({}, ALONE, 1, 1, False),
        ({"processes": "auto"}, ALONE, 4, 4, True),
        ({"processes": "auto", "device": "cpu"}, ALONE, 1, 1, False),
        ({"processes": 3}, ALONE, 3, 3, True),
        ({"processes": 7, "device": "cpu"}, ALONE, 7, 7, True),
        ({"processes": 1, "max_restarts": 1}, ALONE, 1, 1, True),
        ({"processes": 1, "log_dir": "logs"}, ALONE, 1, 1, True),
        ({**MEET, "processes": 3}, ALONE, 6, 3, True),
        ({**MEET, "nodes": "2:5", "processes": "auto"}, ALONE, 8, 4, True),
        (MEET, ALONE, 2, 1, True),
        ({"processes": "auto"}, by("torchrun"), 2, 2, False),
        ({"max_restarts": 3}, by("torchrun", max_restarts=3), 2, 2, False),
        ({**MEET, "processes": 5, "log_dir": "logs"}, by("launcher", world_size=9), 9, 2, False),
    ],
)
def test_ranks_are_counted_and_started_by_one(settings, rank, ranks, here, starts):
    launch = LaunchConfig(**settings)
    first = first_rank(launch, rank)
    assert (first.world_size, first.local_world_size) == (ranks, here)
    assert starts_ranks(launch, rank) == starts


@pytest.mark.usefixtures("no_devices")
def test_without_devices_auto_is_one_process():
    assert launch_of(LaunchConfig(processes="auto", max_restarts=1)).processes == 1


@pytest.mark.parametrize(
    ("settings", "streams"),
    [
        ({}, (0, 0)),
        ({"log_dir": "logs"}, (0, 3)),
        ({"log_dir": "logs", "redirects": 1}, (1, 2)),
        ({"log_dir": "logs", "redirects": 3}, (3, 0)),
        ({"log_dir": "logs", "redirects": 1, "tee": 0}, (1, 0)),
    ],
)
def test_what_ranks_print_goes_to_the_folder_and_is_shown_unless_redirected(settings, streams):
    launch = launch_of(LaunchConfig(processes=2, **settings))
    assert (launch.redirects, launch.tee) == streams


def test_the_plan_counts_all_nodes(tmp_path):
    words = ("mode=plan", "launch.nodes=2", "launch.processes=3", "launch.rdzv_endpoint=node0:29400")
    (done,) = in_turn(Line(tmp_path, (*SHORT, *words)))
    assert done.status == 0, done.error
    assert "global batch     12 rows = 6 ranks x 2 rows\n" in done.output


def test_a_mapping_for_the_meeting_is_read_from_the_command_line(tmp_path):
    words = ("launch.nodes=1:2", "launch.rdzv_endpoint=node0:29400", "launch.rdzv_conf={join_timout:5}")
    (done,) = in_turn(Line(tmp_path, (*SHORT, *words)))
    assert (done.status, done.error.count("\n")) == (2, 1)
    assert "; did you mean 'join_timeout'?" in done.error


def test_four_launches_at_once_each_with_what_its_ranks_print(tmp_path):
    words = (*SHORT, OWN_RULE, "launch.log_dir=printed", "launch.redirects=1")
    command = [sys.executable, "-m", "launcher", *words]
    folders = [tmp_path / str(number) for number in range(4)]
    launches = [start(f, [*command, f"launch.processes={n}"]) for f, n in zip(folders, PROCESSES, strict=True)]
    for folder, ranks, launch in zip(folders, PROCESSES, launches, strict=True):
        status, output, error = end(launch)
        assert status == 0, error
        assert output == ""
        printed = [path.read_text() for path in sorted((folder / "printed").rglob("stdout.log"))]
        assert len(printed) == ranks
        assert printed[0].count("global batch     12 rows = ") == 1
        assert not any(printed[1:])
