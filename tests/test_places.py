"Drive, archives, downloads and packed runs: what may go wrong with them, and that it is one line."

import contextlib
import errno
import gc
import gzip
import http.server
import inspect
import io
import json
import os
import random
import stat
import struct
import sys
import tarfile
import threading
import time
import types
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import make_dataset

from mshnet import places
from mshnet.cli import main
from mshnet.core import Config, UserError
from mshnet.data import read_dataset
from mshnet.places import (
    COLAB,
    HERE,
    KNOWN,
    Place,
    Published,
    bring,
    fetch,
    find_dataset,
    known,
    mount_drive,
    pack,
    unpack,
)

SUFFIXES = [".zip", ".tar", ".tar.gz", ".tgz"]


@pytest.fixture
def here(tmp_path):
    "A place with folders of its own."
    folders = [tmp_path / name for name in ("input", "runs", "local")]
    folders[0].mkdir()
    return Place("here", folders[0], folders[1], "", "", folders[2])


def write(path, files):
    "An archive of the kind that its name says; files by name, text or bytes."
    contents = {k: v.encode() if isinstance(v, str) else v for k, v in files.items()}
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as box:
            for name, content in contents.items():
                box.writestr(name, content)
        return path
    with tarfile.open(path, "w" if path.suffix == ".tar" else "w:gz") as box:
        for name, content in contents.items():
            header = tarfile.TarInfo(name)
            header.size = len(content)
            box.addfile(header, io.BytesIO(content))
    return path


def tree(folder):
    "Files of a folder: path and content."
    found = [p for p in sorted(folder.rglob("*")) if p.is_file()]
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in found}


def refusal(work, *args, **kwargs):
    "The one line that refuses some work."
    with pytest.raises(UserError) as error:
        work(*args, **kwargs)
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


def left(folder):
    "What lies in a folder and among what is unpacked below it, locks not counted."
    there = [*folder.glob("*"), *folder.glob(f"{places.UNPACKED}/*")]
    passing = (places.UNPACKED, "")
    return sorted(p.name for p in there if p.name not in passing and p.suffix != ".lock")


# Google Drive


class MessageError(Exception):
    "Colab's own."


def colab(monkeypatch, tmp_path, mount=None, download=None):
    "A stand-in of google.colab, and a Drive in a folder of the test."
    monkeypatch.setattr(places, "DRIVE", tmp_path / "drive")
    monkeypatch.setattr(places, "MY_DRIVE", tmp_path / "drive" / "MyDrive")
    package = types.ModuleType("google.colab")
    package.drive = types.SimpleNamespace(mount=mount)
    package.files = types.SimpleNamespace(download=download)
    monkeypatch.setitem(sys.modules, "google", types.ModuleType("google"))
    monkeypatch.setitem(sys.modules, "google.colab", package)
    return replace(COLAB, data=tmp_path / "content", local=tmp_path / "local")


def test_drive_is_mounted_with_its_time_limit(monkeypatch, tmp_path):
    "And not a second time."
    calls = []

    def mount(path, timeout_ms):
        calls.append((path, timeout_ms))
        (Path(path) / "MyDrive").mkdir(parents=True)

    place = colab(monkeypatch, tmp_path, mount)
    found = mount_drive(place, timeout=7)
    assert calls == [(str(tmp_path / "drive"), 7000)]
    assert found.folder == tmp_path / "drive" / "MyDrive"
    again = mount_drive(place)
    assert (again.folder, len(calls)) == (found.folder, 1)
    assert "mounted already" in again.line


@pytest.mark.parametrize(
    "error",
    [
        ValueError("mount failed"),
        MessageError("Error: credential propagation\nwas unsuccessful"),
        NotImplementedError("google.colab.drive is unsupported in this environment."),
        AttributeError("'NoneType' object has no attribute 'kernel'"),
    ],
)
def test_a_refused_drive_is_one_line_and_no_exception(monkeypatch, tmp_path, error):
    "The user closed the window, or there is none: training can go on."

    def mount(path, timeout_ms):
        raise error

    found = mount_drive(colab(monkeypatch, tmp_path, mount))
    assert found.folder is None
    assert " ".join(str(error).split()) in found.line
    assert "mount_drive()" in found.line
    assert "\n" not in found.line


def test_a_drive_that_never_answers_is_given_up(monkeypatch, tmp_path):
    "The window stays open and nobody is there; the alarm is off afterwards."
    place = colab(monkeypatch, tmp_path, lambda path, timeout_ms: time.sleep(60))
    found = mount_drive(place, timeout=0.05)
    assert found.folder is None
    assert "no answer" in found.line
    time.sleep(0.1)


def test_a_drive_that_is_not_there_after_mounting_is_none(monkeypatch, tmp_path):
    "mount() returned, and there is no MyDrive."
    found = mount_drive(colab(monkeypatch, tmp_path, lambda path, timeout_ms: None))
    assert found.folder is None
    assert "there is no" in found.line


def test_elsewhere_drive_is_not_asked_for(monkeypatch, tmp_path):
    "On Kaggle and here it does nothing, and says so."

    def mount(path, timeout_ms):
        raise AssertionError("asked")

    colab(monkeypatch, tmp_path, mount)
    found = mount_drive(HERE)
    assert found.folder is None
    assert "in Colab only" in found.line


def test_mounting_outside_the_main_thread_does_without_the_alarm(monkeypatch, tmp_path):
    "Signals cannot be set there."
    place = colab(monkeypatch, tmp_path, lambda path, timeout_ms: None)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(mount_drive, place).result().folder is None


def test_a_dataset_on_drive_mounts_it(monkeypatch, tmp_path):
    "To name a path there is to ask for it; the archive is unpacked to the local disk."

    def mount(path, timeout_ms):
        write_into = Path(path) / "MyDrive"
        write_into.mkdir(parents=True)
        write(write_into / "set.zip", {"images/a.png": "a", "masks/a.png": "b"})

    place = colab(monkeypatch, tmp_path, mount)
    found = find_dataset(str(tmp_path / "drive/MyDrive/set.zip"), place)
    assert found.is_relative_to(place.local)
    assert tree(found) == {"images/a.png": b"a", "masks/a.png": b"b"}


def test_a_dataset_on_a_drive_that_is_refused_says_why(monkeypatch, tmp_path):
    "Not that there is no such folder."

    def mount(path, timeout_ms):
        raise ValueError("mount failed")

    place = colab(monkeypatch, tmp_path, mount)
    line = refusal(find_dataset, str(tmp_path / "drive/MyDrive/set.zip"), place)
    assert "Google Drive is not mounted (mount failed)" in line


def test_loose_files_on_drive_are_copied_once(monkeypatch, tmp_path, capsys):
    "Never trained on file by file; a changed folder is copied anew, and the line names the zip."
    place = colab(monkeypatch, tmp_path)
    loose = make_dataset(tmp_path / "drive" / "MyDrive" / "set")
    found = find_dataset(str(loose), place)
    assert found.is_relative_to(place.local)
    assert found.name == "set"
    assert tree(found) == tree(loose)
    said = capsys.readouterr().out
    assert "copying set from Google Drive: 22 files" in said
    assert ".zip of them would be much faster" in said
    assert find_dataset(str(loose), place) == found
    assert capsys.readouterr().out == ""
    (loose / "test.txt").write_text("train_0\n")
    again = find_dataset(str(loose), place)
    assert again != found
    assert tree(again) == tree(loose)


def vanishing(monkeypatch, folder, after):
    "A disk of which so many pieces can be read, and then nothing."
    opened, pieces = open, []

    class Far(io.FileIO):
        def read(self, *size):
            pieces.append(size)
            if len(pieces) > after:
                raise OSError(107, "Transport endpoint is not connected")
            return super().read(*size)

    def far(path, mode="r", *args, **kwargs):
        if isinstance(path, Path) and path.is_relative_to(folder) and mode == "rb":
            return Far(path)
        return opened(path, mode, *args, **kwargs)

    monkeypatch.setattr("builtins.open", far)


def test_a_copy_that_breaks_off_leaves_nothing(monkeypatch, tmp_path):
    "Drive may vanish in the middle: it is what is named, and the next start copies again."
    place = colab(monkeypatch, tmp_path)
    loose = make_dataset(tmp_path / "drive" / "MyDrive" / "set")
    with monkeypatch.context() as broken:
        vanishing(broken, tmp_path / "drive", after=6)
        line = refusal(find_dataset, str(loose), place)
    assert "cannot be read ([Errno 107] Transport endpoint is not connected" in line
    assert line.startswith(str(loose)) and line.endswith("mount Google Drive again")
    assert left(place.local) == []
    assert tree(find_dataset(str(loose), place)) == tree(loose)


def test_a_part_of_drive_that_cannot_be_listed_is_told(monkeypatch, tmp_path):
    "It must not be left out of the copy without a word."
    place = colab(monkeypatch, tmp_path)
    loose = make_dataset(tmp_path / "drive" / "MyDrive" / "set")
    scandir = os.scandir

    def broken(path):
        if str(path).endswith("masks"):
            raise OSError(5, "Input/output error")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", broken)
    line = refusal(places.copy_from_drive, loose, place.local)
    assert "set: cannot be read ([Errno 5] Input/output error)" in line
    assert left(place.local) == []


# Archives


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_archive_is_read_like_its_folder(here, tmp_path, suffix):
    "The same names and pixels, whatever it is packed in."
    folder = make_dataset(tmp_path / "set")
    archive = write(tmp_path / f"packed{suffix}", tree(folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(places, "where", lambda *_: here)
        plain, packed = (
            read_dataset(Config(dataset_dir=str(path)))[0] for path in (folder, archive)
        )
    assert {k: v.hash for k, v in plain.items()} == {k: v.hash for k, v in packed.items()}
    assert packed["train"].source == "packed"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_it_is_unpacked_once(here, tmp_path, capsys, suffix):
    "A second start finds the folder; the lines say what happens and what it weighs."
    archive = write(tmp_path / f"set{suffix}", {"images/a.png": "a" * 1000, "b.txt": "b"})
    found = find_dataset(str(archive), here)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"data    unpacking set{suffix}: 2 files, 0.0 MB, to ")
    assert len(said) == 2
    (found / "b.txt").write_text("kept")
    assert find_dataset(str(archive), here) == found
    assert capsys.readouterr().out == ""
    assert tree(found)["b.txt"] == b"kept"


def test_another_archive_of_the_same_name_is_not_mistaken(here, tmp_path):
    "Same name, same size, same time: other content."
    found = []
    for number, content in enumerate("ab"):
        folder = tmp_path / str(number)
        folder.mkdir()
        archive = write(folder / "set.zip", {"a.txt": content, "b.txt": "b"})
        os.utime(archive, (1e9, 1e9))
        found.append(unpack(archive, here.local))
    assert [tree(folder)["a.txt"] for folder in found] == [b"a", b"b"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_wrapping_folder_and_junk_are_skipped(here, tmp_path, suffix):
    "As GitHub and macOS pack."
    files = {
        "sirst-master/images/a.png": "a",
        "sirst-master/masks/a.png": "a",
        "sirst-master/.DS_Store": "x",
        "__MACOSX/sirst-master/._a.png": "x",
        "sirst-master/images/._a.png": "x",
        ".DS_Store": "x",
    }
    found = unpack(write(tmp_path / f"set{suffix}", files), here.local)
    assert found.name == "sirst-master"
    assert sorted(tree(found)) == ["images/a.png", "masks/a.png"]


def test_backslashes_and_folders_as_members(here, tmp_path):
    "Some tools of Windows write paths so; some archives list their folders."
    files = {"images\\a.png": "a", "masks/": "", "./masks/a.png": "b"}
    found = unpack(write(tmp_path / "set.zip", files), here.local)
    assert tree(found) == {"images/a.png": b"a", "masks/a.png": b"b"}


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz"])
@pytest.mark.parametrize(
    "name",
    [
        *("../evil", "images/../../evil", "/etc/evil", "C:\\evil", "c:evil"),
        *("..\\evil", "\\\\host\\evil", "images/.."),
    ],
)
def test_a_member_that_leads_elsewhere_refuses_the_archive(here, tmp_path, suffix, name):
    "Nothing of it is written, also not the harmless members before it."
    archive = write(tmp_path / f"set{suffix}", {"images/a.png": "a", name: "evil"})
    line = refusal(unpack, archive, here.local)
    assert f"set{suffix}: refused, its member {name!r}" in line
    assert left(tmp_path) == ["input", "local", f"set{suffix}"]
    assert left(here.local) == []  # no trace of it


KINDS = {
    "symlink": tarfile.SYMTYPE,
    "hardlink": tarfile.LNKTYPE,
    "character device": tarfile.CHRTYPE,
    "block device": tarfile.BLKTYPE,
    "fifo": tarfile.FIFOTYPE,
}


@pytest.mark.parametrize("kind", KINDS)
def test_links_and_devices_in_a_tar_refuse_it(here, tmp_path, kind):
    "Also a link that would stay inside: data sets have none."
    with tarfile.open(tmp_path / "set.tar", "w") as box:
        box.addfile(tarfile.TarInfo("images/a.png"))
        header = tarfile.TarInfo("images/b.png")
        header.type, header.linkname = KINDS[kind], "a.png"
        box.addfile(header)
    line = refusal(unpack, tmp_path / "set.tar", here.local)
    assert "'images/b.png' is a link or a device" in line
    assert left(here.local) == []


@pytest.mark.parametrize("mode", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR])
def test_links_and_devices_in_a_zip_refuse_it(here, tmp_path, mode):
    "A zip from Unix says so in its attributes."
    info = zipfile.ZipInfo("images/b.png")
    info.create_system, info.external_attr = 3, (mode | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as box:
        box.writestr(info, "/etc/passwd")
    line = refusal(unpack, tmp_path / "set.zip", here.local)
    assert "'images/b.png' is a link or a device" in line
    assert left(here.local) == []


def test_an_archive_that_changes_after_the_first_look_writes_nothing_elsewhere(
    here, tmp_path, monkeypatch
):
    "Members are looked at again when they are written."
    archive = write(tmp_path / "set.zip", {"images/a.png": "a", "../evil": "evil"})
    monkeypatch.setattr(places, "look_through", lambda archive: (1, 1))
    assert "'../evil' leads out of its folder" in refusal(unpack, archive, here.local)
    assert left(here.local) == []


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz"])
def test_a_bomb_is_refused_before_anything_is_written(here, tmp_path, monkeypatch, suffix):
    "More than a hundred times the archive, and large."
    monkeypatch.setattr(places, "GROWN", 1_000_000)
    archive = write(tmp_path / f"set{suffix}", {"a": bytes(1_100_000), "b": "b"})
    assert "0.0 MB would become 1.1 MB or more" in refusal(unpack, archive, here.local)
    assert left(here.local) == []


def test_a_tar_that_declares_a_terabyte_is_refused_by_its_headers(here, tmp_path):
    "Nothing is read for it, so this is quick."
    header = tarfile.TarInfo("images/a.png")
    header.size = 10**12
    (tmp_path / "set.tar").write_bytes(header.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    assert "would become 1000000 MB" in refusal(unpack, tmp_path / "set.tar", here.local)


def test_more_members_than_any_dataset_has_are_refused(here, tmp_path, monkeypatch):
    "A million empty files fill a disk's table without a byte."
    monkeypatch.setattr(places, "MOST_MEMBERS", 3)
    archive = write(tmp_path / "set.tar.gz", {f"{i}": "" for i in range(4)})
    assert "more than 3 members" in refusal(unpack, archive, here.local)


def test_a_disk_without_room_is_told_before_the_work(here, tmp_path, monkeypatch):
    "With what is needed and what is there."
    archive = write(tmp_path / "set.zip", {"a": random.Random(0).randbytes(50_000)})
    usage = types.SimpleNamespace(free=40_000)
    monkeypatch.setattr(places.shutil, "disk_usage", lambda path: usage)
    line = refusal(unpack, archive, here.local)
    assert "set.zip: needs 0.1 MB" in line
    assert "0.0 MB free" in line
    assert left(here.local) == []


def test_a_disk_that_fills_up_meanwhile(here, tmp_path, monkeypatch):
    "One line; the half is gone."

    def full(member, folder):
        folder.mkdir(exist_ok=True)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(places, "write_member", full)
    archive = write(tmp_path / "set.zip", {"a": "a"})
    assert "the disk is full" in refusal(unpack, archive, here.local)
    assert left(here.local) == []


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ENAMETOOLONG])
def test_what_the_disk_refuses_is_not_the_archives_fault(here, tmp_path, monkeypatch, number):
    "To fetch the archive again would not help."
    archive, opened = write(tmp_path / "set.zip", {"a": "a"}), open

    def refuse(path, mode="r", *args, **kwargs):
        if mode == "wb" and Path(path).is_relative_to(here.local):
            raise OSError(number, os.strerror(number))
        return opened(path, mode, *args, **kwargs)

    monkeypatch.setattr("builtins.open", refuse)
    line = refusal(unpack, archive, here.local)
    assert f"{here.local}: cannot be filled ([Errno {number}] {os.strerror(number)})" in line
    assert left(here.local) == []


def test_an_archive_that_cannot_be_read_is_not_damaged(here, tmp_path, monkeypatch):
    "A disk that drops out while it is unpacked."
    archive = write(tmp_path / "set.tar", {"a": bytes(100_000)})
    vanishing(monkeypatch, archive, after=0)
    assert "set.tar: cannot be read ([Errno 107]" in refusal(unpack, archive, here.local)
    assert left(here.local) == []


def test_a_folder_that_cannot_be_made(here, tmp_path):
    "A file is where the folder should be."
    here.local.write_text("")
    archive = write(tmp_path / "set.zip", {"a": "a"})
    assert "cannot be filled" in refusal(unpack, archive, here.local)


def test_a_zip_that_lies_about_its_sizes_writes_no_more_than_it_declared(here, tmp_path):
    "The table of contents says ten bytes, the member holds a million."
    archive = write(tmp_path / "set.zip", {"a.txt": "x" * 1_000_000})
    data = archive.read_bytes().replace(struct.pack("<L", 1_000_000), struct.pack("<L", 10))
    archive.write_bytes(data)
    written = []

    def spy(member, folder, write_member=places.write_member):
        try:
            write_member(member, folder)
        finally:
            written.append((folder / member.name).stat().st_size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(places, "write_member", spy)
        assert "damaged" in refusal(unpack, archive, here.local)
    assert max(written) <= 10
    assert left(here.local) == []


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("suffix", [".zip", ".tar"])
def test_of_a_member_twice_the_later_one_stays(here, tmp_path, suffix):
    "`tar -r` appends a file that has changed."
    for content in ("old", "new"):
        if suffix == ".zip":
            with zipfile.ZipFile(tmp_path / "set.zip", "a") as box:
                box.writestr("a.txt", content)
        else:
            (tmp_path / "a.txt").write_text(content)
            with tarfile.open(tmp_path / "set.tar", "a") as box:
                box.add(tmp_path / "a.txt", "a.txt")
    found = unpack(tmp_path / f"set{suffix}", here.local)
    assert tree(found) == {"a.txt": b"new"}


@pytest.mark.parametrize("names", [("a", "a/b"), ("a/b", "a")])
def test_a_member_that_is_a_file_and_a_folder_is_refused(here, tmp_path, names):
    "No disk can hold that; it is the archive's fault and not the disk's."
    archive = write(tmp_path / "set.tar", dict.fromkeys(names, "x"))
    assert f"member '{names[1]}' is a file and a folder" in refusal(unpack, archive, here.local)
    assert left(here.local) == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("/".join("a" * 51), "lies in more than 50 folders"),
        ("/".join("a" * 2000), "lies in more than 50 folders"),
        ("images/" + "a" * 256, "has a name that no file can have"),
        ("images/" + "\u4e00" * 100, "has a name that no file can have"),
    ],
)
@pytest.mark.parametrize("suffix", [".zip", ".tar.gz"])
def test_a_member_that_no_disk_takes_is_refused(here, tmp_path, suffix, name, said):
    "In the first look, and in one line that is not long."
    line = refusal(unpack, write(tmp_path / f"set{suffix}", {"b": "b", name: "a"}), here.local)
    assert said in line
    assert len(line) < 500


def test_folders_in_folders_are_opened_at_every_start(here, tmp_path):
    "As deep as they may be, and deeper where a disk has them already."
    name = "/".join("a" * 50)
    archive = write(tmp_path / "set.zip", {name: "a"})
    assert unpack(archive, here.local) == unpack(archive, here.local)
    deep = tmp_path.joinpath("deep", *"a" * 300)
    deep.mkdir(parents=True)
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 150)
    try:
        assert places.innermost(tmp_path / "deep") == deep
    finally:
        sys.setrecursionlimit(usual)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_of_an_unusual_method_is_refused(here, tmp_path, method):
    "The library undoes those in one go, however much memory it takes."
    with zipfile.ZipFile(tmp_path / "set.zip", "w", method) as box:
        box.writestr("a.png", bytes(10_000))
    line = refusal(unpack, tmp_path / "set.zip", here.local)
    assert "is packed in an unusual way; unpack it by hand" in line
    assert left(here.local) == []


@pytest.mark.parametrize("method", ["bz2", "xz"])
def test_a_tar_is_plain_or_gzip_whatever_it_is_called(here, tmp_path, method):
    "The others are slow bombs."
    with tarfile.open(tmp_path / "set.tgz", f"w:{method}") as box:
        box.addfile(tarfile.TarInfo("a.png"))
    assert "neither zip nor tar" in refusal(unpack, tmp_path / "set.tgz", here.local)
    assert not places.is_tar(tmp_path / "set.tgz")


def test_zeros_behind_the_last_member_are_not_read_for_ever(here, tmp_path, monkeypatch):
    "They are in no header; a tar's own filling is allowed."
    monkeypatch.setattr(places, "GROWN", 100_000_000)
    plain = write(tmp_path / "set.tar", {"a.txt": "a"}).read_bytes()
    for zeros, fine in ((500_000, True), (5_000_000, False)):
        (tmp_path / "set.tar.gz").write_bytes(gzip.compress(plain + bytes(zeros)))
        if fine:
            assert tree(unpack(tmp_path / "set.tar.gz", here.local)) == {"a.txt": b"a"}
            continue
        line = refusal(unpack, tmp_path / "set.tar.gz", here.local)
        assert "refused, it goes on and on behind its last member" in line


def test_empty_members_count_as_what_they_fill(here, tmp_path, monkeypatch):
    "A block each; a tar of a few kilobytes holds thousands."
    monkeypatch.setattr(places, "MANY_MEMBERS", 500)
    for count, fine in ((500, True), (501, False)):
        archive = write(tmp_path / f"{count}.tgz", dict.fromkeys(map(str, range(count)), ""))
        if fine:
            assert len(tree(unpack(archive, here.local))) == count
        else:
            assert "would become 2.1 MB or more" in refusal(unpack, archive, here.local)


def test_headers_that_were_read_are_forgotten(tmp_path):
    "A million of them would fill the memory."
    archive = write(tmp_path / "set.tar", dict.fromkeys(map(str, range(200)), ""))
    for count, _ in enumerate(places.members(archive)):
        if count == 150:
            assert sum(type(thing) is places.Header for thing in gc.get_objects()) < 10


def test_an_encrypted_zip_says_so(here, tmp_path):
    "The flag of the member, in its header and in the table of contents."
    data = bytearray(write(tmp_path / "set.zip", {"a.txt": "secret"}).read_bytes())
    data[6] |= 1
    data[data.index(b"PK\1\2") + 8] |= 1
    (tmp_path / "set.zip").write_bytes(data)
    line = refusal(unpack, tmp_path / "set.zip", here.local)
    assert "is encrypted; unpack it by hand" in line


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_cut_archive_is_refused_wherever_it_is_cut(here, tmp_path, suffix):
    "Also exactly between two members of a tar, where nothing is odd but the missing end."
    random_bytes = random.Random(0).randbytes
    whole = write(tmp_path / f"set{suffix}", {f"{i}.png": random_bytes(700) for i in range(4)})
    data = whole.read_bytes()
    end = 4 * 1536 if suffix == ".tar" else len(data)  # a tar ends with zeros, as many as it likes
    for cut in [*range(0, end, 512), *range(100, end, 487), end - 1]:
        whole.write_bytes(data[:cut])
        assert "damaged, or no archive" in refusal(unpack, whole, here.local)
        assert left(here.local) == []


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz", ".tgz"])
def test_a_flipped_bit_in_an_image_is_found(here, tmp_path, suffix):
    "By the sums that these formats hold; an uncompressed tar has none."
    archive = write(tmp_path / f"set{suffix}", {"a.png": random.Random(1).randbytes(5000)})
    data = bytearray(archive.read_bytes())
    data[len(data) // 2] ^= 16
    archive.write_bytes(data)
    assert "damaged" in refusal(unpack, archive, here.local)
    assert left(here.local) == []


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
def test_a_damaged_header_is_not_taken_for_the_end(here, tmp_path, suffix):
    "Python's reader would leave out the rest without a word."
    plain = write(tmp_path / "set.tar", {f"{i}.png": "x" * 100 for i in range(3)})
    data = bytearray(plain.read_bytes())
    data[1024 + 150] ^= 1  # the second header's own sum
    plain.write_bytes(data)
    archive = tmp_path / f"set{suffix}"
    if suffix == ".tar.gz":
        archive.write_bytes(gzip.compress(bytes(data)))
    assert "damaged after 1024 bytes" in refusal(unpack, archive, here.local)


@pytest.mark.parametrize("size", [-1, -(2**20), 2**21])
@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.REGTYPE])
def test_a_tar_with_impossible_sizes_neither_loops_nor_fills_the_memory(here, tmp_path, size, kind):
    "Less than nothing sends Python's reader back; a long name is read at once."
    good = tarfile.TarInfo("a.txt").tobuf(tarfile.GNU_FORMAT)
    header = tarfile.TarInfo("b.txt")
    header.type, header.size = kind, size
    data = good + header.tobuf(tarfile.GNU_FORMAT) + bytes(2**22)
    (tmp_path / "set.tar").write_bytes(data)
    if kind == tarfile.REGTYPE and size > 0:
        assert len(tree(unpack(tmp_path / "set.tar", here.local))) == 2
    else:
        assert "damaged after 512 bytes" in refusal(unpack, tmp_path / "set.tar", here.local)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("seed", range(8))
def test_any_bytes_are_refused_in_one_line(here, tmp_path, suffix, seed):
    "Whatever they are: noise, a damaged archive, the beginning of another kind."
    rng = random.Random(seed)
    archive = tmp_path / f"set{suffix}"
    good = write(archive, {f"{i}/a.png": rng.randbytes(300) for i in range(5)}).read_bytes()
    starts = [b"", b"PK\3\4", b"\x1f\x8b\x08\0", b"Rar!\x1a\7", b"<html>", bytes(600), good[:200]]
    for start in starts:
        archive.write_bytes(start + rng.randbytes(rng.choice([0, 3, 500, 5000])))
        refusal(unpack, archive, here.local)
    for _ in range(20):
        data = bytearray(good)
        for _ in range(rng.choice([1, 3, 30])):
            data[rng.randrange(len(data))] = rng.randrange(256)
        archive.write_bytes(data)
        with contextlib.suppress(UserError):  # a change may be harmless
            unpack(archive, here.local)
    assert not [name for name in left(here.local) if name.startswith(".")]
    assert set(left(tmp_path)) <= {"input", "local", f"set{suffix}"}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_empty_archive_is_refused(here, tmp_path, suffix):
    "And one with nothing but a folder or junk."
    for files in ({}, {"__MACOSX/._a": "x"}):
        archive = write(tmp_path / f"set{suffix}", files)
        assert "holds no file" in refusal(unpack, archive, here.local)


def test_an_interrupted_unpacking_is_done_again(here, tmp_path, monkeypatch):
    "By a key, or by the power: what is left of it is thrown away."
    archive = write(tmp_path / "set.zip", {"a.txt": "a", "b.txt": "b"})

    def stop(member, folder):
        raise KeyboardInterrupt

    with monkeypatch.context() as stopped, pytest.raises(KeyboardInterrupt):
        stopped.setattr(places, "write_member", stop)
        unpack(archive, here.local)
    assert left(here.local) == []
    target = places.target_of(archive, here.local)
    half = target.with_name(f".{target.name}.partial")
    (half / "set").mkdir(parents=True)
    (half / "set" / "a.txt").write_text("ha")
    assert tree(unpack(archive, here.local)) == {"a.txt": b"a", "b.txt": b"b"}
    assert left(here.local) == [target.name]


def test_processes_that_come_together_unpack_once(here, tmp_path, capsys):
    "One per GPU, at the same moment: the others wait."
    archive = write(tmp_path / "set.tar.gz", {f"{i}.txt": "x" * 1000 for i in range(200)})
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: unpack(archive, here.local), range(4)))
    assert len(found) == 1
    assert capsys.readouterr().out.count("unpacking") == 1
    assert len(tree(found.pop())) == 200


def test_of_processes_that_come_together_one_looks_for_room(here, tmp_path, monkeypatch):
    "The disk of the later one is filled, by the first with the very same files."
    archive = write(tmp_path / "set.zip", {f"{i}.txt": "x" * 1000 for i in range(9)})
    free, begun, write_member = [10**9], threading.Event(), places.write_member
    usage = lambda path: types.SimpleNamespace(free=free[0])  # noqa: E731

    def slow(member, folder):
        free[0] = 0
        begun.set()
        time.sleep(0.02)
        write_member(member, folder)

    monkeypatch.setattr(places.shutil, "disk_usage", usage)
    monkeypatch.setattr(places, "write_member", slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(unpack, archive, here.local)
        assert begun.wait(30)
        assert pool.submit(unpack, archive, here.local).result() == first.result()


def test_an_archive_on_drive_is_read_there_once(monkeypatch, tmp_path, capsys):
    "It is copied, and what is looked at and unpacked is the copy, which does not stay."
    place, read = colab(monkeypatch, tmp_path), []
    (tmp_path / "drive" / "MyDrive").mkdir(parents=True)
    archive = write(tmp_path / "drive/MyDrive/set.zip", {"images/a.png": "a", "b.txt": "b"})
    members = places.members
    monkeypatch.setattr(places, "members", lambda path: read.append(path) or members(path))
    found = find_dataset(str(archive), place)
    assert read and not any(path.is_relative_to(tmp_path / "drive") for path in read)
    assert sorted(tree(found)) == ["b.txt", "images/a.png"]
    assert list(place.local.rglob("*.zip")) == []
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "data    copying set.zip from Google Drive: 0.0 MB"
    assert find_dataset(str(archive), place) == found
    assert len(read) == 2
    assert capsys.readouterr().out == ""


def test_an_archive_whose_drive_vanishes_leaves_nothing(monkeypatch, tmp_path):
    "It is not damaged."
    place = colab(monkeypatch, tmp_path)
    (tmp_path / "drive" / "MyDrive").mkdir(parents=True)
    archive = write(tmp_path / "drive/MyDrive/set.zip", {"a": random.Random(0).randbytes(2**21)})
    vanishing(monkeypatch, tmp_path / "drive", after=2)  # the digits of its name, and one piece
    line = refusal(find_dataset, str(archive), place)
    assert "set.zip: cannot be read" in line and line.endswith("mount Google Drive again")
    assert left(place.local) == []


def test_what_takes_long_shows_how_far_it_is(monkeypatch, tmp_path):
    "Copying and unpacking: every byte is counted."
    seen = []

    @contextlib.contextmanager
    def progress(total, have=0):
        come = []
        yield come.append
        seen.append((total, sum(come)))

    monkeypatch.setattr(places, "progress", progress)
    place = colab(monkeypatch, tmp_path)
    loose = make_dataset(tmp_path / "drive" / "MyDrive" / "set")
    archive = write(tmp_path / "drive/MyDrive/set.zip", tree(loose))
    size = sum(map(len, tree(loose).values()))
    find_dataset(str(loose), place)
    find_dataset(str(archive), place)
    packed = archive.stat().st_size
    assert seen == [(size, size), (packed, packed), (size, size)]


def test_a_drive_that_does_not_answer_is_not_mounted(monkeypatch):
    "Even the question for a folder may wait for ever."
    monkeypatch.setattr(os.path, "isdir", lambda path: time.sleep(60))
    assert not places.is_mounted(Path("drive"), patience=0.05)


# Where a data set is


def test_names_are_found_in_the_place_and_below(here):
    "Kaggle: /kaggle/input/NAME, or NAME inside of it; folders or archives."
    (here.data / "irstd" / "IRSTD-1k").mkdir(parents=True)
    (here.data / "irstd" / "IRSTD-1k" / "a.txt").touch()
    (here.data / "more").mkdir()
    write(here.data / "more" / "set.tar.gz", {"images/a.png": "a", "b.txt": "b"})
    assert find_dataset("irstd", here) == here.data / "irstd"
    assert find_dataset("IRSTD-1k", here) == here.data / "irstd" / "IRSTD-1k"
    found = find_dataset("set.tar.gz", here)
    assert sorted(tree(found)) == ["b.txt", "images/a.png"]
    assert find_dataset("more", here) == found  # holds nothing else


def test_nothing_that_is_half_or_ours_is_found_by_name(here, tmp_path):
    "A folder of a process that was killed, or is at work; and what lies in what was unpacked."
    here = replace(here, local=here.data)
    for folder in (".set-12345678.partial/set", ".half/x/set", "x/.half/set"):
        make_dataset(here.data / folder)
    archive = write(tmp_path / "more.zip", {"a/set/a.txt": "a", "b/b.txt": "b"})
    unpack(archive, here.local)
    unpack(write(tmp_path / "set.zip", {"a.txt": "a"}), here.local)
    assert "there is no such folder" in refusal(find_dataset, "set", here)
    make_dataset(here.data / "x" / "set")
    assert find_dataset("set", here) == here.data / "x" / "set"


def test_a_folder_on_drive_is_not_mistaken_for_its_old_copy(monkeypatch, tmp_path):
    "Both lie two folders below the place's data; only one of them is up to date."
    place = replace(colab(monkeypatch, tmp_path), data=tmp_path, local=tmp_path / "data")
    loose = make_dataset(tmp_path / "drive" / "MyDrive" / "set")
    find_dataset("set", place)
    (loose / "test.txt").write_text("train_0\n")
    assert tree(find_dataset("set", place)) == tree(loose)


def test_of_folders_with_one_name_the_places_own_comes_first(here, tmp_path, monkeypatch):
    "Whatever numbers Python gives to their names today."
    for number in range(8):
        top = tmp_path / str(number)
        folders = [top / name / "Nuaa-Sirst" for name in ("data", "local", "work")]
        for folder in folders:
            folder.mkdir(parents=True)
        monkeypatch.chdir(top / "work")
        place = replace(here, data=top / "data", local=top / "local")
        found = [path.absolute() for path in places.could_be("nuaa-sirst", place)]
        assert [path for path in found if path.exists()] == folders


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing", "there is no such folder"),
        ("nothing.zip", "there is no such folder"),
        ("a.rar", "is a file, not a folder or an archive (.zip, .tar, .tar.gz, .tgz)"),
        ("sett", "did you mean set?"),
        ("~nobody/x", "there is no such folder"),
        ("x" * 5000, "there is no such folder"),
        ("a\0b", "there is no such folder"),
        ("*", "there is no such folder"),
        ("[", "there is no such folder"),
        ("a\nb", "there is no such folder"),
    ],
)
def test_what_is_not_there_is_one_line(here, monkeypatch, tmp_path, text, said):
    "With what was written and what to do."
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.rar").write_text("Rar!")
    (tmp_path / "set").mkdir()
    (here.data / "x").mkdir()
    assert said in refusal(find_dataset, text, here)


def test_a_damaged_archive_is_one_line_of_the_command(capsys, tmp_path, monkeypatch):
    "`mshnet data x.zip`: status 2, and doctor reports it among the rest."
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.zip").write_bytes(b"PK\3\4 no zip")
    assert main(["data", "x.zip"]) == 2
    assert capsys.readouterr().err.startswith("mshnet: x.zip: damaged, or no archive")
    assert main(["doctor", "--device", "cpu", "--dataset-dir", "x.zip"]) == 2
    assert "damaged, or no archive" in capsys.readouterr().out


# Fetched by name


class Server(http.server.ThreadingHTTPServer):
    "Serves some bytes, badly: `plan` says how each request is answered, the last way for ever."

    def __init__(self, content, plan):
        super().__init__(("127.0.0.1", 0), Answer)
        self.content, self.plan = content, plan
        self.asked, self.done = [], threading.Event()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/set.zip"


class Answer(http.server.BaseHTTPRequestHandler):
    "One answer."

    def do_GET(self):
        server = self.server
        how = server.plan[min(len(server.asked), len(server.plan) - 1)]
        begin = self.headers.get("Range")
        server.asked.append(begin)
        if isinstance(how, int):
            return self.send_error(how)
        whole = how in ("ignore range", "other version") or not begin
        first = 0 if whole else int(begin[6:-1])
        body = server.content[first:]
        self.send_response(200 if whole else 206)
        self.send_header("ETag", '"2"' if how == "other version" else '"1"')
        if how == "no version":
            self._headers_buffer.pop()
        if how != "no length":
            self.send_header("Content-Length", str(len(body)))
        if not whole:
            shift = 1 if how == "wrong part" else 0
            self.send_header("Content-Range", f"bytes {first + shift}-/{len(server.content)}")
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if how in ("drop", "hang", "no version") else body)
        if how == "hang":
            self.wfile.flush()
            server.done.wait(20)

    def log_message(self, *_):
        "Be quiet."


@contextlib.contextmanager
def serving(content, *plan):
    "A server for a moment."
    with Server(content, plan) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.done.set()
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    "The stand-in is on this machine."
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def packed(tmp_path):
    "The bytes of a small archive."
    folder = tmp_path / "made"
    folder.mkdir()
    files = {"w/images/a.png": random.Random(3).randbytes(9000), "w/test.txt": "a"}
    return write(folder / "set.zip", files).read_bytes()


QUICK = {"pause": 0, "timeout": 5}


def test_a_download_that_breaks_off_goes_on_where_it_was(tmp_path, packed):
    "Twice; only the rest is asked for."
    with serving(packed, "drop", "drop", "well") as server:
        fetch(server.url, tmp_path / "set.zip", **QUICK)
    assert (tmp_path / "set.zip").read_bytes() == packed
    half = len(packed) // 2
    assert server.asked == [
        None,
        f"bytes={half}-",
        f"bytes={half + (len(packed) - half) // 2}-",
    ]


@pytest.mark.parametrize(
    "plan",
    [
        ("drop", "ignore range"),
        ("drop", "other version"),
        ("drop", "wrong part", "well"),
        ("drop", 416, "well"),
        ("no version", "well"),
        ("no length",),
        (500, 503, 429, "well"),
    ],
)
def test_other_ways_of_servers_give_the_same_file(tmp_path, packed, plan):
    "The whole instead of the rest, another version, the wrong part, no length, not now."
    with serving(packed, *plan) as server:
        fetch(server.url, tmp_path / "set.zip", **QUICK)
    assert (tmp_path / "set.zip").read_bytes() == packed


def test_a_server_that_hangs_is_left_and_asked_again(tmp_path, packed):
    "After a time without a byte."
    with serving(packed, "hang", "well") as server:
        fetch(server.url, tmp_path / "set.zip", timeout=0.2, pause=0)
    assert (tmp_path / "set.zip").read_bytes() == packed


@pytest.mark.parametrize(
    ("plan", "said", "asked"),
    [((404,), "HTTP Error 404", 1), ((403,), "HTTP Error 403", 1), ((500,), "HTTP Error 500", 3)],
)
def test_an_address_that_answers_no_is_one_line(tmp_path, packed, plan, said, asked):
    "404 is not asked again, 500 is; no file is left."
    with serving(packed, *plan) as server:
        line = refusal(fetch, server.url, tmp_path / "set.zip", tries=3, **QUICK)
    assert said in line
    assert len(server.asked) == asked
    assert not (tmp_path / "set.zip").exists()


def test_no_server_at_all_is_one_line(tmp_path):
    "No network, a name that does not resolve: the system's word in it."
    with serving(b"") as server:
        url = server.url
    assert "cannot be fetched" in refusal(fetch, url, tmp_path / "set.zip", tries=2, **QUICK)


def test_a_published_set_is_fetched_checked_and_unpacked_once(here, packed, capsys):
    "What and from where is said before; the sum of the first download is told and kept."
    with serving(packed, "drop", "well") as server:
        published = Published("Set", "https://a.example/set", server.url, note="mind the lists")
        found = bring(published, here.local, **QUICK)
        assert bring(published, here.local) == found
        assert len(server.asked) == 2
    assert sorted(tree(found)) == ["images/a.png", "test.txt"]
    said = capsys.readouterr().out.splitlines()
    assert said[0] == (
        f"data    fetching Set from {server.url}, size not known; "
        "for its licence see https://a.example/set"
    )
    record = (here.local / "Set.zip.sha256").read_text().split()
    assert record == [places.hashlib.sha256(packed).hexdigest(), "Set.zip"]
    assert any(record[0] in line for line in said)
    assert any("mind the lists" in line for line in said)


def test_other_bytes_than_the_first_time_are_refused(here, packed):
    "The archive was deleted, and the publisher has another one now."
    published = Published("Set", "https://a.example/set")
    with serving(packed, "well") as server:
        bring(replace(published, url=server.url), here.local, **QUICK)
    (here.local / "Set.zip").unlink()
    with serving(packed + b"more", "well") as server:
        line = refusal(bring, replace(published, url=server.url), here.local, **QUICK)
    assert "as the first time" in line
    assert "by hand from https://a.example/set" in line
    assert not (here.local / "Set.zip").exists()


def test_a_kept_archive_that_changed_is_not_unpacked_and_stays(here, packed):
    "A disk rots, or somebody put another file there, which is theirs."
    published = Published("Set", "https://a.example/set")
    with serving(packed, "well") as server:
        published = replace(published, url=server.url)
        found = bring(published, here.local, **QUICK)
        places.shutil.rmtree(found.parents[1])
        file = here.local / "Set.zip"
        file.write_bytes(packed + b"x")
        line = refusal(bring, published, here.local)
        assert line.startswith(f"{file}: has the sha256")
        assert "move it away to have it fetched again" in line
        assert file.read_bytes() == packed + b"x"
        file.unlink()
        assert tree(bring(published, here.local)) == tree(bring(published, here.local))


def test_an_archive_put_there_by_hand_is_never_deleted(here, packed):
    "One that is none, and a good one where another was fetched before."
    published, file = Published("Set", "", "http://127.0.0.1:1/"), here.local / "Set.zip"
    here.local.mkdir()
    file.write_bytes(b"Rar!" * 100)
    assert "is no archive, perhaps a web page; move it away" in refusal(
        bring, published, here.local
    )
    assert file.read_bytes() == b"Rar!" * 100
    file.write_bytes(packed)
    (here.local / "Set.zip.sha256").write_text("0" * 64)
    assert "Set.zip.sha256)" in refusal(bring, published, here.local)
    assert file.read_bytes() == packed
    (here.local / "Set.zip.sha256").unlink()
    assert len(tree(bring(published, here.local))) == 2


def test_a_length_that_is_no_number_is_one_line(tmp_path, packed, monkeypatch):
    "A server may send any header."
    send_header = Answer.send_header
    monkeypatch.setattr(
        Answer,
        "send_header",
        lambda self, name, value: send_header(
            self, name, "abc" if name == "Content-Length" else value
        ),
    )
    with serving(packed, "well") as server:
        line = refusal(fetch, server.url, tmp_path / "set.zip", tries=2, **QUICK)
    assert "cannot be fetched (invalid literal" in line
    assert not (tmp_path / "set.zip").exists()


@pytest.mark.parametrize(
    ("fact", "said"),
    [({"size": 7}, "and should have 7"), ({"sha256": "0" * 64}, "should have 000")],
)
def test_wrong_bytes_are_deleted(here, packed, fact, said):
    "Where size or sum are known."
    with serving(packed, "well") as server:
        published = Published("Set", "https://a.example/set", server.url, **fact)
        assert said in refusal(bring, published, here.local, **QUICK)
    assert left(here.local) == []


def test_right_facts_are_accepted(here, packed):
    "The same, known beforehand."
    digest = places.hashlib.sha256(packed).hexdigest()
    with serving(packed, "well") as server:
        published = Published("S", "", server.url, size=len(packed), sha256=digest)
        assert len(tree(bring(published, here.local, **QUICK))) == 2


def test_a_web_page_instead_of_the_archive_is_refused(here):
    "It arrives without an error; its sum is not kept."
    with serving(b"<html>too many downloads</html>", "well") as server:
        published = Published("Set", "https://a.example/set", server.url)
        assert "is no archive, perhaps a web page" in refusal(bring, published, here.local)
    assert left(here.local) == []


def test_a_tar_under_the_name_of_a_zip_is_recognised(here, tmp_path):
    "Who published it chose the form; its bytes tell."
    content = write(tmp_path / "x.tar.gz", {"a.txt": "a", "b.txt": "b"}).read_bytes()
    with serving(content, "well") as server:
        published = Published("Set", "", server.url)
        assert sorted(tree(bring(published, here.local))) == ["a.txt", "b.txt"]


def test_one_of_several_sets_in_an_archive(here, tmp_path):
    "Somebody packed three together."
    files = {f"datasets/{name}/images/a.png": name for name in ("NUAA", "NUDT", "IRSTD")}
    content = write(tmp_path / "x.zip", files).read_bytes()
    with serving(content, "well") as server:
        published = Published("Set", "", server.url, inside="nudt")
        assert tree(bring(published, here.local)) == {"images/a.png": b"NUDT"}
        line = refusal(bring, replace(published, inside="other"), here.local)
    assert "has no folder other" in line


@pytest.mark.parametrize("wrapped", ["", "datasets/", "NUDT/NUDT-SIRST/"])
def test_one_of_several_sets_is_the_same_folder_every_time(here, tmp_path, monkeypatch, wrapped):
    "Where its archive, and so what is unpacked, has its name too."
    names = ("NUDT-SIRST", "NUAA-SIRST", "IRSTD-1k")
    files = {f"{wrapped}{name}/images/a.png": name for name in names}
    url = write(tmp_path / "all.zip", files).as_uri()
    published = Published("NUDT-SIRST", "", url, inside="NUDT-SIRST")
    monkeypatch.setattr(places, "known", lambda text: published)
    for place in (here, replace(here, local=here.data)):
        found = [find_dataset("NUDT-SIRST", place) for _ in range(2)]
        assert found[0] == found[1]
        assert tree(found[0]) == {"images/a.png": b"NUDT-SIRST"}


def test_a_set_in_a_folder_of_a_commit_is_the_same_every_time(here, tmp_path, monkeypatch):
    "As GitHub packs it."
    url = write(tmp_path / "all.zip", {"sirst-84302ab/a.png": "a", "sirst-84302ab/b": ""}).as_uri()
    monkeypatch.setattr(places, "known", lambda text: Published("NUAA-SIRST", "", url))
    place = replace(here, local=here.data)
    found = [find_dataset("NUAA-SIRST", place) for _ in range(2)]
    assert found[0] == found[1]
    assert found[0].name == "sirst-84302ab"


def fake_gdown(monkeypatch, content=None, error=None):
    "A stand-in that keeps gdown's contract: the path, None, or an exception."
    asked = []

    def download(id, output, quiet):
        asked.append(id)
        if error:
            raise error
        if content is None:
            return None
        Path(output).write_bytes(content)
        return output

    monkeypatch.setitem(sys.modules, "gdown", types.SimpleNamespace(download=download))
    return asked


def test_an_archive_on_drive_comes_by_gdown(here, packed, monkeypatch):
    "Once."
    asked = fake_gdown(monkeypatch, packed)
    published = Published("Set", "https://a.example/set", drive="1abc")
    assert sorted(tree(bring(published, here.local))) == ["images/a.png", "test.txt"]
    bring(published, here.local)
    assert asked == ["1abc"]


@pytest.mark.parametrize("error", [None, RuntimeError("Cannot retrieve\nthe public link")])
def test_a_drive_that_gives_nothing_is_one_line(here, monkeypatch, error):
    "Too many downloads, or not public any more."
    fake_gdown(monkeypatch, None, error)
    line = refusal(bring, Published("Set", "https://a.example/set", drive="1abc"), here.local)
    assert "Set: not fetched" in line
    assert "get it by hand from https://a.example/set and write --dataset-dir FILE.zip" in line
    assert left(here.local) == []


@pytest.mark.parametrize("package", ["gdown", "kagglehub"])
def test_a_library_that_is_missing_is_named(here, monkeypatch, package):
    "With how to get it, and the way by hand."
    monkeypatch.setitem(sys.modules, package, None)
    address = {"gdown": {"drive": "1abc"}, "kagglehub": {"kaggle": "owner/set"}}[package]
    line = refusal(bring, Published("Set", "https://a.example/set", **address), here.local)
    assert f"pip install {package}" in line
    assert "by hand from https://a.example/set" in line


def test_a_set_on_kaggle_comes_by_kagglehub(here, tmp_path, monkeypatch):
    "It gives a folder; what it raises is one line."
    make_dataset(tmp_path / "cache" / "1" / "Set")

    def dataset_download(handle):
        if handle != "owner/set":
            raise ValueError("403 Client Error.\nYou don't have permission")
        return str(tmp_path / "cache" / "1")

    hub = types.SimpleNamespace(dataset_download=dataset_download)
    monkeypatch.setitem(sys.modules, "kagglehub", hub)
    published = Published("Set", "https://a.example/set", kaggle="owner/set")
    assert bring(published, here.local) == tmp_path / "cache" / "1" / "Set"
    assert "403 Client Error. You don't" in refusal(bring, replace(published, kaggle="a/b"), here)


def test_a_set_without_an_address_says_where_to_get_it(here):
    "By hand."
    line = refusal(bring, Published("Set", "https://a.example/set"), here.local)
    assert "get it by hand from https://a.example/set and write --dataset-dir FILE.zip" in line


def test_known_names_in_capitals_or_not(here, monkeypatch):
    "Exact but for capitals; a folder of that name comes first, in capitals or not."
    assert {p.name for p in map(known, ("SIRST", "nuaa-sirst", "Nuaa-Sirst"))} == {"NUAA-SIRST"}
    assert known("NUAA_SIRST") is None
    asked = []
    monkeypatch.setattr(places, "bring", lambda p, local: asked.append(p.name) or local)
    assert find_dataset("irstd-1K", here) == here.local
    assert asked == ["IRSTD-1k"]
    (here.data / "Irstd-1k").mkdir()
    assert find_dataset("irstd-1K", here) == here.data / "Irstd-1k"
    assert asked == ["IRSTD-1k"]


def test_the_table_of_known_sets_is_sound():
    "Each has a page and one address; a sum, where there is one, is a sum."
    names = [name.lower() for p in KNOWN for name in (p.name, *p.other_names)]
    assert len(names) == len(set(names))
    for p in KNOWN:
        assert p.page.startswith("https://")
        assert p.source
        assert p.url.startswith("https://") or not p.url
        assert len(p.sha256) in (0, 64)


# A run in one file


@pytest.fixture
def run(tmp_path):
    "A run's folder, with what comes and goes in it."
    folder = tmp_path / "runs" / "set-1f0c2a9b"
    for name in (
        *("config.json", "log.jsonl", "last.pt", "figures/learning.png", "tensorboard/events.1"),
        *(".last.pt.123.tmp", ".lock", "run.lock"),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


KEPT = ["config.json", "figures/learning.png", "last.pt", "log.jsonl"]


@pytest.mark.parametrize("format", ["zip", "tar.gz"])
def test_a_packed_run_unpacks_to_itself(run, tmp_path, format):
    "Under its own name; nothing of what comes and goes, and nobody's name."
    path = pack(run, format)
    assert path == run.parent / f"{run.name}.{format}"
    assert left(run.parent) == sorted([run.name, path.name])
    if format == "tar.gz":
        with tarfile.open(path) as box:
            assert {(h.uid, h.gid, h.uname, h.gname) for h in box} == {(0, 0, "", "")}
    found = unpack(path, tmp_path / "local")
    assert found.name == run.name
    assert tree(found) == {name: name.encode() for name in KEPT}


def test_packing_again_replaces_the_file(run):
    "The file beside the run, or wherever it was written."
    sizes = [pack(run, "zip").stat().st_size for _ in range(3)]
    assert len(set(sizes)) == 1
    (run / "last.pt").write_text("longer than before")
    assert pack(run, "zip").stat().st_size != sizes[0]


def test_nothing_of_the_run_is_replaced(run, tmp_path):
    "Neither a checkpoint nor what was packed into it before, also not by way of a link."
    before = tree(run)
    (tmp_path / "link.zip").symlink_to(run / "mine.zip")
    assert "write a name that ends in .tar.gz or .tgz or .zip" in refusal(
        pack, run, output=run / "last.pt"
    )
    assert pack(run, "zip", run / "mine.zip").exists()
    for path in (run / "mine.zip", tmp_path / "link.zip"):
        assert "is a file of the run itself" in refusal(pack, run, "zip", path)
    (run / "mine.zip").unlink()
    assert tree(run) == before


@pytest.mark.parametrize(
    ("name", "kind"), [("a.zip", "zip"), ("A.ZIP", "zip"), ("a.tgz", "gz"), ("a.tar.gz", "gz")]
)
def test_a_file_is_what_its_name_says(run, tmp_path, name, kind):
    "Without a format, and never against it."
    path = pack(run, output=tmp_path / name)
    assert path == tmp_path / name
    assert path.read_bytes()[:2] == {"zip": b"PK", "gz": b"\x1f\x8b"}[kind]
    other = {"zip": "tar.gz", "gz": "zip"}[kind]
    assert "write a name that ends in ." in refusal(pack, run, other, path)


def test_a_failed_packing_keeps_the_old_file(run, monkeypatch):
    "Atomic: the old one or the new one."
    path = pack(run)
    before = path.read_bytes()

    def fail(stream, files, format):
        stream.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(places, "write_archive", fail)
    assert "the disk is full" in refusal(pack, run)
    assert path.read_bytes() == before
    assert left(run.parent) == sorted([run.name, path.name])


def test_a_file_that_vanishes_meanwhile_is_left_out(run, monkeypatch):
    "The run goes on while it is packed."
    inside = dict.fromkeys(["x/gone"], run / "gone") | {"x/config.json": run / "config.json"}
    for format in ("zip", "tar.gz"):
        with open(run.parent / f"x.{format}", "wb") as stream:
            places.write_archive(stream, inside, format)
        found = unpack(run.parent / f"x.{format}", run.parent / "local")
        assert list(tree(found)) == ["config.json"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("pack", "required: RUN"),
        ("pack nothing", "nothing: is no run, there is no such folder"),
        ("pack set", "did you mean set-1f0c2a9b?"),
        ("pack set-1f0c2a9b/figures", "is no run, it has no config.json"),
        ("pack set-1f0c2a9b/config.json", "is no run"),
        ("pack set-1f0c2a9b --format rar", "write zip or tar.gz"),
        (
            "pack set-1f0c2a9b --output no/such/file.tar.gz",
            "there is no folder no/such; make it first",
        ),
        ("pack set-1f0c2a9b --output set-1f0c2a9b", "is a folder"),
        ("pack set-1f0c2a9b --output .", "is a folder"),
        ("pack set-1f0c2a9b --output /", "is a folder"),
        ("pack set-1f0c2a9b --output ~nobody-here/run.zip", "no file can be called that"),
        (f"pack set-1f0c2a9b --output {'a' * 300}.zip", "no file can be called that"),
        (f"pack set-1f0c2a9b --output {'a' * 250}.zip", "cannot be filled"),
        ("pack set-1f0c2a9b --format tar.gz --output run.zip", "write a name that ends in .tar.gz"),
        ("pack ~nobody-here/run", "no folder can be called that"),
        (f"pack {'a' * 300}", "no folder can be called that"),
        ("pack set-1f0c2a9b --epochs 3", "means nothing to `mshnet pack`"),
        ("pack set-1f0c2a9b more", "one word too many"),
    ],
)
def test_what_cannot_be_packed_is_one_line(run, monkeypatch, capsys, line, said):
    "Status 2."
    monkeypatch.chdir(run.parent)
    assert main(line.split()) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1
    assert left(run.parent) == [run.name]


def test_the_command_prints_the_file_and_its_size(run, monkeypatch, capsys):
    "And a trained run's settings play no part."
    monkeypatch.chdir(run.parent)
    (run / "config.json").write_text(json.dumps({"epochs": 3}))
    assert main(["pack", run.name, "--format", "zip", "--output", "out.zip"]) == 0
    assert capsys.readouterr().out == "out.zip  0.0 MB\n"
    assert zipfile.ZipFile("out.zip").testzip() is None


def test_colab_offers_the_download(run, monkeypatch, tmp_path):
    "In the notebook's own process; elsewhere the file is there all the same."
    offered = []
    place = colab(monkeypatch, tmp_path, download=offered.append)
    path = pack(run, place=place)
    assert offered == [str(path)]

    def fail(name):
        raise AttributeError("'NoneType' object has no attribute 'kernel'")

    assert pack(run, place=colab(monkeypatch, tmp_path, download=fail)).exists()
    pack(run, place=HERE)
    assert len(offered) == 1
