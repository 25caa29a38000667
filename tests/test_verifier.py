"Ratings out of any text, and the order that CoRPO needs."

# ruff: noqa: E501

import math
import re
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_repro.advantages import corpo
from grpo_repro.rewards import load_reward
from grpo_repro.verifier import parse_ratings, ratings_correct, ratings_judge, ratings_reward, verifier_prompt
from grpo_repro.verifier_sums import RATED, rated_pairs

rating = st.integers(0, 100).map(lambda x: x / 10)


@given(a=rating, b=rating, right_a=st.booleans(), right_b=st.booleans())
def test_rewards_lie_in_range_and_rise_with_better_ratings(a, b, right_a, right_b):
    reward = lambda a, b: ratings_reward([f"thinking\nRatings: A={a:g}, B={b:g}"], right_a=[right_a], right_b=[right_b])[0]
    assert -1 <= reward(a, b) <= 1
    if a <= 9:
        assert (reward(a + 1, b) > reward(a, b)) == right_a
    if ratings_correct(f"Ratings: A={a:g}, B={b:g}", right_a, right_b):
        assert reward(a, b) > 0


@given(st.text(max_size=200))
def test_any_text_gives_ratings_in_range_or_none(text):
    found = parse_ratings("Ratings:" + text)
    assert found is None or all(0 <= v <= 10 for v in found)


@pytest.mark.parametrize(
    "text", ["Ratings: A=٧, B=3", "ratings: A=7, B=3", "Ratings: A=7 B=3", "Ratings: A=07.1234567, B=3", "x Ratings: A=7, B=3", "Ratings: A=10.1, B=3"]
)
def test_what_is_not_the_documented_line_is_no_rating(text):
    assert parse_ratings(text) is None and ratings_reward([text], right_a=[True], right_b=[True]) == [-1.0]


def test_hostile_lengths_are_read_in_a_moment():
    start = time.perf_counter()
    for text in (" " * 10**6, "Ratings:" * 10**5, "Ratings: A=" + "9" * 10**6, "\nRatings: A=1, B=" * 10**5, "\t\n" * 10**6):
        assert parse_ratings(text) is None
    assert time.perf_counter() - start < 20


def test_a_prompt_may_hold_braces_and_names_of_fields():
    text = verifier_prompt("{candidate_a} {x}", "A {problem}", "B \\1")
    assert text.count("{candidate_a} {x}") == 1 and "A {problem}" in text and text.endswith("B \\1")


@given(st.lists(st.tuples(rating, rating), min_size=1, max_size=12), st.booleans(), st.booleans())
def test_corpo_never_reinforces_a_failed_verdict(pairs, right_a, right_b):
    n = len(pairs)
    rewards = torch.tensor(ratings_reward([f"Ratings: A={a:g}, B={b:g}" for a, b in pairs], right_a=[right_a] * n, right_b=[right_b] * n))
    advantages = corpo(rewards, torch.zeros(n, dtype=torch.long), threshold=0.0)
    assert (advantages[rewards < 0] < 0).all()


def test_the_reward_is_found_by_name():
    assert load_reward("grpo_repro.verifier:ratings_reward") is ratings_reward


@given(seed=st.integers(0, 2**32), name=st.sampled_from(sorted(RATED)))
def test_the_embedded_task_says_the_truth(seed, name):
    "An independent look at the worked solutions: labels, slips, terms."
    for row in rated_pairs(5, RATED[name], seed=seed):
        problem, *candidates = row["prompt"].splitlines()
        operation = "*" if "*" in problem else "+"
        terms = list(map(int, problem.split(operation)))
        assert len(terms) == row["terms"]
        answer = (math.prod(terms) if operation == "*" else sum(terms)) % 10
        for line, letter, right in zip(candidates, "AB", (row["right_a"], row["right_b"]), strict=True):
            assert line.startswith(letter + " ")
            steps = [re.fullmatch(r"(\d)[+*](\d)=(\d)", s).groups() for s in line[2:].split(" ")]
            used = [int(steps[0][0])] + [int(s[1]) for s in steps]
            assert sorted(used) == sorted(terms) and (int(steps[-1][2]) == answer) == right
            slips = sum(int(c) != (int(a) * int(b) if operation == "*" else int(a) + int(b)) % 10 for a, b, c in steps)
            assert slips == (0 if right else 1)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("Ratings: A=11, B=3", None), ("Ratings: A=-1, B=3", None), ("Ratings: A=7/10, B=3", None), ("Ratings: A=ten, B=3", None), ("Ratings: A=NaN, B=3", None),
        ("Ratings: A=inf, B=3", None), ("Ratings: A=1e1, B=3", None), ("Ratings: A=9, B=1\nRatings: A=2, B=3", (2, 3)), ("Ratings: A=9, B=1\nRatings: A=2", None), ("", None),
        ("A=9, B=1", None), ("Ratings: B=1, A=9", None), ("Ratings: A=10, B=0", (10, 0)), ("Ratings: A=7.5, B=0.25", (7.5, 0.25)),
    ],
)  # fmt: skip
def test_bad_ratings(text, expected):
    assert parse_ratings(text) == expected
    assert (ratings_reward([text], right_a=[True], right_b=[False]) == [-1.0]) == (expected is None)
    assert ratings_judge([text], right_a=[True], right_b=[False]) == [expected is not None and expected[0] > expected[1]]
