"""The verbs and expectations of a scenario file, read off the functions that do them.

Rules of this file:

* A function is the only declaration of its word: its name, its parameters with their kinds and defaults, its docstring up to
  the first empty line. `verb` and `expectation` add what a signature cannot say.
* What a verb returns tells what ``as`` can name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Annotated, TypeVar, Union, get_args, get_origin, get_type_hints

from attrs import frozen

from blocklife.testing.scenarios._kinds import BLOCKS, COPY, FLAG, NUMBER, TEXT, Known, Value, ValueKind, nearest

FunctionT = TypeVar("FunctionT", bound=Callable[..., object])
JudgeT = TypeVar("JudgeT", bound=Callable[..., str])
REQUIRED = ("start", "arrive", "step", "settle", "table")
"""The methods that every driver must have."""
_PLAIN: Mapping[object, ValueKind] = {str: TEXT, int: NUMBER, bool: FLAG}
_KEYS = {"job": "copy", "jobs": "copies"}
"""A file speaks of copies, and a driver of the jobs that they consist of."""
_BINDS = {BLOCKS: "block", COPY: "job"}


@frozen
class Parameter:
    """One parameter of a verb."""

    name: str
    kind: ValueKind
    default: object
    by_name: bool

    @property
    def needed(self) -> bool:
        """Whether it must be given."""
        return self.default is inspect.Parameter.empty


@frozen
class Verb:
    """Something that a step can do."""

    name: str
    doc: str
    parameters: tuple[Parameter, ...]
    section: str
    binds: str
    """What ``as`` names: ``block`` or ``job``; empty if the verb makes nothing."""
    needs: tuple[str, ...]
    """Methods of a driver, besides the required ones."""


@frozen
class Expectation:
    """Something that can be checked after a step."""

    name: str
    doc: str
    kind: ValueKind
    about: str
    needs: tuple[str, ...]
    """Methods of a driver that answer it."""
    judge: Callable[..., str]
    """Takes the judge and the value; says what is not so."""


@frozen
class _Facts:
    """What the signature of a verb does not say."""

    section: str = "the engine"
    needs: tuple[str, ...] = ()
    """Methods of a driver, besides the one of its own name."""
    defaults: Mapping[str, object] = {}


_FACTS: dict[Callable[..., object], _Facts] = {}
EXPECTATIONS: dict[str, Expectation] = {}
"""Every expectation by name."""


def verb(section: str = "the engine", *, needs: str = "", **defaults: object) -> Callable[[FunctionT], FunctionT]:
    """Marks a method as a verb, which the page lists in this section.

    *defaults*: what a parameter is that a file leaves out, and that a driver always gets.
    """

    def mark(function: FunctionT) -> FunctionT:
        _FACTS[function] = _Facts(section, tuple(needs.split()), defaults)
        return function

    return mark


def expectation(about: str, *, needs: str = "") -> Callable[[JudgeT], JudgeT]:
    """Makes an expectation of a method that takes what is expected, and says what is not so."""

    def mark(judge: JudgeT) -> JudgeT:
        ((_, kind),) = _kinds(judge)
        EXPECTATIONS[judge.__name__] = Expectation(judge.__name__, _sentence(judge), kind, about, tuple(needs.split()), judge)
        return judge

    return mark


def verbs_of(owner: type, driver: type, prefix: str = "") -> dict[str, Verb]:
    """The verbs among the methods of a class: those that are marked, and all whose name has the *prefix*."""
    members = {name: each for base in reversed(owner.__mro__) for name, each in vars(base).items() if inspect.isfunction(each)}
    found = {}
    for method, function in members.items():
        if function in _FACTS or (prefix and method.startswith(prefix)):
            name, facts = method.removeprefix(prefix), _FACTS.get(function, _Facts())
            own = (name,) if hasattr(driver, name) and name not in REQUIRED else ()
            given = inspect.signature(function).parameters
            parameters = tuple(
                Parameter(
                    _KEYS.get(each, each),
                    kind,
                    facts.defaults.get(each, given[each].default),
                    given[each].kind is inspect.Parameter.KEYWORD_ONLY,
                )
                for each, kind in _kinds(function)
            )
            made = _kind_of(get_type_hints(function, include_extras=True).get("return"))
            binds = _BINDS.get(made, "") if made is not None else ""
            found[name] = Verb(name, _sentence(function), parameters, facts.section, binds, (*own, *facts.needs))
    return found


def check_expectations(known: Known, found: Mapping[str, Value], *path: str) -> None:
    """Check a table of what must hold."""
    for key, value in found.items():
        if key not in EXPECTATIONS:
            known.refuse(f"unknown expectation {key!r} ({nearest(key, EXPECTATIONS, 'expectations')})", *path, key)
        known.needs.update(EXPECTATIONS[key].needs)
        EXPECTATIONS[key].kind.check(known, value, *path, key)


def _until(known: Known, value: Value, *path: str) -> None:
    check_expectations(known, known.table(value, *path), *path)


Until = Annotated[Callable[[], str], ValueKind("a table of expectations", _until)]
"""In a file a table of expectations; for the stage, a function that says which of them is not met."""


def _kinds(function: Callable[..., object]) -> list[tuple[str, ValueKind]]:
    """The parameters of a function behind the first, with their kinds."""
    hints = get_type_hints(function, include_extras=True)
    found = [(name, _kind_of(hints[name])) for name in list(inspect.signature(function).parameters)[1:]]
    if without := [name for name, kind in found if kind is None]:
        raise TypeError(f"{function.__name__}: {without[0]} has no kind (annotate it with one of _kinds)")
    return [(name, kind) for name, kind in found if kind is not None]


def _kind_of(hint: object) -> ValueKind | None:
    for each in getattr(hint, "__metadata__", ()):
        if isinstance(each, ValueKind):
            return each
    if get_origin(hint) in (Union, UnionType):
        return next((kind for each in get_args(hint) if (kind := _kind_of(each)) is not None), None)
    return _PLAIN.get(hint)


def _sentence(function: Callable[..., object]) -> str:
    return " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())
