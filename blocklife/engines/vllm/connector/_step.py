"""What vLLM has done within one `schedule()` call, reported to the ledger in a legal order.

Rules of this file:

* Between the hooks of one `schedule()` call, events are only noted. `ScheduledStep.report` tells the ledger, because vLLM may
  move blocks from one request to another within a step and reports this in no particular order.
* A step costs what changed in it: of the running requests, only those are looked at that got blocks, or that are scheduled for
  another number of tokens than one.

The order: preemptions; blocks that left the windows; then the new blocks of all requests, running or admitted, and the content
they fill, each in one call of the ledger; then states of Mamba groups. If an admitted request hits content that others fill in
the same step, those others are reported before it, which is the order in which vLLM scheduled them.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence

from blocklife.connector_states import STOPPED, WRONG, Arrival, SessionState
from blocklife.engines.vllm.connector._doubts import Doubts
from blocklife.engines.vllm.connector._known import Admission, KnownRequests
from blocklife.engines.vllm.connector._requests import ConnectorRequest
from blocklife.engines.vllm.connector._shapes import BlockTables, SchedulerOutput, VllmRequest
from blocklife.errors import MisuseError
from blocklife.ledger._ids import NULL
from blocklife.offload import Hit, Mamba


class ScheduledStep:
    """The step that vLLM is making."""

    def __init__(self, known: KnownRequests, doubts: Doubts) -> None:
        self._known = known
        self._doubts = doubts
        self._shape, self._offload, self._pool, self._requests = known.shape, known.offload, known.pool, known.requests
        self._ledger, self._beside = known.ledger, known.beside
        self._groups = known.shape.groups
        self.has_states = any(isinstance(group, Mamba) for group in known.shape.geometry.groups)
        """Whether groups have states, which cannot go back."""
        self._copied: list[int] = []
        """The targets of copies ahead of the forward pass of the step being made."""
        self._unnamed: list[int] = []
        """The blocks that groups which are left out have got in it."""

    def allocated(self, request: VllmRequest, tables: BlockTables, external_tokens: int) -> None:
        """The engine has allocated blocks to a request that it admits or loads, or whose load is over."""
        tracked = self._known.tracked(request)
        given = tables.get_block_ids()
        self._unnamed += self._groups.unnamed(given)
        ids = tuple(list(group) for group in self._groups.tables(given))
        self._known.admissions[request.request_id] = Admission(tracked, ids, external_tokens)
        if external_tokens and tracked.hit is not None:
            self._pool.expect_load(tracked.name)
            if tracked.hit.within:
                at = tracked.hit.device_tokens
                starts = [at // tokens for tokens in self._shape.geometry.block_tokens]
                named = [block for table, start in zip(ids, starts, strict=True) for block in table[start:] if block != NULL]
                self._doubts.add(request, at, named)

    def report(self, output: SchedulerOutput) -> bool:
        """Tell the ledger what vLLM has done. Returns whether a request that it has admitted loads."""
        offload, pool = self._offload, self._pool
        for request_id in output.preempted_req_ids or ():
            tracked = self._requests.by_id.get(request_id)
            if tracked is not None and offload.requests.is_running(tracked.name):
                self._known.preempt(tracked)
        copies = output.kv_cache_block_copies
        self._copied = [copy.dst_block_id for copy in copies] if copies else []
        if self._shape.zeroes_first and (output.new_block_ids_to_zero or self._copied):
            pool.give_up_stores([*(output.new_block_ids_to_zero or ()), *self._copied])
        if self._requests.receiving or self._beside.others.doubts:
            self._go_on_beside()
        going_on: list[Admission] = []
        coming: list[Admission] = []
        for each in self._known.admissions.values():
            (going_on if offload.requests.is_running(each.tracked.name) else coming).append(each)
        reached = self._hand_off_reached(output) if self._shape.state_drafts else ()
        pool.leave_windows()
        self._extend(output, going_on)
        scheduled = output.num_scheduled_tokens
        pool.schedule(self._uneven(scheduled, coming))
        loads = self._let_in(coming, scheduled)
        self._known.admissions.clear()
        if output.new_block_ids_to_zero:
            pool.overwrite(output.new_block_ids_to_zero)
        if self.has_states or self._copied:
            self._hand_off(output, reached)
        if self._unnamed:
            pool.handed_out(self._unnamed)
            self._unnamed.clear()
        return loads

    def _hand_off_reached(self, output: SchedulerOutput) -> set[tuple[str, int, int]]:
        """States that vLLM keeps and that were reached before this step: with guesses, their blocks may leave the tables now.

        Returns them: their requests, groups and tokens.
        """
        state = output.kv_connector_block_state
        found: set[tuple[str, int, int]] = set()
        if state is None:
            return found
        for request_id, states in state.boundary_state_offloads.items():
            tracked = self._requests.by_id.get(request_id)
            if tracked is None or tracked.session.state in WRONG or tracked.name not in self._offload.requests:
                continue
            computed = self._offload.requests.progress(tracked.name).computed
            for number, block, boundary in states:
                group = self._groups.numbers.index(number)
                if boundary <= computed and not boundary % self._shape.geometry.block_tokens[group]:
                    self._pool.hand_off_state(tracked.name, group, boundary, block)
                    found.add((request_id, group, boundary))
        return found

    def _hand_off(self, output: SchedulerOutput, reached: Collection[tuple[str, int, int]]) -> None:
        """The other states that vLLM keeps: at the end of a block, or inside one, where it has copied them to another block."""
        pool, size = self._pool, self._shape.geometry.block_tokens
        kept: set[int] = set()
        if (state := output.kv_connector_block_state) is not None:
            for request_id, states in state.boundary_state_offloads.items():
                if (tracked := self._requests.by_id.get(request_id)) is not None and tracked.session.state not in WRONG:
                    for number, block, boundary in states:
                        group = self._groups.numbers.index(number)
                        if boundary % size[group]:  # a session leaves no tails
                            pool.hand_off_tail("" if tracked.is_session else tracked.name, group, boundary, block)
                            kept.add(block)
                        elif (request_id, group, boundary) not in reached:
                            pool.hand_off_state(tracked.name, group, boundary, block)
        if self._copied:
            pool.handed_out([block for block in self._copied if block not in kept])

    def _extend(self, output: SchedulerOutput, going_on: Iterable[Admission]) -> None:
        """Report the blocks that running requests got in this step."""
        cached, doubts, requests = output.scheduled_cached_reqs, bool(self._doubts.open), self._requests.by_id
        ids, added, resumed = cached.req_ids, cached.new_block_ids, cached.resumed_req_ids
        for at in range(len(ids)):
            given = added[at]
            if given is not None and ids[at] not in resumed:
                tracked, tables = requests[ids[at]], self._groups.tables(given)
                self._unnamed += self._groups.unnamed(given)
                self._grow(tracked.name, tables)
                if doubts:
                    self._doubts.grown(tracked.request, [block for table in tables for block in table if block != NULL])
        for each in going_on:  # its load is over, or its session continues: its blocks stay where they are
            name = each.tracked.name
            if each.tracked.arrival.state is Arrival.LANDED:
                self._note_replay(each.tracked)
            self._requests.schedule(each.tracked)
            if each.tracked.is_session:
                self._known.go_on(each.tracked)
                if each.tracked.session.state in STOPPED:
                    each.tracked.session.go_on()
            held = self._ledger.requests
            self._grow(name, [table[held.size(name, group) :] for group, table in enumerate(each.tables)])

    def _grow(self, name: str, tables: Sequence[Sequence[int]]) -> None:
        """A request got blocks behind its tables, by group."""
        for group in range(len(tables)):
            added = tables[group]
            if NULL in added and NULL in itertools.dropwhile(operator.not_, added):
                raise MisuseError(f"request {name}: group {group} got {list(added)}, with a null between blocks (not offered)")
        if self._shape.state_drafts:
            self._pool.move_on(name, tables)
        self._pool.extend(name, tables)

    def _uneven(self, scheduled: Mapping[str, int], coming: Sequence[Admission]) -> dict[str, int]:
        """The running requests scheduled for another number of tokens than one; 0 for those not scheduled."""
        found: dict[str, int] = {}
        for request_id, count in scheduled.items():
            if count != 1 or self._shape.replay_tokens:
                tracked = self._requests.by_id[request_id]
                if self._offload.requests.is_running(tracked.name):
                    found[tracked.name] = tracked.new_of(count)
        num_coming = len([each for each in coming if each.tracked.request.request_id in scheduled])
        waiting = [each.name for each in self._requests.landed.values()]  # to the ledger, they run
        if self._offload.requests.num_running + num_coming - len(waiting) > len(scheduled):
            names = scheduled if not self._requests.renamed else {self._requests.by_id[each].name for each in scheduled}
            waiting = self._pool.not_among(names)
        found.update(dict.fromkeys(waiting, 0))
        return found

    def _let_in(self, coming: Iterable[Admission], scheduled: Mapping[str, int]) -> bool:
        """Report new blocks of running requests and admitted requests to the ledger. Returns whether one of these loads."""
        loads = False
        placed: list[tuple[Admission, Hit]] = []
        for each in coming:
            hit = self._hit_of(each, runs=each.tracked.request.request_id in scheduled)
            if hit.device_tokens and self._pool.is_new(self._hit_blocks(each, hit)):
                loads |= self._record_placed(placed, scheduled)  # so that it can share content that others compute in this step
                placed = []
            each.in_doubt = self._is_in_doubt(each, hit, scheduled)
            self._pool.place_table(each.tracked.name, each.tables, hit.device_tokens)
            placed.append((each, hit))
        return self._record_placed(placed, scheduled) or loads

    def _record_placed(self, placed: Iterable[tuple[Admission, Hit]], scheduled: Mapping[str, int]) -> bool:
        """Enter the requests whose tables were placed; seal what they and the running ones fill. Returns whether one loads."""
        self._pool.record_growth()
        loads = False
        for each, hit in placed:
            tracked = each.tracked
            if tracked.session.state is SessionState.ASTRAY:
                tracked.session.begin_anew()
            tokens = scheduled.get(tracked.request.request_id, 0)
            if not tokens and not each.external_tokens:
                self._requests.receive(tracked)
                self._beside.others.receive(tracked.name, hit)
            else:
                loads |= not self._offload.admit(tracked.name, hit, tracked.new_of(tokens))
                if each.external_tokens:
                    tracked.arrival.load()
            if tracked.is_session and not self._shape.names_sessions:
                self._pool.keep_unnamed(tracked.name)
            if each.in_doubt:
                self._beside.others.doubt(tracked.name, {block for table in each.tables for block in table if block})
        self._pool.promise()
        return loads

    def _hit_blocks(self, admission: Admission, hit: Hit) -> list[int]:
        """The blocks of a hit on the device, in all groups."""
        stops = [hit.device_tokens // tokens for tokens in self._shape.geometry.block_tokens]
        return [block for table, stop in zip(admission.tables, stops, strict=True) for block in table[:stop]]

    def _hit_of(self, admission: Admission, *, runs: bool) -> Hit:
        """The hit that an admitted request starts from."""
        tracked, request = admission.tracked, admission.tracked.request
        name, hit = self._known.enter(tracked, runs=True), tracked.hit
        tracked.hit, tracked.replays = None, 0
        if hit is not None and name and not self._pool.is_current(hit):
            hit = None  # vLLM lets it in although another connector is still looking, and has not asked this one in this step
        self._requests.schedule(tracked)
        if not name:
            raise MisuseError(f"request {request.request_id}: vLLM runs more requests than it said (max_num_seqs)")
        external = admission.external_tokens
        if external and (hit is None or hit.host_tokens != external):
            raise MisuseError(
                f"request {name}: vLLM loads {external} tokens, and this connector has promised "
                f"{0 if hit is None else hit.host_tokens} (another connector around it must not change what it promises)"
            )
        if external and hit is not None:
            self._note_replay(tracked, runs=runs)
            return hit
        computed = self._note_replay(tracked, runs=runs)
        if self._ends_inside(admission):
            return self._pool.device_hit(name, request.num_tokens, computed)
        if hit is None or hit.host_tokens or (self._shape.replay_tokens and computed < hit.compute_from):
            # a load failed in part, and vLLM keeps the blocks that were on the device before it; or vLLM does not use the hit
            hit = self._pool.device_hit(name, request.num_tokens, computed if hit is None else min(hit.device_tokens, computed))
        if computed < hit.compute_from:
            raise MisuseError(
                f"request {name}: vLLM starts at token {computed}, and the hit ends at {hit.compute_from} "
                "(a feature that this connector does not offer)"
            )
        return self._beside.others.brought(name, hit, computed) if computed > hit.compute_from else hit

    def _note_replay(self, tracked: ConnectorRequest, *, runs: bool = True) -> int:
        """A request begins; if it *runs* in this step, note what vLLM computes once more of it.

        Returns the token up to which its content is there.
        """
        request, again = tracked.request, self._shape.replay_tokens
        computed = request.num_computed_tokens
        tracked.replays = again if runs and again and 0 < request.replay_start == computed else 0
        return computed + tracked.replays

    def _ends_inside(self, admission: Admission) -> bool:
        """Whether a request continues inside a block that the step copies for it: a hit on the device, not told to lookups."""
        computed, sizes = admission.tracked.request.num_computed_tokens, self._shape.geometry.block_tokens
        if not self._copied or not computed % self._shape.geometry.block_alignment:
            return False
        last = [table[computed // size] for table, size in zip(admission.tables, sizes, strict=True) if computed % size]
        return bool(last) and set(last) <= set(self._copied)

    def _is_in_doubt(self, admission: Admission, hit: Hit, scheduled: Mapping[str, int]) -> bool:
        """Whether an admitted request computes behind tokens of another connector that no report has confirmed."""
        if not admission.external_tokens and hit.compute_from > hit.tokens:
            return admission.tracked.request.request_id in scheduled
        return bool(self._beside.others.doubts) and self._beside.others.doubted(self._hit_blocks(admission, hit))

    def _go_on_beside(self) -> None:
        """Requests for which another connector has brought what it promised run; those for which it failed step back."""
        others = self._beside.others
        for tracked in self._beside.freed(list(self._requests.receiving.values())):
            self._known.preempt(tracked)
        for each in self._known.admissions.values():
            if each.tracked.arrival.state is Arrival.RECEIVING:
                self._requests.schedule(each.tracked)
                others.received(each.tracked.name, self._note_replay(each.tracked))
        for name in others.take_wrong():
            request = self._requests.by_name[name].request
            self._pool.go_on(name, request.num_tokens, request.num_prompt_tokens, request.num_computed_tokens)
