// Curves as SVG: axes, lines, and the values at the pointer.

/** The height and margins of a chart, in pixels. */
const SIZE = { height: 420, left: 64, right: 24, top: 12, bottom: 40 };
/** The width of a drawing in pixels: the width of its container, so that its text is not scaled. */
export const widthOf = (container) => Math.min(Math.max(container.clientWidth, 280), 1200) || 800;
/** Number of series colours in the style sheet. */
const COLOURS = 6;
/** Maximum number of points of a curve that are drawn as dots. */
const MAX_DOTS = 24;

/** Calls `redraw` when the width of the container changes. */
export function whenWidthChanges(container, redraw) {
  let width = 0;
  new ResizeObserver(() => {
    const newWidth = container.clientWidth;
    if (newWidth === width || newWidth === 0) return;
    width = newWidth;
    requestAnimationFrame(redraw);
  }).observe(container);
}

/** The CSS class of a series: six colours, then the same colours dashed. */
export const seriesClass = (index) =>
  `series-${index % COLOURS}${index % (2 * COLOURS) >= COLOURS ? " dashed" : ""}`;

/** Formats a number in few characters. */
export function formatNumber(number) {
  if (number === null || !Number.isFinite(number)) return "–";
  const magnitude = Math.abs(number);
  if (magnitude !== 0 && (magnitude < 1e-3 || magnitude >= 1e6)) return number.toExponential(2);
  return String(Number(number.toPrecision(4)));
}

/** Creates an SVG element. */
function element(name, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

/** Round tick values from `low` to `high`: about `target` of them. */
function ticks(low, high, target) {
  const minStep = (high - low) / target;
  const power = 10 ** Math.floor(Math.log10(minStep));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= minStep);
  const first = Math.ceil(low / step);
  const count = Math.floor(high / step + 1e-9) - first + 1;
  return Array.from({ length: Math.min(Math.max(count, 0), 2 * target + 2) }, (_, i) => (first + i) * step);
}

/** The lowest and highest value; widened if all values are equal. */
function range(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  // Differences within rounding count as equal.
  if (high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high))) {
    const margin = Math.max(0.5, 0.1 * Math.abs(low));
    return [low - margin, high + margin];
  }
  return [low, high];
}

/**
 * Draws series `{name, index, points: [[step, value], …]}` into `container`, and marks where `phases` `[name, step]` begin.
 * Calls `showValues` with a text of the values at the pointer, or with an empty string when the pointer leaves.
 */
export function draw(container, series, title, logarithmic, phases, showValues) {
  const { height, left, right, top, bottom } = SIZE;
  const width = widthOf(container);
  const scaled = (value) => (logarithmic ? Math.log10(value) : value);
  const visible = series
    .map((curve) => ({ ...curve, points: curve.points.filter(([, value]) => !logarithmic || value > 0) }))
    .filter((curve) => curve.points.length > 0);
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  container.replaceChildren(svg);
  if (visible.length === 0) {
    svg.append(element("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "No data yet"));
    return;
  }
  const allPoints = visible.flatMap((curve) => curve.points);
  const [first, last] = range(allPoints.map(([step]) => step));
  const [low, high] = range(allPoints.map(([, value]) => scaled(value)));
  const x = (step) => left + ((step - first) / (last - first)) * (width - left - right);
  const y = (value) => height - bottom - ((scaled(value) - low) / (high - low)) * (height - top - bottom);

  for (const tick of ticks(low, high, 6)) {
    const value = logarithmic ? 10 ** tick : tick;
    svg.append(element("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
    svg.append(element("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, formatNumber(value)));
  }
  for (const tick of ticks(first, last, Math.min(7, Math.floor(width / 90)))) {
    svg.append(element("text", { x: x(tick), y: height - bottom + 18, "text-anchor": "middle" }, formatNumber(tick)));
  }
  svg.append(element("text", { x: (left + width) / 2, y: height - 4, "text-anchor": "middle" }, "step"));
  for (const [name, step] of phases.filter(([, step]) => step >= first && step <= last)) {
    const isRight = x(step) > width - 120;
    svg.append(element("line", { class: "phase", x1: x(step), x2: x(step), y1: top, y2: height - bottom }));
    svg.append(element("text", { class: "phase-name", x: x(step) + (isRight ? -4 : 4), y: top + 10, "text-anchor": isRight ? "end" : "start" }, name));
  }
  for (const { name, index, points } of visible) {
    const path = points.map(([step, value], i) => `${i ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`);
    const line = element("path", { class: `curve ${seriesClass(index)}`, d: path.join("") });
    line.append(element("title", {}, name));
    svg.append(line);
    // A curve with a single point has no line.
    for (const [step, value] of points.length <= MAX_DOTS ? points : []) {
      svg.append(element("circle", { class: `dot ${seriesClass(index)}`, cx: x(step).toFixed(1), cy: y(value).toFixed(1), r: 4 }));
    }
  }

  const cursor = element("line", { class: "cursor", y1: top, y2: height - bottom, visibility: "hidden" });
  svg.append(cursor);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const pointerX = ((event.clientX - box.left) / box.width) * width;
    const step = first + ((pointerX - left) / (width - left - right)) * (last - first);
    const nearest = (points) => points.reduce((a, b) => (Math.abs(b[0] - step) < Math.abs(a[0] - step) ? b : a));
    const values = visible.map((curve) => ({ name: curve.name, point: nearest(curve.points) }));
    cursor.setAttribute("x1", x(values[0].point[0]));
    cursor.setAttribute("x2", x(values[0].point[0]));
    cursor.setAttribute("visibility", "visible");
    showValues(values.map(({ name, point }) => `${name}: ${formatNumber(point[1])} at step ${point[0]}`).join("; "));
  });
  svg.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    showValues("");
  });
}
