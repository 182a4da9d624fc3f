"""The cases of all model families. A family more is one word here and its module, with a table CASES and a class Family."""

from families import gemma3, gemma4, idefics3, internvl, llava, nanovlm, qwen, smolvlm_video, text

MODULES = (idefics3, llava, qwen, internvl, smolvlm_video, gemma3, gemma4, nanovlm, text)
CASES = {case.name: (module, case) for module in MODULES for case in module.CASES}


def find(name, data):
    """Returns the case of this name in the folder `data`, not yet open."""
    module, case = CASES[name]
    return module.Model(case, data / name)
