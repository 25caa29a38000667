"Killed at any moment, resumed to the same end; signals, drift, damage."

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from grpo_repro.checkpoint import checkpoints
from grpo_repro.config import Config
from grpo_repro.trainer import Trainer

RUN = """
import os, random, sys
import torch
torch.set_num_threads(1)
from grpo_repro.config import Config
from grpo_repro.tasks import running_sums_reward
from grpo_repro.trainer import Trainer

def reward(completions, **columns):  # draws from a global generator, which a resume must restore
    return [r + 0.01 * random.random() for r in running_sums_reward(completions, **columns)]

def run(out, dtype):
    random.seed(0)
    config = Config(questions_per_step=2, group_size=4, steps=12, save_every=2, lr=1e-3, warmup_steps=3, schedule="linear", out=out, tensorboard=False,
                    log_responses=3, resume=True, dtype=dtype)
    Trainer(config, reward=reward).train(progress=False)

for line in sys.stdin:  # a process for each line, without importing torch again
    out, dtype = line.split()
    child = os.fork()
    if child == 0:
        try:
            run(out, dtype)
        except SystemExit as left:
            os._exit(left.code)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
SMALL = dict(questions_per_step=2, group_size=4, steps=4, save_every=2, lr=1e-3, tensorboard=False)


class Runs:
    "Starts a run in a fresh process, one after the other."

    def __init__(self, tmp_path):
        (tmp_path / "run.py").write_text(RUN)
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.process = subprocess.Popen([sys.executable, str(tmp_path / "run.py")], env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True, **pipes)

    def start(self, out, dtype="float32"):
        self.process.stdin.write(f"{out} {dtype}\n")
        self.process.stdin.flush()
        self.pid = int(self.process.stdout.readline())
        self.ended = threading.Thread(target=self._wait)
        self.ended.start()

    def _wait(self):
        self.code = int(self.process.stdout.readline())

    def running(self):
        return self.ended.is_alive()

    def wait(self):
        self.ended.join(120)
        assert not self.running()
        return self.code

    def kill(self, number):
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


@pytest.fixture
def runs(tmp_path):
    runs = Runs(tmp_path)
    yield runs
    runs.process.stdin.close()
    runs.process.kill()
    runs.process.wait()


def log(out):
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in r.items() if not k.startswith("time/")} for r in rows]


def lines(path):
    return path.read_text().count("\n") if path.exists() else 0


def test_twenty_kills_at_random_moments_change_nothing(tmp_path, runs):
    runs.start(tmp_path / "whole")
    assert runs.wait() == 0
    out, rng, kills = tmp_path / "killed", random.Random(0), {"saving": 0, "other": 0}
    while sum(kills.values()) < 20:
        runs.start(out)
        before = lines(out / "metrics.jsonl")
        wanted = "saving" if sum(kills.values()) % 4 == 0 else "other"
        while runs.running() and (lines(out / "metrics.jsonl") == before if wanted == "other" else not list((out / "checkpoints").glob("*.part"))):
            time.sleep(0.001)
        time.sleep(rng.random() * (0.2 if wanted == "other" else 0.02))
        if runs.running() and runs.kill(signal.SIGKILL):
            kills[wanted] += 1
        if runs.wait() == 0:  # it was faster than the kill: begin again, so that there are twenty real ones
            assert log(out) == log(tmp_path / "whole")
            shutil.rmtree(out)
    runs.start(out)
    assert runs.wait() == 0
    one, other = (load_file(p / "model" / "model.safetensors") for p in (tmp_path / "whole", out))
    assert one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)
    assert log(out) == log(tmp_path / "whole") and (out / "responses.jsonl").read_text() == (tmp_path / "whole" / "responses.jsonl").read_text()
    assert kills["saving"] >= 3


def test_sigterm_saves_and_leaves_with_status_0(tmp_path, runs):
    out = tmp_path / "run"
    runs.start(out, "bfloat16")
    while runs.running() and lines(out / "metrics.jsonl") < 3:
        time.sleep(0.002)
    assert runs.kill(signal.SIGTERM) and runs.wait() == 0
    done = json.loads((checkpoints(out)[-1] / "state.json").read_text())["done"]
    assert done == len(log(out)) and 3 <= done < 12
    runs.start(out, "bfloat16")
    assert runs.wait() == 0 and len(log(out)) == 12


def test_sigterm_in_the_middle_of_an_update_waits_for_its_end(tmp_path):
    trainer = Trainer(Config(**SMALL, out=str(tmp_path), updates_per_epoch=2))
    real, calls = trainer.optimiser.step, []

    def step(*args):
        calls.append(trainer.done)
        if len(calls) == 3:  # between the two updates of the second step
            os.kill(os.getpid(), signal.SIGTERM)
        return real(*args)

    trainer.optimiser.step = step
    with pytest.raises(SystemExit) as left:
        trainer.train(progress=False)
    assert left.value.code == 0 and trainer.done == 2 and [p.name for p in checkpoints(tmp_path)] == ["step_000002"]
    assert [r["step"] for r in log(tmp_path)] == [1, 2], "the step that was saved is in the log"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_step_that_is_not_in_the_log_is_not_saved(tmp_path):
    trainer = Trainer(Config(**SMALL, out=str(tmp_path)))
    real = trainer.engine.sync

    def sync():
        if trainer.done == 3:
            raise ConnectionError("the engine is gone")
        real()

    trainer.engine.sync = sync
    with pytest.raises(ConnectionError):
        trainer.train(progress=False)
    assert [p.name for p in checkpoints(tmp_path)] == ["step_000002"] and [r["step"] for r in log(tmp_path)] == [1, 2]


@pytest.mark.slow
def test_the_8_bit_optimiser_trains_bfloat16_and_resumes(tmp_path):
    pytest.importorskip("torchao")
    options = {**SMALL, "dtype": "bfloat16", "optimiser": "adamw_8bit", "lr": 1e-4}
    whole = Trainer(Config(**options, out=str(tmp_path / "whole")))
    before = {k: v.clone() for k, v in whole.model.state_dict().items()}
    whole.train(progress=False)
    after = whole.model.state_dict()
    assert any(not torch.equal(before[k], after[k]) for k in before)
    half = Trainer(Config(**{**options, "steps": 2}, out=str(tmp_path / "half")))
    half.train(progress=False)
    rest = Trainer(Config(**options, out=str(tmp_path / "half"), resume=True))
    rest.load()
    kept, found = half.optimiser.tensors(), rest.optimiser.tensors()
    assert kept.keys() == found.keys() and all(torch.equal(kept[k], found[k]) for k in kept)
    assert any(k.endswith(".codes") for k in kept)
    rest.train(progress=False)
    assert rest.done == 4


def test_other_settings_are_not_mixed_into_a_run(tmp_path):
    Trainer(Config(**SMALL, out=str(tmp_path))).train(progress=False)
    with pytest.raises(ValueError, match=r"other settings(.|\n)*temperature: 1.0 -> 0.9(.|\n)*beta: 0.0 -> 0.1"):
        Trainer(Config(**SMALL, out=str(tmp_path), resume=True, beta=0.1, temperature=0.9)).train(progress=False)


def test_another_model_is_not_mixed_into_a_run(tmp_path):
    trainer = Trainer(Config(**SMALL, out=str(tmp_path)))
    trainer.train(progress=False)
    again = Trainer(Config(**SMALL, out=str(tmp_path), resume=True))
    again.start = "another"
    with pytest.raises(ValueError, match="trained from another model"):
        again.load()


def test_only_the_last_k_are_kept_and_a_missing_file_is_named(tmp_path):
    trainer = Trainer(Config(**{**SMALL, "save_every": 1}, out=str(tmp_path), keep_checkpoints=3))
    trainer.train(progress=False)
    assert [p.name for p in checkpoints(tmp_path)] == ["step_000002", "step_000003", "step_000004"]
    (checkpoints(tmp_path)[-1] / "optimiser.safetensors").unlink()
    with pytest.raises(ValueError, match=r"step_000004 has no optimiser.safetensors: delete it"):
        Trainer(Config(**SMALL, out=str(tmp_path), resume=True, keep_checkpoints=3)).load()


def test_a_model_in_several_files_is_read_back(tmp_path):
    trainer = Trainer(Config(**SMALL, out=str(tmp_path)))
    trainer.step()
    folder = trainer.save()
    (folder / "model.safetensors").unlink()
    trainer.model.save_pretrained(folder, max_shard_size="500KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    again = Trainer(Config(**SMALL, out=str(tmp_path), resume=True))
    again.load()
    assert all(torch.equal(a, b) for a, b in zip(trainer.model.state_dict().values(), again.model.state_dict().values()))


def test_global_generators_come_back(tmp_path):
    trainer = Trainer(Config(**SMALL, out=str(tmp_path)))
    trainer.save()
    first = (random.random(), np.random.rand(), torch.rand(()).item())
    trainer.load()
    assert (random.random(), np.random.rand(), torch.rand(()).item()) == first


MEMORY = [torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
WHERE = [("rollout", "out of memory in sampling: lower sample_batch"), ("score", "scores and update: lower micro_batch_tokens")]


@pytest.mark.parametrize("say", MEMORY)
@pytest.mark.parametrize(("where", "named"), WHERE)
def test_out_of_memory_names_part_and_knob_and_leaves_a_checkpoint(tmp_path, say, where, named):
    trainer = Trainer(Config(**SMALL, out=str(tmp_path)))

    def fails(*_, **__):
        if trainer.done == 1:
            raise say
        return real(*_, **__)

    target, name = (trainer.engine, "rollout") if where == "rollout" else (trainer, "_score")
    real = getattr(target, name)
    setattr(target, name, fails)
    with pytest.raises(RuntimeError, match=named):
        trainer.train(progress=False)
    assert [p.name for p in checkpoints(tmp_path)] == ["step_000001"]
