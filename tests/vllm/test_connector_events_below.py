"""Events of the store below: a router that hears nothing else knows what is there, and can compute every hash again.

Goal: what is put there, found there and lost there is told as content of the host tier is, under a medium of its own. Method:
rigs on one folder of files, with vLLM's real scheduler and the store's own threads, and listeners that only count.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from attrs import evolve
from vllm.distributed.kv_events import MEDIUM_STORAGE, BlockStored
from vllm.v1.core.kv_cache_utils import ExternalBlockHash, maybe_convert_block_hash

from blocklife.offload._lookup import Answer
from blocklife.offload._tier_events import TierEvents
from blocklife.offload.replacement import Name
from blocklife.tiers import FileStore, StoreOutcome
from tests.vllm.below_rig import BelowRig
from tests.vllm.connector_rig import configured, walk
from tests.vllm.connector_worlds import CROWDED, FULL, MODELS, ROOMY, prompt
from tests.vllm.listeners import DESCRIBING, Listener, listen, send_events
from tests.vllm.worlds import WorldSpec

Make = Callable[..., BelowRig]
Told = tuple[int | None, ExternalBlockHash]
"""Group, and the hash of a chunk's last block."""


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes rigs on one folder of files, whose engines send events; ends them."""
    send_events(monkeypatch)
    made: list[BelowRig] = []

    def make(spec: WorldSpec = ROOMY, bound: str = "64M", seed: int = 0, options: Any = DESCRIBING, **more: Any) -> BelowRig:
        made.append(BelowRig(spec, f"fs:{tmp_path / 'store'}:{bound}", seed, options=options, **more))
        return made[-1]

    yield make
    for rig in made:
        rig.close()


def both(rig: BelowRig) -> tuple[Listener, Listener]:
    """Who hears of the host tier, and who of the store below."""
    return listen(rig), listen(rig, MEDIUM_STORAGE)


def told(heard: Listener) -> list[list[Any]]:
    """What was told as stored, in the order of hashes."""
    fields = ("group_idx", "block_hashes", "parent_block_hash", "token_ids", "block_size", "extra_keys", "kv_cache_spec_kind")
    return sorted([[getattr(event, field) for field in fields] for event in heard.stored], key=lambda said: said[:2])


@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize("model", ["full", "full and window"])
def test_both_tiers_are_told_the_same_of_content(make: Make, model: str, chunk: int) -> None:
    """Hashes, tokens and parent; what is evicted from the host tier is still told of as below."""
    rig = make(evolve(ROOMY, groups=MODELS[model], blocks_per_chunk=chunk))
    host, below = both(rig)
    rig.ask(prompt(41))

    assert rig.below.demoted == len(host.readable()) == len(below.readable()) > 4
    assert told(host) == told(below)
    rig.side.ledger.evict([slot for slot in range(len(rig.side.ledger.slots)) if rig.side.ledger.slots.can_evict(slot)])
    rig.ask([1, 2])
    assert not host.readable()
    assert len(below.readable()) == rig.below.demoted


def test_engine_tells_what_an_earlier_one_has_left_when_it_finds_it(make: Make, tmp_path: Path) -> None:
    """Described for the request that looks for it; nothing is told of content that nobody asks for, nor twice."""
    first = make()
    _, before = both(first)
    first.ask(prompt(41))
    first.ask(prompt(41, 500))
    rig = make()
    host, below = both(rig)
    rig.ask(prompt(41), 1)
    rig.ask(prompt(41), 1)

    assert rig.below.promoted > 5
    assert rig.below.demoted == 0
    assert not below.removed
    assert below.readable().items() < before.readable().items()
    assert len(below.stored) == len(below.described) == len(below.readable())
    assert told(below) == told(host)


@pytest.mark.parametrize("outcome", [StoreOutcome.FULL, StoreOutcome.FAILED], ids=lambda each: each.name.lower())
def test_demotion_that_does_not_succeed_is_not_told(make: Make, outcome: StoreOutcome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileStore, "put", lambda _, pages: [outcome] * len(pages))
    rig = make()
    host, below = both(rig)
    rig.ask(prompt(41))

    assert rig.below.demoted == 0
    assert len(host.stored) > 5
    assert not below.events


def test_reset_tells_all_that_is_below_as_removed(make: Make) -> None:
    """Once each, by the names under which it was told; vLLM's reset of the device alone tells nothing of it."""
    rig = make(evolve(ROOMY, blocks_per_chunk=2))
    _, below = both(rig)
    rig.ask(prompt(41))
    stored = [event.block_hashes for event in below.stored]
    assert rig.reset_prefix_cache(False, False)
    rig.ask([1, 2])
    assert not below.removed
    assert rig.reset_prefix_cache(False, True)
    rig.ask([1, 2])

    assert sorted(event.block_hashes for event in below.removed) == sorted(stored)
    assert not below.readable()


@pytest.mark.parametrize("off", ["events", "told"])
def test_nothing_is_followed_where_nobody_hears_of_it(make: Make, off: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if off == "events":
        configured(monkeypatch, lambda config: setattr(config, "kv_events_config", None))
    rig = make(options={"below_told": 0} if off == "told" else {})
    _, below = both(rig)
    rig.ask(prompt(41))

    assert rig.below.demoted > 5
    assert rig.side.tier.events.told == ()
    assert not below.events


# --- random traffic -------------------------------------------------------------------------------------------------------


class AskedAgain:
    """What a rig's scheduler hears of its store: all that was ever there, and what was said when it asked again."""

    def __init__(self, rig: BelowRig) -> None:
        below, tier = rig.side.below, rig.side.offload._state.below
        assert below is not None
        assert tier is not None
        self.rig, self.tier, self.presence, self.store = rig, tier, below.presence, below._store
        self.named: set[tuple[bytes, int, bytes]] = set()
        self.confirmed: set[tuple[int, bytes]] = set()
        self.late_s = 0.0
        self.presence._clock = lambda: time.monotonic() + self.late_s
        ask, put, again = self.presence.ask, self.presence.note_put, self.presence.ask_again

        def asked(space: bytes, contents: Sequence[tuple[int, bytes]]) -> list[Answer]:
            found = ask(space, contents)
            self.named |= {(space, *each) for each, said in zip(contents, found, strict=True) if said is Answer.HIT}
            return found

        def noted(space: bytes, contents: Sequence[tuple[int, bytes]]) -> None:
            self.named |= {(space, *content) for content in contents}
            put(space, contents)

        def asked_again(space: bytes, contents: Sequence[tuple[int, bytes]]) -> list[Answer]:
            found = again(space, contents)
            self.confirmed |= {each for each, said in zip(contents, found, strict=True) if said in {Answer.HIT, Answer.MISS}}
            return found

        self.presence.ask, self.presence.note_put = asked, noted  # type: ignore[method-assign]
        self.tier._ask_again = asked_again

    def come_to_rest(self) -> None:
        """Let every answer grow old, and step until all that was told was asked for again."""
        self.late_s += 60.0
        self.confirmed.clear()
        for _ in range(2000):
            if self.confirmed >= set(self.rig.side.tier.events.told):
                return
            self.rig.ask([1, 2])
        raise AssertionError("not all is asked again")

    def there(self) -> set[Told]:
        """What the store has, of all that the scheduler could know of: group and name."""
        ranks = range(self.rig.spec.world_size)
        found = set[Told]()
        for space, group, key in self.named:
            names = [self.presence._identity.name(space, group, rank, key) for rank in ranks]
            if space == self.tier.space and set(self.store.exists(names)) == {StoreOutcome.OK}:
                found.add((group, maybe_convert_block_hash(key)))
        return found


def disagreement(make: Make, folder: Path, seed: int) -> set[Told]:
    """What a router takes to be below and is not, or the other way round, after random traffic on a store that evicts."""
    dice = Random(seed)
    model = dice.choice(("full", "full and window"))
    spec = evolve(CROWDED, groups=MODELS[model], world_size=1 + seed % 2, blocks_per_chunk=1 + seed // 2 % 2)
    full = MODELS[model].index(FULL)
    for number in range(2):  # the second engine finds what the first one has left
        rig = make(spec, "160K", seed + number, keeps_up=True)
        heard, seen = listen(rig, MEDIUM_STORAGE), AskedAgain(rig)
        walk(rig, seed, 25)
        for group in folder.glob("??"):
            if dice.random() < 0.2:
                shutil.rmtree(group)
        seen.come_to_rest()
        rig.scheduler.connector.take_events()  # of a reset behind the last step
        counts = Counter[Told]()
        for event in heard.events:
            for chunk in event.block_hashes[-1:] if event.group_idx == full else event.block_hashes:
                counts[event.group_idx, chunk] += 1 if isinstance(event, BlockStored) else -1
        print(f"seed {seed}: {len(heard.stored)} stored, {len(heard.removed)} removed; {rig.below}")
        wrong = {name for name, count in counts.items() if count not in {0, 1}}
        wrong |= {name for name, count in counts.items() if count} ^ seen.there()
        if wrong:
            return wrong
        assert len(heard.stored) > 5
        describer = rig.side.known.describer
        assert describer is not None
        assert describer._held[True] == {name for name in rig.side.tier.events.told if name[0] == full}
        assert describer._told.keys() | describer._bare == describer._held[False] | describer._held[True]
    return set()


@pytest.mark.parametrize("seed", range(4))
def test_router_knows_what_the_store_has_after_random_traffic(make: Make, tmp_path: Path, seed: int) -> None:
    """With a bound that evicts, files that are deleted, aborts, preemptions, resets and an engine that comes later."""
    print(f"seed {seed}")
    assert disagreement(make, tmp_path / "store", seed) == set()


def test_router_shows_that_losses_are_not_told(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: what is lost is forgotten without a word."""

    def forget(self: TierEvents, contents: Iterable[Name]) -> None:
        for content in contents:
            self._told.pop(content, None)

    monkeypatch.setattr(TierEvents, "lacking", forget)
    assert disagreement(make, tmp_path / "store", 0)
