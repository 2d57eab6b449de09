"""The scenario suite holds for our engine, and each seed scenario fails when the line that makes it hold is taken out.

Goal: a scenario says something. Method: every file in every variant; bugs planted in the real source, as in `test_seeds`; short
scenarios with a wrong expectation each, whose verdict must name what was expected and what is there instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from blocklife.errors import MisuseError
from blocklife.ledger.jobs import Cargo
from blocklife.offload import OffloadScheduler, search
from blocklife.offload.stores import StoreLine
from blocklife.testing.scenarios.driver import Stepped
from blocklife.testing.scenarios.our_driver import OurDriver
from blocklife.testing.scenarios.running import (
    Outcome,
    Verdict,
    list_files,
    parse_scenario,
    read_scenario,
    run_files,
    run_scenario,
    summary,
    told,
)
from blocklife.testing.worlds.device import DeviceFault
from tests.engines import without
from tests.test_acceptance import CASES
from tests.test_seeds import BY_BLOCK_ID, plant_stale_sources

FOLDER = Path(__file__).parent.parent / "specs" / "scenarios"
FILES = {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}
NOT_APPLICABLE = {"A10", "A41", "A42", "A47"}
"""Cases about things that our engine does not have; each says which."""


def run_all(name: str) -> list[Verdict]:
    """Every variant of one file."""
    scenario = read_scenario(FILES[name])
    return [run_scenario(scenario, OurDriver, variant) for variant in scenario.each_variant()]


# --- the suite --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_scenario_holds(name: str) -> None:
    """In all its variants; what our engine has not got says so."""
    verdicts = run_all(name)
    for each in verdicts:
        print(each)
    expected = Outcome.NOT_APPLICABLE if name in NOT_APPLICABLE else Outcome.HELD

    assert {each.outcome for each in verdicts} == {expected}
    assert all(each.steps for each in verdicts if name not in NOT_APPLICABLE)


def test_every_case_is_a_file() -> None:
    """The five seeds and all acceptance cases, under their own names, with a source and rules."""
    scenarios = {name: read_scenario(path) for name, path in FILES.items()}

    assert {*CASES, "S1", "S2", "S3", "S4", "S5"} <= set(scenarios)
    assert all(each.id == name for name, each in scenarios.items())
    assert all(each.source and each.invariants and each.title for each in scenarios.values())
    assert {rule for each in scenarios.values() for rule in each.invariants} == {f"I{number}" for number in range(1, 16)}


def test_what_is_not_applicable_says_why() -> None:
    """The reason is a sentence about this engine, behind the step that asked for it."""
    for name in NOT_APPLICABLE:
        (verdict,) = run_all(name)

        assert verdict.message.startswith(f"{FILES[name]}:")
        assert any(word in verdict.message for word in ("there is one ledger", "there are no", "are never swapped"))


# --- planted bugs -----------------------------------------------------------------------------------------------------------

PLANTS: dict[str, tuple[str, Callable[[pytest.MonkeyPatch], None], str]] = {
    "no comparison of lives": ("S1", lambda patch: plant_stale_sources(patch, "if False:"), "named twice in one call"),
    "names by block id": ("S1", lambda patch: plant_stale_sources(patch, BY_BLOCK_ID), "one content, one key"),
    "no look at copies": (
        "S2",
        lambda patch: without(
            patch, StoreLine, "_judge", {"if at in _COPYING:": "if False:"}
        ),
        "cannot PLAN_STORE while IN_FLIGHT",
    ),
    "dedup by content": (
        "S2",
        lambda patch: without(
            patch, StoreLine, "is_stored", {"if slot is None or slots.column.state[slot] != _READY:": "if slot is None:"}
        ),
        "state: expected block 1 of f to be IN_FLIGHT; it is SEALED",
    ),
    "sizes of whole chunks": (
        "S3",
        lambda patch: without(patch, Cargo, "of", {"] = count, num_chunks": "] = count + (count == 2), num_chunks"}),
        "zip() argument 3 is longer",
    ),
    "unwritten part is a hit": (
        "S3b",
        lambda patch: without(
            patch, search.Search, "_in_host", {"if slot is not None and suffix[slot] < blocks:": "if False:"}
        ),
        "hit: expected 0 for x; found 12",
    ),
    "windows are ignored": (
        "S4",
        lambda patch: without(
            patch, search, "unit_of", {"tokens=tokens * size, window=window,": "tokens=tokens * size, window=None,"}
        ),
        "sizes: ",
    ),
    "window too short": (
        "S4",
        lambda patch: without(
            patch, search, "unit_of", {"window = -(-blocks // size)": "window = 1", "tail = blocks - ": "tail = 1 or "}
        ),
        "KeyError",
    ),
    "no request is tracked": (
        "S5",
        lambda patch: patch.setattr(OffloadScheduler, "_is_last_step", lambda self: not self._requests and not self._ended),
        "flushes: expected the store of a, the load of b; found none",
    ),
    "flush without loads": (
        "S5",
        lambda patch: without(patch, OffloadScheduler, "build_plan", {"self.ledger.submitted()": 'self.ledger.jobs_of("a")'}),
        "flushes: expected the store of a, the load of b; found the store of a",
    ),
}  # fmt: skip


@pytest.mark.parametrize("plant", PLANTS)
def test_planted_bug_fails_its_scenario(plant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code as it was before the fix, or near to it; the verdict names the step and what was found."""
    name, put, message = PLANTS[plant]
    put(monkeypatch)
    failed = [each for each in run_all(name) if each.outcome is Outcome.FAILED]
    for each in failed:
        print(each)

    assert failed
    assert any(message in each.message for each in failed)
    assert all(each.message.startswith(f"{FILES[name]}:") for each in failed)


DRAFT = """\
id = "X"
title = "A state takes in no token that no plan which is out will sample"

[world]
groups = "mamba:4"
blocks = 8
scheduling = "async"

[[step]]
do = "arrive"
request = "a"
prompt = "abc"

[[step]]
do = "step"

[[step]]
note = "4 tokens are known, 3 of them computed, and no plan is out"
do = "settle"

[[step]]
do = "step"
compute = { a = 2 }
{refused}

[[step]]
do = "tick"

[[step]]
do = "step"
compute = { a = 1 }
"""


def test_draft_on_a_state_is_refused_when_nothing_is_out() -> None:
    """Planning ahead allows what a plan that is out will sample, and no token more."""
    verdict = run_scenario(parse_scenario(DRAFT.replace("{refused}", 'refused = "misuse"'), "x.toml"))

    assert verdict.outcome is Outcome.HELD, verdict


def test_draft_on_a_state_makes_the_device_read_what_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why it is refused: the token was not sampled as it was drafted, and the state has taken it in."""
    monkeypatch.setattr(OffloadScheduler, "_check_no_drafts", lambda self, rows: None)
    verdict = run_scenario(parse_scenario(DRAFT.replace("{refused}", ""), "x.toml"))

    assert verdict.outcome is Outcome.FAILED
    assert "step 6" in verdict.message
    assert "I6" in verdict.message
    assert verdict.message.endswith("instead of 0:abcA"), verdict.message


# --- verdicts ---------------------------------------------------------------------------------------------------------------

SCENE = """\
id = "X"
title = "A store, a hit and a load"

[world]
blocks = 6
workers = 2

[[step]]
do = "arrive"
request = "a"
prompt = "abcdefghi"

[[step]]
do = "step"

[[step]]
do = "tick"
until = { out = ["the store of a"] }
name = "stored"
remember = { slot = "the slot of abcd" }
"""

WRONG: dict[str, tuple[str, str]] = {
    'stores = ["block 1 of a"]': ("stores", "expected block 1 of a; found none"),
    "flushes = ['the store of a']": ("flushes", "expected the store of a; found none"),
    'state = { a = "LOADING" }': ("state", "expected a to be LOADING; it is RUNNING"),
    'state = { "block 0 of a" = ["FREED", "CACHED"] }': ("state", "block 0 of a to be FREED or CACHED; it is IN_FLIGHT"),
    'state = { slot = "READY" }': ("state", "expected slot to be READY; it is WRITING"),
    'state = { "the store of a" = "DONE" }': ("state", "expected the store of a to be DONE; it is IN_FLIGHT"),
    'holds = { "block 0 of a" = "wxyz" }': ("holds", "block 0 of a to hold 0:wxyz; on worker 0 it holds 0:abcd"),
    'in_host = ["abcd"]': ("in_host", "abcd (0:abcd) cannot be found in the host (there are: none)"),
    'not_on_device = ["abcd"]': ("not_on_device", "abcd (0:abcd) can be found in the device (there are: 0:abcd, 0:abcdefgh)"),
    'same = [["block 0 of a", "block 1 of a"]]': ("same", "block 0 of a and block 1 of a are two blocks"),
    'other = [["block 0 of a", "block 0 of a"]]': ("other", "block 0 of a and block 0 of a are one block"),
    "out = []": ("out", "expected none; found the store of a"),
    'sizes = { "the store of a" = [1, 1] }': ("sizes", "expected the store of a to have [1, 1]; it has [2]"),
    "tokens = { a = 5 }": ("tokens", "expected 5 settled tokens of a; it has 9"),
    "pending = false": ("pending", "ticking must go on"),
    "nothing_left = true": ("nothing_left", "left behind: block 1 IN_FLIGHT"),
    "windows = [2]": ("windows", "expected [2]; found ['all']"),
    "count = { free = 9 }": ("count", "expected free 9; found 3"),
    'count = { free = "< 3" }': ("count", "expected free < 3; found 3"),
    "hit = { a = 8 }": ("hit", "expected 8 for a; found no lookup"),
    'handed_out = ["block 0 of a"]': ("handed_out", "block 0 of a was not handed out (handed out: none)"),
    'no_room = ["a"]': ("no_room", "expected a; found none"),
    'state = { "block 5 of a" = "FREED" }': ("state", "there is no block 5 of a: it has had 3 blocks by now"),
    'state = { "the load of a" = "DONE" }': ("state", "there is no such copy as the load of a: 0 loads of a were planned"),
    'holds = { "block 2 of a" = "block 60 of a" }': ("holds", "block 60 of a has no content: a has 209 tokens"),
}


@pytest.mark.parametrize("expected", WRONG)
def test_wrong_expectation_is_told_with_what_is_there(expected: str) -> None:
    """Which one, what was expected, what was found; with file, line and step."""
    key, said = WRONG[expected]
    verdict = run_scenario(parse_scenario(f'{SCENE}\n[[step]]\ndo = "check"\nexpect.{expected}\n', "x.toml"))

    assert verdict.outcome is Outcome.FAILED
    assert verdict.message.startswith(f"x.toml:22: step 4 (check): {key}: ")
    assert said in verdict.message


UNFIT: dict[str, tuple[str, str]] = {
    'do = "land"\ncopies = ["the load of a"]': ("land", "there is no such copy as the load of a"),
    'do = "land"\nworker = 0\ncopies = ["the store of a"]\n[[step]]\ndo = "land"\nworker = 0\ncopies = ["the store of a"]': (
        "land",
        "the store of a hangs on the device of worker 0",
    ),
    'do = "preempt"\nrequest = "a"\nrefused = "misuse"': ("preempt", "expected a refusal; it was done"),
    'do = "wake"': ("wake", "the engine refuses: the scheduler does not sleep (put it to sleep first)"),
    'do = "wake"\nrefused = "capacity"': ("wake", "expected a refusal for capacity; it was misuse: the scheduler does"),
    'do = "wake"\nrefused = "misuse"\nsays = "no bed"': ("wake", "expected a refusal with 'no bed'; it said: the scheduler"),
    'do = "tick"\nfault = "I1"': ("tick", "expected that I1 breaks; every rule holds"),
    'do = "tick"\nuntil = { loaded = ["a"] }': ("tick", "still not after 64 steps: loaded: expected a; found none"),
    'do = "tick"\nexpect.same_as = "stored"\n[[step]]\ndo = "land"\n[[step]]\ndo = "tick"\nexpect.same_as = "stored"': (
        "tick",
        "same_as: something has changed since 'stored'",
    ),
    'do = "lose_report"\ncopy = "the store of a"': ("lose_report", "no report of the store of a by worker 0 is on its way"),
    'do = "settle"': ("settle", "no plan is out"),
    'do = "crowd_host"\nslots = 9': ("crowd_host", "there is no room for 9 more slots in the host"),
}


@pytest.mark.parametrize("steps", UNFIT)
def test_step_that_does_not_go_as_it_says_is_told(steps: str) -> None:
    """What is not there, what was refused, what was not refused, and what did not come."""
    verb, said = UNFIT[steps]
    verdict = run_scenario(parse_scenario(f"{SCENE}\n[[step]]\n{steps}\n", "x.toml"))

    assert verdict.outcome is Outcome.FAILED
    assert f"({verb}): {said}" in verdict.message


class Clumsy(OurDriver):
    """Changes something before it refuses."""

    def wake(self) -> None:
        self.ledger.add_request("left behind")
        super().wake()


class Broken(OurDriver):
    """Hands out blocks behind everybody's back."""

    def wake(self) -> None:
        self.ledger.blocks.refs[1] += 1


class Odd(OurDriver):
    """Fails in a way of its own."""

    def wake(self) -> None:
        raise ZeroDivisionError("of 3 by 0")


class Forgetful(OurDriver):
    """Does not tell its workers to wait."""

    def step(self, **told: object) -> Stepped:
        found = super().step(**told)  # type: ignore[arg-type]
        return Stepped(orders=found.orders._replace(flushes=()), handed_out=found.handed_out, owners=found.owners)


@pytest.mark.parametrize(
    ("driver", "said"),
    [
        (Clumsy, "it was refused, and has changed something all the same"),
        (Broken, "a rule is broken: I4: refs of place 1 say 2, counted 1"),
        (Odd, "the engine raises ZeroDivisionError: of 3 by 0"),
    ],
)
def test_driver_that_does_wrong_is_told(driver: Callable[[], OurDriver], said: str) -> None:
    """Also where nothing was expected."""
    verdict = run_scenario(parse_scenario(f'{SCENE}\n[[step]]\ndo = "wake"\nrefused = "misuse"\n', "x.toml"), driver)

    assert verdict.outcome is Outcome.FAILED
    assert said in verdict.message


def test_forgotten_wait_is_found_on_the_device() -> None:
    """The ledger's books are in order; what the workers were told is not."""
    scenario = read_scenario(FILES["A01"])
    verdict = run_scenario(scenario, Forgetful, {"contract": "fence", "scheduling": "sync"})

    assert verdict.outcome is Outcome.FAILED
    assert "I1: plan 4 does not wait for copy 1 (the store of a), whose block has a new tenant" in verdict.message


def test_rule_that_a_fault_does_not_break_is_told() -> None:
    """Another rule than the one that was demanded is another case."""
    text = FILES["A08"].read_text(encoding="utf-8").replace('fault = "I2"', 'fault = "I1"')
    verdict = run_scenario(parse_scenario(text, "x"), OurDriver, {"contract": "hold", "events": "none"})

    assert verdict.outcome is Outcome.FAILED
    assert (
        "expected that I1 breaks; what broke is I2: worker 0: copy 3 (the load of w) does not wait for the event of step"
        in verdict.message
    )


# --- verbs that no case needs -----------------------------------------------------------------------------------------------

OTHER_VERBS = """\
id = "X"
title = "Verbs that no case needs"

[world]
blocks = 6
workers = 2

[variants]
scheduling = ["sync", "async"]

[[step]]
do = "enter"
request = "a"

[[step]]
do = "allocate"
request = "a"
count = 2
as = ["x", "y"]

[[step]]
do = "seal"
blocks = ["x", "y"]
contents = ["abcd", "abcdefgh"]

[[step]]
do = "enter"
request = "b"

[[step]]
do = "acquire"
request = "b"
contents = ["abcd"]
as = "z"
expect.same = [["x", "z"]]

[[step]]
do = "plan_store"
request = "a"
blocks = ["x"]
contents = ["abcd"]
as = "s"

[[step]]
do = "tick"
until = { out = ["s"] }

[[step]]
do = "land"
copies = ["s"]
worker = 0

[[step]]
do = "lose_report"
copy = "s"

[[step]]
do = "tick"
expect.state = { s = "IN_FLIGHT" }

[[step]]
do = "flush"
copies = ["s"]

[[step]]
note = "only worker 1 has anything to wait for; the lost report does no harm"
do = "tick"
expect.flushes = ["s"]
expect.state = { s = "FAILED" }

[[step]]
do = "plan_store"
request = "a"
blocks = ["y"]
contents = ["abcdefgh"]
as = "t"

[[step]]
do = "tick"
until = { out = ["t"] }

[[step]]
do = "abandon"
copy = "t"
expect.state = { t = "STALE" }

[[step]]
do = "release"
request = "b"
blocks = ["z"]
expect.has = { a = ["x"] }

[[step]]
do = "release"
request = "b"
blocks = ["z"]
refused = "misuse"
says = "does not hold it"

[[step]]
do = "lose_worker"
worker = 1

[[step]]
do = "drain"

[[step]]
do = "regain_worker"
worker = 1

[[step]]
do = "sleep"

[[step]]
do = "step"
let_in = []

[[step]]
do = "drain"

[[step]]
do = "wake"

[[step]]
do = "abort"
request = "a"

[[step]]
do = "finish"
request = "b"

[end]
nothing_left = true
not_in_host = ["abcd", "abcdefgh"]
"""


@pytest.mark.parametrize("scheduling", ["sync", "async"])
def test_verbs_that_no_case_needs(scheduling: str) -> None:
    """Shared blocks, given-up stores, lost reports, lost workers, and a night."""
    verdict = run_scenario(parse_scenario(OTHER_VERBS, "x"), OurDriver, {"scheduling": scheduling})

    assert verdict.message == ""


# --- the command's body -----------------------------------------------------------------------------------------------------


def test_run_files_reads_everything_first(tmp_path: Path) -> None:
    """A malformed file is refused before any other has run; a folder stands for its files."""
    (tmp_path / "a.toml").write_text(SCENE, encoding="utf-8")
    assert [str(each) for each in run_files([str(tmp_path)])] == ["X: holds"]
    (tmp_path / "b.toml").write_text(SCENE.replace('"tick"', '"tock"'), encoding="utf-8")
    with pytest.raises(MisuseError, match=r"b\.toml:17: step 3: unknown verb 'tock'"):
        next(run_files([str(tmp_path)]))
    (tmp_path / "empty").mkdir()
    with pytest.raises(MisuseError, match="no scenario there"):
        next(run_files([str(tmp_path / "empty")]))
    with pytest.raises(MisuseError, match="no scenario there"):
        list_files([str(tmp_path / "empty")])


def test_log_has_steps_and_transitions() -> None:
    """With their notes, and rows as the tables print them."""
    verdict = run_scenario(parse_scenario(SCENE, "x"), log=True)

    assert "step 1 (line 8): arrive request=a, prompt=abcdefghi" in verdict.log
    assert "    block 1: ALLOCATED --plan_store--> PLEDGED" in verdict.log
    assert run_scenario(parse_scenario(SCENE, "x")).log == ()


def test_told_is_what_the_command_prints() -> None:
    """Only what does not hold, unless all is wanted; one object a run for machines."""
    paths = [str(FILES["A10"]), str(FILES["A20"])]
    short = list(told(run_files(paths)))
    long = list(told(run_files(paths, log=True), log=True))
    objects = [json.loads(line) for line in told(run_files(paths), as_json=True)]

    assert short[0].startswith("A10: not applicable: ")
    assert short[1:] == ["2 runs: 1 hold, 0 fail, 1 not applicable"]
    assert "  step 4 (line 22): evict contents=[abcd]  # B keeps it" in long
    assert "      refused: slot 0: cannot EVICT while READY (no guard held: unpinned, No load reads the slot)" in long
    assert [each["outcome"] for each in objects] == ["not_applicable", "held"]


def test_note_of_a_failing_step_is_said() -> None:
    """The words of whoever wrote the case down."""
    verdict = run_scenario(parse_scenario(f'{SCENE}\n[[step]]\nnote = "nobody is there"\ndo = "check"\nexpect.out = []\n', "x"))

    assert verdict.message.endswith("expected none; found the store of a (the step: nobody is there)")


def test_list_says_what_there_is() -> None:
    """One line a file."""
    lines = list_files([str(FOLDER)])

    assert len(lines) == len(FILES)
    assert (
        "S1: A stale entry of a sliding window is never a copy source (vllm#42959, vllm#42761); I1, I8, I14; 16 variants"
        in lines
    )


def test_summary_counts_outcomes() -> None:
    """Of all runs."""
    verdicts = list(run_files([str(FILES["A10"]), str(FILES["A20"])]))

    assert summary(verdicts) == "2 runs: 1 hold, 0 fail, 1 not applicable"
    assert verdicts[1].record() == {
        "scenario": "A20",
        "title": "A lock is released only by its holder",
        "path": str(FILES["A20"]),
        "variant": {},
        "outcome": "held",
        "message": "",
        "steps": 6,
        "log": [],
    }


def test_device_fault_is_what_a_broken_rule_raises() -> None:
    """The runner and the device speak of rules in the same way."""
    assert DeviceFault("I1", "x").rule == "I1"
