# %% [markdown]
# # Data sets: links, licences, lists
#
# > For somebody who looks for data. At the end you know which data sets this library reads, where to get them, under which terms, and which split a score belongs to.

# %% [markdown]
# [中文](datasets.zh-CN.ipynb)
#
# This repository contains no data set. The terms come from the publishers' pages; read them again before you publish anything. "None stated" means that we found no licence: cite the paper, and ask the authors before you redistribute images.
#
# ## Small targets in infrared images
#
# | data set | images | masks | terms | get it |
# |---|---|---|---|---|
# | [NUAA-SIRST](https://github.com/YimianDai/sirst) (Dai et al., WACV 2021) | 427, of many sizes; real | yes | none stated | `mshnet data NUAA-SIRST` downloads it |
# | [NUDT-SIRST](https://github.com/YeRen123455/Infrared-Small-Target-Detection) (Li et al., IEEE TIP 2023) | 1,327 of 256x256; real backgrounds, targets partly synthetic | yes | none stated | `mshnet data NUDT-SIRST` downloads it |
# | [IRSTD-1k](https://github.com/RuiZhang97/ISNet) (Zhang et al., CVPR 2022) | 1,001 of 512x512; real | yes | MIT (the repository) | `mshnet data IRSTD-1k` downloads it |
# | [open-sirst-v2](https://github.com/YimianDai/open-sirst-v2) | the images of NUAA-SIRST and more; some have no target (we have not counted these); real. The pretrained weights used 59 empty frames of 1280x1024 | yes | none stated | download it yourself |
# | [Drone-detection dataset](https://github.com/DroneDetectionThesis/Drone-detection-dataset) (Svanström et al., Data in Brief 2021, [Zenodo 5500576](https://zenodo.org/records/5500576)) | 365 infrared clips of 320x256 (we used 161) | boxes only | CC0 | download it yourself |
#
# **We have not tried these downloads.** They read archives of public repositories at fixed commits and write to `data/NAME`; then `mshnet train data/NAME` uses the set. NUAA-SIRST comes from its publisher or, if that fails, from a copy by others; NUDT-SIRST and IRSTD-1k come from copies. A download whose pixels differ from ours is refused.
#
# ## Which list?
#
# There are several splits with the same name, and scores of two splits cannot be compared. The library includes these lists:
#
# | `--train-list`, `--test-list` | images | whose |
# |---|---|---|
# | `nuaa-sirst-trainval`, `nuaa-sirst-test` | 213, 214 | most papers; the default, also for the download; **our results** |
# | `nuaa-sirst-authors427-trainval`, `nuaa-sirst-authors427-test` | 341, 86 | the data set's authors |
# | `nuaa-sirst-authors320-trainval`, `nuaa-sirst-authors320-test` | 224, 96 | the data set's authors, an earlier edition |
# | `nudt-sirst-trainval`, `nudt-sirst-test` | 663, 664 | most papers; the default; **our results** |
# | `irstd-1k-trainval`, `irstd-1k-test` | 800, 201 | most papers; the default; **our results** |
#
# Lists of different origin overlap. So evaluate weights only on the test list that belongs to their training list. In NUDT-SIRST 43 of the 664 test images are near-duplicates of training images.
#
# ## Your own folder
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
# The training list may also be called `trainval.txt`. IRSTD-1k's folder names (`IRSTD1k_Img`, `IRSTD1k_Label`), names with suffixes in the lists, and `.zip` archives are read, too. 85 of its masks have grey values, which are cut at half; `mshnet data` names the two that lose a target by this. [Your own images](own_images.ipynb) shows how to make masks and lists.
#
# ## Tomography (`--task eit`)
#
# | data set | content | terms | get it |
# |---|---|---|---|
# | simulated | made by the library, no download | ours | `mshnet data --task eit --write mine --tanks 3000` |
# | UEF 2017 ([page](http://fips.fi/EIT_dataset.php), [report](https://arxiv.org/abs/1704.01178)), 22 tanks | real saline tanks, 16 electrodes | "can be freely used for scientific purposes with appropriate references" | folder `data/test2017` of [shuaikaishi/CDEIT](https://github.com/shuaikaishi/CDEIT) |
# | KTC 2023 ([Zenodo 8252370](https://zenodo.org/records/8252370)), 25 tanks | real saline tanks | see that page; not checked here | folder `data/test2023` of the same repository |
# | training tanks of CDEIT | simulated | none stated | [shuaikaishi/CDEIT](https://github.com/shuaikaishi/CDEIT) |
#
# ## Event cameras (`--task events`)
#
# | `--dataset` | content | terms | get it |
# |---|---|---|---|
# | none | a simulated camera that looks at digits, no download | ours | `mshnet train --task events` |
# | `nmnist` | [N-MNIST](https://www.garrickorchard.com/datasets/n-mnist) (Orchard et al., 2015), 34x34 pixels, ten digits | CC BY-SA 4.0 | download it yourself |
# | `dvsgesture` | [DVS128 Gesture](https://www.research.ibm.com/dvsgesture/), 128x128 pixels, eleven gestures | CC BY 4.0 | download it yourself; [events](events.ipynb) converts it |
# | `cifar10dvs` | [CIFAR10-DVS](https://figshare.com/articles/dataset/CIFAR10-DVS_New/4724671/2), ten objects | see that page; not checked here | download it yourself: `*.aedat` files (AEDAT 2), read without a conversion. Copies in AEDAT4 must be [converted](events.ipynb) |
# | `ntidigits` | N-TIDIGITS, spoken digits of a silicon cochlea | not checked here | ask its authors; [events](events.ipynb) converts it |
#
# ## Sign language (`--task signs`)
#
# | data set | content | terms | get it |
# |---|---|---|---|
# | simulated | made by the library, no download | ours | `mshnet data --task signs --write set` |
# | RWTH-BOSTON-104 ([page](http://www-i6.informatik.rwth-aachen.de/~dreuw/database-rwth-boston-104.php)) | 201 sentences of American Sign Language; hand positions of all frames | videos: "freely available for download"; tables: MIT (the repository) | tables of [udacity/AIND-Recognizer](https://github.com/udacity/AIND-Recognizer), folder `data` |
# | CE-CSL ([TFNet](https://github.com/woshisad159/TFNet), [paper](https://arxiv.org/abs/2409.11960)) | Chinese Sign Language; 4,973, 515 and 500 sentences | none stated | download it yourself |
#
# 26 of the 40 test sentences of RWTH-BOSTON-104 occur word for word in its training list: a network that memorises sentences scores well on it.
