"""A request's hashes are those of its own content, and a lookup promises nothing that the host lacks; both are told at once.

Method: fakes with vLLM's names. A test gives requests their hashes; what they are made of says whether these may be alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import pytest
from attrs import define, field

from blocklife.engines.vllm.watch import Options, Watch, WatchError, WatchMode, attach
from blocklife.engines.vllm.watch import _names as hashes
from tests.watch.watch_fakes import FakeMeta, FakeOffloading, FakePool, FakeRequest, FakeScheduler, FakeSimple, load

COUNT = Options(mode=WatchMode.COUNT)
SIZE = 4


def rules(watch: Watch) -> list[str]:
    """The rules that fell."""
    return [violation.rule for violation in watch.violations]


def lacking(watch: Watch) -> list[str]:
    """What the host lacks of what lookups have promised; nothing else has fallen."""
    assert set(rules(watch)) <= {"I6"}
    return [each.what.partition(", but the host ")[2] for each in watch.violations]


# --- hashes -------------------------------------------------------------------------------------------------------------------


def image(name: str, offset: int) -> SimpleNamespace:
    """An image whose tokens begin there."""
    return SimpleNamespace(identifier=name, mm_position=SimpleNamespace(offset=offset, length=3))


@define(eq=False)
class Request:
    """A request with what its content depends on, and hashes that a test makes."""

    request_id: str
    all_token_ids: list[int] = field(factory=list)
    block_hashes: list[bytes] = field(factory=list)
    cache_salt: str | None = None
    lora_request: SimpleNamespace | None = None
    mm_features: Sequence[SimpleNamespace] = ()


class Pool(FakePool):
    """A pool that gives names."""

    def __init__(self) -> None:
        super().__init__(16)
        self.hash_block_size = SIZE

    def cache_full_blocks(self, **told: object) -> None:
        """These blocks of a request are full."""


class Engine(FakeScheduler):
    """A scheduler that takes requests."""

    def __init__(self) -> None:
        self.inner = FakeOffloading()
        super().__init__(SimpleNamespace(connector_scheduler=self.inner))
        self.pool = Pool()
        self.kv_cache_manager.block_pool = self.pool
        self.taken: list[str] = []

    def add_request(self, *given: object) -> None:
        """One more."""
        request = given[0]
        assert isinstance(request, Request)
        self.taken.append(request.request_id)

    def grow(self, request: Request) -> None:
        """A block of a request is full, and the step is planned."""
        self.pool.cache_full_blocks(
            request=request,
            blocks=[self.pool.blocks[1]],
            num_cached_blocks=0,
            num_full_blocks=1,
            block_size=SIZE,
            kv_cache_group_id=0,
        )
        self.inner.build_connector_meta(FakeMeta())


ADAPTER = SimpleNamespace(lora_name="fr", lora_path="/fr")
MOVED = SimpleNamespace(lora_name="fr", lora_path="/other")
PLAIN: Mapping[str, object] = {}


def named(name: str, tokens: Sequence[int], of: bytes, **more: object) -> Request:
    """A request whose hashes are *of* something, and the number of the block."""
    return Request(name, list(tokens), [of + b"%d" % at for at in range(len(tokens) // SIZE)], **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (PLAIN, {"cache_salt": "s"}),
        ({"cache_salt": "s"}, {"cache_salt": "t"}),
        (PLAIN, {"lora_request": ADAPTER}),
        ({"lora_request": ADAPTER}, {"lora_request": MOVED}),
        (PLAIN, {"mm_features": [image("cat", 1)]}),
        ({"mm_features": [image("cat", 1)]}, {"mm_features": [image("dog", 1)]}),
        ({"mm_features": [image("cat", 1)]}, {"mm_features": [image("cat", 2)]}),
        ({"mm_features": [image("cat", 1)]}, {"mm_features": [image("cat", 1), image("dog", 5)]}),
    ],
)
def test_i8_falls_for_a_hash_that_two_contents_have(first: Mapping[str, object], second: Mapping[str, object]) -> None:
    """Once, when the second request comes; the same content again has the same hashes, rightly."""
    engine = Engine()
    watch = attach(engine, COUNT)
    for name, of in (("a", first), ("b", first)):
        engine.add_request(named(name, range(9), b"h", **of))
    silent = rules(watch)
    engine.add_request(named("c", range(9), b"h", **second))
    engine.add_request(named("d", range(9), b"other", **second))

    assert silent == []
    assert rules(watch) == ["I8"]
    assert watch.violations[0].request == "c"
    assert "gets a hash that a has had for another content" in watch.violations[0].what
    assert engine.taken == ["a", "b", "c", "d"]


def test_i8_falls_for_a_hash_that_forgets_a_token_or_what_came_before() -> None:
    """The second block is alike in both, the first is not; and the other way round."""
    engine = Engine()
    watch = attach(engine, COUNT)
    engine.add_request(Request("a", [*range(8)], [b"0", b"1"]))
    engine.add_request(Request("b", [9, 9, 9, 9, 4, 5, 6, 7], [b"9", b"1"]))
    engine.add_request(Request("c", [0, 1, 2, 9], [b"0"]))

    assert [(each.rule, each.what.partition(" gets ")[0]) for each in watch.violations] == [
        ("I8", "b up to token 8"),
        ("I8", "c up to token 4"),
    ]


def test_hashes_of_what_was_said_are_asked_for_when_their_block_gets_its_name() -> None:
    """Each once: what is known of the tokens before goes on."""
    engine = Engine()
    watch = attach(engine, COUNT)
    first, second = named("a", range(5), b"h"), named("b", range(5), b"h")
    for request, said in ((first, [5, 6, 7]), (second, [5, 6, 8])):
        engine.add_request(request)
        request.all_token_ids.extend(said)
        request.block_hashes.append(b"h1")
        engine.grow(request)
    engine.grow(second)

    assert [(each.rule, each.request) for each in watch.violations if "hash that" in each.what] == [("I8", "b")]


def test_a_session_that_takes_tokens_back_begins_anew() -> None:
    """Its last hashes go with them, and those that come are of other tokens: nothing is wrong."""
    engine = Engine()
    watch = attach(engine, COUNT)
    session = named("a", range(12), b"h")
    engine.add_request(session)
    session.all_token_ids[6:] = range(60, 70)
    session.block_hashes[1:] = [b"new 1", b"new 2", b"new 3"]
    engine.grow(session)
    engine.add_request(Request("b", [*session.all_token_ids], [b"h0", b"new 1", b"new 2", b"new 3"]))
    engine.add_request(named("c", range(12), b"h"))

    assert [each for each in watch.violations if "hash that" in each.what] == []


def test_a_strict_watch_refuses_the_request() -> None:
    """It is not in the engine then."""
    engine = Engine()
    attach(engine, Options(mode=WatchMode.STRICT))
    engine.add_request(named("a", range(4), b"h"))
    with pytest.raises(WatchError, match="I8 at step 0: b up to token 4 gets a hash"):
        engine.add_request(named("b", range(4), b"h", cache_salt="s"))

    assert engine.taken == ["a"]


def test_hashes_are_kept_for_a_time_and_forgotten_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that memory does not grow: at least as many of the latest as is said, whoever had them; and so of requests."""
    monkeypatch.setattr(hashes, "NUM_HASHES", 4)
    monkeypatch.setattr(hashes, "NUM_REQUESTS", 2)
    engine = Engine()
    watch = attach(engine, COUNT)
    for number in range(8):
        engine.add_request(named(f"r{number}", [number] * 4, b"%d " % number))
    for number in reversed(range(8)):
        engine.add_request(named(f"s{number}", [9] * 4, b"%d " % number))

    assert [each.request for each in watch.violations] == ["s7", "s6", "s5", "s4"]
    assert "a hash that r7 has had" in watch.violations[0].what


# --- lookups ------------------------------------------------------------------------------------------------------------------


class Offloading(FakeOffloading):
    """One that promises what a test says."""

    def __init__(self, *groups: int | None) -> None:
        super().__init__(num_groups=len(groups))
        for config, window in zip(self.config.kv_group_configs, groups, strict=True):
            config.tokens_per_chunk, config.sliding_window_size_in_chunks = SIZE, window
        self.promised: tuple[int | None, bool] = 0, False
        self.chunks: dict[bytes, SimpleNamespace] = {}
        self._current_batch_load_jobs: dict[int, object] = {}
        vars(self.manager)["_policy"] = SimpleNamespace(get=self.chunks.get)

    def holds(self, *keys: bytes, ready: bool = True) -> None:
        """The host has these."""
        for key in keys:
            self.chunks[key] = SimpleNamespace(chunk_id=len(self.chunks), is_ready=ready)


def looked_up(inner: Offloading, tokens: int | None, computed: int, keys: Sequence[Sequence[bytes]]) -> Watch:
    """A watch that has heard one lookup of request a."""
    watch = attach(FakeScheduler(SimpleNamespace(connector_scheduler=inner), num_groups=len(keys)), COUNT)
    states = [SimpleNamespace(offload_keys=list(each)) for each in keys]
    inner._req_status["a"] = SimpleNamespace(group_states=states, transfer_jobs=set(), partial_tail_boundary=None)
    inner.promised = tokens, bool(tokens)
    inner.get_num_new_matched_tokens(FakeRequest("a"), computed)
    return watch


@pytest.mark.parametrize(
    ("tokens", "computed", "what"),
    [
        (8, 0, None),
        (8, 4, None),
        (None, 0, None),
        (0, 8, None),
        (12, 4, "has no chunk 3 of group 0"),
        (16, 4, "has no chunk 3 of group 0"),
        (20, 0, "has no chunk 3 of group 0"),
    ],
)
def test_i6_falls_for_a_lookup_that_promises_what_the_host_lacks(tokens: int | None, computed: int, what: str | None) -> None:
    """A lookup that is put off, or finds nothing, promises nothing."""
    inner = Offloading(None)
    inner.holds(b"k0", b"k1", b"k2")
    watch = looked_up(inner, tokens, computed, [[b"k0", b"k1", b"k2", b"k3"]])

    assert lacking(watch) == ([] if what is None else [what])


def test_i6_falls_for_a_lookup_that_promises_what_is_still_stored_or_has_no_key() -> None:
    """The one has a slot, which is being written; the other is more than the request has."""
    stored, short = Offloading(None), Offloading(None)
    stored.holds(b"k0")
    stored.holds(b"k1", ready=False)
    short.holds(b"k0")
    watches = [looked_up(each, 8, 0, [keys]) for each, keys in ((stored, [b"k0", b"k1"]), (short, [b"k0"]))]

    assert list(map(lacking, watches)) == [
        ["is still storing chunk 1 of group 0"],
        ["has no chunk 1 of group 0, for which the request has no key"],
    ]


@pytest.mark.parametrize(("held", "fell"), [((b"w2", b"w3"), []), ((b"w1", b"w2"), ["I6"])])
def test_of_a_window_only_what_is_read_at_the_end_has_to_be_there(held: Sequence[bytes], fell: list[str]) -> None:
    """Two chunks; the group beside it reads all."""
    inner = Offloading(None, 2)
    inner.holds(b"k0", b"k1", b"k2", b"k3", *held)
    watch = looked_up(inner, 16, 0, [[b"k0", b"k1", b"k2", b"k3"], [b"w0", b"w1", b"w2", b"w3"]])

    assert rules(watch) == fell


@pytest.mark.parametrize(("said", "sync", "fell"), [(True, False, []), (False, True, []), (False, False, ["I6"])])
def test_i6_falls_for_a_load_that_was_said_to_be_over_within_the_step(said: bool, sync: bool, fell: list[str]) -> None:
    """The request would go on at once; its load is one that it has to wait for."""
    inner = Offloading(None)
    inner.holds(b"k0")
    watch = looked_up(inner, None, 0, [[b"k0"]])
    inner.promised = 4, said
    inner.get_num_new_matched_tokens(FakeRequest("a"), 0)
    inner._current_batch_load_jobs[0] = load("a", [1], [0], sync=sync)
    inner.update_state_after_alloc(FakeRequest("a"), SimpleNamespace(blocks=()), 4)
    inner.build_connector_meta(FakeMeta())

    assert rules(watch) == fell


class Simple(FakeSimple):
    """The same of the other connector, whose slots are blocks of a pool."""

    def __init__(self) -> None:
        super().__init__()
        self.hash_block_size, self.group_block_sizes = SIZE, [SIZE]
        self._pending_cpu_hits: dict[str, tuple[list[list[object]], int, int]] = {}

    def get_num_new_matched_tokens(self, request: object, computed: int) -> tuple[int, bool]:
        """The lookup."""
        return 8, True


@pytest.mark.parametrize(
    ("slots", "what"),
    [
        ([7, 8], None),
        ([7], "has only 1 blocks of group 0"),
        ([8, 7], "has other content in slot 8 than that of position 1 of group 0"),
        ([0, 8], None),
    ],
)
def test_i6_falls_for_a_lookup_of_the_simple_connector(slots: list[int], what: str | None) -> None:
    """Too few slots, or slots of other content; what is in front of a window is the null block."""
    inner = Simple()
    watch = attach(FakeScheduler(SimpleNamespace(scheduler_manager=inner)), COUNT)
    pool = inner.cpu_block_pool
    for slot, name in ((7, b"h1"), (8, b"h2")):
        pool.blocks[slot].block_hash = name + bytes(4)
    inner._pending_cpu_hits["a"] = [[pool.blocks[slot] for slot in slots]], 8, SIZE
    inner.get_num_new_matched_tokens(Request("a", [], [b"h0", b"h1", b"h2"]), SIZE)

    assert lacking(watch) == ([] if what is None else [what])
