"""The reference engine: a small serving engine that replays a workload without a model."""

from typing import TYPE_CHECKING

from blocklife._doors import door

if TYPE_CHECKING:
    from blocklife.engines.toy._below import BelowReport
    from blocklife.engines.toy._engine import EngineCounts, EngineOptions, Ordering, Station, StepInFlight, ToyEngine
    from blocklife.engines.toy._forward import ForwardPass, check_and_write
    from blocklife.engines.toy._memory import Bytes, Ids, Memory, Words, WorkerMemory
    from blocklife.engines.toy._options import BelowOptions, ReplayOptions
    from blocklife.engines.toy._replay import Replay, ReplayReport
    from blocklife.engines.toy._traffic import TierTraffic, Traffic
    from blocklife.engines.toy._workload import WorkloadError, WorkloadRequest, generate_workload, read_workload, write_workload

__all__ = [
    "BelowOptions",
    "BelowReport",
    "Bytes",
    "EngineCounts",
    "EngineOptions",
    "ForwardPass",
    "Ids",
    "Memory",
    "Ordering",
    "Replay",
    "ReplayOptions",
    "ReplayReport",
    "Station",
    "StepInFlight",
    "TierTraffic",
    "ToyEngine",
    "Traffic",
    "Words",
    "WorkerMemory",
    "WorkloadError",
    "WorkloadRequest",
    "check_and_write",
    "generate_workload",
    "read_workload",
    "write_workload",
]

if not TYPE_CHECKING:  # type checkers see only the imports above
    __getattr__, __dir__ = door(
        __name__,
        {
            "_below": "BelowReport",
            "_engine": "EngineCounts EngineOptions Ordering Station StepInFlight ToyEngine",
            "_forward": "ForwardPass check_and_write",
            "_memory": "Bytes Ids Memory Words WorkerMemory",
            "_options": "BelowOptions ReplayOptions",
            "_replay": "Replay ReplayReport",
            "_traffic": "TierTraffic Traffic",
            "_workload": "WorkloadError WorkloadRequest generate_workload read_workload write_workload",
        },
    )
