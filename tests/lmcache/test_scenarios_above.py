"""Scenarios run against LMCache's L1 behind the example engine: those from its own threads, and those of no engine.

Goal: green and red stand where the tables in `specs/scenarios/lmcache` say. Method: a table is the expectation of every case;
what is unsafe is LMCache's own, and is listed here with the reason. Each case from its threads goes red with a fault.
"""

from __future__ import annotations

import re

import pytest
from lmcache.v1.distributed.error import L1Error

from tests.behind.scenario_tables import as_they_are, cases_above, table
from tests.lmcache.scenarios import CASES, own
from tests.proof.drivers.lmcache import LMCacheDriver, LMEngine

LMCACHES = {
    "A17": "a forced clear gives a place away that is written",
    "A20": "lmcache#4523: a lock has no holder, and whoever asks releases it",
    "A27": "a forced clear gives a place away that is written",
    "A50": "a forced clear gives a place away that is written, or read",
}
"""Cases that LMCache fails, and why."""
RED = {"L1": "I1, step 8", "L2": "unsafe: expected a refusal; it was done, step 5"}
"""Cases from its threads that it fails."""


@pytest.mark.parametrize("case", CASES)
def test_case_from_a_thread_ends_as_the_table_says(case: str) -> None:
    """It holds, or LMCache has the fault still."""
    ((_, found),) = own(cases=[case])

    assert [case, found] in table("lmcache", "releases")[1]
    assert found == RED.get(case, "holds")


@pytest.mark.parametrize("case", cases_above())
def test_case_ends_as_the_table_says(case: str) -> None:
    """What fails fails with the rule, and in the step, of its cell; unsafe is only what is LMCache's own."""
    ((_, found),) = as_they_are(LMCacheDriver, [case])

    assert [case, found] in table("lmcache", "above")[1]
    assert bool(re.search(r"\bI\d+,|unsafe", found)) is (case in LMCACHES)


def test_thirty_cases_apply_or_nearly_so() -> None:
    """Those that hold, and those that show something, apply."""
    said = dict(table("lmcache", "above")[1])
    apply = [case for case, text in said.items() if re.match(r"holds|I\d+|unsafe|another policy", text)]

    assert len(apply) >= 30


class Unlocked(LMCacheDriver):
    """An LMCache whose read locks do not keep anything."""

    def lives_on(self, engine: LMEngine) -> None:
        delete = engine.places.l1.delete
        engine.places.l1.delete = lambda keys, force=False: delete(keys, force=True)


class Hasty(LMCacheDriver):
    """An LMCache that publishes a place when it is reserved."""

    def lives_on(self, engine: LMEngine) -> None:
        reserve = engine.places.l1.reserve_write

        def reserved(keys: list[object], *args: object, **kwargs: object) -> object:
            found = reserve(keys, *args, **kwargs)
            engine.places.l1.finish_write(keys, tag="storage_manager")
            return found

        engine.places.l1.reserve_write = reserved


class Keeping(LMCacheDriver):
    """An LMCache that hears no reader's end."""

    def lives_on(self, engine: LMEngine) -> None:
        engine.places.l1.finish_read = lambda keys, read_locks=1: dict.fromkeys(keys, L1Error.SUCCESS)


class Leaking(LMCacheDriver):
    """An LMCache that gives no memory back."""

    def lives_on(self, engine: LMEngine) -> None:
        kept: list[object] = []
        engine.places.l1._memory_manager.free = kept.extend


@pytest.mark.parametrize(
    ("driver", "case", "words"),
    [
        (Keeping, "L3", "abcd is locked, step 7"),
        (Hasty, "L4", "I6, step 3"),
        (Hasty, "L5", "I6, step 3"),
        (Leaking, "L6", "cannot be found in the host"),
    ],
)
def test_planted_fault_is_found_by_a_case_from_a_thread(driver: type[LMCacheDriver], case: str, words: str) -> None:
    """The table says that these hold without it; L1 and L2 find what LMCache has itself."""
    ((_, found),) = own(driver, [case])

    assert words in found


@pytest.mark.parametrize(("driver", "case", "words"), [(Unlocked, "A21", "I7|expected"), (Hasty, "A28", "I6")])
def test_planted_fault_is_found(driver: type[LMCacheDriver], case: str, words: str) -> None:
    """The table says that these cases hold without it."""
    ((_, found),) = as_they_are(driver, [case])

    assert re.search(words, found), found
