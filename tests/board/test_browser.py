"""The page in headless Chromium: what a reader does with it, with no error and no request to
anybody.

Needs Chromium, its driver and selenium (``apt-get install chromium chromium-driver``; ``pip install
selenium``). Without them these tests are skipped, and say so; with
KERNEL_ARCHIVE_REQUIRE_BROWSER=1, as in CI, they fail instead.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import threading
import time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from support.boards import DRAWS, write_lines
from support.small_archive import write_archive

from kernel_archive.baselines import make_baseline
from kernel_archive.board import add_submission, build_board
from kernel_archive.scoring import load_split
from kernel_archive.scoring.metrics import COMPARED

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore::ResourceWarning")]

EVIL = (
    "<script>document.title='owned'</script><img src=x "
    "onerror=\"document.title='owned'\">{{7*7}}$title\u202e\x1b[31m"
)
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)


def missing():
    """What is not there to drive a browser with."""
    out = [] if shutil.which("chromium") or shutil.which("google-chrome") else ["chromium"]
    out += [] if shutil.which("chromedriver") else ["chromedriver"]
    try:
        import selenium  # noqa: F401 - only whether it is there
    except ImportError:
        out.append("selenium")
    return out


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Headless Chromium with a profile of its own."""
    lacking = missing()
    if lacking:
        message = (
            f"NO BROWSER TEST HAS RUN: {', '.join(lacking)} is missing (apt-get install "
            "chromium chromium-driver; pip install selenium)"
        )
        (pytest.fail if os.environ.get("KERNEL_ARCHIVE_REQUIRE_BROWSER") == "1" else pytest.skip)(
            message
        )
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome")
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.set_script_timeout(30)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A served board of both splits.

    An archive with hostile programs and a problem named like markup.
    """
    root = tmp_path_factory.mktemp("board")
    archive = write_archive(
        root / "a",
        per_search=14,
        problems=("alpha", "<i>beta</i>"),
        hostile=f'import x\n"""{EVIL}"""\n{EVIL}\n' + "y" * 5_000_000,
    )
    for split in ("eval", "discovery"):
        target = load_split(archive, split)
        prior = make_baseline("prior", archive, split).probabilities
        even, middle = (
            np.full_like(prior, 0.125),
            np.tile(np.eye(8)[3:5].mean(axis=0), (len(prior), 1)),
        )
        cast = {
            "uniform": even,
            "prior": prior,
            "nearest": np.roll(prior, 1, axis=1),
            "near": middle,
        }
        for name, p in cast.items():
            extra = {"rationale": EVIL * 4, "input_tokens": 10} if name == "nearest" else {}
            path = write_lines(root / f"{name}.jsonl", target, p, **extra)
            shown = EVIL.split("\u202e", maxsplit=1)[0][:80] if name == "nearest" else name
            add_submission(
                path,
                target,
                name=shown,
                url="https://example.org/",
                board=root / "b",
                draws=DRAWS,
            )
    build_board(archive, root / "b", draws=DRAWS, jobs=1)
    handler = functools.partial(SimpleHTTPRequestHandler, directory=root / "b")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


def wait(browser, script, seconds=15):
    """Until a script returns something true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = browser.execute_script(f"return {script}")
        if value:
            return value
        time.sleep(0.03)
    raise AssertionError(f"never true: {script}; console: {browser.get_log('browser')}")


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


@pytest.fixture
def page(browser, address):
    """The page, loaded and started; afterwards.

    Nothing in the console, no request but the page's own, nobody's script ran.
    """
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )
    browser.get("about:blank")
    drain(browser)
    browser.get(address)
    wait(browser, "document.documentElement.dataset.ready")
    yield browser
    console, sent = drain(browser)
    assert console == []
    assert set(sent) - {address} == set()
    assert browser.execute_script("return document.title").startswith("Kernel forecast board")
    assert (
        browser.execute_script(
            "return document.querySelectorAll('main img, main iframe, main script').length"
        )
        == 0
    )


def near(browser, section):
    """Scroll a section into view and wait until it is drawn."""
    browser.execute_script(
        "document.getElementById(arguments[0]).scrollIntoView({behavior: 'instant'})", section
    )
    time.sleep(0.1)


def column(browser, key, split="eval"):
    """A column of the standings, as numbers, from the top."""
    return browser.execute_script(
        "return [...document.querySelectorAll(`#table-${arguments[1]} tbody:first-of-type "
        "[data-key=\"${arguments[0]}\"]`)].map((c) => c.dataset.v === '' ? null : "
        "Number(c.dataset.v))",
        key,
        split,
    )


def test_clicking_a_header_sorts_and_ranks_by_it(page):
    """Pair accuracy from the best at the first click, from the worst at the second.

    Aria-sort and ranks follow.
    """
    assert column(page, "crps_skill") == sorted(column(page, "crps_skill"), reverse=True)
    head = "document.querySelector('#table-eval th[data-key=pair_accuracy]')"
    page.execute_script(f"{head}.querySelector('button').click()")
    assert column(page, "pair_accuracy") == sorted(column(page, "pair_accuracy"), reverse=True)
    assert page.execute_script(f"return {head}.getAttribute('aria-sort')") == "descending"
    first = "document.querySelector('#table-eval tbody tr[data-entry] .place').textContent"
    assert page.execute_script(f"return {first}") == "1"
    page.execute_script(f"{head}.querySelector('button').click()")
    assert column(page, "pair_accuracy") == sorted(column(page, "pair_accuracy"))
    assert page.execute_script(f"return {head}.getAttribute('aria-sort')") == "ascending"
    assert (
        page.execute_script(
            "return document.querySelectorAll('#table-eval [aria-sort=ascending], #table-eval "
            "[aria-sort=descending]').length"
        )
        == 1
    )


def test_the_papers_figures_order_nothing_and_say_what_they_are(page):
    """A click on their headers says in a sentence what they are.

    The oracle leads its part by all that ranks.
    """
    order = column(page, "crps_skill")
    for key in ("speedup_recovered", "ece", "forecast_error"):
        page.execute_script(
            f"document.querySelector('#table-eval th[data-key={key}] button').click()"
        )
        said = page.execute_script("return document.getElementById('meaning-eval').textContent")
        assert "does not rank" in said
        assert column(page, "crps_skill") == order
    keys = page.execute_script(
        "return [...document.getElementById('rank-by-eval').options].map((o) => o.value)"
    )
    assert keys[0] == "crps_skill"
    assert not {"speedup_recovered", "ece", "forecast_error", "aurc"} & set(keys)
    for key in keys:
        page.execute_script(
            "const s = document.getElementById('rank-by-eval'); s.value = arguments[0]; "
            "s.dispatchEvent(new Event('change'))",
            key,
        )
        top = page.execute_script(
            "return document.querySelector('#table-eval .controls-body tr').className"
        )
        assert "bound" in top, key
        assert page.execute_script(
            "return document.getElementById('meaning-eval').textContent.length > 20"
        )


def test_controls_are_folded_below_the_entries(page):
    """Entries come first; a button shows controls and bounds, which have no rank."""
    shown = (
        "[...document.querySelectorAll('#table-eval tr.control')].filter((r) => "
        "r.offsetParent).length"
    )
    assert page.execute_script(f"return {shown}") == 0
    page.execute_script("document.querySelector('#board-eval .fold').click()")
    assert page.execute_script(f"return {shown}") >= 6
    assert (
        page.execute_script(
            "return document.querySelector('#board-eval .fold').getAttribute('aria-expanded')"
        )
        == "true"
    )
    first = page.execute_script(
        "return [...document.querySelectorAll('#table-eval tbody tr')].map((r) => "
        "r.classList.contains('control'))"
    )
    assert first == sorted(first)


def test_the_leaders_largest_errors_are_one_click_away(page):
    """The browser opens at the program that the leader forecast worst.

    The keyboard goes on from there.
    """
    page.execute_script("document.querySelector('#board-eval .missed').click()")
    wait(page, "document.querySelector('#k-detail .code')")
    assert page.execute_script("return document.getElementById('k-order').value") == "leader"
    assert page.execute_script("return document.activeElement.id") == "k-list"
    first = "document.querySelector('#k-list [role=option]').getAttribute('aria-selected')"
    assert page.execute_script(f"return {first}") == "true"
    drain(page)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("section", ["behaviour", "compare", "tasks", "kernels", "method"])
def test_a_link_to_a_section_lands_there(browser, address, width, section):
    """From outside and from the navigation.

    Under the header, though what stands above is drawn on the way.
    """
    place = f"document.getElementById('{section}').getBoundingClientRect().top"
    end = "window.innerHeight + window.scrollY >= document.documentElement.scrollHeight - 2"
    for link in (True, False):
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 800},
        )
        browser.get("about:blank")
        browser.get(f"{address}#{section}" if link else address)
        wait(browser, "document.documentElement.dataset.ready")
        if not link:
            browser.execute_script(f"document.querySelector('nav a[href=\"#{section}\"]').click()")
        wait(browser, f"(0 <= {place} && {place} < 100) || ({end})", 5)
        time.sleep(0.3)
        assert browser.execute_script(f"return (0 <= {place} && {place} < 100) || ({end})")
        assert browser.execute_script("return location.hash") == f"#{section}"


def test_the_address_says_what_is_seen(page, address):
    """Split, order, the two compared and the kernel stand in the address, and whoever follows it
    sees the same.
    """
    page.execute_script("document.querySelector('#switch [data-split=discovery]').click()")
    page.execute_script(
        "const s = document.getElementById('rank-by-discovery'); s.value = 'nll'; "
        "s.dispatchEvent(new Event('change'))"
    )
    near(page, "compare")
    wait(page, "document.querySelector('#cmp-out table')")
    page.execute_script(
        "const b = document.getElementById('cmp-b'); b.value = '3'; b.dispatchEvent(new "
        "Event('change'))"
    )
    near(page, "kernels")
    wait(page, "document.querySelectorAll('#k-list [role=option]').length > 5")
    page.execute_script("document.querySelectorAll('#k-list [role=option]')[5].click()")
    chosen = page.execute_script(
        "return document.querySelector('#k-list [aria-selected=true]').dataset.row"
    )
    names = (
        "['cmp-a', 'cmp-b'].map((id) => document.getElementById(id).selectedOptions[0].textContent)"
    )
    before = page.execute_script(f"return {names}")
    hash_ = page.execute_script("return location.hash")
    assert all(part in hash_ for part in ("split=discovery", "sort=nll", "a=", "b=", "kernel="))
    page.get("about:blank")
    page.get(address + hash_)
    wait(page, "document.documentElement.dataset.ready")
    assert page.execute_script("return location.hash") == hash_
    assert column(page, "nll", "discovery") == sorted(column(page, "nll", "discovery"))
    assert (
        page.execute_script(
            "return document.querySelector('#k-list [aria-selected=true]').dataset.row"
        )
        == chosen
    )
    near(page, "compare")
    wait(page, "document.querySelector('#cmp-out table')")
    assert page.execute_script(f"return {names}") == before
    drain(page)


@pytest.mark.parametrize(
    "hash_",
    [
        "#sort=ece",
        "#sort=__proto__",
        "#kernel=%",
        "#a=x&b=y&split=none",
        "#%E0%A4%A",
        "#at=nowhere",
    ],
)
def test_a_strange_address_shows_the_page(browser, address, hash_):
    """Nothing in the console, the usual order."""
    browser.get("about:blank")
    drain(browser)
    browser.get(address + hash_)
    wait(browser, "document.documentElement.dataset.ready")
    assert column(browser, "crps_skill") == sorted(column(browser, "crps_skill"), reverse=True)
    assert drain(browser)[0] == []


def test_an_entry_has_a_page(browser, address):
    """Reached from its row; it fits a phone, leads back, and its downloads are served."""
    import urllib.request

    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True},
    )
    browser.get(address)
    wait(browser, "document.documentElement.dataset.ready")
    drain(browser)
    browser.get(browser.execute_script("return document.querySelector('#table-eval a.own').href"))
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    assert len(browser.find_elements("css selector", "table tbody tr")) > 20
    links = browser.execute_script(
        "return [...document.querySelectorAll('a[download], .home a')].map((a) => a.href)"
    )
    assert len(links) == 4
    for link in links:
        with urllib.request.urlopen(link.partition("#")[0], timeout=10) as answer:
            assert len(answer.read()) > 100
    assert drain(browser)[0] == []


def test_the_table_can_be_sorted_with_the_keyboard(page):
    """A header is a button that takes focus and Enter."""
    from selenium.webdriver.common.keys import Keys

    button = page.find_element("css selector", "#table-eval th[data-key=accuracy] button")
    button.send_keys(Keys.ENTER)
    assert column(page, "accuracy") == sorted(column(page, "accuracy"), reverse=True)


def test_two_entries_are_compared(page):
    """A against B: a difference per metric; swapped, the sign turns; the same twice is refused."""
    near(page, "compare")
    wait(page, "document.querySelector('#cmp-out table')")
    first = page.execute_script(
        "return [...document.querySelectorAll('#cmp-out tbody tr')].map((r) => "
        "r.cells[3].textContent)"
    )
    assert len(first) == len(COMPARED["eval"])
    page.execute_script("document.getElementById('cmp-swap').click()")
    second = page.execute_script(
        "return [...document.querySelectorAll('#cmp-out tbody tr')].map((r) => "
        "r.cells[3].textContent)"
    )
    turn = str.maketrans({"+": "\u2212", "\u2212": "+"})
    assert [t.translate(turn) for t in first] == second
    page.execute_script(
        "const b = document.getElementById('cmp-b'); b.value = "
        "document.getElementById('cmp-a').value; b.dispatchEvent(new Event('change'))"
    )
    assert "two different entries" in page.execute_script(
        "return document.getElementById('cmp-out').textContent"
    )


def test_kernels_are_filtered_searched_and_shown(page):
    """Filter by task, order by speed, search the code, walk with the keyboard.

    Programs stand side by side.
    """
    from selenium.webdriver.common.keys import Keys

    near(page, "kernels")
    wait(page, "document.querySelector('#k-detail .code')")
    assert (
        page.execute_script("return document.querySelectorAll('#k-list [role=option]').length")
        == 28
    )
    page.execute_script(
        "const s = document.getElementById('k-task'); s.value = '0'; s.dispatchEvent(new "
        "Event('change'))"
    )
    assert (
        page.execute_script("return document.querySelectorAll('#k-list [role=option]').length")
        == 14
    )
    page.execute_script(
        "const s = document.getElementById('k-order'); s.value = 'fast'; s.dispatchEvent(new "
        "Event('change'))"
    )
    speeds = page.execute_script(
        "return [...document.querySelectorAll('#k-list .x')].map((x) => parseFloat(x.textContent))"
    )
    assert speeds == sorted(speeds, reverse=True)
    page.find_element("id", "k-list").send_keys(Keys.HOME, Keys.ARROW_DOWN)
    assert (
        page.execute_script(
            "return document.querySelectorAll('#k-list "
            "[role=option]')[1].getAttribute('aria-selected')"
        )
        == "true"
    )
    assert (
        page.execute_script("return document.querySelectorAll('#k-detail .casts tbody tr').length")
        == 4
    )
    assert (
        page.execute_script(
            "return document.querySelectorAll('#k-detail .code .hljs-keyword').length"
        )
        > 0
    )
    name = page.execute_script(
        "return document.querySelector('#k-detail .code').textContent.match(/kernel_\\d+/)[0]"
    )
    box = page.find_element("id", "k-find")
    box.send_keys(name)
    wait(page, "document.querySelectorAll('#k-list [role=option]').length < 14")
    page.execute_script("document.querySelector('#k-detail [data-mode=unified]').click()")
    assert (
        page.execute_script("return document.querySelectorAll('#k-detail .code td.add').length") > 0
    )
    box.send_keys("no program has this")
    wait(page, "document.querySelectorAll('#k-list [role=option]').length === 0")
    assert "No kernel matches" in page.execute_script(
        "return document.getElementById('k-detail').textContent"
    )


def test_hostile_programs_and_reasons_are_text(page):
    """Five megabytes with markup, templates, bidirectional and escape characters.

    Cut, named, inert.
    """
    near(page, "kernels")
    wait(page, "document.querySelector('#k-detail .code')")
    page.execute_script(
        "const f = document.getElementById('k-find'); f.value = \"title='owned'\"; "
        "f.dispatchEvent(new Event('input'))"
    )
    wait(page, "document.querySelectorAll('#k-list [role=option]').length === 2")
    page.execute_script(
        "document.querySelector('#k-list [role=option]').click(); "
        "document.querySelector('#k-detail [data-mode=candidate]').click()"
    )
    text = page.execute_script("return document.querySelector('#k-detail .code').textContent")
    assert "<script>document.title='owned'</script>" in text
    assert "⟦U+202E⟧" in text
    assert "⟦U+001B⟧" in text
    assert "of 5,000," in text
    assert len(text) < 100_000
    reasons = page.execute_script(
        "return document.querySelector('#k-detail .why details').textContent"
    )
    assert "<img src=x" in reasons


def test_the_other_split_has_its_own_standings_plots_and_pairs(page):
    """Discovery pairs: their table, precision-recall curves and programs of parent and child."""
    page.execute_script("document.querySelector('#switch [data-split=discovery]').click()")
    assert page.execute_script("return document.getElementById('board-eval').hidden")
    values = column(page, "crps_skill", "discovery")
    assert values == sorted(values, reverse=True)
    near(page, "behaviour")
    wait(page, "document.querySelectorAll('#plots svg').length >= 5")
    near(page, "kernels")
    wait(page, "document.querySelector('#k-detail .code')")
    heads = page.execute_script(
        "return document.querySelector('#k-detail .code thead').textContent"
    )
    assert heads.startswith("Parent")
    assert "Child" in heads


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_in_both_schemes(page, scheme):
    """Ink, muted text, accents and code colours stand out at least 4.5 to 1 from what they stand
    on.
    """
    page.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    script = """
    const css = getComputedStyle(document.documentElement);
    const light = (name) => {
      const hex = css.getPropertyValue(name).trim().slice(1);
      const [r, g, b] = [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255)
        .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ratio = (a, b) => {
      const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
      return (x + 0.05) / (y + 0.05);
    };
    const out = [];
    const code = ['--ink', '--kw', '--str', '--num', '--com', '--fn', '--type'];
    for (const ink of [...code, '--muted', '--accent', '--real'])
      for (const ground of ['--bg', '--panel']) out.push([ink, ground, ratio(ink, ground)]);
    for (const ink of code)
      for (const ground of ['--add', '--del']) out.push([ink, ground, ratio(ink, ground)]);
    return out;
    """
    low = [entry for entry in page.execute_script(script) if entry[2] < 4.5]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert low == []


def test_controls_have_names(page):
    """Every button, select, input and image says what it is to a screen reader."""
    for section in ("behaviour", "compare", "tasks", "kernels"):
        near(page, section)
    wait(page, "document.querySelector('#k-detail .code')")
    unnamed = page.execute_script(
        """const shown = 'button, select, input, [role=img], svg:not([aria-hidden])';
        const named = (e) => e.getAttribute('aria-label') || e.textContent.trim() ||
          (e.labels && e.labels.length);
        return [...document.querySelectorAll(shown)].filter((e) => !named(e) &&
          !e.closest('[aria-hidden], [role=img], svg svg') && e.offsetParent !== null)
        .map((e) => e.outerHTML.slice(0, 120))"""
    )
    assert unnamed == []


def test_it_fits_a_phone(page):
    """At 390 pixels nothing makes the page wider than the screen.

    The table shows the figure that ranks.
    """
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True},
    )
    page.refresh()
    wait(page, "document.documentElement.dataset.ready")
    for section in ("behaviour", "compare", "tasks", "kernels", "method"):
        near(page, section)
    wait(page, "document.querySelector('#k-detail .code')")
    assert page.execute_script("return document.documentElement.scrollWidth") <= 390
    shown = page.execute_script(
        "return [...document.querySelectorAll('#table-eval tbody tr:first-child > "
        "*')].filter((c) => c.offsetParent !== null).length"
    )
    assert shown == 3


def test_no_column_is_clipped_on_a_screen(page):
    """At 1,400 pixels the whole table is in view."""
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 1400, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )
    clipped = (
        "[...document.querySelectorAll('#board-eval .scroll')].filter((e) => e.scrollWidth "
        "> e.clientWidth).length"
    )
    assert page.execute_script(f"return {clipped}") == 0


def test_without_scripts_the_standings_are_there(browser, address):
    """JavaScript off: both tables, no empty section."""
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(address)
        # Without scripts a page can't be asked whether it is there as a whole.
        end = time.monotonic() + 10
        while (
            len(
                rows := browser.find_elements(
                    "css selector", "table.standings tbody tr[data-entry]"
                )
            )
            < 8
        ):
            assert time.monotonic() < end, f"{len(rows)} rows of 8"
            time.sleep(0.05)
        assert len(rows) == 8
        assert all(row.is_displayed() for row in rows)
        assert not [
            s for s in browser.find_elements("css selector", "section.js") if s.is_displayed()
        ]
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
