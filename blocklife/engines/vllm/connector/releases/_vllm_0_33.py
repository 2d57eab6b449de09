"""vLLM 0.33: it calls the connector when it falls asleep, and prefixes that end inside a block can be stored."""

from __future__ import annotations

from blocklife.engines.vllm.connector.releases._vllm_0_32 import Release32


class Release33(Release32):
    """The adapter."""

    name = "0.33"
    tells_of_sleep = True
    keeps_tails = True


RELEASE = Release33()
