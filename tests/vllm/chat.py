"""Conversations under vLLM's real scheduler, with no model and no bytes: what of each prompt comes back from the host.

Some system prompts are shared by all conversations, as often as Zipf says. A turn's prompt is all that was said before and what
the user says now, so that each time a conversation comes again its prefix has grown. Which conversation comes next is drawn by
Zipf again, from those that were not among the latest ones; one that has said all makes room for a new one.

The device has room for little more than what runs, so that what comes again is found in the host tier or not at all. The list
of requests is made beforehand, and a new one is sent when one ends: engines of one seed are asked the same in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from random import Random

from attrs import define, field, frozen
from vllm.v1.outputs import ModelRunnerOutput

from tests.proof.drivers.vllm.making import MAX_MODEL_LEN
from tests.vllm.engine import Engine
from tests.vllm.population import WORKERS
from tests.vllm.worlds import Connector, Extra, GroupSpec, WorldSpec

BLOCK, RUNNING, DEVICE_BLOCKS = 16, 4, 200
_SYSTEMS, _CONVERSATIONS, _REST = 8, 64, 6
"""System prompts, conversations at one time, and how many others come before the same one again."""
_POLICY: Mapping[Connector, str] = {"offloading": "eviction_policy", "blocklife": "policy"}
"""The key with which a connector is told what it forgets first."""


@frozen
class Turn:
    """One request: how long its prompt is, and how long the answer, of a text that is known beforehand."""

    text: list[int]
    prompt: int
    answer: int


@define(eq=False)
class _Conversation:
    system: list[int]
    left: int
    """Turns."""
    text: list[int] = field(factory=list)

    def turn(self, dice: Random) -> Turn:
        """What comes next of it."""
        self.left -= 1
        said = [dice.randrange(5, 50_000) for _ in range(dice.randint(16, 160))]
        answer = [dice.randrange(5, 50_000) for _ in range(dice.randint(4, 48))]
        prompt = [*(self.text or self.system), *said]
        self.text = prompt + answer
        return Turn(self.text, len(prompt), len(answer))

    @property
    def is_over(self) -> bool:
        """Whether it has said all, or as much as the model takes."""
        return not self.left or len(self.text) + 256 > MAX_MODEL_LEN


def turns(seed: int, count: int) -> Iterator[Turn]:
    """So many requests."""
    dice = Random(f"{seed}/chat")
    systems = [[dice.randrange(5, 50_000) for _ in range(dice.randint(64, 320))] for _ in range(_SYSTEMS)]

    def begun() -> _Conversation:
        return _Conversation(dice.choices(systems, cum_weights=_zipf(_SYSTEMS))[0], dice.randint(2, 8))

    conversations = [begun() for _ in range(_CONVERSATIONS)]
    latest: list[int] = []
    for _ in range(count):
        while (at := dice.choices(range(_CONVERSATIONS), cum_weights=_zipf(_CONVERSATIONS))[0]) in latest:
            pass
        latest = [*latest, at][-_REST:]
        if conversations[at].is_over:
            conversations[at] = begun()
        yield conversations[at].turn(dice)


def _zipf(count: int) -> list[float]:
    return list(accumulate(1 / (rank + 1) for rank in range(count)))


@frozen
class Hits:
    """Tokens of one run."""

    host: int
    """Those that loads were asked for."""
    computed: int
    preempted: int
    """Requests."""


def run(
    connector: Connector,
    host_blocks: int,
    seed: int,
    *,
    policy: str = "",
    requests: int = 200,
    window: int | None = None,
    extra: Extra | None = None,
) -> Hits:
    """All of a seed's requests on a new engine, with a second group of a sliding window if *window* says how many tokens."""
    groups = (GroupSpec("full", BLOCK),) if window is None else (GroupSpec("full", BLOCK), GroupSpec("swa", BLOCK, window))
    spec = WorldSpec(
        groups,
        DEVICE_BLOCKS * len(groups) + 1,
        host_blocks,
        max_num_seqs=RUNNING,
        max_num_batched_tokens=2048,
        connector=connector,
        extra_config={**({_POLICY[connector]: policy} if policy else {}), **(extra or {})},
    )
    return _Chat(spec, seed, requests).all()


class _Chat:
    def __init__(self, spec: WorldSpec, seed: int, requests: int) -> None:
        self.engine = Engine(spec)
        self._scheduler = self.engine.scheduler
        self._workers = WORKERS[spec.connector]() if spec.connector else None
        self._turns = turns(seed, requests)
        self._texts: dict[str, list[int]] = {}
        self._host = self._computed = self._preempted = 0
        connector = self._scheduler.connector
        told = connector.update_state_after_alloc

        def allocated(request: object, blocks: object, num_external_tokens: int) -> None:
            self._host += num_external_tokens
            told(request, blocks, num_external_tokens)

        connector.update_state_after_alloc = allocated

    def all(self) -> Hits:
        """To the end."""
        more = True
        while more or self._scheduler.has_requests():
            while more and len(self._scheduler.requests) < RUNNING + 2:
                more = self._send()
            self._step()
        return Hits(self._host, self._computed, self._preempted)

    def _send(self) -> bool:
        turn = next(self._turns, None)
        if turn is not None:
            name = f"r{len(self._texts)}"
            self._texts[name] = turn.text
            self.engine.add(name, turn.text[: turn.prompt], turn.answer)
        return turn is not None

    def _step(self) -> None:
        output = self._scheduler.schedule()
        self._computed += output.total_num_scheduled_tokens
        self._preempted += len(output.preempted_req_ids or ())
        names = list(output.num_scheduled_tokens)
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: at for at, name in enumerate(names)},
            sampled_token_ids=[self._said(name) for name in names],
            kv_connector_output=self._workers.run(output) if self._workers is not None else None,
        )
        self._scheduler.update_from_output(output, result)

    def _said(self, name: str) -> list[int]:
        request = self._scheduler.requests[name]
        known: int = request.num_tokens
        return self._texts[name][known : known + 1] if request.num_computed_tokens >= known else []
