"""documents.json: what transformers makes of documents, texts and images in turn without a chat template.

For cases of families/. `ids` are those of processor(text=..., images=...), with the image token of the family in the text and, at its
end, eos_token, which trl appends to a text. `label_ids` are the ids that the tokenizer gives each text between images, and eos_token,
without the first token of the document.
"""

import PIL.Image
import tokenizers
from transformers import AutoProcessor, AutoTokenizer

from library.cases import write_lines

NAMES = ["documents"]
VISION = "<|vision_start|><|image_pad|><|vision_end|>"
# case, the text of an image, the token of eos_token_id where the checkpoint has no tokenizer_config.json
CASES = [
    ("qwen2_5_vl_mixed", VISION, "<|im_end|>"),
    ("qwen3_vl_mixed", VISION, "<|im_end|>"),
    ("smolvlm_type_sharded", "<image>", None),
    ("mixed_batch", "<image>", None),
    ("llava_siglip_qwen2", "<image>", None),
    ("gemma3_saved", "<start_of_image>", None),
    ("qwen3_text", None, None),
    ("llama_text", None, None),
    ("gemma3_text", None, None),
]
TEXTS = [
    "A short text.",
    "Two paragraphs, 42 words.\n\nGrüße, 東京: it isn't the end … 🙂\n",
    " <video> begins with a space and a tag; <|im_start|>user",
]


def documents(folder):
    """The records, each with the texts (str) and images (Path) it stands for."""
    files = sorted((folder / "images").glob("*.*"))
    names = [path.name for path in files]
    first, second = files[0], files[-1]
    yield {"texts": ["Before.", None, "Between, 7 mm.", None], "images": [None, names[0], None, names[-1]]}, [
        "Before.", first, "Between, 7 mm.", second,
    ]
    yield {"texts": [None, " After\nit."], "images": [names[-1], None]}, [second, " After\nit."]
    yield {
        "text_list": ["One.", "Two follows.", "Three."],
        "image_info": [{"image_name": names[0], "matched_text_index": 1}, {"image_name": names[-1], "matched_text_index": 1}],
    }, ["One.", first, second, "Two follows. Three."]
    yield {
        "document": [{"type": "text", "text": "See"}, {"type": "image", "image": names[0]}, "and go."],
    }, ["See", first, "and go."]
    yield {"text": "A <image> in a text.", "images": [names[0]]}, ["A ", first, " in a text."]
    yield {"text": "A caption.", "image": names[0]}, [first, "A caption."]


def load(folder, has_images):
    processor = AutoProcessor.from_pretrained(folder) if has_images else AutoTokenizer.from_pretrained(folder)
    # transformers 5 gives Qwen's tokenizers its own pattern of words, whatever tokenizer.json has.
    tokenizer = getattr(processor, "tokenizer", processor)
    file = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.backend_tokenizer.pre_tokenizer = file.pre_tokenizer
    return processor


def encode(processor, tokenizer, case, image_text, pieces, eos_token):
    text = "".join(piece if isinstance(piece, str) else image_text for piece in pieces) + eos_token
    images = [PIL.Image.open(piece).convert("RGB") for piece in pieces if not isinstance(piece, str)]
    if images:
        nested = case.startswith(("mixed", "smol", "gemma"))
        ids = processor(text=[text], images=[images] if nested else images)["input_ids"][0]
    else:
        ids = tokenizer(text)["input_ids"]
    ids = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    labels = []
    for piece in pieces:
        if isinstance(piece, str):
            labels += tokenizer(piece, add_special_tokens=False)["input_ids"]
    labels += tokenizer(eos_token, add_special_tokens=False)["input_ids"]
    return ids, labels if ids[0] != labels[0] or not isinstance(pieces[0], str) else labels[1:]


def make(_, data):
    result = []
    for case, image_text, eos_token in CASES:
        processor = load(data / case / "checkpoint", image_text is not None)
        tokenizer = getattr(processor, "tokenizer", processor)
        end = tokenizer.eos_token if eos_token is None else eos_token
        pairs = [({"text": text}, [text]) for text in TEXTS]
        if image_text is not None:
            pairs += documents(data / case)
        for record, pieces in pairs:
            ids, labels = encode(processor, tokenizer, case, image_text, pieces, end)
            result.append({"case": case, "record": record, "ids": ids, "label_ids": labels})
    write_lines(data / "documents.json", result)
