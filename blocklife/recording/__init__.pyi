# Written by `make spec`, from the table in __init__.py.

from blocklife.recording._checking import (CheckVerdict as CheckVerdict, Illegal as Illegal, check_file as check_file,
    check_recording as check_recording)
from blocklife.recording._format import (VERSION as VERSION)
from blocklife.recording._lives import (Lives as Lives)
from blocklife.recording._perfetto import (write_perfetto as write_perfetto)
from blocklife.recording._reading import (Recording as Recording, open_recording as open_recording)
from blocklife.recording._statistics import (RunStatistics as RunStatistics, count_file as count_file)
from blocklife.recording._writing import (BusyError as BusyError, Recorder as Recorder, open_file as open_file)

__all__: list[str]
