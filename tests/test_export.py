"Files for other programs: what they hold, that they agree with the network, and what is refused."

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image

from mshnet import export as exporting
from mshnet.cli import main
from mshnet.core import Config, UserError
from mshnet.evaluate import Detector, evaluate
from mshnet.export import TOLERANCE, OnnxDetector, export, open_detector
from mshnet.model import MSHNet
from mshnet.predict import Tiling
from mshnet.task import Origin, Trained, trained_model
from mshnet.train import train

TINY = {"scenes": 8, "base_size": 32, "crop_size": 32, "batch_size": 4, "choose": "last"}
TINY |= {"device": "cpu", "precision": "fp32", "epochs": 2, "warm_epoch": 0}
for package in exporting.PACKAGES:
    pytest.importorskip(package)  # of the extra export


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    "A run of two epochs with all heads."
    return train(Config(**TINY, output_dir=str(tmp_path_factory.mktemp("export") / "run")))


@pytest.fixture(scope="module")
def onnx_file(run):
    "Its weights as ONNX, beside them."
    return export(run.folder / "best.pt").path


@pytest.fixture
def copy(onnx_file, tmp_path):
    "A copy to damage, with its note."
    for file in (onnx_file, exporting._note_path(onnx_file)):
        shutil.copy(file, tmp_path)
    return tmp_path / onnx_file.name


def read_note(path):
    "What it states."
    return json.loads(exporting._note_path(path).read_text())


def error_line(capsys):
    "The one line of an error; a slow machine prints its progress before."
    [line] = [x for x in capsys.readouterr().err.splitlines() if not x.startswith("  ")]
    return line


def refusal(path, *how):
    "Why a file is not opened, in one line."
    with pytest.raises(UserError) as error:
        open_detector(path, *how)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("size", [(1, 16, 16), (1, 32, 64), (3, 80, 48), (2, 16, 160)])
def test_onnx_agrees_with_the_network_at_any_size(run, onnx_file, size):
    "One image or several, sides of 16 pixels and more, in float32 on the CPU."
    images = torch.randint(0, 256, (size[0], 3, *size[1:]), dtype=torch.uint8)
    want = Detector(run.folder / "best.pt", "cpu", "fp32")(images)
    found = open_detector(onnx_file, "cpu")(images)
    assert (found.dtype, found.shape) == (torch.float32, want.shape)
    assert (found - want).abs().max() < TOLERANCE


def test_the_detector_is_called_as_the_other_is(run, onnx_file):
    "Name, device in words, batch size, and the same mistakes in the same words."
    detector = open_detector(str(onnx_file), "cpu")
    other = open_detector(run.folder / "best.pt", "cpu", "fp32")
    assert isinstance(detector, OnnxDetector) and isinstance(other, Detector)
    assert (detector.name, detector.why) == ("best.onnx", "cpu, fp32: onnxruntime")
    images = torch.randint(0, 256, (3, 3, 32, 48), dtype=torch.uint8)
    for size in (1, 2, 8):
        assert torch.allclose(detector(images, batch_size=size), detector(images), atol=1e-4)
    for wrong in (images.float(), images[0], images[:, :1], images[..., :40]):
        said = []
        for one in (detector, other):
            with pytest.raises(UserError, match=r"not uint8|multiples of 16") as error:
                one(wrong)
            said.append(str(error.value).split(": ", 1)[1])
        assert said[0] == said[1]


def test_a_reader_without_this_library_finds_all_it_needs(run, onnx_file):
    "Bytes in, probability out, threshold, normalisation, and the scores with their protocol."
    import onnxruntime

    session = onnxruntime.InferenceSession(str(onnx_file), providers=["CPUExecutionProvider"])
    [image] = session.get_inputs()
    assert (image.name, image.type, image.shape[1]) == ("image", "tensor(uint8)", 3)
    assert all(isinstance(image.shape[i], str) for i in (0, 2, 3))
    assert [o.name for o in session.get_outputs()] == ["probability", "logits"]
    note = read_note(onnx_file)
    assert note["sha256"] == hashlib.sha256(onnx_file.read_bytes()).hexdigest()
    assert (note["format"], note["threshold"], note["phase"]) == ("onnx", 0.5, "full")
    assert note["normalisation"]["inside"] and note["normalisation"]["mean"][0] == 0.485
    assert note["result"] == json.loads((run.folder / "scores.json").read_text())
    assert note["chosen"] == note["result"]["protocol"]["chosen"] == "epoch 1, the last"
    k, r, c = np.ogrid[:3, :32, :32]
    made = ((7 * r + 13 * c + 31 * k + r * c) % 256).astype(np.uint8)
    [found] = session.run(["logits"], {"image": made[None]})
    want = np.array(note["example"]["logits every 8 pixels"])
    assert np.allclose(found[0, 0, ::8, ::8].ravel(), want, atol=1e-3, rtol=1e-3)


def test_safetensors_is_scored_as_the_run_is(run, tmp_path):
    "With its phase and epoch; its note leaves the normalisation to the reader."
    path = export(run.folder / "best.pt", output=tmp_path / "w.safetensors").path
    note = read_note(path)
    assert (note["outputs"], note["normalisation"]["inside"]) == (["logits"], False)
    result = evaluate(run.config.model_copy(update={"weight_path": str(path)}))
    assert str(result.scores) == run.scores["line"]
    assert result.protocol["chosen"] == run.scores["protocol"]["chosen"]


def test_no_folder_of_its_maker_is_in_a_file(run, onnx_file, tmp_path):
    "Exporters write down where each line of code stands; settings name folders."
    tensors = export(run.folder / "best.pt", output=tmp_path / "a.safetensors").path
    here = [str(Path(exporting.__file__).parent), str(run.folder.parent), "/torch/nn/"]
    for path in (
        onnx_file,
        exporting._note_path(onnx_file),
        tensors,
        exporting._note_path(tensors),
    ):
        assert [word for word in here if word.encode() in path.read_bytes()] == []
    assert not {"output_dir", "dataset_dir", "train_list"} & read_note(onnx_file)["config"].keys()


def test_weights_of_the_warm_up_leave_with_their_single_head(run, tmp_path):
    "The fused head was never trained; a file predicts as the checkpoint does."
    fused = trained_model(run.folder)
    fused.model.final.bias.data += 1
    trained = replace(fused, phase="warm-up", record=fused.record | {"phase": "warm-up"})
    path = tmp_path / "w.safetensors"
    path.write_bytes(exporting.safetensors_bytes(trained))
    assert trained_model(path).phase == "warm-up"
    images = torch.randint(0, 256, (2, 3, 48, 32), dtype=torch.uint8)
    found, other = (exporting._InferenceModel(t)(images)[0] for t in (trained, fused))
    assert (found - Detector(path, "cpu", "fp32")(images)).abs().max() < TOLERANCE
    assert (found - other).abs().max() > 10 * TOLERANCE


def test_published_weights_know_no_scores(run, tmp_path):
    "Nor is a folder's scores.json theirs, or of a different epoch, if it happens to lie beside it."
    torch.save({"state_dict": MSHNet().state_dict()}, tmp_path / "best.pt")
    (tmp_path / "scores.json").write_text('{"protocol": {"chosen": "epoch 3, the last"}}')
    done = export(tmp_path, "safetensors")
    assert done.path == tmp_path / "best.safetensors"
    note = read_note(done.path)
    assert (note["result"], trained_model(done.path).phase) == (None, "full")
    assert "how they were chosen: not known" in note["chosen"]
    other = replace(trained_model(run.folder), origin=Origin("epoch 0, named by its file last.pt"))
    assert exporting._result(run.folder / "last.pt", other) is None
    same = trained_model(run.folder)
    assert exporting._result(run.folder / "best.pt", same)
    other = replace(same, origin=replace(same.origin, seed=7))  # beside the scores of seed 0
    assert exporting._result(run.folder / "best.pt", other) is None


@pytest.mark.parametrize("format", ["onnx", "safetensors"])
def test_a_file_that_disagrees_is_not_kept(run, onnx_file, monkeypatch, tmp_path, capsys, format):
    "Nothing is left but the good file that was there before."
    target = tmp_path / f"x.{format}"
    target.write_text("the one before")
    other = exporting.safetensors_bytes(Trained(MSHNet(), "full", Origin("x")))
    real = OnnxDetector.run

    def off(self, output, images):
        return real(self, output, images) + 0.01 * (len(images) > 1)

    monkeypatch.setattr(OnnxDetector, "run", off)
    monkeypatch.setattr(exporting, "_onnx_bytes", lambda trained: onnx_file.read_bytes())
    monkeypatch.setattr(exporting, "safetensors_bytes", lambda trained: other)
    line = ["export", "--weight-path", str(run.folder / "best.pt"), "--output", str(target)]
    assert main(line) == 2
    times = {"onnx": "10", "safetensors": "inf"}[format]
    assert f"not kept, it differs from PyTorch by {times} times" in error_line(capsys)
    assert [p.name for p in tmp_path.iterdir()] == [target.name]
    assert target.read_text() == "the one before"


def test_what_is_not_what_was_written_is_found(run, copy, tmp_path):
    "A flipped bit anywhere; a file that was cut off; an example that does not come out."
    tensors = export(run.folder / "best.pt", output=tmp_path / "w.safetensors").path
    for path, said in ((copy, "damaged, or changed"), (tensors, "or a damaged one")):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        for wrong in (data, b"", data[:1000]):
            path.write_bytes(wrong)
            assert said in refusal(path, "cpu")
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        open_detector(path, "cpu")
    note = read_note(copy)
    note["example"]["logits every 8 pixels"][5] *= 1.01
    exporting._note_path(copy).write_text(json.dumps(note))
    assert "does not compute its own example" in refusal(copy, "cpu")


def test_onnx_files_of_something_else_are_refused(copy):
    "Without a note, with one of something else, from the future, and with a damaged one."
    note, data = read_note(copy), b"no ONNX file"
    copy.write_bytes(data)
    ours = note | {"sha256": hashlib.sha256(data).hexdigest()}
    for wrong, said in [
        (ours, "cannot read or run"),
        (ours | {"threshold": "high"}, "best.onnx.json: damaged; export the weights again"),
        (ours | {"example": {"logits every 8 pixels": [1]}}, "best.onnx.json: damaged"),
        (ours | {"version": 99}, "written by a newer mshnet (99)"),
        (ours | {"version": "a\nb"}, "damaged, it has no version"),
        (ours | {"kind": "other"}, "not a note of `mshnet export`"),
        ([note], "not a note of `mshnet export`"),
    ]:
        exporting._note_path(copy).write_text(json.dumps(wrong))
        assert said in refusal(copy, "cpu")
    exporting._note_path(copy).write_text("{")
    assert "not a readable JSON file" in refusal(copy, "cpu")
    exporting._note_path(copy).unlink()
    assert "best.onnx.json is not beside it" in refusal(copy, "cpu")


def test_what_an_onnx_file_cannot_do_is_reported(onnx_file, monkeypatch):
    "It has a precision, and two kinds of devices."
    import onnxruntime

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    for how, said in (
        (("mps",), "runs on cpu or cuda"),
        (("cuda:x",), "runs on cpu or cuda"),
        (("cuda",), "onnxruntime is for the CPU"),
        (("cpu", "bf16"), "computes in fp32"),
    ):
        assert said in refusal(onnx_file, *how)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("export", "name the weights to export"),
        ("export --weight-path none.pt", "there is no such file"),
        ("export --weight-path .", "is a folder"),
        ("export --weight-path bad.pt", "not a torch file of weights"),
        ("export --weight-path old.onnx", "`mshnet predict` takes ONNX files"),
        ("export --weight-path other.pt", "weights of another model"),
        ("export --weight-path w.pt --output a.pt2", "a file of format onnx ends in .onnx"),
        ("export --weight-path w.pt --format tflite", "write onnx, safetensors"),
        ("export --weight-path w.pt --format onx", "did you mean 'onnx'?"),
        ("export --weight-path w.pt --format safetensors --output a.onnx", "ends in .safet"),
        ("export --weight-path w.pt --output no/a.onnx", "there is no folder no"),
        ("export --weight-path w.safetensors --format safetensors", "is the file of the weights"),
        ("export --weight-path w.pt --epochs 3", "means nothing to `mshnet export`"),
        ("export --weight-path nan.pt --format safetensors", "nan.pt: weights that predict NaN"),
        ("pack run --format safetensors", "mshnet export"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(tmp_path, monkeypatch, capsys, line, said):
    "Status 2."
    monkeypatch.chdir(tmp_path)
    weights = MSHNet().state_dict()
    torch.save(weights, "w.pt")
    torch.save({k: v * float("nan") for k, v in weights.items()}, "nan.pt")
    torch.save({"conv.weight": torch.ones(1)}, "other.pt")
    Image.new("L", (32, 32)).save("w.png")
    for name in ("bad.pt", "old.onnx"):
        Path(name).write_text("no weights")
    if "w.safetensors" in line:
        export("w.pt", output="w.safetensors")
    before = {p.name for p in tmp_path.iterdir()}
    capsys.readouterr()
    assert main(line.split()) == 2
    assert said in error_line(capsys)
    assert {p.name for p in tmp_path.iterdir()} == before


def test_a_missing_package_is_named_with_its_remedy(run, onnx_file, monkeypatch, capsys):
    "Before any work; safetensors files need none of them."
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # it cannot be imported
    weights = str(run.folder / "best.pt")
    assert main(["export", "--weight-path", weights]) == 2
    line = error_line(capsys)
    assert "needs onnxruntime (" in line and "run: pip install --upgrade onnx onnxruntime" in line
    assert "pip install --upgrade onnxruntime" in refusal(onnx_file, "cpu")


def test_a_full_disk_keeps_what_was_there(run, tmp_path, monkeypatch, capsys):
    "The new file never gets its name; with room the command reports file, size and difference."
    target = tmp_path / "a.safetensors"
    target.write_text("the one before")
    line = ["export", "--weight-path", str(run.folder / "best.pt"), "--output", str(target)]

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("mshnet.files.to_disk", full)
        assert main(line) == 2
    assert "No space left" in error_line(capsys)
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]
    assert target.read_text() == "the one before"
    assert main(line) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{target}  16 MB  safetensors, differs from PyTorch by 0.0e+00 at most")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.safetensors", "a.safetensors.json"]


def test_mshnet_predict_takes_the_onnx_file(run, onnx_file, tmp_path):
    "With the detections of the weights it was made from."
    noise = np.random.default_rng(0).integers(0, 256, (50, 70), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "in.png")
    masks = []
    for weights in (run.folder / "best.pt", onnx_file):
        out = tmp_path / weights.suffix
        words = [f"--weight-path={weights}", f"--output-dir={out}", "--device=cpu"]
        assert main(["predict", *words, "--precision=fp32", str(tmp_path / "in.png")]) == 0
        masks.append(np.asarray(Image.open(next((out / "masks").iterdir()))))
    assert (masks[0] != masks[1]).mean() < 1e-3  # a logit of 0 to rounding may be either


def test_a_runtime_that_fails_is_one_line(onnx_file):
    "Want of memory is a kind of its own, so that predict can name the setting."
    detector = OnnxDetector(onnx_file, "cpu")
    images = torch.zeros(1, 3, 16, 16, dtype=torch.uint8)
    for text, kind, said in (
        ("Failed to allocate memory for requested buffer of size 9", MemoryError, "allocate"),
        ("it broke\nin many lines", UserError, r"onnxruntime cannot read or run it .it broke."),
    ):
        detector.session = Mock(run=Mock(side_effect=RuntimeError(text)))
        with pytest.raises(kind, match=said):
            detector(images)


@pytest.mark.parametrize("shape", [(32, 32), (50, 70)])
def test_ten_lines_of_numpy_read_the_file(run, onnx_file, shape):
    "Those beside the file, exactly, where mshnet and torch cannot be imported; and other sizes."
    lines = read_note(onnx_file)["reader"]
    assert len(lines) == 10
    picture = np.random.default_rng(0).integers(0, 256, (3, *shape), dtype=np.uint8)
    np.save(onnx_file.with_name("picture.npy"), picture)
    if shape != (32, 32):  # a picture of one's own, as the page explains
        lines = [*lines[:2], "image = np.load('picture.npy')", *lines[4:-2]]
    script = ["import sys; sys.modules.update(mshnet=None, torch=None)", *lines]
    script += ["np.savez('found', image=image, logits=logits, target=target)"]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(script)],
        cwd=onnx_file.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = np.load(onnx_file.with_name("found.npz"))
    trained = trained_model(run.folder)
    padded = torch.from_numpy(Tiling(shape).pad(found["image"].transpose(1, 2, 0)))
    want = exporting._logits(trained, padded.permute(2, 0, 1)[None])
    assert exporting._difference(torch.from_numpy(found["logits"]), want) < 1
    assert found["target"].shape == shape
    assert (found["target"] != (want[0, 0, : shape[0], : shape[1]].numpy() > 0)).mean() < 1e-3
    if shape == (32, 32):
        assert float(done.stdout.rsplit(": ", 1)[1]) < TOLERANCE
        assert (found["image"] == exporting._example()[0].numpy()).all()
