"""Published scores beside our own: what a method gains or loses against vanilla, in their table and in our runs.

Most of their graphs are not ours to train on, so another stands in, and the result says so. Nothing is predicted here.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import mean
from types import MappingProxyType
from typing import Any

from halocast.base.errors import InputError, unknown
from halocast.methods import METHODS
from halocast.reports.published_scores import ScoreResult
from halocast.reports.scores import Difference
from halocast.study.own_scores import VANILLA, OwnScore
from halocast.study.presets import PRESET
from halocast.study.published_rows import PARAMS, SAME_BASE, Row, method_of, params_of, value_of

METRIC = re.compile(r"(test|val|valid|validation)_(score|f1|acc|accuracy)")
POINTS: Mapping[str, float] = MappingProxyType({"%": 1.0, "x": 100.0})
PAPER = "paper"  # the preset that a paper's row is best compared with
# What rows of one table have in common; logs name a row or a run of a file after the last colon.
TABLE = ("source", "dataset", "train_graph", "model", "layers", "n_linear", "hidden", "metric")
LINE_OF_FILE = re.compile(r":\w+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """The graph of ours that is nearest to a published one, if any is near at all, and why."""

    graph: str | None
    reason: str


def _itself(graph: str) -> StandIn:
    return StandIn(graph=graph, reason="the same graph")


STAND_INS: Mapping[str, StandIn] = MappingProxyType(
    {
        "reddit": StandIn(graph="amazon-computers", reason="dense, 36 neighbours (492 there)"),
        "ogbn-products": StandIn(graph="amazon-computers", reason="goods bought together, as there"),
        "ogbn-arxiv": StandIn(graph="coauthor-cs", reason="computer science, 15 classes (40 there)"),
        "ogbn-papers100m": StandIn(graph="coauthor-cs", reason="science, 15 classes (172 there)"),
        "flickr": StandIn(graph="squirrel", reason="neighbours tell little of a class, as there"),
        **dict.fromkeys(("yelp", "amazon"), StandIn(graph=None, reason="no stand-in, multi-label")),
        **dict.fromkeys(("orkut", "friendster"), StandIn(graph=None, reason="no stand-in, made-up labels")),
        "physics": _itself("coauthor-physics"),
        **{name: _itself(name) for name in ("squirrel", "coauthor-physics", "coauthor-cs", "amazon-computers")},
        **{name: _itself(name) for name in ("pubmed", "cora")},
    }
)


def is_score(row: Row) -> bool:
    """Whether a row is of how well a trained model does."""
    return METRIC.fullmatch(row["metric"]) is not None


def score_results(rows: Sequence[Row], own: Sequence[OwnScore]) -> list[ScoreResult]:
    """Every score among published rows, beside a run of ours or with the reason why there is none."""
    scores = [row for row in rows if is_score(row)]
    return [_result(row, scores, own) for row in scores]


def _result(row: Row, scores: Sequence[Row], own: Sequence[OwnScore]) -> ScoreResult:
    try:
        points = _points(row)
        if _is_exact(row):
            raise InputError("vanilla: what the others of its table are compared with")
        name, _ = method_of(row)
        options = _options(row)
    except InputError as error:
        return ScoreResult(row=row, refused=str(error))
    exact, stand_in = _exact_points(row, scores), _stand_in(row)
    run = _nearest(
        [run for run in own if (run.graph, run.method, run.model) == (stand_in.graph, name, row["model"])], options
    )
    return ScoreResult(
        row=row,
        method=" ".join([row["method"], *_beyond_defaults(name, options), *_model(row, scores)]),
        published=None if exact is None else points - exact,
        no_base="" if exact is not None else f"no vanilla in {row['source']}, {_table(row)}: nothing to subtract",
        ours=None if run is None else _difference(run),
        case="" if run is None else " ".join(filter(None, (run.method, run.options))),
        stand_in=stand_in.graph or "",
        why=stand_in.reason,
        same_graph=stand_in == _itself(stand_in.graph or ""),
    )


def _points(row: Row) -> float:
    if row["unit"] not in POINTS:
        raise unknown("unit", row["unit"], POINTS)
    return value_of(row) * POINTS[row["unit"]]


def _is_exact(row: Row) -> bool:
    """Whether a row is of exact training: vanilla, or a method that is vanilla with these params."""
    method = SAME_BASE.get(row["method"], row["method"])
    return method == VANILLA or (method == "bns" and params_of(row).get("p") == 1)


def _table(row: Row) -> str:
    return LINE_OF_FILE.sub("", row["where"])


def _exact_points(row: Row, scores: Iterable[Row]) -> float | None:
    """The mean score of exact training in a row's own table, on as many GPUs if there is one: it is the same on any."""
    same = [
        other
        for other in scores
        if all(other[name] == row[name] for name in TABLE) and _table(other) == _table(row) and _is_readable(other)
    ]
    exact = [other for other in same if _is_exact(other)]
    return mean(map(_points, [other for other in exact if other["gpus"] == row["gpus"]] or exact)) if exact else None


def _is_readable(row: Row) -> bool:
    try:
        params_of(row)
        _points(row)
    except InputError:
        return False
    return True


def _options(row: Row) -> dict[str, Any]:
    """What a row's params mean among the options of its method; the others are of the model or the run."""
    name, options = method_of(row)
    known = {option.name for option in fields(METHODS[name].options)}
    params = ((ours, value) for key, value in params_of(row).items() for ours in (key, *PARAMS.get(key, ())))
    return options | {ours: value for ours, value in params if ours in known}


def _beyond_defaults(name: str, options: Mapping[str, Any]) -> list[str]:
    defaults = _defaults(name)
    return [f"{key}={value}" for key, value in options.items() if not _equal(value, defaults[key])]


def _model(row: Row, scores: Iterable[Row]) -> list[str]:
    """The model of a row, where its source has scores of several."""
    models = {other["model"] for other in scores if other["source"] == row["source"]}
    return [row["model"]] if len(models) > 1 else []


def _defaults(name: str) -> dict[str, Any]:
    return {option.name: option.default for option in fields(METHODS[name].options)}


def _stand_in(row: Row) -> StandIn:
    name = row["dataset"].lower()
    return STAND_INS.get(name, StandIn(graph=None, reason="no stand-in is known"))


def _nearest(runs: Iterable[OwnScore], options: Mapping[str, Any]) -> OwnScore | None:
    """The run that had the published options: of several one with the paper's preset, then one with the fewest options
    that the paper does not name; the first of equals."""
    return min(
        (run for run in runs if run.minus_vanilla is not None and _fits(run, options)),
        key=lambda run: (run.chosen.get(PRESET) != PAPER, len(run.chosen.keys() - options.keys())),
        default=None,
    )


def _fits(run: OwnScore, options: Mapping[str, Any]) -> bool:
    """Whether a run had the published options: its own, those of its preset, or the defaults."""
    preset = METHODS[run.method].presets.get(run.chosen.get(PRESET, ""), {})
    had = {**_defaults(run.method), **preset, **run.chosen}
    return all(_equal(had[key], value) for key, value in options.items())


def _equal(ours: Any, published: Any) -> bool:
    try:
        return float(ours) == float(published)
    except (TypeError, ValueError):
        return str(ours).lower() == str(published).lower()


def _difference(run: OwnScore) -> Difference:
    assert run.minus_vanilla is not None
    return Difference(mean=run.minus_vanilla, error=run.minus_vanilla_se, num_seeds=run.seeds)
