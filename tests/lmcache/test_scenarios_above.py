"""Scenarios that are written for no engine, run against LMCache's L1 behind the example engine.

Goal: green and red stand where `specs/scenarios/lmcache/above.csv` says. Method: its table is the expectation of every case;
what is unsafe is LMCache's own, and is listed here with the reason.
"""

from __future__ import annotations

import re

import pytest

from tests.behind.scenario_tables import as_they_are, cases_above, table
from tests.proof.drivers.lmcache import LMCacheDriver, LMEngine

LMCACHES = {
    "A17": "a forced clear gives a place away that is written",
    "A20": "lmcache#4523: a lock has no holder, and whoever asks releases it",
    "A27": "a forced clear gives a place away that is written",
    "A50": "a forced clear gives a place away that is written, or read",
}
"""Cases that LMCache fails, and why."""


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


@pytest.mark.parametrize(("driver", "case", "words"), [(Unlocked, "A21", "I7|expected"), (Hasty, "A28", "I6")])
def test_planted_fault_is_found(driver: type[LMCacheDriver], case: str, words: str) -> None:
    """The table says that these cases hold without it."""
    ((_, found),) = as_they_are(driver, [case])

    assert re.search(words, found), found
