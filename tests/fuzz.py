"""Any bytes: what the readers make of files that nobody wrote on purpose.

Each property takes one invented input and asks for a result or for a clear error, which is one line
and of the kind that the reader promises. `READERS` names them all. `run` tries one of them in a
process of its own, with a limit on its memory: what crashes, hangs or swells is a failure there and
not here. From the command line: `python tests/fuzz.py [EXAMPLES] [SEED] [READER ..]`.
"""

import contextlib
import faulthandler
import io
import json
import os
import pickle
import random
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image

from mshnet.compare import as_json, as_markdown, compare, draw
from mshnet.core import (
    ALIASES,
    PRESETS,
    RETIRED,
    SWITCHES,
    Config,
    UserError,
    configure,
    from_notebook,
    run_name,
    settings_of,
    translate,
)
from mshnet.data import (
    MOST_PIXELS,
    SUFFIXES,
    Findings,
    find_layout,
    read_names,
    read_pair,
    read_split,
    report,
)
from mshnet.model import load_weights
from mshnet.places import ARCHIVES, Place, find_dataset
from mshnet.run import (
    Folder,
    State,
    earlier,
    load,
    restore,
    snapshot,
    write_checkpoint,
    write_log,
)

HANG = 120  # seconds for one input
ROOM = 2**31  # bytes that a process may take more than at its start: two images of the largest size
EXAMPLES = 60

# Inventing


def cut_out(draw, data: bytearray, place: int) -> bytes:
    "Leave out a few bytes, or all that follow."
    count = draw(st.sampled_from([1, 4, 64, len(data)]))
    return data[:place] + data[place + count :]


def change(draw, data: bytearray, place: int) -> bytes:
    "Turn one bit."
    data[place] ^= 1 << draw(st.integers(0, 7))
    return data


def write_over(draw, data: bytearray, place: int) -> bytes:
    "Put a number in the place of another: small, large, below zero, in either order of bytes."
    number = draw(st.sampled_from([0, 1, 255, 65_535, 60_000, 2**31 - 1, 2**31, 2**32 - 1]))
    form = draw(st.sampled_from(["<I", ">I", "<H", ">H"]))
    put = struct.pack(form, number % 256 ** struct.calcsize(form))
    return data[:place] + put + data[place + len(put) :]


def put_in(draw, data: bytearray, place: int) -> bytes:
    "Put bytes between others: any, or some of the file's own."
    own = bytes(data[place : place + 64]) * draw(st.integers(0, 3))
    return data[:place] + draw(st.binary(max_size=16)) + own + data[place:]


@st.composite
def damaged(draw, whole: list[bytes]) -> bytes:
    "A real file with a few faults, most of them near its beginning or its end."
    data = draw(st.sampled_from(whole))
    for _ in range(draw(st.integers(1, 4))):
        last = len(data) - 1
        if last < 0:
            break
        near = st.one_of(st.integers(0, min(last, 100)), st.integers(max(last - 100, 0), last))
        place = draw(st.one_of(near, st.integers(0, last)))
        data = bytes(
            draw(st.sampled_from([cut_out, change, write_over, put_in]))(
                draw, bytearray(data), place
            )
        )
    return data


def files(*whole: bytes) -> st.SearchStrategy[bytes]:
    "Any bytes, or real files with faults."
    return st.one_of(damaged(list(whole)), st.binary(max_size=300))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=40)
    | st.sampled_from(
        ["", "auto", "cpu", "~", "~nobody-here/x", "a\nb", "\x00", "quick", "..", "/"]
    )
    | st.sampled_from([10**400, -1, 0, 2**63, 1e308, "9" * 5000, "x" * 3000, "\ud800"]),
    lambda some: (
        st.lists(some, max_size=4) | st.dictionaries(st.text(max_size=8), some, max_size=4)
    ),
    max_leaves=8,
)
ODD_SETTINGS = st.dictionaries(
    st.sampled_from([*Config.model_fields, *ALIASES, *SWITCHES, *RETIRED])
    | st.text(max_size=40)
    | st.sampled_from(["", "\ud800", "a\nb", "x" * 5000, "warm", "epochz"]),
    VALUES | st.sampled_from([*PRESETS, 1, 16, 64, "val", "true", True, 0.5]),
    max_size=3,
)
GOOD_SETTINGS = st.lists(st.sampled_from(sorted(Config.model_fields)), max_size=6).map(
    lambda names: {name: Config.model_fields[name].default for name in names}
)
SETTINGS = st.builds(
    lambda good, odd: {**good, **odd}, GOOD_SETTINGS, st.just({}) | ODD_SETTINGS | ODD_SETTINGS
)

# Judging


@dataclass
class Told:
    "What became of the inputs of one reader."

    name: str
    inputs: int = 0
    results: int = 0
    clear_errors: int = 0
    failures: list[str] = field(default_factory=list)
    seed: int | None = None
    slowest_s: float = 0.0
    growth_mb: float = 0.0  # of the most memory that the process held


def one_clear_line(error: BaseException) -> bool:
    "Is this what a user may be shown?"
    text = str(error)
    return 0 < len(text) < 20_000 and text.isprintable()


def judged(told: Told, property_: Callable, value: Any, clear: tuple[type, ...]) -> None:
    "Try one input: a result, a clear error, or an exception that is a failure."
    told.inputs += 1
    faulthandler.dump_traceback_later(HANG, exit=True)
    begun = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            property_(value, Path(folder))
        told.results += 1
    except clear as error:
        assert type(error) in clear, f"{type(error).__name__} is no error for users: {error}"
        assert one_clear_line(error), f"not one short line: {error!r}"
        told.clear_errors += 1
    finally:
        faulthandler.cancel_dump_traceback_later()
        told.slowest_s = max(told.slowest_s, time.perf_counter() - begun)


READERS: dict[str, Callable[[int, int | None], Told]] = {}


def reader(
    inputs: Callable[[], st.SearchStrategy],
    by_hand: Callable[[], list] = list,  # inputs that are always tried
    clear: tuple[type, ...] = (UserError,),
    room_mb: int = 100,  # of memory that all inputs together may take
) -> Callable:
    "Name a property in READERS; there it takes a number of examples and a seed."

    def enter(property_: Callable[[Any, Path], None]) -> Callable:
        name = property_.__name__.replace("_", " ")

        def tried(examples: int = EXAMPLES, seed: int | None = None) -> Told:
            told = Told(name, seed=seed)

            def test(value):
                judged(told, property_, value, clear)

            test = given(inputs())(test)
            test = settings(
                max_examples=examples,
                deadline=None,
                database=None,
                derandomize=seed is None,
                phases=[Phase.generate, Phase.shrink],
                suppress_health_check=list(HealthCheck),
            )(test)
            made = by_hand()
            with contextlib.suppress(Exception):  # what is loaded with the first use is no growth
                judged(Told(name), property_, made[0], clear)
            forget()
            before = most_memory()
            for step in (
                *[lambda v=v: judged(told, property_, v, clear) for v in made],
                test if seed is None else hypothesis.seed(seed)(test),
            ):
                try:
                    step()
                except Exception as error:  # of the reader, or of what was found in its result
                    told.failures += failures_of(error)
            told.failures = list(dict.fromkeys(told.failures))
            told.growth_mb = round((most_memory() - before) / 2**20, 1)
            if told.growth_mb > room_mb:
                told.failures.append(f"{told.growth_mb} MB more memory, not {room_mb}")
            return told

        READERS[name] = tried
        return property_

    return enter


def failures_of(error: BaseException) -> list[str]:
    "One line for each fault, with the place in the code."
    if isinstance(error, BaseExceptionGroup):
        return [line for inner in error.exceptions for line in failures_of(inner)]
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "mshnet" in f.filename or "fuzz" in f.filename]
    place = f"{Path(own[-1].filename).name}:{own[-1].name}" if own else "?"
    notes = [note for note in getattr(error, "__notes__", []) if "Falsifying" in note]
    return [f"{type(error).__name__} in {place}: {str(error)[:300]!r} {' '.join(notes)[:600]}"]


def asked() -> tuple[int, int | None]:
    "How many examples and with which seed: MSHNET_FUZZ asks for others than those of every day."
    if not os.environ.get("MSHNET_FUZZ"):
        return EXAMPLES, None
    return int(os.environ["MSHNET_FUZZ"]), random.SystemRandom().randrange(1, 2**31)


def most_memory() -> float:
    "The most memory that this process held since `forget`, in bytes."
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss would be that of the process which started this one
        line = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM"))
        return float(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on a Mac


def forget() -> None:
    "Begin `most_memory` anew, where the system can."
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def limit_memory(room: int) -> None:
    "Let this process take so many bytes more and no more, where the system can hold it to that."
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + room, size + room))


# Settings


def use(config: Config) -> None:
    "What every command does with its settings."
    assert Config(**json.loads(config.model_dump_json())) == config
    assert "/" not in run_name(config)
    assert str(config)


def whole_settings() -> list[bytes]:
    "Files of settings."
    wide = {f"name {i}": i for i in range(50_000)}
    return [
        json.dumps(Config().model_dump()).encode(),
        json.dumps({"epochs": 3, "preset": "paper"}).encode("utf-16"),
        b"\xef\xbb\xbf" + json.dumps({"epochs": 3, "use_tpu": True, "data_path": "x"}).encode(),
        b'{"a":' * 100_000,
        b'{"epochs": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"preset": ' + b"[" * 900 + b"1" + b"]" * 900 + b"}",
        b'{"epochs": ' + b"9" * 100_000 + b"}",
        b'{"epochs": NaN, "lr": Infinity, "seed": 1e400}',
        json.dumps(wide).encode(),
        json.dumps({"dataset_dir": "x" * 10**6, "y" * 10**6: 1}).encode(),
        b"[" * (20 * 2**20),
    ]


@reader(
    lambda: st.one_of(
        files(*whole_settings()[:3]), SETTINGS.map(lambda value: json.dumps(value).encode())
    ),
    whole_settings,
    room_mb=400,
)
def settings_file(data: bytes, folder: Path) -> None:
    "A file of settings, named with --config or lying in the folder of a run."
    (folder / "config.json").write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        settings_of(str(folder))
        use(configure({}, str(folder / "config.json")))


@reader(
    lambda: SETTINGS,
    lambda: [{"resume": "~nobody-here"}, {"epochs": 10**5000}, {"weight_path": "a" * 3000}],
)
def settings_of_any_type(values: dict[str, Any], folder: Path) -> None:
    "Settings as a notebook's variables may hold them."
    doors: list[Callable] = [translate, lambda v: use(Config(**v)), lambda v: use(configure(v))]
    doors.append(lambda v: use(from_notebook(v)))
    wrong = []
    for door in doors:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                door(dict(values))
        except UserError as error:
            wrong.append(error)
    if wrong:
        raise next((e for e in wrong if not one_clear_line(e)), wrong[0])


# Data sets


def image_bytes(pixels: np.ndarray, form: str, **how: Any) -> bytes:
    "An image file."
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form, **how)
    return buffer.getvalue()


def png(width: int, height: int, depth: int, colour: int, body: bytes) -> bytes:
    "A PNG with a header of our choice and check sums in order."
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"PLTE", bytes(6)), (b"IDAT", body), (b"IEND", b""))
    packed = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
        if kind != b"PLTE" or colour == 3
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def any_png() -> st.SearchStrategy[bytes]:
    "A PNG whose header and pixels need not agree."
    side = st.integers(0, 40) | st.sampled_from([9000, 60_000, 2**31 - 1, 2**32 - 1])
    depth, colour = st.sampled_from([1, 2, 4, 8, 16, 7]), st.sampled_from([0, 2, 3, 4, 6, 5])
    body = st.binary(max_size=2000).map(zlib.compress) | st.binary(max_size=50)
    return st.builds(png, side, side, depth, colour, body)


def whole_images() -> list[bytes]:
    "Small image files of every kind."
    grey = np.arange(12 * 17, dtype=np.uint8).reshape(12, 17)
    colour = np.stack([grey, grey // 2, 255 - grey], 2)
    deep, real = grey.astype(np.uint16) * 100, grey.astype(np.float32)
    made = [image_bytes(p, f) for p in (grey, colour) for f in ("PNG", "BMP", "TIFF", "JPEG")]
    made += [image_bytes(deep, "PNG"), image_bytes(deep, "TIFF"), image_bytes(real, "TIFF")]
    made += [image_bytes(colour, "TIFF", compression=how) for how in ("tiff_lzw", "jpeg")]
    made += [image_bytes(colour, "JPEG", progressive=True), image_bytes(grey, "GIF")]
    return [*made, image_bytes(grey > 9, "TIFF", compression="group4")]


def bombs() -> list[bytes]:
    "Files of some kilobytes that claim, or hold, pictures of gigabytes; and odd ones."
    squeeze = zlib.compressobj(9)
    packed = b"".join(squeeze.compress(bytes(10**6)) for _ in range(150)) + squeeze.flush()
    odd = np.array([[np.nan, 1], [np.inf, -np.inf]], np.float32)
    bitmap = bytearray(image_bytes(np.zeros((2, 2), np.uint8), "BMP"))
    bitmap[18:26] = struct.pack("<ii", 60_000, -60_000)
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
    return [
        png(12_000, 12_000, 8, 0, packed),
        png(9000, 9000, 16, 0, packed),
        png(60_000, 60_000, 8, 2, zlib.compress(b"0")),
        png(1, MOST_PIXELS, 8, 2, zlib.compress(b"0")),
        png(8192, 8192, 16, 0, packed),
        png(0, 5, 8, 0, zlib.compress(b"0")),
        bytes(bitmap),
        image_bytes(odd, "TIFF"),
        image_bytes(odd[:, :1], "TIFF"),
        postscript,
    ]


def data_folder(folder: Path, data: bytes, at: str) -> None:
    "A data set of two good images, in which one file holds these bytes."
    for kind in ("images", "masks"):
        (folder / kind).mkdir()
        for name in "ab":
            (folder / kind / f"{name}.png").write_bytes(GOOD)
            (folder / f"{name}-secret.png").write_bytes(GOOD)
    for file in ("train.txt", "test.txt"):
        (folder / file).write_text("a\nb\n")
    (folder / at).parent.mkdir(exist_ok=True)
    (folder / at).write_bytes(data)


GOOD = image_bytes(np.eye(16, dtype=np.uint8) * 255, "PNG")


@reader(
    lambda: st.one_of(
        st.binary(max_size=300),
        st.lists(st.text(max_size=40), max_size=20).map(
            lambda lines: "\n".join(lines).encode("utf-8", "surrogatepass")
        ),
        st.tuples(
            st.lists(
                st.sampled_from(
                    ["a\n", "b\n", "b.png\n", "c", "../", "..\\", "/", "C:", "\0", ".png"]
                )
            ),
            st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "latin-1"]),
        ).map(lambda made: "".join(made[0]).encode(made[1])),
    ),
    lambda: [
        b"a\nb.png\n",
        b"a" * (17 * 2**20),
        b"a" * 2**20 + b"\nb\n",
        b"../a-secret\n/etc/passwd\n..\\..\\a-secret\n" + b"C:..\\a-secret.png\n",
        "b\x1b[2J\nb\u2028a\n".encode(),
        "nächste\n".encode("latin-1"),
        b"\x00\n" * 1000,
    ],
)
def list_of_names(data: bytes, folder: Path) -> None:
    "A list of names, and everything that it leads to."
    data_folder(folder, data, "train.txt")
    config, findings = Config(dataset_dir=str(folder), train_list="train.txt"), Findings()
    layout = find_layout(folder, config)
    names = read_names(layout.lists["train"], findings)
    split = read_split(layout, "train", names, findings)
    for name in split.names:  # nothing from elsewhere was read
        assert (folder / "images" / f"{name}.png").resolve().parent == folder.resolve() / "images"
    text, usable = report(config)
    assert usable or "error: " in text
    assert all(line.isprintable() and len(line) < 20_000 for line in text.splitlines())
    findings.settle()


def images_of(kind: str, data: bytes, folder: Path, suffix: str) -> None:
    "A data set in which one image, or mask, holds these bytes."
    (folder / "set").mkdir()
    data_folder(folder / "set", data, f"{kind}/c{suffix}")
    other = "masks" if kind == "images" else "images"
    (folder / "set" / other / "c.png").write_bytes(GOOD)
    layout, findings = find_layout(folder / "set", Config()), Findings()
    reading = read_pair(layout, "c")
    assert (reading.pair is None) == bool(reading.errors)
    assert all(kind.isprintable() for kind in reading.errors | reading.notes)
    split = read_split(layout, "train", ["a", "c", "b"], findings, room=10**5)
    if reading.pair:
        image, mask = reading.pair
        assert image.dtype == mask.dtype == np.uint8
        assert image.shape[:2] == mask.shape
        assert image.shape[2:] in ((), (3,))
        assert 0 < mask.size <= MOST_PIXELS
        assert set(np.unique(mask)) <= {0, 1}
    assert len(split) == 2 + (reading.pair is not None)
    findings.settle()


def picture_files() -> st.SearchStrategy[tuple[bytes, str]]:
    "Bytes of an image file with any suffix that images have."
    return st.tuples(st.one_of(files(*whole_images()), any_png()), st.sampled_from(SUFFIXES))


def picture_bombs() -> list[tuple[bytes, str]]:
    "Large ones and odd ones, as .png."
    return [(data, ".png") for data in [*bombs(), *whole_images()]]


@reader(picture_files, picture_bombs, room_mb=1500)
def image(given: tuple[bytes, str], folder: Path) -> None:
    "An image file."
    images_of("images", *given[:1], folder, given[1])


@reader(picture_files, picture_bombs, room_mb=1500)
def mask(given: tuple[bytes, str], folder: Path) -> None:
    "A mask file."
    images_of("masks", *given[:1], folder, given[1])


# Checkpoints


def small() -> torch.nn.Module:
    "A model of a few weights, with statistics."
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))


def trained() -> State:
    "A small model that has made a step."
    model = small()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    model(torch.eye(3)).sum().backward()
    optimizer.step()
    return State(model, optimizer, epoch=4, phase="full", best={"epoch": 4, "score": 0.5})


def content() -> dict[str, Any]:
    "What a checkpoint holds."
    return snapshot(trained(), Config(schedule="constant"), {"train": "0123"})


def saved(value: Any, zipped: bool = True) -> bytes:
    "A torch file."
    buffer = io.BytesIO()
    torch.save(value, buffer, _use_new_zipfile_serialization=zipped)
    return buffer.getvalue()


class Evil:
    "Makes a folder when it is unpickled."

    def __reduce__(self) -> Any:
        return os.mkdir, ("code ran",)


def whole_checkpoints() -> list[bytes]:
    "Files of every form in which weights are kept, and some that only look like it."
    with tempfile.TemporaryDirectory() as tmp:
        write_checkpoint(content(), Path(tmp) / "last.pt")
        own = (Path(tmp) / "last.pt").read_bytes()
    published = {"net": small().state_dict(), "iou": np.float64(0.67), "epoch": 7}
    evil = [saved({"net": Evil()}, zipped) for zipped in (True, False)]
    plain = [pickle.dumps(value) for value in (Evil(), {"a": 1}, np.float64(1))]
    return [own, saved(published), saved(content(), False), saved(published, False), *evil, *plain]


def squeezed(data: bytes, change: Callable[[str, bytes], bytes]) -> bytes:
    "The same zip file, compressed, its records changed."
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as old,
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as new,
    ):
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return buffer.getvalue()


def checkpoint_bombs() -> list[bytes]:
    "Files that claim more than they hold, or hold far more than they show."
    own, *others = whole_checkpoints()
    weights = saved({"w": torch.zeros(1000)})
    more = weights.replace(b"M\xe8\x03", b"J" + struct.pack("<i", 10**9)[:2])
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as packed:
        packed.addfile(tarfile.TarInfo("storages"))
    script = squeezed(own, lambda n, d: d).replace(b"data.pkl", b"code.pkl")
    nested: Any = []
    for _ in range(40):
        nested = [nested, nested]
    strange = {"model\nline": torch.ones(2), "0.weight": torch.ones(2, 3)}
    return [
        own,
        *others,
        squeezed(own, lambda n, d: bytes(2**29) if n.endswith("data/0") else d),
        more,
        archive.getvalue(),
        script,
        own + bytes(70_000),
        saved(strange),
        saved({**content(), "format": torch.ones(2)}),
        saved({**content(), "config": nested, "data": nested}),
        saved({**content(), "config": {**Config().model_dump(), "lr": nested}}),
        b"",
        b"PK\x03\x04",
    ]


def strange_tensors() -> list[Any]:
    "Tensors that are not what a weight is."
    weight = torch.ones(2, 3)
    return [
        torch.ones(7),
        weight.to("meta"),
        weight.to_sparse(),
        weight.to(torch.complex64),
        weight.half(),
        weight.int(),
        weight.bool(),
        torch.full((2, 3), torch.nan),
        torch.nn.Parameter(weight),
        torch.ones(1, 1).expand(2, 3),
        torch.quantize_per_tensor(weight, 0.1, 0, torch.qint8),
        torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
    ]


@st.composite
def strange_contents(draw) -> bytes:
    "A checkpoint in which some things are of another kind."
    made: Any = content()
    for _ in range(draw(st.integers(1, 3))):
        at = made
        while True:
            if not isinstance(at, dict) or not at:
                break
            key = draw(st.sampled_from(sorted(at, key=str)))
            if isinstance(at[key], dict) and at[key] and draw(st.booleans()):
                at = at[key]
                continue
            if draw(st.integers(0, 4)) == 0:
                del at[key]
            else:
                at[key] = draw(VALUES | st.sampled_from(strange_tensors()))
            break
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return saved(made, draw(st.booleans()))


def checkpoint_files() -> st.SearchStrategy[bytes]:
    "Bytes of a checkpoint."
    return st.one_of(files(*whole_checkpoints()), strange_contents())


@reader(checkpoint_files, checkpoint_bombs, (ValueError,))
def weights(data: bytes, folder: Path) -> None:
    "A file of weights: loaded, or refused with the model as it was and no code run."
    model, path = small(), folder / "given.pt"
    path.write_bytes(data)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load_weights(model, path)
    except ValueError:
        assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
        raise
    finally:
        assert not (folder / "code ran").exists()


@reader(checkpoint_files, checkpoint_bombs)
def checkpoint(data: bytes, folder: Path) -> None:
    "A checkpoint to go on from."
    (folder / "run").mkdir()
    (folder / "run" / "last.pt").write_bytes(data)
    state = trained()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load(folder / "run" / "last.pt")
            config = Config(epochs=9, schedule="constant")
            old = earlier(Folder(folder / "run"), config, {"train": "0123"})
            assert old
            restore(state, old)
        state.model(torch.eye(3)).sum().backward()
        state.optimizer.step()
        assert isinstance(state.epoch, int)
    finally:
        assert not (folder / "code ran").exists()


# Archives

MEMBERS = ("images/a.png", "masks/a.png", "train.txt")
OUTSIDE = ("../out.txt", "/out-of-fuzz.txt", "a/../../out.txt", "..\\out.txt", "C:\\out.txt")
ODD = ("train.txt/b", "images", "x" * 300, "a\nb", "\x1b[2J", "", ".", "/", "a//b", "__MACOSX/a")


def zip_of(*names: str, kind: int = 0, size: int = 0, how: int = zipfile.ZIP_DEFLATED) -> bytes:
    "A zip file with these members, of a kind that the system knows; so many zeros in each."
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", how, compresslevel=1) as packed, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name that is there twice
        for name in names:
            info = zipfile.ZipInfo(name)
            info.external_attr, info.compress_type = kind << 16, how
            with packed.open(info, "w", force_zip64=size > 2**30) as member:
                member.write(GOOD)
                for _ in range(size >> 20):
                    member.write(bytes(2**20))
    return buffer.getvalue()


def tar_of(
    *names: str, kind: bytes = tarfile.REGTYPE, mode: str = "w", form: int = tarfile.PAX_FORMAT
) -> bytes:
    "A tar file with these members, the last one of another kind that leads out."
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode, format=form) as packed:
        for name in names:
            info = tarfile.TarInfo(name)
            if name == names[-1] and kind != tarfile.REGTYPE:
                info.type, info.linkname = kind, "../../given.zip"
            info.size = len(GOOD) if info.type == tarfile.REGTYPE else 0
            packed.addfile(info, io.BytesIO(GOOD) if info.size else None)
    return buffer.getvalue()


def whole_archives() -> list[bytes]:
    "Archives in order, of every form."
    forms = (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT)
    made = [tar_of(*MEMBERS, "y" * 90 + "/z", form=form) for form in forms]
    made += [tar_of(*MEMBERS, mode=f"w:{how}") for how in ("gz", "bz2", "xz")]
    hows = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    return [*made, *(zip_of(*MEMBERS, how=how) for how in hows)]


def archive_bombs() -> list[tuple[bytes, str]]:
    "Archives that lead out, hold gigabytes, or are odd."
    made = [form(*MEMBERS, name) for name in (*OUTSIDE, *ODD) for form in (zip_of, tar_of)]
    kinds = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE)
    made += [tar_of(*MEMBERS, "link", kind=kind) for kind in kinds]
    made += [zip_of(*MEMBERS, kind=kind) for kind in (0o120777, 0o020666, 0o040755)]
    made += [zip_of("a", "a"), tar_of("a", "a"), zip_of(), zip_of("a", size=1100 << 20)]
    made += [zlib.compress(bytes(2**30)), b"", b"PK\x05\x06" + bytes(18), bytes(10_240)]
    return [(data, ARCHIVES[i % len(ARCHIVES)]) for i, data in enumerate(made)]


@reader(
    lambda: st.tuples(files(*whole_archives()), st.sampled_from(ARCHIVES)),
    lambda: [*((data, ".zip") for data in whole_archives()), *archive_bombs()],
    room_mb=150,
)
def archive(given: tuple[bytes, str], folder: Path) -> None:
    "An archive of a data set: unpacked below the folder for that, or refused; nothing elsewhere."
    inside = folder / "inside"
    inside.mkdir()
    path, local = inside / f"given{given[1]}", inside / "data"
    path.write_bytes(given[0])
    place = Place("here", local, inside / "runs", "", local=local)
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            found = find_dataset(str(path), place)
            assert found and found.is_dir() and found.resolve().is_relative_to(local.resolve())
            assert find_dataset(str(path), place) == found  # the second time it is there
        except UserError:
            assert all(p.name[0] == "." for p in local.glob("unpacked/*"))
            assert {p.name for p in local.glob("*")} <= {"unpacked"}
            raise
        finally:
            assert path.read_bytes() == given[0]
            assert {p.name for p in folder.iterdir()} == {"inside"}
            assert {p.name for p in inside.iterdir()} <= {path.name, "data"}
            assert not any(p.is_symlink() for p in inside.rglob("*"))
            assert not Path("/out-of-fuzz.txt").exists()


# Folders of runs

RECORDS = ("log.jsonl", "status.json", "config.json", "scores.json")


def whole_records() -> list[bytes]:
    "What a run writes."
    entries = [{"epoch": i, "loss": 1 / (i + 1), "scores": {"iou": 0.5}} for i in range(3)]
    log = "".join(json.dumps(entry) + "\n" for entry in entries)
    status = {"state": "stopped", "epochs_done": 3, "reason": "", "time": "2026-11-21T00:00:00Z"}
    return [log.encode(), *(json.dumps(v).encode() for v in (status, Config().model_dump()))]


@reader(
    lambda: st.tuples(
        st.sampled_from(RECORDS),
        st.one_of(
            files(*whole_records()),
            st.lists(
                st.one_of(VALUES, st.fixed_dictionaries({"epoch": VALUES, "loss": VALUES}))
            ).map(lambda some: "\n".join(map(json.dumps, some)).encode()),
        ),
    ),
    lambda: [
        (name, data)
        for name in RECORDS
        for data in (*whole_records(), b"\xff", b"[" * 10**5, b'{"epoch": "a"}\n{"epoch": 1}\n')
    ],
)
def run_folder(given: tuple[str, bytes], folder: Path) -> None:
    "A file in the folder of a run: the log, or one of its records."
    run = Folder(folder)
    run.file(given[0]).write_bytes(given[1])
    for entry in run.history():
        assert isinstance(entry, dict)
    run.read_json(given[0]) if given[0] != "log.jsonl" else None
    settings_of(str(folder))
    if given[0] == "log.jsonl":
        write_log(run, {"epoch": 7, "loss": 0.5})
        kept = [entry["epoch"] for entry in run.history()]
        assert 7 in kept, "a line after one that was cut off is lost with it"


# Scores


def whole_scores() -> list[tuple[str, bytes]]:
    "Files of a scoring, each with its name."
    scores = {"iou": 0.5, "niou": 0.5, "f1": None, "pd": 1.0, "fa": 0.1, "targets": 1}
    protocol = {"data": "a", "split_hash": "0123456789ab", "size": 32, "rule": "exact", "seed": 3}
    protocol |= {"chosen": "epoch 1, the last", "threshold": 0.5, "precision": None}
    image = {"name": "a", "inter": 1, "pred": 2, "mask": 3, "targets": 1, "matched": 1}
    target = {"name": "a", "area": 3, "scr": 2.5, "matched": True, "iou": 0.5, "covered": 1}
    target |= {"extra": 1, "parts": 1, "merged": False}
    step = {"threshold": [0, 0.5]}
    curves = {
        "pixels": {**step, "precision": [0.1, 0.5], "recall": [1, 0.5]},
        "objects": {**step, "pd": [None, 0.5], "fa": [1.5, 0]},
        "calibration": {"pixels": [9] * 10, "target": [1] * 10, "mean": [None, *[0.5] * 9]},
    }
    details = {"images": [image], "targets": [target], "curves": curves, "settings": {"a": 1}}
    return [
        ("scores.json", json.dumps({"scores": scores, "protocol": protocol}).encode()),
        ("details.json", json.dumps(details).encode()),
        ("config.json", json.dumps(Config().model_dump()).encode()),
    ]


def strange_scores() -> st.SearchStrategy[tuple[str, bytes]]:
    "One of the files, damaged, or with a value changed."

    def changed(file: tuple[str, bytes], path: list[int], value: Any) -> tuple[str, bytes]:
        content = part = json.loads(file[1])
        for turn, step in enumerate(path, 1):
            keys = list(part) if isinstance(part, dict) else range(len(part))
            key = keys[step % len(keys)]
            if turn == len(path) or not isinstance(part[key], dict | list) or not part[key]:
                part[key] = value
                break
            part = part[key]
        return file[0], json.dumps(content).encode()

    file = st.sampled_from(whole_scores())
    bytes_ = file.flatmap(lambda f: files(f[1]).map(lambda data: (f[0], data)))
    return bytes_ | st.builds(changed, file, st.lists(st.integers(0, 9), min_size=1), VALUES)


@reader(strange_scores, whole_scores, room_mb=400)
def files_of_scores(given: tuple[str, bytes], folder: Path) -> None:
    "What `mshnet compare` makes of them."
    for name, data in [*whole_scores(), given]:
        (folder / name).write_bytes(data)
    found = compare([folder])
    assert json.loads(as_json(found))["runs"]
    assert str(found) and as_markdown(found)
    draw(found)


# Running


def run(name: str, examples: int = EXAMPLES, seed: int | None = None) -> dict[str, Any]:
    "Try one reader in a process of its own; a crash or a hang of that one is a failure."
    words = [sys.executable, __file__, "--one", name, str(examples), str(seed or "")]
    done = subprocess.run(words, capture_output=True, text=True)
    last = done.stdout.strip().splitlines()[-1:] or [""]
    if last[0].startswith("{"):
        return json.loads(last[0])
    said = " ".join(done.stderr.split())[-1500:]
    told = Told(name, seed=seed, failures=[f"the process ended with {done.returncode}: {said}"])
    return vars(told)


def one(name: str, examples: int, seed: int | None) -> None:
    "What the process of one reader does."
    limit_memory(ROOM)
    print(json.dumps(vars(READERS[name](examples, seed))))


def main(
    examples: int | None = None,  # per reader; None: as MSHNET_FUZZ asks
    seed: int | None = None,  # None: the inputs of every day, or any with MSHNET_FUZZ
    names: list[str] | None = None,  # of readers; None: all
) -> dict[str, Any]:
    "Try every reader, a line for each; the summary, for a JSON file."
    often, any_seed = asked()
    examples, seed = examples or often, seed or any_seed
    found = []
    for name in names or READERS:
        found.append(told := run(name, examples, seed))
        print(
            f"{name:22}{told['inputs']:6} inputs  {told['results']:6} results  "
            f"{told['clear_errors']:6} clear errors  {len(told['failures']):3} failures  "
            f"seed {seed}  at most {told['growth_mb']} MB more, {told['slowest_s']:.1f} s",
            flush=True,
        )
        for line in told["failures"]:
            print(f"  {line}", flush=True)
    sums = Counter()
    for told in found:
        sums.update({k: told[k] for k in ("inputs", "results", "clear_errors")})
        sums["failures"] += len(told["failures"])
    return {"seed": seed, "examples": examples, **sums, "readers": found}


if __name__ == "__main__":
    words = sys.argv[1:]
    if words[:1] == ["--one"]:
        one(words[1], int(words[2]), int(words[3]) if words[3] else None)
    else:
        wanted = [int(word) for word in words if word.isdigit()]
        main(*wanted, names=[word for word in words if not word.isdigit()] or None)
