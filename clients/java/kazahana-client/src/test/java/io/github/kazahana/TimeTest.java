package io.github.kazahana;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Random;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

/** By which clock a lock is counted, and when the daemon is asked. */
class TimeTest {
    private static final long MS = TimeUnit.MILLISECONDS.toNanos(1);

    private long steady;
    private long coarse;

    @Test
    void aSuspendCounts() {
        BootClock clock = new BootClock(() -> steady, () -> coarse);
        long begun = clock.now();
        steady += 1000 * MS;
        coarse += 1000 * MS;
        assertEquals(1000 * MS, clock.now() - begun);
        coarse += 5000 * MS;
        long after = clock.now() - begun;
        assertTrue(after >= 6000 * MS && after <= 6030 * MS, Long.toString(after));
        steady += 7 * MS;
        coarse += 7 * MS;
        assertEquals(7 * MS, clock.now() - begun - after);
    }

    @Test
    void theCoarsenessOfTheClockIsNoSuspend() {
        long[] time = {123_456_789};
        BootClock clock = new BootClock(() -> time[0], () -> time[0] - time[0] % BootClock.STEP);
        Random random = new Random(1);
        long begun = clock.now() - time[0];
        for (int i = 0; i < 10_000; i++) {
            time[0] += random.nextInt((int) (40 * MS));
            assertEquals(begun, clock.now() - time[0]);
        }
    }

    @Test
    void aThreadThatIsStoppedWhileItReadsTheClocksMakesNoSuspend() {
        Random random = new Random(1);
        BootClock clock = new BootClock(() -> steady += stop(random), () -> steady += stop(random));
        long begun = clock.now() - steady;
        for (int i = 0; i < 10_000; i++) {
            assertEquals(begun, clock.now() - steady);
        }
    }

    private static long stop(Random random) {
        return random.nextInt(10) == 0 ? random.nextInt((int) (500 * MS)) : 1;
    }

    @Test
    void aWallClockThatIsSetBackIsNoEndOfNoticing() {
        BootClock clock = new BootClock(() -> steady, () -> coarse);
        long begun = clock.now();
        coarse -= 3_600_000 * MS;
        assertEquals(begun, clock.now());
        coarse += 5000 * MS;
        assertTrue(clock.now() - begun >= 5000 * MS);
    }

    @Test
    void anInterruptedThreadReadsTheClock() {
        Thread.currentThread().interrupt();
        long before = BootClock.SYSTEM.now();
        assertTrue(BootClock.SYSTEM.now() >= before);
        assertTrue(Thread.interrupted());
        assertTrue(BootClock.SYSTEM.now() >= before);
    }

    @Test
    void theSystemsClockGoesOn() {
        long before = BootClock.SYSTEM.now();
        long steadyBefore = System.nanoTime();
        Daemon.until("30 ms", () -> System.nanoTime() - steadyBefore > 30 * MS);
        assertTrue(BootClock.SYSTEM.now() - before >= 30 * MS);
    }

    @Test
    void aTermCountsFromBeforeTheQuestionAndLeavesOutATwentieth() {
        Term term = new Term(1000 * MS, 30_000);
        assertEquals(11_000 * MS, term.next());
        assertTrue(term.isCertain(29_499 * MS));
        assertFalse(term.isCertain(29_500 * MS));
        term.ask(11_000 * MS);
        assertEquals(29_500 * MS, term.next());
        assertTrue(term.confirm(12_000 * MS, 30_000));
        assertEquals(21_000 * MS, term.next());
        assertTrue(term.isCertain(39_499 * MS));
        assertFalse(term.isCertain(39_500 * MS));
    }

    @Test
    void aShorterAnswerShortensTheTerm() {
        Term term = new Term(0, 30_000);
        term.ask(10_000 * MS);
        assertTrue(term.confirm(10_001 * MS, 6000));
        assertFalse(term.isCertain(15_700 * MS));
    }

    @Test
    void aFailureIsFollowedByAnotherQuestionWithinTheTerm() {
        Term term = new Term(0, 30_000);
        term.ask(10_000 * MS);
        assertTrue(term.fail(11_000 * MS));
        assertEquals(14_000 * MS, term.next());
        term.ask(14_000 * MS);
        assertTrue(term.fail(27_000 * MS));
        assertEquals(28_500 * MS, term.next());
        term.ask(28_500 * MS);
        assertEquals(28_500 * MS, term.next());
        assertFalse(term.fail(28_500 * MS));
    }

    @Test
    void aQuestionThatIsAskedTooLateHasATenthOfTheTermOrASecond() {
        Term term = new Term(0, 30_000);
        term.ask(100_000 * MS);
        assertEquals(103_000 * MS, term.next());
        Term brief = new Term(0, 100);
        brief.ask(100_000 * MS);
        assertEquals(101_000 * MS, brief.next());
        Term day = new Term(0, 86_400_000);
        day.ask(100_000_000 * MS);
        assertEquals(100_010_000 * MS, day.next());
    }

    @Test
    void answersThatAreOverWhenTheyComeAreNotTakenForEver() {
        Term term = new Term(0, 30_000);
        term.ask(10_000 * MS);
        assertTrue(term.confirm(90_000 * MS, 30_000));
        term.ask(90_000 * MS);
        assertTrue(term.next() >= 91_000 * MS);
        assertTrue(term.confirm(200_000 * MS, 30_000));
        term.ask(200_000 * MS);
        assertFalse(term.confirm(300_000 * MS, 30_000));
    }
}
