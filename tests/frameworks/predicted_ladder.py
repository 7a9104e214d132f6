#!/usr/bin/env python3
"""What `gpumem predict` says of PyTorch programs, beside runs of them with the settings that it prints.

    python3 tests/frameworks/predicted_ladder.py GPUMEM [MODEL...]

The models are those of torch_models.py, `convolutional` where none is named. Runs with the interpreter whose torch is to
be tested, and with PYTHONPATH as for GPUMEM_TORCH=1. One line a step: `pass STEP: what was seen`, or `FAIL STEP: reason`.
Exit status 1 where a step fails.
"""
import json
import os
import subprocess
import sys

MODELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_models.py")
CARDS = ("a100-80gb", "rtx3060")
# Where fixed addresses are forbidden, as in some containers, two runs of a program may free tensors in another order.
TOLERANCE = 0 if subprocess.run(["setarch", "-R", "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0 else 0.02


def figures_of(*words, settings=()):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **dict(each.split("=", 1) for each in settings)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{' '.join(words)}: status {done.returncode}, expected 0: {done.stderr.strip()[-300:]}"
    return json.loads(done.stdout)


def predicted_expandable(gpumem, model):
    """The peak under `expandable` is that of a run with the settings of the row, on each card that holds it."""
    program = [sys.executable, "-W", "ignore", MODELS, model]
    capacities = [word for card in CARDS for word in ("--capacity", card)]
    rows = [row for row in figures_of(gpumem, "predict", "--card", CARDS[0], *capacities, "--json", "--", *program)["results"]
            if row["policy"] == "expandable" and row["fits"]]
    peaks = []
    for row in rows:
        assert row.get("by") == "measured", f"{row['capacity']}: no run of the program measured it: {row}"
        ran = figures_of(gpumem, "simulate", "--json", "-", "--card", row["capacity"], "--", *program,
                         settings=row["settings"].split())["cards"][0]["peak_reserved_bytes"]
        apart = abs(row["peak_reserved_bytes"] - ran)
        assert apart <= ran * TOLERANCE, f"{row['capacity']}: predicted {row['peak_reserved_bytes']}, ran with {ran}"
        peaks.append(f"{ran >> 20} MiB on {row['capacity']}")
    assert peaks, f"no row of expandable fits, expected one for each of {CARDS} that holds the program"
    return ", ".join(peaks)


def main():
    gpumem = os.path.abspath(sys.argv[1])
    failed = 0
    for model in sys.argv[2:] or ("convolutional",):
        try:
            print(f"pass predicted_expandable {model}: {predicted_expandable(gpumem, model)}", flush=True)
        except Exception as reason:  # pylint: disable=broad-except
            failed = 1
            print(f"FAIL predicted_expandable {model}: {type(reason).__name__}: {' '.join(str(reason).split())}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
