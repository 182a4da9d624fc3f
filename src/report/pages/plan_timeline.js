"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const chart = document.getElementById("chart");
  const canvas = document.getElementById("canvas");
  const tooltip = document.getElementById("tooltip");
  const whole = document.getElementById("whole");
  const stretch = document.getElementById("stretch");
  const cells = [...document.querySelectorAll("td[data-cursor]")];

  // data.points: rows of [events since the row before, place, series, change of its bytes, series, change, …]; the
  // series are the components, bottom to top, and at last the reserved bytes.
  const count = data.points.length;
  const layers = data.components.length;
  const events = new Float64Array(count);
  const places = new Uint32Array(count);
  const series = Array.from({ length: layers + 1 }, () => new Float64Array(count));
  const allocated = new Float64Array(count);
  const reserved = series[layers];
  {
    const now = new Float64Array(layers + 1);
    let event = 0;
    data.points.forEach((row, i) => {
      event += row[0];
      for (let k = 2; k < row.length; k += 2) now[row[k]] += row[k + 1];
      events[i] = event;
      places[i] = row[1];
      series.forEach((values, s) => { values[i] = now[s]; });
      for (let s = 0; s < layers; ++s) allocated[i] += now[s];
    });
  }
  const peak = events.indexOf(data.peak_event);
  const last = data.events;  // an event lasts until the next one

  const gigabytes = (bytes) => (bytes > 0 && bytes < 5e7 ? "<0.1" : (bytes / 1e9).toFixed(1)) + " GB";
  const grouped = (number) => Math.round(number).toLocaleString("en-US");

  const limits = [
    { name: "limit for PyTorch", bytes: data.limit_bytes, colour: "--limit" },
    { name: "GPU without context", bytes: data.gpu_bytes, colour: "--gpu" },
  ];
  const highest = reserved.reduce((most, bytes) => Math.max(most, bytes), allocated[peak]);
  const inRange = limits.filter((line) => line.bytes > 0.3 * highest && line.bytes < 1.6 * highest);
  const wholeRange = [0, 1.06 * inRange.reduce((most, line) => Math.max(most, line.bytes), highest)];

  const margin = { left: 64, right: 14, top: 30, bottom: 34 };
  let view = [0, last];
  let range = wholeRange;  // of bytes
  let cursor = -1;  // of points
  let dragFrom = null;
  let dragTo = null;
  let size = { width: 0, height: 0 };

  const x = (event) => margin.left + ((event - view[0]) / (view[1] - view[0])) * (size.width - margin.left - margin.right);
  const y = (bytes) => size.height - margin.bottom - ((bytes - range[0]) / (range[1] - range[0])) * (size.height - margin.top - margin.bottom);
  const eventAt = (pixel) => {
    const share = (pixel - margin.left) / (size.width - margin.left - margin.right);
    return view[0] + Math.min(1, Math.max(0, share)) * (view[1] - view[0]);
  };

  /// Returns the last point that is not after the event.
  function pointAt(event) {
    let low = 0;
    let high = count - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (events[middle] <= event) low = middle; else high = middle - 1;
    }
    return low;
  }

  /// The point with the most allocated of those that share a column of pixels with the event.
  function mostBeside(event) {
    const column = Math.floor(x(event));
    let most = pointAt(event);
    const compare = (i) => { if (allocated[i] > allocated[most]) most = i; };
    for (let i = most - 1; i >= 0 && Math.floor(x(events[i])) === column; --i) compare(i);
    for (let i = pointAt(event) + 1; i < count && Math.floor(x(events[i])) === column; ++i) compare(i);
    return most;
  }

  /// The points to draw, as [point, start]: all points, or, if a column of pixels has many, the one with the most
  /// allocated in each column.
  function visible() {
    const first = pointAt(view[0]);
    const end = Math.min(count - 1, pointAt(view[1]) + 1);
    if (end - first < size.width) return Array.from({ length: end - first + 1 }, (_, i) => [first + i, x(events[first + i])]);
    const chosen = [];
    for (let i = first; i <= end;) {
      const column = Math.floor(x(events[i]));
      let most = i;
      for (; i <= end && Math.floor(x(events[i])) === column; ++i) {
        if (allocated[i] > allocated[most]) most = i;
      }
      chosen.push([most, column]);
    }
    return chosen;
  }

  /// Returns the range of the allocated bytes in view, with some space above and below.
  function rangeInView() {
    let least = Infinity;
    let most = 0;
    for (let i = pointAt(view[0]); i < count && events[i] < view[1]; ++i) {
      least = Math.min(least, allocated[i]);
      most = Math.max(most, allocated[i]);
    }
    const more = Math.max(0.12 * (most - least), 0.0005 * most, 1);
    return [Math.max(0, least - more), most + more];
  }

  const niceStep = (range, ticks) => {
    const raw = range / ticks;
    const power = 10 ** Math.floor(Math.log10(raw));
    return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= raw);
  };

  function draw() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const ratio = window.devicePixelRatio || 1;
    size = { width: chart.clientWidth, height: chart.clientHeight };
    canvas.width = Math.round(size.width * ratio);
    canvas.height = Math.round(size.height * ratio);
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "12px " + getComputedStyle(document.body).fontFamily;
    const left = margin.left;
    const right = size.width - margin.right;
    if (stretch.checked) range = rangeInView(); else range = wholeRange;
    const floor = y(range[0]);

    const text = (string, px, py, align, name) => {
      pen.fillStyle = colour(name);
      pen.textAlign = align;
      pen.fillText(string, px, py);
    };
    const line = (x1, y1, x2, y2, name, dash, width) => {
      pen.strokeStyle = colour(name);
      pen.lineWidth = width || 1;
      pen.setLineDash(dash || []);
      pen.beginPath();
      pen.moveTo(x1, y1);
      pen.lineTo(x2, y2);
      pen.stroke();
      pen.setLineDash([]);
    };

    const step = niceStep(range[1] - range[0], 7);
    const digits = Math.max(0, Math.ceil(-Math.log10(step / 1e9) - 1e-9));
    for (let bytes = Math.ceil(range[0] / step) * step; bytes <= range[1]; bytes += step) {
      line(left, y(bytes), right, y(bytes), "--grid");
      text((bytes / 1e9).toFixed(digits) + " GB", left - 8, y(bytes) + 4, "right", "--faint");
    }
    const eventStep = Math.max(1, niceStep(view[1] - view[0], Math.max(3, size.width / 130)));
    for (let event = Math.ceil(view[0] / eventStep) * eventStep; event <= view[1]; event += eventStep) {
      line(x(event), floor, x(event), floor + 4, "--faint");
      text(grouped(event), x(event), floor + 17, x(event) > right - 20 ? "right" : "center", "--faint");
    }
    text("event", left - 8, floor + 17, "right", "--faint");

    pen.save();
    pen.beginPath();
    pen.rect(left, 0, right - left, size.height);
    pen.clip();

    data.phases.forEach(([first, microBatch, pass], i) => {
      const end = i + 1 < data.phases.length ? data.phases[i + 1][0] : last;
      const from = Math.max(left, x(first));
      const to = Math.min(right, x(end));
      if (to <= from) return;
      pen.fillStyle = colour(i % 2 === 0 ? "--band" : "--band-other");
      pen.fillRect(from, 2, to - from, 22);
      if (i > 0 && x(first) >= left) line(x(first), 2, x(first), floor, "--rule");
      const names = microBatch > 0 ? [`micro-batch ${microBatch}, ${pass}`, `${microBatch} ${pass}`, `${microBatch} ${pass[0]}`]
                                   : [pass, pass.slice(0, 3) + "."];
      const name = names.find((candidate) => pen.measureText(candidate).width < to - from - 8);
      if (name) text(name, (from + to) / 2, 17, "center", "--ink");
    });

    pen.save();
    pen.beginPath();
    pen.rect(left, y(range[1]), right - left, floor - y(range[1]));
    pen.clip();
    const shown = visible();
    const until = (k) => (k + 1 < shown.length ? shown[k + 1][1] : x(last));
    const outline = (heights) => heights.forEach((height, k) => {
      pen.lineTo(shown[k][1], height);
      pen.lineTo(until(k), height);
    });
    let below = shown.map(() => 0);
    for (let s = 0; s < layers; ++s) {
      const above = below.map((bytes, k) => bytes + series[s][shown[k][0]]);
      pen.fillStyle = colour("--" + data.components[s].key);
      pen.beginPath();
      outline(above.map(y));
      for (let k = shown.length - 1; k >= 0; --k) {
        pen.lineTo(until(k), y(below[k]));
        pen.lineTo(shown[k][1], y(below[k]));
      }
      pen.fill();
      below = above;
    }
    pen.strokeStyle = colour("--reserved");
    pen.lineWidth = 1.25;
    pen.beginPath();
    outline(shown.map(([point]) => y(reserved[point])));
    pen.stroke();
    for (const { bytes, colour: name } of inRange) line(left, y(bytes), right, y(bytes), name, [6, 4], 1.25);

    if (data.peak_event >= view[0] && data.peak_event <= view[1]) {
      const px = x(data.peak_event);
      const py = y(allocated[peak]);
      line(px, py, px, floor, "--ink", [2, 3]);
      pen.fillStyle = colour("--ink");
      pen.beginPath();
      pen.arc(px, py, 3.5, 0, 2 * Math.PI);
      pen.fill();
    }
    pen.restore();
    if (cursor >= 0) line(x(events[cursor]), margin.top, x(events[cursor]), floor, "--faint");
    if (dragFrom !== null && dragTo !== null) {
      pen.globalAlpha = 0.18;
      pen.fillStyle = colour("--ink");
      pen.fillRect(Math.min(dragFrom, dragTo), margin.top, Math.abs(dragTo - dragFrom), floor - margin.top);
      pen.globalAlpha = 1;
    }
    labels(pen, text, colour, left, right);
    pen.restore();
  }

  /// Names of lines and of the peak, on plates so that they can be read over any colour, each where none is yet.
  function labels(pen, text, colour, left, right) {
    const taken = [];
    const plate = (string, px, py, align, name) => {
      const width = pen.measureText(string).width + 10;
      const from = Math.max(left + 2, Math.min(right - width - 2, align === "right" ? px - width : px));
      const free = (height) => taken.every((box) => from >= box.to || from + width <= box.from || Math.abs(height - box.at) >= 19);
      const heights = [0, 20, -20, 40, 60, 80].map((shift) => py + shift);
      const at = heights.find((height) => height > margin.top + 8 && free(height)) || py;
      taken.push({ from, to: from + width, at });
      pen.globalAlpha = 0.86;
      pen.fillStyle = colour("--panel");
      pen.fillRect(from, at - 13, width, 18);
      pen.globalAlpha = 1;
      text(string, from + 5, at, "left", name);
    };
    const inside = (bytes) => bytes >= range[0] && bytes <= range[1];
    for (const { name, bytes, colour: ink } of [...inRange].reverse()) {
      if (inside(bytes)) plate(`${name} ${gigabytes(bytes)}`, left + 6, y(bytes) - 5, "left", ink);
    }
    const reservedNow = reserved[pointAt(view[1])];
    if (inside(reservedNow)) plate(`reserved ${gigabytes(reservedNow)}`, right - 4, y(reservedNow) - 7, "right", "--reserved");
    if (data.peak_event >= view[0] && data.peak_event <= view[1]) {
      const px = x(data.peak_event);
      const above = inside(reserved[peak]) ? reserved[peak] : allocated[peak];
      const py = y(above);
      plate(`peak ${gigabytes(allocated[peak])}: ${data.places[places[peak]]}`, px - 6, py - 7, "left", "--ink");
    }
  }

  function show(pixel, height) {
    cursor = mostBeside(eventAt(pixel));
    const phase = data.phases.reduce((now, candidate) => (candidate[0] <= events[cursor] ? candidate : now));
    tooltip.replaceChildren();
    const add = (tag, string) => {
      const element = document.createElement(tag);
      element.textContent = string;
      tooltip.append(element);
    };
    add("b", `${gigabytes(allocated[cursor])} allocated, ${gigabytes(reserved[cursor])} reserved`);
    add("div", data.places[places[cursor]]);
    add("div", `${phase[1] > 0 ? `micro-batch ${phase[1]}, ` : ""}${phase[2]}; event ${grouped(events[cursor])} of ${grouped(data.events)}`);
    tooltip.hidden = false;
    const at = x(events[cursor]);
    const fits = at + 14 + tooltip.offsetWidth < size.width;
    tooltip.style.left = Math.max(0, fits ? at + 14 : at - 14 - tooltip.offsetWidth) + "px";
    tooltip.style.top = Math.min(Math.max(margin.top, height + 14), size.height - tooltip.offsetHeight - margin.bottom) + "px";
    for (const cell of cells) {
      const which = cell.dataset.cursor;
      cell.textContent = gigabytes(which === "allocated" ? allocated[cursor] : series[Number(which)][cursor]);
    }
  }

  function leave() {
    cursor = -1;
    tooltip.hidden = true;
    for (const cell of cells) cell.textContent = "";
  }

  let pending = false;
  function redraw() {
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => { pending = false; draw(); });
  }

  function look(from, to) {
    view = [from, to];
    whole.hidden = from === 0 && to === last;
    redraw();
  }

  const position = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse" && event.button === 0) dragFrom = position(event)[0];
  });
  canvas.addEventListener("pointermove", (event) => {
    const [px, py] = position(event);
    if (dragFrom !== null) dragTo = px;
    show(px, py);
    redraw();
  });
  canvas.addEventListener("pointerleave", () => { dragFrom = dragTo = null; leave(); redraw(); });
  canvas.addEventListener("pointerup", () => {
    const [from, to] = [dragFrom, dragTo];
    dragFrom = dragTo = null;
    const fewest = 8;  // events
    if (from !== null && to !== null && Math.abs(to - from) > 5) {
      const ends = [eventAt(Math.min(from, to)), eventAt(Math.max(from, to))];
      if (ends[1] - ends[0] >= fewest) look(...ends);
    }
    redraw();
  });
  const lookAtAll = () => look(0, last);
  canvas.addEventListener("dblclick", lookAtAll);
  whole.addEventListener("click", lookAtAll);
  stretch.addEventListener("change", redraw);
  window.addEventListener("resize", redraw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  draw();
})();
