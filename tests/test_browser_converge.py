"""The chart of scores in a real browser: the switch, the pointer and the keys say what the records say."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chromium import Browser, browser, find_chromium
from comparisons import comparison, result
from converged import GRAPH, LATE, converged, curve

from halocast.reports.comparison import ScalePoint
from halocast.reports.converge.page import render
from halocast.reports.curves import Converged
from halocast.reports.page.html import render as render_comparison
from halocast.schedule.approximation import Approximation

PROGRAM = find_chromium()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no chromium here (apt-get install chromium)")
TIP = "document.querySelector('#score-chart .tip')"
AXIS = "[...document.querySelectorAll('#score-chart text')].map((e) => e.textContent)"
TOLD = "document.getElementById('score-details').textContent"
NETWORK = "cluster.network_gbps"


def answered() -> Converged:
    """Two settings, a line that misses the target, a label as long as users make them, another graph that is timed."""
    stale: dict[str, Any] = {"approximation": Approximation.STALE}
    long = "digest-with-a-rather-long-name-of-its-own " * 3
    return converged(
        *(
            one
            for rate in (1, 10)
            for one in (
                curve("vanilla", [0.5, 0.7], [0.5, 0.72], epoch_s=10.0 / rate, setting={NETWORK: rate}),
                curve("pipegcn", [0.4, 0.6, 0.7], epoch_s=2.0 / rate, setting={NETWORK: rate}, **stale),
                curve(long, [0.45, *LATE], epoch_s=1.0, setting={NETWORK: rate}, **stale),
            )
        ),
        timed=replace(GRAPH, name="reddit"),
    )


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert PROGRAM is not None
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render(answered(), ("report.md",)), encoding="utf-8")
    with browser(PROGRAM) as opened:
        opened.open(path)
        yield opened


def over(page: Browser, name: str) -> None:
    page.evaluate(f"document.querySelector('#score-over input[value={name}]').click()")
    page.settle()


def spot(page: Browser, label: str) -> tuple[float, float]:
    """Where the target's dot of a line is in the window."""
    x, y = page.evaluate(
        "(() => { document.getElementById('score-chart').scrollIntoView({block: 'center', behavior: 'instant'});"
        f" const b = document.querySelector('#score-chart g[data-label=\"{label}\"] .met').getBoundingClientRect();"
        " return [b.left + b.width / 2, b.top + b.height / 2]; })()"
    )
    page.settle()
    return x, y


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_never_wider_than_its_window(window: Browser, width: int, scheme: str) -> None:
    window.look(width, 900, scheme)
    assert window.evaluate("document.documentElement.scrollWidth") <= width
    out = window.evaluate(
        f"[...document.querySelectorAll('main *')].filter((e) => !e.closest('.scroll, pre, nav, svg')"
        f" && e.getBoundingClientRect().right > {width} + 1).map((e) => e.outerHTML.slice(0, 80))"
    )
    assert out == []


def test_the_switch_changes_the_axis_by_pointer_and_by_keys(window: Browser) -> None:
    window.look(1280, 900, "light")
    over(window, "seconds")
    assert "predicted seconds for reddit" in window.evaluate(AXIS)
    over(window, "dollars")
    assert "predicted price for reddit, USD" in window.evaluate(AXIS)
    window.evaluate("document.querySelector('#score-over input[value=dollars]').focus()")
    window.key("ArrowRight")
    assert "epochs" in window.evaluate(AXIS)
    assert window.evaluate("document.querySelectorAll('#score-chart g line').length") == 0  # epochs are not predicted
    over(window, "seconds")
    assert "test score on pubmed, points" in window.evaluate(AXIS)


@pytest.mark.parametrize("name", ["seconds", "dollars", "epochs"])
def test_the_pointer_tells_the_nearest_point(window: Browser, name: str) -> None:
    window.look(1280, 900, "light")
    over(window, name)
    x, y = spot(window, "vanilla")
    window.mouse("mouseMoved", x + 3, y - 4)
    window.settle()
    assert not window.evaluate(f"{TIP}.hidden")
    assert window.evaluate(f"{TIP}.textContent") == (
        "vanilla (exact): 2 epochs, 20 s, $0.20; validation 71.0, test 69.0 (seeds 68.0 to 70.0)"
    )
    x, y = spot(window, "pipegcn")
    window.mouse("mouseMoved", x, y)
    window.settle()
    assert window.evaluate(f"{TIP}.textContent").startswith("pipegcn (stale): 3 epochs, 6 s, $0.060; validation 70.0")
    window.mouse("mouseMoved", 5, 5)
    window.settle()
    assert window.evaluate(f"{TIP}.hidden")


def test_keys_go_along_a_line_and_to_another(window: Browser) -> None:
    window.look(1280, 900, "light")
    over(window, "epochs")
    window.evaluate("document.getElementById('score-chart').focus()")
    window.key("ArrowRight")
    assert window.evaluate(TOLD).startswith("vanilla (exact): 1 epoch")
    window.key("ArrowRight")
    assert window.evaluate(TOLD).startswith("vanilla (exact): 2 epochs, 20 s, $0.20")
    window.key("ArrowDown")
    assert window.evaluate(TOLD).startswith("pipegcn (stale): 2 epochs, 4 s")
    window.key("Escape")
    assert window.evaluate(TOLD) == ""


def test_another_setting_can_be_picked(window: Browser) -> None:
    window.look(1280, 900, "light")
    over(window, "seconds")
    choose = (
        "(() => {{ const p = document.getElementById('score-pick'); p.value = '{}';"
        " p.dispatchEvent(new Event('change')); }})()"
    )
    window.evaluate(choose.format(1))
    x, y = spot(window, "vanilla")
    window.mouse("mouseMoved", x, y)
    window.settle()
    assert "2 epochs, 2 s, $0.020" in window.evaluate(f"{TIP}.textContent")
    window.evaluate(choose.format(0))


def test_a_chosen_line_is_the_only_one_that_is_not_faded(window: Browser) -> None:
    press = "document.querySelector('#score-legend-exact button').click()"
    window.evaluate(press)
    window.settle()
    shown = "[...document.querySelectorAll('#score-chart g[data-label]:not(.faded)')].map((e) => e.dataset.label)"
    assert window.evaluate(shown) == ["vanilla"]
    window.evaluate(press)
    window.settle()
    assert len(window.evaluate(shown)) == 3


def test_the_table_has_what_the_chart_shows_and_everything_has_a_name(window: Browser) -> None:
    cells = window.evaluate(
        "[...document.querySelectorAll('details.spots')[0].querySelectorAll('tbody tr')]"
        ".map((r) => [...r.children].map((c) => c.textContent))"
    )
    assert cells[:2] == [
        ["vanilla", "1", "10 s", "$0.10", "50.0", "48.0", "48.0 to 48.0"],
        ["vanilla", "2", "20 s", "$0.20", "71.0", "69.0", "68.0 to 70.0"],
    ]
    nameless = (
        "[...document.querySelectorAll('button, select, [tabindex], [role=img]')].filter((e) =>"
        " !(e.ariaLabel || e.textContent.trim() || e.closest('label'))).map((e) => e.outerHTML.slice(0, 80))"
    )
    assert window.evaluate(nameless) == []


def test_nothing_was_asked_for_and_nothing_complained(window: Browser) -> None:
    assert window.requests() == []
    assert window.complaints() == []


def test_both_charts_work_on_the_page_of_a_comparison(tmp_path: Path) -> None:
    assert PROGRAM is not None
    scaling = tuple(ScalePoint(method="m", ranks=k, epoch_s=1 / k) for k in (1, 2))
    page = render_comparison(comparison(result(method="m"), scaling=scaling, converged=answered()))
    with browser(PROGRAM) as opened:
        path = tmp_path / "report.html"
        path.write_text(page, encoding="utf-8")
        opened.open(path)
        opened.look(1280, 900, "light")
        assert opened.evaluate("document.querySelectorAll('#score-chart svg, #scaling-chart svg').length") == 2
        assert opened.evaluate("[...document.querySelectorAll('#score-over :disabled')].length") == 0
        assert opened.complaints() == []


def test_what_is_not_known_cannot_be_switched_to(tmp_path: Path) -> None:
    assert PROGRAM is not None
    path = tmp_path / "report.html"
    path.write_text(render(converged(curve("vanilla", [0.5], price_per_s=None))), encoding="utf-8")
    with browser(PROGRAM) as opened:
        opened.open(path)
        opened.look(1280, 900, "light")
        disabled = "[...document.querySelectorAll('#score-over :disabled')].map((e) => e.value)"
        assert opened.evaluate(disabled) == ["dollars"]
