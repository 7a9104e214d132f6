"""The claims of `gpumem_bench claims`, measured on TensorFlow or JAX itself, on simulated cards.

    python3 framework_claims.py tensorflow|jax GPUMEM JOBS [ID...]

GPUMEM is the program `gpumem`. Runs framework_program.py under `gpumem simulate`, alone and several on one card, and
prints one JSON object: the framework's version, and for each claim the experiment, rows of figures and a sentence. In
a row of the framework by itself, `agrees` says whether it supports the claim; in rows under gpumem it is null. The
context (450 MiB) and cuBLAS (32 MiB a handle) are assumed; everything else is the framework's own behaviour.
"""
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

MIB = 1 << 20
PAGE = 2 * MIB  # a pool takes whole pages of the card
CARD = 24 << 30
CONTEXT, LIBRARY = 450 * MIB, 32 * MIB
SET_UP = "Simulated cards of 24 GiB; a context takes 450 MiB and a handle of cuBLAS 32 MiB (assumed). "


class Program:
    """A run of a framework: its mode, its actions, and the command around it."""

    def __init__(self, words, mode="default", run=None, cards=1, visible=None, before=None):
        self.words, self.mode, self.run, self.cards, self.visible = words, mode, run, cards, visible
        self.before = before  # a program that must be ready first

    def under(self):
        return f"gpumem run {' '.join(self.run)}" if self.run else "by itself"


class Bench:
    def __init__(self, framework, gpumem, folder):
        self.framework, self.gpumem, self.folder = framework, gpumem, folder
        self.worker = os.path.join(os.path.dirname(os.path.abspath(__file__)), "framework_program.py")
        self.numbers = itertools.count(1)
        self.version = ""

    def together(self, *programs):
        """Runs the programs together on the same cards; each begins once the one before is ready. Returns their reports."""
        world = f"claims-{os.getpid()}-{next(self.numbers)}"
        names = [os.path.join(self.folder, f"{world}-{i}") for i in range(len(programs))]
        with ThreadPoolExecutor(len(programs)) as pool:
            return list(pool.map(lambda i: self.one(world, programs, names, i), range(len(programs))))

    def one(self, world, programs, names, i):
        program = programs[i]
        words = list(program.words) + [f"make={names[i]}"]  # signals readiness; all programs stay until the last one is ready
        if i > 0:
            words.insert(0, f"await={names[i - 1]}")
        if len(programs) > 1:
            words += [f"await={names[-1]}"]
        report = names[i] + ".json"
        command = [self.gpumem, "simulate", "--card", str(CARD), "--cards", str(program.cards), "--context",
                   str(CONTEXT), "--libraries", str(LIBRARY), "--shared", world, "--quiet", "--json", report, "--"]
        if program.run:
            command += [self.gpumem, "run", *program.run, "--"]
        command += [sys.executable, "-W", "ignore", self.worker, self.framework, program.mode, *words]
        environment = dict(os.environ)
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        if program.visible is not None:
            environment["CUDA_VISIBLE_DEVICES"] = program.visible
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=400)
            lines, status, said = done.stdout.splitlines(), done.returncode, done.stderr
        except subprocess.TimeoutExpired:
            lines, status, said = [], 124, "not done in 400 s"
        told = next((json.loads(line) for line in reversed(lines) if line.startswith("{")), None)
        if told is None:
            errors = [line for line in said.splitlines() if line.strip()] or [""]
            told = {"notes": {}, "error": f"ended with status {status}: {errors[-1][:200]}"}
        told["libraries"] = in_libraries(report)
        open(names[i], "w").close()  # a program that waits for it goes on if it died
        self.version = told.get("version", self.version)
        return told

    def alone(self, *words, **how):
        return self.together(Program(words, **how))[0]

    def check(self):
        """Exits with a message if a requirement of all experiments is missing."""
        if importlib.util.find_spec(self.framework) is None:
            sys.exit(f"{sys.executable} has no module {self.framework}; scripts/other_frameworks {self.framework} "
                     f"installs it into build/frameworks, then: PYTHONPATH=build/frameworks/{self.framework} "
                     f"gpumem_bench claims --with {self.framework} --python build/frameworks/venv/bin/python")
        told = self.alone("hold=1", mode="growth")
        if not told.get("cards"):
            sys.exit(f"{self.framework} sees no simulated card ({told.get('error', 'it says no more')}); it needs the "
                     "libraries of CUDA 12: scripts/cuda_headers --cuda12 prints the line that configures their build")


def in_libraries(report):
    """What the handles of libraries held on the first card: each framework makes as many as it likes."""
    try:
        with open(report) as file:
            return json.load(file)["cards"][0]["libraries_bytes"]
    except (OSError, ValueError, IndexError):  # a program that died early leaves none
        return 0


def used(told, label, card=0):
    """The memory of the process on the card by NVML, independent of what gpumem shows the process."""
    return told["notes"].get(label, {}).get("own", [0] * 16)[card]


def text(of_bytes):
    return f"{of_bytes / MIB:,.0f} MiB"


def went(told):
    return "done" if told.get("done") else told.get("error", "did not end")


# --- each claim: (experiment, rows, sentence) ---------------------------------------------------------------------------


def grab_all(bench):
    words = ["hold=1", "note=first", "hold=1@1", "note=both"]
    told = bench.alone(*words, cards=2)
    rows = [{"program": "by itself", "card": card, "total_bytes": CARD,
             "taken_by_first_use_bytes": used(told, "first", card), "taken_by_use_of_both_bytes": used(told, "both", card),
             "agrees": used(told, "first", card) >= 0.9 * CARD} for card in (0, 1)]
    limited = bench.alone("hold=1", "note=first", run=["--limit", "2GiB"])
    rows.append({"program": "gpumem run --limit 2GiB", "card": 0, "total_bytes": CARD,
                 "taken_by_first_use_bytes": used(limited, "first"), "taken_by_use_of_both_bytes": None, "agrees": None})
    first = [row["taken_by_first_use_bytes"] for row in rows]
    both = rows[1]["taken_by_use_of_both_bytes"]
    return (SET_UP + "Two of them; an array of 1 MiB on the first, then one on the second. Agrees where the first array "
            "takes nine tenths of the card.", rows,
            f"The first array takes {text(first[0])} of its card and {text(first[1])} of the other one, which holds "
            f"{text(both)} when it has an array, too. Under gpumem run --limit 2GiB: {text(first[2])}.")


def growth(bench):
    words = ["hold=1", "note=first", "hold=64", "note=second", "hold=1024", "note=third", "drop", "note=dropped"]
    rows = []
    for run in (None, ["--limit", "2GiB"]):
        told = bench.alone(*words, mode="growth", run=run)
        seen = [used(told, label) for label in ("first", "second", "third", "dropped")]
        agrees = seen[0] - CONTEXT < seen[2] / 10 and seen[0] < seen[1] < seen[2] == seen[3]
        rows.append({"program": Program([], run=run).under(), "with_1_mib_bytes": seen[0], "with_64_more_bytes": seen[1],
                     "with_1024_more_bytes": seen[2], "when_they_are_dead_bytes": seen[3],
                     "agrees": agrees if run is None else None})
    held = [" then ".join(text(row[key]) for key in list(row)[1:4]) for row in rows]
    return (SET_UP + "With growth allowed, arrays of 1, 64 and 1024 MiB one after the other; then all are dropped. Agrees "
            "where the first takes less than a tenth of the last beside the context, each takes more, and nothing is "
            "given back.", rows,
            f"In use on the card: {held[0]}, and {text(rows[0]['when_they_are_dead_bytes'])} when the arrays are dead. "
            f"Under gpumem run --limit 2GiB: {held[1]}.")


def fraction_exceeded(bench):
    rows = []
    for share in (0.1, 0.3, 0.5):
        told = bench.alone("hold=1", "matmul", "note=it", mode=f"fraction={share}")
        own = used(told, "it")
        rows.append({"program": "by itself", "fraction_percent": round(100 * share), "share_bytes": int(share * CARD),
                     "process_bytes": own, "went": went(told), "agrees": own > share * CARD})
    run = ["--limit", "30%"]
    told = bench.alone("hold=1", "matmul", "fill=256", "note=it", mode="growth", run=run)
    rows.append({"program": f"{Program([], run=run).under()}, growth, filled", "fraction_percent": 30,
                 "share_bytes": int(0.3 * CARD), "process_bytes": used(told, "it"), "went": went(told), "agrees": None})
    by = "; ".join(f"{row['fraction_percent']} %: {text(row['process_bytes'] - row['share_bytes'])} more than the share"
                   for row in rows[:3])
    limited = rows[-1]
    return (SET_UP + "A fraction of 10, 30 and 50 %, an array and a matrix product, and what the process has on the card. "
            "Agrees where that is more than the fraction. Then growth under gpumem's limit, until an array of 256 MiB is "
            "refused.", rows,
            f"{by}: the fraction is the pool's, and the context and cuBLAS come on top. Under {limited['program']} the "
            f"process ends at {text(limited['process_bytes'])} of {text(limited['share_bytes'])}.")


def fraction_leaves(bench):
    rows = []
    for run, mode in ((None, "fraction=0.3"), (["--limit", "30%"], "growth")):
        first, second = bench.together(
            Program(["hold=1", "matmul", "fill=256", "note=it"], mode=mode, run=run),
            Program(["hold=1", "fill=256", "note=it"], mode="growth"))
        held = [used(each, "it") for each in (first, second)]
        pool = held[0] - CONTEXT - first["libraries"]
        rows.append({"first": mode if run is None else f"{Program([], run=run).under()}, growth",
                     "share_bytes": int(0.3 * CARD), "first_holds_bytes": held[0], "second_holds_bytes": held[1],
                     "card_bytes": CARD, "went": f"{went(first)}; {went(second)}",
                     "agrees": pool < 0.3 * CARD + PAGE and sum(held) > CARD - 2048 * MIB if run is None else None})
    return (SET_UP + "Two programs on one card: one with 30 % fills its pool, then one with growth takes what it gets, "
            "in arrays of 256 MiB. Agrees where the first one's pool stays within the share, in whole pages, and the second "
            "gets the rest but for 2 GiB at the most (TensorFlow leaves 1.8 GiB to libraries).", rows,
            "; ".join(f"{row['first']}: {text(row['first_holds_bytes'])}, and the other program "
                      f"{text(row['second_holds_bytes'])} of {text(CARD)}" for row in rows) + ".")


def byte_limit(bench):
    rows = []
    for mode, run in (("limit=2048", None), ("growth", ["--limit", "2GiB"])):
        told = bench.alone("fill=64", "note=it", mode=mode, run=run)
        own = used(told, "it")
        rows.append({"program": mode if run is None else f"{Program([], run=run).under()}, growth",
                     "limit_bytes": 2048 * MIB, "arrays_bytes": told.get("filled", 0), "process_bytes": own,
                     "refused_with": told.get("refused", went(told)),
                     "agrees": told.get("filled", 0) <= 2048 * MIB and "refused" in told if run is None else None})
    return (SET_UP + "Arrays of 64 MiB until one is refused, under a limit of 2048 MiB. Agrees where the arrays stay within "
            "it and there is an error beyond it.", rows,
            "; ".join(f"{row['program']}: {text(row['arrays_bytes'])} of arrays, the process has "
                      f"{text(row['process_bytes'])}" for row in rows) + ": the framework's limit is its pool's alone.")


def one_as_two(bench):
    rows = []
    for run in (None, ["--limit", "4GiB"]):
        told = bench.alone("hold=512@0", "hold=512@1", "note=it", mode="limit=1024,1024", run=run)
        rows.append({"program": Program([], run=run).under(), "cards": told.get("cards", 0),
                     "devices": len(told.get("devices", [])), "process_bytes": used(told, "it"),
                     "went": went(told),
                     "agrees": told.get("done") is True and len(told["devices"]) == 2 if run is None else None})
    return (SET_UP + "One card with two memory limits of 1024 MiB, an array of 512 MiB on each device. Agrees where there "
            "are two devices and both take their array.", rows,
            "; ".join(f"{row['program']}: {row['cards']} card, {row['devices']} devices, {text(row['process_bytes'])}"
                      for row in rows) + ".")


def visible(bench):
    rows = []
    for value, run in (("1", None), ("1,0", None), (None, ["--devices", "1"])):
        told = bench.alone("hold=1", "note=it", mode="growth", cards=2, visible=value, run=run)
        taken = [used(told, "it", card) for card in (0, 1)]
        seen = [1] if value != "1,0" else [0, 1]
        rows.append({"program": Program([], run=run).under() if run else f"CUDA_VISIBLE_DEVICES={value}",
                     "cards_seen": told.get("cards", 0), "taken_bytes": taken, "went": went(told),
                     "agrees": told.get("cards") == len(seen) and (seen == [0, 1] or taken[0] == 0) if value else None})
    return (SET_UP + "Two of them, of which variables show some. Agrees where the framework lists these and holds nothing "
            "of the other.", rows,
            "; ".join(f"{row['program']}: {row['cards_seen']} seen, {text(row['taken_bytes'][0])} and "
                      f"{text(row['taken_bytes'][1])} taken" for row in rows) + ".")


def one_nth(bench):
    rows = []
    for count, run in ((2, False), (4, False), (2, True)):
        share = 1 / count
        words = ["hold=1", "matmul", "note=it"]
        each = (Program(words, run=["--limit", f"{100 // count}%"]) if run
                else Program(words, mode=f"fraction={share}"))
        told = bench.together(*[each] * count)
        held = [used(one, "it") for one in told]
        rows.append({"program": each.under() if run else f"a fraction of 1/{count}", "processes": count,
                     "started": sum(1 for one in told if one.get("done")),
                     "got_their_share": sum(1 for own in held if own >= share * CARD),
                     "holds_bytes": held, "failed_with": next((went(one) for one in told if not one.get("done")), ""),
                     "agrees": all(one.get("done") for one in told) and min(held) >= share * CARD if not run else None})
    return (SET_UP + "Programs that start one after the other on one card, each with 1/N of it, an array and a matrix "
            "product. Agrees where all run and hold their share.", rows,
            "; ".join(f"{row['program']}: {row['started']} of {row['processes']} ran, {row['got_their_share']} with all of "
                      "their share" for row in rows) + ".")


def second_fails(bench):
    rows = []
    modes = [("default", None), ("growth", None), ("fraction=0.4", None)]
    modes += [("limit=8192", None)] if bench.framework == "tensorflow" else []
    for mode, run in modes + [("default", ["--limit", "40%"])]:
        each = Program(["train", "note=it"], mode=mode, run=run)
        first, second = bench.together(each, each)
        rows.append({"both": mode if run is None else each.under(), "first": went(first), "second": went(second),
                     "first_holds_bytes": used(first, "it"),
                     "second_holds_bytes": used(second, "it"),
                     "agrees": first.get("done", False) and not second.get("done") if (mode, run) == ("default", None) else None})
    return (SET_UP + "Two trainings on one card (100 million parameters), the second one started when the first has trained "
            "and still holds what it took. Agrees where the second one fails by default.", rows,
            "; ".join(f"{row['both']}: " + ("both trained" if row["second"] == "done" else "the second failed"
                                                if row["first"] == "done" else "the first failed")
                      + f" ({text(row['first_holds_bytes'])} and {text(row['second_holds_bytes'])})" for row in rows) + ".")


CLAIMS = {
    "grab-all-takes-every-device": grab_all,
    "second-program-fails": second_fails,
    "growth-starts-small-and-never-shrinks": growth,
    "fraction-leaves-the-rest": fraction_leaves,
    "one-nth-each": one_nth,
    "fraction-is-exceeded": fraction_exceeded,
    "byte-limit-is-exact": byte_limit,
    "one-card-as-two": one_as_two,
    "visible-devices": visible,
}
# JAX has no limit in bytes and no logical devices.
NOT_OF = {"jax": {"byte-limit-is-exact", "one-card-as-two"}, "tensorflow": set()}


def main(framework, gpumem, jobs, *only):
    ids = [each for each in CLAIMS if each not in NOT_OF[framework] and (not only or each in only)]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(framework, gpumem, folder)
        if ids:
            bench.check()
        with ThreadPoolExecutor(int(jobs)) as pool:
            for name, (experiment, rows, sentence) in zip(ids, pool.map(lambda each: CLAIMS[each](bench), ids)):
                found.append({"id": name, "experiment": experiment, "figures": rows, "measured": sentence})
    print(json.dumps({"framework": framework, "version": bench.version, "claims": found}))


if __name__ == "__main__":
    main(*sys.argv[1:])
