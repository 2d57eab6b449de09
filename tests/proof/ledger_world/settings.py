"""How large a small world of the ledger is, what can happen in it, and the numbers that stand for stages there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Self

from attrs import fields, frozen

from blocklife.errors import MisuseError
from blocklife.ledger import Contract
from blocklife.states import COUPLINGS, KEYED, MACHINES, Block, Slot, Trait, states_with

NONE, STORE, LOAD = 0, 0, 1
"""No job or block; and the two kinds of jobs."""
IDLE, HELD_BACK, RUNS, LANDED, FAILED = range(5)
"""The stages of a job on one worker: nothing, a deferred copy, a running copy, a report on its way."""


def _plain_verbs() -> Iterator[tuple[str, str]]:
    caused = {effect for row in COUPLINGS for effect in row.effects}
    for machine, states in (("block", states_with(Trait.HELD, Block) | KEYED), ("slot", states_with(Trait.KEYED, Slot))):
        for event in MACHINES[machine].events.values():
            if f"{machine}.{event.name}" not in caused and not any(row.target in states for row in event.rows):
                yield event.name, machine


PLAIN: Mapping[str, str] = MappingProxyType(dict(_plain_verbs()))
"""Events, with their machine, that the ledger has a verb for: no coupling causes them, and no request or job gets the place."""

VERBS = ("submit", "cancel", "abandon", "flush", "release", "drop", *PLAIN, "pin", "quiesce", "expire", "reset")
"""What an engine does only if a world enables it. It does everything else in every world."""


@frozen(kw_only=True)
class LedgerSettings:
    """The size of a world, and what can happen in it."""

    blocks: int = 1
    """Blocks that can be handed out, without the null block."""
    slots: int = 1
    requests: int = 1
    jobs: int = 1
    """Jobs that can be outstanding, or have reports on the way, at one time."""
    workers: int = 1
    plans: int = 1
    """Plans that can be outstanding at one time: 1 or 2."""
    contract: Contract = Contract.FENCE
    shared: bool = False
    """Whether all requests have the same content, so that they can share blocks and load what another stored."""
    loads: bool = False
    verbs: frozenset[str] = frozenset()
    """Which of `VERBS` the engine uses."""
    failures: int = 0
    """How many copies can fail."""
    losses: int = 0
    """How many reports can be lost."""
    repeats: int = 0
    """How many reports can come twice."""
    bulk: bool = False
    """Whether a plan can also be settled together with all reports not yet made."""
    below: bool = False
    """Whether there is a store below the slots: content goes there and comes back, and vanishes there at any time."""

    def __attrs_post_init__(self) -> None:
        for name, least, most in (
            *((name, 1, 6) for name in ("blocks", "slots", "requests", "jobs")),
            *(("workers", 1, 4), ("plans", 1, 2)),
            *((name, 0, 9) for name in ("failures", "losses", "repeats")),
        ):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise MisuseError(f"{name} must be a whole number from {least} to {most}, not {value!r}")
        if unknown := sorted(self.verbs - set(VERBS)):
            raise MisuseError(f"{unknown[0]!r} is not a verb that can be chosen (known: {', '.join(VERBS)})")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``blocks=2,slots=1,contract=hold,shared,loads,verbs=drop+evict``; a name of `WORLDS` may come first."""
        parts = [part.strip() for part in text.split(",") if part.strip()]
        found: dict[str, object] = {}
        if parts and parts[0] in WORLDS:
            named = WORLDS[parts.pop(0)]
            found = {each.name: getattr(named, each.name) for each in fields(cls)}
        kinds = {each.name: each.type for each in fields(cls)}
        found |= dict(_read(part, kinds) for part in parts)
        return cls(**found)  # type: ignore[arg-type]  # `_read` gives each part the type of its field

    def __str__(self) -> str:
        """The text that `parse` reads."""
        parts = []
        for each in fields(type(self)):
            value = getattr(self, each.name)
            if isinstance(value, bool):
                value = "yes" if value else "no"
            elif isinstance(value, Contract):
                value = value.name.lower()
            elif isinstance(value, frozenset):
                value = "+".join(sorted(value))
            parts.append(f"{each.name}={value}")
        return ",".join(parts)


def _read(part: str, kinds: Mapping[str, object]) -> tuple[str, object]:
    """Read one part of a world's text; *kinds* are the types of its parts."""
    name, _, value = part.partition("=")
    flag = kinds.get(name) in (bool, "bool")
    if name not in kinds:
        raise MisuseError(f"{name!r} is not a part of a world (known: {', '.join((*WORLDS, *kinds))})")
    if name == "contract" and value.upper() in Contract.__members__:
        return name, Contract[value.upper()]
    if name == "verbs":
        return name, frozenset(VERBS if value == "all" else filter(None, value.split("+")))
    if flag and value in ("", "yes", "no"):
        return name, value != "no"
    if name != "contract" and not flag and value.isdecimal():
        return name, int(value)
    raise MisuseError(f"{part!r} cannot be read (write blocks=2, contract=hold, loads, verbs=drop+evict)")


WORLDS: Mapping[str, LedgerSettings] = {
    "smallest": LedgerSettings(),
    "verbs": LedgerSettings(verbs=frozenset(VERBS) - {"quiesce", "expire"}),
    "loads": LedgerSettings(jobs=2, loads=True),
    "failures": LedgerSettings(jobs=2, loads=True, failures=1),
    "ahead": LedgerSettings(jobs=2, plans=2, loads=True),
    "deadlines": LedgerSettings(jobs=2, loads=True, losses=1, verbs=frozenset({"expire", "quiesce"})),
    "echoes": LedgerSettings(repeats=1, verbs=frozenset({"abandon", "cancel", "flush", "quiesce"})),
    "windows": LedgerSettings(jobs=2, loads=True, verbs=frozenset({"expire", "flush", "quiesce", "release"})),
    "workers": LedgerSettings(jobs=2, workers=2, loads=True, failures=1),
    "rivals": LedgerSettings(slots=2, requests=2, jobs=2, loads=True),
    "twins": LedgerSettings(blocks=2, requests=2, jobs=2, shared=True),
}
"""Worlds with a name; each exists under both contracts."""
