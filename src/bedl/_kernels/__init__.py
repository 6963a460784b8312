"""A few kernels in C for CPUs; where they are not built, or do not suit, callers go on in PyTorch.

They are built with the package if there is a C compiler (`hatch_build.py`), depend on neither Python's nor PyTorch's
binary interface, and share PyTorch's own threads. `BEDL_NATIVE=0` in the environment leaves them out.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

from bedl._kernels import inference as image_kernel
from bedl._kernels import training as pbp
from bedl._kernels import training as training
from bedl._kernels.inference import (
    MAX_NODES,
    TABLES,
    LayerSpec,
    Small,
    chain,
    data_entropy,
    is_built,
    log_mean_softmax,
    normal_parts,
    packed_weights,
    small_network,
)
from bedl._kernels.operators import (
    clipped_moments,
    clipped_moments_backward,
    elu_moments,
    elu_moments_backward,
    hardswish_moments,
    hardswish_moments_backward,
    log_survival_and_density,
    log_survival_density_and_slopes,
    relu_moments,
    relu_moments_backward,
    tabulated_moments,
    tabulated_moments_backward,
)

__all__ = [
    "MAX_NODES", "TABLES", "LayerSpec", "Small", "chain", "clipped_moments", "clipped_moments_backward", "data_entropy",
    "elu_moments", "elu_moments_backward", "hardswish_moments", "hardswish_moments_backward", "image_kernel",
    "is_built", "log_mean_softmax", "log_survival_and_density", "log_survival_density_and_slopes", "normal_parts",
    "packed_weights", "pbp", "relu_moments", "relu_moments_backward", "serve", "small_network", "supported",
    "tabulated_moments", "tabulated_moments_backward", "training",
]  # fmt: skip


def serve(m: Tensor) -> bool:
    """Whether kernels may take such tensors, once autograd and transforms have been told what they do."""
    exporting = torch.compiler.is_exporting() or forward_ad._current_level >= 0
    return is_built() and m.dtype is torch.float32 and m.device.type == "cpu" and not exporting


def supported(*tensors: Tensor, many: int = 0) -> bool:
    """Whether a kernel may take these tensors: float32 in the CPU's memory, and nobody watching the operations.

    Transforms, modes, exports and autograd see PyTorch's operations only, so for them there have to be some. Compilers
    call kernels as operators.

    Args:
        many: numbers from which a compiled graph calls the kernel: fewer are done before a call has begun.
    """
    if not is_built():
        return False
    if torch.compiler.is_compiling():
        if torch.compiler.is_exporting() or not torch.compiler.is_dynamo_compiling():
            return False
        few = tensors[0].numel() < many
        return not few and all(x.dtype is torch.float32 and x.device.type == "cpu" for x in tensors)
    if torch.jit.is_tracing() or torch._C._len_torch_dispatch_stack() or forward_ad._current_level >= 0:
        return False
    recorded = torch.is_grad_enabled()
    return all(
        type(x) is Tensor
        and x.dtype is torch.float32
        and x.device.type == "cpu"
        and x.layout is torch.strided
        and not (recorded and x.requires_grad)
        and not x.is_neg()  # its memory holds the negative
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
        for x in tensors
    )
