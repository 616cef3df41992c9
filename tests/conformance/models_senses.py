"""Models of transformers that see, hear or foretell, small: `SENSES`."""

from collections.abc import Callable
from typing import Any

import torch

from tests.conformance.models_timm import images
from tests.conformance.transformers_settings import (
    CLIP_PARTS,
    IMAGE,
    SEQ2SEQ,
    SPEECH,
    clip,
    pixels,
    sound,
    spectrum,
)

SENSES: dict[str, tuple[str, str, dict[str, Any], Callable[[], dict[str, Any]]]] = {
    "vit": ("ViTForImageClassification", "ViTConfig", IMAGE, pixels),
    "deit": ("DeiTForImageClassification", "DeiTConfig", IMAGE, pixels),
    "dinov2": ("Dinov2ForImageClassification", "Dinov2Config", IMAGE, pixels),
    "swin": (
        "SwinForImageClassification",
        "SwinConfig",
        {
            "image_size": 32,
            "patch_size": 4,
            "embed_dim": 16,
            "depths": [2, 2],
            "num_heads": [2, 4],
            "window_size": 4,
        },
        pixels,
    ),
    "segformer": (
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        {
            "depths": [1, 1, 1, 1],
            "hidden_sizes": [16, 16, 32, 32],
            "decoder_hidden_size": 16,
            "num_attention_heads": [1, 2, 2, 4],
            "num_labels": 5,
        },
        lambda: {"pixel_values": images(64), "labels": torch.randint(0, 5, (2, 64, 64))},
    ),
    "clip": ("CLIPModel", "CLIPConfig", CLIP_PARTS, clip),
    "siglip": ("SiglipModel", "SiglipConfig", CLIP_PARTS, clip),
    "whisper": (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {**SEQ2SEQ, "num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 16},
        spectrum,
    ),
    "wav2vec2": ("Wav2Vec2ForCTC", "Wav2Vec2Config", SPEECH, sound),
    "hubert": ("HubertForCTC", "HubertConfig", SPEECH, sound),
    "vit_mae": (
        "ViTMAEForPreTraining",
        "ViTMAEConfig",
        {
            **IMAGE,
            "decoder_hidden_size": 16,
            "decoder_num_hidden_layers": 1,
            "decoder_num_attention_heads": 2,
            "decoder_intermediate_size": 24,
        },
        lambda: {"pixel_values": images(32), "noise": torch.rand(2, 16)},
    ),
    "patchtst": (
        "PatchTSTForPrediction",
        "PatchTSTConfig",
        {
            "num_input_channels": 2,
            "context_length": 32,
            "patch_length": 8,
            "patch_stride": 8,
            "d_model": 16,
            "num_hidden_layers": 2,
            "ffn_dim": 24,
            "prediction_length": 4,
        },
        lambda: {"past_values": torch.randn(2, 32, 2), "future_values": torch.randn(2, 4, 2)},
    ),
}
