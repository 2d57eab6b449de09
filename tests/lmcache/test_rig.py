"""Goal: what the rig calls clean is clean, and what it calls corrupt is.

Method: random traffic in every world, which must show nothing; the same where timing is unkind, which must show what is known
of it; and one fault each that must be seen as wrong bytes, and as something left.
"""

from __future__ import annotations

import pytest

from tests.behind.worlds import known
from tests.lmcache.drive import ALL, Verdict, judge
from tests.lmcache.engine import RELEASE, Engine
from tests.lmcache.worlds import UNKIND, WORLDS

SEEDS = range(8)
STEPS = 400
KNOWN = known("lmcache")["worlds"]


@pytest.mark.parametrize("world", WORLDS)
def test_release_is_clean_in_random_traffic(world: str) -> None:
    """No seed shows anything; content was written, read, stored and loaded, and all requests have ended."""
    verdicts = [judge(world, WORLDS[world], seed, STEPS) for seed in SEEDS]
    print(*verdicts, sep="\n")

    assert [str(each) for each in verdicts if not each.clean] == []
    assert sum(each.requests for each in verdicts) == sum(each.finished for each in verdicts) > 60
    assert sum(each.verified for each in verdicts) > 500
    assert all(any(getattr(each, way) for each in verdicts) for way in ("stored", "loaded")) is bool(
        WORLDS[world].spec.adapters
    )


@pytest.mark.parametrize("world", UNKIND)
def test_unkind_timing_shows_what_is_known(world: str) -> None:
    """At least one seed shows each of it."""
    verdicts = [judge(world, UNKIND[world], seed, STEPS) for seed in range(20)]
    print(*verdicts, sep="\n")

    shown = {what for each in verdicts for what in ("corruptions", "gone", "leak") if getattr(each, what)}
    assert shown == set(KNOWN[RELEASE][world])


def test_rig_does_the_same_for_the_same_seed() -> None:
    """Two runs of a seed agree in every figure; another seed does something else."""
    first, second, other = (judge("two", ALL["two"], seed, 200) for seed in (3, 3, 4))

    assert first == second
    assert first != other


def commits_early(engine: Engine) -> None:
    """A worker's places are published as soon as they are reserved."""
    reserve = engine.storage.reserve_write

    def reserved(keys: list[object], layout_desc: object) -> dict[object, object]:
        found: dict[object, object] = reserve(keys, layout_desc)
        engine.storage.finish_write(list(found))
        return found

    engine.storage.reserve_write = reserved


def keeps_locks(engine: Engine) -> None:
    """Whoever has read says so, and nobody hears it."""
    engine.storage.finish_read_prefetched = lambda *_, **__: None


@pytest.mark.parametrize(("fault", "shows"), [(commits_early, "corruptions"), (keeps_locks, "leak")])
def test_fault_shows(fault: object, shows: str) -> None:
    """In the first seed that has one; the others of its world are clean without it."""
    verdict: Verdict = judge("full", WORLDS["full"], 1, STEPS, fault)  # type: ignore[arg-type]

    assert getattr(verdict, shows)
