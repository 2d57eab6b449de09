"""Our linker inside SGLang: its scheduler, its tree and its memory, with host memory under blocklife's ledger.

Goal: every byte that SGLang reads is right, whatever the copies do; a request whose load has failed says nothing. Method:
random traffic in worlds of the rig with a linker, then the same with one thing done wrong in the linker, which must show.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from attrs import evolve, frozen

from blocklife.engines.sglang import linker as room
from blocklife.engines.sglang.linker import _linker as linker_room
from blocklife.engines.sglang.linker import _plugin as plugin
from blocklife.engines.sglang.linker import _starting as starting
from blocklife.engines.sglang.linker._below import identities_of
from blocklife.engines.sglang.linker._device import DevicePages, memories_of
from blocklife.errors import CapacityError, MisuseError
from blocklife.offload import replacement
from blocklife.offload.replacement import Lru
from tests.sglang.drive import Verdict, judge
from tests.sglang.linked import LINKED, FaultyLinker, LateLinker, linked
from tests.sglang.linked_below import FolderLinker, folder
from tests.sglang.planted_linker import LINKER_FAULTS, linker_of
from tests.sglang.rig import Rank, Rig
from tests.sglang.traffic import Traffic
from tests.sglang.worlds import World, WorldSpec

SEEDS = range(3)
PATIENCE = range(20)
"""Seeds that a planted fault has to show in; the first in which it does is enough."""
STEPS = 200


@frozen
class LinkedRun:
    """One seed of a world with a linker."""

    verdict: Verdict
    ranks: list[Rank]

    @property
    def failed(self) -> set[str]:
        """Requests that SGLang gave up because their load had failed: what their forward pass read does not count."""
        return set().union(*(rank.engine.failed_loads for rank in self.ranks))

    @property
    def troubles(self) -> set[str]:
        """What went wrong."""
        verdict = self.verdict
        found = {"corrupt" for each in self.ranks[0].copies.witness.corruptions if each.reader not in self.failed}
        found |= {"stuck"} if verdict.stuck else set()
        found |= {"missing"} if verdict.leak else set()
        found |= {"texts"} if verdict.wrong_texts else set()
        return found | ({verdict.raised.kind} if verdict.raised is not None else set())

    def count(self, what: str) -> int:
        """One of the counts of the linkers, over all ranks."""
        return sum(getattr(linker_of(rank).statistics(), what) for rank in self.ranks)


def run(name: str, world: World, seed: int, plant: Callable[[Any], None] = lambda _: None) -> LinkedRun:
    """Random traffic with a linker; *plant* does something wrong in it before the first step."""
    ranks: list[Rank] = []

    def on_rank(rank: Rank) -> None:
        plant(linker_of(rank))
        ranks.append(rank)

    return LinkedRun(judge(name, world, seed, STEPS, on_rank), ranks)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", sorted(LINKED))
def test_every_byte_is_right_in_random_traffic(name: str) -> None:
    """No seed shows anything but requests that were given up, memory is whole at the end, and pages went both ways.

    With a store below, what host memory had to give up has come from there.
    """
    runs = [run(name, LINKED[name], seed) for seed in SEEDS]
    below = [counts for each in runs for rank in each.ranks for counts in linker_of(rank).statistics_below()]

    assert [(str(each.verdict), each.troubles) for each in runs if each.troubles] == []
    assert all(each.count("num_stored") > 0 for each in runs)
    assert sum(each.count("num_loaded") for each in runs) > 0
    assert bool(below) is name.startswith("below")
    assert not below or sum(each.demoted for each in below) > 0
    assert not below or sum(each.promoted for each in below) > 0


def test_worlds_meet_what_they_are_for() -> None:
    """Copies fail where they are made to, some nodes find no room, some pages are there already."""
    faulty = [run("faulty", LINKED["faulty"], seed) for seed in SEEDS]
    impatient = run("impatient", LINKED["impatient"], 0)
    tight = run("tight", World("", linked(LateLinker, host_pages=6), busy=True), 0)

    assert sum(each.count("num_failed_stores") for each in faulty) > 0
    assert sum(each.count("num_failed_loads") for each in faulty) > 0
    assert impatient.count("num_failed_stores") > impatient.count("num_stored")
    assert tight.count("num_no_room") > 0
    assert tight.troubles == set()
    assert sum(each.count("num_known") for each in faulty) > 0


@pytest.mark.parametrize("name", sorted(LINKER_FAULTS))
def test_fault_planted_in_the_linker_shows(name: str) -> None:
    """One thing done wrong is seen in at least one seed, and its world is clean without it (above)."""
    fault = LINKER_FAULTS[name]
    seen: list[str] = []
    for seed in PATIENCE:
        found = run(fault.world, LINKED[fault.world], seed, fault.plant)
        if found.troubles & fault.shows:
            return
        seen.append(str(found.verdict))
    pytest.fail("\n".join(seen))


def rounds(spec: WorldSpec, computed: list[int], *, times: int = 3, close: bool = False) -> dict[str, list[int]]:
    """The same prompts, several *times* over, with others in between that need all of the device."""
    rig = Rig(spec, 5)
    forward = rig.ranks[0].forward
    launch = forward.launch

    def counted(batch: Any, turns: list[Any]) -> Any:
        computed.append(sum(turn.stop - turn.start for turn in turns))
        return launch(batch, turns)

    forward.launch = counted  # type: ignore[method-assign]
    families = [[100 * family + at for at in range(1, 41)] for family in range(1, 6)]
    for prompt in families * times:
        rig.add(prompt, max_tokens=3)
        rig.drain()
    assert rig.corruptions == []
    assert rig.missing() == ""
    if close:
        linker_of(rig.ranks[0]).close()
    return rig.finished


class BlindLinker(LateLinker):
    """A linker that never finds anything."""

    def lookup(self, rid: str, transfers: list[Any]) -> list[int]:
        """Nothing."""
        return []


def test_texts_are_those_of_an_engine_without_host_memory() -> None:
    """With the linker, with SGLang's own host memory and without any the engine says the same; with either it computes less."""
    spec, counts = linked(LateLinker, host_pages=80), {name: list[int]() for name in ("ours", "theirs", "none")}
    ours = rounds(spec, counts["ours"])
    theirs = rounds(evolve(spec, linker=None), counts["theirs"])
    none = rounds(evolve(spec, linker=f"{__name__}:BlindLinker"), counts["none"])

    assert ours == theirs == none
    assert len(ours) == 15
    assert sum(counts["ours"]) == sum(counts["theirs"]) < sum(counts["none"])


def test_request_whose_load_has_failed_says_nothing() -> None:
    """SGLang ends it with an error and keeps nothing of it; all others end with their own text."""
    rig = Rig(LINKED["faulty"].spec, 1)
    traffic = Traffic.drawn(rig, 1, world=LINKED["faulty"])
    traffic.run(STEPS)
    rig.drain()
    failed = rig.ranks[0].engine.failed_loads

    assert failed
    assert [rig.finished[name] for name in sorted(failed & rig.finished.keys())] == [[]] * len(failed & rig.finished.keys())
    assert rig.wrong_texts == []
    assert {each.reader for each in rig.corruptions} <= failed
    assert rig.missing() == ""


@pytest.mark.parametrize("name", ["unlaunched", "unlaunched-ranks"])
def test_copy_that_cannot_be_launched_costs_a_computation(name: str) -> None:
    """An error of the driver reaches no step of the engine: a store is not stored, a load is computed on every rank."""
    seen = [run(name, LINKED[name], seed) for seed in SEEDS]

    assert [each.troubles for each in seen] == [set()] * len(SEEDS)
    assert sum(each.count("num_failed_stores") for each in seen) > 0
    assert sum(each.count("num_refused_loads") for each in seen) > 0
    assert [each.failed for each in seen] == [set()] * len(SEEDS)


# --- a store below ------------------------------------------------------------------------------------------------------


def test_engine_hits_what_another_one_has_left_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real files: the second engine says the same and computes less; one with other weights finds nothing."""
    spec = linked(FolderLinker, host_pages=80)
    first, second, other = list[int](), list[int](), list[int]()
    monkeypatch.setattr(FolderLinker, "said", folder(tmp_path))
    texts = rounds(spec, first, times=1, close=True)
    again = rounds(spec, second, times=1, close=True)
    monkeypatch.setattr(FolderLinker, "said", folder(tmp_path, below_generation="others"))
    foreign = rounds(spec, other, times=1, close=True)

    assert texts == again == foreign
    assert sum(second) < sum(first) / 2
    assert sum(other) == sum(first)


def test_entries_are_named_after_the_model_and_its_layout() -> None:
    """Seeds and sizes that differ from start to start are no part of it, other weights and types are."""
    pages = [pages_of(params())]

    def named(place: Sequence[tuple[int, int]] = (), **said: object) -> bytes:
        arguments = SimpleNamespace(**{"model_path": "m", "load_format": "auto", "random_seed": 1, **said})
        (identity,) = identities_of(arguments, ["kv"], pages, place, "")
        return identity.fingerprint

    usual = named()
    assert usual == named(random_seed=2) == named(mem_fraction_static=0.5)
    others = [named(revision="b"), named(dtype="half"), named([(1, 2)]), named(load_format="dummy")]
    assert len({usual, named(load_format="dummy", random_seed=2), *others}) == 6
    with pytest.raises(MisuseError, match=r"SGLang does not say which model it runs, .* \(leave below out\)"):
        named(model_path="")


def test_store_that_cannot_be_opened_stops_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the option."""
    (tmp_path / "file").touch()
    monkeypatch.setattr(FolderLinker, "said", folder(tmp_path / "file"))

    assert refused(linker=f"{FolderLinker.__module__}:FolderLinker").startswith("linker_extra_config: below: ")


class Plain(Lru):
    """A policy that does not say what it would evict next."""

    peek = None  # type: ignore[assignment]


def test_start_that_is_refused_leaves_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is open by then: what asks it, and what copies, ends."""
    monkeypatch.setitem(replacement._factories, "plain", lambda num_slots: Plain())
    monkeypatch.setattr(FolderLinker, "said", folder(tmp_path, policy="plain", below_demote="lazy"))

    assert "has no method peek" in refused(linker=f"{FolderLinker.__module__}:FolderLinker")
    assert [
        each.name for each in threading.enumerate() if each.name.startswith(("blocklife-presence", "blocklife-store"))
    ] == []


def test_ranks_with_different_room_stay_together() -> None:
    """A rank that has no room says so in its turn, and SGLang's own host memory stands still in this world."""
    world = LINKED["ranks"]
    theirs = judge("skewed", World("", evolve(world.spec, linker=None), busy=True), 0, STEPS)
    ours = run("ranks", World("", evolve(world.spec, host_pages=12), busy=True), 0)

    assert theirs.stuck
    assert ours.troubles == set()
    assert len({linker_of(rank).statistics().num_no_room for rank in ours.ranks}) == 2


# --- whoever asks for nothing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["token-overlap", "sixteen"])
def test_forward_pass_that_asks_for_no_layer_reads_what_was_loaded(name: str) -> None:
    """SGLang's passes for embeddings never say whose loads they read."""

    def deaf(linker: Any) -> None:
        counter = linker.layer_done_counter
        counter.set_consumer = counter.wait_until = lambda index: None

    found = run(name, LINKED[name], 0, deaf)

    assert found.troubles == set()
    assert found.count("num_loaded") > 0


def test_counter_is_what_a_graph_of_a_whole_pass_asks() -> None:
    """SGLang's own function, which waits for the last of all layers ahead of the graph."""
    from sglang.srt.model_executor.runner.prefill_cuda_graph_runner import PrefillCudaGraphRunner

    counter = linker_of(Rig(linked(LateLinker)).ranks[0]).layer_done_counter
    counter.set_consumer(0)
    pool = SimpleNamespace(layer_transfer_counter=counter)
    runner = SimpleNamespace(_is_full_backend=True, model_runner=SimpleNamespace(token_to_kv_pool=pool))

    PrefillCudaGraphRunner._wait_for_layer_loads(runner)


# --- what an operator is told -------------------------------------------------------------------------------------------


def transfer(*pages: int) -> list[Any]:
    """Pages of four tokens in blocks of the same numbers, as SGLang names them."""
    from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer

    slots = torch.cat([torch.arange(page * 4, page * 4 + 4) for page in pages])
    return [PoolTransfer(name=PoolName.KV, keys=[f"page {page}" for page in pages], device_indices=slots)]


def test_copies_that_fail_are_logged_with_their_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first at once; of what follows one line in so many seconds, with their number (none is out here behind the third)."""
    linker, said = linker_of(Rig(linked(LateLinker)).ranks[0]), list[str]()

    def launch(transfer: object) -> None:
        raise RuntimeError("invalid argument")

    monkeypatch.setattr(linker_room.logger, "warning", lambda text, *args: said.append(text % args))
    (transport,) = linker.transports
    monkeypatch.setattr(transport._copier, "launch", launch)
    monkeypatch.setattr(transport._streams, "computed", lambda engine: None)  # no stream is under way here
    for page in (1, 2, 3):
        linker.offload(transfer(page))
        linker.num_completed_offloads()
    monkeypatch.setattr(linker_room, "SAY_AGAIN_S", 0.0)
    linker.offload(transfer(4))
    linker.num_completed_offloads()

    begins = "blocklife linker: copies that have failed: "
    assert [line.removeprefix(begins).partition("; the last one: job 1.")[0] for line in said] == ["1", "2", "1"]
    assert all(line.endswith("RuntimeError('invalid argument')") for line in said)
    assert linker.statistics().num_failed_stores == 4


@pytest.mark.parametrize(
    ("said", "ranks"),
    [
        ({}, 1),
        ({"tp_size": 8}, 8),
        ({"tp_size": 16, "nnodes": 2}, 8),
        ({"tp_size": 2, "dp_size": 4}, 8),
        ({"tp_size": 8, "dp_size": 8, "enable_dp_attention": True}, 8),
    ],
)
def test_ranks_of_a_machine_are_counted(said: dict[str, object], ranks: int) -> None:
    """All of them ask for host memory at the same time."""
    assert starting.ranks_here(SimpleNamespace(**said)) == ranks


# --- what is refused ----------------------------------------------------------------------------------------------------


def refused(**more: Any) -> str:
    """The message with which SGLang does not start in this world."""
    with pytest.raises((MisuseError, CapacityError)) as found:
        Rig(evolve(linked(LateLinker), **more))
    return str(found.value)


class MistypedLinker(LateLinker):
    """What a user mistypes."""

    said: ClassVar[dict[str, object]] = {"host_page": 8}

    def __init__(self, *args: Any, extra_config: Any, **kwargs: Any) -> None:
        super().__init__(*args, extra_config=self.said, **kwargs)


def test_mistakes_of_the_configuration_stop_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang hands the options through, and the error names the key, the value and what is wanted."""
    mistyped = f"{__name__}:MistypedLinker"
    assert refused(linker=mistyped).endswith("'host_page' is no key of this linker (did you mean 'host_pages'?)")
    monkeypatch.setattr(MistypedLinker, "said", {"host_bytes": 100})
    assert refused(linker=mistyped).endswith("host_bytes=100 holds no page, which takes 256 bytes (give more)")
    monkeypatch.setattr(MistypedLinker, "said", {"host_pages": 1 << 30})
    assert "(ask for fewer places)" in refused(linker=mistyped)


def params(kind: str = "full", **more: Any) -> Any:
    """What SGLang tells a linker of a rank of the rig, with something else about it."""
    rank = Rig(LINKED[LINKED_KINDS[kind]].spec).ranks[0]
    allocator, pool = rank.engine.allocator, rank.engine.pool
    said = {"page_size": allocator.page_size, "pp_size": 1, "token_to_kv_pool_allocator": allocator, **more}
    allocator.get_kvcache = lambda: pool
    return SimpleNamespace(req_to_token_pool=rank.engine.rows, **said)


LINKED_KINDS = {"full": "flushes", "swa": "window-pages", "mamba": "states-pages"}


def parts(*names: str) -> Any:
    """The parts of a tree."""
    return [SimpleNamespace(name=name) for name in names]


def pages_of(given: Any, *names: str) -> DevicePages:
    """The pages of full attention of a rank."""
    return next(iter(memories_of(given, parts("FULL", *names)).values()))


def with_pool(pool: Any, **more: Any) -> Any:
    """The same with memory of another kind."""
    given = params(**more)
    given.token_to_kv_pool_allocator.get_kvcache = lambda: pool
    return given


def test_parts_that_the_linker_does_not_know_are_refused() -> None:
    """They are named, with what to use instead."""
    for names in (("FULL", "C128"), ("SWA",), ()):
        with pytest.raises(MisuseError, match=rf"a tree of {' and '.join(sorted(names)) or 'no parts'} is not offered .use"):
            memories_of(params(), parts(*names))


def test_pages_of_different_sizes_are_refused() -> None:
    """The tree's pages are those of the allocator and of memory."""
    with pytest.raises(MisuseError, match="the tree has pages of 2 tokens, and the allocator has pages of 4"):
        pages_of(params(page_size=2))


def test_states_of_drafters_are_refused() -> None:
    """They are in no memory that SGLang names."""
    with pytest.raises(MisuseError, match="a drafter with states of its own is not offered"):
        pages_of(params(mtp_draft_mamba_pools=(object(),)))


def test_memory_of_other_kinds_is_refused() -> None:
    """Memory whose rows are something else, or are not all there is to a token."""
    given = params()
    pool = given.token_to_kv_pool_allocator.get_kvcache()
    pool.native_k_scale_buffer = [torch.zeros(1)]
    with pytest.raises(MisuseError, match=r"memory with scales in a kernel's own order, or .* is not offered"):
        pages_of(given)
    with pytest.raises(MisuseError, match="memory of the kind SimpleNamespace is not offered"):
        pages_of(with_pool(SimpleNamespace(page_size=4, size=96)))
    with pytest.raises(MisuseError, match="windows in memory of the kind MHATokenToKVPool are not offered"):
        memories_of(params(), parts("FULL", "SWA"))
    with pytest.raises(MisuseError, match="states in memory of the kind NoneType, or cached in 8 bits, are not offered"):
        memories_of(params(), parts("FULL", "MAMBA"))


PAGE = {"page_size": 4, "device": "cpu", "enable_memory_saver": False}


def latents(kind: type, **more: Any) -> Any:
    """Memory of latents, 32 tokens in three layers."""
    return kind(size=32, dtype=torch.float32, kv_lora_rank=24, qk_rope_head_dim=8, layer_num=3, **PAGE, **more)


def test_memory_of_latents_is_one_tensor_a_layer() -> None:
    """MLA: a page is its tokens' latents in all layers, on every rank the same; in four bits its scales are a part of it."""
    from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool, MLATokenToKVPoolFP4

    pool = latents(MLATokenToKVPool)
    pages = pages_of(with_pool(pool))
    small = pages_of(with_pool(latents(MLATokenToKVPoolFP4)))

    assert (pages.num_pages, pages.cache.num_blocks, pages.page_bytes) == (9, 9, 3 * 4 * 32 * 4)
    pages.cache.layers[2][5] = 7.0
    assert pool.kv_buffer[2][20:24].unique().tolist() == [7.0]
    assert pool.kv_buffer[2].count_nonzero() == 4 * 32
    assert small.page_bytes == 3 * 4 * (32 // 2 + 32 // 16)


def test_keys_and_values_in_four_bits_have_their_scales_beside_them() -> None:
    """A page without its scales could not be read."""
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPoolFP4

    pool = MHATokenToKVPoolFP4(size=32, dtype=torch.float32, head_num=2, head_dim=32, layer_num=3, **PAGE)
    pages = pages_of(with_pool(pool))

    assert pages.page_bytes == 3 * 2 * 4 * 2 * (32 // 2 + 32 // 16)
    assert [pages.last_buffer(layer) for layer in range(3)] == [3, 7, 11]


def test_index_keys_go_with_their_page() -> None:
    """DSA: a page of latents, and a row of index keys of the same number."""
    from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool

    said = {"size": 512, "page_size": 64, "dtype": torch.bfloat16, "kv_lora_rank": 24, "qk_rope_head_dim": 8, "layer_num": 2}
    pool = DSATokenToKVPool(device="cpu", enable_memory_saver=False, index_head_dim=128, kv_cache_dim=32, **said)
    given = with_pool(pool, page_size=64)
    given.token_to_kv_pool_allocator.page_size = 64
    pages = pages_of(given)
    pages.cache.layers[1][5] = 7

    assert (pages.num_pages, len(pages.cache.layers)) == (9, 4)
    assert pages.page_bytes == 2 * 64 * (32 * 2 + 128 + 4)
    assert pool.index_k_with_scale_buffer[0][5].unique().tolist() == [7]
    assert pool.index_k_with_scale_buffer[0].count_nonzero() == 64 * 132


def test_drafter_keeps_its_part_of_a_page() -> None:
    """Its layers are loaded with the page, each ahead of the engine's layer of the same number."""
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    draft = MHATokenToKVPool(size=96, dtype=torch.float32, head_num=1, head_dim=8, layer_num=1, **PAGE)
    alone, beside = pages_of(params()), pages_of(params(sidecar_draft_device_pools=(draft,)))

    assert beside.page_bytes == alone.page_bytes + 2 * 4 * 8 * 4
    assert [each.last_buffer(0) for each in (alone, beside)] == [1, 3]


def test_windows_and_states_have_memory_of_their_own() -> None:
    """Each with as many pages as its allocator has, and the layers that read it."""
    near = [*memories_of(params("swa"), parts("FULL", "SWA")).items()]
    states = [*memories_of(params("mamba"), parts("FULL", "MAMBA")).items()]

    assert [(name.value, each.num_pages - 1, each.page_size) for name, each in near] == [("kv", 32, 4), ("swa", 24, 4)]
    assert [each.last_buffer(0) for _, each in near] == [1, -1]
    assert [(name.value, each.num_pages - 1, each.page_size) for name, each in states] == [("kv", 40, 4), ("mamba", 24, 1)]
    assert [[each.last_buffer(layer) for layer in range(3)] for _, each in states] == [[-1, 1, 1], [1, 1, 3]]


def test_side_states_go_with_their_slot() -> None:
    """What a model keeps beside a slot, SGLang names with the state's own buffers; without it an answer goes on wrongly."""
    given = params("mamba")
    pool, beside = given.req_to_token_pool.mamba_pool, torch.zeros(25, 6)
    alone = memories_of(given, parts("FULL", "MAMBA"))
    pool._slot_siblings = [SimpleNamespace(iter_transfer_state_entries=lambda: [("ngram", beside, 0, 0)])]
    both = memories_of(given, parts("FULL", "MAMBA"))
    added = [both_.page_bytes - alone_.page_bytes for both_, alone_ in zip(both.values(), alone.values(), strict=True)]

    assert added == [0, 6 * 4]


@pytest.mark.parametrize("slots", [[4, 5, 6], [5, 6, 7, 8], [4, 6, 5, 7]], ids=["part", "shifted", "shuffled"])
def test_slots_that_are_not_pages_are_refused(slots: Sequence[int]) -> None:
    """A page is all of its tokens, in their order."""
    pages = pages_of(params())

    assert pages.blocks([torch.tensor([8, 9, 10, 11]), torch.tensor([4, 5, 6, 7])]) == [[2], [1]]
    with pytest.raises(MisuseError, match="are not whole pages of 4 tokens"):
        pages.blocks([torch.tensor(slots)])


def test_other_releases_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything of SGLang that may not be there is imported."""
    monkeypatch.setattr("sglang.__version__", "0.5.24")
    with pytest.raises(MisuseError, match=r"SGLang 0.5.24: this linker supports SGLang 0.5.23 \(install it"):
        _ = room.BlocklifeLinker
    with pytest.raises(AttributeError, match="no attribute 'Linker'"):
        _ = room.Linker


def test_faulty_copies_are_those_of_the_faulty_linker() -> None:
    """The class that a world names is the one that SGLang has made."""
    assert type(linker_of(Rig(LINKED["faulty"].spec).ranks[0])) is FaultyLinker


# --- before the weights -------------------------------------------------------------------------------------------------


def arguments(options: dict[str, object], **more: object) -> Any:
    """What SGLang is started with for this linker."""
    config = {"linker": "BlocklifeLinker", "linker_module_path": starting.MODULE, "linker_extra_config": options}
    said = {"enable_unified_cache_external_linker": True, "unified_cache_external_linker_config": config}
    return SimpleNamespace(**{**said, **more})


@pytest.mark.parametrize(
    ("options", "more", "message"),
    [
        ({"host_page": 8}, {}, r"'host_page' is no key of this linker \(did you mean 'host_pages'\?\)"),
        ({"host_pages": 8}, {"pp_size": 2}, r"pipeline parallelism is not offered: SGLang compares .* \(use --pp-size 1\)"),
        (
            {"host_bytes": "1024TiB"},
            {"tp_size": 4},
            r"host_bytes=1,125,.* for each of 4 ranks .*, which has .* \(give",
        ),
    ],
    ids=["mistyped", "stages", "memory"],
)
def test_what_cannot_start_is_refused_before_the_weights(
    options: dict[str, object], more: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang's own registry calls the plug-in as soon as a scheduler is made; another linker is none of its business."""
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.plugins.hook_registry import HookRegistry

    loaded: list[object] = []
    monkeypatch.setattr(Scheduler, "__init__", lambda self, server_args: loaded.append(server_args))
    HookRegistry.reset()
    try:
        plugin.install()
        HookRegistry.apply_hooks()
        with pytest.raises((MisuseError, CapacityError), match=message):
            Scheduler(server_args=arguments(options, **more))
        config = {"linker": "Other", "linker_module_path": "elsewhere", "linker_extra_config": options}
        Scheduler(arguments({}, **{**more, "unified_cache_external_linker_config": config}))
        Scheduler(arguments({"host_pages": 8}))
    finally:
        HookRegistry.reset()

    assert len(loaded) == 2
