"""In place of a model: a forward pass that writes what its tokens mean, and reads all of its context and compares it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from attrs import define

from tests.sglang.content import INDEX, KEY, ROW, VALUE, rows
from tests.sglang.copies import Copies
from tests.sglang.device import Event, Module
from tests.sglang.engine import Engine
from tests.sglang.states import ATTENDING, RECURRENT, StateTurn, begin, put_state, state_turns_of
from tests.texts import Chain

NEAR = 1
"""The layer that has a window, where one has."""


@define(eq=False)
class Turn:
    """What a step computes of one request: the tokens from *start* on, up to *stop*, in these slots of device memory."""

    name: str
    text: Chain
    start: int
    stop: int
    slots: torch.Tensor
    near: torch.Tensor
    """The slots of those in the memory of layers with windows, where there are any."""
    state: StateTurn | None = None
    """What becomes of its states, where there are any."""


def turns_of(engine: Engine, batch: Any, texts: Mapping[str, Chain]) -> list[Turn]:
    """The turns of a batch, from what the scheduler has put into its tables."""
    table, stops = engine.rows.req_to_token, batch.seq_lens_cpu.tolist()
    extends = batch.forward_mode.is_extend()
    found = []
    for at, (request, stop) in enumerate(zip(batch.reqs, stops, strict=True)):
        slots = table[int(batch.req_pool_indices[at]), :stop].clone().long()
        start = batch.prefix_lens[at] if extends else stop - 1
        near = engine.pool.full_to_swa_index_mapping[slots].long() if engine.spec.kind == "swa" else slots
        found.append(Turn(request.rid, texts[request.rid], start, stop, slots, near))
    if engine.spec.kind == "mamba":
        states = state_turns_of(engine, batch, [turn.start for turn in found], stops)
        for turn, state in zip(found, states, strict=True):
            turn.state = state
    return found


class Forward:
    """The forward passes of one rank."""

    def __init__(self, engine: Engine, copies: Copies) -> None:
        self.engine = engine
        self.copies = copies
        self.launched = 0
        self.resumed = 0
        """Requests that went on from a state that was another's, or their own of old."""
        self._reached: dict[str, int] = {}

    def launch(self, batch: Any, turns: list[Turn]) -> Event:
        """Put a pass on the forward stream. Returns the event of its end."""
        self.launched += 1
        engine = self.engine
        engine.worker.set_hicache_consumer(getattr(batch, "hicache_consumer_index", -1))
        with Module.stream(engine.forward_stream):
            if engine.spec.kind == "mamba":
                self._put_states(batch, turns)
            else:
                for layer in range(engine.spec.layers):
                    self._attend(turns, layer)
            done = Event()
            done.record()
        return done

    def _attend(self, turns: list[Turn], layer: int) -> None:
        # as an attention layer does: it waits for its part of the load
        kinds = self._kinds(layer)
        for turn in turns:
            self._put(turn, layer, kinds)

    def _kinds(self, layer: int) -> list[tuple[str, int, torch.Tensor]]:
        """What a layer keeps of each token, with the tensor of all tokens; in the order of SGLang's own calls for them."""
        pool = self.engine.pool
        if self.engine.spec.kind not in ("latents", "indexed"):
            return [("keys", KEY, pool.get_key_buffer(layer)), ("values", VALUE, pool.get_value_buffer(layer))]
        latents = pool.get_key_buffer(layer)
        found = [("latents", KEY, latents[..., :ROW]), ("ropes", VALUE, latents[..., ROW:])]
        if self.engine.spec.kind == "indexed":
            index = pool.get_index_k_with_scale_buffer(layer).view(-1, 132).view(torch.float32)
            found.append(("index keys", INDEX, index[:, None, :ROW]))
        return found

    def _put_states(self, batch: Any, turns: list[Turn]) -> None:
        engine = self.engine
        begin(engine, batch)
        for layer in range(max(ATTENDING, *RECURRENT) + 1):
            if layer == ATTENDING:
                self._attend(turns, layer)
                continue
            cache = engine.rows.mamba2_layer_cache(layer)
            for turn in turns:
                assert turn.state is not None
                put_state(self.copies, turn.name, turn.text, turn.start, turn.stop, turn.state, layer, cache)
        for turn in turns:
            if batch.forward_mode.is_extend() and turn.start and self._reached.get(turn.name) != turn.start:
                self.resumed += 1
            self._reached[turn.name] = turn.stop

    def _put(self, turn: Turn, layer: int, kinds: list[tuple[str, int, torch.Tensor]]) -> None:
        copies, spec = self.copies, self.engine.spec
        near = spec.kind == "swa" and layer == NEAR
        first = max(0, turn.start + 1 - spec.window) if near else 0
        slots = (turn.near if near else turn.slots)[first:]
        new, fresh = slots[turn.start - first :], turn.start - first
        numbers = turn.text.upto(turn.stop)[first:]
        wanted = [(what, buffer, rows(numbers, layer, kind, copies.rank)[:, None, :]) for what, kind, buffer in kinds]
        for _, buffer, want in wanted:
            copies.twins.of(buffer)[new] = want[fresh:]

        def run() -> None:
            for what, buffer, want in wanted:
                buffer[new] = want[fresh:]
                copies.witness.compare(copies.rank, turn.name, f"{what} of layer {layer}", buffer[slots], want)

        Module.current_stream().put(run)
