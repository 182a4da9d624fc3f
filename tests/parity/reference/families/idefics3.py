"""Idefics3 and SmolVLM. deviations.json has, for each case, how far float32 (what is stored) is from float64."""

from library import deviations, idefics3_checkpoints, idefics3_format, training
from library.cases import Case, sample
from library.idefics3_checkpoints import Shape
from library.family import Family


class Model(Family):
    checkpoints, format = idefics3_checkpoints, idefics3_format

    def describe(self, samples, single, deviation):
        eager = training.run(self.load(attention="eager"), samples)
        padded = training.padded_loss(self.load(), samples, self.processor.tokenizer.pad_token_id)
        deviations.store(self.checkpoint.parents[1], self.case.name, deviation | {
            "eager_loss": abs(eager.loss - single.loss).item(),
            "padded_batch_loss": abs(padded - single.loss).item(),
        })
        return {}


CASES = [
    Case(
        name="grouped_tied_one_image",
        about="grouped queries, tied embeddings, one image that is not split, chat template in chat_template.json",
        shape=Shape(
            seed=11, tie_embeddings=True, text={"num_hidden_layers": 3, "rope_theta": 10000.0}, tile_side=48, split_images=False,
            chat_template_file="chat_template.json",
        ),
        images={"cat.png": (70, 53, 1, "RGB")},
        samples=[
            sample("one", ["cat.png"], "<image>\nWhat is shown in this picture?", "A cat on the table, near 2 balls."),
        ],
        generate="one",
    ),
    Case(
        name="full_heads_untied_tiles",
        about="as many key as query heads, its own lm_head, two images in tiles of different grids, two rounds, "
        "config.json with the gaps and the strange keys of published ones",
        shape=Shape(seed=12, text={"num_key_value_heads": 4}, omit_defaults=True),
        images={"wide.jpg": (90, 60, 2, "RGB"), "tall.png": (45, 81, 3, "L")},
        samples=[
            sample(
                "two_rounds", ["wide.jpg", "tall.png"],
                "<image>\nDescribe the first image.", "It shows the right kidney with a stone.",
                "<image>\nAnd this one? Is there a fracture?", "No, there is none; the outline is smooth.",
            ),
        ],
        generate="two_rounds",
    ),
    Case(
        name="smolvlm_type_sharded",
        about="model_type smolvlm, head_dim of its own, more vocabulary rows than tokens, shards, three images in one turn, "
        "files as transformers 5 saves them",
        shape=Shape(
            model_type="smolvlm", layout="saved", seed=13, vocabulary_size=408, longest_edge=64,
            text={"hidden_size": 48, "head_dim": 16, "rope_theta": 273768.0},
            shards={
                "model.vision_model": "model-00001-of-00003.safetensors",
                "model.connector": "model-00001-of-00003.safetensors",
                "model.text_model": "model-00002-of-00003.safetensors",
                "model.text_model.layers.1": "model-00003-of-00003.safetensors",
                "lm_head": "model-00003-of-00003.safetensors",
            },
        ),
        images={
            "a.png": (64, 64, 4, "RGB"), "b.jpg": (120, 40, 5, "RGB"), "c.png": (33, 47, 6, "RGB"),
        },
        samples=[
            sample(
                "three", ["a.png", "b.jpg", "c.png"],
                "<image>\n<image>\n<image>\nHow many images are there?", "There are three images, and the third is darker.",
            ),
        ],
        generate="three",
    ),
    Case(
        name="text_only",
        about="no image: the vision tower gets no gradient and AdamW leaves it alone, decay included",
        shape=Shape(seed=14, text={"num_hidden_layers": 3, "num_key_value_heads": 1}),
        samples=[
            sample(
                "words", [],
                "Which colour is the ball?", "The ball is red. It isn't on the table!",
                "How many are there?", "42",
                "Grüße, 東京?", "Ça va… 🙂",
            ),
        ],
    ),
    Case(
        name="mixed_batch",
        about="four samples of unequal length and label count in one step",
        shape=Shape(seed=15, text={"num_key_value_heads": 1}, tie_embeddings=True),
        images={
            "small.png": (30, 30, 7, "RGB"), "strip.jpg": (96, 32, 8, "RGB"), "tall.jpg": (50, 90, 9, "RGB"),
        },
        samples=[
            sample("words", [], "Is there a fracture?", "No."),
            sample("square", ["small.png"], "<image>\nWhat has changed?", "The heart is enlarged and the vessels are wide."),
            sample("row", ["strip.jpg"], "<image>\nHow many?", "3"),
            sample(
                "two", ["strip.jpg", "tall.jpg"],
                "<image>\n<image>\nCompare the two pictures.", "The first one has more contrast than the other one.",
                "Say more.", "There is no fluid at the base of the lung, and the size is normal.",
            ),
        ],
    ),
]
