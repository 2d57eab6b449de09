"""``python -m tests.source_mutants``: a sample of small changes of the source, and whether a test notices each.

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

from attrs import asdict

from tests.source_mutants.copying import CACHE, PROJECT, Copy, digest
from tests.source_mutants.judging import Judge, Judgement, Kept, Nursery, need_of
from tests.source_mutants.lines import Lines, gather
from tests.source_mutants.operators import Mutant, modules_of, mutants_of, sample
from tests.source_mutants.page import Run, page, read_argued, told

ROOMS = (
    "blocklife/ledger",
    "blocklife/offload",
    "blocklife/lifecycle.py",
    "blocklife/copiers",
    "blocklife/engines/vllm/connector",
)
PAGE = PROJECT / "specs" / "source-mutants.md"

NOT_JUDGES = frozenset(
    # what draws, tells and prints: it executes the rooms only to have something to show
    {"test_bench", "test_check", "test_cli", "test_diff", "test_doctor", "test_draw", "test_drawing", "test_layout"}
    | {"test_notebook", "test_overlays", "test_perfetto", "test_picture", "test_plugin", "test_promela", "test_readme"}
    | {"test_scxml", "test_sequence", "test_show", "test_specs", "test_statistics", "test_story", "test_svg", "test_tla"}
    | {"test_viewer", "test_vllm_behaviour", "test_vllm_driver", "test_vllm_page"}
    # what never executes them, or changes them itself
    | {"test_layers", "test_typing", "test_mutants", "test_source_mutants"}
    # the watch: a room of its own, over a ledger
    | {
        "test_watch_ears",
        "test_watch_engine",
        "test_watch_mirror",
        "test_watch_plans",
        "test_watch_watching",
        "test_watch_worker",
    }
)
"""Files of tests that are not asked."""


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.source_mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="which mutants are drawn (%(default)s)")
    parser.add_argument("--count", type=int, default=300, help="how many (%(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="processor time of tests for each, at most (%(default)g)")
    parser.add_argument("--only", default="", metavar="TEXT", help="draw among those with TEXT in their name")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the page (specs/source-mutants.md, say)")
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
    copy = Copy()
    copy.refresh()
    modules = modules_of(copy.root, ROOMS)
    tests = [str(path.relative_to(copy.root)) for path in sorted((copy.root / "tests").glob("test_*.py"))]
    asked = [path for path in tests if Path(path).stem not in NOT_JUDGES]
    lines = gather(copy, asked, ROOMS, say)
    left_out = not_here(copy, lines, modules)
    mutants, num_all = drawn(copy.root, chosen, [module for module in modules if module not in left_out])
    digests = {module: digest([copy.root / module]) for module in modules}
    everything = digest([*(copy.root / module for module in modules), *(copy.root / path for path in asked)])
    kept = Kept(CACHE / "verdicts.jsonl", f"{everything} {chosen.seconds:g}", digests)
    known, argued, judgements = kept.load(mutants), read_argued(), list[Judgement]()
    with Nursery(copy) as nursery:
        judge = Judge(copy, lines, nursery, chosen.seconds)
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
        chosen.page.write_text(page(run), encoding="utf-8")
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
