# %% [markdown]
# # TPUs through XLA
#
# > One process drives all chips of a TPU, and every step must record the same program.
#
# On a CPU or a GPU, torch runs an operation when Python calls it. On a TPU nothing runs at that moment. torch_xla records the operation, and `sync` hands everything recorded to a compiler, XLA, which makes one program of it and runs that. Compiling takes seconds to minutes, running takes milliseconds. A step that records the same operations again finds its program compiled.
#
# So one rule decides whether a TPU is fast: **every step must record the same program**. First we see what breaks the rule. The machinery finds a TPU, or reports why it cannot be used, and makes a `Device` of it that counts what is compiled.

# %%
#| export
#| default_exp xla
import contextlib
import importlib
import os
import time
import warnings
from collections import Counter
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn, optim

from mshnet.core import UserError, counted, reason
from mshnet.device import Device, T, cpu_name, each_tensor
from mshnet.places import heartbeat, installed, where

# %% [markdown]
# ## What compiles again
#
# Each row of the figure is a loop of ten steps, such as `for i in range(10): y = x * (0.1 + i); sync()`. The numbers are the programs that XLA compiled in each step. They were measured with torch_xla 2.9 on its CPU runtime, not on a TPU; `tests/xla/test_programs.py` repeats them. The upper four loops compile in their first step only, the lower four in every step:

# %%
import matplotlib.pyplot as plt

compiled = {  # programs: in the first step, in each later one
    "the same operations": (1, 0),
    "x * number": (1, 0),
    "SGD, its learning rate": (1, 0),
    "loss.item() in the middle": (2, 0),
    "x.pow(number)": (1, 1),
    "x.roll(number)": (1, 1),
    "x[:, number:]": (1, 1),
    "a batch of a new size": (1, 1),
}
counts = np.array([[first, *[later] * 9] for first, later in compiled.values()])
axes = plt.figure(figsize=(7, 3), layout="constrained").subplots()
axes.imshow(counts, cmap="Oranges", vmax=4, aspect="auto")
for (row, step), count in np.ndenumerate(counts):
    axes.text(step, row, count, ha="center", va="center")
axes.set(title="programs compiled", xlabel="step", xticks=range(10))
axes.set_yticks(range(8), compiled);

# %% [markdown]
# *A number that is multiplied* is harmless: torch_xla passes it to the program as an input. (Except 0, 1 and -1, which it makes constants.) *A number that says where or how* (a shift, a slice, an exponent) is part of the program, so each value needs a new one. So does each *shape* of a batch. *A value that is read* cuts the step into two programs; they are found again, but the chips wait for the host. An operation that XLA does not have also cuts the step.
#
# ## The machinery: which TPU
#
# Only this notebook imports torch_xla, so only this notebook changes with its successor (TorchTPU is announced). The PCI bus lists the chips of the machine even while another program uses them.

# %%
#| export
XLA_PACKAGES = ("torch_xla", "libtpu")  # whose versions matter on a TPU
TPU_CHIPS = {  # PCI device: generation, memory per chip in GB
    "0x0027": ("v2 or v3", 0),  # 8 and 16 GB for each of a chip's two cores
    "0x005e": ("v4", 32),
    "0x0062": ("v5p", 95),
    "0x0063": ("v5e", 16),
    "0x006f": ("v6e", 32),
    "0x0076": ("v7", 192),
}


def xla(part: str = "") -> Any:
    "torch_xla, or a module of it, such as runtime."
    return importlib.import_module(f"torch_xla.{part}" if part else "torch_xla")


def tpu_chips() -> list[tuple[str, int]]:
    "The TPU chips in this machine: generation and memory in GB of each."
    found = []
    for vendor in sorted(Path("/sys/bus/pci/devices").glob("*/vendor")):
        if vendor.read_text().strip() == "0x1ae0":  # Google
            device = (vendor.parent / "device").read_text().strip()
            found += [TPU_CHIPS[device]] if device in TPU_CHIPS else []
    return found


def tpu_is_usable() -> bool:
    "Whether this machine has a TPU that `auto` can take; warns if torch_xla is missing."
    chips, version = tpu_chips(), installed("torch_xla")
    if chips and not version:
        warnings.warn("this machine has a TPU, but torch_xla is not installed", stacklevel=2)
    return bool(chips and version)


# %% [markdown]
# ### Why it does not start
#
# A TPU that does not start prints pages of text. We replace each known cause by one line with its remedy. Where possible we check before the runtime starts, because without a TPU the runtime ends the whole process instead of raising an error. For other causes the line has the first line of the error, and the usual remedy.

# %%
#| export
def why_no_xla(
    environ: MutableMapping[str, str], chips: int, torch_version: str, xla_version: str | None
) -> str:  # empty: it can
    "Why a machine cannot use its TPU chips, and the remedy; no `xla_version`: not installed."
    runtime = environ.get("PJRT_DEVICE") or "TPU"
    own = [v.split("+")[0].rsplit(".", 1)[0] for v in (torch_version, xla_version or "")]
    there = where(environ).tpu
    if not xla_version:
        todo = "install torch==2.9.0 torch_xla[tpu]==2.9.0 in an environment of their own"
        image = "this image should bring it" if chips else f"images for TPUs bring it ({there})"
        return f"torch_xla is not installed; {image}; elsewhere {todo}, or use --device cpu"
    if own[0] != own[1]:
        why = f"torch {torch_version} and torch_xla {xla_version} do not belong together"
        todo = "delete this runtime and start a fresh one"
        return f"{why}; one was installed over the image's: {todo}"
    if runtime == "TPU" and not chips:
        todo = "use --device auto to train without, or set PJRT_DEVICE=CPU to try XLA on the CPU"
        return f"this machine has no TPU; {there}; {todo}"
    if runtime not in ("TPU", "CPU"):
        return f"PJRT_DEVICE={runtime} is another kind of runtime; remove it or use --device cuda"
    return ""


# %%
print(why_no_xla({"COLAB_RELEASE_TAG": "x"}, 0, "2.9.0", None))
print(why_no_xla({}, 1, "2.13.0+cu130", "2.9.0"))
print(why_no_xla({"KAGGLE_KERNEL_RUN_TYPE": "Batch"}, 0, "2.8.0", "2.8.1"))


# %% [markdown]
# ### Starting it
#
# One process drives all chips (SPMD): a batch is cut along its first dimension and each chip gets its part; everything else is copied to every chip. Sums over the batch, those of batch norm among them, are sums over all chips, so the result does not depend on their number.
#
# Kaggle's TPU machines set two variables of an older kind of TPU. With them the runtime waits for workers that do not exist ("Expected 4 worker addresses, got 1"), so we remove them before it starts. On a real TPU pod the same variables hold valid addresses. Therefore we remove them on Kaggle, and elsewhere only if the first holds the word "local".

# %%
#| export
def _start_xla(num_devices: int) -> Any:
    "Start the runtime and return the mesh of its chips; UserError with the reason if it fails."
    if where().name == "kaggle" or os.environ.get("TPU_PROCESS_ADDRESSES") == "local":
        for name in ("TPU_PROCESS_ADDRESSES", "CLOUD_TPU_TASK_ID"):
            os.environ.pop(name, None)
    dev = Path("/dev")
    chips = len(tpu_chips()) or len([*dev.glob("accel[0-9]*"), *dev.glob("vfio/[0-9]*")])
    if why := why_no_xla(os.environ, chips, torch.__version__, installed("torch_xla")):
        raise UserError(f"device=xla: {why}")
    os.environ.setdefault("PJRT_DEVICE", "TPU")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # else a warning per compiled program
    try:
        runtime, sharding = xla("runtime"), xla("distributed.spmd")
        if not runtime.is_spmd():
            runtime.use_spmd()
        there = runtime.global_runtime_device_count()
    except (RuntimeError, ImportError, OSError) as error:
        todo = "stop the other notebook or program that uses the TPU, or restart the session"
        why = f"the TPU runtime does not start: {reason(error)}"
        raise UserError(f"device=xla: {why}; {todo}") from None
    if num_devices not in (0, there):
        raise UserError(f"num_devices={num_devices}: this runtime has {there} devices; use {there}")
    return sharding.Mesh(np.arange(there), (there,), ("data",))


# %% [markdown]
# ### Counting programs
#
# torch_xla counts what it compiles. We print it, because nothing else explains a first step of a minute. A phase may compile in its first two steps, because the second one may start from tensors that the first has made. A later program is a fault, and we warn with the most likely reason.

# %%
#| export
def xla_counts() -> dict[str, float]:
    "Programs that torch_xla has compiled in this process, or found in its cache on the disk."
    metrics = xla("debug.metrics")
    names = {"programs": "UncachedCompile", "cache_hits": "PersistentCacheHit"}
    counts = {name: metrics.counter_value(counter) or 0 for name, counter in names.items()}
    compiling = metrics.metric_data("CompileTime")
    return counts | {"compile_seconds": round(compiling[1] / 1e9, 1) if compiling else 0.0}


def host_operations() -> Counter[str]:
    "How often operations that XLA does not have ran on the host instead."
    metrics = xla("debug.metrics")
    names = (name for name in metrics.counter_names() if name.startswith("aten::"))
    return Counter({name: metrics.counter_value(name) for name in names})


class _Programs:
    "Prints which step compiles, and warns of a program after the second step of a phase and shape."

    def __init__(self) -> None:
        self.phase = "first"
        self.steps: dict[str, int] = {}  # run so far, by phase and kind
        self.batches: dict[str, list[str]] = {}  # the first batches of each phase: shapes and types
        self.last_batch = ""  # the same of the last batch
        self.host_ops = Counter[str]()  # operations on the host up to the last step

    def note_batch(self, batch: Any, shapes: int) -> None:
        "Note a batch's shapes and types; `shapes` different ones in a phase cause no warning."
        self.last_batch = ", ".join(f"{x.dtype} {tuple(x.shape)}" for x in batch)
        batches = self.batches.setdefault(self.phase, [])
        if self.last_batch not in batches and len(batches) < shapes:
            batches.append(self.last_batch)

    @contextlib.contextmanager
    def running(self, what: str = "step") -> Iterator[None]:
        "Watch the recorded operations run."
        name, early = f"{self.phase} {what}", xla_counts()
        known = self.last_batch in self.batches.get(self.phase, [self.last_batch])
        key, start = f"{name} {self.last_batch if known else ''}", time.perf_counter()
        count = self.steps.get(key, 0 if known else 2)
        text = f"  compiling the {name}, which happens once"
        slow = heartbeat(lambda s: print(f"{text}: {s:.0f} s so far", flush=True), every=20.0)
        with contextlib.nullcontext() if count else slow:  # a later step may be slow itself
            yield
        self.steps[key] = count + 1
        host = host_operations()
        new, self.host_ops = host - self.host_ops, host
        if xla_counts()["programs"] == early["programs"]:
            return
        seconds = time.perf_counter() - start
        if count >= 2:
            warnings.warn(f"XLA compiled the {name} again: {self.reason(new)}", stacklevel=2)
        elif seconds > 1:
            print(f"  compiled the {name} in {seconds:.0f} s", flush=True)

    def reason(self, host: Counter[str]) -> str:  # operations of this step on the host
        "The most likely reason why a program was compiled again."
        if self.last_batch not in (first := self.batches.get(self.phase, [self.last_batch])):
            return f"the batch was {' or '.join(first)} and is {self.last_batch}"
        if host:
            return f"{', '.join(sorted(host))} ran on the host"
        return "the step recorded other operations; XLA_FLAGS=--xla_dump_to=DIR keeps every program"


# %% [markdown]
# ### The device
#
# Every TPU has bfloat16. By default it rounds the inputs of float32 products too, so we request exact ones. How a tensor lies on the chips is its *sharding*: the model and the optimizer are copied to every chip, a batch is cut along its first dimension. We mark each tensor with its sharding. If the outputs of a step had no mark, the step would be compiled twice, because they are the inputs of the next one. `read` evaluates all requested tensors in one program; read one by one, each would be a program that computes the shared operations again. Compiled programs can be kept for the next session.

# %%
#| export
class Xla(Device):
    "All chips of a TPU, or virtual devices on the CPU, as one device."

    kind = "xla"
    layout = torch.contiguous_format
    compiles = True
    precisions = ("bf16", "fp32")

    def __init__(self, precision: str = "auto", num_devices: int = 0) -> None:
        self.mesh = _start_xla(num_devices)
        self.world, self.programs = self.mesh.mesh_shape[0], _Programs()
        super().__init__(precision)

    def chip(self) -> str:
        "Number and kind of the chips."
        if xla("runtime").device_type() == "CPU":
            return f"{counted(self.world, 'virtual device')} on the CPU ({cpu_name()})"
        generation, memory = (tpu_chips() or [("of unknown kind", 0)])[0]
        return f"{self.world} TPU {generation}" + (f", {memory} GB each" if memory else "")

    def fastest(self) -> str:
        "bf16: every TPU has it."
        return "bf16"

    def set_precision(self, precision: str) -> None:
        "Compute in bf16 or fp32; by default a TPU rounds the inputs of a float32 product too."
        super().set_precision(precision)
        xla()._XLAC._xla_set_mat_mul_precision("highest" if precision == "fp32" else "default")

    def mark(self, value: Tensor, *first: str | None) -> Tensor:
        "Mark how a tensor lies on the chips: cut along its first dimension, or copied to each."
        axes = (first + (None,) * value.dim())[: value.dim()]
        xla("distributed.spmd").mark_sharding(value, self.mesh, axes)
        return value

    def marked(self, value: Tensor) -> Tensor:
        "A tensor that is marked; one without a mark is copied to each chip."
        return value if xla()._XLAC._get_xla_sharding_spec(value) else self.mark(value)

    def to_device(self, model: nn.Module) -> nn.Module:
        "Put a model on every chip."
        model = model.to(self.name)
        for value in (*model.parameters(), *model.buffers()):
            self.mark(value)
        return model

    def number(self, value: float) -> Tensor:  # 0-d
        "A number as an input of the compiled step; some constants compile it again for each value."
        return self.mark(torch.tensor(value).to(self.name))

    def transfer_batch(self, batch: T) -> T:
        "Cut a batch among the chips."
        self.programs.note_batch(batch, self.num_shapes)
        return super().transfer_batch(batch)

    def copy(self, value: Tensor) -> Tensor:
        "Cut a tensor of a batch among the chips; copy a single number to each."
        return self.mark(value.to(self.name), "data")

    def split(self, value: Tensor, size: int) -> list[Tensor]:
        "Cut a tensor of a batch into parts, each of which is again cut among the chips."
        parts = super().split(value, size)
        return [self.mark(x, "data") for x in parts] if value.device.type == self.kind else parts

    def read(self, value: T) -> T:
        "Bring tensors to the host, computed as one program; chips with parts exchange them first."
        with self.programs.running():
            marked = each_tensor(value, self.marked)
            xla().sync()
            return super().read(marked)

    def begin(self, phase: str, model: nn.Module, optimizer: optim.Optimizer | None = None) -> Any:
        "Mark the optimizer's tensors and run all that is recorded, so that a phase is one program."
        self.programs.phase = phase
        states = optimizer.state.values() if optimizer else ()
        values = [v for state in states for v in state.values() if isinstance(v, Tensor)]
        for value in (*model.parameters(), *model.buffers(), *values):
            if value.device.type == self.kind:
                self.marked(value)
        xla().sync()
        return model

    def end_part(self, model: nn.Module) -> None:
        "Run the part by itself: in one program with the others, all might lie in memory at once."
        for gradient in (w.grad for w in model.parameters() if w.grad is not None):
            self.mark(gradient)
        with self.programs.running("part"):
            xla().sync()

    def end_step(self) -> None:
        "Run all that the step has recorded."
        with self.programs.running():
            xla().sync()

    def seed(self, seed: int, step: int) -> None:
        "Seed the chips' random numbers too."
        super().seed(seed, step)
        xla().manual_seed(torch.initial_seed() % 2**31)

    def cache_programs(self, folder: Path) -> None:
        "Keep compiled programs in a folder that can be written, unless one is set already."
        started = xla()._XLAC._xla_computation_cache_is_initialized()
        if started or os.environ.get("XLA_PERSISTENT_CACHE_PATH"):
            return
        with contextlib.suppress(OSError):  # then they are compiled again
            folder.mkdir(parents=True, exist_ok=True)
            xla("runtime").initialize_cache(str(folder))

    def facts(self) -> dict[str, Any]:
        "Programs compiled so far, the seconds it took, and programs found in the cache."
        return {"xla": xla_counts()}


# %% [markdown]
# Without a TPU, opening the device raises an error with the reason. With one we see the number of chips, and what has been compiled:

# %%
try:
    print(Xla().world, xla("version").__version__, xla_counts(), host_operations())
except UserError as error:
    print(error)

# %% [markdown]
# ## Questions
#
# 1. Which of these compile a new program: a new learning rate, a new batch size, `if loss > 1:`?
#    <details><summary>Answer</summary>The batch size does: each shape is a new program. The learning rate does not, if it is an input of the program (<code>Device.number</code> makes sure that it is one). <code>if loss &gt; 1:</code> reads the loss, cuts the step in two, and compiles again when the decision first changes.</details>
# 2. The last batch of an epoch has 3 images instead of 4. What does that cost, and what would you do?
#    <details><summary>Answer</summary>A program of its own, which is compiled once: seconds to minutes for one step. Leave these images out, as our training does, or fill the batch with copies that do not count, as our evaluation does.</details>
