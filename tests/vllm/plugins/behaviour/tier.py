"""The connector's own host tier, whose content is what a test's mock of vLLM's manager says it is.

Rules of this file:

* It is a real `HostTier` over the real ledger. What a mock says is made true in it; no answer is given that is not.
* What the mock misses is forgotten before the connector looks, if it can be: what nobody counts on may go at any time.
* What the mock has and the tier has not cannot be loaded, and is a miss; what is still on its way is pending, whatever the mock
  says. So a test that relies on a store passes only if the connector has made it.
* A store that the mock refuses finds no room; what it declines is in the tier from then on, as if another had stored it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

from attrs import define, field
from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key
from vllm.v1.request import Request

from blocklife.core._tables import RESERVE
from blocklife.core._verbs import move_chosen_slots
from blocklife.ledger import Ledger
from blocklife.offload import FullAttention, Geometry, HostTier, Replacement
from blocklife.offload._host import Name
from blocklife.offload._lookup import Answer
from blocklife.offload._search import HostAnswers

Prefix = Callable[..., int | None]
"""What tests put in the place of their scan of a group: the keys, and it says how many of them are hits; None: ask again."""

ANSWERS = {
    LookupResult.HIT: Answer.HIT,
    LookupResult.MISS: Answer.MISS,
    LookupResult.RETRY: Answer.RETRY,
    LookupResult.HIT_PENDING: Answer.PENDING,
}
ANSWER_OF = {answer.code: answer for answer in Answer}
_held = HostAnswers.held


@define(eq=False)
class Oracle:
    """What the mock says, and what has to be known of requests to ask it."""

    manager: mock.MagicMock
    geometry: Geometry
    hashes_per_block: Sequence[int]
    requests: dict[str, Request] = field(factory=dict)
    contexts: dict[str, ReqContext] = field(factory=dict)
    prefix: Prefix | None = None
    hits: dict[tuple[int, bytes], LookupResult] = field(factory=dict)
    """What `prefix` has said of the request that is looked up."""
    accepted: set[Name] = field(factory=set)
    """Names that the mock has accepted and that have no slot yet."""
    refused: set[Name] = field(factory=set)
    """Names that it has refused in this step: it is not asked for them twice."""

    def know(self, request: Request) -> None:
        """A request is new."""
        self.requests[request.request_id] = request
        self.contexts[request.request_id] = ReqContext(request.request_id, request.kv_transfer_params)

    def begin_step(self) -> None:
        """A step is made: what was refused can be asked for again."""
        self.refused.clear()

    def names(self, request: Request, group: int) -> list[bytes]:
        """The names of a request's chunks in one group."""
        ratio = self.hashes_per_block[group] * self.geometry.blocks_per_chunk
        return list(request.block_hashes[ratio - 1 :: ratio])

    def owner(self, group: int, key: bytes) -> ReqContext:
        """The latest request that content belongs to."""
        for name, request in reversed(self.requests.items()):
            if key in self.names(request, group):
                return self.contexts[name]
        return ReqContext("")

    def look_up(self, request: Request, device_tokens: int) -> None:
        """Ask `prefix` for a request that is about to be looked up."""
        self.hits.clear()
        for group, each in enumerate(self.geometry.groups):
            if self.prefix is not None and isinstance(each, FullAttention):
                names = self.names(request, group)[device_tokens // self.geometry.chunk_tokens[group] :]
                keys = [make_offload_key(name, group) for name in names]
                found = self.prefix(keys, self.contexts[request.request_id], request, None, 0)
                for at, name in enumerate(names):
                    result = LookupResult.RETRY if found is None else LookupResult.HIT
                    self.hits[group, name] = result if found is None or at < found else LookupResult.MISS

    def lookup(self, group: int, key: bytes) -> LookupResult:
        """Ask the mock, as their scan would."""
        if (group, key) in self.hits:
            return self.hits[group, key]
        said: LookupResult = self.manager.lookup(make_offload_key(key, group), self.owner(group, key))
        return said

    def would_miss(self, group: int, key: bytes) -> bool:
        """Whether the mock would miss content, without asking it; a list of answers says nothing before its turn."""
        if (group, key) in self.hits:
            return self.hits[group, key] is LookupResult.MISS
        asked = self.manager.lookup
        said: Any = asked.return_value
        if callable(asked.side_effect):
            said = asked.side_effect(make_offload_key(key, group), self.owner(group, key))
        elif asked.side_effect is not None:
            return False
        return said is LookupResult.MISS

    def choose(self, names: Sequence[Name]) -> None:
        """Ask the mock what of these is to be stored, but for what it was asked for in this step."""
        open_ = [name for name in names if name not in self.accepted and name not in self.refused]
        if open_:
            keys = {make_offload_key(key, group): (group, key) for group, key in open_}
            output = self.manager.prepare_store(list(keys), self.owner(*open_[-1]))
            if output is None:
                self.refused.update(open_)
            else:
                self.accepted.update(keys[key] for key in output.keys_to_store)


class MockedTier(HostTier):
    """The tier of a connector under their tests. Without an oracle it is an ordinary one."""

    def __init__(self, ledger: Ledger, replacement: str | Replacement = "lru", *, max_events: int = 65536) -> None:
        super().__init__(ledger, replacement, max_events=max_events)
        self.oracle: Oracle | None = None

    def agree(self, request: Request) -> None:
        """Forget what the mock misses of a request, where nobody counts on it."""
        oracle = self.oracle
        if oracle is None:
            return
        for group in range(len(oracle.geometry.groups)):
            for key in oracle.names(request, group):
                slot = self.slot_of(group, key)
                if slot is not None and not self.ledger.slots.pins(slot) and oracle.would_miss(group, key):
                    self.ledger.evict([slot])

    def answer(self, group: int, key: bytes) -> Answer:
        """What the mock says, but no more than what is there."""
        return self._agreed(super().answer(group, key), group, key)

    def held(self, answers: HostAnswers, group: int, key: bytes, slot: int) -> int:
        """The same for a scan, which asks by number."""
        return self._agreed(ANSWER_OF[_held(answers, group, key, slot)], group, key).code

    def _agreed(self, found: Answer, group: int, key: bytes) -> Answer:
        if self.oracle is None:
            return found
        said = ANSWERS[self.oracle.lookup(group, key)]
        return found if said is Answer.HIT else said

    def reserve(self, names: Sequence[Name]) -> list[int] | None:
        """Slots for what the mock accepts; what it declines is there from now on, and the rest is to be asked for again."""
        oracle = self.oracle
        if oracle is None:
            return super().reserve(names)
        oracle.choose(names)
        if any(name in oracle.refused for name in names):
            return None
        declined = [name for name in names if name not in oracle.accepted]
        if declined:
            self._fill(declined)
            return None
        oracle.accepted.difference_update(names)
        return super().reserve(names)

    def _fill(self, names: Sequence[Name]) -> None:
        """Content that comes from elsewhere."""
        ledger = self.ledger
        slots = super().reserve(names)
        if slots is None:
            raise AssertionError("the tier of a test is too small")
        core = ledger._state.core
        move_chosen_slots(core, core.rules.moves[RESERVE], slots)
        for slot, (group, key) in zip(slots, names, strict=True):
            content = core.contents.intern(group, key)
            core.contents.uses[content] += 1
            core.slots.key[slot], core.slots.group[slot], core.contents.slot[content] = content, group, slot
        move_chosen_slots(core, core.rules.filled[1], slots)
        ledger._calls.end_verb()
