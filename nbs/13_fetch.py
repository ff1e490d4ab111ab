# %% [markdown]
# # fetch
#
# > From `--dataset-dir` to a folder on the local disk: a folder, an archive, or the name of a published data set.

# %%
#| default_exp fetch

# %%
#| hide
import tempfile

from fastcore.test import expect_fail, test_eq
from PIL import Image

# %%
#| export
import contextlib
import glob
import gzip
import hashlib
import io
import os
import re
import shutil
import sys
import tarfile
import time
import unicodedata
import zipfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any

from tqdm import tqdm

from mshnet.core import UserError, did_you_mean, shown
from mshnet.files import explain_failure, locked, names_beside, reason
from mshnet.places import (
    MY_DRIVE,
    Place,
    first_process,
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
# | `NUAA-SIRST`, `IRSTD-1k`, `NUDT-SIRST` | downloaded, once |
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
    near = names_beside(written) + [published.name for published in KNOWN]
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
    if published := known(text):
        names = [name.lower() for name in (text, published.name, f"{published.name}.zip")]
        for folder in dict.fromkeys((place.data, place.local, Path())):
            with contextlib.suppress(OSError):
                yield from (p for p in sorted(folder.iterdir()) if p.name.lower() in names)


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
    "UserError unless this many bytes are free on the disk of a folder."
    free = shutil.disk_usage(folder).free
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
    with explain_failure(f"{archive}: cannot be unpacked to {local}"):
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
                todo = "copy or download it again, or unpack it by hand"
                with explain_failure(damaged, todo, damaged=True):
                    _extract(near, new / name, local)
                say(f"data    unpacked {archive.name} to {target}; the next start finds it there")
    return _innermost(target)


def _innermost(folder: Path) -> Path:
    "Descend as long as a folder contains nothing but one folder."
    while True:
        inside = [path for path in folder.iterdir() if not _is_junk(path.name)]
        if len(inside) != 1 or not inside[0].is_dir():
            return folder
        folder = inside[0]


def _copy_from_drive(folder: Path, local: Path) -> Path:
    "A copy of a folder on the local disk, made the first time; UserError for an unreadable part."

    def stop(error: OSError) -> None:  # os.walk would leave the part out
        raise error

    with explain_failure(f"{folder}: cannot be copied to {local}"):
        walked = [(Path(top), names) for top, _, names in os.walk(folder, onerror=stop)]
        found = sorted(top / name for top, names in walked for name in names)
        sizes = {path.relative_to(folder): path.stat() for path in found if path.is_file()}
        listed = [f"{name} {about.st_size} {about.st_mtime_ns}" for name, about in sizes.items()]
        digits = hashlib.sha256("\n".join(listed).encode()).hexdigest()[:8]
        size = sum(about.st_size + BLOCK for about in sizes.values())
        target = local / UNPACKED / f"{folder.name}-{digits}"
        with _made_once(target) as new:
            if new:
                _make_room(local, size, folder.name)
                say(
                    f"data    copying {folder.name} from Google Drive: {len(sizes)} files, "
                    f"{megabytes(size)}, to {target}; a .zip of them would be much faster"
                )
                copy = new / folder.name
                for parent in {(copy / file).parent for file in sizes} | {copy}:
                    parent.mkdir(parents=True, exist_ok=True)
                with ThreadPoolExecutor(8) as pool:
                    copied = pool.map(lambda f: shutil.copyfile(folder / f, copy / f), sizes)
                    list(tqdm(copied, total=len(sizes), disable=not _watched(), leave=False))
    return target / folder.name


# %% [markdown]
# ## Archives
#
# Python's `zipfile` and `tarfile` unpack, compare checksums, and write nothing outside of the folder: `zipfile` cuts the part of a name that leads out, and the `data` filter of `tarfile` raises an error. But an archive also decides how much is written. A kilobyte can hold a terabyte of zeros. Images hardly shrink; masks do, but they are small. No data set grows to a hundred times its archive and beyond a gigabyte. Therefore we add up all members before any is written. A data set has no links and no devices, so an archive that has them is rejected. Python takes a damaged header in the middle of a `.tar` for its end; the zeros that a `.tar` ends with show whether it is.
#
# The name of a member in a `.zip` is in UTF-8 if a flag says so. Without the flag, macOS writes UTF-8 all the same, a Chinese Windows GBK, and other systems an alphabet of the eighties. macOS also writes a letter with its accent as two signs, and lists have one. We write one.

# %%
#| export
MOST_FILES = 1_000_000
MOST_GROWTH, GROWN = 100, 1_000_000_000  # times the archive, where that is more than these bytes


def _extract(archive: Path, folder: Path, local: Path) -> None:
    "Check the members of an archive and unpack it."
    with _open_archive(archive) as box:
        members, size = _check_members(archive, box)
        _make_room(local, size, archive.name)
        say(f"data    unpacking {archive.name}: {len(members)} members, {megabytes(size)}")
        if isinstance(box, tarfile.TarFile):
            if not hasattr(tarfile, "data_filter"):
                raise UserError(
                    f"{archive.name}: needs Python 3.11.4 or newer; or unpack it by hand"
                )
            box.extraction_filter = tarfile.data_filter
        try:
            box.extractall(folder, tqdm(members, disable=not _watched(), leave=False))
        except tarfile.FilterError as error:
            raise _rejected(archive, error.tarinfo.name, "leads out of its folder") from None


def _open_archive(file: Path) -> zipfile.ZipFile | tarfile.TarFile:
    "Open an archive by its content, whatever its name."
    return tarfile.open(file) if tarfile.is_tarfile(file) else zipfile.ZipFile(file)


def _check_members(archive: Path, box: zipfile.ZipFile | tarfile.TarFile) -> tuple[list[Any], int]:
    "The members to unpack, and the bytes that they fill; UserError for a dangerous one."
    kept, filled, packed = [], 0, archive.stat().st_size
    members: Any = _zip_members(box) if isinstance(box, zipfile.ZipFile) else _tar_members(box)
    for count, (member, name, size) in enumerate(members, 1):
        filled += size + BLOCK  # a file fills its last block
        if count > MOST_FILES or filled > max(GROWN, MOST_GROWTH * packed):
            why = f"is too much: {megabytes(packed)} would become {megabytes(filled)} or more"
            raise _rejected(archive, name, why)
        if size < 0 or (
            isinstance(box, tarfile.TarFile) and not (member.isreg() or member.isdir())
        ):
            raise _rejected(archive, name, "is a link, a device, or of an impossible size")
        if not _is_junk(name):
            kept.append(member)
    if not kept:
        raise UserError(f"{archive.name}: contains no file")
    return kept, filled


def _rejected(archive: Path, member: str, why: str) -> UserError:
    "The error for an archive with a dangerous member."
    what = f"{archive.name}: rejected, its member {shown(member)} {why}"
    return UserError(f"{what}; unpack it by hand if you trust it")


def _zip_members(box: zipfile.ZipFile) -> Iterator[tuple[Any, str, int]]:
    "Each member of a .zip, with its readable name and its size."
    for info in box.infolist():
        try:
            raw = info.filename.encode("utf-8" if info.flag_bits & 0x800 else "cp437")
        except UnicodeEncodeError:  # newer releases of Python read another field
            raw = info.filename.encode()
        info.filename = _readable(raw)
        yield info, info.filename, info.file_size


def _tar_members(box: tarfile.TarFile) -> Iterator[tuple[Any, str, int]]:
    "Each member of a .tar, with its readable name and its size; ReadError if the end is missing."
    for header in box:
        header.name = _readable(header.name.encode("utf-8", "surrogateescape"))
        yield header, header.name, header.size
    rest: Any = box.fileobj
    rest.seek(end := box.offset)  # type: ignore[attr-defined]
    if rest.read(1 << 24)[:512] != bytes(512):  # to its end, where gzip compares its checksum
        raise tarfile.ReadError(f"damaged after {end} bytes")


def _readable(raw: bytes) -> str:
    "The name of a member, with slashes, and with one sign for a letter and its accent."
    for encoding in ("utf-8", "gb2312", "cp437"):  # the last one reads everything
        with contextlib.suppress(UnicodeDecodeError):
            return unicodedata.normalize("NFC", raw.decode(encoding)).replace("\\", "/")
    raise AssertionError


# %% [markdown]
# Here are a good archive, and one that would write elsewhere:

# %%
with tempfile.TemporaryDirectory() as tmp:
    archive = Path(tmp) / "sirst.zip"
    with zipfile.ZipFile(archive, "w") as box:
        box.writestr("sirst-master/images/a.png", "a")
        box.writestr("sirst-master/masks/a.png", "b")
        box.writestr("__MACOSX/._a.png", "c")
    found = unpack(archive, Path(tmp) / "data")
    print(found.name, sorted(p.relative_to(found).as_posix() for p in found.rglob("*.png")))
    evil = Path(tmp) / "evil.tar.gz"
    with tarfile.open(evil, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("../../.bashrc"), io.BytesIO())
    with expect_fail(UserError, contains="'../../.bashrc' leads out of its folder"):
        unpack(evil, Path(tmp) / "data")


# %% [markdown]
# ## Published data sets and their lists
#
# Three data sets can be named without a path. A name must mean the same images and the same split everywhere, or two tables cannot be compared. Therefore the lists of names come with the library (`mshnet/lists`). Those that most papers use are the default: 213 and 214 images of NUAA-SIRST, 663 and 664 of NUDT-SIRST, 800 and 201 of IRSTD-1k, as in the toolbox XinyiYing/BasicIRSTD (95650c3). The authors of NUAA-SIRST published two different splits, of 427 and of 320 images. Their names end in `-authors427` and `-authors320`. The lists of different origins overlap: never score weights of one by another.

# %%
#| export
@dataclass(frozen=True)
class Published:
    "A data set that others publish."

    name: str
    page: str  # for people: what it is, how to get it by hand, its licence
    archives: tuple[str, ...]  # addresses of .tar.gz, tried in this order


def _at(repository: str, commit: str) -> str:
    "The address of a repository's files at a commit."
    return f"https://codeload.github.com/{repository}/tar.gz/{commit}"


_ALL_THREE = _at("Cavalry5245/Grounding-DINO-IRSTD", "e1555ef9110a5757db3d4f6de09a3bd81b3b6153")
_SIRST = _at("YimianDai/sirst", "84302ab351af09dde227aa13ee9887f081bc3d4f")
_SIRST_FIRST = _at("YimianDai/sirst", "2f9bc6e315ee325b2762b7efc74d20b0a7554444")
_NUDT = _at(
    "15730845297/Infrared-Small-Target-Detection", "0d42d23649920d9d10865bb751ccf82358f4e16a"
)
_OF_NUDT = "https://github.com/YeRen123455/Infrared-Small-Target-Detection"
KNOWN = (
    Published(
        "NUAA-SIRST", "https://github.com/YimianDai/sirst", (_SIRST, _SIRST_FIRST, _ALL_THREE)
    ),
    Published("NUDT-SIRST", _OF_NUDT, (_ALL_THREE, _NUDT)),
    Published("IRSTD-1k", "https://github.com/RuiZhang97/ISNet", (_ALL_THREE,)),
)
_LISTS = Path(str(files("mshnet") / "lists"))


def known(text: str) -> Published | None:
    "The published data set of this name, in capitals or not; SIRST is NUAA-SIRST."
    name = {"sirst": "nuaa-sirst"}.get(text.lower(), text.lower())
    return next((published for published in KNOWN if published.name.lower() == name), None)


def shipped_lists() -> dict[str, Path]:
    "The lists of names that come with the library, such as nuaa-sirst-authors427-test."
    return {file.stem: file for file in sorted(_LISTS.glob("*-t*.txt"))}


def usual_list(
    images: Path,  # the folder of a data set's images
    part: str,  # "train" or "test"
) -> Path | None:  # None: none of the three
    "The usual list of a published data set, which is recognised by the names of its images."
    there = {path.stem for path in images.glob("*.png") if path.name[0] != "."}
    for published in KNOWN if there else ():
        if there == {key.split("/")[1] for key in _pixels(published)}:
            ending = "trainval" if part == "train" else "test"
            return shipped_lists()[f"{published.name.lower()}-{ending}"]
    return None


def _pixels(published: Published) -> dict[str, str]:
    "What a published data set holds: six digits of the pixels of each image and of each mask."
    lines = (_LISTS / f"{published.name.lower()}-pixels.txt").read_text("utf-8").splitlines()
    rows = [line.split() for line in lines]
    return {f"images/{row[0]}": row[1] for row in rows} | {
        f"masks/{row[0]}": row[2] for row in rows
    }


# %%
test_eq([known(name).name for name in ("sirst", "irstd-1K")], ["NUAA-SIRST", "IRSTD-1k"])
with expect_fail(UserError, contains="did you mean 'NUAA-SIRST'?"):
    find_dataset("NUAA-SIRTS")
with tempfile.TemporaryDirectory() as tmp:
    for number in range(1, 1328):
        (Path(tmp) / f"{number:06}.png").touch()
    test_eq(usual_list(Path(tmp), "test").name, "nudt-sirst-test.txt")
    (Path(tmp) / "one-more.png").touch()
    test_eq(usual_list(Path(tmp), "test"), None)
{name: len(file.read_text().split()) for name, file in shipped_lists().items()}

# %% [markdown]
# We download archives of public repositories at a fixed commit, as GitHub packs them. (Pages of Google Drive and Baidu move, and ask for an account.) An archive may hold much more than one data set, in folders that its owner chose. We read it while it arrives, keep nothing but the images and masks of the data set, and stop after the last one.
#
# A file is recognised by its pixels. `tools/pixels.py` made the digests from the sets that our results were computed with. A file belongs to the data set if its name and its pixels do, whatever its folder. Compression and the number of equal channels do not count, and in a mask only zero or not. So a changed or damaged image cannot slip in: it is missing at the end, and the error names it. A broken connection is tried three times, then comes the next address. Nothing appears under the data set's name before it is complete.
#
# **None of the addresses was tried.** Commits and file names are those in an index of public repositories; the tests use a local server.

# %%
#| export
_PICTURES = (".png", ".bmp", ".jpg", ".jpeg", ".tif", ".tiff")
_LARGEST = 20_000_000  # bytes of one file, and pixels of one picture


def download(published: Published, local: Path) -> Path:
    "The folder of a published data set, downloaded to `local` the first time; else UserError."
    folder = local / published.name
    with explain_failure(f"{folder}: cannot be written"), _made_once(folder) as new:
        if new:
            say(f"data    downloading {published.name} (its page and terms: {published.page})")
            wanted, problem = _pixels(published), ""
            total = len(wanted)
            with tqdm(total=total, unit=" files", disable=not _watched(), leave=False) as bar:
                for url in published.archives:
                    problem = _read_archive(url, wanted, new, bar) or problem
            if wanted:
                raise _incomplete(published, wanted.keys(), total, problem)
            say(f"data    {published.name} is in {folder}, every pixel as published")
    return folder


def _incomplete(published: Published, lost: Iterable[str], total: int, problem: str) -> UserError:
    "The error for a download that lacks some files, or all of them."
    names = sorted(lost)
    some = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")
    why = f"{problem}; " if problem else ""
    return UserError(
        f"{published.name}: cannot be downloaded: {why}{len(names)} of {total} files are missing "
        f"or have other pixels ({some}); check that Internet is on and run the same again, or get "
        f"it by hand from {published.page} and use --dataset-dir FOLDER"
    )


def _read_archive(
    url: str,
    wanted: dict[str, str],  # digests of the files to find; those found are removed
    folder: Path,  # gets them
    bar: tqdm,
) -> str:  # what went wrong; empty: it was read to its end, or nothing is wanted any more
    "Download an archive and keep what belongs to the data set."
    problem = ""
    for seconds in (0, 1, 2):
        try:
            if wanted:
                time.sleep(seconds)
                for path, content in _pictures_at(url):
                    bar.update(_keep(path, content, wanted, folder))
                    if not wanted:
                        break
            return ""
        except ConnectionError as error:
            problem = reason(error)
    return problem


def _pictures_at(url: str) -> Iterator[tuple[str, bytes]]:
    "Path and content of each picture in a remote archive; ConnectionError if it breaks off."
    import requests  # imported here: `mshnet --help` needs none

    try:
        with requests.get(url, stream=True, timeout=60) as answer:
            answer.raise_for_status()
            unpacked: Any = gzip.GzipFile(fileobj=answer.raw)
            with tarfile.open(fileobj=unpacked, mode="r|") as box:
                for member in box:
                    wanted = member.name.lower().endswith(_PICTURES) and member.size <= _LARGEST
                    if wanted and (file := box.extractfile(member)):
                        yield member.name, file.read()
    except Exception as error:  # of the network, or of an archive that is none
        raise ConnectionError(reason(error)) from None


def _keep(path: str, content: bytes, wanted: dict[str, str], folder: Path) -> int:
    "Write a picture if it is wanted, as an image or as a mask; return the number of files."
    file = PurePosixPath(path)
    name = file.stem.removesuffix("_pixels0")
    names = (f"images/{name}", f"masks/{name}")
    if not wanted.keys() & names:
        return 0
    pairs = zip(names, pixel_digests(content), strict=True)
    found = [name for name, digits in pairs if wanted.get(name) == digits]
    for name in found:
        target = folder / f"{name}{file.suffix}"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        del wanted[name]
    return len(found)


def pixel_digests(
    content: bytes,  # of a picture's file
) -> tuple[str, str]:  # as an image, as a mask; empty: it cannot be read
    "Six digits for the pixels of a picture: of their colours, and of zero or not."
    from PIL import Image  # imported here: `mshnet --help` needs none

    with contextlib.suppress(Exception), Image.open(io.BytesIO(content)) as picture:
        if picture.width * picture.height <= _LARGEST:
            marked = picture.convert("L").point(lambda value: 255 * (value > 0))
            both = (f"{p.size}".encode() + p.tobytes() for p in (picture.convert("RGB"), marked))
            image, mask = (hashlib.sha256(pixels).hexdigest()[:6] for pixels in both)
            return image, mask
    return "", ""


# %% [markdown]
# The digests of a grey picture are those of the same picture with three channels. An address without a server leaves nothing behind:

# %%
def saved(picture):
    "A picture as the content of a PNG file."
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


grey = Image.linear_gradient("L")
test_eq(pixel_digests(saved(grey)), pixel_digests(saved(grey.convert("RGB"))))
test_eq(pixel_digests(b"no picture"), ("", ""))
with tempfile.TemporaryDirectory() as tmp:
    nowhere = Published("IRSTD-1k", "https://example.org", ("http://127.0.0.1:1/a.tar.gz",))
    with expect_fail(UserError, contains="IRSTD-1k: cannot be downloaded"):
        download(nowhere, Path(tmp))
    test_eq([path.name for path in Path(tmp).iterdir() if path.suffix != ".lock"], [])
