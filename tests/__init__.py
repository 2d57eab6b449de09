"""Tests of blocklife; a package, so that `python -m tests.bench` finds its suites."""
