// Keeps an open page true: asks every few seconds whether it has changed, and replaces the parts
// that have. Without this script everything works, but is as old as the last loading.
"use strict";

(() => {
  const interval = 1000 * Number(document.body.dataset.pollSeconds || 0);
  const longest = 30000;
  const live = document.getElementById("live");
  const liveTime = document.getElementById("live-time");
  const announce = document.getElementById("announce");
  let tag = null;
  let timer = 0;
  let failures = 0;
  let lastSuccess = new Date();
  let asking = null;

  // Times: the page has UTC; a visitor thinks in ages.
  const units = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];
  const words = new Intl.RelativeTimeFormat("en", { numeric: "always", style: "short" });
  function age(then) {
    const seconds = (then - Date.now()) / 1000;
    for (const [unit, size] of units) {
      if (Math.abs(seconds) >= size || unit === "second") {
        // "sec" for "sec.": an age may end a sentence.
        return words.format(Math.trunc(seconds / size), unit).replace(".", "");
      }
    }
    return "";
  }
  function showAges(root) {
    for (const element of root.querySelectorAll("time[datetime]")) {
      const then = Date.parse(element.dateTime);
      if (!element.title) element.title = element.textContent;
      if (!Number.isNaN(then)) {
        const text = age(then);
        if (element.textContent !== text) element.textContent = text;
      }
    }
  }

  function show(state, text) {
    if (live.dataset.state === state && live.textContent === text) return;
    live.dataset.state = state;
    live.textContent = text;
    document.body.toggleAttribute("data-outdated", state === "lost" || state === "out");
  }
  function clock(date) {
    return date.toISOString().slice(11, 19) + " UTC";
  }

  // What the server sent, by id: compared as sent, because ages and open details change what stands
  // in the page.
  const sent = new Map();
  function parts(root) {
    return [...root.querySelectorAll("[data-live][id]")];
  }
  function keep(old, fresh) {
    for (const details of old.querySelectorAll("details[id][open]")) {
      fresh.querySelector(`#${CSS.escape(details.id)}`)?.setAttribute("open", "");
    }
  }
  function replace(old, fresh) {
    const focused = old.contains(document.activeElement) ? document.activeElement : null;
    keep(old, fresh);
    old.replaceWith(fresh);
    if (!focused) return;
    const again = focused.id ? document.getElementById(focused.id)
      : focused.tagName === "SUMMARY" && focused.parentElement.id
        ? document.querySelector(`#${CSS.escape(focused.parentElement.id)} > summary`)
        : [...fresh.querySelectorAll("a[href]")].find((link) => link.href === focused.href);
    // What was in focus is gone: stay near it.
    if (!again) fresh.setAttribute("tabindex", "-1");
    (again || fresh).focus({ preventScroll: true });
  }
  function update(text) {
    const page = new DOMParser().parseFromString(text, "text/html");
    const before = document.querySelector("[data-announce]")?.textContent;
    for (const fresh of parts(page)) {
      const old = document.getElementById(fresh.id);
      const html = fresh.outerHTML;
      if (!old || sent.get(fresh.id) === html) continue;
      sent.set(fresh.id, html);
      const node = document.importNode(fresh, true);
      showAges(node);
      replace(old, node);
    }
    const missing = parts(page).some((part) => !document.getElementById(part.id));
    if (missing) location.reload();  // the page has another shape now
    const after = document.querySelector("[data-announce]")?.textContent;
    if (after && after !== before) announce.textContent = after;
  }

  async function ask() {
    asking = new AbortController();
    const limit = setTimeout(() => asking.abort(), 15000);
    try {
      const headers = { Accept: "text/html", "X-Dashboard-Live": "1" };
      if (tag) headers["If-None-Match"] = tag;
      const answer = await fetch(location.href.split("#")[0], {
        headers, cache: "no-store", credentials: "same-origin", signal: asking.signal,
      });
      if (answer.status === 401 || answer.status === 403) {
        show("out", "Signed out: load the page again to sign in.");
        return false;
      }
      if (answer.status !== 304 && !answer.ok) throw new Error(String(answer.status));
      if (answer.status === 200) {
        update(await answer.text());
        tag = answer.headers.get("ETag");
      }
      failures = 0;
      lastSuccess = new Date();
      show("live", "Live");
      liveTime.textContent = `checked ${clock(lastSuccess)}`;
    } catch (error) {
      if (document.hidden) return true;
      failures += 1;
      if (failures > 1) {
        show("lost", `Disconnected: what you see is from ${clock(lastSuccess)}. Trying again.`);
        liveTime.textContent = "";
      }
    } finally {
      clearTimeout(limit);
      asking = null;
    }
    return true;
  }
  async function round() {
    timer = 0;
    if (document.hidden || asking) return;
    if (await ask()) plan();
  }
  function plan() {
    if (timer || document.hidden) return;
    timer = setTimeout(round, Math.min(longest, interval * 2 ** Math.min(failures, 5)));
  }
  function visibility() {
    if (document.hidden) {
      clearTimeout(timer);
      timer = 0;
      asking?.abort();
      show("paused", "Paused while hidden");
    } else if (!asking) {
      round();
    }
  }

  for (const part of parts(document)) sent.set(part.id, part.outerHTML);
  showAges(document);
  setInterval(() => { if (!document.hidden) showAges(document); }, 5000);

  // A form is sent once, and says that it is on its way.
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.dataset.sent) { event.preventDefault(); return; }
    if (form.method !== "post") return;
    form.dataset.sent = "1";
    const button = event.submitter;
    if (button && form.dataset.busy) {
      button.textContent = form.dataset.busy;
      button.setAttribute("aria-busy", "true");
    }
  });
  // Back from the next page: the form may be sent again.
  window.addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });

  // The message about what was done belongs to this loading only.
  if (new URLSearchParams(location.search).has("done")) {
    const address = new URL(location.href);
    address.searchParams.delete("done");
    history.replaceState(null, "", address);
  }

  if (interval > 0) {
    show("live", "Live");
    liveTime.textContent = `loaded ${clock(lastSuccess)}`;
    document.addEventListener("visibilitychange", visibility);
    if (document.hidden) visibility(); else plan();
  }
})();
