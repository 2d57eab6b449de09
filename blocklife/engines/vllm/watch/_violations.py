"""What the watch reports: the rule, the place, its life, and the events that led there."""

from __future__ import annotations

from attrs import frozen

from blocklife.errors import BlocklifeError

RULES = {
    "I1": "a block gets a new owner only behind a wait for every copy that touches it",
    "I3": "a report counts only for a job that is out",
    "I4": "each hold is let go of once, by its holder",
    "I5": "every job ends, and needs no new work for it",
    "I6": "only content that has arrived is read",
    "I7": "what a load counts on stays until the load is over",
    "I8": "content is stored under its own key: the one of the place that it was computed for",
    "I9": "each worker reports once",
    "I10": "a request does not load while its own earlier store is out, and a reset leaves nobody waiting",
    "I12": "who waits does not hold what others need to get ahead, and an engine of which nobody wants anything comes to rest",
    "I13": "what is counted as free is there when it is taken",
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
    """The step of the connector, counted from 1; what happens between two steps belongs to the later one."""
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
        """Everything but the history, in one line."""
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
