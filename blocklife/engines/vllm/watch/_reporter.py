"""Reports violations: keeps, counts, logs or raises them, depending on the mode."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence

from blocklife.engines.vllm.watch._options import WatchMode
from blocklife.engines.vllm.watch._violations import WatchError, WatchViolation

LOGGER = logging.getLogger("blocklife.watch")
NUM_KEPT = 1000
"""How many violations are kept; further ones are only counted."""
NUM_LOGGED = 10
"""How many of each rule are logged one by one; after that, one line in `WHILE_S` seconds has the number of new ones."""
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
        """Report what was found; all of it is counted before the first is raised."""
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
