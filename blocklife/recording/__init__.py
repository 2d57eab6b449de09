"""Recordings: the transitions of a run, one line each, written while it runs, read back, and checked."""

from blocklife.recording.format import VERSION
from blocklife.recording.writing import BusyError, Recorder, open_file

__all__ = ["VERSION", "BusyError", "Recorder", "open_file"]
