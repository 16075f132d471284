"""Data sets of the Hugging Face hub by name, from a server on this machine that answers as much of its HTTP API."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.data_pipeline.kit import byte_tokenizer, files_of, texts_in, write_jsonl

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TEXTS = [f"document {number} " + "ab\u00e9\n" * number for number in range(60)]


class Hub(ThreadingHTTPServer):
    """Holds one data set, `org/texts`, in files by their names, and remembers what was asked for."""

    def __init__(self, files: dict[str, bytes]):
        super().__init__(("127.0.0.1", 0), Answers)
        self.files, self.asked = files, []

    def entries(self, names):
        return [
            {"type": "file", "path": name, "size": len(self.files[name]), "oid": digest(self.files[name])}
            for name in names
            if name in self.files
        ]


class Answers(BaseHTTPRequestHandler):
    """What `datasets` asks a hub for: the data set and its files, the list of a folder, and the content of files."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        hub, path = self.server, self.path.split("?")[0]
        hub.asked.append(f"{self.command} {path}")
        files = f"/datasets/org/texts/resolve/{COMMIT}/"
        if path in ("/api/datasets/org/texts", f"/api/datasets/org/texts/revision/{COMMIT}"):
            known = [{"rfilename": name} for name in hub.files]
            self._json({"id": "org/texts", "sha": COMMIT, "siblings": known, "private": False, "tags": []})
        elif path == "/api/datasets/org/texts/revision/main":
            self._json({"id": "org/texts", "sha": COMMIT, "siblings": [], "private": False, "tags": []})
        elif path.startswith(f"/api/datasets/org/texts/tree/{COMMIT}"):
            inside = path.removeprefix(f"/api/datasets/org/texts/tree/{COMMIT}").strip("/")
            self._json([] if inside else hub.entries(hub.files))
        elif path.removeprefix(files) in hub.files:
            self._file(hub.files[path.removeprefix(files)])
        else:
            self._send(404, b"{}", {"X-Error-Code": "EntryNotFound" if "org/texts" in path else "RepoNotFound"})

    do_HEAD = do_GET

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(f"POST {self.path}")
        self._json(self.server.entries(asked["paths"]))

    def _json(self, value):
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _file(self, content):
        told = {"ETag": f'"{digest(content)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        wanted = self.headers.get("Range")
        if wanted is None:
            return self._send(200, content, told)
        first, last = wanted.removeprefix("bytes=").split("-")
        part = content[int(first) : int(last) + 1 if last else None]
        told["Content-Range"] = f"bytes {first}-{int(first) + len(part) - 1}/{len(content)}"
        return self._send(206, part, told)

    def _send(self, status, body, headers):
        self.send_response(status)
        for name, value in (headers | {"Content-Length": len(body)}).items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def digest(content):
    return hashlib.sha1(content).hexdigest()


@pytest.fixture
def hub(tmp_path):
    """Three files of 20 documents each."""
    for part in range(3):
        write_jsonl(tmp_path / f"{part}.jsonl", TEXTS[part * 20 : part * 20 + 20])
    server = Hub({f"part-{part}.jsonl": (tmp_path / f"{part}.jsonl").read_bytes() for part in range(3)})
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def prepare(tmp_path, hub):
    """`prepare(folder, *arguments)`: the command in a process of its own, which knows this hub alone."""
    tokenizer = byte_tokenizer(tmp_path / "tokenizer")
    home = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(tmp_path / "home")}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")} | home

    def run(folder: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "launch.megaxf", "prepare", *arguments, "--output", str(tmp_path / folder)]
        command += ["--tokenizer", str(tokenizer), "--keep-order", "--validation-fraction", "0"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)

    return run


def test_by_name_and_as_a_stream(tmp_path, hub, prepare):
    """The same shards as from the files themselves; a stream leaves no copy on the disk."""
    for folder, arguments in {
        "streamed": ["org/texts", "--streaming"],
        "loaded": ["org/texts"],
    }.items():
        done = prepare(folder, *arguments)
        assert done.returncode == 0, done.stderr
        assert texts_in(tmp_path / folder) == [text.encode() for text in TEXTS]
        assert any(f"/resolve/{COMMIT}/part-2.jsonl" in asked for asked in hub.asked)
        copies = [name for name, content in files_of(tmp_path / "home").items() if b"document 59" in content]
        assert bool(copies) == (folder == "loaded")
        hub.asked.clear()
    shards = [
        {n: c for n, c in files_of(tmp_path / f).items() if n.endswith((".bin", ".len"))}
        for f in ("streamed", "loaded")
    ]
    assert shards[0] and shards[0] == shards[1]


def test_a_name_that_the_hub_does_not_know(tmp_path, prepare):
    done = prepare("none", "org/other")
    assert done.returncode != 0 and not (tmp_path / "none" / "manifest.json").exists()
    assert (
        "org/other: is no local file or folder, and no Hugging Face data set by that name could be loaded"
        in done.stderr
    )
    assert "Traceback" not in done.stderr
