"""``python -m tests.bench.gpu [--json] [--seconds N] [--pages 4K,64K] [--dry]``: measure copies on a GPU.

With ``--dry`` the whole program runs on CPU tensors, in a size for tests: none of its figures says anything about a GPU. With
``--from FILE`` nothing is measured: what ``--json`` printed before is printed as tables, in Markdown.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from blocklife.copiers.torch._memory import available_bytes
from blocklife.errors import BlocklifeError
from tests.bench.gpu.arena import FULL, SMOKE
from tests.bench.gpu.measuring import PAGES, Wish, measure
from tests.bench.gpu.records import LARGE_PAGE, Report, from_json, size, to_json
from tests.bench.gpu.tables import markdown

WRONG, BAD = 1, 2


def pages(text: str) -> tuple[int, ...]:
    """Sizes like ``4K,1M``. Refuses what is not one of those that are measured."""
    found = []
    for word in text.upper().split(","):
        shift = {"K": 10, "M": 20}.get(word.strip()[-1:], 0)
        digits = word.strip().rstrip("KM")
        nbytes = int(digits) << shift if digits.isdigit() else 0
        if nbytes not in PAGES:
            raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(map(size, PAGES))} (write 4K,64K,1M)")
        found.append(nbytes)
    return tuple(found)


def seconds(text: str) -> float:
    """A time. Refuses what is none."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no time (give more than 0)")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure or read a report, and print it. 1: wrong bytes, somebody raised, or it ended early; 2: no GPU, or no report."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables: every repetition of everything")
    parser.add_argument("--seconds", type=seconds, default=400.0, help="what it may take; what has no room is named (400)")
    parser.add_argument("--pages", type=pages, default=PAGES, metavar="SIZES", help="only these page sizes, as 4K,64K,1M")
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE", help="measure nothing: print this JSON again")
    parser.add_argument(
        "--dry", action="store_true", help="run on CPU tensors, in a size for tests, to see that all of it runs"
    )
    chosen = parser.parse_args(arguments)
    try:
        report = _report(chosen)
    except (BlocklifeError, OSError) as problem:
        print(f"bench gpu: {problem}", file=sys.stderr)
        return BAD
    print(to_json(report) if chosen.json else markdown(report))
    return WRONG if report.troubles or report.broken else 0


def _report(chosen: argparse.Namespace) -> Report:
    if chosen.source is not None:
        return from_json(chosen.source.read_text(encoding="utf-8"))
    if chosen.dry:
        pages = tuple(page for page in chosen.pages if page <= LARGE_PAGE)  # larger ones have no room there
        where = torch.device("cpu")
        return measure(Wish(where=where, sizes=SMOKE, pages=pages, beside_pages=pages[:1], seconds=chosen.seconds), _say)
    if not torch.cuda.is_available():
        raise NoGpuError("needs a CUDA device, and torch sees none (--from FILE prints an old report)")
    where = torch.device("cuda", torch.cuda.current_device())
    free, _ = torch.cuda.mem_get_info(where)
    available = available_bytes()
    sizes = FULL.within(free if available is None else min(free, 4 * available))
    wish = Wish(where=where, sizes=sizes, pages=chosen.pages, seconds=chosen.seconds)
    return measure(wish, _say)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class NoGpuError(BlocklifeError):
    """There is nothing to be measured here."""


if __name__ == "__main__":
    sys.exit(main())
