"""A sweep over two nodes: torchrun starts the processes on both, and each job takes all of them."""

import json
import sys

from tests.launcher.command import CONFIGS
from tests.launcher.nodes import PORT, two_nodes

TINY = (f"--config-dir={CONFIGS}", "experiment=tiny")


def test_each_job_runs_on_both_nodes(tmp_path):
    words = ("-m", "launcher", "-m", *TINY, f"hydra.sweep.dir={tmp_path}/sweep", "seed=1,2", "sweep.metric=-loss")
    with two_nodes() as nodes:
        endpoint = f"--rdzv-endpoint={nodes[0].address}:{PORT}"
        processes = [
            node.start(
                tmp_path / node.name,
                [
                    *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"),
                    *("--rdzv-backend=c10d", endpoint, f"--local-addr={node.address}", f"--rdzv-conf=is_host={host}"),
                    *words,
                ],
            )
            for host, node in zip((1, 0), nodes, strict=True)
        ]
        ended = [process.communicate(timeout=240) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], ended
    jobs = json.loads((tmp_path / "sweep" / "sweep.json").read_text())["jobs"]
    assert [(job["state"], job["attempts"]) for job in jobs] == [("finished", 1)] * 2
    statuses = [json.loads((tmp_path / "sweep" / str(n) / "status.json").read_text()) for n in range(2)]
    assert [status["world_size"] for status in statuses] == [2, 2]
    assert sum("2 jobs: 2 finished" in output for output, _ in ended) == 1
