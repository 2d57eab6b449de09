"""The scenario suite holds for our engine, and each seed scenario fails when the line that makes it hold is taken out.

Goal: a scenario says something. Method: every file in every variant; bugs planted in the real source; short
scenarios with a wrong expectation each, whose verdict must name what was expected and what is there instead.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import evolve

from blocklife.cli import main
from blocklife.core import _steps as core_steps
from blocklife.core._progress import TokenProgress
from blocklife.errors import MisuseError
from blocklife.ledger.records import Transfers
from blocklife.ledger.views import SlotsView
from blocklife.offload import _search as search
from blocklife.offload._admissions import Admissions
from blocklife.offload._endings import Endings
from blocklife.offload._steps import SchedulerSteps
from blocklife.offload._stores import StoreLine
from blocklife.testing import (
    Driver,
    EngineSetup,
    EngineStep,
    LookedUp,
    OurDriver,
    Outcome,
    ScenarioVerdict,
    parse_scenario,
    run_files,
    run_scenario,
)
from blocklife.testing.scenarios._cases import SHIPPED, chosen
from blocklife.testing.scenarios._format import SAFETY
from blocklife.testing.scenarios._running import WRONG, DriverError, read_scenario
from blocklife.testing.scenarios._telling import list_files
from tests import wrong_engines as wrong
from tests.planting import without

CASES = tuple(
    f"A{number:02}"
    for numbers in (
        (1, 2, 3, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17, 18, 20, 21, 23, 25, 27, 28, 30, 32, 33, 35, 36, 37, 39, 40, 41, 42, 45),
        (47, 48, 50, 52, 54, 55),
    )
    for number in numbers
)
"""Every acceptance case, by the number that it has in the collection."""

FOLDER = SHIPPED
FILES = {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}
NOT_APPLICABLE = {"A10", "A41", "A42", "A47"}
"""Cases about things that our engine does not have; each says which."""


def run_all(name: str) -> list[ScenarioVerdict]:
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
        verdict, *_ = run_all(name)

        assert verdict.message.endswith(f": {verdict.reason}")
        assert verdict.message.startswith(f"{FILES[name]}:")
        assert any(word in verdict.message for word in ("there is one ledger", "there are no", "are never swapped"))


# --- planted bugs -----------------------------------------------------------------------------------------------------------


BY_BLOCK_ID = (
    "life = chunk.lives[position] = self._ledger.blocks.life(block_of(life))\n        at = code_of(life)\n        if False:"
)


def plant_stale_sources(monkeypatch: pytest.MonkeyPatch, instead: str) -> None:
    """Nobody compares the life that an entry names with that of its block."""
    without(monkeypatch, StoreLine, "_judge", {"if at is None:": instead})


def plant_no_look_at_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asks whether a copy of a block is out."""
    without(
        monkeypatch,
        core_steps,
        "collect_turn",
        {" or traits[blocks.state[place]] & COPIED": "", "not traits[blocks.state[place]] & ready": "False"},
    )
    without(monkeypatch, core_steps, "leave_out", {"elif traits[blocks.state[life & ID_MASK]] & COPIED:": "elif False:"})


def nobody_is_tracked(steps: SchedulerSteps) -> bool:
    """When the last step was said to be: never, while a request that is over still has jobs."""
    return not steps._state.requests and not steps._state.outlived


PLANTS: dict[str, tuple[str, Callable[[pytest.MonkeyPatch], None], str]] = {
    "no comparison of lives": ("S1", lambda patch: plant_stale_sources(patch, "if False:"), "which is over"),
    "names by block id": ("S1", lambda patch: plant_stale_sources(patch, BY_BLOCK_ID), "one content, one key"),
    "no look at copies": (
        "S2",
        plant_no_look_at_copies,
        "cannot PLAN_STORE while IN_FLIGHT",
    ),
    "dedup by content": (
        "S2",
        lambda patch: without(patch, SlotsView, "any_ready", {"self.find_ready(": "self.find("}),
        "state: expected block 0 of f to be IN_FLIGHT; it is SEALED",
    ),
    "sizes of whole chunks": (
        "S3",
        lambda patch: without(
            patch,
            Transfers,
            "_all",
            {"self._groups.count(group, start, stop)": "self._groups.count(group, start, stop) + (stop - start == 2)"},
        ),
        "group sizes [3] do not agree",
    ),
    "unwritten part is a hit": (
        "S3b",
        lambda patch: without(
            patch, search.HostAnswers, "ask", {"if slot >= 0 and self._suffix[slot] < blocks:": "if False:"}
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
        lambda patch: patch.setattr(Endings, "is_last_step", nobody_is_tracked),
        "flushes: expected the store of a, the load of b; found none",
    ),
    "flush without loads": (
        "S5",
        lambda patch: without(
            patch, SchedulerSteps, "make_plan", {"self._jobs.submitted(on_device=True)": 'self._jobs.of("a")'}
        ),
        "flushes: expected the store of a, the load of b; found the store of a",
    ),
    "drafts are not taken back": (
        "B01",
        lambda patch: without(
            patch, TokenProgress, "reach", {"end if end < most else most": "end"}
        ),
        "I6",
    ),
    "no proof for a drafter": (
        "B03",
        lambda patch: without(patch, search, "unit_of", {"proof=geometry.drafters[group]": "proof=False"}),
        "hit: expected 8 for x; found 12",
    ),
    "a load that is out counts for nothing": (
        "B16",
        lambda patch: without(
            patch, search.DeviceAnswers, "ask", {"if self._loading and (group, key) in self._loading": "if False"}
        ),
        "hit: expected deferred for y",
    ),
    "the pass does not wait for its load": (
        "B18",
        lambda patch: without(patch, Admissions, "load_hit", {"within=hit.within": "within=False"}),
        "raises KeyError: 'now'",
    ),
    "what was computed behind a failed load stays": (
        "B19",
        lambda patch: without(patch, Endings, "load_failed", {"self.drop(name, tracked)": "pass"}),
        "lookup 1: cannot DEFER while LOADING",
    ),
    "a tail stays final": (
        "B20",
        lambda patch: without(
            patch, SchedulerSteps, "_write_behind", {"self._rows.reopen(name, hit.tokens // tokens, group)": "pass"}
        ),
        "cannot be stored as",
    ),
    "the end leaves no tail": (
        "B21",
        lambda patch: without(
            patch, Endings, "leave_behind", {"self._offers.offer_tail(name, tracked, last)": "pass"}
        ),
        "no such copy as the store of a",
    ),
    "a state is not taken back": (
        "B22",
        lambda patch: without(
            patch, TokenProgress, "reach", {"end if end < most else most": "end"}
        ),
        "I6",
    ),
}  # fmt: skip


def wrong_of(tests: str) -> frozenset[Outcome]:
    """How a wrong engine ends: where safety is tested, it must not pass for one that only decides otherwise."""
    return WRONG - ({Outcome.OTHER_POLICY} if tests == SAFETY else set())


@pytest.mark.interpreted
@pytest.mark.parametrize("plant", PLANTS)
def test_planted_bug_fails_its_scenario(plant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code as it was before the fix, or near to it; the verdict names the step and what was found."""
    name, put, message = PLANTS[plant]
    put(monkeypatch)
    failed = [each for each in run_all(name) if each.outcome in WRONG]
    for each in failed:
        print(each)

    assert any(message in each.message and each.outcome in wrong_of(each.tests) for each in failed)
    assert all(each.message.startswith(f"{FILES[name]}:") for each in failed)


CAN_FAIL: dict[str, type[OurDriver]] = {
    **dict.fromkeys(("A01", "A02", "A39", "A54", "S2b", "S4c", "S5"), wrong.Forgetful),
    **dict.fromkeys(("A08", "A45", "S1", "S4"), wrong.Idle),
    **dict.fromkeys(("A30", "A32", "A33", "A50"), wrong.Gullible),
    **dict.fromkeys(("A16", "A28", "S2"), wrong.Hasty),
    **dict.fromkeys(("A03", "A04", "A17", "A25", "A27"), wrong.Careless),
    **dict.fromkeys(("A13", "A21", "A40", "A48", "A55", "S4b"), wrong.Stubborn),
    **dict.fromkeys(("A07", "A18", "A20", "A23", "A37", "A52"), wrong.Yielding),
    **dict.fromkeys(("A05", "A36"), wrong.Rash),
    **dict.fromkeys(("A35", "S3", "S3b"), wrong.Certain),
    "A11": wrong.OneEvent,
    "A14": wrong.Upset,
    "B02": wrong.Clinging,
    **dict.fromkeys(("B03", "B04"), wrong.Unproven),
    "B05": wrong.Gullible,
    "B06": wrong.Uniform,
    "B07": wrong.Unaligned,
    "B08": wrong.Deepest,
    **dict.fromkeys(("B09", "B10"), wrong.Deaf),
    "B11": wrong.Stubborn,
    "B12": wrong.Forgetful,
    "B13": wrong.Advertising,
    "B14": wrong.Thrifty,
    "B15": wrong.Hasty,
    "B17": wrong.Certain,
    "B18": wrong.Forgetful,
    "B19": wrong.Gullible,
    "B23": wrong.PrefixBlind,
    "B24": wrong.Remembering,
    "B25": wrong.Overbooked,
    "B26": wrong.Transposed,
    "B27": wrong.Stubborn,
    "B28": wrong.Blind,
    "B29": wrong.Waiting,
    "B30": wrong.OneSpace,
    "B31": wrong.Impatient,
    "B32": wrong.Forgiving,
    "B33": wrong.Unfenced,
    "B34": wrong.Sparing,
    "B35": wrong.Misread,
    "B36": wrong.Scratch,
    "B37": wrong.Untold,
    "B38": wrong.Appending,
    "B39": wrong.Careless,
}
"""A wrong engine for each case that no bug is planted for."""


@pytest.mark.parametrize("name", sorted(CAN_FAIL))
def test_every_case_fails_for_some_wrong_engine(name: str) -> None:
    """None of them says nothing: a wrong engine does not hold; where safety is tested, it is unsafe, or raises."""
    scenario = read_scenario(FILES[name])
    verdicts = (run_scenario(scenario, CAN_FAIL[name], variant) for variant in scenario.each_variant())
    failed = next((each for each in verdicts if each.outcome in wrong_of(scenario.tests)), None)
    print(failed)

    assert failed is not None


def test_every_case_that_runs_can_fail() -> None:
    """The tables leave out only what our engine cannot do."""
    assert set(FILES) - set(CAN_FAIL) - {name for name, _, _ in PLANTS.values()} == NOT_APPLICABLE


DRAFT = """\
id = "X"
title = "A state takes in no token that no plan which is out will sample"
tests = "safety"
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


@pytest.mark.interpreted
def test_draft_on_a_state_makes_the_device_read_what_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why it is refused: the token was not sampled as it was drafted, and the state has taken it in."""
    monkeypatch.setattr(SchedulerSteps, "check_no_drafts", lambda self, rows: None)
    verdict = run_scenario(parse_scenario(DRAFT.replace("{refused}", ""), "x.toml"))

    assert verdict.outcome is Outcome.UNSAFE
    assert "step 6" in verdict.message
    assert "I6" in verdict.message
    assert verdict.message.endswith("instead of 0:abcA"), verdict.message


# --- verdicts ---------------------------------------------------------------------------------------------------------------

SCENE = """\
id = "X"
title = "A store, a hit and a load"
tests = "safety"
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

NOT_SO: dict[str, tuple[str, str]] = {
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
    'reads = ["block 0 of a"]': ("reads", "block 0 of a is not read (read: none)"),
    'copied = [["block 0 of a", "block 1 of a"]]': ("copied", "expected block 0 of a to block 1 of a; found none"),
    'demotes = ["abcd"]': ("demotes", "expected 0:abcd; found none"),
    'promotes = ["abcd"]': ("promotes", "expected 0:abcd; found none"),
    'in_store_below = ["abcd"]': ("in_store_below", "abcd (0:abcd) cannot be found in the store below (there are: none)"),
    'worker_table = { a = ["block 0 of a"] }': (
        "worker_table",
        "expected block 0 of a of a; the workers have block 0 of a, block 1",
    ),
    'no_room = ["a"]': ("no_room", "expected a; found none"),
    'state = { "block 5 of a" = "FREED" }': ("state", "there is no block 5 of a: it has had 3 blocks so far"),
    'state = { "the load of a" = "DONE" }': ("state", "there is no such copy as the load of a: 0 loads of a were planned"),
    'holds = { "block 2 of a" = "block 60 of a" }': ("holds", "block 60 of a has no content: a has 209 tokens"),
}


@pytest.mark.parametrize("expected", NOT_SO)
def test_wrong_expectation_is_told_with_what_is_there(expected: str) -> None:
    """Which one, what was expected, what was found; with file, line and step."""
    key, said = NOT_SO[expected]
    verdict = run_scenario(parse_scenario(f'{SCENE}\n[[step]]\ndo = "check"\nexpect.{expected}\n', "x.toml"))

    assert verdict.outcome is (Outcome.OTHER_POLICY if "there is no" in said or "has no content" in said else Outcome.UNSAFE)
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
    'do = "tick"\nfault = "I1"': ("tick", "expected I1 to be broken; every rule holds"),
    'do = "tick"\nuntil = { loaded = ["a"] }': ("tick", "still not after 64 steps: loaded: expected a; found none"),
    'do = "tick"\nexpect.same_as = "stored"\n[[step]]\ndo = "land"\n[[step]]\ndo = "tick"\nexpect.same_as = "stored"': (
        "tick",
        "same_as: something has changed since 'stored'",
    ),
    'do = "lose_report"\ncopy = "the store of a"': ("lose_report", "no report of the store of a by worker 0 is on its way"),
    'do = "settle"': ("settle", "no plan is out"),
    'do = "vanish"\ncontents = ["abcd"]': ("vanish", "0:abcd is not in the store below"),
    'do = "land"\ncopies = ["the demotion of abcd"]': (
        "land",
        "there is no such copy as the demotion of abcd: 0 demotions of abcd",
    ),
    'do = "crowd_host"\nslots = 9': ("crowd_host", "there is no room for 9 more slots in the host"),
}


@pytest.mark.parametrize("steps", UNFIT)
def test_step_that_does_not_go_as_it_says_is_told(steps: str) -> None:
    """What is not there, what was refused, what was not refused, and what did not come."""
    verb, said = UNFIT[steps]
    verdict = run_scenario(parse_scenario(f"{SCENE}\n[[step]]\n{steps}\n", "x.toml"))

    assert verdict.outcome in WRONG
    assert f"({verb}): {said}" in verdict.message


class Clumsy(OurDriver):
    """Changes something before it refuses."""

    def wake(self) -> None:
        self.ledger.add_request("left behind")
        super().wake()


class Broken(OurDriver):
    """Hands out blocks behind everybody's back."""

    def wake(self) -> None:
        self.ledger._state.core.blocks.refs[1] += 1


class Odd(OurDriver):
    """Fails in a way of its own."""

    def wake(self) -> None:
        raise ZeroDivisionError("of 3 by 0")


@pytest.mark.parametrize(
    ("driver", "said"),
    [
        (Clumsy, "it was refused, but has changed something"),
        (Broken, "a rule is broken: I4: refs of place 1 say 2, counted 1"),
        (Odd, "the engine raises ZeroDivisionError: of 3 by 0"),
    ],
)
def test_driver_that_does_wrong_is_told(driver: Callable[[], OurDriver], said: str) -> None:
    """Also where nothing was expected."""
    verdict = run_scenario(parse_scenario(f'{SCENE}\n[[step]]\ndo = "wake"\nrefused = "misuse"\n', "x.toml"), driver)

    assert verdict.outcome is (Outcome.FAILED if driver is Odd else Outcome.UNSAFE)
    assert said in verdict.message


def test_forgotten_wait_is_found_on_the_device() -> None:
    """The ledger's books are in order; what the workers were told is not."""
    scenario = read_scenario(FILES["A01"])
    verdict = run_scenario(scenario, wrong.Forgetful, {"contract": "fence", "scheduling": "sync"})

    assert verdict.outcome is Outcome.UNSAFE
    assert "I1: plan 4 does not wait for copy 1 (the store of a), whose block has a new tenant" in verdict.message


def test_rule_that_a_fault_does_not_break_is_told() -> None:
    """Another rule than the one that was demanded is another case."""
    text = FILES["A08"].read_text(encoding="utf-8").replace('fault = "I2"', 'fault = "I1"')
    verdict = run_scenario(parse_scenario(text, "x"), OurDriver, {"contract": "hold", "events": "none"})

    assert verdict.outcome is Outcome.UNSAFE
    assert (
        "expected I1 to be broken; instead: I2: worker 0: copy 3 (the load of w) does not wait for the event of step"
        in verdict.message
    )


# --- verbs that no case needs -----------------------------------------------------------------------------------------------

OTHER_VERBS = Path(__file__).with_name("other_verbs.txt")
"""No `.toml`: pytest with our plugin would run it a second time."""


@pytest.mark.parametrize("scheduling", ["sync", "async"])
def test_verbs_that_no_case_needs(scheduling: str) -> None:
    """Shared blocks, given-up stores, lost reports, lost workers, and a night."""
    verdict = run_scenario(read_scenario(OTHER_VERBS), OurDriver, {"scheduling": scheduling})

    assert verdict.message == ""


# --- what the runner itself has to get right ---------------------------------------------------------------------------------


def run_text(world: str, *steps: str, driver: Callable[[], Driver] = OurDriver, log: bool = False) -> ScenarioVerdict:
    """Run a scenario of these settings and steps."""
    head = f'id = "X"\ntitle = "x"\ntests = "safety"\n[world]\n{world}\n'
    text = head + "".join(f"[[step]]\n{each}\n" for each in steps)
    return run_scenario(parse_scenario(text, "x.toml"), driver, log=log)


ARRIVE = 'do = "arrive"\nrequest = "a"\nprompt = "abcdef"'
STEP = 'do = "step"'


@pytest.mark.parametrize("stride", ["", "\nstride = 1"])
def test_prompt_that_does_not_fit_is_told(stride: str) -> None:
    """`prepare` goes on as long as the prompt comes on, however many steps that takes, and no longer."""
    prepare = f'do = "prepare"\nprompt = "{"abcdefghij" * 9}"{stride}'
    short = run_text("blocks = 1", prepare)

    assert short.outcome is Outcome.OTHER_POLICY
    assert "step 1 (prepare): there is no room for this prompt: " in short.message
    assert run_text("blocks = 30\nslots = 30", prepare).message == ""


@pytest.mark.parametrize("scheduling", ["sync", "async"])
@pytest.mark.parametrize("groups", ["full:4", "swa:4:6", "full:4,swa:4:6"])
@pytest.mark.parametrize("sampled", range(1, 7))
def test_rollback_breaks_no_rule(groups: str, scheduling: str, sampled: int) -> None:
    """Wherever it leads to, the middle of a block included: what was computed beyond lies behind what is read."""
    verdict = run_text(
        f'blocks = 12\ngroups = "{groups}"\nscheduling = "{scheduling}"',
        ARRIVE,
        STEP,
        'do = "tick"',
        f'do = "step"\ncompute = {{ a = 6 }}\nsettle = false\n[[step]]\ndo = "settle"\nsampled = {{ a = {sampled} }}',
        STEP,
        STEP,
        'do = "tick"',
        f'do = "check"\nexpect.tokens.a = {8 + sampled}',
    )

    assert verdict.message == ""


class Swapping(wrong.Wrong):
    """An engine that mixes its blocks up: the forward pass reads the first block of another request."""

    def told(self, found: EngineStep) -> EngineStep:
        forward = found.orders.forward
        wrong = forward._replace(reads=tuple((block % 2 + 1, content) for block, content in forward.reads))
        return evolve(found, orders=found.orders._replace(forward=wrong))


def test_block_that_begins_otherwise_is_no_rollback() -> None:
    """Content that only is as long is not what is read."""
    verdict = run_text(
        "blocks = 12",
        'do = "arrive"\nrequest = "a"\nprompt = "ab"',
        'do = "arrive"\nrequest = "b"\nprompt = "cdef"',
        STEP,
        STEP,
        driver=Swapping,
    )

    assert verdict.outcome is Outcome.UNSAFE
    assert "I6: worker 0: step 2 reads " in verdict.message


def test_lost_worker_is_no_broken_rule() -> None:
    """What the others compute meanwhile does not lie there, and what is written meanwhile is not there when it comes back."""
    verdict = run_text(
        "blocks = 12\nworkers = 2",
        'do = "lose_worker"\nworker = 0',
        ARRIVE,
        STEP,
        STEP + '\nexpect.holds = { "block 0 of a" = "abcd" }',
        'do = "enter"\nrequest = "e"',
        'do = "allocate"\nrequest = "e"\nas = "x"',
        'do = "seal"\nblocks = ["x"]\ncontents = ["wxyz"]',
        'do = "finish"\nrequest = "e"',
        'do = "regain_worker"\nworker = 0',
        'do = "check"\nexpect.not_on_device = ["abcd", "wxyz"]',
        STEP,
        'do = "step"\nexpect.holds = { "block 0 of a" = "abcd" }',
    )

    assert verdict.message == ""


def test_worker_that_is_refused_to_the_engine_is_not_lost_on_the_device() -> None:
    """A refused step changes neither side."""
    verdict = run_text("workers = 2", 'do = "regain_worker"\nworker = 1\nrefused = "misuse"')

    assert verdict.message == ""


@pytest.mark.parametrize(
    "step",
    [
        'do = "land"\nworker = 7',
        'do = "fail"\nworker = 7',
        'do = "hang"\nworker = 7',
        'do = "report"\ncopy = "nobody"\nworker = 7',
        'do = "lose_report"\ncopy = "nobody"\nworker = 7',
        'do = "lose_worker"\nworker = 7',
        'do = "regain_worker"\nworker = 7',
    ],
)
def test_worker_that_does_not_exist_is_refused(step: str) -> None:
    """As the file is read; and as it is run, where another variant has so many."""
    with pytest.raises(MisuseError, match=r"^x\.toml:\d+: step 1: there is no worker 7: they are numbered from 0 to 1$"):
        run_text("workers = 2", step)
    scenario = parse_scenario(
        f'id = "X"\ntitle = "x"\ntests = "safety"\n[variants]\nworkers = [2, 8]\n[[step]]\n{step}\n', "x.toml"
    )
    verdict = run_scenario(scenario, OurDriver, {"workers": 2})

    assert verdict.outcome is Outcome.OTHER_POLICY
    assert verdict.message.endswith(": there is no worker 7: they are numbered from 0 to 1")


HOST_THAT_CANNOT_BE_FILLED = {
    "no block": ("blocks = 1", 'do = "enter"\nrequest = "q"', 'do = "allocate"\nrequest = "q"\nas = "b"'),
    "content": ("blocks = 4", ARRIVE, STEP, 'do = "drain"'),
    "content behind": ("blocks = 4", 'do = "fill_host"', 'do = "free_host"', 'do = "forget"\ncontents = ["alien0"]'),
    "pool": ('pool = "engine"',),
    "name": ("blocks = 4", 'do = "enter"\nrequest = "alien"'),
}


@pytest.mark.parametrize("case", HOST_THAT_CANNOT_BE_FILLED)
def test_host_that_cannot_be_filled_is_left_as_it_was(case: str) -> None:
    """Wherever it stops: no request, block or slot is left of what was begun."""
    world, *before = HOST_THAT_CANNOT_BE_FILLED[case]
    fill = 'do = "fill_host"\nrefused = "any"\nexpect.same_as = "before"'
    verdict = run_text(world, *before, 'do = "check"\nname = "before"', fill, 'do = "tick"', log=True)

    assert verdict.message == "", verdict.message
    assert not [line for line in verdict.log if "alien" in line and "step" not in line and "refused" not in line]


@pytest.mark.parametrize("values", [4, 2])
def test_variants_are_bounded(values: int, tmp_path: Path) -> None:
    """Thirty of them would be run until the end of the world, and listed as long."""
    variants = "".join(f"v{number} = {json.dumps([str(each) for each in range(values)])}\n" for number in range(30))
    path = tmp_path / "x.toml"
    path.write_text(f'id = "X"\ntitle = "x"\ntests = "safety"\n[variants]\n{variants}[[step]]\ndo = "check"\n')
    for read in (chosen, run_files):
        with pytest.raises(MisuseError, match=r"x\.toml:\d+: variants: there are more than 1,000 combinations \(leave values"):
            list(read([str(path)]))
    path.write_text(
        f'id = "X"\ntitle = "x"\ntests = "safety"\n[variants]\na = {["x"] * 10}\nb = {["y"] * 100}\n[[step]]\ndo = "check"\n'
    )

    assert next(list_files(chosen([str(path)]))) == "X (safety): x; ; 1000 variants"


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ('do = "tick"\ntimes = 99999999999', "'times' must be at most 10,000, not 99999999999"),
        ('do = "walk"\nactions = 999999999', "'actions' must be at most 100,000, not 999999999"),
        ('do = "crowd_host"\nslots = 999999999', "'slots' must be at most 100,000, not 999999999"),
        ('do = "pass_time"\nsteps = 9999999999', "'steps' must be at most 1,000,000,000, not 9999999999"),
        (f'do = "arrive"\nrequest = "a"\nprompt = "{"x" * 5000}"', "a prompt has at most 4,096 letters, not 5,000"),
        ('do = "check"\nexpect.count = { free = "< 99999999999" }', "'free' must be a whole number, or a text like '>= 2'"),
        (f'do = "check"\nexpect.on_device = ["{"9" * 5000}:a"]', "is not content"),
        (f'do = "check"\nexpect.state = {{ "block {"9" * 5000} of a" = "FREED" }}', "is not a block, slot, copy or request"),
    ],
    ids=lambda each: each[:30],
)
def test_number_that_is_too_large_is_refused(step: str, message: str) -> None:
    """What a verb does one after the other is done in a time that can be waited for."""
    with pytest.raises(MisuseError) as refused:
        run_text("", step)

    assert message in str(refused.value)


def test_world_that_is_too_large_is_told() -> None:
    """Each setting by itself has a bound; so have all together, for the device has each place of each worker."""
    verdict = run_text("slots = 100000\nblocks_per_chunk = 64\nworkers = 64", 'do = "check"')

    assert verdict.outcome is Outcome.FAILED
    assert "a world of 409,601,024 places is too large (at most 10,000,000 on all workers together)" in verdict.message


# --- drivers that do not behave ----------------------------------------------------------------------------------------------


class Raises(OurDriver):
    """Raises in a step."""

    def lookup(self, request: str) -> LookedUp:
        """Not a word of blocklife's."""
        raise ZeroDivisionError("a bug\nin two lines")


class RaisesAtStart(OurDriver):
    """Raises before the first step."""

    def start(self, world: EngineSetup) -> None:
        """What Python raises."""
        raise KeyError("no such thing")


class RaisesWhenTold(OurDriver):
    """Raises when it is asked what happened."""

    def transitions(self) -> list[str]:
        """Only asked for a log."""
        raise ZeroDivisionError("no log")


class Exits(OurDriver):
    """Ends the program."""

    def lookup(self, request: str) -> LookedUp:
        """As a script does that has found something wrong."""
        sys.exit(0)


LOOKUP = 'do = "lookup"\nrequest = "a"'


def test_driver_that_raises_shows_where() -> None:
    """The traceback is in the log, from the driver on; without a log the verdict says how to get it."""
    short, long = (run_text("", ARRIVE, LOOKUP, driver=Raises, log=log) for log in (False, True))
    shown = "\n".join(long.log)

    assert short.message.startswith("x.toml:10: step 2 (lookup): the engine raises ZeroDivisionError: a bug")
    assert short.message.endswith("(-v shows the traceback)")
    assert "-v" not in long.message
    assert "Traceback (most recent call last):" in shown
    assert 'raise ZeroDivisionError("a bug' in shown
    assert "running.py" not in shown
    assert "stage.py" not in shown


@pytest.mark.parametrize("log", [False, True])
def test_driver_that_raises_at_start_fails_the_run(log: bool) -> None:
    """As it does in any other call."""
    verdict = run_text("", ARRIVE, driver=RaisesAtStart, log=log)

    assert verdict.outcome is Outcome.FAILED
    assert verdict.message.startswith("x.toml: the engine cannot be made: it raises KeyError: 'no such thing'")
    assert any("raise KeyError" in line for line in verdict.log) is log


def test_driver_that_cannot_tell_what_happened_fails_the_run() -> None:
    """A log is no reason to end the program."""
    verdict = run_text("", ARRIVE, driver=RaisesWhenTold, log=True)

    assert verdict.outcome is Outcome.FAILED
    assert "step 1 (arrive): the engine raises ZeroDivisionError: no log" in verdict.message


def test_driver_that_exits_is_unusable() -> None:
    """It does not end the program of others with a status of its own."""
    with pytest.raises(DriverError, match=r"^x\.toml:10: step 2 \(lookup\): the driver exits with 0 \(a driver must raise"):
        run_text("", ARRIVE, LOOKUP, driver=Exits)


UNUSABLE = {
    "exits when imported": ("import sys\nsys.exit(0)\n", "it exits with 0 when it is imported"),
    "exits when imported, without a status": ("raise SystemExit\n", "it exits with None when it is imported"),
    "raises when imported": ("1 / 0\n", "it cannot be imported (ZeroDivisionError: division by zero)"),
    "exits when made": ("def D():\n    raise SystemExit(3)\n", "the driver exits with 3"),
    "raises when made": ("def D():\n    1 / 0\n", "the driver cannot be made (ZeroDivisionError: division by zero)"),
    "exits when called": ("def start(self, world):\n    raise SystemExit('so')\n", "the driver exits with 'so'"),
}
FITS = "for each in ('start', 'arrive', 'step', 'settle', 'table'):\n    setattr(D, each, globals().get('start'))\n"
"""Behind the code of a module: its class has what a driver needs."""


@pytest.mark.parametrize("case", UNUSABLE)
@pytest.mark.parametrize("verbose", [False, True])
def test_unusable_driver_is_bad_input(
    case: str, verbose: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2 and one line; with -v the traceback before it."""
    code, message = UNUSABLE[case]
    module = f"driver_{abs(hash(case))}_{verbose}"
    (tmp_path / f"{module}.py").write_text(code + ("class D:\n    pass\n" if "D" not in code else "") + FITS)
    monkeypatch.syspath_prepend(tmp_path)
    status = main(["scenario", "run", str(FILES["A01"]), "--driver", f"{module}:D", *(["-v"] if verbose else [])])
    said = capsys.readouterr()
    *shown, line = said.err.splitlines()

    assert (status, said.out) == (2, "")
    assert line.startswith("blocklife: ")
    assert message in line
    assert line.endswith("(-v shows the traceback)") is not verbose
    assert bool(shown) is verbose
    assert ("Traceback (most recent call last):" in shown) is verbose
