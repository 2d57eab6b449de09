"""``python -m tests.lmcache.run --python 0.5.6 -m tests.lmcache.found``: faults of LMCache itself, one line each.

Each is a story of a few calls to its real storage manager and modules, under timing that is unkind and lawful: a lease ends, a
worker is late or dies, an adapter refuses. `specs/lmcache.md` tells of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from attrs import define, field

from tests.behind.stories import tell
from tests.lmcache import turns
from tests.lmcache.content import Bytes, Witness, at, stamp
from tests.lmcache.engine import RELEASE, Engine, key_of, teach
from tests.lmcache.worlds import WorldSpec

SIZE = 4
"""Tokens of a chunk."""
MADE: list[Callable[[Engine], object]] = []
"""Called with each engine before its story begins: for a test that watches it."""


@define(eq=False)
class Stage:
    """One LMCache, and what the stories do with it."""

    spec: WorldSpec
    witness: Witness = field(factory=Witness)
    turns: turns.Turns = field(factory=turns.begin)
    engine: Engine = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.engine = Engine.of(self.spec, self.witness)
        for each in MADE:
            each(self.engine)

    def key(self, tokens: Sequence[int], request: str, worker: int | None = 0) -> Any:
        """How a request names all of a text."""
        teach(self.engine, self.witness, tokens, self.spec, "")
        return key_of(tokens, 0, len(tokens), request=request, worker=worker, workers=1)

    def prepare(self, tokens: Sequence[int], request: str) -> list[Bytes]:
        """The places that a worker may write."""
        told = self.engine.transfer.prepare_store(self.key(tokens, request), 0).context["slots"]
        return [at(self.engine.base + each["offset"]) for each in told]

    def fill(self, places: Sequence[Bytes], tokens: Sequence[int]) -> None:
        """A worker writes."""
        for number, place in enumerate(places):
            place[:] = stamp(tokens[: (number + 1) * SIZE], 0, "")

    def commit(self, tokens: Sequence[int], request: str) -> bool:
        """A worker says that it has written."""
        return bool(self.engine.transfer.commit_store(self.key(tokens, request), 0, b""))

    def store(self, tokens: Sequence[int], request: str) -> int:
        """All of it. Returns how many chunks were stored."""
        places = self.prepare(tokens, request)
        self.fill(places, tokens)
        self.commit(tokens, request)
        return len(places)

    def turn(self, times: int = 3) -> None:
        """The threads go on that store and prefetch."""
        for _ in range(times):
            for thread in self.turns.threads:
                if "eviction" not in thread.loop:
                    thread.turn()

    def evict(self) -> None:
        """The thread goes on that evicts."""
        for thread in self.turns.threads:
            if "eviction" in thread.loop:
                thread.turn()

    def land(self) -> None:
        """All that is out at adapters lands, and all that follows from it."""
        while any(each.tasks for each in self.engine.adapters):
            for adapter in self.engine.adapters:
                while adapter.tasks:
                    adapter.land(adapter.tasks[0])
            self.turn()

    def pass_time(self, seconds: float) -> None:
        """Time goes by."""
        self.turns.clock.now += seconds

    def ask(self, tokens: Sequence[int], request: str) -> None:
        """A scheduler looks a text up."""
        self.engine.lookup.lookup(self.key(tokens, request, None), 1)
        self.turn()

    def hit(self, request: str) -> int:
        """What it is told."""
        return int(self.engine.lookup.query_prefetch_status(request))

    def reads(self, tokens: Sequence[int], request: str) -> list[Bytes] | None:
        """The places that a worker may read; None where LMCache has them no more."""
        told = self.engine.transfer.prepare_retrieve(self.key(tokens, request), 0)
        return [at(self.engine.base + each["offset"]) for each in told.context["slots"]] if told.success else None

    def is_right(self, place: Bytes, tokens: Sequence[int]) -> bool:
        """Whether a place holds the last chunk of a text."""
        return bool((place == stamp(tokens, 0, "")).all())

    def serve(self, tokens: Sequence[int], request: str) -> str:
        """A request reads a text that was stored. Returns what is wrong with what it reads, "" if nothing is."""
        self.ask(tokens, request)
        self.land()
        hit = self.hit(request)
        if not hit:
            return ""
        places = self.reads(tokens[: hit * SIZE], request)
        if places is None:
            return f"{request} is told of {hit} chunks, and its worker gets none"
        wrong = [number for number, place in enumerate(places) if not self.is_right(place, tokens[: (number + 1) * SIZE])]
        return f"{request} reads wrong bytes in {len(wrong)} of {hit} chunks" if wrong else ""


TEXT, OTHER = tuple(range(100, 108)), tuple(range(200, 208))
"""Texts of two chunks."""
Story = Callable[[], tuple[Stage, str]]


def writer_shares_its_place_with_the_next() -> tuple[Stage, str]:
    """A writer takes longer than its lease: its place is given to the next one, and its commit publishes what that writes."""
    stage = Stage(WorldSpec(adapters=(), write_lease=1))
    first = stage.prepare(TEXT, "first")
    stage.pass_time(2)
    second = stage.prepare(TEXT, "second")
    second[0][:] = 0xEE  # the second writer has begun
    stage.commit(TEXT, "first")
    wrong = stage.serve(TEXT, "reader")
    shared = {each.ctypes.data for each in first} & {each.ctypes.data for each in second}
    return stage, f"two writers have {len(shared)} places in common; {wrong}" if shared and wrong else ""


def evicted_under_a_store_to_l2() -> tuple[Stage, str]:
    """A store to L2 takes longer than the lease of its locks: the place is evicted and used anew, and L2 keeps other bytes."""
    stage = Stage(WorldSpec(places=2, adapters=(16,), read_lease=1, watermark=0.5, ratio=1.0))
    stage.store(TEXT, "first")
    stage.turn()  # the store is on its way
    stage.pass_time(2)
    stage.evict()
    stage.store(OTHER, "second")
    stage.land()
    stage.engine.storage.clear()
    return stage, stage.serve(TEXT, "reader")


def told_of_what_was_not_loaded() -> tuple[Stage, str]:
    """A load from L2 takes longer than its lease: LMCache refuses to publish it, and tells of a hit all the same."""
    stage = Stage(WorldSpec(adapters=(16,), write_lease=1))
    stage.store(TEXT, "first")
    stage.turn()
    stage.land()
    stage.engine.storage.clear()
    stage.ask(TEXT, "second")
    (adapter,) = stage.engine.adapters
    adapter.land(adapter.tasks[0])  # the lookup
    stage.turn()
    stage.pass_time(2)  # the load is on its way
    stage.land()
    hit = stage.hit("second")
    return stage, f"second is told of {hit} chunks, and its worker gets none" if hit and stage.reads(
        TEXT, "second"
    ) is None else ""


def refused_load_frees_places_under_another() -> tuple[Stage, str]:
    """Of two adapters the second refuses its load: the places are freed while the first loads into one, and it writes on."""
    stage = Stage(WorldSpec(places=2, adapters=(1, 16)))
    first, second = stage.engine.adapters
    stage.store(TEXT, "first")
    stage.turn()
    stage.land()
    for key in list(first.content):
        second.content.pop(key, None)  # each adapter has one of the chunks
    stage.engine.storage.clear()
    stage.ask(TEXT, "second")
    for adapter in stage.engine.adapters:
        adapter.land(adapter.tasks[0])
    second.refuses = "load"
    stage.turn()
    out = sum(len(each.tasks) for each in stage.engine.adapters)
    places = stage.prepare(OTHER, "third")
    stage.fill(places, OTHER)
    stage.land()  # the load of nobody
    stage.commit(OTHER, "third")
    wrong = stage.serve(OTHER, "reader")
    return stage, f"{out} load is out when its place is given to third; {wrong}" if out and wrong else ""


def reaped_worker_publishes_what_it_has_not_written() -> tuple[Stage, str]:
    """A worker that is silent is reaped: what it had reserved is published, written or not."""
    stage = Stage(WorldSpec(adapters=()))
    for place in stage.prepare(TEXT, "first"):
        place[:] = 0xEE
    stage.pass_time(60)
    stage.engine.transfer.reap_stale_instances(30, 30)
    stage.engine.transfer.register_kv_cache_engine_driven_context(_registered(stage))
    return stage, stage.serve(TEXT, "reader")


def reaped_reader_reads_on() -> tuple[Stage, str]:
    """A worker that is alive and slow is reaped while it reads: its locks are released, and it reads what comes next."""
    stage = Stage(WorldSpec(places=2, adapters=()))
    stage.store(TEXT, "first")
    stage.ask(TEXT, "second")
    stage.hit("second")
    places = stage.reads(TEXT, "second") or []
    stage.pass_time(60)
    stage.engine.transfer.reap_stale_instances(30, 30)
    stage.engine.transfer.register_kv_cache_engine_driven_context(_registered(stage))
    stage.engine.storage.clear()
    stage.store(OTHER, "third")
    wrong = sum(not stage.is_right(place, TEXT[: (number + 1) * SIZE]) for number, place in enumerate(places))
    return stage, f"second reads wrong bytes in {wrong} of {len(places)} chunks" if wrong else ""


def two_requests_with_one_text_share_an_entry() -> tuple[Stage, str]:
    """Two requests read the same text on one worker at once: the table of transfers tells them not apart, and a lock stays."""
    stage = Stage(WorldSpec(adapters=()))
    stage.store(TEXT, "first")
    for name in ("second", "third"):
        stage.ask(TEXT, name)
        stage.hit(name)
        stage.reads(TEXT, name)
    for name in ("second", "third"):
        stage.engine.transfer.commit_retrieve(stage.key(TEXT, name), 0)
        stage.engine.lookup.end_session(name)
    left = stage.engine.l1.report_status()["read_locked_count"]
    return stage, f"both have read and ended, and {left} places are locked until their lease is over" if left else ""


def commit_publishes_what_another_request_writes() -> tuple[Stage, str]:
    """Two requests write parts of the same text on one worker: the commit of the first publishes the places of the second."""
    stage = Stage(WorldSpec(adapters=()))
    head = TEXT[:SIZE]
    stage.store(head, "before")
    first = stage.prepare(TEXT, "first")  # the second chunk: the first one is there
    stage.engine.storage.delete_l1_keys(_keys(stage, head))
    second = stage.prepare(TEXT, "second")  # the first chunk: the second one is reserved
    second[0][:] = 0xEE
    first[0][:] = stamp(TEXT, 0, "")
    stage.commit(TEXT, "first")
    return stage, stage.serve(head, "reader")


def client_leaves_while_its_text_is_looked_up() -> tuple[Stage, str]:
    """A client is gone while its prefetch runs: the locks that it gets are given back by nobody."""
    stage = Stage(WorldSpec(adapters=(16,)))
    stage.store(TEXT, "first")
    stage.turn()
    stage.land()
    stage.ask(TEXT, "second")
    stage.engine.lookup.free_lookup_locks(stage.key(TEXT, "second", None), 1)
    stage.engine.lookup.end_session("second")
    stage.land()
    left = stage.engine.l1.report_status()["read_locked_count"]
    return stage, f"second has ended, and {left} places are locked until their lease is over" if left else ""


def forced_clear_takes_places_that_are_written() -> tuple[Stage, str]:
    """An operator clears by force: the place of a writer is given to the next one, and both write it."""
    stage = Stage(WorldSpec(places=2, adapters=()))
    first = stage.prepare(TEXT, "first")
    stage.engine.storage.clear(force=True)
    stage.store(OTHER, "second")
    stage.fill(first, TEXT)
    return stage, stage.serve(OTHER, "reader")


def _registered(stage: Stage) -> Any:
    from tests.lmcache.engine import registration

    return registration(0, stage.spec)


def _keys(stage: Stage, tokens: Sequence[int]) -> list[Any]:
    from tests.lmcache.engine import object_keys

    hashes = stage.engine.context.token_hasher.compute_chunk_hashes(list(tokens), end=len(tokens))
    return object_keys(stage.key(tokens, ""), hashes)


FOUND: tuple[Story, ...] = (
    writer_shares_its_place_with_the_next,
    evicted_under_a_store_to_l2,
    told_of_what_was_not_loaded,
    refused_load_frees_places_under_another,
    reaped_worker_publishes_what_it_has_not_written,
    reaped_reader_reads_on,
    two_requests_with_one_text_share_an_entry,
    commit_publishes_what_another_request_writes,
    client_leaves_while_its_text_is_looked_up,
    forced_clear_takes_places_that_are_written,
)


def told(story: Story) -> str:
    """What a story shows."""
    stage, said = story()
    stage.engine.close()
    return said or "no fault is seen"


def main(argv: Sequence[str] | None = None) -> int:
    """Tell the stories."""
    stories = {each.__name__: partial(told, each) for each in FOUND}
    return tell("tests.lmcache.found", f"LMCache {RELEASE}", __doc__, stories, argv)


if __name__ == "__main__":
    sys.exit(main())
