"The grader against hostile text, other threads, and 800 real responses."

import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from grpo_repro.rewards import MathGrader, RewardError, call_reward, load_reward, math_reward


@pytest.fixture(scope="module")
def grader():
    g = MathGrader(workers=2, timeout=3.0)
    yield g
    g.close()


HOSTILE = [
    "$\\boxed{9^{9^{9^{9^9}}}}$",
    "\\boxed{" + "(" * 4000 + "1" + ")" * 4000 + "}",
    "$" + "\\frac{1}{" * 800 + "2" + "}" * 800 + "$",
    "\\boxed{\\int_0^\\infty \\sum_{k=1}^{99999} \\sin(x^{k!})dx}",
    "\x00\ud83d\\boxed{5".encode("utf-8", "ignore").decode(),
    "",
    "\\boxed{}",
    "5" * 300_000,
]


def test_hostile_text_is_wrong_in_bounded_time_and_hurts_nobody_else(grader):
    start = time.time()
    verdicts = grader(["7"] * (len(HOSTILE) + 1), [*HOSTILE, "so $\\boxed{7}$"])
    assert verdicts == [False] * len(HOSTILE) + [True]
    assert time.time() - start < 60


def test_grading_off_the_main_thread_is_not_silently_zero(grader):
    "math-verify off the main thread fails silently as 0."
    found = []
    t = threading.Thread(target=lambda: found.extend(grader(["\\frac{1}{2}"], ["the answer is $0.5$"])))
    t.start()
    t.join()
    assert found == [True]


@pytest.mark.parametrize(
    ("gold", "text", "expected"),
    [
        ("72", "72", True),
        ("\\frac{14}{3}", "$\\boxed{\\dfrac{14}{3}}$", True),
        ("10{,}000", "$\\boxed{10000}$", True),
        ("(3, \\frac{\\pi}{2})", "\\boxed{(3,\\pi/2)}", True),
        ("5", "$\\boxed{6}$ no, 5", False),
    ],
)
def test_equal_answers_are_equal(grader, gold, text, expected):
    assert grader([gold], [text]) == [expected]


def test_a_reference_that_cannot_be_read_gives_none():
    assert math_reward(["\\boxed{1}"], answer=[""]) == [None]


def test_a_reward_that_raises_names_function_row_and_cause():
    def bad(completions, answer, **_):
        return [1 / int(a) for a in answer]

    with pytest.raises(RewardError, match=r"'bad' raised ZeroDivisionError.*completion 2 \(row 31 of the data\)"):
        call_reward(bad, ["a"] * 3, {"answer": ["1", "1", "0"]}, rows=[10, 20, 31])


def test_reward_files_are_loaded_by_path(tmp_path):
    (tmp_path / "mine.py").write_text("def f(completions, **_): return [2.0 for _ in completions]")
    assert call_reward(load_reward(f"{tmp_path}/mine.py:f"), ["x"], {}) == [2.0]
    with pytest.raises(ValueError, match="has no 'g'"):
        load_reward(f"{tmp_path}/mine.py:g")


HOSTILE = (
    "\\boxed{" * 400,
    "{" * 20_000,
    "\\boxed{" + "{" * 3000 + "1" + "}" * 3000 + "}",
    "$10^{10^{10}}$",
    "\\boxed{9^{9^{9^{9}}}}",
    "\\boxed{99999999999!}",
    "\\boxed{(10^9)!}",
    "\\begin{pmatrix} 1 & 2 \\\\",
    "\\begin{array}" * 500,
    "\\frac{" * 1500,
    "\\sqrt{" * 1500 + "2",
    "x" * 1_000_000,
    "1+" * 500_000,
    "\x00\x00\\boxed{5}\x00",
    "\\boxed{5\x00}",
    "\ud800 \\boxed{\udfff}",
    "\\boxed{\\int_0^{\\infty} e^{-x^{x^x}} dx}",
    "\\boxed{\\sum_{n=1}^{10^9} \\frac{1}{n}}",
    "\\left(" * 2000,
    "\u202e\u2066\\boxed{5}" * 50,
)


def test_ten_thousand_hostile_strings_from_eight_threads():
    "No hang, no crash, bounded memory, each answered within its deadline (and the wait for a free worker)."
    rng = random.Random(0)
    slow = []

    def made(i):
        if i % 500 < len(HOSTILE):
            return HOSTILE[i % 500]
        cut = rng.choice(HOSTILE[:3] + HOSTILE[7:11] + HOSTILE[13:16])  # hostile, and answered at once
        return f"{i}: " + cut[: rng.randrange(1, 60)] + rng.choice(["", "}", "$", "\\", "\x00"]) * rng.randrange(5)

    texts = [made(i) for i in range(10_000)]
    grader, timeout = MathGrader(workers=2, timeout=0.3, memory=1 << 30), 0.3
    real = grader.workers[0].__class__.ask

    def timed(worker, *args):
        if worker.process is None:
            worker.start()
        begun = time.perf_counter()
        verdict = real(worker, *args)
        slow.append(time.perf_counter() - begun)
        return verdict

    for worker in grader.workers:
        worker.ask = timed.__get__(worker)
    with ThreadPoolExecutor(8) as threads:
        shares = list(threads.map(lambda i: grader(["\\sqrt{x}+5"] * len(texts[i::8]), texts[i::8]), range(8)))
    verdicts = [v for share in shares for v in share]
    assert len(verdicts) == 10_000 and set(verdicts) <= {True, False}
    assert len(slow) > 500, "so many needed a worker"
    assert max(slow) < timeout + 5 and sorted(slow)[int(0.9 * len(slow))] < 2 * timeout
    assert 0 < grader.timeouts < 500
    assert grader(["5", "5"], ["\\boxed{5}", "\\boxed{6}"]) == [True, False], "as good as new"
    pids = [w.process.pid for w in grader.workers]
    grader.close()
    assert all(not os.path.exists(f"/proc/{p}") for p in pids)


def test_a_timeout_is_none_where_it_is_asked_for_and_is_counted():
    grader = MathGrader(workers=1, timeout=0.3, on_timeout="none")
    endless = "\\boxed{9^{9^{9^{9}}}+1}"
    assert grader(["5", "5"], [endless, "\\boxed{5}"])[1] is True
    before = grader.timeouts
    found = grader(["7"], ["\\boxed{\\sum_{n=1}^{10^9} \\frac{\\sin n}{n}}"])
    assert found[0] in (None, False) and (found[0] is None) == (grader.timeouts > before)
    grader.close()
    with pytest.raises(ValueError, match="known are zero, none"):
        MathGrader(on_timeout="one")
    with pytest.raises(ValueError, match="known are zero, none"):
        load_reward("math", on_timeout="one")(["5"], answer=["5"])


def test_options_reach_the_reward_and_its_attributes_stay():
    bound = load_reward("math", timeout=3.0)
    assert bound(["\\boxed{5}"], answer=["5"]) == [1.0] and bound.take_timeouts() == 0 and bound.__name__ == "math_reward"
