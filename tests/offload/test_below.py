"""The tier below host memory: what a lookup waits for, what is fetched and put there, and what a store that is down costs.

Goal: content that only the store below has is hit as content of the host tier is, one promotion later; whatever the store does,
no request waits longer than it may, and no step fails. Method: a rig beside a shelf that tests fill, empty and switch off.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import attrs
import pytest

from blocklife.errors import MisuseError
from blocklife.ledger import Completion, Direction, Plan, Result, TierTransfer, Worker
from blocklife.ledger.invariants import check
from blocklife.offload import BelowPolicies, Demote
from blocklife.offload._lookup import Answer
from blocklife.offload.records import Settled
from blocklife.offload.replacement import Lru
from tests.rigs import Rig, key, letters


class Shelf:
    """A store below, as a scheduler sees it: `answer` makes it answer what it was asked."""

    def __init__(self, *, prompt: bool = True) -> None:
        self.content: set[tuple[bytes, int, bytes]] = set()
        self.prompt = prompt
        """Whether it answers at once."""
        self.is_up = True
        self.changes = 0
        self.asked: list[tuple[bytes, int, bytes]] = []
        self.calls: list[int] = []
        """How many contents each question named."""
        self._known: dict[tuple[bytes, int, bytes], bool] = {}

    def ask(self, space: bytes, contents: Sequence[tuple[int, bytes]]) -> list[Answer]:
        self.calls.append(len(contents))
        return [self._answer_of((space, *content)) for content in contents]

    def _answer_of(self, name: tuple[bytes, int, bytes]) -> Answer:
        if not self.is_up:
            return Answer.MISS
        if self.prompt:
            return Answer.HIT if name in self.content else Answer.MISS
        if name in self._known:
            return Answer.HIT if self._known[name] else Answer.MISS
        if name not in self.asked:
            self.asked.append(name)
        return Answer.RETRY

    def answer(self) -> None:
        """Everything that was asked is known now."""
        self._known.update({name: name in self.content for name in self.asked})
        self.asked.clear()
        self.changes += 1

    def discard(self, space: bytes, contents: Sequence[tuple[int, bytes]]) -> None:
        self._known.update({(space, *content): False for content in contents})
        self.content.difference_update([(space, *content) for content in contents])

    def note_put(self, space: bytes, contents: Sequence[tuple[int, bytes]]) -> None:
        self._known.update({(space, *content): True for content in contents})

    def new_space(self) -> bytes:
        self.changes += 1
        return b"space %d" % self.changes

    def fill(self, text: str, *, block: int = 4, group: int = 0, space: bytes = b"") -> None:
        """Somebody has put every block of a text there."""
        self.content |= {(space, group, key(group, text[:end])) for end in range(block, len(text) + 1, block)}


class BelowRig(Rig):
    """A rig whose store below does at once, when a step settles, what the plan says."""

    def __init__(
        self,
        *,
        prompt: bool = True,
        shelf: Shelf | None = None,
        policies: BelowPolicies | None = None,
        groups: str = "full:4",
        chunk: int = 1,
        slots: int = 8,
        workers: int = 1,
        max_jobs: int = 8,
        own_pool: bool = True,
        replacement: str | Lru = "lru",
    ) -> None:
        self.shelf = Shelf(prompt=prompt) if shelf is None else shelf
        self.moving: list[TierTransfer] = []
        self.full = False
        """The shelf takes nothing."""
        told = {"below": self.shelf, "below_policies": policies, "replacement": replacement}
        super().__init__(
            groups, chunk, slots=slots, workers=workers, max_jobs=max_jobs, own_pool=own_pool, **told  # type: ignore[arg-type]
        )  # fmt: skip

    def plan(self) -> Plan:
        plan = super().plan()
        self.moving += [*plan.promotes, *plan.demotes]
        return plan

    def settle(self, *, land: bool = True, ok: bool = True, sampled: object = None) -> Settled:
        plan = self.plans.pop(0)
        reports = [*self.reports(ok=ok), *self.move()] if land else []
        self.settled = self.scheduler.settle(plan.number, self.now, completions=reports)
        assert check(self.ledger) == []
        return self.settled

    def move(self, *, ok: bool = True, lost: Iterable[int] = ()) -> list[Completion]:
        """What the workers say when everything between slots and shelf has landed; *lost* are positions that did not come."""
        found = []
        for transfer in self.moving:
            names = [(transfer.space, group, key) for group, key in zip(transfer.groups, transfer.keys, strict=True)]
            if transfer.direction is Direction.PROMOTE:
                missing = {at for at, name in enumerate(names) if name not in self.shelf.content} | set(lost)
            else:
                missing = set(range(len(names))) if self.full else set(lost)
                self.shelf.content |= {name for at, name in enumerate(names) if at not in missing and ok}
            for rank in range(self.ledger.limits.num_workers):
                result = Result.OK if ok else Result.FAILED
                found.append(Completion(transfer.job, Worker(rank), result, sorted(missing)))
        self.moving.clear()
        return found

    @property
    def counts(self) -> dict[str, int]:
        """The statistics that are not zero."""
        found = self.scheduler.statistics().below
        assert found is not None
        return {name: count for name, count in attrs.asdict(found).items() if count}


TEXT = letters(13)
"""Three whole blocks, and one letter that is computed."""


def moved(plan: Plan) -> dict[str, list[str]]:
    """The texts that a plan promotes and demotes."""
    found = {}
    for name, transfers in (("up", plan.promotes), ("down", plan.demotes)):
        if texts := [each.decode().partition(":")[2] for transfer in transfers for each in transfer.keys]:
            found[name] = texts
    return found


# --- fetching -----------------------------------------------------------------------------------------------------------


class Telling(Shelf):
    """The same, which says when its answers may have changed; None: it does not know."""

    news: int | None = 0


@pytest.mark.parametrize(("own_pool", "knows"), [(False, True), (False, False), (True, True)])
def test_request_that_waits_for_answers_is_looked_up_again_when_there_is_news(own_pool: bool, knows: bool) -> None:
    """Nothing is asked before that; where the ledger looks the device up, a block there may become final meanwhile."""
    shelf = Telling(prompt=False)
    shelf.news = 0 if knows else None
    rig = BelowRig(own_pool=own_pool, shelf=shelf)
    rig.add("a", letters(13))
    shelf.fill(letters(12))
    device = None if own_pool else 0
    deferred, calls = [], []
    for _ in range(2):
        deferred.append(rig.scheduler.lookup("a", 13, device).deferred)
        calls.append(len(shelf.calls))
        rig.tick()
    while deferred[-1] and len(deferred) < 20:
        shelf.answer()
        shelf.news = shelf.changes if knows else None
        deferred.append(rig.scheduler.lookup("a", 13, device).deferred)
        calls.append(len(shelf.calls))
        rig.tick()

    assert deferred[:2] == [True, True]
    assert not deferred[-1]
    assert (calls[1] > calls[0]) is (own_pool or not knows)
    assert calls[2] > calls[1]


def test_news_that_an_index_cannot_tell_are_none() -> None:
    """What it raises, or says instead of a number, is kept as an error, and the request is looked up in each step."""
    shelf = Telling(prompt=False)
    shelf.news = "much"  # type: ignore[assignment]
    rig = BelowRig(own_pool=False, shelf=shelf)
    rig.add("a", letters(13))
    calls = []
    for _ in range(2):
        assert rig.scheduler.lookup("a", 13, 0).deferred
        calls.append(len(shelf.calls))
        rig.tick()

    assert calls[1] > calls[0] > 0
    assert rig.ledger.hook_errors.count == 2


@pytest.mark.parametrize("workers", [1, 2])
def test_content_that_only_the_store_has_is_hit_after_one_promotion(workers: int) -> None:
    """The lookup waits while it is fetched, and then loads it like content that was always there."""
    rig = BelowRig(workers=workers)
    rig.shelf.fill(TEXT)
    rig.add("a", TEXT)

    assert rig.hit("a").deferred
    plan = rig.tick()
    assert moved(plan) == {"up": [TEXT[:4], TEXT[:8], TEXT[:12]]}
    assert not rig.let_in("a")
    rig.tick()
    assert rig.settled.loaded == ("a",)
    assert rig.scheduler.statistics().host_hits == (3,)
    assert rig.counts == {"promoted": 3}


@pytest.mark.parametrize("groups", ["full:4", "swa:4:100", "full:4+drafter"])
def test_scan_asks_for_many_contents_at_once(groups: str) -> None:
    """A prompt of which nothing is known yet takes few questions, and no content is asked for twice."""
    rig = BelowRig(prompt=False, groups=groups, slots=40)
    rig.add("a", TEXT * 10)

    assert rig.hit("a").deferred
    assert rig.shelf.calls[:6] == [1, 1, 2, 4, 8, 16]
    assert len(rig.shelf.calls) <= 7
    assert sum(rig.shelf.calls) == len(rig.shelf.asked) == 32


def test_scan_that_ends_asks_for_no_more_than_twice_what_it_reads() -> None:
    """Behind the first miss nothing counts, so that little is asked for there."""
    rig = BelowRig(groups="full:4", slots=40)
    rig.shelf.fill(TEXT)
    rig.add("a", TEXT * 10)

    assert rig.hit("a").deferred
    assert rig.shelf.calls == [1, 1, 2]


def fetched_for(rig: BelowRig, name: str) -> set[str]:
    """The texts of a hit that were fetched for the request."""
    slots = [slot for own in rig.hit(name).slots for slot in own]
    return {(rig.ledger.slots.key(slot) or b"").decode().partition(":")[2] for slot in rig.scheduler.fetched(name, slots)}


def test_scheduler_tells_what_it_has_fetched_for_a_request() -> None:
    """What the host tier had is not among it, nor what another request has had fetched."""
    rig = BelowRig(policies=BelowPolicies(demote=Demote.NEVER))
    rig.fill("x", TEXT[:5])
    rig.reset_device()
    rig.shelf.fill(TEXT)
    rig.add("a", TEXT)
    rig.add("b", TEXT)
    assert rig.hit("a").deferred
    assert rig.hit("b").deferred
    rig.tick()

    assert fetched_for(rig, "a") == {TEXT[:8], TEXT[:12]}
    assert fetched_for(rig, "b") == set()
    assert rig.scheduler.fetched("a", []) == set()


def test_content_that_was_stored_anew_counts_as_fetched_no_more() -> None:
    """The same content in the same slots: evicted since, and stored from the device."""
    rig = BelowRig(slots=3, policies=BelowPolicies(demote=Demote.NEVER))
    rig.shelf.fill(TEXT)
    rig.add("a", TEXT)
    rig.hit("a")
    rig.tick()
    assert fetched_for(rig, "a") == {TEXT[:4], TEXT[:8], TEXT[:12]}
    rig.tick()
    rig.ledger.evict([0, 1, 2])
    rig.shelf.content.clear()
    rig.fill("x", TEXT)
    rig.reset_device()

    assert rig.hit("a").host_tokens == 12
    assert fetched_for(rig, "a") == set()


def test_promotion_that_fails_is_a_miss() -> None:
    """The store is gone in the middle: its content counts as missing, and the request computes."""
    rig = BelowRig()
    rig.shelf.fill(TEXT)
    rig.add("a", TEXT)
    rig.hit("a")
    plan = rig.plan()
    rig.plans.clear()
    rig.scheduler.settle(plan.number, rig.now, completions=rig.move(ok=False))

    assert rig.let_in("a")
    assert rig.counts == {"failed_promotions": 3}


def test_wait_is_counted_from_when_the_engine_woke_up() -> None:
    """An engine that has slept since its last plan says what time it is: its sleep is no wait."""
    rig = BelowRig(prompt=False, policies=BelowPolicies(max_wait=3.0))
    rig.shelf.fill(TEXT)
    rig.tick()
    rig.now += 1000
    rig.scheduler.set_time(rig.now)
    rig.add("a", TEXT)
    assert rig.hit("a").deferred
    rig.tick()

    assert rig.hit("a").deferred
    assert "overdue_requests" not in rig.counts
    with pytest.raises(MisuseError, match="now must be a finite number"):
        rig.scheduler.set_time(float("nan"))


def test_wait_for_the_tier_below_ends_with_the_content() -> None:
    """A request whose content has come, and that then waits for room on the device, waits for nothing below."""
    rig = BelowRig(policies=BelowPolicies(max_wait=3.0))
    rig.shelf.fill(TEXT)
    rig.add("a", TEXT)
    rig.hit("a")
    for _ in range(5):
        rig.tick()
        assert rig.hit("a").host_tokens == 12
    rig.ledger.reset()
    rig.shelf.fill(TEXT)

    assert rig.hit("a").deferred
    assert rig.counts == {"promoted": 3}


def test_state_of_a_mamba_group_goes_below_with_the_end_of_its_chunk() -> None:
    """A hit reads the last block of such a chunk alone: that the others are holes does not keep it in the host tier."""
    rig = BelowRig(groups="full:4,mamba:4", chunk=2)
    rig.add("x", letters(9))
    rig.let_in("x", 8)
    rig.scheduler.hand_off("x", 1, 8)
    rig.tick()
    rig.tick()
    rig.scheduler.finish("x")
    rig.drain()

    assert {(group, name) for _, group, name in rig.shelf.content} == {(each, key(each, letters(8))) for each in (0, 1)}


def test_load_that_was_found_in_this_step_keeps_its_job() -> None:
    """Behind a lookup that promised a load, no other one takes the last job for what it fetches."""
    rig = BelowRig(max_jobs=1, policies=BelowPolicies(demote=Demote.NEVER))
    rig.fill("x", TEXT)
    rig.reset_device()
    other = letters(13, "n")
    rig.shelf.fill(other)
    rig.add("a", TEXT)
    rig.add("b", other)
    first = rig.hit("a")

    assert first.host_tokens == 12
    assert rig.hit("b").deferred
    rig.scheduler.admit("a", first, 1)
    assert moved(rig.tick()) == {}
    rig.scheduler.finish("a")
    rig.drain()
    assert rig.hit("b").deferred
    assert moved(rig.tick()) == {"up": [other[:4], other[:8], other[:12]]}


@pytest.mark.parametrize("slots", [2, 3], ids=["too few", "all taken"])
def test_full_host_tier_fetches_nothing(slots: int) -> None:
    """Where no slot can be had the request goes on without."""
    rig = BelowRig(slots=slots, policies=BelowPolicies(demote=Demote.NEVER))
    rig.fill("x", letters(4 * slots + 1, "n"))
    rig.ledger.pin("somebody", list(range(slots)))
    rig.shelf.fill(TEXT)
    rig.add("a", TEXT)

    assert rig.hit("a").deferred is False
    assert rig.counts == {"no_room": 3}


def test_text_that_the_host_tier_cannot_hold_is_not_fetched() -> None:
    """Each chunk that comes would evict one that came before; nothing is fetched in circles."""
    rig = BelowRig(slots=2, policies=BelowPolicies(max_slots=1))
    rig.shelf.fill(TEXT)
    rig.add("a", TEXT)

    assert rig.hit("a").deferred is False
    assert moved(rig.tick()) == {}


def test_text_of_which_the_host_tier_has_a_part_must_fit_as_a_whole() -> None:
    """What is there already needs its slots as well, for what comes would evict it."""
    rig = BelowRig(slots=3, policies=BelowPolicies(demote=Demote.NEVER))
    rig.fill("x", letters(9))
    rig.reset_device()
    rig.shelf.fill(letters(16))
    rig.add("a", letters(17))
    hit = rig.hit("a")

    assert (hit.deferred, hit.host_tokens) == (False, 8)
    assert rig.counts == {"no_room": 2}


def test_what_a_waiting_request_has_is_not_evicted_for_the_rest() -> None:
    """The host tier holds just what it needs, and somebody's content, which goes first."""
    rig = BelowRig(slots=3, policies=BelowPolicies(max_slots=1, demote=Demote.NEVER))
    rig.fill("x", letters(5, "n"))
    rig.shelf.fill(TEXT)
    rig.add("a", TEXT)
    for _ in range(3):
        assert rig.hit("a").deferred
        rig.tick()

    assert rig.hit("a").host_tokens == 12
    assert rig.counts == {"promoted": 3}


def test_bytes_in_flight_are_bounded() -> None:
    """At most `max_slots` slots are filled at a time, in jobs of at most `job_slots`; the rest comes later."""
    rig = BelowRig(policies=BelowPolicies(max_slots=2, job_slots=1))
    rig.shelf.fill(TEXT)
    rig.add("a", TEXT)
    rig.hit("a")
    first = rig.tick()
    rig.hit("a")
    second = rig.tick()

    assert [len(transfer.slots) for transfer in first.promotes] == [1, 1]
    assert moved(second) == {"up": [TEXT[:12]]}
    assert rig.hit("a").host_tokens == 12


@pytest.mark.parametrize(("limit", "beside"), [(None, 4), (1, 1), (0, 0)])
def test_demotions_yield_to_promotions(limit: int | None, beside: int) -> None:
    """What waits goes down when nothing comes from there any more."""
    rig = BelowRig(policies=BelowPolicies(max_demoted_beside=limit))
    rig.shelf.fill(TEXT)
    rig.add("a", TEXT)
    rig.hit("a")
    rig.add("b", letters(17, "n"))
    rig.let_in("b")
    plans = []
    for _ in range(4):  # stores land, and what comes from below does not
        plans.append(rig.plan())
        plan = rig.plans.pop(0)
        rig.scheduler.settle(plan.number, rig.now, completions=rig.reports())
    assert plans[0].promotes
    down = sum(len(each.slots) for plan in plans for each in plan.demotes)
    late = [rig.tick() for _ in range(4)]

    assert down == beside
    assert down + sum(len(each.slots) for plan in late for each in plan.demotes) == 4


# --- putting ------------------------------------------------------------------------------------------------------------


def test_content_on_its_way_is_not_fetched_once_more_when_another_copy_of_it_was_evicted() -> None:
    """Two stores bring the same content, one behind the other; what a promotion brings meanwhile is still on its way."""
    rig = BelowRig(policies=BelowPolicies(demote=Demote.NEVER))
    for name in "ab":
        rig.add(name, letters(4))
        rig.let_in(name)
    rig.tick(land=False)
    rig.tick(land=False)
    first, second = rig.out
    for name in "ab":
        rig.scheduler.abort(name)
    rig.ledger.drop([rig.ledger.blocks.life(place) for place in (1, 2)])
    rig.shelf.fill(letters(4))
    rig.add("c", letters(5))
    fetched: list[TierTransfer] = []
    for job in (first, second):
        rig.ledger.complete(Completion(job, Worker(0), Result.OK))
        slot = rig.tier.slot_of(0, key(0, letters(4)))
        assert slot is not None
        rig.ledger.evict([slot])
        assert rig.hit("c").deferred
        fetched += rig.plan().promotes
        rig.scheduler.settle(rig.plans.pop(0).number, rig.now)
    rig.scheduler.settle(rig.plan().number, rig.now, completions=rig.move())

    assert len(fetched) == 1
    assert rig.hit("c").host_tokens == 4


def test_lazy_demotion_takes_what_is_evicted_next() -> None:
    """Only the coldest slots go below, in the order in which they would be evicted."""
    rig = BelowRig(policies=BelowPolicies(demote=Demote.LAZY, lazy_slots=2))
    rig.fill("x", TEXT)
    coldest = rig.tier.coldest(2)
    rig.tick()

    assert len(rig.shelf.content) == 2
    assert {rig.ledger.slots.key(slot) for slot in coldest} == {name for _, _, name in rig.shelf.content}


def test_lazy_demotion_begins_once_for_each_slot() -> None:
    """While a slot is on its way below it is still among the coldest, and is not sent again."""
    rig = BelowRig(policies=BelowPolicies(demote=Demote.LAZY, lazy_slots=2))
    rig.add("x", TEXT)
    rig.let_in("x")
    rig.tick()
    sent = 0
    for _ in range(6):
        sent += sum(len(each.slots) for each in rig.plan().demotes)
        moving, rig.moving = rig.moving, []
        rig.settle()
        rig.moving = moving

    assert sent == 2


def test_content_that_came_from_below_is_not_put_there_again() -> None:
    """Neither is content that another process has put there."""
    rig = BelowRig()
    rig.fill("x", TEXT[:5])
    rig.shelf.fill(letters(8, "n"))
    rig.add("a", letters(9, "n"))
    rig.hit("a")
    rig.drain()

    assert rig.counts == {"demoted": 1, "promoted": 2}


def test_store_that_is_full_is_not_asked_again() -> None:
    """What it has refused stays in the host tier as long as it lives there, and is offered no more."""
    rig = BelowRig()
    rig.full = True
    rig.fill("x", TEXT)
    rig.tick()

    assert rig.counts == {"refused": 3}
    assert rig.stored() == [TEXT[:4], TEXT[:8], TEXT[:12]]


def test_lazy_demotion_offers_nothing_twice() -> None:
    """What a full store has refused, and what it has taken, stays among the coldest slots, and is left alone."""
    rig = BelowRig(policies=BelowPolicies(demote=Demote.LAZY, lazy_slots=8))
    rig.full = True
    rig.fill("x", TEXT)
    rig.tick()
    rig.tick()

    assert rig.counts == {"refused": 3}


def test_lazy_demotion_asks_once_for_what_is_there_already() -> None:
    """What another process has put below stays among the coldest slots, and is left alone."""
    rig = BelowRig(policies=BelowPolicies(demote=Demote.LAZY, lazy_slots=8))
    rig.fill("x", TEXT)
    rig.shelf.fill(TEXT[:12])
    for _ in range(3):
        rig.tick()

    assert rig.counts == {"already_below": 3}


def test_content_that_was_put_is_known_to_be_there() -> None:
    """Every rank has said so: the store need not be asked."""
    rig = BelowRig()
    rig.fill("x", TEXT[:5])
    rig.shelf.prompt = False

    assert rig.shelf.ask(b"", [(0, key(0, TEXT[:4]))]) == [Answer.HIT]


def test_content_wanted_again_after_a_reset_is_on_its_way_until_it_comes() -> None:
    """The end of the promotion that the reset gave up says nothing of the one that was planned since."""
    rig = BelowRig()
    rig.shelf.fill(TEXT)
    rig.add("a", TEXT)
    rig.hit("a")
    rig.plan()
    rig.scheduler.reset(generation="second")
    rig.shelf.fill(TEXT, space=b"second")
    given_up = list(rig.moving)
    rig.moving.clear()
    rig.settle(land=False)
    assert rig.hit("a").deferred
    rig.plan()
    again, rig.moving = rig.moving, given_up
    rig.settle()

    below = rig.scheduler._state.below
    assert below is not None
    assert below.brings((0, key(0, TEXT[:4])))
    rig.moving = again
    rig.tick()
    assert rig.hit("a").host_tokens == 12


def test_store_that_is_down_takes_nothing_and_costs_no_step() -> None:
    """Demotions wait for it in line, without a job; it comes back by itself."""
    rig = BelowRig()
    rig.shelf.is_up = False
    rig.fill("x", TEXT)

    assert (rig.counts, rig.ledger.jobs.live, rig.scheduler.has_pending_work()) == ({}, 0, False)
    rig.shelf.is_up = True
    rig.drain()
    assert rig.counts == {"demoted": 3}


def test_eviction_does_not_wait_for_a_demotion_in_line() -> None:
    """What goes before its turn is counted as lost to the tier below; a slot being read is not evicted."""
    rig = BelowRig(slots=3)
    rig.shelf.is_up = False
    rig.fill("x", TEXT)
    rig.fill("y", letters(13, "n"))

    assert rig.counts["lost"] == 3


# --- upheavals ------------------------------------------------------------------------------------------------------------


def test_generation_of_one_name_is_shared() -> None:
    """`renew` names the content's generation, so that another process of that generation finds it."""
    rig = BelowRig()
    rig.scheduler.reset(generation="second")
    rig.fill("x", TEXT)

    assert {space for space, _, _ in rig.shelf.content} == {b"second"}


def test_content_stored_again_in_a_new_space_goes_there() -> None:
    """A promotion of the old generation that is still out does not count as bringing the content of the new one."""
    rig = BelowRig()
    rig.shelf.fill(TEXT[:4])
    rig.add("a", TEXT[:5])
    rig.hit("a")
    rig.plan()
    rig.scheduler.reset(generation="second")
    rig.settle(land=False)
    rig.moving.clear()
    rig.let_in("a")
    rig.tick()
    rig.tick()
    rig.tick()
    rig.tick()

    assert (b"second", 0, key(0, TEXT[:4])) in rig.shelf.content


def test_last_step_does_not_wait_for_the_store() -> None:
    """The plan after the last request waits for copies of the device alone."""
    rig = BelowRig()
    rig.add("x", TEXT)
    rig.let_in("x")
    rig.tick()
    rig.tick()
    rig.tick(land=False)
    rig.scheduler.finish("x")
    plan = rig.plan()

    assert rig.ledger.jobs.submitted().ids
    assert plan.flushes == ()


def test_policy_without_foresight_cannot_demote_lazily() -> None:
    """It is refused where it is chosen, not when something is evicted."""

    class Blind(Lru):
        peek = None  # type: ignore[assignment]

    with pytest.raises(MisuseError, match="peek"):
        BelowRig(policies=BelowPolicies(demote=Demote.LAZY), replacement=Blind())


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"demote": "eager"}, "demote"),
        ({"max_wait": 0}, "max_wait must be above 0"),
        ({"max_wait": True}, "max_wait must be above 0"),
        ({"max_slots": 0}, "max_slots must be a whole number of at least 1"),
        ({"job_slots": 1.5}, "job_slots must be a whole number"),
        ({"lazy_slots": -1}, "lazy_slots must be a whole number"),
    ],
    ids=str,
)
def test_policies_are_refused_by_name(wrong: dict[str, object], why: str) -> None:
    """What cannot be meant is an error where it is said."""
    with pytest.raises(MisuseError, match=why):
        BelowPolicies(**wrong)  # type: ignore[arg-type]


def test_policies_without_a_tier_below_are_refused() -> None:
    """They would decide nothing."""
    with pytest.raises(MisuseError, match="there is no tier below"):
        Rig(below_policies=BelowPolicies())


class SavedShelf(Shelf):
    """A shelf whose answers are a value."""

    def snapshot(self) -> Hashable:
        return frozenset(self.content), self.is_up, self.changes

    def restore(self, saved: Hashable) -> None:
        match saved:
            case (frozenset() as content, bool(is_up), int(changes)):
                self.content, self.is_up, self.changes = set(content), is_up, changes


def test_scheduler_is_not_saved_without_what_its_store_says() -> None:
    """Answers that change by themselves no snapshot could bring back; nor is one restored without them."""
    saved = BelowRig(shelf=SavedShelf()).scheduler.snapshot()
    plain = BelowRig().scheduler

    with pytest.raises(MisuseError, match="tier below cannot be saved"):
        plain.snapshot()
    with pytest.raises(MisuseError, match="tier below cannot be saved"):
        plain.restore(saved)
    with pytest.raises(MisuseError, match="the snapshot has a tier below, and this scheduler has none"):
        Rig().scheduler.restore(saved)
    with pytest.raises(MisuseError, match="the snapshot has no tier below, and this scheduler has one"):
        BelowRig(shelf=SavedShelf()).scheduler.restore(Rig().scheduler.snapshot())


@pytest.mark.parametrize("demote", list(Demote), ids=lambda each: each.name.lower())
def test_scheduler_with_a_tier_below_goes_on_from_a_snapshot(demote: Demote) -> None:
    """What is on its way, waited for and in line is there again, with the time that was left."""
    rig = BelowRig(shelf=SavedShelf(), policies=BelowPolicies(demote=demote, max_wait=3.0, max_slots=2, job_slots=1))
    rig.fill("x", letters(9, "n"))
    rig.shelf.fill(TEXT)
    rig.add("a", TEXT)
    rig.hit("a")
    rig.plan()
    saved = rig.scheduler.snapshot(now=rig.now)
    plans, moving = list(rig.plans), list(rig.moving)

    def rest(at: float) -> list[object]:
        rig.plans, rig.moving, rig.now = list(plans), list(moving), at
        rig.settle(land=False)
        seen: list[object] = []
        while (hit := rig.hit("a")).deferred:
            seen.append(moved(rig.plan()))
            rig.settle(land=len(seen) == 1)
        return [*seen, hit.host_tokens, rig.scheduler.snapshot(now=rig.now)]

    first = rest(rig.now)
    later = rig.now + 100.0
    rig.scheduler.restore(saved, later)

    assert rig.scheduler.snapshot(now=later) == saved
    assert rest(later) == first
    assert len(first) > 3


# --- a proof ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("below", [True, False], ids=["below", "nowhere"])
def test_proof_that_only_the_store_below_has_is_enough(below: bool) -> None:
    """Nothing of the block behind a hit is read, so nothing is promoted for it."""
    rig = BelowRig(groups="full:4+drafter", slots=2, policies=BelowPolicies(demote=Demote.NEVER))
    rig.fill("a", letters(8))
    rig.reset_device()
    if below:
        rig.shelf.fill(letters(12))
    rig.add("b", letters(13))
    hit = rig.hit("b")

    assert (hit.tokens, hit.deferred) == (8 if below else 4, False)
    assert not rig.plan().promotes


def test_request_that_waits_for_word_of_its_proof_goes_on_at_its_deadline() -> None:
    """What the store says of a proof may come late, like any other answer."""
    policies = BelowPolicies(demote=Demote.NEVER, max_wait=3.0)
    rig = BelowRig(groups="full:4+drafter", slots=2, policies=policies)
    rig.fill("a", letters(8))
    rig.reset_device()
    rig.shelf.prompt = False
    rig.add("b", letters(13))
    waited = 0
    while rig.hit("b").deferred and waited < 10:
        rig.tick()
        waited += 1

    assert waited == 3
    assert rig.hit("b").tokens == 4
