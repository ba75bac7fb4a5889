"""The page in a real browser: it works without a network, at both widths, in light and dark, by wheel and by keys."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from chromium import Browser, browser, find_chromium
from comparisons import comparison, many_spans, result

from halocast.reports.comparison import NotCompared, ScalePoint
from halocast.reports.page.html import render

PROGRAM = find_chromium()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no chromium here (apt-get install chromium)")
SHIFT = 8
LANES = "document.querySelector('.timeline:not([hidden]) canvas')"


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A page with 10,000 spans in one timeline, a failed method, curves and names as long as users make them."""
    assert PROGRAM is not None
    long = "a-cluster-with-a-rather-long-name-of-its-own-" * 3
    many = result(method="many", cluster=long)
    made = comparison(
        replace(many, trace=many_spans(num_ranks=5, num_epochs=50, per_epoch=40)),
        result(method="few", cluster=long),
        failures=(NotCompared(method="none", cluster=long, reason="3 stages, but 2 layers, " * 12),),
        scaling=tuple(ScalePoint(method=m, ranks=k, epoch_s=1 / k) for m in ("many", "few") for k in (1, 2, 4)),
    )
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render(made), encoding="utf-8")
    with browser(PROGRAM) as opened:
        opened.open(path)
        yield opened


def seen(page: Browser) -> tuple[float, float]:
    page.settle()
    return page.evaluate(f"+{LANES}.dataset.from"), page.evaluate(f"+{LANES}.dataset.to")


def middle(page: Browser) -> tuple[float, float]:
    """Of the timeline, brought into view."""
    box = page.evaluate(
        f"(() => {{ {LANES}.scrollIntoView({{block: 'center', behavior: 'instant'}});"
        f" const b = {LANES}.getBoundingClientRect(); return [b.left + 0.6 * b.width, b.top + 10]; }})()"
    )
    page.settle()
    return box[0], box[1]


def show_all(page: Browser) -> tuple[float, float]:
    page.evaluate(f"{LANES}.focus()")
    page.key("0")
    return seen(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_readable_and_never_wider_than_its_window(window: Browser, width: int, scheme: str) -> None:
    window.look(width, 900, scheme)
    assert window.evaluate("document.documentElement.scrollWidth") <= width
    assert window.evaluate("parseFloat(getComputedStyle(document.body).fontSize)") >= 14
    light = window.evaluate(
        "[...getComputedStyle(document.body).backgroundColor.matchAll(/\\d+/g)].slice(0, 3).every((m) => +m[0] > 127)"
    )
    assert light == (scheme == "light")
    # nothing but what scrolls by itself sticks out
    out = window.evaluate(
        f"[...document.querySelectorAll('main *')].filter((e) => !e.closest('.scroll, pre, nav')"
        f" && e.getBoundingClientRect().right > {width} + 1).map((e) => e.outerHTML.slice(0, 80))"
    )
    assert out == []


def test_ten_thousand_spans_are_there_and_the_wheel_zooms_where_the_pointer_is(window: Browser) -> None:
    window.look(1280, 900, "light")
    assert (
        window.evaluate(
            "JSON.parse(document.getElementById('data').textContent).timelines"
            "[document.querySelector('.timeline').dataset.timeline].count"
        )
        == 10_000
    )
    start, end = show_all(window)
    x, y = middle(window)
    window.wheel_until(x, y, -400, f"+{LANES}.dataset.to - +{LANES}.dataset.from < {0.6 * (end - start)}")
    left, right = seen(window)
    assert start < left < right < end


def test_a_wheel_over_a_timeline_that_is_not_in_use_scrolls_the_page(window: Browser) -> None:
    window.look(1280, 900, "light")
    before = show_all(window)
    x, y = middle(window)
    window.evaluate("document.activeElement.blur()")
    at = window.evaluate("window.scrollY")
    window.mouse("mouseWheel", x, y, deltaX=0, deltaY=-200)
    window.wait_for(f"window.scrollY < {at}")
    assert seen(window) == before


def test_keys_zoom_pan_and_go_from_span_to_span(window: Browser) -> None:
    window.look(1280, 900, "light")
    start, end = show_all(window)
    window.key("+", "+")
    left, right = seen(window)
    assert right - left == pytest.approx((end - start) / 1.6)
    window.key("ArrowRight")
    assert seen(window) == pytest.approx((left + 0.2 * (right - left), right + 0.2 * (right - left)))
    window.key("ArrowLeft")
    assert seen(window) == pytest.approx((left, right))
    window.key("-", "-")
    assert seen(window) == pytest.approx((start, end))
    told = "document.querySelector('.timeline:not([hidden]) .details').textContent"
    window.key("ArrowDown")
    first = window.evaluate(told)
    assert "rank 0 compute lane" in first
    window.key("ArrowRight", modifiers=SHIFT)
    second = window.evaluate(told)
    assert second != first
    window.key("ArrowDown")
    assert "rank 1 compute lane" in window.evaluate(told)
    window.key("Enter")
    left, right = seen(window)
    assert right - left < (end - start) / 100
    assert seen(window) != show_all(window)


def test_a_drag_pans_and_the_pointer_tells_op_epoch_and_rank(window: Browser) -> None:
    window.look(1280, 900, "light")
    show_all(window)
    window.key("+", "+")
    left, _ = seen(window)
    x, y = middle(window)
    window.mouse("mousePressed", x, y, button="left", clickCount=1)
    window.mouse("mouseMoved", x - 200, y, button="left", buttons=1)
    window.mouse("mouseReleased", x - 200, y, button="left", clickCount=1)
    assert seen(window)[0] > left
    window.mouse("mouseMoved", x, y)
    window.settle()
    tip = window.evaluate("document.querySelector('.timeline:not([hidden]) .tip').textContent")
    assert tip.startswith("forward.")
    assert "epoch" in tip


def test_another_timeline_can_be_picked_and_everything_has_a_name(window: Browser) -> None:
    window.evaluate(
        "(() => { const p = document.getElementById('pick'); p.selectedIndex = 1;"
        " p.dispatchEvent(new Event('change')); })()"
    )
    window.settle()
    assert window.evaluate("document.querySelector('.timeline:not([hidden]) h3').textContent").startswith("few")
    assert window.evaluate(f"{LANES}.width") > 0
    nameless = (
        "[...document.querySelectorAll('canvas, button, select, [tabindex], [role=img]')].filter((e) =>"
        " !(e.ariaLabel || e.textContent.trim() || e.closest('label'))).map((e) => e.outerHTML.slice(0, 80))"
    )
    assert window.evaluate(nameless) == []
    window.evaluate(
        "(() => { const p = document.getElementById('pick'); p.selectedIndex = 0;"
        " p.dispatchEvent(new Event('change')); })()"
    )


def test_a_drawing_touches_only_the_spans_in_its_window(window: Browser) -> None:
    """Counted in rectangles, not in time: that is what keeps ten thousand spans smooth."""
    window.look(1280, 900, "light")
    show_all(window)
    count = (
        "(() => { const old = CanvasRenderingContext2D.prototype.fillRect; let n = 0;"
        " CanvasRenderingContext2D.prototype.fillRect = function (...a) { n += 1; return old.apply(this, a); };"
        " return new Promise((done) => { KEY; requestAnimationFrame(() => requestAnimationFrame(() => {"
        " CanvasRenderingContext2D.prototype.fillRect = old; done(n); })); }); })()"
    )
    press = f"{LANES}.dispatchEvent(new KeyboardEvent('keydown', {{key: '+'}}))"
    whole = window.evaluate(count.replace("KEY", press))
    for _ in range(9):
        window.evaluate(press)
    near = window.evaluate(count.replace("KEY", press))
    assert 5 < near < 300 < whole <= 10_001


def test_nothing_was_asked_for_and_nothing_complained(window: Browser) -> None:
    assert window.requests() == []
    assert window.complaints() == []
