"""Ray, for milliseconds inside one trust domain: one process a user, asked and heard by Ray.

Every user is an actor with a name in the federation's namespace, wherever it was started; the
server finds it there. Ray trusts every process that has the cluster's token.
"""

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import ray  # which is installed, because `cluster` has started it
import torch
from ray._private.ray_constants import OBJECT_METADATA_TYPE_RAW
from ray.core.generated import common_pb2
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from safetensors.torch import load

from salf.common.errors import SalfError, in_one_line, is_user_name
from salf.live.cluster import Pulse
from salf.live.rounds import Answer
from salf.live.update import Rejected, Task, encode, encode_model
from salf.live.user import User

log = logging.getLogger("salf.live")

LOOK = 1.0  # seconds between two looks at who has come or gone
# A user stops at its deadline: one at work for so long, and for so many deadlines, hangs.
HUNG_SECONDS, HUNG_DEADLINES = 60.0, 20
FAILED = b"\xff" * 8  # and why: no update begins like this
ENDED = "its process ended"


class _Actor:
    """A user in a process of its own. It is made there, so its data never travel."""

    def __init__(self, make: Callable[[], User]) -> None:
        torch.set_num_threads(1)  # a device of its own, not all of this machine
        self.user = make()

    def ready(self) -> bytes:
        return b""

    def train(self, task: Task, model: bytes, server: bytes) -> bytes:
        state = load(server) if server else {}
        try:
            return encode(self.user.train(replace(task, weights=load(model), server=state)))
        except Exception as error:  # said in bytes, because the server unpickles no exception
            return FAILED + f"{type(error).__name__}: {error}".encode()


def plain(reference: Any) -> bytes | Rejected:
    """What a user's call returned, if that is bytes.

    `ray.get` would unpickle whatever else a user returns or raises, and so run the user's code in
    the server. Ray marks plain bytes as such, and this looks at the mark first.
    """
    worker: Any = ray._private.worker.global_worker
    data, metadata, *_ = worker.core_worker.get_objects([reference], -1)[0]
    kind = (metadata or b"").split(b",")[0]
    if kind == OBJECT_METADATA_TYPE_RAW:
        return b"" if data is None else bytes(data.to_pybytes())
    if not kind.isdigit():
        return Rejected("not an update: it is not bytes")
    errors: Any = common_pb2
    error = dict(map(reversed, errors.ErrorType.items())).get(int(kind), "unknown")
    ended = error in ("ACTOR_DIED", "WORKER_DIED", "ACTOR_UNAVAILABLE")
    return Rejected(ENDED if ended else f"lost: {error}")


def start_user(name: str, make: Callable[[], User], *, here: bool = False) -> Any:
    """Start a user, and return its handle: it takes part as long as the handle is kept.

    It is started again when its process dies. With `here` it runs on the machine of this process
    and nowhere else in the cluster.
    """
    options: dict[str, Any] = {
        "name": name,
        "num_cpus": 0,  # users share the processors, as many as they are
        "max_restarts": -1,
        "max_task_retries": 0,  # a round that failed is over
    }
    if here:
        node = ray.get_runtime_context().get_node_id()
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=False)
    if not is_user_name(name):
        raise SalfError(
            "a user's name has 1 to 64 letters, digits, dots, dashes and underscores, not "
            f"{name!r}."
        )
    try:
        return ray.remote(_Actor).options(**options).remote(make)
    except ValueError:
        raise SalfError(f"this federation already has a user {name!r}.") from None


def wait_ready(users: Sequence[Any], on_ready: Callable[[int], None] | None = None) -> None:
    """Wait until all users started have their model and their data."""
    pulse = Pulse()
    waiting = [user.ready.remote() for user in users]
    while waiting:
        pulse.check()
        done, waiting = ray.wait(waiting, num_returns=1, timeout=LOOK)
        try:
            ray.get(done)
        except RayError as error:
            raise SalfError(f"a user could not start: {in_one_line(error, last=True)}") from None
        if on_ready is not None:
            on_ready(len(users) - len(waiting))


class RayLink:
    """The users of a federation, as `Rounds` reaches them."""

    def __init__(self) -> None:
        self._actors: dict[str, Any] = {}
        self._coming: dict[str, Any] = {}  # what tells that a user has its model and its data
        # By calls that are not over: whom, in which round, and from when on it hangs.
        self._asked: dict[Any, tuple[str, int, float]] = {}
        self._round = 0
        self._looked = -LOOK
        self._pulse = Pulse()

    def users(self) -> set[str]:
        """Whoever has a name here and is ready: who came is found, who ended is not."""
        if time.monotonic() - self._looked >= LOOK and self._pulse.check():
            self._look()
            self._restart_hung()
            self._looked = time.monotonic()
        for name, ready in list(self._coming.items()):
            if ray.wait([ready], timeout=0)[0]:
                del self._coming[name]
                if isinstance(plain(ready), Rejected):  # not yet: the next look asks again
                    self._actors.pop(name, None)
        return self._actors.keys() - self._coming.keys()

    def _look(self) -> None:
        try:
            names = set(ray.util.list_named_actors())
        except RayError as error:  # the next look may be luckier
            log.warning("Ray could not list the users: %s", in_one_line(error))
            return
        for name in self._actors.keys() - names:
            del self._actors[name]
            self._coming.pop(name, None)
        found = []
        for name in sorted(names - self._actors.keys()):
            if not is_user_name(name):  # anybody's, which terminal, log and page would show
                log.debug("ignoring a user called %s", in_one_line(name))
                continue
            try:
                actor: Any = ray.get_actor(name)
            except ValueError:  # it ended between the two questions
                continue
            if hasattr(actor, "ready"):  # else somebody else's, of the same namespace
                self._actors[name], self._coming[name] = actor, actor.ready.remote()
                found.append(self._coming[name])
        if found:  # most are ready, and say so at once
            ray.wait(found, num_returns=len(found), timeout=0.2)

    def _restart_hung(self) -> None:
        """End their processes: Ray starts them again, and then they take part again."""
        for call, (user, round, hung) in self._asked.items():
            if time.monotonic() >= hung and user in self._actors:
                log.warning("%s has hung since round %d; restarting it", user, round)
                self._asked[call] = user, round, inf
                ray.kill(self._actors[user], no_restart=False)

    def free(self) -> set[str]:
        """Users who are not at work; others would begin only after that."""
        return self.users() - self._busy()

    def _busy(self) -> set[str]:
        return {user for user, *_ in self._asked.values()}

    def send(self, task: Task, users: Collection[str]) -> None:
        """The model goes into Ray's memory once, and from there to every machine once."""
        model = ray.put(encode_model(task.weights))
        server = ray.put(encode_model(task.server)) if task.server else b""
        asked = replace(task, weights={}, server={})
        self._round = task.round
        # Without a deadline nobody knows how long is too long.
        longest = inf if task.deadline is None else HUNG_DEADLINES * task.deadline
        hung = time.monotonic() + max(HUNG_SECONDS, longest)
        for user in set(users) & self._actors.keys() - self._busy():
            call = self._actors[user].train.remote(asked.of(user), model, server)
            self._asked[call] = user, task.round, hung

    def awaited(self) -> set[str]:
        """Users asked in this round whose call is not over."""
        return {user for user, round, _ in self._asked.values() if round == self._round}

    def receive(self, seconds: float) -> Sequence[Answer]:
        """Wait for the first answer, and take all that are there then."""
        if time.monotonic() - self._looked >= 2 * LOOK:  # in a long round, nobody looks
            self._pulse.check()
        if not self._asked:
            time.sleep(seconds)
            return []
        first, rest = ray.wait(list(self._asked), num_returns=1, timeout=seconds)
        if not first:
            return []
        more = ray.wait(rest, num_returns=len(rest), timeout=0)[0] if rest else []
        return [self._answer(reference) for reference in (*first, *more)]

    def _answer(self, reference: Any) -> Answer:
        user, round, _ = self._asked.pop(reference)
        try:
            content = plain(reference)
        except RayError as error:
            content = Rejected(f"lost: {type(error).__name__}")
        if isinstance(content, Rejected) and str(content) == ENDED:
            self._actors.pop(user, None)  # it is found again when Ray has started it again
        elif isinstance(content, bytes) and content.startswith(FAILED):
            reason = content[len(FAILED) :].decode(errors="replace")
            content = Rejected(f"failed: {in_one_line(reason, last=True)}")
        return Answer(user, round, content)
