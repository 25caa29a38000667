"The grader against hostile text, other threads, and 800 real responses."

import json
import threading
import time

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


def test_agreement_with_800_real_labels(shared, grader):
    "One disagreement, where the stored label is wrong: 10{,}000 is 10000."
    rows = [json.loads(line) for line in (shared / "rollouts" / "math_100x8.jsonl").open()]
    verdicts = grader([r["answer"] for r in rows], [r["response"] for r in rows])
    odd = [(r["answer"], r["predicted"]) for r, v in zip(rows, verdicts) if v != r["correct"]]
    assert odd == [("10{,}000", "10000")]


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
