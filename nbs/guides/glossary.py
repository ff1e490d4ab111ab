# %% [markdown]
# # Glossary
#
# > For a reader who looks up a word. Names of settings are in `code`; some keep an older word, because scripts use them.

# %% [markdown]
# ## Data
#
# | word | meaning here |
# |---|---|
# | target | a small bright object of up to about a hundred pixels; in a mask, a set of target pixels that touch, also at a corner (8-connected) |
# | mask | the label image that belongs to an image: 255 = target, 0 = background. In figures it is called *ground truth* |
# | split | a part of the data: training, validation or test |
# | list | the file with the names of a split (`trainval.txt`, `test.txt`) |
# | held-out | not trained on, but kept for validation |
# | near-duplicate | a test image that is almost equal to a training image |
# | background frame | an image without a target |
# | original resolution (`native`) | the image at the size of its file, not resized |
# | crop (`--crop`) | the rectangle of an image that one training step sees. It is cut from the image at its evaluated size (`scored`, the default), at its original size (`native`), or at a random size, as in the official code (`resize`) |
# | occluder (`--clutter-share`) | a large shape that is pasted over part of a crop and is not a target |
# | padding | rows, columns or samples that only fill up a batch and are not scored |
# | hash | a short code computed from names and pixels: equal hashes mean equal data |
#
# ## Network and loss
#
# | word | meaning here |
# |---|---|
# | head | the convolution that turns features into one logit for each pixel; MSHNet has four, at four resolutions |
# | fused output | the output that combines the four heads; it is the one that is evaluated |
# | deep supervision | a loss on every head, not only on the fused output |
# | warm-up, of the heads (`--warm-epoch`) | the first epochs of the paper's recipe, in which only the full-size head is trained |
# | warm-up, of the learning rate (`--warmup-steps`) | the first steps, in which the learning rate rises |
# | head learning-rate multiplier (`--join-rate`) | factor on the learning rate of the coarse heads and the fusing layer |
# | SLS | the scale and location sensitive loss of the paper |
# | logit | the network's output for a pixel; its sigmoid is the *probability*, from 0 to 1 |
# | collapse | the prediction becomes all-negative or all-positive, and usually stays so |
# | EMA | exponential moving average of the weights; the averaged weights are evaluated and stored |
#
# ## Training
#
# | word | meaning here |
# |---|---|
# | recipe | the settings that give a run its name; a run resumes only if they are unchanged |
# | preset (`--preset`) | a named recipe: `steady` (the default), `paper` (the original one), `quick` (a trial at 128x128, and the default without a data set), `a100` and `tpu` (batches of 16) |
# | run | one training; its *run folder* has the settings, log, checkpoints, scores and figures |
# | checkpoint | a file from which training resumes (`last.pt`, `previous.pt`) |
# | `best.pt` | the weights of the selected epoch, by default the **last** one |
# | selected epoch (`--choose`) | the epoch whose weights are evaluated and stored: the last, the best on a validation split, or the best on the test list |
# | resume | to continue a run where it stopped, with the same command |
# | backup (`--mirror-dir`) | a copy of the run folder on another disk; a new machine restores the run from it |
# | fine-tune | to train on new data, starting from trained weights |
# | micro-batch | the part of a batch that is computed at once; gradients are summed, but batch norm averages over the part, so results differ a little |
# | augmentation (`--augment`) | random changes of the training crops |
# | `turns` (the default) | flips, rotations by 90 degrees, and blur |
# | `flips` | as `turns`, and the crops are also scaled (an older name, kept for scripts) |
# | `paper` | flips left to right, and blur; with `--crop resize` as in the official code, else also scaled as by `flips` |
# | `robust` | as `flips`, with a larger range of scales, and with contrast, brightness, noise and sensor faults, for images of other cameras |
# | epoch | one pass over the training images; epochs count from 0, so the last of 60 is epoch 59 |
# | seed | the number that decides initial weights, order and augmentation |
# | bf16, fp16, fp32 | number formats with 16 or 32 bits; `auto` chooses by the device |
#
# ## Evaluation
#
# | word | meaning here |
# |---|---|
# | evaluate | to compute metrics on a split; each resulting number is a *score* |
# | tally | the object that counts batch by batch and then returns the scores (an accumulator) |
# | protocol | all that a score depends on: data, size, resize, threshold, matching rule, mirrored predictions, selected epoch |
# | IoU, nIoU | intersection over union of all pixels of a split; the mean over images |
# | Pd | probability of detection: found targets / targets |
# | Fa | pixels of false alarms per million pixels. *False alarms per frame* counts detections, not pixels |
# | false alarm, or alarm | a detection that matches no target |
# | baseline | a simple method that a network should beat |
# | matching rule (`--rule`) | how detections are paired with targets: `exact` (as many pairs as possible) or `reference` (as in the official scripts) |
# | threshold | the probability above which a pixel is predicted as target |
# | detection | predicted pixels that touch, also at a corner |
# | centroid | the mean row and column of the pixels of a target or a detection |
# | tile (`--tile`) | the part of a large frame that is predicted at once |
# | `multiscale` | four numbers in the weights: at which sizes a frame is predicted, and how the predictions are combined |
# | track (`--tracks`) | detections of one object in successive frames |
#
# ## Devices
#
# | word | meaning here |
# |---|---|
# | XLA | the compiler for TPUs. It compiles the operations of a step (a *graph*) into a program, once for each shape of the tensors |
# | runtime settings | settings that are not part of the recipe, such as the device or the number of threads |
# | doctor | the command `mshnet doctor`, which checks the machine, the data and the settings |
# | wheel | the library in one file, which pip installs |
#
# ## Other tasks
#
# | word | meaning here |
# |---|---|
# | inclusion | an object in a tank of salt water |
# | ridge (Tikhonov) regression, Gauss-Newton | classical reconstructions, in one linear step or in several steps; a penalty keeps the result smooth |
# | reciprocity | a law of physics: a voltage does not change if the driving and the measuring electrodes are exchanged |
# | orientation | one of the 32 rotations and reflections of a tank with 16 electrodes |
# | standard deviation (of a reconstruction) | how much several reconstructions of one measurement differ |
# | polarity | whether an event means brighter or darker |
# | surrogate gradient | a smooth slope that replaces the derivative of a spike, which is 0 almost everywhere |
# | time bin | a fixed interval of time whose events are counted together |
# | gloss | the written name of a sign |
# | CTC | connectionist temporal classification: a loss for sequences of glosses that needs no times |
# | beam search | a search that keeps the few most probable sequences of glosses at each frame |
# | WER | word error rate: edit operations / glosses of the ground truth |
