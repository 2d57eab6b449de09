"""Speculative decoding with a real model: tokens are those of an engine that neither guesses nor has a connector.

Method: as in `test_tokens`, with guesses of three kinds: looked up in the text, by a drafter with a layer of its own (EAGLE),
and by one in the model's checkpoint (MTP). Wrong bytes in a drafter's layer change no token: the model verifies guesses. So
guesses are compared, too: they are those of an engine without a connector and without prefix caching. That guesses were right
and wrong, and that something came from the host, is counted. Controls stand at the end of this file.

No prompt is cut into several passes here. vLLM 0.33.0 gives the drafter the last token of the prompt for the one behind a cut,
so that guesses depend on where prompts are cut, also without any cache.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import pytest

from tests.model.connectors import DRAFTER_FAULTS, Copies
from tests.model.engine import Answers, Engine, Guesses
from tests.model.test_tokens import SEED, SLOW, differing, engine_with, waves
from tests.model.workload import Wave, pairs

GUESSERS: Mapping[str, Mapping[str, object]] = {
    "lookup": {"method": "custom_class", "model": "tests.model.lookup.Lookup", "num_speculative_tokens": 3},
    "eagle": {"method": "eagle", "model": "eagle", "num_speculative_tokens": 3},
    "mtp": {"method": "mtp", "num_speculative_tokens": 1},
}
CASES = (
    ("lookup", "repeats"),
    ("lookup", "both"),
    ("eagle", "repeats"),
    ("eagle", "windows"),
    ("eagle", "both"),
    ("mtp", "mtp"),
)
"""Who guesses, and for which model."""
UNCUT: Mapping[str, object] = {"batch_tokens": 1024}


def asked(model: str, kind: str) -> Sequence[Wave]:
    """What engines are asked: conversations, long answers or pairs."""
    return pairs(SEED) if kind == "pairs" else waves(model, kind == "long")


def sizes(model: str, kind: str) -> Mapping[str, object]:
    """A device that two requests fill, and eight long ones overfill; for two kinds of groups and a drafter it is larger."""
    if kind == "pairs":
        return {**UNCUT, "blocks": 12, "max_tokens": 128}
    return {**UNCUT, "blocks": 42 if model == "both" else 30, "max_running": 8 if kind == "long" else 2}


@functools.cache
def reference(guesser: str, model: str, kind: str) -> tuple[Answers, Guesses]:
    """What an engine says and guesses that has no connector and forgets every prompt."""
    guesses = GUESSERS.get(guesser)
    with engine_with(model, guesses=guesses, **{**sizes(model, kind), "blocks": 512, "prefix_caching": False}) as running:
        return running.answer(asked(model, kind)), running.guesses


def answer(
    guesser: str, model: str, kind: str = "conversations", *, copies: Copies = SLOW, chunk: int = 1
) -> tuple[Engine, Answers]:
    """What an engine with the connector says; the engine, which is over, tells what it has guessed."""
    ours = {"host_blocks": 256, "blocks_per_chunk": chunk}
    with engine_with(model, ours=ours, copies=copies, guesses=GUESSERS[guesser], **sizes(model, kind)) as running:
        answers = running.answer(asked(model, kind))
        running.check()
    return running, answers


def verified(guesses: Guesses, answers: Answers) -> tuple[int, int]:
    """How many guessed tokens were right, and how many wrong."""
    right = wrong = 0
    for (name, said), tokens in guesses.items():
        true = answers[name][said:]
        agreed = next((at for at, pair in enumerate(zip(tokens, true, strict=False)) if pair[0] != pair[1]), len(true))
        right += min(agreed, len(tokens))
        wrong += agreed < min(len(tokens), len(true))
    return right, wrong


def other_guesses(found: Guesses, expected: Guesses) -> list[tuple[str, int]]:
    """Where something else was guessed; most guesses must be for the same place of an answer."""
    both = found.keys() & expected.keys()
    assert len(both) > 0.75 * len(expected), (len(found), len(expected))
    return sorted(place for place in both if found[place] != expected[place])


def all_is_right(running: Engine, answers: Answers, guesser: str, model: str, kind: str) -> None:
    """Tokens and guesses are those of the engines without a connector; guesses were right and wrong; something was loaded."""
    plain, _ = reference("", model, kind)
    known, guesses = reference(guesser, model, kind)
    assert known == plain, "guesses alone change tokens"
    assert set(answers) == set(plain)
    assert differing(answers, plain) == []
    assert other_guesses(running.guesses, guesses) == []
    right, wrong = verified(running.guesses, answers)
    print(f"{guesser} for {model}: {right} tokens were guessed right, {wrong} guesses were wrong; {running.seen}")
    assert wrong > 0
    assert right > 0 or model != "repeats"
    assert running.seen.loaded > 0, running.seen


@pytest.mark.sampled(every=5)  # EAGLE is in the tests behind this one, too
@pytest.mark.parametrize(("guesser", "model"), CASES)
def test_tokens_and_guesses_are_those_of_no_connector(guesser: str, model: str) -> None:
    running, answers = answer(guesser, model)

    all_is_right(running, answers, guesser, model, "conversations")


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("guesser", "model"), [("eagle", "repeats"), ("eagle", "both")])
def test_tokens_and_guesses_stay_with_chunks_of_two_blocks(guesser: str, model: str) -> None:
    running, answers = answer(guesser, model, chunk=2)

    all_is_right(running, answers, guesser, model, "conversations")


@pytest.mark.sampled(every=3, first=1)
@pytest.mark.parametrize(("guesser", "model"), [("lookup", "repeats"), ("eagle", "repeats"), ("mtp", "mtp")])
def test_tokens_and_guesses_stay_when_requests_are_preempted(guesser: str, model: str) -> None:
    running, answers = answer(guesser, model, "long")

    all_is_right(running, answers, guesser, model, "long")
    assert running.seen.preemptions > 0, running.seen


def test_guesses_stay_where_texts_part_at_the_end_of_a_block() -> None:
    """What a drafter keeps of a block's last token depends on the token behind it: the block is not hit by another text."""
    running, answers = answer("eagle", "repeats", "pairs")

    all_is_right(running, answers, "eagle", "repeats", "pairs")


@pytest.mark.sampled(every=3, first=2)
@pytest.mark.parametrize(("guesser", "model"), [("lookup", "repeats"), ("eagle", "repeats"), ("mtp", "mtp")])
def test_wrong_bytes_give_other_tokens_in_spite_of_guesses(guesser: str, model: str) -> None:
    running, answers = answer(guesser, model, copies=Copies(fault="zeros", seed=SEED))

    assert running.seen.loaded > 0, running.seen
    assert differing(answers, reference("", model, "conversations")[0])


@pytest.mark.parametrize("fault", DRAFTER_FAULTS)
def test_what_is_wrong_with_a_drafter_gives_other_guesses(fault: str) -> None:
    running, answers = answer("eagle", "repeats", "pairs", copies=Copies(fault=fault, seed=SEED))
    known, guesses = reference("eagle", "repeats", "pairs")
    others = other_guesses(running.guesses, guesses)
    print(f"{fault}: {len(others)} of {len(guesses)} guesses are others")

    assert differing(answers, known) == []
    assert running.seen.loaded > 0, running.seen
    assert others
