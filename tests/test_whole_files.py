"""Files are written whole, and a lock keeps others off."""

import os

import pytest

from skfedcal import _files

pytestmark = pytest.mark.skipif(_files.fcntl is None, reason="locks need fcntl")


def test_a_second_holder_is_refused_and_nothing_is_left(tmp_path):
    with (
        _files.file_lock(tmp_path / "x"),
        pytest.raises(BlockingIOError),
        _files.file_lock(tmp_path / "x"),
    ):
        pytest.fail("two holders")
    assert not any(tmp_path.iterdir())
    with _files.file_lock(tmp_path / "x"):
        assert len(list(tmp_path.iterdir())) == 1


def test_a_lock_on_a_file_that_was_removed_is_not_enough(tmp_path, monkeypatch):
    # The last holder removes the file after the next one has opened it: its lock would
    # be on a file without a name, and a third one could take the name.
    really, calls = _files.fcntl.flock, []

    def removed_first(stream, flags):
        if not calls:
            os.unlink(tmp_path / ".x.lock")
        calls.append(flags)
        return really(stream, flags)

    monkeypatch.setattr(_files.fcntl, "flock", removed_first)
    with (
        _files.file_lock(tmp_path / "x"),
        pytest.raises(BlockingIOError),
        _files.file_lock(tmp_path / "x"),
    ):
        pytest.fail("two holders")
    assert len(calls) == 3


def test_a_failed_write_leaves_the_old_file_and_no_draft(tmp_path):
    path = tmp_path / "x"
    path.write_text("old")

    def fails(stream):
        stream.write(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        _files.write_whole(path, fails)
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def test_an_error_of_the_disk_names_the_file_that_was_meant(tmp_path):
    missing = tmp_path / "nowhere" / "x"
    text = "Cannot write the file: No such file or directory.*nowhere/x'"
    with pytest.raises(FileNotFoundError, match=text):
        _files.write_whole(missing, lambda stream: None)
    with pytest.raises(FileNotFoundError, match=text), _files.file_lock(missing):
        pytest.fail("held")


def test_an_error_of_the_writer_stays_as_it_is(tmp_path):
    def fails(stream):
        raise ConnectionResetError(104, "Connection reset by peer")

    with pytest.raises(ConnectionResetError, match=r"^.Errno 104. Connection reset"):
        _files.write_whole(tmp_path / "x", fails)
    assert not any(tmp_path.iterdir())
