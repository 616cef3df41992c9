"""Sizes and inputs of small models of transformers, by what they are for."""

from typing import Any

import torch

from tests.conformance.models_timm import images

TEXT = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 32,
}
DECODER = {
    **TEXT,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SEQ2SEQ = {
    "vocab_size": 60,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
IMAGE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
    "num_channels": 3,
}
CONVS = {"conv_dim": (16, 16), "conv_stride": (5, 4), "conv_kernel": (10, 8)}
SPEECH = {
    **TEXT,
    **CONVS,
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "mask_time_prob": 0.0,
    "mask_feature_prob": 0.0,
}
MOE = {**DECODER, "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2}
T5 = {
    "vocab_size": 60,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
GPT2 = {"vocab_size": 60, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4}


def ids(batch: int = 2, length: int = 12) -> torch.Tensor:
    return torch.randint(3, 60, (batch, length))


def masked() -> dict[str, Any]:
    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[1, 9:] = 0
    return {"input_ids": ids(), "attention_mask": mask}


def language() -> dict[str, Any]:
    inputs = masked()
    return {**inputs, "labels": inputs["input_ids"].clone()}


def translation() -> dict[str, Any]:
    return {**masked(), "labels": ids(2, 7)}


def classes() -> dict[str, Any]:
    return {**masked(), "labels": torch.tensor([0, 1])}


def span() -> dict[str, Any]:
    return {
        **masked(),
        "start_positions": torch.tensor([1, 2]),
        "end_positions": torch.tensor([4, 5]),
    }


def tags() -> dict[str, Any]:
    return {**masked(), "labels": torch.randint(0, 2, (2, 12))}


def pixels() -> dict[str, Any]:
    return {"pixel_values": images(32), "labels": torch.tensor([0, 1])}


def clip() -> dict[str, Any]:
    return {**masked(), "pixel_values": images(32), "return_loss": True}


def sound() -> dict[str, Any]:
    return {"input_values": torch.randn(2, 800), "labels": torch.randint(3, 60, (2, 5))}


def spectrum() -> dict[str, Any]:
    return {"input_features": torch.randn(2, 8, 40), "labels": ids(2, 7)}


CLIP_PARTS = {
    "text_config": {**TEXT, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0},
    "vision_config": IMAGE,
    "projection_dim": 16,
}
LINEAR_ATTENTION = {
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}


def seen(patches: int) -> dict[str, Any]:
    """Text after the places of an image (token 59)."""
    text = torch.randint(3, 50, (2, 6))
    tokens = torch.cat([torch.full((2, patches), 59), text], 1)
    labels = torch.cat([torch.full((2, patches), -100), text], 1)
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": labels}
