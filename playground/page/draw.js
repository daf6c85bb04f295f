// playground/page/draw.js — maps of numbers and tiles on canvases
'use strict';

// A colour of the page's style as [r, g, b].
function colour(name) {
  const text = getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();
  const full = text.length === 4 ? text.replace(/[0-9a-f]/gi, '$&$&') : text;
  return [1, 3, 5].map(i => parseInt(full.slice(i, i + 2), 16));
}

function floats(base64) {
  const text = atob(base64), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; ++i) bytes[i] = text.charCodeAt(i);
  return new Float32Array(bytes.buffer);
}

// Colours as pixels of an ImageData: bytes r, g, b, a of a word.
const pixel = ([r, g, b]) => (255 << 24 | b << 16 | g << 8 | r) >>> 0;
const steps = 255;
const ramp = (from, to) => Uint32Array.from({ length: steps + 1 }, (_, i) => pixel(from.map((x, c) => Math.round(x + (to[c] - x) * i / steps))));

// Paints rows x columns cells of one word each.
function paint(canvas, rows, columns, fill) {
  const image = new ImageData(columns, rows), small = new OffscreenCanvas(columns, rows);
  fill(new Uint32Array(image.data.buffer));
  small.getContext('2d').putImageData(image, 0, 0);
  // A small map gets several pixels a cell and keeps its shape.
  const scale = Math.max(1, Math.floor(512 / Math.max(rows, columns)));
  canvas.width = columns * scale, canvas.height = rows * scale;
  canvas.style.aspectRatio = `${Math.min(4, Math.max(0.25, columns / rows))}`;
  const to = canvas.getContext('2d');
  to.imageSmoothingEnabled = false;
  to.drawImage(small, 0, 0, canvas.width, canvas.height);
}

// The largest magnitude among the finite numbers of a slice.
function most(values, begin = 0, end = values.length) {
  let out = 0;
  for (let i = begin; i < end; ++i) {
    const v = Math.abs(values[i]);
    if (v > out && v < Infinity) out = v;
  }
  return out;
}

// Signed numbers: one colour for each sign, saturated at the largest magnitude.
function paintSigned(canvas, rows, columns, values) {
  const page = colour('page'), plus = ramp(page, colour('plus')), minus = ramp(page, colour('minus'));
  const removed = pixel(colour('box')), top = most(values), scale = steps / (top || 1);
  paint(canvas, rows, columns, to => {
    for (let i = 0; i < to.length; ++i) {
      const v = values[i];
      to[i] = v !== v ? removed : v < 0 ? minus[Math.min(steps, -v * scale) | 0] : plus[Math.min(steps, v * scale) | 0];
    }
  });
  return top;
}

// Each number relative to the largest of its row.
function paintRows(canvas, rows, columns, values) {
  const likely = ramp(colour('page'), colour('likely')), removed = pixel(colour('box'));
  paint(canvas, rows, columns, to => {
    for (let r = 0, i = 0; r < rows; ++r) {
      const scale = steps / (most(values, i, i + columns) || 1);
      for (const end = i + columns; i < end; ++i) to[i] = values[i] !== values[i] ? removed : likely[Math.min(steps, Math.abs(values[i]) * scale) | 0];
    }
  });
}

// Tiles. A partial tile shows its pairs if every pair has a number.
function paintTiles(canvas, tiles, sizes, kept) {
  const names = ['page', 'partial', 'full'].map(name => pixel(colour(name))), dropped = pixel(colour('dropped'));
  const { q, kv, tileQ, tileKv } = sizes;
  const pairs = kept && kept.length === q * kv;
  const rows = pairs ? q : tiles.rows, columns = pairs ? kv : tiles.columns;
  const down = pairs ? tileQ : 1, across = pairs ? tileKv : 1;
  paint(canvas, rows, columns, words => {
    for (let r = 0, i = 0; r < rows; ++r) {
      const line = Math.floor(r / down) * tiles.columns;
      for (let c = 0; c < columns; ++c, ++i) {
        const keep = tiles.cells.charCodeAt(line + Math.floor(c / across)) - 48;
        words[i] = keep === 1 && pairs && kept[i] !== kept[i] ? dropped : names[keep];
      }
    }
  });
  const to = canvas.getContext('2d'), lines = Math.max(tiles.rows, tiles.columns);
  if (lines > 64) return;
  to.strokeStyle = `rgba(${colour('dim').join()}, .35)`;
  to.lineWidth = 1;
  to.beginPath();
  for (let i = 1; i < tiles.rows; ++i) {
    const y = Math.round(i * down * canvas.height / rows) + 0.5;
    to.moveTo(0, y), to.lineTo(canvas.width, y);
  }
  for (let i = 1; i < tiles.columns; ++i) {
    const x = Math.round(i * across * canvas.width / columns) + 0.5;
    to.moveTo(x, 0), to.lineTo(x, canvas.height);
  }
  to.stroke();
}

function cross(canvas, row, column, rows, columns) {
  const to = canvas.getContext('2d'), w = canvas.width / columns, h = canvas.height / rows;
  to.strokeStyle = `rgb(${colour('ink').join()})`;
  to.lineWidth = Math.max(1, canvas.width / 300);
  to.strokeRect(column * w - 1, row * h - 1, w + 2, h + 2);
}
