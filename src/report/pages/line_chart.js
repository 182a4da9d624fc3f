// Curves over the steps of a run. All charts share the visible range and the position of the cursor.

const view = { from: 0, to: 0, whole: true, cursor: -1, first: 1, width: 1, bins: 0, smooth: true, logarithmic: false, changed: () => {} };

/// The last step of a bin, and its label.
const stepOf = (bin) => view.first + view.width * (bin + 1) - 1;
const binOf = (step) => (step - view.first + 1) / view.width - 1;
const stepWords = (bin) => (view.width === 1 ? `step ${words.grouped(stepOf(bin))}`
  : `steps ${words.grouped(stepOf(bin) - view.width + 1)} – ${words.grouped(Math.min(stepOf(bin), view.lastStep || Infinity))}`);

const niceStep = (range, ticks) => {
  const raw = range / Math.max(1, ticks);
  const power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((step) => step >= raw * 0.999) || raw;
};

/// Returns a centered mean over a sixtieth of the visible range. Missing values are ignored. Not tuned.
function smoothed(values, from, to) {
  const reach = Math.floor((to - from) / 60);
  if (reach < 1) return values;
  const sums = [0];
  const counts = [0];
  for (const value of values) {
    sums.push(sums[sums.length - 1] + (words.known(value) ? value : 0));
    counts.push(counts[counts.length - 1] + (words.known(value) ? 1 : 0));
  }
  return values.map((value, i) => {
    const low = Math.max(0, i - reach);
    const high = Math.min(values.length, i + reach + 1);
    return words.known(value) ? (sums[high] - sums[low]) / (counts[high] - counts[low]) : value;
  });
}

/// options: title, hint, format (of a value), series: [{name, colour, mean, min, max, dash, bars, emphasis}], or with no
/// mean, for values at some steps, points: [{step, at: its place among bins, value, best}], ascending; zero (the
/// axis begins at 0), whole (values are counts), logarithmic (may be), smooth (may be), marks: [{bin, colour}], height, empty (text
/// without points).
class LineChart {
  constructor() {
    this.legend = html("div", { class: "legend" });
    this.plot = html("div", { class: "plot" });
    this.tooltip = html("div", { class: "tooltip", hidden: "" });
    this.title = html("h2");
    this.panel = html("section", { class: "panel chart-panel" }, this.title, this.legend, html("div", { class: "plot-box" }, this.plot, this.tooltip));
    this.dragFrom = null;
    this.listen();
  }

  set(options) {
    this.options = options;
    this.title.textContent = options.title;
    this.panel.dataset.chart = options.title;
    this.legendValues = options.series.map((series) => {
      const value = html("b");
      return { series, value };
    });
    this.legend.replaceChildren(...this.legendValues.map(({ series, value }) =>
      html("span", { title: series.hint }, swatch(series.colour, series.bars ? "" : series.dash ? "line dashed" : "line"), series.name, " ", value)));
    this.draw();
  }

  points() {
    return this.options.series.reduce((sum, series) => sum + series.mean.filter(words.known).length + (series.points || []).length, 0);
  }

  draw() {
    const { options } = this;
    const width = this.plot.clientWidth;
    const height = options.height || 190;
    this.plot.style.height = `${height}px`;
    this.panel.dataset.points = this.points();
    if (this.points() === 0) {
      this.box = null;
      this.plot.replaceChildren(html("p", { class: "nothing" }, options.empty || "No values yet."));
      return;
    }
    const drawn = options.series.map((series) => ({ ...series, line: view.smooth && options.smooth ? smoothed(series.mean, view.from, view.to) : series.mean }));
    const logarithmic = view.logarithmic && options.logarithmic;
    const range = this.rangeOf(drawn, logarithmic);
    const box = { left: 58, right: width - 10, top: 8, bottom: height - 24 };
    const transformed = logarithmic ? Math.log10 : (value) => value;
    const [low, high] = range.map(transformed);
    const x = (bin) => box.left + (view.to - view.from < 1 ? 0.5 : (bin - view.from) / (view.to - view.from)) * (box.right - box.left);
    const y = (value) => box.bottom - ((transformed(Math.max(value, logarithmic ? range[0] : -Infinity)) - low) / (high - low)) * (box.bottom - box.top);
    this.box = { ...box, x, y, drawn };

    const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": options.title });
    this.axes(root, range, logarithmic);
    const clip = `clip-${(LineChart.clips = (LineChart.clips || 0) + 1)}`;
    root.append(svg("clipPath", { id: clip }, svg("rect", { x: box.left, y: 0, width: Math.max(0, box.right - box.left), height })));
    const curves = svg("g", { "clip-path": `url(#${clip})` });
    for (const series of drawn) series.points ? this.joined(curves, series, x, y) : this.curve(curves, series, x, y);
    for (const mark of options.marks || []) {
      curves.append(svg("path", { d: `M${x(mark.bin).toFixed(1)} ${box.bottom - 5}l4 5h-8z`, fill: mark.colour, class: "mark" }));
    }
    this.cursor = svg("g", { class: "cursor" });
    this.selection = svg("rect", { class: "selection", y: box.top, height: box.bottom - box.top, width: 0 });
    root.append(curves, this.cursor, this.selection);
    this.plot.replaceChildren(root);
    this.point();
  }

  rangeOf(drawn, logarithmic) {
    let low = Infinity;
    let high = -Infinity;
    const from = Math.max(0, Math.floor(view.from));
    const to = Math.ceil(view.to);
    const take = (value) => {
      if (!words.known(value) || (logarithmic && value <= 0)) return;
      low = Math.min(low, value);
      high = Math.max(high, value);
    };
    for (const series of drawn) {
      for (const point of series.points || []) if (point.at >= view.from - 1 && point.at <= view.to + 1) take(point.value);
      for (let i = from; i <= to; ++i) {
        for (const list of [series.mean, series.min, series.max]) {
          if (list) take(list[i]);
        }
      }
    }
    if (low > high) return logarithmic ? [0.1, 1] : [0, 1];
    if (logarithmic) return [low / 1.15, high * 1.15];
    if (this.options.zero) low = Math.min(0, low);
    if (high === low) return low === 0 ? [0, 1] : [low - 0.1 * Math.abs(low), high + 0.1 * Math.abs(high)];
    const more = 0.06 * (high - low);
    return [low < 0 || low - more >= 0 ? low - more * (this.options.zero && low === 0 ? 0 : 1) : 0, high + more];
  }

  axes(root, range, logarithmic) {
    const { left, right, bottom, x, y } = this.box;
    const label = (string, px, py, anchor) => root.append(svg("text", { x: px, y: py, "text-anchor": anchor }, string));
    const ticks = [];
    if (logarithmic) {
      const wide = Math.log10(range[1] / range[0]) > 1.5;
      for (let power = Math.floor(Math.log10(range[0])); power <= Math.log10(range[1]); ++power) {
        for (const factor of wide ? [1] : [1, 2, 5]) {
          const tick = factor * 10 ** power;
          if (tick >= range[0] && tick <= range[1]) ticks.push(tick);
        }
      }
    } else {
      let step = niceStep(range[1] - range[0], 4);
      if (this.options.whole) step = Math.max(1, Math.ceil(step));
      for (let i = Math.ceil(range[0] / step); i * step <= range[1]; ++i) ticks.push(i * step);
    }
    for (const tick of ticks) {
      root.append(svg("line", { class: "grid", x1: left, x2: right, y1: y(tick), y2: y(tick) }));
      label(this.options.format(tick), left - 7, y(tick) + 4, "end");
    }
    root.append(svg("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }));
    const steps = (view.to - view.from) * view.width;
    const step = Math.max(1, Math.round(niceStep(Math.max(1, steps), Math.max(2, (right - left) / 110))));
    for (let tick = Math.ceil(stepOf(view.from) / step) * step; tick <= stepOf(view.to); tick += step) {
      const px = x((tick - view.first + 1) / view.width - 1);
      root.append(svg("line", { class: "axis", x1: px, x2: px, y1: bottom, y2: bottom + 4 }));
      label(words.grouped(tick), Math.min(px, right - 4), bottom + 17, px > right - 24 ? "end" : "middle");
    }
    if (view.to - view.from < 1) label(words.grouped(stepOf(view.from)), x(view.from), bottom + 17, "middle");
  }

  /// Draws points joined by a line; the best one has a ring and a label.
  joined(group, series, x, y) {
    const inView = series.points.filter((point, i) => (series.points[i + 1] || point).at >= view.from && (series.points[i - 1] || point).at <= view.to);
    group.append(svg("path", { class: "join", stroke: series.colour, d: inView.map((point, i) => `${i === 0 ? "M" : "L"}${x(point.at).toFixed(1)} ${y(point.value).toFixed(1)}`).join("") }));
    const radius = inView.length > 150 ? 1.5 : 2.6;
    for (const point of inView) {
      const [cx, cy] = [x(point.at).toFixed(1), y(point.value).toFixed(1)];
      group.append(svg("circle", { cx, cy, r: radius, fill: series.colour }));
      if (!point.best) continue;
      const { left, right, top } = this.box;
      const anchor = cx - left < 60 ? "start" : right - cx < 60 ? "end" : "middle";
      group.append(svg("circle", { class: "best", cx, cy, r: 5.5, stroke: "var(--good)" }),
        svg("text", { class: "best-words", x: cx, y: cy - 12 < top + 8 ? Number(cy) + 20 : cy - 11, "text-anchor": anchor }, `best at step ${words.grouped(point.step)}`));
    }
  }

  curve(group, series, x, y) {
    const from = Math.max(0, Math.floor(view.from) - 1);
    const to = Math.min(series.mean.length - 1, Math.ceil(view.to) + 1);
    const at = (i, value) => `${x(i).toFixed(1)} ${y(value).toFixed(1)}`;
    if (series.bars) {
      const width = Math.max(1.5, 0.7 * (x(1) - x(0)));
      for (let i = from; i <= to; ++i) {
        if (series.mean[i] > 0) group.append(svg("rect", { x: x(i) - width / 2, width, y: y(series.mean[i]), height: Math.max(0, this.box.bottom - y(series.mean[i])), fill: series.colour }));
      }
      return;
    }
    const path = (values) => {
      let d = "";
      let open = false;
      for (let i = from; i <= to; ++i) {
        const known = words.known(values[i]);
        if (known) d += (open ? "L" : "M") + at(i, values[i]);
        // A lone value is a dot.
        if (known && !open && !words.known(values[i + 1])) d += "h0.01";
        open = known;
      }
      return d;
    };
    if (series.min && series.max) {
      let start = -1;
      for (let i = from; i <= to + 1; ++i) {
        const known = i <= to && words.known(series.min[i]);
        if (known && start < 0) start = i;
        if (known || start < 0) continue;
        let d = "";
        for (let k = start; k < i; ++k) d += (k === start ? "M" : "L") + at(k, series.max[k]);
        for (let k = i - 1; k >= start; --k) d += "L" + at(k, series.min[k]);
        group.append(svg("path", { class: "band", d: d + "z", fill: series.colour }));
        start = -1;
      }
    }
    if (series.line !== series.mean) group.append(svg("path", { class: "raw", d: path(series.mean), stroke: series.colour }));
    group.append(svg("path", { class: "line", d: path(series.line), stroke: series.colour, "stroke-dasharray": series.dash }));
  }

  /// Draws the cursor. The legend shows the values at the cursor, or the last ones without a cursor.
  point() {
    if (!this.box) return;
    const { x, y, top, bottom } = this.box;
    const shown = view.cursor >= 0;
    this.cursor.replaceChildren();
    if (shown) this.cursor.append(svg("line", { x1: x(view.cursor), x2: x(view.cursor), y1: top, y2: bottom }));
    for (const { series, value } of this.legendValues) {
      if (series.points) {
        const here = this.pointOf(series);
        value.textContent = here ? this.options.format(here.value, true) : "";
        if (shown && here) this.cursor.append(svg("circle", { cx: x(here.at), cy: y(here.value), r: 4, fill: series.colour }));
        continue;
      }
      const place = shown ? view.cursor : series.mean.findLastIndex(words.known);
      const here = series.mean[place];
      value.textContent = place < 0 ? "" : this.options.format(here, true);
      if (shown && words.known(here) && !series.bars) this.cursor.append(svg("circle", { cx: x(place), cy: y(here), r: 3, fill: series.colour }));
    }
  }

  /// Returns the newest point up to the cursor, or the newest of all points.
  pointOf(series) {
    return view.cursor < 0 ? series.points[series.points.length - 1] : series.points.findLast((point) => point.at <= view.cursor + 1e-9);
  }

  tell(px, py) {
    const bin = view.cursor;
    const rows = this.options.series.map((series) => {
      if (series.points) {
        const point = this.pointOf(series);
        return point ? html("div", {}, swatch(series.colour, "line"), `${series.name}: ${this.options.format(point.value, true)} at step ${words.grouped(point.step)}${point.best ? ", the best" : ""}`) : null;
      }
      const value = series.mean[bin];
      const spread = series.min && words.known(series.min[bin]) && series.min[bin] < series.max[bin]
        ? ` (${this.options.format(series.min[bin], true)} to ${this.options.format(series.max[bin], true)})` : "";
      return html("div", {}, swatch(series.colour, series.bars ? "" : series.dash ? "line dashed" : "line"), `${series.name}: ${this.options.format(value, true)}${spread}`);
    });
    this.tooltip.replaceChildren(html("b", {}, stepWords(bin)), ...rows.filter((row) => row !== null));
    this.tooltip.hidden = false;
    const at = this.box.x(bin);
    const right = at + 14 + this.tooltip.offsetWidth < this.plot.clientWidth;
    this.tooltip.style.left = `${Math.max(0, right ? at + 14 : at - 14 - this.tooltip.offsetWidth)}px`;
    this.tooltip.style.top = `${Math.max(0, Math.min(py + 12, this.plot.clientHeight - this.tooltip.offsetHeight))}px`;
  }

  listen() {
    const place = (event) => {
      const bounds = this.plot.getBoundingClientRect();
      return [event.clientX - bounds.left, event.clientY - bounds.top];
    };
    const binAt = (px) => {
      const { left, right } = this.box;
      const share = Math.min(1, Math.max(0, (px - left) / (right - left)));
      return view.from + share * (view.to - view.from);
    };
    this.plot.addEventListener("pointermove", (event) => {
      if (!this.box) return;
      const [px, py] = place(event);
      view.cursor = Math.min(view.bins - 1, Math.max(0, Math.round(binAt(px))));
      LineChart.all.forEach((chart) => chart.point());
      this.tell(px, py);
      if (this.dragFrom !== null) {
        this.selection.setAttribute("x", Math.min(this.dragFrom, px));
        this.selection.setAttribute("width", Math.abs(px - this.dragFrom));
      }
    });
    this.plot.addEventListener("pointerleave", () => {
      view.cursor = -1;
      this.dragFrom = null;
      if (this.selection) this.selection.setAttribute("width", 0);
      this.tooltip.hidden = true;
      LineChart.all.forEach((chart) => chart.point());
    });
    this.plot.addEventListener("pointerdown", (event) => {
      if (this.box && event.pointerType === "mouse" && event.button === 0) this.dragFrom = place(event)[0];
    });
    this.plot.addEventListener("pointerup", (event) => {
      const [px] = place(event);
      const from = this.dragFrom;
      this.dragFrom = null;
      if (from === null || Math.abs(px - from) < 6) return;
      const ends = [binAt(Math.min(from, px)), binAt(Math.max(from, px))];
      if (ends[1] - ends[0] >= 2) look(ends[0], ends[1], false);
    });
    this.plot.addEventListener("dblclick", () => lookAtAll());
  }
}
LineChart.all = [];

function look(from, to, whole) {
  Object.assign(view, { from, to, whole });
  view.changed();
  LineChart.all.forEach((chart) => chart.draw());
}
const lookAtAll = () => look(0, Math.max(0, view.bins - 1), true);
