"""A small engine around the real ledger, host tier and offload scheduler, without a device; tests and the explorer drive it.

Rules of this file:

* It makes an engine's decisions (what to run, admit and preempt) in the simplest way, and only where the caller does not.
* Its state depends only on the calls made to it, so that an explorer can restore any state and continue from there.
* It gives orders to a device as plain records (`_device.Orders`), and gets `_device.Landing`s back.

Theory. Tokens are letters, so that tests are readable. A request has a *text*, which begins with its prompt. The content of a
block is its group and all text up to its last token, for example ``0:abcd``, under the present weights; its key is the same
text as bytes, without the weights: `renew` has to make sure that nothing computed with former weights is found again.

Drafts: a step may also compute tokens that are only guessed. A guess of a lower-case letter is right and one of a capital
wrong, so that what a plan samples follows from the text. Wrong guesses leave content behind that no key names. Beside states,
the state of each guess is written to a block of its own, and only that of the last known token is handed off. While a request
decodes, the layers of a drafter write the last position once more in the next step.

Tails: a block that is not full has the content of its letters, ``0:abc`` in blocks of two, and that is its key as a tail, too.
So whoever reads a tail's bytes beyond its end, or under the key of another, reads other content than it must find. Beside
layers of a drafter a tail ends before what its request has computed. There content says also at which letter those layers have
looked ahead (`_contents`), so that a hit without a proof is seen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from math import inf
from typing import NamedTuple

from attrs import evolve, field, frozen

from blocklife.copiers._sharing import Sharing
from blocklife.errors import CapacityError, MisuseError
from blocklife.knobs import knob
from blocklife.ledger import (
    Checking,
    Contract,
    Ledger,
    LedgerTransition,
    Limits,
)
from blocklife.ledger._snapshot import Names
from blocklife.offload import (
    BelowPolicies,
    Geometry,
    Hit,
    HostTier,
    Mamba,
    OffloadScheduler,
    Policies,
    Settled,
)
from blocklife.offload._snapshot import SavedScheduler
from blocklife.offload.records import Keys, TailKeys
from blocklife.policies import BUILT_IN
from blocklife.states import ADMISSIBLE, Request
from blocklife.testing.worlds import _second_owner as second
from blocklife.testing.worlds._device import Landing, Orders
from blocklife.testing.worlds._passes import Passes
from blocklife.testing.worlds._tier import TierIndex

LONG_OVER = 0
"""The job number, in late reports, of every job that is over and forgotten."""
FOREVER = 1e9
"""A deadline that never comes."""
USUAL = Policies(max_load_failures=1, pending_wait=inf)
"""The policies of a world that says nothing."""
USUAL_BELOW = BelowPolicies(max_wait=1.0, max_slots=2, job_slots=1, lazy_slots=1)
"""The policies of the tier below, where there is one; times are in the engine's time."""


@frozen(kw_only=True)
class Settings:
    """The sizes and policies of a small engine."""

    groups: str = knob(
        "full:1",
        "the model's groups, by commas: full:BLOCK, swa:BLOCK:WINDOW, local:BLOCK:PART, mamba:BLOCK; behind them /1 if a "
        "prefix may end inside a block",
    )
    blocks_per_chunk: int = knob(1, "blocks that are offloaded as one", least=1)
    num_blocks: int = knob(3, "device blocks to hand out; the null block comes on top", word="blocks", least=1)
    num_slots: int = knob(2, "host slots; a slot holds one chunk", word="slots", least=1)
    num_workers: int = knob(1, "ranks; each copies its share of every job", word="workers", least=1, most=64)
    host_shared: bool = knob(False, "the workers have host memory together; one of them writes each slot")
    max_jobs: int = knob(4, "jobs that can be in flight at the same time", least=1)
    max_requests: int = knob(4, "requests that can exist at the same time", least=1)
    contract: Contract = knob(Contract.FENCE, "what may happen to a block that a copy reads")
    asynchronous: bool = knob(False, "plan each step while the previous one runs", word="async")
    deadline: float = knob(
        FOREVER,
        "time that a copy may run; it passes only where a copy can hang or a report can be lost, and is 1 there",
        endless=False,
    )
    replacement: str = knob("lru", "what the host tier evicts first", word="policy", among=BUILT_IN)
    step_tokens: int | None = knob(None, "maximum tokens that one request computes in one step", least=1)
    drafts: int = knob(0, "tokens guessed in each step of a running request; capitals of its text are guessed wrong")
    checking: Checking = knob(Checking.STRICT, "what a broken rule of the ledger does")
    policies: Policies = USUAL
    """Those of the scheduler; how far it plans ahead, and how many drafts have states, follows from the other settings."""
    below: BelowPolicies | None = None
    """The policies of a tier below; None: there is none."""
    below_shared: bool = knob(False, "another process has put there what the prompts need")
    geometry: Geometry = field(init=False, repr=False, eq=False)

    @geometry.default
    def _parse(self) -> Geometry:
        return Geometry.parse(self.groups, self.blocks_per_chunk)

    def __attrs_post_init__(self) -> None:
        if self.drafts and (self.asynchronous or set(self.geometry.block_tokens) != {1}):
            raise MisuseError("drafts: this engine guesses only where a block has one token, and no plan is made ahead")
        if self.geometry.tail_tokens not in (None, 1):
            raise MisuseError(f"groups: a world has tails at every token, {self.groups.partition('/')[0]}/1, not {self.groups}")
        if self.host_shared and self.num_workers < 2:
            raise MisuseError("host_shared: host memory can be shared only where there are two workers (num_workers)")

    @property
    def shared(self) -> tuple[Sharing, ...]:
        """For each worker, which places it writes, if they have host memory together."""
        ranks = range(self.num_workers if self.host_shared else 0)
        return tuple([Sharing("world", rank, self.num_workers, self.blocks_per_chunk) for rank in ranks])


@frozen(cache_hash=True)
class Spelling:
    """A key function: the key of a block is its group and all text up to its end. Equal texts have equal key functions."""

    text: str
    block_tokens: tuple[int, ...]

    def __call__(self, group: int, start: int, stop: int) -> list[bytes]:
        """The keys of some blocks."""
        text, size = self.text, self.block_tokens[group]
        return [f"{group}:{text[: (position + 1) * size]}".encode() for position in range(start, stop)]


@frozen(cache_hash=True)
class TailSpelling:
    """The key function of tails: the key is the group and all text up to the token."""

    text: str

    def __call__(self, group: int, end: int) -> bytes | None:
        """The key of the tail that ends at this token."""
        return f"{group}:{self.text[:end]}".encode() if end <= len(self.text) else None


class Stepped(NamedTuple):
    """The result of one step of the engine."""

    orders: Orders
    handed_out: tuple[int, ...]
    """Blocks handed out since the previous step."""
    hits: Mapping[str, Hit]
    short: tuple[str, ...]
    """Running requests that found no room, and were not scheduled."""
    refused: tuple[str, ...]
    """Waiting requests that found no room."""
    deferred: tuple[str, ...]
    """Waiting requests whose lookup has to wait for a copy."""


class Engine(Passes):
    """One scheduler, and the texts of its requests.

    Besides the scheduler's state it keeps only these texts, which never change.
    """

    def __init__(self, settings: Settings, *, own_pool: bool = True, state_drafts: int | None = None) -> None:
        """*own_pool*: as of a ledger. *state_drafts*: how many drafts have states beside them; left out: all of them."""
        self.settings = settings
        if state_drafts is None:
            state_drafts = settings.drafts if any(isinstance(each, Mamba) for each in settings.geometry.groups) else 0
        limits = Limits(
            num_blocks=settings.num_blocks + 1,
            num_slots=settings.num_slots,
            max_jobs=settings.max_jobs,
            max_requests=settings.max_requests,
            num_groups=len(settings.geometry.groups),
            num_workers=settings.num_workers,
            max_journal=256,
        )
        ledger = Ledger(
            limits,
            contract=settings.contract,
            deadline=settings.deadline,
            checking=settings.checking,
            own_pool=own_pool,
            errors="raise",
        )
        self.tier = HostTier(ledger, settings.replacement)
        policies = evolve(settings.policies, plans_ahead=int(settings.asynchronous), state_drafts=state_drafts)
        self.index = None if settings.below is None else TierIndex()
        """What the scheduler knows of the store below."""
        super().__init__(
            OffloadScheduler(ledger, self.tier, settings.geometry, policies, below=self.index, below_policies=settings.below),
            drafts=settings.drafts,
        )
        self.now = 0.0
        self._keys: dict[str, Keys] = {}
        self._tails: dict[str, TailKeys] = {}
        self.told: list[LedgerTransition] = []
        """Every commit that hooks have heard of since the last `thaw`, or since it was cleared."""

    def _hear(self, told: LedgerTransition) -> None:
        self.told.append(told)
        super()._hear(told)

    # --- requests -----------------------------------------------------------------------------------------------------------

    def add(self, name: str, text: str, prompt: int) -> None:
        """Add a request whose prompt is the first *prompt* letters of *text*; it ends when all letters are known."""
        if not 0 < prompt < len(text):
            raise MisuseError(f"request {name}: its prompt has 1 to {len(text) - 1} of its {len(text)} letters, not {prompt}")
        self.know(name, text, prompt)
        self.scheduler.add_request(name, self._keys[name], prompt_tokens=prompt, tails=self.tails(name))

    def know(self, name: str, text: str, prompt: int) -> None:
        """Set the text of a request, and how many letters of it are its prompt, before it is added."""
        self._prompts[name] = prompt
        if self.texts.get(name) != text:
            self.texts[name] = text
            self._keys[name] = Spelling(text, self.geometry.block_tokens)
            if self.geometry.tail_tokens is not None:
                self._tails[name] = TailSpelling(text)

    def keys(self, name: str) -> Keys:
        """The key function of a known request."""
        return self._keys[name]

    def tails(self, name: str) -> TailKeys | None:
        """The key function of its tails; None where prefixes end with a block."""
        return self._tails.get(name)

    def waiting(self) -> list[str]:
        """Requests that hold nothing, in order of arrival."""
        return [name for name in self.ledger.requests if self._state(name) in ADMISSIBLE]

    def running(self) -> list[str]:
        """Requests that can be scheduled, in order of arrival."""
        return self.scheduler.requests.running()

    def _state(self, name: str) -> Request:
        return self.ledger.requests.state(name)

    def tell(self, verb: str, name: str) -> None:
        """What happens to one request: *abort*, *preempt*, *lend* or *give_back*."""
        getattr(self if verb in ("lend", "give_back") else self.scheduler, verb)(name)

    def lend(self, name: str) -> None:
        """A second owner begins to read what is final of a request."""
        second.lend(self.ledger, name, self._groups)

    def give_back(self, name: str) -> None:
        """It is done."""
        second.give_back(self.ledger, name)

    # --- the step -----------------------------------------------------------------------------------------------------------

    def step(
        self,
        tokens: Mapping[str, int] | None = None,
        *,
        admit: Collection[str] | Mapping[str, int] | None = None,
        preempt: Collection[str] = (),
    ) -> Stepped:
        """Schedule, admit, plan. The result holds the orders; `settle` confirms that they were carried out.

        *tokens*: how many each running request computes, 0 for those not named. *admit*: the requests to look up and admit; a
        mapping gives the tokens of each. Without *tokens* (or *admit*) the engine decides: each request gets the rest of its
        known tokens, a request without room preempts the latest arrival, and waiting requests are admitted first come first
        served, up to the first without room.
        """
        for name in preempt:
            self.scheduler.preempt(name)
        self.scheduler.set_time(self.now)
        asleep = self.scheduler.asleep
        begin = {name: self._end(name) for name in self.running()}
        if asleep:
            wants, short, gave_way = dict.fromkeys(begin, 0), list[str](), list[str]()
        else:
            wants, short, gave_way = self._grow(begin, tokens)
        chosen: Collection[str] | Mapping[str, int]
        if admit is not None:
            chosen = admit
        else:
            chosen = [] if asleep or short else [name for name in self.waiting() if name not in gave_way]
        hits, refused, deferred = self._let_in(chosen, begin, wants, stop_at_refusal=admit is None)
        self._hand_off(begin, wants)
        plan = self.scheduler.build_plan(self.now)
        orders = self.orders(plan, begin, wants)
        return Stepped(orders, self.take_handed_out(), hits, tuple(short), tuple(refused), tuple(deferred))

    def _end(self, name: str) -> int:
        found = self.scheduler.requests.progress(name)
        return found.computed + found.in_flight

    def _want(self, name: str, begin: int) -> int:
        """The tokens that a request gets: those known and not computed; when planning ahead, at least one."""
        left = max(self.scheduler.requests.progress(name).known + self.drafts - begin, int(self.settings.asynchronous))
        left = min(left, len(self.texts[name]) - 1 - begin)
        return left if self.settings.step_tokens is None else min(left, self.settings.step_tokens)

    def _grow(self, begin: dict[str, int], tokens: Mapping[str, int] | None) -> tuple[dict[str, int], list[str], list[str]]:
        """Schedule the running requests. Returns the tokens of each, those without room, and those preempted for others."""
        wants = {name: self._want(name, at) if tokens is None else tokens.get(name, 0) for name, at in begin.items()}
        short = self.scheduler.grow(wants)
        gave_way: list[str] = []
        while short and tokens is None and len(wants) > 1:
            victim = list(wants)[-1]
            self.scheduler.preempt(victim)
            gave_way.append(victim)
            del wants[victim], begin[victim]
            short = self.scheduler.grow({name: wants[name] for name in short if name != victim})
        for name in short:
            wants[name] = 0
        return wants, short, gave_way

    def _let_in(
        self,
        admit: Collection[str] | Mapping[str, int],
        begin: dict[str, int],
        wants: dict[str, int],
        *,
        stop_at_refusal: bool,
    ) -> tuple[dict[str, Hit], list[str], list[str]]:
        hits: dict[str, Hit] = {}
        refused: list[str] = []
        deferred: list[str] = []
        for name in admit:
            known = self.scheduler.requests.progress(name).known
            hits[name] = hit = self.scheduler.lookup(name, known)
            if hit.deferred:
                deferred.append(name)
                continue
            count = known - hit.compute_from
            if isinstance(admit, Mapping):
                count = admit[name]
            elif self.settings.step_tokens is not None:
                count = min(count, self.settings.step_tokens)
            try:
                if self.scheduler.admit(name, hit, count):
                    begin[name], wants[name] = hit.compute_from, count
            except CapacityError:
                refused.append(name)
                if stop_at_refusal:
                    break
        return hits, refused, deferred

    def _hand_off(self, begin: Mapping[str, int], wants: Mapping[str, int]) -> None:
        """Hand off the Mamba states that this step leaves at the end of a block; with drafts, that of the last known token."""
        for group, each in enumerate(self.geometry.groups):
            for name, count in wants.items():
                end = begin[name] + count
                if self.scheduler.policies.state_drafts:
                    end = min(end, self.scheduler.requests.progress(name).known)
                if isinstance(each, Mamba) and count and not end % each.block_tokens:
                    self.scheduler.hand_off(name, group, end)

    def ends_inside(self, name: str | None) -> bool:
        """Whether what is loaded for a request ends with a tail: its last block is not full."""
        if name is None or name not in self.scheduler.requests or self._state(name) is not Request.LOADING:
            return False
        return self.ledger.requests.size(name, 0) > self.scheduler.requests.sealed_blocks(name, 0)

    def _guessed(self, name: str, end: int) -> str:
        """The first *end* letters of a text as this step computes them: from the first wrong guess on they are no letters."""
        if not self.drafts:
            return super()._guessed(name, end)
        text, known = self.texts[name][:end], self.scheduler.requests.progress(name).known
        right = known + self._right(name, end)
        return text if end <= known else text[:right] + "?" * (end - right)

    def _right(self, name: str, end: int) -> int:
        """How many guesses behind the known letters of a request are right, if it computes *end* of them."""
        guesses = self.texts[name][self.scheduler.requests.progress(name).known : end]
        return next((count for count, letter in enumerate(guesses) if letter.isupper()), len(guesses))

    def _sampled(self) -> dict[str, int]:
        """How many letters the oldest plan has sampled: each right guess, and one behind them."""
        found: dict[str, int] = {}
        for name in self.running():
            progress = self.scheduler.requests.progress(name)
            if progress.in_flight and progress.computed + progress.in_flight >= progress.known:
                found[name] = 1 + self._right(name, progress.computed + progress.in_flight)
        return found

    def settle(
        self,
        reports: Iterable[Landing] = (),
        *,
        launched: Iterable[tuple[int, int]] = (),
        sampled: Mapping[str, int] | None = None,
    ) -> Settled:
        """Settle the oldest plan, carried out by every worker. Then finish the requests whose text is complete.

        *launched* names (job, worker) of copies that have begun to run.
        """
        if sampled is None and self.drafts:
            sampled = self._sampled()
        settled = self.scheduler.settle(
            self.scheduler.plans_out[0],
            self.now,
            sampled=sampled or {},
            launched=self.launches(launched),
            completions=[self.completion(each) for each in reports],
        )
        for name in self.running():
            if self.scheduler.requests.progress(name).known >= len(self.texts[name]):
                self.scheduler.finish(name)
        return settled

    # --- as a value ---------------------------------------------------------------------------------------------------------

    def freeze(self, jobs: Iterable[int] = ()) -> tuple[SavedScheduler, Names]:
        """The present state under canonical names, and these names. Finished *jobs* stay known."""
        names = self.scheduler.canonical_names(jobs=jobs, now=self.now)
        return self.scheduler.snapshot(names), names

    def thaw(self, saved: SavedScheduler) -> None:
        """Restore a frozen state; time starts at 0 again."""
        self.now = 0.0
        self._handed_out = []
        self.told.clear()
        self.scheduler.restore(saved)
