# %% [markdown]
# # 开始：安装与第一次运行
#
# > 写给会用终端的新手。读完后：库已装好，找到了一个目标，训练并恢复过一次小的训练，并检查了你的数据集。

# %% [markdown]
# [English](first_run.ipynb)
#
# 每一步都有可看的结果。第 1 到 4 步不需要数据。不想安装、只用浏览器时，请看 [Colab 与 Kaggle](cloud.zh-CN.ipynb)。未翻译的页面为英文。
#
# ## 1. 安装
#
# 需要 git 和 Python 3.11 或更新的版本。虚拟环境使 PyTorch 不影响你的其他项目。
#
# **Linux 与 macOS：**
#
# ```bash
# git clone https://github.com/{{repo}}
# cd mshnet
# python3 -m venv .venv
# source .venv/bin/activate
# pip install -e '.[notebook]'
# ```
#
# **Windows，** 在 PowerShell 中，使用 python.org 的 Python：
#
# ```bash
# git clone https://github.com/{{repo}}
# cd mshnet
# py -m venv .venv
# .venv\Scripts\activate
# pip install -e ".[notebook]"
# ```
#
# **conda：**
#
# ```bash
# git clone https://github.com/{{repo}}
# cd mshnet
# conda env create -f environment.yml
# conda activate mshnet
# ```
#
# `activate` 一行激活环境。每打开一个新终端都要再执行一次。PyPI 上的名称 `mshnet` 属于别人，所以请从这个文件夹安装。
#
# | 系统 | 是否测试过 | 须知 |
# |---|---|---|
# | Linux，x86-64 | 是，在 CPU 上；在一块 NVIDIA H200 上训练跑到了结束 | pip 的 PyTorch 含 CUDA，有好几个 GB。没有 NVIDIA GPU 时 CPU 版就够了：在最后一行之前执行 `pip install torch --index-url https://download.pytorch.org/whl/cpu` |
# | Windows | 否 | 如果 PowerShell 拒绝执行 `activate`，请用命令提示符。pip 的 PyTorch 是 CPU 版；有 NVIDIA GPU 时先安装 pytorch.org 给出的 CUDA 版。没有 `make`，也不需要。Windows 不能替换其他程序正打开的文件：这时训练以一行提示结束，再执行同一条命令即可恢复。`torch.compile` 需要编译器；没有时训练会警告，并且不编译 |
# | macOS | 否 | 在 Apple 芯片（M1 及以后）上默认设备是 GPU（`--device mps`），用 float32。由 Rosetta 转译的 Intel 版 Python 没有 GPU：请安装 arm64 版。如果 GPU 太慢或结果不对，用 `--device cpu` |
#
# ## 2. 找到一个目标
#
# 库自带预训练权重：
#
# ```bash
# mshnet predict frame.png
# ```
#
# ```
# 1 frame of 1 file: 1 detection in 2 s
# weights  pretrained; their card: mshnet/pretrained.md
# results  predictions/pretrained
# ```
#
# | 在 `predictions/pretrained` 中 | 内容 |
# |---|---|
# | `overlays/` | 每一帧，标出检测结果 |
# | `masks/` | 检测结果，黑底白色，与帧同样大小 |
# | `detections.csv` | 每个检测一行：中心、边框、面积、最高与平均概率 |
# | `coco.json` | 同样的内容，供 COCO 工具使用 |
# | `frames.csv`、`skipped.csv` | 所有的帧；不能读取的文件及其原因 |
#
# ![一幅合成图像的一部分，标出八个检测，各有编号和概率](../../results/predict-large/part.png)
#
# 没有图像？不带参数时，`find_targets` 使用一幅真实图像：云层上方的一架无人机：

# %%
from mshnet import find_targets

find_targets()

# %% [markdown]
# 在脚本中请加上 `.show()`。`mshnet.detect("frame.png")` 以字典列表返回检测结果。如果在你的图像上什么都找不到，或者找到太多，见[新的相机](new_camera.ipynb)。[模型卡片](../../mshnet/pretrained.md)说明这些权重检测得多好，在哪里会失败。
#
# ## 3. 检查机器
#
# ```bash
# mshnet doctor
# ```
#
# 每一行都应是 `ok`。`warning` 可以等，`error` 不行；每一行都写出解决办法。退出状态按最差的一行为 0、1 或 2。
#
# ## 4. 用合成场景训练
#
# ```bash
# mshnet train --preset quick --output-dir runs/trial
# ```
#
# 完整大小的网络在合成天空的小图像上学习，在 2 个 CPU 核上几分钟即可。中途按 Ctrl-C 停下，再执行同一条命令：它会恢复。图在 `runs/trial/figures` 中。在 Linux 和 macOS 上，`make demo` 做同样的事，并显示在一个 notebook 中；在慢的 CPU 上它训练的 epoch 更少。
#
# 分数应接近这个预设的[五个种子](../../results/SCORES.md)。各台机器上不会完全相同。
#
# 训练多少个 epoch？`quick` 训练 9 个；用较大的预设先看看自己的数据时用 20；要得到结果用 200，即默认值。
#
# ## 5. 检查数据集
#
# 下面用 `data/NUAA-SIRST` 代表你的数据集文件夹。没有数据集时请传入 `NUAA-SIRST`：它会被下载（[数据集](datasets.zh-CN.ipynb)）。若是你自己的图像，先[制作掩膜和列表](own_images.ipynb)。
#
# ```bash
# mshnet data data/NUAA-SIRST
# ```
#
# 它报告图像和目标的数量、大小，以及一切错误：大小不同的掩膜、没有图像的名称、同时出现在两个列表中的图像。状态 2 表示训练会拒绝这个数据集。
#
# ## 6. 用它训练三个 epoch
#
# ```bash
# mshnet train data/NUAA-SIRST --base-size 128 --crop-size 128 --epochs 3 --output-dir runs/small
# mshnet test --weight-path runs/small
# ```
#
# 不要报告这些分数：图像故意取得太小。请看 `runs/small/figures/gallery.png`。如果看不到任何命中，掩膜可能与图像不符。epoch 这么少时，虚警可能出现在任何地方。
#
# `runs/small/best.pt` 是用来评测的权重，默认为最后一个 epoch 的权重。
#
# ## 7. 估计正式训练的时间
#
# ```bash
# mshnet bench --dataset-dir data/NUAA-SIRST
# ```
#
# 把 `train` 的时间（一幅图像）乘以训练图像的数量，再乘以 200 个 epoch。每次评测还要加上每幅测试图像的 `score` 时间；`--eval-every 200` 只评测一次。[设备、速度、内存](devices.ipynb)列出实测的时间。
#
# ## 8. 正式训练
#
# ```bash
# mshnet train data/NUAA-SIRST
# ```
#
# 200 个 epoch，在 256x256 下评测。如果机器的磁盘可能丢失（Colab、租用的机器），加上 `--mirror-dir DIR`，即一个在持久存储上的文件夹。如果只是进程可能中断，什么都不用加：同一条命令会[恢复](resume.ipynb)。
#
# ## 文件放在哪里
#
# 所有路径都相对于执行命令时所在的文件夹。在 JupyterLab 中，那是 notebook 所在的文件夹 `nbs/run`：在那里请用绝对路径。
#
# | 什么 | 哪里 |
# |---|---|
# | 数据集 | 你给出的路径；不存在时，`data/` 中的同名文件夹 |
# | `.zip` 压缩包 | 解压一次，到 `data/unpacked` |
# | 训练的文件夹 | `runs/` 中，各以数据和设置命名；`--output-dir` 另选一个 |
#
# ## 在 notebook 中
#
# ```bash
# pip install jupyterlab
# jupyter lab nbs/run/local.ipynb
# ```
#
# notebook [local](../run/local.ipynb) 不必修改即可从头运行到尾。没有浏览器时用 papermill：
#
# ```bash
# papermill nbs/run/local.ipynb out.ipynb -p dataset_dir data/NUAA-SIRST -p epochs 50 -p output_dir runs/mine
# ```
#
# 在 Python 中，取几秒即可完成的大小；第二次调用发现训练已完成，只作报告：

# %%
import tempfile

from mshnet.core import configure
from mshnet.train import train

tiny = {"scenes": 12, "base_size": 32, "crop_size": 32, "epochs": 2}
with tempfile.TemporaryDirectory() as folder:
    config = configure({**tiny, "device": "cpu", "output_dir": f"{folder}/trial"})
    run = train(config)
    again = train(config)
    print(run.listing().replace(folder, "runs"))

# %%
#| hide
assert len(run.config.recipe()) > 10 and again.ended == run.ended
