"The weights that come with the library: what they find, where they are used, and damage to them."

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pretrain
import pytest
import torch
from conftest import TOP, call, data_folder, make_dataset, refused
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from scipy.special import expit, logit

import mshnet
import mshnet.weights
from mshnet import export as exporting
from mshnet.cli import main
from mshnet.core import UserError, configure
from mshnet.data import image_digests, load_data
from mshnet.evaluate import Detector, evaluate
from mshnet.export import export, safetensors_bytes
from mshnet.predict import predict_frame
from mshnet.recipe import Config
from mshnet.scenes import scene
from mshnet.task import trained_model
from mshnet.train import train
from mshnet.weights import weights_file

FILE = weights_file("pretrained")


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    "A synthetic scene as a file."
    path = tmp_path_factory.mktemp("picture") / "scene.png"
    Image.fromarray(scene(np.random.default_rng(7), 256)[0]).save(path)
    return path


@pytest.fixture
def moved(tmp_path, monkeypatch):
    "A copy of the weights that a test may damage; the library takes it for its own."
    folder = tmp_path / "package"
    folder.mkdir()
    shutil.copy(FILE, folder)
    monkeypatch.setattr(mshnet.weights, "files", lambda name: folder)
    return folder / FILE.name


def test_they_find_the_targets_of_scenes():
    "Test scenes of the generator, none of which was trained on."
    scores = evaluate(Config(preset="steady", scenes=24, device="cpu", precision="fp32")).scores
    assert scores.pd > 0.8 and scores.iou > 0.4 and scores.fa < 100


def test_the_file_is_small_and_describes_itself():
    "Half precision where it counts; threshold, recipe and digests in its header."
    assert FILE.stat().st_size < 10e6
    kinds = {v.dtype for name, v in load_file(FILE).items() if name.endswith("conv1.weight")}
    with safe_open(FILE, framework="pt") as file:
        said = json.loads(file.metadata()["mshnet"])
    assert kinds == {torch.float16}
    assert 0.05 <= said["threshold"] <= 0.95 and said["config"]["augment"] == "robust"
    assert len(said["data"]["training images"].split()) > 900
    assert not [word for word in json.dumps(said).split('"') if word.startswith("/")]


def test_the_file_and_its_card_are_those_of_the_results():
    "The scores of the card belong to the file that ships."
    files = sorted((TOP / "results").glob("pretrained/*/pretrained.json"))
    kept = [json.loads(file.read_text()) for file in files]
    assert [file.parent.name for file in files] == ["continued", "seed0", "seed1", "seed2"]
    found = kept[0]
    assert found["sha256"] == hashlib.sha256(FILE.read_bytes()).hexdigest()
    assert found["threshold"] == trained_model("pretrained").threshold
    assert trained_model("pretrained").multiscale == pretrain.MULTISCALE
    text = FILE.with_suffix(".md").read_text(encoding="utf-8")
    assert text == pretrain.card(kept)
    twins = [json.loads(f.with_name("scores-without-twins.json").read_text()) for f in files]
    a, b, c, d = (f"{each['scores']['iou']:.3f}" for each in twins)
    assert f"the file has IoU {a}, and seeds 0, 1, 2 have {b}, {c} and {d}" in text
    at_kept = [next(r for r in k["thresholds"] if r["threshold"] == k["threshold"]) for k in kept]
    alarms = [f"{row[pretrain.REAL]:.2f}" for row in at_kept]
    assert f"have {alarms[2]} and {alarms[3]} alarms a real frame" in text
    with pytest.raises(UserError, match=r"write python tools/pretrain.py DATA"):
        pretrain.main(["seed=1"])


def test_a_detector_takes_bytes_of_three_channels():
    "Floats would be normalised twice, and one channel means another network."
    for images in (torch.zeros(1, 3, 16, 16), torch.zeros(1, 1, 16, 16, dtype=torch.uint8)):
        with pytest.raises(UserError, match=r"not uint8 \[B,3,H,W\]"):
            Detector("pretrained", "cpu")(images)


def test_the_kept_threshold_is_used_everywhere(moved, picture, tmp_path):
    "In a file with another one than the usual 0.5; two looks are a property of it, too."
    assert Detector(mshnet.MSHNet.pretrained(), "cpu").multiscale == ()
    moved.write_bytes(safetensors_bytes(replace(trained_model("pretrained"), threshold=0.95)))
    detector = Detector("pretrained", "cpu")
    prob = predict_frame(detector, np.asarray(Image.open(picture)))
    assert detector.threshold == 0.95 and (prob > 0.95).sum() < (prob > 0.5).sum()
    found = mshnet.detect(picture, device="cpu")
    assert sum(row["area"] for row in found) == (prob > 0.95).sum()
    out = tmp_path / "out"
    assert main(["predict", str(picture), "--device", "cpu", "--output-dir", str(out)]) == 0
    [mask] = (out / "masks").iterdir()
    assert (np.asarray(Image.open(mask)) > 0).sum() == (prob > 0.95).sum()
    done = export("pretrained", tmp_path / "out.safetensors")
    for kept in (json.loads(Path(f"{done}.json").read_text()), vars(Detector(done, "cpu"))):
        assert kept["threshold"] == 0.95 and [*kept["multiscale"]] == [0.3, 0.3, 3, 2]


@pytest.mark.parametrize(
    ("shape", "n"), [((64, 96), 2), ((75, 101), 2), ((17, 140, 3), 2), ((1, 1), 2), ((66, 93), 3)]
)
def test_two_looks_are_added_by_their_logits(shape, n):
    "At own and at half size, also where a side is odd; a logit counts up to one in a million."
    frame = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    detector = Detector("pretrained", "cpu", "fp32")
    first, second, constant, _ = detector.multiscale = (*detector.multiscale[:3], n)
    both = predict_frame(detector, frame, 128)
    detector.multiscale = ()
    whole = np.pad(frame, [(0, -k % n) for k in shape[:2]] + [(0, 0)] * len(shape[2:]), "edge")
    squares = whole.reshape(len(whole) // n, n, whole.shape[1] // n, n, *shape[2:])
    small = predict_frame(detector, np.uint8(squares.mean((1, 3)) + 0.5), 128)
    looks = [logit(p.clip(1e-6, 1 - 1e-6)) for p in (predict_frame(detector, frame, 128), small)]
    coarse = torch.from_numpy(looks[1])[None, None]
    large = torch.nn.functional.interpolate(coarse, scale_factor=n, mode="bilinear")[0, 0].numpy()
    wanted = expit(first * looks[0] + second * large[: shape[0], : shape[1]] + constant)
    assert both.shape == shape[:2] and np.abs(both - wanted).max() < 1e-4


@pytest.mark.parametrize("numbers", [(0.3, 0.3, 3, 2), (0, 1, 0, 3)])
def test_the_guide_finds_the_same_by_onnx(tmp_path, monkeypatch, numbers):
    "The Python of the guide for programs without PyTorch, at an odd size."
    seed, side = (8, 255) if numbers[0] else (141, 85)  # no pixel is near the threshold
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    frame = Image.fromarray(scene(np.random.default_rng(seed), side)[0]).resize((255, 255))
    frame.crop((0, 0, 201, 255)).save("frame.png")
    own = replace(trained_model("pretrained"), multiscale=numbers)
    Path("own.safetensors").write_bytes(safetensors_bytes(own))
    export("own.safetensors", "mshnet.onnx")
    guide = (TOP / "nbs" / "guides" / "deploy.py").read_text()
    [code] = [block for block in guide.split("```") if "InferenceSession(" in block]
    names: dict[str, object] = {}
    exec(code.removeprefix("python").replace("\n# ", "\n").replace("\n#\n", "\n\n"), names)
    found = mshnet.detect("frame.png", "own.safetensors", device="cpu")
    assert len(found) == names["count"] > 0
    assert sum(row["area"] for row in found) == names["found"].sum()
    centres = names["center_of_mass"](names["found"], names["labels"], range(1, len(found) + 1))
    assert [row["centroid"] for row in found] == [pytest.approx(at, abs=0.001) for at in centres]


def test_eight_bit_integers_find_the_same_or_are_refused(tmp_path, monkeypatch, capsys):
    "The note has the digest of the file; what was there before stays if the new file is refused."
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dark").mkdir()
    Image.new("L", (600, 64)).save("dark/a.png")
    Image.new("L", (40, 40)).save("dark/b.png")
    line = ["export", "--weight-path", "pretrained", "--output", "int8.onnx", "--int8"]
    assert main([*line, str(Path(mshnet.__file__).parent / "examples")]) == 0
    file, note = Path("int8.onnx").read_bytes(), json.loads(Path("int8.onnx.json").read_text())
    agreement = note["int8"]["agreement with PyTorch"]
    assert note["int8"]["images"] == 4 and agreement["pd"] >= 0.9 and agreement["iou"] > 0.8
    assert note["sha256"] == hashlib.sha256(file).hexdigest() and len(file) < 5e6
    monkeypatch.setattr(exporting, "_onnx_bytes", lambda trained: file)  # the checks alone
    monkeypatch.setattr(exporting, "_read_back", lambda *_: 0.0)
    half = replace(trained_model("pretrained"), multiscale=(0.0, 1.0, 0.0, 2.0))
    monkeypatch.setattr(exporting, "trained_model", lambda _: half)
    status, _, said = call(capsys, *line, "dark")
    assert status == 2 and "b.png (below 64x64 pixels)" in said
    assert "PyTorch detects nothing in these" in said
    monkeypatch.setattr(exporting, "_to_int8", lambda *_: None)
    everywhere = lambda path, images: [[torch.ones_like(x[:, :1]).float()] for x in images]  # noqa: E731
    monkeypatch.setattr(exporting, "_run_onnx", everywhere)
    said = refused(capsys, *line, Path(mshnet.__file__).parent / "examples")
    assert "not kept, against PyTorch's detections the file has Pd" in said
    assert Path("int8.onnx").read_bytes() == file and len(list(tmp_path.iterdir())) == 3


def test_one_liners_take_files_arrays_tensors_and_pictures(picture, tmp_path):
    "And find the same in all of them, at the threshold that is kept with the weights."
    image = np.asarray(Image.open(picture))
    found = mshnet.detect(str(picture), device="cpu")
    assert found and {"box", "area"} <= set(found[0])
    tensor = torch.from_numpy(image.copy())
    tensors = (tensor, torch.nn.Parameter(tensor.bfloat16()))
    for same in (picture, image, *tensors, Image.open(picture)):
        assert mshnet.detect(same, device="cpu") == found
    detector = Detector("pretrained", "cpu")
    assert detector.threshold == trained_model("pretrained").threshold
    prob = predict_frame(detector, image)
    assert sum(row["area"] for row in found) == (prob > detector.threshold).sum()
    few = mshnet.detect(picture, threshold=0.999, device="cpu")
    assert sum(row["area"] for row in few) < sum(row["area"] for row in found)
    assert min(mshnet.find_targets(picture, device="cpu").size) >= 256
    (closed := Image.open(picture)).close()
    with pytest.raises(UserError, match="the image cannot be read"):
        mshnet.detect(closed, device="cpu")
    shutil.copytree(picture.parent, tmp_path / "two")
    shutil.copy(picture, tmp_path / "two" / "second.png")
    with pytest.raises(UserError, match="holds more than one image"):
        mshnet.detect(tmp_path / "two", device="cpu")


def test_predict_gives_the_probabilities_of_files_arrays_and_tensors(picture):
    "The same for all of them, of any size; by a run's folder, a file, a name or a network."
    image = np.asarray(Image.open(picture))
    want = predict_frame(Detector("pretrained", "cpu"), image)
    alone = mshnet.predict("pretrained", picture, device="cpu")
    assert alone.dtype == np.float32 and np.array_equal(alone, want)
    several = [str(picture), image, torch.from_numpy(image.copy()), Image.open(picture)]
    for found in mshnet.predict("pretrained", several, device="cpu"):
        assert np.array_equal(found, want)
    two = [image[:37, :50], image[37:74, 50:100]]
    batch = torch.from_numpy(np.stack(two))[:, None].expand(-1, 3, -1, -1)
    for weights in ("pretrained", mshnet.load("pretrained")):
        of_batch = mshnet.predict(weights, batch, device="cpu")
        assert of_batch.shape == (2, 1, 37, 50)
        assert np.array_equal(of_batch[:, 0], mshnet.predict(weights, two, device="cpu"))
    for wrong, said in (({"a": 1}, "dict is"), (batch.float(), "float32"), (3.5, "not an image")):
        with pytest.raises(UserError, match=said):
            mshnet.predict("pretrained", wrong, device="cpu")
    with pytest.raises(UserError, match="weights of type Linear are not possible: use a run"):
        mshnet.predict(torch.nn.Linear(1, 1), picture, device="cpu")


def test_predict_needs_no_weights(picture, tmp_path, capsys):
    "It names the card of the weights that it uses, and finds the target."
    out = tmp_path / "out"
    assert main(["predict", str(picture), "--device", "cpu", "--output-dir", str(out)]) == 0
    [line] = [ln for ln in capsys.readouterr().out.splitlines() if ln.startswith("weights")]
    card = Path(line.split("their card: ")[1])
    assert "pretrained" in line and "Where it fails" in card.read_text(encoding="utf-8")
    rows = (out / "detections.csv").read_text().splitlines()
    assert len(rows) > 1
    words = ["predict", str(picture.parent), "--device", "cpu", "--output-dir", str(tmp_path / "f")]
    assert main(words) == 0  # its folder
    assert (tmp_path / "f" / "detections.csv").read_text().splitlines() == rows


def test_a_data_set_is_scored_without_weights(tmp_path, capsys):
    "`mshnet test --dataset-dir D` takes the pretrained weights."
    folder = make_dataset(tmp_path / "set", size=64)
    words = ["test", "--dataset-dir", folder, "--device", "cpu", "--output-dir", tmp_path / "o"]
    assert main([str(word) for word in words]) == 0
    assert "pretrained; their card" in capsys.readouterr().out


def test_a_run_becomes_the_weights_of_its_task(tmp_path, monkeypatch):
    "By `pretrain.py ship`: the run's network with wide weights in half precision."
    run = train(Config(scenes=4, base_size=32, crop_size=32, epochs=1, batch_size=4, device="cpu",
                       output_dir=str(tmp_path / "run")))  # fmt: skip
    monkeypatch.setattr(
        pretrain, "weights_file", lambda name, task: tmp_path / f"{task}.safetensors"
    )
    assert pretrain.main(["ship", str(run.folder)]) == 0
    shipped = trained_model(tmp_path / "detect.safetensors").model.state_dict()
    for name, value in trained_model(run.folder).model.state_dict().items():
        assert torch.allclose(shipped[name], value, rtol=1e-3, atol=1e-6), name
    with pytest.raises(UserError, match=r"ship RUN"):
        pretrain.main(["ship"])


def test_training_and_export_start_from_them(tmp_path):
    "By their name, as from any file."
    small = "--scenes 8 --base-size 64 --crop-size 64 --epochs 1 --lr 1e-6 --ema 0 --device cpu"
    words = ["train", "--weight-path", "pretrained", *small.split(), "--output-dir", "run"]
    assert main([*words[:-1], str(tmp_path / "run")]) == 0
    before = mshnet.MSHNet.pretrained().state_dict()
    after = trained_model(tmp_path / "run").model.state_dict()
    name, file = "encoder_0.0.conv1.weight", tmp_path / "out.safetensors"
    assert torch.allclose(before[name], after[name], atol=1e-4)
    assert main(["export", "--weight-path", "pretrained", "--output", str(file)]) == 0
    assert trained_model(file).threshold == trained_model("pretrained").threshold
    with pytest.raises(UserError, match=r"out.safetensors: weights of task detect, not of task e"):
        train(configure({"task": "events", "recordings": 20, "weight_path": str(file)}))


def test_settings_that_lie_in_this_folder_are_not_those_of_the_weights(tmp_path, monkeypatch):
    "`--weight-path pretrained` is a name; a file or folder of this place is something else."
    monkeypatch.chdir(tmp_path)
    Path("pretrained").mkdir()
    shutil.copy(FILE, "w.safetensors")
    words = ["--scenes", "8", "--base-size", "64", "--device", "cpu", "--output-dir", "out"]
    strange = json.dumps(Config().model_dump() | {"task": 3})
    for text in ('{"rule": "reference"}', "[1]", strange):
        for folder in (".", "pretrained"):
            Path(folder, "config.json").write_text(text)
        for weights in ("pretrained", "w.safetensors"):
            assert main(["test", "--weight-path", weights, *words]) == 0
            assert json.loads(Path("out/scores.json").read_text())["protocol"]["rule"] == "exact"


@pytest.mark.parametrize("line", ["predict picture.png", "test", "train --weight-path pretrained"])
def test_a_task_without_pretrained_weights_says_so(line, tmp_path, monkeypatch, capsys):
    "No installation has such a file, so there is nothing to install again."
    monkeypatch.chdir(tmp_path)
    (tmp_path / "picture.png").touch()
    said = refused(capsys, line, "--task", "signs", "--device", "cpu")
    assert "no pretrained weights of task signs come with mshnet: name the weights of a" in said


@pytest.mark.parametrize("value", [50, "0.5"])
def test_a_threshold_is_a_probability(value, picture):
    "A percentage is refused, and not taken for 1."
    for use in (mshnet.detect, mshnet.find_targets):
        with pytest.raises(UserError, match=r"threshold=.* is not possible: use a number from 0"):
            use(picture, threshold=value, device="cpu")
    with pytest.raises(UserError, match="device=None: use auto, cpu"):
        mshnet.detect(picture, device=None)


@pytest.mark.parametrize("command", ["predict", "test", "train", "export"])
def test_missing_weights_say_how_to_reinstall(command, moved, picture, tmp_path, capsys):
    "One line, the remedy, status 2."
    moved.unlink()
    words = {"predict": [str(picture)], "test": ["--scenes", "8"]}
    words = words.get(command, ["--weight-path", "pretrained"])
    if command != "export":
        words += ["--device", "cpu", "--output-dir", str(tmp_path / "out")]
    said = refused(capsys, command, *words)
    assert "pretrained.safetensors: there is no such file; it comes with mshnet: install" in said
    assert not [*(tmp_path / "out").glob("*")]


@pytest.mark.parametrize("damage", ["cut", "empty", "header", "value", "no checksum"])
def test_damaged_weights_say_how_to_reinstall(damage, moved, picture, tmp_path, capsys):
    "Also where only one weight differs, or the checksum and the digests of images are lost."
    if damage == "no checksum":
        save_file(load_file(moved), moved)
    content = bytearray(moved.read_bytes())
    if damage == "cut":
        del content[-1000:]
    elif damage == "empty":
        content.clear()
    elif damage != "no checksum":
        content[8 if damage == "header" else -5] ^= 0x55
    moved.write_bytes(content)
    said = refused(capsys, "predict", picture, "--output-dir", tmp_path / "out")
    assert "it comes with mshnet: install it again" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["nuaa-sirst", "nudt-sirst", "irstd-1k"])
def test_no_test_image_was_trained_on(name):
    "By the digests in the file, of pixels and not of names."
    folder = data_folder(name)
    known = set(trained_model("pretrained").record["data"]["training images"].split())
    parts, _ = load_data(Config(dataset_dir=str(folder)), ["train", "test"])
    assert len(known & image_digests([parts["train"]])) > 0.85 * len(parts["train"])
    assert not known & image_digests([parts["test"]])


def part_of(whole, folder, train, test):
    "A data set with the images of another one, and lists of its own."
    folder.mkdir()
    for kind in ("images", "masks"):
        (folder / kind).symlink_to(whole / kind)
    (folder / "trainval.txt").write_text("\n".join(train))
    (folder / "test.txt").write_text("\n".join(test))


def test_a_score_on_training_images_is_not_silent(sirst, tmp_path):
    "It warns, and the protocol has their number."
    folder, names = tmp_path / "set", (sirst / "trainval.txt").read_text().split()[:12]
    part_of(sirst, folder, names, names)
    with pytest.warns(UserWarning, match="of the 12 scored images are among the training images"):
        result = evaluate(Config(dataset_dir=str(folder), device="cpu", base_size=128))
    assert result.protocol["trained_on_scored_images"] >= 9


def test_fine_tuned_weights_remember_what_the_first_were_trained_on(sirst, moved, tmp_path):
    "Their images count as training images too, also after a resume with another release's file."
    folder, names = tmp_path / "set", (sirst / "trainval.txt").read_text().split()[:12]
    part_of(sirst, folder, names[:6], names[6:])
    settings = {"dataset_dir": str(folder), "weight_path": "pretrained", "epochs": 2}
    settings |= {"device": "cpu", "base_size": 32, "crop_size": 32, "output_dir": f"{tmp_path}/run"}
    with pytest.warns(UserWarning, match="of the 6 test images are among the training images"):
        assert not train(Config(**settings, max_hours=1e-9)).finished
    other = trained_model("pretrained")
    torch.nn.init.zeros_(other.model.final.bias)
    moved.write_bytes(safetensors_bytes(replace(other, record={})))  # whose images are not known
    with pytest.warns(UserWarning, match="of the 6 scored images are among the training images"):
        run = train(Config(**settings))
    assert run.scores["protocol"]["trained_on_scored_images"] >= 5
    with pytest.warns(UserWarning, match="of the 6 scored images are among the training images"):
        evaluate(run)
    (folder / "test.txt").write_text(names[7])
    with pytest.warns(UserWarning, match=r"not the test data of the run \(\w+ instead of"):
        evaluate(run, dataset_dir=f"{folder}/")
    numbers = Detector(run.folder, "cpu").multiscale  # of the weights it began with; its own size
    assert numbers[:3] == (0.3, 0.3, 3) and numbers[3] > 4
    settings |= {"output_dir": f"{tmp_path}/other"}
    assert not train(Config(**settings, max_hours=1e-9)).finished
    assert train(Config(**settings)).scores["protocol"]["trained_on_scored_images"] is None


def test_a_validation_part_that_was_trained_on_is_named_before_the_training(sirst, tmp_path):
    "It is to choose the epoch of a run that starts from weights which know its images."
    folder, names = tmp_path / "set", (sirst / "trainval.txt").read_text().split()[:10]
    part_of(sirst, folder, names, (sirst / "test.txt").read_text().split()[:1])
    settings = {"dataset_dir": str(folder), "weight_path": "pretrained", "choose": "val"}
    settings |= {"device": "cpu", "base_size": 32, "crop_size": 32, "output_dir": f"{tmp_path}/run"}
    with pytest.warns(UserWarning, match=r"of the 2 val images are among .*; use --choose last"):
        train(Config(**settings, epochs=1, batch_size=2))


def test_a_folder_that_is_called_like_a_file_is_refused_in_one_line(tmp_path, capsys):
    "Of any kind."
    (tmp_path / "d.safetensors" / "w.pt").mkdir(parents=True)
    said = refused(capsys, "test --device cpu --weight-path", tmp_path / "d.safetensors")
    assert "a folder without best.pt; name a file of weights, such as " in said
    (tmp_path / "run").mkdir()
    with pytest.raises(UserError, match=r"FILE.pt \(a run has one after its first epoch\)"):
        mshnet.load(tmp_path / "run")


def test_the_few_names_are_offered_by_tab():
    "And cost nothing before they are used: torch is loaded with the first of them."
    code = "import mshnet, sys; assert 'torch' not in sys.modules; print(dir(mshnet))"
    done = subprocess.run([sys.executable, "-c", code], cwd=TOP, capture_output=True, text=True)
    names = "Config MSHNet UserError detect evaluate find_targets load predict score sls_loss train"
    assert set(eval(done.stdout)) == {*names.split(), "__version__"}, done.stderr
    assert 8 <= len(mshnet.__doc__.splitlines()) <= 12
    for name in names.split():
        assert callable(getattr(mshnet, name))
    assert mshnet.UserError is UserError


ORDERS = [
    "import mshnet; verb = mshnet.NAME; import mshnet.NAME as module",
    "import mshnet.NAME as module; import mshnet; verb = mshnet.NAME",
    "from mshnet.NAME import NAME as function; from mshnet import NAME as verb; import mshnet;"
    "module = mshnet.NAME; assert verb.NAME is function",
]
CHECK = """
for name in list(sys.modules):
    if name.split(".")[0] == "mshnet":
        del sys.modules[name]
ORDER
assert verb is module is sys.modules["mshnet.NAME"]
assert inspect.signature(verb) == inspect.signature(module.NAME)
try:
    verb(*[3] * (2 if "NAME" == "predict" else 1))
except ValueError as error:
    assert "of type int" in str(error), error
else:
    raise AssertionError
"""


def test_a_module_and_its_function_of_one_name_do_not_clash():
    "Whatever was imported first, the name is one object: the module, which can be called."
    code = "import inspect, sys"
    for name in ("train", "evaluate", "predict"):
        for order in ORDERS:
            code += CHECK.replace("ORDER", order).replace("NAME", name)
    done = subprocess.run([sys.executable, "-c", code], cwd=TOP, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_moved_file_has_its_own_settings(tmp_path):
    "Not those of another run beside it; and what replaced it is read."
    small = {"scenes": 12, "base_size": 32, "crop_size": 32, "batch_size": 4, "device": "cpu"}
    run = train(Config(**small, epochs=1, output_dir=str(tmp_path / "run"))).folder
    moved = shutil.move(run / "best.pt", tmp_path / "moved.pt")
    other = Config(seed=1).model_dump_json()  # of another run
    (tmp_path / "config.json").write_text(other)
    assert mshnet.weights.settings_of_weights(moved)["scenes"] == 12
    torch.save({"net": {"other": torch.ones(1)}}, moved)
    assert mshnet.weights.read_file(moved)["net"]["other"] == 1
