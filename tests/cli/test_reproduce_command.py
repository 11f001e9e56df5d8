"""``skfedcal reproduce``."""

import subprocess
import sys

import pytest


def test_items_are_listed(run, run_json):
    code, out, _ = run("reproduce", "--list")
    assert code == 0
    assert "--table 8" in out
    items = run_json("reproduce", "000", "--list")["items"]
    assert {item["paper"] for item in items} == {"000"}
    assert all(item["command"].startswith("skfedcal reproduce 000") for item in items)


@pytest.mark.parametrize("words", [["--help"], ["--list"]])
def test_help_and_list_import_nothing_heavy(words):
    code = (
        f"import sys; from skfedcal.cli import main; main(['reproduce', *{words}]);"
        "heavy = {'numpy', 'scipy', 'sklearn', 'torch'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_table_is_printed_and_written(run, run_json, tmp_path):
    words = ["reproduce", "000", "--table", "8", "--quick", "--store", tmp_path / "s"]
    code, out, _ = run(*words, "-o", tmp_path / "t.tex")
    assert code == 0
    assert "ordering agrees: yes" in out
    assert r"\begin{tabular}" in (tmp_path / "t.tex").read_text()
    run(*words, "-o", tmp_path / "all")
    names = sorted(path.name for path in (tmp_path / "all").iterdir())
    assert names == ["000_table_8.csv", "000_table_8.md", "000_table_8.tex"]
    (record,) = run_json(*words)["items"]
    assert record["settings"]["name"] == "000 table 8"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["9"], "PAPER '9' is not known"),
        (["000", "--table", "99"], "table '99' is not known"),
        (["000", "--figure", "2z"], "figure '2z' is not known"),
        (["000", "-o", "a.md"], "holds one item"),
        (["000", "--table", "8", "-o", "no/a.md"], "there is no folder"),
        (["000", "--table", "8", "-o", "a.xyz"], "the ending '.xyz' is not known"),
        (["000", "--table", "8", "-o", "a.svg"], "000 table 8 is not a figure"),
        (["000", "--table", "8", "--data", "nowhere"], "is no folder"),
        (["--quick", "--full"], "not allowed with"),
    ],
)
def test_a_wrong_command_line_is_one_line(fails, words, message):
    assert message in fails("reproduce", *words)
