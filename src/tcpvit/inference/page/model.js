"use strict";
// The forward pass: slices first, as in the library. A standard ViT is the case of one slice and no transform.

class Network {
  // about: sizes and names; bytes: all weights as little-endian float32, in the order of about.tensors.
  constructor(about, bytes) {
    Object.assign(this, about);
    this.weights = {};
    let place = 0;
    for (const [name, shape] of about.tensors) {
      const count = shape.reduce((a, b) => a * b, 1);
      this.weights[name] = new Float32Array(bytes, place, count);
      place += 4 * count;
    }
    this.grid = this.side / this.patch;
    this.tokens = 1 + this.grid * this.grid;
    this.headSize = this.d / this.heads;
  }

  // pixels: Float32Array (3, side, side), normalised. keep: which slices enter the first block. transform: (C, C)
  // for the way in; the way out is the model's own. Returns logits, the tokens after each block, q and k of each.
  run(pixels, keep = null, transform = this.transform) {
    let x = this.embed(this.cut(pixels, transform));
    if (keep) keep.forEach((kept, k) => { if (!kept) x.fill(0, k * this.tokens * this.d, (k + 1) * this.tokens * this.d); });
    const tokens = [x], qkv = [];
    for (let i = 0; i < this.depth; i++) {
      const attended = this.attention(i, this.norm(x, `${i}.norm1`));
      qkv.push(attended.qkv);
      x = plus(x, attended.out);
      x = plus(x, this.mlp(i, this.norm(x, `${i}.norm2`)));
      tokens.push(x);
    }
    return { logits: this.classify(this.norm(x, "norm")), tokens, qkv };
  }

  // Patches as slices (C, N, P²), the tubes transformed; without slices as flat features (1, N, 3P²), channels fastest.
  cut(pixels, transform) {
    const { side, patch, grid, tube } = this, area = patch * patch, N = grid * grid;
    const cut = new Float32Array(3 * N * area);
    for (let c = 0; c < 3; c++)
      for (let y = 0; y < side; y++)
        for (let x = 0; x < side; x++) {
          const n = Math.floor(y / patch) * grid + Math.floor(x / patch), j = (y % patch) * patch + (x % patch);
          const value = pixels[(c * side + y) * side + x];
          if (tube === 1) cut[(n * area + j) * 3 + c] = value;
          else for (let k = 0; k < tube; k++) cut[(k * N + n) * area + j] += transform[k * tube + c] * value;
        }
    return cut;
  }

  // Class token and positions: (C, N, features) -> (C, 1 + N, d).
  embed(patches) {
    const { tube, tokens, d, weights } = this, N = tokens - 1;
    const found = weights["embed.weight"] ? this.linear(patches, "embed", N) : patches;
    const x = new Float32Array(tube * tokens * d);
    for (let k = 0; k < tube; k++) {
      x.set(weights.cls.subarray(k * d, (k + 1) * d), k * tokens * d);
      x.set(found.subarray(k * N * d, (k + 1) * N * d), (k * tokens + 1) * d);
    }
    return plus(x, weights.pos);
  }

  // One matrix for each slice: (C, rows, in) -> (C, rows, out).
  linear(x, name, rows = this.tokens) {
    const w = this.weights[`${name}.weight`], b = this.weights[`${name}.bias`], { tube } = this;
    const inputs = x.length / (tube * rows), outputs = w.length / (tube * inputs);
    const y = new Float32Array(tube * rows * outputs), row = new Float64Array(outputs);
    for (let k = 0; k < tube; k++)
      for (let n = 0; n < rows; n++) {
        for (let o = 0; o < outputs; o++) row[o] = b ? b[k * outputs + o] : 0;
        const from = (k * rows + n) * inputs;
        for (let i = 0; i < inputs; i++) {
          const value = x[from + i], at = (k * inputs + i) * outputs;
          for (let o = 0; o < outputs; o++) row[o] += value * w[at + o];
        }
        y.set(row, (k * rows + n) * outputs);
      }
    return y;
  }

  // Each token is normalised in each slice by itself, or over all slices together if the model couples its norms.
  norm(x, name) {
    const { tube, tokens, d } = this, gamma = this.weights[`${name}.weight`], beta = this.weights[`${name}.bias`];
    const y = new Float32Array(x.length), groups = this.jointNorm ? [[...Array(tube).keys()]] : [...Array(tube).keys()].map((k) => [k]);
    for (const slices of groups)
      for (let n = 0; n < tokens; n++) {
        let sum = 0, squares = 0;
        for (const k of slices) for (let j = 0; j < d; j++) sum += x[(k * tokens + n) * d + j];
        const mean = sum / (slices.length * d);
        for (const k of slices) for (let j = 0; j < d; j++) squares += (x[(k * tokens + n) * d + j] - mean) ** 2;
        const scale = 1 / Math.sqrt(squares / (slices.length * d) + this.eps);
        for (const k of slices)
          for (let j = 0; j < d; j++) {
            const at = (k * tokens + n) * d + j;
            y[at] = (x[at] - mean) * scale * gamma[k * d + j] + beta[k * d + j];
          }
      }
    return y;
  }

  attention(i, x) {
    const { tube, tokens, d, heads, headSize } = this;
    const qkv = this.linear(x, `${i}.qkv`), mixed = new Float32Array(tube * tokens * d);
    const groups = this.joint ? [[...Array(tube).keys()]] : [...Array(tube).keys()].map((k) => [k]);
    for (const slices of groups)
      for (let h = 0; h < heads; h++)
        for (let n = 0; n < tokens; n++) {
          const look = this.look(qkv, slices, h, n);
          for (const k of slices)
            for (let m = 0; m < tokens; m++) {
              const value = (k * tokens + m) * 3 * d + 2 * d + h * headSize, out = (k * tokens + n) * d + h * headSize;
              for (let j = 0; j < headSize; j++) mixed[out + j] += look[m] * qkv[value + j];
            }
        }
    return { qkv, out: this.linear(mixed, `${i}.proj`) };
  }

  // One row of a softmax map: where token n looks, by the scores of these slices.
  look(qkv, slices, h, n) {
    const { tokens, d, headSize } = this, row = new Float64Array(tokens);
    const scale = 1 / Math.sqrt((this.joint ? this.tube : 1) * headSize);
    let largest = -Infinity, sum = 0;
    for (let m = 0; m < tokens; m++) {
      for (const k of slices) {
        const q = (k * tokens + n) * 3 * d + h * headSize, key = (k * tokens + m) * 3 * d + d + h * headSize;
        for (let j = 0; j < headSize; j++) row[m] += qkv[q + j] * qkv[key + j];
      }
      row[m] *= scale;
      largest = Math.max(largest, row[m]);
    }
    for (let m = 0; m < tokens; m++) sum += row[m] = Math.exp(row[m] - largest);
    for (let m = 0; m < tokens; m++) row[m] /= sum;
    return row;
  }

  // Where token n looks in block i: head h or the mean of all (null), slice k or all of them (null).
  attentionRow(qkv, h, k, n) {
    const heads = h === null ? [...Array(this.heads).keys()] : [h], every = [...Array(this.tube).keys()];
    const groups = k !== null && this.tube > 1 ? [[k]] : this.joint ? [every] : every.map((slice) => [slice]);
    const mean = new Float64Array(this.tokens);
    for (const head of heads)
      for (const slices of groups)
        this.look(qkv, slices, head, n).forEach((value, m) => { mean[m] += value / (heads.length * groups.length); });
    return mean;
  }

  mlp(i, x) {
    const hidden = this.linear(x, `${i}.fc1`);
    const active = this.spatial ? this.mix(this.mix(hidden, this.inverse).map(gelu), this.transform) : hidden.map(gelu);
    return this.linear(active, `${i}.fc2`);
  }

  // Σ_l M[k, l]·x_l for every slice k.
  mix(x, matrix) {
    const { tube } = this, size = x.length / tube, y = new Float32Array(x.length);
    for (let k = 0; k < tube; k++)
      for (let l = 0; l < tube; l++)
        for (let j = 0; j < size; j++) y[k * size + j] += matrix[k * tube + l] * x[l * size + j];
    return y;
  }

  // The class token (or the mean of the patches) back in the spatial domain, the tube fastest, and the head.
  classify(x) {
    const { tube, tokens, d, weights } = this, hat = new Float32Array(tube * d);
    const read = this.pool === "token" ? [0] : [...Array(tokens - 1).keys()].map((n) => n + 1);
    for (let k = 0; k < tube; k++)
      for (const n of read) for (let j = 0; j < d; j++) hat[k * d + j] += x[(k * tokens + n) * d + j] / read.length;
    const back = tube === 1 ? hat : this.mix(hat, this.inverse), logits = Array.from(weights["head.bias"]);
    for (let k = 0; k < tube; k++)
      for (let j = 0; j < d; j++)
        for (let c = 0; c < logits.length; c++) logits[c] += back[k * d + j] * weights["head.weight"][(j * tube + k) * logits.length + c];
    return logits;
  }
}

const plus = (a, b) => a.map((value, i) => value + b[i]);

const softmax = (logits) => {
  const largest = Math.max(...logits), powers = logits.map((value) => Math.exp(value - largest));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((value) => value / sum);
};

const gelu = (x) => 0.5 * x * (1 + erf(x * Math.SQRT1_2));

// Abramowitz and Stegun 7.1.26: off by at most 1.5e-7.
function erf(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))) * Math.exp(-x * x);
  return x < 0 ? tail - 1 : 1 - tail;
}
