"""Sites that stay connected: one process for all messages (``skfedcal site``).

A live site is a node of a SuperLink by itself. It holds rows, policy, roster and ledger
in memory, runs no code that it receives, and answers messages of skfedcal only. Needs
numpy, Flower and `cryptography`. The server's end is `connect`.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from skfedcal._files import as_path
from skfedcal._json import read_file, write_file
from skfedcal.federation.flower import pack, unpack
from skfedcal.federation.flower_node import FleetNode, Parcel, read_certificates
from skfedcal.federation.reading import SiteRows
from skfedcal.federation.roster import Roster
from skfedcal.federation.site import Config, Site, site_from_config, whole_config
from skfedcal.federation.status import KINDS, SITE, Figures

# Seconds between looks for messages: the least, and the most. While a run is under way
# a site looks four times as often as messages come.
_POLL, _IDLE = 0.1, 2.0
# Seconds without a message after which no run is under way, and after which secrets of
# masked rounds are erased.
_QUIET, _FORGET = 60.0, 600.0
# Seconds until a site tries to connect again: at first, and at most.
_AGAIN, _AGAIN_MOST = 0.5, 30.0

# Entries of the state of a site that say which rounds were answered.
_RUNS = tuple(
    f"{kind}_{part}"
    for kind in ("plain", "seen")
    for part in ("runs", "rounds", "before")
)

_log = logging.getLogger("skfedcal.site")

Write = Callable[[str], None]


class LiveSite:
    """A site that is read once from its file, and answers messages until it ends.

    An entry of the file that is missing or wrong is an error. Rows that cannot be read
    are none: their absence must not show from outside.

    path: TOML file of the site, as for ``skfedcal site``.
    write: Gets one line of JSON for each message: time, kind, run, round, method,
        noise, eps charged, eps spent, rows that counted as zero, and the outcome.
    config: Entries of the file.
    n_zeros: Answers in which rows of the site counted as zero. Only the site knows.
    figures: What its operator may watch (``metrics`` in the file); see `status`.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, write: Write | None = None
    ) -> None:
        self.path, self._write = as_path(path), write
        self.n_zeros, self.figures = 0, Figures(SITE)
        self._site, self.config = self._read(None)
        self._runs = self._read_runs()
        self._site.state = dict(self._runs)

    def reload(self) -> None:
        """Read the file of the site again; a wrong one changes nothing.

        Runs under way go on, by the new rows and policy.
        """
        try:
            self._site, self.config = self._read(self._site)
        except Exception:
            _log.exception("%s cannot be read: the old one stays in force", self.path)
        else:
            _log.info("%s was read again", self.path)

    def _read(self, old: Site | None) -> tuple[Site, Config]:
        config = whole_config({"site-config": str(self.path)})
        rows = _load_rows(config)
        site = site_from_config(
            {"site-config": str(self.path)},
            load=rows,
            state=None if old is None else old.state,
        )
        if "roster" in config:
            version = Roster.load(str(config["roster"])).version
            self.figures.set("skfedcal_site_roster_version", version)
        self._show_ledger(site)
        return site, config

    def _show_ledger(self, site: Site) -> None:
        if site.ledger is not None and site.ledger.budget is not None:
            self.figures.set("skfedcal_site_eps_budget", site.ledger.budget[0])
            self.figures.set("skfedcal_site_eps_spent", site.ledger.spent())

    @property
    def name(self) -> str:
        """Name of the site."""
        return str(self._site.name)

    def reply(self, content: Any) -> Any:
        """Records of the reply to the records of a message.

        content (RecordDict or None): What `pack` made at the server; anything else is
            refused.
        """
        token, kind = "", "?"
        message: dict[str, Any] = {}
        words: Mapping[str, Any] = {}
        try:
            message, arrays = unpack(content)
            kind, token = str(message.pop("kind")), str(message.pop("token"))
        except Exception:  # bytes of others fail in many ways
            reply = {"refused": "it cannot read the message"}
            self._site.trail = {}
        else:
            reply, words = self._site.handle(kind, message, arrays)
            try:
                self._save_runs()
            except OSError as error:
                # Nothing leaves that might be asked for again after a restart.
                _log.exception("the runs that were answered cannot be written")
                name = type(error).__name__
                reply, words = {"refused": f"it could not answer {kind!r} ({name})"}, {}
        self._note(kind, message, reply)
        return pack({**reply, "token": token}, words)

    def _read_runs(self) -> dict[str, Any]:
        """Rounds that earlier processes answered, also of runs that cost nothing."""
        path = _beside(self.config, ".runs")
        if not path.exists():
            return {}
        found = read_file(path)
        try:
            return {
                name: bytes.fromhex(value) if name.endswith("before") else list(value)
                for name, value in found.items()
                if name in _RUNS
            }
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path} is damaged: without it this site could answer a run twice. "
                "Put it back, or remove it after the runs of the last day are over."
            ) from error

    def _save_runs(self) -> None:
        """Write down what was answered, before an answer leaves."""
        runs = {n: self._site.state[n] for n in _RUNS if n in self._site.state}
        if runs != self._runs:
            content = {
                n: v.hex() if isinstance(v, bytes) else list(v) for n, v in runs.items()
            }
            write_file(_beside(self.config, ".runs"), content, indent=None)
            self._runs = runs

    def forget_masks(self) -> None:
        """Erase the secrets of masked rounds that were prepared and not asked for."""
        self._site.forget_masks()

    def _note(
        self, kind: str, message: Mapping[str, Any], reply: Mapping[str, Any]
    ) -> None:
        trail = self._site.trail
        zeros = trail.get("zeros", {})
        self.n_zeros += bool(zeros)
        refused = reply.get("refused")
        self.figures.add(
            "skfedcal_site_requests_total",
            kind if kind in KINDS else "other",
            "answered" if refused is None else "refused",
        )
        if "eps" in trail:
            self._show_ledger(self._site)
        if self._write is None:
            return
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "site": self.name,
            "kind": kind[:50],
            "run": _plain(message.get("run")),
            "round": _plain(message.get("round")),
            "method": trail.get("method"),
            "noise": trail.get("noise"),
            "eps": trail.get("eps"),
            "spent": trail.get("spent"),
            "zeros": zeros or None,
            "outcome": "answered" if refused is None else f"refused: {refused}",
        }
        self._write(json.dumps(line, ensure_ascii=False))


def _load_rows(config: Config) -> Callable[[Config], SiteRows]:
    """Rows in memory; where they cannot be read, an error at every request."""
    try:
        rows = SiteRows.load(str(config["data-path"]))
    except Exception as error:
        _log.exception(
            "the rows cannot be read: this site adds zeros to every sum, and the "
            "server does not know; see skfedcal flower doctor --site"
        )
        fault = error

        def fail(config: Config) -> SiteRows:  # noqa: ARG001
            raise fault

        return fail
    return lambda config: rows


def _plain(value: Any) -> Any:
    """Text or number of a message, short enough for a log."""
    return (
        value[:100] if isinstance(value, str) else value if type(value) is int else None
    )


class Node(Protocol):
    """What `serve` needs of a `FleetNode`."""

    def connect(self) -> int: ...

    def receive(self) -> Parcel | None: ...

    def reply(self, parcel: Parcel, content: Any) -> None: ...

    def close(self) -> None: ...


class Stop:
    """Flags that signals set, and a sleep that they end.

    SIGTERM and SIGINT end the site after the message under way, SIGHUP makes it read
    its file again.
    """

    def __init__(self) -> None:
        self.ended, self.reload = False, False
        self._woken = threading.Event()

    def catch_signals(self) -> None:
        """Set the flags by signals from now on; for the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.end())
        if hasattr(signal, "SIGHUP"):
            signal.signal(signal.SIGHUP, lambda *_: self.ask_reload())

    def end(self) -> None:
        """Ask the site to end."""
        self.ended = True
        self._woken.set()

    def ask_reload(self) -> None:
        """Ask the site to read its file again."""
        self.reload = True
        self._woken.set()

    def wait(self, seconds: float) -> None:
        """Sleep, unless something was asked."""
        if self._woken.wait(seconds):
            self._woken.clear()


def serve(site: LiveSite, make_node: Callable[[], Node], stop: Stop) -> None:
    """Answer messages until `stop` is asked for; connect again after any failure.

    make_node: Gives a node that is not connected yet.
    Raises BlockingIOError: If another process serves the site.
    """
    with alone(site.config), site.figures.shown(site.config.get("metrics")):
        _serve(site, make_node, stop)


@contextmanager
def alone(config: Config) -> Iterator[None]:
    """Be the only process of a site, by a lock beside its ledger.

    Two processes would remember different rounds, so that a server could have a round
    answered by each of them, which is paid once.
    """
    path = _beside(config, ".lock")
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            _lock(fd)
        except OSError as error:
            text = "Another process serves this site, end it first: it holds"
            raise BlockingIOError(errno.EAGAIN, text, str(path)) from error
        yield
    finally:
        os.close(fd)


if sys.platform == "win32":
    import msvcrt

    def _lock(fd: int) -> None:
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _serve(site: LiveSite, make_node: Callable[[], Node], stop: Stop) -> None:
    pause = _AGAIN
    while not stop.ended:
        try:
            node = make_node()
            try:
                number = node.connect()
                _log.info("connected as node %d", number)
                pause = _AGAIN
                site.figures.set("skfedcal_site_connected", 1)
                site.figures.add("skfedcal_site_connections_total")
                _serve_connected(site, node, stop)
            finally:
                site.figures.set("skfedcal_site_connected", 0)
                node.close()
        except Exception as error:
            # The network, the SuperLink or its version: none of it depends on rows.
            _log.warning(
                "no connection (%s: %s); next try in %g s",
                type(error).__name__,
                error,
                pause,
            )
            stop.wait(pause)
            pause = min(2 * pause, _AGAIN_MOST)
        if stop.reload:
            stop.reload = False
            site.reload()


def _serve_connected(site: LiveSite, node: Node, stop: Stop) -> None:
    last, gap, asked = time.monotonic() - _QUIET, _IDLE, True
    while not stop.ended:
        if stop.reload:
            stop.reload = False
            address = _address(site.config)
            site.reload()
            if _address(site.config) != address:
                return  # connect anew
        parcel = node.receive()
        now = time.monotonic()
        if parcel is None:
            quiet = now - last > _QUIET
            if asked and now - last > _FORGET:
                site.forget_masks()
                asked = False
            stop.wait(_IDLE if quiet else min(max(gap / 4, _POLL), _IDLE))
            continue
        gap, last, asked = min(now - last, _QUIET), now, True
        node.reply(parcel, site.reply(parcel.content))


def _address(config: Config) -> tuple[Any, ...]:
    names = ("flower", "root-certificates", "insecure", "node-key")
    return tuple(config.get(name) for name in names)


def fleet_node(config: Config) -> FleetNode:
    """Node of a live site, as its file says.

    config: ``flower``, ``host:port`` of the SuperLink; ``root-certificates``, file of
        its authority (``insecure = true`` in place of it is for one machine);
        ``node-key``, private key that the operator registered.
    """
    for name in ("flower", "node-key"):
        if name not in config:
            raise ValueError(f"The site has no {name}: a live site needs it.")
    certificate = config.get("root-certificates")
    ca = read_certificates(certificate, config.get("insecure") is True, "the site")
    key = Path(str(config["node-key"]))
    number = _beside(config, ".node")
    known = 0
    with suppress(OSError, ValueError):
        known = int(number.read_text())
    node = _RememberedNode(str(config["flower"]), key.read_bytes(), ca, known=known)
    node.file = number
    return node


class _RememberedNode(FleetNode):
    """A node whose number is in a file, so that it comes back at once."""

    file: Path

    def connect(self) -> int:
        number = super().connect()
        try:
            self.file.write_text(f"{number}\n")
        except OSError as error:
            _log.warning(
                "%s cannot be written (%s): after a crash this site may have to wait "
                "for a minute",
                self.file,
                error,
            )
        return number


def _beside(config: Config, suffix: str) -> Path:
    """File beside the ledger, which can be written, or else beside the key."""
    return Path(str(config.get("ledger") or config.get("node-key")) + suffix)
