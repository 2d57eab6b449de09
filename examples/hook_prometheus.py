"""Counters for Prometheus: one hook counts every transition of blocks by event and by the state that it leads to.

Needs the package prometheus-client. Prints what a scrape would read::

    kv_block_transitions_total{entered="ALLOCATED",event="allocate"} 3.0
    kv_block_transitions_total{entered="SEALED",event="seal"} 2.0
    kv_block_transitions_total{entered="FREED",event="release"} 1.0
"""

from __future__ import annotations

from collections import Counter as Tally

from prometheus_client import CollectorRegistry, Counter, generate_latest

from blocklife import Batch, Ledger, Limits
from blocklife.ledger import LedgerTransition
from blocklife.states import BlockLife


def count_transitions(ledger: Ledger, registry: CollectorRegistry) -> None:
    """One call of the hook for a batch: the places are counted first, so that a counter is touched once for each state."""
    total = Counter("kv_block_transitions", "Steps of KV blocks.", ["event", "entered"], registry=registry)

    @ledger.on(BlockLife)
    def count(transition: LedgerTransition) -> None:
        for state, times in Tally(move.target.name for move in transition).items():
            total.labels(transition.event, state).inc(times)


def main() -> None:
    registry, ledger = CollectorRegistry(), Ledger(Limits(num_blocks=8, num_slots=4))
    count_transitions(ledger, registry)
    ledger.add_request("a")
    held = ledger.allocate("a", 3)
    ledger.seal(Batch(held.lives[:2]), [b"x", b"y"])
    ledger.release("a", [2])
    print(generate_latest(registry).decode())


if __name__ == "__main__":
    main()
