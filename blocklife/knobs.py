"""Knobs: a choice is declared once, as a field with its default, its bounds and one sentence (`knob`).

All else that is said of a choice is made from there (`knobs`): what it refuses, the words of files, options, and the tables of
the pages.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from functools import cache
from math import inf
from typing import TypeAlias, TypeVar

import attrs
from attrs import evolve, field, frozen

from blocklife.errors import MisuseError

ValueT = TypeVar("ValueT")
Plain: TypeAlias = "str | int | float | bool | None"
"""A value as a text file has it: the member of an enumeration is its name in small letters; None is left out."""

_WANTED = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def check_member(name: str, value: object, kind: type[enum.Enum]) -> None:
    """Refuse anything but a member of the enumeration: a text with its name would silently mean another."""
    if not isinstance(value, kind):
        raise MisuseError(f"{name} must be one of {', '.join(map(str, kind))}, not {value!r}")


@frozen(kw_only=True)
class Knob:
    """What is known of one choice."""

    says: str
    """One sentence: what is chosen, and in which unit."""
    default: object
    name: str = ""
    """The name of its field."""
    word: str = ""
    """Its key in files; left out: its name."""
    least: int = 0
    most: int | None = None
    endless: bool = True
    """Whether a time may be ``math.inf``, which means that there is no bound."""
    among: tuple[str, ...] = ()
    """The texts to choose from, where it is a text."""

    @property
    def kind(self) -> type[str | int | float | bool]:
        """The type of its values in a file; a number that may be left out has None as its default."""
        if self.default is None:
            return int
        found = type(self.default)
        return next((each for each in (bool, int, float) if each is found), str)

    @property
    def choices(self) -> tuple[str, ...]:
        """The words to choose from; empty if there is no such list."""
        if isinstance(self.default, enum.Enum):
            return tuple(each.name.lower() for each in type(self.default))
        return self.among

    @property
    def told(self) -> str:
        """The sentence, with the words to choose from and what each means."""
        if isinstance(self.default, enum.Enum):
            return f"{self.says}. " + "; ".join(f"`{each.name.lower()}`: {each.value}" for each in type(self.default))
        return self.says + (f" ({', '.join(f'`{each}`' for each in self.among)})" if self.among else "")

    def check(self, value: object, name: str) -> None:
        """Refuse a value that the field cannot have."""
        wanted = ""
        if isinstance(self.default, enum.Enum):
            check_member(name, value, type(self.default))
        elif self.kind is bool and type(value) is not bool:
            wanted = "True or False"
        elif self.kind is float:
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not value > 0
                or (value == inf and not self.endless)
            ):
                wanted = "above 0 (math.inf: no limit)" if self.endless else "above 0 and finite"
        elif self.kind is int and not (self._holds(value) or (value is None and self.default is None)):
            bounds = f"of at least {self.least}" if self.most is None else f"from {self.least} to {self.most}"
            wanted = f"a whole number {bounds}"
        if wanted:
            raise MisuseError(f"{name} must be {wanted}, not {value!r}")

    def _holds(self, value: object) -> bool:
        return type(value) is int and self.least <= value and (self.most is None or value <= self.most)

    def read(self, value: object, where: str, most: int) -> object:
        """The value that a word of a file means. Raises `MisuseError`, which begins with *where*, for one that cannot be."""
        wanted = ""
        if type(value) is not self.kind and not (self.kind is float and type(value) is int):
            wanted = _WANTED[self.kind]
        elif self.choices and value not in self.choices:
            wanted = f"one of {', '.join(self.choices)}"
        elif self.kind is int and isinstance(value, int):
            highest = most if self.most is None else self.most
            wanted = "" if self.least <= value <= highest else f"from {self.least} to {highest}"
        elif self.kind is float and isinstance(value, int | float) and not 0 < value < inf:
            wanted = "above 0"
        if wanted:
            raise MisuseError(f"{where} must be {wanted}, not {said(value)}")
        if isinstance(self.default, enum.Enum) and isinstance(value, str):
            return type(self.default)[value.upper()]
        return value


def usual(plain: Plain) -> str:
    """A default in words."""
    return "no limit" if plain is None else "never" if plain == inf else str(plain).lower()


def said(value: object) -> str:
    """A value of a file, for a message."""
    return str(value).lower() if isinstance(value, bool) else repr(value)[:60]


def written(value: object) -> Plain:
    """The word for a value."""
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if value is None or isinstance(value, str | int | float):
        return value
    raise MisuseError(f"{value!r}: there is no word for it (a choice is a member, a text, a number, a flag, or None)")


def _check(_instance: object, attribute: attrs.Attribute[ValueT], value: ValueT) -> None:
    declared: Knob = attribute.metadata["knob"]
    declared.check(value, attribute.name)


def knob(
    default: ValueT,
    says: str,
    *,
    word: str = "",
    least: int = 0,
    most: int | None = None,
    endless: bool = True,
    among: tuple[str, ...] = (),
) -> ValueT:
    """Declare a field of a class of attrs as a choice; see `Knob` for what is said of it."""
    declared = Knob(says=says, default=default, word=word, least=least, most=most, endless=endless, among=among)
    return field(default=default, validator=_check, metadata={"knob": declared})


@cache
def knobs(cls: type[attrs.AttrsInstance]) -> tuple[Knob, ...]:
    """The choices of a class, in the order of their fields."""
    return tuple(
        evolve(each.metadata["knob"], name=each.name, word=each.metadata["knob"].word or each.name)
        for each in attrs.fields(cls)
        if "knob" in each.metadata
    )


def knobs_table(cls: type[attrs.AttrsInstance]) -> Iterator[str]:
    """The choices of a class as the pages print them, line by line."""
    yield from ("| policy | default | chooses |", "| --- | --- | --- |")
    yield from (f"| `{each.name}` | {usual(written(each.default))} | {each.told} |" for each in knobs(cls))
