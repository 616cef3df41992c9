"""The command line: text, JSON, exit statuses."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from calque_cli.as_cuda import standing_in
from calque_cli.main import VERBS, command, main
from tests import new_process

PROGRAMS = "tests.cli.programs"


def run(*arguments, **options):
    return CliRunner().invoke(command, list(arguments), catch_exceptions=False, **options)


def test_help_names_every_verb():
    shown = run("--help")
    assert shown.exit_code == 0
    assert all(verb in shown.output for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb):
    shown = run(verb, "--help")
    assert shown.exit_code == 0
    assert "Usage: " in shown.output


def test_help_and_version_and_what_starts_processes_import_no_torch():
    program = """
import sys
from calque_cli.main import main
assert main(["--help"]) == 0
assert main(["ops", "--help"]) == 0
assert main(["--version"]) == 0
assert main(["launch", "-n", "0", "program.py"]) == 2
slow = {"torch", "jax", "calque", "numpy"} & set(sys.modules)
assert not slow, slow
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert b"calque 0." in done.stdout


def test_explain_tells_doors_and_costs():
    shown = run("explain", f"{PROGRAMS}:net", "--json")
    report = json.loads(shown.stdout)
    assert shown.exit_code == 0
    assert report["captured"]
    assert report["flops"] > 0
    assert "aten::addmm" in {one["name"] for one in report["operators"]}


def test_explain_of_what_no_door_takes_is_status_1():
    shown = run("explain", f"{PROGRAMS}:loop", "-i", "3")
    assert shown.exit_code == 1
    assert "torch.while_loop" in shown.output


def test_trace_prints_the_graph():
    shown = run("trace", f"{PROGRAMS}:Net", "-i", "float32[4,3]")
    assert shown.exit_code == 0
    assert "relu" in shown.output
    nodes = json.loads(run("trace", f"{PROGRAMS}:Net", "-i", "4x3", "--json").stdout)
    assert nodes[-1]["op"] == "output"


def test_what_cannot_be_traced_is_status_1_with_the_remedy():
    shown = run("trace", f"{PROGRAMS}:loop", "-i", "3")
    assert shown.exit_code == 1
    assert "torch.while_loop" in shown.stderr


def test_a_page_in_no_folder_is_a_wrong_command_line(tmp_path, capsys):
    assert main(["show", "net.py:Net", "--html", str(tmp_path / "none" / "page.html")]) == 2
    assert f"there is no folder {tmp_path / 'none'}" in capsys.readouterr().err


def test_record_and_show(tmp_path):
    assert "linear" in run("record", f"{PROGRAMS}:net").output
    page = tmp_path / "net.html"
    assert run("show", f"{PROGRAMS}:net", "--html", str(page)).exit_code == 0
    assert "<html" in page.read_text()
    assert "Net" in run("show", f"{PROGRAMS}:net").output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nosuch:net"], "there is no module nosuch"),
        (["net"], "does not have the form MODULE:NAME"),
        ([f"{PROGRAMS}:nett"], "has no 'nett'; it has"),
        ([f"{PROGRAMS}:number"], "must be a module or a function"),
        ([f"{PROGRAMS}:net", "-i", "three"], "'three' is not a valid input: write 2x3"),
        (["nosuch.py:net"], "there is no file nosuch.py"),
    ],
)
def test_a_wrong_program_is_status_2_and_says_what_to_write(arguments, said):
    shown = run("trace", *arguments)
    assert shown.exit_code == 2
    assert said in shown.stderr


@pytest.mark.parametrize("verb", ["trace", "record", "show", "bench"])
def test_a_program_that_fails_is_told_by_its_own_lines(verb, capsys):
    assert main([verb, f"{PROGRAMS}:wrong", "-i", "2x3"]) == 1
    said = capsys.readouterr().err
    assert "is invalid for input of size 6" in said
    assert len(said.splitlines()) < 8 and "click" not in said, said
    assert "programs.py" in said, said
    assert main([verb, f"{PROGRAMS}:wrong", "-i", "2x3", "--json"]) == 1
    assert "RuntimeError: shape" in json.loads(capsys.readouterr().out)["error"]


def test_a_program_that_cannot_be_imported_is_told_so(tmp_path, capsys):
    (tmp_path / "broken.py").write_text("import torch\nnot_there\n")
    assert main(["trace", f"{tmp_path / 'broken.py'}:net"]) == 1
    said = capsys.readouterr().err
    assert "name 'not_there' is not defined" in said and "click" not in said, said


def test_explain_reports_what_the_compiler_logs(caplog):
    shown = run("explain", f"{PROGRAMS}:net", "-i", "4x7")
    assert "torch.compile: no" in shown.output
    assert not caplog.records


def test_bench_gives_ratios():
    rows = json.loads(run("bench", f"{PROGRAMS}:net", "--seconds", "0.02", "--json").stdout)
    assert [row["way"] for row in rows][-1] == "calque.jit"
    assert rows[0]["ratio"] == 1


def test_demo_trains_three_ways_alike():
    rows = json.loads(run("demo", "--steps", "30", "--json").stdout)
    first, *others = rows
    for row in others:
        assert row["losses"][0] == pytest.approx(first["losses"][0], abs=1e-5)
        assert row["losses"][-1] == pytest.approx(first["losses"][-1], abs=1e-2)
    assert first["losses"][-1] < first["losses"][0]


def test_doctor_tries_every_door():
    shown = run("doctor", "--json")
    found = json.loads(shown.stdout)
    assert shown.exit_code == 0, found
    assert found["versions"]["torch"]
    assert {row["status"] for row in found["checks"]} <= {"ok", "skipped"}
    assert len(found["checks"]) > 8


def test_no_colour_where_none_is_wanted():
    coloured = run("trace", f"{PROGRAMS}:loop", "-i", "3", color=True)
    plain = run("trace", f"{PROGRAMS}:loop", "-i", "3", color=True, env={"NO_COLOR": "1"})
    assert "\x1b[" in coloured.stderr
    assert "\x1b[" not in plain.stderr


def test_completion_is_printed():
    assert "_CALQUE_COMPLETE" in run("completion", "bash").output


def test_launch_refuses_what_is_no_job():
    shown = run("launch", "-n", "0", "program.py")
    assert shown.exit_code == 2
    assert "at least one process" in shown.stderr


SCRIPT = """
import sys
import torch
import torch.nn as nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Linear(3, 1).to(device)
other = nn.Linear(3, 1).cuda()
x = torch.ones(2, 3, device=device)
y = torch.ones(2, 3).cuda() + torch.zeros(3, device="cuda:0")
with torch.autocast("cuda", dtype=torch.bfloat16):
    half = model(x)
loss = (model(x) + other(y)).sum()
loss.backward()
torch.cuda.synchronize()
print(sys.argv[1:], loss.device.type, half.dtype, next(other.parameters()).grad.device.type)
print(torch.ones(1).device.type)
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("default", [False, True])
def test_a_script_for_cuda_runs_on_the_device(tmp_path, default):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    options = ["--cpu-too"] if default else []
    program = "import sys; from calque_cli.main import main; sys.exit(main())"
    done = new_process.run(program, "run", *options, str(script), "--epochs", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "['--epochs', '3'] cuda torch.bfloat16 cuda",
        "cuda" if default else "cpu",
    ]


CUDA_SCRIPT = """
from concurrent.futures import ThreadPoolExecutor

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Linear(3, 2).cuda()
x = torch.ones(4, 3).cuda(non_blocking=True)
assert x.is_cuda and next(model.parameters()).is_cuda and not torch.ones(1).is_cuda
assert x.type() == "torch.cuda.FloatTensor" and isinstance(x, torch.cuda.FloatTensor)
image = torch.ones(1, 2, 3, 3).cuda(memory_format=torch.channels_last)
assert image.is_cuda and image.stride() == (18, 1, 6, 2)
assert not isinstance(x.half(), torch.cuda.FloatTensor)
assert x.device == torch.device("cuda:0") and x.device != torch.device("cuda")
assert torch.ones(1).type(torch.cuda.HalfTensor).dtype == torch.float16
assert torch.cuda.LongTensor([1, 2]).is_cuda and torch.zeros(1).type("torch.cuda.IntTensor").is_cuda

assert x.device.type == "cuda" and x.device.index == 0 and "jax" in str(x)
device = torch.device("cuda", 0)
assert torch.zeros(2, device=device).device == device == torch.zeros_like(x).device
assert model.to(device) is model and nn.Linear(1, 1, device=device).weight.device == device
with device:
    assert torch.ones(1).device == device
with torch.autocast(x.device.type):
    assert torch.is_autocast_enabled() and torch.is_autocast_enabled("cuda")
    assert torch.get_autocast_dtype("cuda") == torch.get_autocast_gpu_dtype()
torch.set_default_device("cuda")
assert torch.ones(1).device == device
torch.set_default_device("cpu")
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
torch.manual_seed(0)
packed = nn.utils.rnn.pack_sequence([x, x[:2]]).to(device)
assert packed.is_cuda and packed.data.device == device



class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        assert grad.is_cuda
        return grad + torch.ones(1, device="cuda")


leaf = torch.ones(2, device="cuda", requires_grad=True)
Doubled.apply(leaf).sum().backward()
assert leaf.grad.tolist() == [2, 2]
compiled = torch.compile(lambda x: model(x) + torch.ones(2, device="cuda"), mode="max-autotune")
assert torch._dynamo.explain(model)(x).graph_break_count == 0
torch.testing.assert_close(compiled(x), model(x) + 1)
both = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
with torch.profiler.profile(activities=both) as profile:
    model(x)
assert any("linear" in row.key for row in profile.key_averages())
torch.cuda.random.set_rng_state(torch.cuda.random.get_rng_state())
torch.cuda.memory.empty_cache()
torch.manual_seed(0)
rows = DataLoader(TensorDataset(torch.ones(6, 3)), batch_size=2, num_workers=1, pin_memory=True,
                  shuffle=True, worker_init_fn=torch.cuda.manual_seed)
assert [model(row.to(device)).shape[0] for (row,) in rows] == [2, 2, 2]
with ThreadPoolExecutor(1) as pool:
    assert pool.submit(lambda: torch.ones(1).cuda().is_cuda).result()

before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
before.record()
with torch.cuda.stream(torch.cuda.Stream(device="cuda")), torch.cuda.device("cuda:0"):
    torch.cuda.nvtx.range_push("step")
    y = torch.cuda.nvtx.range("forward")(model.forward)(x)
    torch.cuda.nvtx.range_pop()
x.record_stream(torch.cuda.current_stream())
after.record()
torch.cuda.synchronize("cuda:0")
assert before.elapsed_time(after) > 0
assert nn.DataParallel(model, device_ids=[0])(x).equal(y)

properties = torch.cuda.get_device_properties(0)
assert properties.name == torch.cuda.get_device_name() and properties.total_memory > 1e6
assert torch.cuda.get_device_capability() >= (8, 0) and torch.cuda.is_bf16_supported()
assert torch.cuda.max_memory_reserved() >= torch.cuda.memory_reserved() > 0
assert "bytes in use" in torch.cuda.memory_summary()
with torch.cuda.amp.autocast(dtype=torch.bfloat16):
    assert model(x).dtype == torch.bfloat16
torch.cuda.amp.GradScaler().scale(model(x).sum()).backward()

save_file(model.state_dict(), "state.safetensors")
assert load_file("state.safetensors", device="cuda")["bias"].is_cuda
assert torch.empty(2, pin_memory=True).cuda(non_blocking=True).is_cuda
torch.save(model.state_dict(), "state.pt")
for where in ("cuda:0", {"cuda:0": "cuda:0"}, lambda storage, _: storage.cuda(0), None):
    assert torch.load("state.pt", map_location=where)["bias"].is_cuda
for where in ("cpu", {"cuda:0": "cpu"}, lambda storage, _: storage):
    assert not torch.load("state.pt", map_location=where)["bias"].is_cuda

torch.set_default_tensor_type("torch.cuda.DoubleTensor")
assert torch.ones(1).is_cuda and torch.ones(1).dtype == torch.float64
torch.set_default_tensor_type("torch.FloatTensor")
assert not torch.ones(1).is_cuda
assert torch.cuda.Stream | torch.cuda.CUDAGraph | torch.cuda.Event | torch.cuda.FloatTensor | None
for refused in (
    lambda: torch.cuda.CUDAGraph(),
    lambda: torch.cuda.utilization(),
    lambda: torch.Generator("cuda"),
):
    try:
        refused()
    except NotImplementedError as error:
        assert "calque.jit" in str(error) or "jax" in str(error)
    else:
        raise AssertionError(refused)
print("done")
1 / 0
"""


def fails_in_its_last_line(folder, script, *what):
    """Whether `calque run` prints what the script does, and then its error at its own line."""
    (folder / "for_cuda.py").write_text(script)
    program = "import sys; from calque_cli.main import main; sys.exit(main())"
    done = new_process.run(program, "run", *what, cwd=folder)
    assert done.stdout == "done\n", done.stderr
    assert done.returncode == 1
    traceback = done.stderr[done.stderr.index("Traceback") :].splitlines()
    assert traceback[1].endswith(f"line {script.count(chr(10))}, in <module>"), traceback
    return traceback[-1] == "ZeroDivisionError: division by zero" and len(traceback) <= 5


def test_what_scripts_ask_of_cuda_is_answered_or_refused_by_name(tmp_path):
    assert fails_in_its_last_line(tmp_path, CUDA_SCRIPT, "for_cuda.py")


def test_a_module_for_cuda_runs_as_a_script_does(tmp_path):
    script = """
import torch
x = torch.ones(2, 3).cuda()
assert __name__ == "__main__" and x.is_cuda and torch.zeros(1, device="cuda").device == x.device
print("done")
1 / 0
"""
    assert fails_in_its_last_line(tmp_path, script, "-m", "for_cuda")


def test_a_verb_that_is_misspelt_is_answered_with_the_nearest():
    for wrong, right in (("explian", "explain"), ("record_", "record"), ("op", "ops")):
        shown = run(wrong)
        assert shown.exit_code == 2
        assert f"no command '{wrong}'" in shown.output and right in shown.output
    assert "See calque --help" in run("zzz").output


def test_classes_of_cuda_stay_classes():
    classes = [name for name, one in vars(torch.cuda).items() if isinstance(one, type)]
    with standing_in():
        found = [name for name in classes if not isinstance(getattr(torch.cuda, name), type)]
    assert len(classes) > 10 and found == []


def test_what_functions_of_cuda_hold_is_there():
    held = {
        name: one.__wrapped__
        for name, one in vars(torch.cuda).items()
        if hasattr(one, "__wrapped__") and name[0] != "_"
    }
    with standing_in():  # PyTorch modules imported inside read it
        found = {name: getattr(torch.cuda, name).__wrapped__ for name in held}
    assert held and found == held


def test_a_script_without_devices_goes_between_numpy_and_the_device():
    with standing_in(default=True):
        x = torch.from_numpy(np.ones(3, np.float32))
        assert x.device.type == "cuda"
        assert (x * 2).numpy().tolist() == [2.0, 2.0, 2.0]
        assert np.asarray(x).sum() == 3.0
    assert x.device.type == "jax"
    assert torch.from_numpy(np.ones(3)).device.type == "cpu"


def test_a_closed_pipe_is_no_traceback():
    reading = f"{sys.executable} -m calque ops | head -2"
    done = subprocess.run(reading, shell=True, capture_output=True, text=True, env=os.environ)
    assert len(done.stdout.splitlines()) == 2
    assert done.stderr == ""


def test_main_gives_the_status(capsys):
    assert main(["ops", "relu"]) == 0
    assert main(["nosuch"]) == 2
    assert "there is no command 'nosuch'" in capsys.readouterr().err
