/**
 * A client of the kazahana daemon, which hands out unique, time-sortable IDs of 64 bits on this host: {@link io.github.kazahana.Kazahana}.
 */
package io.github.kazahana;
