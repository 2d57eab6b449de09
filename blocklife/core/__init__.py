"""The kernel: what the tables say, run over columns of numbers.

Data flows one way: `_tables.py` reads `states.py` and makes the rules (`_rules.py`); `_columns.py` has what is known of each
block, slot, content, job and request, one number a column; `_moves.py` asks the rules and writes the columns; `_verbs.py` puts
the steps of a verb together, and `_plans.py` those of an engine step. It knows no texts, records or classes of users, and names
no state: whoever calls it has checked types, and turns a refusal (`_refused.py`) into a sentence.
"""
