import hashlib
import io
import tarfile

import numpy as np
import pytest

from salf.common.errors import SalfError
from salf.common.progress import Reporter
from salf.data.cifar import ARCHIVE, BATCHES, FOLDER, SUMS, TEST
from salf.data.named import cifar_recipe, load_named
from salf.data.sources import Source

ROWS = 4


@pytest.fixture
def batches() -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    tables = rng.integers(0, 10, (6, ROWS, 3073), dtype=np.uint8)
    return {name: t.tobytes() for name, t in zip((*BATCHES, TEST), tables, strict=True)}


def pack(batches) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in (batches | {"readme.html": b"hello"}).items():
            member = tarfile.TarInfo(f"{FOLDER}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def load(recipe, cache, folder=None, lines=None):
    return load_named(recipe, folder, cache, Reporter((lines if lines is not None else []).append))


def serving(archive: bytes, calls: list[str], checksum: str | None = None):
    def fetch(folder, on_bytes):
        calls.append("web")
        (folder / ARCHIVE).write_bytes(archive)
        return folder

    expected = checksum or hashlib.sha256(archive).hexdigest()
    return cifar_recipe((Source("the web", fetch),), ROWS, expected)


def test_rows_are_a_label_and_three_planes(tmp_path, batches, place):
    place(tmp_path / "mine" / FOLDER, batches)
    data = load(cifar_recipe((), ROWS), tmp_path / "cache", tmp_path / "mine")
    second = np.frombuffer(batches["data_batch_1.bin"], np.uint8)[3073:6146]
    assert data.train.inputs.shape == (5 * ROWS, 3, 32, 32)
    assert data.train.labels[1] == second[0]
    assert np.array_equal(data.train.inputs[1].numpy(), second[1:].reshape(3, 32, 32))
    assert data.test.labels[0] == batches[TEST][0]
    assert len(data.test) == ROWS


@pytest.mark.parametrize("sub", [".", FOLDER, f"cifar10/{FOLDER}", "cifar10"])
def test_batches_placed_by_hand_are_used_in_place_and_called_so(tmp_path, batches, place, sub):
    place(tmp_path / "mine" / sub, batches)
    data = load(cifar_recipe((), ROWS), tmp_path / "cache", tmp_path / "mine")
    assert "not verified as official" in data.source
    assert not (tmp_path / "cache").exists()


def test_a_fetched_archive_is_verified_once_and_then_read_from_the_cache(tmp_path, batches):
    calls: list[str] = []
    recipe = serving(pack(batches), calls)
    first, second = load(recipe, tmp_path), load(recipe, tmp_path)
    assert calls == ["web"]
    assert first.source == "the web, sha256 verified"
    assert second.source == "the cache, sha256 verified"
    assert not list((tmp_path / "cifar10").glob(".fetch-*"))


def test_a_flipped_bit_in_the_cache_is_said_and_fetched_again(tmp_path, batches):
    calls: list[str] = []
    recipe = serving(pack(batches), calls)
    good = load(recipe, tmp_path)
    path = tmp_path / "cifar10" / FOLDER / "data_batch_3.bin"
    path.write_bytes(bytes([0]) * (ROWS * 3073))
    lines: list[str] = []
    again = load(recipe, tmp_path, lines=lines)
    assert calls == ["web", "web"]
    assert "data_batch_3.bin is damaged" in lines[0]
    assert np.array_equal(again.train.inputs.numpy(), good.train.inputs.numpy())


def test_an_archive_placed_by_hand_is_as_good_as_a_fetched_one(tmp_path, batches, place):
    calls: list[str] = []
    archive = pack(batches)
    place(tmp_path / "mine", {ARCHIVE: archive})
    data = load(serving(archive, calls), tmp_path / "cache", tmp_path / "mine")
    assert calls == []
    assert data.source.endswith("sha256 verified")


def test_an_archive_with_another_checksum_is_never_unpacked(tmp_path, batches):
    with pytest.raises(SalfError, match="not the official archive or is damaged"):
        load(serving(pack(batches), [], checksum="0" * 64), tmp_path)
    assert not (tmp_path / "cifar10" / FOLDER).exists()


def test_a_cache_half_unpacked_is_completed(tmp_path, batches):
    calls: list[str] = []
    recipe = serving(pack(batches), calls)
    load(recipe, tmp_path)
    (tmp_path / "cifar10" / FOLDER / TEST).unlink()
    load(recipe, tmp_path)
    assert calls == ["web", "web"]
    assert (tmp_path / "cifar10" / FOLDER / SUMS).is_file()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data_batch_2.bin", b"\0" * 3072, r"has 3072 bytes; a batch has 12292"),
        ("data_batch_2.bin", b"\x0a" * (3073 * ROWS), "has the label 10"),
        ("data_batch_2.bin", None, r"lacks data_batch_2\.bin"),
    ],
    ids=["short", "label", "absent"],
)
def test_batches_of_another_structure_are_refused(tmp_path, batches, place, name, content, message):
    if content is None:
        del batches[name]
    else:
        batches[name] = content
    place(tmp_path / "mine", batches)
    with pytest.raises(SalfError, match=message):
        load(cifar_recipe((), ROWS), tmp_path / "cache", tmp_path / "mine")
