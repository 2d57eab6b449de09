"""The reference engine: a small serving engine that replays a workload without a model."""
