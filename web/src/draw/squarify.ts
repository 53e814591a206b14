// Areas in proportion that fill a rectangle, as square as can be (Bruls, Huizing, van Wijk 2000); values from the largest on.

export interface Box { x: number; y: number; width: number; height: number }

export function squarify(values: readonly number[], bounds: Box): Box[] {
  const total = values.reduce((a, b) => a + b, 0), out: Box[] = [];
  if (!(total > 0)) return values.map(() => ({ ...bounds, width: 0, height: 0 }));
  const areas = values.map((v) => (v / total) * bounds.width * bounds.height);
  let { x, y, width, height } = bounds, row: number[] = [];
  const worst = (r: readonly number[], side: number): number => {
    const sum = r.reduce((a, b) => a + b, 0);
    return Math.max(...r.map((a) => Math.max((side * side * a) / (sum * sum), (sum * sum) / (side * side * a))));
  };
  const lay = (): void => {
    const sum = row.reduce((a, b) => a + b, 0), wide = width >= height, thick = sum / (wide ? height : width);
    let at = 0;
    for (const a of row) {
      const long = a / (thick || 1);
      out.push(wide ? { x, y: y + at, width: thick, height: long } : { x: x + at, y, width: long, height: thick });
      at += long;
    }
    if (wide) [x, width] = [x + thick, width - thick];
    else [y, height] = [y + thick, height - thick];
    row = [];
  };
  for (const a of areas) {
    const side = Math.min(width, height);
    if (row.length > 0 && worst([...row, a], side) > worst(row, side)) lay();
    row.push(a);
  }
  lay();
  return out;
}
