# Written by `make spec`, from the table in __init__.py.

from blocklife.watch._mirror import (Mirror as Mirror)
from blocklife.watch._options import (Options as Options, WatchMode as WatchMode)
from blocklife.watch._violations import (LOGGER as LOGGER, RULES as RULES, WatchError as WatchError, WatchViolation as
    WatchViolation)
from blocklife.watch._watch import (Watch as Watch)

__all__: list[str]
