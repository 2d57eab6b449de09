"""The plug-ins of the watch: what an engine loads watches what is made after it, or says in one line why not.

Goal: no setting, release or fault of the watch keeps an engine from starting. Method: modules with the engines' names, and
fakes in them; every case for each engine.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from attrs import define

from blocklife.engines.sglang import watch as sglang_watch
from blocklife.engines.sglang.watch import _plugin as sglang_plugin
from blocklife.engines.vllm import watch as vllm_watch
from blocklife.engines.vllm.watch import _plugin as vllm_plugin
from blocklife.errors import MESSAGE_MAX
from blocklife.watch import LOGGER
from tests.watch.sglang_fakes import FakeEngine
from tests.watch.watch_fakes import FakeOffloading, FakeScheduler, offloading

VLLM_SCHEDULER = "vllm.v1.core.sched.scheduler"
VLLM_WORKER = "vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker"
VLLM_SIMPLE_WORKER = "vllm.v1.simple_kv_offload.worker"
SGLANG_HOOKS = "sglang.srt.plugins.hook_registry"


@define
class Engine:
    """An engine that is installed, as far as its plug-in looks at it."""

    name: str
    known: str
    """Which releases are watched."""
    plugin: Any
    watch: Any
    make: Callable[[], object]
    """Makes a scheduler that can be watched."""
    make_bare: Callable[[], object]
    """Makes one that cannot be."""
    why_not: str
    said: str
    break_off: Callable[[pytest.MonkeyPatch], None]
    """Takes away what the plug-in looks for."""

    def is_watched(self) -> bool:
        """Whether a scheduler that is made now is."""
        return self.watch.watch_of(self.make()) is not None

    def set_release(self, release: str | None) -> None:
        """Another release is installed."""
        vars(sys.modules[self.name.lower()])["__version__"] = release


def of_vllm(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """The modules that the plug-in wraps, with fakes in them."""

    class Scheduler(FakeScheduler):
        def __init__(self, connector: object) -> None:
            super().__init__(connector)

    class Worker:
        def __init__(self) -> None:
            self.worker = None

        def start_kv_transfers(self, meta: object) -> None:
            """The loads of a step."""

    made: dict[str, dict[str, type]] = {
        VLLM_SCHEDULER: {"Scheduler": Scheduler},
        VLLM_WORKER: {"OffloadingConnectorWorker": Worker},
        VLLM_SIMPLE_WORKER: {"SimpleCPUOffloadWorker": type("SimpleCPUOffloadWorker", (), {})},
    }
    for name, classes in made.items():
        parts = name.split(".")
        for depth in range(1, len(parts)):
            monkeypatch.setitem(sys.modules, ".".join(parts[:depth]), ModuleType(".".join(parts[:depth])))
        module = ModuleType(name)
        vars(module).update(classes)
        monkeypatch.setitem(sys.modules, name, module)
    return Engine(
        name="vLLM",
        known="0.21 to 0.33",
        plugin=vllm_plugin,
        watch=vllm_watch,
        make=lambda: Scheduler(SimpleNamespace(connector_scheduler=FakeOffloading())),
        make_bare=lambda: Scheduler(object()),
        why_not="a scheduler with object has nothing to watch (only OffloadingConnector and SimpleCPUOffloadConnector can be "
        "watched, alone or in a MultiConnector)",
        said="the scheduler's side of OffloadingConnector",
        break_off=lambda patch: patch.delattr(sys.modules[VLLM_SIMPLE_WORKER], "SimpleCPUOffloadWorker"),
    )


class FakeRegistry:
    """SGLang's registry of hooks, and what SGLang does with them."""

    def __init__(self) -> None:
        self.hooks: list[tuple[str, Callable[..., object], object]] = []

    def register(self, target: str, hook: Callable[..., object], kind: object) -> None:
        """Keep it."""
        assert (target, kind) == ("sglang.srt.managers.scheduler.Scheduler.__init__", "after")
        self.hooks.append((target, hook, kind))

    def made(self, engine: FakeEngine) -> FakeEngine:
        """A scheduler was made."""
        assert all(hook(None, engine) is None for _, hook, _ in self.hooks)
        return engine


def bare_engine() -> FakeEngine:
    """One without host memory."""
    engine = FakeEngine()
    engine.tree_cache.cache_controller = None
    return engine


def of_sglang(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An SGLang that has nothing but a version and a registry."""
    registry = FakeRegistry()
    hooks = ModuleType(SGLANG_HOOKS)
    vars(hooks).update(HookRegistry=registry, HookType=SimpleNamespace(AFTER="after"))
    monkeypatch.setitem(sys.modules, "sglang", ModuleType("sglang"))
    monkeypatch.setitem(sys.modules, SGLANG_HOOKS, hooks)
    return Engine(
        name="SGLang",
        known="0.5.13 to 0.5.23",
        plugin=sglang_plugin,
        watch=sglang_watch,
        make=lambda: registry.made(FakeEngine()),
        make_bare=lambda: registry.made(bare_engine()),
        why_not="a FakeTree without host memory has nothing to watch (start SGLang with --enable-hierarchical-cache)",
        said="the FakeTree of SGLang",
        break_off=lambda patch: patch.delattr(hooks, "HookType"),
    )


NEWEST = {"vLLM": "0.33.0", "SGLang": "0.5.23.post1"}
KINDS = {"vLLM": of_vllm, "SGLang": of_sglang}


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Each engine, in its newest release, with a watch that logs."""
    found = KINDS[request.param](monkeypatch)
    found.set_release(NEWEST[found.name])
    monkeypatch.setenv("BLOCKLIFE_WATCH", "log")
    return found


def told(caplog: pytest.LogCaptureFixture) -> str:
    """The only line that was logged."""
    (record,) = caplog.records
    assert record.name == LOGGER.name
    assert "\n" not in record.getMessage()
    return record.getMessage()


def test_plugin_watches_what_is_made_after_it(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """One line says what is watched, and another what is not; the watch is the one that a caller gets, too."""
    before = engine.make()
    engine.plugin.install()
    silent = [record.getMessage() for record in caplog.records]
    watched, bare = engine.make(), engine.make_bare()

    assert silent == [], "a process in which nothing is watched says nothing"
    assert [engine.watch.watch_of(each) is not None for each in (before, watched, bare)] == [False, True, False]
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        f"blocklife watches {engine.said} in process MainProcess, {os.getpid()} (log)",
        f"blocklife watch: watching nothing, because {engine.why_not}",
    ]
    assert engine.watch.attach(watched) is engine.watch.watch_of(watched)


def test_plugin_of_vllm_watches_workers_too_and_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """However often it is called; the line names the sample."""
    engine = of_vllm(monkeypatch)
    engine.set_release("0.33.0")
    monkeypatch.setenv("BLOCKLIFE_WATCH", "log")
    monkeypatch.setenv("BLOCKLIFE_WATCH_SAMPLE", "8")
    engine.plugin.install()
    engine.plugin.install()
    worker = vars(sys.modules[VLLM_WORKER])["OffloadingConnectorWorker"]()

    assert vllm_watch.watch_of(worker) is not None
    assert told(caplog).endswith(f"{os.getpid()} (log, one block of 8)")
    assert told(caplog).startswith("blocklife watches a worker's side of OffloadingConnector")


def test_plugin_does_nothing_unasked(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed blocklife is no watched engine."""
    monkeypatch.delenv("BLOCKLIFE_WATCH")
    engine.plugin.install()

    assert not engine.is_watched()


def test_caller_who_attaches_is_not_told_that_there_is_a_watch(caplog: pytest.LogCaptureFixture) -> None:
    """Who has asked knows; the line is for an environment that was set somewhere else."""
    scheduler, _ = offloading()
    with caplog.at_level(logging.DEBUG, LOGGER.name):
        vllm_watch.attach(scheduler)

    assert caplog.records == []


RELEASES = {
    "vLLM": (["0.20.2", "0.34.0", "0.40.1.dev3+g1", "1.0.0", "dev", None], ["0.21.0", "0.22.1", "0.33.1rc1", "v0.33.0+cpu"]),
    "SGLang": (["0.5.24", "0.6.0", "0.5.12.post1", "unknown", None], ["0.5.13", "0.5.23.post1"]),
}
"""Those that are not watched, and those that are."""


def test_release_that_is_not_known_is_not_watched(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """What the watch takes for granted may not hold there; one line names the releases that are known."""
    for release in RELEASES[engine.name][0]:
        caplog.clear()
        engine.set_release(release)
        engine.plugin.install()

        assert not engine.is_watched()
        assert told(caplog) == (
            f"blocklife watch: watching nothing, because this is {engine.name} {release or 'of an unknown release'}, and the "
            f"watch knows {engine.name} {engine.known} (install one of these, or a blocklife for yours)"
        )


@pytest.mark.parametrize(("name", "release"), [(name, each) for name, (_, known) in RELEASES.items() for each in known])
def test_release_that_is_known_is_watched(name: str, release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The range is wider than that of the connector: the watch rests on less."""
    engine = KINDS[name](monkeypatch)
    engine.set_release(release)
    monkeypatch.setenv("BLOCKLIFE_WATCH", "log")
    engine.plugin.install()

    assert engine.is_watched()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BLOCKLIFE_WATCH", "yes"),
        ("BLOCKLIFE_WATCH", "x\ny" * 10_000),
        ("BLOCKLIFE_WATCH_SAMPLE", "9" * 5_000),
        ("BLOCKLIFE_WATCH_RECORD", "/nowhere/run.jsonl"),
        ("BLOCKLIFE_WATCH_RECORD", "/"),
    ],
    ids=lambda each: each[:24],
)
def test_engine_goes_on_unwatched_where_settings_mean_nothing(
    name: str, value: str, engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line names the setting, and says that nothing is watched; no error reaches the engine."""
    monkeypatch.setenv(name, value)
    engine.plugin.install()

    assert not engine.is_watched()
    assert told(caplog).startswith(f"blocklife watch: watching nothing, because {name}={value[:1]}")
    assert len(told(caplog)) < 2 * MESSAGE_MAX


def test_engine_goes_on_unwatched_where_the_watch_fails_itself(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What it looks for is not there, as in a release of somebody's own: nothing is wrapped by halves."""
    engine.break_off(monkeypatch)
    engine.plugin.install()

    assert not engine.is_watched()
    assert told(caplog).startswith("blocklife watch: watching nothing, because of an error of its own: ")


def test_engine_goes_on_unwatched_where_attaching_fails(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A scheduler that is not what the watch takes it for is made all the same."""
    engine.plugin.install()

    def fails(*_given: object) -> None:
        raise KeyError("num_blocks")

    monkeypatch.setattr(engine.plugin, "attach", fails)
    assert not engine.is_watched()
    assert "watching nothing, because of an error of its own: KeyError('num_blocks')" in caplog.text


def test_engine_goes_on_unwatched_where_its_recording_cannot_be_opened(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its folder has gone since the environment was read; the line names the setting."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.setenv("BLOCKLIFE_WATCH_RECORD", str(folder / "run.jsonl"))
    engine.plugin.install()
    folder.rmdir()

    assert not engine.is_watched()
    said = f"blocklife watch: watching nothing, because record (BLOCKLIFE_WATCH_RECORD)={folder}/run.jsonl: "
    assert told(caplog).startswith(said)
