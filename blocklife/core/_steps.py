"""What a step of an offload scheduler does to many requests at once: their windows, their growth, what they fill and store.

Rules of this file:

* It finds what to do in the columns of progress, does it in those of the ledger, and notes it in the former, all or none.
* A request is known by its row of progress; `home_of` gives that of its tables, and refuses one that was ended beside the
  scheduler. Keys were asked for before; here they are only read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from blocklife.core._columns import Core, longer, zeros
from blocklife.core._couplings import check_room_for_jobs, name_block, release_ids
from blocklife.core._drafts import check_job, draft_job, make_jobs, tear_up_all
from blocklife.core._moves import ask, note, write
from blocklife.core._progress import EntrySpans, Span, TokenProgress
from blocklife.core._refused import KernelRefusal, Why
from blocklife.core._tables import (
    COPIED,
    EPOCH_SHIFT,
    FINAL,
    FINISHED,
    ID_MASK,
    LOAD,
    OPEN,
    READABLE,
    SOURCE,
    STORE,
    UNSEALED,
)
from blocklife.core._verbs import allocate, check_seal, release_lives
from blocklife.core._verbs import place as place_all

# --- where things are --------------------------------------------------------------------------------------------------


def home_of(core: Core, progress: TokenProgress, row: int) -> int:
    """The row of a request in the ledger. Refuses a request that the ledger has lost since it came."""
    if not is_here(core, progress, row):
        raise KernelRefusal(Why.GONE, row)
    return progress.home[row]


def is_here(core: Core, progress: TokenProgress, row: int) -> bool:
    """Whether the ledger still has a request."""
    home = progress.home[row]
    return core.requests.came[home] == progress.came[row] and core.requests.state[home] != FINISHED


def held_at(core: Core, progress: TokenProgress, group: int, row: int, start: int, stop: int) -> int:
    """Where entry *start* of a table stands in `Requests.lives`. Refuses a table that has not all entries before *stop*."""
    requests = core.requests
    table = home_of(core, progress, row) * core.num_groups + group
    if stop > requests.length[table]:
        raise KernelRefusal(Why.GONE, row)
    return requests.begin[table] + start


# --- windows -----------------------------------------------------------------------------------------------------------


def leave_spans(core: Core, progress: TokenProgress, spans: EntrySpans) -> int:
    """Release these blocks, which have left the windows of their requests."""
    blocks, requests, total, count, twice = core.blocks, core.requests, 0, 0, False
    if not spans.count:
        return 0
    for each in range(spans.count):
        total += spans.stop[each] - spans.start[each]
    core.make_room(total)
    mark = blocks.mark()
    for each in range(spans.count):
        start, stop = spans.start[each], spans.stop[each]
        begin = held_at(core, progress, spans.group[each], spans.row[each], start, stop)
        for at in range(begin, begin + stop - start):
            life = requests.lives[at]
            if life and blocks.is_current(life):
                place = life & ID_MASK
                if blocks.seen[place] == mark:
                    twice = True
                blocks.seen[place] = mark
                core.ids[count] = place
                count += 1
    if twice:  # a block with several holders is let go by each
        release_lives(core, [blocks.life(core.ids[at]) for at in range(count)])
    else:
        release_ids(core, count)
    for each in range(spans.count):
        start, stop = spans.start[each], spans.stop[each]
        begin = held_at(core, progress, spans.group[each], spans.row[each], start, stop)
        for at in range(begin, begin + stop - start):
            requests.lives[at] = 0
    progress.left(spans)
    return 0


# --- growth ------------------------------------------------------------------------------------------------------------


def grow(core: Core, progress: TokenProgress, spans: EntrySpans) -> int:
    """Extend tables of requests by these entries, all or none; in a group of states, those before the last are null."""
    homes: list[int] = []
    counts: list[int] = []
    groups: list[int] = []
    skips: list[int] = []
    for each in range(spans.count):
        group, start, stop = spans.group[each], spans.start[each], spans.stop[each]
        count = progress.blocks_of(group, start, stop)
        homes.append(home_of(core, progress, spans.row[each]))
        groups.append(group)
        counts.append(count)
        skips.append(stop - start - count)
    allocate(core, homes, counts, groups, skips)
    progress.extended(spans)
    return 0


class StepGrowth:
    """What the allocator of an engine has appended to tables in a step: an entry for each table in each list.

    ``taken`` are blocks of hits, which come first, ``fresh`` those that it has handed out; 0 leaves a position empty.
    """

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.groups: list[int] = []
        self.taken: list[Sequence[int]] = []
        self.fresh: list[Sequence[int]] = []

    def note(self, row: int, group: int, taken: Sequence[int], fresh: Sequence[int]) -> None:
        """One table more."""
        self.rows.append(row)
        self.groups.append(group)
        self.taken.append(taken)
        self.fresh.append(fresh)

    def extend(self, progress: TokenProgress, row: int, tables: Sequence[Sequence[int]]) -> None:
        """Fresh blocks behind the tables of a request, by group; progress counts on them from here on."""
        for group in range(len(tables)):
            if tables[group]:
                self.note(row, group, (), tables[group])
                progress.grown(group, row, len(tables[group]))


def place(core: Core, progress: TokenProgress, grown: StepGrowth) -> int:
    """An allocator of the engine has extended tables of requests (`_verbs.place`)."""
    homes: list[int] = []
    for row in grown.rows:
        homes.append(home_of(core, progress, row))
    return place_all(core, homes, grown.groups, grown.taken, grown.fresh)


def begin_tables(core: Core, progress: TokenProgress, row: int, tokens: int) -> int:
    """Note how the tables of a request begin that was let in: how long they are, and that its first *tokens* are final."""
    requests = core.requests
    home = home_of(core, progress, row)
    for group in range(core.num_groups):
        table, first = home * core.num_groups + group, 0
        own = progress.groups[group]
        begin, length = requests.begin[table], requests.length[table]
        while first < length and not requests.lives[begin + first]:
            first += 1
        progress.begin(row, group, length, first, first * own.tokens // own.chunk, tokens // own.tokens)
    return 0


# --- content that a step fills -----------------------------------------------------------------------------------------


def promise(
    core: Core, progress: TokenProgress, spans: EntrySpans, keys: Sequence[Sequence[bytes]], turn: StoreTurn | None
) -> list[int]:
    """Seal the blocks of these spans as far as they can be sealed now, in order; returns the rows of requests that lack some.

    *keys* has those of each span, fewer if it has fewer tokens than it was to have. What is not sealed waits for an older copy
    or for its tokens. With a *turn*, where what is final is stored without a line, what comes next in the order in which it is
    stored joins that.
    """
    blocks, requests, traits = core.blocks, core.requests, core.rules.block_trait
    total, count = 0, 0
    late: list[int] = []
    for each in range(spans.count):
        total += spans.stop[each] - spans.start[each]
    core.make_room(total)
    mark = blocks.mark()
    for each in range(spans.count):
        start, names = spans.start[each], keys[each]
        at = held_at(core, progress, spans.group[each], spans.row[each], start, spans.stop[each])
        most, end = len(names), 0
        while end < most:
            life = requests.lives[at + end]
            if life:
                place = life & ID_MASK
                if not blocks.is_current(life) or not traits[blocks.state[place]] & (OPEN | UNSEALED):
                    break
                check_seal(core, place, mark, names[end])
                core.ids[count] = place
                count += 1
            end += 1
        if end < most:
            late.append(spans.row[each])
        spans.end[each] = start + end
    ask(core, core.rules.seal, count, False)
    write(core, core.rules.seal, count)
    for each in range(spans.count):
        group, row, start, names = spans.group[each], spans.row[each], spans.start[each], keys[each]
        most, joins = spans.end[each] - start, progress.promised(spans, each, turn is not None)
        at = held_at(core, progress, group, row, start, start)
        for end in range(most):
            life = requests.lives[at + end]
            if life:
                place = life & ID_MASK
                name_block(core, place, core.contents.intern(group, names[end]))
                if turn is not None and joins:
                    turn.add(group, life, row, blocks.key[place])
    if count:
        note(core, core.rules.seal, count, 0)
    return late


def seals_of(
    core: Core, progress: TokenProgress, spans: EntrySpans, keys: Sequence[Sequence[bytes]]
) -> list[tuple[int, list[int], list[bytes]]]:
    """Group, lives and keys of the blocks of these spans, group by group; nulls are left out."""
    found: list[tuple[int, list[int], list[bytes]]] = []
    last = -1
    lives: list[int] = []
    names: list[bytes] = []
    for each in range(spans.count):
        group, start, stop = spans.group[each], spans.start[each], spans.stop[each]
        if group != last:  # spans are ordered by group
            last, lives, names = group, [], []
            found.append((group, lives, names))
        own = keys[each]
        begin = held_at(core, progress, group, spans.row[each], start, stop)
        for at in range(stop - start):
            life = core.requests.lives[begin + at]
            if life:
                lives.append(life)
                names.append(own[at])
    return found


# --- what is used ------------------------------------------------------------------------------------------------------


def slots_behind(core: Core, progress: TokenProgress, group: int, row: int, start: int, stop: int, size: int) -> list[int]:
    """The slots with the content of the chunks of *size* blocks in these entries of a table, the last first.

    The content of a chunk is that of its last block, as far as that is final: its own or on its way.
    """
    blocks, contents = core.blocks, core.contents
    found: list[int] = []
    begin, at = held_at(core, progress, group, row, start, stop), stop - start - 1
    while at >= 0:
        life = core.requests.lives[begin + at]
        if life and blocks.is_current(life) and blocks.key[life & ID_MASK]:
            slot = contents.slot[blocks.key[life & ID_MASK]]
            if slot >= 0:
                found.append(slot)
        at -= size
    return found


# --- what is loaded ----------------------------------------------------------------------------------------------------


def plan_load(
    core: Core,
    progress: TokenProgress,
    spans: Sequence[Span],
    keys: Sequence[Sequence[bytes]],
    slots: Sequence[Sequence[int]],
    size: int,
) -> int:
    """Fill these entries of the tables of one request from slots with chunks of *size* blocks, in one job; returns its row.

    *keys* has those of the blocks of each span, and *slots* those of the chunks in which they are, group by group.
    """
    jobs, home, total, chunks = core.jobs, 0, 0, 0
    drafted: list[tuple[int, ...]] = []
    for each in range(len(spans)):
        _, row, start, stop = spans[each]
        count = (stop - 1) // size - start // size + 1
        if len(slots[each]) != count or len(keys[each]) != stop - start:
            raise KernelRefusal(Why.UNEQUAL, stop - start, len(keys[each]))
        home = home_of(core, progress, row)
        total += stop - start
        chunks += count
    core.blocks.mark()
    core.slots.mark()
    try:
        check_room_for_jobs(core, 1)
        drafted.append(draft_job(core, LOAD, total, chunks, size > 1, [home]))
        at, there = jobs.begin[0], jobs.slot_begin[0]
        for each in range(len(spans)):
            group, row, start, stop = spans[each]
            held, names, places = held_at(core, progress, group, row, start, stop), keys[each], slots[each]
            for block in range(start, stop):
                life = core.requests.lives[held + block - start]
                slot = places[block // size - start // size]
                jobs.place[at] = life & ID_MASK
                jobs.epoch[at] = life >> EPOCH_SHIFT
                jobs.slot[at] = slot * size + block % size
                jobs.group[at] = group
                jobs.key[at] = core.contents.intern(group, names[block - start])
                if size > 1 and block % size == size - 1:
                    jobs.slot[there], jobs.group[there], jobs.key[there] = slot, group, jobs.key[at]
                    there += 1
                at += 1
        check_job(core)
    except BaseException:
        tear_up_all(core, drafted)
        raise
    return make_jobs(core, drafted)[0]


# --- what is stored ----------------------------------------------------------------------------------------------------


class StoreTurn:
    """Blocks whose turn to be stored has come, ``count`` of them: group, life, row of the request, and content of each.

    Behind `leave_out` they stand group by group. ``twins`` have the content of another block of the turn, and are left out:
    group, row, life and content. ``stored`` and ``in_flight`` count what else was left out since they were last read: content
    that is stored already, and what cannot be a source because a copy reads it or its life is over.
    """

    def __init__(self) -> None:
        self.count, self.size = 0, 64
        self.group, self.life = bytearray(self.size), zeros("q", self.size)
        self.row, self.content = zeros("i", self.size), zeros("i", self.size)
        self.twins: list[tuple[int, int, int, int]] = []
        self.stored = self.in_flight = 0

    def add(self, group: int, life: int, row: int, content: int) -> None:
        """One block more."""
        if self.count == self.size:
            self.size = size = 2 * self.size
            self.group = bytearray(self.group) + bytearray(self.count)
            self.life, self.row, self.content = (
                longer("q", self.life, size),
                longer("i", self.row, size),
                longer("i", self.content, size),
            )
        at, self.count = self.count, self.count + 1
        self.group[at], self.life[at], self.row[at], self.content[at] = group, life, row, content

    def owners(self, names: Mapping[int, str]) -> list[str]:
        """The request of each block, from those of the rows."""
        return [names[self.row[at]] for at in range(self.count)]

    def lives(self) -> list[int]:
        """The life of each block."""
        return [self.life[at] for at in range(self.count)]

    def keep(self, core: Core, count: int) -> int:
        """Keep the first *count*. A content that nothing but the others names is forgotten."""
        for at in range(count, self.count):
            core.contents.tidy(self.content[at])
        self.count = count
        return 0


def clear(core: Core, turn: StoreTurn) -> int:
    """All have had their turn."""
    turn.keep(core, 0)
    turn.twins.clear()
    return 0


def is_stored(core: Core, content: int) -> bool:
    """Whether content can be read from a slot."""
    slot = core.contents.slot[content]
    return slot >= 0 and core.rules.slot_trait[core.slots.state[slot]] & READABLE != 0


def offer_spans(
    core: Core, progress: TokenProgress, spans: EntrySpans, keys: Sequence[Sequence[bytes]], turn: StoreTurn, early: bool
) -> bool:
    """Chunks of one block that requests have filled have their turn, each request's up to the first that has to wait.

    *keys* has those of each span, fewer if it has fewer tokens than it was to have. Content has to be final, or *early*: it
    will be when the plan has run that stores it. Refuses content under another key. Returns whether none has to wait.
    """
    whole = True
    ready, kept, stored, in_flight = SOURCE if early else FINAL, turn.count, turn.stored, turn.in_flight
    try:
        for each in range(spans.count):
            end = collect_ready(core, progress, spans.group[each], spans.row[each], spans.start[each], keys[each], turn, ready)
            if end < spans.stop[each]:
                whole = False
            spans.end[each] = end
    except BaseException:
        turn.stored, turn.in_flight = stored, in_flight
        turn.keep(core, kept)
        raise
    progress.offered_up_to(spans)
    return whole


def unstored(
    core: Core,
    progress: TokenProgress,
    group: int,
    row: int,
    start: int,
    stop: int,
    size: int,
    keys: Sequence[bytes],
    every: bool,
) -> tuple[list[tuple[int, list[int]]], int]:
    """Those chunks of a request whose end it holds and that cannot be read from a slot, or *every* one, with their lives.

    A chunk has *size* blocks; *keys* has those of its end, from chunk *start* on, by which it is counted here. Returns how many
    were left out as well.
    """
    found: list[tuple[int, list[int]]] = []
    stored, begin = 0, held_at(core, progress, group, row, start * size, stop * size)
    for at in range(stop - start):
        # a hit reads at least the end of a chunk
        if not core.requests.lives[begin + (at + 1) * size - 1]:
            continue
        if not every and is_stored(core, core.contents.find(group, keys[at])):
            stored += 1
            continue
        lives: list[int] = []
        for inside in range(size):
            lives.append(core.requests.lives[begin + at * size + inside])
        found.append((at, lives))
    return found, stored


def collect_ready(
    core: Core,
    progress: TokenProgress,
    group: int,
    row: int,
    start: int,
    keys: Sequence[bytes],
    turn: StoreTurn,
    ready: int,
) -> int:
    """Collect blocks of a request to be stored, up to the first that is not *ready*. Returns that one, or the last's end."""
    count = len(keys)
    begin = held_at(core, progress, group, row, start, start + count)
    for at in range(count):
        life = core.requests.lives[begin + at]
        if life and not collect_turn(core, group, row, life, keys[at], turn, ready):
            return start + at
    return start + count


def collect_turn(core: Core, group: int, row: int, life: int, key: bytes, turn: StoreTurn, ready: int) -> bool:
    """A block has its turn: it joins the others, or need not or cannot be stored. False if it waits, not being *ready*."""
    blocks, contents, traits, place = core.blocks, core.contents, core.rules.block_trait, life & ID_MASK
    if not blocks.is_current(life) or traits[blocks.state[place]] & COPIED:
        turn.in_flight += 1
        return True
    if not traits[blocks.state[place]] & ready:
        return False
    content = blocks.key[place]
    if not content:
        content = contents.intern(group, key)
    elif contents.key[content] != key:
        raise KernelRefusal(Why.OTHER_KEY, place, content, None, key)
    if is_stored(core, content):
        turn.stored += 1
    else:
        turn.add(group, life, row, content)
    return True


def offer_life(core: Core, group: int, row: int, life: int, key: bytes, turn: StoreTurn, early: bool) -> bool:
    """A block that a request has handed off has its turn, as in `offer_spans`.

    False if it has to wait, its life is over, or it has another key.
    """
    held = core.blocks.key[life & ID_MASK]
    if not core.blocks.is_current(life) or (held and core.contents.key[held] != key):
        return False
    return collect_turn(core, group, row, life, key, turn, SOURCE if early else FINAL)


def leave_out(core: Core, progress: TokenProgress, turn: StoreTurn) -> int:
    """Take out of a turn what is stored, being stored or over, and twins; returns how many blocks are left."""
    blocks, traits, kept, last, mixed = core.blocks, core.rules.block_trait, 0, 0, False
    mark, seen = core.contents.mark(), core.contents.seen
    unused: list[int] = []
    for at in range(turn.count):
        group, life, row, content = turn.group[at], turn.life[at], turn.row[at], turn.content[at]
        if not blocks.is_current(life) or not is_here(core, progress, row):
            turn.in_flight += 1
            unused.append(content)  # perhaps nothing else names it
        elif is_stored(core, content):
            turn.stored += 1
        elif traits[blocks.state[life & ID_MASK]] & COPIED:
            turn.in_flight += 1
        elif seen[content] == mark:
            turn.twins.append((group, row, life, content))
        else:
            seen[content] = mark
            turn.group[kept], turn.life[kept], turn.row[kept], turn.content[kept] = group, life, row, content
            kept += 1
            if group < last:
                mixed = True
            last = group
    turn.count = kept
    for content in unused:
        if seen[content] != mark:
            core.contents.tidy(content)
    if mixed:
        group_by_group(core, turn)
    return kept


def group_by_group(core: Core, turn: StoreTurn) -> int:
    """Put the blocks of a turn into the order of their groups; within a group they stay in order."""
    kept, to = turn.count, 0
    groups, lives, rows, contents = bytearray(kept), zeros("q", kept), zeros("i", kept), zeros("i", kept)
    for group in range(core.num_groups):
        for at in range(kept):
            if turn.group[at] == group:
                groups[to], lives[to], rows[to], contents[to] = group, turn.life[at], turn.row[at], turn.content[at]
                to += 1
    for at in range(kept):
        turn.group[at], turn.life[at], turn.row[at], turn.content[at] = groups[at], lives[at], rows[at], contents[at]
    return 0


def names_of(core: Core, turn: StoreTurn) -> list[tuple[int, bytes]]:
    """Group and key of the content of each block."""
    return [(turn.group[at], core.contents.key[turn.content[at]]) for at in range(turn.count)]


def plan_turn(core: Core, progress: TokenProgress, turn: StoreTurn, slots: Sequence[int], most: int) -> list[int]:
    """Store a turn from which nothing is to be left out, each block into one of these slots; returns the rows of the jobs.

    They are as few as possible, with at most so many blocks each, and each is for all requests whose blocks it moves.
    """
    jobs = core.jobs
    drafted: list[tuple[int, ...]] = []
    core.blocks.mark()
    core.slots.mark()
    start, total = 0, turn.count
    try:
        check_room_for_jobs(core, (total + most - 1) // most)
        while start < total:
            stop = start + most if start + most < total else total
            owners = owners_of(core, progress, turn, start, stop)
            drafted.append(draft_job(core, STORE, stop - start, stop - start, False, owners))
            for each in range(start, stop):
                life, at = turn.life[each], jobs.begin[0] + each - start
                place = life & ID_MASK
                jobs.place[at] = place
                jobs.epoch[at] = core.blocks.epoch[place]
                jobs.slot[at] = slots[each]
                jobs.group[at] = turn.group[each]
                jobs.key[at] = turn.content[each]
            check_job(core)
            start = stop
    except BaseException:
        tear_up_all(core, drafted)
        raise
    return make_jobs(core, drafted)


def owners_of(core: Core, progress: TokenProgress, turn: StoreTurn, start: int, stop: int) -> list[int]:
    """The requests in the ledger of these blocks of a turn, each once."""
    requests, mark = core.requests, core.requests.mark()
    found: list[int] = []
    for at in range(start, stop):
        home = home_of(core, progress, turn.row[at])
        if requests.seen[home] != mark:
            requests.seen[home] = mark
            found.append(home)
    return found
