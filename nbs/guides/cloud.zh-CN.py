# %% [markdown]
# # Colab 与 Kaggle
#
# > 写给没有 GPU 的人。读完后：一个 notebook 用你的数据完成了训练，结果已下载。

# %% [markdown]
# [English](cloud.ipynb)
#
# **未验证：** 这些 notebook 从未在真实的 Colab 或 Kaggle 会话中运行。我们在 CPU 上测试过它们：用两个进程代替两块 T4，用 XLA 的 CPU 运行时代替 TPU，用模拟对象（mock）代替 Drive 和 Kaggle 的文件夹。
#
# ## 1. 选一个 notebook
#
# 请先用 Colab 的 T4 或 Kaggle 的 GPU；TPU 启动最慢。
#
# | 服务 | notebook | 要选的加速器 |
# |---|---|---|
# | Colab，GPU（T4、L4、A100） | [a100_setup](../run/a100_setup.ipynb) [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/{{repo}}/blob/{{branch}}/nbs/run/a100_setup.ipynb) | Runtime，Change runtime type：任何 GPU，免费的 T4 也可以（不限于 A100） |
# | Colab，TPU | [tpu_setup](../run/tpu_setup.ipynb) [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/{{repo}}/blob/{{branch}}/nbs/run/tpu_setup.ipynb) | v5e-1 TPU |
# | Kaggle，GPU | [kaggle_gpu](../run/kaggle_gpu.ipynb) [![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)](https://kaggle.com/kernels/welcome?src=https://github.com/{{repo}}/blob/{{branch}}/nbs/run/kaggle_gpu.ipynb) | Session options：GPU T4 x2；一块也可以 |
# | Kaggle，TPU | [kaggle_tpu](../run/kaggle_tpu.ipynb) [![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)](https://kaggle.com/kernels/welcome?src=https://github.com/{{repo}}/blob/{{branch}}/nbs/run/kaggle_tpu.ipynb) | Session options：TPU v5e-8 |
#
# 没有加速器？试用时（128x128 像素，9 个 epoch）请在设置单元格中设 `preset = "quick"`，在 TPU 的 notebook 中还要设 `device = "auto"`。TPU 的问题见 [TPU](tpu.zh-CN.ipynb)。
#
# ## 2. 打开它
#
# {{published: 点击它的徽章：第一个单元格从 GitHub 安装本库。本步骤的其余部分适用于你修改过本库的情形。}}请上传两个文件，这样这个库就不需要公开的地址：notebook 和一个 wheel，后者就是整个库。在自己的机器上，在本项目的文件夹中生成 wheel：
#
# ```bash
# make wheel    # 没有 make 时：python -m pip wheel --no-deps --wheel-dir dist .
# ```
#
# **Colab**
#
# 1. File，Upload notebook：选择 `nbs/run/` 中的一个文件。
# 2. 选择上表中的加速器。
# 3. 试用时把 `dist/mshnet-*.whl` 拖进 Files 面板；会话结束时它会被删除。要保留它，请上传到 `MyDrive`，并在运行之前点击这个面板中的 Mount Drive。
#
# **Kaggle**（使用 Internet 和加速器须验证手机号）
#
# 1. Create，New Notebook，再选 File，Import Notebook：选择 `nbs/run/` 中的一个文件。
# 2. 选择上表中的加速器，并打开 Internet。
# 3. Add Input，Upload：把 wheel 上传为私有数据集。它会一直附加着。要换新的 wheel，请上传这个数据集的新版本（没有试过）。
#
# 第一个单元格安装 `mshnet`，并打印安装的来源。有多个 wheel 时，安装版本最高的。
#
# - 请不要在那里执行 `pip install torch`：单元格保留已安装的 PyTorch，它适合这台机器。
# - 如果已经装有 `mshnet`，单元格什么都不安装。在 Colab 中要换新的 wheel，请先选择 Runtime，Disconnect and delete runtime；再上传新的 wheel。
#
# ## 3. 你的数据
#
# 数据集需要 `images/`、`masks/` 和两个名称列表（[你自己的图像](own_images.ipynb)）。
#
# | | Colab | Kaggle |
# |---|---|---|
# | 上传 | Drive 上的一个 `.zip` | Add Input：选择或上传一个数据集 |
# | 在设置单元格中 | `dataset_dir = "/content/drive/MyDrive/NUAA-SIRST.zip"` | `dataset_dir = "my-targets"`，即它的文件夹名 |
# | 会发生什么 | 每次会话解压一次，解压到会话的磁盘 | 在 `/kaggle/input` 及其下至多两级文件夹中查找；压缩包解压一次 |
# | 注意 | 不要用 Drive 上的零散文件训练，因为读取很慢 | 附加的内容是只读的。文件夹名不同？在上方的单元格中执行 `!mkdir -p /tmp/mine && ln -sfn /kaggle/input/NAME/Images /tmp/mine/images && ln -sfn /kaggle/input/NAME/Labels /tmp/mine/masks`，然后设 `dataset_dir = "/tmp/mine"`（/kaggle/input/NAME 请换成 Input 面板显示的路径；那里的列表用完整路径设为 `train_list` 和 `test_list`） |
#
# 想不上传就试用，请设 `dataset_dir = "NUAA-SIRST"`，它会下载一个公开的数据集（从未试过；[数据集](datasets.zh-CN.ipynb)说明用的是哪些列表）。
#
# 如果你的数据没有列表：
#
# 1. 在“设置”单元格上方加一个单元格 `!mshnet data NAME --split 0.5`。NAME 就是你的 `dataset_dir`，例如 `/content/drive/MyDrive/mine.zip`。在 Colab 中先在 Files 面板点击 *Mount Drive*。
# 2. 列表写在数据集的文件夹中，`.zip` 则写在解压后的副本中。只读时（Kaggle）写在 notebook 旁边：把 `train_list` 和 `test_list` 设为打印的两个路径，它们以 `/kaggle/working/` 开头。
# 3. 请保留这个单元格：新的会话会生成同样的列表。消息 *there is a list* 无妨。
#
# 视频的帧请[按视频](own_images.ipynb)制作列表。
#
# “The data / 数据”单元格报告找到了什么。请检查其下的图：标记必须落在目标上。
#
# ## 4. 全部运行
#
# 在 Colab 中选 Runtime，Run all。在 Kaggle 上，试用时选 Run All；正式训练用 Save Version，Save & Run All：它在你离开后运行，并保留 `/kaggle/working`。
#
# notebook 先在一幅图像中检测目标，然后训练。没有数据集时用合成场景训练：在 Colab 中（GPU 或 TPU）以及在 Kaggle 的 TPU 上 20 个 epoch，在 Kaggle 的 GPU 上 9 个（预设 `quick`）。
#
# Colab 的 notebook 和 Kaggle 的 TPU notebook 使用 16 的批大小和 0.002 的学习率；用它们训练 200 个 epoch 没有测过。要用我们结果中的训练方案，或者要微调，请设 `preset = "steady"`（八块芯片时再设 `batch_size = 8`）。`a100_setup` 和 `tpu_setup` 的训练方案相同：数据和设置相同时，后一个会找到前一个的运行并接着训练。要单独运行，请设 `output_dir = "/content/runs/tpu"`。
#
# 用自己的数据正式训练时用 200 个 epoch，即有数据集时的默认值。一次训练可以用几次会话（第 5 节）。请现在选定 epoch 数：改变它会开始一次新的训练。所需的时间没有测过。估计一块 GPU 所需的时间：在单元格中执行 `!mshnet bench NAME`（NAME 是你的 `dataset_dir`；在 Colab 的 GPU 上加 `--preset a100`），读取最前面的 `train` 和 `score` 两行的 `ms/image`。在 TPU 上（没有试过）加 `--preset tpu`，并在“The machine / 机器”单元格之前运行，因为该单元格会占用 TPU。于是
#
# ```
# hours = 200 * (training images * ms of train + test images * ms of score) / 3_600_000
# ```
#
# 在 Colab 中，上面的两个 notebook 把结果复制到你的 Drive（在 `eit`、`events` 和 `signs` 中请设置 `mirror_dir = "drive"`）。如果 Drive 没有挂载，“设置”下方的单元格会请求许可。如果拒绝，就不能读取 Drive 上的数据，结果留在会话的磁盘上。
#
# 在 Kaggle 上有两块 T4 时，每个批次分给两个进程。结果应不变；只在 CPU 上测试过。
#
# ## 5. 会话结束时
#
# | | Colab | Kaggle |
# |---|---|---|
# | 服务何时结束会话（2025 年的规则） | 最长 12 小时，无人使用时更早 | 12 小时，使用 TPU 时 9 小时；每周的小时数也有限制 |
# | 我们的限制：训练保存并停止，从内核启动时算起 | 11.5 小时后 | 11.5 小时后，使用 TPU 时 8.5 小时后 |
# | 可能丢失什么 | [还没有复制](resume.ipynb)到 Drive 的内容 | 交互会话写下的全部内容，除非保存一个版本 |
# | 怎样恢复 | 打开同一个 notebook，如果 wheel 不在 `MyDrive` 中就重新上传，点击 Mount Drive 并全部运行：训练从 `MyDrive/mshnet` 恢复 | Add Input：同一个 notebook 上次的输出；然后全部运行 |
#
# 恢复训练时只改变 `max_hours`、`device`、`num_devices` 或 `mirror_dir`：其他设置可能开始一次新的训练。以 float16 开始的训练（T4 上的默认值）不能在 TPU 上恢复。以 bf16 开始的训练（L4、A100 上的默认值）可在 T4 上继续，但很慢；如果 GPU 可能改变，请一开始就设 `precision = "fp16"`。重启内核之后，我们的计时从零开始，会话的计时不会：请把 `max_hours` 设为会话剩余的小时数减 0.5。
#
# ## 6. 下载结果
#
# | | Colab | Kaggle |
# |---|---|---|
# | 运行文件夹：权重、分数、图、日志 | `MyDrive/mshnet` | 版本的输出，在 `runs/` 中 |
# | 作为一个文件 | “下载结果”一节的单元格 | 同一个单元格 |
#
# 在自己的、装有本库的机器上：`tar -xzf NAME.tar.gz`，然后 `mshnet predict frame.png --weight-path NAME`。
#
# ## 命令
#
# 在第一个单元格之后的单元格中，每条命令前加 `!`。在 Colab 中请先在 Files 面板点击 *Mount Drive*：命令不能挂载它。训练从命令开始时计时：请加上 `--max-hours`，即会话剩余的小时数减 0.5。
#
# ```bash
# mshnet doctor
# mshnet predict /content/drive/MyDrive/images --output-dir /content/drive/MyDrive/found    # Colab
# mshnet data /content/drive/MyDrive/NUAA-SIRST.zip    # Colab
# mshnet train /content/drive/MyDrive/NUAA-SIRST.zip --mirror-dir drive    # Colab
# mshnet train my-targets --num-devices 2    # Kaggle，两块 T4：所附数据集的名称
# mshnet test /kaggle/working/runs/NAME    # Kaggle：训练打印的文件夹
# pip install onnx onnxruntime onnxscript
# mshnet export /content/drive/MyDrive/mshnet/NAME    # Colab：Drive 上的 best.onnx
# ```
#
# 出问题时，见[故障排查](trouble.zh-CN.ipynb)。
