"""The page in headless Chromium: what a reader does with it, with no error and no request to
anybody.

Needs Chromium, its driver and selenium (``apt-get install chromium chromium-driver``; ``pip install
selenium``). Without them these tests are skipped, and say so; with
KERNEL_ARCHIVE_REQUIRE_BROWSER=1, as in CI, they fail instead.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import shutil
import threading
import time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from support.boards import DRAWS, write_lines
from support.small_archive import write_archive

from kernel_archive.baselines.registry import make_baseline
from kernel_archive.board import add_submission, build_board
from kernel_archive.scoring import load_split
from kernel_archive.scoring.metrics import COMPARED

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore::ResourceWarning")]

EVIL = (
    "<script>document.title='owned'</script><img src=x "
    "onerror=\"document.title='owned'\">{{7*7}}$title\u202e\x1b[31m"
)
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --disable-dev-shm-usage "
    "--hide-scrollbars"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Headless Chromium with a profile of its own."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    driver, selenium = shutil.which("chromedriver"), importlib.util.find_spec("selenium")
    tools = {"chromium": chromium, "chromedriver": driver, "selenium": selenium}
    if lacking := [name for name, place in tools.items() if place is None]:
        refuse = pytest.fail if os.environ.get("KERNEL_ARCHIVE_REQUIRE_BROWSER") else pytest.skip
        refuse(
            f"NO BROWSER TEST HAS RUN: {', '.join(lacking)} is missing (apt-get install "
            "chromium chromium-driver; pip install selenium)"
        )
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(driver))
    started.set_script_timeout(30)
    yield started
    started.quit()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A served board of both splits, with hostile programs and a problem named like markup."""
    root = tmp_path_factory.mktemp("board")
    archive = write_archive(
        root / "a",
        per_search=14,
        problems=("alpha", "<i>beta</i>"),
        hostile=f'import x\n"""{EVIL}"""\n{EVIL}\n' + "y" * 5_000_000,
    )
    for split in ("eval", "discovery"):
        rows = load_split(archive, split)
        prior = make_baseline("prior", archive, split).probabilities
        even = np.full_like(prior, 0.125)
        middle = np.tile(np.eye(8)[3:5].mean(axis=0), (len(prior), 1))
        nearest = np.roll(prior, 1, axis=1)
        forecasts = {"uniform": even, "prior": prior, "nearest": nearest, "near": middle}
        for name, p in forecasts.items():
            extra = {"rationale": EVIL * 4, "input_tokens": 10} if name == "nearest" else {}
            path = write_lines(root / f"{name}.jsonl", rows, p, **extra)
            stated = {"url": "https://example.org/", "board": root / "b", "draws": DRAWS}
            shown = EVIL.split("\u202e", maxsplit=1)[0][:80] if name == "nearest" else name
            add_submission(path, rows, name=shown, **stated)
    build_board(archive, root / "b", draws=DRAWS, jobs=1)
    handler = functools.partial(SimpleHTTPRequestHandler, directory=root / "b")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


def js(browser, expression, *arguments):
    """The value of an expression on the page; arguments are ``arguments[0]``, ..."""
    return browser.execute_script(f"return {expression}", *arguments)


def count(browser, selector):
    """How many elements match."""
    return js(browser, "document.querySelectorAll(arguments[0]).length", selector)


def click(browser, selector):
    """Click the first element that matches, without scrolling to it."""
    browser.execute_script("document.querySelector(arguments[0]).click()", selector)


def choose(browser, name, value, event="change"):
    """Give a field a value, as its user would."""
    browser.execute_script(
        "const f = document.getElementById(arguments[0]); f.value = arguments[1]; "
        "f.dispatchEvent(new Event(arguments[2]))",
        name,
        value,
        event,
    )


def text(browser, selector):
    """The text of the first element that matches."""
    return js(browser, "document.querySelector(arguments[0]).textContent", selector)


def wait(browser, expression, seconds=15):
    """Until an expression is true."""
    end = time.monotonic() + seconds
    while not js(browser, expression):
        assert time.monotonic() < end, f"never: {expression}; {browser.get_log('browser')}"
        time.sleep(0.03)


def drain(browser):
    """Console messages and requested addresses since the last call."""
    console = [entry["message"] for entry in browser.get_log("browser")]
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [
        m["params"]["request"]["url"]
        for m in messages
        if m["method"] == "Network.requestWillBeSent"
    ]
    return console, sent


def resize(browser, width):
    """A screen or a phone."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 800}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def visit(browser, address):
    """Load a page anew and wait until its script is done."""
    browser.get("about:blank")
    drain(browser)
    browser.get(address)
    wait(browser, "document.documentElement.dataset.ready")


@pytest.fixture
def page(browser, address):
    """The page, started; afterwards nothing in the console, no request, nobody's script ran."""
    resize(browser, 1280)
    visit(browser, address)
    yield browser
    console, sent = drain(browser)
    assert console == []
    assert set(sent) - {address} == set()
    assert js(browser, "document.title").startswith("Kernel forecast board")
    assert count(browser, "main img, main iframe, main script") == 0


def near(browser, section):
    """Scroll a section into view, which draws it."""
    js(browser, "document.getElementById(arguments[0]).scrollIntoView()", section)
    time.sleep(0.1)


def column(browser, key, split="eval"):
    """A column of the standings, as numbers, from the top."""
    selector = f'#table-{split} tbody:first-of-type [data-key="{key}"]'
    values = js(
        browser,
        "[...document.querySelectorAll(arguments[0])].map((c) => c.dataset.v)",
        selector,
    )
    return [float(value) for value in values]


def best_first(browser, key="crps_skill", split="eval", *, reverse=True):
    """Whether the standings are in the order of a column."""
    values = column(browser, key, split)
    return len(values) == 4 and values == sorted(values, reverse=reverse)


def test_clicking_a_header_sorts_and_ranks_by_it(page):
    """From the best at the first click, from the worst at the second; the keyboard does it, too."""
    from selenium.webdriver.common.keys import Keys

    assert best_first(page)
    head = "#table-eval th[data-key=pair_accuracy]"
    click(page, f"{head} button")
    assert best_first(page, "pair_accuracy")
    assert page.find_element("css selector", head).get_attribute("aria-sort") == "descending"
    assert text(page, "#table-eval tbody tr[data-entry] .place") == "1"
    page.find_element("css selector", f"{head} button").send_keys(Keys.ENTER)
    assert best_first(page, "pair_accuracy", reverse=False)
    assert count(page, "#table-eval [aria-sort=ascending]") == 1
    assert count(page, "#table-eval [aria-sort=descending]") == 0


def test_the_papers_figures_order_nothing_and_every_metric_says_what_it_is(page):
    """A click on a header says it in a sentence; the oracle leads its part by all that ranks."""
    for key in ("speedup_recovered", "ece", "forecast_error"):
        click(page, f"#table-eval th[data-key={key}] button")
        assert "does not rank" in text(page, "#meaning-eval")
        assert best_first(page)
    keys = js(page, "[...document.getElementById('rank-by-eval').options].map((o) => o.value)")
    assert keys[0] == "crps_skill"
    assert not {"speedup_recovered", "ece", "forecast_error", "aurc"} & set(keys)
    for key in keys:
        choose(page, "rank-by-eval", key)
        top = page.find_element("css selector", "#table-eval .controls-body tr")
        assert "bound" in top.get_attribute("class"), key
        assert len(text(page, "#meaning-eval")) > 20
    assert js(page, "[...document.querySelectorAll('#table-eval th.major')].every((h) => h.title)")


def test_controls_are_folded_below_the_entries(page):
    """Entries come first; a button shows controls and bounds."""
    rows = "[...document.querySelectorAll('#table-eval tbody tr')]"
    shown = f"{rows}.filter((r) => r.matches('.control') && r.offsetParent).length"
    assert js(page, shown) == 0
    click(page, "#board-eval .fold")
    assert js(page, shown) >= 6
    fold = page.find_element("css selector", "#board-eval .fold")
    assert fold.get_attribute("aria-expanded") == "true"
    order = js(page, f"{rows}.map((r) => r.matches('.control'))")
    assert order == sorted(order)


def test_the_leaders_largest_errors_are_one_click_away(page):
    """The browser opens at the program that the leader forecast worst, for the keyboard, too."""
    click(page, "#board-eval .missed")
    wait(page, "document.querySelector('#k-detail .code')")
    assert js(page, "document.getElementById('k-order').value") == "leader"
    assert js(page, "document.activeElement.id") == "k-list"
    assert js(page, "document.querySelector('#k-list [role=option]').ariaSelected") == "true"
    drain(page)


@pytest.mark.parametrize("width", [1400, 390])
def test_a_link_to_a_section_lands_there(browser, address, width):
    """From outside and from the navigation, though what stands above is drawn on the way."""
    end = "window.innerHeight + window.scrollY >= document.documentElement.scrollHeight - 2"
    resize(browser, width)
    for section in ("compare", "tasks", "kernels", "method"):
        place = f"document.getElementById('{section}').getBoundingClientRect().top"
        visit(browser, f"{address}#{section}" if section != "tasks" else address)
        if section == "tasks":
            click(browser, "nav a[href='#tasks']")
        wait(browser, f"(0 <= {place} && {place} < 100) || ({end})", 5)
        time.sleep(0.2)
        assert js(browser, f"(0 <= {place} && {place} < 100) || ({end})"), section
        assert js(browser, "location.hash") == f"#{section}"


def test_the_address_says_what_is_seen(page, address):
    """Split, order, the two compared and the kernel: whoever follows it sees the same."""
    click(page, "#switch [data-split=discovery]")
    choose(page, "rank-by-discovery", "nll")
    near(page, "compare")
    wait(page, "document.querySelector('#cmp-out table')")
    choose(page, "cmp-b", "3")
    near(page, "kernels")
    wait(page, "document.querySelectorAll('#k-list [role=option]').length > 5")
    click(page, "#k-list [role=option]:nth-child(6)")
    seen = (
        "[document.querySelector('#k-list [aria-selected=true]').dataset.row, "
        "...['cmp-a', 'cmp-b'].map((id) => document.getElementById(id).value)]"
    )
    before, hash_ = js(page, seen), js(page, "location.hash")
    assert all(part in hash_ for part in ("split=discovery", "sort=nll", "a=", "b=", "kernel="))
    visit(page, address + hash_)
    assert js(page, "location.hash") == hash_
    assert best_first(page, "nll", "discovery", reverse=False)
    near(page, "compare")
    wait(page, "document.querySelector('#cmp-out table')")
    assert js(page, seen) == before
    drain(page)


def test_a_strange_address_shows_the_page(browser, address):
    """Nothing in the console, the usual order."""
    for hash_ in ("sort=ece", "sort=__proto__", "kernel=%", "a=x&b=y&split=none", "%E0%A4%A"):
        visit(browser, f"{address}#{hash_}")
        assert best_first(browser), hash_
        assert drain(browser)[0] == []


def test_an_entry_has_a_page(browser, address):
    """Reached from its row; it fits a phone, leads back, and its downloads are served."""
    import urllib.request

    resize(browser, 390)
    visit(browser, address)
    drain(browser)
    browser.get(js(browser, "document.querySelector('#table-eval a.own').href"))
    assert js(browser, "document.documentElement.scrollWidth") <= 390
    assert count(browser, "table tbody tr") > 20
    links = js(browser, "[...document.querySelectorAll('a[download], .home a')].map((a) => a.href)")
    assert len(links) == 4
    for link in links:
        with urllib.request.urlopen(link.partition("#")[0], timeout=10) as answer:
            assert len(answer.read()) > 100
    assert drain(browser)[0] == []


def test_two_entries_are_compared(page):
    """A against B: a difference per metric; swapped, the sign turns; the same twice is refused."""
    near(page, "compare")
    wait(page, "document.querySelector('#cmp-out table')")
    differences = "[...document.querySelectorAll('#cmp-out tbody td:nth-child(4)')]"
    first = js(page, f"{differences}.map((c) => c.textContent)")
    assert len(first) == len(COMPARED["eval"])
    click(page, "#cmp-swap")
    turn = str.maketrans({"+": "\u2212", "\u2212": "+"})
    assert [t.translate(turn) for t in first] == js(
        page, f"{differences}.map((c) => c.textContent)"
    )
    choose(page, "cmp-b", js(page, "document.getElementById('cmp-a').value"))
    assert "two different entries" in text(page, "#cmp-out")


def test_kernels_are_filtered_searched_and_shown(page):
    """By task, by speed, by their code, with the keyboard; programs stand side by side."""
    from selenium.webdriver.common.keys import Keys

    listed = "#k-list [role=option]"
    near(page, "kernels")
    wait(page, "document.querySelector('#k-detail .code')")
    assert count(page, listed) == 28
    choose(page, "k-task", "0")
    assert count(page, listed) == 14
    choose(page, "k-order", "fast")
    speeds = js(page, "[...document.querySelectorAll('#k-list .x')].map((x) => x.textContent)")
    speeds = [float(speed.rstrip("x")) for speed in speeds]
    assert speeds == sorted(speeds, reverse=True)
    page.find_element("id", "k-list").send_keys(Keys.HOME, Keys.ARROW_DOWN)
    assert count(page, f"{listed}:nth-child(2)[aria-selected=true]") == 1
    assert count(page, "#k-detail .casts tbody tr") == 4
    assert count(page, "#k-detail .code .hljs-keyword") > 0
    name = re.search(r"kernel_\d+", text(page, "#k-detail .code"))[0]
    box = page.find_element("id", "k-find")
    box.send_keys(name)
    wait(page, f"document.querySelectorAll('{listed}').length < 14")
    click(page, "#k-detail [data-mode=unified]")
    assert count(page, "#k-detail .code td.add") > 0
    box.send_keys("no program has this")
    wait(page, f"document.querySelectorAll('{listed}').length === 0")
    assert "No kernel matches" in text(page, "#k-detail")


def test_hostile_programs_and_reasons_are_text(page):
    """Five megabytes with markup, templates, invisible characters: cut, named, inert."""
    near(page, "kernels")
    wait(page, "document.querySelector('#k-detail .code')")
    choose(page, "k-find", "title='owned'", "input")
    wait(page, "document.querySelectorAll('#k-list [role=option]').length === 2")
    click(page, "#k-list [role=option]")
    click(page, "#k-detail [data-mode=candidate]")
    code = text(page, "#k-detail .code")
    for part in ("<script>document.title='owned'</script>", "⟦U+202E⟧", "⟦U+001B⟧", "of 5,000,"):
        assert part in code
    assert len(code) < 100_000
    reason = text(page, "#k-detail .why details")
    assert "<img src=x" in reason
    assert reason.endswith("…")  # the archive has it whole


def test_the_other_split_has_its_own_standings_plots_and_pairs(page):
    """Discovery pairs: their table, precision-recall curves and programs of parent and child."""
    click(page, "#switch [data-split=discovery]")
    assert js(page, "document.getElementById('board-eval').hidden")
    assert best_first(page, "crps_skill", "discovery")
    near(page, "behaviour")
    wait(page, "document.querySelectorAll('#plots svg').length >= 5")
    near(page, "kernels")
    wait(page, "document.querySelector('#k-detail .code')")
    assert re.match("Parent.*Child", text(page, "#k-detail .code thead"))


def luminance(hex_colour):
    """The relative luminance of a colour, as the guidelines for contrast define it."""
    parts = [int(hex_colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_in_both_schemes(page, scheme):
    """Ink, muted text, accents and code colours stand out at least 4.5 to 1."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    code = ("ink", "kw", "str", "num", "com", "fn", "type")
    grounds = ("bg", "panel", "add", "del")
    style = (
        "getComputedStyle(document.documentElement).getPropertyValue(`--${arguments[0]}`).trim()"
    )
    light = {
        name: luminance(js(page, style, name)) + 0.05
        for name in (*code, "muted", "accent", "real", *grounds)
    }
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    pairs = [(ink, ground) for ink in code for ground in grounds]
    pairs += [(ink, ground) for ink in ("muted", "accent", "real") for ground in ("bg", "panel")]
    for ink, ground in pairs:
        dark, bright = sorted((light[ink], light[ground]))
        assert bright / dark >= 4.5, (ink, ground)


def draw_all(browser):
    """Draw every section."""
    for section in ("behaviour", "compare", "tasks", "kernels", "method"):
        near(browser, section)
    wait(browser, "document.querySelector('#k-detail .code')")


def test_controls_have_names(page):
    """Every button, select, input and image says what it is to a screen reader."""
    draw_all(page)
    unnamed = """[...document.querySelectorAll('button, select, input, [role=img], svg')]
      .filter((e) => !e.getAttribute('aria-label') && !e.textContent.trim() && !e.labels?.length &&
        !e.closest('[aria-hidden], [role=img], svg svg') && e.offsetParent !== null)
      .map((e) => e.outerHTML.slice(0, 120))"""
    assert js(page, unnamed) == []


@pytest.mark.parametrize("width", [1400, 390])
def test_nothing_is_clipped(page, width):
    """No part is wider than the screen or its own frame, also with four splits to choose from."""
    resize(page, width)
    page.refresh()
    wait(page, "document.documentElement.dataset.ready")
    page.execute_script(
        "const s = document.getElementById('switch'); "
        "for (const b of [...s.children]) { b.textContent = 'Transfer to new problems'; "
        "s.append(b.cloneNode(true)); }"
    )
    draw_all(page)
    assert js(page, "document.documentElement.scrollWidth") <= width
    parts = "[...document.querySelectorAll('nav, #switch, .scroll, .casts')]"
    wide = f"{parts}.filter((e) => e.offsetParent && e.scrollWidth > e.clientWidth)"
    assert js(page, f"{wide}.map((e) => e.outerHTML.slice(0, 80))") == []
    cells = "[...document.querySelectorAll('#table-eval tbody tr:first-child > *')]"
    shown = js(page, f"{cells}.filter((c) => c.offsetParent !== null).length")
    assert (shown == 3) is (width == 390)
