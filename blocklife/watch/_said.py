"""What a plug-in says of a watch that it has made, or not made, in one line of the log."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Iterator, Mapping

from blocklife.errors import MisuseError, one_line
from blocklife.watch._metrics import of_process
from blocklife.watch._options import Options, WatchMode
from blocklife.watch._violations import LOGGER

NOTHING = "blocklife watch: watching nothing, because %s"


def said_of(watched: str, options: Options, engine: str, left_out: Mapping[str, str] | None = None) -> str:
    """One line: what is watched, how, and in which process; *left_out*: what of it is not, and why (`Watch.left_out`)."""
    process = f"process {multiprocessing.current_process().name}, {os.getpid()}"
    mode, sample = options.mode, options.sample
    how = mode.name.lower() + (f", one block of {sample}" if sample > 1 else "")
    where = f"; {of_process(engine).where}" if mode is WatchMode.COUNT else ""
    names = [f"{name} ({why})" if why else name for name, why in (left_out or {}).items()]
    not_followed = f"; NOT followed: {', '.join(names)}" if names else ""
    return f"blocklife watches {watched} in {process} ({how}){not_followed}{where}"


@contextlib.contextmanager
def beside_engine() -> Iterator[None]:
    """What a plug-in does for a watch within an engine: no error of it reaches the engine, which goes on unwatched.

    One line says that nothing is watched, and why: wrong settings, nothing that could be watched, or a fault of the watch.
    """
    try:
        yield
    except MisuseError as error:
        LOGGER.warning(NOTHING, one_line(str(error)))
    except Exception as error:
        LOGGER.error(NOTHING, f"of an error of its own: {one_line(repr(error))}", exc_info=error)
