"""The hooks common to all offloading connectors: reports of the workers, and finished requests."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from blocklife.engines.vllm.watch._reading import BlockLike
from blocklife.watch import CallsThrough, EngineCopy, Mirror, Missing, Original, given


class ConnectorHooks:
    """Hooks on the scheduler side of a connector; a subclass interprets the metadata of its connector."""

    def __init__(self, mirror: Mirror, scheduler: object) -> None:
        self._mirror = mirror
        self._scheduler = scheduler
        self.calls = CallsThrough()
        self.all_calls: list[CallsThrough] = [self.calls]
        self.calls.add(scheduler, "build_connector_meta", self._build)
        self.calls.add(scheduler, "update_connector_output", self._update)
        self.calls.add(scheduler, "request_finished", self._finished)
        self.calls.add(scheduler, "get_num_new_matched_tokens", self._looked_up)
        self.calls.add(scheduler, "update_state_after_alloc", self._let_in)
        self._computed: dict[str, int] = {}
        self._within: set[str] = set()
        """The requests of whose load a lookup has said that it is over within the step."""
        # What requests expect to be loaded: position, block, and whether the block is in the prefix cache already.
        self._counted: dict[str, list[tuple[int, int, bool]]] = {}
        self.block_tokens: Sequence[int] = ()
        """Tokens of a block in each group of the engine; 0 where that cannot be told."""

    def _build(self, original: Original, *args: object, **kwargs: object) -> object:
        """The scheduler has decided a step: its jobs are in the metadata for the workers."""
        raise NotImplementedError

    def _hear(self, output: object) -> None:
        """Tell the mirror which jobs the workers have reported."""
        raise NotImplementedError

    def _update(self, original: Original, output: object, *args: object, **kwargs: object) -> object:
        self._hear(output)
        try:
            return original(output, *args, **kwargs)
        except Exception:
            self._mirror.catch_up()
            raise

    def _finished(self, original: Original, request: object, *args: object, **kwargs: object) -> object:
        result = original(request, *args, **kwargs)
        if isinstance(name := getattr(request, "request_id", None), str):
            self._computed.pop(name, None)
            self._within.discard(name)
            self._counted.pop(name, None)
            self._mirror.ended(name)
        return result

    # --- what a lookup has counted ------------------------------------------------------------------------------------------

    def _looked_up(self, original: Original, *args: object, **kwargs: object) -> object:
        request, computed = given(args, kwargs, "request", "num_computed_tokens")
        if isinstance(name := getattr(request, "request_id", None), str) and isinstance(computed, int):
            self._computed[name] = computed
            found = original(*args, **kwargs)
            self._within.discard(name)
            if isinstance(found, tuple) and isinstance(tokens := found[0], int) and tokens > 0:
                self._mirror.minded(lambda: self._ask_promise(name, request, computed, computed + tokens))
                self._mirror.notify()
                if not found[1]:
                    self._within.add(name)
            return found
        return original(*args, **kwargs)

    def _ask_promise(self, name: str, request: object, start: int, end: int) -> None:
        """Check that the host has what a lookup has just promised."""
        if lacks := self._lacks(name, request, start, end):
            what = f"a lookup promises tokens {start} to {end} of {name}, but the host {lacks}"
            self._mirror.story.violate("I6", what, request=name)

    def _lacks(self, name: str, request: object, start: int, end: int) -> str:
        """What the host lacks of these tokens, which a lookup has just promised; empty if it has all that a load reads."""
        raise NotImplementedError

    def _let_in(self, original: Original, *args: object, **kwargs: object) -> object:
        """A request was allocated blocks for this many tokens to be loaded: these blocks have no content yet."""
        request, blocks, tokens = given(args, kwargs, "request", "blocks", "num_external_tokens")
        name, tables = getattr(request, "request_id", None), getattr(blocks, "blocks", None)
        if isinstance(name, str) and isinstance(tables, Sequence) and isinstance(tokens, int) and tokens:
            self._count_on(name, request, tables, tokens)
        return original(*args, **kwargs)

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
