"""blocklife beside another connector in vLLM's MultiConnector, every byte checked, on both sides.

Goal: two owners of blocks do not disturb each other, whoever loads, sends, fails or is late; what the other one brings is
stored as soon as it is final, and never before. Method: the rig of `test_connector`, and a second connector that brings right
bytes, or junk when it fails, and compares what it sends in every step (`second`).
"""

from __future__ import annotations

import shutil

import pytest
from attrs import evolve
from vllm.v1.request import Request

from blocklife.ledger import Direction
from blocklife.states import Slot
from tests.vllm import connector_worlds
from tests.vllm.beside_rig import BesideRig, ExampleRig
from tests.vllm.connector_rig import walk
from tests.vllm.connector_worlds import AHEAD, CROWDED, ROOMY, STATE, prompt
from tests.vllm.engine import MINOR
from tests.vllm.second import Habits
from tests.vllm.worlds import Lag

MODELS = {
    name: connector_worlds.MODELS[name]
    for name in ("full", "window", "full and window", "full and state", "blocks of two sizes")
}
SENDS = Habits(brings=0, sends=1, shortest=4, longest=4)
BRINGS = Habits(brings=1, within=0, sends=0)
WITHIN = Habits(brings=1, within=1, sends=0)


def ready(rig: BesideRig) -> int:
    """Chunks in host memory."""
    return rig.side.ledger.slots.count()[Slot.READY]


@pytest.mark.sampled
@pytest.mark.parametrize("model", MODELS)
@AHEAD
@pytest.mark.parametrize("seed", range(3))
def test_connector_walks_beside_another(model: str, ahead: bool, seed: int) -> None:
    """Random traffic under pressure, two workers, two owners: nothing is wrong at any step, and nothing is left."""
    spec = evolve(CROWDED, groups=MODELS[model], async_scheduling=ahead, world_size=2)
    if STATE in spec.groups:  # in a small pool vLLM counts too few blocks for states behind a load, whoever loads, and raises
        spec = evolve(spec, num_gpu_blocks=80)
    rig = BesideRig(spec, seed, Habits(within=0.3, asks_again=0.1), first=seed % 2 == 1)
    walk(rig, seed)

    assert rig.stored > 0
    assert rig.second.told.chosen


@pytest.mark.sampled
@pytest.mark.parametrize("recompute", [True, False], ids=["recompute", "fail"])
@AHEAD
@pytest.mark.parametrize("model", MODELS)
def test_connector_walks_beside_another_that_fails(model: str, ahead: bool, recompute: bool) -> None:
    """Copies of both fail: what they left is never read, and never stored."""
    fails = {Direction.LOAD: 0.2, Direction.STORE: 0.1}
    within = 0.5 if model == "full" and not ahead else 0.0  # with several groups, or windows, vLLM takes no such report
    blocks = 80 if model == "full and state" else 32
    spec = evolve(CROWDED, groups=MODELS[model], async_scheduling=ahead, world_size=2, num_gpu_blocks=blocks)
    rig = BesideRig(spec, 4, Habits(within=within, fails=0.3), fails=fails, recompute=recompute)
    walk(rig, 4)

    assert sum(each.told.failed for each in rig.seconds)


# --- what it brings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["full", "window", "full and window"])
@AHEAD
@pytest.mark.parametrize("habits", [BRINGS, WITHIN], ids=["between", "within"])
def test_what_another_brings_is_stored_when_it_is_final(habits: Habits, ahead: bool, model: str) -> None:
    """Not while it comes, but as soon as it is there; another request finds it in host memory, to the byte."""
    spec = evolve(ROOMY, groups=MODELS[model], async_scheduling=ahead, world_size=2)
    rig = BesideRig(spec, habits=evolve(habits, shortest=5, longest=5))
    rig.add(prompt(41), 2)
    early = []
    while not sum(each.told.brought for each in rig.seconds):
        rig.step()
        early.append(rig.side.ledger.jobs.live + rig.stored)
    rig.drain()
    rig.check_empty()
    stored = rig.stored
    rig.second.habits = evolve(rig.second.habits, brings=0)
    rig.reset_prefix_cache()
    rig.add(prompt(41), 2)
    rig.drain()
    rig.check_empty()

    assert not any(early)
    assert stored >= (3 if model == "window" else 10)
    assert rig.loaded >= (2 if model == "window" else 10)
    assert rig.second.told.chosen == ["r0"]


@pytest.mark.parametrize("habits", [BRINGS, WITHIN], ids=["between", "within"])
@pytest.mark.parametrize("recompute", [True, False], ids=["recompute", "fail"])
def test_junk_of_another_is_never_stored(habits: Habits, recompute: bool) -> None:
    """What came within the step that computed behind it vLLM names at once, and we never; who shares it stores nothing."""
    rig = BesideRig(ROOMY, habits=evolve(habits, fails=1), recompute=recompute)
    rig.add(prompt(41), 3)
    rig.add([*prompt(41), 7, 8, 9, 10, 11], 3)
    rig.drain()
    rig.check_empty()
    stored = rig.stored
    rig.second.habits = evolve(rig.second.habits, brings=0)
    rig.reset_prefix_cache()
    rig.add([*prompt(41), 7, 8, 9, 10, 11], 3)
    rig.drain()
    rig.check_empty()

    assert rig.seconds[0].told.failed
    if habits is WITHIN or not recompute:
        assert stored == 0
    else:
        assert stored >= 11


def test_who_shares_what_is_still_in_doubt_is_in_doubt_as_well() -> None:
    """With a step ahead a request is let in on blocks that another one reads before a report has confirmed them."""
    rig = BesideRig(evolve(ROOMY, async_scheduling=True), habits=WITHIN)
    rig.add(prompt(41), 6)
    rig.step()
    rig.second.habits = evolve(rig.second.habits, brings=0)
    rig.add([*prompt(40), 7, 8, 9, 10, 11], 6)
    others = rig.side.beside.others
    rig._queue.append(rig._launch())
    doubts = sorted(others.doubts)
    rig.drain()
    rig.check_empty()

    assert doubts == ["r0", "r1"]
    assert rig.stored >= 11


def test_blocks_are_handed_to_another_behind_a_wait_for_our_store() -> None:
    """A block that a slow store of ours still reads is filled by the other one only when the store has been waited for."""
    rig = BesideRig(evolve(ROOMY, num_gpu_blocks=12, lag=Lag(50, 50)), habits=evolve(BRINGS, shortest=2, longest=2))
    rig.second.habits = evolve(rig.second.habits, brings=0)
    rig.add(prompt(32), 1)
    while rig.running:
        rig.step()
    rig.second.habits = evolve(rig.second.habits, brings=1)
    rig.add(prompt(36, start=5000), 1)
    rig.drain()
    rig.check_empty()
    waits = rig.side.ledger.counts.flushes["handed out"]
    rig.second.habits = evolve(rig.second.habits, brings=0)
    rig.reset_prefix_cache()
    rig.add(prompt(32), 1)
    rig.drain()
    rig.check_empty()

    assert waits > 0
    assert rig.loaded > 0


@pytest.mark.parametrize("ours", [False, True], ids=["theirs", "ours"])
def test_blocks_of_a_failed_load_are_free_though_nobody_asks(ours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM takes them back, and hands them out in the same step; the other connector wants to be asked again, so we are not."""
    spec = evolve(ROOMY, groups=MODELS["full and window"], num_gpu_blocks=30)
    rig = BesideRig(spec, habits=evolve(BRINGS, brings=0), fails={Direction.LOAD: 1.0})
    rig.add(prompt(41), 1)
    rig.drain()
    rig.reset_prefix_cache()
    rig.second.habits = evolve(rig.second.habits, brings=float(not ours))
    for each in rig.seconds:
        each.habits = evolve(each.habits, fails=1.0)
    asks, asked = rig.second.get_num_new_matched_tokens, list[bool]()
    name = rig.add(prompt(41), 1)

    def ask(request: Request, tokens: int) -> tuple[int | None, bool]:
        if request.request_id != name:
            return 0, False
        asked.append(any(map(any, rig.scheduler.kv_cache_manager.get_block_ids(name))))
        found: tuple[int | None, bool] = (None, False) if 1 < len(asked) < 9 else asks(request, tokens)
        return found

    monkeypatch.setattr(rig.second, "get_num_new_matched_tokens", ask)
    rig.step()
    held = sum(map(len, rig.scheduler.kv_cache_manager.get_block_ids(name)))
    rig.add(prompt(44, start=5000), 2)
    while rig.step() and len(asked) < 9:
        rig.check()
    if not ours:
        rig.abort(name)  # of a request whose load failed as a whole vLLM keeps the room twice: here it would never get it
    rig.drain()
    rig.check_empty()

    assert held > 10
    assert not any(asked)
    assert len(rig.finished) == 2 + ours


@pytest.mark.skipif(MINOR < 31, reason="before 0.31 such a request waits for the other connector, too")
def test_request_is_let_in_on_a_lookup_of_an_earlier_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """It wants no prefix, so that vLLM lets it in while the other connector is still looking, and we are not asked again."""
    rig = BesideRig(evolve(ROOMY, num_gpu_blocks=14), habits=evolve(BRINGS, brings=0))
    rig.add(prompt(40, start=5000), 4)
    rig.step()
    name = rig.add(prompt(30), 2)
    rig.wants_no_prefix(name)
    rig.step()
    asked = rig.side.requests.by_id[name].hit
    monkeypatch.setattr(rig.second, "get_num_new_matched_tokens", lambda *_: (None, False))
    rig.drain()
    rig.check_empty()

    assert asked is not None
    assert len(rig.finished) == 2


@pytest.mark.parametrize("first", [False, True])
def test_one_of_two_promises_is_taken(first: bool) -> None:
    """Whoever is asked first loads; the other one's promise is forgotten, and nothing of it stays pinned."""
    rig = BesideRig(ROOMY, habits=evolve(BRINGS, brings=0), first=first)
    rig.add(prompt(41), 1)
    rig.drain()
    rig.reset_prefix_cache()
    rig.second.habits = evolve(rig.second.habits, brings=1)
    rig.add(prompt(41), 1)
    rig.drain()
    rig.check_empty()

    assert rig.loaded == (10 if first else 0)
    assert rig.second.told.chosen == ([] if first else ["r1"])


@pytest.mark.parametrize("late", [False, True], ids=["between steps", "while a step is out"])
def test_blocks_are_held_while_another_fills_them_for_nobody(late: bool) -> None:
    """A request is aborted while the other one loads for it: vLLM frees its blocks when that is over, and so do we."""
    rig = BesideRig(ROOMY, habits=evolve(BRINGS, shortest=6, longest=6))
    name = rig.add(prompt(41), 1)
    rig.step()
    rig.step()
    rig.abort(name, late=late)
    rig.add(prompt(5, start=900), 1)
    rig.step()
    rig.step()
    held = sorted(rig.side.beside.others.guests)
    (guest,) = [each for each in rig.side.ledger.requests if each.startswith(f"{name}+")]
    blocks = len(rig.side.ledger.requests.table(guest, 0))
    rig.drain()
    rig.check_empty()

    assert held == [name]
    assert blocks == 11


# --- what it sends ----------------------------------------------------------------------------------------------------------


@AHEAD
@pytest.mark.parametrize("model", ["full", "window", "full and window"])
def test_blocks_are_held_while_another_sends_them(model: str, ahead: bool) -> None:
    """A request is over for vLLM and for us; its blocks are not free before they are sent, and can be hit all the while."""
    spec = evolve(ROOMY, groups=MODELS[model], async_scheduling=ahead, num_gpu_blocks=40, lag=Lag(2, 2))
    rig = BesideRig(spec, habits=evolve(SENDS, shortest=9, longest=9))
    name = rig.add(prompt(41), 1)
    while rig.running:
        rig.step()
    rig.add(prompt(44), 1)
    for _ in range(4):
        rig.step()
        rig.check()
    held = sorted(rig.side.beside.others.guests)
    ledger = rig.side.ledger
    (guest, *_) = [each for each in ledger.requests if each.startswith(f"{name}+")]
    lives = [life for group in range(len(spec.groups)) for life in ledger.requests.table(guest, group) if life]
    refs = [ledger.blocks.refs(life & 0xFFFFFFFF) for life in lives]
    rig.drain()
    rig.check_empty()

    assert name in held
    assert lives
    assert min(refs) >= 1
    assert rig.seconds[0].told.sent == 2


def test_no_more_guests_are_held_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond that vLLM alone holds the blocks; nothing else changes."""
    from blocklife.offload import _others

    monkeypatch.setattr(_others, "MAX_GUESTS", 2)
    rig = BesideRig(evolve(ROOMY, num_gpu_blocks=100), habits=evolve(SENDS, shortest=12, longest=12))
    for number in range(6):
        rig.add(prompt(9, start=100 * number), 1)
    while rig.running:
        rig.step()
    rig.step()
    rig.step()
    held = len(rig.side.beside.others.guests)
    rig.drain()
    rig.check_empty()

    assert held == 2
    assert rig.seconds[0].told.sent == 6


# --- the rest of the contract -----------------------------------------------------------------------------------------------


def test_metrics_of_both_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """They cross processes as a dictionary by class, in which vLLM looks each class up by its name."""
    rig = BesideRig(ROOMY, habits=evolve(BRINGS, brings=0))
    multi = rig.scheduler.connector
    total, read = multi.build_kv_connector_stats(), multi.get_kv_connector_stats

    def keep() -> object:
        if (found := read()) is not None:
            total.aggregate(multi.build_kv_connector_stats(found.to_dict()))
        return found

    monkeypatch.setattr(multi, "get_kv_connector_stats", keep)
    rig.add(prompt(17), 1)
    rig.drain()

    assert set(total.data) == {"BlocklifeConnector"}
    assert total.reduce()["BlocklifeConnector"]


def test_a_reset_of_the_host_tier_reaches_us_among_others() -> None:
    """vLLM resets all connectors, and says whether all have done so."""
    rig = BesideRig(ROOMY, habits=evolve(BRINGS, brings=0))
    rig.add(prompt(17), 1)
    rig.drain()
    before = ready(rig)
    done = rig.reset_prefix_cache(reset_connector=True)

    assert (before, done, ready(rig)) == (4, True, 0)


# --- vLLM's own example -----------------------------------------------------------------------------------------------------


@AHEAD
def test_what_vllm_s_example_brings_is_stored_and_loaded(ahead: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    """It loads the beginning of a prompt from files, within the step that computes the rest; then ours has all of it."""
    folder = tmp_path_factory.mktemp("example")
    rig = ExampleRig(evolve(ROOMY, async_scheduling=ahead, lag=Lag(0, 2)), str(folder))
    loaded = []
    for forgets in ("nothing", "host", "files"):
        if forgets == "host":
            rig.side.reset()
        if forgets == "files":
            shutil.rmtree(folder)
        rig.add(prompt(41), 2)
        rig.drain()
        rig.check_empty()
        rig.reset_prefix_cache()
        loaded.append((rig.loaded, rig.stored))

    assert loaded == [(0, 10), (0, 20), (10, 20)]
