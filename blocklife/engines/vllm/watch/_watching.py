"""The watch over one vLLM scheduler: its hooks, and what it does at a violation."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from multiprocessing.util import Finalize
from typing import Protocol, TextIO

from attrs import asdict, frozen

from blocklife.engines.vllm.watch._calls import CallsThrough
from blocklife.engines.vllm.watch._engine import EngineHooks
from blocklife.engines.vllm.watch._metrics import of_process
from blocklife.engines.vllm.watch._mirror import Mirror
from blocklife.engines.vllm.watch._offloading import OffloadingHooks, blocks_per_chunk_of
from blocklife.engines.vllm.watch._options import Options, RecordError, WatchMode, of_this_process, unusable
from blocklife.engines.vllm.watch._pool import PoolHooks
from blocklife.engines.vllm.watch._simple import SimpleHooks
from blocklife.engines.vllm.watch._tables import TablesHooks
from blocklife.engines.vllm.watch._tiering import TieringHooks, is_tiering, primary_of
from blocklife.engines.vllm.watch._violations import LOGGER, ViolationReporter, WatchViolation
from blocklife.errors import InvariantError, MisuseError
from blocklife.recording import BusyError, Recorder, open_file

_FILES_MAX = 64
"""How many file names are tried for a recording."""
_TOLD_EVERY = 64
"""How many steps lie between two updates of the metrics."""


class ConnectorWatch(Protocol):
    """Hooks on a connector of any kind."""

    all_calls: list[CallsThrough]


class OpenRecording:
    """A recording being written, of one ledger, in a file of its own.

    The first connector's file is *path*, the next one's has ``.2`` appended, and so on; if another engine of this process
    writes to that file, the next number is taken.
    """

    def __init__(self, path: str, number: int, mirror: Mirror) -> None:
        self.path, self._stream = _opened(path, number)
        self._recorder = Recorder(self._stream, time.monotonic_ns, mirror.name_of)
        self._recorder.begin(mirror.ledger)

    def flush(self) -> None:
        """Flush to the file. A write error is reported when the recording is closed."""
        with contextlib.suppress(OSError):
            self._stream.flush()

    def close(self, *, whole: bool) -> None:
        """End the recording. The mark of a complete run is written only if it is complete (*whole*)."""
        try:
            if whole:
                self._recorder.end()
            self._stream.close()
        except OSError as error:
            LOGGER.error("blocklife watch: the recording %s could not be written to its end (%s)", self.path, error)


def _opened(path: str, number: int) -> tuple[str, TextIO]:
    """Open the file of a recording. Raises `RecordError`, with path and remedy, if it cannot be opened."""
    why = ""
    for at in range(number, number + _FILES_MAX):
        name = f"{path}.{at + 1}" if at else path
        why = unusable(name)
        try:
            if not why:
                stream = open_file(name)
                if at > number:
                    LOGGER.warning("blocklife watch: the recording goes to %s, since another one is written to %s", name, path)
                return name, stream
        except BusyError:
            why = f"{_FILES_MAX} recordings are being written there (name another file)"
            continue
        except OSError as error:
            why = f"it cannot be written: {error.strerror or error} (name a file that can be)"
        except ValueError as error:
            why = f"it cannot be written: {error} (name a file that can be)"
        break
    raise RecordError(f"record (BLOCKLIFE_WATCH_RECORD)={path}: {why}")


class Watch:
    """A watch over one scheduler, with a mirror for each connector, since each has slots and jobs of its own."""

    def __init__(self, scheduler: object, options: Options) -> None:
        parts = Parts.of(scheduler)
        self.options = options
        self.of = f"the scheduler's side of {_names_of(parts.connectors)}"
        """What it watches, in words."""
        self._metrics = of_process() if options.mode is WatchMode.COUNT else None
        self._reporter = ViolationReporter(
            options.mode, self._metrics.violated if self._metrics is not None else lambda rule: None
        )
        self._recordings: list[OpenRecording] = []
        self._calls: list[CallsThrough] = []
        self._is_open = True
        self._settled_calls = 0
        self.lost: Exception | None = None
        """The internal error that has stopped the watch, if any."""
        self.mirrors = [self._mirror(scheduler, parts, number, each) for number, each in enumerate(parts.connectors)]
        self._listen(parts)
        self._at_exit = Finalize(None, self.close, exitpriority=0)

    # --- results ------------------------------------------------------------------------------------------------------------

    @property
    def mirror(self) -> Mirror:
        """The mirror of the first connector."""
        return self.mirrors[0]

    @property
    def violations(self) -> list[WatchViolation]:
        """The first violations; `counts` has them all."""
        return self._reporter.violations

    @property
    def counts(self) -> Counter[str]:
        """How often each rule was broken."""
        return self._reporter.counts

    @property
    def steps(self) -> int:
        """Steps of the connector so far."""
        return max(mirror.steps for mirror in self.mirrors)

    def report(self) -> dict[str, object]:
        """All violations and counts, as plain values for JSON."""
        return {
            "mode": self.options.mode.name.lower(),
            "sample": self.options.sample,
            "steps": self.steps,
            "violations_by_rule": dict(self.counts),
            "violations": [asdict(violation) for violation in self.violations],
            **{name: count for name, count in self._counted().items() if name != "steps"},
            "lost": None if self.lost is None else str(self.lost),
        }

    def _counted(self) -> dict[str, int]:
        return {
            "steps": sum(mirror.steps for mirror in self.mirrors),
            "jobs": sum(mirror.counts["jobs"] for mirror in self.mirrors),
            "blocks_believed": sum(mirror.counts["believed"] for mirror in self.mirrors),
            "copies_not_followed": sum(mirror.counts["not followed"] for mirror in self.mirrors),
        }

    # --- its life -----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop watching, and end the recordings. A second call does nothing."""
        if not self._is_open:
            return
        self._is_open = False
        for calls in reversed(self._calls):  # one method may be wrapped by several
            calls.undo()
        if self._metrics is not None:
            self._metrics.tell(id(self), self._counted())
            self._metrics.forget(id(self))
        for mirror, recording in zip(self.mirrors, self._recordings, strict=False):
            recording.close(whole=not (mirror.is_torn or mirror.ledger.jobs.live or mirror.ledger.blocks.count_held()))
        self._at_exit.cancel()

    def _mirror(self, scheduler: object, parts: Parts, number: int, connector: object) -> Mirror:
        mirror = Mirror(
            parts.num_blocks,
            num_groups=max(1, len(parts.managers)),
            num_workers=_num_workers(scheduler, connector),
            num_slots=_num_slots(connector),
            blocks_per_slot=blocks_per_chunk_of(connector),
            tell=self._tell,
            lost=self._lose,
            sample=self.options.sample,
            is_told=self.options.jobs or bool(self.options.record),
            computes=parts.engine is not None,
        )
        if self.options.record:
            self._recordings.append(OpenRecording(of_this_process(self.options.record), number, mirror))
            path = shlex.quote(self._recordings[-1].path).replace("{", "{{").replace("}", "}}")
            mirror.story.draw = f"blocklife recording show {path} --block {{block}}"
        return mirror

    def _listen(self, parts: Parts) -> None:
        if parts.pool is not None:
            pool_hooks = PoolHooks(self.mirrors, parts.pool, parts.cache_manager, parts.managers, self.options.sample)
            self._calls.append(pool_hooks.calls)
            if parts.engine is not None:
                pool_hooks.adopt()
                self._calls.append(TablesHooks(parts.engine, self.mirrors, pool_hooks, parts.managers).calls)
        for mirror in self.mirrors:
            mirror.progress = self.mirrors[0].progress
        for mirror, each in zip(self.mirrors, parts.connectors, strict=True):
            self._calls += _connector_hooks(mirror, each).all_calls
        if parts.engine is not None:
            self._calls.append(EngineHooks(parts.engine, self.mirrors, self._settled).calls)

    def _tell(self, found: list[WatchViolation]) -> None:
        for recording in self._recordings:
            recording.flush()
        self._reporter(found)

    def _lose(self, error: Exception) -> None:
        """An error in the watch itself: the watch stops, and the engine goes on."""
        self.lost = error
        self.close()
        what = "blocklife watch: stopped by an internal error; the fault is the watch's own, not the engine's"
        if self.options.mode is WatchMode.STRICT:
            raise InvariantError(f"{what} ({error})") from error
        LOGGER.error(what, exc_info=error)

    def _settled(self) -> None:
        """Called at the end of each step."""
        self._settled_calls += 1
        if self._metrics is not None and self._settled_calls % _TOLD_EVERY == 0:
            self._metrics.tell(id(self), self._counted())


@frozen(eq=False)
class Parts:
    """What can be watched of vLLM's scheduler, or of a connector's scheduler side or a manager of tiers driven alone."""

    engine: object | None
    pool: object | None
    managers: list[object]
    cache_manager: object | None
    connectors: list[object]

    @classmethod
    def of(cls, scheduler: object) -> Parts:
        """The parts of a scheduler. Raises MisuseError if there is nothing to watch."""
        cache_manager = getattr(scheduler, "kv_cache_manager", None)
        pool = getattr(cache_manager, "block_pool", None)
        managers = getattr(getattr(cache_manager, "coordinator", None), "single_type_managers", None)
        if pool is not None and managers is not None:
            connectors = list(_connectors_of(getattr(scheduler, "connector", None)))
            if not connectors:
                raise MisuseError(_why_none(getattr(scheduler, "connector", None)))
            return cls(scheduler, pool, list(managers), cache_manager, connectors)
        if _is_simple(scheduler) or _is_offloading(scheduler):
            return cls(None, getattr(scheduler, "_gpu_block_pool", None), [], None, [scheduler])
        if is_tiering(scheduler):
            return cls(None, None, [], None, [scheduler])
        raise MisuseError(f"a {type(scheduler).__name__} has nothing to watch (attach to vLLM's Scheduler)")

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool, including the null block; 1 if no pool is known."""
        blocks = getattr(self.pool, "blocks", None)
        return len(blocks) if isinstance(blocks, list) else 1


def _is_offloading(scheduler: object) -> bool:
    return hasattr(scheduler, "_jobs") and hasattr(scheduler, "build_connector_meta")


def _is_simple(scheduler: object) -> bool:
    return hasattr(scheduler, "_reqs_to_load") and hasattr(scheduler, "build_connector_meta")


def _connector_hooks(mirror: Mirror, scheduler: object) -> ConnectorWatch:
    if is_tiering(scheduler):
        return TieringHooks(mirror, scheduler, alone=True)
    return SimpleHooks(mirror, scheduler) if _is_simple(scheduler) else OffloadingHooks(mirror, scheduler)


def _connectors_of(connector: object) -> Iterator[object]:
    """The scheduler sides that can be watched: of a connector, or of each connector that it combines."""
    for name in ("connector_scheduler", "scheduler_manager"):
        found = getattr(connector, name, None)
        if _is_offloading(found) or _is_simple(found):
            yield found
    for child in getattr(connector, "_connectors", None) or ():
        yield from _connectors_of(child)


def _names_of(connectors: Sequence[object]) -> str:
    """vLLM's names of these connectors."""
    return " and ".join(map(_name_of, connectors))


def _name_of(connector: object) -> str:
    if is_tiering(connector):
        return type(connector).__name__
    return "SimpleCPUOffloadConnector" if _is_simple(connector) else "OffloadingConnector"


def _why_none(connector: object) -> str:
    """Why there is nothing to watch in a scheduler with this connector."""
    if connector is None:
        return "a scheduler without a connector has nothing to watch (it offloads nothing)"
    told = f"a scheduler with {type(connector).__name__} has nothing to watch"
    # By name, since the class itself can be imported only where vLLM is installed.
    if any(each.__name__ == "BlocklifeConnector" for each in type(connector).__mro__):
        return f"{told} (this connector keeps a ledger of its own, and is not watched)"
    return f"{told} (only OffloadingConnector and SimpleCPUOffloadConnector can be watched, alone or in a MultiConnector)"


def _num_workers(scheduler: object, connector: object) -> int:
    for found in (
        getattr(getattr(getattr(scheduler, "vllm_config", None), "parallel_config", None), "world_size", None),
        getattr(getattr(connector, "config", None), "num_workers", None),
        getattr(connector, "_expected_worker_count", None),
    ):
        if isinstance(found, int) and found > 0:
            return found
    return 1


def _num_slots(connector: object) -> int:
    """Slots of the host tier if the connector knows their number, otherwise 0."""
    manager = primary_of(connector if is_tiering(connector) else getattr(connector, "manager", None))
    for found in (
        getattr(connector, "num_cpu_blocks", None),
        getattr(manager, "_num_chunks", None),
        getattr(manager, "_num_blocks", None),
    ):
        if isinstance(found, int):
            return found
    return 0
