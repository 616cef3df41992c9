"""Hooks of all optimizers come and go while other threads are in a step."""

import threading

import torch

from calque.program.step_hooks import step_hooks


def test_a_step_goes_on_when_hooks_end_meanwhile():
    optimizer = torch.optim.SGD([torch.ones(2, requires_grad=True)])
    begun, ended = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def wait(*step):
        begun.set()
        assert ended.wait(60)

    def train():
        try:
            optimizer.step()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=train)
    with step_hooks(wait, lambda *_: None):
        thread.start()
        assert begun.wait(60)
    ended.set()
    thread.join()
    assert errors == []


def test_each_step_calls_the_hooks_of_the_moment():
    optimizer = torch.optim.SGD([torch.ones(2, requires_grad=True)])
    seen: list[str] = []
    with step_hooks(lambda *_: seen.append("before"), lambda *_: seen.append("after")):
        optimizer.step()
        with step_hooks(lambda *_: seen.append("inner"), lambda *_: None):
            optimizer.step()
    optimizer.step()
    assert seen == ["before", "after", "before", "inner", "after"]
