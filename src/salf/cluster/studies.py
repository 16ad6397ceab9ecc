"""Jobs on the nodes of a Ray cluster, in place of processes of this machine."""

import io
import secrets
import site
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import monotonic
from types import ModuleType
from typing import Any, cast

from salf.cluster import files
from salf.cluster.files import Outbox, fetch
from salf.cluster.objects import Unpacker, packed
from salf.common.errors import SalfError, in_one_line, portable
from salf.data.loading import cache_folder
from salf.engines.base import Engine
from salf.engines.spread import Crew
from salf.live.cluster import Pulse, cluster
from salf.runs.folder import RunFolder
from salf.runs.pool import Ended, Job, Pool
from salf.runs.run import Stopped

NEWS = 0.2  # seconds between two reports of a job
SEND = 10.0  # seconds between two times that a job's changed files are sent
TRIES = 3  # how often a job is started whose node is lost
END = 30.0  # seconds that jobs have to save what they have


class Cluster(Pool):
    """A Ray cluster: does jobs as `WorkerPool` does, each on one core, or the users of a round.

    `address` is that of the cluster's head, or `auto`: the cluster that runs on this machine. salf
    and one's own modules are sent to the nodes, data once to each. A job whose node is lost is done
    again, from its last checkpoint. Numbers are those of one machine if nodes have the same kind of
    processor.
    """

    def __init__(self, address: str = "auto") -> None:
        self.address = address
        self._stack, self._token = ExitStack(), f".cluster-{secrets.token_hex(8)}"
        self._study = 0  # how many there were
        # References to what the jobs of a study read: files, and tensors by identity.
        self._files: dict[Path, tuple[str, Any]] = {}
        self._tensors: dict[int, tuple[Any, Any]] = {}

    def __enter__(self) -> "Cluster":
        modules = {"py_modules": [sys.modules["salf"], *own_modules()]}
        found = cluster(self.address, "salf-studies", runtime_env=modules)
        self.dashboard = self._stack.enter_context(found)
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        task: Any = ray.remote  # whose types are of many forms
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._desk = task(num_cpus=0, scheduling_strategy=here)(Desk).remote()
        self._task = task(max_retries=0, scheduling_strategy="SPREAD")(_do)
        self._pulse = Pulse()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    @property
    def told(self) -> str:
        """What this cluster is, in a line."""
        import ray

        nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        cores = sum(node["Resources"].get("CPU", 0) for node in nodes)
        where = f", dashboard at {self.dashboard}" if self.dashboard else ""
        return f"Ray cluster of {len(nodes)} nodes and {cores:.0f} cores{where}"

    def crew(self, engine: Engine) -> Crew:
        """Workers for the users of a round, on all cores."""
        import ray

        from salf.cluster.rounds import NodeCrew

        cores = max(1, int(ray.available_resources().get("CPU", 1)))  # type: ignore[no-untyped-call]
        return NodeCrew(engine, cores)

    def ended(
        self, jobs: Mapping[str, Job], note: Callable[[str, float], None]
    ) -> Generator[Ended, None, None]:
        import ray

        self._study += 1
        self._files, self._tensors = {}, {}  # they may have changed since the last study
        with ExitStack() as shown:
            for folder in {job.place.parent for job in jobs.values() if job.place}:
                shown.callback(self._show(folder).unlink, missing_ok=True)
            pending = {self._submit(name, job): name for name, job in jobs.items()}
            lost: Counter[str] = Counter()
            try:
                while pending:
                    ready, _ = ray.wait(list(pending), num_returns=len(pending), timeout=NEWS)
                    self._pulse.check()
                    news = ray.get(self._desk.news.remote())
                    for name in pending.values():
                        note(name, news.get(name, 0.0))
                    for name, reference in [(pending.pop(each), each) for each in ready]:
                        if (result := _result_of(reference)) is not None:
                            yield name, result
                            continue
                        lost[name] += 1  # with its node or process
                        if lost[name] == TRIES:
                            raise SalfError(f"{name} was lost {TRIES} times with its node.")
                        ray.get(self._desk.end.remote(jobs[name].place))
                        pending[self._submit(name, jobs[name])] = name
            except BaseException:
                self._stop(list(pending))
                raise

    def _submit(self, name: str, job: Job) -> Any:
        import ray

        for path in job.reads:
            if path not in self._files:
                found = files.contents(path)
                self._files[path] = files.digest(found), ray.put(found)
        # In a list, references are not fetched before the job asks for them.
        given = [(path, *self._files[path]) for path in job.reads]
        reads = [(in_cache(path), digest, [reference]) for path, digest, reference in given]
        content, tensors = packed(job, self._tensors)
        desk = self._desk, self._study, self._token
        return self._task.remote(name, content, tensors, desk, reads)

    def _show(self, folder: Path) -> Path:
        """A file that nodes see if they share this folder."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / self._token).touch()
        return folder / self._token

    def _stop(self, pending: list[Any]) -> None:
        """End all jobs; those that run save their state first."""
        import ray

        try:
            ray.get(self._desk.stop.remote(self._study), timeout=END)
            ray.wait(pending, num_returns=len(pending), timeout=END)
        except (ray.exceptions.RayError, ValueError):
            pass  # the cluster is gone, or nothing was pending


class Desk:
    """A process on the program's machine: gets the news of jobs, and keeps their files."""

    def __init__(self) -> None:
        self._parts: dict[str, float] = {}
        self._held: dict[Path | None, ExitStack] = {}  # what jobs on other nodes write
        self._stopped: set[int] = set()

    def report(self, study: int, name: str, part: float) -> bool:
        """Note how far a job is; the answer is whether it has to stop."""
        self._parts[name] = part
        return study in self._stopped

    def news(self) -> dict[str, float]:
        return self._parts

    def stop(self, study: int) -> None:
        self._stopped.add(study)

    def begin(self, place: Path) -> files.Contents | SalfError:
        """What there is of what a job writes on a node; other programs are kept out of a folder."""
        if place not in self._held:
            held = ExitStack()
            try:
                if place.suffix != ".json":  # a file is the same whoever writes it
                    held.enter_context(RunFolder(place).locked())
            except SalfError as error:
                return error
            self._held[place] = held
        return files.contents(place)

    def keep(self, place: Path, changed: Mapping[str, bytes], gone: list[str]) -> None:
        if place not in self._held:
            raise SalfError(f"the job that writes {place} counts as lost: it is done again.")
        files.keep(place, changed, gone)

    def end(self, place: Path | None) -> None:
        """The job is over, or lost."""
        if place in self._held:
            self._held.pop(place).close()


def _do(
    name: str,
    content: bytes,
    tensors: list[Any],
    to: tuple[Any, int, str],
    reads: Iterable[tuple[Path, str, list[Any]]],
) -> tuple[BaseException | None, Any]:
    """Do a job on a node: the error, if there is one, and the result."""
    import ray

    get: Callable[[Any], Any] = ray.get
    job: Job = Unpacker(io.BytesIO(content), tensors).load()
    desk, study, token = to
    last, outbox = 0.0, cast("Outbox | None", None)

    def progress(part: float) -> None:
        nonlocal last
        if monotonic() - last < NEWS:
            return
        if ray.get(desk.report.remote(study, name, part)):
            raise Stopped
        if outbox is not None:
            outbox.send_after(SEND)
        last = monotonic()

    try:
        progress(0.0)  # before a file is touched: it may be over
        with ExitStack() as stack:
            for path, expected, (at,) in reads:
                fetch(cache_folder() / path, expected, partial(get, at))
            if (place := job.place) is not None and not (place.parent / token).exists():

                def keep(changed: files.Contents, gone: list[str]) -> None:
                    ray.get(desk.keep.remote(place, changed, gone))

                if isinstance(kept := ray.get(desk.begin.remote(place)), SalfError):
                    raise kept
                stack.callback(lambda: ray.get(desk.end.remote(place)))
                outbox = stack.enter_context(Outbox(place, kept, keep))
            return None, job.do(progress)
    except (Exception, Stopped) as error:
        return portable(error), None


def in_cache(path: Path) -> Path:
    """A path that is relative if it is in the cache, which may be elsewhere on a node."""
    cache = cache_folder().absolute()
    return path.relative_to(cache) if path.is_relative_to(cache) else path


def _result_of(reference: Any) -> Callable[[], Any] | None:
    """What gives a job's result or raises its error; None if it was lost."""
    import ray

    try:
        error, result = ray.get(reference)
    except (ray.exceptions.RayTaskError, ray.exceptions.RuntimeEnvSetupError) as reason:
        why = in_one_line(reason, last=True)
        raise SalfError(f"the cluster cannot run a job: {why}.") from None
    except ray.exceptions.RayError:
        return None

    def given() -> Any:
        if error is not None:
            raise error
        return result

    return given


def own_modules() -> list[ModuleType]:
    """Modules that were imported and that no package installed: one's own methods and models."""
    places = [sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")]
    places += [*site.getsitepackages(), site.getusersitepackages()]
    installed = [Path(place) for place in places]
    found = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is None or "." in name or name in ("__main__", "__mp_main__", "salf"):
            continue
        if not any(Path(file).is_relative_to(place) for place in installed):
            found.append(module)
    return found
