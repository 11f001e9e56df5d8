"""What messages cost: a fit of sites over Flower next to the same fit in one process.

python -m benchmarks.bench_exchange

`FlowerTransport` and the client app of a deployment run on a grid in this process:
every message and reply goes through the bytes that Flower sends, and the state of a
site as well, as each of its messages is answered by another process. Network, TLS and
the start of processes are not in it. All fits have the same seed and must agree to the
last bit before they are timed.
"""

import warnings
from collections.abc import Callable
from typing import Any

from benchmarks._harness import (  # isort: skip  (sets the number of threads)
    OURS,
    arguments,
    compare,
    make_logits,
    optional,
    print_table,
    write_json,
)

import numpy as np

from skfedcal import FederatedRunner, FedTempCalibrator
from skfedcal.federation import (
    InProcessTransport,
    RemoteClients,
    Site,
    SitePolicy,
    SiteRows,
)

Rows = list[dict[str, Any]]
SITES, LONG_SITES = (10, 100), (10, 100, 1000)
# Masks of more sites take seconds; the long form has them.
QUICK_MASKED = 10
N_ROUNDS, N_ROWS, N_CLASSES = 3, 200, 10
WORDS = (16, 2560, 256_000)
# The last three are private, and other versions of Flower may not have them.
NEEDED = (
    "cryptography",
    "flwr.serverapp",
    "flwr.supercore.task_identity",
    "flwr.supercore.inflatable.inflatable_object",
    "flwr.supercore.inflatable.inflatable_utils",
)


def has_flower() -> bool:
    """Tell whether messages can be sent, with a note if not."""
    return all(optional(name) is not None for name in NEEDED)


def local_grid(app: Any, configs: dict[int, dict[str, Any]]) -> Any:
    """Return a grid whose nodes answer at once, by node id."""
    from flwr.app import Context, Message, RecordDict
    from flwr.serverapp import Grid
    from flwr.supercore.task_identity import TaskIdentity

    # Flower sets this in the process of a server app.
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1

    class LocalGrid(Grid):
        def __init__(self) -> None:
            self.contexts = {
                node: Context(1, node, config, RecordDict(), {})
                for node, config in configs.items()
            }
            self.box: dict[str, Any] = {}
            self.n_sent = 0

        def set_run(self, run: Any) -> None: ...
        @property
        def run(self) -> Any: ...
        def create_message(self, *args: Any, **kwargs: Any) -> Any: ...
        def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any: ...

        def get_node_ids(self) -> list[int]:
            return list(self.contexts)

        def push_messages(self, messages: Any) -> list[str]:
            return [self._answer(message) for message in messages]

        def _answer(self, message: Any) -> str:
            told, number = message.metadata, str(self.n_sent)
            self.n_sent += 1
            to = told.dst_node_id, told.message_type
            arrived = Message(carried(message.content), *to, ttl=told.ttl)
            for one in (message, arrived):
                one.metadata.__dict__["_message_id"] = number
            context = self.contexts[told.dst_node_id]
            reply = app(arrived, context)
            context.state = carried(context.state)
            reply.content = carried(reply.content)
            self.box[number] = reply
            return number

        def pull_messages(self, message_ids: Any) -> list[Any]:
            return [self.box.pop(i) for i in list(message_ids) if i in self.box]

    return LocalGrid()


def carried(records: Any) -> Any:
    """Return what the other end reads: records through the bytes that Flower sends."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    parts = get_all_nested_objects(records)
    contents = {name: part.deflate() for name, part in parts.items()}
    return inflate_object_from_contents(records.object_id, contents)


def ways(n_sites: int) -> dict[str, Callable[[], FedTempCalibrator]]:
    """Return the same private fit by every way to the sites."""
    logits, labels = make_logits(n_sites * N_ROWS, N_CLASSES)
    parts = zip(np.split(logits, n_sites), np.split(labels, n_sites), strict=True)
    clients = {f"site-{i:04d}": rows for i, rows in enumerate(parts)}

    def fit(sites: Any, secure: bool = False) -> FedTempCalibrator:
        runner = FederatedRunner(n_rounds=N_ROUNDS, secure=secure)
        return FedTempCalibrator(
            eps=3.0, classes=range(N_CLASSES), runner=runner, random_state=0
        ).fit(sites)

    policy = SitePolicy(allow_plain=True)
    here = RemoteClients(
        InProcessTransport(
            {n: Site(n, SiteRows(*rows), policy=policy) for n, rows in clients.items()}
        )
    )
    calls = {OURS: lambda: fit(clients), f"{OURS}, messages": lambda: fit(here)}
    if not has_flower():
        return calls
    from skfedcal.federation import FlowerTransport, make_client_app

    app = make_client_app(lambda config: SiteRows(*clients[config["client-id"]]))
    grid = local_grid(
        app,
        {
            node: {"client-id": name, "allow-plain": True}
            for node, name in enumerate(clients, start=1)
        },
    )
    there = RemoteClients(FlowerTransport(grid, min_nodes=n_sites, poll=0.0))
    calls[f"{OURS}, Flower"] = lambda: fit(there)
    calls[f"{OURS}, Flower, masked"] = lambda: fit(there, secure=True)
    return calls


def released(model: FedTempCalibrator) -> bytes:
    """Return everything that the server saw, as bytes."""
    totals = [record.total for record in model.history_]
    return b"".join(total[name].tobytes() for total in totals for name in sorted(total))


def exchanges(counts: tuple[int, ...], seconds: float, quick: bool) -> Rows:
    """Milliseconds per site and round of a private temperature."""
    rows: Rows = []
    for n_sites in counts:
        calls = ways(n_sites)
        if quick and n_sites > QUICK_MASKED:
            calls.pop(f"{OURS}, Flower, masked", None)
        if len({released(call()) for call in calls.values()}) > 1:
            raise AssertionError(f"{n_sites} sites: the ways give different bits")
        case = f"{n_sites} sites of {N_ROWS} x {N_CLASSES}"
        for row in compare("Flower, exchange", case, calls, seconds=seconds):
            per_round = row["value"] / (n_sites * N_ROUNDS)
            rows.append(row | {"value": per_round, "unit": "ms per site and round"})
    return rows


def messages(seconds: float) -> Rows:
    """Pack a message for Flower, write it as bytes, and back again."""
    if not has_flower():
        return []
    from skfedcal.federation.flower import pack, unpack

    rows = []
    for size in WORDS:
        words = np.arange(size, dtype=np.uint64)

        def ours(words: np.ndarray = words) -> Any:
            return unpack(pack({"kind": "answer"}, {"counts": words}))

        def wire(words: np.ndarray = words) -> Any:
            return unpack(carried(pack({"kind": "answer"}, {"counts": words})))

        if not np.array_equal(wire()[1]["counts"], words):
            raise AssertionError("a message changed on its way")
        calls = {OURS: ours, f"{OURS}, and as bytes by Flower": wire}
        rows += compare("Flower, one message", f"{size} words", calls, seconds=seconds)
    return rows


def questions(seconds: float, quick: bool = True) -> Rows:
    """All rows; the long form has a thousand sites."""
    warnings.simplefilter("ignore")  # of the seed
    counts = SITES if quick else LONG_SITES
    return [*exchanges(counts, seconds, quick), *messages(seconds)]


def main() -> None:
    """Print and write the table."""
    options = arguments("exchange", __doc__).parse_args()
    rows = questions(options.seconds, quick=False)
    print_table(rows)
    write_json(options.out, rows)


if __name__ == "__main__":
    main()
