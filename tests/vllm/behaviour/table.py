"""What became of each of vLLM's tests of its offloading scheduler: it passes, ours says the same, or it is excluded.

Rules of this file:

* The table is data (``table.toml``). What it says is checked where it can be: by the plugin, which runs vLLM's tests, and by
  ``tests/project/test_vllm_behaviour.py``, which needs no vLLM.
* It imports nothing but the standard library: the plugin reads it where another package is called ``tests``.
"""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("table.toml")
VERDICTS = ("passes", "same", "excluded")


@dataclass(frozen=True)
class Entry:
    """One test function of theirs, or some of its cases."""

    test: str
    """Its name, with its class where it has one."""
    count: int
    """Cases of it that this entry stands for."""
    theme: str
    verdict: str
    cases: tuple[str, ...] = ()
    """Patterns of the ids of its cases; none: those that no other entry names."""
    by: tuple[str, ...] = ()
    """Tests of ours that say the same, or that show what an exclusion says."""
    why: str = ""
    """What an exclusion rests on, or what has to be known."""
    lacks: str = ""
    """What theirs asks for besides, and ours does not do."""

    def __post_init__(self) -> None:
        """Refuse an entry that says nothing."""
        if self.verdict not in VERDICTS:
            raise ValueError(f"{self.test}: {self.verdict!r} is no verdict ({', '.join(VERDICTS)})")
        if self.verdict == "same" and not self.by:
            raise ValueError(f"{self.test}: which test of ours says the same?")
        if self.verdict == "excluded" and not self.why:
            raise ValueError(f"{self.test}: why is it excluded?")
        if self.count < 1:
            raise ValueError(f"{self.test}: an entry stands for one case at least")

    def covers(self, case: str) -> bool:
        """Whether a case, by its id, is named here."""
        return any(fnmatch.fnmatchcase(case, pattern) for pattern in self.cases)


@dataclass(frozen=True)
class Theme:
    """Tests about one thing."""

    name: str
    title: str


@dataclass(frozen=True)
class Table:
    """All of it."""

    themes: tuple[Theme, ...]
    entries: tuple[Entry, ...]

    @classmethod
    def read(cls, path: Path = TABLE) -> Table:
        """The table as it is on the disk. Refuses one that contradicts itself."""
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        table = cls(
            tuple(Theme(name, told["title"]) for name, told in data.items()),
            tuple(entry for name, told in data.items() for entry in _entries(name, told)),
        )
        table.check()
        return table

    def check(self) -> None:
        """Refuse two entries for the same cases, and a theme that there is not."""
        themes = {theme.name for theme in self.themes}
        for entry in self.entries:
            if entry.theme not in themes:
                raise ValueError(f"{entry.test}: no theme is called {entry.theme!r}")
        for test, entries in self.by_test().items():
            if sum(not entry.cases for entry in entries) > 1:
                raise ValueError(f"{test}: two entries stand for all other cases")

    def by_test(self) -> Mapping[str, Sequence[Entry]]:
        """The entries of each test, in order."""
        found: dict[str, list[Entry]] = {}
        for entry in self.entries:
            found.setdefault(entry.test, []).append(entry)
        return found

    def entry_of(self, test: str, case: str) -> Entry | None:
        """What is said of one case; None where nothing is."""
        entries = self.by_test().get(test, ())
        named = [entry for entry in entries if entry.covers(case)]
        return next(iter(named or [entry for entry in entries if not entry.cases]), None)

    def problems(self, collected: Iterable[tuple[str, str]]) -> list[str]:
        """Where the table and the tests that there are do not agree."""
        counts = dict.fromkeys(self.entries, 0)
        found = []
        for test, case in collected:
            entry = self.entry_of(test, case)
            if entry is None:
                found.append(f"{test}[{case}] is not in the table")
            else:
                counts[entry] += 1
        for entry, count in counts.items():
            if count != entry.count:
                found.append(f"{entry.test} {' '.join(entry.cases)}: {count} cases, and the table says {entry.count}")
        return found

    def total(self, verdict: str) -> tuple[int, int]:
        """Entries and cases with one verdict."""
        chosen = [each for each in self.entries if each.verdict == verdict]
        return len(chosen), sum(each.count for each in chosen)


def _entries(theme: str, told: Mapping[str, Any]) -> Iterator[Entry]:
    """What is said of one theme."""
    yield from (Entry(test, count, theme, "passes") for test, count in told.get("passes", {}).items())
    for verdict in ("same", "excluded"):
        for given in told.get(verdict, ()):
            values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
            yield Entry(**{"count": 1, "theme": theme, "verdict": verdict, **values})
