"""Tables of the papers about training: train-time calibration, label skew, C x E grid.

python -m benchmarks.bench_training_tables
python -m benchmarks.bench_training_tables --data mnist.npz --arrays X_train y_train

Without --data on scikit-learn's digits. An .npz file holds rows (divided by 255 if they
are of type uint8) and labels; --max-rows takes a random part of them.
"""

import json
import time

import numpy as np
import torch

from benchmarks._harness import arguments, machine, versions
from skfedcal.experiments import participation_grid, skew_table, train_time_table

TABLES = {
    "train_time": train_time_table,
    "skew": skew_table,
    "participation": participation_grid,
}
# What the tables of the papers show of each.
PIVOTS = {
    "train_time": [("alpha", "accuracy"), ("alpha", "cwECE"), ("alpha", "NLL")],
    "skew": [("alpha", "accuracy"), ("alpha", "cwECE"), ("alpha", "NLL")],
    "participation": [("E", "rounds"), ("E", "ECE")],
}


def read(path, names, max_rows):
    """Rows and labels of a file; (None, None) without one."""
    if path is None:
        return None, None
    with np.load(path, allow_pickle=False) as archive:
        X, y = (archive[name] for name in names)
    if max_rows is not None and max_rows < len(y):
        keep = np.random.default_rng(0).permutation(len(y))[:max_rows]
        X, y = X[keep], y[keep]
    return X / np.float32(255) if X.dtype == np.uint8 else X, y


def main():
    """Print the tables and write all runs."""
    parser = arguments("training_tables", __doc__)
    parser.add_argument("--tables", nargs="*", choices=list(TABLES), default=TABLES)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--data", help=".npz file")
    parser.add_argument("--arrays", nargs=2, default=["X", "y"])
    parser.add_argument("--max-rows", type=int)
    args = parser.parse_args()
    torch.set_num_threads(1)
    X, y = read(args.data, args.arrays, args.max_rows)
    record = {"machine": machine(), "versions": versions(), "tables": {}}
    for name in args.tables:
        start = time.process_time()
        table = TABLES[name](X, y, seeds=range(args.seeds))
        seconds = time.process_time() - start
        print(f"{table}\n")
        for column, value in PIVOTS[name]:
            print(f"{table.pivot(column, value)}\n")
        print(f"{seconds:.0f} s of CPU time\n")
        record["tables"][name] = {**json.loads(table.to_json()), "seconds": seconds}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
