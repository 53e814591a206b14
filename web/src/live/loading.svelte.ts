// How many of a page's files of weights have come; all is 0 when none is waited for.

export const loading = $state({ done: 0, all: 0 });
