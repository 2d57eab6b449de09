"""The tier below the host memory of a replay: its store, what the scheduler knows of it, and a copier for each worker.

*Order of the end.* The copiers are closed first: they give up calls that hang, and touch no slot afterwards. Then the presence
is closed, and then the store, in a thread, because it may wait for the calls that still run in it. Last, the threads are
joined. Each of these waits is bounded: if a store never returns from a call, only the threads of that call and of the
closing stay behind.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import attrs

from blocklife._theirs import told
from blocklife.engines.toy._memory import Bytes
from blocklife.engines.toy._options import BelowOptions
from blocklife.errors import MisuseError
from blocklife.ledger import Worker
from blocklife.offload import BelowStatistics, Geometry
from blocklife.tiers import (
    CircuitBreaker,
    ContentStore,
    FaultyStore,
    Identity,
    Presence,
    StoreCopier,
    open_store,
)

MODEL = "blocklife-toy"
CONTENT = "words 1"
"""How the content of a block follows from its key (`_memory`, `_sequences`). It changes with it, so that none is mixed up."""
LANE_BYTES = 4 << 20
"""The staging area of one thread, where that has room for an entry."""
FEW_WORKERS = 4
"""Up to so many workers, each has two threads for the store."""
CALL_S = 5.0
"""How long a call of the store may take, in seconds, before what it was for is given up; more for large values."""
SLOWEST_BYTES_PER_S = 20e6
"""A store that is slower than this counts as hanging."""
END_S = 5.0
"""How long the end of a run waits for a store that does not come back, in seconds."""


@attrs.frozen(kw_only=True)
class BelowReport(BelowStatistics):
    """What a replay had from its tier below: the scheduler's counts, in slots, and what else has to be known.

    Slots count once for all workers, parts and bytes for each of them.
    """

    store: str
    tokens_hit: int
    """Of ``tokens_hit_host``, those from the first block on that a promotion has brought: without the tier below, no hit."""
    damaged: int
    """Parts that came back cut or changed."""
    foreign: int
    """Parts that came back as something else: another version, identity or name."""
    bytes_promoted: int
    bytes_demoted: int
    failed_calls: int
    """Calls of the store that failed, or hung."""
    hung_calls: int
    times_down: int
    """How often the store was left alone because it kept failing."""
    unanswered: int
    """Lookups that counted as a miss because the store had not answered in time, or was down."""


class _Index:
    """What the scheduler asks: the presence, until the run is told to end."""

    def __init__(self, presence: Presence) -> None:
        self._presence = presence
        self.is_ending = False
        self.ask = presence.ask
        self.discard = presence.discard
        self.note_put = presence.note_put
        self.new_space = presence.new_space

    @property
    def is_up(self) -> bool:
        """Whether to put anything into the store."""
        return not self.is_ending and self._presence.is_up


class TierOfReplay:
    """Owns the store of a run, and everything that calls it. Its threads end with `close`."""

    def __init__(self, options: BelowOptions, geometry: Geometry, block_bytes: int, workers: int, seed: int) -> None:
        """Open the store. Refuses: MisuseError if that is impossible."""
        self.options = options
        self.identity = Identity(
            model=MODEL,
            dtype="uint64",
            groups=str(geometry),
            blocks_per_chunk=geometry.blocks_per_chunk,
            slot_bytes=block_bytes * geometry.blocks_per_chunk,
            num_ranks=workers,
            layout=CONTENT,
        )
        try:
            store = open_store(options.store)
        except MisuseError as problem:
            raise MisuseError(f"--below: {problem}") from problem
        self._store: ContentStore = store if options.faults is None else FaultyStore(store, options.faults, seed)
        self._gets, self._puts = CircuitBreaker(), CircuitBreaker()
        self._presence = Presence(self._store, self.identity, breaker=self._gets)
        self._copiers: list[StoreCopier] = []
        self.close_error = ""
        """What the store raised when it was closed; empty if nothing."""
        self._num_threads = 2 if workers <= FEW_WORKERS else 1
        self.index = _Index(self._presence)

    def copier(self, host: Bytes, worker: Worker) -> StoreCopier:
        """A copier for the slots of one worker, closed with the tier if its owner has not closed it before.

        Refuses: MisuseError if the store does not take its staging area.
        """
        lane = max(LANE_BYTES, self.identity.entry_bytes + (1 << 12))
        try:
            made = StoreCopier(
                self._store,
                host,
                self.identity,
                worker=worker,
                breaker=self._gets,
                put_breaker=self._puts,
                staging_bytes=lane * self._num_threads,
                num_threads=self._num_threads,
                timeout_s=CALL_S + lane / SLOWEST_BYTES_PER_S,
            )
        except (Exception, SystemExit) as problem:
            raise MisuseError(f"--below: the store takes no memory: {told(problem)}") from problem
        self._copiers.append(made)
        return made

    def busy(self) -> bool:
        """Whether a copy, or an answer of the store, is on its way."""
        return any(copier.busy() for copier in self._copiers) or self._presence.statistics().waiting > 0

    def close(self) -> None:
        """End all threads, and release the store. A second call does nothing."""
        for copier in self._copiers:
            copier.close()
        self._presence.close(wait_s=0.0)
        closing = threading.Thread(target=self._close_store, name="blocklife-store-close", daemon=True)
        closing.start()
        closing.join(END_S)
        left_s = 0.0 if closing.is_alive() else END_S
        self._presence.close(wait_s=left_s)
        _until(lambda: not any(copier.statistics().threads_lost for copier in self._copiers), left_s)
        for copier in self._copiers:
            copier.close()

    def _close_store(self) -> None:
        try:
            self._store.close()
        except (Exception, SystemExit) as problem:  # all that was asked of it is over: the run stands
            self.close_error = told(problem)

    def report(self, counted: BelowStatistics, tokens_hit: int) -> BelowReport:
        """The results so far."""
        copied, asked = [copier.statistics() for copier in self._copiers], self._presence.statistics()
        judged = [breaker.statistics() for breaker in (self._gets, self._puts)]
        return BelowReport(
            **attrs.asdict(counted),
            store=self.options.store,
            tokens_hit=tokens_hit,
            damaged=sum(each.damaged for each in copied),
            foreign=sum(each.foreign for each in copied),
            bytes_promoted=sum(each.bytes_promoted for each in copied),
            bytes_demoted=sum(each.bytes_demoted for each in copied),
            failed_calls=sum(each.failures for each in judged),
            hung_calls=sum(each.hung_calls for each in copied),
            times_down=sum(each.times_down for each in judged),
            unanswered=asked.given_up + asked.refused,
        )


def _until(is_so: Callable[[], bool], wait_s: float) -> None:
    """Wait for something, not longer than so many seconds."""
    deadline = time.monotonic() + wait_s
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.001)
