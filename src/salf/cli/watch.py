"""`salf watch`: a page on loopback, and the same in the terminal, that follow a folder."""

import json
import signal
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from time import sleep
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from salf.cli.options import option
from salf.cli.terminal import console, say, tell
from salf.common.errors import SalfError
from salf.report.tables import Table

if TYPE_CHECKING:
    from salf.report.watch import Watched

HERE = "127.0.0.1"
HOSTS = (HERE, "localhost", "::1")  # as a browser may call it, also through a tunnel
# Nobody else's page reads or keeps what is served.
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class WatchServer(ThreadingHTTPServer):
    """Serves the page of a watched folder to this machine, and nothing else."""

    daemon_threads = True

    def __init__(self, watched: "Watched", port: int = 0) -> None:
        super().__init__((HERE, port), Handler)
        self.watched, self.lock = watched, Lock()


class Handler(BaseHTTPRequestHandler):
    """Answers with the page, or with what is new since a version of it."""

    server: WatchServer
    timeout = 10

    def do_GET(self) -> None:
        # A page of somebody else's could have its own name lead here.
        if urlsplit(f"//{self.headers.get('Host', '')}").hostname not in HOSTS:
            return self._answer(403, "text/plain", "This server answers to localhost only.")
        path, _, version = self.path.partition("?")
        with self.server.lock:
            watched = self.server.watched
            watched.look()
            now, page, (words, mood) = watched.version, watched.page, watched.status()
        if path == "/":
            return self._answer(200, "text/html", page.html(now or "new"))
        html = "" if version == now else page.main()
        found = {"version": now, "status": words, "mood": mood, "html": html}
        return self._answer(200 if path == "/data" else 404, "application/json", json.dumps(found))

    def _answer(self, code: int, kind: str, text: str) -> None:
        self.send_response(code)
        for name, value in {"Content-Type": f"{kind}; charset=utf-8", **HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())

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

        salf watch phones --port 8000    (from elsewhere: ssh -L 8000:127.0.0.1:8000 HOST)
    """
    from salf.report.watch import Watched

    try:
        server = WatchServer(Watched(folder), port)
    except OSError as error:
        raise SalfError(f"port {port}: {error.strerror}. Choose another --port.") from None
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs
    with server, suppress(KeyboardInterrupt):
        Thread(target=server.serve_forever, daemon=True).start()
        tell(f"Following {folder} at http://{HERE}:{server.server_port}/ (Ctrl-C ends)")
        _show(server)


def _show(server: WatchServer) -> None:
    """The board in the terminal; elsewhere a line whenever the state is another."""
    last = ""
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            with server.lock:
                server.watched.look()
                (words, mood), shown = server.watched.status(), board(server.watched)
            if console.is_terminal:
                live.update(shown, refresh=True)
            elif mood != last:
                say(words)
            last = mood
            sleep(1)


def board(watched: "Watched") -> Group:
    """What the page says first, in 80 columns: the state, the sentence and two tables."""
    blocks = [block for section in watched.page.sections for block in section.blocks]
    tables = [block.rich() for block in blocks if isinstance(block, Table)][:2]
    return Group(Text(watched.status()[0]), *map(Text, watched.page.intro), *tables)
