"""Prometheus metrics, if the client library is installed; otherwise the counts are only kept.

*Theory.* The watch counts in processes that serve no metrics: the engine core and its workers are children of the server. The
client library can share counts between processes, but only if ``PROMETHEUS_MULTIPROC_DIR`` is set before it is first imported.
That is long before a plug-in is loaded; set later, the variable would hide the engine's own metrics. So each process that loads
the plug-in keeps its counts in a small file in a folder that its children inherit, and has a collector that sums the files of
the folder: the server's collector shows what its children count. If the variable is set, the library's own mechanism is used.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import importlib
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from blocklife.errors import one_line
from blocklife.watch._options import setting
from blocklife.watch._violations import RULES

VIOLATIONS = "Illegal steps of the engine that blocklife has seen, by rule. Investigate any rise."
COUNTED = {
    "steps": "Steps of a connector that blocklife has watched. It rises while requests are served.",
    "jobs": "Jobs that the watch has seen end.",
    "blocks_believed": "Blocks whose content arrived unseen by the watch, and is taken to be right. A rise is no fault of the "
    "engine: less of it is checked.",
    "copies_not_followed": "Blocks of copies that the watch could not follow, only wait for. A rise is no fault of the engine: "
    "less of it is checked.",
}
"""The counts other than violations: name and description."""
LEFT_OUT = "Watches that do not follow a kind of memory, or of events, of their engine, by its name."
FOLDER = "BLOCKLIFE_WATCH_COUNTS"
"""Set by the first process for its children: the folder of all counts."""
_MULTIPROC = "PROMETHEUS_MULTIPROC_DIR"
_PLACES = {name: at for at, name in enumerate([*RULES, *COUNTED])}
_SUFFIX, _NAMES = ".counts", ".left_out"


def prefix_of(engine: str) -> str:
    """How the names of the metrics begin: in the style of vLLM and SGLang, by the engine's own name (``vllm``)."""
    return f"{engine}:blocklife_watch_"


class Counter(Protocol):
    """A counter of Prometheus."""

    def inc(self, amount: float = 1) -> None:
        """Count."""

    def labels(self, **labels: str) -> Counter:
        """The one with these labels."""


class Family(Protocol):
    """One metric, as a collector returns it."""

    def add_metric(self, labels: list[str], value: float) -> None:
        """Add one series."""


class CountStore(Protocol):
    """A store of the counts of all watches of one process: one for each rule, and the others, all starting at zero."""

    where: str
    """Where they are shown, in words for the log."""

    def add(self, name: str, amount: int) -> None:
        """Add to one count."""

    def leave_out(self, what: str) -> None:
        """One more watch does not follow this."""


class OfLibrary:
    """The client library's own counters, shared by processes through its folder. Each rule has a series from the start."""

    def __init__(self, engine: str, client: object, registry: object | None = None) -> None:
        self.where = f"its counts go to {_MULTIPROC}={os.environ.get(_MULTIPROC, '')}, for the server to show"
        given = {} if registry is None else {"registry": registry}
        make, prefix = vars(client)["Counter"], prefix_of(engine)
        violations: Counter = make(prefix + "violations", VIOLATIONS, ["rule"], **given)
        self._counters: dict[str, Counter] = {rule: violations.labels(rule=rule) for rule in RULES}
        self._counters |= {name: make(prefix + name, about, **given) for name, about in COUNTED.items()}
        self._left_out: Counter = make(prefix + "not_followed", LEFT_OUT, ["what"], **given)

    def add(self, name: str, amount: int) -> None:
        """As `CountStore` says."""
        self._counters[name].inc(amount)

    def leave_out(self, what: str) -> None:
        """As `CountStore` says."""
        self._left_out.labels(what=what).inc()


class WatchCounts:
    """Counts in a file that other processes read while it is written; without a *folder* only this process knows them."""

    def __init__(self, folder: Path | None, where: str) -> None:
        self.where = where
        self.folder = folder
        self._names: list[str] = []
        """What is left out, where there is no folder."""
        size = 8 * len(_PLACES)
        if folder is None:
            kept: bytearray | mmap.mmap = bytearray(size)
        else:
            # A former process may have had the same id, and its counts stay. A hole would be filled when something is
            # counted: a full disk kills then.
            with (folder / f"{os.getpid()}{_SUFFIX}").open("a+b") as file:
                file.truncate(min(file.tell(), size))
                file.write(bytes(size - file.tell()))
                file.flush()
                kept = mmap.mmap(file.fileno(), size)
        self._values = memoryview(kept).cast("q")

    def add(self, name: str, amount: int) -> None:
        """As `CountStore` says."""
        self._values[_PLACES[name]] += amount

    def leave_out(self, what: str) -> None:
        """As `CountStore` says; a line in a file beside, as nobody knows all names ahead."""
        if self.folder is None:
            self._names.append(what)
        else:
            with contextlib.suppress(OSError), (self.folder / f"{os.getpid()}{_NAMES}").open("a", encoding="utf-8") as file:
                file.write(what.replace("\n", " ") + "\n")

    def left_out(self) -> Mapping[str, int]:
        """How many watches of all processes do not follow each of what is left out."""
        if self.folder is None:
            return collections.Counter(self._names)
        found = collections.Counter[str]()
        for path in sorted(self.folder.glob(f"*{_NAMES}")):
            with contextlib.suppress(OSError):
                found.update(path.read_text(encoding="utf-8").splitlines())
        return found

    def totals(self) -> dict[str, int]:
        """The sums over all processes."""
        if self.folder is None:
            return dict(zip(_PLACES, self._values, strict=True))
        totals = dict.fromkeys(_PLACES, 0)
        for path in self.folder.glob(f"*{_SUFFIX}"):
            try:
                values = memoryview(path.read_bytes())
            except OSError:
                continue
            if len(values) == 8 * len(_PLACES):  # otherwise it was just created
                for name, value in zip(_PLACES, values.cast("q"), strict=True):
                    totals[name] += value
        return totals


class Collector:
    """Shows counts in a registry of the client library."""

    def __init__(self, engine: str, kept: WatchCounts, client: object) -> None:
        self._prefix = prefix_of(engine)
        self._kept = kept
        self._family = vars(client)["CounterMetricFamily"]

    def collect(self) -> Iterator[Family]:
        """All metrics, now."""
        totals = self._kept.totals()
        violations: Family = self._family(self._prefix + "violations", VIOLATIONS, labels=["rule"])
        for rule in RULES:
            violations.add_metric([rule], totals[rule])
        yield violations
        for name, about in COUNTED.items():
            other: Family = self._family(self._prefix + name, about, labels=[])
            other.add_metric([], totals[name])
            yield other
        names: Family = self._family(self._prefix + "not_followed", LEFT_OUT, labels=["what"])
        for what, count in self._kept.left_out().items():
            names.add_metric([what], count)
        yield names


def watch_metrics_table() -> Iterator[str]:
    """The metrics as `specs/metrics.md` prints them, line by line; all are counters."""
    yield from ("| metric | meaning, and labels |", "| --- | --- |")
    yield f"| `violations` | {VIOLATIONS}<br>`rule`: {', '.join(RULES)} |"
    yield from (f"| `{name}` | {about} |" for name, about in COUNTED.items())
    yield f"| `not_followed` | {LEFT_OUT}<br>`what`: the name of what is left out |"


_all: dict[int, CountStore] = {}


def of_process(engine: str) -> CountStore:
    """The counts of this process, in the default registry: one set for all its watches, named after its *engine*."""
    if (process := os.getpid()) not in _all:  # after a fork this is the parent's set, and this process needs its own
        is_fork = bool(_all)
        _all.clear()
        _all[process] = _kept(engine, is_shown=is_fork)
    return _all[process]


def _kept(engine: str, *, is_shown: bool) -> CountStore:
    try:
        client = importlib.import_module("prometheus_client")
    except ImportError:
        client = None
    if client is not None and os.environ.get(_MULTIPROC):
        try:
            return OfLibrary(engine, client)
        except (OSError, ValueError) as error:  # its folder is gone, or somebody has metrics of these names
            return WatchCounts(None, f"its counts are shown nowhere, because {_MULTIPROC} does not take them ({_why(error)})")
    kept = _in_folder()
    if client is not None and not is_shown:
        core = importlib.import_module("prometheus_client.core")
        try:
            vars(core)["REGISTRY"].register(Collector(engine, kept, core))
        except ValueError as error:
            kept.where = f"its counts are shown nowhere, because its metrics cannot be registered ({_why(error)})"
    return kept


def _in_folder() -> WatchCounts:
    """A file in the inherited folder, or in a new one for this process and its children, which is removed at exit.

    The inherited one may be gone: the process that made it has ended, and this one was started later by another child of it.
    """
    here = "its counts are in the metrics of this process"
    if folder := setting(FOLDER, str):
        try:
            return WatchCounts(Path(folder), "its counts are in the metrics of the process that started it")
        except OSError as error:
            here += f" only, because {FOLDER}={one_line(folder)} cannot be written to ({_why(error)})"
    try:
        made = tempfile.mkdtemp(prefix="blocklife-watch-")
        atexit.register(_remove, made, os.getpid())
        kept = WatchCounts(Path(made), here)
    except OSError as error:
        return WatchCounts(None, f"{here}, and not in those of others, because no file can be made for them ({_why(error)})")
    os.environ[FOLDER] = made
    return kept


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or one_line(str(error))


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
