"""Text by speakers, character by character: every speaker is a user."""

import numpy as np
from numpy.typing import NDArray

from salf.common.errors import SalfError
from salf.data.samples import Samples, every, samples_of

LENGTH = 80  # of a sample, as in LEAF
FEWEST = 5  # samples of a speaker who is a user; every fifth one is for testing


def encoded(text: str) -> NDArray[np.int64]:
    """The number of each character; 0 is a line break and whatever is not printable ASCII."""
    codes = np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int64)
    return np.where((codes >= 32) & (codes < 127), codes - 31, 0)


def next_characters(texts: list[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All but the last character of texts of one length, and all but the first as targets."""
    rows = np.stack([encoded(text) for text in texts])
    return rows[:, :-1], rows[:, 1:]


def of_speakers(text: str) -> tuple[Samples, Samples, NDArray[np.int64]]:
    """Plays as training and test samples, and the speaker of each training sample.

    A speech is `SPEAKER:` and lines; speeches are separated by an empty line. What a speaker says
    is cut into samples of 80 characters, of which every fifth is for testing.
    """
    said: dict[str, str] = {}
    for speech in text.replace("\r\n", "\n").split("\n\n"):
        speaker, _, words = speech.strip().partition(":\n")
        said[speaker] = f"{said.get(speaker, '')}{words}\n"
    starts = {name: range(0, len(words) - LENGTH, LENGTH) for name, words in said.items()}
    users = sorted(name for name, each in starts.items() if len(each) >= FEWEST)
    if not users:
        raise SalfError(f"nobody says {FEWEST * LENGTH} characters: write SPEAKER: above a speech.")
    owners = np.repeat(np.arange(len(users)), [len(starts[name]) for name in users])
    rows = [said[name][at : at + LENGTH + 1] for name in users for at in starts[name]]
    samples, held = samples_of("all", next_characters(rows)), every(FEWEST, owners)
    kept = np.flatnonzero(~held)
    return samples.subset(kept), samples.subset(np.flatnonzero(held)), owners[kept]
