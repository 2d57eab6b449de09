"""What the scheduler knows of a store: answers that are there at once, and a thread that finds them out.

*Rules of this file.* The scheduler's calls never wait for the store: what is not known is queued, and RETRY is the answer. No
call of the store runs under the lock.

*Theory.* An answer is about some content: its space, group and key. It is a HIT if every rank's part is there. Answers age:
entries are evicted and put by others, so an answer is forgotten after a while and asked for anew. It may be wrong all the same;
then a promotion comes back without the content, the scheduler says so with `forget`, and it is a MISS from then on.

*Back-pressure.* A question that the store does not answer within *patience_s* is UNKNOWN. So is one that it fails to answer,
and every question while the breaker has the store down, or beyond *max_questions* that wait. A lookup takes that for a MISS: a
store that hangs costs hits, never steps.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeAlias
from uuid import uuid4

from attrs import define, evolve

from blocklife.errors import MisuseError
from blocklife.offload._lookup import Answer
from blocklife.tiers._breaker import CircuitBreaker
from blocklife.tiers._calls import TimedCall
from blocklife.tiers._entry import Identity
from blocklife.tiers._protocol import ContentStore, StoreOutcome

Content: TypeAlias = tuple[bytes, int, bytes]
"""Space, group and key."""

_HIT, _MISS, _RETRY, _UNKNOWN = (
    Answer.HIT,
    Answer.MISS,
    Answer.RETRY,
    Answer.UNKNOWN,
)  # members of an enumeration are slow to find
_OK, _FAILED = StoreOutcome.OK, StoreOutcome.FAILED
_FAILED_TTL_S = 1.0
"""How long a question that the store could not answer is UNKNOWN."""


@define
class PresenceStatistics:
    """What a `Presence` has done so far."""

    hits: int = 0
    """Questions answered with HIT; likewise below."""
    misses: int = 0
    """UNKNOWN counts as a miss."""
    retries: int = 0
    given_up: int = 0
    """Questions that the store has not answered in time; UNKNOWN."""
    refused: int = 0
    """Questions that were not asked, because the store was down or too many were waiting; UNKNOWN."""
    calls: int = 0
    """Calls of the store."""
    failed: int = 0
    """Calls that could not answer each of their questions."""
    waiting: int = 0
    """Questions that wait for an answer now."""
    answers: int = 0
    """Answers that are kept now."""
    last_error: str = ""
    """What the latest call raised, which no store may; empty if none did."""


class Presence:
    """Which content a store has, for one scheduler; closes neither the store nor the breaker."""

    def __init__(
        self,
        store: ContentStore,
        identity: Identity,
        *,
        breaker: CircuitBreaker | None = None,
        ttl_s: float = 30.0,
        patience_s: float = 0.5,
        max_answers: int = 1 << 16,
        max_questions: int = 1 << 12,
        batch: int = 256,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if min(max_answers, max_questions, batch) < 1 or min(ttl_s, patience_s) <= 0:
            raise MisuseError("presence: sizes and times must be above 0")
        self._store = store
        self._identity = identity
        self._breaker = CircuitBreaker(clock=clock) if breaker is None else breaker
        self._ttl_s = ttl_s
        self._patience_s = patience_s
        self._max_answers = max_answers
        self._max_questions = max_questions
        self._batch = max(1, batch // identity.num_ranks)
        self._clock = clock
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        # Invariant: content is in `_known` or in `_questions` or in neither, never in both. `_questions` says when each was
        # first asked; `_unasked` are those that the thread has yet to take. An answer is kept only if its question is still
        # there: what `forget` or `note_put` has said since is newer. Initially all are empty.
        self._known: OrderedDict[Content, tuple[float, Answer]] = OrderedDict()
        """When each answer is too old, and the answer."""
        self._questions: dict[Content, float] = {}
        self._unasked: dict[Content, None] = {}
        self._call = TimedCall(patience_s)
        self._closing = False
        self._news = 0
        """How often questions were answered."""
        self._counts = PresenceStatistics()
        self._thread = threading.Thread(target=self._run, name="blocklife-presence", daemon=True)
        self._thread.start()

    # --- the scheduler's calls -----------------------------------------------------------------------------------------

    def ask(self, space: bytes, contents: Sequence[tuple[int, bytes]]) -> list[Answer]:
        """Whether each content, a group and a key, is in the store: HIT, MISS, RETRY while that is being found out, or UNKNOWN.

        Returns at once.
        """
        return self._ask(space, contents, self._counts)

    def ask_again(self, space: bytes, contents: Sequence[tuple[int, bytes]]) -> list[Answer]:
        """The same for content that was there before, and that nobody wants now: it is left out of the counts of questions."""
        return self._ask(space, contents, PresenceStatistics())

    def _ask(self, space: bytes, contents: Sequence[tuple[int, bytes]], counts: PresenceStatistics) -> list[Answer]:
        accepts: bool | None = None
        found: list[Answer] = []
        with self._lock:
            now = self._clock()
            for group, key in contents:
                content = (space, group, key)
                known = self._known.get(content)
                if known is not None and now < known[0]:
                    self._known.move_to_end(content)
                    found.append(known[1])
                    continue
                if accepts is None:
                    accepts = not self._closing and not self._is_stuck(now) and not self._breaker.refuses()
                found.append(self._ask_store(content, now, accepts, counts))
            if self._unasked:
                self._changed.notify_all()
        hits, retries = found.count(_HIT), found.count(_RETRY)
        counts.hits += hits
        counts.retries += retries
        counts.misses += len(found) - hits - retries
        return found

    def _ask_store(self, content: Content, now: float, accepts: bool, counts: PresenceStatistics) -> Answer:
        """What is said of content of which nothing is known, or no more; a new question is taken if the store *accepts* one."""
        self._known.pop(content, None)
        since = self._questions.get(content)
        if since is not None:
            if now - since < self._patience_s:
                return _RETRY
            counts.given_up += 1
            return _UNKNOWN
        if not accepts or len(self._questions) >= self._max_questions:
            counts.refused += 1
            return _UNKNOWN
        self._questions[content] = now
        self._unasked[content] = None
        return _RETRY

    @property
    def is_up(self) -> bool:
        """Whether the breaker lets the store be called."""
        return not self._breaker.refuses()

    @property
    def news(self) -> int:
        """A number that is another one as soon as a question is answered, or has waited for so long that it is UNKNOWN."""
        with self._lock:
            overdue, latest = 0, self._clock() - self._patience_s
            for since in self._questions.values():  # the oldest first
                if since > latest:
                    break
                overdue += 1
            return self._news * (self._max_questions + 1) + overdue

    def discard(self, space: bytes, contents: Sequence[tuple[int, bytes]]) -> None:
        """These were not there when they were wanted, or were damaged: a MISS until the answer is too old."""
        self._learn(space, contents, _MISS)

    def note_put(self, space: bytes, contents: Sequence[tuple[int, bytes]]) -> None:
        """These have been put, by every rank: a HIT until the answer is too old."""
        self._learn(space, contents, _HIT)

    def new_space(self) -> bytes:
        """A space that nobody has used: 16 random bytes."""
        return uuid4().bytes

    def statistics(self) -> PresenceStatistics:
        """Counts since the start."""
        with self._lock:
            return evolve(self._counts, waiting=len(self._questions), answers=len(self._known))

    def close(self, wait_s: float = 5.0) -> bool:
        """End the thread, and say whether it has ended; one whose call hangs ends when the store lets it go."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _is_stuck(self, now: float) -> bool:
        """Whether the call that runs takes so long that nobody waits for another."""
        if self._call.look(now):
            self._breaker.failed()
        return self._call.hangs

    def _learn(self, space: bytes, contents: Sequence[tuple[int, bytes]], answer: Answer) -> None:
        with self._lock:
            expires = self._clock() + self._ttl_s
            for group, key in contents:
                content = (space, group, key)
                if self._questions.pop(content, None) is not None:
                    self._unasked.pop(content, None)
                    self._news += 1
                self._keep(content, expires, answer)

    def _keep(self, content: Content, expires: float, answer: Answer) -> None:
        self._known[content] = expires, answer
        self._known.move_to_end(content)
        while len(self._known) > self._max_answers:
            self._known.popitem(last=False)

    # --- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while batch := self._next_questions():
            found: list[bool | None] = [None] * len(batch)
            if self._breaker.allows():
                found = self._look(batch)
                if None in found:
                    self._breaker.failed()
                else:
                    self._breaker.succeeded()
            self._answer(batch, found)

    def _next_questions(self) -> list[Content]:
        """The questions of the next call; none when the presence is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._unasked)
            if self._closing:
                return []
            batch = list(islice(self._unasked, self._batch))
            for content in batch:
                del self._unasked[content]
            self._call.begin(self._clock())
            return batch

    def _look(self, batch: Sequence[Content]) -> list[bool | None]:
        """Ask the store: whether it has each content, None where it could not say."""
        ranks = self._identity.num_ranks
        error = ""
        try:
            names = [self._identity.name(*content[:2], rank, content[2]) for content in batch for rank in range(ranks)]
            outcomes = self._store.exists(names)
            if len(outcomes) != len(names):
                error, outcomes = f"{len(outcomes)} outcomes for {len(names)} keys", [StoreOutcome.FAILED] * len(names)
        except Exception as problem:  # a store may not raise; if it does, the scheduler's thread of answers goes on
            error, outcomes = repr(problem), [StoreOutcome.FAILED] * (ranks * len(batch))
        parts = [outcomes[start : start + ranks] for start in range(0, len(outcomes), ranks)]
        found = [None if _FAILED in part else all(each is _OK for each in part) for part in parts]
        with self._changed:
            self._counts.calls += 1
            self._counts.failed += None in found
            self._counts.last_error = error or self._counts.last_error
        return found

    def _answer(self, batch: Sequence[Content], found: Sequence[bool | None]) -> None:
        with self._changed:
            self._call.end()
            self._news += 1
            now = self._clock()
            for content, is_there in zip(batch, found, strict=True):
                if self._questions.pop(content, None) is not None:
                    if is_there is None:
                        self._keep(content, now + min(_FAILED_TTL_S, self._ttl_s), _UNKNOWN)
                    else:
                        self._keep(content, now + self._ttl_s, _HIT if is_there else _MISS)
