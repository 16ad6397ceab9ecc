"""Writing idx files, for tests."""

import struct

import numpy as np


def idx_bytes(array) -> bytes:
    """An idx file."""
    array = np.asarray(array, np.uint8)
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()
