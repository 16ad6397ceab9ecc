import pytest

from salf.common.errors import SalfError
from salf.runs.config import Config
from salf.runs.presets import PRESETS, load_config


def test_presets_are_the_papers_settings():
    mlp, cnn, vgg = (PRESETS[name] for name in ("mnist-mlp", "mnist-cnn", "cifar-vgg16"))
    assert (mlp.model, mlp.rounds, mlp.lr) == ("mlp", 250, 0.05)
    assert (cnn.model, cnn.rounds, cnn.lr) == ("cnn", 150, 0.1)
    assert (vgg.data, vgg.model, vgg.rounds, vgg.lr) == ("cifar10", "vgg16", 1500, 0.05)
    for preset in PRESETS.values():
        assert (preset.users, preset.batch_size, preset.momentum) == (30, 16, 0.5)
    assert {"cifar-vgg11", "cifar-vgg13", "cifar-vgg16", "cifar-vgg19"} <= set(PRESETS)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"method": "slaf"}, "Did you mean 'salf'"),
        ({"model": "vgg12"}, "unknown model 'vgg12'. Allowed: cnn"),  # near several
        ({"engine": "fuse"}, "Did you mean 'fused'"),
        ({"average": "some"}, "Allowed: all, reached"),
        ({"depth": "unifrom"}, "Did you mean 'uniform'"),
        ({"stragglers": 1.01}, "stragglers must be at most 1, not 1.01"),
        ({"stragglers": -0.1}, "stragglers must be at least 0"),
        ({"validation": 1.0}, "validation must be below 1"),
        ({"users": 0}, "users must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"rounds": 2.5}, "rounds must be of type int"),
        ({"users": True}, "users must be of type int"),
        ({"lr": -0.1}, "positive"),
        ({"lr": "fast"}, "cannot read the learning rate"),
        ({"lr": 1e39}, "below 1e30"),
        ({"seed": 2**64}, "seed must be at most"),
        ({"threads": 100_000}, "threads must be at most 1024"),
        ({"options": {"average": "all"}}, "average is a setting, not an option"),
        ({"options": {"name": 3}}, "unknown option of salf 'name'"),
        ({"options": {"width": 0.5}}, "unknown option of salf 'width'"),
        ({"method": "asyncfl", "options": {"delay": 2.5}}, "delay of asyncfl must be of type int"),
        ({"method": "asyncfl", "options": {"discount": float("nan")}}, "discount of asyncfl"),
        ({"method": "heterofl", "options": {"width": "abc"}}, "must be of type float"),
        ({"method": "drop", "options": {"lucky": "kpet"}}, "Did you mean 'kept'"),
        ({"method": "heterofl", "options": {"width": 1.5}}, "width"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_is_allowed(settings, says):
    with pytest.raises(SalfError, match=says):
        PRESETS["mnist-mlp"].changed(**settings)


def test_an_unknown_key_names_the_nearest(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text("batch-sise = 3\n")
    with pytest.raises(SalfError, match="Did you mean 'batch-size'"):
        load_config(str(path))


@pytest.mark.parametrize("text", ["users = ", "= 3", 'method = "salf'])
def test_a_broken_toml_is_one_sentence_with_the_file(tmp_path, text):
    path = tmp_path / "broken.toml"
    path.write_text(text)
    with pytest.raises(SalfError, match=r"cannot read the config .*broken\.toml"):
        load_config(str(path))


def test_a_missing_file_an_unknown_preset_and_a_runs_folder_are_told_apart(tmp_path):
    (tmp_path / "config.toml").write_text(Config().to_toml())
    for source, said in (
        ("nowhere/config.toml", "there is no config file .* or a preset: mnist-mlp, mnist-cnn"),
        ("mnist-mpl", "Did you mean 'mnist-mlp'"),
        (str(tmp_path), f"pass its config: {tmp_path / 'config.toml'}"),
    ):
        with pytest.raises(SalfError, match=said):
            load_config(source)


def test_another_method_does_not_inherit_the_options_of_the_one_before():
    config = Config(method="heterofl", options={"width": 0.25})
    assert config.changed(method="salf").options == {}
    assert config.changed(method="heterofl", seed=3).options == {"width": 0.25}


def test_differences_are_named_as_in_the_file():
    config = Config()
    assert config.differences(config.changed(batch_size=8, lr=0.1)) == ["lr", "batch-size"]
