"""The files that start Ray on Slurm and Kubernetes, as far as they can be tried on one machine."""

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SRUN = """#!/bin/bash
# Slurm's srun --nodes=N --ntasks=N COMMAND, where a node has its own network and processes.
while [[ $1 == --* ]]; do shift; done
for node in {nodes}; do
    ip netns exec "$node" unshare --pid --fork --kill-child --mount-proc --mount \\
        sh -c 'mkdir -p /tmp/ray && mount -t tmpfs none /tmp/ray; "$@"' - "$@" &
    started+=($!)
done
for each in "${{started[@]}}"; do wait "$each" || failed=1; done
exit "${{failed:-0}}"
"""
SCONTROL = """#!/bin/bash
[ "$*" = "show hostnames node[1-2]" ] && printf '{names}\\n'
"""


@pytest.fixture
def nodes():
    """Two network namespaces that reach each other, and nothing else: (name, address) of each."""
    made = [(f"salf{os.getpid()}-{n}", f"10.213.7.{n}") for n in (1, 2)]
    ends = [f"s{os.getpid()}{n}" for n in (1, 2)]

    def ip(*command):
        subprocess.run(["ip", *command], check=True)

    try:
        for name, _ in made:
            ip("netns", "add", name)
        ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for (name, address), end in zip(made, ends, strict=True):
            ip("link", "set", end, "netns", name)
            ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
            for each in (end, "lo"):
                ip("-n", name, "link", "set", each, "up")
        yield made
    finally:
        for name, _ in made:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"),
    reason="only root makes networks, and with iproute2",
)
def test_the_slurm_script_runs_a_study_on_two_nodes_with_networks_of_their_own(nodes, tmp_path):
    names, addresses = zip(*nodes, strict=True)
    stand_ins = {"srun": SRUN.format(nodes=" ".join(names))}
    stand_ins["scontrol"] = SCONTROL.format(names="\\n".join(addresses))
    for name, script in stand_ins.items():
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    # Not what other tests of this process have set for a Ray of their own.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment = kept | {
        "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_JOB_ID": "4711",
        "SLURM_CPUS_PER_TASK": "1",
    }
    command = [
        "compare",
        "digits-mlp",
        "--methods",
        "salf,drop",
        "--seeds",
        "2",
        "--rounds",
        "5",
        "--out",
    ]
    done = subprocess.run(
        ["bash", EXAMPLES / "slurm/salf.sbatch", *command, tmp_path / "out"],
        env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Ray cluster of 2 nodes and 2 cores" in done.stdout + done.stderr
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 4


def test_the_kubernetes_files_fit_together():
    yaml = pytest.importorskip("yaml")
    job, claim = yaml.safe_load_all((EXAMPLES / "kubernetes/rayjob.yaml").read_text())
    cluster = job["spec"]["rayClusterSpec"]
    head, (workers,) = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    pods = [group["template"]["spec"] for group in (head, workers)]
    images = {container["image"] for pod in pods for container in pod["containers"]}
    assert len(images) == 1  # head and workers have one version of Python, Ray and salf
    made_of = (EXAMPLES / "kubernetes/Dockerfile").read_text()
    assert cluster["rayVersion"] in made_of
    assert cluster["rayVersion"] == version("ray")
    for pod in pods:
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
            assert set(mounts) <= volumes
    program = job["spec"]["entrypoint"].split()
    out = program[program.index("--out") + 1]
    assert program[program.index("--cluster") + 1] == "auto"
    assert out.startswith(mounts["runs"])
    kept = next(volume for volume in pods[0]["volumes"] if volume["name"] == "runs")
    assert kept["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    requested = workers["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"]
    assert workers["rayStartParams"]["num-cpus"] == requested
