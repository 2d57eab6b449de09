"""``python -m tests.vllm.run --python 0.33.0 -m tests.vllm.figures``: figures of `specs/vllm-findings.md`.

``chunks``: which windows and chunks findings 2 and 3 concern. For each window and each chunk, the story of the finding with
prompts of several lengths, one after the other in an engine with room for all, and resets in between. A story counts where a
request has read wrong bytes.

``resets``: how many answers finding 4 spoils. Random requests with a window of 128, blocks of 16, and resets of both caches.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from random import Random

from tests.programs import importing

with importing("tests.vllm.figures", __name__):
    from tests.vllm.rig import GroupSpec, Lag, Rig, WorldSpec

BLOCK = 4
WINDOWS = tuple(range(1, 9))
CHUNKS = (2, 3, 4, 5, 6, 8, 12)


def partial_is_read(window: int, chunk: int) -> bool:
    """Whether finding 2 concerns this window of so many tokens, and this chunk of so many blocks, as its entry says."""
    need = -(-(window - 1) // BLOCK)
    return need % chunk > 0 and (need > chunk or window % BLOCK == 1)


def hole_is_stored(window: int, chunk: int) -> bool:
    """The same for finding 3."""
    return chunk - -(-window // BLOCK) >= 2


class Cell:
    """An engine with one window and one chunk. Each text is sent under new tokens."""

    def __init__(self, groups: Sequence[GroupSpec], chunk: int, step_tokens: int, asynchronous: bool) -> None:
        spec = WorldSpec(
            tuple(groups),
            num_gpu_blocks=600,
            host_blocks=100 * chunk,
            max_num_batched_tokens=step_tokens,
            async_scheduling=asynchronous,
            blocks_per_chunk=chunk,
            extra_config={"offload_prompt_only": True},
        )
        self.rig = Rig(spec)
        self._texts = 0

    def text(self, tokens: int) -> list[int]:
        """A prompt that shares nothing with another one."""
        self._texts += 1
        return [10 * self._texts + token % 10 for token in range(tokens)]

    def ask(self, *prompts: list[int]) -> None:
        """Send them together, and wait for the answers."""
        for prompt in prompts:
            self.rig.add(prompt, 1)
        self.rig.drain()

    def forget(self, host: bool = False) -> None:
        """Empty the device's cache, and the host with it."""
        if not self.rig.reset_prefix_cache(reset_connector=host):
            raise RuntimeError("the engine is not at rest")


def partial_chunk(window: int, chunk: int, asynchronous: bool) -> int:
    """Finding 2: the number of stories with wrong bytes. The last prompt shares some chunks with the first."""
    span, wrong = BLOCK * chunk, 0
    longest = window + 2 * span
    cell = Cell((GroupSpec("full"), GroupSpec("swa", window=window)), chunk, 2 * longest, asynchronous)
    for tokens in range(span + 1, longest, span):
        for shared in range(span, tokens, span):
            for more in (0, 1):
                text, before = cell.text(tokens), cell.rig.corrupt
                cell.rig.refuse = True
                cell.ask(text)
                cell.rig.refuse = None
                cell.ask(text)
                cell.forget()
                cell.ask([*text[:shared], *cell.text(more)])
                wrong += cell.rig.corrupt > before
                cell.forget(host=True)
    return wrong


def hole_in_chunk(window: int, chunk: int, asynchronous: bool) -> int:
    """Finding 3: the number of stories with wrong bytes. A prompt is computed in several steps, divided everywhere."""
    span, wrong = BLOCK * chunk, 0
    step = span // 4 if asynchronous else 2 * span
    cell = Cell((GroupSpec("swa", window=window),), chunk, max(8, step), asynchronous)
    for tokens in (span + 1, 2 * span + 1):
        for other in range(step) if asynchronous else range(max(0, step - tokens + 1), step - tokens + span):
            text, before = cell.text(tokens), cell.rig.corrupt
            cell.ask(*([cell.text(other)] if other else []), text)
            cell.forget()
            cell.ask(text)
            wrong += cell.rig.corrupt > before
            cell.forget(host=True)
    return wrong


def rows(asynchronous: bool, windows: Sequence[int], chunks: Sequence[int]) -> Iterator[str]:
    """The tables, and each cell that is not as it is said to be."""
    kinds: tuple[tuple[str, Callable[[int, int, bool], int], Callable[[int, int], bool]], ...] = (
        ("finding 2", partial_chunk, partial_is_read),
        ("finding 3", hole_in_chunk, hole_is_stored),
    )
    for name, story, said in kinds:
        for more in (0, 1):
            yield f"{name}: stories with wrong bytes; windows of n blocks{' and a token' * more}, chunks of {chunks}"
            for blocks in windows:
                window = blocks * BLOCK + more
                seen = [story(window, chunk, asynchronous) for chunk in chunks]
                other = [chunk for chunk, count in zip(chunks, seen, strict=True) if (count > 0) is not said(window, chunk)]
                if asynchronous and story is hole_in_chunk:  # shows only in chunks of several steps, and the page says no more
                    other = [chunk for chunk in other if not said(window, chunk)]
                yield f"{blocks:3} {seen}" + f"  NOT AS SAID: {other}" * bool(other)


def wrong_answers(seed: int, steps: int = 600) -> tuple[int, int]:
    """Finding 4: how many answers were computed over wrong bytes, and how many there are."""
    rng, sent = Random(seed), list[list[int]]()
    spec = WorldSpec(
        (GroupSpec("swa", block_tokens=16, window=128),),
        num_gpu_blocks=100,
        host_blocks=2000,
        max_num_seqs=128,
        max_num_batched_tokens=2048,
        extra_config={"offload_prompt_only": True},
        lag=Lag(1, 1),
    )
    rig = Rig(spec, seed)
    for _ in range(steps):
        if rng.random() < 0.2 and len(rig.running) < 12:
            if not sent or rng.random() < 0.5:
                sent.append([rng.randrange(10, 30_000) for _ in range(rng.randint(128, 512))])
                prompt = sent[-1]
            else:
                prompt = rng.choice(sent)
            rig.add(prompt, rng.randint(16, 300))
        if rng.random() < 0.02:
            rig.reset_prefix_cache(reset_connector=True)
        if rng.random() < 0.05:
            rig.reset_prefix_cache()
        rig.step()
    rig.drain(5000)
    return len({each.request for each in rig.corruptions}), len(rig.finished)


def main(argv: Sequence[str] | None = None) -> int:
    """Print what was asked for. Exit status 1 if a cell of the tables is not as the page says."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.vllm.figures", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figures", choices=("chunks", "resets"))
    parser.add_argument("--async", dest="asynchronous", action="store_true", help="chunks: with asynchronous scheduling")
    arguments, status = parser.parse_args(argv), 0
    if arguments.figures == "resets":
        for seed in range(10):
            print("seed {}: {} of {} answers are wrong".format(seed, *wrong_answers(seed)), flush=True)
        return 0
    for row in rows(arguments.asynchronous, WINDOWS, CHUNKS):
        print(row, flush=True)
        status |= "NOT" in row
    return status


if __name__ == "__main__":
    sys.exit(main())
