"""Files that are judged by mypy (`tests/project/test_typing.py`)."""
