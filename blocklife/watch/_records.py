"""The records of what a watch follows: a holder of blocks, a copy as the engine names it, who is at a place, what has ended."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from typing import Generic, NamedTuple, Self, TypeVar

from attrs import define, field

NUM_ENDED = 4096
"""How many jobs that have ended are remembered, so that a repeated report is told from one of a job that never was."""


class Occupant:
    """Who can be at places."""

    __slots__ = ("alone",)
    alone: tuple[Self, ...]
    """The entry of every place that it has alone: one tuple for all of them."""

    def appear(self: Self) -> None:
        """It can be at places from now on."""
        self.alone = (self,)

    def disappear(self) -> None:
        """It is nowhere any more, and leaves no reference cycle."""
        self.alone = ()


T = TypeVar("T", bound=Occupant)


class AtPlace(dict[int, tuple[T, ...]], Generic[T]):
    """The occupants of each place, in the order of `add`, each once for each `add`. An empty place has no entry."""

    def add(self, places: Collection[int], who: T) -> None:
        """Somebody comes to these places."""
        if self.keys().isdisjoint(places):
            self.update(dict.fromkeys(places, who.alone))
        else:
            for place in places:
                self[place] = self.get(place, ()) + who.alone

    def remove(self, places: Iterable[int], who: T) -> None:
        """Somebody leaves these places; where it is not, nothing happens."""
        alone = who.alone
        for place in places:
            found = self.get(place, ())
            if found is alone:
                del self[place]
            elif who in found:
                first = found.index(who)
                rest = found[:first] + found[first + 1 :]
                if len(rest) > 1:
                    self[place] = rest
                elif rest:
                    self[place] = rest[0].alone
                else:
                    del self[place]


class EndedJobs(OrderedDict[int, bool]):
    """The latest jobs that have ended, by number, and of each whether a further report of it is lawful."""

    def keep(self, number: int, *, may_come: bool) -> None:
        """A job has ended; the oldest gives way."""
        self[number] = may_come
        if len(self) > NUM_ENDED:
            self.popitem(last=False)


@define(eq=False)
class Holder(Occupant):
    """A request from its admission until it has released everything, or one reference of the connector."""

    name: str
    held: set[int] = field(factory=set)
    """The blocks to whose lives it has a reference."""
    besides: dict[int, int] = field(factory=dict)
    """Block to the number of references beside those; never 0."""
    has_left: bool = False
    """Whether it has given up its blocks, which the engine may free later, without naming the request."""

    def __attrs_post_init__(self) -> None:
        self.appear()


class MirrorSizes(NamedTuple):
    """The sizes of an engine's pool of blocks, and of the host memory behind it."""

    num_blocks: int
    num_groups: int = 1
    num_workers: int = 1
    num_slots: int = 0
    blocks_per_slot: int = 1
    max_jobs: int = 4096
    """How many jobs a ledger follows at once."""


class CopyPiece(NamedTuple):  # the cheapest kind of record, since a step makes many
    """One block of a copy."""

    group: int
    block: int
    position: int | None = None
    """Its position in the request's table, from the engine; None if unknown."""
    slot: int | None = None
    """The host slot of its chunk; None if unknown."""
    key: bytes | None = None
    """The engine's key of the chunk."""
    offset: int = 0
    """Its part of the slot."""

    def slot_among(self, num_slots: int) -> int | None:
        """Its slot, if the engine names one and it is among the first so many, which are followed."""
        return self.slot if self.slot is not None and 0 <= self.slot < num_slots else None


class EngineCopy(NamedTuple):
    """A job of the engine, as its workers get it."""

    number: int
    request: str | None
    pieces: Sequence[CopyPiece]
    """The pieces whose blocks are followed."""
    sync: bool = False
    """Loads only: whether it ends before the forward pass of its step."""
