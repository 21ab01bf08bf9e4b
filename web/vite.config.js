import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

// Fixed names, one script and one style sheet: the server and `retinue export --html` name them.
export default defineConfig({
  plugins: [svelte()],
  // The server has the page below a path that it makes up.
  base: "./",
  build: {
    outDir: "../src/retinue/interfaces/web/page",
    emptyOutDir: true,
    modulePreload: false,
    assetsInlineLimit: 0,
    rollupOptions: {
      output: {
        entryFileNames: "page.js",
        assetFileNames: "page[extname]",
        codeSplitting: false,
      },
    },
  },
});
