"""The mutants that are argued away, and the page that says how many were found."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from attrs import frozen

from tests.proof.source_mutants.judging import Judgement, Verdict, need_of
from tests.proof.source_mutants.operators import Mutant

CONNECTOR = "## The connector under vLLM"
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


def with_page(before: str, run: Run) -> str:
    """The page with another first part; that of the connector stays."""
    return page(run) + "".join(before.partition(f"\n{CONNECTOR}\n")[1:])


def with_connector(before: str, run: Run) -> str:
    """The page with another part of the connector."""
    lines = [
        "",
        CONNECTOR,
        "",
        "The files of the connector that only tests under vLLM execute are drawn separately, and judged by those tests "
        "(`tests/vllm/test_connector*.py`, `tests/vllm/test_behaviour*.py`).",
        "`make source-mutants` does so if vLLM is fetched (`make vllm`).",
        *_judged(run, "room", room_of, ("left", run.survivors), "### {} of the connector"),
    ]
    return before.partition(f"\n{CONNECTOR}\n")[0] + "\n".join(lines) + "\n"


def page(run: Run) -> str:
    """The first part of the page, as text."""
    lines = [
        "# Mutants of the source",
        "",
        "Small random changes of the source, each of which should make a test fail: a comparison moved by one, `and` for `or`,",
        "a sign, a number one off, a call or an assignment dropped, a condition negated, `break` for `continue`, a `None`.",
        "They are drawn from the kernel, the ledger, the offload scheduler, lifecycles, copiers and the connector. Each is",
        f"judged by the tests that execute its line, the cheapest first, up to {run.most_s:g} seconds of processor time.",
        "[mutants.md](mutants.md) is the other list: there every named rule is switched off.",
        "",
        "`make source-mutants` writes this page (`ARGS='--seed 7'` draws others). *Argued away* are changes that nobody could",
        "notice; `tests/proof/source_mutants/argued.toml` has the reason for each.",
        *_judged(run, "room", room_of, ("not judged", run.away), "## {}"),
        "",
        "## Left out",
        "",
        "Modules of which no test executes anything here, and mutants in lines that need what is not here.",
        "",
        *_table(("left out", "its tests need"), [*sorted(run.left_out.items()), *_away(run)]),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _judged(
    run: Run, kind: str, place_of: Callable[[str], str], rest: tuple[str, Sequence[Judgement]], title: str
) -> list[str]:
    """What came of a run, by place; who lives; and the reasons. *rest*: the last column, with those that count there."""
    name, those = rest
    return [
        *("", _told(run, f"{name}: {len(those)}"), "", *_by_place(run, kind, place_of, name, those)),
        *("", title.format("Survivors"), "", *_survivors(run)),
    ]


def _told(run: Run, last: str) -> str:
    late = sum(each.verdict is Verdict.LATE for each in run.judgements)
    return (
        f"Seed {run.seed}: {len(run.judgements)} of {run.num_all} mutants. **Found: {run.score}**; {late} of them because "
        f"a test took too long; argued away: {len(run.argued_away)}; {last}."
    )


def _survivors(run: Run) -> list[str]:
    rows = [(_code(each.name), str(each.num_asked)) for each in run.survivors]
    return _table(("mutant", "tests asked"), rows) or ["None."]


def _away(run: Run) -> list[tuple[str, str]]:
    found = Counter(each.name.partition(" ")[0] for each in run.away)
    return [(f"{count} in `{module}`", need_of(module)) for module, count in sorted(found.items())]


def _by_place(run: Run, kind: str, place_of: Callable[[str], str], last: str, rest: Sequence[Judgement]) -> list[str]:
    counts = [Counter(place_of(each.name) for each in some) for some in (run.judgements, run.killed, run.argued_away, rest)]
    rows = [(f"`{place}`", *(str(count[place]) for count in counts)) for place in sorted(counts[0])]
    return _table((kind, "mutants", "found", "argued away", last), rows)


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
