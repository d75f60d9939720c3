package io.github.kazahana;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.AccessDeniedException;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
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
    private static final Pattern URI = Pattern.compile("unix:(//)?(.*)", Pattern.DOTALL | Pattern.CASE_INSENSITIVE);
    private static final Pattern OTHER_URI = Pattern.compile("[a-zA-Z][a-zA-Z0-9+.-]*://.*", Pattern.DOTALL);
    private static final Pattern BLANK = Pattern.compile("\\A[ \t\r\n]+|[ \t\r\n]+\\z");
    private static final int PATH_LIMIT = System.getProperty("os.name").startsWith("Mac") ? 103 : 107;
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

    /**
     * Reads PATH, unix:PATH or unix:///PATH, as testdata/socket_addresses.json has it. The path is taken as it is, with any percent sign.
     * {@code source} names where it was written. The errors leave out the text: it may be a URL with a password.
     */
    static Path parse(String text, String source) {
        String trimmed = BLANK.matcher(text).replaceAll("");
        Matcher uri = URI.matcher(trimmed);
        boolean isUri = uri.matches();
        String file = isUri ? uri.group(2) : trimmed;
        int length = file.getBytes(StandardCharsets.UTF_8).length;
        String why = null;
        if (!isUri && OTHER_URI.matcher(file).matches()) {
            why = "is not a Unix socket: write its path, or unix:///PATH";
        } else if (file.isEmpty()) {
            why = "is empty: write the path of a Unix socket";
        } else if (isUri && uri.group(1) != null && !file.startsWith("/")) {
            why = "names a host: write unix:///PATH, with three slashes, or just the path";
        } else if (file.startsWith("@") || file.startsWith("\0")) {
            why = "is an abstract socket, which every user can open: write a path";
        } else if (file.indexOf('\0') >= 0) {
            why = "holds a zero byte: write the path of a Unix socket";
        } else if (file.equals("~") || file.startsWith("~/")) {
            why = "begins with ~, which only a shell replaces: write the whole path";
        } else if (file.endsWith("/")) {
            why = "is a directory: write the path of a Unix socket";
        } else if (length > PATH_LIMIT) {
            why = "is " + length + " bytes long, and the system allows a socket's path " + PATH_LIMIT;
        }
        if (why != null) {
            throw KazahanaException.invalid(source + " " + why);
        }
        try {
            return Path.of(file);
        } catch (InvalidPathException e) {
            throw KazahanaException.invalid(source + " is no path in this process's locale: " + e.getReason());
        }
    }

    /** A place where the socket may be, with the directory that another user could have made; null where none could. */
    private record Place(Path file, Path directory) {}

    /**
     * Finds the daemon's socket. It does not try to connect: a socket that exists and does not answer is the one to report, and not a
     * reason to ask another daemon.
     */
    static Path find(Map<String, String> environment, int uid) throws Unreachable {
        String named = environment.getOrDefault("KAZAHANA_SOCKET", "");
        if (!BLANK.matcher(named).replaceAll("").isEmpty()) {
            return parse(named, "KAZAHANA_SOCKET");
        }
        Path own = Path.of("/tmp/kazahana-" + uid);
        List<Place> places = new ArrayList<>();
        String runtime = environment.getOrDefault("XDG_RUNTIME_DIR", "");
        if (runtime.startsWith("/")) {
            places.add(new Place(Path.of(runtime, "kazahana/kazahanad.sock"), Path.of(runtime)));
        }
        places.add(new Place(Path.of("/run/kazahana/kazahanad.sock"), null));
        places.add(new Place(own.resolve("kazahanad.sock"), own));
        List<String> tried = new ArrayList<>();
        boolean denied = false;
        for (Place place : places) {
            Path file = place.file();
            try {
                String why = place.directory() == null ? null : distrust(place.directory(), uid);
                if (why != null) {
                    tried.add(file + " (ignored: " + place.directory() + " " + why + ")");
                    continue;
                }
                Files.getLastModifiedTime(file);
                return file;
            } catch (NoSuchFileException e) {
                tried.add(file + " (no such file)");
            } catch (AccessDeniedException e) {
                denied = true;
                tried.add(file + " (permission denied: " + denialHint(file) + ")");
            } catch (IOException e) {
                tried.add(file + " (" + e.getMessage() + ")");
            }
        }
        throw new Unreachable(denied, "no daemon's socket found; tried " + String.join(", ", tried)
                + ": start one (kazahanad serve), or name its socket in KAZAHANA_SOCKET", null);
    }

    /** Returns the effective user ID of this process. Java does not tell it, but files do; -1 where files have none. */
    static int uid() {
        try {
            // The owner of /proc/self may be root, so that other processes of the user cannot look into this one.
            for (String line : Files.readAllLines(Path.of("/proc/self/status"), StandardCharsets.ISO_8859_1)) {
                if (line.startsWith("Uid:")) {
                    return Integer.parseUnsignedInt(line.split("\\s+")[2]);
                }
            }
        } catch (IOException | NumberFormatException | IndexOutOfBoundsException e) {
            // not Linux
        }
        try {
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

    /**
     * Says why another user may answer in the daemon's place in the directory; null if none may. su and sudo -E keep another user's
     * XDG_RUNTIME_DIR, and every user can make a directory below /tmp.
     */
    private static String distrust(Path directory, int uid) throws IOException {
        Map<String, Object> found = Files.readAttributes(directory, "unix:isDirectory,uid,mode", LinkOption.NOFOLLOW_LINKS);
        int owner = (int) found.get("uid");
        int mode = (int) found.get("mode") & 07777;
        return !(boolean) found.get("isDirectory") ? "is not a directory"
                : owner != uid ? "belongs to another user, " + owner + ", and this is user " + uid
                : (mode & 022) != 0 ? "can be written by others (mode " + Integer.toOctalString(mode) + ")" : null;
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

    /** Says what keeps this user out, and what to do: a directory that it may not enter, else the socket. */
    private static String denialHint(Path file) {
        Path place = file;
        for (Path at = file.toAbsolutePath().normalize().getParent(); at != null; at = at.getParent()) {
            if (Files.isDirectory(at) && !Files.isExecutable(at)) {
                place = at;
            }
        }
        try {
            Map<String, Object> found = Files.readAttributes(place, "unix:isDirectory,uid,gid,mode");
            String group = Files.readAttributes(place, PosixFileAttributes.class).group().getName();
            boolean isDirectory = (boolean) found.get("isDirectory");
            int mode = (int) found.get("mode") & 07777;
            if ((int) found.get("gid") != 0 && (mode & (isDirectory ? 010 : 020)) != 0) {
                return place + " belongs to group " + group + ": a user of that group may connect (usermod -aG " + group
                        + " USER, then log in again)";
            }
            return place + " belongs to user " + found.get("uid") + " and group " + group + " with mode " + Integer.toOctalString(mode) + ": "
                    + (isDirectory ? "open it with chmod o+x, or give the daemon another --socket"
                            : "give the daemon a group of its own with --socket-group and --socket-mode 0660");
        } catch (IOException | UnsupportedOperationException | IllegalArgumentException e) {
            return "its directory cannot be read either";
        }
    }
}
