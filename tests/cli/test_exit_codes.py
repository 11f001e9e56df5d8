"""What a command ends with: one line with the way out, and the code that fits."""

import numpy as np
import pytest

from skfedcal import make_federation
from skfedcal.cli import main
from skfedcal.clients import save_federation


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Good and bad files."""
    path = tmp_path_factory.mktemp("inputs")
    fed = make_federation(40, 1200, n_classes=3, random_state=0)
    Z, y, ids = fed.logits, fed.labels, fed.client_ids
    save_federation(path / "good.npz", Z, y, client_ids=ids)
    assert main(["fit", f"{path}/good.npz", "-o", f"{path}/cal.json", "-q"]) == 0
    proba = np.exp(Z) / np.exp(Z).sum(axis=1, keepdims=True)
    np.savez(path / "proba_as_logits.npz", logits=proba, labels=y, client=ids)
    np.savez(path / "odds_as_logits.npz", logits=proba[:, 1], labels=y > 0)
    np.savez(path / "no_labels.npz", logits=Z)
    np.savez(path / "no_scores.npz", labels=y)
    np.savez(path / "short.npz", logits=Z, labels=y[:-1])
    np.savez(path / "large_label.npz", logits=Z, labels=y + 1)
    np.savez(path / "nan.npz", logits=np.where(Z > 2, np.nan, Z), labels=y)
    np.savez(path / "not_proba.npz", proba=Z, labels=y)
    np.savez(path / "words.npz", logits=Z.astype(str), labels=y)
    np.savez(path / "two.npz", logits=Z[:, :2], labels=y % 2)
    names = np.array(["a", "a", "b"])
    np.savez(path / "names.npz", logits=Z, labels=y, class_names=names)
    np.savez(path / "names2.npz", logits=Z, labels=y, class_names=names[:2])
    (path / "empty.csv").write_text("")
    (path / "header.csv").write_text("logit_0,logit_1,label\n")
    (path / "ragged.csv").write_text("logit_0,logit_1,label\n1,2,0\n1,2\n")
    (path / "text.csv").write_text("logit_0,logit_1,label\n1,x,0\n")
    (path / "other.csv").write_text("logit_a,logit_b,label\n1,2,c\n")
    (path / "gap.csv").write_text("logit_0,logit_2,label\n1,2,0\n")
    (path / "twice.csv").write_text("logit_0,logit_0,label\n1,2,0\n")
    (path / "client.csv").write_text("logit_0,logit_1,label,client\n1,2,0,\n")
    (path / "split.csv").write_text("logit_0,logit_1,label,split\n1,2,0,train\n")
    (path / "abc.csv").write_text("logit_a,logit_b,logit_c,label\n1,2,0,c\n2,1,0,a\n")
    (path / "abd.csv").write_text("logit_a,logit_b,logit_d,label\n1,2,0,d\n2,1,0,a\n")
    (path / "iris.csv").write_text(
        "setosa,other,label,client\n1,2,other,a\n2,1,setosa,b\n"
    )
    (path / "utf16.csv").write_bytes("logit_0,logit_1,label\n1,2,0\n".encode("utf-16"))
    (path / "comma.csv").write_text("logit_0;logit_1;label\n1,5;2,5;0\n")
    (path / "half.csv").write_text("logit_0,logit_1,label\n1,2,0.5\n")
    (path / "negative.csv").write_text("logit_0,logit_1,label\n1,2,-1\n")
    (path / "infinite.csv").write_text("logit_0,logit_1,label\n1,inf,0\n")
    (path / "target.csv").write_text("logit_0,logit_1,target\n1,2,0\n")
    (path / "notes.txt").write_text("hello\n")
    (path / "open.json").write_text("{")
    (path / "ledger.jsonl").touch()
    (path / "fake.npz").write_bytes(b"PK\x03\x04 not a zip")
    (path / "fake.parquet").write_bytes(b"PAR1 not a table")
    (path / "fake.json").write_text("[1, 2]")
    (path / "folder").mkdir()
    return path


CASES = [
    # The command line is wrong.
    ("fit", 2, "required: FILE, -o"),
    ("fit good.npz", 2, "required: -o"),
    ("fit good.npz --method tmp -o NEW.json", 2, "invalid choice"),
    ("fit good.npz --eps 0 -o NEW.json", 2, "is not a finite number above 0"),
    ("fit good.npz --eps one -o NEW.json", 2, "is not a finite number above 0"),
    ("fit good.npz --delta 1e-5 -o NEW.json", 2, "needs --eps"),
    ("fit good.npz --eps 1 --budget 1 1e-5 -o NEW.json", 2, "needs --ledger"),
    ("fit good.npz --method temp --n-bins 5 -o NEW.json", 2, "Leave it out"),
    ("fit good.npz --columns y -o NEW.json", 2, "expected ROLE=NAME"),
    ("fit good.npz --input odds -o NEW.json", 2, "invalid choice"),
    ("predict cal.json good.npz -o NEW.txt", 2, "'.txt' is not known"),
    ("predict cal.json good.npz -o NEW", 2, "Expected .npz, .csv"),
    ("compare good.npz --vary speed 1", 2, "expected one of"),
    ("compare good.npz -o NEW.doc", 2, "expected a name that ends in"),
    ("report good.npz -o NEW.pdf", 2, "ends in .html"),
    ("plan --clients 3 --rows 5 --model local", 2, "needs --eps"),
    ("plan --clients 0 --rows 5", 2, "is not a whole number above 0"),
    ("audit --runs 3", 2, "pass at least 20"),
    ("nothing", 2, "invalid choice"),
    ("fit good.npz --eps 1e-200 -o NEW.json", 2, "from 1e-100 to 1e100, or none"),
    ("fit good.npz --eps 1 --delta 2 -o NEW.json", 2, "is not below 1"),
    ("fit good.npz --eps 1 --ledger NEW --budget 1 2 -o NEW.json", 2, "not below 1"),
    ("fit good.npz --eps 1 --ledger NEW --seed 1 -o NEW.json", 2, "Leave out --seed"),
    ("fit good.npz --seed -1 -o NEW.json", 2, "from 0 to 4294967295"),
    ("fit good.npz --class-prior a,b -o NEW.json", 2, "such as 0.7,0.3"),
    (
        "fit good.npz --columns scores=s -o NEW.json",
        2,
        "--columns has the unknown role",
    ),
    ("fit good.npz --columns logits=a proba=b -o NEW.json", 2, "pass one of them"),
    ("fit good.npz --columns labels=a labels=b -o NEW.json", 2, "given twice"),
    ("fit good.npz good.npz -o NEW.json", 2, "unrecognized arguments"),
    ("fit good.npz --workers x -o NEW.json", 2, "not a folder or a pattern"),
    ("evaluate good.npz --eps none --delta 1e-5", 2, "needs --eps"),
    ("compare good.npz --vary rounds x", 2, "is not a whole number above 0"),
    ("compare good.npz --sampling poisson", 2, "needs --cohort"),
    ("compare good.npz --test-size 1", 2, "is not below 1"),
    ("plan --clients 3 --rows 5 --classes 1", 2, "--classes 1 is out of range"),
    ("plan --clients 3 --rows 5 --fits 5000", 2, "--fits 5000 is out of range"),
    ("plan --clients 3 --rows 5 --methods no", 2, "invalid choice"),
    ("plan --clients 3 --rows 5 --unit example", 2, "needs --eps"),
    ("monitor init NEW.json --classes 1", 2, "pass 2 or more"),
    ("monitor show good.npz", 4, "is not valid JSON"),
    ("ledger ledger.jsonl --raise 5", 2, "belong together"),
    ("ledger ledger.jsonl --format markdown", 2, "needs --summary"),
    ("ledger ledger.jsonl --summary -o NEW.pdf", 2, "Expected .txt, .md, .json"),
    ("verify cal.json --ledger a=", 2, "pass FILE or SITE=FILE"),
    ("reproduce 999", 2, "pass one of 000"),
    ("demo --seed x", 2, "from 0 to 4294967295"),
    # A file or its rows do not allow it.
    ("fit none.npz -o NEW.json", 4, "no such file"),
    ("fit folder -o NEW.json", 4, "is a folder with no file"),
    ("fit fake.npz -o NEW.json", 4, "not an .npz file"),
    ("fit fake.parquet -o NEW.json", 4, "not a Parquet file"),
    ("fit good.npz -o none/NEW.json", 4, "Create it first"),
    ("fit good.npz -o cal.json", 4, "Pass --force"),
    ("fit good.npz -o folder", 4, "Pass the name of a file"),
    ("fit proba_as_logits.npz -o NEW.json", 4, "Pass --input proba"),
    ("fit odds_as_logits.npz -o NEW.json", 4, "Pass --input proba"),
    ("compare proba_as_logits.npz", 4, "Pass --input proba"),
    ("evaluate proba_as_logits.npz", 4, "Pass --input proba"),
    ("predict cal.json proba_as_logits.npz -o NEW.npz", 4, "Pass --input proba"),
    ("fit not_proba.npz -o NEW.json", 4, "is not a probability vector"),
    ("fit good.npz --input proba -o NEW.json", 4, "is not a probability vector"),
    ("fit no_labels.npz -o NEW.json", 4, "and 'labels'; it has"),
    ("fit no_scores.npz -o NEW.json", 4, "'logits' (or 'proba')"),
    ("fit short.npz -o NEW.json", 4, "1200 rows"),
    ("fit large_label.npz -o NEW.json", 4, "allow 0 to 2"),
    ("fit nan.npz -o NEW.json", 4, "NaN"),
    ("fit words.npz -o NEW.json", 4, "must be numbers"),
    ("fit names.npz -o NEW.json", 4, "must be 3 different names"),
    ("fit names2.npz -o NEW.json", 4, "must be 3 different names"),
    ("fit good.npz --columns labels=y -o NEW.json", 4, "has no array 'y'"),
    ("fit empty.csv -o NEW.json", 4, "a line of column names"),
    ("fit header.csv -o NEW.json", 4, "a line of column names"),
    ("fit ragged.csv -o NEW.json", 4, "line 3 has 2 values"),
    ("fit text.csv -o NEW.json", 4, "row 1 of column 'logit_1' is 'x'"),
    ("fit other.csv -o NEW.json", 4, "or one of ['a', 'b']"),
    ("fit gap.csv -o NEW.json", 4, "classes are 0 to 1"),
    ("fit twice.csv -o NEW.json", 4, "names a column twice"),
    ("fit client.csv -o NEW.json", 4, "is empty"),
    ("fit split.csv -o NEW.json", 4, "'val' (to calibrate on) or 'test'"),
    ("predict fake.json good.npz -o NEW.npz", 4, "written by `skfedcal fit`"),
    ("predict cal.json two.npz -o NEW.npz", 4, "Use the same model"),
    ("evaluate no_labels.npz", 4, "has no labels"),
    ("fit notes.txt -o NEW.json", 4, "Expected .npz, .npy, .csv"),
    ("fit iris.csv -o NEW.json", 4, "such as logits=cat,dog"),
    ("fit iris.csv --columns logits=setosa,none -o NEW.json", 4, "no column 'none'"),
    ("fit iris.csv --columns logits=setosa,label -o NEW.json", 4, "such as labels=y"),
    ("fit iris.csv --columns logits=other,other -o NEW.json", 4, "given twice"),
    ("fit utf16.csv -o NEW.json", 4, "Save it as UTF-8"),
    ("fit comma.csv -o NEW.json", 4, "Write decimals with a point"),
    ("fit half.csv -o NEW.json", 4, "a label is the number of a class"),
    ("fit negative.csv -o NEW.json", 4, "allow 0 to 1"),
    ("fit infinite.csv -o NEW.json", 4, "+inf"),
    ("fit target.csv -o NEW.json", 4, "such as labels=y"),
    ("fit good.npz -o good.npz", 4, "Pass another name"),
    ("fit good.npz --eps 1 --delta 0.5 -o NEW.json", 4, "pass a --delta far below"),
    ("fit good.npz --eps 1 --ledger notes.txt -o NEW.json", 4, "not a privacy ledger"),
    ("fit good.npz --eps 1 --ledger none/l -o NEW.json", 4, "no such directory"),
    ("fit good.npz --method biastemp --class-prior 1,2 -o NEW.json", 4, "per class"),
    ("compare good.npz --class-prior 1,2", 4, "one number per class"),
    ("compare good.npz --store notes.txt", 4, "pass a folder"),
    ("report open.json -o NEW.html", 4, "written by `skfedcal compare -o`"),
    ("plan --clients 3 --rows 5 --eps 1 --delta 0.5", 4, "or leave it out"),
    ("predict good.npz cal.json -o NEW.npz", 4, "written by `skfedcal fit`"),
    ("evaluate good.npz --calibrator none.json", 4, "written by `skfedcal fit`"),
    ("monitor update none.json good.npz", 4, "written by `skfedcal monitor init`"),
    ("ledger --create ledger.jsonl", 4, "Leave out --create"),
    ("ledger ledger.jsonl --head abc", 4, "older or another copy"),
    ("ledger ledger.jsonl --key none.key", 4, "Expected a key of"),
    ("ledger ledger.jsonl --summary --result fake.json", 4, "Expected a calibrator"),
    ("verify cal.json", 4, "is not a result of skfedcal"),
    ("verify cal.json --roster none.json", 4, "Expected a roster"),
    ("audit --site none.toml", 4, "Expected the settings of a site"),
    ("info none.npz", 4, "no such file"),
    # Nothing is spent.
    ("evaluate good.npz --eps 0.1", 5, "Nothing was spent"),
]


@pytest.mark.parametrize(("words", "code", "way_out"), CASES)
def test_wrong_input(folder, run, monkeypatch, words, code, way_out):
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    found, out, lines = run(*words.split(), *(() if words == "nothing" else ("-q",)))
    assert (found, out) == (code, "")
    assert len(lines) == 1 and lines[0].startswith("skfedcal: error: ")
    assert way_out.lower() in lines[0].lower()
    assert sorted(folder.rglob("*")) == before


# Parameters of the library that the command line calls something else, or has not.
PYTHON = ("input_type", "client_ids", "if_improves", "hold_back", "random_state",
          "n_classes", "n_clients", "class_prior", "eps=None", "or None", " X",
          "cohort_size", "privacy=", "unit=", "a dict")  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("fit tiny.npz --method bin --eps 1 -o NEW.json", "larger eps would help"),
        ("fit tiny.npz --method temp --eps 0.001 -o NEW.json", "--unit example of"),
        (
            "fit tiny.npz --method mlp --eps 1 --unit example -o NEW.json",
            "use --unit client",
        ),
        ("fit tiny.npz --eps 1 --delta 0.05 -o NEW.json", "--delta 0.05 is large"),
        ("fit one.npz --eps 1 -o NEW.json", "Pass --columns client=NAME"),
        ("fit many.npz --method bin --n-bins 100000 -o NEW.json", "--hold-back ret"),
        ("plan --clients 3 --rows 50 --eps 1 --fits 1", "--unit example would work"),
        ("compare tiny.npz --cohort 99 --methods temp", "--cohort 99: pass"),
    ],
)
def test_messages_name_options_and_not_parameters(
    run, tmp_path, monkeypatch, words, said
):
    monkeypatch.chdir(tmp_path)
    fed = make_federation(6, 60, n_classes=3, random_state=0)
    save_federation("tiny.npz", fed.logits, fed.labels, client_ids=fed.client_ids)
    save_federation("one.npz", fed.logits, fed.labels)
    many = make_federation(60, 3000, n_classes=3, random_state=0)
    save_federation("many.npz", many.logits, many.labels, client_ids=many.client_ids)
    code, out, lines = run(*words.split(), "-q")
    text = " ".join([*out.split(), *lines])
    assert said in text and code in (0, 4)
    assert [name for name in PYTHON if name in " ".join(lines)] == []


def test_score_columns_by_their_names(folder, run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names = ["--columns", "logits=setosa,other"]
    fit = ["fit", folder / "iris.csv", *names, "--method", "temp", "-o", "c.json"]
    assert run(*fit, "-q")[0] == 0
    predict = ["predict", "c.json", folder / "iris.csv", *names, "-o", "p.csv", "-q"]
    assert run(*predict)[0] == 0
    header, *rows = (tmp_path / "p.csv").read_text().splitlines()
    assert header == "proba_other,proba_setosa,predicted,label,client"
    assert [row.split(",")[2] for row in rows] == ["other", "setosa"]


def test_a_budget_that_is_used_up(folder, run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = ["fit", folder / "good.npz", "--eps", "1", "--ledger", "spent.jsonl"]
    words += ["--budget", "1.2", "1e-5", "-q", "--force", "-o", "cal.json"]
    assert [run(*words)[0] for _ in range(2)] == [0, 5]
