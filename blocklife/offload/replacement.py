"""Eviction policies of the host tier: a small protocol, two policies, and a registry of names.

Rules of this file:

* A policy orders slots. It is told, slot by slot, which may be evicted; it knows no ledger, pins or states.
* A policy is deterministic: no clock, no randomness.
* A slot that is in use when its turn comes (a load reads it, a store fills it) is skipped and counts as used at that moment. So
  a slot that is in use for long is looked at once per round, not in every search for a victim.

Literature. `Arc` is the adaptive replacement cache of N. Megiddo and D. S. Modha, "ARC: A Self-Tuning, Low Overhead
Replacement Cache", USENIX FAST 2003; comments use their names. Differences are noted where they occur.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeGuard

from blocklife.core._columns import listed, longer, zeros
from blocklife.core._tables import MOST_PLACE
from blocklife.errors import MisuseError
from blocklife.policies import REPLACEMENTS

Name: TypeAlias = tuple[int, bytes]
"""What a slot holds: (group, key)."""


class Replacement(Protocol):
    """An eviction policy. You can write your own and `register` it.

    To make room, the tier calls `victims`, then `remove` for each of them, then `insert`. After too few victims it does not ask
    again while no slot can be evicted.
    """

    def insert(self, slots: Sequence[int], names: Sequence[Name]) -> None:
        """These slots were reserved for new content, one name each; the last one is the most recent.

        A slot may already be known, if the store that should have filled it has failed.
        """

    def touch(self, slots: Iterable[int]) -> None:
        """These slots were used; the last one is the most recent. Unknown slots, filled by others, are added."""

    def remove(self, slot: int) -> None:
        """The content of the slot is gone, evicted or dropped. Unknown slots are ignored."""

    def victims(self, count: int, evictable: Callable[[int], bool], coming: Sequence[Name]) -> list[int]:
        """Up to *count* distinct *evictable* slots, in the order in which to evict them.

        *coming* are the names that room is made for, at least *count* of them. If there are fewer victims than *count*, none is
        evicted. This removes nothing from the policy: `remove` is called for slots that are evicted.
        """


class Foresighted(Protocol):
    """A policy that can say what it would evict next, as demoting content before it is evicted needs (`Demote.LAZY`)."""

    def peek(self, count: int) -> list[int]:
        """Up to *count* slots, the next to be evicted first; nothing changes. A guess: a wrong one costs a later hit."""


class Saveable(Protocol):
    """A policy whose state can be saved as a value, as snapshots of a scheduler and the explorer need."""

    def snapshot(self, names: Sequence[int]) -> Hashable:
        """The complete state, with ``names[slot]`` in place of each slot."""

    def restore(self, saved: Hashable) -> None:
        """Go back to a snapshot."""


def can_be_saved(policy: Replacement) -> TypeGuard[Saveable]:
    """Whether a policy implements `Saveable`."""
    return hasattr(policy, "snapshot") and hasattr(policy, "restore")


class SlotOrder:
    """Some slots in an order, the least recently used first, linked through columns that grow with the numbers of slots.

    Invariant: from node 0, ``following`` leads through the nodes of all slots in the order, once each, and back, and ``before``
    the other way round. The node of a slot is its number and 1, so the largest host place is none; in both columns that of a
    slot which is not in it has -1. They take 8 bytes for each number up to the largest slot, and for *num_slots* at once.
    """

    def __init__(self, num_slots: int = 0) -> None:
        self.following, self.before = (longer("i", zeros("i", 1), num_slots + 1, -1) for _ in range(2))
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, slot: int) -> bool:
        return self.has(slot)

    def __iter__(self) -> Iterator[int]:
        node = self.following[0]
        while node:
            yield node - 1
            node = self.following[node]

    def has(self, slot: int) -> bool:
        """Whether a slot is in the order."""
        return 0 <= slot < len(self.following) - 1 and self.following[slot + 1] >= 0

    def push(self, slot: int) -> None:
        """Put a slot at the end, from wherever it stands."""
        node = slot + 1
        if not 0 < node < len(self.following):
            self._make_room(slot)
        elif self.following[node] >= 0:
            self.drop(slot)
        last = self.before[0]
        self.following[last] = self.before[0] = node
        self.following[node], self.before[node] = 0, last
        self._size += 1

    def drop(self, slot: int) -> bool:
        """Take a slot out. Returns whether it was in the order."""
        if not self.has(slot):
            return False
        node = slot + 1
        after, ahead = self.following[node], self.before[node]
        self.following[ahead], self.before[after] = after, ahead
        self.following[node] = self.before[node] = -1
        self._size -= 1
        return True

    def first(self, count: int) -> list[int]:
        """The first slots in the order, at most *count*."""
        return [node - 1 for node in listed(self.following, 0, count)]

    def _make_room(self, slot: int) -> None:
        if not 0 <= slot < MOST_PLACE:
            raise MisuseError(f"slot {slot}: slots are 0 to {MOST_PLACE - 1}")
        size = max(slot + 2, 2 * len(self.following))
        self.following, self.before = longer("i", self.following, size, -1), longer("i", self.before, size, -1)


class Lru:
    """Evicts the least recently used slot first.

    Invariant: ``_order`` holds every slot that was inserted or touched and not removed since, the least recently used first.
    Initially empty.
    """

    def __init__(self) -> None:
        self._order = SlotOrder()

    def insert(self, slots: Sequence[int], names: Sequence[Name]) -> None:
        """New content counts as used; names do not matter."""
        self.touch(slots)

    def touch(self, slots: Iterable[int]) -> None:
        """Move slots to the end, in this order."""
        for slot in slots:
            self._order.push(slot)

    def remove(self, slot: int) -> None:
        """Forget a slot."""
        self._order.drop(slot)

    def peek(self, count: int) -> list[int]:
        """The slots that would be evicted next, if all of them can be."""
        return self._order.first(count)

    def snapshot(self, names: Sequence[int]) -> Hashable:
        """The order."""
        return tuple([names[slot] for slot in self._order])

    def restore(self, saved: Hashable) -> None:
        """Go back to an order."""
        for slot in self._order.first(len(self._order)):
            self._order.drop(slot)
        self.touch(_saved(saved))

    def victims(self, count: int, evictable: Callable[[int], bool], coming: Sequence[Name]) -> list[int]:
        """The first *count* evictable slots; skipped slots are in use and move to the end."""
        chosen: list[int] = []
        passed: list[int] = []
        if count > 0:
            for slot in _from_front(self._order, evictable, passed):
                chosen.append(slot)
                if len(chosen) == count:
                    break
        self.touch(passed)
        return chosen


class Arc:
    """Adaptive replacement: a list of slots used once, a list of slots used again, and a target size that adapts.

    Evicted content leaves its name behind, as a ghost. If a name comes back while its ghost exists, the list that it was
    evicted from was too short, and the target moves in its favour. A scan, whose content is used once, cannot
    displace content that is used repeatedly.

    With c the number of slots, T1 ``_once``, T2 ``_again``, B1 and B2 their ghosts, and p ``_target``:

    Invariant: a slot is in T1 or in T2, once, or in neither; |T1| + |T2| <= c.
    Invariant: |T1| + |B1| <= c, and |T1| + |T2| + |B1| + |B2| <= 2c.
    Invariant: 0 <= p <= c: how many slots T1 should have.
    Invariant: a name is in B1 or in B2, once, or in neither; a name that is inserted leaves its ghost list.
    Initially: all lists are empty, and p is 0.

    Beyond the paper: slots that are not evictable are skipped, and if a list has no others, the other list gives way. Content
    that was dropped, not evicted, leaves no ghost, and neither does a slot that was filled from elsewhere.
    """

    def __init__(self, num_slots: int) -> None:
        if type(num_slots) is not int or num_slots < 1:
            raise MisuseError(f"num_slots must be a whole number of at least 1, not {num_slots!r}")
        self.num_slots = num_slots
        self._once, self._again = SlotOrder(num_slots), SlotOrder(num_slots)
        self._names: list[Name | None] = [None] * num_slots
        """What each slot of T1 or T2 holds, by slot; None where it was filled from elsewhere."""
        self._once_ghosts: OrderedDict[Name, None] = OrderedDict()
        self._again_ghosts: OrderedDict[Name, None] = OrderedDict()
        self._target = 0.0
        # The paper adapts p before the victim becomes a ghost. Here the victim goes first, and its ghost is added in `insert`.
        self._chosen: set[int] = set()
        self._leaving: list[tuple[bool, Name]] = []

    def insert(self, slots: Sequence[int], names: Sequence[Name]) -> None:
        """Cases II to IV of the paper: names with a ghost go to T2 and adapt p, new ones go to T1."""
        once, again, may_return = self._once, self._again, bool(self._once_ghosts or self._again_ghosts)
        for slot, name in zip(slots, names, strict=True):
            again.drop(slot)
            ghosts = self._ghosts_of(name) if may_return else None
            if ghosts is None:
                once.push(slot)
            else:
                self._target = self._adapted(self._target, ghosts, len(self._once_ghosts), len(self._again_ghosts))
                del ghosts[name]
                once.drop(slot)
                again.push(slot)
            self._call(slot, name)
        self._bury()

    def touch(self, slots: Iterable[int]) -> None:
        """Case I of the paper: a used slot becomes the most recent of T2."""
        for slot in slots:
            if self._again.has(slot) or self._once.drop(slot):
                self._again.push(slot)
            else:
                self._once.push(slot)
                self._call(slot, None)
        self._trim()

    def _call(self, slot: int, name: Name | None) -> None:
        """A slot holds this."""
        if slot >= len(self._names):
            self._names.extend([None] * (slot + 1 - len(self._names)))
        self._names[slot] = name

    def remove(self, slot: int) -> None:
        """Forget a slot; if it was evicted, its name becomes a ghost."""
        first = self._once.drop(slot)
        if not first and not self._again.drop(slot):
            return
        name = self._names[slot]
        if name is not None and slot in self._chosen:
            self._leaving.append((first, name))

    def peek(self, count: int) -> list[int]:
        """The slots that would be evicted next, if all of them can be and no ghost comes back meanwhile."""
        surplus = max(0, len(self._once) - int(self._target))
        once, again = self._once.first(count), self._again.first(count)
        return [*once[:surplus], *again, *once[surplus:]][:count]

    def snapshot(self, names: Sequence[int]) -> Hashable:
        """The lists, ghosts, target, and names about to become ghosts."""
        return (
            tuple([(names[slot], self._names[slot]) for slot in self._once]),
            tuple([(names[slot], self._names[slot]) for slot in self._again]),
            tuple(self._once_ghosts),
            tuple(self._again_ghosts),
            self._target,
            tuple(sorted([names[slot] for slot in self._chosen])),
            tuple(self._leaving),
        )

    def restore(self, saved: Hashable) -> None:
        """Go back to a snapshot."""
        once, again, once_ghosts, again_ghosts, self._target, chosen, leaving = _saved(saved)
        self._once, self._again = SlotOrder(self.num_slots), SlotOrder(self.num_slots)
        for order, held in ((self._once, once), (self._again, again)):
            for slot, name in held:
                order.push(slot)
                self._call(slot, name)
        self._once_ghosts, self._again_ghosts = OrderedDict.fromkeys(once_ghosts), OrderedDict.fromkeys(again_ghosts)
        self._chosen, self._leaving = set(chosen), list(leaving)

    def victims(self, count: int, evictable: Callable[[int], bool], coming: Sequence[Name]) -> list[int]:
        """REPLACE of the paper for the last *count* of the coming names, one after the other.

        The names of one call do not evict each other, as they are not evictable yet. Its victims become ghosts only after the
        last one, as in `insert`, so that both compute the same p.
        """
        passed: tuple[list[int], list[int]] = ([], [])
        once_front = _from_front(self._once, evictable, passed[0])
        again_front = _from_front(self._again, evictable, passed[1])
        once, target = len(self._once), self._target
        once_ghosts, again_ghosts = len(self._once_ghosts), len(self._again_ghosts)
        found: list[int] = []
        for position, name in enumerate(coming, count - len(coming)):
            ghosts = self._ghosts_of(name)
            if ghosts is not None:
                target = self._adapted(target, ghosts, once_ghosts, again_ghosts)
            if position >= 0:
                first = once > target or (once == target and ghosts is self._again_ghosts)
                slot = next(once_front if first else again_front, None)
                if slot is None:
                    first = not first
                    slot = next(once_front if first else again_front, None)
                if slot is None:
                    break
                found.append(slot)
                once -= first
            once += ghosts is None
            once_ghosts -= ghosts is self._once_ghosts
            again_ghosts -= ghosts is self._again_ghosts
        for order, slots in zip((self._once, self._again), passed, strict=True):
            for slot in slots:
                order.push(slot)
        self._chosen = set(found) if len(found) == count else set()
        return found

    def _ghosts_of(self, name: Name) -> OrderedDict[Name, None] | None:
        if name in self._once_ghosts:
            return self._once_ghosts
        return self._again_ghosts if name in self._again_ghosts else None

    def _adapted(self, target: float, ghosts: OrderedDict[Name, None], once_ghosts: int, again_ghosts: int) -> float:
        """The new p when a name in *ghosts* comes back, with that many ghosts in each list.

        It changes by at least 1, and by more if the list with the ghost is the shorter one.
        """
        if ghosts is self._once_ghosts:
            return min(target + max(again_ghosts / max(once_ghosts, 1), 1.0), float(self.num_slots))
        return max(target - max(once_ghosts / max(again_ghosts, 1), 1.0), 0.0)

    def _bury(self) -> None:
        """Make evicted names ghosts, in order."""
        for first, name in self._leaving:
            ghosts, others = (self._once_ghosts, self._again_ghosts) if first else (self._again_ghosts, self._once_ghosts)
            others.pop(name, None)  # present already only if two slots had the same content
            ghosts[name] = None
        self._leaving.clear()
        self._chosen.clear()
        self._trim()

    def _trim(self) -> None:
        """Bound the ghosts by dropping the oldest. The paper does so before adding a name; the result is the same."""
        while self._once_ghosts and len(self._once) + len(self._once_ghosts) > self.num_slots:
            self._once_ghosts.popitem(last=False)
        listed = len(self._once) + len(self._again) + len(self._once_ghosts)
        while self._again_ghosts and listed + len(self._again_ghosts) > 2 * self.num_slots:
            self._again_ghosts.popitem(last=False)


def _saved(saved: Hashable) -> tuple[Any, ...]:
    """Check the type of a snapshot, whose content only its policy knows."""
    if not isinstance(saved, tuple):
        raise MisuseError(f"{saved!r}: it is no snapshot of a policy of this kind")
    return saved


def _from_front(order: Iterable[int], evictable: Callable[[int], bool], passed: list[int]) -> Iterator[int]:
    """The evictable slots in order; skipped slots are added to *passed*."""
    for slot in order:
        if evictable(slot):
            yield slot
        else:
            passed.append(slot)


_METHODS = ("insert", "touch", "remove", "victims")
_MAKERS: Mapping[str, Callable[[int], Replacement]] = {"lru": lambda num_slots: Lru(), "arc": Arc}
"""What makes each built-in policy; `REPLACEMENTS` says what it evicts first."""
_factories = {name: _MAKERS[name] for name in REPLACEMENTS}


def replacements_table() -> Iterator[str]:
    """The built-in policies as `specs/offload.md` prints them, line by line."""
    yield from ("| replacement | evicts first |", "| --- | --- |")
    yield from (f"| `{name}` | {says} |" for name, says in REPLACEMENTS.items())


def register(name: str, factory: Callable[[int], Replacement]) -> None:
    """Register a policy under a name; *factory* is called with the number of slots. Refuses a name in use."""
    if name in _factories:
        raise MisuseError(f"replacement {name!r}: the name is in use (choose another one)")
    _factories[name] = factory


def replacements() -> list[str]:
    """The registered names, in order."""
    return sorted(_factories)


def replacement(which: str | Replacement, num_slots: int) -> Replacement:
    """Make the policy of that name for *num_slots* slots, or return the given object.

    Refuses an unknown name (the error lists the known ones), and an object that lacks a method.
    """
    if isinstance(which, str):
        if which not in _factories:
            raise MisuseError(f"replacement {which!r}: unknown (known are {', '.join(replacements())}; or register it)")
        found = _factories[which](num_slots)
    else:
        found = which
    if missing := [each for each in _METHODS if not callable(getattr(found, each, None))]:
        raise MisuseError(f"replacement {found!r}: it lacks {', '.join(missing)}")
    return found
