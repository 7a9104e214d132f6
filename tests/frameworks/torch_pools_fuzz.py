#!/usr/bin/env python3
"""Random programs of streams, MemPools, CUDA graphs and limits: no two live tensors overlap, none lies in what a living
graph writes, limits hold, and all memory is returned in the end.

    gpumem simulate --card h100 -- python3 tests/frameworks/torch_pools_fuzz.py SEED STEPS {plain,own,lending}

`own`: some pools bring an allocator of their own, and graphs use MemPools. `lending`: each pool has `use_on_oom`.
"""
import bisect
import gc
import random
import sys

import torch

from ladder_steps import MIB
from torch_ladder_pools import own_allocator


class failed(AssertionError):
    pass


class captured_graph:
    def __init__(self, graph, writes, pools):
        self.graph = graph
        self.writes = writes  # [begin, end) of its temporaries
        self.pools = pools  # whose tensors may lie there


class program:
    def __init__(self, seed, kind):
        self.random = random.Random(seed)
        self.kind = kind
        torch.empty(1, device="cuda")
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self.limit = self.random.choice((200, 400, 600) if kind == "lending" else (600, 1500, 4000)) * MIB
        torch.cuda.set_per_process_memory_fraction(self.limit / torch.cuda.get_device_properties(0).total_memory)
        self.streams = [torch.cuda.default_stream(), *(torch.cuda.Stream() for _ in range(3))]
        self.live = []  # tensors and the names of their pools
        self.pools, self.graphs, self.allocator = {}, [], own_allocator()
        self.refusals = self.steps = 0
        self.before = torch.cuda.memory_allocated()

    def size(self):
        return self.random.choice((self.random.randrange(1, 2000), self.random.randrange(1, MIB),
                                   self.random.randrange(MIB, 12 * MIB), self.random.randrange(MIB, 80 * MIB)))

    def taken(self, pool):
        """A tensor, or None where there is no memory."""
        try:
            if pool is None:
                return torch.empty(self.size(), device="cuda", dtype=torch.uint8)
            with torch.cuda.use_mem_pool(self.pools[pool]):
                return torch.empty(self.size(), device="cuda", dtype=torch.uint8)
        except torch.OutOfMemoryError:
            self.refusals += 1
            return None

    # --- steps ------------------------------------------------------------------------------------------------------

    def allocate(self):
        pool = self.random.choice([None, None, *self.pools])
        with torch.cuda.stream(self.random.choice(self.streams)):
            made = self.taken(pool)
        if made is not None:
            self.live.append((made, pool))

    def free(self):
        if self.live:
            ended, _ = self.live.pop(self.random.randrange(len(self.live)))
            if self.random.random() < 0.3:
                ended.record_stream(self.random.choice(self.streams))

    def add_pool(self):
        if len(self.pools) < 4:
            owns = self.kind == "own" and self.random.random() < 0.4
            made = self.allocator.pool() if owns else torch.cuda.MemPool(use_on_oom=self.kind == "lending")
            self.pools[f"pool {self.steps}"] = made

    def drop_pool(self):
        if self.pools:
            del self.pools[self.random.choice(list(self.pools))]

    def capture(self):
        if len(self.graphs) >= 5:
            return
        graph, shared = torch.cuda.CUDAGraph(), self.random.choice([None, *(each.graph.pool() for each in self.graphs)])
        holds_pools = hasattr(torch.cuda.CUDAGraph, "_retain_pool")  # not in 2.11
        entered = self.random.choice([None, None, *self.pools]) if self.kind == "own" and holds_pools else None
        writes, kept, left = [], [], []
        try:
            with torch.cuda.graph(graph, pool=shared, stream=self.random.choice(self.streams[1:])):
                for _ in range(self.random.randrange(1, 8)):
                    pool = entered if self.random.random() < 0.5 else None
                    made = self.taken(pool)
                    if made is not None:
                        made.zero_()
                        writes.append((made.data_ptr(), made.data_ptr() + made.numel()))
                        kept.append((made, pool))
                        del made
                        if self.random.random() < 0.4:
                            kept.pop(self.random.randrange(len(kept)))
                if kept and self.random.random() < 0.6:
                    left.append(kept[-1])
                kept.clear()
        except torch.OutOfMemoryError:
            self.refusals += 1
            return
        self.live += [(made, pool or graph.pool()) for made, pool in left]
        self.graphs.append(captured_graph(graph, writes, {graph.pool(), entered} - {None}))

    def replay(self):
        if self.graphs:
            self.random.choice(self.graphs).graph.replay()

    def reset(self):
        if self.graphs:
            torch.cuda.synchronize()
            self.graphs.pop(self.random.randrange(len(self.graphs))).graph.reset()

    def record(self):
        enabled = None if self.random.random() < 0.5 else "all"
        torch.cuda.memory._record_memory_history(enabled, max_entries=self.random.choice((10, 1000)), stacks="python")

    CHANCES = ((40, allocate), (30, free), (3, add_pool), (2, drop_pool), (5, capture), (4, replay), (2, reset),
               (3, lambda _: torch.cuda.empty_cache()), (1, lambda _: torch.cuda.memory_snapshot()), (1, record),
               (1, lambda _: torch.cuda.synchronize()), (1, lambda _: torch.cuda.reset_peak_memory_stats()))

    # --- what has to hold -------------------------------------------------------------------------------------------

    def check(self):
        ranges = sorted((t.data_ptr(), t.data_ptr() + t.numel(), pool) for t, pool in self.live if t.numel())
        begins = [begin for begin, _, _ in ranges]
        for one, next_one in zip(ranges, ranges[1:]):
            if one[1] > next_one[0]:
                raise failed(f"live tensors overlap: {one} and {next_one}")
        for each in self.graphs:
            for begin, end in each.writes:
                for i in range(max(0, bisect.bisect_right(begins, begin) - 1), bisect.bisect_left(begins, end)):
                    if ranges[i][1] > begin and ranges[i][2] not in each.pools:
                        raise failed(f"a live tensor of pool {ranges[i][2]} lies in what a graph of {each.pools} writes")
        held, wanted = torch.cuda.memory_allocated() - self.before, sum(-t.numel() // 512 * -512 for t, _ in self.live)
        # 2.11 has the random state of graphs there as well.
        if torch.cuda.get_allocator_backend() == "gpumem" and not torch.__version__.startswith("2.11.") and held != wanted:
            raise failed(f"{held} bytes are allocated, expected {wanted}")
        if torch.cuda.memory_reserved() > self.limit:
            raise failed(f"{torch.cuda.memory_reserved()} bytes are reserved, limit {self.limit}")
        if torch.cuda.get_allocator_backend() == "gpumem":
            self.compare_statistics()

    def compare_statistics(self):
        """Statistics are kept between two looks while nothing changes; a snapshot looks at each block."""
        counted, segments = torch.cuda.memory_stats(), torch.cuda.memory_snapshot()
        blocks = [(block["size"], block["state"], len(each["blocks"]) > 1) for each in segments for block in each["blocks"]]
        split = [size for size, state, beside in blocks if state == "inactive" and beside]
        active = [size for size, state, _ in blocks if state != "inactive"]
        for name, found in (("segment", len(segments)), ("inactive_split", len(split)),
                            ("inactive_split_bytes", sum(split)), ("active", len(active)), ("active_bytes", sum(active)),
                            ("reserved_bytes", sum(each["total_size"] for each in segments))):
            if counted[f"{name}.all.current"] != found:
                raise failed(f"{name} is {counted[f'{name}.all.current']} in the statistics, {found} in the snapshot")

    def end(self):
        self.live.clear()
        self.pools.clear()
        self.graphs.clear()
        torch.cuda.memory._record_memory_history(None)
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        left = torch.cuda.memory_stats()["active_bytes.all.current"] - self.before
        if left != 0 or sum(self.allocator.taken) != sum(self.allocator.returned):
            raise failed(f"{left} bytes are left, of own allocators {self.allocator.taken}, {self.allocator.returned}")
        torch.cuda.set_per_process_memory_fraction(1.0)

    def run(self, steps):
        chances, actions = zip(*self.CHANCES)
        for self.steps in range(steps):
            self.random.choices(actions, chances)[0](self)
            if self.steps % 5 == 0:
                self.check()
        self.end()
        return self.refusals


def run(seed, steps, kind):
    made = program(seed, kind)
    try:
        return made.run(steps)
    except failed as wrong:
        raise failed(f"seed {seed} of {kind}, step {made.steps}: {wrong}") from None


if __name__ == "__main__":
    print(run(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]), "requests were refused")
