# %% [markdown]
# # Files of weights
#
# > Read weights in every published form, without running code; check them; put them into a model.
#
# `torch.load` of a downloaded file may run any code that its author put there: a pickle is a program. With `weights_only=True` it does not, but then many published files fail. All of these forms load here, by one call, and none may run code:
#
# | form | comes from |
# |---|---|
# | a state dict (names and tensors or arrays), also under any key | most programs |
# | `{"net": ..., "optimizer": ..., "epoch": ..., "iou": ...}`, with a NumPy scalar inside | training scripts |
# | `module.` or another prefix before each name | several GPUs, larger models |
# | files called `.tar`, or in PyTorch's format from before zip files | older programs |
# | `.safetensors` | Hugging Face, and the weights in this library |

# %%
#| hide
#| default_exp weights
import tempfile

from mshnet.weights import load_weights, reinstall

# %%
#| export
import contextlib
import hashlib
import json
import os
import re
import warnings
import zipfile
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mshnet.core import OF_ITS_MACHINE, UserError, is_record, of_earlier_release, settings_of, shown
from mshnet.device import is_out_of_memory
from mshnet.files import explain_failure

# %% [markdown]
# ## A file from several GPUs
#
# This file has `module.` before each name, a NumPy scalar, and the suffix `.tar`. It fits, and both models have the same weights:

# %%
place = tempfile.TemporaryDirectory()
path = Path(place.name, "weights.tar")
model, other = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)
wrapped = {f"module.{k}": v for k, v in model.state_dict().items()}
torch.save({"net": wrapped, "iou": torch.ones(1, dtype=torch.float64).numpy()[0]}, path)
print("iou", load_weights(other, path)["iou"], torch.equal(other.weight, model.weight))


# %% [markdown]
# ## Two files that are refused
#
# The first has the weights of a different model; the error shows the first differences. The second is a program: a pickle stores an object as the call that makes it, and this one calls `os.system`. Neither file changes a weight, and "this ran" is not printed. If a file of the library is damaged, the error also says how to install it again; for a file of yours it does not:

# %%
class _Trap:
    def __reduce__(self):  # the call that a pickle stores
        return os.system, ("echo this ran",)


for content in ({"net": {"module.a": torch.ones(1)}}, {"net": _Trap()}):
    torch.save(content, path)
    try:
        load_weights(other, path)
    except UserError as error:
        print(str(error).replace(f"{place.name}/", ""))
print("remedy for mine.pt:", reinstall("mine.pt") or "none")

# %% [markdown]
# ## The machinery: loading a file
#
# `load_weights` calls three functions in turn: `read_file` reads, `find_weights` searches the content for a state dict, and `fit_weights` strips a prefix that the names share, and puts the weights into the model. All tensors are copied before the first is put into the model, so a file fits or changes no weight. (One exception: a model's own `resize` may already have replaced its last layer.)

# %%
#| export
_SUFFIXES = (".pt", ".pth", ".ckpt", ".safetensors")
_TRACKED = "num_batches_tracked"  # a counter of batch norm, which changes no result
_COUNTERS = ("total_ops", "total_params", "n_averaged")  # of thop, and of weight averaging


def read_file(path: str | Path) -> Any:  # what it holds, tensors on the CPU
    """Read a torch file without running code; UserError if it is damaged, or would run code.

    torch's `weights_only` allows listed functions only, to which numpy's scalars and arrays are
    added because published files hold them (the best IoU).
    """
    try:
        if os.path.isdir(path):
            raise IsADirectoryError
        content = _load_any(path)
        own = content if isinstance(content, dict) and "model" in content else {}
        written, form = own.pop("checksum", None), own.get("format")
        # the first format had no checksum; the weights that come with mshnet have one
        ours = bool(reinstall(path)) or (type(form) is int and form > 1)
        if (ours and not written) or (written and written != checksum(content)):
            raise ValueError("what was read is not what was written")
        return content
    except FileNotFoundError:
        hint = reinstall(path) or "; name a run, its folder, a file of weights, or pretrained"
        raise UserError(f"{path}: there is no such file{hint}") from None
    except PermissionError:
        raise UserError(f"{path}: you may not read this file") from None
    except IsADirectoryError:
        found = [f for at in ("*", "*/*") for f in Path(path).glob(at) if f.suffix in _SUFFIXES]
        name = min(found, default="FILE.pt (a run has one after its first epoch)")
        todo = f"name a file of weights, such as {name}"
        raise UserError(f"{path}: is a folder without best.pt; {todo}") from None
    except Exception as error:  # torch raises many kinds for bytes that make no sense
        if is_out_of_memory(error):
            raise UserError(f"{path}: too large for the free memory, or damaged") from None
        if "GLOBAL" in str(error):  # the name of a function or class that is not on the list
            todo = f"write its weights alone: model = torch.load({str(path)!r}, weights_only=False)"
            what = f"{path}: refused, it would run code when loaded; if you trust it, {todo}"
            what += ", then torch.save(model.state_dict(), 'weights.pt')"
            raise UserError(f"{what}; of a dictionary, save its state_dict alone") from None
        hint = _looks_like(path, str(error)) or reinstall(path)
        raise UserError(f"{path}: not a torch file of weights, or a damaged one{hint}") from None


def _load_any(path: str | Path) -> Any:
    "The content of a file in either format."
    with open(path, "rb") as file:
        if file.read(9)[8:] == b"{":  # safetensors, whatever the file's name
            return _read_safetensors(path)
    with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as packed:
        if sum(info.file_size for info in packed.infolist()) > os.path.getsize(path):
            raise ValueError("a file that unpacks to more than itself, which torch never writes")
    with torch.serialization.safe_globals([*_numpy_values(), Namespace]):
        return torch.load(path, map_location="cpu", weights_only=True)


def _looks_like(path: str | Path, error: str) -> str:
    "What a file is that is often taken for weights, with the remedy; empty: none of these."
    if Path(path).suffix == ".onnx":
        return "; use onnxruntime: the guide 'Into your own program' has the lines"
    with explain_failure(f"{path}: cannot be read", "copy it again"), open(path, "rb") as file:
        start = file.read(200)
    if start.startswith(b"\x1f\x8b"):
        return "; it is an archive: unpack it and name the run folder"
    if start.startswith(b"\x80\x02\x8a\x0al\xfc\x9cF\xf9"):  # of torch before zip files
        return "; download or copy it again"
    if "TorchScript" in error or start[:1] in (b"\x80", b"\x93") or Path(path).suffix == ".npz":
        return "; write its names and tensors alone: torch.save(state_dict, 'weights.pt')"
    text = start.lstrip().lower().startswith((b"<", b"version https://git-lfs"))
    return "; it is a text, not the file: download it again, or run git lfs pull" if text else ""


def has_record(content: Any) -> bool:
    "Whether the content of a file has the record of a run."
    kinds = {"best": dict | None, "config": dict, "phase": str}  # None: no epoch is kept so far
    return isinstance(content, dict) and all(isinstance(content.get(k, 0), kinds[k]) for k in kinds)


def find_weights(content: Any) -> dict[str, Tensor]:
    "The state dict in a file's content, whatever its wrapping; UserError without one."
    for key in ("model", "state_dict", "net", "model_state_dict"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            rest = [k for k in content if k not in (key, "trained") and _is_state_dict(content[k])]
            alike = [k for k in rest if abs(len(content[k]) - len(content[key])) < 2]
            if alike:  # such as averaged weights
                text = f"the weights under {key} are used; for those under {shown(alike[0])}"
                warnings.warn(f"{text}, save that state dict alone", stacklevel=2)
            content = content[key]
    if isinstance(content, list | tuple):
        content = dict(enumerate(content))
    parts = content if isinstance(content, Mapping) else {}
    found = [part for part in (content, *parts.values()) if _is_state_dict(part)]
    if len(found) != 1:
        what = "several state dicts" if found else "no weights (a mapping of names to tensors)"
        raise UserError(f"holds {what}, its keys are {shown([*parts])}; save one state dict alone")
    return {k: torch.as_tensor(v) for k, v in found[0].items() if not k.endswith(_COUNTERS)}


def _is_state_dict(content: Any) -> bool:
    "Whether it is a mapping of names to tensors, or to arrays, and not empty."
    named = isinstance(content, Mapping) and set(map(type, content)) == {str}
    return named and all(isinstance(value, Tensor | np.ndarray) for value in content.values())


def _without_prefix(weights: Mapping[str, Tensor], names: set[str]) -> dict[str, Tensor]:
    "The weights whose names are those of a model behind one prefix, such as module. or net."
    dots = [(name, dot.end()) for name in weights for dot in re.finditer(r"^|\.", name)]
    found = Counter(name[:at] for name, at in dots if name[at:] in names).most_common()
    most = [start for start, count in found if count == found[0][1]] or [""]
    if len(most) > 1:
        raise UserError(f"weights of several models, {shown(most)}; save one state dict alone")
    return {k.removeprefix(most[0]): v for k, v in weights.items() if k.startswith(most[0])}


def fit_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Put weights into a model; UserError, and no weight is set, unless names and shapes agree.

    A model's `foreign` is a regular expression for what published files hold besides its weights;
    its `before_loading(weights)` makes parts whose shapes depend on them, or refuses them.
    """
    weights = _without_prefix(weights, {k for k in model.state_dict() if not k.endswith(_TRACKED)})
    if before_loading := getattr(model, "before_loading", None):
        before_loading(weights)
    own, foreign = model.state_dict(), getattr(model, "foreign", r"(?!)")
    weights = {k: v for k, v in weights.items() if not re.search(foreign, k)}
    weights = {k: v for k, v in own.items() if k.endswith(_TRACKED)} | weights
    want = {k: tuple(v.shape) for k, v in own.items()}
    have = {k: tuple(v.shape) for k, v in weights.items() if not v.is_nested}
    wrong = [k for k in {**want, **have} if want.get(k) != have.get(k)]
    if wrong:
        some = wrong[:2] + wrong[2:][-1:]  # the last may be a name that only the file has
        shapes = {k: (have.get(k, "missing"), want.get(k, "missing")) for k in some}
        lines = [f"{k[:99]} is {a} in the file, {b} in the model" for k, (a, b) in shapes.items()]
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise UserError(f"weights of another model: {'; '.join(lines)}{more}")
    try:
        if not all(weights[k].is_floating_point() for k, v in own.items() if v.is_floating_point()):
            raise RuntimeError
        with torch.no_grad():
            ready = {k: torch.empty_like(v, device="cpu").copy_(weights[k]) for k, v in own.items()}
    except RuntimeError:  # sparse, quantized, whole numbers, or without values
        raise UserError("weights that are not plain numbers") from None
    model.load_state_dict(ready)


def load_weights(model: nn.Module, path: str | Path, content: Any = None) -> Any:
    """Load weights from a file into a model; UserError with the reason if they do not fit.

    Returns the content of the file, which may be given as `read_file` returned it.
    """
    content = read_file(path) if content is None else content
    try:
        fit_weights(model, find_weights(content))
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    return content


# %% [markdown]
# A run folder stands for the weights it kept. Two files of weights come with the library, one for detection and one for tomography. Each is called `pretrained` in its task, and a card beside it, such as `pretrained.md`, has its training data and its scores. `_SHIPPED` lists the two files:

# %%
#| export
PRETRAINED = "pretrained"
_SHIPPED = {"detect": "pretrained", "eit": "pretrained-eit"}  # files by task


def weights_file(weights: str | os.PathLike[str], task: str = "detect") -> Path:
    """The file that weights name, which need not exist; UserError for another type.

    `weights` is a file, a run, its folder, or "pretrained", which means the weights of this task.
    """
    if not isinstance(weights, str | os.PathLike):
        todo = f"use a run, a run folder, a file or {PRETRAINED}"
        raise UserError(f"weights of type {type(weights).__name__} are not possible: {todo}")
    if os.fspath(weights) == PRETRAINED:
        if task not in _SHIPPED:
            todo = "name the weights of a run, such as runs/NAME/best.pt"
            raise UserError(f"no pretrained weights of task {task} come with mshnet: {todo}")
        return Path(str(files("mshnet") / f"{_SHIPPED[task]}.safetensors"))
    path = Path(os.path.expanduser(weights))
    best = path / "best.pt"
    return best if os.path.isfile(best) else path


def folder_beside(weights: Path) -> Path:
    "The folder for what is made of weights; of those of the library, the current one."
    return Path() if reinstall(weights) else weights.parent


def reinstall(path: str | Path) -> str:
    "The remedy for missing or damaged weights of the library; empty for a user's own file."
    if Path(path).parent != weights_file(PRETRAINED).parent:
        return ""
    return (
        "; it comes with mshnet: install it again (pip install --force-reinstall --no-deps with "
        "the folder, wheel or address that mshnet was installed from; in a clone git checkout "
        f"mshnet/{Path(path).name}), or name other weights"
    )


# %% [markdown]
# ### What may be in a file
#
# Only tensors, plain values, numpy's numbers and argparse's Namespace are let through. A safetensors file contains tensors and a few texts, and nothing that could run. In our own, one of these texts records where the weights come from.
#
# A bit that flips on a disk can turn a weight of 0.1 into 3e37, and torch does not check. So a checkpoint of ours contains a checksum of its content, which is compared wherever the file is read. Convolution weights lie channels-last in memory, and the checksum needs a copy in the usual order. NumPy makes this copy. In the thread that writes checkpoints, torch would start a second team of OpenMP threads for it, and every later step would take a third longer ([measured](../experiments/speed.md)).

# %%
#| export
def _numpy_values() -> list[Any]:
    "The functions that numpy's scalars and arrays need to load, under their old and new names."
    array = np.zeros(1)
    made = (array[0].__reduce__()[0], "scalar"), (array.__reduce__()[0], "_reconstruct")
    cores = "numpy.core.multiarray", "numpy._core.multiarray"
    named = [(function, f"{core}.{name}") for function, name in made for core in cores]
    return [*named, np.dtype, np.ndarray, *{type(np.dtype(kind)) for kind in "efdilqBbhHILQ?"}]


def _read_safetensors(path: str | Path) -> dict[str, Any]:
    "The weights in a safetensors file, under `model`, and the values that mshnet stored there."
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        weights = {name: file.get_tensor(name) for name in sorted(file.keys())}
        stored = (file.metadata() or {}).get("mshnet", "{}")
    return {**json.loads(stored), "model": weights}


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


def checksum(content: Any) -> str:
    "SHA-256 of tensors and plain values in nested mappings and lists, whatever the file."
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, Tensor):
            digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
            words = value.detach().cpu().view(_WORDS[value.element_size()])
            digest.update(np.ascontiguousarray(words.numpy()).data)
        elif isinstance(value, Mapping):
            digest.update(f"{len(value)} pairs".encode())
            for name, part in value.items():
                digest.update(f"{name!r}: ".encode())
                add(part)
        elif isinstance(value, list | tuple):
            digest.update(f"{len(value)} of {type(value).__name__}".encode())
            for part in value:
                add(part)
        else:
            digest.update(f"{value!r}, ".encode())

    add(content)
    return digest.hexdigest()


# %% [markdown]
# ### What weights record
#
# Weights are scored as they were trained: a network for event cameras that saw the events of 10 ms at a time predicts wrongly at 20 ms. A run folder has the settings in `config.json`. A `best.pt` that was copied elsewhere has them in its own record.

# %%
#| export
def settings_of_weights(weights: str | os.PathLike[str]) -> dict[str, Any]:
    """The settings of a run folder, or of a file in it or copied from it; {} if none can be read.

    Without those of folder and machine. UserError for weights of another type.
    """
    file, found = weights_file(weights), dict[str, Any]()
    if os.fspath(weights) == PRETRAINED:  # not a folder of this name
        return {}
    with contextlib.suppress(UserError):  # of another program's config.json
        found = settings_of(weights)
    found = found if is_record(found) else {}
    in_run = found and file.stem in ("best", "last", "previous")  # not a copy beside another run
    return found if in_run else recorded(file) or found


def recorded(file: str | Path) -> dict[str, Any]:
    "The settings in a file of weights, without those of folder and machine; {}: it has none."
    with contextlib.suppress(UserError):  # its next reader says what is wrong
        if has_record(content := read_file(file)):
            known = of_earlier_release(content["config"])
            return {k: v for k, v in known.items() if k not in OF_ITS_MACHINE}
    return {}

# %% [markdown]
# ## Questions
#
# 1. A checkpoint contains a checksum of its content. Does it protect against a malicious file?
#    <details><summary>Answer</summary>No. Whoever writes the file computes the checksum, too, and it is compared after the file is read. It finds damage by accident, such as a flipped bit.</details>
# 2. In the file of several GPUs above, one name lacks `module.`. Does it load?
#    <details><summary>Answer</summary>No. Two prefixes, `module.` and none, could each be a model of its own, so the error asks for one state dict alone, and no weight changes.</details>
