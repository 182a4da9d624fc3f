"""Token ids and labels: vlmtrain's against transformers' processor, on records and on texts that tokenizers disagree about."""

import json

import results
from bench import ROOT
from peer import Peer

RECORDS = 6
TEXTS = [
    (ROOT / "README.md").read_text(),
    (ROOT / "tests" / "real_weights" / "bench.py").read_text(),
    "Spaces:  two   three    four,\ttab\t\ttabs, \n\n\nblank lines \r\n and trailing   ",
    "12345 3.14159 1,000,000 don't I'LL we've 'quoted' x²₃ ½ Ⅷ",
    "naïve café Ærøskøbing Ελληνικά русский 日本語の文章 中文分词 한국어 عربي עברית हिन्दी ไทย",
    "emoji 🙂👩‍👩‍👧‍👦🏳️‍🌈 zero\u200bwidth combining e\u0301 \ufffd",
    "<table><tr>not a token</tr></table> <|endoftext <start_of_ turn> [INST]",
]


def text_records():
    return [{"id": f"text-{index}", "conversations": [{"from": "human", "value": text}, {"from": "gpt", "value": text[-200:]}]}
            for index, text in enumerate(TEXTS)]


def check(bench, model):
    records = bench.records("eval")[:RECORDS] + text_records()
    path = bench.work / "token-records.json"
    path.write_text(json.dumps(records))
    peer = Peer(bench, model, "fp32", device="cpu")
    peer.batches.samples = {record["id"]: record for record in records}
    peer.batches.order = [[record["id"]] for record in records]
    different, count = [], 0
    for place, record in enumerate(records):
        shown = json.loads(bench.run([bench.vlmtrain, "generate", "--checkpoint", bench.checkpoint(model), "--data", path,
                                      "--record", place + 1, "--show-prompt", "--json", f"data.image_root={bench.image_root}"]))
        batch = peer.batches[place]
        ids, labels = batch["input_ids"][0].tolist(), (batch["labels"][0] >= 0).tolist()
        count += len(ids)
        if shown["token_ids"] != ids or [bool(value) for value in shown["is_label"]] != labels:
            different.append(record["id"])
    text = f"{len(records) - len(different)} of {len(records)} records have equal token ids and labels, {count:,} tokens"
    return results.judged(not different, text, tokens=count, different=different)
