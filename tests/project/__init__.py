"""The project itself: its layers, pages, examples, types, builds and benchmarks."""
