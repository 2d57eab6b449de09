"""The address of a store, as an option or a configuration names it, and opening what it names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import cast

from blocklife._theirs import factory_in, is_dotted, module_named, told
from blocklife.errors import MisuseError
from blocklife.tiers._protocol import ContentStore

_FORMS = "fs:DIR, fs:DIR:BYTES, mooncake:HOST:PORT or package.module:factory"
_MOONCAKE_FORM = "mooncake:HOST:PORT?segment=64M&buffer=0&protocol=tcp&device=&host="
_SIZE = re.compile(r"([0-9]{1,20})([KMGT]?)")
"""No disk and no memory needs more digits; beyond some thousands, Python itself refuses to read them."""
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_MOONCAKE_OPTIONS = frozenset({"segment", "buffer", "protocol", "device", "host"})
_METHODS = ("register", "exists", "put", "get", "close")


def open_store(address: str) -> ContentStore:
    """Open the store that an address names.

    * ``fs:DIR`` or ``fs:DIR:BYTES``: a `FileStore`. BYTES is a whole number, with K, M, G or T for powers of 1024. What follows
      the last colon is BYTES, unless it has a slash: so a folder with a colon in its name is written with a slash at its end.
    * ``mooncake:HOST:PORT``: a `MooncakeStore` at the master there. Options come after a question mark, with ampersands between
      them: ``segment`` and ``buffer`` in bytes, with a unit as above; ``protocol``, ``device`` and ``host``.
    * ``package.module:factory``: what the factory returns, called without arguments; a `ContentStore` of your own.

    Refuses: MisuseError for an address of another form, and for a store that cannot be opened; it says why.
    """
    kind, colon, rest = address.partition(":") if type(address) is str else ("", "", "")
    if not colon or not kind or not rest:
        raise MisuseError(f"store {address!r}: is no address (give {_FORMS})")
    return _KINDS.get(kind, _open_factory)(address, rest)


def parse_size(text: str) -> int | None:
    """A number of bytes, such as ``64M``; None where the text is none, and for one of more than 20 digits."""
    found = _SIZE.fullmatch(text)
    return int(found[1]) * _UNITS[found[2]] if found else None


def split_files(address: str) -> tuple[str, int | None]:
    """The folder and the bound that an address of files names; the bound is None where it names none."""
    folder, colon, last = address.removeprefix("fs:").rpartition(":")
    if not colon or "/" in last:
        return (address.removeprefix("fs:"), None)
    bound = parse_size(last)
    if bound is None or not folder:
        hint = "give fs:DIR:BYTES, such as fs:/data/kv:64G; end a folder that has a colon in its name with a slash"
        raise MisuseError(f"store {address!r}: {last!r} is no number of bytes ({hint})")
    if bound < 1:
        raise MisuseError(f"store {address!r}: a bound of 0 bytes keeps nothing (give at least 1)")
    return (folder, bound)


def _open_files(address: str, _rest: str) -> ContentStore:
    from blocklife.tiers._files import FileStore

    return FileStore(*split_files(address))


def _open_mooncake(address: str, rest: str) -> ContentStore:
    from blocklife.tiers._mooncake import MooncakeStore

    master, question, query = rest.partition("?")
    options: dict[str, str] = {}
    for each in query.split("&") if question else ():
        name, equals, value = each.partition("=")
        if not equals or name in options or name not in _MOONCAKE_OPTIONS:
            raise MisuseError(f"store {address!r}: {each!r} is no option, or is given twice (give some of {_MOONCAKE_FORM})")
        options[name] = value
    sizes = {name: parse_size(options.pop(name, "0")) for name in ("segment", "buffer")}
    for name, size in sizes.items():
        if size is None:
            raise MisuseError(f"store {address!r}: the {name} is no number of bytes (give some of {_MOONCAKE_FORM})")
    return MooncakeStore(
        master,
        segment_bytes=sizes["segment"] or 0,
        buffer_bytes=sizes["buffer"] or 0,
        protocol=options.get("protocol") or "tcp",
        device=options.get("device", ""),
        host=options.get("host", ""),
    )


def _open_factory(address: str, _rest: str) -> ContentStore:
    module, _, name = address.partition(":")
    if not is_dotted(module) or not is_dotted(name):
        raise MisuseError(f"store {address!r}: there is no store {module!r} (give {_FORMS})")
    option = f"store {address!r}"
    make = factory_in(module_named(module, option), name, option)
    try:
        store = make()
        missing = [each for each in _METHODS if not callable(getattr(store, each, None))]
    except MisuseError:
        raise
    except (Exception, SystemExit) as problem:
        raise MisuseError(f"{option}: {name} raised {told(problem)}") from problem
    if missing:
        raise MisuseError(f"{option}: what {name} returns has no {missing[0]} (see blocklife.tiers.ContentStore)")
    return cast("ContentStore", store)


_KINDS: Mapping[str, Callable[[str, str], ContentStore]] = {"fs": _open_files, "mooncake": _open_mooncake}
"""What opens a store of each kind, given the address and what follows the first colon; anything else is a factory."""
