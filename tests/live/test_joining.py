"""Who may join a live run, and where."""

import time

import pytest

from salf.common.errors import SalfError
from salf.live.launch import Joining
from salf.live.rounds import wait_for


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"here": 1}, "here= needs address="),
        ({"min_users": 2}, "min_users= needs address="),
        ({"address": "auto", "here": 3}, "here= must be from 0 to the number of users, 2"),
        ({"address": "auto", "here": -1}, "here= must be from 0"),
        ({"address": "auto", "min_users": 3}, "min_users= must be from 0"),
        ({"backend": "flower", "address": "auto"}, "are for Ray"),
        ({"backend": "flower", "min_users": 2}, "are for Ray"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(settings, reason):
    backend = settings.get("backend", "ray")
    given = {name: settings.get(name) for name in ("address", "here", "min_users")}
    with pytest.raises(SalfError, match=reason):
        Joining(**given).check(users=2, backend=backend)
    Joining().check(users=2, backend=backend)


def test_the_server_says_once_how_many_it_waits_for_and_begins_when_they_are_there(monkeypatch):
    said, seen = [], iter([{"a"}, {"a"}, {"a", "b"}, {"a", "b", "c"}])
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    wait_for(3, lambda: next(seen), said.append)
    assert [line.partition(" users")[0] for line in said] == ["1 of 3", "2 of 3"]
    wait_for(0, set, said.append)
    assert len(said) == 2
