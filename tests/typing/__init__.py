"""Files that are judged by mypy (`tests/test_typing.py`)."""
