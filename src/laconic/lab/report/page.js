"use strict";
(() => {
  const told = JSON.parse(document.getElementById("told").textContent);
  const root = document.documentElement;
  const charts = [...document.querySelectorAll(".chart")];
  const choice = { axis: "steps", run: told.first };
  const hidden = new Set();
  const darkSystem = matchMedia("(prefers-color-scheme: dark)");
  let chosenTheme = remembered();

  // Pages opened from a file may be refused a storage.
  function remembered() {
    try { return localStorage.getItem("laconic-theme"); } catch { return null; }
  }
  function remember(theme) {
    try { localStorage.setItem("laconic-theme", theme); } catch { /* then the system's choice stands next time */ }
  }

  const isDark = () => root.dataset.theme === "dark";

  // Figures are made for a light page: every colour has a twin for dark ones.
  function themed(value) {
    if (typeof value === "string") return (isDark() && told.dark[value]) || value;
    if (Array.isArray(value)) return typeof value[0] === "number" ? value : value.map(themed);
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, themed(each)]));
    }
    return value;
  }

  function draw(chart) {
    const key = chart.dataset.figure.replace(/\{(\w+)\}/g, (_, name) => choice[name]);
    const figure = told.figures[key];
    chart.closest("figure").hidden = !figure;
    if (!figure) return;
    const data = themed(figure.data);
    if (chart.dataset.methods) data.forEach((trace) => { trace.visible = !hidden.has(trace.meta); });
    const layout = themed(figure.layout);
    // On a phone the names of layers would leave no room for the chart.
    if (layout.meta && layout.meta.names && chart.clientWidth < 480) layout.yaxis.showticklabels = false;
    chart.style.minHeight = `${layout.height}px`;
    Plotly.react(chart, data, layout, {
      responsive: true, displaylogo: false, displayModeBar: false, scrollZoom: false, doubleClick: false,
    });
  }

  const drawAll = () => charts.forEach(draw);

  function setTheme() {
    root.dataset.theme = chosenTheme || (darkSystem.matches ? "dark" : "light");
    document.getElementById("theme").textContent = isDark() ? "Light page" : "Dark page";
    drawLegends();
    drawAll();
  }

  function swatch(look) {
    const dashes = { solid: "", dash: "9,5", dot: "2,4", dashdot: "9,4,2,4", longdash: "14,5", longdashdot: "14,4,2,4" };
    const colour = themed(look.colour);
    return `<svg class="swatch" viewBox="0 0 30 12" aria-hidden="true"><line x1="0" x2="30" y1="6" y2="6" ` +
      `stroke="${colour}" stroke-width="3" stroke-dasharray="${dashes[look.dash]}"/></svg>`;
  }

  function drawLegends() {
    for (const list of document.querySelectorAll(".key")) {
      list.replaceChildren(...told.methods.map((method, place) => {
        const button = document.createElement("button");
        button.type = "button";
        button.innerHTML = swatch(method);
        button.append(method.label + (method.remark ? `, ${method.remark}` : ""));
        button.setAttribute("aria-pressed", String(!hidden.has(place)));
        button.title = "Show or hide this method in the charts";
        button.addEventListener("click", () => {
          if (!hidden.delete(place)) hidden.add(place);
          const at = [...document.querySelectorAll(".key")].indexOf(list);
          drawLegends();
          drawAll();
          document.querySelectorAll(".key")[at].querySelectorAll("button")[place].focus();
        });
        const item = document.createElement("li");
        item.append(button);
        return item;
      }));
    }
  }

  async function copy(button, text) {
    let done = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Without leave to use the clipboard: the old way, over a field that holds the text.
      const field = Object.assign(document.createElement("textarea"), { value: text, className: "unseen" });
      document.body.append(field);
      field.select();
      done = document.execCommand("copy");
      field.remove();
      button.focus();
    }
    const before = button.dataset.label || (button.dataset.label = button.textContent);
    button.textContent = done ? "Copied" : "Not allowed to copy";
    setTimeout(() => { button.textContent = before; }, 1500);
  }

  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", () => copy(button, told.copies[button.dataset.copy]));
  }
  for (const button of document.querySelectorAll("[data-axis]")) {
    button.addEventListener("click", () => {
      choice.axis = button.dataset.axis;
      for (const each of document.querySelectorAll("[data-axis]")) {
        each.setAttribute("aria-pressed", String(each === button));
      }
      drawAll();
    });
  }
  const select = document.getElementById("run");
  if (select) select.addEventListener("change", () => { choice.run = select.value; drawAll(); });
  document.getElementById("theme").addEventListener("click", () => {
    chosenTheme = isDark() ? "light" : "dark";
    remember(chosenTheme);
    setTheme();
  });
  darkSystem.addEventListener("change", setTheme);
  // Paper is white.
  addEventListener("beforeprint", () => { root.dataset.theme = "light"; drawLegends(); drawAll(); });
  addEventListener("afterprint", setTheme);
  setTheme();
})();
