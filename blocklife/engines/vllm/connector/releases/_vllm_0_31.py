"""vLLM 0.31: auxiliary outputs have a configuration of their own, and what hashes cover besides tokens is tagged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vllm.v1.core.kv_cache_utils import to_event_extra_keys

from blocklife.engines.vllm.connector.releases._release import Release

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class Release31(Release):
    """The adapter."""

    name = "0.31"

    def event_extra_keys(self, keys: Sequence[tuple[object, ...] | None] | None) -> list[tuple[object, ...] | None] | None:
        """Without the tags that the hashes have."""
        found: list[tuple[object, ...] | None] | None = to_event_extra_keys(keys)
        return found

    def has_auxiliary_outputs(self, vllm_config: VllmConfig) -> bool:
        """What the engine's configuration says."""
        return bool(vllm_config.aux_output_config.enabled)


RELEASE = Release31()
