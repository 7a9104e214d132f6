"""What the programs of this folder share: one line for each figure, and several figures in one process."""
import gc
import sys
import traceback

import torch


def report(label, measure="allocated"):
    """Prints PyTorch's peak in bytes: allocated, active or reserved."""
    torch.cuda.synchronize()
    print("figure", label, torch.cuda.memory_stats()[f"{measure}_bytes.all.peak"], flush=True)


def clean():
    """Leaves PyTorch's allocator as it is in a new process."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved()
    if held:
        raise RuntimeError(f"{held} bytes are reserved before the next figure; expected 0")
    torch.cuda.reset_peak_memory_stats()


def measure_each(main):
    """Calls main with the words up to each `+`."""
    words, failed = sys.argv[1:], False
    while words:
        end = words.index("+") if "+" in words else len(words)
        mine, words = words[:end], words[end + 1 :]
        try:
            main(*mine)
        except Exception:
            traceback.print_exc()
            failed = True
        if words:
            clean()
    sys.exit(1 if failed else 0)
