# %% [markdown]
# # 开始：安装与第一次运行
#
# > 写给会用终端的新手。读完后：库已装好，找到了一个目标，完成并恢复过一次小规模训练，并检查了你的数据集。

# %% [markdown]
# [English](first_run.ipynb)
#
# 第 1 到 4 步不需要数据。不想安装、只用浏览器时，请看 [Colab 与 Kaggle](cloud.zh-CN.ipynb)。未翻译的页面为英文。
#
# ## 1. 安装
#
# 需要 Python 3.11 或更新的版本{{published: 和 git}}；`python3 --version`（Windows：`py --version`）显示你的版本。如果太旧，请安装新版本，并在下面写例如 `python3.12`（Windows：`py -3.12`）。（Debian 和 Ubuntu 还需要软件包 `python3-venv`。）请在本项目的文件夹（其中有 `setup.py`）中打开终端{{published: （`git clone` 会创建这个文件夹）}}。我们安装到一个虚拟环境中，使 PyTorch 不影响你的其他项目。
#
# **Linux 与 macOS：**
#
# ```bash
# git clone https://github.com/{{repo}}
# cd mshnet
# python3 -m venv .venv
# source .venv/bin/activate
# # 没有 NVIDIA GPU 时先执行：pip install torch --index-url https://download.pytorch.org/whl/cpu
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
# 每打开一个新终端，都要再执行一次 `activate` 那一行。不要从 PyPI 安装 `mshnet`：那个名称属于另一个项目。
#
# | 系统 | 是否测试过 | 须知 |
# |---|---|---|
# | Linux，x86-64 | 是，在 CPU 上；在一块 NVIDIA H200 上运行过训练和预测 | pip 的 PyTorch 含 CUDA，有好几个 GB；注释中的那一行改为安装 CPU 版。用 conda 时：`conda create -n mshnet python=3.11 pip`，`conda activate mshnet`，再执行上面的 pip 各行 |
# | Windows | 否 | 如果 PowerShell 拒绝执行 `activate`，请用命令提示符。pip 的 PyTorch 是 CPU 版；有 NVIDIA GPU 时先安装 pytorch.org 给出的 CUDA 版。不需要 `make` |
# | macOS | 否 | 在 Apple 芯片（M1 及以后）上默认设备是 GPU（`--device mps`），用 float32。pip 找不到适用于 Intel 版 Python 的 `torch>=2.8`：请安装 arm64 版。mshnet 不能在 Intel 处理器的 Mac 上运行。如果 GPU 太慢或结果不对，用 `--device cpu` |
#
# ## 2. 找到一个目标
#
# 库自带预训练权重：
#
# ```bash
# mshnet predict mshnet/examples/drone.png
# ```
#
# ```
# 1 frame of 1 file: 1 detection in 1 s
# weights  pretrained; their card: .../mshnet/pretrained.md
# results  predictions/pretrained
# ```
#
# 请换成你自己的图像、文件夹或视频的名称。每个新的输入得到一个新的文件夹，例如 `predictions/pretrained-2`；最后一行给出它的名称。
#
# | 在 `predictions/pretrained` 中 | 内容 |
# |---|---|
# | `overlays/` | 每一帧，标出检测结果 |
# | `masks/` | 检测结果，黑底白色，与帧同样大小 |
# | `detections.csv` | 每个检测一行：中心（行和列，左上角为 0）、边框、面积、最高与平均概率 |
# | `coco.json` | 同样的内容，供 COCO 工具使用 |
# | `frames.csv` | 每帧一行，及其检测数 |
# | `skipped.csv` | 不能读取的文件及其原因 |
# | `summary.json` | 这次预测的设置 |
# | `records/` | 哪些文件已完成；再次运行同一命令时跳过 |
#
# 在 Python 中，`find_targets("frame.png")` 返回标出检测结果的图像。不带参数时，它使用上面的那一帧，即云层上方的一架无人机：

# %%
from mshnet import find_targets

find_targets()

# %% [markdown]
# 在脚本中请加上 `.show()`。`mshnet.detect("frame.png")` 以字典列表返回检测结果。如果在你的图像上什么都找不到，或者找到太多，见[新的相机](new_camera.ipynb)。[模型卡](../../mshnet/pretrained.md)列出分数和已知的失败情况。
#
# ## 3. 检查机器
#
# ```bash
# mshnet doctor
# ```
#
# 每一行以 `ok`、`warning` 或 `error` 开头；错误都写出解决办法，警告见[故障排查](trouble.zh-CN.ipynb)。训练之前请先改正 `error`；`warning` 可以等。全部正常时退出状态为 0，有警告时为 1，有错误时为 2。
#
# ## 4. 用合成场景训练
#
# ```bash
# mshnet train --preset quick --output-dir runs/trial
# ```
#
# 这会用合成天空的小图像训练完整大小的网络，在 2 个 CPU 核上几分钟即可。按 Ctrl-C 停下，再执行同一条命令：它会恢复。结束时图在 `runs/trial/figures` 中。
#
# 训练完全部 9 个 epoch 后，你的 IoU 应在 0.83 左右：这个预设的[五个种子](../../results/SCORES.md)为 0.825 到 0.844。
#
# ## 5. 检查数据集
#
# 请把 `data/NUAA-SIRST` 换成你的数据集文件夹。没有数据集？`mshnet data NUAA-SIRST` 把一个数据集[下载](datasets.zh-CN.ipynb)到 `data/NUAA-SIRST`（没有试过）。若是你自己的图像，先[制作掩膜和列表](own_images.ipynb)。
#
# ```bash
# mshnet data data/NUAA-SIRST
# ```
#
# 它报告图像和目标的数量与大小，并列出错误（例如列表中的名称没有对应的图像）和警告（例如反转的掩膜）。有错误时退出状态为 2，训练会拒绝这个数据集。
#
# ## 6. 用它训练三个 epoch
#
# ```bash
# mshnet train data/NUAA-SIRST --base-size 128 --crop-size 128 --epochs 3 --output-dir runs/small
# mshnet test runs/small
# ```
#
# 不要报告这些分数：为了省时间，图像缩小到了 128x128 像素。请看 `runs/small/figures/gallery.png`。epoch 这么少时，出现虚警是正常的。但如果一个目标也没有检出，掩膜可能与图像不符。
#
# 评测的权重在 `runs/small/best.pt` 中：尽管名称如此，默认是最后一个 epoch 的权重。
#
# ## 7. 估计正式训练的时间
#
# ```bash
# mshnet bench data/NUAA-SIRST
# ```
#
# 需要一两分钟。在它的表中，从 `train, batch 4` 和 `score, batch 4` 两行读出 `ms/image`。NUAA-SIRST 有 213 幅训练图像和 214 幅测试图像，所以
#
# ```
# hours = 200 * (213 * train + 214 * score) / 3_600_000
# ```
#
# 默认每个 epoch 都要评测。用 `--eval-every 200` 时只评测最后一个：`hours = (200 * 213 * train + 214 * score) / 3_600_000`。[设备、速度、内存](devices.ipynb)列出实测的时间。
#
# ## 8. 正式训练
#
# ```bash
# mshnet train data/NUAA-SIRST    # 在 CPU 上加 --eval-every 200：时间减半
# ```
#
# 这会训练 200 个 epoch，在 256x256 像素下评测。测试 IoU 应在 0.68 到 0.75 左右（[三个种子](results.ipynb)）。中断之后，同一条命令会[恢复](resume.ipynb)。如果机器的磁盘可能丢失（Colab、租用的机器），加上 `--mirror-dir DIR`，其中 DIR 是持久存储上的一个文件夹。
#
# ## 文件放在哪里
#
# 所有路径都相对于执行命令时所在的文件夹。在 JupyterLab 中，那是 notebook 所在的文件夹，所以在那里请用绝对路径。
#
# | 什么 | 哪里 |
# |---|---|
# | 数据集 | 你给出的路径，已知名称则为 `data/NAME` |
# | `.zip` 压缩包 | 解压一次，到 `data/unpacked` |
# | 运行文件夹 | `runs/` 中，各以数据和设置命名；`--output-dir` 另选一个 |
#
# ## 在 notebook 中
#
# ```bash
# pip install jupyterlab
# jupyter lab nbs/run/local.ipynb
# ```
#
# notebook [local](../run/local.ipynb) 不必修改即可从头运行到尾。没有浏览器时用 papermill，第 1 步已经装好：
#
# ```bash
# papermill nbs/run/local.ipynb out.ipynb -p dataset_dir data/NUAA-SIRST -p output_dir runs/mine
# ```
#
# ## 在 Python 中
#
# 图像很小，只有两个 epoch，所以训练只需几秒，也还什么都检测不到：IoU 为 0.00 是正常的。再执行一次这个单元格，它只报告已完成的训练。

# %%
#| hide
import os
import tempfile

elsewhere = tempfile.TemporaryDirectory()
os.chdir(elsewhere.name)

# %%
import mshnet

config = mshnet.Config(
    scenes=12, base_size=32, crop_size=32, epochs=2, device="cpu", output_dir="runs/tiny"
)
run = mshnet.train(config)

# %% [markdown]
# **接下来：** [自己的图像](own_images.ipynb)、[新的相机](new_camera.ipynb)、[故障排查](trouble.zh-CN.ipynb)。

# %%
#| hide
assert len(run.config.recipe()) > 10 and run.finished
os.chdir("/")
elsewhere.cleanup()
