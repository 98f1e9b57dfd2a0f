"use strict";
// The section of curves: unpacks the data, keeps what is chosen (metrics, runs, smoothing, zoom), and has the charts redrawn.

(async () => {
  const MAX_COLOURED = 10; // more runs are grey, but for those that are ticked
  const NUM_ENDS = 3;
  const THEMES = {
    light: { muted: "#55616d", line: "#e3e7ec", ink: "#1c2733", grey: "#a9b2bc",
             colours: ["#1f6fc4", "#c2410c", "#15803d", "#9333ea", "#be123c", "#0e7490", "#a16207", "#4b5563", "#db2777", "#4d7c0f"] },
    dark: { muted: "#9eabb8", line: "#2a323a", ink: "#e6eaef", grey: "#56606b",
            colours: ["#6cb2ff", "#ff9d5c", "#5fd08d", "#c99bff", "#ff8095", "#5bd0e0", "#e5c04b", "#aab4c0", "#ff8ac4", "#a8d65c"] },
  };
  const of = (id) => document.getElementById(id);
  async function unpack(packed) {
    const bytes = Uint8Array.from(atob(packed.trim()), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
  }

  const { runs, groups, charts } = await unpack(of("chart-data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const view = { smoothing: 0, pooled: true, theme: THEMES[dark.matches ? "dark" : "light"] };
  let all, range; // steps: of all charts, and those that are shown
  let ticked = new Map(); // run or group -> its colour's number
  const figures = new Map(); // by section and title
  const chosen = new Set(); // of their keys
  const sections = new Map(); // name -> { box, grid, list }

  const names = () => view.pooled ? groups : runs.map((run) => run.name);
  const isMany = () => names().length > MAX_COLOURED;

  // Of many lines the base is coloured and those that end highest and lowest in the first chart.
  function tickSome() {
    let chosen = names().map((_, entity) => entity);
    if (isMany()) {
      const ends = new Map();
      for (const line of charts[0].lines) {
        const last = line.m.findLast((value) => value != null);
        if (last !== undefined) ends.set(view.pooled ? runs[line.run].group : line.run, last);
      }
      const ranked = [...ends].sort((a, b) => b[1] - a[1]).map(([entity]) => entity);
      chosen = [...new Set([0, ...ranked.slice(0, NUM_ENDS), ...ranked.slice(-NUM_ENDS)])];
    }
    ticked = new Map(chosen.map((entity, number) => [entity, number]));
  }

  function style(entity) {
    const number = ticked.get(entity), { colours, ink, grey } = view.theme;
    const isBase = isMany() && entity === 0;
    return {
      isLit: number !== undefined,
      isShown: number !== undefined || (isMany() && !of("only-ticked").checked),
      color: number === undefined ? grey : isBase ? ink : colours[number % colours.length],
    };
  }

  const page = {
    view, style, names,
    range: () => range,
    zoom(wanted) {
      range = wanted && wanted[1] - wanted[0] >= 1 ? [Math.max(wanted[0], all[0]), Math.min(wanted[1], all[1])] : wanted ? range : all;
      of("zoom-all").disabled = range[0] === all[0] && range[1] === all[1];
      figures.forEach((figure) => figure.setRange());
    },
    magnify(factor, around) {
      const middle = around ?? (range[0] + range[1]) / 2, half = (range[1] - range[0]) * factor;
      const share = (middle - range[0]) / (range[1] - range[0]);
      page.zoom([middle - share * half, middle + (1 - share) * half]);
    },
    point(step, from) {
      figures.forEach((figure) => figure !== from && figure.isNear && figure.follow(step));
    },
  };

  let isWaiting = false;
  function refresh() {
    if (isWaiting) return;
    isWaiting = true;
    requestAnimationFrame(() => {
      isWaiting = false;
      figures.forEach((figure) => figure.refresh());
    });
  }

  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const figure = [...figures.values()].find((item) => item.element === entry.target);
      figure.isNear = entry.isIntersecting;
      if (figure.isNear) figure.draw();
    }
  }, { rootMargin: "300px" });

  function make(parent, tag, className, words) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (words !== undefined) element.textContent = words;
    parent.append(element);
    return element;
  }

  function tickBox(parent, words, isTicked, onChange) {
    const label = make(parent, "label");
    const box = make(label, "input");
    box.type = "checkbox";
    box.checked = isTicked;
    box.addEventListener("change", () => onChange(box.checked));
    make(label, "i", "swatch");
    make(label, "span", "", words);
    return { label, box };
  }

  const keyOf = (chart) => `${chart.section}: ${chart.title}`;

  // Figures of all charts by section, each next to its box in the list of metrics.
  function place() {
    for (const chart of charts) {
      const key = keyOf(chart);
      if (!sections.has(chart.section)) {
        const box = make(of("charts"), "section");
        make(box, "h3", "", chart.section);
        const list = make(of("metric-list"), "fieldset");
        make(list, "legend", "", chart.section);
        sections.set(chart.section, { box, grid: make(box, "div", "curves"), list });
      }
      const { grid, list } = sections.get(chart.section);
      const figure = new Chart.Figure(chart, page);
      if (chart.shown) chosen.add(key);
      figure.label = tickBox(list, chart.title, chart.shown, (isTicked) => {
        chosen[isTicked ? "add" : "delete"](key);
        arrange();
      }).label;
      figure.label.title = chart.metric;
      figures.set(key, figure);
      seen.observe(figure.element);
      grid.append(figure.element);
    }
    arrange();
  }

  function arrange() {
    figures.forEach((figure, key) => { figure.element.hidden = !chosen.has(key); });
    for (const { box, grid } of sections.values()) box.hidden = ![...grid.children].some((element) => !element.hidden);
    of("metric-count").textContent = `${chosen.size} of ${charts.length}`;
  }

  function show() {
    all = [Math.min(...charts.map((chart) => chart.from[0])), Math.max(...charts.map((chart) => (chart.to || chart.from).at(-1)))];
    if (all[0] === all[1]) all[1] += 1;
    page.groups = runs.map((run) => run.group);
    const canPool = groups.length < runs.length;
    view.pooled = canPool && of("pooled").checked;
    of("pooled").closest("label").hidden = !canPool;
    tickSome();
    listRuns();
    place();
    page.zoom(null);
  }

  function listRuns() {
    const list = of("run-list");
    list.replaceChildren();
    const colour = () => boxes.forEach(({ label }, entity) => {
      label.querySelector(".swatch").style.background = style(entity).isShown ? style(entity).color : "transparent";
    });
    const boxes = names().map((name, entity) => tickBox(list, name, ticked.has(entity), (isTicked) => {
      const used = new Set(ticked.values());
      let free = 0;
      while (used.has(free)) free += 1;
      if (isTicked) ticked.set(entity, isMany() ? free : entity);
      else ticked.delete(entity);
      colour();
      tell();
      refresh();
    }));
    listRuns.colour = colour;
    const tell = () => { of("run-count").textContent = isMany() ? `${ticked.size} of ${names().length} coloured` : `${ticked.size} of ${names().length}`; };
    of("only-ticked").closest("label").hidden = !isMany();
    colour();
    tell();
    // Few runs are a legend in sight; many wait behind a button.
    of("runs").open = !isMany() && names().length > 1;
    of("runs").hidden = names().length < 2;
    of("runs").classList.toggle("many", isMany());
  }

  function filter(search, list) {
    search.addEventListener("input", () => {
      const word = search.value.toLowerCase();
      for (const label of list.querySelectorAll("label")) label.hidden = !label.textContent.toLowerCase().includes(word);
      for (const group of list.querySelectorAll("fieldset")) group.hidden = ![...group.querySelectorAll("label")].some((label) => !label.hidden);
    });
  }
  filter(of("metric-search"), of("metric-list"));
  filter(of("run-search"), of("run-list"));

  of("smoothing").addEventListener("input", () => {
    view.smoothing = Number(of("smoothing").value);
    of("smoothing-value").textContent = view.smoothing.toFixed(2);
    refresh();
  });
  of("pooled").addEventListener("change", () => {
    view.pooled = of("pooled").checked;
    tickSome();
    listRuns();
    refresh();
  });
  of("only-ticked").addEventListener("change", refresh);
  of("zoom-in").addEventListener("click", () => page.magnify(0.5, null));
  of("zoom-out").addEventListener("click", () => page.magnify(2, null));
  of("zoom-all").addEventListener("click", () => page.zoom(null));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const menu of document.querySelectorAll(".toolbar details[open].menu")) {
      const hadFocus = menu.contains(document.activeElement);
      menu.open = false;
      if (hadFocus) menu.querySelector("summary").focus();
    }
  });

  function setTheme(name) {
    view.theme = THEMES[name];
    listRuns.colour();
    figures.forEach((figure) => figure.refresh());
  }
  dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
  addEventListener("beforeprint", () => {
    figures.forEach((figure, key) => { figure.isNear = chosen.has(key); });
    setTheme("light");
  });
  addEventListener("afterprint", () => setTheme(dark.matches ? "dark" : "light"));

  show();
  of("curves-wait").hidden = true;
  of("curves-body").hidden = false;
})();
