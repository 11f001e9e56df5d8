"""CPU seconds of each quick item of ``skfedcal reproduce``, for the guide.

``python -m benchmarks.paper_items`` measures what docs/guide/papers_times.json lacks;
``python -m benchmarks.paper_items 000 003`` measures all items of these papers anew.
Each item starts with an empty store, except for the network of paper 000, which is
trained once and counted on its own. Threads are those of the environment: set
OMP_NUM_THREADS=1 for the seconds of the guide.
"""

from __future__ import annotations

import json
import resource
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from skfedcal.papers.fedavg_models import find_models
from skfedcal.papers.items import Setting, find_items, run_item

TARGET = Path(__file__).parents[1] / "docs" / "guide" / "papers_times.json"
NETWORK = "000 network"


def cpu_seconds() -> float:
    """CPU seconds of this process and of those that it has started."""
    used = [
        resource.getrusage(who)
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    ]
    return sum(one.ru_utime + one.ru_stime for one in used)


def main(papers: list[str]) -> None:
    """Measure items and write the file after each."""
    known = json.loads(TARGET.read_text()) if TARGET.exists() else {}
    items = [item for item in find_items() if not papers or item.paper in papers]
    todo = [item for item in items if papers or item.name not in known]
    with TemporaryDirectory() as networks:
        if any(item.paper in ("000", "leaderboard") for item in todo):
            start = cpu_seconds()
            find_models(Setting("quick", store=Path(networks)))
            known[NETWORK] = round(cpu_seconds() - start, 1)
        for item in todo:
            with TemporaryDirectory() as store:
                for path in Path(networks).iterdir():
                    shutil.copy(path, store)
                start = cpu_seconds()
                result = run_item(item, Setting("quick", store=Path(store)))
            known[item.name] = round(cpu_seconds() - start, 1)
            print(item.name, known[item.name], result.verdict, flush=True)
            TARGET.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
