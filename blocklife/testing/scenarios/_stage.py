"""The stage of a scenario: a driver, the device on which its plans are carried out, and the names of things.

Rules of this file:

* Each method ``do_VERB`` is a verb of files, with the same parameters. Verbs that an engine does alone are methods of `Driver`:
  `pass_on` calls them with places, jobs and contents instead of names.
* The device gets only what the driver told the workers. It checks every step; `check` checks the rest.
* A scenario that refers to something that does not exist (a copy that does not run) raises a `StageError`, never a refusal.

Theory. A copy in a file is all that one step plans for a request in one direction: one job of many blocks, or a job for each
block, as the engine chooses. A plan is executed when it is made. Reports of copies that have landed wait for the next
plan that settles. A forward pass runs until its plan settles.
"""

from __future__ import annotations

import re
import reprlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, TypeVar

from attrs import define, field

from blocklife.offload import Geometry, Mamba
from blocklife.testing.scenarios import _kinds as kinds
from blocklife.testing.scenarios._driver import (
    NOBODY,
    Driver,
    EngineSetup,
    EngineStep,
    LookedUp,
    Problem,
    SettledPlan,
    Unsupported,
)
from blocklife.testing.scenarios._words import Until, Verb, verb
from blocklife.testing.worlds._device import Content, CopyOrder, Device, DeviceFault, Landing, Pass

LIMIT = 64
"""The most steps to wait for a condition."""
PLACES_MAX = 10_000_000
"""The most blocks and host places of all workers together: the device simulates each of them."""
GARBAGE = "garbage"
_FEW = 8
"""How many values an error lists."""
AnswerT = TypeVar("AnswerT")


def worded(content: Content) -> str:
    """The content of a place, for messages."""
    return GARBAGE if content is None else str(content)


def _listed(values: Iterable[object]) -> str:
    """The first few, in words."""
    first = [repr(value) for value in islice(values, _FEW + 1)]
    return ", ".join(first[:_FEW]) + (", ..." if len(first) > _FEW else "")


def _some(count: int, kind: str) -> str:
    return f"1 {kind} has" if count == 1 else f"{count} {kind}s have"


class StageError(Exception):
    """The scenario refers to something that does not exist: this engine does not reach the case."""


class AnswerError(Exception):
    """What a method of the driver returned does not fit what it did: the driver is wrong, whatever the engine does."""


class UnmetError(Exception):
    """A condition of a verb itself is not met: copies do not end, or there is room where there must be none."""


@define(eq=False)
class SeenCopy:
    """One copy of a plan."""

    order: CopyOrder
    owner: str
    sharers: tuple[str, ...]
    sizes: tuple[int, ...]
    plan: int

    @property
    def copy(self) -> tuple[str, bool, int]:
        """What the file calls one copy: owner, direction and plan, whatever number of jobs it has."""
        return self.owner, self.order.stores, self.plan


@define(eq=False)
class StepOutcome:
    """The outcome of one step of a scenario, over all of its engine steps."""

    stores: list[int] = field(factory=list)
    loads: list[int] = field(factory=list)
    flushes: list[int] = field(factory=list)
    handed_out: set[int] = field(factory=set)
    hits: dict[str, LookedUp] = field(factory=dict)
    no_room: dict[str, None] = field(factory=dict)
    loaded: list[str] = field(factory=list)
    failed: list[str] = field(factory=list)
    ended: list[str] = field(factory=list)
    answer: Mapping[str, int] | None = None


class Stage:
    """One run of one scenario in one variant. It has every verb except `walk`, which is in `WalkingStage`."""

    def __init__(self, driver: Driver, world: EngineSetup) -> None:
        self.driver = driver
        self.world = world
        self.geometry = Geometry.parse(world.groups, world.blocks_per_chunk)
        places = max(1, world.slots) * world.blocks_per_chunk
        if (size := (world.blocks + 1 + places) * world.workers) > PLACES_MAX:
            raise StageError(f"a world of {size:,} places is too large (at most {PLACES_MAX:,} on all workers together)")
        self.device = Device(world.blocks + 1, places, world.workers, events=world.events != "none")
        self.names: dict[str, tuple[str, tuple[int, ...]]] = {}
        """The kind and number of what ``as`` and ``remember`` have named; a copy has a number for each of its jobs."""
        self.seen: dict[tuple[str, int], list[int]] = {}
        """By request and group, the block that each position of its table had last, even if it was released."""
        self.requests: dict[str, None] = {}
        self.texts: dict[str, str] = {}
        self.copies: dict[int, SeenCopy] = {}
        self.plans: deque[int] = deque()
        self.reports: list[Landing] = []
        self.launched: list[tuple[int, int]] = []
        self.begun: set[tuple[int, int]] = set()
        self.still_written: list[tuple[int, Content]] = []
        """Content that was sealed and that the next step still writes."""
        self.lent: dict[str, Mapping[int, str]] = {}
        """What another owner reads in every step, by request: blocks with their contents."""
        self.happened = StepOutcome()
        self.pictures: dict[str, object] = {}
        self._passes = 0
        self._prepared: list[str] = []
        """The requests that `prepare` adds by itself."""
        self.meanings: Mapping[kinds.Kind, Callable[..., object]] = {
            kinds.BLOCK: self.block,
            kinds.BLOCKS: self.blocks,
            kinds.CONTENT: self.content,
            kinds.CONTENTS: self.contents,
            kinds.COPIES: self.all_jobs,
        }
        """What a driver gets for the names in a file, by kind of parameter."""
        driver.start(world)

    # --- names --------------------------------------------------------------------------------------------------------------

    def block(self, text: str) -> int:
        """The block for a name of the scenario."""
        if text in self.names:
            return self.names[text][1][0]
        found = kinds.BLOCK_NAME.fullmatch(text)
        if found is None:
            raise StageError(f"{text!r} names no block")
        table = self.seen.get((found[2], int(found[3] or 0)), [])
        position = int(found[1])
        if position >= len(table) or not table[position]:
            raise StageError(f"there is no {text}: it has had {sum(map(bool, table))} blocks so far")
        return table[position]

    def jobs(self, text: str) -> tuple[int, ...]:
        """The jobs of the copy for a name of the scenario."""
        if text == kinds.NO_COPY:
            return (NOBODY,)
        if text in self.names:
            return self.names[text][1]
        found = kinds.COPY_NAME.fullmatch(text)
        if found is None:
            raise StageError(f"{text!r} names no copy")
        which, kind, request = found.groups()
        own = self.copies_of(request, stores=kind == "store")
        at = kinds.ORDINALS.index(which) if which else -1
        if len(own) <= max(at, 0):
            unowned = sum(not each.owner and each.order.stores is (kind == "store") for each in self.copies.values())
            more = f"; {_some(unowned, kind)} no request (EngineStep.owners)" if unowned else ""
            raise StageError(f"there is no such copy as {text}: {len(own)} {kind}s of {request} were planned so far{more}")
        return own[at]

    def copies_of(self, owner: str, *, stores: bool) -> list[tuple[int, ...]]:
        """The copies of a request in one direction, each with its jobs."""
        found: dict[int, tuple[int, ...]] = {}
        for job, each in self.copies.items():
            if owner in (each.owner, *each.sharers) and each.order.stores is stores:
                found[each.plan] = (*found.get(each.plan, ()), job)
        return list(found.values())

    def content(self, text: str) -> str:
        """The content for a name of the scenario, with its group."""
        found = kinds.BLOCK_NAME.fullmatch(text)
        if found is not None:
            group = int(found[3] or 0)
            end = (int(found[1]) + 1) * self.geometry.block_tokens[group]
            said = self.texts.get(found[2], "")
            if len(said) < end:
                said = self.texts[found[2]] = self.driver.tokens(found[2])
            if len(said) < end:
                raise StageError(f"{text} has no content: {found[2]} has {len(said)} tokens, and it ends at {end}")
            return f"{group}:{said[:end]}"
        parts = kinds.CONTENT_NAME.fullmatch(text)
        if parts is None:
            raise StageError(f"{text!r} is not content")
        return f"{int(parts[1] or 0)}:{parts[2]}"

    def slot(self, text: str) -> int:
        """The host slot for a name of the scenario."""
        if text in self.names:
            return self.names[text][1][0]
        found = kinds.SLOT_NAME.fullmatch(text)
        slot = self.driver.slot_of(self.content(found[1])) if found else None
        if slot is None:
            raise StageError(f"{text} does not exist: no slot has or will get this content")
        return slot

    def kind(self, text: str) -> str:
        """The kind of thing that a name stands for."""
        if text in self.names:
            return self.names[text][0]
        for kind, form in (("block", kinds.BLOCK_NAME), ("job", kinds.COPY_NAME), ("slot", kinds.SLOT_NAME)):
            if form.fullmatch(text):
                return kind
        return "request"

    def numbers(self, text: str) -> tuple[str, tuple[int, ...]]:
        """The kind and number of a block or slot, or of each job of a copy."""
        kind = self.kind(text)
        if kind == "job":
            return kind, self.jobs(text)
        return kind, ({"block": self.block, "slot": self.slot}[kind](text),)

    def said(self, block: int) -> str:
        """The scenario's name of a block."""
        for name, found in self.names.items():
            if found == ("block", (block,)):
                return name
        for (request, group), table in reversed(self.seen.items()):
            if block in table:
                return f"block {table.index(block)} of {request}" + (f" in group {group}" if group else "")
        return f"block number {block}"

    def said_job(self, job: int) -> str:
        """The scenario's name of a copy."""
        for name, (kind, numbers) in self.names.items():
            if kind == "job" and job in numbers:
                return name
        if job not in self.copies:
            return f"copy number {job}"
        seen = self.copies[job]
        stores = seen.order.stores
        own = self.copies_of(seen.owner, stores=stores)
        at = next(at for at, jobs in enumerate(own) if job in jobs)
        which = f"{kinds.ORDINALS[at]} " if len(own) > 1 and at < len(kinds.ORDINALS) else ""
        return f"the {which}{'store' if stores else 'load'} of {seen.owner}" if seen.owner else f"copy number {job}"

    def in_words(self, text: str) -> str:
        """A message of the device or the engine, with the scenario's names added to its numbers."""

        def beside(found: re.Match[str]) -> str:
            said = self.said(int(found[2])) if found[1] == "block" else self.said_job(int(found[2]))
            return found[0] if " number " in said else f"{found[0]} ({said})"

        return re.sub(r"\b(block|copy) (\d+)\b(?! of )", beside, text)

    @staticmethod
    def asked(question: Callable[[], AnswerT], otherwise: AnswerT) -> AnswerT:
        """An optional method's answer, or *otherwise* where the driver does not have it."""
        try:
            return question()
        except Unsupported:
            return otherwise

    def worker(self, rank: int) -> int:
        """The worker of this number; raises `StageError` where there is none."""
        if rank >= self.world.workers:
            raise StageError(f"there is no worker {rank}: they are numbered from 0 to {self.world.workers - 1}")
        return rank

    # --- one step of the scenario -------------------------------------------------------------------------------------------

    def take(self, verb: Verb, arguments: Mapping[str, object], names: Sequence[str] = ()) -> None:
        """Carry out one step of the scenario, name what it made, and note its outcome."""
        self.happened = StepOutcome()
        own: Callable[..., None] | None = getattr(self, f"do_{verb.name}", None)
        if own is not None:
            own(**arguments)
        else:
            made = self.pass_on(verb, arguments)
            self.names.update((name, (verb.binds, (each,))) for name, each in zip(names, made if names else [], strict=True))
        self.look()

    def pass_on(self, verb: Verb, arguments: Mapping[str, object]) -> list[int]:
        """Call the driver's method with what the names stand for; of a copy, for each of its jobs. Returns what it made."""
        method: Callable[..., int | list[int] | None] = getattr(self.driver, verb.name)
        made: int | list[int] | None = None
        for job in self.jobs(str(arguments["copy"])) if "copy" in arguments else (NOBODY,):
            given: list[object] = []
            by_name: dict[str, object] = {}
            for each in verb.parameters:
                value = arguments.get(each.name, each.default)
                meant = (
                    job if each.kind == kinds.COPY else self.meanings[each.kind](value) if each.kind in self.meanings else value
                )
                if each.by_name:
                    by_name[each.name] = meant
                else:
                    given.append(meant)
            made = method(*given, **by_name)
        return made if isinstance(made, list) else [] if made is None else [made]

    def blocks(self, texts: Iterable[str]) -> list[int]:
        """The blocks for some names."""
        return list(map(self.block, texts))

    def contents(self, texts: Iterable[str]) -> list[str]:
        """The contents for some names."""
        return list(map(self.content, texts))

    def all_jobs(self, texts: Iterable[str]) -> list[int]:
        """The jobs of some copies."""
        return [job for text in texts for job in self.jobs(text)]

    def remember(self, names: Mapping[str, str], label: str) -> None:
        """Store the names that a step introduces, and the picture of a step that has a name."""
        for name, text in names.items():
            self.names[name] = self.numbers(text)
        if label:
            self.pictures[label] = self.picture()

    def picture(self) -> object:
        """The whole state of engine and device as one value."""
        return self.driver.picture(), self.device.freeze(), tuple(self.reports)

    def look(self) -> None:
        """Note which blocks requests hold."""
        for request in self.requests:
            for group in range(len(self.geometry.groups)):
                table = self.driver.table(request, group)
                seen = self.seen.setdefault((request, group), [])
                for position, block in enumerate(table):
                    if position == len(seen):
                        seen.append(block)
                    elif block:
                        seen[position] = block

    @property
    def has_proofs(self) -> bool:
        """Whether tails may end before what their blocks hold, as beside layers of a drafter."""
        return any(self.geometry.tail_proofs)

    def check(self) -> None:
        """Check what must hold after every step. Raises `DeviceFault` with the rule."""
        nothing: tuple[Mapping[int, str], Mapping[int, str]] = ({}, {})
        none: list[Problem] = []
        blocks, places = self.asked(self.driver.claims, nothing)
        for worker in self.device.present:
            for what, claimed, there in (("block", blocks, worker.blocks), ("host place", places, worker.places)):
                for place, content in claimed.items():
                    if there[place] != content and not (self.has_proofs and self.goes_on(content, there[place])):
                        name = self.said(place) if what == "block" else f"{what} {place}"
                        raise DeviceFault(
                            "I6", f"{name} is found as {content}, but holds {worded(there[place])} on worker {worker.rank}"
                        )
        for problem in self.asked(lambda: list(self.driver.problems(self.device)), none):
            raise DeviceFault(problem.rule, problem.message)

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
        self.asked(lambda: self.driver.advance(1), None)
        found = self.driver.step(compute=compute, let_in=let_in, preempt=preempt)
        self.carry_out(found, failing=failing)
        self.look()
        self.check()
        while settle and len(self.plans) > (self.world.scheduling == "async"):
            self.settle_one(sampled)

    def carry_out(self, found: EngineStep, *, failing: bool) -> None:
        """Let the workers carry a plan out; launches are reported when the plan settles."""
        orders, what = found.orders, self.happened
        self.check_owners(found)
        for told in (*found.ahead, orders):
            for order in (*told.loads, *told.stores):
                owner, sizes = found.owners.get(order.job, ""), found.sizes.get(order.job, order.sizes)
                self.copies[order.job] = SeenCopy(order, owner, found.sharers.get(order.job, ()), sizes, orders.plan)
            what.stores += [order.job for order in told.stores]
            what.loads += [order.job for order in told.loads]
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
        told = (*found.ahead, found.orders)
        if not isinstance(owners, Mapping):
            raise AnswerError(f"EngineStep.owners must map the job of each copy to its request, not {reprlib.repr(owners)}")
        planned = [order.job for each in told for order in (*each.loads, *each.stores)]
        known = [*self.requests, *self._prepared]
        shared = [(job, sharer) for job, each in found.sharers.items() for sharer in each]
        for job, owner in [*owners.items(), *shared]:
            if job not in planned:
                there = f"the copies of this step are {_listed(planned)}" if planned else "this step has no copies"
                raise AnswerError(
                    f"EngineStep.owners names copy {reprlib.repr(job)}, and {there} (map the job of each order to its request)"
                )
            if owner != "" and owner not in known:
                raise AnswerError(
                    f"EngineStep.owners says that copy {job} is of request {reprlib.repr(owner)}, and the requests are "
                    f"{_listed(known)} (use the name that arrive was given, and '' for a copy of no request)"
                )

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
        found: SettledPlan = self.driver.settle(reports, launched=launched, sampled=sampled)
        self.device.finish_pass(self.plans.popleft())
        self.happened.loaded += found.loaded
        self.happened.failed += found.failed
        self.happened.ended += found.ended
        self.look()
        self.check()

    def repeat(self, times: int, once: Callable[[], None], until: Callable[[], str] | None) -> None:
        """Call *once* so many times, or until nothing is missing any more."""
        if until is None:
            for _ in range(times):
                once()
            return
        missing = ""
        for _ in range(LIMIT):
            once()
            if not (missing := until()):
                return
        raise StageError(f"still not after {LIMIT} steps: {missing}")

    # --- verbs: the engine --------------------------------------------------------------------------------------------------

    def do_arrive(
        self, request: kinds.NewRequest, prompt: kinds.Letters, tokens: int | None = None, reply: kinds.Letters = ""
    ) -> None:
        """A request arrives with a prompt, one letter per token, and waits. `tokens`: it ends when it has so many in all.
        `reply`: what it will sample; then it ends.
        """
        self.driver.arrive(request, prompt, tokens, *([reply] if reply else []))
        self.requests[request] = None
        for key in [each for each in self.seen if each[0] == request]:
            del self.seen[key]
        self.texts[request] = prompt

    def do_step(
        self,
        compute: kinds.Tokens | None = None,
        let_in: kinds.LetIn | None = None,
        preempt: kinds.RequestNames = (),
        sampled: kinds.Tokens | None = None,
        failing: bool = False,
        settle: bool = True,
        times: kinds.Times = 1,
        until: Until | None = None,
    ) -> None:
        """One engine step: preempt, schedule, admit, plan, execute, settle (`async`: settle the previous plan). `compute`:
        tokens of running requests, 0 for those not named; without it the engine chooses. `let_in`: the requests to look up
        and admit, with a number if not all known tokens are computed at once; without it all that wait. `sampled`: how many
        tokens a request gets. `failing`: the copies that the plan waits for fail. `settle = false`: the plan stays
        outstanding. `times`, `until`: repeat.
        """
        entering = let_in if let_in is None or isinstance(let_in, Mapping) else dict.fromkeys(let_in, 0)
        self.repeat(times, lambda: self.run_step(compute, entering, preempt, sampled, settle, failing), until)

    def do_tick(self, times: kinds.Times = 1, until: Until | None = None) -> None:
        """A step that computes and admits nothing; then all outstanding plans settle."""
        self.repeat(times, self.tick, until)

    def tick(self) -> None:
        """Take a step that computes nothing, and settle every plan."""
        self.run_step({}, {})
        while self.plans:
            self.settle_one()

    def do_settle(
        self, sampled: kinds.Tokens | None = None, after: Annotated[int, kinds.number(needs=("advance",))] = 0
    ) -> None:
        """The oldest outstanding plan settles, with all reports. `after`: first the time of so many steps passes."""
        if after:
            self.driver.advance(after)
        self.settle_one(sampled)

    @verb(needs="progress")
    def do_compute(self, request: kinds.RequestName, tokens: int) -> None:
        """Steps in which only this request computes, until exactly so many of its tokens are settled and none is in flight."""
        for _ in range(LIMIT):
            now = self.driver.progress(request)
            if now.computed == tokens and not now.in_flight:
                return
            end = now.computed + now.in_flight
            more = min(tokens - end, max(1, now.known - end))
            self.run_step({request: more} if more > 0 else {}, {})
        raise StageError(f"{request} is at {self.driver.progress(request)} after {LIMIT} steps")

    def do_lookup(self, request: kinds.RequestName) -> None:
        """Look up the prefix hit of a request; the content that was hit stays until the next plan."""
        self.happened.hits[request] = self.driver.lookup(request)

    def do_lend(self, request: kinds.RequestName) -> None:
        """Another owner, such as a second connector, begins to read what is final of a request; it reads in every step,
        whatever becomes of the request.
        """
        self.lent[request] = dict(self.driver.lend(request))

    def do_give_back(self, request: kinds.RequestName) -> None:
        """That owner is done with it."""
        self.driver.give_back(request)
        self.lent.pop(request, None)

    def do_land(
        self, copies: kinds.CopyNames | None = None, worker: kinds.Worker | None = None, report: kinds.Report = "sent"
    ) -> None:
        """Copies land on the device: those named, or all that run; on one `worker`, or on all. Their reports come with
        the next plan that settles; `report`: `twice`, or `lost`.
        """
        self.land(copies, worker, report, ok=True)

    def do_fail(
        self, copies: kinds.CopyNames | None = None, worker: kinds.Worker | None = None, report: kinds.Report = "sent"
    ) -> None:
        """As `land`, but the bytes are garbage, and the report says so."""
        self.land(copies, worker, report, ok=False)

    def land(self, copies: Sequence[str] | None, worker: int | None, report: str, *, ok: bool) -> None:
        """Let copies end on the device; the engine gets the reports when the next plan settles."""
        for job, rank in self.running(copies, worker):
            landing = self.device.land(job, rank, ok=ok)
            self.reports += [landing] * {"sent": 1, "twice": 2, "lost": 0}[report]
            if self.world.events == "shared":
                kind = self.copies[job].order.stores
                others = [each for each in self.device.running() if self.copies[each[0]].order.stores is kind]
                self.reports += [Landing(other, at, ok) for other, at, _ in others if at == rank]

    def running(self, copies: Sequence[str] | None, worker: int | None) -> list[tuple[int, int]]:
        """The shares of these copies; each must be running, and not hang."""
        running = {(job, rank) for job, rank, hung in self.device.running() if not hung}
        ranks = range(self.world.workers) if worker is None else [self.worker(worker)]
        if copies is None:
            return sorted(each for each in running if each[1] in ranks)
        found: list[tuple[int, int]] = []
        for text in copies:
            jobs = self.jobs(text)
            own = [(job, rank) for job in jobs for rank in ranks if (job, rank) in running]
            if not own:
                state = "hangs" if any(each[0] in jobs for each in self.device.running()) else "does not run"
                raise StageError(f"{text} {state} on the device" + ("" if worker is None else f" of worker {worker}"))
            found += own
        return found

    def do_hang(self, copies: kinds.CopyNames | None = None, worker: kinds.Worker | None = None) -> None:
        """Copies never land by themselves; a wait for them ends them without a report."""
        for job, rank in self.running(copies, worker):
            self.device.hang(job, rank)

    def do_report(self, copy: kinds.CopyName, worker: kinds.Worker = 0, failed: bool = False) -> None:
        """A report comes although nothing lands now: a repeated, late or early one, or one of a copy that `nobody` made."""
        self.reports += [Landing(job, self.worker(worker), not failed) for job in self.jobs(copy)]

    def do_lose_report(self, copy: kinds.CopyName, worker: kinds.Worker = 0) -> None:
        """A report that was sent but not delivered yet gets lost."""
        jobs, rank = self.jobs(copy), self.worker(worker)
        found = [next((each for each in self.reports if (each.job, each.worker) == (job, rank)), None) for job in jobs]
        if not any(found):
            raise StageError(f"no report of {copy} by worker {worker} is on its way")
        for each in filter(None, found):
            self.reports.remove(each)

    def do_lose_worker(self, worker: kinds.Worker) -> None:
        """A worker is lost, with its copies and its memory."""
        self.driver.lose_worker(self.worker(worker))  # the engine comes first: what it refuses does not happen
        self.device.lose(worker)

    def do_regain_worker(self, worker: kinds.Worker) -> None:
        """It is back, with empty memory."""
        self.driver.regain_worker(self.worker(worker))
        self.device.regain(worker)

    @verb(needs="advance")
    def do_pass_time(self, steps: int) -> None:
        """The time of so many steps passes, then a tick."""
        self.driver.advance(steps)
        self.tick()

    def do_prove_quiet(self, copies: kinds.CopyNames | None = None) -> None:
        """The device is synchronised with these copies, or with all that run."""
        self.prove_quiet(self.out() if copies is None else self.all_jobs(copies))

    def prove_quiet(self, jobs: Sequence[int]) -> None:
        """Stop the copies on the device first and then tell the engine, so that the proof is true."""
        for worker in self.device.workers:
            for job in jobs:
                if job in worker.copies:
                    worker.land(job, ok=False)
            worker.held_back = [order for order in worker.held_back if order.job not in jobs]
        self.driver.prove_quiet(jobs)

    @verb(needs="pending")
    def do_drain(self) -> None:
        """Ticks in which everything lands, until nothing is pending."""
        for _ in range(LIMIT):
            if not self.driver.pending() and not self.plans:
                return
            self.land(None, None, "sent", ok=True)
            self.tick()
        raise UnmetError(f"still pending after {LIMIT} ticks: {', '.join(map(self.said_job, self.out())) or 'no copy is out'}")

    def out(self) -> list[int]:
        """The running copies."""
        return list(dict.fromkeys(job for job, _, _ in self.device.running()))

    def do_agree(self, ranks: kinds.Offers) -> None:
        """Ranks report what they have; the answer is what all of them use."""
        self.happened.answer = self.driver.agree(ranks)

    def do_check(self) -> None:
        """Nothing happens: a step only for expectations."""

    # --- verbs: scenes ------------------------------------------------------------------------------------------------------

    @verb("scenes", needs="finish sleep wake progress pending")
    def do_prepare(self, prompt: kinds.Letters, stride: int | None = None) -> None:
        """The content of a prompt is stored in the host, and the device is empty afterwards. `stride`: tokens per step."""
        name = f"prepared~{len(self._prepared) + 1}"
        self._prepared.append(name)
        self.driver.arrive(name, prompt, None)
        self.run_step({}, {name: min(stride or len(prompt), len(prompt))})
        best = idle = 0
        while (end := self.end_of(name)) < len(prompt):
            best, idle = (end, 0) if end > best else (best, idle + 1)
            if idle == LIMIT:
                raise StageError(
                    f"there is no room for this prompt: {best} of its {len(prompt)} tokens after {LIMIT} steps more"
                )
            self.land(None, None, "sent", ok=True)
            self.run_step({name: min(stride or len(prompt), len(prompt) - end)}, {})
        for _ in range(2):  # some store in the step itself, others once it has settled
            if not self.copies_of(name, stores=True):
                self.tick()
        self.driver.finish(name)
        self.do_drain()
        self.do_empty_device()

    def end_of(self, request: str) -> int:
        """The number of tokens that are computed or in a plan."""
        now = self.driver.progress(request)
        return now.computed + now.in_flight

    @verb("scenes", needs="sleep wake pending")
    def do_empty_device(self) -> None:
        """The device loses its content, the host does not: sleep, drain, wake."""
        self.driver.sleep()
        self.do_drain()
        self.driver.wake()

    @verb("scenes")
    def do_crowd_host(self, slots: kinds.Many, fits: bool = True) -> None:
        """So many slots are needed for other content: the least recently used are evicted. `fits`: whether there is room."""
        if self.driver.crowd_host(slots) is not fits:
            raise UnmetError(f"there is {'no ' if fits else ''}room for {slots} more slots in the host")

    # --- verbs: single blocks -----------------------------------------------------------------------------------------------

    @verb("single blocks")
    def do_enter(self, request: kinds.NewRequest, waiting: bool = False) -> None:
        """A request runs that is not scheduled: only the verbs of this section act on it. `waiting`: it does not run yet."""
        self.driver.enter(request, waiting=waiting)
        self.requests[request] = None

    @verb("single blocks")
    def do_seal(self, blocks: kinds.BlockNames, contents: kinds.Contents, running: bool = False) -> None:
        """These blocks are computed, final, and found under these names. `running`: only the next step computes them; they
        are sealed before it has settled.
        """
        places, names = self.blocks(blocks), self.contents(contents)
        self.driver.seal(places, names)  # what the engine refuses is not written
        self._passes -= 1
        written: list[tuple[int, Content]] = list(zip(places, names, strict=True))
        for worker in self.device.present:
            worker.forward(self._passes, Pass(writes=tuple(written)))
            del worker.passes[self._passes]
        if running:
            self.still_written += written
