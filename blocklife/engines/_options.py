"""Readers of the options that an engine's own configuration hands to blocklife, as values out of JSON.

A reader takes the key, with the place where it stands, and the value. It returns the option, or raises a MisuseError that
names the key, the value and what is wanted.
"""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from decimal import Decimal
from functools import partial
from math import inf
from typing import TypeVar

from blocklife.errors import MisuseError
from blocklife.knobs import Knob, knobs
from blocklife.offload import BelowPolicies
from blocklife.offload.replacement import replacements

EnumT = TypeVar("EnumT", bound=enum.Enum)

MAX_PARTS = 1024
"""In how many parts a load can go at most."""

BELOW: Mapping[str, Knob] = {
    f"below_{each.name.removeprefix('max_')}" + "_s" * (each.kind is float): each
    for each in knobs(BelowPolicies)
    if each.name not in ("job_slots", "lazy_slots")  # a matter of how jobs are cut
}
"""The policies of the tier below that are options, by key; a time is in seconds."""

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}
_BYTES = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?|)b?\s*", re.IGNORECASE)


def wrong(key: str, value: object, wanted: str) -> MisuseError:
    """The error for a value that is not what is *wanted*."""
    return MisuseError(f"{key} must be {wanted}, not {value!r}")


def whole(value: object) -> int | None:
    """A whole number; JSON from a command line may bring it as a float without a fraction."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if type(value) is int else None


def count(key: str, value: object, least: int = 1, most: int | None = None) -> int:
    """A whole number within bounds."""
    found = whole(value)
    if found is None or found < least or (most is not None and found > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise wrong(key, value, f"a whole number {bounds}")
    return found


def num_bytes(key: str, value: object) -> int:
    """A number of bytes, or a text with a unit like 64GiB."""
    if isinstance(value, str) and (text := _BYTES.fullmatch(value)):
        found: int | None = int(Decimal(text[1]) * _UNITS[text[2].lower()])
    else:
        found = whole(value)
    if found is None or found < 1:
        raise wrong(key, value, "a whole number of bytes, or a text like '64GiB'")
    return found


def seconds(key: str, value: object) -> float:
    """A time."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
        raise wrong(key, value, "a number of seconds above 0")
    return float(value)


def replacement(key: str, value: object) -> str:
    """The name of a registered eviction policy; the case of built-in names does not matter."""
    known = replacements()
    if isinstance(value, str) and (name := value if value in known else value.lower()) in known:
        return name
    raise wrong(key, value, f"one of {', '.join(known)}, or a name that was registered before")


def text(key: str, value: object) -> str:
    """A text with something in it."""
    if not isinstance(value, str) or not value.strip():
        raise wrong(key, value, "a text that is not empty")
    return value


def address(key: str, value: object) -> str:
    """The address of a store; what is wrong with it in detail is found when it is opened."""
    if not isinstance(value, str) or ":" not in value.strip(":"):
        raise wrong(key, value, "the address of a store: fs:DIR, fs:DIR:BYTES, or another that specs/tiers.md lists")
    return value


def flag(key: str, value: object) -> bool:
    """True or false."""
    if type(value) is not bool:
        raise wrong(key, value, "true or false")
    return value


def knob(declared: Knob) -> Callable[[str, object], object]:
    """A reader of a choice; a time is one in seconds."""
    if isinstance(declared.default, enum.Enum):
        return one_of(type(declared.default))
    if declared.kind is int:
        return partial(count, least=declared.least, most=declared.most)
    return flag if declared.kind is bool else seconds


def policies(found: MutableMapping[str, object], known: Mapping[str, Knob]) -> dict[str, object]:
    """Take these choices out of the options that were found, by the names of their policies."""
    return {each.name: found.pop(key) for key, each in known.items() if key in found}


def check_below(place: str, found: Iterable[str]) -> None:
    """Refuse options of a store below host memory if no store is named."""
    keys = [*found]
    if "below" not in keys and (stray := next((key for key in keys if key.startswith("below_")), None)):
        raise MisuseError(f"{place}: {stray!r} needs a store below host memory (set below to its address)")


def one_of(kind: type[EnumT]) -> Callable[[str, object], EnumT]:
    """A reader of the members of an enum, by name in any case."""

    def read(key: str, value: object) -> EnumT:
        for member in kind:
            if isinstance(value, str) and value.upper() == member.name:
                return member
        raise wrong(key, value, f"one of {', '.join(member.name.lower() for member in kind)}")

    return read


def known_key(place: str, key: str, known: Iterable[str], owner: str, aliases: Mapping[str, str] | None = None) -> str:
    """The option that *key* names, itself or as an alias. Raises MisuseError with the nearest one if there is none."""
    names, others = list(known), aliases or {}
    name = others.get(key, key)
    if name not in names:
        nearest = difflib.get_close_matches(key, [*names, *others], n=1, cutoff=0.0)
        raise MisuseError(f"{place}: {key!r} is no key of this {owner} (did you mean {nearest[0]!r}?)")
    return name
