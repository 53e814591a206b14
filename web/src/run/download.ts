// A file that the page made, handed to the browser's downloads.

import type { Run } from "./types";

export function download(content: Blob, name: string): void {
  const url = URL.createObjectURL(content), link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

// "pellucid/capitals" and "html" are "capitals.html"
export const nameOf = (run: Run, ending: string): string => `${run.model.split("/").at(-1)?.replace(/[^\w.-]/g, "_") || "run"}.${ending}`;
