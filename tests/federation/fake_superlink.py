"""A SuperLink in this process, behind Flower's own clients: requests, no network."""

import contextlib
import threading
from types import SimpleNamespace

import httpx
from flwr.proto import (
    control_pb2,
    fleet_pb2,
    heartbeat_pb2,
    message_pb2,
    node_pb2,
    run_pb2,
    runtime_pb2,
)
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.inflatable.inflatable_object import get_object_id
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.fleet_http_client import FleetHttpClient


def refuse(code):
    request = httpx.Request("POST", "https://superlink/")
    response = httpx.Response(code, request=request, text="no")
    raise httpx.HTTPStatusError("refused", request=request, response=response)


class FakeSuperLink:
    """Keeps messages and their parts, as a SuperLink does.

    `registered` are the public keys of nodes that are let in. `requests` are the names
    of all requests; a name in `failing` fails so many times. Parts of replies of a node
    in `dying` never arrive.
    """

    def __init__(self, secret=b"", registered=None):
        self.secret, self.registered = secret, registered
        self.numbers, self.online = {}, set()
        self.inbox, self.replies, self.parts = {}, {}, {}
        self.requests, self.failing, self.ended = [], {}, []
        self.dying = set()
        self.lock = threading.RLock()
        self._n_runs = 0

    def install(self, monkeypatch):
        def client_of(cls):
            # Named as in Flower.
            def from_server_address(
                server_address, insecure, root_certificates, interceptors, **_
            ):
                return _Client(self, cls.__name__, interceptors)

            return from_server_address

        for cls in (FleetHttpClient, RuntimeHttpClient, ControlHttpClient):
            monkeypatch.setattr(cls, "from_server_address", client_of(cls))

    def call(self, kind, method, request, interceptors):
        service = kind.removesuffix("HttpClient")
        context = SimpleNamespace(
            rpc_method=f"/flwr.proto.{service}/{method}",
            message=request,
            request=httpx.Request("POST", "https://superlink/"),
        )
        headers = {}
        for interceptor in interceptors:

            def answer(context):
                headers.update(context.request.headers)
                return httpx.Response(200, request=context.request)

            interceptor.intercept(context, answer)
        with self.lock:
            self.requests.append(method)
            scope = {"Fleet": "node", "Runtime": "server", "Control": "control"}
            name = f"{scope[service]}_{method}"
            if self.failing.get(name, 0) > 0:
                self.failing[name] -= 1
                raise httpx.ConnectError("the network is away")
            return getattr(self, name)(request, headers)

    # The node.
    def node_ActivateNode(self, request, _):
        number = self.numbers.get(request.public_key)
        if self.registered is not None and request.public_key in self.registered:
            number = self.numbers.setdefault(
                request.public_key, 1000 + len(self.numbers)
            )
        if number is None or number in self.online:
            refuse(404)
        self.online.add(number)
        return fleet_pb2.ActivateNodeResponse(node_id=number)

    def node_RegisterNode(self, request, _):
        if self.registered is not None:
            refuse(403)
        self.numbers[request.public_key] = 1000 + len(self.numbers)
        return fleet_pb2.RegisterNodeFleetResponse()

    def node_DeactivateNode(self, request, _):
        self.online.discard(request.node_id)
        return fleet_pb2.DeactivateNodeResponse()

    def node_SendNodeHeartbeat(self, request, _):
        number = request.node.node_id
        if number not in self.numbers.values():
            refuse(401)
        self.online.add(number)
        return heartbeat_pb2.SendNodeHeartbeatResponse(success=True)

    def node_PullMessages(self, request, _):
        waiting = self.inbox.get(request.node.node_id, [])
        found = [waiting.pop(0)] if waiting else []
        return fleet_pb2.PullMessagesResponse(
            messages_list=[message for message, _ in found],
            message_object_trees=[tree for _, tree in found],
        )

    def node_PushMessages(self, request, _):
        (message,), (tree,) = request.messages_list, request.message_object_trees
        self.replies[message.metadata.reply_to_message_id] = message, tree
        return fleet_pb2.PushMessagesResponse(
            objects_to_push=_names(tree), session_id="s"
        )

    def node_PullObject(self, request, _):
        content = self.parts.get(request.object_id)
        return message_pb2.PullObjectResponse(
            object_found=True,
            object_available=content is not None,
            object_content=content or b"",
        )

    def node_PushObject(self, request, _):
        assert get_object_id(request.object_content) == request.object_id
        if request.node.node_id in self.dying:
            return message_pb2.PushObjectResponse(stored=True)
        self.parts[request.object_id] = request.object_content
        return message_pb2.PushObjectResponse(stored=True)

    def node_ConfirmMessageReceived(self, request, _):
        return message_pb2.ConfirmMessageReceivedResponse()

    # The server.
    def control_StartRun(self, request, _):
        assert request.fab.content
        self._n_runs += 1
        return control_pb2.StartRunResponse(run_id=self._n_runs)

    def server_AcquireTask(self, request, headers):
        if self.secret and not any("superexec" in name for name in headers):
            refuse(401)
        return runtime_pb2.AcquireTaskResponse(
            token="token", task={"run_id": self._n_runs}
        )

    def server_PullTaskInput(self, request, _):
        return runtime_pb2.PullTaskInputResponse(
            run=run_pb2.Run(run_id=self._n_runs), task_id=7
        )

    def server_PushTaskOutput(self, request, _):
        self.ended.append(request.sub_status)
        return runtime_pb2.PushTaskOutputResponse()

    def server_SendTaskHeartbeat(self, request, _):
        return runtime_pb2.SendTaskHeartbeatResponse(success=True)

    def server_GetNodes(self, request, _):
        nodes = [node_pb2.NodeInfo(node_id=number) for number in sorted(self.online)]
        return runtime_pb2.GetNodesResponse(nodes=nodes)

    def server_PushMessages(self, request, _):
        names, wanted = [], []
        for message, tree in zip(
            request.messages_list, request.message_object_trees, strict=True
        ):
            self.inbox.setdefault(message.metadata.dst_node_id, []).append(
                (message, tree)
            )
            names.append(message.metadata.message_id)
            wanted += _names(tree)
        return runtime_pb2.PushAppMessagesResponse(
            message_ids=names, objects_to_push=wanted, session_id="s"
        )

    def server_PullMessages(self, request, _):
        ready = [
            self.replies.pop(name)
            for name in list(request.message_ids)
            # Also where parts of a reply are still on their way.
            if name in self.replies
        ]
        return runtime_pb2.PullAppMessagesResponse(
            messages_list=[message for message, _ in ready],
            message_object_trees=[tree for _, tree in ready],
        )

    server_PullObject, server_PushObject = node_PullObject, node_PushObject
    server_ConfirmMessageReceived = node_ConfirmMessageReceived


def _names(tree):
    return [
        tree.object_id,
        *(name for child in tree.children for name in _names(child)),
    ]


class _Client(contextlib.AbstractContextManager):
    def __init__(self, link, kind, interceptors):
        self._link, self._kind, self._chain = link, kind, interceptors
        self._client = httpx.Client()

    def __getattr__(self, method):
        return lambda request: self._link.call(self._kind, method, request, self._chain)

    def __exit__(self, *_):
        self.close()

    def close(self):
        self._client.close()
