"""The offload scheduler for an engine with its own allocator that names content as soon as it is scheduled.

Rules of this file:

* The scheduler itself is unchanged; here is only what such an engine does differently, and bulk versions of calls.
* Content that a step will compute counts as final for everything after that step: see the theory.

Theory. vLLM gives a block its hash when it schedules the tokens that fill it, not when they are computed. From then on another
request can hit it: in the same step, whose forward pass writes before it reads, or in the next one, which the device runs
later. So content is sealed when its step is planned (`promise`), as far as its tokens are known, and not when the plan settles.
Both conditions of sealing hold: the tokens are known and are never taken back, and a store that the same plan submits is
launched by the workers in the next step, after the forward pass that computes the content. Only content that cannot be sealed
yet, because its block waits for an older copy in this plan, is sealed when the plan settles, as in the scheduler itself.

A hit in vLLM can name a block whose content is not final for the ledger: the block is still behind a wait, or it was released
before its step was planned. Its position in the table stays a hole. The engine does not hand out such a block as long as the
hit holds it, so the only loss is one source of a store; and content that was not seen computed is never stored.

Copies on write. vLLM keeps a prefix that ends inside a block in a block of its own, because the request writes on: at that
token a state is copied to a block that is in no table, and a hit on it is copied to the block that the hit's request gets. The
ledger hears of the target of such a copy as of any block that is handed out, so that the step waits for an older copy that
still reads it (`handed_out`). From the target of the first kind the tail of a group of states is stored: nobody writes there.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from blocklife.core._progress import EntrySpans, spans_of
from blocklife.core._steps import StepGrowth
from blocklife.core._tables import ENDLESS
from blocklife.errors import MisuseError
from blocklife.groups import Mamba
from blocklife.ledger import Batch, Direction, Placement
from blocklife.ledger._ids import NULL
from blocklife.ledger._journal import call, verb
from blocklife.ledger.jobs import Allocated, Jobs
from blocklife.ledger.records import Completion, JobId, Launched
from blocklife.ledger.views import block_of
from blocklife.offload._scheduler import OffloadScheduler
from blocklife.offload._stores import Chunk
from blocklife.offload.records import Hit, Settled
from blocklife.states import ADMISSIBLE, BLANK, COPYING, KEYED, Block, BlockLife, Job, JobLife

_OPEN = frozenset(row.source for row in BlockLife.table.rows if row.event == "seal" and isinstance(row.source, Block))
"""Block states in which content is being computed and can be sealed."""
_WANTED = frozenset(row.source for row in JobLife.table.rows if row.event == "abandon" and isinstance(row.source, Job))
"""Job states in which the result of a submitted copy will count."""


class EnginePool:
    """The calls of an engine that owns the pool, decides a step before reporting it, and names content at once."""

    def __init__(self, scheduler: OffloadScheduler, known_of: Callable[[str], int], *, one_a_step: bool) -> None:
        """*known_of* returns the number of tokens that a request has now; with *one_a_step* it is called only if needed."""
        self.scheduler = scheduler
        self._state = state = scheduler._state
        self._calls = scheduler._calls
        self._steps = scheduler._steps
        self._asking, self._admissions = self._steps.asking, self._steps.admissions
        self._offers, self._endings = self._steps.offers, self._steps.endings
        self._asking.known_of = known_of
        self._ledger, self._tier, self._stores = state.ledger, state.tier, state.stores
        self._geometry = geometry = state.geometry
        self._progress, self._stays = state.progress, state.stays
        self._progress.falls_silent = one_a_step
        self._known_of = known_of
        self._one_a_step = one_a_step
        self._rows = state.rows
        self._blocks = state.ledger.blocks
        self._windows = [group for group in state.attention if geometry.window_blocks[group] is not None]
        self._grown = StepGrowth()
        self._late: dict[int, tuple[int, int]] = {}
        """Requests, by row, whose latest plan could not seal everything it fills, each with its serial and that plan."""
        self._unwanted: set[int] = set()
        """Stores that were outstanding when the host tier was forgotten."""
        self._anew = False
        """Whether running requests wait for these stores before their content is offered again."""
        self.holes = 0
        """Blocks that the engine has hit although they were not final for the ledger."""

    # --- requests -----------------------------------------------------------------------------------------------------------

    @verb
    def release_waiting(self, kept: Iterable[str]) -> list[str]:
        """Forget waiting requests that hold nothing, except these; they can be added again. Returns the forgotten requests.

        Requests preempted in this step are kept, because the plan must wait for their copies.
        """
        spared = {*kept, *self._state.preempted}
        names = [
            name
            for name, tracked in self._state.requests.items()
            if name not in spared and not self._stays.is_ending(tracked.row) and self._ledger.requests.state(name) in ADMISSIBLE
        ]
        for name in names:
            self.scheduler.abort(name)
        return names

    @verb
    def keep_unnamed(self, name: str) -> None:
        """Neither seal nor store what a request computes from now on, because it is not what its key says."""
        self._progress.close(self._state.tracked(name).row)
        self._state.states.pop(name, None)

    @verb
    def go_on(self, name: str, known: int, prompt: int, computed: int) -> None:
        """A running request continues after its *computed* tokens, with others than expected; what is in flight of it is void.

        Refuses to go back behind content that is final. Of a request that is kept unnamed nothing is.
        """
        row, table = self._state.tracked(name).row, self._progress
        ends = [table.sealed[group * table.size + row] for group in self._state.groups]
        named = [stop * size for stop, size in zip(ends, self._geometry.block_tokens, strict=True) if stop < ENDLESS]
        final = max(named, default=0)
        if named and (computed < (done := table.computed_of(row)) or (table.in_flight_of(row) and computed < final)):
            raise MisuseError(
                f"request {name}: it cannot go back to token {computed}: content up to {max(done, final)} is final"
            )
        table.again(row, known, prompt, computed)
        self._offers.cut_states(name, computed)

    @verb
    def device_hit(self, name: str, known_tokens: int, device_tokens: int) -> Hit:
        """Use instead of `lookup` for a hit on the device only, without the host tier. Pass it to `admit`."""
        tracked = self._state.tracked(name)
        self._state.check_waiting(name, "LOOKUP")
        if self._stays.is_loading(tracked.row):  # its load has failed since the last plan settled
            self._endings.load_failed(name, tracked)
        self._state.unpin(name)
        self._progress.known[tracked.row] = known_tokens
        tracked.hit = Hit(name, device_tokens, device_tokens, device_tokens, False, self._progress.making)
        tracked.asked = None
        self._stays.looked_up(tracked.row, False)
        return tracked.hit

    @verb
    def put_off(self, name: str) -> bool:
        """The load of this step's `lookup` cannot be promised (too many jobs are out, say): the request waits, as if deferred.

        Its hit is forgotten. False if it has waited for `Policies.pending_wait`: it goes on, with `device_hit`.
        """
        tracked = self._state.tracked(name)
        self._state.check_waiting(name, "LOOKUP")
        hit = tracked.hit
        if hit is None or hit.step != self._progress.making:
            raise MisuseError(f"request {name}: it was not looked up in this step (look it up, then put it off)")
        if not self._admissions.may_wait(tracked.row):
            return False
        self._state.unpin(name)
        self._state.within.pop(name, None)
        tracked.hit, tracked.asked = Hit(name, hit.tokens, hit.device_tokens, hit.device_tokens, True, hit.step), None
        self._stays.looked_up(tracked.row, True)
        return True

    @verb
    def has_waited(self, name: str, since: float) -> None:
        """A request that was forgotten while it waited, and that was added again, has waited since then."""
        self._stays.waits.begin(self._state.tracked(name).row, since + self.scheduler.policies.pending_wait)

    def is_current(self, hit: Hit) -> bool:
        """Whether `admit` takes this hit: it is of this step, and the last one of its request."""
        return hit.step == self._progress.making and self._state.tracked(hit.request).hit is hit

    # --- the step -----------------------------------------------------------------------------------------------------------

    @verb
    def leave_windows(self) -> None:
        """Release blocks that no settled token of any request needs any more.

        The engine does this for requests that it schedules, and at the end of a request; never before this call, and it hands
        out a block in a step only if it was released here first.
        """
        if self._anew:
            self._offer_anew()
        ending = sorted(self._stays.ending)
        self._steps.leave_windows(sorted([*self._progress.spoken, *self._progress.due_now()]) + ending)

    def extend(self, name: str, tables: Sequence[Sequence[int]]) -> None:
        """The engine has put these fresh blocks, and nulls, behind a request's tables. `record_growth` tells the ledger."""
        self._grown.extend(self._progress, self._state.requests[name].row, tables)

    @verb
    def move_on(self, name: str, tables: Sequence[Sequence[int]]) -> None:
        """Release what the engine has moved within the tables of a request, before `extend` reports it at its new place.

        The blocks for the states of drafts stay behind the running state: those that it passes come to the end of the table,
        and leave nulls. Nothing in them is final.
        """
        most = self._state.policies.state_drafts
        if not most:
            return
        for group, blocks in enumerate(tables):
            if blocks and isinstance(self._geometry.groups[group], Mamba):
                self._move_on(name, group, set(blocks), most)

    def _move_on(self, name: str, group: int, blocks: set[int], most: int) -> None:
        stop = self._ledger.requests.size(name, group)
        start = max(0, stop - most)
        held = self._ledger.requests.table(name, group, start, stop)
        moved = [at for at, life in enumerate(held, start) if life != NULL and block_of(life) in blocks]
        if moved:
            self._ledger.release(name, moved, group)

    @verb
    def schedule(self, tokens: Mapping[str, int]) -> None:
        """`grow` for all running requests at once: one token each, or as in *tokens*."""
        self._state.check_open()
        self._steps.schedule({self._state.tracked(name).row: count for name, count in tokens.items()})

    @verb
    def record_growth(self) -> None:
        """Report to the ledger what the engine has appended to tables since the last call."""
        grown = self._grown
        if not grown.rows:
            return
        self._grown = StepGrowth()
        self._give_back([block for own in grown.fresh for block in own])
        self._rows.place(self._progress, grown)

    def _give_back(self, blocks: Iterable[int]) -> None:
        """Blocks are handed out: release those that requests hold which are over and still in a plan.

        Stores of them that were planned go on, and the hand-out waits for these; nothing more of them is stored.

        An engine may hand a block out before the last step is over that computes it, as vLLM does where it is a producer alone,
        and, before 0.33, where guesses behind the last token have moved a window on: what that step still writes to the block
        comes before all that the next one does.
        """
        ending = sorted(self._stays.ending)
        taken = {block for block in blocks if block != NULL and self._blocks.refs(block)} if ending else set()
        for row in ending:
            name = self._state.names[row]
            for group in self._state.groups if taken else ():
                held = self._ledger.requests.table(name, group)
                positions = [at for at, life in enumerate(held) if life != NULL and block_of(life) in taken]
                if positions:
                    self._ledger.release(name, positions, group)

    @verb
    def promise(self) -> None:
        """Seal the blocks that this step fills, for all scheduled requests, as far as they can be sealed now."""
        table = self._progress
        rows = table.looked_at()
        if self._state.waiting_loads and self._state.policies.load_within_tokens:
            rows = self._without_doubt(rows)
        spans = table.fills(rows)
        if not spans:
            return
        keys = self._asking.ask_spans(spans, 1)
        turn = self._offers.turn if self._offers.direct and not self._state.lost else None
        for row in self._rows.promise(table, spans, keys, turn):  # one of its blocks waits for an older copy in this plan
            self._store_late(row, self._ledger.plans.number + 1)

    def _without_doubt(self, rows: list[int]) -> list[int]:
        """Those requests whose content can be promised: behind a load within a step it counts once the load is done."""
        doubted = self._admissions.in_doubt()
        if self._windows:
            for row in doubted:
                self._late[row] = self._progress.serial[row], self._ledger.plans.number + 1
        return [row for row in rows if row not in doubted]

    @verb
    def catch_up(self) -> None:
        """Store content that was sealed only when its plan settled, before the engine reuses blocks that left a window."""
        table = self._progress
        for row, (serial, plan) in list(self._late.items()):
            if plan in self._state.plans:
                continue
            del self._late[row]
            if table.serial[row] == serial and table.running[row] and not self._state.lost:
                for group in self._windows:
                    at, storing = group * table.size + row, table.bound(row, table.end_of(row))
                    going = min(table.first_needed(group, row), table.sealed[at])
                    start, stop = table.offered[at], min(going, storing // self._geometry.block_tokens[group])
                    if self._offers.direct and start < stop:
                        self._offers.collect_ready(
                            spans_of([(group, row, start, stop)]), [self._asking.ask_span(group, row, start, stop)]
                        )
        if self._stores.waiting or self._offers.turn.count:
            self._offers.plan_stores(EntrySpans(), [], [])

    def not_among(self, names: Container[str]) -> list[str]:
        """The running requests whose names are not among these."""
        known = self._state.names
        return [known[row] for row in self._progress.active if known[row] not in names]

    @verb
    def store_late(self, row: int, plan: int) -> None:
        """What a request fills is sealed only when this plan settles: `catch_up` stores what leaves a window by then."""
        self._store_late(row, plan)

    def _store_late(self, row: int, plan: int) -> None:
        if self._windows:
            self._late[row] = self._progress.serial[row], plan

    @verb
    def expect_load(self, name: str) -> None:
        """The engine will admit a request with its hit in the host tier: no other request needs to load that content."""
        tracked = self._state.tracked(name)
        if tracked.hit is not None:
            if not any(tracked.hit.slots):
                state = self._ledger.requests.state(name).name
                raise MisuseError(
                    f"request {name}: cannot EXPECT_LOAD while {state}: its hit has no host part (expect a load only "
                    "after a lookup that finds tokens in the host tier and is not deferred)"
                )
            hit = tracked.hit
            spans, keys = self._asking.ask_load(tracked, hit, self._asking.load_starts(hit))
            self._admissions.expect(name, hit.tokens, spans, keys)

    @verb
    def hand_off_state(self, name: str, group: int, boundary: int, block: int) -> None:
        """The block of a Mamba group before token *boundary* holds the state there, by the end of this step or already."""
        tracked = self._state.requests.get(name)
        position = boundary // self._geometry.block_tokens[group] - 1
        held = self._ledger.requests.table(name, group, position, position + 1) if tracked is not None else []
        if tracked is None or not held or block_of(held[0]) != block:
            return  # the request has ended or was preempted since
        life, state = held[0], self._ledger.blocks.state(block)
        if state in _OPEN:
            self._ledger.seal(Batch[Allocated]([life], group), tracked.keys(group, position, position + 1))
        elif state not in KEYED:
            self._state.handed[name, self._progress.serial[tracked.row], group, boundary] = None
        if boundary % self._geometry.chunk_tokens[group] == 0:
            self._state.states.setdefault(name, []).append((group, boundary, life))

    @verb
    def hand_off_tail(self, name: str, group: int, end: int, block: int) -> None:
        """By the end of this step a block of a Mamba group holds the state at token *end*, inside a block.

        Nobody writes there: the block is in no table, as the target of a copy, or it is kept aside in the request's own. The
        tail is stored from there; those of the attention groups from the request's own blocks, when it ends.
        """
        tracked = self._state.requests.get(name)
        key = None if tracked is None else self._asking.tail_key_of(tracked, group, end)
        if tracked is not None and (key is None or end > self._progress.bound(tracked.row, end)):
            tracked, key = None, None
        held = [] if tracked is None else [each for each in self._ledger.requests.table(name, group) if block_of(each) == block]
        life = held[0] if held else self._hand_out(block, group, key)
        if tracked is None or key is None or not life:
            return
        if held and self._ledger.blocks.of(life) in _OPEN:
            self._ledger.seal(Batch[Allocated]([life], group), [key])
        tracked.tail = end
        if not self._state.lost and self._ledger.blocks.of(life) in KEYED:
            self._stores.offer([Chunk(name, group, key, [life], tail=True)])

    @verb
    def handed_out(self, blocks: Iterable[int]) -> None:
        """These blocks were handed out for something that has no content here: the target of a copy, a group without keys.

        For the ledger those that no request holds are free again at once; what is done to them waits for older copies.
        """
        blocks, known = list(blocks), self._blocks
        self._give_back(blocks)
        for block in blocks:
            if not known.refs(block) and known.state(block) not in BLANK:
                self._hand_out(block, 0, None)

    def _hand_out(self, block: int, group: int, key: bytes | None) -> int:
        """A block was handed out to no request. With *key* a copy fills it with that. Returns its life; 0 if it is over.

        A request that lives as long as this call holds it. If an older copy still reads the block, the step waits for it, and
        the content is not known to be final before the block may be handed out again: then it is not kept.
        """
        self._give_back([block])
        ledger, holder = self._ledger, f"the holder of block {block}"
        while holder in ledger.requests:
            holder += "'"
        ledger.add_request(holder)
        lives = ledger.observe_place(holder, [Placement(group, allocated=[block])])[0]
        (life,) = lives.lives
        kept = key is not None and ledger.blocks.of(life) is Block.ALLOCATED
        if key is not None and kept:
            ledger.seal(lives, [key])
        ledger.finish(holder)
        return int(life) if kept else NULL

    @call
    def settle_known(
        self, plan: int, now: float, *, launched: Iterable[Launched] = (), completions: Iterable[Completion] = ()
    ) -> Settled:
        """`settle` for an engine that does not report the number of sampled tokens, but can be asked how many tokens there are.

        If a step samples at most one token, this is unknown only for requests that have ended.
        """
        sampled: dict[str, int] = {}
        if plan in self._state.plans and (self._stays.ending or not self._one_a_step):
            table, turn = self._progress, self._progress.turns[0]
            for row, tokens, serial in zip(turn.rows, turn.tokens, turn.serials, strict=True):
                if table.serial[row] != serial or (self._one_a_step and row not in self._stays.ending):
                    continue
                known = table.known_of(row)
                news = self._known_of(self._state.names[row]) - known
                if news != (table.computed_of(row) + tokens >= known):
                    sampled[self._state.names[row]] = max(0, news)
        return self.scheduler.settle(plan, now, sampled=sampled, launched=launched, completions=completions)

    @property
    def is_late(self) -> bool:
        """Whether `catch_up` may have work."""
        return bool(self._late)

    # --- a whole table ------------------------------------------------------------------------------------------------------

    def is_new(self, blocks: Iterable[int]) -> bool:
        """Whether some of these blocks are not known to be final, but may be once this step has been reported to the ledger."""
        fresh: set[int] = set()
        for own in self._grown.fresh:
            fresh.update(own)
        return bool([each for each in blocks if each != NULL and (each in fresh or not self._blocks.is_final(each))])

    @verb
    def place_table(self, name: str, tables: Sequence[Sequence[int]], device_tokens: int) -> None:
        """The engine has given these tables to a request that held nothing; the first *device_tokens* are a hit."""
        tracked = self._state.tracked(name)
        for group, table in enumerate(tables):
            hit = device_tokens // self._geometry.block_tokens[group]
            taken = self._known(group, table[:hit], tracked.keys(group, 0, hit)) if hit else ()
            self._grown.note(tracked.row, group, taken, table[hit:])

    def _known(self, group: int, blocks: Sequence[int], keys: Sequence[bytes]) -> Sequence[int]:
        """The blocks of a hit; `NULL` for those that are not final under the engine's key."""
        for at, block in enumerate(blocks):
            if block != NULL and not self._blocks.holds(block, group, keys[at]):
                break
        else:
            return blocks
        kinds = [block != NULL and self._is_known(group, block, key) for block, key in zip(blocks, keys, strict=True)]
        return [block if kind else NULL for block, kind in zip(blocks, kinds, strict=True)]

    def _is_known(self, group: int, block: int, key: bytes) -> bool:
        """Whether a block that the engine has hit has final content of this key in the ledger, too."""
        blocks = self._ledger.blocks
        if not blocks.is_final(block):
            self.holes += 1
            return False
        if blocks.holds(block, group, key):
            return True
        self._rows.violate(
            f"block {block}: the engine hits it as {key.hex()} of group {group}, and the ledger knows something else there "
            "(it was handed out unsaid, as to a request that is preempted in the step in which it is scheduled)"
        )
        if not blocks.refs(block):
            self._ledger.drop([self._ledger.blocks.life(block)])
        self.holes += 1
        return False

    @verb
    def overwrite(self, blocks: Iterable[int]) -> None:
        """The step overwrites these blocks first; those that no request holds were handed out and freed without a report."""
        known = self._ledger.blocks
        lost = [block for block in blocks if not known.refs(block) and known.state(block) in KEYED]
        if lost:
            numbers = {known.job(block) for block in lost if known.state(block) in COPYING}
            jobs = [JobId(self._ledger.incarnation, number) for number in numbers]
            out = [job for job in jobs if self._ledger.jobs.state(job) is not Job.PLANNED]
            if out:
                self._ledger.flush(Jobs(tuple(out)), "handed out")
            self._ledger.drop([self._ledger.blocks.life(block) for block in lost])

    @verb
    def give_up_stores(self, blocks: Iterable[int]) -> None:
        """The step overwrites these blocks before its waits: discard the stores that read them. Call it before `leave_windows`.

        What else these stores hold is offered again for running requests, once they are over.
        """
        known, ledger = self._ledger.blocks, self._ledger
        numbers = dict.fromkeys([known.job(block) for block in blocks if known.state(block) in COPYING])
        jobs = [JobId(ledger.incarnation, number) for number in numbers]
        if out := [job for job in jobs if ledger.jobs.state(job) in _WANTED]:
            ledger.abandon(Jobs(tuple(out)))
            self._unwanted.update([job.number for job in out])
            self._anew = True

    # --- the device ----------------------------------------------------------------------------------------------------------

    @verb
    def reset_device(self) -> list[str]:
        """The device's memory was given up and is back, empty. Stores that are out land, the host tier keeps what it has.

        Returns the requests that are over with it.
        """
        ending = [self._state.names[row] for row in sorted(self._stays.ending)]
        self._endings.reset(drain=False, host=False)
        return ending

    # --- the host tier ------------------------------------------------------------------------------------------------------

    @call
    def reset_host(self) -> None:
        """Forget the host tier. Requests go on; content of running ones is offered again, that of finished ones is not.

        What is in a store below is not found by this scheduler any more, as after `OffloadScheduler.reset`.
        """
        below = self._state.below
        space = b"" if below is None else below.new_space()
        self._ledger.reset(device=False)
        if below is not None:
            below.reset(space)
        self._stores.clear()
        for row in self._stays.ending:
            name = self._state.names[row]
            self._progress.offer_nothing(row)
            self._state.states.pop(name, None)
            self._state.requests[name].tail = 0
        self._unwanted = {job.number for job in self._ledger.jobs.alive() if job.direction is Direction.STORE}
        self._offer_anew()

    def _offer_anew(self) -> None:
        """Offer running requests again from their first chunk, once no copy with an unwanted result reads their blocks."""
        self._unwanted = {number for number in self._unwanted if self._ledger.jobs.is_out(number)}
        self._anew = bool(self._unwanted)
        if self._anew:
            return
        table = self._progress
        for group in self._state.attention:
            for row in table.active:
                at = group * table.size + row
                if table.offered[at] < ENDLESS:
                    table.offer_from(group, row, table.first[at] // self._geometry.blocks_per_chunk)
