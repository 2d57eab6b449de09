"""What a plug-in says of a watch that it has made, or not made, in one line of the log."""

from __future__ import annotations

import multiprocessing
import os

from blocklife.watch._metrics import of_process
from blocklife.watch._options import Options, WatchMode

NOTHING = "blocklife watch: watching nothing, because %s"


def said_of(watched: str, options: Options, engine: str) -> str:
    """One line: what is watched, how, and in which process."""
    process = f"process {multiprocessing.current_process().name}, {os.getpid()}"
    mode, sample = options.mode, options.sample
    how = mode.name.lower() + (f", one block of {sample}" if sample > 1 else "")
    where = f"; {of_process(engine).where}" if mode is WatchMode.COUNT else ""
    return f"blocklife watches {watched} in {process} ({how}){where}"
