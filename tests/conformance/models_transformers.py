"""Models of transformers, small, by class, config and inputs: `TRANSFORMERS`."""

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.conformance.models_timm import images

_TEXT = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 32,
}
_DECODER = {
    **_TEXT,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_SEQ2SEQ = {
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
_IMAGE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
    "num_channels": 3,
}
_CONVS = {"conv_dim": (16, 16), "conv_stride": (5, 4), "conv_kernel": (10, 8)}
_SPEECH = {
    **_TEXT,
    **_CONVS,
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "mask_time_prob": 0.0,
    "mask_feature_prob": 0.0,
}
_MOE = {**_DECODER, "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2}
_T5 = {
    "vocab_size": 60,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
_GPT2 = {"vocab_size": 60, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4}


def ids(batch: int = 2, length: int = 12) -> torch.Tensor:
    return torch.randint(3, 60, (batch, length))


def _masked() -> dict[str, Any]:
    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[1, 9:] = 0
    return {"input_ids": ids(), "attention_mask": mask}


def _language() -> dict[str, Any]:
    inputs = _masked()
    return {**inputs, "labels": inputs["input_ids"].clone()}


def _translation() -> dict[str, Any]:
    return {**_masked(), "labels": ids(2, 7)}


def _classes() -> dict[str, Any]:
    return {**_masked(), "labels": torch.tensor([0, 1])}


def _span() -> dict[str, Any]:
    return {
        **_masked(),
        "start_positions": torch.tensor([1, 2]),
        "end_positions": torch.tensor([4, 5]),
    }


def _pixels() -> dict[str, Any]:
    return {"pixel_values": images(32), "labels": torch.tensor([0, 1])}


def _clip() -> dict[str, Any]:
    return {**_masked(), "pixel_values": images(32), "return_loss": True}


def _sound() -> dict[str, Any]:
    return {"input_values": torch.randn(2, 800), "labels": torch.randint(3, 60, (2, 5))}


def _spectrum() -> dict[str, Any]:
    return {"input_features": torch.randn(2, 8, 40), "labels": ids(2, 7)}


_CLIP_PARTS = {
    "text_config": {**_TEXT, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0},
    "vision_config": _IMAGE,
    "projection_dim": 16,
}
_LINEAR_ATTENTION = {
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}

TRANSFORMERS: dict[str, tuple[str, str, dict[str, Any], Callable[[], dict[str, Any]]]] = {
    "bert": ("BertForMaskedLM", "BertConfig", _TEXT, _language),
    "bert_classes": ("BertForSequenceClassification", "BertConfig", _TEXT, _classes),
    "bert_span": ("BertForQuestionAnswering", "BertConfig", _TEXT, _span),
    "bert_eager_attention": (
        "BertForMaskedLM",
        "BertConfig",
        {**_TEXT, "attn_implementation": "eager"},
        _language,
    ),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", _TEXT, _language),
    "distilbert": (
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        {"vocab_size": 60, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
        _language,
    ),
    "electra": (
        "ElectraForMaskedLM",
        "ElectraConfig",
        {**_TEXT, "embedding_size": 16},
        _language,
    ),
    "albert": ("AlbertForMaskedLM", "AlbertConfig", {**_TEXT, "embedding_size": 16}, _language),
    "deberta": (
        "DebertaForMaskedLM",
        "DebertaConfig",
        {**_TEXT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
        _language,
    ),
    "deberta_v2": (
        "DebertaV2ForMaskedLM",
        "DebertaV2Config",
        {**_TEXT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
        _language,
    ),
    "roformer": ("RoFormerForMaskedLM", "RoFormerConfig", _TEXT, _language),
    "modernbert": ("ModernBertForMaskedLM", "ModernBertConfig", _DECODER, _language),
    "mpnet": ("MPNetForMaskedLM", "MPNetConfig", _TEXT, _language),
    "funnel": (
        "FunnelForMaskedLM",
        "FunnelConfig",
        {
            "vocab_size": 60,
            "d_model": 32,
            "n_head": 4,
            "d_head": 8,
            "d_inner": 48,
            "block_sizes": [1, 1],
        },
        _language,
    ),
    "longformer": (
        "LongformerForMaskedLM",
        "LongformerConfig",
        {**_TEXT, "attention_window": 4},
        _language,
    ),
    "big_bird": (
        "BigBirdForMaskedLM",
        "BigBirdConfig",
        {**_TEXT, "attention_type": "original_full"},
        _language,
    ),
    "fnet": (
        "FNetForMaskedLM",
        "FNetConfig",
        _TEXT,
        lambda: {"input_ids": (x := ids()), "labels": x.clone()},
    ),
    "xlnet": (
        "XLNetLMHeadModel",
        "XLNetConfig",
        {"vocab_size": 60, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48},
        _language,
    ),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", _GPT2, _language),
    "gpt_neo": (
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        {
            "vocab_size": 60,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
            "max_position_embeddings": 32,
        },
        _language,
    ),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", _TEXT, _language),
    "gptj": ("GPTJForCausalLM", "GPTJConfig", {**_GPT2, "rotary_dim": 4}, _language),
    "llama": ("LlamaForCausalLM", "LlamaConfig", _DECODER, _language),
    "mistral": (
        "MistralForCausalLM",
        "MistralConfig",
        {**_DECODER, "sliding_window": 4},
        _language,
    ),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", _DECODER, _language),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", _DECODER, _language),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", _DECODER, _language),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {**_DECODER, "sliding_window": 4}, _language),
    "gemma3": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {**_DECODER, "sliding_window": 4},
        _language,
    ),
    "phi": ("PhiForCausalLM", "PhiConfig", _DECODER, _language),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", _DECODER, _language),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", _DECODER, _language),
    "cohere": ("CohereForCausalLM", "CohereConfig", _DECODER, _language),
    "stablelm": ("StableLmForCausalLM", "StableLmConfig", _DECODER, _language),
    "falcon": (
        "FalconForCausalLM",
        "FalconConfig",
        {**_TEXT, "bos_token_id": 1, "eos_token_id": 2},
        _language,
    ),
    "falcon_alibi": (
        "FalconForCausalLM",
        "FalconConfig",
        {**_TEXT, "alibi": True, "bos_token_id": 1, "eos_token_id": 2},
        _language,
    ),
    "opt": (
        "OPTForCausalLM",
        "OPTConfig",
        {**_TEXT, "ffn_dim": 48, "word_embed_proj_dim": 32, "pad_token_id": 0},
        _language,
    ),
    "bloom": (
        "BloomForCausalLM",
        "BloomConfig",
        {"vocab_size": 60, "hidden_size": 32, "n_layer": 2, "n_head": 4},
        _language,
    ),
    "mpt": (
        "MptForCausalLM",
        "MptConfig",
        {"vocab_size": 60, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 32},
        _language,
    ),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", _MOE, _language),
    "qwen2_moe": (
        "Qwen2MoeForCausalLM",
        "Qwen2MoeConfig",
        {**_MOE, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
        _language,
    ),
    "mamba": (
        "MambaForCausalLM",
        "MambaConfig",
        {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
        _language,
    ),
    "mamba2": (
        "Mamba2ForCausalLM",
        "Mamba2Config",
        {
            "vocab_size": 60,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "state_size": 4,
            "num_heads": 8,
            "head_dim": 8,
            "n_groups": 2,
            "chunk_size": 4,
        },
        _language,
    ),
    "recurrent_gemma": (
        "RecurrentGemmaForCausalLM",
        "RecurrentGemmaConfig",
        {**_DECODER, "num_hidden_layers": 3, "attention_window_size": 4, "lru_width": 32},
        _language,
    ),
    "rwkv": (
        "RwkvForCausalLM",
        "RwkvConfig",
        {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "context_length": 16},
        lambda: {"input_ids": (x := ids()), "labels": x.clone()},
    ),
    "qwen3_next": (
        "Qwen3NextForCausalLM",
        "Qwen3NextConfig",
        {
            **_MOE,
            **_LINEAR_ATTENTION,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
            "layer_types": ["linear_attention", "full_attention"],
        },
        _language,
    ),
    "t5": ("T5ForConditionalGeneration", "T5Config", _T5, _translation),
    "bart": ("BartForConditionalGeneration", "BartConfig", _SEQ2SEQ, _translation),
    "marian": ("MarianMTModel", "MarianConfig", _SEQ2SEQ, _translation),
    "pegasus": ("PegasusForConditionalGeneration", "PegasusConfig", _SEQ2SEQ, _translation),
    "vit": ("ViTForImageClassification", "ViTConfig", _IMAGE, _pixels),
    "deit": ("DeiTForImageClassification", "DeiTConfig", _IMAGE, _pixels),
    "dinov2": ("Dinov2ForImageClassification", "Dinov2Config", _IMAGE, _pixels),
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
        _pixels,
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
    "clip": ("CLIPModel", "CLIPConfig", _CLIP_PARTS, _clip),
    "siglip": ("SiglipModel", "SiglipConfig", _CLIP_PARTS, _clip),
    "whisper": (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {**_SEQ2SEQ, "num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 16},
        _spectrum,
    ),
    "wav2vec2": ("Wav2Vec2ForCTC", "Wav2Vec2Config", _SPEECH, _sound),
    "hubert": ("HubertForCTC", "HubertConfig", _SPEECH, _sound),
    "vit_mae": (
        "ViTMAEForPreTraining",
        "ViTMAEConfig",
        {
            **_IMAGE,
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


def make(
    model: str, config: str, settings: dict[str, Any], inputs: Callable[[], dict[str, Any]]
) -> tuple[nn.Module, dict[str, Any]]:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    settings = dict(settings)
    attention = settings.pop("attn_implementation", None)
    made = getattr(transformers, config)(**settings)
    if attention is not None:
        made._attn_implementation = attention
    return getattr(transformers, model)(made), inputs()
