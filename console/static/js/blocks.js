// The KV cache block by block: free, cached, shared, or whose.

import { html, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { count, plural } from "./format.js";
import { useLive } from "./live.js";
import { colour, isDark } from "./theme.js";

const [FREE, CACHED, SHARED, FIRST_OWNER] = [0, 1, 2, 3];
const MAX_HEIGHT = 260;

const hues = new Map(); // by sequence: a colour stays with it
let nextHue = 20;

function hueOf(owner) {
  if (!hues.has(owner)) {
    if (hues.size > 500) hues.clear();
    hues.set(owner, (nextHue = (nextHue + 137.5) % 360));
  }
  return hues.get(owner);
}

export function BlockMaps() {
  const { blocks, server } = useLive();
  if (!blocks) return html`<p class="empty">No step was made yet.</p>`;
  return blocks.engines.map((map, i) => html`<${BlockMap} map=${map} name=${blocks.engines.length > 1 ? `engine ${i}` : ""} blockSize=${server.inventory?.compiled.block_size} />`);
}

function BlockMap({ map, name, blockSize }) {
  const canvas = useRef(null);
  const [, setTheme] = useState(0);
  const [hovered, setHovered] = useState("");
  const held = tally(map);
  const text = `${count(held.total)} blocks of ${count(blockSize)} tokens: ${count(held.own)} held by ${plural(map.owners.length, "request")}, ${count(held.shared)} shared, ${count(held.cached)} cached, ${count(held.free)} free`;
  useEffect(() => {
    const redraw = () => setTheme((turn) => turn + 1);
    addEventListener("themechange", redraw);
    addEventListener("resize", redraw);
    return () => (removeEventListener("themechange", redraw), removeEventListener("resize", redraw));
  }, []);
  useEffect(() => draw(canvas.current, map, held.total));
  const onMove = (event) => setHovered(describe(map, blockAt(canvas.current, event, held.total)));
  return html`
    <figure class="blocks">
      <figcaption>${name} ${text}</figcaption>
      <canvas ref=${canvas} role="img" aria-label=${`Map of the KV cache, ${text}`} data-held=${held.own + held.shared} data-shared=${held.shared} onMouseMove=${onMove} onMouseLeave=${() => setHovered("")}></canvas>
      <p class="legend">
        <span><i class="swatch block-own"></i>one request's, each in its colour</span>
        <span><i class="swatch block-shared"></i>shared prefix</span>
        <span><i class="swatch block-cached"></i>cached prefix</span>
        <span><i class="swatch block-free"></i>free</span>
        <span class="hovered">${hovered}</span>
      </p>
    </figure>
  `;
}

function tally(map) {
  const found = { total: 0, own: 0, shared: 0, cached: 0, free: 0 };
  for (const [length, owner] of map.runs) {
    found.total += length;
    found[owner === FREE ? "free" : owner === CACHED ? "cached" : owner === SHARED ? "shared" : "own"] += length;
  }
  return found;
}

/** Cells are as large as fit; of very many blocks a cell shows several, by the first of them. */
function grid(canvas, total) {
  const width = canvas.parentElement.clientWidth;
  for (let size = 16; size > 2; size--) {
    const columns = Math.floor(width / size);
    if (Math.ceil(total / columns) * size <= MAX_HEIGHT) return { size, columns, each: 1 };
  }
  const columns = Math.floor(width / 3);
  return { size: 3, columns, each: Math.ceil(total / (columns * Math.floor(MAX_HEIGHT / 3))) };
}

function draw(canvas, map, total) {
  const { size, columns, each } = grid(canvas, total);
  const cells = Math.ceil(total / each);
  const scale = devicePixelRatio;
  const [width, height] = [columns * size, Math.ceil(cells / columns) * size];
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const plain = [colour("block-free"), colour("block-cached"), colour("block-shared")];
  const light = isDark() ? "60%" : "48%";
  const gap = size > 5 ? 1 : 0;
  let block = 0;
  for (const [length, owner] of map.runs) {
    pen.fillStyle = owner < FIRST_OWNER ? plain[owner] : `hsl(${hueOf(map.owners[owner - FIRST_OWNER])} 62% ${light})`;
    const last = Math.ceil((block + length) / each);
    for (let cell = Math.ceil(block / each); cell < last; cell++) {
      pen.fillRect((cell % columns) * size, Math.floor(cell / columns) * size, size - gap, size - gap);
    }
    block += length;
  }
}

function blockAt(canvas, event, total) {
  const { size, columns, each } = grid(canvas, total);
  const cell = Math.floor(event.offsetY / size) * columns + Math.floor(event.offsetX / size);
  return cell * each;
}

function describe(map, block) {
  let from = 0;
  for (const [length, owner] of map.runs) {
    if (block < from + length) {
      const whose = owner === FREE ? "free" : owner === CACHED ? "cached prefix" : owner === SHARED ? "shared prefix" : `of ${map.owners[owner - FIRST_OWNER]}`;
      return `block ${block + 1}: ${whose}`;
    }
    from += length;
  }
  return "";
}
