"""What runs here is the release that was asked for, on the CPU platform."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

import vllm
from vllm.platforms import current_platform


def test_release_is_the_one_asked_for_and_runs_on_the_cpu() -> None:
    """The sources, the stand-in metadata and the folder agree on the version; the platform is the CPU."""
    folder = Path(vllm.__file__).parents[1]

    assert vllm.__version__ == folder.name
    assert importlib.metadata.version("vllm") == f"{folder.name}+cpu"
    assert os.environ["PYTHONPATH"].startswith(str(folder))
    assert current_platform.is_cpu()
