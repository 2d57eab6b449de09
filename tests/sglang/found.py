"""``python -m tests.sglang.run --python VERSION -m tests.sglang.found [NAME]``: faults of SGLang itself that the rig has found.

Each story is as small as it could be made, runs SGLang's own scheduler and cache without a GPU, and needs nothing of blocklife.
It prints one line: what is seen, or that nothing is. Exit status 0 if every story that was asked for shows its fault, else 1.
`specs/sglang-findings.md` tells them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from tests.behind.stories import tell
from tests.programs import with_fixed_hashes

if __name__ == "__main__":
    with_fixed_hashes("tests.sglang.found")

from tests.sglang.engine import RELEASE
from tests.sglang.rig import Rank, Rig
from tests.sglang.traffic import Traffic
from tests.sglang.worlds import WORLDS

Attach: TypeAlias = Callable[[Rank], None]
Story: TypeAlias = Callable[[Attach | None], tuple[Rig, str]]
"""Takes what is done to each rank first, a watch say. Returns the rig, and what was seen; "" for nothing."""


def aborted_while_a_copy_holds_its_memory(attach: Attach | None = None) -> tuple[Rig, str]:
    """A request that runs alone is aborted for want of memory that a copy to the host is about to give back.

    72 slots, pages of one token, written through; no text has more than 46 tokens. A request has ended, and its slots are
    locked until their copy has landed. Another one goes on alone, and needs one more slot before that.
    """
    world = WORLDS["full"]
    rig = Rig(world.spec, 160, attach)
    traffic, tree = Traffic.drawn(rig, 160, world=world), rig.ranks[0].tree
    locked = out = 0
    while rig.step_number < 400 and not rig.given_up:
        locked, out = _locked(tree), len(tree.ongoing_write_through)
        traffic.act()
        rig.step()
    if not rig.given_up:
        return rig, ""
    ((name, why),) = rig.given_up.items()
    tokens, left = len(rig.texts[name].tokens), _locked(tree)
    rig.ranks[0].device.land_all()
    rig.step()
    return rig, (
        f"step {rig.step_number - 1}: {name} runs alone, with at most {tokens} tokens, and is aborted ({why!r}); {locked} of 72"
        f" were locked before, {left} without it, by {out} stores that are out, and {_locked(tree)} when these have landed"
    )


def _locked(tree: Any) -> int:
    """Tokens of device memory that the tree cannot evict."""
    held = tree.protected_size()
    return int(held[0] if isinstance(held, tuple) else held)


def window_budget_counts_what_the_load_locks(attach: Attach | None = None) -> tuple[Rig, str]:
    """A request is admitted with memory of the windows that its own load then locks, and the scheduler falls.

    The prefix of a request has its keys and values of full attention on the device; of the windows a part is on the device and
    a part on the host. What is on the device counts as evictable when the request is admitted; the load locks it.
    """
    world = WORLDS["window"]
    rig = Rig(world.spec, 172, attach)
    traffic = Traffic.drawn(rig, 172, world=world)
    try:
        traffic.run(400)
        rig.drain(100)
    except RuntimeError as error:
        return rig, f"step {rig.step_number}: {str(error).splitlines()[0]}"
    except TimeoutError:
        return rig, ""
    return rig, ""


def ranks_store_different_nodes(attach: Attach | None = None) -> tuple[Rig, str]:
    """One of two ranks has less host memory and cannot store what the other stores: their counts of what has landed differ."""
    world = WORLDS["skewed"]
    rig = Rig(world.spec, 0, attach)
    traffic = Traffic.drawn(rig, 0, world=world)
    traffic.run(250)
    try:
        rig.drain(100)
    except TimeoutError:
        waiting = [len(rank.tree.ongoing_write_through) for rank in rig.ranks]
        return rig, f"step {rig.step_number}: no request is left, and the ranks wait for {waiting} stores to be counted"
    return rig, ""


def request_goes_on_without_its_state(attach: Attach | None = None) -> tuple[Rig, str]:
    """The load that a request needs is called off, and it goes on from its prefix on the device with an empty state.

    Two requests of one step need a load from the same path of the tree. The first has the pages loaded; the second needs the
    state of a node among these, and is refused, for that node is being loaded. It keeps its prefix, and gets no state for it.
    """
    world = WORLDS["states-back"]
    rig = Rig(world.spec, 5, attach)
    traffic, tree = Traffic.drawn(rig, 5, world=world), rig.ranks[0].tree
    load, refused = tree.load_back, set[str]()

    def loads(node: object, *args: object, req: Any, **kwargs: object) -> object:
        loaded = load(node, *args, req=req, **kwargs)
        if not loaded:
            refused.add(req.rid)
        return loaded

    tree.load_back = loads
    while rig.step_number < 400 and not rig.corruptions:
        refused.clear()
        traffic.act()
        rig.step()
    wrong = [each for each in rig.corruptions if each.reader in refused]
    if not wrong:
        return rig, ""
    batch, name = rig.ranks[0].scheduler.last_batch, wrong[0].reader
    slots = rig.ranks[0].engine.rows.get_mamba_indices(batch.req_pool_indices).tolist()
    (slot,) = (slot for slot, request in zip(slots, batch.reqs, strict=True) if request.rid == name)
    kind = "which was cleared" if slot in batch.mamba_clear_indices.tolist() else "which is another's"
    return rig, f"step {rig.step_number}: the load for {name} is called off, and it reads the {wrong[0].what} in a slot {kind}"


def refused_load_leaves_a_request_without_its_state(attach: Attach | None = None) -> tuple[Rig, str]:
    """The same under write-through: the load that a request needs is refused as if the device had no memory for it.

    That the memory is short is played here: the controller answers the first load as it does where none can be had.
    """
    world = WORLDS["states"]
    rig = Rig(world.spec, 0, attach)
    traffic, controller = Traffic.drawn(rig, 0, world=world), rig.ranks[0].tree.cache_controller
    load, at = controller.load, list[int]()

    def loads(*args: object, **kwargs: object) -> object:
        at.append(rig.step_number)
        return load(*args, **kwargs) if len(at) > 1 else None

    controller.load = loads
    while rig.step_number < 200 and not rig.corruptions:
        traffic.act()
        rig.step()
    if not rig.corruptions or at[:1] != [rig.corruptions[0].step]:
        return rig, ""
    wrong = rig.corruptions[0]
    return rig, f"step {wrong.step}: the first load is refused, and {wrong.reader} reads the wrong {wrong.what}"


def no_memory_for_a_state_of_a_prompt(attach: Attach | None = None) -> tuple[Rig, str]:
    """A state of a prompt is to be cached, all memory of states is locked or in use, and the scheduler falls.

    The memory is as large as SGLang itself makes it for so many requests. What is locked are states that requests have gone
    on from, and some that a copy to the host reads.
    """
    world = WORLDS["states"]
    rig = Rig(world.spec, 3, attach)
    traffic, tree = Traffic.drawn(rig, 3, world=world), rig.ranks[0].tree
    try:
        traffic.run(400)
    except AssertionError as error:
        running = len(rig.ranks[0].scheduler.running_batch.reqs)
        return rig, (
            f"step {rig.step_number}: {error}: {world.spec.state_slots} slots, {tree.mamba_protected_size()} of them locked by"
            f" {running} requests that run and {len(tree.ongoing_write_through)} stores that are out"
        )
    return rig, ""


def state_is_kept_under_a_shorter_text(attach: Attach | None = None) -> tuple[Rig, str]:
    """A state for the cache is written over by the next one, and kept as what it was: who goes on from it reads another.

    The first step of the answer leaves a state for the cache, behind 8 tokens. The next one, behind 16, is to be written in the
    other of the two slots; that turn is not taken. The answer ends by surprise while the step that writes it is in flight.
    """
    spec = WORLDS["states-overlap"].spec
    rig = Rig(spec, 0, attach)
    first = rig.add([11, 12, 13, 14, 15, 16, 17], 9, surprise=True)
    rig.drain()
    text = rig.texts[first]
    second = rig.add([*text.tokens[: spec.track_tokens], 7], 2)
    rig.drain()
    wrong = [each for each in rig.corruptions if each.reader == second]
    return (
        rig,
        f"step {wrong[0].step}: {second} goes on from what is kept, and it reads the wrong {wrong[0].what}" if wrong else "",
    )


FOUND: tuple[Story, ...] = (
    aborted_while_a_copy_holds_its_memory,
    window_budget_counts_what_the_load_locks,
    ranks_store_different_nodes,
    request_goes_on_without_its_state,
    refused_load_leaves_a_request_without_its_state,
    no_memory_for_a_state_of_a_prompt,
    state_is_kept_under_a_shorter_text,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Tell the stories."""

    def said(story: Story) -> str:
        return story(None)[1] or "no fault is seen"

    stories = {story.__name__: partial(said, story) for story in FOUND}
    return tell("tests.sglang.found", f"SGLang {RELEASE}", __doc__, stories, argv)


if __name__ == "__main__":
    sys.exit(main())
