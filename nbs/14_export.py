# %% [markdown]
# # export
#
# > A trained detector as a file for other programs (ONNX, torch.export, safetensors), with all that is needed to read it right inside, and checked before it is kept.

# %%
#| default_exp export

# %%
#| hide
import importlib.util
import tempfile

from fastcore.test import expect_fail, test_close, test_eq

# %%
#| export
import contextlib
import copy
import hashlib
import importlib
import io
import json
import logging
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from mshnet.core import UserError, did_you_mean, first_line, settings_class, shown
from mshnet.data import scene
from mshnet.evaluate import Detector, Origin, Trained, expect_bytes, logits_of, trained_model
from mshnet.model import (
    Block,
    MSHNet,
    UNet,
    checksum,
    expect_size,
    fold,
    reinstall,
    weights_file,
)
from mshnet.places import installed
from mshnet.run import Folder, cannot_be_written, write_atomic
from mshnet.task import DEVIATION, MEAN, normalise


# %% [markdown]
# A network that is right in Python is often wrong in the program that uses it: pixels are scaled to 0..1 once too often, the colours are swapped, the mean is not subtracted, logits are compared with 0.5. Nothing fails then; the detector is just worse than it was. So the files written here take **the pixels as they are**, bytes of 0 to 255 in RGB, and do the rest themselves. A byte cannot be scaled wrongly. Out come the probability and, for whoever wants the far ends of it, the logits.
#
# The convolutions do their batch norm's work, and the backward passes by hand, which no other program would know, give way to the plain lines. That this changes nothing is not believed but checked, at the end of every export.

# %%
#| export
class Program(nn.Module):
    "What a file holds: bytes in, probability and logits out."

    def __init__(
        self,
        model: nn.Module,  # MSHNet, or another network; stays as it is
        deep: bool,  # the fused prediction, or the single head of the warm-up
    ) -> None:
        super().__init__()
        self.model, self.deep = fold(model.eval()), deep
        for part in self.model.modules():
            if isinstance(part, UNet | Block):
                part.by_hand = False
        self.requires_grad_(False)

    def forward(self, image: Tensor) -> dict[str, Tensor]:  # [B,3,H,W] uint8 -> [B,1,H,W] float32
        "Probability and logits."
        logits = self.model(normalise(image), deep=self.deep)[1]
        return {"probability": torch.sigmoid(logits), "logits": logits}


# %%
torch.manual_seed(0)
model = MSHNet()
with torch.no_grad():
    model.train()(torch.randn(2, 3, 32, 32))  # batch norm has seen something
model.eval()
images = torch.randint(0, 256, (2, 3, 48, 32), dtype=torch.uint8)
program = Program(model, deep=True)
with torch.no_grad():
    out = program(images)
    test_close(out["logits"], logits_of(model, images, True), eps=1e-4)
[(name, tuple(value.shape)) for name, value in out.items()]


# %% [markdown]
# torch.export follows the program once and writes down its operations, with the number of images, of rows and of columns left open. It proves that nothing depends on the sizes that it was shown. torch's older way to ONNX, tracing, was faster and gave the same numbers here, but torch keeps it no longer, and it proves nothing.
#
# Where a line stands in somebody's folder is written down too. That is nobody's business who gets the file.

# %%
#| export
def capture(
    program: nn.Module,
) -> ExportedProgram:  # image [B,3,16*rows,16*columns]
    "The operations of a program, for any number of images and any size of at least 32 pixels."
    sizes = {0: Dim("batch"), 2: 16 * Dim("rows", min=2), 3: 16 * Dim("columns", min=2)}
    image = torch.zeros(2, 3, 64, 48, dtype=torch.uint8)
    with quiet():
        captured = torch.export.export(program, (image,), dynamic_shapes={"image": sizes})
    for node in captured.graph.nodes:
        node.meta.pop("stack_trace", None)
    return captured


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    "Keep what torch's exporters say of themselves from the user."
    before = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)


# %%
with quiet():
    warnings.warn("nobody hears this", stacklevel=1)
captured = capture(program)
test_close(captured.module()(images)["logits"], out["logits"], eps=1e-4)  # by other sums
len(captured.graph.nodes)

# %% [markdown]
# ## What a file says of itself
#
# All three kinds have a place for texts. Ours is one JSON text under the name `mshnet`: what goes in and comes out, the threshold, how the network was trained and which epoch was kept, and the scores of the run with their protocol where they are known. Folders and machines are left out.
#
# It also holds an example: a small picture that any program can make from a formula, and some logits for it. Whoever writes a reader of his own can see at once whether it is right. The one below does so whenever it opens a file.

# %%
#| export
KIND, VERSION = "mshnet-export", 1  # raised when an older release could not read the file
FORMATS = {"onnx": ".onnx", "pt2": ".pt2", "safetensors": ".safetensors"}
EXAMPLE = "uint8 [1,3,32,32]: (7 row + 13 column + 31 channel + row column) mod 256, all from 0"


def example() -> Tensor:  # [1,3,32,32] uint8
    "The picture of `EXAMPLE`."
    channel, row, column = torch.meshgrid(*map(torch.arange, (3, 32, 32)), indexing="ij")
    return ((7 * row + 13 * column + 31 * channel + row * column) % 256).byte()[None]


def sample(logits: Tensor) -> list[float]:  # of [1,1,32,32]
    "Some of the example's logits: those at rows and columns 0, 8, 16 and 24."
    return [round(value, 5) for value in logits[0, 0, ::8, ::8].flatten().tolist()]


Answers = Callable[[Tensor], Mapping[str, Tensor]]  # of bytes [B,3,H,W]: the outputs


def network(trained: Trained) -> Answers:
    "The answers of a network itself, in float32 on the CPU."
    model = copy.deepcopy(trained.model).eval()

    def answers(images: Tensor) -> dict[str, Tensor]:
        with torch.no_grad():
            logits = logits_of(model, images, trained.phase == "full")
        return {"probability": torch.sigmoid(logits), "logits": logits}

    return answers


# %%
test_eq(tuple(example().shape), (1, 3, 32, 32))
trained = Trained(model, "full", Origin("published weights"))
sample(network(trained)(example())["logits"])[:4]


# %% [markdown]
# The text:

# %%
#| export
def about(
    path: Path,  # of the weights
    trained: Trained,
    inside: bool,  # whether the file normalises, or its reader has to
) -> dict[str, Any]:
    "What a file says of itself."
    note = {
        **own_words(trained),
        "kind": KIND,
        "version": VERSION,
        "mshnet": installed("mshnet"),
        "torch": torch.__version__,
        "weights": path.name,
        "phase": trained.phase,
        "chosen": trained.origin.chosen,
        "result": result_of(path, trained),
    }
    if trained.task != "detect":
        return note
    values = sample(network(trained)(example())["logits"])
    formula = {"formula": "(image / 255 - mean) / deviation", "mean": MEAN, "deviation": DEVIATION}
    return note | {
        "image": "uint8 [batch,3,height,width], RGB 0..255; height and width multiples of 16",
        "normalisation": {"inside": inside, **formula},
        "outputs": ["probability", "logits"] if inside else ["logits"],
        "threshold": trained.threshold,  # of the probability
        "example": {"image": EXAMPLE, "logits every 8 pixels": values},
    }


def own_words(trained: Trained) -> dict[str, Any]:
    "What the checkpoint says of itself, its settings without those of a machine."
    names = settings_class(trained.task).recipe_names()
    here = [name for name in names if not name.endswith("_list")]
    config = trained.said.get("config", {})
    return trained.said and trained.said | {"config": {k: config[k] for k in here if k in config}}


def result_of(path: Path, trained: Trained) -> dict[str, Any] | None:
    "Scores and protocol of the run, if they are those of these weights."
    result = Folder(path.parent).read_json("scores.json")
    protocol = result.get("protocol")
    ours = isinstance(protocol, dict) and protocol.get("chosen") == trained.origin.chosen
    return result if ours and trained.said else None


# %%
note = about(Path("weights.pt"), trained, inside=True)
test_eq((own_words(trained), result_of(Path("weights.pt"), trained)), ({}, None))
print(json.dumps({k: v for k, v in note.items() if k != "example"}, indent=1))

# %% [markdown]
# ## Three kinds of files
#
# **ONNX** is for other runtimes: onnxruntime, OpenVINO, TensorRT, a browser, C++ and C#. **pt2** is torch's own, for torch without this library. **safetensors** holds the weights alone, for this library and others that have the network; it is the only one whose reader must normalise, and says so. `mshnet test` and `--weight-path` take it too.
#
# What they need comes with the extra `export`; who lacks it is told what to write.

# %%
#| export
NEEDS = {"onnx": ["onnx", "onnxruntime", "onnxscript"], "pt2": [], "safetensors": ["safetensors"]}


def expect_packages(
    what: str,  # that needs them
    *names: str,
) -> None:
    "UserError with the line that installs what is missing."
    missing = [name for name in names if not importable(name)]
    if missing:
        raise UserError(f"{what}: needs {missing[0]}; run: pip install {' '.join(missing)}")


def importable(name: str) -> bool:
    "Whether a package is installed and loads."
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


# %%
expect_packages("torch", "torch")
with expect_fail(UserError, contains="pip install no_such_package"):
    expect_packages("format=onnx", "no_such_package")
assert importable("torch")


# %% [markdown]
# Each kind as bytes. Opset 18 is what the oldest torch that is supported writes, and any runtime of the last years reads.
#
# A bit that flipped on a disk changes a weight, and onnxruntime reads it without a word. So an ONNX file holds the SHA-256 of all its other bytes, and a safetensors file the checksum of its content, as our checkpoints do.

# %%
#| export
def onnx_bytes(
    captured: ExportedProgram,
    note: Mapping[str, Any],
) -> bytes:
    "An ONNX file."
    import onnx

    with quiet():
        made: Any = torch.onnx.export(
            captured,
            (),
            dynamo=True,
            input_names=["image"],
            output_names=["probability", "logits"],
            opset_version=18,
            verbose=False,
        )
        proto = made.model_proto
    for part in (*proto.graph.node, *proto.graph.value_info, *proto.graph.initializer):
        part.ClearField("metadata_props")  # lines of our code and where they stand
    onnx.helper.set_model_props(proto, {"mshnet": json.dumps(note), "sha256": BLANK})
    return sealed(proto.SerializeToString())


BLANK = "0" * 64  # stands for the digest while it is computed


def sealed(data: bytes) -> bytes:
    "A file with its digest in the place that was left blank for it."
    return data.replace(BLANK.encode(), hashlib.sha256(data).hexdigest().encode(), 1)


def is_intact(data: bytes, digest: str) -> bool:
    "Whether a file's bytes are those that were sealed."
    return sealed(data.replace(digest.encode(), BLANK.encode(), 1)) == data

# %% [markdown]
# The other two:

# %%
#| export


def pt2_bytes(captured: ExportedProgram, note: Mapping[str, Any]) -> bytes:
    "A torch.export file."
    buffer = io.BytesIO()
    with quiet():
        torch.export.save(captured, buffer, extra_files={"mshnet": json.dumps(note)})
    return buffer.getvalue()


def safetensors_bytes(model: nn.Module, note: Mapping[str, Any]) -> bytes:
    "A safetensors file."
    from safetensors.torch import save

    weights = {k: v.contiguous() for k, v in sorted(model.state_dict().items())}
    said = json.loads(json.dumps(note))
    said["checksum"] = checksum({**said, "model": weights})
    return save(weights, {"format": "pt", "mshnet": json.dumps(said)})


# %%
data = f"weights {BLANK}".encode()
digest = sealed(data)[8:].decode()
test_eq(
    [is_intact(sealed(data), digest), is_intact(b"other" + sealed(data), digest)], [True, False]
)
made = {"pt2": pt2_bytes(captured, note)}
if importable("safetensors"):
    made["safetensors"] = safetensors_bytes(model, note)
if all(map(importable, NEEDS["onnx"])):
    made["onnx"] = onnx_bytes(captured, note)
{format: f"{len(data) / 1e6:.1f} MB" for format, data in made.items()}


# %% [markdown]
# ## Reading ONNX
#
# `OnnxDetector` is called like a `Detector` and answers alike, so whatever predicts with the one predicts with the other. It needs onnxruntime and no network of ours. A file must say that it is ours, in a version that is known, and must compute its own example. One that is damaged, or of another program, is refused by its bytes, before onnxruntime takes them apart.

# %%
#| export
@contextlib.contextmanager
def as_failed(name: str) -> Iterator[None]:
    "Turn what onnxruntime raises, which is of no kind of Python's, into a kind that it is."
    try:
        yield
    except Exception as error:
        text = str(error)
        if "alloc" in text.lower() or "memory" in text.lower():
            raise MemoryError(text) from None
        raise UserError(f"{name}: onnxruntime fails ({first_line(text)})") from None


# %% [markdown]
# The detector itself:

# %%
#| export
class OnnxDetector:
    "An ONNX file of `mshnet export`: called with images it gives each pixel's probability."

    def __init__(
        self,
        path: str | Path,
        device: str = "auto",  # or cpu, cuda, cuda:1
        precision: str = "auto",  # or fp32, which it is
    ) -> None:
        if precision not in ("auto", "fp32"):
            raise UserError(f"precision={precision}: an ONNX file computes in fp32; leave it out")
        data = read_bytes(Path(path))
        expect_sealed(data, path)
        self.session = open_session(data, path, device)
        self.name, self.note = Path(path).name, read_note(self.session, path)
        self.threshold = float(self.note.get("threshold", 0.5))  # of the probability
        expect_example(self, path)

    @property
    def why(self) -> str:
        "The device and its precision, in words."
        kind = self.session.get_providers()[0].removesuffix("ExecutionProvider").lower()
        return f"{kind}, fp32: onnxruntime"

    def __call__(
        self,
        images: Tensor,  # [B,3,H,W] uint8, height and width multiples of 16
        batch_size: int = 4,  # images computed at once
    ) -> Tensor:  # [B,1,H,W] float32, 0..1, on the CPU
        "Probabilities of target."
        expect_bytes(images)
        expect_size(self.name, images)
        return torch.cat([self.run("probability", rows) for rows in images.split(batch_size)])

    def run(self, output: str, images: Tensor) -> Tensor:
        "One of the outputs for one batch."
        with as_failed(self.name):
            (found,) = self.session.run([output], {"image": images.cpu().numpy()})
        return torch.from_numpy(found)


# %% [markdown]
# Opening a file, and everything that can be wrong with it:

# %%
#| export
def read_bytes(path: Path) -> bytes:
    "A file's bytes; UserError if it cannot be read."
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


def expect_sealed(data: bytes, path: str | Path) -> None:
    "UserError unless an ONNX file is one of ours, as it was written."
    found = re.findall(rb"sha256\x12@([0-9a-f]{64})", data)  # as protobuf writes a pair of texts
    if KIND.encode() not in data or not found:
        raise UserError(f"{path}: no ONNX file of mshnet export; another program's, or cut off")
    if not is_intact(data, found[-1].decode()):
        raise UserError(f"{path}: damaged, or changed since it was written; export it again")


# %% [markdown]
# onnxruntime:

# %%
#| export
def open_session(
    data: bytes,  # of the file
    path: str | Path,  # its name
    device: str,
) -> Any:  # an onnxruntime.InferenceSession
    "Load an ONNX file on a device."
    expect_packages(str(path), "onnxruntime")
    import onnxruntime

    kind, _, number = device.partition(":")
    if kind not in ("auto", "cpu", "cuda") or not (number or "0").isdecimal():
        raise UserError(f"device={device}: an ONNX file runs on cpu or cuda; write one of them")
    cuda = "CUDAExecutionProvider"
    here = cuda in onnxruntime.get_available_providers()
    if kind == "cuda" and not here:
        raise UserError(
            f"device={device}: this onnxruntime is for the CPU; run: pip install onnxruntime-gpu"
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 4
    providers: list[Any] = ["CPUExecutionProvider"]
    if here and kind != "cpu":
        providers.insert(0, (cuda, {"device_id": int(number or 0), "use_tf32": 0}))
    with as_refused(path):
        session = onnxruntime.InferenceSession(data, options, providers)
    if kind == "cuda" and cuda not in session.get_providers():
        raise UserError(f"device={device}: onnxruntime cannot use it; write --device cpu")
    return session


# %% [markdown]
# What it raises, and what the file says:

# %%
#| export
@contextlib.contextmanager
def as_refused(path: str | Path) -> Iterator[None]:
    "Turn what onnxruntime raises for a file that makes no sense into one line."
    try:
        yield
    except Exception as error:  # it has an exception for every kind of mistake
        kind = type(error).__name__
        raise UserError(f"{path}: onnxruntime cannot read or run it ({kind})") from None


def read_note(
    session: Any,  # an onnxruntime.InferenceSession
    path: str | Path,
) -> dict[str, Any]:
    "What an ONNX file says of itself; UserError if it is not one of ours."
    try:
        note = json.loads(session.get_modelmeta().custom_metadata_map["mshnet"])
        ours = note["kind"] == KIND
    except (KeyError, TypeError, ValueError, RecursionError):
        ours = False
    if not ours:
        raise UserError(f"{path}: an ONNX file of something else; write one by mshnet export")
    version = note.get("version")
    if type(version) is not int or version > VERSION:
        newer = f"written by a newer mshnet (version {shown(version)})"
        raise UserError(f"{path}: {newer}; update mshnet")
    return dict(note)


# %% [markdown]
# Arithmetic in another order is rounded otherwise, so equal means: within a thousandth, of a logit or, where that is larger than 1, of its size.

# %%
#| export
TOLERANCE = 1e-3


def beyond(
    found: Tensor,
    want: Tensor,
) -> float:  # up to 1 is equal
    "The largest difference in tolerances; infinite where one is no number."
    allowed = TOLERANCE * want.abs().clamp(min=1)
    worst = float(((found - want).abs() / allowed).max())
    return worst if np.isfinite(worst) else float("inf")


def expect_example(detector: OnnxDetector, path: str | Path) -> None:
    "UserError unless a file computes the example that was written into it."
    with as_refused(path):
        want = torch.tensor(detector.note["example"]["logits every 8 pixels"])
        worst = beyond(torch.tensor(sample(detector.run("logits", example()))), want)
    if worst > 1:
        raise UserError(
            f"{path}: does not compute its own example, so this onnxruntime or file is wrong"
        )


# %%
test_close(beyond(torch.tensor([1.0, 20.01]), torch.tensor([1.0, 20.0])), 0.5, eps=1e-3)
test_eq(beyond(torch.tensor([float("nan")]), torch.ones(1)), float("inf"))

# %% [markdown]
# A file that is read back gives the probabilities of the network it was made of, for other numbers of images and other sizes than those that torch was shown:

# %%
if "onnx" in made:
    with tempfile.TemporaryDirectory() as tmp:
        path = Path(tmp) / "weights.onnx"
        path.write_bytes(made["onnx"])
        onnx = OnnxDetector(path, "cpu")
        expect_example(onnx, path)
        data = read_bytes(path)
        test_eq(read_note(open_session(data, path, "cpu"), path)["threshold"], 0.5)
        with expect_fail(UserError, contains="cut off"):
            expect_sealed(data[:10_000], path)
        with expect_fail(UserError, contains="cannot read or run"), as_refused(path):
            onnx.run("logits", images.float())
    test_close(onnx(images), Detector(model, "cpu", "fp32")(images), eps=1e-4)
    print(onnx.name, onnx.why, tuple(onnx(images[:, :, :16, :16]).shape))

# %% [markdown]
# ## The check
#
# Every file is read back as its readers will read it, before it gets its name, and compared with the network: on synthetic scenes with targets, because noise may leave a detector silent, and silence is easily equal.

# %%
#| export
SIZES = ((1, 32, 32), (2, 64, 48), (3, 32, 160), (1, 256, 256))  # images, height, width


def pictures(count: int, height: int, width: int) -> Tensor:  # [B,3,H,W] uint8
    "Synthetic scenes in three slightly different greys."
    rng = np.random.default_rng([count, height, width])
    size = max(height, width, 32)
    found = np.stack([scene(rng, size)[0][:height, :width] for _ in range(3 * count)])
    grey = torch.from_numpy(found[:count, None] // 8 * 7)
    return grey + torch.from_numpy(found).reshape(count, 3, height, width) // 8


def answers_of(
    path: Path,
    format: str,
) -> Answers:
    "Read an exported file back."
    if format == "onnx":
        detector = OnnxDetector(path, "cpu")
        return lambda images: {k: detector.run(k, images) for k in ("probability", "logits")}
    if format == "pt2":
        with quiet():
            program: Answers = torch.export.load(path).module()
        return program
    return network(trained_model(path))


# %% [markdown]
# The comparison:

# %%
#| export
def compare(
    found: Answers,
    want: Answers,
) -> dict[str, float]:  # the largest difference of each output, in tolerances
    "Compare a file with the network it was made of, on several numbers of images and sizes."
    worst = {"probability": 0.0, "logits": 0.0}
    for size in SIZES:
        images = pictures(*size)
        with torch.no_grad():
            one, other = found(images), want(images)
        worst = {k: max(v, beyond(one[k], other[k])) for k, v in worst.items()}
    return worst


def difference_of(
    path: Path,  # of the file that was written
    format: str,
    trained: Trained,
) -> dict[str, float]:  # the largest of each output, in tolerances; above 1: not the same
    "How far a file is from what was written; of another task than detection, by its weights."
    if trained.task == "detect":
        return compare(answers_of(path, format), network(trained))
    again = trained_model(path).model.state_dict()
    same = all(torch.equal(v, again[k]) for k, v in trained.model.state_dict().items())
    return {"weights": 0.0 if same else math.inf}


# %%
test_eq(tuple(pictures(2, 64, 48).shape), (2, 3, 64, 48))
compare(program, network(trained))

# %% [markdown]
# Another network is far beyond:

# %%
far = compare(network(Trained(MSHNet(), "full", Origin("untrained"))), network(trained))
assert far["logits"] > 10
far


# %% [markdown]
# ## Exporting
#
# Where to, and in which format: the name of the file says it, or `format` does. Readers go by the name, so the two must agree.

# %%
#| export
def target(
    source: Path,  # of the weights
    format: str,  # empty: by the name of the output, or onnx
    output: str | Path,  # empty: beside the weights
) -> tuple[str, Path]:  # format, file to write
    "What to write, and where; UserError if that cannot be."
    named = {suffix: name for name, suffix in FORMATS.items()}.get(Path(output).suffix, "onnx")
    format = format or named
    if format not in FORMATS:
        hint = did_you_mean(format, list(FORMATS))
        raise UserError(f"format={format!r} is not possible: write {', '.join(FORMATS)}{hint}")
    if source.is_dir():
        raise UserError(f"{source}: is a folder without best.pt; name a file of weights")
    if source.suffix in (".onnx", ".pt2"):
        raise UserError(f"{source}: is exported already; name its weights, such as best.pt")
    suffix = FORMATS[format]
    beside = Path() if reinstall(source) else source.parent  # not into the installed library
    path = Path(output).expanduser() if output else beside / f"{source.stem}{suffix}"
    if path.suffix != suffix:
        raise UserError(f"output={str(output)!r}: a file of format {format} ends in {suffix}")
    if not path.parent.is_dir():
        raise UserError(f"output={str(output)!r}: there is no folder {path.parent}; make it first")
    if path.exists() and source.exists() and path.samefile(source):
        raise UserError(f"{path}: is the file of the weights; write another --output")
    return format, path


# %%
test_eq(target(Path("best.pt"), "", "")[1], Path("best.onnx"))
test_eq(target(Path("best.pt"), "", "small.pt2")[0], "pt2")
with expect_fail(UserError, contains="write onnx, pt2, safetensors"):
    target(Path("best.pt"), "tflite", "")


# %% [markdown]
# What to write:

# %%
#| export
def content(source: Path, trained: Trained, format: str) -> bytes:
    "The bytes of a file."
    note = about(source, trained, inside=format != "safetensors")
    if format == "safetensors":
        return safetensors_bytes(trained.model, note)
    captured = capture(Program(trained.model, trained.phase == "full"))
    return onnx_bytes(captured, note) if format == "onnx" else pt2_bytes(captured, note)


# %% [markdown]
# All of it in one call. A file that does not agree is not kept, and a good one that was there before stays.

# %%
#| export
@dataclass(frozen=True)
class Exported:
    "A file that was written, and how near it is to the network."

    path: Path
    format: str
    difference: dict[str, float]  # the largest of each output, in tolerances

    def __str__(self) -> str:
        "One line."
        worst = max(self.difference.values()) * TOLERANCE
        return f"{self.format}, differs from PyTorch by {worst:.1e} at most ({TOLERANCE} allowed)"


# %% [markdown]
# A file is kept only if it agrees:

# %%
#| export
def export(
    weights: str | Path,  # a run's folder or checkpoint, or published weights
    format: str = "",  # onnx (default), pt2 or safetensors
    output: str | Path = "",  # file to write; empty: beside the weights, named after them
) -> Exported:
    "Write weights as a file for other programs, and check it; UserError if that cannot be."
    source = weights_file(weights)
    format, path = target(source, format, output)
    expect_packages(f"format={format}", *NEEDS[format])
    trained = trained_model(source)
    detects = trained.task == "detect"
    if not detects and format != "safetensors":
        raise UserError(
            f"format={format}: weights of task {trained.task} are exported as safetensors alone; "
            "write --format safetensors"
        )
    if detects and not network(trained)(example())["logits"].isfinite().all():
        raise UserError(
            f"{source}: weights that predict no number (NaN); take an earlier checkpoint"
        )
    half = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        write_atomic(half, content(source, trained, format))
        difference = difference_of(half, format, trained)
        if not max(difference.values()) <= 1:
            raise UserError(
                f"{path}: not kept, it differs from PyTorch by {max(difference.values()):.2g} "
                f"times what is allowed; try another --format or other versions of {NEEDS[format]}"
            )
        with cannot_be_written(path):
            os.replace(half, path)
    finally:
        half.unlink(missing_ok=True)
    return Exported(path, format, difference)


# %% [markdown]
# Published weights become a safetensors file, which is read again like any weights:

# %%
if importable("safetensors"):
    with tempfile.TemporaryDirectory() as tmp:
        torch.save({"state_dict": model.state_dict()}, f"{tmp}/weights.pt")
        done = export(f"{tmp}/weights.pt", "safetensors")
        assert isinstance(done, Exported) and done.path.stat().st_size > 16e6
        source = Path(tmp) / "weights.pt"
        test_eq(difference_of(done.path, "safetensors", trained_model(source)), done.difference)
        data = content(source, trained_model(source), "safetensors")
        test_eq(len(data), done.path.stat().st_size)
        again = answers_of(done.path, "safetensors")(images)
        test_close(again["logits"], network(trained)(images)["logits"], eps=1e-4)
        print(done)


# %% [markdown]
# ## Whatever the file is
#
# Who predicts need not know which kind of file it is.

# %%
#| export
def open_detector(
    path: str | Path,  # weights, or an ONNX file of `export`
    device: str = "auto",
    precision: str = "auto",
) -> Detector | OnnxDetector:
    "What predicts with a file; UserError if nothing can."
    file = Path(path).expanduser()
    if file.suffix.lower() == ".onnx":
        return OnnxDetector(file, device, precision)
    if file.suffix.lower() == ".pt2":
        raise UserError(
            f"{path}: is for torch.export.load in other programs; give the weights, or export ONNX"
        )
    return Detector(file, device, precision)


# %%
with tempfile.TemporaryDirectory() as tmp:
    torch.save({"state_dict": model.state_dict()}, f"{tmp}/weights.pt")
    detector = open_detector(f"{tmp}/weights.pt", "cpu", "fp32")
test_close(detector(images), out["probability"], eps=1e-4)
with expect_fail(UserError, contains="no such file"):
    open_detector("none.onnx")
with expect_fail(MemoryError), as_failed("best.onnx"):
    raise Exception("Failed to allocate memory")

# %% [markdown]
# A reader without this library, in Python:
#
# ```python
# import json, numpy, onnxruntime
#
# session = onnxruntime.InferenceSession("best.onnx")
# note = json.loads(session.get_modelmeta().custom_metadata_map["mshnet"])
# [probability] = session.run(["probability"], {"image": image})  # uint8 [1,3,height,width]
# target = probability > note["threshold"]
# ```
#
# And with torch alone:
#
# ```python
# said = {"mshnet": ""}
# program = torch.export.load("best.pt2", extra_files=said).module()
# probability = program(image)["probability"]  # a side has at least 32 pixels
# ```
#
# The files were read by onnxruntime on a CPU. Other runtimes, and onnxruntime on a GPU, were not at hand.
