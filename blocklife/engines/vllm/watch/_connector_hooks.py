"""The hooks common to all offloading connectors: reports of the workers, and finished requests."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from blocklife.engines.vllm.watch._reading import BlockLike
from blocklife.watch import EngineCopy, HeardCall, Mirror, Missing, TakesBack, Watch


class ConnectorHooks:
    """Hooks on the scheduler side of a connector; a subclass interprets the metadata of its connector."""

    def __init__(self, watch: Watch, mirror: Mirror, scheduler: object) -> None:
        self._mirror = mirror
        self._scheduler, ears = scheduler, watch.ears
        ears.hear(scheduler, "build_connector_meta", before=self._builds, after=self._built)
        ears.hear(scheduler, "update_connector_output", before=self._updates)
        ears.hear(scheduler, "request_finished", after=self._finished)
        ears.hear(scheduler, "get_num_new_matched_tokens", before=self._looks_up, after=self._looked_up)
        ears.hear(scheduler, "update_state_after_alloc", before=self._lets_in, after=self._let_in)
        self._computed: dict[str, int] = {}
        self._within: set[str] = set()
        """The requests of whose load a lookup has said that it is over within the step."""
        # What requests expect to be loaded: position, block, and whether the block is in the prefix cache already.
        self._counted: dict[str, list[tuple[int, int, bool]]] = {}
        self.block_tokens: Sequence[int] = ()
        """Tokens of a block in each group of the engine; 0 where that cannot be told."""

    def _builds(self, call: HeardCall) -> TakesBack:
        """The scheduler decides a step."""
        return self._mirror.catch_up

    def _built(self, call: HeardCall) -> None:
        """It has: its jobs are in the metadata for the workers."""
        raise NotImplementedError

    def _hear(self, output: object) -> None:
        """Tell the mirror which jobs the workers have reported."""
        raise NotImplementedError

    def _updates(self, call: HeardCall) -> TakesBack:
        self._hear(call.first)
        return self._mirror.catch_up

    def _finished(self, call: HeardCall) -> None:
        if (name := _asked(call)) is not None:
            self._computed.pop(name, None)
            self._within.discard(name)
            self._counted.pop(name, None)
            self._mirror.ended(name)

    # --- what a lookup has counted ------------------------------------------------------------------------------------------

    def _looks_up(self, call: HeardCall) -> None:
        name, computed = _asked(call), call.given("request", "num_computed_tokens")[1]
        if name is not None and isinstance(computed, int):
            self._computed[name] = computed

    def _looked_up(self, call: HeardCall) -> None:
        name, (request, computed) = _asked(call), call.given("request", "num_computed_tokens")
        if name is None or not isinstance(computed, int):
            return
        self._within.discard(name)
        found = call.result
        if isinstance(found, tuple) and isinstance(tokens := found[0], int) and tokens > 0:
            self._ask_promise(name, request, computed, computed + tokens)
            if not found[1]:
                self._within.add(name)

    def _ask_promise(self, name: str, request: object, start: int, end: int) -> None:
        """Check that the host has what a lookup has just promised."""
        if lacks := self._lacks(name, request, start, end):
            what = f"a lookup promises tokens {start} to {end} of {name}, but the host {lacks}"
            self._mirror.story.violate("I6", what, request=name)

    def _lacks(self, name: str, request: object, start: int, end: int) -> str:
        """What the host lacks of these tokens, which a lookup has just promised; empty if it has all that a load reads."""
        raise NotImplementedError

    def _lets_in(self, call: HeardCall) -> None:
        """A request was allocated blocks for this many tokens to be loaded: these blocks have no content yet."""
        request, blocks, tokens = call.given("request", "blocks", "num_external_tokens")
        name, tables = _asked(call), getattr(blocks, "blocks", None)
        if name is not None and isinstance(tables, Sequence) and isinstance(tokens, int) and tokens:
            self._count_on(name, request, tables, tokens)

    def _let_in(self, call: HeardCall) -> None:
        """The connector knows of that."""

    def _count_on(self, name: str, request: object, tables: Sequence[Sequence[BlockLike]], tokens: int) -> None:
        start = self._computed.get(name)
        if start is not None:
            self._counted[name] = [
                (position, block.block_id, getattr(block, "block_hash", None) is not None)
                for table, size in zip(tables, self.block_tokens, strict=False)
                if size
                for position, block in enumerate(table[: -(-(start + tokens) // size)])
                if position * size >= start and self._mirror.follows(block.block_id)
            ]

    def _missing(self, loads: Iterable[EngineCopy]) -> list[Missing]:
        """The blocks that requests expect to be loaded, but that no job of the step loads."""
        counted, self._counted = self._counted, {}
        if not counted:
            return []
        loaded = {(copy.request, piece.block) for copy in loads for piece in copy.pieces}
        return [(name, *place) for name, places in counted.items() for place in places if (name, place[1]) not in loaded]

    @staticmethod
    def computes(output: object) -> Collection[str]:
        """The requests for which a step computes."""
        found = getattr(output, "num_scheduled_tokens", None)
        return found if isinstance(found, dict) else ()


def _asked(call: HeardCall) -> str | None:
    """The name of the request that a call is for."""
    name = getattr(call.first, "request_id", None)
    return name if isinstance(name, str) else None
