"""Reading scenario files, with every word checked, and writing them.

Rules of this file:

* A file is refused as a whole, before its first step is taken, in one line that begins with file and line.
* This file runs nothing. A `Scenario` is data; `write_scenario` makes a file that reads as the same.

Theory. `tomllib` gives line numbers only for errors of TOML itself. In a text that is TOML, each header and each key with its
value is TOML by itself, too. So `_Lines` reads the text once more, statement by statement.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

from attrs import define, field, fields, frozen

from blocklife.errors import MisuseError
from blocklife.files import parse_toml, read_text
from blocklife.groups import Geometry
from blocklife.testing.scenarios._driver import NUMBER_MAX, SETTINGS, Driver, EngineSetup
from blocklife.testing.scenarios._judge import check_expectations
from blocklife.testing.scenarios._kinds import NEW_REQUEST, TEXT, Known, Value, nearest, one_of, shown
from blocklife.testing.scenarios._verbs import VerbStage
from blocklife.testing.scenarios._words import Verb, verbs_of

VERBS: Mapping[str, Verb] = {**verbs_of(VerbStage, Driver, "do_"), **verbs_of(Driver, Driver)}
"""Every verb by name."""

SAFETY, POLICY = "safety", "policy"
TESTS: Mapping[str, str] = {
    SAFETY: "whatever an engine decides, no copy or forward pass touches memory that is no longer its own, nothing is found "
    "that is not there, and no place is lost; an unmet expectation is unsafe",
    POLICY: "what is stored, found, waited for, retried or forgotten, and when; engines may decide otherwise, so an unmet "
    "expectation is another policy",
}
"""What a scenario can test."""

RULES = tuple(f"I{number}" for number in range(1, 16))
"""The invariants."""
MEMORY_RULES = frozenset(RULES) - {"I12", "I14"}
"""Those whose violation is unsafe; the others say that everything ends, and that nothing is copied twice."""

VARIANTS_MAX = 1000
"""The most runs of one file: one for each combination of its variants."""


def _key(doc: str, empty: type = str, *, name: str = "") -> Any:
    """A key that every step can have: what the page says of it; its *name*, if the field has another."""
    return field(factory=empty, metadata={"doc": doc, "name": name})


@frozen(kw_only=True)
class ScenarioStep:
    """One step of a scenario."""

    verb: str = _key("the verb", name="do")
    arguments: Mapping[str, Value] = field(factory=dict)
    note: str = _key("a sentence for the reader; printed with `-v`, and where the step fails")
    when: Mapping[str, tuple[Value, ...]] = _key(
        "a table of variants in which the step is taken; in others it is skipped", dict
    )
    bind: tuple[str, ...] = _key("names for what the verb made: blocks in their order, or the copy", tuple, name="as")
    remember: Mapping[str, str] = _key(
        "a table of new names for blocks, slots (`the slot of CONTENT`) and copies; `expect` may use them", dict
    )
    name: str = _key("a name for the step, for `same_as`")
    refused: str = _key("the verb must be refused, and nothing may change (`misuse`, `capacity`, `any`)")
    says: str = _key("part of the refusal's message")
    fault: str = _key("the step must break this rule, as the device or the engine finds; the scenario ends there")
    expect: Mapping[str, Value] = _key("what must hold after the step", dict)
    policy: Mapping[str, Value] = _key(
        "in a scenario that tests safety: expectations that engines may meet or not. An unmet one is reported, and the run "
        "goes on; one that the engine cannot answer is skipped",
        dict,
    )
    line: int = field(default=0, eq=False)


COMMON: Mapping[str, str] = {
    each.metadata["name"] or each.name: each.metadata["doc"] for each in fields(ScenarioStep) if each.metadata
}
"""The keys that every step can have besides the parameters of its verb, with what each means."""
_TEXTS = ("note", "name", "refused", "says", "fault")
_REFUSED = one_of("misuse", "capacity", "any")


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
    groups: tuple[str, ...] = ()
    """Those of `GROUPS` that it is in, besides the one of what it tests."""
    world: Mapping[str, Value] = field(factory=dict)
    variants: Mapping[str, tuple[Value, ...]] = field(factory=dict)
    steps: tuple[ScenarioStep, ...]
    end: Mapping[str, Value] = field(factory=dict)
    end_policy: Mapping[str, Value] = field(factory=dict)
    """What engines may do otherwise."""
    scales: bool = True
    """Whether it can be told in blocks of another size."""
    path: str = field(default="", eq=False)
    end_line: int = field(default=0, eq=False)
    needs: frozenset[str] = field(default=frozenset(), eq=False, repr=False)
    """The methods of a driver without which it is not applicable, as the reader of its file has found."""

    def is_in(self, group: str) -> bool:
        """Whether it is in a group: `safety` and `policy` are groups, too."""
        return group == self.tests or group in self.groups

    def each_variant(self) -> Iterator[dict[str, Value]]:
        """Every combination of the variants; a single empty one if there are none."""
        for values in product(*self.variants.values()):
            yield dict(zip(self.variants, values, strict=True))


GROUPS: Mapping[str, str] = {
    "a-b-a": "A, then B, then A again on a busy cache: what is found was in other hands meanwhile",
    "full-pool": "a pool that is filled to the last block or slot: somebody waits, gives way or is refused",
    "same-shape": "two layouts of the same shape: another prefix, group, number format or weights behind equal sizes or tokens",
    "copies": "blocks and slots that a copy in flight reads or writes",
    "reports": "reports that are late, come twice or never, or say that a copy has failed; deadlines",
    "leaving": "requests that are preempted, aborted or over while something of them is in flight",
    "forgetting": "resets, sleep and new weights",
    "sharing": "content with several readers, and content that several want at once",
    "hybrid": "several groups of KV cache, windows and states",
    "drafts": "guessed tokens, and drafters with layers of their own",
    "ranks": "several workers",
    "below": "what is kept below the host memory",
}
"""The groups that a file can name, with what each is about. Usual tests miss the first three."""
ALL_GROUPS: Mapping[str, str] = {**TESTS, **GROUPS}
"""These, and what a scenario tests."""
TOP: Mapping[str, str] = {
    "id": "a short name",
    "title": "one sentence: what must be so",
    "source": "where the case is from, such as the number of a public report",
    "tests": "`safety` or `policy`",
    "invariants": "the rules that it is about",
    "groups": "the groups that it is run with by name",
    "story": "what happens, for a reader",
    "scales": "false: it counts single tokens, so that an engine whose blocks have another size cannot have its world; others "
    "are scaled to that size",
    "world": "a table of settings",
    "variants": "a table of lists: the scenario is run once for each combination",
    "step": "the steps, in their order",
    "end": "a table of what must hold at the end",
}
"""The keys of a file, with what each means."""


# --- lines ------------------------------------------------------------------------------------------------------------------

_CLOSES = re.compile(r"""\]|\"\"\"|'''""")
"""What the last line of a statement of several lines has."""
_EFFORT = 16
"""How many times as long as the text all attempts to read a part of it may be; what lies behind has no lines."""


@define(eq=False)
class _Lines:
    """The lines of headers and keys of a TOML text, by section (``step``, its number) and path of keys."""

    where: dict[tuple[str, int, tuple[str, ...]], int] = field(factory=dict)

    @classmethod
    def of(cls, text: str) -> _Lines:
        """Read the text again, only for its lines."""
        found = cls()
        section, prefix, counts = "", tuple[str, ...](), dict[str, int]()
        for line, statement, data in _statements(text):
            paths = list(_paths(data))
            if statement.lstrip().startswith("["):
                section, *rest = paths[-1]
                prefix, paths = tuple(rest), [()]
                if not rest and statement.lstrip().startswith("[["):
                    counts[section] = counts.get(section, 0) + 1
            for path in paths:
                found.where.setdefault((section, counts.get(section, 0), prefix + path), line)
        return found

    def at(self, section: str, count: int, *path: str) -> int:
        """The line of a key, or of the nearest thing around it that has one."""
        for stop in range(len(path), -1, -1):
            if (line := self.where.get((section, count, path[:stop]))) is not None:
                return line
        return 1


def _statements(text: str) -> Iterator[tuple[int, str, dict[str, object]]]:
    """Each header and each key with its value: its first line, the text, and what it says."""
    part: list[str] = []
    effort = 0
    for number, line in enumerate(text.split("\n"), start=1):
        part.append(line)
        if len(part) == 1 or _CLOSES.search(line):
            said = "\n".join(part)
            effort += len(said)
            try:
                yield number - len(part) + 1, said, tomllib.loads(said)
            except tomllib.TOMLDecodeError:  # it goes on
                if effort > _EFFORT * len(text):
                    return
            else:
                part.clear()


def _paths(table: Mapping[str, object]) -> Iterator[tuple[str, ...]]:
    """The paths of all keys of a table, those of a table in it behind its own."""
    for key, value in table.items():
        yield (key,)
        if isinstance(value, dict):
            yield from ((key, *rest) for rest in _paths(value))


# --- reading ----------------------------------------------------------------------------------------------------------------


def read_scenario(path: str | Path) -> Scenario:
    """The scenario of a file. Raises `MisuseError` if there is no such file, or it is not TOML or not a scenario."""
    return parse_scenario(read_text(path, "name a scenario file, or a folder of them"), str(path))


def parse_scenario(text: str, path: str = "scenario") -> Scenario:
    """The scenario of a text. Raises `MisuseError`, whose message begins with *path*, and the line if it is known."""
    data = parse_toml(text, path)
    return _ScenarioReader(path, _Lines.of(text)).scenario(data)


class _ScenarioReader:
    """Checks one file and makes a scenario of it, in the order of the file: what is `Known` grows step by step."""

    def __init__(self, path: str, lines: _Lines) -> None:
        self.path = path
        self.lines = lines
        self.section, self.count = "", 0
        self.tests = ""
        self.variants: Mapping[str, tuple[Value, ...]] = {}
        self.known = Known(self.fail)

    def fail(self, message: str, *path: str) -> NoReturn:
        """Refuse the file, at the line of the key that *path* leads to."""
        where = {"": "", "step": f"step {self.count}: "}.get(self.section, f"{self.section}: ")
        raise MisuseError(f"{self.path}:{self.lines.at(self.section, self.count, *path)}: {where}{message}")

    # --- the file -----------------------------------------------------------------------------------------------------------

    def scenario(self, data: Mapping[str, object]) -> Scenario:
        """Read everything."""
        self.check_top(data)
        texts = {key: str(data.get(key, "")) for key in ("id", "title", "source", "story")}
        invariants = self.known.list_of(data.get("invariants", []), "invariants")
        for rule in invariants:
            if rule not in RULES:
                self.fail(f"unknown invariant {rule!r} (they are I1 to I15)", "invariants")
        world = self.world(data.get("world", {}))
        self.variants = self.read_variants(data.get("variants", {}))
        self.known.block_tokens = Geometry.parse(str(world.get("groups", EngineSetup().groups))).block_tokens
        self.known.workers = max(map(int, map(str, self.variants.get("workers", (world.get("workers", 1),)))))
        self.section, self.count = "", 0
        steps = data.get("step")
        if not isinstance(steps, list) or not steps:
            self.fail("a scenario has steps: write [[step]]", "step")
        self.section, read = "step", []
        for self.count, step in enumerate(steps, start=1):
            read.append(self.step(step))
        self.section, self.count = "end", 0
        end = dict(self.table(data.get("end", {})))
        end_policy = self.policy(end.pop("policy", {}))
        check_expectations(self.known, end)
        return Scenario(
            **texts,
            tests=self.tests,
            scales=data.get("scales") is not False,
            invariants=tuple(map(str, invariants)),
            groups=self.groups(data.get("groups", [])),
            world=world,
            variants=self.variants,
            steps=tuple(read),
            end=end,
            end_policy=end_policy,
            path=self.path,
            end_line=self.lines.at("end", 0),
            needs=frozenset(self.known.needs),
        )

    def check_top(self, data: Mapping[str, object]) -> None:
        """Check the keys of the file, its texts, and what it tests."""
        for key in data:
            if key not in TOP:
                if isinstance(data[key], dict | list):
                    self.section, self.count = key, 1 if (key, 1, ()) in self.lines.where else 0
                line = self.lines.at(self.section, self.count, *(() if self.section else (key,)))
                raise MisuseError(f"{self.path}:{line}: unknown key {key!r} ({nearest(key, TOP, 'keys')})")
        for key in ("id", "title", "source", "story"):
            if key in data:
                TEXT.check(self.known, data[key], key)
            elif key in ("id", "title"):
                self.fail(f"it has no {key!r}: a text", key)
        known, found = " or ".join(f"'{each}'" for each in TESTS), data.get("tests")
        if found is None:
            self.fail(f"it does not say what it tests: write tests = {known}")
        if not isinstance(found, str) or found not in TESTS:
            self.fail(f"tests must be {known}, not {shown(found)}", "tests")
        self.tests = found
        if type(data.get("scales", True)) is not bool:
            self.fail(f"'scales' must be true or false, not {shown(data['scales'])}", "scales")

    def groups(self, found: object) -> tuple[str, ...]:
        """The groups that it is in."""
        names = [str(each) for each in self.known.list_of(found, "groups")]
        if unknown := [each for each in names if each not in GROUPS]:
            self.fail(f"unknown group {unknown[0]!r} ({nearest(unknown[0], GROUPS, 'groups')})", "groups")
        return tuple(names)

    def table(self, found: object) -> dict[str, Value]:
        """The table of a section."""
        return self.known.table(found, called=repr(self.section))

    def policy(self, found: object) -> Mapping[str, Value]:
        """What engines may do otherwise, in a scenario that tests safety; they need not answer it."""
        policy, needs = self.known.table(found, "policy"), set(self.known.needs)
        if policy and self.tests != SAFETY:
            self.fail(f"it tests a {self.tests}, so every expectation is one: write 'expect', not 'policy'", "policy")
        check_expectations(self.known, policy, "policy")
        self.known.needs = needs
        return policy

    def world(self, found: object) -> Mapping[str, Value]:
        """The settings."""
        self.section, self.count = "world", 0
        world = self.table(found)
        for key, value in world.items():
            if key not in SETTINGS:
                self.fail(f"unknown setting {key!r} ({nearest(key, SETTINGS, 'settings')})", key)
            self.setting(key, value, key)
        return world

    def setting(self, key: str, value: Value, *path: str) -> None:
        """One value of one setting."""
        try:
            SETTINGS[key].read(value, key, NUMBER_MAX)
            if key == "groups":
                Geometry.parse(str(value))
        except MisuseError as problem:
            self.fail(str(problem), *path)

    def read_variants(self, found: object) -> Mapping[str, tuple[Value, ...]]:
        """The variants: settings, and words of the file's own for ``when``."""
        self.section, self.count = "variants", 0
        variants = {key: tuple(self.known.list_of(values, key)) for key, values in self.table(found).items()}
        runs = 1
        for key, values in variants.items():
            for value in values:
                if key in SETTINGS:
                    self.setting(key, value, key)
                elif not isinstance(value, str):
                    self.fail(f"{key} is a list of texts, or the name of a setting; {shown(value)} is neither", key)
            if not values:
                self.fail(f"{key} needs at least one value", key)
            runs *= len(values)
            if runs > VARIANTS_MAX:
                self.fail(f"there are more than {VARIANTS_MAX:,} combinations (leave values out, or write several files)", key)
        return variants

    # --- a step -------------------------------------------------------------------------------------------------------------

    def step(self, found: object) -> ScenarioStep:
        """One step, and the names that it defines for later ones."""
        step, known = self.table(found), self.known
        verb = self.verb(step)
        known.needs.update(verb.needs)
        for each in verb.parameters:
            if each.name in step:
                each.kind.check(known, step[each.name], each.name)
                known.needs.update(each.kind.needs)
            elif each.needed:
                self.fail(f"{verb.name} needs {each.name!r}: {each.kind.said}")
        texts = {key: str(step.get(key, "")) for key in _TEXTS}
        for key in _TEXTS:
            TEXT.check(known, step.get(key, ""), key)
        self.check_ending(step)
        when = {key: self.when(key, value) for key, value in known.table(step.get("when", {}), "when").items()}
        bind = self.bind(step, verb)
        if any(each.kind == NEW_REQUEST for each in verb.parameters):
            known.prompts[str(step["request"])] = str(step.get("prompt", ""))
        remember = self.remember(known.table(step.get("remember", {}), "remember"))
        expect = known.table(step.get("expect", {}), "expect")
        check_expectations(known, expect, "expect")
        policy = self.policy(step.get("policy", {}))
        if texts["name"]:
            known.labels.add(texts["name"])
            known.needs.add("picture")
        return ScenarioStep(
            verb=verb.name,
            arguments={each.name: step[each.name] for each in verb.parameters if each.name in step},
            when=when,
            bind=bind,
            remember=remember,
            expect=expect,
            policy=policy,
            line=self.lines.at("step", self.count),
            **texts,
        )

    def verb(self, step: Mapping[str, Value]) -> Verb:
        """The verb of a step, which has no key but those that the verb takes and those of every step."""
        if "do" not in step:
            self.fail(f'it does nothing: write do = "VERB" (known verbs: {", ".join(VERBS)})')
        name = step["do"]
        verb = VERBS.get(name) if isinstance(name, str) else None
        if verb is None:
            self.fail(f"unknown verb {shown(name)} ({nearest(str(name), VERBS, 'verbs')})", "do")
        words = [*(each.name for each in verb.parameters), *COMMON]
        for key in step:
            if key not in words:
                self.fail(f"{verb.name} takes no {key!r} ({nearest(key, words, 'keys')})", key)
        return verb

    def check_ending(self, step: Mapping[str, Value]) -> None:
        """How the step must end: successfully, refused, or in a fault."""
        if "refused" in step:
            _REFUSED.check(self.known, step["refused"], "refused")
        elif "says" in step:
            self.fail("'says' is about a refusal: say refused, too", "says")
        if (fault := step.get("fault", "I1")) not in RULES:
            self.fail(f"unknown invariant {shown(fault)} (they are I1 to I15)", "fault")
        if "fault" in step and "refused" in step:
            self.fail("it is either refused or a fault", "fault")

    def when(self, key: str, value: Value) -> tuple[Value, ...]:
        """In which variants the step is taken."""
        if key not in self.variants:
            others = nearest(key, self.variants, "variants") if self.variants else "there are none"
            self.fail(f"no variant is called {key!r} ({others})", "when", key)
        values = tuple(value) if isinstance(value, list) else (value,)
        for each in values:
            if each not in self.variants[key]:
                self.fail(f"{key} is never {shown(each)} (it is {', '.join(map(str, self.variants[key]))})", "when", key)
        return values

    def bind(self, step: Mapping[str, Value], verb: Verb) -> tuple[str, ...]:
        """The names of what the step makes, for later steps."""
        if "as" not in step:
            return ()
        if not verb.binds:
            self.fail(f"{verb.name} makes nothing that could be named", "as")
        value = step["as"]
        names = value if isinstance(value, list) else [value]
        words = [each.name for each in verb.parameters]
        count = step.get("count", 1) if "count" in words else 1 if verb.binds == "job" else len(names)
        if len(names) != count:
            self.fail(f"{len(names)} names for {count} things", "as")
        for name in names:
            self.known.name(name, verb.binds, "as")
        return tuple(map(str, names))

    def remember(self, found: Mapping[str, Value]) -> Mapping[str, str]:
        """Further names for things that have one."""
        for name, value in found.items():
            TEXT.check(self.known, value, "remember", name)
            kind = self.known.kind_of(str(value))
            if kind not in ("block", "job", "slot"):
                self.fail(f"{value!r} is not a block, copy or slot", "remember", name)
            self.known.name(name, kind, "remember", name)
        return {name: str(value) for name, value in found.items()}


# --- writing ----------------------------------------------------------------------------------------------------------------


def write_scenario(scenario: Scenario) -> str:
    """A file that reads as this scenario."""
    head = {"id": scenario.id, "title": scenario.title, "tests": scenario.tests}
    lists = {"invariants": list(scenario.invariants), "groups": list(scenario.groups)}
    more = {"source": scenario.source, **lists, "story": scenario.story}
    scales = {} if scenario.scales else {"scales": False}
    variants = {key: list(each) for key, each in scenario.variants.items()}
    parts = [[*_keys(head), *_keys(_filled(more)), *_keys(scales)]]
    parts += [[f"[{name}]", *_keys(each)] for name, each in (("world", scenario.world), ("variants", variants)) if each]
    parts += [["[[step]]", *_step_lines(each)] for each in scenario.steps]
    if scenario.end or scenario.end_policy:
        parts.append(["[end]", *_keys(scenario.end), *_keys(scenario.end_policy, "policy.")])
    return "\n\n".join(map("\n".join, parts)) + "\n"


def _step_lines(step: ScenarioStep) -> Iterator[str]:
    when = {key: each[0] if len(each) == 1 else list(each) for key, each in step.when.items()}
    names = step.bind[0] if len(step.bind) == 1 else list(step.bind)
    yield from _keys({**_filled({"note": step.note, "when": when}), "do": step.verb, **step.arguments})
    ends = {"name": step.name, "refused": step.refused, "says": step.says, "fault": step.fault}
    yield from _keys(_filled({"as": names, **ends, "remember": step.remember}))
    yield from (*_keys(step.expect, "expect."), *_keys(step.policy, "policy."))


def _filled(table: Mapping[str, Value]) -> dict[str, Value]:
    return {key: value for key, value in table.items() if value}


def _keys(table: Mapping[str, Value], before: str = "") -> Iterator[str]:
    """The lines of a table, each with this text before its key."""
    return (f"{before}{_named(key)} = {_toml(value)}" for key, value in table.items())


def _named(text: str) -> str:
    return text if re.fullmatch(r"[\w-]+", text, re.ASCII) else _toml(text)


def _toml(value: Value) -> str:
    """A value in one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for the one control character that JSON leaves alone
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_named(key)} = {_toml(each)}" for key, each in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, Sequence):
        return f"[{', '.join(map(_toml, value))}]"
    return repr(value)
