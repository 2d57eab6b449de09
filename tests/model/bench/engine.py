"""``python -m tests.model.bench.engine VARIANT WISH``: the process that one variant runs in.

A line on standard input is the number of a round; a line on standard output is what came of it, in JSON. Round 0 warms up. The
end of the input is the end of the process. What vLLM prints goes to standard error.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from unittest import mock

from attrs import asdict
from transformers import AutoConfig
from vllm import RequestOutput
from vllm.v1.engine import EngineCoreOutputs

from tests.model import offload_spec
from tests.model.bench.records import BLOCK, VARIANTS, Round, Said, Source, Variant, Wish
from tests.model.engine import Engine, Setting, engine
from tests.model.shelf import MODELS
from tests.model.workload import Ask, words

STANDS_STILL_S = 300.0
"""A request that takes longer is an error."""
YIELD_S = 0.001
"""What vLLM's own process of the core sleeps between two steps that compute nothing."""
BATCH = 512
"""Tokens of a step."""


def asks(wish: Wish, number: int) -> Iterator[Ask]:
    """A round: in each turn every session asks, one after another, all that it has asked so far and some words more.

    System prompts are the same in all rounds, sessions are new in each. Round 0 has one session for each system prompt.
    """
    prompts = [words(Random(f"{wish.seed}/prompt {each}"), wish.prefix) for each in range(wish.prompts)]
    rng = Random(f"{wish.seed}/round {number}")
    texts = [prompts[wish.prompt_of(session)] for session in range(wish.sessions)] if number else prompts
    for turn in range(wish.turns):
        for session in range(len(texts)):
            texts[session] += words(rng, wish.words)
            yield Ask(f"round{number}-turn{turn}-session{session}", texts[session], wish.answer)


def block_bytes(model: str) -> int:
    """Bytes of a block in all layers."""
    config = AutoConfig.from_pretrained(Path(os.environ[MODELS]) / model)
    return int(config.num_hidden_layers * 2 * config.num_key_value_heads * config.head_dim * 4 * BLOCK)


def setting(variant: Variant, wish: Wish) -> Setting:
    """How the engine of a variant is made."""
    roomy = wish.all_blocks
    other: dict[str, object] | None = None
    if variant.name == "blocklife":
        other = {
            "kv_connector": "BlocklifeConnector",
            "kv_connector_module_path": "blocklife.engines.vllm",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"host_blocks": roomy},
        }
    elif variant.name == "offloading":
        other = offload_spec.connector(roomy * block_bytes(wish.model))
    return Setting(
        wish.model,
        blocks=wish.small_blocks if variant.source is Source.HOST else roomy,
        prefix_caching=variant.source is not Source.NOWHERE,
        other=other,
        max_running=1,
        max_tokens=wish.longest,
        block=BLOCK,
        batch_tokens=BATCH,
    )


class Asker:
    """Asks one request at a time, and looks where its prefix came from."""

    def __init__(self, running: Engine) -> None:
        self._running = running
        self._core = running.llm.engine_core
        self._on_device = self._on_host = 0
        self._get_output = self._core.get_output

    def heard(self) -> EngineCoreOutputs:
        """What the engine's core says. vLLM tells only here which part of a hit is whose."""
        outputs = self._get_output()
        for each in outputs.outputs:
            if each.prefill_stats is not None:
                self._on_device += each.prefill_stats.num_local_cached_tokens
                self._on_host += each.prefill_stats.num_external_cached_tokens
        return outputs

    def ask(self, ask: Ask) -> Said:
        """Until its last token. What is still to be stored then is stored before the next request."""
        self._on_device = self._on_host = 0
        first_s: float | None = None
        begun = time.perf_counter()
        self._running.add(ask)
        with mock.patch.object(self._core, "get_output", self.heard):
            while (passed := time.perf_counter() - begun) < STANDS_STILL_S:
                for output in self._step():
                    said = tuple(output.outputs[0].token_ids)
                    now = time.perf_counter() - begun
                    first_s = now if first_s is None and said else first_s
                    if output.finished and first_s is not None:
                        digest = hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]
                        return Said(round(first_s, 5), round(now, 5), self._on_device, self._on_host, len(said), digest)
        raise RuntimeError(f"{ask.name} has not been answered after {passed:.0f} s")

    def settle(self) -> None:
        """Let a connector that has something to do without requests do it."""
        begun = time.perf_counter()
        while self._running.scheduler.has_requests():
            self._step()
            if time.perf_counter() - begun > STANDS_STILL_S:
                raise RuntimeError("the engine has no request, and does not come to rest")

    def _step(self) -> list[RequestOutput]:
        """One step. As in vLLM's own process of the core, threads that copy have a moment where nothing is computed."""
        outputs: list[RequestOutput] = self._running.llm.step()
        scheduler = self._running.scheduler
        if not scheduler.running and scheduler.has_requests():
            time.sleep(YIELD_S)
        return outputs

    def round(self, wish: Wish, number: int) -> Round:
        """All requests of a round."""
        begun = time.perf_counter()
        said = list[Said]()
        for each in asks(wish, number):
            said.append(self.ask(each))
            self.settle()
        return Round(round(time.perf_counter() - begun, 5), tuple(said))


def main() -> None:
    """Answer rounds until the input ends."""
    told = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    variant, wish = VARIANTS[sys.argv[1]], Wish(**json.loads(sys.argv[2]))
    with engine(setting(variant, wish)) as running:
        asker = Asker(running)
        for line in sys.stdin:
            print(json.dumps(asdict(asker.round(wish, int(line)))), file=told, flush=True)


if __name__ == "__main__":
    main()
