"""What only a GPU can show: copies that race with kernels, copies that run beside each other, memory that is pinned.

Rules: what needs a GPU is marked ``gpu``, and `conftest` is where it is skipped without one. Everything else here, above all
what decides whether bytes are right, runs on CPU tensors, too, so that a GPU judges the copier and not the tests.
"""
