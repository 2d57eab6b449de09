"""vLLM 0.33: the connector is told of sleep mode."""

from __future__ import annotations

from blocklife.engines.vllm.connector.releases._vllm_0_32 import Release32


class Release33(Release32):
    """The adapter."""

    name = "0.33"
    tells_of_sleep = True


RELEASE = Release33()
