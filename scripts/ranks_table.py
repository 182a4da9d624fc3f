#!/usr/bin/env python3
"""Prints plans for 1 to 16 ranks as a Markdown table (docs/planner.md).

    ranks_table.py VLMTRAIN [--ranks 1,2,4,8,16] [arguments of vlmtrain plan, such as --gpu h100 --model qwen2.5-vl-3b]
    ranks_table.py VLMTRAIN --shardings none,optimizer,full,hybrid [the same]      one column each

From 16 ranks on, the table also has plans for two machines; only there `hybrid` differs from `full`.
"""
import argparse
import json
import subprocess


def plan(program, ranks, nodes, arguments):
    ended = subprocess.run([program, "plan", "--json", "--world-size", str(ranks), "--nodes", str(nodes), *arguments],
                           capture_output=True, text=True)
    if ended.returncode not in (0, 3):
        raise SystemExit(ended.stderr)
    return json.loads(ended.stdout)


def row(result, nodes):
    communication = result["communication"]
    gigabytes = result["memory"]["total_bytes"] / 1e9
    cells = [str(result["world_size"]), str(nodes), f'{result["micro_batch_size"]} x {result["gradient_accumulation_steps"]}',
             f"{gigabytes:.1f} GB" if result["fits"] else "-", f'{result["step_seconds"]:.2f} s',
             f'{result["tokens_per_second"]:,.0f}']
    if communication:
        cells += [f'{communication["bytes_per_step"] / 1e6:,.0f} MB in {communication["calls_per_step"]}',
                  f'{communication["min_sent_bytes"] / 1e6:,.0f} MB', f'{1e3 * communication["seconds"]:.0f} ms',
                  f'{1e3 * communication["exposed_seconds"]:.1f} ms']
    else:
        cells += ["-"] * 4
    return "| " + " | ".join(cells) + " |"


def cell(program, ranks, nodes, sharding, arguments):
    """Returns GPU memory, micro-batches and speed of the chosen plan; or the minimum memory if nothing fits."""
    if sharding != "none" and ranks == 1 or sharding == "hybrid" and nodes == 1:
        return "-"
    result = plan(program, ranks, nodes, [*arguments, "--sharding", sharding])
    gigabytes = result["memory"]["total_bytes"] / 1e9
    if not result["fits"]:
        return f"needs {gigabytes:.0f} GB"
    passes = f'{result["micro_batch_size"]} x {result["gradient_accumulation_steps"]}'
    recomputed = " r" if any(result["recompute"].values()) else ""
    return f'{gigabytes:.1f} GB, {passes}{recomputed}, {result["tokens_per_second"]:,.0f}'


def shardings_table(program, rows, shardings, arguments):
    """Prints the table of shardings. An r in a cell: blocks are recomputed."""
    print(f'| ranks | machines | {" | ".join(shardings)} |\n|---|---|{"---|" * len(shardings)}')
    for ranks, nodes in rows:
        cells = [cell(program, ranks, nodes, sharding, arguments) for sharding in shardings]
        print(f'| {ranks} | {nodes} | {" | ".join(cells)} |', flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--ranks", default="1,2,4,8,16")
    parser.add_argument("--shardings")
    known, arguments = parser.parse_known_args()
    rows = [(ranks, nodes) for ranks in map(int, known.ranks.split(",")) for nodes in ((1, 2) if ranks >= 16 else (1,))]
    if known.shardings:
        shardings_table(known.program, rows, known.shardings.split(","), arguments)
        return
    print("| ranks | machines | micro-batch x passes | each GPU | step | tokens/s | reduced, in calls | minimum sent per rank | "
          "time | not hidden |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for ranks, nodes in rows:
        print(row(plan(known.program, ranks, nodes, arguments), nodes))


if __name__ == "__main__":
    main()
