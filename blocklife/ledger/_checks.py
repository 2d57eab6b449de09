"""From names to rows: the arguments of verbs that name things, and the checks that need more than one of them.

Rules of this file:

* Nothing here changes anything: a check reads, and refuses with the thing, its state and the remedy.
* What the kernel checks is not checked here again; it refuses with a number, and `_refusals` makes the sentence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from blocklife.core._couplings import broken_pair
from blocklife.core._refused import BrokenPair
from blocklife.core._tables import FINISHED, J_FINISH
from blocklife.core._verbs import are_apart
from blocklife.errors import CapacityError, InvariantError, LateError, MisuseError
from blocklife.ledger import _edge as edge
from blocklife.ledger._ids import EPOCH_SHIFT, ID_MASK, NULL
from blocklife.ledger._limits import Checking
from blocklife.ledger._refusals import JOB_EVENTS
from blocklife.ledger._state import LedgerData
from blocklife.ledger.jobs import DIRECTIONS, JOB_STATES
from blocklife.ledger.records import Completion, Direction, JobId, Result, Seal
from blocklife.states import COPYING, KEYED, MACHINES, Job

_BLOCK_STATES = MACHINES["block"].states
_BROKEN = {
    BrokenPair.NAMED: "job {job} is {state}, and block {place} still names it",
    BrokenPair.UNPINNED: "job {job} is {state}, and block {place} has no pin of it (I1)",
    BrokenPair.PUBLISHED: "slot {place} is READY although job {job} is {state} (I6)",
}

_OK, _PLANNED = Result.OK, Job.PLANNED


class Checks:
    """The checks of one ledger. A method is named after what it checks."""

    def __init__(self, data: LedgerData) -> None:
        self._data, self._core, self._incarnation = data, data.core, data.incarnation

    def request(self, request: str) -> int:
        """The row of a request that is not over."""
        try:
            row = self._core.requests.by_name.get(request, -1)
        except TypeError:  # not even hashable
            row = -1
        if row < 0 or self._core.requests.state[row] == FINISHED:
            edge.text(request, "request")
            raise edge.unknown(request)
        return row

    def newcomer(self, request: str) -> None:
        """The name of no request, and there is room for one more."""
        requests = self._core.requests
        row = requests.by_name.get(request, -1)
        if row >= 0 and requests.state[row] != FINISHED:
            raise MisuseError(f"request {request}: it is known already (finish it first)")
        if requests.live >= self._core.max_requests:
            raise CapacityError(f"all {self._core.max_requests} requests are in use; finish one first (max_requests)")

    def group(self, group: int) -> None:
        """One of the groups of this ledger."""
        if type(group) is not int:
            edge.whole(group, "group")
        if not 0 <= group < self._core.num_groups:
            raise MisuseError(f"group {group}: groups are 0 to {self._core.num_groups - 1}")

    def groups(self, groups: int | Sequence[int], count: int) -> list[int]:
        """One group for each of several things; a single group applies to all."""
        if type(groups) is int or not isinstance(groups, Sequence | np.ndarray):
            found = [edge.whole(groups, "groups")] * count
        else:
            found = edge.counts(groups, "groups")
            if len(found) != count:
                raise MisuseError(f"{len(found)} groups and {count} requests do not agree")
        for group in set(found):
            self.group(group)
        return found

    def slots(self, slots: Sequence[int]) -> None:
        """Slots exist, and none is named twice."""
        for slot in slots:
            if not 0 <= slot < self._core.slots.size:
                raise MisuseError(f"slot {slot}: slots are 0 to {self._core.slots.size - 1}")
        if len(set(slots)) != len(slots):
            raise MisuseError(f"slot {Counter(slots).most_common(1)[0][0]}: it is named twice in one call")

    def host_places(self, places: Sequence[int], slots: Sequence[int]) -> None:
        """Host places that are not the slots themselves are distinct and not negative."""
        if places is not slots and places and (len(set(places)) != len(places) or min(places) < 0):
            raise MisuseError("the host places of a job are distinct and not negative")

    def held(self, request: int, group: int) -> list[int]:
        """The table of a request in one group."""
        requests = self._core.requests
        table = request * self._core.num_groups + group
        begin = requests.begin[table]
        return [requests.lives[at] for at in range(begin, begin + requests.length[table])]

    def positions(self, request: int, blocks: Sequence[int], group: int) -> list[int]:
        """Where these blocks are in the table of a request (I4)."""
        where = {life & ID_MASK: at for at, life in enumerate(self.held(request, group)) if life != NULL}
        for block in self.blocks(blocks):
            if block not in where:
                name = self._core.requests.names[request]
                raise MisuseError(f"block {block}: request {name} does not hold it (only its holder may free it)")
        return [where[block] for block in blocks]

    def reopened(self, request: int, position: int, group: int) -> int:
        """The block of final content that this request may write on: it alone holds it, and no store reads it under hold."""
        table, blocks, name = self.held(request, group), self._core.blocks, self._core.requests.names[request]
        if not 0 <= position < len(table) or table[position] == NULL:
            raise MisuseError(f"request {name}: there is no block at position {position} (its table has {len(table)})")
        life = table[position]
        place = life & ID_MASK
        state, refs, epoch = _BLOCK_STATES[blocks.state[place]], blocks.refs[place], blocks.epoch[place]
        if epoch != life >> EPOCH_SHIFT:
            raise MisuseError(
                f"block {place}: cannot reopen its life {life >> EPOCH_SHIFT}, which is over; it is {state.name} in life "
                f"{epoch} (look it up again)"
            )
        if state not in KEYED:
            raise MisuseError(f"block {place}: it is {state.name}, and has no final content to write on (write, and seal it)")
        if refs > 1:
            raise MisuseError(f"block {place}: {refs} requests hold its content (copy it to another block, and write there)")
        if state in COPYING and not self._core.fence:
            raise MisuseError(f"block {place}: a store reads it, and the contract is hold (wait until it has landed)")
        return place

    def job(self, name: JobId) -> int:
        """The row of a job that is known."""
        mine = name.incarnation == self._incarnation
        row = self._core.jobs.by_number.get(name.number, 0) if mine else 0
        if not row and mine and 0 < name.number <= self._core.jobs.last_number:
            raise LateError(f"job {name}: it ended so long ago that it is not known any more (ask sooner, or raise max_jobs)")
        if not row:
            raise MisuseError(f"job {name}: it was never made here (it may be of another incarnation)")
        return row

    def job_rows(self, jobs: Sequence[JobId]) -> list[int]:
        """The rows of jobs that are known, none twice."""
        rows = [self.job(job) for job in jobs]
        if len(set(jobs)) != len(jobs):
            raise MisuseError(f"job {Counter(jobs).most_common(1)[0][0]}: it is named twice in one call")
        return rows

    def alone(self, jobs: Sequence[JobId]) -> list[int]:
        """The rows of jobs that may be given up alone."""
        rows = self.job_rows(jobs)
        for row in rows:
            if DIRECTIONS[self._core.jobs.direction[row]] is Direction.LOAD:
                raise MisuseError(f"job {self._data.id_of(row)}: a load is given up with its request (preempt or finish it)")
        return rows

    def pool(self, own: bool) -> None:
        """Whether the ledger owns the pool (*own*)."""
        if own is not self._data.own_pool:
            verb, other = ("allocate", "observe_place") if own else ("observe_*", "allocate")
            raise MisuseError(f"{verb}: this ledger's blocks are handed out through {other} (own_pool={self._data.own_pool})")

    def blocks(self, blocks: Sequence[int], name: str = "blocks") -> list[int]:
        """Blocks exist, and none is named twice."""
        found = edge.numbers(blocks, name)
        self.apart(found)
        return found

    def apart(self, blocks: list[int]) -> None:
        """The same of numbers that fit 64 bits."""
        if are_apart(self._core, blocks):
            return
        size = self._core.blocks.size
        for block in blocks:
            if not 0 < block < size:
                raise MisuseError(f"block {block}: blocks are 1 to {size - 1} (0 is the null block)")
        twice = next(block for block, count in Counter(blocks).items() if count > 1)
        raise MisuseError(f"block {twice}: it is named twice in one call")

    def reports(self, completions: Sequence[Completion]) -> tuple[list[int], list[int], list[bool], Sequence[tuple[int, ...]]]:
        """Reports as the kernel takes them: the numbers of jobs, workers, whether all went well, and what is missing if any is.

        The number of a job of another incarnation is replaced by 0, which no job has.
        """
        misses = False
        numbers: list[int] = []
        workers: list[int] = []
        oks: list[bool] = []
        for each in completions:
            self.report(each)
            numbers.append(each.job.number if each.job.incarnation == self._incarnation else 0)
            workers.append(int(each.worker))
            oks.append(each.result is _OK)
            misses = misses or bool(each.missing)
        return numbers, workers, oks, [each.missing for each in completions] if misses else ()

    def report(self, completion: Completion) -> None:
        """The worker exists, and what is missing of a job between slots and the store below is a part of it."""
        worker, job = completion.worker, completion.job
        if not 0 <= worker < self._core.num_workers:
            raise MisuseError(f"worker {worker}: there are {self._core.num_workers} (ranks count from 0)")
        row = self._core.jobs.find(job.number) if job.incarnation == self._incarnation else 0
        if row and JOB_STATES[self._core.jobs.state[row]] is _PLANNED:
            raise self._data.refusals.of_job(row, JOB_EVENTS[J_FINISH])
        if row and completion.missing:
            direction, count = DIRECTIONS[self._core.jobs.direction[row]], self._core.jobs.num_slots[row]
            if direction.on_device:
                raise MisuseError(f"job {job}: a {direction.name} cannot miss a part of its content (report Result.FAILED)")
            if not 0 <= min(completion.missing) <= max(completion.missing) < count:
                raise MisuseError(f"job {job}: missing {completion.missing[:8]} of {count} slots")

    def judged(self) -> None:
        """Check the couplings of the jobs that took a step with effects in this verb from the other side (a pair assertion)."""
        rows = list(dict.fromkeys(self._core.judged))
        self._core.judged.clear()
        for row in rows:
            broken, place = broken_pair(self._core, row)
            if broken:
                job, state = self._data.id_of(row), JOB_STATES[self._core.jobs.state[row]].name
                self.violate(_BROKEN[BrokenPair(broken)].format(place=place, job=job, state=state))

    def seals(self, seals: Sequence[Seal]) -> list[tuple[int, list[int], Sequence[bytes]]]:
        """Seals as the kernel takes them."""
        found = []
        for each in seals:
            self.group(each.group)
            if len(each.keys) != len(each.lives):
                raise MisuseError(f"{len(each.lives)} blocks to seal and {len(each.keys)} keys do not agree")
            found.append((each.group, edge.numbers(each.lives, "seals.lives"), each.keys))
        return found

    def violate(self, problem: str) -> None:
        """Handle a broken rule according to the level of checking: raise, or count it and go on."""
        self._data.violations += 1
        if self._data.checking is Checking.STRICT:
            raise InvariantError(problem)
