"""vLLM 0.33: it calls the connector when it falls asleep. Tails can be stored, and states and sessions beside guesses."""

from __future__ import annotations

from blocklife.engines.vllm.connector.releases._vllm_0_32 import Release32


class Release33(Release32):
    """The adapter."""

    name = "0.33"
    rewinds_sessions = True
    tells_of_sleep = True
    keeps_tails = True
    guesses_beside_states = True


RELEASE = Release33()
