# %% [markdown]
# # 选择设备
#
# > 什么任务用什么机器，各知道些什么。

# %% [markdown]
# [English](device.ipynb)
#
# 训练可以搬家：在其中一种设备上开始的训练，可以在另一种上继续。所以先用手边的机器。只有 CPU 各行是**实测**。在一块 NVIDIA H200 上训练跑到了结束，没有计时；没有 TPU 或 Apple 芯片可用。实测结果见[速度与内存](speed.ipynb)（英文），`mshnet bench` 几分钟即可测出一种设备。
#
# | 你有 | 就用 | 方法 | 依据 |
# |---|---|---|---|
# | 只有浏览器 | Colab 或 Kaggle | [Colab 五分钟上手](colab.zh-CN.ipynb)、[Kaggle 五分钟上手](kaggle.zh-CN.ipynb) | 它们的笔记本在 CPU 上执行过 |
# | 没有 NVIDIA GPU 的笔记本电脑，想先看看 | 它的 CPU，合成场景 | [先做一次小试验](first_run.ipynb)（英文） | 在 2 个核上实测 |
# | 一个 CPU 核和十分钟 | CPU，NUAA-SIRST | `mshnet train --dataset-dir data/NUAA-SIRST --batch-size 16 --lr 0.002 --epochs 60 --eval-every 60` | [实测](results.ipynb)（英文）：测试 IoU 0.69 到 0.70，bf16 |
# | 一个 CPU 核和一个多小时 | CPU，NUAA-SIRST | `mshnet train --dataset-dir data/NUAA-SIRST --eval-every 200` | [实测](results.ipynb)（英文）：默认设置的 200 个 epoch，bf16。不支持 bf16 的 CPU 更慢；doctor 的 `accelerator` 一行会给出精度 |
# | 两个 CPU 核和一个晚上 | 同上，用论文的设置 | `mshnet train --dataset-dir data/NUAA-SIRST --preset paper --precision auto` | 400 个 epoch 用 3 h 12 min，bf16：由实测的步推算 |
# | 一块 NVIDIA GPU | 它 | `mshnet train --dataset-dir data/NUAA-SIRST`：会自动找到 | 在 H200 上跑通，未计时 |
# | 两块或更多 NVIDIA GPU | 全部，共同分担每一批 | 两块用 `--num-devices 2` | 用 CPU 上的多个进程测试过 |
# | Apple 芯片（M1 及以后） | 它的 GPU，float32 | 同样的命令：会自动找到 | 相应的代码从未在这种芯片上运行过 |
# | TPU | 它，批大小 16 或更大 | [TPU 页](tpu.zh-CN.ipynb) | 只在 XLA 的 CPU 运行时上运行过 |
#
# 付费之前请考虑：
#
# - 在 **P100** 上，本库以 float32 计算，在 T4 上以 float16 计算。较新的 torch 构建可能完全不支持 P100；doctor 的 `accelerator` 一行会指出这一点。如果 Kaggle 两者都提供，请选 T4。
# - 在 **TPU** 上第一次试用等得最久：看到任何结果之前要先编译程序。
# - 很快的 GPU 可能是在等待主机，而不是受自身速度限制：租用最大的之前先测一测。

# %% [markdown]
# ## 这台机器有什么？
#
# doctor 说明一次训练在这里会用什么，以及哪里有问题：
#
# ```bash
# mshnet doctor
# mshnet doctor --device cuda --batch-size 16
# ```

# %%
from mshnet.doctor import doctor
from mshnet.recipe import Config

found = doctor(Config())
print(found)

# %% [markdown]
# ## 它有多快？
#
# 几分钟即可知道，不必先租一整天。`--largest-batch` 试出能放下的批大小。
#
# ```bash
# mshnet bench --dataset-dir data/NUAA-SIRST
# mshnet bench --largest-batch --dataset-dir data/NUAA-SIRST
# ```
#
# 已实测的结果见[速度与内存](speed.ipynb)（英文）。
#
# ## 用什么精度，多大的批？
#
# `precision` 保持 `auto`：芯片自身支持 bf16 时用 bf16，在 T4 或 V100 上用带损失缩放的 fp16，其他情况用 float32。要按论文的设置训练，`batch_size` 保持 4。更大的批能更好地利用快的设备，但那是另一种训练设置：批大小为四倍时，学习率取两倍。
#
# ```bash
# mshnet train --dataset-dir data/NUAA-SIRST --batch-size 16 --lr 0.002
# ```
#
# ## 需要多少显存？
#
# 批大小 16、256x256 时，在 CPU 上峰值为 2895 MiB（[实测](speed.ipynb)，bfloat16），所以显存很少成为限制。doctor 的 `memory` 一行报告有多少空闲，`mshnet bench --largest-batch` 试出放得下的批。成为限制时，`--on-out-of-memory halve` 把一批分成几部分计算。

# %%
#| hide
assert found.lines
