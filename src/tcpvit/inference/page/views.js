"use strict";
// Drawing: each function takes a canvas or an element and numbers, and knows nothing of the model.

const rgb = (name) => {
  const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16));
};
const blend = (a, b, share) => a.map((value, i) => value + (b[i] - value) * share);
const css = (colour) => `rgb(${colour.map(Math.round).join(" ")})`;

// A canvas as sharp as the screen: width pixels of the page across, and in proportion down.
function sized(canvas, ratio = 1) {
  const scale = window.devicePixelRatio || 1, width = Math.round((canvas.clientWidth || 200) * scale);
  const height = Math.round(width * ratio);
  if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  return context;
}

// Fill a canvas with columns × rows cells of colour.
function cells(canvas, columns, rows, colourAt, ratio = rows / columns) {
  const context = sized(canvas, ratio), small = new ImageData(columns, rows);
  for (let y = 0; y < rows; y++)
    for (let x = 0; x < columns; x++) small.data.set([...colourAt(x, y), 255], 4 * (y * columns + x));
  const off = document.createElement("canvas");
  [off.width, off.height] = [columns, rows];
  off.getContext("2d").putImageData(small, 0, 0);
  context.drawImage(off, 0, 0, canvas.width, canvas.height);
  return context;
}

// An image over its grid of patches, with one of them marked.
function picture(canvas, side, colourAt, { grid = 0, lines = false, mark = null } = {}) {
  const context = cells(canvas, side, side, colourAt), step = canvas.width / grid;
  if (lines) {
    context.strokeStyle = "rgb(255 255 255 / 55%)";
    context.lineWidth = Math.max(1, canvas.width / 400);
    context.beginPath();
    for (let i = 1; i < grid; i++) {
      context.moveTo(i * step, 0); context.lineTo(i * step, canvas.height);
      context.moveTo(0, i * step); context.lineTo(canvas.width, i * step);
    }
    context.stroke();
  }
  if (mark !== null) outline(context, (mark % grid) * step, Math.floor(mark / grid) * step, step, step);
  return context;
}

function outline(context, x, y, width, height) {
  const line = Math.max(1.5, context.canvas.width / 200);
  for (const [colour, wide] of [["#fff", 2.4 * line], ["#111", line]]) {
    context.strokeStyle = colour;
    context.lineWidth = wide;
    context.strokeRect(x, y, width, height);
  }
}

// Negative is cold, positive warm, zero is the paper.
function diverging(largest) {
  const paper = rgb("--sheet"), cold = rgb("--cold"), warm = rgb("--warm");
  return (value) => {
    const share = Math.sqrt(Math.min(1, Math.abs(value) / (largest || 1)));
    return blend(paper, value < 0 ? cold : warm, share);
  };
}

// Light where attention is, dark elsewhere.
function spotlight(pixels, side, patch, weights) {
  const grid = side / patch, largest = Math.max(...weights), shade = rgb("--shade");
  return (x, y) => {
    const share = Math.sqrt(weights[Math.floor(y / patch) * grid + Math.floor(x / patch)] / (largest || 1));
    const at = 3 * (y * side + x);
    return blend(shade, [pixels[at], pixels[at + 1], pixels[at + 2]], 0.08 + 0.92 * share);
  };
}

// Three sheets of a patch, one behind the other; planes: three functions of a pixel's place.
function sheets(canvas, patch, planes) {
  const context = sized(canvas, 0.9), shift = canvas.width * 0.13, side = canvas.width - 2 * shift - 4;
  context.clearRect(0, 0, canvas.width, canvas.height);
  planes.forEach((colourAt, i) => {
    const k = planes.length - 1 - i, left = 2 + k * shift, top = canvas.height - side - 2 - k * shift * 0.55, step = side / patch;
    for (let y = 0; y < patch; y++)
      for (let x = 0; x < patch; x++) {
        context.fillStyle = css(planes[k](x, y));
        context.fillRect(left + x * step, top + y * step, step + 0.5, step + 0.5);
      }
    context.strokeStyle = css(rgb("--sheet"));
    context.lineWidth = canvas.width / 110;
    context.strokeRect(left, top, side, side);
  });
}

// Rows of a name and one bar for each model; made once, then only changed.
function bars(list, names, values, kinds) {
  if (list.children.length !== names.length || list.dataset.kinds !== kinds.join()) {
    list.dataset.kinds = kinds.join();
    list.replaceChildren(...names.map(() => {
      const row = document.createElement("li");
      row.innerHTML = `<span class="name"></span><span class="tracks">${kinds.map((kind) => `<span class="track ${kind}"><i></i></span>`).join("")}</span><span class="share"></span>`;
      return row;
    }));
  }
  const best = values[0].indexOf(Math.max(...values[0]));
  names.forEach((name, i) => {
    const row = list.children[i];
    row.classList.toggle("best", i === best);
    row.querySelector(".name").textContent = name;
    row.querySelectorAll("i").forEach((bar, j) => { bar.style.width = `${100 * values[j][i]}%`; });
    row.querySelector(".share").textContent = percent(values[0][i]);
  });
}

const percent = (value) => (value < 0.0005 ? "0" : value < 0.0995 || (value > 0.9905 && value < 0.9995) ? (100 * value).toFixed(1) : (100 * value).toFixed(0)) + " %";
const counted = (value) => value.toLocaleString("en");
const ordered = (values) => values.map((value, i) => i).sort((a, b) => values[b] - values[a]);
