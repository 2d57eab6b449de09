"""``python -m tests.sglang.run --python VERSION -m tests.sglang.found [NAME]``: faults of SGLang itself that the rig has found.

Each story is as small as it could be made, runs SGLang's own scheduler and cache without a GPU, and needs nothing of blocklife.
It prints one line: what is seen, or that nothing is. Exit status 0 if every story that was asked for shows its fault, else 1.
`specs/sglang-findings.md` tells them.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import TypeAlias

if __name__ == "__main__" and "PYTHONHASHSEED" not in os.environ:
    # only with fixed hashes do two processes of one seed do the same
    os.execve(
        sys.executable, [sys.executable, "-m", "tests.sglang.found", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"}
    )

from tests.sglang.engine import RELEASE
from tests.sglang.rig import Rank, Rig, WorldSpec
from tests.sglang.traffic import Traffic
from tests.sglang.worlds import WORLDS, Lag

Attach: TypeAlias = Callable[[Rank], None]
Story: TypeAlias = Callable[[Attach | None], tuple[Rig, str]]
"""Takes what is done to each rank first, a watch say. Returns the rig, and what was seen; "" for nothing."""

NEVER = Lag(0.0, 1)
"""No copy lands by itself."""


def aborted_while_a_copy_holds_its_memory(attach: Attach | None = None) -> tuple[Rig, str]:
    """A request that runs alone is aborted for want of memory that a copy to the host is about to give back.

    72 slots, pages of one token, written through. Two requests run; the first one ends, and its slots are locked until their
    copy has landed. The second one goes on alone, and needs more slots before that.
    """
    rig = Rig(WorldSpec(page_tokens=1, device_pages=72, host_pages=160, lag=NEVER), 0, attach)
    rig.add(list(range(10, 15)), max_tokens=30)
    rig.step()
    second = rig.add(list(range(100, 105)), max_tokens=36)
    for _ in range(60):
        if second in rig.running:
            rig.step()
    tree = rig.ranks[0].tree
    held, out = tree.protected_size(), rig.left_behind
    held = held[0] if isinstance(held, tuple) else held
    rig.ranks[0].device.land_all()
    rig.step()
    after = tree.protected_size()
    after = after[0] if isinstance(after, tuple) else after
    if second not in rig.given_up:
        return rig, ""
    return rig, (
        f"step {rig.step_number - 1}: the only request is aborted ({rig.given_up[second]!r}), while {held} of 72 tokens are"
        f" locked by a copy that is out ({out} operations); one step after it has landed {after} are"
    )


def window_budget_counts_what_the_load_locks(attach: Attach | None = None) -> tuple[Rig, str]:
    """A request is admitted with memory of the windows that its own load then locks, and the scheduler falls.

    The prefix of a request has its keys and values of full attention on the device; of the windows a part is on the device and
    a part on the host. What is on the device counts as evictable when the request is admitted; the load locks it.
    """
    world = WORLDS["window"]
    rig = Rig(world.spec, 172, attach)
    traffic = Traffic.drawn(rig, 172, world=world)
    try:
        traffic.run(400)
        rig.drain(100)
    except RuntimeError as error:
        return rig, f"step {rig.step_number}: {str(error).splitlines()[0]}"
    except TimeoutError:
        return rig, ""
    return rig, ""


def ranks_store_different_nodes(attach: Attach | None = None) -> tuple[Rig, str]:
    """One of two ranks has less host memory and cannot store what the other stores: their counts of what has landed differ."""
    world = WORLDS["skewed"]
    rig = Rig(world.spec, 0, attach)
    traffic = Traffic.drawn(rig, 0, world=world)
    traffic.run(250)
    try:
        rig.drain(100)
    except TimeoutError:
        waiting = [len(rank.tree.ongoing_write_through) for rank in rig.ranks]
        return rig, f"step {rig.step_number}: no request is left, and the ranks wait for {waiting} stores to be counted"
    return rig, ""


FOUND: tuple[Story, ...] = (
    aborted_while_a_copy_holds_its_memory,
    window_budget_counts_what_the_load_locks,
    ranks_store_different_nodes,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Tell the stories."""
    known = {story.__name__: story for story in FOUND}
    parser = argparse.ArgumentParser(prog="python -m tests.sglang.found", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="instead of all: " + ", ".join(known))
    chosen = parser.parse_args(argv).names
    if unknown := [name for name in chosen if name not in known]:
        parser.error(f"no story is called {unknown[0]!r} (one is {next(iter(known))})")
    logging.disable(logging.CRITICAL)
    status = 0
    for name in chosen or known:
        _, seen = known[name](None)
        print(f"SGLang {RELEASE}: {name}: {seen or 'does not show'}", flush=True)
        status |= not seen
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
