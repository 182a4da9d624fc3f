"""Allocates a GPU's memory on request, like another process on the GPU, and frees it at the end of its input.

    python gpu_filler.py cuda:0

Prints "ready" once it has a context. The line "leave BYTES" allocates all memory of the GPU except that many bytes, "take BYTES"
allocates that many; each is answered by "took BYTES". Needs torch.
"""

import sys

import torch

# Another process may have allocated memory since the query.
ATTEMPTS, STEP_BACK_BYTES = 8, 64 * 2 ** 20


def take(device, word, size, blocks):
    """Allocates memory, appends it to `held` and returns its bytes."""
    for attempt in range(ATTEMPTS):
        wanted_bytes = size if word == "take" else torch.cuda.mem_get_info(device)[0] - size
        wanted_bytes -= attempt * STEP_BACK_BYTES
        if wanted_bytes <= 0:
            return 0
        try:
            blocks.append(torch.empty(wanted_bytes, dtype=torch.uint8, device=device))
            return wanted_bytes
        except torch.OutOfMemoryError:
            pass
    raise SystemExit(f"gpu_filler: {device}: cannot allocate {size} bytes")


def main():
    device, blocks = torch.device(sys.argv[1]), []
    torch.zeros(1, device=device)
    print("ready", flush=True)
    for line in sys.stdin:
        word, size = line.split()
        print("took", take(device, word, int(size), blocks), flush=True)


if __name__ == "__main__":
    main()
