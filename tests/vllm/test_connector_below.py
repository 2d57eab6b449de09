"""The connector with a store below host memory: what one engine has computed another one hits, with every byte checked.

Goal: whatever the store does, no request reads a wrong byte, waits longer than it may, or is left behind. Method: rigs of
`connector_rig`, one after another on one folder of files: real scheduler, real connector on both sides, the real store and its
threads. The rig's model computes the same bytes for the same text in every engine, so that a foreign byte shows.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from attrs import evolve

from blocklife.engines.vllm.connector import _cache as cache
from blocklife.engines.vllm.connector import _store as store_below
from blocklife.engines.vllm.connector._connector import BlocklifeConnector
from blocklife.engines.vllm.connector._metrics import METRICS, BlocklifeStats
from blocklife.engines.vllm.connector._store import OutageLog, _reason
from blocklife.errors import MisuseError
from blocklife.offload import BelowStatistics
from blocklife.tiers import CircuitBreaker, FaultyStore, FileStore, Identity, StoreCopier, StoreFaultRates, StoreOutcome
from tests.programs import HANGS_S
from tests.tiers.arena import Arena
from tests.vllm.connector_rig import ConnectorRig, configured, walk
from tests.vllm.connector_worlds import AHEAD, CROWDED, MODELS, ROOMY, prompt
from tests.vllm.worlds import Lag, WorldSpec

PACE_S = 0.0005
"""What a step without tokens takes, as in vLLM's loop."""


class BelowRig(ConnectorRig):
    """A rig with a store below; it collects what the connector counts.

    The store's threads are real. Where it *keeps_up*, every second step, drawn by the seed, waits for what they copy: without
    that a machine that is busy elsewhere may let a walk end before anything has reached the store.
    """

    def __init__(self, spec: WorldSpec, address: str, seed: int = 0, *, keeps_up: bool = False, **more: Any) -> None:
        options = more.pop("options", {})
        self._waits = Random(f"{seed}/store") if keeps_up else None
        self.told = BlocklifeStats(data={})
        super().__init__(evolve(spec, extra_config={**spec.extra_config, "below": address, **options}), seed, **more)
        connector = self.scheduler.connector
        self._read: Callable[[], BlocklifeStats | None] = connector.get_kv_connector_stats
        connector.get_kv_connector_stats = self._tell

    @property
    def below(self) -> BelowStatistics:
        """What became of content, in chunks."""
        found = self.side.offload.statistics().below
        assert found is not None
        return found

    @property
    def counted(self) -> dict[str, dict[str, Any]]:
        """What the connector has told so far, by metric and label."""
        return {name.removeprefix("vllm:kv_offload_below_"): dict(values) for name, values in self.told.data.items()}

    def step(self) -> bool:
        """A step; one without tokens takes its time, as in vLLM's loop."""
        before = self.verified
        goes_on = super().step()
        if goes_on and self.verified == before:
            time.sleep(PACE_S)
        if self._waits is not None and self._waits.random() < 0.5:
            self._wait_for_the_store()
        return goes_on

    def _wait_for_the_store(self) -> None:
        for rank in self.ranks:
            assert rank.worker is not None
            below = rank.worker.connector.worker._below
            assert below is not None
            below.copier.wait(list(below.copier._out))

    def _tell(self) -> BlocklifeStats | None:
        said = self._read()
        if said is not None:
            self.told.aggregate(BlocklifeConnector.build_kv_connector_stats(said.data))
        return said

    def ask(self, tokens: Sequence[int], answer: int = 2, salt: str | None = None) -> None:
        """One request, and the steps after it until the engine sleeps."""
        self.add(tokens, answer, salt=salt)
        self.drain(40_000)
        self.check_empty()

    def close(self) -> None:
        """The engine ends, workers first."""
        for rank in self.ranks:
            assert rank.worker is not None
            rank.worker.connector.shutdown()
        self.scheduler.connector.shutdown()


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


# --- two engines, one store ------------------------------------------------------------------------------------------------


GAPS = "blocks of 4 and 6"
"""A model whose layers have gaps between their pages."""


def test_layers_with_gaps_and_a_store_below_are_refused(make: Make) -> None:
    """A block of one group is smaller than a block of the other: what a chunk is made of is not what vLLM says."""
    with pytest.raises(MisuseError, match=r"a chunk has 96 bytes .* and 48 by vLLM's configuration: .* \(leave below out\)"):
        make(evolve(ROOMY, groups=MODELS[GAPS]))


@pytest.mark.sampled
@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize("model", [each for each in MODELS if each != GAPS])
@AHEAD
def test_another_engine_hits_what_the_first_one_has_computed(make: Make, model: str, ahead: bool, chunk: int) -> None:
    """Its host tier is empty, and the store has every rank's part; every byte that it reads is right."""
    spec = evolve(
        ROOMY, groups=MODELS[model], async_scheduling=ahead, world_size=2, blocks_per_chunk=chunk, lag=Lag(0, 3),
        dense_retention=True,
    )  # fmt: skip
    first = make(spec)
    first.ask(prompt(50))
    second = make(spec)
    second.ask(prompt(50))

    assert first.below.demoted > 0
    assert first.below.promoted == 0
    assert second.below.promoted > 0
    assert second.loaded > 0
    assert second.below.overdue_requests == 0


def test_engine_hits_below_what_its_host_tier_has_lost(make: Make) -> None:
    """More prompts than fit the host tier, and all of them again: the store has what was evicted."""
    rig = make(evolve(ROOMY, num_gpu_blocks=16, host_blocks=16))
    for _ in range(2):
        for start in range(100, 1100, 100):
            rig.ask(prompt(32, start))

    assert rig.below.promoted > 16
    assert rig.below.missing == rig.below.failed_promotions == 0


def test_content_of_another_salt_is_not_hit(make: Make) -> None:
    """The salt of a request is in vLLM's hashes, and these are the keys."""
    make().ask(prompt(40), salt="one")
    rig = make()
    rig.ask(prompt(40), salt="other")
    rig.ask(prompt(40))
    assert (rig.below.promoted, rig.loaded) == (0, 0)
    rig.ask(prompt(40), salt="one")

    assert rig.below.promoted == 9


@pytest.mark.parametrize("what", ["generation", "groups", "ranks", "chunks"])
def test_content_that_was_made_for_something_else_is_not_hit(make: Make, what: str) -> None:
    """Nothing of it is even asked for."""
    make().ask(prompt(40))
    spec, options = ROOMY, {}
    if what == "generation":
        options = {"below_generation": "b"}
    elif what == "groups":
        spec = evolve(ROOMY, groups=MODELS["window"])
    elif what == "ranks":
        spec = evolve(ROOMY, world_size=2)
    else:
        spec = evolve(ROOMY, blocks_per_chunk=2)
    rig = make(spec, options=options)
    rig.ask(prompt(40))

    assert (rig.below.promoted, rig.below.missing) == (0, 0)
    assert rig.below.demoted > 0


def test_servers_with_other_amounts_of_memory_share_content(make: Make) -> None:
    """How many blocks the device and the host have is no part of what content was made for."""
    make().ask(prompt(40))
    rig = make(evolve(ROOMY, num_gpu_blocks=30, host_blocks=40))
    rig.ask(prompt(40))

    assert rig.below.promoted == 9


# --- policies --------------------------------------------------------------------------------------------------------------


def test_store_that_is_only_read_gets_nothing(make: Make) -> None:
    make(options={"below_demote": "never"}).ask(prompt(40))
    rig = make(options={"below_demote": "never"})
    rig.ask(prompt(40))

    assert (rig.below.promoted, rig.below.demoted) == (0, 0)


def test_lazy_demotion_puts_below_what_is_about_to_be_evicted(make: Make) -> None:
    spec = evolve(ROOMY, num_gpu_blocks=16, host_blocks=128)
    rig = make(spec, options={"below_demote": "lazy"})
    for start in range(100, 2100, 100):
        rig.ask(prompt(32, start))

    assert 0 < rig.below.demoted < rig.stored


def test_engine_stays_awake_until_all_is_demoted(make: Make) -> None:
    """One chunk at a time: the last of them goes below in a step long after the last request."""
    rig = make(options={"below_slots": 1})
    rig.ask(prompt(50))

    assert rig.below.demoted == rig.stored > 10


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


# --- resets ----------------------------------------------------------------------------------------------------------------


def test_after_a_reset_older_content_is_not_found_any_more(make: Make) -> None:
    """The weights are others: what the store has would be wrong. What is computed from then on is found."""
    rig = make()
    rig.ask(prompt(40))
    assert rig.reset_prefix_cache(False, True)
    rig.renew_weights()
    rig.ask(prompt(40))
    assert (rig.below.promoted, rig.loaded) == (0, 0)
    rig.side.pool.reset_host()
    other = make()
    other.ask(prompt(40))  # what the first weights have computed

    assert rig.below.demoted == 20
    assert other.below.promoted == 9


def test_reset_while_content_is_on_its_way_from_below(make: Make) -> None:
    """What comes after the reset was computed with the old weights, and nobody gets it."""
    make().ask(prompt(40))
    rig = make()
    rig.add(prompt(40), 2)
    for _ in range(2000):
        rig.step()
        if rig.side.ledger.jobs.live:
            break
    assert rig.reset_prefix_cache(False, True)
    rig.renew_weights()
    rig.drain(40_000)
    rig.check_empty()

    assert rig.loaded == 0


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
    log = OutageLog("fs:/x", breaker, "Worker 3", "puts nothing there", lambda: "calls failed (no space)")
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


def test_stages_of_a_pipeline_are_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    configured(monkeypatch, lambda config: setattr(config.parallel_config, "pipeline_parallel_size", 2))
    with pytest.raises(MisuseError, match="below with pipeline_parallel_size=2 is not offered"):
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
            assert {label for label in values if METRICS[name].label} <= set(METRICS[name].values)
