# SPDX-License-Identifier: Apache-2.0
"""Models to train under a plan: the paper's ResNet-22 and two small ones.

They compute each example alone, by plain convolutions and linear layers, and train with
`Trainer`. Weights are drawn from a public seed; torch's global generator is neither read nor
changed.
"""

import math
from collections.abc import Sequence
from typing import Final, final

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

from pufferslice._core.checks import check_count
from pufferslice.errors import ArgumentError, TrainingError

RESNET_STAGES: Final = ((16, 3), (32, 4), (64, 3))
"""Channels and number of residual blocks of each stage of the ResNet-22."""

_MOST_GROUPS: Final = 4
_POOLED: Final = 3
_TINY: Final = 1e-6


@final
class Standardise(nn.Module):
    """Flattens each example, subtracts its mean and divides by its standard deviation + 1e-6."""

    def forward(self, images: Tensor) -> Tensor:
        """Map shape (n_examples, ...) to (n_examples, n_features)."""
        flat = images.flatten(1)
        centred = flat - flat.mean(dim=1, keepdim=True)
        return centred / (flat.std(dim=1, keepdim=True) + _TINY)


@final
class PaddingShortcut(nn.Module):
    """Every `stride`-th pixel, between channels of zeros that fill up to `n_out`."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.before = (n_out - n_in) // 2
        self.after = n_out - n_in - self.before

    def forward(self, images: Tensor) -> Tensor:
        """Map shape (n_examples, n_in, height, width) to the shape of the block's output."""
        pixels = images[:, :, :: self.stride, :: self.stride]
        return F.pad(pixels, (0, 0, 0, 0, self.before, self.after))


@final
class ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, as in the paper's appendix."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride=stride, padding=1, bias=False)
        self.norm1 = _norm(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.norm2 = _norm(n_out)
        self.norm3 = _norm(n_out)
        self.shortcut = PaddingShortcut(n_in, n_out, stride)

    def forward(self, images: Tensor) -> Tensor:
        """Map shape (n_examples, n_in, h, w) to (n_examples, n_out, h / stride, w / stride)."""
        inner = self.norm1(F.elu(self.conv1(images)))
        summed = self.norm2(self.conv2(inner)) + self.shortcut(images)
        out: Tensor = self.norm3(F.elu(summed))
        return out


def resnet22(n_classes: int = 10, *, seed: int) -> nn.Sequential:
    """The paper's ResNet-22 for images with 3 channels: 291,898 parameters for 10 classes.

    A 3x3 convolution to 16 channels, group normalisation, ELU; 3, 4 and 3 residual blocks of 16, 32
    and 64 channels, the last two stages starting with stride 2; 3x3 average pooling; the 576
    features standardised per example; a linear layer. Group normalisation has four groups and no
    parameters, shortcuts pad with zeros, weights are Kaiming-normal.
    """
    check_count(2, n_classes=n_classes)
    with torch.random.fork_rng(devices=[]):
        n_in = RESNET_STAGES[0][0]
        layers = [nn.Conv2d(3, n_in, 3, padding=1, bias=False), _norm(n_in), nn.ELU()]
        for stage, (n_out, n_blocks) in enumerate(RESNET_STAGES):
            for block in range(n_blocks):
                layers.append(ResidualBlock(n_in, n_out, 2 if stage and not block else 1))
                n_in = n_out
        head = nn.Linear(n_in * _POOLED**2, n_classes)
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(_POOLED), Standardise(), head)
    return _kaiming(model, seed)


def linear_model(shape: Sequence[int], n_classes: int) -> nn.Sequential:
    """One linear layer on the standardised example, with zero initial weights.

    With few steps and much noise it is hard to beat on small images, because it has few parameters.
    """
    _check_shape(shape, n_classes)
    with torch.random.fork_rng(devices=[]):
        linear = nn.Linear(math.prod(shape), n_classes)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return nn.Sequential(Standardise(), linear)


def small_convnet(shape: Sequence[int], n_classes: int, *, seed: int) -> nn.Sequential:
    """A convolution, ELU, 2x2 pooling and a linear layer on standardised features.

    `shape` is that of one image: channels, height, width. On grey 8x8 images it has 1,370
    parameters for 10 classes.
    """
    _check_shape(shape, n_classes)
    if len(shape) != 3 or min(shape[1:]) < 2:
        raise ArgumentError(
            f"shape must be channels, height and width, both at least 2; got {tuple(shape)}"
        )
    channels, height, width = shape
    with torch.random.fork_rng(devices=[]):
        model = nn.Sequential(
            nn.Conv2d(channels, 8, 3, padding=1),
            nn.ELU(),
            nn.AvgPool2d(2),
            Standardise(),
            nn.Linear(8 * (height // 2) * (width // 2), n_classes),
        )
    return _kaiming(model, seed)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy of each example, shape (n_examples,)."""
    try:
        return F.cross_entropy(logits, targets, reduction="none")
    except IndexError:
        # Torch's own message contains the label of a record.
        raise TrainingError(
            f"targets must be from 0 to {logits.shape[-1] - 1}, the classes of the model"
        ) from None


def n_parameters(model: nn.Module) -> int:
    """Number of trainable coordinates."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def layer_sizes(model: nn.Module) -> dict[str, int]:
    """Number of coordinates of each trainable parameter tensor, by its name."""
    return {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}


def _norm(n_channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(min(_MOST_GROUPS, n_channels), n_channels, affine=False)


def _kaiming(model: nn.Sequential, seed: int) -> nn.Sequential:
    """The model with Kaiming-normal weights, drawn from the seed, and zero biases."""
    check_count(0, seed=seed)
    generator = torch.Generator()
    generator.manual_seed(int(seed))
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, generator=generator)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return model


def _check_shape(shape: Sequence[int], n_classes: int) -> None:
    check_count(2, n_classes=n_classes)
    if not shape:
        raise ArgumentError("shape must have at least one dimension, got none")
    check_count(1, **{f"dimension {i} of shape": size for i, size in enumerate(shape)})
