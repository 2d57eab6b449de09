"""Code of others beside a scheduler: hooks, watchers, recorders, replacement policies, indexes, key functions, and Ctrl-C.

Method: a small engine that draws all it does from a seed. Two of them play in lockstep, one with code that fails and one
without: what fails at the end of a call, or says no, must change nothing; a call that is refused because a key function has
failed must leave every byte as it was. What raises in the middle of a call is tried at every byte code.
"""

from __future__ import annotations

import asyncio
import io
import logging
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from types import FrameType
from typing import Any, TypeVar

import numpy as np
import pytest

from blocklife.errors import InterruptedCallError, MisuseError, RefusedError
from blocklife.ledger import Ledger, Limits
from blocklife.ledger.invariants import check
from blocklife.offload import Policies
from blocklife.offload._lookup import Answer
from blocklife.offload.replacement import Lru, Name
from blocklife.recording import Recorder
from tests.rigs import Call, Engine, Rig, letters, scheduler_key, scheduler_refuses

T = TypeVar("T")


class TroubleError(Exception):
    """What the code of others raises here."""


STEPS = 25


# --- hooks, watchers, recorders -----------------------------------------------------------------------------------------


class FullDisk(io.StringIO):
    """A stream that takes the head, and every line until it is full."""

    left = 40

    def writelines(self, lines: Iterable[str]) -> None:  # type: ignore[override]  # typeshed has that of a stream of bytes
        for line in lines:
            self.left -= 1
            if self.left < 0:
                raise OSError(28, "No space left on device")
            self.write(line)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("seed", range(60))
def test_failing_hooks_change_nothing(seed: int) -> None:
    """Hooks on steps, on refusals and on slots that raise, and a recorder whose disk is full: all is as without them."""
    engine, twin = Engine(seed), Engine(seed)
    draw = random.Random(seed)

    def hook(*_: object) -> None:
        if draw.random() < 0.3:
            raise draw.choice([TroubleError("a hook"), KeyError("a hook"), asyncio.CancelledError("a hook")])

    engine.ledger.on(hook=hook)
    engine.ledger.on_refusal(hook)
    engine.tier.watch(hook)
    recorder = Recorder(FullDisk())
    recorder.begin(engine.ledger)
    heard: list[object] = []
    engine.ledger.on(hook=heard.append)
    for _ in range(STEPS):
        engine.step()
        twin.step()

        assert engine.outcomes == twin.outcomes
        assert engine.state() == twin.state()
    engine.drain()

    assert engine.ledger.hook_errors.count > 10
    assert engine.ledger.statistics().hook_errors == engine.ledger.hook_errors.count
    assert isinstance(recorder.problem, OSError)
    assert len(heard) > 50


@pytest.mark.parametrize("when", ["landed", "evicted"])
def test_failing_watcher_leaves_the_ledger_whole(when: str) -> None:
    """It once ran in the middle of a write, as content became readable or was given up."""
    rig = Rig(slots=3)
    rig.tier.watch(lambda stored, _: _raise(TroubleError("a watcher")) if stored is (when == "landed") else None)
    rig.fill("a", letters(13))
    rig.add("b", letters(13, "p"))
    rig.let_in("b")
    rig.tick()
    rig.scheduler.finish("b")
    rig.drain()

    assert check(rig.ledger) == []
    assert rig.ledger.hook_errors.count
    assert len(rig.stored()) == 3


def test_watchers_hear_behind_the_call_what_it_has_done() -> None:
    """After its last write, once for each change and in order."""
    rig, heard = Rig(slots=3), list[tuple[bool, tuple[int, ...], bool]]()

    def watcher(stored: bool, slots: Sequence[int]) -> None:
        heard.append((stored, tuple(slots), check(rig.ledger) == []))

    rig.ledger.slots.watch(watcher)
    rig.fill("a", letters(9))
    rig.ledger.evict([slot for slot in range(3) if rig.ledger.slots.can_evict(slot)])

    assert [(stored, whole) for stored, _, whole in heard] == [(True, True), (False, True)]
    assert sorted(heard[0][1]) == sorted(heard[1][1])


def test_error_of_a_hook_is_logged_once_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    """Further errors of it are counted; those of another hook are told, too."""
    rig = Rig()

    def first(_: object) -> None:
        raise TroubleError("one")

    def second(_: object) -> None:
        raise TroubleError("two")

    rig.ledger.on(hook=first)
    rig.ledger.on(hook=second)
    with caplog.at_level(logging.ERROR, "blocklife.hooks"):
        rig.fill("a", letters(9))
    one, two = rig.ledger.hook_errors.failed

    assert [record.message.split(" ")[0].rsplit(".", 1)[1] for record in caplog.records] == ["first", "second"]
    assert one.count == two.count > 1
    assert one.count + two.count == rig.ledger.hook_errors.count
    assert (str(one.first), str(two.first)) == ("one", "two")


def test_hook_is_told_behind_the_outermost_call() -> None:
    """A call of the scheduler is made of several verbs: hooks hear of all of them when it is over, and can call nothing."""
    rig, problems, stages = Rig(), list[str](), list[bool]()

    @rig.ledger.on()
    def hook(_: object) -> None:
        stages.append("a" in rig.scheduler.requests)
        for call in (rig.scheduler.grow, rig.tier.statistics, lambda: rig.tier.touch([0]), lambda: rig.ledger.preempt("a")):
            try:
                call()
            except MisuseError as problem:
                problems.append(str(problem))

    rig.add("a", letters(5))
    rig.let_in("a")
    rig.scheduler.abort("a")

    assert stages[-1] is False  # it is over for the scheduler, too
    assert set(problems) == {
        f"{name}: a hook cannot call the ledger (note it, and call after the verb)" for name in ("grow", "touch", "preempt")
    }


@pytest.mark.parametrize("error", [TroubleError, KeyboardInterrupt, SystemExit])
def test_what_is_raised_for_tests_comes_when_all_is_done(error: type[BaseException]) -> None:
    """``errors="raise"``, and an interrupt in any case; the note says that what the call returned is lost."""
    rig = Rig()
    rig.ledger.hook_errors.raises = True
    rig.add("a", letters(5))
    hit = rig.hit("a")
    subscription = rig.ledger.on(hook=lambda _: _raise(error("in a hook")))
    with pytest.raises(error) as raised:
        rig.scheduler.admit("a", hit, 5)
    subscription.remove()

    assert raised.value.__notes__ == ["admit has done its work, and what it returned is lost with this error"]
    assert rig.scheduler.requests.is_running("a")
    rig.tick()


# --- replacement policies, and the index of a store below ---------------------------------------------------------------


class Liar(Lru):
    """A policy that fails now and then, or answers something that is none."""

    def __init__(self, kind: str, seed: int) -> None:
        super().__init__()
        self.kind, self.draw, self.lies, self.odds = kind, random.Random(seed), 0, 0.4

    def _lies(self, kind: str) -> bool:
        lies = self.kind == kind and self.draw.random() < self.odds
        self.lies += lies
        return lies

    def victims(self, count: int, evictable: Callable[[int], bool], coming: Sequence[Name]) -> list[int]:
        found = super().victims(count, evictable, coming)
        answer = LIES.get(self.kind)
        return answer(found, count) if found and answer is not None and self._lies(self.kind) else found

    def insert(self, slots: Sequence[int], names: Sequence[Name]) -> None:
        if self._lies("insert"):
            raise TroubleError("insert")
        super().insert(slots, names)

    def touch(self, slots: Iterable[int]) -> None:
        if self._lies("touch"):
            raise TroubleError("touch")
        super().touch(slots)

    def remove(self, slot: int) -> None:
        if self._lies("remove"):
            raise TroubleError("remove")
        super().remove(slot)


def _raise(error: BaseException) -> Any:
    raise error


LIES: dict[str, Callable[[list[int], int], Any]] = {
    "unknown": lambda found, count: [*found[1:], 10**6],
    "negative": lambda found, count: [*found[1:], -1],
    "twice": lambda found, count: found[:1] * (count + 1),
    "too many": lambda found, count: [*found, *found],
    "raises": lambda found, count: _raise(TroubleError("victims")),
    "cancelled": lambda found, count: _raise(asyncio.CancelledError("victims")),
    "nothing": lambda found, count: None,
    "texts": lambda found, count: [str(slot) for slot in found],
    "fractions": lambda found, count: [float(slot) for slot in found],
    "truths": lambda found, count: [True] * count,
    "huge": lambda found, count: [2**70] * count,
    "whatever": lambda found, count: list(range(count)),
    "array": lambda found, count: np.array(found),
    "generator": lambda found, count: iter(found),
    "lists": lambda found, count: [[slot] for slot in found],
    "fewer": lambda found, count: found[:-1],
}


@pytest.mark.sampled
@pytest.mark.parametrize("kind", [*LIES, "insert", "touch", "remove"])
@pytest.mark.parametrize("seed", range(4))
def test_policy_that_fails_or_lies_stops_no_engine(kind: str, seed: int) -> None:
    """No call raises, every invariant holds in every step, and nothing is left behind at the end."""
    policy = Liar(kind, seed)
    engine = Engine(seed, replacement=policy, groups="full:4,swa:4:8")
    for _ in range(40):
        engine.step()

        assert check(engine.ledger) == []
    policy.kind = "honest"
    engine.drain()

    assert not policy.lies or engine.ledger.hook_errors.count or kind in ("array", "generator", "fewer", "whatever", "truths")


@pytest.mark.parametrize("kind", ["raises", "too many", "insert", "touch", "remove"])
def test_settle_returns_its_outcome_whatever_a_policy_does(kind: str) -> None:
    """A request ends with the plan, and what it leaves is stored: its policy fails after the ledger has settled."""
    policy = Liar("honest", 0)
    rig = Rig(slots=3, policies=Policies(plans_ahead=1), replacement=policy)
    rig.fill("x", letters(13))
    rig.reset_device()
    rig.add("b", letters(9, "p"))
    rig.let_in("b")
    rig.add("x", letters(9))
    rig.let_in("x", 0)
    rig.plan()
    rig.scheduler.finish("b")
    policy.kind = kind
    policy.odds = 1.0
    settled = rig.settle()

    assert (settled.loaded, settled.failed, settled.ended) == (("x",), (), ("b",))
    assert rig.ledger.hook_errors.count


class FailingIndex:
    """A store below that cannot be asked: each of its answers raises now and then, or is none."""

    def __init__(self, seed: int) -> None:
        self.draw, self.failed, self.works = random.Random(seed), 0, True

    def _fail(self, answer: T) -> T:
        if not self.works and self.draw.random() < 0.4:
            self.failed += 1
            if self.draw.random() < 0.5:
                raise self.draw.choice([TroubleError("index"), asyncio.CancelledError("index")])
            return "nonsense"  # type: ignore[return-value]  # the point of it
        return answer

    @property
    def is_up(self) -> bool:
        return self._fail(True)

    def ask(self, space: bytes, contents: Sequence[tuple[int, bytes]]) -> Sequence[Answer]:
        found = [self._fail(self.draw.choice(list(Answer))) for _ in contents]
        return found[: -self._fail(False) or None]

    def discard(self, space: bytes, contents: Sequence[tuple[int, bytes]]) -> None:
        self._fail(None)

    def note_put(self, space: bytes, contents: Sequence[tuple[int, bytes]]) -> None:
        self._fail(None)

    def new_space(self) -> bytes:
        return b"new"


@pytest.mark.parametrize("seed", range(12))
def test_index_that_fails_costs_hits_only(seed: int) -> None:
    """What it does not answer is not below; the engine goes on."""
    index = FailingIndex(seed)
    engine = Engine(seed, below=index, groups="full:4")
    index.works = False
    for _ in range(3 * STEPS):
        engine.step()

        assert check(engine.ledger) == []
    index.works = True
    engine.drain()

    assert index.failed > engine.ledger.hook_errors.count > 5


# --- key functions ------------------------------------------------------------------------------------------------------

FAILURES = (TimeoutError, asyncio.CancelledError, KeyboardInterrupt, MisuseError)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("seed", range(60))
def test_call_whose_key_function_fails_leaves_every_byte(seed: int) -> None:
    """Whatever it raises, in whichever call, at whichever of its questions: the call can be made again, and is as ever."""
    engine, twin = Engine(seed), Engine(seed)
    draw, failed = random.Random(seed), list[str]()
    countdown = -1

    def ask() -> None:
        nonlocal countdown
        countdown -= 1
        if countdown == 0:
            raise draw.choice(FAILURES)("no keys now")

    def failing(name: str, call: Call[Any]) -> Any:
        nonlocal countdown
        if draw.random() < 0.3:
            before, countdown = engine.state(), draw.randrange(1, 5)
            try:
                return call()
            except FAILURES as problem:
                if "no keys now" not in str(problem):
                    raise
                failed.append(name)

                assert engine.state() == before, name
                assert check(engine.ledger) == []
            finally:
                countdown = -1
        return call()

    engine.ask, engine.wrap = ask, failing
    for _ in range(STEPS):
        engine.step()
        twin.step()

        assert engine.outcomes == twin.outcomes
        assert engine.state() == twin.state()
    engine.drain()
    assert failed


@pytest.mark.parametrize("how", ["finish", "abort"])
def test_end_that_is_refused_leaves_the_request_in_the_batch(how: str) -> None:
    """Its key function has failed, which is asked for the block that a drafter may still write; it can be ended later."""
    rig, keys = Rig("full:4+drafter"), list[bytes]()
    rig.add("a", letters(9), prompt=7)
    rig.let_in("a")
    rig.tick()
    rig.scheduler.grow()
    rig.tick()
    tracked = rig.scheduler._state.requests["a"]
    right, tracked.keys = tracked.keys, lambda *_: _raise(TimeoutError("no keys now"))
    before = scheduler_key(rig.scheduler)
    with pytest.raises(TimeoutError):
        getattr(rig.scheduler, how)("a")
    tracked.keys = right

    assert keys == []
    assert scheduler_key(rig.scheduler) == before
    assert rig.scheduler.requests.running() == ["a"]
    assert rig.scheduler.grow({"a": 1}) == []
    getattr(rig.scheduler, how)("a")
    assert "a" not in rig.scheduler.requests


@pytest.mark.parametrize("groups", ["full:4", "full:4,swa:4:8"])
def test_list_of_keys_may_be_filled_anew(groups: str) -> None:
    """A key function may have one list for all its answers: what it says later, or of another group, changes none of them."""
    rig, answer = Rig(groups, policies=Policies(plans_ahead=1)), list[bytes]()

    def keys(group: int, start: int, stop: int) -> list[bytes]:
        answer[:] = [b"%d:%d" % (group, block) for block in range(start, stop)]
        return answer

    rig.scheduler.add_request("a", keys, prompt_tokens=13)
    rig.let_in("a", 4)
    rig.plan()
    rig.scheduler.grow({"a": 4})
    rig.plan()
    rig.settle()

    assert [named for _, named, _ in rig.ledger.blocks.named()] == [b"0:0", b"1:0"][: len(rig.geometry.groups)]


def test_more_keys_than_blocks_are_refused() -> None:
    """In a lookup, and in a step."""
    rig = Rig()
    rig.scheduler.add_request("a", partial(_numbered, 0), prompt_tokens=8)
    hit = rig.hit("a")
    rig.scheduler._state.requests["a"].keys = partial(_numbered, 1)
    with scheduler_refuses(rig, MisuseError, r"keys of blocks 0 to 1 of group 0: 2 were given \(one for each block\)"):
        rig.hit("a")
    rig.scheduler.admit("a", hit, 8)
    with scheduler_refuses(rig, MisuseError, r"keys of blocks 0 to 2 of group 0: 3 were given \(one for each block\)"):
        rig.scheduler.build_plan(1.0)


def _numbered(more: int, _group: int, start: int, stop: int) -> list[bytes]:
    return [b"%d" % block for block in range(start, stop + more)]


@pytest.mark.parametrize("how", ["finish", "settle"])
def test_end_without_a_new_token_asks_for_its_tail_first(how: str) -> None:
    """Its tail ends a token earlier; where its key cannot be had, the plan stays out, and the request in the batch."""
    rig, asked = Rig("full:4/1", policies=Policies(plans_ahead=int(how == "settle"))), [5]

    def tails(_group: int, end: int) -> bytes:
        asked.append(end)
        if len(asked) == 1:
            raise TimeoutError("no keys now")
        return b"tail %d" % end

    rig.scheduler.add_request("a", partial(_numbered, 0), prompt_tokens=5, tails=tails)
    rig.let_in("a", 5)
    rig.tick()
    rig.scheduler.grow({"a": 1})
    rig.plan()
    if how == "finish":
        rig.settle(sampled={"a": 0})
    else:
        rig.scheduler.finish("a")
    asked.clear()
    end = partial(rig.scheduler.finish, "a") if how == "finish" else partial(rig.settle, sampled={"a": 0})
    out = list(rig.plans)
    with scheduler_refuses(rig, TimeoutError, "no keys now"):
        end()
    rig.plans[:] = out
    end()

    assert asked == [5, 5]
    assert "a" not in rig.scheduler.requests


# --- Ctrl-C -------------------------------------------------------------------------------------------------------------


@contextmanager
def interrupted_at(number: int) -> Iterator[list[int]]:
    """KeyboardInterrupt at a byte code of the package's core, counted from here; the count of those that ran."""
    counted = [0]

    def inside(frame: FrameType, event: str, _: object) -> Any:
        if event == "opcode":
            counted[0] += 1
            if counted[0] == number:
                raise KeyboardInterrupt
        return inside

    def enter(frame: FrameType, _event: str, _: object) -> Any:
        name = frame.f_code.co_filename
        if "/blocklife/ledger/" not in name and "/blocklife/offload/" not in name and "/blocklife/lifecycle/" not in name:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return inside

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield counted
    finally:
        sys.settrace(before)


def apart(work: Callable[[], None]) -> None:
    """Do something in a thread of its own: Python may take an exception there for one that is still dealt with."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def small() -> Ledger:
    """A ledger in which a request holds three blocks."""
    ledger = Ledger(Limits(num_blocks=9, num_slots=4))
    ledger.add_request("a")
    ledger.admit("a")
    ledger.allocate("a", 3)
    ledger.add_request("b")
    return ledger


VERBS: dict[str, Callable[[Ledger], object]] = {
    "allocate": lambda ledger: ledger.allocate("a", 2),
    "preempt": lambda ledger: ledger.preempt("a"),
    "finish": lambda ledger: ledger.finish("a"),
    "refused": lambda ledger: ledger.admit("a"),
    "dispatch": lambda ledger: ledger.dispatch(1.0),
}


@pytest.mark.interpreted
@pytest.mark.parametrize("verb", VERBS)
def test_interrupt_at_any_byte_code_is_never_passed_over(verb: str) -> None:
    """The ledger is as before the call or as after it, or every further call is refused with one sentence."""
    apart(partial(interrupt_everywhere, verb))


def interrupt_everywhere(verb: str) -> None:
    before, after = small(), small()
    with suppress(RefusedError):
        VERBS[verb](after)
    closed = 0
    for number in count(1):
        ledger = small()
        with suppress(KeyboardInterrupt, RefusedError), interrupted_at(number) as counted:
            VERBS[verb](ledger)
        if counted[0] < number:
            break  # the call was over
        found = ledger.snapshot()
        problem = refusal_of(lambda: ledger.add_request("c"))  # noqa: B023 - called at once
        if problem:
            closed += 1

            assert problem.startswith("add_request: the call ")
            assert refusal_of(lambda: ledger.finish("b")).startswith("finish: the call ")  # noqa: B023 - called at once
            ledger.restore(before.snapshot())
            assert ledger.snapshot() == before.snapshot()
            assert check(ledger) == []
            continue
        ledger.finish("c")

        assert check(ledger) == []
        assert found in (before.snapshot(), after.snapshot())
    assert closed > 20


def refusal_of(call: Call[object]) -> str:
    """What a call says that is refused because an earlier one was interrupted; empty if it is not refused."""
    try:
        call()
    except InterruptedCallError as refusal:
        return str(refusal)
    return ""


@pytest.mark.interpreted
@pytest.mark.parametrize("seed", range(200))
def test_interrupted_step_goes_on_or_is_refused(seed: int) -> None:
    """At a random byte code of a random step, with hooks and without: what is not whole answers nothing any more."""
    apart(partial(interrupt_somewhere, seed))


def interrupt_somewhere(seed: int) -> None:
    engine, draw = Engine(seed), random.Random(seed)
    if seed % 2:
        engine.ledger.on(hook=lambda _: None)
    for _ in range(draw.randrange(3, 15)):
        engine.step()
    saved = engine.state()
    with suppress(KeyboardInterrupt), interrupted_at(draw.randrange(1, 4000)):
        for _ in range(20):
            engine.step()
    if refusal_of(lambda: engine.ledger.add_request("afterwards")):
        assert "was interrupted while it wrote" in refusal_of(lambda: engine.scheduler.build_plan(engine.now))
        assert "was interrupted while it wrote" in refusal_of(lambda: engine.tier.touch([0]))
        engine.scheduler.restore(saved)
        assert engine.state() == saved
        engine.ledger.add_request("afterwards")
    engine.ledger.finish("afterwards")
    assert check(engine.ledger) == []
