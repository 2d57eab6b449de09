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
from tests.behind.scenes import Scene
from tests.vllm.beside_rig import BesideRig, ExampleRig
from tests.vllm.connector_worlds import AHEAD, FULL, ROOMY, WINDOW, prompt
from tests.vllm.engine import MINOR
from tests.vllm.second import Habits
from tests.vllm.stage import play, scenes
from tests.vllm.worlds import Lag

BRINGS = Habits(brings=1, within=0, sends=0)
WITHIN = Habits(brings=1, within=1, sends=0)


SCENES = scenes("""
what-another-brings-is-stored-when-it-is-final model=full|window|full_and_window ahead=* world_size=2 beside=between:5|within:5
    # not while it comes, but as soon as it is there; another request finds it in host memory, to the byte
    add 41 2; until sum(each.told.brought for each in seconds); then not jobs and stored == 0; drain
    then stored >= (3 if "{model}" == "window" else 10); habits brings=0; reset; add 41 2; drain
    then loaded >= (2 if "{model}" == "window" else 10) and second.told.chosen == ["r0"]
junk-of-another-is-never-stored recompute=yes|no beside=between,fails:1|within,fails:1
    # what came within the step that computed behind it vLLM names at once, and we never; who shares it stores nothing
    add 41 3; add 41+5@7 3; drain; then seconds[0].told.failed; note kept stored; habits brings=0; reset; add 41+5@7 3; drain
    then kept >= 11 if "between" in "{beside}" and "{recompute}" == "yes" else kept == 0
who-shares-what-is-in-doubt-is-in-doubt ahead=yes beside=within
    # with a step ahead a request is let in on blocks that another one reads before a report has confirmed them
    add 41 6; step; habits brings=0; add 40+5@7 6; launch; then sorted(side.beside.others.doubts) == ["r0", "r1"]; drain
    then stored >= 11
blocks-go-to-another-behind-a-wait-for-our-store num_gpu_blocks=12 lag=50 beside=nothing:2
    # a block that a slow store of ours still reads is filled by the other one only when the store has been waited for
    add 32; until not running; habits brings=1; add 36@5000; drain; then flushes["handed out"] > 0; habits brings=0; reset
    add 32; drain; then loaded > 0
one-of-two-promises-is-taken beside=nothing first=no|yes
    # whoever is asked first loads; the other one's promise is forgotten, and nothing of it stays pinned
    add 41; drain; reset; habits brings=1; add 41; drain
    then (loaded, second.told.chosen) == ((10, []) if "{first}" == "yes" else (0, ["r1"]))
blocks-are-held-while-another-fills-them-for-nobody $late=no|yes beside=between:6
    # a request is aborted while the other one loads for it: vLLM frees its blocks when that is over, and so do we
    add 41; step 2; abort r0 late={late}; add 5@900; step 2; then sorted(side.beside.others.guests) == ["r0"]
    then [len(ledger.requests.table(each, 0)) for each in ledger.requests if each.startswith("r0+")] == [11]; drain
blocks-are-held-while-another-sends-them ahead=* model=full|window|full_and_window num_gpu_blocks=40 lag=2 beside=sends:9
    # the request is over for vLLM and for us; its blocks are not free before they are sent, and can be hit all the while
    add 41; until not running; add 44; step 4; then "r0" in side.beside.others.guests
    note guest next(each for each in ledger.requests if each.startswith("r0+"))
    note lives [life for group in range(groups) for life in ledger.requests.table(guest, group) if life]
    then lives and min(ledger.blocks.refs(life & 0xFFFFFFFF) for life in lives) >= 1; drain; then seconds[0].told.sent == 2
reset-of-the-host-tier-reaches-us-among-others beside=nothing
    # vLLM resets all connectors, and says whether all have done so
    add 17; drain; then ready == 4; reset connector; then done and ready == 0
""")


@pytest.mark.parametrize("scene", SCENES)
def test_beside_scene(scene: Scene) -> None:
    """A small story, each with one thing that could go wrong in it."""
    play(scene)


@pytest.mark.parametrize("ours", [False, True], ids=["theirs", "ours"])
def test_blocks_of_a_failed_load_are_free_though_nobody_asks(ours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM takes them back, and hands them out in the same step; the other connector wants to be asked again, so we are not."""
    spec = evolve(ROOMY, groups=(FULL, WINDOW), num_gpu_blocks=30)
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


def test_no_more_guests_are_held_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond that vLLM alone holds the blocks; nothing else changes."""
    from blocklife.offload import _others

    monkeypatch.setattr(_others, "MAX_GUESTS", 2)
    rig = BesideRig(evolve(ROOMY, num_gpu_blocks=100), habits=Habits(brings=0, sends=1, shortest=12, longest=12))
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
