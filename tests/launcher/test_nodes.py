"""Runs on two nodes: whoever starts their ranks, and whatever becomes of one of them."""

import re
import sys
from functools import partial

from tests.launcher.nodes import PORT, two_nodes
from tests.launcher.test_signals import ENDLESS, kept_after, state_of, trains, wait_for

PATIENT = ("hydra.run.dir=run", "launch.timeout_s=8", "checkpoint.every_seconds=0.5")
PATIENCE_S = 180.0
STATIC = ("launch.nodes=2", "launch.rdzv_backend=static", "launch.node_rank={n}")
SOON = "{last_call_timeout: 1, keep_alive_interval: 1}"
ELASTIC = ("launch.nodes=1:2", "launch.max_restarts=2", f"launch.rdzv_conf={SOON}")
WORDS = (*ENDLESS, *PATIENT)


def world_of(run_dir):
    """How many ranks there are, and how often they were started again."""
    state = state_of(run_dir) if (run_dir / "status.json").exists() else {}
    return state.get("world_size"), state.get("restarts")


def start_own(nodes, folder, *words):
    """The command on each node, which starts two ranks there; what is different there has ``{n}`` in its place."""
    line = [sys.executable, "-m", "launcher", *words, "launch.processes=2", f"launch.rdzv_endpoint=10.77.0.1:{PORT}"]
    return [node.start(folder, [word.replace("{n}", str(n)) for word in line]) for n, node in enumerate(nodes)]


def end(process):
    """Exit status, output and errors, once the process is over."""
    output, error = process.communicate(timeout=PATIENCE_S)
    return process.returncode, output, error


def start_torchrun(nodes, folder, *words):
    """torchrun on each node, told what it cannot know since no name service knows the nodes."""
    flags = ("--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={nodes[0].address}:{PORT}")
    line = [sys.executable, "-m", "torch.distributed.run", *flags]
    return [
        node.start(
            folder, [*line, f"--local-addr={node.address}", f"--rdzv-conf=is_host={1 - n}", "-m", "launcher", *words]
        )
        for n, node in enumerate(nodes)
    ]


def test_nodes_come_and_go_while_a_run_goes_on(tmp_path):
    run = tmp_path / "run"
    words = (*WORDS, "model._target_=tests.launcher.parts.Killed")
    with two_nodes() as nodes:
        first, second = (partial(start_own, [node], tmp_path, *words, *ELASTIC) for node in nodes)
        (first,) = first()
        wait_for(lambda: world_of(run) == (2, 1) and trains(run, ranks=2), PATIENCE_S)
        (second,) = second()
        wait_for(lambda: world_of(run) == (4, 2) and trains(run, ranks=4), PATIENCE_S)
        second.kill()
        wait_for(lambda: world_of(run) == (2, 3) and kept_after(run)[-1] == state_of(run)["step"], PATIENCE_S)
        first.kill()
        output, error = first.communicate()
        assert re.findall(r"global batch +8 rows = (\d) ranks", output) == ["2", "2", "4", "2"]
        killed, lost = re.findall(r"error: (.*)\n", error)
        assert re.match(r"rank 1 (was killed by SIGKILL|ended without a word)", killed)
        host = nodes[1].name
        assert re.fullmatch(rf"ranks 2, 3 on {host} have not answered for \d+ s: {host} is gone or cut off", lost)
        step = kept_after(run)[-1] + 5
        ended = [end(process) for process in start_torchrun(nodes, tmp_path, *words, f"trainer.max_steps={step}")]
    assert [status for status, *_ in ended] == [0, 0], ended
    assert (ended[0][1].count("resumed from"), ended[1][1]) == (1, "")
    told = state_of(run)
    assert (told["state"], told["step"], told["world_size"]) == ("finished", step, 4)


def test_nodes_that_are_cut_off_from_each_other_end_and_say_so(tmp_path):
    with two_nodes() as nodes:
        processes = start_own(nodes, tmp_path, *WORDS, *STATIC)
        wait_for(lambda: trains(tmp_path / "run", ranks=4), PATIENCE_S)
        nodes[1].unplug()
        first, second = (end(process) for process in processes)
    assert (first[0], first[2].count("error: ")) == (1, 1), first
    assert re.search(r"error: ranks 2, 3 on \S+ have not answered for \d+ s: ", first[2])
    assert (second[0], second[2].count("error: ")) == (1, 1), second
    assert "error: the store at 10.77.0.1, where rank 0 is, has not answered for " in second[2]
