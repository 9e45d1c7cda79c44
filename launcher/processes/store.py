"""Stores that are kept in this process, for ranks to meet at."""

from __future__ import annotations

import socket
from datetime import timedelta

import torch.distributed as dist

HERE = "127.0.0.1"
TIMEOUT = timedelta(seconds=300)


def new_store(
    *, everywhere: bool = False, port: int = 0, ranks: int | None = None, timeout: timedelta = TIMEOUT
) -> dist.TCPStore:
    """A store for this machine alone, unless it is to be found ``everywhere``.

    Args:
        everywhere: whether other machines find it.
        port: where it listens; 0: one that nobody else has.
        ranks: for which it waits, this one among them; None: for none.
        timeout: of waiting, for them and in the store.

    Raises:
        OSError: where somebody else has the port.
    """
    with socket.create_server(("" if everywhere else HERE, port), backlog=socket.SOMAXCONN) as listener:
        return dist.TCPStore(
            HERE,
            listener.getsockname()[1],
            ranks,
            is_master=True,
            timeout=timeout,
            wait_for_workers=ranks is not None,
            master_listen_fd=listener.detach(),
        )
