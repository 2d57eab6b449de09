"""What the connector keeps of a request as lifecycles (`blocklife.connector_states`).

Goal: every row of their tables is taken under vLLM's own scheduler, so that none is a rule which nobody needs. Method: the
random traffic of the other tests, with a hook on all of these lifecycles.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
from attrs import evolve

from blocklife.connector_states import CONNECTOR_MACHINES
from blocklife.ledger import Direction
from blocklife.ledger.invariants import check
from blocklife.lifecycle import Transition
from tests.vllm.beside_rig import BesideRig
from tests.vllm.connector_rig import ConnectorRig, sessions, walk
from tests.vllm.connector_worlds import CROWDED, FULL, ROOMY, STATE, prompt
from tests.vllm.engine import MINOR
from tests.vllm.second import Habits
from tests.vllm.test_connector_beside import WITHIN

Taken = Counter[str]


def heard(rig: ConnectorRig, taken: Taken) -> ConnectorRig:
    """Count the rows that the requests of a rig take from now on."""

    def hear(step: Transition) -> None:
        assert isinstance(step.rows, int)
        taken[str(step.table.rows[step.rows - 1])] += 1

    rig.side.requests.hooks.on(hook=hear)
    return rig


def loads(taken: Taken) -> Iterator[None]:
    """Loads between steps, some of which fail, and loads within them, under pressure and resets."""
    within = evolve(CROWDED, extra_config={"sync_load_budget_bytes": "1GiB"}, async_scheduling=True)
    for seed in range(4):
        walk(heard(ConnectorRig(CROWDED, seed, fails={Direction.LOAD: 0.3}), taken), seed, 40)
        yield
        walk(heard(ConnectorRig(within, seed), taken), seed, 40)
        yield


def others(taken: Taken) -> Iterator[None]:
    """Another connector brings content between steps and within them; where no step is planned ahead some of it fails."""
    for seed, within, fails in ((3, 0.0, 0.3), (4, 0.5, 0.3), (5, 0.9, 0.0)):
        spec = evolve(CROWDED, num_gpu_blocks=32 if fails else 24, world_size=2, async_scheduling=not fails)
        rig = BesideRig(spec, seed, Habits(within=within, asks_again=0.1, fails=fails), recompute=True)
        walk(heard(rig, taken), seed, 40)
        yield


def ends(taken: Taken) -> Iterator[None]:
    """A request is preempted before the step has reported in which we, or another connector, load for it."""
    within = evolve(ROOMY, extra_config={"sync_load_budget_bytes": "1GiB"}, async_scheduling=True)
    rig = heard(ConnectorRig(within), taken)
    rig.add(prompt(41), 1)
    rig.drain()
    rig.reset_prefix_cache()
    rig.add(prompt(41), 3)
    rig._queue.append(rig._launch())
    rig.reset_prefix_cache(True, False)
    rig.drain()
    rig.check_empty()
    beside = BesideRig(evolve(ROOMY, async_scheduling=True), habits=WITHIN)
    heard(beside, taken)
    beside.add(prompt(41), 6)
    beside._queue.append(beside._launch())
    beside.reset_prefix_cache(True, False)
    beside.drain()
    beside.check_empty()
    yield


def with_sessions(taken: Taken) -> Iterator[None]:
    """Sessions, also of a model with states, whose answers end behind a step ahead; they are preempted, and end at any time."""
    for groups in ((FULL,), (FULL, STATE)):
        rig = heard(ConnectorRig(evolve(CROWDED, groups=groups, num_gpu_blocks=32, async_scheduling=True), 3), taken)
        rng = Random(3)
        for _ in sessions(rig, rng, count=10, steps=30):
            if rng.random() < 0.4:
                rig.add(prompt(rng.randint(1, 40)), rng.randint(1, 9))
            rig.step()
            assert not check(rig.side.ledger)  # vLLM itself computes wrong bytes of a session whose state cannot go back
        rig.drain()
        assert not rig.side.requests.by_name
        yield


def untaken(taken: Taken) -> list[str]:
    """Rows that no request has taken."""
    return [f"{name} {row}" for name, table in CONNECTOR_MACHINES.items() for row in table.rows if not taken[str(row)]]


@pytest.mark.skipif(MINOR < 33, reason="it is about vLLM 0.33.x")
def test_every_row_is_taken_under_vllm() -> None:
    """Counted over all four scenes, until none is left."""
    taken: Taken = Counter()
    for _ in itertools.chain(ends(taken), others(taken), with_sessions(taken), loads(taken)):
        if not untaken(taken):
            break

    assert untaken(taken) == []
