"""Models of diffusers, small: denoisers and autoencoders: `GENERATIVE`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Model = tuple[nn.Module, dict[str, Any]]

_BLOCKS = {"block_out_channels": (16, 32), "norm_num_groups": 8, "layers_per_block": 1}


def _unet() -> Model:
    from diffusers import UNet2DConditionModel

    made = UNet2DConditionModel(
        sample_size=16,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=24,
        attention_head_dim=4,
        **_BLOCKS,
    )
    text = torch.randn(2, 5, 24)
    return made, {**_noisy(4, 16), "encoder_hidden_states": text}


def _plain_unet() -> Model:
    from diffusers import UNet2DModel

    made = UNet2DModel(
        sample_size=16,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=8,
        **_BLOCKS,
    )
    return made, _noisy(3, 16)


def _dit() -> Model:
    from diffusers import DiTTransformer2DModel

    made = DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=8, num_layers=2, sample_size=8, norm_num_groups=4
    )
    inputs = _noisy(4, 8)
    inputs["hidden_states"] = inputs.pop("sample")
    return made, {**inputs, "class_labels": torch.tensor([1, 2])}


def _flux() -> Model:
    from diffusers import FluxTransformer2DModel

    made = FluxTransformer2DModel(
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=24,
        pooled_projection_dim=16,
        axes_dims_rope=(4, 4, 8),
    )
    places = torch.stack([torch.zeros(16), torch.arange(16.0) // 4, torch.arange(16.0) % 4], dim=1)
    return made, {
        "hidden_states": torch.randn(2, 16, 4),
        "encoder_hidden_states": torch.randn(2, 5, 24),
        "pooled_projections": torch.randn(2, 16),
        "timestep": torch.tensor([0.1, 0.7]),
        "img_ids": places,
        "txt_ids": torch.zeros(5, 3),
    }


def _sd3() -> Model:
    from diffusers import SD3Transformer2DModel

    made = SD3Transformer2DModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=24,
        caption_projection_dim=16,
        pooled_projection_dim=12,
        pos_embed_max_size=8,
    )
    return made, {
        "hidden_states": torch.randn(2, 4, 8, 8),
        "encoder_hidden_states": torch.randn(2, 5, 24),
        "pooled_projections": torch.randn(2, 12),
        "timestep": torch.tensor([10, 700]),
    }


def _autoencoder() -> Model:
    from diffusers import AutoencoderKL

    made = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        sample_size=16,
        **_BLOCKS,
    )
    return made, {"sample": torch.randn(2, 3, 16, 16)}


def _quantizer() -> Model:
    from diffusers import VQModel

    made = VQModel(
        block_out_channels=(16,), norm_num_groups=8, num_vq_embeddings=32, sample_size=16
    )
    return made, {"sample": torch.randn(2, 3, 16, 16)}


def _noisy(channels: int, size: int) -> dict[str, Any]:
    return {"sample": torch.randn(2, channels, size, size), "timestep": torch.tensor([10, 700])}


GENERATIVE: dict[str, Callable[[], Model]] = {
    "unet_condition": _unet,
    "unet": _plain_unet,
    "dit": _dit,
    "flux": _flux,
    "sd3": _sd3,
    "autoencoder_kl": _autoencoder,
    "vq": _quantizer,
}
