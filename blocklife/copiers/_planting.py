"""Faults that are planted on purpose: their rates, as named shares, and which thing has which of them.

*Theory.* Whether a thing has a fault is drawn from the seed, the fault and the thing, and from nothing else. So threads, timing
and other things change nothing: the same things have the same faults in every run, a run that is made shorter leaves the others
theirs, and so does raising one rate.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from typing import ClassVar, Self

import attrs

from blocklife.errors import MisuseError


@attrs.frozen(str=False)
class PlantedRates(ABC):
    """Base of records whose fields are all shares from 0 to 1, made by `share`; as a text ``fail=0.01,late=0.02``."""

    KIND: ClassVar[str]
    """What one of them is called in messages."""
    WHOLE: ClassVar[str]
    """What they are shares of."""

    @classmethod
    @abstractmethod
    def default(cls) -> Self:
        """Moderate rates."""

    @classmethod
    def parse(cls, text: str, *, prefix: str = "") -> Self:
        """Parse ``fail=0.01,late=0.02``; omitted faults are 0; ``default`` means `default`. Every name begins with *prefix*.

        Refuses: MisuseError for an unknown or repeated name, and for anything but a number from 0 to 1.
        """
        if text.strip() == "default":
            return cls.default()
        known = [prefix + rate.name for rate in attrs.fields(cls)]
        rates: dict[str, float] = {}
        for part in text.split(","):
            name, _, number = (piece.strip() for piece in part.partition("="))
            if name not in known or name.removeprefix(prefix) in rates:
                trouble = "named twice" if name in known else "unknown"
                raise MisuseError(f"{cls.KIND} {name!r}: {trouble} (write {'=0.01,'.join(known)}=0.01, each at most once)")
            try:
                rates[name.removeprefix(prefix)] = float(number)
            except ValueError:
                raise MisuseError(f"{cls.KIND} {name}: {number!r} is not a number (give 0 to 1)") from None
        return cls(**rates)

    def __str__(self) -> str:
        return ",".join(f"{name}={rate!r}" for name, rate in attrs.asdict(self).items())


def _check_share(rates: PlantedRates, attribute: attrs.Attribute[float], value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise MisuseError(f"{rates.KIND} {attribute.name}: {value} is not a share of the {rates.WHOLE} (give 0 to 1)")


def share() -> float:
    """A field of `PlantedRates`; 0 where it is not given."""
    return attrs.field(default=0.0, validator=_check_share)


class Planter:
    """Says which faults a thing has. A thing is named by numbers, texts and bytes."""

    def __init__(self, rates: PlantedRates, seed: int) -> None:
        self.rates = rates
        self._seed = seed

    def has(self, fault: str, *thing: object) -> bool:
        """Whether the thing has the fault with the name of that rate."""
        share: float = getattr(self.rates, fault)
        return self.draw(fault, *thing) < share * (1 << 64)

    def draw(self, *what: object) -> int:
        """64 random bits that belong to a thing."""
        return int.from_bytes(hashlib.blake2b(repr((self._seed, *what)).encode(), digest_size=8).digest(), "little")
