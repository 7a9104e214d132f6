// Draws the report from #report-data. dygraphs (global Dygraph) draws the charts; the map is one canvas.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const by_id = (id) => document.getElementById(id);
  const make = (name, text, kind) => {
    const out = document.createElement(name);
    if (text !== undefined) out.textContent = text;
    if (kind) out.className = kind;
    return out;
  };

  // --- units ---------------------------------------------------------------------------------------------------
  const unit_of = (bytes) => {
    const names = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = 0;
    while (power < names.length - 1 && bytes >= 1024 ** (power + 1)) ++power;
    return {name: names[power], bytes: 1024 ** power};
  };
  const in_unit = (bytes, unit) => {
    const value = bytes / unit.bytes;
    return value.toFixed(unit.bytes === 1 ? 0 : value < 10 ? 2 : value < 100 ? 1 : 0);
  };
  const bytes_text = (bytes) => `${in_unit(bytes, unit_of(bytes))} ${unit_of(bytes).name}`;
  const count_text = (n) => n.toLocaleString("en-US");
  const percent_text = (share) => `${(100 * share).toFixed(1)} %`;
  const short_count = (n) => n >= 1e6 ? `${+(n / 1e6).toFixed(2)}M` : n >= 1000 ? `${+(n / 1000).toFixed(1)}k` : `${n}`;

  // --- light and dark ------------------------------------------------------------------------------------------
  const root = document.documentElement;
  const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  const preferred = window.matchMedia("(prefers-color-scheme: dark)");
  const set_theme = (dark) => {
    root.dataset.theme = dark ? "dark" : "light";
    by_id("theme").textContent = dark ? "Light" : "Dark";
    by_id("theme").setAttribute("aria-pressed", String(dark));
    draw_charts();
    draw_map();
  };

  // --- memory over time ----------------------------------------------------------------------------------------
  const granule = 512;
  let charts = [];
  const rows_of = (trace) => (data.rows || []).filter((row) => row.trace === trace && row.history);
  const top_of = (row) => {
    const most = Math.max(...row.history.reserved, ...row.history.live) * granule;
    if (by_id("scale").value === "whole") return Math.max(most, row.capacity_bytes) * 1.05;
    const live = Math.max(...row.history.live) * granule;
    return (most > 4 * live ? 1.5 * live : most) * 1.08;
  };
  const beyond_text = (row, top) => {
    const most = Math.max(...row.history.reserved) * granule;
    const out = [];
    if (most > top) out.push(`reserved ${bytes_text(most)}`);
    if (row.capacity_bytes > top) out.push(`capacity ${bytes_text(row.capacity_bytes)}`);
    return out.length === 0 ? "" : `Above the chart: ${out.join(", ")}.`;
  };
  const draw_chart = (row, top) => {
    const figure = make("figure", undefined, "chart");
    figure.append(make("h3", row.policy));
    const plot = make("div", undefined, "plot");
    const reading = make("figcaption", undefined, "reading");
    figure.append(plot, reading);
    by_id("charts").append(figure);
    const h = row.history;
    const unit = unit_of(top);
    const points = h.op.map((op, i) =>
      [op, h.live[i] * granule / unit.bytes, h.reserved[i] * granule / unit.bytes, row.capacity_bytes / unit.bytes]);
    const rest = beyond_text(row, top) || `Capacity ${bytes_text(row.capacity_bytes)}.`;
    const quiet = `Peak live ${bytes_text(row.peak_live_bytes)}, peak reserved ${bytes_text(row.peak_reserved_bytes)}. ` +
      rest + (row.oom ? ` Out of memory (${row.oom_cause}) at operation ${count_text(row.oom_at_op)}.` : "");
    reading.textContent = quiet;
    const chart = new Dygraph(plot, points, {
      labels: ["operation", "live", "reserved", "capacity"],
      colors: [colour("live"), colour("reserved"), colour("capacity")],
      series: {capacity: {strokePattern: [6, 4], fillGraph: false}, live: {fillGraph: true}, reserved: {stepPlot: true}},
      strokeWidth: 1.8, fillAlpha: 0.18, legend: "never", gridLineColor: colour("line"), axisLineColor: colour("line"),
      valueRange: [0, top / unit.bytes], xlabel: "operation", xLabelHeight: 16,
      highlightCircleSize: 3,
      axes: {x: {axisLabelFormatter: short_count, pixelsPerLabel: 60},
             y: {axisLabelWidth: 66, pixelsPerLabel: 32, axisLabelFormatter: (v) => `${+v.toFixed(2)} ${unit.name}`}},
      ...(window.matchMedia("(pointer: coarse)").matches ? {interactionModel: {}} : {}),  // dragging must scroll there
      highlightCallback: (event, x, points, at) => {
        reading.textContent = `Operation ${count_text(h.op[at])}: live ${bytes_text(h.live[at] * granule)}, reserved ` +
          `${bytes_text(h.reserved[at] * granule)}. ${rest}`;
      },
      unhighlightCallback: () => { reading.textContent = quiet; },
      underlayCallback: (canvas, area, g) => {
        if (scrubbed_op === null) return;
        const x = g.toDomXCoord(scrubbed_op);
        canvas.fillStyle = colour("soft");
        canvas.fillRect(x, area.y, 1, area.h);
      },
    });
    charts.push(Object.assign(chart, {unit_bytes: unit.bytes}));
  };
  function draw_charts() {
    for (const chart of charts) chart.destroy();
    charts = [];
    by_id("charts").textContent = "";
    const rows = rows_of(by_id("trace").value);
    const tops = rows.map(top_of);
    const top = Math.max(...tops);  // one axis for all charts, to compare them
    for (const row of rows) draw_chart(row, top);
  }

  // --- the map -------------------------------------------------------------------------------------------------
  let scrubbed_op = null;
  const mapped_row = () => rows_of(by_id("trace").value).find((row) => row.policy === by_id("policy").value);
  const cells_of = (runs) => {
    let out = "";
    for (const [, letter, times] of runs.matchAll(/([a-i.])(\d+)/g)) out += letter.repeat(Number(times));
    return out;
  };
  const mixed = (from, to, share) => {
    const part = (text, i) => parseInt(text.slice(1 + 2 * i, 3 + 2 * i), 16);
    return `rgb(${[0, 1, 2].map((i) => Math.round(part(from, i) + share * (part(to, i) - part(from, i)))).join(" ")})`;
  };
  const facts_of = (frame) => {
    const free = frame.reserved - frame.live;
    return [
      ["operation", count_text(frame.op)],
      ["live", bytes_text(frame.live)],
      ["reserved", bytes_text(frame.reserved)],
      ["free", `${bytes_text(free)} in ${count_text(frame.holes)} ${frame.holes === 1 ? "hole" : "holes"}`],
      ["largest hole", bytes_text(frame.largest)],
      ["external fragmentation", percent_text(free === 0 ? 0 : 1 - frame.largest / free)],
      ["internal fragmentation", percent_text(frame.live === 0 ? 0 : 1 - frame.requested / frame.live)],
      ["live / reserved", percent_text(frame.reserved === 0 ? 0 : frame.live / frame.reserved)],
    ];
  };
  function draw_map() {
    const row = mapped_row();
    if (!row) return;
    const map = row.history.map;
    const frame = map.frames[Number(by_id("time").value)];
    if (!frame) return;
    scrubbed_op = frame.op;
    const canvas = by_id("map");
    const cells = cells_of(frame.cells);
    const width = canvas.parentElement.clientWidth - 24;
    const columns = width < 500 ? 32 : 64;
    const side = Math.floor(width / columns);
    const lines = Math.ceil(cells.length / columns);
    const scale = window.devicePixelRatio || 1;
    canvas.width = columns * side * scale;
    canvas.height = lines * side * scale;
    canvas.style.width = `${columns * side}px`;
    canvas.style.height = `${lines * side}px`;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    const colours = {".": colour("none-cell")};
    for (let i = 0; i < 9; ++i) colours["abcdefghi"[i]] = mixed(colour("free-cell"), colour("live"), i === 0 ? 0 : (i + 1) / 9);
    for (let i = 0; i < cells.length; ++i) {
      pen.fillStyle = colours[cells[i]];
      pen.fillRect(i % columns * side, Math.floor(i / columns) * side, side - 1, side - 1);
    }
    pen.fillStyle = colour("ink");
    let first = 0;
    for (const length of map.pieces) {
      pen.fillRect(first % columns * side - 1, Math.floor(first / columns) * side, 2, side - 1);
      first += length;
    }
    const facts = facts_of(frame);
    by_id("facts").replaceChildren(...facts.map(([name, value]) => {
      const fact = make("div");
      fact.append(make("dt", name), make("dd", value));
      return fact;
    }));
    by_id("time-text").textContent = `${count_text(frame.op + 1)} of ${count_text(row.history.ops)} operations`;
    by_id("time").setAttribute("aria-valuetext", `operation ${count_text(frame.op)}: ` +
      facts.slice(1).map(([name, value]) => `${name} ${value}`).join(", "));
    by_id("cell-size").textContent = `a cell is ${bytes_text(map.cell_bytes)}` + (map.never_used_bytes === 0 ? "" :
      `; ${bytes_text(map.never_used_bytes)} more are reserved and never used`);
    canvas.dataset.op = frame.op;
    for (const chart of charts) chart.updateOptions({});
  }
  const choose_policy = () => {
    const row = mapped_row();
    by_id("addresses").hidden = !row;
    if (!row) return;
    const frames = row.history.map.frames;
    const slider = by_id("time");
    const former = scrubbed_op;
    slider.max = frames.length - 1;
    // Keeps the moment; starts at the peak of live.
    const live = frames.map((frame) => frame.live);
    let at = live.indexOf(Math.max(...live));
    if (former !== null) at = Math.max(0, frames.findLastIndex((frame) => frame.op <= former));
    slider.value = at;
    draw_map();
  };
  const choose_trace = () => {
    const rows = rows_of(by_id("trace").value);
    const kept = by_id("policy").value;
    by_id("policy").replaceChildren(...rows.map((row) => new Option(row.policy)));
    if (rows.some((row) => row.policy === kept)) by_id("policy").value = kept;
    scrubbed_op = null;
    draw_charts();
    choose_policy();
  };
  let playing = null;
  const stop = () => {
    if (playing === null) return;
    clearInterval(playing);
    playing = null;
    by_id("play").textContent = "\u25B6";
    by_id("play").setAttribute("aria-label", "play");
  };
  const play = () => {
    if (playing !== null) return stop();
    const slider = by_id("time");
    if (slider.value === slider.max) slider.value = 0;
    by_id("play").textContent = "\u275A\u275A";
    by_id("play").setAttribute("aria-label", "pause");
    playing = setInterval(() => {
      slider.value = Number(slider.value) + 1;
      draw_map();
      if (slider.value === slider.max) stop();
    }, 100);
  };

  // --- the table -----------------------------------------------------------------------------------------------
  const columns = [
    {name: "trace", text: true},
    {name: "policy", text: true},
    {key: "peak_live_bytes", name: "peak live", unit: "bytes", show: bytes_text},
    {key: "peak_reserved_bytes", name: "peak reserved", unit: "bytes", show: bytes_text},
    {key: "utilization", name: "utilization", unit: "live / reserved", show: (v) => v.toFixed(3)},
    {key: "fit_utilization", name: "fit", unit: "live / smallest card", show: (v) => v.toFixed(3)},
    {key: "calls", name: "device calls", unit: "count", show: count_text},
    {key: "modelled_device_ms", name: "device time", unit: "modelled ms", show: (v) => v.toFixed(2)},
    {key: "external_fragmentation", name: "ext. frag.", unit: "% of free", show: percent_text},
    {key: "internal_fragmentation", name: "int. frag.", unit: "% of live", show: percent_text},
    {key: "hazards", name: "hazards", unit: "count", show: count_text},
    {key: "host_ns_per_op", name: "host time", unit: "ns an operation", show: (v) => v.toFixed(0)},
    {key: "oom", name: "out of memory", text: true, show: (v) => v || "no"},
  ];
  let sorted = {column: null, down: false};
  const fill_table = () => {
    const rows = [...data.rows];
    if (sorted.column) {
      const key = sorted.column.key || sorted.column.name;
      const known = (row) => row[key] !== null && row[key] !== undefined;
      rows.sort((a, b) => {
        if (!known(a) || !known(b)) return known(b) - known(a);  // unknown values come last
        const order = typeof a[key] === "string" ? a[key].localeCompare(b[key]) : a[key] - b[key];
        return sorted.down ? -order : order;
      });
    }
    by_id("table").tBodies[0].replaceChildren(...rows.map((row) => {
      const line = make("tr");
      for (const column of columns) {
        const value = row[column.key || column.name];
        const text = value === null || value === undefined ? "-" : column.show ? column.show(value) : value;
        const cell = make("td", undefined, column.text ? "text" : "");
        // A row's name may break only after a comma.
        String(text).split(/(?<=[,+])/).forEach((part, i) => cell.append(...(i === 0 ? [part] : [make("wbr"), part])));
        cell.dataset.label = column.name;  // shown next to the figure if a row is a card
        line.append(cell);
      }
      return line;
    }));
  };
  const make_table = () => {
    const line = make("tr");
    for (const column of columns) {
      const cell = make("th", undefined, column.text ? "text" : "");
      cell.scope = "col";
      const button = make("button", column.name);
      button.type = "button";
      button.addEventListener("click", () => {
        sorted = {column, down: sorted.column === column && !sorted.down};
        for (const each of line.cells) each.removeAttribute("aria-sort");
        cell.setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
        fill_table();
      });
      cell.append(button);
      if (column.unit) cell.append(make("small", column.unit));
      line.append(cell);
    }
    by_id("table").tHead.replaceChildren(line);
    fill_table();
  };

  // --- claims --------------------------------------------------------------------------------------------------
  const verdict_kind = {"holds": "holds", "does not hold": "fails", "depends": "depends"};
  const figures_table = (claim) => {
    const table = make("table");
    const head = make("tr");
    for (const name of claim.table.columns) head.append(make("th", name, "text"));
    table.append(make("thead"), make("tbody"));
    table.tHead.append(head);
    for (const row of claim.table.rows) {
      const line = make("tr");
      row.forEach((cell) => line.append(make("td", cell, "text")));
      table.tBodies[0].append(line);
    }
    return table;
  };
  /// Text with [links](https://...), and nothing else of Markdown.
  const with_links = (text) => text.split(/(\[[^\]]+\]\(https:[^)\s]+\))/).map((part) => {
    const found = part.match(/^\[([^\]]+)\]\((https:[^)\s]+)\)$/);
    if (!found) return part;
    const link = make("a", found[1]);
    link.href = found[2];
    link.rel = "noreferrer";
    return link;
  });
  const verdict_of = (claim) => make("span", claim.verdict, `verdict ${verdict_kind[claim.verdict]}`);
  /// The texts of an experiment, and its figures.
  const add_findings = (card, claim) => {
    const list = make("dl");
    for (const name of ["measured", "expected", "experiment", "device", "source", "command"]) {
      if (!claim[name]) continue;
      const item = make("div");
      const value = make("dd");
      value.append(...(name === "command" ? [make("code", claim[name])] : name === "source" ? with_links(claim[name])
        : [claim[name]]));
      item.append(make("dt", name === "command" ? "repeat it with" : name), value);
      list.append(item);
    }
    card.append(list);
    if (claim.table) {
      const details = make("details");
      const scroll = make("div", undefined, "scroll");
      scroll.tabIndex = 0;
      scroll.append(figures_table(claim));
      details.append(make("summary", "figures"), scroll);
      card.append(details);
    }
  };
  /// The library's own verdict, and those of measured frameworks.
  const claim_card = (claim) => {
    const card = make("article", undefined, "panel claim");
    card.id = `claim-${claim.id}`;
    const others = claim.by_frameworks || [];
    const verdicts = make("p", undefined, "verdicts");
    verdicts.append(...(others.length ? ["gpumem: "] : []), verdict_of(claim));
    for (const each of others) verdicts.append(` ${each.framework}: `, verdict_of(each));
    card.append(make("h3", claim.statement), verdicts);
    add_findings(card, claim);
    for (const each of others) {
      const title = make("h4", `${each.framework} itself `);
      title.append(verdict_of(each));
      card.append(title);
      add_findings(card, each);
    }
    return card;
  };
  const make_claims = () => {
    const tally = (verdict) => data.claims.filter((claim) => claim.verdict === verdict).length;
    by_id("claims-summary").textContent = `${data.claims.length} claims: ${tally("holds")} hold, ` +
      `${tally("does not hold")} do not, ${tally("depends")} depend.`;
    by_id("claim-cards").replaceChildren(...data.claims.map(claim_card));
    by_id("claims").hidden = false;
  };

  // --- everything ----------------------------------------------------------------------------------------------
  by_id("title").textContent = data.title;
  document.title = data.title;
  by_id("subtitle").textContent = data.subtitle;
  by_id("made-by").textContent = data.made_by;
  if (data.note) {
    by_id("note-text").textContent = data.note;
    by_id("note").hidden = false;
  }
  by_id("theme").addEventListener("click", () => set_theme(root.dataset.theme !== "dark"));
  preferred.addEventListener("change", (event) => set_theme(event.matches));
  if (data.rows) {
    const traces = [...new Set(data.rows.filter((row) => row.history).map((row) => row.trace))];
    by_id("trace").replaceChildren(...traces.map((name) => new Option(name)));
    by_id("memory").hidden = traces.length === 0;
    by_id("figures").hidden = false;
    by_id("trace").addEventListener("change", choose_trace);
    by_id("scale").addEventListener("change", draw_charts);
    by_id("policy").addEventListener("change", choose_policy);
    by_id("time").addEventListener("input", () => { stop(); draw_map(); });
    by_id("play").addEventListener("click", play);
    window.addEventListener("resize", draw_map);
    make_table();
  }
  if (data.claims) make_claims();
  root.dataset.theme = preferred.matches ? "dark" : "light";
  by_id("theme").textContent = preferred.matches ? "Light" : "Dark";
  by_id("theme").setAttribute("aria-pressed", String(preferred.matches));
  if (data.rows) choose_trace();
  window.report = {data, charts: () => charts};
  requestAnimationFrame(() => {
    by_id("opened").textContent = String(Math.round(performance.now()));
    root.dataset.ready = by_id("opened").textContent;
  });
})();
