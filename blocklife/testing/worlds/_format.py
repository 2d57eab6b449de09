"""The text form of worlds: the keys of TOML files and options for each setting, checked when read, and written back.

Rules of this file:

* One table holds all keys (`WORDS`); options, files, pages and printed settings are made from it.
* A wrong value is refused in one sentence that names file and key, before anything is built.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from attrs import field, fields, frozen

from blocklife.errors import MisuseError
from blocklife.files import parse_toml, read_text
from blocklife.ledger import Checking, Contract
from blocklife.offload import FullHit, LastStep, Mode
from blocklife.offload.replacement import BUILT_IN
from blocklife.testing.worlds._engine import FOREVER, NO_TIER, Settings
from blocklife.testing.worlds._world import Faults, Script, WorldSettings

Value: TypeAlias = "str | int | float | bool | list[str] | dict[str, int]"
"""The types of values in a file."""

SIZE_MAX = 4096
"""The largest size allowed: the states of a world are counted one by one."""


def _names(choices: type[enum.Enum] | tuple[str, ...]) -> tuple[str, ...]:
    return choices if isinstance(choices, tuple) else tuple(each.name.lower() for each in choices)


@frozen
class Word:
    """One key: the setting that it stands for, and its allowed values."""

    name: str
    setting: str
    kind: type[str | int | float | bool]
    doc: str
    choices: tuple[str, ...] = field(default=(), converter=_names)
    """The values to choose from; empty if there is no such list."""
    least: int = field(default=0, kw_only=True)
    most: int = field(default=SIZE_MAX, kw_only=True)

    @property
    def default(self) -> str | int | float | bool | None:
        """The default; None for no limit."""
        return self.written(Settings())

    @property
    def default_said(self) -> str:
        """The default in words."""
        if self.default is None:
            return "no limit"
        return "never" if self.default == FOREVER else str(self.default).lower()

    def written(self, settings: Settings) -> str | int | float | bool | None:
        """Its value in these settings; None for no limit."""
        value: enum.Enum | str | int | float | bool | None = getattr(settings, self.setting)
        return value.name.lower() if isinstance(value, enum.Enum) else value

    def checked(self, value: object, where: str) -> object:
        """The checked value. Raises `MisuseError` that begins with *where*."""
        wanted = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}[self.kind]
        if type(value) is not self.kind and not (self.kind is float and type(value) is int):
            raise MisuseError(f"{where} must be {wanted}, not {_said(value)}")
        if self.choices and value not in self.choices:
            raise MisuseError(f"{where} must be one of {', '.join(self.choices)}, not {_said(value)}")
        if self.kind is int and isinstance(value, int) and not self.least <= value <= self.most:
            raise MisuseError(f"{where} must be from {self.least} to {self.most}, not {_said(value)}")
        if self.kind is float and isinstance(value, int | float) and not 0 < value < float("inf"):
            raise MisuseError(f"{where} must be above 0, not {_said(value)}")
        default = getattr(Settings(), self.setting)
        if isinstance(default, enum.Enum) and isinstance(value, str):
            return type(default)[value.upper()]
        return value


WORDS: tuple[Word, ...] = (
    Word("groups", "groups", str, "the model's groups, by commas: full:BLOCK, swa:BLOCK:WINDOW, local:BLOCK:PART, mamba:BLOCK; "
         "behind them /1 if a prefix may end inside a block"),
    Word("blocks_per_chunk", "blocks_per_chunk", int, "blocks that are offloaded as one", least=1),
    Word("blocks", "num_blocks", int, "device blocks to hand out; the null block comes on top", least=1),
    Word("slots", "num_slots", int, "host slots; a slot holds one chunk", least=1),
    Word("workers", "num_workers", int, "ranks; each copies its share of every job", least=1, most=64),
    Word("max_jobs", "max_jobs", int, "jobs that can be in flight at the same time", least=1),
    Word("max_requests", "max_requests", int, "requests that can exist at the same time", least=1),
    Word("contract", "contract", str, "what may happen to a block that a copy reads", Contract),
    Word("mode", "mode", str, "store content as its chunk fills, or when its block is about to go", Mode),
    Word("lazy_blocks", "lazy_blocks", int, "lazy: how many of the blocks that are handed out next are kept stored", least=1),
    Word("async", "asynchronous", bool, "plan each step while the previous one runs"),
    Word("deadline", "deadline", float, "time that a copy may run; it passes only where a copy can hang or a report can be "
         "lost, and is 1 there"),
    Word("policy", "replacement", str, "what the host tier evicts first", BUILT_IN),
    Word("last_step", "last_step", str, "what happens to copies in flight when the last request ends", LastStep),
    Word("full_hit", "full_hit", str, "what happens to a hit on the whole prompt", FullHit),
    Word("partial_chunks", "partial_chunks", bool, "store a chunk that has holes"),
    Word("max_load_failures", "max_load_failures", int, "failed loads after which a request computes"),
    Word("step_tokens", "step_tokens", int, "maximum tokens that one request computes in one step", least=1),
    Word("drafts", "drafts", int,
         "tokens guessed in each step of a running request; capitals of its text are guessed wrong", least=0),
    Word("load_within_tokens", "load_within_tokens", int, "tokens that a plan may load before its forward pass", least=0),
    Word("pending_wait", "pending_wait", float, "time that a request waits for content on its way"),
    Word("checking", "checking", str, "what a broken rule of the ledger does", Checking),
    Word("below", "below", str, "when content goes to a store below host memory; none: there is no such store",
         (NO_TIER, "eager", "lazy", "never")),
    Word("below_shared", "below_shared", bool, "another process has put there what the prompts need"),
    Word("below_wait", "below_wait", float, "time that a request waits for it"),
    Word("below_slots", "below_slots", int, "slots that are copied at once, there and back", least=1),
    Word("below_job_slots", "below_job_slots", int, "slots of one such job", least=1),
    Word("below_lazy_slots", "below_lazy_slots", int, "lazy: how many of the slots that are evicted next are kept there",
         least=1),
)  # fmt: skip
"""Every field of `Settings`."""

REQUESTS, FAULTS = "requests", "faults"
"""The two keys that are not fields of `Settings`."""

FAULT_DOCS: Mapping[str, str] = {
    "fail": "a copy fails on one worker",
    "hang": "a copy never lands; deadlines pass",
    "lose": "a report is lost; deadlines pass",
    "repeat": "a report comes twice",
    "abort": "a client disconnects",
    "preempt": "a request is preempted although there is room",
    "reset": "all content is forgotten at once",
    "drain": "all content is forgotten when no copy is in flight",
    "renew": "the weights change",
    "sleep": "the device memory is given up for a while",
    "lose_worker": "a worker is lost, and comes back empty",
    "lend": "a second owner reads what is final of a request, until it gives it back",
    "vanish": "the store below loses one worker's part of some content",
    "refuse": "the store below takes nothing of a copy from one worker",
    "down": "the store below is down for a while",
}
"""The faults, with what each means."""

_BY_NAME = {each.name: each for each in WORDS}


def _said(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)[:60]


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
    chosen = {word.setting: word.checked(words[name], f"{where}: {name}") for name, word in _BY_NAME.items() if name in words}
    try:
        engine = Settings(**chosen)  # type: ignore[arg-type]  # each value was checked for its field
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


def _requests(value: object, where: str) -> tuple[Script, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise MisuseError(f"{where}: {REQUESTS} must be a list of texts like 'ab.c', not {_said(value)}")
    return WorldSettings(engine=_ROOMY, requests=value).requests


_ROOMY = Settings(num_blocks=SIZE_MAX)
"""For parsing requests only: whether they fit is checked with the world's own settings."""


def _faults(value: object, where: str) -> dict[str, int]:
    if not isinstance(value, dict):
        raise MisuseError(f"{where}: {FAULTS} must be a table of numbers, not {_said(value)}")
    for name, times in value.items():
        if name not in FAULT_DOCS:
            raise MisuseError(f"{where}: {FAULTS}.{name}: there is no such fault ({_unknown(name, list(FAULT_DOCS))})")
        if type(times) is not int or not 0 <= times <= SIZE_MAX:
            raise MisuseError(f"{where}: {FAULTS}.{name} must be from 0 to {SIZE_MAX}, not {_said(times)}")
    return value


# --- writing ----------------------------------------------------------------------------------------------------------------


def words_of(settings: WorldSettings) -> dict[str, Value]:
    """A world in words, without defaults; its requests, and faults that can happen, are always named."""
    found: dict[str, Value] = {REQUESTS: [written(each) for each in settings.requests]}
    for word in WORDS:
        value = word.written(settings.engine)
        if value is not None and value != word.default:
            found[word.name] = value
    faults = {name: times for name, times in settings.faults.items() if times}
    if faults:
        found[FAULTS] = faults
    return found


def written(script: Script) -> str:
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
    changed = []
    default = Settings()
    for each in fields(Settings):
        value = getattr(settings.engine, each.name)
        if each.init and value != getattr(default, each.name):
            changed.append(f"{each.name}={value if isinstance(value, enum.Enum) else repr(value)}")
    yield "WorldSettings("
    yield f"    engine=Settings({', '.join(changed)}),"
    plain = WorldSettings(engine=_ROOMY, requests=[written(each) for each in settings.requests]).requests
    if plain == settings.requests:
        requests = [repr(written(each)) for each in settings.requests]
    else:
        requests = [f"Script({each.name!r}, {each.text!r}, {each.prompt})" for each in settings.requests]
    yield f"    requests=({', '.join(requests)},),"
    faults = [f"{name}={times}" for name, times in settings.faults.items() if times]
    yield f"    faults=Faults({', '.join(faults)}),"
    yield ")"


PYTHON_IMPORTS = (
    "from blocklife.ledger import Checking, Contract",
    "from blocklife.offload import FullHit, LastStep, Mode",
    "from blocklife.testing.worlds._engine import Settings",
    "from blocklife.testing.worlds._world import Action, Faults, Script, World, WorldSettings",
)
"""The imports that the lines of `as_python` need."""


def words_table() -> Iterator[str]:
    """The words as `specs/testing.md` prints them, line by line."""
    yield from ("| key | default | means |", "| --- | --- | --- |")
    yield f"| `{REQUESTS}` | a.bc, a.bd | the requests that may arrive, as prompt.output, one letter a token |"
    for word in WORDS:
        choices = f" ({', '.join(word.choices)})" if word.choices else ""
        yield f"| `{word.name}` | {word.default_said} | {word.doc}{choices} |"
    yield f"| `{FAULTS}` | none | a table: how often each fault may happen |"


def faults_table() -> Iterator[str]:
    """The faults as `specs/testing.md` prints them, line by line."""
    yield from ("| fault | meaning |", "| --- | --- |")
    yield from (f"| `{name}` | {doc} |" for name, doc in FAULT_DOCS.items())
