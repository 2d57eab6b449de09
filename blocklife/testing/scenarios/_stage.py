"""The stage of a scenario: a driver, the device on which its plans are carried out, and the names of things.

Rules of this file:

* The device gets only what the driver told the workers. It checks every step; `check` checks the rest.

Theory. A plan is executed when it is made. Reports of copies that have landed wait for the next plan that settles. A forward
pass runs until its plan settles.
"""

from __future__ import annotations

import reprlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from attrs import define, field

from blocklife.groups import Geometry, Mamba
from blocklife.testing.scenarios._driver import Driver, EngineSetup, EngineStep, LookedUp, Problem, Unsupported
from blocklife.testing.scenarios._kinds import GARBAGE
from blocklife.testing.scenarios._names import ScenarioNames, SeenCopy, StageError
from blocklife.testing.worlds._device import Content, Device, DeviceFault, Landing, Pass

LIMIT = 64
"""The most steps to wait for a condition."""
PLACES_MAX = 10_000_000
"""The most blocks and host places of all workers together: the device simulates each of them."""
_FEW = 8
"""How many values an error lists."""
AnswerT = TypeVar("AnswerT")


def worded(content: Content) -> str:
    """The content of a place, for messages."""
    return GARBAGE if content is None else str(content)


class AnswerError(Exception):
    """What a method of the driver returned does not fit what it did: the driver is wrong, whatever the engine does."""


class UnmetError(Exception):
    """A condition of a verb itself is not met: copies do not end, or there is room where there must be none."""


@define(eq=False)
class StepOutcome:
    """The outcome of one step of a scenario, over all of its engine steps."""

    stores: list[int] = field(factory=list)
    loads: list[int] = field(factory=list)
    flushes: list[int] = field(factory=list)
    below: list[int] = field(factory=list)
    """Copies to and from the store below."""
    block_copies: list[tuple[int, int]] = field(factory=list)
    reads: set[int] = field(factory=set)
    """Blocks that its forward passes read."""
    handed_out: set[int] = field(factory=set)
    hits: dict[str, LookedUp] = field(factory=dict)
    no_room: dict[str, None] = field(factory=dict)
    loaded: list[str] = field(factory=list)
    failed: list[str] = field(factory=list)
    ended: list[str] = field(factory=list)
    answer: Mapping[str, int] | None = None


class Stage:
    """One run of one scenario in one variant."""

    def __init__(self, driver: Driver, world: EngineSetup) -> None:
        self.driver = driver
        self.world = world
        self.geometry = Geometry.parse(world.groups, world.blocks_per_chunk)
        places = max(1, world.slots) * world.blocks_per_chunk
        if (size := (world.blocks + 1 + places) * world.workers) > PLACES_MAX:
            raise StageError(f"a world of {size:,} places is too large (at most {PLACES_MAX:,} on all workers together)")
        entries = world.below * world.blocks_per_chunk
        self.device = Device(world.blocks + 1, places, world.workers, events=world.events != "none", num_entries=entries)
        self.names = ScenarioNames(driver, self.geometry)
        self.plans: deque[int] = deque()
        self.reports: list[Landing] = []
        self.launched: list[tuple[int, int]] = []
        self.begun: set[tuple[int, int]] = set()
        self.still_written: list[tuple[int, Content]] = []
        """Content that was sealed and that the next step still writes."""
        self.lent: dict[str, Mapping[int, str]] = {}
        """What another owner reads in every step, by request: blocks with their contents."""
        self.leased: dict[str, int] = {}
        """How many more steps it may do so, where that is limited."""
        self.happened = StepOutcome()
        self.pictures: dict[str, object] = {}
        self.prepared: list[str] = []
        """Requests that the scenario does not name."""
        driver.start(world)
        if world.below:
            driver.answer_below(())  # nothing was asked so far: an engine without such a store says so

    @staticmethod
    def asked(question: Callable[[], AnswerT], otherwise: AnswerT) -> AnswerT:
        """An optional method's answer, or *otherwise* where the driver does not have it."""
        try:
            return question()
        except Unsupported:
            return otherwise

    def remember(self, names: Mapping[str, str], label: str) -> None:
        """Store the names that a step introduces, and the picture of a step that has a name."""
        for name, text in names.items():
            self.names.given[name] = self.names.numbers(text)
        if label:
            self.pictures[label] = self.picture()

    def picture(self) -> object:
        """The whole state of engine and device as one value."""
        return self.driver.picture(), self.device.freeze(), tuple(self.reports)

    def check(self) -> None:
        """Check what must hold after every step. Raises `DeviceFault` with the rule."""
        nothing: tuple[Mapping[int, str], Mapping[int, str]] = ({}, {})
        none: list[Problem] = []
        blocks, places = self.asked(self.driver.claims, nothing)
        has_proofs = any(self.geometry.tail_proofs)  # tails may end before what their blocks hold, as beside a drafter's layers
        for worker in self.device.present:
            for what, claimed, there in (("block", blocks, worker.blocks), ("host place", places, worker.places)):
                for place, content in claimed.items():
                    if there[place] != content and not (has_proofs and self.goes_on(content, there[place])):
                        name = self.names.said(place) if what == "block" else f"{what} {place}"
                        raise DeviceFault(
                            "I6", f"{name} is found as {content}, but holds {worded(there[place])} on worker {worker.rank}"
                        )
        for problem in self.asked(lambda: list(self.driver.problems(self.device)), none):
            raise DeviceFault(problem.rule, problem.message)

    def entries(self) -> dict[int, str]:
        """What the store below has, by number of the entry: that of which every worker has its part."""
        size, found = self.world.blocks_per_chunk, dict[int, str]()
        for entry in range(self.world.below):
            parts = {worker.below[(entry + 1) * size - 1] for worker in self.device.workers}
            if len(parts) == 1 and None not in parts:
                found[entry] = str(*parts)
        return found

    def out(self) -> list[int]:
        """The running copies."""
        return list(dict.fromkeys(job for job, _, _ in self.device.running()))

    # --- engine steps -------------------------------------------------------------------------------------------------------

    def run_step(
        self,
        compute: Mapping[str, int] | None,
        let_in: Mapping[str, int] | None,
        preempt: Sequence[str] = (),
        sampled: Mapping[str, int] | None = None,
        settle: bool = True,
        failing: bool = False,
    ) -> None:
        """Take one engine step, and carry it out on the device."""
        self.asked(lambda: self.pass_time(1), None)
        found = self.driver.step(compute=compute, let_in=let_in, preempt=preempt)
        self.carry_out(found, failing=failing)
        self.names.look()
        self.check()
        while settle and len(self.plans) > (self.world.scheduling == "async"):
            self.settle_one(sampled)

    def pass_time(self, steps: int) -> None:
        """Let time pass. Owners whose lease is over read nothing from now on."""
        self.driver.advance(steps)
        self.leased = {request: left - steps for request, left in self.leased.items()}
        for request in [request for request, left in self.leased.items() if left <= 0]:
            del self.leased[request]
            self.lent.pop(request, None)

    def carry_out(self, found: EngineStep, *, failing: bool) -> None:
        """Let the workers carry a plan out; launches are reported when the plan settles."""
        orders, what = found.orders, self.happened
        self.check_owners(found)
        for told in (*found.ahead, orders):
            for order in (*told.loads, *told.stores, *told.below):
                owner, sizes = found.owners.get(order.job, ""), found.sizes.get(order.job, order.sizes)
                moved = found.contents.get(order.job, ())
                self.names.copies[order.job] = SeenCopy(
                    order, owner, found.sharers.get(order.job, ()), sizes, orders.plan, moved
                )
            what.stores += [order.job for order in told.stores]
            what.loads += [order.job for order in told.loads]
            what.below += [order.job for order in told.below]
            what.block_copies += told.block_copies
            what.reads |= {block for block, _ in told.forward.reads}
            what.flushes += told.flushes
        for early in found.ahead:
            self.reports += self.device.carry_out(early)
        what.handed_out |= set(found.handed_out)
        what.hits.update(found.hits)
        what.no_room |= dict.fromkeys(found.no_room)
        self.device.hand_out(found.handed_out, fence=self.world.contract == "fence")
        writes = (*orders.forward.writes, *self.still_written)
        self.still_written.clear()
        lent = [each for blocks in self.lent.values() for each in blocks.items()]
        doubts = tuple((job, part._replace(reads=tuple(self.as_it_lies(part.reads)))) for job, part in orders.doubts)
        whole = orders._replace(forward=Pass((*self.as_it_lies(orders.forward.reads), *lent), writes), doubts=doubts)
        badly = [(job, rank) for job in orders.flushes for rank in range(self.world.workers)] if failing else []
        self.reports += self.device.carry_out(whole, failing=badly)
        self.plans.append(orders.plan)
        now = [(job, worker) for job, worker, _ in self.device.running()]
        self.launched += [each for each in now if each not in self.begun]
        self.begun.update(now)

    def check_owners(self, found: EngineStep) -> None:
        """Every owner is a request of the scenario, and has a copy in the orders. Raises `AnswerError`."""
        owners: object = found.owners
        if not isinstance(owners, Mapping):
            raise AnswerError(f"EngineStep.owners must map the job of each copy to its request, not {reprlib.repr(owners)}")
        every = [*found.ahead, found.orders]
        planned = [order.job for told in every for order in (*told.loads, *told.stores, *told.below)]
        known = [*self.names.requests, *self.prepared]
        shared = [(job, sharer) for job, each in found.sharers.items() for sharer in each]
        for job, owner in [*owners.items(), *shared]:
            if job not in planned:
                there = f"the copies of this step are {_listed(planned)}" if planned else "this step has no copies"
                said = f"names copy {reprlib.repr(job)}, and {there} (map the job of each order to its request)"
            elif owner != "" and owner not in known:
                said = (
                    f"says that copy {job} is of request {reprlib.repr(owner)}, and the requests are {_listed(known)} "
                    "(use the name that arrive was given, and '' for a copy of no request)"
                )
            else:
                continue
            raise AnswerError(f"EngineStep.owners {said}")

    def as_it_lies(self, reads: Iterable[tuple[int, Content]]) -> Iterator[tuple[int, Content]]:
        """The reads of a pass, with partly filled blocks as they are on the device.

        Tokens that were computed and rolled back stay there, behind the valid ones; a pass reads the valid ones only.
        """
        for block, wanted in reads:
            found = (worker.blocks[block] for worker in self.device.present)
            yield block, next((each for each in found if self.goes_on(wanted, each)), wanted)

    def goes_on(self, wanted: Content, found: Content) -> bool:
        """Whether found content begins with the wanted one, within one block; the state of a Mamba group must be equal."""
        if not (isinstance(wanted, str) and isinstance(found, str)):
            return False
        (name, _, weights), (longer, _, others) = wanted.partition("@"), found.partition("@")
        group, _, text = name.partition(":")
        if weights != others or not longer.startswith(name) or isinstance(self.geometry.groups[int(group)], Mamba):
            return False
        size = self.geometry.block_tokens[int(group)]
        return -(-len(text) // size) * size >= len(longer) - len(name) + len(text)

    def settle_one(self, sampled: Mapping[str, int] | None = None) -> None:
        """Settle the oldest plan, with all reports."""
        if not self.plans:
            raise StageError("no plan is out")
        reports, self.reports = self.reports, []
        launched, self.launched = self.launched, []
        found = self.driver.settle(reports, launched=launched, sampled=sampled)
        self.device.finish_pass(self.plans.popleft())
        self.happened.loaded += found.loaded
        self.happened.failed += found.failed
        self.happened.ended += found.ended
        self.names.look()
        self.check()

    def tick(self) -> None:
        """Take a step that computes nothing, and settle every plan."""
        self.run_step({}, {})
        while self.plans:
            self.settle_one()

    def repeat(self, times: int, once: Callable[[], None], until: Callable[[], str] | None) -> None:
        """Call *once* so many times, or until nothing is missing any more."""
        missing = ""
        for _ in range(times if until is None else LIMIT):
            once()
            if until is not None and not (missing := until()):
                return
        if until is not None:
            raise StageError(f"still not after {LIMIT} steps: {missing}")


def _listed(values: Iterable[object]) -> str:
    """The first few, in words."""
    first = list(map(repr, values))
    return ", ".join([*first[:_FEW], *["..."] * (len(first) > _FEW)])
