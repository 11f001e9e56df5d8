"""The one adapter to Flower: its grid as a transport, and a site as its client app.

Flower only carries messages. No other module of the library imports it, and of it only
the message API, `ClientApp` and `Grid` are used, which change least.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from skfedcal._json import dump, parse
from skfedcal.exceptions import NotEnoughClientsError
from skfedcal.federation.messages import Letter, Message, Reply, format_faults
from skfedcal.federation.site import Load, site_from_config
from skfedcal.federation.status import SERVER, Figures
from skfedcal.federation.wire import FORMAT

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid

# Record of a client's context, and action of its messages.
_NAME = "skfedcal"
# A message outlives its exchange by so many seconds: clocks of sites may differ.
_GRACE = 60.0
_MAX_TEXT = 300
# Entries of a message that hold its arrays: their names, types and shapes; their bytes.
_ARRAYS, _WORDS = "/arrays", "/words"
_KINDS = ("<f4", "<f8", "<i2", "<i4", "<i8", "<u4", "<u8", "|b1", "|i1", "|u1", "<u2")
# Flower's codes for a message or reply that expired, and for a node without heartbeat:
# which of them comes first after a site is gone, or neither, is a matter of chance.
_GONE = (3, 4, 5)

_log = logging.getLogger("skfedcal.site")


class FlowerTransport:
    """Transport to the nodes of a Flower run.

    A node replies to a hello message with its name: names of sites come from their own
    configuration, as Flower numbers its nodes at random. The constructor waits for the
    sites.

    Parameters
    ----------
    grid : Grid
        What Flower hands to a server app.
    min_nodes : int
        Least number of sites to start with.
    sites : sequence of str, default=None
        Names of the sites that are expected: all of them are waited for, and no others
        take part. None takes all sites that are connected once there are `min_nodes`.
    timeout : float, default=120.0
        Seconds that an exchange may take. A site that has not answered by then is left
        out of the sum.
    wait : float, default=120.0
        Seconds to wait for sites at the start.
    poll : float, default=0.2
        Seconds between polls for replies.
    preflight : bool or 'only', default=True
        Whether every run first asks the sites, in one exchange, if policy and budget
        allow it, before anything is paid. 'only' ends the run there
        (``skfedcal flower check``).

    Raises
    ------
    NotEnoughClientsError
        If fewer than `min_nodes` sites are connected after `wait`; it names the missing
        ones.

    Examples
    --------
    >>> from skfedcal import FedTempCalibrator
    >>> from skfedcal.federation import FlowerTransport, RemoteClients
    >>> def main(grid, context):
    ...     sites = RemoteClients(FlowerTransport(grid, min_nodes=3))
    ...     FedTempCalibrator(classes=[0, 1, 2]).fit(sites).save("cal.json")
    """

    def __init__(
        self,
        grid: Grid,
        *,
        min_nodes: int,
        sites: Sequence[str] | None = None,
        timeout: float = 120.0,
        wait: float = 120.0,
        poll: float = 0.2,
        preflight: bool | Literal["only"] = True,
    ) -> None:
        import_flwr()
        self.grid, self.timeout, self.poll = grid, timeout, poll
        self.preflight: bool | str = preflight
        # What each site said about itself, and what those who operate this may watch.
        self.greetings: dict[str, Message] = {}
        self.figures = Figures(SERVER)
        self._expected = None if sites is None else sorted(sites)
        if sites is not None and len(sites) < min_nodes:
            raise ValueError(
                f"min_nodes={min_nodes}, but `sites` has {len(sites)} names."
            )
        self._nodes: dict[str, int] = {}
        # Nodes that said no, and will not be asked again.
        self._refused: dict[int, str] = {}
        self._connect(min_nodes, wait)
        self._names = sorted(self._nodes)
        self.figures.set("skfedcal_sites", len(self._names))

    def ids(self) -> Sequence[Hashable]:
        """Names of the sites, sorted."""
        return self._names

    def call(
        self, kind: str, letters: Mapping[Hashable, Letter]
    ) -> dict[Hashable, Reply | str]:
        """One exchange with the sites; see `Transport`."""
        if kind in ("answer", "keys"):
            self._find_restarted(letters)
        by_node = {self._nodes[str(name)]: letter for name, letter in letters.items()}
        found = self._exchange(f"train.{_NAME}", kind, by_node, self.timeout)
        names = {node: name for name, node in self._nodes.items()}
        replies: dict[Hashable, Reply | str] = {
            names[node]: reply for node, reply in found.items()
        }
        self.figures.add("skfedcal_exchanges_total", kind)
        for name in map(str, letters):
            reply = replies.get(name, "")
            outcome = "missing"
            if not isinstance(reply, str):
                outcome = "refused" if "refused" in reply[0] else "answered"
            self.figures.add("skfedcal_replies_total", name, outcome)
        return replies

    def _connect(self, min_nodes: int, wait: float) -> None:
        end = time.monotonic() + wait
        wanted = min_nodes if self._expected is None else len(self._expected)
        silent: dict[int, str] = {}
        while len(self._nodes) < wanted:
            new = self._strangers()
            left = end - time.monotonic()
            if new:
                silent = self._greet(new, min(self.timeout, max(left, 0.0)))
            elif left <= 0:
                break
            if len(self._nodes) < wanted:
                if time.monotonic() >= end:
                    break
                time.sleep(self.poll)
        if len(self._nodes) < min_nodes:
            raise NotEnoughClientsError(self._missing(min_nodes, wait, silent))

    def _missing(self, min_nodes: int, wait: float, silent: Mapping[int, str]) -> str:
        text = (
            f"{len(self._nodes)} of at least {min_nodes} sites were connected after "
            f"{wait:g} s: {sorted(self._nodes)}."
        )
        if self._expected is not None:
            text += f" Missing: {sorted(set(self._expected) - set(self._nodes))}."
        nodes = {**silent, **self._refused}
        faults: dict[Hashable, str] = {f"node {n}": nodes[n] for n in nodes}
        return f"{text}{format_faults(faults)} No request was sent."

    def _strangers(self) -> list[int]:
        known = {*self._nodes.values(), *self._refused}
        return [node for node in self.grid.get_node_ids() if node not in known]

    def _find_restarted(self, names: Iterable[Hashable]) -> None:
        """Look for sites that came back as another node."""
        online = set(self.grid.get_node_ids())
        if all(self._nodes[str(name)] in online for name in names):
            return
        new = self._strangers()
        if new:
            self._greet(new, self.timeout, online)

    def _greet(
        self, nodes: Sequence[int], timeout: float, online: Iterable[int] | None = None
    ) -> dict[int, str]:
        """Ask nodes for their names; return those that did not reply."""
        letters: dict[int, Letter] = {node: ({}, {}) for node in nodes}
        found = self._exchange(f"query.{_NAME}", "hello", letters, timeout)
        silent: dict[int, str] = {}
        for node in nodes:
            reply = found.get(node, "did not answer (hello)")
            if isinstance(reply, str):
                silent[node] = reply
                continue
            name, fault = _introduction(reply[0], self._expected)
            if fault:
                self._refused[node] = fault
                continue
            known = self._nodes.get(name)
            if known is not None and (online is None or known in online):
                raise ValueError(
                    f"Nodes {known} and {node} both have the name {name!r}. Give each "
                    "site its own client-id."
                )
            self._nodes[name] = node
            self.greetings[name] = reply[0]
        return silent

    def _exchange(
        self,
        message_type: str,
        kind: str,
        letters: Mapping[int, Letter],
        timeout: float,
    ) -> dict[int, Reply | str]:
        from flwr.app import Message as FlowerMessage

        replies: dict[int, Reply | str] = {}
        sent: dict[str, tuple[int, str]] = {}
        parcels = []
        for node, (message, arrays) in letters.items():
            # An answer to another letter, sent again, has another token.
            token = secrets.token_hex(8)
            content = pack({**message, "kind": kind, "token": token}, arrays)
            parcel = FlowerMessage(content, node, message_type, ttl=timeout + _GRACE)
            parcels.append((node, token, parcel))
        accepted = set(self.grid.push_messages([parcel for *_, parcel in parcels]))
        for node, token, parcel in parcels:
            number = parcel.metadata.message_id
            if number in accepted:
                sent[number] = node, token
            else:
                replies[node] = "could not be sent its message"
        end = time.monotonic() + timeout
        while sent:
            # Asked before the pull: that may wait for the parts of one reply, while
            # those of others arrive in time.
            last = time.monotonic() >= end
            for reply in self.grid.pull_messages(list(sent)):
                found = sent.pop(reply.metadata.reply_to_message_id, None)
                if found is not None:
                    replies[found[0]] = _read_reply(reply, *found)
            if not sent or last:
                break
            time.sleep(self.poll)
        return replies


def make_client_app(load: Load | None = None) -> ClientApp:
    """Client app that answers requests as the configuration of its node allows.

    Parameters
    ----------
    load : callable, default=None
        ``load(node_config)`` gives the `SiteRows` of the site; None reads the file at
        ``data-path``.

    Returns
    -------
    ClientApp

    Examples
    --------
    >>> from skfedcal.federation import SiteRows, make_client_app
    >>> def load(config):
    ...     return SiteRows([[2.0, 0.0], [0.5, 1.0]], ["sick", "well"])
    >>> type(make_client_app(load)).__name__
    'ClientApp'
    """
    import_flwr()
    from flwr.app import ConfigRecord
    from flwr.app import Message as FlowerMessage
    from flwr.clientapp import ClientApp

    app = ClientApp()

    def serve(message: Any, context: Any) -> Any:
        records = context.state.config_records
        state = dict(records.get(_NAME, {}))
        reply, arrays, state = handle_packed(
            message.content, context.node_config, load, state
        )
        # A new process answers the next message. What it needs to know stays at the
        # node.
        records[_NAME] = ConfigRecord(state)
        return FlowerMessage(pack(reply, arrays), reply_to=message)

    app.train(_NAME)(serve)
    app.query(_NAME)(serve)
    return app


def handle_packed(
    content: Any, config: Mapping[str, Any], load: Load | None, state: Message
) -> tuple[Message, Mapping[str, Any], Message]:
    """Reply of a site to one message, and its state after it."""
    token = ""
    try:
        message, arrays = unpack(content)
        kind, token = str(message.pop("kind")), str(message.pop("token"))
        site = site_from_config(config, load=load, state=state)
    except Exception as error:
        # The text may tell of files; it is for the site. Rows are loaded later.
        _log.exception("the site cannot answer")
        text = f"it is not set up to answer ({type(error).__name__}; see its log)"
        return {"refused": text, "token": token}, {}, state
    reply, words = site.handle(kind, message, arrays)
    return {**reply, "token": token}, words, site.state


def pack(message: Message, arrays: Mapping[str, Any]) -> Any:
    """One record with a message and its arrays.

    Flower carries every record and every array of a message in a request of its own,
    on each of two ways: arrays are bytes here.
    """
    from flwr.app import ArrayRecord, ConfigRecord, RecordDict

    entries = dict(message)
    if arrays:
        parts = [np.asarray(array, order="C") for array in arrays.values()]
        entries[_ARRAYS] = dump(
            [
                [name, part.dtype.str, list(part.shape)]
                for name, part in zip(arrays, parts, strict=True)
            ]
        )
        entries[_WORDS] = b"".join(part.tobytes() for part in parts)
    records: dict[str, Any] = {"message": ConfigRecord(entries)}
    if message.get("kind") == "hello" or "format" in message:
        # Formats before 4 look for it: they then refuse by the name of the format.
        records["arrays"] = ArrayRecord({})
    return RecordDict(records)


def unpack(content: Any) -> tuple[Message, dict[str, Any]]:
    """Message and arrays of records.

    Raises
    ------
    Exception
        Of many kinds, if they are not what `pack` makes.
    """
    message = dict(content.config_records["message"])
    if _ARRAYS not in message:
        return message, {}
    words, arrays, start = message.pop(_WORDS), {}, 0
    for name, kind, shape in parse(message.pop(_ARRAYS), "the list of arrays"):
        if kind not in _KINDS or not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError(f"array {name!r} has an unknown type or shape")
        count = prod(shape)
        # Limited by the bytes that were received, before anything is allocated.
        array = np.frombuffer(words, kind, count, start) if count else np.empty(0, kind)
        arrays[name] = array.reshape(shape)
        start += array.nbytes
    if start != len(words):
        raise ValueError("arrays and their bytes have different sizes")
    return message, arrays


def _read_reply(reply: Any, node: int, token: str) -> Reply | str:
    if reply.has_error():
        reason = " ".join(str(reply.error.reason).split())[:_MAX_TEXT]
        what = "did not answer" if reply.error.code in _GONE else "failed"
        return f"{what}: {reason}"
    if reply.metadata.src_node_id != node:
        return "was answered by another node"
    try:
        message, arrays = unpack(reply.content)
    except Exception as error:  # bytes of others fail in many ways
        return f"sent a reply that cannot be read ({type(error).__name__})"
    if message.pop("token", None) != token:
        return "answered another message"
    if "refused" in message:
        message["refused"] = str(message["refused"])[:_MAX_TEXT]
    return message, arrays


def _introduction(message: Message, expected: Sequence[str] | None) -> tuple[str, str]:
    """Name that a node sent, and the fault of it."""
    name = str(message.get("name", ""))
    if "refused" in message:
        return name, f"refused: {message['refused']}"
    if not 0 < len(name) <= 100:
        return name, "gave no name"
    if message.get("format") != FORMAT:
        return name, (
            f"({name!r}) uses the format {str(message.get('format'))[:50]!r}, this "
            f"server {FORMAT!r}. Install the same version of skfedcal"
        )
    if expected is not None and name not in expected:
        return name, f"has the name {name!r}, which is not among the expected sites"
    return name, ""


def import_flwr() -> None:
    """Raise a helpful error where Flower is not installed."""
    try:
        import flwr.app  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "This needs Flower 1.40 or newer and cryptography: "
            'pip install "skfedcal[flower]".'
        ) from error
