"""Tokens, several inputs, outputs among others, maps and images of any size leave Python as they are inside."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import bedl
from bedl.deploy import ExportError, OnnxModel, export, export_program
from bedl.deploy.prepare import Inputs
from tests.deploy.models import inputs


class Two(nn.Module):
    """Several inputs, and outputs in a dict."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.last = nn.Linear(3, 8), nn.Linear(2, 8), nn.Linear(8, 2)

    def forward(self, left, right):
        hidden = torch.relu(self.a(left) + self.b(right))
        return {"logits": self.last(hidden), "hidden": hidden}


class Tokens(nn.Module):
    """Words, embedded and averaged over those that are there."""

    def __init__(self, outputs=2):
        super().__init__()
        self.words, self.mix, self.last = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, outputs)

    def forward(self, input_ids, attention_mask):
        there = attention_mask.unsqueeze(-1).float()
        mean = (torch.tanh(self.mix(self.words(input_ids))) * there).sum(1) / there.sum(1)
        return self.last(mean)


def maps(outputs, channels=4):
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, channels, 3, stride=2, padding=1),
        nn.ReLU(), nn.ConvTranspose2d(channels, channels, 2, stride=2), nn.ReLU(), nn.Conv2d(channels, outputs, 1),
    )  # fmt: skip


def pooled():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(3, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2),
    )  # fmt: skip


def bedl_of(net, head, **options):
    torch.manual_seed(0)
    return bedl.BEDL(bedl.bayesianize(net(), init_logvar=-4.0), head, **options)


def tokens(n, length, seed=0):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 20, (n, length), generator=g)
    mask = torch.arange(length) < torch.randint(1, length + 1, (n, 1), generator=g)
    return {"input_ids": ids, "attention_mask": mask.long()}


def pair(n, seed=0):
    return inputs(n, (3,), seed), inputs(n, (2,), seed + 1)


def named(n, seed=0):
    left, right = pair(n, seed)
    return {"right": right, "left": left}


def images(n, height=8, width=8, seed=0):
    return inputs(n, (1, height, width), seed)


# the model, an example, further axes that may vary, and inputs of other sizes
CASES = {
    "several inputs by place": (lambda: bedl_of(Two, bedl.Normal(1)), pair(30), (), pair(5, seed=3)),
    "several inputs by name": (lambda: bedl_of(Two, bedl.Normal(1)), named(30), (), named(5, seed=3)),
    "another output": (lambda: bedl_of(Two, bedl.Normal(4), output="hidden"), pair(30), (), pair(5, seed=3)),
    "tokens": (lambda: bedl_of(Tokens, bedl.Normal(1)), tokens(30, 6), (1,), tokens(5, 9, seed=3)),
    "values of pixels": (
        lambda: bedl_of(lambda: maps(2), bedl.Normal(1, dim=1)), images(6), (2, 3), images(2, 12, 10, seed=3),
    ),
    "images of any size": (
        lambda: bedl_of(
            lambda: nn.Sequential(maps(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)), bedl.Normal(1)
        ),
        images(30), (2, 3), images(5, 12, 10, seed=3),
    ),
    "images of any size, largest of windows": (
        lambda: bedl_of(pooled, bedl.Normal(1)), images(30, 16, 16), (2, 3), images(5, 24, 19, seed=3),
    ),
}  # fmt: skip
# the same with classes, whose graphs are large
SLOW = {
    "classes of tokens": (
        lambda: bedl_of(lambda: Tokens(3), bedl.Dirichlet(3)), tokens(30, 6), (1,), tokens(5, 9, seed=3),
    ),
    "classes of pixels": (
        lambda: bedl_of(lambda: maps(3), bedl.Dirichlet(3, dim=1)), images(6), (2, 3), images(2, 12, 10, seed=3),
    ),
    "ensemble of maps": (
        lambda: bedl.Ensemble([bedl_of(lambda: maps(3), bedl.Dirichlet(3, dim=1)) for _ in range(2)]),
        images(6), (), images(2, seed=3),
    ),
}  # fmt: skip


QUICK = ("several inputs by name",)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in (*CASES, *SLOW)]
)
def test_what_leaves_python_agrees(name, tmp_path):
    make, example, dynamic, others = {**CASES, **SLOW}[name]
    method = make()
    report = export(method, tmp_path / "model.onnx", example=example, dynamic=dynamic)
    assert max(report.scaled.values()) < 1e-4
    model = OnnxModel(tmp_path / "model.onnx", threads=1)
    expected = method.predict(others)
    arrays = bedl.nn.calling.map_parts(lambda part: part.numpy(), others)
    outputs = model.predict(arrays)
    for key, value in expected.outputs().items():
        np.testing.assert_allclose(outputs[key], value.numpy(), rtol=1e-4, atol=1e-4, err_msg=f"{name}, {key}")
    frame, columns = expected.to_frame(), model.predict_columns(arrays)
    assert {len(values) for values in columns.values()} == {len(frame)}
    for place in ("point", "row", "column"):
        assert (place in columns) == (place in frame)
        assert np.array_equal(columns.get(place), frame.get(place))
    if name == "tokens":
        check_what_is_taken(model)


@pytest.mark.slow
def test_a_program_takes_the_inputs_in_their_order(tmp_path):
    method, example, others = bedl_of(Tokens, bedl.Normal(1)), tokens(30, 6), tokens(5, 9, seed=3)
    export_program(method, tmp_path / "model.pt2", example=example, dynamic=(1,))
    outputs = torch.export.load(tmp_path / "model.pt2").module()(*others.values())
    torch.testing.assert_close(outputs["std"], method.predict(others).std, rtol=1e-4, atol=1e-5)


def check_what_is_taken(model):
    assert model.input_names == ("input_ids", "attention_mask")
    ids, mask = (part.numpy() for part in tokens(4, 7).values())
    for wrong, error, words in (
        ((ids,), ValueError, "input_ids, attention_mask"),
        ({"ids": ids, "mask": mask}, ValueError, "input_ids, attention_mask"),
        ((ids + 0.5, mask), TypeError, "whole numbers"),
        ((ids, mask[:2]), ValueError, "as many rows"),
        ((ids[0], mask[0]), ValueError, "shape"),
    ):
        with pytest.raises(error, match=words):
            model.predict(wrong)


WRONG = {
    "unequal rows": ({"example": (torch.ones(3, 3), torch.ones(4, 2))}, "the same n"),
    "no such axis": ({"example": pair(5), "dynamic": (4,)}, "dynamic"),
    "scaled": ({"example": pair(5), "input_scale": (0.0, 1.0)}, "inside the network"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_exported_is_refused(name, tmp_path):
    options, words = WRONG[name]
    with pytest.raises(ExportError, match=words):
        export(bedl_of(Two, bedl.Normal(1)), tmp_path / "model.onnx", **options)


FIXED = {
    "flattened": (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 2)), 2),
    "the last": (lambda: nn.Sequential(nn.Linear(8, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1, 2)), 3),
}


@pytest.mark.parametrize("name", FIXED)
def test_an_axis_that_a_layer_fixes_is_named(name, tmp_path):
    make, axis = FIXED[name]
    with pytest.raises(ExportError, match=rf"^axis {axis} of x was to vary, .* for the length 8 alone[^\n]*$"):
        export(
            bedl_of(make, bedl.Dirichlet(2)), tmp_path / "model.onnx", example=torch.rand(3, 1, 8, 8), dynamic=(2, 3)
        )
    assert not (tmp_path / "model.onnx").exists()


class Steps(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.RNN(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.layer(x)[0][:, -1])


def test_a_loop_that_is_written_out_is_named(tmp_path):
    """The network takes sequences of any length, its graph those of the example's alone."""
    with pytest.raises(ExportError, match=r"^axis 1 of x was to vary, .* for the length 5 alone: a loop .*dynamic="):
        export(bedl_of(Steps, bedl.Normal(1)), tmp_path / "model.onnx", example=torch.rand(4, 5, 3), dynamic=(1,))
    assert not (tmp_path / "model.onnx").exists()


def test_lengths_are_tried_that_some_networks_want():
    """Even ones, squares, a longest one."""
    for takes in (lambda x: x.shape[2] == x.shape[3], lambda x: x.shape[2] % 8 == 0, lambda x: x.shape[2] <= 8):

        def network(x, takes=takes):
            if not takes(x):
                raise ValueError("not this one")

        Inputs.of(torch.rand(2, 1, 8, 8), (2, 3))[0].refuse_fixed(network, (torch.rand(2, 1, 8, 8),))


@pytest.mark.arch
@pytest.mark.slow
def test_a_transformer_with_a_mask_leaves_python(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=3,
        max_position_embeddings=16, attn_implementation="eager",
    )  # fmt: skip
    method = bedl_of(lambda: transformers.BertForSequenceClassification(config).eval(), bedl.Dirichlet(3))
    export(method, tmp_path / "model.onnx", example=tokens(8, 6))
    others = tokens(5, 6, seed=3)
    outputs = OnnxModel(tmp_path / "model.onnx").predict({name: part.numpy() for name, part in others.items()})
    np.testing.assert_allclose(outputs["probabilities"], method.predict(others).probabilities.numpy(), atol=1e-4)
