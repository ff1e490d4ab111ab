# %% [markdown]
# # Colab 五分钟上手
#
# > 打开笔记本，全部运行，换上自己的数据，保存结果。

# %% [markdown]
# [English](colab.ipynb)
#
# **验证过什么：** 这些笔记本在 CPU 上从头到尾执行过，挂载与复制用替身试验过。真实的 Colab 会话、它的 GPU 和真实的 Google Drive 都不在手边。
#
# ## 1. 打开：两个文件，不需要账户
#
# 需要一个笔记本和一个 wheel 文件，后者就是整个库。什么都不必发布，也不需要 GitHub 账户；Colab 本身要求 Google 账户。在自己的机器上，在本项目的文件夹中执行：
#
# ```bash
# make wheel    # 没有 make 时：python -m pip wheel --no-deps --wheel-dir dist .
# ```
#
# 1. 在 Colab 中选择 File，Upload notebook，上传 `nbs/run/` 中的一个笔记本。
# 2. 按下表选择机器。
# 3. 打开左侧的 Files 面板，把 `dist/mshnet-*.whl` 拖进去。文件就在 `/content` 中，会话结束时随之删除。要保留它，请改放到 `MyDrive`，并在运行笔记本之前点击该面板中的 Mount Drive。
#
# 有多个 wheel 时，第一个单元格安装版本最高的，版本相同时安装最新的文件。已经装有 `mshnet` 时它什么都不安装：上传新的 wheel 之后，请选择 Runtime，Disconnect and delete runtime，然后重新开始。
#
# 如果项目已经发布，点击徽章即可打开笔记本，第一个单元格不需要 wheel。
#
# | 笔记本 | 要选的机器（Runtime，Change runtime type） | 打开 |
# |---|---|---|
# | [a100_setup](../run/a100_setup.ipynb) | A100 GPU | [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/{{repo}}/blob/{{branch}}/nbs/run/a100_setup.ipynb) |
# | [tpu_setup](../run/tpu_setup.ipynb) | v5e-1 TPU | [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/{{repo}}/blob/{{branch}}/nbs/run/tpu_setup.ipynb) |
#
# 使用免费的 T4 时也打开 `a100_setup`：它在那里以 float16 计算。没有 GPU 时在设置单元格中写 `preset = ""`。没有数据集时，这就是预设 `quick`：九个很短的 epoch，适合先看看；`epochs` 保持原样即可。
#
# ## 2. 全部运行
#
# Runtime，Run all。第一个单元格安装 `mshnet`，打印它的来源，并保留 Colab 自带的 torch 和 numpy；请不要在那里执行 `pip install torch`。没有数据集时用合成场景训练，所以第一次试用什么都不需要准备。它在训练之前就先检测目标。笔记本自带的预设训练 200 个 epoch；第一次试用请在设置中写 `epochs = 20`（写更大的数就是一次新的训练，因为学习率在全部 epoch 上下降）。Colab 会在设置下面的单元格中请求访问你的 Drive，因为这两个笔记本要把结果复制到那里（其他任务的笔记本写 `mirror_dir = "drive"` 时也一样）；如果拒绝，训练照常进行，并说明结果留在会话的磁盘上。
#
# ## 3. 你的数据
#
# 把数据集打成一个 `.zip` 放到 Drive 上（一个文件，而不是几千个），并在设置单元格中写：
#
# ```python
# dataset_dir = "/content/drive/MyDrive/NUAA-SIRST.zip"
# epochs = 50
# ```
#
# 它只向会话的磁盘解压一次。不要用 Drive 上的散文件训练：它们会被逐个复制，很慢。数据集需要 `images/`、`masks/` 和两个名称列表。“数据”单元格说明找到了什么；其下图片中的标记必须落在目标上。
#
# ## 4. 会话结束时
#
# 再次打开同一个笔记本并全部运行。训练会从 `MyDrive/mshnet` 取回，以同样的设置从中断处继续。Colab 的会话最长 12 小时；训练在 11.5 小时后自行停止，一切都已写好（`max_hours`）。这些小时从内核最近一次启动算起。如果重启过内核，请把会话剩余的小时数写入 `max_hours`。
#
# ## 5. 带走结果
#
# 一切都在 `MyDrive/mshnet` 中，每次训练一个文件夹：`best.pt`、分数、图片、日志。若要下载，“带走结果”一节的单元格会把这次训练打包成一个文件，由浏览器提供下载。
#
# ## 命令
#
# 在单元格中，每条命令前加 `!`。它们在笔记本之外运行，不能挂载 Drive：请先运行笔记本的单元格。
#
# ```bash
# mshnet doctor
# mshnet predict /content/drive/MyDrive/pictures    # 图像文件夹，不需要掩模
# mshnet data /content/drive/MyDrive/NUAA-SIRST.zip
# mshnet train --dataset-dir /content/drive/MyDrive/NUAA-SIRST.zip --mirror-dir drive --epochs 50
# mshnet test --weight-path /content/runs/NUAA-SIRST.zip-*/best.pt
# ```
#
# ## 出问题时
#
# 见[故障排查](trouble.ipynb)（英文）；使用 TPU 时见[它的页面](tpu.zh-CN.ipynb)。
