"""The records of what a watch follows: a holder of blocks, and a copy as the engine names it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from attrs import define, field


@define(eq=False)
class Holder:
    """A request from its admission until it has released everything, or one reference of the connector."""

    name: str
    held: set[int] = field(factory=set)
    """The blocks to whose lives it has a reference."""
    besides: dict[int, int] = field(factory=dict)
    """Block to the number of references beside those; never 0."""
    has_left: bool = False
    """Whether it has given up its blocks, which the engine may free later, without naming the request."""
    alone: tuple[Holder, ...] = ()
    """The entry for blocks that only this holder has; emptied when it holds nothing, to leave no reference cycle."""

    def __attrs_post_init__(self) -> None:
        self.alone = (self,)


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
