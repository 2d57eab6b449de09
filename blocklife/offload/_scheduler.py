"""The offload scheduler: decides, once per engine step, what is looked up, loaded, stored and flushed.

Rules of this file:

* The scheduler chooses; the ledger decides what is legal. Every change is a verb of the ledger.
* A step costs what changed in it. Requests in which nothing changed are rows of a column; idle requests cost nothing.
* A call in the wrong order is refused before anything has changed; the error says which call was expected.
* Asked first, written second, told third: key functions are asked before the first write of a call, hooks and watchers are told
  after its last. What replacement policies and indexes raise is kept, and counts as "no" (`Ledger.hook_errors`).

Theory. One step is: `grow` (running requests), `lookup` and `admit` (waiting ones), `preempt` if there is no room, `hand_off`
(states that the engine keeps), `build_plan`; the workers run the plan; `settle` applies the results, `finish` and `abort` end
requests. With ``plans_ahead`` the plan of the next step is made before this one settles. `specs/engine-contract.md` has the
details.

Blocks are sealed and freed according to settled tokens; stores look at known tokens. Everything to be stored goes through one
queue (`_stores`), which refers to lives: content that became stale in the meantime is dropped when its turn comes.

What is not here: retention intervals for windows. What is fetched from and put into a store below host memory is
decided in `_below.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from attrs import evolve

from blocklife.errors import CapacityError, MisuseError
from blocklife.groups import Geometry
from blocklife.ledger import Ledger, Plan
from blocklife.ledger import _edge as edge
from blocklife.ledger._journal import anew, call, verb
from blocklife.ledger._refusals import counted
from blocklife.ledger._snapshot import Names
from blocklife.ledger.records import Completion, Launched, Placement, Worker
from blocklife.offload import _edge as ours
from blocklife.offload._below import BelowIndex, BelowPolicies, check_index
from blocklife.offload._host import HostTier
from blocklife.offload._requests import OffloadRequests
from blocklife.offload._snapshot import SavedScheduler, names_of, put_back, take
from blocklife.offload._state import SchedulerState, Tracked
from blocklife.offload._steps import SchedulerSteps
from blocklife.offload.records import Hit, Keys, OffloadStatistics, Placed, Settled, TailKeys
from blocklife.policies import FullHit, Policies
from blocklife.states import Request

_NOBODY: Mapping[str, int] = {}


class OffloadScheduler(edge.NotCopied):
    """Loads prefix hits, stores chunks as they fill or before their blocks are reused, and flushes copies a step must wait for.

    *geometry* describes the KV-cache groups of the model; the ledger must have the same number of groups. *below* is what a
    store below host memory has (`stores.Presence`); its copies are in the plans, as `Plan.promotes` and `Plan.demotes`.
    Errors: `MisuseError` for a mistake of the engine, `CapacityError` for what can be tried again later; in both cases nothing
    has changed.
    """

    def __init__(
        self,
        ledger: Ledger,
        tier: HostTier,
        geometry: Geometry,
        policies: Policies | None = None,
        *,
        below: BelowIndex | None = None,
        below_policies: BelowPolicies | None = None,
    ) -> None:
        if below_policies is not None:
            edge.member(below_policies, BelowPolicies, "below_policies")
            if below is None:
                raise MisuseError("below_policies: there is no tier below (give below, too)")
        if below is not None:
            check_index(below)
        self._state = state = SchedulerState(ledger, tier, geometry, policies, below, below_policies)
        self._steps = SchedulerSteps(state)
        self._asking, self._admissions = self._steps.asking, self._steps.admissions
        self._offers, self._endings = self._steps.offers, self._steps.endings
        state.rows.name_gone(lambda row: self._state.changed_beside(state.names[row]))
        self._calls = ledger._calls
        self._progress, self._search, self._stays = state.progress, state.search, state.stays
        self.ledger = state.ledger
        self.tier = state.tier
        self.geometry = state.geometry
        self.policies = state.policies
        self.requests = OffloadRequests(state)
        self._stores = state.stores

    # --- requests -----------------------------------------------------------------------------------------------------------

    @verb
    def add_request(self, name: str, keys: Keys, *, prompt_tokens: int, tails: TailKeys | None = None) -> None:
        """Add a request. State: WAITING. With *tails* its prefix may end inside a block, where the geometry has tails."""
        edge.text(name, "name")
        edge.function(keys, "keys")
        if tails is not None:
            edge.function(tails, "tails")
        if edge.whole(prompt_tokens, "prompt_tokens") < 1:
            raise MisuseError(f"request {name}: a prompt has at least 1 token, not {prompt_tokens}")
        if name in self._state.requests:
            self._state.check_held(name)
        self.ledger.add_request(name)
        row = self.ledger.requests.row(name)
        if row in self._state.names:
            self.ledger.finish(name)
            raise self._state.changed_beside(self._state.names[row])
        self._state.track(name, Tracked(row, keys, tails=tails))
        self._stays.come(row)
        self._progress.enter(row, prompt_tokens)

    @verb
    def cap(self, name: str, stored: int | None, loaded: int | None) -> None:
        """Limit how many tokens of a request are stored, and loaded; None: as the policies say."""
        row = self._state.tracked(name).row
        for tokens, what in ((stored, "stored"), (loaded, "loaded")):
            if tokens is not None and edge.whole(tokens, what) < 0:
                raise MisuseError(f"request {name}: {what} must be at least 0, not {tokens}")
        self._progress.cap(row, -1 if stored is None else stored, -1 if loaded is None else loaded)

    @property
    def generation(self) -> str:
        """Identifies the weights, layout and tenant that the content was computed with; chosen by the engine."""
        return self._state.generation

    @property
    def plans_out(self) -> tuple[int, ...]:
        """The plans that have not settled, oldest first."""
        return tuple(self._state.plans)

    @property
    def asleep(self) -> bool:
        """Whether the scheduler sleeps: lookup, admission and growth are refused."""
        return self._state.asleep

    @call
    def lookup(self, name: str, known_tokens: int, device_tokens: int | None = None) -> Hit:
        """The longest prefix of the request's *known_tokens* that all groups have, on the device and in the host tier.

        *device_tokens* is the prefix-cache hit on the device found by the engine's own allocator; None if the ledger owns the
        pool. A hit that waits for content on its way is deferred, for `Policies.pending_wait` at most. The slots of the host
        part are pinned until a load takes them or the plan of this step is built. Nothing can check *known_tokens*: name the
        prompt and every token sampled so far, because the keys of all these tokens may be asked for.
        Refuses: a request that runs or loads; more plans out than allowed; a scheduler that sleeps.
        """
        tracked = self._state.tracked(name)
        if type(known_tokens) is not int or known_tokens > edge.MOST:
            edge.whole(known_tokens, "known_tokens")
        if device_tokens is not None:
            edge.whole(device_tokens, "device_tokens")
        self._state.check_waiting(name, "LOOKUP")
        self._check_tokens(name, known_tokens, device_tokens)
        row, last, waits = tracked.row, tracked.hit, self._stays.waits
        waits_below = self._admissions.may_wait_below(row)
        news = self._state.below.news if waits_below and self._state.below is not None and not self.ledger.own_pool else None
        asked = (self._state.given_up + self.ledger.jobs.verdicts, known_tokens, device_tokens, news)
        deferred = last is not None and self._stays.is_deferred(row)
        if last is not None and deferred and tracked.asked == asked and self._admissions.waits_on(tracked):
            tracked.hit = evolve(last, step=self._progress.making)  # nothing of it has come since: the answer is the same
            return tracked.hit
        names = self._asking.ask_names(tracked, known_tokens)
        if self._stays.is_loading(row):  # its load has failed since the last plan settled
            self._calls.writes()
            self._endings.load_failed(name, tracked)
        search = partial(
            self._search.run, name, names, known_tokens, device_tokens, self._progress.making,
            host=not self._state.lost and tracked.failures < self.policies.max_load_failures,
            most=self._progress.most_loaded[row], pending=not waits.is_spent(row),
            tails=None if tracked.tails is None else partial(self._asking.tail_answer, tracked),
        )  # fmt: skip
        hit = search(below=waits_below)
        self._calls.writes()
        if name in self._state.pinned:
            self._state.unpin(name)
            self._state.within.pop(name, None)
        self._progress.known[row] = known_tokens
        if not waits_below:
            self._admissions.give_up_below(row)
        elif self._search.on_below and not self._admissions.fetch_below(tracked):
            hit = search()
        if waits_below and not self._search.on_below:
            self._stays.waits_below.answered(row)  # whatever it waits for now is not the tier below
        if self._stays.is_found(row):
            waits.answered(row)
        if hit.deferred and not self._search.on_below and not self._admissions.may_wait(row):
            hit = search(pending=False)
        self._stays.looked_up(row, hit.deferred)
        tracked.hit, tracked.awaits = hit, self._search.awaited
        waits_for_news = self._search.in_doubt and news is not None  # an answer, or the end of a copy, ends the doubt
        tracked.asked = None if not waits_for_news and (self._search.in_doubt or self._search.on_below) else asked
        if hit.deferred:
            self._state.counts["deferred"] += 1
            return hit
        if hit.tokens > hit.device_tokens:
            if self.policies.load_within_tokens:
                tracked.hit = hit = self._admissions.within_budget(name, hit, known_tokens)
            slots = [slot for own in hit.slots for slot in own]
            self.ledger.pin(f"lookup {name}", slots)
            self._state.pinned[name] = slots
        if hit.tokens:
            if hit.tokens % self.geometry.block_alignment and hit.host_tokens:
                self.tier.touch([own[-1] for own in hit.slots])  # its tail
            self._offers.touch(tracked, hit.tokens)
        return hit

    def _check_tokens(self, name: str, known_tokens: int, device_tokens: int | None) -> None:
        """Refuse what a lookup cannot be made with."""
        if (device_tokens is None) is not self.ledger.own_pool:
            expected = "the ledger looks the device up" if self.ledger.own_pool else "give the hit of your allocator"
            raise MisuseError(
                f"request {name}: device_tokens={device_tokens} with own_pool={self.ledger.own_pool} ({expected})"
            )
        if known_tokens < 1:
            raise MisuseError(f"request {name}: known_tokens must be at least 1, not {known_tokens}")
        most = known_tokens - (self.policies.full_hit is FullHit.DROP_LAST_BLOCK)
        if device_tokens is not None and (device_tokens % self.geometry.block_alignment or not 0 <= device_tokens <= most):
            raise MisuseError(
                f"request {name}: a hit of {device_tokens} tokens on the device must be a multiple of "
                f"{self.geometry.block_alignment} and at most {most}"
            )

    def fetched(self, name: str, slots: Sequence[int]) -> set[int]:
        """Those of *slots* whose content a lookup of this request has fetched from the store below.

        Content that was fetched for another request, or stored from the device since, is not among them.
        """
        below, promotions = self._state.below, self._state.tracked(name).fetched
        chosen, size = list(edge.numbers(slots, "slots")), len(self.ledger.slots)
        if wrong := [each for each in chosen if not 0 <= each < size]:
            raise MisuseError(f"slots {wrong[:4]}: slots are 0 to {size - 1}")
        return below.filled_by(promotions, chosen) if below is not None and promotions else set()

    @call
    def admit(self, name: str, hit: Hit, tokens: int) -> bool:
        """Admit a request with the result of its `lookup` in this step.

        With a host-tier hit, the load is planned, the request is LOADING, and the call returns False. Otherwise the request
        runs *tokens* tokens from ``hit.compute_from`` on in this step, is RUNNING, and the call returns True. If the ledger
        owns the pool, blocks are taken and allocated here; otherwise `place` must have reported them.
        With ``hit.within`` it does both: the load is planned, the plan of this step waits for it, and the request runs in this
        step, LOADING until the plan settles; the call returns True. An engine that owns the pool may compute what is there once
        more, for memory that is not offloaded: then it may run no new token in this step.
        Refuses: `CapacityError` if there is no room or a block of the device hit was handed out meanwhile; the request then
        waits and holds nothing, and blocks placed for it are released.
        """
        tracked = self._state.tracked(name)
        if type(hit) is not Hit:
            edge.member(hit, Hit, "hit")
        if type(tokens) is not int or tokens > edge.MOST:
            edge.whole(tokens, "tokens")
        self._state.check_waiting(name, "ADMIT")
        if hit is not tracked.hit or hit.step != self._progress.making or self._stays.is_loading(tracked.row):
            raise MisuseError(
                f"request {name}: its hit is not of this step, or not its own (look it up, then admit it in the same step)"
            )
        if hit.deferred:
            raise MisuseError(f"request {name}: its lookup is deferred (look it up again when a copy has landed)")
        loads = hit.tokens > hit.device_tokens
        runs = hit.within or not loads
        if runs and tokens < (least := int(self.ledger.own_pool)):
            raise MisuseError(f"request {name}: cannot run {tokens} tokens (at least {least})")
        end = hit.compute_from + tokens if runs else hit.tokens
        known = self._progress.known_of(tracked.row)
        if self._state.has_states and end > known + self.policies.state_drafts:
            self._steps.refuse_drafts(name, known, known + self.policies.state_drafts)
        starts = self._asking.load_starts(hit)
        spans, keys = self._asking.ask_load(tracked, hit, starts) if loads else ([], [])
        self._calls.writes()
        try:
            if loads:  # before blocks are allocated: a block that is handed out loses its content
                self.ledger.jobs.check_room()
            if self.ledger.own_pool:
                self._admissions.fill_tables(name, hit, starts, end)
            else:
                # the engine may already have taken placed blocks back
                self._admissions.note_placed(name, tracked.row)
                self._admissions.check_placed([tracked.row], [end])
            if loads:
                self._admissions.load_hit(name, hit, spans, keys)
        except (CapacityError, MisuseError) as problem:
            if self.ledger.own_pool or isinstance(problem, CapacityError):
                self.ledger.roll_back(name)
                self._admissions.note_placed(name, tracked.row)
            raise
        self._admissions.enter(name, tracked, hit, tokens if runs else None)
        return runs

    @verb
    def grow(self, tokens: Mapping[str, int] = _NOBODY) -> list[str]:
        """Schedule the running requests that are not scheduled yet: one token each, or as in *tokens* (0: not in this step).

        If the ledger owns the pool: releases blocks that have left the windows, as far as tokens are settled, and allocates
        missing blocks. Returns the requests for which there was no room, in the order of *tokens*, then of their rows; these
        are not scheduled. Preempt a request, and call again with the same numbers. Refuses: a request that does not run.
        """
        ours.tokens(tokens, "tokens")
        self._state.check_open()
        table = self._progress
        wanted: dict[int, int] = {}
        for name, count in tokens.items():
            row = self._state.tracked(name).row
            if not table.running[row]:
                state, why = self.ledger.requests.state(name), "it is not in the batch (admit it first)"
                if self._stays.is_ending(row):
                    why = "it has ended, and is over when its plan has settled (leave it out)"
                elif state is Request.LOADING:
                    why = "it waits for its load (grow it when the load has landed)"
                raise MisuseError(f"request {name}: cannot GROW while {state.name}: {why}")
            if count < 0:
                raise MisuseError(f"request {name}: cannot grow by {count} tokens")
            if table.is_scheduled(row):
                raise MisuseError(f"request {name}: it is scheduled in this step already")
            wanted[row] = count
        return [self._state.names[row] for row in self._steps.schedule(wanted)]

    @call
    def preempt(self, name: str) -> None:
        """Take all blocks from a request that runs or loads; this step's plan waits for its copies. State: PREEMPTED.

        Its final content that is not stored yet keeps its place in the queue.
        """
        tracked = self._state.tracked(name)
        if self._stays.is_ending(tracked.row):
            raise MisuseError(f"request {name}: it is over, and ends when its plan has settled (settle that plan)")
        self._state.check_held(name)
        if runs := self.ledger.requests.state(name) is Request.RUNNING:
            self._asking.ask_offer(name, tracked, self._progress.computed_of(tracked.row))
        self._calls.writes()
        if runs:
            self._offers.offer(name, tracked, self._progress.computed_of(tracked.row))
        self.ledger.preempt(name)
        self._endings.drop(name, tracked)
        self._state.preempted[name] = None

    @call
    def finish(self, name: str) -> None:
        """End a request: stores of its last content are queued, then its blocks are released.

        If tokens of it are in a plan that has not settled, this is delayed until the plan settles (`Settled.ended`).
        """
        self._endings.end(name, early=False)

    @call
    def abort(self, name: str) -> None:
        """End a request early, in any state; otherwise as `finish`."""
        self._endings.end(name, early=True)

    @verb
    def hand_off(self, name: str, group: int, boundary: int) -> None:
        """Declare that at the end of this step the block of a Mamba group before token *boundary* holds the state there.

        Refuses: another kind of group, a token that is no block boundary or that the step does not reach, a position without a
        block, and a state that was already handed off in this step.
        """
        tracked = self._state.tracked(name)
        edge.whole(group, "group")
        edge.whole(boundary, "boundary")
        self._offers.hand_off(name, tracked, group, boundary)

    # --- the pool of an engine's own allocator ------------------------------------------------------------------------------

    @verb
    def place(self, name: str, placed: Sequence[Placed]) -> None:
        """The engine's allocator has extended the tables of a request, all or none. Refused if the ledger owns the pool.

        Blocks of a prefix hit are shared, not handed out, and need no fence.
        """
        tracked = self._state.tracked(name)
        if self.ledger.own_pool:
            raise MisuseError(f"request {name}: cannot PLACE blocks of a pool that the ledger owns (use admit and grow)")
        placed = ours.placed(placed, "placed")
        self.ledger.observe_place(
            name, [Placement(each.group, each.skipped, each.shared, (*each.external, *each.fresh)) for each in placed]
        )
        self._admissions.note_placed(name, tracked.row)

    @verb
    def free(self, name: str, group: int, blocks: Sequence[int]) -> None:
        """The engine's allocator has taken these blocks back from a request, because they have left its window."""
        self._state.tracked(name)
        self.ledger.observe_free(name, blocks, group)

    @verb
    def about_to_go(self, blocks: Sequence[int]) -> None:
        """The engine's allocator will hand out these blocks next: in lazy mode, their content is stored now.

        Refused if the ledger owns the pool, for it knows this itself.
        """
        if self.ledger.own_pool:
            raise MisuseError("about_to_go: this ledger owns the pool and knows what goes next (own_pool=True)")
        found, size = edge.counts(blocks, "blocks"), len(self.ledger.blocks)
        if found and not 0 <= min(found) <= max(found) < size:
            raise MisuseError(f"blocks {[each for each in found if not 0 <= each < size][:4]}: blocks are 1 to {size - 1}")
        self._stores.collect(found)

    # --- the step -----------------------------------------------------------------------------------------------------------

    @verb
    def set_time(self, now: float) -> None:
        """Set the time at which the lookups that follow are made; without this call it is the time of the last plan.

        Call it at the start of a step if time can pass between steps: a request's wait for the tier below begins at this time.
        """
        edge.moment(now, "now")
        self._state.now = now

    @call
    def build_plan(self, now: float) -> Plan:
        """Build the plan of this step. It may be empty; call it for every step, also for one without work.

        Order: flushes for preempted requests, hand-offs, chunks that scheduled requests fill, content that finished requests
        left. Pins of lookups that were not used are released. Refuses: more plans out than ``plans_ahead`` allows. If a
        request's key function fails or returns too few keys, nothing has changed, and the next call makes the plan.
        """
        edge.moment(now, "now")
        self._state.check_open(False)
        return self._steps.make_plan(now)

    @call
    def settle(
        self,
        plan: int,
        now: float,
        *,
        sampled: Mapping[str, int] = _NOBODY,
        launched: Iterable[Launched] = (),
        completions: Iterable[Completion] = (),
    ) -> Settled:
        """Apply a plan that every worker has executed: its tokens are computed, full blocks are sealed, reports are applied.

        A request whose known tokens are all computed has sampled one token, unless *sampled* says how many. Fewer sampled
        tokens than were scheduled beyond the known ones are a rollback, which is refused if a Mamba state already includes the
        discarded tokens. Plans settle in order. If a request's key function fails or returns too few keys, nothing has changed.
        """
        due = next(iter(self._state.plans), None)
        if edge.whole(plan, "plan") != due:
            what = "no plan is out; build one first" if due is None else f"plan {due} is next"
            raise MisuseError(f"plan {plan}: it cannot settle now ({what})")
        for name in ours.tokens(sampled, "sampled"):
            self._state.tracked(name)
        edge.moment(now, "now")
        return self._steps.settle(plan, now, sampled, launched, completions)

    def has_pending_work(self) -> bool:
        """Whether steps are still needed even without requests: a plan, a job, a wait or a demotion is outstanding."""
        return bool(self._state.plans) or self.ledger.has_pending_work() or self.demotes_later

    # --- the world changes --------------------------------------------------------------------------------------------------

    @call
    def reset(self, *, drain: bool = False, generation: str | None = None) -> list[str]:
        """Forget all content. Returns the requests that this preempted; they can be looked up at once.

        With *generation*, what is computed from now on is of another one (other weights, layout or tenant), and content of
        others is never hit again. What is in the store below is not found by this scheduler any more; but processes with a
        generation of the same name share content there.

        Results of outstanding copies are discarded; their places stay reserved until they land. With *drain*: raises
        `CapacityError`, with nothing changed, while a copy is outstanding.
        """
        below = self._state.below
        if generation is not None and edge.text(generation, "generation") == self._state.generation:
            raise MisuseError(f"generation {generation!r}: it is the present one (name another)")
        if edge.flag(drain, "drain") and self.ledger.jobs.live:
            self.ledger.reset(drain=True)  # refuses, before the index has named a space that nobody will use
        space = b"" if generation is None else generation.encode()
        if generation is None and below is not None:
            space = below.new_space()
        preempted = self._endings.reset(drain=drain, host=True)
        if generation is not None:
            self._state.generation = generation
        if below is not None:
            below.reset(space)
        return preempted

    @verb
    def sleep(self) -> list[str]:
        """Prepare to free the device memory: requests are preempted, copies flushed in the next plan, its content forgotten.

        The host tier keeps its content. Go on stepping until `has_pending_work` is false; only then may the memory be freed.
        Returns the requests that were preempted.
        """
        if self._state.asleep:
            raise MisuseError("the scheduler sleeps already (wake it first)")
        if (jobs := self.ledger.jobs.submitted(on_device=True)).ids:
            self.ledger.flush(jobs, "sleep")
        names = self._endings.reset(drain=False, host=False)
        self._state.asleep = True
        return names

    @verb
    def wake(self) -> None:
        """The device memory is back, empty. Refuses: a scheduler that does not sleep; `CapacityError` while copies are out."""
        if not self._state.asleep:
            raise MisuseError("the scheduler does not sleep (put it to sleep first)")
        if self.has_pending_work():
            raise CapacityError(
                f"{counted(self.ledger.jobs.live, 'job')} and {counted(len(self._state.plans), 'plan')} are still out "
                "(tick until nothing is pending, then wake)"
            )
        self._state.asleep = False

    @verb
    def lose_worker(self, rank: int) -> list[str]:
        """A worker is lost, and its share of all content with it: no outstanding job can be DONE, no stored content is whole.

        Nothing is loaded or stored until `regain_worker`. Returns the requests that were preempted.
        """
        rank = edge.whole(rank, "rank")
        self.ledger.lose(Worker(rank))
        self._state.lost.add(rank)
        return self._endings.reset(drain=False, host=True)

    @verb
    def regain_worker(self, rank: int) -> list[str]:
        """A worker is back, with empty memory. Content computed meanwhile lacks its share and is forgotten.

        Returns the requests that were preempted. Refuses a rank that is not lost.
        """
        if edge.whole(rank, "rank") not in self._state.lost:
            raise MisuseError(f"worker {rank}: it is not lost (lose_worker comes first)")
        self._state.lost.discard(rank)
        return self._endings.reset(drain=False, host=True)

    # --- as a value ---------------------------------------------------------------------------------------------------------

    def canonical_names(self, *, jobs: Iterable[int] = (), now: float = 0.0) -> Names:
        """Canonical names, for `snapshot`: schedulers that differ only in names give equal snapshots under them.

        Finished jobs keep a name, and are known after a restore, only if they are in *jobs*. Deadlines count from *now*.
        """
        edge.moment(now, "now")
        return names_of(self._state, edge.counts(jobs, "jobs"), now, canonical=True)

    def snapshot(self, names: Names | None = None, *, now: float = 0.0) -> SavedScheduler:
        """The complete state, ledger and host tier included, as a hashable value.

        Deadlines are stored relative to *now*, or to the time in *names*. Statistics are not included. Refuses a host tier
        whose policy cannot be saved, and a tier below whose answers are no value (they change by themselves).
        """
        edge.moment(now, "now")
        return take(
            self._state,
            names_of(self._state, now=now, canonical=False) if names is None else edge.member(names, Names, "names"),
        )

    @anew
    def restore(self, saved: SavedScheduler, now: float = 0.0) -> None:
        """Go back to a snapshot of a scheduler with the same configuration. Earlier hits must be looked up again.

        Deadlines go on from *now* with the time they had left.
        """
        edge.moment(now, "now")
        put_back(self._state, edge.member(saved, SavedScheduler, "saved"), now)

    @property
    def demotes_later(self) -> bool:
        """Whether content waits to be demoted, which further steps would do even without requests."""
        return self._state.below is not None and self._state.below.has_work

    def statistics(self) -> OffloadStatistics:
        """Counts so far."""
        counts, below = self._stores.counts, self._state.below
        return OffloadStatistics(
            refused_stores=counts["refused"],
            already_stored=counts["already stored"],
            in_flight=counts["in flight"],
            stale=counts["stale"],
            partial=counts["partial"],
            waiting=self._stores.waiting,
            deferred=self._state.counts["deferred"],
            overdue_requests=self._state.counts["overdue"],
            device_hits=tuple(self._state.device_hits),
            host_hits=tuple(self._state.host_hits),
            below=None if below is None else below.statistics(),
        )
