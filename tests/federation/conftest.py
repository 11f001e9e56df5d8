"""A Flower grid in this process: the real client app and transport, no servers."""

import copy

import pytest

try:
    import flwr.app as flwr_app
    from flwr.serverapp import Grid
except ImportError:  # the other tests of this folder need no Flower
    flwr_app, Grid = None, object


def _set_identity():
    # Flower sets this in the process of a server app; the name is private.
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:
        return
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1


def _carried(records):
    """What the other end reads: records through the bytes that Flower sends."""
    try:
        from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
        from flwr.supercore.inflatable.inflatable_utils import (
            inflate_object_from_contents,
        )
    except ImportError:
        return copy.deepcopy(records)
    parts = get_all_nested_objects(records)
    contents = {name: part.deflate() for name, part in parts.items()}
    return inflate_object_from_contents(records.object_id, contents)


class LocalGrid(Grid):
    """Nodes that answer at once.

    `configs` are node configurations by node id; `tamper(message, reply)` gives what
    arrives in place of a reply, or None. `sent` and `received` keep everything.
    """

    def __init__(self, app, configs, tamper=None):
        _set_identity()
        self.app, self.tamper = app, tamper
        self.contexts = {n: self.context(n, c) for n, c in configs.items()}
        self.sent, self.received, self._box = [], [], {}

    @staticmethod
    def context(node, config):
        return flwr_app.Context(1, node, dict(config), flwr_app.RecordDict(), {})

    def set_run(self, run): ...

    @property
    def run(self): ...

    def create_message(self, *args, **kwargs): ...

    def get_node_ids(self):
        return list(self.contexts)

    def push_messages(self, messages):
        numbers = []
        for message in messages:
            node, number = message.metadata.dst_node_id, str(len(self.sent))
            message.metadata.__dict__["_message_id"] = number
            self.sent.append(message)
            numbers.append(number)
            if node in self.contexts:
                reply = self._answer(message, self.contexts[node])
                if self.tamper is not None:
                    reply = self.tamper(message, reply)
                if reply is not None:
                    self._box[number] = reply
        return numbers

    def _answer(self, message, context):
        arrived = flwr_app.Message(
            _carried(message.content),
            message.metadata.dst_node_id,
            message.metadata.message_type,
            ttl=message.metadata.ttl,
        )
        arrived.metadata.__dict__["_message_id"] = message.metadata.message_id
        reply = self.app(arrived, context)
        # The next message is answered by another process.
        context.state = _carried(context.state)
        reply.content = _carried(reply.content)
        return reply

    def pull_messages(self, message_ids):
        found = [self._box.pop(i) for i in list(message_ids) if i in self._box]
        self.received += found
        return found

    def send_and_receive(self, messages, *, timeout=None): ...


@pytest.fixture
def local_grid():
    # Not skipped: the extra [test] has Flower.
    assert flwr_app is not None, 'Flower is missing: pip install ".[test]"'
    return LocalGrid
