#!/usr/bin/env python3
"""A merged sweep as a Parquet table, one row a unit: sweep_to_parquet.py results.json results.parquet

Needs pyarrow (pip install pyarrow). What is an object within a row becomes columns named outer_inner; lists stay lists.
The rows are read one line at a time, as gpumem_bench merge writes them, so a sweep of millions of units fits in memory.
"""
import json
import sys

BATCH = 50_000


def flat(row):
    out = {}
    for name, value in row.items():
        if isinstance(value, dict):
            for inner, inner_value in value.items():
                out[f"{name}_{inner}"] = inner_value
        else:
            out[name] = json.dumps(value) if isinstance(value, list) else value
    return out


def rows_of(path):
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.startswith('{"key":'):
                yield flat(json.loads(line.rstrip().rstrip(",")))


def main():
    if len(sys.argv) != 3:
        sys.exit(f"{sys.argv[0]}: expected results.json and results.parquet")
    try:
        import pyarrow as pa
        import pyarrow.parquet as parquet
    except ImportError:
        sys.exit(f"{sys.argv[0]}: no pyarrow for {sys.executable}; expected it (pip install pyarrow)")
    names = {}
    for row in rows_of(sys.argv[1]):  # which columns there are, and of what type
        for name, value in row.items():
            known = names.get(name)
            kind = None if value is None else type(value)
            names[name] = float if {known, kind} == {int, float} else known or kind
    if not names:
        sys.exit(f"{sys.argv[1]}: no rows; expected what gpumem_bench merge -o results.json writes")
    types = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string(), None: pa.string()}
    schema = pa.schema([(name, types[kind]) for name, kind in names.items()])
    with parquet.ParquetWriter(sys.argv[2], schema, compression="zstd") as writer:
        batch = []
        for row in rows_of(sys.argv[1]):
            batch.append({name: float(row[name]) if names[name] is float and row.get(name) is not None else row.get(name)
                          for name in names})
            if len(batch) == BATCH:
                writer.write_table(pa.Table.from_pylist(batch, schema=schema))
                batch = []
        if batch:
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))


if __name__ == "__main__":
    main()
