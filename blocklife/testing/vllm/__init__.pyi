# Written by `make spec`, from the table in __init__.py.

from blocklife.testing.vllm._driver import (VllmDriver as VllmDriver)

__all__: list[str]
