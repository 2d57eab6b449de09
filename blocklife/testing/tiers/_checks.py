"""The checks of the suite for stores. Each is one promise of `blocklife.tiers.ContentStore`."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from os import environ, pathsep
from typing import IO

from blocklife.testing.tiers._trial import (
    ABSENT,
    FAILED,
    FULL,
    OK,
    WRONG_SIZE,
    SkippedError,
    StoreCheckError,
    Trial,
    check,
    value_of,
)
from blocklife.tiers import Page, Removing

_MIB = 1 << 20
CAPACITY_TRIED_MAX = 64 * _MIB
"""Largest capacity that is filled."""
PROCESS_PAGES = 24
PROCESS_BYTES = 3_000
"""What each of two processes puts."""
LOOK_AGAIN_S = 0.05
"""How long pages are left alone before they are looked at again."""


# --- bytes come back ---------------------------------------------------------------------------------------------------


def _round_trip(trial: Trial, sizes: Sequence[int]) -> None:
    for size in sizes:
        page = trial.full_page(size, size)
        trial.must_put([page])
        trial.must_get([page])


@check()
def small_values(trial: Trial) -> None:
    """Values of 1 to 65 bytes come back whole."""
    _round_trip(trial, (1, 2, 3, 7, 8, 63, 64, 65))


@check(memory=_MIB)
def values_around_a_page(trial: Trial) -> None:
    """Values of about 4 KiB and 64 KiB, a byte more and a byte less, come back whole."""
    _round_trip(trial, (4095, 4096, 4097, 65_535, 65_536, 65_537))


@check(memory=16 * _MIB)
def large_values(trial: Trial) -> None:
    """Values of 1 MiB, of 8 MiB, and of an odd size between come back whole."""
    _round_trip(trial, (_MIB, 3 * _MIB + 17, 8 * _MIB))


@check()
def any_address(trial: Trial) -> None:
    """Pages may begin at any address, also at an odd one."""
    pages = [trial.full_page(align, 1_000 + align, align=align) for align in (1, 2, 3, 5, 7, 31)]
    trial.must_put(pages)
    fresh = [trial.page(page.key, page.size, align=64 - at) for at, page in enumerate(pages, 1)]
    trial.must_fill(fresh)


@check()
def several_areas(trial: Trial) -> None:
    """Pages may lie in any area that was registered, and in several in one call."""
    trial.join(10_000)
    first = trial.full_page("first", 4_000)
    trial.join(10_000)
    second = trial.full_page("second", 4_000)
    trial.must_put([first, second])
    for page in (first, second):
        trial.fill(page, bytes(page.size))
    trial.must_fill([second, first])


# --- keys --------------------------------------------------------------------------------------------------------------


@check()
def any_key(trial: Trial) -> None:
    """A key may have any bytes: zeros, slashes, dots, line ends, quotes, no text at all."""
    patterns = (b"\0", b"\0\1", b"/", b"../", b"\n", b"'\"", b"%s", b"\xff", b"\xc3\x28", b"a\0b")
    token = trial.key("")  # the first half differs between runs
    pages = [trial.full_page((pattern * 32)[:16] + token[:16], 100) for pattern in patterns]
    trial.must_put(pages)
    trial.must_get(pages)


@check()
def keys_alike_at_their_start(trial: Trial) -> None:
    """Keys that differ only in their last byte are different keys."""
    stem = trial.key("")[:-1]
    pages = [trial.full_page(stem + bytes([last]), 500) for last in range(0, 256, 5)]
    trial.must_put(pages[::2])
    wanted = [OK if at % 2 == 0 else ABSENT for at in range(len(pages))]
    trial.must_be("exists", trial.exists([page.key for page in pages]), wanted)
    trial.must_put(pages[1::2])
    trial.must_get(pages)


@check()
def keys_alike_at_their_end(trial: Trial) -> None:
    """Keys that differ only in one bit of their first byte are different keys."""
    first, rest = trial.key("")[0], trial.key("")[1:]
    pages = [trial.full_page(bytes([first ^ 1 << bit]) + rest, 500) for bit in range(8)]
    trial.must_put(pages[:4])
    trial.must_be("exists", trial.exists([page.key for page in pages]), [OK] * 4 + [ABSENT] * 4)
    trial.must_put(pages[4:])
    trial.must_get(pages)


# --- what is there -----------------------------------------------------------------------------------------------------


@check()
def absent_key(trial: Trial) -> None:
    """A key that was never put is ABSENT, for exists and for get."""
    page = trial.page("never", 1_000)
    trial.must_be("exists", trial.exists([page.key]), ABSENT)
    trial.must_be("get", trial.get([page]), ABSENT)
    trial.must_be("exists after get", trial.exists([page.key]), ABSENT)


@check()
def exists_after_put(trial: Trial) -> None:
    """What was put exists as soon as put has returned, and still does after it was got."""
    page = trial.full_page("a", 1_000)
    trial.must_put([page])
    trial.must_be("exists after put", trial.exists([page.key]), OK)
    trial.must_get([page])
    trial.must_be("exists after get", trial.exists([page.key]), OK)


@check()
def exists_for_each_key(trial: Trial) -> None:
    """A call of exists says for each key by itself, in their order."""
    pages = [trial.full_page(number, 300) for number in range(9)]
    put = [pages[number] for number in (0, 1, 4, 8)]
    trial.must_put(put)
    wanted = [OK if page in put else ABSENT for page in pages]
    trial.must_be("exists", trial.exists([page.key for page in pages]), wanted)
    trial.must_be("exists in another order", trial.exists([page.key for page in reversed(pages)]), wanted[::-1])


@check()
def hits_among_misses(trial: Trial) -> None:
    """A call of get brings what is there, though other pages of the call are not."""
    pages = [trial.full_page(number, 400 + number) for number in range(9)]
    there = pages[1::3]
    trial.must_put(there)
    fresh = [trial.page(page.key, page.size) for page in pages]
    trial.must_be("get", trial.get(fresh), [OK if page in there else ABSENT for page in pages])
    trial.must_hold(*fresh[1::3])


@check(memory=2 * _MIB)
def many_pages_at_once(trial: Trial) -> None:
    """256 pages of different sizes can be put and got in one call."""
    pages = [trial.full_page(number, 2_000 + 13 * number) for number in range(256)]
    trial.must_put(pages)
    trial.must_be("exists", trial.exists([page.key for page in pages]), OK)
    trial.must_get(reversed(pages))


@check()
def nothing_at_once(trial: Trial) -> None:
    """A call without keys or pages gives no outcomes, and is no error."""
    for what, found in (("exists", trial.exists([])), ("put", trial.put([])), ("get", trial.get([]))):
        trial.must(found == [], f"{what} of nothing gave {found}")


# --- sizes -------------------------------------------------------------------------------------------------------------


def _wrong_size(trial: Trial, size: int) -> None:
    kept = trial.full_page("a", 1_000)
    trial.must_put([kept])
    trial.must_be(f"get of 1,000 bytes into {size:,}", trial.get([trial.page("a", size)]), WRONG_SIZE)
    trial.must_get([kept])


@check()
def page_too_small(trial: Trial) -> None:
    """A get into a page that is smaller than the value is WRONG_SIZE, and the value stays."""
    _wrong_size(trial, 999)


@check()
def page_too_large(trial: Trial) -> None:
    """A get into a page that is larger than the value is WRONG_SIZE, and the value stays."""
    _wrong_size(trial, 1_001)


@check()
def nothing_outside_the_page(trial: Trial) -> None:
    """A get writes nothing outside its pages: not for a hit, not for a miss, not where the size is wrong."""
    pages = [trial.full_page(number, 777, align=number) for number in range(4)]
    trial.must_put(pages)
    trial.get([trial.page(page.key, size, align=1) for page, size in zip(pages, (777, 700, 776, 1), strict=True)])
    trial.get([trial.page(("never", size), size, align=3) for size in (1, 100)])
    trial.must_not_stray()


# --- one key, one value --------------------------------------------------------------------------------------------------


@check()
def put_again(trial: Trial) -> None:
    """A key that was put can be put again, which is OK; its value is there before and after."""
    page = trial.full_page("a", 1_000)
    for _ in range(3):
        trial.must_put([page])
        trial.must_get([page])


@check()
def put_again_with_another_size(trial: Trial) -> None:
    """A key that is put with another size has one value or the other, whole."""
    old, new = trial.full_page("a", 1_000), trial.full_page("a", 1_500)
    trial.must_put([old])
    trial.put([new])
    fresh = [trial.page("a", old.size), trial.page("a", new.size)]
    found = [trial.get([page])[0] for page in fresh]
    trial.must(found.count(OK) == 1 and set(found) <= {OK, WRONG_SIZE}, f"neither value is whole: {[e.name for e in found]}")
    trial.must_hold(fresh[found.index(OK)])


@check()
def put_reads_no_longer_than_it_runs(trial: Trial) -> None:
    """What happens to the page after put has returned does not change the value."""
    page = trial.full_page("a", 70_000)
    trial.must_put([page])
    trial.fill(page, bytes(page.size))
    trial.must_get([page])


@check()
def put_leaves_its_page_alone(trial: Trial) -> None:
    """A put does not write to its pages, nor to anything around them."""
    pages = [trial.full_page(number, 5_000) for number in range(3)]
    trial.must_put(pages)
    trial.must_hold(*pages)
    trial.must_not_stray()


@check()
def get_leaves_the_value_alone(trial: Trial) -> None:
    """What happens to a page after get has returned does not change the value."""
    page = trial.full_page("a", 5_000)
    trial.must_put([page])
    target = trial.page("a", 5_000)
    trial.must_be("get", trial.get([target]), OK)
    trial.fill(target, bytes(target.size))
    trial.must_get([page])


@check()
def get_writes_no_longer_than_it_runs(trial: Trial) -> None:
    """A page is not written to after get has returned. Seen for a short while only: it finds a habit, and proves nothing."""
    sizes = (5_000, 40_000)
    trial.must_put([trial.full_page(size, size) for size in sizes])
    targets = [trial.page(size, size) for size in sizes]
    trial.must_be("get", trial.get(targets), OK)
    ours = [bytes([0x5A]) * page.size for page in targets]
    for page, mine in zip(targets, ours, strict=True):
        trial.fill(page, mine)
    time.sleep(LOOK_AGAIN_S)
    for page, mine in zip(targets, ours, strict=True):
        trial.must(trial.read(page) == mine, f"a page of {page.size:,} bytes was written to after get had returned")


# --- several at once -----------------------------------------------------------------------------------------------------


def _at_once(trial: Trial, works: Sequence[Callable[[], None]]) -> None:
    """Run each in a thread of its own; the first failure is that of the check."""
    failures: list[Exception] = []
    together = threading.Barrier(len(works))

    def run(work: Callable[[], None]) -> None:
        try:
            together.wait()
            work()
        except Exception as problem:
            failures.append(problem)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    trial.must_not_stray()


@check(memory=_MIB)
def threads_at_once(trial: Trial) -> None:
    """Four threads put and get values of their own at once."""

    def work(mine: Sequence[Sequence[tuple[Page, Page]]]) -> None:
        for batch in mine:
            trial.must_put([page for page, _ in batch])
            trial.must_fill([fresh for _, fresh in batch])

    def batch(thread: int, number: int) -> list[tuple[Page, Page]]:
        names = [(thread, number, at) for at in range(4)]
        return [(trial.full_page(name, 3_000 + number), trial.page(name, 3_000 + number)) for name in names]

    trial.join(4 * _MIB)
    _at_once(trial, [partial(work, [batch(thread, number) for number in range(8)]) for thread in range(4)])


@check()
def threads_on_one_key(trial: Trial) -> None:
    """Four threads put and get one key at once; whoever gets it gets it whole."""

    def work(page: Page, fresh: Sequence[Page]) -> None:
        for each in fresh:
            trial.must_put([page])
            trial.must_fill([each])

    trial.join(2 * _MIB)
    pages = [trial.full_page("one", 20_000) for _ in range(4)]
    _at_once(trial, [partial(work, page, [trial.page("one", 20_000) for _ in range(8)]) for page in pages])


@check(needs=["address"])
def opened_twice(trial: Trial) -> None:
    """A store that is opened twice has the same content: what one puts the other one gets."""
    other = trial.given.make()
    try:
        trial.join(1 << 16, other)
        page = trial.full_page("a", 2_000)
        trial.must_be("put", trial.put([page], other), OK)
    finally:
        other.close()
    trial.join(1 << 16)
    trial.must_get([page])


@check(memory=_MIB, needs=["address"])
def two_processes_at_once(trial: Trial) -> None:
    """Two processes put at once; then each gets what the other has put."""
    mine = [trial.full_page(("parent", number), PROCESS_BYTES) for number in range(PROCESS_PAGES)]
    trial.used.update(dict.fromkeys(trial.key(("child", number)) for number in range(PROCESS_PAGES)))
    command = [
        sys.executable,
        "-m",
        "blocklife.testing.tiers._second",
        trial.given.address,
        f"{trial.given.token}:{trial.name}",
    ]
    more = environ | {"PYTHONPATH": pathsep.join(each for each in sys.path if each)}
    # its log goes where that of the first store goes: a line of it is no answer
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=more) as child:
        try:
            _expect(child.stdout, "opened")
            _tell(child.stdin, "put")
            for page in mine:
                trial.must_put([page])
            _expect(child.stdout, "put")
            _tell(child.stdin, "get")
            trial.must_get([Page(trial.key(("child", number)), 0, PROCESS_BYTES) for number in range(PROCESS_PAGES)])
            _expect(child.stdout, "got")
        finally:
            child.kill()


def _tell(stream: IO[str] | None, word: str) -> None:
    if stream is not None:
        stream.write(f"{word}\n")
        stream.flush()


def _expect(stream: IO[str] | None, word: str) -> None:
    said = "" if stream is None else stream.readline().strip()
    if said != word:
        raise StoreCheckError(f"the other process said {said or 'nothing'!r}, not {word!r}")


# --- room --------------------------------------------------------------------------------------------------------------


def _capacity(trial: Trial) -> int:
    capacity = trial.given.capacity or 0
    if capacity > CAPACITY_TRIED_MAX:
        raise SkippedError(f"a capacity of {capacity:,} bytes is not filled (name one of at most {CAPACITY_TRIED_MAX:,})")
    return capacity


@check(needs=["capacity"])
def capacity_is_kept(trial: Trial) -> None:
    """However much is put, what exists afterwards is not more than the capacity; puts are OK or FULL."""
    capacity = _capacity(trial)
    size = max(1, capacity // 20)
    trial.join(2 * size + 4_096)
    page = trial.full_page("page", size)
    keys = [trial.key(number) for number in range(45)]
    for key in keys:
        trial.fill(page, value_of(key, size))
        outcome = trial.put([Page(key, page.address, size)])[0]
        trial.must(outcome in (OK, FULL), f"put into a store that is full gave {outcome.name}, not OK or FULL")
    kept = trial.exists(keys).count(OK)
    trial.must(0 < kept * size <= capacity, f"{kept} values of {size:,} bytes are kept, and the capacity is {capacity:,}")


@check(needs=["capacity"])
def full_leaves_what_was_there(trial: Trial) -> None:
    """A put of more than the capacity is FULL, and takes nothing away."""
    capacity = _capacity(trial)
    kept = trial.full_page("kept", max(1, capacity // 20))
    trial.must_put([kept])
    trial.must_be("put of more than the capacity", trial.put([trial.full_page("large", capacity + 1)]), FULL)
    trial.must_be("exists of what did not fit", trial.exists([trial.key("large")]), ABSENT)
    trial.must_get([kept])


# --- the end -----------------------------------------------------------------------------------------------------------


@check(needs=["remove"])
def removed_key(trial: Trial) -> None:
    """What was removed is ABSENT, what was never put is ABSENT to remove as well, and other keys stay."""
    pages = [trial.full_page(number, 600) for number in range(3)]
    trial.must_put(pages)
    if isinstance(trial.store, Removing):
        trial.must_be("remove", trial.store.remove([pages[0].key, trial.key("never")]), [OK, ABSENT])
    trial.must_be("exists", trial.exists([page.key for page in pages]), [ABSENT, OK, OK])
    trial.must_put(pages[:1])
    trial.must_get(pages)


@check()
def closed_store(trial: Trial) -> None:
    """After close every outcome is FAILED, and a second close is no error."""
    page = trial.full_page("a", 1_000)
    trial.must_put([page])
    trial.store.close()
    trial.must_be("exists after close", trial.exists([page.key]), FAILED)
    trial.must_be("put after close", trial.put([page]), FAILED)
    trial.must_be("get after close", trial.get([page]), FAILED)
    trial.store.close()
    if isinstance(trial.store, Removing):
        trial.store = trial.given.make()  # for the clean-up: a store that is closed takes nothing away


@check(needs=["address"])
def content_outlives_close(trial: Trial) -> None:
    """What was put is there after the store was closed and opened again."""
    page = trial.full_page("a", 1_000)
    trial.must_put([page])
    trial.store.close()
    trial.store = trial.given.make()
    trial.join(1 << 16)
    trial.must_get([page])
