"""What vLLM's tests of its offloading scheduler say, said of our connector: lookups, stores, waits, resets, states, drafters.

Goal: a hit is what a load can bring, and no request loads what another one is loading, or waits for what it cannot use. What is
full is stored once, when it is full, as a whole, under its own name; what is refused is tried again. Nobody writes where a copy
still reads, nobody waits without need, and a reset is over when the last copy has reported. A state is stored from the block
that vLLM names, at the boundary that it names, and from no other. A hit whose next token is not known to be the same is not
used, and no other hit is lost for it.

Method: the rig with vLLM's real scheduler; what was planned is read from the plans, and every byte is checked when it is read.
Which test of theirs each scene or test stands for is in `tests/vllm/behaviour/table.toml`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import KVConnectorOutput

from blocklife.engines.vllm.connector._connector import WorkerMetadata
from blocklife.engines.vllm.connector._messages import WorkerReport
from blocklife.ledger import Completion, Result, Worker
from blocklife.offload._host import Name
from blocklife.offload._lookup import Answer, Unit, common_length
from tests.behind.scenes import Scene
from tests.proof.drivers.vllm import making
from tests.vllm.connector_rig import walk
from tests.vllm.stage import made, play, scenes

AHEAD = pytest.mark.parametrize("ahead", ["no", "yes"], ids=["sync", "async"])

SCENES = scenes("""
# --- lookups and loads
same-prefix-is-loaded-once lag=6 ahead=* $between=0|1
    # a request whose prefix another one is loading waits for that load, and takes it from the device
    ask 40; reset_device; add 40; step {between}; add 40; drain; then load_sizes == (9,) and len(finished) == 3
cap-on-loads-counts-behind-the-device max_load_tokens=8
    # not the tokens that the device has
    ask 40; reset_device; ask 17; anew; add 40; step; then [table("r2").index(each) for each in loads[0].target] == [4, 5]
cap-on-loads-rounds-down-to-chunks blocks_per_chunk=2 max_load_tokens=12
    ask 40; reset_device; ask 40; then load_sizes == (2,)
chunk-in-the-middle-of-a-prompt-is-loaded ahead=* blocks_per_chunk=3
    # the device has the first chunk and the host the second
    ask 37; reset_device; forget 8; ask 13; anew; add 37; step
    then [table("r2").index(each) for each in loads[0].target] == [3, 4, 5]
window-reaches-into-the-chunk-on-its-left groups=full/swa:4:22 blocks_per_chunk=4 $left=there|gone|comes
    # a window that begins inside a chunk needs that chunk: without it the hit is shorter, and while it comes nobody loads
    ask 49; reset_device; lose {left} 7 1; add 49; step; then scheduler.running == []
    then load_sizes == {"there": (12, 6), "gone": (4, 4), "comes": (0, 0)}["{left}"]; arrive; abort r1
ready-prefix-does-not-wait-for-a-store-behind-a-gap groups=full/swa:4:8
    # what is on its way behind a gap of a window cannot make the hit longer: the prefix before the gap is loaded at once
    ask 17; reset_device; forget 2 1; lose comes 3 1; add 17; step; then load_sizes == (2, 2); arrive
# --- stores
chunks-are-stored-when-they-are-full ahead=* blocks_per_chunk=3 $answer=1|12|13
    # when the last token was computed, and not one token before: the one that is sampled last never is
    ask 12 {answer}; then store_sizes == (6 if {answer} == 13 else 3,)
what-the-host-has-is-not-stored-again ahead=* blocks_per_chunk=3
    # of a prompt whose first and last chunk the host has lost these two are stored again, and not the one between them
    ask 37; reset_device; forget 2,8; ask 37; then loads == []
    then [ledger.slots.key(int(target) // 3) for each in stores for target in each.target[::3]] == [hashes[2], hashes[8]]
groups-with-blocks-of-two-sizes-are-stored-and-loaded-as-they-fill groups=full/full:16 ahead=*
    # a load brings what both have
    ask 25; then store_sizes == (6, 1); anew; ask 33; then store_sizes == (2, 1); reset_device; ask 33
    then load_sizes == (8, 2)
groups-with-blocks-that-do-not-divide-each-other-are-loaded-up-to-where-both-end groups=full:12/full:16 ahead=*
    ask 25; then store_sizes == (2, 1); ask 33; then store_sizes == (2, 2); ask 37; then store_sizes == (3, 2)
    ask 97; then store_sizes == (8, 6); reset_device; ask 48; then load_sizes == (0, 0); reset_device; ask 49
    then load_sizes == (4, 3); reset_device; ask 86; then load_sizes == (4, 3); reset_device; ask 97; then load_sizes == (8, 6)
chunk-with-a-hole-is-stored-when-it-is-whole groups=full/swa:4:8 dense_retention=yes blocks_per_chunk=2 ahead=*
    # a chunk of a window that lacks a block behind a hit on the device is not stored; who computes it anew stores it
    ask 12; forget 1; forget 1 1; anew; ask 12+1@7; then store_sizes == (2, 0); reset_device; ask 8+5@5000
    then store_sizes == (0, 2)
window-has-all-that-a-hit-at-any-boundary-reads groups=full:16/swa:4:8 ahead=* retention=none|0|32
    # whoever shares a prompt up to a block of the full group is served up to there: the window's end, and no more of it
    ask 65; reset_device; ask 16+1@7; then load_sizes == (1, 2); reset_device; ask 32+1@7; then load_sizes == (2, 2)
    reset_device; ask 48+1@7; then load_sizes == (3, 2); reset_device; ask 64+1@7; then load_sizes == (4, 2)
window-is-stored-across-the-parts-of-a-long-prompt groups=full:36/swa:4:16 max_num_batched_tokens=100 ahead=*
    with num_gpu_blocks=128 host_blocks=128
    add 181 4; step; drain; reset_device; ask 36+1@7; then load_sizes == (1, 4); reset_device; ask 72+1@7
    then load_sizes == (2, 4); reset_device; ask 108+1@7; then load_sizes == (3, 4); reset_device; ask 144+1@7
    then load_sizes == (4, 4); reset_device; ask 180+1@7; then load_sizes == (5, 4)
window-is-stored-across-the-parts-of-an-aborted-prompt groups=full:36/swa:4:16 max_num_batched_tokens=100 ahead=*
    with num_gpu_blocks=128 host_blocks=128
    # up to the last boundary of its part
    add 181 4; step; abort r0; drain; reset_device; ask 36+1@7; then load_sizes == (1, 4); reset_device; ask 72+1@7
    then load_sizes == (2, 4)
cap-on-stores ahead=* blocks_per_chunk=3 max_store_tokens=0|24|30
    # keeps the chunks that lie within it
    ask 36; then store_sizes == ({max_store_tokens} // 12 * 3,) and waited == set()
no-cap-on-stores ahead=* blocks_per_chunk=3
    ask 36; then store_sizes == (9,) and waited == set()
# --- waits, aborts and resets
aborted-request-that-waits-stores-nothing max_num_seqs=1 ahead=*
    # given up before it was ever scheduled, it leaves no store, no name in the host, no request
    add 16 4; step; add 16@5000; note names hashes; step; abort r1
    then not [each for each in ledger.requests if each.startswith("r1")]; drain; then has(names) == [] and store_sizes == (4,)
load-into-a-block-that-a-store-reads-waits-for-the-store num_gpu_blocks=6 lag=40 ahead=*
    # its step waits for that store first
    ask 16; reset_device; add 20@5000; until not running
    note reading {each.job.number: set(each.source.tolist()) for each in stores}; reset; add 17; until loads
    note read {number for number, blocks in reading.items() if blocks & set(loads[0].target.tolist())}
    then read and read <= waited; drain
load-into-a-block-that-a-store-of-two-groups-reads groups=full/swa:4:8 num_gpu_blocks=11 lag=40 ahead=*
    like load-into-a-block-that-a-store-reads-waits-for-the-store
reset-while-a-load-is-out blocks_per_chunk=3 lag=8 ahead=*
    # of the host tier: the load goes on, and its slots are given back when it has landed, and not before
    ask 13; note names hashes; reset_device; add 14 12; step; reset_host; then slots == {"STALE": 1} and has(names) == []
    drain; then len(finished["r1"]) == 12 and has(names) == [2]
reset-drops-the-stores-of-who-is-over blocks_per_chunk=3 lag=40 ahead=*
    add 24 25; until not running; then jobs; reset_host; drain; then slots == {}
reset-keeps-the-engine-until-copies-have-reported host_blocks=4 lag=10 ahead=*
    # until then it goes on stepping, and nobody gets their slots
    add 16; until not running; then jobs; reset connector
    then done and scheduler.has_requests() and len(ledger.slots.next_empty(4)) == 0; drain
    then not scheduler.has_requests() and slots == {}
reset-without-copies-holds-nothing
    ask 16; reset connector; then done and not scheduler.has_requests() and slots == {}
# --- a store below
peer-finds-what-a-request-has-loaded-and-what-it-has-computed kind=below groups=full|full/swa:4:8 ahead=* dense_retention=yes
    # it loads a half of its prompt from the host and computes the rest: another engine fetches both, and computes one token
    ask 16; reset_device; note before stored; ask 33; then loaded > 0 and stored - before == 4 * groups; another; ask 33
    then below.promoted == (10 if groups > 1 else 8) and stored == 0
reset-with-copies-out-fetches-nothing-from-below kind=below
    # stores that were out when everything was forgotten hold every slot of the host: nothing is fetched into them, before they
    # have reported or after it: with the reset, the engine has forgotten what is below as well; another engine fetches it
    ask 17@5000; another host_blocks=4 lag=12; add 16; until not running; then jobs; reset connector
    then done and scheduler.has_requests(); ask 17@5000; then below.promoted == 0; another; ask 17@5000
    then below.promoted == 4
# --- states
state-is-stored-from-the-block-that-was-handed-off groups=full/mamba dense_retention=yes ahead=*
    # the very block that vLLM has named, under the name of the boundary; attention is beside it
    ask 33; note copied [each for store in stores for each in zip(store.source, store.target, strict=True)]
    note read {(int(at), ledger.slots.key(int(slot))) for at, slot in copied if ledger.slots.group(int(slot)) == 1}
    then handed and read == {(block, hashes[boundary // 4 - 1]) for _, block, boundary in handed}
    then store_sizes == (8, len(handed))
only-states-that-were-handed-off-are-stored groups=full/mamba ahead=*
    # although blocks of others are full by their number
    ask 30 7; ask 30@5000 7; note read [int(block) for each in stores for block in each.source[each.group_sizes[0] :]]
    then len(read) == len(handed) > 0 and set(read) == {block for _, block, _ in handed} and store_sizes[0] > len(read)
hit-ends-at-the-last-state-that-is-there groups=full/mamba dense_retention=yes max_num_batched_tokens=16 ahead=*
    # all of the attention is in the host, and a state at one boundary only: just that is loaded
    ask 49; note there has(None, 1); then len(there) > 1; reset_device; note gone [hashes[at] for at in there[1:]]
    forget gone 1; ask 49; then load_sizes == (there[0] + 1, 1)
states-are-kept-where-vllm-keeps-them groups=full/mamba max_num_batched_tokens=16 ahead=* retention=none|32|0
    # its interval says which states of a prompt are handed over; the longest hit first, for what is computed behind leaves more
    ask 65; note kept [at + 1 for at in has(None, 1)]
    then kept == {"none": [4, 8, 12, 16], "32": [8, 16], "0": [16]}["{retention}"]
    reset_device; ask 64+1@7; then load_sizes[0] == max([0, *(each for each in kept if each <= 16)])
    reset_device; ask 48+1@7; then load_sizes[0] == max([0, *(each for each in kept if each <= 12)])
    reset_device; ask 32+1@7; then load_sizes[0] == max([0, *(each for each in kept if each <= 8)])
    reset_device; ask 16+1@7; then load_sizes[0] == max([0, *(each for each in kept if each <= 4)])
load-behind-a-hit-on-the-device-fills-the-blocks-behind-it groups=full/mamba ahead=*
    # the rest of the attention and the last state
    ask 41; reset_device; ask 17; anew; add 41; step; note count loads[0].group_sizes[0]; note blocks loads[0].target.tolist()
    then 0 < count < 10 and [table("r2").index(each) for each in blocks[:count]] == list(range(10 - count, 10))
    then [table("r2", 1).index(each) for each in blocks[count:]] == [9]; drain
prompt-with-states-is-served-up-to-its-last-state groups=full:16/mamba:16 ahead=*
    ask 28 2; reset_device; ask 28 2; then load_sizes == (1, 1)
# --- layers of a drafter
lookup-asks-for-the-chunk-behind-its-limit groups=full:4+drafter|swa:4:9+drafter
    # a prompt of four blocks is hit up to the third: the fourth, which is computed again in any case, is its proof
    ask 16; reset_device; ask 16; then load_sizes == (2 if "swa" in "{groups}" else 3,); reset_device; forget 3; ask 16
    then load_sizes == (2,)
hit-ends-before-the-last-chunk-unless-the-next-token-is-known-to-be-the-same groups=full:4+drafter $other=20|12+8@900
    # two requests with three blocks in common and another fourth: two of them are loaded
    ask 20; reset_device; ask {other}; then load_sizes == (4 if "{other}" == "20" else 2,)
coarse-group-is-not-starved-by-the-drafter groups=full:16/full:4+drafter
    # a group with blocks of sixteen tokens is hit at 16: the drafter's fifth block of four is the proof, and none is lost
    ask 28; reset_device; ask 28; then load_sizes == (1, 4)
""")


@pytest.mark.parametrize("scene", SCENES)
def test_behaviour_scene(scene: Scene, tmp_path: Path) -> None:
    """As their test of that name, or those that the table names."""
    play(scene, tmp_path)


# --- lookups and loads ------------------------------------------------------------------------------------------------------


def test_uncertain_window_is_asked_for_no_other_units() -> None:
    """Where nobody knows yet, the scan of a window asks for each unit once more at most, and for none outside its range."""
    asked: list[int] = []

    def ask(_group: int, unit: int, _blocks: int) -> Answer:
        asked.append(unit)
        return Answer.RETRY

    found = common_length([Unit(tokens=1, window=1, tail=1, size=1)], 0, 3, ask)

    assert found.deferred
    assert set(asked) == {0, 1, 2}
    assert max(map(asked.count, asked)) <= 2


def keep_more(monkeypatch: pytest.MonkeyPatch, extra: int, *, drafter: bool) -> None:
    """In engines that are made from now on, the second group's window keeps so many tokens more."""
    cache_of = making.cache_of

    def keeping_more(shape: making.Shape) -> KVCacheConfig:
        made = cache_of(shape)
        object.__setattr__(made.kv_cache_groups[1].kv_cache_spec, "extra_retained_tokens", extra)
        object.__setattr__(made.kv_cache_groups[1], "is_eagle_group", drafter)
        return made

    monkeypatch.setattr(making, "cache_of", keeping_more)


@pytest.mark.parametrize(("extra", "blocks"), [(0, 2), (1, 2), (2, 3), (3, 3), (6, 4)])
def test_window_that_keeps_more_is_stored_and_loaded_with_it(extra: int, blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of 8 tokens in blocks of 4 that keeps more, as for a drafter with several modules: a hit reads that, too."""
    keep_more(monkeypatch, extra, drafter=False)
    scene = made(groups="full/swa:4:8")
    scene.ask(40)
    scene.reset_device()
    scene.ask(40)
    walked = made(groups="full/swa:4:8", num_gpu_blocks="30", host_blocks="40", lag="0-4", seed=str(extra)).rig
    walk(walked, extra)

    assert scene.load_sizes == (9, blocks)
    assert walked.loaded > 0


@pytest.mark.parametrize("extra", [1, 3])
@pytest.mark.parametrize("chunk", [1, 2])
def test_window_of_a_drafter_that_keeps_more_is_stored_and_loaded_with_it(
    chunk: int, extra: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same where the window's group has layers of a drafter: what vLLM leaves in the table is what is loaded."""
    keep_more(monkeypatch, extra, drafter=True)
    room = {"num_gpu_blocks": "30", "host_blocks": "40", "blocks_per_chunk": str(chunk)}
    walked = made(groups="full/swa:4:8", lag="0-4", seed=str(extra), **room).rig
    walk(walked, extra, 60)

    assert walked.loaded > 0


@AHEAD
def test_no_tokens_to_load_asks_nothing(ahead: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a cap of no tokens on loads the host tier is not even asked, and what it has not is stored as always."""
    scene = made(ahead=ahead, blocks_per_chunk="3", max_load_tokens="0")
    names = scene.ask(25)
    scene.reset_device()
    scene.forget(names[2::3])
    asked: list[object] = []
    monkeypatch.setattr(scene.rig.side.tier, "answer", lambda *question: asked.append(question))
    scene.ask(25)

    assert asked == []
    assert scene.loads == []
    assert scene.store_sizes == (6,)


# --- stores, waits, states and drafters ------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 3])
@AHEAD
def test_refused_store_is_tried_again(ahead: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What finds no room is offered in each step until it does, each of which is counted, and then it is stored."""
    scene = made(ahead=ahead, blocks_per_chunk=str(chunk))
    tier, refused = scene.rig.side.tier, list[int]()
    reserve = tier.reserve

    def refuse(names: list[Name]) -> list[int] | None:
        if scene.rig.step_number < 4:
            refused.append(scene.rig.step_number)
            return None
        return reserve(names)

    monkeypatch.setattr(tier, "reserve", refuse)
    names = scene.ask(12, 8)
    counted = scene.rig.side.offload._stores.counts["refused"]

    assert set(refused) == {1, 2, 3}
    assert counted >= len(set(refused))
    assert scene.has(names) == ([0, 1, 2] if chunk == 1 else [2])


def test_block_without_a_name_waits_for_it() -> None:
    """A full block whose name is not known yet is not stored, and nothing else is under its name; later it is."""
    scene = made()
    name = scene.add(8, 4)
    request = scene.rig.scheduler.requests[name]
    connector = scene.rig.scheduler.connector
    build = connector.build_connector_meta
    stored = []

    def unnamed(output: object) -> object:
        missing = request.block_hashes.pop() if scene.rig.step_number < 3 else None
        try:
            return build(output)
        finally:
            if missing is not None:
                request.block_hashes.append(missing)

    connector.build_connector_meta = unnamed
    names = list(request.block_hashes)
    while scene.rig.step():
        stored.append(scene.store_sizes)

    assert stored[:3] == [(1,), (1,), (2,)]
    assert scene.has(names) == [0, 1]


@AHEAD
def test_load_holds_its_blocks_and_waits_for_nobody(ahead: str) -> None:
    """While a load is out its blocks are nobody else's, so no step ever has to wait for it."""
    scene = made(num_gpu_blocks="14", lag="20", ahead=ahead)
    scene.ask(16)
    scene.reset_device()
    scene.add(17)
    scene.step()
    (load,) = scene.loads
    others = [scene.add(f"12@{1000 * number}", 6) for number in (5, 6, 7)]
    seen: set[int] = set()
    while scene.rig.side.ledger.jobs.live and scene.rig.side.ledger.jobs.is_out(load.job.number) and scene.rig.step():
        manager = scene.rig.scheduler.kv_cache_manager
        seen.update(*[manager.get_block_ids(name)[0] for name in others if name in scene.rig.scheduler.requests])
    scene.drain()

    assert seen
    assert seen.isdisjoint(load.target.tolist())
    assert load.job.number not in scene.waited


def test_reset_is_not_over_with_reports_of_other_copies() -> None:
    """A report of a copy that was over before the reset, once more, lets nobody believe that the reset is over."""
    scene = made(lag="10")
    scene.ask(16)
    old = scene.stores[0].job
    scene.add("16@5000")
    while scene.rig.running:
        scene.step()
    scene.rig.scheduler.reset_prefix_cache(reset_connector=True)
    again = WorkerReport(scene.steps[-1].number, completions=(Completion(old, Worker(0), Result.OK),))
    scene.rig.scheduler.connector.update_connector_output(KVConnectorOutput(kv_connector_worker_meta=WorkerMetadata(again)))
    goes_on = scene.rig.scheduler.has_requests()
    scene.drain()

    assert goes_on
    assert not scene.rig.scheduler.has_requests()


@AHEAD
def test_block_of_a_state_is_handed_out_behind_a_wait_for_its_store(ahead: str) -> None:
    """Whoever gets the block of a state while its store is out gets it in a step that waits for the store first."""
    scene = made(groups="full/mamba", num_gpu_blocks="16", lag="60", ahead=ahead)
    scene.add(33)
    names = scene.hashes
    while scene.rig.running:
        scene.step()
    blocks = {block for _, block, _ in scene.handed}
    jobs = {each.job.number for each in scene.stores if blocks & set(each.source[each.group_sizes[0] :].tolist())}
    second = scene.add("41@5000")
    taken: set[int] = set()
    while scene.rig.running:
        scene.step()
        if second in scene.requests:
            taken.update(scene.table(second), scene.table(second, 1))
    waits = scene.waited
    scene.drain()

    assert jobs
    assert blocks & taken
    assert jobs & waits
    assert scene.has(names, group=1) == [at // 4 - 1 for _, _, at in scene.handed if at <= 33]


def test_drafter_keeps_what_is_decoded_back_until_the_next_block_is_full() -> None:
    """The other group stores a block when it is full; at the end of the request both have all that is full."""
    scene = made(groups="full:4/full:4+drafter")
    scene.add(8, 14)
    seen = set()
    while scene.rig.step():
        seen.add(scene.store_sizes)

    assert {(2, 2), (3, 2), (4, 3), (5, 4), (5, 5)} <= seen
    assert all(full - drafter in (0, 1) for full, drafter in seen)
