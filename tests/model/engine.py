"""An engine of vLLM with a real model, in this process, and what can be seen of it from outside.

Rules of this file:

* The engine is vLLM's own, its connector is told by name as a user would do it. Only where a CPU build lacks what a GPU build
  has is something of vLLM put in another's place (`lacking`), and only while such an engine lives.
* An engine that stands still is an error with its requests and their states, never a test that does not end.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal
from unittest import mock

from attrs import define, field, frozen

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the engine's core in this process: vLLM reads it when it is made

from vllm import SamplingParams
from vllm.config import KVTransferConfig
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.outputs import DraftTokenIds

from blocklife.engines.vllm.connector._connector import BlocklifeConnector
from blocklife.engines.vllm.connector._scheduler import ConnectorScheduler
from blocklife.ledger import Direction
from blocklife.ledger.invariants import check
from tests.model.connectors import VARIABLE, Copies
from tests.model.lacking import asynchronous_steps, boundary_states, delta_attention, latents_behind_hits
from tests.model.offload_spec import LinkWorker
from tests.model.shelf import MODELS
from tests.model.workload import Ask, Wave

BLOCK = 32
"""Tokens in a block; the kernels take no fewer. Beside states vLLM chooses itself, so that a page holds a state."""
STEPS = 20_000
"""An engine that has not answered after so many steps stands still."""

Answers = dict[str, tuple[int, ...]]
"""What was said to each request, by its name."""


@frozen
class Setting:
    """How an engine is made."""

    model: str
    blocks: int = 512
    """Blocks of the device, the null block included."""
    prefix_caching: bool = True
    ours: Mapping[str, object] | None = None
    """`kv_connector_extra_config` of our connector; None: no connector."""
    other: Mapping[str, object] | None = None
    """Another connector, as `KVTransferConfig` takes it."""
    copies: Copies = field(factory=Copies)
    max_running: int = 2
    max_tokens: int = 384
    """Tokens of a request, with its answer."""
    block: int | None = BLOCK
    batch_tokens: int = 256
    dtype: Literal["float32", "bfloat16"] = "float32"
    asynchronous: bool = False
    ranks: int = 1
    failed_loads: Literal["recompute", "fail"] = "recompute"
    guesses: Mapping[str, object] | None = None
    """Speculative decoding, as `speculative_config` of vLLM takes it; a drafter of its own folder is named like a model."""


Guesses = dict[tuple[str, int], tuple[int, ...]]
"""What was guessed, by the name of the request and the number of tokens that it had said."""


@define
class Seen:
    """What has happened in an engine so far."""

    steps: int = 0
    preemptions: int = 0
    loaded: int = 0
    """Blocks that loads have brought from the host, counted when they have landed."""
    stored: int = 0
    evicted: int = 0
    """Chunks of the host that others have displaced."""
    lost_loads: int = 0
    waited: int = 0
    """Copies that were out when a step waited for them."""
    hit_on_device: int = 0
    """Tokens that were there, on the device."""


@define(eq=False)
class Engine:
    """An engine that lives, and the requests that were asked of it."""

    setting: Setting
    llm: LLMEngine
    seen: Seen = field(factory=Seen)
    said: Answers = field(factory=dict)
    """What users have seen so far, answers that are not at their end included."""
    guesses: Guesses = field(factory=dict)
    """All guesses so far, the last ones where a request had to say something once more."""
    _preempted: dict[str, int] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        if self.setting.guesses is None:
            return
        scheduler, before = self.scheduler, self.scheduler.update_draft_token_ids

        def note(drafts: DraftTokenIds) -> None:
            before(drafts)
            for name in drafts.req_ids:
                request = scheduler.requests.get(name)
                if request is not None and request.spec_token_ids:
                    self.guesses[name.rpartition("-")[0], request.num_output_tokens] = tuple(request.spec_token_ids)

        scheduler.update_draft_token_ids = note

    @property
    def scheduler(self) -> Scheduler:
        """vLLM's scheduler."""
        return self.llm.engine_core.engine_core.scheduler

    @property
    def side(self) -> ConnectorScheduler:
        """The scheduler's half of our connector."""
        connector = self.scheduler.connector
        if not isinstance(connector, BlocklifeConnector):
            raise TypeError(connector)
        return connector.scheduler

    @property
    def other_worker(self) -> OffloadingConnectorWorker:
        """The worker's half of vLLM's own connector."""
        return get_kv_transfer_group().connector_worker

    @property
    def links(self) -> LinkWorker:
        """What moves bytes for it."""
        found = self.other_worker.worker
        if not isinstance(found, LinkWorker):
            raise TypeError(found)
        return found

    @property
    def loading(self) -> list[str]:
        """Requests whose load is out, by the names that they were asked under."""
        return [
            name.rpartition("-")[0]  # vLLM makes names unique by a suffix
            for name, request in self.scheduler.requests.items()
            if request.status.name == "WAITING_FOR_REMOTE_KVS"
        ]

    @property
    def steps_out(self) -> int:
        """Steps that were planned and whose end the scheduler has not seen."""
        return len(self.llm.engine_core.engine_core.batch_queue or ())

    def add(self, ask: Ask) -> None:
        """A request; greedy, and of a length that is given."""
        sampling = SamplingParams(temperature=0.0, max_tokens=ask.max_tokens, ignore_eos=True, detokenize=False)
        self.llm.add_request(ask.name, {"prompt_token_ids": list(ask.prompt)}, sampling)

    def abort(self, name: str) -> None:
        """A client goes away."""
        self.llm.abort_request([name])

    def step(self) -> Answers:
        """One step; what it has brought to an end."""
        answers: Answers = {}
        is_idle = not self.scheduler.running
        for output in self.llm.step():
            self.said[output.request_id] = tokens = tuple(output.outputs[0].token_ids)
            if output.finished:
                answers[output.request_id] = tokens
                self.seen.hit_on_device += output.num_cached_tokens or 0
        self.seen.steps += 1
        for name, request in self.scheduler.requests.items():
            self._preempted[name] = max(self._preempted.get(name, 0), request.num_preemptions)
        if self.setting.other is not None and is_idle and not self.scheduler.running:
            self.links.wait_for_one()  # only copies are waited for: steps without tokens are many, and tell nothing
        return answers

    def answer(self, waves: Sequence[Wave], watch: Callable[[Engine], None] = lambda _engine: None) -> Answers:
        """Ask all waves, one after another; *watch* is called after every step."""
        answers: Answers = {}
        for wave in waves:
            for ask in wave:
                self.add(ask)
            for _ in range(STEPS):
                if not self.llm.has_unfinished_requests():
                    break
                answers.update(self.step())
                watch(self)
            else:
                states = {name: request.status.name for name, request in self.scheduler.requests.items()}
                raise AssertionError(f"the engine stands still after {STEPS} steps: {states}")
        self._look()
        return answers

    def come_to_rest(self) -> None:
        """Take the steps that an engine takes after its last answer, until it sleeps."""
        for _ in range(STEPS):
            if not self.scheduler.has_requests():
                break
            self.step()
        else:
            raise AssertionError(f"the engine is awake {STEPS} steps after its last answer")
        self._look()

    def _look(self) -> None:
        self.seen.preemptions = sum(self._preempted.values())
        if self.setting.other is not None:
            moved = self.links.moved
            self.seen.loaded, self.seen.stored = moved.loaded, moved.stored
            self.seen.evicted, self.seen.waited = moved.displaced, moved.waited
        if self.setting.ours is None:
            return
        side = self.side
        chunk = side.config.blocks_per_chunk
        self.seen.loaded = side.ledger.counts.moved[Direction.LOAD.name]
        self.seen.stored = side.ledger.counts.moved[Direction.STORE.name]
        # a slot is written again only when what it had was displaced
        self.seen.evicted = max(0, self.seen.stored // chunk - side.shape.num_slots)
        self.seen.lost_loads = sum(job for state, job in side.ledger.counts.ended.items() if state == "FAILED")

    def check(self) -> None:
        """Raise AssertionError if a rule of the ledger is broken."""
        found = check(self.side.ledger)
        assert not found, found
        assert self.side.ledger.counts.tally["violations"] == 0


@contextlib.contextmanager
def engine(setting: Setting) -> Iterator[Engine]:
    """An engine for the time of the context."""
    transfer = None
    if setting.ours is not None:
        transfer = KVTransferConfig(
            kv_connector="TestedConnector",
            kv_connector_module_path="tests.model.connectors",
            kv_role="kv_both",
            kv_connector_extra_config={"checking": "strict", **setting.ours},
            kv_load_failure_policy=setting.failed_loads,
        )
    elif setting.other is not None:
        transfer = KVTransferConfig(**setting.other)
    guesses = None if setting.guesses is None else dict(setting.guesses)
    if guesses and "model" in guesses and guesses["method"] != "custom_class":
        guesses["model"] = str(Path(os.environ[MODELS]) / str(guesses["model"]))
    arguments = EngineArgs(
        model=str(Path(os.environ[MODELS]) / setting.model),
        dtype=setting.dtype,
        skip_tokenizer_init=True,
        enforce_eager=True,
        block_size=setting.block,
        num_gpu_blocks_override=setting.blocks,
        max_model_len=setting.max_tokens,
        max_num_seqs=setting.max_running,
        max_num_batched_tokens=setting.batch_tokens,
        enable_prefix_caching=setting.prefix_caching,
        distributed_executor_backend="uni" if setting.ranks == 1 else "mp",
        tensor_parallel_size=setting.ranks,
        kv_transfer_config=transfer,
        speculative_config=guesses,
        disable_log_stats=True,
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(boundary_states())
        stack.enter_context(latents_behind_hits())
        stack.enter_context(delta_attention())
        if setting.asynchronous:
            stack.enter_context(asynchronous_steps())
        stack.enter_context(mock.patch.dict(os.environ, {VARIABLE: setting.copies.dump()}))
        made = LLMEngine.from_engine_args(arguments)
        try:
            yield Engine(setting, made)
        finally:
            made.engine_core.shutdown()
            del made
            cleanup_dist_env_and_memory()
