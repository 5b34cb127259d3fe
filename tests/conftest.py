import functools

import torch
import typer.main

# The order of sums must not depend on the number of cores; and for networks as small as these two
# threads only wait for each other, forty times longer where other programs compute beside them.
torch.set_num_threads(1)

# Typer builds all commands anew at each call, which takes longer than to find most mistakes.
typer.main.get_command = functools.cache(typer.main.get_command)
