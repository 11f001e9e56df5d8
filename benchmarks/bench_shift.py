"""Private recalibration under domain shift: the paper's grid, and a fair one.

python -m benchmarks.bench_shift FOLDER [--quick] [--trials N] [--plot DIR]
python -m benchmarks.bench_shift --digits

reads shift_cifar10_resnet20.npz in FOLDER (17 conditions); `--digits` does without. The
second data are scikit-learn's digits under our 15 corruptions: several copies of each
image, which may be with sources and among the rows to test on (`--by-image`: not both).
Settings vary one of sources, samples per source and eps, as for CIFAR in the paper, at
fewer points, and at all 45 with `--paper`. Numbers are means over trials; tables have
their median and mean over conditions and settings.

The fair grid compares searches: logits of digits are rescaled so that the best
temperature is anything from .65 to 2.8, and no constant is good everywhere. Constants
of the library were chosen on synthetic logits, on other networks and on digits that are
distorted in other ways.
"""

import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from benchmarks import _shift_conditions as conditions
from benchmarks import _shift_methods as methods
from benchmarks._harness import arguments, print_table, write_json
from skfedcal import FedAccTempCalibrator
from skfedcal.exceptions import CalibrationWarning, SimulatedPrivacyWarning

# Panels of the paper's figures for CIFAR: sources, samples per source, eps. All of
# them, and every third.
PAPER_PANELS = {
    "sources": [(d, 10, 1.0) for d in range(10, 251, 10)],
    "samples": [(50, n, 1.0) for n in range(5, 51, 5)],
    "eps": [(50, 30, round(0.2 * i, 1)) for i in range(1, 11)],
}
PANELS = {name: cells[::3] for name, cells in PAPER_PANELS.items()}
FAIR_CELLS = [
    (10, 30, 1.0),
    (50, 10, 0.2),
    (50, 10, 1.0),
    (50, 30, 0.2),
    (50, 30, 1.0),
    (100, 50, 0.2),
    (100, 50, 1.0),
    (200, 20, 0.5),
    (1000, 10, 0.2),
    (1000, 50, 1.0),
]
SPEED_CELL, SPEED_TRIALS = (50, 30, 1.0), 500
SHOWN = {"cifar10": ("jpeg_5", "gaussian_blur_5"), "digits": ("motion_blur_5", "fog_5")}
TABLE_1 = ("none", "one source", methods.AS_PRINTED, *methods.PAPER)
OURS = ("one source wide", "FedTopBin")


def run(data, found, cells, parameters, n_trials, *, bins=True):
    """One row per condition and setting: mean errors, and what 'two_point' said."""
    rows, start = [], time.process_time()
    for i, condition in enumerate(found):
        for cell in cells:
            # The same rows and noise for a setting whatever else is run.
            rng = np.random.default_rng([i, *cell[:2], round(cell[2] * 10)])
            trials = [
                methods.one_trial(condition, cell, parameters, rng, bins=bins)
                for _ in range(n_trials)
            ]
            rows.append({"data": data, "condition": condition.name, "cell": cell})
            rows[-1]["error"] = means([errors for errors, _ in trials])
            rows[-1]["said"] = {
                model: means([said[model] for _, said in trials])
                for model in methods.MODELS
            }
    spent = time.process_time() - start
    print(f"{data}: {len(rows)} x {n_trials} trials, {spent:.0f} s of CPU")
    return rows


def means(results):
    """Means of dicts with the same keys."""
    return {key: float(np.mean([r[key] for r in results])) for key in results[0]}


def best_golden(rows, model, names):
    """Name of the golden section with the least mean error, chosen with hindsight."""
    return min(names, key=lambda name: np.mean(column(rows, name, model)))


def column(rows, name, model):
    """Errors of a method by condition and setting."""
    return np.array([row["error"][name, model] for row in rows])


def table(rows):
    """Rows of the paper's Table 1, then ours; median / mean by privacy model."""
    keys = list(rows[0]["error"])
    names = list(dict.fromkeys(name for name, _ in keys))
    first = [name for name in (*TABLE_1, *OURS) if name in names]
    out = []
    for name in [*first, *(n for n in names if n not in first)]:
        line = {"data": rows[0]["data"], "method": name}
        for model in methods.MODELS:
            key = model if (name, model) in keys else "-"
            values = column(rows, name, key)
            line[f"median {model}"] = round(float(np.median(values)), 4)
            line[f"mean {model}"] = round(float(values.mean()), 4)
        out.append(line)
    return out


def printed(line):
    """Show a line of a table as the paper does."""
    shown = {key: line[key] for key in ("data", "method")}
    for model, title in (("source", "noise per source"), ("sum", "noise once")):
        pair = line[f"median {model}"], line[f"mean {model}"]
        shown[title] = "{:.4f} / {:.4f}".format(*pair)
    return shown


def fair_cells(rows):
    """Mean errors by setting of the methods that matter on the fair grid."""
    wide = best_golden(rows, "source", methods.GOLDEN_WIDE)
    narrow = best_golden(rows, "source", methods.GOLDEN_PAPER)
    two = methods.TWO_POINT
    shown = {
        "none": ("none", "-"),
        "one source": ("one source wide", "-"),
        "Acc-T, paper": ("Acc-T golden K=5", "source"),
        narrow.removeprefix("Acc-T "): (narrow, "source"),
        wide.removeprefix("Acc-T "): (wide, "source"),
        "bisect": ("Acc-T bisect", "source"),
        "two_point": (two, "source"),
        "two_point, once": (two, "sum"),
        "no noise": ("Acc-T without noise", "-"),
    }
    out = []
    for cell in dict.fromkeys(row["cell"] for row in rows):
        mine = [row for row in rows if row["cell"] == cell]
        line = {"sources, samples, eps": "{}, {}, {:g}".format(*cell)}
        for title, key in shown.items():
            line[title] = float(column(mine, *key).mean())
        out.append(line)
    return out


def check(name, figure, wanted, held):
    return {
        "check": name,
        "figure": figure,
        "wanted": wanted,
        "held": "yes" if held else "NO",
    }


def fair_checks(rows):
    """The searches against each other and against doing nothing."""
    two = column(rows, methods.TWO_POINT, "source").mean()
    out = []
    for title, names in (
        ("T in .25..32", methods.GOLDEN_WIDE),
        ("T in .5..3", methods.GOLDEN_PAPER),
    ):
        best = best_golden(rows, "source", names)
        ratio = float(column(rows, best, "source").mean() / two)
        steps = best.split("K=")[1].split()[0]
        text = f"fair: golden at its best K={steps}, {title}, over two_point"
        out.append(check(text, ratio, ">= 1.5", ratio >= 1.5))
    worst = max(line["two_point"] / line["none"] for line in fair_cells(rows))
    text = "fair: two_point over none, worst setting"
    out.append(check(text, float(worst), "<= 1.1", worst <= 1.1))
    ratio = float(two / column(rows, methods.TWO_POINT, "sum").mean())
    text = "fair: two_point with noise per source over noise once"
    return [*out, check(text, ratio, ">= 1.5", ratio >= 1.5)]


def interval_checks(rows):
    """Coverage of `temperature_interval_` and estimates at an end of the range."""
    out, data = [], rows[0]["data"]
    for model in methods.MODELS:
        said = means([row["said"][model] for row in rows])
        held = 0.90 <= said["covered"] <= 0.99
        text = f"{data}: coverage, noise {model}"
        out.append(check(text, said["covered"], ".90 to .99", held))
        text = f"{data}: share of estimates at an end, noise {model}"
        out.append(check(text, said["edge"], "0", said["edge"] == 0))
    return out


def order_checks(rows):
    """Order of the medians: Acc-T first of the paper's three, the others behind it."""
    out = []
    for title, ending, three in (
        ("T in .5..3", "", {name: name for name in methods.PAPER}),
        ("T in .25..32", " wide", methods.PAPER_WIDE),
    ):
        names = {"none": ("none", "-"), "one source": (f"one source{ending}", "-")}
        names |= {name: (other, "source") for name, other in three.items()}
        median = {n: np.median(column(rows, *key)) for n, key in names.items()}
        order = sorted(median, key=median.get)
        text = f"{rows[0]['data']}: order of medians, golden K=5, {title}"
        held = order[0] == "Acc-T"
        out.append(check(text, " < ".join(order), "Acc-T first", held))
    return out


def edge_check(data, found):
    """Exact optima of the three objectives: none at an end of the range."""
    hit = []
    low, high = methods.WIDE_RANGE
    for condition in found:
        for objective in ("accuracy", "nll", "ece"):
            cal = FedAccTempCalibrator(
                objective=objective, classes=range(condition.logits.shape[1])
            ).fit(condition.logits, condition.labels)
            if not 1.02 * low < cal.temperature_ < 0.98 * high:
                hit.append(f"{condition.name} {objective}")
    text = f"{data}: exact optima at an end of .25..32"
    return check(text, ", ".join(hit) or "none", "none", not hit)


def speed_check(condition):
    """CPU seconds of 500 trials of one setting: draw rows, fit."""
    rng, privacy = np.random.default_rng(0), methods.MODELS["source"](SPEED_CELL[2])
    start = time.process_time()
    for seed in range(SPEED_TRIALS):
        data = condition.sample(rng, *SPEED_CELL[:2])
        cal = FedAccTempCalibrator(**methods.common(condition, privacy, seed))
        methods.fitted(cal, data)
    spent = time.process_time() - start
    text = "seconds for {} trials of {} x {}".format(SPEED_TRIALS, *SPEED_CELL)
    return check(text, spent, "< 10", spent < 10)


def flat(row):
    """A row for JSON: keys are strings."""
    d, n, eps = row["cell"]
    out = {"data": row["data"], "condition": row["condition"]}
    out |= {"sources": d, "samples": n, "eps": eps}
    out |= {f"{name} | {model}": v for (name, model), v in row["error"].items()}
    for model, said in row["said"].items():
        out |= {f"two_point {key} | {model}": value for key, value in said.items()}
    return out


def parsed():
    parser = arguments("shift", __doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--quick", action="store_true", help="a look, in a minute")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--fair-trials", type=int, default=5)
    parser.add_argument("--digits", action="store_true", help="no data of FOLDER")
    parser.add_argument(
        "--by-image", action="store_true", help="no image of digits in both halves"
    )
    parser.add_argument("--paper", action="store_true", help="all its 45 settings")
    parser.add_argument("--plot", type=Path, help="folder for pictures")
    args = parser.parse_args()
    if args.folder is None and not args.digits:
        parser.error("pass FOLDER, or --digits")
    if args.quick:
        args.trials = args.fair_trials = 2
    return args


def paper_grid(args):
    """Conditions by data, those to run, and settings; few of both with `--quick`."""
    found = {"digits": conditions.digits_conditions(by_image=args.by_image)}
    if not args.digits:
        found = {"cifar10": conditions.cifar10_conditions(args.folder), **found}
    panels = PAPER_PANELS if args.paper else PANELS
    if args.quick:
        panels = {name: [cells[0], cells[-1]] for name, cells in panels.items()}
        return found, {name: some[1::6] for name, some in found.items()}, panels
    return found, found, panels


def run_paper(args):
    """Tables and pictures of the paper's grid; rows and checks."""
    every, found, panels = paper_grid(args)
    cells = list(dict.fromkeys(cell for panel in panels.values() for cell in panel))
    rows, checks = [], []
    for data, some in found.items():
        if not some:
            continue
        mine = run(data, some, cells, methods.TABLE, args.trials)
        print_table([printed(line) for line in table(mine)])
        checks += [*order_checks(mine), *interval_checks(mine)]
        checks.append(edge_check(data, every[data]))
        rows += mine
        if args.plot is not None:
            from benchmarks._shift_plots import draw_panels

            draw_panels(args.plot, data, mine, panels, SHOWN[data])
    return rows, checks


def run_fair(args):
    """Table of the fair grid; rows and checks."""
    found = conditions.fair_conditions(by_image=args.by_image)
    cells = FAIR_CELLS
    if args.quick:
        found, cells = found[::8], cells[1:4]
    rows = run("fair", found, cells, methods.FAIR, args.fair_trials, bins=False)
    print_table([printed(line) for line in table(rows)])
    print_table(fair_cells(rows))
    checks = [*fair_checks(rows), *interval_checks(rows), speed_check(found[0])]
    return rows, checks


def main():
    """Print tables and checks; write all numbers."""
    args = parsed()
    for kind in (CalibrationWarning, ConvergenceWarning, SimulatedPrivacyWarning):
        warnings.simplefilter("ignore", kind)
    fair_rows, checks = run_fair(args)
    rows, more = run_paper(args)
    print_table([*checks, *more])
    if args.quick:
        print("too few trials to judge by; leave out --quick")
    write_json(args.out, [*checks, *more, *map(flat, fair_rows + rows)])


if __name__ == "__main__":
    main()
