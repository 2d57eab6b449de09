"""The kernel: what the tables say, run over columns of numbers.

Data flows one way: `_tables.py` reads `states.py` and makes the rules (`_rules.py`); `_columns.py` has what is known of each
block, slot, content, job and request, one number a column; `_moves.py` asks the rules and writes the columns, and
`_couplings.py` what follows from that; `_verbs.py` puts the steps of a verb together, `_drafts.py` those of a job that is made,
and `_plans.py` those of an engine step. `_progress.py` counts the tokens of requests for the offload scheduler.

The kernel knows no texts, no records and no names of states. The ledger checks the types of arguments before it calls the
kernel, and turns a refusal of the kernel (`_refused.py`) into a sentence.
"""
