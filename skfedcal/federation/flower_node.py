"""The only importer of private names of Flower: a node, and a run, without its apps.

Flower's public interface starts a process for each message and ships code to sites.
`FleetNode` is a node that fetches messages and sends replies, and never asks for a run
or its app. `open_grid` is the server's end from any Python process, without
``flwr run``. What is used here stayed the same from Flower 1.40 to 1.42; other versions
are refused, and a test compares the names with the installed version.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from skfedcal.federation.flower import import_flwr

if TYPE_CHECKING:
    from flwr.serverapp import Grid

# Versions that were read: from the first, below the second.
VERSIONS = (1, 40), (1, 43)
# Seconds after which a SuperLink misses a node (it waits twice as long), and between
# heartbeats.
_INTERVAL, _BEAT = 30.0, 10.0
# A request is tried again so often after a failure of the network.
_TRIES, _PAUSE = 5, 0.2
# Parts of a message may arrive after it: pause before the next look, and patience.
_RETRY, _PATIENCE = 0.02, 30.0
# Most parts and bytes of a message that are fetched, and seconds for one answer of the
# SuperLink. A broadcast has 80 MB at most unless a policy raises max-values.
_MAX_PARTS, _MAX_BYTES, _MAX_SECONDS = 1000, 1 << 28, 300.0
# Seconds until the SuperLink must have handed out the run of `open_grid`.
_ACQUIRE = 20.0

_log = logging.getLogger("skfedcal.site")

# A run must have an app. This one has no code.
_EMPTY_APP = {
    "pyproject.toml": b"""[project]
name = "skfedcal-run"
version = "1.0.0"
license = "BSD-3-Clause"
dependencies = []
[tool.flwr.app]
publisher = "skfedcal"
[tool.flwr.app.components]
serverapp = "nothing:app"
clientapp = "nothing:app"
""",
    "nothing.py": b"app = None\n",
}


class Parcel(NamedTuple):
    """A message of the server: its records (None if unreadable), and where to reply."""

    content: Any
    header: Any


class NodeError(ConnectionError):
    """The SuperLink does not let this node in."""


def check_version() -> None:
    """Raise ImportError for versions of Flower whose private interface was not read."""
    import_flwr()
    found = metadata.version("flwr")
    numbers = tuple(int(n) for n in re.findall(r"\d+", found)[:2])
    least, below = VERSIONS
    if not least <= numbers < below:
        raise ImportError(
            f"flwr {found} is installed; a live site and connect() need "
            f"{least[0]}.{least[1]} or newer, below {below[0]}.{below[1]}. A SuperNode "
            "with the client app of `skfedcal flower init` works with any from 1.40 on."
        )


def read_certificates(path: Any, insecure: bool, whose: str) -> bytes | None:
    """Content of a file of certificates; None where TLS is renounced."""
    if (path is None) != insecure:
        raise ValueError(
            f"{whose} needs root_certificates, the certificate file of the authority "
            "(or insecure=True without it, on one machine)."
        )
    return None if path is None else Path(str(path)).read_bytes()


class FleetNode:
    """A node of a SuperLink that fetches no code.

    address: ``host:port`` of the SuperLink.
    key: Private key of the node, as ``ssh-keygen -t ecdsa`` writes it.
    root_certificates: Certificate of the authority; None is without TLS, on one machine
        only.
    known: Number of the node in its last process. A SuperLink takes a node that was
        killed for alive for a minute, and does not let it in a second time; by its
        number it goes on.
    """

    def __init__(
        self,
        address: str,
        key: bytes,
        root_certificates: bytes | None,
        *,
        known: int = 0,
    ) -> None:
        check_version()
        from cryptography.hazmat.primitives.serialization import load_ssh_private_key
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes
        from flwr.supernode.fleet_http_client import FleetHttpClient
        from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

        private: Any = load_ssh_private_key(key, None)
        public = private.public_key()
        self.node_id = known
        self._public = public_key_to_bytes(public)
        self._client = FleetHttpClient.from_server_address(
            address,
            root_certificates is None,
            root_certificates,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(private, public),
            ],
        )
        _guard(self._client._client)
        self._beats: _Heartbeat | None = None

    def connect(self) -> int:
        """Enter the SuperLink; return the number of the node.

        NodeError: the SuperLink does not know the key. httpx.HTTPError: it cannot be
        reached.
        """
        self._enter()
        self._beats = _Heartbeat(self._beat)
        return self.node_id

    def _enter(self) -> None:
        import httpx
        from flwr.proto.fleet_pb2 import ActivateNodeRequest, RegisterNodeFleetRequest

        with suppress(httpx.HTTPStatusError):
            # A node that was killed, and came back at once.
            if self.node_id and self._beat():
                return
        activate = ActivateNodeRequest(
            public_key=self._public, heartbeat_interval=_INTERVAL
        )
        try:
            self.node_id = self._call("ActivateNode", activate).node_id
            return
        except httpx.HTTPStatusError as error:
            first = _reason(error)
        try:
            # A SuperLink without authentication, as in a rehearsal, takes any node.
            request = RegisterNodeFleetRequest(public_key=self._public)
            self._call("RegisterNode", request)
            self.node_id = self._call("ActivateNode", activate).node_id
        except httpx.HTTPStatusError as error:
            raise NodeError(
                f"The SuperLink does not let this node in ({first}; {_reason(error)}). "
                "The operator registers its public key: flwr supernode register. If "
                "it is registered, another process uses the key, or the last one was "
                "killed within the last minute."
            ) from error

    def receive(self) -> Parcel | None:
        """Next message, or None if there is none."""
        from flwr.common.serde import message_from_proto
        from flwr.proto.fleet_pb2 import PullMessagesRequest

        found = self._call("PullMessages", PullMessagesRequest(node=self._node))
        if not found.messages_list:
            return None
        header = message_from_proto(found.messages_list[0])
        try:
            content = self._content(header, found.message_object_trees[0])
        except Exception:  # bytes of others fail in many ways
            _log.exception("a message cannot be read")
            content = None
        return Parcel(content, header)

    def _content(self, header: Any, tree: Any) -> Any:
        from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
        from flwr.supercore.inflatable.inflatable_protobuf_utils import (
            make_confirm_message_received_fn_protobuf,
            make_pull_object_fn_protobuf,
        )
        from flwr.supercore.inflatable.inflatable_utils import (
            ObjectUnavailableError,
            inflate_object_from_contents,
        )

        run = header.metadata.run_id
        pull = make_pull_object_fn_protobuf(
            lambda request: self._call("PullObject", request), self._node, run
        )
        parts: dict[str, bytes] = {}
        end, size = time.monotonic() + _PATIENCE, 0
        for branch in iterate_object_tree(tree):
            name = branch.object_id
            while name not in parts:
                try:
                    parts[name] = pull(name)
                except ObjectUnavailableError:
                    if time.monotonic() > end:
                        raise
                    time.sleep(_RETRY)
            size += len(parts[name])
            if len(parts) > _MAX_PARTS or size > _MAX_BYTES:
                raise ValueError(f"a message of {len(parts)} parts, {size} bytes")
        make_confirm_message_received_fn_protobuf(
            lambda request: self._call("ConfirmMessageReceived", request),
            self._node,
            run,
        )(tree.object_id)
        message: Any = inflate_object_from_contents(tree.object_id, parts)
        return message.content

    def reply(self, parcel: Parcel, content: Any) -> None:
        """Send records back."""
        from flwr.app import Message
        from flwr.app.message import remove_content_from_message
        from flwr.common.serde import message_to_proto
        from flwr.proto.fleet_pb2 import PushMessagesRequest
        from flwr.supercore.inflatable.inflatable_object import (
            get_all_nested_objects,
            get_object_tree,
            no_object_id_recompute,
        )
        from flwr.supercore.inflatable.inflatable_protobuf_utils import (
            make_push_object_fn_protobuf,
        )

        message = Message(content, reply_to=parcel.header)
        message.metadata.__dict__["_message_id"] = message.object_id
        with no_object_id_recompute():
            parts = get_all_nested_objects(message)
            request = PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(remove_content_from_message(message))],
                message_object_trees=[get_object_tree(message)],
                # Not measured: time depends on rows.
                clientapp_runtime_list=[0.0],
            )
            wanted = self._call("PushMessages", request)
            push = make_push_object_fn_protobuf(
                lambda request: self._call("PushObject", request),
                self._node,
                parcel.header.metadata.run_id,
                wanted.session_id,
            )
            for name in wanted.objects_to_push:
                push(name, parts[name].deflate())

    def close(self) -> None:
        """Leave the SuperLink."""
        from flwr.proto.fleet_pb2 import DeactivateNodeRequest

        if self._beats is not None:
            self._beats.stop()
            with suppress(Exception):
                request = DeactivateNodeRequest(node_id=self.node_id)
                self._client.DeactivateNode(request)
        self._client.close()

    @property
    def _node(self) -> Any:
        from flwr.proto.node_pb2 import Node

        return Node(node_id=self.node_id)

    def _beat(self) -> bool:
        from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest

        request = SendNodeHeartbeatRequest(
            node=self._node, heartbeat_interval=_INTERVAL
        )
        return bool(self._client.SendNodeHeartbeat(request).success)

    def _call(self, name: str, request: Any) -> Any:
        import httpx

        for left in reversed(range(_TRIES)):
            try:
                return getattr(self._client, name)(request)
            except httpx.TransportError:
                if not left:
                    raise
                time.sleep(_PAUSE * 2 ** (_TRIES - left - 1))
        raise AssertionError


def _guard(client: Any) -> None:
    """Bound what a SuperLink can make this process do (httpx.Client).

    Redirections would let it send requests into the network of the site; answers
    without an end, or that grow when they are unpacked, would fill its memory.
    """
    client.follow_redirects = False
    client.headers["accept-encoding"] = "identity"

    def check(response: Any) -> None:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise ValueError("the SuperLink sent a compressed answer")
        response.stream = _bounded(response.stream)

    client.event_hooks = {"request": [], "response": [check]}


def _bounded(stream: Any) -> Any:
    """Stream of an answer that fails beyond the limits of size and time."""
    import httpx

    class Bounded(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            size, end = 0, time.monotonic() + _MAX_SECONDS
            for chunk in stream:
                size += len(chunk)
                if size > _MAX_BYTES or time.monotonic() > end:
                    raise ValueError(f"an answer of more than {size} bytes, or slow")
                yield chunk

        def close(self) -> None:
            stream.close()

    return Bounded()


class _Heartbeat:
    """Thread that says that this end is alive. Failures are seen by other requests."""

    def __init__(self, beat: Callable[[], object]) -> None:
        self._beat, self._stopped = beat, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(_BEAT):
            with suppress(Exception):
                self._beat()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def _reason(error: Any) -> str:
    """What a SuperLink says about a request that it refuses."""
    from flwr.supercore.error import FlowerError

    found = FlowerError.from_json(error.response.text)
    return f"HTTP {error.response.status_code}" if found is None else found.message


# Flower names the run of a process in a global variable.
_one_run = threading.Lock()


@contextmanager
def open_grid(
    address: str,
    root_certificates: bytes | None,
    secret: bytes | None,
    *,
    app: str | None = None,
    patience: float = 60.0,
) -> Iterator[Grid]:
    """Grid of a new run, which ends with the block.

    A SuperLink that cannot be reached, or does not hand out the run, is a
    ConnectionError.

    secret: Content of the file that the SuperLink was given as
        ``--superexec-auth-secret-file``.
    app: Folder of an app for stock SuperNodes; None sends one without code, as live
        sites fetch none.
    patience: Seconds to wait for the rest of a reply that has begun to arrive.
    """
    check_version()
    import httpx
    from flwr.common.constant import SubStatus
    from flwr.proto.runtime_pb2 import PushTaskOutputRequest

    if not _one_run.acquire(blocking=False):
        raise ConnectionError(
            "This process has a connection already: Flower allows one run at a time in "
            "a process. Leave the other `with` block first."
        )
    try:
        try:
            token = _start_run(address, root_certificates, secret, app)
        except httpx.HTTPStatusError as error:
            raise ConnectionError(
                f"The SuperLink at {address} refused the run ({_reason(error)}). It "
                "needs --isolation process and --superexec-auth-secret-file, and "
                "connect() the same file as `secret`."
            ) from error
        except httpx.TransportError as error:
            raise ConnectionError(
                f"The SuperLink at {address} cannot be reached: {error}."
            ) from error
        grid, identity = _grid_of(address, root_certificates, token, patience)
        runtime = grid._runtime_client
        status = SubStatus.FAILED
        try:
            with identity:
                yield grid
            status = SubStatus.COMPLETED
        finally:
            with suppress(Exception):
                runtime.PushTaskOutput(
                    PushTaskOutputRequest(sub_status=status, details="")
                )
            grid.close()
    finally:
        _one_run.release()


def _start_run(
    address: str, ca: bytes | None, secret: bytes | None, app: str | None
) -> str:
    """Token of a new run."""
    from flwr.cli.build import build_fab_from_disk, build_fab_from_files
    from flwr.common.serde import fab_to_proto
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.control.control_http_client import ControlHttpClient
    from flwr.supercore.fab import Fab
    from flwr.supercore.interceptors import (
        RuntimeVersionHttpInterceptor,
        SuperExecAuthHttpInterceptor,
    )
    from flwr.supercore.runtime import RuntimeHttpClient

    content = build_fab_from_files(_EMPTY_APP)[0]
    if app is not None:
        content = build_fab_from_disk(Path(app))
    fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
    chain: list[Any] = [RuntimeVersionHttpInterceptor("flwr CLI")]
    with ControlHttpClient.from_server_address(address, ca is None, ca, chain) as link:
        run = link.StartRun(StartRunRequest(fab=fab_to_proto(fab))).run_id
    chain = [RuntimeVersionHttpInterceptor("SuperExec")]
    if secret is not None:
        chain.append(
            SuperExecAuthHttpInterceptor(
                master_secret=secret,
                protected_methods={"/flwr.proto.Runtime/AcquireTask"},
            )
        )
    request = AcquireTaskRequest(supported_task_types=["flwr-serverapp"])
    end = time.monotonic() + _ACQUIRE
    with RuntimeHttpClient.from_server_address(address, ca is None, ca, chain) as link:
        while time.monotonic() < end:
            found = link.AcquireTask(request)
            if found.token and found.task.run_id == run:
                return str(found.token)
            # A run that another process started and left, or lost to this one: it ends
            # when its heartbeat is missed.
            time.sleep(_RETRY)
    raise ConnectionError(
        f"The SuperLink at {address} did not hand out the run within {_ACQUIRE:g} s: "
        "another process took it. Start the SuperLink with --isolation process, and "
        "one connection at a time."
    )


def _grid_of(
    address: str, ca: bytes | None, token: str, patience: float
) -> tuple[Any, Any]:
    """Grid of a run, and the context in which messages belong to it."""
    from flwr.common.serde import run_from_proto
    from flwr.proto.runtime_pb2 import PullTaskInputRequest, SendTaskHeartbeatRequest
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.superlink.grid import http_grid

    grid = http_grid.HttpGrid(address, ca is None, ca, token=token)
    runtime = grid._runtime_client
    given = runtime.PullTaskInput(PullTaskInputRequest())
    grid.set_run(run_from_proto(given.run))
    numbers = {
        "task_id": given.task_id,
        "run_id": given.run.run_id,
        "node_id": given.context.node_id,
    }

    @contextmanager
    def identity() -> Iterator[None]:
        old = {name: getattr(TaskIdentity, f"_{name}") for name in numbers}
        for name, number in numbers.items():
            setattr(TaskIdentity, name, number)
        # A reply is announced before its parts are there. Flower looks again after 1 s,
        # and would wait for 3 minutes if the site was killed in between.
        pull = http_grid.pull_objects
        http_grid.pull_objects = partial(
            pull, initial_backoff=_RETRY, backoff_cap=1.0, max_time=patience
        )
        beats = _Heartbeat(
            lambda: runtime.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        )
        try:
            yield
        finally:
            beats.stop()
            http_grid.pull_objects = pull
            for name, number in old.items():
                setattr(TaskIdentity, name, number)

    return grid, identity()
