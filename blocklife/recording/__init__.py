"""Recordings: the transitions of a run, one line each, written while it runs, read back, and checked."""

from blocklife._doors import door

__getattr__, __dir__, __all__ = door(
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
