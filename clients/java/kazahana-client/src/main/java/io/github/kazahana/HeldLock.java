package io.github.kazahana;

import java.util.function.Consumer;

/**
 * A lock that this process holds until {@link #close}, or until it is lost. The daemon renews it while the lock's own connection lives,
 * and releases it when that closes, also at the end of the process. It does not end with the client.
 *
 * <p>No lock service can keep a process that was stopped from going on. So pass {@link #token} to the resource that the lock protects,
 * and let that refuse tokens below the greatest it has seen: docs/locks.md.
 */
public interface HeldLock extends AutoCloseable {
    /**
     * Returns the lock's name.
     *
     * @return the key
     */
    String key();

    /**
     * Returns the fencing token: greater than that of every earlier holder.
     *
     * @return the token, 1 to 2^53-1
     */
    long token();

    /**
     * Returns the name of this holding of the lock.
     *
     * @return the lease's ID
     */
    String leaseId();

    /**
     * Returns the owner of the lock, as others see it.
     *
     * @return the owner
     */
    String ownerId();

    /**
     * Reports whether the lock is certainly held: it is neither lost nor given back, and the daemon has confirmed it for longer than now.
     * It does not ask the daemon. After a suspend of the machine it is false until the daemon has confirmed the lock again.
     *
     * @return whether the lock is certainly held
     */
    boolean isHeld();

    /**
     * Calls the function when the lock is lost, in a thread of the lock that does nothing else then; at once and in this thread if the
     * lock is lost already. {@link #close} is no loss. The detail {@code reason} of the error is expired, taken_over, refused, released
     * (by another connection) or disconnected.
     *
     * @param told what to call, such as {@code lost -> worker.interrupt()}
     */
    void onLost(Consumer<KazahanaException.LockLostException> told);

    /**
     * Gives the lock back. Only the first call has an effect. If the daemon does not answer, the lock ends with its connection.
     *
     * @throws KazahanaException.LockLostException if the lock was lost before: another holder may have acted at the same time
     * @throws java.util.concurrent.CancellationException if the thread is interrupted while it waits; the lock is given back all the same
     */
    @Override
    void close();
}
