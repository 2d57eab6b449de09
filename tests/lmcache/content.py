"""What the rig's places hold: bytes that follow from the text, the worker and the salt, so that every read can be checked."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from ctypes import c_uint8
from typing import TypeAlias

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

Bytes: TypeAlias = NDArray[np.uint8]
PLACE = 4096
"""Bytes of a place: what LMCache aligns its objects to."""


def stamp(tokens: Sequence[int], worker: int, salt: str) -> Bytes:
    """What the KV of the last chunk of a text is on one worker: every byte follows from all of the text."""
    told = f"{worker}/{salt}/{','.join(map(str, tokens))}".encode()
    return np.frombuffer(hashlib.shake_256(told).digest(PLACE), dtype=np.uint8)


def at(address: int, size: int = PLACE) -> Bytes:
    """The memory at an address, whoever owns it."""
    return np.ctypeslib.as_array((c_uint8 * size).from_address(address))


@frozen
class Corruption:
    """A read that found other bytes than it should."""

    step: int
    reader: str
    what: str

    def __str__(self) -> str:
        return f"step {self.step}: {self.reader} reads wrong bytes of {self.what}"


@define(eq=False)
class Witness:
    """Knows what belongs to each key, and compares."""

    step: int = 0
    verified: int = 0
    """Reads that were compared."""
    corruptions: list[Corruption] = field(factory=list)
    due: dict[object, tuple[str, Bytes]] = field(factory=dict)
    """By LMCache's key: what it is of, and what it holds."""

    def knows(self, key: object, what: str, content: Bytes) -> None:
        """This belongs to a key."""
        known = self.due.setdefault(key, (what, content))
        if not np.array_equal(known[1], content):
            self.corruptions.append(Corruption(self.step, "nobody", f"{what}, which has the key of {known[0]}"))

    def compare(self, reader: str, key: object, got: Bytes, start: int = 0) -> None:
        """Somebody has read this much of what belongs to a key, from the byte *start* on."""
        what, due = self.due[key]
        self.verified += 1
        if not np.array_equal(got, due[start : start + len(got)]):
            self.corruptions.append(Corruption(self.step, reader, what))
