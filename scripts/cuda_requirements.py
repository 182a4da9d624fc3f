#!/usr/bin/env python3
"""Prints the CUDA wheels that a torch wheel's METADATA requires on Linux, one requirement a line.

    cuda_requirements.py torch-X.dist-info/METADATA

C++ needs only these; triton, sympy and networkx are used by Python only.
"""
import email
import sys

NAMES = ("nvidia-", "cuda-toolkit")

with open(sys.argv[1], encoding="utf-8") as file:
    metadata = email.message_from_file(file)
for requirement in metadata.get_all("Requires-Dist", []):
    specifier = requirement.split(";")[0].strip()
    if specifier.startswith(NAMES):
        print(specifier)
