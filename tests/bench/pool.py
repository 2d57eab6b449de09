"""What a step costs in a large pool: the same requests do the same, and only the number of blocks differs.

The blocks that nobody needs are free, and stand in the queue before those that the requests give back: in a large pool each
hand-out takes a block that was never touched before, from memory that is in no cache of the processor.
"""

from __future__ import annotations

from tests.bench import Figure, Scale, microseconds
from tests.bench.offload import World

RUNNING = 64


def measure(scale: Scale) -> list[Figure]:
    """The figures of this suite: 10 million blocks take some 300 MiB."""
    steps = 192 if scale.full else 8
    smallest = World(RUNNING, 0, steps)
    needed = len(smallest.ledger.blocks)
    sizes = (100_000, 1_000_000, 10_000_000) if scale.full else (needed * 2,)
    worlds = {needed: smallest} | {size: World(RUNNING, 0, steps, blocks=size) for size in sizes}
    cost = microseconds({str(size): world.step for size, world in worlds.items()}, steps)
    return [
        Figure(
            name=f"scheduler step, {RUNNING} running, {size:,} blocks",
            ours=cost[str(size)],
            unit="us",
            peer_name=f"ours, as few blocks as they need ({needed:,})",
            peer=cost[str(needed)],
            target="flat",
        )
        for size in sizes
    ]
