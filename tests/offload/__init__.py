"""The offload scheduler: what it decides in a step, and the cases from bug threads."""
