"""CIFAR-10 in its binary version: rows of one label byte and 3072 pixel bytes (no pickle)."""

import tarfile
import zlib
from pathlib import Path, PurePosixPath

import numpy as np
import torch

from salf.common.errors import SalfError
from salf.common.files import write_whole
from salf.data.files import Bytes, read_bytes, sha256
from salf.data.samples import Samples

ARCHIVE = "cifar-10-binary.tar.gz"
ARCHIVE_SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
FOLDER = "cifar-10-batches-bin"
BATCHES = tuple(f"data_batch_{k}.bin" for k in range(1, 6))
TEST = "test_batch.bin"
SUMS = "official.sha256"  # written by us only; `sha256sum -c` can read it too
ROW = 1 + 3 * 32 * 32


def read_cifar(folder: Path, rows: int = 10_000) -> tuple[Samples, Samples, str] | None:
    """Training and test samples of a folder of batches, and how they were checked; None if empty.

    Only the archive as a whole has a published checksum. Its files are official if they match the
    sums written down when the archive was checked and unpacked; files placed by hand, without
    sums, are checked for their structure.
    """
    files = [folder / name for name in (*BATCHES, TEST)]
    missing = [path.name for path in files if not path.is_file()]
    if len(missing) == len(files):
        return None
    if missing:
        raise SalfError(f"{folder} is incomplete: it lacks {', '.join(missing)}.")
    sums = _read_sums(folder)
    inputs = np.empty((len(files) * rows, ROW - 1), np.uint8)
    labels = np.empty(len(files) * rows, np.int64)
    for k, path in enumerate(files):
        content = read_bytes(path)
        if sums and sha256(content) != sums.get(path.name):
            raise SalfError(f"{path} is damaged: its sha256 is not the one in {SUMS}.")
        if len(content) != rows * ROW:
            raise SalfError(f"{path} has {len(content)} bytes; a batch has {rows * ROW}.")
        # Copied file by file, so that no more than one file is in memory twice.
        here, table = slice(k * rows, (k + 1) * rows), content.reshape(rows, ROW)
        labels[here], inputs[here] = table[:, 0], table[:, 1:]
        if labels[here].max() > 9:
            raise SalfError(f"{path} has the label {labels[here].max()}; labels must be 0 to 9.")
    x, y = torch.from_numpy(inputs).view(-1, 3, 32, 32), torch.from_numpy(labels)
    train = len(BATCHES) * rows
    return (
        Samples(x[:train], y[:train]),
        Samples(x[train:], y[train:]),
        "sha256 verified" if sums else "added by hand, not verified as official",
    )


def unpack_cifar(archive: Path, folder: Path, expected: str = ARCHIVE_SHA256) -> None:
    """Check the official archive and unpack its batches into `folder`."""
    if sha256(np.fromfile(archive, np.uint8)) != expected:
        raise SalfError(f"{archive} is not the official archive or is damaged (sha256 differs).")
    content: dict[str, Bytes] = {}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = PurePosixPath(member.name).name
                if name in (*BATCHES, TEST) and (stream := tar.extractfile(member)):
                    content[name] = np.frombuffer(stream.read(), np.uint8)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise SalfError(f"{archive} cannot be unpacked: {error}.") from error
    # Sums first: should we be stopped half-way, what is there can be seen to be incomplete.
    sums = "".join(f"{sha256(data)}  {name}\n" for name, data in sorted(content.items()))
    write_whole(folder / SUMS, sums)
    for name, data in content.items():
        write_whole(folder / name, data)


def _read_sums(folder: Path) -> dict[str, str]:
    path = folder / SUMS
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    return {name: total for total, _, name in (line.partition("  ") for line in lines)}
