"""Calls of the CUDA driver that torch lacks: many copies in one call, the device address of host memory, a device's place.

*Rules of this file.* Addresses and sizes go to the driver as numpy arrays: a batch of a thousand copies makes no thousand
Python objects. Errors are raised with the driver's name for them.

*Why ctypes.* The package ``cuda-bindings`` takes a batch as lists, with an object for each address. That costs a fifth of a
microsecond per copy before the driver begins. And the call has two forms: since CUDA 13 it takes one argument less. So the form
of CUDA 12.8 is looked up by name and version; every driver since then has it.

*Why in parts.* Single batches of some ten thousand copies have been reported to end a process inside the driver; batches of a
few thousand have not.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np

from blocklife.errors import BlocklifeError, MisuseError
from blocklife.ledger.records import Ids

BATCH_MOST = 4_096
"""The most copies in one call of the driver."""

_BATCH_SINCE = 12_080
"""The version of CUDA whose form of the call is looked up, in the driver's numbering."""

_IN_STREAM_ORDER = 1
"""CU_MEMCPY_SRC_ACCESS_ORDER_STREAM: a source is read in stream order, as with any other copy."""

_BESIDE_COMPUTE = 1
"""CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE: a hint to leave the multiprocessors to the engine and use the copy engines."""

_PCI_ADDRESS_BYTES = 16
"""Room for the place of a device on the bus, and for the zero behind it."""

_DEVICE_POINTER = 3
"""CU_POINTER_ATTRIBUTE_DEVICE_POINTER: the address under which kernels reach a byte."""


LOW, MIDDLE, HIGH = range(3)
"""Priorities of streams: the lowest that there is, one between, the highest. For kernels: the driver's copies have none."""

_UNBLOCKED = 1
"""CU_STREAM_NON_BLOCKING: a stream that the default stream neither waits for nor holds up."""

_ENDS_A_CONTEXT = {
    214: "uncorrectable ECC error",
    700: "illegal memory access",
    702: "launch timed out",
    710: "device-side assert",
    714: "hardware stack error",
    715: "illegal instruction",
    716: "misaligned address",
    717: "not supported on global/shared address space",
    718: "invalid program counter",
    719: "unspecified launch failure",
}
"""Errors after which every call of the process returns the same, by CUDA's numbers, with words of its messages."""


class DeviceLostError(BlocklifeError):
    """The device returns only errors, so that nothing can be ordered or proven: its worker must be given up."""


class CudaError(RuntimeError):
    """What the driver has answered; `error_code` is its number, as in torch's own errors."""

    def __init__(self, message: str, error_code: int) -> None:
        super().__init__(message)
        self.error_code = error_code


def is_lost(problem: BaseException) -> bool:
    """Whether an error, of torch or of the driver, is one that ends the context: a second try would return it again."""
    code = getattr(problem, "error_code", None)
    if isinstance(code, int):
        return code in _ENDS_A_CONTEXT
    return any(words in str(problem) for words in _ENDS_A_CONTEXT.values())  # torch before 2.9 has only words


class _Location(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int), ("id", ctypes.c_int))


class _Attributes(ctypes.Structure):
    """CUmemcpyAttributes. The hints are for managed memory, and ignored for any other."""

    _fields_ = (
        ("source_order", ctypes.c_int),
        ("source_hint", _Location),
        ("target_hint", _Location),
        ("flags", ctypes.c_uint),
    )


BatchCall = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,  # targets
    ctypes.c_void_p,  # sources
    ctypes.c_void_p,  # sizes
    ctypes.c_size_t,  # how many copies
    ctypes.c_void_p,  # attributes
    ctypes.c_void_p,  # the first copy of each attributes
    ctypes.c_size_t,  # how many attributes
    ctypes.c_void_p,  # out: the copy that was refused
    ctypes.c_void_p,  # stream
)
"""cuMemcpyBatchAsync of CUDA 12.8."""


class CudaDriver:
    """The calls that movers need. *library* is libcuda, as ctypes loads it."""

    def __init__(self, library: object) -> None:
        self._library = library
        self._batch = self._find_batch()

    @property
    def knows_batches(self) -> bool:
        """Whether one call can take many copies."""
        return self._batch is not None

    def copy_batch(self, target: Ids, source: Ids, nbytes: Ids, *, device: int, stream: int) -> None:
        """Queue these copies on a stream of a device; among themselves they run in any order.

        Refuses: MisuseError for the default stream, which takes no batches. Raises RuntimeError with the driver's error;
        copies before the refused one may have been queued then.
        """
        if self._batch is None:
            raise MisuseError("cuda driver: it has no batched copies (check knows_batches first)")
        if not stream:
            raise MisuseError("cuda driver: the default stream takes no batches (make a stream of your own current)")
        self._enter(device)
        columns = [np.ascontiguousarray(column, np.int64) for column in (target, source, nbytes)]
        attributes = _Attributes(source_order=_IN_STREAM_ORDER, flags=_BESIDE_COMPUTE)
        first, refused = ctypes.c_size_t(0), ctypes.c_size_t(0)
        for begin in range(0, len(nbytes), BATCH_MOST):
            part = [column[begin : begin + BATCH_MOST] for column in columns]
            count = len(part[0])
            error = self._batch(
                *(column.ctypes.data for column in part),
                count,
                ctypes.byref(attributes),
                ctypes.byref(first),
                1,
                ctypes.byref(refused),
                stream,
            )
            if error:
                at = f", at copy {begin + refused.value}" if refused.value < count else ""
                raise CudaError(f"cuMemcpyBatchAsync of {count} copies answered {self._name(error)}{at}", error)

    def address_on_device(self, host: int) -> int:
        """The address under which kernels find a byte of pinned host memory. Raises RuntimeError if they cannot reach it."""
        found = ctypes.c_void_p()
        self._ask("cuPointerGetAttribute", ctypes.byref(found), ctypes.c_int(_DEVICE_POINTER), ctypes.c_uint64(host))
        return found.value or 0

    def make_stream(self, device: int, *, priority: int) -> int:
        """A stream of a device; *priority* is `LOW`, `MIDDLE` or `HIGH`. Raises RuntimeError."""
        self._enter(device)
        least, greatest, made = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
        self._ask("cuCtxGetStreamPriorityRange", ctypes.byref(least), ctypes.byref(greatest))
        level = least.value + (greatest.value - least.value) * priority // HIGH
        self._ask("cuStreamCreateWithPriority", ctypes.byref(made), ctypes.c_uint(_UNBLOCKED), ctypes.c_int(level))
        return made.value or 0

    def drop_stream(self, stream: int) -> None:
        """Give a stream back, once the work on it has run. An error is ignored: nothing can be done about it."""
        self._call("cuStreamDestroy_v2")(ctypes.c_void_p(stream))

    def pci_address(self, device: int) -> str:
        """Where a device is on the bus, as Linux writes it (``0000:17:00.0``). Raises RuntimeError with the driver's error."""
        handle, address = ctypes.c_int(), ctypes.create_string_buffer(_PCI_ADDRESS_BYTES)
        self._ask("cuInit", ctypes.c_uint(0))
        self._ask("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(device))
        self._ask("cuDeviceGetPCIBusId", address, ctypes.c_int(_PCI_ADDRESS_BYTES), handle)
        return address.value.decode().lower()

    def _find_batch(self) -> ctypes._FuncPointer | None:
        """The batched call; None if the driver is too old to have it, or to look it up."""
        found, status = ctypes.c_void_p(), ctypes.c_int()
        try:
            self._ask(
                "cuGetProcAddress_v2",
                ctypes.c_char_p(b"cuMemcpyBatchAsync"),
                ctypes.byref(found),
                ctypes.c_int(_BATCH_SINCE),
                ctypes.c_uint64(0),
                ctypes.byref(status),
            )
        except (AttributeError, RuntimeError):
            return None
        return BatchCall(found.value) if found.value else None

    def _enter(self, device: int) -> None:
        """Give this thread a context if it has none yet: torch does so on its first call, the driver does not."""
        context, handle = ctypes.c_void_p(), ctypes.c_int()
        self._ask("cuCtxGetCurrent", ctypes.byref(context))
        if not context.value:
            self._ask("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(device))
            self._ask("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
            self._ask("cuCtxSetCurrent", context)

    def _ask(self, call: str, *given: object) -> None:
        if error := self._call(call)(*given):
            raise CudaError(f"{call} answered {self._name(error)}", error)

    def _name(self, error: int) -> str:
        name = ctypes.c_char_p()
        self._call("cuGetErrorName")(ctypes.c_int(error), ctypes.byref(name))
        return name.value.decode() if name.value else f"error {error}"

    def _call(self, name: str) -> Callable[..., int]:
        call: Callable[..., int] = getattr(self._library, name)
        return call


def cuda_driver() -> CudaDriver | None:
    """The CUDA driver of this machine; None on a machine without one."""
    try:
        return CudaDriver(ctypes.CDLL("libcuda.so.1"))
    except OSError:
        return None
