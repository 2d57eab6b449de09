"""The jobs of an engine: what each copies, who has reported, and what of it the ledger follows.

*Rules of this file.* Whether a copy is lawful is asked here, of the pieces that its job names and of what the other jobs that
are out touch; nothing of it is asked of the ledger. The ledger gets what can be followed, for its tables and for a recording,
if it *is told* of jobs at all; what it cannot follow (a second reader of one life, say) is still waited for, because every job
that is out stands in ``touching``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from blocklife.engines.vllm.watch.holders import Holders
from blocklife.engines.vllm.watch.host import Host, Piece
from blocklife.engines.vllm.watch.story import Story
from blocklife.engines.vllm.watch.violations import Violation
from blocklife.errors import CapacityError, MisuseError
from blocklife.ledger import Completion, Ledger, Result, Worker
from blocklife.ledger.places import ID_MASK
from blocklife.ledger.records import JobId
from blocklife.states import Block, BlockLife

NUM_ENDED = 4096
"""Jobs whose end is remembered, so that a repeated report is told from an unknown one."""

_CODE = BlockLife.table.index
_FREED, _ALLOCATED = _CODE[Block.FREED], _CODE[Block.ALLOCATED]
_STORABLE = frozenset((_CODE[Block.SEALED], _CODE[Block.CACHED]))


class Copy(NamedTuple):
    """A job of the engine, as its workers get it."""

    number: int
    request: str | None
    pieces: Sequence[Piece]
    """Those whose blocks are followed."""
    sync: bool = False
    """Of a load: whether it is over before the step computes."""


class Job:
    """A job that the engine has out, or of which not every worker has reported."""

    __slots__ = ("copy", "ids", "is_over", "is_store", "is_unwanted", "reports", "slots", "spare", "targets", "told")

    def __init__(self, copy: Copy, is_store: bool) -> None:
        self.copy = copy
        self.is_store = is_store
        self.ids: tuple[JobId, ...] = ()
        """Its name in the ledger; empty where nothing of it is followed."""
        self.slots: list[int] = []
        """The slots of the engine that it touches."""
        self.spare: list[int] = []
        self.targets: list[int] = []
        """The lives that it fills, where the ledger is not told of it."""
        self.told = 0
        """How many workers the ledger has heard of."""
        self.reports = 0
        self.is_over = False
        """Whether it is known to be quiet, by its reports or by a wait."""
        self.is_unwanted = False
        """Whether a reset has forgotten it."""


class Jobs:
    """All that are out. Invariant: ``touching`` and ``_using`` name exactly the jobs that are not over."""

    def __init__(self, ledger: Ledger, story: Story, holders: Holders, host: Host, *, is_told: bool) -> None:
        self._ledger = ledger
        self._story = story
        self._holders = holders
        self._host = host
        self._state = ledger.blocks.column.state
        self._num_workers = ledger.limits.num_workers
        self._known: dict[int, Job] = {}
        self.touching: dict[int, list[Job]] = {}
        """Block to the jobs that read or write it."""
        self._using: dict[int, list[Job]] = {}
        """The same for slots."""
        # Reports that the ledger has not heard of yet, and the jobs that are over with them.
        self._arrived: list[Completion] = []
        self._landing: dict[int, Job] = {}
        self._ended: OrderedDict[int, bool] = OrderedDict()
        """Jobs that are known no more, and whether a report of them is still lawful."""
        self.forgotten = -1
        """The latest job of before the watch, or a reset: late and repeated reports of it, and of those before, are lawful."""
        self._debts: dict[int, Violation] = {}
        self._is_told = is_told

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._known)

    def left_behind(self) -> list[int]:
        """The jobs that are not known to be over."""
        return [number for number, job in self._known.items() if not job.is_over]

    # --- stores -------------------------------------------------------------------------------------------------------------

    def store(self, copies: Sequence[Copy]) -> None:
        """Ask of each piece of these stores whether it is what the engine says; follow those that are."""
        made = [(job, self._storable(job)) for job in (self._add(copy, is_store=True) for copy in copies)]
        wanted = [(job, good) for job, good in made if good]
        if not self._is_told:
            return
        try:
            self._follow_stores(wanted)
        except (CapacityError, MisuseError):
            for each in wanted if len(wanted) > 1 else ():
                try:
                    self._follow_stores([each])
                except (CapacityError, MisuseError):
                    self._pass_over(*each)
            if len(wanted) == 1:
                self._pass_over(*wanted[0])

    def _storable(self, job: Job) -> list[Piece]:
        """The pieces of a store that can be followed."""
        copy, good = job.copy, list[Piece]()
        if not copy.pieces:
            return good
        self._claim_slots(job)
        for piece in copy.pieces:
            block = piece.block
            rule, what = self._unlawful_store(copy, piece)
            self._touch(job, block)
            if rule:
                self._story.violate(rule, what, block=block, request=copy.request, job=copy.number)
                continue
            self._story.note((block,), "job {} stores it{}", copy.number, of(copy.request))
            if not self._is_told:
                continue
            if self._state[block] == _FREED:
                self._holders.believe(block, piece.group)
            if self._state[block] in _STORABLE:
                good.append(self._in_own_group(piece))
            else:
                self._story.counts["not followed"] += 1
        self._host.stored(copy.pieces)
        return good

    def _unlawful_store(self, copy: Copy, piece: Piece) -> tuple[str, str]:
        """The rule that the store of a piece breaks, and how; empty where it breaks none."""
        block = piece.block
        if wrong := self.not_its_place(copy.request, piece.group, piece.position, block):
            return "I8", f"job {copy.number} stores block {block} for {wrong}"
        for other in self.touching.get(block, ()):
            if other.is_store and not other.is_unwanted and self._same_content(other, piece):
                return "I14", f"job {copy.number} stores block {block} while job {other.copy.number} stores the same life of it"
        if self.is_loading(block):
            return "I6", f"job {copy.number} stores block {block} while its load is out"
        return "", ""

    def is_loading(self, block: int) -> bool:
        """Whether a load that is out fills a block."""
        return any(not job.is_store for job in self.touching.get(block, ()))

    def not_its_place(self, request: str | None, group: int, position: int | None, block: int) -> str:
        """Whether a block holds something else than what a request had at that place; if so, which place, and what is wrong."""
        wanted = self._holders.stands(request, group, position)
        if wanted is None or wanted in (self._holders.life(block), self._holders.content(block)):
            return ""
        where = f"group {group}, position {position}"
        if wanted & ID_MASK != block:
            return f"{where}, where block {wanted & ID_MASK} stands"
        return f"{where}, but that life of it is over: the block was handed out again since"

    def _same_content(self, other: Job, piece: Piece) -> bool:
        """Whether a store that is out stores a block under the same key; chunks that begin alike share blocks, not keys."""
        keys = [each.key for each in other.copy.pieces if each.block == piece.block]
        return piece.key is None or None in keys or piece.key in keys

    def _claim_slots(self, job: Job) -> None:
        """A store overwrites its slots: nobody may write them, or read them, at the same time."""
        for slot in dict.fromkeys(slot for piece in job.copy.pieces if (slot := self._host.slot(piece)) is not None):
            for other in list(self._using.get(slot, ())):
                does, rule = ("writes", "I1") if other.is_store else ("loads from", "I7")
                number = job.copy.number
                what = f"job {number} overwrites slot {slot} while job {other.copy.number} {does} it"
                self._story.violate(rule, what, request=job.copy.request, job=number)
                self.finish(other)
            job.slots.append(slot)
            self._using.setdefault(slot, []).append(job)

    # --- loads --------------------------------------------------------------------------------------------------------------

    def load(self, copy: Copy) -> None:
        """Ask of each piece whether its source has arrived; follow those whose target was handed out for it."""
        job = self._add(copy, is_store=False)
        fresh = self._holders.fresh
        good: list[Piece] = []
        for piece in copy.pieces:
            self._check_source(job, piece)
            self._touch(job, piece.block)
            self._story.note((piece.block,), "job {} loads it{}", copy.number, of(copy.request))
            if piece.block in fresh and self._state[piece.block] == _ALLOCATED:
                good.append(self._in_own_group(piece))
            else:
                self._story.counts["not followed"] += 1
        rows = {each.row for piece in good for each in self._holders.where.get(piece.block, ()) if piece.block in each.held}
        if good and len(rows) == 1:
            for piece in good:
                del fresh[piece.block]
            self._follow_load(job, good, rows.pop())
        if copy.sync:
            self.finish(job)

    def _check_source(self, job: Job, piece: Piece) -> None:
        """A load reads what has arrived, and what it was looked up for."""
        slot = self._host.slot(piece)
        if slot is None:
            return
        number = job.copy.number
        what = ""
        for other in list(self._using.get(slot, ())):
            if other.is_store:
                what = f"job {number} loads slot {slot} while job {other.copy.number} still writes it"
                self.finish(other)
        if not what and (wrong := self._host.wrong(piece)):
            what = f"job {number} loads from slot {slot}, and {wrong}"
            self._host.doubt(slot)
        if what:
            self._story.violate("I6", what, block=piece.block, request=job.copy.request, job=number)
        if slot not in job.slots:
            job.slots.append(slot)
            self._using.setdefault(slot, []).append(job)

    # --- the end of jobs ----------------------------------------------------------------------------------------------------

    def owe(self, block: int, name: str) -> None:
        """A block is handed out while jobs touch it: the step must wait for those that read it."""
        for job in list(self.touching.get(block, ())):
            number, owner = job.copy.number, of(job.copy.request)
            if job.is_store:
                what = f"block {block} is handed out to {name} while job {number}{owner} reads it, unwaited"
                self._debts[number] = self._story.violation("I1", what, block=block, request=name, job=number)
            else:
                what = f"block {block} is handed out to {name} while job {number}{owner} writes it"
                self._story.violate("I1", what, block=block, request=name, job=number)
                self.finish(job)

    def wait(self, waits: Collection[int]) -> None:
        """The step waits for these jobs before it computes: they are over, and no debt is left."""
        debts, self._debts = self._debts, {}
        for number in waits:
            if (job := self._known.get(number)) is not None:
                self.finish(job)
        for number, violation in debts.items():
            if number not in waits:
                self._story.add(violation)

    def report(self, number: int, count: int) -> None:
        """So many more workers say that their share of a job is over. The ledger hears of it when they `land`."""
        job = self._known.get(number)
        if job is None or number in self._landing:
            self._unknown(number)
            return
        job.reports += count
        while job.told < min(job.reports, self._num_workers):
            self._arrived += [Completion(each, Worker(job.told), Result.OK) for each in job.ids]
            job.told += 1
        if job.reports >= self._num_workers:
            self._landing[number] = job
            if job.reports > self._num_workers and not job.is_unwanted:
                what = f"job {number} is reported {job.reports} times, and there are {self._num_workers} workers"
                self._story.violate("I9", what, request=job.copy.request, job=number)

    @property
    def has_landed(self) -> bool:
        """Whether the ledger has not heard of some reports."""
        return bool(self._arrived or self._landing)

    def land(self, *, begins: bool = False) -> None:
        """What was reported since the last time is over. *begins*: a step does."""
        arrived, self._arrived = self._arrived, []
        landing, self._landing = self._landing, {}
        if arrived or (begins and self._is_told):
            plan = self._ledger.dispatch(self._story.steps).number
            self._ledger.settle(plan, self._story.steps, completions=arrived)
        for job in landing.values():
            self._end(job, may_come=False)

    def _unknown(self, number: int) -> None:
        if number <= self.forgotten or self._ended.get(number):
            self._story.counts["late"] += 1
        elif number in self._ended or number in self._landing:
            what = f"job {number} is reported more often than there are workers ({self._num_workers})"
            self._story.violate("I9", what, job=number)
        else:
            self._story.violate("I3", f"job {number} is reported, and was never made", job=number)

    def reset(self, *, forget: bool) -> None:
        """What is out is unwanted, and late reports of it are lawful; *forget* what the host has, too."""
        for number, job in self._known.items():
            job.is_unwanted = True
            self.forgotten = max(self.forgotten, number)
        self.forgotten = max(self.forgotten, *self._ended, -1)
        if forget:
            self._host.forget()

    def give_up(self, numbers: Iterable[int]) -> None:
        """Follow these jobs no more: nobody may hear of their end."""
        self.land()
        for number in numbers:
            if (job := self._known.get(number)) is not None:
                self._end(job, may_come=True)

    def finish(self, job: Job) -> None:
        """A job is quiet, whatever was reported of it."""
        if self._arrived:
            self.land()
        while job.told < self._num_workers:
            self._tell_ledger(job)
        if job.is_over:
            return
        job.is_over = True
        if job.targets:
            self._holders.arrive(job.targets)
        for piece in job.copy.pieces:
            _strike(self.touching, piece.block, job)
        for slot in job.slots:
            _strike(self._using, slot, job)
        self._give_back(job)

    def finish_all(self, block: int, *, loads_only: bool = False) -> None:
        """The jobs that touch a block are quiet."""
        for job in list(self.touching.get(block, ())):
            if not (loads_only and job.is_store):
                self.finish(job)

    def _end(self, job: Job, *, may_come: bool) -> None:
        self.finish(job)
        self._story.counts["jobs"] += 1
        del self._known[job.copy.number]
        self._ended[job.copy.number] = may_come
        if len(self._ended) > NUM_ENDED:
            self._ended.popitem(last=False)

    def _tell_ledger(self, job: Job) -> None:
        for each in job.ids:
            self._host.complete(each, job.told)
        job.told += 1

    # --- inside -------------------------------------------------------------------------------------------------------------

    def _add(self, copy: Copy, *, is_store: bool) -> Job:
        if older := self._known.get(copy.number):
            what = f"job {copy.number} is made a second time"
            self._story.violate("I3", what, request=copy.request, job=copy.number)
            self.finish(older)
        self._ended.pop(copy.number, None)
        job = self._known[copy.number] = Job(copy, is_store)
        if not is_store and not copy.sync and copy.request is not None:
            for number, each in self._known.items():
                if each.is_store and not (each.is_over or each.is_unwanted) and each.copy.request == copy.request:
                    what = f"job {copy.number} loads for request {copy.request} while its own store, job {number}, is out"
                    self._story.violate("I10", what, request=copy.request, job=copy.number)
                    break
        return job

    def _in_own_group(self, piece: Piece) -> Piece:
        """A piece in the group that its block was handed out for."""
        group = self._ledger.blocks.group[piece.block]
        return piece if piece.group == group else piece._replace(group=group)

    def _touch(self, job: Job, block: int) -> None:
        jobs = self.touching.setdefault(block, [])
        if job not in jobs:
            jobs.append(job)

    def _follow_load(self, job: Job, pieces: list[Piece], row: str) -> None:
        """Let blocks have their content when a load is over, of which the ledger is told, or not."""
        if not self._is_told:
            job.targets = [self._holders.life(piece.block) for piece in pieces]
            return
        try:
            made = self._host.plan_load(row, pieces, self._slots(job, pieces))
            self._ledger.submit(made)
            job.ids = made.ids
        except (CapacityError, MisuseError):
            self._pass_over(job, pieces)

    def _follow_stores(self, wanted: Sequence[tuple[Job, list[Piece]]]) -> None:
        """Tell the ledger of stores, all or none."""
        if not wanted:
            return
        try:
            made = self._host.plan_stores(
                [(self._holders.row_of(job.copy.request), good, self._slots(job, good)) for job, good in wanted]
            )
            self._ledger.submit(made)
        except BaseException:
            for job, _ in wanted:
                self._give_back(job)
            raise
        for (job, _), number in zip(wanted, made.ids, strict=True):
            job.ids = (number,)

    def _slots(self, job: Job, pieces: Sequence[Piece]) -> list[int]:
        """The slots of the ledger for some pieces: the engine's own, or spare ones."""
        slots = [self._host.slot(piece) for piece in pieces]
        if count := slots.count(None):
            job.spare = self._host.take_spare(count)
        spare = iter(job.spare)
        return [next(spare) if slot is None else slot for slot in slots]

    def _pass_over(self, job: Job, pieces: Sequence[Piece]) -> None:
        """What the ledger has no room for, or no row, is waited for all the same."""
        self._story.counts["not followed"] += len(pieces)
        self._give_back(job)

    def _give_back(self, job: Job) -> None:
        if job.spare:
            self._host.give_back(job.spare)
            job.spare = []


def of(request: str | None) -> str:
    """Whose it is, in a sentence."""
    return "" if request is None else f" of request {request}"


def _strike(jobs: dict[int, list[Job]], place: int, job: Job) -> None:
    found = jobs.get(place)
    if found is not None and job in found:
        found.remove(job)
        if not found:
            del jobs[place]
