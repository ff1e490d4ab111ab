# %% [markdown]
# # Kaggle 五分钟上手
#
# > 打开笔记本，选择加速器，添加数据，保存版本。

# %% [markdown]
# [English](kaggle.ipynb)
#
# **验证过什么：** 这些笔记本在 CPU 上从头到尾执行过（两块 T4 用两个进程代替，TPU 用 XLA 的 CPU 运行时代替），Kaggle 的文件夹用别的文件夹代替。真实的 Kaggle 会话不在手边。
#
# ## 1. 打开：两个文件，不需要账户
#
# 需要一个笔记本和一个 wheel 文件，后者就是整个库。什么都不必发布，也不需要 GitHub 账户；Kaggle 本身要求它自己的账户。在自己的机器上，在本项目的文件夹中执行：
#
# ```bash
# make wheel    # 没有 make 时：python -m pip wheel --no-deps --wheel-dir dist .
# ```
#
# 1. 在 Kaggle 中选择 Create，New Notebook，再选择 File，Import Notebook，上传 `nbs/run/` 中的一个笔记本。
# 2. 选择 Add Input，Upload：用 `dist/mshnet-*.whl` 这一个文件建立一个私有数据集。它会一直附加在这个笔记本上。
# 3. 在会话选项中选择下表中的加速器，并打开 Internet。
#
# 有多个 wheel 时，第一个单元格安装版本最高的。它需要 Internet 来安装 Kaggle 镜像中缺少的 `mshnet` 依赖；如果镜像中都有，没有 Internet 也可以。Kaggle 只向验证过手机号的账户提供 Internet 和加速器。
#
# 如果项目已经发布，点击徽章即可打开笔记本；有 Internet 时第一个单元格不需要 wheel。
#
# | 笔记本 | 加速器（Session options） | 打开 |
# |---|---|---|
# | [kaggle_gpu](../run/kaggle_gpu.ipynb) | GPU T4 x2；一块也可以 | [![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)](https://kaggle.com/kernels/welcome?src=https://github.com/{{repo}}/blob/{{branch}}/nbs/run/kaggle_gpu.ipynb) |
# | [kaggle_tpu](../run/kaggle_tpu.ipynb) | TPU v5e-8 | [![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)](https://kaggle.com/kernels/welcome?src=https://github.com/{{repo}}/blob/{{branch}}/nbs/run/kaggle_tpu.ipynb) |
#
# ## 2. 全部运行
#
# 没有数据集时用合成场景训练：`kaggle_gpu` 中是九个短的 epoch（预设 `quick`），`kaggle_tpu` 中则是 200 个，第一次试用请在设置中写 `epochs = 20`。有两块 T4 时，每批由两个进程分担，结果与一块 GPU、同样的 `batch_size` 相同。
#
# ## 3. 你的数据
#
# 点 Add Input，选择或上传一个数据集，并在设置单元格中写上它的名称：
#
# ```python
# dataset_dir = "nuaa-sirst"
# epochs = 50
# ```
#
# 这个名称会在 `/kaggle/input` 及其下一层、两层的文件夹中查找。其中的压缩包只解压一次。数据集需要 `images/`、`masks/` 和两个名称列表。附加的数据是只读的。缺少列表时，在设置上方加一个单元格，写 `!mshnet data NAME --split 0.5`：它把列表写在笔记本旁边，并打印文件名，请把它们写为 `train_list` 和 `test_list`。种子相同，每次会话的列表就相同。
#
# ## 4. 保存版本
#
# Save Version，Save & Run All：笔记本无需你在场即可运行，`/kaggle/working` 成为它的输出：`runs/` 中有 `best.pt`、分数、图片和日志。“带走结果”一节的单元格还会把这次训练打包成一个文件，放在那里。交互会话所写的内容，不保存版本就会丢失。
#
# ## 5. 时间用完时
#
# Kaggle 的会话在 12 小时后结束，使用 TPU 时为 9 小时。训练在 11.5 或 8.5 小时后自行停止，一切都已写好（`max_hours`）。这些小时从内核最近一次启动算起。如果重启过内核，请把会话剩余的小时数写入 `max_hours`。要继续：点 Add Input，选择这个笔记本自己上一次的输出；然后以同样的设置再运行一次。训练会在那里被找到并继续。
#
# ## 命令
#
# 在单元格中，每条命令前加 `!`。
#
# ```bash
# mshnet doctor
# mshnet predict PATH_OF_THE_INPUT    # 图像文件夹，不需要掩模
# mshnet data nuaa-sirst
# mshnet train --dataset-dir nuaa-sirst --epochs 50
# mshnet test --weight-path /kaggle/working/runs/nuaa-sirst-*/best.pt
# mshnet pack /kaggle/working/runs/nuaa-sirst-*
# ```
#
# ## 出问题时
#
# 见[故障排查](trouble.ipynb)（英文）；使用 TPU 时见[它的页面](tpu.zh-CN.ipynb)。
