# %% [markdown]
# # TPU：检查与排错
#
# > 写给在 TPU 上运行本库（任何任务）的人。读完后你会知道：先检查什么，多大的批次放得下，出错时怎么办。
#
# [English](tpu.ipynb)
#
# 在 Colab 中打开 [tpu_setup](../run/tpu_setup.ipynb)（一块 v5e 芯片），或在 Kaggle 上打开 [kaggle_tpu](../run/kaggle_tpu.ipynb)（八块），从头运行到尾。如果一切正常，就不需要本页。
#
# **未验证：** 我们没有条件使用真实的 TPU。这里的一切都在 torch_xla 自己的 CPU 运行时上运行，使用一个和八个虚拟设备（`make test-xla`）。这说明程序与普通 PyTorch 在 CPU 上的计算结果相同（舍入误差除外），并且为所有设备只编译一次；但不能说明真实 TPU 的速度、内存或舍入，也不能说明 Colab 和 Kaggle 本身。
#
# ## 先检查什么
#
# ```bash
# mshnet doctor --device xla
# ```
#
# notebook 的“机器”单元格做同样的事。`accelerator` 一行说明有几块芯片、是哪一代、各有多少内存。如果缺少 torch_xla，或它与你的 torch 版本不匹配，`accelerator` 或 `build` 一行就是错误。
#
# ## 无法启动
#
# 每条提示都以 `device=xla: ` 开头。
#
# | 提示 | 原因 | 怎么办 |
# |---|---|---|
# | `torch_xla is not installed; ...` | 这不是 Colab 或 Kaggle 的 TPU 镜像 | 选择 TPU 会话；如果那里也没有 torch_xla，用 `device = "cpu"` 或 GPU；在别处安装提示中写出的版本 |
# | `this machine has no TPU` | 会话用的是别的加速器 | Colab：Runtime，Change runtime type，v5e-1 TPU。Kaggle：Session options，Accelerator，TPU v5e-8 |
# | `torch ... and torch_xla ... do not belong together` | 在镜像自带的 torch 之上又装了别的 | 删除运行时，新开一个，并且不要在那里用 `pip install` 安装 torch、`torch_xla`、`numpy` 或 `IPython` |
# | `the TPU runtime does not start: ...` | 同一时间只有一个程序能使用 TPU | 本 notebook 旁的 `!` 命令请加 `--device cpu`；否则停止另一个 notebook，或重启它的内核 |
# | `PJRT_DEVICE=... is another kind of runtime` | 按别的教程设置了这个变量 | 删除它 |
# | `this process has trained on another device before` | torch_xla 必须在第一次反向传播之前加载 | 重启内核，一开始就用 TPU |
#
# 旧教程使用 `cloud-tpu-client`、`xmp.spawn(nprocs=8)`、`xm.xla_device` 或 `xm.mark_step`。这里都不需要：一个进程驱动全部芯片，所以 `xr.world_size()` 始终是 1。旧程序的参数有[新的名称](from_official.ipynb)。
#
# ## 几块芯片，多大的批次
#
# Colab 提供一块芯片，Kaggle 八块。一次训练使用全部芯片，`device` 一行给出芯片数。
#
# - **批大小：** `batch_size` 是一步中*所有*芯片上图像的总数。它必须是芯片数的整数倍；否则错误信息会给出最接近的大小。批归一化对所有芯片求均值，所以结果与芯片数无关。
# - **预设：** `tpu` 使用 16 的批大小和 0.002 的学习率（默认为 4 和 0.001）。加上 `--crop native` 在 CPU 上训练 60 个 epoch 后，它的三个种子在 NUAA-SIRST 上的测试 IoU 为 0.69 到 0.70（[结果](results.ipynb)）。不加这个选项时没有在那里运行过。有八块芯片时，预设 `steady`、`paper` 和 `quick` 需要 `--batch-size 8`。
#
# ## 第一步较慢
#
# TPU 运行的是编译好的程序。训练的一步和评测的一步编译较久。预设 `paper` 有两种训练步，因为它在预热阶段只训练一个输出头。每个程序在第一次用到时编译，由 `compiling the full step, which happens once` 这样的一行报告。在 TPU 上需要多久，没有测量过。
#
# 所以第一个 epoch 慢；使用 `paper` 时，预热之后的第一个 epoch 也慢。之后的 epoch 不应该慢。如果某个程序被再次编译，会有警告，并在可能时说明原因。结尾的计数还包括几个把张量放到芯片上的小程序。
#
# 按原始尺寸评测（`--base-size native`）时，每种填充（padding）后的尺寸编译一个程序：NUDT-SIRST 1 个，IRSTD-1k 1 个，NUAA-SIRST 的测试列表 69 个。
#
# 编译好的程序保存在运行文件夹旁的 `xla_cache` 中。在同一磁盘上的下次训练应能从那里载入，而不必重新编译；Colab 和 Kaggle 开始时磁盘是空的。我们未能验证这一点：没有 TPU 可用，而在 CPU 运行时上另一个进程无法读取它们。
#
# ## 内存不足
#
# 一步在每块芯片上需要两部分内存：
#
# 1. 权重、梯度和优化器的状态，每个数四字节，再加上一份 bfloat16 的权重；
# 2. 反向传播需要的激活值，随批大小和裁剪的面积增长。在 CPU 上以 bfloat16 计算时，每多一个 256x256 的裁剪，一步的内存峰值增加 0.15 GB（[测量](devices.ipynb)），默认的 128x128 裁剪约为它的四分之一。

# %%
from mshnet.xla import TPU_CHIPS

print("a chip has:", ", ".join(f"{name} {gb} GB" for name, gb in TPU_CHIPS.values() if gb))

# %% [markdown]
# 如果内存不够，把 `batch_size` 减半，或取较小的 `crop_size`：内存随它的平方增长。真实的 TPU 可能需要得更少或更多；我们未能测量。XLA 可能重新计算一些激活值，而不保留它们。但 TPU 按 8 乘 128 个数的块存放张量，所以可能会填充只有 16 个通道的层。
#
# ## 保存失败
#
# `last.pt`、`previous.pt` 和 `best.pt` 是运行文件夹中普通的 CPU 张量，检测任务各 65 MB（使用预设 `paper` 时为 33 MB）。使用预设 `paper` 时，`signs` 各约 0.9 GB，`eit` 各约 1.7 GB（计算值）。会话结束后，Kaggle 只保留 `/kaggle/working`，Colab 什么都不保留。
#
# 在 TPU 上开始的训练可以在 GPU 或 CPU 上恢复，反之亦然：用 `--resume` 指定它，或复制整个文件夹。精度保持不变。以 float16 开始的训练（在 T4 或 V100 上）不能在 TPU 上恢复，因为 TPU 没有 float16。如果可能换到 TPU，开始时请设 `precision = "fp32"`。
#
# ## 查看进度
#
# 每个 epoch 打印一行。`log.jsonl` 中有同样的数字，编译次数在 `xla` 之下。脚本可以读取 `status.json`。只有在日志行、评测和检查点时才从设备复制结果，所以较小的 `log_every` 会使训练变慢。
#
# 供专家使用：环境变量 `XLA_FLAGS=--xla_dump_to=DIR` 让 XLA 把每个编译好的程序写入 DIR。
#
# ## Pod 切片
#
# 在由多台主机组成的切片上，每台主机都启动同样的命令：
#
# ```bash
# gcloud compute tpus tpu-vm ssh NAME --worker=all --command "mshnet train DATA --device xla --preset tpu --batch-size 64"
# ```
#
# 每台主机准备完整的一个批次，并把属于自己芯片的行发给它们。每台把同一次训练写到自己的磁盘，所以不要用共享的文件夹。这依据 torch_xla 的文档写成；我们没有运行过。
