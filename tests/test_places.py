"Drive, archives, downloads and packed runs: what may go wrong with them, and that it is one line."

import contextlib
import errno
import gzip
import http.server
import io
import os
import random
import re
import sys
import tarfile
import threading
import types
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from conftest import data_folder, full, make_dataset, put_drive, refused, tree
from PIL import Image

from mshnet import fetch, places
from mshnet.cli import main
from mshnet.core import UserError
from mshnet.data import FOLDERS, find_file, load_data
from mshnet.fetch import KNOWN, Published, download, find_dataset, known, pixel_digests, unpack
from mshnet.places import COLAB, HERE, KAGGLE, Place, mount_drive
from mshnet.recipe import Config
from mshnet.session import take_along


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


def refusal(work, *args, **kwargs):
    "The one line that refuses some work."
    with pytest.raises(UserError) as error:
        work(*args, **kwargs)
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


def left(folder):
    "What lies in a folder and among what is unpacked below it, locks not counted."
    there = [*folder.glob("*"), *folder.glob(f"{fetch.UNPACKED}/*")]
    passing = (fetch.UNPACKED, "")
    return sorted(p.name for p in there if p.name not in passing and p.suffix != ".lock")


# Google Drive


class MessageError(Exception):
    "Colab's own."


def colab(monkeypatch, tmp_path, mount=None, download=None):
    "A stand-in of google.colab, and a Drive in a folder of the test."
    put_drive(monkeypatch, tmp_path / "drive")
    package = types.ModuleType("google.colab")
    package.drive = types.SimpleNamespace(mount=mount)
    package.files = types.SimpleNamespace(download=download)
    monkeypatch.setitem(sys.modules, "google", types.ModuleType("google"))
    monkeypatch.setitem(sys.modules, "google.colab", package)
    return replace(COLAB, data=tmp_path / "content", local=tmp_path / "local")


def test_drive_is_mounted_with_its_time_limit(monkeypatch, tmp_path):
    "And not a second time, nor elsewhere than in Colab."
    calls = []

    def mount(path, timeout_ms):
        calls.append((path, timeout_ms))
        (Path(path) / "MyDrive").mkdir(parents=True)

    place = colab(monkeypatch, tmp_path, mount)
    assert "in Colab only" in mount_drive(HERE) and calls == []
    found = mount_drive(place, timeout=7)
    assert calls == [(str(tmp_path / "drive"), 7000)]
    assert found == f"Google Drive is mounted: {tmp_path / 'drive' / 'MyDrive'}"
    assert "mounted already" in mount_drive(place) and len(calls) == 1


@pytest.mark.parametrize("error", [MessageError("propagation was unsuccessful\nat drive"), None])
def test_a_refused_drive_is_one_line_and_no_exception(monkeypatch, tmp_path, error):
    "The user closed the window, nobody is there, or there is no MyDrive: training can go on."
    place = colab(monkeypatch, tmp_path, Mock(side_effect=error))
    found = mount_drive(place, timeout=0.5)
    said = "propagation was unsuccessful" if error else "there is no"
    assert said in found and "mount_drive()" in found
    assert "\n" not in found
    data = str(tmp_path / "drive/MyDrive/set.zip")  # a data set there has the same line
    assert refusal(find_dataset, data, place) == f"dataset_dir={data}: {found}"


def test_an_archive_on_drive_mounts_it_and_is_unpacked_to_the_local_disk(
    monkeypatch, tmp_path, capsys
):
    "To name a path there is to ask for it."

    def mount(path, timeout_ms):
        (Path(path) / "MyDrive").mkdir(parents=True)
        write(Path(path) / "MyDrive" / "set.zip", {"images/a.png": "a", "masks/a.png": "b"})

    place = colab(monkeypatch, tmp_path, mount)
    found = find_dataset(str(tmp_path / "drive/MyDrive/set.zip"), place)
    assert found.is_relative_to(place.local)
    assert tree(found) == {"images/a.png": b"a", "masks/a.png": b"b"}
    assert capsys.readouterr().out.startswith("data    unpacking set.zip")
    assert find_dataset(str(tmp_path / "drive/MyDrive/set.zip"), place) == found
    assert capsys.readouterr().out == ""


def test_loose_files_on_drive_are_read_where_they_are(monkeypatch, tmp_path, capsys):
    "With the way to read them faster, once."
    monkeypatch.setattr(fetch, "where", lambda *_: colab(monkeypatch, tmp_path))
    loose = make_dataset(tmp_path / "drive" / "MyDrive" / "set")
    for _ in range(2):
        load_data(Config(dataset_dir=str(loose)))
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith(f"data    {loose} is on Google Drive") and ".zip" in line


# Archives


def test_it_is_unpacked_once(here, tmp_path, capsys):
    "The lines report what happens and what it weighs. Another archive of that name is another one."
    archive = write(tmp_path / "set.zip", {"images/a.png": "a" * 1000, "b.txt": "b"})
    found = find_dataset(str(archive), here)
    first, second = capsys.readouterr().out.splitlines()
    assert first == "data    unpacking set.zip: 2 members, 1.0 kB" and found.name == "set"
    assert second.startswith(f"data    unpacked set.zip to {found.parent}")
    (found / "b.txt").write_text("kept")
    assert find_dataset(str(archive), here) == found
    assert capsys.readouterr().out == ""
    assert tree(found)["b.txt"] == b"kept"
    (tmp_path / "more").mkdir()  # the same name, size and time
    other = write(tmp_path / "more" / "set.zip", {"images/a.png": "c" * 1000, "b.txt": "b"})
    os.utime(other, ns=(archive.stat().st_mtime_ns,) * 2)
    assert tree(unpack(other, here.local))["images/a.png"] == b"c" * 1000


def test_a_wrapping_folder_and_junk_are_skipped(here, tmp_path):
    "As GitHub and macOS pack."
    files = {
        "sirst-master/images/a.png": "a",
        "sirst-master/masks/a.png": "a",
        "sirst-master/.DS_Store": "x",
        "__MACOSX/sirst-master/._a.png": "x",
        "sirst-master/images/._a.png": "x",
        ".DS_Store": "x",
        "sirst-master\\lists\\a.txt": "as some tools of Windows write",
        "sirst-master/masks/": "",  # some list their folders
    }
    found = unpack(write(tmp_path / "set.zip", files), here.local)
    assert found.name == "sirst-master"
    assert sorted(tree(found)) == ["images/a.png", "lists/a.txt", "masks/a.png"]


class Unflagged(zipfile.ZipInfo):
    "A member whose name is in an encoding that the archive does not state."

    encoding = "gbk"

    def _encodeFilenameFlags(self):
        return self.filename.encode(self.encoding), self.flag_bits & ~0x800


@pytest.mark.parametrize(
    ("encoding", "name", "read"),
    [
        ("gbk", "红外1", "红外1"),  # a Chinese Windows
        ("utf-8", "红外1", "红外1"),  # macOS, which sets no flag
        ("utf-8", "e\u0301t", "\xe9t"),  # and writes an accent by itself
        ("cp437", "\xe9t", "\xe9t"),  # a French or German Windows
    ],
)
def test_names_of_other_systems_are_read(here, tmp_path, monkeypatch, capsys, encoding, name, read):
    "Otherwise no image has the name that the list says."
    monkeypatch.setattr(Unflagged, "encoding", encoding)
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as box:
        box.writestr(Unflagged(f"set/images/{name}.png"), "a")
        box.writestr(Unflagged("set/test.txt"), "a")
    found = unpack(tmp_path / "set.zip", here.local)
    assert set(tree(found)) == {f"images/{read}.png", "test.txt"}
    assert find_file(found / "images", name if encoding == "utf-8" else read)
    assert f"guessed name: set/images/{read}.png; if wrong" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name", ["../evil", "images/../../evil", "/etc/evil", "C:\\evil", "..\\evil"]
)
def test_nothing_is_written_outside_of_the_folder(here, tmp_path, name):
    "The member is cut to a harmless name."
    archive = write(tmp_path / "set.zip", {"images/a.png": "a", name: "evil"})
    assert unpack(archive, here.local).is_relative_to(here.local)
    assert left(tmp_path) == ["input", "local", "set.zip"]
    assert not Path("/etc/evil").exists()


def encrypted_zip():
    "A zip whose member is marked as encrypted, in its header and in the table of contents."
    with zipfile.ZipFile(content := io.BytesIO(), "w") as box:
        box.writestr("a.txt", "secret")
    data = bytearray(content.getvalue())
    data[6] |= 1
    data[data.index(b"PK\1\2") + 8] |= 1
    return bytes(data)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (encrypted_zip(), "is encrypted, password required"),
        (b"<html>a web page</html>", "damaged, or not an archive"),
        (b"", "damaged, or not an archive"),
        (b"PK\5\6" + bytes(18), "contains no file"),  # a zip without a member
    ],
    ids=range(4),
)
def test_a_bad_archive_is_one_line_and_leaves_nothing(here, tmp_path, content, said):
    "With the remedy; neither its harmless members nor a lock that is held."
    (tmp_path / "set.zip").write_bytes(content)
    line = refusal(unpack, tmp_path / "set.zip", here.local)
    assert said in line and "set.zip" in line
    assert "it yourself" in line or "contains no file" in line
    assert left(here.local) == []


def test_an_archive_larger_than_the_disk_is_not_unpacked(here, tmp_path, monkeypatch):
    "However small it is itself."
    room = types.SimpleNamespace(free=10**6)
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda folder: room)
    archive = write(tmp_path / "set.zip", {"a": "a" * 1_100_000})
    assert "set.zip: needs 1.1 MB, more than is free" in refusal(unpack, archive, here.local)
    assert left(here.local) == []


def test_what_the_disk_refuses_is_not_the_archives_fault(here, tmp_path, monkeypatch):
    "To fetch the archive again would not help."
    archive = write(tmp_path / "set.zip", {"a": "a"})

    def refuse(box, folder, members):
        folder.mkdir(parents=True)
        full()

    monkeypatch.setattr(zipfile.ZipFile, "extractall", refuse)
    line = refusal(unpack, archive, here.local)
    assert f"set.zip: cannot be unpacked to {here.local} ({os.strerror(errno.ENOSPC)})" in line
    assert "free space, permit it" in line
    assert left(here.local) == []
    here.local.rename(tmp_path / "aside")
    here.local.write_text("a file where the folder should be")
    assert "cannot be unpacked" in refusal(unpack, archive, here.local)


def test_a_cut_archive_is_refused_wherever_it_is_cut(here, tmp_path):
    "So is a flipped bit."
    random_bytes = random.Random(0).randbytes
    whole = write(tmp_path / "set.zip", {f"{i}.png": random_bytes(700) for i in range(3)})
    data = whole.read_bytes()
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 16
    cuts = [*range(0, len(data), 512), *range(100, len(data), 487), len(data) - 1]
    for bad in [bytes(flipped), *(data[:cut] for cut in cuts)]:
        whole.write_bytes(bad)
        assert "damaged, or not an archive" in refusal(unpack, whole, here.local)
        assert left(here.local) == []


def test_an_interrupted_unpacking_is_done_again(here, tmp_path, monkeypatch):
    "By a key, or by the power: what is left of it is thrown away."
    archive = write(tmp_path / "set.zip", {"a.txt": "a", "b.txt": "b"})
    kept = []

    def stop(box, folder, members):
        folder.mkdir(parents=True)
        (folder / "a.txt").write_text("ha")
        kept.extend(here.local.glob("unpacked/.*.partial"))
        raise KeyboardInterrupt

    with monkeypatch.context() as stopped, pytest.raises(KeyboardInterrupt):
        stopped.setattr(zipfile.ZipFile, "extractall", stop)
        unpack(archive, here.local)
    assert left(here.local) == []
    (kept[0] / "set").mkdir(parents=True)  # as a killed process leaves it
    (kept[0] / "set" / "old.txt").write_text("ha")
    assert tree(unpack(archive, here.local)) == {"a.txt": b"a", "b.txt": b"b"}
    assert left(here.local) == [kept[0].name[1 : -len(".partial")]]


def test_processes_that_come_together_unpack_once(here, tmp_path, monkeypatch, capsys):
    "One per GPU, at the same moment: the others wait."
    archive = write(tmp_path / "set.zip", {f"{i}.txt": "x" * 1000 for i in range(200)})
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: unpack(archive, here.local), range(4)))
    assert len(found) == 1
    assert capsys.readouterr().out.count("unpacking") == 1
    [folder] = found
    assert len(tree(folder)) == 200
    monkeypatch.setattr("mshnet.fetch.locked", full)  # another user's disk, or one to read only
    assert unpack(archive, here.local) == folder


def test_a_drive_that_does_not_answer_is_not_mounted(monkeypatch):
    "Even the question for a folder may wait for ever, where no signal reaches it."
    done = threading.Event()
    monkeypatch.setattr(os.path, "isdir", lambda path: done.wait(60))
    assert not places.is_mounted(timeout=0.05)
    done.set()


# Where a data set is


def test_names_are_found_in_the_place_and_below(here):
    "Kaggle: /kaggle/input/NAME, or NAME inside of it; folders or archives."
    (here.data / "irstd" / "IRSTD-1k").mkdir(parents=True)
    (here.data / "irstd" / "IRSTD-1k" / "a.txt").touch()
    (here.data / "more").mkdir()
    write(here.data / "more" / "set.zip", {"images/a.png": "a", "b.txt": "b"})
    assert find_dataset("irstd", here) == here.data / "irstd"
    assert find_dataset("IRSTD-1k", here) == here.data / "irstd" / "IRSTD-1k"
    assert sorted(tree(find_dataset("set.zip", here))) == ["b.txt", "images/a.png"]


def test_nothing_that_is_half_or_ours_is_found_by_name(here, tmp_path):
    "A folder of a process that was killed, or is at work; and what lies in what was unpacked."
    here = replace(here, local=here.data)
    for folder in (".set-12345678.partial/set", ".half/x/set", "x/.half/set"):
        make_dataset(here.data / folder)
    unpack(write(tmp_path / "more.zip", {"a/set/a.txt": "a", "b/b.txt": "b"}), here.local)
    unpack(write(tmp_path / "set.zip", {"a.txt": "a"}), here.local)
    assert "there is no such folder" in refusal(find_dataset, "set", here)
    make_dataset(here.data / "x" / "set")
    assert find_dataset("set", here) == here.data / "x" / "set"
    make_dataset(here.data / "my-targets")  # as on Kaggle, where the notebook lies elsewhere
    assert refusal(find_dataset, "my-target", here).endswith("did you mean 'my-targets'?")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing", "input); name one, or NUAA-SIRST to download"),
        ("nothing", "nothing, or in "),
        ("a.tar", "is neither a folder nor a .zip archive; unpack it, or pack its content as .zip"),
        ("sett", "did you mean 'set'?"),
        ("NUAA-SIRTS", "did you mean 'NUAA-SIRST'?"),
        ("~nobody/x", "there is no such folder"),
        ("a\0b", "there is no such folder"),
        ("*", "there is no such folder"),
        ("a\nb", "there is no such folder"),
    ],
)
def test_what_is_not_there_is_one_line(here, monkeypatch, tmp_path, text, said):
    "With what was written and what to do."
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.tar").touch()
    (tmp_path / "set").mkdir()
    (here.data / "x").mkdir()
    assert said in refusal(find_dataset, text, here)


# Fetched by name


class Server(http.server.ThreadingHTTPServer):
    "Serves some bytes, badly: `plan` says how each request is answered, the last way for ever."

    def __init__(self, content, plan):
        super().__init__(("127.0.0.1", 0), Answer)
        self.content, self.plan, self.asked = content, plan, 0
        self.url = f"http://127.0.0.1:{self.server_port}/set.tar.gz"


class Answer(http.server.BaseHTTPRequestHandler):
    "One answer."

    def do_GET(self):
        server = self.server
        how = server.plan[min(server.asked, len(server.plan) - 1)]
        server.asked += 1
        if isinstance(how, int):
            return self.send_error(how)
        self.send_response(200)
        self.send_header("Content-Length", str(len(server.content)))
        self.end_headers()
        half = len(server.content) // 2
        with contextlib.suppress(ConnectionError):  # it was closed after the last wanted file
            self.wfile.write(server.content[:half] if how == "drop" else server.content)

    def log_message(self, *_):
        "Be quiet."


@contextlib.contextmanager
def serving(content, *plan):
    "A server for a moment."
    with Server(content, plan) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("no_proxy", "*")  # it is on this machine
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def picture(seed, mode="L"):
    "The content of a PNG file of noise."
    pixels = np.random.default_rng(seed).integers(0, 256, (40, 48), np.uint8)
    Image.fromarray(pixels).convert(mode).save(content := io.BytesIO(), "PNG")
    return content.getvalue()


@pytest.fixture
def repository(tmp_path, monkeypatch):
    "The files of somebody's repository that holds a small published set, `Set`, among others."
    lists = tmp_path / "lists"
    lists.mkdir()
    files, rows = {"repo-e15/README.md": "hello"}, []
    for number, name in enumerate("abcd"):
        image, mask = picture(number), picture(number + 100)
        files[f"repo-e15/viz/{name}.png"] = picture(number + 200)  # of the name, and not of the set
        files[f"repo-e15/dataset/Set/pictures/{name}.png"] = picture(number, "RGB")
        files[f"repo-e15/dataset/Set/labels/{name}_pixels0.png"] = mask
        rows.append(f"{name} {pixel_digests(image)[0]} {pixel_digests(mask)[1]}")
    files["repo-e15/dataset/Other/z.png"] = picture(9)
    (lists / "set-pixels.txt").write_text("\n".join(rows))
    (lists / "set-trainval.txt").write_text("a\nb\nc\n")
    (lists / "set-test.txt").write_text("d\n")
    (lists / "set-authors-trainval.txt").write_text("b\nd\n")
    monkeypatch.setattr(fetch, "_LISTS", lists)
    return files


def packed(files, tmp_path):
    "The files as GitHub packs them."
    return write(tmp_path / "packed.tar.gz", files).read_bytes()


def set_at(*urls):
    "The published set, at these addresses."
    return Published("Set", "https://a.example/set", urls)


IMAGES = [f"{kind}/{name}.png" for kind in ("images", "masks") for name in "abcd"]


def test_a_published_set_is_downloaded_once_and_nothing_else(here, repository, tmp_path, capsys):
    "Whatever its folders are called; also after addresses that fail."
    with serving(packed(repository, tmp_path), 503, "drop", "well") as server:
        found = download(set_at(*[server.url] * 3), here.local)
        assert download(set_at(server.url), here.local) == found
        assert server.asked == 3
    assert found == here.local / "Set"
    assert sorted(tree(found)) == IMAGES
    first, second = capsys.readouterr().out.splitlines()
    assert first == "data    downloading Set (its page and terms: https://a.example/set)"
    assert second == f"data    Set is in {found}, images and targets as in the sets of our results"


@pytest.mark.parametrize(
    ("plan", "content", "said"),
    [
        (404, b"", "404 Client Error"),
        ("drop", None, "IncompleteRead"),
        ("well", b"<html>too many downloads</html>", "not a gzip file"),
        ("well", gzip.compress(b"no tar", mtime=0), "cannot be downloaded: "),
        ("cut", None, "unexpected end of data"),
    ],
)
def test_an_address_that_does_not_give_it_is_one_line(
    here, repository, tmp_path, plan, content, said
):
    "With the way by hand; no file is left."
    whole = packed(repository, tmp_path)
    content = whole[: len(whole) // 2] if plan == "cut" else content or whole
    with serving(content, plan) as server:
        line = refusal(download, set_at(server.url), here.local)
    assert line.startswith("Set: cannot be downloaded: ") and said in line
    assert line.endswith("it yourself from https://a.example/set and use --dataset-dir FOLDER")
    assert left(here.local) == []


@pytest.mark.parametrize(
    ("file", "content", "lost"),
    [
        ("pictures/b.png", picture(77), "images/b"),
        ("labels/c_pixels0.png", picture(77), "masks/c"),
        ("pictures/b.png", picture(1, "RGB")[:-40], "images/b"),  # damaged
        ("pictures/b.png", None, "images/b"),
    ],
)
def test_a_changed_file_is_named(here, repository, tmp_path, file, content, lost):
    "One pixel is enough. A second address that has the right file completes the set."
    whole = packed(repository, tmp_path)
    changed = repository | {f"repo-e15/dataset/Set/{file}": content}
    changed = {name: what for name, what in changed.items() if what is not None}
    with serving(packed(changed, tmp_path), "well") as bad, serving(whole, "well") as good:
        line = refusal(download, set_at(bad.url), here.local)
        assert f"1 of 8 files are missing or have other pixels (such as {lost})" in line
        assert left(here.local) == [] and bad.asked == 1
        assert sorted(tree(download(set_at(bad.url, good.url), here.local))) == IMAGES


def test_a_full_disk_is_not_the_networks_fault(here, repository, tmp_path, monkeypatch):
    "To download again would not help."
    with serving(packed(repository, tmp_path), "well") as server:
        monkeypatch.setattr(Path, "write_bytes", full)
        line = refusal(download, set_at(server.url), here.local)
    assert "Set: cannot be written (No space left on device); free space" in line
    assert left(here.local) == []


def test_one_name_is_one_split(here, repository, tmp_path, monkeypatch, capsys):
    "The usual lists, without any in the folder; others by their names; lists of the folder first."
    monkeypatch.setattr(fetch, "where", lambda *_: here)

    def names(**settings):
        parts, _ = load_data(Config(dataset_dir="set", **settings))
        return {part: "".join(split.names) for part, split in parts.items()}

    with serving(packed(repository, tmp_path), "well") as server:
        monkeypatch.setattr(fetch, "KNOWN", (set_at(server.url),))
        assert names() == {"train": "abc", "test": "d"}
    said = refused(capsys, "data set --train-list set-authors-trainval")
    assert "in both set-authors-trainval.txt and set-test.txt, remove" in said
    assert main(["data", "set", "--train-list", "set-author"]) == 2  # as after a failed download
    line = capsys.readouterr().err
    assert "train_list=set-author: there is no such file in" in line and len(line.splitlines()) == 1
    assert "set-authors-trainval, set-test, set-trainval; did you mean" in line
    (here.local / "Set" / "trainval.txt").write_text("a\n")
    (here.local / "Set" / "test.txt").write_text("b\n")
    assert names() == {"train": "a", "test": "b"}
    assert names(test_list="set-test") == {"train": "a", "test": "d"}
    (here.local / "Set" / "images" / "e.png").write_bytes(picture(1))  # not the set any more
    assert fetch.usual_list(here.local / "Set" / "images", "test") is None


def test_what_is_there_is_not_downloaded(here, monkeypatch):
    "A name in any capitals; a folder of that name comes first."
    assert {p.name for p in map(known, ("SIRST", "nuaa-sirst", "Nuaa-Sirst"))} == {"NUAA-SIRST"}
    assert known("NUAA_SIRST") is None
    asked = []
    monkeypatch.setattr(fetch, "download", lambda p, local: asked.append(p.name) or local)
    assert find_dataset("irstd-1K", here) == here.local
    (here.data / "IRSTD-1k").mkdir()
    assert find_dataset("IRSTD-1k", here) == here.data / "IRSTD-1k"
    assert asked == ["IRSTD-1k"]


def test_the_lists_that_come_with_the_library_are_sound():
    "Each pair covers its set without overlap; the digests have a line for each image."
    shipped = {name: file.read_text().split() for name, file in fetch.shipped_lists().items()}
    counts = {"nuaa-sirst": (213, 214), "nudt-sirst": (663, 664), "irstd-1k": (800, 201)}
    counts |= {"nuaa-sirst-authors427": (341, 86), "nuaa-sirst-authors320": (224, 96)}
    assert len(shipped) == 2 * len(counts)
    for name, count in counts.items():
        train, test = shipped[f"{name}-trainval"], shipped[f"{name}-test"]
        assert (len(set(train)), len(set(test))) == count and not {*train} & {*test}
        published = next(p for p in KNOWN if name.startswith(p.name.lower()))
        there = {key.split("/")[1] for key in fetch._pixels(published)}
        assert there >= {*train, *test} and (sum(count) == len(there) or "320" in name)
    for p in KNOWN:
        for url in p.archives:
            assert re.search(r"^https://codeload.*/tar\.gz/[0-9a-f]{40}$", url), url
        assert p.page.startswith("https://")


@pytest.mark.parametrize("name", ["nuaa-sirst", "nudt-sirst", "irstd-1k"])
def test_the_digests_are_those_of_the_sets(name):
    "Of all images of the smallest, and of every twentieth of the others."
    root = data_folder(name)
    images, masks = next((root / i, root / m) for i, m in FOLDERS if (root / i).is_dir())
    wanted = fetch._pixels(known(name))
    for image in sorted(images.glob("*.png"))[:: 1 if name == "nuaa-sirst" else 20]:
        mask = (masks / image.name).read_bytes()
        found = (pixel_digests(image.read_bytes())[0], pixel_digests(mask)[1])
        assert found == (wanted[f"images/{image.stem}"], wanted[f"masks/{image.stem}"])


KEPT = ["config.json", "figures/learning.png", "last.pt", "log.jsonl"]


@pytest.fixture
def run(tmp_path):
    "A run's folder, with what comes and goes in it."
    folder = tmp_path / "runs" / "set-1f0c2a9b"
    for name in [*KEPT, ".last.pt.123.tmp", ".lock"]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def unpacked(path, folder):
    "The folder in a packed run."
    with tarfile.open(path) as box:
        box.extractall(folder, filter="data")
    [found] = folder.iterdir()
    return found


def test_a_run_is_taken_along_where_its_disk_is_deleted(run, monkeypatch, tmp_path):
    """Colab offers the file, Kaggle shows it as output, and one's own disk keeps the folder.
    The file holds the run under its name, without what comes and goes; a link back is fine."""
    offered = []
    (run / "latest").symlink_to(run)
    at_colab = colab(monkeypatch, tmp_path, download=offered.append)
    assert take_along(run, HERE) == f"{run}: this disk keeps it"
    assert (left(run.parent), offered) == ([run.name], [])
    for place, note in ((at_colab, "/content is deleted"), (KAGGLE, "/kaggle/working is kept")):
        place = replace(place, runs=tmp_path / place.name / "runs")
        line, path = take_along(run, place), place.runs / f"{run.name}.tar.gz"
        assert line.startswith(f"{path}  ") and "kB; " in line and note in line
        found = unpacked(path, tmp_path / f"from-{place.name}")
        assert (found.name, tree(found)) == (run.name, {name: name.encode() for name in KEPT})
    assert offered == [str(tmp_path / "colab" / "runs" / f"{run.name}.tar.gz")]
    inside = replace(at_colab, runs=run.parents[1])  # runs/a/seed0 and runs/b/seed0 are two files
    assert f"/{run.parent.name}-{run.name}.tar.gz " in take_along(run, inside)


def test_a_run_that_cannot_be_taken_along_is_one_line(run, monkeypatch, tmp_path, capsys):
    "A full disk keeps the old file; outside of the notebook's process nothing is offered."
    place = replace(colab(monkeypatch, tmp_path, download=full), runs=tmp_path / "out")
    assert take_along(run, place).startswith(str(tmp_path / "out"))
    assert "is not offered for download" in capsys.readouterr().out
    assert "is not a run, there is no config.json" in refusal(take_along, run.parent, place)
    path = tmp_path / "out" / f"{run.name}.tar.gz"
    before = path.read_bytes()
    monkeypatch.setattr(tarfile.TarFile, "add", full)
    assert "No space left on device" in refusal(take_along, run, place)
    assert (path.read_bytes(), left(path.parent)) == (before, [path.name])
