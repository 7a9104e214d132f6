"""Collects PyTorch's own figures of a program on simulated cards, and its record of allocations as a trace."""
import atexit
import functools
import importlib.abc
import importlib.machinery
import json
import os
import signal
import sys
import time

_history = os.environ.get("SIMCUDA_TORCH_HISTORY", "")
_folder = os.environ.get("SIMCUDA_REPORT", "")
_pid = os.getpid()
_before_reset = {}  # device -> peaks that the program has reset
_no_record = ""  # why PyTorch's allocations are not recorded


class _after_torch(importlib.abc.MetaPathFinder):
    """Enables the record when torch has been imported; PyTorch starts it at the first use of a card."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            # Only now, because a program may first ask whether there is a torch (importlib.util.find_spec), as
            # transformers does: it drops that spec, and the import asks for another.
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            execute(module)
            _keep_peaks(module)
            _notice_one_rank(module)
            if os.environ.get("SIMCUDA_WATCH") == "1":
                import gpumem_referee

                gpumem_referee.watch_torch(module)
            if os.environ.get("SIMCUDA_VALUES", "0") != "0" and hasattr(module.cuda, "_lazy_call"):
                import gpumem_values

                module.cuda._lazy_call(lambda: gpumem_values.compute(module))
            if _history:
                _keep_record(module)
                module.cuda._lazy_call(_record)

        spec.loader.exec_module = exec_module
        return spec


def _records(torch):
    """Whether PyTorch's allocator can record: among PyTorch's own, only the native one can."""
    return torch.cuda.memory.get_allocator_backend() == "native"


def _record():
    global _no_record
    try:
        import torch

        if _records(torch) and not _own["on"]:  # else it already records, with the program's choice of tracebacks
            _own["is_run"] = True
            torch.cuda.memory._record_memory_history(max_entries=sys.maxsize, stacks="python", context=None)
    except Exception as wrong:  # the program can run without a record
        _no_record = f"PyTorch does not record its allocations: {type(wrong).__name__}: {wrong}"
    _own["is_run"] = False


# Parameters of torch._C._cuda_record_memory_history, in order, and their values for the record of a run.
_recording = ("enabled", "context", "stacks", "max_entries", "clear_history", "compile_context",
              "global_record_annotations", "skip_actions", "record_pinned_host_memory", "record_cuda")
_needed = {"enabled": "all", "max_entries": sys.maxsize, "clear_history": False, "skip_actions": [],
           "record_cuda": True}
_own = {"on": False, "is_run": False}  # the program's own record; `is_run`: the run's is being enabled
_whole_snapshot = None  # torch._C._cuda_memorySnapshot


def _keep_record(torch):
    """Lets the program use PyTorch's record, but not disable, clear or shorten the run's.

    Tracebacks are recorded as the program requests, and its snapshots have only the entries that it requested.
    """
    global _whole_snapshot
    change = getattr(torch._C, "_cuda_record_memory_history", None)
    change_legacy = getattr(torch._C, "_cuda_record_memory_history_legacy", None)
    if change is None:
        return

    def change_and_keep(*values, **named):
        if not _records(torch):
            return change(*values, **named)
        asked = {**dict(zip(_recording, values)), **named}
        if not _own["is_run"]:
            _note_own(asked)
        if asked.get("enabled", "all") is None:
            asked["context"], asked["stacks"] = None, "python"
        # The last parameters differ between versions of PyTorch, so pass only those that the caller passed.
        kept = {name: _needed.get(name, value) for name, value in asked.items()}
        return change(*(kept[name] for name in _recording[:len(values)]),
                      **{name: kept[name] for name in named})

    def change_legacy_and_keep(enabled, record_context=True, max_entries=1, alloc_context=False, cpp_context=False,
                               *others, **named):
        if not _records(torch):
            return change_legacy(enabled, record_context, max_entries, alloc_context, cpp_context, *others, **named)
        context = "alloc" if alloc_context else "state" if record_context else None
        torch.cuda.memory._record_memory_history("all" if enabled else None, context, "all" if cpp_context else "python")

    def own_snapshot(*values):
        seen = _whole_snapshot(*values)
        if _records(torch) and isinstance(seen.get("device_traces"), list):
            seen["device_traces"] = [_own_entries(device, all) for device, all in enumerate(seen["device_traces"])]
        return seen

    _whole_snapshot = getattr(torch._C, "_cuda_memorySnapshot", None)
    if _whole_snapshot is not None:
        torch._C._cuda_memorySnapshot = own_snapshot
    torch._C._cuda_record_memory_history = change_and_keep
    if change_legacy is not None:
        torch._C._cuda_record_memory_history_legacy = change_legacy_and_keep


def _note_own(asked):
    """Starts the program's record at the next entry, unless it was already enabled and is not cleared."""
    on = asked.get("enabled", "all") == "all" and asked.get("record_cuda", True)
    if _whole_snapshot is not None and on and (not _own["on"] or asked.get("clear_history", False)):
        _own["since"] = [len(entries) for entries in _whole_snapshot(None)["device_traces"]]
    _own.update(on=on, most=asked.get("max_entries", sys.maxsize), skipped=asked.get("skip_actions") or ())


def _own_entries(device, entries):
    if not _own["on"]:
        return []
    since = _own["since"][device] if device < len(_own["since"]) else 0
    seen = [each for each in entries[since:] if each["action"] not in _own["skipped"]]
    return seen[-_own["most"]:]


def _keep_peaks(torch):
    """Keeps PyTorch's peaks when the program resets them, because the card must hold the largest."""
    reset = getattr(torch._C, "_cuda_resetPeakMemoryStats", None)
    if reset is None:
        return

    def reset_and_keep(device):
        try:
            _note_peaks(torch, device)
        except Exception:  # the program must not notice
            pass
        return reset(device)

    torch._C._cuda_resetPeakMemoryStats = reset_and_keep


def _notice_one_rank(torch):
    """Sets SIMCUDA_ONE_RANK for a job over a HashStore, which no other process can reach. The simulated NCCL then assumes
    that the other ranks send the same data."""
    distributed = getattr(torch, "distributed", None)
    start = getattr(distributed, "init_process_group", None)
    if start is None or not hasattr(distributed, "HashStore"):
        return

    @functools.wraps(start)
    def start_and_notice(*values, **named):
        store = named.get("store")
        while isinstance(store, distributed.PrefixStore):
            store = store.underlying_store
        if isinstance(store, distributed.HashStore):
            os.environ["SIMCUDA_ONE_RANK"] = "1"
        return start(*values, **named)

    distributed.init_process_group = start_and_notice


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
    _follow_children()
    _wait_for_figures_of_killed()


def _wait_for_figures_of_killed():
    """Lets processes write their figures when this one asks them to end (SIGTERM) and then kills them: vLLM kills its engine,
    and that one's children, at once. A process that does not end is killed all the same, after a while."""
    send = os.kill
    last = 0  # when waiting ends

    def send_later(pid, number):
        nonlocal last
        if number == signal.SIGTERM:
            last = time.monotonic() + 20
        elif number == signal.SIGKILL and pid != os.getpid():
            try:
                _wait_for_figures(pid, last)
            except OSError:  # the process has ended
                pass
        return send(pid, number)

    os.kill = send_later


def _wait_for_figures(pid, last):
    uses_cards = os.path.exists(os.path.join(_folder, f"{pid}.simcuda"))
    while uses_cards and time.monotonic() < last and not os.path.exists(os.path.join(_folder, f"{pid}.torch.json")):
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            if file.read().rpartition(")")[2].split()[0] in "ZX":  # it has ended
                return
        time.sleep(0.05)


def _follow_children():
    """A child of fork has figures of its own, and ends by os._exit, as those of multiprocessing do: without atexit."""
    leave = os._exit

    def note_and_leave(*values, **named):
        _at_end()
        leave(*values, **named)

    def begin():
        global _pid
        _pid = os.getpid()
        _before_reset.clear()

    os._exit = note_and_leave
    os.register_at_fork(after_in_child=begin)


def _at_end():
    torch = sys.modules.get("torch")
    if torch is None or os.getpid() != _pid or not getattr(torch, "cuda", None) or not torch.cuda.is_initialized():
        return
    try:
        if _whole_snapshot is not None:
            torch._C._cuda_memorySnapshot = _whole_snapshot
        figures = {"version": str(torch.__version__), "allocator": "unknown", "cards": []}
        figures["allocator"] = torch.cuda.memory.get_allocator_backend()
        figures["gpumem_is_installed"] = _finds_gpumem()
        if figures["allocator"] != "pluggable":
            for device in range(torch.cuda.device_count()):
                figures["cards"].append(_of(torch, device))
        trace = None
        if _history and figures["allocator"] == "native":
            try:
                trace = _write_trace(torch)
            except Exception as wrong:  # such as a full disk: write the figures without a trace
                figures["trace_error"] = f"{type(wrong).__name__}: {wrong}"
        if "gpumem_values" in sys.modules:
            figures["values"] = sys.modules["gpumem_values"].figures
        if trace is None and _no_record:
            figures["trace_error"] = _no_record
        if trace is not None:
            figures["trace"] = trace
        if os.environ.get("SIMCUDA_TORCH_SNAPSHOT") and trace is not None:
            torch.cuda.memory._dump_snapshot(os.environ["SIMCUDA_TORCH_SNAPSHOT"])
    except Exception as wrong:  # must not change how the program ends
        figures = {"error": f"{type(wrong).__name__}: {wrong}"}
    path = os.path.join(_folder, f"{_record_name()}.torch.json")
    try:
        with open(path + ".part", "w", encoding="utf-8") as out:
            json.dump(figures, out)
        os.replace(path + ".part", path)
    except OSError:  # the run has ended and its folder was removed
        pass


def _finds_gpumem():
    """Whether PyTorch loads gpumem's package when it is imported."""
    try:
        import importlib.metadata

        all = importlib.metadata.entry_points()
        of_torch = all.select(group="torch.backends") if hasattr(all, "select") else all.get("torch.backends", ())  # 3.9
        return any(each.name == "gpumem" for each in of_torch)
    except Exception:  # damaged metadata of any package
        return False


def _record_name():
    """Returns the name of the driver's last file of this process, which has one for each program that it executed."""
    name, number = str(_pid), 1
    while os.path.exists(os.path.join(_folder, f"{_pid}.{number}.simcuda")):
        name, number = f"{_pid}.{number}", number + 1
    return name


def _of(torch, device):
    peaks, stats = _note_peaks(torch, device)
    return {
        **peaks,
        "ooms": stats.get("num_ooms", 0),
        "retries": stats.get("num_alloc_retries", 0),
    }


def _write_trace(torch):
    """Writes RMM's CSV of the first card with a record: requested sizes, and frees at the time of their request."""
    recorded = {device: entries for device, entries in enumerate(torch.cuda.memory._snapshot()["device_traces"])
                if any(each["action"] == "alloc" for each in entries)}
    for device, entries in recorded.items():
        path = own_path(_history, _record_name())
        try:
            rows = write_rows(entries, path)
        except BaseException:
            if os.path.exists(path):
                os.unlink(path)  # an incomplete trace
            raise
        return {"device": device, "rows": rows, "file": path, "cards": len(recorded)}
    return None


def own_path(path, name):
    """Returns the file of a record: run.csv.gz becomes run.pid7.csv.gz for process 7, and keeps its ending."""
    packed = ".gz" if path.endswith(".gz") else ""
    stem, ending = os.path.splitext(path.removesuffix(packed))
    return f"{stem}.pid{name}{ending}{packed}"


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
            if action not in ("alloc", "free_requested", "oom"):
                continue  # others may have no address
            address = each["addr"] if action != "oom" else 0
            if action == "oom":
                size, word = each["size"], "allocate failure"
            elif action == "alloc":
                live[address] = size = each["size"]
                word = "allocate"
            elif address in live:
                size = live.pop(address)
                word = "free"
            else:
                continue
            us = max(0, int(each.get("time_us", start) - start))
            seconds, us = divmod(us, 1_000_000)
            minutes, seconds = divmod(seconds, 60)
            hours, minutes = divmod(minutes, 60)
            stamp = f"{hours:02}:{minutes:02}:{seconds:02}:{us:06}"
            out.write(f"1,{stamp},{word},{f'{address:#x}' if address else '(nil)'},{size},{each.get('stream', 0)}\n")
            rows += 1
    return rows
