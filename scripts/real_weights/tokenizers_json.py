"""Builds tokenizer.json from the tokens, merges and scores of a GGUF file."""

from gguf_model import CONTROL, USER_DEFINED

SPACE = "▁"


def added_token(number, content, is_special):
    return {"id": number, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": is_special}


def byte_level(model, added):
    """Returns tokenizer.json of a byte-level BPE with the pre-tokenizer "smollm": single digits, then GPT-2's words.
    `added`: further tokens with their ids."""
    tokens, types = model.tokens()
    kind, pre_tokenizer = model.field("tokenizer.ggml.model"), model.field("tokenizer.ggml.pre")
    assert (kind, pre_tokenizer) == ("gpt2", "smollm"), f"the tokenizer is {kind} with the pre-tokenizer {pre_tokenizer}"
    special = [added_token(number, text, True) for number, text in enumerate(tokens) if types[number] == CONTROL]
    byte_level_step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": special + [added_token(number, text, True) for text, number in sorted(added.items(), key=lambda item: item[1])],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level_step]},
        "post_processor": None,
        "decoder": {**byte_level_step, "add_prefix_space": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {text: number for number, text in enumerate(tokens)},
                  "merges": [merge.split(" ") for merge in model.field("tokenizer.ggml.merges")]},
    }  # fmt: skip


def sentencepiece_merges(vocabulary, scores, user_defined):
    """Returns the merges of a SentencePiece BPE: each way to put a piece together from two others, by the piece's score, as transformers'
    generate_merges. Pieces that the user defined (runs of spaces) come first, since SentencePiece takes them before it merges."""
    merges = []
    for piece, score in scores.items():
        is_later = piece not in user_defined
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocabulary and right in vocabulary:
                merges.append(((is_later, -score if is_later else vocabulary[piece], -len(left), -len(right)), [left, right]))
    merges.sort(key=lambda merge: merge[0])
    return [pair for _, pair in merges]


def sentencepiece(model, beginning, special, added):
    """Returns tokenizer.json of Gemma's SentencePiece BPE. `beginning`: the first token of every text; `special`: texts of
    user-defined tokens that are not text; `added`: further tokens with their ids."""
    tokens, types = model.tokens()
    assert model.field("tokenizer.ggml.model") == "llama" and not model.field("tokenizer.ggml.add_space_prefix")
    # The converter wrote the spaces of user-defined pieces literally.
    pieces = [text.replace(" ", SPACE) if types[number] == USER_DEFINED else text for number, text in enumerate(tokens)]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    scores = dict(zip(pieces, model.field("tokenizer.ggml.scores"), strict=True))
    runs = {piece for number, piece in enumerate(pieces) if types[number] == USER_DEFINED and len(set(piece)) == 1}
    skipped = {piece for number, piece in enumerate(pieces) if types[number] in (CONTROL, USER_DEFINED) and piece not in runs}
    merges = sentencepiece_merges(vocabulary, {piece: score for piece, score in scores.items() if piece not in skipped}, runs)
    own = [added_token(number, piece, types[number] == CONTROL or piece in special)
           for number, piece in enumerate(pieces) if types[number] in (CONTROL, USER_DEFINED)]
    token = {"SpecialToken": {"id": beginning, "type_id": 0}}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": own + [added_token(number, text, True) for text, number in added.items()],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
        "post_processor": {
            "type": "TemplateProcessing", "single": [token, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [token, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": beginning, "type_id": 1}},
                     {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {beginning: {"id": beginning, "ids": [vocabulary[beginning]], "tokens": [beginning]}}},
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                                                     {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": True, "byte_fallback": True, "ignore_merges": False, "vocab": vocabulary, "merges": merges},
    }  # fmt: skip
