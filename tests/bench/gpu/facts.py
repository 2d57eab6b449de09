"""What a run ran on."""

from __future__ import annotations

import datetime as dt
import platform
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from blocklife import __version__
from tests.bench.gpu.records import LARGE_PAGE, size

if TYPE_CHECKING:
    from tests.bench.gpu.measuring import Wish

_ASKED = ("driver_version", "pcie.link.gen.max", "pcie.link.width.max")


def facts(wish: Wish, took_s: float) -> dict[str, str]:
    """The device, the versions, the day, and the sizes of this run."""
    cuda = wish.where.type == "cuda"
    driver, generation, width = _driver() if cuda else ("", "", "")
    sizes = wish.sizes
    told = {
        "device": torch.cuda.get_device_name(wish.where) if cuda else "the CPU: for tests of the benchmark only",
        "driver": driver,
        "link": f"PCI Express {generation} x{width}" if generation else "",
        "CUDA": str(torch.version.cuda or ""),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "blocklife": __version__,
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "moved": f"{size(sizes.small_pages)} a repetition and direction, {size(sizes.large_pages)} from pages of "
        f"{size(LARGE_PAGE)} on, in {sizes.layers} layers, {sizes.job_blocks} blocks a job at most and {sizes.jobs} jobs at "
        f"least, scattered over {size(sizes.buffer)} on each end",
        "product": f"{sizes.product} x {sizes.product}, {'bfloat16' if cuda else 'float32'}",
        "took": f"{took_s:.0f} s",
    }
    return {name: value for name, value in told.items() if value}


def _driver() -> tuple[str, str, str]:
    """Its version, and the link's generation and width, as far as somebody says them."""
    asked = ["nvidia-smi", f"--query-gpu={','.join(_ASKED)}", "--format=csv,noheader", f"--id={torch.cuda.current_device()}"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=20).stdout
        version, generation, width = (word.strip() for word in said.splitlines()[0].split(","))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return _driver_of_the_kernel(), "", ""
    numbers = generation.isdigit() and width.isdigit()
    return version, generation if numbers else "", width if numbers else ""


def _driver_of_the_kernel() -> str:
    try:
        return Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").splitlines()[0]
    except (OSError, IndexError):
        return ""
