"""SGLang's own cache side as a judge: how a release is fetched, how tests run under it, and those tests.

SGLang is never installed and nothing of it is kept here. `python -m tests.sglang.fetch` brings the wheel of a release and an
environment for the CPU into a folder that git ignores. `python -m tests.sglang.run` runs tests there: the ``test_*.py`` of this
folder, or SGLang's own from a checkout of its sources. Elsewhere they are skipped, and say why.
"""
