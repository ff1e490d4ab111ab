# %% [markdown]
# # Glossary
#
# > For a reader who meets a word and wants its meaning here. Names of settings are in `code`; some keep an older word, because scripts use them.

# %% [markdown]
# ## Data
#
# | word | meaning here |
# |---|---|
# | target | a small bright object: a set of mask pixels that touch, also at a corner (8-connected) |
# | mask, ground truth | the label image in a file; the same in a figure |
# | split, list | a part of the data (training, validation, test); the file with its names (`trainval.txt`, `test.txt`) |
# | held-out | never trained on and never used to choose anything but what is named |
# | near-duplicate | a test image that is almost equal to a training image |
# | background frame | an image without a target |
# | original resolution (`native`) | the image at the size of its file, not resized |
# | crop | the rectangle of an image that one training step sees |
# | occluder (`--clutter-share`) | a large shape, pasted over part of a crop, that is no target |
# | padding | rows and columns, or whole samples, that only fill a shape and do not count |
# | hash | a few digits computed from names and pixels; equal hashes mean equal data |
#
# ## Network and loss
#
# | word | meaning here |
# |---|---|
# | head | the convolution that turns features into one logit for each pixel; MSHNet has four, at four resolutions |
# | fused output | the output that combines the four heads, and the one that is evaluated |
# | deep supervision | a loss on every head, not only on the fused output |
# | warm-up | two things: the first epochs of the paper's recipe, in which one head is trained alone (`--warm-epoch`); and the first steps, in which the learning rate rises (`--warmup-steps`) |
# | head learning-rate multiplier (`--join-rate`) | learning rate of the coarse heads and the fusing layer, as a fraction of the learning rate |
# | SLS | the scale and location sensitive loss of the paper |
# | logit, probability | the network's output; its sigmoid, from 0 to 1 |
# | collapse | the prediction becomes all-negative or all-positive and training does not recover |
# | EMA | exponential moving average of the weights; these are evaluated and stored |
#
# ## Training
#
# | word | meaning here |
# |---|---|
# | recipe, preset (`--preset`) | all settings that change the result; a named set of them: `steady` (the default), `paper`, `quick`, `a100`, `tpu` |
# | run, run folder | one training; the folder with its settings, log, checkpoints, scores and figures |
# | checkpoint | a file from which training resumes (`last.pt`, `previous.pt`) |
# | `best.pt` | the weights of the selected epoch, by default the **last** one |
# | selected epoch (`--choose`) | the epoch whose weights are evaluated and stored: the last, the best on a validation split, or the best on the test list |
# | resume | continue a run where it stopped, with the same command |
# | backup (`--mirror-dir`) | a copy of the run folder on another disk; a new machine restores the run from it |
# | fine-tune | train, starting from trained weights, on new data |
# | micro-batch | the part of a batch that is computed at once; the gradients are summed |
# | augmentation `turns`, `flips`, `robust` (`--augment`) | the eight flips and rotations; the same with a random scale; the same with sensor effects, for images of other cameras |
# | seed | the number that decides initial weights, order and augmentation |
# | bf16, fp16, fp32 | formats of numbers with 16 or 32 bits; `auto` chooses by the chip |
#
# ## Evaluation
#
# | word | meaning here |
# |---|---|
# | evaluate, score | compute metrics on a split; the resulting number |
# | protocol | all that a score depends on: data, size, resize, threshold, matching rule, selected epoch |
# | IoU, nIoU | intersection over union of all pixels of a split; the mean over images |
# | Pd | probability of detection: found targets / targets |
# | Fa | false pixels per million pixels |
# | false alarm | a detection that matches no target |
# | matching rule (`--rule`) | how detections are paired with targets: `exact` (as many pairs as possible) or `reference` (as the official scripts do, faults included) |
# | threshold | the probability above which a pixel is predicted |
# | detection | predicted pixels that touch |
#
# ## Devices
#
# | word | meaning here |
# |---|---|
# | XLA, graph, compilation | the compiler of TPUs; the operations of one step; their translation, which takes a minute and must happen only once for each shape |
# | runtime settings | settings that do not change the result, such as the device or the number of threads |
# | interleaved | measured alternately, A B A B, so that a slow minute hits both |
# | baseline | a simple method that a network should beat |
#
# ## Other tasks
#
# | word | meaning here |
# |---|---|
# | inclusion | an object in a tank of salt water |
# | orientation | one of the 32 rotations and reflections of a tank with 16 electrodes |
# | standard deviation (of a reconstruction) | how much several reconstructions of one measurement differ |
# | time bin | a fixed interval of time whose events are counted together |
# | gloss | the written name of a sign |
# | WER | word error rate: edit operations / glosses of the ground truth |
