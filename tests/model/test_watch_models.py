"""With a real model, the watch over vLLM's own connector is silent where tokens are right, and speaks before they are wrong.

Method: `test_tokens`' engines and requests with OffloadingConnector of an unmodified vLLM, whose copies take steps
(`offload_spec`), under a strict watch. Then bugs are planted in vLLM, one at a time: each is first shown to give other tokens,
and then to be named while all that users have seen is right. Silence is told from deafness by what the watch has followed: as
many blocks as the links have moved.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from random import Random

import pytest
from attrs import field, frozen

from blocklife.engines.vllm import watch
from tests.behind.planted import Bed
from tests.model.engine import Answers, Engine
from tests.model.offload_spec import connector
from tests.model.test_tokens import (
    MODELS,
    SEED,
    answered_in_spite_of_clients,
    differing,
    engine_with,
    reference,
    waves,
)
from tests.vllm.planted import all_planted

STRICT = watch.Options(mode=watch.WatchMode.STRICT)
SLOT_BYTES = {"full": 1 << 16, "windows": 1 << 16, "both": 1 << 15, "states": 1 << 17}
ROOMY = 256
"""Slots of a host that never has to displace what it has."""
TIGHT = {"full": 32, "windows": 12, "both": 48, "states": 36}
FAST, SLOW = 80_000.0, 5_000.0
"""Bytes a step: a prompt is copied within some steps of an engine, or within some requests."""


def offloading(
    model: str, *, slots: int = ROOMY, store: float = FAST, load: float = FAST, long: bool = False, asynchronous: bool = False
) -> AbstractContextManager[Engine]:
    """An engine with vLLM's own connector. Long answers are offloaded too, and not only prompts."""
    other = connector(slots * SLOT_BYTES[model], (store, load), offload_prompt_only=not long)
    return engine_with(model, other=other, asynchronous=asynchronous, max_running=8 if long else 2)


@contextlib.contextmanager
def strictly_watched(running: Engine) -> Iterator[None]:
    """Both halves of the connector, for the time of the context; at its end the watch has followed all and said nothing."""
    scheduler, worker = watch.attach(running.scheduler, STRICT), watch.attach_worker(running.other_worker, STRICT)
    try:
        yield
        running.come_to_rest()
        assert (scheduler.violations, worker.violations, scheduler.lost) == ([], [], None)
        assert dict(scheduler.mirror.ledger.counts.moved) == {"LOAD": running.seen.loaded, "STORE": running.seen.stored}
        assert scheduler.steps == worker.steps > len(running.said)
    finally:
        watch.detach(running.scheduler)
        watch.detach(running.other_worker)


def right(running: Engine, answers: Answers, expected: Answers) -> None:
    """All requests were answered, with the right tokens, and something came from the host."""
    assert {name.removesuffix("-once-more") for name in answers} == set(expected)
    assert differing(answers, expected) == []
    assert running.seen.loaded > 0, running.seen


@pytest.mark.sampled(every=2, first=1)
@pytest.mark.parametrize("model", MODELS)
def test_the_watch_is_silent_over_conversations(model: str) -> None:
    with offloading(model, slots=TIGHT[model]) as running, strictly_watched(running):
        answers = running.answer(waves(model))

    right(running, answers, reference(model))
    assert running.seen.evicted > 0, running.seen


@pytest.mark.sampled
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("model", MODELS)
def test_the_watch_is_silent_when_requests_are_preempted(model: str, asynchronous: bool) -> None:
    with offloading(model, store=SLOW, long=True, asynchronous=asynchronous) as running, strictly_watched(running):
        answers = running.answer(waves(model, long=True))

    right(running, answers, reference(model, long=True))
    assert running.seen.preemptions > 0, running.seen
    assert running.seen.waited > 0, "no copy was out when a step had to wait for it"


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("model", MODELS)
def test_the_watch_is_silent_when_requests_are_given_up_while_they_load(model: str) -> None:
    with offloading(model) as running, strictly_watched(running):
        answers, given_up = answered_in_spite_of_clients(running, model)

    right(running, answers, reference(model))
    assert given_up, "no request was given up while it loaded"


@frozen
class Harm:
    """A planted bug, where it gives other tokens, and the rule by which the watch names it."""

    bug: str
    model: str
    rule: str
    knobs: Mapping[str, object] = field(factory=dict)

    @property
    def is_long(self) -> bool:
        """Whether it is asked for long answers."""
        return bool(self.knobs.get("long"))

    @contextlib.contextmanager
    def planted(self) -> Iterator[tuple[Engine, Bed]]:
        """An engine of a vLLM that has the bug."""
        with contextlib.ExitStack() as stack:
            bed = Bed(Random(f"{SEED}/{self.bug}"), stack)
            all_planted()[self.bug].plant(bed)
            yield stack.enter_context(offloading(self.model, **self.knobs)), bed  # type: ignore[arg-type]


def wrong(said: Answers, expected: Answers) -> list[str]:
    """Requests whose users have seen a token that an engine without a connector does not say there."""
    return sorted(name for name, tokens in said.items() if tokens != expected[name][: len(tokens)])


HARMS = (
    Harm("no_flush_at_reuse", "full", "I1", {"store": SLOW}),
    Harm("no_flush_at_preemption", "full", "I1", {"store": SLOW, "long": True}),
    Harm("no_fence_for_a_window", "windows", "I1", {"store": SLOW}),
    Harm("store_reported_before_it_lands", "full", "I6", {"store": SLOW}),
    Harm("load_to_neighbours", "both", "I7"),
    Harm("stale_entries_of_a_window", "both", "I8", {"store": SLOW / 2, "slots": 10, "long": True}),
    Harm("load_of_neighbours", "states", "I6"),
)
"""The host of the stale entries is so small that it refuses stores, which are made up for when the window has gone on."""


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: f"{harm.bug}-{harm.model}")
def test_a_planted_bug_is_named_before_an_answer_is_wrong(harm: Harm) -> None:
    asked, expected = waves(harm.model, harm.is_long), reference(harm.model, harm.is_long)
    with harm.planted() as (running, bed):
        running.answer(asked)
        print(f"without the watch {len(wrong(running.said, expected))} of {len(expected)} answers are wrong")
        assert bed.fired > 0
        assert wrong(running.said, expected), "the bug does no harm"

    with harm.planted() as (running, bed):
        scheduler, worker = watch.attach(running.scheduler, STRICT), watch.attach_worker(running.other_worker, STRICT)
        with pytest.raises(watch.WatchError):
            running.answer(asked)
        found = {violation.rule for violation in scheduler.violations + worker.violations}
        print(f"the watch names {found} when {len(running.said)} users have seen tokens")
        assert found == {harm.rule}
        assert running.said
        assert wrong(running.said, expected) == []
