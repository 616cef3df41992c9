"""Text generation with Hugging Face transformers on the device "jax".

A small Llama with random weights continues two prompts greedily, by sampling and by beam search,
with the cache that grows and with the one of fixed size. Nothing in it is written for calque but
`.to("jax")`.

    pip install transformers
    python examples/generate.py
"""

import copy

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import calque  # noqa: F401  (registers the device)

WAYS = {
    "greedy": {"do_sample": False},
    "beam search": {"do_sample": False, "num_beams": 3},
    "greedy, static cache": {"do_sample": False, "cache_implementation": "static"},
    "beam search, static cache": {
        "do_sample": False,
        "num_beams": 2,
        "cache_implementation": "static",
    },
    "sampling": {"do_sample": True, "top_k": 10, "top_p": 0.9, "temperature": 0.8},
    "sampling, static cache": {"do_sample": True, "cache_implementation": "static"},
}


def main() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    reference = LlamaForCausalLM(config).eval()
    model = copy.deepcopy(reference).to("jax")
    prompts = torch.randint(3, 60, (2, 5))
    mask = torch.ones_like(prompts)
    mask[1, :2] = 0  # the second prompt is shorter
    for name, settings in WAYS.items():
        settings = {**settings, "max_new_tokens": 4}

        def generate(seed: int, settings: dict = settings) -> list[list[int]]:
            torch.manual_seed(seed)
            tokens = model.generate(prompts.to("jax"), attention_mask=mask.to("jax"), **settings)
            return tokens.tolist()

        got = generate(seed=1)
        if settings["do_sample"]:
            assert got == generate(seed=1) != generate(seed=2), name
            verdict = "the same tokens for the same seed"
        else:
            want = reference.generate(prompts, attention_mask=mask, **settings).tolist()
            assert got == want, name
            verdict = "the tokens of the CPU"
        print(f"{name:26} {got[0][5:]}  {verdict}")


if __name__ == "__main__":
    main()
