"""What the kernel knows, one number a column: blocks, slots, contents, jobs, requests, and the journal.

Rules of this file:

* A column is an array or a bytearray, made once or, where it may grow, replaced by a longer one. Nothing is removed from it.
* Lists are linked through columns; row 0, or the row behind the last place, is their end.
* Nothing here asks a table, or decides what is legal.

Theory. A place, a content, a job and a request is an int. A *content* is a key in a group; it is numbered when a place or job
first names it (`Contents.intern`), and its number is free again when none does. What belongs to a request or job, however long
it is, is a *span* of a pool: its length is the next power of two, and spans that were given back are used again (`SpanPool`).
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import TypeAlias

from blocklife.core._rules import Rules
from blocklife.core._tables import EMPTY, EPOCH_SHIFT, FINISHED, FREED, ID_MASK, INITIAL_JOB, NEVER

Bytes: TypeAlias = bytearray
Ints: TypeAlias = "array[int]"


Told: TypeAlias = tuple[int, int, int, list[int], list[int], list[int], int, str]
"""Sequence, plan, number of the event, places, rows, epochs of blocks, number of the job, name of the request."""
Change: TypeAlias = tuple[bool, int, int, bytes]
"""Whether it can be read from now on; slot, group and key."""


def zeros(code: str, size: int) -> Ints:
    """A column of so many zeros."""
    return array(code, [0]) * size


def longer(code: str, column: Ints, size: int, fill: int = 0) -> Ints:
    """The same column with more rows, which hold *fill*."""
    grown = array(code, bytes(column))
    grown.extend(array(code, [fill]) * (size - len(column)))
    return grown


def listed(following: Ints, end: int, most: int) -> list[int]:
    """The places of a linked list in their order, at most so many."""
    place = following[end]
    found: list[int] = []
    while place != end and len(found) < most:
        found.append(place)
        place = following[place]
    return found


class Marked:
    """Rows that can be marked, one set of them at a time.

    Invariant: behind the first `mark`, ``seen`` of a row is ``stamp`` exactly if the row was marked since the latest. A mark is
    one byte: with every 255th call all are wiped out.
    """

    def __init__(self, size: int) -> None:
        self.seen, self.stamp = bytearray(size), 0

    def mark(self) -> int:
        """Begin anew: a mark that no row has."""
        if self.stamp == 255:
            self.seen, self.stamp = bytearray(len(self.seen)), 0
        self.stamp += 1
        return self.stamp


class Blocks(Marked):
    """The blocks of the device; place 0 is the null block, which has no life.

    Invariant (I4): ``refs`` counts the tables that hold the current life, ``pins`` the jobs that may touch the place,
    ``writes`` those of them that are loads, ``overdue`` those that are past their deadline.
    Invariant: ``job`` is the row of the store whose source the current life is, in the states with the trait COPYING, else 0.
    Invariant: ``key`` is the content of the current life, 0 for none; `Contents.block` finds it, if ``indexed``.
    Invariant: ``free`` counts the places in a state with the trait FREE, but for the null block. If ``indexed``, ``following``
    and ``before`` list them in the order in which they are handed out: those without content first, then the least recently
    released. ``touched`` is the latest plan in which a job of the place was submitted.
    """

    def __init__(self, size: int, indexed: bool) -> None:
        super().__init__(size)
        self.size, self.indexed = size, indexed
        state, refs, pins, writes = bytearray([FREED]) * size, zeros("H", size), bytearray(size), bytearray(size)
        overdue, group, epoch, taken = bytearray(size), bytearray(size), array("i", [1]) * size, zeros("q", 256)
        job, key, touched = zeros("i", size), zeros("i", size), zeros("i", size)
        epoch[0] = 0
        listed = size + 1 if indexed else 1
        following, before = zeros("i", listed), zeros("i", listed)
        # the arrays themselves: what a field gives where it is compiled is another view of one, and slow
        self.columns: dict[str, Bytes | Ints] = {
            "state": state, "refs": refs, "pins": pins, "writes": writes, "overdue": overdue, "group": group, "epoch": epoch,
            "job": job, "key": key, "touched": touched, "taken": taken, "following": following, "before": before,
        }  # fmt: skip
        self.state, self.refs, self.pins, self.writes, self.overdue, self.group = state, refs, pins, writes, overdue, group
        self.epoch, self.job, self.key, self.touched, self.taken = epoch, job, key, touched, taken
        self.following, self.before = following, before
        self.free = size - 1
        if indexed:
            self.line_up(list(range(1, size)))

    def line_up(self, order: list[int]) -> None:
        """Make these the free blocks, in this order."""
        end, last = self.size, self.size
        for place in order:
            self.following[last] = place
            self.before[place] = last
            last = place
        self.following[last] = end
        self.before[end] = last
        self.free = len(order)

    def push_back(self, place: int) -> None:
        """It is free, and handed out after all others."""
        end = self.size
        last = self.before[end]
        self.before[place] = last
        self.following[place] = end
        self.following[last] = place
        self.before[end] = place

    def push_front(self, place: int) -> None:
        """It is free, and handed out before all others."""
        end = self.size
        first = self.following[end]
        self.following[place] = first
        self.before[place] = end
        self.before[first] = place
        self.following[end] = place

    def unlink(self, place: int) -> None:
        """It is not free any more."""
        ahead, behind = self.before[place], self.following[place]
        self.following[ahead] = behind
        self.before[behind] = ahead

    def life(self, place: int) -> int:
        """The current life of a place."""
        return life_of(self.epoch[place], place)

    def is_current(self, life: int) -> bool:
        """Whether a life of a place that exists is not over."""
        return self.epoch[life & ID_MASK] == life >> EPOCH_SHIFT


def life_of(epoch: int, place: int) -> int:
    """One integer for a place and an epoch of it."""
    return epoch << 32 | place


class Slots(Marked):
    """The slots of the lower tier.

    Invariant: ``key`` is the content of the slot, and not 0 exactly in the states with the trait KEYED; of the slots with one
    content at most one is READY, and then `Contents.slot` names that one.
    Invariant: ``free`` counts the places that are EMPTY, which ``following`` and ``before`` list, the most recently emptied
    first. ``newer`` and ``older`` list the places that a replacement by recent use may evict, the least recently used first;
    ``newer`` of a place that is not in the list is -1. ``in_state`` counts the places by state, ``held`` those that can be read
    and are pinned.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = self.free = size
        self.held = 0
        self.in_state = zeros("i", 256)
        self.in_state[EMPTY] = size
        state, group, pins, key = bytearray([EMPTY]) * size, bytearray(size), zeros("H", size), zeros("i", size)
        following, before, taken = zeros("i", size + 1), zeros("i", size + 1), zeros("q", 256)
        newer, older = array("i", [-1]) * (size + 1), array("i", [-1]) * (size + 1)
        newer[size] = older[size] = size
        self.columns: dict[str, Bytes | Ints] = {
            "state": state, "group": group, "pins": pins, "key": key, "taken": taken, "following": following,
            "before": before, "newer": newer, "older": older,
        }  # fmt: skip
        self.state, self.group, self.pins, self.key, self.taken = state, group, pins, key, taken
        self.following, self.before, self.newer, self.older = following, before, newer, older
        self.line_up(list(range(size)))

    def line_up(self, order: list[int]) -> None:
        """Make these the empty slots, in this order."""
        end, last = self.size, self.size
        for place in order:
            self.following[last] = place
            self.before[place] = last
            last = place
        self.following[last] = end
        self.before[end] = last
        self.free = len(order)

    def push_front(self, place: int) -> None:
        """It is empty, and filled before all others."""
        end = self.size
        first = self.following[end]
        self.following[place] = first
        self.before[place] = end
        self.before[first] = place
        self.following[end] = place

    def unlink(self, place: int) -> None:
        """It is not empty any more."""
        ahead, behind = self.before[place], self.following[place]
        self.following[ahead] = behind
        self.before[behind] = ahead


class Contents(Marked):
    """Contents by number, from 1; 0 stands for none.

    Invariant: ``known[group]`` has the number of each key that a place or job names, and ``uses`` how many do. A number with
    ``uses`` 0 is only asked about, in the call that is being made.
    Invariant: ``block`` and ``slot`` are a place that has the content, and is found under it; -1 for none.
    """

    def __init__(self, num_groups: int, size: int) -> None:
        super().__init__(size)
        self.known: list[dict[bytes, int]] = [{} for _ in range(num_groups)]
        self.key: list[bytes] = [b""] * size
        self.size, self.top = size, 1
        self.spare: list[int] = []
        self.uses, self.group = zeros("i", size), bytearray(size)
        self.block, self.slot = array("i", [-1]) * size, array("i", [-1]) * size

    def find(self, group: int, key: bytes) -> int:
        """The number of a content; 0 if nothing names it."""
        own = self.known[group]
        return own.get(key, 0)

    def intern(self, group: int, key: bytes) -> int:
        """The number of a content, a new one if it has none."""
        own = self.known[group]
        new = self.spare[len(self.spare) - 1] if self.spare else self.top
        found = own.setdefault(key, new)
        if found != new:
            return found
        if self.spare:
            self.spare.pop()
        else:
            self.top += 1
            if found >= self.size:
                self.grow()
        self.key[found] = key
        self.group[found] = group
        return found

    def grow(self) -> None:
        """Twice as many."""
        more = self.size
        self.size = size = 2 * more
        self.key += [b""] * more
        self.uses = longer("i", self.uses, size)
        self.seen, self.group = bytearray(self.seen) + bytearray(more), bytearray(self.group) + bytearray(more)
        self.block, self.slot = longer("i", self.block, size, -1), longer("i", self.slot, size, -1)

    def let_go(self, content: int) -> None:
        """One place or job less names it."""
        self.uses[content] -= 1
        if self.uses[content] <= 0:
            self.release(content)

    def tidy(self, content: int) -> None:
        """Forget a content that was only asked about."""
        if content and self.uses[content] == 0:
            self.release(content)

    def release(self, content: int) -> None:
        """Its number is free."""
        key = self.key[content]
        own = self.known[self.group[content]]
        if own.pop(key, 0):
            self.key[content] = b""
            self.spare.append(content)

    def empty(self) -> None:
        """Forget every content."""
        for own in self.known:
            own.clear()
        for content in range(1, self.top):
            self.key[content] = b""
            self.uses[content] = 0
            self.block[content] = self.slot[content] = -1
        self.top = 1
        self.spare.clear()


class SpanPool:
    """Where spans of a pool begin: each is as long as a power of two, and given back to those of its length."""

    def __init__(self) -> None:
        self.top = 0
        self.spare: list[list[int]] = [[] for _ in range(32)]

    def claim(self, count: int) -> int:
        """The begin of a span for so many entries, at least one."""
        log = log_of(count)
        own = self.spare[log]
        if own:
            return own.pop()
        begin = self.top
        self.top = begin + (1 << log)
        return begin

    def give(self, begin: int, count: int) -> None:
        """Give back the span that was taken for so many entries."""
        self.spare[log_of(count)].append(begin)

    def empty(self) -> None:
        """No span is taken."""
        self.top = 0
        for own in self.spare:
            if own:
                own.clear()


def log_of(count: int) -> int:
    """The power of two that so many entries fit into."""
    log = 2
    while (1 << log) < count:
        log += 1
    return log


class TransferJobs:
    """The jobs that are not over, and the latest that are; row 0 is no job, and the end of the list.

    Invariant: ``by_number`` has exactly the jobs with a row; ``following`` and ``before`` list those that are not over, the
    oldest first, and ``live`` counts them. ``planned`` has the rows of those that no worker has, the oldest first.
    Invariant: job *row* moves the blocks of ``num_blocks`` entries from ``begin`` on, and the slots of ``num_slots`` entries
    from ``slot_begin`` on; where a slot holds one block these are the same entries. While the job is not over, each block and
    each slot that it reads has one pin of it. ``owner`` has the rows of the ``num_owners`` requests that it is for, from
    ``owner_begin`` on, and each of them counts it in `Requests.serving`.
    Of an entry of a block: ``place``, ``epoch``, ``group``, ``slot`` (its host place) and ``key`` (its content, 0 if unknown).
    Of an entry of a slot: ``slot``, ``group`` and ``key``.
    ``reported`` has a bit for each worker that has reported, and ``expected`` for each that has to, ``words`` numbers a job.
    ``space`` and ``missing`` are of jobs that move slots to and from the store below. ``near`` is the entry behind the one that
    was found last: where a search begins.
    """

    def __init__(self, max_jobs: int, num_workers: int) -> None:
        rows = max_jobs + 1
        self.max_jobs, self.words = max_jobs, (num_workers + 63) // 64
        self.state, self.direction, self.failed = bytearray([INITIAL_JOB]) * rows, bytearray(rows), bytearray(rows)
        self.number, self.deadline = zeros("q", rows), array("d", [NEVER]) * rows
        self.reported, self.expected = zeros("Q", rows * self.words), zeros("Q", rows * self.words)
        self.everybody = zeros("Q", self.words)
        for worker in range(num_workers):
            self.everybody[worker >> 6] |= 1 << (worker & 63)
        self.begin, self.num_blocks = zeros("i", rows), zeros("i", rows)
        self.slot_begin, self.num_slots = zeros("i", rows), zeros("i", rows)
        self.owner_begin, self.num_owners = zeros("i", rows), zeros("i", rows)
        self.following, self.before = zeros("i", rows), zeros("i", rows)
        self.live, self.last_number = 0, 0
        self.planned: dict[int, None] = {}
        self.spare, self.first_spare, self.num_spare = array("i", range(1, rows)), 0, max_jobs
        self.by_number: dict[int, int] = {}
        self.space: dict[int, bytes] = {}
        self.missing: dict[int, frozenset[int]] = {}
        self.spans, self.size, self.near = SpanPool(), 64, 0
        self.place, self.epoch, self.slot, self.key = (zeros("i", self.size) for _ in range(4))
        self.group = bytearray(self.size)
        self.owner_spans, self.owners_size = SpanPool(), 64
        self.owner = zeros("i", self.owners_size)
        self.taken = zeros("q", 256)

    def claim_entries(self, count: int) -> int:
        """The begin of a span for so many entries."""
        begin = self.spans.claim(count)
        if self.spans.top > self.size:
            self.size = size = max(2 * self.size, self.spans.top)
            self.place, self.epoch, self.slot = (
                longer("i", self.place, size),
                longer("i", self.epoch, size),
                longer("i", self.slot, size),
            )
            self.key, self.group = longer("i", self.key, size), bytearray(self.group) + bytearray(size - len(self.group))
        return begin

    def claim_owners(self, count: int) -> int:
        """The begin of a span for so many owners."""
        begin = self.owner_spans.claim(count)
        if self.owner_spans.top > self.owners_size:
            self.owners_size = size = max(2 * self.owners_size, self.owner_spans.top)
            self.owner = longer("i", self.owner, size)
        return begin

    def give_up_spans(self, row: int) -> None:
        """Give back what a row has had."""
        if self.num_slots[row] and self.slot_begin[row] != self.begin[row]:
            self.spans.give(self.slot_begin[row], self.num_slots[row])
        if self.num_blocks[row]:
            self.spans.give(self.begin[row], self.num_blocks[row])
        if self.num_owners[row]:
            self.owner_spans.give(self.owner_begin[row], self.num_owners[row])

    def find(self, number: int) -> int:
        """The row of a job; 0 if it is not known."""
        return self.by_number.get(number, 0)

    def empty(self) -> None:
        """Forget every job; which rows are spare is written by the caller."""
        for row in range(self.max_jobs + 1):
            self.state[row], self.direction[row], self.failed[row] = INITIAL_JOB, 0, 0
            self.number[row], self.deadline[row] = 0, NEVER
            self.begin[row] = self.num_blocks[row] = self.slot_begin[row] = self.num_slots[row] = 0
            self.owner_begin[row] = self.num_owners[row] = 0
            self.following[row] = self.before[row] = 0
        self.live, self.last_number = 0, 0
        self.planned.clear()
        self.by_number.clear()
        self.space.clear()
        self.missing.clear()
        self.spans.empty()
        self.owner_spans.empty()


class Requests(Marked):
    """The requests by row, and their block tables. A name keeps its row as long as it is a request or a known job is for it.

    Because jobs outlive their requests, there may be more rows than requests are allowed. What others know a request by is its
    ``place``, which is below that number: it is taken when the request comes, and the one that was given back first is next.
    Invariant: ``state`` is FINISHED exactly in rows that are no request; ``live`` counts the others. A row without a name is
    spare. ``named`` counts the known jobs that are for the name of the row, ``serving`` those of them that are not over;
    ``load`` is the number of the load that the request waits for, 0 for none. ``came`` numbers
    the requests in the order in which they came: whoever keeps a row with this number can tell whether another request has the
    row by now.
    Invariant: the table of group *g* has ``length`` entries in ``lives`` from ``begin`` on, in the order of the prompt, all
    three at ``row * num_groups + g``; ``room`` is how long its span is, 0 for none. An entry is a life, which is counted once
    in `Blocks.refs` as long as it is current, or 0 for a position outside the window.
    """

    def __init__(self, rows: int, num_groups: int) -> None:
        super().__init__(rows)
        self.num_groups, self.rows, self.live = num_groups, rows, 0
        self.state, self.load = bytearray([FINISHED]) * rows, zeros("q", rows)
        self.serving, self.named = zeros("i", rows), zeros("i", rows)
        self.came, self.num_came = zeros("q", rows), 0
        self.names: list[str] = [""] * rows
        self.by_name: dict[str, int] = {}
        self.spare = list(range(rows - 1, -1, -1))
        self.place, self.spare_places = zeros("i", rows), deque(range(rows))
        tables = rows * num_groups
        self.begin, self.length, self.room = zeros("i", tables), zeros("i", tables), zeros("i", tables)
        self.spans, self.size = SpanPool(), 256
        self.lives = zeros("q", self.size)
        self.taken = zeros("q", 256)

    def come(self, row: int) -> None:
        """A request comes to a row."""
        self.num_came += 1
        self.came[row] = self.num_came

    def find(self, name: str) -> int:
        """The row of a name, -1 if it has none."""
        return self.by_name.get(name, -1)

    def intern(self, name: str) -> int:
        """The row of a name, a new one if it has none."""
        found = self.by_name.get(name, -1)
        if found >= 0:
            return found
        if not self.spare:
            self.grow()
        found = self.spare.pop()
        self.by_name[name] = found
        self.names[found] = name
        return found

    def tidy(self, row: int) -> None:
        """Forget a name that is no request, and for which no known job is."""
        if self.state[row] == FINISHED and self.named[row] == 0 and self.by_name.pop(self.names[row], -1) >= 0:
            self.names[row] = ""
            self.spare.append(row)

    def grow(self) -> None:
        """Twice as many rows."""
        had = self.rows
        self.rows = rows = 2 * had
        self.state = bytearray(self.state) + bytearray([FINISHED]) * had
        self.seen = bytearray(self.seen) + bytearray(had)
        self.load, self.serving = longer("q", self.load, rows), longer("i", self.serving, rows)
        self.named, self.place = longer("i", self.named, rows), longer("i", self.place, rows)
        self.came = longer("q", self.came, rows)
        self.names += [""] * had
        self.spare = list(range(rows - 1, had - 1, -1)) + self.spare
        tables = rows * self.num_groups
        self.begin, self.length, self.room = (
            longer("i", self.begin, tables),
            longer("i", self.length, tables),
            longer("i", self.room, tables),
        )

    def reserve(self, table: int, more: int) -> int:
        """Room for more entries of a table. ``lives`` may be another array afterwards."""
        length = self.length[table]
        need = length + more
        if need <= self.room[table]:
            return 0
        old, was = self.begin[table], self.room[table]
        begin = self.spans.claim(need)
        if self.spans.top > self.size:
            self.size = max(2 * self.size, self.spans.top)
            self.lives = longer("q", self.lives, self.size)
        for at in range(length):
            self.lives[begin + at] = self.lives[old + at]
        if was:
            self.spans.give(old, was)
        self.begin[table] = begin
        self.room[table] = 1 << log_of(need)
        return 0

    def clear(self, table: int) -> None:
        """The table is empty, and its span given back."""
        if self.room[table]:
            self.spans.give(self.begin[table], self.room[table])
        self.room[table] = self.length[table] = 0

    def empty(self) -> None:
        """Forget every name; which places are spare is written by the caller."""
        for row in range(self.rows):
            self.state[row], self.load[row], self.came[row] = FINISHED, 0, 0
            self.serving[row] = self.named[row] = 0
            self.names[row] = ""
        for table in range(self.rows * self.num_groups):
            self.begin[table] = self.length[table] = self.room[table] = 0
        self.live = 0
        self.by_name.clear()
        self.spare = list(range(self.rows - 1, -1, -1))
        self.spare_places.clear()
        self.spans.empty()


class StepRing:
    """The latest steps of places, in a ring: entry *n* is at ``n % size``; ``at`` is the number of the next one.

    ``what`` is the event's number (`_tables.EVENTS`) and the row, ``place`` a block, slot, number of a job or row of a request,
    ``job`` the number of the job that caused it, ``sequence`` the step in which several places move together. ``names`` has the
    request of an entry of a request.
    Invariant: ``heard`` at an event and a row is whether a hook wants that row. No row has the number 0: there it is whether a
    hook wants any row of the event.
    """

    def __init__(self, size: int) -> None:
        self.size, self.at, self.here, self.steps = size, 0, 0, 0
        self.what, self.place, self.job = zeros("H", size), zeros("q", size), zeros("q", size)
        self.plan, self.sequence = zeros("q", size), zeros("q", size)
        self.names: dict[int, str] = {}
        self.heard = bytearray(1 << 16)
        self.hears = False


class Core:
    """One kernel: the rules, the columns, the plans that are out, and scratch columns for the call that is being made."""

    def __init__(
        self,
        rules: Rules,
        num_blocks: int,
        num_slots: int,
        num_groups: int,
        max_jobs: int,
        max_requests: int,
        num_workers: int,
        max_journal: int,
        fence: bool,
        indexed: bool,
        deadline: float,
    ) -> None:
        self.rules = rules
        self.num_groups, self.num_workers, self.max_requests = num_groups, num_workers, max_requests
        self.fence, self.deadline_after = fence, deadline
        self.blocks, self.slots = Blocks(num_blocks, indexed), Slots(num_slots)
        self.contents = Contents(num_groups, 1 << max(6, (num_blocks + num_slots).bit_length()))
        self.jobs, self.requests = TransferJobs(max_jobs, num_workers), Requests(max_requests, num_groups)
        self.journal = StepRing(max_journal)
        self.plan = 0
        self.waiting: dict[int, list[int]] = {}
        """Plans that are out, the oldest first, with the numbers of the jobs that each waits for."""
        self.to_flush: dict[int, None] = {}
        """Numbers of the jobs that the next plan waits for."""
        self.deadlines: list[tuple[float, int]] = []
        """A heap of deadlines; jobs that are over stay in it until their time comes."""
        self.verdicts = 0
        self.flushes: dict[str, int] = {}
        self.late = self.duplicate = self.unknown = self.stale = 0
        self.ended, self.moved = zeros("q", 64), zeros("q", 4)
        self.rechecks = False
        """Whether ``judged`` gets the rows of jobs that took a step with effects, to be checked again by the caller."""
        self.judged: list[int] = []
        self.room = 0
        self.ids, self.rows, self.own = zeros("i", 0), bytearray(0), bytearray(0)
        self.slot_ids, self.slot_rows, self.unwanted = zeros("i", 0), bytearray(0), bytearray(0)
        self.entering = zeros("i", 0)
        self.block_move = self.slot_move = rules.acquire
        self.num_asked = 0
        self.orphans: list[int] = []
        self.told: list[Told] = []
        """The steps of this call for which a hook is registered; hooks are called for them when the call is over."""
        self.watched = 0
        """The meanings of rows whose slots are noted in ``changes``: PUBLISHES, WITHDRAWS, or both."""
        self.changes: list[Change] = []
        """Slots whose content became readable, or is about to be gone, as far as that is ``watched``."""

    def empty(self) -> None:
        """Forget every content, job and request, and what plans wait for; what is known of places is written by the caller."""
        self.contents.empty()
        self.jobs.empty()
        self.requests.empty()
        self.waiting.clear()
        self.to_flush.clear()
        self.deadlines.clear()

    def make_room(self, count: int) -> None:
        """Scratch columns for so many places."""
        if count > self.room:
            self.room = room = max(64, 2 * self.room, count)
            self.ids, self.slot_ids, self.entering = zeros("i", room), zeros("i", room), zeros("i", room)
            self.rows, self.own = bytearray(room), bytearray(room)
            self.slot_rows, self.unwanted = bytearray(room), bytearray(room)
