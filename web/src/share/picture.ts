// The picture in view as a file of its own, with a caption: the map as lines (SVG), or an opened tile's cells as pixels.

import { pieceOf } from "../run/map";
import type { Run } from "../run/types";
import { say, visible } from "../messages";
import { percent } from "../tensor/number";

const SVG = "http://www.w3.org/2000/svg";
const LOOKS = ["fill", "fill-opacity", "stroke", "stroke-opacity", "stroke-width", "stroke-dasharray", "paint-order", "opacity", "font-family", "font-size", "font-weight", "text-anchor"] as const;
const EDGE = 16, LINE = 18, DENSE = 2, MOST = 3; // px around the picture and of a line of its caption; pixels of a px; lines of a sentence

export interface Drawn { text: string; width: number; height: number } // text: of the SVG

// What was run, and where it is seen: model, prompt and answer; then the place as an address has it.
export function captionOf(run: Run, step: number, address: string, more = ""): string[] {
  const answer = run.steps[step]?.answers[0], prompt = run.prompt ?? run.ids.map((id) => `#${id}`).join(" ");
  const before = run.kind === "encoder-decoder" || run.kind === "encoder" ? prompt : prompt + run.new_pieces.slice(0, step).join("").replaceAll("·", " ");
  const gives = answer ? ` → ${visible(pieceOf(answer.picked).replace(/^·/, ""))} ${percent(answer.picked.probability ?? NaN)}` : "";
  return [`${visible(run.model)} · “${visible(before)}”${gives}`, `Pellucid · ${more}${address}`];
}

export const mapInView = (): SVGSVGElement | null => document.querySelector<SVGSVGElement>("svg[data-map]");
const tileInView = (): HTMLElement | null => document.querySelector("aside .frame[data-cells]");

function element(name: string, attributes: Record<string, string | number>, text = ""): SVGElement {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, String(value));
  if (text) node.textContent = text;
  return node;
}

const colourOf = (name: string): string => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const fontOf = (name: string): string => colourOf(name).replaceAll('"', "'");

interface CaptionLine { text: string; size: number; ink: string }

// A caption as lines that fit into `width`; what MOST lines of one sentence do not hold is cut.
function fitted(caption: readonly string[], width: number): CaptionLine[] {
  return caption.flatMap((sentence, i) => {
    const size = i === 0 ? 13 : 11.5, lines = [""];
    let used = 0;
    for (const letter of sentence) {
      const wide = size * ((letter.codePointAt(0) ?? 0) > 0x2e7f ? 1.05 : 0.58);
      if (used + wide > width) { // at a space, where one is near
        const line = lines.pop() ?? "", space = line.lastIndexOf(" "), cut = space > 0.7 * line.length ? space + 1 : line.length;
        lines.push(line.slice(0, cut), line.slice(cut));
        used = ((line.length - cut) * size) / 2;
      }
      used += wide;
      lines[lines.length - 1] += letter;
    }
    if (lines.length > MOST) lines.splice(MOST - 1, lines.length, `${lines[MOST - 1]?.slice(0, -1) ?? ""}…`);
    return lines.map((text) => ({ text, size, ink: colourOf(i === 0 ? "--ink" : "--soft") }));
  });
}

// The map and the likeliest tokens beside it, as one SVG that has its own colours and needs no style of the page.
export function mapDrawn(caption: string[]): Drawn {
  const map = mapInView();
  if (!map) throw new RangeError(say("page.share.none"));
  const box = map.getBoundingClientRect(), copy = map.cloneNode(true) as SVGSVGElement, own = [map, ...map.querySelectorAll("*")], copied = [copy, ...copy.querySelectorAll("*")];
  own.forEach((node, i) => {
    const style = getComputedStyle(node), target = copied[i] as Element;
    for (const key of [...target.getAttributeNames()].filter((k) => /^(class|aria-|data-|style$)/.test(k))) target.removeAttribute(key);
    if (node.tagName !== "svg" && node.tagName !== "g") for (const property of LOOKS) target.setAttribute(property, style.getPropertyValue(property).replaceAll('"', "'"));
  });
  const rows = [...document.querySelectorAll<HTMLElement>(".whole .likely button")].map((row) => ({ row, at: row.getBoundingClientRect() }));
  const right = Math.max(box.right, ...rows.map(({ at }) => at.right)) - box.left, bottom = Math.max(box.bottom, ...rows.map(({ at }) => at.bottom)) - box.top;
  const width = Math.ceil(right + 2 * EDGE), below = fitted(caption, right), height = Math.ceil(bottom + 2 * EDGE + LINE * below.length);
  const root = element("svg", { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}`, role: "img" });
  root.append(element("title", {}, caption.join("\n")), element("rect", { width, height, fill: colourOf("--paper") }));
  const inner = element("g", { transform: `translate(${EDGE} ${EDGE})` });
  inner.append(...copy.childNodes);
  for (const { row, at } of rows) {
    const x = at.left - box.left, y = at.top - box.top, bar = row.querySelector(".bar"), picked = row.closest(".picked") !== null;
    const wide = bar?.getBoundingClientRect().width ?? 0, ink = colourOf("--ink"), middle = y + at.height / 2;
    const [piece, share] = [row.querySelector("bdi")?.textContent ?? "", row.querySelector(".number")?.textContent ?? ""];
    inner.append(
      element("rect", { x, y, width: wide, height: at.height, rx: 5, fill: colourOf(picked ? "--ffn" : "--strong"), "fill-opacity": 0.3 }),
      element("text", { x: x + 9, y: middle, "dominant-baseline": "central", fill: ink, "font-family": fontOf("--code"), "font-size": picked ? 25 : 15, "font-weight": picked ? 700 : 400 }, piece),
      element("text", { x: x + at.width - 9, y: middle, "dominant-baseline": "central", "text-anchor": "end", fill: ink, "font-family": fontOf("--text"), "font-size": 15, "font-weight": picked ? 650 : 400 }, share));
  }
  const next = document.querySelector<HTMLElement>(".whole .probabilities"), at = next?.getBoundingClientRect();
  if (next && at) inner.append(element("text", { x: at.left - box.left + 9, y: at.top - box.top + 12, fill: colourOf("--ffn"), "font-family": fontOf("--text"), "font-size": 12, "font-weight": 600 }, next.textContent ?? ""));
  root.append(inner);
  below.forEach(({ text, size, ink }, i) => root.append(element("text", { x: EDGE, y: height - EDGE / 2 - LINE * (below.length - 1 - i), fill: ink, "font-family": fontOf("--text"), "font-size": size }, text)));
  return { text: new XMLSerializer().serializeToString(root), width, height };
}

// An SVG as a picture that a canvas can draw.
export async function imageOf({ text }: Drawn): Promise<HTMLImageElement> {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  return image;
}

function canvasOf(width: number, height: number): { canvas: HTMLCanvasElement; context: CanvasRenderingContext2D } {
  const canvas = document.createElement("canvas"), context = canvas.getContext("2d");
  if (!context) throw new RangeError("2d");
  [canvas.width, canvas.height] = [Math.round(width * DENSE), Math.round(height * DENSE)];
  context.scale(DENSE, DENSE);
  context.fillStyle = colourOf("--paper");
  context.fillRect(0, 0, width, height);
  return { canvas, context };
}

// The picture in view as pixels: an opened tile's two layers, or the map.
export async function pixelsOf(caption: string[]): Promise<Blob> {
  const tile = tileInView();
  if (!tile) {
    const drawn = mapDrawn(caption), { canvas, context } = canvasOf(drawn.width, drawn.height);
    context.drawImage(await imageOf(drawn), 0, 0, drawn.width, drawn.height);
    return written(canvas);
  }
  const box = tile.getBoundingClientRect(), width = box.width + 2 * EDGE, below = fitted(caption, box.width), height = box.height + 2 * EDGE + LINE * below.length;
  const { canvas, context } = canvasOf(width, height);
  for (const layer of tile.querySelectorAll("canvas")) context.drawImage(layer, EDGE, EDGE, box.width, box.height);
  context.textBaseline = "middle";
  below.forEach(({ text, size, ink }, i) => {
    context.fillStyle = ink;
    context.font = `${size}px ${colourOf("--text")}`;
    context.fillText(text, EDGE, box.height + 1.5 * EDGE + LINE * (i + 0.5));
  });
  return written(canvas);
}

const written = (canvas: HTMLCanvasElement): Promise<Blob> => new Promise((take, fail) => canvas.toBlob((blob) => (blob ? take(blob) : fail(new RangeError("png"))), "image/png"));
