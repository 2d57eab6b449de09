"""A store in the memory of other processes and machines: a client of Mooncake Store, which is a package of its own.

*Theory.* A *master* knows where values lie. *Segments* are memory that processes lend, and values go directly between a client
and the process whose segment they lie in. This client lends none unless it is told to: then what it keeps does not end with it.

*Rules of this file.* The package answers with numbers and never raises, but some calls end the whole process: any call before
``setup`` or after ``close``, ``close`` while another call runs, a call that runs while the interpreter ends. So every call goes
through `_Session.call`, which makes it only if the client is open in this very process, and `_Session.close` waits for those
that run. At the end of the interpreter `weakref.finalize` closes it. In a child that was forked, calls never return, and the
process crashes when the client is destroyed: there none is made, and the client is kept. Such a child ends well only by
``os._exit``, as those of `multiprocessing` do; to spawn processes is better.

*When the master is down.* The package's own ping says so one to three seconds late, and until then each call takes over four
seconds. So after a call that did not reach the master none is made for as long as that, and later none while the ping fails.
After a restart the package's connections are stale, and each fails one call: such a call is repeated if a master listens.

*What is not here, and why.* Waiting for a master: what fails is a miss, and the package connects again by itself. Proof of a
put: the package says yes also for a key that another process is putting, or was killed over; the next get finds that out.
To make sure would take a call that keeps the value from being evicted for the time of the master's lease.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from attrs import define, evolve

from blocklife.errors import MisuseError
from blocklife.extras import to_install
from blocklife.tiers._areas import RegisteredMemory, check_key
from blocklife.tiers._calls import RunningCalls
from blocklife.tiers._protocol import Page, StoreOutcome

_Answer = TypeVar("_Answer")
_OK, _ABSENT, _WRONG_SIZE = StoreOutcome.OK, StoreOutcome.ABSENT, StoreOutcome.WRONG_SIZE
_FULL, _FAILED = StoreOutcome.FULL, StoreOutcome.FAILED

LEAST_SEGMENT_BYTES = 16 << 20
"""The package takes no smaller segment, but for none at all."""

_PORT = re.compile(r"[0-9]{1,20}")
_CONNECT_S = 2.0
"""How long to wait for a connection to the master when a store is opened."""
_REST_S = 3.0
"""How long no call is made after one that did not reach the master; the package's ping knows of it by then."""
_KNOCK_S = 0.5
"""How long to wait for a connection to a master that a call did not reach."""
_MAX_RETRIES = 3
"""How often a call is repeated whose connection was stale."""
_PEERS = "P2PHANDSHAKE"
"""Clients tell one another where their memory is; no further server is needed."""
_SETTINGS = {"MC_STORE_CLIENT_SETUP_RETRIES": "1", "MC_RPC_TIMEOUT_MS": "2000", "MC_LOG_LEVEL": "ERROR"}
"""Variables of the environment that the package reads while it is set up, where the operator has not set them."""

_NO_ROOM = -200
_INVALID = -600
_NOTHING = frozenset({-704, -703})
"""There is no value; -703: one that somebody is putting, or was killed over."""
_STALE = -900
_UNREACHED = frozenset({_STALE, -901})
_CLOSED, _SKIPPED = -1_000_001, -1_000_002
"""Codes of ours, which the package does not have."""
_REASONS = {
    _NO_ROOM: "no room: every value is in use, or no process lends memory (no segment)",
    _INVALID: "the package refuses the arguments",
    -707: "the lease ran out during the transfer (raise the master's --default_kv_lease_ttl)",
    -800: "the process whose memory has the value does not answer",
    _STALE: "the master does not answer",
    -901: "the master does not answer in time",
}


class _Client(Protocol):
    """What is used of ``mooncake.store.MooncakeDistributedStore``. Every result is a number, negative for an error."""

    def setup(self, host: str, metadata: str, segment: int, buffer: int, protocol: str, device: str, master: str, /) -> int: ...

    def register_buffer(self, address: int, size: int, /) -> int: ...

    def batch_is_exist(self, keys: list[str], /) -> list[int]: ...

    def batch_put_from(self, keys: list[str], addresses: list[int], sizes: list[int], /) -> list[int]: ...

    def batch_get_into(self, keys: list[str], addresses: list[int], sizes: list[int], /) -> list[int]: ...

    def batch_remove(self, keys: list[str], force: bool, /) -> list[int]: ...

    def get_size(self, key: str, /) -> int: ...

    def health_check(self) -> int: ...

    def close(self) -> int: ...


@define
class MooncakeStoreStatistics:
    """What a `MooncakeStore` has seen in this process, in values."""

    full: int = 0
    """Not kept for lack of room."""
    failed: int = 0
    """Asked for by calls that failed."""
    skipped: int = 0
    """Not asked for, because the master did not answer; their outcome is FAILED."""
    last_error: str = ""
    """Why the latest of them was not kept or failed; empty if none did."""


class _Session:
    """A client that was set up, and is called only while that is safe."""

    def __init__(self, client: _Client) -> None:
        self.client = client
        self._process = os.getpid()
        self._calls = RunningCalls()
        _sessions.add(self)

    def call(self, what: Callable[[_Client], _Answer]) -> _Answer | None:
        """Call the client; None if it is closed, or if this process was forked from the one that opened it."""
        if os.getpid() != self._process:  # before the lock, which may have been held when this process was forked
            return None
        with self._calls.one() as is_open:
            return what(self.client) if is_open else None

    def is_open(self) -> bool:
        """Whether a call would be made."""
        return os.getpid() == self._process and not self._calls.closed

    def close(self) -> None:
        """Wait for the calls that run, and close the client. A second time does nothing."""
        if os.getpid() == self._process:
            self._calls.close(self.client.close)


_sessions: weakref.WeakSet[_Session] = weakref.WeakSet()
_not_ours: list[_Client] = []


def _keep_clients() -> None:
    """In a forked child: never destroy the clients of the parent, which would end the process."""
    _not_ours.extend(session.client for session in _sessions)


os.register_at_fork(after_in_child=_keep_clients)


class MooncakeStore:
    """A `ContentStore` over Mooncake Store, by way of the master at *master*, ``HOST:PORT``. Needs the extra ``mooncake``.

    *segment_bytes* of this process's memory are lent to the store; what lies in them is lost when the process ends. With 0,
    none are, and other processes must lend some, or every put is FULL. *buffer_bytes* is the package's own buffer, which its
    TCP does not need. *protocol* is ``tcp`` or what else the package was built for, such as ``rdma`` with the name of a
    *device*. *host* is where other machines reach this process; by default the address from which it reaches the master.

    What the package reads from the environment while it is set up can be set there (``MC_...``). Where they are not, a call of
    the master may take 2 seconds, and only errors are logged, to standard error.

    Refuses: MisuseError where the package is not installed or does not load, for a wrong value, and where there is no master.
    """

    def __init__(
        self,
        master: str,
        *,
        segment_bytes: int = 0,
        buffer_bytes: int = 0,
        protocol: str = "tcp",
        device: str = "",
        host: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if type(segment_bytes) is not int or (segment_bytes and segment_bytes < LEAST_SEGMENT_BYTES):
            least = f"give 0, or at least {LEAST_SEGMENT_BYTES:,}"
            raise MisuseError(f"mooncake:{master}: a segment of {segment_bytes!r} bytes cannot be lent ({least})")
        if type(buffer_bytes) is not int or buffer_bytes < 0:
            raise MisuseError(f"mooncake:{master}: a buffer of {buffer_bytes!r} bytes cannot be (give 0 or more)")
        with _environment(_SETTINGS):  # the package reads some while it is loaded
            make = _load(master)
            self._master = _parse(master)
            reached_from = _reach(*self._master)
            client = make()
            code = client.setup(host or reached_from, _PEERS, segment_bytes, buffer_bytes, protocol, device, master)
        if code:  # such a client must not be called again
            what = f"segment of {segment_bytes:,} bytes, protocol {protocol!r}, device {device!r}, host {host or reached_from}"
            raise MisuseError(f"mooncake:{master}: cannot be opened (code {code}; is it a Mooncake master? {what})")
        self._session = session = _Session(client)
        self._finalize = weakref.finalize(self, session.close)
        self._clock = clock
        self._areas = RegisteredMemory()
        self._registering = threading.Lock()
        self._put_ended = threading.Condition()
        self._being_put: set[str] = set()
        self._lock = threading.Lock()
        self._rests_until = clock()
        self._counts = MooncakeStoreStatistics()

    # --- the protocol --------------------------------------------------------------------------------------------------

    def register(self, address: int, size: int) -> None:
        """As `ContentStore.register`; a closed store does nothing."""
        if not self._session.is_open():
            return
        with self._registering:
            self._areas.add(address, size)
            code = self._session.call(lambda client: client.register_buffer(address, size))
            if code:
                self._areas.unregister(address)
                raise MisuseError(f"store: {size} bytes at {address} cannot be registered with Mooncake (code {code})")

    def exists(self, keys: Sequence[bytes]) -> list[StoreOutcome]:
        """As `ContentStore.exists`. What exists is not evicted for the time of the master's lease, as after a get."""
        for key in keys:
            check_key(key)
        names = _names(keys)
        codes = self._call(len(names), lambda client: client.batch_is_exist(names))
        return [_ABSENT if code == 0 else _OK if code == 1 else self._note(code) for code in codes]

    def put(self, pages: Sequence[Page]) -> list[StoreOutcome]:
        """As `ContentStore.put`: FULL also if no process lends memory.

        OK is no proof. A key that has a value of another size is OK, and keeps that one. A key that another process is putting
        is OK, too, before it can be got; if that process was killed, for as long as the master waits for it (30 s by default).
        """
        names, addresses, sizes = self._split(pages)
        if not self._session.is_open():  # in a forked child, the lock below may never be free
            return [_FAILED] * len(names)
        with self._putting_alone(names):
            codes = self._call(len(names), lambda client: client.batch_put_from(names, addresses, sizes))
        return [_OK if code == 0 else self._note(code) for code in codes]

    def get(self, pages: Sequence[Page]) -> list[StoreOutcome]:
        """As `ContentStore.get`. The values are not evicted for the time of the master's lease."""
        names, addresses, sizes = self._split(pages)
        codes = self._call(len(names), lambda client: client.batch_get_into(names, addresses, sizes))
        return [self._got(name, size, code) for name, size, code in zip(names, sizes, codes, strict=True)]

    def remove(self, keys: Sequence[bytes]) -> list[StoreOutcome]:
        """As `Removing.remove`, also within the lease of a get; who is getting the value meanwhile may get other bytes."""
        for key in keys:
            check_key(key)
        names = _names(keys)
        codes = self._call(len(names), lambda client: client.batch_remove(names, True))
        return [_OK if code == 0 else _ABSENT if code in _NOTHING else self._note(code) for code in codes]

    def close(self) -> None:
        """As `ContentStore.close`. Takes a second or two, and up to 12 s while the master is down.

        A call that runs is not broken off, because the package cannot: it is waited for. Its own time limits end it, after 30 s
        at most where a lender is frozen.
        What lies in a segment of this process is lost. A store that was not closed is closed when the interpreter ends.
        """
        self._session.close()
        self._finalize.detach()

    def statistics(self) -> MooncakeStoreStatistics:
        """Counts since the start."""
        with self._lock:
            return evolve(self._counts)

    # --- calls ---------------------------------------------------------------------------------------------------------

    def _split(self, pages: Sequence[Page]) -> tuple[list[str], list[int], list[int]]:
        """What the client takes: names, addresses and sizes. The package writes wherever it is told to, so all are checked."""
        for page in pages:
            self._areas.view(page)
        return _names([page.key for page in pages]), [page.address for page in pages], [page.size for page in pages]

    @contextlib.contextmanager
    def _putting_alone(self, names: Sequence[str]) -> Iterator[None]:
        """While no other thread puts these keys: the package would tell the second one OK at once, before the first is done."""
        with self._put_ended:
            self._put_ended.wait_for(lambda: self._being_put.isdisjoint(names))
            self._being_put.update(names)
        try:
            yield
        finally:
            with self._put_ended:
                self._being_put.difference_update(names)
                self._put_ended.notify_all()

    def _call(self, count: int, what: Callable[[_Client], list[int]]) -> list[int]:
        """A code for each of some values."""
        codes = self._session.call(lambda client: self._ask(client, count, what)) if count else []
        if codes is None:
            return [_CLOSED] * count
        if not _UNREACHED.isdisjoint(codes):
            with self._lock:
                self._rests_until = self._clock() + _REST_S
        return codes

    def _ask(self, client: _Client, count: int, what: Callable[[_Client], list[int]]) -> list[int]:
        if self._clock() < self._rests_until or client.health_check():
            return [_SKIPPED] * count
        codes = what(client)
        for _ in range(_MAX_RETRIES):
            if _STALE not in codes or not self._knocks():
                break
            codes = what(client)
        return codes

    def _knocks(self) -> bool:
        """Whether a master listens."""
        try:
            socket.create_connection(self._master, timeout=_KNOCK_S).close()
        except OSError:
            return False
        return True

    def _got(self, name: str, size: int, code: int) -> StoreOutcome:
        if code == size:
            return _OK
        if code >= 0:
            return _WRONG_SIZE
        if code in _NOTHING:
            return _ABSENT
        if code == _INVALID:  # also for a page that is too small
            (kept,) = self._call(1, lambda client: [client.get_size(name)])
            if kept >= 0:
                return _WRONG_SIZE if kept != size else self._note(code)
            return _ABSENT if kept in _NOTHING else self._note(kept)
        return self._note(code)

    def _note(self, code: int) -> StoreOutcome:
        """Count a value that was not served, and say what its outcome is."""
        if code == _CLOSED:
            return _FAILED
        with self._lock:
            if code == _SKIPPED:
                self._counts.skipped += 1
                return _FAILED
            self._counts.full += code == _NO_ROOM
            self._counts.failed += code != _NO_ROOM
            self._counts.last_error = f"{_REASONS.get(code, 'an error of the package')} (code {code})"
        return _FULL if code == _NO_ROOM else _FAILED


def _names(keys: Sequence[bytes]) -> list[str]:
    return [key.hex() for key in keys]


INSTALL_LIBRARIES = "on Debian: apt install libibverbs1 librdmacm1 libcurl4 libnuma1"
"""What the package needs of the system, and does not bring."""


def find_mooncake() -> Callable[[], _Client]:
    """What makes a client of Mooncake Store.

    Raises ImportError where the package, or a library of the system that it needs, is not there, and where ``mooncake.store``
    is another package's.
    """
    module = importlib.import_module("mooncake.store")
    found: Callable[[], _Client] | None = getattr(module, "MooncakeDistributedStore", None)
    if found is None:
        raise ImportError(f"{module.__name__} is not that of Mooncake Store")
    return found


def _load(master: str) -> Callable[[], _Client]:
    """What makes a client. Refuses: MisuseError where the package cannot be used; it says why, and what to install."""
    try:
        return find_mooncake()
    except ImportError as problem:
        install = f"{to_install('mooncake')}, and {INSTALL_LIBRARIES}"
        raise MisuseError(f"mooncake:{master}: the package of Mooncake cannot be used: {problem} ({install})") from problem


def _parse(master: str) -> tuple[str, int]:
    """The host and the port of a master."""
    name, colon, digits = master.rpartition(":")
    if not colon or not name or not _PORT.fullmatch(digits) or not 0 < int(digits) < 1 << 16:
        raise MisuseError(f"mooncake:{master}: names no master (give mooncake:HOST:PORT)")
    return name.strip("[]"), int(digits)


def _reach(host: str, port: int) -> str:
    """The address of this machine from which it reaches the master.

    Refuses: MisuseError if nothing listens there, which the package itself would find out in four seconds, or in ninety; and
    for a host that cannot be a name, such as one with two dots in a row.
    """
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_S) as connection:
            return str(connection.getsockname()[0])
    except UnicodeError as problem:  # raised before anything is asked; it is no OSError
        raise MisuseError(
            f"mooncake:{host}:{port}: {host!r} cannot be a name: {problem} (give mooncake:HOST:PORT)"
        ) from problem
    except OSError as problem:
        start = f"start one there: mooncake_master --rpc_port {port}"
        raise MisuseError(f"mooncake:{host}:{port}: there is no master: {problem} ({start})") from problem


_opening = threading.Lock()


@contextlib.contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """With these variables, where they are not set already; for one thread at a time."""
    with _opening:
        added = [name for name in settings if name not in os.environ]
        os.environ.update({name: settings[name] for name in added})
        try:
            yield
        finally:
            for name in added:
                os.environ.pop(name, None)
