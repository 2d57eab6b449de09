"""The offload scheduler under an allocator that is not ours, and that names content as soon as it is scheduled.

Rules of this file:

* It is the library's own scheduler; what is here is only what vLLM does differently, and the same thing for many at once.
* What a step will compute is final for everybody who comes after that step: see the theory.

Theory. vLLM gives a block its hash when it schedules the tokens that fill it, not when they are computed. From that moment
another request can hit it: in the same step, whose forward pass writes before it reads, or in the next one, which the device
runs later. So content is sealed when its step is planned (`promise`), as far as its tokens are known, and not when the plan
settles. Both rules that sealing stands for hold: the tokens are known and are never taken back, and a store that the same plan
submits is launched by the workers in the step after, behind the forward pass that computes it. Only what cannot be sealed yet,
because its block waits for an older copy in this very plan, is sealed when the plan settles, as the base class does.

A hit in vLLM can name a block whose content the ledger has not seen become final: it is still held behind a wait, or it was
given up before its step was planned. Its place in the table stays a hole. The engine keeps such a block from everybody else as
long as the hit holds it, so that nothing is lost but one source of a store; and what nobody has seen computed is never stored.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from attrs import define, field

from blocklife.engines.vllm.connector.ledger import EngineLedger, Growth
from blocklife.ledger import Batch, Direction, Seal
from blocklife.ledger.jobs import Allocated, JobColumns, Jobs
from blocklife.ledger.places import ID_MASK, NULL, packed
from blocklife.ledger.records import Completion, JobId, Launched
from blocklife.offload import Geometry, Hit, HostTier, Mode, OffloadScheduler, Policies, Settled
from blocklife.offload.core import Rows
from blocklife.offload.stores import Chunk
from blocklife.states import COPYING, KEYED, Block, BlockLife, Job, Request, RequestLife, Slot, SlotLife, Trait, states_with

_INDEX = BlockLife.table.index
_KEYED = frozenset(_INDEX[state] for state in KEYED)
_COPYING = frozenset(_INDEX[state] for state in COPYING)
_ALLOCATED, _PLEDGED = _INDEX[Block.ALLOCATED], _INDEX[Block.PLEDGED]
_OPEN = frozenset(_INDEX[row.source] for row in BlockLife.table.rows if row.event == "seal")
"""States of content that is being made, from which it can be sealed."""
_SEALED, _CACHED = _INDEX[Block.SEALED], _INDEX[Block.CACHED]
_STORABLE = _KEYED - _COPYING
"""States of final content that no store reads."""
_READY = SlotLife.table.index[Slot.READY]
_HOLDING_NOTHING = frozenset(Request) - states_with(Trait.ADMITTED, Request) - RequestLife.table.finals
_NEVER = 1 << 40
"""More tokens than a request has."""

_Span: TypeAlias = tuple[str, Sequence[int], Sequence[bytes]]
"""Neighbouring blocks of a request, and their keys."""


@define(eq=False)
class _Turn:
    """Final content of one group whose turn it is to be stored: lives, their keys, and whose they are."""

    group: int
    lives: list[int] = field(factory=list)
    keys: list[bytes] = field(factory=list)
    owners: list[str] = field(factory=list)

    def take(self, spans: Iterable[_Span]) -> None:
        """Their turn has come."""
        for who, held, own in spans:
            self.lives += held
            self.keys += own
            self.owners += [who] * len(held)


@define(eq=False)
class _Filled:
    """What a step fills in one group: the rows of requests, with the first block of each and the one behind its last."""

    group: int
    rows: Rows
    starts: Rows
    stops: Rows
    most: Rows
    """Up to which token each request may be stored."""
    spans: list[_Span] = field(factory=list)
    lives: list[int] = field(factory=list)
    keys: list[bytes] = field(factory=list)


class EngineScheduler(OffloadScheduler):
    """The offload scheduler of an engine that owns the pool, decides a step before it speaks, and names content at once."""

    def __init__(
        self,
        ledger: EngineLedger,
        tier: HostTier,
        geometry: Geometry,
        policies: Policies,
        known_of: Callable[[str], int],
        *,
        one_a_step: bool,
    ) -> None:
        """*known_of* says how many tokens a request has now; with *one_a_step* it is asked only in doubt."""
        super().__init__(ledger, tier, geometry, policies)
        self._engine_ledger = ledger
        self._known_of = known_of
        self._one_a_step = one_a_step
        self._turns = [_Turn(group) for group in range(len(geometry.groups))]
        self._direct = geometry.blocks_per_chunk == 1 and policies.mode is Mode.EAGER
        """Whether what is sealed can be stored as it is, without a line."""
        self._max_direct = min(policies.max_job_blocks, len(ledger.slots))
        self._windows = [group for group in self._attention if geometry.window_blocks[group] is not None]
        self._most_stored, self._most_brought = np.full((2, ledger.limits.max_requests), _NEVER, dtype=np.int64)
        """Tokens of each request, by row, that it lets be stored and loaded."""
        self._growth = Growth()
        self._late: dict[int, tuple[int, int]] = {}
        """Requests, by row, whose latest plan could not seal all that it fills, each with its serial and that plan."""
        self._unwanted: set[int] = set()
        """Stores that were out when the host tier was forgotten."""
        self._anew = False
        """Whether running requests wait for them to be offered anew."""
        self.holes = 0
        """Blocks that the engine has hit and that were not final for the ledger."""

    # --- requests -----------------------------------------------------------------------------------------------------------

    def cap(self, name: str, stored: int | None, loaded: int | None) -> None:
        """So many tokens of a request are stored, and loaded, at most; None: as many as the policies say."""
        row = self._tracked(name).row
        self._most_stored[row] = _NEVER if stored is None else min(stored, _NEVER)
        self._most_brought[row] = _NEVER if loaded is None else min(loaded, _NEVER)

    def knows(self, name: str) -> bool:
        """Whether a request was added and has not ended."""
        return name in self._requests

    def is_running(self, name: str) -> bool:
        """Whether a request is in the batch, or could be in it: it holds its blocks, and none of them is loading."""
        tracked = self._requests.get(name)
        return tracked is not None and bool(self._progress.running[tracked.row])

    @property
    def num_running(self) -> int:
        """How many requests could be in the batch."""
        return int(np.count_nonzero(self._progress.running))

    @property
    def host_hits(self) -> Sequence[int]:
        """Blocks that loads were planned for, by group, since the start."""
        return self._host_hits

    @property
    def num_known(self) -> int:
        """How many requests were added and have not ended."""
        return len(self._requests)

    def forget_waiting(self, kept: Iterable[str]) -> list[str]:
        """Forget requests that wait and hold nothing, but for these: they can be added again. Returns whom it has forgotten.

        Who was preempted in this step is not among them: its copies are to be waited for.
        """
        spared = {*kept, *self._preempted}
        names = [
            name
            for name, tracked in self._requests.items()
            if name not in spared and not tracked.ending and self.ledger.request_state(name) in _HOLDING_NOTHING
        ]
        for name in names:
            self.abort(name)
        return names

    def keep_unnamed(self, name: str) -> None:
        """Name and store nothing of what a request computes that was let in: its last tokens can be taken back."""
        row, table = self._tracked(name).row, self._progress
        table.sealed[:, row] = table.offered[:, row] = _NEVER

    def go_on(self, name: str, known: int, prompt: int, computed: int) -> None:
        """A request that runs has other tokens than were expected behind those *computed*; what is in flight of it is void."""
        row, table = self._tracked(name).row, self._progress
        columns = (table.placed, table.first, table.sealed, table.offered)
        kept = [column[:, row].copy() for column in columns]
        table.clear(row)
        for column, values in zip(columns, kept, strict=True):
            column[:, row] = values
        table.running[row] = True
        table.known[row], table.prompt[row], table.computed[row] = known, prompt, computed

    def device_hit(self, name: str, known_tokens: int, device_tokens: int) -> Hit:
        """In place of `lookup`: what the engine has on the device, and nothing of the host tier. `admit` takes it."""
        tracked = self._tracked(name)
        self._check_open()
        self._check_waiting(name, "LOOKUP")
        self._unpin(name)
        self._progress.known[tracked.row] = known_tokens
        tracked.hit = Hit(name, device_tokens, device_tokens, device_tokens, False, self._step)
        tracked.asked = None
        return tracked.hit

    # --- the step -----------------------------------------------------------------------------------------------------------

    def leave_windows(self) -> None:
        """Give back what no settled token of any request needs any more.

        The engine does so for whom it schedules, and at a request's end; never sooner than here, and nothing of a step is
        handed out again that was not given back here before.
        """
        if self._anew:
            self._offer_anew()
        rows = self._progress.running.nonzero()[0]
        if self._ending:
            rows = np.concatenate((rows, [self._requests[name].row for name in self._ending]))
        self._leave_windows(rows)

    def extend(self, name: str, group: int, blocks: Sequence[int]) -> None:
        """The engine has put fresh blocks, and nulls, behind a table. `settle_in` tells the ledger."""
        self._growth.note(name, group, blocks)
        self._progress.placed[group, self._requests[name].row] += len(blocks)

    def schedule(self, tokens: Mapping[str, int]) -> None:
        """`grow` for all running requests at once: one token each, or as many as *tokens* says."""
        self._check_open()
        table = self._progress
        rows = (table.running & (table.step != self._step)).nonzero()[0]
        table.wanted[rows] = 1
        for name, count in tokens.items():
            table.wanted[self._tracked(name).row] = count
        if self._has_states:
            self._check_no_drafts(rows)
        self._check_placed(rows[table.wanted[rows] > 0])
        table.step[rows] = self._step

    def settle_in(self) -> None:
        """Tell the ledger what the engine has put behind tables since it was last told."""
        if self._growth.names:
            growth, self._growth = self._growth, Growth()
            self._engine_ledger.observe_tables(growth)

    def promise(self) -> None:
        """Seal what this step fills, of all requests that it schedules, as far as it can be sealed now."""
        table = self._progress
        rows: Rows = (table.running & (table.step == self._step) & (table.wanted > 0)).nonzero()[0]
        ends = table.ends(rows)
        bound, most = np.minimum(ends, table.known[rows]), self._bounds(rows, ends)
        parts = []
        for group in self._attention:
            full, starts = bound // self.geometry.block_tokens[group], table.sealed[group, rows]
            where = (full > starts).nonzero()[0]
            if len(where):
                parts.append(_Filled(group, rows[where], starts[where], full[where], most[where]))
        self._gather(parts)
        seals = [self._promise(each) for each in parts]
        if seals := [seal for seal in seals if len(seal.lives)]:
            self._engine_ledger.seal_many(seals)

    def _gather(self, parts: Sequence[_Filled]) -> None:
        """Look each request up once, for all groups: it lies where nobody has looked for many steps."""
        if not parts:
            return
        names, tracked, requests = self._names, self._requests, self.ledger.requests
        rows = np.concatenate([each.rows for each in parts])
        spans = np.concatenate([(each.starts, each.stops) for each in parts], axis=1)
        of = np.repeat(np.arange(len(parts)), [len(each.rows) for each in parts])
        order = np.argsort(rows, kind="stable")
        filled = zip(rows[order].tolist(), of[order].tolist(), *spans[:, order].tolist(), strict=True)
        for row, own in itertools.groupby(filled, operator.itemgetter(0)):
            who = names[row]
            tables, keys_of = requests[who].tables, tracked[who].keys
            for _, at, start, stop in own:
                part = parts[at]
                held, keys = tables[part.group][start:stop], keys_of(part.group, start, stop)
                part.spans.append((who, held, keys))
                part.lives += held
                part.keys += keys

    def _promise(self, part: _Filled) -> Seal:
        """What of one group is sealed now; it is noted how far each request is, and whose turn to be stored has come."""
        table, group, rows = self._progress, part.group, part.rows
        states = self.ledger.blocks.column.view[np.array(part.lives) & ID_MASK]
        ends, spans, lives, keys = part.stops, part.spans, part.lives, part.keys
        if len(keys) < len(lives) or not ((states == _ALLOCATED) | (states == _PLEDGED)).all():
            spans, ends = self._sealable(rows, part.starts, spans)
            lives = [life for _, held, _ in spans for life in held]
            keys = [key for _, _, own in spans for key in own]
        table.sealed[group, rows] = ends
        if self._direct and not self._lost:
            storable = part.most // self.geometry.block_tokens[group]
            in_turn = (table.offered[group, rows] == part.starts) & (part.stops <= storable)
            table.offered[group, rows[in_turn]] = ends[in_turn]
            self._turns[group].take(spans if in_turn.all() else itertools.compress(spans, in_turn.tolist()))
        return Seal(group, lives, keys)

    def _sealable(self, rows: Rows, starts: Rows, spans: Iterable[_Span]) -> tuple[list[_Span], Rows]:
        """What of some spans can be sealed now, and where that ends."""
        state, found, ends = self.ledger.blocks.column.state, list[_Span](), list[int]()
        for row, start, (who, held, own) in zip(rows.tolist(), starts.tolist(), spans, strict=True):
            if len(own) < len(held):  # there are fewer tokens than were expected
                self._progress.known[row] = self._known_of(who)
            now: list[tuple[int, bytes]] = []
            end = start
            for life, key in zip(held, own, strict=False):
                if life != NULL:
                    if state[life & ID_MASK] not in _OPEN:  # it waits for an older copy, in this very plan
                        break
                    now.append((life, key))
                end += 1
            found.append((who, [life for life, _ in now], [key for _, key in now]))
            ends.append(end)
            if end < start + len(own) and self._windows:
                self._late[row] = int(self._progress.serial[row]), self.ledger.plan_number + 1
        return found, np.array(ends)

    def _storing(self, rows: Rows, group: int) -> Rows:
        """Up to which block each of these requests may be stored."""
        found: Rows = self._bounds(rows, self._progress.ends(rows)) // self.geometry.block_tokens[group]
        return found

    def _bounds(self, rows: Rows, tokens: Rows) -> Rows:
        found: Rows = np.minimum(super()._bounds(rows, tokens), self._most_stored[rows])
        return found

    def _most_loaded(self, row: int) -> int | None:
        most = super()._most_loaded(row)
        return int(self._most_brought[row]) if most is None else min(most, int(self._most_brought[row]))

    def catch_up(self) -> None:
        """Store what was sealed only when its plan settled, before the engine hands out what has left a window since."""
        table = self._progress
        for row, (serial, plan) in list(self._late.items()):
            if plan in self._plans:
                continue
            del self._late[row]
            if table.serial[row] == serial and table.running[row] and not self._lost:
                found = np.array([row])
                for group in self._windows:
                    going = min(int(table.first_needed(group, found)[0]), int(table.sealed[group, row]))
                    start, stop = int(table.offered[group, row]), min(going, int(self._storing(found, group)[0]))
                    if self._direct and start < stop:
                        table.offered[group, row] = self._take_turn(group, row, start, stop)
        if self.stores.waiting or any(turn.lives for turn in self._turns):
            self._plan_stores(np.zeros(0, dtype=np.int64))

    def expect_load(self, name: str) -> None:
        """The engine lets a request in for what its lookup found in the host tier: nobody else needs to load it."""
        tracked = self._tracked(name)
        if tracked.hit is not None:
            self._loading.update(dict.fromkeys(self._brought(tracked, tracked.hit), name))

    def hand_off_state(self, name: str, group: int, boundary: int, block: int) -> None:
        """The block of a Mamba group before token *boundary* holds the state there, by the end of this step or already."""
        tracked = self._requests.get(name)
        table = self.ledger.requests[name].tables[group] if tracked is not None else None
        position = boundary // self.geometry.block_tokens[group] - 1
        if tracked is None or table is None or position >= len(table) or table[position] & ID_MASK != block:
            return  # the request is over, or was preempted since
        life, state = table[position], self.ledger.blocks.column.state[block]
        if state in _OPEN:
            self.ledger.seal(Batch[Allocated]([life], group), tracked.keys(group, position, position + 1))
        elif state not in _KEYED:
            self._handed[name, int(self._progress.serial[tracked.row]), group, boundary] = None
        if boundary % self.geometry.chunk_tokens[group] == 0:
            self._states.setdefault(name, []).append((group, boundary, life))

    def settle_known(
        self, plan: int, now: float, *, launched: Iterable[Launched] = (), completions: Iterable[Completion] = ()
    ) -> Settled:
        """`settle`, where the engine does not say how many tokens were sampled: it can be asked how many there are.

        Where a step samples one token at most, only of requests that are over it is not known whether they still got theirs.
        """
        sampled: dict[str, int] = {}
        done = self._plans.get(plan)
        if done is not None and len(done.rows) and (self._ending or not self._one_a_step):
            table = self._progress
            asked = table.serial[done.rows] == done.serials
            if self._one_a_step:
                asked &= np.isin(done.rows, [self._requests[name].row for name in self._ending])
            rows = done.rows[asked]
            before = table.known[rows]
            news = np.array([self._known_of(self._names[row]) for row in rows.tolist()], dtype=np.int64) - before
            usual = table.computed[rows] + done.tokens[asked] >= before
            for at in (news != usual).nonzero()[0].tolist():
                sampled[self._names[int(rows[at])]] = max(0, int(news[at]))
        return self.settle(plan, now, sampled=sampled, launched=launched, completions=completions)

    @property
    def is_late(self) -> bool:
        """Whether `catch_up` may have something to do."""
        return bool(self._late)

    def _plan_stores(self, rows: Rows) -> None:
        """As the base class does, but what can be stored at once goes into few jobs that serve all its requests.

        It goes behind what stands in the line, and into the line where the host tier has no room.
        """
        refused = self.stores.counts["refused"]
        super()._plan_stores(rows)
        if not any(turn.lives for turn in self._turns):
            return
        turns, self._turns = self._turns, [_Turn(group) for group in self._groups]
        if self.stores.counts["refused"] > refused or not self._store(turns):
            self.stores.counts["refused"] += 1
            for turn in turns:
                found = zip(turn.owners, turn.lives, turn.keys, strict=True)
                self.stores.offer([Chunk(owner, turn.group, key, [life]) for owner, life, key in found])

    def _offer_filled(self, rows: Rows) -> None:
        if not self._direct or self._lost:
            super()._offer_filled(rows)
            return
        table = self._progress
        for group in self._attention:
            stops, offered = self._storing(rows, group), table.offered[group, rows]
            where = (stops > offered).nonzero()[0]
            for row, start, stop in zip(rows[where].tolist(), offered[where].tolist(), stops[where].tolist(), strict=True):
                table.offered[group, row] = self._take_turn(group, row, start, stop)

    def _take_turn(self, group: int, row: int, start: int, stop: int) -> int:
        """It is the turn of some blocks of a request, up to the first that is not final yet. Returns that one, or the end."""
        name, state, turn = self._names[row], self.ledger.blocks.column.state, self._turns[group]
        names, index = self._requests[name].keys(group, start, stop), self.ledger.slots.index[group]
        held, stored = self.ledger.requests[name].tables[group][start : start + len(names)], self.ledger.slots.column.state
        for at, (life, key) in enumerate(zip(held, names, strict=True), start):
            if life == NULL:
                continue
            found = state[life & ID_MASK]
            if found in _COPYING:
                self.stores.counts["in flight"] += 1
            elif found not in _STORABLE:
                return at
            elif (slot := index.get(key)) is not None and stored[slot] == _READY:
                self.stores.counts["already stored"] += 1
            else:
                turn.lives.append(life)
                turn.keys.append(key)
                turn.owners.append(name)
        return start + len(names)

    def _store(self, turns: Sequence[_Turn]) -> bool:
        """Store what is not stored yet; False, and nothing has changed, where there is no room for all of it."""
        for turn in turns:
            self._leave_out_stored(turn)
        names = [(turn.group, key) for turn in turns for key in turn.keys]
        if not names:
            return True
        if -(-len(names) // self._max_direct) > self.ledger.jobs.room or (slots := self.tier.reserve(names)) is None:
            return False
        self.ledger.plan_columns(self._columns(turns, slots))
        for slot in slots:
            self.stores.suffix[slot] = 1
        return True

    def _columns(self, turns: Sequence[_Turn], slots: list[int]) -> JobColumns:
        """As few stores as there can be, each for all the requests whose blocks it moves."""
        lives = [life for turn in turns for life in turn.lives]
        keys = [key for turn in turns for key in turn.keys]
        groups = b"".join(bytes((turn.group,)) * len(turn.lives) for turn in turns)
        who = [owner for turn in turns for owner in turn.owners]
        cuts = [*range(0, len(lives), self._max_direct), len(lives)]
        served = [list(dict.fromkeys(who[start:stop])) for start, stop in itertools.pairwise(cuts)]
        owners: list[str | None] = [own[0] for own in served]
        sharers = [tuple(own[1:]) for own in served]
        return JobColumns.of_blocks(owners, sharers, cuts, packed(lives), groups, packed(slots), keys)

    def _leave_out_stored(self, turn: _Turn) -> None:
        """Take out what is stored, on its way, over, or there twice."""
        index, wanted = self.ledger.slots.index[turn.group], set(turn.keys)
        blocks, lives = self.ledger.blocks, np.array(turn.lives, dtype=np.int64)
        states = blocks.column.view[lives & ID_MASK]
        ready = (((states == _SEALED) | (states == _CACHED)) & np.asarray(blocks.fresh(lives))).tolist()
        stored = {key for key in wanted & index.keys() if self.stores.is_stored(turn.group, key)}
        if not stored and len(wanted) == len(turn.keys) and all(ready):
            return
        self.stores.counts["in flight"] += len(ready) - sum(ready)
        kept: dict[bytes, tuple[int, str]] = {}
        for life, key, owner, final in zip(turn.lives, turn.keys, turn.owners, ready, strict=True):
            if final and key not in stored and key not in kept:
                kept[key] = life, owner
        turn.keys, turn.lives, turn.owners = (
            list(kept),
            [life for life, _ in kept.values()],
            [owner for _, owner in kept.values()],
        )

    def _end_many(self, names: Sequence[str]) -> None:
        """Their blocks are given back at once."""
        for name in names:
            tracked = self._requests[name]
            self._leave_behind(name, tracked, tracked.ending)
        self._engine_ledger.finish_many(names)
        for name in names:
            self._leave(name, self._requests[name])

    # --- a whole table ------------------------------------------------------------------------------------------------------

    def is_new(self, blocks: Iterable[int]) -> bool:
        """Whether some of these blocks are not known to be final, and may be when the ledger has heard all of this step."""
        state = self.ledger.blocks.column.state
        return any(block != NULL and state[block] not in _KEYED for block in blocks) or not {
            block for own in self._growth.fresh for block in own
        }.isdisjoint(block for block in blocks if block != NULL)

    def place_table(self, name: str, tables: Sequence[Sequence[int]], device_tokens: int) -> None:
        """The engine has given a request that holds nothing these tables; the first *device_tokens* are a hit."""
        tracked = self._tracked(name)
        for group, table in enumerate(tables):
            hit = device_tokens // self.geometry.block_tokens[group]
            taken = self._known(group, table[:hit], tracked.keys(group, 0, hit)) if hit else ()
            self._growth.note(name, group, table[hit:], taken)

    def _known(self, group: int, blocks: Sequence[int], keys: Sequence[bytes]) -> Sequence[int]:
        """The blocks of a hit; `NULL` in place of those that are not what the engine says."""
        known = self.ledger.blocks
        state, names, groups = known.column.state, known.key, known.group
        if all(
            block == NULL or (names[block] == key and groups[block] == group and state[block] in _KEYED)
            for block, key in zip(blocks, keys, strict=True)
        ):
            return blocks
        kinds = [block != NULL and self._is_known(group, block, key) for block, key in zip(blocks, keys, strict=True)]
        return [block if kind else NULL for block, kind in zip(blocks, kinds, strict=True)]

    def _is_known(self, group: int, block: int, key: bytes) -> bool:
        """Whether a block that the engine has hit under this key is that to the ledger, too."""
        blocks = self.ledger.blocks
        if blocks.column.state[block] not in _KEYED:
            self.holes += 1
            return False
        if blocks.key[block] == key and blocks.group[block] == group:
            return True
        self.ledger.violate(
            f"block {block}: the engine hits it as {key.hex()} of group {group}, and the ledger knows something else there "
            "(it was handed out unsaid, as to a request that is preempted in the step in which it is scheduled)"
        )
        if not blocks.refs[block]:
            self.ledger.observe_evict([block])
        self.holes += 1
        return False

    def overwrite(self, blocks: Iterable[int]) -> None:
        """The step writes these before anything else; what nobody holds of them was handed out and taken back unsaid."""
        column, refs = self.ledger.blocks.column.state, self.ledger.blocks.refs
        lost = [block for block in blocks if not refs[block] and column[block] in _KEYED]
        if lost:
            rows = {self.ledger.blocks.job[block] for block in lost if column[block] in _COPYING}
            jobs = [JobId(self.ledger.incarnation, self.ledger.jobs.rows[row].number) for row in rows]
            out = [job for job in jobs if self.ledger.job_state(job) is not Job.PLANNED]
            if out:
                self.ledger.flush(Jobs(tuple(out)), "handed out")
            self.ledger.observe_evict(lost)

    # --- the host tier ------------------------------------------------------------------------------------------------------

    def forget_host(self) -> None:
        """Forget the host tier. Requests go on; what running ones hold is offered anew, what is left by those over is not."""
        self._engine_ledger.forget_host()
        self.stores.clear()
        for name in self._ending:
            self._progress.offered[:, self._requests[name].row] = _NEVER
            self._states.pop(name, None)
        self._unwanted = {job.number for job in self.ledger.jobs.alive() if job.direction is Direction.STORE}
        self._offer_anew()

    def _offer_anew(self) -> None:
        """Let running requests begin at their first chunk again, once no copy whose result is unwanted reads their blocks."""
        self._unwanted &= self.ledger.jobs.out.keys()
        self._anew = bool(self._unwanted)
        if self._anew:
            return
        table = self._progress
        rows = table.running.nonzero()[0]
        for group in self._attention:
            named = rows[table.offered[group, rows] < _NEVER]
            table.offered[group, named] = table.first[group, named] // self.geometry.blocks_per_chunk
