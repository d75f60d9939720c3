import js from '@eslint/js';
import tseslint from 'typescript-eslint';

const globals = Object.fromEntries(
  ['AbortController', 'AbortSignal', 'Buffer', 'TextEncoder', 'URL', 'clearTimeout', 'console', 'performance', 'process', 'setImmediate', 'setTimeout'].map((name) => [name, 'readonly']),
);

export default tseslint.config(
  { ignores: ['**/dist', '**/node_modules'] },
  js.configs.recommended,
  {
    files: ['src/**/*.{ts,mts}', 'placement/src/**/*.{ts,mts}'],
    extends: [tseslint.configs.strictTypeChecked],
    languageOptions: { parserOptions: { projectService: true } },
    rules: {
      // Bytes and parallel arrays are indexed within bounds that the type system cannot see.
      '@typescript-eslint/no-non-null-assertion': 'off',
      '@typescript-eslint/restrict-template-expressions': ['error', { allowNumber: true }],
      '@typescript-eslint/no-confusing-void-expression': ['error', { ignoreArrowShorthand: true, ignoreVoidReturningFunctions: true }],
      // What callers and daemons give may differ from its declared type; async is what makes that reject.
      '@typescript-eslint/no-base-to-string': 'off',
      '@typescript-eslint/no-unnecessary-type-conversion': 'off',
      '@typescript-eslint/require-await': 'off',
      // The reason of a signal is whatever its owner chose, and is passed on as it is.
      '@typescript-eslint/only-throw-error': 'off',
      '@typescript-eslint/prefer-promise-reject-errors': 'off',
    },
  },
  { files: ['**/*.mjs'], languageOptions: { globals } },
  { files: ['**/*.cjs'], languageOptions: { globals: { ...globals, require: 'readonly', module: 'readonly' }, sourceType: 'commonjs' } },
);
