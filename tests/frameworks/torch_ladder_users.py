"""Steps of tests/frameworks/torch_ladder.py about who asks PyTorch's allocator for more than memory: batch-size finders, other
processes, observers, the profiler. Each runs with PyTorch's own allocator and with gpumem's."""
import gc
import os
import pathlib
import subprocess
import tempfile

import torch
from torch import nn

from ladder_steps import MIB, Steps, expect

GIB = 1 << 30
STEPS = Steps()
step = STEPS.step


# --- batch sizes ------------------------------------------------------------------------------------------------------


class takes_memory(nn.Module):
    """Takes 3 GiB a row, so that 26 rows fit on a card of 80 GiB and 27 do not."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.held = None

    def forward(self, x, labels=None):
        # Held until the next product: cuBLAS's workspaces, tensors in torch 2.11, must not lie where these bytes were.
        loss = self.linear(x).sum()
        self.held = None
        self.held = torch.empty(len(x) * 3 * GIB, dtype=torch.uint8, device=x.device)
        return {"loss": loss + 0 * self.held.numel()}


def rows(count):
    return [{"x": torch.zeros(4), "labels": torch.zeros(())} for _ in range(count)]


@step
def lightning_finds_a_batch_size():
    import logging

    import lightning
    from lightning.pytorch.tuner import Tuner

    class program(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.batch_size, self.net, self.tried = 1, takes_memory(), []

        def training_step(self, batch, _):
            self.tried.append(len(batch["x"]))
            return self.net(batch["x"])["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def train_dataloader(self):
            return torch.utils.data.DataLoader(rows(1000), batch_size=self.batch_size)

    net = program()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(accelerator="gpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
                                    enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder)
        found = Tuner(trainer).scale_batch_size(net, mode="binsearch", init_val=4, steps_per_trial=1, max_trials=12)
    assert 27 in net.tried and 26 in net.tried, net.tried
    expect("26 rows fit; less the finder's margin of 5 %", found, 24)
    return f"{found} rows, after {sorted(set(net.tried))}; lightning {lightning.__version__}"


@step
def trainer_finds_a_batch_size():
    import transformers

    tried = []

    class program(takes_memory):
        def forward(self, x, labels=None):
            tried.append(len(x))
            return super().forward(x)

    with tempfile.TemporaryDirectory() as folder:
        asked = transformers.TrainingArguments(output_dir=folder, per_device_train_batch_size=64, auto_find_batch_size=True,
                                               max_steps=1, report_to=[], save_strategy="no", disable_tqdm=True,
                                               logging_strategy="no", dataloader_drop_last=True)
        transformers.Trainer(model=program(), args=asked, train_dataset=rows(256)).train()
    assert tried[0] == 64 and 13 <= tried[-1] <= 26, tried
    return f"from 64 to {tried[-1]} rows in {len(tried)} tries; transformers {transformers.__version__}"


# --- observers --------------------------------------------------------------------------------------------------------


@step
def emptied_among_small_tensors():
    """Large tensors of a step among small ones that stay; then `empty_cache`, as before memory is lent to others."""
    kept, seen = [], []
    before = torch.cuda.memory_reserved() // MIB
    # What PyTorch's own allocator keeps reserved after each of the three steps.
    for natively in (42, 82, 124):
        large = []
        for i in range(200):
            large.append(torch.empty(20 * MIB, dtype=torch.uint8, device="cuda"))
            kept.append(torch.empty(4096, dtype=torch.uint8, device="cuda"))
            if i % 10 == 0:
                kept.append(torch.empty(2 * MIB, dtype=torch.uint8, device="cuda"))
        del large
        torch.cuda.empty_cache()
        seen.append(torch.cuda.memory_reserved() // MIB - before)
        assert seen[-1] <= natively * 3 // 2, f"{seen} MiB are reserved; PyTorch's own keeps {natively}"
    kept.clear()
    torch.cuda.empty_cache()
    return f"{seen} MiB kept"


@step
def observed():
    """Out-of-memory observers, metadata and annotations of the history, the GPU trace, the profiler."""
    seen = []
    torch.empty(1, device="cuda")
    torch._C._cuda_attach_out_of_memory_observer(lambda *told: seen.append(told))
    try:
        torch.empty(200 * GIB, dtype=torch.uint8, device="cuda")
        raise AssertionError("200 GiB were given")
    except torch.OutOfMemoryError:
        pass
    expect("calls of the observer", len(seen), 1)
    device, asked, total, free = seen[0]
    expect("what it was told", (device, asked), (0, 200 * GIB))
    assert free < total < 90 * GIB, seen

    torch.cuda.memory._record_memory_history(max_entries=1000, stacks="python", global_record_annotations=True)
    torch.cuda.memory._set_memory_metadata("step 7")
    with torch.profiler.record_function("a part of it"):
        kept = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.memory._set_memory_metadata("")
    annotates = hasattr(torch.cuda.memory, "_annotate_tensor")  # not in 2.11
    if annotates:
        torch.cuda.memory._annotate_tensor(kept[MIB:], "packed")
    history = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    events = {e["action"]: e for e in history["device_traces"][0] if e.get("addr") == kept.data_ptr()}
    expect("the allocation's metadata", events["alloc"].get("user_metadata"), "step 7")
    expect("the size of the allocation", events["alloc"]["size"], 5 * MIB)
    if annotates:
        expect("the annotation", (events["annotate"].get("user_metadata"), events["annotate"]["size"]), ("packed", 5 * MIB))
        assert events["annotate"]["frames"], "the annotation has no frames"
    names = [a.get("name") for a in history["external_annotations"]]
    assert names.count("a part of it") == 2, f"annotations {names}"

    from torch.cuda import _gpu_trace

    traced = []
    _gpu_trace.register_callback_for_memory_allocation(lambda at: traced.append(("alloc", at)))
    _gpu_trace.register_callback_for_memory_deallocation(lambda at: traced.append(("free", at)))
    torch._C._activate_gpu_trace()
    more = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    at = more.data_ptr()
    del more
    expect("the GPU trace", traced, [("alloc", at), ("free", at)])

    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        block = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
        del block
    told = [e.device_memory_usage for e in profiled.events() if e.device_memory_usage]
    assert 8 * MIB in told and -8 * MIB in told, f"the profiler saw {told}"
    del kept
    return "an observer, metadata, annotations with frames, the GPU trace, the profiler"


PROBE = r"""
#include <c10/cuda/CUDACachingAllocator.h>
#include <algorithm>
#include <map>
#include <mutex>
#include <string>
using namespace c10::cuda::CUDACachingAllocator;
#define SEEN __attribute__((visibility("default")))
static std::map<int, long> seen;
static std::mutex one;
extern "C" SEEN void attach() {
  get()->attachAllocatorTraceTracker([](const TraceEntry& e) {
    static_cast<void>(get()->getDeviceStats(0));  // a tracker may ask the allocator
    const std::lock_guard lock{one};
    seen[static_cast<int>(e.action_)] += 1;
  });
}
extern "C" SEEN long seen_of(int action) { const std::lock_guard lock{one}; return seen[action]; }
// In MiB: the largest block that could be had, asked as cuDNN's benchmark mode does.
extern "C" SEEN int largest() { std::size_t n = 0; get()->cacheInfo(0, &n); return static_cast<int>(n >> 20); }
// The runtime's handle of a segment and where the block lies in it; or why not.
static std::string why;
extern "C" SEEN const char* share(void* at, char* into, long* offset) try {
  const ShareableHandle made = get()->shareIpcHandle(at);
  std::copy(made.handle.begin(), made.handle.end(), into);
  *offset = made.offset;
  return nullptr;
} catch (const c10::Error& e) { return (why = e.what_without_backtrace()).c_str(); }
extern "C" SEEN const char* open_handle(const char* handle, long bytes) try {
  get()->getIpcDevPtr(std::string{handle, static_cast<std::size_t>(bytes)});
  return nullptr;
} catch (const c10::Error& e) { return (why = e.what_without_backtrace()).c_str(); }
extern "C" SEEN void reach(int from, int to) { get()->enablePeerAccess(to, from); }
extern "C" SEEN int copy(void* to, int to_device, void* from, int from_device, long bytes, void* stream, int p2p) {
  return get()->memcpyAsync(to, to_device, from, from_device, bytes, static_cast<cudaStream_t>(stream), p2p != 0);
}
"""


@step
def record_kept():
    """With `simulate --trace`: the program switches its own record off, after a short one; the run's trace has all."""
    import gpumem_simulated_torch

    blocks = [torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")]
    torch.cuda.memory._record_memory_history(max_entries=2, clear_history=True)
    blocks += [torch.empty(n * MIB, dtype=torch.uint8, device="cuda") for n in (4, 5, 6, 7)]
    own = [each.get("size", 0) // MIB for each in torch.cuda.memory._snapshot()["device_traces"][0]]
    expect("MiB in the program's own record", own[-1:], [7])
    expect("entries of it", len(own), 2)
    try:
        torch.empty(200 * GIB, dtype=torch.uint8, device="cuda")
        raise AssertionError("200 GiB were given")
    except torch.OutOfMemoryError:
        pass
    torch.cuda.memory._record_memory_history(enabled=None)
    torch.cuda.memory._record_memory_history(False)  # the older form
    blocks.append(torch.empty(8 * MIB, dtype=torch.uint8, device="cuda"))
    expect("the program's entries, once it is off", torch.cuda.memory._snapshot()["device_traces"][0], [])
    entries = gpumem_simulated_torch._whole_snapshot(None)["device_traces"][0]
    expect("requests that did not fit", sum(each["action"] == "oom" for each in entries), 1)
    with tempfile.TemporaryDirectory() as folder:
        gpumem_simulated_torch.write_rows(entries, f"{folder}/t.csv")
        rows = pathlib.Path(folder, "t.csv").read_text().splitlines()[1:]
    sizes = [int(row.split(",")[4]) // MIB for row in rows if ",allocate," in row]
    expect("MiB in the trace", [size for size in sizes if size in range(3, 9)], [3, 4, 5, 6, 7, 8])
    return f"{len(rows)} rows, through two ends of the program's record and a request that did not fit"


def probe_command(source, out):
    """The compiler's command for a library of this file, which exports all that is visible."""
    from gpumem.torch import _build

    line = _build.command(os.path.dirname(torch.__file__), torch._C._GLIBCXX_USE_CXX11_ABI, _build.compiler()[0],
                          _build.cuda_headers(), out)
    line[line.index(str(_build.SOURCE))] = str(source)
    return [each for each in line if "--version-script" not in each]


def probe_in_cpp(code=PROBE):
    """A library of this code. LADDER_PROBES, a folder, has those of other processes."""
    import ctypes

    from gpumem.torch import _build

    with tempfile.TemporaryDirectory() as own_folder:
        folder = pathlib.Path(os.environ.get("LADDER_PROBES", own_folder))
        source = pathlib.Path(own_folder) / "probe.cpp"
        source.write_text(code)
        name = "probe-" + _build.key_of([code])
        made = folder / f"{name}.so"
        if not made.exists():
            _build.compile_into(folder, name, lambda out: probe_command(source, out))
        return ctypes.CDLL(str(made))


@step
def trackers_peers_processes():
    """What only C++ reaches: trace trackers, as NCCL attaches them, peer access, handles for other processes. On two
    cards. A simulated card has one process, so that nobody can open a handle there."""
    import ctypes

    x, y = torch.ones(MIB, device="cuda:0"), torch.zeros(MIB, device="cuda:1")
    probe = probe_in_cpp()
    probe.seen_of.restype = ctypes.c_long
    probe.share.restype = probe.open_handle.restype = ctypes.c_char_p
    probe.attach()
    held = torch.empty(600 * MIB, dtype=torch.uint8, device="cuda")
    del held
    torch.cuda.empty_cache()
    names = ("ALLOC", "FREE_REQUESTED", "FREE_COMPLETED", "SEGMENT_ALLOC", "SEGMENT_FREE", "SEGMENT_MAP", "SEGMENT_UNMAP")
    seen = {name: probe.seen_of(i) for i, name in enumerate(names)}
    expect("the block's events", [seen[name] for name in names[:3]], [1, 1, 1])
    assert seen["SEGMENT_ALLOC"] + seen["SEGMENT_MAP"] >= 1 and seen["SEGMENT_FREE"] + seen["SEGMENT_UNMAP"] >= 1, seen
    free, could_be = torch.cuda.mem_get_info(0)[0] // MIB, probe.largest()
    assert could_be >= free, f"{could_be} MiB is the largest block, with {free} MiB free"
    for _ in range(2):  # enabled already, the second time
        probe.reach(0, 1)
        probe.reach(1, 0)
    stream = ctypes.c_void_p(torch.cuda.current_stream(0).cuda_stream)
    for p2p in (1, 0):
        expect("the copy", probe.copy(ctypes.c_void_p(y.data_ptr()), 1, ctypes.c_void_p(x.data_ptr()), 0,
                                      ctypes.c_long(4 * MIB), stream, p2p), 0)
    torch.cuda.synchronize(0)
    y.copy_(x)
    torch.cuda.synchronize(1)

    handles, places = [], []
    blocks = [torch.empty(MIB, dtype=torch.uint8, device="cuda") for _ in range(2)]
    for block in blocks:
        raw, offset = ctypes.create_string_buffer(66), ctypes.c_long()
        refused = probe.share(ctypes.c_void_p(block.data_ptr()), raw, ctypes.byref(offset))
        if "mapped" in os.environ.get("GPUMEM_BACKING", "") or "expandable" in os.environ.get("GPUMEM_POLICY", ""):
            assert b"GPUMEM_BACKING=plain" in refused, refused
            shared = "mapped memory is refused to other processes"
            break
        assert refused is None, refused
        expect("version and kind", raw.raw[:2], b"\x01c")
        handles.append(raw.raw)
        at = 2 + 24  # of a simulated card's handle: kind, process and its begin come before the address
        places.append(int.from_bytes(raw.raw[at:at + 8], "little") + offset.value)
    else:
        expect("places of the blocks", places, [b.data_ptr() for b in blocks])
        refused = probe.open_handle(ctypes.c_char_p(handles[0]), ctypes.c_long(66))
        assert refused is not None, "a handle was opened on a card with one process"
        shared = f"{len(set(handles))} handle for two blocks"
    refused = probe.open_handle(b"\x01e" + bytes(64), ctypes.c_long(66))
    assert b"of another kind" in refused, refused
    return "trackers saw " + ", ".join(f"{name} {count}" for name, count in seen.items() if count) + "; peers; " + shared
