"""Studies on two Ray nodes on this machine; where root may, they have no files in common."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

STUDY = Path(__file__).with_name("cluster_study.py")
ENVIRONMENT = os.environ | {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",  # of two nodes on loopback
    "OMP_NUM_THREADS": "1",
}
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]


def start(command, environment):
    subprocess.run(
        command, shell=True, check=True, env=environment, stdout=subprocess.DEVNULL, timeout=120
    )


@pytest.fixture(scope="module")
def nodes():
    """The head's address, a folder that the second node does not see, its raylet, and variables."""
    folder = Path(tempfile.mkdtemp(prefix="salf-", dir="/tmp"))
    environment = ENVIRONMENT | {"LOST": str(folder / "lost")}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    ray = Path(sys.executable).with_name("ray")
    common = "--num-cpus 1 --disable-usage-stats"
    apart = os.geteuid() == 0 and shutil.which("unshare")
    try:
        start(
            f"{ray} start --head --port {address.partition(':')[2]} --node-ip-address 127.0.0.1 "
            f"--include-dashboard=false --temp-dir {folder}/ray {common}",
            environment,
        )
        (folder / "out").mkdir()
        join = f"{ray} start --address {address} --node-ip-address 127.0.0.2 {common}"
        join = f"env SALF_CACHE={folder}/home/cache {join}"
        hidden = f"mount -t tmpfs none {folder}/out && {join}"
        start(f"unshare -m sh -c '{hidden}'" if apart else join, environment)
        pattern = f"raylet_socket_name={folder}.*127.0.0.2"
        found = subprocess.run(["pgrep", "-f", pattern], capture_output=True, text=True, check=True)
        yield address, folder / "out", int(found.stdout.split()[0]), environment
    finally:
        subprocess.run(["pkill", "-9", "-f", str(folder)], check=False)
        shutil.rmtree(folder, ignore_errors=True)


def test_studies_give_the_results_of_one_machine_also_when_a_node_is_lost(nodes):
    address, out, raylet, environment = nodes
    done = subprocess.run(
        [sys.executable, STUDY, address, out / "study", str(raylet)],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
