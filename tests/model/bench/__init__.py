"""How soon the first token comes, and how many come a second, where a conversation's prefix is computed and where it is found.

`records` says what is asked, what is a row and when it counts; `engine` is the process that one variant runs in; `chart` draws
a report. What stands here needs no vLLM, but for `engine`.
"""
