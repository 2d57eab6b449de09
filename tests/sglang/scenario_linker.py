"""One rank of SGLang with our own linker under a scenario: stores land when that lets them, or when they are waited for.

As in `scenario_ranks`, a store looks at what it copies at the earliest, and copies at the latest, when its gate opens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from attrs import evolve

from blocklife.copiers.torch._layout import Pages
from blocklife.engines.sglang.linker._memory import LinkedMemory
from blocklife.ledger import Direction, JobId, Transfer
from blocklife.ledger.invariants import check
from blocklife.testing import Problem, Unsupported
from tests.proof.drivers.filling import fill, free_filled
from tests.sglang.device import current
from tests.sglang.linked import LateDevice, LateLinker, LateStream
from tests.sglang.scenario_ranks import Gate, GatedCopies, GatedOperation, Load, ScenarioRank, Store, Team, Witness
from tests.sglang.worlds import WorldSpec

FOREVER = 1e9
LOST = -1.0
"""What is in a page that was handed out anew."""


class GatedStream(LateStream):
    """A stream whose copies run early and late."""

    def copy(self, pages: Pages, direction: Direction) -> None:
        """Queue a look at all that is read, and the copy behind its gate."""
        copies = current().copies
        assert isinstance(copies, GatedCopies)
        moves = self.moves(copies, pages, direction)
        what = "to host" if direction is Direction.STORE else "to device"

        def look() -> None:
            for source, _, want in moves:
                copies.witness.compare(copies.rank, f"a copy {what}", "its rows", source, want)

        def move() -> None:
            look()
            for source, target, _ in moves:
                target.copy_(source)

        self.inner.put(look)
        if copies.gate is None:
            self.inner.put(move)
        else:
            self.inner.put_operation(GatedOperation(copies.gate, move))


class GatedLateDevice(LateDevice):
    """The rig's device with such streams."""

    streams = GatedStream


class ScenarioLinker(LateLinker):
    """The linker on them. No copy is past its deadline, and a broken rule of its ledger raises."""

    devices = GatedLateDevice

    def __init__(self, *args: Any, extra_config: Mapping[str, object], **kwargs: Any) -> None:
        super().__init__(*args, extra_config={**extra_config, "deadline_s": FOREVER, "checking": "strict"}, **kwargs)


class LinkedRank(ScenarioRank):
    """SGLang's scheduler on one rank, with the linker, whose host has as many pages as the rank has places."""

    def __init__(self, spec: WorldSpec, team: Team, number: int, witness: Witness, num_places: int) -> None:
        super().__init__(evolve(spec, host_pages=num_places), team, number, witness, num_places)

    @property
    def memory(self) -> LinkedMemory:
        """The memory of pages of full attention, the only one here."""
        (found,) = self.tree.linker.cache_linker.host.memories
        assert isinstance(found, LinkedMemory)
        return found

    def _begin(self) -> None:
        (transport,) = self.tree.linker.cache_linker.transports
        transport._copier.launch = self._launching(transport._copier.launch)

    def _handed_out(self, slots: torch.Tensor | None) -> None:
        """What is in new pages is lost, behind the steps that are under way: who does not wait for a load reads wrong bytes."""
        super()._handed_out(slots)
        if slots is not None:
            size, pool = self.spec.page_tokens, self.engine.pool
            rows = [slot + at for slot in slots.tolist() if not slot % size for at in range(size)]

            def lose() -> None:
                for buffer in (*pool.k_buffer, *pool.v_buffer):
                    buffer[rows] = LOST

            self.engine.forward_stream.put(lose)

    def _launching(self, launch: Callable[[Transfer], None]) -> Callable[[Transfer], None]:
        def launched(transfer: Transfer) -> None:
            source, target = transfer.source.tolist(), transfer.target.tolist()
            if transfer.direction is Direction.LOAD:
                self.facts.loads.append(Load(target, source))
                launch(transfer)
                return
            store = Store(source, target, Gate(), ack=transfer.job)
            self.copies.gate = store.gate
            self.device.stores.append(store.gate)
            self.facts.events.append(store)
            self.stores.append(store)
            try:
                launch(transfer)
            finally:
                self.copies.gate = None

        return launched

    def seen(self) -> list[Store]:
        """The stores that the linker has seen land since the last call."""
        jobs = self.memory.ledger.jobs
        over = [each for each in self.stores if isinstance(each.ack, JobId) and not jobs.is_out(each.ack.number)]
        self.stores = [each for each in self.stores if each not in over]
        slots = self.memory.ledger.slots
        self.in_host = {slot for slot in range(len(slots)) if slots.is_ready(slot)}
        return over

    def problems(self) -> Iterator[Problem]:
        """Broken rules of the ledger."""
        for each in check(self.memory.ledger):
            yield Problem(each.rule, each.message)

    def block_state(self, page: int) -> str:
        """The linker knows no page that is not copied."""
        raise Unsupported("not expressible: the state of a block (the linker knows a page only while it is copied)")

    def slot_state(self, slot: int) -> str:
        """The state in the ledger."""
        return str(self.memory.ledger.slots.state(slot).name)

    def fill(self) -> None:
        """Hold every place for other content."""
        self.memory.ledger.evict([slot for slot in self.in_host if self.memory.ledger.slots.can_evict(slot)])
        fill(self.memory.ledger, self.memory.tier)

    def free_filled(self) -> None:
        """Free these places."""
        free_filled(self.memory.ledger)

    def crowd(self, places: int) -> bool:
        """Make room for other content, as a store does."""
        return self.memory.tier.reserve([(0, b"alien %d" % at) for at in range(places)]) is not None
