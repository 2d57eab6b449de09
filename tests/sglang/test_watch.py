"""The watch over SGLang itself: silent where every byte is right, red where one is wrong, and never later than the bytes.

Goal: in random traffic the watch and the bytes agree, in the newest release and in those with known faults. Method: the rig's
worlds under a strict watch, which ends a run at its first violation; a byte that was wrong before that is a fault of the watch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event
from typing import Any

import pytest
from attrs import frozen

from blocklife.engines.sglang import watch
from blocklife.engines.sglang.watch import LOGGER, Options, Watch, WatchError, WatchMode, _reading, watch_of
from blocklife.engines.sglang.watch import _plugin as plugin
from blocklife.engines.sglang.watch._copies import CopyEars
from blocklife.engines.sglang.watch._memory import MemoryEars
from blocklife.engines.sglang.watch._steps import LayerWaits, StepEars
from blocklife.engines.sglang.watch._tree import CoreEars, TreeEars
from blocklife.watch._contents import STILL
from tests.behind.worlds import known
from tests.sglang import found as findings
from tests.sglang.drive import Verdict, judge
from tests.sglang.engine import RELEASE
from tests.sglang.planted import FAULTS
from tests.sglang.rig import Rank, Rig, WorldSpec
from tests.sglang.test_published import SHOWN
from tests.sglang.traffic import QUIET, Traffic
from tests.sglang.turns import step_aside
from tests.sglang.worlds import LATE, WORLDS

NEWEST = "0.5.23"
SEEDS = range(2)
STEPS = 200
STUCK = {"skewed"}
"""Worlds in which the newest release stands still; `specs/sglang.md` says why."""


@frozen
class Watched:
    """A run with a watch on each rank."""

    verdict: Verdict
    watches: list[Watch]

    @property
    def rule(self) -> str:
        """The rule of a strict watch's error; empty if it has not raised."""
        raised = self.verdict.raised
        return raised.message.partition(" ")[0] if raised is not None and raised.kind == "WatchError" else ""

    @property
    def is_late(self) -> bool:
        """Whether a byte was wrong at an earlier step than the watch named, or at all without it."""
        wrong = [each.step for each in self.verdict.corruptions]
        return bool(wrong) and (not self.rule or self.verdict.raised is None or min(wrong) < self.verdict.raised.step)


def run(
    world: str, seed: int, plant: Callable[[Rank], None] | None = None, mode: WatchMode = WatchMode.STRICT, steps: int = STEPS
) -> Watched:
    """One seed of a world, watched. A fault is planted around the watch, as if it were SGLang's own code."""
    watches: list[Watch] = []

    def on_rank(rank: Rank) -> None:
        watches.append(watch.attach(rank.scheduler, Options(mode=mode)))
        if plant is not None:
            plant(rank)

    return Watched(judge(world, WORLDS[world], seed, steps, on_rank), watches)


@pytest.mark.skipif(RELEASE != NEWEST, reason="older releases have faults, which other tests name")
@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("world", sorted(set(WORLDS) - STUCK))
def test_newest_release_is_silent_in_random_traffic(world: str) -> None:
    """No rule is broken in any world, and the watch has followed steps and copies in each, loads among them."""
    loaded = 0
    for seed in SEEDS:
        found = run(world, seed)
        loaded += found.verdict.loaded

        assert str(found.verdict.raised or "") == ""
        assert found.verdict.clean
        for each in found.watches:
            assert each.lost is None
            assert each.steps > STEPS / 4
            assert len(each.mirrors) == (1 if WORLDS[world].spec.kind == "full" else 2)
            assert all(mirror.counts["jobs"] > 5 for mirror in each.mirrors)
    assert loaded > 0


WITHOUT_CORE = {"what a launch copies", "evictions", "locks on the host", "locks on the device"}
NOT_FOLLOWED = {
    "pages": set[str](),
    "window": set[str](),
    "states": set[str](),
    "storage": set[str](),
    "storage-windows": {"windows from storage"},
}
"""What is not followed of SGLang's own pools, by world; older releases lack the calls that tell of some of the rest."""


@pytest.mark.parametrize("world", NOT_FOLLOWED)
def test_what_is_not_followed_is_known_by_name(world: str) -> None:
    """Of SGLang's own pools all is followed, but for what the tree takes from storage for windows."""
    rig = Rig(WORLDS[world].spec, 0)
    found = watch.attach(rig.ranks[0].scheduler, Options(mode=WatchMode.LOG))
    rig.close()

    assert set(found.left_out) - WITHOUT_CORE == NOT_FOLLOWED[world]
    assert RELEASE != NEWEST or not WITHOUT_CORE & found.left_out.keys()


@pytest.mark.skipif(RELEASE != NEWEST, reason="they are planted in the newest release")
@pytest.mark.parametrize("name", sorted(FAULTS))
def test_planted_fault_is_named_no_later_than_the_bytes(name: str) -> None:
    """A lock, a wait or a fence that is taken out of SGLang is named in at least one seed, and in none after the bytes."""
    fault = FAULTS[name]
    found = [run(fault.world, seed, fault.plant) for seed in range(3)]

    assert [str(each.verdict) for each in found if each.is_late] == []
    assert {each.rule for each in found} & RULES_OF[name], "\n".join(str(each.verdict) for each in found)


RULES_OF = {name: set(rules) for name, rules in known("sglang")["rules"].items()}
"""What each planted fault is called. A page that is freed twice is named by what happens to it next."""

KNOWN = known("sglang")["watched"]
"""What the watch finds in releases with published faults; `specs/measurements/sglang-watch-found.csv` has the threads."""


@pytest.mark.parametrize("world", sorted(KNOWN.get(RELEASE, {})))
def test_known_fault_of_a_release_is_named_no_later_than_the_bytes(world: str) -> None:
    """By its rule in at least one seed; no seed has a wrong byte before the watch has named one."""
    found = [run(world, seed) for seed in range(3)]

    assert [str(each.verdict) for each in found if each.is_late] == []
    assert KNOWN[RELEASE][world] in {each.rule for each in found}, "\n".join(str(each.verdict) for each in found)


@pytest.mark.parametrize("world", ["full", "pages", "back", "window-pages"])
def test_every_release_is_silent_without_overlap(world: str) -> None:
    """Worlds in which no byte is wrong, but where a release is known for it: an older one does not set the watch off."""
    if world in KNOWN.get(RELEASE, {}):
        pytest.skip(f"SGLang {RELEASE} has a fault in it, which another test names")
    found = run(world, 0)

    assert str(found.verdict.raised or "") == ""
    assert found.verdict.clean
    assert found.watches[0].lost is None


@pytest.mark.skipif(RELEASE != NEWEST, reason="the stories are of the newest release")
@pytest.mark.parametrize(
    ("story", "rule"),
    [
        (findings.request_goes_on_without_its_state, "I6"),
        (findings.refused_load_leaves_a_request_without_its_state, "I6"),
        (findings.state_is_kept_under_a_shorter_text, "I8"),
    ],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
def test_finding_about_a_state_is_named_no_later_than_the_bytes(story: findings.Story, rule: str) -> None:
    """A strict watch ends the story at the fault: when the wrong bytes are read, or when they are kept."""
    ranks: list[Rank] = []

    def on_rank(rank: Rank) -> None:
        ranks.append(rank)
        watch.attach(rank.scheduler, Options(mode=WatchMode.STRICT))

    with pytest.raises(WatchError, match=f"^{rule} at step"):
        story(on_rank)

    witness = ranks[0].copies.witness
    assert [each for each in witness.corruptions if each.step < witness.step] == []


@pytest.mark.skipif(RELEASE == NEWEST, reason="the newest release is driven with storage like in all other worlds")
def test_older_release_runs_with_storage() -> None:
    """Something comes from storage, and nothing is wrong; who keeps it behind a gap on the host may be named for that."""
    found = run("storage", 0)
    with_gaps = SHOWN["refilled_behind_a_page_without_a_copy"].releases

    assert found.rule in ({"", "I11"} if RELEASE in with_gaps else {""}), str(found.verdict)
    assert not found.is_late
    assert found.watches[0].lost is None
    assert found.watches[0].mirror.counts["jobs"] > 5
    if not found.rule:
        assert found.verdict.clean
        assert found.verdict.fetched > 0


EARS = [
    (MemoryEars, "_allocated"),
    (CopyEars, "_launched"),
    (CoreEars, "_locked"),
    (StepEars, "_planned"),
    (TreeEars, "_inserts"),
    (LayerWaits, "_begins"),
]
"""One of each part; those without SGLang break every ear (`tests/watch/test_watch_sglang_engine.py`)."""


@pytest.mark.skipif(RELEASE != NEWEST, reason="one release is enough to be broken in")
@pytest.mark.parametrize(("room", "name"), EARS, ids=lambda each: each if isinstance(each, str) else each.__name__)
def test_broken_ear_never_reaches_sglang(room: type, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fails in the watch, the same seed does the same as without one, to the last byte."""

    def broken(*_: object) -> None:
        raise RuntimeError("an ear is broken")

    monkeypatch.setattr(room, name, broken)
    found = run("ranks", 0, mode=WatchMode.LOG, steps=25)

    assert found.verdict == judge("ranks", WORLDS["ranks"], 0, 25)
    assert all(isinstance(each.lost, RuntimeError) for each in found.watches)


def test_watch_changes_nothing() -> None:
    """With a watch a seed does what it does without one."""
    assert run("back", 1, mode=WatchMode.LOG, steps=80).verdict == judge("back", WORLDS["back"], 1, 80)


@pytest.mark.parametrize("world", ["pages", "states"])
def test_watch_over_a_tree_alone_is_silent(world: str) -> None:
    """Without the scheduler it follows memory and copies."""
    found: list[Watch] = []

    def on_rank(rank: Rank) -> None:
        found.append(watch.attach(rank.tree, Options(mode=WatchMode.STRICT)))

    verdict = judge(world, WORLDS[world], 0, 80, on_rank)

    assert verdict.raised is None, str(verdict)  # up to 0.5.17 bytes of states may be wrong (sglang#36743): no step is heard
    assert [violation for watch in found for violation in watch.violations] == []
    assert all(mirror.counts["jobs"] > 5 for mirror in found[0].mirrors)


def as_if_on_a_device(indices: Any) -> Any:
    """In the place of what tells where indices lie: all tensors lie there."""
    return indices.reshape(-1) if hasattr(indices, "reshape") else _reading.numbers(indices)


ON_DEVICE = ("pages-overlap", "back-tight", "states", "states-overlap", "storage", "window")


@pytest.mark.parametrize("world", [each for each in ON_DEVICE if each not in KNOWN.get(RELEASE, {})])
def test_what_is_read_once_a_step_is_judged_as_at_once(world: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if all indices lay on a device: the watch is silent, and follows as many steps and copies as when it reads at once."""
    at_once = run(world, 0, mode=WatchMode.LOG)
    monkeypatch.setattr(_reading, "_known", as_if_on_a_device)
    late = run(world, 0, mode=WatchMode.LOG)

    assert [each.counts for each in late.watches] == [each.counts for each in at_once.watches] == [{} for _ in late.watches]
    assert [each.lost for each in late.watches] == [None for _ in late.watches]
    assert [each.report() for each in late.watches] == [each.report() for each in at_once.watches]


@pytest.mark.skipif(RELEASE != NEWEST, reason="they are planted in the newest release")
@pytest.mark.parametrize("name", sorted(FAULTS))
def test_planted_fault_is_named_also_when_it_is_read_once_a_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one of its rules in at least one seed, though it may be some steps later."""
    monkeypatch.setattr(_reading, "_known", as_if_on_a_device)
    fault = FAULTS[name]
    found = [run(fault.world, seed, fault.plant) for seed in range(3)]

    assert {each.rule for each in found} & RULES_OF[name], "\n".join(str(each.verdict) for each in found)


ROOMY = (
    WorldSpec(page_tokens=4, device_pages=60, host_pages=200, lag=LATE),
    WorldSpec("mamba", device_pages=160, host_pages=240, state_slots=30, lag=LATE),
)
"""Worlds in which memory is never short, without states and with them."""


@pytest.mark.parametrize("spec", ROOMY, ids=lambda spec: spec.kind)
def test_watch_may_come_in_the_middle(spec: WorldSpec) -> None:
    """What is there already is believed, requests that run and copies that are out among it; what comes after is followed."""
    rig = Rig(spec, 3)
    traffic = Traffic.drawn(rig, 3, QUIET)
    traffic.run(40)
    found = watch.attach(rig.ranks[0].scheduler, Options(mode=WatchMode.STRICT))
    traffic.run(120)
    rig.drain()

    assert found.counts == {}
    assert all(mirror.counts["jobs"] > 5 for mirror in found.mirrors)


@pytest.mark.parametrize("spec", ROOMY, ids=lambda spec: spec.kind)
def test_flush_begins_anew(spec: WorldSpec) -> None:
    """A flush of the idle engine forgets everything, and the same memory is followed again behind it."""
    rig = Rig(spec, 5)
    found = watch.attach(rig.ranks[0].scheduler, Options(mode=WatchMode.STRICT))
    traffic = Traffic.drawn(rig, 5, QUIET)
    for _ in range(3):
        traffic.run(30)
        rig.drain()
        assert rig.flush()

    assert found.counts == {}
    assert [mirror.holders.left_behind([]) for mirror in found.mirrors] == [{} for _ in found.mirrors]


@pytest.mark.skipif(RELEASE != NEWEST, reason="what a read leaves behind is given back in another place")
@pytest.mark.parametrize("is_lost", [False, True])
def test_memory_of_a_read_that_is_given_up_is_missed(is_lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request goes away while storage reads for it: its host pages are given back behind that, or named at rest."""
    from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController as Controller

    goes_on, read, gives_back = Event(), Controller._page_transfer, Controller.append_host_mem_release
    given_up: list[Any] = []

    def late(*given: Any) -> None:
        step_aside(goes_on)
        read(*given)

    monkeypatch.setattr(Controller, "_page_transfer", late)

    def left(self: Any, host_indices: Any = None, extra_pools: Any = None) -> None:
        gives_back(self, None if is_lost and given_up else host_indices, extra_pools)

    monkeypatch.setattr(Controller, "append_host_mem_release", left)
    rig = Rig(WorldSpec(page_tokens=4, device_pages=24, host_pages=48, storage=True), 0)
    found = watch.attach(rig.ranks[0].scheduler, Options(mode=WatchMode.COUNT))
    prompt = [*range(100, 124)]
    rig.add(prompt, 2)
    rig.drain()
    assert rig.flush()
    name = rig.add([*prompt, 7], 2)
    reads: Any = rig.ranks[0].tree.ongoing_prefetch
    while not any(each.host_indices is not None for each in reads.values()):
        rig.step()
    rig.abort(name)
    given_up.append(name)
    for _ in range(2 * STILL):
        rig.step()
    assert found.counts == {}  # a thread has them in hand
    goes_on.set()
    for _ in range(2 * STILL):
        rig.step()
    rig.close()

    assert found.counts == ({"I13": 1} if is_lost else {})
    assert found.lost is None


# --- the plug-in --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def hooks() -> Any:
    """SGLang's own registry, as it was before."""
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.plugins.hook_registry import HookRegistry

    original = Scheduler.__init__
    HookRegistry.reset()
    yield HookRegistry
    HookRegistry.reset()
    Scheduler.__init__ = original


def test_sglang_loads_the_watch(hooks: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Hooked by SGLang's own registry, the watch is on a scheduler as soon as that is made, and says so."""
    from sglang.srt.managers.scheduler import Scheduler

    logging.disable(logging.NOTSET)
    rig = Rig(WorldSpec(page_tokens=4), 0)
    built = vars(rig.ranks[0].scheduler)
    monkeypatch.setattr(Scheduler, "__init__", lambda self: self.__dict__.update(built))
    monkeypatch.setenv("BLOCKLIFE_WATCH", "log")

    plugin.install()
    hooks.apply_hooks()
    with caplog.at_level(logging.WARNING, LOGGER.name):
        scheduler = Scheduler()

    assert isinstance(watch_of(scheduler), Watch)
    assert [record.message.partition(" in process")[0] for record in caplog.records if record.name == LOGGER.name] == [
        f"blocklife watches the {type(rig.ranks[0].tree).__name__} of SGLang"
    ]
    watch.detach(scheduler)
