"""`calque.record(...)`."""

import contextlib
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from calque.errors import tidy
from calque.state import MISSING
from calque.state.ownership import Owner
from calque.tracing.core.bytecode import (
    asks_class,
    asks_identity,
    assigns,
    catches,
    may_find,
    may_miss,
)
from calque.tracing.core.calling import bound_to
from calque.tracing.core.patching import Patches
from calque.tracing.core.recursion import deeper_recursion
from calque.tracing.graph import checks
from calque.tracing.graph.templates import is_plain
from calque.tracing.proxies.modules import Scripted
from calque.tracing.record.call_patches import entered, hold, new_tensors_apart
from calque.tracing.record.events import RecordedCall
from calque.tracing.record.inputs_outputs import (
    GivenContainer,
    containers_in,
    given_to,
    mapped,
    place_of,
    result_of,
)
from calque.tracing.record.keeping import Keeper
from calque.tracing.record.recorder import Recorder
from calque.tracing.record.recording import RAISED, FinishedRun, Recording
from calque.tracing.symbolic.changes import Change, held_in
from calque.tracing.symbolic.leaves import ModuleLeaves
from calque.tracing.symbolic.objects import function_of
from calque.tracing.symbolic.watching import StateWatch
from calque.upstream.torch_internals import LazyGraphModule, tree_leaves


def record(
    program: torch.nn.Module | Callable[..., Any],
    /,
    *args: Any,
    strict: bool = False,
    keep: str | Sequence[str] = (),
    edits: Mapping[str, Callable[[Any], Any]] | None = None,
    **kwargs: Any,
) -> Recording:
    """Run a program once, on real data, and record what it does, as it is written.

    Like `torch.jit.trace`, but at the level of modules and functions, and with the line of each
    call. What a graph could not repeat is checked when the graph runs, or refused.

    Args:
        program: a module, a method of a module, or any other function.
        *args: the arguments that it is called with.
        strict: whether to raise where the program reads a tensor's value into Python, instead of
            checking the value when a graph of the recording runs.
        keep: patterns (as in `fnmatch`) of the paths of modules whose results are kept, in
            `Recording.kept` and, after `backward()`, in `Recording.gradients`. `"*.attn:softmax"`
            matches the results of the function `softmax` in such modules. Nothing else of the run
            is kept.
        edits: a dict from such patterns to functions. A function takes the result of a call, and
            returns the value that the program continues with, of the same shape and dtype, or None
            to leave the result as it is. The edited program is recorded.
        **kwargs: the keyword arguments that it is called with.

    Returns:
        The recording. `recording.result` is what the program returned; `recording.graph()` is a
        graph of what it did.

    Raises:
        TraceError: the program does something that no recording can hold, such as drawing one of
            Python's random numbers; or, with `strict`, it reads a value.
        ValueError: a pattern matches nothing; the error names the nearest match.
        BaseException: whatever the program raises. The exception has an attribute `recording`,
            with what was recorded until then.

    >>> import calque, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
    >>> recording = calque.record(model, torch.ones(2, 4))
    >>> print([node.name for node in recording.graph(level="module").graph.nodes])
    ['input_1', '_0', '_1', 'output']
    """
    keeper = Keeper((keep,) if isinstance(keep, str) else keep, edits or {})
    return run_once(program, args, kwargs, strict, keeper)


def run_once(
    program: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    strict: bool,
    keeper: Keeper,
    put_back: bool = False,
) -> Recording:
    """Returns the recording of a run; see `record`.

    Args:
        put_back: whether to undo the run's changes of Python state.
    """
    if isinstance(program, torch.jit.ScriptModule):
        program = Scripted(program)
    LazyGraphModule.force_recompile(program)  # its code is generated at its first call
    root, method, function = _parts(program)
    recorder = Recorder(root, strict, keeper)
    watch = StateWatch(root, method, (args, kwargs), lambda *code: None)
    keeper.check_paths(recorder.paths)
    recorder.leaves = ModuleLeaves(watch.modules)
    recorder.local.is_main = True
    tape = FinishedRun(root, method, _name(function), function, recorder)
    recorder.code = tape.code
    recording = Recording(tape, recorder)
    bound = _give(tape, recorder, args, kwargs)
    call = program if isinstance(program, torch.nn.Module | types.MethodType) else function
    try:
        with new_tensors_apart() as created, Patches() as patches:
            hold(patches)
            is_foreseen = watch.foresee()
            running = contextlib.nullcontext() if is_foreseen else watch.running()
            recorder.generators = watch.generators
            recorder.follows_default_generator = not is_foreseen or watch.names_default_generator
            with deeper_recursion(), entered(recorder), running:
                result = call(*args, **kwargs)
            if recorder.refusal is not None:
                raise recorder.refusal  # which the program caught
            recorder.ended = True
            _end(tape, recorder, watch, result, created, bound)
        recording.result = result
        keeper.check_seen()
    except BaseException as error:  # includes interrupts
        recorder.problems.append(f"{RAISED} {type(error).__name__}, and did not end")
        with contextlib.suppress(Exception):  # the exception's class may refuse attributes
            error.recording = recording  # type: ignore[attr-defined]
        tidy(error)
        raise
    finally:
        recorder.ended = True
        if put_back:
            watch.restore()
        watch.forget()
        recorder.leaves.forget()
        recorder.values.forget()
    return recording


def _parts(program: Any) -> tuple[Any, str, Callable[..., Any]]:
    """Returns the recorded module or function, the name of the method, and the function."""
    if isinstance(program, torch.nn.Module):
        program = program._modules.get("_orig_mod", program)
        return program, "forward", type(program).forward
    if isinstance(program, types.MethodType) and isinstance(program.__self__, torch.nn.Module):
        name = program.__name__
        return program.__self__, name, getattr(type(program.__self__), name)
    if isinstance(program, types.FunctionType):
        return program, "forward", program
    called = function_of(program)
    return called, "forward", called


def _name(function: object) -> str:
    name = getattr(function, "__name__", "Recorded")
    return name if name.isidentifier() else "Recorded"


def _give(
    tape: FinishedRun, recorder: Recorder, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    first = (tape.root,) if isinstance(tape.root, torch.nn.Module) else ()
    bound = bound_to(tape.signature, tape.name, *first, *args, **kwargs)
    if first:
        del bound[next(iter(bound))]
    tape.arguments = given_to(recorder, bound, tape.twins)
    recorder.given_containers = containers_in(bound)
    tensors = [leaf for leaf in tree_leaves(bound) if isinstance(leaf, torch.Tensor)]
    for tensor in tensors:
        if tensor.layout is not torch.strided or tensor.is_nested:
            kind = "nested tensor" if tensor.is_nested else f"tensor of layout {tensor.layout}"
            recorder.problems.append(
                f"an argument is a {kind}, but a graph supports only dense tensors"
            )
    tape.classes = {recorder.values.of(tensor): checks.class_name(tensor) for tensor in tensors}
    for name, attribute in _with_attributes(bound):
        recorder.problems.append(
            f"a tensor in the argument {name} has the attribute {attribute}, which a graph does "
            "not read; pass it as a separate argument"
        )
    if first:
        for name, tensor in _members(tape.root):
            if recorder.values.of(tensor) is not None:
                recorder.problems.append(f"{name}, a tensor of the module, is also an argument")
    return bound


def _end(
    tape: FinishedRun,
    recorder: Recorder,
    watch: StateWatch,
    result: object,
    created: Callable[[], Collection[int] | None],
    bound: dict[str, Any],
) -> None:
    """Inspect what the program has changed, and set the recording's result."""
    recorder.end()
    tape.result = result_of(recorder, result)
    tape.assignments += recorder.attributes
    tape.asks_class, tape.asks_identity = watch.asks(asks_class), watch.asks(asks_identity)
    places = (event.place for event in tape.events if isinstance(event, RecordedCall))
    watch.ran.update((place[0], place[2]) for place in places if place is not None)
    changes, unrepeatable = watch.seen()
    owners = {id(vars(module.module)): module.module for module in watch.modules.values()}
    for module in list(owners.values()):
        owners[id(module._buffers)] = owners[id(module._parameters)] = module
    assigned, reordered = _assigned_by_graphs(tape), False
    for change in changes:
        key = change.key
        owner = owners.get(key[0])
        if (id(owner), key[1]) in assigned or isinstance(change.after, torch.ScriptMethod):
            continue  # a TorchScript module caches the methods that it has looked up
        if owner is not None and key[1] == "training" and type(change.after) is bool:
            tape.assignments.append((owner, "training", change.after))
            continue
        value = _computed(change.after, recorder)
        place: Any = owner if owner is not None else held_in(change)
        given = place_of(place, bound) if isinstance(place, dict) else None
        if value is not None and given is not None:
            tape.assignments.append((given, key[1], value))
            reordered |= _is_reordered(place, given, tape)
            continue
        if value is None or place is None or _is_found(change, recorder, watch):
            recorder.problems.append(
                f"{change.place}{change.name} {change.what}, which a graph would not repeat"
            )
        else:
            tape.assignments.append((place, key[1], value))
    if reordered:
        recorder.problems.append(
            "the program changes the order of the keys in a dictionary among its arguments, which "
            "a graph would not repeat; assign to a key without removing it"
        )
    recorder.problems += [f"{what}, which a graph would not repeat" for what in unrepeatable]
    recorder.problems += watch.sets_generators()
    recorder.problems += watch.hooks_nodes()
    for place in recorder.arguments.written_by_python():
        recorder.refuse_at(
            place, "Python writes to the memory of a tensor (through NumPy, for instance)"
        )
    for tensor, place in recorder.arguments.from_nowhere(created, watch.known):
        own = type(tensor) not in (torch.Tensor, torch.nn.Parameter)
        kind = f"{type(tensor).__name__}, a tensor of a class of its own," if own else "a tensor"
        recorder.refuse_at(place, f"{kind} is used that no recorded call has created")


def _is_reordered(dictionary: Any, place: GivenContainer, tape: FinishedRun) -> bool:
    """Returns True if a dictionary among the arguments has its old keys in a different order."""
    if place.is_object:
        return False
    before = place.found_in(tape.arguments)
    return [*dictionary][: len(before)] != [*before]


def _computed(given: Any, recorder: Recorder) -> Any:
    """Returns the recorded form of a tensor of the run, or of a container of such tensors;
    otherwise None.
    """
    if isinstance(given, torch.Tensor):
        return recorder.values.of(given)
    if id(given) in recorder.given_containers:
        return recorder.given_containers[id(given)]
    if not is_plain(given) or not given:
        return None
    parts = given.values() if isinstance(given, dict) else given
    made = [_computed(part, recorder) for part in parts]
    if any(part is None for part in made):
        return None
    return dict(zip(given, made)) if isinstance(given, dict) else type(given)(made)


def _is_found(change: Change, recorder: Recorder, watch: StateWatch) -> bool:
    """Returns True if the program may have read what it then replaced,
    or checked whether it exists.
    """
    if _is_tensor(change.before):
        return id(change.before) in recorder.arguments.outside
    name, may = change.key[1], may_miss if change.before is MISSING else may_find
    if not watch.asks(lambda code: assigns(code, name), Owner.PACKAGE):
        return True  # set by a computed name, so it may also be read by one
    caught = may is may_miss and watch.asks(catches)
    return caught or watch.asks(lambda code: may(code, name), Owner.PACKAGE)


def _assigned_by_graphs(tape: FinishedRun) -> set[tuple[int, Any]]:
    """Returns the attributes that graphs within the program have assigned, with the ids of the
    modules.
    """
    calls = [e for e in tape.events if isinstance(e, RecordedCall) and e.target is checks.assign]
    owners = [(call.args[0], call.args[1]) for call in calls]
    return {(id(getattr(owner, "held", owner)), name) for owner, name in owners}


def _with_attributes(bound: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the names of arguments whose tensors have Python attributes, with the attributes'
    names.
    """
    for name, given in bound.items():
        found: list[torch.Tensor] = []
        mapped(given, lambda leaf: found.append(leaf) if _is_tensor(leaf) else None)  # noqa: B023
        for tensor in found:
            kept = (key for key in getattr(tensor, "__dict__", {}) if not key.startswith("_"))
            yield from ((name, key) for key in kept)


def _members(root: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from root.named_parameters()
    yield from root.named_buffers()


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)
