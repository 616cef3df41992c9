"""Language models of transformers, small, by class, config and inputs: `TRANSFORMERS`."""

import os
from collections.abc import Callable
from typing import Any

from torch import nn

from tests.conformance.transformers_settings import (
    DECODER,
    GPT2,
    LINEAR_ATTENTION,
    MOE,
    SEQ2SEQ,
    T5,
    TEXT,
    classes,
    ids,
    language,
    span,
    translation,
)

TRANSFORMERS: dict[str, tuple[str, str, dict[str, Any], Callable[[], dict[str, Any]]]] = {
    "bert": ("BertForMaskedLM", "BertConfig", TEXT, language),
    "bert_classes": ("BertForSequenceClassification", "BertConfig", TEXT, classes),
    "bert_span": ("BertForQuestionAnswering", "BertConfig", TEXT, span),
    "bert_eager_attention": (
        "BertForMaskedLM",
        "BertConfig",
        {**TEXT, "attn_implementation": "eager"},
        language,
    ),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", TEXT, language),
    "distilbert": (
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        {"vocab_size": 60, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
        language,
    ),
    "electra": (
        "ElectraForMaskedLM",
        "ElectraConfig",
        {**TEXT, "embedding_size": 16},
        language,
    ),
    "albert": ("AlbertForMaskedLM", "AlbertConfig", {**TEXT, "embedding_size": 16}, language),
    "deberta": (
        "DebertaForMaskedLM",
        "DebertaConfig",
        {**TEXT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
        language,
    ),
    "deberta_v2": (
        "DebertaV2ForMaskedLM",
        "DebertaV2Config",
        {**TEXT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
        language,
    ),
    "roformer": ("RoFormerForMaskedLM", "RoFormerConfig", TEXT, language),
    "modernbert": ("ModernBertForMaskedLM", "ModernBertConfig", DECODER, language),
    "mpnet": ("MPNetForMaskedLM", "MPNetConfig", TEXT, language),
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
        language,
    ),
    "longformer": (
        "LongformerForMaskedLM",
        "LongformerConfig",
        {**TEXT, "attention_window": 4},
        language,
    ),
    "big_bird": (
        "BigBirdForMaskedLM",
        "BigBirdConfig",
        {**TEXT, "attention_type": "original_full"},
        language,
    ),
    "fnet": (
        "FNetForMaskedLM",
        "FNetConfig",
        TEXT,
        lambda: {"input_ids": (x := ids()), "labels": x.clone()},
    ),
    "xlnet": (
        "XLNetLMHeadModel",
        "XLNetConfig",
        {"vocab_size": 60, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48},
        language,
    ),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2, language),
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
        language,
    ),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", TEXT, language),
    "gptj": ("GPTJForCausalLM", "GPTJConfig", {**GPT2, "rotary_dim": 4}, language),
    "llama": ("LlamaForCausalLM", "LlamaConfig", DECODER, language),
    "mistral": (
        "MistralForCausalLM",
        "MistralConfig",
        {**DECODER, "sliding_window": 4},
        language,
    ),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", DECODER, language),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", DECODER, language),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", DECODER, language),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {**DECODER, "sliding_window": 4}, language),
    "gemma3": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {**DECODER, "sliding_window": 4},
        language,
    ),
    "phi": ("PhiForCausalLM", "PhiConfig", DECODER, language),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", DECODER, language),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", DECODER, language),
    "cohere": ("CohereForCausalLM", "CohereConfig", DECODER, language),
    "stablelm": ("StableLmForCausalLM", "StableLmConfig", DECODER, language),
    "falcon": (
        "FalconForCausalLM",
        "FalconConfig",
        {**TEXT, "bos_token_id": 1, "eos_token_id": 2},
        language,
    ),
    "falcon_alibi": (
        "FalconForCausalLM",
        "FalconConfig",
        {**TEXT, "alibi": True, "bos_token_id": 1, "eos_token_id": 2},
        language,
    ),
    "opt": (
        "OPTForCausalLM",
        "OPTConfig",
        {**TEXT, "ffn_dim": 48, "word_embed_proj_dim": 32, "pad_token_id": 0},
        language,
    ),
    "bloom": (
        "BloomForCausalLM",
        "BloomConfig",
        {"vocab_size": 60, "hidden_size": 32, "n_layer": 2, "n_head": 4},
        language,
    ),
    "mpt": (
        "MptForCausalLM",
        "MptConfig",
        {"vocab_size": 60, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 32},
        language,
    ),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", MOE, language),
    "qwen2_moe": (
        "Qwen2MoeForCausalLM",
        "Qwen2MoeConfig",
        {**MOE, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
        language,
    ),
    "mamba": (
        "MambaForCausalLM",
        "MambaConfig",
        {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
        language,
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
        language,
    ),
    "recurrent_gemma": (
        "RecurrentGemmaForCausalLM",
        "RecurrentGemmaConfig",
        {**DECODER, "num_hidden_layers": 3, "attention_window_size": 4, "lru_width": 32},
        language,
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
            **MOE,
            **LINEAR_ATTENTION,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
            "layer_types": ["linear_attention", "full_attention"],
        },
        language,
    ),
    "t5": ("T5ForConditionalGeneration", "T5Config", T5, translation),
    "bart": ("BartForConditionalGeneration", "BartConfig", SEQ2SEQ, translation),
    "marian": ("MarianMTModel", "MarianConfig", SEQ2SEQ, translation),
    "pegasus": ("PegasusForConditionalGeneration", "PegasusConfig", SEQ2SEQ, translation),
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
