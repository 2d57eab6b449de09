"""Drivers of real engines for scenarios: `vllm:VllmDriver`, `sglang:SglangDriver`, `lmcache:LMCacheDriver`."""
