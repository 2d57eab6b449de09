"""The reference engine: a small serving engine that replays a workload without a model."""

from blocklife._doors import door

__getattr__, __dir__, __all__ = door(
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
