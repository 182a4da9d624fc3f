// The page: its head, tiles and curves; reads its file again while the run continues.

const kReadSeconds = 10;
let data = null;
const taskColour = (i) => `var(--series-${i % 12})`;

function standing() {
  if (data.state !== "running") return data.state;
  const patience = Math.max(90, 12 * (data.summary.step_seconds || 0));
  return Date.now() / 1000 - data.updated > patience ? "silent" : "running";
}

function head() {
  const { summary, plan, environment } = data;
  const state = standing();
  const names = { running: "running", finished: "finished", stopped: "stopped", failed: "failed", silent: "no recent update" };
  const share = summary.total_steps > 0 ? Math.min(1, summary.step / summary.total_steps) : 0;
  const model = (configValue(data.config, "model", "path") || (plan && plan.model) || "").replace(/\/+$/, "").split("/").slice(-2).join("/");
  const rank = Number(configValue(data.config, "lora", "rank"));
  const subject = [model, rank > 0 ? `LoRA of rank ${rank}` : model ? "full fine-tuning" : "", configValue(data.config, "training", "precision"),
    environment ? (environment.gpu ? environment.gpu.name : "CPU") : "", configValue(data.config, "data", "train")].filter(Boolean);
  const batch = configValue(data.config, "training", "global_batch_size");
  const steps = summary.total_steps > 0 ? `Step ${words.grouped(summary.step)} of ${words.grouped(summary.total_steps)}` : `Step ${words.grouped(summary.step)}`;
  const line = [steps, words.known(summary.epoch) && summary.epoch > 0 ? `epoch ${summary.epoch.toFixed(2)}` : "", batch ? `${batch} samples per step` : "",
    state === "silent" ? `no update since ${words.clock(data.updated)}` : `as of ${words.clock(data.updated)}`].filter(Boolean);
  return [
    html("p", { class: "brand" }, "vlmtrain run"),
    html("h1", {}, data.name, " ", html("span", { class: `badge ${state}` }, names[state] || state)),
    subject.length > 0 ? html("p", { class: "subject" }, subject.join(" · ")) : null,
    html("div", { class: "progress" }, html("span", { class: state, style: `width:${(100 * share).toFixed(2)}%` })),
    html("p", { class: "hint first" }, line.join(" · ")),
    bestLine(),
    data.message ? html("p", { class: `answer ${state === "failed" ? "fails" : ""}` }, data.message) : null];
}

function tile(name, value, note, style) {
  return html("section", { class: `panel tile ${style || ""}` }, html("h2", {}, name), html("p", { class: "value" }, value), html("p", { class: "hint" }, note));
}

function tiles() {
  const { summary, plan, curves } = data;
  const onGpu = summary.reserved_peak_bytes > 0;
  const firstLoss = curves.loss && curves.loss.mean.find(words.known);
  const left = summary.total_steps > 0 && words.known(summary.step_seconds) ? (summary.total_steps - summary.step) * summary.step_seconds : NaN;
  const wait = curves.data_wait_share && curves.data_wait_share.mean.filter(words.known);
  const waited = wait && wait.length > 0 ? wait[wait.length - 1] : NaN;
  const difference = summary.predicted_peak_bytes > 0 && onGpu ? `${words.difference(summary.reserved_peak_bytes / summary.predicted_peak_bytes)} relative to the plan` : "";
  const gpuText = plan && plan.gpu_bytes ? `GPU with ${words.bytes(plan.gpu_bytes)}` : "";
  const incidents = [[summary.oom_splits, "out-of-memory split"], [summary.forecast_splits, "forecast split"], [summary.skipped_steps, "skipped step"],
    [data.events.counts.anomaly || 0, "anomaly"], [(data.events.counts.memory_growth || 0) + (data.events.counts.memory_full || 0), "memory warning"]].filter(([count]) => count > 0);
  const plural = (count, noun) => (noun === "anomaly" && count !== 1 ? `${words.grouped(count)} anomalies` : words.counted(count, noun));
  const running = standing() === "running";
  const slowest = summary.waited_for_slowest_seconds > 0 ? `; rank ${summary.slowest_rank} of ${summary.ranks} is the slowest, by ${words.seconds(summary.waited_for_slowest_seconds)} in total` : "";
  return [
    lossTile(firstLoss),
    tile("Tokens per second", words.known(summary.tokens_per_second) ? words.grouped(summary.tokens_per_second) : "–",
      `${words.seconds(summary.step_seconds)} per step${words.known(waited) ? `, ${words.percent(waited)} of it waiting for data` : ""}${slowest}`),
    onGpu ? tile("Memory / planned", [words.bytes(summary.reserved_peak_bytes).replace(/ GB$/, ""), html("small", {}, ` / ${words.bytes(summary.predicted_peak_bytes || undefined)}`)],
      [difference, gpuText].filter(Boolean).join("; "))
      : tile("Memory of the process", words.bytes(summary.host_peak_bytes), "peak, on the CPU"),
    running && words.known(left) ? tile("Time left", words.seconds(left), `${words.seconds(summary.seconds)} of steps so far`)
      : tile("Time", words.seconds(summary.seconds), "in steps, without checkpoints and evaluations"),
    tile("Samples trained on", words.grouped(summary.samples), `${words.count(summary.tokens)} tokens, ${words.count(summary.label_tokens)} label tokens; ${words.media(summary)}`),
    tile("Incidents", incidents.length === 0 ? "none" : words.grouped(incidents.reduce((sum, [count]) => sum + count, 0)),
      incidents.length === 0 ? "no splits, no skipped steps" : incidents.map(([count, noun]) => plural(count, noun)).join(", "), incidents.length === 0 ? "quiet" : "warned")];
}

/// Returns a line about the best evaluation so far, with its scores; null without one.
function bestLine() {
  const { best, newest } = data.evaluations || {};
  if (!best) return null;
  const match = words.known(best.exact_match) ? `, exact match ${words.percent(best.exact_match)}` : "";
  const drawn = ({ dice }) => (words.known(dice) ? `, Dice ${words.dice(dice)}` : "");
  return html("p", { class: "best-line" }, html("b", {}, `Best at step ${words.grouped(best.step)}`), `: validation loss ${words.loss(best.loss)}${match}${drawn(best)}`,
    best.step === newest.step ? ", the newest" : `; the newest, at step ${words.grouped(newest.step)}, ${words.loss(newest.loss)}${words.known(newest.exact_match) ? `, ${words.percent(newest.exact_match)}` : ""}${drawn(newest)}`);
}

function lossTile(firstLoss) {
  const { summary, evaluations } = data;
  const steps = `mean of the last ${words.counted(summary.recent_steps, "step")}${words.known(firstLoss) ? `; began at ${words.loss(firstLoss)}` : ""}`;
  if (!evaluations) return tile("Loss", words.loss(summary.loss), steps);
  return tile("Loss / validation", [words.loss(summary.loss), html("small", {}, ` / ${words.loss(evaluations.newest.loss)}`)],
    `${steps}; ${words.counted(evaluations.count, "evaluation")} in ${words.seconds(evaluations.seconds)}${words.known(evaluations.newest.dice) ? `; Dice ${words.dice(evaluations.newest.dice)}` : ""}`);
}

/// Returns the points of an evaluation's curve in the format of LineChart; empty without values.
function evaluated(name, colour, values, more) {
  const { steps, best } = data.evaluations;
  const points = steps.map((step, i) => ({ step, at: binOf(step), value: values[i], best: Boolean(more && more.best && best && best.step === step) })).filter((point) => words.known(point.value));
  return points.length > 0 ? [{ name, colour, mean: [], points }] : [];
}
function evaluatedByTask(key) {
  const places = new Map(data.tasks.map((task, i) => [task.name, i]));
  return data.evaluations.tasks.filter((task) => task[key]).flatMap((task, i) => evaluated(task.name || "(none)", taskColour(places.get(task.name) ?? i), task[key]));
}

/// Curves as [key of the data, name, colour, more]; omits curves without values and bytes that are always 0.
const seriesOf = (list) => list.filter(([key]) => data.curves[key] && data.curves[key].mean.some((value) => words.known(value) && (value !== 0 || !key.endsWith("_bytes"))))
  .map(([key, name, colour, more]) => ({ name, colour: `var(${colour})`, ...data.curves[key], ...more }));

/// One curve if all parts of the model have the same learning rate, else one per trained part.
function learningRates() {
  const rates = seriesOf([["learning_rate", "language model", "--language"], ["projector_learning_rate", "projector", "--input"], ["vision_learning_rate", "vision tower", "--vision"], ["mask_learning_rate", "masks", "--masks"]]);
  const alike = rates.every((rate) => rate.mean.every((value, i) => value === rates[0].mean[i] || !words.known(value)));
  return alike ? seriesOf([["learning_rate", "learning rate", "--weights"]]) : rates;
}

function marks() {
  return data.events.shown.filter((event) => kindStyle[event.kind] && event.step >= view.first)
    .map((event) => ({ bin: (event.step - view.first) / view.width, colour: `var(--${kindStyle[event.kind]})` }));
}

function chartOptions() {
  const { curves, summary } = data;
  const { evaluations } = data;
  const validation = evaluations ? evaluated("validation loss", "var(--series-0)", evaluations.loss, { best: true }) : [];
  const charts = [
    { title: "Loss", format: (value, exact) => (exact ? words.loss(value) : words.number(value)), series: [...seriesOf([["loss", validation.length > 0 ? "training loss" : "loss", "--loss"]]), ...validation], smooth: true, logarithmic: true, marks: marks(), height: 230,
      empty: summary.steps > 0 ? "No step has a numeric loss; a virtual GPU computes no values." : "No step has finished yet." },
    { title: "Gradient norm", format: words.number, series: seriesOf([["grad_norm", "norm before clipping", "--language"]]), smooth: true, logarithmic: true, zero: true, height: 230 },
    { title: "Learning rate", format: words.number, series: learningRates(), zero: true },
    { title: "Speed", format: (value) => (words.known(value) ? words.grouped(value) : "–"), series: seriesOf([["tokens_per_second", "tokens per second", "--vision"]]), zero: true, smooth: true },
  ];
  if (summary.reserved_peak_bytes > 0) {
    charts.push({ title: "GPU memory", format: words.bytes, series: seriesOf([
      ["predicted_peak_bytes", "reserved, predicted", "--reserved", { dash: "5 4", min: undefined, max: undefined }], ["reserved_peak_bytes", "reserved, measured", "--reserved"],
      ["predicted_allocated_peak_bytes", "allocated, predicted", "--series-0", { dash: "5 4", min: undefined, max: undefined }], ["allocated_peak_bytes", "allocated, measured", "--series-0"]]) });
    charts.push({ title: "Memory outside tensors", format: words.bytes, zero: true, series: seriesOf([
      ["fragmentation_bytes", "fragmentation", "--workspace"], ["device_free_bytes", "free on the GPU", "--good"], ["host_bytes", "host memory of the process", "--other"]]) });
  } else {
    charts.push({ title: "Host memory", format: words.bytes, zero: true, series: seriesOf([["host_bytes", "resident", "--series-0"], ["host_peak_bytes", "peak so far", "--reserved", { dash: "5 4" }]]) });
  }
  charts.push({ title: "Step time", format: words.seconds, zero: true, smooth: true, series: seriesOf([["step_seconds", "seconds", "--optimizer"]]) });
  charts.push({ title: "Micro-batch sizes", format: words.number, zero: true, whole: true, series: seriesOf([["micro_batch_size", "samples in a micro-batch", "--gradients"], ["micro_batches", "micro-batches per step", "--series-6", { dash: "2 3" }]]) });
  const happened = summary.oom_splits + summary.forecast_splits + summary.skipped_steps > 0;
  if (happened) {
    const whole = (value) => (words.known(value) ? (Number.isInteger(value) ? words.grouped(value) : value.toFixed(1)) : "–");
    charts.push({ title: "Splits and skipped steps", format: whole, zero: true, whole: true, series: seriesOf([
      ["oom_splits", "out-of-memory splits", "--bad", { bars: true }], ["forecast_splits", "forecast splits", "--warn", { bars: true }], ["skipped", "skipped steps", "--input", { bars: true }]]) });
  }
  if (curves.loss_scale) charts.push({ title: "Loss scale (fp16)", format: words.number, logarithmic: true, series: seriesOf([["loss_scale", "scale", "--workspace"]]) });
  const byTask = (list) => list.map((curve, i) => ({ name: data.tasks[i].name || "(none)", colour: taskColour(i), mean: curve.mean })).filter((series) => series.mean.some(words.known));
  if (curves.task_loss.length > 1) charts.push({ title: "Loss by task", format: (value, exact) => (exact ? words.loss(value) : words.number(value)), smooth: true, logarithmic: true, height: 230, series: byTask(curves.task_loss) });
  const parts = seriesOf([["loss_text", "text", "--language"], ["loss_mask_bce", "cross-entropy of masks", "--masks"], ["loss_mask_dice", "Dice loss of masks", "--input"]]);
  if (parts.length > 0) charts.push({ title: "Loss by part", format: (value, exact) => (exact ? words.loss(value) : words.number(value)), smooth: true, logarithmic: true, height: 230, series: parts });
  if (evaluations) {
    const dice = evaluations.dice ? evaluated("all masks", "var(--ink)", evaluations.dice, { best: true }) : [];
    const structures = (evaluations.structures || []).filter((structure) => structure.dice_curve).flatMap((structure, i) => evaluated(structure.name || "(none)", taskColour(i), structure.dice_curve));
    if (dice.length > 0) charts.splice(1, 0, { title: "Dice", format: words.dice, zero: true, height: 230, series: [...dice, ...structures] });
    const match = evaluated("all samples", "var(--ink)", evaluations.exact_match, { best: true });
    const taskMatch = evaluations.tasks.length > 1 ? evaluatedByTask("exact_match") : [];
    if (match.length > 0) charts.splice(1, 0, { title: "Exact match", format: words.percent, zero: true, height: 230, series: [...match, ...taskMatch] });
    if (evaluations.tasks.length > 1) charts.push({ title: "Validation loss by task", format: (value, exact) => (exact ? words.loss(value) : words.number(value)), logarithmic: true, height: 230, series: evaluatedByTask("loss") });
  }
  if (curves.task_weight) charts.push({ title: "Weight by task", format: words.number, zero: true, height: 230, series: byTask(curves.task_weight) });
  const accuracy = byTask(curves.task_accuracy);
  if (accuracy.length > 0) charts.push({ title: "Token accuracy by task", format: words.percent, zero: true, smooth: true, height: 230, series: accuracy });
  return charts;
}

function drawCharts() {
  const { curves } = data;
  const wasWhole = view.whole;
  // A zoomed view stays on its steps, though bins may have become longer.
  const [from, to] = [view.from, view.to].map((bin) => (stepOf(bin) - curves.first + 1) / curves.width - 1);
  Object.assign(view, { first: curves.first, width: curves.width, bins: curves.bins, lastStep: data.summary.step });
  Object.assign(view, wasWhole ? { from: 0, to: Math.max(0, curves.bins - 1) } : { from, to });
  view.cursor = Math.min(view.cursor, view.bins - 1);
  const options = chartOptions();
  const place = document.getElementById("charts");
  while (LineChart.all.length < options.length) {
    const chart = new LineChart();
    LineChart.all.push(chart);
    place.append(chart.panel);
  }
  while (LineChart.all.length > options.length) LineChart.all.pop().panel.remove();
  LineChart.all.forEach((chart, i) => chart.set(options[i]));
}

function controls() {
  const check = (name, key) => {
    const box = html("input", { type: "checkbox" });
    box.checked = view[key];
    box.addEventListener("change", () => { view[key] = box.checked; LineChart.all.forEach((chart) => chart.draw()); });
    return html("label", {}, box, name);
  };
  const whole = html("button", { type: "button", hidden: "" }, "whole run");
  whole.addEventListener("click", lookAtAll);
  view.changed = () => { whole.hidden = view.whole; };
  document.getElementById("controls").replaceChildren(
    html("p", { class: "hint", id: "curve-hint" }), whole, check(" smooth", "smooth"), check(" logarithmic loss and norms", "logarithmic"));
}

const sections = [
  ["epochs", epochsSection, "wide"], ["memory", memorySection, "wide"], ["predictions", predictionsSection, "wide"], ["tasks", tasksSection], ["masks", masksSection], ["metrics", metricsSection], ["events", eventsSection],
  ["ledger", ledgerSection], ["environment", environmentSection], ["config", configSection]].map(([name, make, style]) => {
  const panel = html("section", { class: `panel ${style || ""}`, "data-section": name, hidden: "" });
  return { make, panel, shown: "" };
});

/// Replaces the content only if it differs, so that nothing flickers and open details stay open.
function replace(place, children) {
  const fresh = html(place.tagName, {}, children);
  if (fresh.innerHTML !== place.innerHTML) place.replaceChildren(...fresh.childNodes);
}

function show(text) {
  data = JSON.parse(text);
  replace(document.getElementById("head"), head());
  replace(document.getElementById("tiles"), tiles());
  drawCharts();
  document.getElementById("curve-hint").textContent = (view.width > 1 ? `Each point is the mean of ${words.grouped(view.width)} steps, the band their minimum and maximum. ` : "")
    + "Hover for values, drag to zoom in, double-click for the whole run.";
  for (const section of sections) {
    const made = section.make(data);
    section.panel.hidden = made === null;
    const fresh = html("div", {}, made || []).innerHTML;
    if (fresh !== section.shown) section.panel.replaceChildren(...(made || []).filter((child) => child !== null));
    section.shown = fresh;
  }
  document.title = `${data.name}: ${standing()}${data.summary.total_steps > 0 ? `, step ${words.grouped(data.summary.step)} of ${words.grouped(data.summary.total_steps)}` : ""}`;
}

/// Reads this page's file again in a hidden frame: a page may not read files, but it may show one, which posts its data to
/// the page around it.
function readAgain() {
  const frame = html("iframe", { hidden: "", "aria-hidden": "true" });
  const end = () => {
    window.removeEventListener("message", listen);
    clearTimeout(timer);
    frame.remove();
    watch();
  };
  const listen = (event) => {
    if (event.source !== frame.contentWindow || !event.data || typeof event.data.vlmtrainReport !== "string") return;
    document.body.dataset.reads = Number(document.body.dataset.reads || 0) + 1;
    if (event.data.vlmtrainReport !== text) show((text = event.data.vlmtrainReport)); else replace(document.getElementById("head"), head());
    end();
  };
  const timer = setTimeout(end, 1000 * kReadSeconds);
  window.addEventListener("message", listen);
  frame.src = `${location.href.split(/[?#]/)[0]}?read=${Date.now()}`;
  document.body.append(frame);
}

function watch() {
  if (data.state === "running") setTimeout(readAgain, 1000 * (standing() === "running" ? kReadSeconds : 6 * kReadSeconds));
}

let text = document.getElementById("data").textContent;
if (window.parent !== window && new URLSearchParams(location.search).has("read")) {
  window.parent.postMessage({ vlmtrainReport: text }, "*");
} else {
  controls();
  document.getElementById("details").append(...sections.map((section) => section.panel));
  show(text);
  let redraw = 0;
  let width = document.getElementById("charts").clientWidth;
  new ResizeObserver(([{ contentRect }]) => {
    if (contentRect.width === width) return;
    width = contentRect.width;
    cancelAnimationFrame(redraw);
    redraw = requestAnimationFrame(() => LineChart.all.forEach((chart) => chart.draw()));
  }).observe(document.getElementById("charts"));
  watch();
}
