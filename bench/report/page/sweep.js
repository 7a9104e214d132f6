// Draws a sweep's summary from #report-data, with dygraphs (global Dygraph) for the charts.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const policies = data.summary.policies;
  const cases = data.summary.cases;
  const by_id = (id) => document.getElementById(id);
  const make = (name, text, kind) => {
    const out = document.createElement(name);
    if (text !== undefined) out.textContent = text;
    if (kind) out.className = kind;
    return out;
  };
  const root = document.documentElement;
  const colours = ["#0b62a4", "#c2500a", "#14713a", "#7b3fa0", "#b3261e", "#8a6100", "#00807a", "#5a6472"];
  const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  const share_text = (count, of) => of === 0 ? "-" : `${(100 * count / of).toFixed(1)} %`;
  const used_text = (value) => value === null || value === undefined ? "-" : value.toFixed(3);
  const ms_text = (value) => value === null || value === undefined ? "-" : value.toPrecision(3);
  const fits = data.mode === "fit";

  // --- tables --------------------------------------------------------------------------------------------------
  const fill = (id, heads, rows) => {
    const table = by_id(id);
    const head = make("tr");
    heads.forEach((text, k) => head.append(make("th", text, k === 0 ? "text" : "")));
    table.tHead.replaceChildren(head);
    table.tBodies[0].replaceChildren(...rows.map((cells) => {
      const row = make("tr");
      cells.forEach((text, k) => row.append(make("td", text, k === 0 ? "text" : "")));
      return row;
    }));
  };
  const draw_tables = () => {
    const order = [...policies].sort((a, b) => (b.utilization?.median ?? -1) - (a.utilization?.median ?? -1));
    fill("ranking",
         ["policy", "best", "alone best", "clearly less", "utilization: least", "5 %", "median", "95 %",
          ...(fits ? [] : ["cheapest", "ms in calls: median", "95 %", "most"]), fits ? "no card up to 1.5 x" : "out of memory",
          "failed"],
         order.map((p) => [p.policy, p.takes_everything && !fits ? "-" : share_text(p.best, cases),
           p.takes_everything && !fits ? "-" : share_text(p.alone_best, cases), share_text(p.lost, cases),
           used_text(p.utilization?.least), used_text(p.utilization?.p5), used_text(p.utilization?.median),
           used_text(p.utilization?.p95),
           ...(fits ? [] : [share_text(p.cheapest, cases), ms_text(p.device_ms?.median), ms_text(p.device_ms?.p95),
             ms_text(p.device_ms?.most)]), String(p.oom), String(p.failed)]));
    by_id("ranking-note").textContent = `${cases} cases, in the order of the median utilization (peak live / ` +
      `${fits ? "the smallest sufficient capacity" : "peak reserved"}). "Best": no other policy has more. "Clearly less": ` +
      `by more than ${100 * data.summary.clearly_less} % of the best, or not at all.` +
      (fits ? "" : " A policy that takes everything at once is not ranked by utilization: its peak is the card's.");
    const kinds = data.summary.kinds;
    by_id("kinds-section").hidden = kinds.length < 2;
    fill("kinds", ["kind", "cases", ...policies.map((p) => p.policy)], kinds.map((kind) =>
      [kind.kind, String(kind.cases), ...kind.policies.map((p) =>
        p.median === null ? "-" : `${used_text(p.median)} (${share_text(p.best, kind.cases)})`)]));
    fill("pairs", ["policy", ...policies.map((p) => p.policy)], policies.map((p, a) =>
      [p.policy, ...data.summary.pairs[a].map((share) => share === null ? "-" : `${(100 * share).toFixed(0)} %`)]));
  };
  const draw_worst = () => {
    const chosen = policies.find((p) => p.policy === by_id("policy").value);
    by_id("worst-note").textContent = chosen.worst.length === 0
      ? "In no case is it clearly below the best policy."
      : `In ${chosen.lost} of ${cases} cases it is clearly below the best policy; the worst ${chosen.worst.length}:`;
    fill("worst", ["trace", "on", "utilization", "best", "by"], chosen.worst.map((each) =>
      [each.trace, each.where, each.oom ? "out of memory" : used_text(each.utilization), used_text(each.best),
       each.best_policy]));
  };

  // --- charts --------------------------------------------------------------------------------------------------
  let charts = [];
  const draw_chart = (title, key, log) => {
    const shown = policies.map((p, k) => ({p, k})).filter(({p}) => p[key] && !(key === "utilization" && p.takes_everything && !fits));
    if (shown.length === 0) return;
    const figure = make("figure", undefined, "chart");
    const plot = make("div", undefined, "plot");
    const reading = make("figcaption", title, "reading");
    figure.append(make("h3", title), plot, reading);
    by_id("charts").append(figure);
    const points = shown[0].p[key].curve.map((_, i) =>
      [i * 100 / (shown[0].p[key].curve.length - 1), ...shown.map(({p}) => p[key].curve[i])]);
    charts.push(new Dygraph(plot, points, {
      labels: ["%", ...shown.map(({p}) => p.policy)], colors: shown.map(({k}) => colours[k % colours.length]),
      strokeWidth: 1.8, legend: "never", gridLineColor: colour("line"), axisLineColor: colour("line"),
      logscale: log, xlabel: "% of the cases", xLabelHeight: 16, highlightCircleSize: 3,
      axes: {y: {axisLabelWidth: 56}},
      ...(window.matchMedia("(pointer: coarse)").matches ? {interactionModel: {}} : {}),
      highlightCallback: (event, x, picked) => {
        reading.textContent = `${x.toFixed(0)} % of the cases are at most: ` +
          picked.map((each) => `${each.name} ${key === "utilization" ? used_text(each.yval) : ms_text(each.yval)}`).join(", ");
      },
      unhighlightCallback: () => { reading.textContent = title; },
    }));
  };
  const draw_charts = () => {
    for (const chart of charts) chart.destroy();
    charts = [];
    by_id("charts").textContent = "";
    draw_chart("Utilization", "utilization", false);
    if (!fits) draw_chart("Modelled time in device calls, ms", "device_ms", true);
  };

  // --- the page ------------------------------------------------------------------------------------------------
  const set_theme = (dark) => {
    root.dataset.theme = dark ? "dark" : "light";
    by_id("theme").textContent = dark ? "Light" : "Dark";
    by_id("theme").setAttribute("aria-pressed", String(dark));
    draw_charts();
  };
  document.title = data.title;
  by_id("title").textContent = data.title;
  by_id("subtitle").textContent = data.subtitle;
  by_id("made-by").textContent = data.made_by;
  policies.forEach((p, k) => {
    const entry = make("li");
    const swatch = make("span", undefined, "swatch line");
    swatch.style.borderColor = colours[k % colours.length];
    entry.append(swatch, p.policy);
    by_id("legend").append(entry);
    by_id("policy").append(new Option(p.policy, p.policy));
  });
  const first_loser = policies.find((p) => p.policy === "growth") || policies[0];
  by_id("policy").value = first_loser.policy;
  by_id("policy").addEventListener("change", draw_worst);
  by_id("theme").addEventListener("click", () => set_theme(root.dataset.theme !== "dark"));
  draw_tables();
  draw_worst();
  set_theme(window.matchMedia("(prefers-color-scheme: dark)").matches);
})();
