"""Models of torchvision: classification, segmentation, detection and video: `VISION`."""

import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.conformance.models_timm import images
from tests.conformance.torchvision_stub import make_importable

Model = tuple[nn.Module, dict[str, Any]]


def usable() -> bool:
    """Whether torchvision can be imported, with operators that are its own or ours."""
    if importlib.util.find_spec("torchvision") is None:
        return False
    make_importable()
    return "torchvision" in sys.modules


class _Backbone(nn.Module):
    """Two levels of features, as detectors want them."""

    def __init__(self, channels: int = 16, levels: bool = False) -> None:
        super().__init__()
        self.out_channels = [channels] * 2 if levels else channels
        norms = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.stem = nn.Sequential(nn.Conv2d(3, channels, 3, 4, 1), norms[0], nn.ReLU())
        self.deep = nn.Sequential(nn.Conv2d(channels, channels, 3, 2, 1), norms[1], nn.ReLU())

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        first = self.stem(x)
        return {"0": first, "1": self.deep(first)}


class _Detecting(nn.Module):
    """A detector with named inputs; in training its losses, in evaluation what it found."""

    def __init__(self, detector: nn.Module, masks: bool = False) -> None:
        super().__init__()
        self.detector = detector
        self.masks = masks

    def forward(self, images: torch.Tensor, boxes: torch.Tensor, labels: torch.Tensor) -> Any:
        targets = [{"boxes": b, "labels": n} for b, n in zip(boxes, labels, strict=True)]
        if self.masks:
            for target in targets:
                target["masks"] = (images[0, :1] > 0).to(torch.uint8).expand(2, -1, -1)
        return self.detector(list(images), targets if self.training else None)


def _detector(kind: str, **settings: Any) -> Model:
    from torchvision.models import detection
    from torchvision.models.detection.anchor_utils import AnchorGenerator, DefaultBoxGenerator

    given: dict[str, Any] = {"num_classes": 3, **settings}
    sizes = {"min_size": 64, "max_size": 64}
    if kind == "SSD":
        given |= {"anchor_generator": DefaultBoxGenerator([[2], [2]]), "size": (64, 64)}
        made = detection.ssd.SSD(_Backbone(levels=True), **given)
    elif kind == "FCOS":
        anchors = AnchorGenerator(((16,), (32,)), ((1.0,),) * 2)
        made = detection.FCOS(_Backbone(32), anchor_generator=anchors, **sizes, **given)
    else:
        anchors = AnchorGenerator(((16,), (32,)), ((0.5, 1.0, 2.0),) * 2)
        name = "anchor_generator" if kind == "RetinaNet" else "rpn_anchor_generator"
        made = getattr(detection, kind)(_Backbone(), **{name: anchors}, **sizes, **given)
    boxes = torch.tensor([[[4.0, 4, 30, 30], [20, 20, 60, 50]]] * 2)
    labels = torch.tensor([[1, 2]] * 2)
    inputs = {"images": images(64), "boxes": boxes, "labels": labels}
    return _Detecting(made, masks=kind == "MaskRCNN"), inputs


def _segmentation(head: Callable[..., nn.Module], channels: int = 16) -> Model:
    from torchvision.models.segmentation import FCN

    class Features(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = _Backbone()

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"out": self.features(x)["1"]}

    return FCN(Features(), head(channels, 5)), {"x": images(64)}


def _named(name: str, size: int = 64, **settings: Any) -> Model:
    from torchvision import models

    return getattr(models, name)(weights=None, num_classes=7, **settings), {"x": images(size)}


def _heads(kind: str) -> Model:
    from torchvision.models import segmentation

    heads = {"fcn": segmentation.fcn.FCNHead, "deeplab": segmentation.deeplabv3.DeepLabHead}
    return _segmentation(heads[kind])


def _lraspp() -> Model:
    from torchvision.models.segmentation import lraspp_mobilenet_v3_large

    made = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5)
    return made, {"input": images(64)}


def _clip(size: int = 32) -> torch.Tensor:
    return torch.randn(2, 3, 4, size, size)


def _video_resnet(maker: str) -> Model:
    from torchvision.models.video import resnet

    conv = getattr(resnet, maker)
    stem = resnet.R2Plus1dStem if maker == "Conv2Plus1D" else resnet.BasicStem
    made = resnet.VideoResNet(resnet.BasicBlock, [conv] * 4, [1, 1, 1, 1], stem, num_classes=7)
    return made, {"x": _clip()}


def _mvit() -> Model:
    from torchvision.models.video.mvit import MSBlockConfig, MViT

    blocks = [
        MSBlockConfig(1, 16, 16, [3, 3, 3], [3, 3, 3], [1, 1, 1], [1, 2, 2]),
        MSBlockConfig(2, 16, 32, [3, 3, 3], [3, 3, 3], [1, 2, 2], [1, 1, 1]),
    ]
    made = MViT(
        (32, 32),
        4,
        blocks,
        residual_pool=True,
        residual_with_cls_embed=False,
        rel_pos_embed=True,
        proj_after_attn=True,
        num_classes=7,
    )
    return made, {"x": _clip()}


def _swin3d() -> Model:
    from torchvision.models.video.swin_transformer import SwinTransformer3d

    made = SwinTransformer3d([2, 4, 4], 16, [1, 1], [2, 4], [2, 4, 4], num_classes=7)
    return made, {"x": _clip()}


def _vit() -> Model:
    from torchvision.models import VisionTransformer

    return VisionTransformer(64, 16, 2, 2, 32, 48, num_classes=7), {"x": images(64)}


_FEW = {
    "rpn_post_nms_top_n_train": 16,
    "rpn_post_nms_top_n_test": 8,
    "box_batch_size_per_image": 8,
    "box_detections_per_img": 4,
}

VISION: dict[str, Callable[[], Model]] = {
    "resnet18": lambda: _named("resnet18"),
    "vit": _vit,
    "shufflenet_v2_x0_5": lambda: _named("shufflenet_v2_x0_5"),
    "squeezenet1_1": lambda: _named("squeezenet1_1"),
    "mobilenet_v3_small": lambda: _named("mobilenet_v3_small"),
    "segmentation/fcn": lambda: _heads("fcn"),
    "segmentation/deeplabv3": lambda: _heads("deeplab"),
    "segmentation/lraspp": _lraspp,
    "detection/faster_rcnn": lambda: _detector("FasterRCNN", **_FEW),
    "detection/mask_rcnn": lambda: _detector("MaskRCNN", **_FEW),
    "detection/retinanet": lambda: _detector("RetinaNet"),
    "detection/fcos": lambda: _detector("FCOS"),
    "detection/ssd": lambda: _detector("SSD"),
    "video/r3d": lambda: _video_resnet("Conv3DSimple"),
    "video/r2plus1d": lambda: _video_resnet("Conv2Plus1D"),
    "video/mvit": _mvit,
    "video/swin3d": _swin3d,
}
