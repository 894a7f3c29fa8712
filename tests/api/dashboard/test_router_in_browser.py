"""The dashboard as people meet it: a real service, real telemetry, real headless Chromium."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from api.dashboard.session import COOKIE
from api.service_demo.replay import DRAFTER
from monitoring.store import drafters, events, tokens
from monitoring.store.audit import list_audit
from monitoring.store.database import Database
from monitoring.store.revisions import aliases
from monitoring.store.silences import list_silences
from tests.api.dashboard import seeding
from tests.service_process import ServiceProcess
from tests.support.service import empty_database

# Starting service and browser, and judging the telemetry, take most of the time.
pytestmark = pytest.mark.slow

# Where systems keep it; without any of these playwright's own is used, if it was fetched.
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
PATIENCE = 30_000  # milliseconds; a busy machine takes its time
PATH = f"/drafters/{DRAFTER}"
HOSTILE = '<img src=x onerror="alert(1)">'
FLEET = 50
ENGINES = 1000


@dataclass(frozen=True)
class Site:
    """A service with a fleet, and tokens for it."""

    service: ServiceProcess
    database: Database
    operator: str
    reader: str

    @property
    def url(self) -> str:
        return self.service.url


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    url = empty_database(tmp_path_factory.mktemp("dashboard"))
    database = Database.open(url)
    seeding.register(database, DRAFTER)
    seeding.store_rows(database, DRAFTER, seeding.shipped_rows(2000))
    seeding.add_revision(database, DRAFTER, [1.15, 1.24, 1.77, 2.09, 1, 1, 1], promote=True)
    seeding.make_report(database, DRAFTER)
    seeding.add_revision(database, DRAFTER, [1.1, 1.2, 1.6, 1.9, 1, 1, 1], challenger=True)
    seeding.save_drift(database, DRAFTER, peak=7.2, revision=1)
    seeding.see_engines(database, DRAFTER, 20, publication=2, behind=2, silent=1, prefix=HOSTILE)
    seeding.raise_event(database, "Drift at position 3", drafter=DRAFTER)
    seeding.seed_fleet(database, FLEET - 1, ENGINES - 20)
    with database.write() as connection:
        _, operator = tokens.create_token(connection, "operator", ["operate"])
        _, reader = tokens.create_token(connection, "reader", ["read:reports"])
    # Engines were seen just now and stay so, however long the module takes.
    with ServiceProcess(url, engine_silent_seconds=600, telemetry_silent_seconds=3600) as service:
        yield Site(service, database, operator, reader)
    database.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # No sandbox: CI runs as root, and the pages are our own.
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    opened = browser.new_context(viewport={"width": 1280, "height": 900})
    opened.set_default_timeout(PATIENCE)
    yield opened
    opened.close()


@pytest.fixture
def page(context: BrowserContext, site: Site) -> Iterator[Page]:
    """A page of the operator; nothing may be complained about in its console."""
    sign_in(context, site, site.operator)
    opened = context.new_page()
    complaints = listen(opened)
    yield opened
    assert complaints == []


def sign_in(context: BrowserContext, site: Site, token: str) -> None:
    context.add_cookies([{"name": COOKIE, "value": token, "url": site.url}])


def listen(page: Page) -> list[str]:
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    return complaints


def serious(page: Page, rules: dict[str, Any] | None) -> list[str]:
    # Panels are alike: one stands for all of them.
    alike = {"exclude": [[".panel:nth-of-type(n + 2)"]]}
    found: dict[str, Any] = Axe().run(page, context=alike, options=rules).response
    return [
        f"{fault['id']}: {[node['target'] for node in fault['nodes']][:3]}"
        for fault in found["violations"]
        if fault["impact"] in ("serious", "critical")
    ]


def fits(page: Page) -> bool:
    width = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    return bool(width[0] <= width[1])


def test_a_token_opens_the_door_and_another_does_not(context: BrowserContext, site: Site) -> None:
    page = context.new_page()
    page.goto(site.url + PATH)
    expect(page).to_have_url(re.compile("/sign-in"))
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_have_text("The token is not valid.")
    page.get_by_label("Token").fill(site.reader)
    page.get_by_role("button", name="Sign in").click()
    # Back where they wanted to go; who may only look is offered nothing else.
    expect(page).to_have_url(site.url + PATH)
    expect(page.get_by_role("link", name="Promote")).to_have_count(0)
    page.goto(f"{site.url}{PATH}/rollback")
    expect(page.get_by_role("heading", level=1)).to_have_text("The token may not do this")
    (cookie,) = context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    page.get_by_role("button", name="Use another token").click()
    expect(page).to_have_url(re.compile("/sign-in"))
    assert context.cookies() == []


def test_from_the_fleet_to_a_promotion_and_back(page: Page, site: Site) -> None:
    page.goto(site.url)
    expect(page.locator("#summary")).to_contain_text(f"{FLEET} drafters")
    page.get_by_label("Search").fill("SmolLM2-135M-Instruct")
    page.get_by_role("button", name="Show", exact=True).click()
    page.get_by_role("link", name=DRAFTER, exact=True).first.click()
    expect(page.locator("#head")).to_contain_text("Overconfident by")
    page.get_by_role("link", name="Promote challenger 2").click()
    # Nothing has changed yet: first the question, with the numbers side by side.
    expect(page.get_by_role("heading", level=1)).to_have_text("Promote revision 2?")
    expect(page.get_by_role("row", name="1 1.15 1.1")).to_be_visible()
    page.get_by_label("Reason").fill("reads well")
    page.get_by_role("button", name="Promote revision 2").click()
    expect(page.get_by_role("status").filter(has_text="Published")).to_be_visible()
    assert champion(site) == 2
    page.get_by_role("link", name="Roll back to 1").click()
    page.get_by_role("button", name="Roll back to 1").click()
    expect(page.get_by_role("status").filter(has_text="Rolled back")).to_be_visible()
    assert champion(site) == 1
    with site.database.read() as connection:
        published = [row for row in list_audit(connection) if row.action == "publish"]
    assert [(row.actor, row.details["reason"]) for row in published[:2]] == [
        ("operator", "rolled back by hand"),
        ("operator", "reads well"),
    ]


def champion(site: Site) -> int:
    with site.database.read() as connection:
        return aliases(connection, DRAFTER).champion


def test_two_people_do_not_overwrite_each_other(context: BrowserContext, site: Site) -> None:
    sign_in(context, site, site.operator)
    page = context.new_page()
    page.goto(f"{site.url}{PATH}/revisions/0/promote")
    seeding.add_revision(site.database, DRAFTER, [1.2] * 7, promote=True)
    with site.database.read() as connection:
        before = drafters.get(connection, DRAFTER).version
    with page.expect_response(lambda answer: answer.request.method == "POST") as answered:
        page.get_by_role("button", name="Promote revision 0").click()
    assert answered.value.status == 412
    expect(page.get_by_role("link", name="Look again")).to_be_visible()
    with site.database.read() as connection:
        assert drafters.get(connection, DRAFTER).version == before


def test_an_event_is_acknowledged(page: Page, site: Site) -> None:
    noted = seeding.raise_event(site.database, f"Something {HOSTILE}", drafter=DRAFTER)
    page.goto(f"{site.url}{PATH}#events")
    page.locator(f"#acknowledge-{noted.id}").click()
    page.get_by_role("button", name="Acknowledge").click()
    expect(page.locator("#events")).to_contain_text("looked after by operator")
    with site.database.read() as connection:
        assert events.get_event(connection, noted.id).state == "acknowledged"


def test_alerts_are_silenced_and_told_again(page: Page, site: Site) -> None:
    noted = seeding.raise_event(site.database, "Loud", drafter=DRAFTER)
    page.goto(f"{site.url}{PATH}#events")
    page.get_by_role("link", name="Silence alerts").click()
    page.get_by_label("For how long").select_option("a day")
    page.get_by_role("button", name="Silence").click()
    expect(page).to_have_url(f"{site.url}{PATH}/silence")  # not without a reason
    page.get_by_label("Reason").fill("weights change")
    page.get_by_role("button", name="Silence").click()
    event = page.locator("#events .event").filter(has_text="Loud").first
    expect(event).to_contain_text("Nobody is told: weights change (ends in")
    page.get_by_role("link", name="End the silence").first.click()
    page.get_by_role("button", name="End the silence").click()
    expect(page.locator("#events")).not_to_contain_text("Nobody is told")
    with site.database.write() as connection:
        assert list_silences(connection) == []
        events.resolve_event(connection, noted.id)


def test_news_arrive_without_loading_the_page_again(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/drafters/drafter-001")
    page.evaluate("window.sameLoading = true")
    page.locator("#reliability").get_by_role("button", name="Make a report now").wait_for(
        state="detached"
    )
    expect(page.locator("#head .badge")).to_contain_text("Calibrated")
    page.locator("#recalibrate").focus()
    seeding.save_drift(site.database, "drafter-001", peak=8.0)
    expect(page.locator("#head .badge")).to_contain_text("Drift", timeout=PATIENCE)
    expect(page.locator("#announce")).to_contain_text("Overconfident by 3.2 points at position 3")
    # Replaced under the visitor's fingers, and yet where they were.
    assert page.evaluate("window.sameLoading && document.activeElement.id") == "recalibrate"


def test_it_says_when_it_is_paused_or_out_of_touch(context: BrowserContext, site: Site) -> None:
    sign_in(context, site, site.reader)
    page = context.new_page()
    page.clock.install()
    page.goto(site.url)
    live = page.locator("#live")
    expect(live).to_have_text("Live")
    show_or_hide = (
        "value => { Object.defineProperty(document, 'hidden', {value, configurable: true});"
        " document.dispatchEvent(new Event('visibilitychange')); }"
    )
    page.evaluate(show_or_hide, True)
    expect(live).to_have_text("Paused while hidden")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.clock.run_for(60_000)
    assert asked == []
    with page.expect_response(site.url + "/"):
        page.evaluate(show_or_hide, False)
    expect(live).to_have_text("Live")
    context.set_offline(True)
    for _ in range(2):
        with page.expect_event("requestfailed"):
            page.clock.run_for(10_000)
    expect(live).to_contain_text("Disconnected: what you see is from")
    context.set_offline(False)
    with page.expect_response(site.url + "/"):
        # The pause is 12 s after two failures; 15 s after it began a try is given up.
        page.clock.run_for(12_500)
    expect(live).to_have_text("Live")


@pytest.mark.parametrize(
    ("scheme", "rules"),
    [("light", None), ("dark", {"runOnly": ["color-contrast"]})],  # only colours differ
)
def test_no_barriers(page: Page, site: Site, scheme: Any, rules: Any) -> None:
    page.emulate_media(color_scheme=scheme)
    paths = ["/?q=SmolLM2-135M-Instruct", PATH, f"{PATH}/revisions/1/promote", f"{PATH}/silence"]
    faults = {}
    for path in paths:
        page.goto(site.url + path)
        # Not the tables of numbers: they are thousands of equal cells.
        page.evaluate("document.getElementById('error-numbers')?.setAttribute('open', '')")
        faults[path] = serious(page, rules)
    assert faults == {path: [] for path in paths}


def test_it_can_be_used_by_keyboard(page: Page, site: Site) -> None:
    page.goto(site.url)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main') !== null")


def test_a_revision_is_promoted_by_keyboard_alone(page: Page, site: Site) -> None:
    number = seeding.add_revision(site.database, DRAFTER, [1.3] * 7)
    page.goto(site.url + PATH)
    reach(page, f"promote-{number}")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Promote revision {number}?")
    reach(page, "confirm")
    page.keyboard.press("Enter")
    expect(page.locator(".message")).to_contain_text("Published")
    assert champion(site) == number


def reach(page: Page, identifier: str) -> None:
    """Press Tab until this element has the focus, and see that it shows."""
    for _ in range(200):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == identifier:
            outline = "getComputedStyle(document.activeElement).outlineStyle"
            assert page.evaluate(outline) != "none"
            return
    raise AssertionError(f"{identifier} cannot be reached")


def test_it_fits_a_phone_and_a_tablet(page: Page, site: Site) -> None:
    for path in ("/", PATH, f"{PATH}/engines", f"{PATH}/revisions/1", f"{PATH}/silence"):
        page.goto(site.url + path)
        for width in (360, 940):
            page.set_viewport_size({"width": width, "height": 740})
            assert fits(page), (path, width)
        assert page.locator("img").count() == 0  # names that look like markup stay text


def test_a_fleet_of_fifty_with_a_thousand_engines_is_quick(site: Site) -> None:
    headers = {"Cookie": f"{COOKIE}={site.operator}", "Accept": "text/html"}
    with httpx.Client(base_url=site.url, headers=headers, timeout=60) as client:
        for path, largest in (("/", 120_000), (PATH, 120_000)):
            first = client.get(path)
            assert first.status_code == 200
            assert len(first.content) < largest
            assert int(first.headers["Content-Length"]) < largest / 6  # compressed
            used = site.service.cpu_seconds()
            for _ in range(10):
                client.get(path)
            cpu = (site.service.cpu_seconds() - used) / 10
            # Processor time, so that a busy machine does not matter.
            assert cpu < 0.2, (path, cpu)
