"""The watch: follows an engine that blocklife does not drive, and tells its first illegal step.

What is here knows no engine. An engine's part (`blocklife.engines.vllm.watch`, say) hears what its engine does and reports it
to a `Mirror` as facts: blocks handed out and freed, copies, reports, steps. The mirror follows every life, judges each fact by
the rules, and tells a `Watch` what was illegal, with the history of the block.
"""

from typing import TYPE_CHECKING

from blocklife._doors import door

if TYPE_CHECKING:
    from blocklife.watch._mirror import Mirror
    from blocklife.watch._options import Options, WatchMode
    from blocklife.watch._violations import LOGGER, RULES, WatchError, WatchViolation
    from blocklife.watch._watch import Watch

__all__ = ["LOGGER", "RULES", "Mirror", "Options", "Watch", "WatchError", "WatchMode", "WatchViolation"]

if not TYPE_CHECKING:  # type checkers see only the imports above
    __getattr__, __dir__ = door(
        __name__,
        {
            "_mirror": "Mirror",
            "_options": "Options WatchMode",
            "_violations": "LOGGER RULES WatchError WatchViolation",
            "_watch": "Watch",
        },
    )
