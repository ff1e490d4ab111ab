# %% [markdown]
# # Export to ONNX and safetensors
#
# > A trained detector as a file for other programs, ONNX or safetensors, checked against the network, with a note that describes it.
#
# A network that is right in Python is often wrong in the program that uses it: pixels are scaled to 0..1 twice, the colours are swapped, the mean is not subtracted, logits are compared with 0.5. Nothing fails then; the detector is just worse. So an exported ONNX file takes **the pixels as they are**, bytes of 0 to 255 in RGB, and does the rest itself, so there is nothing left to scale. The file returns the probability and the logits. (Near 1 a probability in float32 has few digits left; the logit keeps them.)

# %%
#| hide
#| default_exp export
import onnxruntime

from mshnet.export import export

# %%
#| export
import contextlib
import importlib
import json
import logging
import math
import os
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.export import Dim

from mshnet.core import PlaceFields, UserError, reason, settings_class, shown
from mshnet.cpu import use_plain_passes
from mshnet.data import SUFFIXES
from mshnet.detection import MEAN, STD, fuse_bn, normalise
from mshnet.evaluate import logits_of
from mshnet.files import cannot_be_written, digest, find_inputs, write_atomic, write_json
from mshnet.frames import frames_of
from mshnet.metrics import Tally
from mshnet.places import installed
from mshnet.scenes import scene
from mshnet.session import working
from mshnet.task import Trained, even_steps, trained_model
from mshnet.weights import checksum, folder_beside, weights_file

# %% [markdown]
# An export is one file, and a note that describes it. The suffix selects the format. We write an ONNX file, as `mshnet export pretrained --output weights.onnx` does. Then we run it with onnxruntime on a synthetic scene: first with the bytes as they are, then with the first mistake above: divided by 255, and cut to whole numbers, because the file takes bytes.

# %%
place = tempfile.TemporaryDirectory()
path = export("pretrained", f"{place.name}/weights.onnx")
run = onnxruntime.InferenceSession(path).run
image = np.stack([[scene(np.random.default_rng(2), 160)[0]] * 3])
for name, pixels in {"bytes": image, "divided by 255": (image / 255).astype(np.uint8)}.items():
    [prob] = run(["probability"], {"image": pixels})
    print(f"{name}: {(prob > 0.5).sum()} pixels of targets")

# %% [markdown]
# The note describes input and output, the threshold, the [sizes](53_predict.ipynb) at which `mshnet predict` predicts a frame, how the network was trained and which epoch was chosen. Programs in every language read JSON, and so do people. A flipped bit on a disk changes a weight, and onnxruntime does not notice; so the note contains the SHA-256 of the file. Here is the note without that, and without the settings of the training. The guide [into your own program](guides/deploy.ipynb) has the lines that read an ONNX file in Python and in C++.

# %%
note = json.loads(Path(f"{path}.json").read_text())
del note["config"], note["sha256"]
print(*(f"{key}: {value}" for key, value in note.items()), sep="\n")


# %% [markdown]
# ## The machinery: the exported program
#
# The program has three parts: it normalises the bytes, runs the network, and applies the sigmoid. We fuse batch norm into the convolutions, and replace the CPU's hand-written passes by the plain ones, which every exporter supports.

# %%
#| export
class _InferenceModel(nn.Module):
    "The program of an ONNX file: bytes in, probability and logits out."

    def __init__(self, trained: Trained) -> None:
        super().__init__()
        self.model = use_plain_passes(fuse_bn(trained.model.eval()))
        self.deep = trained.phase == "full"
        self.requires_grad_(False)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:  # uint8 [B,3,H,W] -> [B,1,H,W]
        "Probability and logits."
        logits = self.model(normalise(image), deep=self.deep)[1]
        return torch.sigmoid(logits), logits


# %% [markdown]
# ## ONNX
#
# **ONNX** is for other runtimes: onnxruntime, OpenVINO, TensorRT, a browser, C++ and C#. torch runs the model once and records its operations. The number of images, rows and columns stays open, and torch proves that nothing depends on the sizes of the example. We write opset 18, which runtimes of the last years read.

# %%
#| export
PACKAGES = ("onnx", "onnxruntime", "onnxscript")  # of the extra `export`


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    "Without the many warnings of exporters."
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(before)


def _onnx_bytes(trained: Trained) -> bytes:
    "An ONNX file, for any number of images and all sides that are multiples of 16."
    sizes = {0: Dim("batch"), 2: 16 * Dim("rows", min=2), 3: 16 * Dim("columns", min=2)}
    example = torch.zeros(2, 3, 64, 48, dtype=torch.uint8)
    names = {"input_names": ["image"], "output_names": ["probability", "logits"]}
    how: Any = {"dynamo": True, "opset_version": 18, "verbose": False, **names}
    with _quiet():
        program = torch.export.export(_InferenceModel(trained), (example,), dynamic_shapes=(sizes,))
        made: Any = torch.onnx.export(program, (), **how)
    proto = made.model_proto
    for part in (*proto.graph.node, *proto.graph.value_info, *proto.graph.initializer):
        part.ClearField("metadata_props")  # lines of code, with their folders
    return bytes(proto.SerializeToString())


def _expect_packages() -> None:
    "UserError with the line that installs a missing or broken package."
    try:
        for name in PACKAGES:
            importlib.import_module(name)
    except ImportError as error:
        todo = f"run: pip install --upgrade {' '.join(PACKAGES)}"
        raise UserError(f"ONNX: needs {name} ({reason(error)}); {todo}") from None


# %% [markdown]
# ## safetensors
#
# **safetensors** (`safetensors_bytes`) contains the weights but no program: it is for this library and for others that have the network. `mshnet test` and `--weight-path` read it like a checkpoint, so its header contains a checkpoint's record: phase, epoch, settings without those of a machine, the digests of its training images, a checksum.

# %%
#| export
def safetensors_bytes(trained: Trained) -> bytes:
    "A safetensors file of the weights, with the record of their checkpoint."
    from safetensors.torch import save

    held = sorted(trained.model.state_dict().items())
    weights = {k: v.clone(memory_format=torch.contiguous_format) for k, v in held}  # none shared
    use = {"threshold": trained.threshold, "multiscale": trained.multiscale}
    header = json.loads(json.dumps(_own_record(trained) | use))
    header["checksum"] = checksum({**header, "model": weights})
    return save(weights, {"format": "pt", "mshnet": json.dumps(header)})


def _own_record(trained: Trained) -> dict[str, Any]:
    "The record of a checkpoint, without folders and machines."
    fields, config = settings_class(trained.task).model_fields, trained.record.get("config", {})
    own = [k for k in fields if k in config and k not in PlaceFields.model_fields]
    kept = {k: config[k] for k in own if not k.endswith("_list")}
    return trained.record | {"config": kept}


# %% [markdown]
# ## The note beside a file
#
# The note of a safetensors file has the same entries. In its `normalisation`, `inside` is false: whoever runs the network normalises the image, and takes the sigmoid of the logits.

# %%
#| export
def _logits(trained: Trained, images: Tensor) -> Tensor:  # [B,1,H,W]
    "The logits of the network in PyTorch, in float32 on the CPU."
    with torch.no_grad():
        return logits_of(trained.model.eval(), images, trained.phase == "full")


def _note(source: Path, trained: Trained, format: str) -> dict[str, Any]:
    "The note beside an exported file, without its digest."
    note = {
        "mshnet": installed("mshnet"),
        "torch": torch.__version__,
        "format": format,
        "task": trained.task,
        "weights": source.name,
        "phase": trained.phase,
        "chosen": trained.origin.chosen,
        "config": _own_record(trained)["config"],
    }
    if trained.task != "detect":
        return note
    inside = format == "onnx"
    formula = {"formula": "(image / 255 - mean) / deviation", "mean": MEAN, "deviation": STD}
    return note | {
        "image": "uint8 [batch,3,height,width], RGB 0..255; height and width multiples of 16",
        "normalisation": {"inside": inside, **formula},
        "outputs": ["probability", "logits"] if inside else ["logits"],
        "threshold": trained.threshold,  # of the probability
        "multiscale": trained.multiscale,  # see `predict_frame`; []: own size
    }


# %% [markdown]
# ## The check
#
# Every file is read back before it gets its name. In a safetensors file all weights must be equal to those of the network. An ONNX file is compared with the network on synthetic scenes with targets, by onnxruntime. Noise would not do: it may leave a detector silent, and two silent detectors agree.
#
# Sums in a different order are rounded differently. Two logits count as equal if they differ by less than a thousandth, absolute or, above 1, relative. We read the files with onnxruntime on a CPU, and some with [OpenVINO](../results/predict-large); TensorRT, and onnxruntime on a GPU, were not available. Below we check whether the differences of our ONNX file and of a safetensors file are less than a tenth of that, and whether they are zero:

# %%
#| export
TOLERANCE = 1e-3
_SIZES = ((1, 32, 32), (2, 64, 48), (3, 32, 160), (1, 256, 256))  # images, height, width


def _scenes(count: int, height: int, width: int) -> Tensor:  # [B,3,H,W] uint8
    "Synthetic scenes, slightly tinted."
    rng = np.random.default_rng([count, height, width])
    found = [scene(rng, max(height, width))[0] for _ in range(count)]
    grey = np.stack(found)[:, None, :height, :width]
    return torch.from_numpy(grey * np.array([1, 0.95, 0.9]).reshape(3, 1, 1)).byte()


def _run_onnx(path: Path, batches: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    "Probability and logits of each batch by onnxruntime on the CPU; UserError if it cannot."
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 4
    try:
        session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
        for images in batches:
            found = session.run(["probability", "logits"], {"image": images.numpy()})
            yield [torch.from_numpy(values) for values in found]
    except Exception as error:  # of onnxruntime, of many kinds
        text = f"{path.name}: onnxruntime cannot read or run it ({reason(error)})"
        raise UserError(text) from None


def _read_back(path: Path, format: str, trained: Trained) -> float:  # up to 1 is equal
    "The largest difference, in tolerances, between a written file and the weights it was made of."
    if format == "safetensors":
        again = trained_model(path).model.state_dict()
        same = all(torch.equal(v, again[k]) for k, v in trained.model.state_dict().items())
        return 0.0 if same else math.inf
    batches, found = [_scenes(*size) for size in _SIZES], []
    for images, computed in zip(batches, _run_onnx(path, batches), strict=True):
        logits = _logits(trained, images)
        for have, want in zip(computed, (logits.sigmoid(), logits), strict=True):
            apart = (have - want).abs() / (TOLERANCE * want.abs().clamp(min=1))
            found.append(float(apart.nan_to_num(math.inf, math.inf).max()))
    return max(found)


# %%
trained, other = trained_model("pretrained"), path.with_name("weights.safetensors")
other.write_bytes(safetensors_bytes(trained))
for file in (path, other):
    apart = _read_back(file, file.suffix[1:], trained)
    print(f"{file.name}: below a tenth of what is allowed: {apart < 0.1}, zero: {apart == 0}")

# %% [markdown]
# ## 8-bit integers
#
# `--int8 DIR` writes the convolutions in 8-bit integers. The file is a quarter as large, and on a CPU OpenVINO runs it in 0.55 of PyTorch's time ([measured](../results/predict-large)). The input of a convolution is then rounded to 256 levels, so its range must be known. onnxruntime measures the ranges on up to 64 images of DIR, or their middle 512x512 pixels. (Weights that predict only reduced frames get reduced images.) They should look like those of your camera, and DIR should hold no masks. Now the logits differ by more than rounding, so we compare what is detected in these images: with PyTorch's detections as ground truth, Pd must be at least 0.9 and IoU 0.7. The note keeps this agreement. This is not a score, because the images need no masks.

# %%
#| export
_MOST_IMAGES, _MOST_SIDE = 64, 512
_LEAST = {"pd": 0.9, "iou": 0.7}  # if the detections of PyTorch are taken as ground truth


def _calibration_images(folder: str | Path, reduction: int) -> list[Tensor]:  # [1,3,H,W] uint8
    "The middle of each image of a folder, reduced; UserError if none can be used."
    folder = os.path.expanduser(str(folder))  # True, too, is no folder
    if not os.path.isdir(folder):
        raise UserError(f"int8={shown(folder)}: name a folder of images")
    files, found = find_inputs(folder, SUFFIXES), []
    least = f"{32 * reduction}x{32 * reduction} pixels"
    for file in (files[i] for i in even_steps(len(files), _MOST_IMAGES)):
        frame = next(frames_of(file))
        pixels = frame.pixels
        if not frame.error:
            pixels = np.asarray(Image.fromarray(pixels).reduce(reduction))
        sides = [min(n, _MOST_SIDE) // 16 * 16 for n in pixels.shape[:2]]
        if frame.error or min(sides) < 32:
            why = frame.error or f"below {least}"
            warnings.warn(f"int8: left out {file.name} ({why})", stacklevel=2)
            continue
        top, left = ((n - m) // 2 for n, m in zip(pixels.shape, sides, strict=False))
        pixels = np.atleast_3d(pixels)[top : top + sides[0], left : left + sides[1]]
        found.append(torch.tensor(pixels).permute(2, 0, 1).expand(1, 3, -1, -1).contiguous())
    if not found:
        raise UserError(f"int8={folder}: no readable image of at least {least}")
    return found


def _to_int8(path: Path, images: Sequence[Tensor]) -> None:
    "Rewrite an ONNX file with convolutions in 8-bit integers, whose ranges these images have."
    from onnxruntime.quantization import QuantType, quantize_static

    batches = iter([{"image": image.numpy()} for image in images])
    reader: Any = SimpleNamespace(get_next=lambda: next(batches, None))
    how: Any = {"op_types_to_quantize": ["Conv"], "per_channel": True}
    how["reduce_range"] = True  # weights of 7 bits: a CPU without VNNI adds products in 16 bits
    how["activation_type"] = QuantType.QUInt8  # signed ones are slow, and less exact
    try:
        with _quiet():
            quantize_static(path, path, reader, **how)
    except Exception as error:  # of onnxruntime, of many kinds
        todo = "run: pip install --upgrade onnx onnxruntime"
        text = f"int8: onnxruntime cannot convert the file ({reason(error)}); {todo}"
        raise UserError(text) from None


def _as_int8(path: Path, trained: Trained, images: list[Tensor], folder: str) -> dict[str, Any]:
    "Rewrite an ONNX file in 8-bit integers; how well it agrees with PyTorch on the images."
    masks = [_logits(trained, image).sigmoid() > trained.threshold for image in images]
    if not any(mask.any() for mask in masks):
        todo = "use images with targets"
        raise UserError(f"int8={folder}: PyTorch detects nothing in these images; {todo}")
    tally = Tally()
    with working("measure the ranges for 8-bit integers"):
        _to_int8(path, images)
        for computed, mask in zip(_run_onnx(path, images), masks, strict=True):
            tally.add(computed[0] - trained.threshold, mask)
    found = tally.scores().as_dict()
    if not all(found[name] >= least for name, least in _LEAST.items()):
        agree = f"Pd {found['pd']:.2f} and IoU {found['iou']:.2f} (at least 0.9 and 0.7)"
        what = f"not kept, against PyTorch's detections the file has {agree}"
        raise UserError(f"int8={folder}: {what}; use more images")
    return {"images": len(images), "agreement with PyTorch": found}


# %% [markdown]
# ## Writing a file
#
# Weights of a task other than detection are exported as safetensors only. The file is written under a temporary name; if it agrees with the network, it replaces the old file.

# %%
#| export
def _target(source: Path, output: str | Path, task: str, int8: bool) -> Path:
    "The file to write; UserError if it is not possible."
    suffixes = (".onnx", ".safetensors") if task == "detect" else (".safetensors",)
    if int8 and task != "detect":
        raise UserError(f"int8 is not possible for task {task}: leave it out")
    suffixes = suffixes[:1] if int8 else suffixes
    usual = folder_beside(source) / f"{source.stem}{'-int8' if int8 else ''}{suffixes[0]}"
    path = Path(os.path.expanduser(output or usual))
    if path.suffix not in suffixes:
        some = " or ".join(f"FILE{suffix}" for suffix in suffixes)
        what = "--int8" if int8 else f"task {task}"
        raise UserError(f"output={output} is not possible for {what}: use {some}")
    if os.path.exists(path) and path.samefile(source):
        raise UserError(f"{path}: is the file of the weights; use another --output")
    return path


def export(
    weights: str | Path,  # a run folder or checkpoint, or published weights
    output: str | Path = "",  # FILE.onnx or FILE.safetensors; empty: beside the weights
    int8: str | Path | None = None,  # folder of images: ONNX in 8-bit integers
) -> Path:
    "Write weights as a file for other programs; UserError if it does not pass its check."
    source = weights_file(weights)
    trained = trained_model(source)
    path = _target(source, output, trained.task, int8 is not None)
    format = path.suffix[1:]
    if format == "onnx":
        _expect_packages()
    full, *_, reduction = trained.multiscale or (1, 1)
    images = [] if int8 is None else _calibration_images(int8, 1 if full else int(reduction))
    if trained.task == "detect" and not _logits(trained, _scenes(1, 32, 32)).isfinite().all():
        raise UserError(f"{source}: weights that predict NaN; take an earlier checkpoint")
    with contextlib.ExitStack() as stack:
        stack.enter_context(cannot_be_written(path, "repair that, or use another --output"))
        path.parent.mkdir(parents=True, exist_ok=True)
        place = stack.enter_context(tempfile.TemporaryDirectory(dir=path.parent, prefix="."))
        draft = Path(place) / path.name
        with working(f"write {format}"):
            data = _onnx_bytes(trained) if format == "onnx" else safetensors_bytes(trained)
        write_atomic(draft, data)
        note = _note(source, trained, format)
        with working(f"compare {format} with PyTorch"):
            difference = _read_back(draft, format, trained)
        if not difference <= 1:
            what = f"not kept, it differs from PyTorch by {difference:.2g} times what is allowed"
            todo = "export the other format, or use other versions of onnx and onnxruntime"
            raise UserError(f"{path}: {what}; {todo}")
        if images:
            note["int8"] = _as_int8(draft, trained, images, str(int8))
        write_json(Path(f"{draft}.json"), {**note, "sha256": digest(draft)})
        for written in sorted(Path(place).iterdir()):
            os.replace(written, path.with_name(written.name))
    return path

# %% [markdown]
# ## Questions
#
# 1. You calibrate 8-bit integers on images of a clear sky, and your camera also sees warm ground. What goes wrong, and does the check notice it?
#    <details><summary>Answer</summary>The measured ranges are too narrow, and larger values are cut off. The check does not notice it, because it compares detections in the same images of the sky.</details>
# 2. A program runs the exported pretrained weights on whole frames and finds fewer targets than `mshnet predict`. Is the file wrong?
#    <details><summary>Answer</summary>No. The file computes one size, and <code>mshnet predict</code> uses two for these weights, by the numbers under <code>multiscale</code> in the note. The program must do the same.</details>
