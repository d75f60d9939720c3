package io.github.kazahana;

import static java.util.Map.entry;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.OptionalLong;
import java.util.function.Function;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The base class of every error of this client. Decide by the class or the code, and show the message to people. Errors with a code that
 * this version does not know are plain KazahanaExceptions.
 */
public class KazahanaException extends RuntimeException {
    private static final long serialVersionUID = 1;

    /** What an error consists of. */
    record Info(String code, String message, Map<String, String> details, Throwable cause) {}

    private static final Map<String, Function<Info, KazahanaException>> BY_CODE = Map.ofEntries(
            entry("CLOCK_BACKWARD", ClockBackwardException::new),
            entry("LEASE_ACQUISITION", LeaseAcquisitionException::new),
            entry("NO_PROVIDER", NoProviderException::new),
            entry("TIMEOUT", RequestTimeoutException::new),
            entry("TIMESTAMP_OVERFLOW", TimestampOverflowException::new),
            entry("UNKNOWN_SERVICE", UnknownServiceException::new),
            entry("UNKNOWN_METHOD", UnknownMethodException::new),
            entry("INVALID_PARAMS", InvalidParamsException::new),
            entry("INVALID_EXTERNAL_ID", InvalidExternalIdException::new),
            entry("PERMISSION_DENIED", PermissionDeniedException::new),
            entry("OVERLOADED", OverloadedException::new),
            entry("SHUTTING_DOWN", ShuttingDownException::new),
            entry("START_FAILED", StartFailedException::new),
            entry("LOCK_HELD", LockHeldException::new),
            entry("LOCK_NOT_OWNED", LockNotOwnedException::new),
            entry("LOCK_EXPIRED", LockExpiredException::new),
            entry("LOCK_NOT_FOUND", LockNotFoundException::new),
            entry("LOCK_FENCED", LockFencedException::new),
            entry("LOCK_LOST", LockLostException::new),
            entry("SEQUENCE_EXHAUSTED", SequenceExhaustedException::new),
            entry("SEQUENCE_FENCED", SequenceFencedException::new),
            entry("STORE_UNAVAILABLE", StoreUnavailableException::new),
            entry("STORE_FULL", StoreFullException::new),
            entry("NO_STORE", NoStoreException::new),
            entry("REQUEST_ID_REUSED", RequestIdReusedException::new),
            entry("PLACEMENT_NOT_READY", PlacementNotReadyException::new),
            entry("PLACEMENT_PENDING", PlacementPendingException::new),
            entry("PLACEMENT_UNSERVED", PlacementUnservedException::new),
            entry("ACTIVATION_FAILED", ActivationFailedException::new),
            entry("ACTIVATION_ENDED", ActivationEndedException::new),
            entry("WATCH_ENDED", WatchEndedException::new),
            entry("DAEMON_UNAVAILABLE", DaemonUnavailableException::new),
            entry("PROTOCOL_ERROR", ProtocolException::new),
            entry("CLIENT_CLOSED", ClientClosedException::new));

    private static final Pattern HEAD = Pattern.compile("([A-Z][A-Z0-9_]*):(?: |$)");
    private static final Pattern KEY = Pattern.compile("([a-z][a-z0-9_]*)=");
    private static final Pattern ESCAPE = Pattern.compile("\\\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|(.))");

    /** A longer text is not from a daemon: its details are not parsed. */
    private static final int MAX_TEXT = 64 << 10;

    private final transient Info info;

    /** The code, kept when the error is serialized. */
    private final String code;

    private KazahanaException(Info info) {
        super(info.message, info.cause);
        this.info = info;
        code = info.code;
    }

    /**
     * Returns an error as the daemon writes it, of the class for its code: {@code CODE: message key=value key="a value"}. Tests make
     * errors with it.
     *
     * @param text the error's text
     * @return the error; a {@link ProtocolException} if the text has no code
     */
    public static KazahanaException parse(String text) {
        Matcher head = HEAD.matcher(text);
        if (!head.lookingAt()) {
            return protocol("the daemon's error has no code: " + text);
        }
        String message = text.substring(head.end());
        return make(new Info(head.group(1), message, parseDetails(message), null));
    }

    static KazahanaException of(String code, String message, Throwable cause) {
        return make(new Info(code, message, Map.of(), cause));
    }

    static LockLostException lost(String key, String reason, Throwable cause) {
        return new LockLostException(new Info("LOCK_LOST", "the lock \"" + key + "\" is lost: " + reason, Map.of("reason", reason), cause));
    }

    static KazahanaException protocol(String message) {
        return of("PROTOCOL_ERROR", message, null);
    }

    static KazahanaException invalid(String message) {
        return of("INVALID_PARAMS", message, null);
    }

    private static KazahanaException make(Info info) {
        return BY_CODE.getOrDefault(info.code, KazahanaException::new).apply(info);
    }

    /** Returns the same error with the stack of the calling thread: each caller throws one of its own. */
    KazahanaException copy() {
        return make(info);
    }

    /**
     * Returns the code, which is the same in all languages: docs/protocol.md lists them.
     *
     * @return the code
     */
    public String code() {
        return code;
    }

    /**
     * Returns the facts that the daemon adds, by its own names.
     *
     * @return the details
     */
    public Map<String, String> details() {
        return info == null ? Map.of() : info.details;
    }

    /**
     * Returns a detail as a number.
     *
     * @param key its name, such as waited_ms
     * @return the number; empty if it is missing, or not a number
     */
    public OptionalLong number(String key) {
        try {
            return OptionalLong.of(Long.parseLong(details().getOrDefault(key, "")));
        } catch (NumberFormatException e) {
            return OptionalLong.empty();
        }
    }

    @Override
    public String toString() {
        return getClass().getName() + ": " + code + ": " + getMessage();
    }

    /** Reads the longest tail of the text that consists of details, in one pass. */
    private static Map<String, String> parseDetails(String text) {
        Map<String, String> details = new LinkedHashMap<>();
        if (text.length() > MAX_TEXT) {
            return details;
        }
        Matcher key = KEY.matcher(text);
        for (int at = 0; at < text.length(); ) {
            key.region(at, text.length());
            int end = key.lookingAt() ? valueEnd(text, key.end()) : -1;
            if (end >= 0) {
                String value = text.substring(key.end(), end);
                details.putIfAbsent(key.group(1), value.startsWith("\"") ? unquote(value.substring(1, value.length() - 1)) : value);
                at = end + 1;
                continue;
            }
            details.clear();
            int space = text.indexOf(' ', at);
            if (space < 0) {
                break;
            }
            at = space + 1;
        }
        return details;
    }

    /** Returns where the value that begins at {@code at} ends, before a space or at the text's end; -1 if there is none. */
    private static int valueEnd(String text, int at) {
        if (at >= text.length() || text.charAt(at) == ' ') {
            return -1;
        }
        int end = at;
        if (text.charAt(at) != '"') {
            end = text.indexOf(' ', at);
            return end < 0 ? text.length() : end;
        }
        for (end++; end < text.length() && text.charAt(end) != '"'; end++) {
            if (text.charAt(end) == '\\') {
                end++;
            }
        }
        end++;
        return end == text.length() || end < text.length() && text.charAt(end) == ' ' ? end : -1;
    }

    /** Undoes the escapes of a Go string, with which the daemon quotes values. */
    private static String unquote(String quoted) {
        return ESCAPE.matcher(quoted).replaceAll(found -> {
            for (int group = 1; group <= 3; group++) {
                if (found.group(group) != null) {
                    long point = Long.parseLong(found.group(group), 16);
                    return Matcher.quoteReplacement(point <= Character.MAX_CODE_POINT ? Character.toString((int) point) : "\uFFFD");
                }
            }
            int letter = "abfnrtv".indexOf(found.group(4));
            return Matcher.quoteReplacement(letter < 0 ? found.group(4) : "\7\b\f\n\r\t\13".substring(letter, letter + 1));
        });
    }

    /** The host's clock was set back by more than the daemon's {@code max_backward}; details: backward_ms, limit_ms. */
    public static final class ClockBackwardException extends KazahanaException { ClockBackwardException(Info info) { super(info); } }

    /** The daemon holds no valid lease and may not make fallback IDs; detail: cause. */
    public static final class LeaseAcquisitionException extends KazahanaException { LeaseAcquisitionException(Info info) { super(info); } }

    /** The daemon has no provider and may not make fallback IDs. */
    public static final class NoProviderException extends KazahanaException { NoProviderException(Info info) { super(info); } }

    /** The call's time ran out; details: waited_ms, and cause if the daemon knows what it waited for. */
    public static final class RequestTimeoutException extends KazahanaException { RequestTimeoutException(Info info) { super(info); } }

    /** The layout's time is used up. */
    public static final class TimestampOverflowException extends KazahanaException { TimestampOverflowException(Info info) { super(info); } }

    /** The daemon does not have that service. */
    public static final class UnknownServiceException extends KazahanaException { UnknownServiceException(Info info) { super(info); } }

    /** The daemon does not know the method: it is older than this client. */
    public static final class UnknownMethodException extends KazahanaException { UnknownMethodException(Info info) { super(info); } }

    /** An argument is wrong; the message says which values are allowed. */
    public static final class InvalidParamsException extends KazahanaException { InvalidParamsException(Info info) { super(info); } }

    /** The text is no external ID of the service. */
    public static final class InvalidExternalIdException extends KazahanaException { InvalidExternalIdException(Info info) { super(info); } }

    /** The daemon does not serve this user. */
    public static final class PermissionDeniedException extends KazahanaException { PermissionDeniedException(Info info) { super(info); } }

    /** A limit of the daemon is reached. */
    public static final class OverloadedException extends KazahanaException { OverloadedException(Info info) { super(info); } }

    /** The daemon is stopping. Only clients of a single attempt see it. */
    public static final class ShuttingDownException extends KazahanaException { ShuttingDownException(Info info) { super(info); } }

    /** The daemon cannot start: its configuration or its state directory is wrong. */
    public static final class StartFailedException extends KazahanaException { StartFailedException(Info info) { super(info); } }

    /** Another owner holds the lock; details: retry_after_ms, owner. */
    public static final class LockHeldException extends KazahanaException { LockHeldException(Info info) { super(info); } }

    /** The lock is not the caller's. */
    public static final class LockNotOwnedException extends KazahanaException { LockNotOwnedException(Info info) { super(info); } }

    /** The lock's term has ended. */
    public static final class LockExpiredException extends KazahanaException { LockExpiredException(Info info) { super(info); } }

    /** There is no such lock. */
    public static final class LockNotFoundException extends KazahanaException { LockNotFoundException(Info info) { super(info); } }

    /** The store may have forgotten locks, and grants none before the detail until_ms. */
    public static final class LockFencedException extends KazahanaException { LockFencedException(Info info) { super(info); } }

    /** A lock was lost while it was held; detail: reason. */
    public static final class LockLostException extends KazahanaException { LockLostException(Info info) { super(info); } }

    /** The sequence has reached its largest value; details: max_value, left. */
    public static final class SequenceExhaustedException extends KazahanaException { SequenceExhaustedException(Info info) { super(info); } }

    /** The store may have forgotten values, and gives none before the detail until_ms. */
    public static final class SequenceFencedException extends KazahanaException { SequenceFencedException(Info info) { super(info); } }

    /** The store of locks and sequences does not answer the daemon; detail: cause. */
    public static final class StoreUnavailableException extends KazahanaException { StoreUnavailableException(Info info) { super(info); } }

    /** The store has no room for a new key; details: setting (max_keys, max_disk, or none where the disk is full), limit. */
    public static final class StoreFullException extends KazahanaException { StoreFullException(Info info) { super(info); } }

    /** The daemon keeps no locks and sequences. */
    public static final class NoStoreException extends KazahanaException { NoStoreException(Info info) { super(info); } }

    /** Another request had the same request ID. */
    public static final class RequestIdReusedException extends KazahanaException { RequestIdReusedException(Info info) { super(info); } }

    /** The daemon places no actors now; detail: state. */
    public static final class PlacementNotReadyException extends KazahanaException { PlacementNotReadyException(Info info) { super(info); } }

    /** The wait is over, and an activation or a passivation is still under way. */
    public static final class PlacementPendingException extends KazahanaException { PlacementPendingException(Info info) { super(info); } }

    /** No process of any host has registered for the kind. */
    public static final class PlacementUnservedException extends KazahanaException { PlacementUnservedException(Info info) { super(info); } }

    /** No process of the host could activate the identity; detail: cause. */
    public static final class ActivationFailedException extends KazahanaException { ActivationFailedException(Info info) { super(info); } }

    /** The activation may not be relied upon any more. */
    public static final class ActivationEndedException extends KazahanaException { ActivationEndedException(Info info) { super(info); } }

    /** No more events come; detail: reason. */
    public static final class WatchEndedException extends KazahanaException { WatchEndedException(Info info) { super(info); } }

    /** No daemon answers at the socket; the message says what to do. */
    public static final class DaemonUnavailableException extends KazahanaException { DaemonUnavailableException(Info info) { super(info); } }

    /** The server is not a kazahana daemon. */
    public static final class ProtocolException extends KazahanaException { ProtocolException(Info info) { super(info); } }

    /** The client was closed. */
    public static final class ClientClosedException extends KazahanaException { ClientClosedException(Info info) { super(info); } }
}
