"""vLLM's own scheduler as a judge: how a release is fetched, how tests run under it, and those tests.

vLLM is never installed and nothing of it is kept here. `python -m tests.vllm.fetch` brings the source package of a release (its
Python files and its own tests) and an environment for the CPU into a folder that git ignores. `python -m tests.vllm.run` runs
tests there: the release's own, or the ``test_*.py`` of this folder. Elsewhere the latter are skipped, and say why.
"""
