"""A tokenizer of SmolVLM's make with a few hundred entries: digits apart, byte-level BPE, the vision tokens at the end."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

FIRST_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VISION_TOKENS = [
    "<global-img>",
    *[f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)],
    "<fake_token_around_image>",
    "<image>",
    "<end_of_utterance>",
]

# As in SmolVLM's own vocabulary, a blank line is one token: it stands between the tiles and the global image.
CORPUS = [
    "User: What is shown in this picture? Assistant: A cat on the table.\n\nUser: Which colour is the ball?",
    "Assistant: The scan shows a small round mass in the left upper lobe of the lung, and no fluid at the base.",
    "Describe the second image. It shows the right kidney with a stone; the outline is smooth and the size is normal.",
    "Is there a fracture? No, there is none. How many images are there? There are three images, and the third is darker.",
    "The heart is enlarged and the vessels are wide. The first one has more contrast than the other one.\n\n",
    "Compare the two pictures and say what has changed between them since the last examination in 2019.\n\n",
]


def byte_level(size, added_tokens):
    """A byte-level tokenizer of the given size before the added tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens(added_tokens)
    return tokenizer


def digits_apart(size):
    """A byte-level tokenizer of SmolLM2's make, FIRST_TOKENS included."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, min_frequency=1, special_tokens=FIRST_TOKENS, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def train(size):
    """A tokenizer of SmolVLM's make; size counts all entries, with the vision tokens."""
    tokenizer = digits_apart(size - len(VISION_TOKENS))
    tokenizer.add_special_tokens(VISION_TOKENS)
    assert tokenizer.get_vocab_size() == size, "the corpus is too small for this vocabulary"
    return tokenizer
