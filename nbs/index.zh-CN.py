# %% [markdown]
# # MSHNet
#
# [English](index.ipynb)
#
# [![Licence: Apache-2.0](https://img.shields.io/badge/licence-Apache--2.0-blue)](../LICENSE) [![Python: 3.11 or newer](https://img.shields.io/badge/python-3.11%2B-blue)](../setup.py)
#
# 在红外图像中找出小目标：天空、海面或地面背景中的几个明亮像素。本项目在 TPU、NVIDIA GPU、Apple 芯片和 CPU 上训练、评测和使用 [MSHNet](https://arxiv.org/abs/2403.19366)（Liu 等，CVPR 2024）。它是一套笔记本，以及由它们导出的 Python 库。
#
# ![测试场景，由差到好：图像、概率、命中、漏检与虚警](../results/scenes-quick/figures/gallery.png)
#
# - **能检测。** 附带训练好的权重。默认的训练设置 `steady` 在我们测过的每个种子上都训练出了可用的结果。
# - **正确。** 网络、损失、数据变换和指标与官方代码一致：计数逐像素相同，其余相差不超过 float32 的舍入误差（见[测试](../tests/test_golden.py)）。每个分数都与其评测协议一起保存。
# - **不丢进度。** 训练中断后，再执行一次同样的命令就会继续。在同一块 CPU 上使用 `--deterministic` 时，权重逐位相同。
# - **可以学习。** 每个笔记本讲解一个部分：为什么，怎么做，结果如何，有哪些边界情况。
#
# 文档以英文为准；本页与带“中文”标记的指南由测试检查，其命令与英文版保持一致。
#
# ## 现在就找一个目标
#
# ```bash
# pip install "mshnet @ git+https://github.com/{{repo}}"   # 不要直接 `pip install mshnet`：那个名字不是我们的
# mshnet predict frame.png                                 # 掩膜、检测表和标注图，写在 predictions/ 中
# ```
#
# ```python
# import mshnet
#
# mshnet.find_targets("frame.png")  # 标出目标的图片；"" 会画一个合成场景
# mshnet.detect("frame.png")        # 每个目标的中心、边框、面积和概率
# ```
#
# `predict` 接受图像、文件夹、通配符、多页 TIFF 和视频（`pip install av`），大小不限，8 位或 16 位。预训练权重用 NUAA-SIRST 和 NUDT-SIRST 的训练列表训练，从未见过它们的测试列表。[模型卡](../mshnet/pretrained.md)（英文）说明数据及其使用条款、分数、校准和失败的情况。要使用自己训练的权重或[已发布的权重](https://github.com/Lliu666/MSHNet)，请用 `--weight-path`。
#
# ## 打开运行笔记本
#
# 运行笔记本从头到尾依次找目标、训练、评测和画图。没有数据集时使用合成场景。
#
# | 笔记本 | 适用于 | 打开 |
# |---|---|---|
# | [local](run/local.ipynb) | 笔记本电脑或工作站 | 在 Jupyter 中 |
# | [a100_setup](run/a100_setup.ipynb) | Colab 的 A100 | [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/{{repo}}/blob/{{branch}}/nbs/run/a100_setup.ipynb) |
# | [tpu_setup](run/tpu_setup.ipynb) | Colab 的 TPU | [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/{{repo}}/blob/{{branch}}/nbs/run/tpu_setup.ipynb) |
# | [kaggle_tpu](run/kaggle_tpu.ipynb) | Kaggle 的 TPU | [![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)](https://kaggle.com/kernels/welcome?src=https://github.com/{{repo}}/blob/{{branch}}/nbs/run/kaggle_tpu.ipynb) |
# | [kaggle_gpu](run/kaggle_gpu.ipynb) | Kaggle 的一块或两块 GPU | [![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)](https://kaggle.com/kernels/welcome?src=https://github.com/{{repo}}/blob/{{branch}}/nbs/run/kaggle_gpu.ipynb) |
# | [eit](run/eit.ipynb) | 电阻抗层析成像 | [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/{{repo}}/blob/{{branch}}/nbs/run/eit.ipynb) |
# | [events](run/events.ipynb) | 事件相机 | [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/{{repo}}/blob/{{branch}}/nbs/run/events.ipynb) |
# | [signs](run/signs.ipynb) | 手语 | [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/{{repo}}/blob/{{branch}}/nbs/run/signs.ipynb) |
#
# 无人值守时，在克隆的仓库中先执行 `pip install -e '.[notebook]'`，然后执行：`papermill nbs/run/local.ipynb out.ipynb -p dataset_dir data/NUAA-SIRST -p epochs 50`。任何设置都可以作为参数。这些笔记本已用 papermill 在 CPU 上测试；由于没有条件，未在 TPU、Apple 芯片、macOS、Windows、Colab、Kaggle 和 Google Drive 上测试。
#
# ## 训练与评测
#
# ```bash
# mshnet doctor                                            # 这台机器是什么，能做什么
# mshnet data data/NUAA-SIRST                              # 数据集，以及其中的所有问题
# mshnet train --dataset-dir data/NUAA-SIRST               # 200 个 epoch；再执行一次就继续
# mshnet test --dataset-dir data/NUAA-SIRST                # 评测预训练权重，或用 --weight-path RUN/best.pt 指定
# mshnet export --weight-path runs/NUAA-SIRST-*/best.pt    # ONNX，需 pip install '.[export]'
# mshnet compare runs/NUAA-SIRST-*                         # 多次训练并排比较
# mshnet pack runs/NUAA-SIRST-*                            # 把一次训练打包成一个文件
# mshnet bench --dataset-dir data/NUAA-SIRST               # 速度和内存
# ```
#
# `mshnet COMMAND --help-all` 列出全部设置。数据集可以是一个文件夹，含有 `images/`、`masks/` 和名称列表（`trainval.txt` 与 `test.txt`，或 IRSTD-1k 的结构）；也可以是这种文件夹的压缩包；还可以是一个名称，此时会自动下载：`NUAA-SIRST`、`IRSTD-1k`、`NUDT-SIRST`，并采用多数论文的名称列表（见[笔记本](13_fetch.ipynb)（英文）；下载地址未经试用）。
#
# ```python
# import mshnet
# from mshnet.explore import explore
#
# run = mshnet.train(mshnet.Config(dataset_dir="data/NUAA-SIRST"))
# print(run)           # IoU、nIoU、F1、Pd、Fa；run.scores 另含评测协议
# explore(run.folder)  # 控件：测试图像，由差到好，带阈值滑块
# ```
#
# ## 结果
#
# 在 256x256（`quick` 为 128x128）上的测试分数，种子未经挑选：最后一个 epoch，全部训练图像，阈值 0.5，[规则 exact](guides/scores.ipynb)（英文）。Pd 为找到的目标所占比例，Fa 为每百万像素中的误检像素数。IoU 低于 0.05 的种子记为失效。NUDT-SIRST 的两个列表中有相近的图像；去掉它们，平均 IoU 为 0.817 和 0.408。
#
# | 设置、数据 | epoch 数 | 种子 | 平均 IoU | 最低 | 最高 | Pd | Fa | 失效 |
# |---|---|---|---|---|---|---|---|---|
# | `steady`、`--crop native`，NUAA-SIRST | 200 | 0, 1, 2 | 0.729 | 0.711 | 0.740 | 0.940 | 15.4 | 0 of 3 |
# | `steady`，NUDT-SIRST | 200 | 0, 1, 2 | 0.818 | 0.811 | 0.826 | 0.968 | 10.8 | 0 of 3 |
# | `paper`，NUAA-SIRST | 60 | 0, 1, 2 | 0.291 | 0.001 | 0.475 | 0.617 | 330684.4 | 1 of 3 |
# | `paper`，NUDT-SIRST | 60 | 0, 1, 2 | 0.407 | 0.001 | 0.676 | 0.611 | 325853.5 | 1 of 3 |
# | `quick`，合成场景 | 9 | 0, 1, 2, 3, 4 | 0.835 | 0.825 | 0.844 | 0.983 | 5.1 | 0 of 5 |
#
# **其他任务**，真实数据上种子 0、1、2 的平均值：
#
# | `--task` | 分数 | 简单方法 |
# |---|---|---|
# | `eit`：[电阻抗层析成像](guides/eit.ipynb)（英文） | 相关系数 0.817 (UEF), 0.790 (KTC) | 高斯-牛顿 0.782, 0.782 |
# | `events`：[事件相机](guides/events.ipynb)（英文） | 准确率 0.977 | 逻辑回归 0.900 |
# | `signs`：[手语](guides/signs.ipynb)（英文） | WER 0.189 | 时间规整 0.247 |
#
# [结果](guides/results.ipynb)（英文）列出这些数字的文件夹、与普通脚本相比的速度，以及尚未测量的内容。
#
# ## 会话中断时
#
# 再执行一次同样的命令或同一个笔记本。按下中断、关闭终端或会话时间用完，什么都不会丢。进程被杀死时，最多丢失正在进行的 epoch 和它的前一个。使用 `--mirror-dir`（在 Colab 中是 Drive）时，机器没有了，训练也能保住。[这篇指南](guides/resume.ipynb)（英文）列出所有情况。
#
# ## TPU 与多块 GPU
#
# `mshnet train --device xla --preset tpu` 在一个进程中使用全部芯片。**没有真实的 TPU 可用**：代码在 torch_xla 的 CPU 运行时上运行过，使用 1 个和 8 个虚拟设备；在那里损失与普通 PyTorch 一致，没有程序编译两次（见 [TPU](guides/tpu.zh-CN.ipynb)）。`mshnet train --num-devices 2` 使用两块 GPU，也可以用 `torchrun` 启动（见[设备](guides/devices.ipynb)（英文））；已用 CPU 上的两个进程测试。
#
# ## 指南
#
# | 指南 | 内容 |
# |---|---|
# | [先做一次小试验](guides/first_run.zh-CN.ipynb) | 花一天之前先花十分钟 |
# | [选择设备](guides/devices.ipynb)（英文）、[自己的机器](guides/first_run.zh-CN.ipynb) | Linux、Windows、MacBook |
# | [Colab](guides/cloud.zh-CN.ipynb)、[Kaggle](guides/cloud.zh-CN.ipynb)、[TPU](guides/tpu.zh-CN.ipynb) | 两个文件，不需要账户 |
# | [从官方脚本迁移](guides/from_official.ipynb)（英文） | 参数、差异、已发布的权重 |
# | [指标的定义](guides/scores.ipynb)（英文） | 以及为什么已发表的数值不同 |
# | [速度与内存](guides/devices.ipynb)（英文） | 按设备列出的表格 |
# | [从图像到分数](guides/fifteen.ipynb)、[编写自己的任务](guides/task.ipynb)（英文） | 亲手调用十五个函数；换网络、换损失、换问题 |
# | [故障排查](guides/trouble.zh-CN.ipynb)、[图集](guides/results.ipynb)（英文） | 按现象查找；本项目会画哪些图 |
#
# ## 笔记本
#
# 这些笔记本都是英文的。
#
# | 部分 | 笔记本 |
# |---|---|
# | 方法 | [网络](00_model.ipynb)、[损失](01_loss.ipynb)、[指标](02_metrics.ipynb) |
# | 基础 | [设置](10_core.ipynb)、[文件](11_files.ipynb)、[运行环境与文件夹](12_places.ipynb)、[下载](13_fetch.ipynb)、[训练设置](14_recipe.ipynb)、[备份](15_mirror.ipynb) |
# | 图像 | [合成场景](20_scenes.ipynb)、[数据](21_data.ipynb)、[数据增强](22_augment.ipynb)、[帧](23_frames.ipynb) |
# | 引擎 | [设备](30_device.ipynb)、[TPU](31_xla.ipynb)、[多进程](32_ranks.ipynb)、[权重](33_weights.ipynb)、[训练的文件夹](34_run.ipynb)、[会话](35_session.ipynb)、[任务](36_task.ipynb)、[训练循环](37_train.ipynb) |
# | 检测器 | [CPU](40_cpu.ipynb)、[检测](41_detection.ipynb)、[分析](42_analyse.ipynb)、[评测](43_evaluate.ipynb) |
# | 使用 | [图片](50_show.ipynb)、[交互窗口](51_explore.ipynb)、[导出](52_export.ipynb)、[预测](53_predict.ipynb)、[比较](54_compare.ipynb)、[测速](55_bench.ipynb)、[机器检查](56_doctor.ipynb)、[命令](57_cli.ipynb)、[启动](58_main.ipynb) |
# | 其他任务 | [层析成像](eit/00_tank.ipynb)、[事件相机](events/00_recordings.ipynb)、[手语](signs/00_glosses.ipynb) |
#
# ## 参与开发
#
# 在 Linux 或 macOS 上，需要 git 和 make（Windows：见[指南](guides/first_run.zh-CN.ipynb)）：
#
# ```bash
# git clone https://github.com/{{repo}}
# cd mshnet
# make demo        # 在 CPU 上用合成场景训练
# make test-all    # 任何修改都必须通过的全部检查
# ```
#
# 它们会自己建立 `.venv`；`make test-all` 还会建立 `.venv-xla`（7 GB，仅限 x86-64 的 Linux）。请读 [CONTRIBUTING](../CONTRIBUTING.md)、[LOG](../LOG.md)（试过什么）和 [CHANGELOG](../CHANGELOG.md)。
#
# **你自己的副本：** 在 `settings.ini` 的 `user` 中写入你的 GitHub 用户名，执行 `make build`，然后提交并推送。
#
# ## 来源与许可
#
# 本项目是依 [Apache-2.0](../LICENSE) 许可的独立实现。它与作者的代码仓库没有共用代码，后者没有许可证。引用时请引用这个方法；引用本软件见 [CITATION.cff](../CITATION.cff)：
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
