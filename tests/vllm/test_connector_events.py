"""Events that describe themselves, beyond what vLLM's own tests ask of them.

Goal: a router that hears nothing but these events knows what the host tier has, and can compute every hash again. Method: rigs
with vLLM's real scheduler, a listener that counts, and random traffic.
"""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from vllm.lora.request import LoRARequest
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import hash_block_tokens, maybe_convert_block_hash
from vllm.v1.request import Request

from blocklife.ledger import Direction
from blocklife.offload import FullAttention
from tests.vllm.connector_rig import ConnectorRig, configured, walk
from tests.vllm.connector_worlds import CROWDED, FULL, MODELS, ROOMY, STATE, prompt
from tests.vllm.engine import MINOR
from tests.vllm.listeners import DESCRIBING, Listener, listen, send_events
from tests.vllm.worlds import GroupSpec, Lag, WorldSpec


def describing(spec: WorldSpec = ROOMY, seed: int = 0, *, fails: float = 0.0, **extra: Any) -> tuple[ConnectorRig, Listener]:
    """A rig whose events describe themselves, and who hears them."""
    chances = {Direction.LOAD: fails, Direction.STORE: fails}
    rig = ConnectorRig(evolve(spec, extra_config={**spec.extra_config, **DESCRIBING, **extra}), seed, fails=chances)
    return rig, listen(rig)


@pytest.fixture(autouse=True)
def events(monkeypatch: pytest.MonkeyPatch) -> None:
    """All engines send events."""
    send_events(monkeypatch)


def requested(rig: ConnectorRig, tokens: list[int], answer: int = 1, **more: Any) -> Request:
    """A request with a salt, or an adapter."""
    name = rig.add(tokens, answer)
    own = rig.scheduler.requests[name]
    made = Request(name, tokens, own.sampling_params, None, block_hasher=rig.engine.hasher, **more)
    rig.abort(name)
    rig.running.add(name)
    rig.scheduler.add_request(made)
    return made


@pytest.mark.parametrize("chunk", [1, 3])
def test_router_can_compute_every_hash_again(chunk: int) -> None:
    """From the parent, the tokens and the salt that an event names, as vLLM computes them."""
    rig, heard = describing(evolve(ROOMY, blocks_per_chunk=chunk))
    requested(rig, prompt(25), 4, cache_salt="pepper")
    rig.drain()
    parents: dict[object, bytes | None] = {None: None}
    salted = ("cache_salt", "pepper") if MINOR >= 31 else "pepper"  # hashes have tags from 0.31 on, events never
    for event in sorted(heard.described, key=lambda event: event.token_ids[0]):
        parent, keys = parents[event.parent_block_hash], event.extra_keys or [None] * chunk
        assert keys == [("pepper",) if event.parent_block_hash is None and not at else None for at in range(chunk)]
        for at, named in enumerate(event.block_hashes):
            block = event.token_ids[at * event.block_size : (at + 1) * event.block_size]
            parent = hash_block_tokens(sha256, parent, block, (salted,) if keys[at] else None)
            assert maybe_convert_block_hash(parent) == named
        parents[event.block_hashes[-1]] = parent

    assert len(heard.described) == len(heard.stored) == 7 // chunk
    assert {event.kv_cache_spec_kind for event in heard.stored} == {"full_attention"}


def test_adapter_of_a_request_is_named() -> None:
    """Its number, its name, and the name once more in the extra keys of each block, as vLLM's own events have it."""
    rig, heard = describing()
    requested(rig, prompt(9), lora_request=LoRARequest("french", 7, "/adapters/french"))
    rig.drain()

    assert [(event.lora_id, event.lora_name, event.extra_keys) for event in heard.stored] == [(7, "french", [("french",)])] * 2


def test_blocks_of_two_sizes_have_hashes_of_their_own_size() -> None:
    """A block of eight tokens has one hash, that of its end; its parent is the hash before it."""
    rig, heard = describing(evolve(ROOMY, groups=(FULL, GroupSpec("full", 8))))
    name = rig.add(prompt(17), 1)
    hashes = [maybe_convert_block_hash(each) for each in rig.scheduler.requests[name].block_hashes]
    rig.drain()
    told = {(event.group_idx, event.block_hashes[0]): event for event in heard.described}

    assert told.keys() == {*((0, each) for each in hashes), (1, hashes[1]), (1, hashes[3])}
    second = told[1, hashes[3]]
    assert (second.parent_block_hash, second.block_size, second.token_ids) == (hashes[1], 8, prompt(17)[8:16])


def test_windows_and_states_are_told_by_their_key_and_kind() -> None:
    """They say nothing about the prefix before them, so no router must take them for it."""
    rig, heard = describing(evolve(ROOMY, groups=(FULL, GroupSpec("swa", window=8), STATE)))
    rig.add(prompt(17), 1)
    rig.drain()
    kinds = {event.group_idx: (event.kv_cache_spec_kind, event.kv_cache_spec_sliding_window) for event in heard.stored}

    assert kinds == {0: ("full_attention", None), 1: ("sliding_window", 8), 2: ("mamba", None)}
    assert {event.group_idx for event in heard.described} == {0}
    assert {event.group_idx for event in heard.placeholders} == {1, 2}
    assert {event.block_size for event in heard.placeholders} == {0}


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_content_is_described_when_its_request_is_long_over(mode: str) -> None:
    """Copies take their time, and lazy ones begin when others need the blocks."""
    rig, heard = describing(evolve(ROOMY, num_gpu_blocks=24, lag=Lag(5, 9)), mode=mode, lazy_blocks=4)
    for start in range(100, 1300, 100):
        rig.add(prompt(21, start), 1)
        rig.drain()

    assert len(heard.stored) > 30
    assert not heard.placeholders
    assert rig.side.known.describer is not None
    assert not rig.side.known.describer._by_request


def test_what_is_not_stored_is_not_kept() -> None:
    """Nothing of an answer where only prompts are stored; what never came to be stored is bounded."""
    rig, heard = describing(evolve(ROOMY, num_gpu_blocks=20, host_blocks=96), prompt_only=True)
    describer = rig.side.known.describer
    assert describer is not None
    rig.add(prompt(9), 20)
    rig.drain()
    assert len(heard.stored) == len(describer._told) == 2
    assert not describer._left
    for start in range(1000, 9000, 100):
        rig.wants_no_prefix(rig.add(prompt(17), 1))
        rig.add(prompt(9, start), 1)
        rig.drain()

    assert len(describer._left) <= 20
    assert len(describer._told) <= 96


@pytest.mark.parametrize(("on", "describes"), [(True, False), (False, True)], ids=["events only", "no events"])
def test_nothing_is_kept_where_nobody_asked_for_it(monkeypatch: pytest.MonkeyPatch, on: bool, describes: bool) -> None:
    """Events without descriptions have the keys alone; without events there are none."""
    if not on:
        configured(monkeypatch, lambda config: setattr(config, "kv_events_config", None))
    rig = ConnectorRig(evolve(ROOMY, extra_config={"self_describing_kv_events": describes}))
    heard = listen(rig)
    rig.add(prompt(9), 1)
    rig.drain()

    assert rig.side.known.describer is None
    assert not heard.described
    assert sum(len(event.block_hashes) for event in heard.placeholders) == (2 if on else 0)
    assert {event.kv_cache_spec_kind for event in heard.stored} <= {None}
    assert {(event.block_size, event.group_idx) for event in heard.stored} <= {(0, 0)}


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("model", ["full", "full and window", "all", "blocks of two sizes"])
def test_router_knows_what_the_host_has_after_random_traffic(model: str, seed: int) -> None:
    """With failing copies, aborts, preemptions and resets, counting events gives the content of the tier."""
    chunk = 1 + seed % 2
    spec = evolve(CROWDED, groups=MODELS[model], async_scheduling=seed > 1, blocks_per_chunk=chunk, lag=Lag(0, 4))
    rig, heard = describing(spec, seed, fails=0.1)
    walk(rig, seed, 40)
    rig.scheduler.connector.take_events()
    slots, describer, full = rig.side.ledger.slots, rig.side.known.describer, set[int]()
    assert describer is not None
    full = {group for group, each in enumerate(rig.side.shape.geometry.groups) if isinstance(each, FullAttention)}
    there = [(slots.group(slot), slots.key(slot)) for slot in range(len(slots)) if slots.is_ready(slot)]

    assert {(group, hashes[-1]): count for (group, hashes), count in heard.readable().items()} == {
        (group, maybe_convert_block_hash(key)): 1 for group, key in there
    }
    assert {len(event.block_hashes) for event in heard.events if event.group_idx in full} == {chunk}
    assert {event.group_idx for event in heard.placeholders} == set(range(len(MODELS[model]))) - full
    assert describer._told.keys() == {(group, key) for group, key in there if group in full}
    assert not describer._bare | describer._filled.keys() | describer._by_request.keys() | describer._waiting.keys()
    for event in heard.described:
        assert len(event.token_ids) == chunk * event.block_size
