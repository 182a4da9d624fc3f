// Elements and number formats shared by the parts of the page. External texts become text nodes, never markup.

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== undefined && value !== null) element.setAttribute(name, value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== undefined && child !== null) element.append(child);
  }
  return element;
}
const html = (tag, attributes, ...children) => filled(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) =>
  filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
const swatch = (colour, style) => html("span", { class: `swatch ${style || ""}`, style: `--colour:${colour}` });

const words = {
  known: (value) => typeof value === "number" && Number.isFinite(value),
  grouped: (value) => Math.round(value).toLocaleString("en-US"),
  number: (value) => {
    if (!words.known(value)) return "–";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2);
    if (size >= 1000) return words.grouped(value);
    return value.toLocaleString("en-US", { maximumSignificantDigits: 4, useGrouping: false });
  },
  count: (value) => {
    for (const [size, name] of [[1e12, "trillion"], [1e9, "billion"], [1e6, "million"]]) {
      if (value >= size) return `${(value / size).toPrecision(3)} ${name}`;
    }
    return words.known(value) ? words.grouped(value) : "–";
  },
  loss: (value) => (words.known(value) ? (Math.abs(value) >= 1e-3 || value === 0 ? value.toFixed(4) : value.toExponential(2)) : "–"),
  difference: (ratio) => `${ratio > 1 ? "+" : ratio < 1 ? "−" : ""}${(100 * Math.abs(ratio - 1)).toFixed(1)} %`,
  dice: (value) => (words.known(value) ? value.toFixed(3) : "–"),
  percent: (share) => (words.known(share) ? `${(100 * share).toFixed(share > 0 && share < 0.0995 ? 1 : 0)} %` : "–"),
  // GB of 10⁹ bytes, as in the texts of the planner.
  bytes: (value) => {
    if (!words.known(value)) return "–";
    if (value === 0) return "0";
    if (Math.abs(value) < 1e5) return `${words.number(value / 1e3)} kB`;
    if (Math.abs(value) < 1e8) return `${(value / 1e6).toFixed(Math.abs(value) < 1e7 ? 1 : 0)} MB`;
    return `${(value / 1e9).toFixed(Math.abs(value) < 1e10 ? 2 : 1)} GB`;
  },
  seconds: (value) => {
    if (!words.known(value)) return "–";
    if (value === 0) return "0 s";
    if (value < 1) return `${words.number(1000 * value)} ms`;
    if (value < 60) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
    const minutes = Math.round(value / 60);
    if (minutes < 60) return `${minutes} min`;
    if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
    return `${(minutes / 1440).toFixed(1)} days`;
  },
  /// `images` is the number of all media, `volumes` the number of volumes among them.
  media: ({ images, volumes }) => (volumes > 0 && volumes === images ? words.counted(volumes, "volume")
    : `${words.counted(images, "image")}${volumes > 0 ? `, ${words.counted(volumes, "volume")} among them` : ""}`),
  counted: (number, noun) => `${words.grouped(number)} ${noun}${number === 1 ? "" : "s"}`,
  clock: (seconds) => (words.known(seconds) && seconds > 0
    ? new Date(1000 * seconds).toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" }) : "–"),
};
