"""The watch: follows an engine that blocklife does not drive, and tells its first illegal step.

What is here knows no engine. An engine's part (`blocklife.engines.vllm.watch`, say) hears what its engine does and reports it
to a `Mirror` as facts: blocks handed out and freed, copies, reports, steps. The mirror follows every life, judges each fact by
the rules, and tells a `Watch` what was illegal, with the history of the block.
"""

from blocklife._doors import door

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "_mirror": "Mirror",
        "_options": "Options WatchMode",
        "_violations": "LOGGER RULES WatchError WatchViolation",
        "_watch": "Watch",
    },
)
