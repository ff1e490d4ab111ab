# %% [markdown]
# # device
#
# > One small class between the training loop and the chip: CPU, CUDA and Apple's MPS, each a few lines different from the last.

# %%
#| default_exp device

# %%
#| hide
from fastcore.test import expect_fail, test_eq

# %%
#| export
import contextlib
import platform
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from mshnet.core import UserError

# %% [markdown]
# The loop should read the same on every chip, and a chip's peculiarities should be found in one place. `Device` is complete for the CPU; the others say what differs. Two rules make code fast on all of them:
#
# - **Nothing comes back to the host unasked.** `read` is the only way, and it counts, so that a test can hold the loop to "one read per log line".
# - **No float64 on a device.** MPS has none. Constants are float32, counts are integers.
#
# ## Precision
#
# bfloat16 is faster than float32 where the chip has instructions for it, and slower where it only pretends. So `auto` asks for the instructions and not for the name. The loss is float32 in every case.

# %%
#| export
T = TypeVar("T")


class Device:
    "The CPU, and what other devices have in common with it."

    kind = "cpu"
    world = 1  # processes or chips that share a batch
    layout = torch.channels_last  # of images in memory

    def __init__(self, precision: str = "auto", index: int | None = None) -> None:
        self.reads = 0
        self.index = index
        fast = precision == "bf16" or (precision == "auto" and self.has_bf16())
        self.dtype = torch.bfloat16 if fast else torch.float32

    def has_bf16(self) -> bool:
        "Whether bfloat16 convolutions have instructions of their own."
        asks = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
        return any(getattr(torch.cpu, ask, lambda: False)() for ask in asks)

    @property
    def name(self) -> str:
        "The name that torch knows it by, such as cuda:1."
        return self.kind if self.index is None else f"{self.kind}:{self.index}"

    @property
    def precision(self) -> str:
        "bf16 or fp32."
        return "bf16" if self.dtype == torch.bfloat16 else "fp32"

    def chip(self) -> str:
        "What a person calls this chip."
        return f"{cpu_name()}, {torch.get_num_threads()} threads"

    @property
    def why(self) -> str:
        "One line: device, precision, chip."
        return f"{self.name}, {self.precision}: {self.chip()}"


# %% [markdown]
# What the loop needs of a device is little. First, ways to put a model and a batch there, and the way back:

# %%
#| export
class DeviceMemory(Device):
    "Ways to the device, and the one way back."

    def place(self, model: nn.Module) -> nn.Module:
        "Put a model on the device, in its memory layout."
        return model.to(self.name).to(memory_format=self.layout)  # type: ignore[call-overload]

    def feed(self, batch: T) -> T:
        "Put the tensors of a batch, a named tuple, on the device."
        return type(batch)(*(self.send(x) for x in batch))  # type: ignore[attr-defined]

    def send(self, value: Tensor) -> Tensor:
        "Put a tensor on the device, images in the device's memory layout."
        if value.ndim == 4:
            value = value.contiguous(memory_format=self.layout)
        return self.copy(value)

    def copy(self, value: Tensor) -> Tensor:
        "Copy a tensor of the host to the device."
        return value.to(self.name)

    def read(self, value: Tensor) -> Tensor:
        "Bring a tensor to the host: the only way back, and counted."
        self.reads += 1
        return value.detach().cpu()


# %% [markdown]
# And a step is a forward pass in the right precision, an update, and a sum over all processes.

# %%
#| export
class DeviceSteps(DeviceMemory):
    "The operations of the training loop."

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        "The precision of the forward pass."
        return torch.autocast(self.kind, torch.bfloat16, enabled=self.dtype == torch.bfloat16)

    def update(self, loss: Tensor, optimizer: torch.optim.Optimizer, clip: float = 0.0) -> None:
        "One step of the optimizer; gradients longer than `clip` are shortened, 0 leaves them."
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if clip:
            params = [p for group in optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(params, clip)
        optimizer.step()

    def total(self, value: Tensor) -> Tensor:
        "Sum over all processes; one process has nothing to add."
        return value


# %% [markdown]
# The others differ in few lines. CUDA asks whether bfloat16 is native (a T4 claims it and emulates), takes float32 at its word, and copies batches while it computes.

# %%
#| export
class Cpu(DeviceSteps):
    "A plain CPU."


class Cuda(DeviceSteps):
    "An NVIDIA GPU."

    kind = "cuda"

    def __init__(self, precision: str = "auto", index: int | None = None) -> None:
        count = torch.cuda.device_count()
        if not torch.cuda.is_available():
            built = (
                "" if torch.version.cuda else f" (torch {torch.__version__} is built without CUDA)"
            )
            raise UserError(f"device=cuda: torch finds no NVIDIA GPU{built}; write --device cpu")
        if index is not None and index >= count:
            there = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
            raise UserError(f"device=cuda:{index}: there is no such GPU; write {there}")
        super().__init__(precision, index)
        if precision == "fp32":  # by default convolutions round their inputs to ten bits (TF32)
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False

    def copy(self, value: Tensor) -> Tensor:
        "Copy from pinned memory, without waiting for it."
        return value.pin_memory().to(self.name, non_blocking=True)

    def has_bf16(self) -> bool:
        "Whether the GPU has bfloat16 of its own (from compute capability 8.0)."
        return torch.cuda.get_device_capability(self.index or 0) >= (8, 0)

    def chip(self) -> str:
        "Name and memory of the GPU."
        facts = torch.cuda.get_device_properties(self.index or 0)
        return f"{facts.name}, {facts.total_memory / 2**30:.0f} GB"


# %% [markdown]
# MPS, the GPU of an Apple chip, computes in float32 here and keeps the usual memory layout, where channels-last has been a source of errors.

# %%
#| export
class Mps(DeviceSteps):
    "The GPU of an Apple chip."

    kind = "mps"
    layout = torch.contiguous_format

    def __init__(self, precision: str = "auto", index: int | None = None) -> None:
        if not torch.backends.mps.is_available():
            raise UserError(
                "device=mps: this machine has no Apple GPU that torch can use; write --device cpu"
            )
        super().__init__(precision, index)

    def has_bf16(self) -> bool:
        "Not relied on."
        return False


# %% [markdown]
# A person knows a chip by its name:

# %%
#| export
def cpu_name() -> str:
    "The processor's name, as its maker writes it."
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [
                line.split(":", 1)[1].strip() for line in file if line.startswith("model name")
            ]
        return names[0] if names else "CPU"
    except OSError:
        return platform.processor() or platform.machine() or "CPU"


# %% [markdown]
# `auto` takes the best there is. The line that comes out says what was taken:

# %%
#| export
def open_device(
    name: str = "auto",  # auto, cpu, cuda, cuda:N or mps
    precision: str = "auto",  # auto, bf16 or fp32
) -> DeviceSteps:
    "The device of a run. Raises UserError, with what to write instead, if it is not there."
    kinds = {"cpu": Cpu, "cuda": Cuda, "mps": Mps}
    if name == "auto":
        name = "cpu"
        if torch.backends.mps.is_available():
            name = "mps"
        if torch.cuda.is_available():
            name = "cuda"
    kind, _, index = name.partition(":")
    return kinds[kind](precision, int(index) if index else None)


# %%
device = open_device("cpu")
assert (
    cpu_name() in device.why
    and isinstance(device, Cpu)
    and issubclass(Cpu, DeviceSteps)
    and issubclass(DeviceMemory, Device)
)
print(open_device().why)

# %% [markdown]
# A step by hand, to see all of it: the weights move, the gradient is clipped, and the loss was read once.

# %%
from typing import NamedTuple


class Pair(NamedTuple):
    "A batch of this example."

    image: Tensor
    mask: Tensor


model = device.place(nn.Conv2d(3, 1, 1))
before = model.weight.clone()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
batch = device.feed(Pair(torch.randn(2, 3, 8, 8), torch.zeros(2, 1, 8, 8)))
with device.autocast():
    output = model(batch.image)
loss = ((output.float() - batch.mask) ** 2).mean()
device.update(loss, optimizer, clip=0.1)
assert (model.weight - before).norm() < 0.11
device.read(device.total(loss)), device.reads

# %%
#| hide
test_eq(device.reads, 1)
assert device.send(torch.zeros(2, 3, 4, 4)).is_contiguous(memory_format=torch.channels_last)
test_eq(
    (open_device("cpu", "bf16").precision, open_device("cpu", "fp32").precision), ("bf16", "fp32")
)

# %% [markdown]
# A device that is not there is refused with what to write instead:

# %%
if not torch.cuda.is_available():
    with expect_fail(UserError, contains="write --device cpu"):
        Cuda()
if not torch.backends.mps.is_available():
    with expect_fail(UserError, contains="no Apple GPU"):
        Mps()
