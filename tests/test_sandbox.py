"Candidates that misbehave, each against the real sandbox."

# ruff: noqa: E501

import subprocess
import sys
import threading
import time

import pytest

from grpo_repro import sandbox
from grpo_repro.sandbox import Limits, Sandbox, SandboxMissing, check_sandbox

try:
    check_sandbox()
    missing = None
except SandboxMissing as error:
    missing = str(error)
needs_sandbox = pytest.mark.skipif(missing is not None, reason=str(missing))
QUICK = Limits(wall=3, cpu=1)
TEST = "def check(candidate):\n    assert candidate(4) == 8\n    assert candidate(-1) == -2"


def function(source: str, test: str = TEST, limits: Limits = QUICK, **more):
    return Sandbox(limits).run_function(source, "f", test, **more)


@needs_sandbox
def test_right_and_wrong_functions():
    assert function("def f(x): return 2 * x").passed
    verdict = function("def f(x): return x * x")
    assert not verdict.passed and verdict.why == "wrong"


@needs_sandbox
@pytest.mark.parametrize(
    "value",
    [
        "None",
        "True",
        "3",
        "-2.5",
        "float('inf')",
        "'a\\n\\u20ac\\x00'",
        "[1, (2, {3: 'x'}), {4}]",
        "{(1, 2): [b'\\xff', 1j]}",
        "frozenset({1})",
        "2**100",
        "[]",
        "{}",
    ],
)
def test_plain_values_survive_the_way_there_and_back(value):
    assert function(
        "def f(x): return x", f"def check(candidate):\n    v = {value}\n    got = candidate(v)\n    assert got == v and type(got) is type(v), got"
    ).passed


@needs_sandbox
@pytest.mark.parametrize(
    "source, why",
    {
        "exits before the tests": ("import os; os._exit(0)", "died"),
        "exits during the tests": ("import os\ndef f(x): os._exit(0)", "died"),
        "raises SystemExit(0)": ("import sys\ndef f(x): sys.exit(0)", "error"),
        "equal to everything": ("class S:\n    __eq__ = lambda s, o: True\ndef f(x): return S()", "error"),
        "an int equal to everything": ("class S(int):\n    __eq__ = lambda s, o: True\ndef f(x): return S()", "wrong"),
        "writes a verdict": ('import os, sys\nfor fd in range(3, 1000):\n    try: os.write(fd, b\'["passed", ""]\')\n    except OSError: pass\nprint(\'["passed", ""]\', flush=True)\nos._exit(0)', None),
        "answers twice": ("import json\ndef f(x):\n    for fd in range(3, 1000):\n        try: __import__('os').write(fd, b'[\"passed\", \"\"]\\n')\n        except OSError: pass\n    return 0", None),
        "sends what is not a value": ("import os\ndef f(x):\n    for fd in range(3, 1000):\n        try: os.write(fd, b'[' * 100000 + b'\\n')\n        except OSError: pass\n    return 2 * x", "died"),
        "sleeps": ("import time\ndef f(x): time.sleep(60)", "time"),
        "loops": ("def f(x):\n    while True: pass", "time"),
        "loops while loading": ("while True: pass", "time"),
        "swallows every exception": ("import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\ndef f(x):\n    while True:\n        try:\n            while True: pass\n        except BaseException: pass", None),
        "eats memory": ("def f(x): return len(bytearray(4 << 30)) and 2 * x", "error"),
        "writes a gigabyte": ("def f(x):\n    with open('/tmp/big', 'wb') as file:\n        for _ in range(1 << 10): file.write(bytes(1 << 20))\n    return 2 * x", None),
        "writes many files": ("def f(x):\n    for i in range(1 << 10): open(f'/tmp/{i}', 'wb').write(bytes(1 << 19))\n    return 2 * x", "error"),
        "writes outside tmp": ("def f(x):\n    open('/usr/lib/x', 'w')", "error"),
        "fills shared memory": ("def f(x):\n    open('/dev/shm/x', 'wb').write(bytes(1 << 19))\n    return 2 * x", "error"),
        "prints a gigabyte": ("def f(x):\n    for _ in range(1 << 10): print('x' * (1 << 20))\n    return 2 * x", "output"),
        "opens a socket": ("import socket\ndef f(x):\n    socket.create_connection(('127.0.0.1', PORT), 1)\n    return 2 * x", "error"),
        "reads /etc/passwd": ("def f(x): return len(open('/etc/passwd').read()) and 2 * x", "error"),
        "looks for keys": ("import os\ndef f(x): return os.environ['OPENAI_API_KEY'] and 2 * x", "error"),
        "kills all it can": ("import os\ndef f(x):\n    try: os.kill(-1, 9)\n    except OSError: pass\n    os.kill(os.getpid(), 9)", "died"),
        "does not parse": ("def f(x: return", "error"),
        "nested too deeply": ("def f(x):\n    y = []\n    for _ in range(10**5): y = [y]\n    return y", "error"),
        "an endless number": ("def f(x): return 10 ** 10000", "error"),
        "is not there": ("g = 1", "error"),
    }.values(),
    ids=lambda v: None if v is None or "\n" in v or " " in v else v,
)  # fmt: skip
def test_nobody_passes_without_solving(source, why, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    start = time.monotonic()
    verdict = function(source.replace("PORT", "9"))
    assert not verdict.passed and (why is None or verdict.why == why), verdict
    assert time.monotonic() - start < QUICK.wall + 3


@needs_sandbox
def test_a_fork_bomb_is_contained_and_leaves_nothing():
    bomb = "import os, time\ndef f(x):\n    n = 0\n    while True:\n        try: pid = os.fork()\n        except OSError: raise ValueError(n)\n        if pid == 0: time.sleep(600)\n        n += 1"
    test = "def check(candidate):\n    try: candidate(4)\n    except ValueError: return\n    assert False"
    assert function(bomb, test).passed  # the fork was refused
    time.sleep(0.3)
    assert "time.sleep(600)" not in subprocess.run(["ps", "-eww", "-o", "args"], capture_output=True, text=True).stdout


@needs_sandbox
def test_a_socket_on_this_machine_cannot_be_reached():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        verdict = function(f"import socket\ndef f(x):\n    socket.create_connection(('127.0.0.1', {port}), 1)\n    return 2 * x")
    assert verdict.why == "error"


@needs_sandbox
def test_killing_the_parent_does_not_reach_us():
    verdict = function("import os, signal\ndef f(x):\n    os.kill(os.getppid(), signal.SIGKILL)\n    return 2 * x")
    assert verdict.why in ("passed", "error")  # ignored (the parent is the sandbox's own first process), or not permitted
    assert function("def f(x): return 2 * x").passed  # and the next run works


@needs_sandbox
def test_expected_exceptions_and_calls_by_name():
    test = "def check(candidate):\n    try: candidate(1)\n    except ValueError: pass\n    else: assert False\n    assert f(2) == 2"
    assert function("def f(x):\n    if x == 1: raise ValueError\n    return x", test, setup="def f(x): pass").passed


@needs_sandbox
def test_programs():
    run = lambda source, **case: Sandbox(QUICK).run_cases(source, [{"input": "3 4", "output": "7\n"} | case])
    assert run("print(sum(map(int, input().split())))").passed
    assert run("print(7)").passed and run("print(' 7 ')").passed and run("print(8)").why == "wrong"
    assert run("import os; os._exit(0)").why == "wrong" and run("import sys; print(7); sys.exit(3)").why == "error"
    assert run("import time; time.sleep(60)").why == "time" and run("while True: pass").why == "time"
    assert run("while True: print('x' * 10000)").why == "output"
    assert run("print(7)", input="x" * (1 << 22)).passed  # never read: nothing blocks


@needs_sandbox
def test_side_by_side_from_threads():
    found = [None] * 6
    work = lambda i: found.__setitem__(i, Sandbox(QUICK, number=i).run_function(f"def f(x): return {i} * x", "f", "def check(c): assert c(3) == 6"))
    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert [v.passed for v in found] == [False, False, True, False, False, False]


@needs_sandbox
def test_the_sandbox_dies_with_us():
    code = "from grpo_repro.sandbox import *; Sandbox(Limits(wall=100, cpu=100)).run_program('import time; time.sleep(40 + ' + '4.25)', '')"
    process = subprocess.Popen([sys.executable, "-c", code])
    alive = lambda: "time.sleep(40 + 4.25)" in subprocess.run(["ps", "-eww", "-o", "args"], capture_output=True, text=True).stdout
    for _ in range(100):
        time.sleep(0.1)
        if alive():
            break
    assert alive()
    process.kill()
    process.wait()
    for _ in range(50):
        time.sleep(0.1)
        if not alive():
            break
    assert not alive()


def test_without_bubblewrap_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(sandbox, "_CHECKED", [])
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SandboxMissing, match="apt-get install bubblewrap"):
        Sandbox()
