// One implementation for both module systems, so that a class is the same class in each.
export * from './index.js';
