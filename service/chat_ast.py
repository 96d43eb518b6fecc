"""What the source of a chat template says about itself, read from its syntax tree."""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import nodes


def string_constants(tree: nodes.Template) -> frozenset[str]:
    """Every string that is written in the template as a literal."""
    return frozenset(node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str))


def loops_over_content(tree: nodes.Template) -> bool:
    """Whether some loop goes over the content of a message.

    Found are loops over `message.content` for every variable that loops over the messages or a variable made from
    them, over a variable named `content`, and over a macro's parameter that is given a message's content. It is the
    rule by which vLLM chooses its content format, so both serve the same text.
    """
    messages = _aliases(tree, "messages")
    items = {
        loop.target.name
        for loop in tree.find_all(nodes.For)
        if isinstance(loop.target, nodes.Name) and any(_reads(loop.iter, name) for name in messages)
    }
    in_macros = _loops_in_macros(tree)
    return any(
        any(_reads(loop.iter, item, "content") for item in items)
        or _is_named(loop.iter, _content_parameters(tree, macro, items) if macro else {"content"})
        for loop, macro in ((loop, in_macros.get(id(loop))) for loop in tree.find_all(nodes.For))
    )


def loops_over_named_content(tree: nodes.Template) -> bool:
    """Whether some loop goes over the content of a variable named `message`, `msg` or `m`: the rule of SGLang."""
    loops = tree.find_all(nodes.For)
    return any(_reads(loop.iter, name, "content") for loop in loops for name in ("message", "msg", "m"))


def _loops_in_macros(tree: nodes.Template) -> dict[int, nodes.Macro]:
    """The innermost macro around each loop that stands in one."""
    return {id(loop): macro for macro in tree.find_all(nodes.Macro) for loop in macro.find_all(nodes.For)}


def _content_parameters(tree: nodes.Template, macro: nodes.Macro, items: set[str]) -> set[str]:
    """The parameters of a macro that some call fills with the content of a message."""
    names = [parameter.name for parameter in macro.args]
    filled: set[str] = set()
    for call in tree.find_all(nodes.Call):
        if not (isinstance(call.node, nodes.Name) and call.node.name == macro.name):
            continue
        given = [*zip(names, call.args, strict=False), *((kwarg.key, kwarg.value) for kwarg in call.kwargs)]
        filled |= {
            name for name, value in given if name in names and any(_reads(value, item, "content") for item in items)
        }
    return filled


def _aliases(tree: nodes.Template, name: str) -> list[str]:
    """`name` and every variable or namespace attribute (`ns.rest`) that is assigned from it, directly or not."""
    found = [name]
    for known in found:
        for assign in tree.find_all(nodes.Assign):
            found += [alias for alias in _targets(assign, known) if alias not in found]
    return found


def _targets(assign: nodes.Assign, name: str) -> Iterator[str]:
    target, value = assign.target, assign.node
    if isinstance(target, nodes.Name):
        if _reads(value, name):
            yield target.name
        if isinstance(value, nodes.Call) and _is_named(value.node, {"namespace"}):
            yield from (f"{target.name}.{kwarg.key}" for kwarg in value.kwargs if _reads(kwarg.value, name))
    elif isinstance(target, nodes.NSRef) and _reads(value, name):
        yield f"{target.name}.{target.attr}"


def _reads(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Whether an expression is the variable (or its member `key`), perhaps filtered, tested or sliced."""
    while isinstance(node, nodes.Filter | nodes.Test) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    if key is None:
        return _is_variable(node, name)
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == key and _is_variable(node.node, name)
    return isinstance(node, nodes.Getattr) and node.attr == key and _is_variable(node.node, name)


def _is_variable(node: nodes.Node | None, name: str) -> bool:
    if isinstance(node, nodes.Getattr):
        base, dot, attribute = name.rpartition(".")
        return bool(dot) and node.attr == attribute and _is_variable(node.node, base)
    return _is_named(node, {name})


def _is_named(node: nodes.Node | None, names: set[str]) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name in names
