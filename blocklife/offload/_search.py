"""Finds the prefix that a request need not compute: the common hit of all groups, on the device and then in the host tier.

Rules of this file:

* It only reads; the scheduler pins what it finds.
* A hit is exactly what a load then reads (I7).
* Content that is being copied, to the host tier or to the device for another request, is waited for, not fetched twice (I12,
  I14). Beside layers of a drafter the last block of a load is no hit on the device, and each request loads it for itself.
* A tail is looked for behind the common hit of whole chunks, in the host tier only, and inside the next two blocks only. It
  counts if all groups have theirs now. It is waited for only if nothing else was found in the host tier.
* A tail brings along what the common hit may have lacked at the end of the next block: a state, or the proof of a drafter's
  layers. So it may lie behind that block (the *bridge*), if the host tier has it in all groups that read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from blocklife.groups import Geometry, LocalAttention, Mamba, SlidingWindow
from blocklife.ledger import Ledger
from blocklife.ledger import _edge as edge
from blocklife.ledger.views import BlocksView, SlotsView
from blocklife.offload._below import TierBelow
from blocklife.offload._host import HostTier, code_at
from blocklife.offload._lookup import Answer, Answers, Found, Unit, Units, common_length
from blocklife.offload.records import Hit, TailKeys
from blocklife.policies import FullHit, Policies
from blocklife.states import Job

_HIT, _MISS, _PENDING, _RETRY = Answer.HIT.code, Answer.MISS.code, Answer.PENDING.code, Answer.RETRY.code


class DeviceAnswers(Answers):
    """What the device has of the blocks with these *names*, by group; *loading*: which request loads some content."""

    def __init__(self, blocks: BlocksView, names: list[list[bytes]], loading: Mapping[tuple[int, bytes], str]) -> None:
        self._blocks, self._names, self._loading = blocks, names, loading

    def ask(self, group: int, unit: int, blocks: int) -> int:
        """Whether a block can be hit, or is being loaded."""
        names = self._names[group]
        if not blocks and unit >= len(names):
            return _MISS
        key = names[unit]
        if self._blocks.place_of(group, key) >= 0:
            return _HIT
        return _PENDING if self._loading and (group, key) in self._loading else _MISS


class HostAnswers(Answers):
    """What the host tier has of the chunks of *size* blocks with these *names*, and perhaps the tier *below* it.

    With *asks_below*, content that only the tier below has counts as being on its way. Without *pending*, all other content on
    its way is a miss. ``in_doubt``, ``on_below``: as those of `Search`, for the questions so far. ``coming``: group and unit of
    all that a store brings. ``_told`` has what the tier below has said, by group and unit, as it was asked.
    """

    def __init__(
        self,
        slots: SlotsView,
        names: list[list[bytes]],
        size: int,
        suffix: Sequence[int],
        loading: Mapping[tuple[int, bytes], str],
        below: TierBelow | None,
        asks_below: bool,
        pending: bool,
    ) -> None:
        self._slots, self._names, self._size, self._suffix, self._loading = slots, names, size, suffix, loading
        self._below, self._asks_below, self._pending = below, asks_below, pending
        self.in_doubt = self.on_below = False
        self.coming: list[tuple[int, int]] = []
        self._told: list[dict[int, int]] = [{} for _ in names] if asks_below else []

    def ask(self, group: int, unit: int, blocks: int) -> int:
        """Whether so many trailing blocks of a chunk can be read, or are on their way; 0: whether it can be a proof."""
        names, at = self._names[group], (unit + 1) * self._size - 1
        if not blocks:
            return self.prove(group, unit) if at < len(names) else _MISS
        key = names[at]
        slot = self._slots.place_of(group, key)
        found, waits = self.held(group, key, slot), self._pending
        if self._below is not None and found != _HIT:
            if found == _MISS and self._asks_below:
                found, waits = self.told(group, unit), True
                self.on_below = self.on_below or found != _MISS
                if found == _HIT:
                    return _PENDING  # a promotion brings it
            elif found == _PENDING and self._below.brings((group, key)):
                self.on_below = waits = True
                if not self._asks_below:
                    return _MISS
        if found == _HIT or found == _PENDING:  # noqa: SIM109 - two numbers are compared faster than looked for
            if slot >= 0 and self._suffix[slot] < blocks:
                return _MISS
            if self._loading and (group, key) in self._loading:  # it will be on the device, where the next lookup finds it
                return _PENDING if self._pending else _MISS
            if found == _PENDING:
                self.coming.append((group, unit))
        elif found == _RETRY:
            self.in_doubt = True
        return found if waits or found == _HIT else _MISS

    def held(self, group: int, key: bytes, slot: int) -> int:
        """What the host tier says of some content, which was found in this slot, -1 for none."""
        return code_at(self._slots, slot)

    def prove(self, group: int, unit: int) -> int:
        """Whether the host tier, or the tier below it, knows the unit behind a hit."""
        key = self._names[group][(unit + 1) * self._size - 1]
        found = self.held(group, key, self._slots.place_of(group, key))
        if found == _MISS and self._asks_below and self._below is not None:
            found = self.told(group, unit)
            if found == _RETRY:
                self.in_doubt = self.on_below = True
        return found

    def told(self, group: int, unit: int) -> int:
        """What the tier below says of a unit that the host tier lacks.

        A call of an index costs more than its answers. So a question takes along those that the scan would ask next, if all
        answers were hits: as many as the group has asked so far, which at most doubles them.
        """
        told = self._told[group]
        if unit not in told:
            self._ask_on(told, group, unit)
        return told[unit]

    def _ask_on(self, told: dict[int, int], group: int, unit: int) -> None:
        names, size = self._names[group], self._size
        last, count = next(reversed(told), unit), max(1, len(told))
        onward = range(unit + 1, min(unit + count, len(names) // size))
        if unit < last:  # windows are scanned from their end
            onward = range(unit - 1, max(unit - count, -1), -1)
        keys = {each: names[(each + 1) * size - 1] for each in (unit, *onward) if each not in told}
        wanted = {each: key for each, key in keys.items() if each == unit or self._slots.place_of(group, key) < 0}
        if self._below is not None:
            told.update(zip(wanted, self._below.ask([(group, key) for key in wanted.values()]), strict=True))


class Search:
    """Finds hits. *suffix*: the number of trailing blocks that a slot holds; *loading*: which request loads some content."""

    def __init__(
        self,
        ledger: Ledger,
        tier: HostTier,
        geometry: Geometry,
        policies: Policies,
        suffix: Sequence[int],
        loading: Mapping[tuple[int, bytes], str],
        below: TierBelow | None = None,
    ) -> None:
        self._ledger = ledger
        self._tier = tier
        self._geometry = geometry
        self._policies = policies
        self._suffix = suffix
        self._loading = loading
        self._below = below
        # The token that is computed again reads one token further back than the token after the hit.
        extra = 1 if policies.full_hit is FullHit.RECOMPUTE_LAST_TOKEN else 0
        groups = range(len(geometry.groups))
        self._device_units = Units([unit_of(geometry, group, 1, extra) for group in groups])
        self._host_units = Units([unit_of(geometry, group, geometry.blocks_per_chunk, extra) for group in groups])
        self._tail_tokens = geometry.tail_tokens
        self._proof = max(geometry.tail_proofs)
        self._nothing: tuple[tuple[int, ...], ...] = ((),) * len(geometry.groups)
        # If every token attends only to itself, there is nothing to load.
        self._loads = any(unit.window != 0 for unit in self._host_units)
        self.in_doubt = False
        """Whether the last search got a RETRY, so that its result may change although no copy has ended."""
        self.on_below = False
        """Whether the result of the last search depends on the tier below."""
        self.wanted: list[tuple[int, bytes]] = []
        """The content that a load of the last hit would read, and that only the tier below has."""
        self.present: list[int] = []
        """The slots that it would read as well."""
        self.awaited: tuple[int, bytes] | None = None
        """Of what stores bring to the host tier and a deferred hit would read, the last that the device lacks.

        When it is final there, the result may change although no copy has ended. None: only the end of a copy changes it."""
        self._coming: list[tuple[int, int]] = []

    def names(self, given: Callable[[int, int, int], list[bytes]], known: int) -> list[list[bytes]]:
        """The keys, by group, of all blocks that the hit of a request with *known* tokens may have."""
        limit = known if self._policies.full_hit is FullHit.RECOMPUTE_LAST_TOKEN else known - 1
        return [
            given(group, 0, (known if self._geometry.drafters[group] else limit) // tokens)
            for group, tokens in enumerate(self._geometry.block_tokens)
        ]

    def run(
        self,
        name: str,
        names: list[list[bytes]],
        known: int,
        device_tokens: int | None,
        step: int,
        *,
        host: bool,
        most: int | None = None,
        below: bool = False,
        pending: bool = True,
        tails: TailKeys | None = None,
    ) -> Hit:
        """The hit of one request with *known* tokens and these `names`; with *host*, at most *most* tokens in the host tier.

        With *below*, content that only the tier below has counts as being on its way; otherwise, so does nothing from there.
        Without *pending*, all other content on its way is a miss, and a request with unresolved jobs loads nothing.
        """
        self.in_doubt = self.on_below = False
        self.wanted, self.present, self._coming, self.awaited = [], [], [], None
        recompute = self._policies.full_hit is FullHit.RECOMPUTE_LAST_TOKEN
        limit = known if recompute else known - 1
        own = device_tokens is None
        loading = self._loading if pending else {}
        device = (
            self._on_device(names, limit, loading) if own else Found(min(device_tokens or 0, limit), deferred=False, rounds=0)
        )
        if device.deferred:
            return Hit(name, device.length, device.length, device.length, True, step)
        start = device.length
        serves = self._ledger.jobs.serve(name)  # outstanding jobs
        host = host and self._loads and not (serves and (not pending or self._is_in_doubt(name)))
        # the engine's allocator reports what it has, not what is being loaded
        last = limit if most is None else min(limit, start + most)
        loading = {} if own and pending else self._loading
        found = self._in_host(names, start, last, loading, below=below, pending=pending) if host else device
        if below and found.deferred and not self.in_doubt and self._below is not None and self.on_below:
            self._split(names, start, found.length, known)
        if own and self._coming and found.deferred:
            self.awaited = self._last_awaited(names, found.length)
        length, waits = found.length, False
        tail: tuple[int, ...] = ()
        if host and tails is not None and self._tail_tokens is not None and not found.deferred:
            length, tail, waits = self._tail(names, tails, found.length, min(last, known - self._proof))
        if found.deferred or (length > start and serves) or (waits and pending and length == start):
            # no load for a request whose earlier store is unresolved (I10)
            return Hit(name, length, start, start, True, step)
        compute_from = length - 1 if length == known else length
        slots = self._slots(names, start, length, compute_from, tail) if length > start else self._nothing
        if length > start and not any(slots):  # it ends where parts of local attention begin, and nothing else is read
            length = compute_from = start
        return Hit(
            request=name,
            tokens=length,
            device_tokens=start,
            compute_from=compute_from,
            deferred=False,
            step=step,
            lives=() if not own else self._lives(names, start, compute_from) if start else self._nothing,
            slots=slots,
        )

    def _is_in_doubt(self, name: str) -> bool:
        """Whether a copy of the request is in quarantine: the request may not load, and waiting for the copy may never end."""
        return any(job.state is Job.QUARANTINED for job in self._ledger.jobs.serving(name))

    def _on_device(self, names: list[list[bytes]], limit: int, loading: Mapping[tuple[int, bytes], str]) -> Found:
        return common_length(self._device_units, 0, limit, DeviceAnswers(self._ledger.blocks, names, loading))

    def _in_host(
        self,
        names: list[list[bytes]],
        start: int,
        limit: int,
        loading: Mapping[tuple[int, bytes], str],
        *,
        below: bool,
        pending: bool,
    ) -> Found:
        answers = HostAnswers(
            self._ledger.slots, names, self._geometry.blocks_per_chunk, self._suffix, loading, self._below, below,
            pending,
        )  # fmt: skip
        found = common_length(self._host_units, start, limit, answers)
        self.in_doubt, self.on_below, self._coming = answers.in_doubt, answers.on_below, answers.coming
        return found

    def _last_awaited(self, names: Sequence[Sequence[bytes]], length: int) -> tuple[int, bytes] | None:
        """Of the units that stores bring and that a hit of *length* tokens reads, the last one that the device lacks."""
        size, find, units, last = self._geometry.blocks_per_chunk, self._ledger.blocks.find, self._host_units, -1
        content: tuple[int, bytes] | None = None
        for group, unit in self._coming:
            key = names[group][(unit + 1) * size - 1]
            if last < (start := unit * units[group].tokens) < length and find(group, key) is None:
                last, content = start, (group, key)
        return content

    def _tail(
        self, names: Sequence[Sequence[bytes]], tails: TailKeys, length: int, last: int
    ) -> tuple[int, tuple[int, ...], bool]:
        """The longest tail behind a hit of *length* tokens: where it ends and its slots by group, or *length* and none.

        Also whether there may be one soon. It ends at *last* at most.
        """
        unit, tokens, waits = self._tail_tokens or 1, self._geometry.block_tokens[0], False
        bridge, pending_bridge = length + tokens, False
        last = min(last, bridge + tokens - 1)
        if last > bridge:
            answer = self._bridge(names, length // tokens)
            pending_bridge = answer is not Answer.HIT
            last = bridge if answer is Answer.MISS else last
        for end in range(last - last % unit, length, -unit):
            if end == bridge:
                continue  # that would be a hit of whole blocks
            slots: list[int] = []
            pending = pending_bridge and end > bridge
            for group, proof in enumerate(self._geometry.tail_proofs):
                key = self._tail_key(names, tails, group, end + proof)
                answer = Answer.MISS if key is None else self._tier.answer(group, key)
                slot = None if key is None or answer is Answer.MISS else self._ledger.slots.find(group, key)
                if slot is None:
                    break
                pending = pending or answer is not Answer.HIT
                slots.append(slot)
            else:
                if not pending:
                    return end, tuple(slots), False
                waits = True
        return length, (), waits

    def _tail_key(self, names: Sequence[Sequence[bytes]], tails: TailKeys, group: int, end: int) -> bytes | None:
        """The key of a prefix up to a token: that of the block that ends there, or that of a tail."""
        position, inside = divmod(end, self._geometry.block_tokens[group])
        if not inside:
            return names[group][position - 1]
        key = tails(group, end)
        return None if key is None else edge.member(key, bytes, "the key of a tail")

    def _bridge(self, names: Sequence[Sequence[bytes]], position: int) -> Answer:
        """Whether the host tier has the block at a position, in each group that reads it where a prefix ends behind it."""
        found = Answer.HIT
        for group, each in enumerate(self._geometry.groups):
            if isinstance(each, Mamba):
                continue
            content = group, names[group][position]
            answer = self._tier.answer(*content)
            if answer is Answer.MISS or self._ledger.slots.find(*content) is None:
                return Answer.MISS
            if answer is not Answer.HIT or content in self._loading:
                found = Answer.PENDING
        return found

    def _split(self, names: Sequence[Sequence[bytes]], start: int, length: int, known: int) -> None:
        """Note which chunks of a hit the host tier has, and which it lacks."""
        size, find, compute_from = self._geometry.blocks_per_chunk, self._ledger.slots.find, length - (length == known)
        for group, tokens in enumerate(self._geometry.block_tokens):
            first = max(self._geometry.needed(group, compute_from).start, start // tokens)
            for chunk in range(first // size, length // (tokens * size)):
                key = names[group][(chunk + 1) * size - 1]
                if (slot := find(group, key)) is None:
                    self.wanted.append((group, key))
                else:
                    self.present.append(slot)

    def _lives(self, names: Sequence[Sequence[bytes]], start: int, compute_from: int) -> tuple[tuple[int, ...], ...]:
        """The lives on the device that a request reads to continue at a token."""
        found = []
        find = self._ledger.blocks.find
        for group, tokens in enumerate(self._geometry.block_tokens):
            first = self._geometry.needed(group, compute_from).start
            keys = names[group][first : start // tokens]
            found.append(tuple([_found(find(group, key), key) for key in keys]))
        return tuple(found)

    def _slots(
        self, names: Sequence[Sequence[bytes]], start: int, length: int, compute_from: int, tail: tuple[int, ...]
    ) -> tuple[tuple[int, ...], ...]:
        """The slots of the chunks that a load reads, by group, and behind them that of the *tail*, if there is one."""
        found = []
        size, find = self._geometry.blocks_per_chunk, self._ledger.slots.find
        for group, tokens in enumerate(self._geometry.block_tokens):
            first = max(self._geometry.needed(group, compute_from).start, start // tokens)
            keys = names[group][(first // size + 1) * size - 1 : length // (tokens * size) * size : size]
            slots = self._ledger.slots.found(group, keys)
            if len(slots) != len(keys):  # then the scan was wrong
                raise KeyError(next(key for key in keys if find(group, key) is None))
            found.append((*slots, *tail[group : group + 1]))
        return tuple(found)


def _found(place: int | None, key: bytes) -> int:
    """Check that everything counted as a hit exists; otherwise the scan was wrong."""
    if place is None:
        raise KeyError(key)
    return place


def unit_of(geometry: Geometry, group: int, size: int, extra: int = 0) -> Unit:
    """One group in units of *size* blocks; its window reaches *extra* tokens further back."""
    tokens = geometry.block_tokens[group]
    window, tail = geometry.window_chunks[group] if size > 1 else geometry.window_blocks[group], size
    each = geometry.groups[group]
    part = each.part_tokens if isinstance(each, LocalAttention) else 0
    if part:
        tail = 1
    elif isinstance(each, SlidingWindow):
        blocks = -(-(each.window_tokens - 1 + extra) // tokens)
        window = -(-blocks // size)
        tail = blocks - (window - 1) * size if window else 0
    elif window is not None:
        tail = 1
    again = extra if part else 0
    return Unit(
        tokens=tokens * size, window=window, tail=tail, size=size, proof=geometry.drafters[group], part=part, again=again
    )
