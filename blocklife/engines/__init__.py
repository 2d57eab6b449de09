"""Integrations: engines that drive the ledger and the offload scheduler."""
