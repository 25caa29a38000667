"Two processes on the CPU (gloo), replicated and sharded, make the update of one."

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

RUN = """
import json, sys
import torch
torch.set_num_threads(1)
from grpo_repro.config import Config
from grpo_repro.rollout import HFEngine, Rollouts
from grpo_repro.trainer import Trainer

class Replay(HFEngine):
    "Samples each question with a generator of its own, so that it does not matter which process asks."

    def rollout(self, prompts, group_size, generator=None, **options):
        parts = []
        for i, prompt in enumerate(prompts):
            seed = sum(prompt) * 1000 + len(prompt)
            part = super().rollout([prompt], group_size, generator=torch.Generator().manual_seed(seed), **options)
            part.question += i
            parts.append(part)
        return Rollouts.cat(parts)

config = Config(**json.loads(sys.argv[1]))
trainer = Trainer(config)
trainer.engine = trainer.sampler.engine = Replay(trainer.model, trainer.eos_ids)
trainer.train(progress=False)
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
"""


def start(tmp_path, n, name, **changes):
    (tmp_path / "run.py").write_text(RUN)
    settings = dict(questions_per_step=5, group_size=4, steps=2, lr=1e-4, warmup_steps=0, tensorboard=False, micro_batch=4, out=str(tmp_path / name)) | changes
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(n)}
    common["LOCAL_WORLD_SIZE"] = str(n)
    ranks = [{**common, "RANK": str(r), "LOCAL_RANK": str(r)} for r in range(n)]
    argv = [sys.executable, str(tmp_path / "run.py"), json.dumps(settings)]
    return [subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for env in ranks]


def launch(tmp_path, n, name, **changes):
    processes = start(tmp_path, n, name, **changes)
    said = [p.communicate(timeout=200)[0] for p in processes]
    assert all(p.returncode == 0 for p in processes), "\n\n".join(x[-2500:] for x in said)
    rows = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
    return load_file(tmp_path / name / "model" / "model.safetensors"), rows


CASES = {
    "grpo, two epochs": dict(epochs_per_step=2, updates_per_epoch=2, beta=0.05),
    "ep_grpo": dict(advantage="ep_grpo"),
    "two passes": dict(advantage="ep_grpo", micro_batch_tokens=60),
}


def same(one, two):
    weights, rows = one
    others, more = two
    assert weights.keys() == others.keys()
    for name in weights:
        assert_close(others[name], weights[name], atol=1e-5, rtol=1e-5)
    assert len(rows) == len(more) == 2
    for row, other in zip(rows, more):
        for key, value in row.items():
            if value is not None and not key.startswith("time/"):
                assert other[key] == pytest.approx(value, rel=2e-3, abs=1e-5), key


@pytest.mark.parametrize("case", CASES)
def test_two_processes_make_the_update_of_one(tmp_path, case):
    same(launch(tmp_path, 1, "one", **CASES[case]), launch(tmp_path, 2, "two", **CASES[case]))


def test_sharded_weights_make_the_update_of_one_and_resume(tmp_path):
    whole = launch(tmp_path, 1, "one")
    same(whole, launch(tmp_path, 2, "sharded", shard=True))
    launch(tmp_path, 2, "again", shard=True, save_every=1)
    shutil.rmtree(tmp_path / "again" / "checkpoints" / "step_000002")
    same(whole, launch(tmp_path, 2, "again", shard=True, save_every=1, resume=True))


def test_sigterm_to_both_saves_once_and_both_leave(tmp_path):
    log = tmp_path / "run" / "metrics.jsonl"
    processes = start(tmp_path, 2, "run", steps=400)
    while not (log.exists() and log.read_text().count("\n") >= 2):
        assert all(p.poll() is None for p in processes)
        time.sleep(0.01)
    for p in processes:
        p.send_signal(signal.SIGTERM)
        time.sleep(0.05)
    said = [p.communicate(timeout=60)[0] for p in processes]
    assert [p.returncode for p in processes] == [0, 0], said
    newest = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1]
    assert json.loads((newest / "state.json").read_text())["done"] == log.read_text().count("\n") < 400


def test_more_processes_than_questions_is_an_error(monkeypatch, tmp_path):
    from grpo_repro.config import Config
    from grpo_repro.parallel import World
    from grpo_repro.trainer import Trainer

    monkeypatch.setattr(World, "__init__", lambda self: self.__dict__.update(rank=0, size=8, device=None))
    with pytest.raises(ValueError, match="8 processes need at least as many questions in a step"):
        Trainer(Config(out=str(tmp_path), questions_per_step=4))


def test_deepspeed_is_refused_with_the_remedy(monkeypatch):
    from grpo_repro.parallel import World

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(ValueError, match="FSDP2 by --shard"):
        World()


def test_sums_go_through_buckets_unchanged(monkeypatch):
    from grpo_repro.parallel import World, _buckets

    tensors = [torch.randn(n) for n in (3, 1, 7)] + [torch.randn(2, 2, dtype=torch.float64)]
    before = [t.clone() for t in tensors]
    world = World()
    world.size = 2
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda flat: flat.mul_(2))
    world.sum_(*tensors)
    assert all(torch.equal(t, 2 * b) for t, b in zip(tensors, before))
    assert sum(len(b) for b in _buckets(tensors)) == 4
