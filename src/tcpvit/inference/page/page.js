"use strict";
// What the visitor sees: one state, written into the address, and a picture of it in every section.

const DATA = JSON.parse(document.getElementById("data").textContent);
const WEIGHTS = [...document.querySelectorAll(".weights")].map((holder) => bytesOf(holder.textContent).buffer);
const NETWORKS = DATA.networks.map((about, i) => new Network(about, WEIGHTS[i]));
const [TCP, TWIN = null] = NETWORKS;
const SIDE = TCP.side, GRID = TCP.grid, PATCH = TCP.patch, PATCHES = GRID * GRID;
const MAPS = { qkv: "queries, keys, values", proj: "projection", fc1: "first of the FFN", fc2: "second of the FFN" };
const PAINTS = ["#20242a", "#f5f4f0", "#c0392b", "#e08e2b", "#e7c948", "#4f8a3c", "#3f7fbf", "#7a5236"];
const CHANNELS = ["red", "green", "blue"];
const $ = (id) => document.getElementById(id);

const state = {
  image: "ship" in DATA.images ? "ship" : Object.keys(DATA.images)[0],
  keep: [1, 1, 1], turn: 1, view: 0, patch: Math.floor(PATCHES / 2 + GRID / 2), ask: "class",
  block: TCP.depth - 1, head: null, slice: null, map: "qkv", stage: 0, theme: "",
};
let pixels = new Uint8Array(3 * SIDE * SIDE), found = null, paintColour = null;

// ------------------------------------------------------------------------------------------------- computing

// Everything that follows from the image, the slices and the transform.
function compute() {
  const input = normalised(pixels, DATA.mean, DATA.std), transform = scrubbed(TCP.transform, state.turn);
  const begin = performance.now(), tcp = TCP.run(input, state.keep, transform), middle = performance.now();
  const twin = TWIN && TWIN.run(input);
  found = { input, transform, tcp, twin, shares: NETWORKS.map((_, i) => softmax((i ? twin : tcp).logits)), milliseconds: middle - begin };
}

// What can wait until the visitor pauses: the slices taken away, the times.
function computeLater() {
  if (!found) return;
  const alone = [null, 0, 1, 2].map((gone) => softmax(TCP.run(found.input, [0, 1, 2].map((k) => (k === gone ? 0 : 1)), found.transform).logits));
  drawAblation(alone);
  if (TWIN) drawFacts(NETWORKS.map((network) => fastest(() => network.run(found.input))));
}

function fastest(work) {
  const times = Array.from({ length: 5 }, () => { const begin = performance.now(); work(); return performance.now() - begin; });
  return Math.min(...times);
}

let waiting = 0, pausing = 0;
function refresh({ computes = false } = {}) {
  waiting = Math.max(waiting, computes ? 2 : 1);
  if (refresh.asked) return;
  refresh.asked = true;
  requestAnimationFrame(() => {
    refresh.asked = false;
    const fresh = waiting === 2;
    waiting = 0;
    if (fresh) compute();
    if (!found) return; // the first image is on its way
    draw();
    clearTimeout(pausing);
    pausing = setTimeout(() => { if (fresh) computeLater(); remember(); }, 200);
  });
}

// --------------------------------------------------------------------------------------------------- drawing

const pixelAt = (x, y) => [0, 1, 2].map((c) => pixels[3 * (y * SIDE + x) + c]);

function draw() {
  const { shares } = found, marked = { grid: GRID, mark: state.patch };
  picture($("thumb"), SIDE, pixelAt);
  picture($("input"), SIDE, pixelAt);
  picture($("patched"), SIDE, pixelAt, { ...marked, lines: true });
  drawAnswer(shares);
  drawChannels();
  drawSlices();
  drawLayer();
  drawTokens();
  drawAttention();
  say("patch", `${(state.patch % GRID) + 1}, ${Math.floor(state.patch / GRID) + 1}`);
  for (const button of document.querySelectorAll("[data-set]")) {
    const [key, value] = button.dataset.set.split("=");
    button.setAttribute("aria-pressed", key === "keep" ? state.keep[value] === 1 : String(state[key] ?? "all") === value);
  }
  $("turn").value = state.turn;
  $("view").value = state.view;
}

function drawAnswer(shares) {
  const shown = DATA.classes.length <= 12 ? DATA.classes.map((_, i) => i) : ordered(shares[0]).slice(0, 10);
  bars($("bars"), shown.map((i) => DATA.classes[i]), shares.map((share) => shown.map((i) => share[i])), DATA.networks.map((network) => network.kind));
  const [mine, other] = shares.map((share) => { const best = ordered(share)[0]; return [DATA.classes[best], percent(share[best])]; });
  $("says").replaceChildren(said("tcp", "TCP-ViT", mine), ...(other ? [said("std", "Std-ViT", other)] : []));
}

function said(kind, name, [label, share]) {
  const span = Object.assign(document.createElement("span"), { className: kind });
  span.append(Object.assign(document.createElement("span"), { className: "who", textContent: `${name}: ` }), Object.assign(document.createElement("b"), { textContent: label }), ` ${share}`);
  return span;
}

function drawChannels() {
  const left = (state.patch % GRID) * PATCH, top = Math.floor(state.patch / GRID) * PATCH;
  sheets($("channels"), PATCH, CHANNELS.map((_, c) => (x, y) => [0, 1, 2].map((i) => (i === c ? pixels[3 * ((top + y) * SIDE + left + x) + c] : 0.12 * pixels[3 * ((top + y) * SIDE + left + x) + c]))));
}

// Each slice alone as an image, around grey; contrasts up to twice as strong as they are.
function drawSlices() {
  const rows = [0, 1, 2].map((k) => found.transform.slice(3 * k, 3 * k + 3)), energy = [0, 0, 0];
  for (let i = 0; i < SIDE * SIDE; i++)
    rows.forEach((row, k) => { energy[k] += ((row[0] * pixels[3 * i] + row[1] * pixels[3 * i + 1] + row[2] * pixels[3 * i + 2]) / 255) ** 2; });
  const all = energy.reduce((a, b) => a + b, 0) || 1;
  rows.forEach((row, k) => {
    const gain = 2 - Math.abs(row[0] + row[1] + row[2]) / Math.sqrt(3), figure = $("slices").children[k];
    figure.classList.toggle("off", !state.keep[k]);
    picture(figure.querySelector("canvas"), SIDE, (x, y) => {
      const at = pixelAt(x, y), along = row.reduce((sum, value, c) => sum + value * (at[c] / 255 - 0.5), 0);
      return row.map((value) => 255 * (0.5 + gain * value * along));
    }, { grid: GRID, mark: state.patch });
    figure.querySelector(".share-of").textContent = `${percent(energy[k] / all)} of the energy`;
  });
  const paint = diverging(1.4);
  [...$("matrix").querySelectorAll("td")].forEach((cell, i) => {
    cell.textContent = found.transform[i].toFixed(2).replace("-", "−").replace("−0.00", "0.00");
    cell.style.background = css(paint(found.transform[i]));
  });
}

// A layer as it is stored, and in the basis that `view` says: 0 the channels, 1 the slices.
function drawLayer() {
  const weight = TCP.weights[`${state.block}.${state.map}.weight`], inputs = state.map === "fc2" ? weight.length / (3 * TCP.d) : TCP.d;
  const outputs = weight.length / (3 * inputs), largest = quantile(weight, 0.995), paint = diverging(largest);
  const paper = rgb("--sheet"), own = [0, 1, 2].map((k) => rgb(`--slice${k}`));
  const at = (k, i, o) => weight[(k * inputs + i) * outputs + o], wide = outputs >= inputs;
  const place = (x, y) => (wide ? [y, x] : [x, y]);  // the longer side lies across
  const [columns, rows] = wide ? [3 * outputs, 3 * inputs] : [3 * inputs, 3 * outputs];
  cells($("blocks"), columns, rows, (x, y) => {
    const [input, output] = place(x, y), k = Math.floor(input / inputs), l = Math.floor(output / outputs);
    return k === l ? blend(paper, own[k], 0.12 + 0.88 * Math.sqrt(Math.min(1, Math.abs(at(k, input % inputs, output % outputs)) / largest))) : paper;
  }, 0.72);
  const basis = scrubbed(TCP.transform, state.view);
  const turned = [0, 1, 2].map((c) => [0, 1, 2].map((k) => [0, 1, 2].reduce((sum, l) => sum + basis[3 * c + l] * TCP.transform[3 * k + l], 0)));
  cells($("dense"), columns, rows, (x, y) => {
    const [input, output] = place(x, y), c = Math.floor(input / inputs), e = Math.floor(output / outputs);
    let value = 0;
    for (let k = 0; k < 3; k++) value += turned[c][k] * turned[e][k] * at(k, input % inputs, output % outputs);
    return paint(value);
  }, 0.72);
  say("stored", product(3, inputs, outputs));
  say("full", product(3 * inputs, 3 * outputs));
  say("block", state.block + 1);
}

function quantile(values, share) {
  const sorted = Float32Array.from(values, Math.abs).sort();
  return sorted[Math.floor(share * (sorted.length - 1))];
}

function drawTokens() {
  const x = found.tcp.tokens[state.stage], { tokens, d } = TCP, paint = diverging(quantile(x, 0.99));
  [0, 1, 2].forEach((k) => {
    const canvas = $("token-maps").children[k].querySelector("canvas");
    $("token-maps").children[k].classList.toggle("off", !state.keep[k]);
    const context = cells(canvas, tokens, d, (n, j) => paint(x[(k * tokens + n) * d + j]), 0.2), step = canvas.width / tokens;
    outline(context, asked() * step, 0, step, canvas.height);
  });
  say("column", asked() ? "the chosen patch" : "the class token");
}

const asked = () => (state.ask === "class" ? 0 : state.patch + 1);

function drawAttention() {
  const token = asked(), mark = token ? state.patch : null;
  const row = TCP.attentionRow(found.tcp.qkv[state.block], state.head, state.slice, token).slice(1);
  picture($("look"), SIDE, spotlight(pixels, SIDE, PATCH, row), { grid: GRID, mark });
  if (TWIN) {
    const block = Math.min(state.block, TWIN.depth - 1), head = state.head === null || state.head >= TWIN.heads ? null : state.head;
    const twin = TWIN.attentionRow(found.twin.qkv[block], head, null, token).slice(1);
    picture($("look-twin"), SIDE, spotlight(pixels, SIDE, PATCH, twin), { grid: GRID, mark });
  }
  for (const button of $("heads").querySelectorAll("button")) {
    const block = Number(button.dataset.block), head = button.dataset.head === "mean" ? null : Number(button.dataset.head);
    const small = TCP.attentionRow(found.tcp.qkv[block], head, state.slice, token).slice(1), largest = Math.max(...small);
    const low = rgb("--shade"), high = rgb("--warm");
    cells(button.firstChild, GRID, GRID, (x, y) => blend(low, high, Math.sqrt(small[y * GRID + x] / largest)));
    button.setAttribute("aria-pressed", block === state.block && head === state.head);
  }
  const head = state.head === null ? "mean of the heads" : `head ${state.head + 1}`;
  say("head", `block ${state.block + 1}, ${head}, ${token ? "from the marked patch" : "from the class token"}`);
}

function drawAblation(alone) {
  alone.forEach((shares, i) => {
    const top = ordered(shares).slice(0, 3);
    bars($("ablation").children[i].querySelector("ul"), top.map((c) => DATA.classes[c]), [top.map((c) => shares[c])], ["tcp"]);
  });
}

function drawFacts(times) {
  const rows = [
    ["parameters", (n) => counted(n.parameters)],
    ["FLOPs for an image", (n) => `${(n.flops / 1e6).toFixed(1)} million`],
    ["time in this browser", (n, i) => `${times[i].toFixed(1)} ms`],
    ["answer", (n, i) => { const best = ordered(found.shares[i])[0]; return `${DATA.classes[best]}, ${percent(found.shares[i][best])}`; }],
    ["right on test images", (n) => n.facts["top-1"]],
    ["trained on", (n) => n.facts["trained on"]],
  ].filter(([, value]) => NETWORKS.every((network, i) => value(network, i)));
  const cell = (tag, text, kind = "") => Object.assign(document.createElement(tag), { textContent: text, className: kind });
  const line = (cells) => { const row = document.createElement("tr"); row.append(...cells); return row; };
  const head = document.createElement("thead"), body = document.createElement("tbody");
  head.append(line([cell("th", ""), cell("th", "TCP-ViT", "tcp"), cell("th", "Std-ViT", "std")]));
  body.append(...rows.map(([name, value]) => line([cell("th", name), ...NETWORKS.map((network, i) => cell("td", value(network, i)))])));
  $("facts").replaceChildren(head, body);
}

const product = (...factors) => `${factors.join(" × ")} = ${counted(factors.reduce((a, b) => a * b, 1))}`.replaceAll(" ", "\u00a0");
const say = (name, text) => document.querySelectorAll(`[data-say="${name}"]`).forEach((place) => { place.textContent = text; });
