"use strict";
const told = JSON.parse(document.getElementById("told").textContent);
const { facts, link, known, looks, words } = told;
const by = (id) => document.getElementById(id);
const NS = "http://www.w3.org/2000/svg";
const LOW = 0, HIGH = 5; // powers of ten of Mbit/s
const hidden = new Set();

const three = (x) => x >= 1000 ? Math.round(x).toLocaleString("en") : String(Number(x.toPrecision(3)));
const bytes = (n) => {
  const unit = ["B", "kB", "MB", "GB", "TB"];
  let i = 0;
  while (n >= 1000 && i < 4) { n /= 1000; i += 1; }
  return `${three(n)} ${unit[i]}`;
};
const rate = (m) => m >= 1000 ? `${three(m / 1000)} Gbit/s` : `${three(m)} Mbit/s`;
const time = (s) => s >= 1 ? `${three(s)} s` : `${three(1e3 * s)} ms`;

const workerCounts = (() => {
  const out = new Set([link.workers]);
  for (let n = 2; n <= 1024; n *= 2) for (const x of [n, n * 1.5]) if (x % link.node_size === 0 && x > link.node_size) out.add(x);
  return [...out].filter((x) => x > 1).sort((a, b) => a - b);
})();

function setting() {
  const bandwidth = 10 ** Number(by("bandwidth").value), workers = workerCounts[Number(by("workers").value)];
  return { ...link, bandwidth, workers };
}

function element(name, attributes, text) {
  const out = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) out.setAttribute(key, value);
  if (text !== undefined) out.textContent = text;
  return out;
}

function advice(rows) {
  const named = Object.fromEntries(rows.map((row) => [row.name, row]));
  const best = rows.find((row) => row.name in known), plain = named.ddp, half = named["ddp-fp16"];
  if (plain.seconds <= 1.1 * best.seconds) return "Don\u2019t: plain DDP is within 10% of the best.";
  if (half && half.seconds <= 1.1 * best.seconds) return "PyTorch\u2019s fp16 hook is enough: it is within 10% of the best. " + known[half.name];
  return `${best.name}: ${three(plain.seconds / best.seconds)} times faster than plain DDP`
    + (half ? `, ${three(half.seconds / best.seconds)} times faster than its fp16 hook.` : ".") + ` ${known[best.name]}`;
}

function drawTable(rows) {
  const plain = rows.find((row) => row.name === "ddp").seconds;
  const half = rows.find((row) => row.name === "ddp-fp16")?.seconds;
  const body = by("rows");
  body.replaceChildren();
  for (const row of rows) {
    const line = document.createElement("tr"), name = document.createElement("th");
    name.scope = "row";
    const swatch = document.createElement("button");
    swatch.type = "button";
    swatch.className = "swatch";
    swatch.style.setProperty("--own", looks[row.name]);
    swatch.setAttribute("aria-pressed", String(!hidden.has(row.name)));
    swatch.title = "show or hide its line";
    swatch.textContent = row.name;
    swatch.onclick = () => { hidden.has(row.name) ? hidden.delete(row.name) : hidden.add(row.name); draw(); };
    name.append(swatch);
    if (row.every > 1) {
      const remark = document.createElement("small");
      remark.textContent = ` one exchange in ${row.every} steps`;
      name.append(remark);
    }
    line.append(name);
    const cells = [time(row.seconds), `${Math.round(100 * row.communicating)}%`, `${three(plain / row.seconds)}\u00d7`,
      half ? `${three(half / row.seconds)}\u00d7` : "\u2013", bytes(row.link_bytes)];
    for (const text of cells) {
      const cell = document.createElement("td");
      cell.textContent = text;
      line.append(cell);
    }
    body.append(line);
  }
}

function drawChart(now) {
  const chart = by("chart"), width = chart.clientWidth || 800, height = 380;
  const left = 64, right = 16, top = 14, bottom = 44, points = 81;
  chart.replaceChildren();
  chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const rates = Array.from({ length: points }, (_, i) => 10 ** (LOW + (HIGH - LOW) * i / (points - 1)));
  const lines = facts.methods.map((method) => ({
    name: method.name,
    seconds: rates.map((bandwidth) => Planner.predict(facts, method, { ...now, bandwidth }).seconds),
  }));
  const all = lines.filter((l) => !hidden.has(l.name)).flatMap((l) => l.seconds);
  const low = Math.floor(Math.log10(Math.min(...all)) * 2) / 2, high = Math.ceil(Math.log10(Math.max(...all)));
  const x = (m) => left + (Math.log10(m) - LOW) / (HIGH - LOW) * (width - left - right);
  const y = (s) => top + (high - Math.log10(s)) / (high - low) * (height - top - bottom);
  for (let power = LOW; power <= HIGH; power += 1) {
    chart.append(element("line", { x1: x(10 ** power), x2: x(10 ** power), y1: top, y2: height - bottom, class: "grid" }));
    // Names would run into each other on a narrow screen.
    if (width < 560 && power % 2) continue;
    const anchor = power === HIGH ? "end" : "middle";
    chart.append(element("text", { x: x(10 ** power), y: height - bottom + 18, "text-anchor": anchor }, rate(10 ** power)));
  }
  for (let power = Math.ceil(low); power <= high; power += 1) {
    chart.append(element("line", { x1: left, x2: width - right, y1: y(10 ** power), y2: y(10 ** power), class: "grid" }));
    chart.append(element("text", { x: left - 8, y: y(10 ** power) + 4, "text-anchor": "end" }, time(10 ** power)));
  }
  chart.append(element("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, "bandwidth of a node"));
  // Plain DDP last: dense lies on it.
  for (const one of [...lines.filter((l) => l.name !== "ddp"), ...lines.filter((l) => l.name === "ddp")]) {
    if (hidden.has(one.name)) continue;
    const path = one.seconds.map((s, i) => `${i ? "L" : "M"}${x(rates[i]).toFixed(1)} ${y(s).toFixed(1)}`).join("");
    const drawn = element("path", { d: path, class: one.name === "ddp" ? "curve plain" : "curve" });
    drawn.style.setProperty("--own", looks[one.name]);
    drawn.append(element("title", {}, one.name));
    chart.append(drawn);
  }
  chart.append(element("line", { x1: x(now.bandwidth), x2: x(now.bandwidth), y1: top, y2: height - bottom, class: "now" }));
}

function draw() {
  const now = setting(), rows = Planner.ranked(facts, now);
  by("bandwidth-told").textContent = rate(now.bandwidth);
  by("workers-told").textContent = `${now.workers} workers`;
  by("advice").textContent = advice(rows);
  drawTable(rows);
  drawChart(now);
}

by("bandwidth").value = Math.log10(Math.min(10 ** HIGH, Math.max(10 ** LOW, link.bandwidth ?? 10 ** HIGH)));
by("workers").max = workerCounts.length - 1;
by("workers").value = workerCounts.indexOf(link.workers);
for (const id of ["bandwidth", "workers"]) by(id).addEventListener("input", draw);
addEventListener("resize", draw);
by("about").textContent = words;
draw();
