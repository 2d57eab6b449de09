"""KV-cache pages of torch tensors, to and from host memory: on streams of a CUDA device, or between CPU tensors.

`KvCache` says which bytes a block is, `HostMemory` is where they go, and `TorchCopier` moves them. Everything here imports
torch; nothing outside does.
"""

from blocklife.copiers.torch._copier import TorchCopier as TorchCopier
from blocklife.copiers.torch._layout import KvCache as KvCache
from blocklife.copiers.torch._memory import HostMemory as HostMemory
