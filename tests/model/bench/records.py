"""What is asked of every variant, what was measured, and when a row counts. It goes to JSON and comes back.

Rules of this file:

* A time counts only if it is known that the tokens are right and that the prefix came from where the row says.
* Nothing here knows vLLM.
"""

from __future__ import annotations

import enum
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

from attrs import asdict, field, frozen, validators

from blocklife.errors import MisuseError

BLOCK = 32
"""Tokens of a block."""
APART = 3
"""Requests from one use of a system prompt to the next at least: a small device would keep some of what comes sooner."""


class Source(enum.Enum):
    """Where a prefix comes from."""

    NOWHERE = "computed"
    HOST = "host"
    DEVICE = "device"


@frozen
class Variant:
    """A way to serve the same conversations."""

    name: str
    source: Source
    what: str


COMPUTED = Variant("computed", Source.NOWHERE, "computed, no prefix cache")
VARIANTS: Mapping[str, Variant] = {
    each.name: each
    for each in (
        COMPUTED,
        Variant("blocklife", Source.HOST, "host memory, BlocklifeConnector"),
        Variant("offloading", Source.HOST, "host memory, vLLM's OffloadingConnector"),
        Variant("device", Source.DEVICE, "device, vLLM's prefix cache"),
    )
}


@frozen(kw_only=True)
class Wish:
    """What is asked, and of which model."""

    model: str = "big"
    prefix: int = 2000
    """Tokens of each system prompt."""
    sessions: int = field(default=6, validator=validators.ge(APART))
    turns: int = 2
    words: int = 80
    """Tokens that each turn adds."""
    answer: int = 16
    """Tokens of each answer."""
    rounds: int = 5
    seed: int = 0
    threads: int = 1
    small: int | None = None
    """Blocks of the device whose hits are to come from the host; None: as many as the longest request needs, and two."""

    @property
    def prompts(self) -> int:
        """System prompts: three, and one more for each session that makes no three with others."""
        return APART + self.sessions % APART

    def prompt_of(self, session: int) -> int:
        """The system prompt of a session; sessions ask one after another, and then again."""
        whole = self.sessions // APART * APART
        return session % APART if session < whole else APART + session - whole

    @property
    def longest(self) -> int:
        """Tokens of the longest request, with its answer."""
        return self.prefix + self.turns * self.words + self.answer

    @property
    def shared(self) -> int:
        """Tokens that every measured request must find: the whole blocks of its system prompt."""
        return self.prefix // BLOCK * BLOCK

    @property
    def small_blocks(self) -> int:
        """Blocks of the small device: for one request, the null block, and one more."""
        return self.small or -(-self.longest // BLOCK) + 2

    @property
    def all_blocks(self) -> int:
        """Blocks that hold everything of a whole run."""
        own = -(-(self.turns * self.words + self.answer) // BLOCK) + 1
        return self.prompts * -(-self.prefix // BLOCK) + (self.rounds + 1) * self.sessions * own + self.small_blocks


@frozen
class Said:
    """One request, answered."""

    first_s: float
    """From when it was asked until its first token."""
    took_s: float
    """Until its last."""
    on_device: int
    """Tokens of its prompt that the device had, as vLLM's scheduler counts them."""
    on_host: int
    """Tokens of its prompt that a connector brought."""
    tokens: int
    answer: str
    """What tells one answer from another."""


@frozen
class Round:
    """All requests of a round, one after another."""

    took_s: float
    said: tuple[Said, ...]

    @property
    def tokens_per_s(self) -> float:
        """Answered tokens, over all of the round."""
        return sum(each.tokens for each in self.said) / self.took_s

    @classmethod
    def read(cls, told: object) -> Self:
        """From JSON."""
        match told:
            case {"took_s": float(took_s), "said": [dict(), *_] as said}:
                return cls(took_s, tuple(Said(**each) for each in said))
        raise MisuseError(f"this is no round: {str(told)[:80]}")


@frozen
class Spread:
    """A median, and what lies farthest from it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Of these."""
        return cls(statistics.median(values), min(values), max(values))


@frozen
class Row:
    """What a variant has come to."""

    variant: Variant
    first_s: Spread
    """Of all requests of all rounds."""
    tokens_per_s: Spread
    """Of all rounds."""
    sooner: float
    """How many times as soon the first token comes as where it is computed, by the medians."""
    faster: float
    """How many times as many tokens come a second, by the medians."""
    on_device: int
    on_host: int
    prompts: int
    """Tokens of all prompts."""
    troubles: tuple[str, ...]
    """Why the row does not count; empty if it does."""


@frozen
class Report:
    """One run."""

    facts: Mapping[str, str]
    """The machine, the versions, the day."""
    wish: Wish
    rounds: Mapping[str, tuple[Round, ...]] = field()
    """By the name of the variant; the one that computes is always there."""

    @rounds.validator
    def _comparable(self, _: object, value: Mapping[str, tuple[Round, ...]]) -> None:
        if COMPUTED.name not in value or not set(value) <= set(VARIANTS):
            raise MisuseError(f"a report needs {COMPUTED.name}, and knows {', '.join(VARIANTS)}, not {', '.join(value)}")
        if not all(rounds and all(each.said for each in rounds) for rounds in value.values()):
            raise MisuseError("a report needs a round of each variant, with a request in it")

    def rows(self) -> Iterator[Row]:
        """Each variant, in the order of `VARIANTS`."""
        base = self.rounds[COMPUTED.name]
        base_first, base_rate = _first(base).median, _rate(base).median
        for variant in VARIANTS.values():
            if variant.name not in self.rounds:
                continue
            rounds = self.rounds[variant.name]
            first, rate = _first(rounds), _rate(rounds)
            yield Row(
                variant,
                first,
                rate,
                sooner=base_first / first.median,
                faster=rate.median / base_rate,
                on_device=sum(each.on_device for each in _all(rounds)),
                on_host=sum(each.on_host for each in _all(rounds)),
                prompts=self._prompts(),
                troubles=tuple(self._troubles(variant, rounds)),
            )

    def _prompts(self) -> int:
        """Tokens of all prompts of all rounds."""
        turns = range(1, self.wish.turns + 1)
        return self.wish.rounds * self.wish.sessions * sum(self.wish.prefix + turn * self.wish.words for turn in turns)

    def _troubles(self, variant: Variant, rounds: Sequence[Round]) -> Iterator[str]:
        said, expected = _all(rounds), _all(self.rounds[COMPUTED.name])
        if len(said) != len(expected):
            yield f"{len(said)} requests were answered, not {len(expected)}"
            return
        others = sum(one.answer != other.answer for one, other in zip(said, expected, strict=True))
        if others:
            yield f"{others} of {len(said)} requests got other tokens than computed"
        found = {Source.DEVICE: [each.on_device for each in said], Source.HOST: [each.on_host for each in said]}
        for source, hits in found.items():
            if source is variant.source:
                short = sum(tokens < self.wish.shared for tokens in hits)
                if short:
                    yield f"{short} of {len(said)} requests found less than {self.wish.shared} tokens on the {source.value}"
            elif any(hits):
                yield f"{sum(map(bool, hits))} of {len(said)} requests found tokens on the {source.value}"


def _all(rounds: Sequence[Round]) -> list[Said]:
    return [said for each in rounds for said in each.said]


def _first(rounds: Sequence[Round]) -> Spread:
    return Spread.of([said.first_s for said in _all(rounds)])


def _rate(rounds: Sequence[Round]) -> Spread:
    return Spread.of([each.tokens_per_s for each in rounds])


def to_json(report: Report) -> str:
    """Every request of every round, and what they come to; one request a line."""
    rows = [
        {**asdict(row), "variant": row.variant.name, "source": row.variant.source.value, "troubles": list(row.troubles)}
        for row in report.rows()
    ]
    told = {
        "facts": dict(report.facts),
        "wish": asdict(report.wish),
        "rows": rows,
    }
    rounds = ",\n".join(
        f'  "{name}": [\n' + ",\n".join(_round(each) for each in rounds) + "\n  ]" for name, rounds in report.rounds.items()
    )
    return json.dumps(told, indent=1).removesuffix("\n}") + f',\n "rounds": {{\n{rounds}\n }}\n}}\n'


def _round(each: Round) -> str:
    said = ",\n".join(f"    {json.dumps(asdict(one))}" for one in each.said)
    return f'   {{"took_s": {json.dumps(each.took_s)}, "said": [\n{said}]}}'


def from_json(text: str) -> Report:
    """A report that `to_json` wrote; rows are worked out again. Refuses what is none."""
    try:
        told = json.loads(text)
        rounds = {name: tuple(map(Round.read, each)) for name, each in told["rounds"].items()}
        return Report(told["facts"], Wish(**told["wish"]), rounds)
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise MisuseError(f"this is no report of conversations ({type(problem).__name__}: {problem})") from problem
