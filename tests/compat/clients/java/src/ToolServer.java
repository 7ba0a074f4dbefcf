import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's command-line tools one after the other in one JVM, because starting a JVM takes longer than most of them.
 *
 * Reads a line per run: the class and its arguments, tab-separated. Answers with three length-prefixed parts: exit code,
 * what it printed to stdout, what it printed to stderr.
 */
public final class ToolServer {
    /** Thrown where the tool would have ended the process. Some tools catch even this, and then exit a second time. */
    private static final class Exited extends RuntimeException {
        Exited() {
            super("the tool has called exit", null, false, false);
        }
    }

    private static Integer firstExitCode;

    public static void main(String[] arguments) throws IOException {
        DataOutputStream answers = new DataOutputStream(new FileOutputStream(FileDescriptor.out));
        Exit.Procedure leave = (code, message) -> {
            if (firstExitCode == null) {
                firstExitCode = code;
            }
            throw new Exited();
        };
        Exit.setExitProcedure(leave);
        Exit.setHaltProcedure(leave);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            ByteArrayOutputStream err = new ByteArrayOutputStream();
            PrintStream terminalErr = System.err;
            System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
            int code = run(line.split("\t"));
            System.out.flush();
            System.err.flush();
            System.setErr(terminalErr);
            answers.writeInt(code);
            answer(answers, out.toByteArray());
            answer(answers, err.toByteArray());
            answers.flush();
        }
    }

    private static int run(String[] words) {
        firstExitCode = null;
        try {
            String[] arguments = Arrays.copyOfRange(words, 1, words.length);
            Class.forName(words[0]).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException error) {
            if (firstExitCode == null) {
                error.getCause().printStackTrace();
                return 1;
            }
        } catch (ReflectiveOperationException error) {
            error.printStackTrace();
            return 127;
        }
        return firstExitCode == null ? 0 : firstExitCode;
    }

    private static void answer(DataOutputStream answers, byte[] part) throws IOException {
        answers.writeInt(part.length);
        answers.write(part);
    }
}
