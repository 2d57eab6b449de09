"""A driver is all that another engine needs: a toy engine runs the suite, and its planted bug is found on the device.

Goal: the protocol is small enough to be written in an hour, and scenarios judge what an engine does, not what it says.
Method: `naive.Naive` knows nothing of blocklife but the driver's file; `naive.Early` gives blocks back too early, and its own
books are in order.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress

import pytest
from attrs import evolve

from blocklife.errors import MisuseError
from blocklife.states import Job
from blocklife.testing.scenarios._cases import SHIPPED
from blocklife.testing.scenarios._driver import Driver, EngineSetup, EngineStep, LookedUp, SettledPlan, Unsupported
from blocklife.testing.scenarios._format import SAFETY
from blocklife.testing.scenarios._our_driver import OurDriver
from blocklife.testing.scenarios._running import WRONG, Outcome, ScenarioVerdict, driver_named, read_scenario, run_scenario
from blocklife.testing.worlds._device import Landing
from tests import naive

HERE = {"contract": "hold", "scheduling": "sync"}


def run(name: str, driver: type[Driver]) -> ScenarioVerdict:
    """One file in the variant that the toy engine can do."""
    return run_scenario(read_scenario(SHIPPED / f"{name}.toml"), driver, HERE)


@pytest.mark.parametrize("name", ["A01", "A14"])
def test_naive_engine_holds(name: str) -> None:
    """With a hundred lines of dicts and lists."""
    assert run(name, naive.Naive).message == ""


def test_early_release_is_found_on_the_device() -> None:
    """Its own books say that the blocks are free; the device still reads them."""
    verdict = run("A01", naive.Early)

    assert verdict.outcome is Outcome.UNSAFE
    assert verdict.message.endswith(
        ": step 8 (step): a rule is broken: I1: block 1 (first) was handed out while copy 1 (the store of a) touches it"
    )


def test_early_release_passes_where_nobody_comes_after() -> None:
    """A case that is about something else does not fail by it."""
    assert run("A14", naive.Early).outcome is Outcome.HELD


def test_what_an_engine_has_not_is_not_applicable() -> None:
    """A setting, a verb or a question: the reason is the engine's own, or names what is missing."""
    reasons = {
        name: run_scenario(read_scenario(SHIPPED / f"{name}.toml"), naive.Naive, variant)
        for name, variant in (
            ("A01", {"contract": "fence", "scheduling": "sync"}),
            ("A13", HERE),
            ("A20", {"contract": "hold"}),
            ("A45", HERE),
        )
    }

    assert {each.outcome for each in reasons.values()} == {Outcome.NOT_APPLICABLE}
    assert reasons["A01"].message.startswith("this engine has one group of 4 tokens")
    assert reasons["A13"].message.endswith("step 1 (prepare): Naive has no progress")
    assert all(each.message for each in reasons.values())


def test_no_scenario_fails_for_the_naive_engine() -> None:
    """Whatever it cannot do is not applicable, or another policy; nothing is unsafe or raises, and something holds."""
    outcomes = []
    for path in sorted(SHIPPED.glob("*.toml")):
        scenario = read_scenario(path)
        for variant in scenario.each_variant():
            verdict = run_scenario(scenario, naive.Naive, variant)
            outcomes.append(verdict.outcome)
            assert verdict.outcome not in (Outcome.UNSAFE, Outcome.FAILED), verdict

    assert outcomes.count(Outcome.HELD) >= 2


def test_every_method_of_a_driver_says_what_is_missing() -> None:
    """Nothing is silently left out."""
    methods = [name for name, each in vars(Driver).items() if inspect.isfunction(each) and not name.startswith("_")]

    for name in methods:
        parameters = inspect.signature(getattr(Driver, name)).parameters.values()
        needed = [each for each in parameters if each.default is inspect.Parameter.empty and each.name != "self"]
        positional = [None for each in needed if each.kind is each.POSITIONAL_OR_KEYWORD]
        named = {each.name: None for each in needed if each.kind is each.KEYWORD_ONLY}
        with pytest.raises(Unsupported, match=f"Driver has no {name}"):
            getattr(Driver(), name)(*positional, **named)
    assert len(methods) > 50


def test_our_driver_has_everything() -> None:
    """Each method is there, with the parameters of the protocol; or says why not."""
    for name, each in vars(Driver).items():
        if inspect.isfunction(each) and not name.startswith("_"):
            own = getattr(OurDriver, name)

            assert (own is not each) is (name not in ("swap", "split", "publish", "attach")), name
            assert list(inspect.signature(own).parameters) == list(inspect.signature(each).parameters), name


def test_fill_host_refuses_a_host_that_is_not_empty() -> None:
    """It is a scene for the beginning."""
    driver = OurDriver()
    driver.start(EngineSetup())
    driver.fill_host()
    with pytest.raises(MisuseError, match="slot 0: it is READY"):
        driver.fill_host()


# --- naming one -------------------------------------------------------------------------------------------------------------


def test_driver_is_named_by_module_and_class() -> None:
    """What the command line gets."""
    assert driver_named("tests.naive:Naive") is naive.Naive


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tests.naive", "--driver tests.naive: write module:Class"),
        (":Naive", "--driver :Naive: write module:Class"),
        ("tests.none:Naive", "cannot be imported (ModuleNotFoundError: No module named 'tests.none')"),
        ("tests.naive:None_", "cannot be imported (AttributeError"),
        ("tests.naive:SIZE", "SIZE is not a class"),
        ("blocklife.testing.worlds._device:CopyOrder", "CopyOrder is not a driver"),
    ],
)
def test_driver_that_cannot_be_is_refused(name: str, said: str) -> None:
    """In one line, with the reason."""
    with pytest.raises(MisuseError) as raised:
        driver_named(name)

    assert said in str(raised.value)


# --- every case can fail ----------------------------------------------------------------------------------------------------


class Forgetful(OurDriver):
    """Does not tell its workers to wait."""

    def step(
        self, *, compute: Mapping[str, int] | None, let_in: Mapping[str, int] | None, preempt: Sequence[str] = ()
    ) -> EngineStep:
        found = super().step(compute=compute, let_in=let_in, preempt=preempt)
        return evolve(found, orders=found.orders._replace(flushes=()))


class Idle(OurDriver):
    """Does not tell its workers to copy."""

    def step(
        self, *, compute: Mapping[str, int] | None, let_in: Mapping[str, int] | None, preempt: Sequence[str] = ()
    ) -> EngineStep:
        found = super().step(compute=compute, let_in=let_in, preempt=preempt)
        return evolve(found, orders=found.orders._replace(loads=(), stores=()))


class Gullible(OurDriver):
    """Takes every report for a good one."""

    def settle(
        self, reports: Sequence[Landing], *, launched: Sequence[tuple[int, int]] = (), sampled: Mapping[str, int] | None = None
    ) -> SettledPlan:
        return super().settle([each._replace(ok=True) for each in reports], launched=launched, sampled=sampled)


class Upset(OurDriver):
    """Does not expect a report of what it does not know."""

    def settle(
        self, reports: Sequence[Landing], *, launched: Sequence[tuple[int, int]] = (), sampled: Mapping[str, int] | None = None
    ) -> SettledPlan:
        for each in reports:
            if not self.ledger.jobs.is_out(each.job):
                raise KeyError(each.job)
        return super().settle(reports, launched=launched, sampled=sampled)


class Hasty(OurDriver):
    """Takes one worker's report for that of all."""

    def settle(
        self, reports: Sequence[Landing], *, launched: Sequence[tuple[int, int]] = (), sampled: Mapping[str, int] | None = None
    ) -> SettledPlan:
        everybody = [each._replace(worker=rank) for each in reports for rank in range(self.world.workers)]
        return super().settle(everybody, launched=launched, sampled=sampled)


def submitted(driver: OurDriver) -> list[int]:
    """The jobs that the workers have."""
    return [job.number for job in driver.ledger.jobs.alive() if job.state is not Job.PLANNED]


class Careless(OurDriver):
    """Calls the device quiet whenever somebody goes, or time passes."""

    def abort(self, request: str) -> None:
        super().abort(request)
        self.prove_quiet([job.number for job in self.ledger.jobs.alive()])

    def advance(self, steps: int) -> None:
        super().advance(steps)
        if steps > 1:
            self.prove_quiet(submitted(self))


class Stubborn(OurDriver):
    """Forgets nothing, whatever it is told, and finds room in a full host."""

    def reset(self, *, drain: bool) -> None:
        pass

    def renew(self, generation: str) -> None:
        pass

    def crowd_host(self, slots: int) -> bool:
        return True


class Yielding(OurDriver):
    """Does nothing instead of refusing."""

    def free(self, request: str, blocks: Sequence[int]) -> None:
        with suppress(MisuseError):
            super().free(request, blocks)

    def unpin(self, holder: str, contents: Sequence[str]) -> None:
        with suppress(MisuseError):
            super().unpin(holder, contents)

    def cancel(self, job: int) -> None:
        with suppress(MisuseError):
            super().cancel(job)

    def submit(self, job: int) -> None:
        with suppress(MisuseError):
            super().submit(job)

    def agree(self, ranks: Sequence[Mapping[str, int]]) -> Mapping[str, int]:
        return ranks[0] if ranks else {}

    def plan_store(self, request: str, blocks: Sequence[int], contents: Sequence[str]) -> int:
        return super().plan_store(request, blocks, contents) if blocks else 1


class Rash(OurDriver):
    """Gives back at once what a plan still writes, and counts on content that nobody asked for."""

    def finish(self, request: str) -> None:
        if self.request_state(request) == "RUNNING":
            self.preempt(request)
        super().finish(request)

    def abort(self, request: str) -> None:
        super().abort(request)
        self.ledger.pin("nobody", [0])


class OneEvent(OurDriver):
    """Takes one report for that of every copy that is out."""

    def settle(
        self, reports: Sequence[Landing], *, launched: Sequence[tuple[int, int]] = (), sampled: Mapping[str, int] | None = None
    ) -> SettledPlan:
        everything = [each._replace(job=job) for each in reports for job in submitted(self)]
        return super().settle(everything, launched=launched, sampled=sampled)


class Certain(OurDriver):
    """Takes a token for computed once it is known, and a chunk for whole once a part of it is there."""

    def claims(self) -> tuple[Mapping[int, str], Mapping[int, str]]:
        blocks, places = super().claims()
        size = self.world.blocks_per_chunk
        whole = {slot * size + at: "0:whole" for slot in {place // size for place in places} for at in range(size)}
        known = {
            block: f"0:{self.engine.texts[name][: (at + 1) * 4]}"
            for name in self.ledger.requests
            for at, block in enumerate(self.table(name, 0))
            if block and size == 1
        }
        return {**blocks, **known}, {**whole, **places}


class Believing(OurDriver):
    """Counts every guess of a drafter as right, whatever was sampled."""

    def start(self, world: EngineSetup) -> None:
        super().start(world)
        self.engine._right_of = lambda name, known: len(self.engine._guesses[name])  # type: ignore[method-assign]


class Clinging(OurDriver):
    """Lets a request go on whose step is out, though it was preempted."""

    def preempt(self, request: str) -> None:
        if not self.scheduler.plans_out:
            super().preempt(request)


class Unproven(OurDriver):
    """Lets hits of a drafter's groups end with the last block that is there."""

    def start(self, world: EngineSetup) -> None:
        super().start(evolve(world, groups=world.groups.replace("+drafter", "")))


class Uniform(OurDriver):
    """Takes the blocks of every group for as large as those of the first."""

    def start(self, world: EngineSetup) -> None:
        first, *others = world.groups.split(",")
        size = first.split(":")[1]
        super().start(evolve(world, groups=",".join([first, *(f"{each.split(':')[0]}:{size}" for each in others)])))


class Unaligned(OurDriver):
    """Lets a hit end wherever one of its groups has a block's end."""

    def start(self, world: EngineSetup) -> None:
        super().start(world)
        self.scheduler._search._host_units.alignment = 1


class Deaf(OurDriver):
    """Does not hold what another owner reads."""

    def lend(self, request: str) -> Mapping[int, str]:
        found = super().lend(request)
        super().give_back(request)
        return found

    def give_back(self, request: str) -> None:
        pass


class Advertising(OurDriver):
    """Counts blocks that are stored as one as if each of them could be hit alone."""

    def step(
        self, *, compute: Mapping[str, int] | None, let_in: Mapping[str, int] | None, preempt: Sequence[str] = ()
    ) -> EngineStep:
        found = super().step(compute=compute, let_in=let_in, preempt=preempt)
        told = set(self.claims()[1].values())
        hits = {
            name: LookedUp(4 * sum(f"0:{self.engine.texts[name][: 4 * at]}" in told for at in range(1, 5)))
            for name in found.hits
        }
        return evolve(found, hits=hits)


class Deepest(OurDriver):
    """Begins where the deepest state is, whatever the attention before it has."""

    def start(self, world: EngineSetup) -> None:
        super().start(world)
        self.scheduler._search._device_units.full.clear()


class Greedy(OurDriver):
    """Counts for the host what another request has brought already."""

    def step(
        self, *, compute: Mapping[str, int] | None, let_in: Mapping[str, int] | None, preempt: Sequence[str] = ()
    ) -> EngineStep:
        found = super().step(compute=compute, let_in=let_in, preempt=preempt)
        return evolve(found, hits={name: evolve(hit, device_tokens=min(4, hit.tokens)) for name, hit in found.hits.items()})


class Thrifty(OurDriver):
    """Stores only what it knows the name of when it plans: the prompt."""

    def start(self, world: EngineSetup) -> None:
        super().start(evolve(world, prompt_only=True))


class Lingering(OurDriver):
    """Finds the block of a tail under the tail's name, although its request writes on behind it."""

    def start(self, world: EngineSetup) -> None:
        super().start(world)
        self._ends: dict[str, int] = {}

    def step(
        self, *, compute: Mapping[str, int] | None, let_in: Mapping[str, int] | None, preempt: Sequence[str] = ()
    ) -> EngineStep:
        found = super().step(compute=compute, let_in=let_in, preempt=preempt)
        self._ends.update({name: hit.tokens for name, hit in found.hits.items() if hit.tokens % 4})
        return found

    def claims(self) -> tuple[Mapping[int, str], Mapping[int, str]]:
        blocks, places = super().claims()
        running = [(name, end) for name, end in self._ends.items() if self.request_state(name) == "RUNNING"]
        tails = {self.table(name, 0)[end // 4]: f"0:{self.engine.texts[name][:end]}" for name, end in running}
        return {**blocks, **tails}, places


class Tailless(OurDriver):
    """Lets every prefix end with a block."""

    def start(self, world: EngineSetup) -> None:
        super().start(evolve(world, groups=world.groups.partition("/")[0]))


CAN_FAIL: dict[str, type[OurDriver]] = {
    **dict.fromkeys(("A01", "A02", "A39", "A54", "S2b", "S4c", "S5"), Forgetful),
    **dict.fromkeys(("A08", "A45", "S1", "S4"), Idle),
    **dict.fromkeys(("A30", "A32", "A33", "A50"), Gullible),
    **dict.fromkeys(("A16", "A28", "S2"), Hasty),
    **dict.fromkeys(("A03", "A04", "A17", "A25", "A27"), Careless),
    **dict.fromkeys(("A13", "A21", "A40", "A48", "A55", "S4b"), Stubborn),
    **dict.fromkeys(("A07", "A18", "A20", "A23", "A37", "A52"), Yielding),
    **dict.fromkeys(("A05", "A36"), Rash),
    **dict.fromkeys(("A35", "S3", "S3b"), Certain),
    "A11": OneEvent,
    "A14": Upset,
    "B01": Believing,
    "B02": Clinging,
    **dict.fromkeys(("B03", "B04"), Unproven),
    "B05": Gullible,
    "B06": Uniform,
    "B07": Unaligned,
    "B08": Deepest,
    **dict.fromkeys(("B09", "B10"), Deaf),
    "B11": Stubborn,
    "B12": Forgetful,
    "B13": Advertising,
    "B14": Thrifty,
    "B15": Hasty,
    "B16": Greedy,
    "B17": Certain,
    "B18": Forgetful,
    "B19": Gullible,
    "B20": Lingering,
    "B21": Tailless,
    "B22": Believing,
}
"""A wrong engine for each case."""


@pytest.mark.parametrize("name", sorted(CAN_FAIL))
def test_every_case_fails_for_some_wrong_engine(name: str) -> None:
    """None of them says nothing: a wrong engine does not hold; where safety is tested, it is unsafe, or raises."""
    scenario = read_scenario(SHIPPED / f"{name}.toml")
    verdicts = (run_scenario(scenario, CAN_FAIL[name], variant) for variant in scenario.each_variant())
    seen = WRONG - ({Outcome.OTHER_POLICY} if scenario.tests == SAFETY else set())
    failed = next((each for each in verdicts if each.outcome in seen), None)
    print(failed)

    assert failed is not None


def test_every_case_that_runs_can_fail() -> None:
    """The table leaves out only what our engine cannot do."""
    assert {path.stem for path in SHIPPED.glob("*.toml")} - set(CAN_FAIL) == {"A10", "A41", "A42", "A47"}
