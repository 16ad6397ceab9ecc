"""Writing idx files, for tests."""

import struct

import numpy as np
from numpy.typing import NDArray


def idx_bytes(array: NDArray[np.uint8]) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()
