"""A random stream for one block of code in one thread, which leaves torch's global generator alone.

Inside a block of `private_stream(seed)` every random operation of torch draws from a generator of its own. The numbers
are those that ``torch.manual_seed(seed)`` would give. Other threads do not see the seed, and what they draw does not
change the stream.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["private_stream"]

CPU = torch.device("cpu")
_mine = threading.local()  # the stream of this thread, if it has one
_lock = threading.RLock()
_open = 0  # the number of open streams in all threads


class _Stream(TorchDispatchMode):
    """A dispatch mode that passes its own generators to random operations. Torch applies it to this thread only."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not to be wrapped for torch.compile, which would import all of it: a second or two for the first network."""
        return False

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.number = seed
        self.generators: dict[torch.device, torch.Generator] = {}

    def on(self, device: torch.device) -> torch.Generator:
        if device not in self.generators:
            self.generators[device] = torch.Generator(device).manual_seed(self.number)
        return self.generators[device]

    def manual_seed(self, seed: int) -> torch.Generator:
        self.number = seed
        self.generators.clear()
        return self.on(CPU)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        device = kwargs.get("device") or next((x.device for x in args if isinstance(x, torch.Tensor)), CPU)
        if device.type == "meta":
            return func(*args, **kwargs)
        seeded = _with_generator(func)
        if seeded is not None:
            return seeded(*args, **{**kwargs, "generator": self.on(device)})
        return self.lend(func, args, kwargs, device)

    def lend(self, func: Any, args: Any, kwargs: Any, device: torch.device) -> Any:
        """Run an operation that takes no generator: the global one has our state during the call."""
        shared = torch.default_generator if device.type == "cpu" else torch.cuda.default_generators[device.index or 0]
        own = self.on(device)
        with _lock:
            before = shared.get_state()
            try:
                shared.set_state(own.get_state())
                return func(*args, **kwargs)
            finally:
                own.set_state(shared.get_state())
                shared.set_state(before)


@lru_cache
def _with_generator(func: Any) -> Any:
    """The overload of an operation that also takes a generator; None if there is none."""

    def names(op: Any) -> list[tuple[str, str]]:
        return [(a.name, str(a.type)) for a in op._schema.arguments]

    if any(name == "generator" for name, _ in names(func)):
        return func
    packet = func.overloadpacket
    for other in (getattr(packet, name) for name in packet.overloads()):
        without = [pair for pair in names(other) if pair[0] != "generator"]
        if without == names(func) and len(without) < len(names(other)):
            return other
    return None


class _Aware:
    """Replaces torch's default generator, where ``torch.manual_seed`` looks it up, while a stream is open.

    So a block that calls ``torch.manual_seed`` seeds its own stream, and other threads seed the global generator as
    usual. Torch has no public hook for this: its function and dispatch modes do not see ``manual_seed``.
    """

    def __getattr__(self, name: str) -> Any:
        own: _Stream | None = getattr(_mine, "stream", None)
        if own is None:
            return getattr(torch.default_generator, name)
        return own.manual_seed if name == "manual_seed" else getattr(own.on(CPU), name)


_aware: Any = _Aware()


def _count(change: int) -> None:
    global _open
    with _lock:
        _open += change
        torch.random.default_generator = _aware if _open else torch.default_generator  # type: ignore[attr-defined]


@contextmanager
def private_stream(seed: int) -> Iterator[None]:
    """Let random operations of this thread draw from a stream of their own, started by the seed."""
    outer, own = getattr(_mine, "stream", None), _Stream(seed)
    _count(1)
    _mine.stream = own
    try:
        with own:
            yield
    finally:
        _mine.stream = outer
        _count(-1)
