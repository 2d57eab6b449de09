"""What the tests of all engines share: where they are fetched to and run from, random traffic, planted bugs, and the tools.

`tests.vllm`, `tests.sglang` and `tests.model` have what is one engine's own.
"""
