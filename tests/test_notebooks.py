"""Every notebook of examples/ runs, in one kernel that is started once."""

import json
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def test_there_are_the_promised_notebooks_without_outputs():
    names = {path.stem for path in NOTEBOOKS}
    assert names == {"quickstart", "own-devices", "own-method", "lora", "sweep", "live"}
    for path in NOTEBOOKS:
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            assert not cell.get("outputs"), path.name
            assert cell.get("execution_count") is None, path.name


@pytest.fixture(scope="module")
def kernel():
    """A running kernel, which all notebooks share: torch is imported once."""
    pytest.importorskip("ipykernel")
    manager = pytest.importorskip("jupyter_client.manager").KernelManager(kernel_name="python3")
    manager.start_kernel()
    client = manager.blocking_client()
    client.start_channels()
    client.wait_for_ready(timeout=120)
    client.allow_stdin = False
    yield client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def done(client, code):
    """The plain and HTML results of a cell; an error fails the test."""
    shown = []

    def note(message):
        content = message["content"]
        if message["msg_type"] == "error":
            pytest.fail("\n".join(content["traceback"]))
        if message["msg_type"] in ("execute_result", "display_data"):
            shown.append(content["data"])

    client.execute_interactive(code, timeout=240, output_hook=note)
    return shown


@pytest.mark.slow
@pytest.mark.xdist_group("notebooks")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, kernel, tmp_path):
    if path.stem == "live":
        pytest.importorskip("ray")
    done(kernel, f"%reset -f\n%cd -q {tmp_path}")
    cells = json.loads(path.read_text("utf-8"))["cells"]
    shown = [done(kernel, "".join(c["source"])) for c in cells if c["cell_type"] == "code"]
    assert any(shown)
