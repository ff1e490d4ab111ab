# %% [markdown]
# # Find or download a data set
#
# > From `--dataset-dir` to a folder on the local disk: a folder, a .zip archive, or the name of a published data set.
#
# "We train on NUAA-SIRST" may mean any of three published splits, and two tables with different splits cannot be compared. This page turns one setting into one folder, with the same images and the same lists on every machine:
#
# | `dataset_dir` | the folder |
# |---|---|
# | a folder | itself |
# | a `.zip` archive | unpacked to the local disk, once |
# | a name in `/kaggle/input`, `/content` or `data` | the folder, or with `.zip` the archive, of this name |
# | `NUAA-SIRST`, `IRSTD-1k`, `NUDT-SIRST` | downloaded, once (not tried with the real servers) |
# | empty | none: the data are synthetic scenes |

# %%
#| hide
#| default_exp fetch
import tempfile

from PIL import Image

from mshnet.fetch import shipped_lists, unpack

# %%
#| export
import contextlib
import glob
import hashlib
import io
import os
import re
import shutil
import tarfile
import unicodedata
import zipfile
from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from mshnet.core import UserError, did_you_mean, reason, shown
from mshnet.files import explain_failure, locked, move
from mshnet.places import Place, heartbeat, is_mounted, megabytes, mount_drive, on_drive, say, where

# %% [markdown]
# ## The lists that come with the library
#
# Three data sets can be named without a path, and their lists come with the library (`mshnet/lists`). The default lists are those that most papers use, as in the toolbox XinyiYing/BasicIRSTD (95650c3). The authors of NUAA-SIRST published two different splits, of 427 and of 320 images; their names contain `-authors427` and `-authors320`. The training list of each of the three splits shares images with the test lists of the other two, so score weights only on the test list of their own split. We print the length of each training list, and how many of its images are in which test list:

# %%
lists = {name: set(file.read_text().split()) for name, file in shipped_lists().items()}
for train in (name for name in lists if name.endswith("-trainval")):
    shared = {test: len(lists[train] & lists[test]) for test in lists if test.endswith("-test")}
    print(train, len(lists[train]), {test: number for test, number in shared.items() if number})

# %% [markdown]
# ## The machinery: where is the data set?
#
# Kaggle mounts an attached data set in `/kaggle/input/NAME`, of late also in `/kaggle/input/datasets/OWNER/NAME`, and the folder inside often repeats the name. We also search one and two levels below. We skip folders that begin with a dot, and the folder `unpacked`, which may contain part of an archive. Published names come last: a folder of that name is taken as it is.

# %%
#| export
UNPACKED = "unpacked"  # the folder of unpacked archives, below the place's local one
_JUNK = re.compile(r"(^|/)(__MACOSX(/|$)|(\.DS_Store|\._[^/]*)/?$)")  # files of macOS itself


def find_dataset(
    text: str,  # folder or archive, the name of one in `place.data`, or a published name
    place: Place | None = None,
) -> Path | None:
    "The folder of a data set; None for an empty text; UserError if there is no such data set."
    if not text:
        return None
    place = place or where()
    written = Path(os.path.expanduser(text))
    if place.name == "colab" and on_drive(written) and not is_mounted():
        line = mount_drive(place)  # naming a folder there asks for it
        if not is_mounted():
            raise UserError(f"dataset_dir={shown(text)}: {line}")
    for path in _candidates(written, place):
        if os.path.isdir(path):
            return path
        if os.path.isfile(path) and path.suffix.lower() == ".zip":
            return unpack(path, place.local)
    if published := known(text):
        return download(published, place.local)
    near = [published.name for published in KNOWN]
    for folder in (written.parent, place.data):
        with contextlib.suppress(OSError, ValueError):
            near = [beside.name for beside in folder.iterdir() if beside != written] + near
    beside = "" if written.anchor else f", or in {place.data.absolute()}"
    kind = f"there is no such folder ({written.absolute()}{beside})"
    kind += "; name one, or NUAA-SIRST to download"
    if os.path.isfile(written):
        kind = "is neither a folder nor a .zip archive; unpack it, or pack its content as .zip"
    raise UserError(f"dataset_dir={shown(text)}: {kind}{did_you_mean(written.name, near)}")


def _candidates(written: Path, place: Place) -> Iterator[Path]:
    "The paths that a name may mean, the likeliest first."
    yield written
    if written.is_absolute():
        return
    yield place.data / written
    with contextlib.suppress(OSError, ValueError, RecursionError):  # a folder that is not readable
        for deep in ("[!.]*", "[!.]*/[!.]*"):
            found = sorted(place.data.glob(f"{deep}/{glob.escape(str(written))}"))
            yield from (path for path in found if place.local / UNPACKED not in path.parents)


# %% [markdown]
# ### To the local disk, once
#
# A data set of this field is a thousand small files. From a mounted Drive each may take a good part of a second to open (not measured here); an archive of them takes that time once. So keep a `.zip` on Drive. We unpack it to the local disk: on Colab `/content/data`, and on Kaggle `/tmp/mshnet-data`, because everything below `/kaggle/working` is kept as the notebook's output. Elsewhere it is `data`.
#
# Several processes of one machine (one per GPU) arrive here at the same time. The first takes a lock, unpacks to a scratch folder and renames that. A rename is atomic, so no process sees half a data set. If a process is killed, the system releases its lock, and the next process deletes the scratch folder and begins again.
#
# An archive is unpacked to a folder with its name and eight digits of a hash of its path, size and time; a different archive of the same name gets a different folder. Many archives wrap everything in one folder (`sirst-master/`), which then is the data set. Python's `zipfile` compares checksums and cuts the part of a name that leads out of the folder. Here an archive that was packed on macOS:

# %%
with tempfile.TemporaryDirectory() as tmp:
    archive = Path(tmp) / "sirst.zip"
    with zipfile.ZipFile(archive, "w") as box:
        box.writestr("sirst-master/images/a.png", "a")
        box.writestr("sirst-master/masks/a.png", "b")
        box.writestr("__MACOSX/._a.png", "c")
    with contextlib.redirect_stdout(io.StringIO()):  # two lines, which name the temporary folder
        found = unpack(archive, Path(tmp) / "data")
    print(found.name, sorted(p.relative_to(found).as_posix() for p in found.rglob("*.png")))


# %% [markdown]
# Names in a `.zip` may be in any encoding. A flag marks UTF-8. Without it we decode a name as UTF-8 (macOS) if its bytes allow that, else as GB 2312 (the common part of Chinese Windows' GBK), else as code page 437 (other systems). Other encodings, such as Big5, may look like one of them, so we print one guessed name to check. An accented letter is two code points on macOS and one in most lists. We store one.

# %%
#| export
@contextlib.contextmanager
def _made_once(target: Path) -> Iterator[Path | None]:
    "Yield a scratch path whose content becomes the target, or None if the target exists."
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = target.with_name(f".{target.name}.lock")  # not made if the target exists
    with contextlib.nullcontext(True) if target.exists() else locked(lock) as locks:
        if target.exists():
            yield None
            return
        own = "" if locks else os.getpid()  # where nothing locks, two may make it at once
        scratch = target.with_name(f".{target.name}.partial{own}")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        try:
            yield scratch
            if not target.exists():  # else another has made it meanwhile
                move(scratch, target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def unpack(archive: Path, local: Path) -> Path:
    "The data set in a .zip, unpacked below `local` the first time; UserError if it is bad."
    with explain_failure(f"{archive}: cannot be unpacked to {local}"):
        about = archive.stat()
        identity = f"{archive.resolve()} {about.st_size} {about.st_mtime_ns}"
        digits = hashlib.sha256(identity.encode()).hexdigest()[:8]
        target = local / UNPACKED / f"{archive.stem}-{digits}"
        with _made_once(target) as new:
            if new:
                damaged = f"{archive}: damaged, or not an archive"
                todo = "copy or download it again, or unpack it yourself"
                with explain_failure(damaged, todo, damaged=True):
                    _extract(archive, new / archive.stem)
                say(f"data    unpacked {archive.name} to {target}; the next start finds it there")
    while len(inside := list(target.iterdir())) == 1 and inside[0].is_dir():
        target = inside[0]  # a folder that contains nothing but one folder
    return target


def _extract(archive: Path, folder: Path) -> None:
    "Unpack an archive, except the files that macOS put there for itself."
    with zipfile.ZipFile(archive) as box:
        members = [member for member in box.infolist() if not _JUNK.search(member.filename)]
        if not members:
            raise UserError(f"{archive.name}: contains no file")
        size = sum(member.file_size for member in members)
        needed = megabytes(size)
        if size > shutil.disk_usage(folder.parents[1]).free:
            raise UserError(f"{archive.name}: needs {needed}, more than is free; free space")
        say(f"data    unpacking {archive.name}: {len(members)} members, {needed}")
        for member in members:
            member.filename = _readable(member)
        guessed = [m.filename for m in members if not (m.flag_bits & 0x800 or m.filename.isascii())]
        if guessed:
            say(f"data    guessed name: {guessed[0]}; if wrong, pack it with UTF-8 (7-Zip: cu=on)")
        box.extractall(folder, members)


def _readable(member: zipfile.ZipInfo) -> str:
    "The name of a member, with slashes, and with one sign for a letter and its accent."
    name = member.filename
    for encoding in () if member.flag_bits & 0x800 else ("gb2312", "utf-8"):
        with contextlib.suppress(UnicodeError):  # else it is right as it is
            name = member.filename.encode("cp437").decode(encoding)
    return unicodedata.normalize("NFC", name).replace("\\", "/")


# %% [markdown]
# ### Published data sets
#
# We download archives of public repositories at a fixed commit, as GitHub packs them. (Pages of Google Drive and Baidu move, and ask for an account.) An archive may hold much more than one data set, in folders that its owner chose. We read it while it arrives, keep nothing but the images and masks of the data set, and stop after the last one.
#
# A file belongs to the data set if its name and its pixels do, whatever its folder (`tools/pixels.py` made the digests from the sets of our results). The format, lossless compression and repeated grey channels make no difference. Of a mask we compare only which pixels are target (above half of its maximum). So a changed or damaged image cannot slip in: it is missing at the end, and the error names it. Files that one address lacks may come from the next. Nothing appears under the data set's name before it is complete. Below the code, two files with the same pixels, and the error of a download that fails.
#
# **None of the addresses was tried.** Commits and file names are those in an index of public repositories; the tests use a local server.

# %%
#| export
class Published(NamedTuple):
    "A data set that others publish."

    name: str
    page: str  # for people: what it is, how to download it, its licence
    archives: tuple[str, ...]  # addresses of .tar.gz, tried in this order


_url = "https://codeload.github.com/{}/tar.gz/{}".format  # the files of a repository at a commit
_COMMITS = "84302ab351af09dde227aa13ee9887f081bc3d4f", "2f9bc6e315ee325b2762b7efc74d20b0a7554444"
_ALL_THREE = _url("Cavalry5245/Grounding-DINO-IRSTD", "e1555ef9110a5757db3d4f6de09a3bd81b3b6153")
_NUDT = "15730845297/Infrared-Small-Target-Detection", "0d42d23649920d9d10865bb751ccf82358f4e16a"
_SIRST = [_url("YimianDai/sirst", commit) for commit in _COMMITS]
KNOWN = (
    Published("NUAA-SIRST", "https://github.com/YimianDai/sirst", (*_SIRST, _ALL_THREE)),
    Published(
        "NUDT-SIRST",
        "https://github.com/YeRen123455/Infrared-Small-Target-Detection",
        (_ALL_THREE, _url(*_NUDT)),
    ),
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


_PICTURES = (".png", ".bmp", ".jpg", ".jpeg", ".tif", ".tiff")


def usual_list(images: Path, part: str) -> Path | None:  # part: "train" or "test"
    "The usual list of a published data set, recognised by the names of its images; else None."
    files = (path for path in images.glob("*.*") if path.suffix.lower() in _PICTURES)
    there = {path.stem for path in files if path.name[0] != "."}
    for published in KNOWN:
        if there == {key.split("/")[1] for key in _pixels(published)}:
            ending = "trainval" if part == "train" else "test"
            return shipped_lists()[f"{published.name.lower()}-{ending}"]
    return None


def _pixels(published: Published) -> dict[str, str]:
    "What a published data set holds: six digits of the pixels of each image and of each mask."
    digests = {}
    for line in (_LISTS / f"{published.name.lower()}-pixels.txt").read_text("utf-8").splitlines():
        name, digests[f"images/{name}"], digests[f"masks/{name}"] = line.split()
    return digests


_LARGEST = 20_000_000  # bytes of one file, and pixels of one image


def download(published: Published, local: Path) -> Path:
    "The folder of a published data set, downloaded to `local` the first time; else UserError."
    folder, name = local / published.name, published.name
    with explain_failure(f"{folder}: cannot be written"), _made_once(folder) as new:
        if not new:
            return folder
        say(f"data    downloading {name} (its page and terms: {published.page})")
        wanted, problems = _pixels(published), list[str]()
        total = len(wanted)
        with heartbeat(lambda _: say(f"data    {total - len(wanted)} of {total} files"), every=20):
            for path, content in _pictures_at(published.archives, problems):
                _keep(PurePosixPath(path), content, wanted, new)
                if not wanted:
                    break
        if wanted:
            problem = f"{problems[-1]}; " if problems else ""
            raise UserError(
                f"{name}: cannot be downloaded: {problem}{len(wanted)} of {total} files are "
                f"missing or have other pixels (such as {min(wanted)}); check that Internet is on "
                f"and run the same again, or download it yourself from {published.page} and use "
                "--dataset-dir FOLDER"
            )
        say(f"data    {name} is in {folder}, images and targets as in the sets of our results")
    return folder


def _pictures_at(urls: Iterable[str], problems: list[str]) -> Iterator[tuple[str, bytes]]:
    "Path and content of each image in remote archives; `problems` gets why one breaks off."
    import requests  # imported here: `mshnet --help` needs none

    for url in urls:
        try:
            with requests.get(url, stream=True, timeout=60) as answer:
                answer.raise_for_status()
                with tarfile.open(fileobj=answer.raw, mode="r|gz") as box:
                    for member in box:
                        wanted = member.name.lower().endswith(_PICTURES)
                        if wanted and member.size <= _LARGEST and (file := box.extractfile(member)):
                            yield member.name, file.read()
        except Exception as error:  # of the network, or of an archive that is none
            problems.append(reason(error))


def _keep(path: PurePosixPath, content: bytes, wanted: dict[str, str], folder: Path) -> None:
    "Write a file of pixels if it is wanted, as an image or as a mask."
    name = path.stem.removesuffix("_pixels0")
    names = (f"images/{name}", f"masks/{name}")
    found = pixel_digests(content) if wanted.keys() & {*names} else ("", "")
    for file, digits in zip(names, found, strict=True):
        if wanted.get(file) == digits:
            target = folder / f"{file}{path.suffix}"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            del wanted[file]


def pixel_digests(content: bytes) -> tuple[str, str]:  # as an image, as a mask
    "Six digits for the pixels of an image file: of their colours, of target or not; else empty."
    from PIL import Image  # imported here: `mshnet --help` needs none

    with contextlib.suppress(Exception), Image.open(io.BytesIO(content)) as opened:
        if opened.width * opened.height <= _LARGEST:
            grey = opened.convert("L")
            most: Any = grey.getextrema()[1]  # above half of it is target, as in `read_mask`
            marked = grey.point(lambda value: 255 * (2 * value > most))
            both = (f"{p.size}".encode() + p.tobytes() for p in (opened.convert("RGB"), marked))
            image, mask = (hashlib.sha256(pixels).hexdigest()[:6] for pixels in both)
            return image, mask
    return "", ""


# %%
grey = Image.linear_gradient("L")
grey.save(one := io.BytesIO(), "PNG")  # the same pixels in one channel, and in three equal ones
grey.convert("RGB").save(three := io.BytesIO(), "BMP")
digests = [pixel_digests(file.getvalue()) for file in (one, three)]
print("as an image, as a mask:", *digests[0], "equal:", digests[0] == digests[1])
nowhere = Published("NUAA-SIRST", known("sirst").page, archives=("http://127.0.0.1:1/a",))
with tempfile.TemporaryDirectory() as tmp:
    try:
        download(nowhere, Path(tmp))
    except UserError as error:
        print(str(error).split("; ")[1])

# %% [markdown]
# ## Questions
#
# 1. You train with the list `nuaa-sirst-authors427-trainval` and score with `nuaa-sirst-test`, which has 214 images. What is the score worth?
#    <details><summary>Answer</summary>Little: 172 of the test images, or 80%, are training images, too. Only the other 42 show what the network does with new images. And the score cannot be compared with the tables of either split.</details>
