"""``python -m tests.proof.source_mutants``: a sample of small changes of the source, and whether a test notices each.

With ``--connector`` the source is what of the connector only tests under vLLM execute, and the tool is to be run where vLLM is:
``python -m tests.vllm.run --python 0.33.0 -m tests.proof.source_mutants --connector``.

Nothing is written to the working tree but the page: mutants are planted in a copy below ``.source-mutants``. A run that is
stopped goes on where it was. Status: 0 if every mutant was found or is argued away, 1 if one survived, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from attrs import asdict, frozen

from tests.proof.source_mutants.copying import CACHE, PROJECT, Copy, digest
from tests.proof.source_mutants.judging import Judge, Judgement, Kept, Runner, need_of
from tests.proof.source_mutants.lines import Lines, gather
from tests.proof.source_mutants.operators import Mutant, modules_of, mutants_of, sample
from tests.proof.source_mutants.page import Run, read_argued, told, with_connector, with_page
from tests.vllm.run import OURS

PAGE = PROJECT / "specs" / "source-mutants.md"

NOT_JUDGES = frozenset(
    # what tells and prints: it executes the rooms only to have something to show
    {"test_perfetto", "test_plugin", "test_promela", "test_statistics", "test_story", "test_vllm_driver"}
    # what changes them itself
    | {"test_mutants"}
)
"""Files of tests that are not asked."""


@frozen
class Part:
    """What is judged in one run, and by which tests."""

    rooms: tuple[str, ...]
    tests: tuple[str, ...]
    """Patterns of their files."""
    options: tuple[str, ...]
    """Of pytest."""
    but: frozenset[str] = frozenset()
    """Modules of those rooms that another part judges."""

    def modules(self, copy: Copy) -> list[str]:
        """The modules that are judged."""
        return [module for module in modules_of(copy.root, self.rooms) if module not in self.but]

    def asked(self, copy: Copy) -> list[str]:
        """The files of tests that are asked."""
        found = [path for pattern in self.tests for path in sorted(copy.root.glob(pattern)) if path.stem not in NOT_JUDGES]
        return [str(path.relative_to(copy.root)) for path in found]


_ENGINE_POOL = "blocklife/offload/_engine_pool.py"
"""What an engine like vLLM tells the scheduler: its tests run under vLLM."""
HERE = Part(
    ("blocklife/core", "blocklife/ledger", "blocklife/offload", "blocklife/lifecycle", "blocklife/copiers"),
    tuple(
        f"tests/{room}test_*.py" for room in ("", "core/", "ledger/", "offload/", "copiers/", "toy/", "recording/", "testing/")
    ),
    ("--hypothesis-seed=0",),
    frozenset({_ENGINE_POOL}),
)
"""What is judged without vLLM."""
CONNECTOR = Part(
    ("blocklife/engines/vllm/connector", _ENGINE_POOL),
    ("tests/vllm/test_connector*.py", "tests/vllm/test_behaviour*.py"),
    OURS,
)
"""What only tests under vLLM execute; those that start a server, or run a model, are not asked."""


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.source_mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="which mutants are drawn (%(default)s)")
    parser.add_argument("--count", type=int, default=300, help="how many (%(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="processor time of tests for each, at most (%(default)g)")
    parser.add_argument("--only", default="", metavar="TEXT", help="draw among those with TEXT in their name")
    parser.add_argument("--connector", action="store_true", help="draw from what of the connector needs vLLM")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write its part of the page (specs/source-mutants.md, say)")
    parser.add_argument("--json", action="store_true", help="one JSON line a mutant, instead of the summary")
    return parser.parse_args(arguments)


def drawn(root: Path, chosen: argparse.Namespace, modules: Sequence[str]) -> tuple[list[Mutant], int]:
    """The sample, in the order of the sources, and how many there are to draw from."""
    found = [mutant for module in modules for mutant in mutants_of(module, (root / module).read_text(encoding="utf-8"))]
    among = [mutant for mutant in found if chosen.only in mutant.name]
    taken = sample(among, chosen.count, chosen.seed)
    return sorted(taken, key=lambda mutant: (mutant.module, mutant.start)), len(among)


def not_here(copy: Copy, lines: Lines, modules: Sequence[str]) -> dict[str, str]:
    """The modules that no test executes for want of something, each with what it needs: none of their mutants is drawn."""
    needs = {module: need_of(module) for module in modules}
    seen = {module: {name for names in lines.of(copy.root / module).values() for name in names} for module in needs}
    return {module: need for module, need in needs.items() if need and not seen[module] - {""}}


def say(text: str) -> None:
    """Progress goes to standard error."""
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what was asked for."""
    chosen, begin = parsed(arguments), time.monotonic()
    part = CONNECTOR if chosen.connector else HERE
    copy = Copy()
    copy.refresh()
    modules, asked = part.modules(copy), part.asked(copy)
    lines = gather(copy, asked, part.rooms, part.options, say)
    left_out = not_here(copy, lines, modules)
    mutants, num_all = drawn(copy.root, chosen, [module for module in modules if module not in left_out])
    digests = {module: digest([copy.root / module]) for module in modules}
    everything = digest([*(copy.root / module for module in modules), *(copy.root / path for path in asked)])
    kept = Kept(CACHE / "verdicts.jsonl", f"{everything} {chosen.seconds:g}", digests)
    known, judgements = kept.load(mutants), list[Judgement]()
    argued = {name: why for name, why in read_argued().items() if name.partition(" ")[0] in digests}
    judge = Judge(copy, lines, Runner(copy, part.options), chosen.seconds)
    for number, mutant in enumerate(mutants, 1):
        judgement = known.get(mutant.name)
        if judgement is None:
            judgement = judge.judge(mutant)
            kept.add(mutant, judgement)
            say(f"{time.monotonic() - begin:6.0f} s {number}/{len(mutants)} {told(judgement)}")
        judgements.append(judgement)
        if chosen.json:
            print(json.dumps({**asdict(judgement), "verdict": judgement.verdict.value}), flush=True)
    run = Run(chosen.seed, num_all, chosen.seconds, judgements, argued, left_out)
    if chosen.page:
        before = chosen.page.read_text(encoding="utf-8") if chosen.page.exists() else ""
        text = with_connector(before, run) if chosen.connector else with_page(before, run)
        chosen.page.write_text(text, encoding="utf-8")
    if not chosen.json:
        print(
            f"found: {run.score}; argued away: {len(run.argued_away)}; not judged: {len(run.away)} and {len(left_out)} modules"
        )
        for each in run.moot:
            print(f"argued away, and found by {each.by or 'the time it took'}: {each.name}")
        for each in run.survivors:
            print(f"{each.verdict.value}: {each.name}")
    return 1 if run.survivors else 0


def _stopped(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    for each in (signal.SIGINT, signal.SIGTERM):  # in the background, too, where a shell has them ignored
        signal.signal(each, _stopped)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("stopped; the same command goes on from here")
        sys.exit(130)
