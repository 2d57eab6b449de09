"""Presence: the scheduler's questions never wait, and a store that is slow, down or wrong costs hits only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from blocklife.errors import MisuseError
from blocklife.offload._lookup import Answer
from blocklife.tiers import CircuitBreaker, Identity, Presence, StoreOutcome
from tests.tiers.fakes import GatedStore, Seconds

OK, ABSENT, FAILED = StoreOutcome.OK, StoreOutcome.ABSENT, StoreOutcome.FAILED
HIT, MISS, RETRY = Answer.HIT, Answer.MISS, Answer.RETRY

IDENTITY = Identity(model="m", dtype="d", groups="full:4", blocks_per_chunk=1, slot_bytes=8, num_ranks=2)
EVERYTHING = {b"here": (0, 1), b"half": (0,), b"gone": ()}
"""Which ranks have put each content."""

Make = Callable[..., Presence]


def names(key: bytes) -> list[bytes]:
    return [IDENTITY.name(b"", 0, rank, key) for rank in range(2)]


THERE = {name for key, ranks in EVERYTHING.items() for rank, name in enumerate(names(key)) if rank in ranks}


def honest(name: bytes) -> StoreOutcome:
    return OK if name in THERE else ABSENT


@pytest.fixture
def clock() -> Seconds:
    return Seconds()


@pytest.fixture
def make(clock: Seconds) -> Iterator[Make]:
    made: list[tuple[Presence, GatedStore]] = []

    def make(store: GatedStore, **more: object) -> Presence:
        presence = Presence(store, IDENTITY, clock=clock, **more)  # type: ignore[arg-type]
        made.append((presence, store))
        return presence

    yield make
    for presence, store in made:
        store.let_go(1_000)
        assert presence.close()


def ask(presence: Presence, key: bytes) -> Answer:
    return presence.ask(b"", [(0, key)])[0]


def settle(presence: Presence, *keys: bytes) -> list[Answer]:
    """Ask until all answers are there. The thread is another one, so this gives way to it, with no sleep."""
    for _ in range(100_000):
        found = [ask(presence, key) for key in keys]
        if RETRY not in found:
            return found
        threading.Event().wait(0)
    raise AssertionError("no answer")


def test_presence_answers_when_every_rank_has_its_part(make: Make) -> None:
    presence = make(GatedStore(honest, gated=False))

    assert ask(presence, b"here") is RETRY
    assert settle(presence, b"here", b"half", b"gone") == [HIT, MISS, MISS]
    assert presence.statistics().answers == 3


def test_presence_does_not_mix_up_spaces_and_groups(make: Make) -> None:
    presence = make(GatedStore(honest, gated=False))
    settle(presence, b"here")

    assert presence.ask(b"other", [(0, b"here")]) == [RETRY]
    assert presence.ask(b"", [(1, b"here")]) == [RETRY]


def test_news_of_a_presence_change_with_each_answer_that_somebody_waits_for(make: Make, clock: Seconds) -> None:
    """`news` changes when a question has waited too long. It does not change for content that nobody asked about."""
    store = GatedStore(honest)
    presence = make(store, patience_s=5.0)
    told = [presence.news]
    presence.note_put(b"", [(0, b"told")])
    assert ask(presence, b"here") is RETRY
    told.append(presence.news)
    clock.now += 5.0
    told.append(presence.news)
    presence.discard(b"", [(0, b"here")])
    told.append(presence.news)
    ask(presence, b"half")
    store.let_go(2)
    settle(presence, b"half")
    told.append(presence.news)

    assert told[0] == told[1]
    assert len(set(told)) == 4


def test_presence_never_waits_and_asks_in_batches(make: Make, clock: Seconds) -> None:
    """The store stands still; the questions are all queued meanwhile, and go to it in one call, once each."""
    clock.now = 50.0
    store = GatedStore(honest)
    presence = make(store)
    assert ask(presence, b"first") is RETRY
    store.wait_for_calls(1)
    keys = [b"%d" % number for number in range(20)]
    assert [ask(presence, key) for key in (*keys, *keys)] == [RETRY] * 40
    store.let_go(2)
    settle(presence, *keys)

    assert [len(call) for call in store.calls] == [2, 40]
    assert presence.statistics().answers == 21
    assert presence.statistics().calls == 2


def test_presence_forgets_old_answers(make: Make, clock: Seconds) -> None:
    store = GatedStore(honest, gated=False)
    presence = make(store, ttl_s=10.0)
    settle(presence, b"here")
    clock.now = 9.9
    assert ask(presence, b"here") is HIT
    clock.now = 10.0

    assert ask(presence, b"here") is RETRY
    assert settle(presence, b"here") == [HIT]
    assert len(store.calls) == 2


def test_presence_keeps_the_answers_that_were_used_last(make: Make) -> None:
    store = GatedStore(honest, gated=False)
    presence = make(store, max_answers=3)
    settle(presence, b"a", b"b", b"c")
    ask(presence, b"a")
    settle(presence, b"d")

    assert [ask(presence, key) for key in (b"a", b"c", b"d", b"b")] == [MISS, MISS, MISS, RETRY]
    assert presence.statistics().answers == 3


def test_presence_keeps_what_it_was_told_last(make: Make) -> None:
    presence = make(GatedStore(honest, gated=False), max_answers=2)
    for key in (b"a", b"b", b"a", b"c"):
        presence.note_put(b"", [(0, key)])

    assert [ask(presence, key) for key in (b"a", b"c", b"b")] == [HIT, HIT, RETRY]


def test_presence_does_not_ask_what_it_was_told_meanwhile(make: Make) -> None:
    store = GatedStore(honest)
    presence = make(store)
    ask(presence, b"first")
    store.wait_for_calls(1)
    for key in (b"a", b"b", b"c"):
        ask(presence, key)
    presence.note_put(b"", [(0, b"a")])
    presence.discard(b"", [(0, b"c")])
    store.let_go(2)

    assert settle(presence, b"a", b"b", b"c") == [HIT, MISS, MISS]
    assert store.calls[1:] == [names(b"b")]


def test_presence_does_not_call_a_store_that_went_down_meanwhile(make: Make, clock: Seconds) -> None:
    """What was queued before is a miss for a moment, and asked again later."""
    store = GatedStore(lambda _name: FAILED)
    breaker = CircuitBreaker(1, first_wait_s=5.0, clock=clock)
    presence = make(store, breaker=breaker)
    ask(presence, b"first")
    store.wait_for_calls(1)
    ask(presence, b"here")
    store.let_go()

    assert settle(presence, b"here") == [MISS]
    assert len(store.calls) == 1
    assert breaker.statistics().refused > 0


def test_presence_believes_what_it_is_told(make: Make, clock: Seconds) -> None:
    """A promotion that came back without the content; a demotion that has put it."""
    presence = make(GatedStore(honest, gated=False), ttl_s=10.0)
    settle(presence, b"here", b"gone")
    presence.discard(b"", [(0, b"here")])
    presence.note_put(b"", [(0, b"gone")])
    assert [ask(presence, key) for key in (b"here", b"gone")] == [MISS, HIT]

    clock.now = 10.0
    assert settle(presence, b"here", b"gone") == [HIT, MISS]


def test_presence_believes_it_though_an_older_answer_comes_later(make: Make) -> None:
    """Both were told while the store was being asked."""
    store = GatedStore(honest)
    presence = make(store)
    ask(presence, b"first")
    store.wait_for_calls(1)
    for key in (b"here", b"gone", b"half"):
        ask(presence, key)
    store.let_go()
    store.wait_for_calls(2)
    presence.discard(b"", [(0, b"here")])
    presence.note_put(b"", [(0, b"gone")])
    store.let_go()

    assert settle(presence, b"half", b"here", b"gone") == [MISS, MISS, HIT]


def test_presence_gives_a_question_up_and_takes_its_answer_later(make: Make, clock: Seconds) -> None:
    """The store hangs: what waits becomes a miss after a while, new questions are misses at once. Then it comes back."""
    store = GatedStore(honest)
    breaker = CircuitBreaker(3, clock=clock)
    presence = make(store, patience_s=1.0, breaker=breaker)
    ask(presence, b"here")
    store.wait_for_calls(1)
    clock.now = 0.9
    assert ask(presence, b"here") is RETRY
    clock.now = 1.0
    assert ask(presence, b"here") is MISS
    assert [ask(presence, b"new"), ask(presence, b"new")] == [MISS, MISS]
    assert breaker.statistics().failures == 1
    assert presence.statistics().given_up == 1
    assert presence.statistics().refused == 2

    store.let_go(2)
    while not presence.statistics().answers:
        threading.Event().wait(0)
    assert ask(presence, b"here") is HIT
    assert ask(presence, b"new") is RETRY
    assert settle(presence, b"new") == [MISS]


def test_presence_limits_how_many_questions_wait(make: Make) -> None:
    store = GatedStore(honest)
    presence = make(store, max_questions=2)

    assert [ask(presence, key) for key in (b"a", b"b", b"c", b"a")] == [RETRY, RETRY, MISS, RETRY]
    assert presence.statistics().waiting == 2
    assert presence.statistics().refused == 1


def test_presence_leaves_a_store_alone_that_is_down(make: Make, clock: Seconds) -> None:
    """Failures are misses for a moment; then the breaker opens, and lets one question through now and then."""
    broken = [True]
    store = GatedStore(lambda name: FAILED if broken else honest(name), gated=False)
    breaker = CircuitBreaker(2, first_wait_s=10.0, clock=clock)
    presence = make(store, breaker=breaker)
    assert settle(presence, b"here") == [MISS]
    assert settle(presence, b"gone") == [MISS]
    assert breaker.statistics().is_down
    assert presence.statistics().failed == 2
    clock.now = 5.0
    assert [ask(presence, key) for key in (b"here", b"new")] == [MISS, MISS]
    assert len(store.calls) == 2

    clock.now = 10.0
    assert settle(presence, b"here") == [MISS]
    assert len(store.calls) == 3
    broken.clear()
    clock.now = 30.0
    assert settle(presence, b"here", b"half") == [HIT, MISS]
    assert not breaker.statistics().is_down


@pytest.mark.parametrize("answer", [[], [OK], [OK, OK, OK], ValueError("a bug")])
def test_presence_survives_a_store_that_breaks_its_word(make: Make, answer: list[StoreOutcome] | Exception) -> None:
    """It raises, or gives another number of outcomes: the thread goes on, and tells of it."""

    class Wrong(GatedStore):
        def exists(self, keys: Sequence[bytes]) -> list[StoreOutcome]:
            if self.calls:
                return super().exists(keys)
            self.calls.append(list(keys))
            if isinstance(answer, Exception):
                raise answer
            return answer

    presence = make(Wrong(honest, gated=False))
    assert settle(presence, b"here") == [MISS]
    assert presence.statistics().last_error == (
        repr(answer) if isinstance(answer, Exception) else f"{len(answer)} outcomes for 2 keys"
    )
    assert settle(presence, b"half") == [MISS]
    assert presence.statistics().failed == 1


def test_presence_that_is_closed_says_miss(make: Make) -> None:
    """What it knows it still tells."""
    presence = make(GatedStore(honest, gated=False))
    settle(presence, b"here")
    assert presence.close()

    assert [ask(presence, key) for key in (b"here", b"new")] == [HIT, MISS]


def test_presence_closes_though_the_store_hangs(make: Make) -> None:
    store = GatedStore(honest)
    presence = make(store)
    ask(presence, b"here")
    store.wait_for_calls(1)

    assert not presence.close(wait_s=0.0)
    store.let_go()
    assert presence.close()


def test_presence_counts_its_answers(make: Make) -> None:
    presence = make(GatedStore(honest, gated=False))
    settle(presence, b"here", b"gone")
    before = presence.statistics()
    settle(presence, b"here", b"gone")
    after = presence.statistics()

    assert (after.hits - before.hits, after.misses - before.misses) == (1, 1)
    assert after.retries == before.retries >= 1


@pytest.mark.parametrize("more", [{"ttl_s": 0}, {"patience_s": 0}, {"max_answers": 0}, {"max_questions": 0}, {"batch": 0}])
def test_presence_refuses_sizes_and_times_of_zero(more: dict[str, int]) -> None:
    with pytest.raises(MisuseError, match="above 0"):
        Presence(GatedStore(honest), IDENTITY, **more)  # type: ignore[arg-type]
