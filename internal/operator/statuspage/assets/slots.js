// The map of a pool's slots, on a canvas: a square per machine ID, or per range of
// them where there are too many.
import { count, make, say, the } from './tools.js';

const leastCell = 4;
const largestCell = 26;
const mostHeight = 640; // pixels, unless cells would become too small
const mostCells = 8192;
const mostTapped = 256; // cells, where a finger points: it finds none of a few pixels

/**
 * @typedef {{service: string, pool: string, bitSeq: number, low: number, end: number, from: number, to: number, idsPerCell: number, cells: string, listedAt: number}} SlotMap
 */

export class Slots {
  /**
   * @param {(from: number, to: number) => void} look is called when the reader turns to a range of machine IDs
   * @param {() => void} zoomed is called when another part of the pool is wanted
   */
  constructor(look, zoomed) {
    this.look = look;
    this.zoomed = zoomed;
    /** @type {HTMLCanvasElement} */ this.canvas = the('map');
    /** @type {SlotMap | null} */ this.map = null;
    this.bytes = new Uint8Array(0);
    this.fenced = false;
    /** The parts of the pool that were zoomed into, the outermost first. @type {Array<[number, number]>} */
    this.trail = [];
    this.cell = -1; // that the reader has turned to
    this.pinned = false; // it stays when the pointer leaves
    this.wanted = -1; // the machine ID to turn to when the map has it
    this.columns = 1;
    this.size = leastCell;
    this.listen();
  }

  /** What to ask the server for, beside the service. */
  query() {
    const part = this.trail.at(-1);
    return `cells=${matchMedia('(pointer: coarse)').matches ? mostTapped : mostCells}` + (part ? `&from=${part[0]}&to=${part[1]}` : '');
  }

  /** Begins anew, with another pool. */
  reset() {
    this.trail = [];
    this.map = null;
    this.cell = -1;
    this.pinned = false;
    this.wanted = -1;
  }

  /** @param {SlotMap} map @param {boolean} fenced */
  show(map, fenced) {
    this.map = map;
    this.fenced = fenced;
    this.bytes = Uint8Array.from(atob(map.cells), (c) => c.charCodeAt(0));
    if (this.cell >= this.bytes.length) this.turn(-1);
    this.draw();
    this.showTrail();
    if (this.cell >= 0) this.tell();
    if (this.wanted >= map.from && this.wanted < map.to) this.goTo(this.wanted);
  }

  /** The machine IDs of a cell, the last one included. @param {number} cell @returns {[number, number]} */
  range(cell) {
    const map = /** @type {SlotMap} */ (this.map);
    const from = map.from + cell * map.idsPerCell;
    return [from, Math.min(map.to, from + map.idsPerCell) - 1];
  }

  /** Turns to the machine ID, wherever the map is. @param {number} id */
  goTo(id) {
    if (!this.map || id < this.map.low || id >= this.map.end) return;
    if (id < this.map.from || id >= this.map.to) {
      this.trail = [];
      this.wanted = id;
      this.zoomed();
      return;
    }
    this.wanted = -1;
    this.pinned = true;
    this.turn(Math.floor((id - this.map.from) / this.map.idsPerCell));
    this.canvas.scrollIntoView({ block: 'nearest' });
  }

  /** @param {number} cell */
  turn(cell) {
    if (cell === this.cell) return;
    this.cell = cell;
    this.draw();
    this.tell();
  }

  tell() {
    if (this.cell < 0) {
      this.look(-1, -1);
    } else {
      this.look(...this.range(this.cell));
    }
  }

  draw() {
    if (!this.map) return;
    const width = this.canvas.clientWidth;
    if (width === 0) return; // the page is not shown
    const cells = this.bytes.length;
    const fits = () => {
      this.size = Math.min(largestCell, width / this.columns);
      return Math.ceil(cells / this.columns) * this.size <= mostHeight && this.columns * largestCell >= width;
    };
    this.columns = 1;
    while (!fits() && this.columns < cells && width / (this.columns * 2) >= leastCell) this.columns *= 2;
    const rows = Math.ceil(cells / this.columns);
    const scale = window.devicePixelRatio || 1;
    const height = Math.ceil(rows * this.size) + 1;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    this.canvas.style.height = `${height}px`;
    const ink = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext('2d'));
    ink.scale(scale, scale);
    const style = getComputedStyle(document.documentElement);
    const [free, leased, quarantined, fence, border] = ['--free', '--blue', '--orange', '--purple', '--ink'].map((name) => style.getPropertyValue(name));
    const gap = this.size > 7 ? 1.5 : 1;
    const side = this.size - gap;
    let full = 0;
    let waiting = 0;
    for (let i = 0; i < cells; i++) {
      const x = (i % this.columns) * this.size;
      const y = Math.floor(i / this.columns) * this.size;
      const byte = this.bytes[i];
      const held = byte >> 4;
      const kept = byte & 15;
      ink.globalAlpha = 1;
      if (this.fenced && held === 0) {
        ink.fillStyle = fence;
        ink.globalAlpha = 0.45;
        ink.fillRect(x, y, side, Math.max(1, side / 3));
        ink.fillRect(x, y + side * 2 / 3, side, Math.max(1, side / 3));
        ink.globalAlpha = 1;
      } else {
        ink.fillStyle = free;
        ink.fillRect(x, y, side, side);
      }
      if (held > 0) {
        full += held === 15 ? 1 : 0;
        ink.globalAlpha = 0.25 + 0.05 * held;
        ink.fillStyle = leased;
        ink.fillRect(x, y, side, side);
      }
      if (kept > 0) {
        waiting++;
        ink.globalAlpha = 0.4 + 0.04 * kept;
        ink.fillStyle = quarantined;
        ink.beginPath();
        ink.arc(x + side / 2, y + side / 2, side / 2, 0, 2 * Math.PI);
        ink.fill();
      }
    }
    if (this.cell >= 0) {
      ink.globalAlpha = 1;
      ink.strokeStyle = border;
      ink.lineWidth = 2;
      ink.strokeRect((this.cell % this.columns) * this.size - 1, Math.floor(this.cell / this.columns) * this.size - 1, side + 2, side + 2);
    }
    this.canvas.setAttribute('aria-label', `Machine IDs ${count(this.map.from)} to ${count(this.map.to - 1)} in ${count(cells)} cells: ` +
      `${count(full)} leased, ${count(waiting)} with quarantined ones. Move with the arrow keys` + (this.map.idsPerCell > 1 ? ', zoom in with Enter.' : '.'));
  }

  showTrail() {
    const map = /** @type {SlotMap} */ (this.map);
    const nav = the('trail');
    const text = (from, to) => `${count(from)} to ${count(to - 1)}`;
    const key = JSON.stringify([this.trail, map.idsPerCell, map.from, map.to]);
    if (nav.dataset.shown === key) return;
    nav.dataset.shown = key;
    const step = (depth, label) => {
      const button = make('button', { type: 'button' }, label);
      button.addEventListener('click', () => { this.trail.length = depth; this.wanted = -1; this.turn(-1); this.zoomed(); });
      return button;
    };
    const parts = [];
    if (this.trail.length) parts.push(step(0, `all, ${text(map.low, map.end)}`));
    this.trail.slice(0, -1).forEach(([from, to], i) => parts.push(step(i + 1, text(from, to))));
    parts.push(make('span', { class: 'quiet' }, `${this.trail.length ? '' : 'machine IDs '}${text(map.from, map.to)}` +
      (map.idsPerCell > 1 ? `, ${count(map.idsPerCell)} in each cell: click or tap one to look into it` : '')));
    nav.replaceChildren(...parts);
  }

  zoom() {
    if (!this.map || this.cell < 0 || this.map.idsPerCell === 1) return;
    const [from, last] = this.range(this.cell);
    this.trail.push([from, last + 1]);
    this.pinned = false;
    this.wanted = -1;
    this.turn(-1);
    this.zoomed();
  }

  /** @param {{offsetX: number, offsetY: number}} at */
  cellAt({ offsetX, offsetY }) {
    const column = Math.floor(offsetX / this.size);
    const cell = Math.floor(offsetY / this.size) * this.columns + column;
    return column >= 0 && column < this.columns && cell >= 0 && cell < this.bytes.length ? cell : -1;
  }

  listen() {
    const canvas = this.canvas;
    canvas.addEventListener('pointermove', (event) => {
      if (event.pointerType === 'mouse' && !this.pinned) this.turn(this.cellAt(event));
    });
    canvas.addEventListener('pointerleave', (event) => {
      if (event.pointerType === 'mouse' && !this.pinned) this.turn(-1);
    });
    canvas.addEventListener('click', (event) => {
      const cell = this.cellAt(event);
      const again = this.pinned && cell === this.cell;
      this.pinned = !again && cell >= 0;
      this.turn(cell);
      this.zoom();
    });
    canvas.addEventListener('keydown', (event) => {
      const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns };
      if (event.key in steps || event.key === 'Home') {
        const to = event.key === 'Home' || this.cell < 0 ? 0 : this.cell + steps[event.key];
        if (to >= 0 && to < this.bytes.length) {
          this.pinned = true;
          this.turn(to);
        }
      } else if (event.key === 'Enter') {
        this.zoom();
      } else if (event.key === 'Escape') {
        this.pinned = false;
        this.turn(-1);
      } else {
        return;
      }
      event.preventDefault();
    });
    new ResizeObserver(() => this.draw()).observe(/** @type {Element} */ (canvas.parentElement));
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.draw());
  }
}

/** Where the state of the slots is told in words. @param {(string | Node)[]} parts */
export function tellDetail(parts) {
  const detail = the('map-detail');
  const before = detail.innerHTML;
  const after = make('div', {}, ...parts);
  if (before !== after.innerHTML) detail.replaceChildren(...after.childNodes);
}

/** @param {string} text */
export function tellNothing(text) {
  say(the('map-detail'), text);
}
