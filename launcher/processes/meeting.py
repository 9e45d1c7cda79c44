"""Where the agents of a run's nodes meet, by torch's rendezvous."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from launcher.processes.errors import first_line
from launcher.processes.network import address_towards, is_here, is_loopback

T = TypeVar("T")

HERE = "127.0.0.1"
"""Found also where the name of this host does not resolve; reached by nobody else."""
PORT = 29400
CLOSING_S = 5.0


class Patient(RendezvousHandler):
    """A rendezvous whose agent watches over its ranks also where the other nodes are gone or cut off.

    Whether nodes wait to take part is asked aside: without an answer the agent would see nothing else for as long as
    a connection takes to break, which can be a quarter of an hour. What became of the others its ranks find out.

    In every round the first node tells anew where the ranks meet: torch's handlers remember what they heard in their
    first, so that a node that comes later would wait for it forever.

    Args:
        handler: that does the work.
    """

    def __init__(self, handler: RendezvousHandler) -> None:
        self._handler = handler
        self._asked: Future[int] | None = None

    @property
    def use_agent_store(self) -> bool:
        """As the handler has it."""
        return self._handler.use_agent_store

    def get_backend(self) -> str:
        """As the handler has it."""
        return self._handler.get_backend()

    def get_run_id(self) -> str:
        """As the handler has it."""
        return self._handler.get_run_id()

    def next_rendezvous(self) -> RendezvousInfo:
        """Meet the others."""
        self._asked = None
        met = self._handler.next_rendezvous()
        if met.bootstrap_store_info is None:
            return met
        known = met.bootstrap_store_info
        told = RendezvousStoreInfo.build(met.rank, met.store, known.master_addr, known.master_port)
        return RendezvousInfo(met.store, met.rank, met.world_size, told)

    def is_closed(self) -> bool:
        """Whether nobody meets there any more."""
        return self._handler.is_closed()

    def set_closed(self) -> None:
        """From here on nobody meets there any more."""
        self._handler.set_closed()  # type: ignore[no-untyped-call]

    def num_nodes_waiting(self) -> int:
        """How many nodes wait to take part; 0 as long as that is not known."""
        asked = self._asked = self._asked or _aside(self._handler.num_nodes_waiting)
        if not asked.done():
            return 0
        self._asked = None
        return 0 if asked.exception() else asked.result()

    def shutdown(self) -> bool:
        """Close the meeting, if that can be done within seconds."""
        closing = _aside(self._handler.shutdown)
        wait([closing], CLOSING_S)
        return closing.done()


def _aside(work: Callable[[], T]) -> Future[T]:
    """What ``work`` gives in a thread of its own, which nothing waits for."""
    future: Future[T] = Future()

    def do() -> None:
        try:
            future.set_result(work())
        except Exception as error:  # noqa: BLE001 - for whoever asks
            future.set_exception(error)

    threading.Thread(target=do, daemon=True).start()
    return future


@dataclass(frozen=True)
class Meeting:
    """Where the nodes of a run meet, in the words of torchrun; without any, this node is the only one.

    Attributes:
        endpoint: where.
        nodes: the fewest and the most nodes that take part.
        backend: how they meet.
        run_id: what tells apart runs that meet at the same place.
        conf: further settings of the backend.
        node_rank: which of the nodes this is, for the backend static.
        local_addr: address of this node for the others; None: the one from which it reaches ``endpoint``.
    """

    endpoint: str = f"{HERE}:0"
    nodes: tuple[int, int] = (1, 1)
    backend: str = "c10d"
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    conf: Mapping[str, Any] = field(default_factory=dict)
    node_rank: int | None = None
    local_addr: str | None = None

    @property
    def place(self) -> tuple[str, int] | None:
        """Host and port of ``endpoint``; None where it is a file."""
        if self.conf.get("store_type") == "file":
            return None
        host, port = parse_rendezvous_endpoint(self.endpoint, PORT)
        return host, port

    @property
    def fixed_place(self) -> dict[str, Any]:
        """What the ranks meet at, where that is settled beforehand."""
        if self.backend != "static" or self.place is None:
            return {}
        return {"master_addr": self.place[0], "master_port": self.place[1]}

    def address(self) -> str | None:
        """The address of this node for the others; None: whatever its name stands for.

        Raises:
            OSError: where the host of ``endpoint`` is not known here, or no route leads there.
        """
        if self.local_addr or self.place is None:
            return self.local_addr
        found = address_towards(*self.place)
        return self.place[0] if is_loopback(found) else found  # the others know this node by what it is called there

    def enter(self, address: str | None) -> RendezvousHandler:
        """Meet the others, and keep what they meet at where ``endpoint`` is on this node.

        Raises:
            OSError: where the host of ``endpoint`` is not known here.
            RendezvousError: where nobody answers there.
        """
        conf = dict(self.conf)
        if self.backend == "static":
            conf["rank"] = self.node_rank
        if self.backend != "c10d" or self.place is None or "is_host" in conf:
            return self._handler(address, conf)
        if is_here(self.place[0]):  # torch goes by the name of this host, which may not even resolve
            with suppress(RendezvousConnectionError):  # another agent on this machine keeps it
                return self._handler(address, {**conf, "is_host": True})
        return self._handler(address, {**conf, "is_host": False})

    @property
    def waiting(self) -> str:
        """What this node does meanwhile."""
        return f"this node waits for the others at launch.rdzv_endpoint={self.endpoint}"

    def why_not(self, error: Exception) -> str:
        """What became of the meeting, where ``error`` ended it."""
        least = self.nodes[0]
        if isinstance(error, RendezvousTimeoutError):
            why = f"fewer than {least} nodes came in time (launch.rdzv_conf.join_timeout)"
        else:
            why = first_line(error.__cause__ or error)
        return f"the nodes did not meet at launch.rdzv_endpoint={self.endpoint}: {why}"

    def _handler(self, address: str | None, conf: dict[str, Any]) -> RendezvousHandler:
        least, most = self.nodes
        place = RendezvousParameters(self.backend, self.endpoint, self.run_id, least, most, local_addr=address, **conf)
        return Patient(get_rendezvous_handler(place))
