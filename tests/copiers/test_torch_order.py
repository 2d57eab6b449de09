"""Copies on streams run after everybody who was at their places, and no event is recorded while somebody may wait for it (I2).

Goal: each wait is there, and is needed. Method: the real copier on a fake device that lands what it is told to and finds every
race. An engine that keeps the contracts is walked with dice, and small programs are explored in all their landing orders; then
one wait after the other is taken out, and each time the fake has to find a race. The fake itself is held against a naive truth:
two operations race if some landing order turns them round.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import random
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import torch
from attrs import define, field

from blocklife.copiers.torch import DeviceLostError, HostMemory, KvCache, TorchCopier
from blocklife.copiers.torch import _order as order
from blocklife.copiers.torch._launching import Launcher, LaunchingDevice
from blocklife.copiers.torch._order import WAITS, Order, Side, StreamMark, Use, Wait
from blocklife.engines.sglang.linker._memory import limits_for
from blocklife.engines.sglang.linker._transport import Transport
from blocklife.errors import MisuseError
from blocklife.ledger import Limits
from blocklife.ledger.records import Completion, Direction, JobId, Plan, Result, Transfer, Worker
from blocklife.testing import FakeDevice, StuckError
from blocklife.testing._fake_device import Operation, Span, conflict
from tests.copiers.rig import LOAD, STORE, Rows

BLOCKS, PLACES = 6, 6
SEEDS = range(40)

Choose = Callable[[int], int]
"""Asks for a number below the given one."""

Answer = TypeVar("Answer")


@define(eq=False)
class Rig:
    """A copier on a fake device, and an engine that can be told to compute."""

    device: FakeDevice = field(factory=FakeDevice)
    cache: KvCache = field(
        factory=lambda: KvCache([[torch.zeros(BLOCKS, 4, dtype=torch.uint8), torch.zeros(BLOCKS, 2, dtype=torch.int32)]])
    )
    launcher: Launcher | None = None
    """What launches copies, if not the caller itself."""
    copier: TorchCopier = field(init=False)
    num_jobs: int = 0
    reading: dict[JobId, set[int]] = field(factory=dict)
    """The blocks of the stores that the host has not seen land: no kernel may write them, says the contract."""

    def __attrs_post_init__(self) -> None:
        host = Rows(torch.zeros(PLACES, self.cache.row_bytes, dtype=torch.uint8))
        device = self.device if self.launcher is None else LaunchingDevice(self.device, self.launcher)
        self.copier = TorchCopier(self.cache, host, worker=Worker(0), device=device)
        self.copier._large_bytes = 2 * self.cache.row_bytes
        self.copier.computed()

    def launch(self, direction: Direction, source: list[int], target: list[int], *, now: bool = False) -> JobId:
        """Launch a copy. A load of more than two blocks is a large one, unless it is needed *now*."""
        self.num_jobs += 1
        job = JobId(1, self.num_jobs)
        with self.copier.needed_now() if now else contextlib.nullcontext():
            self.copier.launch(Transfer(job, direction, np.array(source), np.array(target), (len(source),)))
        if direction is STORE:
            self.reading[job] = set(source)
        return job

    def compute(
        self,
        reads: list[int],
        writes: list[int],
        *,
        named: bool = False,
        fenced: Collection[JobId] = (),
        behind: Sequence[tuple[int, int]] = (),
        loads: Sequence[tuple[int, int]] = (),
    ) -> None:
        """A forward pass; *named*: the copier is told which blocks it touches.

        *fenced*: stores that it waits for; *behind*: block and place of stores, and *loads* of loads, that are launched when it
        has been queued.
        """
        self.copier.fence(fenced)
        self.copier.before_forward(blocks=reads + writes if named else None)
        self.device.engine.kernel("forward", self.spans(reads), self.spans(writes))
        with self.copier.behind_forward():
            for block, place in behind:
                self.launch(STORE, [block], [place])
            for block, place in loads:
                self.launch(LOAD, [place], [block])
        self.copier.computed()

    def compute_by_layer(
        self, loads: Sequence[tuple[int, int]], writes: list[int], parts: int, *, forget: int = -1
    ) -> list[JobId]:
        """A forward pass that reads, layer by layer, the blocks of loads within its step; *forget*: a layer that waits not.

        Each load is launched by itself, behind all that the engine has queued until then.
        """
        jobs = []
        for block, place in loads:
            self.copier.computed()
            with self.copier.needed_now(parts):
                jobs.append(self.launch(LOAD, [place], [block]))
        self.copier.before_forward(blocks=[])
        for layer in range(len(self.cache.layers)):
            if layer != forget:
                self.copier.before_layer(layer)
            self.device.engine.kernel(
                f"layer {layer}", self.spans([block for block, _ in loads], layer), self.spans(writes, layer)
            )
        self.copier.computed()
        return jobs

    def spans(self, blocks: list[int], only: int | None = None) -> tuple[Span, ...]:
        pages = self.cache.page_bytes[0]
        starts = [
            (layer.data_ptr() + block * page, page)
            for number, (layer, page) in enumerate(zip(self.cache.layers, pages, strict=True))
            for block in blocks
            if only in (None, number)
        ]
        return tuple((start, start + page) for start, page in starts)

    def poll(self) -> list[Completion]:
        completions = self.copier.poll()
        for completion in completions:
            self.reading.pop(completion.job, None)
        return completions

    def wait(self, jobs: list[JobId]) -> None:
        self.copier.wait(jobs)
        for job in jobs:
            self.reading.pop(job, None)


def land_all(device: FakeDevice) -> None:
    while device.landable():
        device.land_any()


def walk(seed: int, steps: int = 120, launcher: Launcher | None = None) -> Rig:
    """An engine that keeps the contracts, and otherwise does what the dice say."""
    dice = random.Random(seed)
    rig = Rig(FakeDevice(seed), launcher=launcher)
    eager = dice.random()
    for _ in range(steps):
        match dice.choices(["store", "load", "compute", "poll", "wait", "land"], [4, 4, 3, 2, 0.3, 8 * eager])[0]:
            case "store" | "load" as word:
                count = dice.randint(1, 3)
                blocks, places = dice.sample(range(BLOCKS), count), dice.sample(range(PLACES), count)
                ends = (blocks, places) if word == "store" else (places, blocks)
                rig.launch(STORE if word == "store" else LOAD, *ends, now=dice.random() < 0.2)
            case "compute":
                fenced = [store for store in rig.reading if dice.random() < 0.3]
                busy = set().union(*(blocks for store, blocks in rig.reading.items() if store not in fenced))
                writes = [block for block in range(BLOCKS) if block not in busy and dice.random() < 0.4]
                reads = [block for block in range(BLOCKS) if dice.random() < 0.4]
                left = [block for block in range(BLOCKS) if block not in writes]
                behind = [(dice.choice(left), dice.randrange(PLACES))] if left and dice.random() < 0.3 else []
                idle = [block for block in left if block not in reads]
                loads = [(dice.choice(idle), dice.randrange(PLACES))] if idle and dice.random() < 0.3 else []
                rig.compute(reads, writes, named=dice.random() < 0.7, fenced=fenced, behind=behind, loads=loads)
            case "poll":
                rig.poll()
            case "wait":
                rig.wait(dice.choices([JobId(1, number) for number in range(1, rig.num_jobs + 2)], k=2))
            case _:
                for _ in range(dice.randint(1, 6)):
                    if rig.device.landable():
                        rig.device.land_any()
    rig.copier.close()
    return rig


def without(wait: Wait) -> tuple[Wait, ...]:
    return tuple(other for other in WAITS if other is not wait)


def named(wait: Wait) -> str:
    return f"{wait.waiter.name} after {wait.holder.name} at {wait.side.value}"


# --- all waits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_no_walk_finds_a_race(seed: int) -> None:
    """With all waits nothing is found, every job is reported once, and all are good."""
    rig = walk(seed)
    statistics = rig.copier.statistics()

    assert rig.device.findings == []
    assert (statistics.num_launched, statistics.num_failed, statistics.num_suspect) == (rig.num_jobs, 0, 0)
    assert statistics.num_landed == rig.num_jobs


def test_events_are_used_again() -> None:
    """A long run that is polled makes no more events, and keeps no more marks, than a short one."""
    made, kept = [], []
    for steps in (20, 400):
        rig = Rig()
        for step in range(steps):
            rig.launch(STORE, [step % BLOCKS], [step % PLACES])
            rig.launch(LOAD, [(step + 1) % PLACES], [(step + 2) % BLOCKS])
            rig.compute([0], [])
            land_all(rig.device)
            rig.poll()
        made.append(rig.copier.statistics().num_events)
        gc.collect()
        kept.append(sum(type(thing) is StreamMark for thing in gc.get_objects()))
        del rig

    assert made[0] == made[1] < 12
    assert kept[1] <= kept[0] + 12


def test_waits_are_for_what_conflicts_and_nothing_else() -> None:
    """The rows are those that the reads and writes of each use ask for; the one that the contracts keep waits on demand."""
    writes = {
        Side.DEVICE: {Use.COMPUTE: True, Use.STORE: False, Use.LOAD: True, Use.BULK: True},
        Side.HOST: {Use.STORE: True, Use.LOAD: False, Use.BULK: False},
    }
    needed = {
        (waiter, holder, side)
        for side, uses in writes.items()
        for waiter, holder in itertools.permutations(uses, 2)
        if uses[waiter] or uses[holder]
    } | {(Use.BULK, Use.BULK, Side.DEVICE)}  # which have several streams

    assert {(wait.waiter, wait.holder, wait.side) for wait in WAITS} == needed
    assert len(WAITS) == len(needed)
    assert [(wait.waiter, wait.holder) for wait in WAITS if wait.on_demand] == [(Use.COMPUTE, Use.STORE)]


# --- each wait ------------------------------------------------------------------------------------------------------------


def meet(wait: Wait, rig: Rig) -> None:
    """The shortest program in which this wait alone keeps two operations apart: place 1 and block 1 are where they meet."""
    match wait.holder, wait.waiter, wait.side:
        case Use.COMPUTE, Use.STORE, _:
            rig.compute([], [1])
            rig.launch(STORE, [1], [1])
        case Use.STORE, Use.COMPUTE, _:
            rig.compute([], [1], fenced=[rig.launch(STORE, [1], [2])])
        case Use.COMPUTE, loads, _:
            rig.compute([1], [])
            load(rig, loads, 1, 1)
        case loads, Use.COMPUTE, _:
            load(rig, loads, 2, 1)
            rig.compute([1], [], named=True)
        case Use.STORE, loads, Side.DEVICE:
            rig.launch(STORE, [1], [2])
            load(rig, loads, 3, 1)
        case Use.STORE, loads, _:
            rig.launch(STORE, [2], [1])
            load(rig, loads, 1, 3)
        case loads, Use.STORE, Side.DEVICE:
            load(rig, loads, 2, 1)
            rig.launch(STORE, [1], [3])
        case loads, Use.STORE, _:
            load(rig, loads, 1, 2)
            rig.launch(STORE, [3], [1])
        case loads, others, _:
            load(rig, loads, 2, 1)
            load(rig, others, 3, 1)


def load(rig: Rig, use: Use, place: int, block: int) -> None:
    """A load from a place into a block; a large one loads into others, too."""
    rest = [4, 5] if use is Use.BULK else []
    rig.launch(LOAD, [place, *rest], [block, *rest])


def turned(program: Callable[[Rig], None]) -> bool:
    """Whether some landing order turns two operations round that touch the same bytes: the naive truth, by exhaustion."""

    def run(choose: Choose) -> bool:
        rig = Rig()
        program(rig)
        return out_of_order(rig.device, choose)

    return any(explore(run))


def out_of_order(device: FakeDevice, choose: Choose) -> bool:
    """Land everything in the chosen order: whether one landed before another that was queued earlier and meets it."""
    landed: list[Operation] = []
    while streams := device.landable():
        operation = device.land(streams[choose(len(streams))])
        if operation in device.operations:
            landed.append(operation)
    rank = {operation: number for number, operation in enumerate(device.operations)}
    return any(rank[one] > rank[other] and conflict(one, other) for one, other in itertools.combinations(landed, 2))


def explore(run: Callable[[Choose], Answer]) -> Iterator[Answer]:
    """Run once for every sequence of choices, depth first."""
    path: list[tuple[int, int]] = []
    while True:
        places = itertools.count()

        def choose(count: int, places: Iterator[int] = places) -> int:
            place = next(places)
            if place == len(path):
                path.append((0, count))
            return path[place][0]

        yield run(choose)
        while path and path[-1][0] + 1 == path[-1][1]:
            path.pop()
        if not path:
            return
        path[-1] = (path[-1][0] + 1, path[-1][1])


@pytest.mark.parametrize("wait", WAITS, ids=named)
def test_each_wait_alone_keeps_two_operations_apart(wait: Wait, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all landing orders they keep their turn; without the wait some order turns them round, and the fake knew before."""
    rig = Rig()
    meet(wait, rig)
    kept = not turned(lambda rig: meet(wait, rig))
    monkeypatch.setattr(order, "WAITS", without(wait))
    bare = Rig()
    meet(wait, bare)

    assert (kept, rig.device.findings) == (True, [])
    assert turned(lambda rig: meet(wait, rig))
    assert len(bare.device.findings) == 1


def test_small_program_is_clean_in_every_interleaving_of_host_and_device() -> None:
    """Stores, a load and a forward pass at one block and one place, polled in between: whatever has landed when, no race."""

    def run(choose: Choose) -> tuple[list[str], bool]:
        rig = Rig()
        land_some(rig, choose)
        rig.launch(STORE, [1], [1])
        land_some(rig, choose)
        rig.poll()
        rig.launch(LOAD, [1], [1])
        land_some(rig, choose)
        rig.poll()
        rig.launch(STORE, [1], [2])
        turned_round = out_of_order(rig.device, lambda count: 0)
        rig.poll()
        return rig.device.findings, turned_round or rig.copier.busy()

    results = [*explore(run)]
    print(len(results), "interleavings")

    assert len(results) > 100
    assert all(result == ([], False) for result in results)


def land_some(rig: Rig, choose: Choose) -> None:
    """Nothing, one operation, or more."""
    while streams := rig.device.landable():
        chosen = choose(len(streams) + 1)
        if chosen == 0:
            return
        rig.device.land(streams[chosen - 1])


# --- events are not recorded again too early ------------------------------------------------------------------------------


def recycle_while_awaited(self: Order, mark: StreamMark) -> None:
    if mark.passed and mark.event is not None:
        self._free.append(mark.event)
        mark.event = None


def test_an_event_that_somebody_waits_for_is_not_recorded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given back as soon as its point is passed, an event is recorded while a stream has yet to reach its wait: found."""
    monkeypatch.setattr(Order, "_recycle", recycle_while_awaited)
    findings = (finding for seed in SEEDS for finding in walk(seed).device.findings)

    assert any("has yet to wait for it" in finding for finding in findings)


def test_an_event_is_not_recorded_again_before_it_is_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given back when the next of its use is recorded, an event loses a point that was not passed: found."""
    honest = Order.mark

    def hasty(self: Order, use: Use, *rest: object) -> StreamMark:
        mark = honest(self, use, *rest)  # type: ignore[arg-type]
        if mark.event is not None:
            self._free.append(mark.event)
        return mark

    monkeypatch.setattr(Order, "mark", hasty)
    findings = (finding for seed in SEEDS for finding in walk(seed).device.findings)

    assert any("before its point on" in finding for finding in findings)


# --- waits on demand -------------------------------------------------------------------------------------------------------


def test_a_forward_pass_waits_for_the_stores_that_it_is_told_to() -> None:
    """The host goes on, and learns of the store later; what is quiet already, or was never launched, is no matter."""
    rig = Rig()
    first, second = rig.launch(STORE, [1], [1]), rig.launch(STORE, [2], [2])
    stores = rig.device.named("store")
    stores.hangs = True
    rig.compute([], [1], named=True, fenced=[first, JobId(1, 99)])
    land_all(rig.device)
    waits = bool(rig.device.engine.queue)
    stores.hangs = False
    land_all(rig.device)

    assert waits
    assert not rig.device.engine.queue
    assert rig.device.findings == []
    assert [completion.job for completion in rig.poll()] == [first, second]
    rig.compute([], [1], named=True, fenced=[first])


def test_a_load_that_is_fenced_is_waited_for() -> None:
    """As any load into what the forward pass reads, though the pass names no block."""
    rig = Rig()
    load = rig.launch(LOAD, [1], [1])
    rig.copier.fence([load])
    rig.copier.before_forward(blocks=[])
    rig.device.engine.kernel("forward", rig.spans([1]))

    assert rig.device.findings == []


@pytest.mark.parametrize("knows", ["both", "the first"])
def test_several_streams_of_the_engine_are_ordered_at_once(knows: str) -> None:
    """Copies come after what each was given, and before what each is given next."""
    rig = Rig()
    side = rig.device.stream("side", copies=False)
    engines = (None, side) if knows == "both" else (None,)
    rig.device.engine.kernel("forward", (), rig.spans([1]))
    side.kernel("forward beside", (), rig.spans([2]))
    rig.copier.computed(engines)
    rig.launch(STORE, [1, 2], [1, 2])
    rig.launch(LOAD, [3, 4], [3, 4])
    rig.copier.before_forward(engines, [3, 4])
    rig.device.engine.kernel("next", rig.spans([3]))
    side.kernel("next beside", rig.spans([4]))

    assert len(rig.device.findings) == (0 if knows == "both" else 2)


@pytest.mark.parametrize("direction", [STORE, LOAD])
@pytest.mark.parametrize("behind", [True, False])
def test_a_copy_behind_the_forward_pass_runs_beside_it(behind: bool, direction: Direction) -> None:
    """It waits for what was computed before that pass, and not for the pass; launched when that is marked, for both."""
    rig = Rig()
    rig.compute([], [1, 3])
    land_all(rig.device)
    rig.device.engine.hangs = True
    stores, loads = ([(1, 1)], []) if direction is STORE else ([], [(3, 1)])
    rig.compute([1], [2], behind=stores if behind else [], loads=loads if behind else [])
    if not behind:
        rig.launch(direction, [1], [1] if direction is STORE else [3])
    land_all(rig.device)

    assert bool(rig.device.named("store" if stores else "load").queue) is not behind
    assert rig.device.findings == []


@pytest.mark.parametrize(
    ("reads", "stores", "loads", "found"),
    [
        ([], [(1, 1)], [], "store 1 races with forward"),
        ([], [], [(1, 1)], "load 1 races with forward"),
        ([2], [], [(2, 1)], "load 1 races with forward"),
    ],
)
def test_a_copy_behind_a_forward_pass_that_touches_its_block_is_found(
    reads: list[int], stores: list[tuple[int, int]], loads: list[tuple[int, int]], found: str
) -> None:
    """The promise is the engine's; the fake knows whether it is kept."""
    rig = Rig()
    rig.compute(reads, [1], behind=stores, loads=loads)

    assert rig.device.findings == [found]


def test_nothing_runs_beside_a_forward_pass_without_a_mark() -> None:
    """Of what was computed before it. Outside of it, none is launched between a forward pass and its mark."""
    rig = Rig()
    rig.copier.proven()
    with rig.copier.behind_forward(), pytest.raises(MisuseError, match=r"call computed\(\) first"):
        rig.launch(STORE, [1], [1])
    rig.copier.computed()
    rig.copier.before_forward()
    with pytest.raises(MisuseError, match=r"call computed\(\) first"):
        rig.launch(STORE, [1], [1])


# --- layer by layer -----------------------------------------------------------------------------------------------------------

FIVE_LAYERS = [[torch.zeros(BLOCKS, 4, dtype=torch.uint8) for _ in range(5)]]


@pytest.mark.parametrize("parts", [2, 3, 5, 9])
@pytest.mark.parametrize("seed", range(10))
def test_layers_wait_for_their_part_of_a_load(seed: int, parts: int) -> None:
    """Whenever parts land, no layer reads its own too early."""
    rig = walk_by_layer(seed, parts)

    assert rig.device.findings == []
    assert not rig.copier.busy()


def walk_by_layer(seed: int, parts: int, launcher: Launcher | None = None) -> Rig:
    """Forward passes that load within their steps, and other loads beside them, until all has landed."""
    dice = random.Random(seed)
    rig = Rig(FakeDevice(seed), cache=KvCache(FIVE_LAYERS), launcher=launcher)
    for _ in range(20):
        blocks, places = dice.sample(range(BLOCKS), 4), dice.sample(range(PLACES), 3)
        if dice.random() < 0.5:
            rig.launch(LOAD, [places[1]], [blocks[2]])
        rig.compute_by_layer([(blocks[0], places[0]), (blocks[3], places[2])], [blocks[1]], parts)
        for _ in range(dice.randint(0, 12)):
            if rig.device.landable():
                rig.device.land_any()
        rig.poll()
    rig.copier.wait([*rig.copier._out])
    rig.poll()
    return rig


@pytest.mark.parametrize("layer", range(5))
def test_a_layer_that_does_not_wait_is_found(layer: int) -> None:
    """Where each layer is a part of its own."""
    rig = Rig(cache=KvCache(FIVE_LAYERS))
    rig.compute_by_layer([(1, 2)], [], 5, forget=layer)

    assert rig.device.findings == [f"layer {layer} races with load {layer + 1}"]


def test_a_cache_of_one_layer_waits_all_the_same() -> None:
    """Where all layers of a block are one row of bytes a load in parts has one."""
    rig = Rig(cache=KvCache([FIVE_LAYERS[0][:1]]))
    rig.compute_by_layer([(1, 2)], [], 5)
    forgotten = Rig(cache=rig.cache)
    forgotten.compute_by_layer([(1, 2)], [], 5, forget=0)

    assert rig.device.findings == []
    assert forgotten.device.findings == ["layer 0 races with load 1"]


def test_the_first_layer_is_computed_while_the_last_is_loaded() -> None:
    rig = Rig(cache=KvCache(FIVE_LAYERS))
    rig.copier.computed()
    with rig.copier.needed_now(5):
        job = rig.launch(LOAD, [2], [1])
    rig.copier.before_forward(blocks=[])
    rig.copier.before_layer(0)
    rig.device.engine.kernel("layer 0", rig.spans([1], 0), ())
    loads, mine = rig.device.named("load"), (rig.device.engine, rig.device.named("compute"))
    while rig.device.engine.queue:
        rig.device.land(next(each for each in (*mine, loads) if each in rig.device.landable()))

    assert rig.device.findings == []
    assert loads.queue
    assert rig.poll() == []
    land_all(rig.device)
    assert [each.job for each in rig.poll()] == [job]


class SecondCopy(set[str]):
    """What a stream refuses: its second copy."""

    asked = 0

    def __contains__(self, call: object) -> bool:
        self.asked += call == "copy"  # twice a copy
        return call == "copy" and self.asked in (3, 4)


def test_a_load_of_which_one_part_fails_has_failed() -> None:
    """Though what comes behind it, on the same stream, is fine."""
    rig = Rig(cache=KvCache(FIVE_LAYERS))
    assert fails_in_part(rig)


def fails_in_part(rig: Rig) -> bool:
    """Whether a load of which the second part fails has failed."""
    rig.device.named("load").refuses = SecondCopy()
    (job,) = rig.compute_by_layer([(1, 2)], [], 5)
    rig.wait([job])
    (completion,) = rig.poll()
    assert completion.job == job
    return completion.result is Result.FAILED


@pytest.mark.parametrize("layer", [-1, 5])
def test_a_layer_that_does_not_exist_is_refused(layer: int) -> None:
    rig = Rig(cache=KvCache(FIVE_LAYERS))
    with pytest.raises(MisuseError, match=f"layer {layer}: does not exist"):
        rig.copier.before_layer(layer)


# --- what need not wait ---------------------------------------------------------------------------------------------------


def test_a_forward_pass_waits_only_for_the_blocks_it_names() -> None:
    """A load into another block goes on beside it; an unnamed one waits for all loads."""
    beside, behind = Rig(), Rig()
    for rig, named_blocks in ((beside, True), (behind, False)):
        land_all(rig.device)
        rig.device.named("load").hangs = True
        rig.launch(LOAD, [2], [1])
        rig.compute([3], [4], named=named_blocks)
        land_all(rig.device)

    assert not beside.device.engine.queue
    assert behind.device.engine.queue


def test_copies_of_other_places_do_not_wait_for_each_other() -> None:
    """A store that hangs holds up no load of other places."""
    rig = Rig()
    rig.device.named("store").hangs = True
    rig.launch(STORE, [1], [1])
    rig.launch(LOAD, [2], [2])
    land_all(rig.device)

    assert [completion.job.number for completion in rig.poll()] == [2]


def test_a_small_load_does_not_wait_for_a_large_one() -> None:
    """Nor does one that is needed now, whatever its size; both are reported while the large one hangs, and `wait` returns."""
    rig = Rig()
    rig.device.named("bulk 0").hangs = True
    large = rig.launch(LOAD, [1, 2, 3], [1, 2, 3])
    small, now = rig.launch(LOAD, [1], [4]), rig.launch(LOAD, [1, 2, 3], [5, 0, 4], now=True)
    rig.copier.wait([now])
    early = [completion.job for completion in rig.poll()]
    rig.device.named("bulk 0").hangs = False
    rig.copier.close()

    assert early == [small, now]
    assert [completion.job for completion in rig.poll()] == [large]
    assert rig.device.findings == []


def test_the_loads_of_a_linker_are_needed_now() -> None:
    """The pass that SGLang queues next reads what they bring, however much that is."""
    device = FakeDevice()

    def make(cache: KvCache, memory: HostMemory, limits: Limits) -> TorchCopier:
        copier = TorchCopier(cache, memory, worker=Worker(0), device=device, limits=limits)
        copier._large_bytes = 0
        return copier

    cache = KvCache([[torch.zeros(BLOCKS, 4, dtype=torch.uint8)]])
    transport = Transport(cache, limits_for(BLOCKS, PLACES), make_copier=make)
    load = Transfer(JobId(1, 1), LOAD, np.array([0, 1]), np.array([1, 2]), (2,))
    transport.execute(Plan(1, (load,), (), ()))
    launched = [operation.stream.name for operation in device.operations]
    transport.close()

    assert launched == ["load"]


def test_a_wait_without_an_event_is_an_error() -> None:
    """Where the device gave no event nothing can be ordered behind the place; a later event of the use stands for it too."""
    rig = Rig()
    stores = rig.device.named("store")
    stores.refuses = {"record"}
    rig.launch(STORE, [1], [1])
    rig.launch(LOAD, [1], [2])
    rig.device.named("load").refuses = {"record"}
    rig.launch(LOAD, [3], [3])
    with pytest.raises(DeviceLostError, match="a load writes what the forward pass reads"):
        rig.copier.before_forward(blocks=[3])
    failed = rig.poll()
    stores.refuses = set()
    rig.launch(STORE, [4], [4])
    rig.launch(LOAD, [1], [5])
    land_all(rig.device)
    settled = rig.poll()

    assert [(each.job.number, each.result) for each in failed] == [(2, Result.FAILED)]
    assert [(each.job.number, each.result) for each in settled] == [(1, Result.FAILED), (4, Result.OK)]
    assert rig.device.findings == []


# --- the fake itself ------------------------------------------------------------------------------------------------------


def scribble(device: FakeDevice, dice: random.Random) -> None:
    """Three streams, a few kernels on three bytes, a few events between them."""
    streams = [device.stream(name) for name in "abc"]
    events = [device.event() for _ in range(3)]
    for _ in range(dice.randint(2, 8)):
        stream = dice.choice(streams)
        match dice.choice(["kernel", "kernel", "record", "wait"]):
            case "record":
                stream.record(dice.choice(events))
            case "wait":
                stream.wait(dice.choice(events))
            case _:
                byte = dice.randrange(3)
                span = ((byte, byte + 1),)
                stream.kernel("kernel", *((span, ()) if dice.random() < 0.5 else ((), span)))


def test_the_fake_agrees_with_all_landing_orders() -> None:
    """It finds a race exactly if some landing order turns two operations round that touch the same byte."""
    verdicts = []
    for seed in range(160):

        def run(choose: Choose, seed: int = seed) -> tuple[bool, bool]:
            device = FakeDevice()
            scribble(device, random.Random(seed))
            return any("races" in finding for finding in device.findings), out_of_order(device, choose)

        results = [*explore(run)]
        assert results[0][0] == any(turned_round for _, turned_round in results), f"seed {seed}"
        verdicts.append(results[0][0])

    assert 20 < sum(verdicts) < 140


def test_the_fake_knows_what_the_host_has_seen() -> None:
    """What the host queues after it has seen an event pass comes after it; before it has looked, it does not."""
    found = []
    for looks in (True, False):
        device = FakeDevice()
        one, other, event = device.stream("one"), device.stream("other"), device.event()
        one.kernel("first", (), ((0, 4),))
        one.record(event)
        land_all(device)
        if looks:
            event.query()
        other.kernel("second", ((3, 5),), ())
        found.append(device.findings)

    assert found == [[], ["second races with first"]]


def test_the_fake_says_where_it_is_stuck() -> None:
    device = FakeDevice()
    stream, event = device.stream("one"), device.event()
    stream.hangs = True
    stream.record(event)
    with pytest.raises(StuckError, match="one at record event 1"):
        event.synchronize()
    with pytest.raises(StuckError, match="one at record event 1"):
        device.synchronize()


def test_the_fake_refuses_what_is_not_its_own() -> None:
    device = FakeDevice()
    stream = device.stream("one")
    with pytest.raises(MisuseError, match="no stream 'two'"):
        device.named("two")
    with pytest.raises(MisuseError, match="nothing on one may land now"):
        device.land(stream)
    with pytest.raises(MisuseError, match="int is not one of its streams"):
        device.precede(device.event(), 7)


def test_the_page_of_copiers_lists_every_wait() -> None:
    """`specs/copiers.md` has the rows of the table, word for word and in its order."""
    page = (Path(__file__).parents[2] / "specs" / "copiers.md").read_text(encoding="utf-8")
    listed = [
        line for line in page.splitlines() if re.match(r"\| (store|load|bulk|compute) \| (store|load|bulk|compute) \|", line)
    ]
    rows = [f"| {each.waiter.name} | {each.holder.name} | {each.side.value} | ".lower() + f"{each.why} |" for each in WAITS]

    assert listed == rows
