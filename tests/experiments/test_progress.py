"""The bar: what a terminal sees, and what a log sees."""

import io
import sys

import pytest

from skfedcal.experiments.comparison import engine
from skfedcal.experiments.comparison.engine import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """Time that moves when told to."""
    now = [0.0]
    monkeypatch.setattr(engine.time, "monotonic", lambda: now[0])
    return now


def test_a_terminal_sees_one_line_that_changes(monkeypatch, clock):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    bar = Progress(10, True)
    bar.start(2)
    for _ in range(8):
        clock[0] += 3.0
        bar.step()
    bar.close()
    before, *shown, last = stream.getvalue().split("\r")
    assert before == "[2 of 10 cells were finished before]\n"
    assert len(shown) == 8
    assert last.strip() == f"[{'#' * 24}] 10/10 cells" and last.endswith("\n")
    # Five cells in 15 seconds: three are left.
    assert shown[5].strip().endswith("7/10 cells, 0:09 left")
    assert "left" not in shown[4]


def test_a_log_sees_a_line_now_and_then(monkeypatch, clock):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    bar = Progress(100, True)
    bar.start(0)
    for _ in range(100):
        clock[0] += 0.5
        bar.step()
    bar.close()
    lines = stream.getvalue().splitlines()
    # One at the start, one every five of fifty seconds, the last of which is the end.
    assert len(lines) == 11
    assert lines[0].endswith("0/100 cells") and lines[-1].endswith("100/100 cells")


def test_nothing_is_shown_where_nothing_is_asked_for(monkeypatch, capsys):
    bar = Progress(2, False)
    bar.start(1)
    bar.step()
    bar.close()
    assert capsys.readouterr() == ("", "")


def test_a_reader_that_has_gone_away_ends_nothing(monkeypatch):
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Gone())
    bar = Progress(1, True)
    bar.start(0)
    bar.step()
    monkeypatch.setattr(sys, "stderr", None)
    bar.step()
    bar.close()
