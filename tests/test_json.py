"""Text that others wrote is read strictly, and every refusal says where it is from."""

import json

import pytest

from skfedcal._json import check_format, dump, member, parse, read_file, write_file


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1, "b": {"c": 2, "c": 3}}', "the name 'c' is given twice"),
        ("[NaN]", "NaN is not a finite number"),
        ("[-Infinity]", "-Infinity is not a finite number"),
        ("[1e999]", "the number 1e999 overflows float64"),
        ("[" + "9" * 400 + ".0]", "overflows float64"),
        ('["\\ud800"]', "surrogates not allowed"),
        ("[" * 100_000, "nested too deeply"),
        ("{", "Expecting property name"),
        (b"\xff", "can't decode"),
    ],
)
def test_invalid_text_is_named(text, reason):
    with pytest.raises(ValueError, match=f"here is not valid JSON: .*{reason}"):
        parse(text, "here")


def test_other_types_and_long_texts_are_refused():
    with pytest.raises(ValueError, match="here is of type int"):
        parse(3, "here")
    with pytest.raises(ValueError, match="here is longer than 3 characters"):
        parse("[1, 2]", "here", max_chars=3)
    with pytest.raises(UnicodeError):
        parse("{", "here", error=UnicodeError)


@pytest.mark.parametrize(
    "text", ["1e-999", "1e300", "[0.1, 2, true, null]", '"\\u00e9"']
)
def test_valid_text_is_what_json_reads(text):
    assert parse(text, "here") == parse(text.encode(), "here") == json.loads(text)


def test_a_file_is_read_as_written(tmp_path):
    value = {"a": [1, 0.1, None, "\u00e9"], "b": {}}
    write_file(tmp_path / "x.json", value)
    assert read_file(tmp_path / "x.json") == parse(dump(value), "here") == value
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_file(tmp_path / "x.json", float("inf"))
    assert read_file(tmp_path / "x.json") == value


def test_format_and_members_are_checked():
    content = {"format": "box", "format_version": 2, "n": 1}
    assert check_format(content, "here", "a box", "box", 2) is content
    assert member(content, "n", int, "here") == 1
    for wrong in ([], {"format": "bag"}):
        with pytest.raises(ValueError, match="here is not a box"):
            check_format(wrong, "here", "a box", "box", 2)
    for version in (True, 1, None):
        with pytest.raises(ValueError, match=rf"version {version}; .* reads version 2"):
            check_format({**content, "format_version": version}, "here", "", "box", 2)
    for wrong, text in (
        ([], r"here is \[\]; expected an object"),
        ({}, "here: 'n' is missing; expected int"),
        ({"n": "x"}, "here: 'n' is 'x'; expected int"),
    ):
        with pytest.raises(ValueError, match=text):
            member(wrong, "n", int, "here")
