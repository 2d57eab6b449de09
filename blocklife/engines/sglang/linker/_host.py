"""Host memory behind SGLang's tree: what can be loaded, what is being stored, and in which order that is acknowledged.

SGLang's tree decides what is stored and when, and its allocators hand out the memory of the device. What is left is the ledger
itself, and the host tier on top of it, for each memory (`_memory`): this package calls them directly, without the scheduler of
offloading. A hit needs content in all of them: pages of full attention from the first token on, and behind its last token the
pages of a window, or a state.

*A store.* SGLang locks the node whose pages it names, until it has taken the acknowledgement. Stores are acknowledged in the
order in which they were made, whatever order they land in: the tree of each rank takes the oldest, and all ranks take the same
number of them.

*Never a no.* A store is always accepted, and one that finds no room is acknowledged as failed. The ranks take the smaller of
two numbers, never compare which stores they are of, and would go on with different ones if one of them had declined (sglang
28429). The outcome of each is what all ranks agree on.

*A load.* Its blocks belong to a request of SGLang, and to no one else until they are in the tree. It is launched as soon as it
is asked for: one that cannot be launched is refused while SGLang can still compute its pages instead.

*Between a lookup and its load* no store gives anything up: those that SGLang has offered in a step are planned at the start of
the next. What another lookup fetches from a store below may; then the load is refused, and SGLang computes its pages.

*A store below.* SGLang has no form for "not yet": a lookup that finds more there begins to bring it here (`fetch`), and names
only what has come.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence

from attrs import frozen

from blocklife.engines.sglang.linker._memory import LinkedCopy, LinkedMemory
from blocklife.errors import MisuseError
from blocklife.ledger import Checking, Completion, JobId, Launched, Limits, Plan
from blocklife.offload import BelowIndex, BelowPolicies, BelowStatistics

OfMemories = Sequence[Sequence[JobId]]
"""Jobs of each memory; their numbers are those of its ledger."""


@frozen
class LinkedPages:
    """What one call names of one memory."""

    memory: int
    """Its number; 0 has the pages of full attention."""
    keys: Sequence[bytes]
    blocks: Sequence[int] = ()
    """One for each key; none in a lookup."""


@frozen
class LinkerStatistics:
    """What a linker has done so far. A node or a request has a copy in each memory of which it has pages."""

    num_stored: int = 0
    """Pages copied to host memory; with what was lost on the way."""
    num_loaded: int = 0
    """Pages copied from it."""
    num_failed_stores: int = 0
    """Copies to it that failed."""
    num_cancelled_stores: int = 0
    """Copies to it that a flush or the end has overtaken."""
    num_refused_loads: int = 0
    """Requests whose load could not be launched, on this rank or another: SGLang has computed their pages."""
    num_failed_loads: int = 0
    """Requests whose load failed on this rank after its launch. SGLang aborts them on all ranks, and all others that load in
    their batch."""
    num_no_room: int = 0
    """Copies that were not made because all of host memory was in use."""
    num_known: int = 0
    """Pages that were in host memory already when they were offered."""


class LinkedHost:
    """One rank's host memory, in parts: one for each memory of the device, with pages of full attention first.

    Invariant: a copy that is not taken is in ``_stores``, or of a load that is queued, started, or left behind by a batch that
    is finished.
    """

    def __init__(
        self,
        limits: Sequence[Limits],
        *,
        policy: str = "arc",
        checking: Checking = Checking.COUNT,
        deadline: float = 60.0,
        indexes: Sequence[BelowIndex] = (),
        below: BelowPolicies | None = None,
    ) -> None:
        """*indexes* know the store below, one for each memory; none without one."""
        self.memories = [
            LinkedMemory(
                number,
                each,
                policy=policy,
                checking=checking,
                deadline=deadline,
                count=self._count,
                index=indexes[number] if indexes else None,
                below=below,
            )
            for number, each in enumerate(limits)
        ]
        self._stores: deque[list[LinkedCopy]] = deque()
        self._queued: dict[str, list[LinkedCopy]] = {}
        self._started: dict[int, list[list[LinkedCopy]]] = {}
        self._left: list[LinkedCopy] = []
        self._batch = -1
        self._counts: Counter[str] = Counter()

    # --- lookups ------------------------------------------------------------------------------------------------------------

    def fetch(self, wanted: Sequence[LinkedPages]) -> bool:
        """Begin to bring from below what makes the hit of a lookup longer. False if nothing comes that would.

        Another call goes on with what the answers of the store, and the pages that have come, leave to be done.
        """
        first, keys = self.memories[wanted[0].memory], wanted[0].keys
        if first.below is None:
            return False
        here, most = first.num_found(keys), first.below.policies.max_slots
        end, unsure = first.reach(keys[: here + most], here)
        found = [*range(1, end + 1)]
        for pages in wanted[1:]:
            begin = max(0, end - most)
            there, unknown = self.memories[pages.memory].found_below(keys[begin:end])
            found, unsure = _ends(found, [False] * begin + there, len(pages.keys)), unsure or unknown
        reach = found[-1] if found else 0
        if reach <= max(self.lookup(wanted), default=0):
            return unsure
        comes = first.promote(keys[here:reach], keys[:here])
        for pages in wanted[1:]:
            comes = self.memories[pages.memory].promote(keys[max(0, reach - len(pages.keys)) : reach]) or comes
        return comes or unsure

    def gave_up(self) -> None:
        """A lookup goes on with what has come from below so far."""
        for memory in self.memories:
            memory.gave_up()

    def lookup(self, wanted: Sequence[LinkedPages]) -> list[int]:
        """All numbers of pages, from the first on, that can be loaded: with full attention alone each number up to the most.

        Of the other memories *wanted* has the last keys that a hit of all of them needs: the pages of a window, or one state.
        """
        keys = wanted[0].keys
        most = self.memories[wanted[0].memory].num_found(keys)
        found = [*range(1, most + 1)]
        for pages in wanted[1:]:
            memory = self.memories[pages.memory]
            found = _ends(found, map(memory.has, keys[: found[-1] if found else 0]), len(pages.keys))
        return found

    # --- stores -------------------------------------------------------------------------------------------------------------

    def store(self, node: Sequence[LinkedPages]) -> None:
        """Plan to bring the content of a node to host memory, as far as it is not there. Never declined: see above.

        Refuses: a block that another copy holds, which SGLang must not hand out.
        """
        copies: list[LinkedCopy] = []
        try:
            for pages in _checked("store", node):
                copies.append(self.memories[pages.memory].store(pages.keys, pages.blocks))
        except Exception:
            _give_up(copies)
            raise
        self._stores.append(copies)

    @property
    def is_idle(self) -> bool:
        """Whether no copy is planned or out, and no store has an outcome that SGLang has not taken."""
        return not self._stores and not any(memory.ledger.jobs.live for memory in self.memories)

    @property
    def num_acknowledged(self) -> int:
        """How many stores, from the oldest on, have an outcome."""
        count = 0
        for node in self._stores:
            if not all(copy.is_over for copy in node):
                break
            count += 1
        return count

    def acknowledge(self) -> bool:
        """SGLang takes the outcome of the oldest store, and gives its pages free. Refuses one that is still out."""
        if not self.num_acknowledged:
            raise MisuseError("linker: no store is over (ask num_completed_offloads first)")
        return _taken(self._stores.popleft())

    # --- loads --------------------------------------------------------------------------------------------------------------

    def load(self, rid: str, wanted: Sequence[LinkedPages]) -> bool:
        """Plan a load for the next batch. False if not all of it is there (any more): then nothing has changed.

        Refuses: a second load of one request, and a block that a copy still reads, which SGLang must not hand out.
        """
        if rid in self._queued:
            raise MisuseError(f"linker: a load of request {rid} is queued already (cancel_queued_load first)")
        if any(self.memories[pages.memory].num_found(pages.keys) < len(pages.keys) for pages in _checked("load", wanted)):
            return False
        copies: list[LinkedCopy] = []
        try:
            for pages in wanted:
                copies.append(self.memories[pages.memory].load(rid, pages.keys, pages.blocks))
        except Exception:
            _give_up(copies)
            raise
        self._queued[rid] = copies
        return True

    def is_refused(self, rid: str) -> bool:
        """Whether a load that is queued has failed already: it could not be launched."""
        return any(copy.is_over and not copy.has_arrived for copy in self._queued.get(rid, ()))

    def queued(self, rid: str) -> OfMemories:
        """The copies of a load that is queued, and not over."""
        return self._of_memories(self._queued.get(rid, ()))

    def cancel(self, rid: str, *, refused: bool = False) -> bool:
        """Give up the queued load of a request. Returns False if it has none. Refuses a load whose copy is under way."""
        copies = self._queued.get(rid)
        if copies is None:
            return False
        for copy in copies:
            copy.memory.check_idle(copy)
        _give_up(self._queued.pop(rid))
        self._count(num_refused_loads=int(refused))
        return True

    def start_loads(self) -> int:
        """The loads that are queued belong to the batch that starts now. Returns its number, -1 if there are none."""
        if not self._queued:
            return -1
        self._batch += 1
        self._started[self._batch] = [*self._queued.values()]
        self._queued.clear()
        return self._batch

    def loading(self, batch: int) -> OfMemories:
        """The copies of a batch that is not finished, as far as they are not over."""
        return self._of_memories(copy for load in self._started.get(batch, ()) for copy in load)

    def blocks_of(self, batch: int, memory: int) -> list[int]:
        """The blocks of a memory that they write."""
        loads = self._started.get(batch, ())
        return [block for load in loads for copy in load if copy.memory.number == memory for block in copy.blocks]

    def finish_loads(self, batch: int, *, wait: bool = True) -> bool:
        """The forward pass of a batch was launched: whether all of its loads have arrived, or will.

        With *wait* its copies are quiet, and one without a report has failed. Without, it is for the device to let the pass
        wait: a copy that is still out arrives, or the device is lost, and the pass with it.
        """
        if wait:
            self.quiesce(self.loading(batch))
        loads, whole = self._started.pop(batch, []), True
        for load in loads:
            self._left += (out := [copy for copy in load if not copy.is_over])
            done = _taken([copy for copy in load if copy not in out])
            self._count(num_failed_loads=int(not done))
            whole = whole and done
        return whole

    def left_in(self, pages: Iterable[LinkedPages]) -> OfMemories:
        """Copies of finished batches that are still out, into blocks that SGLang has handed out again."""
        if not self._left:
            return self._of_memories(())
        blocks = [(each.memory, block) for each in pages for block in each.blocks]
        return self._of_memories(
            copy for copy in self._left if not {(copy.memory.number, block) for block in copy.blocks}.isdisjoint(blocks)
        )

    # --- plans and reports --------------------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """Plan what goes to the store below."""
        for memory in self.memories:
            memory.begin_step()

    def dispatch(self, now: float) -> list[tuple[int, Plan]]:
        """The copies that can begin, with the number of their memory."""
        plans = ((memory.number, memory.dispatch(now)) for memory in self.memories)
        return [(number, plan) for number, plan in plans if plan is not None]

    def settle(
        self, memory: int, plan: Plan, now: float, launched: Sequence[Launched], completions: Sequence[Completion]
    ) -> None:
        """A plan was carried out, and this was reported meanwhile."""
        self.memories[memory].settle(plan, now, launched, completions)

    def report(self, memory: int, completions: Iterable[Completion]) -> None:
        """Reports without a plan."""
        self.memories[memory].report(completions)
        if self._left:
            over = [copy for copy in self._left if copy.is_over]
            self._left = [copy for copy in self._left if copy not in over]
            self._count(num_failed_loads=int(not _taken(over)))

    def expire(self, now: float) -> OfMemories:
        """The copies that are past their deadline, each once. They are not over until they are quiet."""
        return [memory.expire(now) for memory in self.memories]

    def quiesce(self, jobs: OfMemories) -> None:
        """These copies are proven quiet; those without a report have failed."""
        for memory, those in zip(self.memories, jobs, strict=True):
            memory.quiesce(those)

    def out(self) -> OfMemories:
        """The copies that have begun and are not over."""
        return [memory.out() for memory in self.memories]

    def reset(self) -> None:
        """Forget everything. Refuses while a copy is out: its memory is not free yet."""
        for memory in self.memories:
            memory.check_quiet()
        for memory in self.memories:
            memory.reset()
        self._stores.clear()
        self._queued.clear()
        self._started.clear()
        self._left.clear()
        self._batch = -1

    def statistics(self) -> LinkerStatistics:
        """Counts since the start."""
        return LinkerStatistics(**self._counts)

    def statistics_below(self) -> list[BelowStatistics]:
        """Counts of the store below, for each memory; none without one."""
        return [memory.below.statistics() for memory in self.memories if memory.below is not None]

    # --- helpers ------------------------------------------------------------------------------------------------------------

    def _of_memories(self, copies: Iterable[LinkedCopy]) -> OfMemories:
        found: list[list[JobId]] = [[] for _ in self.memories]
        for copy in copies:
            if copy.job is not None and not copy.is_over:
                found[copy.memory.number].append(copy.job)
        return found

    def _count(self, **more: int) -> None:
        self._counts.update(more)


def _ends(lengths: list[int], there: Iterable[bool], width: int) -> list[int]:
    """Of these lengths, which ascend, those whose last pages, *width* or all of them, are *there* without a gap."""
    run, runs = 0, [0]
    for each in there:
        run = run + 1 if each else 0
        runs.append(run)
    return [length for length in lengths if runs[length] >= min(width, length)]


def _taken(copies: Collection[LinkedCopy]) -> bool:
    """The engine takes these copies, which are over. Returns whether all have arrived."""
    whole = all(copy.has_arrived for copy in copies)
    for copy in copies:
        copy.memory.take(copy)
    return whole


def _give_up(copies: Iterable[LinkedCopy]) -> None:
    for copy in copies:
        copy.memory.give_up(copy)


def _checked(what: str, pages: Sequence[LinkedPages]) -> Sequence[LinkedPages]:
    for each in pages:
        if len(each.keys) != len(each.blocks) or not each.keys:
            raise MisuseError(
                f"linker: a {what} of {len(each.keys)} keys and {len(each.blocks)} pages (give one page for each key)"
            )
    return pages
