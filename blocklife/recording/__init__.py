"""Recordings: the transitions of a run, one line each, written while it runs, read back, and checked."""

from typing import TYPE_CHECKING

from blocklife._doors import door

if TYPE_CHECKING:
    from blocklife.recording._checking import CheckVerdict, Illegal, check_file, check_recording
    from blocklife.recording._format import VERSION
    from blocklife.recording._lives import Lives
    from blocklife.recording._perfetto import write_perfetto
    from blocklife.recording._reading import Recording, open_recording
    from blocklife.recording._statistics import RunStatistics, count_file
    from blocklife.recording._writing import BusyError, Recorder, open_file

__all__ = [
    "VERSION",
    "BusyError",
    "CheckVerdict",
    "Illegal",
    "Lives",
    "Recorder",
    "Recording",
    "RunStatistics",
    "check_file",
    "check_recording",
    "count_file",
    "open_file",
    "open_recording",
    "write_perfetto",
]

if not TYPE_CHECKING:  # type checkers see only the imports above
    __getattr__, __dir__ = door(
        __name__,
        {
            "_checking": "CheckVerdict Illegal check_file check_recording",
            "_format": "VERSION",
            "_lives": "Lives",
            "_perfetto": "write_perfetto",
            "_reading": "Recording open_recording",
            "_statistics": "RunStatistics count_file",
            "_writing": "BusyError Recorder open_file",
        },
    )
