"""The recordings of a watch: one file for each ledger that follows an engine."""

from __future__ import annotations

import contextlib
import time
from typing import TextIO

from blocklife.errors import MisuseError
from blocklife.recording import BusyError, Recorder, open_file
from blocklife.watch._mirror import Mirror
from blocklife.watch._options import unusable
from blocklife.watch._violations import LOGGER

_FILES_MAX = 64
"""How many file names are tried for a recording."""


class OpenRecording:
    """A recording being written, of one ledger, in a file of its own.

    The file of the first ledger is *path*, that of the next one has ``.2`` appended, and so on; if another engine of this
    process writes to that file, the next number is taken.
    """

    def __init__(self, path: str, number: int, mirror: Mirror) -> None:
        self.path, self._stream = _opened(path, number)
        self._recorder = Recorder(self._stream, time.monotonic_ns, mirror.name_of)
        self._recorder.begin(mirror.ledger)

    def flush(self) -> None:
        """Flush to the file. A write error is reported when the recording is closed."""
        with contextlib.suppress(OSError):
            self._stream.flush()

    def close(self, *, whole: bool) -> None:
        """End the recording. The mark of a complete run is written only if it is complete (*whole*)."""
        try:
            if whole:
                self._recorder.end()
            self._stream.close()
        except OSError as error:
            LOGGER.error("blocklife watch: the recording %s could not be written to its end (%s)", self.path, error)


def _opened(path: str, number: int) -> tuple[str, TextIO]:
    """Open the file of a recording. Raises `MisuseError`, with path and remedy, if it cannot be opened."""
    why = ""
    for at in range(number, number + _FILES_MAX):
        name = f"{path}.{at + 1}" if at else path
        why = unusable(name)
        try:
            if not why:
                stream = open_file(name)
                if at > number:
                    LOGGER.warning("blocklife watch: the recording goes to %s, since another one is written to %s", name, path)
                return name, stream
        except BusyError:
            why = f"{_FILES_MAX} recordings are being written there (name another file)"
            continue
        except OSError as error:
            why = f"it cannot be written: {error.strerror or error} (name a file that can be)"
        except ValueError as error:
            why = f"it cannot be written: {error} (name a file that can be)"
        break
    raise MisuseError(f"record (BLOCKLIFE_WATCH_RECORD)={path}: {why}")
