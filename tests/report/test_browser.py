"""The page in a real browser: nothing fails, nothing is loaded, nothing from the data runs, nothing is cut off."""

import pytest

from bedl.evaluation.report import write_report
from bedl.evaluation.tasks import ColumnSummary, Slice
from tests.report import browser
from tests.report.data import classification, nasty_classification, nasty_regression, regression
from tests.report.test_parts import decode_screenshot

pytestmark = pytest.mark.skipif(bool(browser.MISSING), reason=f"{browser.MISSING} not found: pages are not tested")

COLUMNS = [
    ColumnSummary(
        f"{'a long name of a ' if i % 2 else ''}column {i}", 0.5 / (i + 1), 0.05, 0.1 * i, "1.2 ± 3.4", 0.02 * i
    )
    for i in range(12)
]
SLICES = [Slice("colour", f"a colour of some length {i}", 50 + i, 0.7 + 0.02 * i, 0.9, 0.04) for i in range(10)]
RESULTS = {
    "targets": lambda: regression(300),
    "classes": lambda: classification(300, 10),
    "two": lambda: classification(300, 2, columns=COLUMNS, slices=SLICES),
    "nasty-targets": nasty_regression,
    "nasty-classes": nasty_classification,
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    return {name: write_report(make(), folder / f"{name}.html") for name, make in RESULTS.items()}


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    window = browser.Browser(tmp_path_factory.mktemp("profile"))
    yield window
    window.close()


@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("name", RESULTS)
def test_page_opens_cleanly_and_fits(chromium, pages, name, width):
    chromium.open(pages[name], width=width)
    chromium.run("document.querySelectorAll('details').forEach(part => { part.open = true })")
    assert chromium.log("browser") == []  # neither errors nor warnings
    assert not [address for address in chromium.requests() if address.startswith(("http", "ws", "ftp"))]
    assert chromium.run("document.documentElement.scrollWidth") <= width
    assert chromium.run("window.hacked") is None
    assert chromium.run("document.scripts.length") == 1
    assert chromium.run("document.querySelectorAll('svg').length") >= 5
    # No label of a plot leaves its picture.
    outside = """[...document.querySelectorAll('svg text')].filter(label => {
        const a = label.getBoundingClientRect(), b = label.ownerSVGElement.getBoundingClientRect();
        return a.left < b.left - 1 || a.right > b.right + 1 || a.top < b.top - 1 || a.bottom > b.bottom + 1;
    }).map(label => label.textContent)"""
    assert chromium.run(outside) == []
    # No two labels on the horizontal axis touch.
    touching = """[...document.querySelectorAll('svg')].flatMap(plot => {
        const labels = [...plot.querySelectorAll('text[dy=".8em"]')].map(t => t.getBoundingClientRect());
        return labels.slice(1).filter((box, i) => box.left < labels[i].right + 1).map(() => plot.ariaLabel);
    })"""
    assert chromium.run(touching) == []


def test_the_threshold_moves_points_on_both_curves(chromium, pages):
    chromium.open(pages["two"])
    state = """(() => { const part = document.querySelector('input[data-steps]').closest('section');
        return [part.querySelector('output').textContent, ...[...part.querySelectorAll('.moved')].map(m =>
            [m.getAttribute('cx'), m.getAttribute('cy')].map(Number))]; })()"""
    before = chromium.run(state)
    assert before[0].startswith("Threshold 0.")
    chromium.run("""(() => { const input = document.querySelector('input[data-steps]');
        input.value = input.max; input.dispatchEvent(new Event('input')); return input.hidden; })()""")
    said, roc, precision = chromium.run(state)
    assert said != before[0]
    assert "recall 100.0" in said
    assert roc[1] == pytest.approx(30)  # the top of both frames is a recall of 1, or its right end
    assert precision[0] == pytest.approx(396)


def test_text_from_data_is_seen_as_text(chromium, pages):
    chromium.open(pages["nasty-classes"])
    assert "<script>window.hacked = 1</script>" in chromium.run("document.querySelector('h1').textContent")
    chromium.open(pages["nasty-targets"])
    heads = chromium.run("[...document.querySelectorAll('.wide thead th')].map(cell => cell.textContent)")
    assert "<script>window.hacked = 1</script>" in heads


@pytest.mark.parametrize("dark", [False, True])
def test_screenshot_shows_plots_in_the_colours_of_the_theme(chromium, pages, dark):
    chromium.open(pages["classes"], dark=dark)
    pixels = decode_screenshot(chromium.screenshot(scale=0.06))
    assert len({tuple(colour) for colour in pixels.reshape(-1, 3).tolist()}) > 50
    corner = pixels[1, 1].mean()
    assert corner < 60 if dark else corner > 200


def test_the_button_changes_the_theme(chromium, pages):
    chromium.open(pages["targets"])
    seen = []
    for _ in range(3):
        chromium.run("document.getElementById('theme').click()")
        seen.append(
            chromium.run(
                "[document.getElementById('theme').textContent, getComputedStyle(document.body).backgroundColor]"
            )
        )
    names, colours = zip(*seen, strict=True)
    assert names == ("Theme: light", "Theme: dark", "Theme: auto")
    assert colours[0] == colours[2] != colours[1]


def contrast(one, other):
    """Ratio of luminances as the web's accessibility guidelines define it."""

    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_colours_have_contrast(chromium, pages, dark):
    chromium.open(pages["targets"], dark=dark)
    names = "bg card ink soft a b ref on-dark cell".split()
    css = "getComputedStyle(document.documentElement)"
    colour = {name: chromium.run(f"{css}.getPropertyValue('--{name}').trim()") for name in names}
    for text in ("ink", "soft"):
        assert min(contrast(colour[text], colour[ground]) for ground in ("bg", "card")) >= 4.5
    for mark in ("a", "b", "ref"):
        assert contrast(colour[mark], colour["card"]) >= 3
    assert contrast(colour["on-dark"], colour["cell"]) >= 4.5


def test_points_are_reached_by_keyboard(chromium, pages):
    chromium.open(pages["targets"])
    chromium.key("Tab")
    assert chromium.run("document.activeElement.textContent") == "Skip to the plots"
    chromium.key("Enter")
    chromium.settle()
    for _ in range(2):
        chromium.key("Tab")
        if chromium.run("document.activeElement.tagName") == "svg":
            break
    assert chromium.run("document.activeElement.tagName") == "svg"
    chromium.key("ArrowRight")
    first = chromium.run("document.getElementById('tip').textContent")
    chromium.key("ArrowRight")
    second = chromium.run("document.getElementById('spoken').textContent")
    assert first.startswith("in-domain, 0")
    assert second.startswith("in-domain, ")
    assert first != second
    assert chromium.run("document.querySelectorAll('.now').length") == 1
    chromium.key("Escape")
    assert chromium.run("document.getElementById('tip').hidden")


@pytest.fixture
def touched(chromium, pages):
    """The browser after a touch near the first point, on a phone."""
    chromium.open(pages["targets"], width=360)
    chromium.run("document.querySelector('.point.a circle').scrollIntoView({block: 'center'})")
    chromium.settle()
    box = chromium.run("document.querySelector('.point.a circle').getBoundingClientRect().toJSON()")
    finger = [{"x": box["left"] + 4, "y": box["top"] + 4}]
    chromium.devtools("Input.dispatchTouchEvent", type="touchStart", touchPoints=finger)
    chromium.devtools("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    chromium.settle()
    return chromium


def test_a_touch_near_a_point_shows_it(touched):
    assert touched.run("tip.textContent").startswith("row ")
    box = touched.run("tip.getBoundingClientRect().toJSON()")
    assert 0 <= box["left"] < box["right"] <= 360


def test_the_tip_goes_with_its_point(touched):
    apart = "tip.getBoundingClientRect().top - document.querySelector('.now').getBoundingClientRect().top"
    before, name = touched.run(apart), touched.run("tip.textContent")
    touched.run("scrollBy(0, 40)")
    touched.settle()
    assert touched.run("tip.textContent") == name
    assert not touched.run("tip.hidden")
    assert touched.run(apart) == pytest.approx(before, abs=1)


def test_print_has_light_colours_and_fits(chromium, pages):
    chromium.open(pages["targets"], width=720, dark=True, media="print")
    assert chromium.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    chromium.run("window.dispatchEvent(new Event('beforeprint'))")
    assert chromium.run("document.querySelectorAll('details:not([open])').length") == 0
    assert chromium.run("document.documentElement.scrollWidth") <= 720
