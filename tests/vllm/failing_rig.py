"""The rig in which a load within a step fails: whoever runs behind it computes garbage, and vLLM must drop what it has said."""

from __future__ import annotations

from collections.abc import Mapping

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

from blocklife.ledger import Direction
from tests.vllm.connector_rig import ConnectorRig
from tests.vllm.rig import Rank
from tests.vllm.runner import Turn
from tests.vllm.worlds import WorldSpec

JUNK, WRONG = 0xDEAD, 1


class FailingRig(ConnectorRig):
    """A rig in which a request whose load within a step has failed computes garbage from then on, and samples wrong tokens."""

    def __init__(
        self, spec: WorldSpec, seed: int = 0, fails: Mapping[Direction, float] | None = None, *, drafts: bool = False
    ) -> None:
        self.void: set[tuple[int, str]] = set()
        """Such requests, by worker."""
        self.void_once: set[str] = set()
        """All that ever were."""
        super().__init__(spec, seed, fails=fails, recompute=False, drafts=drafts)

    def _execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        back = output.scheduled_cached_reqs.resumed_req_ids
        self.void = {(rank, name) for rank, name in self.void if name not in back}
        result = super()._execute(output)
        lost = {name for _, name in self.void}
        self.void_once |= lost
        result.sampled_token_ids = [
            [WRONG] * len(said) if name in lost else said
            for name, said in zip(result.req_ids, result.sampled_token_ids, strict=True)
        ]
        return result

    def _execute_on(self, rank: Rank, output: SchedulerOutput, turns: list[Turn]) -> KVConnectorOutput | None:
        seen, failed = len(self.corruptions), self.copiers[rank.number].failed
        before = len(failed)
        result = super()._execute_on(rank, output, turns)
        jobs = set(failed[before:])
        self.void |= {(rank.number, doubt.owner.request_id) for doubt in self.side._doubts.open if doubt.job in jobs}
        self.corruptions[seen:] = [each for each in self.corruptions[seen:] if (each.rank, each.request) not in self.void]
        for turn in turns:
            if (rank.number, turn.row.name) in self.void:
                for group, table in zip(self.spec.groups, turn.row.tables, strict=True):
                    for token in range(turn.start, turn.stop):
                        words = rank.memory.device[table[token // group.block_tokens]].reshape(group.block_tokens, -1)
                        words[token % group.block_tokens] = JUNK
        return result
