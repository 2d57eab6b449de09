"""Hooks on the scheduler side of vLLM's OffloadingConnector; they translate its jobs for the mirror.

They read the metadata for the workers, the workers' reports, and the keys that the scheduler keeps of each job and request,
which tell what content a job claims to store. Releases differ in the shape of the metadata, not in names.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import operator
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from types import FrameType
from typing import Protocol, TypeAlias, TypeGuard

from blocklife.engines.vllm.watch._connector_hooks import ConnectorHooks
from blocklife.engines.vllm.watch._reading import EngineProgress, ending_of, first_int
from blocklife.engines.vllm.watch._tiering import TieringHooks, is_tiering, primary_of
from blocklife.watch import CopyPiece, EngineCopy, HeardCall, Mirror, TakesBack, TierBook, Watch

_WORKER = "vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker"

_SLOTS = ("_num_allocated_chunks", "_free_list", "_num_evictable_cache_chunks")
"""Functions of a slot manager: how many slots it has ever used, which are free again, and how many can be evicted."""
_CHUNK_TOKENS = ("tokens_per_chunk", "offloaded_block_size")
"""Names of how many tokens a chunk of a group has."""
_CHUNK_WINDOW = ("sliding_window_size_in_chunks", "sliding_window_size_in_blocks")
"""Names of how many chunks, at the end of a hit, are read in a group that does not read all."""
Chunks: TypeAlias = tuple[Sequence[int], Sequence[bytes]]
"""Indices of chunks in a request, with their keys."""


class Spec(Protocol):
    """The device side of a job: block ids, how many of each group, and the position of the first of each group."""

    block_ids: Sequence[int]
    group_sizes: Sequence[int]
    block_indices: Sequence[int]


class GroupState(Protocol):
    """What the connector keeps of a request in one group."""

    block_ids: Sequence[int]
    offload_keys: Sequence[bytes]


class OffloadingHooks(ConnectorHooks):
    """Hooks on an OffloadingConnectorScheduler. *progress* is that of the engine's requests."""

    def __init__(self, watch: Watch, mirror: Mirror, scheduler: object, progress: EngineProgress) -> None:
        super().__init__(watch, mirror, scheduler)
        self._progress = progress
        self._blocks_per_chunk = blocks_per_chunk_of(scheduler)
        self._sample = mirror.sample
        self._left_by = self._sample.__rmod__
        """Block id modulo the sample: 0, if the block is followed."""
        self._configs: Sequence[object] = getattr(getattr(scheduler, "config", None), "kv_group_configs", ())
        self._groups = [int(getattr(config, "group_idx", at)) for at, config in enumerate(self._configs)]
        """For each group of the connector, the engine's group."""
        self._launches_flushed = launches_flushed()
        self._shapes: dict[type, Callable[[object], tuple[object, object, object]]] = {}
        self._made = first_int(scheduler, "_job_counter")
        mirror.jobs.forgotten = self._made - 1
        watch.ears.hear(scheduler, "reset_cache", after=self._reset)
        # Content from tiers of another kind below this one would arrive unseen.
        manager = getattr(scheduler, "manager", None)
        mirror.hears_all = sees_all = type(manager).__name__ == "CPUOffloadingManager"
        self._below: TierBook | None = None
        if is_tiering(manager):
            self._below = TieringHooks(watch, mirror, manager, alone=False).below
            sees_all = self._below.slots.sees_all
        self._primary = primary_of(manager)
        mirror.host.sees_all = sees_all and not self._made
        if mirror.hears_all or is_tiering(manager):
            mirror.num_held = self._num_held
        tokens = [first_int(config, "tokens_per_block", "gpu_block_size") for config in self._configs]
        sizes = dict(zip(self._groups, tokens, strict=True))
        self.block_tokens = [sizes.get(group, 0) for group in range(max(sizes, default=-1) + 1)]
        self._odd: list[tuple[str, str, str | None, int]] = []
        # The manager's function from key to slot, if there is one; and the key under which each slot was stored last.
        self._find: Callable[[bytes], object] | None = getattr(getattr(self._primary, "_policy", None), "get", None)
        self._stored: dict[int, bytes] = {}
        self._hashes = [first_int(config, "hashes_per_chunk", "hash_block_size_factor") for config in self._configs]
        """How many block hashes of a request one chunk of each group covers."""

    # --- hooked calls -------------------------------------------------------------------------------------------------------

    def _builds(self, call: HeardCall) -> TakesBack:
        return functools.partial(self._explain, call)

    def _built(self, call: HeardCall) -> None:
        meta, output = call.result, call.first
        stores, loads = jobs_of(meta, "store_jobs"), jobs_of(meta, "load_jobs")
        waits = set(getattr(meta, "jobs_to_flush", None) or ())
        if not self._launches_flushed:
            waits -= stores.keys()
        if self._mirror.computes:
            self._progress.advance(output)
        copies = [self._copy(number, job, store=True) for number, job in stores.items()]
        brought = [self._copy(number, job, store=False) for number, job in loads.items()]
        self._mirror.step(
            stores=copies, loads=brought, waits=waits, computes=self.computes(output), missing=self._missing(brought)
        )
        self._report_odd(stores.keys() | loads.keys())

    def _report_odd(self, named: Collection[int]) -> None:
        """Report what is wrong with the jobs of a step, except for their blocks."""
        odd, self._odd = self._odd, []
        for rule, what, request, number in odd:
            self._mirror.story.violate(rule, what, request=request, job=number)
        made, self._made = self._made, first_int(self._scheduler, "_job_counter")
        for number in range(made, self._made):
            if number in getattr(self._scheduler, "_jobs", {}) and number not in named:
                what = f"job {number} was made, but not sent to the workers"
                self._mirror.story.violate("I5", what, job=number)

    def _hear(self, output: object) -> None:
        meta = getattr(output, "kv_connector_worker_meta", None)
        for job, count in (getattr(meta, "completed_jobs", None) or {}).items():
            self._mirror.reported(job, count)

    def _reset(self, call: HeardCall) -> None:
        self._mirror.reset()
        known = getattr(self._scheduler, "_jobs", {})
        forgotten = [
            (name, job)
            for name, status in getattr(self._scheduler, "_req_status", {}).items()
            for job in sorted(status.transfer_jobs - known.keys())
        ]
        if forgotten:
            self._mirror.catch_up()
        for name, job in forgotten:
            what = f"a reset has forgotten job {job}, but request {name} waits for it for ever"
            self._mirror.story.violate("I10", what, request=name, job=job)

    def _num_held(self) -> int | None:
        """How many slots are neither free nor evictable: a copy writes them, or they are pinned."""
        used, free, idle = (getattr(self._primary, name, None) for name in _SLOTS)
        if isinstance(used, int) and isinstance(free, list) and isinstance(idle, int):
            return used - len(free) - idle
        return None

    def _lacks(self, name: str, request: object, start: int, end: int) -> str:
        known, find = getattr(self._scheduler, "_req_status", {}).get(name), self._find
        if known is None or find is None:
            return ""
        tail = getattr(known, "partial_tail_boundary", None) is not None  # which has a key of its own
        for group, config, state in zip(self._groups, self._configs, known.group_states, strict=False):
            if not (size := first_int(config, *_CHUNK_TOKENS)):
                continue
            window, until = first_int(config, *_CHUNK_WINDOW), -(-end // size)
            first = max(start // size, until - window) if window else start // size
            keys = state.offload_keys[first : until - tail]
            for at, key in enumerate(keys, first):
                if (chunk := find(key)) is None:
                    return f"has no chunk {at} of group {group}"
                if not getattr(chunk, "is_ready", True):
                    return f"is still storing chunk {at} of group {group}"
            if len(keys) < until - tail - first:
                return f"has no chunk {first + len(keys)} of group {group}, for which the request has no key"
        return ""

    def _let_in(self, call: HeardCall) -> None:
        name = getattr(call.first, "request_id", None)
        if name in self._within:
            self._within.discard(name)
            jobs = jobs_of(self._scheduler, "_current_batch_load_jobs")
            number = next(reversed(jobs), None)
            if number is not None and self._shape(jobs[number])[0] == name and not getattr(jobs[number], "sync", False):
                what = f"a lookup has said that {name} need not wait for its load, but it has to for job {number}"
                self._mirror.story.violate("I6", what, request=name, job=number)

    # --- jobs ---------------------------------------------------------------------------------------------------------------

    def _copy(self, number: int, job: object, *, store: bool) -> EngineCopy:
        request, source, target = self._shape(job)
        named = request if isinstance(request, str) else None
        device, host = (source, target) if store else (target, source)
        blocks, sample = _listed(getattr(device, "block_ids", None)), self._sample
        sync = not store and bool(getattr(job, "sync", False))
        if blocks is None or (sample > 1 and all(map(self._left_by, blocks))) or not _is_readable(device):
            return EngineCopy(number, named, (), sync)
        status = getattr(self._scheduler, "_jobs", {}).get(number)
        known = getattr(self._scheduler, "_req_status", {}).get(request)
        names: Collection[bytes] = getattr(status, "keys", None) or ()
        slots = _listed(getattr(host, "block_ids", None)) or ()
        size, end = self._blocks_per_chunk, self._mirror.num_blocks
        pieces: list[CopyPiece] = []
        first = first_slot = 0
        hashes: Sequence[bytes] = getattr(getattr(known, "req", None), "block_hashes", ())
        odd: list[str] = []
        for each, count in enumerate(device.group_sizes):
            if not count:
                continue
            start = int(device.block_indices[each])
            used = -(-(start % size + count) // size)
            keys = known.group_states[each].offload_keys if known is not None and names else ()
            group = self._groups[each] if each < len(self._groups) else each
            here, there = blocks[first : first + count], slots[first_slot : first_slot + used]
            chunks = numbers, own_keys = _chunks(keys, names, start // size, used)
            followed = [(at, block) for at, block in enumerate(here) if not block % sample and 0 < block < end]
            asked: Iterable[int] = range(len(numbers))
            if sample > 1 and len(numbers) == used:  # a chunk without a followed block is not checked
                asked = dict.fromkeys([(start % size + at) // size for at, _ in followed])
            if hashes and each < len(self._hashes):
                of = hashes, self._hashes[each], group
                self._ask_keys(number, named, [(numbers[at], own_keys[at]) for at in asked], of, store=store)
            if len(numbers) == len(there):
                self._ask_slots(number, named, [(own_keys[at], there[at]) for at in asked], store=store)
            if len(numbers) < used and keys:
                odd.append(f"{used} chunks of group {group}, and keys of {len(numbers)}")
            pieces += self._pieces(group, start, count, followed, there, chunks)
            first, first_slot = first + count, first_slot + used
        if odd and known is not None and not set(names) <= {key for state in known.group_states for key in state.offload_keys}:
            odd = []  # some keys are not those of whole chunks
        if slots and first_slot != len(slots):
            odd.append(f"blocks for {first_slot} slots, and {len(slots)} slots")
        self._odd += [("I15", f"job {number} has {each}", named, number) for each in odd]
        if store:
            self._ask_places(number, named, blocks, pieces)
        return EngineCopy(number, named, pieces, sync)

    def _shape(self, job: object) -> tuple[object, object, object]:
        """The request, the source and the target of a job."""
        if (shape := self._shapes.get(type(job))) is None:
            shape = self._shapes[type(job)] = _shape_of(job)
        return shape(job)

    def _ask_keys(
        self,
        number: int,
        request: str | None,
        chunks: Iterable[tuple[int, bytes]],
        of: tuple[Sequence[bytes], int, int],
        *,
        store: bool,
    ) -> None:
        """Check that the key of each chunk is the hash of all tokens up to its end, with its group."""
        hashes, factor, group = of
        ending = ending_of(group)
        for at, key in chunks if factor else ():
            last = (at + 1) * factor - 1
            if last >= len(hashes) or hashes[last] + ending != key:
                does, rule = ("stores", "I8") if store else ("loads", "I6")
                what = f"job {number} {does} chunk {at} of {request} in group {group} by a key that is not that of its position"
                self._odd.append((rule, what, request, number))
                return

    def _ask_slots(self, number: int, request: str | None, places: Iterable[tuple[bytes, int]], *, store: bool) -> None:
        """Check that the manager maps each key of a job to the slot that the job names, and no older key to that slot."""
        if (find := self._find) is None:
            return
        for key, slot in places:
            if (there := getattr(find(key), "chunk_id", slot)) != slot:
                does, rule = ("stores into", "I8") if store else ("loads from", "I6")
                what = f"job {number} {does} slot {slot}, but the manager has its key for slot {there}"
                self._odd.append((rule, what, request, number))
            if not store:
                continue
            if self._below is not None and (known := self._below.slots.holds(key)) is not None and known[1] >= 0:
                what = f"job {number} stores into slot {slot}, which can be read already"
                self._odd.append(("I6", what, request, number))
            older = self._stored.get(slot, key)
            if older != key and getattr(find(older), "chunk_id", None) == slot:
                what = f"job {number} stores into slot {slot}, which is still found by the key of what it held before"
                self._odd.append(("I6", what, request, number))
            self._stored[slot] = key

    def _ask_places(self, number: int, request: str | None, blocks: Sequence[int], pieces: Iterable[CopyPiece]) -> None:
        """Check that a store reads blocks in use, whose content is computed by the end of the step."""
        if 0 in blocks:
            self._odd.append(("I8", f"job {number} stores the null block", request, number))
        if (reach := self._progress.reach.get(request or "")) is None:
            return
        for piece in pieces:
            if piece.key is None or piece.position is None or piece.group >= len(self.block_tokens):
                continue
            end = (piece.position + 1) * self.block_tokens[piece.group]
            if end > reach:
                what = f"job {number} stores block {piece.block} up to token {end} of {request}, but only {reach} are computed"
                self._odd.append(("I8", what, request, number))
                return

    def _pieces(
        self, group: int, start: int, count: int, followed: Iterable[tuple[int, int]], slots: Sequence[int], chunks: Chunks
    ) -> Iterable[CopyPiece]:
        """The followed blocks of a job in one group, chunk by chunk; the first chunk may be cut at its start."""
        size, (numbers, keys) = self._blocks_per_chunk, chunks
        if size == 1 and len(numbers) == len(slots) == count:  # as nearly always
            return [CopyPiece(group, block, numbers[at], slots[at], keys[at]) for at, block in followed]
        used = -(-(start % size + count) // size)
        found: list[CopyPiece] = []
        for at, block in followed:
            chunk, offset = divmod(start % size + at, size)
            number, key = (numbers[chunk], keys[chunk]) if len(numbers) == used else (None, None)
            position = start + at if number is None and used == 1 else None if number is None else number * size + offset
            found.append(CopyPiece(group, block, position, slots[chunk] if chunk < len(slots) else None, key, offset))
        return found

    # --- errors of the engine itself ----------------------------------------------------------------------------------------

    def _explain(self, call: HeardCall) -> None:
        """The engine has raised an error while planning a step: report what was wrong, if it can be seen."""
        self._mirror.catch_up()
        if self._mirror.computes:
            self._mirror.jobs.compute(self.computes(call.first))
        for frame in _frames(sys.exception()):
            seen = frame.f_locals
            if frame.f_code.co_name == "__init__":  # for a job's description; elsewhere these names mean something else
                self._sizes(seen.get("block_ids"), seen.get("group_sizes"))
            if isinstance(request := seen.get("req_id"), str):
                self._tenancies(request, seen.get("num_offloadable_tokens"))

    def _sizes(self, blocks: object, sizes: object) -> None:
        """Check whether the engine was making a job whose sizes do not add up."""
        if isinstance(blocks, Sequence) and isinstance(sizes, Sequence) and sum(sizes) != len(blocks):
            what = f"a job of {len(blocks)} blocks with group sizes {list(sizes)}"
            self._mirror.story.violate("I15", what, block=blocks[-1] if blocks else None)

    def _tenancies(self, request: str, tokens: object) -> None:
        """Check whether the engine was about to store blocks that have a new tenant by now."""
        known = getattr(self._scheduler, "_req_status", {}).get(request)
        states: Sequence[GroupState] = getattr(known, "group_states", ())
        for group, state, config in zip(self._groups, states, self._configs, strict=False):
            size = first_int(config, *_CHUNK_TOKENS)
            stored = first_int(state, "next_stored_chunk_idx", "next_stored_block_idx")
            until = tokens // size * self._blocks_per_chunk if isinstance(tokens, int) and size else len(state.block_ids)
            for position in range(stored * self._blocks_per_chunk, min(until, len(state.block_ids))):
                block = state.block_ids[position]
                if not self._mirror.follows(block):
                    continue
                if wrong := self._mirror.jobs.not_its_place(request, group, position, block):
                    what = f"block {block} is about to be stored for {wrong}"
                    self._mirror.story.violate("I8", what, block=block, request=request)


def launches_flushed() -> bool:
    """Whether a worker launches stores of the current step before it waits for them; older releases do not.

    This is read from the worker's code, since the metadata look the same.
    """
    try:
        worker = vars(importlib.import_module(_WORKER))["OffloadingConnectorWorker"]
    except ImportError:
        return True
    code = getattr(inspect.unwrap(getattr(worker, "handle_preemptions", lambda: None)), "__code__", None)
    return code is None or "store_jobs" in code.co_names


def blocks_per_chunk_of(scheduler: object) -> int:
    """How many blocks of a group make a chunk."""
    return first_int(getattr(scheduler, "config", None), "blocks_per_chunk", "block_size_factor") or 1


def jobs_of(meta: object, name: str) -> dict[int, object]:
    """What metadata have under this name, by number of a job; nothing if they have no such thing."""
    found = getattr(meta, name, None)
    return found if isinstance(found, dict) else {}


def _shape_of(job: object) -> Callable[[object], tuple[object, object, object]]:
    """How to read the request, the source and the target of a job of this type; cached, since it is needed in every step."""
    if hasattr(job, "transfer_spec"):
        pair = operator.attrgetter("req_id", "transfer_spec")
        return lambda job: ((found := pair(job))[0], *found[1])
    if all(hasattr(job, name) for name in ("req_id", "src_spec", "dst_spec")):
        return operator.attrgetter("req_id", "src_spec", "dst_spec")
    return lambda job: (None, None, None)


def _is_readable(device: object) -> TypeGuard[Spec]:
    """Whether it gives the number of blocks of each group, and their positions."""
    return hasattr(device, "group_sizes") and hasattr(device, "block_indices")


def _listed(ids: object) -> list[int] | None:
    """Ids as a list of plain numbers (some releases have arrays); None if they are not ids."""
    if (plain := getattr(ids, "tolist", None)) is not None:
        ids = plain()
    if isinstance(ids, list):
        return ids
    return list(ids) if isinstance(ids, Sequence) and not isinstance(ids, str | bytes) else None


def _chunks(keys: Sequence[bytes], names: Collection[bytes], first: int, used: int) -> Chunks:
    """The chunks of a job, as the scheduler has filed them: index in the request, and key."""
    near = keys[first : first + used]
    if len(near) == used and all(map(names.__contains__, near)):  # consecutive chunks, as nearly always
        return range(first, first + used), near
    numbers = list(itertools.islice((at for at in range(first, len(keys)) if keys[at] in names), used))
    return numbers, [keys[at] for at in numbers]


def _frames(error: BaseException | None) -> Iterator[FrameType]:
    """The frames that an error passed through, innermost first."""
    trace, found = None if error is None else error.__traceback__, list[FrameType]()
    while trace is not None:
        found.append(trace.tb_frame)
        trace = trace.tb_next
    return reversed(found)
