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

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby

import numpy as np
from attrs import define, field

from blocklife.engines.vllm.connector.ledger import EngineLedger
from blocklife.errors import MisuseError
from blocklife.ledger import Batch, Direction
from blocklife.ledger.jobs import Allocated, Jobs, Parcel, Storable, Store
from blocklife.ledger.places import ID_MASK, NULL
from blocklife.ledger.records import Completion, JobId, Launched
from blocklife.offload import Geometry, Hit, HostTier, Mode, OffloadScheduler, Policies, Settled
from blocklife.offload.core import Rows
from blocklife.states import COPYING, KEYED, Block, BlockLife, Job, Request

_INDEX = BlockLife.table.index
_KEYED = frozenset(_INDEX[state] for state in KEYED)
_OPEN = frozenset(_INDEX[state] for state in (Block.ALLOCATED, Block.PLEDGED))
"""States of content that is being made, from which it can be sealed."""
_STORABLE = frozenset(_INDEX[state] for state in (Block.SEALED, Block.CACHED))
"""States of final content that no store reads."""
_COPYING = frozenset(_INDEX[state] for state in COPYING)
_NEVER = 1 << 40
"""More blocks than a table has."""
_HOLE, _SHARED, _FRESH = range(3)
"""What an entry of a table is to the ledger."""


@define(eq=False)
class _Order:
    """What one request has to be stored: for each group, up to which block, and the blocks that are not stored yet."""

    name: str
    row: int
    parcels: list[tuple[int, int, Sequence[int], Sequence[bytes]]] = field(factory=list)

    @property
    def num_blocks(self) -> int:
        """Blocks of all groups."""
        return sum(len(lives) for _, _, lives, _ in self.parcels)


class EngineScheduler(OffloadScheduler):
    """The offload scheduler of an engine that owns the pool, decides a step before it speaks, and names content at once."""

    def __init__(
        self,
        ledger: EngineLedger,
        tier: HostTier,
        geometry: Geometry,
        policies: Policies,
        known_of: Callable[[Sequence[int]], Sequence[int]],
        *,
        one_a_step: bool,
    ) -> None:
        """*known_of* says how many tokens the requests of some rows have now; with *one_a_step* it is asked only in doubt."""
        super().__init__(ledger, tier, geometry, policies)
        self._engine_ledger = ledger
        self._known_of = known_of
        self._one_a_step = one_a_step
        self._filled: dict[tuple[int, int], tuple[int, list[int], Sequence[bytes]]] = {}
        """What this step has sealed, by group and row: up to which block, the lives, the keys."""
        self._direct = geometry.blocks_per_chunk == 1 and policies.mode is Mode.EAGER
        self._max_direct = min(policies.max_job_blocks, len(ledger.slots))
        self._unwanted: set[int] = set()
        """Stores that were out when the host tier was forgotten."""
        self._anew = False
        """Whether running requests wait for them to be offered anew."""
        self.holes = 0
        """Blocks that the engine has hit and that were not final for the ledger."""

    # --- requests -----------------------------------------------------------------------------------------------------------

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

    def has_room(self) -> bool:
        """Whether one more request can be added."""
        return len(self._requests) < self.ledger.limits.max_requests

    def forget_waiting(self, kept: Iterable[str]) -> None:
        """Forget requests that wait and hold nothing, but for these: they can be added again."""
        spared = set(kept)
        for name in [each for each in self._requests if each not in spared]:
            if self.ledger.request_state(name) is Request.WAITING and not self._requests[name].ending:
                self.abort(name)

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
        rows = np.flatnonzero(self._progress.running)
        if self._ending:
            rows = np.concatenate((rows, [self._requests[name].row for name in self._ending]))
        self._leave_windows(rows)

    def extend(self, group: int, names: Sequence[str], skips: Sequence[int], blocks: Sequence[Sequence[int]]) -> None:
        """The engine has put fresh blocks behind these tables of one group, after so many nulls."""
        self._engine_ledger.observe_allocate_many(names, blocks, group, skips=skips)
        placed, requests = self._progress.placed, self._requests
        for name, skip, own in zip(names, skips, blocks, strict=True):
            placed[group, requests[name].row] += skip + len(own)

    def schedule(self, tokens: Mapping[str, int]) -> None:
        """`grow` for all running requests at once: one token each, or as many as *tokens* says."""
        self._check_open()
        table = self._progress
        rows = np.flatnonzero(table.running & (table.step != self._step))
        table.wanted[rows] = 1
        for name, count in tokens.items():
            table.wanted[self._tracked(name).row] = count
        if self._attention != list(self._groups):
            self._check_no_drafts(rows)
        ends = table.ends(rows)
        for group in self._groups:
            lacking = np.flatnonzero((table.missing(group, rows, ends) > 0) & (table.wanted[rows] > 0))
            if len(lacking):
                row = int(rows[lacking[0]])
                raise MisuseError(
                    f"request {self._names[row]}: group {group} has {int(table.placed[group, row])} places, too few for the "
                    f"tokens before {int(ends[lacking[0]])} (the engine must say which blocks it has put there)"
                )
        table.step[rows] = self._step

    def promise(self, name: str | None = None) -> None:
        """Seal what this step fills, of one request or of all that it schedules, as far as it can be sealed now."""
        table, state = self._progress, self.ledger.blocks.column.state
        if name is None:
            rows: Rows = np.flatnonzero(table.running & (table.step == self._step) & (table.wanted > 0))
        else:
            rows = np.array([self._requests[name].row])
        bound = np.minimum(table.ends(rows), table.known[rows])
        for group in self._attention:
            full, sealed = bound // self.geometry.block_tokens[group], table.sealed[group, rows]
            where = np.flatnonzero(full > sealed)
            lives: list[int] = []
            keys: list[bytes] = []
            for row, start, stop in zip(rows[where].tolist(), sealed[where].tolist(), full[where].tolist(), strict=True):
                who = self._names[row]
                held = self.ledger.requests[who].tables[group][start:stop].tolist()
                names = self._requests[who].keys(group, start, stop)
                if len(names) < len(held):  # there are fewer tokens than were expected
                    table.known[row] = self._known_of([row])[0]
                    stop = start + len(names)
                    held = held[: len(names)]
                for life, key in zip(held, names, strict=True):
                    if life != NULL:
                        if state[life & ID_MASK] not in _OPEN:  # it waits for an older copy, in this very plan
                            break
                        lives.append(life)
                        keys.append(key)
                    start += 1
                if start == stop:
                    self._filled[group, row] = stop, held, names
                table.sealed[group, row] = start
            if lives:
                self.ledger.seal(Batch[Allocated](lives, group), keys)

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
            news = np.array(self._known_of(rows.tolist()), dtype=np.int64) - before
            usual = table.computed[rows] + done.tokens[asked] >= before
            for at in np.flatnonzero(news != usual).tolist():
                sampled[self._names[int(rows[at])]] = max(0, int(news[at]))
        return self.settle(plan, now, sampled=sampled, launched=launched, completions=completions)

    def _offer_filled(self, rows: Rows) -> None:
        """As the base class does, but without a line where nobody stands in it: what is full is stored by this very plan."""
        orders = self._full(rows) if self._direct and not self.stores.waiting else None
        if orders is None or not self._store(orders):
            super()._offer_filled(rows)
        self._filled.clear()

    def _full(self, rows: Rows) -> list[_Order] | None:
        """The blocks that are full and have not had their turn, by request; None where one of them has to wait for its turn."""
        table, state, seen = self._progress, self.ledger.blocks.column.state, set[int]()
        bound = np.minimum(table.ends(rows), table.known[rows])
        if self.policies.prompt_only:
            bound = np.minimum(bound, table.prompt[rows])
        if self.policies.max_store_tokens is not None:
            bound = np.minimum(bound, self.policies.max_store_tokens)
        found: dict[int, _Order] = {}
        for group in self._attention:
            index, offered = self.ledger.slots.index[group], table.offered[group, rows]
            stops = bound // self.geometry.block_tokens[group]
            where = np.flatnonzero(stops > offered)
            for row, start, stop in zip(rows[where].tolist(), offered[where].tolist(), stops[where].tolist(), strict=True):
                name = self._names[row]
                held, keys = self._span(name, row, group, start, stop)
                if len(held) > 1 or held[0] == NULL or held[0] in seen or keys[0] in index:
                    chosen = self._storable(group, held, keys, seen)
                    if chosen is None:
                        return None
                    held, keys = chosen
                elif state[held[0] & ID_MASK] not in _STORABLE:
                    return None
                seen.update(held)
                if (order := found.get(row)) is None:
                    order = found[row] = _Order(name, row)
                order.parcels.append((group, stop, held, keys))
        return list(found.values())

    def _span(self, name: str, row: int, group: int, start: int, stop: int) -> tuple[Sequence[int], Sequence[bytes]]:
        """Lives and keys of some blocks of a request; what this step has filled was looked up already."""
        known = self._filled.get((group, row))
        if known is not None and known[0] == stop and len(known[1]) == stop - start:
            return known[1], known[2]
        return self.ledger.requests[name].tables[group][start:stop].tolist(), self._requests[name].keys(group, start, stop)

    def _storable(
        self, group: int, held: Sequence[int], keys: Sequence[bytes], seen: set[int]
    ) -> tuple[list[int], list[bytes]] | None:
        """What of these can be stored now and is not on its way; None where something has to wait for its turn."""
        state, lives, names = self.ledger.blocks.column.state, list[int](), list[bytes]()
        for life, key in zip(held, keys, strict=True):
            if life == NULL or life in seen or self.stores.is_stored(group, key):
                continue
            at = state[life & ID_MASK]
            if at in _COPYING:
                self.stores.counts["in flight"] += 1
            elif at in _STORABLE:
                lives.append(life)
                names.append(key)
            else:
                return None
        return lives, names

    def _store(self, orders: Sequence[_Order]) -> bool:
        """Make one job a request; False, and nothing has changed, where there is no room for all of them."""
        most, wanted = self._max_direct, [order for order in orders if any(lives for _, _, lives, _ in order.parcels)]
        if any(order.num_blocks > most for order in wanted) or len(wanted) > self.ledger.jobs.room:
            return False
        names = [(group, key) for order in wanted for group, _, _, keys in order.parcels for key in keys]
        slots = self.tier.reserve(names) if names else []
        if slots is None:
            return False
        stores, at = [], 0
        for order in wanted:
            parcels: list[Parcel[Storable]] = []
            for group, _, lives, keys in order.parcels:
                if lives:
                    parcels.append(Parcel(Batch(list(lives), group), slots[at : at + len(keys)], keys))
                    at += len(keys)
            stores.append(Store(order.name, parcels))
        self.ledger.plan_stores(stores)
        for slot in slots:
            self.stores.suffix[slot] = 1
        for order in orders:
            for group, stop, _, _ in order.parcels:
                self._progress.offered[group, order.row] = stop
        return True

    # --- a whole table ------------------------------------------------------------------------------------------------------

    def place_table(self, name: str, tables: Sequence[Sequence[int]], device_tokens: int) -> None:
        """The engine has given a request that holds nothing these tables; the first *device_tokens* are a hit."""
        tracked = self._tracked(name)
        for group, table in enumerate(tables):
            hit = device_tokens // self.geometry.block_tokens[group]
            kinds = [_FRESH if block else _HOLE for block in table]
            for position, key in enumerate(tracked.keys(group, 0, hit)):
                if block := table[position]:
                    kinds[position] = self._kind(group, block, key)
            self._place_group(name, group, table, kinds)

    def _place_group(self, name: str, group: int, table: Sequence[int], kinds: Sequence[int]) -> None:
        """One table, stretch by stretch."""
        start = 0
        for kind, run in groupby(kinds):
            stop = start + sum(1 for _ in run)
            if kind == _HOLE:
                self.ledger.skip(name, stop - start, group)
            elif kind == _SHARED:
                self.ledger.observe_take(name, table[start:stop], group)
            else:
                self._engine_ledger.observe_allocate_many([name], [table[start:stop]], group)
            start = stop

    def _kind(self, group: int, block: int, key: bytes) -> int:
        """What a block is to the ledger that the engine has hit under this key."""
        blocks = self.ledger.blocks
        if blocks.column.state[block] not in _KEYED:
            self.holes += 1
            return _HOLE
        if blocks.key[block] == key and blocks.group[block] == group:
            return _SHARED
        self.ledger.violate(
            f"block {block}: the engine hits it as {key.hex()} of group {group}, and the ledger knows something else there "
            "(it was handed out unsaid, as to a request that is preempted in the step in which it is scheduled)"
        )
        if not blocks.refs[block]:
            self.ledger.observe_evict([block])
        self.holes += 1
        return _HOLE

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
        """Forget the host tier. Requests go on; what running ones hold is offered anew, what others left is not."""
        self._engine_ledger.forget_host()
        self.stores.clear()
        self._unwanted = {job.number for job in self.ledger.jobs.alive() if job.direction is Direction.STORE}
        self._offer_anew()

    def _offer_anew(self) -> None:
        """Let running requests begin at their first chunk again, once no copy whose result is unwanted reads their blocks."""
        self._unwanted &= self.ledger.jobs.out.keys()
        self._anew = bool(self._unwanted)
        if self._anew:
            return
        table = self._progress
        rows = np.flatnonzero(table.running)
        for group in self._attention:
            named = rows[table.offered[group, rows] < _NEVER]
            table.offered[group, named] = table.first[group, named] // self.geometry.blocks_per_chunk
