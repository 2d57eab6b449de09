"""The book of what tiers below the host do with its slots: silent for what is lawful, and each unlawful step by its rule."""

from __future__ import annotations

import pytest

from blocklife.watch import TierBook, TierJob
from blocklife.watch._records import NUM_ENDED
from blocklife.watch._uses import HISTORY, NUM_AGAIN
from tests.plays import play
from tests.watch.script import Case, cases

SLOTS = 4


def content_of(words: tuple[str, ...]) -> list[tuple[bytes, int]]:
    """Keys and slots, from words like ``A@0``."""
    return [(key_of(key), int(slot)) for key, slot in (word.split("@") for word in words)]


def key_of(name: str) -> bytes:
    """The key of a name, which ends with its group."""
    return name.encode() + bytes(4)


class Told(TierBook):
    """A book that keeps what it tells. What a whole life needs is one event each; the book's own methods are events, too."""

    def __init__(self, *, sees_all: bool = True) -> None:
        self.found: list[tuple[str, str, str | None, tuple[str, ...]]] = []
        super().__init__(SLOTS, lambda *each: self.found.append(each), has_tiers=True, sees_all=sees_all)

    def store(self, *content: str) -> None:
        """The device has stored this."""
        self.reserve(*content)
        self.slots.published([key for key, _ in content_of(content)], promoted=False)

    def cascade(self, number: int, *content: str, tier: int = 0) -> None:
        """A job that stores in a tier what slots hold is made, and the tier gets it."""
        self.hold(*content, by_tier=True)
        self.make(number, *content, promotes=False, tier=tier)
        self.hand_over(number, *content, promotes=False, tier=tier)

    def promotion(self, number: int, *content: str, tier: int = 0) -> None:
        """A job that promotes is made for slots that were reserved for it, and the tier gets it."""
        self.reserve(*content, promotes=True)
        self.make(number, *content, promotes=True, tier=tier)
        self.hand_over(number, *content, promotes=True, tier=tier)

    def reserve(self, *content: str, promotes: bool = False, without: int = 0) -> None:
        """Slots are reserved, but for the last ones."""
        found = content_of(content)
        slots = [slot for _, slot in found][: len(found) - without]
        self.slots.reserved([key for key, _ in found], slots, promotes=promotes, request="r")

    def hold(self, *content: str, by_tier: bool = False) -> None:
        """Content is held."""
        found = content_of(content)
        self.slots.held([key for key, _ in found], [slot for _, slot in found], by_tier=by_tier, request="r")

    def make(
        self,
        number: int,
        *content: str,
        promotes: bool,
        tier: int = 0,
        without: int = 0,
        known: bool = False,
        external: bool = False,
    ) -> None:
        """A job is made, without its last slots, maybe."""
        found = content_of(content)
        slots = [slot for _, slot in found][: len(found) - without]
        job = TierJob(number, tier, "r", [key for key, _ in found], slots, promotes=promotes, is_believed=known)
        self.made(job, is_external=external)

    def hand_over(self, number: int, *content: str, promotes: bool, tier: int = 0) -> None:
        """A tier gets a job."""
        self.handed_over(number, tier, content_of(content), promotes=promotes)

    def publish(self, *keys: str, promoted: bool = True) -> None:
        """The engine publishes content."""
        self.slots.published(list(map(key_of, keys)), promoted=promoted)

    def drop(self, *keys: str) -> None:
        """It gives slots back."""
        self.slots.dropped(map(key_of, keys))

    def evict(self, *keys: str) -> None:
        """It gives content up."""
        self.slots.evicted(map(key_of, keys))

    def find(self, key: str, slot: int, holds: int = 0) -> None:
        """A lookup finds content."""
        self.slots.hit(key_of(key), slot, holds)

    def release(self, *keys: str, by_tier: bool = False) -> None:
        """A hold on each is given up."""
        self.slots.released(map(key_of, keys), by_tier=by_tier)

    def count(self, key: str, holds: int) -> None:
        """The engine counts so many holds."""
        self.slots.counted(key_of(key), holds)

    def report(self, number: int, *good: str, tier: int = 0, ok: bool = True) -> None:
        """A tier reports a job."""
        self.reported(number, tier, ok=ok, good=list(map(key_of, good)))

    def progressed(self) -> None:
        """Something is computed."""
        self.slots.progressed()

    def refuse(self, tier: int = 0) -> None:
        """A tier takes no stores."""
        self.asked(tier, may_store=False)

    # --- what must be so

    def silent(self) -> None:
        """Nothing has fallen so far."""
        assert self.found == []

    def has(self, key: str, slot: int | None, holds: int = 0) -> None:
        """The slot of a key, and its holds."""
        assert self.slots.holds(key_of(key)) == (None if slot is None else (slot, holds))

    def out(self, *numbers: int) -> None:
        """Exactly these jobs are out."""
        assert [job.number for job in self.left_behind()] == [*numbers]


@pytest.fixture
def book() -> Told:
    return Told()


LIFE = """
store A@0 B@1; cascade 0 A@0 B@1; ends_step; out 0; report 0; release A B by_tier=yes; settled; evict A
promotion 1 A@2; ends_step; report 1; publish A; settled; find A 2; hold A@2; has A 2 1; count A 1; release A; rests; has C none
"""
"""Content goes below and comes back: a store, its cascade, an eviction, a promotion and a load."""

CASES = cases("""
# --- what is lawful
part-of-a-promotion-may-fail silent
    # what has arrived is published, the rest is given back
    promotion 0 A@0 B@1; report 0 A ok=no; publish A; drop B; settled; has A 0 0; has B none
jobs-end-in-any-order-and-share-slots silent
    # two tiers read one slot, a load too; each gives up its own hold
    store A@0; cascade 0 A@0; cascade 1 A@0 tier=1; hold A@0; has A 0 3; report 1 tier=1; release A by_tier=yes; release A
    report 0 ok=no; release A by_tier=yes; settled; has A 0 0
job-of-another-engine-is-never-handed-over silent
    # the tier has asked for it: it knows of it
    store A@0; hold A@0 by_tier=yes; make 0 A@0 promotes=no external=yes; ends_step
job-that-counts-as-handed-over-may-be-heard silent
    # vLLM's tests put a double in the place of a tier's method, which calls that method
    store A@0; hold A@0 by_tier=yes; make 0 A@0 promotes=no known=yes; hand_over 0 A@0 promotes=no; report 0
    release A by_tier=yes; settled; evict A; reserve B@1 promotes=yes; make 1 B@1 promotes=yes known=yes
    hand_over 1 B@1 promotes=yes; report 1; publish B; settled; has B 1 0
reset-lets-everything-begin-again silent
    # slots, keys and numbers; promotions wait for the flush
    store A@0; resets; flushed; promotion 7 A@0
late-report-of-what-a-reset-has-abandoned I1+I9+I9
    # the reset is told, and a second report is one too many; what was over before has no report to come
    store A@0 B@1; cascade 0 A@0; cascade 1 B@1; report 1; resets; report 0; report 0; report 1

# --- slots
handed-out-while-promoted I1 slot 0 is handed out while tier job 0 writes it
    promotion 0 A@0; silent; reserve B@0
handed-out-while-stored I1 handed out while a store of the device writes
    reserve A@0; silent; reserve B@0
handed-out-while-a-cascade-reads I7 slot 0 is handed out while tier job 0 reads it
    store A@0; cascade 0 A@0; silent; reserve B@0
evicted-while-a-cascade-reads I7 given away while tier job 0 reads it
    store A@0; cascade 0 A@0; silent; evict A
evicted-while-a-load-reads I7 given away while a load reads it
    store A@0; hold A@0; silent; evict A
evicted-while-promoted I1 given away while tier job 0 writes it
    promotion 0 A@0; silent; evict A
handed-out-with-its-content I4 still holds other content
    store A@0; silent; reserve B@0
handed-out-and-not-there I4 the host has 4 slots
    reserve A@4
promoted-twice I14 content that tier job 0 brings already, in slot 0
    promotion 0 A@0; silent; reserve A@1 promotes=yes
promoted-and-there I14 is there already
    store A@0; silent; reserve A@1 promotes=yes
keys-without-slots I15 1 slots are reserved for 2 keys
    reserve A@0 B@1 promotes=yes without=1
published-before-it-began I6 published before its promotion has begun
    reserve A@0 promotes=yes; silent; publish A
published-early I6 tier job 0 still promotes into it
    promotion 0 A@0; silent; publish A
published-by-a-store I6 still promotes into it
    promotion 0 A@0; silent; publish A promoted=no
published-as-promoted I6 as promoted while a store of the device writes it
    reserve A@0; silent; publish A
failed-and-published I6 although tier job 0 has failed to promote into it
    promotion 0 A@0; report 0 ok=no; silent; publish A
given-back-early I1 given back while tier job 0 still promotes into it
    promotion 0 A@0; silent; drop A
hit-too-early I6 is a hit while tier job 0 still writes it
    promotion 0 A@0; silent; find A 0
hit-of-nothing I6 is a hit, and nothing was stored in it
    find A 0
loaded-too-early I6 held for a load while tier job 0 still writes it
    promotion 0 A@0; silent; hold A@0
loaded-from-elsewhere I8 to read slot 1 for content that is in slot 0
    store A@0; silent; hold A@1
let-go-of-by-no-load I4 no load holds it
    store A@0; cascade 0 A@0; silent; release A
let-go-of-by-no-job I4 by a job of a tier, and none holds
    store A@0; hold A@0; silent; release A by_tier=yes
let-go-of-early I7 while tier job 0 still reads it
    store A@0; cascade 0 A@0; silent; release A by_tier=yes
counted-wrongly I4 counts 2 holds of slot 0, and there are 0
    # told once
    store A@0; silent; count A 2; count A 3
counted-as-ready I4 and there are -1 (-1: it is written)
    promotion 0 A@0; silent; count A 0
reserved-for-nothing I5 slot 0 is reserved for a promotion, and no job brings it
    reserve A@0 promotes=yes; silent; ends_step
held-for-nothing I4 slot 0 is held for a job of a tier, and there is none
    store A@0; hold A@0 by_tier=yes; silent; ends_step

# --- jobs
made-twice I3 tier job 0 is made a second time
    store A@0; cascade 0 A@0; silent; hold A@0 by_tier=yes; make 0 A@0 promotes=no
sizes-that-differ I15+I8 has 2 keys and 1 slots
    store A@0; hold A@0 by_tier=yes; silent; make 5 B@0 A@0 promotes=no without=1 known=yes
promotes-into-nothing I8+I1 promotes into slot 0 for content whose place is nowhere
    make 5 A@0 promotes=yes known=yes
promotes-into-content I1 into slot 0, which holds content
    store A@0; silent; make 5 A@0 promotes=yes known=yes
promotes-into-a-store I1 which a store of the device writes
    reserve A@0; silent; make 5 A@0 promotes=yes known=yes
promotes-again I1 tier job 5 promotes into slot 0, which tier job 0 writes
    promotion 0 A@0; silent; make 5 A@0 promotes=yes known=yes
cascades-too-early I6 tier job 5 reads slot 0 while tier job 0 still writes it
    promotion 0 A@0; silent; make 5 A@0 promotes=no known=yes
cascades-without-a-hold I7 reads slot 0, and does not hold it
    store A@0; silent; make 5 A@0 promotes=no known=yes
promotes-behind-a-reset I1 promotes before the workers have finished what a reset flushed
    resets; promotion 0 A@0
stores-where-it-was-refused I12 which has just refused it
    store A@0; silent; refuse; cascade 1 A@0
handed-over-and-never-made I3 tier 0 gets job 3, which was never made
    hand_over 3 promotes=yes
handed-over-twice I3 handed to tier 0 a second time
    store A@0; cascade 0 A@0; silent; hand_over 0 A@0 promotes=no
handed-over-with-other-content I8 with other keys and slots than it was made with
    store A@0 B@1; hold A@0 by_tier=yes; make 0 A@0 promotes=no known=yes; silent; hand_over 0 B@1 promotes=no
handed-over-after-its-report I3 handed to tier 0 after it was reported
    make 0 promotes=no; report 0; silent; hand_over 0 promotes=no
handed-over-when-it-is-over I3 tier 0 gets job 0, which is over
    store A@0; cascade 0 A@0; report 0; release A by_tier=yes; settled; silent; hand_over 0 A@0 promotes=no
handed-to-another-tier I3 handed to tier 1, and was made for tier 0
    make 0 promotes=no; silent; hand_over 0 promotes=no tier=1
handed-over-as-the-other-kind I3 as a promotion, and is a store
    make 0 promotes=no; silent; hand_over 0 promotes=yes
handed-over-with-other-slots I8 with other keys and slots than it was made with
    store A@0; hold A@0 by_tier=yes; make 0 A@0 promotes=no; silent; hand_over 0 A@1 promotes=no
never-handed-over I5 tier job 0 was made, and tier 0 does not hear of it
    reserve A@0 promotes=yes; make 0 A@0 promotes=yes; silent; ends_step
reported-and-never-made I3 reports job 4, which was never made
    report 4
reported-twice I9 tier job 0 is reported a second time
    store A@0; cascade 0 A@0; report 0; silent; report 0
reported-again-later I9 reported a second time
    store A@0; cascade 0 A@0; report 0; release A by_tier=yes; settled; silent; report 0
reported-by-another-tier I3 of tier 0 is reported by tier 1
    store A@0; cascade 0 A@0; silent; report 0 tier=1
over-and-still-held I5 tier job 0 is over, and slot 0: is still held for it
    store A@0; cascade 0 A@0; report 0; silent; settled
over-and-not-published I5 its content is neither published nor given up
    promotion 0 A@0; report 0; silent; settled
reset-while-it-reads I1 a reset gives slot 0 away while tier job 0 still reads
    store A@0; cascade 0 A@0; silent; resets
reset-while-it-promotes I1 while tier job 0 still promotes into it
    promotion 0 A@0; silent; resets
sleeps I5 nothing is pending for the engine, and tier job 0 is still out
    store A@0; cascade 0 A@0; silent; rests
""")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_step_is_silent_or_named_by_its_rule(case: Case, book: Told) -> None:
    """Lawful until then; and behind a reset a whole life is lawful again."""
    case.play(book)
    case.check([(rule, what) for rule, what, *_ in book.found])
    play(book, "resets; flushed")
    book.found.clear()
    play(book, LIFE)

    assert book.found == []


def test_content_from_before_is_believed() -> None:
    """A book that comes later does not know what was there."""
    book = Told(sees_all=False)
    play(book, "find A 3; hold B@1 by_tier=yes; make 0 B@1 promotes=no known=yes; silent; has A 3 0; has B 1 1")


def test_story_of_the_slot_goes_with_it(book: Told) -> None:
    """The last events, oldest first, with the request."""
    book.slots.step = 3
    play(book, "promotion 0 A@0; publish A")
    rule, _, request, history = book.found[0]

    assert (rule, request) == ("I6", "r")
    assert history == (
        "step 3, slot 0: reserved for a promotion of request r",
        "step 3, slot 0: being promoted by tier job 0",
    )


def test_only_the_last_events_are_kept(book: Told) -> None:
    play(book, "store A@0" + "; hold A@0; release A" * HISTORY)

    assert book.slots.history(0) == ("step 0, slot 0: held for a load of request r",) * HISTORY


def test_content_that_is_promoted_again_and_again_goes_in_circles(book: Told) -> None:
    """Until something is computed."""
    for number in range(NUM_AGAIN):
        assert book.slots.circles() == ""
        play(book, f"promotion {number} A@0; report {number}; publish A; settled; evict A")

    assert (
        book.slots.circles()
        == f"{key_of('A').hex()} was promoted {NUM_AGAIN} times, and given away each time before it was read"
    )
    assert book.slots.circles() == ""
    play(book, f"promotion {NUM_AGAIN} A@0; progressed; silent")
    assert book.slots.circles() == ""


def test_finished_jobs_are_forgotten_in_the_end(book: Told) -> None:
    """A report of one that was forgotten counts as one of a job that was never made."""
    book.store("A@0")
    for number in range(NUM_ENDED + 1):
        play(book, f"cascade {number} A@0; report {number}; release A by_tier=yes; settled")
    play(book, "silent; report 0; report 1")

    assert [rule for rule, *_ in book.found] == ["I3", "I9"]
