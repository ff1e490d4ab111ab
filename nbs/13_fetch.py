# %% [markdown]
# # fetch
#
# > From `--dataset-dir` to a folder on the local disk: a folder, an archive, or the name of a published data set.

# %%
#| default_exp fetch

# %%
#| hide
import io
import tempfile

from fastcore.test import expect_fail, test_eq

# %%
#| export
import contextlib
import glob
import hashlib
import os
import re
import shutil
import stat
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from mshnet.core import UserError, did_you_mean, shown
from mshnet.files import locked
from mshnet.places import (
    MY_DRIVE,
    Place,
    disk_errors,
    first_process,
    foreign_errors,
    installed,
    interactive,
    is_mounted,
    megabytes,
    mount_drive,
    on_drive,
    say,
    where,
)

# %% [markdown]
# ## Where is the data set?
#
# One setting names the data set, and one function, `find_dataset`, turns it into a folder:
#
# | `dataset_dir` | the folder |
# |---|---|
# | a folder | itself; a copy on the local disk, if it is on Google Drive |
# | an archive, or a folder that holds only an archive | unpacked to the local disk, once |
# | a name in `/kaggle/input`, `/content` or `data` | the folder or archive of this name |
# | `NUAA-SIRST`, `IRSTD-1k`, `NUDT-SIRST` | downloaded and unpacked, once |
# | empty | none: the data are synthetic scenes |
#
# Kaggle mounts an attached data set in `/kaggle/input/NAME`, of late also in `/kaggle/input/datasets/OWNER/NAME`, and the folder inside often repeats the name. We therefore also search one and two levels below; on a mounted Drive the user's files begin at the second. We skip folders that begin with a dot, and the folder `unpacked`, which may hold part of an archive or last week's copy of a folder on Drive. Published names come last: an existing folder of that name, in capitals or not, is taken as it is.

# %%
#| export
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
UNPACKED = "unpacked"  # the folder of unpacked archives, below the place's local one


def find_dataset(
    text: str,  # folder or archive, the name of one in `place.data`, or a published name
    place: Place | None = None,
) -> Path | None:
    "The folder of a data set; None for an empty text; UserError if there is no such data set."
    if not text:
        return None
    place = place or where()
    written = Path(os.path.expanduser(text))
    if place.name == "colab" and on_drive(written) and not is_mounted(MY_DRIVE):
        mounted = mount_drive(place)  # naming a folder there asks for it
        if not mounted.folder:
            raise UserError(f"dataset_dir={text!r}: {mounted.line}")
    for path in _candidates(text, place):
        if os.path.isdir(path):
            return _as_local(path, place.local)
        if os.path.isfile(path) and path.name.lower().endswith(ARCHIVES):
            return unpack(path, place.local)
    if published := known(text):
        return download(published, place.local)
    near = _names_beside(written) + [published.name for published in KNOWN]
    kind = "there is no such folder" + ("" if written.is_absolute() else f" in {Path.cwd()}")
    if os.path.isfile(written):
        kind = f"is a file, not a folder or an archive ({', '.join(ARCHIVES)})"
    raise UserError(f"dataset_dir={text!r}: {kind}{did_you_mean(written.name, near)}")


def _candidates(text: str, place: Place) -> Iterator[Path]:
    "The paths that a name may mean, the likeliest first."
    written = Path(os.path.expanduser(text))
    yield written
    if written.is_absolute():
        return
    yield place.data / text
    with contextlib.suppress(OSError, ValueError, RecursionError):  # a folder that is not readable
        for deep in ("[!.]*", "[!.]*/[!.]*"):
            found = sorted(place.data.glob(f"{deep}/{glob.escape(text)}"))
            yield from (path for path in found if place.local / UNPACKED not in path.parents)
    if known(text):
        for folder in dict.fromkeys((place.data, place.local, Path())):
            with contextlib.suppress(OSError):
                yield from (p for p in sorted(folder.iterdir()) if p.name.lower() == text.lower())


def _names_beside(path: Path) -> list[str]:
    "The other names in the folder of a path, to suggest one of them."
    with contextlib.suppress(OSError, ValueError):
        return [beside.name for beside in path.parent.iterdir() if beside.name != path.name]
    return []


def _as_local(folder: Path, local: Path) -> Path:
    "The folder itself, the content of its only archive, or a local copy."
    inside: list[Path] = []
    with contextlib.suppress(OSError):  # reported when it is read
        inside = [path for path in folder.iterdir() if not _is_junk(path.name)]
    if len(inside) == 1 and inside[0].is_file() and inside[0].name.lower().endswith(ARCHIVES):
        return unpack(inside[0], local)
    return _copy_from_drive(folder, local) if on_drive(folder) else folder


def _is_junk(name: str) -> bool:
    "Whether macOS put a file there for itself."
    parts = name.rstrip("/").split("/")
    return "__MACOSX" in parts or parts[-1] == ".DS_Store" or parts[-1].startswith("._")


# %%
with tempfile.TemporaryDirectory() as tmp:
    (Path(tmp) / "input" / "irstd" / "IRSTD-1k").mkdir(parents=True)
    kaggle = Place("kaggle", Path(tmp) / "input", Path(tmp) / "runs", "", "", Path(tmp) / "local")
    found = [find_dataset(name, kaggle).name for name in ("irstd", "IRSTD-1k")]
    test_eq(found, ["irstd", "IRSTD-1k"])
test_eq(find_dataset(""), None)

# %% [markdown]
# ## To the local disk, once
#
# A data set of this field is a thousand small files. From a mounted Drive each takes a good part of a second to open, in every epoch; an archive of them takes that time once. Therefore we unpack archives to the local disk, and copy loose files on Drive there. On Colab that disk is `/content/data`. On Kaggle it is `/tmp/mshnet-data`, because everything below `/kaggle/working` is kept as the notebook's output, a thousand files and all. Elsewhere it is `data`.
#
# Several processes of one machine (one per GPU) arrive here at the same time. The first gets the lock and fills a scratch folder; the rename at the end happens or does not. If a process is killed, the system releases its lock, and the next process deletes the scratch folder and begins again.

# %%
#| export
BLOCK = 4096  # bytes that the smallest file takes on a disk


@contextlib.contextmanager
def _made_once(target: Path) -> Iterator[Path | None]:
    "Yield a scratch path whose content becomes the target, or None if the target exists."
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_name(f".{target.name}.partial")
    with locked(target.with_name(f".{target.name}.lock")):
        if target.exists():
            yield None
            return
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        try:
            yield scratch / target.name
            os.replace(scratch / target.name, target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _make_room(folder: Path, size: float, what: str) -> None:
    "UserError unless this many bytes are free on the disk of a folder that may not exist yet."
    there = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    free = shutil.disk_usage(there).free
    if size > free:
        raise UserError(
            f"{what}: needs {megabytes(size)} and {folder} has {megabytes(free)} free; make room"
        )


def _watched() -> bool:
    "Whether a person sees a progress bar of this process."
    return first_process() and (interactive() or sys.stderr.isatty())


# %% [markdown]
# An archive is unpacked to a folder with its name and eight digits that stand for its path, size and time; a different archive of the same name gets a different folder. Many archives wrap everything in one folder (`sirst-master/`), which then is the data set. An archive on Drive is copied first, because we read it twice, and the Drive may be gone before the second time. Loose files on Drive are copied several at a time, since each waits for the network. Their names, sizes and times make the name of the copy, and a changed folder is copied anew.

# %%
#| export
def unpack(archive: Path, local: Path) -> Path:
    "The data set in an archive, unpacked below `local` the first time; UserError if it is bad."
    name = re.sub(r"(\.zip|\.tar|\.tar\.gz|\.tgz)$", "", archive.name, flags=re.I) or "archive"
    with disk_errors(f"{archive}: cannot be unpacked to {local}"):
        about = archive.stat()
        identity = f"{archive.resolve()} {about.st_size} {about.st_mtime_ns}"
        digits = hashlib.sha256(identity.encode()).hexdigest()[:8]
        target = local / UNPACKED / f"{name}-{digits}"
        with _made_once(target) as new:
            if new:
                near = archive
                if on_drive(archive):
                    _make_room(local, about.st_size, archive.name)
                    say(f"data    copying {archive.name} from Google Drive")
                    near = Path(shutil.copyfile(archive, new.with_name(archive.name)))
                damaged = f"{archive}: damaged, or not an archive"
                with foreign_errors(damaged, "copy or download it again, or unpack it by hand"):
                    _extract(near, new / name, local)
                say(f"data    unpacked {archive.name} to {target}; the next start finds it there")
    return _innermost(target)


def _extract(archive: Path, folder: Path, local: Path) -> None:
    "Check the members of an archive and unpack it."
    with _open_archive(archive) as box:
        members, size = _check_members(archive, box)
        _make_room(local, size, archive.name)
        say(f"data    unpacking {archive.name}: {len(members)} members, {megabytes(size)}")
        if isinstance(box, tarfile.TarFile):  # Python 3.11.3 and older have no filter
            box.extraction_filter = getattr(tarfile, "data_filter", None)
        box.extractall(folder, tqdm(members, disable=not _watched(), leave=False))


def _innermost(folder: Path) -> Path:
    "Descend as long as a folder contains nothing but one folder."
    while True:
        inside = [path for path in folder.iterdir() if not _is_junk(path.name)]
        if len(inside) != 1 or not inside[0].is_dir():
            return folder
        folder = inside[0]


def _copy_from_drive(folder: Path, local: Path) -> Path:
    "A copy of a folder on the local disk, made the first time; UserError for an unreadable part."
    with disk_errors(f"{folder}: cannot be copied to {local}"):
        files = _files_below(folder)
        listed = [f"{name} {about.st_size} {about.st_mtime_ns}" for name, about in files.items()]
        digits = hashlib.sha256("\n".join(listed).encode()).hexdigest()[:8]
        size = sum(about.st_size + BLOCK for about in files.values())
        target = local / UNPACKED / f"{folder.name}-{digits}"
        with _made_once(target) as new:
            if new:
                _make_room(local, size, folder.name)
                say(
                    f"data    copying {folder.name} from Google Drive: {len(files)} files, "
                    f"{megabytes(size)}, to {target}; a .zip of them would be much faster"
                )
                copy = new / folder.name
                for parent in {(copy / file).parent for file in files} | {copy}:
                    parent.mkdir(parents=True, exist_ok=True)
                with ThreadPoolExecutor(8) as pool:
                    copied = pool.map(lambda f: shutil.copyfile(folder / f, copy / f), files)
                    list(tqdm(copied, total=len(files), disable=not _watched(), leave=False))
    return target / folder.name


def _files_below(folder: Path) -> dict[Path, os.stat_result]:
    "The files of a folder by their paths in it; OSError for an unreadable part."

    def stop(error: OSError) -> None:  # os.walk would leave the part out
        raise error

    walked = os.walk(folder, onerror=stop)
    found = sorted(Path(top) / name for top, _, names in walked for name in names)
    return {p.relative_to(folder): p.stat() for p in found if p.is_file()}


# %% [markdown]
# ## Published data sets
#
# Three data sets can be named without a path. We took the address of each from stored copies of public pages. **Nothing was downloaded here**, and no checksum is known beforehand. Instead the checksum of the first download is stored beside it (`NAME.zip.sha256`), and every later download must have the same.
#
# - **NUAA-SIRST**, also called SIRST: the authors' repository YimianDai/sirst, as GitHub packs it, at the commit 84302ab that added the lists `idx_427` (its files are those in the index of that repository). These are the authors' own 341 and 86 images; the 213 and 214 that most papers use are not among them.
# - **IRSTD-1k**: the Google Drive file ID in the README of the authors' repository RuiZhang97/ISNet at commit 89eb28e. (An older README, at 14c6bc8, has a different ID.) The README names the MIT licence.
# - **NUDT-SIRST**: the authors' README (YeRen123455/Infrared-Small-Target-Detection, 21584be) leads to Baidu, which asks for an account. The toolbox XinyiYing/BasicIRSTD packs three data sets with their lists in one file on Google Drive, whose ID is in its README at 08185ad. NUDT-SIRST is taken out of that file.
#
# On Kaggle none of them has a name that could be traced to its authors. Attach a copy that somebody uploaded (Add Input), and write the name of its folder.

# %%
#| export
@dataclass(frozen=True)
class Published:
    "A data set that others publish, at an address or on Google Drive."

    name: str
    page: str  # for people: what it is, how to get it by hand, its licence
    url: str = ""  # of an archive
    drive: str = ""  # Google Drive file ID of an archive, if there is no url
    sha256: str = ""  # of the archive; empty: unknown
    inside: str = ""  # the folder to take from an archive that holds more
    note: str = ""  # what to know before training on it
    other_names: tuple[str, ...] = ()

    @property
    def by_hand(self) -> str:
        "The remedy if it cannot be downloaded."
        return f"get it by hand from {self.page} and write --dataset-dir FILE.zip"


KNOWN = (
    Published(
        "NUAA-SIRST",
        "https://github.com/YimianDai/sirst",
        url="https://github.com/YimianDai/sirst/archive/84302ab351af09dde227aa13ee9887f081bc3d4f.zip",
        note="if no lists are found, write --train-list idx_427/trainval.txt "
        "--test-list idx_427/test.txt (the authors' own, not the 213 and 214 of most papers)",
        other_names=("SIRST",),
    ),
    Published(
        "IRSTD-1k",
        "https://github.com/RuiZhang97/ISNet",
        drive="1JoGDGF96v4CncKZprDnoIor0k1opaLZa",
    ),
    Published(
        "NUDT-SIRST",
        "https://github.com/YeRen123455/Infrared-Small-Target-Detection",
        drive="1LscYoPnqtE32qxv5v_dB4iOF4dW3bxL2",
        inside="NUDT-SIRST",
        note="packed with two others by https://github.com/XinyiYing/BasicIRSTD",
    ),
)


def known(text: str) -> Published | None:
    "The published data set of this name, in capitals or not."
    names = {name.lower(): p for p in KNOWN for name in (p.name, *p.other_names)}
    return names.get(text.lower())


# %%
test_eq([known(name).name for name in ("sirst", "irstd-1K")], ["NUAA-SIRST", "IRSTD-1k"])
with expect_fail(UserError, contains="did you mean 'NUAA-SIRST'?"):
    find_dataset("NUAA-SIRTS")
Published("MY-SET", "https://example.org/my-set").by_hand


# %% [markdown]
# `pooch` downloads: it retries, shows a bar, compares the checksum, and gives the file its name only when it is whole. (A trial against a server that breaks off, hangs and refuses is in LOG.md.) For Google Drive, which has no plain address for a large file, it calls `gdown`. Colab has gdown; elsewhere the user installs it for these two data sets.
#
# A page that reports "too many downloads" also arrives without an error, therefore we open the download. An archive from the last time, or one that the user put there under that name, is not downloaded again. We keep the user's file even if it is damaged.

# %%
#| export
def download(published: Published, local: Path) -> Path:
    "The folder of a published data set, downloaded to `local` the first time; else UserError."
    file = local / f"{published.name}.zip"
    with disk_errors(f"{file}: cannot be written"), _made_once(file) as new:
        if new:
            source = published.url or f"Google Drive ({published.drive})"
            say(f"data    downloading {published.name} from {source} (licence: {published.page})")
            _download_to(published, new, file.with_name(f"{file.name}.sha256"))
            if published.note:
                say(f"data    {published.note}")
    return _part_of(unpack(file, local), published.inside)


def _download_to(published: Published, file: Path, record: Path) -> None:
    "Download an archive and compare its checksum with the record of the first time."
    first = record.read_text("utf-8", "replace").split() if record.exists() else []
    if not published.url and not installed("gdown"):
        todo = f"`pip install gdown` and try again, or {published.by_hand}"
        raise UserError(f"{published.name} is downloaded from Google Drive: {todo}")
    todo = f"check that Internet is on, or {published.by_hand}"
    if first and not published.sha256:
        todo += f" (if its owner has changed it, delete {record})"
    with foreign_errors(f"{published.name}: cannot be downloaded", todo):
        import pooch

        pooch.get_logger().setLevel("WARNING")
        checksum: Any = published.sha256 or (first[0] if first else None)
        by_url = pooch.HTTPDownloader(progressbar=_watched())
        downloader: Any = by_url if published.url else _from_drive
        box = pooch.Pooch(
            path=str(file.parent),
            base_url="",
            registry={file.name: checksum},
            urls={file.name: published.url or published.drive},
            retry_if_failed=2,
        )
        box.fetch(file.name, downloader=downloader)
        digest = pooch.file_hash(str(file))
    what = f"{published.name}: the download is not an archive, perhaps a web page"
    with foreign_errors(what, f"try again tomorrow, or {published.by_hand}"):
        _open_archive(file).close()
    record.write_text(f"{digest}  {record.stem}\n", encoding="utf-8")


def _from_drive(number: str, file: str, _: Any) -> None:
    "Download from Google Drive; pooch passes the file ID where others get a URL."
    import gdown

    if not gdown.download(id=number, output=str(file), quiet=not _watched()):
        raise RuntimeError("Google Drive returned nothing, perhaps after too many downloads")


def _part_of(folder: Path, name: str) -> Path:
    "The least deep folder of this name in a folder, or that folder itself."
    walked = ((Path(top), names) for top, names, _ in os.walk(folder))
    found = [top / n for top, names in walked for n in names if n.lower() == name.lower()]
    if found:
        return min(found, key=lambda path: (len(path.parts), path))
    if name and folder.name.lower() != name.lower():
        raise UserError(f"{folder}: has no folder {name}; write the one you mean as --dataset-dir")
    return folder


# %% [markdown]
# ## Dangerous archives
#
# Python's `zipfile` and `tarfile` unpack, and `zipfile` compares every checksum. But an archive decides how much is written, and where. A kilobyte can hold a terabyte of zeros. A member can be called `../../.bashrc`, or be a link to elsewhere through which the next member is written. Therefore we check all members before any is written. One dangerous member is enough to reject the whole archive, because nobody makes such members by mistake in a data set. Images hardly shrink; masks do, but they are small. No data set grows to a hundred times its archive and beyond a gigabyte. The `data` filter of tarfile is a second check behind this.
#
# For this check `.zip` and `.tar` are alike: members with a name, a size, and perhaps a fault. It writes nothing and skips the files that macOS adds (`__MACOSX/`, `.DS_Store`).

# %%
#| export
MOST_FILES = 1_000_000
MOST_GROWTH, GROWN = 100, 1_000_000_000  # times the archive, where that is more than these bytes


class _Header(tarfile.TarInfo):
    "The header of a tar's member; ReadError for a size that would loop or fill the memory."

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Header":
        header = super().frombuf(buf, encoding, errors)
        if header.size < 0 or (not header.isreg() and header.size > 1 << 20):
            raise tarfile.ReadError("impossible size")
        return header


def _open_archive(file: Path) -> zipfile.ZipFile | tarfile.TarFile:
    "Open an archive by its first bytes, whatever its name."
    with open(file, "rb") as start:
        zipped = start.read(4) in (b"PK\3\4", b"PK\5\6")
    zipped = zipped or (file.suffix.lower() == ".zip" and zipfile.is_zipfile(file))
    return zipfile.ZipFile(file) if zipped else tarfile.open(file, tarinfo=_Header)


def _zip_members(box: zipfile.ZipFile) -> Iterator[tuple[Any, str, int, str]]:
    "Each member of a .zip, its name, its size and its fault, if it has one."
    for info in box.infolist():
        info.filename = info.filename.replace("\\", "/")  # as some tools of Windows write
        form, fault = stat.S_IFMT(info.external_attr >> 16), ""  # form 0: no Unix made it
        if not info.is_dir() and form not in (0, stat.S_IFREG, stat.S_IFDIR):
            fault = "is a link or a device"
        if info.flag_bits & 1 or info.compress_type not in (0, zipfile.ZIP_DEFLATED):
            fault = "is encrypted or packed in an unusual way"
        yield info, info.filename, info.file_size, fault


def _tar_members(box: tarfile.TarFile) -> Iterator[tuple[Any, str, int, str]]:
    "Each member of a .tar, its name, its size and its fault; damaged ends raise ReadError."
    for header in box:
        fault = "" if header.isreg() or header.isdir() else "is a link or a device"
        if header.size < 0:  # an extended header may state it
            fault = "has an impossible size"
        header.name = header.name.replace("\\", "/")
        yield header, header.name, header.size, fault
    rest: Any = box.fileobj
    rest.seek(end := box.offset)  # type: ignore[attr-defined]
    if rest.read(512) != bytes(512):  # tarfile takes a damaged header for the end
        raise tarfile.ReadError(f"damaged after {end} bytes")
    if len(rest.read(1 << 24)) == 1 << 24:  # gzip compares its checksum at the very end
        raise tarfile.ReadError(f"it does not end after its last member, at {end} bytes")


def _fault_of_name(name: str) -> str:
    "The fault of a member's name; empty: none."
    parts = name.split("/")
    if name.startswith("/") or re.match("[A-Za-z]:", name):
        return "has an absolute path"
    if ".." in parts:
        return "leads out of its folder"
    if any(len(part.encode("utf-8", "replace")) > 255 for part in parts):
        return "has a name that no file can have"
    return "lies in more than 50 folders" if len(parts) > 51 else ""


def _check_members(archive: Path, box: zipfile.ZipFile | tarfile.TarFile) -> tuple[list[Any], int]:
    "The members to unpack, and the bytes that they fill; UserError for a dangerous one."
    kept, filled, packed = [], 0, archive.stat().st_size
    members = _zip_members(box) if isinstance(box, zipfile.ZipFile) else _tar_members(box)
    for count, (member, name, size, why) in enumerate(members, 1):
        filled += size + BLOCK  # a file fills its last block
        why = why or _fault_of_name(name)
        if count > MOST_FILES or filled > max(GROWN, MOST_GROWTH * packed):
            why = f"is too much: {megabytes(packed)} would become {megabytes(filled)} or more"
        if why:
            what = f"{archive.name}: rejected, its member {shown(name)} {why}"
            raise UserError(f"{what}; unpack it by hand if you trust it")
        if not _is_junk(name):
            kept.append(member)
    if not kept:
        raise UserError(f"{archive.name}: contains no file")
    return kept, filled


# %% [markdown]
# Here are a good archive, one of several data sets that the user has put there under the published name, one that would write elsewhere, and a web page saved as `.zip`:

# %%
with tempfile.TemporaryDirectory() as tmp:
    archive = Path(tmp) / "sirst.zip"
    with zipfile.ZipFile(archive, "w") as box:
        box.writestr("sirst-master/images/a.png", "a")
        box.writestr("sirst-master/masks/a.png", "b")
        box.writestr("__MACOSX/._a.png", "c")
    found = unpack(archive, Path(tmp) / "data")
    test_eq(sorted(p.name for p in found.rglob("*.png")), ["a.png", "a.png"])
    test_eq((unpack(archive, Path(tmp) / "data"), found.name), (found, "sirst-master"))
with tempfile.TemporaryDirectory() as tmp:
    with zipfile.ZipFile(f"{tmp}/NUDT-SIRST.zip", "w") as box:
        for name in ("NUAA-SIRST", "NUDT-SIRST"):
            box.writestr(f"datasets/{name}/images/{name}.png", "a")
    found = download(known("NUDT-SIRST"), Path(tmp))
    test_eq([path.name for path in found.rglob("*.png")], ["NUDT-SIRST.png"])
with tempfile.TemporaryDirectory() as tmp:
    evil, page = Path(tmp) / "evil.tar.gz", Path(tmp) / "page.zip"
    with tarfile.open(evil, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("images/a.png"), io.BytesIO())
        tar.addfile(tarfile.TarInfo("../../.bashrc"), io.BytesIO())
    with expect_fail(UserError, contains="'../../.bashrc' leads out of its folder"):
        unpack(evil, Path(tmp) / "data")
    page.write_text("<html>a web page</html>")
    with expect_fail(UserError, contains="page.zip: damaged, or not an archive"):
        unpack(page, Path(tmp) / "data")
    test_eq(list(Path(tmp).rglob("*.png")), [])
