package io.github.kazahana;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** What the READMEs promise. */
class ReadmeTest {
    private static final Pattern PROGRAM = Pattern.compile("```java\n((?:import [^\n]*\n)+)\n(.*?)```", Pattern.DOTALL);

    @Test
    void theClientHasNoDependenciesAndIsForJava17() throws Exception {
        String parent = Files.readString(Path.of("../pom.xml"));
        assertTrue(parent.contains("<maven.compiler.release>17</maven.compiler.release>"), "Java 17 is the oldest");
        String declared = parent.replaceFirst("(?s)<dependencyManagement>.*</dependencyManagement>", "") + Files.readString(Path.of("pom.xml"));
        Matcher dependency = Pattern.compile("<dependency>.*?</dependency>", Pattern.DOTALL).matcher(declared);
        int count = 0;
        for (; dependency.find(); count++) {
            assertTrue(dependency.group().contains("<scope>test</scope>"), dependency.group());
        }
        assertEquals(2, count, "JUnit and Gson, for the tests");
    }

    @Test
    void thePageIsRead() throws Exception {
        String page = Files.readString(Path.of("../README.md"));
        int words = page.strip().split("\\s+").length;
        assertTrue(words <= 1000, words + " words");
        int at = 0;
        for (String next : List.of("<dependency>", "ids.nextId()", "Spring", "FakeKazahana", "java.time.Clock", "## Errors", "## Locks")) {
            at = page.indexOf(next, at);
            assertTrue(at >= 0, next + " is missing, or stands too early");
        }
    }

    /** Locks: lines without comments and blank ones. */
    @Test
    void locksAreSmall() throws Exception {
        long lines = 0;
        for (String name : List.of("HeldLock", "Holder", "Term", "BootClock")) {
            String code = Files.readString(Path.of("src/main/java/io/github/kazahana", name + ".java")).replaceAll("(?s)/\\*\\*.*?\\*/", "");
            lines += code.lines().map(String::strip).filter(line -> !line.isEmpty() && !line.startsWith("//")).count();
        }
        assertTrue(lines <= 450, lines + " lines");
    }

    /** The first program of each page prints an ID. */
    @ParameterizedTest
    @ValueSource(strings = {"../README.md", "../../../README.md"})
    void theFirstProgramPrintsAnId(String page) throws Exception {
        Matcher program = PROGRAM.matcher(Files.readString(Path.of(page)));
        assertTrue(program.find(), "no program found");
        Path file = Files.createTempFile("kz-", ".java");
        try (Daemon daemon = new Daemon(); Kazahana client = daemon.client()) {
            Files.writeString(file, program.group(1) + "class Program { public static void main(String[] args) {\n" + program.group(2) + "} }\n");
            long before = client.nextId();
            Path java = Path.of(System.getProperty("java.home"), "bin", "java");
            ProcessBuilder run = new ProcessBuilder(java.toString(), "-cp", System.getProperty("java.class.path"), file.toString());
            run.environment().put("KAZAHANA_SOCKET", daemon.socket());
            Process process = run.redirectErrorStream(true).start();
            String said = new String(process.getInputStream().readAllBytes());
            assertEquals(0, process.waitFor(), said);
            long id = Long.parseLong(said.lines().findFirst().orElseThrow());
            assertTrue(before < id && id < client.nextId(), said);
        } finally {
            Files.delete(file);
        }
    }
}
