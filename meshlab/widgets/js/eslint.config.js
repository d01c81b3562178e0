import js from "@eslint/js";
import globals from "globals";

export default [
  js.configs.recommended,
  {
    languageOptions: { ecmaVersion: 2022, sourceType: "module", globals: globals.browser },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      "no-unused-expressions": ["error", { allowShortCircuit: true }],
      "no-var": "error",
      "prefer-const": ["error", { destructuring: "all" }],
      eqeqeq: "error",
      curly: ["error", "multi-line", "consistent"],
      "one-var": ["error", { initialized: "never" }],
    },
  },
  { files: ["*.mjs", "**/*.test.mjs"], languageOptions: { globals: globals.node } },
];
