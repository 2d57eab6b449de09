"""The watch: follows an engine that blocklife does not drive, and tells its first illegal step.

What is here knows no engine. An engine's part (`blocklife.engines.vllm.watch`, say) hears what its engine does and reports it
to a `Mirror` as facts: blocks handed out and freed, copies, reports, steps. The mirror follows every life, judges each fact by
the rules, and tells a `Watch` what was illegal, with the history of the block.

An engine's part needs from here, and from nowhere else in this room:

* `Watch`, which is attached to an object of the engine (`attached`, `detach`) and makes mirrors; `PartWatch`, its base, for a
  part of an engine without blocks. Its `Ears` hear the engine's calls, each a `HeardCall`; `asked_for`, `beside_engine` and
  `said_of` are for a plug-in.
* `Mirror`, with `EngineCopy` and `CopyPiece` for what it copies, and `CONNECTOR` for who holds what no request is named for.
* `TierBook`, where tiers below the host read and fill its slots.
* `PageBook` or `StateBook`, for an engine whose caches are trees: blocks and slots by content, which is a part of a `Text`.
"""

from blocklife._doors import door

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "_below": "TierBook",
        "_contents": "OVERDUE OVERDUE_AMONG_RANKS ContentBook",
        "_holders": "CONNECTOR",
        "_listening": "Ears HeardCall Original TakesBack asked_for beside_engine said_of",
        "_mirror": "Mirror Missing Positions",
        "_options": "Options WatchMode",
        "_pages": "PageBook PageTurn",
        "_records": "CopyPiece EndedJobs EngineCopy MirrorSizes",
        "_states": "KeptState StateBook StateTurn",
        "_texts": "HeldContent KeyedContents Text",
        "_uses": "TierJob UsedSlots",
        "_violations": "LOGGER RULES WatchError WatchViolation",
        "_watch": "PartWatch Watch attached attached_to detach",
    },
)
