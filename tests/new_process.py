"""Python programs that run in processes of their own, and find PyTorch and JAX imported.

To import both takes two seconds. So one process does, and every program runs in a copy of it, which
`os.fork` makes; at that time there is one thread, no device of JAX and no calque, which a program
imports itself. A program that wants to see Python start, or to be killed, is started as usual.
"""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any

_SERVER = "from tests.new_process import serve; serve()"
_ROOT = Path(__file__).parent.parent


def run(
    program: str | Path,
    *arguments: str,
    filter: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = 280,
) -> subprocess.CompletedProcess[str]:
    """Run a program as `python -c program` does, or a script as `python script` does.

    Args:
        program: the text, or the script's path.
        arguments: the program's.
        filter: what is done with warnings, as after `python -W`.
        env: the environment; that of the tests unless told.
        cwd: the folder that it is run in.
        timeout: the seconds after which it is killed.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        asked = {
            "program": str(program),
            "is_script": isinstance(program, Path),
            "arguments": arguments,
            "filter": filter,
            "env": dict(os.environ if env is None else env),
            "cwd": str(cwd or Path.cwd()),
        }
        try:
            status = _ask(asked, out, err, timeout)
        except BaseException:
            _server.cache_clear()  # its cached answers are valid only for this program
            raise
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(["python", *arguments], status, out.read(), err.read())


def check(program: str | Path, *arguments: str, **options: Any) -> None:
    """Run a program as `run` does; it has to end well."""
    done = run(program, *arguments, **options)
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


def _ask(asked: dict[str, Any], out: IO[str], err: IO[str], timeout: float) -> int:
    connection = _server()
    with tempfile.TemporaryFile("w+") as request:
        json.dump(asked, request)
        request.flush()
        files = [file.fileno() for file in (request, out, err)]
        socket.send_fds(connection, [b"run"], files)
    connection.settimeout(60)
    child = int(connection.recv(64))
    connection.settimeout(timeout)
    try:
        return os.waitstatus_to_exitcode(int(connection.recv(64)))
    except TimeoutError:
        os.kill(child, signal.SIGKILL)
        raise


@cache
def _server() -> socket.socket:
    """The connection to the process that is copied."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-c", _SERVER, str(theirs.fileno())]
        # NumPy starts its threads on import.
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=_ROOT, env=environment)

    def end() -> None:
        ours.close()
        process.wait(timeout=60)

    atexit.register(end)
    return ours


def serve() -> None:
    """Answers requests, each in a copy of this process; in a copy, runs the program."""
    import torch  # noqa: F401

    connection = socket.socket(fileno=int(sys.argv[1]))
    while True:
        _, files, _, _ = socket.recv_fds(connection, 8, 3)
        if not files:
            return
        child = os.fork()
        if child == 0:
            connection.close()
            break
        connection.send(b"%d" % child)
        for file in files:
            os.close(file)
        connection.send(b"%d" % os.waitpid(child, 0)[1])
    with os.fdopen(files[0]) as request:
        request.seek(0)
        asked = json.load(request)
    for number, file in enumerate(files[1:], 1):
        os.dup2(file, number)
        os.close(file)
    _become(asked)


def _become(asked: dict[str, Any]) -> None:
    """Runs the program; then this process ends as any other."""
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    name, text = "<string>", asked["program"]
    if asked["is_script"]:
        name, text = text, Path(text).read_text()
        sys.path[0] = str(Path(name).parent)
    sys.argv = [name if asked["is_script"] else "-c", *asked["arguments"]]
    if asked["filter"]:
        sys.warnoptions[:] = [asked["filter"]]
        warnings.simplefilter(asked["filter"])
    names = vars(sys.modules["__main__"])
    names.pop("serve")
    if asked["is_script"]:
        names["__file__"] = name
    try:
        exec(compile(text, name, "exec"), names)
    except SystemExit:
        raise
    except BaseException as error:
        # Without the frame of this function.
        trace = error.__traceback__ and error.__traceback__.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)
