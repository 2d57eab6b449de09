"""``python -m tests.vllm.found``: what random traffic found in vLLM 0.33.0, each reduced to a few requests.

Nothing here is random: one worker, synchronous scheduling, and copies that land in the step of their launch, or one later in
the last story. All settings that are not named are vLLM's defaults. Each function says what happens, runs it, and returns the
rig.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeAlias

from tests.vllm.engine import RELEASE
from tests.vllm.rig import Beside, GroupSpec, Lag, Rig, WorldSpec
from tests.vllm.worlds import Connector

Story: TypeAlias = Callable[[], Rig]
NOTHING = "nothing"


def _prompt(tokens: int, start: int = 100) -> list[int]:
    return list(range(start, start + tokens))


def _ask(rig: Rig, prompt: list[int], answer: int = 1) -> None:
    rig.add(prompt, answer)
    rig.drain()


def partial_chunk() -> Rig:
    """OffloadingConnector, chunks of two blocks: a chunk of a window that is stored in part counts as a hit for all of it.

    1. A request of 18 tokens runs while the host refuses (it has no room). Its blocks stay in the device's prefix cache.
    2. It comes again and hits 16 tokens on the device. Its window (12 tokens) begins in block 1: block 0 is null in its table.
       Now the host accepts. Block 1 is in reach of the request's last full chunk, so chunk 0 is stored: its second half only.
       Only blocks that this request's own boundary reaches are asked whether they are null.
    3. The device's cache is reset. A request that has 8 tokens in common with the first hits chunk 0 on the host. Its window
       needs both blocks, both are loaded, and the first was never written.
    """
    rig = Rig(WorldSpec((GroupSpec("full"), GroupSpec("swa", window=12)), blocks_per_chunk=2))
    rig.refuse = True
    _ask(rig, _prompt(18))
    rig.refuse = None
    _ask(rig, _prompt(18))
    rig.reset_prefix_cache()
    _ask(rig, _prompt(8) + _prompt(4, start=500))
    return rig


def hole_in_chunk() -> Rig:
    """OffloadingConnector, chunks of six blocks: a hole in the middle of a chunk moves the blocks behind it.

    1. A request of 25 tokens runs in two steps, of 20 and of 5 tokens. In the second, blocks 0 to 3 are behind the window (4
       tokens) and go back, the last one first. Two of their places are handed out again at once, those of 3 and 2. Their
       entries are cleared as stale; those of 0 and 1 are not: nobody has them yet.
    2. Chunk 0 is stored: blocks 0, 1, 4 and 5, with one first index. The worker takes them for neighbours, so 4 and 5 land in
       the places of 2 and 3, and the place of block 5 is never written.
    3. The device's cache is reset. The request comes again, hits chunk 0 on the host, and loads block 5.
    """
    rig = Rig(WorldSpec((GroupSpec("swa", window=4),), max_num_batched_tokens=20, blocks_per_chunk=6, host_blocks=60))
    _ask(rig, _prompt(25))
    rig.reset_prefix_cache()
    _ask(rig, _prompt(25))
    return rig


def reset_of_window() -> Rig:
    """OffloadingConnector: a reset of the host tier makes a running request store blocks that its window has given back.

    1. A request of 16 tokens runs, with a window of 8 tokens. The blocks of its prompt are stored, leave the window while it
       decodes, and are handed out to a second request. Stale entries are cleared where they are not stored yet; these are
       stored, and keep the old ids.
    2. The prefix cache is reset, the host tier with it; running requests stay. The connector begins again at chunk 0, and
       stores what stands in the old entries: blocks of the second request under the keys of the first.
    3. When both have ended and the device's cache is reset, the first prompt comes again and loads them.
    """
    rig = Rig(WorldSpec((GroupSpec("swa", window=8),), num_gpu_blocks=8, max_num_batched_tokens=8))
    rig.add(_prompt(16), 24)
    for _ in range(14):
        rig.step()
    rig.add(_prompt(16, start=500), 8)
    for _ in range(4):
        rig.step()
    rig.reset_prefix_cache(reset_connector=True)
    rig.drain()
    rig.reset_prefix_cache()
    _ask(rig, _prompt(16))
    return rig


def loads_that_wait_for_each_other() -> Rig:
    """Any connector with asynchronous loads, a full group and a window: two requests whose loads have landed wait for ever.

    1. The host holds two texts, of 18 and of 13 tokens. The device's cache is reset, and a request asks for the first, another
       for 12 tokens of the second.
    2. Both load. Before the second is admitted, the scheduler reserves what the first will still need: one block of the full
       group, none of the window, because a table's null blocks count as held against the most that a window can hold. So one
       block stays free, and the first needs two.
    3. The first stands at the head of the queue and gets no block; the second needs none and is not looked at.
    """
    rig = Rig(
        WorldSpec((GroupSpec("full"), GroupSpec("swa", window=4)), num_gpu_blocks=11, max_num_seqs=4, max_num_batched_tokens=4)
    )
    first, second = _prompt(18), _prompt(13, start=500)
    _ask(rig, first)
    _ask(rig, second)
    rig.reset_prefix_cache()
    rig.add(first, 1)
    rig.add(second[:12], 1)
    for _ in range(200):
        rig.step()
    return rig


def state_that_is_not_counted() -> Rig:
    """Any connector with loads inside the step, and a group with states: an allocation fails that was checked before.

    1. The host holds the text of a request of 10 tokens, and the device's cache is reset. Another request runs and leaves four
       blocks free.
    2. The first comes again and hits 8 tokens, to be loaded in the very step that computes the other two. It needs three blocks
       of the full group, one for the state that is loaded and one for the state at the end of the step. The check ahead counts
       one for both, and passes; the allocation fails behind it and takes the engine down.
    """
    sync = {"sync_load_budget_bytes": 4096}
    rig = Rig(WorldSpec((GroupSpec("full"), GroupSpec("mamba")), num_gpu_blocks=10, extra_config=sync))
    _ask(rig, _prompt(10))
    rig.reset_prefix_cache()
    rig.add(_prompt(12, start=500), 4)
    rig.step()
    rig.step()
    _ask(rig, _prompt(10))
    return rig


def _lazy() -> Rig:
    """A small host, and two requests that end one step apart."""
    lazy = {"lazy_offload": True}
    spec = WorldSpec(
        num_gpu_blocks=32, host_blocks=4, max_num_batched_tokens=128, connector="simple", extra_config=lazy, lag=Lag(1, 1)
    )
    rig = Rig(spec)
    rig.add(_prompt(8), 1)
    rig.add(_prompt(40, start=500), 2)
    return rig


def lazy_store_without_end() -> Rig:
    """SimpleCPUOffload, lazy, with less host memory than the device has free blocks to cover: it stores for ever.

    Two requests end one step apart, so that two stores are out whose landings alternate. An engine without requests is stepped
    as long as a store is out, and each of these steps finds a cached block that is not on the host, since an earlier store has
    displaced it, and stores it.
    """
    rig = _lazy()
    for _ in range(200):
        rig.step()
    return rig


def request_behind_lazy_stores() -> Rig:
    """SimpleCPUOffload, lazy, as above: the stores that never end hold what a request waits for.

    The third request needs every block of the device. In each step one or two of them are the source of a store that is out,
    and each landing is followed by the next store.
    """
    rig = _lazy()
    for _ in range(2):
        rig.step()
    rig.add(_prompt(31 * 4 - 1, start=2000), 1)
    for _ in range(200):
        rig.step()
    return rig


def preempted_before_it_was_computed(connector: Connector | None = "offloading") -> Rig:
    """Any connector, or none; priority scheduling: a request hits blocks that were never computed.

    1. Seven blocks of four tokens. A request of 21 tokens with a low priority computes 8 in each of two steps (a third request,
       of one token, lets the limit for long prompts apply from the start). An urgent one of 4 tokens comes behind it in the
       queue of those that run.
    2. The third step schedules tokens 16 to 21 of the first, and gives the block of 16 to 20 its name in the prefix cache. Then
       the urgent one finds no free block, so that the same step preempts the first and takes its tokens out again.
    3. The block goes back to the pool with its name. The first comes back, hits 20 tokens, and computes the last one over it.
    """
    rig = Rig(WorldSpec(num_gpu_blocks=8, max_num_batched_tokens=12, connector=connector, priority=True, part_tokens=8))
    rig.refuse = connector is not None
    rig.add(_prompt(21), 1, priority=9)
    rig.add(_prompt(1, start=900), 1, priority=9)
    rig.step()
    rig.add(_prompt(4, start=500), 3, priority=0)
    rig.drain()
    return rig


def text_longer_than_the_host() -> Rig:
    """OffloadingConnector with files below the host, and a text that is longer than the host: its request never starts.

    1. A request of 22 tokens runs in steps of four. The host has four slots, so the file system has all five chunks of the text
       in the end, and the host the last ones.
    2. The device's cache is reset, and the text comes again. In each step the first chunks are hits in the host, and one behind
       them is a hit below: it is promoted into a slot that another chunk of the same text has to leave. So the next step misses
       that one. The request is asked for again in every step, and all of its text is never there at once.
    """
    rig = Rig(WorldSpec(num_gpu_blocks=32, host_blocks=4, max_num_seqs=4, max_num_batched_tokens=4, below=Lag()))
    _ask(rig, _prompt(22))
    rig.reset_prefix_cache()
    rig.add(_prompt(22), 1)
    for _ in range(200):
        rig.step()
    rig.close()
    return rig


def error_inside_a_prompt() -> Rig:
    """OffloadingConnector, and a model with images: a request that ends with an error stores a block that it has half computed.

    1. A request with an image of four tokens runs; the encoder's output stays cached under the image's id.
    2. Another has ten tokens of text and then six of an image, which has the same id: a client has re-used it. Its first step
       computes the text, two blocks and a half. In the second it is the image's turn: vLLM sees that the id stands for four
       tokens, and ends the request with an error.
    3. What is stored of it is counted by its prompt: of an aborted request only what is computed would be. So the third block
       goes to the host whole, under the hash of twelve tokens.
    4. A third request has the same text and, rightly, the image of four tokens. It hits two blocks on the device and the third
       on the host, whose second half is of whoever had the block before.
    """
    rig = Rig(WorldSpec(num_gpu_blocks=20, max_num_batched_tokens=10, encoder_tokens=16))
    for prompt, image in (
        (_prompt(70, start=500), ("cat", 0, 4)),
        (_prompt(16), ("cat", 10, 6)),
        (_prompt(18), ("cat", 10, 4)),
    ):
        rig.add(prompt, 1, beside=Beside(images=[image]))
        rig.drain()
    return rig


def ring_behind_a_full_hit() -> Rig:
    """OffloadingConnector, a model with a ring of raw keys: where a prompt is loaded whole, its last token meets an empty ring.

    1. A request of 8 tokens, two blocks, runs and is stored. The device's cache is reset.
    2. It comes again, and all of its tokens are loaded. To say something vLLM computes the last one again, at token 7. The keys
       of tokens 4 to 7 are compressed together there, out of the ring; it is a new block, and has none of tokens 4 to 6.
    """
    rig = Rig(WorldSpec((GroupSpec("full"), GroupSpec("ring", 4, 4))))
    _ask(rig, _prompt(8))
    rig.reset_prefix_cache()
    _ask(rig, _prompt(8))
    return rig


FOUND: tuple[Story, ...] = (
    preempted_before_it_was_computed,
    partial_chunk,
    hole_in_chunk,
    reset_of_window,
    loads_that_wait_for_each_other,
    state_that_is_not_counted,
    lazy_store_without_end,
    request_behind_lazy_stores,
    text_longer_than_the_host,
    error_inside_a_prompt,
    ring_behind_a_full_hit,
)


def seen(story: Story) -> str:
    """What is wrong when a story is over; older releases may fall earlier, to a fault that has been mended since."""
    try:
        rig = story()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if rig.corruptions:
        return str(rig.corruptions[0])
    if rig.running:
        return f"{len(rig.running)} requests have not ended after {rig.step_number} steps"
    if not rig.idle:
        return f"no request is left, and step {rig.step_number} is not the last ({rig.ranks[0].copies.stores} blocks stored)"
    return NOTHING


def main() -> int:
    """Tell and run all of them. Exit status 1 if one shows nothing, as in a release that has it mended."""
    status = 0
    for story in FOUND:
        what = seen(story)
        print(f"{story.__name__} (vllm {RELEASE})\n\n    {story.__doc__}\n    Seen: {what}.\n")
        status |= what == NOTHING
    return status


if __name__ == "__main__":
    sys.exit(main())
