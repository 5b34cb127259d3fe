"""The command line, run by torchrun, in which one process is killed in its tenth step, once."""

import os
import signal

from mlnt.cli import main
from mlnt.steps import Steps

WHO, WHEN = os.environ.get("DYING_PROCESS", "1"), 10

if os.environ["RANK"] == WHO and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    made, step = [], Steps._step

    def step_or_die(self, rates):
        made.append(1)
        if len(made) == WHEN:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, rates)

    Steps._step = step_or_die

main()
