"""What the content of a place says of itself, where a prefix may end inside a block of a drafter's layers.

Rules of this file:

* A content is a text, ``0:abc`` or ``0:abc@weights``: the group and all letters up to the last one of a block.
* What layers of a drafter keep of a letter depends on the letter behind it, which stands behind ``>``: ``0:abc>d``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from attrs import frozen

from blocklife.testing.worlds._device import Content

_NEXT = ">"


def looking_ahead(text: str, end: int) -> str:
    """The first *end* letters, and the one behind them."""
    return f"{text[:end]}{_NEXT}{text[end : end + 1]}"


@frozen
class _ContentParts:
    """A content in its parts; ``behind`` is the letter behind, or empty."""

    group: str
    letters: str
    behind: str
    weights: str


@lru_cache(4096)
def _read(content: str) -> _ContentParts:
    group, _, rest = content.partition(":")
    text, _, weights = rest.partition("@")
    letters, _, behind = text.partition(_NEXT)
    return _ContentParts(group, letters, behind, weights)


def beginning(block_tokens: int) -> Callable[[Content, Content], bool]:
    """Whether a place holds what is wanted, or that and more letters of the same block: those behind a tail are not read.

    If a letter behind what is wanted is named, it has to be the next one there, too. All blocks have *block_tokens* letters.
    """

    def agrees(held: Content, wanted: Content) -> bool:
        if held == wanted:
            return True
        if not isinstance(held, str) or not isinstance(wanted, str):
            return False
        has, wants = _read(held), _read(wanted)
        more = len(has.letters) - len(wants.letters)
        block = (len(wants.letters) - 1) // block_tokens
        return (
            (has.group, has.weights) == (wants.group, wants.weights)
            and more >= 0
            and (len(has.letters) - 1) // block_tokens == block
            and (has.letters + has.behind).startswith(wants.letters + wants.behind)
        )

    return agrees
