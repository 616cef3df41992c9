"""Models of timm, made smaller where their settings allow it: `TIMM`."""

from typing import Any

import torch
from torch import nn

from tests.conformance.torchvision_stub import torchvision_stubbed


def images(size: int, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 3, size, size)


def make(name: str, size: int = 64, **kwargs: Any) -> tuple[nn.Module, dict[str, Any]]:
    with torchvision_stubbed():
        import timm

    return timm.create_model(name, num_classes=7, **kwargs), {"x": images(size)}


_STAGES = {"depths": (1, 1, 1, 1), "dims": (16, 24, 32, 40)}
_VIT = {"img_size": 64, "embed_dim": 32, "depth": 2, "num_heads": 2}
_SWIN = {"img_size": 64, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4)}

TIMM: dict[str, dict[str, Any]] = {
    "test_resnet": {},
    "resnet10t": {},
    "resnext26ts": {},
    "seresnet18": {},
    "test_efficientnet": {},
    "efficientnet_lite0": {},
    "mobilenetv3_small_050": {},
    "mobilenetv4_conv_small_035": {},
    "mnasnet_small": {},
    "test_convnext": {},
    "convnextv2_atto": _STAGES,
    "convnext_atto_ols": _STAGES,
    "test_vit": {"size": 160},
    "vit_tiny_patch16_224": _VIT,
    "test_vit_relpos": {"size": 160},
    "eva02_tiny_patch14_224": {**_VIT, "patch_size": 16},
    "deit_tiny_distilled_patch16_224": _VIT,
    "cait_xxs24_224": {**_VIT, "patch_size": 16},
    "xcit_nano_12_p16_224": {**_VIT, "patch_size": 16},
    "beit_base_patch16_224": _VIT,
    "swin_tiny_patch4_window7_224": {**_SWIN, "window_size": 4},
    "swinv2_tiny_window8_256": {**_SWIN, "window_size": 4},
    "mixer_s32_224": {"img_size": 64},
    "resmlp_12_224": {"img_size": 64},
    "gmlp_ti16_224": {"img_size": 64},
    "regnetx_002": {},
    "regnety_002": {},
    "densenet121": {"growth_rate": 8, "block_config": (2, 2, 2)},
    "test_maxvit": {"size": 160},
    "test_coatnet": {"size": 160},
    "test_nfnet": {"size": 96},
    "test_byobnet": {"size": 96},
    "test_mambaout": {"size": 160},
    "vgg11_bn": {"size": 32},
    "ghostnet_050": {},
    "dla46_c": {},
    "repvgg_a0": {},
    "poolformer_s12": {},
    "edgenext_xx_small": {},
    "levit_128s": {"img_size": 64},
    "pvt_v2_b0": {"depths": (1, 1, 1, 1)},
    "twins_pcpvt_small": {"img_size": 64, "depths": (1, 1, 1, 1)},
    "fastvit_t8": {"layers": (1, 1, 1, 1)},
    "efficientformerv2_s0": {"img_size": 64, "depths": (1, 1, 1, 2)},
    "naflexvit_base_patch16_gap": {"embed_dim": 32, "depth": 2, "num_heads": 2},
    "visformer_tiny": {"img_size": 64},
    "davit_tiny": {"depths": (1, 1), "embed_dims": (16, 32), "num_heads": (2, 2)},
    "halonet26t": {"size": 256},
    "convit_tiny": {**_VIT, "patch_size": 16},
    "crossvit_9_240": {"size": 240, "depth": [[1, 1, 0], [1, 1, 0]]},
    "coat_lite_tiny": {"img_size": 64, "serial_depths": (1, 1, 1, 1)},
    "hrnet_w18_small": {},
    "inception_next_tiny": {"depths": (1, 1, 1, 1)},
    "repvit_m0_9": {"depth": (1, 1, 1, 1)},
    "rexnet_100": {"width_mult": 0.4},
    "sequencer2d_s": {"size": 64, "layers": (1, 1, 1, 1)},
    "shvit_s1": {},
    "starnet_s1": {},
    "tiny_vit_5m_224": {"depths": (1, 1, 1, 1)},
    "focalnet_tiny_srf": {},
    "gernet_s": {},
    "hgnetv2_b0": {},
    "lcnet_035": {},
    "tinynet_e": {},
    "selecsls42": {},
    "cspresnet50": {},
    "hiera_tiny_224": {"size": 224, "embed_dim": 16, "stages": (1, 1, 1, 1)},
}
