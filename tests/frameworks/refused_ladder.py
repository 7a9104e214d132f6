#!/usr/bin/env python3
"""The way from out of memory to the remedy, with PyTorch over gpumem on the simulated card.

    python3 tests/frameworks/refused_ladder.py GPUMEM [STEP...]

Runs with the interpreter whose torch is to be tested, and with PYTHONPATH as for GPUMEM_TORCH=1. Each program of
refused_programs.py is recorded until it is refused; then it runs with every setting that `gpumem why` and `gpumem advise`
name. One line a step: `pass STEP: what was seen`, or `FAIL STEP: reason`. Exit status 1 where a step fails.
"""
import json
import os
import signal
import subprocess
import sys
import tempfile

from ladder_steps import Steps, expect

PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "refused_programs.py")
LIMIT_S = 300
STEPS = Steps()
step = STEPS.step
gpumem = ""


def tool(folder, *words, status=0):
    done = subprocess.run([gpumem, *words], cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
    expect(f"status of gpumem {' '.join(words)} ({done.stderr.strip()[-300:]})", done.returncode, status)
    return done.stdout


def command(card, *words):
    return [gpumem, "simulate", "--quiet", "--card", card, "--", sys.executable, "-W", "ignore", PROGRAMS, *words]


def environment(settings):
    own = {name: value for name, value in os.environ.items() if not name.startswith("GPUMEM_")}
    return {**own, "OMP_NUM_THREADS": "1", "GPUMEM_TORCH": "1", **settings}


def run(folder, card, words, settings):
    return subprocess.run(command(card, *words), cwd=folder, env=environment(settings), capture_output=True, text=True,
                          timeout=LIMIT_S)


def settings_of(text):
    return dict(each.split("=", 1) for each in text.split())


def remedies(program, card):
    """Each setting that is named serves the program."""
    with tempfile.TemporaryDirectory() as folder:
        refused = run(folder, card, [program], {"GPUMEM_TRACE": "run.csv"})
        assert "OutOfMemoryError" in refused.stderr, f"it is not refused: {refused.stderr[-300:]}"
        tool(folder, "plan", "run.csv", "-o", "run.plan")
        found = json.loads(tool(folder, "why", "run.csv", "--json", "-"))
        expect("cause", found["cause"], "fragmentation")
        expect("grows_for_ever", found["grows_for_ever"], False)
        advised = json.loads(tool(folder, "advise", "run.csv", "--json"))
        fitting = [each for each in advised["results"] if each["fits"] and each["same_as"] is None]
        assert found["served_by"] and fitting, "no setting is named"
        named = []
        for each in [*found["served_by"], *fitting[:3]]:
            if each["set"] not in named:
                named.append(each["set"])
        for each in named:
            served = run(folder, card, [program], settings_of(each))
            expect(f"status with {each} ({served.stderr.strip()[-200:]})", served.returncode, 0)
    return f"{len(named)} settings serve it, first {found['served_by'][0]['policy']}"


@step
def scratch():
    return remedies("scratch", "8GiB")


@step
def large_among_small():
    return remedies("large_among_small", "16GiB")


@step
def two_then_one():
    return remedies("two_then_one", "2GiB")


@step
def replaced_layers():
    return remedies("replaced_layers", "12GiB")


@step
def growing():
    with tempfile.TemporaryDirectory() as folder:
        refused = run(folder, "16GiB", ["growing"], {"GPUMEM_TRACE": "run.csv", "GPUMEM_LIMIT": "3GiB"})
        assert "OutOfMemoryError" in refused.stderr, f"it is not refused: {refused.stderr[-300:]}"
        found = json.loads(tool(folder, "why", "run.csv", "--json", "-", status=3))
        expect("grows_for_ever", found["grows_for_ever"], True)
        expect("settings", found["served_by"], [])
        expect("what advise says", json.loads(tool(folder, "advise", "run.csv", "--json", status=3))["grows_for_ever"], True)
    return "it is said to grow for ever, and no setting is named"


@step
def killed_while_recording():
    with tempfile.TemporaryDirectory() as folder:
        for name in ("run.csv", "run.csv.gz"):
            program = subprocess.Popen(command("1GiB", "coming_and_going"), cwd=folder, stdout=subprocess.PIPE, text=True,
                                       env=environment({"GPUMEM_TRACE": name}), start_new_session=True)
            expect("what it prints", program.stdout.readline(), "going\n")
            os.killpg(program.pid, signal.SIGKILL)
            program.wait()
            found = json.loads(tool(folder, "why", name, "--json", "-"))
            assert found["ops"] > 10_000, f"{found['ops']} operations are read; the program made 20000"
            advised = json.loads(tool(folder, "advise", name, "--json"))
            best = next(each for each in advised["results"] if each["fits"] and not each["own_plan"])
            served = run(folder, "1GiB", ["coming_and_going", "20000"], settings_of(best["set"]))
            expect(f"status with {best['set']}", served.returncode, 0)
    return f"{found['ops']} operations are read, {best['policy']} serves it"


@step
def dump_in_memory_viz():
    """A dump opens in PyTorch's viewer, and replays to the peak that PyTorch counted."""
    with tempfile.TemporaryDirectory() as folder:
        program = subprocess.Popen(command("8GiB", "dumped"), cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   text=True, env=environment({"GPUMEM_HISTORY": "1000"}))
        try:
            pid, peak = map(int, program.stdout.readline().split())
            tool(folder, "dump", str(pid), "--output", "now.pickle")
            tool(folder, "dump", str(pid), "--output", "now.csv")
        finally:
            program.communicate()
        expect("status of the program", program.returncode, 0)
        shown = run(folder, "8GiB", ["viewed", "now.pickle"], {})
        expect(f"status of the viewer ({shown.stderr.strip()[-300:]})", shown.returncode, 0)
        seen = json.loads(shown.stdout)
        expect("peak of the snapshot's events", seen["peak"], peak)
        for name in ("now.pickle", "now.csv"):
            replayed = json.loads(tool(folder, "why", name, "--json", "-"))["at_peak"]["live_bytes"]
            expect(f"peak of {name}", replayed, peak)
    return f"a peak of {peak} bytes, {seen['page'] // 1024} KiB of page, {seen['lines']} lines of text"


def main():
    global gpumem
    gpumem, *names = sys.argv[1:]
    gpumem = os.path.abspath(gpumem)
    failed = 0
    for name in names or STEPS:
        try:
            print(f"pass {name}: {STEPS[name]()}", flush=True)
        except Exception as reason:  # pylint: disable=broad-except
            failed = 1
            print(f"FAIL {name}: {type(reason).__name__}: {' '.join(str(reason).split())}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
