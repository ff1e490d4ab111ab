# %% [markdown]
# # Devices, and one step
#
# > One class hides what differs between CPU, NVIDIA GPU and Apple GPU, so the training loop is the same on all.
#
# A loop with `if cuda:` in every second line is hard to read, and one machine runs only some of its branches. So the differences between chips are in one class, `Device`. It is complete for the CPU; `Cuda`, `Mps` and `Xla` override the few methods in which they differ. The page ends with a surprise: one busy program beside a run makes a CPU more than 50 times slower. Two rules keep the loop fast and portable:
#
# - **No hidden synchronisation.** In a step or an evaluation only `read` copies from the device to the host. It counts its calls, and a test asserts one read per log line and one per epoch. (float16 is the exception: torch's `GradScaler` reads a flag in every step.)
# - **No float64 on a device.** MPS has none. Constants and sums are float32.

# %%
#| hide
#| default_exp device
import matplotlib.pyplot as plt

from mshnet.device import explained, open_device, update

# %%
#| export
import contextlib
import ctypes
import math
import os
import platform
import random
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil
import torch
from torch import Tensor, nn, optim

from mshnet.core import Settings, UserError, counted, reason, resolve

# %% [markdown]
# ## A loop that runs on every device
#
# Only the calls of `device` differ between chips. The loop adds up the losses on the device and reads the sum every fifth step:

# %%
device = open_device("cpu", "fp32")
model = device.to_device(nn.Linear(8, 1))
optimizer, total = optim.SGD(model.parameters(), lr=0.1), torch.zeros(())
forward = device.begin("full", model, optimizer)  # "full" names this phase of a training
for step in range(10):
    image = device.transfer(torch.ones(4, 8))
    with device.autocast():
        loss = (forward(image) - 1).square().mean()
    update(device, loss, optimizer)
    total += loss.detach()
    if step % 5 == 4:
        device.read(total)
print(f"10 steps, {device.reads} reads")

# %% [markdown]
# Why is a read worth counting? The host only queues operations, and an accelerator computes them later. A read waits for all operations before it. Suppose that the host needs 2 units of time to prepare a step, and the chip 3 units to compute it:

# %%
figure, axes = plt.subplots(2, 1, sharex=True, figsize=(7, 2.8), layout="constrained")
for axis, every in zip(axes, (1, 5), strict=True):
    host = chip = 0
    for step in range(10):
        axis.broken_barh([(host, 2)], (1.1, 0.8), color="C0", ec="w")
        host += 2
        start = max(host, chip)  # the chip begins when both are ready
        axis.broken_barh([(start, 3)], (0.1, 0.8), color="C1", ec="w")
        chip = start + 3
        if step % every == every - 1:
            host = chip  # a read: the host waits
    axis.set(yticks=[0.5, 1.5], yticklabels=["chip", "host"])
    axis.set_title(f"steps per read: {every}; time: {chip} units", fontsize=10)
axes[1].set_xlabel("time, in units");

# %% [markdown]
# Ten steps take 50 units with a read in every step: host and chip alternate, and the chip waits 2 units each time. With a read every five steps they take 34, because the chip waits only at the start and after a read.
#
# ## The device
#
# Training calls these methods in this order: `to_device` for the model, `begin` for each epoch and each evaluation, `transfer_batch` and `autocast` for each batch (the loop above has a single tensor, so it calls `transfer`), `end_step` inside of `update`, and `read` at log lines and at the end. A batch is a named tuple of tensors. A prediction is a tensor, or tensors in tuples, lists and dictionaries; `each_tensor` changes all of them, and `read` uses it. Several processes may share each batch. They exchange values through `device.ranks`; the page on [ranks](32_ranks.ipynb) has its class.
#
# bfloat16 is faster than float32 where the chip has instructions for it, and slower where it is emulated. `precision=auto` takes it only in the first case. The loss is float32 in every case. Older GPUs have float16 instead. Its smallest number is 6e-8, and many gradients are smaller. So the loss is multiplied before the backward pass and the gradients divided after it, by a factor that `GradScaler` finds and a checkpoint keeps.

# %%
#| export
PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
T = TypeVar("T")


class Device:
    "A CPU, complete; other devices override what differs."

    kind = "cpu"
    world = 1  # parts that a batch is cut into: one per chip
    layout = torch.channels_last  # of images in memory
    compiles = False  # whether a batch of another shape costs a compilation
    num_shapes = 1  # different shapes of batches that a run will have
    precisions: tuple[str, ...] = tuple(PRECISIONS)  # that it can compute in
    split: Callable[..., Any] = staticmethod(Tensor.split)  # a tensor of a batch, into parts

    def __init__(self, precision: str = "auto", index: int | None = None) -> None:
        self.name = self.kind if index is None else f"{self.kind}:{index}"  # as torch writes it
        self.ranks = OneProcess()  # or those of torchrun
        self.reads = 0
        self.micro_batch = 0  # images computed at once; 0: the whole batch
        self.busy, self.last_check, self.message = 0.0, -math.inf, ""  # see `share_cores`
        self.set_precision(self.fastest() if precision == "auto" else precision)

    @property
    def description(self) -> str:
        "One line: device, precision, chip."
        several = f"{self.ranks.count} processes, each " if self.ranks.count > 1 else ""
        return f"{self.name}, {self.precision}: {several}{self.chip()}"

    def chip(self) -> str:
        "The chip's name as people write it."
        return f"{cpu_name()}, {counted(torch.get_num_threads(), 'thread')}"

    def fastest(self) -> str:
        "The precision that `auto` stands for: bf16 where convolutions have instructions for it."
        asks = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
        native = any(getattr(torch.cpu, ask, lambda: False)() for ask in asks)
        return "bf16" if native else "fp32"

    def set_precision(self, precision: str) -> None:
        "Compute in bf16, fp16 or fp32: a run that is resumed elsewhere keeps its own."
        if precision not in self.precisions:
            todo = f"use {' or '.join(self.precisions)}, or another --device"
            raise UserError(f"precision={precision}: not on {self.name}; {todo}")
        self.precision, self.dtype = precision, PRECISIONS[precision]
        scaled = precision == "fp16"
        self.scaler = torch.amp.GradScaler(self.kind if scaled else "cpu", enabled=scaled)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        "The precision of the forward pass."
        half = self.dtype != torch.float32
        return torch.autocast(self.kind, self.dtype if half else None, enabled=half)

    def to_device(self, model: nn.Module) -> nn.Module:
        "Put a model on the device, its images' weights in the device's memory layout."
        model = self.ranks.convert(model).to(self.name)
        for value in (v for v in (*model.parameters(), *model.buffers()) if v.ndim == 4):
            value.data = value.data.to(memory_format=self.layout)  # with its strides
        return model

    def number(self, value: float) -> float | Tensor:
        "A number that changes from step to step, such as a learning rate; on a TPU a tensor."
        return value

    def transfer_batch(self, batch: T) -> T:
        "Put the tensors of a batch, a named tuple, on the device."
        return type(batch)(*map(self.transfer, batch))  # type: ignore[call-overload]

    def transfer(self, value: Tensor) -> Tensor:
        "Put a tensor of a batch on the device, images in the device's memory layout."
        return self.copy(value.contiguous(memory_format=self.layout) if value.ndim == 4 else value)

    def copy(self, value: Tensor) -> Tensor:
        "Copy a tensor of the host to the device."
        return value.to(self.name)

    def read(self, value: T) -> T:
        "Bring the tensors of a nested value to the host: the way back within a step; counted."
        self.reads += 1
        return each_tensor(value, Tensor.cpu)  # type: ignore[no-any-return]

    def begin(self, phase: str, model: nn.Module, optimizer: optim.Optimizer | None = None) -> Any:
        "Prepare the steps of a phase (no optimizer: of evaluation); the model as a step calls it."
        return self.ranks.wrap(phase, model) if optimizer else model

    def end_part(self, model: nn.Module) -> None:
        "Finish the backward pass of a part of a batch; its gradients stay for the next part."

    def end_step(self) -> None:
        "Finish a step after the update of its weights."

    def seed(self, seed: int, step: int) -> None:
        "Seed all random numbers for a step of the run: different ones in each step and process."
        own = int(np.random.SeedSequence([seed, step, self.ranks.rank]).generate_state(1)[0])
        gpu = {"cuda": torch.cuda.manual_seed_all, "mps": torch.mps.manual_seed}.get(self.kind)
        for set_seed in (torch.default_generator.manual_seed, np.random.seed, random.seed, gpu):
            if set_seed:  # torch.manual_seed takes a millisecond where there is no GPU
                set_seed(own)

    def cache_programs(self, folder: Path) -> None:
        "Keep compiled programs in a folder, for the next session."

    def facts(self) -> dict[str, Any]:
        "Facts of the device's work for an epoch's log line."
        busy = {"threads": torch.get_num_threads(), "busy_cores": round(self.busy, 1)}
        return busy if self.kind == "cpu" else {}


def each_tensor(value: Any, change: Callable[[Tensor], Any]) -> Any:
    "A nested value with each of its tensors changed."
    if isinstance(value, Tensor):
        return change(value.detach())
    if isinstance(value, dict):
        return {k: each_tensor(v, change) for k, v in value.items()}
    if isinstance(value, list | tuple):
        made = [each_tensor(v, change) for v in value]
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    return value


def _any(test: Callable[[Tensor], Tensor], value: Any) -> bool:
    "Whether the test holds for any number in the tensors of a nested value."
    found: list[bool] = []
    each_tensor(value, lambda x: found.append(bool(test(x).any())))
    return any(found)


class OneProcess:
    "The process of a run that has only one."

    count, rank = 1, 0  # each process feeds and scores its own part of a batch

    def convert(self, model: nn.Module) -> nn.Module:
        "The model with layers that take their statistics over all processes."
        return model

    def wrap(self, phase: str, model: Any) -> Any:
        "The model as it is trained in a phase."
        return model

    def shard(self, plan: list[list[int]]) -> list[list[int]]:
        "This process's rows of each batch: together they are the batch, in order."
        return plan

    def mean(self, value: Tensor) -> Tensor:
        "Mean over all processes."
        return value

    def all_gather(self, value: T) -> list[T]:
        "The values of all processes, in the order of their ranks."
        return [value]

    def rank_zero(self, work: Callable[[], T]) -> T:
        "Run work in the first process only; all get its result, or its error."
        return work()

    def barrier(self) -> Callable[[], object]:
        "A call that waits for all processes, up to 7 days; each must create it before the work."
        return lambda: None

    def any_rank(self, request: str, now: bool) -> str:
        "A stop request of any process, or an empty text; processes exchange it only if `now`."
        return request

    def assert_in_sync(self, model: nn.Module) -> None:
        "UserError unless all processes hold the same model to the last bit."


# %% [markdown]
# ## A step
#
# These lines are the same on every device. With `micro_batch`, a batch that does not fit into the memory is computed in parts; only the last part is followed by the update. A network that has barely been trained can have activations beyond 65,504, where float16 ends: such a prediction is computed again in float32. If that is NaN or infinite too, we raise an error.

# %%
#| export
def parts_of(device: Device, batch: T) -> list[T]:
    "The batch whole, or cut into micro-batches."
    if not device.micro_batch:
        return [batch]
    size = device.micro_batch // device.ranks.count
    cuts = zip(*(device.split(x, size) for x in batch), strict=True)  # type: ignore[attr-defined]
    return [type(batch)(*cut) for cut in cuts]


def update(device: Device, loss: Tensor, optimizer: optim.Optimizer, clip: float = 0.0) -> None:
    "Backward pass and step of the optimizer; `clip` shortens longer gradients (0: none)."
    device.scaler.scale(loss).backward()
    if clip:
        device.scaler.unscale_(optimizer)
        params = [p for group in optimizer.param_groups for p in group["params"]]
        nn.utils.clip_grad_norm_(params, clip)
    device.scaler.step(optimizer)
    device.scaler.update()
    optimizer.zero_grad(set_to_none=True)
    device.end_step()


def infer(device: Device, forward: Callable[[], T]) -> T:  # on the host
    "The result of a forward pass without gradients; UserError if it holds NaN or +inf."
    with torch.no_grad(), device.autocast():
        result = device.read(forward())
    if device.precision == "fp16" and _any(lambda x: ~x.isfinite(), result):
        with torch.no_grad():
            result = device.read(forward())
    if _any(lambda x: x.isnan() | x.isposinf(), result):  # a log-probability may be -inf
        todo = "take an earlier checkpoint, or train with a smaller --lr"
        raise UserError(f"the prediction is NaN or infinite, because the weights are; {todo}")
    return result


def workers(device: Device, asked: int) -> int:
    "Threads that make batches: -1 means none on a CPU, whose cores all compute, else up to 8."
    usual = 0 if device.kind == "cpu" else max(1, min(8, core_count() - 1))
    return asked if asked >= 0 else usual


# %% [markdown]
# ## The machinery: GPUs
#
# A CUDA build of PyTorch contains binaries for a list of compute capabilities. Old generations disappear first: from torch 2.8 on, only the builds for CUDA 12.6 support GPUs of compute capability below 7.0. torch finds such a GPU all the same and fails in the first operation, so we try one when the GPU is opened. torch's own warning, which the doctor repeats, names the build to install.
#
# `Cuda` checks whether bfloat16 is native. (A T4 reports that it supports bfloat16, but only emulates it.) It computes float32 without rounding the inputs to the ten bits of TF32, and copies batches while the GPU computes. MPS, the GPU of an Apple chip, computes in float32 by default and keeps the usual memory layout, because channels-last has been a source of errors there.

# %%
#| export
class Cuda(Device):
    "An NVIDIA GPU."

    kind = "cuda"

    def __init__(self, precision: str = "auto", index: int | None = None) -> None:
        if not torch.cuda.is_available():
            raise UserError("device=cuda: torch finds no NVIDIA GPU; use --device cpu")
        try:
            torch.ones(1, device=f"cuda:{index or 0}").add_(1)
        except RuntimeError as error:  # such as an index that no GPU has
            todo = "see mshnet doctor, or use --device cpu"
            raise UserError(f"device=cuda:{index or 0}: {reason(error)}; {todo}") from None
        super().__init__(precision, index)

    def chip(self) -> str:
        "Name and memory of the GPU."
        facts = torch.cuda.get_device_properties(self.name)
        return f"{facts.name}, {facts.total_memory / 2**30:.0f} GB"

    def fastest(self) -> str:
        "bf16 (compute capability 8), else fp16 where there are units for it (7), else fp32."
        with torch.cuda.device(self.name):
            if torch.cuda.is_bf16_supported(including_emulation=False):
                return "bf16"
        return "fp16" if torch.cuda.get_device_capability(self.name) >= (7, 0) else "fp32"

    def set_precision(self, precision: str) -> None:
        "Compute in bf16, fp16 or exact fp32."
        super().set_precision(precision)
        if precision == "fp32":
            with warnings.catch_warnings(action="ignore"):  # torch 2.9 has newer names for these
                torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False

    def copy(self, value: Tensor) -> Tensor:
        "Copy from pinned memory, without waiting for it; a tensor on a GPU needs none."
        return (value if value.is_cuda else value.pin_memory()).to(self.name, non_blocking=True)


class Mps(Device):
    "The GPU of an Apple chip."

    kind = "mps"
    layout = torch.contiguous_format
    precisions = ("bf16", "fp32")

    def __init__(self, precision: str = "auto", index: int | None = None) -> None:
        if not torch.backends.mps.is_available():
            why = "this machine has no Apple GPU that torch can use"
            raise UserError(f"device=mps: {why}; use --device cpu")
        super().__init__(precision, index)

    def fastest(self) -> str:
        "fp32: in bf16 it was not tried."
        return "fp32"


# %% [markdown]
# ### The optimizer
#
# torch's optimizers take a learning rate that changes from step to step. On a TPU we change two things:
#
# - A Python number may become a constant of the compiled step, and then every new learning rate is a new program to compile. So the learning rate is a 0-d tensor there (`device.number`). Adam accepts a tensor with `capturable=True`. Adagrad does not, so the few lines of its update are here.
# - The optimizer's state is made before the first step, because a step that makes its state is a different program from a step that finds it.

# %%
#| export
class _Adagrad(optim.Adagrad):
    "torch's Adagrad, whose rate may also be a 0-d tensor."

    def step(self, closure: Any = None) -> Any:
        "One update, from gradients that are there."
        if not isinstance(self.param_groups[0]["lr"], Tensor):
            return super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for weight in (p for p in group["params"] if p.grad is not None):
                    grad, state = weight.grad, self.state[weight]
                    if group["weight_decay"]:
                        grad = grad.add(weight, alpha=group["weight_decay"])
                    state["sum"].addcmul_(grad, grad)
                    weight.sub_(group["lr"] * grad / (state["sum"].sqrt() + group["eps"]))
        return None


OPTIMIZERS: dict[str, Any] = {"adagrad": _Adagrad, "adam": optim.Adam, "adamw": optim.AdamW}


def make_optimizer(
    name: str,  # of OPTIMIZERS
    groups: list[dict[str, Any]],  # parameters on their device, each group with its learning rate
    weight_decay: float = 0.0,
) -> optim.Optimizer:
    "An optimizer whose learning rate may change in every step, on any device."
    weights = [weight for group in groups for weight in group["params"]]
    capturable = weights[0].device.type == "xla" and name != "adagrad"
    options = {"capturable": True} if capturable else {}
    optimizer = OPTIMIZERS[name](groups, weight_decay=weight_decay, **options)
    for weight in weights if capturable else ():
        step = torch.zeros((), device=weight.device)
        moments = {key: torch.zeros_like(weight) for key in ("exp_avg", "exp_avg_sq")}
        optimizer.state[weight] = {"step": step, **moments}
    return optimizer


# %% [markdown]
# ### The device of a run
#
# `auto` takes the best device of the machine. Under torchrun each process opens one device, a GPU or the CPU, and shares each batch with the others.

# %%
#| export
DEVICES = {  # text, so that a device's notebook is imported where it is used
    "cpu": "mshnet.device:Device",
    "cuda": "mshnet.device:Cuda",
    "mps": "mshnet.device:Mps",
    "xla": "mshnet.xla:Xla",
}


def started_processes() -> int:  # 0: not started by torchrun
    "How many processes torchrun started; UserError if only some of its variables are set."
    missing = {"RANK", "WORLD_SIZE", "LOCAL_RANK"} - os.environ.keys()
    if "RANK" in os.environ and missing:
        raise UserError(f"RANK is set, but not {min(missing)}: start by torchrun, or unset RANK")
    return int(os.environ["WORLD_SIZE"]) if not missing else 0


def best_device() -> str:
    "The name of the best device of this machine."
    if resolve("mshnet.xla:tpu_is_usable")():
        return "xla"
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def open_device(
    name: str = "auto",  # auto, cpu, cuda, cuda:N, mps or xla
    precision: str = "auto",  # auto, bf16, fp16 or fp32
    num_devices: int = 0,  # of xla: chips that share a batch; 0: all
    shared: bool = True,  # with the other processes of torchrun
) -> Device:
    "The device of a run; UserError with the remedy if this machine has none."
    kind, _, index = (best_device() if name == "auto" else str(name)).partition(":")
    if kind not in DEVICES or not (index or "0").isdigit():
        raise UserError(f"device={name}: use auto, cpu, cuda, cuda:N, mps or xla")
    several = started_processes() if shared else 0
    if kind == "xla" and several > 1:
        raise UserError("device=xla: one process drives all chips; start it without torchrun")
    if kind == "xla":
        return resolve(DEVICES[kind])(precision, num_devices)  # type: ignore[no-any-return]
    if several and num_devices not in (0, several):
        raise UserError(f"num_devices={num_devices}: torchrun started {several}; leave it out")
    if several and (kind == "mps" or index):
        raise UserError(f"device={name}: several processes share cuda or cpu; use one of these")
    if several and kind == "cuda":
        index = os.environ["LOCAL_RANK"]
        if int(index) >= (there := torch.cuda.device_count()):
            todo = f"start {there}" if there else "use --device cpu"
            raise UserError(f"{several} processes: this machine has {there} GPUs; {todo}")
    device: Device = resolve(DEVICES[kind])(precision, int(index) if index else None)
    if kind == "cpu":
        share_cores(device)
    if several:
        device.ranks, device.world = resolve("mshnet.ranks:Ranks")(device), several
        device.set_precision(device.ranks.rank_zero(lambda: device.precision))  # GPUs may differ
    return device


def _check_batch(device: Device, size: int, name: str = "batch_size") -> None:
    "UserError unless every chip gets the same number of images of a batch, or of a part of one."
    if size % device.world:
        low = size // device.world * device.world
        near = " or ".join(str(n) for n in (low, low + device.world) if n)
        raise UserError(f"{name}={size} cannot be shared by {device.world} devices: use {near}")


def device_for(config: Settings) -> Device:
    "The device of a run, which must be able to share its batch; UserError if not."
    if config.deterministic or _CHOSEN.get("deterministic"):  # by an earlier run
        # switch deterministic operations on, or off again after such a run
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        on = _CHOSEN["deterministic"] = config.deterministic
        torch.use_deterministic_algorithms(on, warn_only=True)  # of one without a substitute
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.backends.cudnn.benchmark = False
        if torch.get_num_threads() == _CHOSEN["threads"]:  # by `share_cores`: it changes with load
            torch.set_num_threads(USUAL_THREADS)
    device = open_device(config.device, config.precision, config.num_devices)
    if device.kind == "cpu":
        _hold_memory()
    _check_batch(device, config.batch_size)
    device.micro_batch = config.micro_batch if config.micro_batch < config.batch_size else 0
    _check_batch(device, device.micro_batch, "micro_batch")
    return device


# %% [markdown]
# ### Out of memory
#
# We translate two of PyTorch's errors: out of memory, with the setting to lower, and a TPU without a queue. torch's first backward pass makes one queue per device, so the TPU has none if the process trained on a different device before torch_xla was loaded. Below we raise the first, with the text of a GPU's error:

# %%
try:
    with explained(device, Settings(batch_size=4)):
        raise RuntimeError("CUDA out of memory")
except UserError as error:
    print(error)

# %%
#| export
NO_MEMORY = ("out of memory", "CPUAllocator", "buffer size", "RESOURCE_EXHAUSTED", "ALLOC_FAILED")


def is_out_of_memory(error: Exception) -> bool:
    "Whether an error of torch means out of memory: its class varies, its words do not."
    return isinstance(error, MemoryError) or any(word in str(error) for word in NO_MEMORY)


@contextlib.contextmanager
def explained(device: Device, config: Settings) -> Iterator[None]:
    "Turn torch's errors of known cause into a UserError with the remedy."
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if "device_ready_queues" in str(error):
            why = "this process has trained on another device before XLA was loaded"
            todo = "restart the kernel and begin with the TPU"
            raise UserError(f"device=xla: {why}; {todo}") from None
        if not is_out_of_memory(error):
            raise
        raise UserError(_smaller(device, config)) from None


def _smaller(device: Device, config: Settings) -> str:
    "The line of a batch that does not fit, with its remedy."
    name = "micro_batch" if device.micro_batch else "batch_size"
    size = device.micro_batch or config.batch_size
    less = size // 2 // device.world * device.world
    remedy = f"use --{name.replace('_', '-')} {less}" if less else f"use a smaller {config.smaller}"
    if less and not device.micro_batch:
        remedy += f", or in training compute it in parts by --micro-batch {less}"
    return f"{name}={size}: does not fit into the memory of {device.name}; {remedy}"


# %% [markdown]
# ### A CPU that is not alone
#
# torch splits each operation among threads, and at its end they wait for each other. A waiting thread *spins*: it checks again and again instead of sleeping, because the next operation comes in microseconds. But if another program has taken the core of one thread, the others spin for nothing until the system gives it back, a few milliseconds later, and a step has thousands of operations. With one busy program beside it, a training step on two cores takes 10 s instead of 0.16 s. Two remedies help: shorter spinning (1.7 s) and one thread per free core (0.25 s; [measured](../results/busy-machine/README.md)).
#
# Shorter spinning costs nothing on an idle machine. `import mshnet` sets it, unless you have set `OMP_WAIT_POLICY` or `GOMP_SPINCOUNT` or loaded torch before. One thread per free core helps even more. So a run on a CPU measures how busy other programs keep our cores, for 0.1 s before each epoch (a `Detector`: every three seconds), and uses as many threads as they leave. In a container with a quota of CPU time we count only as many cores as the quota allows. `OMP_NUM_THREADS`, `MKL_NUM_THREADS`, `torch.set_num_threads` (after the import of mshnet) and `--deterministic` keep the number that was set; then only `mshnet doctor` warns of other programs.
#
# On Linux a training also tunes glibc's allocator. Between two steps this allocator gives large blocks of memory back to the system, and gets the same blocks again, page by page and filled with zeros. This costs a tenth of a step's time, with large batches a quarter. So we keep these blocks for the next step, except single blocks of 48 MB and more, which would leave large holes.

# %%
#| export
USUAL_THREADS = torch.get_num_threads()  # that torch has chosen, or the user
FIX_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # variables by which a user sets their number
_CHOSEN: dict[str, int] = {"threads": USUAL_THREADS}  # by runs, for the whole process


def _own_cores() -> list[int]:
    "The cores that this process may run on."
    if not hasattr(psutil.Process, "cpu_affinity"):  # macOS
        return [*range(os.cpu_count() or 1)]
    return psutil.Process().cpu_affinity()


def core_count(group: Path = Path("/sys/fs/cgroup")) -> int:
    "How many cores this process may use at once: its own, or what a container's quota allows."
    count = len(_own_cores())
    with contextlib.suppress(OSError, ValueError):  # no file, or the word "max"
        most, period = map(int, (group / "cpu.max").read_text().split())
        count = min(count, max(1, math.ceil(most / period)))
    return count


def busy_cores(seconds: float = 0.1) -> float:  # 0 to the number of our cores
    "How many of our cores other programs keep busy, measured over `seconds`."
    start, used = time.monotonic(), time.process_time()
    percent = dict(enumerate(psutil.cpu_percent(seconds, percpu=True)))
    own = (time.process_time() - used) / (time.monotonic() - start)
    cores, count = _own_cores(), core_count()
    others = sum(percent.get(n, 0.0) for n in cores) / 100 - own
    return min(max(others - (len(cores) - count), 0.0), count)  # first on cores we do not need


def share_cores(device: Device, every: float = 3.0) -> None:
    """Use as many threads as other programs leave cores, unless the user has set the number.

    `device.message` gets a line on what changed. Does nothing if the device is no CPU, or if the
    last check was less than `every` seconds ago.
    """
    if device.kind != "cpu" or time.monotonic() - device.last_check < every:
        return
    count, now = core_count(), torch.get_num_threads()
    device.busy, device.last_check = busy_cores(), time.monotonic()
    best = min(USUAL_THREADS, max(1, count - round(device.busy)))
    by_user = now not in (USUAL_THREADS, _CHOSEN["threads"]) or os.environ.keys() & {*FIX_THREADS}
    if best != now and not by_user and not torch.are_deterministic_algorithms_enabled():
        torch.set_num_threads(best)
        _CHOSEN["threads"] = best
        busy = f"of {counted(count, 'core')} other programs keep {device.busy:.1f} busy"
        device.message = f"{busy}: {counted(best, 'thread')} from here on, {now} before"


def cpu_name() -> str:
    "The processor's name, as its maker writes it."
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine() or "CPU"


MMAP_MAX, TRIM, MMAP_FROM = -4, -1, -3  # of glibc's mallopt


def _hold_memory() -> None:
    "Keep freed memory in this process for its next step, if it has a glibc to tune."
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library or system
        tune = ctypes.CDLL(None).mallopt
        if tune(MMAP_FROM, 48 * 2**20) or tune(MMAP_MAX, 0):  # an old glibc refuses the first
            tune(TRIM, 2**31 - 1)

# %% [markdown]
# ## Questions
#
# 1. Why does float16 need a scaled loss, and bfloat16 not?
#    <details><summary>Answer</summary>float16 has 5 bits of exponent, so small gradients become 0. bfloat16 has the 8 bits of float32, and fewer digits.</details>
# 2. In the figure the host now needs 4 units to prepare a step, and the chip still needs 3. How long do ten steps take with a read in every step, and with a read every five steps?
#    <details><summary>Answer</summary>70 and 46 units. The host alone needs 40, so the chip waits for it in almost every step. Fewer reads help less here. Preparing batches in other threads helps more.</details>
