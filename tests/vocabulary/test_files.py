from __future__ import annotations

import errno
import os
import re
import subprocess
from pathlib import Path

import pytest

from sparda_core.files import check_place, read_whole, whole_file, whole_folder, write_whole


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """Something that is neither a file nor a folder, as /dev/null is."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def test_what_is_no_file_is_refused_and_stays_what_it_was(pipe: Path) -> None:
    for place in (check_place, lambda path: write_whole(path, "text")):
        with pytest.raises(OSError, match="is not an ordinary file"):
            place(pipe)
    assert pipe.is_fifo()
    assert list(pipe.parent.iterdir()) == [pipe]


def test_a_folder_is_refused_by_its_own_name(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as refused:
        write_whole(tmp_path, "text")
    assert refused.value.filename == str(tmp_path)


def test_a_missing_folder_is_told_by_the_name_that_was_asked_for(tmp_path: Path) -> None:
    wanted = tmp_path / "absent" / "a.json"
    for place in (check_place, lambda path: write_whole(path, "text")):
        with pytest.raises(FileNotFoundError) as refused:
            place(wanted)
        assert refused.value.filename == str(wanted)


def test_a_link_stays_and_the_file_it_names_is_written(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "far" / "a.txt")
    write_whole(link, "text")
    assert link.is_symlink()
    assert (tmp_path / "far" / "a.txt").read_text() == "text"


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_whole(path, "old")

    def interrupted() -> None:
        with whole_file(path) as part:
            part.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    def full() -> None:
        with whole_file(tmp_path / "a.txt"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left") as refused:
        full()
    assert refused.value.filename == str(tmp_path / "a.txt")
    assert not list(tmp_path.iterdir())


def test_every_writer_of_the_package_goes_through_here() -> None:
    package = Path(__file__).parents[2] / "sparda_core"
    own = [path for path in package.rglob("*.py") if re.search(r"mkstemp|O_EXCL", path.read_text(encoding="utf-8"))]
    assert [path.name for path in own] == ["files.py"]
    assert own[0].parent == package


def test_a_pipe_is_read_to_its_end_and_what_does_not_end_is_refused(tmp_path: Path, pipe: Path) -> None:
    with subprocess.Popen(["sh", "-c", f"printf grün > {pipe}"]) as writer:
        assert read_whole(pipe) == "grün"
        writer.wait()
    with pytest.raises(OSError, match="/dev/zero") as refused:
        read_whole(Path("/dev/zero"), most_bytes=1000)
    assert "goes on for more than 1000 bytes" in str(refused.value)
    (tmp_path / "long.txt").write_text("a" * 2000)
    assert len(read_whole(tmp_path / "long.txt", most_bytes=1000)) == 2000
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(UnicodeDecodeError):
        read_whole(tmp_path / "bytes")


def test_a_folder_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "m"

    def fails(wrong: BaseException) -> None:
        with whole_folder(target) as part:
            (part / "inner").mkdir()
            (part / "inner" / "a.txt").write_text("a")
            if isinstance(wrong, OSError) and wrong.filename == "inside":
                wrong.filename = str(part / "inner" / "a.txt")
            raise wrong

    for wrong in (KeyboardInterrupt(), ValueError("none of ours"), FileNotFoundError(2, "is not there", "elsewhere")):
        with pytest.raises(type(wrong)) as told:
            fails(wrong)
        assert told.value is wrong
        assert list(tmp_path.iterdir()) == []
    for named in (None, "inside"):
        with pytest.raises(OSError, match="No space") as full:
            fails(OSError(28, "No space left on device", named))
        assert full.value.filename == str(target)
    with whole_folder(target) as part:
        (part / "a.txt").write_text("a")
        assert not target.exists()
    assert [path.name for path in target.iterdir()] == ["a.txt"]
    with pytest.raises(OSError, match=r"m'") as taken, whole_folder(target):
        pass
    assert taken.value.filename == str(target)
    assert list(tmp_path.iterdir()) == [target]
