// The sections below the curves. Each function returns the content of a section, or null without data.

function table(head, rows, style) {
  return html("div", { class: "scroll" }, html("table", { class: style },
    html("thead", {}, html("tr", {}, head.map((name) => html("th", {}, name)))),
    html("tbody", {}, rows.map(({ cells, style }) => html("tr", { class: style }, cells.map((cell) => html("td", {}, cell)))))));
}
const facts = (pairs) => html("dl", {}, pairs.filter(([, text]) => text !== "" && text !== undefined && text !== null)
  .map(([name, text]) => [html("dt", {}, name), html("dd", {}, text)]));

/// One bar of parts: [{name, value, colour, hint}], of `total`.
const stackedBar = (parts, total, text) => html("div", { class: "bar", role: "img", "aria-label": text },
  parts.filter((part) => part.value > 0).map((part) =>
    html("span", { style: `width:${(100 * part.value / total).toFixed(3)}%;background:${part.colour}`, title: `${part.name}: ${part.text}` })));

function memorySection(data) {
  const plan = data.plan;
  if (!plan || !plan.memory || plan.device === "cpu") return null;
  const memory = plan.memory;
  const names = [
    ["weights", "weights_bytes", "--weights"], ["optimizer", "optimizer_bytes", "--optimizer"], ["gradients", "gradients_bytes", "--gradients"],
    ["vision tower's activations", "vision_activations_bytes", "--vision"], ["language model's activations", "language_activations_bytes", "--language"],
    ["activations of masks", "mask_activations_bytes", "--masks"], ["loss", "loss_bytes", "--loss"], ["input and other", "input_bytes", "--input"], ["workspace", "workspace_bytes", "--workspace"],
    ["fragmentation", "fragmentation_bytes", "--fragmentation"], ["CUDA context", "context_bytes", "--other"], ["communication", "communication_bytes", "--communication"]];
  const parts = names.map(([name, key, colour]) => ({ name, value: memory[key] || 0, text: words.bytes(memory[key] || 0), colour: `var(${colour})` }));
  const planned = memory.total_bytes;
  const gpuBytes = Math.max(plan.gpu_bytes || 0, planned);
  const free = Math.max(0, gpuBytes - planned - (plan.margin_bytes || 0));
  const summary = data.summary;
  const beside = (memory.context_bytes || 0) + (memory.communication_bytes || 0);
  const comparison = (name, plannedBytes, measuredBytes) => ({ cells: [name, words.bytes(plannedBytes), words.bytes(measuredBytes || undefined),
    plannedBytes && measuredBytes ? words.difference(measuredBytes / plannedBytes) : "–"] });
  const bars = html("div", { class: "bars" },
    html("span", {}, "planned"),
    stackedBar([...parts, { name: "free", value: free, text: words.bytes(free), colour: "transparent" },
      { name: "margin", value: plan.margin_bytes || 0, text: words.bytes(plan.margin_bytes), colour: "var(--hatched)" }], gpuBytes, "planned memory by component"),
    html("span", {}, "measured"),
    stackedBar([{ name: "allocated (peak)", value: summary.allocated_peak_bytes, text: words.bytes(summary.allocated_peak_bytes), colour: "var(--measured)" },
      { name: "reserved, not allocated", value: summary.reserved_peak_bytes - summary.allocated_peak_bytes, text: words.bytes(summary.reserved_peak_bytes - summary.allocated_peak_bytes), colour: "var(--fragmentation)" },
      { name: "CUDA context, as planned", value: beside, text: words.bytes(beside), colour: "var(--other)" }], gpuBytes, "measured memory"));
  return [
    html("h2", {}, "Memory by component"), bars,
    html("div", { class: "halves" },
      table(["component", "planned", "share"], [...parts.filter((part) => part.value > 0).map((part) => ({ cells: [[swatch(part.colour), part.name], part.text, words.percent(part.value / planned)] })),
        { cells: ["in use", words.bytes(planned), "100 %"], style: "total" },
        { cells: ["margin", words.bytes(plan.margin_bytes), ""] }, { cells: [plan.gpu || "GPU", words.bytes(plan.gpu_bytes), ""], style: "total" }]),
      table(["peak", "planned", "measured", "difference"], [
        comparison("allocated", memory.allocated_peak_bytes, summary.allocated_peak_bytes),
        comparison("reserved", memory.reserved_peak_bytes, summary.reserved_peak_bytes),
        { cells: ["GPU memory in use", words.bytes(planned), words.bytes(plan.measured && plan.measured.device_used_bytes), ""] }])),
    html("p", { class: "hint" }, "Planned for the worst batch of the data set, at its peak. Other batches need less."),
  ];
}

function tasksSection(data) {
  if (data.tasks.length === 0) return null;
  const all = data.tasks.reduce((sum, task) => sum + task.label_tokens, 0);
  const evaluated = new Map((data.evaluations ? data.evaluations.tasks : []).map((task) => [task.name, task]));
  const validation = (task) => evaluated.get(task.name) || {};
  return [html("h2", {}, "Tasks"),
    table(["task", "samples", "label tokens", "share", "weight", "loss now", "token accuracy now", ...(evaluated.size > 0 ? ["validation loss", "exact match"] : [])], data.tasks.map((task, i) => ({ cells: [
      [swatch(i < data.curves.task_loss.length ? taskColour(i) : "transparent", "line"), task.name || "(none)"], words.grouped(task.samples), words.grouped(task.label_tokens),
      words.percent(task.label_tokens / all), words.number(task.weight), words.loss(task.loss), words.percent(task.accuracy),
      ...(evaluated.size > 0 ? [words.loss(validation(task).newest_loss), words.percent(validation(task).newest_exact_match)] : [])] }))),
    html("p", { class: "hint" }, "Loss and accuracy are means over the last steps that had the task. ",
      data.tasks.length > data.curves.task_loss.length ? `Curves are drawn for the ${data.curves.task_loss.length} tasks with the most label tokens.` : "")];
}

/// The newest evaluation's masks by structure.
function masksSection(data) {
  const { masks, newest, structures } = data.evaluations || {};
  if (!masks || !(masks.masks > 0)) return null;
  const cells = (name, score) => [name, words.grouped(score.masks), words.dice(score.dice), words.dice(score.iou), words.known(score.hausdorff95) ? score.hausdorff95.toFixed(2) : "–", words.grouped(score.empty_truths || 0), words.grouped(score.empty_predictions || 0)];
  const curves = structures.filter((structure) => structure.dice_curve).length;
  return [html("h2", {}, "Masks"),
    html("div", { class: "tall" }, table(["structure", "masks", "Dice", "IoU", "Hausdorff-95, pixels", "empty in the data", "predicted empty"], [
      ...structures.filter((structure) => structure.masks > 0).map((structure) =>
        ({ cells: cells([swatch(structure.dice_curve ? taskColour(structures.indexOf(structure)) : "transparent", "line"), structure.name], structure) })),
      { cells: cells("all", masks), style: "total" }])),
    html("p", { class: "hint" }, `From the evaluation after step ${words.grouped(newest.step)}; means over the masks. The distance excludes masks that are empty on either side. If both sides are empty, Dice and IoU are 1.`,
      structures.length > curves ? ` Curves are drawn for the ${curves} structures with the most masks.` : "")];
}

/// The newest evaluation's metrics of answers by task.
function metricsSection(data) {
  const { metrics, newest } = data.evaluations || {};
  if (!metrics) return null;
  const names = [...new Set(metrics.flatMap((row) => Object.keys(row.values)))];
  if (names.length === 0) return null;
  const cells = (row) => names.map((name) => (words.known(row.values[name]) ? row.values[name].toFixed(4) : "–"));
  return [html("h2", {}, "Metrics of answers"),
    html("div", { class: "tall" }, table(["task", ...names], metrics.map((row) => (
      row.name ? { cells: [row.name, ...cells(row)] } : { cells: ["all", ...cells(row)], style: "total" })))),
    html("p", { class: "hint" }, `From the evaluation after step ${words.grouped(newest.step)}, by eval.metrics.`)];
}

function epochsSection(data) {
  const { rows, hidden } = data.epochs;
  if (rows.length === 0) return null;
  const evaluated = rows.some((row) => row.evaluation);
  const onGpu = data.summary.reserved_peak_bytes > 0;
  const best = Math.min(...rows.map((row) => (row.evaluation && words.known(row.evaluation.loss) ? row.evaluation.loss : Infinity)));
  const validation = (row) => (!row.evaluation ? ["–", "–"]
    : [html("span", { class: row.evaluation.loss === best ? "best" : "" }, words.loss(row.evaluation.loss)), words.percent(row.evaluation.exact_match)]);
  const memory = (row) => (onGpu ? [words.bytes(row.reserved_peak_bytes), words.bytes(row.reserved_mean_bytes)] : [words.bytes(row.host_peak_bytes), words.bytes(row.host_mean_bytes)]);
  return [html("h2", {}, "Epochs"),
    html("div", { class: "tall" }, table(["epoch", "steps", "loss", ...(evaluated ? ["validation loss", "exact match"] : []), "samples", "samples/s", "tokens/s",
      onGpu ? "reserved, peak" : "memory, peak", "mean", "splits", "skipped", "time"], rows.map((row) => ({ cells: [
      row.complete ? words.grouped(row.epoch) : `${words.grouped(row.epoch)}, incomplete`, `${words.grouped(row.first_step)} – ${words.grouped(row.last_step)}`, words.loss(row.loss), ...(evaluated ? validation(row) : []),
      words.grouped(row.samples), words.known(row.samples_per_second) ? row.samples_per_second.toFixed(1) : "–", words.known(row.tokens_per_second) ? words.grouped(row.tokens_per_second) : "–", ...memory(row),
      words.grouped(row.oom_splits + row.forecast_splits), words.grouped(row.skipped_steps), words.seconds(row.seconds)] })))),
    html("p", { class: "hint" }, evaluated ? "Evaluated after the epoch's last step; the lowest validation loss is green. " : "",
      "Time covers steps only, without checkpoints and evaluations.", hidden > 0 ? ` ${words.counted(hidden, "earlier epoch")} are in epochs.jsonl only.` : "")];
}

function ledgerSection(data) {
  const ledger = data.ledger;
  if (!ledger || !words.known(ledger.samples)) return null;
  const parts = [["used", ledger.used, "--good"], ["dropped", ledger.dropped, "--warn"], ["failed", ledger.failed, "--bad"], ["not reached yet", ledger.not_reached, "--rule"]]
    .map(([name, value, colour]) => ({ name, value: value || 0, text: words.grouped(value || 0), colour: `var(${colour})` }));
  const reasons = Object.entries(ledger.reasons || {});
  const problems = Array.isArray(ledger.problems) ? ledger.problems : [];
  return [html("h2", {}, "Data ledger"),
    html("p", { class: "hint first" }, `${ledger.dataset || "the data set"}: each of its ${words.grouped(ledger.samples)} samples is counted once; written with each checkpoint.`),
    stackedBar(parts, Math.max(1, ledger.samples), "samples by status"),
    html("div", { class: "legend" }, parts.map((part) => html("span", {}, swatch(part.colour), part.name, " ", html("b", {}, part.text)))),
    reasons.length > 0 ? table(["reason", "samples"], reasons.map(([reason, count]) => ({ cells: [reason, words.grouped(count)] }))) : null,
    problems.length > 0 ? html("details", {}, html("summary", {}, `${words.counted(problems.length + (ledger.more_problems || 0), "sample")} with a problem`),
      table(["sample", "status", "message"], problems.map((problem) => ({ cells: [String(problem.id ?? problem.index), String(problem.status ?? ""), String(problem.message ?? "")] })), "prose"),
      ledger.more_problems > 0 ? html("p", { class: "hint" }, `${words.grouped(ledger.more_problems)} more are in ledger.json.`) : null) : null];
}

/// Normalizes an answer like the exact-match score: lower case, without outer spaces and a final period.
const plain = (text) => text.trim().toLowerCase().replace(/[.\s]+$/, "");

function predictionsSection(data) {
  const { samples, hidden } = data.predictions;
  if (samples.length === 0) return null;
  const last = Math.max(...samples.map((sample) => sample.answers[sample.answers.length - 1].step));
  const overlays = ({ masks }) => (!masks ? null : html("div", { class: "overlays" }, masks.map((mask) => html("figure", {},
    html("img", { src: mask.overlay, alt: "" }), html("figcaption", {}, [mask.structure, `Dice ${words.dice(mask.dice)}`].filter(Boolean).join(", "))))));
  const boxOverlay = ({ boxes }) => (!boxes ? null : html("div", { class: "overlays" }, html("figure", {},
    html("img", { src: boxes.overlay, alt: "" }), html("figcaption", {}, `IoU ${words.dice(boxes.iou)}`))));
  const withMasks = samples.some((sample) => sample.answers.some((answer) => answer.masks));
  const withBoxes = samples.some((sample) => sample.answers.some((answer) => answer.boxes));
  const picture = (captions) => (uri, place) => {
    const image = html("img", { src: uri, alt: "" });
    return captions && captions[place] ? html("figure", {}, image, html("figcaption", {}, captions[place])) : image;
  };
  const sampleBox = (sample) => html("article", {},
    sample.images.length > 0 ? html("div", { class: "pictures" }, sample.images.map(picture(sample.captions))) : null,
    html("p", { class: "question" }, sample.question),
    html("table", {}, html("tbody", {},
      html("tr", { class: "expected" }, html("td", {}, "expected"), html("td", {}, sample.expected)),
      sample.answers.map((answer) => html("tr", { class: plain(answer.answer) === plain(sample.expected) ? "right" : "other" },
        html("td", {}, answer.step === 0 ? "before" : `step ${words.grouped(answer.step)}`), html("td", {}, answer.answer === "" ? html("i", {}, "empty") : answer.answer, overlays(answer), boxOverlay(answer)))))),
    html("p", { class: "hint" }, [sample.task, sample.id].filter((part) => part !== "").join(" · ")));
  return [html("h2", {}, "Predictions"),
    html("p", { class: "hint first" }, `Answers of the model, the latest after step ${words.grouped(last)}. Green: matches the expected answer.`,
      withMasks ? " Masks are drawn for the expected answer: orange is the model's, the green outline the true one." : "",
      withBoxes ? " Boxes: orange are the model's, green the expected ones." : "",
      hidden > 0 ? ` ${words.counted(hidden, "earlier sample")} are in predictions.jsonl only.` : ""),
    html("div", { class: "answers" }, samples.map(sampleBox))];
}

const kindWords = { oom_split: "out-of-memory split", foreseen_split: "forecast split", anomaly: "anomaly", skipped_step: "skipped step", memory_growth: "memory growth", memory_full: "memory full", fewer_answers: "fewer answers",
  cache_emptied: "cache emptied", twin: "look-ahead", resumed: "resumed", changed: "changed", checkpoint: "checkpoint", stopped: "stopped", failed: "failed" };
const kindStyle = { oom_split: "bad", anomaly: "bad", failed: "bad", skipped_step: "warn", memory_growth: "warn", memory_full: "warn", cache_emptied: "warn", stopped: "warn", foreseen_split: "warn", changed: "info" };

function eventsSection(data) {
  const { counts, shown } = data.events;
  if (shown.length === 0) return null;
  const total = Object.values(counts).reduce((sum, count) => sum + count, 0);
  return [html("h2", {}, "Events"),
    html("div", { class: "legend" }, Object.entries(counts).map(([kind, count]) => html("span", {}, html("i", { class: `tag ${kindStyle[kind] || ""}` }, kindWords[kind] || kind), " ", html("b", {}, words.grouped(count))))),
    html("div", { class: "tall" }, table(["event", "step", "time", "message"], shown.map((event) => ({ cells: [
      html("i", { class: `tag ${kindStyle[event.kind] || ""}` }, kindWords[event.kind] || event.kind), words.grouped(event.step), words.clock(event.time),
      [event.message, event.ids.length > 0 ? html("span", { class: "ids" }, ` ${event.ids.join(", ")}${event.more_ids > 0 ? ` and ${event.more_ids} more` : ""}`) : null]] })), "prose")),
    total > shown.length ? html("p", { class: "hint" }, `The newest of each kind; events.jsonl has all ${words.grouped(total)}.`) : null];
}

function environmentSection(data) {
  const place = data.environment;
  if (!place) return null;
  const gpu = place.gpu;
  return [html("h2", {}, "Environment"), facts([
    ["host", place.host], ["GPU", gpu ? `${gpu.name}, ${words.bytes(gpu.total_bytes)}${gpu.driver ? `, driver ${gpu.driver}` : ""}` : "none used"],
    ["CPU", [place.cpu, place.cpu_cores ? words.counted(place.cpu_cores, "core") : ""].filter(Boolean).join(", ")],
    ["memory", [words.bytes(place.memory_bytes), place.memory_limit_bytes ? `limited to ${words.bytes(place.memory_limit_bytes)}` : ""].filter(Boolean).join(", ")],
    ["system", place.kernel], ["LibTorch", place.libtorch], ["vlmtrain", [place.vlmtrain, place.commit].filter(Boolean).join(", commit ")],
    ["SLURM job", place.slurm_job_id], ["started", words.clock(place.start_time)],
    ["command", Array.isArray(place.command) ? html("code", {}, place.command.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${String(word).replaceAll("'", "'\\''")}'`)).join(" ")) : ""]])];
}

/// Parses config.yaml as the program writes it: sections with lines "key: value".
function configSection(data) {
  if (!data.config) return null;
  return [html("h2", {}, "Configuration"), html("details", { open: "" }, html("summary", {}, "config.yaml, resolved"), html("pre", {}, data.config))];
}

function configValue(config, section, key) {
  let inside = false;
  for (const line of (config || "").split("\n")) {
    if (/^\S/.test(line)) inside = line.startsWith(`${section}:`);
    const found = inside && line.match(/^ {2}(\w+): (.*)$/);
    if (found && found[1] === key) return found[2].replace(/^"(.*)"$/, "$1");
  }
  return "";
}
