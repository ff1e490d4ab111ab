# %% [markdown]
# # 按现象排查故障
#
# > 写给遇到提示或异常现象的人。读完后你会知道原因和解决办法。
#
# [English](trouble.ipynb)

# %% [markdown]
# 先运行 doctor。它检查机器、磁盘、数据和设置：
#
# ```bash
# mshnet doctor data/NUAA-SIRST
# ```
#
# 如果错误是你能改正的，程序只打印一行，写出值和解决办法，并以状态 2 结束。出现 traceback 则是程序的错误：请报告。下面是一个例子：

# %%
import contextlib
import sys

from mshnet.cli import main

with contextlib.redirect_stderr(sys.stdout):
    status = main(["train", "--epochz", "3"])
status

# %% [markdown]
# 表中 `...` 代表名称和数字。已写出全部解决办法的提示不在表中，例如 `unknown setting ...; did you mean ...?`、`...=... is not possible: use ...`、`... is retired: use ...` 和 `mshnet ... has no option ...; leave it out`。`mshnet train --help-all` 列出所有设置，例如 `--batch-size`；在 notebook 的设置单元格和 papermill 的 `-p` 中写作 `batch_size`。以 `device=xla` 开头的提示见 [TPU](tpu.zh-CN.ipynb)。
#
# [设置被拒绝](#设置被拒绝) · [找不到数据](#找不到数据) · [数据有误](#数据有误) · [设备](#设备) · [能训练，但是](#能训练，但是) · [训练无法恢复](#训练无法恢复) · [Google Drive 与备份](#Google-Drive-与备份) · [权重](#权重) · [预测、比较、导出](#预测、比较、导出) · [层析成像、事件相机、手语](#层析成像、事件相机、手语)
#
# ## 设置被拒绝
#
# | 提示 | 怎么办 |
# |---|---|
# | `unexpected argument ...; see mshnet ... --help`，或 `... is given as well; use one of them` | 不写参数名时，`train`、`data`、`doctor` 和 `bench` 接受一个数据集的文件夹，`test` 和 `export` 接受一个运行文件夹。其他的值都要写参数名。如果 `runs/NUAA-SIRST-*` 这样的通配符对应多次训练，请写出其中一次的名称 |
# | papermill 打印 "Passed unknown parameter" | 设置仍然有效，只是 papermill 在设置单元格中看不到它。未知的名称会在下一个单元格报错 |
# | notebook 的第一个单元格停下：mshnet has no address yet | 本项目没有发布，单元格也没有找到 wheel。用 `make wheel` 生成一个，然后上传它、附加它（[Colab 与 Kaggle](cloud.zh-CN.ipynb)）或放在 notebook 旁边。如果在 `MyDrive` 中，请先挂载 Drive |
# | shell 找不到 `mshnet` | 激活安装它的环境（[安装](first_run.zh-CN.ipynb)） |
# | `weights of type ... are not possible: use a run, ...` | 先写权重，再写图像：`mshnet.predict("pretrained", "frame.png")` |
#
# ## 找不到数据
#
# | 提示 | 怎么办 |
# |---|---|
# | `dataset_dir=...: there is no such folder (...); name one, or ...` | 相对路径从执行命令时所在的文件夹算起。在 Kaggle 上写所附数据集的名称，在 Colab 中写 Drive 上的完整路径 |
# | `dataset_dir=...: has no ...` | 文件夹需要 `images/` 和 `masks/`。如果它们在下一级，提示会给出那个文件夹 |
# | `...; name one with --...-list` | 没有名称列表，或有几个：用 `--train-list` 或 `--test-list` 选择。你自己的、没有列表的数据集：`mshnet data DIR --split 0.5` |
# | `split=...: there is a list, ...; leave out --split` | 列表从不被覆盖：想要别的列表，请先删除它们 |
# | `...: damaged, or not an archive ...; copy or download it again` | 往往是把网页存成了 `.zip`，或上传不完整 |
# | `...: cannot be downloaded: ...; ... files are missing or have other pixels (...)` | 没有网络，或网址已改变。在 Kaggle 上打开 Internet；在别处手动下载数据（[数据集](datasets.zh-CN.ipynb)） |
# | 同上，但 `downloaded:` 之后直接是文件数 | 该网址的压缩包已改变或损坏：提示列出其中一个文件。请手动下载数据 |
# | `..._list=...: there is no such file in ..., and no list of the library has this name: ...` | 写出提示中的一个名称，或数据集中一个文件的路径 |
#
# ## 数据有误
#
# | 提示 | 怎么办 |
# |---|---|
# | `unreadable ...: ...`, `name without ...: ...` | `mshnet data DIR` 列出全部；`--on-bad-image skip` 会略去它们 |
# | `name in both ... and ..., remove it from one or use another --train-list: ...` | 一幅图像不能同时在两个列表中：分数会过高。请使用同一来源的两个列表，例如 `train.txt` 和 `val.txt` |
# | `targets cover more than a fifth of the image (is the mask inverted?): ...` | 目标应为黑底白色。用反转的掩膜训练会得到很高但没有意义的 IoU |
# | `list of grey masks without a target (save targets as 255): ...` | 这些掩膜中目标的值小于最亮的掩膜。请把所有掩膜中的目标都保存为 255；如果某个掩膜有一个多余的亮像素，请去掉它 |
# | `mask with the numbers of objects, in which all above 0 is target: ...`, `coloured mask, in which every colour but black is target: ...` | 如果你的掩膜就是这样制作的，什么都不用做 |
# | `width and height of its image swapped: turn it by 90 degrees ...` | 图像带有方向标记，我们会按它旋转图像。请把掩膜也旋转，或删除该标记 |
# | `image and mask of different orientation tags (do their marks agree?): ...` | 图像和掩膜的旋转不同。如果图中标记偏离目标，请删除方向标记 |
# | `16-bit image, stretched to 8 bits by its own range: ...` | 什么都不用做：`mshnet predict` 用同样的方式拉伸每一帧（[帧](../23_frames.ipynb)） |
# | `file of several pages, of which the first is read: ...` | 把每一页存成单独的图像，并各有掩膜 |
# | `most of a frame gets few of the 256 grey levels; ...` | 如果帧中有遥测行、坏行或空边框，请裁掉。如果没有，只是场景的一小部分亮得多或暗得多，什么都不用做 |
# | `image of more than ... pixels at its own size (use --base-size 256): ...` | 用 `--base-size 256`，或裁剪这些图像 |
# | `no target in any mask of a list, so Pd is undefined: ...` | 请看掩膜：是全黑的，还是属于别的图像？ |
# | `targets vanish or merge at ...: ...` | 在这个尺寸下它们太小：用更大的 `--base-size` |
# | 没有提示，但标记偏离目标 | 掩膜属于别的图像，或有偏移：请看 `mshnet data` 的输出，并画出图 `samples`（[方法](own_images.ipynb)） |
#
# ## 设备
#
# | 提示 | 怎么办 |
# |---|---|
# | `device=cuda: torch finds no NVIDIA GPU...; use --device cpu` | doctor 给出原因：`build` 一行是不带 CUDA 的 torch，`accelerator` 一行是 torch 的警告，例如旧驱动 |
# | `device=cuda:...: ...; see mshnet doctor, or use --device cpu` | 没有这个编号的 GPU，或这个 PyTorch 版本不支持它（例如新版本与 P100）：doctor 的 `accelerator` 一行给出应安装的版本 |
# | `device=mps: this machine has no Apple GPU that torch can use; use --device cpu` | 这台机器不是 Apple 芯片的 Mac，或 macOS 对这个 PyTorch 来说太旧：用 `--device cpu` |
# | `this machine has a TPU, but torch_xla is not installed` | 使用该服务自带的 TPU 镜像；见 [TPU](tpu.zh-CN.ipynb) |
# | `precision=...: not on ...; use ...` | 保持 `auto` |
# | `this chip only emulates bf16; use --precision fp32 (or auto)` | 去掉 `--precision bf16`；T4 使用 fp16 |
# | `...=...: does not fit into the memory of ...; use ...` | 用更小的 `--batch-size`，或 `--micro-batch N`；`mshnet bench` 测量检测任务的一个批次所需的内存 |
#
# ## 能训练，但是
#
# | 现象 | 怎么办 |
# |---|---|
# | `the prediction ..., which the SLS loss may not leave; begin a new run with --preset steady` | 预测已经坍塌。[损失](../01_loss.ipynb)一页解释原因。使用预设 `paper` 和 `--fusion-start full_size --join-rate 0.1 --head-bias -4` 时，三个种子都没有坍塌（[结果](results.ipynb)） |
# | `the prediction ...: try a smaller --lr, and look at the masks with ...` | 使用这种训练方案时，原因通常在数据：掩膜是空的、反转的，还是属于别的图像？ |
# | `epoch ..., step ...: the loss is NaN or infinite; ...` | 开始新的训练：更小的 `--lr` 或 `--precision fp32`；如果改过 `--clip-grad`，改回 1。好的权重没有被覆盖 |
# | `the run ends within the warm-up, so the fused head is never trained` | 预热占据了整个训练：增加 `--epochs`，或用 `--warm-epoch 0`（预热一个 epoch）或 -1（没有预热，如 `steady`） |
# | 分数远低于论文 | 列表、匹配规则和所选的 epoch 相同吗？见[分数的定义](scores.ipynb)。种子之间也有差异：请比较三个 |
# | 第一个 epoch 很慢 | 在 TPU 上，训练步和评测步各编译一次 |
# | 每个 epoch 都很慢 | doctor 的 `accelerator` 一行：是你想用的设备吗？数据在网络磁盘或 Drive 上吗？`mshnet bench` 报告加载数据占多少时间 |
# | 在自己的相机上虚警很多，或什么都找不到 | [新的相机](new_camera.ipynb) |
# | 图中的中文是方块 | 安装一种字体，例如 Noto Sans CJK 或文泉驿正黑，删除 matplotlib 的缓存（`matplotlib.get_cachedir()`），再重新启动 Python |
# | 分数与上次不同 | 只有在同一型号的 CPU、同一版 torch 和同样的线程数下，同一种子的两次训练才逐位相同。其他程序占用 CPU 时，训练会减少线程；`--deterministic` 固定线程数。在 GPU 上也请使用它 |
#
# ## 训练无法恢复
#
# | 提示 | 怎么办 |
# |---|---|
# | `... holds another run (...); use its settings... or another --output-dir` | 某个影响结果的设置不同；提示给出它的名称和两个值 |
# | `...: not a checkpoint to resume from (weights go to --weight-path)` | 公开的权重不是一次训练：用 `--weight-path` 从它们开始 |
# | `...: cannot be written (...)` | 磁盘已满或只读。解决后再执行同一条命令即可恢复 |
# | `...: ..., and previous.pt cannot replace it; ...; or use another --output-dir` | 两个检查点都已损坏。有备份（`mirror_dir`）时，把运行文件夹（`runs/NAME`）改名，再执行同一条命令。否则请开始一次新的训练；提示给出参数 |
# | 状态 75 | 最后一个 epoch 之前达到了时间限制：再执行同一条命令 |
# | `stopped  ...; its checkpoint is written...` | 不是错误：有人停止了训练，或达到了时间限制 |
# | `stopped  ...; Colab deletes this disk: download the run...` | 这次训练没有备份：在会话结束之前运行 `Download the run` 单元格 |
#
# ## Google Drive 与备份
#
# | 提示 | 怎么办 |
# |---|---|
# | `Google Drive is mounted in Colab only: results stay in ...` | 在别处使用一个文件夹：`--mirror-dir DIR` |
# | `Google Drive is not mounted: results stay in ...`, `Google Drive is not mounted (...): no data or results there` | 训练继续，但没有备份；要有备份，请停止它，在单元格中运行 `from mshnet.places import mount_drive; mount_drive()`，允许访问，再运行训练单元格 |
# | `mirror  ...: ...; tried again later, the run continues` | Drive 已满或无法访问。腾出空间；不必重新启动任何东西 |
# | `...: it holds ... epochs, and this run has ...; delete ... to resume the copy; or leave out its mirror_dir, or detach it` | 备份可用之前训练已重新开始 |
# | `mirror  ... is on the disk of the run; if you meant another, mount that one` | 磁盘丢失时两者都会丢失。请在训练前挂载备份所在的磁盘，或忽略这一行 |
# | `mirror  ... of ... files are in ...; missing: ...` | 备份完成之前会话就结束了：手动复制列出的文件，或再运行一次 |
#
# ## 权重
#
# | 提示 | 怎么办 |
# |---|---|
# | `weight_path is empty: name the weights to export, such as runs/NAME/best.pt, or pretrained` | `mshnet export runs/NAME` |
# | `...: there is no such file` | 文件夹对吗？PowerShell 不展开 `runs/NUAA-SIRST-*` 这样的通配符：请写出完整名称。每次训练有自己的文件夹 |
# | `...: weights of another model: ...` | 另一个网络或另一个版本的权重；提示列出最初的几处差异 |
# | `...: not a torch file of weights, or a damaged one` | 往往是下载不完整，或是一个网页 |
# | `...: refused, it would run code when loaded` | 文件中不只有权重。除非信任它的作者，不要用别的方式加载 |
#
# ## 预测、比较、导出
#
# | 提示 | 怎么办 |
# |---|---|
# | `...: name files that end in ..., or their folders` | 没有这些类型的输入。文件夹只表示直接在其中的文件（events：也包括下级的文件）；`"DIR/**"` 还包括下级文件夹中的文件。以前的预测结果会被略过，除非直接写出它们的文件夹 |
# | `output_dir=...: holds something else than this prediction; use another --output-dir` | 图像、权重或设置不同，或有你自己的文件（eit、events 和 signs：已有以前的预测）：换一个文件夹，或去掉 `--output-dir`，结果就写到 `predictions/NAME-2` |
# | `no memory for a piece of ...: use a smaller --tile` | `--tile 512` 只需要默认值 1024 的四分之一的内存 |
# | `explore` 只显示静止的图 | 交互控件需要实时运行的 notebook 和 `pip install ipywidgets`；然后重启内核 |
# | 状态 1，并有文件被计为跳过 | 这些文件或其中的个别帧无法读取：`skipped.csv`（任务 `detect`）或上面的输出列出每个文件及原因；其余的已完成 |
# | `these scores cannot be compared: ...` | 测试集或分数的定义不同；提示说明差别。请用同样的方式评测二者，例如各执行一次 `mshnet test RUN --base-size 256 --output-dir DIR`，再比较这些文件夹。没有种子的平均值？精度、torch 和 mshnet 也必须相同 |
# | `task ... has no option ...; leave it out` | 对其他任务的权重使用了检测任务的参数，例如 `--tile` |
#
# ## 层析成像、事件相机、手语
#
# 这三个任务的提示在各自指南的“Your data”一节：[层析成像](eit.ipynb)、[事件相机](events.ipynb)、[手语](signs.ipynb)。

# %% [markdown]
# 如果都没有帮助，请附上这三条命令的输出报告问题：
#
# ```bash
# mshnet --version
# mshnet doctor
# mshnet data data/NUAA-SIRST
# ```
#
# 并附上执行的命令、它的最后几行，以及运行文件夹中的 `config.json` 和 `env.json`。
