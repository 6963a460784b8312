"""Exported graphs are as small as onnxscript's own optimiser makes them, without its search for splits."""

from __future__ import annotations

import copy

import pytest
import torch

from bedl.deploy import onnx as room
from bedl.deploy.onnx import RULES, simplify
from bedl.deploy.prepare import ExportOptions, capture, prepare
from tests.deploy.models import classification, inputs, regression


@pytest.mark.parametrize("make", [regression, pytest.param(classification, marks=pytest.mark.slow)])
def test_as_small_as_by_onnxscript(make):
    optimizer = pytest.importorskip("onnxscript.optimizer")
    prepared = prepare(make(), ExportOptions(example=inputs(8)))
    program = capture(prepared)
    with room._quiet():
        ours, theirs = (
            torch.onnx.export(copy.deepcopy(program), (inputs(4),), dynamo=True, verbose=False, optimize=False).model
            for _ in range(2)
        )
        before = len(list(ours.graph))
        simplify(ours, room.FOLD)
        optimizer.optimize(theirs, input_size_limit=room.FOLD, output_size_limit=room.FOLD)
    assert len(list(ours.graph)) <= len(list(theirs.graph)) < before


def test_rules_are_there_and_look_at_one_output():
    """A rule for several is tried on every pair of nodes: the square of thousands, in a network with steps."""
    common = pytest.importorskip("onnxscript.rewriter.rules.common")
    rules = [getattr(common, f"{name}_rule") for name in RULES]
    assert len(set(RULES)) == len(rules)
    assert common.slice_split_rule not in rules
