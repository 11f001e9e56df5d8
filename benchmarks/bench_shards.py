"""Clients in shards: processor time on a dask cluster next to one process.

python -m benchmarks.bench_shards [--quick] [--clients 1000000 3000000] [--ray]

Writes 1,000 shards of clients with one row of 10 classes each, then fits FedTemp under
eps = 1: in one process to all rows in memory, in one process to the shards, and on a
cluster of two worker processes. CPU is that of all processes together, from the first
read of a file on; the cluster is started before. The process of the driver also runs
dask's scheduler, in a thread of its own, which costs a few percent of a core as long as
anybody works; `driver` is the thread of the fit alone. Cost at 10^8 clients is
extrapolated from the two largest sizes.
"""

import os
import resource
import tempfile
import time
import warnings
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks._harness import arguments, print_table, write_json
from skfedcal import FedTempCalibrator
from skfedcal.federation import ShardedClients

N_CLASSES = 10
N_WORKERS = 2
FAR = 10**8


def write_shards(folder, n_clients, n_shards):
    rng = np.random.default_rng(0)
    ends = np.linspace(0, n_clients, n_shards + 1).astype(int)
    for i, (start, stop) in enumerate(pairwise(ends)):
        logits = 2 * rng.standard_normal((stop - start, N_CLASSES), dtype=np.float32)
        labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
        np.savez(
            folder / f"part-{i:04}.npz",
            logits=1.5 * logits,
            labels=labels,
            client=np.arange(start, stop),
        )


def calibrator():
    return FedTempCalibrator(1.0, classes=range(N_CLASSES), random_state=0)


def pooled(folder):
    """Fit to all rows in the memory of one process."""
    parts = []
    for path in sorted(folder.iterdir()):
        with np.load(path) as file:
            parts.append([file[name] for name in ("logits", "labels", "client")])
    logits, labels, owners = (np.concatenate(part) for part in zip(*parts, strict=True))
    del parts
    return calibrator().fit(logits, labels, client_ids=owners)


def sharded(folder, executor=None):
    return calibrator().fit(ShardedClients(folder, executor=executor))


def cpu(*_):
    """CPU seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measured(call, worker_cpu=lambda: 0.0):
    workers, wall = worker_cpu(), time.perf_counter()
    own, thread = cpu(), time.thread_time()
    fitted = call()
    wall, own = time.perf_counter() - wall, cpu() - own
    thread = time.thread_time() - thread
    workers = worker_cpu() - workers
    rounds = len(fitted.history_)
    return {
        "CPU": own + workers,
        "process CPU a round": own / (rounds + 1),
        "driver CPU a round": thread / (rounds + 1),
        "wall": wall,
        "temperature": fitted.temperature_,
    }


def on_dask(folder):
    from distributed import Client, LocalCluster

    settings = {"n_workers": N_WORKERS, "threads_per_worker": 1, "processes": True}
    with (
        LocalCluster(**settings, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        client.run(_warm)  # workers have imported the package

        def worker_cpu():
            return sum(client.run(cpu).values())

        return measured(lambda: sharded(folder, client), worker_cpu)


def _warm():
    import_module("skfedcal.federation.shards")
    import_module("skfedcal.methods.temperature.posterior")


def on_ray(folder):
    import ray

    ray.init(num_cpus=N_WORKERS, log_to_driver=False, include_dashboard=False)
    try:
        return measured(lambda: sharded(folder, "ray"))
    finally:
        ray.shutdown()


def main():
    parser = arguments("shards", __doc__)
    parser.add_argument("--quick", action="store_true", help="small, under a minute")
    parser.add_argument("--clients", type=int, nargs="+", default=[10**6, 3 * 10**6])
    parser.add_argument("--shards", type=int, default=1000)
    parser.add_argument("--ray", action="store_true", help="ray too (CPU of driver)")
    args = parser.parse_args()
    if args.quick:
        args.clients, args.shards = [100_000, 200_000], 100
    warnings.simplefilter("ignore")
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    records = []
    for n_clients in args.clients:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_shards(folder, n_clients, args.shards)
            cases = {
                "one process, arrays": partial(measured, partial(pooled, folder)),
                "one process, shards": partial(measured, partial(sharded, folder)),
                f"dask, {N_WORKERS} workers": partial(on_dask, folder),
            }
            if args.ray:
                cases[f"ray, {N_WORKERS} workers"] = partial(on_ray, folder)
            first = None
            for case, run in cases.items():
                found = run()
                first = found if first is None else first
                records.append(
                    {
                        "clients": n_clients,
                        "shards": args.shards,
                        "case": case,
                        **found,
                        "CPU over arrays": found["CPU"] / first["CPU"],
                        "same bits": found["temperature"] == first["temperature"],
                    }
                )
    print_table(records)
    far = extrapolated(records)
    print_table([far])
    write_json(args.out, [*records, far], ("distributed", "ray"))


def extrapolated(records):
    """Cost at 10^8 clients, on the line through the last two sizes on dask."""
    *_, a, b = [r for r in records if r["case"].startswith("dask")]
    out = {"clients": FAR, "case": "dask, extrapolated"}
    for name in ("CPU", "driver CPU a round"):
        slope = (b[name] - a[name]) / (b["clients"] - a["clients"])
        out[name] = b[name] + slope * (FAR - b["clients"])
    # 1 where the cost is proportional to the clients, less where some of it is fixed.
    out["CPU of 10 times as many, over 10"] = out["CPU"] / b["CPU"] * b["clients"] / FAR
    return out


if __name__ == "__main__":
    main()
