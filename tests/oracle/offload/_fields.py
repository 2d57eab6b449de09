"""Checks of single fields of settings; each refuses with MisuseError, in one line that names the field."""

from __future__ import annotations

import enum
from collections.abc import Callable
from math import inf

from tests.oracle.errors import MisuseError
from tests.oracle.ledger._limits import check_member


def _name(attribute: object) -> str:
    return str(getattr(attribute, "name", "value"))


def at_least(least: int, *, or_none: bool = False) -> Callable[[object, object, int | None], None]:
    """A whole number that is not smaller; with *or_none*, None means that there is no limit."""

    def check(_instance: object, attribute: object, value: int | None) -> None:
        if value is None and or_none:
            return
        if type(value) is not int or value < least:
            raise MisuseError(f"{_name(attribute)} must be a whole number of at least {least}, not {value!r}")

    return check


def member(kind: type[enum.Enum]) -> Callable[[object, object, object], None]:
    """A member of an enumeration."""

    def check(_instance: object, attribute: object, value: object) -> None:
        check_member(_name(attribute), value, kind)

    return check


def flag(_instance: object, attribute: object, value: object) -> None:
    """True or False."""
    if type(value) is not bool:
        raise MisuseError(f"{_name(attribute)} must be True or False, not {value!r}")


def above_zero(_instance: object, attribute: object, value: object) -> None:
    """A finite number above zero."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
        raise MisuseError(f"{_name(attribute)} must be above 0 and finite, not {value!r}")


def above_zero_or_endless(_instance: object, attribute: object, value: object) -> None:
    """A number above zero; infinity means that there is no limit."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise MisuseError(f"{_name(attribute)} must be above 0 (math.inf: no limit), not {value!r}")
