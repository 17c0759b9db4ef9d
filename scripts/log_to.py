#!/usr/bin/env python3
"""log_to.py - the log of a run for other tools.

    python3 scripts/log_to.py csv runs/0 > run.csv                 a line for each step and evaluation
    python3 scripts/log_to.py tensorboard runs/0 runs/1 --to tb    then: tensorboard --logdir tb

TensorBoard's files need its package (pip install tensorboard); CSV needs nothing.
"""
import argparse
import csv
import json
import os
import sys


def lines(run):
    """Steps and evaluations as flat dictionaries, in their order."""
    with open(os.path.join(run, "log.jsonl"), encoding="utf-8") as f:
        for text in f:
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if isinstance(line, dict) and "step" in line:
                yield {k: v for k, v in line.items() if isinstance(v, (int, float, str))}


def to_csv(run, out):
    rows = list(lines(run))
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(out, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def to_tensorboard(run, folder):
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
    writer = EventFileWriter(os.path.join(folder, os.path.basename(os.path.normpath(run))))
    for row in lines(run):
        values = [Summary.Value(tag=name, simple_value=value) for name, value in row.items()
                  if isinstance(value, (int, float)) and name not in ("step", "time")]
        writer.add_event(Event(step=row["step"], wall_time=row.get("time", 0), summary=Summary(value=values)))
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("format", choices=["csv", "tensorboard"])
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--to", default="tb", help="folder of TensorBoard's files")
    args = parser.parse_args()
    for run in args.runs:
        if not os.path.exists(os.path.join(run, "log.jsonl")):
            sys.exit(f"log_to.py: {run}: expected the folder of a run, found no log.jsonl in it")
        to_csv(run, sys.stdout) if args.format == "csv" else to_tensorboard(run, args.to)


if __name__ == "__main__":
    main()
