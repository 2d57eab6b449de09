"""Goal: what the rig calls clean is clean, and what it calls corrupt is.

Method: traffic without pressure under the release that is here, then random traffic in every world, which must show nothing
in the newest release; then the same with one wait or lock taken out of SGLang, which must show.
"""

from __future__ import annotations

import pytest
from attrs import evolve

from tests.behind.worlds import known
from tests.sglang.drive import Verdict, judge
from tests.sglang.engine import RELEASE
from tests.sglang.planted import FAULTS
from tests.sglang.rig import Rank, Rig, WorldSpec
from tests.sglang.traffic import QUIET, Traffic
from tests.sglang.worlds import LATE, WORLDS

NEWEST = "0.5.23"
ROOMY = WorldSpec(page_tokens=4, device_pages=300, host_pages=900, lag=LATE)


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
@pytest.mark.parametrize("page", [1, 4])
def test_rig_with_room_for_all_sees_nothing_wrong(page: int, overlap: bool) -> None:
    """Without memory pressure all requests end, with their own text, and every row read holds what it should."""
    if overlap and RELEASE != NEWEST:
        pytest.skip(f"{RELEASE}: a copy to the host overtakes the forward pass, room or not")
    spec = evolve(ROOMY, page_tokens=page, device_pages=1200 // page, host_pages=3600 // page, overlap=overlap)
    rig = Rig(spec, seed=7)
    traffic = Traffic.drawn(rig, 7, QUIET)
    for _ in range(2):
        traffic.run(80)
        rig.drain()

    assert [str(each) for each in rig.corruptions] == []
    assert rig.wrong_texts == []
    assert not rig.running
    assert len(rig.finished) == len(rig.texts) > 40
    assert rig.moved[0] > 0
    assert rig.verified > 10_000
    assert rig.missing() == ""


@pytest.mark.parametrize("name", ["pages-overlap", "storage"])
def test_rig_does_the_same_for_the_same_seed(name: str) -> None:
    """Two runs of a seed agree in every figure; another seed does something else."""
    first, second, other = (judge(name, WORLDS[name], seed, 120) for seed in (3, 3, 4))

    assert first == second
    assert first != other


SEEDS = range(3)
STEPS = 250
KNOWN = known("sglang")["worlds"]
"""What goes wrong in which world in releases with known faults; `specs/sglang.md` says which faults these are."""


def found(verdicts: list[Verdict]) -> set[str]:
    """What went wrong in any of these."""
    raised = {each.raised.kind for each in verdicts if each.raised is not None}
    corrupt = {"corrupt" for each in verdicts if each.corruptions}
    return raised | corrupt | {"stuck" for each in verdicts if each.stuck}


@pytest.mark.slow
@pytest.mark.skipif(RELEASE != NEWEST, reason="older releases have more faults than these worlds were chosen for")
@pytest.mark.parametrize("world", sorted(set(WORLDS) - set(KNOWN[NEWEST])))
def test_newest_release_is_clean_in_random_traffic(world: str) -> None:
    """No seed of any world shows anything, and pages went both ways, and states, which requests have gone on from."""
    ranks: list[Rank] = []
    verdicts = [judge(world, WORLDS[world], seed, STEPS, ranks.append) for seed in SEEDS]
    has_states = WORLDS[world].spec.kind == "mamba"

    assert [str(each) for each in verdicts if not each.clean] == []
    assert any(each.stored > 0 and each.loaded > 0 for each in verdicts)
    assert any(each.fetched > 0 for each in verdicts) is WORLDS[world].spec.storage
    for way in ("to host", "to device", "on the device"):
        assert any(rank.copies.states[way] > 0 for rank in ranks) is has_states
    assert (sum(rank.forward.resumed for rank in ranks) > 50) is has_states


@pytest.mark.parametrize("world", sorted(KNOWN.get(RELEASE, {})))
def test_known_fault_of_a_release_shows(world: str) -> None:
    """At least one seed shows what the release is known to do wrong in this world."""
    verdicts = [judge(world, WORLDS[world], seed, STEPS) for seed in SEEDS]

    assert KNOWN[RELEASE][world] in found(verdicts), "\n".join(map(str, verdicts))


@pytest.mark.skipif(RELEASE != NEWEST, reason="they are planted in the newest release")
@pytest.mark.parametrize("name", sorted(FAULTS))
def test_planted_fault_shows(name: str) -> None:
    """A lock, a wait or a fence that is taken out of SGLang is seen in at least one seed, and its world is clean with it."""
    fault, verdicts = FAULTS[name], list[Verdict]()
    for seed in SEEDS:
        verdicts.append(judge(fault.world, WORLDS[fault.world], seed, STEPS, fault.plant))
        if found(verdicts) & fault.shows:
            return

    pytest.fail("\n".join(map(str, verdicts)))
