"""What is our own in the code that Jinja makes of a chat template.

Members of messages are read in place, where that is what the sandbox would do:

    message.role      ->   (t_1['role'] if type(t_1 := message) is dict and 'role' in t_1 else environment.getattr(...))
    message['role']   ->   the same with environment.getitem
    loop.index0       ->   (t_2.index0 if type(t_2 := loop) is LoopContext else environment.getattr(...))

A conversation of 60 messages asks for 500 members, and asking the sandbox costs ten times as much. What a dict does not
have is False where only that matters, instead of an object that stands for nothing:

    {% if message.tool_calls %}, message.name is defined

Text that is UTF-8 (`service.chat_text`) leaves as it is:

    {{ content }}     ->   environment.printed(content) instead of str(content)
    a ~ b             ->   environment.concatenated((a, b)) instead of str_join((a, b))
"""

from __future__ import annotations

from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame

DICT_ATTRIBUTES = frozenset(dir(dict))
"""Attributes that a dict has whatever its keys are: `message.items` is the method."""

_COUNTS = frozenset({"index", "index0", "first", "depth", "depth0"})
"""Members of a loop that are there whatever it goes over."""


class TemplateGenerator(CodeGenerator):
    """Jinja's code generator, for environments of `service.chat_sandbox.Sandbox`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._conditions: set[int] = set()
        """Expressions that are asked only whether they are true."""

    def visit_If(self, node: nodes.If, frame: Frame) -> None:
        """`if`, and its `elif`."""
        for test in (node.test, *(other.test for other in node.elif_)):
            self._note_conditions(test)
        super().visit_If(node, frame)

    def _note_conditions(self, node: nodes.Node) -> None:
        if isinstance(node, nodes.And | nodes.Or):
            self._note_conditions(node.left)
            self._note_conditions(node.right)
        elif isinstance(node, nodes.Not):
            self._note_conditions(node.node)
        else:
            self._conditions.add(id(node))

    def visit_Test(self, node: nodes.Test, frame: Frame) -> None:
        """`object.name is defined`; other tests are Jinja's own."""
        member = node.node
        key = _key_of(member)
        if node.name != "defined" or key is None or key in DICT_ATTRIBUTES:
            super().visit_Test(node, frame)
            return
        assert isinstance(member, nodes.Getattr | nodes.Getitem)
        name, test = self.temporary_identifier(), self.tests["defined"]
        self.write(f"({key!r} in {name} and {test}({name}[{key!r}]) if type({name} := ")
        self.visit(member.node, frame)
        self.write(f") is dict else {test}(environment.{_way(member)}({name}, {key!r})))")

    def visit_Getattr(self, node: nodes.Getattr, frame: Frame) -> None:
        """`object.name`."""
        if node.attr in _COUNTS and isinstance(node.node, nodes.Name):
            name = self.temporary_identifier()
            self.write(f"({name}.{node.attr} if type({name} := ")
            self.visit(node.node, frame)
            self.write(f") is LoopContext else environment.getattr({name}, {node.attr!r}))")
        elif node.attr not in DICT_ATTRIBUTES:
            self._member(node, node.attr, frame)
        else:
            super().visit_Getattr(node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        """`object[name]`; other subscripts are Jinja's own."""
        key = _key_of(node)
        if key is not None:
            self._member(node, key, frame)
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

    def _member(self, node: nodes.Getattr | nodes.Getitem, key: str, frame: Frame) -> None:
        """What a dict has under a key; any other object, and a key that is not there, is left to the sandbox."""
        name = self.temporary_identifier()
        if id(node) in self._conditions and key not in DICT_ATTRIBUTES:
            self.write(f"(({name}[{key!r}] if {key!r} in {name} else False) if type({name} := ")
            self.visit(node.node, frame)
            self.write(f") is dict else environment.{_way(node)}({name}, {key!r}))")
            return
        self.write(f"({name}[{key!r}] if type({name} := ")
        self.visit(node.node, frame)
        self.write(f") is dict and {key!r} in {name} else environment.{_way(node)}({name}, {key!r}))")


def _key_of(node: nodes.Expr) -> str | None:
    """The member that an expression asks for, if it is one and always the same."""
    if isinstance(node, nodes.Getattr):
        return node.attr
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and type(node.arg.value) is str:
        return node.arg.value
    return None


def _way(node: nodes.Getattr | nodes.Getitem) -> str:
    return "getattr" if isinstance(node, nodes.Getattr) else "getitem"
