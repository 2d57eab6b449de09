"""What hooks cost: where nobody listens, where somebody listens to something else, and where a hook hears every step."""

from __future__ import annotations

from collections.abc import Callable

from blocklife.ledger import Ledger
from blocklife.lifecycle import Transition
from blocklife.states import BlockLife, JobLife
from tests.bench import Figure, Scale, nanoseconds
from tests.bench.ledger import take_and_release
from tests.bench.lifecycle import CODE, DoorLife

BATCH = 1_000


def hear(_: Transition) -> None:
    """A hook that does nothing."""


def elsewhere(ledger: Ledger) -> None:
    """Somebody listens to other events of blocks, and to jobs."""
    ledger.on(BlockLife.seal, JobLife, hook=hear)


def everything(ledger: Ledger) -> None:
    """Somebody hears every step."""
    ledger.on(hook=hear)


def measure(scale: Scale) -> list[Figure]:
    """The figures of this suite."""
    figures: list[Figure] = []
    for size, unit in ((1, "ns a verb"), (BATCH, "ns a life")):
        calls = scale.calls if size == 1 else max(2, scale.calls * 5 // size)
        silent = nanoseconds(take_and_release(size), scale, calls) / size
        for said, register in (("hooks on other events", elsewhere), ("a hook that hears all", everything)):
            figures.append(
                Figure(
                    name=f"acquire or release {size}, {said}",
                    ours=nanoseconds(take_and_release(size, register), scale, calls) / size,
                    unit=unit,
                    peer_name="ours, nobody listens",
                    peer=silent,
                )
            )
    figures.append(
        Figure(
            name="guarded step of one machine, a hook that hears all",
            ours=nanoseconds(one_machine(heard=True), scale),
            unit="ns",
            peer_name="ours, nobody listens",
            peer=nanoseconds(one_machine(heard=False), scale),
        )
    )
    return figures


def one_machine(*, heard: bool) -> Callable[[int], None]:
    """The steps that the suite of single machines makes."""
    machine = DoorLife()
    if heard:
        machine.on(hook=hear)

    def loop(number: int) -> None:
        for _ in range(number // 2):
            machine.lock(CODE)
            machine.unlock(CODE)

    return loop
