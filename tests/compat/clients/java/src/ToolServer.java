import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.FileOutputStream;
import java.io.FileDescriptor;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;

import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's command-line tools one after the other in one JVM, because starting a JVM takes longer than most of them.
 *
 * Reads a line per run: the class and its arguments, tab-separated. Answers with three length-prefixed parts: exit code,
 * what it printed to stdout, what it printed to stderr.
 */
public final class ToolServer {
    /** Thrown where the tool would have ended the process. */
    private static final class Exited extends RuntimeException {
        final int code;

        Exited(int code) {
            super("exit " + code, null, false, false);
            this.code = code;
        }
    }

    public static void main(String[] arguments) throws IOException {
        DataOutputStream answers = new DataOutputStream(new FileOutputStream(FileDescriptor.out));
        Exit.Procedure leave = (code, message) -> {
            throw new Exited(code);
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
        try {
            String[] arguments = java.util.Arrays.copyOfRange(words, 1, words.length);
            Class.forName(words[0]).getMethod("main", String[].class).invoke(null, (Object) arguments);
            return 0;
        } catch (InvocationTargetException error) {
            if (error.getCause() instanceof Exited exited) {
                return exited.code;
            }
            error.getCause().printStackTrace();
            return 1;
        } catch (ReflectiveOperationException error) {
            error.printStackTrace();
            return 127;
        }
    }

    private static void answer(DataOutputStream answers, byte[] part) throws IOException {
        answers.writeInt(part.length);
        answers.write(part);
    }
}
