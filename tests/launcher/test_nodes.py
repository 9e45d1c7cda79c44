"""Runs on two nodes: whoever starts their ranks, and whatever becomes of one of them."""

import re
import sys

from tests.launcher.nodes import PORT, two_nodes
from tests.launcher.test_signals import ENDLESS, kept_after, state_of, steps_of, trains, wait_for

PATIENT = ("hydra.run.dir=run", "launch.timeout_s=8", "checkpoint.every_seconds=0.5")
PATIENCE_S = 180.0
WORDS = (*ENDLESS, *PATIENT)


def start_own(nodes, folder, *words):
    """The command on each node, which starts two ranks there; what is different there has ``{n}`` in its place."""
    settings = ("launch.nodes=2", "launch.processes=2", f"launch.rdzv_endpoint={nodes[0].address}:{PORT}")
    line = [sys.executable, "-m", "launcher", *words, *settings]
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


def test_a_run_is_restarted_on_both_nodes_and_goes_on_under_torchrun_when_one_was_lost(tmp_path):
    run = tmp_path / "run"
    words = (*WORDS, "model._target_=tests.launcher.parts.Killed")
    with two_nodes() as nodes:
        first, second = start_own(nodes, tmp_path, *words, "launch.max_restarts=1")
        wait_for(lambda: trains(run, ranks=4) and steps_of(run)[0] >= 12 and kept_after(run), PATIENCE_S)
        assert state_of(run)["restarts"] == 1
        second.kill()
        status, output, error = end(first)
        assert (status, error.count("error: ")) == (1, 2), error
        assert output.count("global batch     8 rows = 4 ranks x 2 rows\n") == 2
        assert re.search(r"error: rank 1 (was killed by SIGKILL|ended without a word)", error)
        host = nodes[1].name
        assert re.search(
            rf"error: ranks 2, 3 on {host} have not answered for \d+ s: {host} is gone or cut off\n", error
        )
        told = state_of(run)
        assert (told["state"], told["error"]["rank"], told["error"]["type"]) == ("failed", 2, "RankHung")
        step = kept_after(run)[-1] + 5
        ended = [end(process) for process in start_torchrun(nodes, tmp_path, *words, f"trainer.max_steps={step}")]
    assert [status for status, *_ in ended] == [0, 0], ended
    assert (ended[0][1].count("resumed from"), ended[1][1]) == (1, "")
    told = state_of(run)
    assert (told["state"], told["step"], told["world_size"]) == ("finished", step, 4)


def test_nodes_that_are_cut_off_from_each_other_end_and_say_so(tmp_path):
    with two_nodes() as nodes:
        processes = start_own(nodes, tmp_path, *WORDS, "launch.rdzv_backend=static", "launch.node_rank={n}")
        wait_for(lambda: trains(tmp_path / "run", ranks=4), PATIENCE_S)
        nodes[1].unplug()
        first, second = (end(process) for process in processes)
    assert (first[0], first[2].count("error: ")) == (1, 1), first
    assert re.search(r"error: ranks 2, 3 on \S+ have not answered for \d+ s: ", first[2])
    assert (second[0], second[2].count("error: ")) == (1, 1), second
    assert "error: the store at 10.77.0.1, where rank 0 is, has not answered for " in second[2]
