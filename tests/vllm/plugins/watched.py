"""A pytest plugin for a release's own tests: a strict watch over every scheduler, connector and worker that a test makes.

``python -m tests.vllm.run VERSION -p watched TEST ...``. Another mode, a sample or a recording is asked for as of vLLM itself
(``BLOCKLIFE_WATCH``). A line at the end says how much was watched, so that silence is known from deafness.
"""

from __future__ import annotations

from collections import Counter

import pytest

from blocklife.engines.vllm import watch
from blocklife.engines.vllm.watch import _plugin as plugin

_WATCHES = pytest.StashKey[list[watch.Watch]]()
_WORKERS = pytest.StashKey[list[watch.WorkerWatch]]()


def pytest_configure(config: pytest.Config) -> None:
    """Watch whatever is made from now on, parts that are made alone included."""
    config.stash[_WATCHES] = watches = []
    config.stash[_WORKERS] = workers = []

    def tell(made: watch.Watch | watch.WorkerWatch) -> None:
        if isinstance(made, watch.Watch):
            watches.append(made)
        else:
            workers.append(made)

    plugin.watch_all(watch.Options.from_environment() or watch.Options(mode=watch.WatchMode.STRICT), parts=True, tell=tell)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how much was watched."""
    watches, workers = config.stash[_WATCHES], config.stash[_WORKERS]
    mirrors = [mirror for each in watches for mirror in each.mirrors]
    counts, moved = Counter[str](), Counter[str]()
    for mirror in mirrors:
        counts.update(mirror.counts)
        moved.update(mirror.ledger.counts.moved)
    terminalreporter.write_line(
        f"watched: {len(watches)} schedulers, {sum(each.steps for each in watches)} steps, blocks moved {dict(moved)}, "
        f"counted {dict(counts)}; {len(workers)} workers, {sum(each.steps for each in workers)} steps"
    )
