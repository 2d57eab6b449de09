"""Runs scenarios, which are test cases written down step by step, against any engine that has a driver.

Rules of this file:

* A run holds, is unsafe, shows another policy, fails, or is not applicable; if it does not hold, one sentence says why. Nothing
  passes silently.
* Every exception of an engine has a meaning: `Unsupported`, that it cannot do this; a misuse or capacity error, that it
  refuses; a fault of the device, that a rule is broken; any other, that it has failed.
* A broken memory rule is unsafe, whatever the scenario tests. An unmet expectation is unsafe in a scenario that tests safety,
  and another policy in one that tests a policy. An engine that does not reach the case shows another policy, too.

`specs/scenarios/README.md` describes the format. `read_scenario` reads a file, `write_scenario` makes one, `run_scenario` runs
one in one variant.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping

from attrs import asdict, field, frozen

from blocklife._theirs import look_here
from blocklife.errors import BlocklifeError, CapacityError, InvariantError, MisuseError
from blocklife.testing.scenarios import OUR_DRIVER
from blocklife.testing.scenarios._driver import SETTINGS, Driver, EngineSetup, Unsupported
from blocklife.testing.scenarios._format import (
    MEMORY_RULES,
    POLICY,
    SAFETY,
    VERBS,
    Scenario,
    ScenarioStep,
    parse_scenario,
    read_scenario,
)
from blocklife.testing.scenarios._judge import judge, missing
from blocklife.testing.scenarios._kinds import Value, plain
from blocklife.testing.scenarios._names import ScenarioNames, StageError
from blocklife.testing.scenarios._scaling import factor_of, scaled_scenario, scaled_settings
from blocklife.testing.scenarios._stage import AnswerError, Stage, UnmetError
from blocklife.testing.scenarios._verbs import VerbStage
from blocklife.testing.scenarios._words import REQUIRED
from blocklife.testing.worlds._device import DeviceFault

__all__ = [
    "DriverError",
    "Outcome",
    "Scenario",
    "ScenarioVerdict",
    "driver_named",
    "parse_scenario",
    "read_scenario",
    "run_scenario",
]

SEEN_IN_CLAIMS = "I6"
"""The rule that is checked only against what the engine claims can be hit."""


class DriverError(MisuseError):
    """A driver that cannot be used, because it raises an error or exits where it must not; the error is the cause."""


class Outcome(enum.Enum):
    """How a run of a scenario ended; the value is the word in its verdict."""

    HELD = "holds"
    """All expectations are met."""
    UNSAFE = "UNSAFE"
    """A memory rule is broken, or an expectation that safety depends on is not met."""
    OTHER_POLICY = "another policy"
    """The engine decides differently; nothing unsafe was seen."""
    FAILED = "FAILS"
    """The engine raises an error, or refuses what it must do."""
    NOT_APPLICABLE = "not applicable"
    """The engine cannot do what the scenario is about."""


WRONG = frozenset({Outcome.UNSAFE, Outcome.OTHER_POLICY, Outcome.FAILED})
"""The outcomes of a run that did not hold."""
METHODS = tuple(name for name, each in vars(Driver).items() if inspect.isfunction(each) and not name.startswith("_"))
"""Every method of a driver, in the order of the protocol."""
NOT_SO = {SAFETY: Outcome.UNSAFE, POLICY: Outcome.OTHER_POLICY}
"""The outcome of an unmet expectation, by what the scenario tests."""


@frozen(kw_only=True)
class ScenarioVerdict:
    """One run of one scenario."""

    scenario: str
    title: str
    tests: str
    """`safety` or `policy`."""
    path: str
    variant: Mapping[str, Value]
    outcome: Outcome
    message: str = ""
    """Where it failed and why; empty if it holds."""
    reason: str = ""
    """Why it does not hold or is not applicable, without the place, so that equal reasons can be counted."""
    lacks: tuple[str, ...] = ()
    """Where a method of the driver was missing: all methods that the scenario needs and the driver does not have."""
    steps: int = 0
    """Steps that were taken."""
    engine: str = ""
    """The name of the engine, as its driver gives it."""
    release: str = ""
    """The release of the engine, likewise."""
    expected: str = ""
    """The public thread of this failure, if a list of known failures has it."""
    log: tuple[str, ...] = field(default=(), repr=False)
    """Every step with its transitions, if requested."""

    def __str__(self) -> str:
        which = ", ".join(f"{key}={plain(value)}" for key, value in self.variant.items())
        said = f": {self.message}" if self.message else ""
        known = f" (expected: {self.expected})" if self.expected else ""
        return f"{self.scenario}{f' ({which})' if which else ''}: {self.outcome.value}{said}{known}"

    def record(self) -> dict[str, object]:
        """The verdict as data for JSON."""
        return {**asdict(self), "outcome": self.outcome.name.lower(), "variant": dict(self.variant), "log": list(self.log)}


class _Over(Exception):  # noqa: N818 - how a run ends
    """The run is over, with this outcome."""

    def __init__(self, outcome: Outcome, message: str = "", reason: str = "", method: str = "") -> None:
        super().__init__(message)
        self.outcome = outcome
        self.message = message
        self.reason = reason
        self.method = method

    @classmethod
    def unsupported(cls, reason: Unsupported, where: str = "") -> _Over:
        """The end of a run that the engine cannot do."""
        return cls(Outcome.NOT_APPLICABLE, f"{where}: {reason}" if where else str(reason), str(reason), reason.method)


def run_scenario(
    scenario: Scenario,
    driver: Callable[[], Driver] | None = None,
    variant: Mapping[str, Value] | None = None,
    *,
    log: bool = False,
) -> ScenarioVerdict:
    """Run one scenario in one variant (the first, if none is named) against a new engine, our own if no driver is given."""
    chosen = next(scenario.each_variant()) if variant is None else variant
    if set(chosen) != set(scenario.variants):
        raise MisuseError(
            f"{scenario.id}: a variant says {list(scenario.variants)}, not {list(chosen)} (take one of each_variant)"
        )
    run = _ScenarioRun(scenario, chosen, log=log)
    end = _Over(Outcome.HELD)
    try:
        run.all(driver or driver_named(OUR_DRIVER))
    except _Over as over:
        end = over
    except SystemExit as left:
        raise DriverError(f"{run.where}: the driver exits with {left.code!r} ({_RAISES})") from left
    if run.differs and end.outcome in (Outcome.HELD, Outcome.OTHER_POLICY):
        end = _Over(
            Outcome.OTHER_POLICY, "; ".join([*run.differs, *([end.message] if end.message else [])]), end.reason or run.reason
        )
    return ScenarioVerdict(
        scenario=scenario.id,
        title=scenario.title,
        tests=scenario.tests,
        path=scenario.path,
        variant=chosen,
        outcome=end.outcome,
        message=end.message,
        reason=end.reason,
        lacks=lacking(scenario, run.driver) if end.method else (),
        steps=run.taken,
        engine=str(getattr(run.driver, "engine_name", "")),
        release=str(getattr(run.driver, "version", "")),
        log=tuple(run.lines),
    )


_RAISES = "a driver must raise an error and not exit"


def _in_words(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {problem}"


def _traceback(problem: BaseException) -> list[str]:
    """The traceback of an engine's error, from the point where the runner called the engine."""
    frames = list(traceback.walk_tb(problem.__traceback__))
    ours = {each.__code__.co_filename for each in (_ScenarioRun.all, VerbStage.take, Stage.run_step, ScenarioNames.look)}
    first = next((at for at, (frame, _) in enumerate(frames) if frame.f_code.co_filename not in ours), 0)
    found = traceback.TracebackException.from_exception(problem)
    found.stack = traceback.StackSummary.from_list(found.stack[first:])
    return "".join(found.format()).splitlines()


def settings_of(scenario: Scenario, variant: Mapping[str, Value]) -> dict[str, Value]:
    """The settings of the world of one variant."""
    return {**scenario.world, **{key: value for key, value in variant.items() if key in SETTINGS}}


def world_of(scenario: Scenario, variant: Mapping[str, Value]) -> EngineSetup:
    """The world of one variant."""
    return EngineSetup.of(settings_of(scenario, variant))


def needs(scenario: Scenario) -> tuple[str, ...]:
    """The methods of a driver without which the scenario is not applicable, besides the required ones."""
    return tuple(each for each in METHODS if each in scenario.needs)


def lacking(scenario: Scenario, driver: object) -> tuple[str, ...]:
    """Those of them that a driver does not have: it leaves them as `Driver` has them, or is no subclass and has none."""
    found = ((each, getattr(type(driver), each, None)) for each in needs(scenario))
    return tuple([each for each, own in found if own in (None, getattr(Driver, each))])


class _ScenarioRun:
    """One run in progress."""

    def __init__(self, scenario: Scenario, variant: Mapping[str, Value], *, log: bool) -> None:
        self.scenario = scenario
        self.variant = variant
        self.log = log
        self.lines: list[str] = []
        self.taken = 0
        self.differs: list[str] = []
        """Unmet policies, in a scenario that tests safety."""
        self.reason = ""
        """The first of them, without its place."""
        self.where = scenario.path
        """The step that is being taken, for messages."""
        self.driver: object = None

    def all(self, make: Callable[[], Driver]) -> None:
        """Take every step of this variant, and check the end. Raises `_Over` if the run ends early."""
        stage = self.stage(make)
        for number, step in enumerate(self.scenario.steps, start=1):
            if all(self.variant[key] in values for key, values in step.when.items()):
                self.say(f"step {number} (line {step.line}): {_told(step)}")
                self.where = f"{self.scenario.path}:{step.line}: step {number} ({step.verb})"
                self.one(stage, step)
                if step.fault:
                    return
        self.where = f"{self.scenario.path}:{self.scenario.end_line}: at the end"
        with self.judged(stage):
            self.expect(stage, self.scenario.end)
            self.compare(stage, self.scenario.end_policy)

    def stage(self, make: Callable[[], Driver]) -> VerbStage:
        """Make a new engine and its device."""
        try:
            driver = make()
        except Unsupported as reason:
            raise _Over.unsupported(reason) from reason
        except BlocklifeError:
            raise
        except Exception as problem:
            raise DriverError(f"{self.where}: the driver cannot be made ({_in_words(problem)})") from problem
        self.driver = driver
        try:
            return VerbStage(driver, EngineSetup.of(self.scaled(getattr(driver, "block_tokens", None))))
        except Unsupported as reason:
            raise _Over.unsupported(reason) from reason
        except (BlocklifeError, StageError) as problem:
            raise _Over(Outcome.FAILED, f"{self.where}: the engine cannot be made: {problem}") from problem
        except Exception as problem:
            raise self.raised("the engine cannot be made: it raises", problem) from problem

    def scaled(self, block_tokens: int | None) -> Mapping[str, Value]:
        """The settings of the world; for an engine whose blocks have one size they, and all steps, are scaled to it."""
        settings = settings_of(self.scenario, self.variant)
        if block_tokens is None:
            return settings
        factor = factor_of(str(settings.get("groups", EngineSetup().groups)), block_tokens)
        if factor == 1:
            return settings
        if not self.scenario.scales:
            raise Unsupported(f"blocks always have {block_tokens} tokens here, and the case counts single tokens")
        self.scenario = scaled_scenario(self.scenario, factor)
        return scaled_settings(settings, factor)

    def one(self, stage: VerbStage, step: ScenarioStep) -> None:
        """Take one step, and check its expectations; if it fails, its note becomes part of the message."""
        try:
            with self.judged(stage):
                if step.fault:
                    self.fault(stage, step)
                else:
                    (self.refused if step.refused else self.take)(stage, step)
                    stage.remember(step.remember, step.name)
                    self.expect(stage, step.expect)
                    self.compare(stage, step.policy)
        except _Over as over:
            if over.outcome in WRONG and step.note:
                over.message += f" (the step: {step.note})"
            with contextlib.suppress(Exception):  # the failed step is what counts, whatever else the engine raises
                self.tell(stage)
            raise
        self.taken += 1
        with self.judged(stage):
            self.tell(stage)

    def take(self, stage: VerbStage, step: ScenarioStep) -> None:
        """Take the verb; ``until`` becomes a function that tells what is missing."""
        until = step.arguments.get("until")
        waited = {"until": lambda: missing(stage, until)} if isinstance(until, Mapping) else {}
        stage.take(VERBS[step.verb], {**step.arguments, **waited}, step.bind)
        stage.check()

    def refused(self, stage: VerbStage, step: ScenarioStep) -> None:
        """The verb must be refused, in the right way, and leave everything as it was."""
        before = stage.asked(stage.picture, None)
        try:
            self.take(stage, step)
        except _refusals(stage.driver) as refusal:
            kind = "capacity" if isinstance(refusal, CapacityError) else "misuse"
            told = isinstance(refusal, MisuseError | CapacityError)
            if told and step.refused not in ("any", kind):
                raise self.not_so(f"expected a refusal for {step.refused}; it was {kind}: {refusal}") from None
            if step.says not in str(refusal) and stage.driver.own_words:
                raise self.not_so(f"expected a refusal with {step.says!r}; it said: {refusal}") from None
            self.say(f"    refused: {refusal}")
        else:
            raise self.not_so("expected a refusal; it was done")
        if before is not None and stage.picture() != before:
            raise self.not_so("it was refused, but has changed something")
        stage.check()

    def fault(self, stage: VerbStage, step: ScenarioStep) -> None:
        """The step must break a rule."""
        try:
            self.take(stage, step)
        except DeviceFault as fault:
            said = stage.names.in_words(str(fault))
            if fault.rule != step.fault:
                raise self.over(Outcome.UNSAFE, f"expected {step.fault} to be broken; instead: {said}") from fault
            self.say(f"    as expected: {said}")
            return
        if step.fault == SEEN_IN_CLAIMS:
            try:
                stage.driver.claims()
            except Unsupported as reason:
                raise _Over.unsupported(reason, f"breaking {step.fault} cannot be seen") from None
        raise self.not_so(f"expected {step.fault} to be broken; every rule holds")

    def expect(self, stage: VerbStage, expected: Mapping[str, Value]) -> None:
        """Check expectations."""
        if problem := judge(stage, expected):
            raise self.not_so(problem)

    def compare(self, stage: VerbStage, policy: Mapping[str, Value]) -> None:
        """Check policies; those that the engine cannot answer are skipped."""
        for key, value in policy.items():
            try:
                problem = missing(stage, {key: value})
            except Unsupported as reason:
                self.say(f"    not asked: {key}: {reason}")
                continue
            if problem:
                self.differs.append(f"{self.where}: {problem}")
                self.reason = self.reason or problem
                self.say(f"    another policy: {problem}")

    @contextlib.contextmanager
    def judged(self, stage: VerbStage) -> Iterator[None]:
        """An error inside ends the run, in the way that it stands for."""
        try:
            yield
        except _Over:
            raise
        except Unsupported as reason:
            raise _Over.unsupported(reason, self.where) from reason
        except DeviceFault as fault:
            outcome = Outcome.UNSAFE if fault.rule in MEMORY_RULES else Outcome.FAILED
            raise self.over(outcome, f"a rule is broken: {stage.names.in_words(str(fault))}") from fault
        except StageError as problem:
            raise self.over(Outcome.OTHER_POLICY, str(problem)) from problem
        except AnswerError as problem:
            raise self.over(Outcome.FAILED, f"the driver is wrong: {problem}") from problem
        except UnmetError as problem:
            raise self.not_so(str(problem)) from problem
        except _refusals(stage.driver) as refusal:
            raise self.over(Outcome.FAILED, f"the engine refuses: {refusal}") from refusal
        except InvariantError as broken:
            raise self.raised("the engine reports a broken invariant:", broken, Outcome.UNSAFE) from broken
        except Exception as problem:
            raise self.raised("the engine raises", problem) from problem

    def over(self, outcome: Outcome, message: str) -> _Over:
        """The end of a run at this step."""
        return _Over(outcome, f"{self.where}: {message}", message)

    def not_so(self, message: str) -> _Over:
        """The end of a run with an unmet expectation."""
        return self.over(NOT_SO[self.scenario.tests], message)

    def raised(self, said: str, problem: Exception, outcome: Outcome = Outcome.FAILED) -> _Over:
        """The end of a run in which the engine raised an error; the traceback goes into the log, if there is one."""
        name = "" if isinstance(problem, InvariantError) else f" {type(problem).__name__}:"
        self.lines += [f"    {line}" for line in _traceback(problem)] if self.log else []
        return self.over(outcome, f"{said}{name} {problem}" + ("" if self.log else " (-v shows the traceback)"))

    def say(self, line: str) -> None:
        """A line of the log."""
        if self.log:
            self.lines.append(line)

    def tell(self, stage: VerbStage) -> None:
        """The transitions of a step, for the log."""
        if self.log:
            none: list[str] = []
            self.lines += [f"    {line}" for line in stage.asked(stage.driver.transitions, none)]


def _refusals(driver: Driver) -> tuple[type[Exception], ...]:
    """The errors by which an engine refuses; a driver need not be a subclass of `Driver`."""
    own: tuple[type[Exception], ...] = getattr(driver, "refusals", ())
    return (MisuseError, CapacityError, *own)


def _told(step: ScenarioStep) -> str:
    takes = ", ".join(f"{key}={plain(value)}" for key, value in step.arguments.items())
    return f"{step.verb} {takes}".rstrip() + (f"  # {step.note}" if step.note else "")


# --- the command line -------------------------------------------------------------------------------------------------------


def driver_named(name: str) -> Callable[[], Driver]:
    """The driver that ``module:Class`` names, also from the current folder. Raises `MisuseError` with the reason."""
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise MisuseError(f"--driver {name}: write module:Class")
    look_here()
    try:
        found = getattr(importlib.import_module(module), attribute)
    except SystemExit as left:
        raise DriverError(f"--driver {name}: it exits with {left.code!r} when it is imported ({_RAISES})") from left
    except Exception as problem:
        raise DriverError(f"--driver {name}: it cannot be imported ({_in_words(problem)})") from problem
    if not callable(found):
        raise MisuseError(f"--driver {name}: {attribute} is not a class")
    missing = [each for each in REQUIRED if not hasattr(found, each)]
    if missing:
        raise MisuseError(
            f"--driver {name}: {attribute} is not a driver (it has no {missing[0]}; see blocklife/testing/scenarios/_driver.py)"
        )
    driver: Callable[[], Driver] = found
    return driver
