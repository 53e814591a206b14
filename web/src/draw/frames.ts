// Turns to paint, one a frame: pictures whose numbers come together do not hold up one frame together.

let last: Promise<unknown> = Promise.resolve();

export const turnToPaint = (): Promise<unknown> => (last = last.then(() => new Promise(requestAnimationFrame)));
