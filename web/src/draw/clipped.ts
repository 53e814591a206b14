// A text cut to a width in the context's font, with an ellipsis.
export function clipped(context: CanvasRenderingContext2D, text: string, limit: number): string {
  while (text.length > 1 && context.measureText(text).width > limit) text = `${text.slice(0, text.endsWith("…") ? -2 : -1)}…`;
  return text;
}
