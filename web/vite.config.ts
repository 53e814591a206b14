import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

// The page's messages live with all others, under src/pellucid/messages; of those files the build carries the page's own keys, the legend and the signs of formulas.
const messages = {
  name: "messages",
  enforce: "pre" as const,
  transform(code: string, id: string) {
    if (!/messages\/(en|zh)\.json$/.test(id)) return null;
    const all = Object.entries(JSON.parse(code) as Record<string, string>);
    return { code: JSON.stringify(Object.fromEntries(all.filter(([key]) => /^(page|axis|formula)\./.test(key)))), map: null };
  },
};

// File names without hashes: the server allows these few by name, and a committed build shows what changed.
export default defineConfig({
  base: "./",
  plugins: [messages, svelte()],
  build: {
    outDir: "../src/pellucid/web",
    emptyOutDir: true,
    modulePreload: false,
    rollupOptions: { output: { entryFileNames: "page.js", chunkFileNames: "[name].js", assetFileNames: "page[extname]" } },
  },
  test: { include: ["src/**/*.test.ts"] },
} as Parameters<typeof defineConfig>[0]);
