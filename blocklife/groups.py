"""KV-cache groups: which tokens share a block, how far back each kind of attention reads, and how blocks form chunks.

Rules of this file:

* This file deals with sizes only: no block ids, keys or states.
* A geometry is checked and all sizes are computed when it is built.
* It says what a request reads to continue at a token; `lookup` finds what is there, and the scheduler decides when to free it.

Units: ``*_tokens`` counts tokens, ``*_blocks`` blocks of one group, ``*_chunks`` chunks of one group. A chunk is
``blocks_per_chunk`` neighbouring blocks. Groups are numbered in the order in which they are given.

Drafters. The layers of a drafter (EAGLE, MTP) compute what they keep of a token from the token after it, too. So a group that
holds such layers may be hit up to a boundary only if the unit behind that boundary is known under the request's key as well:
then the token after the boundary is the same. And while a request decodes, the last full unit of such a group is not final yet:
it is stored when the next one is full, or when the request ends (vLLM keeps to the same two rules, see its issue 52735).

Tails. With ``tail_tokens`` a prefix in the host tier may also end inside a block, at a multiple of that many tokens. What lies
between the last boundary of a block and that token is a *tail*: content with a key of its own, in a block whose first tokens
only are final. It is for full attention and Mamba groups of one block size, with one block in a chunk: then the end of a tail
says which block of each group has it. In a group with layers of a drafter the key of a tail is that of the prefix that is one
``tail_tokens`` longer: it proves the token after the tail, as the unit behind a hit does elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import lcm
from typing import TypeAlias

from attrs import field, frozen

from blocklife.errors import MisuseError

MAX_GROUPS = 256
"""Maximum number of groups."""
MAX_BLOCKS_PER_CHUNK = 64
"""Maximum number of blocks in a chunk."""
_MAX_DIGITS = 9


_DRAFTER = "+drafter"
_TAIL = "/"


def _positive(instance: object, attribute: object, value: int) -> None:
    """Refuse anything but a positive integer; bools are refused too."""
    name = getattr(attribute, "name", "value")
    if type(value) is not int or value < 1:
        raise MisuseError(f"{name} of {type(instance).__name__} must be a whole number of at least 1, not {value!r}")


def _flag(instance: object, attribute: object, value: bool) -> None:
    """Refuse anything but True and False."""
    if type(value) is not bool:
        raise MisuseError(f"{getattr(attribute, 'name', 'value')} of {type(instance).__name__} must be a bool, not {value!r}")


@frozen
class FullAttention:
    """Every token attends to all tokens before it."""

    block_tokens: int = field(validator=_positive)
    drafter: bool = field(default=False, validator=_flag, kw_only=True)
    """Whether layers of a drafter are among those of the group."""

    def __str__(self) -> str:
        return f"full:{self.block_tokens}{_DRAFTER * self.drafter}"


@frozen
class SlidingWindow:
    """Every token attends to itself and to the ``window_tokens - 1`` tokens before it."""

    block_tokens: int = field(validator=_positive)
    window_tokens: int = field(validator=_positive)
    drafter: bool = field(default=False, validator=_flag, kw_only=True)
    """Whether layers of a drafter are among those of the group."""

    def __str__(self) -> str:
        return f"swa:{self.block_tokens}:{self.window_tokens}{_DRAFTER * self.drafter}"


@frozen
class LocalAttention:
    """Tokens are cut into parts of ``part_tokens``: a token attends to itself and to the tokens before it in its own part."""

    block_tokens: int = field(validator=_positive)
    part_tokens: int = field(validator=_positive)

    def __str__(self) -> str:
        return f"local:{self.block_tokens}:{self.part_tokens}"


@frozen
class Mamba:
    """One block holds the state after all tokens so far; a state at a block boundary can be stored and hit."""

    block_tokens: int = field(validator=_positive)

    def __str__(self) -> str:
        return f"mamba:{self.block_tokens}"


Group: TypeAlias = FullAttention | SlidingWindow | LocalAttention | Mamba


def _tuple(groups: Iterable[Group]) -> tuple[Group, ...]:
    return tuple(groups)


@frozen
class Geometry:
    """The groups of a model, the unit of offload, and the sizes that follow from them. Tuples are indexed by group.

    Raises MisuseError, with the numbers, for no group or too many, and for too large chunks. Blocks of two groups need not end
    together: a hit ends where a block of every group does.
    """

    groups: tuple[Group, ...] = field(converter=_tuple)
    blocks_per_chunk: int = field(default=1, validator=_positive)
    tail_tokens: int | None = field(default=None)
    """A prefix in the host tier may end inside a block, at a multiple of this; None: it ends where a chunk ends."""
    block_tokens: tuple[int, ...] = field(init=False, repr=False, eq=False)
    """Tokens of a block."""
    chunk_tokens: tuple[int, ...] = field(init=False, repr=False, eq=False)
    """Tokens of a chunk."""
    window_chunks: tuple[int | None, ...] = field(init=False, repr=False, eq=False)
    """Number of chunks before its end that a hit needs at most: None for all; 0 if a token attends only to itself."""
    window_blocks: tuple[int | None, ...] = field(init=False, repr=False, eq=False)
    """The same in blocks."""
    block_alignment: int = field(init=False, repr=False, eq=False)
    """Tokens; the length of a hit on the device is a multiple of it."""
    chunk_alignment: int = field(init=False, repr=False, eq=False)
    """Tokens; the length of a hit in the host tier is a multiple of it."""
    drafters: tuple[bool, ...] = field(init=False, repr=False, eq=False)
    """Whether a group holds layers of a drafter."""
    tail_proofs: tuple[int, ...] = field(init=False, repr=False, eq=False)
    """How many tokens behind the end of a tail its key covers: those of the proof in a group with layers of a drafter."""

    def __attrs_post_init__(self) -> None:
        self._check()
        block_tokens = tuple(group.block_tokens for group in self.groups)
        chunk_tokens = tuple(self.blocks_per_chunk * tokens for tokens in block_tokens)
        drafters = tuple(isinstance(group, FullAttention | SlidingWindow) and group.drafter for group in self.groups)
        derived: dict[str, object] = {
            "block_tokens": block_tokens,
            "chunk_tokens": chunk_tokens,
            "window_chunks": tuple(map(_window, self.groups, chunk_tokens)),
            "window_blocks": tuple(map(_window, self.groups, block_tokens)),
            "block_alignment": lcm(*block_tokens),
            "chunk_alignment": lcm(*chunk_tokens),
            "drafters": drafters,
            "tail_proofs": tuple([(self.tail_tokens or 0) * drafter for drafter in drafters]),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)  # the record is frozen; these fields are set while it is built

    def _check(self) -> None:
        """Refuse groups that cannot share one table of a request."""
        if not 1 <= len(self.groups) <= MAX_GROUPS:
            raise MisuseError(f"a geometry has 1 to {MAX_GROUPS} groups, not {len(self.groups)}")
        for number, group in enumerate(self.groups):
            if not isinstance(group, FullAttention | SlidingWindow | LocalAttention | Mamba):
                raise MisuseError(
                    f"group {number} must be a FullAttention, SlidingWindow, LocalAttention or Mamba, not {group!r}"
                )
        if self.blocks_per_chunk > MAX_BLOCKS_PER_CHUNK:
            raise MisuseError(f"blocks_per_chunk can be at most {MAX_BLOCKS_PER_CHUNK}, not {self.blocks_per_chunk}")
        if self.tail_tokens is not None:
            self._check_tails(self.tail_tokens)

    def _check_tails(self, unit: int) -> None:
        """Refuse groups in which a prefix cannot end inside a block."""
        sizes = {group.block_tokens for group in self.groups}
        if type(unit) is not int or not 1 <= unit < min(sizes) or min(sizes) % unit:
            raise MisuseError(f"tail_tokens must be a part of a block of {min(sizes)} tokens, and less, not {unit!r}")
        if len(sizes) > 1:
            raise MisuseError(f"tail_tokens={unit} needs blocks of one size, not of {sorted(sizes)} (leave it out)")
        if self.blocks_per_chunk > 1:
            raise MisuseError(f"tail_tokens={unit} needs blocks_per_chunk=1, not {self.blocks_per_chunk} (leave it out)")
        for number, group in enumerate(self.groups):
            if not isinstance(group, FullAttention | Mamba):
                raise MisuseError(f"tail_tokens={unit}: group {number} ({group}) has no tails (leave it out)")

    def needed(self, group: int, length: int) -> range:
        """Positions of the blocks that a request reads to continue at token *length*; empty at 0."""
        if length < 0:
            raise MisuseError(f"length must be at least 0, not {length}")
        each, tokens = self.groups[group], self.block_tokens[group]
        stop = -(-length // tokens)
        if isinstance(each, FullAttention):
            return range(stop)
        if isinstance(each, Mamba):
            return range(max(0, stop - 1), stop)
        if isinstance(each, LocalAttention):
            return range(length // each.part_tokens * each.part_tokens // tokens, stop)
        return range(max(0, length - each.window_tokens + 1) // tokens, stop)

    @classmethod
    def parse(cls, text: str, blocks_per_chunk: int = 1) -> Geometry:
        """Parse a geometry from a text like ``full:16,swa:16:1024,local:16:8192,mamba:16``; raises MisuseError otherwise.

        A group with layers of a drafter is written ``full:16+drafter`` or ``swa:16:1024+drafter``; prefixes that may end inside
        a block, every 4 tokens, ``full:16,mamba:16/4``.
        """
        groups, slash, unit = text.partition(_TAIL)
        if slash and not (unit.isascii() and unit.isdecimal() and len(unit) <= _MAX_DIGITS):
            raise MisuseError(f"{text[:40]!r}: behind {_TAIL} comes a whole number of tokens, and nothing else")
        return cls(tuple(map(_parsed, groups.split(","))), blocks_per_chunk, int(unit) if slash else None)

    def __str__(self) -> str:
        tail = "" if self.tail_tokens is None else f"{_TAIL}{self.tail_tokens}"
        return ",".join(map(str, self.groups)) + tail


def _window(group: Group, tokens: int) -> int | None:
    """How many units of this many tokens a hit needs before its end; None for all."""
    if isinstance(group, FullAttention):
        return None
    if isinstance(group, Mamba):
        return 1
    if isinstance(group, LocalAttention):
        return -(-group.part_tokens // tokens)
    return -(-(group.window_tokens - 1) // tokens)


def _parsed(text: str) -> Group:
    """One group of a text."""
    kind, *sizes = text.removesuffix(_DRAFTER).split(":")
    drafter = text.endswith(_DRAFTER)
    # Digits only: int() would also accept signs, spaces and underscores, and raises for thousands of digits.
    if all(size.isascii() and size.isdecimal() and len(size) <= _MAX_DIGITS for size in sizes):
        match kind, [int(size) for size in sizes]:
            case "full", [block_tokens]:
                return FullAttention(block_tokens, drafter=drafter)
            case "swa", [block_tokens, window_tokens]:
                return SlidingWindow(block_tokens, window_tokens, drafter=drafter)
            case "local", [block_tokens, part_tokens] if not drafter:
                return LocalAttention(block_tokens, part_tokens)
            case "mamba", [block_tokens] if not drafter:
                return Mamba(block_tokens)
    raise MisuseError(
        f"{text[:40]!r} is not a valid group; expected full:BLOCK, swa:BLOCK:WINDOW, local:BLOCK:PART or mamba:BLOCK, tokens "
        f"of at most {_MAX_DIGITS} digits, {_DRAFTER} behind attention with a drafter's layers, and commas between groups"
    )
