"""``python -m tests.vllm.run --python 0.33.0 -m tests.vllm.hits``: what conversations find in the host tier.

The same requests (`chat`) for blocklife's connector and vLLM's two, under vLLM's real scheduler, for several seeds and sizes of
the host tier; with LRU and with ARC where a connector has both. What is counted are the tokens that were loaded from the host
and, since a hit on the device saves as much, the tokens that had to be computed. Nothing is timed, and nothing is drawn: a seed
says what comes out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence

from attrs import asdict, frozen

from tests.programs import importing, natural, positive, stoppable, table
from tests.vllm.worlds import Connector

with importing("tests.vllm.hits", __name__):
    from tests.vllm import chat
    from tests.vllm.engine import RELEASE

COMPARED: tuple[tuple[str, Connector], ...] = (
    ("lru", "offloading"),
    ("lru", "blocklife"),
    ("arc", "offloading"),
    ("arc", "blocklife"),
    ("", "simple"),
)
"""Policies and who has them; SimpleCPUOffload has one only, which forgets the least recently used."""


@frozen
class Found:
    """What one connector found in the host tier, with one policy and one size of it, by seed."""

    release: str
    connector: Connector
    policy: str
    host_blocks: int
    seeds: tuple[int, ...]
    hit_tokens: tuple[int, ...]
    """Loaded from the host."""
    computed_tokens: tuple[int, ...]


def measure(
    host_blocks: int, seeds: Sequence[int], requests: int, window: int | None, policies: Sequence[str]
) -> Iterator[Found]:
    """All connectors with one size of the host tier."""
    for policy, connector in COMPARED:
        if policy and policy not in policies:
            continue
        hits = [chat.run(connector, host_blocks, seed, policy=policy, requests=requests, window=window) for seed in seeds]
        yield Found(
            RELEASE,
            connector,
            policy,
            host_blocks,
            tuple(seeds),
            tuple(each.host for each in hits),
            tuple(each.computed for each in hits),
        )


def markdown(found: Sequence[Found]) -> str:
    """A row for each size and policy: tokens loaded, and computed; over how many seeds ours does better, the same, or worse."""
    heads = [">host blocks", "policy", ">Offloading", ">Blocklife", ">ratio", ">seeds better, level, worse"]
    heads += [">computed, to Offloading", ">seeds better, level, worse", ">Simple", ">computed, to Offloading"]
    rows = []
    by_kind = {(each.host_blocks, each.policy, each.connector): each for each in found}
    for ours in found:
        if ours.connector != "blocklife":
            continue
        theirs = by_kind[ours.host_blocks, ours.policy, "offloading"]
        simple = by_kind.get((ours.host_blocks, "", "simple")) if ours.policy == "lru" else None
        cells = [str(ours.host_blocks), ours.policy, str(sum(theirs.hit_tokens)), str(sum(ours.hit_tokens))]
        cells += [_ratio(ours.hit_tokens, theirs.hit_tokens), _seeds(ours.hit_tokens, theirs.hit_tokens)]
        cells += [_ratio(ours.computed_tokens, theirs.computed_tokens), _seeds(theirs.computed_tokens, ours.computed_tokens)]
        cells.append(str(sum(simple.hit_tokens)) if simple else "")
        cells.append(_ratio(simple.computed_tokens, theirs.computed_tokens) if simple else "")
        rows.append(cells)
    return table(heads, rows)


def _seeds(more: Sequence[int], fewer: Sequence[int]) -> str:
    """On how many seeds the first has more, as many, or fewer."""
    pairs = list(zip(more, fewer, strict=True))
    return f"{sum(a > b for a, b in pairs)}, {sum(a == b for a, b in pairs)}, {sum(a < b for a, b in pairs)}"


def _ratio(one: Sequence[int], other: Sequence[int]) -> str:
    return f"{sum(one) / sum(other):.2f}" if sum(other) else "-"


def by_seed(found: Sequence[Found]) -> str:
    """A row for each seed: tokens loaded with each connector and policy."""
    kinds = [(policy, connector) for policy, connector in COMPARED if any(each.policy == policy for each in found)]
    named = [f"{connector} {policy}".strip() for policy, connector in kinds]
    rows = []
    by_kind = {(each.host_blocks, each.policy, each.connector): each for each in found}
    for host_blocks in dict.fromkeys(each.host_blocks for each in found):
        own = [by_kind[host_blocks, *kind] for kind in kinds]
        for at, seed in enumerate(own[0].seeds):
            rows.append([host_blocks, seed, *(each.hit_tokens[at] for each in own)])
    return table([">host blocks", ">seed", *(f">{name}" for name in named)], rows)


@stoppable
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print tables or JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.vllm.hits", description=__doc__)
    parser.add_argument("--seeds", type=positive, default=10, help="how many")
    parser.add_argument("--first-seed", type=natural, default=0)
    parser.add_argument(
        "--host-blocks", nargs="+", type=positive, default=[200, 300, 400, 600], help=f"the device has {chat.DEVICE_BLOCKS}"
    )
    parser.add_argument("--policies", nargs="+", choices=["lru", "arc"], default=["lru", "arc"])
    parser.add_argument("--requests", type=positive, default=200, help="of each run")
    parser.add_argument("--window", type=positive, help="a second group: a sliding window of so many tokens")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.seeds)
    found: list[Found] = []
    for host_blocks in chosen.host_blocks:
        for each in measure(host_blocks, seeds, chosen.requests, chosen.window, chosen.policies):
            found.append(each)
            told = f"{host_blocks} blocks, {each.connector} {each.policy}: {sum(each.hit_tokens)} tokens"
            print(told, file=sys.stderr, flush=True)
    if chosen.json:
        print(json.dumps([asdict(each) for each in found], indent=1))
    else:
        print(markdown(found), by_seed(found), sep="\n", end="")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    sys.exit(main())
