"""Two nodes on one machine: network namespaces joined by a cable, where each command sees a machine of its own.

Example::

    with two_nodes() as nodes:
        processes = [node.start(folder, [sys.executable, "-m", "launcher", ...]) for node in nodes]

Needs root, and skips the test elsewhere.
"""

import os
import subprocess
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PORT = 29400
ISOLATED = ("unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")


@dataclass(frozen=True)
class Node:
    """A network namespace with one end of the cable.

    Attributes:
        name: of the namespace, and of the host, which no name service knows.
        address: at its end of the cable.
        interface: that has it.
        started: what was started there.
    """

    name: str
    address: str
    interface: str
    started: list = field(default_factory=list)

    def start(self, folder, command, **environment):
        """Start ``command`` in ``folder`` on a machine of its own as far as it can see.

        To kill what is returned is to switch that machine off. It stands for the command but gets no signals for it.
        """
        folder.mkdir(parents=True, exist_ok=True)
        named = ["sh", "-c", 'hostname "$0" && "$@"; exit $?', self.name, *command]
        unset = ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME")
        variables = {name: value for name, value in os.environ.items() if name not in unset}
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.name, *ISOLATED, *named],
            cwd=folder,
            env={**variables, "PYTHONPATH": str(ROOT), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def unplug(self):
        """Pull the cable: nothing is answered any more, and nothing is refused."""
        _ip("-n", self.name, "link", "set", self.interface, "down")


@contextmanager
def two_nodes():
    """Two nodes for the length of the block; whatever runs on them ends with it."""
    mark = uuid.uuid4().hex[:8]
    nodes = tuple(Node(f"node{n}-{mark}", f"10.77.0.{n + 1}", f"cable{n}") for n in range(2))
    made = [node for node in nodes if _ip("netns", "add", node.name)]
    try:
        if len(made) < len(nodes) or not _joined(*nodes):
            pytest.skip("two nodes on one machine need root, network namespaces and iproute2")
        yield nodes
    finally:
        for node in made:
            _clear(node)


def _joined(first, second):
    ends = ("type", "veth", "peer", "name", second.interface, "netns", second.name)
    made = _ip("link", "add", first.interface, "netns", first.name, *ends)
    made = made and subprocess.run([*ISOLATED, "true"], capture_output=True, check=False).returncode == 0
    return made and all(
        _ip("-n", node.name, *words)
        for node in (first, second)
        for words in (
            ("link", "set", "lo", "up"),
            ("addr", "add", f"{node.address}/24", "dev", node.interface),
            ("link", "set", node.interface, "up"),
        )
    )


def _clear(node):
    for process in node.started:
        process.kill()
        process.communicate()
    _ip("netns", "del", node.name)


def _ip(*words):
    try:
        return subprocess.run(["ip", *words], capture_output=True, check=False).returncode == 0
    except OSError:
        return False
