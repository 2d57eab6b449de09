"""Scenarios against a real vLLM: a driver of its scheduler, for `blocklife scenario run --driver`."""
