"""`salf watch`: a page on loopback, and the same in the terminal, that follow a folder."""

import json
import signal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from time import sleep
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from salf.cli.options import option
from salf.cli.terminal import console, say, tell
from salf.common import registry
from salf.common.errors import SalfError
from salf.report.tables import Table

if TYPE_CHECKING:
    from salf.report.watch import Watched

HERE = "127.0.0.1"
HOSTS = (HERE, "localhost", "::1")  # as a browser may call it, also through a tunnel


class Server(ThreadingHTTPServer):
    """Serves the page of a watched folder, and nothing else."""

    daemon_threads = True

    def __init__(self, watched: "Watched", port: int = 0) -> None:
        super().__init__((HERE, port), Handler)
        self.watched, self.lock = watched, Lock()

    @property
    def address(self) -> str:
        return f"http://{HERE}:{self.server_address[1]}/"


class Handler(BaseHTTPRequestHandler):
    """Answers with the page, or with what is new since a version of it."""

    server: Server
    timeout = 10

    def do_GET(self) -> None:
        # The name under which a page of somebody else's might reach this server is not ours.
        if urlsplit(f"//{self.headers.get('Host', '')}").hostname not in HOSTS:
            return self._answer(403, "text/plain", "This server answers to localhost only.")
        path, _, version = self.path.partition("?")
        with self.server.lock:
            watched = self.server.watched
            watched.look()
            if path == "/":
                return self._answer(200, "text/html", watched.page.html(watched.version or "new"))
            if path != "/data":
                return self._answer(404, "text/plain", "There is nothing here but the page.")
            words, mood = watched.status()
            html = "" if version == watched.version else watched.page.main()
        found = {"version": watched.version, "html": html, "status": words, "mood": mood}
        return self._answer(200, "application/json", json.dumps(found))

    def _answer(self, code: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(code)
        for name, value in (
            ("Content-Type", f"{kind}; charset=utf-8"),
            ("Content-Length", f"{len(body)}"),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing of every request."""


def watch(
    folder: Annotated[Path, typer.Argument(help="Folder of a run, a comparison or a live run.")],
    port: Annotated[
        int, option("--port", help="Port of the page; by default, a free one.", min=0, max=65535)
    ] = 0,
) -> None:
    """Follow a run, a comparison or a live federation in a browser and here, until Ctrl-C.

    The page shows the rounds saved so far, of any process, also in a copy or mount of the folder,
    and how old they are. It is served to this machine only.

    Examples:

        salf watch runs/live

        salf watch phones --port 8000    (a comparison; elsewhere: ssh -L 8000:127.0.0.1:8000 HOST)
    """
    from salf.report.watch import Watched

    registry.imports = False  # a folder may name any code
    watched = Watched(folder)
    try:
        server = Server(watched, port)
    except OSError as error:
        raise SalfError(
            f"port {port} is taken ({error.strerror}): choose another --port."
        ) from None
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits none
    with server:
        Thread(target=server.serve_forever, daemon=True).start()
        tell(f"Following {folder} at {server.address} (Ctrl-C ends)")
        try:
            _follow(server)
        except KeyboardInterrupt:
            pass
        finally:
            server.shutdown()


def _follow(server: Server) -> None:
    """The board in the terminal; elsewhere a line whenever the state is another."""
    last = ""
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            with server.lock:
                server.watched.look()
                words, mood = server.watched.status()
                shown = board(server.watched)
            if console.is_terminal:
                live.update(shown, refresh=True)
            elif mood != last:
                say(words)
            last = mood
            sleep(1)


def board(watched: "Watched") -> RenderableType:
    """What the page says, in 80 columns: the state, the sentence and the first tables."""
    blocks = [block for section in watched.page.sections for block in section.blocks]
    tables = [block.rich() for block in blocks if isinstance(block, Table)][:2]
    return Group(Text(watched.status()[0]), *map(Text, watched.page.intro), *tables)
