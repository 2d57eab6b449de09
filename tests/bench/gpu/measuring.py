"""One run: which cases there are, who takes part, how long each may take, and the clocks."""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import torch
from attrs import define, evolve, field, frozen

from blocklife.copiers.torch import DeviceLostError
from blocklife.copiers.torch._layout import CopyLayout
from blocklife.copiers.torch._moves import ChoosingMover, reason
from blocklife.copiers.torch._probe import mover_for_cuda
from blocklife.ledger.records import Direction
from tests.bench.gpu.arena import FULL, Arena, Buffers, Sizes
from tests.bench.gpu.competitors import DIRECTIONS, PEERS, Competitor, Each, Gather, LimitInParts, Ours
from tests.bench.gpu.facts import facts
from tests.bench.gpu.peers import FOREIGN, tried
from tests.bench.gpu.records import (
    COPIER,
    EACH,
    KIB,
    LIMIT,
    MOVERS,
    NEIGHBOURS,
    Beside,
    Case,
    Report,
    Timed,
    size,
)
from tests.gpu.movers import AbsentError, made

PAGES = tuple(KIB << power for power in range(2, 11))
"""4 KiB to 1 MiB."""

COARSE = (4 * KIB, 64 * KIB, 1024 * KIB)
"""Measured first, so that a run that is cut short has something everywhere."""

BESIDE_PAGES = (16 * KIB, 256 * KIB)
"""Pages of the copies that run beside a matrix product."""

REPETITIONS_MIN, REPETITIONS_MAX = 3, 15
ROUNDS = 3
"""How often the product is timed alone and beside copies, in turns."""
WARM = 3
"""Products at the begin of a row that are not counted: the copies beside them are not under way yet."""
DEPTH = 4
"""Jobs that are out at once beside a product."""


@frozen(kw_only=True)
class Wish:
    """What is asked for."""

    where: torch.device
    sizes: Sizes = FULL
    pages: Sequence[int] = PAGES
    beside_pages: Sequence[int] = BESIDE_PAGES
    seconds: float = 400.0


def timed(
    competitor: Competitor, directions: Sequence[Direction], buffers: Buffers
) -> tuple[float, float]:  # seconds, median microseconds that a launch held the caller
    """Let a competitor move all of these directions once, job by job in turns."""
    competitor.begin()
    numbers = itertools.zip_longest(*([(each, job) for job in range(competitor.num_jobs(each))] for each in directions))
    turns = [turn for row in numbers for turn in row if turn is not None]
    streams = [stream for each in directions for stream in competitor.streams(each)]
    held = []
    buffers.settle()
    stop = _started(streams)
    for each, job in turns:
        begin = time.perf_counter()
        competitor.queue(each, job)
        held.append((time.perf_counter() - begin) * 1e6)
    for each in directions:
        competitor.flush(each)
    seconds = stop()
    competitor.end()
    return seconds, statistics.median(held)


def _started(streams: Sequence[torch.cuda.Stream]) -> Callable[[], float]:
    """Start a clock; calling what comes back stops it when all that these streams were given until then has run."""
    if not streams:
        begin = time.perf_counter()
        return lambda: time.perf_counter() - begin
    first = _mark()
    first.record(streams[0])

    def stop() -> float:
        last = [_mark() for _ in streams]
        for event, stream in zip(last, streams, strict=True):
            event.record(stream)
        for event in last:
            event.synchronize()
        return float(max(first.elapsed_time(event) for event in last)) / 1e3

    return stop


def _mark() -> torch.cuda.Event:
    """An event with a time."""
    return torch.cuda.Event(enable_timing=True)


@define(eq=False)
class _Seat:
    """A competitor in one case, and its times so far."""

    competitor: Competitor
    nbytes: int
    seconds: list[float] = field(factory=list)
    held_us: list[float] = field(factory=list)
    trouble: str = ""

    def result(self) -> Timed:
        return Timed(
            name=self.competitor.name,
            nbytes=self.nbytes,
            seconds=() if self.trouble else tuple(self.seconds),
            held_us=() if self.trouble else tuple(self.held_us),
            trouble=self.trouble,
        )


def compare(arena: Arena, direction: str, competitors: Sequence[Competitor], allowance_s: float) -> Case:
    """Let each show that its bytes are right, which warms it up, too; then time them in turns, as often as there is time."""
    directions, buffers = DIRECTIONS[direction], arena.buffers
    seats = [_Seat(competitor, len(directions) * arena.volume) for competitor in competitors]
    until = time.perf_counter() + allowance_s
    for seat in seats:
        seat.trouble = verified(seat.competitor, directions, buffers)
    for repetition in range(REPETITIONS_MAX):
        if repetition >= REPETITIONS_MIN and time.perf_counter() > until:
            break
        first = repetition % len(seats)
        for seat in (*seats[first:], *seats[:first]):
            if not seat.trouble:
                try:
                    seconds, held_us = timed(seat.competitor, directions, buffers)
                except RuntimeError as error:
                    seat.trouble = f"raised {error!r}"
                    continue
                seat.seconds.append(seconds)
                seat.held_us.append(held_us)
    return Case(page=arena.page, direction=direction, timed=tuple(seat.result() for seat in seats))


def verified(competitor: Competitor, directions: Sequence[Direction], buffers: Buffers) -> str:
    """Let a competitor move everything once; what is wrong with that, if anything is."""
    buffers.reset()
    try:
        timed(competitor, directions, buffers)
    except RuntimeError as error:
        return f"raised {error!r}"

    def expect(device: torch.Tensor, host: torch.Tensor) -> None:
        for each in directions:
            competitor.expect(each, device, host)

    return "" if buffers.right(expect) else "wrong bytes"


# --- beside a matrix product ----------------------------------------------------------------------------------------------


class Product:
    """A product of two large matrices, in a row."""

    def __init__(self, buffers: Buffers) -> None:
        sizes, where = buffers.sizes, buffers.where
        self._buffers = buffers
        dtype = torch.bfloat16 if buffers.cuda else torch.float32
        dice = torch.Generator(device=where).manual_seed(3)
        self._factors = [torch.randn(sizes.product, sizes.product, device=where, generator=dice).to(dtype) for _ in range(2)]
        self._result = torch.empty_like(self._factors[0])

    def row(self, background: Callable[[], None]) -> tuple[list[float], float]:
        """Milliseconds of each product of a row, and seconds of all; *background* is called until the last is over."""
        number = self._buffers.sizes.products
        self._buffers.settle()
        if not self._buffers.cuda:
            marks = [time.perf_counter()]
            for _ in range(number):
                torch.mm(*self._factors, out=self._result)
                background()
                marks.append(time.perf_counter())
            return [(last - first) * 1e3 for first, last in itertools.pairwise(marks)][WARM:], marks[-1] - marks[0]
        events = [_mark() for _ in range(number + 1)]
        events[0].record()
        for event in events[1:]:
            torch.mm(*self._factors, out=self._result)
            event.record()
        while not events[-1].query():
            background()
        each = [first.elapsed_time(last) for first, last in itertools.pairwise(events)]
        return each[WARM:], events[0].elapsed_time(events[-1]) / 1e3


def beside(product: Product, competitor: Competitor, page: int, direction: str) -> Beside:
    """The product alone and beside copies, in turns."""
    (way,) = DIRECTIONS[direction]
    alone: list[float] = []
    together: list[float] = []
    copied, seconds = 0, 0.0
    product.row(lambda: None)
    for _ in range(ROUNDS):
        alone += product.row(lambda: None)[0]
        competitor.begin()
        feed = _Feed(competitor, way)
        row, took = product.row(feed)
        together += row
        copied += feed.landed_bytes
        seconds += took
        competitor.end()
    return Beside(
        page=page,
        direction=direction,
        mover=competitor.name,
        alone_ms=tuple(alone),
        beside_ms=tuple(together),
        copied_rate=copied / seconds / 1e9,
        multiprocessors=multiprocessors(competitor.arena.buffers.where),
    )


def multiprocessors(where: torch.device) -> int:
    """How many a device has; 0 for the host."""
    return int(torch.cuda.get_device_properties(where).multi_processor_count) if where.type == "cuda" else 0


class _Feed:
    """Keeps a few jobs out; counts the bytes of those that have landed."""

    def __init__(self, competitor: Competitor, way: Direction) -> None:
        self._competitor = competitor
        self._way = way
        self._sizes = [competitor.job_bytes(way, number) for number in range(competitor.num_jobs(way))]
        self._out: list[int] = []
        self._launched = 0
        self.landed_bytes = 0

    def __call__(self) -> None:
        for _ in range(self._competitor.hear()):
            self.landed_bytes += self._out.pop(0)
        if len(self._out) < DEPTH:
            number = self._launched % len(self._sizes)
            self._competitor.launch(self._way, number)
            self._out.append(self._sizes[number])
            self._launched += 1


# --- the whole run --------------------------------------------------------------------------------------------------------


def ours(arena: Arena, absent: dict[str, str], notes: dict[str, str]) -> list[Ours]:
    """Ours in every way; movers that are not there are noted, and what the first probe has found."""
    layout = CopyLayout(arena.cache, arena.rows)
    chosen = made("chosen", layout)
    found = [Ours(arena, COPIER, chosen), Ours(arena, NEIGHBOURS, chosen)]
    if isinstance(chosen, ChoosingMover):
        absent |= chosen.left_out
        if not notes:  # once more: nothing is compiled any more
            begin = time.perf_counter()
            table = mover_for_cuda(layout).table
            notes["movers"] = (
                f"proved and probed in {(time.perf_counter() - begin) * 1e3:.0f} ms for pages of {size(arena.page)}"
            )
            notes["table"] = json.dumps(table.as_json())
    for name in MOVERS:
        try:
            found.append(Ours(arena, name, made(name, layout)))
        except AbsentError as missing:
            absent.setdefault(name, str(missing))
    return found


def packages(arena: Arena, absent: dict[str, str]) -> list[Competitor]:
    """Others by the calls of their packages; who cannot be imported, or raises when it is tried, is noted."""
    found = []
    for kind in FOREIGN:
        if kind.name not in absent:
            try:
                found.append(tried(kind, arena))
            except Exception as problem:
                absent[kind.name] = reason(problem)
    return found


def order(pages: Sequence[int]) -> list[tuple[int, str]]:
    """The cases: a coarse look at everything first."""
    coarse = [page for page in pages if page in COARSE]
    fine = [page for page in pages if page not in COARSE]
    return [(page, direction) for group in (coarse, fine) for direction in DIRECTIONS for page in group]


@contextmanager
def closing_all(competitors: list[Ours]) -> Iterator[list[Ours]]:
    """End the threads of these copiers afterwards."""
    try:
        yield competitors
    finally:
        for each in competitors:
            each.close()


@define(eq=False)
class _Run:
    """What was measured so far."""

    wish: Wish
    buffers: Buffers
    cases: list[Case] = field(factory=list)
    beside: list[Beside] = field(factory=list)
    absent: dict[str, str] = field(factory=dict)
    notes: dict[str, str] = field(factory=dict)
    product: Product | None = None

    def case(self, page: int, direction: str, allowance_s: float) -> str:
        """All competitors in one case; says how it went."""
        arena = Arena(self.buffers, page)
        others = [*(make(arena) for make in PEERS), *packages(arena, self.absent)]
        with closing_all(ours(arena, self.absent, self.notes)) as own:
            case = compare(arena, direction, [*others, *own], allowance_s)
            chosen = dict.fromkeys(own[0].chosen(each) for each in DIRECTIONS[direction])
        self.cases.append(evolve(case, chosen=", ".join(chosen)))
        return told(self.cases[-1])

    def product_beside(self, page: int, direction: str) -> str:
        """A product beside each competitor; says how it went."""
        self.product = self.product or Product(self.buffers)
        arena = Arena(self.buffers, page)
        others = [LimitInParts(arena), Each(arena), Gather(arena), *packages(arena, self.absent)]
        rows = [beside(self.product, each, page, direction) for each in others]
        with closing_all(ours(arena, self.absent, self.notes)) as own:
            rows += [beside(self.product, each, page, direction) for each in own if each.name != NEIGHBOURS]
        self.beside += rows
        return "a product beside " + ", ".join(f"{each.mover} {each.slowdown:+.1%}" for each in rows)


def measure(wish: Wish, say: Callable[[str], None]) -> Report:
    """Everything that there is time for. Ctrl-C ends it early, with what was measured by then."""
    start = time.perf_counter()
    run = _Run(wish, _taken(wish, say))
    todo: deque[tuple[int, str, bool]] = deque((page, direction, False) for page, direction in order(wish.pages))
    products = [(page, way, True) for page in wish.beside_pages for way, each in DIRECTIONS.items() if len(each) == 1]
    coarse = sum(page in COARSE for page, _, _ in todo)
    todo = deque([*[*todo][:coarse], *products, *[*todo][coarse:]])
    left_out: list[str] = []
    broken = ""
    try:
        while todo and (left := start + wish.seconds - time.perf_counter()) > 0:
            page, direction, is_product = todo[0]
            line = run.product_beside(page, direction) if is_product else run.case(page, direction, left / len(todo))
            todo.popleft()
            say(f"{time.perf_counter() - start:4.0f} s of {wish.seconds:.0f}: {direction}, pages of {size(page)}: {line}")
    except KeyboardInterrupt:
        left_out.append("what comes here, because it was interrupted")
    except (RuntimeError, DeviceLostError) as problem:  # a package's kernel may have ended the context for all
        broken = f"{todo[0][1]}, pages of {size(todo[0][0])}: {reason(problem)}"
    run.product = None
    with suppress(RuntimeError):  # as above
        run.buffers.close()
    left_out += [f"{way}, pages of {size(page)}{', beside a product' * is_product}" for page, way, is_product in todo]
    return Report(
        facts=facts(wish, time.perf_counter() - start) | run.notes,
        cases=tuple(sorted(run.cases, key=lambda case: ([*DIRECTIONS].index(case.direction), case.page))),
        beside=tuple(run.beside),
        absent=run.absent,
        left_out=tuple(left_out),
        broken=broken,
    )


def _taken(wish: Wish, say: Callable[[str], None]) -> Buffers:
    def progress(done: int, total: int) -> None:
        say(f"pinned {size(done)} of {size(total)}" if wish.where.type == "cuda" else f"took {size(done)}")

    return Buffers(wish.where, wish.sizes, progress)


def told(case: Case) -> str:
    """One case in a line."""
    ours, limit = case.of(COPIER), case.of(LIMIT)
    if ours is None or limit is None:
        return "no figures: " + "; ".join(f"{each.name}: {each.trouble}" for each in case.timed if each.trouble)
    each = case.ratio(COPIER, EACH)
    return (
        f"{ours.rate:.1f} of {limit.rate:.1f} GB/s, {ours.rate / limit.rate:.0%}, "
        f"{'?' if each is None else f'{each:.1f}'} x copy_, best {case.best}"
    )
