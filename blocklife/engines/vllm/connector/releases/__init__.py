"""What differs between the releases of vLLM that the connector runs in: one module a release, each with one adapter.

`_release` has the base of the adapters, and picks the adapter of the release that runs. Where a release keeps what the one
before brought, its adapter extends the earlier one. A module is imported only in its own release and in later ones, because it
may name what earlier releases lack. The rest of the connector never asks for a version.
"""
