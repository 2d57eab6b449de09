"""KV-cache pages of torch tensors, to and from host memory: on streams of a CUDA device, or between CPU tensors.

`KvCache` describes the bytes of a block, `HostMemory` is the host side, and `TorchCopier` copies between them. Everything here
imports torch; nothing outside does.
"""

from blocklife.copiers.torch._copier import TorchCopier as TorchCopier
from blocklife.copiers.torch._driver import DeviceLostError as DeviceLostError
from blocklife.copiers.torch._layout import KvCache as KvCache
from blocklife.copiers.torch._memory import HostMemory as HostMemory
