"""Reading scenario files, with every word checked, and writing them.

Rules of this file:

* A file is refused as a whole, before its first step is taken, in one line that begins with file and line.
* This file runs nothing and knows no engine. A `Scenario` is data; `write_scenario` makes a file that reads as the same.

Theory. `tomllib` gives line numbers only for errors of TOML itself. So `_Lines` finds headers and keys in the text again; it
needs to be right only for files that `tomllib` has accepted.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NoReturn, TypeAlias

from attrs import define, field, frozen

from blocklife.errors import MisuseError
from blocklife.files import parse_toml, read_text
from blocklife.offload import Geometry
from blocklife.testing.scenarios._schema import (
    CHOICES,
    COMMON,
    COUNTS,
    EXPECTATIONS,
    RULES,
    SAFETY,
    SETTINGS,
    TESTS,
    TOP,
    VERBS,
    Parameter,
    Value,
    ValueKind,
)

NAME = re.compile(r"[A-Za-z_][\w.~-]*")
BLOCK = re.compile(r"block ([0-9]{1,9}) of (\S+)(?: in group ([0-9]{1,9}))?")
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
JOB = re.compile(rf"the (?:({'|'.join(ORDINALS)}) )?(store|load) of (\S+)")
SLOT = re.compile(r"the slot of (.+)")
CONTENT = re.compile(r"(?:([0-9]{1,9}):)?([^\s:]+)")
LIMITS: Mapping[str, tuple[int, int]] = {
    "blocks": (1, 100_000),
    "slots": (1, 100_000),
    "workers": (1, 64),
    "jobs": (1, 100_000),
    "blocks_per_chunk": (1, 64),
    "lazy_blocks": (1, 100_000),
    "deadline": (1, 10**9),
}
"""The minimum and maximum of settings that cannot be any number from 0 on."""
COMPARED = re.compile(r"(>=|<=|>|<) ([0-9]{1,9})")
VARIANTS_MAX = 1000
"""The most runs of one file: one for each combination of its variants."""
LETTERS_MAX = 4096
"""The most letters of a prompt, and of a reply."""
NUMBER_MAX = 10**9
MOST: Mapping[str, int] = {"times": 10_000, "actions": 100_000, "slots": 100_000}
"""The maximum of parameters that repeat something; for other numbers it is `NUMBER_MAX`."""


class ScenarioError(MisuseError):
    """A file that is not a scenario; the message begins with the file, and the line if it is known."""


@frozen(kw_only=True)
class ScenarioStep:
    """One step of a scenario."""

    verb: str
    arguments: Mapping[str, Value] = field(factory=dict)
    note: str = ""
    when: Mapping[str, tuple[Value, ...]] = field(factory=dict)
    bind: tuple[str, ...] = ()
    """Names for what the verb made (``as``)."""
    remember: Mapping[str, str] = field(factory=dict)
    name: str = ""
    refused: str = ""
    says: str = ""
    fault: str = ""
    expect: Mapping[str, Value] = field(factory=dict)
    policy: Mapping[str, Value] = field(factory=dict)
    """What engines may do otherwise."""
    line: int = field(default=0, eq=False)


@frozen(kw_only=True)
class Scenario:
    """One case: a world, steps, and what must hold."""

    id: str
    title: str
    tests: str
    """What it tests: one of `TESTS`."""
    source: str = ""
    story: str = ""
    invariants: tuple[str, ...] = ()
    world: Mapping[str, Value] = field(factory=dict)
    variants: Mapping[str, tuple[Value, ...]] = field(factory=dict)
    steps: tuple[ScenarioStep, ...]
    end: Mapping[str, Value] = field(factory=dict)
    end_policy: Mapping[str, Value] = field(factory=dict)
    """What engines may do otherwise."""
    path: str = field(default="", eq=False)
    end_line: int = field(default=0, eq=False)

    def each_variant(self) -> Iterator[dict[str, Value]]:
        """Every combination of the variants; a single empty one if there are none."""
        for values in product(*self.variants.values()):
            yield dict(zip(self.variants, values, strict=True))


# --- lines ------------------------------------------------------------------------------------------------------------------

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_PART = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")
_TOKEN = re.compile(r'"""|\'\'\'|"(?:[^"\\]++|\\.)*+"|\'[^\']*\'|#.*|[\[\]{}]')


def _path(text: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in _PART.findall(text))


@define(eq=False)
class _Lines:
    """The lines of headers and keys of a TOML text, by section (``step``, its number) and path of keys."""

    where: dict[tuple[str, int, tuple[str, ...]], int] = field(factory=dict)

    @classmethod
    def of(cls, text: str) -> _Lines:
        """Read the text again, only for its lines."""
        found = cls()
        section, count, prefix = "", 0, tuple[str, ...]()
        numbers: dict[str, int] = {}
        depth, quote = 0, ""
        for number, line in enumerate(text.splitlines(), start=1):
            if not depth and not quote:
                if header := _HEADER.match(line):
                    section, *rest = _path(header[2])
                    prefix = tuple(rest)
                    if header[1] == "[[" and not rest:
                        numbers[section] = numbers.get(section, 0) + 1
                    count = numbers.get(section, 0)
                    found.where.setdefault((section, count, prefix), number)
                    continue
                if key := _KEY.match(line):
                    path = prefix + _path(key[1])
                    for stop in range(len(prefix) + 1, len(path) + 1):
                        found.where.setdefault((section, count, path[:stop]), number)
            depth, quote = _after(line, depth, quote)
        return found

    def at(self, section: str, count: int, *path: str) -> int:
        """The line of a key, or of the nearest thing around it that has one."""
        for stop in range(len(path), -1, -1):
            if (line := self.where.get((section, count, path[:stop]))) is not None:
                return line
        return 1


def _after(line: str, depth: int, quote: str) -> tuple[int, str]:
    """How many brackets, and which long quote, are open after a line."""
    at = 0
    while at < len(line):
        if quote:
            end = line.find(quote, at)
            if end < 0:
                return depth, quote
            at, quote = end + 3, ""
            continue
        token = _TOKEN.search(line, at)
        if token is None:
            break
        at = token.end()
        if token[0] in ('"""', "'''"):
            quote = token[0]
        elif token[0] in ("[", "{"):
            depth += 1
        elif token[0] in ("]", "}"):
            depth -= 1
    return depth, quote


# --- reading ----------------------------------------------------------------------------------------------------------------


def read_scenario(path: str | Path) -> Scenario:
    """The scenario of a file. Raises `ScenarioError` if there is no such file, or it is not TOML or not a scenario."""
    try:
        text = read_text(path, "name a scenario file, or a folder of them")
    except MisuseError as problem:
        raise ScenarioError(str(problem)) from problem
    return parse_scenario(text, str(path))


def parse_scenario(text: str, path: str = "scenario") -> Scenario:
    """The scenario of a text. Raises `ScenarioError`, whose message begins with *path* and the line."""
    try:
        data = parse_toml(text, path)
    except MisuseError as problem:
        raise ScenarioError(str(problem)) from problem
    return _ScenarioReader(path, _Lines.of(text)).scenario(data)


def _known(word: str, words: Iterable[str], what: str) -> str:
    """A hint with the nearest known word, or all of them."""
    names = list(words)
    near = difflib.get_close_matches(word, names, 1)
    return f"did you mean {near[0]!r}?" if near else f"known {what}: {', '.join(names)}"


@define(eq=False)
class _ScenarioReader:
    """Checks one file and makes a scenario of it.

    Invariant: ``names`` and ``requests`` have what is known before the step that is being read.
    """

    path: str
    lines: _Lines
    section: str = ""
    count: int = 0
    names: dict[str, str] = field(factory=dict)
    requests: set[str] = field(factory=set)
    tests: str = ""
    labels: set[str] = field(factory=set)
    groups: int = 1
    workers: int = 1
    """The number of workers in the variant with the most."""
    variants: Mapping[str, tuple[Value, ...]] = field(factory=dict)

    def fail(self, message: str, *path: str) -> NoReturn:
        """Refuse the file, at the line of the key that *path* leads to."""
        where = {"": "", "step": f"step {self.count}: "}.get(self.section, f"{self.section}: ")
        raise ScenarioError(f"{self.path}:{self.lines.at(self.section, self.count, *path)}: {where}{message}")

    # --- the file -----------------------------------------------------------------------------------------------------------

    def scenario(self, data: Mapping[str, object]) -> Scenario:
        """Read everything, in the order of the file."""
        for key in data:
            if key not in TOP:
                if isinstance(data[key], dict | list):
                    self.section, self.count = key, 1 if (key, 1, ()) in self.lines.where else 0
                line = self.lines.at(self.section, self.count, *(() if self.section else (key,)))
                raise ScenarioError(f"{self.path}:{line}: unknown key {key!r} ({_known(key, TOP, 'keys')})")
        for key in ("id", "title", "source", "story"):
            self.check_type(data.get(key, "" if key in ("source", "story") else None), str, "a text", key)
        self.tests = self.what_it_tests(data.get("tests"))
        invariants = self.list_of(data.get("invariants", []), "invariants")
        for rule in invariants:
            if rule not in RULES:
                self.fail(f"unknown invariant {rule!r} (they are I1 to I15)", "invariants")
        world = self.world(data.get("world", {}))
        self.variants = self.read_variants(data.get("variants", {}))
        self.workers = max(map(int, map(str, self.variants.get("workers", (world.get("workers", 1),)))))
        self.section, self.count = "", 0
        steps = data.get("step")
        if not isinstance(steps, list) or not steps:
            self.fail("a scenario has steps: write [[step]]", "step")
        self.section = "step"
        read = []
        for number, step in enumerate(steps, start=1):
            self.count = number
            read.append(self.step(step))
        self.section, self.count = "end", 0
        end = dict(self.table(data.get("end", {})))
        end_policy = self.policy(end.pop("policy", {}))
        self.expectations(end)
        return Scenario(
            id=str(data["id"]),
            title=str(data["title"]),
            tests=self.tests,
            source=str(data.get("source", "")),
            story=str(data.get("story", "")),
            invariants=tuple(map(str, invariants)),
            world=world,
            variants=self.variants,
            steps=tuple(read),
            end=end,
            end_policy=end_policy,
            path=self.path,
            end_line=self.lines.at("end", 0),
        )

    def what_it_tests(self, found: object) -> str:
        """What the scenario tests: safety, or a policy."""
        if not isinstance(found, str) or found not in TESTS:
            known = " or ".join(f"'{each}'" for each in TESTS)
            if found is None:
                self.fail(f"it does not say what it tests: write tests = {known}")
            self.fail(f"tests must be {known}, not {_said(found)}", "tests")
        return found

    def policy(self, found: object) -> Mapping[str, Value]:
        """What engines may do otherwise, in a scenario that tests safety."""
        policy = self.table(found, "policy")
        if policy and self.tests != SAFETY:
            self.fail(f"it tests a {self.tests}, so every expectation is one: write 'expect', not 'policy'", "policy")
        self.expectations(policy, "policy")
        return policy

    def world(self, found: object) -> Mapping[str, Value]:
        """The settings."""
        self.section, self.count = "world", 0
        world = self.table(found)
        for key, value in world.items():
            if key not in SETTINGS:
                self.fail(f"unknown setting {key!r} ({_known(key, SETTINGS, 'settings')})", key)
            self.setting(key, value, key)
        self.groups = len(str(world.get("groups", "full:4")).split(","))
        return world

    def setting(self, key: str, value: Value, *path: str) -> None:
        """One value of one setting."""
        default = SETTINGS[key].default
        if type(value) is not type(default):
            wanted = {bool: "true or false", int: "a whole number", str: "a text"}[type(default)]
            self.fail(f"{key} must be {wanted}, not {_said(value)}", *path)
        if key in CHOICES and value not in CHOICES[key]:
            self.fail(f"{key} must be one of {', '.join(CHOICES[key])}, not {_said(value)}", *path)
        if key == "groups":
            try:
                Geometry.parse(str(value))
            except MisuseError as problem:
                self.fail(str(problem), *path)
        if isinstance(value, int) and not isinstance(value, bool):
            least, most = LIMITS.get(key, (0, 10**9))
            if not least <= value <= most:
                self.fail(f"{key} must be {least} to {most}, not {value}", *path)

    def read_variants(self, found: object) -> Mapping[str, tuple[Value, ...]]:
        """The variants: settings, and words of the file's own for ``when``."""
        self.section, self.count = "variants", 0
        variants = self.table(found)
        for key, values in variants.items():
            for value in self.list_of(values, key):
                if key in SETTINGS:
                    self.setting(key, value, key)
                elif not isinstance(value, str):
                    self.fail(f"{key} is a list of texts, or the name of a setting; {_said(value)} is neither", key)
            if not values:
                self.fail(f"{key} needs at least one value", key)
        found = {key: tuple(self.list_of(values, key)) for key, values in variants.items()}
        runs = 1
        for key, values in found.items():
            runs *= len(values)
            if runs > VARIANTS_MAX:
                self.fail(f"there are more than {VARIANTS_MAX:,} combinations (leave values out, or write several files)", key)
        return found

    # --- a step -------------------------------------------------------------------------------------------------------------

    def step(self, found: object) -> ScenarioStep:
        """One step, and the names that it defines for later ones."""
        step = self.table(found)
        if "do" not in step:
            self.fail(f'it does nothing: write do = "VERB" (known verbs: {", ".join(VERBS)})')
        name = step["do"]
        verb = VERBS.get(name) if isinstance(name, str) else None
        if verb is None:
            self.fail(f"unknown verb {_said(name)} ({_known(str(name), VERBS, 'verbs')})", "do")
        known = verb.known
        for key in step:
            if key not in known and key not in COMMON:
                words = [*known, *COMMON]
                self.fail(f"{verb.name} takes no {key!r} ({_known(key, words, 'keys')})", key)
        for parameter in verb.parameters:
            if parameter.name in step:
                self.parameter(parameter, step[parameter.name])
            elif parameter.needed:
                self.fail(f"{verb.name} needs {parameter.name!r}: {parameter.kind.value}")
        for key in ("note", "name", "refused", "says", "fault"):
            self.check_type(step.get(key, ""), str, "a text", key)
        self.judged(step)
        when = {key: self.when(key, value) for key, value in self.table(step.get("when", {}), "when").items()}
        bind = self.bind(step, verb.binds, verb.name)
        if verb.name in ("arrive", "enter"):
            self.requests.add(str(step["request"]))
        remember = self.remember(self.table(step.get("remember", {}), "remember"))
        expect = self.table(step.get("expect", {}), "expect")
        self.expectations(expect, "expect")
        policy = self.policy(step.get("policy", {}))
        if label := str(step.get("name", "")):
            self.labels.add(label)
        return ScenarioStep(
            verb=verb.name,
            arguments={key: step[key] for key in known if key in step},
            note=str(step.get("note", "")),
            when=when,
            bind=bind,
            remember=remember,
            name=label,
            refused=str(step.get("refused", "")),
            says=str(step.get("says", "")),
            fault=str(step.get("fault", "")),
            expect=expect,
            policy=policy,
            line=self.lines.at("step", self.count),
        )

    def judged(self, step: Mapping[str, Value]) -> None:
        """How the step must end: successfully, refused, or in a fault."""
        if (refused := step.get("refused", "misuse")) not in COMMON["refused"].choices:
            self.fail(f"refused must be one of {', '.join(COMMON['refused'].choices)}, not {_said(refused)}", "refused")
        if "says" in step and "refused" not in step:
            self.fail("'says' is about a refusal: say refused, too", "says")
        if (fault := step.get("fault", "I1")) not in RULES:
            self.fail(f"unknown invariant {_said(fault)} (they are I1 to I15)", "fault")
        if "fault" in step and "refused" in step:
            self.fail("it is either refused or a fault", "fault")

    def when(self, key: str, value: Value) -> tuple[Value, ...]:
        """In which variants the step is taken."""
        if key not in self.variants:
            others = _known(key, self.variants, "variants") if self.variants else "there are none"
            self.fail(f"no variant is called {key!r} ({others})", "when", key)
        values = tuple(value) if isinstance(value, list) else (value,)
        for each in values:
            if each not in self.variants[key]:
                self.fail(f"{key} is never {_said(each)} (it is {', '.join(map(str, self.variants[key]))})", "when", key)
        return values

    def bind(self, step: Mapping[str, Value], binds: str, verb: str) -> tuple[str, ...]:
        """The names of what the step makes, for later steps."""
        if "as" not in step:
            return ()
        if not binds:
            self.fail(f"{verb} makes nothing that could be named", "as")
        value = step["as"]
        names = value if isinstance(value, list) else [value]
        count = step.get("count", 1) if verb == "allocate" else len(names) if verb == "acquire" else 1
        if len(names) != count:
            self.fail(f"{len(names)} names for {count} things", "as")
        for name in names:
            self.new_name(name, "block" if binds == "blocks" else "job", "as")
        return tuple(map(str, names))

    def remember(self, found: Mapping[str, Value]) -> Mapping[str, str]:
        """Further names for things that have one."""
        for name, value in found.items():
            text = self.check_type(value, str, "a text", "remember", name)
            kind = self.kind_of(text)
            if kind not in ("block", "job", "slot"):
                self.fail(f"{text!r} is not a block, copy or slot", "remember", name)
            self.new_name(name, kind, "remember", name)
        return {name: str(value) for name, value in found.items()}

    def new_name(self, name: Value, kind: str, *path: str) -> None:
        """A name that no request has; it may move to another thing of its kind."""
        if not isinstance(name, str) or not NAME.fullmatch(name):
            self.fail(f"{_said(name)} is not a name (letters, digits and . _ ~ -)", *path)
        if name in self.requests or self.names.get(name, kind) != kind:
            self.fail(f"{name!r} is the name of something else", *path)
        self.names[name] = kind

    # --- values -------------------------------------------------------------------------------------------------------------

    def parameter(self, parameter: Parameter, value: Value) -> None:
        """A parameter of a verb."""
        if parameter.kind is ValueKind.EXPECTATIONS:
            self.expectations(self.table(value, parameter.name), parameter.name)
            return
        self.value(parameter.kind, value, parameter.name)
        if parameter.choices and value not in parameter.choices:
            self.fail(f"{parameter.name} must be one of {', '.join(parameter.choices)}, not {_said(value)}", parameter.name)
        if parameter.name == "request" and parameter.kind is ValueKind.TEXT and not NAME.fullmatch(str(value)):
            self.fail(f"{_said(value)} is not a name for a request (letters, digits and . _ ~ -)", parameter.name)
        if parameter.name in ("prompt", "reply") and not re.fullmatch(r"[^\s:]+", str(value)):
            self.fail(f"a {parameter.name} has letters without spaces, one for each token, not {_said(value)}", parameter.name)
        if parameter.name in ("prompt", "reply") and len(str(value)) > LETTERS_MAX:
            self.fail(f"a {parameter.name} has at most {LETTERS_MAX:,} letters, not {len(str(value)):,}", parameter.name)

    def expectations(self, found: Mapping[str, Value], *path: str) -> None:
        """A table of what must hold."""
        for key, value in found.items():
            if key not in EXPECTATIONS:
                self.fail(f"unknown expectation {key!r} ({_known(key, EXPECTATIONS, 'expectations')})", *path, key)
            self.value(EXPECTATIONS[key].kind, value, *path, key)

    def value(self, kind: ValueKind, value: Value, *path: str) -> None:
        """One value of one kind, with everything that it names."""
        if kind in _SINGLE:
            _SINGLE[kind](self, value, *path)
        elif kind in _LISTS:
            for each in self.list_of(value, *path):
                _LISTS[kind](self, each, *path)
        elif kind is ValueKind.LET_IN and isinstance(value, list):
            self.value(ValueKind.REQUESTS, value, *path)
        else:
            for key, each in self.table(value, *path).items():
                _TABLES[kind](self, key, each, *path, key)

    def check_type(self, value: object, wanted: type, said: str, *path: str) -> str:
        """A value of one Python type; gives it as text."""
        if type(value) is not wanted:
            if value is None:
                self.fail(f"it has no {path[-1]!r}: {said}")
            self.fail(f"{path[-1]!r} must be {said}, not {_said(value)}", *path)
        return str(value)

    def list_of(self, value: object, *path: str) -> list[Value]:
        """A list."""
        if not isinstance(value, list):
            self.fail(f"{path[-1]!r} must be a list, not {_said(value)}", *path)
        return value

    def table(self, value: object, *path: str) -> dict[str, Value]:
        """A table."""
        if not isinstance(value, dict):
            self.fail(f"{path[-1] if path else self.section!r} must be a table, not {_said(value)}", *path)
        return value

    def number(self, value: Value, *path: str) -> None:
        """A count."""
        self.check_type(value, int, ValueKind.NUMBER.value, *path)
        most = MOST.get(path[0], NUMBER_MAX) if self.section == "step" else NUMBER_MAX
        if isinstance(value, int) and not 0 <= value <= most:
            bound = "at least 0" if value < 0 else f"at most {most:,}"
            self.fail(f"{path[-1]!r} must be {bound}, not {value}", *path)

    def worker(self, value: Value, *path: str) -> None:
        """A worker that exists in some variant."""
        self.number(value, *path)
        if isinstance(value, int) and value >= self.workers:
            self.fail(f"there is no worker {value}: they are numbered from 0 to {self.workers - 1}", *path)

    def request(self, value: Value, *path: str) -> None:
        """A request that has arrived so far."""
        text = self.check_type(value, str, ValueKind.REQUEST.value, *path)
        if text not in self.requests:
            known = ", ".join(sorted(self.requests)) or "none"
            self.fail(f"no request {text!r} has arrived so far (known requests: {known})", *path)

    def kind_of(self, text: str, *path: str) -> str:
        """The kind that a text names: ``block``, ``job``, ``slot``, ``request``, or empty; requests in it are checked."""
        if text in self.names:
            return self.names[text]
        if found := BLOCK.fullmatch(text):
            self.request(found[2], *path)
            if int(found[3] or 0) >= self.groups:
                self.fail(f"there is no group {found[3]}: they are numbered from 0 to {self.groups - 1}", *path)
            return "block"
        if found := JOB.fullmatch(text):
            self.request(found[3], *path)
            return "job"
        if found := SLOT.fullmatch(text):
            self.content(found[1], *path)
            return "slot"
        return "request" if text in self.requests else ""

    def named(self, kind: str, said: str, value: Value, *path: str) -> None:
        """A text that names something of one kind."""
        text = self.check_type(value, str, said, *path)
        found = self.kind_of(text, *path)
        if found != kind:
            other = f"it is the name of a {found}" if found else f"nothing has this name so far{self.near(text)}"
            self.fail(f"{text!r} is not {said} ({other})", *path)

    def near(self, text: str) -> str:
        """A hint with the name that may have been meant."""
        close = difflib.get_close_matches(text, [*self.names, *self.requests], 1)
        return f"; did you mean {close[0]!r}?" if close else ""

    def block(self, value: Value, *path: str) -> None:
        """``block 1 of a``, or a name."""
        self.named("block", "a block, like 'block 0 of a'", value, *path)

    def job(self, value: Value, *path: str) -> None:
        """``the store of a``, or a name."""
        if value != "nobody":
            self.named("job", "a copy, like 'the store of a'", value, *path)

    def content(self, value: Value, *path: str) -> None:
        """Letters, with a group before them, or the content of a position of a request."""
        text = self.check_type(value, str, ValueKind.CONTENT.value, *path)
        if BLOCK.fullmatch(text):
            self.kind_of(text, *path)
        elif not (found := CONTENT.fullmatch(text)):
            self.fail(f"{text!r} is not content (letters, 'GROUP:letters', or 'block 0 of a')", *path)
        elif int(found[1] or 0) >= self.groups:
            self.fail(f"there is no group {found[1]}: they are numbered from 0 to {self.groups - 1}", *path)

    def text(self, value: Value, *path: str) -> None:
        """Any text."""
        self.check_type(value, str, "a text", *path)

    def flag(self, value: Value, *path: str) -> None:
        """True or false."""
        self.check_type(value, bool, ValueKind.FLAG.value, *path)

    def label(self, value: Value, *path: str) -> None:
        """An earlier step."""
        if not isinstance(value, str) or value not in self.labels:
            self.fail(f"no earlier step is called {_said(value)}", *path)

    def pair(self, value: Value, *path: str) -> None:
        """Two blocks."""
        blocks = self.list_of(value, *path)
        if len(blocks) != 2:
            self.fail(f"a pair has two blocks, not {len(blocks)}", *path)
        for each in blocks:
            self.block(each, *path)

    def window(self, value: Value, *path: str) -> None:
        """A number, or all."""
        if value != "all":
            self.number(value, *path)

    def counted(self, value: Value, *path: str) -> None:
        """A number, or a comparison with one."""
        if not (isinstance(value, str) and COMPARED.fullmatch(value)):
            self.check_type(value, int, "a whole number, or a text like '>= 2'", *path)


_Check: TypeAlias = Callable[..., None]


def _request_number(reader: _ScenarioReader, key: str, value: Value, *path: str) -> None:
    reader.request(key, *path)
    reader.number(value, *path)


def _state(reader: _ScenarioReader, key: str, value: Value, *path: str) -> None:
    if not reader.kind_of(key, *path):
        reader.fail(f"{key!r} is not a block, slot, copy or request{reader.near(key)}", *path)
    for each in value if isinstance(value, list) else [value]:
        reader.text(each, *path)


def _holds(reader: _ScenarioReader, key: str, value: Value, *path: str) -> None:
    reader.block(key, *path)
    reader.content(value, *path)


def _hit(reader: _ScenarioReader, key: str, value: Value, *path: str) -> None:
    reader.request(key, *path)
    if value != "deferred":
        reader.number(value, *path)


def _sizes(reader: _ScenarioReader, key: str, value: Value, *path: str) -> None:
    reader.job(key, *path)
    reader.value(ValueKind.NUMBERS, value, *path)


def _count(reader: _ScenarioReader, key: str, value: Value, *path: str) -> None:
    if key not in COUNTS:
        reader.fail(f"unknown count {key!r} ({_known(key, COUNTS, 'counts')})", *path)
    reader.counted(value, *path)


def _has(reader: _ScenarioReader, key: str, value: Value, *path: str) -> None:
    reader.request(key, *path)
    reader.value(ValueKind.BLOCKS, value, *path)


def _limit(reader: _ScenarioReader, _key: str, value: Value, *path: str) -> None:
    reader.number(value, *path)


_SINGLE: Mapping[ValueKind, _Check] = {
    ValueKind.TEXT: _ScenarioReader.text,
    ValueKind.NUMBER: _ScenarioReader.number,
    ValueKind.WORKER: _ScenarioReader.worker,
    ValueKind.FLAG: _ScenarioReader.flag,
    ValueKind.REQUEST: _ScenarioReader.request,
    ValueKind.BLOCK: _ScenarioReader.block,
    ValueKind.JOB: _ScenarioReader.job,
    ValueKind.CONTENT: _ScenarioReader.content,
    ValueKind.STEP: _ScenarioReader.label,
}
_LISTS: Mapping[ValueKind, _Check] = {
    ValueKind.REQUESTS: _ScenarioReader.request,
    ValueKind.BLOCKS: _ScenarioReader.block,
    ValueKind.JOBS: _ScenarioReader.job,
    ValueKind.CONTENTS: _ScenarioReader.content,
    ValueKind.NUMBERS: _ScenarioReader.number,
    ValueKind.PAIRS: _ScenarioReader.pair,
    ValueKind.WINDOWS: _ScenarioReader.window,
    ValueKind.RANKS: lambda reader, value, *path: reader.value(ValueKind.LIMITS, value, *path),
}
_TABLES: Mapping[ValueKind, _Check] = {
    ValueKind.TOKENS: _request_number,
    ValueKind.LET_IN: _request_number,
    ValueKind.STATES: _state,
    ValueKind.HOLDS: _holds,
    ValueKind.HITS: _hit,
    ValueKind.SIZES: _sizes,
    ValueKind.COUNTS: _count,
    ValueKind.HAS: _has,
    ValueKind.LIMITS: _limit,
}


def _said(value: object) -> str:
    """A value as it is in the file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    return repr(value)


# --- writing ----------------------------------------------------------------------------------------------------------------


def write_scenario(scenario: Scenario) -> str:
    """A file that reads as this scenario."""
    lines = [f"id = {_toml(scenario.id)}", f"title = {_toml(scenario.title)}", f"tests = {_toml(scenario.tests)}"]
    lines += [f"source = {_toml(scenario.source)}"] if scenario.source else []
    lines += [f"invariants = {_toml(list(scenario.invariants))}"] if scenario.invariants else []
    lines += [f"story = {_toml(scenario.story)}"] if scenario.story else []
    for title, table in (("world", scenario.world), ("variants", {key: list(each) for key, each in scenario.variants.items()})):
        if table:
            lines += ["", f"[{title}]", *(f"{_key(key)} = {_toml(value)}" for key, value in table.items())]
    for step in scenario.steps:
        lines += ["", "[[step]]", *_step_lines(step)]
    if scenario.end or scenario.end_policy:
        lines += ["", "[end]", *(f"{_key(key)} = {_toml(value)}" for key, value in scenario.end.items())]
        lines += [f"policy.{_key(key)} = {_toml(value)}" for key, value in scenario.end_policy.items()]
    return "\n".join(lines) + "\n"


def _step_lines(step: ScenarioStep) -> Iterator[str]:
    if step.note:
        yield f"note = {_toml(step.note)}"
    if step.when:
        chosen = {key: each[0] if len(each) == 1 else list(each) for key, each in step.when.items()}
        yield f"when = {_toml(chosen)}"
    yield f"do = {_toml(step.verb)}"
    for key, value in step.arguments.items():
        yield f"{_key(key)} = {_toml(value)}"
    if step.bind:
        yield f"as = {_toml(step.bind[0] if len(step.bind) == 1 else list(step.bind))}"
    for key, text in (("name", step.name), ("refused", step.refused), ("says", step.says), ("fault", step.fault)):
        if text:
            yield f"{key} = {_toml(text)}"
    if step.remember:
        yield f"remember = {_toml(step.remember)}"
    for key, value in step.expect.items():
        yield f"expect.{_key(key)} = {_toml(value)}"
    for key, value in step.policy.items():
        yield f"policy.{_key(key)} = {_toml(value)}"


def _key(text: str) -> str:
    return text if re.fullmatch(r"[\w-]+", text, re.ASCII) else _toml(text)


def _toml(value: Value) -> str:
    """A value in one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for the one control character that JSON leaves alone
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_key(key)} = {_toml(each)}" for key, each in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, Sequence):
        return f"[{', '.join(map(_toml, value))}]"
    return repr(value)
