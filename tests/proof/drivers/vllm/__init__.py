"""Scenarios against a real vLLM: ``blocklife scenario run FILE --driver tests.proof.drivers.vllm:VllmDriver``."""

from tests.proof.drivers.vllm.driver import BlocklifeDriver, VllmDriver

__all__ = ["BlocklifeDriver", "VllmDriver"]
