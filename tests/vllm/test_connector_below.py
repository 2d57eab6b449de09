"""The connector with a store below host memory: what one engine has computed another one hits, with every byte checked.

Goal: whatever the store does, no request reads a wrong byte, waits longer than it may, or is left behind. Method: rigs of
`connector_rig`, one after another on one folder of files: real scheduler, real connector on both sides, the real store and its
threads. The rig's model computes the same bytes for the same text in every engine, so that a foreign byte shows.
"""

from __future__ import annotations

import copy
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from attrs import evolve
from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config
from vllm.v1.kv_cache_interface import KVCacheGroupSpec, UniformTypeKVCacheSpecs

from blocklife.engines import _store as store_below
from blocklife.engines._store import OutageLog, _reason
from blocklife.engines.vllm.connector import _cache as cache
from blocklife.engines.vllm.connector._families import METRICS
from blocklife.engines.vllm.connector._store import logger
from blocklife.errors import MisuseError
from blocklife.tiers import CircuitBreaker, FaultyStore, FileStore, Identity, StoreCopier, StoreFaultRates, StoreOutcome
from tests.behind.scenes import Scene
from tests.programs import HANGS_S
from tests.tiers.arena import Arena
from tests.vllm.below_rig import BelowRig
from tests.vllm.connector_rig import ConnectorRig, configured, walk
from tests.vllm.connector_worlds import CROWDED, MODELS, ROOMY, prompt
from tests.vllm.stage import play, scenes
from tests.vllm.worlds import WorldSpec

"""What a step without tokens takes, as in vLLM's loop."""


Make = Callable[..., BelowRig]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes rigs on one folder, and ends them."""
    made: list[BelowRig] = []

    def make(spec: WorldSpec = ROOMY, address: str = f"fs:{tmp_path / 'store'}:64M", seed: int = 0, **more: Any) -> BelowRig:
        made.append(BelowRig(spec, address, seed, **more))
        return made[-1]

    yield make
    for rig in made:
        rig.close()


SCENES = scenes(
    """
another-engine-hits-what-the-first-one-has-computed ahead=* blocks_per_chunk=1|2 world_size=2 lag=0-3 dense_retention=yes
    with model=full|window|full_and_window|full_and_state|all|blocks_of_two_sizes|full_and_local_attention
    # its host tier is empty, and the store has every rank's part; every byte that it reads is right
    ask 50 2; then below.demoted > 0 and below.promoted == 0; another; ask 50 2
    then below.promoted > 0 and loaded > 0 and below.overdue_requests == 0
stages-of-a-pipeline-have-parts-of-different-sizes-below ahead=* model=full_and_window|full_and_state world_size=2 lag=0-3
    with lacks=0:1|1:0|0:1/1:0|1:0+1 blocks_per_chunk=1|2 dense_retention=yes
    # a stage has the layers of some groups: each stage's part of a chunk has the bytes that it has there
    ask 50 2; then below.demoted > 0; another; ask 50 2
    then below.promoted > 0 and loaded > 0 and below.missing == 0
stages-that-are-divided-otherwise-share-nothing model=full_and_window world_size=2 lacks=0:1
    ask 40 2; another world_size=4; ask 40 2; then (below.promoted, below.missing) == (0, 0) and below.demoted > 0
ranks-that-hold-the-same-have-one-part-below ahead=* model=full|full_and_window world_size=4 alike=2 lag=0-3
    with blocks_per_chunk=1|2 dense_retention=yes
    # each slot goes below, and comes back, by the rank that writes it
    ask 50 2; then below.demoted > 0 and shares == 2; another; ask 50 2
    then below.promoted > 0 and loaded > 0 and below.missing == 0
content-of-ranks-that-shared-is-not-hit-by-others-that-do-not world_size=2 alike=2
    ask 40 2; another alike=1; ask 40 2; then (below.promoted, below.missing) == (0, 0) and below.demoted > 0
engine-hits-below-what-its-host-tier-has-lost num_gpu_blocks=16 host_blocks=16
    # more prompts than fit the host tier, and all of them again: the store has what was evicted
    ask_each 10 32; ask_each 10 32; then below.promoted > 16 and below.missing == below.failed_promotions == 0
content-of-another-salt-is-not-hit
    # the salt of a request is in vLLM's hashes, and these are the keys
    ask 40 2 salt=one; another; ask 40 2 salt=other; ask 40 2; then (below.promoted, loaded) == (0, 0); ask 40 2 salt=one
    then below.promoted == 9
content-that-was-made-for-something-else-is-not-hit
    with $what=below_generation=b|groups=swa:4:10|world_size=2|blocks_per_chunk=2
    # nothing of it is even asked for
    ask 40 2; another {what}; ask 40 2; then (below.promoted, below.missing) == (0, 0) and below.demoted > 0
servers-with-other-amounts-of-memory-share-content
    # how many blocks the device and the host have is no part of what content was made for
    ask 40 2; another num_gpu_blocks=30 host_blocks=40; ask 40 2; then below.promoted == 9
store-that-is-only-read-gets-nothing below_demote=never
    ask 40 2; another; ask 40 2; then (below.promoted, below.demoted) == (0, 0)
lazy-demotion-puts-below-what-is-about-to-be-evicted num_gpu_blocks=16 host_blocks=128 below_demote=lazy
    ask_each 20 32; then 0 < below.demoted < stored
engine-stays-awake-until-all-is-demoted below_slots=1
    # one chunk at a time: the last of them goes below in a step long after the last request
    ask 50 2; then below.demoted == stored > 10
after-a-reset-older-content-is-not-found-any-more
    # the weights are others: what the store has would be wrong; what is computed from then on is found
    ask 40 2; reset connector; then done; renew_weights; ask 40 2; then (below.promoted, loaded) == (0, 0)
    note first rig; then first.side.pool.reset_host() is None; another; ask 40 2
    then first.below.demoted == 20 and below.promoted == 9
reset-while-content-is-on-its-way-from-below
    # what comes after the reset was computed with the old weights, and nobody gets it
    ask 40 2; another; add 40 2; until jobs; reset connector; then done; renew_weights; drain; then loaded == 0
tail-is-not-put-below since=33 groups=full:8/mamba:8 hash_tokens=2
    # another engine on the same store finds the prompt up to its last full block
    ask 30 2; then hits == []; another; ask 30 2; then hits == [24]
""",
    {"kind": "below"},
)


@pytest.mark.parametrize("scene", SCENES)
def test_below_scene(scene: Scene, tmp_path: Path) -> None:
    """A small story of engines on one store, each with one thing that could go wrong in it."""
    play(scene, tmp_path)


GAPS = "blocks of 4 and 6"
"""A model whose layers have gaps between their pages."""


def test_layers_with_gaps_and_a_store_below_are_refused(make: Make) -> None:
    """A block of one group is smaller than a block of the other: what a chunk is made of is not what vLLM says."""
    with pytest.raises(
        MisuseError, match=r"a chunk has 96 bytes .* and 48 by the engine's configuration: .* \(leave below out\)"
    ):
        make(evolve(ROOMY, groups=MODELS[GAPS]))


def test_a_request_waits_for_a_slow_store_no_longer_than_it_may(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on without, and its answer is right."""
    make().ask(prompt(40))
    get, given_up = FileStore.get, threading.Event()
    rig = make(options={"below_wait_s": 0.05})
    step = rig.step

    def watched_step() -> bool:
        goes_on = step()
        if rig.below.overdue_requests:
            given_up.set()
        return goes_on

    def slow(self: FileStore, pages: Any) -> Any:
        assert given_up.wait(HANGS_S)
        return get(self, pages)

    monkeypatch.setattr(rig, "step", watched_step)
    monkeypatch.setattr(FileStore, "get", slow)
    rig.ask(prompt(40))

    assert rig.below.overdue_requests == 1
    assert rig.loaded == 0
    assert rig.counted["overdue_requests"] == {"": 1}


# --- faults ----------------------------------------------------------------------------------------------------------------


def test_store_whose_folder_is_removed_costs_hits_only(make: Make, tmp_path: Path) -> None:
    """While requests run: their answers are right, the metrics tell of it, and new content goes to a new folder."""
    rig, rng = make(evolve(ROOMY, num_gpu_blocks=16, host_blocks=16)), Random(0)
    for start in range(100, 600, 100):
        rig.ask(prompt(32, start))
    shutil.rmtree(tmp_path / "store")
    for start in rng.choices(range(100, 600, 100), k=20):
        rig.ask(prompt(32, start))
    told = rig.counted
    failed = told["faults"]["failed"]
    missing = told["promotions"].get("missing", 0)

    assert failed + missing > 0
    (tmp_path / "store").mkdir()
    for start in range(5000, 5500, 100):
        rig.ask(prompt(32, start))
    deadline = time.monotonic() + HANGS_S
    while not any((tmp_path / "store").glob("*/*")):
        assert time.monotonic() < deadline, rig.below
        rig.ask(prompt(32, rng.randrange(10_000, 20_000)))


def test_entries_that_were_changed_are_misses_that_are_counted(make: Make, tmp_path: Path) -> None:
    make().ask(prompt(40))
    for entry in (tmp_path / "store").glob("*/" + "?" * 64):
        content = bytearray(entry.read_bytes())
        content[-1] ^= 1
        entry.write_bytes(content)
    rig = make()
    rig.ask(prompt(40))

    assert rig.below.missing == 9
    assert rig.counted["faults"] == {"damaged": 9}
    assert rig.loaded == 0


class _Planted:
    """Where `faulty` opens its store, and the stores that it made."""

    folder = ""
    made: ClassVar[list[FaultyStore]] = []
    rates = StoreFaultRates()


def faulty() -> FaultyStore:
    """A store of files behind faults; vLLM's processes would call it by its name."""
    _Planted.made.append(FaultyStore(FileStore(_Planted.folder, 64 << 20), _Planted.rates, len(_Planted.made), slow_s=0.005))
    return _Planted.made[-1]


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[_Planted]:
    """`faulty`, with a folder."""
    monkeypatch.setattr(_Planted, "folder", str(tmp_path / "planted"))
    monkeypatch.setattr(_Planted, "made", [])
    monkeypatch.setattr(_Planted, "rates", StoreFaultRates())
    return _Planted


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("model", ["full", "full and window", "all"])
def test_walks_over_a_store_with_faults(make: Make, planted: type[_Planted], model: str, seed: int) -> None:
    """Calls that fail and are slow, values that are cut, changed and lost; then another engine on what is left."""
    planted.rates = StoreFaultRates(fail=0.05, slow=0.05, cut=0.05, flip=0.05, lose=0.05)
    spec = evolve(CROWDED, groups=MODELS[model], async_scheduling=seed == 1, world_size=1 + seed % 2)
    rigs = [make(spec, f"{__name__}:faulty", seed, keeps_up=True, options={"below_wait_s": 0.2}) for _ in range(3)]
    for rig in rigs:
        walk(rig, seed, 24, resets=rig is rigs[-1])

    assert sum(rig.below.promoted for rig in rigs) > 0


def test_a_store_that_hangs_holds_no_request_up_and_no_end(
    make: Make, planted: type[_Planted], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call hangs: requests go on, and closing gives up on the threads."""
    planted.rates = StoreFaultRates(hang=1.0)
    monkeypatch.setattr(store_below, "StoreCopier", lambda *given, **named: StoreCopier(*given, **named, timeout_s=0.2))
    rig = make(address=f"{__name__}:faulty")
    begin = time.monotonic()
    rig.ask(prompt(40))

    assert rig.stored > 0
    assert rig.below.promoted == rig.below.demoted == 0
    for store in planted.made:
        store.release()
    rig.close()
    assert time.monotonic() - begin < HANGS_S


def outages(log: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """What was logged of the store, and how loudly."""
    ours = [each for each in log.records if each.name == "vllm.blocklife"]
    return [(each.levelname, said) for each in ours if "the store below" in (said := each.getMessage())]


HALVES = (("The scheduler", "looks for no content there", "ask for"), ("Worker 0", "puts nothing there", "put"))


@pytest.mark.parametrize(("half", "without", "calls"), HALVES)
def test_a_store_that_goes_down_and_comes_back_is_logged(
    make: Make, planted: type[_Planted], caplog: pytest.LogCaptureFixture, half: str, without: str, calls: str
) -> None:
    """One line when it is given up, with the address, what failed and the next try; one when it is back; none in between."""
    caplog.set_level(logging.INFO, "vllm.blocklife")
    rig, rng = make(address=f"{__name__}:faulty"), Random(0)
    store = planted.made[0 if half == "The scheduler" else 1]
    rig.ask(prompt(40))
    assert outages(caplog) == []

    def until(logged: int) -> None:
        deadline = time.monotonic() + HANGS_S
        while len(outages(caplog)) < logged:
            assert time.monotonic() < deadline, outages(caplog)
            rig.ask(prompt(32, rng.randrange(1_000, 40_000)))

    for number in range(2):
        store._planter.rates = StoreFaultRates(fail=1.0)
        until(2 * number + 1)
        for _ in range(20):
            rig.ask(prompt(32, rng.randrange(1_000, 40_000)))
        store._planter.rates = StoreFaultRates()
        until(2 * number + 2)
    found = outages(caplog)

    assert [level for level, _ in found] == ["WARNING", "INFO"] * 2
    assert all(said.startswith(f"blocklife: the store below, {__name__}:faulty, is ") for _, said in found)
    assert f"is down: calls that {calls} content failed" in found[0][1]
    assert f"{half} {without}" in found[0][1]
    next_try = float(found[0][1].partition("Next try in ")[2].partition(" s")[0])
    assert 0.0 <= next_try <= 0.5
    assert found[1][1].endswith(f"is up again. {half} uses it")


def test_log_of_an_outage_says_why(caplog: pytest.LogCaptureFixture) -> None:
    """What the store says of itself; and an outage that came and went between two looks is two lines."""
    caplog.set_level(logging.INFO, "vllm.blocklife")
    breaker = CircuitBreaker(1, first_wait_s=7.0, clock=lambda: 0.0)
    log = OutageLog(logger, "fs:/x", breaker, "Worker 3", "puts nothing there", lambda: "calls failed (no space)")
    log.look()
    breaker.failed()
    breaker.succeeded()
    log.look()
    breaker.failed()
    for _ in range(3):
        log.look()

    down = "blocklife: the store below, fs:/x, is down: calls failed (no space). Worker 3 puts nothing there. Next try in"
    again = "growing intervals"
    assert outages(caplog) == [
        ("WARNING", f"{down} 0.0 s, then at {again}"),
        ("INFO", "blocklife: the store below, fs:/x, is up again. Worker 3 uses it"),
        ("WARNING", f"{down} 7.0 s, then at {again}"),
    ]


def test_reason_is_what_the_store_or_its_caller_has_noted(tmp_path: Path) -> None:
    """An exception that a store has raised comes first; a store that says nothing of itself is no fault."""
    store = FileStore(tmp_path, 1 << 20)
    assert _reason(store, "calls failed", "") == "calls failed"
    arena = Arena()
    arena.join(store)
    shutil.rmtree(tmp_path)
    assert arena.put(store, "a", bytes(100)) is StoreOutcome.FAILED

    assert _reason(store, "calls failed", "") == f"calls failed ({store.statistics().last_error})"
    assert _reason(store, "calls failed", "KeyError(1)") == "calls failed (KeyError(1))"
    assert _reason(FaultyStore(store, StoreFaultRates(), 0), "calls failed", "") == "calls failed"
    assert store.statistics().last_error


# --- the start and the end -------------------------------------------------------------------------------------------------


def test_an_engine_that_ends_leaves_no_thread(make: Make) -> None:
    before = set(threading.enumerate())  # other tests of the process may still have theirs
    rig = make()
    names = {thread.name for thread in set(threading.enumerate()) - before}
    rig.ask(prompt(40))
    rig.close()

    assert {"blocklife-presence", "blocklife-store-0-0"} <= names
    assert [thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("blocklife-")] == []


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"below": 3}, "below must be the address of a store"),
        ({"below": "files"}, "below must be the address of a store"),
        ({"below": "fs:"}, "below must be the address of a store"),
        ({"below": "fs:/x:0"}, "below: store 'fs:/x:0': a bound of 0 bytes keeps nothing"),
        ({"below": "fs:/x:many"}, "'many' is no number of bytes"),
        ({"below": "nothing.like.it:at_all"}, "nothing.like.it cannot be imported"),
        ({"below": "fs:/dev/null"}, "it is no folder"),
        ({"below_wait_s": 3}, "'below_wait_s' needs a store below host memory (set below to its address)"),
        ({"below": "fs:/x", "below_wait_s": 0}, "below_wait_s must be a number of seconds above 0, not 0"),
        ({"below": "fs:/x", "below_wait_s": "1s"}, "below_wait_s must be a number of seconds above 0, not '1s'"),
        ({"below": "fs:/x", "below_slots": 0}, "below_slots must be a whole number of at least 1, not 0"),
        ({"below": "fs:/x", "below_demote": "later"}, "below_demote must be one of eager, lazy, never, not 'later'"),
        ({"below": "fs:/x", "below_generation": 7}, "below_generation must be a text that is not empty, not 7"),
        ({"below": "fs:/x", "belo_slots": 7}, "did you mean 'below_slots'?"),
    ],
)
def test_what_cannot_be_is_refused_at_the_start(extra: Mapping[str, Any], says: str) -> None:
    with pytest.raises(MisuseError) as refused:
        ConnectorRig(evolve(ROOMY, extra_config=extra))

    assert says in str(refused.value)


@pytest.mark.parametrize("algorithm", ["xxhash", "xxhash_cbor"])
def test_hashes_that_differ_from_process_to_process_are_refused(
    make: Make, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    """Without PYTHONHASHSEED vLLM begins them with random bytes: nothing would be found again."""
    configured(monkeypatch, lambda config: setattr(config.cache_config, "prefix_caching_hash_algo", algorithm))
    make()
    monkeypatch.delenv("PYTHONHASHSEED")
    with pytest.raises(MisuseError, match="hashes differ from process to process"):
        make()


def identity_of(rig: BelowRig) -> Identity:
    """What the content of an engine is made for."""
    assert rig.side.shape.below is not None
    return rig.side.shape.below.identity


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("model_config", "revision", "v2"),
        ("model_config", "quantization", "fp8"),
        ("model_config", "dtype", "bfloat16"),
        ("model_config", "max_model_len", 999),
        ("model_config", "hf_overrides", {"rope_theta": 7.0}),
        ("model_config", "hf_config_path", "elsewhere"),
        ("cache_config", "cache_dtype", "fp8"),
        ("cache_config", "mamba_cache_dtype", "float16"),
        ("cache_config", "mamba_ssm_cache_dtype", "float16"),
        ("cache_config", "kv_cache_dtype_skip_layers", ["0"]),
        ("cache_config", "kv_cache_layout", "LBHNC"),
        ("cache_config", "prefix_caching_hash_algo", "sha256_cbor"),
        ("attention_config", "backend", "ANOTHER"),
        ("load_config", "load_format", "dummy"),
    ],
)
def test_what_could_change_bytes_changes_the_identity(
    make: Make, monkeypatch: pytest.MonkeyPatch, part: str, field: str, value: object
) -> None:
    before = identity_of(make())
    configured(monkeypatch, lambda config: object.__setattr__(getattr(config, part), field, value))
    after = identity_of(make())

    assert after.fingerprint != before.fingerprint


def test_settings_that_decide_what_a_stage_holds_change_the_identity(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages see other layers, so that neither sizes nor specs are part of the name: the settings that decide these are."""
    rig, found = make(), []
    worlds: list[tuple[str, dict[str, object]]] = [
        ("2,2", {}),
        ("3,1", {}),
        ("2,2", {"mamba_ssm_cache_dtype": "float16"}),
        ("2,2", {"kv_cache_dtype_skip_layers": ["0"]}),
    ]
    for divided, settings in worlds:
        monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", divided)
        config = copy.copy(rig.engine.config)
        parts: dict[str, dict[str, object]] = {"parallel_config": {"pipeline_parallel_size": 2}, "cache_config": settings}
        for part, said in parts.items():
            changed = copy.copy(getattr(config, part))
            for name, value in said.items():
                object.__setattr__(changed, name, value)
            object.__setattr__(config, part, changed)
        found.append(cache._identity(config, rig.engine.kv_cache_config, rig.side.config))

    assert all(each.uneven for each in found)
    assert len({each.fingerprint for each in found}) == 4


def test_scheduler_and_workers_name_a_group_alike_whose_layers_differ(make: Make) -> None:
    """Such as latents with an indexer: the scheduler is told of one of its layers, and a worker of each."""
    rig = make()
    told = rig.engine.kv_cache_config
    spec = told.kv_cache_groups[0].kv_cache_spec
    specs = {"latents": spec, "indexer": replace(spec, head_size=2 * spec.head_size)}
    group = KVCacheGroupSpec([*specs], UniformTypeKVCacheSpecs(block_size=spec.block_size, kv_cache_specs=specs))
    held = replace(told, kv_cache_groups=[group])
    shown = generate_scheduler_kv_cache_config([held])
    worker, scheduler = (cache._identity(rig.engine.config, each, rig.side.config) for each in (held, shown))

    assert shown.kv_cache_groups[0].kv_cache_spec == spec
    assert worker.fingerprint == scheduler.fingerprint


def test_drafter_with_other_weights_changes_the_identity(make: Make) -> None:
    """What its layers keep is stored with the rest."""
    rig, none = make(), {"method": "eagle", "revision": None, "quantization": None}
    drafters = [None, {"model": "a"}, {"model": "b"}, {"model": "b", "revision": "v2"}, {"model": None, "method": "ngram"}]
    found = []
    for drafter in drafters:
        said = None if drafter is None else SimpleNamespace(**{**none, **drafter})
        config = SimpleNamespace(**{**vars(rig.engine.config), "speculative_config": said})
        found.append(cache._identity(config, rig.engine.kv_cache_config, rig.side.config).fingerprint)

    assert len(set(found)) == len(drafters) - 1
    assert found[-1] == found[0] == identity_of(rig).fingerprint  # stores of engines without one stay valid


def test_worker_that_names_content_in_another_way_stops_the_engine(make: Make) -> None:
    """Otherwise nothing would ever be found, and nobody would know why."""
    rig = make()
    rig.side._introduction = b"something else"
    rig.add(prompt(9), 1)
    with pytest.raises(MisuseError, match="name the content of the store below in different ways"):
        rig.step()


# --- metrics ---------------------------------------------------------------------------------------------------------------


def test_metrics_tell_what_went_below_and_came_from_there(make: Make) -> None:
    spec = evolve(ROOMY, world_size=2)
    first = make(spec)
    first.ask(prompt(40))
    second = make(spec)
    second.ask(prompt(40))
    put, got = first.counted, second.counted
    slot = identity_of(first).slot_bytes

    assert put["demotions"] == {"demoted": first.below.demoted}
    assert put["bytes"] == {"demoted": 2 * slot * first.below.demoted}
    assert got["promotions"] == {"promoted": 9}
    assert got["bytes"]["promoted"] == 2 * slot * 9
    assert got["lookups"]["hit"] > 0
    assert put["lookups"]["miss"] > 0
    assert put["is_down"] == {"": 0}
    for found in (first.told.data, second.told.data):
        for name, values in found.items():
            assert {METRICS[name].labels_of(key) for key in values} <= set(METRICS[name].series)
