"""A conversation for Gemma 3: text as its chat template writes it, token ids, the label mask, images.

Labels are the answer and <end_of_turn>.
"""

from PIL import Image

from library.conversation import IMAGE_MARK, Encoded, image_paths, join, label_mask

START = "<start_of_image>"


def blocks(turn):
    """The template writes the texts around images without their outer white space."""
    return START.join(part.strip() for part in turn.split(IMAGE_MARK))


def expanded(image_tokens, crops):
    """Returns the tokens of an image, written here from the definition."""
    one = f"\n\n{START}{'<image_soft_token>' * image_tokens}<end_of_image>\n\n"
    if crops == 0:
        return one
    return f"Here is the original image {one} and here are some crops to help you see better " + " ".join([one] * crops)


def render(turns, images):
    """The text with images[i] in place of the i-th image, and the character spans of the answers."""
    images, result = iter(images), []
    for index, turn in enumerate(turns):
        pieces = blocks(turn).split(START)
        words = pieces[0] + "".join(next(images) + piece for piece in pieces[1:])
        if index % 2 == 0:
            result.append((f"<start_of_turn>user\n{words}<end_of_turn>\n<start_of_turn>model\n", False))
        else:
            result += [(f"{words}<end_of_turn>", True), ("\n", False)]
    return join(result)


def encode(processor, shape, sample, root, turns=None):
    """With `turns`: only so many, and the generation prompt."""
    texts = [turn["value"] for turn in sample["conversations"]][:turns]
    count = sum(text.count(IMAGE_MARK) for text in texts)
    source_images = [Image.open(path) for path in image_paths(sample, root)[:count]]
    text, _ = render(texts, [START] * count)
    # The processor passes over what its file says of pan and scan: it is an argument of a call.
    inputs = dict(processor(text=[text], images=[source_images] if source_images else None, return_tensors="pt", **shape.crops))
    crops = processor.image_processor(source_images, **shape.crops)["num_crops"] if source_images else []
    ids = inputs.pop("input_ids")[0]
    inputs.pop("attention_mask")
    full, spans = render(texts, [expanded(shape.tokens_per_image, number) for number in crops])
    return Encoded(
        input_ids=ids,
        label_mask=label_mask(processor.tokenizer, full, spans, ids),
        pixel_values=inputs.get("pixel_values"),
        grids=[(1, 1 + number) for number in crops],
        text=text,
        model_inputs=inputs,
    )
