"""`nodectl completion`: prints the script that a shell needs."""

import click
from click.shell_completion import get_completion_class

from nodewarden.cli.output import emit


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    \b
    Examples:
      nodectl completion bash > /etc/bash_completion.d/nodectl
      nodectl completion zsh  > ~/.zfunc/_nodectl       (with ~/.zfunc in fpath)
      nodectl completion fish > ~/.config/fish/completions/nodectl.fish
    """
    from nodewarden.cli.main import nodectl  # noqa: PLC0415 -- main loads this module

    kind = get_completion_class(shell)
    assert kind is not None
    emit(kind(nodectl, {}, "nodectl", "_NODECTL_COMPLETE").source())
