"""The build hook: a wheel has the core compiled where there is a compiler, beside the same source.

BLOCKLIFE_COMPILE decides: ``auto`` (the default) compiles if it can, and else says in a line why not; ``1`` fails if it
cannot; ``0`` does not try. An editable install runs the source, which is what one edits: it is not compiled, and with ``1`` it
is refused.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parent))
from compile_core import FLAVOURS, BrokenSourceError, CannotCompileError, compile_core, show_progress

VARIABLE = "BLOCKLIFE_COMPILE"
_HINT = f" (this takes minutes; {VARIABLE}=0 installs without)"


@contextmanager
def _listeners() -> Iterator[list[TextIO]]:
    """Where somebody may read progress: standard error, and the terminal, from which pip keeps what a build prints."""
    with ExitStack() as stack:
        streams = [sys.stderr]
        if not sys.stderr.isatty():
            with suppress(OSError):  # there is no terminal, as in a container or a job
                streams.append(stack.enter_context(open("/dev/tty", "w", encoding="utf-8")))
        yield streams


class CompiledCore(BuildHookInterface):  # type: ignore[type-arg]  # its parameter is of use to plugins with settings
    """Puts the extensions into the wheel; `pyproject.toml` calls it for wheels only."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before the wheel is put together; *version* says which kind of it."""
        wanted = os.environ.get(VARIABLE, "auto")
        if wanted not in ("0", "1", "auto"):
            raise ValueError(f"{VARIABLE} is 0, 1 or auto, not {wanted!r}")
        if version == "editable" and wanted == "1":
            raise ValueError(f"{VARIABLE}=1: an editable install runs the source (`make compiled` makes a compiled copy)")
        if version == "editable" or wanted == "0":
            return
        try:
            with _listeners() as streams:
                made = compile_core(FLAVOURS["shipped"], Path(self.root), show_progress(*streams, hint=_HINT))
        except (CannotCompileError, BrokenSourceError, OSError) as problem:
            if wanted == "1":
                raise RuntimeError(f"{VARIABLE}=1, and the core cannot be compiled: {problem}") from problem
            self.app.display_warning(f"the core stays interpreted: {' '.join(str(problem).split())[:300]}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for where, path in made.items():
            build_data["force_include"][str(path)] = f"blocklife/{where}"
