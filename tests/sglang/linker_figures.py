"""``python -m tests.sglang.run --python 0.5.23 -m tests.sglang.linker_figures [steps]``: what the linker saves, or costs.

With *steps*: how long a step of SGLang's scheduler takes on the CPU with our linker and with SGLang's own host memory, in turn,
in one run. What the rig does in the place of a device is left out.
"""

from __future__ import annotations

import argparse
import functools
import logging
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from attrs import evolve

from tests.programs import importing, with_fixed_hashes
from tests.sglang.worlds import WorldSpec

with importing("tests.sglang.linker_figures", __name__):
    from blocklife.engines.sglang.linker import BlocklifeLinker
    from tests.sglang import copies, device
    from tests.sglang import linked as linked_room
    from tests.sglang.engine import Engine
    from tests.sglang.linked import LateLinker, linked
    from tests.sglang.rig import Rig

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


class LruLinker(LateLinker):
    """The other policy."""

    def __init__(self, *args: Any, extra_config: dict[str, object], **kwargs: Any) -> None:
        super().__init__(*args, extra_config={**extra_config, "policy": "lru"}, **kwargs)


class BlindLinker(LateLinker):
    """A linker that never finds anything: an engine without host memory."""

    def lookup(self, rid: str, transfers: list[Any]) -> list[int]:
        """Nothing."""
        return []


def computed(spec: WorldSpec, seed: int) -> int:
    """Tokens that forward passes computed for 60 requests that share eight prefixes."""
    rig, rng = Rig(spec, seed), Random(seed)
    launch, total = rig.ranks[0].forward.launch, 0

    def counted(batch: Any, turns: list[Any]) -> Any:
        nonlocal total
        total += sum(turn.stop - turn.start for turn in turns)
        return launch(batch, turns)

    rig.ranks[0].forward.launch = counted  # type: ignore[method-assign]
    families = [[rng.randrange(10, 1000) for _ in range(60)] for _ in range(8)]
    for _ in range(60):
        prompt = families[min(int(rng.expovariate(0.4)), 7)][: rng.choice((20, 40, 60))]
        rig.add(prompt + [rng.randrange(1000, 9999) for _ in range(rng.choice((0, 4, 8)))], max_tokens=rng.randint(1, 8))
        for _ in range(3):
            rig.step()
    rig.drain()
    if rig.corruptions:
        raise RuntimeError(f"seed {seed}: {rig.corruptions[0]}")
    return total


class Stopwatch:
    """The time of this thread within some calls, in nanoseconds, without that within others."""

    def __init__(self) -> None:
        self.total = 0
        self._away = 0

    def counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, whose time counts."""

        @functools.wraps(call)
        def run(*args: Any, **kwargs: Any) -> Any:
            began, away = time.thread_time_ns(), self._away
            try:
                return call(*args, **kwargs)
            finally:
                self.total += time.thread_time_ns() - began - (self._away - away)

        return run

    def left_out(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, whose time does not, whatever it calls that is left out as well."""

        @functools.wraps(call)
        def run(*args: Any, **kwargs: Any) -> Any:
            began, away = time.thread_time_ns(), self._away
            try:
                return call(*args, **kwargs)
            finally:
                self._away = away + time.thread_time_ns() - began

        return run


CALLS = (
    *("num_completed_offloads", "pop_completed_offload", "lookup", "load", "cancel_queued_load", "offload"),
    *("start_layer_wise_loading", "finish_layer_wise_loading"),
)
"""What SGLang calls in the linker."""


@contextmanager
def timed(whole: Stopwatch, ours: Stopwatch) -> Iterator[None]:
    """The calls of SGLang's scheduler count, and of these what the linker does, but not the rig's device and its copies."""

    def left_out(call: Callable[..., Any]) -> Callable[..., Any]:
        return whole.left_out(ours.left_out(call))

    wraps: list[tuple[type, str, Wrap]] = [(Engine, name, whole.counted) for name in ("plan", "process", "launched")]
    wraps += [(BlocklifeLinker, name, ours.counted) for name in CALLS]
    wraps += [(linked_room.LateStream, "copy", left_out), (device.Stream, "advance", left_out)]
    wraps.append((device.Device, "run_until", left_out))
    kernels, before = copies.KERNELS, [getattr(owner, name) for owner, name, _ in wraps]
    copies.KERNELS = tuple([left_out(kernel) for kernel in kernels])  # type: ignore[assignment]
    for (owner, name, wrap), call in zip(wraps, before, strict=True):
        setattr(owner, name, wrap(call))
    try:
        yield
    finally:
        copies.KERNELS = kernels
        for (owner, name, _), call in zip(wraps, before, strict=True):
            setattr(owner, name, call)


def step_cost(spec: WorldSpec, seed: int) -> tuple[float, float]:
    """Microseconds of a step of the scheduler, and of it in the linker, for 40 requests that share six prefixes."""
    whole, ours, rng = Stopwatch(), Stopwatch(), Random(seed)
    with timed(whole, ours):
        rig = Rig(spec, seed)
        families = [[rng.randrange(10, 1000) for _ in range(480)] for _ in range(6)]
        for _ in range(40):
            prompt = families[rng.randrange(6)][: rng.choice((160, 320, 480))]
            rig.add(prompt + [rng.randrange(1000, 9999) for _ in range(rng.choice((0, 16, 64)))], max_tokens=rng.randint(4, 24))
            for _ in range(3):
                rig.step()
        rig.drain()
    if rig.corruptions:
        raise RuntimeError(f"seed {seed}: {rig.corruptions[0]}")
    return whole.total / 1e3 / rig.step_number, ours.total / 1e3 / rig.step_number


def steps() -> None:
    """The table of steps: in each row microseconds, and two ratios; for 32 layers, each of which HiCache loads by itself.

    The second ratio is without the linker's own code: what SGLang itself does for a linker, beside what it does with HiCache.
    """
    for page in (1, 16, 64):
        pages = 1_536 // page
        room = {"layers": 32, "page_tokens": page, "device_pages": pages, "host_pages": 2 * pages}
        spec = linked(LateLinker, prefill_tokens=1024, chunk_tokens=512, **room)
        runs = [(step_cost(evolve(spec, linker=None), seed)[0], *step_cost(spec, seed)) for seed in SEEDS]
        theirs, linker, own = (statistics.median(column) for column in zip(*runs, strict=True))
        ratio, without = (
            statistics.median(ratios)
            for ratios in zip(*((linker / theirs, (linker - own) / theirs) for theirs, linker, own in runs), strict=True)
        )
        row = f"HiCache {theirs:,.0f}, linker {linker:,.0f}, of it in its own code {own:,.0f}"
        print(f"pages of {page}: {row}; linker to HiCache {ratio:.2f}, without its own code {without:.2f}", flush=True)


SEEDS = (1, 2, 3)


def main() -> None:
    """What was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.sglang.linker_figures", description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="?", choices=("tokens", "steps"), default="tokens")
    (steps if parser.parse_args().what == "steps" else tokens)()


def tokens() -> None:
    """The table of tokens."""
    for pages in (24, 48, 96):
        row = []
        for kind in (None, LateLinker, LruLinker, BlindLinker):
            link = None if kind is None else f"tests.sglang.linker_figures:{kind.__name__}"
            spec = evolve(linked(LateLinker), host_pages=pages, linker=link, device_pages=32)
            row.append(sum(computed(spec, seed) for seed in (1, 2, 3)))
        print(f"{pages} pages: " + ", ".join(f"{count:,}" for count in row), flush=True)


if __name__ == "__main__":
    with_fixed_hashes("tests.sglang.linker_figures")
    logging.disable(logging.CRITICAL)
    main()
