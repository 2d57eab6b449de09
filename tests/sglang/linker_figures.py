"""``python -m tests.sglang.run --python 0.5.23 -m tests.sglang.linker_figures``: what the linker saves."""

from __future__ import annotations

import logging
from random import Random
from typing import Any

from attrs import evolve

from tests.programs import importing, with_fixed_hashes
from tests.sglang.worlds import WorldSpec

with importing("tests.sglang.linker_figures", __name__):
    from tests.sglang.linked import LateLinker, linked
    from tests.sglang.rig import Rig


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


def main() -> None:
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
