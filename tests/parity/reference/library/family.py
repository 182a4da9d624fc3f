"""A case of one model family: its checkpoint, its samples as transformers sees them, and models of it."""

from contextlib import nullcontext

import torch

from library import deviations, training


class Family:
    """The case `case` in `folder`. A family states the first three and overrides what is particular to it.

    checkpoints: a module with write(shape, folder) and make_processor(shape, folder). format: a module with encode(processor,
    shape, record, root, turns). has_normalization: case.json has the mean and deviation of pixels.
    """

    checkpoints = format = None
    has_normalization = False

    def __init__(self, case, folder):
        self.case, self.shape = case, case.shape
        self.checkpoint, self.images = folder / "checkpoint", folder / "images"

    def write(self):
        self.checkpoints.write(self.shape, self.checkpoint)

    def open(self):
        """Reads from the checkpoint what encode() uses, and returns self."""
        self.processor = self.checkpoints.make_processor(self.shape, self.checkpoint)
        return self

    def encode(self, record, turns=None):
        return self.format.encode(self.processor, self.shape, record, self.images, turns)

    def encode_all(self):
        return [self.encode(record) for record in self.case.samples]

    def patched(self):
        """A context in which transformers is as the case has it."""
        return nullcontext()

    def load(self, dtype=torch.float32, attention="sdpa"):
        return training.load(self.checkpoint, dtype, attention)

    def generate(self, model, prompt, tokens, ends=True):
        """Returns greedy token ids, and the smallest lead of a chosen token. ends: a token that ends an answer stops."""
        return training.generate(model, training.forward_inputs(prompt, torch.float32), tokens, ends)

    def own_names(self, tensors):
        """Returns parameters by the names of the checkpoint's own code."""
        return tensors

    def stored_ids(self, ids):
        return ids

    def more_tensors(self, samples):
        """Returns what expected.safetensors has in addition."""
        return {}

    def normalization(self):
        processor = self.processor.image_processor
        return {"image_mean": list(processor.image_mean), "image_std": list(processor.image_std)}

    def describe(self, samples, single, deviation):
        """Returns what case.json has in addition. single: of float32; deviation: of deviations.compare()."""
        return {"deviation": deviations.summary(deviation)}
