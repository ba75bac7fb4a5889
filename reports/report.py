"""The comparison report: a directory with report.md, results.csv, results.json, a figure and the traces."""

import json
from collections.abc import Sequence
from pathlib import Path

from halocast.base.errors import InputError
from halocast.base.files import whole_directory
from halocast.reports.metrics import PARTS
from halocast.reports.table import Summary, csv_table, insights, markdown_table, size
from halocast.schedule.trace import Trace, save_trace

LABELS = {
    "compute_s": "compute",
    "exposed_comm_s": "exposed communication",
    "reduce_s": "reduce",
    "wait_s": "wait",
    "bubble_s": "bubble",
}
COLOURS = ("#4477aa", "#ee6677", "#ccbb44", "#aa3377", "#bbbbbb")  # Tol's bright scheme, told apart by all eyes


def write_report(
    path: Path, summaries: Sequence[Summary], traces: Sequence[Trace], scenario: str, *, executed: bool = False
) -> None:
    """Write the whole report or nothing; only an earlier report or an empty directory is replaced."""
    require_report_place(path)
    with whole_directory(path) as directory:
        (directory / "results.csv").write_text(csv_table(summaries), encoding="utf-8")
        (directory / "results.json").write_text(json.dumps(list(summaries), indent=1), encoding="utf-8")
        (directory / "scenario.toml").write_text(scenario, encoding="utf-8")
        (directory / "report.md").write_text(markdown(summaries, scenario, executed), encoding="utf-8")
        draw_epochs(directory / "epoch.svg", summaries)
        for summary, trace in zip(summaries, traces, strict=True):
            save_trace(trace, directory / f"trace-{trace_name(summary)}.parquet")


def require_report_place(path: Path) -> None:
    if path.exists() and not _replaceable(path):
        raise InputError(f"{path}: exists and is not a report of ours; choose another --out")


def _replaceable(path: Path) -> bool:
    if not path.is_dir():
        return False
    return not any(path.iterdir()) or ((path / "results.csv").exists() and (path / "report.md").exists())


def trace_name(summary: Summary) -> str:
    return f"{summary['method']}-{summary['source']}-{summary['cluster']}".replace(" ", "-")


def markdown(summaries: Sequence[Summary], scenario: str, executed: bool) -> str:
    lines = [
        "# Comparison",
        "",
        verdict(summaries),
        "",
        markdown_table(summaries),
        "",
        "![What an epoch is made of](epoch.svg)",
        "",
        "Times are seconds of one steady epoch: `epoch` of the slowest rank, the others as the mean over ranks.",
        "`traffic` is what all ranks send in one epoch, `memory` the largest rank's peak (executed on a CPU: the",
        "process's resident set, torch included), `stale` the age in epochs of the remote rows that are read.",
        "",
        "## What determines the epoch",
        "",
        *[f"- {s['method']}, {s['source']} on {s['cluster']}: {insights(s)}." for s in summaries],
        "",
        "Shares of the critical path: the chain of ops whose seconds add up to the epoch. Links by mean utilisation.",
        "",
        "## Provenance",
        "",
        *[provenance(summary) for summary in summaries],
        "",
        "## Reproduce",
        "",
        f"`halocast compare scenario.toml{' --execute' if executed else ''}` with the file beside this report:",
        "",
        "```toml",
        scenario.rstrip(),
        "```",
        "",
    ]
    return "\n".join(lines)


def verdict(summaries: Sequence[Summary]) -> str:
    """The fastest method that fits on the scenario's cluster, and how runs on this machine compare with predictions."""
    return " ".join([_fastest(summaries), *_accuracy(summaries)])


def _accuracy(summaries: Sequence[Summary]) -> list[str]:
    sentences = []
    for run in (s for s in summaries if s["source"] == "executed"):
        same = [s for s in summaries if s["method"] == run["method"] and s.get("predicts") == run["cluster"]]
        sentences += [
            f"Run on {run['cluster']}, {run['method']} took {run['epoch_s']:.4g} s per epoch, "
            f"{run['epoch_s'] / s['epoch_s']:.2f} times its prediction there."
            for s in same
        ]
    return sentences


def _fastest(summaries: Sequence[Summary]) -> str:
    simulated = [s for s in summaries if s["source"] == "simulated" and "predicts" not in s]
    fitting = [s for s in simulated if s.get("fits", True)]
    if not fitting:
        return "No method fits in the memory of the devices."
    best = min(fitting, key=lambda s: s["epoch_s"])
    share = best["exposed_comm_s"] / best["epoch_s"] if best["epoch_s"] else 0.0
    chosen = f"Fastest of {len(simulated)} methods: **" if len(simulated) > 1 else "Predicted: **"
    return (
        f"{chosen}{best['method']}** on {best['cluster']} with {best['ranks']} ranks, "
        f"{best['epoch_s']:.4g} s per epoch, of which {share:.0%} is exposed communication."
    )


def provenance(summary: Summary) -> str:
    if summary["source"] == "executed":
        how = f"{summary['epochs']} real epochs, the first {summary['warmup_epochs']} dropped"
    else:
        memory = f"{size(summary['memory_bytes'])} of {size(summary['device_memory_bytes'])} device memory"
        how = f"predicted, {constants(summary)}; sizes: {summary['sizes']}; {memory}"
    return f"- {summary['method']}, {summary['source']} on {summary['cluster']}: {how}."


def constants(summary: Summary) -> str:
    """Where the numbers behind a prediction come from."""
    profile = summary.get("calibrated")
    return f"calibrated: {profile}" if profile else f"constants, not calibrated: {summary['constants']}"


def draw_epochs(path: Path, summaries: Sequence[Summary]) -> None:
    """Stacked bars of what the mean rank's epoch is made of."""
    import matplotlib as mpl  # slow to import, and only reports need it
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "halocast"  # the same report twice is the same file
    figure = Figure(figsize=(8, 1.2 + 0.5 * len(summaries)), layout="constrained")
    axis = figure.add_subplot()
    names = [f"{s['method']}, {s['source']}\n{s['cluster']} ×{s['ranks']}" for s in summaries]
    left = [0.0] * len(summaries)
    for part, colour in zip(PARTS, COLOURS, strict=True):
        values = [1e3 * s[part] for s in summaries]
        axis.barh(names, values, left=left, color=colour, label=LABELS[part])
        left = [a + b for a, b in zip(left, values, strict=True)]
    axis.set_xlabel("ms per epoch (mean over ranks)")
    axis.invert_yaxis()
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=5, frameon=False, fontsize="small")
    figure.savefig(path, metadata={"Date": None})
