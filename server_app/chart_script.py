"""The script of report.html that hands each drawing of ``charts.py`` to Chart.js, in the page's colours, and answers to the keyboard.

A string, because Flower's bundles hold no ``.js`` files. Everything a run named reaches it as data and is drawn on a canvas or set as
text, never as HTML. It looks for ``window.picked`` (clients that the table script has chosen) and calls ``window.pick`` when a client
is chosen in a chart.
"""

from __future__ import annotations

CHART_SCRIPT = r"""
"use strict";
(() => {
const root = document.documentElement, charts = [];
const live = document.getElementById("live");
let colours = {};
const tones = "card ink muted rule calm tail worst quiet faint many less part0 part1 part2 part3 part4 part5 part6 part7".split(" ");
const readColours = () => {
  const style = getComputedStyle(root);
  tones.forEach(name => colours[name] = style.getPropertyValue("--" + name).trim());
  Object.assign(Chart.defaults, { color: colours.ink, borderColor: colours.rule, animation: false, responsive: true,
    maintainAspectRatio: false });
  Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
  Chart.defaults.font.size = 12;
};
// `tone` laid over the card, 0 to 1 strong: opaque, so that cells may overlap and leave no seams
const bytes = colour => [1, 3, 5].map(at => parseInt(colour.slice(at, at + 2), 16));
const laid = (tone, strength) => {
  const [over, under] = [bytes(tone), bytes(colours.card)], share = Math.min(1, Math.max(0, strength));
  return `rgb(${over.map((value, i) => Math.round(share * value + (1 - share) * under[i])).join(",")})`;
};
const clear = (tone, strength) => tone + Math.round(255 * strength).toString(16).padStart(2, "0");
const say = (d, value) => value == null ? "–" : value.toFixed(d.digits ?? 1) + (d.unit ? " " + d.unit : "");
const short = text => text.length > 24 ? text.slice(0, 23) + "…" : text;
const chosen = name => window.picked?.has(name);
const axis = (title, more) => ({ title: { display: Boolean(title), text: title }, grid: { color: colours.rule }, ...more });
const common = (d, more) => ({
  onClick: (_, elements, chart) => { if (elements.length) choose(d, chart, elements[0]); },
  interaction: { mode: "index", intersect: false },
  ...more,
  plugins: { legend: { display: false }, ...more.plugins },
});
const choose = (d, chart, at) => {
  const row = d.kind === "cells" ? chart.data.datasets[0].data[at.index].row : at.index;
  const name = d.pick ? chart.data.datasets[at.datasetIndex].label : d.names?.[row];
  if (name != null && !(d.pick && at.datasetIndex === 0)) window.pick?.(name);
};
const shadeOfLine = (d, line) => () => !d.pick || line.mean ? colours[line.tone]
  : chosen(line.name) ? colours.worst : clear(colours.muted, Math.max(0.12, Math.min(0.4, 12 / d.lines.length)));

const kinds = {
  lines: d => ({
    type: "line",
    data: { datasets: [
      ...d.lines.map(line => ({
        label: line.name, data: line.y.map((y, i) => ({ x: d.x[i], y })), parsing: false, normalized: true, spanGaps: true,
        borderColor: shadeOfLine(d, line), backgroundColor: shadeOfLine(d, line), borderDash: line.dash ? [6, 3 * line.dash] : [],
        borderWidth: () => d.pick && !line.mean ? (chosen(line.name) ? 3 : 1) : 2,
        pointRadius: d.x.length > 60 || d.pick ? 0 : 2, pointHoverRadius: 5, order: line.mean ? 0 : 1 })),
      ...(d.marks?.length ? [{ label: d.mark, data: d.marks.map(x => ({ x, y: 0 })), parsing: false, showLine: false, clip: 8, order: 2,
        pointStyle: "triangle", pointRadius: 5, backgroundColor: colours.muted, borderColor: colours.muted }] : []) ] },
    options: common(d, {
      interaction: { mode: d.pick ? "nearest" : "index", axis: d.pick ? "xy" : "x", intersect: false },
      scales: { x: axis(d.x_title, { type: "linear", min: d.x[0], max: d.x[d.x.length - 1],
                  ticks: { ...(d.x.every(Number.isInteger) ? { precision: 0 } : {}), maxRotation: 0 } }),
                y: axis(d.y_title, { beginAtZero: true, max: d.top }) },
      plugins: { legend: { display: !d.pick && d.lines.length > 1, labels: { boxHeight: 2, boxWidth: 18 } },
        tooltip: { callbacks: { title: items => (d.x_title || "") + " " + items[0].parsed.x,
          label: at => at.dataset.label === d.mark ? d.mark : at.dataset.label + ": " + say(d, at.parsed.y) } } } }) }),
  bars: d => {
    const whole = { stacked: Boolean(d.stacked) }, across = d.flat ? "x" : "y", along = d.flat ? "y" : "x";
    const name = axis(d.flat ? "" : d.x_title, { stacked: Boolean(d.stacked), grid: { display: false }, ticks: d.flat
      ? { autoSkip: false, callback: i => short(d.labels[i]) } : { maxRotation: 0, display: !d.names, autoSkipPadding: 12 } });
    return {
      type: "bar",
      data: { labels: d.labels, datasets: [
        ...(d.lines || []).map(line => ({ type: "line", label: line.name, data: line.y, borderColor: colours[line.tone], borderWidth: 1.5,
          backgroundColor: colours[line.tone], borderDash: [5, 3], pointRadius: 0, spanGaps: true, stack: line.name })),
        ...d.bars.map(bar => ({ label: bar.name, data: bar.y, categoryPercentage: 1, barPercentage: 0.82, stack: "bars",
          backgroundColor: at => colours[bar.tones ? bar.tones[at.dataIndex] : bar.tone],
          borderColor: colours.ink, borderWidth: at => d.names && chosen(d.names[at.dataIndex]) ? 2 : 0 })) ] },
      options: common(d, { indexAxis: along,
        interaction: { mode: "index", axis: along, intersect: false },
        scales: { [along]: name, [across]: axis(d.y_title, { ...whole, beginAtZero: true, max: d.top }) },
        plugins: { tooltip: { callbacks: { title: items => (d.names ? "" : (d.x_title || "") + " ") + d.labels[items[0].dataIndex],
          label: at => at.dataset.label + ": " + say(d, at.parsed[across]) } } } }) };
  },
  cells: d => {
    const gaps = d.gaps || [], gap = Math.max(0.2, d.rows.length / 160), place = i => i + gap * gaps.filter(at => at <= i).length;
    const rows = d.rows.length, columns = d.columns.length, right = gaps.length ? place : i => i;
    const data = d.values.flatMap((row, r) => row.map((v, c) => ({ x: right(c), y: place(r), v, row: r, column: c })));
    const shade = v => v == null ? "#0000" : d.tone === "parts" ? colours["part" + v % 8]
      : laid(v < 0 ? colours.less : colours.many, Math.abs(v) / d.most);
    const size = (count, length) => at => at.chart.chartArea ? length(at.chart.chartArea) / count + 0.5 : 0;
    const wide = right(columns - 1) + 1, high = place(rows - 1) + 1;
    const bare = { grid: { display: false }, border: { display: false } };
    const ends = count => ({ type: "linear", offset: false, min: -0.5, max: count - 0.5, ...bare });
    return {
      type: "matrix",
      data: { datasets: [{ label: d.unit || "", data, parsing: false, borderWidth: 0,
        backgroundColor: at => at.raw ? shade(at.raw.v) : "#0000", hoverBorderWidth: 2, hoverBorderColor: colours.ink,
        width: size(wide, side => side.right - side.left), height: size(high, side => side.bottom - side.top) }] },
      options: common(d, { interaction: { mode: "nearest", intersect: true },
        scales: {
          x: { ...axis(d.x_title), ...ends(wide), afterBuildTicks: scale => { scale.ticks = ticks(columns, 20); },
               ticks: { display: !d.bare, maxRotation: 60, callback: v => short(d.columns[v] ?? "") } },
          y: { ...axis(rows > 40 ? rows + " rows" : d.y_title), ...ends(high), reverse: true,
               afterBuildTicks: scale => { scale.ticks = d.rows.map((_, r) => ({ value: place(r) })); },
               ticks: { autoSkip: false, display: rows <= 40, callback: (_, i) => short(d.rows[i] || "") } } },
        plugins: { tooltip: { callbacks: { title: items => d.rows[items[0].raw.row],
          label: at => [d.columns[at.raw.column], d.tone === "parts" ? "cluster " + (at.raw.v ?? "–")
            : d.tone === "counts" && d.unit !== "%" ? at.raw.v + " " + d.unit : say(d, at.raw.v)] } } } }) };
  },
};
const ticks = (count, most) => {
  const every = Math.ceil(count / most);
  return Array.from({ length: Math.ceil(count / every) }, (_, i) => ({ value: i * every }));
};
const heightOf = d => {
  if (d.kind === "bars" && d.flat) return 19 * d.labels.length + 70;
  if (d.kind !== "cells") return d.names || d.pick ? 380 : 270;
  return d.bare ? 380 : Math.max(150, (d.rows.length <= 40 ? 17 * d.rows.length : 400) + 80);
};

const walk = (d, chart, key) => {
  const sets = chart.data.datasets, step = { ArrowRight: 1, ArrowLeft: -1 }[key], turn = { ArrowDown: 1, ArrowUp: -1 }[key];
  const at = chart.at ??= { set: 0, index: -1 };
  if (d.kind === "cells" || d.kind === "bars" && d.flat) at.index += (step || 0) + (turn || 0) * (d.columns?.length || 1);
  else { at.index += step || 0; at.set = (at.set + (turn || 0) + sets.length) % sets.length; }
  at.index = Math.max(0, Math.min(at.index, sets[at.set].data.length - 1));
  const all = d.pick || d.kind === "cells" ? [at.set] : [...sets.keys()].filter(i => sets[i].label !== d.mark);
  const there = i => sets[i].data[at.index] != null && sets[i].data[at.index].y !== null;
  const active = all.filter(there).map(datasetIndex => ({ datasetIndex, index: at.index }));
  const spot = chart.getDatasetMeta(at.set).data[at.index];
  chart.setActiveElements(active);
  chart.tooltip.setActiveElements(active, spot ? { x: spot.x, y: spot.y } : { x: 0, y: 0 });
  chart.update("none");
  live.textContent = [...(chart.tooltip.title || []), ...(chart.tooltip.body || []).flatMap(part => part.lines)].join(", ");
  return active;
};
const keys = (d, canvas) => event => {
  const chart = Chart.getChart(canvas);
  if (event.key.startsWith("Arrow")) { walk(d, chart, event.key); event.preventDefault(); }
  else if (event.key === "Enter" && chart.at) choose(d, chart, { datasetIndex: chart.at.set, index: chart.at.index });
  else if (event.key === "Escape") {
    chart.at = null;
    chart.setActiveElements([]);
    chart.tooltip.setActiveElements([], {});
    chart.update("none");
  }
};

const draw = () => {
  readColours();
  for (const { canvas, d } of charts) {
    Chart.getChart(canvas)?.destroy();
    new Chart(canvas, kinds[d.kind](d));
  }
};
root.classList.add("scripted");
for (const box of document.querySelectorAll(".chart")) {
  const canvas = box.querySelector("canvas"), d = JSON.parse(box.querySelector("script").textContent);
  box.style.height = heightOf(d) + "px";
  canvas.addEventListener("keydown", keys(d, canvas));
  charts.push({ canvas, d });
}
draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
// before a page is printed its style is still the screen's, so a class brings the colours of paper
addEventListener("beforeprint", () => { root.classList.add("paper"); draw(); });
addEventListener("afterprint", () => { root.classList.remove("paper"); draw(); });
addEventListener("picked", () => charts.forEach(({ canvas, d }) => { if (d.pick || d.names) Chart.getChart(canvas).update("none"); }));
})();
"""
