"""CPU time of all parties of a masked sum, and of sums over trees of aggregators.

python -m benchmarks.bench_secagg

One process plays all clients and the server; `cpu` is its processor time, `plain` that
of the sum without masks. `clients` counts who is in the sum; the rows with drops lose
clients at each stage. `kB up` and `kB down` are of one client over all exchanges,
without the envelope of a transport. Sites with a `roster` check signatures of keys and
of the list of survivors; above 50 clients their graph bears a dishonest server, and has
more neighbours. `exchange` is one X25519 agreement, of which a
client computes two for each neighbour: most of a small sum.
"""

import time

import numpy as np

from benchmarks._harness import arguments, cpu_best, print_table, write_json
from skfedcal import FederatedDataset, FederatedRunner
from skfedcal.federation import InProcess, TreeBackend, crypto
from skfedcal.federation.mask_plan import plan_masks
from skfedcal.federation.masking_client import MaskingClient
from skfedcal.federation.masking_server import masked_sum
from skfedcal.federation.roster import Roster, SiteKey
from skfedcal.methods.score_curves.rounds import ScoreCounts
from skfedcal.privacy.entropy import SeededEntropy
from skfedcal.privacy.mechanisms import ExactSum

# Clients, counts, and what the sum should cost at most, in seconds.
CASES = ((3, 2560, None), (10, 2560, None), (30, 2560, 0.1), (50, 2560, None),
         (10, 256_000, 0.2), (1000, 2560, 10.0))  # fmt: skip
TREE = (10_000, 100_000, 1_000_000)
# Clients, counts: sites with a roster.
SIGNED = ((3, 2560), (10, 2560), (30, 2560), (50, 2560), (10, 256_000), (100, 2560))
COHORT = 1000


def size_of(value):
    """Bytes of a message or of arrays."""
    if isinstance(value, dict):
        return sum(map(size_of, value.values()))
    if isinstance(value, list):
        return sum(map(size_of, value))
    if isinstance(value, np.ndarray):
        return value.nbytes
    return len(value) if isinstance(value, (bytes, str)) else 8


class Exchanges:
    """Clients of one masked sum, some of which drop out."""

    def __init__(self, answers, drops, signed):
        self.answers, self.drops = answers, drops
        self.clients = [MaskingClient() for _ in answers]
        if signed:
            keys = [SiteKey.generate(f"site-{i}") for i in range(len(answers))]
            roster = Roster({key.name: key.public for key in keys})
            self.clients = [MaskingClient(site_key=k, roster=roster) for k in keys]
        self.up = self.down = 0

    def __call__(self, stage, messages):
        out = {}
        for i, message in messages.items():
            if i in self.drops.get(stage, ()):
                continue
            client = self.clients[i]
            if stage == "masked":
                out[i] = ({}, client.masked(message, lambda i=i: self.answers[i]))
            else:
                out[i] = (getattr(client, stage)(message), {})
            if i == len(self.clients) - 1:
                self.down += size_of(message)
                self.up += size_of(list(out[i]))
        return out


def masked(n_clients, size, drops, rng, signed=False):
    """CPU seconds of one masked sum, checked, and its parts."""
    numbers = rng.integers(0, 1000, (n_clients, size)).astype(np.uint32)
    answers = [{"counts": row} for row in numbers]
    exchange = Exchanges(answers, drops, signed)
    plan = plan_masks("run", 0, n_clients, active=signed)
    start = time.process_time()
    found = masked_sum(exchange, plan, {"counts": ((size,), 4)})
    seconds = time.process_time() - start
    start = time.process_time()
    right = numbers[list(found.clients)].sum(axis=0, dtype=np.uint32)
    plain = time.process_time() - start
    if not np.array_equal(found.words["counts"], right):
        raise RuntimeError("The masked sum is not the sum.")
    return seconds, plain, len(found.clients), plan.degree, exchange


def some_drops(n_clients):
    """A tenth of the clients is lost, at all stages."""
    lost = n_clients // 10
    parts = np.array_split(np.arange(lost), 4)
    names = ("keys", "shares", "masked", "unmask")
    return {n: set(p.tolist()) for n, p in zip(names, parts, strict=True)}


def masked_rows(repeats):
    rng = np.random.default_rng(0)
    masked(5, 10, {}, rng)
    cases = [
        (n_clients, size, limit, drops, False)
        for n_clients, size, limit in CASES
        for drops in (({}, some_drops(n_clients)) if n_clients >= 30 else ({},))
    ]
    cases += [(n_clients, size, None, {}, True) for n_clients, size in SIGNED]
    return [masked_row(*case, rng, repeats) for case in cases]


def masked_row(n_clients, size, limit, drops, signed, rng, repeats):
    """Best of several sums."""
    runs = [
        masked(n_clients, size, drops, rng, signed)
        for _ in range(1 if n_clients > 100 else repeats)
    ]
    seconds, plain, n_left, degree, exchange = min(runs, key=lambda r: r[0])
    return {
        "asked": n_clients,
        "clients": n_left,
        "counts": size,
        "roster": "yes" if signed else "no",
        "neighbours": degree,
        "cpu ms": 1e3 * seconds,
        "limit ms": "" if limit is None else f"{1e3 * limit:g}",
        "plain ms": 1e3 * plain,
        "kB up": exchange.up / 1e3,
        "kB down": exchange.down / 1e3,
    }


def tree_rows():
    """Exact histograms of one row per client, in cohorts of a thousand."""
    rng = np.random.default_rng(0)
    algorithm = ScoreCounts(levels=(10,), max_examples=1)
    rows = []
    for n in TREE:
        data = FederatedDataset(
            rng.random((n, 1)), rng.integers(0, 2, n), np.arange(n + 1), range(n), 2
        )
        times, sums = {}, []
        for name, engine in (
            ("flat", InProcess(data)),
            ("tree", TreeBackend.over(data, COHORT)),
        ):
            start = time.process_time()
            state, history = FederatedRunner().run(
                algorithm, engine, ExactSum(), SeededEntropy(0), n_classes=2
            )
            times[name] = time.process_time() - start
            sums.append(state.totals.tobytes())
        if sums[0] != sums[1]:
            raise RuntimeError("A tree gives other bits.")
        rows.append(
            {
                "clients": n,
                "aggregators": -(-n // COHORT),
                "flat ms": 1e3 * times["flat"],
                "tree ms": 1e3 * times["tree"],
                "kB up": history[0].bytes_up / 1e3,
            }
        )
    return rows


def main():
    parser = arguments("secagg", __doc__)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    own, other = crypto.new_key(), crypto.new_key().public_key().public_bytes_raw()
    calls = {"exchange": lambda: crypto.agree(own, other)}
    agreement = cpu_best(calls, seconds=options.seconds)["exchange"]
    print(f"exchange: {1e6 * agreement:.1f} us")
    sums = masked_rows(options.repeats)
    print_table(sums)
    trees = tree_rows()
    print_table(trees)
    write_json(options.out, [{"exchange us": 1e6 * agreement}, *sums, *trees])


if __name__ == "__main__":
    main()
