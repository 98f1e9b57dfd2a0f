"use strict";
// The curves: unpacks the data of curves.py and draws each chosen metric with uPlot, all charts with one cursor and one zoom.

(async () => {
  const COLOURS = ["#1f6fc4", "#c2410c", "#15803d", "#9333ea", "#be123c", "#0e7490", "#a16207", "#6b7280", "#db2777", "#4d7c0f"];
  const HEIGHT = 220;
  const of = (id) => document.getElementById(id);
  const bytes = Uint8Array.from(atob(of("chart-data").textContent.trim()), (letter) => letter.charCodeAt(0));
  const { runs, groups, charts } = await new Response(
    new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();

  const canPool = groups.length < runs.length;
  let range = null; // the zoomed steps of all charts
  const figures = new Map(); // chart -> { element, plot, isLog, uplot }
  const isPooled = () => canPool && of("pooled").checked;
  const names = () => isPooled() ? groups : runs.map((run) => run.name);

  function make(parent, tag, words, className) {
    const element = document.createElement(tag);
    if (words !== undefined) element.textContent = words;
    if (className) element.className = className;
    parent.append(element);
    return element;
  }

  function text(value) {
    if (value == null) return "";
    const size = Math.abs(value);
    return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(2) : String(Number(value.toPrecision(5)));
  }

  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const isByStep = () => !["hours", "tokens"].includes(of("axis").value);

  // A step's place on the chosen axis of a run, between the places that the run has; null without any.
  function place(run, step) {
    const [steps, places] = runs[run].axes[of("axis").value] || [[], []];
    const next = steps.findIndex((one) => one >= step);
    if (next <= 0) return places.at(next) ?? null;
    const share = (step - steps[next - 1]) / (steps[next] - steps[next - 1]);
    return places[next - 1] + share * (places[next] - places[next - 1]);
  }

  // Ascending places of a line's steps, and its columns there, as uPlot joins them; a group's place is the mean of its runs'.
  function placed(steps, members, columns) {
    const found = steps.map((step) => members.map((run) => place(run, step)));
    const places = found.map((each) => each.includes(null) ? null : mean(each));
    const kept = [];
    places.forEach((x, i) => { if (x !== null && !(x <= places[kept.at(-1)])) kept.push(i); });
    return [places, ...columns].map((column) => kept.map((i) => column[i]));
  }

  // The lines of a chart: of each run or group the mean and, for several seeds or thinned steps, lowest and highest values.
  function content(chart) {
    const members = new Map();
    for (const line of chart.lines) {
      const entity = isPooled() ? runs[line.run].group : line.run;
      members.set(entity, [...(members.get(entity) || []), line]);
    }
    return [...members].sort((a, b) => a[0] - b[0]).map(([entity, lines]) => {
      const column = (name, combine) => lines[0].y.map((_, i) => {
        const found = lines.map((line) => (line[name] || line.y)[i]).filter((value) => value != null);
        return found.length ? combine(found) : null;
      });
      const hasBand = lines.length > 1 || Boolean(lines[0].low);
      return { entity, members: lines.map((line) => line.run), y: column("y", mean), ...(hasBand ? { low: column("low", (all) => Math.min(...all)), high: column("high", (all) => Math.max(...all)) } : {}) };
    });
  }

  function draw(chart) {
    const figure = figures.get(chart);
    figure.uplot?.destroy();
    figure.uplot = null;
    if (figure.element.hidden) return;
    const style = getComputedStyle(document.body), ink = style.getPropertyValue("--muted"), grid = { stroke: style.getPropertyValue("--line"), width: 1 };
    const lines = content(chart);
    const drawable = (values) => figure.isLog ? values.map((value) => value > 0 ? value : null) : values;
    const data = [chart.steps], tables = [], bands = [];
    const series = [isByStep() ? { label: "step" } : { label: of("axis").value, value: (_, value) => text(value) }];
    for (const line of lines) {
      const colour = COLOURS[line.entity % COLOURS.length];
      series.push({ label: names()[line.entity], stroke: colour, width: 1.5, spanGaps: true, value: (_, value) => text(value) });
      const columns = [line.y, ...(line.low ? [line.high, line.low] : [])].map(drawable);
      data.push(...columns);
      tables.push(isByStep() ? [] : placed(chart.steps, line.members, columns));
      if (!line.low) continue;
      bands.push({ series: [series.length, series.length + 1], fill: colour + "2b" });
      for (let edge = 0; edge < 2; edge++) series.push({ stroke: null, width: 0, points: { show: false }, spanGaps: true, class: "edge" });
    }
    const axis = { stroke: ink, grid, ticks: grid, font: "11px system-ui, sans-serif" };
    figure.uplot = new uPlot({
      width: figure.plot.clientWidth || 340, height: HEIGHT, series, bands,
      scales: { x: { time: false, range: (_, low, high) => range || (high > low ? [low, high] : [low - 1, high + 1]) }, y: { distr: figure.isLog ? 3 : 1 } },
      axes: [{ ...axis, size: 30, ...(isByStep() ? {} : { values: (_, values) => values.map(text) }) }, { ...axis, size: 58, values: (_, values) => values.map(text) }],
      cursor: { sync: { key: "step", setSeries: false }, drag: { x: true, y: false, setScale: false }, bind: { dblclick: () => () => zoom(null) } },
      hooks: { setSelect: [(u) => u.select.width > 4 && zoom([0, u.select.width].map((width) => u.posToVal(u.select.left + width, "x")))] },
    }, isByStep() ? data : uPlot.join(tables), figure.plot);
  }

  const redraw = () => charts.forEach(draw);
  function zoom(wanted) {
    range = wanted;
    redraw();
  }

  function tickBox(parent, words, isTicked, onChange) {
    const label = make(parent, "label"), box = make(label, "input");
    box.type = "checkbox";
    box.checked = isTicked;
    box.addEventListener("change", () => onChange(box.checked));
    make(label, "span", words);
    return label;
  }

  for (const chart of charts) {
    const element = make(of("charts"), "figure"), head = make(element, "figcaption");
    make(head, "span", `${chart.section === "Validation" ? "Validation: " : ""}${chart.title}`).title = chart.metric;
    if (chart.unit) make(head, "span", chart.unit, "muted");
    const log = make(head, "button", "log"), plot = make(element, "div", undefined, "plot");
    const figure = { element, plot, isLog: false, uplot: null };
    log.type = "button";
    log.setAttribute("aria-pressed", "false");
    log.addEventListener("click", () => {
      figure.isLog = !figure.isLog;
      log.setAttribute("aria-pressed", String(figure.isLog));
      draw(chart);
    });
    element.hidden = !chart.shown;
    figures.set(chart, figure);
    tickBox(of("metric-list"), chart.title, chart.shown, (isTicked) => { element.hidden = !isTicked; draw(chart); }).title = chart.metric;
  }
  of("pooled").closest("label").hidden = !canPool;
  of("pooled").addEventListener("change", redraw);
  of("axis").addEventListener("change", () => zoom(null));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("resize", redraw);
  of("curves-wait").hidden = true;
  of("curves-body").hidden = false;
  redraw();
})();
