"""Our counts under the names by which vLLM's tests look them up."""

from __future__ import annotations

from blocklife.engines.vllm.connector._metrics import BlocklifeStats


class AdaptedStats(BlocklifeStats):
    """A payload of ours, with the names of the metrics in full."""

    def reduce(self) -> dict[str, int | float]:
        """A summary."""
        return {f"vllm:{name}": value for name, value in super().reduce().items()}
