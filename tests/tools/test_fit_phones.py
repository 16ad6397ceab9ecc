"""The fit of phones to measured training steps."""

from statistics import median

import pytest

from salf.worlds.fleet.named import PHONE
from tools import fit_phones
from tools.fit_phones import FITTED_TO, MEASURED, cost, off

OTHERS = [phone for phone in MEASURED if phone != FITTED_TO]


def test_steps_that_the_fit_has_not_seen_are_predicted_within_a_quarter_at_the_median():
    for network in ("LeNet", "AlexNet", "GoogLeNet", "MobileNetV2"):
        assert median(off(PHONE, *OTHERS, network=network)) < 0.25
    assert median(off(PHONE, *OTHERS)) < 0.1


def test_the_constants_and_the_table_of_the_docs_are_what_the_fit_finds():
    fit_phones.main(["--check"])


def test_networks_are_those_that_were_measured():
    """MobileNetV2 as published, but for 4 classes; AlexNet with 256 x 5 x 5 features."""
    assert cost("MobileNetV2").trained.sum() == 3_504_872 - 996 * 1281
    assert cost("MobileNetV2").forward.sum() == pytest.approx(300e6, rel=0.01)
    assert cost("GoogLeNet").trained.sum() == pytest.approx(6e6, rel=0.01)
    assert cost("AlexNet").trained.sum() == pytest.approx(6400 * 4096 + 3.8e6, rel=0.01)
