"""PyTorch's own figures of a program on simulated cards, and its record of allocations as a trace."""
import atexit
import importlib.abc
import importlib.machinery
import json
import os
import sys

_history = os.environ.get("SIMCUDA_TORCH_HISTORY", "")
_folder = os.environ.get("SIMCUDA_REPORT", "")
_pid = os.getpid()
_before_reset = {}  # device: the peaks that a program has reset


class _after_torch(importlib.abc.MetaPathFinder):
    """Switches the record on as soon as torch has been imported; PyTorch runs it when its first card is used."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            _keep_peaks(module)
            if os.environ.get("SIMCUDA_WATCH") == "1":
                import gpumem_referee

                gpumem_referee.watch_torch(module)
            if _history:
                module.cuda._lazy_call(_record)

        spec.loader.exec_module = exec_module
        return spec


def _record():
    import torch

    torch.cuda.memory._record_memory_history(max_entries=sys.maxsize, stacks="python", context=None)


def _keep_peaks(torch):
    """A program may reset PyTorch's peaks; the largest of all is what the card has to hold."""
    reset = getattr(torch._C, "_cuda_resetPeakMemoryStats", None)
    if reset is None:
        return

    def reset_and_keep(device):
        try:
            _note_peaks(torch, device)
        except Exception:  # the program sees what it would see without this
            pass
        return reset(device)

    torch._C._cuda_resetPeakMemoryStats = reset_and_keep


_peak_names = {
    "peak_allocated_bytes": "allocated_bytes.all.peak",
    "peak_requested_bytes": "requested_bytes.all.peak",
    "peak_reserved_bytes": "reserved_bytes.all.peak",
}


def _note_peaks(torch, device):
    stats = torch.cuda.memory_stats(device)
    kept = _before_reset.setdefault(device, dict.fromkeys(_peak_names, 0))
    for name, key in _peak_names.items():
        kept[name] = max(kept[name], stats.get(key, 0))
    return kept, stats


def watch():
    sys.meta_path.insert(0, _after_torch())
    atexit.register(_at_end)


def _at_end():
    torch = sys.modules.get("torch")
    if torch is None or os.getpid() != _pid or not getattr(torch, "cuda", None) or not torch.cuda.is_initialized():
        return
    try:
        figures = {"version": str(torch.__version__), "allocator": "unknown", "cards": []}
        figures["allocator"] = torch.cuda.memory.get_allocator_backend()
        if figures["allocator"] != "pluggable":
            for device in range(torch.cuda.device_count()):
                figures["cards"].append(_of(torch, device))
        trace = None
        if _history and figures["allocator"] == "native":
            try:
                trace = _write_trace(torch)
            except Exception as wrong:  # a full disk: the figures are as good without a trace
                figures["trace_error"] = f"{type(wrong).__name__}: {wrong}"
        if trace is not None:
            figures["trace"] = trace
        if os.environ.get("SIMCUDA_TORCH_SNAPSHOT") and trace is not None:
            torch.cuda.memory._dump_snapshot(os.environ["SIMCUDA_TORCH_SNAPSHOT"])
    except Exception as wrong:  # the program's end must not change for it
        figures = {"error": f"{type(wrong).__name__}: {wrong}"}
    path = os.path.join(_folder, f"{_pid}.torch.json")
    with open(path + ".part", "w", encoding="utf-8") as out:
        json.dump(figures, out)
    os.replace(path + ".part", path)


def _of(torch, device):
    peaks, stats = _note_peaks(torch, device)
    return {
        **peaks,
        "ooms": stats.get("num_ooms", 0),
        "retries": stats.get("num_alloc_retries", 0),
    }


def _write_trace(torch):
    """RMM's CSV of the first card with a record: what the program requested, and frees when it asked for them."""
    recorded = {device: entries for device, entries in enumerate(torch.cuda.memory._snapshot()["device_traces"])
                if any(each["action"] == "alloc" for each in entries)}
    for device, entries in recorded.items():
        path = own_path(_history, _pid)
        return {"device": device, "rows": write_rows(entries, path), "file": path, "cards": len(recorded)}
    return None


def own_path(path, pid):
    """A file for each process: run.csv.gz is run.pid7.csv.gz for process 7, and stays a trace by its ending."""
    packed = ".gz" if path.endswith(".gz") else ""
    stem, ending = os.path.splitext(path.removesuffix(packed))
    return f"{stem}.pid{pid}{ending}{packed}"


def write_rows(entries, path):
    rows = 0
    live = {}
    start = entries[0].get("time_us", 0)
    if path.endswith(".gz"):
        import gzip as how
    else:
        import builtins as how
    with how.open(path, "wt", encoding="ascii") as out:
        out.write("Thread,Time,Action,Pointer,Size,Stream\n")
        for each in entries:
            action = each["action"]
            address = each["addr"]
            if action == "alloc":
                live[address] = size = each["size"]
                word = "allocate"
            elif action == "free_requested" and address in live:
                size = live.pop(address)
                word = "free"
            else:
                continue
            us = max(0, int(each.get("time_us", start) - start))
            seconds, us = divmod(us, 1_000_000)
            minutes, seconds = divmod(seconds, 60)
            hours, minutes = divmod(minutes, 60)
            stamp = f"{hours:02}:{minutes:02}:{seconds:02}:{us:06}"
            out.write(f"1,{stamp},{word},{address:#x},{size},{each['stream']}\n")
            rows += 1
    return rows
