"""The manifests of examples/kubernetes: what is said in them fits together, and the launcher takes their command."""

import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from launcher.configure.command_line import parse
from launcher.configure.compose import compose_run
from launcher.processes.errors import PREEMPTED, WRONG_SETTINGS

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "kubernetes"


def documents(name):
    return {found["kind"]: found for found in yaml.safe_load_all((FOLDER / name).read_text())}


JOB = documents("indexed-job.yaml")["Job"]
SERVICE = documents("indexed-job.yaml")["Service"]
PYTORCH = documents("pytorchjob.yaml")["PyTorchJob"]
WORKER = PYTORCH["spec"]["pytorchReplicaSpecs"]["Worker"]
PODS = {"Job": JOB["spec"]["template"]["spec"], "PyTorchJob": WORKER["template"]["spec"]}
SCRIPT = PODS["PyTorchJob"]["containers"][0]["args"][0]


def words_of(kind):
    """The words after ``python -m launcher``, with what the operator puts into the environment."""
    (container,) = PODS[kind]["containers"]
    if kind == "Job":
        command = container["command"]
    else:
        text = SCRIPT.partition("&\nrun=")[0].replace("\\\n", "")
        command = shlex.split(text.replace("$PET_RDZV_ENDPOINT", "digits-worker-0:23456"))
    assert command[:3] == ["python", "-m", "launcher"]
    return command[3:]


@pytest.mark.parametrize("kind", PODS)
def test_the_launcher_takes_the_command(kind):
    composed = compose_run(parse(words_of(kind)))
    launch, (container,) = composed.run.launch, PODS[kind]["containers"]
    assert launch.nodes == {"Job": JOB["spec"]["completions"], "PyTorchJob": WORKER["replicas"]}[kind]
    assert launch.processes == container["resources"]["limits"]["nvidia.com/gpu"]
    assert launch.rdzv_conf == {"join_timeout": 3600}
    assert launch.max_restarts == 3
    assert not composed.run_dir_is_new
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in PODS[kind]["volumes"]}
    assert "persistentVolumeClaim" in volumes[mounts[str(composed.run_dir.parent)]]
    assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"


def test_both_manifests_are_the_same_run():
    one, other = (compose_run(parse(words_of(kind))) for kind in PODS)
    assert one.run.launch.rdzv_endpoint != other.run.launch.rdzv_endpoint
    one.run.launch.rdzv_endpoint = other.run.launch.rdzv_endpoint
    assert one == other


def test_the_pods_of_the_job_meet_at_the_name_of_the_first():
    name, pod = JOB["metadata"]["name"], PODS["Job"]
    assert f"launch.rdzv_endpoint={name}-0.{pod['subdomain']}:29400" in words_of("Job")
    assert SERVICE["metadata"]["name"] == pod["subdomain"]
    assert SERVICE["spec"]["clusterIP"] == "None"
    assert SERVICE["spec"]["selector"] == {"job-name": name}
    assert JOB["spec"]["completions"] == JOB["spec"]["parallelism"]


def test_exit_statuses_decide_about_new_pods():
    rules = JOB["spec"]["podFailurePolicy"]["rules"]
    by_status = {value: rule["action"] for rule in rules for value in rule.get("onExitCodes", {}).get("values", [])}
    assert by_status == {WRONG_SETTINGS: "FailJob", PREEMPTED: "Ignore"}
    assert PODS["Job"]["restartPolicy"] == "Never"  # without which Kubernetes takes no rules
    assert WORKER["restartPolicy"] == "ExitCode"


@pytest.mark.parametrize("kind", PODS)
def test_a_pod_has_more_time_to_end_than_signals_need(kind):
    assert PODS[kind]["terminationGracePeriodSeconds"] >= 60


@pytest.fixture
def stand_in(tmp_path):
    """A python that ends with STATUS, at once or when it is asked to."""
    file = tmp_path / "python"
    wait = "trap 'exit 75' TERM; echo here; while :; do sleep 0.05; done"
    file.write_text(f'#!/bin/bash\nif [ -n "$STATUS" ]; then exit "$STATUS"; fi\n{wait}\n')
    file.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}


@pytest.mark.parametrize(("status", "expected"), [(0, 0), (1, 1), (2, 2), (75, 143)])
def test_the_operator_sees_statuses_that_it_understands(stand_in, status, expected):
    ended = subprocess.run(["bash", "-c", SCRIPT], env={**stand_in, "STATUS": str(status)}, check=False)
    assert ended.returncode == expected


def hears_sigterm(process):
    """Whether a process has a handler for it."""
    caught = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{process}/status").read_text(), flags=re.MULTILINE)
    return bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_the_script_passes_sigterm_on(stand_in):
    process = subprocess.Popen(["bash", "-c", SCRIPT], env={**stand_in, "STATUS": ""}, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"here\n"
    while not hears_sigterm(process.pid):
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 143
