"use strict";
// Draws the figures of a page as SVG, at the width there is. Every text is set as text, never as HTML.
(() => {
  const hiddenOf = new Map(); // by figure: the names of its lines that were switched off
  const SHADES = ["#f6dccb", "#7fb3d3", "#00507d"];

  // ---- elements, numbers, scales ----

  const make = (tag, attributes = {}, ...children) => {
    const svg = /^(svg|g|path|rect|line|circle|text|tspan)$/.test(tag);
    const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes))
      if (name === "style") made.style.cssText = value;
      else if (value !== null && value !== undefined) made.setAttribute(name, value);
    made.append(...children);
    return made;
  };
  // Black is the colour of text, which is light in the dark; other colours are mixed by the CSS.
  const tint = (colour) => `--c:${colour === "#000000" ? "var(--ink)" : colour}`;
  const plain = (value) => {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e6 || size < 1e-3) return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
    return value.toLocaleString("en", { maximumSignificantDigits: 4 });
  };
  const duration = (value) => (value > 0 && value < 1 ? `${plain(1000 * value)} ms` : `${plain(value)} s`);
  const percent = (value) => `${plain(Math.round(1000 * value) / 10)} %`;
  const format = (axis) => (axis.percent ? percent : axis.seconds ? duration : plain);
  const ticksOf = (axis, [low, high], count) => {
    if (axis.ticks && axis.ticks.length) return axis.ticks.filter((value) => low <= value && value <= high);
    if (axis.log) {
      // Powers of ten; below two of them 1, 2 and 5; below two of these the ticks of a plain axis.
      for (const steps of [[1], [1, 2, 5]]) {
        const found = [];
        for (let p = Math.floor(Math.log10(low)); p <= Math.log10(high); p++)
          found.push(...steps.map((step) => +(step * 10 ** p).toPrecision(6)));
        const inside = found.filter((value) => low * (1 - 1e-9) <= value && value <= high * (1 + 1e-9));
        if (inside.length > 1) return inside;
      }
    }
    const raw = (high - low) / count || 1;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].find((each) => each * power >= raw * (1 - 1e-9)) * power;
    const found = [];
    for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-6; value += step)
      found.push(+value.toPrecision(12));
    return found;
  };
  const scale = (axis, [low, high], from, to) => {
    const bend = axis.log ? Math.log10 : (value) => value;
    const [first, last] = [bend(low), bend(high)];
    return (value) => from + ((bend(value) - first) / (last - first || 1)) * (to - from);
  };
  const domainOf = (axis, values, room) => {
    if (axis.domain) return axis.domain;
    const known = values.filter((value) => Number.isFinite(value) && (!axis.log || value > 0));
    if (!known.length) return axis.log ? [1, 10] : [0, 1];
    const [low, high] = [Math.min(...known), Math.max(...known)];
    if (axis.log) return low < high ? [low, high] : [low / 2, high * 2];
    const more = room * (high - low) || (low === high ? 0.01 + Math.abs(low) / 100 : 0);
    return [low - more, high + more];
  };

  // ---- parts of charts ----

  const text = (x, y, words, attributes = {}) => make("text", { x, y, ...attributes }, words);
  const frame = (width, height, label) =>
    make("svg", {
      viewBox: `0 0 ${width} ${height}`, width, height, role: "img", tabindex: 0,
      "aria-label": `${label.replace(/\.?$/, ".")} Arrow keys tell values.`,
    });
  const axes = (svg, chart, box, x, y, domains) => {
    const several = Math.max(2, Math.floor((box.right - box.left) / 75));
    for (const value of ticksOf(chart.y, domains.y, Math.max(2, (box.bottom - box.top) / 40))) {
      svg.append(make("line", { class: "grid", x1: box.left, x2: box.right, y1: y(value), y2: y(value) }));
      svg.append(text(box.left - 6, y(value) + 4, format(chart.y)(value), { "text-anchor": "end" }));
    }
    let last = -Infinity; // where the last label ended: labels do not overlap
    for (const value of ticksOf(chart.x, domains.x, several)) {
      const label = format(chart.x)(value);
      if (x(value) - 3.5 * label.length < last) continue;
      last = x(value) + 3.5 * label.length + 6;
      svg.append(make("line", { class: "tick", x1: x(value), x2: x(value), y1: box.bottom, y2: box.bottom + 4 }));
      svg.append(text(x(value), box.bottom + 17, label, { "text-anchor": "middle" }));
    }
    svg.append(make("line", { class: "tick", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
    svg.append(text((box.left + box.right) / 2, box.bottom + 34, chart.x.title, { "text-anchor": "middle" }));
  };
  const wrapped = (words, width) => {
    const lines = [""];
    for (const word of words.split(/\s+/))
      if (lines.at(-1) && (lines.at(-1).length + word.length + 1) * 6.6 > width) lines.push(word);
      else lines[lines.length - 1] += (lines.at(-1) && " ") + word;
    return lines;
  };
  const short = (words, most) => (words.length > most ? `${words.slice(0, most - 1)}…` : words);

  const tip = make("div", { id: "tip", role: "status" });
  const show = (lines, at) => {
    tip.replaceChildren(...lines.map(([words, colour]) =>
      make("div", {}, ...(colour ? [make("i", { style: tint(colour) })] : []), words)));
    tip.style.display = "block";
    const left = Math.min(at.x + 14, document.documentElement.clientWidth - tip.offsetWidth - 6);
    const above = at.y + tip.offsetHeight + 20 > innerHeight;
    tip.style.left = `${Math.max(4, left) + scrollX}px`;
    tip.style.top = `${Math.max(4, above ? at.y - tip.offsetHeight - 10 : at.y + 14) + scrollY}px`;
  };
  const hide = () => { tip.style.display = "none"; };

  // ---- lines in panels ----

  const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");

  function drawLines(chart, width, hidden, label) {
    const panels = Object.entries(chart.points);
    const across = Math.max(1, Math.min(panels.length, chart.wrap, Math.floor(width / 290)));
    const wide = Math.floor((width - 16 * (across - 1)) / across);
    const all = panels.flatMap(([, lines]) => Object.values(lines).flat());
    const values = (points) => points.flatMap((p) => p.slice(1)).filter((value) => value !== null);
    const shared = { x: domainOf(chart.x, all.map((p) => p[0]), 0.02), y: domainOf(chart.y, values(all), 0.04) };
    return panels.map(([name, lines]) => {
      const own = Object.values(lines).flat();
      const domains = {
        x: chart.x.free ? domainOf(chart.x, own.map((p) => p[0]), 0.04) : shared.x,
        y: chart.y.free ? domainOf(chart.y, values(own), 0.04) : shared.y,
      };
      const title = name ? name.split("\n").flatMap((line) => wrapped(line, wide - 60)) : [];
      const top = 22 + 16 * title.length;
      const height = top + chart.height * (wide < 420 && panels.length === 1 ? 0.85 : 1) + 42;
      const box = { left: 52, right: wide - 18, top, bottom: height - 42 };
      const x = scale(chart.x, domains.x, box.left, box.right);
      const y = scale(chart.y, domains.y, box.bottom, box.top);
      const svg = frame(wide, height, [label, ...title].join(". "));
      title.forEach((line, i) => svg.append(text(box.left, 14 + 16 * i, line, { class: "panel" })));
      axes(svg, chart, box, x, y, domains);
      svg.append(text(box.left, top - 9, chart.y.title));
      const level = (value, words) =>
        svg.append(make("line", { class: "mark", x1: box.left, x2: box.right, y1: y(value), y2: y(value) }));
      if (chart.level !== null) level(chart.level);
      for (const [at, words] of chart.marks) {
        svg.append(make("line", { class: "mark", x1: x(at), x2: x(at), y1: box.top, y2: box.bottom }));
        svg.append(text(x(at) + 5, box.top + 11, words));
      }
      const inside = (v) => Math.min(box.bottom + 2, Math.max(box.top - 2, v));
      const shown = chart.lines.filter((line) => lines[line.name] && !hidden.has(line.name));
      for (const line of [...shown].sort((a, b) => a.bold - b.bold)) {
        const points = lines[line.name].filter((p) => !chart.y.log || p[1] > 0);
        const g = make("g", { class: "line", "data-line": line.name, style: tint(line.colour) });
        const at = (i) => points.filter((p) => p[i] !== undefined && p[i] !== null).map((p) => [x(p[0]), inside(y(p[i]))]);
        const bars = chart.interval === "bar" && !line.dashed;
        if (chart.interval === "band" && at(2).length)
          g.append(make("path", { class: "band", d: `${path(at(3))}${path(at(2).reverse()).replace("M", "L")}Z` }));
        if (chart.reference === "dashed") g.append(make("path", { class: "stroke", "stroke-dasharray": "6 4", d: path(at(4)) }));
        if (chart.joined || line.dashed)
          g.append(make("path", {
            class: line.bold ? "stroke bold" : "stroke", "stroke-dasharray": line.dashed ? "5 3" : null, d: path(at(1)),
          }));
        for (const p of bars || points.length === 1 ? points : []) {
          if (p[2] !== undefined && p[2] !== null)
            g.append(make("path", { class: "stroke", d: path([[x(p[0]), inside(y(p[2]))], [x(p[0]), inside(y(p[3]))]]) }));
          g.append(make("circle", { class: "dot", cx: x(p[0]), cy: inside(y(p[1])), r: 3.5 }));
        }
        if (chart.reference === "diamonds")
          for (const [cx, cy] of at(4))
            g.append(make("path", { class: "stroke", d: `M${cx},${cy - 6}L${cx + 6},${cy}L${cx},${cy + 6}L${cx - 6},${cy}Z` }));
        svg.append(g);
      }
      // The values at the place that the pointer, or an arrow key, is at.
      const places = [...new Set(shown.flatMap((line) => lines[line.name].map((p) => p[0])))].sort((a, b) => a - b);
      const cursor = make("line", { class: "cursor", y1: box.top, y2: box.bottom, visibility: "hidden" });
      svg.append(cursor);
      let place = -1;
      const tell = (index, at) => {
        if (!places.length) return;
        place = Math.max(0, Math.min(places.length - 1, index));
        const here = x(places[place]);
        for (const end of ["x1", "x2"]) cursor.setAttribute(end, here);
        cursor.setAttribute("visibility", "visible");
        const told = shown.map((line) => {
          const near = lines[line.name].reduce((a, b) => (Math.abs(x(b[0]) - here) < Math.abs(x(a[0]) - here) ? b : a));
          if (Math.abs(x(near[0]) - here) > 30) return null;
          const [, mean, low, high, reference] = near;
          const range = low === undefined || low === null ? "" : ` (${format(chart.y)(low)} to ${format(chart.y)(high)})`;
          const beside = reference === undefined ? "" : `, reference ${format(chart.y)(reference)}`;
          return [`${line.name}: ${mean === null ? "–" : format(chart.y)(mean)}${range}${beside}`, line.colour];
        });
        const area = svg.getBoundingClientRect();
        show([[`${chart.x.title}: ${format(chart.x)(places[place])}`], ...told.filter(Boolean)],
          at || { x: area.left + here, y: area.top + box.top });
      };
      const leave = () => { hide(); cursor.setAttribute("visibility", "hidden"); };
      svg.addEventListener("pointermove", (event) => {
        const area = svg.getBoundingClientRect();
        const here = ((event.clientX - area.left) * wide) / area.width;
        const distance = (i) => Math.abs(x(places[i]) - here);
        tell(places.reduce((best, _, i) => (distance(i) < distance(best) ? i : best), 0), { x: event.clientX, y: event.clientY });
      });
      svg.addEventListener("keydown", (event) => {
        const step = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
        if (step) { event.preventDefault(); tell(place + step); } else if (event.key === "Escape") leave();
      });
      for (const end of ["pointerleave", "blur"]) svg.addEventListener(end, leave);
      return svg;
    });
  }

  // ---- what tells about its pieces: bars, cells, lanes ----

  const telling = (svg) => {
    svg.addEventListener("pointermove", (event) => {
      const told = event.target.getAttribute("data-tip");
      if (told) show([[told]], { x: event.clientX, y: event.clientY }); else hide();
    });
    let at = -1;
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1, Home: -1e9, End: 1e9 }[event.key];
      const pieces = svg.querySelectorAll("[data-tip]");
      if (event.key === "Escape") hide();
      if (!step || !pieces.length) return;
      event.preventDefault();
      at = Math.max(0, Math.min(pieces.length - 1, at + step));
      const area = pieces[at].getBoundingClientRect();
      show([[pieces[at].getAttribute("data-tip")]], { x: area.left + area.width / 2, y: area.bottom });
    });
    for (const end of ["pointerleave", "blur"]) svg.addEventListener(end, hide);
    return svg;
  };
  const labels = (names, width) => Math.min(Math.max(...names.map((name) => name.length)) * 6.6 + 10, width * 0.36);

  function drawBars(chart, width, hidden, label) {
    const lines = chart.lines.map((line, i) => ({ ...line, values: chart.values[i] })).filter((line) => !hidden.has(line.name));
    const thick = chart.stacked ? 18 : 9, left = labels(chart.groups, width);
    const tall = (chart.stacked ? thick : thick * lines.length) + 9;
    const sums = chart.groups.map((_, g) => lines.reduce((sum, line) => sum + line.values[g], 0));
    const most = chart.stacked ? Math.max(...sums, 0) : Math.max(...lines.flatMap((line) => line.values), ...chart.marks, 0);
    const domain = chart.y.domain || [0, most * 1.04 || 1];
    const box = { left, right: width - 12, top: 22, bottom: 22 + tall * chart.groups.length };
    const x = scale({}, domain, box.left, box.right);
    const svg = frame(width, box.bottom + 40, label);
    svg.append(text(0, 12, chart.title));
    for (const value of ticksOf(chart.y, domain, Math.max(2, width / 130))) {
      svg.append(make("line", { class: "grid", x1: x(value), x2: x(value), y1: box.top, y2: box.bottom }));
      svg.append(text(x(value), box.bottom + 15, format(chart.y)(value), { "text-anchor": x(value) > width - 30 ? "end" : "middle" }));
    }
    svg.append(text((box.left + box.right) / 2, box.bottom + 32, chart.y.title, { "text-anchor": "middle" }));
    chart.groups.forEach((group, g) => {
      const top = box.top + tall * g + 4;
      svg.append(text(box.left - 6, top + (tall - 9) / 2 + 4, short(group, (left - 8) / 6.4), { "text-anchor": "end" }));
      let from = 0;
      lines.forEach((line, i) => {
        const begin = chart.stacked ? from : 0, value = line.values[g];
        svg.append(make("rect", {
          class: "fill", x: x(begin), y: top + (chart.stacked ? 0 : i * thick), height: thick - (chart.stacked ? 0 : 1),
          width: Math.max(0, x(begin + value) - x(begin)), style: tint(line.colour), "data-line": line.name,
          "data-tip": `${group}, ${line.name}: ${format(chart.y)(value)}`,
        }));
        from += value;
      });
      if (chart.marks.length)
        svg.append(make("line", { class: "level", x1: x(chart.marks[g]), x2: x(chart.marks[g]), y1: top - 2, y2: top + tall - 7 }));
    });
    return [telling(svg)];
  }

  const shade = (part) =>
    part < 0.5 ? `color-mix(in lab, ${SHADES[1]} ${200 * part}%, ${SHADES[0]})` : `color-mix(in lab, ${SHADES[2]} ${200 * part - 100}%, ${SHADES[1]})`;

  function drawCells(chart, width, hidden, label) {
    const left = labels(chart.rows, width), tall = chart.rows.length > 24 ? 13 : 20, top = 44;
    const each = (width - left - 8) / chart.columns.length;
    const svg = frame(width, top + tall * chart.rows.length + 40, label);
    svg.append(text(0, 12, chart.value, {}));
    const from = Math.max(left, 6.6 * chart.value.length + 14);
    for (let i = 0; i <= 10; i++) svg.append(make("rect", { x: from + 9 * i, y: 2, width: 9, height: 12, fill: shade(i / 10) }));
    svg.append(text(from, 28, "0 %"), text(from + 99, 28, "100 %", { "text-anchor": "end" }));
    chart.rows.forEach((row, r) => {
      svg.append(text(left - 6, top + tall * (r + 0.5) + 4, short(row, (left - 8) / 6.4), { "text-anchor": "end" }));
      chart.values[r].forEach((value, c) => {
        if (value !== null)
          svg.append(make("rect", {
            x: left + each * c, y: top + tall * r, width: Math.max(0.5, each - (each > 8 ? 1 : 0)), height: tall - 1,
            fill: shade(value), "data-tip": `${chart.y} ${row}, ${chart.x} ${chart.columns[c]}: ${percent(value)}`,
          }));
      });
    });
    const bottom = top + tall * chart.rows.length;
    let last = -Infinity;
    chart.columns.forEach((name, c) => {
      const at = left + each * (c + 0.5), half = 3.4 * name.length;
      if (at - half < last || at + half > width) return;
      last = at + half + 14;
      svg.append(text(at, bottom + 15, name, { "text-anchor": "middle" }));
    });
    svg.append(text((left + width) / 2, bottom + 32, chart.x, { "text-anchor": "middle" }));
    return [telling(svg)];
  }

  const whose = (user) => (Number.isInteger(user) ? `user ${user}` : user);
  const nameOf = (chart, round) => `${chart.title}${chart.title ? "round" : "Round"} ${round.round}`;

  function drawLanes(chart, width, hidden, label) {
    const across = Math.max(1, Math.min(chart.rounds.length, Math.floor(width / 330)));
    const wide = Math.floor((width - 16 * (across - 1)) / across), tall = 17;
    const end = Math.max(...chart.rounds.map((round) => Math.max(round.seconds, round.deadline || 0))) * 1.03;
    return chart.rounds.map((round) => {
      const users = round.users.map(whose), name = nameOf(chart, round);
      const left = labels(users, wide), top = 36, bottom = top + tall * users.length;
      const x = scale({}, [0, end], left, wide - 12);
      const svg = frame(wide, bottom + 40, `${label} ${name}`);
      svg.append(text(left, 13, name, { class: "panel" }));
      for (const value of ticksOf({}, [0, end], Math.max(2, wide / 110))) {
        svg.append(make("line", { class: "grid", x1: x(value), x2: x(value), y1: top - 4, y2: bottom }));
        svg.append(text(x(value), bottom + 15, duration(value), { "text-anchor": "middle" }));
      }
      svg.append(text((left + wide) / 2, bottom + 32, "Seconds of the round", { "text-anchor": "middle" }));
      users.forEach((user, u) => {
        svg.append(text(left - 6, top + tall * (u + 0.5) + 4, short(user, (left - 8) / 6.4), { "text-anchor": "end" }));
        for (const [from, to, place] of round.pieces[u]) {
          const kind = chart.kinds.at(place);
          if (!hidden.has(kind.name))
            svg.append(make("rect", {
              class: "fill", x: x(from), y: top + tall * u + 2, width: Math.max(0.5, x(to) - x(from)), height: tall - 4,
              style: tint(kind.colour), "data-tip": `${user}, ${kind.name}: ${duration(from)} to ${duration(to)}`,
            }));
        }
      });
      if (round.deadline !== null) {
        svg.append(make("line", { class: "level", x1: x(round.deadline), x2: x(round.deadline), y1: top - 8, y2: bottom }));
        const late = x(round.deadline) > wide * 0.6;
        svg.append(text(x(round.deadline) + (late ? -4 : 4), top - 6, `deadline ${duration(round.deadline)}`, { "text-anchor": late ? "end" : "start" }));
      }
      return telling(svg);
    });
  }

  // ---- figures ----

  // The voice of users, sorted, and that of classes beside their data, are lines and bars.
  const axis = (title, more) => ({ title, log: false, percent: false, ticks: [], domain: null, ...more });
  const charts = (chart) => {
    if (chart.kind !== "Voices") return [chart];
    const { lines, users, classes, data } = chart;
    const points = lines.map((line) => [line.name, users[line.name].map((value, i) => [i + 1, value])]);
    const ranked = {
      kind: "Lines", lines, points: { "": Object.fromEntries(points) }, x: axis("Users, the least heard first"),
      y: axis("Voice, in equal parts"), level: 1, marks: [], height: 220, wrap: 1, interval: "band", joined: true, reference: "",
    };
    const bars = {
      kind: "Bars", lines, groups: data.map((_, i) => `class ${i}`), values: lines.map((line) => classes[line.name]),
      y: axis("Part of the voice", { percent: true }), marks: data, stacked: false, title: "",
    };
    return data.length ? [ranked, bars] : [ranked];
  };

  const DRAWN = { Lines: drawLines, Bars: drawBars, Cells: drawCells, Lanes: drawLanes };

  function draw(figure, wanted) {
    const spec = figure.spec, place = figure.querySelector(".charts"), label = figure.getAttribute("aria-label");
    const width = wanted || place.clientWidth;
    if (!width || (figure.width === width && !figure.stale)) return;
    figure.width = width; figure.stale = false;
    const key = label;
    if (!hiddenOf.has(key)) hiddenOf.set(key, new Set());
    const hidden = hiddenOf.get(key), made = [];
    if (spec.title) made.push(make("p", { class: "charttitle" }, spec.title));
    for (const line of spec.subtitle) made.push(make("p", { class: "subtitle" }, line));
    let legend = "";
    for (const chart of spec.charts) {
      const lines = chart.lines || chart.kinds || [], names = lines.map((line) => line.name).join("\n");
      if (lines.length > 1 && names !== legend) {
        const buttons = lines.map((line) => {
          const key = make("i", { style: tint(line.colour), class: line.dashed ? "dashed" : "" });
          const button = make("button", { type: "button", "aria-pressed": !hidden.has(line.name) }, key, line.name);
          button.addEventListener("click", () => {
            if (!hidden.delete(line.name)) hidden.add(line.name);
            figure.stale = true; draw(figure);
            [...figure.querySelectorAll(".legend button")].find((b) => b.textContent === line.name).focus();
          });
          return button;
        });
        made.push(make("div", { class: "legend", role: "group", "aria-label": "What to show" }, ...buttons));
      }
      legend = names;
      made.push(make("div", { class: "panels" }, ...DRAWN[chart.kind](chart, width, hidden, label)));
    }
    place.replaceChildren(...made);
  }

  // The same values as tables, for those who cannot see or point at a chart.
  const MOST = 8; // columns of a table
  const some = (list) => list.filter((_, i) => !((list.length - 1 - i) % Math.ceil(list.length / MOST)));
  const nearest = (points, x) => points.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));
  const valuesOf = {
    Lines: (chart) => Object.entries(chart.points).map(([name, lines]) => {
      const xs = some([...new Set(Object.values(lines).flat().map((p) => p[0]))].sort((a, b) => a - b));
      const rows = Object.entries(lines).map(([line, points]) => [line, ...xs.map((x) => format(chart.y)(nearest(points, x)[1] ?? NaN))]);
      return [name.replace("\n", ", "), [`${chart.y.title}, by ${chart.x.title}`, ...xs.map(format(chart.x))], rows];
    }),
    Bars: (chart) => [[chart.title, [chart.y.title, ...chart.lines.map((line) => line.name)],
      chart.groups.map((group, g) => [group, ...chart.values.map((line) => format(chart.y)(line[g]))])]],
    Cells: (chart) => {
      const places = some(chart.columns.map((_, c) => c)), told = (v) => (v === null ? "–" : percent(v));
      return [[chart.value, [`${chart.y}, by ${chart.x}`, ...places.map((c) => chart.columns[c])],
        chart.rows.map((row, r) => [row, ...places.map((c) => told(chart.values[r][c]))])]];
    },
    Lanes: (chart) => chart.rounds.map((round) => [nameOf(chart, round), ["User", "Pieces"], round.users.map((user, u) =>
      [whose(user), round.pieces[u].map(([from, to, kind]) => `${chart.kinds.at(kind).name} ${duration(from)} to ${duration(to)}`).join("; ")])]),
  };
  const tabled = (figure) => figure.spec.charts.flatMap((chart) => valuesOf[chart.kind](chart)).map(([caption, head, rows]) =>
    make("div", { class: "table", tabindex: 0, role: "region", "aria-label": `${caption} ${head[0]}` }, make("table", {},
      make("caption", {}, caption),
      make("thead", {}, make("tr", {}, ...head.map((each) => make("th", { scope: "col" }, each)))),
      make("tbody", {}, ...rows.map(([first, ...rest]) =>
        make("tr", {}, make("th", { scope: "row" }, first), ...rest.map((each) => make("td", {}, each))))))));
  const offer = (figure) => {
    const details = make("details", { class: "values" }, make("summary", {}, "Values as a table"));
    details.addEventListener("toggle", () => { if (details.open && !details.children[1]) details.append(...tabled(figure)); });
    figure.append(details);
  };

  const figures = () => [...document.querySelectorAll("figure")];
  const resized = new ResizeObserver((seen) => seen.forEach((each) => draw(each.target.closest("figure"))));
  const start = () => {
    for (const figure of figures()) {
      figure.spec = JSON.parse(figure.querySelector("script").textContent);
      figure.spec.charts = figure.spec.charts.flatMap(charts);
      draw(figure);
      offer(figure);
      resized.observe(figure.querySelector(".charts"));
    }
  };
  document.body.append(tip);
  start();
  addEventListener("beforeprint", () => figures().forEach((figure) => draw(figure, 680)));
  addEventListener("afterprint", () => figures().forEach((figure) => draw(figure)));

  // ---- light and dark: as the system has it, until somebody chooses ----

  const theme = document.querySelector("#theme"), root = document.documentElement;
  const SCHEMES = ["light dark", "light", "dark"], NAMES = ["automatic", "light", "dark"];
  const kept = (...value) => { // a file may not be allowed to remember anything
    try { return value.length ? localStorage.setItem("salf-scheme", value[0]) : localStorage.getItem("salf-scheme"); } catch { return null; }
  };
  const choose = (scheme) => {
    const place = Math.max(0, SCHEMES.indexOf(scheme));
    root.style.colorScheme = SCHEMES[place];
    theme.textContent = `Colours: ${NAMES[place]}`;
  };
  choose(kept());
  theme.addEventListener("click", () => {
    const next = SCHEMES[(SCHEMES.indexOf(root.style.colorScheme) + 1) % SCHEMES.length];
    kept(next); choose(next);
  });

  // ---- a page that follows a folder: its server says how fresh the data are, and what is new ----

  const main = document.querySelector("main"), status = document.querySelector("#status");
  let version = main.dataset.version;
  const tell = (words, mood) => {
    if (status.textContent !== words) status.textContent = words;
    status.className = mood;
  };
  const follow = async () => {
    try {
      const answer = await fetch(`data?${version}`, { cache: "no-store" });
      const { html, version: now, status: words, mood } = await answer.json();
      if (html) {
        const opened = [...main.querySelectorAll("details")].map((each) => each.open);
        resized.disconnect();
        main.innerHTML = html;
        start();
        main.querySelectorAll("details").forEach((each, i) => { each.open = !!opened[i]; });
      }
      version = now;
      tell(words, mood);
    } catch { tell("salf watch has ended: this is what it last said.", "bad"); }
  };
  if (version !== undefined) { follow(); setInterval(follow, 1000); }
})();
