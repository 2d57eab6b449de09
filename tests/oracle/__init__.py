"""The ledger and the offload scheduler as they were before the kernel: a frozen copy to compare with. It goes when it is done.

Made by ``python -m tests.oracle.freeze COMMIT``; nobody edits it. Tables and couplings are its own (`states.py`).
"""
