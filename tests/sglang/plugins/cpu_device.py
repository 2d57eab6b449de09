"""SGLang's own unit tests on a CPU: copies and streams are the rig's but land at once, and host memory is not pinned."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from sglang.srt import utils
from sglang.srt.utils import common

from tests.sglang import copies, device, kernels


def _plain(make: Any) -> Any:
    """Pinned memory needs a driver; a device that is named outright is not here."""

    def made(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return make(*args, **kwargs)

    return made


for _name in ("empty", "zeros"):
    setattr(torch, _name, _plain(getattr(torch, _name)))
utils.get_device = common.get_device = lambda *_, **__: "cpu"
device.Stream.is_default = property(lambda stream: True)  # type: ignore[assignment,method-assign]
copies.Twins.of = lambda self, tensor: tensor  # type: ignore[method-assign]
_DEVICE = device.Device(Random(0))
copies.Copies(_DEVICE, copies.Witness(), 0, Random(0))
device.current = lambda: _DEVICE
copies.current = device.current  # type: ignore[attr-defined]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Now that the tests have imported what they need."""
    copies.installed()
    kernels.plain_host_memory()
