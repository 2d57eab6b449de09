"""vLLM's real scheduler, and in place of its workers a model runner that only moves bytes and checks them.

What is real: the scheduler, its block pool and managers, the connector on both sides, and the order in which a model runner
and an engine call them. What is not: the model (the next token follows from the text), the device (an array a worker) and the
copies (they land when the seed says so). The model runner keeps its own block tables, from what the scheduler sends it and
from nothing else, as a worker in another process does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING

from attrs import define, evolve
from vllm import SamplingParams
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from tests.vllm.device import Copies, Memory, Text
from tests.vllm.engine import QUEUES_EMPTY_STEPS, Engine, resets_connector, row_words
from tests.vllm.runner import Batch, Corruption, Forward, Turn, Witness
from tests.vllm.workers import Worker
from tests.vllm.worlds import TEXT_ALONE, Beside, GroupSpec, Lag, WorldSpec

if TYPE_CHECKING:
    from tests.vllm.disk import Disk

__all__ = ["Beside", "Corruption", "GroupSpec", "Lag", "Rig", "Scheduler", "WorldSpec"]


@define(eq=False)
class Rank:
    """One worker: its memory, its copies, its forward pass and its side of the connector."""

    number: int
    memory: Memory
    copies: Copies
    forward: Forward
    worker: Worker | None

    @property
    def verified(self) -> int:
        """Blocks whose bytes were read and compared."""
        return self.forward.verified

    @property
    def corrupt(self) -> int:
        """Blocks that were read with wrong bytes, each counted once a request."""
        return self.forward.corrupt


class Rig:
    """One engine: add requests, step it, look at what it did. The same spec, seed and calls give the same run."""

    def __init__(self, spec: WorldSpec, seed: int = 0, on_scheduler: Callable[[Scheduler], None] | None = None) -> None:
        self.spec = spec
        self.seed = seed
        self.engine = Engine(spec)
        self.scheduler = self.engine.scheduler
        self.step_number = 0
        self.texts: dict[str, Text] = {}
        self.prompts: dict[str, list[int]] = {}
        self.running: set[str] = set()
        """Requests that were added and have not ended."""
        self.finished: dict[str, list[int]] = {}
        """What the engine said, for requests that ended by themselves."""
        self.witness = Witness(lambda: self.step_number)
        self.wrong_texts: list[str] = []
        """Requests for which the engine said something else than the model did."""
        self.refuse: bool | None = None
        """Whether the host tier refuses stores: always, never beyond its capacity, or as the seed says (None)."""
        self.refused = 0
        self._said: dict[str, list[int]] = {}
        self._batch = Batch(spec.groups, self.texts)
        self._queue: list[tuple[SchedulerOutput, ModelRunnerOutput]] = []
        self._late_aborts: list[str] = []
        self._rng = Random(f"{seed}/rig")
        self.ranks = [self._rank(number) for number in range(spec.world_size)]
        self.disk: Disk | None = None
        """The files of a tier below the host, where there is one."""
        if spec.below is not None:
            self.disk = self._disk(spec.below)
        self._aggregator = None
        if spec.connector is not None:
            self._aggregator = KVOutputAggregator.from_connector(self.scheduler.connector, spec.world_size)
            self._check_room()
        if spec.connector == "offloading":
            self._refuse_at_random()
        if on_scheduler is not None:
            on_scheduler(self.scheduler)

    def _disk(self, lag: Lag) -> Disk:
        """The files below the host's slots, which are then in memory that the tier knows, too."""
        from tests.vllm.disk import Disk  # older releases have no such tier

        spec, manager = self.spec, self.scheduler.connector.connector_scheduler.manager
        threads = None if spec.file_threads else lag
        disk = Disk(manager, threads, spec.file_faults, Random(f"{self.seed}/disk"))
        for rank in self.ranks:
            rank.memory.host = disk.host(rank.number, rank.memory.row_words)
        return disk

    def _rank(self, number: int) -> Rank:
        spec = self.spec
        memory = Memory(spec.num_gpu_blocks, spec.host_blocks, row_words(spec.groups), number, number // spec.alike)
        copies = Copies(memory, spec.lag, Random(f"{self.seed}/copies/{number}"))
        # A block may be part of two chunks that begin alike, and is then lawfully stored in both.
        copies.counts_twice = spec.blocks_per_chunk == 1
        worker = None if spec.connector is None else Worker(self.engine, spec, copies, memory)
        forward = Forward(spec.groups, memory, number, self.witness)
        return Rank(number, memory, copies, forward, worker)

    def _check_room(self) -> None:
        room, wanted = self.engine.host_places(self.spec), self.spec.host_blocks
        wanted -= wanted % self.spec.blocks_per_chunk
        if room is not None and room != wanted:
            raise ValueError(f"vLLM's host tier has room for {room} blocks, the world wants {wanted}")

    def _refuse_at_random(self) -> None:
        manager = self.scheduler.connector.connector_scheduler.manager
        accept = manager.prepare_store  # of all tiers

        def prepare_store(*args: object, **kwargs: object) -> object:
            refused = self.refuse
            if refused is None:
                refused = self._rng.random() < self.spec.refusals
            if refused:
                self.refused += 1
                return None
            return accept(*args, **kwargs)

        manager.prepare_store = prepare_store

    # What a client does.

    def add(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        priority: int = 0,
        salt: str | None = None,
        transfer: Mapping[str, object] | None = None,
        beside: Beside = TEXT_ALONE,
    ) -> str:
        """Send a request to the engine. Returns its id. A smaller *priority* goes first, where that is asked for.

        With a *salt*, or what else is *beside* its tokens, its content is that of requests with the same only. *transfer*: its
        parameters for the connector.
        """
        name = f"r{len(self.texts)}"
        beside = beside if salt is None else evolve(beside, salt=salt)
        self.texts[name] = Text(prompt, beside)
        self.prompts[name] = list(prompt)
        self._said[name] = []
        self.running.add(name)
        self.engine.add(name, prompt, max_tokens, priority, beside, transfer)
        return name

    def part(self, name: str, tokens: Sequence[int], max_tokens: int) -> None:
        """Begin a session, or go on with one that waits for more: what it said last is taken back."""
        before = self.scheduler.requests.get(name)
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        sampling.update_from_generation_config({}, 2)
        given = Request(
            name, list(tokens), sampling, None, block_hasher=self.engine.hasher, resumable=True, arrival_time=self.step_number
        )
        self.scheduler.add_request(given)
        self.prompts[name] = list((before or given).prompt_token_ids or ())
        self.texts[name] = Text(self.prompts[name])
        self._said[name] = []
        self.running.add(name)

    def abort(self, name: str, late: bool = False) -> None:
        """Give a request up, between two steps or (*late*) while the next step is with the workers."""
        if late:
            self._late_aborts.append(name)
        else:
            self.running.discard(name)
            self.engine.abort([name])

    def can_reset(self, reset_running: bool, reset_connector: bool) -> bool:
        """Whether this release takes such a reset now: none of them preempts a request whose load is out."""
        loading = any(request.status == RequestStatus.WAITING_FOR_REMOTE_KVS for request in self.scheduler.requests.values())
        return not (reset_running and loading) and (not reset_connector or resets_connector(self.scheduler))

    def reset_prefix_cache(self, reset_running: bool = False, reset_connector: bool = False) -> bool:
        """Forget what is cached. Returns whether the engine did: it does not while a copy holds a block."""
        try:
            return bool(self.scheduler.reset_prefix_cache(reset_running, reset_connector))
        except RuntimeError as error:
            if not str(error).startswith("Failed to reset KV cache"):
                raise
            return False

    # What the engine does.

    @property
    def idle(self) -> bool:
        """Whether the engine would stop stepping."""
        return not self.scheduler.has_requests() and not self._queue

    @property
    def left_behind(self) -> int:
        """Copies that no worker has finished; when the engine is idle nobody will."""
        return sum(rank.copies.out + (0 if rank.worker is None else rank.worker.held_back) for rank in self.ranks)

    @property
    def moved(self) -> tuple[int, int]:
        """Blocks that were stored and loaded, by all workers."""
        copies = [rank.copies for rank in self.ranks]
        return sum(each.stores for each in copies), sum(each.loads for each in copies)

    @property
    def verified(self) -> int:
        """Blocks whose bytes were compared, by all workers."""
        return self.witness.verified

    @property
    def corruptions(self) -> list[Corruption]:
        """Blocks that were read with wrong bytes, by all workers, in the order in which they were seen."""
        return self.witness.corruptions

    @property
    def corrupt(self) -> int:
        """How many of them."""
        return len(self.corruptions)

    def step(self) -> bool:
        """One round of the engine's loop. With asynchronous scheduling one step is with the workers while the next is made.

        Returns whether there was something to do.
        """
        if self.idle:
            return False
        if not self.spec.async_scheduling:
            self._update(*self._launch())
            return True
        if self.scheduler.has_requests():
            launched = self._launch()
            self._queue.append(launched)
            executed = launched[0].total_num_scheduled_tokens > 0
            goes_on = executed or (QUEUES_EMPTY_STEPS and self.scheduler.has_requests())
            if len(self._queue) < 2 and goes_on:
                return True
        self._update(*self._queue.pop(0))
        return True

    def close(self) -> None:
        """Shut down what has threads and shared memory: tiers below the host. What they hold can still be read."""
        if self.disk is not None:
            for rank in self.ranks:
                rank.memory.host = rank.memory.host.copy()
            self.disk.close()

    def drain(self, max_steps: int = 1000) -> int:
        """Step until the engine is idle. Returns the number of steps; raises TimeoutError if *max_steps* do not do."""
        for steps in range(max_steps):
            if not self.step():
                return steps
        raise TimeoutError(f"the engine is not idle after {max_steps} steps ({len(self.running)} requests have not ended)")

    def _launch(self) -> tuple[SchedulerOutput, ModelRunnerOutput]:
        self.step_number += 1
        if self.disk is not None:
            self.disk.turn(self.step_number)
        output = self.scheduler.schedule()
        return output, self._execute(output)

    def _update(self, output: SchedulerOutput, result: ModelRunnerOutput) -> None:
        if self._late_aborts:
            names, self._late_aborts = self._late_aborts, []
            self.running.difference_update(names)
            self.engine.abort(names)
        for client in self.scheduler.update_from_output(output, result).values():
            for each in client.outputs:
                said = self._said[each.request_id]
                said.extend(each.new_token_ids)
                if each.finish_reason is not None and each.request_id in self.running:
                    self.running.discard(each.request_id)
                    self.finished[each.request_id] = said
                    start = len(self.prompts[each.request_id])
                    if said != self.texts[each.request_id].tokens[start : start + len(said)]:
                        self.wrong_texts.append(each.request_id)

    # What the workers do.

    def _execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        turns = self._turns(output)
        outputs = []
        for rank in self.ranks:
            result = self._spoken(turns)
            result.kv_connector_output = self._execute_on(rank, output, turns)
            outputs.append(result)
        return outputs[0] if self._aggregator is None else self._aggregator.aggregate(outputs)

    def _turns(self, output: SchedulerOutput) -> list[Turn]:
        return self._batch.turns(output)

    def _execute_on(self, rank: Rank, output: SchedulerOutput, turns: list[Turn]) -> KVConnectorOutput | None:
        rank.copies.step = self.step_number
        if rank.worker is not None:
            rank.worker.settle(output)
        self._prepare(rank, output)
        forward = (lambda: rank.forward.run(turns)) if turns else None
        if rank.worker is not None:
            return rank.worker.run(output, forward)
        if forward is not None:
            forward()
        return None

    def _prepare(self, rank: Rank, output: SchedulerOutput) -> None:
        """What a runner does to blocks ahead of the forward pass: new ones are zeroed, then some are copied."""
        device = rank.memory.device
        zeroed = getattr(output, "new_block_ids_to_zero", None)
        if zeroed:
            device[zeroed] = 0
        for copy in getattr(output, "kv_cache_block_copies", None) or ():
            device[copy.dst_block_id] = device[copy.src_block_id]

    def _spoken(self, turns: list[Turn]) -> ModelRunnerOutput:
        names = [turn.row.name for turn in turns]
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: at for at, name in enumerate(names)},
            sampled_token_ids=[[turn.row.text.token(turn.stop)] if turn.speaks else [] for turn in turns],
        )
