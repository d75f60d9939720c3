package io.github.kazahana;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** The first program of each README prints an ID. */
class ReadmeTest {
    private static final Pattern PROGRAM = Pattern.compile("```java\n((?:import [^\n]*\n)+)\n(.*?)```", Pattern.DOTALL);

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
