# %% [markdown]
# # Several GPUs: processes of torchrun
#
# > Each process takes its rows of every batch, and all hold the same model.
#
# A batch of 16 should be the same batch on one GPU or on four: the same gradient, the same update, the same scores. `torchrun` starts one process per GPU, on one machine or on several, and gives each its number (*rank*) and the count of all. Three things keep the batch whole, shown for a batch of the images 5, 1, 4 and 2 and two processes:
#
# | | its rows | the gradient, by `DistributedDataParallel` | mean and variance of batch norm |
# |---|---|---|---|
# | process 0 | 5, 1 | averaged over both processes | over all four images |
# | process 1 | 4, 2 | the same | the same |
#
# The training loop calls `device.ranks` for all of this. With one process it is a `OneProcess`, from the page on [devices](30_device.ipynb); with several it is the `Ranks` of this page.

# %%
#| export
#| default_exp ranks
import atexit
import gc
import hashlib
import importlib
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mshnet.core import UserError
from mshnet.device import Device, OneProcess, T, started_processes

# %% [markdown]
# ## The same batch in one process and in two
#
# Each image of this batch is a single number. Batch norm subtracts the mean of the batch and divides by its standard deviation. One process, and then two of torchrun, print each process's rows and what batch norm makes of them:

# %%
import subprocess

program = """
import torch
from mshnet.device import open_device
device = open_device("cpu", "fp32")
layer = device.to_device(torch.nn.BatchNorm1d(1))
rows = device.ranks.shard([[5, 1, 4, 2]])[0]
normalised = layer(torch.tensor(rows)[:, None].float())
for own, made in device.ranks.all_gather((rows, normalised.flatten().tolist())):
    print(own, [round(x, 2) for x in made])
"""
torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
for start in ([], [sys.executable, *torchrun]):
    command = [*start, sys.executable, "-c", program]
    print(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


# %% [markdown]
# Two processes have the numbers of one, because the mean 3 and the variance 2.5 are those of all four images.
#
# ## The machinery: the processes
#
# In the first epochs of the paper's recipe, its warm-up, only one head is trained, and the others get no gradient. So `wrap` gives the model a new `DistributedDataParallel` in each phase of the training. The wrapper finds the unused weights in its first step. `rank_zero` runs work in the first process only, and sends its error to the others, which would otherwise wait.

# %%
#| export
class _Wrapped(nn.parallel.DistributedDataParallel):
    "A model whose gradients are averaged over all processes, with the model's own attributes."

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


class Ranks(OneProcess):
    "The processes of torchrun; each takes its rows of a batch. `OneProcess` describes the methods."

    def __init__(self, device: Device) -> None:
        self.rank, self.count = int(os.environ["RANK"]), started_processes()
        self.gpu = device.kind == "cuda"
        self.phase, self.wrapped = "", nn.Module()
        if self.rank:  # the first process prints the same
            sys.stdout = open(os.devnull, "w", encoding="utf-8", errors="replace")  # noqa: SIM115
        if self.gpu:
            torch.cuda.set_device(device.name)
        if not dist.is_initialized():
            if missing := {"MASTER_ADDR", "MASTER_PORT"} - os.environ.keys():  # of a scheduler
                todo = "start by torchrun, or unset RANK"
                raise UserError(f"RANK is set, but not {min(missing)}: {todo}")
            importlib.import_module("torch.distributed.nn")  # later, its defaults hold the group
            limit = timedelta(hours=1)  # while the first process writes to a slow disk
            backend = "nccl" if self.gpu and dist.is_nccl_available() else "gloo"  # as on Windows
            dist.init_process_group(backend, timeout=limit)
            atexit.register(self.leave)

    def leave(self) -> None:
        "Release the process group, so that its threads end before Python does."
        self.wrapped = nn.Module()
        gc.collect()
        if dist.is_initialized():  # a script may have ended it
            dist.destroy_process_group()

    def convert(self, model: nn.Module) -> nn.Module:
        "The model with batch norm over all processes."
        if self.gpu:
            return nn.SyncBatchNorm.convert_sync_batchnorm(model)
        for layer in model.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                layer.__class__ = _CpuBatchNorm  # the same layer with another forward pass
        return model

    def wrap(self, phase: str, model: Any) -> Any:
        "The model with averaged gradients; it begins with the first process's weights."
        if getattr(self.wrapped, "module", None) is not model or self.phase != phase:
            self.wrapped, self.phase = _Wrapped(model, static_graph=True), phase
        return self.wrapped

    def shard(self, plan: list[list[int]]) -> list[list[int]]:
        for rows in plan:
            if len(rows) % self.count:
                what = f"a batch of {len(rows)} cannot be shared by {self.count} processes"
                raise UserError(f"{what}: plan batches of a multiple of {self.count}")
        sizes = [len(rows) // self.count for rows in plan]
        return [rows[size * self.rank :][:size] for rows, size in zip(plan, sizes, strict=True)]

    def mean(self, value: Tensor) -> Tensor:
        return _Sum.apply(value.detach()) / self.count

    def all_gather(self, value: T) -> list[T]:
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value)
        return values

    def rank_zero(self, work: Callable[[], T]) -> T:
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

    def barrier(self) -> Callable[[], object]:
        group = dist.new_group(timeout=timedelta(days=7), backend="gloo")
        return lambda: dist.barrier(group)

    def any_rank(self, request: str, now: bool) -> str:
        return next((r for r in self.all_gather(request) if r), "") if now else ""

    def assert_in_sync(self, model: nn.Module) -> None:
        bits = b"".join(v.detach().cpu().numpy().tobytes() for v in model.state_dict().values())
        digests = self.all_gather(hashlib.sha256(bits).hexdigest()[:12])
        if len(set(digests)) > 1:
            todo = "a loss must call model(...) itself, which averages its gradients"
            raise UserError(f"the processes hold different models: {digests} by rank; {todo}")


# %% [markdown]
# ## Batch norm over processes
#
# PyTorch has it for GPUs only (`SyncBatchNorm`). On CPUs its usual layer gets the forward pass below: mean and variance are sums over the rows of all processes, and the gradient flows through these sums.

# %%
#| export
class _Sum(torch.autograd.Function):
    "The sum over all processes; its gradient is the sum of their gradients."

    @staticmethod
    def forward(_: Any, value: Tensor) -> Tensor:
        value = value.clone()
        dist.all_reduce(value)
        return value

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return _Sum.forward(_, grad)


class _CpuBatchNorm(nn.modules.batchnorm._BatchNorm):
    "Batch norm over all processes on CPUs, for inputs of any dimensions."

    def _check_input_dim(self, input: Tensor) -> None: ...

    def forward(self, x: Tensor) -> Tensor:
        "[B,C,...] -> [B,C,...]; in training, the running statistics follow those of the batch."
        if not self.training:
            return super().forward(x)
        other = [0, *range(2, x.ndim)]
        shape = [1, -1, *[1] * (x.ndim - 2)]
        values = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
        count = _Sum.apply(values.new_tensor(x.numel() / x.shape[1]))
        mean = _Sum.apply(values.sum(other)) / count
        centred = values - mean.view(shape)
        var = _Sum.apply(centred.square().sum(other)) / count
        kept: Any = self  # torch allows layers without statistics; no network here has one
        with torch.no_grad():
            kept.num_batches_tracked += 1
            kept.running_mean.lerp_(mean, kept.momentum)
            kept.running_var.lerp_(var * count / (count - 1), kept.momentum)
        scale = self.weight * (var + self.eps).rsqrt()
        return (centred * scale.view(shape) + self.bias.view(shape)).to(x.dtype)

# %% [markdown]
# ## Questions
#
# 1. Each of two processes has the mean loss of its rows. When is the mean of both the mean of the batch?
#    <details><summary>Answer</summary>If both have equally many rows. <code>shard</code> therefore refuses a batch that cannot be divided evenly.</details>
# 2. What would the example print if batch norm took its mean and variance in each process?
#    <details><summary>Answer</summary>1 and -1 in both. The means of 5, 1 and of 4, 2 are both 3, and their standard deviations are 2 and 1. Images that differ would have the same features, and the same run different losses on one GPU and on two.</details>
