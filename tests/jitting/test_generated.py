"""The source of generated functions: what stands in it, and what its code is."""

import gc
import re

import pytest
import torch
from torch import nn

import calque
from calque.device.runtime import interrupts
from calque.jitting.generated import source as generated
from calque.jitting.generated.source import MISS, GeneratedFunction


@pytest.fixture
def texts(monkeypatch):
    found, compiled = [], generated._compiled

    def noted(text):
        found.append(text)
        return compiled(text)

    monkeypatch.setattr(generated, "_compiled", noted)
    return found


class Peculiar(nn.Module):
    def __init__(self):
        super().__init__()
        self.zanzibar = nn.Parameter(torch.full((3,), 2.0))
        self.options = {"x'); print('quagga": 3.0}

    def forward(self, x):
        return x * self.zanzibar * self.options["x'); print('quagga"]


def call(function, *args):
    for _ in range(5):
        function(*args)


def test_nothing_of_the_program_stands_in_the_source(texts):
    run = calque.jit(Peculiar().to("jax"))
    with torch.no_grad():
        call(run, torch.ones(3, device="jax"))
    assert texts
    words = set(re.findall(r"[A-Za-z_]\w*", "\n".join(texts)))
    assert not any(word in words for word in ("zanzibar", "quagga", "Peculiar", "print"))
    assert not re.search(r"['\"]", "\n".join(texts).replace('"jax"', ""))


def test_programs_of_one_form_are_compiled_once():
    calls, compiled = [], []
    for factor in (2, 3):
        weight = torch.full((3,), float(factor)).to("jax")
        run = calque.jit(lambda x, weight=weight: x + weight)
        call(run, torch.ones(3, device="jax"))
        assert run(torch.ones(3, device="jax")).tolist() == [1.0 + factor] * 3
        calls.append(run._fast.alone.__code__)
        compiled.append(generated._compiled.cache_info().misses)
    assert compiled[0] == compiled[1]
    assert calls[0] == calls[1] and calls[0] is not calls[1]


def test_an_object_has_one_name():
    source, value = GeneratedFunction("args"), object()
    source.line("return {} is {}, {}", value, value, MISS)
    assert source.function()(()) == (True, MISS)


@pytest.mark.usefixtures("few_objects")
def test_handlers_wait_for_generated_code_while_it_exists():
    code = compile("1", "<test>", "exec")
    interrupts.settles_in(code)
    key = id(code)
    assert key in interrupts._generated
    del code
    gc.collect()
    assert key not in interrupts._generated
