"""The pytest plugin: fixtures for tests of engines, scenario files as tests, and a report of what a test run has covered.

Rules of this file:

* Whoever does not use it pays nothing: everything is imported where it is first needed, and no hook is called for each test.
* What is collected was asked for: a ``.toml`` file is a scenario only where it begins as one, and was named or lies in a folder
  that was named (on the command line, or in ``testpaths``). All others are left alone.

pytest finds it through its entry point. ``pytest --help`` lists the options, ``pytest --fixtures`` the fixtures.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol

import pytest

from blocklife.testing.scenarios import OUR_DRIVER

if TYPE_CHECKING:
    from blocklife.ledger import Checking, Contract, Ledger
    from blocklife.lifecycle import Lifecycle
    from blocklife.testing.plugin._coverage import Coverage
    from blocklife.testing.plugin._visit import Visit
    from blocklife.testing.scenarios._kinds import Value
    from blocklife.testing.scenarios._running import Scenario, ScenarioVerdict
    from blocklife.testing.worlds._engine import Settings

REPORT, REQUIRE, DRIVER = "--blocklife-report", "--blocklife-require-rows", "blocklife_driver"
OWN = "blocklife_lifecycles"
_HANDED_OVER = "blocklife_coverage"
"""Under which name a worker of pytest-xdist hands over what it has covered."""
_LISTED = 12
"""Rows that were never taken are named in the report up to so many."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options, and the driver of scenarios."""
    group = parser.getgroup("blocklife", "lifecycles of KV-cache blocks")
    group.addoption(
        REPORT,
        nargs="?",
        const="",
        metavar="FILE",
        help="tell which states and rows of the four tables, and of your own lifecycles, were taken; as JSON in FILE (.json)",
    )
    group.addoption(REQUIRE, action="store_true", help="fail the run if a row of these tables was never taken, and name it")
    parser.addini(DRIVER, f"module:Class of the engine that scenario files are run against (default {OUR_DRIVER})", default="")
    parser.addini(OWN, "module:Class of each lifecycle of your own that the report counts, too", type="linelist")


def pytest_configure(config: pytest.Config) -> None:
    """Count all ledgers, where the options say so."""
    report, require = config.getoption(REPORT), config.getoption(REQUIRE)
    if report is None and not require:
        return
    if report and not report.endswith(".json"):
        raise pytest.UsageError(f"{REPORT} {report}: the name of its file ends in .json (write {REPORT}=FILE.json)")
    if report and not Path(report).absolute().parent.is_dir():
        raise pytest.UsageError(f"{REPORT} {report}: there is no folder {Path(report).parent} (make it, or name another)")
    from blocklife.testing.plugin._coverage import Coverage

    coverage = Coverage(own={each.table.name: each for each in map(_own_lifecycle, config.getini(OWN))})
    config.pluginmanager.register(_Reporter(config, coverage, report or "", require=require), "blocklife-coverage")


def _own_lifecycle(name: str) -> type[Lifecycle]:
    """The lifecycle that ``module:Class`` names."""
    from blocklife.lifecycle import Lifecycle

    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as problem:
        hint = "if it lies beside pytest.ini, add the line pythonpath = . there"
        raise pytest.UsageError(f"{OWN}: {name}: {problem} ({hint})") from problem
    except (ImportError, AttributeError, ValueError) as problem:
        raise pytest.UsageError(f"{OWN}: {name}: {problem} (write module:Class, one a line)") from problem
    if not isinstance(found, type) or not issubclass(found, Lifecycle):
        raise pytest.UsageError(f"{OWN}: {name} is not a Lifecycle")
    return found


# --- fixtures ---------------------------------------------------------------------------------------------------------------


class MakeLedger(Protocol):
    """The type of the fixture `blocklife_ledger`."""

    def __call__(
        self,
        *,
        contract: Contract | None = None,
        checking: Checking | None = None,
        incarnation: int = 1,
        deadline: float = 64.0,
        own_pool: bool = True,
        **limits: int,
    ) -> Ledger:
        """A new ledger. *limits* are those of `Limits`; what is not said is small."""
        ...


class MakeVisit(Protocol):
    """The type of the fixture `blocklife_world`."""

    def __call__(self, *requests: str, faults: Mapping[str, int] | None = None, engine: Settings | None = None) -> Visit:
        """A new world, at its beginning: requests as ``prompt.output``, and how often each fault may happen."""
        ...


@pytest.fixture
def blocklife_ledger() -> MakeLedger:
    """A function that makes ledgers all of whose verbs are followed by all invariants; a violation fails the test."""
    from blocklife.testing.plugin._watched import make_watched

    def found(message: str) -> NoReturn:
        __tracebackhide__ = True
        pytest.fail(message)  # what it raises is no `Exception`, so that an engine does not swallow it

    return make_watched(found)


@pytest.fixture
def blocklife_world() -> MakeVisit:
    """A function that makes small worlds, in which a test takes named actions and asks what holds (`Visit`)."""
    from blocklife.testing.plugin._visit import make_visit

    return make_visit


# --- what was covered -------------------------------------------------------------------------------------------------------


class _Reporter:
    """Counts what all ledgers of a run do, those of the workers of pytest-xdist included."""

    def __init__(self, config: pytest.Config, coverage: Coverage, path: str, *, require: bool) -> None:
        self.config = config
        self.coverage = coverage
        self.path = path
        self.require = require
        self.lost = 0
        """Workers that handed nothing over."""
        self.trouble = ""
        """Why the report could not be written."""
        coverage.listen()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hand over the coverage of this process, or report that of the whole run."""
        self.coverage.count()
        handed_over = getattr(self.config, "workeroutput", None)
        if handed_over is not None:
            handed_over[_HANDED_OVER] = self.coverage.record()
            return
        if self.path:
            try:
                Path(self.path).write_text(json.dumps(self.coverage.record(), indent=1) + "\n", encoding="utf-8")
            except OSError as problem:
                self.trouble = problem.strerror or str(problem)
                session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        tried = session.exitstatus == pytest.ExitCode.OK and not self.config.getoption("collectonly")
        if self.require and tried and self.coverage.never():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """A worker of pytest-xdist is done."""
        covered = getattr(node, "workeroutput", {}).get(_HANDED_OVER)
        if covered is None:
            self.lost += 1
        else:
            self.coverage.merge(covered)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The table, and the rows that were never taken."""
        write = terminalreporter.write_line
        own = [f"{len(self.coverage.own)} lifecycles of your own"] if self.coverage.own else []
        terminalreporter.section(f"blocklife: {', '.join([f'{self.coverage.ledgers} ledgers', *own])}")
        for line in self.coverage.lines():
            write(line)
        never = self.coverage.never()
        if self.lost:
            write(f"{self.lost} workers have handed nothing over", yellow=True)
        if self.require and never:
            write(f"{REQUIRE}: {len(never)} rows were never taken", red=True)
        if self.require or len(never) <= _LISTED:
            for each in never:
                write(f"  never taken: {each}")
        elif not self.path:
            write(f"{len(never)} rows were never taken ({REPORT}=FILE.json names them)")
        if self.trouble:
            write(f"{REPORT} {self.path}: {self.trouble}; it is not written", red=True)
        elif self.path:
            write(f"written to {self.path}")

    def pytest_unconfigure(self) -> None:
        """The run is over."""
        self.coverage.stop()


# --- scenarios --------------------------------------------------------------------------------------------------------------

_LOOKS_LIKE_ONE = (re.compile(r"^id\s*=", re.MULTILINE), re.compile(r"^\[\[step\]\]", re.MULTILINE))


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A file that begins as a scenario, where that was asked for."""
    if file_path.suffix != ".toml" or not _was_asked_for(file_path, parent.config):
        return None
    from blocklife.errors import MisuseError
    from blocklife.files import read_text

    try:
        text = read_text(file_path)
    except MisuseError:
        return None
    if not all(each.search(text) for each in _LOOKS_LIKE_ONE):
        return None
    collector: pytest.Collector = ScenarioFile.from_parent(parent, path=file_path)
    return collector


def _was_asked_for(path: Path, config: pytest.Config) -> bool:
    """Whether it was named, or a folder that it lies in; where nothing was named, nothing is meant."""
    if config.args_source is pytest.Config.ArgsSource.INVOCATION_DIR:
        return False
    named = ((config.invocation_params.dir / arg.partition("::")[0]).resolve() for arg in config.args)
    return any(path == each or each in path.parents for each in named)


class ScenarioFile(pytest.File):
    """A scenario; each of its variants is one test."""

    def collect(self) -> Iterable[ScenarioItem]:
        """Read it, and make the tests."""
        from blocklife.errors import MisuseError
        from blocklife.testing.scenarios._running import read_scenario

        try:
            scenario = read_scenario(str(self.path))
        except MisuseError as problem:
            raise self.CollectError(str(problem)) from problem
        for variant in scenario.each_variant():
            which = ",".join(f"{key}={value}" for key, value in variant.items())
            name = f"{scenario.id}[{which}]" if which else scenario.id
            yield ScenarioItem.from_parent(self, name=name, scenario=scenario, variant=variant)


class ScenarioFailed(Exception):  # noqa: N818 - it carries a verdict
    """A scenario failed."""

    def __init__(self, verdict: ScenarioVerdict) -> None:
        super().__init__(str(verdict))
        self.verdict = verdict


class ScenarioItem(pytest.Item):
    """One variant of a scenario, run against the engine that ``blocklife_driver`` names."""

    def __init__(self, *, scenario: Scenario, variant: Mapping[str, Value], **others: object) -> None:
        super().__init__(**others)  # type: ignore[arg-type]
        self.scenario = scenario
        self.variant = variant

    def runtest(self) -> None:
        """Run it. What the engine cannot do is skipped, with the reason."""
        from blocklife.errors import MisuseError
        from blocklife.testing.scenarios._running import WRONG, Outcome, driver_named, run_scenario

        name = self.config.getini(DRIVER) or OUR_DRIVER
        try:
            driver = driver_named(name)
            verdict = run_scenario(self.scenario, driver, self.variant, log=True)
        except MisuseError as problem:
            raise pytest.fail.Exception(f"{DRIVER}: {problem}", pytrace=False) from None
        if verdict.outcome is Outcome.NOT_APPLICABLE:
            pytest.skip(verdict.message)
        if verdict.outcome in WRONG:
            raise ScenarioFailed(verdict)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> str | object:  # type: ignore[override]
        """The report of the scenario with every step so far; a traceback would show none of the user's code."""
        if isinstance(excinfo.value, ScenarioFailed):
            return "\n".join(_report(excinfo.value.verdict))
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Where it stands."""
        return self.path, 0, f"scenario {self.name}: {self.scenario.title}"


def _report(verdict: ScenarioVerdict) -> Iterator[str]:
    yield str(verdict)
    yield ""
    yield from verdict.log
