"Rephrasing through a real HTTP server on loopback that misbehaves on purpose, and through kills."

import asyncio
import hashlib
import http.server
import itertools
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_repro.cli import main
from grpo_repro.data import load_rows
from grpo_repro.endpoint import Cache, Endpoint, EndpointError, digest
from grpo_repro.rephrase import fault, numbers_in, parse_rephrasings, rephrase, rephrase_messages, rephrase_one
from grpo_repro.grading import last_boxed

FAULTS = ("429", "500", "hang", "cut", "truncated", "empty choice", "refusal", "wrong n", "not utf-8")
QUESTION = "Ann has {a} apples and buys {b} more. How many apples does Ann have now?"
SECRET = "sk-a-key-that-must-not-leak"


class Server(http.server.ThreadingHTTPServer):
    "Chat completions, of which a share is faulty; `log` has (serial, digest of the body, fault or None) of each request."

    daemon_threads, request_queue_size = True, 256

    def __init__(self, share=0.0, kinds=FAULTS, delay=0.0, status=None, say=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.share, self.kinds, self.delay, self.status, self.say = share, kinds, delay, status, say
        self.log, self.bodies, self.lock, self.closing = [], [], threading.Lock(), threading.Event()

    def __enter__(self):
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.closing.set()
        self.shutdown()
        self.server_close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, *_):
        pass  # a client that was killed


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        server, raw = self.server, self.rfile.read(int(self.headers["Content-Length"]))
        body = json.loads(raw)
        with server.lock:
            serial = len(server.log)
            rng = random.Random(serial)
            kind = rng.choice(server.kinds) if rng.random() < server.share else None
            server.log.append((serial, hashlib.sha256(json.dumps(body["messages"]).encode()).hexdigest(), kind))
            server.bodies.append(body)
        time.sleep(server.delay)
        if server.status and (answer := server.status(body)):
            return self.send(answer[0], json.dumps({"error": {"message": answer[1]}}).encode())
        if kind == "hang":
            server.closing.wait(5)
            self.close_connection = True
            return None
        if kind in ("429", "500"):
            return self.send(int(kind), b'{"error": {"message": "not now"}}', {"Retry-After": "0.05"} if kind == "429" else {})
        data = json.dumps(self.completion(body, serial, kind)).encode()
        if kind == "cut":
            self.close_connection = True
            return self.send(200, data, cut=len(data) // 2)
        return self.send(200, b"\xff\xfe" + data if kind == "not utf-8" else data)

    def completion(self, body, serial, kind):
        if self.server.say:
            text = self.server.say(body)
        else:
            asked = body["messages"][-1]["content"]
            n, question = int(asked.split()[1]), asked.split("\n\n")[1]
            a, b = (w for w in question.split() if w.isdigit())
            forms = [f"Variant {serial}-{i}: to {a} apples, Ann adds {b} that she buys; tell how many there are." for i in range(n)]
            forms = forms[:1] if kind == "wrong n" else forms
            text = json.dumps({"rephrasings": forms})
            text = text[: len(text) - 30] if kind == "truncated" else text
        message = {"role": "assistant", "content": text}
        if kind == "refusal":
            message = {"role": "assistant", "content": None, "refusal": "I would rather not."}
        choices = [] if kind == "empty choice" else [{"index": 0, "message": message, "finish_reason": "length" if kind == "truncated" else "stop"}]
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        return {"id": str(serial), "object": "chat.completion", "created": 0, "model": body["model"], "choices": choices, "usage": usage}

    def send(self, status, data, headers=None, cut=None):
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data[:cut] if cut else data)


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)


def questions(path, n):
    rng = random.Random(0)
    rows = [{"id": i, "prompt": QUESTION.format(a=100 + i, b=rng.randrange(10, 90)), "answer": "none of these"} for i in range(n)]
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return str(path)


def lines(path):
    with path.open(encoding="utf-8") as file:  # splitlines would also split at U+2028 inside a text
        return [json.loads(line) for line in file]


FAST = dict(timeout=0.6, pause=0.02, concurrency=32, progress=False)


def test_with_three_replies_in_ten_faulty_500_questions_are_all_rephrased(tmp_path):
    data, out = questions(tmp_path / "q.jsonl", 500), tmp_path / "out.jsonl"
    with Server(share=0.3) as server:
        report = rephrase(data, out, model="m", n=3, attempts=8, base_url=server.url, **FAST)
        asked = len(server.log)
        kinds = {kind for _, _, kind in server.log}
        again = rephrase(data, tmp_path / "again.jsonl", model="m", n=3, attempts=8, base_url=server.url, cache=tmp_path / "out.sqlite", **FAST)
        assert len(server.log) == asked and again["requests"] == 0 and again["cached"] == report["requests"]
    assert kinds == {None, *FAULTS}
    rows = lines(out)
    assert [r["id"] for r in rows] == list(range(500)) and report["by_number"] == {3: 500}
    for r in rows:
        assert len(set(r["rephrasings"])) == 3 and all(fault(t, r["prompt"], []) is None for t in r["rephrasings"])
    assert report["turned_down"]["refusal"] > 0 and report["turned_down"]["empty reply"] > 0
    assert report["completion_tokens"] == 5 * report["requests"]
    assert (tmp_path / "again.jsonl").read_bytes() == out.read_bytes()
    written = b"".join(p.read_bytes() for p in tmp_path.iterdir())
    assert SECRET.encode() not in written
    assert load_rows(str(out), ("prompt", "rephrasings"))[0]["rephrasings"] == rows[0]["rephrasings"]


def cached_serials(path):
    "The serials of the replies that a cache holds, read beside a client that was killed."
    if not path.exists():
        return set()
    with sqlite3.connect(path) as db:
        try:
            replies = [json.loads(r)["text"] for (r,) in db.execute("SELECT reply FROM replies")]
        except sqlite3.OperationalError:
            return set()
    return {int(t.split("Variant ")[1].split("-")[0]) for t in replies if "Variant " in t}


def test_ten_sigkills_lose_nothing_and_repeat_no_reply_that_was_kept(tmp_path):
    data, out, cache = questions(tmp_path / "q.jsonl", 260), tmp_path / "out.jsonl", tmp_path / "out.sqlite"
    kinds = ("429", "500", "cut", "truncated", "wrong n", "not utf-8")
    code = "import sys; from grpo_repro.cli import main; sys.exit(main(sys.argv[1:]))"
    with Server(share=0.3, kinds=kinds, delay=0.03) as server:
        argv = [sys.executable, "-c", code, "rephrase", data, "--out", str(out), "--model", "m", "--base-url", server.url, "--attempts", "8"]
        snapshots = []
        for kill in range(10):
            before, asked = cached_serials(cache), len(server.log)
            client = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ)
            while len(server.log) < asked + 20 + kill and client.poll() is None:
                time.sleep(0.005)
            assert client.poll() is None, "the client ended before it was killed"
            client.send_signal(signal.SIGKILL)
            client.wait()
            time.sleep(0.1)
            snapshots.append((cached_serials(cache), len(server.log)))
            assert before <= snapshots[-1][0]
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120)
        assert len(snapshots[-1][0]) > 50
        for kept, at in snapshots:
            bodies = {server.log[s][1] for s in kept}
            assert not bodies & {body for _, body, _ in server.log[at:]}, "a reply that was kept has been paid for again"
        final = cached_serials(cache)
    assert all(kept <= final for kept, _ in snapshots)
    assert all(len(r["rephrasings"]) == 3 for r in lines(out))


def test_a_rephrasing_that_fails_is_asked_for_again_then_left_out(tmp_path):
    said = [
        json.dumps({"rephrasings": ["Ann: 100 and 20 apples. Total?", "Ann: some apples. Total?", "{q}"]}),
        json.dumps({"rephrasings": ["ann 100, and 20 apples total"]}),
    ]

    def say(body):
        turn = min(len(server.bodies) - 1, 1)
        return said[turn].replace("{q}", QUESTION.format(a=100, b=20))

    data = tmp_path / "q.jsonl"
    data.write_text(json.dumps({"prompt": QUESTION.format(a=100, b=20), "answer": "120"}) + "\n")
    with Server(say=say) as server:
        report = rephrase(str(data), tmp_path / "out.jsonl", model="m", n=3, attempts=3, base_url=server.url, **FAST)
        assert [b["messages"][-1]["content"].split()[1] for b in server.bodies] == ["3", "2", "2"]
    assert report["by_number"] == {1: 1} and report["missing"] == 2
    assert report["turned_down"] == {"duplicate": 2, "number lost": 1, "original": 1}
    assert lines(tmp_path / "out.jsonl")[0]["rephrasings"] == ["Ann: 100 and 20 apples. Total?"]


def test_verification_turns_down_what_a_model_solves_differently(tmp_path):
    good, bad = "To 100 apples Ann adds 20. How many are there?", "From 100 apples Ann takes 20. How many are there?"

    def say(body):
        text = body["messages"][-1]["content"]
        if text.startswith("Write"):
            return json.dumps({"rephrasings": [good, bad]})
        return "So \\boxed{80}" if "takes" in text else "So \\boxed{120.0}" if "adds" in text else "Thus \\boxed{120}"

    data = tmp_path / "q.jsonl"
    data.write_text(json.dumps({"prompt": QUESTION.format(a=100, b=20)}) + "\n")
    with Server(say=say) as server:
        report = rephrase(str(data), tmp_path / "out.jsonl", model="m", n=2, attempts=1, verify="solver", base_url=server.url, **FAST)
    assert lines(tmp_path / "out.jsonl")[0]["rephrasings"] == [good]
    assert report["turned_down"] == {"answers differ": 1} and report["requests"] == 4


@pytest.mark.parametrize(("status", "said"), [(401, "check the key"), (404, "the model 'm'"), (400, "does not accept the request: ")])
def test_what_will_never_work_is_said_at_once(tmp_path, capsys, status, said):
    data = questions(tmp_path / "q.jsonl", 50)
    with Server(status=lambda _: (status, "no")) as server:
        argv = ["rephrase", data, "--out", str(tmp_path / "o.jsonl"), "--model", "m", "--base-url", server.url, "--concurrency", "2"]
        assert main(argv) == 2
        assert len(server.log) <= 8
    error = capsys.readouterr().err
    assert said in error and SECRET not in error and not (tmp_path / "o.jsonl").exists()


def test_servers_without_schemas_and_models_with_other_names_for_the_limit(tmp_path):
    def status(body):
        if "max_tokens" in body:
            return 400, "Unsupported parameter: use 'max_completion_tokens' instead"
        return (400, "unknown field") if "response_format" in body else (400, "temperature must be 1") if "temperature" in body else None

    with Server(status=status) as server:
        one = FAST | {"concurrency": 1}
        report = rephrase(questions(tmp_path / "q.jsonl", 3), tmp_path / "o.jsonl", model="m", base_url=server.url, **one)
        assert report["by_number"] == {3: 3} and len(server.log) == 6
        assert set(server.bodies[-1]) == {"model", "messages", "max_completion_tokens"}
    with Server(status=status, delay=0.02) as server:  # many requests in flight are refused for what only the first of them may change
        report = rephrase(questions(tmp_path / "many.jsonl", 40), tmp_path / "many.out.jsonl", model="m", base_url=server.url, **FAST)
        assert report["by_number"] == {3: 40}


def test_a_question_that_the_server_refuses_does_not_stop_the_others(tmp_path):
    def status(body):
        return (400, "this model's maximum context length is 12 tokens") if "105 apples" in body["messages"][-1]["content"] else None

    with Server(status=status) as server:
        report = rephrase(questions(tmp_path / "q.jsonl", 20), tmp_path / "o.jsonl", model="m", base_url=server.url, **(FAST | {"concurrency": 2}))
        assert all("response_format" in body for body in server.bodies), "one refusal must not change what the others are asked"
    assert report["by_number"] == {3: 19, 0: 1} and report["turned_down"] == {"no answer": 4} and report["unanswered"] == 4


def test_an_endpoint_that_is_down_stops_the_run_and_keeps_what_it_has(tmp_path):
    data = questions(tmp_path / "q.jsonl", 60)
    asked = itertools.count()  # one step a request, whatever the order of the server's threads
    with Server(status=lambda _: None if next(asked) < 10 else (503, "down")) as server:
        with pytest.raises(EndpointError, match="has not answered 20 requests in a row .*call again"):
            rephrase(data, tmp_path / "o.jsonl", model="m", base_url=server.url, **(FAST | {"retries": 1, "concurrency": 4, "attempts": 1, "n": 1}))
    with Server() as server:
        report = rephrase(data, tmp_path / "o.jsonl", model="m", n=1, base_url=server.url, **FAST)
    assert report["cached"] == 10 and report["requests"] == 50


@pytest.mark.parametrize(
    ("rows", "changes", "said"),
    [
        ([{"question": "1+1?"}], {}, "no column 'prompt'"),
        ([{"prompt": "1+1?"}, {"prompt": " "}], {}, "row 1 of .*must be a text"),
        ([{"prompt": [{"role": "user", "content": "1+1?"}]}], {}, "row 0 of .*must be a text"),
        ([{"prompt": "1+1?"}], {"n": 0}, "n, attempts and concurrency must be at least 1"),
    ],
)
def test_bad_data_is_named(tmp_path, rows, changes, said):
    path = tmp_path / "q.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    with pytest.raises(ValueError, match=said):
        rephrase(str(path), tmp_path / "o.jsonl", model="m", base_url="http://127.0.0.1:9/v1", progress=False, **changes)


def test_without_a_key_or_an_endpoint_a_sentence_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("OPENAI_API_KEY")
    assert main(["rephrase", questions(tmp_path / "q.jsonl", 1), "--out", str(tmp_path / "o.jsonl")]) == 2
    assert "set OPENAI_API_KEY" in capsys.readouterr().err


def test_the_cache_knows_question_model_version_and_n(tmp_path):
    async def go():
        cache = Cache(tmp_path / "c.sqlite")
        q = QUESTION.format(a=100, b=20)
        for model, n, question in (("m", 3, q), ("m", 3, q), ("other", 3, q), ("m", 2, q), ("m", 3, QUESTION.format(a=100, b=21))):
            endpoint = Endpoint(model, cache, base_url=server.url)
            await rephrase_one(endpoint, question, None, n, 1)
            await endpoint.client.close()
        return len(cache)

    with Server() as server:
        assert asyncio.run(go()) == len(server.log) == 4


plain = st.text(st.characters(min_codepoint=32, exclude_categories=("C",)), min_size=1, max_size=60).map(str.strip).filter(bool)


@given(st.lists(plain, min_size=1, max_size=4), st.booleans(), st.sampled_from(["", "Sure:\n", "```json\n"]))
def test_any_texts_survive_json(texts, wrapped, before):
    assert parse_rephrasings(before + json.dumps({"rephrasings": texts} if wrapped else texts)) == texts


@given(st.text(max_size=400))
def test_the_parser_never_fails(text):
    for reply in (text, '{"rephrasings": [' + text, '["' + text):
        assert all(isinstance(t, str) for t in parse_rephrasings(reply))


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=5, unique=True), st.data())
def test_a_lost_number_is_seen(numbers, data):
    lost = data.draw(st.sampled_from(numbers))
    say = lambda some: "Let the values be " + ", ".join(f"${x:,}$" for x in some) + " and find what the sum of all these values is."
    rest = [x for x in numbers if x != lost]
    assert numbers_in(say(numbers)) == {str(x) for x in numbers}
    assert fault("Please: " + say(numbers), say(numbers), []) is None
    assert fault("Please: " + say(rest), say(numbers), []) == "number lost"


def test_harmless_rephrasings_of_real_questions_pass(shared):
    rows = lines(shared / "train" / "math_train_4500.jsonl") + lines(shared / "train" / "gsm8k_train.jsonl")
    found = [fault(f"Here is a problem to be solved. {r['problem']}", r["problem"], [], r["answer"]) for r in rows]
    assert len(rows) > 10_000 and not any(found)
    gifts = [r for r in rows if len(r["answer"]) > 2 and r["answer"] not in r["problem"].replace(" ", "")]
    seen = [fault(f"{r['problem']} (It is ${r['answer']}$.)", r["problem"], [], r["answer"]) for r in gifts]
    assert sum(f == "answer given away" for f in seen) / len(gifts) > 0.95


def test_boxed_answers_nest():
    assert last_boxed(r"a \boxed{1} b \boxed{\sqrt{\frac{1}{2}}}") == r"\sqrt{\frac{1}{2}}"
    assert digest("a") != digest("b") and rephrase_messages("q", 2, [])[0]["role"] == "system"
