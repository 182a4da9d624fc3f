#!/usr/bin/env python3
"""Compares the Hugging Face cache that `vlmtrain download` writes with that of huggingface_hub, both from server.py.

    oracle_test.py VLMTRAIN

Exit code 77: huggingface_hub cannot be imported (scripts/setup.sh --tests installs it).
"""
import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

# The user's token, cache and proxies have no influence.
for variable in [name for name in os.environ if name.startswith(("HF_", "HUGGING", "TRANSFORMERS_", "XDG_")) or name.lower().endswith("_proxy")]:
    del os.environ[variable]
os.environ.update(HF_HUB_DISABLE_PROGRESS_BARS="1", HF_HUB_DISABLE_TELEMETRY="1")
ENVIRONMENT = dict(os.environ)
os.environ["HF_HOME"] = "/nonexistent"
try:
    import huggingface_hub
    from huggingface_hub.errors import IncompleteSnapshotError
except ImportError as error:
    print(f"skipped: {error}; run scripts/setup.sh --tests")
    sys.exit(77)

VLMTRAIN = Path(sys.argv.pop(1)).resolve()
SERVER = Path(__file__).resolve().parent / "server.py"
PIECE_BYTES = 1 << 16
# huggingface_hub in another process. It writes pieces of this size, so that partial contents exist when it is killed.
PEER = f"""import json, sys, huggingface_hub.constants
huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE = {PIECE_BYTES}
print(json.dumps(huggingface_hub.snapshot_download(**json.loads(sys.argv[1]))))"""

# Allowed differences: patterns of paths in the cache, each with its reason.
ALLOWED_FILES = {"*/blobs/*.incomplete": "each program has its own names of partial contents, which remain after SIGKILL"}
ALLOWED_MODES = {".locks/*/*.lock": "huggingface_hub sets 0664; in vlmtrain the umask applies",
                 "*/trees/*.json": "huggingface_hub uses mkstemp(), which sets 0600; in vlmtrain the umask applies"}

SHARDS = [f"weights/model-{i}-of-3.safetensors" for i in (1, 2, 3)]
MODEL = {  # the files that vlmtrain needs: some have equal contents, one is empty, one has a name with special characters
    "config.json": b"{}", "tokenizer.json": b"t" * 100_000, "empty.txt": b"", "added_tokens.json": b'{"same": 1}',
    "special_tokens_map.json": b'{"same": 1}', "additional_chat_templates/to\u00f6l [a] %41 #1.jinja": b"{{ messages }}",
    "model.safetensors.index.json": json.dumps({"weight_map": dict(zip("abc", SHARDS))}).encode(),
    SHARDS[0]: b"a" * 700_000, SHARDS[1]: b"b" * 200_000, SHARDS[2]: b"b" * 200_000,
}
README = b"---\nconfigs:\n- config_name: small\n  data_files:\n  - {split: train, path: small/train-*}\n  - {split: test, path: small/test*}\n---\n"
DATASET = {"README.md": README, "small/train-00.parquet": b"p" * 1000, "small/train-01.parquet": b"q" * 1000, "small/test.parquet": b"r"}
MODEL_ARGUMENTS = {"repo_id": "org/model", "allow_patterns": [glob.escape(name) for name in MODEL]}
DATASET_ARGUMENTS = {"repo_id": "org/data", "repo_type": "dataset", "allow_patterns": ["README.md", "small/train*"]}


def describe(cache):
    """Returns the mode and content of every entry, by path."""
    entries = {}
    for path in cache.rglob("*"):
        mode = 0 if any(map(path.match, ALLOWED_MODES)) else path.lstat().st_mode
        content = os.readlink(path) if path.is_symlink() else "" if path.is_dir() else path.read_bytes()
        if not any(map(path.match, ALLOWED_FILES)):
            entries[path.relative_to(cache).as_posix()] = oct(mode), content
    return entries


class Oracle(unittest.TestCase):
    maxDiff = 2000

    def setUp(self):
        self.addCleanup(os.umask, os.umask(0o027))
        self.root = Path(self.enterContext(tempfile.TemporaryDirectory())).resolve()
        self.ours, self.theirs = self.root / "ours", self.root / "theirs"
        for branch in ("main", "v1+a#2"):
            self.write(f"models/org/model/{branch}", {**MODEL, "config.json": branch.encode(), "README.md": b"", "onnx/model.safetensors": b"o"})
        self.write("datasets/org/data/main", {**DATASET, "large/train.parquet": b"l"})
        server = self.enterContext(subprocess.Popen([sys.executable, SERVER, self.root / "hub"], stdout=subprocess.PIPE, text=True))
        self.addCleanup(server.kill)
        self.endpoint = f"http://127.0.0.1:{server.stdout.readline().split()[0]}"
        self.commit = huggingface_hub.HfApi(self.endpoint).model_info("org/model", revision="main").sha

    def write(self, folder, files):
        for name, content in files.items():
            path = self.root / "hub" / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)  # the server keeps earlier commits by hard links
            path.write_bytes(content)

    def set_faults(self, **faults):
        self.write("", {"faults.json": json.dumps(faults).encode()})

    def requests(self):
        return [json.loads(line) for line in (self.root / "hub/requests.jsonl").read_text().splitlines()]

    def sent_shards(self):
        return [request["path"].split("/", 3)[3] for request in self.requests() if request["path"].startswith("/storage/")]

    def start(self, command, environment):
        environment = {**ENVIRONMENT, "HOME": str(self.root), "HF_ENDPOINT": self.endpoint, **environment}
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def start_vlmtrain(self, reference="org/model", *options, **environment):
        return self.start([VLMTRAIN, "download", reference, "--json", *options], environment)

    def start_peer(self, arguments=MODEL_ARGUMENTS, **environment):
        return self.start([sys.executable, "-c", PEER, json.dumps(arguments)], environment)

    def finish(self, process):
        """Returns the folder of the snapshot or the paths of the data files."""
        output, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, errors)
        result = json.loads(output)
        return result if isinstance(result, str) else result["downloads"][0].get("folder") or result["downloads"][0]["files"]

    def run_vlmtrain(self, cache, reference="org/model", *options, **environment):
        return self.finish(self.start_vlmtrain(reference, *options, HF_HUB_CACHE=str(cache), **environment))

    def run_peer(self, cache, arguments=MODEL_ARGUMENTS, **more):
        return huggingface_hub.snapshot_download(cache_dir=cache, endpoint=self.endpoint, **arguments, **more)

    def test_the_same_files_give_the_same_cache(self):
        config_files = [pattern for pattern in MODEL_ARGUMENTS["allow_patterns"] if pattern not in SHARDS]
        for reference, arguments in {
                (f"org/model@{self.commit}", "--no-weights"): {**MODEL_ARGUMENTS, "revision": self.commit, "allow_patterns": config_files},
                ("org/model",): MODEL_ARGUMENTS, ("org/model@v1+a#2",): {**MODEL_ARGUMENTS, "revision": "v1+a#2"},
                ("hf://datasets/org/data@main/small:train",): DATASET_ARGUMENTS}.items():
            with self.subTest(reference):
                self.run_vlmtrain(self.ours, *reference)
                self.run_peer(self.theirs, arguments)
                self.assertEqual(describe(self.ours), describe(self.theirs))
                self.assertEqual((self.ours / "models--org--model/refs").exists(), "--no-weights" not in reference)  # a commit has no ref

    def test_each_reads_the_cache_of_the_other_offline(self):
        folder, data = self.run_peer(self.theirs), self.run_peer(self.theirs, DATASET_ARGUMENTS)
        before = describe(self.theirs), self.requests()
        self.assertEqual(self.run_vlmtrain(self.theirs, HF_HUB_OFFLINE="1"), folder)
        files = self.run_vlmtrain(self.theirs, "hf://datasets/org/data", TRANSFORMERS_OFFLINE="1")
        self.assertEqual(files, [f"{data}/small/train-0{i}.parquet" for i in (0, 1)])
        self.assertEqual((describe(self.theirs), self.requests()), before)

        folder, files = self.run_vlmtrain(self.ours), self.run_vlmtrain(self.ours, "hf://datasets/org/data")
        before = describe(self.ours), self.requests()
        self.assertEqual(self.run_peer(self.ours, local_files_only=True), folder)
        with self.assertRaises(IncompleteSnapshotError):  # as after its own download of these files
            self.run_peer(self.ours, {"repo_id": "org/model"}, local_files_only=True)
        for name, path in {**{name: f"{folder}/{name}" for name in MODEL}, "README.md": None}.items():
            self.assertEqual(huggingface_hub.try_to_load_from_cache("org/model", name, self.ours), path)
        self.assertEqual(huggingface_hub.try_to_load_from_cache("org/data", "small/train-00.parquet", self.ours, repo_type="dataset"), files[0])
        scan = huggingface_hub.scan_cache_dir(self.ours)
        self.assertEqual((scan.warnings, scan.incomplete_files), ([], frozenset()))
        revisions = {(repo.repo_type, repo.repo_id, *revision.refs) for repo in scan.repos for revision in repo.revisions}
        self.assertEqual(revisions, {("model", "org/model", "main"), ("dataset", "org/data", "main")})
        self.assertEqual((describe(self.ours), self.requests()), before)

    def test_each_waits_for_the_other_or_finishes_its_download(self):
        expected = self.root / "expected"
        self.run_peer(expected)
        partial_contents = f"*/blobs/{hashlib.sha256(MODEL[SHARDS[0]]).hexdigest()}*.incomplete"
        for start, finish_other, is_killed in [(self.start_vlmtrain, self.run_peer, False), (self.start_vlmtrain, self.run_peer, True),
                                               (self.start_peer, self.run_vlmtrain, False), (self.start_peer, self.run_vlmtrain, True)]:
            cache = self.root / f"{start.__name__}_{is_killed}"
            self.set_faults(pause=[SHARDS[0], PIECE_BYTES, 0.05])
            earlier = len(self.sent_shards())
            first = start(HF_HUB_CACHE=str(cache))
            while first.poll() is None and not any(path.stat().st_size > PIECE_BYTES for path in cache.glob(partial_contents)):
                time.sleep(0.01)
            if is_killed:
                first.kill()
                first.communicate()
                self.set_faults()
            finish_other(cache)
            if not is_killed:
                self.finish(first)
                self.assertEqual(len(self.sent_shards()[earlier:]), 2)  # two of the three shards are equal
            self.assertEqual(describe(cache), describe(expected))
            scan = huggingface_hub.scan_cache_dir(cache)
            self.assertEqual(scan.warnings, [])
            self.assertEqual(bool(scan.incomplete_files), is_killed)  # the peer downloads several files at once and may leave several
            self.assertTrue(all(file.size_on_disk < len(MODEL[SHARDS[0]]) for file in scan.incomplete_files))

    def test_a_new_commit(self):
        self.run_vlmtrain(self.ours)
        self.run_peer(self.theirs)
        self.write("models/org/model/main", {"config.json": b"new", SHARDS[1]: b"c" * 100})
        earlier = len(self.sent_shards())
        self.run_peer(self.ours)
        self.run_vlmtrain(self.theirs)
        self.assertEqual(self.sent_shards()[earlier:], [SHARDS[1]] * 2)
        self.assertEqual(describe(self.ours), describe(self.theirs))
        self.assertEqual(len(list((self.ours / "models--org--model/snapshots").iterdir())), 2)

    def test_variables_choose_the_same_cache_and_token(self):
        home = str(self.root / "home")
        self.write("models/org/tiny/main", {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b"w"})
        self.write("../home", {"token": b" hf_file\n", ".cache/huggingface/token": b"hf_default"})
        for token, environment in [
                ("hf_file", {"HF_HUB_CACHE": "~/a", "HF_HOME": home}), ("hf_default", {"XDG_CACHE_HOME": home + "/.cache"}),
                ("hf_variable", {"HF_HOME": "~", "XDG_CACHE_HOME": "/nonexistent", "HF_TOKEN": "hf_variable"})]:
            self.set_faults(private={"org/tiny": token})
            results = []
            for start, argument in ((self.start_vlmtrain, "org/tiny"), (self.start_peer, {"repo_id": "org/tiny"})):
                (self.root / "hub/requests.jsonl").unlink()
                folder = self.finish(start(argument, HOME=home, **environment))
                results.append((folder, {(request["path"].startswith("/storage/"), request["token"])
                                         for request in self.requests() if request["path"] != "/api/agent-harnesses"}))
                shutil.rmtree(Path(folder).parents[1])
            self.assertEqual(results[0], results[1])
            self.assertEqual(results[0][1], {(False, token), (True, "")})


if __name__ == "__main__":
    unittest.main()
