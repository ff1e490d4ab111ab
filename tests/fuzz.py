"""Any bytes: what the readers make of files that nobody wrote on purpose.

Each reader takes an invented input and gives a result or a clear error: one line, of the kind that
the reader promises. `READERS` lists them. `run` tries one of them in a process of its own with
limited memory, so a crash, a hang or gigabytes of memory are a failure there and not here.
From the command line: `python tests/fuzz.py [EXAMPLES] [SEED] [READER ..]`.
"""

import contextlib
import faulthandler
import io
import json
import pickle
import re
import struct
import subprocess
import sys
import tempfile
import traceback
import warnings
import zlib
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import numpy as np
import torch
from conftest import Evil
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image

from mshnet import run as run_module
from mshnet.cli import main as mshnet
from mshnet.core import ALIASES, UserError, configure, settings_of
from mshnet.data import load_data, report
from mshnet.recipe import PRESETS, Config
from mshnet.run import Folder, State, find_checkpoint, restore, snapshot, write_checkpoint
from mshnet.weights import load_weights

HANG = 120  # seconds for one input
ROOM = 2**31  # bytes that a process may take beyond those at its start: two of the largest images
EXAMPLES = 60  # inputs of a reader in the tests; MSHNET_FUZZ tries as many as it says

# Inventing


@st.composite
def damaged(draw, whole: list[bytes]) -> bytes:
    "A real file with a few faults, most of them near its beginning or its end."
    data = draw(st.sampled_from(whole))
    for _ in range(draw(st.integers(1, 4))):
        last = len(data) - 1
        if last < 0:
            break
        near = st.integers(0, min(last, 100)) | st.integers(max(last - 100, 0), last)
        place, skip = draw(near | st.integers(0, last)), 0
        fault = draw(st.sampled_from(["cut", "bit", "number", "insert"]))
        if fault == "cut":
            put, skip = b"", draw(st.sampled_from([1, 4, 64, len(data)]))
        elif fault == "bit":
            put, skip = bytes([data[place] ^ 1 << draw(st.integers(0, 7))]), 1
        elif fault == "number":
            number = draw(st.sampled_from([0, 1, 255, 60_000, 2**31 - 1, 2**31, 2**32 - 1]))
            form = draw(st.sampled_from(["<I", ">I", "<H", ">H"]))
            skip = struct.calcsize(form)
            put = struct.pack(form, number % 256**skip)
        else:
            own = data[place : place + 64] * draw(st.integers(0, 3))
            put = draw(st.binary(max_size=16)) + own
        data = data[:place] + put + data[place + skip :]
    return data


def files(*whole: bytes) -> st.SearchStrategy[bytes]:
    "Any bytes, or real files with faults."
    return damaged(list(whole)) | st.binary(max_size=300)


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40)
LEAVES |= st.sampled_from(["", "auto", "cpu", "~", "~nobody-here/x", "a\nb", "\x00", "..", "/"])
LEAVES |= st.sampled_from([10**400, -1, 0, 2**63, 1e308, "9" * 5000, "x" * 3000, "\ud800"])
VALUES = st.recursive(
    LEAVES,
    lambda some: (
        st.lists(some, max_size=4) | st.dictionaries(st.text(max_size=8), some, max_size=4)
    ),
    max_leaves=8,
)


@st.composite
def changed(draw, make: Callable[[], Any], values: st.SearchStrategy = VALUES) -> Any:
    "Dictionaries and lists in which some things are of another kind, or gone."
    tree = make()
    for _ in range(draw(st.integers(1, 3))):
        at, inner = None, tree
        while isinstance(inner, dict | list) and inner and (at is None or draw(st.booleans())):
            at = inner
            keys = sorted(at, key=str) if isinstance(at, dict) else range(len(at))
            key = draw(st.sampled_from(keys))
            inner = at[key]
        if isinstance(at, dict) and draw(st.integers(0, 4)) == 0:
            del at[key]
        elif at:
            at[key] = draw(values)
    return tree


def as_bytes(value: Any) -> bytes:
    "A JSON file."
    return json.dumps(value).encode()


NAMES = st.sampled_from([*Config.model_fields, *ALIASES]) | st.text(max_size=40)
NAMES |= st.sampled_from(["", "\ud800", "a\nb", "x" * 5000, "warm", "epochz", "use_tpu"])
USUAL = st.sampled_from([*PRESETS, 1, 16, 64, "val", "true", True, 0.5])
SETTINGS = st.dictionaries(NAMES, VALUES | USUAL, max_size=3) | st.dictionaries(
    st.sampled_from(sorted(Config.model_fields)), USUAL, max_size=1
)

# Judging


class Reader(NamedTuple):
    "What reads, and what it is given."

    read: Callable[[Any, Path], object]  # an input, and an empty folder, which is the current one
    inputs: Callable[[], st.SearchStrategy]
    always: Callable[[], list]  # inputs that are always tried
    clear: type = UserError  # its errors
    room_mb: int = 150  # memory that all inputs together may take


def judge(reader: Reader, value: Any, outcome: Counter) -> None:
    "Try one input: a result, a clear error, or an exception that is a failure."
    outcome["inputs"] += 1
    faulthandler.dump_traceback_later(HANG, exit=True)
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.chdir(folder),
            warnings.catch_warnings(action="ignore"),
        ):
            reader.read(value, Path(folder))
        outcome["results"] += 1
    except reader.clear as error:
        text = str(error)
        assert type(error) is reader.clear, f"{type(error).__name__} is no error for users: {text}"
        assert 0 < len(text) < 20_000 and text.isprintable(), f"not one short line: {text!r}"
        outcome["clear errors"] += 1
    finally:
        faulthandler.cancel_dump_traceback_later()


def try_reader(reader: Reader, examples: int, seed: int | None = None) -> dict[str, Any]:
    "Try many inputs in this process; without a seed the same ones every time."
    outcome, failures, always = Counter(), [], reader.always()
    with contextlib.suppress(Exception):  # what is loaded with the first use is no growth
        judge(reader, always[0], Counter())
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # forget the most memory so far
    before = most_memory()
    test = given(reader.inputs())(lambda value: judge(reader, value, outcome))
    test = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=seed is None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )(test)
    steps = [partial(judge, reader, value, outcome) for value in always]
    for step in [*steps, test if seed is None else hypothesis.seed(seed)(test)]:
        try:
            step()
        except Exception as error:  # of the reader, or of what was found in its result
            failures.append("".join(traceback.format_exception(error))[-2000:])
    growth = round((most_memory() - before) / 2**20)
    if growth > reader.room_mb:
        failures.append(f"{growth} MB more memory, not {reader.room_mb}")
    return {**outcome, "seed": seed, "growth in MB": growth, "failures": failures}


def most_memory() -> float:
    "The most bytes that this process held since it was asked to forget; 0 where that is unknown."
    status = Path("/proc/self/status")
    found = re.search(r"VmHWM:\s+(\d+)", status.read_text() if status.exists() else "")
    return float(found[1]) * 1024 if found else 0


# Settings


def whole_settings() -> list[bytes]:
    "Files of settings, and files that only begin like one."
    return [
        as_bytes(Config().model_dump()),
        as_bytes({"epochs": 3, "preset": "paper"}).decode().encode("utf-16"),
        b"\xef\xbb\xbf" + as_bytes({"epochs": 3, "use_tpu": True, "data_path": "x"}),
        b'{"a":' * 100_000,
        b'{"preset": ' + b"[" * 900 + b"1" + b"]" * 900 + b"}",
        b'{"epochs": NaN, "lr": Infinity, "seed": 1e400, "batch_size": ' + b"9" * 100_000 + b"}",
        as_bytes({f"name {i}": i for i in range(50_000)}),
        as_bytes({"dataset_dir": "x" * 10**6, "y" * 10**6: 1}),
        b"[" * (20 * 2**20),
    ]


def settings_file(data: bytes, folder: Path) -> None:
    "A file of settings, named with --config or lying in the folder of a run."
    (folder / "config.json").write_bytes(data)
    settings_of(str(folder))
    config = configure({}, str(folder / "config.json"))
    assert Config(**json.loads(config.model_dump_json())) == config and str(config)


# Data sets


def image_bytes(pixels: np.ndarray, form: str = "PNG", **how: Any) -> bytes:
    "An image file."
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form, **how)
    return buffer.getvalue()


GOOD = image_bytes(np.eye(16, dtype=np.uint8) * 255)


def png(width: int, height: int, depth: int, colour: int, body: bytes) -> bytes:
    "A PNG with any header and check sums in order."
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    palette = [(b"PLTE", bytes(6))] if colour == 3 else []
    chunks = [(b"IHDR", head), *palette, (b"IDAT", body), (b"IEND", b"")]
    parts = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


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
    deep, real = grey.astype(np.uint16) * 100, np.array([[np.nan, 1], [np.inf, 0]], np.float32)
    made = [image_bytes(p, f) for p in (grey, colour) for f in ("PNG", "BMP", "TIFF", "JPEG")]
    made += [image_bytes(deep), image_bytes(deep, "TIFF"), image_bytes(real, "TIFF")]
    made += [image_bytes(colour, "JPEG", progressive=True), image_bytes(grey, "GIF")]
    return [*made, image_bytes(grey > 9, "TIFF", compression="group4")]


def image_bombs() -> list[bytes]:
    "Files of some kilobytes that claim, or hold, pictures of gigabytes."
    packed = zlib.compress(bytes(150 * 10**6))
    bitmap = bytearray(image_bytes(np.zeros((2, 2), np.uint8), "BMP"))
    bitmap[18:26] = struct.pack("<ii", 60_000, -60_000)
    full = [png(*side, 0, packed) for side in ((12_000, 12_000, 8), (8192, 8192, 16))]
    empty = [png(*side, 8, 2, packed[:9]) for side in ((60_000, 60_000), (1, 2**26), (0, 5))]
    return [*full, *empty, bytes(bitmap)]


LINES = ["a\n", "b\n", "b.png\n", "c", "../", "..\\", "/", "C:", "\0", ".png", "\u2028", "é"]


def data_files() -> st.SearchStrategy[tuple[str, bytes]]:
    "A list of names, an image or a mask, and where it lies."
    lists = st.builds(
        lambda parts, form: "".join(parts).encode(form, "replace"),
        st.lists(st.sampled_from(LINES) | st.text(max_size=9)),
        st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "latin-1"]),
    )
    kinds = ("png", "bmp", "tif", "jpg")
    places = [f"{folder}/c.{kind}" for folder in ("images", "masks") for kind in kinds]
    pictures = st.tuples(st.sampled_from(places), files(*whole_images()) | any_png())
    return st.tuples(st.just("train.txt"), lists | st.binary(max_size=300)) | pictures


def data_bombs() -> list[tuple[str, bytes]]:
    "Pictures that claim much, and lists that are long or lead out."
    lists = [b"a\nb.png\n", b"a" * (17 * 2**20), b"../a-secret\n/etc/passwd\n..\\a-secret\n"]
    pictures = [*whole_images(), *image_bombs()]
    placed = [(f"{kind}/c.png", data) for kind in ("images", "masks") for data in pictures]
    return [("train.txt", data) for data in lists] + placed


def data_set(given: tuple[str, bytes], folder: Path) -> None:
    "A data set of small images, in which one file holds these bytes."
    place, data = given
    for kind in ("images", "masks"):
        (folder / kind).mkdir()
        for name in "abc":
            (folder / kind / f"{name}.png").write_bytes(GOOD)
            (folder / f"{name}-secret.png").write_bytes(GOOD)  # beside those that may be read
    for name in ("train.txt", "test.txt"):
        (folder / name).write_text("a\nc\n" if name == "train.txt" else "b\n")
    (folder / place).with_suffix(".png").unlink(missing_ok=True)
    (folder / place).write_bytes(data)
    config = Config(dataset_dir=str(folder), train_list="train.txt", test_list="test.txt")
    text, usable = report(config)
    lines = text.splitlines()
    assert all(line.isprintable() and len(line) < 20_000 for line in lines)
    if not usable:
        raise UserError(next(line for line in lines if line.startswith("error: ")))
    for split in load_data(config)[0].values():
        assert set(split.names) <= set("abc")
        for image, mask in split.pairs:
            assert image.dtype == mask.dtype == np.uint8 and image.shape[:2] == mask.shape
            assert 0 < mask.size <= 2**26 and set(np.unique(mask)) <= {0, 1}


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


def whole_checkpoints() -> list[bytes]:
    "Files of every form in which weights are stored, and some that only look like it."
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(content(), Path(folder) / "last.pt")
        own = (Path(folder) / "last.pt").read_bytes()
    published = {"net": small().state_dict(), "iou": np.float64(0.67), "epoch": 7}
    evil = [saved({"net": Evil("code ran")}, zipped) for zipped in (True, False)]
    plain = [pickle.dumps(value) for value in (Evil("code ran"), {"a": 1}, np.float64(1))]
    return [own, saved(published), saved(content(), False), saved(published, False), *evil, *plain]


def checkpoint_bombs() -> list[bytes]:
    "Files that claim more than they hold, or hold far more than they show."
    own, *others = whole_checkpoints()
    weights = saved({"w": torch.zeros(1000)})
    more = weights.replace(b"M\xe8\x03", b"J" + struct.pack("<i", 10**9)[:2])
    nested: Any = []
    for _ in range(40):
        nested = [nested, nested]
    odd = [{"config": nested, "data": nested}, {"format": torch.ones(2)}]
    made = [saved({**content(), **change}) for change in odd]
    made += [saved({"model\nline": torch.ones(2), "0.weight": torch.ones(2, 3)}), b""]
    return [own, *others, more, own.replace(b"data.pkl", b"code.pkl"), *made]


def checkpoint_files() -> st.SearchStrategy[bytes]:
    "Bytes of a checkpoint."
    tensors = [torch.ones(7), torch.full((2, 3), torch.nan), torch.ones(2, 3).half()]
    tensors += [torch.ones(2, 3).to("meta"), torch.ones(1, 1).expand(2, 3)]
    strange = changed(content, VALUES | st.sampled_from(tensors))
    return files(*whole_checkpoints()) | st.builds(saved, strange, st.booleans())


def weights(data: bytes, folder: Path) -> None:
    "A file of weights: loaded, or refused with the model as it was and no code run."
    model = small()
    (folder / "given.pt").write_bytes(data)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    try:
        load_weights(model, folder / "given.pt")
    except ValueError:
        assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
        raise
    finally:
        assert not (folder / "code ran").exists()


def checkpoint(data: bytes, folder: Path) -> None:
    "A checkpoint to resume from."
    (folder / "last.pt").write_bytes(data)
    state = trained()
    try:
        config = Config(epochs=9, schedule="constant")
        old = find_checkpoint(Folder(folder), config, {"train": "0123"})
        assert old
        restore(state, old)
        state.model(torch.eye(3)).sum().backward()
        state.optimizer.step()
    finally:
        assert not (folder / "code ran").exists()


# Folders of runs


def whole_records() -> dict[str, bytes]:
    "What a run writes, by name."
    entries = [{"epoch": i, "loss": 1 / (i + 1), "scores": {"iou": 0.5}} for i in range(3)]
    status = {"state": "stopped", "epochs_done": 3, "reason": "", "time": "2026-11-21T00:00:00Z"}
    scores = {"iou": 0.5, "niou": 0.5, "f1": None, "pd": 1.0, "fa": 0.1, "targets": 1}
    protocol = {"data": "a", "split_hash": "0123456789ab", "size": 32, "rule": "exact", "seed": 3}
    target = {"name": "a", "area": 3, "scr": 2.5, "matched": True, "iou": 0.5, "covered": 1}
    image = {"name": "a", "inter": 1, "pred": 2, "mask": 3, "targets": 1, "matched": 1}
    curve = {"threshold": [0, 0.5], "pd": [None, 0.5], "fa": [1.5, 0]}
    curve |= {"precision": [0.1, 0.5], "recall": [1, 0.5]}
    curves = {"pixels": curve, "objects": curve}
    return {
        "log.jsonl": b"\n".join(map(as_bytes, entries)),
        "status.json": as_bytes(status),
        "config.json": as_bytes(Config().model_dump()),
        "scores.json": as_bytes({"scores": scores, "protocol": protocol}),
        "details.json": as_bytes({"images": [image], "targets": [target], "curves": curves}),
    }


def record_files() -> st.SearchStrategy[tuple[str, bytes]]:
    "A file of a run, damaged, or with values of another kind."
    whole = whole_records()
    trees = {name: json.loads(whole[name]) for name in whole if name != "log.jsonl"}
    lines = st.lists(VALUES | st.fixed_dictionaries({"epoch": VALUES, "loss": VALUES}))
    strange = {name: changed(partial(deepcopy, tree)).map(as_bytes) for name, tree in trees.items()}
    strange["log.jsonl"] = lines.map(lambda some: b"\n".join(map(as_bytes, some)))
    return st.one_of(st.tuples(st.just(name), files(whole[name]) | strange[name]) for name in whole)


def run_folder(given: tuple[str, bytes], folder: Path) -> None:
    "A file in the folder of a run: the log, a record, or scores that `mshnet compare` reads."
    run = Folder(folder / "run")
    run.path.mkdir()
    for name, data in (whole_records() | dict([given])).items():
        run.file(name).write_bytes(data)
    assert all(isinstance(entry, dict) for entry in run.history())
    assert all(isinstance(run.read_json(name), dict) for name in whole_records())
    settings_of(str(run.path))
    run_module.write_log(run, {"epoch": 7, "loss": 0.5})  # also after a line that was cut off
    assert 7 in [entry["epoch"] for entry in run.history()]
    error = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(error):
        status = mshnet(["compare", "run"])
    if status:
        raise UserError(error.getvalue().removesuffix("\n"))


# Running

READERS = {
    "settings file": Reader(
        settings_file,
        lambda: files(*whole_settings()[:3]) | SETTINGS.map(as_bytes),
        whole_settings,
        room_mb=400,
    ),
    "data set": Reader(data_set, data_files, data_bombs, room_mb=1500),
    "weights": Reader(weights, checkpoint_files, checkpoint_bombs),
    "checkpoint": Reader(checkpoint, checkpoint_files, checkpoint_bombs),
    "run folder": Reader(
        run_folder,
        record_files,
        lambda: [*whole_records().items(), ("log.jsonl", b"[" * 10**5), ("scores.json", b"\xff")],
        room_mb=400,
    ),
}


def run(name: str, examples: int = EXAMPLES, seed: int | None = None) -> dict[str, Any]:
    "Try one reader in a process of its own; a crash or a hang of that one is a failure."
    words = [sys.executable, __file__, "--one", name, str(examples), str(seed or "")]
    done = subprocess.run(words, capture_output=True, text=True)
    last = done.stdout.strip().splitlines()[-1:] or [""]
    if last[0].startswith("{"):
        return json.loads(last[0])
    return {"seed": seed, "failures": [f"it ended with {done.returncode}: {done.stderr[-1500:]}"]}


def main(words: list[str]) -> int:
    "Try the readers named, or all, a line for each."
    if words[:1] == ["--one"]:
        with contextlib.suppress(ImportError, OSError, ValueError):  # a system that cannot limit it
            import resource

            size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, size + ROOM))
        found = try_reader(READERS[words[1]], int(words[2]), int(words[3] or 0) or None)
        print(json.dumps(found))
        return 0
    often, seed = (*map(int, filter(str.isdigit, words)), None, None)[:2]
    failures = 0
    for name in [word for word in words if not word.isdigit()] or READERS:
        found = run(name, often or EXAMPLES, seed)
        failures += len(found["failures"])
        print(name, *(f"{key} {value}" for key, value in found.items()), sep="  ", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
