"""How the code of a chat template reads members of messages: in place, where that is what the sandbox would do.

    message.role      ->   (t_1['role'] if type(t_1 := message) is dict and 'role' in t_1 else environment.getattr(...))
    message['role']   ->   the same with environment.getitem
    loop.index0       ->   (t_2.index0 if type(t_2 := loop) is LoopContext else environment.getattr(...))

A conversation of 60 messages asks for 500 members, and asking the sandbox costs ten times as much.
"""

from __future__ import annotations

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame

DICT_ATTRIBUTES = frozenset(dir(dict))
"""Attributes that a dict has whatever its keys are: `message.items` is the method."""

_COUNTS = frozenset({"index", "index0", "first", "depth", "depth0"})
"""Members of a loop that are there whatever it goes over."""


class MemberGenerator(CodeGenerator):
    """Jinja's code generator, for environments of `service.chat_sandbox.Sandbox`."""

    def visit_Getattr(self, node: nodes.Getattr, frame: Frame) -> None:
        """`object.name`."""
        if node.attr in _COUNTS and isinstance(node.node, nodes.Name):
            self._inline(node.node, f".{node.attr}", "LoopContext", "", frame)
        elif node.attr not in DICT_ATTRIBUTES:
            self._inline(node.node, f"[{node.attr!r}]", "dict", f" and {node.attr!r} in {{}}", frame)
        else:
            super().visit_Getattr(node, frame)
            return
        self.write(f"environment.getattr({self._last}, {node.attr!r}))")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        """`object[name]`; other subscripts are Jinja's own."""
        key = node.arg.value if isinstance(node.arg, nodes.Const) else None
        if type(key) is not str:
            super().visit_Getitem(node, frame)
            return
        self._inline(node.node, f"[{key!r}]", "dict", f" and {key!r} in {{}}", frame)
        self.write(f"environment.getitem({self._last}, {key!r}))")

    _last = ""
    """The variable that holds the object of the latest member."""

    def _inline(self, node: nodes.Expr, member: str, kind: str, condition: str, frame: Frame) -> None:
        """Write everything up to the way that any other object takes. `{}` in `condition` stands for the object."""
        name = self.temporary_identifier()
        self.write(f"({name}{member} if type({name} := ")
        self.visit(node, frame)
        self.write(f") is {kind}{condition.replace('{}', name)} else ")
        self._last = name
