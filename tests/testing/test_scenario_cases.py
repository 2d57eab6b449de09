"""What is said of scenarios: which are meant, how their runs ended, and what each needs of a driver.

Goal: a stranger sees from the output alone whether an engine is unsafe or only decides otherwise, and which methods are worth
writing. Method: short scenarios whose runs end in each way; drivers that have just the methods that a case is said to need.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from attrs import evolve

from blocklife.cli import main
from blocklife.errors import MisuseError
from blocklife.testing import (
    CopyOrder,
    Device,
    DeviceFault,
    Driver,
    EngineSetup,
    EngineStep,
    Landing,
    OurDriver,
    Outcome,
    Problem,
    ScenarioVerdict,
    SettledPlan,
    Unsupported,
    parse_scenario,
    run_files,
    run_scenario,
)
from blocklife.testing.scenarios._cases import SHIPPED, chosen, files_of, worlds
from blocklife.testing.scenarios._running import METHODS, needs, read_scenario
from blocklife.testing.scenarios._shipped import near
from blocklife.testing.scenarios._telling import list_files, list_methods, list_records, summary, told
from blocklife.testing.scenarios._words import REQUIRED
from tests.wrong_engines import Wrong

FILES = {path.stem: path for path in sorted(SHIPPED.glob("*.toml"))}
SCENE = """\
id = "X"
title = "A store"
tests = "safety"

[world]
blocks = 6

[[step]]
do = "arrive"
request = "a"
prompt = "abcdefghi"

[[step]]
do = "step"

[[step]]
do = "tick"
until = { out = ["the store of a"] }
"""


def run(steps: str, driver: Callable[[], Driver] = OurDriver, *, tests: str = "safety") -> ScenarioVerdict:
    """The scene, and these steps."""
    text = f"{SCENE}\n{steps}\n".replace('"safety"', f'"{tests}"')
    return run_scenario(parse_scenario(text, "x.toml"), driver)


# --- which are meant --------------------------------------------------------------------------------------------------------


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
        chosen([str(tmp_path / "empty")])


def test_names_stand_for_the_scenarios_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From any folder; a file or folder of the same name there comes first, and what is neither is named as it was given."""
    monkeypatch.chdir(tmp_path)

    assert files_of([]) == list(FILES.values())
    assert files_of(["A01", "S1.toml"]) == [FILES["A01"], FILES["S1"]]
    assert files_of(["vllm"]) == sorted((SHIPPED / "vllm").glob("*.toml"))
    assert files_of(["vllm/V1"]) == [SHIPPED / "vllm" / "V1.toml"]
    assert near("A99") == ["A39"]
    assert near("a01.toml")[0] == "A01"
    assert near("VLLM/v1")[0] == "vllm/V1"
    assert files_of(["A99", "../A01", "vllm/../A01"]) == [Path("A99"), Path("../A01"), Path("vllm/../A01")]
    (tmp_path / "A01").write_text(SCENE, encoding="utf-8")
    assert files_of(["A01"]) == [Path("A01")]


def test_every_scenario_says_what_it_tests() -> None:
    """Both kinds are there, and most are about safety."""
    tests = Counter(read_scenario(path).tests for path in SHIPPED.rglob("*.toml"))

    assert set(tests) == {"safety", "policy"}
    assert tests["safety"] > tests["policy"] > 10


# --- how a run ended --------------------------------------------------------------------------------------------------------


class Lying(OurDriver):
    """Says of itself that a rule is broken."""

    rule = "I4"

    def problems(self, device: Device) -> Iterator[Problem]:
        yield Problem(self.rule, "so it says")


class Slow(Lying):
    """A rule that is not about memory."""

    rule = "I12"


NOT_SO = 'do = "check"\nexpect.out = []'
ENDS: dict[str, tuple[str, type[Driver], Outcome, Outcome]] = {
    "all is so": ('do = "check"', OurDriver, Outcome.HELD, Outcome.HELD),
    "an expectation is not so": (NOT_SO, OurDriver, Outcome.UNSAFE, Outcome.OTHER_POLICY),
    "no refusal": ('do = "preempt"\nrequest = "a"\nrefused = "any"', OurDriver, Outcome.UNSAFE, Outcome.OTHER_POLICY),
    "never at rest": ('do = "hang"\n[[step]]\ndo = "drain"', OurDriver, Outcome.UNSAFE, Outcome.OTHER_POLICY),
    "room where there is none": ('do = "crowd_host"\nslots = 9', OurDriver, Outcome.UNSAFE, Outcome.OTHER_POLICY),
    "not that far": ('do = "land"\ncopies = ["the load of a"]', OurDriver, Outcome.OTHER_POLICY, Outcome.OTHER_POLICY),
    "a name of nothing": (
        'do = "check"\nexpect.holds = { "block 9 of a" = "abcd" }',
        OurDriver,
        Outcome.OTHER_POLICY,
        Outcome.OTHER_POLICY,
    ),
    "never comes": (
        'do = "tick"\nuntil = { loaded = ["a"] }',
        OurDriver,
        Outcome.OTHER_POLICY,
        Outcome.OTHER_POLICY,
    ),
    "a rule of memory": ('do = "check"', Lying, Outcome.UNSAFE, Outcome.UNSAFE),
    "another rule": ('do = "check"', Slow, Outcome.FAILED, Outcome.FAILED),
    "an error": ('do = "wake"', OurDriver, Outcome.FAILED, Outcome.FAILED),
    "not there": ('do = "attach"\nother = "b"', OurDriver, Outcome.NOT_APPLICABLE, Outcome.NOT_APPLICABLE),
}


@pytest.mark.parametrize("case", ENDS)
def test_a_run_ends_by_what_was_seen_and_by_what_it_tests(case: str) -> None:
    """What is unsafe reads differently from another policy, for people and for machines."""
    steps, driver, safety, policy = ENDS[case]
    for tests, expected in (("safety", safety), ("policy", policy)):
        verdict = run(f"[[step]]\n{steps}", driver, tests=tests)

        assert verdict.outcome is expected, str(verdict)
        assert str(verdict).startswith(f"X: {expected.value}")
        assert verdict.record()["outcome"] == expected.name.lower()
        assert verdict.record()["tests"] == tests


UNLIKE = '[[step]]\ndo = "check"\npolicy.out = []\npolicy.no_room = ["a"]\npolicy.count = { free = 3 }\n'


def test_another_policy_does_not_end_a_scenario_about_safety() -> None:
    """It is told with what else there is; what is unsafe after it is still found, and counts for more."""
    told = run(UNLIKE)

    assert told.outcome is Outcome.OTHER_POLICY
    assert told.steps == 4
    assert "step 4 (check): out: expected none; found the store of a; x.toml:" in told.message
    assert told.message.endswith("step 4 (check): no_room: expected a; found none")
    assert run(f"{UNLIKE}[[step]]\n{NOT_SO}").outcome is Outcome.UNSAFE
    assert run(f"{UNLIKE}[[step]]\ndo = 'attach'\nother = 'b'").outcome is Outcome.NOT_APPLICABLE


class Silent(OurDriver):
    """Answers nothing about states."""

    def request_state(self, request: str) -> str:
        return Driver.request_state(self, request)


def test_policy_that_an_engine_cannot_answer_is_left_out() -> None:
    """Where safety rests on the answer, the scenario is not applicable."""
    asked = 'state = { a = "RUNNING" }'

    assert run(f'[[step]]\ndo = "check"\npolicy.{asked}', Silent).outcome is Outcome.HELD
    assert run(f'[[step]]\ndo = "check"\nexpect.{asked}', Silent).outcome is Outcome.NOT_APPLICABLE
    assert run(f'[end]\npolicy.{asked}\npolicy.out = ["the store of a"]', Silent).outcome is Outcome.HELD
    assert run("[end]\npolicy.out = []").outcome is Outcome.OTHER_POLICY


# --- a driver that names wrong owners ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda job: None, "EngineStep.owners must map the job of each copy to its request, not None"),
        (lambda job: ["a"], "EngineStep.owners must map the job of each copy to its request, not ['a']"),
        (
            lambda job: {"a": job},
            "EngineStep.owners names copy 'a', and the copies of this step are 1 (map the job of each order to its request)",
        ),
        (
            lambda job: {job: "req-0"},
            "EngineStep.owners says that copy 1 is of request 'req-0', and the requests are 'a' (use the name that arrive was "
            "given, and '' for a copy of no request)",
        ),
    ],
    ids=["nothing", "list", "reversed", "other names"],
)
def test_wrong_owner_is_named(wrong: Callable[[int], Mapping[int, str]], said: str) -> None:
    """At the step that names it, and not where the scenario asks for a copy of that request."""

    class Misnaming(Wrong):
        def told(self, found: EngineStep) -> EngineStep:
            return evolve(found, owners=wrong(found.orders.stores[0].job)) if found.orders.stores else found

    verdict = run("", Misnaming)
    assert verdict.outcome is Outcome.FAILED
    assert verdict.message.endswith(f": the driver is wrong: {said}"), verdict.message
    assert verdict.message.startswith("x.toml:16: step 3 (tick)"), verdict.message


def test_copy_without_an_owner_is_hinted_at() -> None:
    """Where the scenario asks for a copy of a request, and there is one of which no request is known."""

    class Silent(Wrong):
        def told(self, found: EngineStep) -> EngineStep:
            return evolve(found, owners={})

    verdict = run('[[step]]\ndo = "check"\nexpect.state = { "the store of a" = "DONE" }', Silent)
    assert (
        "no such copy as the store of a: 0 stores of a were planned so far; 1 store has no request (EngineStep.owners)"
        in str(verdict)
    )


# --- an engine that copies block by block -----------------------------------------------------------------------------------


class BlockByBlock(Wrong):
    """Plans one job for each block; blocklife below hears of a copy when all of its jobs have ended."""

    def start(self, world: EngineSetup) -> None:
        super().start(world)
        self.parts: dict[int, tuple[int, ...]] = {}
        self.left: dict[tuple[int, int], dict[int, bool]] = {}

    def told(self, found: EngineStep) -> EngineStep:
        orders = found.orders
        owners: dict[int, str] = {}
        sharers: dict[int, tuple[str, ...]] = {}
        sizes: dict[int, tuple[int, ...]] = {}

        def split(order: CopyOrder) -> list[CopyOrder]:
            jobs = self.parts[order.job] = tuple(order.job * 100 + at for at in range(len(order.source)))
            groups = [group for group, count in enumerate(found.sizes[order.job]) for _ in range(count)]
            for job, group in zip(jobs, groups, strict=True):
                owners[job], sharers[job] = found.owners[order.job], found.sharers[order.job]
                sizes[job] = tuple(int(each == group) for each in range(len(found.sizes[order.job])))
            return [
                CopyOrder(job, order.stores, (order.source[at],), (order.target[at],), sizes[job])
                for at, job in enumerate(jobs)
            ]

        loads = tuple(part for order in orders.loads for part in split(order))
        split_orders = orders._replace(
            flushes=tuple(part for job in orders.flushes for part in self.parts.get(job, (job,))),
            loads=loads,
            stores=tuple(part for order in orders.stores for part in split(order)),
            doubts=tuple((self.parts[job][-1], part) for job, part in orders.doubts),
        )
        return evolve(found, orders=split_orders, owners=owners, sharers=sharers, sizes=sizes)

    def settle(
        self, reports: Sequence[Landing], *, launched: Sequence[tuple[int, int]] = (), sampled: Mapping[str, int] | None = None
    ) -> SettledPlan:
        whole: list[Landing] = []
        for each in reports:
            job = each.job // 100
            heard = self.left.setdefault((job, each.worker), {})
            heard[each.job] = each.ok
            if job not in self.parts:
                whole.append(each)
            elif set(heard) == set(self.parts[job]) and each.job == self.parts[job][-1]:
                whole.append(Landing(job, each.worker, all(heard.values())))
        begun = dict.fromkeys((job // 100, worker) for job, worker in launched)
        return super().settle(whole, launched=list(begun), sampled=sampled)

    def job_state(self, job: int) -> str:
        return super().job_state(job // 100)

    def prove_quiet(self, jobs: Sequence[int]) -> None:
        super().prove_quiet(list(dict.fromkeys(job // 100 for job in jobs)))


ONE_JOB = {"plan_store", "plan_load"}
"""Verbs that say themselves what is one job."""
SPLIT = [
    name
    for name, path in FILES.items()
    if not {step.verb for step in read_scenario(path).steps} & ONE_JOB and name not in ("A10", "A41", "A42", "A47", "A50")
]


@pytest.mark.parametrize("name", SPLIT)
def test_engine_that_copies_block_by_block_is_not_failed_for_it(name: str) -> None:
    """In no variant, and whatever is tested: a copy of the file is what one step plans, in one job or in many."""
    scenario = read_scenario(FILES[name])
    several = False
    for variant in scenario.each_variant():
        made: list[BlockByBlock] = []

        def make(made: list[BlockByBlock] = made) -> BlockByBlock:
            made.append(BlockByBlock())
            return made[-1]

        verdict = run_scenario(scenario, make, variant)
        several = several or any(len(parts) > 1 for parts in made[0].parts.values())

        assert verdict.outcome is Outcome.HELD, str(verdict)
    assert several or name in ONE_BLOCK


ONE_BLOCK = {"A05", "A08", "A18", "A20", "A21", "A35", "A37", "B01", "B02", "B10", "B17", "B29", "B33", "B34", "B39"}
"""Cases in which no copy has two blocks."""


# --- what a driver needs ----------------------------------------------------------------------------------------------------


def only(methods: Iterable[str]) -> type[Driver]:
    """Our engine behind a driver that has these methods and no others."""

    class Narrow(Driver):
        own_words = True

        def __init__(self) -> None:
            self.own = OurDriver()

    def passed_on(name: str) -> Callable[..., object]:
        def call(self: Narrow, *args: object, **named: object) -> object:
            method: Callable[..., object] = getattr(self.own, name)
            return method(*args, **named)

        return call

    for name in methods:
        setattr(Narrow, name, passed_on(name))
    return Narrow


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("name", [name for name in FILES if name not in ("A10", "A41", "A42", "A47", "A50")])
def test_methods_that_a_case_needs_are_enough_and_none_is_too_many(name: str) -> None:
    """With them every variant holds; without any one of them some variant is not applicable, for just that method."""
    scenario = read_scenario(FILES[name])
    variants = list(scenario.each_variant())
    needed = needs(scenario)
    every = only([*REQUIRED, *needed])

    for variant in variants:
        verdict = run_scenario(scenario, every, variant)
        assert verdict.outcome is Outcome.HELD, str(verdict)
    for method in needed:
        fewer = only([*REQUIRED, *(each for each in needed if each != method)])
        reasons = {run_scenario(scenario, fewer, variant).reason for variant in variants}
        assert f"Narrow has no {method}" in reasons


def test_walk_needs_what_it_is_said_to_need() -> None:
    """A short one; it calls the others sooner or later."""
    scenario = read_scenario(FILES["A50"])
    variant = next(each for each in scenario.each_variant() if each["contract"] == "hold")

    assert run_scenario(scenario, only([*REQUIRED, *needs(scenario)]), variant).outcome is Outcome.HELD
    assert {"finish", "prove_quiet", "request_state"} <= set(needs(scenario))


def test_worlds_are_what_an_engine_may_lack() -> None:
    """Sizes are not; a setting that is always as usual is not."""
    text = 'id = "X"\ntitle = "x"\ntests = "safety"\n[world]\nblocks = 3\nworkers = 2\ncontract = "fence"\n'
    text += '[variants]\nscheduling = ["sync", "async"]\npartial_chunks = [true]\nword = ["a"]\n[[step]]\ndo = "check"\n'

    assert worlds(parse_scenario(text)) == {"workers": (2,), "scheduling": ("sync", "async"), "partial_chunks": (True,)}


# --- what is printed --------------------------------------------------------------------------------------------------------


def test_told_is_what_the_command_prints() -> None:
    """Only what does not hold, unless all is wanted; one object a run for machines."""
    paths = [str(FILES["A10"]), str(FILES["A20"])]
    short = list(told(run_files(paths)))
    long = list(told(run_files(paths, log=True), log=True))
    objects = [json.loads(line) for line in told(run_files(paths), as_json=True)]

    assert short == [
        "not applicable: 2 runs: places are never swapped between tiers: a job copies, and both ends stay pinned until it is "
        "over (A10)",
        "4 runs: 2 hold, 0 unsafe, 0 fail, 0 of another policy, 2 not applicable",
        "safety: 1 of 2 scenarios hold, 1 needs what the engine cannot have",
    ]
    assert any(line.startswith("A10 (contract=fence): not applicable: /") for line in long)
    assert "  step 4 (line 27): evict contents=[abcd]  # B keeps it" in long
    assert any(line.startswith("      refused: slot 0: ") for line in long)
    assert [each["outcome"] for each in objects] == ["not_applicable", "not_applicable", "held", "held"]
    assert [bool(each["reason"]) for each in objects] == [True, True, False, False]


def test_summary_counts_scenarios_by_what_they_test() -> None:
    """One that holds in one variant and not in another does not hold; of many names some are enough.

    A method that is missing counts only for scenarios of which no variant runs.
    """

    def verdict(name: str, tests: str, outcome: Outcome, reason: str = "", lacks: tuple[str, ...] = ()) -> ScenarioVerdict:
        return ScenarioVerdict(
            scenario=name,
            title="",
            tests=tests,
            path="",
            variant={},
            outcome=outcome,
            message=reason,
            reason=reason,
            lacks=lacks,
        )

    found = [
        verdict("A", "safety", Outcome.HELD),
        verdict("A", "safety", Outcome.NOT_APPLICABLE, "no time"),
        verdict("B", "safety", Outcome.HELD),
        verdict("B", "safety", Outcome.UNSAFE, "I1"),
        verdict("C", "policy", Outcome.OTHER_POLICY, "later"),
        verdict("C", "policy", Outcome.OTHER_POLICY, "later"),
        *(verdict(f"D{number}", "policy", Outcome.NOT_APPLICABLE, "no host") for number in range(11)),
        verdict("E", "policy", Outcome.NOT_APPLICABLE, "no pin", ("pin", "unpin", "count")),
        verdict("F", "policy", Outcome.NOT_APPLICABLE, "no count", ("count",)),
        verdict("F", "policy", Outcome.NOT_APPLICABLE, "no host"),
        verdict("A", "safety", Outcome.NOT_APPLICABLE, "no swap", ("swap",)),
    ]

    assert list(summary(found)) == [
        "another policy: 2 runs: later (C)",
        "not applicable: 12 runs: no host (D0, D1, D2, D3, D4, D5, D6, D7 and 4 more)",
        "not applicable: 1 run: no time (A)",
        "not applicable: 1 run: no pin (E)",
        "not applicable: 1 run: no count (F)",
        "not applicable: 1 run: no swap (A)",
        "21 runs: 2 hold, 1 unsafe, 0 fail, 2 of another policy, 16 not applicable",
        "add count: 1 more scenario (F)",
        "add pin, unpin: 1 more scenario (E)",
        "safety: 1 of 2 scenarios hold, 1 does not (B)",
        "policy: 0 of 14 scenarios hold, 1 shows another policy (C), 2 need a method that the driver lacks, "
        "11 need what the engine cannot have",
    ]


def test_log_has_steps_and_transitions() -> None:
    """With their notes, rows as the tables print them, and what the engine does otherwise."""
    verdict = run_scenario(parse_scenario(f"{SCENE}\n{UNLIKE}", "x"), log=True)

    assert "step 1 (line 8): arrive request=a, prompt=abcdefghi" in verdict.log
    assert "    block 1: ALLOCATED --plan_store--> PLEDGED" in verdict.log
    assert "    another policy: no_room: expected a; found none" in verdict.log
    assert run_scenario(parse_scenario(SCENE, "x")).log == ()


def test_note_of_a_failing_step_is_said() -> None:
    """The words of whoever wrote the case down."""
    verdict = run(f'[[step]]\nnote = "nobody is there"\n{NOT_SO}')

    assert verdict.message.endswith("expected none; found the store of a (the step: nobody is there)")


def test_list_says_what_there_is_and_what_it_needs() -> None:
    """Two lines a file; by method; and one object a file for machines."""
    lines = list(list_files(chosen()))
    methods = {line.split()[0]: line.split()[1:] for line in list_methods(chosen())}
    records = {each["scenario"]: each for each in map(json.loads, list_records(chosen()))}
    at = lines.index("A14 (safety, reports): A report for a job whose owner is gone, or that nobody knows, is counted and no "
                     "accident (vllm#43226); I3; 4 variants")  # fmt: skip

    assert len(lines) == 2 * len(FILES)
    assert lines[at + 1] == "    needs worlds contract=fence|hold, scheduling=sync|async; methods finish"
    assert methods["finish"][0] == str(sum("finish" in each["methods"] for each in records.values()))
    assert "A14" in methods["finish"]
    assert set(METHODS) - set(REQUIRED) <= set(methods)
    assert set(records) == set(FILES)
    assert records["S2"]["tests"] == "policy"


def test_device_fault_is_what_a_broken_rule_raises() -> None:
    """The runner and the device speak of rules in the same way."""
    assert DeviceFault("I1", "x").rule == "I1"


STATUSES = {"holds": ('do = "check"', 0), "is unsafe": (NOT_SO, 1), "raises": ('do = "wake"', 1), "differs": (UNLIKE[9:], 3)}


def test_scenario_of_another_policy_is_not_counted_with_the_unsafe() -> None:
    """It is told as what it is; one that is unsafe in another variant does not hold."""
    other, unsafe = run(UNLIKE), run(f"{UNLIKE}[[step]]\n{NOT_SO}")

    assert list(summary([other]))[-1] == "safety: 0 of 1 scenarios hold, 1 shows another policy (X)"
    assert list(summary([other, unsafe]))[-1] == "safety: 0 of 1 scenarios hold, 1 does not (X)"


@pytest.mark.parametrize("case", STATUSES)
def test_status_tells_what_is_unsafe_from_another_policy(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1 for what is wrong, 3 where the engine only decides otherwise."""
    steps, status = STATUSES[case]
    path = tmp_path / "x.toml"
    path.write_text(f"{SCENE}\n[[step]]\n{steps}\n", encoding="utf-8")

    assert main(["scenario", "run", str(path)]) == status
    assert capsys.readouterr().out.count("\n") >= 2


def test_show_prints_the_file(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """As it is, so that it can be the beginning of one's own."""
    assert main(["scenario", "show", "A01", "vllm/V1"]) == 0
    assert capsysbinary.readouterr().out == FILES["A01"].read_bytes() + (SHIPPED / "vllm" / "V1.toml").read_bytes()


class Claimless(OurDriver):
    """Our engine, which does not say what can be hit, nor what it finds broken."""

    def claims(self) -> tuple[Mapping[int, str], Mapping[int, str]]:
        raise Unsupported("Claimless has no claims")

    def problems(self, device: Device) -> Iterator[Problem]:
        raise Unsupported("Claimless has no problems")


def test_fault_that_cannot_be_seen_is_not_applicable() -> None:
    """An engine is not called unsafe because it does not say what can be hit."""
    verdicts = list(run_files([str(FILES["A11"])], Claimless))

    assert {each.outcome for each in verdicts if each.variant["events"] == "shared"} == {Outcome.NOT_APPLICABLE}
    assert {each.message for each in verdicts if each.variant["events"] == "shared"} == {
        "breaking I6 cannot be seen: Claimless has no claims"
    }


class Sixteen(OurDriver):
    """Blocks of 16 tokens, whatever a world says."""

    block_tokens = 16


class SixteenFull(Sixteen):
    def start(self, world: EngineSetup) -> None:
        self.only(world, groups="full:16", contract="fence", scheduling="sync")
        super().start(world)


def test_scenarios_are_scaled_to_the_blocks_of_an_engine() -> None:
    """Those that count single tokens, and worlds that no whole number makes larger, are what such an engine cannot have."""
    verdicts = list(run_files(driver=SixteenFull))
    reasons = {each.scenario: each.reason for each in verdicts if each.outcome is Outcome.NOT_APPLICABLE}
    ran = {each.scenario for each in verdicts if each.outcome is not Outcome.NOT_APPLICABLE}

    assert all(each.outcome in (Outcome.HELD, Outcome.NOT_APPLICABLE) for each in verdicts)
    assert len(ran) > 40
    assert not ran & {"A35", "B01", "B02", "B21", "B22", "S4c"}
    assert reasons["A35"] == "blocks always have 16 tokens here, and the case counts single tokens"
    assert reasons["B07"] == "groups is always full:16 here"


@pytest.mark.parametrize("name", ["B05", "B06", "S1", "S4"])
def test_windows_and_states_are_scaled_too(name: str) -> None:
    """Everything in a world that counts tokens becomes larger by the same factor."""
    assert {each.outcome for each in run_files([name], Sixteen)} == {Outcome.HELD}


def test_blocks_that_no_whole_number_makes_are_refused() -> None:
    """Not even a larger block is a multiple of every other."""

    class Six(OurDriver):
        block_tokens = 6

    assert {each.reason for each in run_files(["A01"], Six)} == {
        "blocks always have 6 tokens here, and full:4 cannot be scaled to that"
    }


def test_case_that_says_that_it_counts_tokens_does() -> None:
    """Scaled all the same, each of them fails: no case is kept from other engines without need."""
    for name in ("A35", "B01", "B02", "B21", "B22", "S4c"):
        scenario = evolve(read_scenario(FILES[name]), scales=True)
        runs = [run_scenario(scenario, Sixteen, variant) for variant in scenario.each_variant()]
        assert any(each.outcome is not Outcome.HELD for each in runs), name


def test_verdict_names_every_method_that_is_missing() -> None:
    """Also those that the run would have come to later."""

    class Few(OurDriver):
        pin = Driver.pin
        evict = Driver.evict

    (verdict, *_) = run_files(["A20"], Few)
    (other, *_) = run_files(["A10"], OurDriver)

    assert verdict.reason == "Few has no pin"
    assert verdict.lacks == ("pin", "evict")
    assert verdict.record()["lacks"] == ("pin", "evict")
    assert other.outcome is Outcome.NOT_APPLICABLE
    assert other.lacks == ()  # it says why: there is nothing to add
