"""SmolVLM2's videos."""

from transformers.models.smolvlm.processing_smolvlm import DEFAULT_CHAT_TEMPLATE

from library import idefics3_checkpoints, smolvlm_video_format
from library.cases import MOVING, WORDS, Case, sample, with_video
from library.family import Family
from library.idefics3_checkpoints import Shape


class Model(Family):
    checkpoints, format = idefics3_checkpoints, smolvlm_video_format


AGAIN = with_video(sample("again", [], "<video>\nIs there a ball?", "Yes.", "Which colour is the ball?", "It is red."), "door")
CASES = [
    Case(
        name="smolvlm_video",
        about="SmolVLM2's videos, files as published: one of them long enough that its first and last second are left out",
        shape=Shape(
            model_type="smolvlm", seed=16, tie_embeddings=True, text={"num_key_value_heads": 1},
            chat_template=DEFAULT_CHAT_TEMPLATE,
            video_sampling={"fps": 1, "max_frames": 2, "video_size": {"longest_edge": 32}},
        ),
        samples=[MOVING, WORDS, AGAIN], generate="moving",
    ),
]
