"""A ledger that is counted again after every verb: for tests of engines that use one.

A violation is told with the rule, the verb, and what lately happened to the place that it speaks of. It goes to a function that
never returns, so that no ``except Exception`` of an engine can swallow it where a test framework stops a test by other means. A
refusal is raised as ever, with the same history as a note, and without the frames of the ledger.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import attrs

from blocklife.errors import InvariantError, MisuseError
from blocklife.ledger import Checking, Contract, Ledger, Limits
from blocklife.ledger.invariants import check

Found = Callable[[str], NoReturn]
"""Called with a violation; it raises an error."""

LATELY = 12
"""How many of the latest steps of a place a message shows."""


def raise_violation(message: str) -> NoReturn:
    """Raise it as an `InvariantError`."""
    raise InvariantError(message)


class WatchedLedger(Ledger):
    """A `Ledger` all of whose verbs are followed by all invariants, also where they refuse. It raises errors of hooks.

    Invariant: ``depth`` verbs are under way, one inside another; the outermost one judges. Initially none is.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        contract: Contract = Contract.FENCE,
        checking: Checking = Checking.STRICT,
        incarnation: int = 1,
        deadline: float = 64.0,
        own_pool: bool = True,
        indexed: bool = True,
        found: Found = raise_violation,
    ) -> None:
        super().__init__(
            limits,
            contract=contract,
            checking=checking,
            incarnation=incarnation,
            deadline=deadline,
            own_pool=own_pool,
            indexed=indexed,
            errors="raise",
        )
        self.found = found
        self.verdict = ""
        """The first violation; empty while everything holds."""
        self.depth = 0

    def judge(self, verb: str) -> None:
        """Check every invariant, and report the first that does not hold."""
        __tracebackhide__ = True
        violations = check(self)
        if not violations:
            return
        self.verdict = self.verdict or "\n".join(_told(self, verb, violations[0].rule, violations[0].message))
        self.found(self.verdict)


def _told(ledger: Ledger, verb: str, rule: str, message: str) -> Iterator[str]:
    yield f"{rule} does not hold after {verb}: {message}"
    yield from _history(ledger, message)


def _history(ledger: Ledger, message: str) -> Iterator[str]:
    for machine, place in _places(ledger, message):
        steps = ledger.journal.history(machine, place)[-LATELY:]
        yield f"what lately happened to {machine} {place}:"
        yield from (f"  {step}" for step in steps or ["nothing that the journal still holds"])


def _places(ledger: Ledger, message: str) -> Iterator[tuple[str, int]]:
    """The places that a violation names."""
    named = re.findall(r"\b(block|slot|place|job|request) (\S+?)\b", message)
    for what, name in dict.fromkeys(named):
        if what == "request":
            if name in ledger.requests:
                yield what, ledger.requests.row(name)
        elif name.isdigit():
            job = ledger.jobs.get(int(name)) if what == "job" else None
            if what == "job" and job is not None:
                yield what, job.row
            elif what != "job":
                yield "slot" if what == "slot" or message.startswith("slot") else "block", int(name)


def _watched(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """A verb that judges when it is over."""

    @functools.wraps(method)
    def run(self: WatchedLedger, /, *args: object, **kwargs: object) -> object:
        __tracebackhide__ = True  # a failure is the affair of the line that called
        self.depth += 1
        try:
            return method(self, *args, **kwargs)
        except MisuseError as refusal:
            for line in () if self.depth > 1 else _history(self, str(refusal)):
                refusal.add_note(line)
            raise refusal.with_traceback(None)  # noqa: B904 - it is the same one, seen from the line that called
        finally:
            self.depth -= 1
            if not self.depth:
                self.judge(name)

    return run


for _name, _method in list(vars(Ledger).items()):
    if hasattr(_method, "__wrapped__"):  # `verb` marks what changes a ledger
        setattr(WatchedLedger, _name, _watched(_name, _method))


# --- for tests that want it in one line ------------------------------------------------------------------------------------

SMALL = {"num_blocks": 9, "num_slots": 8, "max_jobs": 16, "max_requests": 16, "max_journal": 4096}
"""The limits that are not said."""


def refuse_unknown(fixture: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Refuse a word that a fixture does not take, with those that it does."""
    there = list(known)
    for name in names:
        if name not in there:
            raise MisuseError(f"{fixture}: unknown {name!r} (there are {', '.join(there)})")


def make_watched(found: Found) -> Callable[..., WatchedLedger]:
    """A function that makes such ledgers from limits by name and the settings of a ledger."""

    def make(
        *,
        contract: Contract | None = None,
        checking: Checking | None = None,
        incarnation: int = 1,
        deadline: float = 64.0,
        own_pool: bool = True,
        indexed: bool = True,
        **limits: int,
    ) -> WatchedLedger:
        refuse_unknown("blocklife_ledger", limits, attrs.fields_dict(Limits))
        return WatchedLedger(
            Limits(**{**SMALL, **limits}),
            contract=contract or Contract.FENCE,
            checking=checking or Checking.STRICT,
            incarnation=incarnation,
            deadline=deadline,
            own_pool=own_pool,
            indexed=indexed,
            found=found,
        )

    return make
