"""Files that are written past the system's cache hold what was written, and say what went wrong."""

import errno
import fcntl
import os
import resource
from pathlib import Path

import pytest

from megaxf.checkpoint import CheckpointError, direct, files
from megaxf.checkpoint.errors import DamagedCheckpoint

BUFFER = 1 << 13


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch):
    monkeypatch.setattr(direct, "BUFFER_BYTES", BUFFER)


def content(size):
    return bytes(number * number % 251 for number in range(size))


def write(path, whole, piece):
    with direct.DirectFile(path) as file:
        for start in range(0, len(whole), piece):
            file.write(memoryview(whole)[start : start + piece])
        file.flush()


def read(path):
    return b"".join(map(bytes, direct.read_blocks(path)))


@pytest.mark.parametrize("size", [0, 1, BUFFER - 1, BUFFER, BUFFER + 1, 3 * BUFFER, 5 * BUFFER + 77])
def test_a_file_of_any_length_in_any_pieces(tmp_path, size):
    for piece in (977, BUFFER, 2 * BUFFER + 5):
        write(tmp_path / "file", content(size), piece)
        assert (tmp_path / "file").read_bytes() == read(tmp_path / "file") == content(size)


def test_what_comes_after_a_flush_is_appended(tmp_path):
    whole = content(4 * BUFFER)
    with direct.DirectFile(tmp_path / "file") as file:
        for start, stop in ((0, BUFFER + 5), (BUFFER + 5, 4 * BUFFER)):
            file.write(memoryview(whole)[start:stop])
            file.flush()
            assert (tmp_path / "file").read_bytes() == whole[:stop]


def test_whole_buffers_are_written_past_the_cache(tmp_path):
    try:
        os.close(os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT | direct.DIRECT))
    except OSError:
        pytest.skip("this file system knows no direct writes")
    with direct.DirectFile(tmp_path / "file") as file:
        file.write(memoryview(content(3 * BUFFER)))
        assert fcntl.fcntl(file.fileno(), fcntl.F_GETFL) & direct.DIRECT


def test_where_a_file_system_refuses_direct_writes(tmp_path, monkeypatch):
    opened = os.open

    def refuse(path, flags, *others):
        if flags & direct.DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return opened(path, flags, *others)

    monkeypatch.setattr(os, "open", refuse)
    write(tmp_path / "file", content(3 * BUFFER + 1), BUFFER)
    assert (tmp_path / "file").read_bytes() == read(tmp_path / "file") == content(3 * BUFFER + 1)


def test_where_a_disk_takes_no_writes_of_that_size(tmp_path, monkeypatch):
    monkeypatch.setattr(direct, "BUFFER_BYTES", 1000)
    write(tmp_path / "file", content(3210), 300)
    assert (tmp_path / "file").read_bytes() == read(tmp_path / "file") == content(3210)


def test_a_file_that_is_cut_while_it_is_read(tmp_path):
    write(tmp_path / "file", content(3 * BUFFER), BUFFER)
    blocks = direct.read_blocks(tmp_path / "file")
    assert next(blocks) == content(BUFFER)
    os.truncate(tmp_path / "file", 2 * BUFFER)
    assert len(next(blocks)) == BUFFER and next(blocks, None) is None


def test_a_file_that_is_not_there_is_named(tmp_path):
    write(tmp_path / "file", content(BUFFER), BUFFER)
    assert b"".join(map(bytes, files.blocks_from_disk(tmp_path / "file"))) == content(BUFFER)
    with pytest.raises(DamagedCheckpoint, match="other is missing"):
        next(files.blocks_from_disk(tmp_path / "other"))


@pytest.mark.parametrize("advice", [None, -1])
def test_where_a_system_has_no_large_pages(tmp_path, monkeypatch, advice):
    monkeypatch.delattr("mmap.MADV_HUGEPAGE")
    if advice:
        monkeypatch.setattr("mmap.MADV_HUGEPAGE", advice, raising=False)
    write(tmp_path / "file", content(3 * BUFFER + 1), BUFFER)
    assert (tmp_path / "file").read_bytes() == content(3 * BUFFER + 1)


def test_a_full_disk_is_told_by_name():
    refused = pytest.raises(CheckpointError, match="/dev/full cannot be written: No space left on device")
    with refused, files.writing(Path("/dev/full")) as stream:
        stream.write(content(4 * BUFFER))


def test_a_file_beyond_its_limit_is_not_taken_for_a_refusal(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * BUFFER + 100, limits[1]))
    try:
        refused = pytest.raises(CheckpointError, match="file cannot be written: File too large")
        with refused, files.writing(tmp_path / "file") as stream:
            stream.write(content(5 * BUFFER))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
