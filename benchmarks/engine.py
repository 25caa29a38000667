"""Scoring, shared prompts and rollouts, each beside what it replaces; medians of interleaved repeats, printed as ratios.

    python benchmarks/engine.py [--model FOLDER] [--repeats 3] [--only scoring sharing rollouts]

The model is one of SmolLM2-135M's size: a folder (see `grpo-repro convert-smollm2`), or the same shape with random weights. Scoring is measured at
4,096 tokens of completion against full logits, in time and in peak memory, each in a process of its own. Sharing is one group of 8 with the prompt run
once, against once for each completion, forward and backward. Rollouts compare vLLM (if it is installed) with our own sampler.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import torch
import transformers

from grpo_repro.data import load_policy
from grpo_repro.policy import score

SHAPE = dict(
    vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True,
    max_position_embeddings=8192, bos_token_id=1, eos_token_id=2, pad_token_id=2,
)  # fmt: skip


def load(folder: str | None, dtype: str):
    if folder:
        return load_policy(folder, dtype)[0].eval()
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE)).to(getattr(torch, dtype)).eval()


def tokens(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, 49_000, (rows, length), generator=torch.Generator().manual_seed(seed))


def naive(model, prompts, completions, mask):
    "Full logits of every position, as one would write it first."
    ids = torch.cat([torch.tensor(prompts), completions], 1)
    logp = model(input_ids=ids).logits[:, len(prompts[0]) - 1 : -1].float().log_softmax(-1)
    with torch.no_grad():
        entropy = -(logp.exp() * logp).sum(-1)
    return logp.gather(-1, completions[..., None])[..., 0] * mask, entropy * mask


def fused(model, prompts, completions, mask):
    "TRL's fused head, with log-probabilities and entropies."
    from trl.trainer.utils import add_fused_lm_head

    if not getattr(model, "has_fused_head", False):
        add_fused_lm_head(model, outputs=("log_probs", "entropy"))
        model.has_fused_head = True
    ids = torch.cat([torch.tensor(prompts), completions], 1)
    labels = ids.clone()
    labels[:, : len(prompts[0])] = -100
    out = model(input_ids=ids, labels=labels, fused_lm_head=True)
    return out.log_probs[:, -completions.shape[1] :], out.entropy[:, -completions.shape[1] :]


def ours(model, prompts, completions, mask):
    return score(model, prompts, completions, mask, share=False)


WAYS = {"full logits": naive, "ours": ours, "TRL's fused head": fused}


def memory(name: str) -> float:
    "MB of this process, by the kernel."
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(name))


def measure_scoring(way: str, folder: str | None, dtype: str, repeats: int) -> None:
    "In a process of its own: seconds of each repeat, and the peak above what the model itself takes (MB)."
    model = load(folder, dtype)
    prompts, completions, mask = tokens(16, 8).tolist(), tokens(16, 256, 1), torch.ones(16, 256, dtype=torch.bool)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak counts from here
    before, seconds = memory("VmRSS"), []
    for _ in range(repeats):
        start = time.perf_counter()
        WAYS[way](model, prompts, completions, mask)[0].sum().backward()
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"seconds": seconds, "mb": memory("VmHWM") - before}))


def scoring(args) -> None:
    found = {}
    for _ in range(args.repeats):
        for way in WAYS:
            argv = [sys.executable, __file__, "--child", way, "--dtype", args.dtype, "--repeats", "1", *(["--model", args.model] if args.model else [])]
            done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000", "MALLOC_TRIM_THRESHOLD_": "0"})
            if done.returncode:
                print(f"  {way}: {done.stderr.strip().splitlines()[-1][:120]}")
                continue
            found.setdefault(way, []).append(json.loads(done.stdout.splitlines()[-1]))
    middle = {w: (statistics.median(x["seconds"][0] for x in v), statistics.median(x["mb"] for x in v)) for w, v in found.items()}
    for way, (seconds, mb) in middle.items():
        base = middle["full logits"]
        print(f"  scoring 4,096 tokens, {way:17s} {seconds:6.2f} s ({seconds / base[0]:.2f}), {mb:6,.0f} MB above the model ({mb / base[1]:.2f})")


def sharing(args) -> None:
    model = load(args.model, args.dtype)
    for prompt, completion in ((256, 32), (128, 128), (32, 256)):
        prompts, completions, mask = tokens(1, prompt).tolist() * 8, tokens(8, completion, 1), torch.ones(8, completion, dtype=torch.bool)
        seconds = {False: [], True: []}
        for _ in range(args.repeats + 1):
            for share in seconds:
                model.zero_grad()
                start = time.perf_counter()
                score(model, prompts, completions, mask, share=share).logp.sum().backward()
                seconds[share].append(time.perf_counter() - start)
        plain, shared = (statistics.median(seconds[s][1:]) for s in (False, True))
        print(f"  prompt {prompt:3d}, completion {completion:3d}, 8 a group: {plain:.2f} s, prompt once {shared:.2f} s ({plain / shared:.2f} times as fast)")


def rollouts(args) -> None:
    from grpo_repro.engines import VLLMEngine
    from grpo_repro.rollout import HFEngine

    if not args.model:
        return print("  rollouts: give --model FOLDER")
    model, tokenizer = load_policy(args.model, args.dtype)
    never = [len(tokenizer) - 1]  # no early end, so that both write the same number of tokens
    engines = {"our sampler": HFEngine(model, never), "vLLM": VLLMEngine(model, tokenizer, never, max_length=512)}
    prompts, speed = tokens(8, 64).tolist(), {name: [] for name in engines}
    for i in range(args.repeats + 1):
        for name, engine in engines.items():
            start = time.perf_counter()
            found = engine.rollout(prompts, 8, max_new_tokens=64, generator=torch.Generator().manual_seed(i))
            speed[name].append(int(found.mask.sum()) / (time.perf_counter() - start))
    sync = []
    for _ in range(args.repeats):
        start = time.perf_counter()
        engines["vLLM"].sync()
        sync.append(time.perf_counter() - start)
    mine, vllm = (statistics.median(speed[n][1:]) for n in engines)
    print(f"  8 x 8 completions of 64 tokens, prompts of 64: our sampler {mine:,.0f} tokens/s, vLLM {vllm:,.0f} ({vllm / mine:.2f})")
    print(f"  new weights in vLLM after {statistics.median(sync):.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=["scoring", "sharing", "rollouts"])
    parser.add_argument("--child")
    args = parser.parse_args()
    if args.child:
        return measure_scoring(args.child, args.model, args.dtype, args.repeats)
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, {args.dtype}")
    for name in args.only:
        globals()[name](args)


if __name__ == "__main__":
    main()
