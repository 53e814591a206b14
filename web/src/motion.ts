// How long a movement lasts, in ms. `move`: its name in page.css, such as "--move-column", which the build may write in seconds.
export function lasts(element: Element, move: string): number {
  const time = getComputedStyle(element).getPropertyValue(move).trim();
  return parseFloat(time) * (time.endsWith("ms") ? 1 : 1000);
}
