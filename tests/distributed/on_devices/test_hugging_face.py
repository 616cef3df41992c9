"""transformers' models take their own plans to the device."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

import calque
from calque import sharding as sh
from calque.sharding import P

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers"),
    pytest.mark.conformance,
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM  # pyright: ignore[reportMissingImports]

    path = tmp_path_factory.mktemp("llama")
    sizes = {"num_attention_heads": 8, "num_key_value_heads": 8, "num_hidden_layers": 1}
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, **sizes)
    LlamaForCausalLM(config).save_pretrained(path)
    return path


def load(path: Path, **options: Any) -> Any:
    from transformers import AutoModelForCausalLM  # pyright: ignore[reportMissingImports]

    return AutoModelForCausalLM.from_pretrained(path, **options)


def losses(model: Any) -> list[float]:
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-3)

    def step(ids: torch.Tensor) -> torch.Tensor:
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    ids = torch.arange(64).reshape(8, 8).to(model.device)
    run = calque.jit(step) if model.device.type == "jax" else step
    found = [run(ids).item() for _ in range(3)]
    assert getattr(run, "history", [""]) in (["first call"], [""])
    return found


def test_a_tensor_parallel_plan_splits_the_model_over_all_devices(
    saved: Path, tmp_path: Path
) -> None:
    model = load(saved, tp_plan="auto")
    layer = model.model.layers[0]
    assert sh.placement(layer.mlp.up_proj.weight).local_shape == (8, 32)
    assert sh.placement(layer.mlp.down_proj.weight).spec == P(None, "tp")
    assert sh.placement(model.model.embed_tokens.weight).local_shape == (8, 32)
    assert sh.placement(model.model.norm.weight).spec == P()
    plain = load(saved)
    options = {"max_new_tokens": 2, "do_sample": False, "cache_implementation": "static"}
    ids = torch.arange(4)[None]
    assert (
        model.generate(ids.to("jax"), **options).tolist() == plain.generate(ids, **options).tolist()
    )
    assert losses(model) == pytest.approx(losses(plain), rel=0, abs=2e-6)
    model.save_pretrained(tmp_path)
    for name, value in load(tmp_path).state_dict().items():
        assert torch.equal(value, model.state_dict()[name].cpu())


def test_a_mesh_of_two_dimensions_splits_it_twice(saved: Path) -> None:
    from transformers.distributed import (  # pyright: ignore[reportMissingImports]
        DistributedConfig,
    )

    model = load(saved, distributed_config=DistributedConfig(tp_size=2, fsdp_size=4))
    assert sh.placement(model.model.layers[0].mlp.up_proj.weight).spec == P("tp", "fsdp")
    assert losses(model) == pytest.approx(losses(load(saved)), rel=0, abs=2e-6)
    assert sh.memory(model).share < 0.15


def test_pipelines_are_refused(saved: Path) -> None:
    from transformers.distributed import (  # pyright: ignore[reportMissingImports]
        DistributedConfig,
    )

    with pytest.raises(NotImplementedError, match="pp_size"):
        load(saved, distributed_config=DistributedConfig(tp_size=4, pp_size=2))
