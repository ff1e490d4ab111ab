# %% [markdown]
# # device
#
# > One small class between the training loop and the chips: CPU, CUDA, Apple's MPS, a TPU of one chip or many, and several processes under torchrun.

# %%
#| default_exp device

# %%
#| hide
import tempfile

from fastcore.test import expect_fail, test_eq

from mshnet.core import Config

# %%
#| export
import atexit
import contextlib
import ctypes
import gc
import hashlib
import importlib
import os
import platform
import random
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from mshnet.core import Settings, UserError, counted, first_line, free_memory
from mshnet.places import forget_stale_tpu, installed, program_folder, where

# %% [markdown]
# The loop should read the same on every chip, and on many as on one, and a chip's peculiarities should be found in one place. `Device` is complete for the CPU; the others say what differs. Two rules make code fast on all of them:
#
# - **Nothing comes back to the host unasked.** `read` is the only way, and it counts, so that a test can hold the loop to "one read per log line".
# - **No float64 on a device.** MPS has none. Constants are float32, counts are integers.
#
# ## Precision
#
# bfloat16 is faster than float32 where the chip has instructions for it, and slower where it only pretends. So `auto` asks for the instructions and not for the name. The loss is float32 in every case.
#
# float16 is what older GPUs have. Its smallest number is 6e-8, which many gradients are below: so the loss is multiplied before the backward pass and the gradients divided after it, by a factor that `GradScaler` finds, and that a checkpoint keeps.

# %%
#| export
PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class DeviceName:
    "What a device is called."

    kind = "cpu"
    index: int | None = None  # which of several GPUs
    precision = "fp32"

    @property
    def name(self) -> str:
        "The name that torch knows it by, such as cuda:1."
        return self.kind if self.index is None else f"{self.kind}:{self.index}"

    def chip(self) -> str:
        "What a person calls this chip."
        return f"{cpu_name()}, {torch.get_num_threads()} threads"

    @property
    def why(self) -> str:
        "One line: device, precision, chip."
        return f"{self.name}, {self.precision}: {self.chip()}"


# %%
#| export
class Device(DeviceName):
    "The CPU, and what other devices have in common with it."

    world = 1  # parts that a batch is cut into: one per chip
    processes, rank = 1, 0  # of torchrun: each feeds and scores its own part of a batch
    layout = torch.channels_last  # of images in memory
    compiles = False  # whether a batch of another shape costs a compilation
    precisions: tuple[str, ...] = tuple(PRECISIONS)  # that it can compute in

    def __init__(self, precision: str = "auto", index: int | None = None) -> None:
        self.reads, self.index = 0, index
        self.compile = "off"  # for training; "on", or "auto", which `may_compile` decides
        self.micro = 0  # images computed at once; 0: the whole batch
        self.set_precision(self.fastest() if precision == "auto" else precision)

    def set_precision(self, precision: str) -> None:
        "Compute in bf16, fp16 or fp32: a run that goes on elsewhere keeps its own."
        if precision not in self.precisions:
            raise UserError(
                f"precision={precision}: not on {self.name}; write {' or '.join(self.precisions)}"
            )
        self.precision, self.dtype = precision, PRECISIONS[precision]
        scaled = precision == "fp16"
        self.scaler = torch.amp.GradScaler(self.kind if scaled else "cpu", enabled=scaled)

    def has_bf16(self) -> bool:
        "Whether bfloat16 convolutions have instructions of their own."
        asks = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
        return any(getattr(torch.cpu, ask, lambda: False)() for ask in asks)

    def fastest(self) -> str:
        "The precision that `auto` stands for."
        return "bf16" if self.has_bf16() else "fp32"


# %% [markdown]
# What the loop needs of a device is little. A prediction is a tensor or tensors in tuples, lists and dictionaries:

# %%
#| export
T = TypeVar("T")


def each_tensor(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    "The same nested value with its tensors changed."
    if isinstance(value, Tensor):
        return change(value.detach())
    if isinstance(value, dict):
        return {k: each_tensor(v, change) for k, v in value.items()}
    if isinstance(value, list | tuple):
        made = [each_tensor(v, change) for v in value]
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    return value


def no_number(value: Any) -> bool:
    "Whether a nested value holds NaN or positive infinity; a log-probability may be -inf."
    found = []

    def look(x: Tensor) -> Tensor:
        if x.is_floating_point():
            found.append(bool((x.isnan() | x.isposinf()).any()))
        return x

    each_tensor(value, look)
    return any(found)


# %%
test_eq(each_tensor({"a": [torch.ones(1)]}, torch.neg), {"a": [-torch.ones(1)]})
logs = torch.tensor([0.0, -torch.inf])
test_eq([no_number(x) for x in (logs, (logs, [-logs]), torch.ones(1).int())], [False, True, False])

# %% [markdown]
# The ways to put a model and a batch there, and the way back:

# %%
#| export


class DeviceMemory(Device):
    "Ways to the device, and the one way back."

    def place(self, model: nn.Module) -> nn.Module:
        "Put a model on the device, its images' weights in the device's memory layout."
        model = model.to(self.name)
        for value in (*model.parameters(), *model.buffers()):
            if value.ndim == 4:
                value.data = value.data.to(memory_format=self.layout)  # with its strides
        return model

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

    def hold(self, value: Tensor) -> Tensor:
        "Put a tensor on the device whole, on every chip, for the whole run."
        return value.to(self.name)

    def number(self, value: float) -> float | Tensor:
        "A number that differs from step to step, such as a learning rate, as a step takes it."
        return value

    def free(self) -> float:  # bytes; infinite where it cannot be known
        "Memory that is left on the device."
        return free_memory()

    def read(self, value: T) -> T:
        "Bring a tensor, or the tensors in a nested value, to the host: the only way back; counted."
        self.reads += 1
        return each_tensor(value, Tensor.cpu)  # type: ignore[no-any-return]


# %% [markdown]
# Compiling begins with the first call, and needs a compiler that not every machine has. Where nobody asked for it, a model that does not compile is called as it is. Where somebody did (`compile = on`), torch records the model's kernels as a CUDA graph too, which spares their starts. No GPU was at hand to see either at work.

# %%
#| export
class Compiled:
    "A model, compiled when it is first called."

    def __init__(
        self,
        model: nn.Module,
        must: bool,  # False: if it cannot be compiled it is called as it is
    ) -> None:
        self.model, self.must = model, must
        self.call: Any = torch.compile(model, mode="reduce-overhead" if must else None)

    def __getattr__(self, name: str) -> Any:
        "What the model has."
        return getattr(self.__dict__["model"], name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        "The model's output."
        torch.compiler.cudagraph_mark_step_begin()  # the last output is not needed any more
        try:
            return self.call(*args, **options)
        except Exception as error:  # the compilers raise many kinds, all from their own modules
            if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
                raise
            line = first_line(error)
            if self.must:
                raise UserError(f"compile=on: {line}; write --compile off") from None
            warnings.warn(f"torch.compile cannot compile here ({line}): done without", stacklevel=2)
            self.call = self.model
            return self.call(*args, **options)


# %%
class NoCompiler(Exception):
    "What a machine without a compiler says."

    __module__ = "torch._inductor.exc"


def no_compiler(*_: Any) -> None:
    "Fail as torch's compiler does."
    raise NoCompiler("no C++ compiler was found")


for must in (False, True):
    model = Compiled(nn.Identity(), must)
    model.call = no_compiler
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if must:
            with expect_fail(UserError, contains="write --compile off"):
                model(torch.zeros(1))
        else:
            test_eq(model(torch.zeros(1)), torch.zeros(1))
            assert "done without" in str(caught[0].message)


# %% [markdown]
# And a step is a forward pass in the right precision and an update. `begin` is called before the steps of a phase; it returns the model as a step is to call it, and gives a device the chance to prepare.

# %%
#| export
class DeviceBegin(DeviceMemory):
    "The beginning of a phase."

    compiled: tuple[nn.Module, Compiled] | None = None  # a model, and the same compiled

    def begin(
        self,
        phase: str,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,  # None: nothing is trained
    ) -> Any:
        "Get ready for the steps of a phase; the model as a step calls it."
        if not optimizer:
            return model
        if self.compile == "on" or (self.compile == "auto" and self.may_compile()):
            if self.compiled is None or self.compiled[0] is not model:
                self.compiled = model, Compiled(model, must=self.compile == "on")
            return self.compiled[1]
        return model

    def may_compile(self) -> bool:
        "Whether `auto` compiles: not on a CPU, where it took minutes and was no faster."
        return False


# %% [markdown]
# Of a step in parts only the last is followed by an update:

# %%
#| export
class DeviceLoop(DeviceBegin):
    "The operations of a step."

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        "The precision of the forward pass."
        half = self.dtype != torch.float32
        return torch.autocast(self.kind, self.dtype if half else torch.bfloat16, enabled=half)

    def parts(self, batch: T) -> list[T]:
        "A batch as it is computed: whole, or cut into micro-batches."
        if not self.micro:
            return [batch]
        cuts = zip(*(x.split(self.micro) for x in batch), strict=True)  # type: ignore[attr-defined]
        return [type(batch)(*cut) for cut in cuts]

    def add_gradients(self, loss: Tensor) -> None:
        "The backward pass of a part of a batch, whose update comes with its last part."
        self.scaler.scale(loss).backward()

    def update(self, loss: Tensor, optimizer: torch.optim.Optimizer, clip: float = 0.0) -> None:
        "One step of the optimizer; gradients longer than `clip` are shortened, 0 leaves them."
        self.add_gradients(loss)
        if clip:
            self.scaler.unscale_(optimizer)
            params = [p for group in optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(params, clip)
        self.scaler.step(optimizer)
        self.scaler.update()
        optimizer.zero_grad(set_to_none=True)


# %% [markdown]
# Two things can go wrong in a pass, and both have an answer. A network that has barely been trained can have activations beyond 65,504, where float16 ends: such a prediction is computed again in float32. And the memory can end: then the run says what to write, or goes on with smaller parts of a batch if it was told to.

# %%
#| export
NO_MEMORY = ("out of memory", "can't allocate memory", "RESOURCE_EXHAUSTED", "ALLOC_FAILED")


class TooLarge(UserError):
    "A batch does not fit into the device's memory."


# %% [markdown]
# Both answers:

# %%
#| export
class DevicePasses(DeviceLoop):
    "A forward pass alone, and a want of memory in any."

    def predict(self, forward: Callable[[], T]) -> T:  # on the host
        "The result of a forward pass; what float16 has no numbers for is computed in float32."
        with torch.no_grad(), self.autocast():
            result = self.read(forward())
        if self.precision == "fp16" and no_number(result):
            with torch.no_grad():
                result = self.read(forward())
        return result

    @contextlib.contextmanager
    def in_memory(self, batch_size: int) -> Iterator[None]:
        "Turn a want of memory into a TooLarge that names the setting."
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if not isinstance(error, MemoryError) and not any(w in str(error) for w in NO_MEMORY):
                raise
            name, size = ("micro_batch", self.micro) if self.micro else ("batch_size", batch_size)
            less = size // 2 // self.world * self.world
            tries = "" if self.micro else " (`mshnet bench --largest-batch` tries what fits)"
            remedy = (
                f"write --{name.replace('_', '-')} {less}{tries}, or --on-out-of-memory halve to "
                "compute it in parts"
            )
            raise TooLarge(
                f"{name}={size}: does not fit into the memory of {self.name}; "
                + (remedy if less else "write a smaller --base-size and --crop-size")
            ) from None

    def release(self) -> None:
        "Give memory back that nothing refers to any more; what was compiled refers to much."
        if self.compiled:
            self.compiled = None
            torch.compiler.reset()
        gc.collect()


# %% [markdown]
# Random numbers follow from the seed and the epoch alone. A run that was stopped within an epoch takes them up where they stood, for tasks that draw some in their steps (MSHNet does not).

# %%
#| export
class DeviceRandom(DevicePasses):
    "Random numbers: Python's, numpy's and torch's."

    def seed(self, seed: int, epoch: int) -> None:
        "Seed all random numbers for an epoch: others in each epoch and in each process."
        own = int(np.random.SeedSequence([seed, epoch, self.rank]).generate_state(1)[0])
        torch.manual_seed(own)
        np.random.seed(own)
        random.seed(own)

    def random_states(self) -> dict[str, Any]:
        "Where the random numbers of Python, numpy and torch stand, as plain values and tensors."
        name, keys, *rest = np.random.get_state(legacy=True)
        words = torch.from_numpy(np.asarray(keys).astype(np.int64))
        return {"python": random.getstate(), "numpy": [name, words, *rest]} | self.torch_states()

    def torch_states(self) -> dict[str, Tensor]:
        "Where torch's random numbers stand."
        return {"torch": torch.get_rng_state()}

    def set_random_states(self, states: dict[str, Any]) -> None:
        "Go on with random numbers from where they stood."
        version, words, more = states["python"]
        random.setstate((version, tuple(words), more))
        name, keys, *rest = states["numpy"]
        np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
        torch.set_rng_state(states["torch"])


# %% [markdown]
# And a few questions between steps:

# %%
#| export
class DeviceFacts(DeviceRandom):
    "What else the loop asks."

    def workers(self, asked: int) -> int:
        "Threads beside those that compute: -1 for a CPU is none, since all its cores compute."
        cores = os.cpu_count() or 1
        return asked if asked >= 0 else 0 if self.kind == "cpu" else max(1, min(8, cores - 1))

    def facts(self) -> dict[str, Any]:
        "What an epoch's log line should say of the device's work."
        return {}

    def keep(self, folder: Path) -> None:
        "Keep what was compiled in a folder, for the next session."

    def adapt(self, least: float = 0.0) -> str:  # seconds to look for
        "Make room for other programs where that makes this one faster; what was done, in a line."
        return ""

    def report(self) -> str:
        "What there is to say at the end of a run; empty: nothing."
        return ""


# %% [markdown]
# Several processes may share the work. These are their questions to each other, and one process answers them alone:

# %%
#| export
class DeviceSteps(DeviceFacts):
    "A device, complete for one process."

    def check(self, batch_size: int) -> None:
        "UserError unless every chip gets the same number of images of a batch."
        if batch_size % self.world:
            low = batch_size // self.world * self.world
            near = " or ".join(str(size) for size in (low, low + self.world) if size)
            raise UserError(
                f"batch_size={batch_size} cannot be shared by {self.world} devices: write {near}, "
                "or fewer --num-devices"
            )

    def share(self, plan: list[list[int]]) -> list[list[int]]:
        "This process's part of each batch."
        return plan

    def mean(self, value: Tensor) -> Tensor:
        "Mean over all processes."
        return value

    def gather(self, value: T) -> list[T]:
        "The values of all processes, in their order."
        return [value]

    def once(self, work: Callable[[], T]) -> T:
        "What the first process alone does; its result, or its error, is everyone's."
        return work()

    def agree(self, wish: str, now: bool) -> str:
        "What one of the processes wishes, and all then do; `now`: a moment when they may talk."
        return wish

    def alike(self, model: nn.Module) -> None:
        "RuntimeError unless all processes hold the same model to the last bit."


# %% [markdown]
# On Linux a CPU has one trick to be told. Between two steps the C library gives large blocks of memory back to the system, and gets the same blocks again, page by page and filled with zeros. That is a tenth of a step, with large batches a quarter; so they are kept for the next step, but for single blocks of 48 MB and more, which would leave large holes.

# %%
#| export
MMAP_MAX, TRIM, MMAP_FROM = -4, -1, -3  # of glibc's mallopt


def hold_memory(
    hold: bool = True,  # False: as the C library does it by itself, once it has seen large blocks
) -> bool:  # whether there is a glibc that could be told
    "Keep freed memory in this process for its next step."
    try:
        tell = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or another system
        return False
    if not hold:
        return bool(tell(MMAP_MAX, 65_536) and tell(MMAP_FROM, 2**25) and tell(TRIM, 2**26))
    largest = tell(MMAP_FROM, 48 * 2**20) or tell(MMAP_MAX, 0)  # an old glibc refuses the first
    return bool(largest and tell(TRIM, 2**31 - 1))


# %%
test_eq(hold_memory(), hold_memory(False))
hold_memory()


# %% [markdown]
# ### Beside other programs
#
# torch splits each operation among threads, and at its end they wait for each other. A waiting thread spins, because the next operation comes in microseconds. But if another program has taken the core of one thread, the others spin for nothing until the system gives it back, a few milliseconds later, and a step has thousands of operations. On two cores beside one busy program a forward pass took 3.3 s instead of 35 ms, and a training step 13 s instead of 0.12 ([measured](../results/busy-machine/README.md)). Shorter spinning costs nothing on an idle machine and takes the edge off (0.28 s and 1.6 s); `import mshnet` sets it, unless you have set `OMP_WAIT_POLICY` or `GOMP_SPINCOUNT` or loaded torch before. What really helps is one thread less than there are free cores: 57 ms and 0.2 s.
#
# So we count, on Linux, how much time other programs get on our cores, and use as many threads as they leave: when a device is opened, at the beginning of an epoch and at its log lines. `OMP_NUM_THREADS`, `torch.set_num_threads` and `--deterministic` keep the number that was asked for.

# %%
#| export
class Cores:
    "How much other programs use the cores of this process (Linux; elsewhere it is not known)."

    def __init__(self) -> None:
        self.count = len(self.own()) or os.cpu_count() or 1
        self.before = self.read()

    def own(self) -> set[int]:
        "Numbers of the cores that this process may use."
        return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()

    def read(self) -> tuple[float, float, float]:  # seconds: now, busy on our cores, our own
        "The counters of the system."
        busy, own = 0.0, self.own()
        with contextlib.suppress(OSError, ValueError), open("/proc/stat", encoding="ascii") as file:
            for name, *ticks in (line.split() for line in file if re.match(r"cpu\d", line)):
                if int(name[3:]) in own:  # user nice system idle iowait irq softirq steal
                    used = sum(map(int, ticks[:8])) - int(ticks[3]) - int(ticks[4])
                    busy += used / os.sysconf("SC_CLK_TCK")
        return time.monotonic(), busy, time.process_time()

    def others(self, least: float = 0.0) -> float:  # 0 to the number of cores
        "Cores that other programs kept busy since the last call; waits for `least` seconds."
        time.sleep(max(0.0, least - (time.monotonic() - self.before[0])))
        before, self.before = self.before, self.read()
        wall, busy, own = (new - old for new, old in zip(self.before, before, strict=True))
        return min(max((busy - own) / max(wall, 1e-3), 0.0), float(self.count))

    def free(self, taken: float) -> int:
        "How many of the cores a program should use beside others that keep some busy."
        return max(1, self.count - round(taken))


# %%
cores = Cores()
test_eq([cores.free(taken) for taken in (0, 0.4, cores.count)], [cores.count, cores.count, 1])
print(f"{cores.count} cores, {cores.others(least=0.1):.2f} of them busy with other programs")

# %%
#| export
USUAL_THREADS = torch.get_num_threads()  # that torch has chosen, or the user


class Cpu(DeviceSteps):
    "A plain CPU."

    chosen = USUAL_THREADS  # by this class, for the whole process

    def __init__(self, precision: str = "auto", index: int | None = None) -> None:
        super().__init__(precision, index)
        hold_memory()
        self.cores = Cores()
        self.adapt(0.1)

    def adapt(self, least: float = 0.0) -> str:
        "Use as many threads as other programs leave cores, unless the number was set by the user."
        taken, now = self.cores.others(least), torch.get_num_threads()
        best = min(USUAL_THREADS, self.cores.free(taken))
        fixed = "OMP_NUM_THREADS" in os.environ or torch.are_deterministic_algorithms_enabled()
        if best == now or fixed or now not in (USUAL_THREADS, Cpu.chosen):
            return ""
        torch.set_num_threads(best)
        Cpu.chosen = best
        return (
            f"other programs keep {taken:.1f} of {counted(self.cores.count, 'core')} busy: "
            f"{counted(best, 'thread')} from here on, {now} before"
        )

    def facts(self) -> dict[str, Any]:
        "How many threads compute."
        return {"threads": torch.get_num_threads()}


# %%
print(Cpu().facts(), Cpu().adapt() or "nothing to change")


# %% [markdown]
# The others differ in few lines. CUDA asks whether bfloat16 is native (a T4 claims it and emulates), takes float32 at its word, and copies batches while it computes.

# %%
#| export
class CudaChip(DeviceSteps):
    "An NVIDIA GPU, and what it can do."

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

    def has_bf16(self) -> bool:
        "Whether the GPU has bfloat16 of its own (from compute capability 8.0)."
        with torch.cuda.device(self.index or 0):
            return torch.cuda.is_bf16_supported(including_emulation=False)

    def fastest(self) -> str:
        "bf16, else fp16 on the GPUs that have units for it (compute capability 7), else fp32."
        capability = torch.cuda.get_device_capability(self.index or 0)
        return "bf16" if self.has_bf16() else "fp16" if capability >= (7, 0) else "fp32"

    def may_compile(self) -> bool:
        "Whether torch.compile has a compiler for this GPU."
        capability = torch.cuda.get_device_capability(self.index or 0)
        return capability >= (7, 0) and bool(installed("triton"))


# %% [markdown]
# What else differs:

# %%
#| export
class Cuda(CudaChip):
    "An NVIDIA GPU."

    def set_precision(self, precision: str) -> None:
        "Compute in bf16 or fp32; by default convolutions round float32 inputs to ten bits (TF32)."
        super().set_precision(precision)
        if precision == "fp32":
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False

    def copy(self, value: Tensor) -> Tensor:
        "Copy from pinned memory, without waiting for it."
        return value.pin_memory().to(self.name, non_blocking=True)

    def free(self) -> float:
        "Memory that no process has taken."
        return float(torch.cuda.mem_get_info(self.index or 0)[0])

    def release(self) -> None:
        "Give memory back to the GPU too."
        super().release()
        torch.cuda.empty_cache()

    def torch_states(self) -> dict[str, Tensor]:
        "Where torch's random numbers stand, on the host and on this GPU."
        return super().torch_states() | {"cuda": torch.cuda.get_rng_state(self.name)}

    def set_random_states(self, states: dict[str, Any]) -> None:
        "Go on with random numbers from where they stood; a run from elsewhere has none of a GPU."
        super().set_random_states(states)
        if "cuda" in states:
            torch.cuda.set_rng_state(states["cuda"], self.name)

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
    precisions = ("bf16", "fp32")

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
# ## TPU
#
# A TPU is programmed through a compiler, XLA, and torch_xla stands between it and torch: operations are recorded, and `sync` compiles what was recorded into one program and runs it. A step that records the same operations again finds its program compiled. So all depends on recording the same thing every time: a new shape, a number read in the middle, an operation that XLA does not know, and a minute of compiling is spent again, in every step.
#
# torch_xla is reached through one function, imported where it is used. It has been announced to be replaced (TorchTPU); this notebook is all that would change.

# %%
#| export
def xla(
    part: str = "",  # such as "runtime"
) -> Any:
    "torch_xla, or a module of it."
    return importlib.import_module(f"torch_xla.{part}" if part else "torch_xla")


XLA_PACKAGES = ("torch_xla", "libtpu")  # whose versions matter on a TPU

# %% [markdown]
# Which TPU is there can be read from the PCI bus, without taking it from whoever is using it.

# %%
#| export
TPU_CHIPS = {  # PCI device: generation, memory per chip in GB
    "0x0027": ("v2 or v3", 0),  # 8 and 16 GB for each of a chip's two cores
    "0x005e": ("v4", 32),
    "0x0062": ("v5p", 95),
    "0x0063": ("v5e", 16),
    "0x006f": ("v6e", 32),
    "0x0076": ("v7", 192),
}


def tpu_chips(
    bus: Path = Path("/sys/bus/pci/devices"),
) -> list[tuple[str, int]]:  # of each chip: generation and memory in GB
    "The TPU chips in this machine."
    found = []
    for vendor in sorted(bus.glob("*/vendor")):
        if vendor.read_text().strip() == "0x1ae0":  # Google
            device = (vendor.parent / "device").read_text().strip()
            found += [TPU_CHIPS[device]] if device in TPU_CHIPS else []
    return found


# %%
def plug_in(folder, count, device):
    "A bus with cards of Google's and one of somebody else's."
    for i in range(count + 1):
        card = Path(folder) / f"0000:00:0{i}.0"
        card.mkdir()
        (card / "vendor").write_text("0x10de\n" if i == count else "0x1ae0\n")
        (card / "device").write_text(f"{device}\n")


with tempfile.TemporaryDirectory() as tmp:
    plug_in(tmp, 8, "0x0063")
    test_eq(tpu_chips(Path(tmp)), [("v5e", 16)] * 8)
tpu_chips(), XLA_PACKAGES


# %% [markdown]
# Most attempts to train on a TPU end before the first step, with pages of text from the runtime. Each known cause gets one line with its remedy, before the runtime is started where that is possible (without a TPU it does not fail, it ends the process):

# %%
#| export
def why_no_xla(
    environ: MutableMapping[str, str],
    chips: int,  # TPU chips in this machine
    torch_version: str,
    xla_version: str | None,  # of torch_xla; None: not installed
) -> str:  # empty: nothing stands in the way
    "What keeps this machine from using a TPU, and what to do."
    runtime = environ.get("PJRT_DEVICE") or ("TPU" if chips else "")
    own = [v.split("+")[0].rsplit(".", 1)[0] for v in (torch_version, xla_version or "")]
    if not xla_version:
        return (
            "torch_xla is not installed; the TPU images of Colab and Kaggle bring it "
            f"({where(environ).tpu}); elsewhere install torch==2.9.0 and torch_xla[tpu]==2.9.0 in "
            "an environment of their own"
        )
    if own[0] != own[1]:
        return (
            f"torch {torch_version} and torch_xla {xla_version} do not belong together; one was "
            "installed over the image's: delete this runtime and start a fresh one"
        )
    if not runtime:
        return (
            f"this machine has no TPU; {where(environ).tpu}; write --device auto to train without, "
            "or set PJRT_DEVICE=CPU to try XLA on the CPU"
        )
    if runtime not in ("TPU", "CPU"):
        return (
            f"PJRT_DEVICE={runtime} is another kind of runtime; remove it, or write --device cuda"
        )
    if runtime == "TPU" and not chips:
        return (
            f"PJRT_DEVICE=TPU, but this machine has no TPU that can be seen; {where(environ).tpu}"
        )
    return ""


# %% [markdown]
# The rest only the runtime finds out. What it says is recognised by what does not change in it:

# %%
#| export
def runtime_trouble(
    text: str,  # of the runtime's error
) -> str:
    "A runtime that does not start, in one line, with what to do."
    busy = re.search(r"already in use(?: by process with pid (\d+))?|lockfile|resource busy", text)
    if busy:
        who = f"process {busy[1]}" if busy[1] else "another process"
        return (
            f"the TPU is held by {who}: stop the other notebook or program (a restarted kernel "
            "lets go of it), then start this one again"
        )
    if "worker addresses" in text:
        return (
            "the runtime waits for other workers: restart the kernel and, before anything else, "
            "remove TPU_PROCESS_ADDRESSES and CLOUD_TPU_TASK_ID with os.environ.pop"
        )
    return (
        f"the TPU runtime does not start: {first_line(text)}; "
        "restart the session, then see `mshnet doctor`"
    )


# %%
for environ, chips, has, xla_has in [
    ({"COLAB_RELEASE_TAG": "x"}, 0, "2.9.0", None),
    ({}, 1, "2.13.0+cu130", "2.9.0"),
    ({"KAGGLE_KERNEL_RUN_TYPE": "Batch"}, 0, "2.8.0", "2.8.1"),
    ({"PJRT_DEVICE": "CUDA"}, 0, "2.9.0", "2.9.0"),
    ({"PJRT_DEVICE": ""}, 0, "2.9.0", "2.9.0"),
    ({"PJRT_DEVICE": "TPU"}, 0, "2.9.0", "2.9.0"),
]:
    print("-", why_no_xla(environ, chips, has, xla_has))
test_eq(why_no_xla({"PJRT_DEVICE": "CPU"}, 0, "2.9.0+cpu", "2.9.0"), "")
test_eq(why_no_xla({}, 8, "2.8.0", "2.8.0"), "")
runtime_trouble("ABORTED: The TPU is already in use by process with pid 4711. Not attempting")

# %%
assert "TPU_PROCESS_ADDRESSES" in runtime_trouble("Expected 4 worker addresses, got 1.")
assert "no reason given" in runtime_trouble("") and "UNKNOWN: x" in runtime_trouble("UNKNOWN: x\ny")


# %% [markdown]
# Starting it. One process drives all chips (SPMD): a batch is cut along its first dimension and each chip gets its part; everything else lies on every chip. So sums over the batch, those of batch norm among them, are sums over all chips, and the result does not depend on their number. To use fewer, the chips form a rectangle whose second side holds copies.

# %%
#| export
def start_xla(
    num_devices: int,  # chips that share a batch; 0: all
    debug: str,  # folder for programs and metrics; empty: none
) -> Any:  # the mesh of chips
    "Start the runtime, or raise UserError with what keeps it from starting."
    forget_stale_tpu()
    chips = len(
        tpu_chips() or [*Path("/dev").glob("accel[0-9]*"), *Path("/dev/vfio").glob("[0-9]*")]
    )
    if reason := why_no_xla(os.environ, chips, torch.__version__, installed("torch_xla")):
        raise UserError(f"device=xla: {reason}")
    os.environ.setdefault("PJRT_DEVICE", "TPU")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # else a warning per compiled program
    if " " in debug:
        raise UserError(f"debug_xla={debug!r}: XLA writes to no folder with a space; write another")
    dump = f"--xla_dump_to={Path(debug).expanduser().resolve()} --xla_dump_hlo_as_text"
    flags = os.environ.get("XLA_FLAGS", "")
    if debug and dump not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {dump}".strip()
    try:
        runtime, sharding = xla("runtime"), xla("distributed.spmd")
        if not runtime.is_spmd():
            runtime.use_spmd()
        there = runtime.global_runtime_device_count()
    except (RuntimeError, ImportError, OSError) as error:
        raise UserError(f"device=xla: {runtime_trouble(str(error))}") from None
    wanted = num_devices or there
    if there % wanted:
        fit = ", ".join(str(n) for n in range(1, there + 1) if there % n == 0)
        raise UserError(
            f"num_devices={wanted}: this runtime has {there} devices; write one of {fit}"
        )
    return sharding.Mesh(np.arange(there), (wanted, there // wanted), ("data", "copy"))


# %% [markdown]
# What was compiled can be kept for the next session. A folder that cannot be written costs time and no more.

# %%
#| export
def keep_programs(
    folder: Path,
) -> None:
    "Keep compiled programs in a folder, unless one is settled already; warn if it cannot be."
    started = xla()._XLAC._xla_computation_cache_is_initialized()
    if started or os.environ.get("XLA_PERSISTENT_CACHE_PATH"):
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        warnings.warn(f"compiled programs are not kept in {folder}: {error.strerror}", stacklevel=2)
    else:
        xla("runtime").initialize_cache(str(folder))


# %% [markdown]
# What compiling costs is counted by torch_xla. It is told to the user, because nothing else explains a first step of a minute:

# %%
#| export
@contextlib.contextmanager
def patience(
    text: str,  # what is being waited for
    first: float = 5.0,  # seconds until it is first said
    every: float = 20.0,  # seconds between two lines
) -> Iterator[None]:
    "Say that something takes long, and how long already, while it does."
    done, start = threading.Event(), time.perf_counter()

    def speak() -> None:
        "Until it is done."
        wait = first
        while not done.wait(wait):
            print(f"  {text}: {time.perf_counter() - start:.0f} s so far", flush=True)
            wait = every

    thread = threading.Thread(target=speak, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


# %%
with patience("waiting for a reason", first=0.02, every=0.02):
    time.sleep(0.05)


# %% [markdown]
# The counters have long names. Five numbers matter:

# %%
#| export
def xla_counts() -> dict[str, float]:
    "What torch_xla has compiled in this process, and what its cache on the disk was good for."
    metrics = xla("debug.metrics")
    names = {
        "programs": "UncachedCompile",
        "cache_hits": "PersistentCacheHit",
        "cache_misses": "PersistentCacheMiss",
        "cache_failures": "PersistentCacheDeserializeFailure",
    }
    counts = {name: metrics.counter_value(counter) or 0 for name, counter in names.items()}
    compiling = metrics.metric_data("CompileTime")
    return counts | {"compile_seconds": round(compiling[1] / 1e9, 1) if compiling else 0.0}


def host_operations() -> set[str]:
    "Operations that XLA did not know and that ran on the host instead."
    return {name for name in xla("debug.metrics").counter_names() if name.startswith("aten::")}


# %% [markdown]
# The device itself. A TPU always has bfloat16; in float32 it has to be asked for exact products.

# %%
#| export
class XlaChips(DeviceSteps):
    "The chips of a TPU, and the precision of their products."

    kind = "xla"
    layout = torch.contiguous_format
    compiles = True
    precisions = ("bf16", "fp32")

    def __init__(
        self,
        precision: str = "auto",
        index: int | None = None,
        num_devices: int = 0,
        debug: str = "",
    ) -> None:
        self.mesh = start_xla(num_devices, debug)
        self.world = self.mesh.mesh_shape[0]
        self.debug = debug
        super().__init__(precision, index)

    def has_bf16(self) -> bool:
        "Every TPU has."
        return True

    def set_precision(self, precision: str) -> None:
        "Compute in bf16 or fp32; by default a TPU rounds the inputs of a float32 product too."
        super().set_precision(precision)
        wanted = "highest" if precision == "fp32" else "default"
        xla()._XLAC._xla_set_mat_mul_precision(wanted)

    def chip(self) -> str:
        "Number and kind of the chips."
        runtime, copies = xla("runtime"), self.mesh.mesh_shape[1]
        unused = f" of {self.world * copies}" if copies > 1 else ""
        if runtime.device_type() == "CPU":
            devices = "device" if self.world == 1 and not unused else "devices"
            return f"{self.world}{unused} virtual {devices} on the CPU ({cpu_name()})"
        generation, memory = (tpu_chips() or [("of unknown kind", 0)])[0]
        return f"{self.world}{unused} TPU {generation}" + (f", {memory} GB each" if memory else "")


# %% [markdown]
# Putting things there: what belongs to the model is marked as copied to every chip, what belongs to a batch as cut along its first dimension. Unmarked, a program would be compiled once for the marked inputs and once more for its own unmarked outputs.

# %%
#| export
class XlaMemory(XlaChips):
    "Ways to the chips of a TPU."

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.phase = "first"
        self.seen: dict[str, str] = {}  # the first batch of each phase: shapes and types
        self.fed = ""  # the same of the last batch

    def mark(self, value: Tensor, *first: str | None) -> Tensor:
        "Say how a tensor lies on the chips: cut along its first dimension, or copied to each."
        axes = (first + (None,) * value.dim())[: value.dim()]
        xla("distributed.spmd").mark_sharding(value, self.mesh, axes)
        return value

    def place(self, model: nn.Module) -> nn.Module:
        "Put a model on every chip."
        model = model.to(self.name)
        for value in (*model.parameters(), *model.buffers()):
            self.mark(value)
        return model

    def hold(self, value: Tensor) -> Tensor:
        "Copy a tensor to every chip."
        return self.mark(value.to(self.name))

    def number(self, value: float) -> Tensor:  # 0-d
        "A number as an input of the compiled step: as a constant, each value would be a program."
        return self.mark(torch.tensor(value).to(self.name))

    def free(self) -> float:
        "The memory of a chip, of which a model takes little."
        found = tpu_chips()
        return found[0][1] * 2.0**30 if found and found[0][1] else free_memory()

    def copy(self, value: Tensor) -> Tensor:
        "Cut a batch among the chips; copy a single number to each."
        return self.mark(value.to(self.name), "data")

    def feed(self, batch: T) -> T:
        "Cut a batch among the chips."
        self.fed = ", ".join(f"{x.dtype} {tuple(x.shape)}" for x in batch)  # type: ignore[attr-defined]
        self.seen.setdefault(self.phase, self.fed)
        return super().feed(batch)


# %% [markdown]
# Running a step: `sync` compiles and runs what was recorded. The detector watches the count of compiled programs. A phase compiles in its first two steps; a program compiled later is a fault, and the most frequent ones leave traces.

# %%
#| export
class XlaSteps(XlaMemory):
    "Recorded steps, compiled once per phase."

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.start, self.first_step = time.perf_counter(), 0.0  # seconds from one to the other
        self.steps: dict[str, int] = {}  # by phase
        self.host = host_operations()  # that were met so far

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        "Run what was recorded; say so if it is compiled, and warn if it should not have been."
        count, early = self.steps.get(self.phase, 0), xla_counts()
        start = time.perf_counter()
        slow = patience(f"compiling the {self.phase} step, which happens once")
        with slow if count < 2 else contextlib.nullcontext():
            yield
        self.steps[self.phase] = count + 1
        now = host_operations()
        host, self.host = now - self.host, now
        if xla_counts()["programs"] == early["programs"]:
            return
        seconds = time.perf_counter() - start
        if count >= 2:
            again = f"XLA compiled the {self.phase} step again: {self.reason(host)}"
            warnings.warn(again, stacklevel=2)
        elif seconds > 1:
            print(f"  compiled the {self.phase} step in {seconds:.0f} s", flush=True)

    def reason(self, host: set[str]) -> str:
        "Why a program was compiled again, as far as it can be told."
        if self.fed != self.seen.get(self.phase, self.fed):
            return f"the batch was {self.seen[self.phase]} and is {self.fed}"
        if host:
            return f"{', '.join(sorted(host))} ran on the host"
        return "the step recorded other operations; --debug-xla DIR keeps every program"


# %% [markdown]
# torch's backward pass makes a queue per device when it first runs, and torch_xla is too late for that if another device has been trained on before, in the same process. torch asks for a bug report then; what helps is a restart.

# %%
#| export
@contextlib.contextmanager
def loaded_early() -> Iterator[None]:
    "Turn torch's internal error about a device that came late into a UserError."
    try:
        yield
    except RuntimeError as error:
        if "device_ready_queues" not in str(error):
            raise
        raise UserError(
            "device=xla: this process has trained on another device before torch_xla was "
            "loaded; restart the kernel and begin with the TPU"
        ) from None


# %%
with expect_fail(UserError, contains="restart the kernel"), loaded_early():
    raise RuntimeError("0 <= device.index() && .. device_ready_queues_.size()) INTERNAL ASSERT")


# %% [markdown]
# `begin`, `update` and `read` are then a few lines each:

# %%
#| export
class XlaLoop(XlaSteps):
    "The loop's operations on a TPU."

    def begin(
        self,
        phase: str,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> nn.Module:
        "Mark the optimizer's tensors and settle everything, so that a phase is one program."
        self.phase = phase
        states = optimizer.state.values() if optimizer else ()
        values = [v for state in states for v in state.values() if isinstance(v, Tensor)]
        for value in (*model.parameters(), *model.buffers(), *values):
            if value.device.type == self.kind and not xla()._XLAC._get_xla_sharding_spec(value):
                self.mark(value)
        xla().sync()
        return model

    def update(self, loss: Tensor, optimizer: torch.optim.Optimizer, clip: float = 0.0) -> None:
        "One step of the optimizer, and with it all that was recorded."
        with loaded_early():
            super().update(loss, optimizer, clip)
        with self.running():
            xla().sync()
        if not self.first_step:
            self.first_step = time.perf_counter() - self.start
            print(f"  first step {self.first_step:.0f} s after the start", flush=True)

    def read(self, value: T) -> T:
        "Bring tensors to the host; chips that hold parts of one exchange them first."
        with self.running():
            return super().read(each_tensor(value, self.gathered))

    def gathered(self, value: Tensor) -> Tensor:
        "A result whole on each chip; what was fed in parts stays as it is."
        return value if xla()._XLAC._get_xla_sharding_spec(value) else self.mark(value)


# %% [markdown]
# What it has to say in the log and at the end:

# %%
#| export
class Xla(XlaLoop):
    "All chips of a TPU, or virtual ones on the CPU, as one device."

    def seed(self, seed: int, epoch: int) -> None:
        "Seed the chips' random numbers too."
        super().seed(seed, epoch)
        xla().manual_seed(torch.initial_seed() % 2**31)

    def keep(self, folder: Path) -> None:
        "Keep compiled programs in a folder."
        keep_programs(folder)

    def facts(self) -> dict[str, Any]:
        "Programs compiled so far, the seconds it took, and the cache's counters."
        return {"xla": xla_counts() | {"first_step_seconds": round(self.first_step, 1)}}

    def report(self) -> str:
        "Programs, time and cache in one line; metrics go to the folder for experts."
        counts = xla_counts()
        if self.debug:
            folder = Path(self.debug).expanduser()
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "metrics.txt").write_text(xla("debug.metrics").metrics_report())
        kept = os.environ.get("XLA_PERSISTENT_CACHE_PATH", "none")
        return (
            f"{counts['programs']:.0f} programs compiled in {counts['compile_seconds']:.0f} s; "
            f"cache {kept}: {counts['cache_hits']:.0f} found, "
            f"{counts['cache_misses']:.0f} not, {counts['cache_failures']:.0f} unreadable"
        )


# %% [markdown]
# ## Several GPUs, several machines
#
# `torchrun` starts one process per GPU and tells each its number (rank) and how many there are. Each process takes its rows of every batch, DistributedDataParallel averages the gradients, and batch norm takes its means over all processes, so that a batch of 16 is the same batch on one GPU or on four. The heads that the warm-up does not use get no gradient: a phase always uses the same ones, so each phase gets a wrapper of its own, which finds out in its first step.
#
# On the CPU torch has no batch norm over processes: there each process uses the statistics of its own rows (as two GPUs without SyncBatchNorm would), and the running statistics are averaged after each step, so that all processes hold the same model.

# %%
#| export
class _Wrapped(nn.parallel.DistributedDataParallel):
    "A model whose gradients are averaged over all processes, with the model's own attributes."

    called = False  # gradients are averaged of what the wrapper itself has computed

    def forward(self, *args: Any, **options: Any) -> Any:
        "The model's output."
        self.called = True
        return super().forward(*args, **options)

    def __getattr__(self, name: str) -> Any:
        "What the wrapper lacks the model has."
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


class RanksModel(DeviceSteps):
    "One of several processes that train one model."

    def __init__(self, precision: str = "auto", index: int | None = None) -> None:
        self.rank, self.world = int(os.environ["RANK"]), started_processes()
        self.processes, self.wrapped, self.phase = self.world, nn.Module(), ""
        super().__init__(precision, int(os.environ["LOCAL_RANK"]) if self.kind == "cuda" else None)
        if self.rank:
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - the first process says the same
        if self.kind == "cuda":
            torch.cuda.set_device(self.index or 0)
        if not dist.is_initialized():
            importlib.import_module("torch.distributed.nn")  # later, its defaults hold the group
            dist.init_process_group("nccl" if self.kind == "cuda" else "gloo")
            atexit.register(self.leave)

    def leave(self) -> None:
        "Release the process group, so that its threads end before Python does."
        self.wrapped = nn.Module()
        gc.collect()
        dist.destroy_process_group()

    def place(self, model: nn.Module) -> nn.Module:
        "Put a model on this process's device, with batch norm over all processes on GPUs."
        if self.kind == "cuda":
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        return super().place(model)

    def begin(
        self, phase: str, model: nn.Module, optimizer: torch.optim.Optimizer | None = None
    ) -> nn.Module:
        "Wrap a model that is to be trained, once per phase; begin with the first one's weights."
        if not optimizer:
            return super().begin(phase, model)
        if getattr(self.wrapped, "module", None) is not model or self.phase != phase:
            self.wrapped = _Wrapped(model, static_graph=True)
            self.phase = phase
        return self.wrapped

    def update(self, loss: Tensor, optimizer: torch.optim.Optimizer, clip: float = 0.0) -> None:
        "One step on gradients that are averaged over the processes."
        if isinstance(self.wrapped, _Wrapped) and not self.wrapped.called:
            raise UserError(
                "the loss of this task does not call model(...) itself, so several processes "
                "cannot average its gradients; do all of it in the model's forward"
            )
        super().update(loss, optimizer, clip)
        own = [value for value in self.wrapped.buffers() if value.is_floating_point()]
        if self.kind == "cpu" and own:
            whole = self.mean(torch.cat([value.flatten() for value in own])).split(
                [x.numel() for x in own]
            )
            for value, mean in zip(own, whole, strict=True):
                value.copy_(mean.view_as(value))


# %% [markdown]
# Their questions to each other. An error of the first process must reach the others, or they would wait for it for ever:

# %%
#| export
class RanksTalk(RanksModel):
    "What the processes tell each other."

    def mean(self, value: Tensor) -> Tensor:
        "Mean over all processes."
        value = value.detach().clone()
        dist.all_reduce(value)
        return value / self.world

    def gather(self, value: T) -> list[T]:
        "The values of all processes, in the order of their ranks."
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    def once(self, work: Callable[[], T]) -> T:
        "What the first process alone does; its result, or its error, is everyone's."
        answer: list[Any] = [None, None]
        if self.rank == 0:
            try:
                answer[0] = work()
            except Exception as error:
                answer[1] = error
        dist.broadcast_object_list(answer)
        if answer[1] is not None:
            raise answer[1]
        return answer[0]

    def agree(self, wish: str, now: bool) -> str:
        "What one of the processes wishes, told to all at log lines."
        return next((w for w in self.gather(wish) if w), "") if now else ""

    def alike(self, model: nn.Module) -> None:
        "RuntimeError unless all processes hold the same model to the last bit."
        bits = b"".join(v.detach().cpu().numpy().tobytes() for v in model.state_dict().values())
        digests = self.gather(hashlib.sha256(bits).hexdigest()[:12])
        if len(set(digests)) > 1:
            raise RuntimeError(f"the processes hold different models: {digests} by rank")


# %% [markdown]
# And each takes its rows of a batch:

# %%
#| export
class Ranks(RanksTalk):
    "One of several processes that share each batch."

    def share(self, plan: list[list[int]]) -> list[list[int]]:
        "This process's rows of each batch: together they are the batch, in order."
        self.check(len(plan[0]) if plan else self.world)
        sizes = [len(rows) // self.world for rows in plan]
        cuts = [slice(size * self.rank, size * (self.rank + 1)) for size in sizes]
        return [rows[cut] for rows, cut in zip(plan, cuts, strict=True)]

    def chip(self) -> str:
        "How many processes, and the chip of this one."
        return f"{self.world} processes, each {super().chip()}"


class CpuRanks(Ranks, Cpu):
    "One of several processes on CPUs."


class CudaRanks(Ranks, Cuda):
    "One of several processes with an NVIDIA GPU each."


# %% [markdown]
# ## The optimizer
#
# torch's optimizers take a learning rate that changes from step to step, with two exceptions on a TPU. A Python number would be a constant of the compiled step, and every new rate a new program. So the rate is a 0-d tensor there (`device.number`). Adam accepts one if it is told that its step is recorded (`capturable`); Adagrad does not, and has the few lines of its update here. And the state is made before the first step, because a step that makes it is another program than one that finds it.

# %%
#| export
class Adagrad(torch.optim.Adagrad):
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


OPTIMIZERS: dict[str, Any] = {
    "adagrad": Adagrad,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


def make_optimizer(
    name: str,  # of OPTIMIZERS
    groups: list[dict[str, Any]],  # parameters on their device, each group with its rate
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    "An optimizer whose rate may change in every step, on any device."
    weights = [weight for group in groups for weight in group["params"]]
    recorded = weights[0].device.type == "xla" and name != "adagrad"
    options = {"capturable": True} if recorded else {}
    optimizer = OPTIMIZERS[name](groups, weight_decay=weight_decay, **options)
    for weight in weights if recorded else ():
        step = torch.zeros((), device=weight.device)
        moments = {key: torch.zeros_like(weight) for key in ("exp_avg", "exp_avg_sq")}
        optimizer.state[weight] = {"step": step, **moments}
    return optimizer


# %% [markdown]
# Both forms of a rate give the same step:

# %%
steps = []
for rate in (0.1, torch.tensor(0.1)):
    weight = nn.Parameter(torch.ones(3))
    optimizer = make_optimizer("adagrad", [{"params": [weight], "lr": rate}], weight_decay=0.1)
    for grad in (1.0, -0.5):
        weight.grad = torch.full((3,), grad)
        optimizer.step()
    steps.append(weight.detach())
assert torch.allclose(*steps, rtol=1e-6)
assert isinstance(optimizer, Adagrad)
sorted(OPTIMIZERS)


# %% [markdown]
# ## The device of a run
#
# `auto` takes the best there is. The line that comes out says what was taken.

# %%
#| export
def started_processes() -> int:  # 0: not started by torchrun
    "How many processes torchrun started; UserError if only some of its variables are set."
    missing = {"RANK", "WORLD_SIZE", "LOCAL_RANK"} - os.environ.keys()
    if "RANK" in os.environ and missing:
        raise UserError(f"RANK is set, but not {min(missing)}: start by torchrun, or unset RANK")
    return int(os.environ["WORLD_SIZE"]) if not missing else 0


def best_device() -> str:
    "The name of the best device of this machine."
    if tpu_chips():
        if installed("torch_xla"):
            return "xla"
        warnings.warn("this machine has a TPU, but torch_xla is not installed", stacklevel=2)
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


# %% [markdown]
# Under torchrun it is one of several, whatever the kind:

# %%
#| export
def open_device(
    name: str = "auto",  # auto, cpu, cuda, cuda:N, mps or xla
    precision: str = "auto",  # auto, bf16, fp16 or fp32
    num_devices: int = 0,  # of xla: chips that share a batch; 0: all
    debug: str = "",  # of xla: folder for experts
) -> DeviceSteps:
    "The device of a run. Raises UserError, with what to write instead, if it is not there."
    kind, _, index = (best_device() if name == "auto" else name).partition(":")
    several = started_processes()
    if kind == "xla" and several > 1:
        raise UserError("device=xla: one process drives all chips; start it without torchrun")
    if kind == "xla":
        return Xla(precision, None, num_devices, debug)
    if several and num_devices not in (0, several):
        raise UserError(
            f"num_devices={num_devices}: torchrun started {several} processes; leave it out"
        )
    if not several:
        kinds: dict[str, type[DeviceSteps]] = {"cpu": Cpu, "cuda": Cuda, "mps": Mps}
        return kinds[kind](precision, int(index) if index else None)
    rank_here = int(os.environ["LOCAL_RANK"])
    if kind == "cuda" and rank_here >= (there := torch.cuda.device_count()):
        raise UserError(f"this machine has {there} GPUs; write torchrun --nproc-per-node={there}")
    if kind == "mps" or index:
        raise UserError(f"device={name}: several processes share cuda or cpu; write one of these")
    return CudaRanks(precision) if kind == "cuda" else CpuRanks(precision)


# %% [markdown]
# A run's settings say all of it. What XLA compiles is kept beside the run's folder.

# %%
#| export
def device_for(config: Settings) -> DeviceSteps:
    "The device of a run, which must be able to share its batch; UserError if not."
    if config.deterministic:
        repeat_exactly()
    chosen = config.device, config.precision, config.num_devices
    device = open_device(*chosen, config.debug_xla)
    device.check(config.batch_size)
    device.keep(program_folder(config))
    if config.compile == "on" and (device.compiles or device.processes > 1):
        several = "XLA compiles by itself" if device.compiles else "not with several processes"
        raise UserError(f"compile=on: {several}; leave it out")
    device.compile = "off" if device.processes > 1 else config.compile
    device.micro = config.micro_batch if config.micro_batch < config.batch_size else 0
    if device.micro and (device.world > 1 or device.compiles):
        raise UserError(
            f"micro_batch={device.micro}: is for one CPU or GPU; here write a smaller --batch-size"
        )
    return device


def repeat_exactly() -> None:
    "Take only operations that repeat to the last bit; torch warns of one that it cannot replace."
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False


# %%
device = open_device("cpu")
assert cpu_name() in device.why and isinstance(device, Cpu)
assert (
    issubclass(Cuda, CudaChip)
    and issubclass(DeviceFacts, DeviceRandom)
    and issubclass(DeviceRandom, DevicePasses)
    and issubclass(DeviceLoop, DeviceBegin)
    and issubclass(Cpu, DeviceFacts)
    and issubclass(Cpu, DeviceName)
)
print(open_device(best_device()).why)


# %% [markdown]
# Two processes share a batch of four rows:

# %%
def rank_of_two(rank):
    "A process as torchrun would start it, without the others."
    process = CpuRanks.__new__(CpuRanks)
    process.rank, process.world = rank, 2
    return process


test_eq([rank_of_two(r).share([[5, 1, 4, 2]]) for r in (0, 1)], [[[5, 1]], [[4, 2]]])
with expect_fail(UserError, contains="write 4 or 6"):
    rank_of_two(0).check(5)
test_eq(started_processes(), 0)
test_eq((device.share([[5, 1]]), device.gather(3), device.once(lambda: 4)), ([[5, 1]], [3], 4))


# %% [markdown]
# How the classes build on each other, and that a TPU that is not there says so:

# %%
def bases(kind):
    "Names of the classes that a class builds on, from the last to the first."
    return [base.__name__ for base in kind.__mro__[1:-1]]


test_eq(bases(CudaRanks)[:4], [c.__name__ for c in (Ranks, RanksTalk, RanksModel, Cuda)])
test_eq(bases(Xla)[:4], [c.__name__ for c in (XlaLoop, XlaSteps, XlaMemory, XlaChips)])
assert issubclass(DeviceSteps, DeviceLoop) and issubclass(DeviceLoop, DeviceMemory)
assert issubclass(DeviceMemory, Device)
if not tpu_chips() and "PJRT_DEVICE" not in os.environ:
    with expect_fail(UserError, contains="device=xla: "):
        device_for(Config(device="xla"))
    with expect_fail(UserError, contains="device=xla: "):
        start_xla(0, "")
if installed("torch_xla"):
    with tempfile.TemporaryDirectory() as tmp:
        keep_programs(Path(tmp))
    print(xla("version").__version__, xla_counts(), host_operations())

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
device.read(device.mean(loss)), device.reads

# %% [markdown]
# The same step in two parts, whose gradients add up to those of the batch. And random numbers can be taken up where they stood:

# %%
device.micro = 1
assert len(device.parts(batch)) == 2
for part in device.parts(batch):
    device.add_gradients(((model(part.image) - part.mask) ** 2).mean() / 2)
summed = model.weight.grad.clone()
model.weight.grad = None
((model(batch.image) - batch.mask) ** 2).mean().backward()
assert torch.allclose(summed, model.weight.grad, atol=1e-6)
device.micro = 0
device.seed(0, 0)
stood = device.random_states()
drawn = [torch.rand(1).item(), np.random.rand(), random.random()]
device.set_random_states(stood)
test_eq([torch.rand(1).item(), np.random.rand(), random.random()], drawn)
device.release()
test_eq(device.agree("SIGTERM", now=False), "SIGTERM")

# %%
#| hide
test_eq(device.reads, 1)
assert device.send(torch.zeros(2, 3, 4, 4)).is_contiguous(memory_format=torch.channels_last)
test_eq(
    (open_device("cpu", "bf16").precision, open_device("cpu", "fp32").precision), ("bf16", "fp32")
)

# %% [markdown]
# A batch that does not fit is the most frequent end of a first try, and torch's message of a dozen lines does not say what to write:

# %%
with expect_fail(TooLarge, contains="write --batch-size 8"), device.in_memory(16):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB")

# %% [markdown]
# One switch for results that repeat to the last bit. It counts for the whole process:

# %%
repeat_exactly()
assert torch.are_deterministic_algorithms_enabled()
torch.use_deterministic_algorithms(False)

# %% [markdown]
# A device that is not there is refused with what to write instead:

# %%
if not torch.cuda.is_available():
    with expect_fail(UserError, contains="write --device cpu"):
        Cuda()
if not torch.backends.mps.is_available():
    with expect_fail(UserError, contains="no Apple GPU"):
        Mps()
