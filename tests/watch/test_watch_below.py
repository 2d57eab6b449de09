"""The book of what tiers below the host do with its slots: silent for what is lawful, and each unlawful step by its rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from blocklife.watch import RULES, TierBook, TierJob
from blocklife.watch._below import HISTORY, NUM_AGAIN, NUM_ENDED

A, B, C = b"a\0\0\0\0", b"b\0\0\0\0", b"c\0\0\0\0"
SLOTS = 4


class Told(TierBook):
    """A book that keeps what it tells, with the facts of a whole life in one call each."""

    def __init__(self, *, sees_all: bool = True) -> None:
        self.found: list[tuple[str, str, str | None, tuple[str, ...]]] = []
        super().__init__(SLOTS, lambda *each: self.found.append(each), has_tiers=True, sees_all=sees_all)

    @property
    def rules(self) -> list[str]:
        """The rules that fell, in order."""
        return [rule for rule, *_ in self.found]

    def stored(self, *content: tuple[bytes, int]) -> None:
        """The device has stored this."""
        self.reserved([key for key, _ in content], [slot for _, slot in content], promotes=False, request="r")
        self.published([key for key, _ in content], promoted=False)

    def cascade(self, number: int, *content: tuple[bytes, int], tier: int = 0) -> TierJob:
        """A job that stores in a tier what slots hold is made, and the tier gets it."""
        keys, slots = [key for key, _ in content], [slot for _, slot in content]
        self.held(keys, slots, by_tier=True, request="r")
        made = TierJob(number, tier, "r", keys, slots, promotes=False)
        self.made(made)
        self.handed_over(number, tier, list(content), promotes=False)
        return made

    def promotion(self, number: int, *content: tuple[bytes, int], tier: int = 0) -> TierJob:
        """A job that promotes is made for slots that were reserved for it, and the tier gets it."""
        keys, slots = [key for key, _ in content], [slot for _, slot in content]
        self.reserved(keys, slots, promotes=True, request="r")
        made = TierJob(number, tier, "r", keys, slots, promotes=True)
        self.made(made)
        self.handed_over(number, tier, list(content), promotes=True)
        return made


@pytest.fixture
def book() -> Told:
    return Told()


# --- what is lawful -----------------------------------------------------------------------------------------------------------


def test_content_goes_below_and_comes_back(book: Told) -> None:
    """A store, its cascade, an eviction, a promotion and a load: nothing to tell."""
    book.stored((A, 0), (B, 1))
    book.cascade(0, (A, 0), (B, 1))
    book.ends_step()
    assert [job.number for job in book.left_behind()] == [0]
    book.reported(0, 0, ok=True)
    book.released([A, B], by_tier=True)
    book.settled()
    book.evicted([A])
    book.promotion(1, (A, 2))
    book.ends_step()
    book.reported(1, 0, ok=True)
    assert book.published([A], promoted=True) == [(A, 2)]
    book.settled()
    book.hit(A, 2, 0)
    book.held([A], [2], by_tier=False, request="r")
    assert book.holds(A) == (2, 1)
    book.counted(A, 1)
    book.released([A], by_tier=False)
    book.rests()

    assert book.found == []
    assert book.holds(C) is None


def test_part_of_a_promotion_may_fail(book: Told) -> None:
    """What has arrived is published, the rest is given back."""
    book.promotion(0, (A, 0), (B, 1))
    book.reported(0, 0, ok=False, good=[A])
    book.published([A], promoted=True)
    book.dropped([B])
    book.settled()

    assert book.found == []
    assert (book.holds(A), book.holds(B)) == ((0, 0), None)


def test_jobs_end_in_any_order_and_share_slots(book: Told) -> None:
    """Two tiers read one slot, a load too; each gives up its own hold."""
    book.stored((A, 0))
    book.cascade(0, (A, 0))
    book.cascade(1, (A, 0), tier=1)
    book.held([A], [0], by_tier=False, request="r")
    assert book.holds(A) == (0, 3)
    book.reported(1, 1, ok=True)
    book.released([A], by_tier=True)
    book.released([A], by_tier=False)
    book.reported(0, 0, ok=False)
    book.released([A], by_tier=True)
    book.settled()

    assert book.found == []
    assert book.holds(A) == (0, 0)


def test_job_of_another_engine_is_never_handed_over(book: Told) -> None:
    """The tier has asked for it: it knows of it."""
    book.stored((A, 0))
    book.held([A], [0], by_tier=True, request="r")
    book.made(TierJob(0, 0, "r", [A], [0], promotes=False), is_external=True)
    book.ends_step()

    assert book.found == []


def test_reset_lets_everything_begin_again(book: Told) -> None:
    """Slots, keys and numbers; promotions wait for the flush."""
    book.stored((A, 0))
    book.resets()
    book.flushed()
    book.promotion(7, (A, 0))

    assert book.found == []


def test_late_report_of_a_job_that_a_reset_has_abandoned_is_lawful(book: Told) -> None:
    """Once: the reset itself is told, and a second report is one too many. One that was over before has no report to come."""
    book.stored((A, 0), (B, 1))
    book.cascade(0, (A, 0))
    book.cascade(1, (B, 1))
    book.reported(1, 0, ok=True)
    book.resets()
    assert book.rules == ["I1"]
    book.reported(0, 0, ok=True)
    assert book.rules == ["I1"]
    book.reported(0, 0, ok=True)
    book.reported(1, 0, ok=True)

    assert book.rules == ["I1", "I9", "I9"]


def test_content_from_before_is_believed() -> None:
    """A book that comes later does not know what was there."""
    book = Told(sees_all=False)
    book.hit(A, 3, 0)
    book.held([B], [1], by_tier=True, request=None)
    book.made(TierJob(0, 0, None, [B], [1], promotes=False), is_known=True)

    assert book.found == []
    assert (book.holds(A), book.holds(B)) == ((3, 0), (1, 1))


# --- what is not --------------------------------------------------------------------------------------------------------------


Act = Callable[[Told], object]


def _then(*acts: Act) -> Act:
    """One after another."""

    def act(book: Told) -> None:
        for each in acts:
            each(book)

    return act


def _promoted(book: Told) -> None:
    book.promotion(0, (A, 0))


def _cascaded(book: Told) -> None:
    book.stored((A, 0))
    book.cascade(0, (A, 0))


def _loading(book: Told) -> None:
    book.stored((A, 0))
    book.held([A], [0], by_tier=False, request="r")


def _made(promotes: bool, keys: Sequence[bytes] = (A,), slots: Sequence[int] = (0,)) -> Callable[[Told], None]:
    def act(book: Told) -> None:
        book.made(TierJob(5, 0, "r", keys, slots, promotes=promotes), is_known=True)

    return act


def _refused(book: Told) -> None:
    book.asked(0, may_store=False)
    book.cascade(1, (A, 0))


def _reserve(*content: tuple[bytes, int], promotes: bool = False) -> Callable[[Told], None]:
    def act(book: Told) -> None:
        book.reserved([key for key, _ in content], [slot for _, slot in content], promotes=promotes, request="r")

    return act


def _nothing(book: Told) -> None:
    """Nothing was before."""


UNLAWFUL: dict[str, tuple[Act, Act, str, str]] = {
    "handed out while it is promoted": (_promoted, _reserve((B, 0)), "I1", "slot 0 is handed out while tier job 0 writes it"),
    "handed out while it is stored": (
        _reserve((A, 0)),
        _reserve((B, 0)),
        "I1",
        "handed out while a store of the device writes",
    ),
    "handed out while a cascade reads": (_cascaded, _reserve((B, 0)), "I7", "slot 0 is handed out while tier job 0 reads it"),
    "evicted while a cascade reads": (_cascaded, lambda book: book.evicted([A]), "I7", "given away while tier job 0 reads it"),
    "evicted while a load reads": (_loading, lambda book: book.evicted([A]), "I7", "given away while a load reads it"),
    "evicted while it is promoted": (_promoted, lambda book: book.evicted([A]), "I1", "given away while tier job 0 writes it"),
    "handed out with its content": (lambda book: book.stored((A, 0)), _reserve((B, 0)), "I4", "still holds other content"),
    "handed out and not there": (_nothing, _reserve((A, SLOTS)), "I4", "the host has 4 slots"),
    "promoted twice": (_promoted, _reserve((A, 1), promotes=True), "I14", "content that tier job 0 brings already, in slot 0"),
    "promoted and there": (lambda book: book.stored((A, 0)), _reserve((A, 1), promotes=True), "I14", "is there already"),
    "keys without slots": (
        _nothing,
        lambda book: book.reserved([A, B], [0], promotes=True, request="r"),
        "I15",
        "1 slots are reserved for 2 keys",
    ),
    "published before it began": (
        _reserve((A, 0), promotes=True),
        lambda book: book.published([A], promoted=True),
        "I6",
        "published before its promotion has begun",
    ),
    "published early": (_promoted, lambda book: book.published([A], promoted=True), "I6", "tier job 0 still promotes into it"),
    "published by a store": (_promoted, lambda book: book.published([A], promoted=False), "I6", "still promotes into it"),
    "published as promoted": (
        _reserve((A, 0)),
        lambda book: book.published([A], promoted=True),
        "I6",
        "as promoted while a store of the device writes it",
    ),
    "failed and published": (
        _promoted,
        _then(lambda book: book.reported(0, 0, ok=False), lambda book: book.published([A], promoted=True)),
        "I6",
        "although tier job 0 has failed to promote into it",
    ),
    "given back early": (_promoted, lambda book: book.dropped([A]), "I1", "given back while tier job 0 still promotes into it"),
    "a hit too early": (_promoted, lambda book: book.hit(A, 0, 0), "I6", "is a hit while tier job 0 still writes it"),
    "a hit of nothing": (_nothing, lambda book: book.hit(A, 0, 0), "I6", "is a hit, and nothing was stored in it"),
    "loaded too early": (
        _promoted,
        lambda book: book.held([A], [0], by_tier=False, request="r"),
        "I6",
        "held for a load while tier job 0 still writes it",
    ),
    "loaded from elsewhere": (
        lambda book: book.stored((A, 0)),
        lambda book: book.held([A], [1], by_tier=False, request="r"),
        "I8",
        "to read slot 1 for content that is in slot 0",
    ),
    "let go of by no load": (_cascaded, lambda book: book.released([A], by_tier=False), "I4", "no load holds it"),
    "let go of by no job": (
        _loading,
        lambda book: book.released([A], by_tier=True),
        "I4",
        "by a job of a tier, and none holds",
    ),
    "let go of early": (_cascaded, lambda book: book.released([A], by_tier=True), "I7", "while tier job 0 still reads it"),
    "counted wrongly": (_cascaded, lambda book: book.counted(A, 0), "I4", "counts 0 holds of slot 0, and there are 1"),
    "counted as ready": (_promoted, lambda book: book.counted(A, 0), "I4", "and there are -1 (-1: it is written)"),
    "made twice": (_cascaded, lambda book: book.cascade(0, (A, 0)), "I3", "tier job 0 is made a second time"),
    "sizes that differ": (_nothing, _made(False, (A, B), (0,)), "I15", "has 2 keys and 1 slots"),
    "promotes into nothing": (_nothing, _made(True), "I8", "promotes into slot 0 for content whose place is nowhere"),
    "promotes into content": (lambda book: book.stored((A, 0)), _made(True), "I1", "into slot 0, which holds content"),
    "promotes into a store": (_reserve((A, 0)), _made(True), "I1", "which a store of the device writes"),
    "promotes again": (_promoted, _made(True), "I1", "tier job 5 promotes into slot 0, which tier job 0 writes"),
    "cascades too early": (_promoted, _made(False), "I6", "tier job 5 reads slot 0 while tier job 0 still writes it"),
    "cascades without a hold": (lambda book: book.stored((A, 0)), _made(False), "I7", "reads slot 0, and does not hold it"),
    "promotes behind a reset": (
        lambda book: book.resets(),
        _promoted,
        "I1",
        "promotes before the workers have finished what a reset flushed",
    ),
    "stores where it was refused": (lambda book: book.stored((A, 0)), _refused, "I12", "which has just refused it"),
    "handed over and never made": (
        _nothing,
        lambda book: book.handed_over(3, 0, [], promotes=True),
        "I3",
        "tier 0 gets job 3, which was never made",
    ),
    "handed over twice": (
        _cascaded,
        lambda book: book.handed_over(0, 0, [(A, 0)], promotes=False),
        "I3",
        "handed to tier 0 a second time",
    ),
    "handed over after its report": (
        _then(lambda book: book.made(TierJob(0, 0, "r", [], [], promotes=False)), lambda book: book.reported(0, 0, ok=True)),
        lambda book: book.handed_over(0, 0, [], promotes=False),
        "I3",
        "handed to tier 0 after it was reported",
    ),
    "handed over when it is over": (
        _then(
            _cascaded, lambda book: book.reported(0, 0, ok=True), lambda book: book.released([A], by_tier=True), Told.settled
        ),
        lambda book: book.handed_over(0, 0, [(A, 0)], promotes=False),
        "I3",
        "tier 0 gets job 0, which is over",
    ),
    "handed to another tier": (
        lambda book: book.made(TierJob(0, 0, "r", [], [], promotes=False)),
        lambda book: book.handed_over(0, 1, [], promotes=False),
        "I3",
        "handed to tier 1, and was made for tier 0",
    ),
    "handed over as the other kind": (
        lambda book: book.made(TierJob(0, 0, "r", [], [], promotes=False)),
        lambda book: book.handed_over(0, 0, [], promotes=True),
        "I3",
        "as a promotion, and is a store",
    ),
    "handed over with other slots": (
        _then(
            lambda book: book.stored((A, 0)),
            lambda book: book.held([A], [0], by_tier=True, request="r"),
            lambda book: book.made(TierJob(0, 0, "r", [A], [0], promotes=False)),
        ),
        lambda book: book.handed_over(0, 0, [(A, 1)], promotes=False),
        "I8",
        "with other keys and slots than it was made with",
    ),
    "reported and never made": (
        _nothing,
        lambda book: book.reported(4, 0, ok=True),
        "I3",
        "reports job 4, which was never made",
    ),
    "reported twice": (
        _then(_cascaded, lambda book: book.reported(0, 0, ok=True)),
        lambda book: book.reported(0, 0, ok=True),
        "I9",
        "tier job 0 is reported a second time",
    ),
    "reported again later": (
        _then(
            _cascaded,
            lambda book: book.reported(0, 0, ok=True),
            lambda book: book.released([A], by_tier=True),
            lambda book: book.settled(),
        ),
        lambda book: book.reported(0, 0, ok=True),
        "I9",
        "reported a second time",
    ),
    "reported by another tier": (_cascaded, lambda book: book.reported(0, 1, ok=True), "I3", "of tier 0 is reported by tier 1"),
    "over and still held": (
        _then(_cascaded, lambda book: book.reported(0, 0, ok=True)),
        lambda book: book.settled(),
        "I5",
        "tier job 0 is over, and slot 0: is still held for it",
    ),
    "over and not published": (
        _then(_promoted, lambda book: book.reported(0, 0, ok=True)),
        lambda book: book.settled(),
        "I5",
        "its content is neither published nor given up",
    ),
    "never handed over": (
        _then(
            lambda book: book.reserved([A], [0], promotes=True, request="r"),
            lambda book: book.made(TierJob(0, 0, "r", [A], [0], promotes=True)),
        ),
        lambda book: book.ends_step(),
        "I5",
        "tier job 0 was made, and tier 0 does not hear of it",
    ),
    "reserved for nothing": (
        _reserve((A, 0), promotes=True),
        lambda book: book.ends_step(),
        "I5",
        "slot 0 is reserved for a promotion, and no job brings it",
    ),
    "held for nothing": (
        _then(lambda book: book.stored((A, 0)), lambda book: book.held([A], [0], by_tier=True, request="r")),
        lambda book: book.ends_step(),
        "I4",
        "slot 0 is held for a job of a tier, and there is none",
    ),
    "reset while it reads": (
        _cascaded,
        lambda book: book.resets(),
        "I1",
        "a reset gives slot 0 away while tier job 0 still reads",
    ),
    "reset while it promotes": (_promoted, lambda book: book.resets(), "I1", "while tier job 0 still promotes into it"),
    "sleeps": (_cascaded, lambda book: book.rests(), "I5", "nothing is pending for the engine, and tier job 0 is still out"),
}


@pytest.mark.parametrize("case", UNLAWFUL)
def test_unlawful_step_is_named_by_its_rule(case: str, book: Told) -> None:
    """Lawful until then; then the rule, first and with what was wrong."""
    before, act, rule, what = UNLAWFUL[case]
    before(book)
    assert book.found == []
    act(book)

    assert book.found[0][0] == rule
    assert what in book.found[0][1]


@pytest.mark.parametrize("case", UNLAWFUL)
def test_book_goes_on_behind_it(case: str, book: Told) -> None:
    """The book says what the engine says, and the rest of a life is lawful again in other slots."""
    before, act, _, _ = UNLAWFUL[case]
    before(book)
    act(book)
    book.resets()
    book.flushed()
    book.found.clear()
    test_content_goes_below_and_comes_back(book)


def test_every_rule_that_falls_is_one_of_the_watch() -> None:
    assert {rule for _, _, rule, _ in UNLAWFUL.values()} <= set(RULES)


def test_story_of_the_slot_goes_with_it(book: Told) -> None:
    """The last events, oldest first, with the request."""
    book.step = 3
    _promoted(book)
    book.published([A], promoted=True)
    rule, _, request, history = book.found[0]

    assert (rule, request) == ("I6", "r")
    assert history == (
        "step 3, slot 0: reserved for a promotion of request r",
        "step 3, slot 0: being promoted by tier job 0",
    )


def test_only_the_last_events_are_kept(book: Told) -> None:
    book.stored((A, 0))
    for _ in range(HISTORY):
        book.held([A], [0], by_tier=False, request="r")
        book.released([A], by_tier=False)

    assert book.history(0) == ("step 0, slot 0: held for a load of request r",) * HISTORY


def test_wrong_count_is_told_once(book: Told) -> None:
    book.stored((A, 0))
    book.counted(A, 2)
    book.counted(A, 3)

    assert book.rules == ["I4"]


def test_content_that_is_promoted_again_and_again_goes_in_circles(book: Told) -> None:
    """Until something is computed."""
    for number in range(NUM_AGAIN):
        assert book.circles() == ""
        book.promotion(number, (A, 0))
        book.reported(number, 0, ok=True)
        book.published([A], promoted=True)
        book.settled()
        book.evicted([A])

    assert book.circles() == f"{A.hex()} was promoted {NUM_AGAIN} times, and given away each time before it was read"
    assert book.circles() == ""
    book.promotion(NUM_AGAIN, (A, 0))
    book.progressed()
    assert book.circles() == ""
    assert book.found == []


def test_finished_jobs_are_forgotten_in_the_end(book: Told) -> None:
    """A report of one that was forgotten counts as one of a job that was never made."""
    book.stored((A, 0))
    for number in range(NUM_ENDED + 1):
        book.cascade(number, (A, 0))
        book.reported(number, 0, ok=True)
        book.released([A], by_tier=True)
        book.settled()
    assert book.found == []
    book.reported(0, 0, ok=True)
    book.reported(1, 0, ok=True)

    assert book.rules == ["I3", "I9"]
