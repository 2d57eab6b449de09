"""The actions of a world: one table, with a sentence for stories and traits for everything that asks what an action is.

No set of verbs is written anywhere else: each is derived from the traits (`verbs_with`), and what a fault is from `Faults`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from attrs import frozen

from blocklife.knobs import knob, knobs


@frozen(kw_only=True)
class Faults:
    """How often each fault may happen; 0: never."""

    fail: int = knob(0, "a copy fails on one worker")
    hang: int = knob(0, "a copy never lands; deadlines pass")
    """The engine may prove the device quiet then."""
    lose: int = knob(0, "a report is lost; deadlines pass")
    repeat: int = knob(0, "a report comes twice")
    """The second time at any later time."""
    abort: int = knob(0, "a client disconnects")
    preempt: int = knob(0, "a request is preempted although there is room")
    reset: int = knob(0, "all content is forgotten at once")
    drain: int = knob(0, "all content is forgotten when no copy is in flight")
    renew: int = knob(0, "the weights change")
    sleep: int = knob(0, "the device memory is given up for a while")
    lose_worker: int = knob(0, "a worker is lost, and comes back empty")
    lend: int = knob(0, "a second owner reads what is final of a request, until it gives it back")
    vanish: int = knob(0, "the store below loses one worker's part of some content")
    refuse: int = knob(0, "the store below takes nothing of a copy from one worker")
    down: int = knob(0, "the store below is down for a while")
    """Every question is a miss then."""

    def items(self) -> list[tuple[str, int]]:
        """Every kind with its number."""
        return [(name, getattr(self, name)) for name in FAULT_DOCS]

    @property
    def kinds(self) -> frozenset[str]:
        """Those that can happen."""
        return frozenset(name for name, times in self.items() if times)


FAULT_DOCS: Mapping[str, str] = {each.name: each.says for each in knobs(Faults)}
"""The faults, with what each means."""
SPENDS: Mapping[str, str] = {**{name: name for name in FAULT_DOCS}, "step_failing": "fail"}
"""The fault that an action is, by verb."""


class Acts(enum.Enum):
    """What is true of an action, whatever it does."""

    CLOSES = "it adds no request and causes no fault: worlds drain by such actions alone, the first of the table first"
    PASSES = "it happens although no copy lands"
    OF_COPY = "it happens to a copy that runs on a worker"
    OF_REPORT = "it happens to a report that is under way"
    OF_ENTRY = "its number is that of an entry of the store below"
    OF_WORKER = "it happens to a worker"
    OF_STORE = "it happens only where there is a store below"
    FORGETS = "after it no content can be found on the device"
    FORGETS_HOST = "after it none can be found in the host tier"
    NEW_SPACE = "after it none can be found in the store below"
    SPARES = "it takes nothing from a running request"
    KEEPS = "it loses no content"


@frozen
class ActionRow:
    """One kind of action."""

    says: str
    """What happens, of an action ({0}) and of what it happens to ({1}); empty where a story says more."""
    traits: frozenset[Acts]


def _row(says: str, traits: str = "") -> ActionRow:
    return ActionRow(says, frozenset(Acts[each] for each in traits.split()))


ACTIONS: Mapping[str, ActionRow] = {
    "land": _row("on worker {0.worker} {1} lands", "CLOSES OF_COPY"),
    "echo": _row("the report of worker {0.worker} on job {0.job} comes a second time", "CLOSES OF_REPORT"),
    "answer_hit": _row("the store below says that it has {1}", "CLOSES OF_ENTRY OF_STORE"),
    "answer_miss": _row("the store below says that it does not have {1}", "CLOSES OF_ENTRY OF_STORE"),
    "up": _row("the store below is up again", "CLOSES OF_STORE"),
    "regain_worker": _row("worker {0.worker} is back, empty", "CLOSES OF_WORKER FORGETS FORGETS_HOST"),
    "wake": _row("the device memory is back, empty", "CLOSES"),
    "give_back": _row("the second owner is done with what it has read of request {0.request}", "CLOSES"),
    "prove": _row("", "CLOSES"),
    "settle": _row("", "CLOSES PASSES"),
    "settle_late": _row("", "CLOSES PASSES"),
    "step": _row("", "CLOSES PASSES"),
    "step_failing": _row(""),
    "arrive": _row(""),
    "fail": _row("on worker {0.worker} {1} fails, and its target is garbage", "OF_COPY SPARES"),
    "hang": _row("on worker {0.worker} {1} hangs: it will never land", "OF_COPY SPARES"),
    "refuse": _row("of worker {0.worker} the store below takes nothing: {1} lands without effect", "OF_COPY OF_STORE"),
    "lose": _row("the report of worker {0.worker} on job {0.job} is lost", "OF_REPORT SPARES"),
    "repeat": _row("the report of worker {0.worker} on job {0.job} will come a second time", "OF_REPORT SPARES KEEPS"),
    "abort": _row("the client of request {0.request} disconnects", "SPARES KEEPS"),
    "preempt": _row("request {0.request} is preempted", "KEEPS"),
    "lend": _row("a second owner begins to read what is final of request {0.request}", "KEEPS"),
    "reset": _row("all content is forgotten at once", "FORGETS FORGETS_HOST NEW_SPACE"),
    "drain": _row("all content is forgotten, with no copy in flight", "FORGETS FORGETS_HOST NEW_SPACE"),
    "renew": _row("the weights change", "FORGETS FORGETS_HOST NEW_SPACE"),
    "sleep": _row("the device memory is given up", "FORGETS"),
    "lose_worker": _row("worker {0.worker} is lost, with its memory", "OF_WORKER FORGETS FORGETS_HOST"),
    "vanish": _row("the store below loses what it has of {1} from worker {0.worker}", "OF_ENTRY OF_STORE"),
    "down": _row("the store below goes down", "OF_STORE"),
}
"""Every kind of action that a world has."""


def verbs_with(trait: Acts) -> frozenset[str]:
    """The actions with this trait."""
    return frozenset(verb for verb, row in ACTIONS.items() if trait in row.traits)


def faults_with(trait: Acts) -> frozenset[str]:
    """The faults with this trait."""
    return verbs_with(trait) & FAULT_DOCS.keys()


OF_ENTRIES, NEW_SPACE, CLOSING = verbs_with(Acts.OF_ENTRY), verbs_with(Acts.NEW_SPACE), verbs_with(Acts.CLOSES)
_OF_WORKERS = verbs_with(Acts.OF_WORKER)


class Action(NamedTuple):
    """What happens next: a verb and its object."""

    verb: str
    request: str = ""
    job: int = 0
    """A job, or the number of an entry of the store below."""
    worker: int = 0

    def __str__(self) -> str:
        if self.request:
            return f"{self.verb} {self.request}"
        if self.verb in OF_ENTRIES:
            return f"{self.verb} entry {self.job}" + (f"@{self.worker}" if self.verb == "vanish" else "")
        if self.job:
            return f"{self.verb} {self.job}@{self.worker}"
        return f"{self.verb} {self.worker}" if self.verb in _OF_WORKERS else self.verb
