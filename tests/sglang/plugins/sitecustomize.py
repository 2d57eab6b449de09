"""torchvision comes without its operators here, for they are built for CUDA; importing it needs two of them to be declared."""

import contextlib

with contextlib.suppress(ImportError):
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
