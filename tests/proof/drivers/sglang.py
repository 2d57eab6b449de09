"""SGLang as scenarios see it: its own scheduler, prefix tree and cache controller, driven step by step.

In an environment that has SGLang, ``blocklife scenario run sglang --driver tests.proof.drivers.sglang:SglangDriver`` runs the
scenarios for it. A page is a block, a page of the host a slot; mode *eager* is SGLang's write-through, *lazy* its write-back.
It drives the rig of `tests/sglang`: SGLang's scheduler without its constructor, its streams and its ranks. `LinkerDriver` has
our own linker in place of SGLang's host: it is not watched, but its ledger is checked.

Rules of this file:

* SGLang decides. A scenario controls only its inputs: requests, the chunk of a prompt that a step may compute, and when copies
  land. If SGLang then does something other than the scenario says, the run ends as *not expressible*, naming both.
* What the workers are told is read from SGLang's queues and tables when it acts on them. Stores are told when they are
  launched; a load is waited for by its own step, layer by layer.
* Three judges beside the runner's device: the watch, the bytes of the rig, and that all ranks do the same.
* SGLang is imported when a driver is made.

Theory: a step of a scenario in SGLang. A request is handed to SGLang when a step admits it. A step is one round of its loop; a
*tick* is a round of an engine that is paused, or has nothing to compute: it looks for copies that have landed. What lands is
seen by SGLang through events, so a copy that was reported has landed when the plan settles with which the report comes.
"""

from __future__ import annotations

import importlib.util
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from attrs import define

from blocklife.errors import CapacityError, MisuseError
from blocklife.knobs import Plain
from blocklife.offload import FullAttention, Geometry, Mode
from blocklife.testing import (
    CopyOrder,
    Device,
    DeviceFault,
    EngineSetup,
    EngineStep,
    Landing,
    LookedUp,
    Orders,
    Problem,
    RequestProgress,
    SettledPlan,
    Unsupported,
    forward_pass,
)
from blocklife.testing.scenarios import _driver as driver
from blocklife.testing.scenarios._driver import NOBODY
from tests.proof.drivers.theirs import RaisedInside, error_told, is_theirs
from tests.sglang.worlds import WorldSpec
from tests.texts import Chain

if TYPE_CHECKING:
    from tests.sglang.scenario_linker import LinkedRank
    from tests.sglang.scenario_ranks import Facts, Gate, Load, ScenarioRank, Store, Turn

MAX_RUNNING = 16
SAID_MAX = 512
"""Tokens that a request samples if no end is given."""
WHOLE = 8192
"""The chunk that takes any prompt whole."""
_LETTERS = 26
_NEVER_SAID = 0x100
"""The first code point of letters that no scenario uses."""

_ONLY = {
    "contract": "SGLang locks what a copy reads until it has landed",
    "pool": "SGLang's allocator hands out blocks",
    "blocks_per_chunk": "SGLang stores page by page",
    "jobs": "SGLang has no limit on copies in flight",
    "deadline": "SGLang has no deadline for copies",
    "lazy_blocks": "SGLang writes back what it evicts, and nothing ahead of that",
    "replacement": "the host is searched and evicted through the tree",
    "full_hit": "SGLang computes at least the last page anew",
    "partial_chunks": "SGLang stores page by page",
    "prompt_only": "SGLang stores what its tree has",
    "max_load_failures": "SGLang assumes that no load fails",
    "load_within_tokens": "each load is waited for by its own step, layer by layer",
    "events": "SGLang's copies wait by its own streams and events",
}
"""Settings that cannot be changed here, and why."""
_TAKEN = (
    "groups", "blocks", "slots", "workers", "scheduling",
    "mode", "last_step", "state_drafts", "step_tokens", "seed",
)  # fmt: skip
"""Settings that the driver takes."""
_HERE: dict[str, Plain] = {"contract": "hold"}
"""What they are here, if it is not the default."""
_SINGLE = "SGLang's scheduler alone decides about single blocks and copies"
_WHY = {
    "preempt": "SGLang retracts where memory runs out, and not on command",
    "lookup": "SGLang looks up only while it schedules",
    "draft": "the driver has no drafter",
    "lend": "one connector is driven",
    "give_back": "one connector is driven",
    "renew": "SGLang has no name for its weights; changing them takes a flush",
    "lose_worker": "SGLang ends when a rank does",
    "regain_worker": "SGLang ends when a rank does",
    "prove_quiet": "SGLang accepts no proof other than its events",
    "advance": "SGLang has no clock for copies",
    "forget": "SGLang evicts from the host in its own order",
    "forget_on_device": "SGLang evicts from the device in its own order",
    "windows": "there are no windows here",
    "agree": "SGLang's ranks agree on counts of copies only",
    "attach": "one connector is driven",
    "swap": "SGLang's copies leave their source as it is",
    "split": "SGLang splits nodes where requests part, and not on command",
    "publish": "SGLang's tree publishes what it inserts",
}


@define(eq=False)
class _Plan:
    """One step that is being executed."""

    number: int
    turns: Sequence[Turn] = ()
    loaded: tuple[str, ...] = ()


@define(eq=False)
class _ToldStore:
    """A store in the orders of the workers, with that of each rank."""

    job: int
    shares: list[Store]
    content: list[str]


class SglangDriver(driver.Driver):
    """SGLang, in the release that can be imported."""

    engine_name = "SGLang"
    host_skew = 0
    """Pages that the last of several ranks has less in its host."""
    on_failures = "SGLang assumes that none does"
    linker: str | None = None
    """Who keeps the host in place of SGLang itself, as `module:Class`."""

    def __init__(self) -> None:
        if importlib.util.find_spec("sglang") is None:
            raise MisuseError(
                "SGLang cannot be imported here (python -m tests.sglang.run --python VERSION runs a program with it)"
            )
        from tests.sglang import scenario_ranks

        self._made = scenario_ranks
        self._rank_of: type[ScenarioRank] = scenario_ranks.ScenarioRank
        self.version = scenario_ranks.RELEASE

    def start(self, world: EngineSetup) -> None:
        """Make a new engine, with a rank for each worker."""
        size = _page_of(world)
        self.world, self.size = world, size
        spec = WorldSpec(
            page_tokens=size,
            device_pages=world.blocks,
            host_pages=max(world.slots, world.blocks) + 1,
            max_num_seqs=MAX_RUNNING,
            prefill_tokens=WHOLE,
            chunk_tokens=WHOLE,
            policy="write_back" if world.policies.mode is Mode.LAZY else "write_through",
            overlap=world.scheduling == "async",
            world_size=world.workers,
            linker=self.linker,
        )
        self.witness = self._made.Witness()
        self.team = self._made.Team(world.workers)
        slots = [world.slots - (self.host_skew if at and at == world.workers - 1 else 0) for at in range(world.workers)]
        try:
            self.ranks: Sequence[ScenarioRank] = [
                self._rank_of(spec, self.team, at, self.witness, slots[at]) for at in range(world.workers)
            ]
        except Exception as error:
            raise MisuseError(f"SGLang {self.version} refuses this world: {error_told(error)}") from error
        for rank in self.ranks:
            self.on_rank(rank)
        self._texts: dict[str, str] = {}
        self._chains: dict[str, Chain] = {}
        self._requests: dict[str, list[Any]] = {}
        """The request of each rank, once it was handed to SGLang."""
        self._said: dict[str, int] = {}
        """Tokens that each request samples at most."""
        self._prompt_of: dict[str, int] = {}
        """Tokens of its prompt."""
        self._door: dict[str, None] = {}
        """Requests that were not handed to SGLang yet."""
        self._computed: dict[str, int] = {}
        self._scheduled: dict[str, int] = {}
        """Tokens of the latest step of each request that runs."""
        self._rows: dict[str, int] = {}
        self._away: set[str] = set()
        """Requests that were retracted, and have not come back."""
        self._aborted: set[str] = set()
        self._writer: dict[int, str] = {}
        """By block: the request that had it last."""
        self._held: dict[int, str] = {}
        """By block that is full: what was computed or loaded into it."""
        self._stored: dict[int, str] = {}
        """By place: what SGLang takes it to hold since the store has landed."""
        self._plans: deque[_Plan] = deque()
        self._num_plans = self._num_jobs = 0
        self._open: dict[int, _ToldStore] = {}
        self._reported: dict[int, set[int]] = {}
        """By store: the workers on which it has landed."""
        self._waited: set[int] = set()
        """Stores that SGLang has waited for."""
        self._num_wrong = 0

    def on_rank(self, rank: ScenarioRank) -> None:
        """Called with each rank before its first step: for tests that plant a fault in SGLang."""

    # --- SGLang's calls -----------------------------------------------------------------------------------------------------

    def _everywhere(self, act: Callable[[ScenarioRank], object]) -> list[Any]:
        """Call SGLang on every rank. An error ends the run, under the rule that was found broken before it, if any."""
        found: dict[int, Any] = {}

        def on(rank: ScenarioRank) -> Callable[[], None]:
            def run() -> None:
                with rank.device.active():
                    found[rank.number] = act(rank)

            return run

        try:
            self.team.run([on(rank) for rank in self.ranks])
        except self._made.PartedError as error:
            raise DeviceFault("I9", f"ranks do not meet: {error}") from error
        except (Unsupported, DeviceFault):
            raise
        except Exception as error:
            if not is_theirs(error):
                raise
            for problem in self.problems_found():
                raise DeviceFault(problem.rule, f"{problem.message}; then SGLang raised {error_told(error)}") from error
            raise RaisedInside(error_told(error)) from error
        self._judge()
        return [found[rank.number] for rank in self.ranks]

    def _judge(self) -> None:
        """End the run at the first finding of the watch, or of the bytes."""
        for problem in self.problems_found():
            raise DeviceFault(problem.rule, problem.message)

    def problems_found(self) -> Iterator[Problem]:
        """What the watch and the bytes have found since the last call."""
        for rank in self.ranks:
            yield from rank.problems()
        wrong, self._num_wrong = self.witness.corruptions[self._num_wrong :], len(self.witness.corruptions)
        rules = {"a copy to host": "I2", "a copy to device": "I7"}
        for each in wrong:
            yield Problem(rules.get(each.reader, "I6"), f"bytes: {each}")

    # --- verbs --------------------------------------------------------------------------------------------------------------

    def arrive(self, request: str, prompt: str, tokens: int | None = None, reply: str = "") -> None:
        """Add a request, which is handed to SGLang when a step admits it. Without a reply it samples unique letters."""
        number = len(self._texts)
        own = chr(ord("A") + number) if number < _LETTERS else chr(_NEVER_SAID + number)
        self._said[request] = len(reply) or (SAID_MAX if tokens is None else tokens - len(prompt))
        text = prompt + (reply or own * self._said[request])
        self._texts[request] = text
        self._chains[request] = Chain([ord(letter) for letter in text])
        for known in (self._requests, self._computed, self._scheduled, self._rows):
            known.pop(request, None)
        self._away.discard(request)
        self._aborted.discard(request)
        self._prompt_of[request] = len(prompt)
        self._door[request] = None

    def _enter(self, names: Sequence[str]) -> None:
        """Hand these requests to SGLang, if that was not done yet."""
        for name in names:
            if name not in self._door:
                continue
            del self._door[name]
            prompt = [ord(letter) for letter in self._texts[name][: self._prompt_of[name]]]

            def add(rank: ScenarioRank, name: str = name, prompt: Sequence[int] = tuple(prompt)) -> object:
                rank.engine.add(name, list(prompt), self._said[name])
                return rank.scheduler.waiting_queue[-1]

            self._requests[name] = self._everywhere(add)

    def finish(self, request: str) -> None:
        """End a running request as SGLang does at a stop token; one that waits goes as if it was aborted."""
        state = self.request_state(request)
        if state == "FINISHED":
            raise MisuseError(f"request {request}: it is over, or was never added (end one that exists)")
        if state != "RUNNING":
            self.abort(request)
            return
        if not self._requests[request][0].output_ids:
            raise Unsupported(f"not expressible: {request} ends within its prompt (SGLang aborts it, with the next step)")
        self._everywhere(lambda rank: rank.finish(self._requests[request][rank.number]))
        self._look()

    def abort(self, request: str) -> None:
        """The client is gone: what waits goes at once, what runs with its next result."""
        self._enter([request])
        self._aborted.add(request)
        self._everywhere(lambda rank: rank.engine.abort(request))

    def reset(self, *, drain: bool) -> None:
        """Flush the cache, which SGLang does only when it is idle."""
        if not all(self._everywhere(lambda rank: rank.flush())):
            if not drain:
                raise Unsupported(
                    "not expressible: reset while there are requests or copies (SGLang flushes only when it is idle)"
                )
            raise CapacityError("SGLang does not flush its cache while it has requests or copies")
        self._see()

    def sleep(self) -> None:
        """Evict all that no request holds, as memory pressure does: SGLang's own sleep forgets the host, too."""
        if any(self.request_state(name) != "FINISHED" for name in self._texts):
            raise Unsupported("not expressible: sleep while there are requests (SGLang waits for them first)")
        self._everywhere(lambda rank: rank.evict(self.world.blocks))

    def wake(self) -> None:
        """Nothing: the memory was emptied, and not given up."""

    # --- the host -----------------------------------------------------------------------------------------------------------

    def fill_host(self) -> None:
        """Hold every slot for other content."""
        self._everywhere(lambda rank: rank.fill())

    def free_host(self) -> None:
        """Free these slots."""
        self._everywhere(lambda rank: rank.free_filled())

    def crowd_host(self, slots: int) -> bool:
        """Make room for other content, as a store does."""
        return all(self._everywhere(lambda rank: rank.crowd(slots)))

    # --- the step -----------------------------------------------------------------------------------------------------------

    def step(
        self, *, compute: Mapping[str, int] | None, let_in: Mapping[str, int] | None, preempt: Sequence[str] = ()
    ) -> EngineStep:
        """One round of SGLang's loop, or a look for what has landed."""
        if preempt:
            self._not("preempt")
        self._enter(list(self._door if let_in is None else let_in))
        self._num_plans += 1
        plan = _Plan(self._num_plans)
        self.witness.step = self._num_plans
        is_idle = all(rank.is_idle for rank in self.ranks)
        if compute == {} and let_in == {} and not is_idle:
            self._everywhere(lambda rank: rank.look())
        else:
            if not is_idle and any(len(rank.queue) > self.ranks[0].spec.overlap for rank in self.ranks):
                raise Unsupported("not expressible: a further step without the result of the one before (SGLang waits for it)")
            before = self._going()
            chunk = self._chunk(compute, let_in)
            with self._made.answers_not_counted():
                turns = self._everywhere(lambda rank: rank.plan(plan.number, self._chains, chunk))
            self._same([[(turn.name, turn.start, turn.stop) for turn in each] for each in turns], "compute")
            plan.turns = turns[0]
            self._note(plan.turns)
            self._compare(before, compute, let_in, plan.turns)
        self._plans.append(plan)
        return self._told(plan)

    def _chunk(self, compute: Mapping[str, int] | None, let_in: Mapping[str, int] | None) -> int:
        """Tokens of prompts that the step may compute."""
        usual = self.world.step_tokens or WHOLE
        asked = {name: count for name, count in {**(compute or {}), **(let_in or {})}.items() if count}
        left = {name: self._prompt_of[name] - self._scheduled.get(name, 0) for name in asked}
        parts = [count for name, count in asked.items() if left[name] > 0]
        return sum(parts) if any(asked[name] < left[name] for name in asked) else usual

    def _going(self) -> set[str]:
        """Requests that were computing before this step."""
        return {name for name in self._scheduled if self.request_state(name) == "RUNNING"}

    def _note(self, turns: Sequence[Turn]) -> None:
        """What a plan has changed about requests."""
        waiting = {each.rid for each in self.ranks[0].scheduler.waiting_queue}
        for name in [name for name in self._scheduled if name in waiting]:
            self._away.add(name)
            self._drop(name)
        rows = self.ranks[0].rows if turns else {}
        for turn in turns:
            self._away.discard(turn.name)
            self._scheduled[turn.name] = turn.stop
            self._computed.setdefault(turn.name, turn.start)
            self._rows[turn.name] = rows[turn.name]

    def _drop(self, name: str) -> None:
        for known in (self._scheduled, self._computed, self._rows):
            known.pop(name, None)

    def _compare(
        self,
        before: set[str],
        compute: Mapping[str, int] | None,
        let_in: Mapping[str, int] | None,
        turns: Sequence[Turn],
    ) -> None:
        """Whether SGLang has scheduled what the scenario says."""
        got = {turn.name: turn.stop - turn.start for turn in turns}
        for name in sorted(before - self._away):
            wanted = got.get(name, 0) if compute is None or self.request_state(name) == "FINISHED" else compute.get(name, 0)
            if got.get(name, 0) != wanted:
                raise Unsupported(
                    f"not expressible: a step in which {name} computes {wanted} tokens"
                    f" (SGLang schedules {got.get(name, 0)} for it)"
                )
        waiting = [each.rid for each in self.ranks[0].scheduler.waiting_queue]
        if waiting and not (got or before or self.pending()):
            raise Unsupported(
                f"not expressible: {waiting[0]} in a memory of {self.world.blocks} blocks (SGLang admits a request only where"
                " there is a block more than it needs)"
            )
        for name in sorted(got.keys() - before):
            if let_in is None:
                continue
            if name not in let_in:
                raise Unsupported(f"not expressible: a step in which {name} is not admitted (SGLang admits it)")
            if let_in[name] and got[name] != let_in[name]:
                raise Unsupported(
                    f"not expressible: a step in which {name} enters with {let_in[name]} tokens (SGLang schedules {got[name]})"
                )

    def _told(self, plan: _Plan) -> EngineStep:
        """What the workers of all ranks were told since the last step."""
        facts = [rank.take_facts() for rank in self.ranks]
        self._same([each.handed_out for each in facts], "hand out")
        self._same([self._loads(each.loads) for each in facts], "load")
        owners: dict[int, str] = {}
        loads = tuple(self._load(load, plan, owners) for load in facts[0].loads)
        ahead = self._ahead(plan, facts, owners)
        plan.loaded = tuple(sorted({owners[each.job] for each in loads} - {""}))
        passes = [(self.table(turn.name, 0), self._texts[turn.name], turn.start, turn.stop) for turn in plan.turns]
        self._hold(plan, loads, passes)
        self._see()
        names = {turn.name for turn in plan.turns}
        waiting = [each.rid for each in self.ranks[0].scheduler.waiting_queue if each.rid not in names]
        waits = tuple(each.job for each in loads)
        return EngineStep(
            orders=Orders(plan.number, waits, loads, (), forward_pass(passes, self.size)),
            ahead=tuple(ahead),
            handed_out=tuple(facts[0].handed_out),
            owners=owners,
            hits=self._hits(plan, loads, owners),
            no_room=tuple(waiting),
        )

    def _load(self, load: Load, plan: _Plan, owners: dict[int, str]) -> CopyOrder:
        self._num_jobs += 1
        owners[self._num_jobs] = self._reader(load.pages, plan.turns)
        return CopyOrder(self._num_jobs, False, tuple(load.places), tuple(load.pages), (len(load.pages),))

    def _hold(self, plan: _Plan, loads: Sequence[CopyOrder], passes: Sequence[tuple[Sequence[int], str, int, int]]) -> None:
        """Note what a step brings into the blocks that are full with it, and which request has them."""
        for load in loads:
            for place, page in zip(load.source, load.target, strict=True):
                self._held[page] = self._content_of(place)
        for blocks, text, start, stop in passes:
            for at in range(start // self.size, stop // self.size):
                self._held[blocks[at]] = text[: (at + 1) * self.size]
        for turn in plan.turns:
            self._writer.update(dict.fromkeys(self.table(turn.name, 0), turn.name))

    def _content_of(self, place: int) -> str:
        """What a place of the host holds that is loaded from."""
        return self._stored.get(place, "")

    def _ahead(self, plan: _Plan, facts: Sequence[Facts], owners: dict[int, str]) -> list[Orders]:
        """Stores and waits for them, in SGLang's order, as orders ahead of those of the step."""
        stores = [[each for each in fact.events if isinstance(each, self._made.Store)] for fact in facts]
        shares = iter(self._shares(stores))
        ahead: list[Orders] = []
        told: list[CopyOrder] = []
        for event in facts[0].events:
            if isinstance(event, self._made.Store):
                told.append(self._store(next(shares), owners))
                continue
            ahead.append(Orders(plan.number, (), (), tuple(told)))
            told = []
            jobs = [job for job, each in self._open.items() if each.shares[0].gate is event]
            self._waited.update(jobs)
            ahead.append(Orders(plan.number, tuple(jobs), (), ()))
        if told:
            ahead.append(Orders(plan.number, (), (), tuple(told)))
        return ahead

    def _store(self, shares: list[Store], owners: dict[int, str]) -> CopyOrder:
        self._num_jobs += 1
        first = shares[0]
        content = [self._held.get(page, "") for page in first.pages]
        self._open[self._num_jobs] = _ToldStore(self._num_jobs, shares, content)
        self._reported[self._num_jobs] = set()
        owners[self._num_jobs] = self._writer.get(first.pages[0], "")
        return CopyOrder(self._num_jobs, True, tuple(first.pages), tuple(first.places), (len(first.pages),))

    def _reader(self, pages: Sequence[int], turns: Sequence[Turn]) -> str:
        for turn in turns:
            if set(pages) & set(self.table(turn.name, 0)):
                return turn.name
        return ""

    def _hits(self, plan: _Plan, loads: Sequence[CopyOrder], owners: Mapping[int, str]) -> dict[str, LookedUp]:
        """The hits of requests that this step has admitted."""
        found = {}
        for turn in plan.turns:
            if (
                self._computed[turn.name] == turn.start
                and turn.start % self.size == 0
                and turn.stop == self._scheduled[turn.name]
            ):
                loaded = sum(len(each.target) for each in loads if owners[each.job] == turn.name) * self.size
                found[turn.name] = LookedUp(turn.start, turn.start - loaded)
        return found

    def _shares(self, stores: Sequence[Sequence[Store]]) -> list[list[Store]]:
        """The stores of a step, each with that of every rank."""
        self._same([[(each.pages, each.places) for each in mine] for mine in stores], "store")
        return [list(each) for each in zip(*stores, strict=True)]

    @staticmethod
    def _loads(loads: Sequence[Load]) -> object:
        """What of the loads of a step has to be the same on all ranks."""
        return [(load.pages, load.places) for load in loads]

    def _same(self, found: Sequence[object], what: str) -> None:
        """All ranks must do the same, for their workers do."""
        for at, each in enumerate(found[1:], start=1):
            if each != found[0]:
                raise DeviceFault("I9", f"ranks {what} different things: rank 0 {found[0]}, rank {at} {each}")

    def settle(
        self, reports: Sequence[Landing], *, launched: Sequence[tuple[int, int]] = (), sampled: Mapping[str, int] | None = None
    ) -> SettledPlan:
        """The events of what has landed are reached, and SGLang gets the result of the plan."""
        plan = self._plans.popleft()
        landed = [each for each in reports if self._land(each)]
        turns = {turn.name: turn for turn in plan.turns}
        for name, count in (sampled or {}).items():
            if count != (name in turns and turns[name].stop >= self._prompt_of[name]):
                raise Unsupported(
                    f"not expressible: {name} gets {count} tokens at once (SGLang without speculation samples one)"
                )
        self._everywhere(lambda rank: rank.process(plan.number))
        for turn in plan.turns:
            if turn.name in self._computed:
                self._computed[turn.name] = max(self._computed[turn.name], turn.stop)
        if landed:
            self._look()
        self._see()
        ended = [name for name in sorted(self._aborted) if self.request_state(name) == "FINISHED"]
        self._aborted.difference_update(ended)
        return SettledPlan(loaded=plan.loaded, ended=tuple(ended))

    def _look(self) -> None:
        self._everywhere(lambda rank: rank.look())

    def _land(self, report: Landing) -> bool:
        """Open the gate of a store that has landed on a worker, once all that was launched with it has."""
        if report.job == NOBODY:
            raise Unsupported("not expressible: a report of an unknown copy (SGLang's copies have events)")
        if not report.ok:
            raise Unsupported(f"not expressible: a copy that fails ({self.on_failures})")
        known = self._reported.get(report.job)
        if known is None:
            return False  # a load: its step has waited for it
        if report.job in self._waited:
            return False  # SGLang itself has seen it land
        if report.worker in known:
            raise Unsupported("not expressible: a second report of a copy (SGLang's copies have events)")
        known.add(report.worker)
        told = self._open.get(report.job)
        if told is None:
            return False
        gate = told.shares[report.worker].gate
        rest = [
            each.job
            for each in self._open.values()
            if each.shares[report.worker].gate is gate and report.worker not in self._reported[each.job]
        ]
        if rest:
            return False
        self._open_gate(self.ranks[report.worker], gate)
        return True

    @staticmethod
    def _open_gate(rank: ScenarioRank, gate: Gate) -> None:
        with rank.device.active():
            rank.device.open(gate)

    def _see(self) -> None:
        """Note what SGLang has seen land, and what it has forgotten."""
        first = self.ranks[0]
        over = first.seen()
        for rank in self.ranks[1:]:
            rank.seen()
        for job, told in list(self._open.items()):
            if told.shares[0] in over:
                del self._open[job]
                self._stored.update(zip(told.shares[0].places, told.content, strict=True))
        self._stored = {place: text for place, text in self._stored.items() if place in first.in_host}

    # --- queries ------------------------------------------------------------------------------------------------------------

    def table(self, request: str, group: int) -> list[int]:
        """The pages in SGLang's table of requests, as far as the latest step reaches."""
        if request not in self._rows or self.request_state(request) == "FINISHED":
            return []
        return self.ranks[0].table(self._rows[request], self._scheduled[request])

    def block_state(self, block: int) -> str:
        """The state in the watch's mirror."""
        return self.ranks[0].block_state(block)

    def slot_state(self, slot: int) -> str:
        """Whether SGLang takes a place of its host to hold content, or has launched a store to it."""
        if slot in self._stored:
            return "READY"
        return "WRITING" if slot in self.ranks[0].in_host else "EMPTY"

    def request_state(self, request: str) -> str:
        """Where SGLang has the request."""
        if request in self._door:
            return "WAITING"
        if request not in self._requests or self._requests[request][0].finished():
            return "FINISHED"
        if any(each.rid == request for each in self.ranks[0].scheduler.waiting_queue):
            return "PREEMPTED" if request in self._away else "WAITING"
        return "RUNNING" if request in self._scheduled else "FINISHED"

    def slot_of(self, content: str) -> int | None:
        """The place that has this content, or will."""
        text = content.partition(":")[2]
        found = {held: place for place, held in self._stored.items()}
        for told in self._open.values():
            found.update(zip(told.content, told.shares[0].places, strict=True))
        return found.get(text)

    def claims(self) -> tuple[Mapping[int, str], Mapping[int, str]]:
        """What the tree has on the device, and what it has in the host since its store has landed."""
        first = self.ranks[0]
        blocks = {page: f"0:{self._held[page]}" for page in first.in_tree if self._held.get(page)}
        return blocks, {place: f"0:{text}" for place, text in self._stored.items() if text}

    def tokens(self, request: str) -> str:
        """All tokens that the request will have."""
        return self._texts[request]

    def progress(self, request: str) -> RequestProgress:
        """The progress, not counting tokens of steps whose result SGLang has not got."""
        found = self._requests.get(request)
        known = self._prompt_of[request] + (len(found[0].output_ids) if found else 0)
        computed = self._computed.get(request, 0)
        out = [turn.stop for plan in self._plans for turn in plan.turns if turn.name == request]
        return RequestProgress(known, computed, max(out, default=computed) - computed)

    def pending(self) -> bool:
        """Whether copies are out that SGLang has not seen land."""
        return bool(self._open) or any(rank.facts.events or rank.engine.busy for rank in self.ranks)

    def count(self, what: str) -> int:
        """A count that SGLang keeps, or the driver."""
        counts: dict[str, Callable[[], int]] = {
            "free": lambda: (self.ranks[0].free + self.ranks[0].tree.evictable_size()) // self.size,
            "ready": lambda: len(self._stored),
            "jobs_made": lambda: self._num_jobs,
            "jobs_out": lambda: len(self._open),
            "requests": lambda: sum(self.request_state(name) != "FINISHED" for name in self._texts),
        }
        if what == "free":
            self._all_gone("the count 'free'")
        if what not in counts:
            raise Unsupported(f"not expressible: the count {what!r} (SGLang does not count it)")
        return counts[what]()

    def left_behind(self) -> list[str]:
        """Locked memory, requests, and copies that SGLang waits for."""
        self._all_gone("what is left")
        first = self.ranks[0]
        locked = first.tree.protected_size()
        locked = locked[0] if isinstance(locked, tuple) else locked
        held = [f"{locked} tokens of device memory, which are locked"] if locked else []
        names = [f"request {name}" for name in self._texts if self.request_state(name) != "FINISHED"]
        return [*held, *names, *(f"copy {job}" for job in self._open)]

    def _all_gone(self, what: str) -> None:
        for name in sorted(self._aborted):
            if self.request_state(name) == "RUNNING":
                raise Unsupported(
                    f"not expressible: {what} right after {name} is aborted"
                    " (SGLang ends it with the next result, and there is none)"
                )

    def problems(self, device: Device) -> Iterator[Problem]:
        """New findings of the watch and of the bytes."""
        return self.problems_found()

    def _not(self, method: str) -> NoReturn:
        raise Unsupported(f"not expressible: {method} ({_WHY.get(method, _SINGLE)})")


def _page_of(world: EngineSetup) -> int:
    """The tokens of a page. Refuses settings that SGLang does not have."""
    usual = EngineSetup().words() | _HERE
    for name, value in world.words().items():
        if name not in _TAKEN and value != usual[name]:
            raise Unsupported(f"not expressible: {name} = {value} ({_ONLY.get(name, 'SGLang has no such setting')})")
    geometry = Geometry.parse(world.groups)
    (first, *others) = geometry.groups
    if others or not isinstance(first, FullAttention) or first.drafter:
        raise Unsupported(f"not expressible: groups = {world.groups} (the driver runs models with full attention only)")
    if geometry.tail_tokens is not None:
        raise Unsupported(f"not expressible: groups = {world.groups} (SGLang's tree has whole pages)")
    return geometry.block_tokens[0]


class SkewedSglangDriver(SglangDriver):
    """The same, and the last of several ranks has less host memory: a rank that refuses what others store."""

    host_skew = 2


class LinkerDriver(SglangDriver):
    """SGLang with our own linker, which keeps the host; its ledger is asked, and checked."""

    engine_name = "SGLang with blocklife"
    on_failures = "the driver lets none fail"
    linker = "tests.sglang.scenario_linker:ScenarioLinker"
    ranks: Sequence[LinkedRank]

    def __init__(self) -> None:
        super().__init__()
        from tests.sglang import scenario_linker

        self._rank_of = scenario_linker.LinkedRank

    def start(self, world: EngineSetup) -> None:
        """Make a new engine. What the linker is offered it stores at once."""
        if world.policies.mode is Mode.LAZY:
            raise Unsupported(
                "not expressible: mode = lazy (SGLang offers a linker what it inserts, and nothing at an eviction)"
            )
        self._written = [dict[int, str]() for _ in range(world.workers)]
        """By rank and place: what the latest store into it brings."""
        super().start(world)

    def fill_host(self) -> None:
        """Nothing of a request is there any more."""
        super().fill_host()
        for written in self._written:
            written.clear()

    def _shares(self, stores: Sequence[Sequence[Store]]) -> list[list[Store]]:
        """Each rank has places of its own, of which the device has those of the first; one without room stores nothing."""
        found = []
        for first in stores[0]:
            mine = [next((each for each in others if each.pages == first.pages), None) for others in stores]
            found.append([each or self._made.Store(first.pages, [], self._made.Gate()) for each in mine])
        if any(len(mine) > sum(bool(shares[at].places) for shares in found) for at, mine in enumerate(stores)):
            raise Unsupported(
                "not expressible: a store of one rank that the first has not (the device has the orders of the first)"
            )
        return found

    @staticmethod
    def _loads(loads: Sequence[Load]) -> object:
        """The places are each rank's own."""
        return [load.pages for load in loads]

    def _store(self, shares: list[Store], owners: dict[int, str]) -> CopyOrder:
        order = super()._store(shares, owners)
        for written, share in zip(self._written, shares, strict=True):
            written.update(zip(share.places, self._open[order.job].content, strict=False))
        return order

    def _content_of(self, place: int) -> str:
        """What the latest store into it brings: nothing is loaded before that has landed."""
        return self._written[0].get(place, "")

    def _see(self) -> None:
        """A store is over when it is on every rank, and what can be found is what all of them have."""
        for rank in self.ranks:
            rank.seen()
        for job, told in list(self._open.items()):
            if not any(share in rank.stores for rank, share in zip(self.ranks, told.shares, strict=True)):
                del self._open[job]
        first, *others = [
            {place: text for place, text in written.items() if place in rank.in_host}
            for rank, written in zip(self.ranks, self._written, strict=True)
        ]
        self._stored = {place: text for place, text in first.items() if all(text in each.values() for each in others)}

    def slot_state(self, slot: int) -> str:
        """The state in the ledger of the first rank."""
        return self.ranks[0].slot_state(slot)


class SkewedLinkerDriver(LinkerDriver):
    """The same with unequal hosts."""

    host_skew = 2
