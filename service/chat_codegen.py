"""What is our own in the code that Jinja makes of a chat template.

Members of messages are read in place, where that is what the sandbox would do:

    message.role      ->   (t_1['role'] if type(t_1 := message) is dict and 'role' in t_1 else environment.getattr(...))
    message['role']   ->   the same with environment.getitem
    loop.index0       ->   (t_2.index0 if type(t_2 := loop) is LoopContext else environment.getattr(...))

A conversation of 60 messages asks for 500 members, and asking the sandbox costs ten times as much.

Text that is UTF-8 (`service.chat_text`) leaves as it is:

    {{ content }}     ->   environment.printed(content) instead of str(content)
    a ~ b             ->   environment.concatenated((a, b)) instead of str_join((a, b))
"""

from __future__ import annotations

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame

DICT_ATTRIBUTES = frozenset(dir(dict))
"""Attributes that a dict has whatever its keys are: `message.items` is the method."""

_COUNTS = frozenset({"index", "index0", "first", "depth", "depth0"})
"""Members of a loop that are there whatever it goes over."""


class TemplateGenerator(CodeGenerator):
    """Jinja's code generator, for environments of `service.chat_sandbox.Sandbox`."""

    def visit_Getattr(self, node: nodes.Getattr, frame: Frame) -> None:
        """`object.name`."""
        if node.attr in _COUNTS and isinstance(node.node, nodes.Name):
            name = self.temporary_identifier()
            self.write(f"({name}.{node.attr} if type({name} := ")
            self.visit(node.node, frame)
            self.write(f") is LoopContext else environment.getattr({name}, {node.attr!r}))")
        elif node.attr not in DICT_ATTRIBUTES:
            self._member(node.node, node.attr, "getattr", frame)
        else:
            super().visit_Getattr(node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        """`object[name]`; other subscripts are Jinja's own."""
        key = node.arg.value if isinstance(node.arg, nodes.Const) else None
        if type(key) is str:
            self._member(node.node, key, "getitem", frame)
        else:
            super().visit_Getitem(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        """`a ~ b`; where text is escaped it is Jinja's own."""
        if frame.eval_ctx.volatile or frame.eval_ctx.autoescape:
            super().visit_Concat(node, frame)
            return
        self.write("environment.concatenated((")
        for term in node.nodes:
            self.visit(term, frame)
            self.write(", ")
        self.write("))")

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: CodeGenerator._FinalizeInfo) -> None:
        if frame.eval_ctx.volatile or frame.eval_ctx.autoescape:
            super()._output_child_pre(node, frame, finalize)
        else:
            self.write("environment.printed(")

    def _member(self, node: nodes.Expr, key: str, way: str, frame: Frame) -> None:
        """What a dict has under a key; any other object, and a key that is not there, is left to the sandbox."""
        name = self.temporary_identifier()
        self.write(f"({name}[{key!r}] if type({name} := ")
        self.visit(node, frame)
        self.write(f") is dict and {key!r} in {name} else environment.{way}({name}, {key!r}))")
