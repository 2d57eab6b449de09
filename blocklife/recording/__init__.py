"""What a run did to its places, line by line: written while it happens, read back, and checked."""

from blocklife.recording.format import VERSION
from blocklife.recording.writing import BusyError, Recorder, open_file

__all__ = ["VERSION", "BusyError", "Recorder", "open_file"]
