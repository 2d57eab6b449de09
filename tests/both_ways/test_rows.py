"""The walks that are compared leave nothing out: every row of every table is taken by one of them.

Method: the pinned walks, in this process, however the core runs. Nothing is written down; each walk is judged instead: the
rules of the ledger are counted again after each call, and a refused call leaves the world as it was.
"""

from __future__ import annotations

from collections import Counter

import pytest

from blocklife.lifecycle import Table
from blocklife.offload import Demote, Geometry
from blocklife.scheduler_states import SCHEDULER_MACHINES
from blocklife.states import MACHINES
from blocklife.testing.worlds._pinned import WORLDS
from tests.both_ways.drawing import SHAPES
from tests.both_ways.scheduling import POOL_GROUPS
from tests.both_ways.trace import NIGHTLY, PINNED, WALKS
from tests.rigs import ENGINE_GROUPS

SCHEDULED = tuple(name for name in PINNED if name != "ledger")


def rows_of(tables: dict[str, Table]) -> list[str]:
    return [f"{name}: {row}" for name, table in tables.items() for row in table.rows]


def walked(*walks: str) -> tuple[Counter[str], Counter[str]]:
    """The rows that the pinned walks take, and the kinds of errors with which calls are refused."""
    rows, refused = Counter[str](), Counter[str]()
    for walk in walks:
        for seed in PINNED[walk]:
            taken = WALKS[walk](seed, None)
            print(f"{walk}, seed {seed}: {taken.calls} calls, refused {dict(taken.refused)}")
            rows, refused = rows + taken.rows, refused + taken.refused
    return rows, refused


def test_every_row_of_the_ledger_is_taken_by_a_pinned_walk() -> None:
    """A row that is never taken is a rule that is never compared; there is none that nothing can take."""
    rows, refused = walked("ledger")

    never = [row for row in rows_of(dict(MACHINES)) if not rows[row]]
    assert not never, f"no walk takes {', '.join(never)}: draw its verb (drawing.py), or add a seed to PINNED (trace.py)"
    assert min(refused[kind] for kind in ("MisuseError", "RefusedError", "CapacityError")) > 100


@pytest.mark.slow
def test_every_row_of_the_scheduler_is_taken_by_a_pinned_walk() -> None:
    """Those of its own tables; an engine that owns the pool and one that does not are among the walks."""
    rows, refused = walked(*SCHEDULED)

    assert [row for row in rows_of(dict(SCHEDULER_MACHINES)) if not rows[row]] == []
    assert min(refused[kind] for kind in ("MisuseError", "CapacityError")) > 100
    assert refused["RefusedError"] > 30


def test_pinned_walks_have_every_kind_of_world() -> None:
    """Both contracts, both pools, one worker to three; every kind of group, drafters, tails, and a store below."""
    engines = [each.settings.engine for each in WORLDS]
    groups = {*ENGINE_GROUPS, *POOL_GROUPS, *(each.groups for each in engines)}
    kinds = {type(kind).__name__ for text in groups for kind in Geometry.parse(text).groups}

    assert {(each.contract.name, each.own_pool, each.workers) for each in SHAPES} == {
        (contract, own, workers) for contract in ("HOLD", "FENCE") for own in (True, False) for workers in (1, 2, 3)
    }
    assert kinds == {"FullAttention", "SlidingWindow", "LocalAttention", "Mamba"}
    assert any("drafter" in text for text in POOL_GROUPS)
    assert any("drafter" in each.groups and "/" in each.groups for each in engines)
    assert {each.below and each.below.demote for each in engines} == {None, *Demote}
    assert {each.num_workers for each in engines} >= {1, 2}


@pytest.mark.slow
@pytest.mark.parametrize("seed", NIGHTLY)
@pytest.mark.parametrize("walk", ["ledger", "scheduler", "pool"])
def test_more_walks_find_nothing(walk: str, seed: int) -> None:
    """Further on, with the seed in the name of the test."""
    assert WALKS[walk](seed, None).calls > 1000
