"""vLLM 0.30: routed experts are a setting of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blocklife.engines.vllm.connector.releases._release import Release

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class Release30(Release):
    """The adapter."""

    name = "0.30"

    def has_auxiliary_outputs(self, vllm_config: VllmConfig) -> bool:
        """Routed experts, which vLLM keeps by the places of the device."""
        return bool(vllm_config.model_config.enable_return_routed_experts)


RELEASE = Release30()
