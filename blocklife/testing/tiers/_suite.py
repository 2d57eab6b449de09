"""The conformance suite for stores: some thirty checks, each of which passes, fails or is skipped, with a sentence."""

from __future__ import annotations

import contextlib
import enum
import secrets
import threading
from collections.abc import Iterable, Iterator

from attrs import frozen

from blocklife.errors import MisuseError
from blocklife.testing.tiers import _checks
from blocklife.testing.tiers._traces import left_as_found
from blocklife.testing.tiers._trial import (
    CHECKS,
    CheckDefinition,
    Given,
    MakeStore,
    SkippedError,
    StoreCheckError,
    Trial,
)
from blocklife.tiers import FileStore, Removing, open_store

TIMEOUT_S = 60.0
"""How long one check may take."""


class StoreCheckVerdict(enum.Enum):
    """How a check of a store ended."""

    PASSED = "it holds"
    FAILED = "it does not hold, or nobody knows because the store hangs"
    SKIPPED = "it cannot be tried with this store"


@frozen
class StoreCheck:
    """The result of one check."""

    name: str
    verdict: StoreCheckVerdict
    says: str
    """What holds, what was seen instead, or why it was not tried."""

    def __str__(self) -> str:
        return f"{self.verdict.name.lower():<8}{self.name}: {self.says}"


def store_checks() -> tuple[str, ...]:
    """The names of all checks, in their order."""
    return tuple(CHECKS)


def check_store(
    make: MakeStore, *, capacity: int | None = None, names: Iterable[str] = (), timeout_s: float = TIMEOUT_S, address: str = ""
) -> Iterator[StoreCheck]:
    """Make the checks, one after the other; *names* chooses some. *make* opens a store; each check opens and closes its own.

    *capacity* is the number of bytes that the store keeps, if that is known: it should keep at least some MiB, and at most 64
    MiB if the checks of its room are wanted. *address* is what `open_store` opens the same store with, for checks that need a
    second store or process. A check that takes longer than *timeout_s* has failed.

    Refuses: MisuseError for an unknown name.
    """
    chosen = list(names) or list(CHECKS)
    if unknown := [name for name in chosen if name not in CHECKS]:
        raise MisuseError(f"store check: there is no check {unknown[0]!r} (blocklife store check --list names them)")
    given = Given(make, address, capacity, secrets.token_hex(8))
    return (_make(CHECKS[name], given, timeout_s) for name in chosen)


def check_address(address: str, *, names: Iterable[str] = (), timeout_s: float = TIMEOUT_S) -> Iterator[StoreCheck]:
    """Make the checks with the store that an address names; see `check_store`.

    A folder that becomes a file store for this is no store afterwards, and is removed if it was not there.

    Refuses: MisuseError for an address that opens no store, for a store that cannot be closed, and for files with a
    bound where something is kept already.
    """
    from blocklife._theirs import told
    from blocklife.tiers._address import split_files

    folder, capacity = split_files(address) if address.startswith("fs:") else (None, None)
    with _left_as_found(folder):
        store = open_store(address)
        used = store.statistics().used_bytes if isinstance(store, FileStore) else 0
        try:
            store.close()
        except (Exception, SystemExit) as problem:
            raise MisuseError(f"store {address!r}: close raised {told(problem)}") from problem
    if capacity is not None and used:
        # the bound counts for the whole folder, and every check puts: it would make room at the cost of what others keep
        hint = "give an empty folder; without BYTES, the checks of its room are skipped"
        raise MisuseError(f"store {address!r}: {used:,} bytes are kept there already, which the checks could evict ({hint})")
    checks = check_store(lambda: open_store(address), capacity=capacity, names=names, timeout_s=timeout_s, address=address)
    return _in_folder(folder, checks)


def _left_as_found(folder: str | None) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if folder is None else left_as_found(folder)


def _in_folder(folder: str | None, checks: Iterator[StoreCheck]) -> Iterator[StoreCheck]:
    with _left_as_found(folder):
        yield from checks


def assert_store(make: MakeStore, *, capacity: int | None = None, address: str = "") -> None:
    """For a test: make all checks, and raise AssertionError with every one that failed."""
    found = list(check_store(make, capacity=capacity, address=address))
    failed = [str(each) for each in found if each.verdict is StoreCheckVerdict.FAILED]
    if failed:
        raise AssertionError("\n".join([f"{len(failed)} of {len(found)} checks of the store failed:", *failed]))


def _make(definition: CheckDefinition, given: Given, timeout_s: float) -> StoreCheck:
    reason = _reason_to_skip(definition, given)
    if reason:
        return StoreCheck(definition.name, StoreCheckVerdict.SKIPPED, reason)
    made: list[StoreCheck] = []
    thread = threading.Thread(target=lambda: made.append(_run(definition, given)), name=definition.name, daemon=True)
    thread.start()
    thread.join(timeout_s)
    if made:
        return made[0]
    return StoreCheck(definition.name, StoreCheckVerdict.FAILED, f"the store did not come back within {timeout_s:g} s")


def _reason_to_skip(definition: CheckDefinition, given: Given) -> str:
    if "address" in definition.needs and not given.address:
        return "needs an address, to open the store a second time"
    if "capacity" in definition.needs and given.capacity is None:
        return "needs a capacity; the address names none"
    if given.capacity is not None and "capacity" not in definition.needs and given.capacity < 2 * definition.memory:
        return f"keeps {definition.memory:,} bytes at once; the capacity of {given.capacity:,} is less than twice that"
    return ""


def _run(definition: CheckDefinition, given: Given) -> StoreCheck:
    name = definition.name
    try:
        trial = Trial(given, name, given.make())
        if "remove" in definition.needs and not isinstance(trial.store, Removing):
            trial.store.close()
            return StoreCheck(name, StoreCheckVerdict.SKIPPED, "the store has no remove")
        try:
            definition.run(trial)
            trial.must_not_stray()
        finally:
            trial.clean_up()
    except SkippedError as reason:
        return StoreCheck(name, StoreCheckVerdict.SKIPPED, str(reason))
    except StoreCheckError as problem:
        return StoreCheck(name, StoreCheckVerdict.FAILED, str(problem))
    except (Exception, SystemExit) as problem:
        return StoreCheck(name, StoreCheckVerdict.FAILED, f"it raised {problem!r}")
    return StoreCheck(name, StoreCheckVerdict.PASSED, definition.says)


_: object = _checks  # importing it fills the suite
