"""What of vLLM's tests is about things that our connector does not offer: each is refused, or is not there, and says so.

Goal: nothing that those tests are about goes wrong in silence. Method: the configuration that brings the thing about, and the
connector that is made with it. Which test of theirs each of these stands for is in `tests/vllm/behaviour/table.toml`.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from attrs import evolve

from blocklife.engines.vllm.connector import _cache as cache
from blocklife.engines.vllm.connector.releases._release import release
from blocklife.errors import MisuseError
from tests.vllm.behaviour.scenes import FULL, ROOMY, STATE
from tests.vllm.connector_rig import ConnectorRig


def test_drafter_beside_states_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 0.33 they are refused; since then they are taken, and `test_connector_guessed_states.py` is about them."""
    rig = ConnectorRig(evolve(ROOMY, groups=(FULL, STATE)))
    drafter = SimpleNamespace(method="mtp", use_eagle=lambda: True)
    object.__setattr__(rig.engine.config, "speculative_config", drafter)

    monkeypatch.setattr(type(release()), "guesses_beside_states", False)
    with pytest.raises(MisuseError, match="speculative decoding with Mamba layers is not offered"):
        cache.check_engine(rig.engine.config, rig.engine.kv_cache_config)
