"""A connection to a Ray cluster, or to one that is started on this machine for the command."""

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["INSTALL", "connect", "reachable", "session"]

INSTALL = "--ray needs Ray: pip install 'tether[cluster]' (in a checkout: pip install -e '.[cluster]')"
PATIENCE = 5.0  # seconds for an address to answer; Ray itself would try for two minutes


@contextmanager
def session(address: str | None) -> Iterator[str]:
    """Ray at an address, or started here for the length of the block, on the loopback address alone; its address."""
    if address is None:
        # Ray reads it when it is imported: "no cluster" means that all its servers listen on 127.0.0.1.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        os.environ.setdefault("RAY_worker_niceness", "0")  # pieces compete with other programs as they do without Ray
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns of a future version
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{INSTALL}: {error}") from None
    if address not in (None, "auto"):
        reachable(str(address))
    connect(address or "local")
    try:
        yield ray.get_runtime_context().gcs_address
    finally:
        ray.shutdown()


def reachable(address: str) -> None:
    """Raise if nobody answers at an address."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or "/" in host:
        raise ValueError(
            f"--ray {address!r} is no address: give HOST:PORT of the cluster's head, e.g. --ray 10.0.0.1:6379, from a "
            "machine of the cluster; --ray auto finds the cluster of this machine, --ray alone starts one"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(
            f"--ray {address}: nobody answers there ({error}): is it what `ray start --head` printed on the cluster's "
            "head? `ray status` says whether it runs"
        ) from None


def connect(address: str) -> None:
    """Connect this process, once. Signals stay with whoever had them: Ray would take SIGTERM."""
    import ray

    if ray.is_initialized():
        return
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    local = {"include_dashboard": False} if address == "local" else {}
    try:
        ray.init(address, **quiet, **local)
    except (RuntimeError, ConnectionError) as error:
        raise ConnectionError(f"--ray {address}: Ray cannot be reached ({str(error).strip()})") from None
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)
