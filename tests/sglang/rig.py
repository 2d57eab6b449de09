"""SGLang's real scheduler and hierarchical cache, and in place of a model a forward pass that only moves bytes and checks them.

What is real: the scheduler with its admission, batches, requests and retraction, the prefix tree, the cache controller, the
host pool, the allocators, and the order in which the engine's loop calls them. What is not: the model (the next token follows
from the text), the device (streams that are late, see `tests.sglang.device`), the process group (see `tests.sglang.ranks`) and
when the threads of the storage work (see `tests.sglang.turns`).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from attrs import define, field

from tests.sglang.copies import Copies, Corruption, Witness
from tests.sglang.device import Device
from tests.sglang.engine import Engine, engine_of, reset_device, reset_host
from tests.sglang.model import Forward, turns_of
from tests.sglang.ranks import Team
from tests.sglang.turns import come_to_rest
from tests.sglang.worlds import WorldSpec
from tests.texts import Chain

__all__ = ["Corruption", "Rank", "Rig", "WorldSpec"]


@define(eq=False)
class Rank:
    """One rank: its engine, its device, its copies and its forward pass."""

    number: int
    device: Device
    copies: Copies
    engine: Engine
    forward: Forward
    queue: list[tuple[Any, list[int], object]] = field(factory=list)
    """Steps whose results the scheduler has not seen."""

    @property
    def scheduler(self) -> Any:
        """SGLang's own."""
        return self.engine.scheduler

    @property
    def tree(self) -> Any:
        """SGLang's own."""
        return self.engine.tree


AHEAD = 4
"""Tokens that a request could still say when it ends by surprise."""

Hook = Callable[["Rig"], None]


class Rig:
    """One engine: add requests, step it, look at what it did. The same spec, seed and calls give the same run.

    *before_step* and *after_step* are called around each step, *on_rank* with each rank before the first.
    """

    def __init__(self, spec: WorldSpec, seed: int = 0, on_rank: Callable[[Rank], None] | None = None) -> None:
        self.spec = spec
        self.seed = seed
        self.witness = Witness()
        self.team = Team(spec.world_size)
        self.texts: dict[str, Chain] = {}
        self.prompts: dict[str, list[int]] = {}
        self.running: set[str] = set()
        """Requests that were added and have not ended."""
        self.finished: dict[str, list[int]] = {}
        """What the engine said, for requests that ended by themselves."""
        self.given_up: dict[str, str] = {}
        """Requests that the engine has aborted by itself, and why it says it has."""
        self.wrong_texts: list[str] = []
        """Requests for which the engine said something else than the model did."""
        self.before_step: list[Hook] = []
        self.after_step: list[Hook] = []
        self._requests: dict[str, Any] = {}
        self._folder = tempfile.mkdtemp(prefix="blocklife-rig-") if spec.storage else ""
        if spec.storage:
            os.environ["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] = self._folder
        self.ranks = [self._rank(number) for number in range(spec.world_size)]
        if on_rank is not None:
            for rank in self.ranks:
                on_rank(rank)

    def _rank(self, number: int) -> Rank:
        device = Device(Random(f"{self.seed}/device/{number}"))
        copies = Copies(device, self.witness, number, Random(f"{self.seed}/copies/{number}"))
        with device.active():
            engine = engine_of(self.spec, self.team, number, copies)
        return Rank(number, device, copies, engine, Forward(engine, copies))

    # What a client does.

    def add(self, prompt: Sequence[int], max_tokens: int, surprise: bool = False) -> str:
        """Send a request to the engine. Returns its id. With *surprise* it ends by its last token, not by its length.

        So the engine cannot know ahead which step is the last, and may have launched the next one already.
        """
        name = f"r{len(self.texts):06}"
        self.texts[name] = Chain(prompt)
        self.prompts[name] = list(prompt)
        self.running.add(name)
        last, stop = len(prompt) + max_tokens - 1, None
        if surprise and self.texts[name].token(last) not in self.texts[name].tokens[len(prompt) : last]:
            stop, max_tokens = self.texts[name].token(last), max_tokens + AHEAD
        self._everywhere(lambda rank: rank.engine.add(name, prompt, max_tokens, stop))
        for request in self.ranks[0].scheduler.waiting_queue:
            self._requests.setdefault(request.rid, request)
        return name

    def abort(self, name: str) -> None:
        """Give a request up; one that runs ends with its next step."""
        self.running.discard(name)
        self._requests.pop(name, None)
        self._everywhere(lambda rank: rank.engine.abort(name))

    def flush(self) -> bool:
        """Forget what is cached, on the device and on the host. Returns whether the engine did: only when it is idle."""
        self._storage_rests()
        done: list[bool] = []
        self._everywhere(lambda rank: done.append(rank.engine.flush()))
        return all(done)

    # What the engine does.

    @property
    def step_number(self) -> int:
        """How many steps there were."""
        return self.witness.step

    @property
    def idle(self) -> bool:
        """Whether no request is left, and no result that the scheduler has not seen."""
        return not self.running and all(self._is_idle(rank) for rank in self.ranks)

    def _is_idle(self, rank: Rank) -> bool:
        scheduler = rank.scheduler
        waits = scheduler.waiting_queue or scheduler.chunked_req is not None or rank.queue or scheduler.last_batch
        return not waits and scheduler.running_batch.is_empty()

    @property
    def left_behind(self) -> int:
        """Operations that no stream has run."""
        return sum(rank.device.out for rank in self.ranks)

    @property
    def moved(self) -> tuple[int, int]:
        """Rows that were copied to the host and to the device, by all ranks."""
        all_ = [rank.copies.moved for rank in self.ranks]
        return sum(each["to host"] for each in all_), sum(each["to device"] for each in all_)

    @property
    def verified(self) -> int:
        """Rows whose bytes were compared, by all ranks."""
        return self.witness.verified

    @property
    def corruptions(self) -> list[Corruption]:
        """What was read with wrong bytes, in the order in which it was seen."""
        return self.witness.corruptions

    def step(self) -> None:
        """One round of the engine's loop, on all ranks; then time passes on the devices."""
        self.witness.step += 1
        for hook in self.before_step:
            hook(self)
        self._storage_rests()
        self._everywhere(self._overlapped if self.spec.overlap else self._in_turn)
        for rank in self.ranks:
            rank.device.drift(self.spec.lag.chance, self.spec.lag.most)
            if len(self.ranks) > 1:  # what one rank knows of another is how far its device must be
                rank.device.reach_marks()
        self._harvest()
        for hook in self.after_step:
            hook(self)

    def drain(self, max_steps: int = 2000) -> int:
        """Step until the engine is idle and no copy is out. Returns the steps; TimeoutError if *max_steps* do not do."""
        for steps in range(max_steps):
            if self.idle and not self.left_behind and not any(rank.engine.busy for rank in self.ranks):
                return steps
            self.step()
            if self.idle:
                for rank in self.ranks:
                    rank.device.land_all()
        raise TimeoutError(f"the engine is not idle after {max_steps} steps ({len(self.running)} requests have not ended)")

    def missing(self) -> str:
        """Forget all that is cached, with the engine idle. Returns what memory is missing then, "" if none is."""
        found: list[str] = []
        self._everywhere(lambda rank: found.append(reset_device(rank.engine)))
        if not any(found):
            self.drain()  # what is written back as it leaves the device goes on to the storage
            found.clear()
            self._everywhere(lambda rank: found.append(reset_host(rank.engine)))
        return "; ".join(f"rank {number}: {each}" for number, each in enumerate(found) if each)

    def close(self) -> None:
        """End what has threads, and remove the files of the storage."""
        if self.spec.storage:
            self._storage_rests()
            self._everywhere(lambda rank: getattr(rank.tree, "shutdown", rank.engine.controller.reset)())
            shutil.rmtree(self._folder, ignore_errors=True)

    def _storage_rests(self) -> None:
        """Storage does all that was asked of it so far, so that it does not depend on the machine what a step sees."""
        if self.spec.storage:
            for rank in self.ranks:
                come_to_rest(rank.engine.controller)

    def _everywhere(self, work: Callable[[Rank], None]) -> None:
        def on(rank: Rank) -> Callable[[], None]:
            def run() -> None:
                with rank.device.active():
                    work(rank)

            return run

        self.team.run([on(rank) for rank in self.ranks])

    def _in_turn(self, rank: Rank) -> None:
        """The plain loop: what was launched is waited for and processed before the next step."""
        engine, scheduler = rank.engine, rank.scheduler
        batch = engine.plan()
        scheduler.cur_batch = batch
        if batch:
            self._launch(rank, batch)
            self._process(rank)
        scheduler.last_batch = batch

    def _overlapped(self, rank: Rank) -> None:
        """The loop with overlap: a step is launched before the result of the one before it is processed."""
        engine, scheduler = rank.engine, rank.scheduler
        batch = engine.plan()
        scheduler.cur_batch = batch
        early = bool(rank.queue) and engine.must_not_overlap(batch)
        if early:
            self._process(rank)
        if batch:
            self._launch(rank, batch)
        if scheduler.last_batch and not early:
            self._process(rank)
        scheduler.last_batch = batch

    def _launch(self, rank: Rank, batch: Any) -> None:
        scheduler, stream = rank.scheduler, rank.engine.forward_stream
        scheduler.forward_ct += 1
        batch.forward_iter = scheduler.forward_ct
        stream.wait_stream(rank.device.default)
        turns = turns_of(rank.engine, batch, self.texts)
        done = rank.forward.launch(batch, turns)
        said = [turn.text.token(turn.stop) for turn in turns]
        rank.engine.launched(batch)
        rank.queue.append((batch.copy() if self.spec.overlap else batch, said, done))
        scheduler.result_queue.append((batch, None))

    def _process(self, rank: Rank) -> None:
        batch, said, done = rank.queue.pop(0)
        rank.scheduler.result_queue.popleft()
        rank.engine.process(batch, said, done)

    def _harvest(self) -> None:
        """Take note of requests that have ended."""
        for name, why in self.ranks[0].engine.given_up.items():
            if self._requests.pop(name, None) is not None:  # else its client has gone away
                self.running.discard(name)
                self.given_up[name] = why
        for name, request in list(self._requests.items()):
            if request.finished():
                del self._requests[name]
                self.running.discard(name)
                said = list(request.output_ids)
                self.finished[name] = said
                start = len(self.prompts[name])
                if said != [self.texts[name].token(start + at) for at in range(len(said))]:
                    self.wrong_texts.append(name)
            elif request.to_finish is not None and request.is_retracted:  # it is in no queue any more
                del self._requests[name]
                self.running.discard(name)
                self.given_up[name] = str(request.to_finish.message)
