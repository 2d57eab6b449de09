"""What is heard of every offloading connector in the same way: reports of the workers, and requests that are over."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from blocklife.engines.vllm.watch.mirror import Mirror
from blocklife.engines.vllm.watch.pool import CallsThrough

Original: TypeAlias = Callable[..., object]


class ConnectorEar:
    """Listens to the scheduler side of a connector; a subclass knows what its metadata means."""

    def __init__(self, mirror: Mirror, scheduler: object) -> None:
        self._mirror = mirror
        self._scheduler = scheduler
        self.calls = CallsThrough()
        self.calls.add(scheduler, "build_connector_meta", self._build)
        self.calls.add(scheduler, "update_connector_output", self._update)
        self.calls.add(scheduler, "request_finished", self._finished)

    def _build(self, original: Original, *args: object, **kwargs: object) -> object:
        """A step is decided: its jobs are in what goes to the workers."""
        raise NotImplementedError

    def _hear(self, output: object) -> None:
        """Tell the mirror which jobs the workers have reported."""
        raise NotImplementedError

    def _update(self, original: Original, output: object, *args: object, **kwargs: object) -> object:
        self._hear(output)
        try:
            return original(output, *args, **kwargs)
        except Exception:
            self._mirror.catch_up()
            raise

    def _finished(self, original: Original, request: object, *args: object, **kwargs: object) -> object:
        result = original(request, *args, **kwargs)
        if isinstance(name := getattr(request, "request_id", None), str):
            self._mirror.ended(name)
        return result
