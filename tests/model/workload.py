"""What is asked of an engine: conversations that share their beginnings, turn after turn.

All of a workload is ids, drawn from its seed; nothing in it depends on what a model says, so that every
engine is asked the same.
"""

from __future__ import annotations

from random import Random

from attrs import evolve, frozen

from tests.model.models import VOCABULARY


@frozen
class Ask:
    """One request."""

    name: str
    prompt: tuple[int, ...]
    max_tokens: int

    def again(self, word: str) -> Ask:
        """The same under another name."""
        return evolve(self, name=f"{self.name}-{word}")


Wave = tuple[Ask, ...]
"""Requests that come at once; the next wave comes when all of them are answered."""


def words(rng: Random, count: int) -> tuple[int, ...]:
    """So many words, none of them special."""
    return tuple(rng.randrange(3, VOCABULARY) for _ in range(count))


def conversations(
    seed: int, *, families: int = 6, turns: int = 3, first: int = 232, more: int = 40, answers: int = 10
) -> tuple[Wave, ...]:
    """In each turn every family asks what it has asked so far, and *more* words; and so twice, three families by turns.

    So a small device has displaced what comes again, and a small host has not yet. The first words, a third of *first*, are the
    same for every two families.
    """
    rng = Random(f"{seed}/conversations")
    common = [words(rng, first // 3) for _ in range((families + 1) // 2)]
    texts = [common[family // 2] + words(rng, first - first // 3) for family in range(families)]
    waves = list[Wave]()
    for turn in range(turns):
        order = rng.sample(range(families), families)
        asks = list[Ask]()
        for start in range(0, families, 3):
            for time in ("first", "second"):
                asks += [Ask(f"turn{turn}-family{each}-{time}", texts[each], answers) for each in order[start : start + 3]]
        waves.append(tuple(asks))
        texts = [text + words(rng, more) for text in texts]
    return tuple(waves)


def long_answers(seed: int, *, prompt: int, asks: int = 8, answers: int = 120) -> tuple[Wave, ...]:
    """Prompts so short that all are let in, and answers that outgrow a small device: some have to give way. All of it twice."""
    rng = Random(f"{seed}/long answers")
    once = tuple(Ask(f"long{number}", words(rng, prompt), answers) for number in range(asks))
    return once, tuple(ask.again("second") for ask in once)


def pairs(seed: int, *, count: int = 12, common: int = 64, more: int = 8, answers: int = 12) -> tuple[Wave, ...]:
    """Texts that part in twos behind *common* words, whole blocks; the second ones come when all first ones are over."""
    rng = Random(f"{seed}/pairs")
    begun = [words(rng, common) for _ in range(count)]
    return tuple(
        tuple(Ask(f"pair{number}-{time}", text + words(rng, more), answers) for number, text in enumerate(begun))
        for time in ("first", "second")
    )
