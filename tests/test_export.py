"Files for other programs: what they hold, that they agree with the network, and what is refused."

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import full, refused, tiny

from mshnet import export as exporting
from mshnet.cli import main
from mshnet.core import UserError
from mshnet.evaluate import Detector, evaluate
from mshnet.export import TOLERANCE, export
from mshnet.model import MSHNet
from mshnet.task import Origin, Trained, trained_model
from mshnet.train import train

for package in exporting.PACKAGES:
    pytest.importorskip(package)  # of the extra export


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    "A run of two epochs with all heads."
    return train(tiny(tmp_path_factory.mktemp("export") / "run", epochs=2))


@pytest.fixture(scope="module")
def onnx_file(run):
    "Its weights as ONNX, beside them."
    return export(run.folder / "best.pt")


def read_note(path):
    "What it states."
    return json.loads(Path(f"{path}.json").read_text())


@pytest.mark.parametrize("size", [(1, 16, 16), (1, 32, 64), (3, 80, 48), (2, 16, 160)])
def test_onnx_agrees_with_the_network_at_any_size(run, onnx_file, size):
    "One image or several, sides of 16 pixels and more, in float32 on the CPU."
    images = torch.randint(0, 256, (size[0], 3, *size[1:]), dtype=torch.uint8)
    want = Detector(run.folder / "best.pt", "cpu", "fp32")(images)
    [[found, _]] = exporting._run_onnx(onnx_file, [images])
    assert (found.dtype, found.shape) == (torch.float32, want.shape)
    assert (found - want).abs().max() < TOLERANCE


def test_a_reader_without_this_library_finds_all_it_needs(onnx_file):
    "Bytes in, probability out, threshold, normalisation."
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
    assert note["chosen"] == "epoch 1, the last"
    image = np.zeros((1, 3, 32, 32), np.uint8)
    found, logits = session.run(None, {"image": image})
    assert np.allclose(found, 1 / (1 + np.exp(-logits)), atol=1e-5)


def test_safetensors_is_scored_as_the_run_is(run, tmp_path):
    "With its phase and epoch; its note leaves the normalisation to the reader."
    path = export(run.folder / "best.pt", output=tmp_path / "new/w.safetensors")
    note = read_note(path)
    assert (note["outputs"], note["normalisation"]["inside"]) == (["logits"], False)
    result = evaluate(run.config.model_copy(update={"weight_path": str(path)}))
    assert str(result.scores) == run.scores["line"]
    assert result.protocol["chosen"] == run.scores["protocol"]["chosen"]
    with pytest.raises(UserError, match="int8=True: name a folder of images"):
        export(run.folder / "best.pt", int8=True)


def test_no_folder_of_its_maker_is_in_a_file(run, onnx_file, tmp_path):
    "Exporters write down where each line of code stands; settings name folders."
    tensors = export(run.folder / "best.pt", output=tmp_path / "a.safetensors")
    here = [str(Path(exporting.__file__).parent), str(run.folder.parent), "/torch/nn/"]
    for path in (onnx_file, Path(f"{onnx_file}.json"), tensors, Path(f"{tensors}.json")):
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


def test_published_weights_know_no_past(tmp_path):
    "Their note says so."
    torch.save({"state_dict": MSHNet().state_dict()}, tmp_path / "best.pt")
    done = export(tmp_path, tmp_path / "a.safetensors")
    assert trained_model(done).phase == "full"
    assert "how they were chosen: not known" in read_note(done)["chosen"]


@pytest.mark.parametrize("format", ["onnx", "safetensors"])
def test_a_file_that_disagrees_is_not_kept(run, onnx_file, monkeypatch, tmp_path, capsys, format):
    "Nothing is left but the good file that was there before."
    target = tmp_path / f"x.{format}"
    target.write_text("the one before")
    other = exporting.safetensors_bytes(Trained(MSHNet(), "full", Origin("x")))
    real = exporting._run_onnx

    def off(path, batches):
        return [[v + 0.01 * (len(v) > 1) for v in found] for found in real(path, batches)]

    monkeypatch.setattr(exporting, "_run_onnx", off)
    monkeypatch.setattr(exporting, "_onnx_bytes", lambda trained: onnx_file.read_bytes())
    monkeypatch.setattr(exporting, "safetensors_bytes", lambda trained: other)
    line = ["export", "--weight-path", str(run.folder / "best.pt"), "--output", str(target)]
    times = {"onnx": "10", "safetensors": "inf"}[format]
    assert f"not kept, it differs from PyTorch by {times} times" in refused(capsys, *line)
    assert [p.name for p in tmp_path.iterdir()] == [target.name]
    assert target.read_text() == "the one before"


@pytest.mark.parametrize("where", [0.5, 0.99])
def test_a_damaged_file_is_found(run, onnx_file, tmp_path, where):
    "A flipped bit of a safetensors file by its checksum; of an ONNX file by the note's digest."
    path = export(run.folder / "best.pt", output=tmp_path / "w.safetensors")
    data = bytearray(path.read_bytes())
    data[int(len(data) * where)] ^= 1
    for wrong in (data, b"", data[:1000]):
        path.write_bytes(wrong)
        with pytest.raises(UserError, match="or a damaged one"):
            trained_model(path)
    with pytest.raises(UserError, match=r"cannot be read|no such file"):  # by the system
        trained_model("a" * 300)
    onnx_file.with_name("cut.onnx").write_bytes(onnx_file.read_bytes()[:1000])
    with pytest.raises(UserError, match=r"cut.onnx: onnxruntime cannot read or run it"):
        list(exporting._run_onnx(onnx_file.with_name("cut.onnx"), []))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("none.pt", "there is no such file"),
        (".", "is a folder"),
        ("bad.pt", "not a torch file of weights"),
        ("old.onnx", "use onnxruntime: the guide 'Into your own program' has the lines"),
        ("other.pt", "weights of another model"),
        ("w.pt --output a.pt2", "use FILE.onnx or FILE.safetensors"),
        ("w.pt --int8 . --output a.safetensors", "not possible for --int8: use FILE.onnx"),
        ("w.pt --int8 nowhere", "int8=nowhere: name a folder of images"),
        ("w.pt --int8=", "int8='': name a folder of images"),
        ("w.pt --output w.pt/a.onnx", "w.pt/a.onnx: cannot be written"),
        ("w.safetensors --output w.safetensors", "is the file of the weights"),
        ("nan.pt --output n.safetensors", "nan.pt: weights that predict NaN"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(tmp_path, monkeypatch, capsys, line, said):
    "Status 2."
    monkeypatch.chdir(tmp_path)
    weights = MSHNet().state_dict()
    torch.save(weights, "w.pt")
    torch.save({k: v * float("nan") for k, v in weights.items()}, "nan.pt")
    torch.save({"conv.weight": torch.ones(1)}, "other.pt")
    for name in ("bad.pt", "old.onnx"):
        Path(name).write_text("no weights")
    if "w.safetensors" in line:
        export("w.pt", output="w.safetensors")
    before = {p.name for p in tmp_path.iterdir()}
    assert said in refused(capsys, f"export --weight-path {line}")
    assert {p.name for p in tmp_path.iterdir()} == before


def test_a_missing_package_is_named_with_its_remedy(run, onnx_file, monkeypatch, capsys):
    "Before any work; safetensors files need none of them."
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # it cannot be imported
    line = refused(capsys, "export --weight-path", run.folder / "best.pt")
    assert "needs onnxruntime (" in line and "run: pip install --upgrade onnx onnxruntime" in line


def test_a_full_disk_keeps_what_was_there(run, tmp_path, monkeypatch, capsys):
    "The new file never gets its name; with room the command reports file, size and difference."
    target = tmp_path / "a.safetensors"
    target.write_text("the one before")
    line = ["export", "--weight-path", str(run.folder / "best.pt"), "--output", str(target)]
    with monkeypatch.context() as patch:
        patch.setattr("mshnet.files.to_disk", full)
        assert "No space left" in refused(capsys, *line)
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]
    assert target.read_text() == "the one before"
    assert main(line) == 0
    assert capsys.readouterr().out.startswith(f"{target}  16 MB, checked")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.safetensors", "a.safetensors.json"]
