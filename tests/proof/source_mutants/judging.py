"""What becomes of a mutant: which tests are asked, in which order, and what they say. Verdicts are kept as they come."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory

from attrs import asdict, define, field, frozen

from tests.proof.source_mutants.chosen import TASK, Answer
from tests.proof.source_mutants.copying import Copy
from tests.proof.source_mutants.lines import Lines
from tests.proof.source_mutants.operators import Mutant

FIRST_S = 3.0
"""How much of tests, in seconds of processor time, is asked at first: most mutants fall there."""
IMPORT_S = 1.0
"""What an import of a file of tests costs at least, by experience."""
MEMORY_BYTES = 12 << 30
OPTIONS = (
    *("-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "--assert=plain"),
    *("-p", "tests.proof.source_mutants.chosen"),
)

NEEDS = {
    "blocklife/copiers/torch/": "Triton or a GPU (`make test-gpu`)",
}
"""Rooms with code that only runs where something else is, by the beginning of their modules."""


def need_of(module: str) -> str:
    """What the tests of a module may need that is not here; empty if they need nothing."""
    return next((need for room, need in NEEDS.items() if module.startswith(room)), "")


class Verdict(Enum):
    """What became of a mutant."""

    KILLED = "killed"
    LATE = "killed: took too long"
    SURVIVED = "survived"
    UNSEEN = "survived: no test executes it"
    AWAY = "not judged: its tests need what is not here"


@frozen
class Judgement:
    """One mutant, judged."""

    name: str
    operator: str
    verdict: Verdict
    by: str
    """The test that failed; empty if none did."""
    num_asked: int
    """Tests that execute the line, within the bound."""
    left_out_s: float
    """What the tests cost that were not asked, for it is more than the bound."""

    @property
    def is_killed(self) -> bool:
        """Whether something has noticed it."""
        return self.verdict in (Verdict.KILLED, Verdict.LATE)


@define
class Runner:
    """Runs tests in the copy, in a process of their own that is ended when it takes too much time or memory."""

    copy: Copy
    options: Sequence[str] = ()
    """Of pytest."""

    def run(self, tests: Sequence[str], cpu_s: int, wall_s: int) -> Answer:
        """What comes of these tests, in this order, until the first that fails."""

        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

        files = dict.fromkeys(map(file_of, tests))
        with TemporaryDirectory() as folder:
            task = Path(folder, "task")
            task.write_text(json.dumps(tests), encoding="utf-8")
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *OPTIONS, *self.options, *files],
                cwd=self.copy.root,
                env={**environment(self.copy), TASK: str(task)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=limit,
            )
            late = False
            try:
                process.wait(wall_s)
            except subprocess.TimeoutExpired:
                late = True
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # whatever it has started, too
                process.wait()
            said = json.loads(task.read_text(encoding="utf-8"))
        if isinstance(said, dict):
            return {"failed": said["failed"], "late": said["late"]}
        if late or process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
            return {"failed": "", "late": True}
        return {"failed": "the run (it ended without a word)", "late": False}


def environment(copy: Copy) -> dict[str, str]:
    """The environment variables of what runs in the copy. No compiled form of a mutant is left behind."""
    return {
        **os.environ,
        "PYTHONPATH": copy.path,
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(copy.root / ".hypothesis"),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }


@define
class Judge:
    """Judges mutants in a copy, each by the tests that execute it, of at most *most_s* seconds of processor time."""

    copy: Copy
    lines: Lines
    runner: Runner
    most_s: float
    _of_module: dict[str, dict[int, list[str]]] = field(factory=dict)
    _sound: set[str] = field(factory=set)
    _unsound: set[str] = field(factory=set)
    _costs: dict[str, float] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        """Know what every test costs."""
        for each in self.lines.records.values():
            self._costs.update(each.costs)

    def judge(self, mutant: Mutant) -> Judgement:
        """Plant it, and ask."""
        tests, left_out_s = self._bounded(self._who_executes(mutant))
        if not tests:
            verdict = Verdict.AWAY if need_of(mutant.module) else Verdict.UNSEEN
            return Judgement(mutant.name, mutant.operator, verdict, "", 0, 0.0)
        text = mutant.of((self.copy.root / mutant.module).read_bytes())
        for part in self._parts(tests):
            while part := [name for name in part if name not in self._unsound]:
                with self.copy.changed(mutant.module, text):
                    answer = self._run(part)
                if answer["late"]:
                    return Judgement(mutant.name, mutant.operator, Verdict.LATE, "", len(tests), left_out_s)
                if not answer["failed"]:
                    break
                if self._is_sound(answer["failed"]):
                    return Judgement(mutant.name, mutant.operator, Verdict.KILLED, answer["failed"], len(tests), left_out_s)
        return Judgement(mutant.name, mutant.operator, Verdict.SURVIVED, "", len(tests), left_out_s)

    def _who_executes(self, mutant: Mutant) -> list[str]:
        """The tests that execute its lines; where it runs on import, too, those of all files that execute any of its module."""
        if mutant.module not in self._of_module:
            self._of_module[mutant.module] = self.lines.of(self.copy.root / mutant.module)
        lines = self._of_module[mutant.module]
        near = {name for line in range(mutant.first_line, mutant.last_line + 1) for name in lines.get(line, ())}
        named = set(near)
        if mutant.on_import or "" in near:  # what is made then may be only looked at
            files = {file_of(name) for names in lines.values() for name in names if name}
            named.update(name for file in files for name in self.lines.records[file].costs)
        return sorted(named - self._unsound - {""}, key=lambda name: (name not in near, self._costs[name], name))

    def _bounded(self, tests: Sequence[str]) -> tuple[list[str], float]:
        """The cheapest of them, while they keep within the bound, and what the others cost."""
        kept: list[str] = []
        spent = 0.0
        for name in tests:
            if spent + self._costs[name] <= self.most_s or not kept:
                kept.append(name)
                spent += self._costs[name]
        return kept, round(sum(self._costs[name] for name in tests) - spent, 1)

    def _parts(self, tests: Sequence[str]) -> list[list[str]]:
        """First a little of the file that knows most about the line, then the rest, file by file, the cheapest file first."""
        by_file: dict[str, list[str]] = defaultdict(list)
        for name in tests:
            by_file[file_of(name)].append(name)
        best = max(by_file, key=lambda file: self._weight(file, by_file[file]))
        first: list[str] = []
        spent = 0.0
        for name in by_file[best]:
            if spent < FIRST_S:
                first.append(name)
                spent += self._costs[name]
        files = sorted(by_file, key=lambda file: sum(self._costs[name] for name in by_file[file]))
        rest = [name for file in files for name in by_file[file] if name not in set(first)]
        return [first, rest] if rest else [first]

    def _weight(self, file: str, tests: Sequence[str]) -> float:
        """How many tests of a file one gets for a second, what it costs to import the file included."""
        quick = [name for name in tests if self._costs[name] < FIRST_S / 10]
        return len(quick) / (IMPORT_S + self.lines.records[file].rest_s + sum(self._costs[name] for name in quick))

    def _run(self, tests: Sequence[str]) -> Answer:
        files = dict.fromkeys(file_of(name) for name in tests)
        cost = sum(self._costs[name] for name in tests) + sum(self.lines.records[file].rest_s for file in files)
        return self.runner.run(tests, cpu_s=int(10 + 4 * cost), wall_s=int(30 + 8 * cost))

    def _is_sound(self, failed: str) -> bool:
        """Whether a test passes without any mutant, run as mutants are. One that does not is not asked again."""
        if failed not in self._costs or failed in self._sound:
            return failed not in self._unsound
        answer = self._run([failed])
        sound = not answer["failed"] and not answer["late"]
        (self._sound if sound else self._unsound).add(failed)
        return sound


def file_of(test: str) -> str:
    """The file that a test stands in."""
    return test.partition("::")[0]


@define
class Kept:
    """Verdicts on disk, so that a run that was stopped goes on.

    That a mutant was killed holds while its module is the same; that it survived, only while everything is.
    """

    path: Path
    everything: str
    """Digest of the rooms and the tests."""
    modules: dict[str, str]
    """Digest of each module."""
    _known: dict[str, Judgement] = field(factory=dict)

    def load(self, mutants: Iterable[Mutant]) -> dict[str, Judgement]:
        """What is known of these mutants."""
        if not self.path.exists():
            return {}
        kept: dict[str, tuple[str, str, Judgement]] = {}
        for line in self.path.read_text(encoding="utf-8").splitlines():
            with suppress(json.JSONDecodeError):  # the last line of a run that was killed
                found = json.loads(line)
                everything, module = found.pop("everything"), found.pop("module")
                kept[found["name"]] = (everything, module, Judgement(**{**found, "verdict": Verdict(found["verdict"])}))
        known = {}
        for mutant in mutants:
            everything, module, judgement = kept.get(mutant.name, ("", "", None))
            if judgement and module == self.modules[mutant.module] and (judgement.is_killed or everything == self.everything):
                known[mutant.name] = judgement
        return known

    def add(self, mutant: Mutant, judgement: Judgement) -> None:
        """Keep one."""
        row = {**asdict(judgement), "verdict": judgement.verdict.value}
        row |= {"everything": self.everything, "module": self.modules[mutant.module]}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
