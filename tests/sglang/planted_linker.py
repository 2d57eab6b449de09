"""Faults that are planted in our linker one at a time, from outside, before the first step: the rig must see each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from attrs import evolve, frozen

from blocklife.connector_states import LinkedCopyState
from blocklife.engines.sglang.linker._transport import RANK
from blocklife.ledger import Completion, Direction, Result
from tests.sglang.rig import Rank
from tests.sglang.scenario_ranks import ScenarioRank


@frozen
class LinkerFault:
    """What is done wrong, a world of `tests.sglang.linked` in which that matters, and what is seen."""

    world: str
    plant: Callable[[Any], None]
    """Called with the linker of each rank."""
    shows: frozenset[str] = frozenset({"corrupt"})


def linker_of(rank: Rank | ScenarioRank) -> Any:
    """The linker of a rank."""
    return rank.tree.linker.cache_linker


def load_not_waited_for(linker: Any) -> None:
    """The forward pass does not wait for the loads that it reads."""
    for transport in linker.transports:
        transport.before_forward = lambda blocks: None


def layers_not_waited_for(linker: Any) -> None:
    """No layer waits for its part of the loads."""
    linker.layer_done_counter._before_layer = lambda layer: None


def forward_not_waited_for(linker: Any) -> None:
    """Copies do not wait for the forward pass that still writes what they read, or uses what they write."""
    for transport in linker.transports:
        transport._engines = (None,)


def acknowledged_early(linker: Any) -> None:
    """A store counts as over when it is planned, so SGLang unlocks its pages while the copy reads them."""
    for memory in linker.host.memories:
        store = memory.store

        def nothing() -> None:
            """Its copy has ended, and it is over already."""

        def planned(keys: Sequence[bytes], blocks: Sequence[int], store: Callable[..., Any] = store) -> Any:
            copy = store(keys, blocks)
            copy.life = SimpleNamespace(state=LinkedCopyState.ARRIVED, land=nothing, lose=nothing, take=nothing)
            return copy

        memory.store = planned


def acknowledged_in_another_order(linker: Any) -> None:
    """Stores are counted as they land, and taken in the order in which they were made."""

    def count(self: Any) -> int:
        return sum(all(copy.is_over for copy in node) for node in self._stores)

    kind = type(linker.host)
    linker.host.__class__ = type("Unordered", (kind,), {"num_acknowledged": property(count)})


def pages_swapped(linker: Any) -> None:
    """The pages of a node are stored under each other's keys."""
    store = linker.host.store
    linker.host.store = lambda node: store([evolve(pages, blocks=pages.blocks[::-1]) for pages in node])


def states_swapped(linker: Any) -> None:
    """Two states that are offered in one step are stored under each other's keys."""
    planned = linker._plan_offered

    def swapped() -> None:
        states = [each for transfers in linker._offered for each in transfers if each.name.name == "MAMBA"]
        indices = [each.device_indices for each in states][::-1]
        for each, other in zip(states, indices, strict=True):
            each.device_indices = other
        planned()

    linker._plan_offered = swapped


def failure_ignored(linker: Any) -> None:
    """A load that has failed is said to have arrived, and the tree takes what is there."""
    finish = linker.host.finish_loads

    def finished(batch: int, *, wait: bool) -> bool:
        finish(batch, wait=wait)
        return True

    linker.host.finish_loads = finished


def failed_store_published(linker: Any) -> None:
    """A copy to the host that has failed counts as whole."""
    for memory, transport in zip(linker.host.memories, linker.transports, strict=True):
        report, execute = transport.poll, transport.execute

        def whole(completions: Sequence[Any], memory: Any = memory) -> list[Any]:
            from blocklife.ledger import Completion, Direction, Result

            def stores(number: int) -> bool:
                copy = memory._by_job.get(number)
                return copy is not None and copy.direction is Direction.STORE

            return [
                Completion(each.job, each.worker, Result.OK, each.missing) if stores(each.job.number) else each
                for each in completions
            ]

        def executed(plan: Any, execute: Callable[..., Any] = execute, whole: Callable[..., Any] = whole) -> Any:
            launched, completions = execute(plan)
            return launched, whole(completions)

        transport.poll = lambda report=report, whole=whole: whole(report())
        transport.execute = executed


def copier_trusted(linker: Any) -> None:
    """The engine goes on before the copies of a load are over, although the copier may still report that they have failed."""
    for transport in linker.transports:
        transport.__class__ = type("Trusted", (type(transport),), {"is_certain": property(lambda _: True)})


def refusal_not_compared(linker: Any) -> None:
    """A rank whose load cannot be launched computes its pages, and the others load them."""
    linker._agreed = lambda done: done


def overdue_left_running(linker: Any) -> None:
    """A copy past its deadline is taken for quiet, and SGLang unlocks its pages while it reads them."""
    give_up = linker._give_up_late

    def given_up() -> None:
        wait, linker._wait = linker._wait, lambda jobs: None
        give_up()
        linker._wait = wait

    linker._give_up_late = given_up


def reset_at_once(linker: Any) -> None:
    """A flush does not wait for copies, whose pages are then handed out again."""
    reset = linker.reset

    def at_once() -> None:
        wait, linker._wait = linker._wait, lambda jobs: None
        reset()
        linker._wait = wait

    linker.reset = at_once


def pages_kept(linker: Any) -> None:
    """The ledger is not told that SGLang has its pages back."""
    for memory in linker.host.memories:
        memory._rows.leave = memory.ledger.finish


def below_swapped(linker: Any) -> None:
    """The pages of a job are put into the store below under each other's names."""
    for transport in linker.transports:
        launch = transport.below.launch

        def swapped(transfer: Any, launch: Callable[..., Any] = launch) -> None:
            launch(evolve(transfer, keys=transfer.keys[::-1]) if transfer.direction is Direction.DEMOTE else transfer)

        transport.below.launch = swapped


def fetched_early(linker: Any) -> None:
    """What a store below is asked for counts as fetched: its slots are read before it has come."""
    for transport in linker.transports:
        launch, copier = transport.below.launch, transport.below

        def early(transfer: Any, launch: Callable[..., Any] = launch, copier: Any = copier) -> None:
            launch(transfer)
            if transfer.direction is Direction.PROMOTE:
                copier.landed.append(Completion(transfer.job, RANK, Result.OK))

        transport.below.launch = early


LINKER_FAULTS: dict[str, LinkerFault] = {
    "load_not_waited_for": LinkerFault("token-overlap", load_not_waited_for),
    "layers_not_waited_for": LinkerFault("layers", layers_not_waited_for),
    "forward_not_waited_for": LinkerFault("token-overlap", forward_not_waited_for),
    "acknowledged_early": LinkerFault("token-overlap", acknowledged_early, frozenset({"corrupt", "RefusedError"})),
    "acknowledged_in_another_order": LinkerFault("faulty", acknowledged_in_another_order, frozenset({"RefusedError"})),
    "pages_swapped": LinkerFault("token-overlap", pages_swapped),
    "failure_ignored": LinkerFault("faulty", failure_ignored),
    "failed_store_published": LinkerFault("faulty", failed_store_published),
    "copier_trusted": LinkerFault("faulty", copier_trusted, frozenset({"corrupt", "texts"})),
    "refusal_not_compared": LinkerFault("unlaunched-ranks", refusal_not_compared, frozenset({"PartedError", "corrupt"})),
    "states_swapped": LinkerFault("states-overlap", states_swapped),
    "window_not_waited_for": LinkerFault("window", load_not_waited_for),
    "overdue_left_running": LinkerFault("impatient", overdue_left_running),
    "reset_at_once": LinkerFault("flushes", reset_at_once),
    "below_swapped": LinkerFault("below", below_swapped),
    "fetched_early": LinkerFault("below", fetched_early),
    "pages_kept": LinkerFault("token", pages_kept, frozenset({"missing"})),
}
