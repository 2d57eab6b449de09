"""LMCache's multi-process mode as a judge: how a release is fetched, how tests run under it, and those tests.

LMCache is never installed and nothing of it is kept here. `python -m tests.lmcache.fetch` brings the wheel of a release and an
environment for the CPU into a folder that git ignores. `python -m tests.lmcache.run` runs tests there: those of this
folder, and those that all engines share. Elsewhere they are skipped, and say why.
"""
