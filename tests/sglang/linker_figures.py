"""``python -m tests.sglang.run --python 0.5.23 -m tests.sglang.linker_figures``: the linker's figures."""

from __future__ import annotations

import logging
import time
from random import Random
from typing import Any

from attrs import evolve

from blocklife.engines.sglang.linker._host import LinkedHost, limits_for
from blocklife.ledger import Completion, JobId, Launched, Result, Worker
from tests.programs import importing, with_fixed_hashes
from tests.sglang.worlds import WorldSpec

with importing("tests.sglang.linker_figures", __name__):
    from tests.sglang.linked import LateLinker, linked
    from tests.sglang.rig import Rig

RANK = Worker(0)


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


def hits() -> None:
    """The table of tokens."""
    for pages in (24, 48, 96):
        row = []
        for kind in (None, LateLinker, LruLinker, BlindLinker):
            link = None if kind is None else f"tests.sglang.linker_figures:{kind.__name__}"
            spec = evolve(linked(LateLinker), host_pages=pages, linker=link, device_pages=32)
            row.append(sum(computed(spec, seed) for seed in (1, 2, 3)))
        print(f"{pages} pages: " + ", ".join(f"{count:,}" for count in row), flush=True)


class Timed:
    """A host whose copies land at once."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.host = LinkedHost(limits_for(2 * pages + 1, 65_536))

    def land(self) -> list[JobId]:
        """Carry out what is planned, and report it."""
        plan = self.host.dispatch(0.0)
        jobs = [] if plan is None else [each.job for each in (*plan.loads, *plan.stores)]
        if plan is not None:
            self.host.settle(plan, 0.0, [Launched(job, RANK) for job in jobs], [])
            self.host.report([Completion(job, RANK, Result.OK) for job in jobs])
        return jobs

    def store(self, keys: list[bytes]) -> None:
        """From the offer to the outcome."""
        self.host.store(keys, range(1, self.pages + 1))
        self.land()
        self.host.acknowledge()

    def lookup(self, keys: list[bytes]) -> None:
        """One that finds all."""
        self.host.lookup("a", keys)

    def load(self, keys: list[bytes]) -> None:
        """From the queue to the end."""
        self.host.load("a", keys, range(self.pages + 1, 2 * self.pages + 1))
        batch = self.host.start_loads()
        self.land()
        self.host.finish_loads(batch)

    def step(self, keys: list[bytes]) -> None:
        """With nothing to do."""
        self.host.end_step()
        self.land()
        self.host.expire(0.0)
        _ = self.host.num_acknowledged


def costs() -> None:
    """The table of times: the best of twelve, in microseconds."""
    for pages in (16, 256, 2048):
        timed, best = Timed(pages), dict[str, float]()
        for turn in range(12):
            keys = [b"%d/%d" % (turn, page) + b"x" * 50 for page in range(pages)]
            for name, act in (
                ("store", timed.store),
                ("lookup", timed.lookup),
                ("load", timed.load),
                ("step", timed.step),
            ):
                began = time.perf_counter()
                act(keys)
                best[name] = min(time.perf_counter() - began, best.get(name, 1e9))
        print(f"{pages} pages: " + ", ".join(f"{name} {seconds * 1e6:,.0f} us" for name, seconds in best.items()), flush=True)


if __name__ == "__main__":
    with_fixed_hashes("tests.sglang.linker_figures")
    logging.disable(logging.CRITICAL)
    costs()
    hits()
