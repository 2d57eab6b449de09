"""Embeddings: how an engine drives the ledger and the offload scheduler."""
