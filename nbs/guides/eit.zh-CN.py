# %% [markdown]
# # 电阻抗层析成像（CDEIT）：从 TPU 教程到这里
#
# > 输入水槽的 208 个电压，输出水槽内部的图像：为读过 CDEIT 的 TPU 教程的人逐节说明该输入什么。
#
# [English](eit.ipynb)
#
# 任务名为 `eit`。什么都不用下载：没有数据集时使用模拟的水槽。下面的命令在 CPU 上训练小预设、评分，并画出测试部分的几个水槽：
#
# ```bash
# mshnet train --task eit
# ```
#
# **没有验证什么：** 没有真实的 TPU 可用。程序在 torch_xla 的 CPU 运行时上运行过，使用一个和八个虚拟设备。
#
# ## 准备
#
# 在任何机器上安装一次这个库。哪一版 torch 配哪一版 torch_xla，见 [TPU 教程](tpu.zh-CN.ipynb)。在没有 TPU 的机器上安装 torch_xla 不会改变任何事：程序会询问设备本身。
#
# ```bash
# mshnet doctor --task eit --device xla
# ```
#
# doctor 报告芯片、内存和缺少的东西，代替原教程中的诊断单元格。
#
# ## 数据
#
# 采用已发布的布局：文件夹 `train`、`valid` 和 `test`，每个水槽一个 npz 文件（`ys` 是 208 个电压，`xs` 是真实图像），旁边是 `mean.pth` 和 `std.pth`。真实录制的数据在 `test2017`（UEF）和 `test2023`（KTC）中。`--data-path` 可用；文件夹不存在就是错误，不会改用别的文件夹。
#
# ```bash
# mshnet data --task eit simdata-cdeit
# mshnet data --task eit --write mine --tanks 3000
# ```
#
# 第一行把数据与物理对照：对图像求解正问题，并计算与电压的相关系数。第二行按同样的布局写出一个模拟数据集；如果中断，同一条命令会接着写。
#
# 文件的读取是安全的：含有 pickle 的 npz 会被拒绝，不会执行。不可能正确的数据也会被拒绝：
#
# | 提示 | 原因 | 怎么办 |
# |---|---|---|
# | `... voltages; a measurement of 16 electrodes has ...` | 一次测量的数值个数不对 | 16 个电极，相邻激励、相邻测量，不含通电流的电极对 |
# | `a voltage is NaN, infinite or not a number` | 录制损坏或未完成 | 去掉这个文件 |
# | `the 208 voltages are in another order` | 交换激励与测量后数值改变，任何水槽都不会这样 | 把每个激励对的测量对按编号排序 |
# | `the electrodes are counted in another order` | 只有把水槽旋转或镜像，电压才与图像相符 | 按提示旋转图像或重排电压 |
# | `the sign of the voltages is reversed` | `ys` 是清水减去测量 | 改变 `ys` 的符号 |
# | `fit the pictures in no orientation`、`it is the change of the conductivity` | `xs` 是标签 0、1、2，或属于别的电压 | 保存电导率的变化：-1、0、1 |
# | `these are the statistics of another set, or the voltages have another unit` | `mean.pth` 和 `std.pth` 属于别的数据 | 复制这个数据集自己的文件 |
# | `refused, it would run code when loaded` | 文件含有 pickle | 只写入数值数组 |
# | `holds other data; use a new or an empty folder` | `--write` 发现了不是它写的内容 | 换一个文件夹 |
#
# ## 训练
#
# 原教程的写法与今天的写法：
#
# | 原教程 | 这里 |
# |---|---|
# | `python main.py --mode train` | `mshnet train --task eit` |
# | `--mode test` | `mshnet test --task eit` |
# | `--data-path DIR` | 相同，或 `--dataset-dir DIR` |
# | `--global-batch-size 64` | 相同，或 `--batch-size 64`：所有芯片的总数，须为芯片数的整数倍 |
# | `--epochs`、`--log-every`、`--num-workers` | 相同；epoch 数不会被步数覆盖 |
# | `--ckpt-every` | 不需要：每个 epoch 都会保存，在 epoch 中间停下的训练从那里继续 |
# | `--global-seed`、`--results-dir` | 相同，或 `--seed`、`--output-dir` |
# | `--data simulated`、`uef2017`、`ktc2023` | 相同：对哪些水槽评分 |
# | `--samplingsteps 5` | 相同，或 `--sampling-steps 5` |
#
# 原教程的预设按用途对应：先看一眼、通常的训练、论文的规模。
#
# ```bash
# mshnet train --task eit --preset quick
# mshnet train --task eit --preset small
# mshnet train --task eit --preset tpu --device xla --dataset-dir simdata-cdeit --batch-size 64
# ```
#
# `--preset paper` 是已发布的训练方案（Adam，恒定学习率 1e-5，按已发布的规律平均权重）。
#
# 一个进程驱动全部芯片，所以不会出现“expected 8 processes but got 1”。（已发布的脚本声称用八个核心，实际只有一个在工作，七个闲置。）训练开始时 `device` 一行报告芯片数。梯度在一步的程序之内对所有芯片求平均；单靠步标记做不到这一点。
#
# 如果会话结束，再执行一次同样的命令。检查点含有模型、平均权重、优化器、步数和随机状态，训练会继续得到同样的数值。
#
# ## 内存
#
# 放不下的批会报告该怎么写。如果批太大，`--micro-batch` 会分几部分计算并累加梯度；有多个设备时，每一部分也由它们分担。所以无论芯片多小，`--batch-size 64` 仍然是 64：
#
# ```bash
# mshnet train --task eit --preset tpu --batch-size 64 --micro-batch 16
# ```
#
# 原教程的内存表是错的：它没有计入最细网格上的注意力，仅这一项每个样本就可能需要一个 GB。在 CPU 或 GPU 上，这里从不同时保存注意力的全部分数；在 TPU 上会保存，所以上面用了 `--micro-batch`。
#
# ## 观察训练，以及结果
#
# 一次训练的全部内容都在它的文件夹中：`log.jsonl` 每个 epoch 一行，`train.log`，代替 `checkpoints/` 的 `best.pt` 和 `last.pt`，带有评分协议的 `scores.json`，以及 `figures/`。出错的一步会报告它的序号，不会无声地等待。
#
# ```bash
# mshnet test --task eit --weight-path runs/NAME --dataset-dir DIR --data uef2017
# mshnet predict --task eit --weight-path runs/NAME mine.csv
# mshnet compare runs/NAME runs/OTHER
# ```
#
# `predict` 接受含有 `ys` 的 npz 文件，以及每行 208 个电压的表格。其他仪器单位的电压会用一个系数换算到通常的大小，并报告这个系数。数据集中的文件用该数据集的统计量归一化，其他文件用已发布的统计量。
#
# ## 多少分算好？
#
# 经典方法很难超越。在 47 个真实水槽上，32x32（小预设的尺寸），与真实图像的相关系数（CC）和均方根误差（RMSE）：
#
# | 方法 | UEF CC | UEF RMSE | KTC CC | KTC RMSE |
# |---|---|---|---|---|
# | 空白图像 | - | 0.240 | - | 0.280 |
# | 岭回归 | 0.759 | 0.167 | 0.775 | 0.186 |
# | Tikhonov | 0.751 | 0.163 | 0.737 | 0.201 |
# | Gauss-Newton | 0.782 | 0.152 | 0.782 | 0.174 |
# | 小预设，种子 0 | 0.816 | 0.137 | 0.787 | 0.171 |
# | 小预设，种子 1 | 0.817 | 0.137 | 0.797 | 0.167 |
# | 小预设，种子 2 | 0.819 | 0.137 | 0.786 | 0.171 |
#
# 它只用模拟数据训练。在 128x128 上，随水槽发布的图像的 CC 是 0.699 和 0.640（Tikhonov）、0.633 和 0.733（Gauss-Newton）；岭回归在那里是 0.723 和 0.743（[文件夹](../../results/eit-yardsticks)）。表中没有 SSIM，因为空白图像的 SSIM 最高。一个脚本写下了这些方法。[scores](../eit/03_scores.ipynb) 解释这些分数，[tank](../eit/00_tank.ipynb) 讲物理，[tanks](../eit/02_tanks.ipynb) 讲数据。
#
# ## 扩散带来什么
#
# 一次测量不能唯一确定图像。网络对每次测量抽取几张图像；它们的平均是重建结果，它们的离散程度显示电压在哪里说明得少。图像越多（`mshnet predict --task eit --samples 16 mine.csv`），平均越平滑，对离散程度的估计也越好。分数会报告真实值有多少落在一倍和两倍离散之内。
