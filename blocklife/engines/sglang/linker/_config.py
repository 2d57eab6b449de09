"""The options of the linker, from `linker_extra_config`: keys, defaults and checks.

Rules of this file:

* An unknown key is an error that suggests the nearest known one. Nothing is ignored.
* Every option has a default, documented here; only the size of host memory has none.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from decimal import Decimal
from math import inf

from attrs import field, fields, frozen

from blocklife.errors import MisuseError
from blocklife.ledger import Checking
from blocklife.ledger._limits import MAX_SLOTS
from blocklife.offload.replacement import replacements

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}
_BYTES = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?|)b?\s*", re.IGNORECASE)


def _say(key: str, value: object, wanted: str) -> MisuseError:
    return MisuseError(f"linker_extra_config: {key} must be {wanted}, not {value!r}")


def _count(key: str, value: object) -> int:
    if type(value) is not int or value < 1:
        raise _say(key, value, "a whole number of at least 1")
    return value


def _bytes(key: str, value: object) -> int:
    """A number of bytes, or a text with a unit like 64GiB."""
    found = value if type(value) is int else 0
    if isinstance(value, str) and (text := _BYTES.fullmatch(value)):
        found = int(Decimal(text[1]) * _UNITS[text[2].lower()])
    if found < 1:
        raise _say(key, value, "a whole number of bytes, or a text like '64GiB'")
    return found


def _seconds(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
        raise _say(key, value, "a number of seconds above 0")
    return float(value)


def _policy(key: str, value: object) -> str:
    """A registered policy name; the case of built-in names does not matter."""
    known = replacements()
    if isinstance(value, str) and (name := value if value in known else value.lower()) in known:
        return name
    raise _say(key, value, f"one of {', '.join(known)}, or a name that was registered before")


def _checking(key: str, value: object) -> Checking:
    for member in Checking:
        if isinstance(value, str) and value.upper() == member.name:
            return member
    raise _say(key, value, f"one of {', '.join(member.name.lower() for member in Checking)}")


@frozen(kw_only=True)
class LinkerConfig:
    """The options of one rank. Give exactly one of ``host_bytes`` and ``host_pages``."""

    host_bytes: int | None = field(default=None, metadata={"read": _bytes})
    """Host memory of each rank, in bytes or as a text like 64GiB."""
    host_pages: int | None = field(default=None, metadata={"read": _count})
    """Host memory of each rank, in pages of SGLang."""
    policy: str = field(default="arc", metadata={"read": _policy})
    """The eviction policy of host memory: arc, lru, or a name registered with `blocklife.offload.register`."""
    deadline_s: float = field(default=60.0, metadata={"read": _seconds})
    """How long a copy to the host may take, in seconds from its launch. Then it has failed, and a step waits for its end."""
    checking: Checking = field(default=Checking.COUNT, metadata={"read": _checking})
    """What happens when a rule of the ledger is broken: strict raises, count counts it and goes on, off does not check."""

    def __attrs_post_init__(self) -> None:
        if (self.host_bytes is None) is (self.host_pages is None):
            given = "neither" if self.host_bytes is None else "both"
            raise MisuseError(
                f"linker_extra_config: {given} of host_bytes and host_pages given (say how much host memory there is, once)"
            )

    @classmethod
    def read(cls, extra: Mapping[str, object]) -> LinkerConfig:
        """Read the options from a dictionary. Refuses: an unknown key, an invalid value."""
        readers = {each.name: each.metadata["read"] for each in fields(cls)}
        found: dict[str, object] = {}
        for key, value in extra.items():
            if key not in readers:
                nearest = difflib.get_close_matches(key, readers, n=1, cutoff=0.0)
                raise MisuseError(f"linker_extra_config: {key!r} is no key of this linker (did you mean {nearest[0]!r}?)")
            found[key] = readers[key](key, value)
        return cls(**found)  # type: ignore[arg-type]  # the readers have made them what they are

    def num_slots(self, page_bytes: int) -> int:
        """How many pages host memory holds. Refuses less than one, with the numbers."""
        if self.host_pages is not None:
            slots, given = self.host_pages, f"host_pages={self.host_pages}"
        else:
            slots, given = (self.host_bytes or 0) // page_bytes, f"host_bytes={self.host_bytes}"
        if slots < 1:
            raise MisuseError(f"linker_extra_config: {given} holds no page, which takes {page_bytes} bytes (give more)")
        if slots > MAX_SLOTS:
            raise MisuseError(
                f"linker_extra_config: {given} holds {slots} pages, of which there can be {MAX_SLOTS} at most (give less)"
            )
        return slots
