"""The status page in a real browser: what it shows first, for whom it can be used, that it asks nobody else
(docs/status-page.md)."""

import json
from contextlib import contextmanager, suppress
from importlib.resources import files
from urllib.parse import urlsplit

import pytest

from correlator.runtime import logs as engine_logs
from correlator.settings import CheckpointSettings
from correlator.testing.memory import MemoryBroker
from tests.browser import browser
from tests.runtime.flows import Forwards, Hears, Keeps
from tests.runtime.serving import TOKEN, served
from tests.runtime.world import BEST_EFFORT, EXACTLY_ONCE, message, receiver, sender
from tests.waiting import wait_until

AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text()
PAIRS = 50
BROKEN = "receiver lost", "sender bills", "sender papers"


@pytest.fixture(scope="module")
def chromium():
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """An engine with three parts without a connection, and with five dead letters."""
    brokers = {"memory": MemoryBroker(), "far": MemoryBroker()}
    brokers["far"].down = True
    parts = (
        receiver("in", EXACTLY_ONCE, event="tests.runtime.flows:Order"),
        receiver("lost", BEST_EFFORT, connection="far"),
        sender("out", EXACTLY_ONCE),
        sender("bills", EXACTLY_ONCE, connection="far"),
        sender("papers", BEST_EFFORT, connection="far"),
    )
    store = f"sqlite:///{tmp_path_factory.mktemp('shop')}/store.db"
    with served(*parts, monitors=[Keeps], store=store, token=TOKEN, brokers=brokers) as (engine, broker, client):
        broker.publish("queue:in", [message(f"no JSON {n}", f"{n}") for n in range(5)])
        wait_until(lambda: engine.status().totals()["dead letters"] == 5)
        wait_until(lambda: engine.status().conditions["bills"].error)
        yield engine, broker, client


@contextmanager
def opened(chromium, client, route="", *, width=1280, height=800, scheme="light", signed_in=True):
    """A page at a route. It may ask only its engine, and write no error to the console."""
    context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    if signed_in:
        context.add_init_script(f"sessionStorage.setItem('correlator-token', '{TOKEN}')")
    page = context.new_page()
    asked: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda line: errors.append(line.text) if line.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"http://{client.host}:{client.port}/{route}")
    try:
        yield page
        assert {urlsplit(url).netloc for url in asked} == {f"{client.host}:{client.port}"}
        if signed_in:
            assert errors == []
    finally:
        context.close()


def shown(page, text):
    page.get_by_text(text).first.wait_for()


def test_o6_what_is_broken_comes_first(chromium, shop):
    _, _, client = shop
    with opened(chromium, client) as page:
        for name in BROKEN:
            need = page.locator(".needs li", has=page.get_by_role("link", name=name, exact=True)).first
            need.wait_for()
            box = need.bounding_box()
            assert box["y"] + box["height"] < 800
            assert "ERROR" in need.inner_text()
            assert "E7001" in need.inner_text()
        assert page.title() == "3 failing · shop"
        shown(page, "5 dead letters")
        named = page.get_by_role("img", name="The flow of messages").get_attribute("aria-label")
        assert all(name in named for name in BROKEN)


def test_o6_figures_change_without_a_further_look(chromium, shop):
    engine, broker, client = shop
    with opened(chromium, client) as page:
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name="in", exact=True))
        row.wait_for()
        before = engine.status().received
        broker.publish("queue:in", [message(f'{{"id": {n}}}', f"o{before}-{n}") for n in range(50)])
        wait_until(lambda: row.locator("[data-name=rate]").inner_text() not in ("", "0/s"))


LATENCIES = {"confirmed": 12, "within": {"1": 10, "0.5": 8, "10": 12, "0.1": 0}}


def test_quantiles_lie_between_two_limits(chromium, shop):
    _, _, client = shop
    with opened(chromium, client) as page:

        def quantile(share, now, before=None):
            before = before or {"confirmed": 0, "within": {}}
            asks = (
                "([share, now, before]) => import('/page/model.js').then((model) => model.quantile(share, now, before))"
            )
            return page.evaluate(asks, [share, now, before])

        assert quantile(0.5, LATENCIES) == pytest.approx(0.1 + 0.4 * 6 / 8)
        assert quantile(1.0, LATENCIES) == 10
        assert quantile(0.95, {**LATENCIES, "confirmed": 100}) == 10  # the last limit, for all that took longer
        before = {"confirmed": 8, "within": {"1": 8, "0.5": 8, "10": 8, "0.1": 0}}
        assert quantile(0.5, LATENCIES, before) == 1
        assert quantile(0.5, LATENCIES, LATENCIES) is None


def test_the_page_shows_how_long_messages_take(chromium, tmp_path):
    store = f"sqlite:///{tmp_path}/store.db"
    parts = receiver("in", EXACTLY_ONCE), sender("out", EXACTLY_ONCE)
    shop = served(*parts, monitors=[Forwards], store=store, token=TOKEN)
    with shop as (engine, broker, client), opened(chromium, client) as page:
        figure = page.locator(".figures div", has=page.get_by_text("Latency p95", exact=True)).locator("dd")
        figure.wait_for()
        assert figure.inner_text() == "none"
        broker.publish("queue:in", [message(f"{n}", f"{n}") for n in range(50)])
        wait_until(lambda: engine.status().latencies["out"].confirmed == 50)
        wait_until(lambda: figure.inner_text().endswith("s"))
        page.get_by_role("img", name="Latency in s, the last 15 minutes. Now: p50").wait_for()
        page.evaluate("location.hash = '#/part/sender/out'")
        shown(page, "p50 ")


def test_the_page_lists_checkpoints_and_takes_one(chromium, tmp_path):
    store = f"sqlite:///{tmp_path}/store.db"
    settings = {"store": store, "checkpoint": CheckpointSettings(interval=3600.0)}
    with served(receiver("in", EXACTLY_ONCE), monitors=[Keeps], token=TOKEN, **settings) as (engine, broker, client):
        with opened(chromium, client, "#/checkpoints") as page:
            shown(page, "There is none")
            broker.publish("queue:in", [message("a")])
            wait_until(lambda: engine.status().monitors["main"].handled >= 1)
            page.get_by_role("button", name="Take a checkpoint").click()
            shown(page, "Durable: 1 since the start")
            row = page.get_by_role("row").nth(1)
            row.wait_for()
            assert row.locator("[data-name=cause]").inner_text() == "order"
            assert page.get_by_role("columnheader").all_text_contents()[:4] == ["Number", "Time", "Cause", "Duration"]
            page.get_by_role("img", name="Duration in ms, the last 15 minutes").wait_for()
            assert violations(page) == []
            page.set_viewport_size({"width": 320, "height": 640})
            wait_until(lambda: page.evaluate("document.documentElement.scrollWidth") <= 320)
            assert violations(page) == []
        with opened(chromium, client, "#/") as page:
            page.get_by_role("link", name="Checkpoint", exact=True).click()
            shown(page, "A checkpoint makes state")


def test_the_page_shows_settings_and_changes_the_level_of_the_log_in_each_window(chromium):
    engine_logs.configure(level="INFO")
    parts = receiver("in", BEST_EFFORT), sender("out", BEST_EFFORT)
    with served(*parts, monitors=[Hears], token=TOKEN) as (_, _, client), several(chromium, client) as windows:
        for page in (windows.open(), windows.open()):
            page.evaluate("location.hash = '#/settings'")
            shown(page, "What this engine has run with")
        page = windows.pages[0]
        row = page.get_by_role("row").filter(has_text="http.token")
        assert row.get_by_role("cell").all_text_contents() == ["engine", "http.token", "***", "code"]
        assert page.get_by_role("row").filter(has_text="default").count() == 0
        page.get_by_label("defaults, too").check()
        page.get_by_role("searchbox").fill("max_try_or_not")
        assert page.get_by_role("row").count() == 1  # the names of the columns
        page.get_by_role("searchbox").fill("MAX_TRIES")
        row = page.get_by_role("row").nth(1)
        assert row.get_by_role("cell").all_text_contents() == ["sender out", "max_tries", "3", "default"]
        page.get_by_label("lines from level").select_option("WARNING")
        shown(page, "INFO → WARNING, until the process ends.")
        other = windows.pages[1].get_by_label("lines from level")
        wait_until(lambda: windows.pages[1].title() and other.input_value() == "WARNING")
        assert engine_logs.level() == "WARNING"


def test_without_a_token_the_page_shows_versions_and_no_value(chromium):
    parts = receiver("in", BEST_EFFORT), sender("out", BEST_EFFORT)
    with (
        served(*parts, monitors=[Hears]) as (_, _, client),
        opened(chromium, client, "#/settings", signed_in=False) as page,
    ):
        shown(page, "Values are shown only with")
        assert page.get_by_role("table").count() == 0
        assert page.get_by_label("lines from level").count() == 0
        shown(page, "msgspec")
        assert violations(page) == []


def test_all_receivers_are_paused_and_resumed_after_a_question(chromium):
    parts = receiver("a", BEST_EFFORT), receiver("b", BEST_EFFORT), receiver("c", BEST_EFFORT)
    with served(*parts, monitors=[Hears], token=TOKEN) as (engine, _, client), opened(chromium, client) as page:

        def press_button(name):
            page.get_by_role("button", name=name, exact=True).click()

        engine.pause("c")
        page.locator("td.condition", has_text="PAUSED").wait_for()
        press_button("Pause all receivers …")
        shown(page, "Pause 2 receivers?")
        assert violations(page) == []
        press_button("Cancel")
        assert engine.status().paused == {"c"}
        press_button("Pause all receivers …")
        press_button("Pause 2")
        shown(page, "2 paused.")
        assert engine.status().paused == {"a", "b", "c"}
        refusal = json.dumps({"problem": {"code": "E8309", "where": "b", "what": "stops", "allowed": "", "todo": ""}})
        page.route(
            "**/control",
            lambda route: (
                route.fulfill(body=refusal, content_type="application/json")
                if '"b"' in (route.request.post_data or "")
                else route.continue_()
            ),
        )
        wait_until(lambda: page.locator("td.condition", has_text="PAUSED").count() == 3)
        press_button("Resume all …")
        shown(page, "Resume 3 receivers?")
        press_button("Resume 3")
        shown(page, "2 resumed. b: E8309 b: stops")
        assert engine.status().paused == {"b"}


def violations(page):
    page.evaluate(AXE)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found]


ROUTES = {
    "": "What happened",
    "#/part/receiver/lost": "What its paths promise",
    "#/part/context/main": "Figures since the start",
    "#/dead": "Last errors of the parts",
    "#/state": "What the last checkpoint holds",
    "#/checkpoints": "Take a checkpoint",
    "#/settings": "What this engine has run with",
    "#/nothing": "There is no such view",
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_o6_axe_finds_nothing_and_nothing_is_wider_than_320_pixels(chromium, shop, scheme):
    _, _, client = shop
    with opened(chromium, client, scheme=scheme) as page:
        for route, text in ROUTES.items():
            page.set_viewport_size({"width": 1280, "height": 800})
            page.evaluate("route => { location.hash = route }", route)
            shown(page, text)
            assert page.evaluate("document.documentElement.dataset.theme") == scheme
            assert violations(page) == [], route
            page.set_viewport_size({"width": 320, "height": 640})
            wait_until(lambda: page.evaluate("document.documentElement.scrollWidth") <= 320)
            if (scheme, route) == ("light", ""):
                assert violations(page) == [], "at 320 pixels"


def test_o6_by_keyboard_alone(chromium, shop):
    engine, _, client = shop
    with opened(chromium, client, signed_in=False) as page:
        page.get_by_label("Token", exact=True).wait_for()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "content"
        page.keyboard.press("Tab")
        page.keyboard.type("w" * 32)
        page.keyboard.press("Enter")
        shown(page, "send Authorization: Bearer TOKEN")
        page.get_by_label("Token", exact=True).fill("")
        page.get_by_label("Token", exact=True).focus()
        page.keyboard.type(TOKEN)
        page.keyboard.press("Enter")
        tab_to(page, "a", "out")
        page.keyboard.press("Enter")
        shown(page, "What its paths promise")
        tab_to(page, "button", "Pause")
        page.keyboard.press("Enter")
        wait_until(lambda: engine.status().paused == {"out"})
        shown(page, "It is paused.")
        tab_to(page, "button", "Resume")
        page.keyboard.press("Enter")
        wait_until(lambda: not engine.status().paused)


def tab_to(page, tag, text):
    """Press Tab until the element of this text has the focus, which can be seen."""
    page.locator(tag, has_text=text).first.wait_for()
    for _ in range(100):
        page.keyboard.press("Tab")
        there = page.evaluate("[document.activeElement.tagName.toLowerCase(), document.activeElement.innerText]")
        if there == [tag, text]:
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
            return
    raise AssertionError(f"no Tab leads to {text}")


def test_chosen_dead_letters_come_back_or_are_discarded_after_a_question(chromium, shop):
    _, _, client = shop
    with opened(chromium, client, "#/dead") as page:
        page.get_by_label("dead letter 2", exact=True).check()
        page.get_by_label("dead letter 4", exact=True).check()
        shown(page, "correlator deadletter replay FILE 4 2")
        page.get_by_role("button", name="Bring 2 back").click()
        shown(page, "0 brought back. 2 still cannot be processed, and stay.")
        page.get_by_label("dead letter 2", exact=True).check()
        page.get_by_label("dead letter 4", exact=True).check()
        page.get_by_role("button", name="Message of dead letter 3").click()
        shown(page, "no JSON 2")
        page.get_by_role("button", name="Discard 2 …").click()
        page.get_by_role("button", name="Discard 2", exact=True).click()
        shown(page, "2 discarded.")
        page.get_by_label("dead letter 4", exact=True).wait_for(state="detached")
        left = client.json("/letters", Authorization=f"Bearer {TOKEN}")["letters"]
        assert [one["number"] for one in left] == [5, 3, 1]


KEYS = {
    ("/",): lambda page: focused(page) == "searchbox",
    ("g", "d"): lambda page: page.get_by_role("heading", name="Last errors of the parts").is_visible(),
    ("g", "s"): lambda page: page.get_by_text("What the last checkpoint holds").is_visible(),
    ("g", "c"): lambda page: page.get_by_text("A checkpoint makes state").is_visible(),
    ("g", "e"): lambda page: page.get_by_text("What this engine has run with").is_visible(),
    ("g", "o"): lambda page: page.get_by_role("heading", name="What happened").is_visible(),
    ("f",): lambda page: page.get_by_text("press Freeze to go on").is_visible(),
    ("?",): lambda page: page.get_by_role("dialog", name="Keyboard shortcuts").is_visible(),
}


def focused(page):
    """What has the focus: the text of a link or a button, otherwise its kind."""
    return page.evaluate(
        "({searchbox: document.activeElement.type === 'search'}).searchbox ? 'searchbox' : document.activeElement.innerText"
    )


def press(page, keys):
    for key in keys:
        page.keyboard.press(key)


def test_single_keys_do_what_their_list_says(chromium, shop):
    _, _, client = shop
    with opened(chromium, client) as page:
        page.get_by_role("link", name="out", exact=True).first.wait_for()
        for keys, is_done in KEYS.items():
            press(page, keys)
            wait_until(lambda is_done=is_done: is_done(page))
            if keys == ("/",):
                press(page, "gdf?")
                assert page.get_by_role("searchbox").input_value() == "gdf?"
                press(page, ["Escape"])  # clears the field, as browsers do
                wait_until(lambda: focused(page) != "searchbox")
        assert violations(page) == []
        listed = page.get_by_role("dialog").locator("dt").all_text_contents()
        assert [one.replace(" or ", " ") for one in listed] == [
            "/",
            "j k",
            "Enter",
            "Esc",
            "go",
            "gd",
            "gs",
            "gc",
            "ge",
            "f",
            "?",
        ]


def test_keys_lead_from_part_to_part_and_back(chromium, shop):
    _, _, client = shop
    with opened(chromium, client) as page:
        page.get_by_role("link", name="out", exact=True).first.wait_for()
        order = page.locator("table.parts td:first-child a").all_text_contents()
        press(page, "j")
        wait_until(lambda: focused(page) == order[0])
        press(page, "jjk")
        wait_until(lambda: focused(page) == order[1])
        press(page, ["Enter"])
        shown(page, "What happened to it")
        press(page, ["Escape"])
        wait_until(lambda: focused(page) == order[1])


def test_keys_that_are_switched_off_stay_so(chromium, shop):
    _, _, client = shop
    with opened(chromium, client) as page:
        page.get_by_role("link", name="out", exact=True).first.wait_for()
        press(page, "?")
        page.get_by_label("Shortcuts are on").uncheck()
        press(page, ["Escape"])
        for _ in range(2):
            press(page, ["/", "g", "d"])
            assert focused(page) != "searchbox"
            assert page.evaluate("location.hash") in ("", "#/")
            page.reload()
            page.get_by_role("link", name="out", exact=True).first.wait_for()


WINDOWS = 8
"""More than the connections that a browser opens to a server."""


class Windows:
    """Several pages of a browser, and the streams that they have asked for."""

    def __init__(self, context, client):
        self.context = context
        self.url = f"http://{client.host}:{client.port}/"
        self.pages = []
        self.streams = []
        context.on("request", lambda asked: self.streams.append(asked) if asked.url.endswith("events?status") else None)

    def open(self, *, clock=False):
        page = self.context.new_page()
        if clock:
            page.clock.install()
        page.goto(self.url)
        self.pages.append(page)
        return page

    def wait_for_streams(self, number, within_s=60.0):
        # the browser's news arrive only with the answer of a call
        wait_until(lambda: self.pages[-1].title() and len(self.streams) == number, within_s)

    @property
    def leading(self):
        """The page that has the stream."""
        return self.streams[-1].frame.page


@contextmanager
def several(chromium, client):
    context = chromium.new_context()
    context.add_init_script(f"sessionStorage.setItem('correlator-token', '{TOKEN}')")
    yield Windows(context, client)
    context.close()


@pytest.fixture
def windows(chromium, shop):
    with several(chromium, shop[2]) as found:
        yield found


def row_of(page, name):
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))


def test_many_windows_follow_one_stream_and_each_sees_what_another_changes(shop, windows):
    engine, _, _ = shop
    pages = [windows.open() for _ in range(WINDOWS)]
    for page in pages:
        row_of(page, "out").wait_for()
        shown(page, "What happened")
        page.locator(".log li").first.wait_for()  # what happened before this window was opened
    assert len(windows.streams) == 1
    pages[3].evaluate("location.hash = '#/part/sender/out'")
    pages[3].get_by_role("button", name="Pause").click()
    for page in (*pages[:3], *pages[4:]):
        row_of(page, "out").get_by_text("PAUSED").wait_for()
    pages[3].get_by_role("button", name="Resume").click()
    for page in (*pages[:3], *pages[4:]):
        row_of(page, "out").get_by_text("OK").wait_for()
    assert not engine.status().paused
    assert len(windows.streams) == 1


def test_another_window_leads_when_the_leading_one_is_closed_or_hidden(windows):
    pages = [windows.open() for _ in range(3)]
    for page in pages:
        row_of(page, "in").wait_for()
    closed = windows.leading
    closed.close()
    windows.pages.remove(closed)
    windows.wait_for_streams(2)
    hidden = windows.leading
    hidden.evaluate(
        "Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    windows.wait_for_streams(3)
    last = windows.leading
    assert last != hidden
    last.evaluate("location.hash = '#/part/sender/out'")
    last.get_by_role("button", name="Pause").click()
    last.get_by_role("button", name="Resume").click()
    hidden.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    hidden.locator(".log li").filter(has_text="sender out").first.wait_for()  # it happened while it was hidden
    assert len(windows.streams) == 3


def test_a_leading_window_that_stands_still_loses_its_place(windows):
    first = windows.open()
    row_of(first, "in").wait_for()
    second = windows.open(clock=True)
    row_of(second, "in").wait_for()
    first.evaluate(
        "const channel = BroadcastChannel.prototype, { postMessage } = channel;"
        "channel.postMessage = () => {}; window.goOn = () => { channel.postMessage = postMessage; }"
    )
    for _ in range(5):  # what the first one has sent before may arrive late, and the second one then waits anew
        second.clock.run_for(16_000)
        with suppress(AssertionError):
            windows.wait_for_streams(2, within_s=10)
            break
    assert windows.leading == second
    first.evaluate("goOn(); location.hash = '#/part/sender/out'")
    first.get_by_role("button", name="Pause").click()  # it follows the other one now
    first.get_by_role("button", name="Resume").click()
    first.locator(".log li").filter(has_text="paused").first.wait_for()


def test_without_locks_each_window_reads_a_stream_of_its_own(windows):
    """As over plain HTTP from another machine."""
    windows.context.add_init_script("delete Navigator.prototype.locks")
    pages = [windows.open() for _ in range(2)]
    pages[0].evaluate("location.hash = '#/part/sender/out'")
    pages[0].get_by_role("button", name="Pause").click()
    row_of(pages[1], "out").get_by_text("PAUSED").wait_for()
    pages[0].get_by_role("button", name="Resume").click()
    row_of(pages[1], "out").get_by_text("OK").wait_for()
    windows.wait_for_streams(2)


def test_a_window_without_the_token_sees_nothing_of_the_others(windows):
    signed_in = windows.open()
    row_of(signed_in, "in").wait_for()
    stranger = windows.context.new_page()
    stranger.add_init_script("sessionStorage.removeItem('correlator-token')")
    stranger.goto(windows.url)
    stranger.get_by_label("Token", exact=True).wait_for()
    row_of(signed_in, "in").wait_for()
    assert "receiver" not in stranger.content()
    stranger.get_by_label("Token", exact=True).fill(TOKEN)
    stranger.get_by_role("button", name="Sign in").click()
    row_of(stranger, "in").wait_for()
    assert len(windows.streams) == 1


def test_dead_letters_vanish_from_every_window(chromium, tmp_path):
    part = receiver("in", EXACTLY_ONCE, event="tests.runtime.flows:Order")
    with (
        served(part, monitors=[Keeps], store=f"sqlite:///{tmp_path}/store.db", token=TOKEN) as (engine, broker, client),
        several(chromium, client) as windows,
    ):
        broker.publish("queue:in", [message("no JSON", f"{n}") for n in range(2)])
        wait_until(lambda: engine.status().totals()["dead letters"] == 2)
        one, other = windows.open(), windows.open()
        for page in (one, other):
            page.evaluate("location.hash = '#/dead'")
        other.get_by_label("dead letter 2", exact=True).wait_for()
        one.get_by_label("dead letter 2", exact=True).check()
        one.get_by_role("button", name="Discard 1 …").click()
        one.get_by_role("button", name="Discard 1", exact=True).click()
        other.get_by_label("dead letter 2", exact=True).wait_for(state="detached")
        broker.publish("queue:in", [message("no JSON", "later")])
        other.get_by_role("button", name="Read 1 more").click()
        other.get_by_label("dead letter 3", exact=True).wait_for()


def test_o7_a_hundred_parts_are_drawn_and_those_that_fail_are_never_grouped(chromium):
    brokers = {"memory": MemoryBroker(), "far": MemoryBroker()}
    brokers["far"].down = True
    far = {3: "far", 7: "far"}
    parts = [
        part(f"{kind}{n}", BEST_EFFORT, connection=far.get(n, "memory"))
        for n in range(PAIRS)
        for kind, part in (("in", receiver), ("out", sender))
    ]
    with served(*parts, monitors=[Hears], brokers=brokers) as (engine, _, client):
        wait_until(lambda: sum(one.status != "CONNECTING" for one in engine.status().conditions.values()) == 2 * PAIRS)
        with opened(chromium, client) as page:
            shown(page, "48 receivers of memory")
            drawn = page.locator("svg .box .name").all_text_contents()
            assert sorted(drawn) == [
                "48 receivers of memory",
                "48 senders of memory",
                "in3",
                "in7",
                "main",
                "out3",
                "out7",
            ]
            assert page.get_by_role("row").count() == 2 * PAIRS + 2  # the context, and the head
            page.get_by_role("searchbox").fill("far")
            wait_until(lambda: page.get_by_role("row").count() == 5)


def test_a_page_does_without_a_stream_and_says_that_its_engine_does_not_answer(chromium):
    with served(receiver("in<b>", BEST_EFFORT), monitors=[Hears]) as (_, broker, client):
        context = chromium.new_context()
        page = context.new_page()
        page.route("**/events?status", lambda route: route.abort())
        page.goto(f"http://{client.host}:{client.port}/")
        shown(page, "Nothing needs you")
        page.get_by_role("link", name="in<b>").wait_for()
        broker.publish("queue:in<b>", [message("a")])
        wait_until(lambda: page.locator("[data-name=rate]").first.inner_text() not in ("", "0/s"))
        page.unroute("**/events?status")
        shown(page, "Only with http.token")
    page.get_by_role("alert").first.wait_for()
    wait_until(lambda: page.title() == "no answer · shop")
    context.close()
