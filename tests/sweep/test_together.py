"""What rank 0 knows of ranks that other processes started."""

from types import SimpleNamespace

import pytest
import torch.distributed as dist

from launcher.processes.environment import Rank
from launcher.sweep.halt import LauncherGoneError
from launcher.sweep.together import ALL, Channel, Everyone, Together
from tests.sweep.fakes import job_of


class Gone(dist.HashStore):
    """A store whose keeper was killed."""

    def check(self, _keys):
        raise dist.DistNetworkError("Connection reset by peer")

    def set(self, _key, _value):
        raise dist.DistNetworkError("Broken pipe")


def own(*statuses):
    told = []
    return SimpleNamespace(statuses=lambda: dict(enumerate(statuses)), tell=told.append, close=list, told=told)


def test_the_others_report_how_their_rank_ended():
    channel = Channel(dist.HashStore(), "sweep/0")
    everyone = Everyone(channel, 3, own())
    assert everyone.statuses() == {}
    channel.report(2, -11)
    assert everyone.statuses() == {2: -11}


def test_where_nobody_can_report_all_end_as_the_own_rank():
    everyone = Everyone(Channel(Gone(), "sweep/0"), 3, own())
    assert everyone.statuses() == {}
    everyone.own = own(75)
    assert everyone.statuses() == {0: 75, 1: 75, 2: 75}


def test_a_signal_reaches_the_own_rank_also_where_nobody_passes_it_on():
    for store in (dist.HashStore(), Gone()):
        everyone = Everyone(Channel(store, "sweep/0"), 2, own())
        everyone.tell(15)
        everyone.close()
        assert everyone.own.told == [15]


def test_a_job_is_not_started_where_nobody_has_the_others_start_theirs(tmp_path):
    crew = Together(Rank(0, 2, 0, 2), Gone(), {}, None)
    with pytest.raises(LauncherGoneError):
        crew.start(job_of(tmp_path, 0, world_size=2), tmp_path / "job.json", ALL, 0)
