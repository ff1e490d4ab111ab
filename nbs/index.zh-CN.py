# %% [markdown]
# # MSHNet：在红外图像中检测小目标
#
# [English](index.ipynb)
#
# [![Licence: Apache-2.0](https://img.shields.io/badge/licence-Apache--2.0-blue)](../LICENSE) [![Python: 3.11 or newer](https://img.shields.io/badge/python-3.11%2B-blue)](../setup.py)
#
# 目标是天空、海面或地面背景中的亮点，至多约一百个像素。本项目用预训练权重检测目标，用你的图像训练 [MSHNet](https://arxiv.org/abs/2403.19366)（Liu 等，CVPR 2024；不是他们的代码），并用 notebook 讲解每一步。以英文文档为准；没有中文版的页面是英文的。
#
# ![三帧带检测标记的红外图像：检出的无人机；误作目标的云和下方漏检的无人机；漏检的鸟](images/frames.jpg)
#
# | 图像 | 中心（行，列） | 像素数 | 最大概率 | 结果 |
# |---|---|---|---|---|
# | 左：无人机 | 31, 138 | 23 | 1.00 | 检出 |
# | 中：云 | 108, 213 | 244 | 1.00 | 虚警 |
# | 中：无人机 | 145, 120 | - | - | 漏检 |
# | 右：鸟 | 154, 108 | - | - | 漏检 |
#
# 蓝色：检出；橙色：虚警；黄色：漏检；小图：放大。三帧是从 15 帧中挑选的，各示一种情形。在全部 15 帧中，权重检出 15 个目标中的 13 个，有 2 个虚警（[全部结果](../results/pretrained/frames.json)）。
#
# 这 15 帧是 161 段视频中每十段取一段的中间一帧（须有标注）。这 15 段视频没有用于训练，但权重是用它们选定的。来源：Svanström 等，Data in Brief 2021（[Zenodo 5500576](https://zenodo.org/records/5500576)，CC0）。
#
# ## 从这里开始
#
# ### 我有一幅图像
#
# 需要 Python 3.11 或更新的版本和一个[虚拟环境](guides/first_run.zh-CN.ipynb)。请下载本仓库，并在它的文件夹中执行命令。
#
# ```bash
# # 没有 NVIDIA GPU？在 Linux 上先执行：pip install torch --index-url https://download.pytorch.org/whl/cpu
# pip install "mshnet @ git+https://github.com/{{repo}}"   # PyPI 上的 mshnet 不是本项目
# mshnet predict mshnet/examples/drone.png   # 我们的示例，或你自己的图像
# ```
#
# `mshnet predict` 输出三行：
#
# ```text
# 1 frame of 1 file: 1 detection in 1 s
# weights  pretrained; their card: .../mshnet/pretrained.md
# results  predictions/pretrained
# ```
#
# 文件夹 `predictions/pretrained` 中有标注图（`overlays/`）、掩膜（`masks/`）和检测表（`detections.csv`、`coco.json`）。下一个输入的结果在 `predictions/pretrained-2` 中。输入可以是图像、文件夹、多页 TIFF 和视频（`pip install av`；可试 `mshnet/examples/drone.mp4`）。图像大小不限，8 位或 16 位。
#
# 在 Python 中：
#
# ```python
# import mshnet
#
# mshnet.find_targets("frame.png").save("marked.png")  # 在 Jupyter 中不用 .save(...)
# mshnet.detect("frame.png")                           # 字典的列表：中心、边框、面积、最高概率等
# ```
#
# **[检出太多，或什么都没检出？](guides/new_camera.ipynb)** `--min-area 4` 去掉少于 4 个像素的检测。`--threshold 0.2` 能检出更弱的目标，虚警也更多。
#
# **在新相机上效果如何？** 在未参与训练的图像上：
#
# | 图像 | 检出的目标（Pd） | 每帧的虚警 |
# |---|---|---|
# | NUAA-SIRST 的 213 幅图像，权重短训练时不含该数据集 | 0.900 | 0.07 |
# | IRSTD-1k 的 400 幅图像，权重短训练时不含该数据集 | 0.905 | 0.36 |
# | NUDT-SIRST 的 663 幅图像，权重短训练时不含该数据集 | 0.708 | 0.20 |
# | 上述视频中 31 段的 472 幅图像，权重短训练时不含全部 161 段 | 0.826 | 0.17 |
# | 同样的图像，预训练权重（其余视频大多用于训练） | 0.930 | 0.07 |
#
# 预训练权重是在这 31 段视频上选定的，预测的设置是在表中的许多图像上选定的，所以在你的相机上分数可能更低。[模型卡](../mshnet/pretrained.md)列出分数和已知的失败情况。
#
# ### 我有数据集
#
# 新手？[第一次运行](guides/first_run.zh-CN.ipynb)说明每一步。简言之：
#
# ```bash
# mshnet doctor                                            # 检查这台机器
# mshnet data data/NUAA-SIRST                              # 检查数据集（还没有数据？见下文）
# mshnet train data/NUAA-SIRST                             # 200 个 epoch（CPU：加 --eval-every 200）；再执行一次就恢复
# mshnet predict frame.png --weight-path runs/NAME         # 你的权重；NAME 由 train 打印
# mshnet test runs/NAME                                    # 再评测一次
# pip install onnx onnxruntime onnxscript                  # 下一行需要
# mshnet export runs/NAME                                  # 写出 runs/NAME/best.onnx
# mshnet train --help                                      # 常用的参数；--help-all：全部
# ```
#
# 数据集是一个文件夹，含有 `images/`、`masks/` 和两个名称列表（`trainval.txt` 或 `train.txt`，以及 `test.txt`），也可以是这种文件夹的 `.zip` 压缩包。还没有数据？`mshnet train --epochs 3` 用合成场景训练。`mshnet data NUAA-SIRST`（或 `NUDT-SIRST`、`IRSTD-1k`）下载到 `data/`（从未试过）。
#
# [自己的图像](guides/own_images.ipynb)说明掩膜、列表和微调，以及 40 幅图像带来的收益。训练把图像缩放到 256x256。用从随机权重训练得到的权重时，`mshnet predict` 按同样的倍数缩小每一帧：在 IRSTD-1k 的 512x512 图像上 IoU 因此为 0.560，而不是 0.377（如果像 `mshnet test` 那样把测试图像缩放到 256x256，则为 0.628）。`mshnet train --base-size native` 不缩放（只在微调时测量过）。
#
# ```python
# import mshnet
# from mshnet.explore import explore
#
# run = mshnet.train(mshnet.Config(dataset_dir="data/NUAA-SIRST"))  # 训练，或载入已完成的训练
# print(run)           # IoU、nIoU、F1、Pd、Fa：nbs/guides/scores.ipynb
# explore(run.folder)  # 在装有 ipywidgets 的 Jupyter 中浏览测试图像
# ```
#
# ### 我要用云端
#
# 下面的每个 notebook 安装、检测、训练、评测、画图；没有数据集时用合成图像，最多 20 个 epoch。我们只在 CPU 上测试过，从未在云端。在云端运行时{{published: 点击徽章，或}}上传两个文件：notebook 和一个 wheel，即整个库（在自己的机器上执行 `make wheel`）。[Colab 和 Kaggle](guides/cloud.zh-CN.ipynb) 逐步说明。
#
# | notebook | 机器 |
# |---|---|
# | [a100_setup](run/a100_setup.ipynb) [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/{{repo}}/blob/{{branch}}/nbs/run/a100_setup.ipynb) | 任何 Colab GPU（T4、L4、A100） |
# | [tpu_setup](run/tpu_setup.ipynb) [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/{{repo}}/blob/{{branch}}/nbs/run/tpu_setup.ipynb) | Colab TPU |
# | [kaggle_gpu](run/kaggle_gpu.ipynb) [![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)](https://kaggle.com/kernels/welcome?src=https://github.com/{{repo}}/blob/{{branch}}/nbs/run/kaggle_gpu.ipynb) | Kaggle，一块或两块 GPU |
# | [kaggle_tpu](run/kaggle_tpu.ipynb) [![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)](https://kaggle.com/kernels/welcome?src=https://github.com/{{repo}}/blob/{{branch}}/nbs/run/kaggle_tpu.ipynb) | Kaggle TPU |
# | [local](run/local.ipynb) | 自己的机器，在 Jupyter 中，或[用 papermill](guides/first_run.zh-CN.ipynb#在-notebook-中) |
#
# notebook 的标题是中英双语，正文是英文。
#
# ## 结果
#
# 我们没有复现论文：它的训练方案（`paper`，这里用 bf16）在 400 个 epoch 中训练 60 个就停止了，也没有在 IRSTD-1k 上运行。`steady` 是默认方案，在留出的训练图像上选定。测试列表上的分数；*IoU*：与真实像素的交并比；*Pd*：检出的目标所占的比例；*Fa*：每百万像素中虚警的像素数。
#
# | 数据集，训练/测试图像数 | 方案 | epoch 数 | 种子 | 平均 IoU | 最低 | 最高 | Pd | Fa | 坍塌 |
# |---|---|---|---|---|---|---|---|---|---|
# | NUAA-SIRST, 213/214 | `steady` | 200 | 0, 1, 2 | 0.713 | 0.682 | 0.749 | 0.933 | 10.1 | 0/3 |
# | NUAA-SIRST，各图像按原始尺寸 | `steady`，同样的权重 | 200 | 0, 1, 2 | 0.746 | 0.730 | 0.769 | 0.953 | 19.7 | 0/3 |
# | NUAA-SIRST, 213/214 | `paper` | 60/400 | 0, 1, 2 | 0.291 | 0.001 | 0.475 | 0.922 | 413.8 | 1/3 |
# | NUDT-SIRST, 663/664 | `steady` | 200 | 0, 1, 2 | 0.818 | 0.811 | 0.826 | 0.968 | 10.8 | 0/3 |
# | NUDT-SIRST, 663/664 | `paper` | 60/400 | 0, 1, 2 | 0.407 | 0.001 | 0.676 | 0.908 | 75.6 | 1/3 |
# | NUDT-SIRST | 已发表 | 400 | - | 0.8055 | - | - | 0.9799 | 11.77 | - |
# | IRSTD-1k, 800/201 | `steady` | 200 | 0, 1, 2 | 0.628 | 0.610 | 0.638 | 0.927 | 18.1 | 0/3 |
# | IRSTD-1k，各图像按原始尺寸 | `steady`，同样的权重 | 200 | 0, 1, 2 | 0.377 | 0.368 | 0.388 | 0.779 | 17.2 | 0/3 |
# | IRSTD-1k | 已发表 | 400 | - | 0.6716 | - | - | 0.9388 | 15.03 | - |
# | IRSTD-1k | 已发表，改正后的代码 | - | - | 0.6787 | - | - | 0.9286 | 8.88 | - |
#
# - **我们的分数：** 256x256 像素（NUDT-SIRST 的原始尺寸），bf16，阈值 0.5，[最优匹配（`exact`）](guides/scores.ipynb)，每个种子的最后一个 epoch。
# - **发表的分数**引自官方 README，其中没有说明划分，也没有 NUAA-SIRST。官方脚本报告在测试列表上最好的 epoch，并且不计某些虚警（[说明](guides/from_official.ipynb)）。两者都可能使发表的分数看起来更好。
# - **NUAA-SIRST：** `steady` 的三个早期版本在这个测试列表上评测过（平均 0.724 到 0.744），所以它的分数可能偏高（[详情](guides/results.ipynb)）。
# - **坍塌**的种子什么都不预测，或处处都预测为目标（IoU 低于 0.05）。平均 IoU 包含它们，Pd 和 Fa 不包含。
# - **近似重复：** 与训练图像几乎相同的测试图像，NUDT-SIRST 有 43 幅（去掉后平均 IoU 为 0.817，`paper` 0.408），IRSTD-1k 有 6 幅（0.626）。
# - **时间**（200 个 epoch，一个 CPU 线程，bf16）：NUAA-SIRST 单独运行约 40 分钟（估计），与其他程序同时运行 94 到 170 分钟；NUDT-SIRST 两小时，IRSTD-1k 5 到 8 小时，都与其他程序同时运行。默认每个 epoch 都评测，时间加倍（IRSTD-1k 多四分之一）。
#
# `--preset paper --rule reference` 遵循改正之后的[官方代码](https://github.com/Lliu666/MSHNet)（提交 46cdfd4）。[测试](../tests/test_golden.py)比较各个部分和六个训练步：计数完全相同，其余数值相差不超过 float32 的舍入误差。
#
# [全部结果](guides/results.ipynb)，[每个种子](../results/SCORES.md)。
#
# ## 测试过什么，在哪里测试
#
# *已测试*：通过了我们的自动测试；*已运行*：手动运行过；*已模拟*：用 CPU 代替。
#
# | 机器 | 安装、预测 | 训练 | 恢复训练 | 速度 |
# |---|---|---|---|---|
# | x86-64 上的 Linux，CPU | 已测试 | 已测试 | 已测试 | [已测量](guides/devices.ipynb) |
# | 一块 NVIDIA H200（torch 2.11） | 已运行（预测；没有日志） | 已运行：[bf16](../results/ladder/README.md) 训练 21 次；另外 fp32 1 个 epoch、fp16 2 个 epoch，没有日志 | 未运行 | 未测量 |
# | 多块 GPU | 已模拟：两个 CPU 进程 | 已模拟：两个 CPU 进程 | 已模拟 | 未测量 |
# | TPU | 未运行；notebook 在 CPU 上预测 | 已模拟：CPU 上的 XLA，1 个和 8 个虚拟设备 | 已模拟 | 未测量 |
# | Apple 芯片、macOS、Windows | 未运行 | 未运行 | 未运行 | 未测量 |
# | Colab、Kaggle、Google Drive | 已模拟：notebook 在 CPU 上执行 | 已模拟 | 已模拟：用文件夹代替 | 未测量 |
#
# | 数据和权重 | 状态 |
# |---|---|
# | NUAA-SIRST、NUDT-SIRST、IRSTD-1k | 训练了三个种子，已在测试列表上评测 |
# | `mshnet data NAME`（下载） | 已用本地压缩包测试，从未试用真实的下载地址 |
# | 已发布的 MSHNet 权重 | 已用同样格式的文件测试，从未载入已发布的文件 |
# | `eit`、`events`、`signs`（见下文） | 在 CPU 上训练了小模型；论文所用规模的网络从未训练过 |
#
# ## 同一引擎上的另外三个任务
#
# 它们检验训练、恢复训练和备份不依赖于检测任务。[你自己的任务](guides/task.ipynb)可以使用同一引擎。
#
# | 电阻抗层析成像：`--task eit` | 事件相机：`--task events` | 手语：`--task signs` |
# |---|---|---|
# | ![模拟的水槽及其重建图像](images/eit.jpg) | ![一个数字的四个事件时段，模拟](images/events.jpg) | ![四帧中的两只手，模拟](images/signs.jpg) |
# | 由水槽边缘的电压得到电导率（模拟；左：真值，右：重建） | 由亮度变化的记录得到类别（模拟；红：变亮） | 由手部轨迹或视频得到手语词（gloss）（模拟：四帧中的两只手） |
# | 依照 [CDEIT](https://arxiv.org/abs/2412.16979) 的小模型 | 依照 [Mamba-Spike](https://arxiv.org/abs/2408.11823) 的小模型 | 手部轨迹：我们自己的网络；视频：小的 [TFNet](https://arxiv.org/abs/2409.11960)，只在模拟视频上训练 |
# | [指南](guides/eit.ipynb)、[notebook](run/eit.ipynb)、[权重](../mshnet/pretrained-eit.md) | [指南](guides/events.ipynb)、[notebook](run/events.ipynb) | [指南](guides/signs.ipynb)、[notebook](run/signs.ipynb) |
#
# 真实数据上种子 0、1、2 的平均值（`events`：种子 0），旁边是我们运行的基线。在最后一行的句子上，我们的网络平均有 18 个错误，基线有 21 个。
#
# | 任务 | 真实数据 | 指标 | 分数 | 基线 |
# |---|---|---|---|---|
# | `eit` | UEF 2017 的 22 个水槽 | 与真实图像的相关系数 | 0.817 | 0.782（高斯-牛顿） |
# | `eit` | KTC 2023 的 25 个水槽 | 与真实图像的相关系数 | 0.790 | 0.782（高斯-牛顿） |
# | `events` | N-MNIST 的 1,100 条记录，五折；方案是在其中一些上选定的 | 准确率 | 0.967 | 0.875（逻辑回归） |
# | `signs` | BOSTON-104 的 40 个句子，手部轨迹；其中 26 个也在训练中 | 词错误率，越低越好 | 0.189 | 0.247（动态时间规整） |
# | `signs` | 其中 14 个不在训练中的句子 | 词错误率，越低越好 | 0.264 | 0.313（动态时间规整） |
#
# ## 会话结束时
#
# 再执行一次同样的命令或 notebook，训练就会恢复。Ctrl-C 或关闭终端（Windows 除外）之后什么都不会丢失，进程被杀死之后最多丢失两个 epoch。如果磁盘可能丢失，用 `--mirror-dir DIR` 保存备份（在 Colab 中是 Drive）。Kaggle 只在保存版本（Save Version）时保留文件。[所有情况](guides/resume.ipynb)。
#
# ## 指南
#
# | 你想 | 指南 |
# |---|---|
# | 开始 | [安装与第一次运行](guides/first_run.zh-CN.ipynb)、[Colab 和 Kaggle](guides/cloud.zh-CN.ipynb)、[自己的图像](guides/own_images.ipynb)、[数据集](guides/datasets.zh-CN.ipynb) |
# | 选择设备 | [设备、速度、内存](guides/devices.ipynb)、[TPU](guides/tpu.zh-CN.ipynb) |
# | 使用 | [新的相机](guides/new_camera.ipynb)、[自己的程序](guides/deploy.ipynb) |
# | 理解 MSHNet | [一页看懂](guides/one_page.ipynb)、[网络](00_model.ipynb)、[损失](01_loss.ipynb)、[坍塌](41_detection.ipynb)、[指标](02_metrics.ipynb)、[数据增强](22_augment.ipynb) |
# | 比较分数 | [定义](guides/scores.ipynb)、[结果](guides/results.ipynb)、[从官方脚本迁移](guides/from_official.ipynb) |
# | 解决问题 | [故障排查](guides/trouble.zh-CN.ipynb)、[恢复训练](guides/resume.ipynb)、[术语表](guides/glossary.ipynb) |
# | 扩展 | [从图像到分数](guides/fifteen.ipynb)、[自己的任务](guides/task.ipynb)、[训练循环](37_train.ipynb) |
#
# ## 参与开发
#
# ```bash
# git clone https://github.com/{{repo}}
# cd mshnet
# make demo        # 安装到 .venv（好几个 GB），再用合成场景训练
# ```
#
# [CONTRIBUTING](../CONTRIBUTING.md) 说明怎样修改本项目。[Experiments](../experiments/README.md) 记录试过什么，[changelog](../CHANGELOG.md) 列出更新。
#
# ## 引用与许可
#
# 本项目是依 [Apache-2.0](../LICENSE) 许可的独立实现。作者的代码仓库没有写明许可证。请引用这个方法（和[软件](../CITATION.cff)）：
#
# ```bibtex
# @inproceedings{liu2024mshnet,
#   title = {Infrared Small Target Detection with Scale and Location Sensitivity},
#   author = {Liu, Qiankun and Liu, Rui and Zheng, Bolun and Wang, Hongkui and Fu, Ying},
#   booktitle = {CVPR},
#   pages = {17490--17499},
#   year = {2024}
# }
# ```
