"use strict";
// One chart of the report: lines of runs, or of their seeds' mean and band, drawn by uPlot from what chart_data.py packed.

const Chart = (() => {
  const HEIGHT = 216;
  const MAX_MARKED = 40; // points; with more the marks would hide the line
  const MAX_TOLD = 10; // lines of a tooltip
  const FAR = -1e4; // a pointer's height that is near no line
  const STEPS = [1, 2, 5].flatMap((digit) => [...Array(12).keys()].map((power) => digit * 10 ** power)).sort((a, b) => a - b);

  function text(value) {
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(3).replace(/\.?0+e/, "e").replace("e+", "e");
    return String(Number(value.toPrecision(5)));
  }

  // Exponential moving average, corrected for its start; gaps stay gaps.
  function smooth(values, weight) {
    if (!weight) return values;
    let sum = 0, norm = 0;
    return values.map((value) => {
      if (value == null) return null;
      sum = weight * sum + (1 - weight) * value;
      norm = weight * norm + (1 - weight);
      return sum / norm;
    });
  }

  function over(columns, combine) {
    return columns[0].map((_, i) => {
      const found = columns.map((column) => column[i]).filter((value) => value != null);
      return found.length ? combine(found) : null;
    });
  }
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  // The lowest (Math.min) or highest value of each point of a line whose points stand for several steps.
  const edge = (line, pick) => line.a.map((value, i) => value == null ? null : pick(value, line.b[i]));

  // What is drawn of a chart: x, and for each run or group its line, in order; `place` is where a point lies in the columns.
  function content(chart, groups, view) {
    const isWhole = chart.width > 1 && !view.smoothing; // no spike is lost: the lowest and the highest value are drawn
    const asExtremes = isWhole && !view.pooled;
    const to = chart.to || chart.from;
    const x = asExtremes ? chart.from.flatMap((step, i) => [step, Math.max(to[i], step + 1e-6)])
      : chart.from.map((step, i) => (step + to[i]) / 2);
    const lines = [];
    if (view.pooled) {
      const members = new Map();
      for (const line of chart.lines) members.set(groups[line.run], [...(members.get(groups[line.run]) || []), line]);
      for (const [group, found] of [...members].sort((a, b) => a[0] - b[0])) {
        const means = found.map((line) => line.m);
        const [low, high] = [Math.min, Math.max].map((pick) =>
          smooth(over(isWhole ? found.map((line) => edge(line, pick)) : means, (values) => pick(...values)), view.smoothing));
        lines.push({ entity: group, y: smooth(over(means, mean), view.smoothing), low, high, hasBand: found.length > 1 || isWhole });
      }
    } else {
      for (const line of chart.lines) {
        const y = asExtremes ? line.a.flatMap((value, i) => [value, line.b[i]]) : smooth(line.m, view.smoothing);
        const told = chart.width > 1 ? { low: edge(line, Math.min), high: edge(line, Math.max) } : {};
        lines.push({ entity: line.run, y, told: line.m, ...told, hasBand: false });
      }
    }
    return { x, lines, place: (i) => asExtremes ? i >> 1 : i };
  }

  function linearRange(unit) {
    return (_, low, high) => {
      if (low == null) return [0, 1];
      const pad = high > low ? 0.06 * (high - low) : Math.abs(high) * 0.1 || 1;
      return [low >= 0 ? Math.max(low - pad, 0) : low - pad, unit === "%" && high <= 100 ? Math.min(high + pad, 100) : high + pad];
    };
  }
  // Ticks of a logarithmic axis: 1, 2, 5 of each decade, of many decades their powers of ten; within one as on a linear axis.
  function logTicks(low, high) {
    const decades = Math.log10(high / low), powers = [];
    if (decades < 1) {
      const raw = (high - low) / 5, power = 10 ** Math.floor(Math.log10(raw)), step = power * [1, 2, 5, 10].find((digit) => digit * power >= raw);
      for (let at = Math.ceil(low / step); at * step <= high; at += 1) powers.push(at * step);
      return powers;
    }
    const digits = decades > 3 ? [1] : [1, 2, 5], every = Math.ceil(decades / 7);
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += every) powers.push(...digits.map((digit) => digit * 10 ** power));
    return powers.filter((at) => at >= low && at <= high);
  }
  const logRange = (_, low, high) => low == null ? [1, 10] : [low / 1.15, high * 1.15];

  class Figure {
    // page: { groups, view, style(entity), names(), range(), zoom(range), point(step, figure) }
    constructor(chart, page) {
      this.chart = chart;
      this.page = page;
      this.isLog = false;
      this.isNear = false;
      this.isStale = true;
      this.element = document.createElement("figure");
      const head = this.add(this.element, "figcaption");
      const title = this.add(head, "span", chart.title);
      title.title = chart.metric;
      if (chart.unit) this.add(head, "span", ` ${chart.unit}`).className = "muted";
      this.logButton = this.add(head, "button", "log");
      this.logButton.type = "button";
      this.logButton.setAttribute("aria-pressed", "false");
      this.logButton.setAttribute("aria-label", `log scale of ${chart.title}`);
      this.logButton.addEventListener("click", () => this.toggleLog());
      this.plot = this.add(this.element, "div");
      this.plot.className = "plot";
      this.plot.tabIndex = 0;
      this.plot.setAttribute("role", "application");
      this.plot.setAttribute("aria-label", `${chart.title} by step. Arrow keys read the values, plus and minus zoom, 0 shows all steps, L is the logarithmic scale.`);
      this.plot.addEventListener("keydown", (event) => this.key(event));
      for (const [name, isActive] of [["pointerenter", true], ["focus", true], ["pointerleave", false], ["blur", false]]) {
        this.plot.addEventListener(name, () => this.setActive(isActive));
      }
      this.tip = this.add(this.element, "div");
      this.tip.className = "tip";
      this.tip.hidden = true;
      this.spoken = this.add(this.element, "p");
      this.spoken.className = "unseen";
      this.spoken.setAttribute("aria-live", "polite");
      new ResizeObserver(() => this.resize()).observe(this.plot);
    }

    add(parent, tag, words) {
      const element = document.createElement(tag);
      if (words !== undefined) element.textContent = words;
      parent.append(element);
      return element;
    }

    toggleLog() {
      this.isLog = !this.isLog;
      this.logButton.setAttribute("aria-pressed", String(this.isLog));
      this.refresh();
    }

    // Only a chart under the pointer or with the focus tells its values: a cursor also moves with the range and with others.
    setActive(isActive) {
      this.isActive = isActive;
      if (isActive) return;
      this.hideTip();
      this.page.point(null, this);
    }

    // Draws now if it is on the screen, else once it comes there.
    refresh() {
      this.isStale = true;
      if (this.isNear) this.draw();
    }

    resize() {
      if (this.uplot && this.plot.clientWidth && this.plot.clientWidth !== this.uplot.width) this.uplot.setSize({ width: this.plot.clientWidth, height: HEIGHT });
    }

    draw() {
      if (!this.isStale) return;
      this.isStale = false;
      this.uplot?.destroy();
      this.hideTip();
      const { view } = this.page;
      this.content = content(this.chart, this.page.groups, view);
      const styled = this.content.lines.map((line) => ({ ...line, ...this.page.style(line.entity) }));
      this.lines = styled.filter((line) => line.isShown).sort((a, b) => a.isLit - b.isLit);
      const isMarked = this.content.x.length <= MAX_MARKED && this.lines.length <= MAX_TOLD;
      const drawable = this.isLog ? (values) => values.map((value) => value > 0 ? value : null) : (values) => values;
      const data = [this.content.x], series = [{}], bands = [];
      this.places = [null];
      for (const line of this.lines) {
        const isAlone = line.y.filter((value) => value != null).length === 1;
        series.push({ label: "line", stroke: line.color, width: line.isLit ? 1.6 : 0.7, spanGaps: true,
                      points: { show: (isMarked && line.isLit) || isAlone, size: 5, fill: line.color } });
        data.push(drawable(line.y));
        this.places.push(line);
        if (line.hasBand && line.isLit) {
          const at = series.length;
          for (const edge of [line.high, line.low]) {
            series.push({ stroke: null, width: 0, spanGaps: true, points: { show: false } });
            data.push(drawable(edge));
            this.places.push(null);
          }
          bands.push({ series: [at, at + 1], fill: line.color + "2b" });
        }
      }
      const ink = view.theme.muted, grid = { stroke: view.theme.line, width: 1 };
      const axis = { stroke: ink, grid, ticks: { ...grid, size: 4 }, font: "11px system-ui, sans-serif" };
      const names = (_, values) => values.map((value) => value == null ? "" : text(value));
      this.uplot = new uPlot({
        width: this.plot.clientWidth || 340, height: HEIGHT, legend: { show: false }, padding: [8, 18, 0, 0],
        scales: { x: { time: false, range: (_, low, high) => high > low ? [low, high] : [low - 1, high + 1] },
                  y: { distr: this.isLog ? 3 : 1, range: this.isLog ? logRange : linearRange(this.chart.unit) } },
        axes: [{ ...axis, incrs: STEPS, size: 22, gap: 3, values: names, label: "step", labelSize: 14, labelGap: -2, labelFont: axis.font },
               { ...axis, gap: 3, values: names, ...(this.isLog ? { splits: (_, __, low, high) => logTicks(low, high), filter: (_, ticks) => ticks } : {}),
                 size: (_, values) => 14 + 6.3 * Math.max(1, ...(values || []).map((value) => value == null ? 0 : String(value).length)) }],
        cursor: { y: false, drag: { x: true, y: false, dist: 6, setScale: false }, focus: { prox: this.lines.length > 1 ? 20 : -1,
                           dist: (_, at, idx, lineAt, pointerAt) => this.places[at] ? Math.abs(lineAt - pointerAt) : Infinity },
                  points: { size: 6, show: this.lines.length <= MAX_TOLD },
                  bind: { dblclick: () => () => (this.page.zoom(null), null) } },
        focus: { alpha: 0.3 }, series, bands,
        hooks: {
          setCursor: [(u) => this.moved(u)],
          setSeries: [(_, at) => { this.focused = this.places[at] || null; }],
          setSelect: [(u) => this.selected(u)],
        },
      }, data, this.plot);
      this.setRange();
    }

    setRange() {
      if (this.uplot && !this.isStale) {
        const [min, max] = this.page.range();
        this.uplot.setScale("x", { min, max });
      }
    }

    selected(u) {
      if (u.select.width < 4) return;
      const [low, high] = [u.select.left, u.select.left + u.select.width].map((left) => u.posToVal(left, "x"));
      u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      this.page.zoom([low, high]);
    }

    moved(u) {
      if (this.isFollowing || !this.isActive) return;
      const { left, idx } = u.cursor;
      if (idx == null || left < 0) {
        this.hideTip();
        this.page.point(null, this);
        return;
      }
      this.page.point(u.posToVal(left, "x"), this);
      this.showTip(idx, left);
    }

    // The cursor of another chart stands at this step.
    follow(step) {
      if (!this.uplot || this.isStale) return;
      this.isFollowing = true;
      this.uplot.setCursor({ left: step == null ? -10 : this.uplot.valToPos(step, "x"), top: FAR }, false);
      this.isFollowing = false;
    }

    // [step or steps, [line, words]...] at a point of x, highest values first.
    values(idx) {
      const at = this.content.place(idx), { from, to } = this.chart;
      const step = to && to[at] !== from[at] ? `steps ${from[at]} to ${to[at]}` : `step ${from[at]}`;
      const told = this.lines.filter((line) => line.y[idx] != null).sort((a, b) => b.y[idx] - a.y[idx]);
      const shown = told.filter((line) => line.isLit || line === this.focused).slice(0, MAX_TOLD);
      if (this.focused && told.includes(this.focused) && !shown.includes(this.focused)) shown.push(this.focused);
      return [step, shown.map((line) => {
        const value = this.page.view.smoothing || !line.told ? line.y[idx] : line.told[at];
        const hasSpan = line.low && line.low[at] != null && line.low[at] !== line.high[at];
        return [line, text(value) + (hasSpan ? ` (${text(line.low[at])} to ${text(line.high[at])})` : "")];
      })];
    }

    showTip(idx, left) {
      const [step, found] = this.values(idx);
      this.tip.replaceChildren();
      this.add(this.tip, "b", step);
      for (const [line, words] of found) {
        const row = this.add(this.tip, "div");
        const swatch = this.add(row, "i");
        swatch.style.background = line.color;
        const name = this.add(row, "span", this.page.names()[line.entity]);
        if (line === this.focused) name.className = "focused";
        this.add(row, "span", words).className = "value";
      }
      this.tip.hidden = false;
      const below = this.element.getBoundingClientRect().bottom + this.tip.offsetHeight < innerHeight;
      this.tip.style.top = below ? "calc(100% - 1.2rem)" : `${30 - this.tip.offsetHeight}px`;
      const wide = this.element.clientWidth, at = left + this.uplot.bbox.left / devicePixelRatio;
      this.tip.style.left = `${Math.max(Math.min(at > wide / 2 ? at - this.tip.offsetWidth - 8 : at + 32, wide - this.tip.offsetWidth - 4), 4)}px`;
    }

    hideTip() {
      this.tip.hidden = true;
    }

    key(event) {
      if (!this.uplot || event.ctrlKey || event.metaKey || event.altKey) return;
      const { x } = this.content, [low, high] = this.page.range();
      const within = x.map((value, i) => [value, i]).filter(([value]) => value >= low && value <= high).map(([, i]) => i);
      const now = within.indexOf(this.uplot.cursor.idx), last = within.length - 1;
      const goal = { ArrowRight: now + 1, ArrowLeft: now < 0 ? last : now - 1, Home: 0, End: last, PageDown: now + 10, PageUp: now - 10 }[event.key];
      if (goal !== undefined && within.length) {
        const idx = within[Math.max(0, Math.min(goal, last))];
        const left = this.uplot.valToPos(x[idx], "x");
        this.uplot.setCursor({ left, top: FAR });
        const [step, found] = this.values(idx);
        this.spoken.textContent = `${step}: ${found.map(([line, words]) => `${this.page.names()[line.entity]} ${words}`).join("; ")}`;
      } else if (event.key === "+" || event.key === "=") this.page.magnify(0.5, this.uplot.cursor.left >= 0 ? this.uplot.posToVal(this.uplot.cursor.left, "x") : null);
      else if (event.key === "-") this.page.magnify(2, null);
      else if (event.key === "0" || event.key === "Escape") this.page.zoom(null);
      else if (event.key === "l" || event.key === "L") this.toggleLog();
      else return;
      event.preventDefault();
    }
  }
  return { Figure, content };
})();
