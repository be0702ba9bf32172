"""The window in a browser: a page and a socket on the loopback address, for nobody but this machine."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
import webbrowser
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tether.window.catalogue import catalogue
from tether.window.packing import finite_values, message
from tether.window.session import Session
from tether.window.worker import Workers

__all__ = ["application", "command", "serve"]

PAGE = Path(__file__).parent / "page"
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'"
)
LONGEST = 1_000_000  # bytes of a message from the page
INSTALL = "pip install 'tether[explore]' (in a checkout: pip install -e '.[explore]')"


def command(parser: ArgumentParser) -> Callable[[Namespace], int]:
    """Explore dynamics in the browser: train small networks and watch them move."""
    parser.add_argument("--port", type=int, default=0, help="the port on 127.0.0.1 (a free one)")
    parser.add_argument("--no-browser", action="store_true", help="print the address and open nothing")
    return lambda options: serve(options.port, browser=not options.no_browser)


def allowed(header: str | None, port: int, scheme: str = "") -> bool:
    """Is this the address of the page itself? Another site that points its name or a script here is refused."""
    names = {f"{scheme}{host}:{port}" for host in ("127.0.0.1", "localhost", "[::1]")}
    return header in names


def application(port: int, workers: Workers) -> Any:
    """The application: the page's files, and a socket with a session of its own for each page."""
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Route, WebSocketRoute
    from starlette.websockets import WebSocket, WebSocketDisconnect

    async def file(request: Any) -> Any:
        if not allowed(request.headers.get("host"), port):
            return PlainTextResponse("this page is for 127.0.0.1 alone", status_code=421)
        name = request.path_params.get("name") or "index.html"
        path = PAGE / name
        if name not in {p.name for p in PAGE.iterdir()} or path.suffix not in KINDS:
            return PlainTextResponse("not found", status_code=404)
        security = {"content-security-policy": POLICY, "x-content-type-options": "nosniff", "cache-control": "no-store"}
        return Response(path.read_bytes(), headers={"content-type": KINDS[path.suffix], **security})

    async def talk(page: WebSocket) -> None:
        origin = page.headers.get("origin")
        if not allowed(page.headers.get("host"), port) or not (origin is None or allowed(origin, port, "http://")):
            await page.close(code=4403)
            return
        await page.accept()
        loop = asyncio.get_running_loop()
        outbox: asyncio.Queue[str | bytes | None] = asyncio.Queue()

        def send(header: dict[str, Any], body: bytes | None) -> None:
            text = json.dumps(finite_values(header)) if body is None else message(header, body)
            if not loop.is_closed():
                loop.call_soon_threadsafe(outbox.put_nowait, text)
                if header["type"] == "gone":
                    loop.call_soon_threadsafe(outbox.put_nowait, None)

        async def deliver() -> None:
            while (text := await outbox.get()) is not None:
                await (page.send_bytes(text) if isinstance(text, bytes) else page.send_text(text))
            await page.close()  # the page comes again

        session = Session(send, workers)
        post = asyncio.create_task(deliver())
        try:
            await page.send_text(json.dumps(finite_values(catalogue())))
            while True:
                session.receive(_read(await page.receive_text()))
        except (WebSocketDisconnect, RuntimeError):
            pass
        finally:
            post.cancel()
            await asyncio.to_thread(session.close)

    routes = [Route("/", file), Route("/{name}", file), WebSocketRoute("/socket", talk)]
    return Starlette(routes=routes)


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def serve(port: int = 0, browser: bool = True) -> int:
    """Show the window until Ctrl-C; returns the exit status."""
    try:
        import starlette  # noqa: F401
        import uvicorn
        import websockets  # noqa: F401
    except ImportError as error:
        print(f"tether: the window needs {error.name}: {INSTALL}", file=sys.stderr)
        return 2
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(64)  # from here on a browser waits, however long the rest takes
    except (OSError, OverflowError) as error:
        print(f"tether: port {port} cannot be used ({error}): choose another, or none for a free one", file=sys.stderr)
        return 1
    port = listener.getsockname()[1]
    address = f"http://127.0.0.1:{port}/"
    print(f"tether explore: {address}  (Ctrl-C ends it)", flush=True)
    if browser:
        threading.Thread(target=webbrowser.open, args=[address], daemon=True).start()
    torch.set_num_threads(1)
    workers = Workers()
    config = uvicorn.Config(
        application(port, workers),
        log_level="warning",
        ws="websockets-sansio",
        ws_max_size=LONGEST,
        ws_per_message_deflate=False,  # frames travel within this machine: packing them costs more than it saves
        lifespan="off",
    )
    try:
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        workers.close()
    return 0
