#!/usr/bin/env python3
"""A server on the loopback interface that speaks the part of the Hugging Face Hub's API that downloads use, with faults.

    server.py ROOT [CERTIFICATE]

ROOT/models/ORG/NAME/BRANCH/… and ROOT/datasets/ORG/NAME/BRANCH/… are the files of repositories. A commit is a hash of a
branch's files, and stays available after they change. Files with the extensions in LFS are on another port, another origin, to
which the server redirects; git blobs come from the first port. The server prints both ports on one line. CERTIFICATE, a PEM file
with a key, makes both ports use TLS.

ROOT/faults.json, read at each request, is an object with some of:
  "private": {ID: TOKEN}     repositories that need this token
  "gated": [ID]              repositories whose conditions the token's account has not accepted
  "drop": [PATH, BYTES]      the connection ends after BYTES of a response with PATH, once per request
  "drops": N                 … but only for the first N requests of it
  "status": [PATH, CODE, N]  the first N requests of PATH are answered with this status
  "other_bytes": PATH        the content differs from its hash
  "more_bytes": PATH         the content is longer than its size, without Content-Length
  "no_ranges": true          Range headers are ignored
  "loop": PATH               redirects to itself
  "redirect": [PATH, URL]    redirects to URL
  "huge": PATH               the answer has 65 MiB
  "same_page": true          each page of a list names itself as the next one
  "pause": [PATH, BYTES, S]  pauses S seconds after each BYTES
  "pauses": N                … but only in the first N responses with it
  "listed_bytes": [PATH, N]  lists of files state N bytes more than PATH has
  "login": PATH              the answer is the page of a login
  "listing": [[PATH, SIZE]]  further entries in lists of files
ROOT/requests.jsonl gets one line per request: port, path, range, token.
"""
import hashlib
import json
import os
import pathlib
import re
import socket
import ssl
import sys
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LFS = {".safetensors", ".parquet", ".tar", ".bin"}
PIECE = 1 << 16
PAGE_FILES = 3  # files in a page of a list, so that tests have several

root = pathlib.Path(sys.argv[1])
lock = threading.Lock()
hashes: dict[tuple, dict] = {}  # of a file's state
commits: dict[str, dict] = {}  # commit: {path: (file on the disk, entry)}
counts: dict[str, int] = {}


def describe(path: pathlib.Path, name: str) -> dict:
    stat = path.stat()
    key = (path, stat.st_size, stat.st_mtime_ns)
    if key not in hashes:
        sha1, sha256 = hashlib.sha1(f"blob {stat.st_size}\0".encode()), hashlib.sha256()
        with open(path, "rb") as file:
            while piece := file.read(1 << 20):
                sha1.update(piece)
                sha256.update(piece)
        entry = {"type": "file", "oid": sha1.hexdigest(), "size": stat.st_size, "path": name}
        if path.suffix in LFS:
            pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256.hexdigest()}\nsize {stat.st_size}\n"
            entry["oid"] = hashlib.sha1(f"blob {len(pointer)}\0{pointer}".encode()).hexdigest()
            entry["lfs"] = {"oid": sha256.hexdigest(), "size": stat.st_size, "pointerSize": len(pointer)}
        hashes[key] = entry
    return hashes[key]


def scan(branch: pathlib.Path) -> str:
    """Returns the commit of a branch's files."""
    tree = {}
    for path in sorted(branch.rglob("*")):
        if path.is_file():
            name = path.relative_to(branch).as_posix()
            tree[name] = (path, describe(path, name))
    commit = hashlib.sha1(json.dumps([entry for _, entry in tree.values()]).encode()).hexdigest()
    if commit not in commits:
        commits[commit] = tree
        store = root / "commits" / commit
        for name, (path, _) in tree.items():  # hard links stay when a test replaces the file
            (store / name).parent.mkdir(parents=True, exist_ok=True)
            if not (store / name).exists():
                os.link(path, store / name)
            tree[name] = (store / name, tree[name][1])
    return commit


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def fail(self, status, code, message):
        self.answer(status, json.dumps({"error": message}).encode(), [("X-Error-Code", code), ("X-Error-Message", message)])

    def do_HEAD(self):
        self.do_GET()

    def do_CONNECT(self):  # as a proxy
        self.answer(407)

    def do_GET(self):
        try:
            self.serve()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def serve(self):
        try:
            self.faults = json.loads((root / "faults.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            self.faults = {}
        url = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(url.path)
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        with lock, open(root / "requests.jsonl", "a") as log:
            print(json.dumps({"method": self.command, "port": self.server.server_port, "path": path,
                              "range": self.headers.get("Range"), "token": token}), file=log)
        if "status" in self.faults and self.faults["status"][0] in path and self.once("status", self.faults["status"][2]):
            return self.answer(self.faults["status"][1], headers=[("Retry-After", "0")])
        if self.faults.get("login", "\0") in path:
            return self.answer(200, b"<html>Log in</html>")
        if self.faults.get("loop", "\0") in path:
            return self.answer(302, headers=[("Location", self.path)])
        if "redirect" in self.faults and self.faults["redirect"][0] in path:
            return self.answer(302, headers=[("Location", self.faults["redirect"][1])])
        if self.faults.get("huge", "\0") in path:
            return self.answer(200, b" " * (65 << 20))
        if path.startswith("/storage/"):
            _, _, commit, name = path.split("/", 3)
            return self.send_content(*commits[commit][name])
        api = re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)/(revision|tree)/([^/]+)",
                           url.path.replace("%2F", "\0"))
        resolve = re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if not api and not resolve:
            return self.fail(404, "", "no such page")
        kind, repo = (api[1], api[2]) if api else ("datasets" if resolve[1] else "models", resolve[2])
        revision = urllib.parse.unquote((api[4] if api else resolve[3]).replace("\0", "/"))
        folder = root / kind / repo
        private = self.faults.get("private", {})
        if token and token not in set(private.values()) | {"hf_good"}:
            return self.fail(401, "", "Invalid credentials in Authorization header")
        if not folder.is_dir() or (repo in private and token != private[repo]):
            return self.fail(401 if not token else 404, "RepoNotFound", "Repository not found")
        with lock:
            branches = {branch.relative_to(folder).as_posix(): scan(branch) for branch in folder.iterdir() if branch.is_dir()}
        commit = branches.get(revision, revision)
        if commit not in commits:
            return self.fail(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if api and api[3] == "revision":
            body = {"id": repo, "sha": commit, "siblings": [{"rfilename": name} for name in commits[commit]],
                    "private": False, "tags": [], "downloads": 0, "likes": 0}
            return self.answer(200, json.dumps(body).encode(), [("Content-Type", "application/json")])
        if api:
            return self.send_list(commit, url)
        if repo in self.faults.get("gated", []):
            return self.fail(403 if token else 401, "GatedRepo", "Access to this repository is restricted")
        if resolve[4] not in commits[commit]:
            return self.fail(404, "EntryNotFound", "Entry not found")
        self.send_file(commit, resolve[4])

    def once(self, fault, limit):
        with lock:
            counts[fault] = counts.get(fault, 0) + 1
            return counts[fault] <= limit

    def send_list(self, commit, url):
        path, more_bytes = self.faults.get("listed_bytes", ("", 0))
        entries = [{**entry, "size": entry["size"] + more_bytes * (entry["path"] == path)} for _, entry in commits[commit].values()]
        entries += [{"type": "file", "oid": "0" * 40, "size": size, "path": path} for path, size in self.faults.get("listing", [])]
        entries.append({"type": "directory", "oid": "0" * 40, "size": 0, "path": "folder"})
        start = int(urllib.parse.parse_qs(url.query).get("cursor", ["0"])[0])
        headers = [("Content-Type", "application/json")]
        if start + PAGE_FILES < len(entries):
            query = f"?{url.query}" if self.faults.get("same_page") else f"?recursive=True&expand=False&cursor={start + PAGE_FILES}"
            headers.append(("Link", f'<{scheme}://{self.headers["Host"]}{url.path}{query}>; rel="next"'))
        self.answer(200, json.dumps(entries[start:start + PAGE_FILES]).encode(), headers)

    def send_file(self, commit, name):
        path, entry = commits[commit][name]
        headers = [("X-Repo-Commit", commit), ("Accept-Ranges", "bytes")]
        if "lfs" not in entry:
            return self.send_content(path, entry, headers + [("ETag", f'"{entry["oid"]}"')])
        host = self.headers["Host"].rsplit(":", 1)[0]
        location = f"{scheme}://{host}:{storage_port}/storage/{commit}/{urllib.parse.quote(name)}"
        headers += [("X-Linked-Size", str(entry["size"])), ("X-Linked-ETag", f'"{entry["lfs"]["oid"]}"'), ("Location", location)]
        self.answer(302, headers=headers)

    def send_content(self, path, entry, headers=()):
        size, start = path.stat().st_size, 0
        ranges = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        if ranges and not self.faults.get("no_ranges"):
            start = int(ranges[1])
            if start >= size:
                return self.answer(416, headers=[("Content-Range", f"bytes */{size}")])
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        for name, value in headers:
            self.send_header(name, value)
        name = entry["path"]
        is_longer = self.faults.get("more_bytes") == name
        if is_longer:
            self.send_header("Connection", "close")
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(size - start))
        self.end_headers()
        if self.command == "HEAD":
            return
        drop = self.faults.get("drop")
        left = drop[1] if drop and drop[0] == name and self.once("drop", self.faults.get("drops", 1 << 60)) else size
        pause = self.faults.get("pause")
        if pause and not (pause[0] == name and self.once("pause", self.faults.get("pauses", 1 << 60))):
            pause = None
        is_other = self.faults.get("other_bytes") == name
        with open(path, "rb") as file:
            file.seek(start)
            while left > 0 and (piece := file.read(min(PIECE, left, pause[1] if pause else PIECE))):
                left -= len(piece)
                self.wfile.write(bytes(255 - byte for byte in piece) if is_other else piece)
                if pause:
                    self.wfile.flush()
                    time.sleep(pause[2])
        if is_longer:
            self.wfile.write(b"more")
        if drop and drop[0] == name and left <= 0:
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


api_server, storage_server = Server(("127.0.0.1", 0), Handler), Server(("127.0.0.1", 0), Handler)
scheme, storage_port = "http", storage_server.server_port
if len(sys.argv) > 2:
    scheme, context = "https", ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[2])
    for server in (api_server, storage_server):
        server.socket = context.wrap_socket(server.socket, server_side=True)
threading.Thread(target=storage_server.serve_forever, daemon=True).start()
print(api_server.server_port, storage_port, flush=True)
api_server.serve_forever()
