"""How a node is reached by others, and the interface that ranks take for it."""

import os
import socket
import threading

import psutil
import pytest
import torch.distributed as dist

from launcher.processes import group
from launcher.processes.environment import Rank
from launcher.processes.network import address_towards, interface_of, is_here, is_loopback

LOOPBACK = next(
    name for name, known in psutil.net_if_addrs().items() if any(address.address == "127.0.0.1" for address in known)
)


def test_the_way_to_this_node_is_the_loopback_interface():
    assert address_towards("127.0.0.1", 1) == "127.0.0.1"
    assert interface_of("127.0.0.1") == LOOPBACK
    assert interface_of("192.0.2.1") is None


def test_this_node_is_known_by_its_name_and_by_its_addresses():
    assert is_here(socket.gethostname())
    assert is_here("localhost")
    assert is_here("127.0.1.1")
    assert not is_here("192.0.2.1")


def test_addresses_that_mean_this_node_anywhere_are_told_from_others():
    assert [address for address in ("127.0.1.1", "::1", "10.77.0.1", "fe80::1%eth0") if is_loopback(address)] == [
        "127.0.1.1",
        "::1",
    ]


ROUTES = {"node0": "127.0.1.1", "10.0.0.2": "10.0.0.1"}


@pytest.mark.parametrize(
    ("host", "others", "name"),
    [
        ("10.0.0.2", [], "wire1"),
        ("node0", ["127.0.1.1", "10.0.0.2"], "wire1"),
        ("node0", ["127.0.1.1", "127.0.1.1"], "loop"),
    ],
    ids=["the store is elsewhere", "the store is here", "all nodes are this machine"],
)
def test_ranks_take_the_interface_that_leads_to_the_other_nodes(monkeypatch, host, others, name):
    interfaces = {"10.0.0.1": "wire1", "127.0.1.1": "loop"}
    monkeypatch.setattr(group, "address_towards", lambda to, _: ROUTES.get(to, to))
    monkeypatch.setattr(group, "interface_of", interfaces.get)
    monkeypatch.setenv(group.INTERFACE, "undone by the test")
    monkeypatch.delenv(group.INTERFACE)
    store = dist.HashStore()
    for rank, address in enumerate(others):
        store.set(f"address/{rank}", address)
    group._reach_the_other_nodes(store, Rank(rank=0, world_size=2, host=host, port=1), 2)
    assert os.environ[group.INTERFACE] == name


def test_an_interface_that_the_user_chose_stays(monkeypatch):
    monkeypatch.setenv(group.INTERFACE, "mine")
    group._reach_the_other_nodes(dist.HashStore(), Rank(world_size=2, local_world_size=1, host="127.0.0.1", port=1), 1)
    assert os.environ[group.INTERFACE] == "mine"


def test_the_store_of_ranks_of_one_node_is_closed_to_others():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ranks = [Rank(rank, 2, rank, 2, "127.0.0.1", port, "slurm") for rank in range(2)]
        with pytest.raises(OSError, match="Address already in use"):
            group.meet(ranks[0])
    stores = []
    other = threading.Thread(target=lambda: stores.append(group.meet(ranks[1])))
    other.start()
    stores.append(group.meet(ranks[0]))
    other.join()
    stores[0].set("key", "value")
    assert stores[1].get("key") == b"value"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port)).close()
