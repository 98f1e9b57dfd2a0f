"use strict";
// Of a served page: asks for it again while somebody looks, and puts in what has changed. What the reader scrolled, opened,
// zoomed or chose stays, and a part in which text is marked waits until it no longer is.

(() => {
  const PAUSE_MS = 5000;
  const SHARE = 4; // pauses are so many times as long as the last answer took
  const told = document.getElementById("live");
  const partsOf = (page) => new Map([...page.querySelectorAll("[data-part]")].map((part) => [part.dataset.part, part]));
  const packedOf = (page) => page.getElementById("chart-data")?.textContent;
  const shown = new Map([...partsOf(document)].map(([name, part]) => [name, part.innerHTML]));
  let packed = packedOf(document), tag = null, since = new Date(), isAsking = false, timer = 0;

  function isInUse(part) {
    const mark = document.getSelection();
    return mark && !mark.isCollapsed && part.contains(mark.anchorNode);
  }

  // Boxes that the reader may have opened or scrolled, by what they are called and the how manieth of that name.
  function boxes(part) {
    const found = new Map(), counts = new Map();
    for (const box of part.querySelectorAll("details, .scroll")) {
      const name = `${box.tagName} ${box.getAttribute("aria-label") || box.querySelector("summary")?.textContent}`;
      counts.set(name, (counts.get(name) || 0) + 1);
      found.set(`${name} ${counts.get(name)}`, box);
    }
    return found;
  }

  function replace(part, fresh) {
    const before = boxes(part);
    const states = new Map([...before].map(([name, box]) => [name, [box.open, box.scrollLeft, box.scrollTop]]));
    const focus = document.activeElement, link = part.contains(focus) && focus.getAttribute("href");
    const focused = [...before].find(([, box]) => focus === box || focus === box.querySelector(":scope > summary"))?.[0];
    part.replaceChildren(...document.adoptNode(fresh).childNodes);
    if (link) part.querySelector(`a[href="${CSS.escape(link)}"]`)?.focus({ preventScroll: true });
    for (const [name, box] of boxes(part)) {
      if (name === focused) (box.querySelector(":scope > summary") || box).focus({ preventScroll: true });
      if (!states.has(name)) continue;
      const [isOpen, left, top] = states.get(name);
      if (box.tagName === "DETAILS") box.open = isOpen;
      box.scrollTo(left, top);
    }
  }

  function take(page) {
    document.title = page.title;
    const now = partsOf(document);
    let isWhole = true;
    for (const [name, fresh] of partsOf(page)) {
      const part = now.get(name), html = fresh.innerHTML;
      if (!part || shown.get(name) === html) continue;
      if (isInUse(part)) isWhole = false;
      else {
        shown.set(name, html);
        replace(part, fresh);
      }
    }
    const data = packedOf(page);
    if (data && !packed) location.reload(); // the first curves come with the scripts that draw them
    else if (data && data !== packed) dispatchEvent(new CustomEvent("chart-data", { detail: data }));
    packed = data;
    return isWhole;
  }

  async function ask() {
    if (isAsking || document.hidden) return;
    isAsking = true;
    clearTimeout(timer);
    const begun = Date.now();
    try {
      const answer = await fetch(location.pathname, { cache: "no-cache" });
      const text = await answer.text();
      if (!answer.ok) throw new Error(text.trim());
      const fresh = answer.headers.get("ETag");
      if (fresh !== tag && take(new DOMParser().parseFromString(text, "text/html"))) tag = fresh;
      since = new Date();
      told.textContent = `Live: as of ${since.toLocaleTimeString()}.`;
      told.classList.remove("warn");
    } catch (error) {
      const why = error instanceof TypeError ? "opdctl does not answer" : error.message;
      told.textContent = `As of ${since.toLocaleTimeString()}; since then ${why}. Asking again.`;
      told.classList.add("warn");
    }
    isAsking = false;
    timer = setTimeout(ask, Math.max(PAUSE_MS, SHARE * (Date.now() - begun)));
  }

  document.addEventListener("visibilitychange", ask);
  timer = setTimeout(ask, PAUSE_MS);
})();
