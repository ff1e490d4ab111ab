# %% [markdown]
# # 连续手语（TFNet）：从 MindSpore 教程到这里
#
# > 输入一句手语的视频，输出它的词目（gloss）：为读过 MindSpore GPU 教程的人逐节说明该输入什么。
#
# [English](signs.ipynb)
#
# 任务名为 `signs`。什么都不用下载：没有数据集时使用模拟的手语。下面的命令在 CPU 上用模拟视频训练一个小的 TFNet、评分，并画出它读到的内容：
#
# ```bash
# mshnet train --task signs --preset quick
# ```
#
# 六个 epoch 用一个 CPU 核心计算约一分半钟。从 jpg 图片文件夹读取时，80 句模拟测试句的词错误率为 0.014、0.021 和 0.046（种子 [0](../../results/signs-simulated/seed0)、[1](../../results/signs-simulated/seed1) 和 [2](../../results/signs-simulated/seed2)）。
#
# **没有验证什么：** 没有 CE-CSL 的视频，也没有真实的 GPU 或 TPU 可用。TFNet 在 CE-CSL 上公布的词错误率 41.9% 是我们无法检验的目标。检验过的是：网络与公布的网络逐个数值相同（输出、损失、梯度），标签与公布的相同，并且用 201 句真实的美国手语训练过。
#
# ## 是否齐全？
#
# 一条命令代替原教程对驱动、设备、内存、磁盘和软件包的检查，也代替它的安装测试。每项检查是一行，附有解决办法；如果无法训练，退出状态为 2：
#
# ```bash
# mshnet doctor --task signs
# ```
#
# 环境叫什么名字都可以。Windows、Linux、CUDA、Apple 和 TPU 的命令相同。
#
# ## 数据
#
# CE-CSL 可以采用教程的布局 `label/train.csv` 和 `video/train/A/train-00001.mp4`，也可以采用作者自己的布局：每个视频一个 jpg 图片文件夹。手部轨迹是位置的表格（各列见[片段](../signs/03_clips.ipynb)）。第一行报告文件夹里有什么，第二行按 CE-CSL 的布局写出模拟视频：
#
# ```bash
# mshnet data --task signs data/CE-CSL
# mshnet data --task signs --write mine --signs 20
# ```
#
# 没有帧的视频不会用零代替，损坏的标签也不会被悄悄丢掉：
#
# | 提示 | 原因 | 怎么办 |
# |---|---|---|
# | `frames, and its ... glosses need ...` | 网络每四帧一步，而标签的每个词目至少需要一步 | 视频剪得太短，或者配了别的标签 |
# | `no video (... is missing or empty)` | 有标签而没有文件 | 补全数据，或写 `--on-bad-image skip`：全部计数并略去 |
# | `an empty gloss` | 标签只有斜杠或注释 | 修正标签 |
# | `glosses are separated by ...` | 标签用空格、逗号或全角斜杠分隔 | 在词目之间写 `/` |
# | `... (it is not UTF-8; save a text of another encoding, such as GBK, as UTF-8)` | 中文 Windows 的表格 | 另存为 UTF-8 |
# | `a vocabulary of another set` | 权重与数据没有共同的词目 | 使用这个数据集的权重 |
#
# 词表只由训练部分产生。括号里的注释和变体的编号按公布的规则去掉；这样 CE-CSL 有 3,515 个词目。CTC 的空白编号为 0。（移植版中空白占用了最后一个词目的编号，那个词目永远读不出来。）
#
# ## 训练
#
# 原教程的写法与今天的写法：
#
# | 原教程 | 这里 |
# |---|---|
# | `python train_tfnet_gpu.py --config FILE.json` | `mshnet train --task signs --preset paper`，加上下面的选项 |
# | 该文件的各节 | 不读取；下表给出每个键对应的选项 |
# | `--resume` | 再执行同一条命令 |
# | `--dry-run` | `mshnet doctor --task signs`，加上同样的选项 |
# | 图模式 | `--compile on`；`off` 显示出错的那一行 |
# | 自动混合精度 | `--precision auto`；CTC 与蒸馏总是用 float32 |
# | 早停，耐心 10 | `--choose val --patience 10` |
# | 梯度裁剪 1.0 | `--clip-grad 1` |
#
# 原教程文件中的键与今天的选项。预设 `paper` 已有公布的值，例如 CTC 空白 0、蒸馏温度 8、Adam；MindSpore 自身的键在这里没有意义：
#
# | 键 | 选项 |
# |---|---|
# | `dataset.crop_size`、`dataset.max_frames` | `--crop`、`--max-frames` |
# | `dataset.train_data_path`、... `test_label_path` | `--dataset-dir` |
# | `model.hidden_size` | `--hidden` |
# | `model.device_target`、`device_id` | `--device cpu`、`cuda:0` |
# | `model.enable_auto_mixed_precision` | `--precision auto`、`fp32` |
# | `training.batch_size`、`learning_rate`、`num_epochs` | `--batch-size`、`--lr`、`--epochs` |
# | `training.num_workers`、`weight_decay`、`gradient_clip_norm` | `--num-workers`、`--weight-decay`、`--clip-grad` |
# | `training.eval_interval`、`early_stopping_patience` | `--eval-every`、`--choose val --patience` |
# | `loss.kd_weight` | `--distil-weight` |
# | `paths.output_dir`、`logging.print_interval` | `--output-dir`、`--log-every` |
# | `gpu_optimization.enable_graph_mode` | `--compile on`、`off` |
#
# ```bash
# mshnet train --task signs --preset paper --dataset-dir data/CE-CSL --batch-size 8 --micro-batch 1 --lr 2e-4
# mshnet train --task signs --preset paper --dataset-dir data/CE-CSL --weight-path start.pt
# ```
#
# `--preset paper` 是公布的配方：73,274,003 个参数，批量 2，55 个 epoch，学习率 1e-4，下降两次。公布的训练从在 ImageNet 上训练过的 ResNet-34 开始，即 torchvision 公布的文件：请自行下载。下面几行由它做成 `start.pt`，供 `--weight-path start.pt` 使用；没有它时，同一个网络从随机权重开始，需要更多数据。`--network vac` 是较轻的基线。
#
# ```python
# import torch
# from mshnet.signs.networks import Frames, TwoBranch
#
# network = TwoBranch(Frames(), 3516)  # glosses of CE-CSL, and the blank
# known, own = torch.load("resnet34.pth", weights_only=True), network.conv2d.state_dict()
# own |= {k: v.unsqueeze(2) if v.ndim == 4 else v for k, v in known.items() if k in own}
# network.conv2d.load_state_dict(own)
# torch.save(network.state_dict(), "start.pt")
# ```
#
# 公布的代码的蒸馏让梯度流入教师，可能以 NaN 告终；`--distil published` 也这样做，默认设置不这样做。
#
# ## 内存与速度
#
# 原教程按显存分档的表格在这里是 `--preset paper` 的几个选项。`--micro-batch 1` 逐个片段计算一个批量，再把梯度相加，所以显存只需放下一个片段，而不是一个批量。显存较小时读取的帧也较少，批量和学习率也较小；再加上 `--warmup-steps -1 --clip-grad 1 --patience 10`：
#
# | 显存 | 原教程的批量 | 选项 |
# |---|---|---|
# | 8 GB | 4 到 6 | `--batch-size 4 --max-frames 96 --lr 0.000141` |
# | 12 GB | 6 到 10 | `--batch-size 6 --max-frames 160 --lr 0.000173` |
# | 16 GB 及以上 | 8 到 16 | `--batch-size 8 --max-frames 230 --lr 0.000200` |
#
# 如果内存仍然不够，依次试：`--micro-batch 1`、`--max-frames 150`、`--crop 160`、`--hidden 512`。学习率按原教程的规则：批量四倍，学习率两倍，并带预热。
#
# 在 TPU 上每个视频批量取四种长度之一（`--buckets 4`），所以编译四个程序，不会更多。（训练时拼接的手部轨迹可能更长，代价是多编译一个程序。）没有任何运算在主机上执行，CTC 和 BiLSTM 也一样。在 CPU 的虚拟设备上测试过，包括公布的网络；没有在 TPU 上测试。
#
# ## 观察训练
#
# 一次训练有一个文件夹。`train.log` 是原教程 `logs_gpu` 的文本，`log.jsonl` 每个 epoch 一行，`best.pt` 和 `last.pt` 代替 `best_model` 和 `current_model`，`details.json` 有每个测试句及其对齐。损失为 NaN 时训练停止并报告步数；绝不用 1 代替。
#
# ```bash
# mshnet test --task signs --weight-path runs/NAME --dataset-dir data/CE-CSL
# mshnet predict --task signs --weight-path runs/NAME clip.mp4
# mshnet compare runs/NAME runs/OTHER
# mshnet export --weight-path runs/NAME --format safetensors
# ```
#
# `predict` 写出词目，并为每个片段写出各词目概率随时间变化的表格和图。`export` 写出权重和词目。
#
# ## 分数
#
# 词错误率（WER）是替换、删除与插入之和除以真实词目数，对整个测试部分一起计算。公布的脚本对各句的错误率取平均，即 `sentence_wer`。CE-CSL 的词目有六分之一是标点，标点很容易；`bare_wer` 不计标点。移植版中的 0 分是被吞掉的错误。这里每一行分数都有三个组成部分，计数方法见[词目](../signs/00_glosses.ipynb)。
#
# 解码用宽度 10 的束搜索，它偏好训练句中相继出现的词目对。`--decoder greedy` 和 `--bigram-weight 0` 显示两者各自的作用。
#
# ## 有多好？
#
# RWTH-BOSTON-104 有三位手语者的 201 句真实句子。我们使用双手和鼻子的轨迹，没有手形，因此不能与任何公布的数字比较。用 161 句训练在 CPU 上只需几分钟；40 个测试句每个种子只读一次，所有选择都在训练句的一部分上做出：
#
# ```bash
# mshnet train --task signs --dataset-dir boston104
# ```
#
# | 方法 | WER | 26 句在训练中出现过 | 14 句新句 |
# |---|---|---|---|
# | 总是 JOHN | 0.8315 | 0.8018 | 0.8806 |
# | 时间规整下最近的训练句 | 0.2472 | 0.2072 | 0.3134 |
# | 默认设置，种子 0 | 0.174 | 0.135 | 0.239 |
# | 默认设置，种子 1 | 0.197 | 0.153 | 0.269 |
# | 默认设置，种子 2 | 0.197 | 0.144 | 0.284 |
#
# 多数测试句在训练列表中逐词出现过，背下来的句子得分自然高：请看最后一列。[基准](../../results/signs-yardsticks)不需要学习。
#
# ## 从这里继续
#
# [词目](../signs/00_glosses.ipynb)、[设置](../signs/01_signs_config.ipynb)、[片段](../signs/03_clips.ipynb)、[CTC](../signs/02_ctc.ipynb)、[网络](../signs/04_networks.ipynb)、[任务](../signs/05_signing.ipynb)、[识读](../signs/06_reading.ipynb)。[运行笔记本](../run/signs.ipynb)在一个笔记本里完成全部步骤。其他设备：[指南](device.zh-CN.ipynb)。提示与解决办法：[问题](trouble.ipynb)。
