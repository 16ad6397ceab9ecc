import pytest

from salf.runs.config import Config


@pytest.fixture
def tiny() -> Config:
    """A run of a fraction of a second that still has stragglers and several evaluations."""
    return Config(
        data="synthetic", users=6, rounds=12, batch_size=4, eval_every=4, seed=3, threads=1
    )
