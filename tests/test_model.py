"The model and its weights: every published form loads, everything else is refused in one line."

import gzip
import pickle
import zipfile

import numpy as np
import pytest
import torch
from conftest import Evil
from safetensors.torch import save_file

from mshnet.model import MSHNet
from mshnet.weights import load_weights

OLD, NEW = b"numpy.core.multiarray", b"numpy._core.multiarray"


@pytest.fixture(scope="module")
def model():
    "A model with weights and batch-norm statistics of its own."
    torch.manual_seed(0)
    model = MSHNet().train()
    with torch.no_grad():
        model(torch.randn(2, 3, 32, 32))
    return model.eval()


@pytest.fixture(scope="module")
def fresh():
    "A model with other weights, to load into."
    torch.manual_seed(1)
    return MSHNet().eval()


def predict(model, deep=True):
    "The logits for one fixed image."
    image = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        return model(image, deep)[1]


def spoil(model):
    "Set all weights to a value that no file holds, so that what was loaded before cannot help."
    for value in model.state_dict().values():
        value.fill_(1)


def called(path, module):
    "Rewrite a torch file so that its numpy scalar names this module, as another numpy would."
    other = NEW if module == OLD else OLD
    with zipfile.ZipFile(path) as file:
        content = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as file:
        for name, data in content.items():
            file.writestr(name, data.replace(other, module) if name.endswith(".pkl") else data)
    assert any(module in data for data in content.values()) or module in path.read_bytes()


def in_net(own, prefix=""):
    "Weights as published code keeps them, beside a numpy scalar."
    net = {f"{prefix}{name}": value for name, value in own.items()}
    return {"net": net, "optimizer": {"state": {}}, "epoch": 7, "iou": np.float64(0.67)}


FORMS = {
    "bare": lambda own: own,
    "state_dict": lambda own: {"state_dict": own, "epoch": 7},
    **dict.fromkeys(("old net", "new net", "not zip"), in_net),
    "safetensors, called .tar": lambda own: own,
    "parallel": lambda own: in_net(own, "module.")["net"],
    "parallel net": lambda own: in_net(own, "module."),
    "torch.compile": lambda own: in_net(own, "_orig_mod.")["net"],
    "Lightning": lambda own: {"state_dict": in_net(own, "model.")["net"] | {"loss.w": np.ones(3)}},
    "both, on GPUs": lambda own: in_net(own, "module._orig_mod.model.")["net"],
    "a part of a larger one": lambda own: in_net(own, "student.net.")["net"],
    "averaged": lambda own: {**in_net(own, "module.")["net"], "n_averaged": torch.tensor(3)},
    "thop": lambda own: {**own, "total_ops": torch.zeros(1), "stem.total_params": torch.ones(1)},
    "arrays beside": lambda own: {"net": own, "iou": np.ones(3), "names": ["a"]},
    "any key": lambda own: {"model": None, "ema": own, "scores": {"iou": np.float64(0.67)}},
    "a pair": lambda own: (own, 7),
    "float64 arrays": lambda own: {k: np.asarray(v, "f8") for k, v in own.items()},
    "converted": lambda own: {k: v for k, v in own.items() if "num_batches_tracked" not in k},
    "float16 beside": lambda own: {"net": own, "iou": np.ones(3, "f2"), "seen": np.ones(3, "u8")},
}


def save(model, path, form):
    "Write the model's weights in one of the forms that lie about."
    content = FORMS[form](model.state_dict())
    if form.startswith("safetensors"):
        return save_file(content, path)
    torch.save(content, path, _use_new_zipfile_serialization=form != "not zip")
    if form in ("old net", "new net"):
        called(path, OLD if form == "old net" else NEW)


@pytest.mark.parametrize("form", FORMS)
def test_published_forms_of_weights_predict_the_same(model, fresh, tmp_path, form):
    "Prefixes, counters, keys and arrays are not the user's doing: same bits out of all of them."
    path = tmp_path / "weights.tar"
    save(model, path, form)
    spoil(fresh)
    load_weights(fresh, path)
    assert torch.equal(predict(fresh), predict(model))


def test_a_whole_model_is_refused_with_the_lines_that_mend_it(model, tmp_path):
    "A pickle of the class would run code."
    torch.save(model, tmp_path / "model.pt")
    with pytest.raises(ValueError, match=r"torch.save\(model.state_dict\(\), 'weights.pt'\)"):
        load_weights(model, tmp_path / "model.pt")
    said = "the weights under model are used; for those under ema, save that state dict alone"
    for ema in (model, torch.optim.swa_utils.AveragedModel(model)):
        torch.save({"model": model.state_dict(), "ema": ema.state_dict()}, tmp_path / "two.pt")
        with pytest.warns(UserWarning, match=said):
            load_weights(model, tmp_path / "two.pt")


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("where", ["alone", "beside the weights"])
def test_a_file_that_would_run_code_is_refused_and_runs_none(model, tmp_path, where, zipped):
    "Weights come from strangers. That the trap works is shown by loading it the careless way."
    path, trap = tmp_path / "evil.pt", tmp_path / "trap"
    content = Evil(trap) if where == "alone" else {"net": model.state_dict(), "epoch": Evil(trap)}
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match=r"evil\.pt: refused, it would run code"):
        load_weights(model, path)
    assert not trap.exists()
    torch.load(path, weights_only=False)
    assert trap.exists()


def another(model, change):
    "The model's state dict with one thing changed."
    state = dict(model.state_dict())
    last = list(state)[-1]
    return {
        "missing": {name: value for name, value in state.items() if name != last},
        "unknown": state | {"extra.weight": torch.ones(1)},
        "shape": state | {last: torch.ones(7)},
        "part": {f"{name}.part": v for name, v in state.items()} | {"loss.w": torch.ones(1)},
        "twice": {f"{net}.{name}": v for net in ("a", "b") for name, v in state.items()},
    }[change]


def refused(path, kind, model):
    "Write something that is no file of this model's weights."
    if kind == "folder":
        path.mkdir()
    elif kind.startswith("truncated"):
        save(model, path, "not zip" if "old" in kind else "bare")
        path.write_bytes(path.read_bytes()[:-2000])
    elif kind in BYTES:
        path.write_bytes(BYTES[kind])
    elif kind in ("missing", "unknown", "shape", "part", "twice"):
        torch.save(another(model, kind), path)
    elif kind in CONTENT:
        torch.save(CONTENT[kind], path)


BYTES = {"text": b"no weights", "words": b"hi\n", "empty": b"", "pickle": pickle.dumps({"a": 1})}
CONTENT = {
    "two of them": {"student": {"a": torch.ones(1)}, "teacher": {"a": torch.ones(1)}},
    "list": [1, 2],
    "tensor": torch.ones(3),
    "settings": {"lr": 3},
    "numbered": {0: torch.ones(3)},
    "nothing": {},
}
FILES = {
    "absent": "no such file",
    "folder": "is a folder",
    "truncated": "damaged",
    "truncated old": "damaged",
    **dict.fromkeys(BYTES, "not a torch file"),
    "pickle": r"not a torch file .*; write its names and tensors alone: torch.save\(state_dict, ",
    "missing": "another model: .* is missing",
    "unknown": "another model: extra.weight is .* in the file, missing",
    "shape": r"another model: .* is \(7,\) in the file, \(",
    **dict.fromkeys(CONTENT, "holds no weights"),
    "settings": "holds no weights .*, its keys are .'lr'",
    "two of them": "holds several .* .'student', 'teacher'.; save one",
    "part": r"another model: .*; loss.w is \(1,\) in the file, missing .* and \d+ more",
    "twice": r"weights of several models, .'a.', 'b.'.; save one state dict alone",
}


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("kind", FILES)
def test_what_holds_no_weights_of_this_model_is_refused(fresh, model, tmp_path, kind):
    "One line that names the file, and a model as it was: a half-loaded one would look trained."
    path = tmp_path / "given.pt"
    refused(path, kind, model)
    spoil(fresh)
    before = {name: value.clone() for name, value in fresh.state_dict().items()}
    with pytest.raises(ValueError, match=FILES[kind]) as caught:
        load_weights(fresh, path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert all(torch.equal(before[name], value) for name, value in fresh.state_dict().items())


STRANGE = {
    "no numbers": lambda own: own.to("meta"),
    "sparse": lambda own: own.to_sparse(),
    "whole": lambda own: own.to(torch.int8),
    "nested": lambda own: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
    "quantized": lambda own: torch.quantize_per_tensor(own, 0.1, 0, torch.qint8),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", STRANGE)
def test_tensors_that_cannot_be_weights_are_refused(fresh, model, tmp_path, kind):
    "Right names and shapes, and torch would fail in the middle of loading them."
    state = dict(model.state_dict())
    last = list(state)[-1]
    torch.save({**state, last: STRANGE[kind](state[last])}, tmp_path / "given.pt")
    spoil(fresh)
    with pytest.raises(ValueError, match=r"given.pt: weights (that|of)") as caught:
        load_weights(fresh, tmp_path / "given.pt")
    assert "\n" not in str(caught.value)
    assert all((value == 1).all() for value in fresh.state_dict().values())


def test_a_name_with_a_line_break_is_written_out(fresh, tmp_path):
    "The error is one line whatever the file holds."
    torch.save({"a\nb": torch.ones(1), "c" * 9999: torch.ones(1)}, tmp_path / "given.pt")
    with pytest.raises(ValueError, match="another model") as caught:
        load_weights(fresh, tmp_path / "given.pt")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("size", [(32, 40), (24, 32), (8, 8), (33, 33)])
def test_sizes_that_cannot_be_halved_four_times_are_refused(model, size):
    "Otherwise the error would come from a layer in the middle and speak of channels."
    with pytest.raises(ValueError, match=rf"{size[0]}x{size[1]}.*multiples of 16"):
        model(torch.zeros(1, 3, *size))


def test_the_warm_up_gives_the_other_heads_no_gradient():
    "Adagrad would otherwise decay the rate of heads that have learned nothing yet."
    model = MSHNet()
    model(torch.randn(2, 3, 16, 16), deep=False)[1].sum().backward()
    idle = {n.split(".")[0] for n, p in model.named_parameters() if p.grad is None}
    assert idle == {"output_1", "output_2", "output_3", "final"}


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"\n<!DOCTYPE html><html>quota exceeded</html>", "a text, not the file: download"),
        (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M", "download or copy it again"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a text, .* git lfs pull"),
        (gzip.compress(b"run", mtime=0), "an archive: unpack"),
    ],
)
def test_a_file_that_is_often_taken_for_weights_is_named(model, tmp_path, content, named):
    "Each has a remedy of its own."
    path = tmp_path / "best.pt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"not a torch file of weights.*{named}"):
        load_weights(model, path)
