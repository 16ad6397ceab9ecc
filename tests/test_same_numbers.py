"""The same config gives the same numbers from version to version.

The losses were computed when draws became keyed by (seed, round, user). Another processor may
round differently, hence the tolerance; another order of draws gives other numbers altogether.
"""

import pytest

import salf

LOSSES = {
    ("fedavg", "mixture"): [2.3060839, 2.3256834, 2.2781267, 2.3129511, 2.27795, 2.272758],
    ("drop", "mixture"): [2.2180979, 2.2973456, 2.36145, 2.323988, 2.3114114, 2.2776449],
    ("salf", "mixture"): [2.3186207, 2.3493654, 2.2902753, 2.3014146, 2.2775331, 2.2763031],
    ("heterofl", "mixture"): [2.2955212, 2.3499286, 2.295369, 2.3058471, 2.2892323, 2.235296],
    ("asyncfl", "mixture"): [2.2180979, 2.2569981, 2.1934922, 2.269115, 2.1715993, 2.247242],
    ("salf", "uniform"): [2.3354123, 2.3719585, 2.2633048, 2.3055034, 2.2962804, 2.2808822],
    ("drop", "probabilities:0.4,0.3,0.2,0.1"): [
        2.4007838, 2.259145, 2.2504025, 2.2828925, 2.3458917, 2.2697968,
    ],
}  # fmt: skip


@pytest.mark.parametrize(("method", "depth"), LOSSES)
def test_losses_are_those_of_earlier_versions(method, depth):
    config = salf.Config(
        data="synthetic:5", split="dirichlet:0.3", method=method, depth=depth, stragglers=0.7,
        users=8, rounds=6, lr=0.1, batch_size=4, seed=3, threads=1,
    )  # fmt: skip
    rows = salf.run(config).history.rows
    assert [row.train_loss for row in rows] == pytest.approx(
        LOSSES[method, depth], rel=1e-5, nan_ok=True
    )
