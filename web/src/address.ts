// The page's address, written at once, and while it changes again and again, as under a slider, at most once in REST: each time the browser
// tells its windows, and reads the page's icon anew.

const REST = 250; // ms
let waiting: string | undefined, timer: ReturnType<typeof setTimeout> | undefined;

// An entry of its own in the browser's history.
export function push(address: string): void {
  flush();
  history.pushState(null, "", address);
}

// In the current entry's place.
export function replace(address: string): void {
  waiting = address;
  if (timer !== undefined) return;
  flush();
  timer = setTimeout(() => { timer = undefined; if (waiting !== undefined) replace(waiting); }, REST);
}

// Write what waits: before the address is read, or the page left.
export function flush(): void {
  if (waiting !== undefined) history.replaceState(null, "", waiting);
  waiting = undefined;
}

// Forget what waits: it was another entry's.
export function forget(): void {
  waiting = undefined;
}
