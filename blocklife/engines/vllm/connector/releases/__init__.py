"""What differs between the releases of vLLM that the connector runs in: one module a release, each with one adapter.

`_release` has the adapter for what no release has in its own way, and picks the one of the release that runs. A module of a
release is imported only in that release, for it may name what others lack. The rest of the connector never asks for a version.
"""
