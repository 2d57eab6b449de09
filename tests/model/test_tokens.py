"""With a real model, the tokens are those of an engine without a connector, whatever the connector has to go through.

Method: float32, greedy, ids as prompts; conversations whose turns share their beginnings, on a device so small that what comes
again comes from the host. What every case is there for is counted, and must have happened: a case in which nothing was loaded,
displaced or preempted would pass with any connector. `test_controls` shows that wrong bytes give other tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import AbstractContextManager
from random import Random

import pytest
from attrs import evolve

from tests.model.connectors import LAYERS_UNHEARD, Copies
from tests.model.engine import Answers, Engine, Setting, engine
from tests.model.lacking import LATENTS
from tests.model.workload import Wave, conversations, long_answers
from tests.sparing import once

MODELS = ("full", "windows", "both", "states")
SEED = 1
DEVICE = {
    **dict.fromkeys(("full", "both", "states", "repeats", "mtp", "one_head", "experts"), 26),
    "windows": 16,
    "mla": 60,
    **dict.fromkeys(("gdn", "kda"), 12),
}
"""Blocks of a device that two requests fill, by model: behind a window they take fewer."""
LARGER: Mapping[str, Mapping[str, object]] = {
    "states": {"max_tokens": 1024, "block": None},
    "gdn": {"max_tokens": 1024, "block": None, "dtype": "bfloat16", "max_running": 1},
    "kda": {"max_tokens": 1024, "block": None},
    "mla": {"max_tokens": 512, "block": LATENTS},
}
"""What an engine has otherwise, by model."""
TIGHT = {"full": 40, "windows": 16, "both": 40, "states": 40}
"""Blocks of a host that has to displace what it has."""
BLOCK_BYTES = {"one_head": 4 * 2 * 32 * 32 * 4, "mla": 4 * 16 * (512 + 64) * 4}
"""Of a block on one rank: four layers, with a key and a value of each token, or its latent; 32 or 16 tokens."""
SLOW = Copies(shortest=0, longest=3, seed=SEED)
"""Copies that land up to three steps late."""


@functools.cache
def waves(model: str, long: bool = False) -> tuple[Wave, ...]:
    """What an engine with this model is asked, conversations or *long* answers; longer texts where blocks are larger."""
    print(f"seed {SEED}")
    if long:
        return long_answers(SEED, prompt={"windows": 40, "states": 200}.get(model, 70))
    if model in ("gdn", "kda", "mla"):  # a prompt is two blocks of 128 tokens, where there are states
        return conversations(SEED, families=3, turns=2, first=300, more=140)
    return conversations(SEED, first=520, more=130) if model == "states" else conversations(SEED)


def engine_with(model: str, **knobs: object) -> AbstractContextManager[Engine]:
    """An engine with this model on the small device, unless the knobs of `Setting` say otherwise."""
    return engine(Setting(model, **{"blocks": DEVICE[model], **LARGER.get(model, {}), **knobs}))  # type: ignore[arg-type]


def reference(model: str, long: bool = False) -> Answers:
    """What an engine says that has no connector and forgets every prompt. While another engine lives, none can be made.

    Of `gdn`, whose kernel takes no other numbers than bfloat16, tokens depend on where passes begin. So its reference has
    vLLM's own prefix cache and a device with room for everything, and all of its engines answer one request at a time.
    """
    return _reference(model, long)


@functools.cache
def _reference(model: str, long: bool) -> Answers:
    def answered() -> Answers:
        with engine_with(model, blocks=512, prefix_caching=model == "gdn") as running:
            return running.answer(waves(model, long))

    return once(f"reference-{model}-{long}", answered)


def differing(answers: Answers, expected: Answers) -> list[str]:
    """Requests that were answered otherwise than without a connector."""
    return sorted(name for name, said in answers.items() if said != expected[name.removesuffix("-once-more")])


def answered_in_spite_of_clients(running: Engine, model: str) -> tuple[Answers, list[str]]:
    """Conversations in which every second client goes away while its request loads; those are asked for once more at the end.

    All answers, and the requests that were given up.
    """
    rng = Random(f"{SEED}/aborts")
    given_up = list[str]()

    def give_up(running: Engine) -> None:
        for name in running.loading:
            if name not in given_up and not name.endswith("-once-more") and rng.random() < 0.5:
                given_up.append(name)
                running.abort(name)

    answers = running.answer(waves(model), give_up)
    asked = {ask.name: ask for wave in waves(model) for ask in wave}
    return answers | running.answer([tuple(asked[name].again("once-more") for name in given_up)]), given_up


def right(running: Engine, answers: Answers, expected: Answers) -> None:
    """All requests were answered, with the right tokens; no rule of the ledger is broken; something came from the host."""
    assert set(answers) == set(expected)
    assert differing(answers, expected) == []
    running.check()
    assert running.seen.loaded > 0, running.seen


def right_from_the_device(model: str) -> None:
    """Without a connector, what the device has found again changes no token."""
    with engine_with(model, blocks=512) as running:
        answers = running.answer(waves(model))

    assert answers == reference(model)
    assert running.seen.hit_on_device > 0


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("model", MODELS)
def test_a_prefix_cache_alone_changes_no_token(model: str) -> None:
    right_from_the_device(model)


@pytest.mark.sampled
@pytest.mark.parametrize("tight", [False, True], ids=["roomy", "tight"])
@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize("mode", ["eager", "lazy"])
@pytest.mark.parametrize("model", MODELS)
def test_tokens_are_those_of_no_connector(model: str, mode: str, chunk: int, tight: bool) -> None:
    ours = {"host_blocks": TIGHT[model] if tight else 256, "mode": mode, "blocks_per_chunk": chunk}
    with engine_with(model, ours=ours, copies=SLOW) as running:
        answers = running.answer(waves(model))

    right(running, answers, reference(model))
    assert (running.seen.evicted > 0) is tight, running.seen


@pytest.mark.sampled
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("model", MODELS)
def test_tokens_stay_when_requests_are_preempted(model: str, asynchronous: bool) -> None:
    knobs = {"max_running": 8, "asynchronous": asynchronous}
    with engine_with(model, ours={"host_blocks": 256}, copies=SLOW, **knobs) as running:
        answers = running.answer(waves(model, long=True))

    right(running, answers, reference(model, long=True))
    assert running.seen.preemptions > 0, running.seen


@pytest.mark.sampled(every=2, first=1)
@pytest.mark.parametrize("model", MODELS)
def test_tokens_stay_under_asynchronous_scheduling(model: str) -> None:
    deepest = 0

    def look(running: Engine) -> None:
        nonlocal deepest
        deepest = max(deepest, running.steps_out)

    ours = {"host_blocks": 256}
    with engine_with(model, ours=ours, copies=SLOW, asynchronous=True) as running:
        answers = running.answer(waves(model), look)

    right(running, answers, reference(model))
    assert deepest > 0, "no step was planned ahead of another one's end"


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("model", MODELS)
def test_tokens_stay_when_requests_are_given_up_while_they_load(model: str) -> None:
    with engine_with(model, ours={"host_blocks": 256}, copies=Copies(2, 5, seed=SEED)) as running:
        answers, given_up = answered_in_spite_of_clients(running, model)

    assert given_up, "no request was given up while it loaded"
    assert set(reference(model)) == {name.removesuffix("-once-more") for name in answers}
    assert differing(answers, reference(model)) == []
    running.check()


@pytest.mark.sampled(every=2, first=1)
@pytest.mark.parametrize("model", MODELS)
def test_tokens_stay_when_loads_fail(model: str) -> None:
    copies = Copies(shortest=0, longest=3, lost_loads=0.4, seed=SEED)
    with engine_with(model, ours={"host_blocks": 256}, copies=copies) as running:
        answers = running.answer(waves(model))

    right(running, answers, reference(model))
    assert running.seen.lost_loads > 0, running.seen


@pytest.mark.parametrize("model", ["full", "both"])
@pytest.mark.parametrize("heard", [True, False], ids=["heard", "unheard"])
def test_tokens_stay_where_each_layer_waits_for_its_part(model: str, heard: bool) -> None:
    """vLLM asks before each layer of a real model reads; if nobody heard it, tokens would be others."""
    ours = {"host_blocks": 256, "sync_load_budget_bytes": "1GiB", "sync_load_parts": 3}
    copies = SLOW if heard else evolve(SLOW, fault=LAYERS_UNHEARD)
    with engine_with(model, ours=ours, copies=copies, failed_loads="fail") as running:
        answers = running.answer(waves(model))

    if heard:
        right(running, answers, reference(model))
    assert bool(differing(answers, reference(model))) is not heard
    assert running.side.ledger.counts.flushes["within the step"] > 0


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("model", ["full", "both"])
def test_tokens_stay_with_two_ranks(model: str) -> None:
    with engine_with(model, ours={"host_blocks": 256}, copies=SLOW, ranks=2) as running:
        answers = running.answer(waves(model))

    right(running, answers, reference(model))
    assert running.side.shape.num_workers == 2


@pytest.mark.slow
def test_tokens_stay_with_experts() -> None:
    """Which experts compute a token follows from what is in the cache before it, as its keys and values do."""
    with engine_with("experts", ours={"host_blocks": 256}, copies=SLOW) as running:
        answers = running.answer(waves("experts"))

    right(running, answers, reference("experts"))


@pytest.mark.slow
def test_two_ranks_that_hold_the_same_keep_it_once() -> None:
    """Two processes: in bytes that would hold 64 blocks of each there are 128 of both, and all answers are right."""
    with engine_with("one_head", ours={"host_bytes": 128 * BLOCK_BYTES["one_head"]}, copies=SLOW, ranks=2) as running:
        answers = running.answer(waves("one_head"))

    right(running, answers, reference("one_head"))
    assert running.side.shape.num_slots == 128


def test_two_ranks_keep_latents_once() -> None:
    """The same for MLA, in blocks of 16 tokens; the tokens are those of one rank."""
    with engine_with("mla", ours={"host_bytes": 128 * BLOCK_BYTES["mla"]}, copies=SLOW, ranks=2) as running:
        answers = running.answer(waves("mla"))

    right(running, answers, reference("mla"))
    assert running.side.shape.num_slots == 128
    assert running.seen.stored > 64  # more than would fit if each rank kept its own
