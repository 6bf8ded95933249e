"""A 4-bit base under adapters."""

from typing import Any


def keep_differentiable(model: Any) -> None:
    """
    Keeps bitsandbytes from repacking a 4-bit base for inference on the CPU.

    On CPUs with AVX512-BF16 the first forward in eval mode, such as that of the memory scoring, packs the weights in a
    format whose product has no gradient, and the training would use it: the layers below would get no gradient.
    """
    if not getattr(model, "is_loaded_in_4bit", False):
        return
    from bitsandbytes.nn.modules import Linear4bit

    for module in model.modules():
        if isinstance(module, Linear4bit):
            module.support_avx512bf16_for_cpu = False
