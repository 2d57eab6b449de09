"""The state of an offload scheduler: requests, plans and copies. It refuses what is unknown; it decides nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple, TypeAlias

from blocklife.core._columns import zeros
from blocklife.core._progress import GroupTokens, TokenProgress
from blocklife.core._tables import ENDLESS
from blocklife.errors import MisuseError
from blocklife.groups import Geometry, Group, LocalAttention, Mamba, SlidingWindow
from blocklife.ledger import Ledger
from blocklife.ledger import _edge as edge
from blocklife.ledger._edge import NotCopied
from blocklife.offload._below import BelowIndex, BelowPolicies, TierBelow
from blocklife.offload._host import HostTier
from blocklife.offload._search import Search
from blocklife.offload._stays import Stays
from blocklife.offload._stores import StoreLine
from blocklife.offload.records import Hit, Keys, TailKeys
from blocklife.policies import FullHit, Mode, Policies
from blocklife.states import ADMISSIBLE, Request

HandedState: TypeAlias = tuple[str, int, int, int]
"""A state that was handed off: request, serial of its stay, group, boundary."""
KeysGiven: TypeAlias = dict[int, tuple[int, int, Sequence[bytes]]]
"""What key functions have answered, by the place of group and row in the columns of progress: serial of the stay, the first
block, and the keys from there on."""


class PlanOut(NamedTuple):
    """What belongs to a plan that is out, besides the tokens of its turn."""

    handed: Collection[HandedState]
    """The states that were handed off in its step."""
    keys: KeysGiven
    """The keys of what it fills: its blocks are sealed under these when it settles."""


class Tracked:
    """What the scheduler knows about one request besides its row in the columns.

    ``hit`` is the answer of its latest lookup (`Stays.lookups`) or, while the request loads, what it loads. ``failures`` counts
    its failed loads. ``asked`` identifies its latest completed lookup: the number of job verdicts and of abandoned loads then,
    known tokens, tokens on the device, news of the tier below. ``awaits`` is content that this lookup waits for and that the
    device lacked, if there is any. ``fetched`` are the promotions that its lookups have planned.
    ``tail`` is the token inside a block at which its states were handed off, whose attention is stored when the request ends; 0
    for none.
    """

    __slots__ = (
        "asked", "awaits", "failures", "fetched", "hit", "keys", "row", "tail", "tails",
    )  # fmt: skip

    def __init__(
        self,
        row: int,
        keys: Keys,
        hit: Hit | None = None,
        failures: int = 0,
        asked: tuple[int, int, int | None, int | None] | None = None,
        tails: TailKeys | None = None,
        tail: int = 0,
        awaits: tuple[int, bytes] | None = None,
    ) -> None:
        self.row, self.keys, self.hit, self.failures, self.asked = row, keys, hit, failures, asked
        self.tails, self.tail, self.awaits = tails, tail, awaits
        self.fetched: list[int] = []


class SchedulerState(NotCopied):
    """The state of a scheduler.

    Invariant: ``names[row]`` is the request of a row, and ``requests`` has exactly the requests that the ledger knows, in the
    order in which they were added; ``added[row]`` ascends in this order.
    Invariant: ``plans`` holds the outstanding plans, oldest first, at most ``plans_ahead`` + 1; ``progress.turns`` has their
    tokens, in the same order.
    Invariant: ``loading`` maps the content of live loads, by group and key, to their request; ``bringing`` is the inverse.
    """

    def __init__(
        self,
        ledger: Ledger,
        tier: HostTier,
        geometry: Geometry,
        policies: Policies | None = None,
        index: BelowIndex | None = None,
        below: BelowPolicies | None = None,
    ) -> None:
        self.ledger = edge.member(ledger, Ledger, "ledger")
        self.rows = ledger._rows
        """The verbs of the ledger on rows of progress."""
        self.tier = edge.member(tier, HostTier, "tier")
        if tier.ledger is not ledger:
            raise MisuseError("tier: it was made for another ledger (HostTier(ledger), with the ledger of this scheduler)")
        self.geometry = geometry
        edge.member(geometry, Geometry, "geometry")
        self.policies = policies = Policies() if policies is None else edge.member(policies, Policies, "policies")
        _check_fit(ledger, geometry, policies)
        self.stores = StoreLine(ledger, tier, geometry, policies)
        self.groups = range(len(geometry.groups))
        self.attention = [group for group in self.groups if not isinstance(geometry.groups[group], Mamba)]
        self.has_states = len(self.attention) < len(self.groups)
        # others keep these two: they may be emptied, and are never replaced
        self.requests: dict[str, Tracked] = {}
        self.names: dict[int, str] = {}
        self.added = zeros("q", ledger.limits.max_requests)
        self.num_added = 0
        self.stays = Stays(ledger.limits.max_requests)
        """How the lookup, the waits and the end of each request stand."""
        self.progress = progress_of(ledger.limits.max_requests, geometry, policies)
        self.progress_bytes = tuple([memoryview(column).cast("B") for column in self.progress.columns])
        """The progress columns as bytes, for snapshots."""
        self.plans: dict[int, PlanOut] = {}
        self.handed: dict[HandedState, None] = {}
        self.states: dict[str, list[tuple[int, int, int]]] = {}
        """States handed off at the end of a chunk and not offered yet: group, boundary, life."""
        self.waiting_loads: dict[str, Hit] = {}
        self.loads_heard = -1
        """How often requests had left LOADING when the scheduler last heard of their loads; below 0 if it has to ask all."""
        self.loading: dict[tuple[int, bytes], str] = {}
        self.bringing: dict[str, list[tuple[int, bytes]]] = {}
        self.below: TierBelow | None = None
        if index is not None:
            chosen = BelowPolicies() if below is None else below
            self.below = TierBelow(ledger, tier, index, chosen, self.stores.suffix, self.stores.required)
        self.search = Search(ledger, tier, geometry, policies, self.stores.suffix, self.loading, self.below)
        self.now = 0.0
        """The time of the latest plan."""
        self.within: dict[str, int] = {}
        """How many tokens of `Policies.load_within_tokens` the lookups of this step have taken, by request."""
        self.pinned: dict[str, list[int]] = {}
        self.preempted: dict[str, None] = {}
        self.outlived: set[str] = set()
        """Requests that have ended but still have jobs."""
        self.given_up = 0
        self.lost: set[int] = set()
        self.asleep = False
        self.generation = ""
        """Identifies the weights, layout and tenant that the content was computed with; chosen by the engine."""
        self.counts: Counter[str] = Counter()
        self.device_hits = [0] * len(geometry.groups)
        self.host_hits = [0] * len(geometry.groups)

    def track(self, name: str, tracked: Tracked) -> None:
        """Note a request that the ledger has added."""
        self.requests[name] = tracked
        self.names[tracked.row] = name
        self.num_added += 1
        self.added[tracked.row] = self.num_added
        self.progress.home[tracked.row], self.progress.came[tracked.row] = self.rows.home(name)

    # --- what calls look up, and refuse ---------------------------------------------------------------------------------------

    def unpin(self, name: str) -> None:
        if slots := self.pinned.pop(name, None):
            self.ledger.unpin(f"lookup {name}", slots)

    def tracked(self, name: str) -> Tracked:
        try:
            found = self.requests.get(name)
        except TypeError:  # not even hashable
            found = None
        if found is None:
            edge.text(name, "name")
            raise edge.unknown(name)
        return found

    def check_held(self, name: str) -> None:
        """Refuse a call for a request that only the scheduler knows."""
        if name not in self.ledger.requests:
            raise self.changed_beside(name)

    def changed_beside(self, name: str) -> MisuseError:
        """The error for a request that was finished or preempted by a call of the ledger, past the scheduler."""
        requests = self.ledger.requests
        what, whom = "it was finished", "it"
        if name in requests:
            what, whom = "its blocks were given back", f"them; it is {requests.state(name).name}"
        return MisuseError(
            f"request {name}: {what} beside the scheduler, which still counts on {whom} (call finish, abort, preempt and reset "
            "of the scheduler, not of its ledger)"
        )

    def check_open(self, awake: bool = True) -> None:
        """Refuse a call of a step while no step can be made."""
        if len(self.plans) > self.policies.plans_ahead:
            plan = next(iter(self.plans))
            raise MisuseError(f"plan {plan} is not settled (settle it first; plans_ahead={self.policies.plans_ahead})")
        if awake and self.asleep:
            raise MisuseError("the scheduler sleeps (wake it first)")

    def check_waiting(self, name: str, what: str) -> None:
        """Refuse a call for a request that does not wait, or while no step can be made."""
        if self.asleep or len(self.plans) > self.policies.plans_ahead:
            self.check_open()
        self.check_held(name)
        state = self.ledger.requests.state(name)
        if state not in ADMISSIBLE:
            loads = state is Request.LOADING
            why = (
                "it waits for its load (wait until it has landed)"
                if loads
                else "it is in the batch (grow it, or preempt it first)"
            )
            raise MisuseError(f"request {name}: cannot {what} while {state.name}: {why}")


def progress_of(size: int, geometry: Geometry, policies: Policies) -> TokenProgress:
    """The progress of so many requests."""
    groups = [
        GroupTokens(
            tokens,
            chunk,
            _tokens_behind(group),
            group.part_tokens if isinstance(group, LocalAttention) else 1,
            not isinstance(group, Mamba),  # tokens do not fill the block of a state: it is handed off
            drafter,
        )
        for group, tokens, chunk, drafter in zip(
            geometry.groups, geometry.block_tokens, geometry.chunk_tokens, geometry.drafters, strict=True
        )
    ]
    caps = policies.max_store_tokens, policies.max_load_tokens
    stored, loaded = (ENDLESS if most is None else min(most, ENDLESS) for most in caps)
    progress = TokenProgress(size, groups, stored, loaded, policies.prompt_only)
    progress.most_states += policies.state_drafts
    return progress


def _tokens_behind(group: Group) -> int:
    """The number of tokens before the next one that a request still reads."""
    if isinstance(group, SlidingWindow):
        return group.window_tokens - 1
    if isinstance(group, LocalAttention):
        return 0  # behind the beginning of its part
    return 1 if isinstance(group, Mamba) else ENDLESS


def _check_fit(ledger: Ledger, geometry: Geometry, policies: Policies) -> None:
    """Refuse settings that do not fit together, with the two numbers."""
    if len(geometry.groups) != ledger.limits.num_groups:
        raise MisuseError(
            f"{len(geometry.groups)} groups do not fit a ledger of num_groups={ledger.limits.num_groups} (make them equal)"
        )
    if policies.plans_ahead >= ledger.limits.max_plans:
        raise MisuseError(
            f"plans_ahead={policies.plans_ahead} does not fit a ledger of max_plans={ledger.limits.max_plans} (it must be less)"
        )
    if policies.state_drafts and ledger.own_pool:
        for number, group in enumerate(geometry.groups):
            if isinstance(group, Mamba) and group.block_tokens > 1:
                raise MisuseError(
                    f"state_drafts={policies.state_drafts}: group {number} ({group}) has blocks of {group.block_tokens} "
                    "tokens, and a ledger that owns the pool has no others for the states of drafts (use blocks of one token)"
                )
    if geometry.tail_tokens is not None and policies.mode is Mode.LAZY:
        raise MisuseError(f"tail_tokens={geometry.tail_tokens}: tails are not stored lazily (use Mode.EAGER)")
    if geometry.tail_tokens is not None and policies.full_hit is FullHit.RECOMPUTE_LAST_TOKEN:
        raise MisuseError(f"tail_tokens={geometry.tail_tokens}: a tail ends before the last token (use DROP_LAST_BLOCK)")
    if policies.full_hit is FullHit.RECOMPUTE_LAST_TOKEN:
        for number, group in enumerate(geometry.groups):
            if isinstance(group, Mamba):
                raise MisuseError(f"group {number} ({group}): a state cannot step back by one token (use DROP_LAST_BLOCK)")
