"""Group advantages for a million responses in a hundred thousand groups, and EP-GRPO's for a batch of tokens.

    python benchmarks/advantages.py

Prints the median of 7 runs in seconds and, for scale, the ratio to a Python loop over groups (timed on a hundredth of them).
"""

import statistics
import time

import torch

from grpo_repro import advantages as adv

B, N = 1_000_000, 100_000


def median(f, n=7):
    f()
    times = []
    for _ in range(n):
        start = time.perf_counter()
        f()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def loop(rewards, groups):
    "What one writes first."
    out = torch.zeros_like(rewards)
    for g in groups.unique():
        mine = groups == g
        out[mine] = rewards[mine] - rewards[mine].mean()
    return out


def main() -> None:
    g = torch.Generator().manual_seed(0)
    rewards = torch.randint(0, 2, (B,), generator=g).float()
    short = torch.randint(0, N, (B,), generator=g)
    wide = short * 7_919_000_003 - 5  # ids that are no indices
    slow = time.perf_counter()
    loop(rewards[: B // 100], short[: B // 100] % (N // 100))
    slow = time.perf_counter() - slow
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}; {B:,} responses, {N:,} groups; loop on 1/100 of it: {slow:.2f} s")
    for name in ("grpo", "dr_grpo", "rloo", "static", "corpo"):
        f = adv.estimator(name)
        seconds = [median(lambda f=f, ids=ids: adv.compute(f, rewards, ids, threshold=0.5)) for ids in (short, wide)]
        print(f"{name:8s} {seconds[0]:.3f} s with ids in a short range, {seconds[1]:.3f} s with arbitrary ids; 1/100 loop / ours {slow / seconds[0]:.1f}")
    b, t = 512, 4096
    mask = torch.ones(b, t, dtype=torch.bool)
    tokens = dict(mask=mask, entropy=torch.rand(b, t, generator=g), logp=-torch.rand(b, t, generator=g), ref_logp=-torch.rand(b, t, generator=g))
    r, ids = torch.randint(0, 2, (b,), generator=g).float(), torch.arange(b) // 8
    print(f"ep_grpo  {median(lambda: adv.ep_grpo(r, ids, **tokens)):.3f} s for {b} x {t} tokens ({int(mask.sum()):,} of them completion)")


if __name__ == "__main__":
    main()
