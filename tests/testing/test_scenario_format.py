"""Scenario files are read with every word checked, and written back as they were.

Goal: whoever writes a case down learns at once what is wrong with it, and where. Method: one good file, spoiled in many ways,
each of which must give one line that begins with the file and the line; and files put together as data, written and read again.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocklife.errors import MisuseError
from blocklife.testing import Driver, Scenario, parse_scenario
from blocklife.testing.scenarios._cases import SHIPPED
from blocklife.testing.scenarios._format import VERBS, ScenarioStep, read_scenario, write_scenario
from blocklife.testing.scenarios._kinds import COUNTS, Blocks, Job, RequestName
from blocklife.testing.scenarios._words import EXPECTATIONS, verb, verbs_of

FOLDER = Path(__file__).parents[2] / "specs" / "scenarios"
FILES = sorted(SHIPPED.glob("*.toml"))

GOOD = Path(__file__).with_name("good_scenario.txt").read_text(encoding="utf-8")

MALFORMED: dict[str, tuple[str, str, int, str]] = {
    "no TOML": ('title = "An example"', 'title = "An example', 2, "Illegal character"),
    "a key twice": ('title = "An example"', 'title = "An example"\ntitle = "Two"', 3, "Cannot overwrite a value"),
    "unknown key": (
        'title = "An example"',
        'title = "An example"\ntilte = "x"',
        3,
        "unknown key 'tilte' (did you mean 'title'?)",
    ),
    "unknown table": ("[end]", "[ending]", 51, "unknown key 'ending'"),
    "no title": ('title = "An example"\n', "", 1, "it has no 'title'"),
    "title of the wrong type": ('title = "An example"', "title = 3", 2, "'title' must be a text, not 3"),
    "nothing that it tests": ('tests = "safety"\n', "", 1, "it does not say what it tests: write tests = 'safety' or 'policy'"),
    "something else that it tests": ('"safety"', '"speed"', 8, "tests must be 'safety' or 'policy', not 'speed'"),
    "policy of a policy": ('"safety"', '"policy"', 53, "end: it tests a policy, so every expectation is one: write 'expect'"),
    "policy that is no expectation": (
        "policy.pending",
        "policy.pendign",
        53,
        "end: unknown expectation 'pendign' (did you mean",
    ),
    "policy that is no table": ("policy.pending = false", "policy = 3", 53, "end: 'policy' must be a table, not 3"),
    "unknown invariant": ('["I1"]', '["I99"]', 3, "unknown invariant 'I99' (they are I1 to I15)"),
    "unknown setting": ("blocks = 4", "blokcs = 4", 11, "world: unknown setting 'blokcs' (did you mean 'blocks'?)"),
    "setting of the wrong type": ("blocks = 4", 'blocks = "4"', 11, "world: blocks must be a whole number, not '4'"),
    "negative setting": ("blocks = 4", "blocks = -4", 11, "world: blocks must be from 1 to 100000, not -4"),
    "groups that are none": ("full:4,swa:4:8", "full:4,swa:4:0", 10, "world: window_tokens of SlidingWindow must be a whole"),
    "variant of a setting": ('["fence", "hold"]', '["fence", "held"]', 14, "variants: contract must be one of fence, hold"),
    "empty variant": ('["itself", "another"]', "[]", 15, "variants: heir needs at least one value"),
    "variant that is no list": ('["itself", "another"]', '"itself"', 15, "variants: 'heir' must be a list, not 'itself'"),
    "no verb": ('do = "land"\n', "", 33, "step 3: it does nothing"),
    "unknown verb": ('do = "land"', 'do = "lamd"', 34, "step 3: unknown verb 'lamd' (did you mean 'land'?)"),
    "far from any verb": ('do = "land"', 'do = "zzzz"', 34, "step 3: unknown verb 'zzzz' (known verbs: arrive, step, tick"),
    "unknown parameter": ('copies = ["the', 'copeis = ["the', 35, "step 3: land takes no 'copeis' (did you mean 'copies'?)"),
    "missing parameter": ('prompt = "abcdefghi"\n', "", 17, "step 1: arrive needs 'prompt': a text"),
    "prompt with spaces": ('"abcdefghi"', '"abc defghi"', 20, "step 1: a prompt has letters without spaces"),
    "unknown when": ('{ heir = "another" }', '{ hier = "another" }', 23, "step 2: no variant is called 'hier'"),
    "when that never is": ('{ heir = "another" }', '{ heir = "nobody" }', 23, "step 2: heir is never 'nobody'"),
    "request that has not come": ('  "a",', '  "b",', 25, "step 2: no request 'b' has arrived so far (known requests: a)"),
    "unknown expectation": ("expect.count.free", "expect.cuont.free", 30, "step 2: unknown expectation 'cuont'"),
    "unknown count": ("expect.count.free", "expect.count.fere", 30, "step 2: unknown count 'fere' (did you mean 'free'?)"),
    "count of the wrong type": ("count.free = 1", 'count.free = "one"', 30, "'free' must be a whole number, or a text like"),
    "name that is not known yet": ("first = [", "frist = [", 29, "'frist' is not a block, slot, copy or request; did you mean"),
    "no such group": ("in group 1", "in group 7", 39, "there is no group 7: they are numbered from 0 to 1"),
    "content of no group": ('"1:abcd"', '"9:abcd"', 39, "there is no group 9"),
    "not a copy": ('["the store of a"]', '["the copy of a"]', 35, "'the copy of a' is not a copy, like 'the store of a'"),
    "no earlier step": ('same_as = "before"', 'same_as = "earlier"', 38, "no earlier step is called 'earlier'"),
    "as without a thing": ('note = "later"', 'note = "later"\nas = "z"', 37, "land makes nothing that could be named"),
    "too few names": ('as = ["x", "y"]', 'as = ["x"]', 49, "step 5: 1 names for 2 things"),
    "name of a request": ('as = ["x", "y"]', 'as = ["a", "y"]', 49, "'a' is the name of something else"),
    "says without refused": ('note = "later"', 'says = "later"', 36, "'says' is about a refusal: say refused, too"),
    "refused wrongly": ('note = "later"', 'refused = "maybe"', 36, "refused must be one of misuse, capacity, any"),
    "fault of no rule": ('note = "later"', 'fault = "I0"', 36, "unknown invariant 'I0'"),
    "name at the end": ('has = { b = ["x", "y"] }', 'has = { b = ["x", "w"] }', 52, "end: 'w' is not a block"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_file_is_refused_with_its_line(case: str) -> None:
    """One line: the file, the line, the step, what is wrong, and what would have been right."""
    old, new, line, message = MALFORMED[case]
    assert GOOD.count(old) == 1
    with pytest.raises(MisuseError) as raised:
        parse_scenario(GOOD.replace(old, new), "specs/x.toml")
    said = str(raised.value)

    assert message in said
    assert "\n" not in said
    assert said.startswith(f"specs/x.toml:{line}: ")


def test_file_without_steps_is_refused() -> None:
    """A case in which nothing happens is none."""
    with pytest.raises(MisuseError, match=r"^x:1: a scenario has steps: write \[\[step\]\]$"):
        parse_scenario('id = "X"\ntitle = "Nothing"\ntests = "safety"\n', "x")


def test_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """As is one that is no text."""
    with pytest.raises(MisuseError, match=r"none\.toml: No such file or directory \(name a scenario file"):
        read_scenario(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(MisuseError, match=r"bytes\.toml: it is not text: byte 1 is not UTF-8 \(name a"):
        read_scenario(tmp_path / "bytes.toml")


def test_good_file_can_be_read_by_a_program_that_imports_nothing_else() -> None:
    """Every expectation is known as soon as files can be read."""
    script = "import sys; from blocklife.testing import parse_scenario; print(parse_scenario(sys.stdin.read(), 'x').id)"
    ran = subprocess.run([sys.executable, "-c", script], input=GOOD, capture_output=True, text=True, check=False)

    assert (ran.stderr, ran.returncode) == ("", 0)


def test_good_file_reads_as_what_it_says() -> None:
    """Arguments, names, variants and lines."""
    found = parse_scenario(GOOD, "x")

    assert [step.verb for step in found.steps] == ["arrive", "step", "land", "enter", "allocate"]
    assert [step.line for step in found.steps] == [17, 22, 33, 41, 45]
    assert found.steps[1].arguments == {"let_in": ["a"]}
    assert found.steps[1].when == {"heir": ("another",)}
    assert found.steps[1].expect["count"] == {"free": 1}
    assert found.steps[4].bind == ("x", "y")
    assert list(found.each_variant())[1] == {"contract": "fence", "heir": "another"}
    assert found.end_line == 51


# --- writing ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_written_file_reads_as_the_same(path: Path) -> None:
    """Every file of the suite, read, written and read again; and writing it once more gives the same bytes."""
    first = read_scenario(path)
    text = write_scenario(first)

    assert parse_scenario(text) == first
    assert write_scenario(parse_scenario(text)) == text


def test_scenario_that_is_put_together_is_written_as_a_file() -> None:
    """As the explorer does it: with what no file of the suite has, such as a control character in a note."""
    made = Scenario(
        id="counterexample",
        tests="safety",
        title="I1: block 1 was handed out while copy 1 touches it",
        invariants=("I1",),
        world={"groups": "full:1", "blocks": 2, "scheduling": "async"},
        steps=(
            ScenarioStep(verb="arrive", arguments={"request": "a", "prompt": "ab", "reply": "c"}),
            ScenarioStep(verb="hang", arguments={"copies": ["the store of a"], "worker": 0}, note='a "quoted" word\n\x7f'),
            ScenarioStep(verb="reset", arguments={"drain": True}, refused="capacity"),
            ScenarioStep(verb="step", fault="I1", expect={"state": {"block 0 of a": "FREED"}}, policy={"out": []}),
        ),
        end={"nothing_left": True},
        end_policy={"pending": False},
    )

    assert parse_scenario(write_scenario(made)) == made


@given(st.text(max_size=20), st.dictionaries(st.text(max_size=5), st.sampled_from(["a", "RUNNING"]), max_size=0))
def test_any_text_survives_writing(text: str, nothing: dict[str, str]) -> None:
    """Whatever a note says."""
    made = Scenario(
        id="x", title=text, tests="policy", steps=(ScenarioStep(verb="check", note=text, expect={"state": nothing}),)
    )

    assert parse_scenario(write_scenario(made)) == made


# --- the vocabulary ---------------------------------------------------------------------------------------------------------


class Slower(Driver):
    """A driver with a verb more."""

    @verb("scenes", weight=1)
    def slow(self, request: RequestName, blocks: Blocks, *, weight: int) -> Job:
        """A request is slower.

        What only whoever writes a driver must know.
        """
        return weight


def test_method_of_a_driver_is_all_that_a_verb_needs() -> None:
    """Its parameters with their kinds, what a file may leave out, what it makes, and its sentence."""
    made = verbs_of(Slower, Slower)

    assert set(made) - set(VERBS) == {"slow"}
    assert (made["slow"].section, made["slow"].doc) == ("scenes", "A request is slower.")
    assert (made["slow"].binds, made["slow"].needs) == ("job", ("slow",))
    assert [(each.name, each.kind.said, each.needed) for each in made["slow"].parameters] == [
        ("request", "the name of a request", True),
        ("blocks", "a list of blocks", True),
        ("weight", "a whole number", False),
    ]


def test_parameter_of_no_kind_is_refused() -> None:
    """As soon as the class is read."""

    class Wrong(Driver):
        @verb()
        def slow(self, requests: Sequence[str]) -> None:
            """Which of them are what?"""

    with pytest.raises(TypeError, match=r"^slow: requests has no kind \(annotate it with one of _kinds\)$"):
        verbs_of(Wrong, Driver)


def test_every_word_is_used_by_a_scenario() -> None:
    """A verb, expectation or count that no file has is not shown to work."""
    scenarios = [read_scenario(path) for path in FILES]
    steps = [step for each in scenarios for step in each.steps]
    asked = [table for step in steps for table in (step.expect, step.policy, step.arguments.get("until", {}))]
    tables_asked = [
        dict(each)
        for each in [*asked, *(table for each in scenarios for table in (each.end, each.end_policy))]
        if isinstance(each, dict)
    ]
    counted = {name for each in tables_asked for name in dict(each.get("count", {}))}

    assert set(VERBS) - {step.verb for step in steps} == UNUSED
    assert set(EXPECTATIONS) - {key for each in tables_asked for key in each} == set()
    assert counted <= set(COUNTS)


UNUSED = {"acquire", "release", "abandon", "flush", "lose_report", "lose_worker", "regain_worker"}
"""Verbs that no case needs; `test_scenarios` shows each of them."""


def test_page_shows_files_that_are_right() -> None:
    """Its example is a scenario."""
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    example = page.split("```toml\n")[1].split("```")[0]

    assert parse_scenario(example).id == "example"
