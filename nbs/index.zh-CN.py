# %% [markdown]
# # MSHNet
#
# [English](index.ipynb)
#
# 红外小目标检测：在天空、海面或地面背景中找出几个明亮的像素。本项目是一套笔记本，以及由它们导出的 Python 库。同一份代码可以在 TPU、NVIDIA GPU、Apple 芯片和普通 CPU 上训练、评测和展示 [MSHNet](https://arxiv.org/abs/2403.19366)（Liu 等，CVPR 2024）。
#
# ![测试场景，由差到好：图像、概率、命中、漏检与虚警](../results/scenes-quick/figures/gallery.png)
#
# - **正确。** 前向计算、损失、梯度、数据变换和指标与官方代码的数值一致：整数结果逐像素相同，浮点结果相差不超过 float32 的舍入误差（见[测试](../tests/test_golden.py)）。每个分数都附带评测协议，两个数字才能比较。
# - **不丢进度。** 一次训练就是一个文件夹。再执行一次同样的命令，就从中断处继续；在同一块 CPU 上结果逐位相同。如果设置了镜像，换一台新机器也能继续。
# - **可以学习。** 库就是笔记本：先说为什么，再给出做法，看结果，最后看边界情况。
#
# 文档以英文为准；本页与带“中文”标记的指南由测试检查，其命令与英文版保持一致。
#
# ## 两条命令
#
# 在 Linux 或 macOS 上，需要 git、make 和 Python 3.11 或更新的版本：
#
# ```bash
# git clone https://github.com/{{repo}}
# cd mshnet
# make demo        # 在 CPU 上用合成场景训练完整大小的网络，并告诉你图片在哪里
# make test-all    # 任何修改都必须通过的全部检查
# ```
#
# Windows 上没有 `make`：见[在自己的机器上](guide_local.ipynb)（英文）。这两条命令自己建立环境：`.venv`；以及用于在没有 TPU 的机器上运行 TPU 代码的 `.venv-xla`（torch_xla，7 GB；仅限 x86-64 的 Linux，其他系统跳过）。`make test` 不含后一部分。在 Linux 上，默认的 torch 会带上 CUDA（数 GB）。如果不需要，请自己先建 `.venv`（`python3 -m venv .venv`），并在其中安装 `constraints.txt` 所写版本的 CPU 版 torch。
#
# ## 打开运行笔记本
#
# 每个笔记本都可以原样从头运行到尾，使用合成场景；换成自己的数据集只需改一行设置。
#
# | 笔记本 | 适用于 | 打开 |
# |---|---|---|
# | [local](run/local.ipynb) | 笔记本电脑或工作站 | 在 Jupyter 中 |
# | [a100_setup](run/a100_setup.ipynb) | Colab 的 A100 | [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/{{repo}}/blob/{{branch}}/nbs/run/a100_setup.ipynb) |
# | [tpu_setup](run/tpu_setup.ipynb) | Colab 的 TPU | [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/{{repo}}/blob/{{branch}}/nbs/run/tpu_setup.ipynb) |
# | [kaggle_tpu](run/kaggle_tpu.ipynb) | Kaggle 的 TPU | [![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)](https://kaggle.com/kernels/welcome?src=https://github.com/{{repo}}/blob/{{branch}}/nbs/run/kaggle_tpu.ipynb) |
# | [kaggle_gpu](run/kaggle_gpu.ipynb) | Kaggle 的一块或两块 GPU | [![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)](https://kaggle.com/kernels/welcome?src=https://github.com/{{repo}}/blob/{{branch}}/nbs/run/kaggle_gpu.ipynb) |
#
# 无人值守，在克隆的仓库中先执行 `pip install -e '.[notebook]'`：`papermill nbs/run/local.ipynb out.ipynb -p dataset_dir data/NUAA-SIRST -p epochs 50`。任何设置都可以这样给出；不存在的名称会被拒绝。这些笔记本已用 papermill 在 CPU 上执行过。由于没有相应的机器，以下未能验证：TPU、任何型号的 NVIDIA GPU、Apple 芯片、macOS、Windows、真实的 Colab 或 Kaggle 会话，以及真实的 Google Drive。
#
# ## 指南
#
# | | |
# |---|---|
# | [选择设备](guide_device.zh-CN.ipynb) | 什么任务用什么机器：哪些是实测，哪些是估算 |
# | [先做一次小试验](guide_first_run.ipynb)（英文） | 花一天之前先花十分钟 |
# | [在自己的机器上](guide_local.ipynb)（英文） | Linux、Windows、MacBook |
# | [Colab](guide_colab.zh-CN.ipynb)、[Kaggle](guide_kaggle.zh-CN.ipynb)、[TPU](guide_tpu.zh-CN.ipynb) | 五分钟上手；TPU 的注意事项 |
# | [速度、显存与费用](guide_speed.ipynb)（英文） | 全部表格，以及可以调整的设置 |
# | [从官方脚本迁移](guide_from_official.ipynb)（英文） | 参数对照、差异、已发布的权重 |
# | [指标的定义](guide_scores.ipynb)（英文） | 以及为什么各论文的数值不同 |
# | [编写自己的任务](guide_task.ipynb)（英文） | 换网络、换损失、换问题 |
# | [故障排查](guide_trouble.ipynb)（英文） | 按现象查找 |
# | [图集](guide_gallery.ipynb)（英文） | 本项目会画哪些图 |
#
# `make docs` 把所有笔记本连同输出做成网站，放在 `_docs/`：安装了 Quarto 时用它生成（从未用真实的 Quarto 试过），否则生成简单的预览。
#
# ## 安装与使用
#
# ```bash
# pip install "mshnet @ git+https://github.com/{{repo}}"       # 不要直接 `pip install mshnet`：那个名字不是我们的
# mshnet doctor                                                # 这台机器是什么，能做什么
# mshnet data data/NUAA-SIRST                                  # 数据集里有什么，以及其中的所有问题
# mshnet train --dataset-dir data/NUAA-SIRST                   # 400 个 epoch；再执行一次就继续
# mshnet test --weight-path runs/NUAA-SIRST-*/best.pt          # 分数及其评测协议
# mshnet predict --weight-path runs/NAME/best.pt images/ '*.tif'   # 对自己的图像：掩膜、检测表和标注图
# mshnet bench --baseline --dataset-dir data/NUAA-SIRST       # 在这台机器上有多快，并与普通脚本对比
# mshnet export --weight-path runs/NUAA-SIRST-*/best.pt        # 导出并核对 ONNX 文件（--format pt2、safetensors）
# mshnet compare runs/NUAA-SIRST-*                             # 多次训练并排比较：分数、曲线、错在哪里
# mshnet pack runs/NUAA-SIRST-1f0c2a9b                         # 把一次训练打包成一个文件带走（--format zip）
# ```
#
# 一次训练的文件夹以其数据和设置命名；训练时打印在 `folder` 一行。`*` 匹配到多次训练时，以及在 Windows 上，请写出完整名称。ONNX 还需要 `pip install onnx onnxruntime onnxscript`，safetensors 还需要 `pip install safetensors`。`mshnet COMMAND --help` 列出全部设置。
#
# 数据集是一个文件夹，含有 `images/` 和 `masks/`（或 IRSTD-1k 的文件夹名），以及名称列表：`trainval.txt` 与 `test.txt`，`train.txt` 与 `val.txt`，或 `img_idx/train_*.txt`。没有数据集时，`mshnet train` 使用合成场景并会说明。
#
# 数据集也可以是 `.zip`、`.tar`、`.tar.gz` 或 `.tgz` 压缩包（在本机、在 Drive 上，或在 Kaggle 上添加的），它只向本地磁盘解压一次，若会写到别处则被拒绝；还可以是名称 `NUAA-SIRST`、`IRSTD-1k` 或 `NUDT-SIRST`，此时会自动下载。如果在下载的 NUAA-SIRST 中找不到列表，请写明原作者的列表：`--train-list idx_427/trainval.txt --test-list idx_427/test.txt`（不是多数论文所用的 213 张和 214 张）。下载本身未能验证。
#
# ```python
# from mshnet.core import Config
# from mshnet.evaluate import predict
# from mshnet.train import train
#
# run = train(Config(dataset_dir="data/NUAA-SIRST", epochs=50))
# print(run)  # IoU 0.62  nIoU 0.60  F1 0.77  Pd 0.91  Fa 12.3（仅示意格式，你的数值会不同）
# prob = predict(run.folder / "best.pt", images)  # uint8 [B,3,H,W] -> 概率 [B,1,H,W]
# ```
#
# ## 查看结果
#
# ```python
# from mshnet.show import explore, watch
#
# explore("runs/NUAA-SIRST-1f0c2a9b")            # 它的测试图像，由差到好；也可以是任何图像文件夹
# explore("runs/NUAA-SIRST-1f0c2a9b", "frames")
# watch("runs/NUAA-SIRST-1f0c2a9b")              # 另一个进程中的训练：曲线、预测、剩余时间
# ```
#
# ![控件：图像与目标的列表、阈值滑块，以及图像、真值、概率、命中、漏检与虚警，全图与近景](images/explore.png)
#
# 在笔记本中它们是控件（`pip install ipywidgets`）；没有界面或没有安装它时，同样的调用生成静态图片，放在 `RUN/figures`。测试在 Chromium 中移动滑块（JupyterLab 与 Voila 页面），并把显示的图片与静态图片比较。Colab 和 Kaggle 自己的前端没有条件试用。
#
# ## 在自己的图像中找目标
#
# `mshnet predict --weight-path W INPUT...` 接受图像、文件夹、通配符、多页 TIFF 和视频（`pip install imageio av`），大小不限，8 位或 16 位；对每一帧在 `predictions/NAME` 中写出掩膜和标出检测结果的图，并把每个检测的位置、边框、面积、最高概率和平均概率写入 `detections.csv` 与 `detections.jsonl`。读不出来的文件会被指出、跳过并计数（退出状态为 1）。本项目不附带训练好的权重：`W` 是一次训练的文件夹（`make demo` 生成 `demo/run`），或[官方仓库](https://github.com/Lliu666/MSHNet)发布的文件（其 README 的 Weights 一列：IRSTD-1k 和 NUDT-SIRST，没有 NUAA-SIRST），或 `mshnet export` 导出的 ONNX 文件。分块和填充带来的差别在 [15_predict](15_predict.ipynb) 中有测量。
#
# ## 会话中断时
#
# 再执行一次同样的命令或同一个笔记本。保证如下：
#
# | 发生了什么 | 会丢失什么 | 怎么办 |
# |---|---|---|
# | SIGTERM、终端被关闭（SIGHUP）、Ctrl-C、笔记本的停止按钮；会话时间用完（`max_hours`：Colab 为 11.5，Kaggle 为 11.5 或 8.5，其他地方不限） | 什么都不丢：写下 epoch 内的位置，评测最好的 epoch，完成镜像。再次要求则立即停止 | 再执行一次 |
# | kill -9、断电、内核崩溃 | 正在进行的 epoch；如果检查点恰好正在写入（本地磁盘上是零点几秒，慢速磁盘更久），再加上前一个 epoch | 再执行一次 |
# | 机器连同磁盘都没有了 | 尚未进入镜像的部分（`--mirror-dir DIR`，在 Colab 中用 `drive`：后台复制并校验，速度不超过 `mirror_rate` MB/s）；在 Kaggle 上把上一次的输出添加为输入 | 在那里再执行一次 |
# | `last.pt` 损坏 | 一个 epoch：改用 `previous.pt`，并给出警告 | 无需处理 |
# | 磁盘满、文件夹只读、镜像失效 | 什么都不丢；有一行文字说明是哪一种。镜像失效不会中止训练 | 修好后再执行一次 |
# | 损失不是有限数（NaN 或无穷大）、图像读不出来、一批数据放不进显存 | 正在进行的 epoch；用一行文字指出 | `--clip-grad`、`--on-bad-image skip`、`--on-out-of-memory halve` |
#
# 继续训练所得的权重与未中断时逐位相同：前提是在 CPU 上且 torch 相同（`--deterministic` 还会保存线程数）。后台运行：`nohup mshnet train ... &` 在终端关闭后继续，用 `tail -f RUN/train.log` 查看；没有 `nohup` 时，关闭终端就是 SIGHUP。`RUN/status.json` 供程序查询：状态、完成的 epoch 数、原因、结果所在位置。退出状态为 0；用户错误或磁盘无法写入为 2；被信号终止为 128 加信号编号。
#
# `make faults` 演示这一切：在每一个写入点杀死训练、使其缺资源、要求其停止、给它错误的信息，再重新启动，并与未受干扰的训练逐位比较；同时给各个读取程序数千个损坏的输入。每种故障各有一轮在测试之中。[完整运行一次](../results/faults)：326 轮，其中 200 轮被杀死；10 个读取程序共 20,195 个输入；没有丢失任何东西。有一个输入引出了用户不应看到的错误，已经修正。
#
# 真实的 Drive、Colab 和 Kaggle 都不在手边：镜像、挂载和取回是用会卡住、会消失、会写满的文件夹来试验的。
#
# ## TPU
#
# `mshnet train --device xla --preset tpu`，或 TPU 笔记本，会在一个进程中使用全部芯片，无论一块还是八块：批（须为芯片数的整数倍）在芯片间切分，批归一化对所有芯片求均值，训练的每个阶段只编译一次。**没有真实的 TPU 可用。** 实际运行过的是 torch_xla 2.9 的 CPU 运行时，使用 1 个和 8 个虚拟设备（`make test-xla`）：十步训练的损失与普通 PyTorch 一致（在 float32 所能确定的范围内；见[日志](../LOG.md)），没有操作落在设备之外，没有程序编译两次，训练可以在 `xla` 与 `cpu` 之间迁移，两个 TPU 笔记本用 papermill 从头运行到尾。真实芯片的速度、显存与舍入、其编译缓存，以及 Colab 和 Kaggle 本身均未验证。
#
# [TPU 页](guide_tpu.zh-CN.ipynb)说明先检查什么、每个错误的含义、用多大的批，以及芯片需要多少内存。
#
# ## 多块 GPU、多台机器
#
# ```bash
# mshnet train --num-devices 2 --batch-size 16 --dataset-dir D                      # 本机的两块 GPU
# torchrun --nproc-per-node=2 -m mshnet train --batch-size 16 --dataset-dir D       # 同上
# torchrun --nnodes=2 --node-rank=0 --master-addr=HOST --master-port=29500 --nproc-per-node=4 -m mshnet train --batch-size 32 --dataset-dir D
# ```
#
# 最后一行用于两台机器中的第一台 `HOST`，训练的文件夹在它上面；第二台执行同样的命令，改为 `--node-rank=1`。`--batch-size` 是一步中所有 GPU 上图像的总数。每个进程取每批中自己的部分，梯度与批归一化都按整批计算（DistributedDataParallel、SyncBatchNorm），每张测试图像只评测一次，由一个进程写文件。已用 CPU 上的两个进程（gloo）测试；没有 NVIDIA GPU，也没有第二台机器。在 CPU 上批归一化不跨进程：各进程用自己那部分的统计量。
#
# ## 结果
#
# 每个数字在 [results](../results/README.md) 中都有自己的文件夹，含设置、机器、日志和评测协议。
#
# **NUAA-SIRST，论文的训练设置，30 个 epoch，2 个 CPU 核**（[文件夹](../results/nuaa-sirst-paper)）。全部 213 张训练图像（不留出验证集），批大小 4，bf16，种子 6，取最后一个 epoch（29）；在 214 张测试图像（263 个目标）上以 256x256、阈值 0.5 评测。训练在第 3 个 epoch 之后被中断并继续。
#
# | | IoU | nIoU | F1 | Pd | Fa | 第 20-29 个 epoch 的平均 IoU |
# |---|---|---|---|---|---|---|
# | 本项目，规则 exact | 0.61 | 0.63 | 0.75 | 0.92 | 74.7 | 0.541 |
# | 本项目，规则 reference | 0.61 | 0.63 | 0.75 | 0.92 | 73.2 | |
# | 官方脚本，相同列表与机器，float32，一个种子（由他人提供，并非在此测得） | | | | | | 0.366 |
#
# 不要把它理解为优于官方脚本：这是一个种子对一个种子，而且我们的种子是**挑选过的**。共启动过四个种子：
#
# | 种子 | 算术精度 | 第 20-29 个 epoch 的平均测试 IoU | 第 29 个 epoch 的测试 IoU | |
# |---|---|---|---|---|
# | [6](../results/nuaa-sirst-paper) | bf16 | 0.541 | 0.61 | 上面的训练 |
# | [0](../results/nuaa-sirst-paper-seed0) | float32 | 0.262 | 0.43 | 从预热结束到第 22 个 epoch 预测为空，之后恢复正常 |
# | [1](../results/nuaa-sirst-paper-seed1) | bf16 | 0.001 | 0.00 | 从预热结束直到最后，几乎整幅图像都被预测为目标 |
# | [12](../results/nuaa-sirst-paper-seed12) | bf16 | | | 与种子 6 同时运行，因测试分数落后，在第 3 个 epoch 后停止 |
#
# 预热结束可能使融合输出在许多个 epoch 内失效，使用论文自己的设置也会如此。原因与对策见[日志](../LOG.md)；发生时训练会提示。
#
# ![各 epoch 的损失与分数](../results/nuaa-sirst-paper/figures/learning.png)
#
# **合成场景，预设 quick，即 `make demo` 所做的**（[文件夹](../results/scenes-quick)）。在 60 个测试场景（129 个目标）上 IoU 0.59、nIoU 0.57、F1 0.75、Pd 0.88、Fa 13.2，epoch 由 48 个留出的场景选定，规则 exact；笔记本在 2 个核上用时 110 秒。（在一步的算术改变了最后几位数字之前，同样的设置得到 IoU 0.68、Pd 0.98：如日志所说，在 192 个场景上训练十个 epoch 如同抽签。）取最佳窗口与阈值的 top-hat 滤波：IoU 0.30、Pd 0.99、Fa 2627.6。
#
# **速度，2 个 CPU 核，与普通 float32 脚本对比**（[文件夹](../results/bench-cpu)）。NUAA-SIRST，256x256，五轮并排测量取中位数；事先验证两者的损失与计数相同：
#
# | | 本项目，毫秒/图 | 普通脚本，毫秒/图 | 倍数 | 期望值 |
# |---|---|---|---|---|
# | 训练，批大小 4 | 104 | 241 | 2.3 | 3 |
# | 训练，批大小 16 | 107 | 682 | 6.4 | 3 |
# | 评测，训练好的权重 | 32 | 84 | 2.6 | 3.5 |
# | 评测，噪声权重（数千个连通域） | 32 | 321 | 10 | 15 |
# | 仅数据与增广（占一步的 1.3%） | 1.4 | 3.5 | 2.5 | 2 |
# | 批大小 16 时的峰值内存，MiB | 2895 | 4555 | 0.64 | 0.6 |
# | 启动后第一步，批大小 4，秒 | 5.0 | 6.1 | | 15 以内 |
#
# 其中四项没有达到期望值。一步训练含 36 GFLOP 的卷积，仅 torch 的卷积就占去 62% 的时间：这台机器的 bf16 乘法最快为 0.80 TFLOP/s。其余时间花在哪里见[日志](../LOG.md)。**加速器没有测量**：没有 GPU，也没有 TPU；torch.compile、float16 和把像素放在设备上，都只在 CPU 上运行过。
#
# **bf16 与 float32 对比**（[文件夹](../results/bf16-beside-fp32)）。同样的数据，160x160，13 个 epoch，学习率 0.005，各三个种子；最后五个 epoch 的平均测试 IoU：
#
# | 种子 | 0 | 1 | 2 | 平均 |
# |---|---|---|---|---|
# | float32 | 0.373 | 0.475 | 0.467 | 0.439 |
# | bf16 | 0.460 | 0.435 | 0.404 | 0.433 |
#
# 两个平均值之差小于任一精度下两个种子之差。在学习率 0.02、预热五个 epoch 时，每种精度各试了一个种子，两者都在预热结束时失效。
#
# [有多快、需要多少内存、费用多少](guide_speed.ipynb)（英文）解释按设备、批大小和数据集列出的[表格](../results/SPEED.md)，它们由这些测量生成；没有测量的都标为估算，并给出公式。
#
# ## 从官方脚本迁移
#
# | 官方 | 本项目 |
# |---|---|
# | `python main.py --mode train --dataset-dir D` | `mshnet train --dataset-dir D` |
# | `python main.py --mode test --weight-path W --dataset-dir D` | `mshnet test --weight-path W --dataset-dir D`（已发布的 `.tar` 权重可直接加载） |
# | `--batch-size --epochs --lr --warm-epoch --base-size --crop-size` | 相同；`--batch-size` 是所有设备的总数 |
# | `--if-checkpoint True` | 不需要：同样的命令会继续；`--resume RUN` 指定另一次训练 |
# | `--multi-gpus True` | `--num-devices N`，或 `torchrun` |
# | TPU 教程中的 `--use-tpu --num-cores 8 --global-batch-size 64` | 相同（现在的名称：`--device xla --num-devices 8 --batch-size 64`） |
# | 用测试列表选最好的 epoch，且不说明 | `--choose val`（默认，从训练列表中留出的部分）、`last` 或 `test`，写在分数旁边 |
# | 按脚本的算法计算 Pd 和 Fa | `--rule reference`；默认规则取最佳配对，并计入每一个虚警 |
#
# ## 笔记本
#
# | 笔记本 | 内容 |
# |---|---|
# | [00_core](00_core.ipynb) | 设置：笔记本、命令行和文件共用一套 |
# | [01_places](01_places.ipynb) | Colab、Kaggle 还是本机，各用哪些文件夹 |
# | [02_model](02_model.ipynb) | 网络，以及安全地加载已发布的权重 |
# | [03_loss](03_loss.ipynb) | 对尺度和位置敏感的损失 |
# | [04_metrics](04_metrics.ipynb) | 交并比 IoU、nIoU、F1、检测率 Pd、虚警率 Fa，以及为什么各论文的数值不同 |
# | [05_data](05_data.ipynb) | 查找、读取、检查、划分、增广、组批；合成场景 |
# | [06_device](06_device.ipynb) | CPU、CUDA、MPS、TPU、多进程，由一个小类统一 |
# | [07_run](07_run.ipynb) | 训练的文件夹、检查点、断点续训 |
# | [08_task](08_task.ipynb) | 训练循环对问题所知道的一切 |
# | [09_evaluate](09_evaluate.ipynb) | 评测、协议、作为对照的 top-hat 滤波、预测 |
# | [10_train](10_train.ipynb) | 训练循环 |
# | [11_show](11_show.ipynb) | 图片；查看图像、跟踪训练的控件 |
# | [12_doctor](12_doctor.ipynb) | 这是一台什么机器 |
# | [13_bench](13_bench.ipynb) | 有多快，与设备的极限和普通脚本对比 |
# | [14_export](14_export.ipynb) | 供其他程序使用并经过核对的 ONNX、torch.export 和 safetensors 文件 |
# | [15_predict](15_predict.ipynb) | 从任意大小的文件到掩膜、检测表和标注图 |
# | [16_compare](16_compare.ipynb) | 多次训练并排、小目标与弱目标、校准、错误及其原因 |
# | [17_cli](17_cli.ipynb)、[18_main](18_main.ipynb) | 命令 |
#
# 想要修改，请读 [CONTRIBUTING](../CONTRIBUTING.md)；试过什么，见 [LOG](../LOG.md)；改了什么，见 [CHANGELOG](../CHANGELOG.md)。
#
# ## 来源与许可
#
# 方法出自 Qiankun Liu、Rui Liu、Bolun Zheng、Hongkui Wang 和 Ying Fu：*Infrared Small Target Detection with Scale and Location Sensitivity*，CVPR 2024。本项目是依 [Apache-2.0](../LICENSE) 许可的独立实现；与作者的代码仓库没有共用代码，后者没有许可证。
