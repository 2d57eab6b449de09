"""How this copy of the package was built: which modules of the core run compiled, by what, and from which source.

Rules of this file:

* It looks at files and imports nothing of the package: `--version` costs nothing, and the build reads the list before there is
  a package to import.
* A module runs compiled where its extension lies beside its source; Python's own order of suffixes decides so.
"""

from __future__ import annotations

import hashlib
import json
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import NamedTuple

KERNEL = (
    "core._rules",
    "core._columns",
    "core._moves",
    "core._couplings",
    "core._verbs",
    "core._drafts",
    "core._plans",
    "core._progress",
    "core._steps",
    "core._visits",
)
"""Straight loops over columns. Their numbers are C numbers where they are compiled: types of columns and arguments stand in the
``.pxd`` beside each, and those of names are inferred from them."""

CORE = (
    *KERNEL,
    "lifecycle._column",
    "ledger._checks",
    "ledger._edge",
    "ledger._journal",
    "ledger._ledger",
    "ledger._plan",
    "ledger._rows",
    "ledger._snapshot",
    "ledger.invariants",
    "ledger.jobs",
    "ledger.views",
    "offload._admissions",
    "offload._asking",
    "offload._below",
    "offload._endings",
    "offload._engine_pool",
    "groups",
    "offload._host",
    "offload._lookup",
    "offload._offers",
    "offload._scheduler",
    "offload._search",
    "offload._snapshot",
    "offload._state",
    "offload._stays",
    "offload._steps",
    "offload._stores",
    "offload._tier_events",
    "offload.replacement",
    "tiers._presence",
    "engines.vllm.connector._known",
    "engines.vllm.connector._lookups",
    "engines.vllm.connector._scheduler",
    "engines.vllm.connector._step",
)
"""The modules that are compiled where there is a compiler. What is compiled is decided here and nowhere else."""

UNCHECKED = frozenset(KERNEL)
"""Those of them that look at no index twice: what reaches them was checked, and no index in them is negative. They are shipped
without bounds checks, and tested with them."""

RECORD = "compiled.json"
"""What a build writes into the package beside the extensions: by what it was compiled, and the digest of each source."""

PACKAGE = Path(__file__).parent.parent


class Module(NamedTuple):
    """One module of the core."""

    name: str
    compiled: bool
    stale: bool
    """Compiled from a source that is not the one beside it."""

    def __str__(self) -> str:
        return "compiled from another source" if self.stale else "compiled" if self.compiled else "interpreted"


class InstalledCore(NamedTuple):
    """The core as it is installed here."""

    modules: tuple[Module, ...]
    by: str
    """What compiled it; empty where nothing is compiled."""

    @property
    def compiled(self) -> tuple[str, ...]:
        """The modules that run compiled."""
        return tuple(each.name for each in self.modules if each.compiled)

    @property
    def stale(self) -> tuple[str, ...]:
        """Those of them whose source is another by now."""
        return tuple(each.name for each in self.modules if each.stale)

    def __str__(self) -> str:
        if not self.compiled:
            return "interpreted"
        part = "" if len(self.compiled) == len(self.modules) else f", {len(self.compiled)} of {len(self.modules)} modules"
        return f"compiled by {self.by}{part}"


def source_of(name: str, package: Path = PACKAGE) -> Path:
    """The source of a module of the core."""
    return package.joinpath(*name.split(".")).with_suffix(".py")


def extension_of(name: str, package: Path = PACKAGE) -> Path | None:
    """The compiled file that Python takes for a module, if there is one."""
    source = source_of(name, package)
    return next((path for suffix in EXTENSION_SUFFIXES if (path := source.with_suffix(suffix)).exists()), None)


def digest(path: Path) -> str:
    """By what a source is told from another."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _recorded(package: Path) -> tuple[str, dict[str, str]]:
    """What compiled the package, and the digest of each source that was compiled."""
    record = package / RECORD
    if not record.exists():
        return "an unknown compiler", {}
    told = json.loads(record.read_text(encoding="utf-8"))
    return str(told["by"]), dict(told["sources"])


def examine(package: Path = PACKAGE) -> InstalledCore:
    """Look at the files of a package."""
    by, sources = _recorded(package)
    modules = []
    for name in CORE:
        compiled = extension_of(name, package) is not None
        modules.append(Module(name, compiled, compiled and sources.get(name) != digest(source_of(name, package))))
    return InstalledCore(tuple(modules), by if any(each.compiled for each in modules) else "")
