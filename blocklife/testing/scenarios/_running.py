"""Runs scenarios, which are test cases written down step by step, against any engine that has a driver.

Rules of this file:

* A scenario holds, fails with one sentence, or is not applicable with a reason. Nothing passes silently.
* Whatever an engine raises is an answer: `Unsupported` says that it cannot, a misuse or capacity error that it refuses, a fault
  of the device that a rule is broken, and any other exception that it has failed.

`specs/scenarios/README.md` tells the format. `read_scenario` reads a file, `write_scenario` makes one, `run_scenario` runs one
in one variant, and `run_files` is the command line's ``scenario run``.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from attrs import asdict, field, frozen

from blocklife.errors import BlocklifeError, CapacityError, InvariantError, MisuseError
from blocklife.testing.scenarios._driver import Driver, EngineSetup, Unsupported
from blocklife.testing.scenarios._format import (
    Scenario,
    ScenarioError,
    ScenarioStep,
    parse_scenario,
    read_scenario,
    write_scenario,
)
from blocklife.testing.scenarios._judge import judge
from blocklife.testing.scenarios._our_driver import OurDriver
from blocklife.testing.scenarios._schema import SETTINGS, Value
from blocklife.testing.scenarios._stage import Stage, StageError
from blocklife.testing.worlds._device import DeviceFault

__all__ = [
    "OUR_DRIVER",
    "DriverError",
    "Outcome",
    "Scenario",
    "ScenarioError",
    "ScenarioStep",
    "ScenarioVerdict",
    "driver_named",
    "list_files",
    "parse_scenario",
    "read_scenario",
    "run_files",
    "run_scenario",
    "write_scenario",
]

OUR_DRIVER = "blocklife.testing:OurDriver"
"""The name of our own driver."""


class DriverError(MisuseError):
    """A driver that cannot be used, since it raises an error or exits where it must not; the error is the cause."""


class Outcome(enum.Enum):
    """How a scenario ended."""

    HELD = "all that was expected is so"
    FAILED = "something is not as expected"
    NOT_APPLICABLE = "the engine cannot do what the scenario is about"


@frozen(kw_only=True)
class ScenarioVerdict:
    """One run of one scenario."""

    scenario: str
    title: str
    path: str
    variant: Mapping[str, Value]
    outcome: Outcome
    message: str = ""
    """Where it failed and why; empty where everything held."""
    steps: int = 0
    """Steps that were taken."""
    log: tuple[str, ...] = field(default=(), repr=False)
    """Every step with its transitions, if requested."""

    def __str__(self) -> str:
        which = ", ".join(f"{key}={_plain(value)}" for key, value in self.variant.items())
        said = {Outcome.HELD: "holds", Outcome.FAILED: "FAILS", Outcome.NOT_APPLICABLE: "not applicable"}[self.outcome]
        return f"{self.scenario}{f' ({which})' if which else ''}: {said}" + (f": {self.message}" if self.message else "")

    def record(self) -> dict[str, object]:
        """For machines."""
        return {**asdict(self), "outcome": self.outcome.name.lower(), "variant": dict(self.variant), "log": list(self.log)}


def _plain(value: Value) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


class _Over(Exception):  # noqa: N818 - how a run ends
    """The run is over, and how."""

    def __init__(self, outcome: Outcome, message: str = "") -> None:
        super().__init__(message)
        self.outcome = outcome
        self.message = message


def run_scenario(
    scenario: Scenario,
    driver: Callable[[], Driver] = OurDriver,
    variant: Mapping[str, Value] | None = None,
    *,
    log: bool = False,
) -> ScenarioVerdict:
    """Run one scenario in one variant (the first, if none is named) against a new engine."""
    chosen = next(scenario.each_variant()) if variant is None else variant
    if set(chosen) != set(scenario.variants):
        raise MisuseError(
            f"{scenario.id}: a variant says {list(scenario.variants)}, not {list(chosen)} (take one of each_variant)"
        )
    run = _ScenarioRun(scenario, chosen, log=log)
    try:
        run.all(driver)
    except _Over as over:
        outcome, message = over.outcome, over.message
    except SystemExit as left:
        raise DriverError(f"{run.where}: the driver exits with {left.code!r} ({_RAISES})") from left
    else:
        outcome, message = Outcome.HELD, ""
    return ScenarioVerdict(
        scenario=scenario.id,
        title=scenario.title,
        path=scenario.path,
        variant=chosen,
        outcome=outcome,
        message=message,
        steps=run.taken,
        log=tuple(run.lines),
    )


_RAISES = "a driver raises what is wrong, and ends no program"


def _in_words(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {problem}"


def _traceback(problem: BaseException) -> list[str]:
    """The traceback of what an engine has raised, from where the runner has called it."""
    frames = list(traceback.walk_tb(problem.__traceback__))
    ours = {_ScenarioRun.all.__code__.co_filename, Stage.take.__code__.co_filename}
    first = next((at for at, (frame, _) in enumerate(frames) if frame.f_code.co_filename not in ours), 0)
    found = traceback.TracebackException.from_exception(problem)
    found.stack = traceback.StackSummary.from_list(found.stack[first:])
    return "".join(found.format()).splitlines()


def world_of(scenario: Scenario, variant: Mapping[str, Value]) -> EngineSetup:
    """The world of one variant."""
    settings = {**scenario.world, **{key: value for key, value in variant.items() if key in SETTINGS}}
    make: Callable[..., EngineSetup] = EngineSetup  # the reader has checked every type
    return make(**settings)


class _ScenarioRun:
    """One run in progress."""

    def __init__(self, scenario: Scenario, variant: Mapping[str, Value], *, log: bool) -> None:
        self.scenario = scenario
        self.variant = variant
        self.log = log
        self.lines: list[str] = []
        self.taken = 0
        self.where = scenario.path

    def all(self, make: Callable[[], Driver]) -> None:
        """Every step that this variant takes, and the end. Raises `_Over` where that is not all."""
        stage = self.stage(make)
        for number, step in enumerate(self.scenario.steps, start=1):
            if all(self.variant[key] in values for key, values in step.when.items()):
                self.say(f"step {number} (line {step.line}): {_told(step)}")
                self.where = f"{self.scenario.path}:{step.line}: step {number} ({step.verb})"
                self.noted(stage, step, self.where)
                self.taken += 1
                self.guarded(stage, self.where, lambda: self.tell(stage))
                if step.fault:
                    return
        self.where = where = f"{self.scenario.path}:{self.scenario.end_line}: at the end"
        self.guarded(stage, where, lambda: self.expect(stage, self.scenario.end, where))

    def stage(self, make: Callable[[], Driver]) -> Stage:
        """A new engine and its device."""
        try:
            driver = make()
        except Unsupported as reason:
            raise _Over(Outcome.NOT_APPLICABLE, str(reason)) from reason
        except BlocklifeError:
            raise
        except Exception as problem:
            raise DriverError(f"{self.where}: the driver cannot be made ({_in_words(problem)})") from problem
        try:
            return Stage(driver, world_of(self.scenario, self.variant))
        except Unsupported as reason:
            raise _Over(Outcome.NOT_APPLICABLE, str(reason)) from reason
        except (BlocklifeError, StageError) as problem:
            raise _Over(Outcome.FAILED, f"{self.scenario.path}: the engine cannot be made: {problem}") from problem
        except Exception as problem:
            raise self.raised(f"{self.scenario.path}: the engine cannot be made: it raises", problem) from problem

    def noted(self, stage: Stage, step: ScenarioStep, where: str) -> None:
        """One step; if it fails, its note is part of the message."""
        try:
            self.one(stage, step, where)
        except _Over as over:
            if over.outcome is Outcome.FAILED and step.note:
                over.message += f" (the step: {step.note})"
            with contextlib.suppress(Exception):  # the step is what has failed, whatever the engine still says
                self.tell(stage)
            raise

    def one(self, stage: Stage, step: ScenarioStep, where: str) -> None:
        """One step, which succeeds, is refused or breaks a rule, as expected; then its expectations."""
        if step.refused:
            self.guarded(stage, where, lambda: self.refused(stage, step, where))
        elif step.fault:
            self.fault(stage, step, where)
            return
        else:
            self.guarded(stage, where, lambda: self.take(stage, step))
        self.guarded(stage, where, lambda: stage.remember(step))
        self.guarded(stage, where, lambda: self.expect(stage, step.expect, where))

    def take(self, stage: Stage, step: ScenarioStep) -> None:
        """The verb, with the names of what it is told to wait for."""
        until = step.arguments.get("until")
        if isinstance(until, Mapping):
            waited = {**step.arguments, "until": lambda: judge(stage, until)}
            stage.take(step.verb, waited, step.bind)
        else:
            stage.take(step.verb, step.arguments, step.bind)
        stage.check()

    def refused(self, stage: Stage, step: ScenarioStep, where: str) -> None:
        """The verb must be refused, in the right way, and leave everything as it was."""
        before = stage.asked(stage.picture, None)
        try:
            self.take(stage, step)
        except (MisuseError, CapacityError) as refusal:
            kind = "capacity" if isinstance(refusal, CapacityError) else "misuse"
            if step.refused not in ("any", kind):
                raise _Over(
                    Outcome.FAILED, f"{where}: expected a refusal for {step.refused}; it was {kind}: {refusal}"
                ) from None
            if step.says not in str(refusal) and stage.driver.own_words:
                raise _Over(Outcome.FAILED, f"{where}: expected a refusal with {step.says!r}; it said: {refusal}") from None
            self.say(f"    refused: {refusal}")
        else:
            raise _Over(Outcome.FAILED, f"{where}: expected a refusal; it was done")
        if before is not None and stage.picture() != before:
            raise _Over(Outcome.FAILED, f"{where}: it was refused, and has changed something all the same")
        stage.check()

    def fault(self, stage: Stage, step: ScenarioStep, where: str) -> None:
        """The step must break a rule."""
        try:
            self.guarded(stage, where, lambda: self.take(stage, step), faults=True)
        except DeviceFault as fault:
            if fault.rule != step.fault:
                raise _Over(
                    Outcome.FAILED, f"{where}: expected that {step.fault} breaks; what broke is {stage.in_words(str(fault))}"
                ) from fault
            self.say(f"    as expected: {stage.in_words(str(fault))}")
            return
        raise _Over(Outcome.FAILED, f"{where}: expected that {step.fault} breaks; every rule holds")

    def expect(self, stage: Stage, expected: Mapping[str, Value], where: str) -> None:
        """What must hold now."""
        if problem := judge(stage, expected):
            raise _Over(Outcome.FAILED, f"{where}: {problem}")

    def guarded(self, stage: Stage, where: str, act: Callable[[], None], *, faults: bool = False) -> None:
        """Call *act*; an error that it raises ends the run."""
        try:
            act()
        except _Over:
            raise
        except Unsupported as reason:
            raise _Over(Outcome.NOT_APPLICABLE, f"{where}: {reason}") from reason
        except DeviceFault as fault:
            if faults:
                raise
            raise _Over(Outcome.FAILED, f"{where}: a rule is broken: {stage.in_words(str(fault))}") from fault
        except StageError as problem:
            raise _Over(Outcome.FAILED, f"{where}: {problem}") from problem
        except (MisuseError, CapacityError) as refusal:
            raise _Over(Outcome.FAILED, f"{where}: the engine refuses: {refusal}") from refusal
        except InvariantError as broken:
            raise self.raised(f"{where}: the engine finds itself broken:", broken) from broken
        except Exception as problem:
            raise self.raised(f"{where}: the engine raises", problem) from problem

    def raised(self, said: str, problem: Exception) -> _Over:
        """The end of a run in which the engine has raised an error: the traceback goes into the log, if there is one."""
        name = "" if isinstance(problem, InvariantError) else f" {type(problem).__name__}:"
        self.lines += [f"    {line}" for line in _traceback(problem)] if self.log else []
        return _Over(Outcome.FAILED, f"{said}{name} {problem}" + ("" if self.log else " (-v shows the traceback)"))

    def say(self, line: str) -> None:
        """A line of the log."""
        if self.log:
            self.lines.append(line)

    def tell(self, stage: Stage) -> None:
        """The transitions of a step, for the log."""
        if self.log:
            none: list[str] = []
            self.lines += [f"    {line}" for line in stage.asked(stage.driver.transitions, none)]


def _told(step: ScenarioStep) -> str:
    takes = ", ".join(f"{key}={_value(value)}" for key, value in step.arguments.items())
    return f"{step.verb} {takes}".rstrip() + (f"  # {step.note}" if step.note else "")


def _value(value: Value) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(_value, value)) + "]"
    return _plain(value)


# --- the command line -------------------------------------------------------------------------------------------------------


def driver_named(name: str) -> Callable[[], Driver]:
    """The driver that ``module:Class`` names, from the present folder too. Raises `MisuseError` with the reason."""
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise MisuseError(f"--driver {name}: write module:Class")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute)
    except SystemExit as left:
        raise DriverError(f"--driver {name}: it exits with {left.code!r} when it is imported ({_RAISES})") from left
    except Exception as problem:
        raise DriverError(f"--driver {name}: it cannot be imported ({_in_words(problem)})") from problem
    if not callable(found):
        raise MisuseError(f"--driver {name}: {attribute} is no class")
    missing = [each for each in ("start", "arrive", "step", "settle", "table") if not hasattr(found, each)]
    if missing:
        raise MisuseError(
            f"--driver {name}: {attribute} is no driver (it has no {missing[0]}; see blocklife/testing/scenarios/_driver.py)"
        )
    driver: Callable[[], Driver] = found
    return driver


def files_of(paths: Sequence[str]) -> list[Path]:
    """The given files, and all scenario files of the given folders. Refuses folders that have none."""
    found: list[Path] = []
    for text in paths:
        path = Path(text)
        found += sorted(path.glob("*.toml")) if os.path.isdir(path) else [path]
    if not found:
        raise MisuseError(f"{', '.join(paths)}: no scenario there")
    return found


def run_files(
    paths: Sequence[str], driver: Callable[[], Driver] = OurDriver, *, log: bool = False
) -> Iterator[ScenarioVerdict]:
    """Run every variant of every file. All files are read first: a malformed one is refused before anything runs."""
    scenarios = [read_scenario(path) for path in files_of(paths)]
    for scenario in scenarios:
        for variant in scenario.each_variant():
            yield run_scenario(scenario, driver, variant, log=log)


def told(verdicts: Iterable[ScenarioVerdict], *, log: bool = False, as_json: bool = False) -> Iterator[str]:
    """What the command prints: failures and what is not applicable, all of it with *log*, then how many there were."""
    found = []
    for each in verdicts:
        found.append(each)
        if as_json:
            yield json.dumps(each.record())
        elif log:
            yield from (f"{each.scenario}: {each.title}", *(f"  {line}" for line in each.log), str(each), "")
        elif each.outcome is not Outcome.HELD:
            yield str(each)
    if not as_json:
        yield summary(found)


def list_files(paths: Sequence[str]) -> list[str]:
    """One line for each scenario: its name, what it is about, where it comes from."""
    lines = []
    for path in files_of(paths):
        each = read_scenario(path)
        runs = sum(1 for _ in each.each_variant())
        source = f" ({each.source})" if each.source else ""
        lines.append(f"{each.id}: {each.title}{source}; {', '.join(each.invariants)}; {runs} variant{'s' * (runs != 1)}")
    return lines


def summary(verdicts: Iterable[ScenarioVerdict]) -> str:
    """How many of each."""
    found = list(verdicts)
    held, failed, others = ([each for each in found if each.outcome is outcome] for outcome in Outcome)
    return f"{len(found)} runs: {len(held)} hold, {len(failed)} fail, {len(others)} not applicable"
