"""The mirror of the watch: each rule is shown falling, and the lawful step that looks most like it is shown silent.

Goal: no missed alarm and no false one. Method: facts are told to a `Mirror` by hand, as the hooks tell them; no engine takes
part. After every violation the same mirror must go on in silence, for what was done is believed.
"""

from __future__ import annotations

import io
import random
import re
from collections.abc import Callable, Iterator, Sequence

import pytest

from blocklife.ledger import Ledger
from blocklife.ledger.invariants import check
from blocklife.recording import Recorder, check_recording
from blocklife.watch import CONNECTOR, RULES, CopyPiece, EngineCopy, Mirror, MirrorSizes, WatchViolation
from blocklife.watch._holders import ALLOCATED, SEALED
from blocklife.watch._ledger import NUM_SPARE
from blocklife.watch._records import NUM_ENDED
from tests.plays import play
from tests.watch.script import Case, cases

IS_TOLD = [True]
"""Whether the mirrors have ledgers, which hear of jobs."""


@pytest.fixture(autouse=True, params=[True, False], ids=["jobs told", "jobs not told"])
def jobs_are_told(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every rule must fall and be silent both ways."""
    IS_TOLD[0] = bool(request.param)
    yield
    IS_TOLD[0] = True


class Told:
    """A mirror, and all that it told. Each of its methods that says nothing else is an event of the tables."""

    def __init__(
        self,
        num_blocks: int = 16,
        *,
        checked: bool = True,
        num_slots: int = 32,
        num_workers: int = 1,
        blocks_per_slot: int = 1,
        sample: int = 1,
        max_jobs: int = 4096,
    ) -> None:
        self._checked = checked
        self._stores: list[EngineCopy] = []
        self._loads: list[EngineCopy] = []
        self.found: list[WatchViolation] = []
        self.mirror = Mirror(
            MirrorSizes(num_blocks, 1, num_workers, num_slots, blocks_per_slot, max_jobs),
            sample=sample,
            is_told=IS_TOLD[0],
            tell=self.found.extend,
            minded=lambda what: what(),
        )

    # --- facts

    def give(self, request: str, blocks: Sequence[int], at: int = 0, group: int = 0) -> None:
        """Hand blocks out, for places from *at* on."""
        chosen = [(at + place, block) for place, block in enumerate(blocks) if self.mirror.follows(block)]
        self.mirror.handed_out(request, group, [block for _, block in chosen], [place for place, _ in chosen])

    def hit(self, request: str, blocks: Sequence[int], at: int = 0, group: int = 0) -> None:
        """Take blocks, for places from *at* on."""
        self.mirror.taken(request, group, blocks, range(at, at + len(blocks)))

    def hold(self, blocks: Sequence[int]) -> None:
        """The connector takes blocks."""
        self.mirror.taken(CONNECTOR, 0, blocks, [None] * len(blocks))

    def drop(self, blocks: Sequence[int], left: Sequence[int]) -> None:
        """The connector lets go of blocks, or the engine of what somebody gave up; *left* are the engine's counts."""
        self.mirror.freed(CONNECTOR, blocks, left)

    def free(self, request: str, blocks: Sequence[int], left: Sequence[int] | None = None, whole: bool = False) -> None:
        """A request lets go of blocks."""
        self.mirror.freed(request, blocks, left, whole=whole)

    def gone(self, request: str) -> None:
        """A request has given up its blocks."""
        self.mirror.gone(request)

    def end(self, request: str, blocks: Sequence[int]) -> None:
        """A request ends, and its blocks are freed."""
        self.mirror.ended(request)
        self.mirror.freed(request, [block for block in blocks if self.mirror.follows(block)], whole=True)
        self.mirror.gone(request)

    def report(self, job: int, count: int = 1) -> None:
        """So many workers have ended a job."""
        self.mirror.reported(job, count)

    def reset(self) -> None:
        """All copies are abandoned, and the host's content is forgotten."""
        self.mirror.reset()

    def store(self, number: int, request: str, *pieces: object) -> None:
        """The next step makes a store; `pieces_of` reads its pieces."""
        self._stores.append(EngineCopy(number, request, pieces_of(pieces)))

    def load(self, number: int, request: str, *pieces: object, sync: bool = False) -> None:
        """The next step makes a load."""
        self._loads.append(EngineCopy(number, request, pieces_of(pieces), sync))

    def step(self, *copies: EngineCopy, waits: Sequence[int] = (), loads: Sequence[EngineCopy] = ()) -> None:
        """One step; *copies* are stores."""
        stores, loads = [*self._stores, *copies], [*self._loads, *loads]
        self._stores, self._loads = [], []
        self.mirror.step(stores=list(map(self._sampled, stores)), loads=list(map(self._sampled, loads)), waits=waits)
        if self._checked and IS_TOLD[0]:
            assert check(self.mirror.ledger) == []

    # --- what must be so

    def silent(self) -> None:
        """Nothing has fallen so far."""
        assert self.found == []

    def unheld(self) -> None:
        """Nobody holds anything."""
        assert self.mirror.holders.where == {}

    def counted(self, name: str, count: int) -> None:
        """So often; *name* has underscores in the place of blanks."""
        assert self.mirror.counts[name.replace("_", " ")] == count

    def loaded(self, count: int) -> None:
        """So many blocks were loaded, as far as the ledger was told."""
        assert not IS_TOLD[0] or self.mirror.ledger.counts.moved["LOAD"] == count

    def of_job(self, number: int) -> None:
        """The last violation is of this job."""
        assert self.found[-1].job == number

    def _sampled(self, copy: EngineCopy) -> EngineCopy:
        """What the hooks tell of a copy: the pieces that are followed."""
        return copy._replace(pieces=[piece for piece in copy.pieces if self.mirror.follows(piece.block)])

    @property
    def rules(self) -> list[str]:
        """The rules that fell."""
        return [violation.rule for violation in self.found]


_PIECE = re.compile(r"(\d+)(?:@(\d+|any))?(?:>(\d+))?(?:=(\w+))?(?:\.(\d))?")


def pieces_of(words: Sequence[object]) -> list[CopyPiece]:
    """The pieces of a copy: ``block@position>slot=key.part``.

    What is not said follows from the piece before: the next position (from 0), the next slot (from one that is said). A key not
    said is that of the block.
    """
    found: list[CopyPiece] = []
    position: int | None = 0
    slot: int | None = None
    for word in words:
        match = _PIECE.fullmatch(str(word))
        assert match is not None, word
        block, at, into, key, part = match.groups()
        position = position if at is None else None if at == "any" else int(at)
        slot = slot if into is None else int(into)
        name = f"k{block}" if key is None else key
        found.append(CopyPiece(0, int(block), position, slot, name.encode(), int(part or 0)))
        position, slot = (None if each is None else each + 1 for each in (position, slot))
    return found


def copy(number: int, request: str | None, *blocks: int, at: int | None = 0, slot: int | None = None) -> EngineCopy:
    """A job of blocks in a row; slots in a row too, from *slot* on, under keys that name the blocks."""
    pieces = [
        CopyPiece(0, block, None if at is None else at + index, None if slot is None else slot + index, b"k%d" % block)
        for index, block in enumerate(blocks)
    ]
    return EngineCopy(number, request, pieces)


def quiet(told: Told) -> None:
    """An ordinary life of blocks that nothing was done to yet must be silent."""
    before = len(told.found)
    play(told, "give z [14,15]; step; store 900 z 14>30 15; step")
    told.report(900, told.mirror.num_workers)
    play(told, "step; end z [14,15]; step")

    assert told.found[before:] == []


CASES = cases("""
# --- a lawful life
life silent
    # handed out, computed, stored, let go, handed out behind a wait, loaded from the host: nothing is passed over
    give a [1,2]; store 0 a 1>0 2; step; end a [1,2]; give b [1]; step waits=[0]; report 0; give c [2,3]
    load 1 c 3@1>0=k1; step; report 1; step; counted jobs 2; counted not_followed 0; loaded 1
hit-is-no-new-tenancy silent
    # a block that another request hits keeps its life, whoever lets go first
    give a [1]; hit b [1]; step; end a [1]; store 0 b 1; step; report 0; end b [1]; step
unneeded-wait silent
    # a step may wait for a job that touches nothing it hands out
    give a [1]; store 0 a 1; step; give b [2]; step waits=[0]
slot-freed-for-a-store-of-its-own-step silent
    # what was reported before the step made room in the host for it, although the store goes ahead of the step's hand-outs
    give a [1,2]; store 0 a 1>5; step; report 0; end a [1,2]; give b [2]; store 1 a 2@1>5; step waits=[1]
store-that-its-own-step-waits-for-reads-the-old-life silent
    # it is launched before the step computes
    give a [1]; step; end a [1]; give b [1]; store 0 a 1; step waits=[0]

# --- I1
handed-out-while-read I1 handed out to b while job 7 of request a reads it
    give a [1]; store 7 a 1; step; end a [1]; give b [1]; step; of_job 7
one-missing-wait-is-one-violation I1
    give a [1,2,3]; store 7 a 1 2 3; step; end a [1,2,3]; give b [1,2,3]; step
handed-out-while-loaded I1 writes it
    # no wait helps there: a load holds its target until it has landed
    give a [1]; load 3 a 1; step; end a [1]; give b [1]; step waits=[3]
two-stores-write-one-slot I1 overwrites slot 5 while job 0 writes it
    give a [1,2]; store 0 a 1>5; step; store 1 a 2@1>5; step
two-slots-into-one-block I1 twice
    give a [1]; load 0 a 1@any>3 1@any; step; report 0; step
one-job-writes-a-slot-twice I1 job 0 writes slot 3 twice
    give a [1,2]; step; store 0 a 1>3 2>3; step

# --- I3, I9
report-of-a-job-never-made I3
    report 5; step
number-used-twice I3
    # the older job of the number counts as over
    give a [1,2]; store 0 a 1; step; store 0 a 2@1; step

# --- I4
freed-by-another I4
    give a [1]; step; free b [1]; step; end a [1]; step
freed-twice I4
    give a [1]; step; free a [1]; free a [1]; step
held-and-handed-out I4 while a holds it
    # all who held it hold it no more: their release is not told of again as theirs, but as nobody's
    give a [1]; step; give b [1]; step; end b [1]; step
freed-later-in-nobodys-name silent
    # of two holders of a block, the engine means the one that has left, although the other came first
    give a [1]; hit b [1]; step; gone b; drop [1] [1]; end a [1]; step; unheld
back-before-its-blocks-are-freed silent
    # the request then holds a block twice for a while
    give a [1]; step; gone a; hit a [1]; step; drop [1] [1]; end a [1]; step; unheld
taken-without-a-word silent
    # the engine counts as many holds afterwards as are known: the one that went was not among them
    give a [1]; step; drop [1] [1]; step; end a [1]; step
never-seen-and-freed silent
    # it was handed out before the watch came
    free a [3]; step
connector-holds-twice silent
    # two transfers of one block, two holds
    give a [1]; step; hold [1]; hold [1]; end a [1]; step; drop [1] [1]; step; free x []; step; drop [1] [0]; step; unheld
connector-holds-twice-by-one-call silent
    # as SimpleCPUOffload of 0.33.0 does when a window has left a block that the pool has handed out again
    give a [1]; step; hold [1,1]; step; drop [1,1] [1,1]; end a [1]; step
handed-out-twice-at-once I4
    give a [1,1]; step; end a [1,1]; step
engine-counts-less I4
    # a hold was let go of twice within the pool
    give a [1]; step; hit b [1]; step; free b [1] [0]; step

# --- I6
slot-loaded-while-written I6 still writes it
    give a [1]; store 0 a 1>4; step; give b [2]; load 1 b 2>4; step
slot-with-something-else I6 it holds 6b31, not 6b32
    give a [1]; store 0 a 1>4; step; report 0; give b [2]; load 1 b 2>4; step
hit-while-its-load-is-planned-and-out I6+I6 while its load is planned // while its load is out
    give a [1]; hit b [1]; load 0 a 1; step; hit c [1]; step
connector-holds-the-target-of-its-load silent
    # it takes the block to keep it, not to read it; the load is followed all the same, to its end or to its request's
    give a [1]; hold [1]; load 0 a 1; step; end a [1]; step; report 0; drop [1] [0]; give b [1]; step; counted not_followed 0
load-within-the-step-is-hit-in-it silent
    # a synchronous load is over where its content is first asked for
    give a [1,2]; hit b [1]; load 0 a 1 2 sync=yes; step; report 0; store 1 b 1; step; report 1; step; loaded 2
hit-of-what-was-never-computed I6 although its content was never computed
    # a request was thrown out of the step that gave it the block; whoever finds its content finds nothing
    give a [1]; free a [1] whole=yes; step; hit b [1]; step
let-go-by-itself-in-its-step silent
    # a window may slide on within one step; the request is in it all the same
    give a [1,2]; free a [1]; step; hit b [1]; step
hit-at-two-places I6
    give a [1]; step; hit b [1,1]; step; end b [1,1]; end a [1]; step

# --- I7
overwritten-while-loaded I7 overwrites slot 4 while job 1 loads from it
    give a [1,2]; store 0 a 1>4; step; report 0; give b [3]; load 1 b 3>4=k1; step; store 2 a 2@1>4; step
hit-of-what-was-just-handed-out I7
    # what its lookup counted on was evicted for it in between
    give a [1] at=3; hit a [1]; step
load-into-another-place I7+I7+I7
    # blocks of the request, in another order; and a block that it does not hold
    give a [1,2]; load 0 a 2>3 1; step; report 0; give b [3]; step; load 1 a 3@any>3; step

# --- I8
stored-life-is-over I8 that life of it is over
    # the window has left it, and it was handed out again: its new content is stored under the old name
    give a [1]; step; free a [1]; give b [1]; step; store 0 a 1; step
stored-for-another-place I8 where block 1 stands
    give a [1,2]; store 0 a 2@0; step
let-go-but-not-handed-out silent
    # a life goes on until its block has another tenant
    give a [1]; step; free a [1]; store 0 a 1; step
stored-behind-a-tenant-that-never-computed silent
    # it got the block and was thrown out of the same step; each store of what was there before is right
    give a [1]; step; free a [1]; give b [1]; free b [1] whole=yes; step
    store 0 a 1; step; report 0; store 1 a 1; step; report 1; counted believed 0
stored-and-hit-behind-a-tenant-that-never-computed I6 although its content was never computed
    # a store of what the block held before does not bring what its latest tenant was to compute
    give a [1]; step; free a [1]; give b [1]; free b [1] whole=yes; step; store 0 a 1; step; report 0; hit c [1]; step
request-that-comes-back silent
    # what stood at its places before it was preempted says nothing about where blocks stand now
    give a [1,2]; step; free a [1,2] whole=yes; gone a; give a [3]; step; store 0 a 3 4; step
finished-request-is-stored-once-more I8
    # its table is known for the step after its end
    give a [1,2]; step; end a [1,2]; store 0 a 2@0; step; step; step; step

# --- I10, I14
load-while-its-own-store-is-out I10
    # neither order of the two would be right
    give a [1]; store 0 a 1; step; give a [2] at=1; load 1 a 2@1; step
load-behind-a-reset silent
    # the store is unwanted then, and its late report is lawful
    give a [1]; store 0 a 1; step; reset; give a [2] at=1; load 1 a 2@1; step; report 0; report 0; step; counted late 1
second-reset silent
    # a copy that a reset has abandoned is abandoned again, whether it is out or was waited for; its late report is lawful
    give a [1,2]; store 0 a 1; store 1 a 2@1; step; step waits=[1]; reset; reset; step; report 0 2; report 1 2; step
stored-twice-at-once I14+I1
    # the second store is not followed, but waited for
    give a [1]; store 0 a 1; step; store 1 a 1; step; report 0; end a [1]; give b [1]; step; of_job 1
stored-again-when-the-first-has-landed silent
    # the host may have dropped it
    give a [1]; store 0 a 1>3; step; report 0; store 1 a 1>7; step; counted not_followed 0
""")

OF_TWO_WORKERS = cases("""
reported-by-both silent
    # a copy that has landed on every worker reads nothing any more
    give a [1]; store 7 a 1; step; end a [1]; report 7; report 7; give b [1]; step
reported-by-one I1
    give a [1]; store 7 a 1; step; end a [1]; report 7; give b [1]; step
more-reports-than-workers I9+I9
    # at once, or after the end
    give a [1,2]; store 0 a 1; store 1 a 2@1; step; report 0 3; report 1 2; report 1; step
""")

OF_TWO_BLOCKS_IN_A_SLOT = cases("""
part-never-written I6 nothing was stored in its part 0
    # a chunk was stored in part, and is loaded whole
    give a [1]; store 0 a 1@1>4=chunk.1; step; report 0; give b [2,3]; load 1 b 2>4=chunk.0 3>4=chunk.1; step
part-that-was-written silent
    give a [1]; store 0 a 1@1>4=chunk.1; step; report 0; give b [3] at=1; load 1 b 3@1>4=chunk.1; step
a-store-replaces-all-parts I6 nothing was stored in its part 0
    give a [1,2]; store 0 a 1>4=old.0 2>4=old.1; step; report 0; give b [3]; store 1 b 3@any>4=new.1; step; report 1
    give c [5]; load 2 c 5@any>4=new.0; step
block-of-two-chunks I1
    # chunks that begin alike share blocks and not keys; both stores must be waited for
    give a [1,2]; hit b [1]; give b [3] at=1; store 0 a 1>4=left.0 2>4=left.1; store 1 b 1>5=right.0 3>5=right.1; step; silent
    report 0; end a [1,2]; end b [1,3]; give c [1]; step; of_job 1
""")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_rule_falls_or_is_silent(case: Case) -> None:
    """As the table says; and the mirror goes on."""
    run(case, Told())


@pytest.mark.parametrize("case", OF_TWO_WORKERS.values(), ids=OF_TWO_WORKERS)
def test_rule_falls_or_is_silent_with_two_workers(case: Case) -> None:
    """Half a report is none."""
    run(case, Told(num_workers=2))


@pytest.mark.parametrize("case", OF_TWO_BLOCKS_IN_A_SLOT.values(), ids=OF_TWO_BLOCKS_IN_A_SLOT)
def test_rule_falls_or_is_silent_with_two_blocks_in_a_slot(case: Case) -> None:
    """A slot has parts."""
    run(case, Told(blocks_per_slot=2))


def run(case: Case, told: Told) -> None:
    """Play a case, and see what it told."""
    case.play(told)
    case.check([(each.rule, each.what) for each in told.found])
    quiet(told)


def test_job_of_before_the_watch_may_be_reported() -> None:
    """The watch came to an engine that had made six jobs."""
    told = Told()
    told.mirror.jobs.forgotten = 5
    play(told, "report 5; step; silent; counted late 1")


def test_i6_falls_for_a_slot_in_which_nothing_was_stored() -> None:
    """Of a host whose content was all seen to come; a reset of it is the same."""
    told = Told()
    told.mirror.host.sees_all = True
    play(told, "give a [1]; store 0 a 1>3; step; report 0; give b [2]; load 1 b 2@any>4; step; reset; report 1")
    play(told, "give c [3]; load 2 c 3@any>3; step")

    assert told.rules == ["I6", "I6"]


def test_finished_request_is_forgotten() -> None:
    """Its table is known for the step after its end, and not for ever."""
    told = Told()
    play(told, "give a [1,2]; step; end a [1,2]; step; step; step; step")

    assert len(told.mirror.holders) == 0


def test_counts_name_nothing_that_never_happened() -> None:
    """A store that is followed whole leaves no count of zero."""
    told = Told()
    play(told, "give a [1]; store 0 a 1; step")

    assert told.mirror.counts == {}


def test_load_that_has_landed_has_sealed_its_block() -> None:
    """Its content is final."""
    told = Told()
    play(told, "give c [3]; load 1 c 3>0; step; report 1; step")

    assert told.mirror.holders.lives.state[3] == SEALED


# --- sampling ---------------------------------------------------------------------------------------------------------------


def test_a_sample_follows_its_blocks_and_no_others() -> None:
    """Of four blocks two are followed; a rule falls for one of those, and not for one of the others."""
    told = Told(sample=2)
    told.give("a", [1, 2, 3, 4])
    told.step(copy(0, "a", 1), copy(1, "a", 2, at=1))
    told.end("a", [1, 2, 3, 4])
    told.give("b", [1, 2])
    told.step()

    assert told.rules == ["I1"]
    assert told.found[0].block == 2


def test_a_sample_claims_nothing_of_slots_whose_stores_it_does_not_follow() -> None:
    """A slot that was overwritten from a block that is not followed may be loaded into one that is."""
    told = Told(sample=2)
    told.give("a", [2, 3])
    told.step(copy(0, "a", 2, slot=4))
    told.mirror.reported(0, 1)
    told.step(copy(1, "a", 3, at=1, slot=4))
    told.mirror.reported(1, 1)
    told.give("b", [6])
    told.step(loads=[EngineCopy(2, "b", [CopyPiece(0, 6, 0, 4, b"k3")])])

    assert told.found == []


@pytest.mark.parametrize("sample", [1, 2, 3, 7])
def test_a_lawful_engine_is_silent_in_any_sample(sample: int) -> None:
    """Random lawful traffic, the same for each sample: no rule falls, and in a whole sample nothing is passed over."""
    told = Told(24, sample=sample, num_workers=2)
    for _ in lawful(told, random.Random(5), 400):
        pass

    assert told.found == []
    if sample == 1:
        assert told.mirror.counts["not followed"] == 0


def lawful(told: Told, dice: random.Random, steps: int) -> Iterator[None]:
    """A small engine that obeys all rules: requests come, grow, are stored, load, and go; blocks are used again at once."""
    free, held = list(range(1, 24)), dict[str, list[int]]()
    content, stored = dict[int, bytes](), dict[int, bytes]()
    out: dict[int, tuple[list[int], list[int], bool]] = {}
    spare = list(range(32))
    serial = made = 0
    for _ in range(steps):
        stores, loads, given = [], [], set[int]()
        for number in [each for each in out if dice.random() < 0.5]:
            blocks, slots, is_store = out.pop(number)
            told.mirror.reported(number, told.mirror.num_workers)
            for block, slot in zip(blocks, slots, strict=True):
                if is_store:
                    stored[slot] = content[block]
                else:
                    content[block] = stored[slot]
        loading = {block for blocks, _, is_store in out.values() if not is_store for block in blocks}
        for name in [each for each in held if dice.random() < 0.2 and not loading & set(held[each])]:
            told.end(name, held[name])
            free += held.pop(name)
        count = dice.randint(1, 3)
        if len(free) >= count and dice.random() < 0.8:
            serial += 1
            name = f"r{serial}"
            held[name] = [free.pop(0) for _ in range(count)]
            given |= set(held[name])
            told.give(name, held[name])
            ready = [slot for slot in stored if slot not in spare and all(slot not in slots for _, slots, _ in out.values())]
            if ready and dice.random() < 0.4:
                pieces = [CopyPiece(0, held[name][0], 0, ready[0], stored[ready[0]])]
                loads.append(EngineCopy(made, name, pieces))
                out[made] = ([held[name][0]], [ready[0]], False)
                made += 1
            else:
                for block in held[name]:
                    content[block] = b"%s %d" % (name.encode(), block)
        waits = [number for number, (blocks, _, is_store) in out.items() if is_store and given & set(blocks)]
        busy = {block for blocks, _, _ in out.values() for block in blocks}
        for name, blocks in held.items():
            new = [block for block in blocks if block not in busy and content.get(block, b"") not in (b"", *stored.values())]
            chosen = [(at, block) for at, block in enumerate(blocks) if block in new]
            if chosen and spare and dice.random() < 0.3 and not any(each.request == name for each in loads):
                at, block = chosen[0]
                slot = spare.pop(0)
                stores.append(EngineCopy(made, name, [CopyPiece(0, block, at, slot, content[block])]))
                out[made] = ([block], [slot], True)
                made += 1
        if not spare:
            idle = [slot for slot in stored if all(slot not in slots for _, slots, _ in out.values())]
            for slot in idle:
                del stored[slot]
            spare += idle
        told.step(*stores, loads=loads, waits=waits)
        yield


# --- a long run, and a recording of it ------------------------------------------------------------------------------------


def longest_table(ledger: Ledger) -> int:
    """The length of the longest block table."""
    groups = range(ledger.limits.num_groups)
    return max(ledger.requests.size(name, group) for name in ledger.requests for group in groups)


def test_a_long_run_keeps_only_what_is_alive() -> None:
    """After as many steps again nothing has grown but what is bounded by the number of places."""
    told = Told(24, checked=False)
    sizes, longest = [], list[int]()
    for step, _ in enumerate(lawful(told, random.Random(11), 3000)):
        if step in (999, 2999):
            mirror, jobs, holders = told.mirror, told.mirror.jobs, told.mirror.holders
            sizes.append(
                {
                    "holders": len(holders),
                    "held": len(holders.where),
                    "jobs": len(jobs),
                    "touching": len(jobs.touching),
                }
            )
            if IS_TOLD[0]:
                requests = mirror.ledger.requests
                sizes[-1] |= {"requests of the ledger": len(requests), "jobs of the ledger": mirror.ledger.jobs.live}
                longest.append(longest_table(mirror.ledger))

    assert told.found == []
    assert not IS_TOLD[0] or check(told.mirror.ledger) == []
    assert max(longest, default=0) <= 64
    for size in sizes:
        assert all(count <= 96 for count in size.values()), size
    assert len(told.mirror.jobs._ended) <= NUM_ENDED


def test_ledger_has_the_lives_of_the_mirror() -> None:
    """The mirror asks it nothing, so what is recorded is only right while both count the same lives, after each step."""
    IS_TOLD[0] = True
    told = Told(24)
    lives, blocks = told.mirror.holders.lives, told.mirror.ledger.blocks
    for _ in lawful(told, random.Random(7), 300):
        assert list(lives.epoch[:24]) == list(blocks.epochs[:24])
        held = [block for block in range(1, 24) if lives.state[block] in (ALLOCATED, SEALED)]
        assert [block for block in range(1, 24) if blocks.refs(block)] == held
        assert [lives.group[block] for block in held] == [blocks.group(block) for block in held]

    assert max(lives.epoch) > 8  # many lives each


def test_what_the_connector_always_holds_does_not_grow() -> None:
    """Its holds never all end at the same time; the ledger's tables stay short nevertheless."""
    told = Told(checked=False)
    told.give("a", [1, 2])
    told.step()
    told.mirror.taken(CONNECTOR, 0, [1], [None])
    for each in range(2000):
        told.mirror.taken(CONNECTOR, 0, [2 - each % 2], [None])
        told.mirror.freed(CONNECTOR, [1 + each % 2], [2])
        told.step()

    assert told.found == []
    assert len(told.mirror.holders.where) == 2
    if not IS_TOLD[0]:
        return
    assert len(told.mirror.ledger.requests) <= 4
    assert longest_table(told.mirror.ledger) <= 64


def test_copies_without_a_named_slot_give_their_places_back() -> None:
    """More of them than there are spare slots, one after the other."""
    told = Told(num_slots=0, checked=False)
    told.give("a", [1, 2, 3, 4])
    told.step()
    for number in range(NUM_SPARE // 4 + 8):
        told.step(copy(number, "a", 1, 2, 3, 4))
        told.mirror.reported(number, 1)

    assert told.found == []
    assert told.mirror.counts["not followed"] == 0


def test_more_copies_than_spare_slots_are_waited_for_all_the_same() -> None:
    """What the ledger has no room for is counted, and its rules are still kept."""
    told = Told(num_slots=0, max_jobs=2)
    told.give("a", [1, 2, 3])
    told.step(copy(0, "a", 1), copy(1, "a", 2, at=1), copy(2, "a", 3, at=2))
    told.end("a", [1, 2, 3])
    told.give("b", [3])
    told.step()

    assert told.mirror.counts["not followed"] == IS_TOLD[0]
    assert told.rules == ["I1"]
    assert told.found[0].job == 2


def test_a_recording_of_a_mirror_is_legal() -> None:
    """Violations included: the ledger only ever does what its tables allow."""
    IS_TOLD[0] = True
    bytes_written = io.BytesIO()
    stream = io.TextIOWrapper(bytes_written, encoding="utf-8")
    told = Told(24)
    recorder = Recorder(stream)
    recorder.begin(told.mirror.ledger)
    for _ in lawful(told, random.Random(3), 100):
        pass
    told.give("z", [1], at=3)
    told.hit("z", [1])
    told.step(waits=told.mirror.jobs.left_behind())
    recorder.end()
    stream.flush()
    bytes_written.seek(0)
    verdict = check_recording(bytes_written)

    assert told.rules
    assert verdict.clean, verdict
    assert verdict.complete


# --- the story --------------------------------------------------------------------------------------------------------------


def test_a_violation_is_a_story() -> None:
    """It has the rule and its words, the block, its life, what happened to it with step, request and job, and a command."""
    told = Told()
    told.mirror.story.draw = "draw --block {block}"
    told.give("a", [1])
    told.step(copy(7, "a", 1))
    told.mirror.noted("the prefix cache is reset")
    told.end("a", [1])
    told.give("b", [1])
    told.step()
    text = str(told.found[0])

    assert text.splitlines()[0].startswith("I1 at step 2: ")
    assert RULES["I1"] in text
    assert "step 1, life 1: handed out to a (group 0, position 0)" in text
    assert "step 1, life 1: job 7 stores it of request a" in text
    assert "step 2: the prefix cache is reset" in text
    assert text.endswith("to draw it: draw --block 1")


def test_an_error_of_the_mirror_is_minded_and_not_raised() -> None:
    """The engine goes on; whoever made the mirror decides."""
    errors: list[type[Exception]] = []

    def minded(what: Callable[[], object]) -> None:
        try:
            what()
        except Exception as error:
            errors.append(type(error))

    mirror = Mirror(MirrorSizes(4), tell=lambda found: None, minded=minded, is_told=IS_TOLD[0])
    mirror.handed_out("a", 0, [99], [0])  # a block that is not there
    mirror.step()

    assert errors == [IndexError]
