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


def train(vocabulary_size, corpus=CORPUS):
    """vocabulary_size counts all entries, with the vision tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size - len(VISION_TOKENS),
        min_frequency=1,
        special_tokens=FIRST_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_special_tokens(VISION_TOKENS)
    assert tokenizer.get_vocab_size() == vocabulary_size, "the corpus is too small for this vocabulary"
    return tokenizer
