"""Failures of an engine that are known: a strict list, each with the public thread that reports it.

Rules of this file:

* A line excuses the runs that it names, and no others. What it names and what does not fail any more is a failure itself: then
  the line has to go.
* A line without a thread is refused, and one about a scenario that does not exist: nothing is hidden by a slip.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from attrs import evolve, frozen

from blocklife.errors import MisuseError
from blocklife.files import parse_toml, read_text
from blocklife.testing.scenarios._kinds import Value, nearest
from blocklife.testing.scenarios._running import WRONG, Outcome, ScenarioVerdict

_REMEDY = "name a file of known failures: [[fails]] with scenario, thread and releases"
_THREAD = re.compile(r"https?://\S+|[\w.-]+(/[\w.-]+)?#[0-9]+")
_KEYS: Mapping[str, str] = {
    "scenario": "the name of the scenario",
    "thread": "the public thread that reports it, as a link or as `owner/name#number`",
    "releases": "the releases in which it fails, whole or the first parts of their numbers; left out: all",
    "when": "a table of variants in which it fails; left out: in some of them",
    "says": "part of what the failing run says, such as the rule",
}


@frozen(kw_only=True)
class KnownFailure:
    """One line of the list."""

    scenario: str
    thread: str
    releases: tuple[str, ...] = ()
    when: Mapping[str, tuple[Value, ...]] = {}
    says: str = ""

    def is_about(self, verdict: ScenarioVerdict) -> bool:
        """Whether it speaks of this run, however that ends."""
        named = all(verdict.variant.get(key) in values for key, values in self.when.items())
        return self.scenario == verdict.scenario and named and self.is_of(verdict.release)

    def is_of(self, release: str) -> bool:
        """Whether it speaks of this release."""
        return not self.releases or any(release == each or release.startswith(f"{each}.") for each in self.releases)

    def excuses(self, verdict: ScenarioVerdict) -> bool:
        """Whether a run fails as it says. That an engine decides otherwise is no failure, and has a list of its own."""
        failed = verdict.outcome in WRONG - {Outcome.OTHER_POLICY}
        return failed and self.is_about(verdict) and self.says in verdict.message


@frozen
class KnownFailures:
    """The list of one engine."""

    path: str
    fails: tuple[KnownFailure, ...] = ()
    other_policy: tuple[str, ...] = ()
    """Scenarios in which the engine decides otherwise, which is no fault."""

    def marked(self, verdict: ScenarioVerdict) -> ScenarioVerdict:
        """The run, with the thread of its failure if that is known. Refuses a driver that does not name the release."""
        if not verdict.release and any(each.releases and each.scenario == verdict.scenario for each in self.fails):
            raise MisuseError(f"{self.path}: {verdict.scenario}: the driver names no release (give it an attribute 'version')")
        if verdict.outcome is Outcome.OTHER_POLICY and verdict.scenario in self.other_policy:
            return evolve(verdict, expected=f"other_policy in {self.path}")
        thread = next((each.thread for each in self.fails if each.excuses(verdict)), "")
        return evolve(verdict, expected=thread)

    def outdated(self, verdicts: Sequence[ScenarioVerdict]) -> dict[str, str]:
        """What the list says and these runs do not show any more, by scenario: a sentence with the remedy.

        Of scenarios that were not run nothing is said; one that cannot be run is outdated, too, for nobody sees its failure.
        """
        found = dict[str, str]()
        for each in self.fails:
            about = [verdict for verdict in verdicts if each.is_about(verdict)]
            if about and not any(map(each.excuses, about)):
                found[each.scenario] = self._remove(each.scenario, f"is expected to fail ({each.thread})", about)
        for name in self.other_policy:
            about = [verdict for verdict in verdicts if verdict.scenario == name]
            if about and not any(verdict.outcome is Outcome.OTHER_POLICY for verdict in about):
                found[name] = self._remove(name, "is expected to show another policy", about)
        return found

    def _remove(self, name: str, expected: str, about: Sequence[ScenarioVerdict]) -> str:
        worst = next((each for each in about if each.outcome in WRONG), None)
        worst = worst or next((each for each in about if each.outcome is Outcome.HELD), about[0])
        why = f": {worst.message}" if worst.outcome is not Outcome.HELD else ""
        return f"{name} {expected}, and {worst.outcome.value}{why} (remove or mend its line in {self.path})"


def read_known(path: str | Path, scenarios: Collection[str]) -> KnownFailures:
    """The list in a file. *scenarios* are the names that there are. Refuses what is wrong, with the number of the line."""
    data = parse_toml(read_text(path, _REMEDY), str(path))
    reader = _KnownReader(str(path), scenarios)
    for key in data:
        if key not in ("fails", "other_policy"):
            reader.fail(f"unknown key {key!r} (known keys: fails, other_policy)")
    fails, other = data.get("fails", []), data.get("other_policy", [])
    if not isinstance(fails, list) or not all(isinstance(each, dict) for each in fails):
        reader.fail("'fails' must be a list of tables: write [[fails]] before each")
    names = reader.texts("other_policy", other)
    for name in names:
        reader.scenario(name, "other_policy: ")
    return KnownFailures(str(path), tuple(reader.line(at, each) for at, each in enumerate(fails, start=1)), names)


@frozen
class _KnownReader:
    path: str
    scenarios: Collection[str]

    def fail(self, message: str) -> NoReturn:
        raise MisuseError(f"{self.path}: {message}")

    def scenario(self, name: object, where: str) -> str:
        if not isinstance(name, str) or name not in self.scenarios:
            self.fail(f"{where}there is no scenario {name!r} ({nearest(str(name), self.scenarios, 'scenarios')})")
        return name

    def texts(self, where: str, found: object) -> tuple[str, ...]:
        if not isinstance(found, list) or not all(isinstance(each, str) and each for each in found):
            self.fail(f"{where} must be a list of texts, not {found!r}")
        return tuple(found)

    def line(self, at: int, given: Mapping[str, object]) -> KnownFailure:
        """One line, checked."""
        where = f"fails {at}: "
        if unknown := [key for key in given if key not in _KEYS]:
            self.fail(f"{where}unknown key {unknown[0]!r} ({nearest(unknown[0], _KEYS, 'keys')})")
        name = self.scenario(given.get("scenario"), where)
        where = f"fails {at} ({name}): "
        thread, says, when = given.get("thread"), given.get("says", ""), given.get("when", {})
        if not isinstance(thread, str) or not _THREAD.fullmatch(thread):
            told = "it has no thread" if thread is None else f"{thread!r} is no thread"
            self.fail(f"{where}{told} (a known failure has {_KEYS['thread']})")
        if not isinstance(says, str):
            self.fail(f"{where}'says' must be a text, not {says!r}")
        if not isinstance(when, dict):
            self.fail(f"{where}'when' must be a table of variants, not {when!r}")
        values = {key: tuple(each) if isinstance(each, list) else (each,) for key, each in when.items()}
        releases = self.texts(f"{where}'releases'", given.get("releases", []))
        return KnownFailure(scenario=name, thread=thread, releases=releases, when=values, says=says)
