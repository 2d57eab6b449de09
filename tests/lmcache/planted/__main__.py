"""``python -m tests.lmcache.run --python 0.5.6 -m tests.lmcache.planted``: which bugs the watch names when they are planted.

Each bug is planted alone, in each seed of each of its worlds, beside as many runs without any. What comes out is a table:
in how many runs a bug did harm, and in how many of these a rule fell no later, later, or not at all.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from tests.behind.planted.program import carried_out, parser
from tests.programs import refused, with_fixed_hashes

if __name__ == "__main__":
    with_fixed_hashes("tests.lmcache.planted")

from tests.lmcache.engine import RELEASE
from tests.lmcache.planted import MADE_FOR, SETS, STEPS, sets
from tests.lmcache.planted.play import played

PROGRAM = "tests.lmcache.planted"


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what was asked for."""
    chosen = parser(PROGRAM, __doc__, 5, STEPS, SETS).parse_args(arguments)
    if RELEASE != MADE_FOR:
        refused(PROGRAM, f"the bugs are made for LMCache {MADE_FOR}, and this is {RELEASE}")
    logging.disable(logging.CRITICAL)
    return carried_out(PROGRAM, chosen, sets(), played)


if __name__ == "__main__":
    sys.exit(main())
