"""The mutants that are argued away, and the page that says how many were found."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from attrs import frozen

from tests.source_mutants.judging import Judgement, Verdict, need_of
from tests.source_mutants.operators import Mutant

ARGUED = Path(__file__).with_name("argued.toml")


def read_argued(path: Path = ARGUED) -> dict[str, str]:
    """Mutants that need no test, by name, each with its reason."""
    found: dict[str, str] = tomllib.loads(path.read_text(encoding="utf-8"))
    return found


def stale(argued: Mapping[str, str], mutants: Iterable[Mutant]) -> list[str]:
    """What is argued away of mutants that are not there (any more)."""
    names = {mutant.name for mutant in mutants}
    return [name for name in argued if name not in names]


@frozen
class Run:
    """What was asked, and what came of it."""

    seed: int
    num_all: int
    """Mutants that could have been drawn."""
    most_s: float
    judgements: Sequence[Judgement]
    argued: Mapping[str, str]
    left_out: Mapping[str, str]
    """Modules that were not judged, each with what its tests need."""

    @property
    def killed(self) -> list[Judgement]:
        """Those that a test has noticed."""
        return [each for each in self.judgements if each.is_killed]

    @property
    def argued_away(self) -> list[Judgement]:
        """Those that live, with a reason."""
        lives = (Verdict.SURVIVED, Verdict.UNSEEN)
        return [each for each in self.judgements if each.verdict in lives and each.name in self.argued]

    @property
    def survivors(self) -> list[Judgement]:
        """Those that live, without any."""
        lives = [each for each in self.judgements if not each.is_killed and each.verdict is not Verdict.AWAY]
        return [each for each in lives if each.name not in self.argued]

    @property
    def away(self) -> list[Judgement]:
        """Those that nobody could judge here."""
        return [each for each in self.judgements if each.verdict is Verdict.AWAY]

    @property
    def moot(self) -> list[Judgement]:
        """Those that are argued away, and yet a test notices them: the reason is wrong, or no longer needed."""
        return [each for each in self.killed if each.name in self.argued]

    @property
    def score(self) -> str:
        """Of the mutants that a test could notice, how many one did."""
        could = len(self.killed) + len(self.survivors)
        return f"{len(self.killed)} of {could}" + (f" ({100 * len(self.killed) / could:.1f} %)" if could else "")


def page(run: Run) -> str:
    """The page, as text."""
    late = sum(each.verdict is Verdict.LATE for each in run.judgements)
    lines = [
        "# Mutants of the source",
        "",
        "Small changes of the code that should make a test fail: a comparison moved by one, `and` for `or`, a sign, a number",
        "one off, a call or an assignment dropped, a condition negated, a `not` removed, `break` for `continue`, a `None`.",
        "They are drawn by chance from the ledger, the offload scheduler, the lifecycles, the copiers and the connector.",
        f"Each is judged by the tests that execute its line, the cheapest, of {run.most_s:g} seconds at most.",
        "[mutants.md](mutants.md) is the other list: there the rules of the tables are switched off, all of them.",
        "This page is written by `make source-mutants` (`ARGS='--seed 7'` draws others).",
        "",
        f"Seed {run.seed}: {len(run.judgements)} of {run.num_all} mutants. **Found: {run.score}**; {late} of them because "
        f"a test took too long; argued away: {len(run.argued_away)}; not judged: {len(run.away)}.",
        "",
        *_by_room(run),
        "",
        "## Survivors",
        "",
        *(_table(("mutant", "tests asked"), [(_code(each.name), str(each.num_asked)) for each in run.survivors]) or ["None."]),
        "",
        "## Argued away",
        "",
        "Each changes nothing that anyone could notice, or nothing that is promised. The reasons stand in "
        "`tests/source_mutants/argued.toml`, by the text of the statement.",
        "",
        *(
            _table(("mutant", "why no test fails"), [(_code(name), why) for name, why in sorted(run.argued.items())])
            or ["None."]
        ),
        "",
        "## Left out",
        "",
        "Modules of which no test executes anything here, and single mutants in lines that none executes.",
        "",
        *_table(("left out", "its tests need"), [*sorted(run.left_out.items()), *_away(run)]),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _away(run: Run) -> list[tuple[str, str]]:
    return [(_code(each.name), need_of(each.name)) for each in run.away]


def _by_room(run: Run) -> list[str]:
    rooms: Counter[str] = Counter()
    found: Counter[str] = Counter()
    argued: Counter[str] = Counter()
    away: Counter[str] = Counter()
    for each in run.judgements:
        room = room_of(each.name)
        rooms[room] += 1
        found[room] += each.is_killed
        argued[room] += each in run.argued_away
        away[room] += each.verdict is Verdict.AWAY
    counts = (rooms, found, argued, away)
    rows = [(f"`{room}`", *(str(count[room]) for count in counts)) for room in sorted(rooms)]
    return _table(("room", "mutants", "found", "argued away", "not judged"), rows)


def room_of(name: str) -> str:
    """The folder, or the module that stands alone."""
    module = name.partition(" ")[0]
    folder = module.rpartition("/")[0]
    return module if folder == "blocklife" else folder


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    cells = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(row) + " |" for row in cells]


def _code(name: str) -> str:
    """A name in a table of Markdown."""
    text = name.replace("|", "\\|")
    ticks = "``" if "`" in text else "`"
    return f"{ticks}{text}{ticks}"


def told(judgement: Judgement) -> str:
    """One line of progress."""
    by = f" by {judgement.by}" if judgement.by else ""
    more = "" if judgement.is_killed else f" ({judgement.num_asked} tests asked)"
    return f"{judgement.verdict.value}{by}: {judgement.name}{more}"
