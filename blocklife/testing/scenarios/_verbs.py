"""The verbs of a scenario that need more than one method of a driver: the device, several steps, or names for what is new.

Rules of this file:

* Each method ``do_VERB`` is a verb of files, with the same parameters. What an engine does alone is a method of `Driver`:
  `pass_on` calls it with places, jobs and contents instead of names.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

from attrs import define, field

from blocklife.errors import CapacityError
from blocklife.testing.scenarios import _kinds as kinds
from blocklife.testing.scenarios._driver import NOBODY
from blocklife.testing.scenarios._names import StageError
from blocklife.testing.scenarios._stage import LIMIT, Stage, StepOutcome, UnmetError
from blocklife.testing.scenarios._words import Until, Verb, verb
from blocklife.testing.worlds._device import Content, Landing, Pass

_SEALING = -1
"""The number of a forward pass that no plan has."""
_PROMPTS = ("abcdefghijklmnopqrstuvwx", "abcdefghzzzzyyyyxxxxwwww", "mnopqrstuvwxabcdefghijkl")
"""The prompts of a walk; the first two have a common prefix."""
_REQUESTS = 5
"""The most requests of a walk at a time."""
_RUNS = frozenset({"LOADING", "RUNNING"})
"""The states in which a request can be preempted, in the words of the driver protocol."""


class VerbStage(Stage):
    """A stage with all verbs."""

    def take(self, verb: Verb, arguments: Mapping[str, object], names: Sequence[str] = ()) -> None:
        """Carry out one step of the scenario, name what it made, and note its outcome."""
        self.happened = StepOutcome()
        own: Callable[..., None] | None = getattr(self, f"do_{verb.name}", None)
        if own is not None:
            own(**arguments)
        else:
            made = self.pass_on(verb, arguments)
            given = zip(names, made if names else [], strict=True)
            self.names.given.update((name, (verb.binds, (each,))) for name, each in given)
        self.names.look()

    def pass_on(self, verb: Verb, arguments: Mapping[str, object]) -> list[int]:
        """Call the driver's method with what the names stand for; of a copy, for each of its jobs. Returns what it made."""
        method: Callable[..., int | list[int] | None] = getattr(self.driver, verb.name)
        made: int | list[int] | None = None
        for job in self.names.jobs(str(arguments["copy"])) if "copy" in arguments else [NOBODY]:
            given: dict[bool, dict[str, object]] = {False: {}, True: {}}
            for each in verb.parameters:
                value = job if each.name == "copy" else arguments.get(each.name, each.default)
                given[each.by_name][each.name] = self.names.meant(each.kind, value)
            made = method(*given[False].values(), **given[True])
        return made if isinstance(made, list) else [] if made is None else [made]

    # --- verbs: the engine --------------------------------------------------------------------------------------------------

    def do_arrive(
        self,
        request: kinds.NewRequest,
        prompt: kinds.Letters,
        tokens: kinds.TokenCount | None = None,
        reply: kinds.Letters = "",
    ) -> None:
        """A request arrives with a prompt, one letter per token, and waits. `tokens`: it ends when it has so many in all.
        `reply`: what it will sample; then it ends.
        """
        self.driver.arrive(request, prompt, tokens, *([reply] if reply else []))
        self.names.arrive(request, prompt)

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

    def do_settle(
        self, sampled: kinds.Tokens | None = None, after: Annotated[int, kinds.number(needs=("advance",))] = 0
    ) -> None:
        """The oldest outstanding plan settles, with all reports. `after`: first the time of so many steps passes."""
        if after:
            self.pass_time(after)
        self.settle_one(sampled)

    @verb(needs="progress")
    def do_compute(self, request: kinds.RequestName, tokens: kinds.TokenCount) -> None:
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

    def do_lease(self, request: kinds.RequestName, steps: kinds.Times) -> None:
        """As `lend`, for so many steps at most: then the owner reads no more, whether it has given back or not. Again: it ends
        so many steps from now.
        """
        self.lent[request] = dict(self.driver.lease(request, steps))
        self.leased[request] = steps

    def do_give_back(self, request: kinds.RequestName) -> None:
        """That owner is done with it; it may say so after its lease has ended."""
        self.driver.give_back(request)
        self.lent.pop(request, None)
        self.leased.pop(request, None)

    def do_answer_below(self) -> None:
        """The store below answers what it was asked: whether it has some content."""
        self.driver.answer_below(self.entries().keys())

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
                kind = self.names.copies[job].order.stores
                others = [each for each in self.device.running() if self.names.copies[each[0]].order.stores is kind]
                self.reports += [Landing(other, at, ok) for other, at, _ in others if at == rank]

    def land_all(self) -> None:
        """Everything that runs lands, and the store below answers."""
        self.land(None, None, "sent", ok=True)
        if self.world.below:
            self.do_answer_below()

    def running(self, copies: Sequence[str] | None, worker: int | None) -> list[tuple[int, int]]:
        """The shares of these copies; each must be running, and not hang."""
        running = {(job, rank) for job, rank, hung in self.device.running() if not hung}
        ranks = range(self.world.workers) if worker is None else [self.worker(worker)]
        if copies is None:
            return sorted(each for each in running if each[1] in ranks)
        found: list[tuple[int, int]] = []
        for text in copies:
            jobs = self.names.jobs(text)
            own = [(job, rank) for job in jobs for rank in ranks if (job, rank) in running]
            if not own:
                state = "hangs" if any(each[0] in jobs for each in self.device.running()) else "does not run"
                raise StageError(f"{text} {state} on the device" + ("" if worker is None else f" of worker {worker}"))
            found += own
        return found

    def worker(self, rank: int) -> int:
        """The worker of this number; raises `StageError` where there is none."""
        if rank >= self.world.workers:
            raise StageError(f"there is no worker {rank}: they are numbered from 0 to {self.world.workers - 1}")
        return rank

    def do_hang(self, copies: kinds.CopyNames | None = None, worker: kinds.Worker | None = None) -> None:
        """Copies never land by themselves; a wait for them ends them without a report."""
        for job, rank in self.running(copies, worker):
            self.device.hang(job, rank)

    def do_report(self, copy: kinds.CopyName, worker: kinds.Worker = 0, failed: bool = False) -> None:
        """A report comes although nothing lands now: a repeated, late or early one, or one of a copy that `nobody` made."""
        self.reports += [Landing(job, self.worker(worker), not failed) for job in self.names.jobs(copy)]

    def do_lose_report(self, copy: kinds.CopyName, worker: kinds.Worker = 0) -> None:
        """A report that was sent but not delivered yet gets lost."""
        jobs, rank = self.names.jobs(copy), self.worker(worker)
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
        self.pass_time(steps)
        self.tick()

    def do_prove_quiet(self, copies: kinds.CopyNames | None = None) -> None:
        """The device is synchronised with these copies, or with all that run."""
        self.prove_quiet(self.out() if copies is None else self.names.jobs(*copies))

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
            self.land_all()
            self.tick()
        raise UnmetError(
            f"still pending after {LIMIT} ticks: {', '.join(map(self.names.said_job, self.out())) or 'no copy is out'}"
        )

    def do_agree(self, ranks: kinds.Offers) -> None:
        """Ranks report what they have; the answer is what all of them use."""
        self.happened.answer = self.driver.agree(ranks)

    def do_check(self) -> None:
        """Nothing happens: a step only for expectations."""

    @verb(needs="finish abort preempt reset sleep wake prove_quiet request_state pending")
    def do_walk(self, actions: kinds.Many) -> None:
        """Random actions, drawn with the world's `seed`: requests arrive, grow, are preempted and end; copies land in any
        order, fail, hang and report twice; now and then the device's or all content is forgotten. At the end all requests
        end, hanging copies are proven quiet, and all others land.
        """
        going = Walk(self, random.Random(self.world.seed))
        for _ in range(actions):
            try:
                going.act()
            except CapacityError:
                continue
        going.end()

    # --- verbs: scenes ------------------------------------------------------------------------------------------------------

    @verb("scenes", needs="finish sleep wake progress pending")
    def do_prepare(self, prompt: kinds.Letters, stride: kinds.TokenCount | None = None) -> None:
        """The content of a prompt is stored in the host, and the device is empty afterwards. `stride`: tokens per step."""
        name = f"prepared~{len(self.prepared) + 1}"
        self.prepared.append(name)
        self.driver.arrive(name, prompt, None)
        first = {name: min(stride or len(prompt), len(prompt))}
        if self.world.below:  # which is asked ahead of everything
            self.run_step({}, first)
            self.do_answer_below()
        self.run_step({}, first)
        best = idle = 0
        while (end := self.end_of(name)) < len(prompt):
            best, idle = (end, 0) if end > best else (best, idle + 1)
            if idle == LIMIT:
                raise StageError(
                    f"there is no room for this prompt: {best} of its {len(prompt)} tokens after {LIMIT} steps more"
                )
            self.land_all()
            self.run_step({name: min(stride or len(prompt), len(prompt) - end)}, {})
        for _ in range(2):  # some store in the step itself, others once it has settled
            if not self.names.copies_of(name, stores=True):
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

    @verb("scenes", needs="answer_below")
    def do_vanish(self, contents: kinds.Contents) -> None:
        """The store below loses these contents without telling the engine."""
        for content in self.names.contents(contents):
            found = [entry for entry, there in self.entries().items() if there.partition("@")[0] == content]
            if not found:
                raise StageError(f"{content} is not in the store below")
            size = self.world.blocks_per_chunk
            for part in (entry * size + at for entry in found for at in range(size)):
                for worker in self.device.workers:
                    self.device.vanish(part, worker.rank)

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
        self.names.arrive(request)

    @verb("single blocks")
    def do_seal(self, blocks: kinds.BlockNames, contents: kinds.Contents, running: bool = False) -> None:
        """These blocks are computed, final, and found under these names. `running`: only the next step computes them; they
        are sealed before it has settled.
        """
        places, names = self.names.blocks(blocks), self.names.contents(contents)
        self.driver.seal(places, names)  # what the engine refuses is not written
        written: list[tuple[int, Content]] = list(zip(places, names, strict=True))
        for worker in self.device.present:
            worker.forward(_SEALING, Pass(writes=tuple(written)))
            del worker.passes[_SEALING]
        if running:
            self.still_written += written


@define(eq=False)
class Walk:
    """Random actions on a stage.

    Invariant: ``alive`` are the requests that were neither finished nor aborted.
    """

    stage: VerbStage
    chance: random.Random
    alive: list[str] = field(factory=list)
    hung: dict[int, None] = field(factory=dict)
    come: int = 0

    def act(self) -> None:
        """One random action; a step is the most frequent one."""
        roll = self.chance.random()
        if roll < 0.2 and len(self.alive) < _REQUESTS:
            self.arrive()
        elif roll < 0.48:
            self.end_copy(hang=roll >= 0.45)
        elif roll < 0.53:
            self.finish_or_abort()
        elif roll < 0.56:
            self.give_way()
        elif roll < 0.575:
            self.prove()
        elif roll < 0.585:
            self.stage.driver.reset(drain=False)
        elif roll < 0.61:
            self.stage.do_empty_device()
        else:
            self.stage.run_step(None, None)
            self.make_room()
        self.stage.names.look()
        self.stage.check()

    def make_room(self) -> None:
        """If there was no room for a request, preempt the running request that arrived last."""
        running = [name for name in self.alive if self.stage.driver.request_state(name) == "RUNNING"]
        if self.stage.happened.no_room and len(running) > 1:
            self.stage.driver.preempt(running[-1])
        self.stage.happened.no_room.clear()

    def arrive(self) -> None:
        """Add a request with a part of one of the prompts."""
        self.come += 1
        self.alive.append(f"r{self.come}")
        said = self.chance.choice(_PROMPTS)
        self.stage.do_arrive(self.alive[-1], said[: self.chance.randrange(1, len(said))])

    def end_copy(self, *, hang: bool) -> None:
        """A worker's share of a copy hangs, lands or fails; some are reported twice, some never."""
        shares = [(job, rank) for job, rank, hung in self.stage.device.running() if not hung]
        if not shares:
            return
        job, rank = self.chance.choice(shares)
        if hang:
            self.stage.device.hang(job, rank)
            self.hung[job] = None
            return
        landing = self.stage.device.land(job, rank, ok=self.chance.random() < 0.85)
        self.stage.reports += [landing] * self.chance.choice([1, 1, 1, 1, 2])
        self.chance.shuffle(self.stage.reports)

    def prove(self) -> None:
        """Prove every hanging copy quiet."""
        if self.hung:
            self.stage.prove_quiet(list(self.hung))
            self.hung.clear()

    def finish_or_abort(self) -> None:
        """Finish or abort a request."""
        if self.alive:
            name = self.alive.pop(self.chance.randrange(len(self.alive)))
            self.chance.choice([self.stage.driver.finish, self.stage.driver.abort])(name)

    def give_way(self) -> None:
        """Preempt a running or loading request."""
        able = [name for name in self.alive if self.stage.driver.request_state(name) in _RUNS]
        if able:
            self.stage.driver.preempt(self.chance.choice(able))

    def end(self) -> None:
        """End every request, prove hanging copies quiet, and land all others."""
        for name in self.alive:
            self.stage.driver.abort(name)
        self.alive.clear()
        self.stage.tick()
        self.prove()
        self.stage.do_drain()
