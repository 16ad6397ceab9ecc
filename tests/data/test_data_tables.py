"""Data as people have them, each in two lines, with natural users kept."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import salf
from salf.common.errors import SalfError
from salf.data import from_columns, load
from salf.data.text import encoded, of_speakers

LINES = ["age,weight,hospital,diagnosis"]
LINES += [
    f"{k},{k / 2},{'north' if k % 3 else 'south'},{'ill' if k % 2 else 'well'}" for k in range(24)
]


def net(inputs, classes=2):
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes))


def held_by(data, users):
    """The inputs of each user of a natural split, as it is trained on."""
    from salf.runs.config import Config
    from salf.runs.federation import Given, problem_of

    config = Config(split="natural", users=users, validation=0)
    model = net(data.train.inputs[0].numel(), data.classes)
    problem = problem_of(config, given=Given(model=model, data=data))
    return [problem.users_data.own(user) for user in range(users)]


def test_a_csv_file_in_two_lines_keeps_its_users(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("\n".join(LINES))
    data = from_columns(path, "diagnosis", user="hospital")
    history = salf.train(net(2), data, split="natural", rounds=2, batch_size=2, stragglers=0)
    assert history.test_accuracy is not None
    assert data.classes == 2
    assert data.train.inputs.dtype == torch.float32
    # Every sixth row of each hospital is for testing: 8 in the south, 16 in the north.
    assert (len(data.train), len(data.test)) == (24 - 1 - 2, 3)
    assert data.test.inputs[:, 0].tolist() == [8, 15, 17]
    north, south = held_by(data, 2)
    assert {int(age) % 3 for age in south.inputs[:, 0]} == {0}
    assert {int(age) % 3 for age in north.inputs[:, 0]} == {1, 2}
    assert north.labels.tolist() == [0 if age % 2 else 1 for age in north.inputs[:, 0].tolist()]


def test_a_csv_file_is_named_on_the_command_line(tmp_path):
    text = "\n".join(LINES).replace("hospital", "user").replace("diagnosis", "label")
    for name in ("train", "test"):
        (tmp_path / f"{name}.csv").write_text(text)
    data = load(f"csv:{tmp_path}")
    assert (len(data.train), len(data.test), data.owners.max()) == (24, 24, 1)
    assert load(f"csv:{tmp_path / 'train.csv'}").classes == 2


@pytest.mark.parametrize(
    ("text", "asked", "message"),
    [
        ("a,label\n1,2\n3\n", {}, "cannot read .* as a table"),
        ("", {}, "cannot read"),
        ("a,b\n1,2\n", {}, "unknown column 'label'. Allowed: a, b"),
        ("a,label\n1,2\n", {"user": "who"}, "unknown column 'who'"),
        ("a,b,label\nx,2,0\ny,3,1\n", {}, "cannot be converted to a tensor"),
    ],
)
def test_a_table_that_makes_no_sense_is_a_sentence(tmp_path, text, asked, message):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(SalfError, match=message):
        from_columns(tmp_path / "t.csv", **asked)


def test_labels_that_are_numbers_with_a_point_are_a_regression():
    data = from_columns({"x": list(range(12)), "y": [k / 3 for k in range(12)]})
    assert data.classes == 0
    assert data.train.labels.is_floating_point()


def leaf(folder, users):
    folder.mkdir(parents=True)
    (folder / "all.json").write_text(json.dumps({"users": [*users], "user_data": users}))


def test_leaf_in_two_lines_keeps_its_users(tmp_path):
    one = {"x": [[1.0, 2.0]] * 4, "y": [0, 1, 0, 1]}
    leaf(tmp_path / "train", {"f1": one, "f0": {"x": [[5.0, 6.0]] * 3, "y": [1, 1, 1]}})
    leaf(tmp_path / "test", {"f0": {"x": [[5.0, 6.0]], "y": [1]}})
    data = load(f"leaf:{tmp_path}")
    salf.train(net(2), data, split="natural", rounds=1, stragglers=0, validation=0)
    assert [len(own) for own in held_by(data, 2)] == [3, 4]
    assert held_by(data, 2)[0].inputs.tolist() == [[5.0, 6.0]] * 3
    assert len(data.test) == 1


def test_leafs_text_has_every_next_character_as_a_target(tmp_path):
    texts = ["to be or n", "ot to be, "]
    leaf(tmp_path / "all", {"hamlet": {"x": texts * 4, "y": ["o", "t"] * 4}})
    data = load(f"leaf:{tmp_path}")
    assert data.train.inputs[0].tolist() == encoded(texts[0]).tolist()
    assert data.train.labels[0].tolist() == encoded(texts[0][1:] + "o").tolist()


def test_a_folder_without_leafs_files_is_a_sentence(tmp_path):
    with pytest.raises(SalfError, match="has no samples"):
        load(f"leaf:{tmp_path}")
    (tmp_path / "a.json").write_text('{"users": []}')
    with pytest.raises(SalfError, match=r"a\.json is no file of LEAF"):
        load(f"leaf:{tmp_path}")


def test_a_folder_of_images_by_user_keeps_its_users(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for user, shade in (("ann", 10), ("bob", 200)):
        for label in ("cat", "dog"):
            folder = tmp_path / user / label
            folder.mkdir(parents=True)
            for k in range(4):
                image.new("L", (3, 2), shade + k).save(folder / f"{k}.png")
    data = load(f"folder:{tmp_path}")
    assert (len(data.train), len(data.test), data.classes) == (14, 2, 2)
    ann, bob = held_by(data, 2)
    assert ann.inputs.max() < 50 < bob.inputs.min()
    assert {*ann.labels.tolist()} == {0, 1}


def test_a_data_set_of_hugging_face_in_two_lines_keeps_its_users():
    datasets = pytest.importorskip("datasets")
    rows = {"image": np.random.default_rng(0).random((24, 2, 2)).tolist()}
    rows |= {"label": [0, 1] * 12, "writer_id": [f"w{k % 4}" for k in range(24)]}
    data = from_columns(datasets.Dataset.from_dict(rows))
    salf.train(net(4), data, split="natural", rounds=1, batch_size=2, stragglers=0)
    assert data.train.shape == (2, 2)
    assert np.bincount(data.owners).tolist() == [5] * 4
    assert (len(data.test), data.classes) == (4, 2)


class Partitioner:
    """What a partitioner of flwr-datasets has."""

    num_partitions = 3

    def load_partition(self, user):
        return {"x": [[float(user)]] * 7, "label": [0, 1, 0, 1, 0, 1, 0]}


def test_partitions_of_flwr_datasets_are_users():
    data = from_columns(Partitioner(), inputs="x")
    for user, own in enumerate(held_by(data, 3)):
        assert own.inputs.flatten().tolist() == [float(user)] * 6
    assert len(data.test) == 3


def test_pandas_frames_are_tables_with_a_test_table_of_their_own():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1, 2, 3], "b": [4, 5, 6], "label": ["x", "y", "y"]})
    test = pandas.DataFrame({"a": [1], "b": [4], "label": ["y"]})
    data = from_columns(frame, test=test)
    assert data.train.inputs.tolist() == [[1, 4], [2, 5], [3, 6]]
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([0, 1, 1], [1])


def test_users_of_a_natural_split_are_drawn_by_the_seed_and_never_too_many():
    data = from_columns(Partitioner(), inputs="x")
    few = held_by(data, 2)
    assert len({own.inputs[0].item() for own in few}) == 2
    with pytest.raises(SalfError, match="has 3 users: set users=3 or fewer"):
        held_by(data, 4)
    with pytest.raises(SalfError, match="has no users of its own"):
        salf.train(net(64, 10), load("digits"), split="natural", rounds=1)


PLAYS = "\n\n".join(
    f"{who}:\n{(words * 100)[:length]}"
    for who, words, length in [
        ("First Citizen", "Speak, speak. ", 500),
        ("Second Citizen", "Resolved! ", 900),
        ("Third Citizen", "No more talking on't. ", 100),
        ("First Citizen", "Let us kill him! ", 400),
    ]
)


def test_speakers_are_users_and_targets_are_the_next_characters():
    train, test, owners = of_speakers(PLAYS)
    # 901 characters each of the first two; who says little is no user.
    assert np.bincount(owners).tolist() == [9, 9]
    assert (len(train), len(test)) == (18, 4)
    assert torch.equal(train.inputs[0, 1:], train.labels[0, :-1])
    assert torch.equal(train.inputs[0], torch.from_numpy(encoded(PLAYS.partition("\n")[2][:80])))
    with pytest.raises(SalfError, match="nobody says 400 characters"):
        of_speakers("GHOST:\nMark me.")


def test_shakespeare_is_read_from_a_folder_and_the_error_says_what_to_put_there(tmp_path):
    (tmp_path / "input.txt").write_text(PLAYS)
    data = load("shakespeare", folder=tmp_path, cache=tmp_path / "cache")
    assert "added by hand" in data.source
    assert data.classes == 96
