"""What the tests of behaviour share: a rig that notes every plan, texts, and what is in the host tier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import evolve

from blocklife.engines.vllm.connector._messages import StepPlan
from blocklife.ledger import Direction, Transfer
from blocklife.offload._lookup import Answer
from tests.vllm.connector_rig import ConnectorRig
from tests.vllm.connector_worlds import prompt
from tests.vllm.worlds import GroupSpec, Lag, WorldSpec

__all__ = ["FULL", "ROOMY", "STATE", "WINDOW", "Scene", "prompt"]

FULL, WINDOW, STATE = GroupSpec("full"), GroupSpec("swa", window=8), GroupSpec("mamba")
ROOMY = WorldSpec((FULL,), num_gpu_blocks=64, host_blocks=96)


class Scene:
    """A rig, and every plan that its connector has made."""

    def __init__(
        self,
        groups: Sequence[GroupSpec] = (FULL,),
        *,
        world: WorldSpec = ROOMY,
        lag: Lag | None = None,
        ahead: bool = False,
        chunk: int = 1,
        extra: Mapping[str, str | int | float | bool] | None = None,
        drafts: bool = False,
    ) -> None:
        world = evolve(world, groups=tuple(groups), lag=lag or world.lag, async_scheduling=ahead, blocks_per_chunk=chunk)
        self.rig = ConnectorRig(evolve(world, extra_config=extra or {}), drafts=drafts)
        self.steps: list[StepPlan] = []
        connector = self.rig.scheduler.connector
        build = connector.build_connector_meta

        def noted(output: object) -> object:
            metadata = build(output)
            self.steps.append(metadata.step)
            return metadata

        connector.build_connector_meta = noted

    def transfers(self, direction: Direction) -> list[Transfer]:
        """All copies that were planned, in order."""
        plans = [plan for step in self.steps for plan in step.plans]
        return [each for plan in plans for each in (plan.loads if direction is Direction.LOAD else plan.stores)]

    @property
    def loads(self) -> list[Transfer]:
        """All loads."""
        return self.transfers(Direction.LOAD)

    @property
    def stores(self) -> list[Transfer]:
        """All stores."""
        return self.transfers(Direction.STORE)

    def sizes(self, direction: Direction) -> tuple[int, ...]:
        """Blocks that were copied, by group."""
        groups = len(self.rig.spec.groups)
        return tuple(sum(each.group_sizes[group] for each in self.transfers(direction)) for group in range(groups))

    def waited_for(self) -> set[int]:
        """Jobs that some step had to wait for."""
        return {job.number for step in self.steps for plan in step.plans for job in plan.flushes}

    def add(self, tokens: Sequence[int], answer: int = 1) -> str:
        """Send a request."""
        return self.rig.add(tokens, answer)

    def ask(self, tokens: Sequence[int], answer: int = 1) -> list[bytes]:
        """One request from its beginning to the end of its last copy. Returns the names of its prompt's blocks."""
        name = self.add(tokens, answer)
        names = list(self.rig.scheduler.requests[name].block_hashes)
        self.drain()
        return names

    def drain(self) -> None:
        """Step until nothing is left, and look whether something is wrong."""
        self.rig.drain()
        self.rig.check_empty()

    def reset_device(self) -> None:
        """Empty the device's prefix cache, and begin to note anew."""
        if not self.rig.reset_prefix_cache():
            raise AssertionError("the prefix cache could not be reset")
        self.steps.clear()

    def forget(self, names: Sequence[bytes], group: int = 0) -> None:
        """Let content go from the host tier, as if it had been evicted."""
        slots = [self.rig.side.tier.slot_of(group, name) for name in names]
        self.rig.side.ledger.evict([slot for slot in slots if slot is not None])

    def has(self, names: Sequence[bytes], group: int = 0) -> list[int]:
        """Which of these can be read from the host tier, by their positions."""
        return [at for at, name in enumerate(names) if self.rig.side.tier.answer(group, name) is Answer.HIT]
