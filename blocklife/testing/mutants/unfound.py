"""The mutants under which no rule breaks in any small world, each with the argument why that is no hole in the proof."""

from __future__ import annotations

from collections.abc import Mapping

_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "It is the step that a table takes from a state to itself: only the row's count, and what listeners hear of it, are gone. tests/test_ledger.py asks for both.": (
        "Core._count_report without self._fire_job(job, 'finish', facts)",
        "Core._count_report without self._fire_job(job, 'finish', facts) #2",
    ),
    "A lookup that waits asks again at the next verdict of any job instead of at once: it comes later, and comes.": (
        "Core._finish_stores without self.verdicts += len(rows)",
        "SchedulerCore._drop without self._given_up += 1",
        "SchedulerCore._forget without self._given_up += 1",
    ),
    "It only keeps a list from growing: entries of what is over are passed over when their turn comes.": (
        "Core._arm without self._deadlines = [each for each in self._deadlines if each[1] in self.jobs.out]",
        "Core._arm without heapq.heapify(self._deadlines)",
        "StoreLine._enter without self._entered += 1",
        "StoreLine._enter without self._sweep()",
        "StoreLine._sweep without self._entered = 0",
        "StoreLine._sweep without self._line[owner] = kept",
        "StoreLine._sweep without del self._line[owner]",
        "StoreLine._ripe without del self._line[owner]",
        "StoreLine._make without del self._line[owner]",
    ),
    "A verb that does nothing breaks no rule, and the scheduler never calls this one. tests/test_ledger.py asks for the state behind it.": (
        "Ledger.release without self._release_many(found, batch(positions), group)",
        "Ledger.drop without self._cancel_orphans(self._commit(self.blocks.ask(BLOCK['drop'], ids)))",
        "Ledger.cancel without self._end(job, 'cancel', 0)",
        "Ledger.abandon without self._abandon(job)",
    ),
    "Two requests let go of one shared block in one call, which the small worlds never do; tests/test_ledger_bulk.py compares the call for many with the calls for one.": (
        "Ledger.release_many without self.release(request, chosen, group)",
    ),
    "What is chosen changes, not what is safe: other or fewer chunks are stored, something is computed or asked for once more, or another place goes first. tests/test_offload.py, tests/test_stores.py and tests/test_host.py say what has to be chosen.": (
        "Ledger.demote without self.blocks.queue.push_front([place for place in listed(ids_of(chosen)) if state[place] == cached])",
        "Places.name without index.setdefault(key, place)",
        "Slots._publish without self.on_change(stored, place, group, key)",
        "SchedulerCore._offer without self._offer_chunks(name, tracked.row, group, chunks)",
        "SchedulerCore._offer_chunks without self._progress.offered[group, row] = stop",
        "SchedulerCore._offer_states without self.stores.offer(Chunk(name, group, key, [NULL] * (size - 1) + [life]))",
        "SchedulerCore._hear_of_loads without self._end_load(name)",
        "SchedulerCore._hear_of_loads without table.computed[tracked.row] = hit.compute_from",
        "SchedulerCore._hear_of_loads without self._drop(name, tracked)",
        "SchedulerCore._end without self._preempted.pop(name, None)",
        "SchedulerCore._end without self._offer(name, tracked, min(computed, last))",
        "SchedulerCore._end without self._touch(tracked, computed)",
        "SchedulerCore._end without self.stores.plan([name])",
        "SchedulerCore._touch without self.tier.touch(slots)",
        "OffloadScheduler.preempt without self._offer(name, tracked, int(self._progress.computed[tracked.row]))",
        "StoreLine.plan without self._take_back()",
        "StoreLine.plan without self._settle_exposed()",
        "StoreLine._ripe without line.extendleft(reversed(kept))",
        "StoreLine._ripe without lives.discard(NULL)",
        "StoreLine._judge without chunk.lives[position] = NULL #2",
        "StoreLine._make without self._made[job.number] = (owner, chunks)",
        "StoreLine._make without line.popleft()",
        "StoreLine._make without self._exposed[job.number] = [life for chunk in chunks for life in chunk.lives if life != NULL]",
        "StoreLine._take_back without self._line.setdefault(owner, deque()).extendleft(reversed(chunks))",
        "StoreLine.collect without del self._candidates[life & ID_MASK]",
        "StoreLine._settle_exposed without self._ledger.demote(lives)",
        "HostTier.touch without self._tell_gone()",
        "HostTier.reserve without self._tell_gone()",
        "HostTier.reserve without self._tell_gone() #2",
        "HostTier._tell_gone without self._gone.clear()",
    ),
    "It belongs to allocators that an engine owns, and the explored ledger owns its pool. tests/test_ledger.py and tests/test_offload.py hold their calls to the same rules.": (
        "Ledger.observe_free without self.release(request, [where[block] for block in blocks], group)",
        "OffloadScheduler.free without self._tracked(name)",
        "OffloadScheduler.free without self.ledger.observe_free(name, blocks, group)",
    ),
    "The engine of these worlds samples one token at a time and takes none back; tests/test_offload_walks.py rolls drafts back at random.": (
        "SchedulerCore._offer without self._cut_states(name, tokens)",
        "SchedulerCore._offer without self._offer_states(name, tracked.row)",
        "SchedulerCore._offer_states without self._states[name] = later",
        "SchedulerCore._cut_states without self._states[name] = [state for state in self._states[name] if state[1] <= tokens]",
        "SchedulerCore._advance without news[position] = count",
        "SchedulerCore._forget_taken_back without self._states[name] = [state for state in self._states[name] if state[:2] != (group, boundary)]",
        "SchedulerCore._end without self._cut_states(name, int(table.computed[row] + table.in_flight[row]))",
        "SchedulerCore._drop without self._states.pop(name, None)",
        "OffloadScheduler.settle without self._forget_taken_back(done.handed)",
        "OffloadScheduler.settle without self._tracked(name)",
    ),
    "The last copies of a request that is over are then not waited for by the last plan; ticking goes on until they land. tests/test_seeds.py asks for the wait (S5).": (
        "SchedulerCore._end without self._ended.add(name)",
    ),
    "The engine of these worlds makes no call between a lookup, a hand-off and the plan of their step; tests/test_offload.py does.": (
        "SchedulerCore._drop without self._unpin(name)",
        "SchedulerCore._drop without tracked.hit = None",
        "SchedulerCore._forget without self._handed = {}",
    ),
    "Wishes from before a reset name lives that are over, and are dropped when their turn comes.": (
        "SchedulerCore._forget without self.stores.clear()",
        "StoreLine.clear without self._line.clear()",
        "StoreLine.clear without self._candidates.clear()",
        "StoreLine.clear without self._exposed.clear()",
        "StoreLine.clear without self._made.clear()",
    ),
    "A request whose end had waited for a plan waits like one that was preempted, comes once more, and ends then. tests/test_offload.py asks that it ends at once.": (
        "SchedulerCore._forget without self._end(name, ending)",
    ),
    "Waits are ordered for copies that nobody needs to wait for; nothing else depends on it.": (
        "OffloadScheduler.settle without self._ended = {name for name in self._ended if name in self.ledger.jobs.owned}",
    ),
    "The scheduler keeps the name of the present weights only to refuse it twice; that their content is forgotten is another step, and found.": (
        "OffloadScheduler.renew without self.generation = generation",
    ),
    "The row is taken anew, and cleared then, before anybody reads it again.": (
        "ProgressTable.clear without table[:, row] = 0",
        "ProgressTable.leave without self.clear(row)",
        "ProgressTable.leave without self.prompt[row] = self.known[row] = 0",
    ),
}
"""Mutants by argument, in the order of the list."""

UNFOUND: Mapping[str, str] = {mutant: why for why, mutants in _ARGUMENTS.items() for mutant in mutants}
"""The argument, by mutant."""
