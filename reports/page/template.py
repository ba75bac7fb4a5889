"""What the pages share: the template engine, which escapes all text that is not ours, and the files beside this one."""

import re
from functools import cache
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from halocast.reports.comparison import family
from halocast.reports.table import seconds, size


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _lean(value: float | None) -> str:
    return "-" if value is None else f"{value:+.0%}"


@cache
def environment() -> Environment:
    engine = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    engine.filters |= {"seconds": seconds, "size": size, "family": family, "share": _share, "lean": _lean}
    return engine


def text_of(name: str, package: str = "halocast.reports.page") -> str:
    """A template, style sheet or script that is shipped with the package."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


def emphasised(text: str) -> Markup:
    """Turn `**name**` into bold HTML, what stands between backticks into code, and leave everything else as it is."""
    bold = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", str(escape(text)))
    return Markup(re.sub(r"`(.+?)`", r"<code>\1</code>", bold))
