"""The mirror of the watch: each rule is shown falling, and the lawful step that looks most like it is shown silent.

Goal: no missed alarm and no false one. Method: facts are told to a `Mirror` by hand, as the hooks tell them; no engine takes
part. After every violation the same mirror must go on in silence, for what was done is believed.
"""

from __future__ import annotations

import io
import random
from collections.abc import Iterator, Sequence

import pytest

from blocklife.ledger import Ledger
from blocklife.ledger.invariants import check
from blocklife.recording import Recorder
from blocklife.recording._checking import check_recording
from blocklife.watch import CONNECTOR, RULES, CopyPiece, EngineCopy, Mirror, WatchViolation
from blocklife.watch._holders import ALLOCATED, SEALED
from blocklife.watch._jobs import NUM_ENDED, Content, Host
from blocklife.watch._ledger import NUM_SPARE, SHORT

IS_TOLD = [True]
"""Whether the mirrors have ledgers, which hear of jobs."""


@pytest.fixture(autouse=True, params=[True, False], ids=["jobs told", "jobs not told"])
def jobs_are_told(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every rule must fall and be silent both ways."""
    IS_TOLD[0] = bool(request.param)
    yield
    IS_TOLD[0] = True


class Told:
    """A mirror, and all that it told."""

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
        self.found: list[WatchViolation] = []
        self.mirror = Mirror(
            num_blocks,
            num_slots=num_slots,
            num_workers=num_workers,
            blocks_per_slot=blocks_per_slot,
            sample=sample,
            is_told=IS_TOLD[0],
            max_jobs=max_jobs,
            tell=self.found.extend,
            lost=self._lost,
        )

    def _lost(self, error: Exception) -> None:
        raise AssertionError("the mirror has lost its way") from error

    def give(self, request: str, blocks: Sequence[int], at: int = 0, group: int = 0) -> None:
        """Hand blocks out, for places from *at* on."""
        chosen = [block for block in blocks if self.mirror.follows(block)]
        self.mirror.handed_out(request, group, chosen, [at + blocks.index(block) for block in chosen])

    def hit(self, request: str, blocks: Sequence[int], at: int = 0, group: int = 0) -> None:
        """Take blocks, for places from *at* on."""
        self.mirror.taken(request, group, blocks, range(at, at + len(blocks)))

    def end(self, request: str, blocks: Sequence[int]) -> None:
        """A request ends, and its blocks are freed."""
        self.mirror.ended(request)
        self.mirror.freed(request, [block for block in blocks if self.mirror.follows(block)], whole=True)
        self.mirror.gone(request)

    def step(self, *copies: EngineCopy, waits: Sequence[int] = (), loads: Sequence[EngineCopy] = ()) -> None:
        """One step; *copies* are stores."""
        self.mirror.step(
            stores=[self._sampled(each) for each in copies], loads=[self._sampled(each) for each in loads], waits=waits
        )
        if self._checked and IS_TOLD[0]:
            assert check(self.mirror.ledger) == []

    def moved(self, blocks: dict[str, int]) -> bool:
        """Whether so many blocks were moved each way, as far as the ledger was told."""
        return not IS_TOLD[0] or self.mirror.ledger.counts.moved == blocks

    def _sampled(self, copy: EngineCopy) -> EngineCopy:
        """What the hooks tell of a copy: the pieces that are followed."""
        return copy._replace(pieces=[piece for piece in copy.pieces if self.mirror.follows(piece.block)])

    @property
    def rules(self) -> list[str]:
        """The rules that fell."""
        return [violation.rule for violation in self.found]


def copy(
    number: int, request: str | None, *blocks: int, at: int | None = 0, slot: int | None = None, group: int = 0
) -> EngineCopy:
    """A job of blocks in a row; slots in a row too, from *slot* on, under keys that name the blocks."""
    return EngineCopy(
        number,
        request,
        [
            CopyPiece(group, block, None if at is None else at + index, None if slot is None else slot + index, b"k%d" % block)
            for index, block in enumerate(blocks)
        ],
    )


def quiet(told: Told) -> None:
    """An ordinary life of blocks that nothing was done to yet must be silent."""
    before = len(told.found)
    told.give("z", [14, 15])
    told.step()
    told.step(copy(900, "z", 14, 15, slot=30))
    told.mirror.reported(900, told.mirror.num_workers)
    told.step()
    told.end("z", [14, 15])
    told.step()

    assert told.found[before:] == []


# --- a lawful life ------------------------------------------------------------------------------------------------------------


def test_an_ordinary_life_is_silent_and_followed() -> None:
    """Handed out, computed, stored, let go, handed out behind a wait, loaded from the host: no rule, nothing passed over."""
    told = Told()
    told.give("a", [1, 2])
    told.step(copy(0, "a", 1, 2, slot=0))
    told.end("a", [1, 2])
    told.give("b", [1])
    told.step(waits=[0])
    told.mirror.reported(0, 1)
    told.give("c", [2, 3])
    told.step(loads=[EngineCopy(1, "c", [CopyPiece(0, 3, 1, 0, b"k1")])])
    told.mirror.reported(1, 1)
    told.step()

    assert told.found == []
    assert +told.mirror.counts == {"jobs": 2}
    assert told.moved({"STORE": 2, "LOAD": 1})
    assert told.mirror.holders.lives.state[3] == SEALED


def test_a_hit_is_no_new_tenancy() -> None:
    """A block that another request hits keeps its life, whoever lets go first."""
    told = Told()
    told.give("a", [1])
    told.hit("b", [1])
    told.step()
    told.end("a", [1])
    told.step(copy(0, "b", 1))
    told.mirror.reported(0, 1)
    told.end("b", [1])
    told.step()

    assert told.found == []


def test_an_unneeded_wait_is_lawful() -> None:
    """A step may wait for a job that touches nothing it hands out."""
    told = Told()
    told.give("a", [1])
    told.step(copy(0, "a", 1))
    told.give("b", [2])
    told.step(waits=[0])

    assert told.found == []


# --- I1 ---------------------------------------------------------------------------------------------------------------------


def test_i1_falls_where_a_block_that_is_read_is_handed_out_without_a_wait() -> None:
    """The story names the job that reads, and who got the block."""
    told = Told()
    told.give("a", [1])
    told.step(copy(7, "a", 1))
    told.end("a", [1])
    told.give("b", [1])
    told.step()

    assert told.rules == ["I1"]
    assert told.found[0].job == 7
    assert told.found[0].block == 1
    assert "handed out to b while job 7 of request a reads it" in told.found[0].what
    assert any("job 7 stores it of request a" in event for event in told.found[0].history)
    quiet(told)


def test_i1_is_silent_where_the_report_came_first() -> None:
    """A copy that has landed on every worker reads nothing any more."""
    told = Told(num_workers=2)
    told.give("a", [1])
    told.step(copy(7, "a", 1))
    told.end("a", [1])
    told.mirror.reported(7, 1)
    told.mirror.reported(7, 1)
    told.give("b", [1])
    told.step()

    assert told.found == []


def test_i1_falls_where_one_of_two_workers_has_not_reported() -> None:
    """Half a report is none."""
    told = Told(num_workers=2)
    told.give("a", [1])
    told.step(copy(7, "a", 1))
    told.end("a", [1])
    told.mirror.reported(7, 1)
    told.give("b", [1])
    told.step()

    assert told.rules == ["I1"]
    quiet(told)


def test_i1_is_told_once_for_a_job_whose_blocks_are_all_handed_out() -> None:
    """One missing wait is one violation."""
    told = Told()
    told.give("a", [1, 2, 3])
    told.step(copy(7, "a", 1, 2, 3))
    told.end("a", [1, 2, 3])
    told.give("b", [1, 2, 3])
    told.step()

    assert told.rules == ["I1"]
    quiet(told)


def test_i1_falls_where_the_target_of_a_load_is_handed_out() -> None:
    """No wait helps there: a load holds its target until it has landed."""
    told = Told()
    told.give("a", [1])
    told.step(loads=[copy(3, "a", 1)])
    told.end("a", [1])
    told.give("b", [1])
    told.step(waits=[3])

    assert told.rules == ["I1"]
    assert "writes it" in told.found[0].what
    quiet(told)


def test_i1_falls_where_two_stores_write_one_slot() -> None:
    """A slot that is written belongs to its store alone."""
    told = Told()
    told.give("a", [1, 2])
    told.step(copy(0, "a", 1, slot=5))
    told.step(copy(1, "a", 2, at=1, slot=5))

    assert told.rules == ["I1"]
    quiet(told)


def test_a_slot_is_free_for_the_store_that_a_step_makes_and_waits_for() -> None:
    """What was reported before the step made room in the host for it, although the store goes ahead of the step's hand-outs."""
    told = Told()
    told.give("a", [1, 2])
    told.step(copy(0, "a", 1, slot=5))
    told.mirror.reported(0, 1)
    told.end("a", [1, 2])
    told.give("b", [2])
    told.step(copy(1, "a", 2, at=1, slot=5), waits=[1])

    assert told.found == []


def test_a_store_that_its_own_step_waits_for_reads_the_old_life() -> None:
    """It is launched before the step computes, so that a block that the step has handed out is stored as it was."""
    told = Told()
    told.give("a", [1])
    told.step()
    told.end("a", [1])
    told.give("b", [1])
    told.step(copy(0, "a", 1), waits=[0])

    assert told.found == []


def test_i1_falls_for_a_load_of_two_slots_into_one_block() -> None:
    """The watch goes on."""
    told = Told()
    told.give("a", [1])
    told.step(loads=[copy(0, "a", 1, 1, at=None, slot=3)])
    told.mirror.reported(0, 1)
    told.step()

    assert told.rules == ["I1"]


def test_i1_falls_for_a_slot_that_one_job_writes_twice() -> None:
    """A slot that was free twice."""
    told = Told()
    told.give("a", [1, 2])
    told.step()
    told.step(copy(0, "a", 1, slot=3)._replace(pieces=[*copy(0, "a", 1, slot=3).pieces, *copy(0, "a", 2, at=1, slot=3).pieces]))

    assert told.rules == ["I1"]


# --- I3, I9 -----------------------------------------------------------------------------------------------------------------


def test_i3_falls_for_a_report_of_a_job_that_was_never_made() -> None:
    """Nobody made job 5."""
    told = Told()
    told.mirror.reported(5, 1)
    told.step()

    assert told.rules == ["I3"]
    quiet(told)


def test_i3_falls_for_a_name_that_is_used_twice() -> None:
    """The older job of the name counts as over."""
    told = Told()
    told.give("a", [1, 2])
    told.step(copy(0, "a", 1))
    told.step(copy(0, "a", 2, at=1))

    assert told.rules == ["I3"]
    quiet(told)


def test_i9_falls_for_more_reports_than_workers() -> None:
    """At once, or after the end."""
    told = Told(num_workers=2)
    told.give("a", [1, 2])
    told.step(copy(0, "a", 1), copy(1, "a", 2, at=1))
    told.mirror.reported(0, 3)
    told.mirror.reported(1, 2)
    told.mirror.reported(1, 1)
    told.step()

    assert told.rules == ["I9", "I9"]
    quiet(told)


def test_a_job_of_before_the_watch_may_be_reported() -> None:
    """The watch came to an engine that had made six jobs."""
    told = Told()
    told.mirror.jobs.forgotten = 5
    told.mirror.reported(5, 1)
    told.step()

    assert told.found == []
    assert told.mirror.counts["late"] == 1


# --- I4 ---------------------------------------------------------------------------------------------------------------------


def test_i4_falls_where_a_request_frees_what_another_holds() -> None:
    """The hold of the other stays."""
    told = Told()
    told.give("a", [1])
    told.step()
    told.mirror.freed("b", [1])
    told.step()
    told.end("a", [1])
    told.step()

    assert told.rules == ["I4"]
    quiet(told)


def test_i4_falls_where_a_hold_is_let_go_of_twice() -> None:
    """The second release is nobody's."""
    told = Told()
    told.give("a", [1])
    told.step()
    told.mirror.freed("a", [1])
    told.mirror.freed("a", [1])
    told.step()

    assert told.rules == ["I4"]
    quiet(told)


def test_i4_falls_where_a_held_block_is_handed_out() -> None:
    """All who held it hold it no more: their release is not told of again as theirs, but as nobody's."""
    told = Told()
    told.give("a", [1])
    told.step()
    told.give("b", [1])
    told.step()
    told.end("b", [1])
    told.step()

    assert told.rules == ["I4"]
    assert "while a holds it" in told.found[0].what
    quiet(told)


def test_what_a_request_gave_up_may_be_freed_later_in_nobodys_name() -> None:
    """Of two holders of a block, the engine means the one that has left, although the other came first."""
    told = Told()
    told.give("a", [1])
    told.hit("b", [1])
    told.step()
    told.mirror.gone("b")
    told.mirror.freed(CONNECTOR, [1], [1])
    told.end("a", [1])
    told.step()

    assert told.found == []
    assert told.mirror.holders.where == {}


def test_a_request_that_left_may_come_back_before_its_blocks_are_freed() -> None:
    """It then holds a block twice for a while."""
    told = Told()
    told.give("a", [1])
    told.step()
    told.mirror.gone("a")
    told.hit("a", [1])
    told.step()
    told.mirror.freed(CONNECTOR, [1], [1])
    told.end("a", [1])
    told.step()

    assert told.found == []
    assert told.mirror.holders.where == {}


def test_a_hold_that_was_taken_without_a_word_is_let_go_of_without_one() -> None:
    """The engine counts as many holds afterwards as are known: the one that went was not among them."""
    told = Told()
    told.give("a", [1])
    told.step()
    told.mirror.freed(CONNECTOR, [1], [1])
    told.step()
    told.end("a", [1])
    told.step()

    assert told.found == []


def test_a_block_that_was_never_seen_may_be_freed() -> None:
    """It was handed out before the watch came."""
    told = Told()
    told.mirror.freed("a", [3])
    told.step()

    assert told.found == []


def test_the_connector_holds_a_block_as_often_as_it_takes_it() -> None:
    """Two transfers of one block, two holds."""
    told = Told()
    told.give("a", [1])
    told.step()
    for _ in range(2):
        told.mirror.taken(CONNECTOR, 0, [1], [None])
    told.end("a", [1])
    told.step()
    told.mirror.freed(CONNECTOR, [1], [1])
    told.step()
    held = len(told.mirror.holders.where[1])
    told.mirror.freed(CONNECTOR, [1], [0])
    told.step()

    assert told.found == []
    assert held == 1
    assert told.mirror.holders.where == {}


def test_a_connector_may_hold_a_block_twice_by_one_call() -> None:
    """As SimpleCPUOffload of 0.33.0 does when a window has left a block that the pool has handed out again."""
    told = Told()
    told.give("a", [1])
    told.step()
    told.mirror.taken(CONNECTOR, 0, [1, 1], [None, None])
    told.step()
    told.mirror.freed(CONNECTOR, [1, 1], [1, 1])
    told.end("a", [1])
    told.step()

    assert told.rules == []


def test_i4_falls_for_a_block_that_is_handed_out_twice_at_once() -> None:
    """The watch goes on."""
    told = Told()
    told.mirror.handed_out("a", 0, [1, 1], [0, 1])
    told.step()
    told.end("a", [1, 1])
    told.step()

    assert told.rules == ["I4"]


def test_i4_falls_where_the_engine_counts_less_than_there_are() -> None:
    """A hold was let go of twice within the pool."""
    told = Told()
    told.give("a", [1])
    told.step()
    told.hit("b", [1])
    told.step()
    told.mirror.freed("b", [1], [0])
    told.step()

    assert told.rules == ["I4"]


# --- I6 ---------------------------------------------------------------------------------------------------------------------


def test_i6_falls_where_a_slot_is_loaded_that_is_still_written() -> None:
    """The store has not landed."""
    told = Told()
    told.give("a", [1])
    told.step(copy(0, "a", 1, slot=4))
    told.give("b", [2])
    told.step(loads=[copy(1, "b", 2, slot=4)])

    assert told.rules == ["I6"]
    assert "still writes it" in told.found[0].what
    quiet(told)


def test_i6_falls_where_a_slot_holds_something_else() -> None:
    """What was looked up was overwritten since."""
    told = Told()
    told.give("a", [1])
    told.step(copy(0, "a", 1, slot=4))
    told.mirror.reported(0, 1)
    told.give("b", [2])
    told.step(loads=[copy(1, "b", 2, slot=4)])

    assert told.rules == ["I6"]
    assert f"it holds {b'k1'.hex()}, not {b'k2'.hex()}" in told.found[0].what
    quiet(told)


def test_i6_falls_where_a_part_of_a_slot_was_never_written() -> None:
    """A chunk was stored in part, and is loaded whole."""
    told = Told(blocks_per_slot=2)
    told.give("a", [1])
    told.step(EngineCopy(0, "a", [CopyPiece(0, 1, 1, 4, b"chunk", 1)]))
    told.mirror.reported(0, 1)
    told.give("b", [2, 3])
    told.step(loads=[EngineCopy(1, "b", [CopyPiece(0, 2, 0, 4, b"chunk", 0), CopyPiece(0, 3, 1, 4, b"chunk", 1)])])

    assert told.rules == ["I6"]
    assert "nothing was stored in its part 0" in told.found[0].what
    quiet(told)


def test_a_part_of_a_slot_that_was_written_may_be_loaded() -> None:
    """The same store, and a load of just that part."""
    told = Told(blocks_per_slot=2)
    told.give("a", [1])
    told.step(EngineCopy(0, "a", [CopyPiece(0, 1, 1, 4, b"chunk", 1)]))
    told.mirror.reported(0, 1)
    told.give("b", [3], at=1)
    told.step(loads=[EngineCopy(1, "b", [CopyPiece(0, 3, 1, 4, b"chunk", 1)])])

    assert told.found == []


def test_i6_falls_where_a_block_is_hit_whose_load_is_planned_or_out() -> None:
    """Content that is on its way is not there: in the step of the load, and in the next one."""
    told = Told()
    told.give("a", [1])
    told.hit("b", [1])
    told.step(loads=[copy(0, "a", 1)])
    told.hit("c", [1])
    told.step()

    assert told.rules == ["I6", "I6"]
    assert "while its load is planned" in told.found[0].what
    assert "while its load is out" in told.found[1].what
    quiet(told)


def test_a_connector_may_hold_the_target_of_its_load() -> None:
    """It takes the block to keep it, not to read it; the load is followed all the same, to its end or to its request's."""
    told = Told()
    told.give("a", [1])
    told.mirror.taken(CONNECTOR, 0, [1], [None])
    told.step(loads=[copy(0, "a", 1)])
    told.end("a", [1])
    told.step()
    told.mirror.reported(0, 1)
    told.mirror.freed(CONNECTOR, [1], [0])
    told.give("b", [1])
    told.step()

    assert told.found == []
    assert told.mirror.counts["not followed"] == 0


def test_a_load_that_ends_before_the_step_computes_may_be_hit_in_it() -> None:
    """A synchronous load is over where its content is first asked for."""
    told = Told()
    told.give("a", [1, 2])
    told.hit("b", [1])
    load = copy(0, "a", 1, 2)
    told.step(loads=[EngineCopy(0, "a", load.pieces, sync=True)])
    told.mirror.reported(0, 1)
    told.step(copy(1, "b", 1))
    told.mirror.reported(1, 1)
    told.step()

    assert told.found == []
    assert not IS_TOLD[0] or told.mirror.ledger.counts.moved["LOAD"] == 2


def test_i6_falls_where_content_is_hit_that_was_never_computed() -> None:
    """A request was thrown out of the step that gave it the block; whoever finds its content finds nothing."""
    told = Told()
    told.give("a", [1])
    told.mirror.freed("a", [1], whole=True)
    told.step()
    told.hit("b", [1])
    told.step()

    assert told.rules == ["I6"]
    quiet(told)


def test_a_block_that_is_let_go_of_by_itself_in_its_step_was_computed() -> None:
    """A window may slide on within one step; the request is in it all the same."""
    told = Told()
    told.give("a", [1, 2])
    told.mirror.freed("a", [1])
    told.step()
    told.hit("b", [1])
    told.step()

    assert told.found == []


def test_i6_falls_for_a_hit_of_one_block_at_two_places() -> None:
    """The watch goes on."""
    told = Told()
    told.give("a", [1])
    told.step()
    told.hit("b", [1, 1])
    told.step()
    told.end("b", [1, 1])
    told.end("a", [1])
    told.step()

    assert told.rules == ["I6"]


def test_i6_falls_for_a_slot_in_which_nothing_was_stored() -> None:
    """Of a host whose content was all seen to come; a reset of it is the same."""
    told = Told()
    told.mirror.host.sees_all = True
    told.give("a", [1])
    told.step(copy(0, "a", 1, slot=3))
    told.mirror.reported(0, 1)
    told.give("b", [2])
    told.step(loads=[copy(1, "b", 2, at=None, slot=4)])
    told.mirror.reset()
    told.mirror.reported(1, 1)
    told.give("c", [3])
    told.step(loads=[copy(2, "c", 3, at=None, slot=3)])

    assert told.rules == ["I6", "I6"]


# --- I7 ---------------------------------------------------------------------------------------------------------------------


def test_i7_falls_where_a_slot_is_overwritten_that_a_load_reads() -> None:
    """The load has not landed."""
    told = Told()
    told.give("a", [1, 2])
    told.step(copy(0, "a", 1, slot=4))
    told.mirror.reported(0, 1)
    told.give("b", [3])
    told.step(loads=[EngineCopy(1, "b", [CopyPiece(0, 3, 0, 4, b"k1")])])
    told.step(copy(2, "a", 2, at=1, slot=4))

    assert told.rules == ["I7"]
    quiet(told)


def test_i7_falls_where_a_request_hits_what_was_just_handed_out_to_it() -> None:
    """What its lookup counted on was evicted for it in between."""
    told = Told()
    told.give("a", [1], at=3)
    told.hit("a", [1], at=0)
    told.step()

    assert told.rules == ["I7"]
    quiet(told)


def test_i7_falls_for_a_load_into_another_place() -> None:
    """Blocks of the request, in another order; and a block that it does not hold."""
    told = Told()
    told.give("a", [1, 2])
    told.step(loads=[copy(0, "a", 2, 1, slot=3)])
    told.mirror.reported(0, 1)
    told.give("b", [3])
    told.step()
    told.step(loads=[copy(1, "a", 3, at=None, slot=3)])

    assert told.rules == ["I7", "I7", "I7"]


# --- I8 ---------------------------------------------------------------------------------------------------------------------


def test_i8_falls_where_a_block_is_stored_whose_life_is_over() -> None:
    """The window has left it, and it was handed out again: its new content is stored under the old name."""
    told = Told()
    told.give("a", [1])
    told.step()
    told.mirror.freed("a", [1])
    told.give("b", [1])
    told.step()
    told.step(copy(0, "a", 1))

    assert told.rules == ["I8"]
    assert "that life of it is over" in told.found[0].what
    quiet(told)


def test_i8_falls_where_a_block_of_another_place_is_stored() -> None:
    """The second block in the place of the first."""
    told = Told()
    told.give("a", [1, 2])
    told.step(copy(0, "a", 2, at=0))

    assert told.rules == ["I8"]
    assert "where block 1 stands" in told.found[0].what
    quiet(told)


def test_a_block_that_was_let_go_of_but_not_handed_out_may_be_stored() -> None:
    """A life goes on until its block has another tenant."""
    told = Told()
    told.give("a", [1])
    told.step()
    told.mirror.freed("a", [1])
    told.step(copy(0, "a", 1))

    assert told.found == []


def test_a_tenant_that_never_computed_leaves_the_old_content() -> None:
    """It got the block and was thrown out of the same step, so the store of what was there before is right."""
    told = Told()
    told.give("a", [1])
    told.step()
    told.mirror.freed("a", [1])
    told.give("b", [1])
    told.mirror.freed("b", [1], whole=True)
    told.step()
    told.step(copy(0, "a", 1))

    assert told.found == []


def test_second_store_of_content_behind_a_tenant_that_never_computed_is_silent() -> None:
    """The first store says nothing of the block but what it held before: it is not taken for the tenant's content."""
    told = Told()
    told.give("a", [1])
    told.step()
    told.mirror.freed("a", [1])
    told.give("b", [1])
    told.mirror.freed("b", [1], whole=True)
    told.step()
    for number in range(2):
        told.step(copy(number, "a", 1))
        told.mirror.reported(number, 1)

    assert told.found == []
    assert told.mirror.counts["believed"] == 0


def test_i6_falls_where_a_tenant_that_never_computed_is_hit_though_the_old_content_was_stored() -> None:
    """A store of what the block held before does not bring what its latest tenant was to compute."""
    told = Told()
    told.give("a", [1])
    told.step()
    told.mirror.freed("a", [1])
    told.give("b", [1])
    told.mirror.freed("b", [1], whole=True)
    told.step()
    told.step(copy(0, "a", 1))
    told.mirror.reported(0, 1)
    told.hit("c", [1])
    told.step()

    assert told.rules == ["I6"]
    assert "although its content was never computed" in told.found[0].what
    quiet(told)


def test_counts_name_nothing_that_never_happened() -> None:
    """A store that is followed whole leaves no count of zero."""
    told = Told()
    told.give("a", [1])
    told.step(copy(0, "a", 1))

    assert told.mirror.counts == {}


def test_a_request_that_comes_back_is_asked_by_its_new_table() -> None:
    """What stood at its places before it was preempted says nothing about where blocks stand now."""
    told = Told()
    told.give("a", [1, 2])
    told.step()
    told.mirror.freed("a", [1, 2], whole=True)
    told.mirror.gone("a")
    told.give("a", [3], at=0)
    told.step()
    told.step(EngineCopy(0, "a", [CopyPiece(0, 3, 0), CopyPiece(0, 4, 1)]))

    assert told.found == []


def test_a_finished_request_is_stored_once_more_and_then_forgotten() -> None:
    """Its table is known for the step after its end, and not for ever."""
    told = Told()
    told.give("a", [1, 2])
    told.step()
    told.end("a", [1, 2])
    told.step(copy(0, "a", 2, at=0))
    for _ in range(3):
        told.step()

    assert told.rules == ["I8"]
    assert len(told.mirror.holders) == 0


# --- I10, I14 ---------------------------------------------------------------------------------------------------------------


def test_i10_falls_where_a_request_loads_while_its_store_is_out() -> None:
    """Neither order of the two would be right."""
    told = Told()
    told.give("a", [1])
    told.step(copy(0, "a", 1))
    told.give("a", [2], at=1)
    told.step(loads=[copy(1, "a", 2, at=1)])

    assert told.rules == ["I10"]
    quiet(told)


def test_a_request_may_load_after_a_reset_has_forgotten_its_store() -> None:
    """The store is unwanted then, and its late report is lawful."""
    told = Told()
    told.give("a", [1])
    told.step(copy(0, "a", 1))
    told.mirror.reset()
    told.give("a", [2], at=1)
    told.step(loads=[copy(1, "a", 2, at=1)])
    told.mirror.reported(0, 1)
    told.mirror.reported(0, 1)
    told.step()

    assert told.found == []
    assert told.mirror.counts["late"] == 1


def test_i14_falls_where_one_life_is_stored_twice_at_once() -> None:
    """The second store is not followed, but waited for."""
    told = Told()
    told.give("a", [1])
    told.step(copy(0, "a", 1))
    told.step(copy(1, "a", 1))
    told.mirror.reported(0, 1)
    told.end("a", [1])
    told.give("b", [1])
    told.step()

    assert told.rules == ["I14", "I1"]
    assert told.found[1].job == 1
    quiet(told)


def test_a_block_of_two_chunks_may_be_stored_in_both() -> None:
    """Chunks that begin alike share blocks and not keys; both stores must be waited for."""
    told = Told(blocks_per_slot=2)
    told.give("a", [1, 2])
    told.hit("b", [1])
    told.give("b", [3], at=1)
    told.step(
        EngineCopy(0, "a", [CopyPiece(0, 1, 0, 4, b"left", 0), CopyPiece(0, 2, 1, 4, b"left", 1)]),
        EngineCopy(1, "b", [CopyPiece(0, 1, 0, 5, b"right", 0), CopyPiece(0, 3, 1, 5, b"right", 1)]),
    )
    silent = list(told.found)
    told.mirror.reported(0, 1)
    told.end("a", [1, 2])
    told.end("b", [1, 3])
    told.give("c", [1])
    told.step()

    assert silent == []
    assert told.rules == ["I1"]
    assert told.found[0].job == 1


def test_a_life_may_be_stored_again_when_the_first_store_has_landed() -> None:
    """The host may have dropped it."""
    told = Told()
    told.give("a", [1])
    told.step(copy(0, "a", 1, slot=3))
    told.mirror.reported(0, 1)
    told.step(copy(1, "a", 1, slot=7))

    assert told.found == []
    assert told.mirror.counts["not followed"] == 0


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
    assert max(longest, default=0) <= 2 * SHORT
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


def test_second_reset_abandons_what_the_first_has() -> None:
    """A copy that a reset has abandoned is abandoned again, whether it is out or was waited for; its late report is lawful."""
    told = Told()
    told.give("a", [1, 2])
    told.step(copy(0, "a", 1), copy(1, "a", 2, at=1))
    told.step(waits=[1])
    for _ in range(2):
        told.mirror.reset()
    told.step()
    told.mirror.reported(0, 2)
    told.mirror.reported(1, 2)
    told.step()

    assert told.found == []
    assert told.mirror.jobs.left_behind() == []
    quiet(told)


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
    assert longest_table(told.mirror.ledger) <= 2 * SHORT


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


def test_an_error_of_the_mirror_is_handed_over_and_not_raised() -> None:
    """The engine goes on; whoever made the mirror decides."""
    errors: list[Exception] = []
    mirror = Mirror(4, tell=lambda found: None, lost=errors.append, is_told=IS_TOLD[0])
    mirror.handed_out("a", 0, [99], [0])  # a block that is not there
    mirror.step()

    assert len(errors) == 1
    assert mirror.is_torn


def test_contents_of_slots_are_what_the_last_store_said() -> None:
    """A store replaces all that a slot held, also in other parts."""
    host = Host(32, keeps=True)
    host.stored([CopyPiece(0, 1, 0, 3, b"a", 0), CopyPiece(0, 2, 1, 3, b"a", 1)])
    host.stored([CopyPiece(0, 3, 1, 3, b"b", 1)])

    assert host._content == {3: Content(b"b", 0b10)}
