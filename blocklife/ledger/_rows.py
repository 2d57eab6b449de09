"""The verbs that this package's own scheduler calls: of many requests at once, known by their rows of progress.

Rules of this file:

* What a scheduler gives was checked where it came in, and is of the right types; the kernel checks that it is legal.
* As any verb: all or none. One without `verb` is made within a call of the scheduler, which words what the kernel refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from blocklife.core import _plans as plans
from blocklife.core import _steps as steps
from blocklife.core import _verbs as verbs
from blocklife.core import _visits as visits
from blocklife.core._progress import EntrySpans, Span, TokenProgress
from blocklife.core._steps import StepGrowth, StoreTurn
from blocklife.core._tables import STORE
from blocklife.errors import BlocklifeError, CapacityError, MisuseError
from blocklife.ledger import _edge as edge
from blocklife.ledger._checks import Checks
from blocklife.ledger._journal import end, verb
from blocklife.ledger._plan import plan_of
from blocklife.ledger._planning import Planning
from blocklife.ledger._state import LedgerData
from blocklife.ledger.jobs import JobColumns
from blocklife.ledger.records import Completion, Launched, Plan

SealedContent: TypeAlias = tuple[int, Sequence[int], Sequence[bytes]]
"""Blocks of one group whose content is final: the group, their lives and keys."""


class RowVerbs:
    """Changes that one ledger makes for its scheduler."""

    def __init__(self, data: LedgerData, check: Checks, planning: Planning) -> None:
        self._core, self._check, self._incarnation = data.core, check, data.incarnation
        self._refusals, self._planning = data.refusals, planning
        self._calls = data.journal
        self.data = data
        """What snapshots of the ledger are made of, and their names."""

    def home(self, name: str) -> tuple[int, int]:
        """The row of a request in the ledger, and which of those that had it it is (`Requests.came`)."""
        row = self._core.requests.by_name[name]
        return row, self._core.requests.came[row]

    def name_gone(self, of_gone: Callable[[int], BlocklifeError]) -> None:
        """What to say of a request, by its row of progress, that was ended beside its scheduler."""
        self._refusals.of_gone = of_gone

    def leave_spans(self, progress: TokenProgress, spans: EntrySpans) -> None:
        """Release these blocks, which have left the windows of their requests. Edges: as `Ledger.release`."""
        steps.leave_spans(self._core, progress, spans)
        end(self._calls)

    def grow(self, progress: TokenProgress, spans: EntrySpans) -> None:
        """Extend tables by these entries (`_steps.grow`). Edges: as `Ledger.allocate`."""
        steps.grow(self._core, progress, spans)
        end(self._calls)

    def place(self, progress: TokenProgress, grown: StepGrowth) -> None:
        """The engine's allocator has extended tables: by hits, then by blocks that it has handed out (`observe_place`)."""
        steps.place(self._core, progress, grown)
        end(self._calls)

    def seals_of(
        self, progress: TokenProgress, spans: EntrySpans, keys: Sequence[Sequence[bytes]]
    ) -> list[tuple[int, list[int], list[bytes]]]:
        """The blocks of requests that are full, with their keys, group by group (`_steps.seals_of`)."""
        return steps.seals_of(self._core, progress, spans, keys)

    def promise(
        self, progress: TokenProgress, spans: EntrySpans, keys: Sequence[Sequence[bytes]], turn: StoreTurn | None
    ) -> list[int]:
        """Seal what a step will fill, as far as it can be sealed now (`_steps.promise`). Edges: as `Ledger.seal`."""
        late = steps.promise(self._core, progress, spans, keys, turn)
        end(self._calls)
        return late

    def slots_behind(self, progress: TokenProgress, group: int, row: int, start: int, stop: int, size: int) -> list[int]:
        """The slots with the content of chunks of a request (`_steps.slots_behind`)."""
        return steps.slots_behind(self._core, progress, group, row, start, stop, size)

    def offer_spans(
        self,
        progress: TokenProgress,
        spans: EntrySpans,
        keys: Sequence[Sequence[bytes]],
        turn: StoreTurn,
        early: bool,
    ) -> bool:
        """Chunks of one block that requests have filled have their turn (`_steps.offer_spans`); no place takes a step."""
        return steps.offer_spans(self._core, progress, spans, keys, turn, early)

    def offer_life(self, group: int, row: int, life: int, key: bytes, turn: StoreTurn, early: bool) -> bool:
        """The same of a block that a request has handed off (`_steps.offer_life`)."""
        return steps.offer_life(self._core, group, row, life, key, turn, early)

    def names_left(self, progress: TokenProgress, turn: StoreTurn) -> list[tuple[int, bytes]]:
        """Take out of a turn what need not, or cannot, be stored; returns group and key of each block that is left."""
        return steps.names_of(self._core, turn) if steps.leave_out(self._core, progress, turn) else []

    def keys_of_twins(self, turn: StoreTurn) -> list[bytes]:
        """The keys of what has the content of another block of a turn."""
        return [self._core.contents.key[content] for _, _, _, content in turn.twins]

    def end_turn(self, turn: StoreTurn) -> None:
        """All of a turn is stored, or has to wait elsewhere."""
        steps.clear(self._core, turn)

    @verb
    def seal(self, seals: Sequence[SealedContent]) -> None:
        """Seal blocks of requests, all or none. Edges: as `Ledger.seal`."""
        verbs.seal(self._core, seals)

    def dispatch(self, now: float) -> Plan:
        """Submit what can be submitted, and return the plan of this step (`Ledger.dispatch`)."""
        most = self.data.limits.max_plans
        if len(self._core.waiting) >= most:
            raise CapacityError(f"all {most} plans are out; settle one first (max_plans)")
        plan = plan_of(self.data, plans.dispatch(self._core, now))
        end(self._calls)
        return plan

    def settle(
        self,
        plan: int,
        now: float,
        launched: Iterable[Launched],
        completions: Iterable[Completion],
        seals: Sequence[SealedContent],
    ) -> None:
        """Apply what the workers reported after every worker has executed a plan (`Ledger.settle`)."""
        core = self._core
        due = next(iter(core.waiting), None)  # plans are dispatched in order
        if plan != due:
            known = "no plan is out" if due is None else f"plan {due} is next"
            raise MisuseError(f"plan {plan}: it cannot settle now ({known})")
        begun = edge.launches(launched, "launched")
        numbers, workers, oks, missing = self._check.reports(edge.completions(completions, "completions"))
        plans.check_settle(core, plan, numbers, workers, seals)
        self._calls.writes()
        for record in begun:
            self.launch(record, now)
        plans.settle(core, plan, now, numbers, workers, oks, missing, seals)
        end(self._calls)

    def launch(self, record: Launched, now: float) -> None:
        """Note that a worker has launched its share of a job. A job of another incarnation is ignored."""
        if record.job.incarnation == self._incarnation:
            plans.launched(self._core, record.job.number, now)

    def plan_turn(self, progress: TokenProgress, turn: StoreTurn, slots: Sequence[int], most: int) -> list[int]:
        """Store a turn from which nothing is to be left out (`_steps.plan_turn`). Edges: as `Ledger.plan_store`.

        Returns the numbers of the jobs.
        """
        number, rows = self._core.jobs.number, steps.plan_turn(self._core, progress, turn, slots, most)
        end(self._calls)
        return [number[row] for row in rows]

    @verb
    def fill_tables(
        self,
        request: str,
        begins: Sequence[int],
        hits: Sequence[Sequence[int]],
        skips: Sequence[int],
        counts: Sequence[int],
    ) -> None:
        """Fill the empty tables of a request, an entry a group in each list: nulls, a hit, nulls, new blocks.

        Edges: as `Ledger.acquire`, for all hits, then `Ledger.allocate`. Refuses as they do; the request may hold some of it
        then (`Ledger.roll_back`).
        """
        verbs.fill_tables(self._core, self._check.request(request), begins, hits, skips, counts)

    @verb
    def plan_load(
        self,
        progress: TokenProgress,
        spans: Sequence[Span],
        keys: Sequence[Sequence[bytes]],
        slots: Sequence[Sequence[int]],
        size: int,
        *,
        within: bool,
    ) -> None:
        """`Ledger.plan_load` for the request of these spans, in one job (`_steps.plan_load`)."""
        job = steps.plan_load(self._core, progress, spans, keys, slots, size)
        if within:
            self._planning.wait_within(job)

    def begin_tables(self, progress: TokenProgress, row: int, tokens: int) -> None:
        """The tables of a request are filled, and its first *tokens* are final (`_steps.begin_tables`)."""
        steps.begin_tables(self._core, progress, row, tokens)

    def unstored(
        self,
        progress: TokenProgress,
        group: int,
        row: int,
        start: int,
        stop: int,
        size: int,
        keys: Sequence[bytes],
        *,
        every: bool,
    ) -> tuple[list[tuple[int, list[int]]], int]:
        """Chunks of a request that may have to be stored, and how many need not be (`_steps.unstored`)."""
        return steps.unstored(self._core, progress, group, row, start, stop, size, keys, every)

    @verb
    def plan_columns(self, stores: JobColumns) -> list[int]:
        """`Ledger.plan_store` for stores given as columns, which the ledger keeps; returns the numbers of the jobs."""
        rows = self._planning.columns(STORE, edge.columns(stores, "stores", self._core.num_groups))
        return [self._core.jobs.number[row] for row in rows]

    # --- visits -------------------------------------------------------------------------------------------------------------

    @verb
    def ask_to_come(self, blocks: list[int]) -> None:
        """Refuse blocks that no visit could bring, before room is made for their content. Nothing changes."""
        visits.ask_to_come(self._core, blocks)

    @verb
    def visit_to_store(self, request: str, blocks: list[int], keys: list[bytes], slots: list[int]) -> int:
        """A request comes with blocks that its engine has handed out, to store their content; all or none.

        Edges: as `Ledger.add_request`, `observe_place`, `seal` and `plan_store`. Returns the number of the job.
        """
        self._check.newcomer(request)
        return self._core.jobs.number[visits.store(self._core, request, blocks, keys, slots)]

    @verb
    def visit_to_load(self, request: str, blocks: list[int], slots: list[int]) -> int:
        """A request comes with blocks that its engine has handed out, to be filled from slots; all or none.

        Edges: as `Ledger.add_request`, `observe_place` and `plan_load`. Returns the number of the job.
        """
        self._check.newcomer(request)
        return self._core.jobs.number[visits.load(self._core, request, blocks, slots)]

    @verb
    def leave(self, request: str) -> None:
        """A visit is over, and what its blocks keep is forgotten. Edges: as `Ledger.finish`, then `Ledger.drop`."""
        visits.leave(self._core, self._check.request(request))

    # --- requests and blocks by name ----------------------------------------------------------------------------------------

    @verb
    def finish_many(self, requests: Sequence[str]) -> None:
        """Finish several requests at once; a block that several of them hold is released by each. Edges: as `Ledger.finish`."""
        rows = [self._check.request(request) for request in requests]
        if len(set(requests)) != len(rows):
            raise MisuseError(f"{len(rows)} requests cannot be finished at once, for one of them is named twice")
        verbs.finish_many(self._core, rows)

    @verb
    def reopen(self, request: str, position: int, group: int) -> int:
        """The request writes on its final block: that life is over, and another one begins in the same block; returns it.

        Edges: `Ledger.release`, then `Ledger.allocate`; under fence the next plan waits for a store that reads the block.
        Refuses: a block without final content; one that another request holds as well; under hold, one that a store reads.
        Such a block must be copied, and the request writes on the copy.
        """
        row = self._check.request(request)
        self._check.group(group)
        return verbs.reopen(self._core, row, group, position, self._check.reopened(row, position, group))

    @verb
    def hand_out_first(self, lives: Sequence[int]) -> None:
        """Hand out these blocks, if CACHED, before others: their content also exists elsewhere."""
        self._check.pool(own=True)
        verbs.hand_out_first(self._core, lives)

    def violate(self, problem: str) -> None:
        """Handle a broken rule according to the level of checking: raise `InvariantError`, or count it and go on."""
        self._check.violate(problem)
