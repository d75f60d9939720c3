package io.github.kazahana;

import java.io.IOException;
import java.nio.file.AccessDeniedException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFileAttributes;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Where the daemon's socket is, and why it cannot be reached. */
final class DaemonSocket {
    private static final Pattern URI = Pattern.compile("unix:(//)?(.*)", Pattern.DOTALL);
    private static final Pattern OTHER_URI = Pattern.compile("[a-zA-Z][a-zA-Z0-9+.-]*://.*", Pattern.DOTALL);
    private static final int TYPE = 0170000;
    private static final int SOCKET = 0140000;

    private DaemonSocket() {}

    /** There is no daemon to connect to. The message says what to do. */
    static final class Unreachable extends IOException {
        private static final long serialVersionUID = 1;

        /** Whether waiting cannot help, because a person has to change something. */
        final boolean hopeless;

        Unreachable(boolean hopeless, String message, Throwable cause) {
            super(message, cause);
            this.hopeless = hopeless;
        }
    }

    /** Reads a socket's path, or a unix:/// URI with one. {@code source} names where it was written. */
    static Path parse(String text, String source) {
        Matcher uri = URI.matcher(text);
        boolean isUri = uri.matches();
        String file = isUri ? uri.group(2) : text;
        String why = null;
        if (isUri && uri.group(1) != null && !file.startsWith("/")) {
            why = "names a host: write unix:///PATH, with three slashes, or just the path";
        } else if (!isUri && OTHER_URI.matcher(text).matches()) {
            why = "is not a Unix socket: write its path, or unix:///PATH";
        } else if (file.isEmpty()) {
            why = "is empty: write the path of a Unix socket";
        } else if (file.startsWith("@") || file.indexOf('\0') >= 0) {
            why = "is an abstract socket, which every user can open: write a path";
        }
        if (why != null) {
            throw KazahanaException.invalid(source + ": \"" + text + "\" " + why);
        }
        return Path.of(file);
    }

    /**
     * Finds the daemon's socket. It does not try to connect: a socket that exists and does not answer is the one to report, and not a
     * reason to ask another daemon.
     */
    static Path find(Map<String, String> environment, int uid) throws Unreachable {
        String named = environment.getOrDefault("KAZAHANA_SOCKET", "").trim();
        if (!named.isEmpty()) {
            return parse(named, "KAZAHANA_SOCKET");
        }
        Path own = Path.of("/tmp/kazahana-" + uid + "/kazahanad.sock");
        List<Path> places = new ArrayList<>(List.of(Path.of("/run/kazahana/kazahanad.sock"), own));
        String runtime = environment.getOrDefault("XDG_RUNTIME_DIR", "");
        if (runtime.startsWith("/")) {
            places.add(0, Path.of(runtime, "kazahana/kazahanad.sock"));
        }
        List<String> tried = new ArrayList<>();
        boolean denied = false;
        for (Path place : places) {
            try {
                Files.getLastModifiedTime(place);
                if (place.equals(own)) {
                    checkOwner(own.getParent(), uid);
                }
                return place;
            } catch (NoSuchFileException e) {
                tried.add(place + " (no such file)");
            } catch (AccessDeniedException e) {
                denied = true;
                tried.add(place + " (permission denied: " + denialHint(place) + ")");
            } catch (Unreachable e) {
                throw e;
            } catch (IOException e) {
                tried.add(place + " (" + e.getMessage() + ")");
            }
        }
        throw new Unreachable(denied, "no daemon's socket found; tried " + String.join(", ", tried)
                + ": start one (kazahanad serve), or name its socket in KAZAHANA_SOCKET", null);
    }

    /** Returns the user ID of this process. Java does not tell it, but files do; -1 where files have none. */
    static int uid() {
        try {
            Path self = Path.of("/proc/self");
            if (Files.exists(self)) {
                return (int) Files.getAttribute(self, "unix:uid");
            }
            Path made = Files.createTempFile("kazahana", "");
            try {
                return (int) Files.getAttribute(made, "unix:uid");
            } finally {
                Files.delete(made);
            }
        } catch (IOException | UnsupportedOperationException | IllegalArgumentException e) {
            return -1;
        }
    }

    /** Refuses a directory below /tmp that another user could have put there to answer in the daemon's place. */
    private static void checkOwner(Path directory, int uid) throws IOException {
        Map<String, Object> found = Files.readAttributes(directory, "unix:isDirectory,uid,mode", LinkOption.NOFOLLOW_LINKS);
        String why = !(boolean) found.get("isDirectory") ? "is not a directory"
                : (int) found.get("uid") != uid ? "belongs to another user"
                : ((int) found.get("mode") & 022) != 0 ? "can be written by others" : null;
        if (why != null) {
            throw new Unreachable(true, directory + " " + why + ": its socket is not trusted", null);
        }
    }

    /** Explains why a connection to the file failed. It looks at the file: the texts of the system's errors differ. */
    static Unreachable explain(Path file, IOException cause) {
        String start = "start it with: kazahanad serve --socket " + file;
        try {
            int mode = (int) Files.getAttribute(file, "unix:mode");
            if ((mode & TYPE) != SOCKET) {
                return new Unreachable(true, file + " exists and is not a socket", cause);
            }
            if (!Files.isWritable(file)) {
                return new Unreachable(true, "permission denied on " + file + ": " + denialHint(file), cause);
            }
            return new Unreachable(false, "no daemon listens on " + file + " (" + cause.getMessage() + "); " + start, cause);
        } catch (NoSuchFileException e) {
            return new Unreachable(false, "there is no socket at " + file + "; " + start, cause);
        } catch (AccessDeniedException e) {
            return new Unreachable(true, "permission denied on " + file + ": " + denialHint(file), cause);
        } catch (IOException | UnsupportedOperationException | IllegalArgumentException e) {
            return new Unreachable(false, "cannot reach the daemon at " + file + ": " + cause.getMessage(), cause);
        }
    }

    /** Says which group may open the socket. The directory may keep even that from being read; then the directory's group is meant. */
    private static String denialHint(Path file) {
        for (Path place : new Path[] {file, file.toAbsolutePath().getParent()}) {
            try {
                String group = Files.readAttributes(place, PosixFileAttributes.class).group().getName();
                return group.equals("root")
                        ? place + " belongs to group root: give the daemon a group of its own with --socket-group"
                        : place + " belongs to group " + group + ": a user of that group may connect (usermod -aG " + group
                                + " USER, then log in again)";
            } catch (IOException | UnsupportedOperationException e) {
                continue;
            }
        }
        return "its directory cannot be read either";
    }
}
