"The openai client against vLLM's real server on the CPU, where vllm is installed."

import json
from pathlib import Path

import pytest

from grpo_repro.rephrase import rephrase


def byte_model(folder: Path) -> Path:
    "A random Llama over bytes: its text is noise, so whatever is JSON in it is the server's doing."
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({t: i for i, t in enumerate(["<pad>", "<eos>", *alphabet])}, []))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>")
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
    tokenizer.save_pretrained(folder)
    size = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=4096)
    LlamaForCausalLM(LlamaConfig(vocab_size=258, bos_token_id=1, eos_token_id=1, pad_token_id=0, **size)).save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_the_protocol_holds_end_to_end(vllm_server, tmp_path):
    server = vllm_server(byte_model(tmp_path / "model"), "--served-model-name", "noise", "--max-model-len", "4096") + "/v1"
    data = tmp_path / "q.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"What is {a} plus {a + 1}?"}) + "\n" for a in range(71_500, 71_504)))
    common = dict(model="noise", n=2, attempts=2, base_url=server, progress=False)
    report = rephrase(str(data), tmp_path / "o.jsonl", **common)
    assert report["requests"] == 8 and report["unanswered"] == 0 and report["prompt_tokens"] > 8 * 300 and report["completion_tokens"] > 8
    assert report["by_number"] == {0: 4} and sum(report["turned_down"].values()) >= 8  # noise is turned down, never believed
    again = rephrase(str(data), tmp_path / "o.jsonl", **common)
    assert again["requests"] == 0 and again["cached"] == 8
