"""The host tier answers from the ledger, forgets the right slot, and tells what can be read; policies order slots as they say.

Method: the real ledger with readable keys, small enough to count on one hand. Policies are also driven alone, by a cache that
holds nothing but names: ARC beside a model that follows the paper line by line, on seeded traces.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import cast

import numpy as np
import pytest
from attrs import define, field

from blocklife.errors import MisuseError
from blocklife.hook_errors import OnError
from blocklife.ledger import GroupTransfer, JobId, Launched, Ledger, Result, Worker
from blocklife.offload import EventKind, Geometry, HostTier, OffloadScheduler, TierStatistics
from blocklife.offload import replacement as replacement_module
from blocklife.offload._lookup import Answer
from blocklife.offload.replacement import (
    Arc,
    Lru,
    Name,
    Replacement,
    Saveable,
    can_be_saved,
    register,
    replacement,
)
from blocklife.policies import BUILT_IN
from blocklife.states import Slot
from tests.worlds import keys, make_ledger, ready, report, sealed, store, unchanged

EACH = pytest.mark.parametrize("policy", BUILT_IN)
"""The same test with every policy: what they order differs, what they may not touch does not."""


def names(*keys: str) -> list[Name]:
    """Readable names, all in group 0."""
    return [(0, key.encode()) for key in keys]


def reserved(tier: HostTier, *keys: str) -> list[int]:
    """Slots for these keys; there must be room."""
    slots = tier.reserve(names(*keys))
    assert slots is not None
    return slots


def fill(ledger: Ledger, tier: HostTier, key: str) -> int:
    """Store content; its slot."""
    (slot,) = reserved(tier, key)
    ready(ledger, key, slot)
    return slot


def writing(ledger: Ledger, tier: HostTier, key: str) -> JobId:
    """A store that is submitted and has not landed."""
    (slot,) = reserved(tier, key)
    (job,) = store(ledger, sealed(ledger, "a", keys(key)), keys(key), slot).ids
    ledger.settle(ledger.dispatch(0.0).number, 0.0)
    return job


def loading(ledger: Ledger, request: str, slot: int) -> JobId:
    """A submitted load that reads *slot*, for a new request."""
    ledger.add_request(request)
    (job,) = ledger.plan_load(request, GroupTransfer(ledger.allocate(request, 1), [slot])).ids
    ledger.settle(ledger.dispatch(0.0).number, 0.0)
    return job


def told(tier: HostTier) -> list[str]:
    """The events since the last call, readable: + for what became readable, - for what is gone."""
    signs = {EventKind.STORED: "+", EventKind.REMOVED: "-"}
    return [signs[event.kind] + key.decode() for event in tier.take_events() for key in event.keys]


def tier_of(num_slots: int = 3, policy: str | Replacement = "lru", errors: OnError = "raise") -> tuple[Ledger, HostTier]:
    """A tier whose slots are all READY, in the order 0, 1, 2 of their last use."""
    ledger = make_ledger(num_slots=num_slots, num_blocks=num_slots + 8, errors=errors)
    tier = HostTier(ledger, policy)
    for number in range(num_slots):
        fill(ledger, tier, f"k{number}")
    tier.take_events()
    return ledger, tier


# --- room ---------------------------------------------------------------------------------------------------------------


@EACH
def test_tier_gives_empty_slots_first(policy: str) -> None:
    """As long as a slot is empty nothing is forgotten."""
    ledger = make_ledger(num_slots=3)
    tier = HostTier(ledger, policy)
    fill(ledger, tier, "k")
    taken = reserved(tier, "x", "y")

    assert sorted([*taken, 0]) == [0, 1, 2]
    assert ledger.slots.state(0) is Slot.READY


def test_tier_forgets_the_least_recently_used_first() -> None:
    """A slot that was touched outlives those that were not."""
    ledger, tier = tier_of()
    tier.touch([0])
    first = fill(ledger, tier, "new")
    second = reserved(tier, "newer")

    assert (first, second) == (1, [2])
    assert ledger.slots.prefix(keys("k0")) == [0]
    assert ledger.slots.prefix(keys("k1")) == []


@EACH
def test_tier_refuses_without_a_change(policy: str) -> None:
    """A store larger than what can be forgotten gets nothing, and nothing is forgotten for it."""
    ledger, tier = tier_of(policy=policy)
    ledger.pin("lookup", [0])
    with unchanged(ledger):
        found = tier.reserve(names("x", "y", "z")), tier.reserve(names("w", "x", "y", "z"))

    assert found == (None, None)
    assert told(tier) == []
    assert tier.reserve([]) == []
    assert sorted(reserved(tier, "x", "y")) == [1, 2]


@EACH
def test_tier_never_evicts_what_is_pinned_or_written(policy: str) -> None:
    """Pinned slots and slots that a store fills are not asked for, wherever they are in the order."""
    ledger, tier = tier_of(policy=policy)
    ledger.pin("lookup", [0])
    (slot,) = reserved(tier, "new")
    store(ledger, sealed(ledger, "a", keys("new")), keys("new"), slot)
    with unchanged(ledger):
        too_many = tier.reserve(names("x", "y"))

    assert too_many is None
    assert sorted([slot, *reserved(tier, "x")]) == [1, 2]


@EACH
def test_tier_never_evicts_what_is_coming(policy: str) -> None:
    """Content is not forgotten to make room for itself, nor for what comes along with it; another group's is other content."""
    ledger, tier = tier_of(policy=policy)
    with unchanged(ledger):
        refused = tier.reserve(names("k0", "k1", "x"))
    second = reserved(tier, "x", "k0")
    other = make_ledger(num_slots=1, groups=2)
    elsewhere = HostTier(other, policy)
    fill(other, elsewhere, "k")

    assert refused is None
    assert sorted(second) == [1, 2]
    assert ledger.slots.prefix(keys("k0")) == [0]
    assert elsewhere.reserve(names("k")) is None
    assert elsewhere.reserve([(1, b"k")]) == [0]


@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_tier_knows_the_slots_that_were_filled_before_it(policy: str) -> None:
    """A tier over a ledger with content forgets that content like its own, those it was not told of first."""
    ledger = make_ledger(num_slots=3, num_blocks=8)
    for number in range(3):
        ready(ledger, f"k{number}", number)
    tier = HostTier(ledger, policy)
    tier.touch([0])

    assert tier.take_events() == []
    assert reserved(tier, "x", "y", "z") == [1, 2, 0]


def test_tier_leaves_ghosts_only_of_what_gave_way() -> None:
    """Not of what somebody else evicted, of what a reset dropped, nor of what was chosen in vain by a refused call."""
    arc = Arc(3)
    ledger, tier = tier_of(policy=arc)
    ledger.evict([1])
    fill(ledger, tier, "x")
    evicted = list(arc._once_ghosts)
    ledger.pin("lookup", [2])
    refused = tier.reserve(names("u", "v", "w"))
    ledger.unpin("lookup", [2])
    ledger.reset()
    ledger.admit("a")
    fill(ledger, tier, "y")
    dropped = list(arc._once_ghosts)
    tier.touch([fill(ledger, tier, "z")])
    fill(ledger, tier, "u")
    fill(ledger, tier, "v")

    assert refused is None
    assert (evicted, dropped) == ([], [])
    assert list(arc._once_ghosts) == names("y")


# --- answers ------------------------------------------------------------------------------------------------------------


def test_tier_answers_by_what_the_ledger_says() -> None:
    """READY is a hit, WRITING is pending; what is unknown, failed, evicted or of another group is a miss."""
    ledger = make_ledger(num_slots=3, num_blocks=8, groups=2)
    tier = HostTier(ledger)
    slot = fill(ledger, tier, "k")
    job = writing(ledger, tier, "w")
    before = [tier.answer(0, key) for key in keys("k", "w", "x")]
    slots = [tier.slot_of(0, key) for key in keys("k", "w", "x")]
    ledger.complete(report(job, Result.FAILED))
    ledger.evict([slot])

    assert before == [Answer.HIT, Answer.PENDING, Answer.MISS]
    assert slots == [slot, None, None]
    assert tier.answer(1, b"k") is Answer.MISS
    assert [tier.answer(0, key) for key in keys("k", "w")] == [Answer.MISS, Answer.MISS]
    assert tier.slot_of(0, b"k") is None


# --- events -------------------------------------------------------------------------------------------------------------


def test_tier_tells_what_can_be_read_and_what_is_gone_in_order() -> None:
    """A landing, an eviction, a failed load and a reset, each told once; a failed store was never there."""
    ledger = make_ledger(num_slots=3, num_blocks=12)
    tier = HostTier(ledger)
    landing, failing = writing(ledger, tier, "x"), writing(ledger, tier, "lost")
    silent = told(tier)
    ledger.complete(report(landing))
    ledger.complete(report(failing, Result.FAILED))
    fill(ledger, tier, "y")
    fill(ledger, tier, "z")
    landed = told(tier)
    reserved(tier, "new")
    evicted = told(tier)
    slot = tier.slot_of(0, b"y")
    assert slot is not None
    ledger.complete(report(loading(ledger, "b", slot), Result.FAILED))
    failed = told(tier)
    fill(ledger, tier, "u")
    ledger.reset()

    assert silent == []
    assert landed == ["+x", "+y", "+z"]
    assert evicted == ["-x"]
    assert failed == ["-y"]
    assert told(tier)[0] == "+u"
    assert told(tier) == []
    assert tier.statistics().lost_events == 0


def test_tier_counts_the_events_that_nobody_took() -> None:
    """The oldest fall out, and the number of those is known."""
    ledger = make_ledger(num_slots=2, num_blocks=8)
    tier = HostTier(ledger, max_events=3)
    for key in ("x", "y", "z"):
        fill(ledger, tier, key)
    before = tier.statistics().lost_events
    fill(ledger, tier, "u")

    assert before == 1  # x, y, -x, z
    assert tier.statistics().lost_events == 3
    assert told(tier) == ["+z", "-y", "+u"]


def test_tier_tells_again_what_can_be_read() -> None:
    """For who was told that all is gone: once, and nothing of what is being written."""
    ledger, tier = tier_of()
    told(tier)
    ledger.evict([0])
    tier.notify_again()

    assert sorted(told(tier)) == ["+k1", "+k2"]
    assert told(tier) == []


def test_tier_without_events_loses_none() -> None:
    """Nobody wants them, so nothing is missed."""
    ledger = make_ledger()
    tier = HostTier(ledger, max_events=0)
    ledger.evict([fill(ledger, tier, "k")])

    assert told(tier) == []
    assert tier.statistics().lost_events == 0


@pytest.mark.parametrize("wrong", [-1, True, 2.0])
def test_tier_refuses_a_wrong_number_of_events(wrong: object) -> None:
    """It is a whole number, and not below zero."""
    with pytest.raises(MisuseError, match="max_events"):
        HostTier(make_ledger(), max_events=wrong)  # type: ignore[arg-type]


# --- statistics ---------------------------------------------------------------------------------------------------------


def partition(found: TierStatistics) -> int:
    return found.empty + found.pinned + found.evictable + found.writing + found.freeing_soon + found.quarantined


def test_tier_statistics_count_every_slot_once() -> None:
    """A slot in each situation, and they add up; what is forgotten while a load reads it is freeing soon, and not pinned."""
    ledger = make_ledger(num_slots=7, num_blocks=16)
    tier = HostTier(ledger)
    _, pinned, read = (fill(ledger, tier, key) for key in ("spare", "pinned", "read"))
    ledger.launched(Launched(writing(ledger, tier, "late"), Worker(0)), 0.0)
    ledger.expire(100.0)
    writing(ledger, tier, "coming")
    ledger.pin("lookup", [pinned])
    failing = loading(ledger, "b", read)
    loading(ledger, "c", read)
    before = tier.statistics()
    ledger.complete(report(failing, Result.FAILED))
    after = tier.statistics()

    assert (before.capacity, before.empty, before.ready, before.pinned, before.evictable) == (7, 2, 3, 2, 1)
    assert (before.writing, before.freeing_soon, before.quarantined, before.lost_events) == (1, 0, 1, 0)
    assert (after.ready, after.pinned, after.evictable, after.freeing_soon) == (2, 1, 1, 1)
    assert partition(before) == partition(after) == 7


# --- choosing a policy --------------------------------------------------------------------------------------------------


class NewestFirst:
    """What a user could write: the content that came last goes first."""

    def __init__(self) -> None:
        self.stack: list[int] = []
        self.heard: list[object] = []

    def insert(self, slots: Sequence[int], names: Sequence[Name]) -> None:
        """Push."""
        self.heard.append([key.decode() for _, key in names])
        self.touch(slots)

    def touch(self, slots: Iterable[int]) -> None:
        """Push again."""
        for slot in slots:
            self.stack = [*(each for each in self.stack if each != slot), slot]

    def remove(self, slot: int) -> None:
        """Forget."""
        self.heard.append(slot)
        self.stack = [each for each in self.stack if each != slot]

    def victims(self, count: int, evictable: Callable[[int], bool], coming: Sequence[Name]) -> list[int]:
        """The top."""
        return [slot for slot in reversed(self.stack) if evictable(slot)][:count]


def test_policy_of_a_user_is_taken_as_it_is() -> None:
    """Passed as an object it decides, and hears inserts, and removals before the insert that they make room for."""
    policy = NewestFirst()
    ledger, tier = tier_of(policy=policy)
    slots = reserved(tier, "x", "y")
    ledger.reset()
    tier.touch([])

    assert slots == [2, 1]
    assert policy.heard == [["k0"], ["k1"], ["k2"], 2, 1, ["x", "y"], 0]
    assert replacement(policy, 3) is policy


def test_policy_weighs_content_only() -> None:
    """Before it is asked for victims it hears that the slot of a failed store is empty."""
    policy = NewestFirst()
    ledger = make_ledger(num_slots=2)
    tier = HostTier(ledger, policy)
    fill(ledger, tier, "k")
    (slot,) = reserved(tier, "lost")
    ledger.cancel(store(ledger, sealed(ledger, "a", keys("lost")), keys("lost"), slot))

    assert reserved(tier, "x", "y") == [slot, 0]
    assert policy.heard == [["k"], ["lost"], slot, 0, ["x", "y"]]


def test_policy_of_a_user_is_registered_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """From then on the name works everywhere; the factory gets the number of slots."""
    monkeypatch.setattr(replacement_module, "_factories", dict(replacement_module._factories))
    made: list[int] = []

    def factory(num_slots: int) -> Replacement:
        made.append(num_slots)
        return NewestFirst()

    register("newest first", factory)
    _, tier = tier_of(policy="newest first")

    assert made == [3]
    assert reserved(tier, "x") == [2]
    with pytest.raises(MisuseError, match="'newest first': the name is in use"):
        register("newest first", factory)


def test_policy_names_are_taken_once() -> None:
    """Nobody replaces a policy under its users; an unknown name is told which ones there are."""
    with pytest.raises(MisuseError, match="'lru': the name is in use"):
        register("lru", Arc)
    with pytest.raises(MisuseError, match=rf"'nonesuch': unknown \(known are {', '.join(sorted(BUILT_IN))}"):
        HostTier(make_ledger(), "nonesuch")
    assert isinstance(replacement("lru", 3), Lru)
    assert isinstance(replacement("arc", 3), Arc)


def test_policy_must_have_all_methods() -> None:
    """What is missing is named when the tier is made, not when it is full."""
    with pytest.raises(MisuseError, match="lacks touch, remove, victims"):
        replacement(type("Half", (), {"insert": print})(), 3)
    with pytest.raises(MisuseError, match="num_slots must be a whole number of at least 1"):
        Arc(0)


@pytest.mark.parametrize("has", [(), ("snapshot",), ("restore",)], ids=["neither", "no restore", "no snapshot"])
def test_policy_that_cannot_be_saved_is_refused_a_snapshot(has: tuple[str, ...]) -> None:
    """It needs both methods: a snapshot that cannot be put back is none. The refusal changes nothing on either way."""
    policy = type("Part", (NewestFirst,), dict.fromkeys(has, print))()
    ledger, geometry = make_ledger(requests=()), Geometry.parse("full:4")
    scheduler = OffloadScheduler(ledger, HostTier(ledger, policy), geometry)
    saved = OffloadScheduler(ledger, HostTier(ledger, "lru"), geometry).snapshot()
    with unchanged(ledger), pytest.raises(MisuseError, match="without `snapshot` and `restore` cannot be saved"):
        scheduler.snapshot()
    with unchanged(ledger), pytest.raises(MisuseError, match="without `snapshot` and `restore` cannot be restored"):
        scheduler.restore(saved)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ([0], "slot 0, which cannot be evicted"),
        ([3], "slot 3, whose content is about to be used"),
        ([1, 2], "gave 2 victims where 1 were asked for"),
        ([9], r"slots \[9\], and slots are 0 to 3"),
        ([-1], r"slots \[-1\], and slots are 0 to 3"),
        (None, "must be a sequence of whole numbers"),
        (["2"], "whole numbers"),
        ([2.0], "whole numbers"),
        ([True], "whole numbers"),
        ([1 << 70], "whole numbers"),
        ([[2]], "whole numbers"),
    ],
    ids=["pinned", "coming", "too many", "no slot", "below 0", "none", "text", "fraction", "truth", "huge", "nested"],
)
@pytest.mark.parametrize("errors", ["keep", "raise"])
def test_policy_that_errs_makes_no_room(given: object, match: str, errors: OnError) -> None:
    """A policy that does not ask what is evictable, or answers nonsense, harms only itself: nothing is evicted."""

    class Wrong(NewestFirst):
        def victims(self, count: int, evictable: Callable[[int], bool], coming: Sequence[Name]) -> list[int]:
            return cast("list[int]", given)

    ledger, tier = tier_of(4, Wrong(), errors=errors)
    ledger.pin("lookup", [0])
    ledger.evict([1])
    with unchanged(ledger), pytest.raises(MisuseError, match=match) if errors == "raise" else nullcontext():
        assert tier.reserve(names("x", "k3")) is None
    (kept,) = ledger.hook_errors.failed

    assert re.search(match, str(kept.first))
    assert kept.who.endswith("Wrong")


@pytest.mark.parametrize("pack", [np.array, tuple, iter], ids=["array", "tuple", "generator"])
def test_victims_may_come_in_any_sequence(pack: Callable[[list[int]], Iterable[int]]) -> None:
    """What counts is which slots they are; an array is not added up with the empty slots."""

    class Packing(NewestFirst):
        def victims(self, count: int, evictable: Callable[[int], bool], coming: Sequence[Name]) -> list[int]:
            return cast("list[int]", pack(super().victims(count, evictable, coming)))

    ledger, tier = tier_of(4, Packing())
    ledger.evict([1])
    slots = tier.reserve(names("x", "y"))

    assert slots is not None
    assert [type(each) for each in slots] == [int, int]
    assert slots[0] == 1
    assert ledger.slots.free == 2


@EACH
def test_policy_can_be_saved(policy: str) -> None:
    """Snapshots of a scheduler, and so the explorer, need it of every policy that is chosen by name."""
    assert can_be_saved(replacement(policy, 3))


# --- policies alone -----------------------------------------------------------------------------------------------------


@EACH
@pytest.mark.parametrize("slot", [-1, 2**31 - 1, 2**31, 2**32 + 1, 2**62])
def test_policy_refuses_a_slot_that_no_host_has(policy: str, slot: int) -> None:
    """One sentence, whether it is inserted or touched, and what the policy holds stays as it is."""
    order = replacement(policy, 3)
    saved = cast("Saveable", order)
    order.insert([0, 1], names("a", "b"))
    order.touch([0])
    before = saved.snapshot(range(2))

    calls: tuple[Callable[[], None], ...] = (lambda: order.insert([slot], names("c")), lambda: order.touch([slot]))
    for call in calls:
        with pytest.raises(MisuseError, match=f"^slot {slot}: slots are 0 to 2147483646$"):
            call()
        assert saved.snapshot(range(2)) == before


@define(eq=False)
class Cache:
    """Names in slots under a policy, as the tier does it: a miss takes an empty slot or evicts."""

    size: int
    policy: Replacement
    slots: dict[Name, int] = field(factory=dict)
    busy: set[int] = field(factory=set)
    hits: int = 0

    def ask(self, name: Name) -> bool:
        """One request; whether it was a hit."""
        if (slot := self.slots.get(name)) is not None:
            self.policy.touch([slot])
            self.hits += 1
            return True
        self.enter([name])
        return False

    def enter(self, coming: Sequence[Name]) -> bool:
        """Make room for new names and put them there; whether there was room."""
        held = {slot: name for name, slot in self.slots.items()}
        free = [slot for slot in range(self.size) if slot not in held][: len(coming)]
        if (missing := len(coming) - len(free)) > 0:
            victims = self.policy.victims(missing, lambda slot: slot in held and slot not in self.busy, coming)
            assert len(set(victims)) == len(victims) <= missing
            assert self.busy.isdisjoint(victims)
            if len(victims) < missing:
                return False
            for slot in victims:
                self.policy.remove(slot)
                del self.slots[held[slot]]
            free += victims
        self.policy.insert(free, coming)
        self.slots.update(zip(coming, free, strict=True))
        return True


class Paper:
    """ARC as the paper has it, one request at a time, with lists of names whose front is the least recent."""

    def __init__(self, size: int) -> None:
        self.c = size
        self.p = 0.0
        self.t1: list[Name] = []
        self.t2: list[Name] = []
        self.b1: list[Name] = []
        self.b2: list[Name] = []

    def replace(self, x: Name) -> None:
        if self.t1 and ((x in self.b2 and len(self.t1) == self.p) or len(self.t1) > self.p):
            self.b1.append(self.t1.pop(0))
        else:
            self.b2.append(self.t2.pop(0))

    def ask(self, x: Name) -> bool:
        if x in self.t1 or x in self.t2:
            (self.t1 if x in self.t1 else self.t2).remove(x)
            self.t2.append(x)
            return True
        if x in self.b1:
            self.p = min(self.p + (1.0 if len(self.b1) >= len(self.b2) else len(self.b2) / len(self.b1)), self.c)
            self.replace(x)
            self.b1.remove(x)
            self.t2.append(x)
        elif x in self.b2:
            self.p = max(self.p - (1.0 if len(self.b2) >= len(self.b1) else len(self.b1) / len(self.b2)), 0.0)
            self.replace(x)
            self.b2.remove(x)
            self.t2.append(x)
        else:
            first = len(self.t1) + len(self.b1)
            total = first + len(self.t2) + len(self.b2)
            if first == self.c:
                if len(self.t1) < self.c:
                    self.b1.pop(0)
                    self.replace(x)
                else:
                    self.t1.pop(0)
            elif total >= self.c:
                if total == 2 * self.c:
                    self.b2.pop(0)
                self.replace(x)
            self.t1.append(x)
        return False


def lists_of(cache: Cache) -> tuple[list[Name], list[Name], list[Name], list[Name], float]:
    """T1, T2, B1, B2 and p of an Arc, by names."""
    arc = cache.policy
    assert isinstance(arc, Arc)
    held = {slot: name for name, slot in cache.slots.items()}
    return (
        [held[slot] for slot in arc._once],
        [held[slot] for slot in arc._again],
        list(arc._once_ghosts),
        list(arc._again_ghosts),
        arc._target,
    )


def keep_bounds(arc: Arc) -> None:
    """The bounds of the paper, between any two calls."""
    once, again = len(arc._once), len(arc._again)
    once_ghosts, again_ghosts = len(arc._once_ghosts), len(arc._again_ghosts)

    assert once + again <= arc.num_slots
    assert once + once_ghosts <= arc.num_slots
    assert once + again + once_ghosts + again_ghosts <= 2 * arc.num_slots
    assert 0 <= arc._target <= arc.num_slots
    assert set(arc._once).isdisjoint(arc._again)
    assert arc._once_ghosts.keys().isdisjoint(arc._again_ghosts)


def name_of(number: int) -> Name:
    return number % 2, str(number).encode()


def trace(seed: int, length: int) -> Iterable[Name]:
    """Phases of hot sets, of loops a little larger than the cache, and of scans, in random order."""
    dice = random.Random(seed)
    fresh = 1000
    while length > 0:
        phase = dice.choice(["hot", "loop", "scan", "any"])
        base = dice.randrange(20)
        for step in range(steps := dice.randrange(5, 40)):
            fresh += phase == "scan"
            number = {
                "hot": base + dice.randrange(4),
                "loop": base + step % 12,
                "scan": fresh,
                "any": dice.randrange(40),
            }[phase]
            yield name_of(number)
        length -= steps


@pytest.mark.parametrize("size", [1, 2, 3, 8, 13])
@pytest.mark.parametrize("seed", range(8))
def test_arc_is_the_algorithm_of_the_paper(seed: int, size: int) -> None:
    """Without pins, one name at a time: the same hits, the same four lists and the same balance after every request."""
    cache, paper = Cache(size, Arc(size)), Paper(size)
    targets = set()
    for name in trace(seed, 1500):
        assert cache.ask(name) == paper.ask(name)
        assert lists_of(cache) == (paper.t1, paper.t2, paper.b1, paper.b2, paper.p)
        targets.add(paper.p)

    assert len(targets) > 1  # the balance has moved: the trace is not trivial


@pytest.mark.parametrize("seed", range(8))
def test_arc_keeps_its_bounds_whatever_happens(seed: int) -> None:
    """Batches, busy slots, refusals, drops and slots that somebody else has filled: the bounds hold after every call."""
    dice = random.Random(seed)
    arc = Arc(8)
    cache = Cache(8, arc)
    entered = 0
    for _ in range(1500):
        what = dice.random()
        cache.busy = set(dice.sample(range(8), dice.choice([0, 0, 1, 3, 7])))
        if what < 0.5:
            coming = {name_of(dice.randrange(40)): None for _ in range(dice.randrange(1, 6))}
            entered += cache.enter([name for name in coming if name not in cache.slots])
        elif what < 0.9:
            arc.touch(dice.sample(range(8), dice.randrange(1, 4)))
        else:
            for name in dice.sample(sorted(cache.slots), min(len(cache.slots), 3)):
                arc.remove(cache.slots.pop(name))
        keep_bounds(arc)

    assert entered > 100


def test_arc_survives_a_scan_that_washes_lru_out() -> None:
    """A hot set between scans of content that is never used again: ARC keeps it, LRU does not."""
    arc, lru = Cache(16, Arc(16)), Cache(16, Lru())
    fresh = 1000
    for _ in range(50):
        for _ in range(2):
            for number in range(8):
                arc.ask(name_of(number))
                lru.ask(name_of(number))
        for _ in range(24):
            fresh += 1
            arc.ask(name_of(fresh))
            lru.ask(name_of(fresh))

    assert lru.hits == 50 * 8
    assert arc.hits == 50 * 16 - 8
    keep_bounds(arc.policy if isinstance(arc.policy, Arc) else Arc(1))


def judged(arc: Arc, coming: Sequence[Name]) -> tuple[list[int], float]:
    """REPLACE once for each coming name, with lists: the victims in order, and the balance afterwards."""
    once, again, size, p = list(arc._once), list(arc._again), len(arc._once), arc._target
    once_ghosts, again_ghosts = list(arc._once_ghosts), list(arc._again_ghosts)
    found = []
    for x in coming:
        if x in once_ghosts:
            p = min(p + max(1.0, len(again_ghosts) / len(once_ghosts)), arc.num_slots)
        elif x in again_ghosts:
            p = max(p - max(1.0, len(once_ghosts) / len(again_ghosts)), 0.0)
        first = size > p or (size == p and x in again_ghosts)
        size -= bool(once if first else not again)
        found.append((once if (first and once) or not again else again).pop(0))
        if x in once_ghosts:
            once_ghosts.remove(x)
        elif x in again_ghosts:
            again_ghosts.remove(x)
        else:
            size += 1
    return found, p


@pytest.mark.parametrize("seed", range(4))
def test_arc_judges_a_batch_name_by_name(seed: int) -> None:
    """Each name of a batch moves the balance and asks for its victim behind the ones before it, new names and ghosts mixed."""
    dice = random.Random(seed)
    arc = Arc(12)
    cache = Cache(12, arc)
    moved = 0
    for number, name in enumerate(trace(seed, 2000)):
        cache.ask(name)
        ghosts = [*arc._once_ghosts, *arc._again_ghosts]
        if len(cache.slots) == 12 and len(ghosts) > 5 and dice.random() < 0.3:
            coming = [*dice.sample(ghosts, 5), name_of(5000 + 2 * number), name_of(5001 + 2 * number)]
            dice.shuffle(coming)
            (victims, target), before = judged(arc, coming), arc._target

            assert arc.victims(7, lambda slot: True, coming) == victims
            cache.enter(coming)
            assert arc._target == target
            moved += arc._target != before

    assert moved > 20


def test_arc_gives_content_that_was_there_twice_one_ghost() -> None:
    """Two slots with the same name (the second store had begun before the first gave way) leave it in one list."""
    arc = Arc(3)
    arc.insert([0, 1], names("twin", "twin"))
    arc.touch([1])
    for slot, name in ((0, "x"), (1, "y")):
        assert arc.victims(1, lambda each, slot=slot: each == slot, names(name)) == [slot]  # type: ignore[misc]
        arc.remove(slot)
        arc.insert([slot], names(name))
        keep_bounds(arc)

    assert list(arc._again_ghosts) == names("twin")


def test_lru_looks_at_a_busy_slot_once_a_round() -> None:
    """Many slots that stay in use do not make every search long."""
    lru = Lru()
    lru.touch(range(100))
    asked: list[int] = []

    def evictable(slot: int) -> bool:
        asked.append(slot)
        return slot >= 90

    first = lru.victims(2, evictable, [])
    long = len(asked)
    for slot in first:
        lru.remove(slot)
    second = lru.victims(2, evictable, [])

    assert (first, second) == ([90, 91], [92, 93])
    assert (long, len(asked) - long) == (92, 2)
    assert lru.victims(0, evictable, []) == []


@pytest.mark.parametrize("seed", range(4))
def test_lru_of_many_at_once_is_a_list_in_the_order_of_use(seed: int) -> None:
    """Batches of all sizes, slots that come twice, busy ones, and its state put back, beside a list reordered by hand."""
    dice = random.Random(seed)
    size = 50
    lru, order, names = Lru(), list[int](), range(size)
    for _ in range(600):
        what = dice.random()
        if what < 0.6:
            used = dice.choices(names, k=dice.choice([1, 3, 20, 120]))
            lru.touch(used)
            for slot in used:
                order = [each for each in order if each != slot] + [slot]
        elif what < 0.9:
            busy, count = set(dice.sample(names, dice.choice([0, 5, 45]))), dice.choice([0, 1, 10, 60])
            free = [slot for slot in order if slot not in busy][:count]
            enough = len(free) == count
            passed = [slot for slot in (order[: order.index(free[-1])] if enough and free else order) if slot in busy]
            passed = passed if count else []
            assert lru.victims(count, lambda slot, busy=busy: slot not in busy, []) == free  # type: ignore[misc]
            order = [slot for slot in order if slot not in passed] + passed
            for slot in free if dice.random() < 0.8 else ():
                lru.remove(slot)
                order.remove(slot)
        else:
            saved = lru.snapshot(names)
            lru = Lru()
            lru.restore(saved)
        assert lru.snapshot(names) == tuple(order)
