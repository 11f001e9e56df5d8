"""Figures of a server or of a site for those who operate it, over HTTP.

``/metrics`` has them as text for Prometheus, ``/`` as a page for people. What may be
shown is listed here, and nothing in the list depends on rows: no times of answers, no
sums, no rows that counted as zero. Needs the standard library only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from skfedcal._version import __version__

# Name of a figure: type, labels, and what it is.
Entry = tuple[Literal["counter", "gauge"], tuple[str, ...], str]
COMMON: dict[str, Entry] = {
    "skfedcal_info": ("gauge", ("version",), "Version of skfedcal; always 1."),
    "skfedcal_start_time_seconds": ("gauge", (), "When this process began."),
}
SERVER: dict[str, Entry] = {
    "skfedcal_sites": ("gauge", (), "Sites that were connected at the start."),
    "skfedcal_exchanges_total": ("counter", ("kind",), "Messages to all sites asked."),
    "skfedcal_replies_total": (
        "counter",
        ("site", "outcome"),
        "Replies: answered, refused, or missing within the timeout.",
    ),
}
SITE: dict[str, Entry] = {
    "skfedcal_site_connected": ("gauge", (), "1 while the site is at a SuperLink."),
    "skfedcal_site_connections_total": ("counter", (), "Connections that were made."),
    "skfedcal_site_requests_total": (
        "counter",
        ("kind", "outcome"),
        "Messages: answered or refused.",
    ),
    "skfedcal_site_eps_budget": ("gauge", (), "Eps that the site may spend."),
    "skfedcal_site_eps_spent": ("gauge", (), "Eps that its ledger has charged."),
    "skfedcal_site_roster_version": ("gauge", (), "Version of the roster in force."),
}
# Kinds of messages; a server can send any word.
KINDS = frozenset(
    {"hello", "check", "answer", "keys", "shares", "masked", "survivors", "unmask"}
)
# Seconds after which a request of a reader must be there.
_READ = 10


class Figures:
    """Counters and gauges of one process.

    entries: Those that may be shown beside the common ones: `SERVER` or `SITE`.
    """

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self.entries = {**COMMON, **entries}
        self._values: dict[str, dict[tuple[str, ...], float]] = {}
        self._lock = threading.Lock()
        self.set("skfedcal_info", 1.0, __version__)
        self.set("skfedcal_start_time_seconds", float(int(time.time())))

    def set(self, name: str, value: float, *labels: str) -> None:
        """Set a gauge."""
        self._check(name, labels)
        with self._lock:
            self._values.setdefault(name, {})[labels] = float(value)

    def add(self, name: str, *labels: str) -> None:
        """Count one more."""
        self._check(name, labels)
        with self._lock:
            values = self._values.setdefault(name, {})
            values[labels] = values.get(labels, 0.0) + 1.0

    def _check(self, name: str, labels: tuple[str, ...]) -> None:
        if name not in self.entries or len(self.entries[name][1]) != len(labels):
            raise KeyError(f"{name} with {len(labels)} labels is not to be shown.")

    def rows(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Name, labels and value of all figures that were set."""
        with self._lock:
            found = {name: dict(values) for name, values in self._values.items()}
        for name, (_, labels, _) in self.entries.items():
            for key, value in sorted(found.get(name, {}).items()):
                yield name, dict(zip(labels, key, strict=True)), value

    def text(self) -> str:
        """All figures in the text format of Prometheus, version 0.0.4."""
        lines, seen = [], set()
        for name, labels, value in self.rows():
            kind, _, what = self.entries[name]
            if name not in seen:
                lines += [f"# HELP {name} {what}", f"# TYPE {name} {kind}"]
                seen.add(name)
            inner = ",".join(f'{key}="{_quoted(v)}"' for key, v in labels.items())
            lines.append(f"{name}{{{inner}}} {value!r}" if inner else f"{name} {value}")
        return "\n".join(lines) + "\n"

    def page(self) -> str:
        """All figures as a page that is loaded again every 10 s."""
        cells = "\n".join(
            f"<tr><td>{escape(self.entries[name][2])}</td>"
            f"<td>{escape(' '.join(labels.values()))}</td>"
            f"<td>{value:.10g}</td></tr>"
            for name, labels, value in self.rows()
        )
        return (
            '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" '
            'content="10"><title>skfedcal</title>\n<h1>skfedcal</h1>\n'
            f"<table>\n{cells}\n</table>\n"
        )

    @contextmanager
    def shown(self, address: str | None) -> Iterator[int | None]:
        """Serve ``/metrics`` and ``/`` as long as the block lasts; gives the port.

        address: ``host:port``, port 0 for any free one; None serves nothing.
        """
        if address is None:
            yield None
            return
        host, colon, port = str(address).rpartition(":")
        if not (colon and host and port.isdecimal() and int(port) < 2**16):
            raise ValueError(
                f"metrics={address!r}: pass 'host:port', such as '127.0.0.1:9464'."
            )
        handler = type("_Handler", (_Handler,), {"figures": self})
        server = ThreadingHTTPServer((host, int(port)), handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def _quoted(value: str) -> str:
    """Value of a label, as the text format writes it."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class _Handler(BaseHTTPRequestHandler):
    """Answers GET of two paths."""

    figures: Figures
    timeout = _READ
    server_version, sys_version = "skfedcal", ""

    def do_GET(self) -> None:
        """Send the figures."""
        kinds = {
            "/metrics": ("text/plain; version=0.0.4", self.figures.text),
            "/": ("text/html", self.figures.page),
        }
        if self.path not in kinds:
            self.send_error(404)
            return
        kind, make = kinds[self.path]
        content = make().encode()
        self.send_response(200)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        """Write nothing: readers come every few seconds."""
