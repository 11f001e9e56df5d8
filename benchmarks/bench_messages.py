"""CPU time and bytes of one client and of the server, message by message.

python -m benchmarks.bench_messages

One process plays all sites and the server, through the messages of a deployment.
`client ms` is the processor time of one site over a round, `server ms` that of the
server for each site, both without the start of processes; `up` and `down` are bytes of
one site, without the envelope of a transport. The rows with drops lose a tenth of the
sites before they send their masked answer.
"""

import time
import warnings

import numpy as np

from benchmarks._harness import arguments, print_table, write_json
from benchmarks.bench_secagg import size_of
from skfedcal import CentralDP, FederatedRunner, FedTempCalibrator, ScoreHistogram
from skfedcal.federation import (
    InProcessTransport,
    RemoteClients,
    Site,
    SitePolicy,
    SiteRows,
)

COHORTS = (10, 30, 1000)
CLASSES = [0, 1]


class Meter(InProcessTransport):
    """Transport that adds up what sites compute, send and receive."""

    def __init__(self, n_sites, drops=False):
        rng = np.random.default_rng(0)
        policy = SitePolicy(allow_plain=True)
        names = [f"site-{i:06d}" for i in range(n_sites)]
        super().__init__(
            {
                name: Site(
                    name,
                    SiteRows(rng.normal(size=(20, 2)), rng.integers(0, 2, 20)),
                    policy=policy,
                )
                for name in names
            }
        )
        self.gone = set(names[::10]) if drops else set()
        self.cpu = self.up = self.down = 0

    def _one(self, kind, name, letter):
        start = time.process_time()
        reply = super()._one(kind, name, letter)
        self.cpu += time.process_time() - start
        self.down += size_of(letter[0]) + size_of(dict(letter[1]))
        if kind == "masked" and name in self.gone:
            return None
        self.up += size_of(reply[0]) + size_of(dict(reply[1]))
        return reply


def temperature(sites, secure):
    runner = FederatedRunner(n_rounds=1, secure=secure)
    FedTempCalibrator(eps=1.0, classes=CLASSES, runner=runner).fit(sites)


def histogram(sites, secure):
    ScoreHistogram.fit(
        sites,
        classes=CLASSES,
        height=10,
        privacy=CentralDP(1.0),
        runner=FederatedRunner(secure=secure),
    )


def measure(name, work, n_sites, secure, drops=False):
    meter = Meter(n_sites, drops)
    start = time.process_time()
    work(RemoteClients(meter), secure)
    total = time.process_time() - start
    return {
        "method": name,
        "sites": n_sites,
        "masked": secure,
        "drops": len(meter.gone),
        "client ms": 1e3 * meter.cpu / n_sites,
        "server ms": 1e3 * (total - meter.cpu) / n_sites,
        "up": round(meter.up / n_sites),
        "down": round(meter.down / n_sites),
    }


def main():
    options = arguments("messages", __doc__).parse_args()
    warnings.simplefilter("ignore")
    works = {"temperature": temperature, "histogram": histogram}
    for work in works.values():  # imports and tables
        work(RemoteClients(Meter(3)), True)
    rows = []
    for n_sites in COHORTS:
        for name, work in works.items():
            rows.append(measure(name, work, n_sites, False))
            rows.append(measure(name, work, n_sites, True))
            if n_sites >= 30:
                rows.append(measure(name, work, n_sites, True, drops=True))
    print_table(rows)
    write_json(options.out, rows)


if __name__ == "__main__":
    main()
