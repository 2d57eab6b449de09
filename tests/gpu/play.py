"""A copier on a stage, an engine beside it, and bytes that tell where they came from.

*Theory.* Blocks and host places come in **units** of a few that lie apart, so that each copy is several runs in each layer. The
bytes of a unit have a name: `block 3` at first, or what a kernel wrote. The play keeps those names in the order of the program,
which is the order that the waits must keep; in the end every unit must hold the bytes of its name, all of them.
"""

from __future__ import annotations

import contextlib
import functools
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch

from blocklife.copiers.torch import HostMemory, KvCache, TorchCopier
from blocklife.copiers.torch._layout import CopyLayout
from blocklife.ledger.records import Completion, Direction, JobId, Result, Transfer, Worker
from tests.gpu.movers import AbsentError
from tests.gpu.stages import Stage

STORE, LOAD = Direction.STORE, Direction.LOAD
UNITS = 5
WIDTH = 3
"""Blocks of a unit, and places."""
LAYERS = 2
WRITTEN = ("new", "zero")
"""What kernels write."""


@functools.cache
def content(name: str, page: int) -> torch.Tensor:
    """The bytes of that name, random but always the same: ``(LAYERS, WIDTH, page)``."""
    dice = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randint(256, (LAYERS, WIDTH, page), dtype=torch.uint8, generator=dice)


def spread(units: Iterable[int]) -> list[int]:
    """The blocks, or places, of some units: those of a unit are never neighbours."""
    return [unit + UNITS * index for unit in units for index in range(WIDTH)]


class Play:
    """The copier, its cache and its host, and what should be in them."""

    def __init__(self, stage: Stage, page: int, deadline_s: float | None = None) -> None:
        self.stage = stage
        self.page = page
        self.now = 0.0
        count = UNITS * WIDTH
        self._layers = [torch.zeros(count, page, dtype=torch.uint8, device=stage.where) for _ in range(LAYERS)]
        self._host = HostMemory(page * LAYERS, count, pinned=stage.pinned)
        cache = KvCache([self._layers])
        try:
            device = stage.device(CopyLayout(cache, self._host))
        except AbsentError:
            self._host.close()
            raise
        self.copier = TorchCopier(
            cache, self._host, worker=Worker(0), device=device, deadline_s=deadline_s, clock=lambda: self.now
        )
        self.copier._large_bytes = 0
        self._written = {name: content(name, page).to(stage.where) for name in WRITTEN}
        self._seen = torch.zeros(4, LAYERS, WIDTH, page, dtype=torch.uint8, device=stage.where)
        self.num_jobs = 0
        self.names: dict[str, str] = {}
        self.reads: list[str] = []
        self.reset()
        self._warm_up()

    def _warm_up(self) -> None:
        """Do everything once: what is made or compiled at its first use takes longer than a stream sleeps."""
        self.store([1, 2], [1, 2])
        self.load([3], [3])
        self.load([4], [4], large=True)
        self.compute(reads=[3], writes={4: "new"})
        self.reset()

    def reset(self) -> None:
        """Every unit holds its own bytes again, and nothing is out."""
        self.stage.finish()
        self.copier.wait([JobId(1, number) for number in range(1, self.num_jobs + 1)])
        self.copier.poll()
        for unit in range(UNITS):
            for layer in range(LAYERS):
                self._layers[layer][spread([unit])] = content(f"block {unit}", self.page)[layer].to(self.stage.where)
                self._column(layer)[spread([unit])] = content(f"place {unit}", self.page)[layer]
        self.names = {f"{side} {unit}": f"{side} {unit}" for side in ("block", "place") for unit in range(UNITS)}
        self.reads = []
        self._seen.zero_()
        self.stage.finish()
        self.copier.computed(self.stage.engine)

    def close(self) -> None:
        self.stage.finish()
        self.copier.close()
        self._host.close()

    # The program.

    def store(self, blocks: Sequence[int], places: Sequence[int]) -> JobId:
        return self._launch(STORE, "block", blocks, "place", places)

    def load(self, places: Sequence[int], blocks: Sequence[int], *, large: bool = False) -> JobId:
        """A load; a *large* one goes by the stream of these."""
        with contextlib.nullcontext() if large else self.copier.needed_now():
            return self._launch(LOAD, "place", places, "block", blocks)

    def compute(
        self,
        reads: Sequence[int] = (),
        writes: Mapping[int, str] | None = None,
        *,
        named: bool = True,
        fenced: Sequence[JobId] = (),
        on: object = None,
        told: Callable[[object], object] = lambda engine: engine,
    ) -> None:
        """A forward pass. *named*: the copier hears which blocks it touches; *told*: what `computed` is given.

        *fenced*: copies that it waits for.
        """
        engine = self.stage.engine if on is None else on
        writes = writes or {}
        self.copier.fence(fenced, engine)
        self.copier.before_forward(engine, spread([*reads, *writes]) if named else None)
        self.stage.kernel(functools.partial(self._forward, [*reads], dict(writes), len(self.reads)), engine)
        self.copier.computed(told(engine))
        self.reads += [self.names[f"block {unit}"] for unit in reads]
        self.names |= {f"block {unit}": name for unit, name in writes.items()}

    def results(self) -> list[tuple[int, Result]]:
        """What the copier reports now, by the numbers of the jobs."""
        return [(each.job.number, each.result) for each in self.poll()]

    def poll(self) -> list[Completion]:
        return self.copier.poll()

    # The judgement.

    def wrong(self) -> list[str]:
        """The units that do not hold what they should, once everything has run; each with what it holds instead."""
        self.stage.finish()
        return [*self._wrong_ends(self.names), *self._wrong_reads()]

    def host_holds(self, place: int, name: str) -> bool:
        """Whether a unit of places holds the bytes of that name now; asks no device."""
        return torch.equal(self._place(place), content(name, self.page))

    def _launch(
        self, direction: Direction, from_side: str, sources: Sequence[int], to_side: str, targets: Sequence[int]
    ) -> JobId:
        self.num_jobs += 1
        job = JobId(1, self.num_jobs)
        source, target = np.array(spread(sources)), np.array(spread(targets))
        self.copier.launch(Transfer(job, direction, source, target, (len(source),)))
        moved = [self.names[f"{from_side} {unit}"] for unit in sources]
        self.names |= {f"{to_side} {unit}": name for unit, name in zip(targets, moved, strict=True)}
        return job

    def _forward(self, reads: list[int], writes: dict[int, str], seen: int) -> None:
        for number, unit in enumerate(reads, seen):
            for layer in range(LAYERS):
                for index, block in enumerate(spread([unit])):
                    self._seen[number, layer, index].copy_(self._layers[layer][block])
        for unit, name in writes.items():
            for layer in range(LAYERS):
                for index, block in enumerate(spread([unit])):
                    self._layers[layer][block].copy_(self._written[name][layer, index])

    def _place(self, unit: int) -> torch.Tensor:
        return torch.stack([self._column(layer)[spread([unit])] for layer in range(LAYERS)])

    def _column(self, layer: int) -> torch.Tensor:
        """The pages of one layer on the host, by place."""
        return self._host.rows[:, layer * self.page : (layer + 1) * self.page]

    def _block(self, unit: int) -> torch.Tensor:
        return torch.stack([self._layers[layer][spread([unit])] for layer in range(LAYERS)]).cpu()

    def _wrong_ends(self, names: Mapping[str, str]) -> list[str]:
        found = []
        for where, name in names.items():
            side, unit = where.split()
            found += self._told(where, name, (self._block if side == "block" else self._place)(int(unit)))
        return found

    def _wrong_reads(self) -> list[str]:
        found = []
        for number, name in enumerate(self.reads):
            found += self._told(f"read {number}", name, self._seen[number].cpu())
        return found

    def _told(self, where: str, name: str, held: torch.Tensor) -> list[str]:
        if torch.equal(held, content(name, self.page)):
            return []
        known = [f"{side} {unit}" for side in ("block", "place") for unit in range(UNITS)] + [*WRITTEN]
        others = [other for other in known if torch.equal(held, content(other, self.page))]
        return [f"{where} holds {others[0] if others else 'a mixture'}, and should hold {name}"]
