"""A GGUF file: metadata, and tensors as fp32."""

import gguf
import numpy as np

from source import BadSource

# Types of tokens (llama.cpp, enum llama_token_type).
NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6


class GgufModel:
    """Reads a GGUF file. Keys of the architecture omit its name: value("block_count")."""

    def __init__(self, path, architecture):
        self.reader = gguf.GGUFReader(path)
        result = self.field("general.architecture")
        if result != architecture:
            raise BadSource(f"{path}: is a model of architecture {result}; needs {architecture}")
        self.architecture = architecture
        self.tensors = {tensor.name: tensor for tensor in self.reader.tensors}

    def field(self, key):
        return self.reader.fields[key].contents()

    def value(self, key):
        return self.field(f"{self.architecture}.{key}")

    def tensor(self, name):
        """Returns fp32 [rows, columns]; GGUF names the columns first. Values of quantized types are dequantized."""
        tensor = self.tensors[name]
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        return values.reshape([int(size) for size in reversed(tensor.shape)])

    def tokens(self):
        """Returns the texts of the tokens, and their types."""
        return self.field("tokenizer.ggml.tokens"), self.field("tokenizer.ggml.token_type")
