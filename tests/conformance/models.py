"""Models that others wrote, small and with random weights: `MODELS` maps a name to its maker.

timm and transformers are optional: where one is missing, its models are not in the table.
"""

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.conformance.torchvision_stub import torchvision_stubbed

Model = tuple[nn.Module, dict[str, Any]]
MODELS: dict[str, Callable[[], Model]] = {}


def _images(size: int, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 3, size, size)


def _timm(name: str, size: int = 64, **kwargs: Any) -> Model:
    with torchvision_stubbed():
        import timm

    return timm.create_model(name, num_classes=7, **kwargs), {"x": _images(size)}


_STAGES = {"depths": (1, 1, 1, 1), "dims": (16, 24, 32, 40)}
_VIT = {"img_size": 64, "embed_dim": 32, "depth": 2, "num_heads": 2}
_CAIT = {**_VIT, "patch_size": 16}
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
    "cait_xxs24_224": _CAIT,
    "xcit_nano_12_p16_224": {**_VIT, "patch_size": 16},
    "beit_base_patch16_224": _VIT,
    "swin_tiny_patch4_window7_224": {**_SWIN, "window_size": 4},
    "swinv2_tiny_window8_256": {**_SWIN, "window_size": 4},
    "mixer_s32_224": {"img_size": 64, "num_blocks": 2},
    "resmlp_12_224": {"img_size": 64, "num_blocks": 2},
    "gmlp_ti16_224": {"img_size": 64, "num_blocks": 2},
    "regnetx_002": {},
    "regnety_002": {},
    "densenet121": {"growth_rate": 8, "block_config": (2, 2, 2)},
    "test_maxvit": {"size": 160},
    "test_coatnet": {"size": 160},
    "test_nfnet": {"size": 96},
    "test_byobnet": {"size": 96},
    "test_mambaout": {"size": 160},
    "vgg11_bn": {"size": 32},
    "inception_v4": None,
    "ghostnet_050": {},
    "dla46_c": {},
    "hrnet_w18_small": None,
    "repvgg_a0": {},
    "poolformer_s12": {"layers": (1, 1, 1, 1), "embed_dims": (16, 24, 32, 40)},
    "edgenext_xx_small": {},
    "levit_128s": {"img_size": 64},
    "tiny_vit_5m_224": {"img_size": 64, "depths": (1, 1, 1, 1)},
    "pvt_v2_b0": {"depths": (1, 1, 1, 1)},
    "twins_pcpvt_small": {"img_size": 64, "depths": (1, 1, 1, 1)},
    "convmixer_768_32": {"dim": 32, "depth": 2},
    "fastvit_t8": {"layers": (1, 1, 1, 1)},
    "efficientformerv2_s0": {"img_size": 64, "depths": (1, 1, 1, 2)},
    "volo_d1_224": {"img_size": 64, "layers": (1, 1, 1, 1)},
    "crossvit_9_240": None,
    "naflexvit_base_patch16_gap": {"embed_dim": 32, "depth": 2, "num_heads": 2},
    "starnet_s1": {},
    "rdnet_tiny": None,
    "visformer_tiny": {"img_size": 64},
    "focalnet_tiny_srf": {"depths": (1, 1, 1, 1), "embed_dim": 16},
    "davit_tiny": {"depths": (1, 1), "embed_dims": (16, 32), "num_heads": (2, 2)},
    "gcvit_xxtiny": {"img_size": 64, "depths": (1, 1, 1, 1)},
    "lambda_resnet26t": None,
    "halonet26t": {"size": 128},
}

if importlib.util.find_spec("timm") is not None:
    for _name, _kwargs in TIMM.items():
        if _kwargs is not None:
            MODELS[f"timm/{_name}"] = lambda n=_name, k=_kwargs: _timm(n, **k)


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


def _ids(batch: int = 2, length: int = 12) -> torch.Tensor:
    return torch.randint(3, 60, (batch, length))


def _masked() -> dict[str, Any]:
    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[1, 9:] = 0
    return {"input_ids": _ids(), "attention_mask": mask}


def _language() -> dict[str, Any]:
    inputs = _masked()
    return {**inputs, "labels": inputs["input_ids"].clone()}


def _translation() -> dict[str, Any]:
    return {**_masked(), "labels": _ids(2, 7)}


def _classes() -> dict[str, Any]:
    return {**_masked(), "labels": torch.tensor([0, 1])}


def _span() -> dict[str, Any]:
    return {
        **_masked(),
        "start_positions": torch.tensor([1, 2]),
        "end_positions": torch.tensor([4, 5]),
    }


def _pixels() -> dict[str, Any]:
    return {"pixel_values": _images(32), "labels": torch.tensor([0, 1])}


def _clip() -> dict[str, Any]:
    return {**_masked(), "pixel_values": _images(32), "return_loss": True}


def _sound() -> dict[str, Any]:
    return {"input_values": torch.randn(2, 800), "labels": torch.randint(3, 60, (2, 5))}


def _spectrum() -> dict[str, Any]:
    return {"input_features": torch.randn(2, 8, 40), "labels": _ids(2, 7)}


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
        lambda: {"input_ids": (ids := _ids()), "labels": ids.clone()},
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
        lambda: {"input_ids": (ids := _ids()), "labels": ids.clone()},
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
        lambda: {"pixel_values": _images(64), "labels": torch.randint(0, 5, (2, 64, 64))},
    ),
    "clip": ("CLIPModel", "CLIPConfig", _CLIP_PARTS, _clip),
    "siglip": ("SiglipModel", "SiglipConfig", _CLIP_PARTS, _clip),
    "whisper": (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {
            **_SEQ2SEQ,
            "num_mel_bins": 8,
            "max_source_positions": 20,
            "max_target_positions": 16,
        },
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
        lambda: {"pixel_values": _images(32), "noise": torch.rand(2, 16)},
    ),
    "vits_timeseries": (
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


def _transformers(row: tuple[str, str, dict[str, Any], Callable[[], dict[str, Any]]]) -> Model:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    model, config, settings, inputs = row
    settings = dict(settings)
    attention = settings.pop("attn_implementation", None)
    made = getattr(transformers, config)(**settings)
    if attention is not None:
        made._attn_implementation = attention
    return getattr(transformers, model)(made), inputs()


if importlib.util.find_spec("transformers") is not None:
    for _name, _row in TRANSFORMERS.items():
        MODELS[f"transformers/{_name}"] = lambda row=_row: _transformers(row)


class _Sequences(nn.Module):
    """A classifier over a recurrent layer."""

    def __init__(self, kind: type, **kwargs: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(60, 16)
        self.layer = kind(16, 24, batch_first=True, **kwargs)
        self.head = nn.LazyLinear(5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out, _ = self.layer(self.embedding(ids))
        return self.head(out[:, -1])


class _Translator(nn.Module):
    """PyTorch's own Transformer, with both masks."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(60, 32)
        self.body = nn.Transformer(32, 4, 2, 2, 48, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 60)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        padding = source == 3
        return self.head(
            self.body(
                self.embedding(source),
                self.embedding(target),
                tgt_mask=mask,
                tgt_is_causal=True,
                src_key_padding_mask=padding,
                memory_key_padding_mask=padding,
            )
        )


def _sequences(kind: type, **kwargs: Any) -> Model:
    model, inputs = _Sequences(kind, **kwargs), {"ids": _ids()}
    model(**inputs)
    return model, inputs


MODELS |= {
    "nn/lstm": lambda: _sequences(nn.LSTM),
    "nn/lstm_deep": lambda: _sequences(nn.LSTM, num_layers=2, bidirectional=True),
    "nn/lstm_projected": lambda: _sequences(nn.LSTM, proj_size=8),
    "nn/gru": lambda: _sequences(nn.GRU, num_layers=2),
    "nn/rnn": lambda: _sequences(nn.RNN, nonlinearity="relu"),
    "nn/transformer": lambda: (_Translator(), {"source": _ids(), "target": _ids(2, 7)}),
}
