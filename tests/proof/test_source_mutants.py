"""Mutants of the source: what is made of a statement and what is left alone, who is asked, and what stays behind (nothing).

Method: small texts whose mutants are written down here; a copy of a small tree; and a judge whose tests are only told of.
Drawing three hundred of the real ones is `make source-mutants`.
"""

from __future__ import annotations

import ast
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from attrs import evolve

from tests.proof.source_mutants import lines
from tests.proof.source_mutants.__main__ import CONNECTOR, HERE
from tests.proof.source_mutants.chosen import Answer
from tests.proof.source_mutants.copying import Copy
from tests.proof.source_mutants.judging import Judge, Judgement, Kept, Runner, Verdict
from tests.proof.source_mutants.lines import Lines, Record
from tests.proof.source_mutants.operators import Mutant, mutants_of, sample
from tests.proof.source_mutants.page import Run, page, read_argued, stale, with_connector, with_page

ROOT = Path(__file__).parents[2]
MODULE = "blocklife/ledger/_limits.py"


def changes(text: str) -> list[str]:
    """What the mutants of a text read like, where they are."""
    return [mutant.after for mutant in mutants_of("m.py", text)]


# --- what is changed -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("x = a < b", ["x = a <= b"]),
        ("x = a <= b < c", ["x = a < b < c", "x = a <= b <= c"]),
        ("x = a is b", ["x = a is not b"]),
        ("x = a and b", ["x = a or b"]),
        ("x = not a", ["x = a"]),
        ("x = -a", ["x = a"]),
        ("x = a + b", ["x = a - b"]),
        ("x = a // b", ["x = a * b"]),
        ("x = a | b", ["x = a & b"]),
        ("x += b", ["x -= b"]),
        ("x = 0", ["x = -1", "x = 1"]),
        ("x = 7", ["x = 6", "x = 8"]),
        ("x = True", ["x = False"]),
        ("f(a)", [""]),
        ("a.b = c", [""]),
        ("a[b] = c", [""]),
        ("a.b, a.c = c", [""]),
        ("del a[b]", [""]),
        ("x = a", []),
        ("if a:\n    x = b", ["if not a:"]),
        ("if not a:\n    x = b", ["if a:"]),
        ("if a == b:\n    x = b", ["if not a == b:"]),
        ("while a:\n    break", ["while not a:", "continue"]),
        ("x = b if a else c", ["x = b if not a else c"]),
        ("x = [b for b in c if b]", ["x = [b for b in c if not b]"]),
        ("def f():\n    return a", ["return None"]),
        ("def f():\n    return None", []),
        ("def f(a=False):\n    return", ["def f(a=True):"]),
    ],
)
def test_statement_is_changed_in_each_small_way(text: str, wanted: list[str]) -> None:
    found = changes(text)

    assert sorted(each.removesuffix("pass").strip() for each in found) == sorted(wanted)


@pytest.mark.parametrize(
    "text",
    [
        '"""Says a < b."""',
        "x: Literal[1]",
        "def f(a: Literal[1]) -> Literal[2]: ...",
        "raise ValueError(a + b)",
        "x = f'{a + b}'",
        "class A:\n    def __repr__(self):\n        return 'a' + 'b'",
        "if TYPE_CHECKING:\n    x = 1",
        "Ids: TypeAlias = A | B",
        "T = TypeVar('T', covariant=True)",
        "@define(eq=False)\nclass A:\n    pass",
        "logger.info(1)",
        "problem.add_note('a' + b)",
        "x = zip(a, b, strict=True)",
    ],
)
def test_what_does_nothing_is_left_alone(text: str) -> None:
    assert changes(text) == []


def test_mutant_keeps_every_line_where_it_was() -> None:
    """Of every mutant of a module of ours: another tree, as many lines, and no other line than its own is touched."""
    text = (ROOT / MODULE).read_text(encoding="utf-8")
    rows, tree = text.split("\n"), ast.dump(ast.parse(text))
    for mutant in mutants_of(MODULE, text):
        changed = mutant.of(text.encode())
        others = changed.split("\n")

        assert len(others) == len(rows), mutant
        assert ast.dump(ast.parse(changed)) != tree, mutant
        assert {n for n in range(len(rows)) if rows[n] != others[n]} <= set(range(mutant.first_line - 1, mutant.last_line))


def test_mutants_that_read_alike_are_counted() -> None:
    """Names are unique, and say where in the code the mutant is."""
    found = mutants_of("m.py", "class A:\n    def f(self):\n        self.g()\n        self.g()\n")

    assert [each.name for each in found] == ["m.py A.f: self.g() -> pass", "m.py A.f: self.g() -> pass #2"]


def test_sample_of_a_seed_stays_when_the_source_grows() -> None:
    """Another statement takes at most its own place; another seed draws others."""
    text = "".join(f"x = a{number} < b\n" for number in range(60))
    before = {each.name for each in sample(mutants_of("m.py", text), 20, 1)}
    after = {each.name for each in sample(mutants_of("m.py", "y = c < d\n" + text), 20, 1)}
    other = {each.name for each in sample(mutants_of("m.py", text), 20, 2)}

    assert len(before) == len(after) == 20
    assert len(before & after) >= 19
    assert before != other
    assert len(sample(mutants_of("m.py", text), 500, 1)) == 60


# --- the copy ------------------------------------------------------------------------------------------------------------


def test_copy_forgets_a_mutant_also_when_it_was_interrupted(tmp_path: Path) -> None:
    """The old text is back with its old time; what a killed run has left behind is mended by the next one."""
    source, copy = tmp_path / "source", Copy(tmp_path / "copy")
    (source / "tests").mkdir(parents=True)
    (source / "tests" / "a.py").write_text("x = 1\n")
    copy.refresh(source)
    here = copy.root / "tests" / "a.py"
    stamp = here.stat().st_mtime_ns
    planted = []

    def interrupted() -> None:
        with copy.changed("tests/a.py", "x = 2\n"):
            planted.append(here.read_text())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    back = (here.read_text(), here.stat().st_mtime_ns)
    here.write_text("x = 3\n")
    (copy.root / "tests" / "stranger.py").write_text("")
    copy.refresh(source)

    assert planted == ["x = 2\n"]
    assert back == ("x = 1\n", stamp)
    assert sorted(each.name for each in here.parent.iterdir()) == ["a.py"]
    assert here.read_text() == (source / "tests" / "a.py").read_text() == "x = 1\n"


# --- judging -------------------------------------------------------------------------------------------------------------


class Told(Runner):
    """Runs nothing: *says* what comes of a run of these tests."""

    def __init__(self, says: Callable[[list[str]], str]) -> None:
        super().__init__(Copy())
        self.asked: list[list[str]] = []
        self._says = says

    def run(self, tests: Sequence[str], cpu_s: int, wall_s: int) -> Answer:
        self.asked.append(list(tests))
        said = self._says(list(tests))
        return {"failed": "" if said == "late" else said, "late": said == "late"}


class Known(Lines):
    """Knows who executes each line without having measured it."""

    def of(self, path: Path) -> dict[int, list[str]]:
        return {1: [""], 2: ["", "t.py::slow"], 3: ["t.py::other", "u.py::other"]}


def judge(tmp_path: Path, says: Callable[[list[str]], str], most_s: float = 10.0) -> tuple[Judge, Told, list[Mutant]]:
    text = "x = 1\ndef f():\n    g()\n"
    (tmp_path / "m.py").write_text(text)
    costs = {"t.py::slow": 8.0, "t.py::quick": 0.1, "t.py::other": 0.2, "t.py::looks": 0.3, "u.py::other": 4.0}
    records = {
        file: Record(tmp_path, {name: cost for name, cost in costs.items() if name.startswith(file)}, (), 0.5)
        for file in ("t.py", "u.py")
    }
    told = Told(says)
    return Judge(Copy(tmp_path), Known(records), told, most_s), told, mutants_of("m.py", text)


def test_mutant_is_shown_to_the_tests_that_execute_its_line(tmp_path: Path) -> None:
    """The cheap ones of the nearest file come first; what runs on import is shown to all of a file that uses it."""
    asked, told, mutants = judge(tmp_path, lambda tests: "")
    on_import, _, dropped = mutants
    found = asked.judge(dropped)
    line = list(told.asked)
    told.asked.clear()
    whole = asked.judge(on_import)

    assert (found.verdict, found.num_asked) == (Verdict.SURVIVED, 2)
    assert line == [["t.py::other"], ["u.py::other"]]
    assert told.asked == [["t.py::quick", "t.py::other", "t.py::looks"], ["u.py::other"]]
    assert whole.left_out_s == 8.0


def test_mutant_is_killed_by_a_test_that_passes_without_it(tmp_path: Path) -> None:
    """A test that fails anyway is asked once, on the code as it is, and then no more."""
    sound, _, (*_, dropped) = judge(tmp_path, lambda tests: "" if len(tests) == 1 and sound_run(tests) else tests[0])
    runs: list[str] = []

    def sound_run(tests: list[str]) -> bool:
        runs.append(tests[0])
        return "g()" in (tmp_path / "m.py").read_text()

    killed = sound.judge(dropped)
    broken, told, _ = judge(tmp_path, lambda tests: next((name for name in tests if name.startswith("t.py")), ""))
    lives = broken.judge(dropped)

    assert (killed.verdict, killed.by) == (Verdict.KILLED, "t.py::other")
    assert runs == ["t.py::other", "t.py::other"]
    assert lives.verdict is Verdict.SURVIVED
    assert told.asked == [["t.py::other"], ["t.py::other"], ["u.py::other"]]
    assert (tmp_path / "m.py").read_text() == "x = 1\ndef f():\n    g()\n"


def test_mutant_that_takes_too_long_is_killed_and_says_so(tmp_path: Path) -> None:
    asked, _, (*_, dropped) = judge(tmp_path, lambda tests: "late")

    assert asked.judge(dropped).verdict is Verdict.LATE


def test_verdicts_are_kept_while_they_can_hold(tmp_path: Path) -> None:
    """That one was killed holds while its module is the same; that it lives, while everything is. A torn line is no verdict."""
    one, two = mutants_of("m.py", "f()\ng()\n")
    kept = Kept(tmp_path / "verdicts", "all", {"m.py": "this"})
    killed = Judgement(one.name, "drop", Verdict.KILLED, "t.py::a", 1, 0.0)
    lives = Judgement(two.name, "drop", Verdict.SURVIVED, "", 1, 0.0)
    kept.add(one, killed)
    kept.add(two, lives)
    with kept.path.open("a") as file:
        file.write('{"name": "m.')

    assert kept.load([one, two]) == {one.name: killed, two.name: lives}
    assert Kept(kept.path, "other tests", {"m.py": "this"}).load([one, two]) == {one.name: killed}
    assert Kept(kept.path, "all", {"m.py": "that"}).load([one, two]) == {}
    assert Kept(tmp_path / "none", "all", {"m.py": "this"}).load([one, two]) == {}


@pytest.mark.slow
def test_a_run_finds_the_mutants_of_a_small_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real thing, on one module: lines are measured, a mutant is planted, its test fails; then nothing is left over."""
    copy = Copy(tmp_path)
    for name, text in (
        ("room/__init__.py", ""),
        ("room/a.py", "def least(a, b):\n    return a if a < b else b\n"),
        ("tests/__init__.py", ""),
        ("tests/proof/__init__.py", ""),
        ("tests/test_a.py", "from room.a import least\n\n\ndef test_least():\n    assert least(1, 2) == 1\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    shutil.copytree(Path(lines.__file__).parent, tmp_path / "tests" / "proof" / "source_mutants")
    monkeypatch.setattr(lines, "RECORDS", tmp_path / "lines")
    record_ = lines.record(copy, "tests/test_a.py", ["room"], "now")
    text = (tmp_path / "room" / "a.py").read_text()
    mutants = {each.operator: each for each in mutants_of("room/a.py", text)}
    judge = Judge(copy, Lines({"tests/test_a.py": record_}), Runner(copy), 5.0)
    found = {operator: judge.judge(mutant).verdict for operator, mutant in mutants.items()}

    assert found == {"negate": Verdict.KILLED, "compare": Verdict.SURVIVED, "return": Verdict.KILLED}
    assert (tmp_path / "room" / "a.py").read_text() == text


# --- what is told --------------------------------------------------------------------------------------------------------


def test_page_counts_what_it_lists() -> None:
    """The score leaves out what is argued away; every survivor stands there."""
    found = [
        Judgement("blocklife/ledger/a.py f: x < y -> x <= y", "compare", Verdict.KILLED, "t.py::a", 3, 0.0),
        Judgement("blocklife/ledger/a.py f: x | y -> x & y", "arithmetic", Verdict.SURVIVED, "", 3, 0.0),
        Judgement("blocklife/lifecycle.py f: g() -> pass", "drop", Verdict.SURVIVED, "", 3, 0.0),
        Judgement("blocklife/lifecycle.py f: h() -> pass", "drop", Verdict.LATE, "", 3, 0.0),
        Judgement("blocklife/copiers/torch/a.py f: h() -> pass", "drop", Verdict.AWAY, "", 0, 0.0),
    ]
    argued = {found[2].name: "g does nothing", found[4].name: "no reason"}
    run = Run(4, 90, 5.0, found, argued, {"x.py": "needs y"})
    text = page(run)

    assert [each.name for each in run.survivors] == [found[1].name]
    assert run.moot == []
    assert evolve(run, argued={found[0].name: "no reason"}).moot == found[:1]
    assert "Seed 4: 5 of 90 mutants. **Found: 2 of 3 (66.7 %)**; 1 of them" in text
    assert "| `blocklife/ledger` | 2 | 1 | 0 | 0 |\n| `blocklife/lifecycle.py` | 2 | 1 | 1 | 0 |\n" in text
    assert "| `blocklife/ledger/a.py f: x \\| y -> x & y` | 3 |" in text
    assert "g does nothing" not in text  # argued.toml has the reasons
    assert "| x.py | needs y |\n| 1 in `blocklife/copiers/torch/a.py` | Triton or a GPU" in text
    assert "None." in page(evolve(run, judgements=found[:1], argued={}))


def test_each_part_of_the_page_leaves_the_other_as_it_is() -> None:
    """The connector is judged where vLLM is, and the rest without it, in any order."""
    here = Run(4, 90, 5.0, [Judgement("blocklife/lifecycle.py f: g() -> pass", "drop", Verdict.KILLED, "t", 3, 0.0)], {}, {})
    names = [f"blocklife/engines/vllm/connector/{file}.py f: g() -> pass" for file in ("cache", "config", "config")]
    verdicts = (Verdict.KILLED, Verdict.SURVIVED, Verdict.UNSEEN)
    found = [Judgement(name, "drop", verdict, "", 3, 0.0) for name, verdict in zip(names, verdicts, strict=True)]
    connector = Run(2, 70, 5.0, found, {}, {})
    text = with_connector(with_page("", here), connector)
    other = with_connector(text, evolve(connector, seed=3))

    assert with_page(text, here) == with_connector(other, connector) == text
    assert "Seed 4: 1 of 90 mutants. **Found: 1 of 1" in other
    assert "Seed 3: 3 of 70 mutants. **Found: 1 of 3 (33.3 %)**; 0 of them because" in other
    assert "argued away: 0; left: 2." in other
    assert "| `blocklife/engines/vllm/connector` | 3 | 1 | 0 | 2 |" in other


def test_two_parts_judge_every_module_of_the_connector_once() -> None:
    """One with the tests that need no vLLM, the others with those that do."""
    copy = Copy(ROOT)
    here, connector = HERE.modules(copy), CONNECTOR.modules(copy)
    room = {str(path.relative_to(ROOT)) for path in (ROOT / "blocklife" / "engines" / "vllm" / "connector").glob("*.py")}

    assert not {*here} & {*connector}
    assert room <= {*here, *connector}
    assert not {*HERE.asked(copy)} & {*CONNECTOR.asked(copy)}
    assert "tests/vllm/test_connector.py" in CONNECTOR.asked(copy)


def test_what_is_argued_away_is_there() -> None:
    """Every entry names a mutant of the sources as they are, and gives a reason."""
    argued = read_argued()
    modules = sorted({name.partition(" ")[0] for name in argued})
    mutants = [mutant for module in modules for mutant in mutants_of(module, (ROOT / module).read_text(encoding="utf-8"))]

    assert stale(argued, mutants) == []
    assert all(reason.endswith(".") for reason in argued.values())


def test_nothing_of_a_run_is_written_to_the_working_tree() -> None:
    """What is below `.source-mutants` is ignored by git, and by the copy of the tree itself."""
    assert ".source-mutants/" in (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    assert os.fspath(Copy().root).startswith(os.fspath(ROOT / ".source-mutants"))
