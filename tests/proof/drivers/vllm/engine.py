"""vLLM's own scheduler for the world of a scenario, with one of its offloading connectors or ours, and without a model.

Rules of this file:

* It imports vLLM, and is imported only by `driver`, when a driver is made.
* Differences between releases are detected by inspection. Nothing of vLLM is replaced.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import vllm
from attrs import evolve
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from blocklife.knobs import Plain
from blocklife.offload import Geometry, Mode
from blocklife.testing import EngineSetup
from tests.proof.drivers.vllm import making

RELEASE: str = vllm.__version__
_MAX_RUNNING = 64


class VllmEngine:
    """vLLM's scheduler for a world, with the connector of this name. *options*: those of ours."""

    def __init__(self, world: EngineSetup, connector: str, options: Mapping[str, Plain]) -> None:
        self.geometry = Geometry.parse(world.groups, world.blocks_per_chunk)
        shape = making.Shape(
            groups=self.geometry.groups,
            num_blocks=world.blocks + 1,
            max_num_seqs=_MAX_RUNNING,
            max_num_batched_tokens=making.MAX_MODEL_LEN,
            asynchronous=world.scheduling == "async",
            num_workers=world.workers,
            transfer=None,
            keeps_every_block=True,
            part_tokens=world.step_tokens,
        )
        shape = evolve(shape, transfer=self._transfer(world, shape, connector, options))
        self.scheduler, self.hash_tokens = making.scheduler_of(making.config_of(shape), making.cache_of(shape))
        self._hasher = making.hasher_of(self.hash_tokens)
        self._aggregator = KVOutputAggregator.from_connector(self.scheduler.connector, world.workers)

    def request(self, name: str, prompt: Sequence[int], num_said: int) -> Request:
        """A request that ends only by its length."""
        return making.request_of(name, prompt, num_said, self._hasher)

    def end(self, request: str, status: str) -> None:
        """End a request: STOPPED at a stop, ABORTED when the client disconnects, ERROR where the engine cannot go on."""
        self.scheduler.finish_requests([request], RequestStatus[f"FINISHED_{status}"])

    @property
    def tells_preempted(self) -> bool:
        """Whether the workers hear of a request that was preempted between two steps."""
        return hasattr(self.scheduler, "reset_preempted_req_ids")

    def preempt(self, request: Request) -> None:
        """Preempt a running request, as the scheduler does where blocks run out."""
        scheduler = self.scheduler
        scheduler.running.remove(request)
        scheduler.prev_step_scheduled_req_ids.discard(request.request_id)
        scheduler._preempt_request(request, time.monotonic(), drop_stale_output=scheduler.requires_kv_delivery)

    def look_up(self, request: Request) -> None:
        """Ask for the hit of a waiting request, as a step does before it gives the request blocks."""
        scheduler = self.scheduler
        if hasattr(scheduler, "_get_local_prefix_cache_hit"):
            local = scheduler._get_local_prefix_cache_hit(request)[1]
        else:
            local = scheduler.kv_cache_manager.get_computed_blocks(request)[1]
        scheduler.connector.get_num_new_matched_tokens(request, local - local % scheduler.block_size)
        end_step = getattr(getattr(scheduler.connector, "connector_scheduler", None), "_release_step", None)
        if end_step is not None:  # else its manager stays locked, as within a step
            end_step()

    def schedule(self, budget: int | None, *, newcomers: bool) -> SchedulerOutput:
        """One step with at most this many tokens, and without new requests unless *newcomers*."""
        scheduler, most = self.scheduler, self.scheduler.max_num_scheduled_tokens
        pause = PauseState.PAUSED_ALL if budget == 0 else PauseState.UNPAUSED if newcomers else PauseState.PAUSED_NEW
        scheduler.set_pause_state(pause)
        scheduler.max_num_scheduled_tokens = min(most, budget or most)
        try:
            return scheduler.schedule()
        finally:
            scheduler.set_pause_state(PauseState.UNPAUSED)
            scheduler.max_num_scheduled_tokens = most

    def update(
        self, output: SchedulerOutput, tokens: Mapping[str, Sequence[int]], answers: Sequence[KVConnectorOutput]
    ) -> set[str]:
        """Process the reports of every worker. Returns the requests whose loads every worker has completed."""
        names = list(tokens)
        results = []
        for answer in answers:
            result = ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: at for at, name in enumerate(names)},
                sampled_token_ids=[list(each) for each in tokens.values()],
            )
            result.kv_connector_output = answer
            results.append(result)
        merged = self._aggregator.aggregate(results)
        self.scheduler.update_from_output(output, merged)
        return set(merged.kv_connector_output.finished_recving or ())

    def _transfer(
        self, world: EngineSetup, shape: making.Shape, connector: str, options: Mapping[str, Plain]
    ) -> KVTransferConfig:
        extra, more = dict(options), dict[str, str]()
        if connector == "BlocklifeConnector":
            more = {"kv_connector_module_path": "blocklife.engines.vllm", "kv_load_failure_policy": "recompute"}
        elif connector == "SimpleCPUOffloadConnector":
            # the simple connector has a null block there, too
            extra["cpu_bytes_to_use"] = (world.slots + 1) * shape.page_bytes * world.workers
            extra["lazy_offload"] = world.policies.mode is Mode.LAZY
        else:
            extra["cpu_bytes_to_use"] = world.slots * making.chunk_bytes(shape, world.blocks_per_chunk)
            extra |= {"eviction_policy": world.replacement, "offload_prompt_only": world.policies.prompt_only}
            if world.blocks_per_chunk > 1:
                extra["block_size"] = world.blocks_per_chunk * self.geometry.block_tokens[0]
        return KVTransferConfig(
            kv_connector=connector, kv_role="kv_both", kv_connector_extra_config=extra, engine_id="blocklife", **more
        )
