"""Violations as the watch reports them: the rule, the place, its life and latest events; kept, counted, logged or raised."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence

from attrs import frozen

from blocklife.errors import BlocklifeError
from blocklife.watch._options import WatchMode

RULES = {
    "I1": "a block is handed out only behind a wait for every copy that touches it",
    "I2": "a copy is ordered behind what still writes its source, or uses its target",
    "I3": "only jobs in flight are reported",
    "I4": "each reference is released once, by its holder",
    "I5": "every job ends, and needs no further requests to end",
    "I6": "only content that has arrived is read",
    "I7": "what a load relies on stays until the load is over",
    "I8": "content is stored under its own key, that of the position it was computed for",
    "I9": "each worker reports a job once",
    "I10": "a request does not load while its own earlier store is in flight, and a reset leaves no request waiting",
    "I11": "what a job brings is kept behind the content before it, whatever has moved while it ran",
    "I12": "waiting requests do not hold what others need to go on, and an engine without requests comes to rest",
    "I13": "blocks that count as free can be handed out",
    "I14": "a life is the source of one store at a time",
    "I15": "the group sizes of a job add up to its blocks",
}
"""The rules that can be checked from outside, as the watch applies them; numbered as in `specs/invariants.md`."""


@frozen
class WatchViolation:
    """One illegal step of the engine."""

    rule: str
    what: str
    step: int
    """The step of the connector, counted from 1; events between two steps belong to the later one."""
    block: int | None = None
    life: int | None = None
    request: str | None = None
    job: int | None = None
    history: tuple[str, ...] = ()
    """The last events of that life, oldest first."""
    draw: str = ""
    """The command that draws it."""

    @property
    def line(self) -> str:
        """The violation in one line, without the history."""
        named = [
            f"{name} {value}"
            for name, value in (("block", self.block), ("life", self.life), ("request", self.request), ("job", self.job))
            if value is not None
        ]
        return f"{self.rule} at step {self.step}: {self.what}" + (f" ({', '.join(named)})" if named else "")

    def __str__(self) -> str:
        lines = [self.line, f"  rule: {RULES[self.rule]}"]
        lines += [f"  {event}" for event in self.history]
        if self.draw:
            lines.append(f"  to draw it: {self.draw}")
        return "\n".join(lines)


class WatchError(BlocklifeError):
    """The engine has taken an illegal step, and the watch is strict."""

    def __init__(self, violation: WatchViolation) -> None:
        super().__init__(str(violation))
        self.violation = violation


LOGGER = logging.getLogger("blocklife.watch")
NUM_KEPT = 1000
"""How many violations are kept; further ones are only counted."""
NUM_LOGGED = 10
"""How many of each rule are logged one by one; after that, one line every `WHILE_S` seconds gives the number of new ones."""
WHILE_S = 60.0


class ViolationReporter:
    """Counts violations, keeps the first, and logs or raises them.

    Invariant: ``counts`` counts every violation; ``violations`` are the first of them.
    """

    def __init__(self, mode: WatchMode, count: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._mode = mode
        self._count = count
        self._clock = clock
        self.violations: list[WatchViolation] = []
        self.counts: Counter[str] = Counter()
        self._silent: Counter[str] = Counter()
        self._logged_at: dict[str, float] = {}

    def __call__(self, found: Sequence[WatchViolation]) -> None:
        """Report these violations; all are counted before the first is raised."""
        for violation in found:
            self.counts[violation.rule] += 1
            self._count(violation.rule)
            if len(self.violations) < NUM_KEPT:
                self.violations.append(violation)
            if self._mode is WatchMode.LOG:
                self._log(violation)
        if self._mode is WatchMode.STRICT:
            raise WatchError(found[0])

    def _log(self, violation: WatchViolation) -> None:
        rule, now = violation.rule, self._clock()
        if self.counts[rule] > NUM_LOGGED and now - self._logged_at[rule] < WHILE_S:
            self._silent[rule] += 1
            return
        self._logged_at[rule] = now
        more = f" (and {self._silent.pop(rule)} more of this rule since the last line)" if self._silent[rule] else ""
        LOGGER.warning("blocklife watch: %s%s", violation.line, more)
