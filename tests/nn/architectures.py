"""Architectures as data: how each is built, from its configuration and without trained weights, and an input for it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Architecture:
    make: Callable[[], nn.Module]
    inputs: Callable[[], tuple]


def images(*shape: int) -> Callable[[], tuple]:
    return lambda: (torch.randn(shape),)


def tokens(*shape: int) -> Callable[[], tuple]:
    return lambda: (torch.randint(1, 50, shape),)


def hugging_face(model: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        library = importlib.import_module("transformers")
        return getattr(library, model)(getattr(library, config)(num_labels=5, **settings))

    return make


def monai(name: str, **settings: Any) -> Callable[[], nn.Module]:
    return lambda: getattr(importlib.import_module("monai.networks.nets"), name)(**settings)


class Last(nn.Module):
    """The last output of a recurrent layer, as classes."""

    def __init__(self, layer: nn.Module, width: int):
        super().__init__()
        self.layer, self.out = layer, nn.Linear(width, 5)

    def forward(self, x: Any) -> Any:
        return self.out(self.layer(x)[0][:, -1])


class Messages(nn.Module):
    """Two rounds of messages around a ring, and the mean over its nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.out = nn.Linear(4, 16), nn.Linear(16, 5)
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        source = torch.arange(x.shape[1])
        target = (source + 1) % x.shape[1]
        h = F.relu(self.encode(x))
        for layer in (self.first, self.second):
            message = F.relu(layer(h[:, source]))
            h = h + torch.zeros_like(h).index_add(1, target, message)
        return self.out(h.mean(1))


class Gated(nn.Module):
    """RMS norm by hand, a gated linear unit, and the two best of four experts."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate, self.router = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 4)
        self.experts = nn.ModuleList(nn.Linear(16, 5) for _ in range(4))

    def forward(self, x: Any) -> Any:
        h = self.up(x) * F.silu(self.gate(x))
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)
        weights, chosen = self.router(h).softmax(-1).topk(2)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros(len(x), 5)
        for i, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == i)
            out = torch.index_add(out, 0, rows, expert(h[rows]) * weights[rows, place, None])
        return out


class Spectrum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.out = nn.Linear(16, 16), nn.Linear(9, 5)

    def forward(self, x: Any) -> Any:
        return self.out(torch.fft.rfft(self.mix(x)).abs())


STAGES: dict[str, Any] = {"hidden_sizes": [16, 32, 32, 64], "depths": [1, 1, 1, 1]}
SMALL: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT: dict[str, Any] = {"vocab_size": 50, "pad_token_id": 0}
PLANE: dict[str, Any] = {"spatial_dims": 2, "in_channels": 1, "out_channels": 2}

ARCHITECTURES = {
    "transformers BERT": Architecture(
        hugging_face("BertForSequenceClassification", "BertConfig", **SMALL, **TEXT), tokens(2, 7)),
    "transformers GPT-2": Architecture(
        hugging_face("GPT2ForSequenceClassification", "GPT2Config", n_embd=32, n_layer=2, n_head=4, n_positions=16,
                     bos_token_id=0, eos_token_id=0, **TEXT), tokens(2, 7)),
    "transformers Llama": Architecture(
        hugging_face("LlamaForSequenceClassification", "LlamaConfig", **SMALL, **TEXT), tokens(2, 7)),
    "transformers ViT": Architecture(
        hugging_face("ViTForImageClassification", "ViTConfig", image_size=32, patch_size=8, **SMALL),
        images(2, 3, 32, 32)),
    "transformers ConvNeXt": Architecture(
        hugging_face("ConvNextForImageClassification", "ConvNextConfig", **STAGES), images(2, 3, 64, 64)),
    "transformers ResNet": Architecture(
        hugging_face("ResNetForImageClassification", "ResNetConfig", embedding_size=16, **STAGES),
        images(2, 3, 64, 64)),
    "transformers MobileNetV2": Architecture(
        hugging_face("MobileNetV2ForImageClassification", "MobileNetV2Config", depth_multiplier=0.25, image_size=64),
        images(2, 3, 64, 64)),
    "transformers EfficientNet": Architecture(
        hugging_face("EfficientNetForImageClassification", "EfficientNetConfig", width_coefficient=0.25,
                     depth_coefficient=0.3, image_size=64, hidden_dim=320), images(2, 3, 64, 64)),
    "transformers Segformer": Architecture(
        hugging_face("SegformerForSemanticSegmentation", "SegformerConfig", hidden_sizes=[8, 16, 16, 32],
                     depths=[1, 1, 1, 1], decoder_hidden_size=16, num_attention_heads=[1, 2, 2, 4]),
        images(1, 3, 64, 64)),
    "monai UNet": Architecture(
        monai("UNet", channels=(8, 16, 32), strides=(2, 2), num_res_units=2, **PLANE), images(2, 1, 32, 32)),
    "monai BasicUNet": Architecture(monai("BasicUNet", features=(8, 8, 8, 8, 8, 8), **PLANE), images(1, 1, 32, 32)),
    "monai AttentionUnet": Architecture(
        monai("AttentionUnet", channels=(8, 16), strides=(2,), **PLANE), images(1, 1, 32, 32)),
    "monai DenseNet": Architecture(
        monai("DenseNet", spatial_dims=2, in_channels=3, out_channels=5, init_features=16, growth_rate=8,
              block_config=(2, 2, 2)), images(2, 3, 64, 64)),
    "monai SegResNet": Architecture(
        monai("SegResNet", init_filters=8, blocks_down=(1, 1), blocks_up=(1,), **PLANE), images(1, 1, 32, 32)),
    "monai SwinUNETR": Architecture(
        monai("SwinUNETR", feature_size=12, depths=(1, 1, 1, 1), num_heads=(1, 2, 2, 4), **PLANE),
        images(1, 1, 64, 64)),
    "monai ResNet": Architecture(
        monai("resnet10", spatial_dims=2, n_input_channels=3, num_classes=5), images(2, 3, 64, 64)),
    "TransformerEncoder": Architecture(
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2,
                                      enable_nested_tensor=False), images(3, 5, 16)),
    "LSTM, two layers, both directions": Architecture(
        lambda: Last(nn.LSTM(4, 16, num_layers=2, bidirectional=True, batch_first=True), 32), images(3, 8, 4)),
    "GRU": Architecture(lambda: Last(nn.GRU(4, 16, batch_first=True), 16), images(3, 8, 4)),
    "message passing": Architecture(Messages, images(3, 6, 4)),
    "RMS norm, gates, experts": Architecture(Gated, images(6, 8)),
    "Fourier transform": Architecture(Spectrum, images(3, 16)),
}  # fmt: skip


def build(name: str) -> tuple[nn.Module, tuple]:
    """A network with weights that let signals through, and an input."""
    torch.manual_seed(0)
    net = ARCHITECTURES[name].make()
    for module in net.modules():  # their own initialisation lets signals fade to 1e-35 in an untrained net
        if isinstance(module, nn.Conv2d) or type(module) is nn.Linear:
            nn.init.kaiming_normal_(module.weight)
        if isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
    inputs = ARCHITECTURES[name].inputs()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0  # running statistics that fit after one pass
    with torch.no_grad():
        net.train()(*inputs)
    return net.eval(), inputs


def output(result: Any) -> Any:
    """The scores, wherever a network puts them."""
    return getattr(result, "logits", result)
