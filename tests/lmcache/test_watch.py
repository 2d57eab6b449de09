"""The watch over a real LMCache: silent while all is well, and red before any harm is done.

Method: random traffic in every world of the rig; the same where timing is unkind; a server of its own that loads the watch by
its option. Planted bugs: `tests/behind/test_planted_bugs.py`.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from blocklife.engines.lmcache.watch import Options, WatchError, WatchMode, attach, detach, watch_of
from blocklife.errors import MisuseError
from tests.lmcache.content import Witness
from tests.lmcache.engine import Engine, key_of
from tests.lmcache.found import TEXT, Stage
from tests.lmcache.planted.play import driven
from tests.lmcache.server import served
from tests.lmcache.test_server import key
from tests.lmcache.turns import begin
from tests.lmcache.worlds import UNKIND, WORLDS, WorldSpec
from tests.programs import until

STEPS = 400


@pytest.mark.parametrize("world", WORLDS)
def test_watch_is_silent_while_all_is_well(world: str) -> None:
    """No rule falls, nothing is wrong, and places were moved."""
    rows = [driven(world, WORLDS[world], seed, STEPS) for seed in range(100, 105)]
    print(*rows, sep="\n")

    assert [(row.seed, row.rules, row.trouble) for row in rows if row.rules or row.trouble] == []
    assert sum(row.places for row in rows) > 200


@pytest.mark.parametrize("world", UNKIND)
def test_watch_names_a_rule_before_harm_is_done(world: str) -> None:
    """In every seed with wrong bytes, or with a hit that is gone."""
    rows = [driven(world, UNKIND[world], seed, STEPS) for seed in range(20)]
    print(*rows, sep="\n")
    harmed = [row for row in rows if row.what in ("wrong bytes", "a hit is gone")]

    assert len(harmed) > 3
    assert [row for row in harmed if min(row.rules.values(), default=STEPS) > (row.trouble or 0)] == []


def engine(**told: object) -> Engine:
    """One LMCache of a small world."""
    begin()
    return Engine.of(WorldSpec(adapters=(8,), **told), Witness())  # type: ignore[arg-type]  # fields of the spec


def test_watch_is_gone_when_it_is_detached() -> None:
    """Every method is the object's own again, but for the lock of L1, which may be taken again by who has it."""
    made = engine()
    objects = [made.l1, made.l1._memory_manager, made.storage, made.transfer, made.lookup, *made.adapters]
    before = [dict(vars(each)) for each in objects]
    watch = attach(made.context, [made.lookup, made.transfer])
    kept = attach(made.context) is watch is watch_of(made.storage)
    heard = vars(made.l1)["reserve_write"]
    detach(made.storage)
    after = [dict(vars(each)) for each in objects]

    assert kept
    assert heard is not None
    assert watch_of(made.context) is None
    assert isinstance(after[0].pop("_lock"), type(threading.RLock()))
    del before[0]["_lock"]
    assert [each.keys() for each in after] == [each.keys() for each in before]
    made.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (Options(sample=4), "followed all or not at all"),
        (Options(record="run.jsonl"), "nothing is recorded of LMCache"),
    ],
)
def test_options_that_mean_nothing_here_are_refused(options: Options, words: str) -> None:
    """With the remedy, and nothing is watched."""
    made = engine()
    with pytest.raises(MisuseError, match=words):
        attach(made.context, options=options)

    assert watch_of(made.context) is None
    made.close()


def test_what_cannot_be_watched_is_refused() -> None:
    """Something else than a storage manager, and one that has content already."""
    made = engine()
    with pytest.raises(MisuseError, match="has no single L1 to watch"):
        attach(made.lookup)
    made.transfer.prepare_store(key_of(TEXT, 0, 4, request="a", worker=0, workers=1), 0)
    with pytest.raises(MisuseError, match="attach before the first request"):
        attach(made.context)
    made.close()


def test_strict_watch_stops_the_call() -> None:
    """The violation is an error in the call that breaks the rule."""
    stage = Stage(WorldSpec(adapters=(), write_lease=1))
    attach(stage.engine.context, [stage.engine.lookup, stage.engine.transfer], Options(mode=WatchMode.STRICT))
    stage.prepare(TEXT, "first")
    stage.pass_time(2)
    with pytest.raises(WatchError, match="place 0 is handed to another writer of the same content while worker 0 writes it"):
        stage.prepare(TEXT, "second")
    stage.engine.close()


def test_server_loads_the_watch_by_its_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line says what is watched; what is illegal is logged, by the server's own clock and threads."""
    monkeypatch.setenv("BLOCKLIFE_WATCH", "log")
    module = json.dumps({"module_path": "blocklife.engines.lmcache.watch"})
    tokens = list(range(4))
    with served(WorldSpec(places=8, write_lease=1), tmp_path, (), "--server-module", module) as client:
        client.register(0)
        first = client.ask("prepare_store", key(tokens, "first"), 0).context["slots"]

        def handed_over() -> bool:
            return bool(client.ask("prepare_store", key(tokens, "second"), 0).context["slots"])

        until(handed_over, "the lease of the first is over")
    said = client.log.read_text(encoding="utf-8", errors="replace")
    print(said)

    assert len(first) == 1
    assert "blocklife watches 8 places of 4096 bytes in LMCache's L1" in said
    assert "I1 at step" in said
    assert "is handed to another writer of the same content while worker 0 writes it for first" in said
