"""The verbs of the kernel on blocks, tables, content and slots.

Rules of this file:

* Rows, groups and workers exist, and lists hold what they should: whoever calls has checked that. Lives, slots and positions
  come from users as they are, and are checked here, all before the first write.
"""

from __future__ import annotations

from collections.abc import Sequence

from blocklife.core._columns import Core
from blocklife.core._couplings import end_orphans, give_up, hand_out, name_block, release_ids
from blocklife.core._moves import (
    ask,
    ask_slots,
    fire_request,
    move_blocks,
    move_slots,
    note,
    write,
)
from blocklife.core._refused import KernelRefusal, Why
from blocklife.core._rules import PlaceMove
from blocklife.core._tables import (
    FINISHED,
    ID_MASK,
    INITIAL_REQUEST,
    KEPT,
    LENT_FIRST,
    LENT_LATER,
    R_FINISH,
    UNSEALED,
)

# --- handing out -------------------------------------------------------------------------------------------------------


def choose(core: Core, count: int, rows: Sequence[int]) -> int:
    """Put the next blocks into ``ids``: free ones first and, under fence, if there are too few, those that a copy reads.

    They are for the requests in these rows: a refusal tells of one that is alone.
    """
    blocks = core.blocks
    core.make_room(count)
    ids, following, end, found = core.ids, blocks.following, blocks.size, 0
    place = following[end]
    while found < count and place != end:
        ids[found] = place
        found += 1
        place = following[place]
    if found < count:
        if core.fence:
            found = lend(core, found, count)
        if found < count:
            raise KernelRefusal(Why.NO_ROOM, rows[0] if len(set(rows)) == 1 else -1, count)
    return 0


def has_room(core: Core, count: int) -> bool:
    """Whether `allocate` would find that many blocks now; under fence, blocks that a copy still reads count."""
    missing = count - core.blocks.free
    if missing <= 0 or not core.fence or missing > core.blocks.size:
        return missing <= 0
    core.make_room(missing)
    return lend(core, 0, missing) == missing


def lend(core: Core, found: int, count: int) -> int:
    """Add blocks to ``ids`` that a fence lets be handed out while a job touches them: planned stores first, then old jobs.

    Returns how many there are then, at most *count*.
    """
    jobs, mark = core.jobs, core.blocks.mark()
    for each in jobs.planned:
        if found >= count:
            break
        found = lend_of(core, each, found, count, mark, LENT_FIRST)
    row = jobs.following[0]
    while row and found < count:
        found = lend_of(core, row, found, count, mark, LENT_LATER)
        row = jobs.following[row]
    return found


def lend_of(core: Core, row: int, found: int, count: int, mark: int, trait: int) -> int:
    """The blocks of one job among them."""
    blocks, jobs, traits, ids = core.blocks, core.jobs, core.rules.block_trait, core.ids
    for entry in range(jobs.begin[row], jobs.begin[row] + jobs.num_blocks[row]):
        place = jobs.place[entry]
        wanted = traits[blocks.state[place]] & trait and blocks.seen[place] != mark
        if found < count and wanted and not blocks.refs[place] and not blocks.writes[place]:
            blocks.seen[place] = mark
            ids[found] = place
            found += 1
    return found


def allocate(core: Core, rows: Sequence[int], counts: Sequence[int], groups: Sequence[int], skips: Sequence[int]) -> int:
    """Hand out blocks, all or none: ``rows[n]`` gets in ``groups[n]`` first ``skips[n]`` nulls, then ``counts[n]`` blocks."""
    total = 0
    for count in counts:
        total += count
    choose(core, total, rows)
    hand_out(core, total)
    start = 0
    for at in range(len(rows)):
        table = rows[at] * core.num_groups + groups[at]
        if skips:
            append_nulls(core, table, skips[at])
        append(core, table, start, counts[at], groups[at])
        start += counts[at]
    return 0


def append(core: Core, table: int, start: int, count: int, group: int) -> int:
    """Put blocks that were handed out, ``ids`` from *start* on, behind a table."""
    blocks, requests, ids = core.blocks, core.requests, core.ids
    requests.reserve(table, count)
    lives, at = requests.lives, requests.begin[table] + requests.length[table]
    for each in range(start, start + count):
        place = ids[each]
        blocks.group[place] = group
        lives[at] = blocks.life(place)
        at += 1
    requests.length[table] += count
    return 0


def append_nulls(core: Core, table: int, count: int) -> int:
    """Append positions without a block."""
    requests = core.requests
    requests.reserve(table, count)
    begin = requests.begin[table] + requests.length[table]
    for at in range(begin, begin + count):
        requests.lives[at] = 0
    requests.length[table] += count
    return 0


def hand_out_first(core: Core, lives: Sequence[int]) -> int:
    """Hand out these blocks, if they keep content for a hit, before others: it also exists elsewhere."""
    blocks, traits = core.blocks, core.rules.block_trait
    chosen: list[int] = []
    mark = blocks.mark()
    for at in range(len(lives)):
        life = lives[at]
        place = life & ID_MASK
        if life <= ID_MASK or place == 0 or place >= blocks.size:
            raise KernelRefusal(Why.NO_LIFE, at, life)
        if blocks.seen[place] == mark:
            raise KernelRefusal(Why.TWICE, place)
        blocks.seen[place] = mark
        if blocks.is_current(life) and traits[blocks.state[place]] & KEPT:
            chosen.append(place)
    for place in reversed(chosen):
        blocks.unlink(place)
        blocks.push_front(place)
    return 0


# --- requests ----------------------------------------------------------------------------------------------------------


def add_request(core: Core, name: str) -> int:
    """A new request; returns its row, below the most requests that there can be. The name is none yet, and there is room."""
    requests = core.requests
    row = requests.intern(name)
    if row >= core.max_requests:
        row = make_way(core, row)
    requests.by_name[name] = requests.by_name.pop(name)  # requests are listed in the order in which they came
    requests.state[row] = INITIAL_REQUEST
    requests.place[row] = requests.spare_places.popleft()
    requests.load[row] = 0
    requests.live += 1
    requests.come(row)
    return row


def make_way(core: Core, row: int) -> int:
    """The request in a row behind the others is to have one among them, whose name is no request; returns that row."""
    requests, jobs = core.requests, core.jobs
    low = 0
    while requests.state[low] != FINISHED:
        low += 1
    name, other = requests.names[row], requests.names[low]
    if requests.by_name.get(other, row) == low:
        requests.by_name[other] = row
    else:  # nobody has it
        requests.spare.remove(low)
        requests.spare.append(row)
    requests.by_name[name] = low
    requests.names[row], requests.names[low] = other, name
    requests.serving[row], requests.serving[low] = requests.serving[low], requests.serving[row]
    requests.named[row], requests.named[low] = requests.named[low], requests.named[row]
    for job in jobs.by_number.values():
        for at in range(jobs.owner_begin[job], jobs.owner_begin[job] + jobs.num_owners[job]):
            if jobs.owner[at] == low:
                jobs.owner[at] = row
            elif jobs.owner[at] == row:
                jobs.owner[at] = low
    return low


def release_request(core: Core, row: int) -> int:
    """A request that is over and holds nothing: its name is free again."""
    core.requests.live -= 1
    core.requests.spare_places.append(core.requests.place[row])
    core.requests.tidy(row)
    return 0


def finish(core: Core, row: int) -> int:
    """A request is over, in any state; its row is free once no job is for it."""
    give_up(core, row, R_FINISH)
    release_request(core, row)
    return 0


def finish_many(core: Core, rows: Sequence[int]) -> int:
    """Several requests are over: their loads are given up first, and a block that several of them hold is released by each."""
    for row in rows:
        if core.requests.load[row]:
            finish(core, row)
    left = [row for row in rows if core.requests.state[row] != FINISHED]
    lives = sorted(lives_of(core, left))
    while lives:  # in each round every life once
        core.make_room(len(lives))
        count, last = 0, 0
        more: list[int] = []
        for life in lives:
            if life == last:
                more.append(life)
            else:
                core.ids[count] = life & ID_MASK
                count += 1
            last = life
        release_ids(core, count)
        lives = more
    for row in left:
        for table in range(row * core.num_groups, (row + 1) * core.num_groups):
            core.requests.clear(table)
        fire_request(core, row, R_FINISH, 0)
        release_request(core, row)
    return 0


def lives_of(core: Core, rows: Sequence[int]) -> list[int]:
    """The current lives that requests hold, the last of each table first."""
    requests = core.requests
    found: list[int] = []
    for row in rows:
        for table in range(row * core.num_groups, (row + 1) * core.num_groups):
            last = requests.begin[table] + requests.length[table] - 1
            for back in range(requests.length[table]):
                life = requests.lives[last - back]
                if life and core.blocks.is_current(life):
                    found.append(life)
    return found


# --- tables ------------------------------------------------------------------------------------------------------------


def choose_lives(core: Core, lives: Sequence[int]) -> int:
    """Put the blocks of lives into ``ids``: all are current, and no block comes twice."""
    blocks, count = core.blocks, len(lives)
    core.make_room(count)
    ids, mark = core.ids, blocks.mark()
    for at in range(count):
        life = lives[at]
        place = life & ID_MASK
        if life <= ID_MASK or place == 0 or place >= blocks.size:
            raise KernelRefusal(Why.NO_LIFE, at, life)
        if blocks.seen[place] == mark:
            raise KernelRefusal(Why.TWICE, place)
        blocks.seen[place] = mark
        ids[at] = place
    for at in range(count):
        if not blocks.is_current(lives[at]):
            raise KernelRefusal(Why.LIFE_IS_OVER, ids[at], lives[at])
    return count


def check_group(core: Core, count: int, group: int) -> int:
    """The blocks ``ids[:count]`` were handed out for this group: groups have different layouts."""
    for at in range(count):
        if core.blocks.group[core.ids[at]] != group:
            raise KernelRefusal(Why.OTHER_GROUP, core.ids[at], group)
    return 0


def check_tenancy(core: Core, row: int, group: int, mark: int) -> int:
    """A table holds a life once, so that each of its holds has one release (I4); the new ones are marked."""
    blocks, requests, table = core.blocks, core.requests, row * core.num_groups + group
    begin = requests.begin[table]
    for at in range(begin, begin + requests.length[table]):
        life = requests.lives[at]
        if life and blocks.seen[life & ID_MASK] == mark and blocks.is_current(life):
            raise KernelRefusal(Why.HELD_ALREADY, life & ID_MASK, row)
    return 0


def acquire(core: Core, row: int, lives: Sequence[int], group: int) -> int:
    """Hold lives that others may hold, too, and append them to the table."""
    requests, table = core.requests, row * core.num_groups + group
    count = choose_lives(core, lives)
    check_group(core, count, group)
    check_tenancy(core, row, group, core.blocks.stamp)
    move_blocks(core, core.rules.acquire, count, 0)
    requests.reserve(table, count)
    end = requests.begin[table] + requests.length[table]
    for at in range(count):
        requests.lives[end + at] = lives[at]
    requests.length[table] += count
    return 0


def fill_tables(
    core: Core, row: int, begins: Sequence[int], hits: Sequence[Sequence[int]], skips: Sequence[int], counts: Sequence[int]
) -> int:
    """Fill the empty tables of a request, an entry a group in each list: nulls, lives that others may hold, nulls, new blocks.

    All hits come first, so that no hand-out takes one of them. Where one is refused, those before it are held.
    """
    total = 0
    groups: list[int] = []
    for group in range(core.num_groups):
        total += counts[group]
        groups.append(group)
        append_nulls(core, row * core.num_groups + group, begins[group])
        if hits[group]:
            acquire(core, row, hits[group], group)
    if total:
        allocate(core, [row] * core.num_groups, counts, groups, skips)
    return 0


def release(core: Core, row: int, group: int, positions: Sequence[int]) -> int:
    """Let go of some positions of a table; nulls stay, and lives that are over are not held any more."""
    blocks, requests, table = core.blocks, core.requests, row * core.num_groups + group
    begin, length, count = requests.begin[table], requests.length[table], 0
    core.make_room(len(positions))
    ids = core.ids
    if len(positions) > 1 and len(set(positions)) != len(positions):
        raise KernelRefusal(Why.NO_POSITION, row, group)
    for at in positions:
        if at < 0 or at >= length:
            raise KernelRefusal(Why.NO_POSITION, row, group)
        life = requests.lives[begin + at]
        if life and blocks.is_current(life):
            ids[count] = life & ID_MASK
            count += 1
    release_ids(core, count)
    for at in positions:
        requests.lives[begin + at] = 0
    return 0


def release_lives(core: Core, lives: Sequence[int]) -> int:
    """Let go of one hold of each life. One that is named several times has several holders, and each of them lets go."""
    left = list(lives)
    while left:
        times: dict[int, int] = {}
        for life in left:
            times[life] = times.get(life, 0) + 1
        # the last round has every life once, in the order in which its last holder lets go of it
        more = [life for life, count in times.items() if count > 1]
        if more:
            round_ = more
            for life in more:
                left.remove(life)
        else:
            round_, left = left, []
        core.make_room(len(round_))
        for at in range(len(round_)):
            core.ids[at] = round_[at] & ID_MASK
        release_ids(core, len(round_))
    return 0


def reopen(core: Core, row: int, group: int, position: int, place: int) -> int:
    """The request writes on its final block: that life is over, and another one begins in the same block; returns it."""
    release(core, row, group, [position])
    core.make_room(1)
    core.ids[0] = place
    hand_out(core, 1)
    requests = core.requests
    life = core.blocks.life(place)
    requests.lives[requests.begin[row * core.num_groups + group] + position] = life
    return life


# --- tables of an engine that has an allocator of its own --------------------------------------------------------------


def place(
    core: Core,
    rows: Sequence[int],
    groups: Sequence[int],
    taken: Sequence[Sequence[int]],
    fresh: Sequence[Sequence[int]],
) -> int:
    """An allocator of the engine has extended tables, all or none: first by hits, then by blocks that it has handed out.

    0 stands for a position without a block. Handed out, and in one table, a block comes once.
    """
    held: list[int] = []
    count = choose_fresh(core, fresh)
    for own in taken:
        if own:
            held += [block for block in own if block]
    if held:
        check_hits(core, rows, groups, taken)
        if count:
            ask(core, core.rules.hand_out[1 if core.fence else 0], count, False)
        hold_hits(core, held)
        count = choose_fresh(core, fresh)
    if count:
        hand_out(core, count)
    for each in range(len(rows)):
        append_hits(core, rows[each] * core.num_groups + groups[each], taken[each])
    for each in range(len(rows)):
        append_fresh(core, rows[each], groups[each], fresh[each])
    return 0


def append_fresh(core: Core, row: int, group: int, own: Sequence[int]) -> int:
    """Put blocks that the engine has handed out, and positions without a block, behind a table."""
    blocks, requests, table = core.blocks, core.requests, row * core.num_groups + group
    requests.reserve(table, len(own))
    end = requests.begin[table] + requests.length[table]
    for at in range(len(own)):
        block = own[at]
        if block:
            blocks.group[block] = group
        requests.lives[end + at] = blocks.life(block) if block else 0
    requests.length[table] += len(own)
    return 0


def lives_in(core: Core, places: Sequence[int]) -> list[int]:
    """The current lives of some blocks."""
    found: list[int] = []
    for place in places:
        found.append(core.blocks.life(place))
    return found


def choose_fresh(core: Core, fresh: Sequence[Sequence[int]]) -> int:
    """Put the blocks that were handed out into ``ids``, and mark them: they exist, and none comes twice."""
    blocks, total, count = core.blocks, 0, 0
    for own in fresh:
        total += len(own)
    core.make_room(total)
    mark = blocks.mark()
    for own in fresh:
        for block in own:
            if block:
                mark_block(core, block, mark)
                core.ids[count] = block
                count += 1
    return count


def mark_block(core: Core, block: int, mark: int) -> int:
    """Mark a block that exists and has no such mark yet."""
    if block < 0 or block >= core.blocks.size:
        raise KernelRefusal(Why.NO_BLOCK, 0, block)
    if core.blocks.seen[block] == mark:
        raise KernelRefusal(Why.TWICE, block)
    core.blocks.seen[block] = mark
    return 0


def are_apart(core: Core, blocks: Sequence[int]) -> bool:
    """Whether these blocks exist, and none comes twice."""
    mark = core.blocks.mark()
    for block in blocks:
        if block <= 0 or block >= core.blocks.size or core.blocks.seen[block] == mark:
            return False
        core.blocks.seen[block] = mark
    return True


def check_hits(core: Core, rows: Sequence[int], groups: Sequence[int], taken: Sequence[Sequence[int]]) -> int:
    """Hits exist, are of their groups, not in the table already, and not handed out in the same call: then they are marked."""
    blocks, mark = core.blocks, core.blocks.stamp
    for own in taken:
        for block in own:
            if block < 0 or block >= blocks.size:
                raise KernelRefusal(Why.NO_BLOCK, 0, block)
            if block and blocks.seen[block] == mark:
                raise KernelRefusal(Why.TAKEN_AND_HANDED_OUT, block)
    for each in range(len(rows)):
        if taken[each]:
            mark = blocks.mark()
            for block in taken[each]:
                if block:
                    if blocks.group[block] != groups[each]:
                        raise KernelRefusal(Why.OTHER_GROUP, block, groups[each])
                    mark_block(core, block, mark)
            check_tenancy(core, rows[each], groups[each], mark)
    return 0


def hold_hits(core: Core, held: Sequence[int]) -> int:
    """Take hits, which several tables may name."""
    times: dict[int, int] = {}
    for block in held:
        times[block] = times.get(block, 0) + 1
    core.make_room(len(times))
    while times:
        count = 0
        for block in times:
            core.ids[count] = block
            count += 1
        move_blocks(core, core.rules.acquire, count, 0)
        times = {block: left - 1 for block, left in times.items() if left > 1}
    return 0


def append_hits(core: Core, table: int, taken: Sequence[int]) -> int:
    """Put hits, and positions without a block, behind a table."""
    if taken:
        core.requests.reserve(table, len(taken))
        end = core.requests.begin[table] + core.requests.length[table]
        for at in range(len(taken)):
            core.requests.lives[end + at] = core.blocks.life(taken[at]) if taken[at] else 0
        core.requests.length[table] += len(taken)
    return 0


# --- content -----------------------------------------------------------------------------------------------------------


def choose_seals(core: Core, lives: Sequence[int], keys: Sequence[bytes], group: int, start: int) -> int:
    """Put the blocks of lives that are current into ``ids`` from *start* on; returns how many. They are marked."""
    blocks, ids, mark, count = core.blocks, core.ids, core.blocks.stamp, start
    for at in range(len(lives)):
        life = lives[at]
        place = life & ID_MASK
        if life <= ID_MASK or place == 0 or place >= blocks.size:
            raise KernelRefusal(Why.NO_LIFE, at, life)
        if not blocks.is_current(life):
            if blocks.seen[place] == mark:
                raise KernelRefusal(Why.TWICE, place)
            blocks.seen[place] = mark
            continue
        if blocks.group[place] != group:
            raise KernelRefusal(Why.OTHER_GROUP, place, group)
        check_seal(core, place, mark, keys[at])
        ids[count] = place
        count += 1
    return count - start


def check_seal(core: Core, place: int, mark: int, key: bytes) -> int:
    """A block is sealed once in a call, and under the key that its planned store publishes."""
    blocks = core.blocks
    if blocks.seen[place] == mark:
        raise KernelRefusal(Why.TWICE, place)
    blocks.seen[place] = mark
    if core.rules.block_trait[blocks.state[place]] & UNSEALED:
        content = key_in(core, blocks.job[place], place)
        if content and core.contents.key[content] != key:
            raise KernelRefusal(Why.PROMISED, place, content, None, key)
    return 0


def key_in(core: Core, row: int, place: int) -> int:
    """The content that a job moves from or to the current life of a block; 0 if it is not known."""
    jobs, epoch = core.jobs, core.blocks.epoch[place]
    begin, stop = jobs.begin[row], jobs.begin[row] + jobs.num_blocks[row]
    entry = jobs.near if begin <= jobs.near < stop else begin  # blocks are asked for in the order in which they are moved
    for _ in range(begin, stop):
        if jobs.place[entry] == place and jobs.epoch[entry] == epoch:
            jobs.near = entry + 1
            return jobs.key[entry]
        entry = entry + 1 if entry + 1 < stop else begin
    return 0


def seal(core: Core, seals: Sequence[tuple[int, Sequence[int], Sequence[bytes]]]) -> int:
    """Content is final, and has its key: group, lives and keys of each part; all or none. Lives that are over are skipped."""
    blocks, contents, total = core.blocks, core.contents, 0
    for _, lives, _ in seals:
        total += len(lives)
    core.make_room(total)
    blocks.mark()
    total = 0
    for group, lives, keys in seals:
        total += choose_seals(core, lives, keys, group, total)
    ask(core, core.rules.seal, total, False)
    write(core, core.rules.seal, total)
    at = 0
    for group, lives, keys in seals:
        for each in range(len(lives)):
            if blocks.is_current(lives[each]):
                name_block(core, core.ids[at], contents.intern(group, keys[each]))
                at += 1
            else:
                core.stale += 1
    if total:
        note(core, core.rules.seal, total, 0)
    return 0


def drop(core: Core, lives: Sequence[int]) -> int:
    """Forget content that no request holds."""
    count = choose_lives(core, lives)
    move_blocks(core, core.rules.drop, count, 0)
    end_orphans(core, False)
    return 0


# --- slots -------------------------------------------------------------------------------------------------------------


def choose_slots(core: Core, chosen: Sequence[int]) -> int:
    """Put slots into ``slot_ids``: they exist, and none comes twice."""
    slots, count = core.slots, len(chosen)
    core.make_room(count)
    mark, ids = slots.mark(), core.slot_ids
    for at in range(count):
        slot = chosen[at]
        if slot < 0 or slot >= slots.size:
            raise KernelRefusal(Why.NO_SLOT, slot)
        if slots.seen[slot] == mark:
            raise KernelRefusal(Why.TWICE, slot, 1)
        slots.seen[slot] = mark
        ids[at] = slot
    return count


def ask_chosen_slots(core: Core, move: PlaceMove, chosen: Sequence[int]) -> int:
    """Refuse if these slots cannot take a move."""
    return ask_slots(core, move, choose_slots(core, chosen), False)


def move_chosen_slots(core: Core, move: PlaceMove, chosen: Sequence[int]) -> int:
    """Evict, pin, unpin or forget slots."""
    return move_slots(core, move, choose_slots(core, chosen), 0)
