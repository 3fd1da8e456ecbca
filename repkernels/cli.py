"""The command line: `repkernels verify | demo | bench | audit | serve | replay`."""

from importlib import import_module
from importlib.util import find_spec

import typer

from repkernels.audit.script import audit_command
from repkernels.demo import demo_command
from repkernels.llm.commands import replay_command, serve_command
from repkernels.verify.llm.command import llm_command
from repkernels.verify.report import verify_command

app = typer.Typer(
    help="Deep-learning operations whose every bit is defined.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
verify = typer.Typer(pretty_exceptions_enable=False)
verify.callback(invoke_without_command=True)(verify_command)
verify.command("llm")(llm_command)
app.add_typer(verify, name="verify")
app.command("demo")(demo_command)
app.command("serve")(serve_command)
app.command("replay")(replay_command)
# What follows the script is the script's.
app.command("audit", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})(audit_command)


PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command("bench", context_settings=PASSED_ON)
def bench_command(context: typer.Context) -> None:
    """Measures this library beside torch: `repkernels bench --help`."""
    # A checkout that is not installed has the benchmarks beside the library.
    name = "repkernels.bench" if find_spec("repkernels.bench") else "bench"
    import_module(f"{name}.cli").main(context.args)


def main() -> None:
    """Runs the command line."""
    app()


if __name__ == "__main__":
    main()
