"use strict";
// The visitor's hands: buttons, mouse, keyboard, files, paint; and the state in the address.

function bytesOf(text) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

// ------------------------------------------------------------------------------------------- the page, once

function build() {
  const add = (place, tag, options = {}, ...inside) => {
    const made = Object.assign(document.createElement(tag), options);
    made.append(...inside);
    place.append(made);
    return made;
  };
  const choice = (place, key, value, text, title = "") => {
    const button = add(place, "button", { type: "button", title }, text);
    button.dataset.set = `${key}=${value}`;
    return button;
  };
  for (const [name, source] of Object.entries(DATA.images)) {
    const button = choice($("thumbs"), "image", name, add(document.createElement("span"), "img", { src: source, alt: name }), name);
    button.setAttribute("aria-label", name);
  }
  PAINTS.forEach((colour) => {
    const button = add($("palette"), "button", { type: "button", ariaLabel: `paint with ${colour}` });
    button.style.background = colour;
    button.onclick = () => { paintColour = colour; showPaint(); };
  });
  [0, 1, 2].forEach((k) => {
    const button = choice($("switches"), "keep", k, "", `Switch slice ${k} on and off (${k + 1})`);
    button.className = `switch own${k}`;
    button.innerHTML = `<span>slice </span>${k}`;
    const figure = add($("slices"), "figure", { className: `own${k}` }, add(document.createElement("span"), "canvas", { className: "pick", tabIndex: 0 }));
    figure.firstChild.setAttribute("aria-label", `Slice ${k} alone. Arrow keys choose a patch.`);
    figure.firstChild.id = `slice-${k}`;
    const caption = add(figure, "figcaption");
    add(caption, "b", {}, `slice ${k} `).style.color = `var(--slice${k})`;
    add(caption, "span", { className: "share-of" });
    const row = add($("token-maps"), "div", { className: `row own${k}` }, `slice ${k}`);
    add(row, "figure").append(add(document.createElement("span"), "canvas", { ariaLabel: `Tokens of slice ${k}` }));
  });
  const head = add($("matrix"), "thead"), body = add($("matrix"), "tbody");
  add(head, "tr", {}, ...["", ...CHANNELS].map((text) => Object.assign(document.createElement("th"), { textContent: text })));
  [0, 1, 2].forEach((k) => add(body, "tr", {}, Object.assign(document.createElement("th"), { textContent: `slice ${k}` }), ...CHANNELS.map(() => document.createElement("td"))));
  for (const [name, title] of Object.entries(MAPS)) choice($("maps"), "map", name, name, title);
  for (let i = 0; i <= TCP.depth; i++) choice($("stages"), "stage", i, i ? `block ${i}` : "start");
  choice($("ask"), "ask", "class", "class token");
  choice($("ask"), "ask", "patch", "marked patch");
  choice($("by-slice"), "slice", "all", TCP.joint ? "all slices together" : "mean of the slices");
  [0, 1, 2].forEach((k) => choice($("by-slice"), "slice", k, `slice ${k}`));
  $("heads").style.setProperty("--heads", TCP.heads + 1);
  const titles = ["head", ...Array.from({ length: TCP.heads }, (_, i) => i + 1), "mean"];
  titles.forEach((title, i) => add($("heads"), "span", { className: i ? "over" : "" }, title));
  for (let block = 0; block < TCP.depth; block++) {
    add($("heads"), "span", {}, `block ${block + 1}`);
    for (let head = 0; head <= TCP.heads; head++) {
      const button = add($("heads"), "button", { type: "button" }, document.createElement("canvas"));
      Object.assign(button.dataset, { block, head: head < TCP.heads ? head : "mean" });
      button.setAttribute("aria-label", `block ${block + 1}, ${head < TCP.heads ? `head ${head + 1}` : "mean of the heads"}`);
      button.title = button.getAttribute("aria-label");
      button.onclick = () => change({ block, head: head < TCP.heads ? head : null });
    }
  }
  ["all slices", "without slice 0", "without slice 1", "without slice 2"].forEach((title, i) => {
    const part = add($("ablation"), "div", { className: i ? `part own${i - 1}` : "part" });
    add(part, "h3", {}, title);
    add(part, "ul", { className: "bars" });
  });
  document.querySelectorAll(".with-twin").forEach((part) => { part.hidden = !TWIN; });
  document.body.classList.toggle("alone", !TWIN);
  const names = DATA.classes.length > 12 ? `${DATA.classes.length} kinds of things` : `${DATA.classes.slice(0, -1).join(", ")} and ${DATA.classes.at(-1)}`;
  say("classes", names);
  say("size", `${SIDE} × ${SIDE}`);
  say("patches", product(GRID, GRID));
  say("flat", 3 * PATCH * PATCH);
  say("features", TCP.d);
  say("times", TWIN ? `${(100 * TCP.parameters / TWIN.parameters).toFixed(0)} %` : "about a third");
  say("joint", TCP.joint
    ? "In this model the slices decide together where to look. Choose a slice to see where it alone would look."
    : "In this model every slice looks for itself. Choose one, or the mean of all.");
}

// ------------------------------------------------------------------------------------------- changing the state

function change(changes) {
  const computes = "keep" in changes || "turn" in changes;
  if ("block" in changes) changes.block = Math.max(0, Math.min(TCP.depth - 1, changes.block));
  Object.assign(state, changes);
  refresh({ computes });
}

function set(key, value) {
  if (key === "image") return takeBuiltIn(value);
  if (key === "keep") return change({ keep: state.keep.map((kept, k) => (k === Number(value) ? 1 - kept : kept)) });
  if (key === "slice") return change({ slice: value === "all" ? null : Number(value) });
  return change({ [key]: key === "stage" ? Number(value) : value });
}

async function takeBuiltIn(name) {
  await take(blobOf(DATA.images[name]), name);
}

function blobOf(url) {
  const [head, body] = url.split(",");
  return new Blob([bytesOf(body)], { type: head.slice(5).split(";")[0] });
}

async function take(blob, name = "own") {
  try {
    pixels = fitted(await decode(blob), SIDE, DATA.fit);
    $("trouble").hidden = true;
  } catch (error) {
    $("trouble").textContent = "This file could not be read as an image. Try a PNG, JPEG or WebP.";
    $("trouble").hidden = false;
    return;
  }
  state.image = name;
  refresh({ computes: true });
}

function theme(name) {
  state.theme = name;
  document.documentElement.dataset.theme = name || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

// ------------------------------------------------------------------------------------------- mouse, paint, keys

function patchUnder(event) {
  const box = event.currentTarget.getBoundingClientRect();
  const [x, y] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height].map((share) => Math.max(0, Math.min(0.999, share)));
  return { x, y, patch: Math.floor(y * GRID) * GRID + Math.floor(x * GRID) };
}

function point(event) {
  const { x, y, patch } = patchUnder(event), looks = event.currentTarget.id.startsWith("look");
  if (paintColour && event.currentTarget.id === "input") {
    if (event.buttons) paintAt(x * SIDE, y * SIDE);
  } else if (patch !== state.patch || (looks && state.ask === "class")) change(looks ? { patch, ask: "patch" } : { patch });
}

// A soft round brush.
function paintAt(x, y) {
  const colour = [1, 3, 5].map((i) => parseInt(paintColour.slice(i, i + 2), 16)), radius = SIDE / 18;
  for (let row = 0; row < SIDE; row++)
    for (let column = 0; column < SIDE; column++) {
      const share = Math.max(0, Math.min(1, radius + 0.5 - Math.hypot(column + 0.5 - x, row + 0.5 - y)));
      for (let c = 0; share && c < 3; c++) {
        const at = 3 * (row * SIDE + column) + c;
        pixels[at] = Math.round(pixels[at] + (colour[c] - pixels[at]) * share);
      }
    }
  state.image = "own";
  refresh({ computes: true });
}

function showPaint() {
  $("paint").setAttribute("aria-pressed", Boolean(paintColour));
  $("palette").hidden = !paintColour;
  document.body.classList.toggle("painting", Boolean(paintColour));
  [...$("palette").children].forEach((button, i) => button.setAttribute("aria-pressed", PAINTS[i] === paintColour));
}

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input")) return;
  const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -GRID, ArrowDown: GRID }, names = Object.keys(DATA.images);
  if (event.key in moves && event.target.matches(".pick")) {
    const step = moves[event.key], column = (state.patch % GRID) + (Math.abs(step) === 1 ? step : 0), patch = state.patch + step;
    if (column >= 0 && column < GRID && patch >= 0 && patch < PATCHES) change(event.target.id.startsWith("look") ? { patch, ask: "patch" } : { patch });
    event.preventDefault();
  } else if ("123".includes(event.key)) set("keep", Number(event.key) - 1);
  else if (event.key === "[" || event.key === "]") change({ block: state.block + (event.key === "]" ? 1 : -1) });
  else if (event.key === "i") takeBuiltIn(names[(names.indexOf(state.image) + 1) % names.length]);
  else if (event.key === "d") { theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"); refresh(); }
}

// ------------------------------------------------------------------------------------------- the address

function remember() {
  const { keep, head, slice, ...rest } = state;
  const words = new URLSearchParams({ ...rest, keep: keep.join(""), head: head ?? "mean", slice: slice ?? "all" });
  if (state.image === "own" && pixels.length <= 4096) words.set("pixels", btoa(String.fromCharCode(...pixels)));
  history.replaceState(null, "", `#${words}`);
}

// Only what is possible is taken from the address: anybody may write one.
async function recall() {
  const words = new URLSearchParams(location.hash.slice(1)), whole = (name, below) => {
    const value = Number(words.get(name));
    return words.has(name) && Number.isInteger(value) && value >= 0 && value < below ? value : null;
  };
  const share = (name, otherwise) => (words.has(name) && words.get(name) >= 0 && words.get(name) <= 1 ? Number(words.get(name)) : otherwise);
  if (/^[01]{3}$/.test(words.get("keep"))) state.keep = [...words.get("keep")].map(Number);
  Object.assign(state, {
    turn: share("turn", 1), view: share("view", 0), patch: whole("patch", PATCHES) ?? state.patch, block: whole("block", TCP.depth) ?? state.block,
    head: whole("head", TCP.heads), slice: whole("slice", 3), stage: whole("stage", TCP.depth + 1) ?? 0,
    map: Object.hasOwn(MAPS, words.get("map")) ? words.get("map") : "qkv", ask: words.get("ask") === "patch" ? "patch" : "class",
  });
  theme(["light", "dark"].includes(words.get("theme")) ? words.get("theme") : "");
  const drawn = words.get("image") === "own" && /^[\w+/=]+$/.test(words.get("pixels") ?? "") ? bytesOf(words.get("pixels")) : null;
  if (drawn && drawn.length === pixels.length) { pixels = drawn; state.image = "own"; refresh({ computes: true }); }
  else await takeBuiltIn(Object.hasOwn(DATA.images, words.get("image")) ? words.get("image") : state.image);
}

// --------------------------------------------------------------------------------------------------- listening

function listen() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-set]");
    if (button) set(...button.dataset.set.split("="));
  });
  document.querySelectorAll(".pick").forEach((canvas) => {
    for (const name of ["pointermove", "pointerdown"]) canvas.addEventListener(name, point);
  });
  for (const name of ["turn", "view"]) $(name).addEventListener("input", (event) => change({ [name]: Number(event.target.value) }));
  $("file").addEventListener("change", (event) => event.target.files[0] && take(event.target.files[0]));
  $("paint").onclick = () => { paintColour = paintColour ? null : PAINTS[2]; showPaint(); };
  $("blank").onclick = () => { pixels = new Uint8Array(pixels.length).fill(128); state.image = "own"; refresh({ computes: true }); };
  $("theme").onclick = () => press({ key: "d", target: document.body });
  document.addEventListener("keydown", press);
  document.addEventListener("dragover", (event) => { event.preventDefault(); $("drop").hidden = false; });
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) $("drop").hidden = true; });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    $("drop").hidden = true;
    if (event.dataTransfer.files[0]) take(event.dataTransfer.files[0]);
  });
  addEventListener("resize", () => refresh());
  addEventListener("hashchange", recall);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { theme(state.theme); refresh(); });
}

build();
listen();
recall();
