"""The published language models, each as a vlmtrain checkpoint folder with that text model and an unused tower."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

PRESETS = Path(__file__).resolve().parents[2] / "configs" / "models"


@dataclass(frozen=True)
class Model:
    """A language model. `parameters`: the published number, which checks the model."""

    preset: str  # its config.json gives the other values
    parameters: float
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    vocab_size: int
    tie_word_embeddings: bool = False

    @property
    def head_width(self):
        return self.hidden_size // self.num_attention_heads

    @property
    def query_width(self):
        return self.hidden_size

    @property
    def key_width(self):
        return self.num_key_value_heads * self.head_width

    @property
    def linears(self):
        """Returns the input and output sizes of a block's seven linear layers."""
        h, k, f = self.hidden_size, self.key_width, self.intermediate_size
        return [(h, h), (h, k), (h, k), (h, h), (h, f), (h, f), (f, h)]

    def write(self, folder):
        config = json.loads((PRESETS / self.preset / "config.json").read_text())
        text = config["text_config"]
        text |= {key: value for key, value in asdict(self).items() if key not in ("preset", "parameters")}
        text["max_position_embeddings"] = 1 << 17
        config["tie_word_embeddings"] = self.tie_word_embeddings
        for file in (PRESETS / self.preset).iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        (folder / "config.json").write_text(json.dumps(config))


MODELS = {
    "Qwen2.5-0.5B": Model("internvl3-1b", 0.49e9, 896, 24, 14, 2, 4864, 151936, True),
    "Qwen2.5-1.5B": Model("internvl3-1b", 1.54e9, 1536, 28, 12, 2, 8960, 151936, True),
    "Qwen2.5-3B": Model("internvl3-1b", 3.09e9, 2048, 36, 16, 2, 11008, 151936, True),
    "Qwen2.5-7B": Model("internvl3-1b", 7.61e9, 3584, 28, 28, 4, 18944, 152064),
    "Qwen-1.8B": Model("internvl3-1b", 1.84e9, 2048, 24, 16, 16, 5504, 151936),
    "Qwen-7B": Model("internvl3-1b", 7.72e9, 4096, 32, 32, 32, 11008, 151936),
    "Qwen-14B": Model("internvl3-1b", 14.2e9, 5120, 40, 40, 40, 13696, 152064),
    "Llama-2-7B": Model("llava-1.5-7b", 6.74e9, 4096, 32, 32, 32, 11008, 32064),
    "Llama-2-13B": Model("llava-1.5-7b", 13.0e9, 5120, 40, 40, 40, 13824, 32064),
    "Llama-3-8B": Model("llava-1.5-7b", 8.03e9, 4096, 32, 32, 8, 14336, 128256),
    "Llama-3.2-3B": Model("llava-1.5-7b", 3.21e9, 3072, 28, 24, 8, 8192, 128256, True),
    "TinyLlama-1.1B": Model("llava-1.5-7b", 1.10e9, 2048, 22, 32, 4, 5632, 32064),
}
