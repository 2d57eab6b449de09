"""``python -m tests.vllm.run --python 0.33.0 -m tests.vllm.planted``: which bugs the watch names when they are planted in vLLM.

Each bug is planted alone, in each seed of each of its worlds, beside as many runs without any. What comes out is a table:
in how many runs a bug did harm, and in how many of these a rule fell no later, later, or not at all.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from blocklife.engines.vllm._versions import minor_of
from tests.behind.planted.program import carried_out, parser
from tests.programs import importing, refused
from tests.vllm.planted import MADE_FOR, SETS, STEPS, sets

PROGRAM = "tests.vllm.planted"
with importing(PROGRAM, __name__):
    from tests.vllm.engine import RELEASE
    from tests.vllm.planted.play import played


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what was asked for."""
    chosen = parser(PROGRAM, __doc__, 6, STEPS, SETS).parse_args(arguments)
    if minor_of(RELEASE) != minor_of(MADE_FOR):
        refused(PROGRAM, f"the bugs are made for vLLM {MADE_FOR}, and this is {RELEASE}")
    return carried_out(PROGRAM, chosen, sets(), played)


if __name__ == "__main__":
    sys.exit(main())
