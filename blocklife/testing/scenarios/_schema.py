"""The words of a scenario file: all verbs, expectations and settings; what a scenario can test.

Rules of this file:

* Verbs are methods of the stage or of a driver; expectations are functions of `_judge`. Nothing is said of one here.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import attrs

from blocklife.ledger import Contract
from blocklife.offload import FullHit, LastStep, Mode
from blocklife.offload.replacement import BUILT_IN
from blocklife.testing.scenarios._driver import Driver, EngineSetup
from blocklife.testing.scenarios._judge import JUDGED
from blocklife.testing.scenarios._random_walk import WalkingStage
from blocklife.testing.scenarios._words import Expectation, Verb, verbs_of

_OF_STAGE = verbs_of(WalkingStage, Driver, "do_")
VERBS: Mapping[str, Verb] = {
    **_OF_STAGE,
    **{name: each for name, each in verbs_of(Driver, Driver).items() if name not in _OF_STAGE},
}
"""Every verb by name."""
EXPECTATIONS: Mapping[str, Expectation] = JUDGED
"""Every expectation by name."""

SETTINGS: Mapping[str, attrs.Attribute[object]] = {each.name: each for each in attrs.fields(EngineSetup)}
"""Every setting of a world, by name."""


def _names(policy: type[enum.Enum]) -> tuple[str, ...]:
    return tuple(each.name.lower() for each in policy)


CHOICES: Mapping[str, tuple[str, ...]] = {
    "contract": _names(Contract),
    "scheduling": ("sync", "async"),
    "pool": ("own", "engine"),
    "mode": _names(Mode),
    "replacement": BUILT_IN,
    "full_hit": _names(FullHit),
    "last_step": _names(LastStep),
    "events": ("own", "none", "shared"),
}
"""Settings with a fixed set of values."""

SETTING_DOCS: Mapping[str, str] = {
    "groups": "the model's groups, with commas: `full:BLOCK`, `swa:BLOCK:WINDOW`, `local:BLOCK:PART`, `mamba:BLOCK`, in tokens"
    "; `/1` behind them: prefixes in the host may end inside a block, at every token",
    "blocks_per_chunk": "blocks that are stored as one",
    "blocks": "device blocks that can be handed out, without the null block",
    "slots": "host slots, each for one chunk",
    "workers": "ranks; every copy runs on each of them",
    "jobs": "copies that can be outstanding at the same time",
    "contract": "what may happen to a block that a store reads: it is handed out and the step waits, or it is held back",
    "scheduling": "whether a plan settles before the next one is made, or after it",
    "pool": "who hands out blocks: the ledger, or an allocator of the engine (single blocks only)",
    "deadline": "steps until a copy is past its deadline",
    "mode": "when content is stored: when its chunk is full, or shortly before its block is evicted",
    "lazy_blocks": "in lazy mode: how many of the next free blocks are kept stored",
    "replacement": "the eviction policy of the host tier",
    "full_hit": "what happens to a hit on the whole prompt",
    "last_step": "what happens to copies in flight when the last request ends",
    "partial_chunks": "whether a chunk with a hole that a hit could need is stored",
    "prompt_only": "whether only tokens of prompts are stored",
    "step_tokens": "the most tokens that one request computes per step, by the engine's own policy; 0 for no limit",
    "max_load_failures": "failed loads after which a request computes",
    "load_within_tokens": "how many tokens the loads of one step may bring together before its forward pass; 0: every load "
    "takes two steps",
    "state_drafts": "how many drafts a step may compute beside Mamba groups, each with a block for the state after it; 0: none",
    "events": "how copies wait for forward passes: each by its own event, not at all, or all by one event "
    "(then all count as landed when one has)",
    "seed": "the seed for `walk`",
}
"""What each setting means."""


SAFETY, POLICY = "safety", "policy"
TESTS: Mapping[str, str] = {
    SAFETY: "whatever an engine decides, no copy or forward pass touches memory that is no longer its own, nothing is found "
    "that is not there, and no place is lost; an unmet expectation is unsafe",
    POLICY: "what is stored, found, waited for, retried or forgotten, and when; engines may decide otherwise, so an unmet "
    "expectation is another policy",
}
"""What a scenario can test."""

RULES = tuple(f"I{number}" for number in range(1, 16))
"""The invariants."""
MEMORY_RULES = frozenset(RULES) - {"I12", "I14"}
"""Those whose violation is unsafe; the others say that everything ends, and that nothing is copied twice."""
