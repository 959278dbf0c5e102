"use strict";
// From a file to the pixels that the model takes, as the library prepares them: cut or squeezed square, reduced with
// the triangle filter of Pillow's "bilinear", every pass rounded to 8 bits.

const MAX_PIXELS = 50e6;

// A file or a data URL -> { data, width, height } with four bytes a pixel.
async function decode(blob) {
  const bitmap = await createImageBitmap(blob, { colorSpaceConversion: "none", imageOrientation: "from-image" });
  if (bitmap.width * bitmap.height > MAX_PIXELS) throw new Error("the image has more than 50 million pixels");
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [bitmap.width, bitmap.height];
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(bitmap, 0, 0);
  return context.getImageData(0, 0, bitmap.width, bitmap.height);
}

// Four bytes a pixel, any shape -> Uint8Array (side, side, 3).
function fitted({ data, width, height }, side, fit) {
  const rgb = new Uint8Array(3 * width * height);
  for (let i = 0; i < width * height; i++) for (let c = 0; c < 3; c++) rgb[3 * i + c] = data[4 * i + c];
  const least = Math.min(width, height), [w, h] = fit === "crop" ? [least, least] : [width, height];
  const across = resampled(rgb, width, height, (width - w) / 2, w, side);
  return transposed(resampled(transposed(across, side, height), height, side, (height - h) / 2, h, side), side, side);
}

// Each row of (height, width, 3), from `begin` on `length` wide, reduced or enlarged to `size` pixels.
function resampled(pixels, width, height, begin, length, size) {
  const scale = length / size, support = Math.max(scale, 1), out = new Uint8Array(3 * height * size);
  if (length === size && begin === 0) return pixels;
  for (let x = 0; x < size; x++) {
    const middle = begin + (x + 0.5) * scale;
    const first = Math.max(0, Math.trunc(middle - support + 0.5)), last = Math.min(width, Math.trunc(middle + support + 0.5));
    const weights = [];
    for (let i = first; i < last; i++) weights.push(Math.max(0, 1 - Math.abs(i - middle + 0.5) / support));
    const sum = weights.reduce((a, b) => a + b, 0);
    for (let y = 0; y < height; y++)
      for (let c = 0; c < 3; c++) {
        let value = 0;
        for (let i = first; i < last; i++) value += weights[i - first] * pixels[3 * (y * width + i) + c];
        out[3 * (y * size + x) + c] = Math.round(value / sum);
      }
  }
  return out;
}

function transposed(pixels, width, height) {
  const out = new Uint8Array(pixels.length);
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++) for (let c = 0; c < 3; c++) out[3 * (x * height + y) + c] = pixels[3 * (y * width + x) + c];
  return out;
}

// (side, side, 3) bytes -> (3, side, side) as the model takes them.
function normalised(pixels, mean, std) {
  const count = pixels.length / 3, out = new Float32Array(pixels.length);
  for (let i = 0; i < count; i++) for (let c = 0; c < 3; c++) out[c * count + i] = (pixels[3 * i + c] / 255 - mean[c]) / std[c];
  return out;
}

// Between the identity (t = 0) and the transform (t = 1). An orthogonal one is a rotation, but for the sign of a slice;
// then every matrix between is orthogonal too.
function scrubbed(matrix, t) {
  if (t === 1) return matrix;
  const straight = matrix.map((value, i) => (1 - t) * (i % 4 === 0 ? 1 : 0) + t * value);
  const path = rotationPath(matrix);
  return path ? path(t) : straight;
}

function rotationPath(matrix) {
  const rows = [0, 1, 2].map((k) => matrix.slice(3 * k, 3 * k + 3));
  for (let k = 0; k < 3; k++) for (let l = 0; l < 3; l++) if (Math.abs(dot(rows[k], rows[l]) - (k === l ? 1 : 0)) > 1e-4) return null;
  const signs = dot(rows[0], cross(rows[1], rows[2])) > 0 ? [[1, 1, 1]] : [[-1, 1, 1], [1, -1, 1], [1, 1, -1], [-1, -1, -1]];
  const turns = signs.map((sign) => ({ sign, turn: turnOf(rows.map((row, k) => row.map((value) => sign[k] * value))) }));
  const { sign, turn } = turns.reduce((a, b) => (b.turn.angle < a.turn.angle ? b : a));
  return (t) => rotation(turn, t).flatMap((row, k) => row.map((value) => sign[k] * value));
}

function turnOf(r) {
  const angle = Math.acos(Math.max(-1, Math.min(1, (r[0][0] + r[1][1] + r[2][2] - 1) / 2)));
  const axis = [r[2][1] - r[1][2], r[0][2] - r[2][0], r[1][0] - r[0][1]], length = Math.hypot(...axis) || 1;
  return { angle, axis: axis.map((value) => value / length) };
}

function rotation({ angle, axis: [x, y, z] }, t) {
  const c = Math.cos(t * angle), s = Math.sin(t * angle), u = 1 - c;
  return [
    [c + x * x * u, x * y * u - z * s, x * z * u + y * s],
    [y * x * u + z * s, c + y * y * u, y * z * u - x * s],
    [z * x * u - y * s, z * y * u + x * s, c + z * z * u],
  ];
}

const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);
const cross = (a, b) => [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];
