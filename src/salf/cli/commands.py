"""Groups of commands."""

from typing import Any

from typer.core import TyperGroup

from salf.common.errors import unknown


class Commands(TyperGroup):
    """Commands that are named where somebody asks for one there is not."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments begin with."""
        if args and args[0] not in self.commands:
            raise unknown("command", args[0], self.commands)
        return super().resolve_command(ctx, args)
