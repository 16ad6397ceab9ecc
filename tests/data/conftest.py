from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from idx_files import idx_bytes


@pytest.fixture
def tiny_idx() -> dict[str, bytes]:
    """The four files of a data set of 6 + 2 images of 3 x 2 pixels, by their usual names."""
    rng = np.random.default_rng(0)
    files = {}
    for half, count in (("train", 6), ("t10k", 2)):
        files[f"{half}-images-idx3-ubyte"] = idx_bytes(rng.integers(0, 256, (count, 3, 2)))
        files[f"{half}-labels-idx1-ubyte"] = idx_bytes(np.arange(count) % 3)
    return files


@pytest.fixture
def place() -> Callable[[Path, dict[str, bytes]], Path]:
    def write(folder: Path, files: dict[str, bytes]) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        return folder

    return write
