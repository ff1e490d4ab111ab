# %% [markdown]
# # Into your own program
#
# > For a programmer who has weights and wants detections in a program: Python, C++ or another language by ONNX, and video. At the end a Python program gives the same detections as `mshnet predict`, and you have code and steps for C++.

# %% [markdown]
# | your program | use | needs |
# |---|---|---|
# | a script in Python, a few images | `mshnet.detect` | this library |
# | Python, many frames, probabilities | `Detector` and `predict_frame` | this library |
# | another language that can start a command | `mshnet predict --save none`, then read `detections.csv` | this library |
# | C++, C#, Java, a browser, a device without PyTorch | the ONNX file | onnxruntime |
# | PyTorch without this library | `mshnet export pretrained --output mshnet.safetensors`; the `.json` next to it has the normalisation | the package safetensors, and `mshnet/model.py`, which imports only PyTorch ([network](../00_model.ipynb)) |
#
# ## Python
#
# `detect` returns one dictionary for each detection. The centre of the top-left pixel is row 0, column 0; the box ends one past its last pixel.

# %%
import numpy as np

import mshnet
from mshnet.scenes import scene

image, _ = scene(np.random.default_rng(3), 256)  # [H,W] uint8, as from a camera
for found in mshnet.detect(image, device="cpu"):
    row, col = found["centroid"]
    print(f"row {row:.1f}, column {col:.1f}, area {found['area']} pixels, peak {found['peak']:.2f}")

# %% [markdown]
# `weights="runs/NAME"` uses your run in place of the pretrained weights, and `threshold=` replaces the threshold that is stored with them. The weights are read once; a later call with the same file uses them again.
#
# In a loop over many frames, open the detector yourself:

# %%
from mshnet.evaluate import Detector
from mshnet.predict import detections, predict_frame

detector = Detector("pretrained", "cpu")
for seed in range(3):
    frame, _ = scene(np.random.default_rng(seed), 200)  # of any size
    prob = predict_frame(detector, frame)  # [H,W] float32, 0..1
    boxes = [found["box"] for found in detections(prob, detector.threshold, min_area=2).rows()]
    print(f"frame {seed}: {len(boxes)} detections, boxes (top, left, bottom, right) {boxes}")

# %% [markdown]
# Frames of more than 8 bits must become 8 bits first. `detect` takes `low, high = grey_range(frame)` of `mshnet.data` ([how](../23_frames.ipynb)), and computes 255 * (frame - low) / (high - low), rounded and limited to 0..255 (a frame of one value becomes 0). Do this for each frame; one range for all frames of a camera was not measured.
#
# ## Video
#
# ```bash
# pip install av
# mshnet predict clip.mp4 --output-dir predictions/clip
# mshnet predict clip.mp4 --save none --output-dir predictions/tables
# ```
#
# The first call also writes masks and marked frames, the second one only the tables. `frame` in `detections.csv` is the number of the frame, from 0. `ffmpeg -framerate 30 -i predictions/clip/overlays/clip_%05d.png -pix_fmt yuv420p clip_marked.mp4` (30: the frames a second of your clip) joins the marked frames to a video, if ffmpeg is installed. A damaged picture leaves a gap, at which ffmpeg stops; `-pattern_type glob -i "predictions/clip/overlays/clip_*.png"` reads on (not on Windows). In Python:
#
# ```python
# from pathlib import Path
#
# from mshnet.evaluate import Detector
# from mshnet.frames import frames_of
# from mshnet.predict import detections, predict_frame
#
# detector = Detector("pretrained")
# for frame in frames_of(Path("clip.mp4")):
#     if frame.error:  # a damaged picture, or the end of a truncated video
#         print(frame.error)
#         continue
#     found = detections(predict_frame(detector, frame.pixels), detector.threshold)
#     print(frame.number, len(found))
# ```
#
# ## ONNX
#
# ```bash
# pip install onnx onnxruntime onnxscript
# mshnet export pretrained --output mshnet.onnx
# ```
#
# Before the file is saved, its outputs are compared with PyTorch's. `mshnet.onnx.json` next to it contains the threshold, the shapes and the SHA-256 of the file ([export](../52_export.ipynb)).
#
# | | name | type and shape | content |
# |---|---|---|---|
# | input | `image` | uint8, 1 x 3 x height x width | RGB from 0 to 255, three equal channels for a grey image; no scaling and no mean. Height and width are multiples of 16 |
# | output | `probability` | float32, 1 x 1 x height x width | probability that the pixel is a target |
# | output | `logits` | float32, 1 x 1 x height x width | the same before the sigmoid |
#
# Five steps make your program agree with `mshnet predict --precision fp32`. (By default `mshnet predict` computes in 16 bits where the chip is fast in them, and single pixels differ.)
#
# 1. A frame of more than 8 bits first becomes 8 bits, as described above. Pad the frame at the right and below to multiples of 16, by its mirror image without the edge pixel (numpy calls this mode `reflect`).
# 2. Run the session, and cut the padding off the result.
# 3. Skip this step if `multiscale` in `mshnet.onnx.json` is empty. It is `[a, b, c, n]` for the pretrained weights, for weights fine-tuned from them, and for weights trained on reduced images:
#    - Also reduce the frame itself by the factor n, before padding: means of n x n pixels, rounded (0.5 up). At the edge, means of the pixels that exist. Predict this frame by steps 1 and 2.
#    - Limit the logits of both predictions to ±13.8155.
#    - Upsample those of the reduced frame by n: bilinear, with half-pixel centres (PyTorch: `align_corners=False`; OpenCV: `INTER_LINEAR`). Cut the result to the size of the frame.
#    - The probability is sigmoid(a * full + b * reduced + c). Where a is 0, the frame at full size need not be predicted.
# 4. Keep the pixels whose probability is above the `threshold` of `mshnet.onnx.json`.
# 5. Join kept pixels that touch, also at a corner (8-connected), to objects.
#
# A frame with a side above 1,024 pixels is predicted in overlapping tiles by `mshnet predict`. If the memory allows, give the whole frame to the session. Near the borders of tiles the detections may then differ.
#
# ### Python without PyTorch
#
# ```python
# import json
#
# import numpy as np
# import onnxruntime
# from PIL import Image
# from scipy.ndimage import center_of_mass, label
# from scipy.special import expit
#
# session = onnxruntime.InferenceSession("mshnet.onnx")
# note = json.load(open("mshnet.onnx.json"))
#
# def logits(picture):
#     grey = np.asarray(picture)
#     height, width = grey.shape
#     padded = np.pad(grey, ((0, -height % 16), (0, -width % 16)), "reflect")  # to multiples of 16
#     image = np.broadcast_to(padded, (1, 3, *padded.shape)).copy()
#     return session.run(["logits"], {"image": image})[0][0, 0, :height, :width]
#
# frame = Image.open("frame.png").convert("L")
# total = logits(frame)
# if note["multiscale"]:
#     a, b, c, n = note["multiscale"]
#     n = int(n)
#     small = Image.fromarray(logits(frame.reduce(n)).clip(-13.8155, 13.8155))
#     large = small.resize((n * small.width, n * small.height), Image.Resampling.BILINEAR)
#     large = np.asarray(large)[: frame.height, : frame.width]
#     total = a * total.clip(-13.8155, 13.8155) + b * large + c
# found = expit(total) > note["threshold"]
# labels, count = label(found, np.ones((3, 3)))
# print(center_of_mass(found, labels, range(1, count + 1)))
# ```
#
# ### C++
#
# ```cpp
# #include <onnxruntime_cxx_api.h>
# #include <cstdint>
# #include <vector>
#
# // Probabilities [rows x cols] of a grey image [rows x cols] at full size; sides of at least 16.
# std::vector<float> probabilities(Ort::Session& session, const std::vector<uint8_t>& grey,
#                                  int64_t rows, int64_t cols) {
#     auto mirror = [](int64_t i, int64_t n) { return i < n ? i : 2 * n - 2 - i; };
#     const int64_t height = (rows + 15) / 16 * 16, width = (cols + 15) / 16 * 16;
#     std::vector<uint8_t> image;
#     for (int channel = 0; channel < 3; ++channel)
#         for (int64_t y = 0; y < height; ++y)
#             for (int64_t x = 0; x < width; ++x)
#                 image.push_back(grey[mirror(y, rows) * cols + mirror(x, cols)]);
#     const int64_t shape[] = {1, 3, height, width};
#     auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
#     auto input = Ort::Value::CreateTensor<uint8_t>(memory, image.data(), image.size(), shape, 4);
#     const char *in[] = {"image"}, *out[] = {"probability"};
#     auto result = session.Run(Ort::RunOptions{nullptr}, in, &input, 1, out, 1);
#     const float* values = result[0].GetTensorData<float>();
#     std::vector<float> found;
#     for (int64_t y = 0; y < rows; ++y)
#         found.insert(found.end(), values + y * width, values + y * width + cols);
#     return found;
# }
#
# int main() {
#     Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "mshnet");
#     Ort::Session session(env, "mshnet.onnx", Ort::SessionOptions{});
#     std::vector<uint8_t> grey(200 * 300);  // your frame, row by row
#     auto found = probabilities(session, grey, 200, 300);
# }
# ```
#
# This predicts at full size only. Where `multiscale` is not empty, this finds fewer targets than `mshnet predict`: for the same detections take the output `logits` and follow step 3. Then apply the threshold, and label the pixels (for example with OpenCV's `connectedComponentsWithStats`). On Windows the name of the file is a wide string (`L"mshnet.onnx"`). **Not run:** onnxruntime's C++ headers were not available here. We compiled this code against a stub of them, and compared its padding with numpy's. The Python code above was run on 8-bit grey images, and finds what `mshnet.detect` finds; it does not stretch 16 bits.
#
# TensorRT was not tried. Its builder needs a shape profile (sides that are multiples of 16); switch TF32 off (`--noTF32`) to compare.
#
# ### 8-bit integers: faster with OpenVINO
#
# ```bash
# pip install openvino onnx onnxruntime onnxscript
# mshnet export pretrained --int8 frames --output mshnet-int8.onnx
# ```
#
# `frames` is a folder with some images of your camera, some of them with targets, and without masks. Up to 64 images are used, and of large ones the middle 512x512 pixels (after the reduction, where a of step 3 is 0). The convolutions then compute with 8-bit integers. `mshnet export` compares the detections in these images with PyTorch's, and refuses the file if they differ much (Pd below 0.9 or IoU below 0.7). The input, the outputs and the five steps are the same. In Python, `openvino.Core().compile_model("mshnet-int8.onnx", "CPU")` returns a function: `model(image)["probability"]`.
#
# Measured with an earlier version of the weights on 100 images of a camera that neither they nor the calibration knew, at one size ([folder](../../results/predict-large)):
#
# | runtime, file | processor time (PyTorch: 1) | IoU | Pd | Fa |
# |---|---|---|---|---|
# | OpenVINO, float32 | 0.91 | 0.404 | 0.756 | 22.4 |
# | onnxruntime, float32 | 1.10 | 0.404 | 0.756 | 22.4 |
# | **OpenVINO, 8-bit** | 0.55 | 0.401 | 0.776 | 21.7 |
# | onnxruntime, 8-bit | 0.89 | 0.384 | 0.763 | 21.1 |
#
# This CPU has AVX2, but no instructions for 8-bit integers (VNNI). CPUs with them were not measured. The differences in Pd are three targets of 156, so they may be chance.
#
# ## How fast is it?
#
# | what | speed | machine |
# |---|---|---|
# | `mshnet predict` as it is: 320x256, two sizes, float32 | 2.7 frames a second | one core of an AMD EPYC without AVX-512 ([folder](../../results/predict-large)) |
# | forward pass and scores: 256x256, one size, bfloat16, batches of 4 | 32 ms a frame | 2 cores of an AMD EPYC with native bfloat16 ([folder](../../results/bench-cpu)) |
# | `mshnet predict` with weights without `multiscale`, one frame of 10,000x10,000 pixels in 144 tiles, with at most 1505 MiB of memory | 76 seconds | the same two cores ([folder](../../results/predict-large)) |
# | an accelerator | not measured | |
#
# `mshnet bench DIR --weight-path runs/NAME` measures your machine; its row `score` is the forward pass and the scores.
#
# ## An archive of 100,000 frames
#
# Measured on 27 frames and scaled to 100,000, on the machine of the first row above:
#
# | how | frames a second | 100,000 frames (scaled) |
# |---|---|---|
# | one process with one core | 2.7 | 10.4 hours |
# | `--num-devices 2`: two processes | 5.4 | 5.1 hours |
#
# The processes work independently, so the time should fall with the number of cores: 39 minutes on 16 cores (estimated). It grows with the pixels of a frame, too: a frame of 640x512 takes about four times as long.
#
# Several machines need a folder that all of them see. Start the same command on each, here on two with eight cores:
#
# ```bash
# torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=FIRST_MACHINE:29500 -m mshnet predict /archive --output-dir /found --save none
# ```
#
# `--save none` writes the tables only. Set `OMP_NUM_THREADS=1`, so that each process uses one core. If a machine fails, run the same command again on all machines; finished files are skipped. **Not run:** more than one machine (two copies of this command on one machine were).

# %%
#| hide
assert len(mshnet.detect(image, device="cpu")) > 0
