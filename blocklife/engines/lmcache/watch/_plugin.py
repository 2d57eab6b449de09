"""The factory that LMCache's server calls for ``--server-module``: it adds no module, and watches those that there are."""

from __future__ import annotations

from typing import Any

from blocklife.engines.lmcache import _versions as versions
from blocklife.engines.lmcache.watch._watching import watch_server
from blocklife.watch import LOGGER, Watch, asked_for, attached, beside_engine, said_of


def build_server_modules(context: Any) -> list[object]:
    """Watch the server that this context is of, if the environment asks for it (``BLOCKLIFE_WATCH``).

    One log line says what is watched, or why nothing is. No error reaches LMCache.
    """
    with beside_engine():
        options = asked_for(versions.ENGINE, "LMCache", versions.is_watched, ", ".join(versions.WATCHED))
        if options is not None:
            server = context.server_context
            watch = attached(
                server.storage_manager, options, Watch, lambda chosen: watch_server(server, context.modules, chosen)
            )
            LOGGER.warning("%s", said_of(watch.of, options, versions.ENGINE, watch.left_out))
    return []
