export * from './testing.js';
