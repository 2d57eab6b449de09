"""A second connector for the rig: it brings tokens from nowhere, at once or some steps later, and sends blocks away.

It stands for a transfer between prefill and decode engines. What it brings is right to the byte, unless it fails; then it
leaves junk and says so as vLLM wants it said. What it sends it compares with the text in every step until it is sent: whoever
hands out or writes such a block earlier is caught.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

import numpy as np
from attrs import define, field, frozen
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.v1.request import Request

from tests.vllm.device import Memory, Text
from tests.vllm.worlds import Beside, GroupSpec

_RIGHT, _JUNK = np.uint64(0), np.uint64(0xBAD)


@frozen
class Habits:
    """How often it does what: chances for each request, or for each worker and copy; all in the connector's extra config."""

    seed: int = 0
    brings: float = 0.5
    within: float = 0.5
    """Of what it brings, the share that comes within the step that needs it."""
    asks_again: float = 0.0
    sends: float = 0.5
    fails: float = 0.0
    shortest: int = 0
    longest: int = 3
    """Steps until a copy has landed."""
    whole: bool = False
    """Whether it always brings the whole prompt."""
    restores: bool = False
    """Whether it brings the memory of groups whose blocks are not found again, as a transfer of a request's own blocks does."""


@frozen(eq=False)
class Copy:
    """Tokens of a request in blocks of this engine, on their way from or to elsewhere."""

    request: str
    tokens: tuple[int, ...]
    start: int
    tables: tuple[tuple[int, ...], ...]
    within: bool = False
    salt: str | None = None
    loads: bool = False


@frozen(eq=False)
class SecondMetadata(KVConnectorMetadata):  # type: ignore[misc]  # vLLM is not there where this is checked
    """What the workers are told in a step."""

    loads: tuple[Copy, ...]
    sends: tuple[Copy, ...]


@define(eq=False)
class _OnItsWay:
    copy: Copy
    due: int
    fails: bool = False


@define(eq=False)
class Told:
    """What it did, for tests to look at."""

    brought: int = 0
    """Tokens that have come."""
    sent: int = 0
    """Requests whose blocks were sent."""
    failed: int = 0
    spoilt: set[int] = field(factory=set)
    """Blocks in which a load within a step has left junk, which that step reads, and vLLM drops what it has said."""
    chosen: list[str] = field(factory=list)
    """Requests for which vLLM took its promise."""


class SecondConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]  # as above
    """Both halves; the worker's half gets its memory by `attach`."""

    def __init__(self, vllm_config: object, role: KVConnectorRole, kv_cache_config: object) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.habits = Habits(**self._kv_transfer_config.kv_connector_extra_config)
        self.told = Told()
        self._dice = Random(f"{self.habits.seed}/second/{role}")
        # the scheduler's half
        self._decided: dict[str, tuple[int, bool]] = {}
        self._promised: dict[str, tuple[int, bool]] = {}
        self._loads: list[Copy] = []
        self._sends: list[Copy] = []
        self.states = 0
        """Tokens of a block of states, of which it brings whole ones; 0: the model has none."""
        self.windows = False
        """Whether the model has sliding windows."""
        # the worker's half
        self._groups: Sequence[GroupSpec] = ()
        self._memory: Memory | None = None
        self._step = 0
        self._loading: list[_OnItsWay] = []
        self._sending: list[_OnItsWay] = []
        self._results = KVConnectorTransferResults()
        self._bad: set[int] = set()

    # --- the scheduler's side -----------------------------------------------------------------------------------------------

    def get_loaded_kv_cache_group_ids(self, request: Request) -> tuple[int, ...]:
        """Those that are found again, or all."""
        if self.habits.restores:
            return tuple(self._kv_cache_config.transfer_group_ids)
        return tuple(super().get_loaded_kv_cache_group_ids(request))

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """By the seed: nothing, some of the prompt, or all of it; a request gets the same answer each time."""
        name, dice = request.request_id, self._dice
        if dice.random() < self.habits.asks_again:
            return None, False
        if name not in self._decided:
            brings = dice.random() < self.habits.brings
            there = request.num_prompt_tokens
            if not self.habits.whole:
                there = dice.choice((there, dice.randint(1, there)))
            self._decided[name] = there if brings else 0, dice.random() < self.habits.within
        there, within = self._decided[name]
        if self.states:  # what is computed last needs the state before it
            there = min(there, request.num_tokens - 1) // self.states * self.states
        elif within or self.windows:  # vLLM computes the last token again, and keeps the window of the one behind it
            there = min(there, request.num_tokens - 1)
        if there <= num_computed_tokens:
            return 0, False
        self._promised[name] = num_computed_tokens, within
        return there - num_computed_tokens, not within

    def update_state_after_alloc(self, request: Request, blocks: object, num_external_tokens: int) -> None:
        """What was promised is to be brought."""
        if num_external_tokens:
            start, within = self._promised.pop(request.request_id)
            self.told.chosen.append(request.request_id)
            tokens = tuple(request.all_token_ids[: start + num_external_tokens])
            tables = tuple(map(tuple, blocks.get_block_ids()))  # type: ignore[attr-defined]
            self._loads.append(Copy(request.request_id, tokens, start, tables, within, request.cache_salt, loads=True))

    def build_connector_meta(self, scheduler_output: object) -> SecondMetadata:
        """The copies of this step."""
        found = SecondMetadata(tuple(self._loads), tuple(self._sends))
        self._loads, self._sends = [], []
        return found

    def request_finished_all_groups(self, request: Request, block_ids: tuple[list[int], ...]) -> tuple[bool, None]:
        """By the seed, what the request has computed is sent elsewhere."""
        self._decided.pop(request.request_id, None)
        computed = min(request.num_computed_tokens, request.num_tokens - 1)
        ended = request.status.name == "FINISHED_LENGTH_CAPPED"
        if not ended or self._dice.random() >= self.habits.sends or not any(map(any, block_ids)):
            return False, None
        tokens = tuple(request.all_token_ids[:computed])
        self._sends.append(Copy(request.request_id, tokens, 0, tuple(map(tuple, block_ids)), salt=request.cache_salt))
        return True, None

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, None]:
        """The same with one group."""
        return self.request_finished_all_groups(request, (block_ids,))

    def reset_cache(self) -> bool:
        """It keeps nothing."""
        return True

    # --- the worker's side --------------------------------------------------------------------------------------------------

    def attach(self, memory: Memory, groups: Sequence[GroupSpec]) -> None:
        """Take this worker's memory."""
        self._memory, self._groups = memory, groups
        self._dice = Random(f"{self.habits.seed}/second/{memory.rank}")

    @property
    def out(self) -> int:
        """Copies that have not landed."""
        return len(self._loading) + len(self._sending)

    def register_kv_caches(self, kv_caches: object) -> None:
        """`attach` gives it what it needs."""

    def start_load_kv(self, forward_context: object, **kwargs: object) -> None:
        """Begin the copies of this step, and carry on with the others."""
        self._step += 1
        self.told.spoilt.clear()
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, SecondMetadata)
        habits, dice = self.habits, self._dice
        for copy in metadata.loads:
            fails = dice.random() < habits.fails
            if copy.within:
                self._put(copy, copy.start, len(copy.tokens))
                self.told.brought += len(copy.tokens) - copy.start
                if fails:
                    self._spoil(copy)
                continue
            self._put(copy, copy.start, (copy.start + len(copy.tokens)) // 2)
            self._loading.append(_OnItsWay(copy, self._step + dice.randint(habits.shortest, habits.longest), fails))
        for copy in metadata.sends:
            self._sending.append(_OnItsWay(copy, self._step + dice.randint(habits.shortest, habits.longest)))
        for each in self._sending:
            self._compare(each.copy)
        self._land()

    def _land(self) -> None:
        for each in [each for each in self._loading if each.due <= self._step]:
            self._loading.remove(each)
            if each.fails:
                self._spoil(each.copy)
            else:
                self._put(each.copy, each.copy.start, len(each.copy.tokens))
                self.told.brought += len(each.copy.tokens) - each.copy.start
            self._results.finished_recving.add(each.copy.request)
        for each in [each for each in self._sending if each.due <= self._step]:
            self._sending.remove(each)
            self.told.sent += 1
            self._results.finished_sending.add(each.copy.request)

    def _spoil(self, copy: Copy) -> None:
        """It failed: some of it is junk."""
        self.told.failed += 1
        start = (copy.start + len(copy.tokens)) // 2
        self._put(copy, start, len(copy.tokens), _JUNK)
        if len(self._groups) > 1 or self._groups[0].kind != "full":
            assert not copy.within
            self._results.failed_recving.add(copy.request)
            return
        tokens = self._groups[0].block_tokens
        bad = copy.tables[0][start // tokens : -(-len(copy.tokens) // tokens)]
        self._bad.update(bad)
        self.told.spoilt.update(bad if copy.within else ())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """All is there."""

    def save_kv_layer(self, *args: object, **kwargs: object) -> None:
        """Nothing is saved layer by layer."""

    def wait_for_save(self) -> None:
        """Nothing."""

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """What landed."""
        found, self._results = self._results, KVConnectorTransferResults()
        return found

    def get_block_ids_with_load_errors(self) -> set[int]:
        """What is junk."""
        found, self._bad = self._bad, set()
        return found

    # --- bytes --------------------------------------------------------------------------------------------------------------

    def _places(self, copy: Copy, start: int, stop: int) -> Iterable[tuple[int, int, np.uint64]]:
        """Where the KV of these tokens stands, and what it is: a block, a row in it or -1 for all, and the word."""
        assert self._memory is not None
        text = Text(copy.tokens, Beside(copy.salt))
        for number, (group, table) in enumerate(zip(self._groups, copy.tables, strict=True)):
            if not group.is_found_again:
                if self.habits.restores and copy.loads and start < stop:
                    yield from self._unnamed(text, number, group, table, stop)
                continue
            if group.kind == "mamba":
                if stop == len(copy.tokens) > start and (block := table[(stop - 1) // group.block_tokens]):
                    yield block, -1, text.state(number, stop)
                continue
            prints = text.prints(number, 0, stop) if stop else ()
            for token in range(start, stop):
                if block := table[token // group.block_tokens]:
                    yield block, token % group.block_tokens, prints[token]

    def _unnamed(
        self, text: Text, number: int, group: GroupSpec, table: Sequence[int], stop: int
    ) -> Iterable[tuple[int, int, np.uint64]]:
        """The same of a ring, or of a window that is not found again, wherever the load begins."""
        size, is_ring = group.block_tokens, group.kind == "ring"
        prints = text.prints(number, 0, stop)
        for token in range(max(0, stop - (size if is_ring else group.window or size)), stop):
            if block := table[0 if is_ring else token // size]:
                yield block, token % size, prints[token]

    def _put(self, copy: Copy, start: int, stop: int, junk: np.uint64 = _RIGHT) -> None:
        memory = self._memory
        assert memory is not None
        sizes = {block: group.block_tokens for group, table in zip(self._groups, copy.tables, strict=True) for block in table}
        for block, row, word in self._places(copy, start, stop):
            if row < 0:
                memory.device[block] = word ^ memory.salt ^ junk
            else:
                memory.device[block].reshape(sizes[block], -1)[row] = word ^ memory.salt ^ junk

    def _compare(self, copy: Copy) -> None:
        memory = self._memory
        assert memory is not None
        sizes = {block: group.block_tokens for group, table in zip(self._groups, copy.tables, strict=True) for block in table}
        for block, row, word in self._places(copy, 0, len(copy.tokens)):
            if row >= 0:
                found = memory.device[block].reshape(sizes[block], -1)[row]
                assert (found == word ^ memory.salt).all(), f"{copy.request}: block {block} was written while it is sent"
