// The page of `tether explore`. It sends settings, draws frames and computes nothing of its own.
// As a page it talks to the server by a socket; in a notebook `render` gives it the widget's messages instead.

const CLASSES = ["#0072b2", "#e08e00", "#009e73", "#cc79a7", "#56b4e9", "#b8a500"]; // can be told apart by all
const MINE = ["#0072b2", "#d55e00", "#009e73", "#a35a86"];
const DASHES = [[], [7, 3], [2, 2], [9, 3, 2, 3]];
const SPEEDS = [[1, "1 step/s"], [10, "10 steps/s"], [100, "100 steps/s"], [1000, "1000 steps/s"], [0, "full speed"]];
const VIEWS = [["weights", "Weights"], ["heat", "Temperature"], ["trail", "Two weights"], ["network", "Network"]];

// ---------------------------------------------------------------- elements

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && name !== "list" && name !== "style") element[name] = value;
    else if (value !== null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

const shown = (x) => (x === "inf" ? "∞" : typeof x !== "number" ? String(x ?? "") : x !== 0 && (Math.abs(x) < 1e-3 || Math.abs(x) >= 1e5) ? x.toExponential(2).replace(/\.?0+e/, "e") : String(+x.toPrecision(5)));
const mean = (m, s, digits) => (m === null ? "–" : m.toFixed(digits) + (s ? " ± " + s.toFixed(digits) : ""));

// A number with a slider and a field. A logarithmic slider that may be 0 has it at its left end.
function number(name, field, value, change, about = "") {
  const zero = field.default === 0 && field.log;
  const low = field.log ? Math.log10(field.least || 1e-9) : field.least, high = field.log ? Math.log10(field.most) : field.most;
  const step = field.whole && !field.log ? 1 : (high - low) / 200;
  const place = (x) => (x === "inf" ? high : field.log ? (x > 0 ? Math.log10(x) : low) : x);
  const read = (at) => {
    if (!field.log) return field.whole ? Math.round(at) : +at.toPrecision(6);
    const x = zero && at <= low + step / 2 ? 0 : 10 ** at;
    return field.whole ? Math.round(x) : +x.toPrecision(3);
  };
  const text = make("input", { className: "number", inputMode: "decimal", value: shown(value), "aria-label": name, title: about });
  const slider = make("input", { type: "range", min: low, max: high, step: step, value: place(value), "aria-label": name + ", slider", title: about });
  slider.addEventListener("input", () => { const x = read(+slider.value); text.value = shown(x); change(x); });
  text.addEventListener("change", () => {
    const typed = text.value.trim().replace("∞", "inf").toLowerCase();
    const x = typed === "inf" ? "inf" : typed === "" ? NaN : Number(typed);
    if (typeof x === "number" && !Number.isFinite(x)) { text.setAttribute("aria-invalid", "true"); text.title = "not a number"; return; }
    text.removeAttribute("aria-invalid");
    slider.value = place(x);
    change(x);
  });
  const box = make("label", { className: "field" }, make("span", { title: about }, name.replaceAll("_", " ")), make("span", { className: "two" }, slider, text));
  box.show = (x) => { if (document.activeElement !== text && document.activeElement !== slider) { text.value = shown(x); slider.value = place(x); } };
  return box;
}

function choice(name, options, value, change, about = "") {
  const select = make("select", { "aria-label": name, title: about }, ...options.map(([key, label]) => make("option", { value: key, selected: key === value }, label)));
  select.value = value;
  select.addEventListener("change", () => change(select.value));
  return make("label", { className: "field" }, make("span", {}, name), select);
}

function words(name, value, change, className = "", about = "") {
  const input = make("input", { value: value, className: className, "aria-label": name, title: about, spellcheck: false, autocomplete: "off" });
  input.addEventListener("input", () => change(input.value));
  return make("label", { className: "field" }, make("span", { title: about }, name), input);
}

// The letters of a word; each says its equation when it is pointed at or focused.
function letters(facts, word) {
  return make("span", { className: "letters" }, ...[...word].map((letter) => {
    const about = facts.letters[letter] ?? "no such letter";
    return make("span", { className: "letter", tabIndex: 0, "aria-label": `${letter}: ${about}` }, letter, make("span", { className: "tip" }, about));
  }));
}

// ---------------------------------------------------------------- drawing

// An opaque canvas that knows its size in pixels and whether it is in view, so that drawing neither asks for the layout,
// nor is scaled, nor happens unseen.
class Sheet {
  constructor(label, page, ratio, className = "") {
    this.canvas = make("canvas", { role: "img", "aria-label": label, className });
    this.pen = this.canvas.getContext("2d", { alpha: false });
    this.page = page; this.wide = 0; this.inView = false; this.ratio = 0; this.pixels = [0, 0];
    const sized = ([entry]) => { const box = entry.devicePixelContentBoxSize?.[0]; this.wide = entry.contentRect.width; this.pixels = box ? [box.inlineSize, box.blockSize] : [0, 0]; this.open(this.ratio); page.redraw(); };
    this.resized = new ResizeObserver(sized);
    try { this.resized.observe(this.canvas, { box: "device-pixel-content-box" }); } catch { this.resized.observe(this.canvas); }
    this.scrolled = new IntersectionObserver((entries) => { const before = this.inView; this.inView = entries.at(-1).isIntersecting; if (this.inView && !before) page.redraw(); }, { rootMargin: "100px" });
    this.scrolled.observe(this.canvas);
    this.open(ratio);
  }
  // the sheet as a small image, a pixel for each; the browser scales it when it puts the page together, which costs least
  fill(image) {
    const { canvas } = this;
    if (canvas.width !== image.width || canvas.height !== image.height) { canvas.width = image.width; canvas.height = image.height; }
    this.pen.putImageData(image, 0, 0);
  }
  // a clean sheet: the pen, width and height
  open(ratio) {
    const { canvas, pen } = this, wide = this.wide || 260, high = wide * ratio, density = window.devicePixelRatio || 1;
    if (ratio !== this.ratio) { this.ratio = ratio; canvas.style.aspectRatio = `1 / ${ratio}`; }
    const exact = density <= 2 && Math.abs(this.pixels[1] - high * density) < 2, scale = Math.min(2, density);
    const w = exact ? this.pixels[0] : Math.round(wide * scale), h = exact ? this.pixels[1] : Math.round(high * scale);
    if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
    pen.setTransform(w / wide, 0, 0, h / high, 0, 0);
    pen.fillStyle = this.page.card;
    pen.fillRect(0, 0, wide, high);
    return [pen, wide, high];
  }
  close() { this.resized.disconnect(); this.scrolled.disconnect(); }
}

const channels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

// The colours of a field: 256 shades of each class over the ground, for how sure the networks are.
function shades(ground) {
  const table = new Uint32Array(256 * CLASSES.length);
  CLASSES.map(channels).forEach((colour, c) => {
    for (let i = 0; i < 256; i++) {
      const t = (0.75 * i) / 255, [red, green, blue] = colour.map((x, k) => Math.round(ground[k] * (1 - t) + x * t));
      table[256 * c + i] = (255 << 24) | (blue << 16) | (green << 8) | red;
    }
  });
  return table;
}

class Picture {
  // a small image, drawn large; its rows come from below
  constructor() { this.canvas = document.createElement("canvas"); this.pen = this.canvas.getContext("2d"); }
  pixels(side) {
    if (!this.image || this.image.width !== side) { this.canvas.width = this.canvas.height = side; this.image = this.pen.createImageData(side, side); this.colours = new Uint32Array(this.image.data.buffer); }
    return this.colours;
  }
  shown() { this.pen.putImageData(this.image, 0, 0); return this.canvas; }
}

// One colour over another, as the four bytes of a pixel.
function mixed(below, above, share) {
  let found = 255 << 24;
  for (const shift of [0, 8, 16]) found |= Math.round(((below >> shift) & 255) * (1 - share) + ((above >> shift) & 255) * share) << shift;
  return found;
}

function contour(pen, values, side, level, w, h) {
  // marching squares
  pen.beginPath();
  const sx = w / (side - 1), sy = h / (side - 1), cut = (a, b) => (level - a) / (b - a);
  for (let j = 0; j < side - 1; j++) for (let i = 0; i < side - 1; i++) {
    const k = j * side + i, a = values[k], b = values[k + 1], c = values[k + side + 1], d = values[k + side];
    const code = (a > level) | ((b > level) << 1) | ((c > level) << 2) | ((d > level) << 3);
    if (code === 0 || code === 15) continue;
    const ends = [];
    if ((a > level) !== (b > level)) ends.push([i + cut(a, b), j]);
    if ((b > level) !== (c > level)) ends.push([i + 1, j + cut(b, c)]);
    if ((d > level) !== (c > level)) ends.push([i + cut(d, c), j + 1]);
    if ((a > level) !== (d > level)) ends.push([i, j + cut(a, d)]);
    for (let e = 0; e + 1 < ends.length; e += 2) {
      pen.moveTo(ends[e][0] * sx, h - ends[e][1] * sy);
      pen.lineTo(ends[e + 1][0] * sx, h - ends[e + 1][1] * sy);
    }
  }
  pen.stroke();
}

function axes(pen, w, h, box, ink, xs, ys, title) {
  const [left, right, low, high] = box;
  pen.font = "11px system-ui, sans-serif"; pen.fillStyle = ink; pen.strokeStyle = ink; pen.globalAlpha = 0.75; pen.lineWidth = 1;
  pen.textAlign = "right"; pen.textBaseline = "middle";
  for (const [y, label] of ys) { const at = low + (high - low) * y; pen.fillText(label, left - 4, at); pen.globalAlpha = 0.15; pen.beginPath(); pen.moveTo(left, at); pen.lineTo(right, at); pen.stroke(); pen.globalAlpha = 0.75; }
  pen.textAlign = "center"; pen.textBaseline = "top";
  for (const [x, label] of xs) pen.fillText(label, left + (right - left) * x, low + 3);
  if (title) { pen.textAlign = "left"; pen.textBaseline = "top"; pen.fillText(title, left + 2, 1); }
  pen.globalAlpha = 1;
}

function logTicks(low, high) {
  const ticks = [];
  for (let e = Math.ceil(low - 1e-9); e <= high + 1e-9; e += Math.max(1, Math.ceil((high - low) / 5))) ticks.push([(e - low) / (high - low || 1), e >= -2 && e <= 3 ? String(+(10 ** e).toPrecision(3)) : "1e" + e]);
  if (ticks.length < 2) for (const m of [1, 1.5, 2, 3, 5, 7]) for (let e = Math.floor(low); e <= high; e++) {
    const at = (Math.log10(m) + e - low) / (high - low || 1);
    if (at > 0.03 && at < 1 && !ticks.some(([t]) => Math.abs(t - at) < 0.12)) ticks.push([at, String(+(m * 10 ** e).toPrecision(2))]);
  }
  return ticks;
}

// Round numbers from low to high, about so many: where each is, and how it is written.
function ticks(low, high, count) {
  const rough = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].find((m) => m * power >= rough * 0.999) * power, found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) found.push([(k * step - low) / (high - low || 1), shown(+(k * step).toPrecision(6))]);
  return found;
}

const stepTicks = (last) => ticks(0, last, 4).map(([at, label]) => [Math.min(at, 0.97), label]);

// Names in their colours along the top, from the right; those that find no place are left out.
function legend(pen, right, left, names, top = 2) {
  pen.font = "11px system-ui, sans-serif"; pen.textAlign = "right"; pen.textBaseline = "top"; pen.globalAlpha = 1;
  for (const [name, colour] of [...names].reverse()) {
    const wide = pen.measureText(name).width + 18;
    if (right - wide < left) return;
    pen.fillStyle = colour; pen.fillText(name, right, top); pen.fillRect(right - wide + 3, top + 4, 11, 3); right -= wide + 6;
  }
}

// ---------------------------------------------------------------- the page

class Window {
  constructor(root, connection, first, address) {
    // `first`: a setting to begin with. `address`: the page keeps its setting in the address of the browser.
    this.root = root; this.connection = connection; this.first = first; this.address = address;
    this.setting = null; this.tables = []; this.names = []; this.points = []; this.frame = null; this.cards = [];
    this.running = false; this.shot = { replica: -1, pair: [0, 1], shows: "weights" }; this.sent = 0; this.frames = 0; this.seen = [];
    this.due = false; this.news = false; // is a drawing under way, and does it bring more than moving pictures?
    this.pictures = Array.from({ length: 4 }, () => [new Picture(), new Picture()]);
    root.classList.add("tether");
    this.theme(localTheme());
    connection.listen((header, body) => this.take(header, body), (word) => this.lost(word));
  }

  send(message) { this.connection.send({ ...message, id: ++this.sent }); return this.sent; }

  theme(dark) {
    this.dark = dark;
    this.root.classList.toggle("dark", dark);
    this.ink = dark ? "#eceae4" : "#1d2329";
    this.card = dark ? "#1d2226" : "#ffffff"; // as in the style sheet
    this.shades = shades(channels(this.card));
    this.edge = dark ? 0xff8a867f : 0xff9a938c;
    this.boundary = dark ? 0xffe6e4e1 : 0xff30302c;
    this.layer = null;
    this.redraw();
  }

  take(header, body) {
    if (header.type === "facts") this.begin(header);
    else if (header.type === "setting") this.accepted(header);
    else if (header.type === "error") this.refused(header);
    else if (header.type === "word") this.reading(header);
    else if (header.type === "running") this.showRunning(header.on);
    else if (header.type === "code") this.showCode(header.code);
    else if (header.type === "gone") { this.lost(header.message); this.connection.again?.(); }
    else if (header.type === "frame") {
      const at = header.first ? {} : this.frame.at; // a frame brings what has changed
      for (const [name, kind, shape, offset] of header.arrays) {
        const count = shape.reduce((a, b) => a * b, 1);
        at[name] = kind === "u1" ? new Uint8Array(body.buffer, body.byteOffset + offset, count) : new Float32Array(body.buffer, body.byteOffset + offset, count);
        at[name].shape = shape;
      }
      this.news ||= header.rows !== undefined;
      this.frame = { ...this.frame, ...header, at };
      this.later(true);
    }
  }

  // Draw when the browser does. The process is told before, so that it makes the next frame meanwhile.
  later(frame = false) {
    this.fresh ||= frame;
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => {
      this.due = false;
      if (this.fresh) { this.fresh = false; this.frames++; this.connection.send({ type: "ack" }); }
      this.draw();
    });
  }

  redraw() { this.news = true; this.later(); }

  lost(word) {
    this.showRunning(false);
    this.gone.hidden = false; this.gone.textContent = word;
  }

  begin(facts) {
    const again = this.setting ?? this.first ?? (this.address ? fromAddress() : null); // also after a new start of the process
    this.facts = facts;
    this.build();
    this.setting = structuredClone(again ?? facts.scenes[0].setting);
    if (!again) this.describe(facts.scenes[0]);
    this.controls();
    this.apply(true);
    this.send({ type: "speed", speed: +this.speed.value });
    this.look();
  }

  // ---- controls

  build() {
    const scene = make("select", { "aria-label": "scene", onchange: () => this.scene(scene.value) }, make("option", { value: "" }, "Scenes …"), ...this.facts.scenes.map((one, i) => make("option", { value: i }, one.name)));
    this.play = make("button", { className: "main", onclick: () => this.toggle(), title: "Space" }, "Start");
    this.speed = make("select", { "aria-label": "speed", onchange: () => this.send({ type: "speed", speed: +this.speed.value }) }, ...SPEEDS.map(([value, label]) => make("option", { value: value }, label)));
    this.speed.value = "0";
    this.status = make("span", { className: "status", role: "status" });
    this.watch = make("p", { className: "watch" });
    this.gone = make("p", { className: "gone", role: "alert", hidden: true });
    this.dialog = make("dialog", { "aria-label": "the code" });
    this.problem = make("section", { className: "problem", "aria-label": "data and network" });
    this.views = make("fieldset", { className: "views" });
    this.cardbox = make("div", { className: "cards" });
    this.loss?.close(); this.accuracy?.close();
    this.loss = new Sheet("loss over steps", this, 0.42);
    this.accuracy = new Sheet("accuracy over steps", this, 0.42);
    this.root.replaceChildren(
      make("div", { className: "bar" }, make("h1", {}, "tether explore"), scene, this.play,
        make("button", { onclick: () => this.step(), title: "s" }, "Step"),
        make("button", { onclick: () => this.apply(true), title: "r" }, "Reset"),
        make("button", { onclick: () => this.reseed(), title: "n" }, "New seed"), this.speed, make("span", { className: "room" }),
        make("button", { onclick: () => this.send({ type: "code" }) }, "Show me the code"),
        this.address ? make("button", { onclick: (event) => this.share(event.currentTarget) }, "Copy link") : null,
        make("button", { onclick: () => { this.theme(!this.dark); }, "aria-label": "light or dark" }, "◐")),
      this.gone, make("div", { className: "story" }, this.watch, this.status), this.problem, this.views, this.cardbox,
      make("div", { className: "curves" }, make("figure", {}, this.loss.canvas), make("figure", {}, this.accuracy.canvas)),
      make("p", { className: "reading" }, "Curves: the test set solid, the training set thin, means over replicas; the band is one standard deviation to either side."), this.dialog);
    this.root.onkeydown = (event) => this.key(event);
    if (this.pressed) return;
    this.pressed = (event) => { if (event.target === document.body) this.key(event); };
    document.addEventListener("keydown", this.pressed);
  }

  close() {
    document.removeEventListener("keydown", this.pressed);
    for (const one of [this.loss, this.accuracy, ...this.cards]) one?.close();
    this.connection.close();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA|BUTTON|SUMMARY)$/.test(event.target.tagName)) return;
    const action = { " ": () => this.toggle(), s: () => this.step(), r: () => this.apply(true), n: () => this.reseed() }[event.key];
    if (action) { event.preventDefault(); event.stopPropagation(); action(); }
  }

  toggle() { this.send({ type: "run", on: !this.running }); }
  step() { this.send({ type: "run", on: false, steps: 1 }); }
  reseed() { this.setting.seed = Math.floor(Math.random() * 1e6); this.controls(); this.apply(true); }

  showRunning(on) {
    this.running = on;
    if (this.play) { this.play.textContent = on ? "Pause" : "Start"; this.play.setAttribute("aria-pressed", on); }
  }

  scene(i) {
    if (i === "") return;
    const scene = this.facts.scenes[+i];
    this.setting = structuredClone(scene.setting);
    this.describe(scene);
    this.controls();
    this.apply(true);
  }

  describe(scene) { this.watch.replaceChildren(make("strong", {}, scene.name + ". "), scene.watch); }

  apply(fresh = false) {
    clearTimeout(this.soonest);
    this.cards.forEach((card) => card.error.replaceChildren());
    this.problemError?.replaceChildren();
    this.pending = this.send({ type: "set", setting: this.setting, fresh });
  }

  soon(fresh = false) { clearTimeout(this.soonest); this.soonest = setTimeout(() => this.apply(fresh), 40); }

  accepted(header) {
    this.tables = header.tables; this.names = header.names; this.points = header.points;
    this.cards.forEach((card, i) => card.update(this.tables[i]));
    this.pairNames();
    if (this.address) history.replaceState(null, "", "#" + encodeURIComponent(JSON.stringify(this.setting)));
  }

  refused(header) {
    const [what, i, ...rest] = header.at;
    const box = what === "dynamics" && this.cards[i] ? this.cards[i].error : this.problemError;
    if (!box) return;
    const parts = [header.message];
    if (header.caret !== null && header.caret !== undefined) {
      const word = this.setting.dynamics[i].parts?.[rest[1]]?.word ?? "";
      parts.push(make("pre", { className: "caret" }, `${word}\n${" ".repeat(header.caret)}^`));
    }
    box.replaceChildren(...parts);
  }

  reading(header) {
    for (const card of this.cards) card.reading(header);
  }

  share(button) {
    navigator.clipboard?.writeText(location.href);
    const before = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = before; }, 1200);
  }

  showCode(code) {
    const text = make("pre", { tabIndex: 0 }, code);
    this.dialog.replaceChildren(make("h2", {}, "This Python makes what is on the screen, to the same numbers"), text,
      make("div", { className: "bar" }, make("button", { className: "main", onclick: () => navigator.clipboard?.writeText(code) }, "Copy"), make("button", { onclick: () => this.dialog.close() }, "Close")));
    if (!this.dialog.open) this.dialog.showModal();
  }

  controls() {
    const s = this.setting, kinds = Object.keys(this.facts.problems), fields = this.facts.problems[s.problem.kind];
    const label = { spiral: "spirals", trig: "sine and cosine", blobs: "blobs", circles: "circles", line: "a regression line", well: "a double well", csv: "your own CSV" };
    const file = make("input", { type: "file", accept: ".csv,.txt", "aria-label": "file of x, y, class", onchange: async () => { if (file.files[0]) { s.problem.text = await file.files[0].text(); this.apply(true); } } });
    const widths = words("hidden layers", s.hidden.join(", "), (text) => { const list = text.split(/[\s,]+/).filter(Boolean).map(Number); if (list.every(Number.isInteger)) { s.hidden = list; this.soon(true); } }, "", "widths, separated by commas");
    this.problemError = make("div", { className: "error", role: "alert" });
    this.problem.replaceChildren(
      choice("data", kinds.map((kind) => [kind, label[kind]]), s.problem.kind, (kind) => {
        s.problem = { kind, ...Object.fromEntries(Object.entries(this.facts.problems[kind]).map(([name, field]) => [name, field.default])) };
        this.watch.replaceChildren(); // the scene is no longer what it says
        this.controls(); if (kind !== "csv") this.apply(true);
      }),
      ...(s.problem.kind === "csv" ? [file] : []),
      ...Object.entries(fields).map(([name, field]) => number(name, field, s.problem[name] ?? field.default, (x) => { s.problem[name] = x; this.soon(true); })),
      ...(s.problem.kind === "well" ? [] : [widths, choice("activation", this.facts.activations.map((a) => [a, a]), s.activation, (a) => { s.activation = a; this.apply(true); }),
        number("batch", { default: 25, least: 1, most: 500, whole: true, log: true }, s.batch ?? 500, (x) => { s.batch = x; this.soon(true); })]),
      number("replicas", { default: 10, least: 1, most: this.facts.most.replicas, whole: true }, s.replicas, (x) => { s.replicas = x; this.soon(true); }),
      number("seed", { default: 0, least: 0, most: 1000, whole: true }, s.seed, (x) => { s.seed = x; this.soon(true); }),
      this.problemError);
    this.viewControls();
    this.cards.forEach((card) => card.close());
    this.cards = s.dynamics.map((row, i) => new Card(this, i));
    this.cardbox.replaceChildren(...this.cards.map((card) => card.element));
  }

  viewControls() {
    const group = "view" + Math.random();
    const radios = VIEWS.map(([key, label]) => make("label", {}, make("input", { type: "radio", name: group, checked: this.shot.shows === key, onchange: () => { this.shot.shows = key; this.pairBox.hidden = key !== "trail"; this.look(); this.redraw(); } }), label));
    const who = make("select", { "aria-label": "which replica is drawn", onchange: () => { this.shot.replica = +who.value; this.look(); } }, make("option", { value: -1 }, "mean of all"), ...Array.from({ length: this.setting.replicas }, (_, i) => make("option", { value: i }, "replica " + i)));
    who.value = String(Math.min(this.shot.replica, this.setting.replicas - 1));
    this.pairBox = make("span", { className: "two", hidden: this.shot.shows !== "trail" });
    this.views.replaceChildren(make("legend", {}, "Instrument"), ...radios, this.pairBox, make("label", {}, "field of", who), make("span", { className: "room" }),
      make("button", { disabled: this.setting.dynamics.length >= this.facts.most.dynamics, onclick: () => { this.setting.dynamics.push({ method: "sgd", fields: { lr: 0.1 }, label: "SGD" }); this.controls(); this.apply(); } }, "+ another dynamics"));
    this.pairNames();
  }

  pairNames() {
    if (!this.names.length || !this.pairBox) return;
    let base = 0; const options = [];
    for (const [name, shape] of this.names) {
      const count = shape.reduce((a, b) => a * b, 1);
      for (let k = 0; k < Math.min(count, 60); k++) options.push([base + k, shape.length > 1 ? `${name}[${Math.floor(k / shape[1])}, ${k % shape[1]}]` : `${name}[${k}]`]);
      base += count;
    }
    this.labels = new Map(options);
    const pick = (which) => { const select = make("select", { "aria-label": ["weight across", "weight upwards"][which], onchange: () => { this.shot.pair[which] = +select.value; this.look(); } }, ...options.map(([value, label]) => make("option", { value }, label))); select.value = String(this.shot.pair[which]); return select; };
    this.pairBox.replaceChildren(pick(0), pick(1));
  }

  look() { this.send({ type: "view", ...this.shot }); }

  // ---- pictures

  draw() {
    const f = this.frame, news = this.news;
    if (!f || !this.cards.length) return;
    this.news = false;
    const now = performance.now();
    this.seen.push(now);
    while (this.seen[0] < now - 1000) this.seen.shift();
    this.cards.forEach((card, i) => { if (f.rows[i]) card.draw(f, f.rows[i], news); });
    if (!news) return;
    this.status.textContent = `step ${f.step.toLocaleString("en")}  ·  ${shown(Math.round(f.rate))} steps/s  ·  ${this.seen.length} frames/s`;
    this.curve(this.loss, "loss", 1, true);
    this.curve(this.accuracy, "accuracy %", 5, false);
  }

  // The training points, drawn once for each width and theme.
  dots(w) {
    const f = this.frame, h = w, scale = Math.min(2, window.devicePixelRatio || 1), wide = Math.round(w * scale);
    if (this.layer && Math.abs(this.layer.width - wide) < 2 && this.layer.of === this.points) return this.layer;
    const layer = (this.layer = make("canvas", { width: wide, height: wide })), pen = layer.getContext("2d");
    layer.of = this.points;
    pen.scale(scale, scale);
    const [left, right, low, high] = f.frame, size = Math.max(1.6, w / 160);
    pen.lineWidth = 0.7; pen.strokeStyle = this.dark ? "#000" : "#fff";
    for (const [x, y, c] of this.points) {
      pen.fillStyle = CLASSES[c];
      pen.beginPath();
      const a = ((x - left) / (right - left)) * w, b = h - ((y - low) / (high - low)) * h;
      if (c % 2) pen.rect(a - size, b - size, 2 * size, 2 * size); else pen.arc(a, b, 1.15 * size, 0, 7);
      pen.fill(); pen.stroke();
    }
    return layer;
  }

  curve(sheet, title, column, log) {
    if (!sheet.inView) return;
    const [pen, w, h] = sheet.open(0.42), box = [46, w - 8, h - 18, 16], f = this.frame;
    const curves = f.rows.map((_, i) => f.at["curve" + i]).filter(Boolean);
    let low = Infinity, high = -Infinity, last = 1;
    for (const c of curves) for (let r = 0; r < c.shape[0]; r++) {
      last = Math.max(last, c[r * c.shape[1]]);
      for (const k of [column, column + 2]) { const y = c[r * c.shape[1] + k]; if (Number.isFinite(y) && (!log || y > 0)) { low = Math.min(low, y); high = Math.max(high, y); } }
    }
    if (!(low < Infinity)) { pen.fillStyle = this.ink; pen.font = "12px system-ui"; pen.fillText(`no ${title} here`, 50, h / 2); return; }
    if (log) { low = Math.log10(Math.max(low, 1e-6)); high = Math.log10(high) + 0.05; if (high - low < 0.3) low = high - 0.3; } else { low = Math.max(0, Math.min(low, 95) - 2); high = 100; }
    const X = (x) => box[0] + (box[1] - box[0]) * (x / last), Y = (y) => { const v = log ? Math.log10(Math.max(y, 1e-9)) : y; return box[2] + (box[3] - box[2]) * Math.min(1.02, Math.max(0, (v - low) / (high - low))); };
    const ys = log ? logTicks(low, high) : ticks(low, high, 5);
    axes(pen, w, h, box, this.ink, stepTicks(last), ys, title);
    legend(pen, w - 8, box[0] + pen.measureText(title).width + 12, f.rows.map((_, i) => [this.setting.dynamics[i]?.label ?? this.setting.dynamics[i]?.method ?? "parts", MINE[i]]));
    f.rows.forEach((_, i) => {
      const c = f.at["curve" + i];
      if (!c || !c.shape[0]) return;
      const n = c.shape[0], width = c.shape[1], at = (r, k) => c[r * width + k];
      pen.fillStyle = pen.strokeStyle = MINE[i];
      pen.globalAlpha = 0.15; pen.beginPath();
      for (let r = 0; r < n; r++) pen.lineTo(X(at(r, 0)), Y(at(r, column + 2) + at(r, column + 3)));
      for (let r = n - 1; r >= 0; r--) pen.lineTo(X(at(r, 0)), Y(Math.max(log ? 1e-9 : 0, at(r, column + 2) - at(r, column + 3))));
      pen.fill();
      for (const [k, thick, alpha] of [[column, 1, 0.6], [column + 2, 2, 1]]) {
        pen.globalAlpha = alpha; pen.lineWidth = thick; pen.setLineDash(DASHES[i]); pen.beginPath();
        for (let r = 0; r < n; r++) pen.lineTo(X(at(r, 0)), Y(at(r, k)));
        pen.stroke();
      }
      pen.setLineDash([]); pen.globalAlpha = 1;
    });
  }
}

// ---------------------------------------------------------------- one dynamics

class Card {
  constructor(page, i) {
    this.page = page; this.i = i;
    this.field = new Sheet("decision field of dynamics " + (i + 1), page, 1);
    this.dots = make("canvas", { className: "dots", "aria-hidden": true, hidden: true });
    this.plot = new Sheet("instrument of dynamics " + (i + 1), page, 0.7, "plot");
    this.scores = make("div", { className: "scores" });
    this.error = make("div", { className: "error", role: "alert" });
    this.box = make("div", {});
    this.element = make("section", { className: "card", "aria-label": "dynamics " + (i + 1), style: `--mine: ${MINE[i]}` }, this.head(), make("div", { className: "pictures" }, make("div", {}, make("div", { className: "field-box" }, this.field.canvas, this.dots), this.scores), this.plot.canvas), this.box, this.error);
    this.fill();
  }

  close() { this.field.close(); this.plot.close(); }

  get row() { return this.page.setting.dynamics[this.i]; }

  head() {
    const { page } = this, methods = Object.keys(page.facts.methods);
    const select = make("select", { "aria-label": "method of dynamics " + (this.i + 1), onchange: () => this.choose(select.value) }, make("option", { value: "" }, "own table"), ...methods.map((name) => make("option", { value: name }, name)));
    select.value = this.row.method ?? "";
    select.title = this.row.method ? page.facts.methods[this.row.method].about : "your own table";
    select.style.width = "132px";
    const label = make("input", { value: this.row.label ?? this.row.method ?? "parts", "aria-label": "name of dynamics " + (this.i + 1), oninput: () => { this.row.label = label.value; } });
    const remove = make("button", { "aria-label": "remove dynamics " + (this.i + 1), onclick: () => { page.setting.dynamics.splice(this.i, 1); page.controls(); page.apply(); }, disabled: page.setting.dynamics.length < 2 }, "×");
    this.select = select; this.label = label;
    return make("header", {}, label, select, remove);
  }

  choose(name) {
    const { page } = this;
    page.setting.dynamics[this.i] = name ? { method: name, fields: { ...page.facts.methods[name].fields }, label: name } : { parts: this.table?.length ? this.table : [{ where: "*", word: "X" }], label: "parts" };
    page.controls();
    page.apply();
  }

  fill() {
    const { page, row } = this;
    if (row.method) {
      const known = page.facts.methods[row.method];
      row.fields = { ...known.fields, ...row.fields };
      const fields = Object.entries(known.fields).map(([name, standard]) => {
        const change = (x) => { row.fields[name] = x; page.soon(); }, value = row.fields[name];
        if (typeof standard === "boolean") return make("label", { className: "field" }, make("span", { title: page.facts.symbols[name] ?? "" }, name.replaceAll("_", " ")), make("input", { type: "checkbox", checked: value, "aria-label": name, onchange: (event) => change(event.target.checked) }));
        if (typeof standard === "string" && !["temperature", "noise", "output_temperature", "slow_weight_decay", "scale"].includes(name)) return words(name.replaceAll("_", " "), value, change, "", page.facts.symbols[name] ?? "");
        const field = page.facts.numbers[name] ?? page.facts.numbers[name.replace(/^.*_/, "")] ?? (Number.isInteger(standard) ? { default: standard, least: 1, most: 50, whole: true } : { default: standard, least: 0, most: Math.max(1, 5 * standard) });
        return number(name, { ...field, default: standard || 0 }, value === "" ? "" : value, change, page.facts.symbols[name] ?? "");
      });
      this.details = make("details", { ontoggle: () => this.update(this.table) }, make("summary", {}, "Its table of parts"), (this.parts = make("div", {})));
      this.spelled = make("div", { className: "spelled" });
      this.box.replaceChildren(make("div", { className: "fields" }, ...fields), make("div", { className: "reading", title: known.source }, known.about), this.spelled, this.details);
    } else {
      this.details = null;
      this.parts = make("div", {});
      const add = make("button", { onclick: () => { row.parts.unshift({ where: "*.weight", word: "X" }); this.rows(); page.apply(); } }, "+ part");
      this.box.replaceChildren(this.parts, add);
      this.rows();
    }
  }

  // the table of a published method, to be edited: then it is a table of one's own
  update(table) {
    this.table = table;
    if (!this.details) return;
    this.spelled.replaceChildren(...(table ?? []).map((part) => make("div", {}, make("span", {}, part.where), letters(this.page.facts, part.word))));
    if (!this.details.open || this.parts.contains(document.activeElement)) return;
    this.parts.replaceChildren(...(table ?? []).map((part, k) => this.part(structuredClone(table), k, true)), ...(table?.length ? [] : ["torch's own: no parts"]));
  }

  rows() { this.parts.replaceChildren(...this.row.parts.map((_, k) => this.part(this.row.parts, k, false))); this.said = {}; }

  part(parts, k, published) {
    const { page } = this, part = parts[k];
    const changed = (again) => {
      if (published) {
        page.setting.dynamics[this.i] = { parts, label: (this.row.label ?? this.row.method) + ", edited" };
        this.select.value = ""; this.label.value = this.row.label;
        const open = document.activeElement?.getAttribute("aria-label");
        this.fill();
        this.parts.querySelectorAll(".part")[k]?.querySelector(`[aria-label="${open}"]`)?.focus();
      } else if (again) this.rows();
      page.soon();
    };
    const spelling = make("div", { className: "letters" }), reading = make("div", { className: "reading", "data-word": part.word ?? "X" });
    const spell = (word) => {
      spelling.replaceChildren(letters(page.facts, word));
      reading.dataset.word = word;
      page.send({ type: "word", word });
    };
    const word = words("word", part.word ?? "X", (text) => { part.word = text; spell(text); changed(false); }, "word", "letters, applied from left to right");
    const pick = (name, none) => {
      const kinds = page.facts.choices[name], now = part[name]?.kind ?? none;
      const options = [...(none in kinds ? [] : [[none, none]]), ...Object.keys(kinds).map((kind) => [kind, kind])];
      const box = [choice(name, options, now, (kind) => { if (kind === "none") delete part[name]; else part[name] = { kind, ...(kinds[kind]?.settings ?? {}) }; changed(true); }, kinds[now]?.about ?? "")];
      for (const [key, standard] of Object.entries(kinds[now]?.settings ?? {})) {
        const whole = ["k", "nap"].includes(key), field = key === "share" ? { default: 0.5, least: 0, most: 0.95 } : whole ? { default: 5, least: 1, most: 50, whole } : { default: standard, least: 0.05, most: 20, log: true };
        box.push(number(key, field, part[name][key] ?? standard, (x) => { part[name][key] = x; changed(false); }, page.facts.symbols[key] ?? ""));
      }
      return box;
    };
    const numbers = Object.entries(page.facts.numbers).map(([name, field]) => { const box = number(name, field, part[name] ?? field.default, (x) => { part[name] = x; changed(false); }, page.facts.symbols[name]); box.dataset.number = name; return box; });
    const remove = make("button", { "aria-label": `remove part ${k + 1}`, onclick: () => { parts.splice(k, 1); changed(true); } }, "×");
    spell(part.word ?? "X");
    return make("div", { className: "part" }, make("div", { className: "bar" }, words("where", part.where ?? "*", (text) => { part.where = text; changed(false); }, "where", "a glob on parameter names"), word, parts.length > 1 ? remove : null), spelling, reading,
      make("div", { className: "fields" }, ...numbers, ...pick("on", "Free"), ...pick("metric", "none"), ...pick("rhythm", "none")));
  }

  reading(header) {
    for (const line of this.box.querySelectorAll(".reading[data-word]")) {
      if (line.dataset.word !== header.word) continue;
      line.textContent = header.about ?? header.error;
      for (const field of line.parentElement.querySelectorAll("[data-number]")) field.classList.toggle("idle", header.uses !== undefined && !header.uses.includes(field.dataset.number));
    }
  }

  draw(f, row, news) {
    if (this.field.inView) this.say(f);
    if (news) this.tell(row);
    if (this.plot.inView && (news || this.page.frames % 4 === 0)) this[this.page.shot.shows](f, row, news); // every fourth frame will do
  }

  say(f) {
    const all = f.at.fields, density = f.at["density" + this.i], mine = all && this.i < all.shape[0], size = mine ? all.length / all.shape[0] : 0;
    const field = mine ? all.subarray(this.i * size, (this.i + 1) * size) : null, many = f.classes > 0 && mine;
    if (this.dots.hidden === many) this.dots.hidden = !many;
    if (many) return this.classes(f, field, all.shape.at(-1));
    const [pen, w, h] = this.field.open(1);
    if (density) this.well(pen, w, h, f, density); else if (mine) this.line(pen, w, h, f, field, all.shape.at(-1));
  }

  tell(row) {
    const s = row.scores, lines = [];
    if (s[6] !== null) lines.push(`test ${mean(s[6], s[7], 1)} %, loss ${mean(s[2], s[3], 3)}`, `training ${mean(s[4], s[5], 1)} %, loss ${mean(s[0], s[1], 3)}`);
    else if (s[2] !== null) lines.push(`test loss ${mean(s[2], s[3], 4)}`, `training loss ${mean(s[0], s[1], 4)}`);
    if (row.tensors.some((t) => t.surface)) lines.push(`violation ${row.violation === null ? "not finite" : row.violation.toExponential(1)}`);
    if (row.stopped) lines.push(`${row.stopped} replica(s) diverged and rest`);
    if (row.word) lines.push(row.word);
    if (this.told !== lines.join("\n")) { this.told = lines.join("\n"); this.scores.replaceChildren(...lines.map((line) => make("div", {}, line))); }
  }

  classes(f, field, side) {
    const { page } = this, { shades } = page, picture = page.pictures[this.i][0], pixels = picture.pixels(side), area = side * side, floor = 255 / f.classes, stretch = 255 / (255 - floor);
    for (let row = 0, from = 0; row < side; row++) for (let i = 0, to = (side - 1 - row) * side; i < side; i++, from++, to++) {
      const v = field[from], right = i + 1 < side ? field[from + 1] : v, above = row + 1 < side ? field[from + side] : v;
      if (f.classes === 2) {
        const slope = Math.max(Math.abs(right - v), Math.abs(above - v)), near = slope - Math.abs(v - 127.5); // within a pixel of the boundary?
        pixels[to] = v < 128 ? shades[255 - 2 * v] : shades[1 + 2 * v];
        if (near > 0) pixels[to] = mixed(pixels[to], page.boundary, near / slope);
      } else pixels[to] = right !== v || above !== v ? page.edge : shades[256 * v + Math.max(0, Math.round((field[area + from] - floor) * stretch))];
    }
    this.field.fill(picture.image);
    const layer = page.dots(this.field.wide || 260);
    if (this.dots.of === layer) return; // the points lie on a canvas of their own, which stays as it is
    this.dots.of = layer; this.dots.width = layer.width; this.dots.height = layer.height;
    this.dots.getContext("2d").drawImage(layer, 0, 0);
  }

  line(pen, w, h, f, field, n) {
    const { page } = this, [left, right, low, high] = f.frame, X = (i) => (i / (n - 1)) * w, Y = (y) => h - ((y - low) / (high - low)) * h;
    pen.fillStyle = page.ink; pen.globalAlpha = 0.6;
    for (const [x, y] of page.points) { pen.beginPath(); pen.arc(((x - left) / (right - left)) * w, Y(y), 2.4, 0, 7); pen.fill(); }
    pen.globalAlpha = 0.22; pen.fillStyle = MINE[this.i]; pen.beginPath();
    for (let i = 0; i < n; i++) pen.lineTo(X(i), Y(field[i] + field[n + i]));
    for (let i = n - 1; i >= 0; i--) pen.lineTo(X(i), Y(field[i] - field[n + i]));
    pen.fill(); pen.globalAlpha = 1; pen.strokeStyle = MINE[this.i]; pen.lineWidth = 2.2; pen.beginPath();
    for (let i = 0; i < n; i++) pen.lineTo(X(i), Y(field[i]));
    pen.stroke();
  }

  well(pen, w, h, f, density) {
    const { page } = this, n = density.shape[1], most = Math.max(1e-9, ...density.subarray(0, 2 * n)) * 1.15, X = (i) => ((i + 0.5) / n) * w, Y = (y) => h - 16 - (y / most) * (h - 34);
    pen.fillStyle = MINE[this.i]; pen.globalAlpha = 0.55;
    for (let i = 0; i < n; i++) pen.fillRect((i / n) * w, Y(density[i]), w / n - 0.5, h - 16 - Y(density[i]));
    pen.globalAlpha = 1; pen.lineWidth = 2; pen.strokeStyle = page.ink; pen.beginPath();
    for (let i = 0; i < n; i++) pen.lineTo(X(i), Y(density[n + i]));
    pen.stroke();
    pen.globalAlpha = 0.4; pen.setLineDash([3, 3]); pen.lineWidth = 1; pen.beginPath();
    for (let i = 0; i < n; i++) pen.lineTo(X(i), Math.max(4, h - 16 - (density[2 * n + i] / 3) * (h - 34)));
    pen.stroke(); pen.setLineDash([]); pen.globalAlpha = 1;
    pen.fillStyle = page.ink; pen.font = "11px system-ui"; pen.textAlign = "left";
    pen.fillText("bars: visited; line: exp(−U/τ); dashes: U", 4, 12);
    pen.textAlign = "center"; for (const q of [-1, 0, 1]) pen.fillText(String(q), ((q - f.frame[0]) / (f.frame[1] - f.frame[0])) * w, h - 4);
  }

  // ---- instruments, each on the second canvas

  weights(f, row) {
    const tensors = row.tensors, all = f.at.histograms, [pen, w, h] = this.plot.open(Math.min(1.6, 0.17 * tensors.length + 0.02)), each = h / tensors.length, { page } = this;
    if (!all || this.i >= all.shape[0]) return;
    pen.font = "11px system-ui"; pen.textBaseline = "top";
    tensors.forEach((tensor, k) => {
      const at = this.i * tensors.length + k, bins = all.shape[2], counts = all.subarray(at * bins, (at + 1) * bins), range = f.at.most[at], most = Math.max(1, ...counts), top = k * each, low = top + each - 4, X = (x) => w / 2 + (x / range) * (w / 2 - 2);
      pen.fillStyle = MINE[this.i]; pen.globalAlpha = 0.75; pen.beginPath();
      for (let b = 0; b < bins; b++) { const tall = (counts[b] / most) * (each - 18); if (tall) pen.rect((b / bins) * w, low - tall, w / bins - 0.6, tall); }
      pen.fill();
      pen.globalAlpha = 1; pen.fillStyle = page.ink; pen.textAlign = "left"; pen.fillText(tensor.name + (tensor.surface ? "  on " + tensor.surface : ""), 2, top + 1);
      pen.textAlign = "right"; pen.fillText("±" + shown(+range.toPrecision(2)), w - 2, top + 1);
      pen.strokeStyle = page.ink; pen.globalAlpha = 0.3; pen.lineWidth = 1; pen.beginPath(); pen.moveTo(w / 2, top + 14); pen.lineTo(w / 2, low); pen.moveTo(0, low); pen.lineTo(w, low); pen.stroke(); pen.globalAlpha = 1;
      if (tensor.radius !== null) { pen.strokeStyle = page.ink; pen.lineWidth = 2; pen.setLineDash([4, 2]); pen.beginPath(); for (const r of [-tensor.radius, tensor.radius]) { pen.moveTo(X(r), top + 13); pen.lineTo(X(r), low); } pen.stroke(); pen.setLineDash([]); }
    });
  }

  heat(f, row, news) {
    if (!news) return;
    const { page } = this, c = f.at["curve" + this.i], kinetic = row.parts.map((part, k) => [part, k]).filter(([part]) => part.measured !== null);
    const [pen, w, h] = this.plot.open(kinetic.length ? 0.85 : 0.12), ink = page.ink;
    if (!kinetic.length || !c || !c.shape[0]) { pen.fillStyle = ink; pen.font = "12px system-ui"; pen.fillText("no momenta: no kinetic temperature", 6, 20); return; }
    const n = c.shape[0], width = c.shape[1], last = Math.max(1, c[(n - 1) * width]), at = (r, k) => c[r * width + k], split = row.parts.some((part) => part.thermostat !== null) ? 0.6 : 1;
    let low = Infinity, high = -Infinity;
    for (const [part, k] of kinetic) { for (let r = 0; r < n; r++) { const y = at(r, 10 + 2 * k); if (y > 0) { low = Math.min(low, y); high = Math.max(high, y); } } if (part.target > 0) { low = Math.min(low, part.target); high = Math.max(high, part.target); } }
    if (!(low < Infinity)) { low = 1e-6; high = 1; }
    low = Math.floor(Math.log10(low)); high = Math.max(low + 1, Math.ceil(Math.log10(high)));
    const box = [42, w - 6, h * split - 18, 16], X = (x) => box[0] + (box[1] - box[0]) * (x / last), Y = (y) => box[2] + (box[3] - box[2]) * Math.min(1, Math.max(0, (Math.log10(Math.max(y, 1e-30)) - low) / (high - low)));
    axes(pen, w, h, box, ink, stepTicks(last), logTicks(low, high), "kinetic temperature, target dotted");
    for (const [part, k] of kinetic) {
      pen.strokeStyle = CLASSES[k % 6]; pen.lineWidth = 1.6; pen.beginPath();
      for (let r = 0; r < n; r++) pen.lineTo(X(at(r, 0)), Y(at(r, 10 + 2 * k)));
      pen.stroke();
      if (part.target > 0) { pen.setLineDash([1, 4]); pen.lineWidth = 2; pen.beginPath(); pen.moveTo(box[0], Y(part.target)); pen.lineTo(box[1], Y(part.target)); pen.stroke(); pen.setLineDash([]); }
    }
    if (kinetic.length > 1) legend(pen, w - 6, box[0] + (split < 1 ? 80 : 190), kinetic.map(([part, k]) => [part.where, CLASSES[k % 6]]), split < 1 ? h * split + 3 : 2);
    if (split < 1) {
      let least = 0, most = 0;
      const thermostats = row.parts.map((part, k) => [part, k]).filter(([part]) => part.thermostat !== null);
      for (const [, k] of thermostats) for (let r = 0; r < n; r++) { const y = at(r, 11 + 2 * k); if (Number.isFinite(y)) { least = Math.min(least, y); most = Math.max(most, y); } }
      const below = [42, w - 6, h - 18, h * split + 16], V = (y) => below[2] + (below[3] - below[2]) * ((y - least) / (most - least || 1));
      axes(pen, w, h, below, ink, stepTicks(last), [[0, shown(+least.toPrecision(2))], [1, shown(+most.toPrecision(2))]], "");
      pen.fillStyle = ink; pen.textAlign = "left"; pen.fillText("thermostat ξ", below[0] + 2, h * split + 3);
      for (const [, k] of thermostats) { pen.strokeStyle = CLASSES[k % 6]; pen.lineWidth = 1.6; pen.beginPath(); for (let r = 0; r < n; r++) pen.lineTo(X(at(r, 0)), V(at(r, 11 + 2 * k))); pen.stroke(); }
    }
  }

  trail(f, row) {
    const { page } = this, slice = f.at["slice" + this.i], extent = f.at["extent" + this.i], trail = f.at["trail" + this.i], [pen, w, h] = this.plot.open(1);
    if (!slice || !trail) { pen.fillStyle = page.ink; pen.font = "12px system-ui"; pen.fillText("choose two different weights", 6, 20); return; }
    const side = slice.shape[0], logs = slice.map((x) => Math.log10(Math.max(x, 1e-6) + 1e-4));
    let low = Infinity, high = -Infinity;
    for (const x of logs) if (Number.isFinite(x)) { low = Math.min(low, x); high = Math.max(high, x); }
    const ground = page.dark ? 30 : 255, reach = page.dark ? 110 : -120;
    pen.imageSmoothingEnabled = true;
    const picture = page.pictures[this.i][1], pixels = picture.pixels(side);
    for (let k = 0; k < side * side; k++) {
      const t = (logs[k] - low) / (high - low || 1), v = Math.max(0, Math.min(255, Math.round(ground + reach * t)));
      pixels[(side - 1 - Math.floor(k / side)) * side + (k % side)] = (255 << 24) | (v << 16) | (v << 8) | v;
    }
    pen.drawImage(picture.shown(), 0, 0, w, h);
    pen.strokeStyle = page.ink; pen.globalAlpha = 0.35; pen.lineWidth = 0.8;
    for (let k = 1; k < 8; k++) contour(pen, logs, side, low + ((high - low) * k) / 8, w, h);
    pen.globalAlpha = 1;
    const X = (x) => ((x - extent[0]) / (extent[1] - extent[0])) * w, Y = (y) => h - ((y - extent[2]) / (extent[3] - extent[2])) * h, n = trail.length / 2;
    pen.strokeStyle = MINE[this.i]; pen.lineWidth = 1.2; pen.lineJoin = "round";
    for (let a = 0; a < n - 1; a += 50) { pen.globalAlpha = 0.2 + (0.8 * a) / n; pen.beginPath(); for (let k = a; k <= Math.min(a + 50, n - 1); k++) pen.lineTo(X(trail[2 * k]), Y(trail[2 * k + 1])); pen.stroke(); }
    pen.globalAlpha = 1;
    if (n) { pen.fillStyle = MINE[this.i]; pen.strokeStyle = page.ink; pen.beginPath(); pen.arc(X(trail[2 * n - 2]), Y(trail[2 * n - 1]), 4, 0, 7); pen.fill(); pen.stroke(); }
    const radius = (label) => row.tensors.find((tensor) => label && label.startsWith(tensor.name + "["))?.radius ?? null, names = page.shot.pair.map((k) => page.labels?.get(k) ?? "");
    pen.setLineDash([4, 3]); pen.strokeStyle = page.ink; pen.beginPath();
    const across = radius(names[0]), upwards = radius(names[1]);
    if (across !== null) for (const r of [-across, across]) { pen.moveTo(X(r), 0); pen.lineTo(X(r), h); }
    if (upwards !== null) for (const r of [-upwards, upwards]) { pen.moveTo(0, Y(r)); pen.lineTo(w, Y(r)); }
    pen.stroke(); pen.setLineDash([]);
    pen.fillStyle = page.ink; pen.font = "11px system-ui"; pen.textAlign = "right"; pen.fillText(names[0], w - 4, h - 6); pen.textAlign = "left"; pen.fillText(names[1], 4, 12);
  }

  network(f, row, news) {
    const { page } = this, weights = f.at["weights" + this.i];
    if (!news && weights?.length > 400) return;
    const [pen, w, h] = this.plot.open(1), shapes = page.names.filter(([, shape]) => shape.length === 2);
    if (!weights || !shapes.length) { pen.fillStyle = page.ink; pen.font = "12px system-ui"; pen.fillText("too many weights to draw", 6, 20); return; }
    const layers = [shapes[0][1][1], ...shapes.map(([, shape]) => shape[0])], X = (l) => 14 + (l / (layers.length - 1)) * (w - 28), Y = (l, k) => h * ((k + 0.5) / layers[l]);
    let most = 1e-9; for (const x of weights) most = Math.max(most, Math.abs(x));
    let offset = 0, l = 0;
    for (const [, shape] of page.names) {
      const count = shape.reduce((a, b) => a * b, 1);
      if (shape.length === 2) {
        const lines = [];
        for (let k = 0; k < count; k++) lines.push([Math.abs(weights[offset + k]), k]);
        if (lines.length > 1500) { lines.sort((a, b) => b[0] - a[0]); lines.length = 1500; }
        for (const [size, k] of lines) {
          const to = Math.floor(k / shape[1]), from = k % shape[1], value = weights[offset + k];
          pen.strokeStyle = value < 0 ? CLASSES[0] : CLASSES[1]; pen.lineWidth = 0.2 + (4 * size) / most; pen.globalAlpha = 0.15 + (0.75 * size) / most;
          pen.beginPath(); pen.moveTo(X(l), Y(l, from)); pen.lineTo(X(l + 1), Y(l + 1, to)); pen.stroke();
        }
        l++;
      }
      offset += count;
    }
    pen.globalAlpha = 1; pen.fillStyle = page.ink;
    layers.forEach((count, layer) => { for (let k = 0; k < count; k++) { pen.beginPath(); pen.arc(X(layer), Y(layer, k), Math.max(1, Math.min(4, (h / count) * 0.3)), 0, 7); pen.fill(); } });
  }
}

// ---------------------------------------------------------------- ways to the process

function localTheme() { return window.matchMedia("(prefers-color-scheme: dark)").matches; }

function fromAddress() {
  try { return JSON.parse(decodeURIComponent(location.hash.slice(1))); } catch { return null; }
}

function bySocket() {
  let socket, listen, lost, open = false;
  const connect = () => {
    socket = new WebSocket(`ws://${location.host}/socket`);
    socket.binaryType = "arraybuffer";
    socket.onopen = () => { open = true; };
    socket.onmessage = (event) => {
      if (typeof event.data === "string") return listen(JSON.parse(event.data), null);
      const length = new DataView(event.data).getUint32(0, true), header = JSON.parse(new TextDecoder().decode(new Uint8Array(event.data, 4, length)));
      listen(header, new Uint8Array(event.data, 4 + length));
    };
    socket.onclose = () => { if (open) lost("The Python process has ended. Start `tether explore` again on this port; the page goes on by itself."); open = false; setTimeout(connect, 1500); };
  };
  return {
    listen(take, gone) { listen = take; lost = gone; connect(); },
    send(message) { if (socket?.readyState === 1) socket.send(JSON.stringify(message)); },
    again() { open = false; }, // the server closes the socket, and the page has said why
  };
}

function byWidget(model) {
  let heard;
  return {
    listen(take) {
      heard = (message, buffers) => { const body = buffers?.[0]; take(message, body ? new Uint8Array(body.buffer.slice(body.byteOffset, body.byteOffset + body.byteLength)) : null); };
      model.on("msg:custom", heard);
      model.send({ type: "hello" });
    },
    send(message) { model.send(message); },
    again() { setTimeout(() => model.send({ type: "hello" }), 1500); },
    close() { model.off("msg:custom", heard); model.send({ type: "bye" }); },
  };
}

export default {
  render({ model, el }) {
    const root = document.createElement("div");
    el.append(root);
    const shown = new Window(root, byWidget(model), model.get("first") ?? null, false);
    return () => shown.close();
  },
};

const home = document.getElementById("tether-window");
if (home) window.tether = new Window(home, bySocket(), null, true);
