"""Stores that ranks of one machine meet at."""

from __future__ import annotations

import socket

import torch.distributed as dist


def new_store(*, everywhere: bool = False) -> dist.TCPStore:
    """A store on a port that nobody else has; for this machine alone unless it is to be found ``everywhere``."""
    with socket.socket() as listener:
        listener.bind(("" if everywhere else "127.0.0.1", 0))
        listener.listen(socket.SOMAXCONN)
        port = listener.getsockname()[1]
        return dist.TCPStore(
            "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )
