"""The text form of worlds: the keys of TOML files and options for each setting, checked when read, and written back.

Rules of this file:

* One table holds all keys (`WORDS`); options, files, pages and printed settings are made from it.
* A wrong value is refused in one sentence that names file and key, before anything is built.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from attrs import evolve, frozen

from blocklife.errors import MisuseError
from blocklife.files import parse_toml, read_text
from blocklife.knobs import Knob, Plain, knobs, usual, written
from blocklife.knobs import said as as_said
from blocklife.offload import BelowPolicies, Demote, Policies
from blocklife.testing.worlds._actions import FAULT_DOCS
from blocklife.testing.worlds._engine import FOREVER, USUAL, USUAL_BELOW, Settings
from blocklife.testing.worlds._world import Faults, Script, WorldSettings

Value: TypeAlias = "str | int | float | bool | list[str] | dict[str, int]"
"""The types of values in a file."""

SIZE_MAX = 4096
"""The largest size allowed: the states of a world are counted one by one."""


NO_TIER = "none"
"""What the word `below` says where there is no store below."""


@frozen
class Word:
    """One key: the choice that it stands for, and the part of the settings that has it."""

    name: str
    knob: Knob
    part: str = ""
    """The field of `Settings` that holds the choice; empty: it is one of their own."""

    @property
    def kind(self) -> type[str | int | float | bool]:
        """The type of its values."""
        return self.knob.kind

    @property
    def doc(self) -> str:
        """What it means."""
        return self.knob.says

    @property
    def choices(self) -> tuple[str, ...]:
        """The values to choose from; empty if there is no such list."""
        return self.knob.choices

    @property
    def default(self) -> Plain:
        """The default; None for no limit."""
        return self.written(Settings())

    @property
    def default_said(self) -> str:
        """The default in words."""
        return "never" if self.default == FOREVER else usual(self.default)

    def written(self, settings: Settings) -> Plain:
        """Its value in these settings; None for no limit."""
        if self.part == BELOW and settings.below is None:
            return NO_TIER if self.name == BELOW else written(getattr(USUAL_BELOW, self.knob.name))
        return written(getattr(getattr(settings, self.part) if self.part else settings, self.knob.name))

    def checked(self, value: object, where: str) -> object:
        """The checked value. Raises `MisuseError` that begins with *where*."""
        return self.knob.read(value, where, SIZE_MAX)


POLICIES, BELOW = "policies", "below"
UNSAID: Mapping[str, str] = {
    "plans_ahead": "`async` says it: a world plans one step ahead, or none",
    "state_drafts": "`drafts` says it: all drafts beside states have a block",
    "max_store_tokens": "a block that has more may be stored as a tail, which a world's device takes for other content",
    "max_told": "nobody hears the events of a world",
}
"""Policies that are no words, and why."""


def _words() -> Iterator[Word]:
    yield from (Word(each.word, each) for each in knobs(Settings))
    yield from (Word(each.word, each, POLICIES) for each in knobs(Policies) if each.name not in UNSAID)
    for each in knobs(BelowPolicies):
        if each.name in UNSAID:
            continue
        if each.choices:
            says = f"{each.says}; {NO_TIER}: there is no such store"
            yield Word(BELOW, evolve(each, default=NO_TIER, says=says, among=(NO_TIER, *each.choices)), BELOW)
        else:
            yield Word(f"{BELOW}_{each.name.removeprefix('max_')}", each, BELOW)


WORDS = tuple(_words())
"""Every choice of `Settings`."""

REQUESTS, FAULTS = "requests", "faults"
"""The two keys that are no choices of the engine."""

_BY_NAME = {each.name: each for each in WORDS}


def _unknown(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, 1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"


# --- reading ----------------------------------------------------------------------------------------------------------------


def read_world(path: str) -> dict[str, object]:
    """The contents of a TOML file, not checked yet. Raises `MisuseError` that begins with the file's name."""
    return parse_toml(read_text(path, "name a world as a TOML file, or a pinned one with --world"), path)


def parse_faults(text: str, where: str = "--faults") -> dict[str, int]:
    """``fail=1,preempt=2`` as numbers by name."""
    found: dict[str, int] = {}
    for part in text.split(","):
        name, equals, times = part.strip().partition("=")
        if name not in FAULT_DOCS:
            raise MisuseError(f"{where}: unknown fault {name!r} ({_unknown(name, list(FAULT_DOCS))})")
        if name in found:
            raise MisuseError(f"{where}: {name} is named twice")
        if equals and not (times.isascii() and times.isdecimal() and len(times) <= 4):
            raise MisuseError(f"{where}: {name} happens a whole number of times, not {times[:40]!r}")
        found[name] = int(times) if equals else 1
    return found


def make_world(words: Mapping[str, object], where: str) -> WorldSettings:
    """The world that these words describe; errors begin with *where*, for example a file's name."""
    known = [*_BY_NAME, REQUESTS, FAULTS]
    for name in words:
        if name not in known:
            raise MisuseError(f"{where}: unknown key {name!r} ({_unknown(name, known)})")
    try:
        engine = _engine(words, where)
        given = {} if REQUESTS not in words else {REQUESTS: _requests(words[REQUESTS], where)}
        faults = Faults(**_faults(words.get(FAULTS, {}), where))
        settings = WorldSettings(engine=engine, faults=faults, **given)
        if len(settings.requests) > engine.max_requests:
            raise MisuseError(
                f"{len(settings.requests)} requests may come, and there is room for {engine.max_requests} (max_requests)"
            )
        return settings
    except MisuseError as problem:
        raise problem if str(problem).startswith(where) else MisuseError(f"{where}: {problem}") from None


def _engine(words: Mapping[str, object], where: str) -> Settings:
    """The settings of the engine; what is said of a tier below is left out where there is none."""
    parts: dict[str, dict[str, Any]] = {"": {}, POLICIES: {}, BELOW: {}}  # each value is checked for its field
    for name, word in _BY_NAME.items():
        if name in words:
            parts[word.part][word.knob.name] = word.checked(words[name], f"{where}: {name}")
    demote = parts[BELOW].pop("demote", NO_TIER)
    return Settings(
        policies=evolve(USUAL, **parts[POLICIES]),
        below=None if demote == NO_TIER else evolve(USUAL_BELOW, demote=Demote[demote.upper()], **parts[BELOW]),
        **parts[""],
    )


def _requests(value: object, where: str) -> tuple[Script, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise MisuseError(f"{where}: {REQUESTS} must be a list of texts like 'ab.c', not {as_said(value)}")
    return WorldSettings(engine=_ROOMY, requests=value).requests


_ROOMY = Settings(num_blocks=SIZE_MAX)
"""For parsing requests only: whether they fit is checked with the world's own settings."""


def _faults(value: object, where: str) -> dict[str, int]:
    if not isinstance(value, dict):
        raise MisuseError(f"{where}: {FAULTS} must be a table of numbers, not {as_said(value)}")
    for name, times in value.items():
        if name not in FAULT_DOCS:
            raise MisuseError(f"{where}: {FAULTS}.{name}: there is no such fault ({_unknown(name, list(FAULT_DOCS))})")
        if type(times) is not int or not 0 <= times <= SIZE_MAX:
            raise MisuseError(f"{where}: {FAULTS}.{name} must be from 0 to {SIZE_MAX}, not {as_said(times)}")
    return value


# --- writing ----------------------------------------------------------------------------------------------------------------


def words_of(settings: WorldSettings) -> dict[str, Value]:
    """A world in words, without defaults; its requests, and faults that can happen, are always named."""
    found: dict[str, Value] = {REQUESTS: [request_of(each) for each in settings.requests]}
    for word in WORDS:
        value = word.written(settings.engine)
        if value is not None and value != word.default:
            found[word.name] = value
    faults = {name: times for name, times in settings.faults.items() if times}
    if faults:
        found[FAULTS] = faults
    return found


def request_of(script: Script) -> str:
    """A request as ``prompt.output``."""
    return f"{script.text[: script.prompt]}.{script.text[script.prompt :]}"


def said(settings: WorldSettings) -> str:
    """A world in one line."""
    parts = []
    for name, value in words_of(settings).items():
        if isinstance(value, dict):
            parts.append(f"{name} " + ",".join(f"{fault}={times}" for fault, times in value.items()))
        elif value is True:
            parts.append(name)
        else:
            parts.append(f"{name} " + (",".join(value) if isinstance(value, list) else str(value)))
    return ", ".join(parts)


def as_python(settings: WorldSettings) -> Iterator[str]:
    """The lines of a Python expression that makes the world; it needs the names of `PYTHON_IMPORTS`."""
    words = words_of(settings)
    made = [
        "make_world(",
        "    {",
        *(f"        {name!r}: {value!r}," for name, value in words.items()),
        "    },",
        "    'world',",
        ")",
    ]
    if make_world(words, "world") == settings:
        yield from made
        return
    scripts = ", ".join(f"Script({each.name!r}, {each.text!r}, {each.prompt})" for each in settings.requests)
    yield from ("evolve(", *(f"    {line}" for line in made[:-1]), "    ),", f"    requests=({scripts},),", ")")


PYTHON_IMPORTS = (
    "from attrs import evolve",
    "from blocklife.testing.worlds._format import make_world",
    "from blocklife.testing.worlds._world import Action, Script, World",
)
"""The imports that the lines of `as_python` need."""


def faults_table() -> Iterator[str]:
    """The faults as `specs/testing.md` prints them, line by line."""
    yield from ("| fault | meaning |", "| --- | --- |")
    yield from (f"| `{name}` | {doc} |" for name, doc in FAULT_DOCS.items())
