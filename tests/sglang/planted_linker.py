"""Faults that are planted in our linker one at a time, from outside, before the first step: the rig must see each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from attrs import frozen

from blocklife.connector_states import KNOWN, LinkedStoreState
from blocklife.ledger import JobId
from tests.sglang.rig import Rank


@frozen
class LinkerFault:
    """What is done wrong, a world of `tests.sglang.linked` in which that matters, and what is seen."""

    world: str
    plant: Callable[[Any], None]
    """Called with the linker of each rank."""
    shows: frozenset[str] = frozenset({"corrupt"})


def linker_of(rank: Rank) -> Any:
    """The linker of a rank."""
    return rank.tree.linker.cache_linker


def load_not_waited_for(linker: Any) -> None:
    """The forward pass does not wait for the loads that it reads."""
    linker.transport.before_forward = lambda blocks: None


def layers_not_waited_for(linker: Any) -> None:
    """No layer waits for its part of the loads."""
    linker.layer_done_counter._before_layer = lambda layer: None


def forward_not_waited_for(linker: Any) -> None:
    """Copies do not wait for the forward pass that still writes what they read, or uses what they write."""
    linker.transport._forward_stream = None


def acknowledged_early(linker: Any) -> None:
    """A store counts as over when it is planned, so SGLang unlocks its pages while the copy reads them."""
    host = linker.host
    plan = host._plan

    def nothing() -> None:
        """Its copy has ended, and it is over already."""

    def planned(store: Any, keys: Sequence[bytes], there: Sequence[int]) -> None:
        plan(store, keys, there)
        store.life = SimpleNamespace(state=LinkedStoreState.KEPT, land=nothing, lose=nothing, take=nothing)

    host._plan = planned


def acknowledged_in_another_order(linker: Any) -> None:
    """Stores are counted as they land, and taken in the order in which they were made."""

    def count(self: Any) -> int:
        return sum(store.life.state in KNOWN for store in self._stores)

    kind = type(linker.host)
    linker.host.__class__ = type("Unordered", (kind,), {"num_acknowledged": property(count)})


def pages_swapped(linker: Any) -> None:
    """The pages of a node are stored under each other's keys."""
    offload = linker.offload

    def swapped(transfers: Any, session_id: str | None = None) -> bool:
        blocks, linker.pages.blocks = linker.pages.blocks, lambda indices: blocks(indices)[::-1]
        done = bool(offload(transfers, session_id))
        linker.pages.blocks = blocks
        return done

    linker.offload = swapped


def failure_ignored(linker: Any) -> None:
    """A load that has failed is said to have arrived, and the tree takes what is there."""
    finish = linker.host.finish_loads

    def finished(batch: int) -> bool:
        finish(batch)
        return True

    linker.host.finish_loads = finished


def failed_store_published(linker: Any) -> None:
    """A copy to the host that has failed counts as whole."""
    report = linker.transport.poll
    execute = linker.transport.execute

    def whole(completions: Sequence[Any]) -> list[Any]:
        from blocklife.ledger import Completion, Result

        loads = {job for batch in linker.host._started for job in linker.host.loading(batch)}
        return [
            each if each.job in loads else Completion(each.job, each.worker, Result.OK, each.missing) for each in completions
        ]

    def executed(plan: Any) -> Any:
        launched, completions = execute(plan)
        return launched, whole(completions)

    linker.transport.poll = lambda: whole(report())
    linker.transport.execute = executed


def load_left_running(linker: Any) -> None:
    """The engine goes on before the copies of a load are over, and is told that they are."""
    host, transport = linker.host, linker.transport
    wait, finish = transport.wait, host.finish_loads

    def waited(jobs: Sequence[JobId]) -> None:
        loads = {job for batch in host._started for job in host.loading(batch)}
        wait([job for job in jobs if job not in loads])

    def finished(batch: int) -> bool:
        finish(batch)
        return True

    transport.wait, host.finish_loads = waited, finished
    linker.transport.before_forward = lambda blocks: None


def overdue_left_running(linker: Any) -> None:
    """A copy past its deadline is taken for quiet, and SGLang unlocks its pages while it reads them."""
    give_up = linker._give_up_late

    def given_up() -> None:
        wait, linker.transport.wait = linker.transport.wait, lambda jobs: None
        give_up()
        linker.transport.wait = wait

    linker._give_up_late = given_up


def reset_at_once(linker: Any) -> None:
    """A flush does not wait for copies, whose pages are then handed out again."""
    reset = linker.reset

    def at_once() -> None:
        wait, linker.transport.wait = linker.transport.wait, lambda jobs: None
        reset()
        linker.transport.wait = wait

    linker.reset = at_once


def pages_kept(linker: Any) -> None:
    """The ledger is not told that SGLang has its pages back."""
    linker.host._release_content = lambda blocks: None


LINKER_FAULTS: dict[str, LinkerFault] = {
    "load_not_waited_for": LinkerFault("token-overlap", load_not_waited_for),
    "layers_not_waited_for": LinkerFault("layers", layers_not_waited_for),
    "forward_not_waited_for": LinkerFault("token-overlap", forward_not_waited_for),
    "acknowledged_early": LinkerFault("token-overlap", acknowledged_early, frozenset({"corrupt", "RefusedError"})),
    "acknowledged_in_another_order": LinkerFault("faulty", acknowledged_in_another_order, frozenset({"MisuseError"})),
    "pages_swapped": LinkerFault("token-overlap", pages_swapped),
    "failure_ignored": LinkerFault("faulty", failure_ignored),
    "failed_store_published": LinkerFault("faulty", failed_store_published),
    "load_left_running": LinkerFault("token-overlap", load_left_running),
    "overdue_left_running": LinkerFault("impatient", overdue_left_running),
    "reset_at_once": LinkerFault("flushes", reset_at_once),
    "pages_kept": LinkerFault("token", pages_kept, frozenset({"missing"})),
}
