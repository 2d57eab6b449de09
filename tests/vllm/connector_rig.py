"""The rig for blocklife's own connector: copies that take their time and fail, deeper pipelines, drafts, sessions.

The connector's worker side is the real one, with the real layout of pages and the real executor. Only when a copy moves is put
in place of the device's own time: about half of its runs move when it starts, the rest when it lands some steps later, so that
whoever reads or writes too early reads or writes wrong bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest import mock

import numpy as np
import pytest
from attrs import evolve
from vllm.config import ParallelConfig, SpeculativeConfig, VllmConfig
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from blocklife.copiers.torch import HostMemory, KvCache
from blocklife.engines.vllm.connector import _scheduler as scheduler
from blocklife.engines.vllm.connector import _worker as worker
from blocklife.engines.vllm.connector._connector import BlocklifeConnector
from blocklife.engines.vllm.connector._scheduler import ConnectorScheduler
from blocklife.ledger import Direction, Worker
from blocklife.ledger.invariants import check
from tests.proof.drivers.vllm import making
from tests.vllm.lag_copier import LagCopier
from tests.vllm.rig import Rank, Rig, Scheduler
from tests.vllm.runner import JUNK, Row, Turn
from tests.vllm.traffic import differing
from tests.vllm.worlds import TEXT_ALONE, WorldSpec

EVERY_TOKEN = range(1 << 20)
"""As tokens that end an answer: it ends with the next one."""


class AtOnce(ThreadPoolExecutor):
    """Work is done when it is handed over: what a walk does never depends on how fast a thread is."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Do it."""
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


@contextmanager
def _made_for(
    spec: WorldSpec, seed: int, fails: Mapping[Direction, float], spare_requests: int, copiers: list[LagCopier]
) -> Iterator[None]:
    def make_copier(self: BlocklifeConnector) -> object:
        def make(cache: KvCache, host: HostMemory, rank: Worker) -> LagCopier:
            copiers.append(LagCopier(cache, host, rank, spec.lag, fails, Random(f"{seed}/lag/{rank}")))
            return copiers[-1]

        return make

    with (
        mock.patch.object(BlocklifeConnector, "make_copier", make_copier),
        mock.patch.object(scheduler, "SPARE_REQUESTS", spare_requests),
        mock.patch.object(worker, "ThreadPoolExecutor", AtOnce),
    ):
        yield


@contextmanager
def _runner(second: bool) -> Iterator[None]:
    """vLLM chooses its second model runner, which needs Triton, or the first one."""
    with mock.patch.object(VllmConfig, "use_v2_model_runner", second):
        yield


class ConnectorRig(Rig):
    """A rig with blocklife's connector. *depth* steps can be with the workers at once; *drafts*: the model is sent guesses.

    Of requests that do not run the connector can know *spare_requests* at once. The *second_runner* zeroes new blocks before it
    calls the connector.
    """

    def __init__(
        self,
        spec: WorldSpec,
        seed: int = 0,
        *,
        fails: Mapping[Direction, float] | None = None,
        recompute: bool = True,
        depth: int | None = None,
        drafts: bool = False,
        spare_requests: int = scheduler.SPARE_REQUESTS,
        second_runner: bool = False,
        on_scheduler: Callable[[Scheduler], None] | None = None,
    ) -> None:
        # by a clock that the steps do not follow, nobody waits in vain unless told
        extra = {"checking": "strict", "pending_wait_s": 1e9, **spec.extra_config}
        spec = evolve(spec, connector="blocklife", extra_config=extra)
        self._depth = depth or (2 if spec.async_scheduling else 1)
        self._dice = Random(f"{seed}/drafts") if drafts else None
        self._guessed: list[Turn] = []
        self._steps_out: list[int] = []  # the steps whose output the scheduler has not taken in
        self.copiers: list[LagCopier] = []
        self._zeroes_first = second_runner
        with _made_for(spec, seed, fails or {}, spare_requests, self.copiers), _runner(second_runner):
            super().__init__(spec, seed, on_scheduler)
        self.scheduler.recompute_kv_load_failures = recompute

    @property
    def side(self) -> ConnectorScheduler:
        """The scheduler's half of the connector."""
        connector = self.scheduler.connector
        if not isinstance(connector, BlocklifeConnector):
            raise TypeError(connector)
        return connector.scheduler

    @property
    def loaded(self) -> int:
        """Blocks that loads brought to the device."""
        return self.side.ledger.counts.moved[Direction.LOAD.name]

    @property
    def stored(self) -> int:
        """Blocks that stores brought to the host."""
        return self.side.ledger.counts.moved[Direction.STORE.name]

    @property
    def moved(self) -> tuple[int, int]:
        """Blocks that were stored and loaded, on each worker."""
        return self.stored, self.loaded

    @property
    def left_behind(self) -> int:
        """Copies that the ledger waits for; when the engine is idle nobody will finish them."""
        return self.side.ledger.jobs.live

    def check(self) -> None:
        """Raise AssertionError if anything is wrong by now."""
        found = check(self.side.ledger)
        assert not found, found
        assert not self.corruptions, [str(each) for each in self.corruptions]
        assert not self.wrong_texts, self.wrong_texts

    def check_empty(self) -> None:
        """Raise AssertionError if anything is left although the engine is idle."""
        self.check()
        statistics = self.side.ledger.statistics()
        assert statistics.requests == statistics.jobs_alive == statistics.violations == 0, statistics
        assert not self.side.offload.plans_out
        assert not self.side.requests.by_id
        assert not self.side.requests.by_name
        assert not {**self.side.requests.landed, **self.side.requests.lost, **self.side.requests.receiving}

    def step(self) -> bool:
        """As the engine's loop, with as many steps ahead as the depth says."""
        if self.idle:
            return False
        if self.scheduler.has_requests():
            launched = self._launch()
            self._queue.append(launched)
            executed = launched[0].total_num_scheduled_tokens > 0
            if len(self._queue) < self._depth and (executed or self.scheduler.has_requests()):
                return True
        self._update(*self._queue.pop(0))
        return True

    def renew_weights(self) -> None:
        """The model has other weights: what it computes from now on has other bytes, and older ones are wrong."""
        for rank in self.ranks:
            rank.memory.salt ^= np.uint64(0x9E3779B97F4A7C15)

    def wants_no_prefix(self, name: str) -> None:
        """A request that was added is to be computed from its first token on, as one is that asks for its prompt's odds."""
        self.scheduler.requests[name].skip_reading_prefix_cache = True

    def _prepare(self, rank: Rank, output: SchedulerOutput) -> None:
        if not self._zeroes_first:
            super()._prepare(rank, output)

    def _execute_on(self, rank: Rank, output: SchedulerOutput, turns: list[Turn]) -> KVConnectorOutput | None:
        if self._zeroes_first:
            super()._prepare(rank, output)
        found = super()._execute_on(rank, output, turns)
        self._check_beside(rank, output, computes=bool(turns))
        return found

    def _check_beside(self, rank: Rank, output: SchedulerOutput, *, computes: bool) -> None:
        """What a load fills beside the forward pass is touched neither by it nor by what the step does before it."""
        touched = {copy.dst_block_id for copy in getattr(output, "kv_cache_block_copies", None) or ()}
        touched.update(getattr(output, "new_block_ids_to_zero", None) or ())
        touched |= rank.forward.touched if computes else set()
        wrong = self.copiers[rank.number].beside & touched - {0}
        assert not wrong, f"step {self.step_number}: blocks {sorted(wrong)} are loaded beside what touches them"

    # Drafts.

    def _execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        result = super()._execute(output)
        fresh = {new.req_id for new in output.scheduled_new_reqs} | set(output.scheduled_cached_reqs.resumed_req_ids)
        for name in output.num_scheduled_tokens.keys() - fresh:
            self._check_rewrites(name)
        if self._dice is not None and result.req_ids:
            self._judge_guesses(output, result)
        return result

    def _turns(self, output: SchedulerOutput) -> list[Turn]:
        """With a step ahead the scheduler sends places only, and what the worker guesses itself is not known to it yet."""
        dice, given = self._dice, output.scheduled_spec_decode_tokens

        def guess(row: Row) -> Sequence[int]:
            guesses: Sequence[int] = given.get(row.name, ())
            if dice is None or not self.spec.async_scheduling:
                return guesses
            return [row.text.token(row.known + at) if dice.random() < 0.7 else 1 for at in range(len(guesses))]

        self._guessed = turns = self._batch.turns(output, guess)
        for turn in turns:
            turn.row.rejected[self.step_number] = turn.guesses - turn.right
        self._steps_out.append(self.step_number)
        return turns

    def _check_rewrites(self, name: str) -> None:
        """While a request decodes, layers of a drafter write its last position once more: no store may read that block then."""
        row = self._batch._rows[name]
        if row.computed <= row.prompt_tokens:
            return
        for group, table in [each for each in zip(self.spec.groups, row.tables, strict=True) if each[0].drafter]:
            block = table[(row.computed - 1) // group.block_tokens]
            if block and any(copier.reads(block) for copier in self.copiers):
                raise AssertionError(f"request {name}: block {block} is written again while a store reads it")

    def _judge_guesses(self, output: SchedulerOutput, result: ModelRunnerOutput) -> None:
        """Accept the guesses that the model would have said; what was computed for the others is junk."""
        said: list[list[int]] = []
        for turn in self._guessed:
            row, right = turn.row, turn.right
            said.append([row.text.token(row.known + at) for at in range(right + 1)] if turn.speaks else [])
            for rank in self.ranks:
                for group, table in zip(self.spec.groups, row.tables, strict=True):
                    for token in range(row.known + right, row.known + turn.guesses) if group.kind != "mamba" else ():
                        if block := table[token // group.block_tokens]:
                            words = rank.memory.device[block].reshape(group.block_tokens, -1)
                            words[token % group.block_tokens] = JUNK
        for rank in self.ranks:
            rank.forward.keep_states(self._guessed)
        result.sampled_token_ids = said

    def _update(self, output: SchedulerOutput, result: ModelRunnerOutput) -> None:
        super()._update(output, result)
        step = self._steps_out.pop(0)
        for name in output.num_scheduled_tokens:
            if name in self._batch._rows:
                self._batch._rows[name].rejected.pop(step, None)
        if self._dice is not None and not self.spec.async_scheduling:
            names, guesses = [], []
            for request in self.scheduler.running:
                text, known, dice = self.texts[request.request_id], request.num_tokens, self._dice
                count = dice.randint(0, 3)
                names.append(request.request_id)
                guesses.append([text.token(known + at) if dice.random() < 0.7 else 1 for at in range(count)])
            self.scheduler.update_draft_token_ids(DraftTokenIds(names, guesses))


def configured(monkeypatch: pytest.MonkeyPatch, change: Callable[[VllmConfig], object]) -> None:
    """Engines that are made from now on get a configuration in which something is changed."""
    make = making.config_of

    def config_of(shape: making.Shape) -> VllmConfig:
        config = make(shape)
        change(config)
        return config

    monkeypatch.setattr(making, "config_of", config_of)


def with_guesses(monkeypatch: pytest.MonkeyPatch, method: str = "ngram") -> None:
    """Engines that are made from now on guess three tokens a step. vLLM reads of *method* how it treats a drafter's layers."""

    def with_drafts(**given: object) -> VllmConfig:
        guesses = SpeculativeConfig(
            method="ngram",
            num_speculative_tokens=3,
            prompt_lookup_max=4,
            prompt_lookup_min=2,
            target_model_config=given["model_config"],
            target_parallel_config=ParallelConfig(),
        )
        config = VllmConfig(**given, speculative_config=guesses)
        guesses.method = method  # its model is not read: nothing here computes
        return config

    monkeypatch.setattr(making, "VllmConfig", with_drafts)


def walk(rig: ConnectorRig, seed: int, requests: int = 30, *, resets: bool = True, differs: bool = False) -> None:
    """Random requests with common beginnings, aborts and resets, to the end; checked after every step.

    If what is beside their tokens *differs*, requests with the same tokens have other salts, adapters or images.
    """
    rng = Random(f"{seed}/walk")
    families = [[rng.randrange(10, 1000) for _ in range(40)] for _ in range(3)]
    most, left = 2 * rig.spec.max_num_seqs, requests
    for _ in range(10_000):
        while left and len(rig.running) < rng.randint(1, most):
            tail = [rng.randrange(10, 1000) for _ in range(rng.choice((0, 0, 1, 3, 9)))]
            prompt, answer = rng.choice(families)[: rng.randint(1, 40)] + tail, rng.randint(1, 14)
            rig.add(prompt, answer, beside=differing(rng, len(prompt)) if differs else TEXT_ALONE)
            left -= 1
        chance = rng.random()
        if chance < 0.04 and rig.running:
            rig.abort(rng.choice(sorted(rig.running)), late=rng.random() < 0.5)
        elif chance < 0.06 and resets and not rig._queue:
            _reset(rig, rng.random() < 0.4, rng.random() < 0.6)
        elif chance < 0.07 and resets:
            rig.side.reset()
        if not rig.step() and not left:
            break
        rig.check()
    rig.check_empty()


def sessions(rig: ConnectorRig, rng: Random, *, count: int, steps: int) -> Iterator[Request | None]:
    """*count* sessions, one after the other, of *steps* steps each; at the end those that are left are aborted.

    A session goes on where it waits for more, and some of its answers end with the next token. Yields, before each step, which
    the caller makes, the request of the session as vLLM had it; None where it has just begun.
    """
    for step in range(count * steps):
        number = step // steps
        held = rig.scheduler.requests.get(f"s{number}")
        if held is None or (held.status == RequestStatus.WAITING_FOR_STREAMING_REQ and rng.random() < 0.5):
            rig.part(f"s{number}", list(range(100, 100 + rng.randint(1, 5))), 30)
        elif held.status == RequestStatus.RUNNING and rng.random() < 0.3:
            held.sampling_params.stop_token_ids = EVERY_TOKEN
        if step % steps == 0:
            rig.engine.abort([f"s{number - 2}"])
        yield held
    rig.engine.abort([name for name in rig.scheduler.requests if name.startswith("s")])


def _reset(rig: ConnectorRig, running: bool, connector: bool) -> None:
    if not rig.can_reset(running, connector):
        return
    if rig.reset_prefix_cache(running, connector) and connector:
        rig.renew_weights()
