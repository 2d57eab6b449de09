"""Presence: the scheduler's questions never wait, and a store that is slow, down or wrong costs hits only."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import attrs
import pytest

from blocklife.errors import MisuseError
from blocklife.offload._lookup import Answer
from blocklife.tiers import CircuitBreaker, Identity, Presence, StoreOutcome
from tests.plays import play, plays
from tests.tiers.fakes import GatedStore, Seconds

OK, ABSENT, FAILED = StoreOutcome.OK, StoreOutcome.ABSENT, StoreOutcome.FAILED

IDENTITY = Identity(model="m", dtype="d", groups="full:4", blocks_per_chunk=1, slot_bytes=8, num_ranks=2)
EVERYTHING = {"here": (0, 1), "half": (0,), "gone": ()}
"""Which ranks have put each content."""


def names(key: str) -> list[bytes]:
    return [IDENTITY.name(b"", 0, rank, key.encode()) for rank in range(2)]


THERE = {name for key, ranks in EVERYTHING.items() for rank, name in enumerate(names(key)) if rank in ranks}


class Stage:
    """A presence over a store that stops at a gate, or goes through it. Answers are asked as ``key=ANSWER``."""

    def __init__(self) -> None:
        self.clock, self.is_down = Seconds(), False
        self.news_were: list[object] = []

    def _there(self, name: bytes) -> StoreOutcome:
        return FAILED if self.is_down else OK if name in THERE else ABSENT

    def open(self, gated: bool = False, breaker: int = 5, wait_s: int = 5, **more: int) -> None:
        self.store = GatedStore(self._there, gated=gated)
        self.breaker = CircuitBreaker(breaker, first_wait_s=wait_s, clock=self.clock)
        self.presence = Presence(self.store, IDENTITY, clock=self.clock, breaker=self.breaker, **more)
        self.marked = self.presence.statistics()

    def end(self) -> None:
        """Its thread ends."""
        self.store.let_go(1_000)
        assert self.presence.close()

    def now(self, seconds: int) -> None:
        self.clock.now = float(seconds)

    def down(self, is_down: bool) -> None:
        """From now on the store fails, or not."""
        self.is_down = is_down

    def go(self, calls: int) -> None:
        """So many calls pass the gate."""
        self.store.let_go(calls)

    def calls(self, count: int) -> None:
        """Until so many have come there."""
        self.store.wait_for_calls(count)

    def tell(self, key: str) -> None:
        self.presence.note_put(b"", [(0, key.encode())])

    def discard(self, key: str) -> None:
        self.presence.discard(b"", [(0, key.encode())])

    def news(self) -> None:
        self.news_were.append(self.presence.news)

    def mark(self) -> None:
        self.marked = self.presence.statistics()

    def close(self, over: bool) -> None:
        """Whether the thread ends at once."""
        assert self.presence.close(**{} if over else {"wait_s": 0.0}) is over

    # --- what must be so

    def _asked(self, key: str) -> str:
        return self.presence.ask(b"", [(0, key.encode())])[0].name

    def ask(self, **answers: str) -> None:
        assert {key: self._asked(key) for key in answers} == answers

    def again(self, **answers: str) -> None:
        found = self.presence.ask_again(b"", [(0, key.encode()) for key in answers])
        assert {key: answer.name for key, answer in zip(answers, found, strict=True)} == answers

    def ask_many(self, count: int, answer: str) -> None:
        """So many, each of them twice."""
        assert [self._asked(f"{at % count}") for at in range(2 * count)] == [answer] * 2 * count

    def settle(self, **answers: str) -> None:
        """Ask until all answers are there. The thread is another one, so this gives way to it, with no sleep."""
        for _ in range(100_000):
            found = {key: self._asked(key) for key in answers}
            if "RETRY" not in found.values():
                assert found == answers
                return
            threading.Event().wait(0)
        raise AssertionError("no answer")

    def answered(self, count: int) -> None:
        """Until there are so many answers."""
        while self.presence.statistics().answers < count:
            threading.Event().wait(0)

    def elsewhere(self, key: str, answer: str) -> None:
        """The answer in another space, and for another group."""
        found = [*self.presence.ask(b"other", [(0, key.encode())]), *self.presence.ask(b"", [(1, key.encode())])]
        assert found == [Answer[answer]] * 2

    def called(self, *sizes: int) -> None:
        """How many names each call of the store has had."""
        assert [len(call) for call in self.store.calls] == [*sizes]

    def asked_last(self, key: str) -> None:
        assert self.store.calls[-1] == names(key)

    def has(self, **counts: int) -> None:
        found = attrs.asdict(self.presence.statistics())
        assert {name: found[name] for name in counts} == counts

    def more(self, **counts: int) -> None:
        """Since the mark."""
        found, before = attrs.asdict(self.presence.statistics()), attrs.asdict(self.marked)
        assert {name: found[name] - before[name] for name in counts} == counts

    def broken(self, failures: int, is_down: bool, refuses: bool = False) -> None:
        """Of the breaker."""
        found = self.breaker.statistics()
        assert (found.failures, found.is_down, found.refused > 0) == (failures, is_down, refuses)

    def news_are(self, *letters: str) -> None:
        """Which of them were the same."""
        assert [self.news_were.index(each) for each in self.news_were] == [letters.index(each) for each in letters]


PLAYS = plays("""
answers-when-every-rank-has-its-part
    open; ask here=RETRY; settle here=HIT half=MISS gone=MISS; has answers=3
does-not-mix-up-spaces-and-groups
    open; settle here=HIT; elsewhere here RETRY
has-news-with-each-answer-that-somebody-waits-for
    # also when a question has waited too long; not for content that nobody asked about
    open gated=yes patience_s=5; news; tell told; ask here=RETRY; news; now 5; news; discard here; news; ask half=RETRY; go 2
    settle half=MISS; news; news_are a a b c d
never-waits-and-asks-in-batches
    # the store stands still; the questions are all queued meanwhile, and go to it in one call, once each
    now 50; open gated=yes; ask first=RETRY; calls 1; ask_many 20 RETRY; go 2; answered 21; ask_many 20 MISS; called 2 40
    has answers=21 calls=2
forgets-old-answers
    open ttl_s=10; settle here=HIT; now 9; ask here=HIT; now 10; ask here=RETRY; settle here=HIT; called 2 2
keeps-the-answers-that-were-used-last
    open max_answers=3; settle a=MISS b=MISS c=MISS; ask a=MISS; settle d=MISS; ask a=MISS c=MISS d=MISS b=RETRY; has answers=3
keeps-what-it-was-told-last
    open max_answers=2; tell a; tell b; tell a; tell c; ask a=HIT c=HIT b=RETRY
does-not-ask-what-it-was-told-meanwhile
    open gated=yes; ask first=RETRY; calls 1; ask a=RETRY b=RETRY c=RETRY; tell a; discard c; go 2; settle a=HIT b=MISS c=MISS
    called 2 2; asked_last b
does-not-call-a-store-that-went-down-meanwhile
    # of what was queued before nothing is known for a moment, and asked again later
    open gated=yes breaker=1; down yes; ask first=RETRY; calls 1; ask here=RETRY; go 1; settle here=UNKNOWN; called 2
    broken 1 yes refuses=yes
believes-what-it-is-told
    # a promotion that came back without the content; a demotion that has put it
    open ttl_s=10; settle here=HIT gone=MISS; discard here; tell gone; ask here=MISS gone=HIT; now 10; settle here=HIT gone=MISS
believes-it-though-an-older-answer-comes-later
    # both were told while the store was being asked
    open gated=yes; ask first=RETRY; calls 1; ask here=RETRY gone=RETRY half=RETRY; go 1; calls 2; discard here; tell gone; go 1
    settle half=MISS here=MISS gone=HIT
gives-a-question-up-and-takes-its-answer-later
    # the store hangs: what waits is unknown after a while, what is new at once; then it comes back
    open gated=yes patience_s=10 breaker=3; ask here=RETRY; calls 1; now 9; ask here=RETRY; now 10; ask here=UNKNOWN
    ask new=UNKNOWN; ask new=UNKNOWN; broken 1 no; has given_up=1 refused=2; go 2; answered 1; ask here=HIT; ask new=RETRY
    settle new=MISS
limits-how-many-questions-wait
    open gated=yes max_questions=2; ask a=RETRY b=RETRY c=UNKNOWN; ask a=RETRY; has waiting=2 refused=1
leaves-a-store-alone-that-is-down
    # what it fails to answer is unknown for a moment; then the breaker opens, and lets one question through now and then
    open breaker=2 wait_s=10; down yes; settle here=UNKNOWN; settle gone=UNKNOWN; broken 2 yes
    has failed=2; now 5; ask here=UNKNOWN new=UNKNOWN; called 2 2; now 10; settle here=UNKNOWN; called 2 2 2
    down no; now 30; settle here=HIT half=MISS
    broken 3 no
finds-nothing-out-when-it-is-closed
    # what it knows it still tells
    open; settle here=HIT; close yes; ask here=HIT new=UNKNOWN
closes-though-the-store-hangs
    open gated=yes; ask here=RETRY; calls 1; close no; go 1; close yes
counts-its-answers
    open; settle here=HIT gone=MISS; mark; settle here=HIT gone=MISS; more hits=1 misses=1 retries=0
asks-again-without-counting-it
    # what events have told is asked for again; nobody has looked it up, so it is neither a hit nor a miss
    open ttl_s=10; settle here=HIT gone=MISS; mark; again here=HIT gone=MISS; now 10; again here=RETRY
    answered 2; again here=HIT; more hits=0 misses=0 retries=0 calls=1
asks-again-no-store-that-is-down
    open breaker=1; down yes; settle gone=UNKNOWN; mark; again here=UNKNOWN; more refused=0 misses=0
""")


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.end()


@pytest.mark.parametrize("name", PLAYS)
def test_presence_plays(name: str, stage: Stage) -> None:
    play(stage, PLAYS[name])


@pytest.mark.parametrize("answer", [[], [OK], [OK, OK, OK], ValueError("a bug")])
def test_presence_survives_a_store_that_breaks_its_word(answer: list[StoreOutcome] | Exception, stage: Stage) -> None:
    """It raises, or gives another number of outcomes: the thread goes on, and tells of it."""
    stage.open()
    honest = stage.store.exists

    def wrong(keys: Sequence[bytes]) -> list[StoreOutcome]:
        stage.store.exists = honest  # type: ignore[method-assign]
        if isinstance(answer, Exception):
            raise answer
        return answer

    stage.store.exists = wrong  # type: ignore[method-assign]
    stage.settle(here="UNKNOWN")
    assert stage.presence.statistics().last_error == (
        repr(answer) if isinstance(answer, Exception) else f"{len(answer)} outcomes for 2 keys"
    )
    stage.settle(half="MISS")
    stage.has(failed=1)


@pytest.mark.parametrize("more", [{"ttl_s": 0}, {"patience_s": 0}, {"max_answers": 0}, {"max_questions": 0}, {"batch": 0}])
def test_presence_refuses_sizes_and_times_of_zero(more: dict[str, int]) -> None:
    with pytest.raises(MisuseError, match="above 0"):
        Presence(GatedStore(lambda _: OK), IDENTITY, **more)  # type: ignore[arg-type]
