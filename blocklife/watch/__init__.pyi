# Written by `make spec`, from the table in __init__.py.

from blocklife.watch._below import (TierBook as TierBook)
from blocklife.watch._contents import (OVERDUE as OVERDUE, OVERDUE_AMONG_RANKS as OVERDUE_AMONG_RANKS, ContentBook as
    ContentBook)
from blocklife.watch._holders import (CONNECTOR as CONNECTOR)
from blocklife.watch._listening import (Ears as Ears, HeardCall as HeardCall, Original as Original, TakesBack as
    TakesBack, asked_for as asked_for, beside_engine as beside_engine, said_of as said_of)
from blocklife.watch._mirror import (Mirror as Mirror, Missing as Missing, Positions as Positions)
from blocklife.watch._options import (Options as Options, WatchMode as WatchMode)
from blocklife.watch._pages import (PageBook as PageBook, PageTurn as PageTurn)
from blocklife.watch._records import (CopyPiece as CopyPiece, EndedJobs as EndedJobs, EngineCopy as EngineCopy,
    MirrorSizes as MirrorSizes)
from blocklife.watch._states import (KeptState as KeptState, StateBook as StateBook, StateTurn as StateTurn)
from blocklife.watch._texts import (HeldContent as HeldContent, KeyedContents as KeyedContents, Text as Text)
from blocklife.watch._uses import (TierJob as TierJob, UsedSlots as UsedSlots)
from blocklife.watch._violations import (LOGGER as LOGGER, RULES as RULES, WatchError as WatchError, WatchViolation as
    WatchViolation)
from blocklife.watch._watch import (PartWatch as PartWatch, Watch as Watch, attached as attached, attached_to as
    attached_to, detach as detach)

__all__: list[str]
