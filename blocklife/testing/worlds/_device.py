"""The simulated device, independent of the ledger: what all workers are doing, in which order, and what their memory holds.

Rules of this file:

* It imports nothing from the ledger or the scheduler. It knows only the orders given to the workers, and what they did.
* It detects two kinds of faults: unordered operations on the same place, and reads that find other content than promised. What
  the ledger says about a place plays no part here.
* A fault is raised as `DeviceFault`, with the rule that it breaks. A wrong call of the test itself is a `MisuseError`.

Theory. Each worker has its own memory and three kinds of operations on it: forward passes in the order of their plans, stores
and loads. A plan is carried out in the order of the engine contract: the stores of the previous plan, the waits, the loads that
the plan itself waits for, copies from block to block, the forward pass, the other loads; the plan's own stores are held back
until the next step. What requests compute behind a load that has failed on a worker is garbage there. A copy runs from its
launch until it lands, whatever is reported in between. It waits for the events of the forward passes launched before it, which
produce its source or read its target (I2); with ``events=False`` it does not wait, and overlaps them. Nothing else orders it:
if two copies, or a copy and a later forward pass, touch the same place and one of them writes it, that is a fault, unless the
host has waited for the first.

Content is any hashable value; None is garbage. A forward pass has to find what equals what it wants, or what ``agrees`` takes
for it. A target is garbage from the launch of the copy on, and stays garbage if the copy fails. A copy reads its sources at
launch; a source that changes before it lands is a fault.

With *shared*, the workers have host memory and the store below together. A worker then writes the places that are its own, and
sends them to the store; of the rest of such a copy it moves nothing, and its share lands all the same.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from attrs import define, field, frozen

from blocklife.errors import MisuseError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Content: TypeAlias = Hashable
"""What a place holds: any value that can be compared. None is garbage."""
Writes: TypeAlias = "Callable[[NDArray[np.int64]], NDArray[np.bool_]]"
"""Of each host place, whether a worker writes it."""


class DeviceFault(Exception):  # noqa: N818 - it reports a finding, not an error of the caller
    """Two unordered operations touched the same place, or a read found other content than promised."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"{rule}: {message}")
        self.rule = rule
        """The broken invariant, for example `I1`."""
        self.message = message


class CopyOrder(NamedTuple):
    """The order for one copy: ``source[i]`` goes to ``target[i]``; blocks on one side, host places on the other."""

    job: int
    stores: bool
    """Whether it reads blocks and writes host places."""
    source: tuple[int, ...]
    target: tuple[int, ...]
    sizes: tuple[int, ...] = ()
    """How many of them belong to each group."""
    below: bool = False
    """Whether entries of the store below stand where blocks stand otherwise."""
    part: tuple[int, ...] | None = None
    """The positions that this is of a larger order, if it is one worker's part of it."""

    def of(self, writes: Writes) -> CopyOrder:
        """What one worker moves of it: all of a load, and else the places that it writes."""
        if not self.stores and not self.below:
            return self
        import numpy as np  # only here: scenarios, which share no host memory, run where there is none

        mine = writes(np.array(self.places, np.int64))
        source, target = (tuple(compress(side, mine)) for side in (self.source, self.target))
        return self._replace(source=source, target=target, part=tuple(np.flatnonzero(mine).tolist()))

    def missing(self, positions: Iterable[int]) -> tuple[int, ...]:
        """These positions, counted in the whole order."""
        return tuple(positions if self.part is None else [self.part[each] for each in positions])

    @property
    def blocks(self) -> tuple[int, ...]:
        """The blocks that it touches."""
        if self.below:
            return ()
        return self.source if self.stores else self.target

    @property
    def places(self) -> tuple[int, ...]:
        """The host places that it touches."""
        return self.target if self.stores else self.source


class Pass(NamedTuple):
    """One forward pass: the content that it must find in the blocks that it reads, and what it writes."""

    reads: tuple[tuple[int, Content], ...] = ()
    writes: tuple[tuple[int, Content], ...] = ()


class Orders(NamedTuple):
    """The orders of one plan to a worker."""

    plan: int
    flushes: tuple[int, ...]
    loads: tuple[CopyOrder, ...]
    stores: tuple[CopyOrder, ...]
    forward: Pass = Pass()
    below: tuple[CopyOrder, ...] = ()
    """Copies between host places and the store below."""
    doubts: tuple[tuple[int, Pass], ...] = ()
    """What requests compute behind loads within a step whose plans have not settled, each with the load's job: where the load
    has failed, nothing of it counts."""
    block_copies: tuple[tuple[int, int], ...] = ()
    """Copies from one block of the device to another, (source, target), in this order ahead of the forward pass."""


class Landing(NamedTuple):
    """One worker's share of a copy is over."""

    job: int
    worker: int
    ok: bool
    missing: tuple[int, ...] = ()
    """Positions in the order whose content the store below did not have, or did not take."""


class Touched(NamedTuple):
    """The blocks that a forward pass touches."""

    reads: frozenset[int]
    writes: frozenset[int]


@define(eq=False)
class Running:
    """One copy that runs on one worker."""

    order: CopyOrder
    reads: tuple[Content, ...]
    """The content of its sources at launch."""
    hung: bool = False
    """It will not land by itself; a wait for it aborts it."""


@define(eq=False)
class Worker:
    """One worker's memory and what runs on it.

    Invariant: no two running operations share a place that one of them writes, unless the later one is a copy and the earlier
    one a forward pass. Initially nothing runs and all content is garbage.
    """

    rank: int
    blocks: list[Content]
    places: list[Content]
    copies: dict[int, Running] = field(factory=dict)
    held_back: list[CopyOrder] = field(factory=list)
    """Stores that are launched when the next plan is carried out."""
    passes: dict[int, Touched] = field(factory=dict)
    """Forward passes that may still run, by plan."""
    void: set[int] = field(factory=set)
    """Loads that a plan has waited for, and that have failed here."""
    below: list[Content] = field(factory=list)
    """What the store below has of this worker's parts, by number of the entry; None if nothing. It outlives the worker."""
    lost: bool = False
    """The worker is gone: it runs nothing, and its memory is empty."""
    agrees: Callable[[Content, Content], bool] = operator.eq
    """Whether a block holds what a forward pass has to find."""

    def launch(self, order: CopyOrder, *, events: bool, beside: Iterable[Running] = ()) -> None:
        """Start a copy; with *events* it waits for the running forward passes. *beside*: others' copies at its places."""
        who = f"worker {self.rank}: copy {order.job}"
        if order.job in self.copies:
            raise DeviceFault("I5", f"{who} is launched twice")
        for other in self.copies.values():
            blocks = set(order.blocks) & set(other.order.blocks)
            if blocks and not (order.stores and other.order.stores):
                raise DeviceFault("I1", f"{who} overlaps copy {other.order.job} on block {min(blocks)}")
        for other in (*self.copies.values(), *beside):
            places = set(order.places) & set(other.order.places)
            if places and (order.stores or other.order.stores):
                raise DeviceFault("I1", f"{who} overlaps copy {other.order.job} on host place {min(places)}")
        for plan, touched in () if events else self.passes.items():
            for block in order.blocks:
                if block in touched.writes or (not order.stores and block in touched.reads):
                    raise DeviceFault("I2", f"{who} does not wait for the event of step {plan}, which touches block {block}")
        source, target = self._sides(order)
        running = Running(order, tuple(source[place] for place in order.source))
        if order.stores or not order.below:  # a store below replaces an entry at once or not at all
            for place in order.target:
                target[place] = None
        self.copies[order.job] = running

    def _check_running(self, plan: int, reads: Iterable[int], writes: Iterable[int]) -> None:
        """No copy that runs writes what a step reads, or touches what it writes."""
        for job, running in self.copies.items():
            order = running.order
            for block in reads:
                if block in order.blocks and not order.stores:
                    raise DeviceFault("I1", f"worker {self.rank}: step {plan} reads block {block} while copy {job} writes it")
            for block in writes:
                if block in order.blocks:
                    doing = "reads" if order.stores else "writes"
                    raise DeviceFault("I1", f"worker {self.rank}: step {plan} writes block {block} while copy {job} {doing} it")

    def forward(
        self,
        plan: int,
        forward: Pass,
        doubts: Iterable[tuple[int, Pass]] = (),
        block_copies: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Start a forward pass: it copies blocks, reads and writes while copies run. *doubts*: see `Orders`."""
        sure = forward
        for job, part in doubts:
            if job in self.void:
                garbage = tuple([(block, None) for block, _ in part.writes])
                forward = Pass(forward.reads + part.reads, forward.writes + garbage)
            else:
                sure = Pass(sure.reads + part.reads, sure.writes + part.writes)
                forward = Pass(forward.reads + part.reads, forward.writes + part.writes)
        reads = [*(source for source, _ in block_copies), *(block for block, _ in forward.reads)]
        writes = [*(target for _, target in block_copies), *(block for block, _ in forward.writes)]
        self._check_running(plan, reads, writes)
        for source, target in block_copies:
            self.blocks[target] = self.blocks[source]
        for block, content in sure.reads:
            if not self.agrees(found := self.blocks[block], content):
                raise DeviceFault(
                    "I6",
                    f"worker {self.rank}: step {plan} reads {said(found)} in block {block} instead of {said(content)}",
                )
        for block, content in forward.writes:
            self.blocks[block] = content
        self.passes[plan] = Touched(frozenset(reads), frozenset(writes))

    def land(self, job: int, ok: bool, *, refused: bool = False) -> Landing:
        """End a copy: its target holds the content, or garbage if it failed. If *refused*, the store below takes nothing."""
        running = self.copies.pop(job)
        order = running.order
        source, target = self._sides(order)
        from_below = order.below and order.stores
        for place, was in () if from_below else zip(order.source, running.reads, strict=True):
            if (now := source[place]) != was:
                raise DeviceFault(
                    "I1",
                    f"worker {self.rank}: copy {job} read place {place} while it changed from {said(was)} to {said(now)}",
                )
        if refused:
            return Landing(job, self.rank, ok, order.missing(range(len(order.target))))
        for place, content in zip(order.target, running.reads, strict=True):
            if ok or not order.below or order.stores:
                target[place] = content if ok else None
        if not (ok and from_below and None in running.reads):
            return Landing(job, self.rank, ok)
        return Landing(job, self.rank, ok, order.missing([at for at, content in enumerate(running.reads) if content is None]))

    def _sides(self, order: CopyOrder) -> tuple[list[Content], list[Content]]:
        near = self.below if order.below else self.blocks
        return (near, self.places) if order.stores else (self.places, near)


class FrozenWorker(NamedTuple):
    """A worker as a value."""

    blocks: tuple[Content, ...]
    places: tuple[Content, ...]
    copies: tuple[tuple[CopyOrder, tuple[Content, ...], bool], ...]
    held_back: tuple[CopyOrder, ...]
    passes: tuple[tuple[int, Touched], ...]
    lost: bool
    below: tuple[Content, ...] = ()
    void: tuple[int, ...] = ()


class FrozenDevice(NamedTuple):
    """All workers as a value: two are equal if, and only if, they behave equally from here on."""

    workers: tuple[FrozenWorker, ...]
    awaited: tuple[int, ...]
    """Copies that the next plan has to wait for."""
    begun: tuple[tuple[int, int], ...]
    """Shares (job, worker) that have begun to run, not reported yet."""

    def running(self) -> list[tuple[int, int, bool]]:
        """Every share of a copy that runs: job, worker, and whether it hangs."""
        return [(order.job, rank, hung) for rank, each in enumerate(self.workers) for order, _, hung in each.copies]


@frozen
class DeviceNames:
    """New names for blocks, host places, jobs and plans, indexed by the old ones."""

    blocks: Sequence[int]
    places: Sequence[int]
    jobs: Mapping[int, int]
    plans_before: int = 0
    """Subtracted from the numbers of plans."""

    def order(self, order: CopyOrder) -> CopyOrder:
        """The same copy under other names."""
        if order.job not in self.jobs:
            raise DeviceFault("I1", f"copy {order.job} still runs, although its job is over")
        far = tuple([self.places[each] for each in order.places])
        near = order.source if order.stores else order.target
        if not order.below:
            near = tuple([self.blocks[each] for each in near])
        source, target = (near, far) if order.stores else (far, near)
        return order._replace(job=self.jobs[order.job], source=source, target=target)

    def touched(self, touched: Touched) -> Touched:
        """The same blocks under other names."""
        return Touched(*(frozenset(self.blocks[each] for each in side) for side in touched))


class Device:
    """All workers. *num_places* counts host places: slots times blocks of a chunk."""

    def __init__(
        self,
        num_blocks: int,
        num_places: int,
        num_workers: int = 1,
        *,
        events: bool = True,
        num_entries: int = 0,
        agrees: Callable[[Content, Content], bool] = operator.eq,
        shared: Sequence[Writes] = (),
    ) -> None:
        """*shared*: for each worker which places it writes, if they have host memory together."""
        if num_blocks < 1 or num_places < 1 or num_workers < 1:
            raise MisuseError(f"a device has blocks, places and workers, not {num_blocks}, {num_places} and {num_workers}")
        self.shared = shared
        self.workers = [
            Worker(rank, [None] * num_blocks, [None] * num_places, below=[None] * num_entries, agrees=agrees)
            for rank in range(num_workers)
        ]
        self._share()
        self.events = events
        """Whether copies wait for the forward passes before them."""
        self.awaited: dict[int, None] = {}
        """Copies that touch a handed-out block: the next plan has to wait for them."""
        self.begun: dict[tuple[int, int], None] = {}
        """Shares that began to run, by job and worker, since `take_begun`."""

    # --- operations ---------------------------------------------------------------------------------------------------------

    def hand_out(self, blocks: Iterable[int], *, fence: bool) -> None:
        """Give these blocks to new tenants. Without *fence* no copy may touch them; with it the next plan waits for stores."""
        for block in blocks:
            for job, running in self._touching(block):
                if not fence or not running.stores:
                    raise DeviceFault("I1", f"block {block} was handed out while copy {job} touches it")
                self.awaited[job] = None

    def carry_out(self, orders: Orders, *, failing: Iterable[tuple[int, int]] = ()) -> list[Landing]:
        """Carry a plan out on every worker. Returns what the waits landed; shares in *failing* (job, worker) land as failed."""
        badly = set(failing)
        landed: list[Landing] = []
        present = self.present
        for worker in present:
            for order in (*orders.below, *worker.held_back):
                self._launch(worker, order)
            worker.held_back = []
            for job in orders.flushes:
                running = worker.copies.get(job)
                if running is not None:
                    landing = worker.land(job, ok=not running.hung and (job, worker.rank) not in badly)
                    if not running.hung:
                        landed.append(landing)
        for job in self.awaited:
            if any(job in worker.copies for worker in self.workers):
                raise DeviceFault("I1", f"plan {orders.plan} does not wait for copy {job}, whose block has a new tenant")
        self.awaited.clear()
        within = set(orders.flushes).intersection([order.job for order in orders.loads])
        for worker in present:
            for order in orders.loads:
                if order.job in within:
                    self._launch(worker, order)
                    landed.append(worker.land(order.job, ok=(order.job, worker.rank) not in badly))
                    if not landed[-1].ok:
                        worker.void.add(order.job)
            worker.forward(orders.plan, orders.forward, orders.doubts, orders.block_copies)
            if self.events:  # copies launched from now on wait for it
                worker.passes.clear()
            for order in orders.loads:
                if order.job not in within:
                    self._launch(worker, order)
            worker.held_back = list(orders.stores)
        return landed

    def _share(self) -> None:
        """Let all workers have the host memory, and the store below, of the first."""
        for worker in self.workers if self.shared else ():
            worker.places, worker.below = self.workers[0].places, self.workers[0].below

    def _launch(self, worker: Worker, order: CopyOrder) -> None:
        beside: list[Running] = []
        if self.shared:
            order = order.of(self.shared[worker.rank])
            beside = [running for other in self.workers if other is not worker for running in other.copies.values()]
        worker.launch(order, events=self.events, beside=beside)
        self.begun[order.job, worker.rank] = None

    def take_begun(self) -> list[tuple[int, int]]:
        """The shares that have begun to run since the last call."""
        found = list(self.begun)
        self.begun.clear()
        return found

    def land(self, job: int, worker: int, *, ok: bool = True) -> Landing:
        """Land one worker's share of a copy, or fail it. Refuses with MisuseError a share that does not run or hangs."""
        running = self.workers[worker].copies.get(job)
        if running is None or running.hung:
            raise MisuseError(f"worker {worker}: copy {job} cannot land ({'it hangs' if running else 'it does not run there'})")
        return self.workers[worker].land(job, ok)

    def refuse(self, job: int, worker: int) -> Landing:
        """The store below takes nothing of one worker's share of a copy. Refuses as `land` does, and what does not go there."""
        running = self.workers[worker].copies.get(job)
        if running is None or running.hung or not running.order.below or running.order.stores:
            raise MisuseError(f"worker {worker}: copy {job} cannot be refused (it does not run there, or not to the store)")
        return self.workers[worker].land(job, ok=True, refused=True)

    def hang(self, job: int, worker: int) -> None:
        """Make one worker's share of a copy hang: it never lands by itself. Refuses with MisuseError one that does not run."""
        running = self.workers[worker].copies.get(job)
        if running is None:
            raise MisuseError(f"worker {worker}: copy {job} cannot hang (it does not run there)")
        running.hung = True

    def finish_pass(self, plan: int) -> None:
        """End the forward pass of a plan, and all earlier ones, on every worker."""
        for worker in self.workers:
            for number in [each for each in worker.passes if each <= plan]:
                del worker.passes[number]

    def abort(self, jobs: Iterable[int]) -> None:
        """Stop these copies on every worker for good; their targets stay garbage."""
        for job in jobs:
            for worker in self.workers:
                if job in worker.copies:
                    worker.land(job, ok=False)
                worker.held_back = [order for order in worker.held_back if order.job != job]

    def lose(self, rank: int) -> None:
        """Lose a worker, with everything that ran there and all its memory."""
        gone = self.workers[rank]
        self.workers[rank] = Worker(rank, [None] * len(gone.blocks), [None] * len(gone.places), below=gone.below, lost=True)
        if self.shared:  # the others still have it
            self.workers[rank].places = gone.places

    def regain(self, rank: int) -> None:
        """Bring a worker back, with empty memory."""
        self.workers[rank].lost = False

    def vanish(self, entry: int, worker: int) -> None:
        """The store below evicts one worker's part of an entry, or loses it."""
        self.workers[worker].below[entry] = None

    def reset_blocks(self) -> None:
        """Lose all device memory, as after a sleep. Host memory stays."""
        for worker in self.workers:
            worker.blocks = [None] * len(worker.blocks)

    # --- queries ------------------------------------------------------------------------------------------------------------

    @property
    def present(self) -> list[Worker]:
        """The workers that are not lost: only they have memory and get orders."""
        return [worker for worker in self.workers if not worker.lost]

    def copies(self) -> list[tuple[int, CopyOrder]]:
        """Every copy that a worker runs or holds back, with the worker."""
        return [
            (worker.rank, order)
            for worker in self.workers
            for order in (*(running.order for running in worker.copies.values()), *worker.held_back)
        ]

    def running(self) -> list[tuple[int, int, bool]]:
        """Every running share: job, worker, and whether it hangs."""
        return [(job, worker.rank, running.hung) for worker in self.workers for job, running in worker.copies.items()]

    def _touching(self, block: int) -> list[tuple[int, CopyOrder]]:
        return [(order.job, order) for _, order in self.copies() if block in order.blocks]

    # --- as a value ---------------------------------------------------------------------------------------------------------

    def freeze(self) -> FrozenDevice:
        """The present state as a value."""
        workers: list[FrozenWorker] = []
        for worker in self.workers:
            copies = tuple([(each.order, each.reads, each.hung) for each in worker.copies.values()]) if worker.copies else ()
            blocks, places = tuple(worker.blocks), tuple(worker.places)
            held_back, passes = tuple(worker.held_back), tuple(worker.passes.items())
            below = tuple(worker.below) if worker.below else ()
            void = tuple(sorted(worker.void)) if worker.void else ()
            workers.append(FrozenWorker(blocks, places, copies, held_back, passes, worker.lost, below, void))
        return FrozenDevice(tuple(workers), tuple(self.awaited), tuple(sorted(self.begun)))

    def thaw(self, frozen_device: FrozenDevice) -> None:
        """Restore a frozen state."""
        for worker, saved in zip(self.workers, frozen_device.workers, strict=True):
            worker.blocks = list(saved.blocks)
            worker.places = list(saved.places)
            worker.copies = {order.job: Running(order, reads, hung) for order, reads, hung in saved.copies}
            worker.held_back = list(saved.held_back)
            worker.passes = dict(saved.passes)
            worker.lost = saved.lost
            worker.below = list(saved.below)
            worker.void = set(saved.void)
        self._share()
        self.awaited = dict.fromkeys(frozen_device.awaited)
        self.begun = dict.fromkeys(frozen_device.begun)


class DeviceMemo:
    """A device as a part of a world: each value reached is numbered, and each operation is applied to each value once."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.values: list[FrozenDevice] = []
        """By number; the first is the initial device."""
        self._numbers: dict[FrozenDevice, int] = {}
        self._calls: dict[tuple[int, object], tuple[int, tuple[Landing, ...]] | DeviceFault] = {}
        self.number(device.freeze())

    def __len__(self) -> int:
        return len(self.values) + len(self._calls)

    def number(self, value: FrozenDevice) -> int:
        """The number of a value."""
        number = self._numbers.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number

    def call(
        self, number: int, what: object, act: Callable[[Device], tuple[FrozenDevice, tuple[Landing, ...]]]
    ) -> tuple[int, tuple[Landing, ...]]:
        """Apply an operation, identified by *what*, to a value. Returns the new number and what landed.

        A `DeviceFault` of the first call is raised again by the later ones.
        """
        found = self._calls.get((number, what))
        if found is None:
            self.device.thaw(self.values[number])
            try:
                after, landed = act(self.device)
                found = self.number(after), landed
            except DeviceFault as fault:
                found = fault
            self._calls[number, what] = found
        if isinstance(found, DeviceFault):
            raise found
        return found


def renamed(
    frozen_device: FrozenDevice, names: DeviceNames, readable: Iterable[int], filled: Iterable[int], *, shared: bool = False
) -> FrozenDevice:
    """The same device under other names. Only the content of *readable* blocks and *filled* places (new names) is kept.

    The sources of copies are kept, too; everything else becomes garbage, so that a read of it is noticed.

    The copies of a worker are sorted by name: nothing depends on the order of their launches. With *shared* host memory, what
    one worker's copy reads there is kept for all.
    """
    kept, full = frozenset(readable), frozenset(filled)
    if shared:
        orders = [order for worker in frozen_device.workers for order, _, _ in worker.copies if not order.stores]
        full = full.union(names.places[place] for order in orders for place in order.source)
    workers = []
    for worker in frozen_device.workers:
        copies: tuple[tuple[CopyOrder, tuple[Content, ...], bool], ...] = ()
        held_back: tuple[CopyOrder, ...] = ()
        passes: tuple[tuple[int, Touched], ...] = ()
        blocks, places = kept, full
        if worker.copies or worker.held_back:
            named = [(names.order(order), reads, hung) for order, reads, hung in worker.copies]
            copies = tuple(sorted(named, key=_job_of))
            held_back = tuple(map(names.order, worker.held_back))
            for order in (*[order for order, _, _ in copies], *held_back):
                if order.stores:
                    blocks = blocks.union(() if order.below else order.source)
                else:
                    places = places.union(order.source)
        if worker.passes:
            passes = tuple([(plan - names.plans_before, names.touched(touched)) for plan, touched in worker.passes])
        own = _moved(worker.blocks, names.blocks, blocks), _moved(worker.places, names.places, places)
        void = tuple(sorted([names.jobs[job] for job in worker.void if job in names.jobs])) if worker.void else ()
        workers.append(FrozenWorker(*own, copies, held_back, passes, worker.lost, worker.below, void))
    awaited = tuple(sorted([names.jobs[job] for job in frozen_device.awaited])) if frozen_device.awaited else ()
    begun: tuple[tuple[int, int], ...] = ()
    if frozen_device.begun:
        begun = tuple(sorted([(names.jobs[job], rank) for job, rank in frozen_device.begun if job in names.jobs]))
    return FrozenDevice(tuple(workers), awaited, begun)


def _job_of(copy: tuple[CopyOrder, tuple[Content, ...], bool]) -> int:
    return copy[0].job


def _moved(content: Sequence[Content], names: Sequence[int], kept: Collection[int]) -> tuple[Content, ...]:
    """The kept content under new names."""
    found: list[Content] = [None] * len(content)
    for here, new in zip(content, names, strict=True):
        if here is not None and new in kept:
            found[new] = here
    return tuple(found)


def said(content: Content) -> str:
    """Content in words."""
    return "garbage" if content is None else str(content)
